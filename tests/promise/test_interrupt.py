"""A message that interrupts: nothing of the old run starts any more, what is in flight finishes, the new is next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from crash.lives import Life

from ondol import Agent, Context, NotHappened, RevisionConflict, Run, RunCancelled, tool
from ondol.testing import FaultPlan, barrier, call, error
from promise.house import HELLO, House, kinds, notes, rest, states, the_ask

LOOK, REFUND, LETTER, WIRE = (
    call("look", order="1"), call("refund", order="1"), call("letter", to="kim"), call("wire", to="kim"),
)  # fmt: skip


async def go(life: Life, agent: Agent, operation: str = "old", said: str = "go", **options: Any) -> Run:
    return await life.rt.start(agent, said, session="s", operation_id=operation, **options)


async def interrupt(life: Life, agent: Agent, operation: str = "new", said: str = HELLO, **options: Any) -> Run:
    return await go(life, agent, operation, said, if_busy="interrupt", **{"user": None, **options})


# --- what becomes of the run that is interrupted ----------------------------------------------------------------


async def test_the_model_is_not_waited_for_and_the_new_run_is_next(house: House) -> None:
    agent, in_model = house.agent("never"), barrier()
    async with house.life(agent, door="chat", plan=FaultPlan().at("model.before", fault=in_model)) as life:
        old = await go(life, agent, user="kim")
        await in_model.reached.wait()
        queued = await go(life, agent, "queued", HELLO)
        new = await interrupt(life, agent, user="kim")
        assert await rest(old) == "cancelled"
        assert await rest(new) == await rest(queued) == "completed"
        assert old.error == {"code": "interrupted", "message": f"run {new.id} took its place", "by": "kim"}
        with pytest.raises(RunCancelled, match=new.id):
            await old.result()
        revisions = [(await run.result()).revision for run in (new, queued)]
        assert revisions == [1, 2]
        (act,) = await life.rt.audit()
        assert (act.act, act.subject, act.by, act.door) == ("run.interrupt", old.id, "kim", "chat")
        ended = [event async for event in old.events()][-1]
        assert (ended.type, ended.data["interrupted_by"]) == ("run.cancelled", new.id)


@pytest.mark.parametrize("at", ["claim.after", "note_down.before", "model.delta", "answer.before", "commit.before"])
async def test_it_wins_wherever_the_old_run_stands_before_its_commit(house: House, at: str) -> None:
    agent, place = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        old = await go(life, agent)
        await place.reached.wait()
        new = await interrupt(life, agent)
        place.go_on.set()
        assert await rest(old) == "cancelled"
        assert (await new.result()).revision == 1
        said = [m.message.text for m in await (await life.rt.get_session("s")).messages()]
        assert said[1:] == [HELLO, "hello to you"]


async def test_after_the_commit_there_is_nothing_to_interrupt(house: House) -> None:
    agent, place = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("commit.after", fault=place)) as life:
        old = await go(life, agent)
        await place.reached.wait()
        new = await interrupt(life, agent)
        place.go_on.set()
        assert [(await run.result()).revision for run in (old, new)] == [1, 2]
        assert not await life.rt.audit()


async def test_an_idle_session_has_a_plain_run(house: House) -> None:
    agent = house.agent("done")
    async with house.life(agent) as life:
        assert (await (await interrupt(life, agent, said="go")).result()).text == "done"
        assert not await life.rt.audit()


# --- effects ----------------------------------------------------------------------------------------------------


async def test_no_effect_starts_after_it_and_what_was_done_is_told_to_the_new_run(house: House) -> None:
    agent, about_to_start = house.agent([LOOK, REFUND], [LETTER], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("started.before", nth=2, fault=about_to_start)) as life:
        old = await go(life, agent)
        await about_to_start.reached.wait()
        new = await interrupt(life, agent)
        about_to_start.go_on.set()
        assert await rest(old) == "cancelled"
        assert await states(old) == [("look", "succeeded", 0), ("refund", "succeeded", 1), ("letter", "abandoned", 0)]
        assert await rest(new) == "completed"
        (note,) = notes(house.asked(new)[0])
        assert "refund" in note
        assert "letter" not in note
    assert house.count("letter") == 0


Function = Callable[..., Any]


async def in_flight(house: House, function: Function, meanwhile: Function, effect: Any = "once", **rules: Any) -> Run:
    """Interrupt while the tool ``act`` is in flight, and do something once the old run's holder was told."""
    act = tool(effect=effect, name="act", **rules)(function)
    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        old = await go(life, agent)
        await house.in_tool.wait()
        new = await interrupt(life, agent)
        await told(old)
        await meanwhile(old)
        assert await rest(old) == "cancelled"
        assert (await old.refresh()).error == {
            "code": "interrupted", "message": f"run {new.id} took its place", "by": (old.error or {})["by"],
        }  # fmt: skip
        assert await rest(new) == "completed"
        assert len(house.asked(old)) == 1  # the model is not told what its tool did: it is not asked any more
    return old


