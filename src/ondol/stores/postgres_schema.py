"""Which steps lead from an empty database to the schema of this version, and which of them are still to do?

A step adds before another one removes. ``NNNN_pre.sql`` only adds, so that older code goes on working on it: it is done
when a store is opened. ``NNNN_post.sql`` removes what no code of this version needs: it is done by ``ondol db migrate
--post``, when no older process runs any more. All steps that are due are done in one transaction, by one process.

Older processes go on meanwhile, and a step changes tables in another order than they use them: each could wait for the
other. So the steps begin when no transaction writes, and keep out those that come: each begins with its row in
``writers``. Who reads is not kept out; where the server breaks the steps off for one of these, they are done again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from ondol.errors import StoreCorrupt, StoreError, StoreTooNew
from ondol.stores.postgres_place import Place

_FOLDER = Path(__file__).with_name("postgres_migrations")
_FILE = re.compile(r"(\d{4})_(pre|post)\.sql")
_KEEP_WRITERS_OUT = """DO $$ BEGIN
  IF to_regclass('writers') IS NOT NULL THEN LOCK TABLE writers IN SHARE MODE; END IF;
END $$;"""
_AGAIN = 10  # times that the steps are tried
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('ondol.migrate.' || %s, 0))"


class Step(NamedTuple):
    """One file. Steps are done in this order: those that add first."""

    post: bool
    version: int
    sql: str

    @property
    def name(self) -> str:
        return f"{self.version:04}_{'post' if self.post else 'pre'}"


@functools.cache
def steps(folder: Path = _FOLDER) -> tuple[Step, ...]:
    """All steps of this version."""
    files = [(file, _FILE.fullmatch(file.name)) for file in folder.iterdir()]
    return tuple(sorted(Step(m[2] == "post", int(m[1]), f.read_text("utf-8")) for f, m in files if m))


def newest(known: Sequence[Step]) -> int:
    return max(step.version for step in known)


def version(done: set[str]) -> int:
    """The version of a schema in which these steps were done."""
    return max((int(name[:4]) for name in done if name.endswith("pre")), default=0)


def done_steps(connection: psycopg.Connection[Any], place: Place) -> set[str]:
    """The names of the steps that were done; none in a database without a store.

    Raises:
        StoreCorrupt: the schema holds tables that are not Ondol's.
    """
    there = "SELECT to_regclass(%s), EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = %s)"
    looked_for = (f"{place.schema}.schema_steps", place.schema)
    table, tables = connection.execute(there, looked_for).fetchone() or (None, False)
    if table is None:
        if tables:
            raise StoreCorrupt(
                f"schema {place.schema} of {place.name} holds tables that are not Ondol's: name another one (?schema=…)"
            )
        return set()
    return {name for (name,) in connection.execute(f'SELECT name FROM "{place.schema}".schema_steps'.encode())}


def due(done: set[str], known: Sequence[Step], place: Place, *, post: bool = False) -> list[Step]:
    """What is to be done. Raises StoreTooNew for a schema that this version does not know."""
    if version(done) > newest(known):
        raise StoreTooNew(
            f"{place.name} has schema {version(done)}, this version of Ondol knows {newest(known)}: upgrade Ondol"
        )
    return [step for step in known if step.name not in done and (post or not step.post)]


def script(todo: Sequence[Step], place: Place) -> str:
    """The steps as SQL that a database administrator may run in one go; empty where nothing is to do."""
    if not todo:
        return ""
    parts = [
        "BEGIN;",
        f"SELECT pg_advisory_xact_lock(hashtextextended('ondol.migrate.{place.schema}', 0));",
        # (IF NOT EXISTS would ask for the right to make one also where it is there.)
        f"DO $$ BEGIN IF to_regnamespace('{place.schema}') IS NULL "
        f'THEN CREATE SCHEMA "{place.schema}"; END IF; END $$;',
        f'SET LOCAL search_path = "{place.schema}";',
        _KEEP_WRITERS_OUT,
        'CREATE TABLE IF NOT EXISTS schema_steps (name TEXT COLLATE "C" PRIMARY KEY);',
    ]
    for step in todo:
        parts += [f"\n-- {step.name}", step.sql.strip(), f"INSERT INTO schema_steps (name) VALUES ('{step.name}');"]
    return "\n".join([*parts, "COMMIT;", ""])


def migrate(place: Place, known: Sequence[Step] | None = None, *, post: bool = False) -> tuple[int, int]:
    """Do what is due, all of it or nothing; returns the version before and after.

    Raises:
        StoreCorrupt, StoreTooNew: the database is left as it is.
        StoreError: this user may not do it. StoreBusy: it cannot be reached.
    """
    known = steps() if known is None else known
    with place.connected() as connection:
        done = done_steps(connection, place)
        if not due(done, known, place, post=post):
            return version(done), version(done)
        try:
            done, todo = _do_all(connection, place, known, post=post)
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreError(
                f"this user may not make the tables of {place.name} ({error.diag.message_primary}): let an "
                "administrator run the output of 'ondol db migrate --sql'"
            ) from error
        except psycopg.errors.OperationalError as error:
            raise StoreError(f"{place.name} was not migrated ({error}): try again") from error
        return version(done), version(done | {step.name for step in todo})


def _do_all(
    connection: psycopg.Connection[Any], place: Place, known: Sequence[Step], *, post: bool
) -> tuple[set[str], list[Step]]:
    """What was done before, and what is done now."""
    tries = 0
    while True:
        tries += 1
        try:
            with connection.transaction():
                # Looked at again behind the lock: another process may have done it at this moment.
                connection.execute(_LOCK, (place.schema,))
                done = done_steps(connection, place)
                todo = due(done, known, place, post=post)
                body = script(todo, place).removeprefix("BEGIN;\n").removesuffix("COMMIT;\n")
                if body:
                    connection.execute(body.encode())
                return done, todo
        except psycopg.errors.DeadlockDetected:
            if tries == _AGAIN:
                raise
