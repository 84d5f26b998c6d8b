"""A transaction is sent in parts: the server begins with one while the next is made, and is not left in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import behind
import psycopg
import pytest
from kit import Gate

from ondol import Agent, Runtime, tool
from ondol.stores import postgres_place
from ondol.stores.postgres import PostgresStore
from ondol.stores.postgres_place import Place
from ondol.stores.postgres_wire import Refused, Wire
from ondol.testing import ScriptedModel, call
from ondol.transactions import Claim, Foreseen, Tx
from ondol.transactions.pieces import hold

KEPT = 20  # seconds after which a lock is taken for one that is kept for ever


@pytest.fixture
async def url(new_database: Callable[[], str]) -> str:
    url = new_database()
    store = PostgresStore(url)
    await store.open(lambda: None)
    await store.close()
    return url


async def test_nothing_of_a_transaction_that_never_began_becomes_durable(url: str) -> None:
    """Its BEGIN was refused, as where somebody cancels it: each later statement would be a transaction of its own."""
    wire = Wire(Place.of(url).connect())
    try:
        for begin in ("BEGIN AT NO LEVEL", "BEGIN"):
            wire.control(begin)
            wire.begin()
            for part in ("first", "second"):
                wire.send([("meta.set", {"key": f"{part} of {begin}", "value": ""})])
                wire.begin()
            wire.send([("meta.set", {"key": f"third of {begin}", "value": ""})])
            wire.control("COMMIT")
            if begin == "BEGIN":
                wire.receive()
                continue
            with pytest.raises(Refused) as refused:
                wire.receive()
            assert (refused.value.place, refused.value.sqlstate) == (0, "42601"), "the first refusal is the one told"
            wire.control("ROLLBACK")
            wire.receive()
    finally:
        wire.close()
    found = behind.execute(url, "SELECT key FROM ondol.meta WHERE key LIKE '%BEGIN%'")
    assert sorted(found) == [("first of BEGIN",), ("second of BEGIN",), ("third of BEGIN",)]


async def test_what_stands_behind_a_part_that_was_refused_is_not_run(url: str) -> None:
    wire = Wire(Place.of(url).connect())
    try:
        wire.control("BEGIN")
        wire.begin()
        wire.send([("meta.set", {"key": "first", "value": None})])  # the table wants one
        wire.begin()
        wire.send([("meta.set", {"key": "second", "value": "x"})])
        wire.begin()
        wire.control("COMMIT")
        with pytest.raises(Refused) as refused:
            wire.receive()
        assert (refused.value.place, refused.value.sqlstate) == (1, "23502")
        assert wire.send([("meta.get", {"key": "second"})]) == 1
        with pytest.raises(Refused, match="25P02"):  # COMMIT was not run: that would have ended it
            wire.receive()
    finally:
        wire.close()


async def test_a_process_that_stops_between_two_parts_keeps_no_lock(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has begun with the first, and holds the lock of the run: whoever takes that over has to get it."""
    monkeypatch.setattr(postgres_place, "_IDLE_IN_TRANSACTION", 0.1)
    url, in_tool = new_database(), Gate()
    stopped, go_on = threading.Event(), threading.Event()

    @tool
    async def look() -> str:
        await in_tool.wait()
        return "seen"

    def writes(claim: Claim, next_seq: int) -> Tx[None]:
        yield Foreseen([hold(claim, 1, 0)], [(next_seq, 0, 0)])
        stopped.set()
        go_on.wait()
        raise ValueError("nothing of it is wanted")

    agent = Agent("a", model=ScriptedModel([call("look"), "done"]), tools=[look])
    other = PostgresStore(url)
    async with Runtime(url, agents=[agent]) as rt:
        await other.open(lambda: None)
        run = await rt.start(agent, "go", session="s")
        await in_tool.reached.wait()
        ((session, next_seq),) = behind.execute(url, "SELECT session, next_seq FROM ondol.runs")
        claim = Claim("default", run.id, session, fence=1, head=0)
        writing = asyncio.create_task(other.write(writes, claim, next_seq))
        await asyncio.to_thread(stopped.wait)
        try:
            assert await asyncio.to_thread(locked, url) == [(run.id,)]
        finally:
            go_on.set()
        with pytest.raises(ValueError, match="nothing of it"):
            await writing
        in_tool.open()
        assert (await run.result()).text == "done"
        await other.close()


def locked(url: str) -> list[tuple[Any, ...]]:
    """The run, by whoever gets its lock."""
    with psycopg.connect(url) as connection:
        connection.execute(f"SET lock_timeout = '{KEPT}s'".encode())
        return connection.execute("SELECT id FROM ondol.runs FOR UPDATE").fetchall()
