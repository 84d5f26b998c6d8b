"""What happens to runs when the code changes while they wait or run?"""

from __future__ import annotations

import pytest

from ondol import AskClosed, InvalidInput, RunFailed
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
