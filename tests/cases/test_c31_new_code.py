"""C31: new code is deployed while a run waits. What is recorded is data; what no longer fits is said, never guessed.

Left out until it exists: workflow definitions.
"""

from __future__ import annotations

from typing import Any

import pytest
from kit import Conversation, Outside, app, conversation, holds_in_all_cases, serve, waits

from ondol import Agent, Context, Runtime, Tool, tool
from ondol.testing import Downstream, call, text

SAID = "a, b, old and c"


def _agent(version: int) -> Agent:
    """Version 1 has a, b, old and c. Version 2 has a, x, b and c; its b names its argument anew."""

    def plain(name: str) -> Tool[..., Any]:
        @tool(effect="once", name=name)
        async def does(ctx: Context[Outside]) -> str:
            await ctx.deps.effect(ctx, name)
            return f"{name} done"

        return does

    @tool(effect="once", name="b", approve=True)
    async def b1(ctx: Context[Outside], order: str) -> str:
        await ctx.deps.effect(ctx, "b", order=order)
        return "b done"

    @tool(effect="once", name="b", approve=True)
    async def b2(ctx: Context[Outside], target: str) -> str:
        await ctx.deps.effect(ctx, "b", target=target)
        return "b done"

    answers = [
        [call("a")],
        [call("b", order="7"), call("old")],
        [call("c")],
        [text("all done")],
    ]
    model = Conversation({SAID: answers})
    b = b1 if version == 1 else b2
    tools = [plain("a"), b, plain("old"), plain("c")] if version == 1 else [plain("a"), plain("x"), b, plain("c")]
    return Agent("desk", model=model, tools=tools, instructions=f"version {version}")


async def _left_by_version_1(db: str, downstream: Downstream) -> str:
    """The run waits for b's approval: a and old are done, and the process is killed."""
    async with app(__file__, db, downstream) as child:
        run = await child.do("start", agent="desk", input=SAID, session="s", operation_id="m1")
        await child.do("until", run=run, type="run.waiting")
        await child.kill()
    assert await downstream.count() == 2
    return str(run)


async def test_c31_recorded_steps_are_kept_and_what_does_not_fit_any_more_is_told_to_the_model(
    db: str, downstream: Downstream
) -> None:
    run_id = await _left_by_version_1(db, downstream)
    agent = _agent(2)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.get_run(run_id)
        (ask,) = await waits(run)
        assert ask.arguments == {"order": "7"}
        await ask.approve(by="lee")
        assert (await run.result()).text == "all done"
        assert [(e.tool, e.state) for e in await run.effects()] == [
            ("a", "succeeded"), ("b", "failed"), ("old", "succeeded"), ("c", "succeeded"),
        ]  # fmt: skip
        assert any("the arguments of b do not fit" in said for _, said in conversation(await run.messages()))
        assert [e.tool for e in await downstream.effects()] == ["a", "old", "c"]
        for step in (1, 2, 3, 4):  # what the model saw, before the deploy and after it
            seen = await rt.context(run_id, step)
            assert seen.matches
            assert seen.definition["instructions"] == f"version {1 if step < 3 else 2}"
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c31_with_the_replaced_arguments_of_a_person_the_call_fits_the_new_code(
    db: str, downstream: Downstream
) -> None:
    run_id = await _left_by_version_1(db, downstream)
    agent = _agent(2)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.get_run(run_id)
        (ask,) = await waits(run)
        await ask.approve(by="lee", arguments={"target": "7"})
        (again,) = await waits(run)  # it is another tool now, so its approval is asked for again
        assert again.arguments == {"target": "7"}
        assert await downstream.count() == 2
        await again.approve(by="lee")
        assert (await run.result()).text == "all done"
        assert [e.tool for e in await downstream.effects()] == ["a", "old", "b", "c"]


async def test_c31_the_run_can_be_cancelled_under_the_new_code(db: str, downstream: Downstream) -> None:
    run_id = await _left_by_version_1(db, downstream)
    agent = _agent(2)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.get_run(run_id)
        await waits(run)
        assert (await run.cancel(by="lee")).status == "cancelled"
        assert await downstream.count() == 2
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.one_driver
async def test_c31_while_both_versions_live_one_drives_and_the_other_takes_over_where_it_stopped(
    db: str, downstream: Downstream
) -> None:
    async with app(__file__, db, downstream) as first:
        done = await first.do("start", agent="desk", input=SAID, session="s", operation_id="m1")
        await first.do("until", run=done, type="run.waiting")
        agent = _agent(2)
        async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
            left = await rt.start("desk", SAID, session="t", operation_id="m2")
            assert not rt.drives
            await waits(left)
            (ask,) = await rt.asks(run=done)
            await ask.approve(by="lee")
            assert (await (await rt.get_run(done)).result()).text == "all done"
            assert sorted(e.tool for e in await downstream.effects()) == ["a", "a", "b", "c", "old", "old"]

            await first.kill()
            (ask,) = await left.asks()
            await ask.approve(by="lee")
            assert (await left.result()).text == "all done"
            assert rt.drives
            assert [(e.tool, e.state) for e in await left.effects()] == [
                ("a", "succeeded"), ("b", "failed"), ("old", "succeeded"), ("c", "succeeded"),
            ]  # fmt: skip
            await holds_in_all_cases(rt, db, agent, "t", downstream)


if __name__ == "__main__":
    serve([_agent(1)])
