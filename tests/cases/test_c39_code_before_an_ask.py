"""C39: code before an ask does not run again when the answer comes.

The body of a tool of steps is entered again by design; what it does through ``ctx.call`` and ``ctx.ask`` is recorded
and done once. In a tool of any other class ``ctx.ask`` raises before anything is asked, so nothing is resumed there.
"""

from __future__ import annotations

from typing import Any

import pytest
from kit import Conversation, Outside, app, holds_in_all_cases, results, serve, waits

from ondol import Agent, Context, InvalidInput, Runtime, tool
from ondol.testing import Downstream, FaultPlan, call, kill


@tool(effect="once")
async def log_row(ctx: Context[Outside], row: int) -> str:
    await ctx.deps.effect(ctx, "log_row", row=row)
    return f"row {row}"


@tool(effect="once")
async def pay(ctx: Context[Outside]) -> str:
    await ctx.deps.effect(ctx, "pay")
    return "paid"


@tool(effect="steps")
async def careful(ctx: Context[Outside]) -> str:
    """Log, ask until it is ok, log, ask until they are sure, pay."""
    await ctx.call(log_row, row=1)
    while not await ctx.ask("ok?", schema=bool):
        pass
    await ctx.call(log_row, row=2)
    while not await ctx.ask("sure?", schema=bool):
        pass
    return await ctx.call(pay)


def clerk(*tools: Any) -> Agent:
    return Agent("clerk", model=Conversation({"do it": [[call("careful")], "it is done"]}), tools=tools or (careful,))


ANSWERS = [("ok?", False), ("ok?", True), ("sure?", True)]


async def test_c39_two_questions_with_restarts_between_the_answers(db: str, downstream: Downstream) -> None:
    async with app(__file__, db, downstream) as child:
        run_id = await child.do("start", agent="clerk", input="do it", session="s", operation_id="m1")
        await child.do("until", run=run_id, type="run.waiting")
        await child.kill()

    for n, (question, said) in enumerate(ANSWERS):
        agent = clerk()
        async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
            run = await rt.get_run(run_id)
            (ask,) = await waits(run)
            assert (ask.kind, ask.question) == ("question", question)
            await ask.answer(said, by="lee")
            if n + 1 < len(ANSWERS):
                await waits(run)
            else:
                assert (await run.result()).text == "it is done"
                (told,) = results(agent.model.requests[-1].messages)  # type: ignore[union-attr]
                assert told.response == "paid"
    assert [(line.tool, line.arguments) for line in await downstream.effects()] == [
        ("log_row", {"row": 1}), ("log_row", {"row": 2}), ("pay", {}),
    ]  # fmt: skip
    agent = clerk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        asks = await rt.asks(run=run_id, state=None)
        assert [(a.question, a.value, a.decided_by) for a in asks] == [(q, a, "lee") for q, a in ANSWERS]
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c39_killed_at_a_row_that_nobody_can_look_up(db: str, downstream: Downstream) -> None:
    """A person says that it was written; the step before it is not done again, and the rest is done once."""
    async with app(__file__, db, downstream, FaultPlan().at("log_row.after", nth=2, fault=kill())) as child:
        run_id = await child.do("start", agent="clerk", input="do it", session="s", operation_id="m1")
        await child.do("until", run=run_id, type="run.waiting")
        child.send("answer", run=run_id, value=True)
        await child.dies()

    agent = clerk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.get_run(run_id)
        (ask,) = await waits(run)
        assert (ask.kind, ask.tool, ask.arguments) == ("unknown_effect", "log_row", {"row": 2})
        assert await downstream.count(tool="log_row") == 2
        await ask.happened(by="lee")
        (ask,) = await waits(run)
        assert ask.question == "sure?"
        await ask.answer(True, by="lee")
        assert (await run.result()).text == "it is done"
        assert await downstream.count(tool="log_row") == 2
        assert await downstream.count(tool="pay") == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c39_plain_code_of_the_body_runs_again_and_what_it_recorded_does_not(
    db: str, downstream: Downstream
) -> None:
    """By design, and the only code for which it is so: it may compute, and whatever it does goes through its steps."""
    entered: list[str] = []

    @tool(effect="steps", name="careful")
    async def counting(ctx: Context[Outside]) -> str:
        entered.append("entered")
        said = await ctx.call(log_row, row=len(await ctx.ask("how?", schema=str)))
        return f"{said}, {await ctx.ask('really?', schema=str)}"

    agent = clerk(counting)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "do it", session="s", operation_id="m1")
        for word in ("ab", "yes"):
            (ask,) = await waits(run)
            await ask.answer(word, by="lee")
        assert (await run.result()).text == "it is done"
        assert len(entered) == 3
        (told,) = results(agent.model.requests[-1].messages)  # type: ignore[union-attr]
        assert told.response == "row 2, yes"
        assert await downstream.count() == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_c39_no_other_tool_can_ask_in_its_middle(db: str, downstream: Downstream, effect: Any) -> None:
    raised: list[str] = []

    @tool(effect=effect, name="careful")
    async def careless(ctx: Context[Outside]) -> str:
        try:
            await ctx.ask("ok?", schema=bool)
        except InvalidInput as error:
            raised.append(error.code)
        await ctx.deps.effect(ctx, "careful")
        return "logged"

    agent = clerk(careless)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "do it", session="s", operation_id="m1")
        assert (await run.result()).text == "it is done"
        assert raised == ["invalid_input"]
        assert not await rt.asks(state=None)
        assert await downstream.count() == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def _answer(rt: Runtime, run: str, value: Any) -> None:
    (ask,) = await rt.asks(run=run)
    await ask.answer(value, by="lee")


if __name__ == "__main__":
    serve([clerk()], answer=_answer)