async def told(run: Run) -> None:
    async for event in run.events():
        if event.type == "run.cancelling":
            return


@pytest.mark.parametrize("effect", ["once", "idempotent", "read"])
async def test_an_effect_in_flight_finishes_however_long_it_takes(house: House, effect: Any) -> None:
    done = asyncio.Event()

    async def act(ctx: Context[House]) -> str:
        house.in_tool.set()
        await done.wait()  # a cancellation would end it here
        house.happened(ctx.idempotency_key, "act")
        return "sent"

    async def meanwhile(old: Run) -> None:
        house.clock.advance(seconds=20)  # longer than a cancel would leave it
        assert (await old.refresh()).cancelling
        done.set()

    old = await in_flight(house, act, meanwhile, effect)
    (row,) = house.written().effects_of(old.id)
    assert (row.state, house.count("act")) == ("succeeded", 1)


async def test_a_function_in_a_thread_is_not_told_to_stop(house: House) -> None:
    loop, done, asked = asyncio.get_running_loop(), threading.Event(), threading.Event()

    def act(ctx: Context[House]) -> str:
        loop.call_soon_threadsafe(house.in_tool.set)
        done.wait(10)
        if ctx.cancelled:
            asked.set()
        house.happened(ctx.idempotency_key, "act")
        return "sent"

    async def meanwhile(old: Run) -> None:
        done.set()

    old = await in_flight(house, act, meanwhile)
    assert [e.state for e in house.written().effects_of(old.id)] == ["succeeded"]
    assert not asked.is_set()


async def test_an_effect_in_flight_still_has_no_more_than_its_own_time(house: House) -> None:
    async def act(ctx: Context[House]) -> str:
        house.in_tool.set()
        await asyncio.get_running_loop().create_future()
        return "never"

    async def meanwhile(old: Run) -> None:
        house.clock.advance(seconds=30)

    old = await in_flight(house, act, meanwhile, timeout=timedelta(seconds=30))
    store = house.written()
    assert [e.state for e in store.effects_of(old.id)] == ["unknown"]
    assert [a.kind for a in store.asks if a.state == "open"] == ["unknown_effect"]


@pytest.mark.parametrize("effect", ["idempotent", "once"])
async def test_an_effect_in_flight_that_fails_is_neither_tried_again_nor_looked_for(house: House, effect: Any) -> None:
    """A ``check`` is a call, too."""
    go_on, looked = asyncio.Event(), list[str]()

    def looks(ctx: Context[House]) -> NotHappened:
        looked.append(ctx.idempotency_key)
        return NotHappened()

    async def act(ctx: Context[House]) -> str:
        house.in_tool.set()
        await go_on.wait()
        raise ConnectionError("no answer")

    async def meanwhile(old: Run) -> None:
        go_on.set()

    rules = {"check": looks} if effect == "once" else {"key_ttl": timedelta(hours=1)}
    old = await in_flight(house, act, meanwhile, effect, **rules)
    assert [(e.state, e.attempt) for e in house.written().effects_of(old.id)] == [("unknown", 1)]
    assert not looked


async def test_a_cancel_after_it_goes_further(house: House) -> None:
    async def act(ctx: Context[House]) -> str:
        house.in_tool.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return await ctx.deps.act(ctx, "act")
        return "never"

    agent = house.agent([call("act")], "done", tools=[tool(name="act")(act)])
    async with house.life(agent) as life:
        old = await go(life, agent)
        await house.in_tool.wait()
        new = await interrupt(life, agent)
        await told(old)
        await old.cancel(by="lee", reason="now")
        await old.cancel(by="park")  # once is enough
        assert await rest(old) == "cancelled"
        assert old.error == {"code": "cancelled", "message": "now", "by": "lee"}
        assert await rest(new) == "completed"
        assert [act.act for act in await life.rt.audit()] == ["run.cancel", "run.interrupt"]


