"""What happens to runs when the code changes while they wait or run?"""

from __future__ import annotations

from typing import Any

import pytest

from ondol import AskClosed, Context, InvalidInput, NotHappened, RunFailed, Tool, tool
from ondol.testing import call
from promise.house import House, letter, look, rest, states, the_ask

LETTER = [call("letter", to="kim")]


async def test_a_planned_call_whose_tool_is_gone_is_told_to_the_model(house: House) -> None:
    run_id = await house.dies(house.agent(LETTER, "sorry", tools=[letter]), at="answer.after")
    async with house.life(house.agent(LETTER, "sorry", tools=[look])) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("letter", "failed", 0)]
    assert "no longer available" in repr(house.asked(run_id)[1].messages)
    assert house.count() == 0


async def test_where_the_operator_says_so_a_missing_tool_parks_the_run_until_the_code_is_back(house: House) -> None:
    old = house.agent([call("look", order="1"), *LETTER], "done", tools=[letter, look])
    run_id = await house.dies(old, at="answer.after")
    new = house.agent([call("look", order="1"), *LETTER], "done", tools=[look])
    async with house.life(new, missing_tool="park") as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "parked"
        assert await states(run) == [("look", "succeeded", 0), ("letter", "planned", 0)]
        ask = await the_ask(run, "definition_changed")
        assert "'letter' is no longer available" in ask.question
        later = await life.rt.start(new, "hello", session="s", operation_id="later")
        assert (await later.result()).text == "hello to you"  # it holds nobody up
        await ask.answer("resume", by="lee")
        assert await rest(await run.refresh()) == "parked"  # nothing has changed yet
    async with house.life(old, missing_tool="park") as life:
        run = await life.rt.get_run(run_id)
        await (await the_ask(run, "definition_changed")).answer("resume", by="lee")
        assert await rest(run) == "completed"
    assert house.count("letter") == 1
    assert house.count("look") == 1


async def test_a_run_that_was_parked_by_changed_code_can_be_failed_or_cancelled(house: House) -> None:
    old = house.agent(LETTER, "done", tools=[letter])
    run_id = await house.dies(old, at="answer.after")
    new = house.agent(LETTER, "done", tools=[look])
    async with house.life(new, missing_tool="park") as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "parked"
        ask = await the_ask(run, "definition_changed")
        with pytest.raises(InvalidInput, match="say resume, fail"):
            await ask.answer("maybe", by="lee")
        await ask.answer("fail", by="lee", reason="not worth it")
        with pytest.raises(RunFailed, match="definition_changed: not worth it"):
            await (await run.refresh()).result()
        assert await states(run) == [("letter", "abandoned", 0)]
        other = await life.rt.start(new, "go", session="t", operation_id="other")
        assert await rest(other) == "completed"  # planned by the new code: there is no such tool at all
    assert house.count() == 0


async def test_a_cancel_closes_the_ask_of_changed_code(house: House) -> None:
    run_id = await house.dies(house.agent(LETTER, "done", tools=[letter]), at="answer.after")
    async with house.life(house.agent(LETTER, "done", tools=[look]), missing_tool="park") as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "parked"
        ask = await the_ask(run, "definition_changed")
        await run.cancel(by="lee")
        assert (await run.refresh()).status == "cancelled"
        with pytest.raises(AskClosed):
            await ask.answer("resume", by="lee")


def test_an_unknown_choice_for_missing_tools_is_refused(house: House) -> None:
    with pytest.raises(InvalidInput, match="missing_tool='ignore' is unknown: say refuse or park"):
        house.life(house.agent("done"), missing_tool="ignore")


# --- a tool that is another one now -----------------------------------------------------------------------------


def _pay(house: House, **declared: Any) -> Tool[..., Any]:
    """The tool ``pay`` as version 1 knew it."""

    @tool(**{"effect": "once", **declared})
    async def pay(ctx: Context[House], amount: int) -> str:
        return await ctx.deps.act(ctx, "pay", amount=amount)

    return pay


def _pay_in(house: House, **declared: Any) -> Tool[..., Any]:
    """Version 2: it takes a currency too."""

    @tool(effect="once", **declared)
    async def pay(ctx: Context[House], amount: int, currency: str = "EUR") -> str:
        return await ctx.deps.act(ctx, "pay", amount=amount, currency=currency)

    return pay


