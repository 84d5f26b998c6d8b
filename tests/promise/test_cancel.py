"""B0 to B13 when somebody cancels (C): what stops, what is listed, who wins."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kit import results

from ondol import (
    Agent,
    Answer,
    Context,
    Delta,
    ModelOutput,
    ModelRequest,
    NotDone,
    NotFound,
    OutboxMessage,
    RunCancelled,
    Runtime,
    Text,
    cancellation,
    effects,
    steps,
    tool,
)
from ondol.testing import FaultPlan, ScriptedModel, barrier, call, error
from promise.house import HELLO, House, kinds, notes, rest, states, the_ask

LOOK, REFUND, LETTER = call("look", order="1"), call("refund", order="1"), call("letter", to="kim")


async def cancelled_at(house: House, at: str, *answers: Any, **options: Any) -> str:
    """Cancel operation ``op`` while it stands at that point, then let it go on. Returns the run's id."""
    agent, place = house.agent(*(answers or ([LOOK, REFUND, LETTER], "done")), **options), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await place.reached.wait()
        asked = await run.cancel(by="kim", reason="enough")
        assert asked.cancelling or asked.status == "cancelled"
        place.go_on.set()
        assert await rest(run) == "cancelled"
        assert run.error == {"code": "cancelled", "message": "enough", "by": "kim"}
        with pytest.raises(RunCancelled):
            await run.result()
        assert not await (await life.rt.get_session("s")).messages()
    return str(run.id)


# --- before and at the model ------------------------------------------------------------------------------------


async def test_b00_c_a_client_that_goes_away_before_t0_leaves_nothing(house: House) -> None:
    agent, arriving = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("accept.before", fault=arriving)) as life:
        client = asyncio.create_task(life.rt.start(agent, "go", session="s", operation_id="op"))
        await arriving.reached.wait()
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        with pytest.raises(NotFound):
            await life.rt.find_run("op")
    assert not house.asked()


async def test_b03_c_a_queued_run_is_cancelled_at_once_and_its_session_goes_on(house: House) -> None:
    agent, in_model = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=in_model)) as life:
        first = await life.rt.start(agent, HELLO, session="s", operation_id="first")
        await in_model.reached.wait()
        queued = await life.rt.start(agent, "go", session="s", operation_id="op")
        last = await life.rt.start(agent, HELLO, session="s", operation_id="last")
        assert (await queued.cancel(by="kim")).status == "cancelled"
        assert await rest(queued) == "cancelled"
        in_model.go_on.set()
        assert await rest(first) == await rest(last) == "completed"
        assert not await queued.effects()
        assert await kinds(queued) == ["run.accepted", "run.cancelled"]
        assert (await life.rt.get_session("s")).revision == 2
    assert not house.asked(queued)


@pytest.mark.parametrize("at", ["claim.after", "note_down.before"])
async def test_b03_c_a_claimed_run_is_cancelled_before_the_model_is_asked(house: House, at: str) -> None:
    run_id = await cancelled_at(house, at)
    assert not house.written().effects_of(run_id)
    assert house.count() == 0
    assert not house.asked(run_id)


class Endless:
    """A model that begins to speak and never ends. ``closed`` is set when its request is given up."""

    name = "endless"

    def __init__(self) -> None:
        self.speaking, self.closed = asyncio.Event(), asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        try:
            yield Delta("I think ")
            yield Delta("that")
            self.speaking.set()
            await asyncio.get_running_loop().create_future()
            yield Answer(parts=(Text("never"),))
        finally:
            self.closed.set()


async def test_b04_c_the_request_in_flight_is_aborted_and_what_it_said_is_no_part_of_the_session(house: House) -> None:
    model = Endless()
    agent = Agent("a", model=model)
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await model.speaking.wait()
        await run.cancel(by="kim")
        assert await rest(run) == "cancelled"
        assert model.closed.is_set()
        partial = [e.data["message"] async for e in run.events() if e.type == "step.failed"]
        assert partial == ["I think that"]  # a diagnostic, kept beside the run
        assert not await (await life.rt.get_session("s")).messages()
        assert [m.text for m in await run.messages()] == ["go"]
    house.checked = False  # the house did not see the request


@pytest.mark.parametrize("at", ["model.before", "model.delta", "model.after"])
async def test_b04_c_a_cancel_while_the_model_answers_makes_none_of_its_calls(house: House, at: str) -> None:
    run_id = await cancelled_at(house, at, ["I will write", LETTER], "done")
    assert not house.written().effects_of(run_id)
    assert house.count() == 0
    assert len(house.asked(run_id)) == 1


