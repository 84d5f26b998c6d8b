"""Tokens are recorded for every model call, however it and its run ended; what nobody said is not zero."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ondol import Agent, Answer, ModelOutput, ModelRequest, RunCancelled, RunFailed, Runtime, Text, Usage
from ondol.testing import FaultPlan, ScriptedModel, barrier, call, error
from promise.house import HELLO, House, rest


class Saying:
    """A model that gives these answers and names itself as providers do. An exception is raised."""

    def __init__(self, name: str, *answers: Answer | Exception) -> None:
        self.name, self.answers = name, list(answers)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield answer


def answer(text: str = "done", **tokens: int) -> Answer:
    return Answer(parts=(Text(text),), **tokens)


async def test_tokens_are_recorded_by_the_name_that_the_agent_has_for_its_model(tmp_path: Path) -> None:
    said = Answer(
        parts=(Text("done"),), input_tokens=100, output_tokens=7, cache_read_tokens=60, cache_write_tokens=20,
        reasoning_tokens=3, model="grand-2026-11-03",
    )  # fmt: skip
    agent = Agent("a", model=Saying("acme:grand", said))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        run = await rt.start(agent, "go")
        await run.result()
        assert run.usage == {
            "acme:grand": Usage(calls=1, input=100, output=7, cache_read=60, cache_write=20, reasoning=3)
        }
        assert run.tokens == (100, 7)
        (completed,) = [e.data async for e in run.events() if e.type == "model.completed"]
        assert (completed["model"], completed["asked"]) == ("grand-2026-11-03", "acme:grand")


async def test_what_nobody_said_is_unknown_and_not_zero(tmp_path: Path) -> None:
    agent = Agent("a", model=Saying("quiet", answer("one"), answer("two", input_tokens=9, output_tokens=0)))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        silent, told = [await rt.start(agent, "go") for _ in range(2)]
        await silent.result()
        await told.result()
        assert silent.tokens == (None, None)
        assert (silent.usage["quiet"].calls, silent.usage["quiet"].unknown) == (1, 1)
        assert told.usage == {"quiet": Usage(calls=1, input=9, output=0)}


async def test_tokens_of_an_answer_that_a_cancel_refused_are_recorded(house: House) -> None:
    agent, place = house.agent("I have thought about it"), barrier()
    async with house.life(agent, plan=FaultPlan().at("answer.before", fault=place)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await place.reached.wait()
        await run.cancel(by="kim")
        place.go_on.set()
        with pytest.raises(RunCancelled):
            await run.result()
        used = run.usage["script"]
        assert (used.calls, used.unknown) == (1, 0)
        assert used.input
        assert used.output
        assert [m.text for m in await run.messages()] == ["go"]


async def test_a_call_that_a_cancel_cut_off_counts_as_unknown(house: House) -> None:
    agent, place = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.after", fault=place)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await place.reached.wait()
        await run.cancel(by="kim")
        assert await rest(run) == "cancelled"
        used = run.usage["script"]
        assert (used.calls, used.unknown, used.input) == (1, 1, None)
        place.go_on.set()


async def test_a_failed_run_keeps_what_it_used(house: House) -> None:
    agent = house.agent([call("look", order="1")], error("rejected"))
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        with pytest.raises(RunFailed):
            await run.result()
        assert run.usage["script"].calls == 1
        assert run.tokens[0]


async def test_an_attempt_that_cost_nothing_is_not_counted_and_one_that_may_have_is(tmp_path: Path) -> None:
    kinds = [error("server"), error("connection", sent=False), error("overloaded", retry_after=0.0), "done"]
    agent = Agent("a", model=ScriptedModel([*kinds[:1], *kinds[2:]]))
    other = Agent("b", model=ScriptedModel([kinds[1], "done"]))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent, other]) as rt:
        await (run := await rt.start(agent, "go")).result()
        assert (run.usage["script"].calls, run.usage["script"].unknown) == (2, 1)
        await (run := await rt.start(other, "go")).result()
        assert (run.usage["script"].calls, run.usage["script"].unknown) == (1, 0)


async def test_an_answer_that_was_thrown_away_still_cost_what_its_provider_said(tmp_path: Path) -> None:
    stopped = Answer(parts=(Text("no"),), stop="content_filter", input_tokens=50, output_tokens=4)
    agent = Agent("a", model=Saying("acme", stopped))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        run = await rt.start(agent, "go")
        with pytest.raises(RunFailed):
            await run.result()
        assert run.usage == {"acme": Usage(calls=1, input=50, output=4)}


async def test_a_call_that_died_with_its_process_counts_as_unknown_once_the_run_has_asked_again(house: House) -> None:
    agent = house.agent("done")
    await house.dies(agent, "model.after")
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "completed"
        used = run.usage["script"]
        assert (used.calls, used.unknown) == (2, 1)
        assert run.tokens == (used.input, used.output)


async def test_usage_outlives_what_was_said(house: House) -> None:
    agent = house.agent()
    async with house.life(agent) as life:
        run = await life.rt.start(agent, HELLO, session="s", operation_id="op")
        await run.result()
        used = run.usage
        assert used["script"].input
        await (await life.rt.get_session("s")).delete(by="kim")
        assert (await life.rt.get_run(run.id)).usage == used
    house.checked = False  # its journal is gone