def _pay_cents(house: House, **declared: Any) -> Tool[..., Any]:
    """Version 3: what it took before does not fit any more."""

    @tool(**{"effect": "once", **declared})
    async def pay(ctx: Context[House], cents: int) -> str:
        return await ctx.deps.act(ctx, "pay", cents=cents)

    return pay


PAY = [call("pay", amount=5)]


async def test_a_call_that_was_planned_with_another_schema_is_validated_again(house: House) -> None:
    run_id = await house.dies(house.agent(PAY, "sorry", tools=[_pay(house)]), at="answer.after")
    async with house.life(house.agent(PAY, "sorry", tools=[_pay_cents(house)])) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("pay", "failed", 0)]
    assert "do not fit" in repr(house.asked(run_id)[1].messages)
    assert house.count() == 0


@pytest.mark.parametrize("kind", ["idempotent", "checked"])
async def test_a_call_that_may_have_happened_is_unknown_where_its_arguments_do_not_fit_any_more(
    house: House, kind: str
) -> None:
    async def looked(ctx: Context[House]) -> NotHappened:
        return NotHappened()

    declared: Any = {"effect": "idempotent"} if kind == "idempotent" else {"effect": "once", "check": looked}

    run_id = await house.dies(house.agent(PAY, "paid", tools=[_pay(house, **declared)]), at="outcome.before")
    async with house.life(house.agent(PAY, "paid", tools=[_pay_cents(house, **declared)])) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        assert await states(run) == [("pay", "unknown", 1)]
        assert "do not fit" in str((await run.effects())[0].reason)
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count() == 1


async def test_an_approval_is_asked_for_again_when_the_tool_changed_before_the_call_started(house: House) -> None:
    async with house.life(house.agent(PAY, "paid", tools=[_pay(house, approve=True)])) as life:
        run = await life.rt.start("a", "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        first = await the_ask(run)
    async with house.life(house.agent(PAY, "paid", tools=[_pay_in(house, approve=True)])) as life:
        run = await life.rt.get_run(run.id)
        await (await life.rt.get_ask(first.id)).approve(by="lee")
        assert await rest(run) == "waiting"
        assert house.count() == 0
        again = await the_ask(run)
        assert again.id != first.id
        assert (again.arguments, again.arguments_hash) == (first.arguments, first.arguments_hash)
        assert "changed since this call was planned" in again.question
        await again.approve(by="lee")
        assert await rest(run) == "completed"
        assert [a.state for a in await run.asks(state=None)] == ["decided", "decided"]
    assert [line.arguments for line in house.ledger] == [{"amount": 5, "currency": "EUR"}]


async def test_a_call_that_needed_no_approval_needs_one_when_the_new_tool_says_so(house: House) -> None:
    run_id = await house.dies(house.agent(PAY, "not paid", tools=[_pay(house)]), at="answer.after")
    async with house.life(house.agent(PAY, "not paid", tools=[_pay_in(house, approve=True)])) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        await (await the_ask(run)).deny(by="lee", reason="no")
        assert await rest(run) == "completed"
        assert await states(run) == [("pay", "denied", 0)]
    assert house.count() == 0


async def test_an_approved_call_of_a_tool_that_did_not_change_is_not_asked_about_again(house: House) -> None:
    async with house.life(house.agent(PAY, "paid", tools=[_pay(house, approve=True)])) as life:
        run = await life.rt.start("a", "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
    changed = house.agent(PAY, "paid", tools=[_pay(house, approve=True), look], instructions="Be polite.")
    async with house.life(changed) as life:
        run = await life.rt.get_run(run.id)
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
        assert len(await run.asks(state=None)) == 1
    assert house.count("pay") == 1


async def test_a_crash_after_the_second_ask_keeps_it(house: House) -> None:
    run_id = await house.dies(house.agent(PAY, "paid", tools=[_pay(house)]), at="answer.after")
    new = house.agent(PAY, "paid", tools=[_pay_in(house, approve=True)])
    await house.dies(new, at="ask_again.after")
    async with house.life(new) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    assert house.count("pay") == 1