async def test_b05_c_an_answer_in_hand_is_not_recorded(house: House) -> None:
    run_id = await cancelled_at(house, "answer.before")
    store = house.written()
    assert not store.effects_of(run_id)
    assert store.state(run_id).step == 0
    assert house.count() == 0


# --- effects ----------------------------------------------------------------------------------------------------


async def test_b06_c_planned_effects_are_abandoned(house: House) -> None:
    run_id = await cancelled_at(house, "answer.after")
    assert {e.state for e in house.written().effects_of(run_id)} == {"abandoned"}
    assert house.count() == 0


async def test_b07_c_a_write_that_is_about_to_start_does_not(house: House) -> None:
    run_id = await cancelled_at(house, "started.before", [LETTER], "done")
    assert [(e.state, e.attempt) for e in house.written().effects_of(run_id)] == [("abandoned", 0)]
    assert house.count() == 0


async def test_b07_c_asks_of_planned_effects_are_closed(house: House) -> None:
    run_id = await cancelled_at(house, "answer.after", [call("wire", to="kim"), LOOK], "done")
    store = house.written()
    assert [a.state for a in store.asks] == ["closed"]
    assert [e.state for e in store.effects_of(run_id)] == ["abandoned", "abandoned"]


async def in_flight(house: House, function: Callable[..., Any], effect: Any = "once") -> tuple[str, str | None]:
    """Cancel while the tool ``act`` is in flight. Returns its state, and the kind of its ask if there is one."""
    act = tool(effect=effect, name="act")(function)
    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.in_tool.wait()
        await run.cancel(by="kim")
        assert await rest(run) == "cancelled"
        (found,) = await run.effects()
        asks = [a.kind for a in await run.asks()]
        return found.state, asks[0] if asks else None


@pytest.mark.parametrize("raises", [False, True])
async def test_b08_c_a_read_in_flight_has_failed_as_cancelled(house: House, raises: bool) -> None:
    async def act(ctx: Context[House]) -> str:
        house.in_tool.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if raises:
                raise ConnectionError("closed") from None
            raise
        return "never"

    assert await in_flight(house, act, effect="read") == ("failed", None)
    (effect,) = house.written().effects
    assert effect.reason == "cancelled"


@pytest.mark.parametrize("name", ["refund", "mail"])
async def test_b08_c_nobody_waits_for_the_deadline_of_a_lost_attempt_any_more(house: House, name: str) -> None:
    agent = house.agent([{"refund": REFUND, "mail": call("mail", to="kim")}[name]], "done")
    async with house.life(agent, dies_at=f"{name}.after") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        await house.clock.wait_for_timers()
        await run.cancel(by="kim")
        assert await rest(run) == "cancelled"
        assert await states(run) == [(name, "unknown", 1)]
    assert house.count(name) == 1


@pytest.mark.parametrize("effect", ["idempotent", "once"])
async def test_b08_c_a_write_that_ends_without_saying_how_is_unknown(house: House, effect: Any) -> None:
    async def act(ctx: Context[House]) -> str:
        await ctx.deps.act(ctx, "act")
        house.in_tool.set()
        await asyncio.get_running_loop().create_future()
        return "never"

    assert await in_flight(house, act, effect=effect) == ("unknown", "unknown_effect")
    assert house.count("act") == 1


async def test_b08_c_a_write_that_says_in_time_how_it_ended_has_that_outcome(house: House) -> None:
    async def act(ctx: Context[House]) -> str:
        await ctx.deps.act(ctx, "act")
        house.in_tool.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    assert await in_flight(house, act) == ("succeeded", None)
    assert house.count("act") == 1


async def test_b08_c_a_write_that_says_that_nothing_happened_has_failed(house: House) -> None:
    async def act(ctx: Context[House]) -> str:
        house.in_tool.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise NotDone("not yet sent") from None
        return "never"

    assert await in_flight(house, act) == ("failed", None)


