"""How is a store in PostgreSQL looked after: checked, migrated, and begun anew after its tools put a backup back?

Backup and restore are those of the database: ``pg_dump`` and ``pg_restore``, or whatever its operator has for a whole
server. What Ondol adds is the check, and the new generation after a restore.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg

from ondol import transactions
from ondol.clock import Clock, SystemClock, to_micros
from ondol.errors import StoreCorrupt, StoreError, StoreFault
from ondol.queries import tenants
from ondol.stores import postgres_schema, sqlite_admin
from ondol.stores.postgres import PostgresStore
from ondol.stores.postgres_place import Place
from ondol.transactions import Tx

_RESTORE = "restore a backup (pg_restore)"
_LOOK_AGAIN = 0.1  # seconds between two looks whether somebody drives
#: The same questions as to SQLite, where it is asked in its own way.
_OWN_WAY = {
    sqlite_admin.ENTRIES: """
        SELECT n, seq, fence, at, v, convert_to(body, 'UTF8'), sum FROM entries
        WHERE tenant = %s AND run = %s ORDER BY seq""",
    sqlite_admin.MESSAGES: "SELECT ordinal, body, sum FROM messages WHERE tenant = %s AND run = %s",
}


def is_there(url: str) -> bool:
    """Does the database hold a store? Makes none. Raises StoreError, StoreCorrupt."""
    place = Place.of(url)
    with place.connected() as connection:
        return bool(postgres_schema.done_steps(connection, place))


def check(url: str) -> list[str]:
    """What is wrong with a store; empty if nothing is. Each line names the thing and the next move.

    Reads every entry, message and blob on one snapshot, and changes nothing. The pages of the database are the
    business of its own tools (``pg_amcheck``). Others may go on writing.
    """
    return [str(problem) for problem in problems(url)]


def problems(url: str) -> list[StoreError]:
    """As ``check``, each with what kind of trouble it is: what is newer, or cannot be read now, is not damaged."""
    place = Place.of(url)
    try:
        with place.connect() as connection:
            done = postgres_schema.done_steps(connection, place)
            due = postgres_schema.due(done, postgres_schema.steps(), place)
            if not done:
                return [StoreCorrupt(f"{place.name} holds no store of Ondol: name another database, or {_RESTORE}")]
            if due:
                lacks = f"{place.name} lacks {', '.join(s.name for s in due)}: migrate it (ondol db migrate)"
                return [StoreError(lacks)]
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                found = [*sqlite_admin.content_problems(_Asked(connection)), *_blob_problems(connection)]
                return [sqlite_admin.as_error(problem) for problem in found]
    except StoreError as error:
        return [error]
    except psycopg.Error as error:
        told = place.told(error)
        if isinstance(told, StoreError) and not isinstance(told, StoreFault):
            return [told]
        return [StoreCorrupt(f"{place.name} cannot be read ({' '.join(str(error).split())}): {_RESTORE}")]


class _Asked:
    """Answers what is asked in SQLite's words."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, text: str, given: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        own = _OWN_WAY.get(text) or text.replace("?", "%s")
        return self._connection.execute(own.encode(), given).fetchall()


def _blob_problems(connection: psycopg.Connection[Any]) -> Iterator[str]:
    used = "SELECT DISTINCT tenant, digest FROM blob_uses ORDER BY tenant, digest"
    for tenant, digest in connection.execute(used).fetchall():
        whole = hashlib.sha256()
        chunks = "SELECT data FROM blob_chunks WHERE tenant = %s AND digest = %s ORDER BY n"
        found = connection.execute(chunks, (tenant, digest)).fetchall()
        for (data,) in found:
            whole.update(data)
        if not found:
            yield f"blob {digest} is not there: {_RESTORE}"
        elif whole.hexdigest() != digest:
            yield f"blob {digest} does not match its digest: {_RESTORE}"


def migrate(url: str, *, post: bool = False) -> tuple[int, int]:
    """Bring a store to the current schema; returns the version before and after. ``post``: remove what only older
    versions need, when no process of them runs any more. Raises StoreError, StoreCorrupt, StoreTooNew."""
    return postgres_schema.migrate(Place.of(url), post=post)


def migration_script(url: str, *, post: bool = False) -> str:
    """What ``migrate`` would do, as SQL for a database administrator; empty where nothing is to do."""
    place = Place.of(url)
    with place.connected() as connection:
        done = postgres_schema.done_steps(connection, place)
        return postgres_schema.script(postgres_schema.due(done, postgres_schema.steps(), place, post=post), place)


async def begin_generation(url: str, *, clock: Clock | None = None) -> int:
    """After a backup was put back: nobody knows what happened after it was made.

    All fences rise, and every unfinished run is parked until a person says whether it goes on. Returns how many. The
    rows are counted for the planner, as a backup holds no counts.

    Raises:
        StoreError: a process drives this store.
    """
    store = PostgresStore(url)
    await store.open(lambda: None)
    try:
        await _refuse_while_driven(store)
        now = to_micros((clock or SystemClock()).now())
        parked = await store.write(_begin_generation, now)
    finally:
        await store.close()
    await asyncio.to_thread(_count_rows, store.place)
    return parked


async def _refuse_while_driven(store: PostgresStore) -> None:
    """Who drove as the backup was made is in it, with a lease that nobody renews any more: its end is waited for."""
    first: dict[str, str] = {}
    while leases := await store.leases():
        first = leases | first
        if living := [owner for owner, until in leases.items() if until != first[owner]]:
            raise StoreError(f"{store.name} is driven by {', '.join(living)}: stop these processes first")
        await asyncio.sleep(_LOOK_AGAIN)


def _count_rows(place: Place) -> None:
    of_schema = "SELECT format('ANALYZE %%I.%%I', schemaname, tablename) FROM pg_tables WHERE schemaname = %s"
    with place.connected() as connection:
        for (counting,) in connection.execute(of_schema, (place.schema,)).fetchall():
            connection.execute(counting.encode())


def _begin_generation(at: int) -> Tx[int]:
    key = {"key": sqlite_admin.GENERATION}
    (rows,) = yield [("meta.get", key)]
    yield [("meta.set", key | {"value": str(int(rows[0][0] if rows else 0) + 1)})]
    parked = 0
    for tenant in (yield from tenants()):
        of_tenant = {"tenant": tenant, "again": transactions.RETRYABLE_AFTER_RESTORE}
        yield [("restored.fences", of_tenant), ("restored.retryable", of_tenant)]
        (unfinished,) = yield [("restored.unfinished", of_tenant)]
        for (run,) in unfinished:
            yield from transactions.park_restored(tenant, run, at)
        parked += len(unfinished)
    return parked


__all__ = ["begin_generation", "check", "is_there", "migrate", "migration_script", "problems"]
