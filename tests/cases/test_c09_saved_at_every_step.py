"""C09: a conversation is saved at every step, not at the end of its run."""

from __future__ import annotations

import pytest
from kit import Conversation, Outside, WatchedClock, app, conversation, holds_in_all_cases, results, serve

from ondol import Agent, Context, Runtime
from ondol.errors import OutcomeUnknown, StoreBusy, StoreError, StoreFull
from ondol.stores import open_store
from ondol.testing import Downstream, FaultPlan, FaultyStore, call, kill, raise_, text

STORE_RETRY = 0.5  # seconds until a write that failed is tried again


async def look_up(ctx: Context[Outside], order: str) -> str:
    await ctx.deps.effect(ctx, "look_up", order=order)
    return f"order {order} is unpaid"


async def remind(ctx: Context[Outside], order: str) -> str:
    await ctx.deps.effect(ctx, "remind", order=order)
    return "reminded"


def clerk() -> Agent:
    """Four steps and an answer: model, tool, model, tool, model."""
    script = [
        [text("let me see"), call("look_up", order="7")],
        [text("unpaid"), call("remind", order="7")],
        "reminded them",
    ]
    return Agent("clerk", model=Conversation({"remind 7": script}), tools=[look_up, remind])


TURN = [
    ("user", "remind 7"),
    ("assistant", "let me see"), ("assistant", "look_up(order='7')"), ("tool", "look_up: order 7 is unpaid"),
    ("assistant", "unpaid"), ("assistant", "remind(order='7')"), ("tool", "remind: reminded"),
    ("assistant", "reminded them"),
]  # fmt: skip


def model_of(agent: Agent) -> Conversation:
    assert isinstance(agent.model, Conversation)
    return agent.model


# the write after which the process dies, how much of the turn is there then, model calls that are left
@pytest.mark.parametrize(
    ("point", "nth", "there", "left"),
    [
        ("accept.after", 1, 1, 3),
        ("answer.after", 1, 3, 2),
        ("outcome.after", 1, 4, 2),
        ("answer.after", 2, 6, 1),
        ("outcome.after", 2, 7, 1),
        ("commit.before", 1, 8, 0),
        ("commit.after", 1, 8, 0),
    ],
)
async def test_c09_a_kill_after_any_step_keeps_the_steps_before_it(
    db: str, downstream: Downstream, point: str, nth: int, there: int, left: int
) -> None:
    async with app(__file__, db, downstream, FaultPlan().at(point, nth=nth, fault=kill())) as child:
        child.send("start", agent="clerk", input="remind 7", session="s", operation_id="m1")
        await child.dies()
    async with Runtime(db) as nobody:  # it has no agent: it only loads what is there
        run = await nobody.find_run("m1")
        assert conversation(await run.messages()) == TURN[:there]
        session = await nobody.get_session("s")
        assert conversation([m.message for m in await session.messages()]) == (TURN if point == "commit.after" else [])
        assert [r.id for r in await session.runs()] == [run.id]

    agent = clerk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        again = await rt.start(agent, "remind 7", session="s", operation_id="m1")
        assert (await again.result()).text == "reminded them"
        assert again.id == run.id
        session = await rt.get_session("s")
        assert conversation([m.message for m in await session.messages()]) == TURN
        assert [r.step for r in model_of(agent).requests] == [0, 1, 2][3 - left :]
        assert [line.tool for line in await downstream.effects()] == ["look_up", "remind"]
        await holds_in_all_cases(rt, db, agent, "s", downstream)


# --- writes that fail -------------------------------------------------------------------------------------------

WRITES = ["claim", "note_down", "answer", "started", "outcome", "commit"]


def faulty(db: str, plan: FaultPlan) -> FaultyStore:
    return FaultyStore(open_store(db), plan)


@pytest.mark.parametrize(
    ("write", "failure"),
    [*((write, StoreFull) for write in WRITES), *(("outcome", e) for e in (StoreBusy, StoreError, OutcomeUnknown))],
)
async def test_c09_a_write_that_fails_once_is_tried_again(
    db: str, downstream: Downstream, write: str, failure: type[StoreError]
) -> None:
    clock, plan, agent = WatchedClock(), FaultPlan().at(write, fault=raise_(failure("no"))), clerk()
    store = faulty(db, plan)
    async with Runtime(store, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.start(agent, "remind 7", session="s", operation_id="m1")
        if write == "claim":
            await clock.asked(STORE_RETRY)
            clock.advance(STORE_RETRY)
        assert (await run.result()).text == "reminded them"
        assert plan.unreached == []
        assert [r.step for r in model_of(agent).requests] == [0, 1, 2]
        assert [line.tool for line in await downstream.effects()] == ["look_up", "remind"]
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


@pytest.mark.parametrize("write", WRITES)
async def test_c09_a_write_that_keeps_failing_is_told_on_the_stream_and_the_run_goes_on_when_it_works_again(
    db: str, downstream: Downstream, write: str
) -> None:
    clock, agent = WatchedClock(), clerk()
    store = faulty(db, FaultPlan().at(write, nth=None, fault=raise_(StoreFull("the disk is full"))))
    async with Runtime(store, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.start(agent, "remind 7", session="s", operation_id="m1")
        events = run.events()
        assert (await anext(events)).type == "run.accepted"  # it is watched from here on
        await clock.asked(STORE_RETRY)
        clock.advance(STORE_RETRY)
        told = await anext(event async for event in events if event.type == "progress")
        assert "the disk is full" in told.data["note"]
        for _ in range(3):  # it goes on trying, and does not end in silence
            await clock.asked(STORE_RETRY)
            assert (await run.refresh()).status in ("queued", "running")
            clock.advance(STORE_RETRY)
        assert len(results(await run.messages())) <= 2
        await clock.asked(STORE_RETRY)
        store.plan = FaultPlan()  # there is space again
        clock.advance(STORE_RETRY)
        assert (await run.result()).text == "reminded them"
        assert [line.tool for line in await downstream.effects()] == ["look_up", "remind"]
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c09_an_operation_that_could_not_be_written_is_refused_and_may_be_sent_again(
    db: str, downstream: Downstream
) -> None:
    agent = clerk()
    store = faulty(db, FaultPlan().at("accept", fault=raise_(StoreFull("the disk is full"))))
    async with Runtime(store, agents=[agent], deps=Outside(downstream.url)) as rt:
        with pytest.raises(StoreFull):
            await rt.start(agent, "remind 7", session="s", operation_id="m1")
        assert await rt.runs() == []
        assert (await rt.run(agent, "remind 7", session="s", operation_id="m1")).text == "reminded them"
        await holds_in_all_cases(rt, db, agent, "s", downstream)


if __name__ == "__main__":
    serve([clerk()])
