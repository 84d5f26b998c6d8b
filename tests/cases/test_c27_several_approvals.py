"""C27: several approvals that are open at the same time are not mixed up.

Left out until there are sub-agents: each ask inside one of its own.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from kit import Conversation, Outside, app, holds_in_all_cases, results, serve, until, waits

from ondol import Agent, Ask, Context, Runtime, tool
from ondol.messages import Part, ToolCall
from ondol.testing import Downstream, ManualClock, call

MINUTES = timedelta(minutes=7)  # between two answers


@tool(approve=True)
async def refund(ctx: Context[Outside], order: int) -> str:
    await ctx.deps.effect(ctx, "refund", order=order)
    return f"order {order} refunded"


@tool(approve=True)
async def mail(ctx: Context[Outside], to: str) -> str:
    await ctx.deps.effect(ctx, "mail", to=to)
    return f"mail to {to} sent"


CALLS: list[Part] = [call("refund", order=1), call("refund", order=2), call("mail", to="x")]
DONE = ["order 1 refunded", "order 2 refunded", "mail to x sent"]


def desk(calls: list[Part] = CALLS) -> Agent:
    return Agent("desk", model=Conversation({"all three": [calls, "that is all"]}), tools=[refund, mail])


def model_of(agent: Agent) -> Conversation:
    assert isinstance(agent.model, Conversation)
    return agent.model


async def answer(ask: Ask, yes: bool) -> None:
    await (ask.approve(by="lee") if yes else ask.deny(by="lee", reason="not this one"))


def assert_results(agent: Agent, yes: list[bool]) -> None:
    """The model was asked once more, with each result beside its call."""
    (*_, request) = model_of(agent).of["all three"].requests
    told = results(request.messages)
    calls = [c for m in request.messages for c in m.calls]
    assert [r.id for r in told] == [c.id for c in calls]
    assert [r.error for r in told] == [not y for y in yes]
    assert [r.response if y else None for r, y in zip(told, yes, strict=True)] == [
        done if y else None for done, y in zip(DONE, yes, strict=True)
    ]
    assert all("not this one" in str(r.response) for r in told if r.error)


async def test_c27_three_asks_answered_in_reverse_minutes_apart_with_restarts_between(
    db: str, downstream: Downstream
) -> None:
    async with app(__file__, db, downstream) as child:
        run_id = await child.do("start", agent="desk", input="all three", session="s", operation_id="m1")
        await child.do("until", run=run_id, type="run.waiting")
        await child.kill()

    agent, clock = desk(), ManualClock()
    yes = [True, False, True]
    calls = [{"order": 1}, {"order": 2}, {"to": "x"}]
    left = 3
    for place in (2, 1, 0):
        clock.advance(MINUTES)
        async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
            run = await rt.get_run(run_id)
            asks = await waits(run)
            assert len({a.id for a in asks}) == len({a.effect for a in asks}) == left
            assert [a.arguments for a in asks] == calls[:left]  # none of those answered is asked again
            assert model_of(agent).requests == []
            await answer(asks[place], yes[place])
            left -= 1
            if left:
                assert len(await waits(run)) == left
            else:
                assert (await run.result()).text == "that is all"
            assert await downstream.count() == sum(yes[place:])  # an approved call runs at once

    assert [line.arguments for line in await downstream.effects()] == [{"to": "x"}, {"order": 1}]
    assert_results(agent, yes)
    async with Runtime(db, agents=[agent], clock=clock) as rt:
        decided = await rt.asks(run=run_id, state=None)
        assert [(a.arguments, a.decision) for a in decided] == [
            (arguments, "approve" if y else "deny") for arguments, y in zip(calls, yes, strict=True)
        ]
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_c27_in_whatever_order_they_are_answered(
    db: str, downstream: Downstream, order: tuple[int, int, int]
) -> None:
    agent, yes = desk(), [n != order[1] for n in range(3)]  # the second answer is a no
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "all three", session="s", operation_id="m1")
        asks = await waits(run)
        for n, place in enumerate(order, 1):
            assert len(model_of(agent).requests) == 1
            await answer(asks[place], yes[place])
            if n < len(order):
                assert {a.id for a in await waits(run)} == {asks[p].id for p in order[n:]}
        assert (await run.result()).text == "that is all"
        assert_results(agent, yes)
        assert await downstream.count() == 2
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c27_answers_that_come_while_the_run_works(db: str, downstream: Downstream) -> None:
    agent = desk()
    await downstream.hold("before", tool="mail")
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "all three", session="s", operation_id="m1")
        first, second, third = await waits(run)
        await answer(third, True)
        await downstream.wait_for_held()  # it works on the third
        await answer(second, False)
        await answer(first, True)
        await until(run, "effect.succeeded", tool="refund")  # and on the first beside it
        assert len(model_of(agent).requests) == 1
        await downstream.release()
        assert (await run.result()).text == "that is all"
        assert_results(agent, [True, False, True])
        assert await downstream.count() == 2
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize("ids", [("", "", ""), ("same", "same", "same")])
async def test_c27_equal_calls_with_equal_ids_are_told_apart(
    db: str, downstream: Downstream, ids: tuple[str, str, str]
) -> None:
    """Some models give every call the same id, or none."""
    agent = desk([ToolCall(id, "refund", {"order": 1}) for id in ids])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "all three", session="s", operation_id="m1")
        asks = await waits(run)
        assert len({a.id for a in asks}) == len({a.effect for a in asks}) == 3
        for ask, yes in zip(asks, (False, True, False), strict=True):
            await answer(ask, yes)
        assert (await run.result()).text == "that is all"
        (*_, request) = model_of(agent).requests
        told = results(request.messages)
        assert len({r.id for r in told}) == 3
        assert [r.error for r in told] == [True, False, True]
        assert [e.state for e in await run.effects()] == ["denied", "succeeded", "denied"]
        assert [line.key for line in await downstream.effects()] == [(await run.effects())[1].key]
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c27_what_one_approver_changed_stays_with_that_call(db: str, downstream: Downstream) -> None:
    agent = desk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "all three", session="s", operation_id="m1")
        first, second, third = await waits(run)
        changed: dict[str, Any] = {"order": 22}
        await second.approve(by="lee", arguments=changed)
        await first.approve(by="lee")
        await third.approve(by="lee")
        assert (await run.result()).text == "that is all"
        assert [e.arguments for e in await run.effects()] == [{"order": 1}, {"order": 22}, {"to": "x"}]
        done = sorted((line.tool, str(line.arguments)) for line in await downstream.effects())
        assert done == [("mail", "{'to': 'x'}"), ("refund", "{'order': 1}"), ("refund", "{'order': 22}")]
        await holds_in_all_cases(rt, db, agent, "s", downstream)


if __name__ == "__main__":
    serve([desk()])
