"""What a transaction decides on does not change before it has written, whatever other processes do meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import psycopg
import pytest
from crash import invariants
from kit import Gate

from ondol import Agent, OutboxMessage, Runtime, tool
from ondol.stores import postgres_statements, postgres_writer
from ondol.stores.postgres import PostgresStore
from ondol.stores.postgres_statements import Text
from ondol.testing import ScriptedModel, call
from ondol.transactions import NewRun, Tx, accept, delete_session, history_space, index_history, late_outcome, recover

P = ParamSpec("P")
T = TypeVar("T")

STARTED = 7  # an advisory lock of this test


def new(name: str) -> NewRun:
    return NewRun(
        tenant="default", run=f"r_{name}", session="s", user_id="", operation_id=name, fingerprint=name, agent="a",
        definition="{}", definition_digest="d", trigger="api", door="python", zone=None, default_zone=None,
        input='{"role":"user","parts":[]}',
    )  # fmt: skip


async def test_a_session_that_is_made_by_another_process_meanwhile_is_locked_all_the_same(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three come to a session that is not there. The first one looks for its lock, and looks at it only when the
    second has made it; the third comes before the first writes."""
    url = new_database()
    text = postgres_statements.TEXTS["run.by_operation"]
    waits = b"SELECT it.* FROM (SELECT CASE WHEN current_setting('application_name') = 'first' THEN "
    waits += b"pg_advisory_xact_lock_shared(%d) END OFFSET 0) waits CROSS JOIN LATERAL (" % STARTED
    monkeypatch.setitem(
        postgres_statements.TEXTS, "run.by_operation", Text(waits + text.sql + b" OFFSET 0) it", text.parameters)
    )  # type: ignore[arg-type]
    monkeypatch.setattr(postgres_writer, "_GROUP_PATIENCE", 10.0)
    looking = Paused("session.get")

    named = [f"{url}?application_name={name}" for name in ("first", "second", "third")]
    async with opened(*named) as (one, two, three):
        with psycopg.connect(url, autocommit=True) as gate:
            gate.execute(f"SELECT pg_advisory_lock({STARTED})".encode())
            first = asyncio.create_task(one.write(looking.tx(accept), new("first"), 1))
            await waiting(gate, 1)
            second = asyncio.create_task(two.write(accept, new("second"), 1))
            await waiting(gate, 2, second)
            gate.execute(f"SELECT pg_advisory_unlock({STARTED})".encode())
            await asyncio.to_thread(looking.reached.wait)
            third = asyncio.create_task(three.write(accept, new("third"), 1))
            await waiting(gate, 1, third)
            looking.go_on.set()
            await asyncio.gather(first, second, third)
            places = gate.execute("SELECT place FROM ondol.runs ORDER BY place").fetchall()
    assert places == [(0,), (1,), (2,)], "two of them have one place in the queue"


async def test_what_a_process_still_writes_as_its_run_is_taken_and_ended_does_not_come_between(
    new_database: Callable[[], str],
) -> None:
    """It is alive, but its lease is over, and a cancel was accepted: the other one ends the run for it."""
    url, ending = new_database(), Paused("effect.of_run")
    in_tool = Gate()

    @tool
    def letter() -> str:
        in_tool.block()
        return "sent"

    agent = Agent("a", model=ScriptedModel([call("letter"), "done"]), tools=[letter])
    other = PostgresStore(url)
    async with Runtime(url, agents=[agent]) as rt:
        await other.open(lambda: None)
        try:
            run = await rt.start(agent, "go", session="s")
            await in_tool.reached.wait()
            await rt.cancel(run.id, by="lee")
            with psycopg.connect(url, autocommit=True) as gate:
                taking = asyncio.create_task(other.write(ending.tx(recover), "default", run.id, 1, 10**15))
                await asyncio.to_thread(ending.reached.wait)
                in_tool.open()
                await written_or_waiting(gate, "effects", "state = 'succeeded'")
                ending.go_on.set()
                assert (await taking).state == "cancelled"
        finally:
            await other.close()
    found = invariants.written(url)
    invariants.journals_are_whole(found)
    invariants.rows_are_the_fold(found)
    (effect,) = found.effects
    assert effect.state == "unknown"
    assert "sent" in (effect.evidence or "")