# --- a run that nobody holds ------------------------------------------------------------------------------------


async def test_a_waiting_run_ends_at_once_and_its_ask_is_closed(house: House) -> None:
    agent = house.agent([WIRE, LOOK], "done")
    async with house.life(agent) as life:
        old = await go(life, agent)
        assert await rest(old) == "waiting"
        queued = await go(life, agent, "queued", HELLO)
        new = await interrupt(life, agent)
        assert (await old.refresh()).status == "cancelled"
        assert [a.state for a in await old.asks(state=None)] == ["closed"]
        assert await rest(new) == await rest(queued) == "completed"
        assert [(await run.result()).revision for run in (new, queued)] == [2, 3]  # 1: it had begun to wait
        assert await states(old) == [("wire", "abandoned", 0), ("look", "succeeded", 0)]
    assert house.count("wire") == 0


async def test_a_queued_run_ends_at_once_without_a_trace_outside(house: House) -> None:
    agent, claiming = house.agent([LETTER], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("claim.before", fault=claiming)) as life:
        old = await go(life, agent)
        await claiming.reached.wait()
        new = await interrupt(life, agent)
        assert (await old.refresh()).status == "cancelled"
        claiming.go_on.set()
        assert await rest(new) == "completed"
        assert await kinds(old) == ["run.accepted", "run.cancelled"]
    assert not house.asked(old)


async def test_a_parked_run_is_not_unfinished_and_not_interrupted(house: House) -> None:
    agent = house.agent("done")
    for _ in range(3):
        async with house.life(agent, dies_at="model.before") as life:
            await life.ends(life.rt.run(agent, "go", session="s", operation_id="old"))
    async with house.life(agent) as life:
        new = await interrupt(life, agent)
        assert await rest(new) == "completed"
        assert (await life.rt.find_run("old")).status == "parked"


# --- twice ------------------------------------------------------------------------------------------------------


async def test_of_two_that_interrupt_a_driven_run_the_latest_runs_first(house: House) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_letter)) as life:
        old = await go(life, agent)
        await in_letter.reached.wait()
        queued = [await go(life, agent, f"queued {n}", HELLO) for n in (1, 2)]
        first, second = await interrupt(life, agent, "first"), await interrupt(life, agent, "second")
        tail = await go(life, agent, "tail", HELLO)
        assert [(await r.refresh()).status for r in (first, second, *queued, tail)] == ["queued"] * 5
        assert len(await life.rt.audit()) == 1  # it was asked to stop once
        in_letter.go_on.set()
        assert await rest(old) == "cancelled"
        revisions = [(await run.result()).revision for run in (second, first, *queued, tail)]
        assert revisions == sorted(revisions)
        assert await states(old) == [("letter", "succeeded", 1)]
        assert (old.error or {})["message"] == f"run {first.id} took its place"


async def test_two_that_interrupt_a_waiting_run_the_second_interrupts_the_first(house: House) -> None:
    agent, in_model = house.agent([WIRE], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", nth=2, fault=in_model)) as life:
        old = await go(life, agent)
        assert await rest(old) == "waiting"
        first = await interrupt(life, agent, "first")
        await in_model.reached.wait()
        second = await interrupt(life, agent, "second")
        in_model.go_on.set()
        assert [await rest(run) for run in (old, first, second)] == ["cancelled", "cancelled", "completed"]


async def test_two_that_interrupt_a_queued_run_the_second_ends_the_first_at_once(house: House) -> None:
    agent, claiming = house.agent("done"), [barrier() for _ in range(3)]
    plan = FaultPlan()
    for n, claim in enumerate(claiming, 1):
        plan.at("claim.before", nth=n, fault=claim)
    async with house.life(agent, plan=plan) as life:
        old = await go(life, agent)
        await claiming[0].reached.wait()
        first = await interrupt(life, agent, "first")
        second = await interrupt(life, agent, "second")
        assert [(await r.refresh()).status for r in (old, first, second)] == ["cancelled", "cancelled", "queued"]
        for claim in claiming:
            claim.go_on.set()
        assert await rest(second) == "completed"
    assert not house.asked(first)


# --- a known id -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("if_busy", ["reject", "interrupt", "queue"])
async def test_an_id_that_is_known_is_answered_before_anything_else(house: House, if_busy: Any) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_letter)) as life:
        old = await go(life, agent, expected_revision=0)
        await in_letter.reached.wait()
        behind = await go(life, agent, "behind", HELLO)
        for known in (old, behind):
            said = "go" if known is old else HELLO
            again = await go(life, agent, known.operation_id, said, if_busy=if_busy, expected_revision=0)
            assert again.id == known.id
        assert not (await old.refresh()).cancelling
        in_letter.go_on.set()
        assert await rest(old) == await rest(behind) == "completed"
        assert (await (await go(life, agent, if_busy=if_busy, expected_revision=0)).result()).revision == 1


