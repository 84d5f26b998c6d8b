"""Transactions that wait together share one COMMIT on PostgreSQL, and each sees what it would see alone."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from kit import Conversation

from ondol import Agent, Context, Runtime, tool
from ondol.errors import InvalidInput, StoreFault
from ondol.events import EffectClass
from ondol.queries import get_meta
from ondol.store import Store
from ondol.stores.postgres import PostgresStore
from ondol.testing import call
from ondol.transactions import Claim, Final, Foreseen, Tx, set_meta
from ondol.transactions.pieces import hold

MANY = 64


def talk() -> Agent:
    return Agent("talk", model=Conversation({"hi": ["ho"]}))


async def test_sessions_at_once_share_commits(new_database: Callable[[], str]) -> None:
    agent = talk()
    async with Runtime(new_database(), agents=[agent]) as rt:
        await asyncio.gather(*(rt.run(agent, "hi", session=f"s{n}", operation_id=f"{n}") for n in range(MANY)))
        store = rt._store
        assert isinstance(store, PostgresStore)
        group, alone = store.writers
        assert group.transactions > 3 * MANY
        assert group.commits < group.transactions / 3
        assert alone.transactions < MANY / 4, "few of them were in each other's way"


async def test_one_operation_sent_many_times_at_once_through_two_doors_is_one_run(
    new_database: Callable[[], str],
) -> None:
    url, agent = new_database(), talk()
    async with Runtime(url, agents=[agent]) as one, Runtime(url, agents=[agent]) as two:
        sent = [rt.run(agent, "hi", session="s", operation_id="K") for _ in range(MANY // 2) for rt in (one, two)]
        assert len({result.body for result in await asyncio.gather(*sent)}) == 1
        assert len(await one.runs()) == 1


async def test_many_sessions_driven_through_two_doors_at_once_do_not_stand_in_each_others_way(
    new_database: Callable[[], str],
) -> None:
    """Groups of two processes lock sessions in any order: what meets a lock goes aside, and is done."""
    url, agent = new_database(), talk()
    async with Runtime(url, agents=[agent]) as one, Runtime(url, agents=[agent]) as two:
        sent = [
            rt.run(agent, "hi", session=f"s{n % 8}", operation_id=f"{door}{n}")
            for n in range(MANY)
            for door, rt in (("one", one), ("two", two))
        ]
        assert {result.text for result in await asyncio.gather(*sent)} == {"ho"}
        for n in range(8):
            session = await one.get_session(f"s{n}")
            said = [m.message.role for m in await session.messages(limit=1000)]
            assert said == ["user", "assistant"] * (2 * MANY // 8)
            assert session.revision == 2 * MANY // 8


async def test_a_lock_of_somebody_else_holds_up_only_what_needs_it(new_database: Callable[[], str]) -> None:
    url, agent = new_database(), talk()
    async with Runtime(url, agents=[agent]) as rt:
        await asyncio.gather(*(rt.run(agent, "hi", session=s, operation_id=s) for s in ("held", "free")))
        with psycopg.connect(url) as somebody:
            somebody.execute("SELECT 1 FROM ondol.sessions WHERE id = 'held' FOR UPDATE")
            held = asyncio.create_task(rt.run(agent, "hi", session="held", operation_id="held 2"))
            for n in range(5):
                assert (await rt.run(agent, "hi", session="free", operation_id=f"free {n}")).text == "ho"
            assert not held.done()
            somebody.rollback()
        assert (await held).text == "ho"


@pytest.mark.parametrize("value", [1 << 63, "\ud800", 1.5])
async def test_a_value_that_cannot_be_stored_is_refused_and_disturbs_nobody(
    new_database: Callable[[], str], value: object
) -> None:
    store = PostgresStore(new_database())
    await store.open(lambda: None)

    def refused() -> Tx[None]:
        yield from set_meta("k0", "lost")
        yield [("meta.set", {"key": "k0", "value": value})]

    try:
        results = await asyncio.gather(
            *(store.write(set_meta, f"k{n}", "kept") for n in range(5)), store.write(refused), return_exceptions=True
        )
        assert results[:5] == [None] * 5
        assert isinstance(results[5], InvalidInput)
        assert [await store.read(get_meta, f"k{n}") for n in range(5)] == ["kept"] * 5
    finally:
        await store.close()


@pytest.mark.parametrize("values", [(None, "kept"), ("kept", None)])
async def test_what_is_refused_with_its_commit_is_not_there_and_disturbs_nobody(
    new_database: Callable[[], str], values: tuple[str | None, ...]
) -> None:
    store = PostgresStore(new_database())
    await store.open(lambda: None)

    def at_last(value: str | None) -> Tx[str]:
        yield from set_meta(f"before {value}", "there")
        yield Final([("meta.set", {"key": f"at last {value}", "value": value})])
        return "done"

    try:
        done = await asyncio.gather(*(store.write(at_last, value) for value in values), return_exceptions=True)
        assert [type(d) for d in done] == [str if value else StoreFault for value in values]
        for value in values:
            for key in ("before", "at last"):
                assert (await store.read(get_meta, f"{key} {value}") is None) == (value is None)
    finally:
        await store.close()


@pytest.mark.parametrize("effect", ["read", "once"])
async def test_each_transaction_of_a_step_is_one_round_trip(
    new_database: Callable[[], str], effect: EffectClass
) -> None:
    @tool(effect=effect)
    async def look() -> str:
        return "there"

    def script(calls: int) -> list[Any]:
        return [*[call("look") for _ in range(calls)], "done"]

    agent = Agent("looker", model=Conversation({"one": script(1), "six": script(6)}), tools=[look])
    async with Runtime(new_database(), agents=[agent]) as rt:
        store = rt._store
        assert isinstance(store, PostgresStore)
        trips = defaultdict[str, list[int]](list)
        for n in range(4):  # the first one makes its session, and the engine keeps house beside one or the other
            for said in ("one", "six"):
                before = store.writers[0].trips
                assert (await rt.run(agent, said, session="s", operation_id=f"{said} {n}")).text == "done"
                trips[said].append(store.writers[0].trips - before)
        assert min(trips["six"]) - min(trips["one"]) == 5 * (2 if effect == "read" else 3)


@pytest.mark.parametrize("others", [0, 3])
async def test_what_is_foreseen_and_does_not_come_is_seen_as_it_is(
    new_database: Callable[[], str], others: int
) -> None:
    """Alone and in a group: nothing becomes durable that stands on what was foreseen."""

    def held(claim: Claim, foreseen: tuple[int, ...]) -> Tx[str]:
        batch = [hold(claim, 0, 10**15)]
        (rows,) = yield Foreseen(batch, [foreseen]) if foreseen else batch
        yield Final([("meta.set", {"key": f"saw {rows}", "value": "there"})])
        return f"saw {rows}"

    stores: list[Store] = []

    @tool(effect="read")
    async def probe(ctx: Context[None]) -> str:
        (store,), claim = stores, Claim("default", ctx.run_id, "s", 1, 0)
        right = await store.write(held, claim, ())
        for wrong in [(7, 0, 0), (1, 0, 1)]:
            beside = [store.write(set_meta, f"{wrong} {n}", "there") for n in range(others)]
            seen, *_ = await asyncio.gather(store.write(held, claim, wrong), *beside)
            assert seen == right
            assert await store.read(get_meta, f"saw {[wrong]}") is None
            assert [await store.read(get_meta, f"{wrong} {n}") for n in range(others)] == ["there"] * others
        return right

    agent = Agent("prober", model=Conversation({"hi": [call("probe"), "done"]}), tools=[probe])
    async with Runtime(new_database(), agents=[agent]) as rt:
        stores.append(rt._store)
        assert (await rt.run(agent, "hi", session="s", operation_id="1")).text == "done"
        (effect,) = await rt.effects()
        assert effect.state == "succeeded", effect.reason
