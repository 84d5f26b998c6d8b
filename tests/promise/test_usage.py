"""Tokens are recorded for every model call, however it and its run ended; what nobody said is not zero."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from kit import cancels_itself

from ondol import (
    Agent,
    Answer,
    ModelError,
    ModelOutput,
    ModelRequest,
    RevisionConflict,
    RunCancelled,
    RunFailed,
    Runtime,
    Text,
    ToolCall,
    Usage,
)
from ondol.testing import FaultPlan, ManualClock, ScriptedModel, barrier, call, error
from promise.house import HELLO, House, rest


class Saying:
    """A model that gives these answers and names itself as providers do. An exception is raised."""

    def __init__(self, name: str, *answers: Answer | BaseException) -> None:
        self.name, self.answers = name, list(answers)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
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


# --- compactions by hand, which belong to no run ----------------------------------------------------------------

TURN = {"input_tokens": 10, "output_tokens": 1}
SUMMARY = {"input_tokens": 300, "output_tokens": 20, "cache_read_tokens": 200}


def talker(*summaries: Answer | BaseException) -> Agent:
    """Its first two answers are those of two turns."""
    return Agent("a", model=Saying("acme:grand", answer("one", **TURN), answer("two", **TURN), *summaries))


async def two_turns(rt: Runtime, agent: Agent) -> None:
    for n in range(2):
        await rt.run(agent, f"question {n}", session="s", user="kim")


async def used_by(rt: Runtime, by: Any) -> dict[str | None, tuple[int, Usage]]:
    return {line.key: (line.runs, line.tokens) for line in await rt.usage(by=by)}


@pytest.mark.parametrize("taken", [True, False])
async def test_a_summary_made_by_hand_counts_for_its_agent_model_session_user_and_day(db: str, taken: bool) -> None:
    """Also one that was refused, for it calls a tool."""
    made = answer("They asked.", **SUMMARY) if taken else Answer(parts=(ToolCall("1", "x", {}),), **SUMMARY)  # type: ignore[arg-type]
    agent = talker(made)
    async with Runtime(db, agents=[agent], clock=ManualClock("2026-11-30T14:59:00Z"), time_zone="UTC") as rt:
        await two_turns(rt, agent)
        rt.clock.advance(days=1)  # type: ignore[attr-defined]
        assert (await rt.compact_session("s", keep=1, by="lee")).refused == ("" if taken else "it asks for a tool")
    whole = Usage(calls=3, input=320, output=22, cache_read=200)
    async with Runtime(db, time_zone="UTC") as rt:
        keys = [("model", "acme:grand"), ("agent", "a"), ("session", "s"), ("user", "kim")]
        assert [await used_by(rt, by) for by, _ in keys] == [{key: (2, whole)} for _, key in keys]
        assert await used_by(rt, "day") == {
            "2026-11-30": (2, Usage(calls=2, input=20, output=2)),
            "2026-12-01": (0, Usage(calls=1, input=300, output=20, cache_read=200)),
        }
        assert await rt.usage(by="day", since=date(2026, 12, 2)) == []
        await rt.delete_session("s", by="lee")
        assert await used_by(rt, "session") == {"s": (2, whole)}, "sums outlive what was said"


@pytest.mark.parametrize(
    ("went_wrong", "counted"),
    [
        (ModelError("server", "down"), Usage(calls=1, unknown=1)),
        (ModelError("connection", "nobody there", sent=False), None),
        (ModelError("content_filter", "no", input_tokens=7, output_tokens=2), Usage(calls=1, input=7, output=2)),
        (ModelError("content_filter", "no", input_tokens=float("nan")), Usage(calls=1, unknown=1)),
        (ValueError("a model of ours has a bug"), None),
        (asyncio.CancelledError("of its own"), Usage(calls=1, unknown=1)),
    ],
)  # fmt: skip
async def test_a_summary_by_hand_that_never_came_is_unknown_where_it_may_have_cost_something(
    db: str, went_wrong: BaseException, counted: Usage | None
) -> None:
    agent = talker(went_wrong)
    async with Runtime(db, agents=[agent]) as rt:
        await two_turns(rt, agent)
        assert (await rt.compact_session("s", keep=1, by="lee")).refused
        turns = Usage(calls=2, input=20, output=2)
        assert await used_by(rt, "agent") == {"a": (2, turns if counted is None else turns.plus(counted))}


async def test_a_model_that_cancels_its_task_costs_a_summary_by_hand_and_no_more(db: str) -> None:
    class Cancelling(Saying):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
            if request.purpose == "summary":
                cancels_itself()
                await asyncio.sleep(0)
            async for output in super().stream(request):
                yield output

    agent = Agent("a", model=Cancelling("m", *[answer("so it is", **TURN) for _ in range(4)]))
    async with Runtime(db, agents=[agent]) as rt:
        await two_turns(rt, agent)
        assert "by the model itself" in (await rt.compact_session("s", keep=1, by="lee")).refused


async def test_a_summary_by_hand_counts_when_its_caller_went_away_and_when_another_turn_came_first(db: str) -> None:
    asked = asyncio.Event()
    go = asyncio.Event()

    class Slow(Saying):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
            if request.purpose == "summary":
                asked.set()
                await go.wait()
            async for output in super().stream(request):
                yield output

    agent = Agent("a", model=Slow("m", *[answer("so it is", **TURN) for _ in range(4)]))
    async with Runtime(db, agents=[agent]) as rt:
        await two_turns(rt, agent)
        compacting = asyncio.create_task(rt.compact_session("s", keep=1, by="lee"))
        await asked.wait()
        compacting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compacting
        turns = Usage(calls=2, input=20, output=2)
        assert await used_by(rt, "model") == {"m": (2, turns.plus(Usage(calls=1, unknown=1)))}
        asked.clear()
        compacting = asyncio.create_task(rt.compact_session("s", keep=1, by="lee"))
        await asked.wait()
        await rt.run(agent, "question 2", session="s", user="kim")
        go.set()
        with pytest.raises(RevisionConflict):
            await compacting
        assert await used_by(rt, "model") == {"m": (3, Usage(calls=5, input=40, output=4, unknown=1))}


async def test_a_preview_and_an_excerpt_cost_nothing(db: str) -> None:
    agent = talker()
    async with Runtime(db, agents=[agent]) as rt:
        await two_turns(rt, agent)
        assert (await rt.compact_session("s", keep=1, preview=True)).by == "acme:grand"
        assert (await rt.compact_session("s", keep=1, model_free=True, by="lee")).applied
        assert await used_by(rt, "model") == {"acme:grand": (2, Usage(calls=2, input=20, output=2))}