async def test_an_expected_revision_that_will_not_last_stops_nobody(house: House) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_letter)) as life:
        old = await go(life, agent)
        await in_letter.reached.wait()
        with pytest.raises(RevisionConflict):
            await interrupt(life, agent, expected_revision=0)
        assert not (await old.refresh()).cancelling
        in_letter.go_on.set()
        assert await rest(old) == "completed"


async def test_a_retried_run_enters_at_the_tail_behind_those_that_interrupted(house: House) -> None:
    agent, in_letter = house.agent(lambda r: error("quota") if len(house.asked(r.run)) == 1 else "done"), barrier()
    house.answers("write", [LETTER], "written")
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_letter)) as life:
        failed = await go(life, agent, "failed")
        assert await rest(failed) == "failed"
        old = await go(life, agent, "old", "write")
        await in_letter.reached.wait()
        queued = await go(life, agent, "queued", HELLO)
        news = [await interrupt(life, agent, str(n)) for n in range(3)]
        again = await go(life, agent, "failed")
        assert (again.id, again.status) == (failed.id, "queued")
        tail = await go(life, agent, "tail", HELLO)
        in_letter.go_on.set()
        revisions = [(await run.result()).revision for run in (*reversed(news), queued, again, tail)]
        assert revisions == sorted(revisions)
        assert await rest(old) == "cancelled"


# --- crashes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["accept.after", "absorb.before", "absorb.after", "end.before", "end.after"])
async def test_it_outlives_the_process_that_accepted_it(house: House, at: str) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    plan = FaultPlan().at("letter.after", fault=in_letter)
    async with house.life(agent, plan=plan, dies_at=at, nth=2 if at == "accept.after" else 1) as life:
        old = await go(life, agent)
        await in_letter.reached.wait()
        interrupting = asyncio.ensure_future(interrupt(life, agent, user="kim"))
        if at.startswith("end"):
            await told(old)
            in_letter.go_on.set()
        await life.ends()
        interrupting.cancel()
    async with house.life(agent) as life:
        old, new = await life.rt.get_run(old.id), await life.rt.find_run("new", user="kim")
        assert await rest(new) == "completed"
        assert (await old.refresh()).status == "cancelled"
        assert old.error == {"code": "interrupted", "message": f"run {new.id} took its place", "by": "kim"}
        assert [state for _, state, _ in await states(old)] == ["succeeded" if at.startswith("end") else "unknown"]
        if not at.startswith("end"):
            await (await the_ask(old, "unknown_effect")).happened(by="lee")
        (note,) = notes(house.asked(new)[0])
        assert "letter" in note
    assert house.count("letter") == 1


async def test_it_reaches_a_run_that_a_clean_shutdown_gave_back(house: House) -> None:
    agent, in_model = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=in_model)) as life:
        old = await go(life, agent)
        await in_model.reached.wait()
        await life.rt.close(drain=0)
    claiming = barrier()
    async with house.life(agent, plan=FaultPlan().at("claim.before", fault=claiming)) as life:
        await claiming.reached.wait()
        new = await interrupt(life, agent)
        assert (await life.rt.get_run(old.id)).status == "cancelled"
        claiming.go_on.set()
        assert await rest(new) == "completed"
