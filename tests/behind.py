"""How does a test look into a store behind its back, whatever database that is?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import psycopg
from psycopg.rows import tuple_row


def execute(db: str, sql: str) -> list[tuple[Any, ...]]:
    """Run one statement on the store of that URL."""
    if db.startswith("sqlite:///"):
        with closing(apsw.Connection(db.removeprefix("sqlite:///"))) as connection:
            connection.set_busy_timeout(10_000)
            return list(connection.execute(sql))
    with psycopg.connect(db.partition("?")[0], autocommit=True, row_factory=tuple_row) as connection:
        connection.execute("SET search_path = ondol")
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def columns(db: str) -> Iterator[tuple[str, str]]:
    """Each column of each table."""
    if db.startswith("sqlite:///"):
        for (table,) in execute(db, "SELECT name FROM sqlite_schema WHERE type = 'table'"):
            yield from ((table, name) for (name,) in execute(db, f"SELECT name FROM pragma_table_info('{table}')"))
    else:
        found = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'ondol'"
        yield from ((table, name) for table, name in execute(db, found))


def sizes(db: str) -> tuple[int, int]:
    """Bytes of the store's rows, and of its blobs."""
    if db.startswith("sqlite:///"):
        file = Path(db.removeprefix("sqlite:///"))
        blobs = (f for f in Path(f"{file}.blobs").rglob("*") if f.is_file())
        return file.stat().st_size, sum(f.stat().st_size for f in blobs)
    relations = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c WHERE relkind = 'r' "
    mine = "AND relnamespace = 'ondol'::regnamespace AND relname "
    ((rows,),) = execute(db, f"{relations}{mine}<> 'blob_chunks'")
    ((blobs_size,),) = execute(db, "SELECT coalesce(sum(length(data)), 0)::bigint FROM blob_chunks")
    return rows, blobs_size
