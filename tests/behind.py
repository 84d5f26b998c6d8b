"""How does a test look into a store behind its back, whatever database that is?"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg
from psycopg.rows import tuple_row

_SOON = 30.0  # seconds; what a server has not ended by then it never will


def file_of(db: str) -> Path | None:
    """The file of a store in SQLite."""
    return Path(db.removeprefix("sqlite:///")) if db.startswith("sqlite:///") else None


def exists(db: str) -> bool:
    """Has any process opened the store? One in PostgreSQL is a database with the tables in it."""
    return (file := file_of(db)) is None or file.exists()


def execute(db: str, sql: str) -> list[tuple[Any, ...]]:
    """Run one statement on the store of that URL."""
    if (file := file_of(db)) is not None:
        with closing(apsw.Connection(str(file))) as connection:
            connection.set_busy_timeout(10_000)
            return list(connection.execute(sql))
    with closing(connected(db)) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def slow_commits(db: str, seconds: float, writes: str = "INSERT OR UPDATE ON ondol.writers") -> None:
    """On PostgreSQL: each COMMIT of what ``writes`` takes that long in the middle of it, where its work is done and can
    be seen by nobody, as if it waited for a standby."""
    execute(
        db,
        f"""
CREATE FUNCTION ondol.slow() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER {writes} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION ondol.slow();
""",
    )


def connected(db: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection to a store in PostgreSQL, with its tables at hand."""
    connection = psycopg.connect(db.partition("?")[0], autocommit=True, row_factory=tuple_row)
    connection.execute("SET search_path = ondol")
    return connection


def insert(db: str, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put rows, which all have the same columns, into a table; in one transaction."""
    names = ", ".join(rows[0])
    if (file := file_of(db)) is not None:
        with closing(apsw.Connection(str(file))) as connection, connection:
            values = ", ".join(f":{name}" for name in rows[0])
            connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", rows)
        return
    with closing(connected(db)) as connection, connection.transaction(), connection.cursor() as cursor:
        values = ", ".join(f"%({name})s" for name in rows[0])
        cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})".encode(), rows)


def rows_of(db: str, table: str) -> list[dict[str, Any]]:
    names = [column for of, column in columns(db) if of == table]
    return [dict(zip(names, row, strict=True)) for row in execute(db, f"SELECT {', '.join(names)} FROM {table}")]


class Look:
    """A connection that only reads the store of a URL, which exists. Each query sees what is there then."""

    def __init__(self, db: str) -> None:
        self.file = file_of(db)
        self._connection: Any
        if self.file is not None:
            self._connection = apsw.Connection(str(self.file), flags=apsw.SQLITE_OPEN_READONLY)
        else:
            self._connection = connected(db)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(sql))

    @contextmanager
    def at_one_instant(self) -> Iterator[None]:
        """All queries in the block see the same."""
        self._connection.execute(
            "BEGIN" if self.file is not None else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        )
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def blobs(self) -> frozenset[str]:
        """The digests of those that are whole."""
        if self.file is not None:
            files = [f for f in Path(f"{self.file}.blobs").rglob("*") if f.is_file()]
            return frozenset(f.name for f in files if hashlib.sha256(f.read_bytes()).hexdigest() == f.name)
        found: dict[str, Any] = defaultdict(hashlib.sha256)
        for digest, data in self.rows("SELECT digest, data FROM blob_chunks ORDER BY tenant, digest, n"):
            found[digest].update(data)
        return frozenset(digest for digest, data in found.items() if data.hexdigest() == digest)

    def faults(self) -> list[Any]:
        """What the database finds wrong with itself."""
        if self.file is not None:
            said = [line for (line,) in self.rows("PRAGMA integrity_check") if line != "ok"]
            return said + self.rows("PRAGMA foreign_key_check")
        constraints = "SELECT conname::text FROM pg_constraint WHERE NOT convalidated"
        indexes = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
        return self.rows(f"{constraints} UNION ALL {indexes}")

    def close(self) -> None:
        self._connection.close()


def lose_the_dead(db: str) -> None:
    """Return when nothing of the processes that were killed goes on in the database; then their leases are over.

    A server may still be at what a process had sent before it died.
    """
    if file_of(db) is None:
        _wait_for_connections(db)
        execute(db, "UPDATE owners SET leased_until = clock_timestamp()")


def held(db: str) -> list[Any]:
    """What processes that have ended in good order still hold of the store: files, connections, leases."""
    if (file := file_of(db)) is not None:
        fds = Path("/proc/self/fd")
        open_files = [str(fd.readlink()) for fd in fds.iterdir() if fd.is_symlink()] if fds.exists() else []
        return [path for path in open_files if path.startswith(str(file))] + list(file.parent.rglob(".*"))
    _wait_for_connections(db)
    return execute(db, "SELECT id FROM owners WHERE leased_until > clock_timestamp()")


def _wait_for_connections(db: str) -> None:
    """A server notices a little later that a client has closed its connection."""
    others = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    until = time.monotonic() + _SOON
    while at_work := execute(db, f"SELECT pid, state, query FROM pg_stat_activity WHERE {others}"):
        assert time.monotonic() < until, f"connections stay open: {at_work}"


def columns(db: str) -> Iterator[tuple[str, str]]:
    """Each column of each table."""
    if file_of(db) is not None:
        tables = "SELECT name FROM sqlite_schema WHERE type = 'table'"
        found = f"SELECT t.name, c.name FROM ({tables}) AS t, pragma_table_info(t.name) AS c"
    else:
        found = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'ondol'"
    yield from ((table, name) for table, name in execute(db, found))


def values(db: str) -> Iterator[tuple[str, Any]]:
    """Each value of each row, and where it stands: ``table.column``."""
    with closing(Look(db)) as look:
        for table, name in columns(db):
            yield from ((f"{table}.{name}", value) for (value,) in look.rows(f'SELECT "{name}" FROM "{table}"'))


def sizes(db: str) -> tuple[int, int]:
    """Bytes of the store's rows, and of its blobs."""
    if (file := file_of(db)) is not None:
        blobs = (f for f in Path(f"{file}.blobs").rglob("*") if f.is_file())
        return file.stat().st_size, sum(f.stat().st_size for f in blobs)
    relations = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c WHERE relkind = 'r' "
    mine = "AND relnamespace = 'ondol'::regnamespace AND relname "
    ((rows,),) = execute(db, f"{relations}{mine}<> 'blob_chunks'")
    ((blobs_size,),) = execute(db, "SELECT coalesce(sum(length(data)), 0)::bigint FROM blob_chunks")
    return rows, blobs_size
