"""C15: a pending approval survives a restart, and whoever answers it resumes the run.

Left out until it exists: grants for a whole session.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kit import Conversation, Outside, WatchedClock, app, holds_in_all_cases, results, serve, unserved, until, waits

from ondol import Agent, AlreadyDecided, Context, Run, Runtime, tool
from ondol.testing import Downstream, FaultPlan, ManualClock, call, kill, text

THREE_DAYS = timedelta(days=3)
REQUEST: dict[str, Any] = {"session": "s", "user": "kim", "operation_id": "m1", "time_zone": "Asia/Seoul"}
ASKED_BY = {"amount": 30, "user": "kim", "session": "s", "operation": "m1", "zone": "Asia/Seoul"}


async def refund(ctx: Context[Outside], amount: int) -> str:
    who = {"user": ctx.user, "session": ctx.session, "operation": ctx.operation_id, "zone": ctx.time_zone}
    await ctx.deps.effect(ctx, "refund", amount=amount, **who)
    return f"refunded {amount}"


def desk(expires: timedelta | None = None) -> Agent:
    model = Conversation({"refund 30": [[text("one moment"), call("refund", amount=30)], "that is all"]})
    return Agent("desk", model=model, tools=[tool(approve=True, approve_expires=expires)(refund)])


def told(agent: Agent) -> list[tuple[Any, bool]]:
    """The results in the last request of the run."""
    return [(r.response, r.error) for r in results(model_of(agent).of["refund 30"].requests[-1].messages)]


def model_of(agent: Agent) -> Conversation:
    assert isinstance(agent.model, Conversation)
    return agent.model


async def pending_after_a_crash(db: str, downstream: Downstream, point: str = "") -> str:
    """The run, which a process that is dead now left waiting."""
    plan = FaultPlan().at(point, fault=kill()) if point else None
    async with app(__file__, db, downstream, plan) as child:
        run = await child.do("start", agent="desk", input="refund 30", **REQUEST)
        if not point:
            await child.do("until", run=run, type="run.waiting")
            child.process.kill()
        await child.dies()
    return str(run)


async def is_listed_everywhere(rt: Runtime, run: Run) -> None:
    """Whoever looks for what is pending finds it, also without knowing the run."""
    (ask,) = await rt.asks()
    assert [a.id for a in await rt.asks(session="s")] == [ask.id]
    assert [a.id for a in await rt.asks(user="kim")] == [ask.id]
    assert [a.id for a in await run.asks()] == [ask.id]
    assert await rt.asks(session="t") == []
    assert await rt.asks(user="lee") == []
    assert (ask.kind, ask.state, ask.tool, ask.arguments) == ("approval", "open", "refund", {"amount": 30})
    assert (ask.run, ask.user) == (run.id, "kim")


@pytest.mark.parametrize(
    ("point", "word"),
    [
        ("", "approve"),
        ("", "deny"),
        ("answer.after", "approve"),
        ("suspend.before", "deny"),
        ("suspend.after", "approve"),
    ],
)
async def test_c15_after_kill_9_the_approval_is_listed_and_its_answer_resumes_the_run(
    db: str, downstream: Downstream, point: str, word: str
) -> None:
    run_id = await pending_after_a_crash(db, downstream, point)
    agent = desk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.get_run(run_id)
        (ask,) = await waits(run)
        await is_listed_everywhere(rt, run)
        assert await downstream.count() == 0
        assert (await rt.get_session("s")).revision == 1  # that it waits is a change of the session

        await (ask.approve(by="lee") if word == "approve" else ask.deny(by="lee", reason="too much"))
        assert (await run.result()).text == "that is all"
        assert run.id == run_id
        if word == "approve":
            assert [line.arguments for line in await downstream.effects()] == [ASKED_BY]
            assert told(agent) == [("refunded 30", False)]
        else:
            assert await downstream.count() == 0
            ((refusal, error),) = told(agent)
            assert error
            assert "too much" in refusal
        assert await rt.asks() == []
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize("word", ["approve", "deny"])
async def test_c15_an_answer_through_another_process_resumes_it_with_nobody_watching(
    db: str, downstream: Downstream, word: str
) -> None:
    run_id = await pending_after_a_crash(db, downstream)
    agent = desk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        (ask,) = await rt.asks()
        async with app(__file__, db, downstream, DOOR="webhook", ONLY_A_DOOR="1") as door:
            answered = await door.do("decide", ask=ask.id, kind=word, by="lee")
            assert answered == {"decision": word, "by": "lee"}
        run = await rt.get_run(run_id)
        assert (await run.result()).text == "that is all"
        assert await downstream.count() == int(word == "approve")
        assert [(a.by, a.door, a.act, a.subject) for a in await rt.audit()] == [
            ("lee", "webhook", f"ask.{word}", ask.id)
        ]
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c15_an_answer_while_no_process_has_the_agent_is_carried_out_by_the_next_one(
    db: str, downstream: Downstream
) -> None:
    run_id = await pending_after_a_crash(db, downstream)
    async with Runtime(db) as door:
        (ask,) = await door.asks()
        await ask.approve(by="lee")
        run = await door.get_run(run_id)
        assert run.status == "queued"
        assert "desk" in await unserved(door, run)
    agent = desk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        assert (await (await rt.get_run(run_id)).result()).text == "that is all"
        assert await downstream.count() == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c15_three_days_later_it_is_still_there(db: str, downstream: Downstream) -> None:
    run_id = await pending_after_a_crash(db, downstream)
    agent, clock = desk(), ManualClock(datetime.now(UTC) + THREE_DAYS)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.get_run(run_id)
        await is_listed_everywhere(rt, run)
        (ask,) = await rt.asks()
        await ask.approve(by="lee")
        assert (await run.result()).text == "that is all"
        assert [line.arguments for line in await downstream.effects()] == [ASKED_BY]
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


@pytest.mark.parametrize("process", ["alive", "down"])
async def test_c15_where_the_tool_says_so_it_expires_and_everybody_can_see_that(
    db: str, downstream: Downstream, process: str
) -> None:
    agent, clock, outside = desk(expires=timedelta(days=1)), WatchedClock(), Outside(downstream.url)
    async with Runtime(db, agents=[agent], deps=outside, clock=clock) as rt:
        run = await rt.start(agent, "refund 30", **REQUEST)
        (ask,) = await waits(run)
        assert ask.expires_at == clock.now() + timedelta(days=1)
        if process == "alive":
            await clock.asked(timedelta(days=1).total_seconds())
            clock.advance(THREE_DAYS)
            await model_of(agent).asked_times(2)  # nobody watches: it went on by itself
            await run.result()
    if process == "down":
        clock.advance(THREE_DAYS)
    async with Runtime(db, agents=[agent], deps=outside, clock=clock) as rt:
        run = await rt.get_run(run.id)
        assert (await run.result()).text == "that is all"
        ((refusal, error),) = told(agent)
        assert error
        assert "in time" in refusal
        assert await downstream.count() == 0
        assert (await until(run, "ask.expired")).data["ask"] == ask.id
        late = await rt.get_ask(ask.id)
        assert late.state == "expired"
        with pytest.raises(AlreadyDecided):
            await late.approve(by="lee")
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


if __name__ == "__main__":
    serve([] if os.environ.get("ONLY_A_DOOR") else [desk()])