async def test_what_fails_on_a_turn_while_another_process_erases_it_is_not_kept(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_writer, "_GROUP_PATIENCE", 10.0)
    url, erasing = new_database(), Paused("outbox.erase")
    may_fail, heard = asyncio.Event(), asyncio.Event()

    async def deliver(message: OutboxMessage) -> None:
        heard.set()
        await may_fail.wait()
        raise ValueError("its words")

    async with Runtime(url, agents=[agent := Agent("a", model=ScriptedModel(["ok"]))], deliver=deliver) as rt:
        await rt.run(agent, "hi", session="s")
        await heard.wait()
        other = PostgresStore(url)
        await other.open(lambda: None)
        try:
            with psycopg.connect(url, autocommit=True) as gate:
                deleting = asyncio.create_task(erase(other, erasing.tx(delete_session)))
                await asyncio.to_thread(erasing.reached.wait)
                may_fail.set()
                await waiting(gate, 1)
                erasing.go_on.set()
                await deleting
        finally:
            await other.close()
        while not (found := await rt.outbox())[0].attempts:
            await rt._working.look()
        assert found[0].error is None


async def test_what_a_tool_says_late_while_another_process_erases_its_turn_is_not_kept(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_writer, "_GROUP_PATIENCE", 10.0)
    url, erasing = new_database(), Paused("effect.erase")

    @tool
    def letter() -> str:
        return "sent"

    async with Runtime(
        url, agents=[agent := Agent("a", model=ScriptedModel([call("letter"), "ok"]), tools=[letter])]
    ) as rt:
        ran = await rt.run(agent, "hi", session="s")
    async with opened(url, url) as (one, two):
        with psycopg.connect(url, autocommit=True) as gate:
            deleting = asyncio.create_task(erase(one, erasing.tx(delete_session)))
            await asyncio.to_thread(erasing.reached.wait)
            late = asyncio.create_task(two.write(late_outcome, "default", ran.run_id, 0, "its words"))
            await waiting(gate, 1)
            erasing.go_on.set()
            await asyncio.gather(deleting, late)
            assert gate.execute("SELECT evidence FROM ondol.effects").fetchall() == [(None,)]


async def test_a_turn_that_one_process_makes_findable_while_another_erases_it_is_not_found(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_writer, "_GROUP_PATIENCE", 10.0)
    url, indexing = new_database(), Paused("message.of_run")
    async with Runtime(url, agents=[agent := Agent("a", model=ScriptedModel(["ok"]))]) as rt:
        await rt.run(agent, "pelican", session="s", user="kim")
    async with opened(url, url) as (one, two):
        with psycopg.connect(url, autocommit=True) as gate:
            found = asyncio.create_task(
                one.write(indexing.tx(index_history), history_space("default", "user", "kim", ""))
            )
            await asyncio.to_thread(indexing.reached.wait)
            deleting = asyncio.create_task(erase(two, delete_session))
            await waiting(gate, 1, deleting)
            indexing.go_on.set()
            await asyncio.gather(found, deleting)
            assert gate.execute("SELECT term FROM ondol.postings").fetchall() == []
            assert gate.execute("SELECT docs FROM ondol.search_spaces WHERE docs <> 0").fetchall() == []


def erase(store: PostgresStore, tx: Callable[..., Tx[Any]]) -> Coroutine[Any, Any, Any]:
    """Delete session ``s``."""
    return store.write(tx, "default", "s", 1, expected_revision=None, by="lee", door="python", with_unknown=False)


@asynccontextmanager
async def opened(*urls: str) -> AsyncIterator[list[PostgresStore]]:
    """Stores as several processes have them."""
    async with AsyncExitStack() as stack:
        stores = [PostgresStore(url) for url in urls]
        for store in stores:
            await store.open(lambda: None)
            stack.push_async_callback(store.close)
        yield stores


class Paused:
    """A place in a transaction: behind the batch with that statement. Its thread stands there until it may go on."""

    def __init__(self, statement: str) -> None:
        self.statement = statement
        self.reached, self.go_on = threading.Event(), threading.Event()

    def tx(self, made: Callable[P, Tx[T]]) -> Callable[P, Tx[T]]:
        def paused(*args: P.args, **kwargs: P.kwargs) -> Tx[T]:
            inner = made(*args, **kwargs)
            try:
                batch = next(inner)
                while True:
                    rows = yield batch
                    if self.statement in [name for name, _ in batch]:
                        self.reached.set()
                        self.go_on.wait()
                    batch = inner.send(rows)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

        return paused


WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


async def written_or_waiting(gate: psycopg.Connection, table: str, what: str) -> None:
    """Return when that is there, or somebody waits for a lock."""
    asked = f"SELECT count(*) > 0 OR ({WAITING}) > 0 FROM ondol.{table} WHERE {what}"
    while gate.execute(asked.encode()).fetchone() != (True,):  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0)


async def waiting(gate: psycopg.Connection, n: int, task: asyncio.Task[Any] | None = None) -> None:
    """Return when so many wait for a lock, or the task is done."""
    while task is None or not task.done():
        (found,) = gate.execute(WAITING.encode()).fetchone() or (0,)
        if found >= n:
            return
        await asyncio.sleep(0)
