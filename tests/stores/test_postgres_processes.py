"""Several processes drive one database: each run has one of them, and a dead or sleeping one is replaced.

The processes are real ones, killed with -9 or stopped with SIGSTOP. The lease is short, so that nobody waits long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import behind
import pytest
from kit import App, Conversation, Outside, app, serve, until

from ondol import Agent, Context, Limits, ModelRequest, Runtime, tool, transactions
from ondol.clock import to_micros
from ondol.stores.postgres import PostgresStore
from ondol.testing import Downstream, FaultPlan, FaultyStore, ScriptedModel, barrier, call, kill, stop

LEASE = 1.0  # seconds


@tool(effect="idempotent", timeout=timedelta(seconds=2))  # so long does whoever takes over wait before it pays again
async def pay(ctx: Context[Any], order: str) -> str:
    await ctx.deps.effect(ctx, "pay", dedupe=True, order=order)
    return "paid"


def shop() -> Agent:
    return Agent("shop", model=Conversation({"buy": [[call("pay", order="1")], "bought"]}), tools=[pay])


@pytest.fixture
def shared(new_database: Callable[[], str]) -> str:
    return f"{new_database()}?lease={LEASE}"


@asynccontextmanager
async def apps(n: int, db: str, downstream: Downstream, plan: FaultPlan | None = None) -> AsyncIterator[list[App]]:
    """So many processes; the first has the faults."""
    async with AsyncExitStack() as stack:
        plans = [plan, *[None] * (n - 1)]
        starting = [stack.enter_async_context(app(__file__, db, downstream, p)) for p in plans]
        yield [await s for s in starting]


def linear(db: str, run: str) -> list[int]:
    """The fences of the run's journal, in the order of its entries, which have no gap."""
    rows = behind.execute(db, f"SELECT seq, n, fence FROM entries WHERE run = '{run}' ORDER BY seq")
    following = 1
    for seq, n, _ in rows:
        assert seq == following
        following = seq + n
    fences = [fence for _, _, fence in rows]
    assert fences == sorted(fences)
    return fences


async def test_what_a_killed_process_held_is_taken_over_after_its_lease(shared: str, downstream: Downstream) -> None:
    plan = FaultPlan().at("pay.after", fault=kill())
    agent = shop()
    async with apps(1, shared, downstream, plan) as (first,), Runtime(shared) as watching:
        run = await watching.get_run(await first.do("start", agent="shop", input="buy", session="s"))
        await first.dies()
        async with Runtime(shared, agents=[agent], deps=Outside(downstream.url)) as rt:
            late = await rt.start(agent, "buy", session="s")  # a new message is not stuck behind the dead one
            assert (await (await rt.get_run(run.id)).result()).text == "bought"
            assert (await late.result()).text == "bought"
            assert await downstream.count(tool="pay") == 2
    assert linear(shared, run.id)[-1] > 1


async def test_what_a_process_has_begun_is_not_taken_from_it_by_one_that_takes_over_from_another(
    shared: str, downstream: Downstream
) -> None:
    """It came after the one that takes over had looked who lives, or who holds what."""
    agent, plan, looked = shop(), FaultPlan().at("pay.after", fault=kill()), barrier()
    async with apps(1, shared, downstream, plan) as (first,):
        dead = await first.do("start", agent="shop", input="buy", session="s")
        await first.dies()
    behind.lose_the_dead(shared)
    store = FaultyStore(PostgresStore(shared), FaultPlan().at("drivers.after", fault=looked))
    rt = Runtime(store, agents=[agent], deps=Outside(downstream.url))
    opening = asyncio.create_task(rt.open())
    await looked.reached.wait()
    await downstream.hold("before")
    async with apps(1, shared, downstream) as (new,):
        run = await new.do("start", agent="shop", input="buy", session="t")
        await downstream.wait_for_held()
        looked.go_on.set()
        await opening
        await downstream.release()
        assert (await (await rt.get_run(dead)).result()).text == "bought"
        await new.do("result", run=run)
        await rt.close()
    assert set(linear(shared, run)) == {0, 1}


async def test_while_its_lease_lasts_nobody_takes_a_run_from_a_living_process(
    shared: str, downstream: Downstream
) -> None:
    """Though the holder is silent for much longer: it is the lease that counts, and that is renewed."""
    await downstream.hold("before")
    async with apps(2, shared, downstream) as (first, second):
        run = await first.do("start", agent="shop", input="buy", session="s")
        await downstream.wait_for_held()
        await asyncio.to_thread(wait_for_renewals, shared)
        await downstream.release()
        await second.do("result", run=run)
        assert set(linear(shared, run)) == {0, 1}
        assert await downstream.count(tool="pay") == 1


def wait_for_renewals(db: str) -> None:
    """Until each lease that there is now has been replaced by one that ends after it."""
    leases = "SELECT id, leased_until FROM owners WHERE leased_until > now()"
    first = dict(behind.execute(db, leases))
    while not all(until > first[id] + timedelta(seconds=LEASE) for id, until in behind.execute(db, leases)):
        pass


