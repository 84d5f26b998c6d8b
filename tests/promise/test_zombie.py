"""A process that was paused, lost its claim, and wakes up (Z; P7): it advances nothing.

The pause is a barrier in the middle of what it does. Meanwhile another process, with its own connection to the same
file, takes the run. What is written after that is written by the new owner alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from crash import invariants
from crash.lives import Life

from ondol import NotDone, RunCancelled, Runtime, tool, transactions
from ondol.attempts import Dropped, dispatch
from ondol.cancellation import CancelToken
from ondol.clock import SystemClock, to_micros
from ondol.errors import ClaimLost
from ondol.events import EffectSucceeded
from ondol.store import Store
from ondol.stores import open_store
from ondol.testing import FaultPlan, ManualClock, barrier, call, error, raise_
from ondol.testing.faults import Fault
from ondol.transactions import Claimed
from promise.house import House, rest, states, the_ask

LETTER, LOOK, REFUND = call("letter", to="kim"), call("look", order="1"), call("refund", order="1")


@asynccontextmanager
async def another_process(house: House, run_id: str) -> AsyncIterator[tuple[Store, int]]:
    """It finds the owner gone: its store, and the fence that the run had."""
    other, fence = open_store(house.db), house.written().runs[run_id].fence
    await other.open(lambda: None)
    try:
        await other.write(transactions.recover, "default", run_id, fence, to_micros(house.clock.now()))
        yield other, fence
    finally:
        await other.close()


async def take_over(house: House, run_id: str, life: Life | None = None) -> Claimed:
    """Another process finds the owner gone and claims the run. It is alive for as long as that ``life``."""
    if life is not None:
        life.store.others.add("another process")
    async with another_process(house, run_id) as (other, fence):
        now = to_micros(house.clock.now())
        claimed = await other.write(transactions.claim, "default", run_id, "another process", now)
        assert claimed is not None
        assert claimed.claim.fence > fence
        return claimed


@asynccontextmanager
async def paused(house: House, at: str, *answers: Any, then: Fault | None = None) -> AsyncIterator[tuple[Life, str]]:
    """A process that stands at that point of operation ``op``, has lost it in the block, and then wakes up.

    When the process has come to its end in good order, nothing has changed since.
    """
    agent, place = house.agent(*answers), barrier()
    plan = FaultPlan().at(at, fault=place)
    if then is not None:
        plan.at(at, fault=then)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await place.reached.wait()
        await take_over(house, run.id, life)
        yield life, run.id
        before = house.written()
        place.go_on.set()
    assert not life.plan.unreached
    advanced_nothing(before, house.written(), run.id)


def advanced_nothing(before: invariants.Written, after: invariants.Written, run_id: str) -> None:
    assert after.batches == before.batches
    assert after.messages == before.messages
    assert after.sessions == before.sessions
    assert after.asks == before.asks
    assert after.runs == before.runs
    assert after.runs[run_id].owner == "another process"
    for old, new in zip(before.effects, after.effects, strict=True):
        assert (new.state, new.attempt, new.deadline) == (old.state, old.attempt, old.deadline)


async def goes_on(house: House, run_id: str, *answers: Any) -> list[tuple[str, str, int]]:
    """The next driver takes it to its end; a person answers after the ledger. Returns the effects."""
    house.clock.advance(hours=1)
    async with house.life(house.agent(*answers)) as life:
        run = await life.rt.get_run(run_id)
        while await rest(run) == "waiting":
            ask = (await run.asks())[0]
            if ask.kind == "approval":
                await ask.approve(by="lee")
            elif (await life.rt.get_effect(ask.effect or "")).key in house.keys(ask.tool or ""):
                await ask.happened(by="lee")
            else:
                await ask.not_happened(by="lee")
        assert run.status == "completed"
        return await states(run)


async def test_b03_z_a_claim_that_was_lost_before_the_context_is_refused(house: House) -> None:
    async with paused(house, "note_down.before", [LETTER], "done") as (_, run_id):
        pass
    assert not house.asked(run_id)
    assert await goes_on(house, run_id, [LETTER], "done") == [("letter", "succeeded", 1)]


@pytest.mark.both_stores
async def test_who_waits_in_a_process_that_lost_its_run_hears_how_it_ended(house: House) -> None:
    """Though the call that this process has in flight goes on."""
    agent, place = house.agent([LETTER], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=place)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        waiting = asyncio.create_task(run.result())
        await place.reached.wait()
        async with another_process(house, run.id), Runtime(house.db, clock=house.clock) as other:
            await other.cancel(run.id, by="lee")
        with pytest.raises(RunCancelled):
            await waiting
        place.go_on.set()


@pytest.mark.parametrize("at", ["model.before", "model.delta", "model.after", "answer.before"])
async def test_b04_b05_z_an_answer_that_came_too_late_is_refused_and_starts_nothing(house: House, at: str) -> None:
    async with paused(house, at, ["I write", LETTER], "done") as (_, run_id):
        pass
    assert house.count() == 0
    assert not house.written().effects
    assert await goes_on(house, run_id, ["I write", LETTER], "done") == [("letter", "succeeded", 1)]
    assert house.count("letter") == 1


async def test_b04_z_an_attempt_of_the_model_that_failed_too_late_is_refused(house: House) -> None:
    async with paused(house, "model.before", [LETTER], "done", then=raise_(error("overloaded"))) as (_, run_id):
        pass
    assert not house.written().effects
    assert await goes_on(house, run_id, [LETTER], "done") == [("letter", "succeeded", 1)]


@pytest.mark.parametrize("at", ["answer.after", "started.before"])
async def test_b06_b07_z_a_planned_write_is_not_started_any_more(house: House, at: str) -> None:
    async with paused(house, at, [LETTER], "done") as (_, run_id):
        pass
    assert house.count() == 0
    assert await goes_on(house, run_id, [LETTER], "done") == [("letter", "succeeded", 1)]
    assert house.count("letter") == 1


async def test_b08_z_after_the_deadline_nothing_is_sent(house: House) -> None:
    """It had been recorded as started; but by now somebody may have decided that it did not happen."""
    async with paused(house, "started.after", [LETTER], "done") as (_, run_id):
        house.clock.advance(seconds=60)
    assert house.count() == 0
    assert await goes_on(house, run_id, [LETTER], "done") == [("letter", "succeeded", 2)]
    assert house.count("letter") == 1


async def test_b08_z_before_the_deadline_it_may_send_what_was_recorded_as_started_and_the_new_owner_waits(
    house: House,
) -> None:
    async with paused(house, "started.after", [REFUND], "done") as (_, run_id):
        house.clock.advance(seconds=59)
    assert house.count("refund") == 1
    (effect,) = house.written().effects
    assert (effect.state, effect.attempt) == ("started", 1)
    assert "refund done" in (effect.evidence or "")
    assert await goes_on(house, run_id, [REFUND], "done") == [("refund", "succeeded", 2)]
    assert len(house.keys("refund")) == 1


@pytest.mark.parametrize("at", ["letter.after", "outcome.before"])
async def test_b08_z_a_late_outcome_is_kept_as_evidence_beside_the_effect_and_advances_nothing(
    house: House, at: str
) -> None:
    async with paused(house, at, [LETTER], "done") as (_, run_id):
        pass
    (effect,) = house.written().effects
    assert (effect.state, effect.attempt) == ("started", 1)
    assert "letter done" in (effect.evidence or "")
    async with house.life(house.agent([LETTER], "done")) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        (shown,) = await run.effects()  # what the person who settles it can see
        assert "letter done" in (shown.evidence or "")
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("letter") == 1


async def test_b08_z_a_failure_that_comes_too_late_is_evidence_too(house: House) -> None:
    refused = raise_(NotDone("no such person"))
    async with paused(house, "letter.before", [LETTER], "done", then=refused) as (_, run_id):
        pass
    assert "no such person" in (house.written().effects[0].evidence or "")
    assert await goes_on(house, run_id, [LETTER], "done") == [("letter", "succeeded", 2)]


async def test_b09_z_after_a_durable_outcome_nothing_more_is_done(house: House) -> None:
    async with paused(house, "outcome.after", [LETTER], [REFUND], "done") as (_, run_id):
        pass
    assert house.count("refund") == 0
    assert len(house.asked(run_id)) <= 2  # it may have asked the model; the answer counts for nothing
    assert await goes_on(house, run_id, [LETTER], [REFUND], "done") == [
        ("letter", "succeeded", 1), ("refund", "succeeded", 1),
    ]  # fmt: skip


async def test_b10_z_a_suspension_is_refused(house: House) -> None:
    async with paused(house, "suspend.before", [call("wire", to="kim")], "done") as (_, run_id):
        pass
    assert house.written().runs[run_id].state == "running"
    assert await goes_on(house, run_id, [call("wire", to="kim")], "done") == [("wire", "succeeded", 1)]


async def test_b11_z_a_decision_is_for_the_new_owner(house: House) -> None:
    async with paused(house, "look.before", [call("wire", to="kim"), LOOK], "done") as (life, run_id):
        run = await life.rt.get_run(run_id)
        await (await the_ask(run)).approve(by="lee")
    assert house.count("wire") == 0
    assert await goes_on(house, run_id, [call("wire", to="kim"), LOOK], "done") == [
        ("wire", "succeeded", 1), ("look", "succeeded", 0),
    ]  # fmt: skip


async def test_b12_z_a_commit_is_refused(house: House) -> None:
    async with paused(house, "commit.before", [LETTER], "done") as (_, run_id):
        pass
    store = house.written()
    assert store.sessions["default", "s"].revision == 0
    assert store.runs[run_id].reply is None
    assert await goes_on(house, run_id, [LETTER], "done") == [("letter", "succeeded", 1)]
    assert [r.step for r in house.asked(run_id)] == [0, 1]  # what the zombie had recorded while it held the run stays


async def test_b12_z_a_commit_is_refused_even_if_the_new_owner_has_committed(house: House) -> None:
    agent, place = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("commit.before", fault=place)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await place.reached.wait()
        claimed = await take_over(house, run.id, life)
        final = {"id": run.id, "state": "completed", "session": "s", "operation_id": "op", "text": "done"}
        await life.store.write(
            transactions.commit,
            claimed.claim,
            claimed.session,
            to_micros(house.clock.now()),
            final,
            3,
            None,
            (),
            1,
            True,
        )
        before = house.written()
        place.go_on.set()
        assert await rest(run) == "completed"  # whoever waited here is told all the same
    after = house.written()
    assert (after.runs, after.sessions, after.batches) == (before.runs, before.sessions, before.batches)


async def test_z_a_cancel_is_not_ended_by_who_lost_the_run(house: House) -> None:
    async with paused(house, "letter.after", [LETTER], "done") as (life, run_id):
        await life.rt.cancel(run_id, by="kim")
    assert house.written().runs[run_id].state == "running"
    async with house.life(house.agent([LETTER], "done")) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "cancelled"
        assert await states(run) == [("letter", "unknown", 1)]


async def test_z_a_parallel_batch_that_was_lost_starts_nothing_more_and_each_outcome_is_evidence(house: House) -> None:
    answers = ([LETTER, call("letter", to="lee"), REFUND], "done")
    agent, plan = house.agent(*answers), FaultPlan()
    gates = [barrier() for _ in range(3)]
    plan.at("letter.after", nth=1, fault=gates[0]).at("letter.after", nth=2, fault=gates[1])
    plan.at("refund.after", fault=gates[2])
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        for gate in gates:
            await gate.reached.wait()
        await take_over(house, run.id, life)
        before = house.written()
        for gate in gates:
            gate.go_on.set()
    advanced_nothing(before, house.written(), run.id)
    assert any("done" in (e.evidence or "") for e in house.written().effects)
    assert await goes_on(house, run.id, *answers) == [
        ("letter", "succeeded", 1), ("letter", "succeeded", 1), ("refund", "succeeded", 2),
    ]  # fmt: skip
    assert house.count("letter") == 2


async def test_p7_even_the_holder_writes_no_start_and_no_outcome_of_another_attempt(house: House) -> None:
    """Two tasks of one process cannot confuse two attempts: T4 counts them, T5 names the one it ends."""
    answers = ([LETTER, call("mail", to="kim")], "done")
    plan, in_letter, before_mail = FaultPlan(), barrier(), barrier()
    plan.at("letter.before", fault=in_letter).at("started.before", nth=2, fault=before_mail)
    async with house.life(house.agent(*answers), plan=plan) as life:
        run = await life.rt.start("a", "go", session="s", operation_id="op")
        await in_letter.reached.wait()
        await before_mail.reached.wait()
        life.die()
    claimed = await take_over(house, run.id)
    before, now = house.written(), to_micros(house.clock.now())
    other = open_store(house.db)
    await other.open(lambda: None)
    try:
        for call_, attempt in ((0, 1), (0, 3), (1, 0), (1, 2)):  # the letter is at 1, the mail at 0
            with pytest.raises(ClaimLost):
                await other.write(transactions.started, claimed.claim, now, call_, attempt, now)
        for call_, attempt in ((0, 0), (0, 2), (1, 0), (1, 1)):
            reply = before.effects[call_].reply
            entry, body = EffectSucceeded(call=call_), '{"role":"tool","parts":[]}'
            ended = transactions.Outcome(entry=entry, attempt=attempt, reply=reply, body=body)
            with pytest.raises(ClaimLost):
                await other.write(transactions.outcome, claimed.claim, "", now, ended)
    finally:
        await other.close()
    advanced_nothing(before, house.written(), run.id)
    assert await goes_on(house, run.id, *answers) == [("letter", "succeeded", 2), ("mail", "succeeded", 1)]


async def test_b08_z_a_call_that_was_on_its_way_as_the_process_fell_asleep_is_not_made_after_its_deadline() -> None:
    clock, sent, nobody = ManualClock(), list[str](), cast(Any, None)

    @tool
    async def letter(to: str) -> None:
        sent.append(to)

    calling = asyncio.create_task(
        dispatch(letter, nobody, {"to": "kim"}, seconds=5, clock=clock, token=CancelToken(), late=sent.append)
    )
    await asyncio.sleep(0)  # its task was made, and has not begun
    clock.advance(5)
    assert await calling == Dropped()
    assert sent == []


class Leaps(SystemClock):
    """An hour passes between the second look at it and the third."""

    def __init__(self) -> None:
        self.looks = 0

    def now(self) -> datetime:
        self.looks += 1
        return datetime(2026, 1, 1, 12 + (self.looks > 2), tzinfo=UTC)


async def test_b08_z_nor_by_a_thread_that_had_not_begun() -> None:
    sent, nobody = list[str](), cast(Any, None)

    @tool
    def letter(to: str) -> None:
        sent.append(to)

    late = sent.append
    assert await dispatch(
        letter, nobody, {"to": "kim"}, seconds=60, clock=Leaps(), token=CancelToken(), late=late
    ) == Dropped()  # fmt: skip
    assert sent == []
