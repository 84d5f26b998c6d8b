"""C41: a pool of connections is not held by runs that wait, and a dead connection is no dead run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from kit import Outside

from ondol import Agent, Context, Runtime, tool
from ondol.errors import StoreBusy
from ondol.model import ModelRequest
from ondol.stores.postgres import PostgresStore
from ondol.testing import Downstream, ScriptedModel, call
from ondol.transactions import Tx, set_meta

RUNS, POOL = 50, 5


@tool(effect="idempotent")
async def note(ctx: Context[Any]) -> str:
    await ctx.deps.effect(ctx, "note")
    return "noted"


class Barrier:
    """A place in all models at once, from which the test lets them go on."""

    def __init__(self) -> None:
        self.waiting, self.all_there, self.go_on = 0, asyncio.Event(), asyncio.Event()

    async def __call__(self, request: ModelRequest) -> Any:
        if request.step:
            return "done"
        self.waiting += 1
        if self.waiting == RUNS:
            self.all_there.set()
        await self.go_on.wait()
        return call("note")


def connections(url: str, do: str = "pid") -> list[Any]:
    """Of this database, but for the one that asks."""
    with psycopg.connect(url, autocommit=True) as connection:
        asked = f"SELECT {do} FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return [value for (value,) in connection.execute(asked.encode())]


@pytest.mark.parametrize("they_die", [False, True])
async def test_c41_fifty_runs_wait_for_their_models_with_five_connections(
    new_database: Callable[[], str], downstream: Downstream, they_die: bool
) -> None:
    url, barrier = new_database(), Barrier()
    agent = Agent("a", model=ScriptedModel(barrier), tools=[note])
    async with Runtime(url, agents=[agent], deps=Outside(downstream.url)) as rt:
        runs = [await rt.start(agent, "go", session=f"s{n}", operation_id=f"op{n}") for n in range(RUNS)]
        await barrier.all_there.wait()
        assert 0 < len(connections(url)) <= POOL
        assert set(connections(url, "state")) == {"idle"}, "nobody holds a transaction while a model thinks"
        if they_die:  # as after a failover, or a network that drops what is idle
            connections(url, "pg_terminate_backend(pid)")
        barrier.go_on.set()
        for run in runs:
            assert (await run.result()).text == "done"
            assert [(e.state, e.attempt) for e in await run.effects()] == [("succeeded", 1)]
        assert len(connections(url)) <= POOL
    keys = [line.key for line in await downstream.effects()]
    assert len(keys) == len(set(keys)) == RUNS
    while await asyncio.to_thread(connections, url):  # the server takes a moment to see that one was closed
        pass


async def test_c41_every_connection_dies_again_and_again_under_load(
    new_database: Callable[[], str], downstream: Downstream
) -> None:
    url = new_database()
    model = ScriptedModel(lambda request: "done" if request.step else call("note"))
    agent = Agent("a", model=model, tools=[note])
    async with Runtime(url, agents=[agent], deps=Outside(downstream.url)) as rt:
        for turn in range(5):
            ids = [f"{turn}.{n}" for n in range(10)]
            turns = [asyncio.create_task(rt.run(agent, "go", session=f"s{id}", operation_id=id)) for id in ids]
            await downstream.wait_for(turn * 10 + 3)
            await asyncio.to_thread(connections, url, "pg_terminate_backend(pid)")
            assert [(await t).text for t in turns] == ["done"] * 10
    keys = [line.key for line in await downstream.effects()]
    assert len(keys) == len(set(keys)) == 50


async def test_c41_a_pool_that_is_dry_says_so_and_what_to_do(new_database: Callable[[], str]) -> None:
    url = new_database()
    store = PostgresStore(f"{url}?pool_timeout=0.2")
    await store.open(lambda: None)
    try:
        with psycopg.connect(url) as other:  # a lock that nobody gets: the connections that write wait for it
            other.execute("LOCK TABLE ondol.meta")
            stuck = [asyncio.create_task(store.write(set_meta, "a", "1")) for _ in range(3)]
            with pytest.raises(StoreBusy, match=r"were at work for 0\.2 s.*\(5 now; postgresql://…\?pool_size=10"):
                await asyncio.gather(*stuck)
            other.rollback()
        await asyncio.gather(*stuck, return_exceptions=True)
        assert await store.write(_set_and_return, "b") == "b", "it works again"
    finally:
        await store.close()


def _set_and_return(key: str) -> Tx[str]:
    yield from set_meta(key, "1")
    return key


@pytest.mark.parametrize("size", ["4", "none"])
def test_c41_a_pool_is_not_too_small(size: str) -> None:
    from ondol.errors import InvalidInput

    with pytest.raises(InvalidInput, match=f"pool_size='{size}' is not possible: say a number from 5 on"):
        Runtime(f"postgresql://localhost/x?pool_size={size}")
