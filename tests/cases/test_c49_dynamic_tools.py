"""C49: tools that were found before a restart are found again when the run resumes, or their absence is told.

Left out until it exists: MCP servers as the source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kit import Conversation, Outside, WatchedClock, app, conversation, holds_in_all_cases, serve, waits

from ondol import Agent, Context, Runtime, Tool, tool
from ondol.testing import Downstream, FaultPlan, call, kill, text

SAID = "add kim to the crm"
Finds = Callable[[Context[Any]], Awaitable[list[Tool[..., Any]]]]


def _create(name: str = "crm_create", **declared: Any) -> Tool[..., Any]:
    @tool(effect="once", name=name, **declared)
    async def create(ctx: Context[Outside], who: str) -> str:
        await ctx.deps.effect(ctx, "create", who=who)
        return f"created {who}"

    return create


def _agent(finds: Finds) -> Agent:
    model = Conversation({SAID: [[text("I will"), call("crm_create", who="kim")], "that is all"]})
    return Agent("desk", model=model, tools=[finds])


async def crm(ctx: Context[Any]) -> list[Tool[..., Any]]:
    return [_create()]


async def _killed_before_execution(db: str, downstream: Downstream) -> str:
    async with app(__file__, db, downstream, FaultPlan().at("answer.after", fault=kill())) as child:
        run = await child.do("start", agent="desk", input=SAID, session="s", operation_id="m1")
        await child.dies()
    return str(run)


async def test_c49_a_source_that_is_slow_to_start_is_waited_for(db: str, downstream: Downstream) -> None:
    run_id = await _killed_before_execution(db, downstream)
    asked, ready = asyncio.Event(), asyncio.Event()

    async def slow(ctx: Context[Any]) -> list[Tool[..., Any]]:
        asked.set()
        await ready.wait()
        return [_create()]

    agent = _agent(slow)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        await asked.wait()
        assert await downstream.count() == 0
        ready.set()
        run = await rt.get_run(run_id)
        assert (await run.result()).text == "that is all"
        assert await downstream.count() == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c49_a_source_that_does_not_start_is_waited_for_only_so_long(db: str, downstream: Downstream) -> None:
    run_id = await _killed_before_execution(db, downstream)

    async def never(ctx: Context[Any]) -> list[Tool[..., Any]]:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    agent, clock = _agent(never), WatchedClock()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        await clock.asked(10)
        clock.advance(10)
        run = await rt.get_run(run_id)
        assert (await run.result()).text == "that is all"
        assert any("'crm_create' is no longer available" in said for _, said in conversation(await run.messages()))
        assert await downstream.count() == 0


async def _gone(ctx: Context[Any]) -> list[Tool[..., Any]]:
    raise ConnectionError("the crm is gone")


async def _renamed(ctx: Context[Any]) -> list[Tool[..., Any]]:
    return [_create("crm_add")]


@pytest.mark.parametrize("finds", [_gone, _renamed])
async def test_c49_a_call_whose_tool_is_gone_or_renamed_gets_an_error_and_the_run_goes_on(
    db: str, downstream: Downstream, finds: Finds
) -> None:
    run_id = await _killed_before_execution(db, downstream)
    agent = _agent(finds)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.get_run(run_id)
        assert (await run.result()).text == "that is all"
        assert [(e.tool, e.state) for e in await run.effects()] == [("crm_create", "failed")]
        assert await downstream.count() == 0
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c49_where_the_operator_says_so_the_run_is_parked_until_the_source_is_back(
    db: str, downstream: Downstream
) -> None:
    run_id = await _killed_before_execution(db, downstream)
    async with Runtime(db, agents=[_agent(_gone)], deps=Outside(downstream.url), missing_tool="park") as rt:
        (ask,) = await waits(await rt.get_run(run_id))
        assert ask.kind == "definition_changed"
    agent = _agent(crm)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        (ask,) = await rt.asks(run=run_id)
        await ask.answer("resume", by="lee")
        assert (await (await rt.get_run(run_id)).result()).text == "that is all"
        assert await downstream.count() == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c49_changed_arguments_are_validated_again_and_approved_where_it_is_needed_now(
    db: str, downstream: Downstream
) -> None:
    run_id = await _killed_before_execution(db, downstream)

    async def changed(ctx: Context[Any]) -> list[Tool[..., Any]]:
        @tool(effect="once", approve=True)
        async def crm_create(ctx: Context[Outside], who: str, vip: bool = False) -> str:
            await ctx.deps.effect(ctx, "create", who=who, vip=vip)
            return f"created {who}"

        return [crm_create]

    agent = _agent(changed)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.get_run(run_id)
        (ask,) = await waits(run)
        assert await downstream.count() == 0
        await ask.approve(by="lee")
        assert (await run.result()).text == "that is all"
        assert await downstream.count() == 1


async def test_c49_results_of_a_tool_that_no_longer_exists_stay_in_the_history(db: str, downstream: Downstream) -> None:
    async with Runtime(db, agents=[_agent(crm)], deps=Outside(downstream.url)) as rt:
        await rt.run("desk", SAID, session="s", operation_id="m1")
    agent = _agent(_gone)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
    assert [t.name for t in request.tools] == ["read_more"]  # providers refuse calls where no tools are offered
    assert ("tool", "crm_create: created kim") in conversation(request.messages)


if __name__ == "__main__":
    serve([_agent(crm)])