@pytest.mark.parametrize("at", ["started.after", "pay.before", "pay.after"])
async def test_a_process_that_slept_past_its_lease_finds_its_run_taken_and_writes_nothing(
    shared: str, downstream: Downstream, at: str
) -> None:
    async with apps(1, shared, downstream, FaultPlan().at(at, fault=stop())) as (sleeper,):
        run = await sleeper.do("start", agent="shop", input="buy", session="s", operation_id="op")
        await sleeper.process.stopped()
        async with apps(1, shared, downstream) as (other,):  # only now, so that the run was the sleeper's
            assert "bought" in await other.do("result", run=run)
            before = everything(shared)
            fences = linear(shared, run)
            assert fences[-1] > 1
            sleeper.process.cont()
            again = await sleeper.do("run", agent="shop", input="buy", session="s", operation_id="op")
            assert (again["run"], again["replayed"]) == (run, True)
            assert linear(shared, run) == fences
            assert everything(shared) == before
            keys = {line.key for line in await downstream.effects(tool="pay")}
            assert len(keys) == 1, "whatever was sent twice was sent with the same key"


def everything(db: str) -> list[Any]:
    """What the run is, but for the evidence of late outcomes."""
    return [
        behind.execute(db, f"SELECT * FROM {table} ORDER BY {order}")
        for table, order in [("runs", "n"), ("sessions", "id"), ("messages", "run, ordinal"), ("asks", "n")]
    ]


async def test_two_processes_that_are_asked_at_once_drive_each_run_once(shared: str, downstream: Downstream) -> None:
    async with apps(2, shared, downstream) as both:
        sent = [
            (a, a.send("run", agent="shop", input="buy", session=f"s{n}", operation_id=f"op{n}"))
            for n in range(10)
            for a in both
        ]
        answers = [await a.answer(n) for a, n in sent]
        assert len({answer["run"] for answer in answers}) == 10
        for answer in answers:
            assert set(linear(shared, answer["run"])) == {0, 1}
        assert await downstream.count(tool="pay") == 10


async def test_a_run_waits_for_a_process_that_has_its_agent(shared: str, downstream: Downstream) -> None:
    agent, plan = shop(), FaultPlan().at("pay.after", fault=kill())
    await downstream.hold("before")
    async with Runtime(shared) as door:  # it drives too, and has no agent
        async with apps(1, shared, downstream, plan) as (first,):
            run = await door.get_run(await first.do("start", agent="shop", input="buy", session="s"))
            behind_it = await door.get_run(await first.do("start", agent="shop", input="buy", session="s"))
            assert await door.waits_for_driver(behind_it) is None, "a process that lives has its agent"
            await downstream.release()
            await first.dies()
            await until(run, "run.queued")  # this process took it over, and can only put it back
            assert "no process serves the agent 'shop'" in (await door.waits_for_driver(await run.refresh()) or "")
        async with Runtime(shared, agents=[agent], deps=Outside(downstream.url)):
            assert (await run.result()).text == "bought"


async def test_what_somebody_held_whom_nobody_saw_alive_is_taken_over(shared: str) -> None:
    """It had a lease when it claimed the run, and both its life and its lease were over before anybody looked."""
    may_answer = asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        await may_answer.wait()
        return "hello"

    agent = Agent("talk", model=ScriptedModel(answer))
    async with Runtime(shared, agents=[agent], limits=Limits(runs=1)) as rt:
        first, second = [await rt.start(agent, s, session=s, operation_id=s) for s in ("one", "two")]
        now = to_micros(rt.clock.now())
        assert await rt._store.write(transactions.claim, "default", second.id, "somebody", now) is not None
        await until(second, "run.queued", why="recovered")
        may_answer.set()
        for run in (first, second):
            assert (await run.result()).text == "hello"
    assert set(linear(shared, second.id)) == {0, 1, 2, 3}


async def test_a_decision_in_one_process_wakes_the_run_that_another_drives(shared: str, downstream: Downstream) -> None:
    @tool(effect="once", approve=True)
    async def refund(ctx: Context[Any]) -> str:
        await ctx.deps.effect(ctx, "refund")
        return "refunded"

    agent = Agent("desk", model=Conversation({"go": [[call("refund")], "done"]}), tools=[refund])
    async with (
        Runtime(shared, agents=[agent], deps=Outside(downstream.url)) as driver,
        Runtime(shared) as door,
    ):
        run = await driver.start(agent, "go", session="s")
        await until(run, "run.waiting")
        (ask,) = await door.asks()
        await ask.approve(by="lee")
        assert (await run.result()).text == "done"
        cancelled = await driver.start(agent, "go", session="t")
        await until(cancelled, "run.waiting")
        await door.cancel(cancelled.id, by="lee")
        assert (await (await driver.get_run(cancelled.id)).refresh()).status == "cancelled"


async def test_a_process_that_ends_while_it_asks_to_drive_leaves_no_lease(shared: str) -> None:
    """Else its agents would be taken for served until that is over."""
    store = PostgresStore(shared)
    await store.open(lambda: None)
    asking = asyncio.create_task(store.drives("me", ["shop"]))
    await asyncio.sleep(0)  # it is on its way
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await store.close()
    assert behind.held(shared) == []


if __name__ == "__main__":
    serve([shop()])