@pytest.mark.parametrize("ends_by", ["its timeout", "a cancel", "the end of the process"])
@pytest.mark.parametrize("effect", ["once", "steps"])
async def test_b08_c_a_call_that_ignores_its_end_does_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_by: str, effect: Any
) -> None:
    """``asyncio.run`` waits for each task of its loop, for ever."""
    for module, patience in ((cancellation, "_UNWIND"), (steps, "_UNWIND"), (effects, "GRACE")):
        monkeypatch.setattr(module, patience, timedelta(milliseconds=10))
    in_tool, released, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool(effect=effect, timeout=timedelta(milliseconds=100) if ends_by == "its timeout" else timedelta(minutes=1))
    async def act(ctx: Context[None]) -> None:
        in_tool.set()
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        ended.set()

    agent, before = Agent("a", model=ScriptedModel([call("act"), "done"]), tools=[act]), asyncio.all_tasks()
    try:
        async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
            run = await rt.start(agent, "go")
            await in_tool.wait()
            if ends_by == "a cancel":
                await run.cancel(by="kim")
            if ends_by != "the end of the process":
                await rest(run)
            await rt.close(drain=0)
        assert asyncio.all_tasks() == before
    finally:
        released.set()
        await ended.wait()


def test_a_second_ctrl_c_does_not_wait_for_a_call_that_ignores_its_end_and_the_run_can_go_on(
    tmp_path: Path,
) -> None:
    calls: list[str] = []
    ended: list[str] = []

    @tool(effect="read")
    async def look() -> str:
        calls.append("look")
        if len(calls) == 1:
            loop = asyncio.get_running_loop()
            over = loop.create_future()
            loop.call_later(10, over.set_result, None)
            loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
            while rt.is_open:  # noqa: ASYNC110 - who closes it tells nobody
                await asyncio.sleep(0)
            loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
            while not over.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(over)
            ended.append("look")
        return "found"

    agent = Agent("a", model=ScriptedModel([call("look"), "done"]), tools=[look])
    rt = Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent])
    with pytest.raises(KeyboardInterrupt):
        rt.run_sync(agent, "go", operation_id="op")
    assert (calls, ended) == (["look"], [])
    assert rt.run_sync(agent, "go", operation_id="op").text == "done"
    assert calls == ["look", "look"]


async def test_what_a_model_that_ignores_its_end_says_afterwards_is_told_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "_UNWIND", timedelta(milliseconds=10))
    released, ended = asyncio.Event(), asyncio.Event()

    class Deaf:
        name = provider = "deaf"

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
            yield Delta("at first")
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await released.wait()
            yield Delta("afterwards")
            ended.set()
            yield Answer(parts=(Text("never"),), stop="stop")

    agent = Agent("a", model=Deaf())
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        run = await rt.start(agent, "go")
        async for event in run.events():
            if event.type == "model.delta":
                await run.cancel(by="kim")
        assert await rest(run) == "cancelled"
        released.set()
        await ended.wait()
        assert not rt._streams._said


async def test_code_beside_a_run_that_ignores_its_end_does_not_keep_the_process_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "_UNWIND", timedelta(milliseconds=10))
    told, released, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def deliver(message: OutboxMessage) -> None:
        told.set()
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        ended.set()

    agent, before = Agent("a", model=ScriptedModel(["done"])), asyncio.all_tasks()
    try:
        async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent], deliver=deliver) as rt:
            await rt.start(agent, "go")
            await told.wait()
            async with asyncio.timeout(60):
                await rt.close(drain=0)
        assert asyncio.all_tasks() == before
    finally:
        released.set()
        await ended.wait()


async def test_b08_c_a_function_in_a_thread_sees_that_it_was_asked_to_stop(house: House) -> None:
    loop, seen = asyncio.get_running_loop(), threading.Event()

    def act(ctx: Context[House]) -> str:
        loop.call_soon_threadsafe(house.in_tool.set)
        ctx.cancelled.wait(10)
        if ctx.cancelled:
            seen.set()
        ctx.deps.happened(ctx.idempotency_key, "act")
        return "stopped early"

    assert await in_flight(house, act) == ("succeeded", None)
    assert seen.is_set()


async def test_b08_c_after_ten_seconds_nobody_waits_and_the_late_outcome_is_kept_as_evidence(house: House) -> None:
    loop, asked, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def act(ctx: Context[House]) -> str:
        loop.call_soon_threadsafe(house.in_tool.set)
        ctx.cancelled.wait(30)
        loop.call_soon_threadsafe(asked.set)
        go_on.wait(30)
        ctx.deps.happened(ctx.idempotency_key, "act")
        return "receipt 4711"

    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.in_tool.wait()
        await run.cancel(by="kim")
        await asked.wait()  # its ten seconds have begun
        house.clock.advance(seconds=10)
        assert await rest(run) == "cancelled"
        (effect,) = await run.effects()
        assert (effect.state, effect.evidence) == ("unknown", None)
        go_on.set()
        while (await run.effects())[0].evidence is None:
            pass
        (effect,) = await run.effects()
        assert effect.state == "unknown"  # it advances nothing
        assert "receipt 4711" in (effect.evidence or "")


