"""B0 to B13 when the process dies (K), and when the same operation comes again (D).

What a cancel does at each boundary is in ``test_cancel``, what a process does that lost its claim in ``test_zombie``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from crash.lives import HurriedClock, Life

from ondol import ContextPolicy, NotFound, OutcomeUnknown, Run, Runtime, RunWaiting, tool
from ondol.errors import StoreBusy
from ondol.testing import Barrier, FaultPlan, barrier, call, error, raise_
from promise.house import HELLO, House, kinds, letter, look, mail, refund, rest, states, the_ask, turns, wire

LETTER = [call("letter", to="kim")]


# --- B0, B1, B2: before and around T0 ---------------------------------------------------------------------------


async def test_b00_k_a_request_that_arrives_as_the_process_dies_leaves_nothing(house: House) -> None:
    agent = house.agent("done")
    await house.dies(agent, at="accept.before")
    assert not house.written().runs
    assert not house.written().sessions
    async with house.life(agent) as life:
        with pytest.raises(NotFound):
            await life.rt.find_run("op")
    assert not house.asked()


@pytest.mark.file
async def test_b00_k_an_upload_whose_operation_never_came_is_collected_after_a_day(house: House) -> None:
    agent = house.agent("done")
    async with house.life(agent, dies_at="accept.before") as life:
        await life.ends(life.rt.start(agent, "go", operation_id="op", attachments=[b"receipt"]))
    async with house.life(agent) as life:
        house.clock.advance(hours=23)
        assert await life.engine.collect_blobs() == 0
        house.clock.advance(hours=2)
        assert await life.engine.collect_blobs() == 1
    assert not [path for path in house.file.parent.rglob("*.blobs/**/*") if path.is_file()]


async def test_b00_k_an_upload_that_an_operation_uses_after_all_is_kept(house: House) -> None:
    agent = house.agent("done")
    async with house.life(agent, dies_at="accept.before") as life:
        await life.ends(life.rt.start(agent, "go", operation_id="op", attachments=[b"receipt"]))
    house.clock.advance(hours=23)
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", operation_id="op", attachments=[b"receipt"])
        house.clock.advance(hours=48)
        assert await life.engine.collect_blobs() == 0
        (message, *_) = await run.messages()
        assert await life.rt.get_blob(message.parts[1].digest) == b"receipt"  # type: ignore[union-attr]
        assert await rest(run) == "completed"


@pytest.mark.parametrize("at", ["accept.before", "accept.after"])
async def test_b00_b01_d_of_two_that_come_at_once_the_second_attaches_to_the_first(house: House, at: str) -> None:
    agent, slow = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=slow)) as life:
        first = asyncio.create_task(life.rt.start(agent, "go", session="s", operation_id="op"))
        await slow.reached.wait()
        second = await life.rt.start(agent, "go", session="s", operation_id="op")
        slow.go_on.set()
        assert (await first).id == second.id
        assert (await second.result()).body == (await (await first).result()).body
    assert len(house.written().runs) == 1
    assert len(house.asked()) == 1


async def test_b01_k_an_operation_whose_reply_was_lost_is_there_and_goes_on(house: House) -> None:
    agent = house.agent("done")
    run_id = await house.dies(agent, at="accept.after")
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(run_id)) == "completed"  # nobody had to send it again
        again = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert again.id == run_id
        assert again.replayed
    assert len(house.asked()) == 1


async def test_b01_an_ambiguous_commit_says_that_the_outcome_is_unknown_and_the_same_id_finds_it(house: House) -> None:
    agent = house.agent("done")
    plan = FaultPlan().at("accept.after", fault=raise_(OutcomeUnknown("the answer to COMMIT was lost")))
    async with house.life(agent, plan=plan) as life:
        with pytest.raises(OutcomeUnknown):
            await life.rt.start(agent, "go", session="s", operation_id="op")
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
    assert len(house.written().runs) == 1


async def test_b02_k_the_run_goes_on_without_the_client_that_waited_for_it(house: House) -> None:
    agent, in_tool = house.agent(LETTER, "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_tool)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        client = asyncio.create_task(run.result())
        await in_tool.reached.wait()
        client.cancel()
        in_tool.go_on.set()
        assert await rest(await life.rt.get_run(run.id)) == "completed"
    assert house.count("letter") == 1


async def test_b02_c_a_client_that_goes_away_after_t0_and_before_its_reply_cancels_nothing(house: House) -> None:
    agent, replying = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("accept.after", fault=replying)) as life:
        client = asyncio.create_task(life.rt.start(agent, "go", session="s", operation_id="op"))
        await replying.reached.wait()
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        assert await rest(await life.rt.find_run("op")) == "completed"


async def test_b02_a_run_whose_turn_it_is_is_claimed_with_its_acceptance(house: House) -> None:
    agent, in_tool, plan = house.agent(LETTER, "done"), barrier(), FaultPlan()
    async with house.life(agent, plan=plan.at("letter.before", fault=in_tool)) as life:
        first = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_tool.reached.wait()
        assert plan.writes.count("accept") == 1
        assert "claim" not in plan.writes
        second = await life.rt.start(agent, HELLO, session="s", operation_id="op-2")
        in_tool.go_on.set()
        assert await rest(first) == await rest(second) == "completed"
        assert plan.writes.count("claim") == 1, "the one that had to queue"
        assert (await kinds(first))[:3] == ["run.accepted", "run.started", "step.started"]
    fences = [batch.fence for batch in house.written().batches[first.id]]
    assert fences[:2] == [0, 1]


async def test_b02_who_cannot_learn_whether_it_drives_accepts_all_the_same(house: House) -> None:
    agent = house.agent("done")
    async with house.life(agent) as life:
        life.plan.at("drives", nth=life.plan.calls.count("drives") + 1, fault=raise_(StoreBusy("not now")))
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert life.plan.unreached == []
        assert await rest(run) == "completed"


async def test_b02_a_run_that_is_accepted_as_the_process_stops_is_given_back(house: House) -> None:
    agent, accepting = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("accept.before", fault=accepting)) as life:
        starting = asyncio.create_task(life.rt.start(agent, "go", session="s", operation_id="op"))
        await accepting.reached.wait()
        draining = asyncio.create_task(life.rt.drain(3600))
        await asyncio.sleep(0)
        accepting.go_on.set()
        run = await starting
        await draining
        row = house.written().runs[run.id]
        assert (row.state, row.owner, row.deaths) == ("queued", None, 0)
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(run.id)) == "completed"


async def test_b02_a_run_whose_acceptance_nobody_heard_of_is_driven_all_the_same(house: House) -> None:
    agent = house.agent("done")
    plan = FaultPlan().at("accept.after", fault=raise_(OutcomeUnknown("the answer to COMMIT was lost")))
    async with house.life(agent, plan=plan) as life:
        with pytest.raises(OutcomeUnknown):
            await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(await life.rt.find_run("op")) == "completed"


async def test_b02_c_a_cancel_that_comes_before_the_process_heard_of_its_own_claim_counts(house: House) -> None:
    agent, replying = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("accept.after", fault=replying)) as life:
        starting = asyncio.create_task(life.rt.start(agent, "go", session="s", operation_id="op"))
        await replying.reached.wait()
        await (await life.rt.find_run("op")).cancel(by="lee")
        replying.go_on.set()
        assert await rest(await starting) == "cancelled"
    assert house.asked() == []


async def test_b02_c_after_such_a_cancel_no_model_is_asked_for_a_summary_either(house: House) -> None:
    agent, replying = house.agent("done", context=ContextPolicy(budget=4_000, keep=0)), barrier()
    house.answers("long", "as I said before. " * 500)
    async with house.life(agent) as life:
        for _ in range(2):
            await life.rt.run(agent, "long", session="s")
    before = len(house.asked())
    async with house.life(agent, plan=FaultPlan().at("accept.after", fault=replying)) as life:
        starting = asyncio.create_task(life.rt.start(agent, "go", session="s", operation_id="op"))
        await replying.reached.wait()
        await (await life.rt.find_run("op")).cancel(by="lee")
        replying.go_on.set()
        assert await rest(await starting) == "cancelled"
    assert len(house.asked()) == before


@asynccontextmanager
async def queueing(house: House) -> AsyncIterator[tuple[Life, Barrier, Barrier, asyncio.Task[Run]]]:
    """One run is in its tool; another one was accepted behind it, which whoever starts it was not told yet."""
    agent, in_tool, replying = house.agent(LETTER, "done"), barrier(), barrier()
    plan = FaultPlan().at("letter.before", fault=in_tool).at("accept.after", nth=2, fault=replying)
    async with house.life(agent, plan=plan) as life:
        await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_tool.reached.wait()
        starting = asyncio.create_task(life.rt.start(agent, HELLO, session="s", operation_id="op-2"))
        await replying.reached.wait()
        yield life, in_tool, replying, starting


async def test_b02_a_run_whose_turn_comes_before_its_process_heard_of_it_is_driven(house: House) -> None:
    async with queueing(house) as (life, in_tool, replying, starting):
        first = await life.rt.find_run("op")
        in_tool.go_on.set()
        assert await rest(first) == "completed"  # its commit names the second as the next one
        for _ in range(2):
            await life.engine.look()
        replying.go_on.set()
        assert await rest(await starting) == "completed"


async def test_b02_who_waits_for_a_run_that_has_to_queue_hears_of_its_end_in_another_process(house: House) -> None:
    async with queueing(house) as (life, in_tool, replying, starting):
        first = await life.rt.find_run("op")
        found = await life.rt.find_run("op-2")
        waiting = asyncio.create_task(rest(found))
        await turns(lambda: found.id in life.rt._streams._settled)
        replying.go_on.set()
        await starting
        async with Runtime(house.db, clock=house.clock) as other:
            await (await other.find_run("op-2")).cancel(by="lee")
        assert await waiting == "cancelled"
        in_tool.go_on.set()
        assert await rest(first) == "completed"


@pytest.mark.parametrize("leaves", [False, True])
async def test_b02_a_close_in_good_order_leaves_no_claim_behind(house: House, leaves: bool) -> None:
    """Though nobody has heard of it yet, and whoever sent the operation went away."""
    agent = house.agent("done")
    async with house.life(agent) as life:
        starting = asyncio.create_task(life.rt.start(agent, "go", session="s", operation_id="op"))
        await turns(lambda: bool(life.engine._driven))
        if leaves:
            await asyncio.sleep(0)  # it is on its way to the store
            starting.cancel()
        await life.rt.close(0)
        await asyncio.gather(starting, return_exceptions=True)
    (row,) = house.written().runs.values()
    assert (row.state, row.owner, row.deaths) == ("queued", None, 0)
    async with house.life(agent) as life:
        assert await rest(await life.rt.find_run("op")) == "completed"


# --- B3, B4, B5: the model --------------------------------------------------------------------------------------


async def test_the_context_of_a_run_that_has_not_asked_the_model_is_not_there_yet(house: House) -> None:
    agent = house.agent([call("letter", to="kim")], "done")
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=(in_tool := barrier()))) as life:
        first = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_tool.reached.wait()
        queued = await life.rt.start(agent, "go", session="s", operation_id="op-2")
        with pytest.raises(NotFound, match="has not asked the model yet"):
            await life.rt.context(queued.id)
        in_tool.go_on.set()
        assert await rest(first) == await rest(queued) == "completed"


async def test_b03_k_a_claimed_run_is_claimed_again_at_once(house: House) -> None:
    agent = house.agent("done")
    run_id = await house.dies(agent, at="claim.after")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert (await kinds(run))[:5] == ["run.accepted", "run.started", "run.queued", "run.resumed", "step.started"]
    assert len(house.asked()) == 1
    assert house.written().runs[run_id].fence == 3  # claim, taken from the dead, claim


async def test_b03_k_what_was_queued_behind_is_still_queued_behind(house: House) -> None:
    agent = house.agent(LETTER, "done")
    async with house.life(agent, dies_at="letter.before") as life:
        await life.rt.start(agent, "go", session="s", operation_id="op")
        second = await life.rt.start(agent, HELLO, session="s", operation_id="op-2")
        await life.ends(second.result())
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        first, second = await life.rt.find_run("op"), await life.rt.find_run("op-2")
        assert await rest(first) == "waiting"
        assert (await second.refresh()).status == "queued"
        await (await the_ask(first, "unknown_effect")).not_happened(by="lee")
        assert await rest(first) == "completed"
        assert await rest(second) == "completed"
        assert (await first.result()).revision < (await second.result()).revision


@pytest.mark.parametrize("at", ["model.before", "model.delta", "model.after", "answer.before"])
async def test_b04_b05_k_a_lost_answer_is_asked_for_again_with_the_very_same_request(house: House, at: str) -> None:
    agent = house.agent(["I write", *LETTER], "done")
    run_id = await house.dies(agent, at=at)
    assert house.count() == 0  # no write tool starts before its answer is durable
    assert not house.written().effects
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert (await kinds(run)).count("context.built") == 2  # one a step: nothing had to be recorded anew
    first, second = [r for r in house.asked(run_id) if r.step == 0]
    assert first.messages == second.messages  # an hour has passed, and the clock that is shown stands still
    assert first.tools == second.tools
    assert house.count("letter") == 1


async def test_b04_k_code_that_changed_meanwhile_is_recorded_before_the_model_is_asked_again(house: House) -> None:
    old = house.agent("done", instructions="Be brief.")
    run_id = await house.dies(old, at="model.after")
    new = house.agent("done", instructions="Be polite.")
    async with house.life(new) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert (await kinds(run)).count("context.built") == 2
        seen = await life.rt.context(run_id)
        assert seen.matches
        assert seen.definition["instructions"] == "Be polite."
    first, second = house.asked(run_id)
    assert "Be brief." in first.messages[0].text
    assert "Be polite." in second.messages[0].text


async def test_b04_k_a_retry_that_was_waited_for_is_still_due_after_a_crash(house: House) -> None:
    agent = house.agent(lambda r: error("overloaded", retry_after=30.0) if r.attempt == 1 else "done")
    run_id = await house.dies(agent, at="note_down.after", nth=2)  # the failed attempt is recorded
    house.clock.set("2026-01-01T00:00:10Z")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        resting = asyncio.create_task(rest(run))
        await house.clock.wait_for_timers()
        assert len(house.asked(run_id)) == 1
        house.clock.advance(seconds=20)
        assert await resting == "completed"
    assert [r.attempt for r in house.asked(run_id)] == [1, 2]


# --- B6, B7: the answer is durable ------------------------------------------------------------------------------


async def test_b06_k_a_recorded_answer_is_never_asked_for_again_and_its_effects_go_on(house: House) -> None:
    agent = house.agent([call("look", order="1"), call("refund", order="1"), *LETTER], "done")
    run_id = await house.dies(agent, at="answer.after")
    assert house.count() == 0
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("look", "succeeded", 0), ("refund", "succeeded", 1), ("letter", "succeeded", 1)]
    assert [r.step for r in house.asked(run_id)] == [0, 1]
    assert (house.count("look"), house.count("refund"), house.count("letter")) == (1, 1, 1)


@pytest.mark.parametrize("name", ["refund", "letter", "mail"])
async def test_b07_k_a_planned_write_starts_normally_and_nobody_is_asked(house: House, name: str) -> None:
    agent = house.agent([call(name, **({"order": "1"} if name == "refund" else {"to": "kim"}))], "done")
    run_id = await house.dies(agent, at="started.before")
    async with house.life(agent, plan=FaultPlan()) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [(name, "succeeded", 1)]
        assert not await life.rt.asks(run=run_id, state=None)
    assert house.count(name) == 1
    assert "check.before" not in life.plan.passed  # what certainly did not happen is not looked for


# --- B8, B9: the effect -----------------------------------------------------------------------------------------

LOST = pytest.mark.parametrize("at", ["started.after", "outcome.before"], ids=["not_sent", "sent"])


@pytest.mark.parametrize("at", ["look.before", "outcome.before"])
async def test_b08_k_a_read_without_outcome_is_made_again(house: House, at: str) -> None:
    agent = house.agent([call("look", order="1")], "done")
    run_id = await house.dies(agent, at=at)
    before = house.count("look")
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(run_id)) == "completed"
    assert house.count("look") == before + 1


@LOST
async def test_b08_k_an_idempotent_write_is_repeated_with_the_same_key(house: House, at: str) -> None:
    agent = house.agent([call("refund", order="1")], "done")
    run_id = await house.dies(agent, at=at)
    before = house.count("refund")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("refund", "succeeded", 2)]
        assert not await life.rt.asks(run=run_id, state=None)
    assert house.count("refund") == before + 1
    assert len(house.keys("refund")) == 1


@LOST
async def test_b08_k_an_idempotent_write_whose_key_is_too_old_is_unknown(house: House, at: str) -> None:
    agent = house.agent([call("refund", order="1")], "done")
    run_id = await house.dies(agent, at=at)
    before = house.count("refund")
    house.clock.advance(hours=24)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        assert house.count("refund") == before
        ask = await the_ask(run, "unknown_effect")
        assert ask.arguments == {"order": "1"}
        await ask.happened("paid", by="lee")
        assert await rest(run) == "completed"
    assert house.count("refund") == before


async def test_b08_k_the_next_attempt_waits_for_the_deadline_of_the_lost_one(house: House) -> None:
    """Until then the dead may not be dead: a process that was only paused may still send."""
    agent = house.agent([call("refund", order="1")], "done")
    async with house.life(agent, dies_at="started.after") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    house.clock.advance(seconds=59)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        resting = asyncio.create_task(rest(run))
        await house.clock.wait_for_timers()
        assert await states(run) == [("refund", "started", 1)]
        house.clock.advance(seconds=1)
        assert await resting == "completed"
    assert house.count("refund") == 1


async def test_b08_k_check_is_asked_after_the_deadline_and_what_it_found_is_the_outcome(house: House) -> None:
    agent = house.agent([call("mail", to="kim")], "done")
    async with house.life(agent, dies_at="outcome.before") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    house.clock.advance(seconds=59)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        resting = asyncio.create_task(rest(run))
        await house.clock.wait_for_timers()
        assert "check.before" not in life.plan.passed
        house.clock.advance(seconds=1)
        assert await resting == "completed"
        assert await states(run) == [("mail", "succeeded", 1)]
        assert not await life.rt.asks(run=run.id, state=None)
    assert house.count("mail") == 1
    assert "found" in str(house.asked(run.id)[-1].messages[-1].parts)


async def test_b08_k_check_that_finds_nothing_allows_the_next_attempt_with_the_same_key(house: House) -> None:
    agent = house.agent([call("mail", to="kim")], "done")
    run_id = await house.dies(agent, at="started.after")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("mail", "succeeded", 2)]
        assert not await life.rt.asks(run=run_id, state=None)
    assert house.count("mail") == 1


async def test_b08_k_check_that_cannot_tell_hands_it_to_a_person(house: House) -> None:
    def broken(to: str) -> None:
        raise ConnectionError("the mail service is down")

    async def send(to: str) -> str:
        house.happened("?", "send", to=to)
        return "sent"

    house.checked = False  # its effect has no key
    agent = house.agent([call("send", to="kim")], "done", tools=[tool(effect="once", check=broken)(send)])  # type: ignore[arg-type]
    run_id = await house.dies(agent, at="outcome.before")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        assert (await the_ask(run, "unknown_effect")).tool == "send"
        (effect,) = await run.effects()
        assert "the mail service is down" in (effect.reason or "")
    assert house.count("send") == 1


@LOST
async def test_b08_k_a_once_effect_without_check_waits_for_a_person_and_is_not_repeated(house: House, at: str) -> None:
    agent = house.agent(LETTER, "done")
    run_id = await house.dies(agent, at=at)
    before = house.count("letter")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        assert await states(run) == [("letter", "unknown", 1)]
        ask = await the_ask(run, "unknown_effect")
        assert (ask.tool, ask.arguments) == ("letter", {"to": "kim"})
    assert house.count("letter") == before
    assert [r.step for r in house.asked(run_id)] == [0]  # the model is not told a guess


async def test_b08_k_a_person_says_that_it_happened(house: House) -> None:
    agent = house.agent(LETTER, "done")
    run_id = await house.dies(agent, at="outcome.before")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).happened("sent on Monday", "the post book", by="lee")
        assert await rest(run) == "completed"
        assert await states(run) == [("letter", "succeeded", 1)]
    assert house.count("letter") == 1
    assert "sent on Monday" in str(house.asked(run_id)[-1].messages[-1].parts)


async def test_b08_k_a_person_says_that_it_did_not_and_it_runs_with_the_same_key(house: House) -> None:
    agent = house.agent(LETTER, "done")
    run_id = await house.dies(agent, at="started.after")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        (planned,) = await run.effects()
        await (await the_ask(run, "unknown_effect")).not_happened("not in the post book", by="lee")
        assert await rest(run) == "completed"
        assert await states(run) == [("letter", "succeeded", 2)]
    assert house.keys("letter") == {planned.key}


async def test_b08_k_the_attempt_that_a_person_allows_waits_for_the_deadline_of_the_lost_one(house: House) -> None:
    """The person looked too early: until the deadline the lost attempt may still act."""
    agent = house.agent(LETTER, "done")
    async with house.life(agent, dies_at="started.after") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    house.clock.advance(seconds=10)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).not_happened(by="lee")
        resting = asyncio.create_task(rest(run))
        await asyncio.wait({resting, asyncio.create_task(house.clock.wait_for_timers())}, return_when="FIRST_COMPLETED")
        assert house.count("letter") == 0, "it was sent while the lost attempt could still send"
        house.clock.advance(seconds=50)
        assert await resting == "completed"
    assert house.count("letter") == 1


async def test_b08_k_a_person_gives_up_and_the_run_fails(house: House) -> None:
    agent = house.agent(LETTER, "done")
    run_id = await house.dies(agent, at="outcome.before")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).give_up("nobody knows", by="lee")
        assert await rest(run) == "failed"
        assert run.error is not None
        assert run.error["code"] == "unknown_effect"
        assert not run.retryable
        assert await states(run) == [("letter", "unknown", 1)]
    assert house.count("letter") == 1


@pytest.mark.parametrize("name", ["look", "refund", "letter", "mail"])
async def test_b09_k_a_durable_outcome_is_reused_and_never_repeated(house: House, name: str) -> None:
    agent = house.agent([call(name, **({"order": "1"} if name in ("look", "refund") else {"to": "kim"}))], "done")
    run_id = await house.dies(agent, at="outcome.after")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
    assert house.count(name) == 1
    assert f"{name} done" in str(house.asked(run_id)[-1].messages[-1].parts)
    assert [r.step for r in house.asked(run_id)] == [0, 1]


# --- B10, B11: a person -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "revision"), [("suspend.before", 0), ("suspend.after", 1)])
async def test_b10_k_a_suspension_is_whole_or_not_there(house: House, at: str, revision: int) -> None:
    agent = house.agent([call("wire", to="kim")], "done")
    run_id = await house.dies(agent, at=at)
    store = house.written()
    assert store.runs[run_id].state == ("waiting" if revision else "running")
    assert store.sessions["default", "s"].revision == revision
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        assert (await life.rt.get_session("s")).revision == 1
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    assert house.count("wire") == 1


@pytest.mark.parametrize(("at", "state"), [("decide.before", "open"), ("decide.after", "decided")])
async def test_b11_k_a_decision_is_there_or_not_and_acts_once(house: House, at: str, state: str) -> None:
    agent = house.agent([call("wire", to="kim")], "done")
    async with house.life(agent, dies_at=at) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        ask = await the_ask(run)
        await life.ends(ask.approve(by="lee"))
    assert house.count("wire") == 0
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        ask = await life.rt.get_ask(ask.id)
        assert ask.state == state
        await ask.approve(by="lee")  # the person's client did not hear, and says it again
        assert await rest(run) == "completed"
        assert len([act for act in await life.rt.audit() if act.act == "ask.approve"]) == 1
    assert house.count("wire") == 1


async def test_b11_k_a_decision_made_while_the_run_was_driven_is_not_lost_with_the_process(house: House) -> None:
    agent = house.agent([call("wire", to="kim"), call("look", order="1")], "done")
    in_look = barrier()
    async with house.life(agent, plan=FaultPlan().at("look.before", fault=in_look)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_look.reached.wait()
        await (await the_ask(run)).approve(by="lee")
        life.die()  # perhaps before the holder has read it
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        house.clock.advance(hours=1)
        if await rest(run) == "waiting":  # it had been started after all
            await (await the_ask(run, "unknown_effect")).not_happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("wire") == 1


# --- B12, B13: the commit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "revision"), [("commit.before", 0), ("commit.after", 1)])
async def test_b12_k_a_commit_is_whole_or_not_there_and_the_model_is_never_asked_again(
    house: House, at: str, revision: int
) -> None:
    agent = house.agent("done")
    run_id = await house.dies(agent, at=at)
    store = house.written()
    assert store.sessions["default", "s"].revision == revision
    assert (store.runs[run_id].reply is not None) == bool(revision)
    async with house.life(agent) as life:
        result = await (await life.rt.get_run(run_id)).result()
        assert (result.text, result.revision) == ("done", 1)
        assert [m.message.text for m in await (await life.rt.get_session("s")).messages()] == ["go", "done"]
    assert len(house.asked(run_id)) == 1


async def test_b12_a_commit_in_doubt_is_read_back_and_the_model_is_never_asked_again(house: House) -> None:
    agent = house.agent("done")
    plan = FaultPlan().at("commit.after", fault=raise_(OutcomeUnknown("the answer to COMMIT was lost")))
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert (await life.rt.get_session("s")).revision == 1
    assert len(house.asked()) == 1


@pytest.mark.both_stores
@pytest.mark.parametrize("write", ["note_down", "answer", "started", "outcome", "commit"])
async def test_a_write_in_doubt_is_there_once_and_no_process_died_of_it(house: House, write: str) -> None:
    agent = house.agent(LETTER, "done")
    plan = FaultPlan().at(write, when="after", fault=raise_(OutcomeUnknown("the answer to COMMIT was lost")))
    clock = HurriedClock()
    async with house.life(agent, plan=plan, clock=clock) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        if write == "started":  # it may have been sent, and nobody can look
            assert await rest(run) == "waiting"
            await (await the_ask(run, "unknown_effect")).not_happened("not in the ledger", by="lee")
            await clock.wait_for_timers()  # until the deadline of that attempt
            clock.advance(hours=1)
        assert await rest(run) == "completed"
    assert house.count("letter") == 1
    (row,) = house.written().runs.values()
    assert row.deaths == 0
    house.check()


async def test_signals_whose_reading_is_in_doubt_are_read_once(house: House) -> None:
    agent, in_letter = house.agent(LETTER, "done"), barrier()
    plan = FaultPlan().at("letter.after", fault=in_letter)
    plan.at("absorb.after", fault=raise_(OutcomeUnknown("the answer to COMMIT was lost")))
    async with house.life(agent, plan=plan, clock=HurriedClock()) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_letter.reached.wait()
        await run.cancel(by="kim")
        assert await rest(run) == "cancelled"
    house.check()


async def test_b13_k_a_commit_whose_reply_was_lost_answers_the_same_body_for_thirty_days(house: House) -> None:
    agent = house.agent("done")
    run_id = await house.dies(agent, at="commit.after")
    stored = house.written().runs[run_id].reply
    async with house.life(agent) as life:
        for days in (0, 1, 28):
            house.clock.advance(days=days)
            run = await life.rt.start(agent, "go", session="s", operation_id="op")
            assert (await run.result()).body == stored
            assert run.replayed
    assert len(house.asked()) == 1


# --- D: the same operation again, wherever the first one is -----------------------------------------------------

PLACES = {
    "b03": "claim.after", "b04": "model.before", "b05": "answer.before", "b06": "answer.after", "b07": "started.before",
    "b08": "letter.before", "b09": "outcome.after", "b12": "commit.before", "b13": "commit.after",
}  # fmt: skip


@pytest.mark.parametrize("at", PLACES.values(), ids=PLACES.keys())
async def test_d_the_same_id_attaches_wherever_the_run_is(house: House, at: str) -> None:
    agent, place = house.agent(LETTER, "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        first = await life.rt.start(agent, "go", session="s", operation_id="op")
        await place.reached.wait()
        second = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert second.id == first.id
        place.go_on.set()
        assert await rest(first) == await rest(second) == "completed"
        assert (await first.result()).body == (await second.result()).body
    assert house.count("letter") == 1
    assert [r.step for r in house.asked()] == [0, 1]
    assert not life.plan.unreached


async def test_b04_d_who_attaches_sees_every_event_from_its_cursor_on_and_none_twice(house: House) -> None:
    agent, in_model = house.agent(LETTER, "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=in_model)) as life:
        await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_model.reached.wait()
        watching = await life.rt.start(agent, "go", session="s", operation_id="op")
        seen = []
        async for event in watching.events():
            seen.append(event)
            if event.type == "model.started":
                break
        in_model.go_on.set()
        async for event in watching.events(after=seen[-1].id):
            seen.append(event)
        stored = [e for e in seen if e.id]
        assert [e.id for e in stored] == [f"{watching.id}/{n + 1}" for n in range(len(stored))]
        assert seen[-1].type == "run.completed"


async def test_b10_b11_d_while_it_waits_the_same_id_finds_the_same_asks(house: House) -> None:
    agent = house.agent([call("wire", to="kim"), call("wire", to="lee")], "done")
    async with house.life(agent) as life:
        first = await life.rt.start(agent, "go", session="s", operation_id="op")
        with pytest.raises(RunWaiting) as told:
            await first.result()
        again = await life.rt.start(agent, "go", session="s", operation_id="op")
        with pytest.raises(RunWaiting) as told_again:
            await again.result()
        assert told.value.asks == told_again.value.asks
        assert len(told.value.asks) == 2
        assert (await life.rt.get_session("s")).revision == 1


async def test_b08_k_two_tools_of_each_kind_are_each_settled_by_their_own_rule(house: House) -> None:
    agent = house.agent(
        [call("look", order="1"), call("refund", order="1"), call("letter", to="kim"), call("mail", to="kim")], "done"
    )
    plan = FaultPlan()
    gates = {name: barrier() for name in ("look", "refund", "letter", "mail")}
    for name, gate in gates.items():
        plan.at(f"{name}.after", fault=gate)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        for gate in gates.values():
            await gate.reached.wait()
        life.die()
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        assert await states(run) == [
            ("look", "succeeded", 0), ("refund", "succeeded", 2), ("letter", "unknown", 1), ("mail", "succeeded", 1),
        ]  # fmt: skip
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert (house.count("look"), house.count("refund"), house.count("letter"), house.count("mail")) == (2, 2, 1, 1)


def test_the_tools_here_are_of_the_kinds_that_the_names_of_the_tests_say() -> None:
    assert [(t.effect, t.check is not None) for t in (look, refund, letter, mail, wire)] == [
        ("read", False), ("idempotent", False), ("once", False), ("once", True), ("once", False),
    ]  # fmt: skip
    assert refund.timeout == timedelta(seconds=60)