async def test_what_comes_too_late_is_not_kept_where_the_session_was_erased_meanwhile(house: House) -> None:
    loop, asked, go_on, kept = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), barrier()

    def act(ctx: Context[House]) -> str:
        loop.call_soon_threadsafe(house.in_tool.set)
        ctx.cancelled.wait(30)
        loop.call_soon_threadsafe(asked.set)
        go_on.wait(30)
        return "receipt 4711"

    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent, plan=FaultPlan().at("late_outcome.after", fault=kept)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.in_tool.wait()
        await run.cancel(by="kim")
        await asked.wait()
        house.clock.advance(seconds=10)
        assert await rest(run) == "cancelled"
        await (await life.rt.get_session("s")).delete(cancel=True)
        go_on.set()
        await kept.reached.wait()
        kept.go_on.set()
        assert (await run.effects())[0].evidence is None
    house.checked = False  # nothing of its journal is left


async def test_b09_c_what_was_done_stays_listed_and_the_rest_is_abandoned(house: House) -> None:
    agent = house.agent([LOOK, REFUND], [LETTER], "done")
    before_letter = barrier()
    async with house.life(agent, plan=FaultPlan().at("started.before", nth=2, fault=before_letter)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await before_letter.reached.wait()
        await run.cancel(by="kim")
        before_letter.go_on.set()
        assert await rest(run) == "cancelled"
        assert await states(run) == [("look", "succeeded", 0), ("refund", "succeeded", 1), ("letter", "abandoned", 0)]
    assert house.count("refund") == 1
    assert house.count("letter") == 0


# --- people, and the commit -------------------------------------------------------------------------------------


async def test_b10_c_a_waiting_run_is_cancelled_at_once_and_its_session_goes_on(house: House) -> None:
    agent = house.agent([call("wire", to="kim")], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        behind = await life.rt.start(agent, HELLO, session="s", operation_id="behind")
        assert (await run.cancel(by="kim")).status == "cancelled"
        assert await rest(behind) == "completed"
        assert await states(run) == [("wire", "abandoned", 0)]
    assert house.count() == 0


async def test_b10_c_a_cancel_that_comes_as_the_run_suspends_wins(house: House) -> None:
    run_id = await cancelled_at(house, "suspend.before", [call("wire", to="kim")], "done")
    assert [e.state for e in house.written().effects_of(run_id)] == ["abandoned"]
    assert house.written().sessions["default", "s"].revision == 0


async def test_b11_c_a_decided_run_that_is_queued_again_can_still_be_cancelled(house: House) -> None:
    agent, claiming = house.agent([call("wire", to="kim")], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("claim.before", nth=2, fault=claiming)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        await (await the_ask(run)).approve(by="lee")
        await claiming.reached.wait()
        assert (await run.cancel(by="kim")).status == "cancelled"
        claiming.go_on.set()
        assert await rest(run) == "cancelled"
        assert await states(run) == [("wire", "abandoned", 0)]
    assert house.count() == 0


async def test_b12_c_a_cancel_that_was_accepted_before_t8_wins(house: House) -> None:
    run_id = await cancelled_at(house, "commit.before", [LETTER], "done")
    store = house.written()
    assert store.runs[run_id].reply is None
    assert [e.state for e in store.effects_of(run_id)] == ["succeeded"]
    assert house.count("letter") == 1


@pytest.mark.parametrize("at", ["commit.after", "rest"])
async def test_b12_b13_c_after_t8_a_cancel_changes_nothing(house: House, at: str) -> None:
    agent, committed = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("commit.after", fault=committed)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await committed.reached.wait()
        if at == "rest":
            committed.go_on.set()
            await run.result()
        before = house.written()
        assert (await run.cancel(by="kim")).status == "completed"
        assert house.written() == before
        committed.go_on.set()
        result = await run.result()
        again = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert (await again.result()).body == result.body
        assert not await life.rt.audit()  # nothing was done


async def test_b02_c_a_cancel_whose_reply_was_lost_stops_the_run_all_the_same(house: House) -> None:
    agent, in_letter, replying, plan = house.agent([LETTER], "done"), barrier(), barrier(), FaultPlan()
    plan.at("letter.after", fault=in_letter).at("cancel.after", fault=replying)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_letter.reached.wait()
        person = asyncio.create_task(run.cancel(by="kim"))
        await replying.reached.wait()
        person.cancel()
        with pytest.raises(asyncio.CancelledError):
            await person
        assert await rest(run) == "cancelled"


async def test_a_cancel_is_idempotent_and_recorded_once(house: House) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    async with house.life(agent, door="console", plan=FaultPlan().at("letter.after", fault=in_letter)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_letter.reached.wait()
        await asyncio.gather(run.cancel(by="kim", reason="enough"), life.rt.cancel(run, by="lee"))
        in_letter.go_on.set()
        assert await rest(run) == "cancelled"
        await run.cancel(by="park")
        (act,) = await life.rt.audit()
        assert (act.act, act.subject, act.door) == ("run.cancel", run.id, "console")
        assert act.by == (run.error or {})["by"]


async def test_what_failed_for_now_does_not_go_on_once_it_was_cancelled(house: House) -> None:
    agent = house.agent([LETTER], error("quota"))
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "failed"
        assert run.retryable
        assert (await run.cancel(by="kim", reason="enough")).status == "cancelled"
        again = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(again) == "cancelled"
        assert again.error == {"code": "cancelled", "message": "enough", "by": "kim"}
        assert (await life.rt.resume(run.id)).status == "cancelled"
        assert (await kinds(run))[-1] == "run.cancelled"
        assert [act.by for act in await life.rt.audit()] == ["kim"]
        assert await states(run) == [("letter", "succeeded", 1)]  # it stays listed, and the next turn is told of it
        await life.rt.run(agent, HELLO, session="s", operation_id="next")
        (note,) = notes(house.asked((await life.rt.find_run("next")).id)[0])
        assert "not answered (cancelled)" in note
    assert len(house.asked(run.id)) == 2


async def test_a_cancel_survives_the_process_that_accepted_it(house: House) -> None:
    agent, in_letter, reading, plan = house.agent([LETTER], "done"), barrier(), barrier(), FaultPlan()
    plan.at("letter.after", fault=in_letter).at("absorb.before", fault=reading)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_letter.reached.wait()
        assert (await run.cancel(by="kim", reason="enough")).cancelling
        life.die()  # before the holder has read the signal
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "cancelled"
        assert run.error == {"code": "cancelled", "message": "enough", "by": "kim"}
        assert await states(run) == [("letter", "unknown", 1)]
    assert house.count("letter") == 1
    assert len(house.asked(run.id)) == 1


async def test_p6_a_cancelled_run_changes_no_content_and_the_next_turn_is_told_of_its_effects(house: House) -> None:
    run_id = await cancelled_at(house, "letter.after", [LOOK, LETTER], "done")
    async with house.life(house.agent([LOOK, LETTER], "done")) as life:
        await life.rt.run("a", HELLO, session="s", operation_id="next")
        said = [m.message.text for m in await (await life.rt.get_session("s")).messages()]
        assert said[-2:] == [HELLO, "hello to you"]
        (request,) = house.asked((await life.rt.find_run("next")).id)
        (note,) = notes(request)
        assert "letter" in note
        assert "look" not in note  # a read happened to nobody
        assert not results(request.messages)  # told, never sent as calls
    assert house.written().runs[run_id].base is None


@pytest.mark.parametrize("at", ["absorb.before", "end.before"])
async def test_a_cancel_whose_holder_died_is_carried_out_by_whoever_recovers_its_run(house: House, at: str) -> None:
    agent, in_letter = house.agent([LETTER, LOOK], "done"), barrier()
    plan = FaultPlan().at("letter.after", fault=in_letter)
    async with house.life(agent, plan=plan, dies_at=at) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_letter.reached.wait()
        await life.ends(_cancelled_then_let_go(run, in_letter))
    asked = len(house.asked())
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert run.status == "cancelled"  # before anybody drives it
        assert run.error == {"code": "cancelled", "message": "enough", "by": "kim"}
        assert (await states(run))[0] in [("letter", "unknown", 1), ("letter", "succeeded", 1)]
        assert (await kinds(run))[-1] == "run.cancelled"
        assert [act.by for act in await life.rt.audit()] == ["kim"]
        if (await states(run))[0][1] == "unknown":
            await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert (await life.rt.run(agent, HELLO, session="s", operation_id="next")).text
    assert house.count("letter") == 1
    assert len(house.asked()) == asked + 1  # the turn after, and nothing of the cancelled one


async def _cancelled_then_let_go(run: Any, place: Any) -> None:
    await run.cancel(by="kim", reason="enough")
    place.go_on.set()
    await run.result()
