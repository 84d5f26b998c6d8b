"""Replay: the same input again, in a new run, without doing again what was done.

``op`` is the operation of the run that is replayed; each replay of it is forced by lee where that is needed.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from kit import results

from ondol import By, Context, InvalidInput, NotFound, OperationMismatch, ReplayUnsafe, Run, RunFailed, Runtime, tool
from ondol.testing import FaultPlan, barrier, call, error
from promise.house import HELLO, House, letter, notes, rest, states, the_ask, wire

REFUND, LETTER, LOOK, WIRE = (
    call("refund", order="1"), call("letter", to="kim"), call("look", order="1"), call("wire", to="kim"),
)  # fmt: skip
LEE = By("lee", "the customer asked")


async def ends(life: Any, house: House, *answers: Any, said: str = "go", **options: Any) -> Run:
    """A run of these answers that came to rest."""
    house.answers(said, *answers)
    run = await life.rt.start("a", said, **{"session": "s", "operation_id": "op"} | options)
    await rest(run)
    return run


async def replayed(life: Any, run: Run, **options: Any) -> Run:
    again = await life.rt.replay(run, **options)
    await rest(again)
    return again


async def reused(run: Run) -> list[tuple[str, str, str | None]]:
    return [(e.tool, e.state, e.reuses) for e in await run.effects()]


async def texts(life: Any, session: str) -> list[str]:
    return [m.message.text for m in await (await life.rt.get_session(session)).messages() if m.message.text]


# --- the three verdicts -----------------------------------------------------------------------------------------


async def test_a_run_that_started_no_write_is_safe_and_runs_without_force(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LOOK], error("rejected"))
        verdict = await life.rt.replay(first, dry_run=True)
        assert (verdict.kind, [(e.tool, e.do) for e in verdict.effects]) == ("safe", [("look", "free to repeat")])
        house.answers("go", [LOOK], [LETTER], "done")
        again = await replayed(life, first)
        assert again.status == "completed"
        assert again.id != first.id
        assert again.replay_of == first.id
        assert house.count("look") == 2
        assert house.count("letter") == 1  # as of any other run


async def test_a_dry_run_changes_nothing(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        before = house.written()
        for force in (None, LEE):
            assert (await life.rt.replay(first.id, dry_run=True, force=force)).kind == "guarded"
        assert house.written() == before


async def test_a_run_that_started_writes_needs_force_and_says_so(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        with pytest.raises(ReplayUnsafe, match="force") as refused:
            await life.rt.replay(first)
        assert refused.value.verdict.kind == "guarded"
        assert refused.value.code == "replay_unsafe"
        assert len(await life.rt.runs()) == 1


async def test_who_forced_it_and_why_is_recorded(house: House) -> None:
    async with house.life(house.agent(), door="desk") as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", "done")
        again = await replayed(life, first, force=LEE)
        (act,) = await life.rt.audit()
        assert (act.by, act.door, act.act, act.subject, act.note) == (
            "lee", "desk", "run.replay", first.id, "the customer asked",
        )  # fmt: skip
        (origin,) = [e.data async for e in again.events() if e.type == "run.origin"]
        assert (origin["of"], origin["by"], origin["why"]) == (first.id, "lee", "the customer asked")


async def refused(life: Any, run: Run, words: str) -> None:
    """It is blocked, force or not, and the reason is one of these."""
    for force in (None, LEE):
        with pytest.raises(ReplayUnsafe, match=re.escape(words)) as error:
            await life.rt.replay(run, force=force)
        assert error.value.verdict.kind == "blocked"


async def test_a_run_that_waits_or_is_queued_is_refused_with_the_reason(house: House) -> None:
    async with house.life(house.agent()) as life:
        waiting = await ends(life, house, [WIRE], "done")
        await refused(life, waiting, f"run {waiting.id} is waiting: decide its asks, or cancel it")
        queued = await life.rt.start("a", "go", session="s", operation_id="behind")
        await refused(life, queued, f"run {queued.id} is queued: wait for it, or cancel it")


async def test_a_run_that_is_running_is_refused_with_the_reason(house: House) -> None:
    held = barrier()
    async with house.life(house.agent("done"), plan=FaultPlan().at("model.before", fault=held)) as life:
        run = await life.rt.start("a", "go", session="s", operation_id="op")
        await held.reached.wait()
        await refused(life, run, f"run {run.id} is running: wait for it, or cancel it")
        held.go_on.set()
        assert await rest(run) == "completed"


async def test_a_parked_run_is_refused_with_the_reason(house: House) -> None:
    agent = house.agent("done")
    for _ in range(3):
        await house.dies(agent, "model.before")
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "parked"
        await refused(life, run, f"run {run.id} is parked: resume it, fail it, or cancel it")


def losing(house: House) -> Any:
    """A tool that acts, and then nobody hears of it."""

    @tool
    async def lose(ctx: Any, to: str) -> str:
        house.happened(ctx.idempotency_key, "lose", to=to)
        raise ConnectionError("no answer")

    return lose


async def test_an_unknown_effect_blocks_until_it_is_settled(house: House) -> None:
    agent = house.agent([call("lose", to="kim")], "done", tools=[losing(house)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        await run.cancel(by="lee")
        with pytest.raises(ReplayUnsafe, match="may have happened: settle it") as refused:
            await life.rt.replay(run, force=LEE)
        assert refused.value.verdict.effects[0].do == "blocks until it is settled"
        await (await the_ask(run, "unknown_effect")).happened("sent, says the post office", by="lee")
        again = await replayed(life, run, force=LEE)
        assert again.status == "completed"
        assert house.count("lose") == 1
        (result,) = results(await again.messages())
        assert result.value == "sent, says the post office"


async def test_an_unknown_effect_that_was_given_up_blocks_for_good_and_says_so(house: House) -> None:
    agent = house.agent([call("lose", to="kim")], "done", tools=[losing(house)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).give_up("the post office has closed down", by="lee")
        assert await rest(run) == "failed"
        why = f"whether lose of run {run.id} happened was given up and stays unknown: begin a new run"
        with pytest.raises(ReplayUnsafe, match=why) as refused:
            await life.rt.replay(run, force=LEE)
        assert refused.value.verdict.effects[0].do == "blocks, since it was given up"
        with pytest.raises(ReplayUnsafe, match=why):
            await life.rt.fork(run, at_step=1)


async def test_what_did_not_happen_after_all_asks_first(house: House) -> None:
    @tool
    async def lose(ctx: Any, to: str) -> str:
        raise ConnectionError("no answer")

    agent = house.agent([call("lose", to="kim")], "done", tools=[lose])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await rest(run)
        await run.cancel(by="lee")
        await (await the_ask(run, "unknown_effect")).not_happened(by="lee")
        again = await replayed(life, run, force=LEE)
        assert again.status == "waiting"
        assert (await the_ask(again)).tool == "lose"


async def test_a_run_whose_session_was_erased_is_refused(house: House) -> None:
    async with house.life(house.agent()) as life:
        run = await ends(life, house, [LETTER], "done")
        await (await life.rt.get_session("s")).delete()
        with pytest.raises(ReplayUnsafe, match=f"the input of run {run.id} is gone: its session was deleted"):
            await life.rt.replay(run, force=LEE)
        assert (await life.rt.replay(run, dry_run=True)).kind == "blocked"
    house.checked = False


async def test_a_run_of_another_tenant_is_not_found(house: House) -> None:
    async with house.life(house.agent()) as life:
        run = await ends(life, house, "done")
        for dry_run in (True, False):
            with pytest.raises(NotFound):
                await life.rt.replay(run.id, tenant="other", dry_run=dry_run)


# --- the guard --------------------------------------------------------------------------------------------------


async def test_an_equal_call_gets_the_recorded_outcome_and_touches_nothing(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LOOK, REFUND, LETTER], error("rejected"))
        house.answers("go", [LOOK, REFUND, LETTER], "done")
        again = await replayed(life, first, force=LEE)
        assert again.status == "completed"
        assert (house.count("refund"), house.count("letter")) == (1, 1)
        assert house.count("look") == 2  # a read is free
        mine, theirs = await again.effects(), await first.effects()
        assert await reused(again) == [
            ("look", "succeeded", None),
            ("refund", "succeeded", theirs[1].id),
            ("letter", "succeeded", theirs[2].id),
        ]
        assert [e.attempt for e in mine[1:]] == [0, 0]
        told = {r.name: r.value for r in results(await again.messages())}
        assert told == {r.name: r.value for r in results(await first.messages())}
        assert [e.data.get("by") async for e in again.events() if e.type == "effect.succeeded"].count("recorded") == 2


async def test_a_recorded_success_serves_one_call_and_not_two(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [LETTER, LETTER], [LETTER], "done")
        again = await replayed(life, first, force=LEE)
        assert again.status == "waiting"
        assert [(e.state, e.reuses is not None) for e in await again.effects()] == [
            ("succeeded", True),
            ("asked", False),
        ]
        await (await the_ask(again)).approve(by="lee")
        await rest(again)
        assert again.status == "waiting"  # the third asks too, in its own step
        await (await the_ask(again)).deny(by="lee")
        assert await rest(again) == "completed"
        assert house.count("letter") == 2


async def test_it_serves_one_call_of_a_tool_of_steps_too_also_after_a_wait(house: House) -> None:
    @tool(effect="steps")
    async def task(ctx: Context[House]) -> None:
        for made in (letter, wire, letter):
            await ctx.call(made, to="kim")

    agent = house.agent(tools=[letter, task])
    async with house.life(agent) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [call("task")], "done")
        again = await replayed(life, first, force=LEE)
    async with house.life(agent) as life:
        again = await life.rt.get_run(again.id)
        await (await the_ask(again)).approve(by="lee")
        assert await rest(again) == "waiting"
        assert [(t, s, r is not None) for t, s, r in await reused(again)] == [
            ("task", "planned", False), ("letter", "succeeded", True), ("wire", "succeeded", False),
            ("letter", "asked", False),
        ]  # fmt: skip
        assert house.count("letter") == 1


async def test_two_recorded_successes_serve_two_calls(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER, LETTER], error("rejected"))
        house.answers("go", [LETTER], [LETTER], "done")
        again = await replayed(life, first, force=LEE)
        assert again.status == "completed"
        assert {e.reuses for e in await again.effects()} == {e.id for e in await first.effects()}
        assert house.count("letter") == 2


async def test_any_other_write_asks_a_person_whatever_its_tool_says(house: House) -> None:
    other, keyed = call("letter", to="ana"), call("refund", order="2")
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [other, keyed, LOOK], "done")
        again = await replayed(life, first, force=LEE)
        assert again.status == "waiting"
        asks = await again.asks()
        assert [(a.kind, a.tool) for a in asks] == [("approval", "letter"), ("approval", "refund")]
        assert (await again.effects())[0].decision == (
            f"ask: this is a replay of run {first.id}, in which no equal call succeeded that was not reused yet"
        )
        await asks[0].approve(by="lee")
        await asks[1].deny(by="lee", reason="paid before")
        assert await rest(again) == "completed"
        assert (house.count("letter"), house.count("refund")) == (2, 0)


@pytest.mark.parametrize("how", ["replay", "fork"])
async def test_no_call_is_changed_into_one_that_was_made_before(house: House, how: str) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [WIRE])
        await (await the_ask(first)).approve(by="lee")
        assert await rest(first) == "failed"  # it has no second answer
        house.answers("go", [call("wire", to="ana"), call("wire", to="mia")], "done")
        again = await (life.rt.replay(first, force=LEE) if how == "replay" else life.rt.fork(first, at_step=1))
        assert await rest(again) == "waiting"
        ana, mia = await again.asks()
        with pytest.raises(InvalidInput, match=f"succeeded before .*, and run {again.id} does not make it again"):
            await ana.approve(by="lee", arguments={"to": "kim"})
        await ana.approve(by="lee", arguments={"to": "eva"})
        await mia.deny(by="lee")
        assert await rest(again) == "completed"
    assert [line.arguments["to"] for line in house.ledger] == ["kim", "eva"]


async def test_what_was_approved_in_a_replay_asks_again_when_its_tool_changed(house: House) -> None:
    @tool(effect="once", name="letter")
    async def letter_by_air(ctx: Context[House], to: str, air: bool = True) -> str:
        return await ctx.deps.act(ctx, "letter", to=to, air=air)

    agent = house.agent(tools=[letter])
    async with house.life(agent) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [call("letter", to="lee")], "done")
        again = await replayed(life, first, force=LEE)
    async with house.life(house.agent([call("letter", to="lee")], "done", tools=[letter_by_air])) as life:
        again = await life.rt.get_run(again.id)
        for opened in (1, 0):
            assert house.count("letter") == 1
            await (await the_ask(again)).approve(by="lee")
            assert await rest(again) == ("waiting" if opened else "completed")
    assert house.count("letter") == 2


async def test_a_recorded_failure_serves_none(house: House) -> None:
    from ondol import NotDone

    @tool
    async def fail(to: str) -> str:
        raise NotDone("nobody is at home")

    agent = house.agent(tools=[fail])
    async with house.life(agent) as life:
        first = await ends(life, house, [call("fail", to="kim")], error("rejected"))
        assert (await life.rt.replay(first, dry_run=True)).kind == "guarded"
        assert (await replayed(life, first, force=LEE)).status == "waiting"


async def test_an_outcome_that_a_tool_needs_approval_for_is_reused_without_asking_again(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [WIRE], error("rejected"))
        await (await the_ask(first)).approve(by="lee")
        assert await rest(first) == "failed"
        house.answers("go", [WIRE], "done")
        again = await replayed(life, first, force=LEE)
        assert again.status == "completed"
        assert house.count("wire") == 1


async def test_equal_means_the_arguments_that_were_really_used(house: House) -> None:
    """A person had replaced them."""
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [WIRE], error("rejected"))
        await (await the_ask(first)).approve(by="lee", arguments={"to": "ana"})
        await rest(first)
        house.answers("go", [WIRE, call("wire", to="ana")], "done")
        again = await replayed(life, first, force=LEE)
        assert [(e.state, e.reuses is not None) for e in await again.effects()] == [
            ("asked", False), ("succeeded", True),
        ]  # fmt: skip


async def test_the_patch_of_the_session_state_comes_with_a_reused_outcome(house: House) -> None:
    @tool
    async def enrol(ctx: Any, who: str) -> str:
        ctx.state["enrolled"] = who
        house.happened(ctx.idempotency_key, "enrol", who=who)
        return "enrolled"

    async with house.life(house.agent(tools=[enrol])) as life:
        first = await ends(life, house, [call("enrol", who="kim")], error("rejected"))
        assert (await life.rt.get_session("s")).state == {}
        house.answers("go", [call("enrol", who="kim")], "done")
        assert (await replayed(life, first, force=LEE)).status == "completed"
        assert (await life.rt.get_session("s")).state == {"enrolled": "kim"}
        assert house.count("enrol") == 1


async def test_what_a_call_pinned_comes_with_its_reused_outcome_as_far_as_there_is_room(house: House) -> None:
    @tool
    async def sign(ctx: Context[Any], who: str) -> str:
        ctx.pin(f"{who} has signed")
        house.happened(ctx.idempotency_key, "sign", who=who)
        return "signed"

    async with house.life(house.agent(tools=[sign])) as life:
        first = await ends(life, house, [call("sign", who="kim")], error("rejected"))
        assert (await life.rt.get_session("s")).pins == []
        house.answers("go", [call("sign", who="kim")], "done")
        fork = await life.rt.fork(first, at_step=1)
        assert await rest(fork) == "completed"
        again = await replayed(life, first, force=LEE)
        for run in (fork, again):
            assert [pin.text for pin in (await life.rt.get_session(run.session)).pins] == ["kim has signed"]
            assert "kim has signed" in house.asked(run)[-1].messages[1].text

        full = await ends(life, house, [call("sign", who="lee")], error("rejected"), operation_id="full")
        for n in range(49):
            await life.rt.pin("s", f"rule {n}", by="lee")
        house.explicit["s"] += 49
        house.answers("go", [call("sign", who="lee")], "done")
        assert (await replayed(life, full, force=LEE)).status == "completed"
        assert len((await life.rt.get_session("s")).pins) == 50
    assert house.count("sign") == 2


async def test_a_crash_does_not_use_a_recorded_success_twice(house: House) -> None:
    agent = house.agent([LETTER], error("rejected"))
    async with house.life(agent) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
    house.answers("go", [LETTER], [LETTER], "done")
    async with house.life(agent, dies_at="answer.after") as life:
        await life.ends((await life.rt.replay(first.id, force=LEE, operation_id="again")).result())
    async with house.life(agent) as life:
        again = await life.rt.find_run("again")
        assert await rest(again) == "waiting"
        assert [e.state for e in await again.effects()] == ["succeeded", "asked"]
        assert house.count("letter") == 1


async def test_an_outcome_that_was_erased_meanwhile_is_not_repeated_but_asked_about(house: House) -> None:
    """The replay of a completed run lives in a session of its own, so the first one can be erased under it."""
    held = barrier()
    async with house.life(house.agent(), plan=FaultPlan().at("model.before", nth=3, fault=held)) as life:
        first = await ends(life, house, [LETTER], "done")
        again = await life.rt.replay(first, force=LEE)
        await held.reached.wait()
        await (await life.rt.get_session("s")).delete()
        held.go_on.set()
        assert await rest(again) == "waiting"
        assert "was erased" in ((await again.effects())[0].decision or "")
        assert house.count("letter") == 1
    house.checked = False


# --- the family -------------------------------------------------------------------------------------------------


async def test_a_replay_of_a_replay_is_guarded_by_what_the_first_run_did(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [LETTER], error("rejected"))
        second = await replayed(life, first, force=LEE)
        assert (second.status, house.count("letter")) == ("failed", 1)  # it reused, and started nothing itself
        assert (await life.rt.replay(second, dry_run=True)).kind == "guarded"
        house.answers("go", [LETTER], "done")
        third = await replayed(life, second, force=LEE)
        assert third.status == "completed"
        assert [e.reuses for e in await third.effects()] == [e.id for e in await first.effects()]
        assert house.count("letter") == 1


async def test_a_forced_replay_that_fails_and_is_replayed_again_repeats_neither(house: House) -> None:
    """What the first run did and what the replay did itself, on a person's word: both are there to be reused."""
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [LETTER, REFUND], error("rejected"))
        second = await replayed(life, first, force=LEE)
        await (await the_ask(second)).approve(by="lee")
        assert await rest(second) == "failed"
        house.answers("go", [LETTER, REFUND], "done")
        for of in (first, second):
            verdict = await life.rt.replay(of, dry_run=True)
            assert verdict.reasons == ("2 write effects were started, all settled",)
        third = await replayed(life, first, force=LEE)
        assert third.status == "completed"
        assert (house.count("letter"), house.count("refund")) == (1, 1)


async def test_what_a_replay_did_counts_for_the_run_it_replays(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, error("rejected"))
        house.answers("go", [LETTER], error("rejected"))
        second = await replayed(life, first)
        house.answers("go", [LETTER], "done")
        with pytest.raises(ReplayUnsafe):
            await life.rt.replay(first)
        third = await replayed(life, first, force=LEE)
        assert [e.reuses for e in await third.effects()] == [e.id for e in await second.effects()]
        assert house.count("letter") == 1


async def test_an_unfinished_member_of_the_family_blocks(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, error("rejected"))
        house.answers("go", [WIRE], "done")
        second = await replayed(life, first)
        assert second.status == "waiting"
        with pytest.raises(ReplayUnsafe, match=f"run {second.id} is waiting: decide its asks, or cancel it"):
            await life.rt.replay(first, force=LEE)
        await second.cancel(by="lee")
        house.answers("go", "done")
        assert (await replayed(life, first)).status == "completed"


async def test_two_replays_at_once_are_one(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, error("rejected"))
        house.answers("go", [WIRE], "done")
        replays = [life.rt.replay(first, operation_id=f"again{n}") for n in range(5)]
        made = await asyncio.gather(*replays, return_exceptions=True)
        assert sum(isinstance(m, Run) for m in made) == 1
        assert sum(isinstance(m, ReplayUnsafe) for m in made) == 4
        assert await rest(next(m for m in made if isinstance(m, Run))) == "waiting"


async def test_lineage_is_shown_both_ways(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, error("rejected"))
        second = await replayed(life, first)
        third = await replayed(life, second)
        assert [r.id for r in (await first.lineage()).replays] == [second.id]
        of_second = await second.lineage()
        assert of_second.origin is not None
        assert (of_second.origin.id, [r.id for r in of_second.replays]) == (first.id, [third.id])
        assert (await third.lineage()).origin is not None
        assert ((await first.lineage()).origin, (await first.lineage()).forks) == (None, [])


# --- the run that is replayed -----------------------------------------------------------------------------------


async def test_the_retry_of_a_run_that_was_replayed_does_not_go_on(house: House) -> None:
    """Both would do the rest of the work."""
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("quota"))
        assert first.retryable
        house.answers("go", [LETTER], "done")
        again = await replayed(life, first, force=LEE)
        same = await life.rt.start("a", "go", session="s", operation_id="op")
        assert (same.id, same.status, same.retryable) == (first.id, "failed", False)
        with pytest.raises(RunFailed, match="it will not go on"):
            await same.result()
        assert house.count("letter") == 1
        (gone,) = [e.data async for e in same.events() if e.type == "run.replayed"]
        assert gone["run"] == again.id


async def test_a_replay_that_was_refused_leaves_the_run_as_it_was(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("quota"))
        with pytest.raises(ReplayUnsafe):
            await life.rt.replay(first)
        house.answers("go", [LETTER], "done")
        same = await life.rt.start("a", "go", session="s", operation_id="op")
        assert await rest(same) == "completed"


async def test_every_retryable_member_ends_with_a_replay(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, error("quota"))
        second = await replayed(life, first)
        assert ((await first.refresh()).retryable, second.retryable) == (False, True)
        house.answers("go", "done")
        await replayed(life, first)  # not of the second one
        assert not (await second.refresh()).retryable


async def test_a_retryable_run_resumes_under_its_own_id_at_the_tail(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("quota"))
        waiting = await ends(life, house, [WIRE], "done", said="between", operation_id="between")
        house.answers("go", [LETTER], "done")
        same = await life.rt.start("a", "go", session="s", operation_id="op")
        assert (same.id, same.status) == (first.id, "queued")  # behind what came meanwhile
        await (await the_ask(waiting)).deny(by="lee")
        assert await rest(same) == "completed"
        assert house.count("letter") == 1


# --- its operation ----------------------------------------------------------------------------------------------


async def test_the_same_operation_id_is_the_same_replay(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [LETTER], "done")
        again = await replayed(life, first, force=LEE, operation_id="again")
        for force in (LEE, None):  # it is known, so nobody looks at the verdict
            same = await life.rt.replay(first, force=force, operation_id="again")
            assert (same.id, same.replayed) == (again.id, True)
        assert (await same.result()).body == (await again.result()).body
        for other in (
            life.rt.replay(again, force=LEE, operation_id="again"),
            life.rt.start("a", "x", operation_id="again"),
        ):
            with pytest.raises(OperationMismatch):
                await other


async def test_a_replay_that_failed_for_now_goes_on_with_its_id_and_its_guard(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [LETTER], error("quota"))
        again = await replayed(life, first, force=LEE, operation_id="again")
        assert again.retryable
    house.answers("go", [LETTER], [LETTER], "done")
    async with house.life(house.agent([LETTER], [LETTER], "done")) as life:
        same = await life.rt.replay(first.id, operation_id="again")
        assert await rest(same) == "waiting"  # the success was used up before the failure
        assert same.id == again.id


async def test_the_first_t0_wins_and_a_crash_leaves_all_of_it_or_nothing(house: House) -> None:
    agent = house.agent([LETTER], error("quota"))
    async with house.life(agent) as life:
        first = await ends(life, house, [LETTER], error("quota"))
    async with house.life(agent, dies_at="accept_replay.before") as life:
        await life.ends(life.rt.replay(first.id, force=LEE, operation_id="again"))
    house.answers("go", [LETTER], "done")
    async with house.life(agent, dies_at="accept_replay.after") as life:
        assert len(await life.rt.runs()) == 1
        await life.ends(life.rt.replay(first.id, force=LEE, operation_id="again"))
    async with house.life(agent) as life:
        same = await life.rt.replay(first.id, force=LEE, operation_id="again")
        assert await rest(same) == "completed"
        assert len(await life.rt.runs()) == 2


# --- where it runs, and with what -------------------------------------------------------------------------------


async def test_a_failed_run_is_replayed_in_its_session_at_the_tail(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, error("rejected"))
        await ends(life, house, [WIRE], "then", said="between", operation_id="between")
        house.answers("go", "done")
        again = await life.rt.replay(first)
        assert (again.session, again.status) == ("s", "queued")
        await (await the_ask(await life.rt.find_run("between"))).deny(by="lee")
        assert await rest(again) == "completed"
        assert (await texts(life, "s"))[-2:] == ["go", "done"]
        assert "then" in [m.text for m in house.requests[-1].messages]


async def test_a_completed_run_is_replayed_in_a_session_that_goes_on_from_before_it(house: House) -> None:
    async with house.life(house.agent()) as life:
        await ends(life, house, "before it", said="one", operation_id="one")
        first = await ends(life, house, [LETTER], "done")
        await ends(life, house, "after it", said="three", operation_id="three")
        revision = (await life.rt.get_session("s")).revision
        house.answers("go", [LETTER], "done anew")
        again = await replayed(life, first, force=LEE)
        assert again.status == "completed"
        assert again.session != "s"
        assert await texts(life, again.session) == ["one", "before it", "go", "done anew"]
        seen = [m.text for m in house.asked(again)[0].messages[1:]]
        assert seen == ["one", "before it", "go"]
        assert (await life.rt.get_session("s")).revision == revision
        assert (await texts(life, "s"))[-1] == "after it"
        assert (await life.rt.get_session(again.session)).parent == "s"
        for step in (1, 2):
            assert (await life.rt.context(again.id, step)).matches
        # It is a session like any other, and its sequences go on from where it branched off.
        await ends(life, house, HELLO, said=HELLO, operation_id="next", session=again.session)
        messages = await (await life.rt.get_session(again.session)).messages()
        assert [m.seq for m in messages] == sorted({m.seq for m in messages})
        pages = await (await life.rt.get_session(again.session)).messages(limit=3)
        pages += await (await life.rt.get_session(again.session)).messages(after=pages[-1].seq)
        assert pages == messages
    async with house.life(house.agent()) as life:  # nothing of it was only in memory
        assert await (await life.rt.get_session(again.session)).messages() == messages
        await ends(life, house, HELLO, said=HELLO, operation_id="last", session=again.session)
        assert [m.text for m in house.requests[-1].messages[1:]][:4] == ["one", "before it", "go", ""]


async def test_a_replay_of_a_replay_of_a_completed_run_goes_on_from_both_sessions(house: House) -> None:
    async with house.life(house.agent()) as life:
        await ends(life, house, "before it", said="one", operation_id="one")
        first = await ends(life, house, "done")
        second = await replayed(life, first)
        third = await replayed(life, second)
        assert len({first.session, second.session, third.session}) == 3
        assert await texts(life, third.session) == ["one", "before it", "go", "done"]
        await ends(life, house, "more", said="more", operation_id="more", session=second.session)
        assert await texts(life, third.session) == ["one", "before it", "go", "done"]


async def test_the_session_state_of_then_is_what_a_replay_in_a_new_session_begins_with(house: House) -> None:
    @tool(effect="read")
    async def count(ctx: Any) -> str:
        house.happened(ctx.idempotency_key, "count")
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        return str(ctx.state["n"])

    counting = ([call("count")], "counted")
    async with house.life(house.agent(tools=[count])) as life:
        await ends(life, house, *counting, said="one", operation_id="one")
        first = await ends(life, house, *counting)
        await ends(life, house, *counting, said="three", operation_id="three")
        assert (await life.rt.get_session("s")).state == {"n": 3}
        again = await replayed(life, first)
        assert (await life.rt.get_session(again.session)).state == {"n": 2}
        assert (await life.rt.get_session("s")).state == {"n": 3}


@pytest.mark.both_stores
async def test_what_was_written_by_hand_since_is_not_in_a_replay_in_a_new_session(house: House) -> None:
    @tool(effect="read")
    async def count(ctx: Any) -> str:
        house.happened(ctx.idempotency_key, "count")
        ctx.state["n"] = ctx.state["n"] + 1
        ctx.pin(f"n was {ctx.state['n']}")
        return "counted"

    counting = ([call("count")], "counted")
    async with house.life(house.agent(tools=[count])) as life:

        async def there(session: str) -> tuple[Any, list[str], str | None]:
            found = await life.rt.get_session(session)
            return found.state, [pin.text for pin in found.pins], found.time_zone

        async def write(n: int, zone: str) -> None:
            """Each of it more than once: then is what the last one left, and the first of the next found."""
            for more in (-1, n):
                await life.rt.write_session("s", state={"n": more}, time_zone=zone)
                session = await life.rt.pin("s", f"rule {n} {more}", by="lee")
            await life.rt.unpin("s", session.pins[0].id, by="lee")
            house.explicit["s"] += 5

        runs: list[tuple[Run, Any]] = []
        for said, answers, zone in [
            ("one", counting, "Asia/Seoul"), ("two", ["done"], "Europe/Paris"), ("three", counting, ""),
            ("four", counting, "UTC"),
        ]:  # fmt: skip
            if zone:
                await write(10 * len(runs), zone)
            then = await there("s")
            runs.append((await ends(life, house, *answers, said=said, operation_id=said), then))
        await write(40, "Asia/Tokyo")
        assert [then[0]["n"] for _, then in runs] == [0, 10, 10, 30]
        now = await there("s")
        for run, then in runs:
            house.answers(run.operation_id, "done")
            again = await replayed(life, run)
            assert await there(again.session) == then, run.operation_id
            await life.rt.write_session(again.session, state={"n": -1})
            await life.rt.pin(again.session, "later", by="lee")
            house.explicit[again.session] += 2
            below = await replayed(life, again)
            assert await there(below.session) == then, run.operation_id
        assert await there("s") == now


async def test_when_the_first_session_is_erased_the_new_one_lacks_that_part_and_says_so(house: House) -> None:
    async with house.life(house.agent()) as life:
        await ends(life, house, "before it", said="one", operation_id="one")
        first = await ends(life, house, "done")
        again = await replayed(life, first)
        below = await replayed(life, again)
        await (await life.rt.get_session("s")).delete()
        for run in (again, below):
            assert await texts(life, run.session) == ["go", "done"][: 2 if run is again else 4]
            await ends(life, house, HELLO, said=HELLO, operation_id=run.id, session=run.session)
            assert "before it" not in [m.text for m in house.requests[-1].messages]  # nor in this process's memory
        orphan = await life.rt.get_session(again.session)
        assert (orphan.parent, orphan.orphaned) == (None, True)
        lower = await life.rt.get_session(below.session)
        assert (lower.parent, lower.orphaned) == (again.session, True)
        lowest = await replayed(life, below)  # made when that part was gone already
        assert (await life.rt.get_session(lowest.session)).orphaned
        for run in (again, below, lowest):
            seen = await life.rt.context(run.id, 1)
            assert (seen.matches, seen.incomplete) == (run is lowest, True)
    house.checked = False


async def test_a_deleted_session_that_went_on_from_another_begins_anew_with_nothing(house: House) -> None:
    async with house.life(house.agent()) as life:
        await ends(life, house, "before it", said="one", operation_id="one")
        first = await ends(life, house, "done")
        again = await replayed(life, first)
        house.answers("go", error("rejected"))
        unanswered = await life.rt.fork(first, at_step=1)
        await rest(unanswered)
        for run in (again, unanswered):
            await (await life.rt.get_session(run.session)).delete()
            await ends(life, house, HELLO, said=HELLO, operation_id=f"to {run.id}", session=run.session)
            assert await texts(life, run.session) == [HELLO, HELLO]
            assert [m.text for m in house.requests[-1].messages][1:] == [HELLO]
            assert (await life.rt.get_session(run.session)).parent is None
    house.checked = False


async def test_attachments_come_from_the_store_when_the_files_are_gone(house: House, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.txt"
    receipt.write_text("1182")
    async with house.life(house.agent()) as life:
        first = await ends(life, house, error("rejected"), attachments=[receipt])
        receipt.unlink()
        house.answers("go", "done")
        again = await replayed(life, first)
        (attached,) = [p for m in house.asked(again)[0].messages for p in m.parts if hasattr(p, "digest")]
        assert await life.rt.get_blob(attached.digest) == b"1182"


async def test_an_attachment_of_a_replay_outlives_the_session_it_came_from(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, "done", attachments=[b"1182"])
        again = await replayed(life, first)
        await (await life.rt.get_session("s")).delete()
        house.clock.advance(hours=48)
        await life.rt._working.collect_blobs()
        (attached,) = [p for m in await again.messages() for p in m.parts if hasattr(p, "digest")]
        assert await life.rt.get_blob(attached.digest) == b"1182"
    house.checked = False


async def test_it_has_the_user_and_the_zone_of_the_run_and_any_process_may_ask_for_it(house: House) -> None:
    agent = house.agent()
    async with house.life(agent) as life:
        first = await ends(life, house, error("rejected"), user="kim", time_zone="Asia/Seoul")
    async with Runtime(house.db, clock=house.clock) as nobody:  # it has no agent
        again = await nobody.replay(first.id)
        assert (again.user, again.time_zone, again.agent, again.status) == ("kim", "Asia/Seoul", "a", "queued")
    house.answers("go", "done")
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(again.id)) == "completed"


async def test_the_replay_is_told_of_the_run_it_replays_as_any_later_turn_is(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [LETTER], "done")
        again = await replayed(life, first, force=LEE)
        (note,) = notes(house.asked(again)[0])
        assert "letter" in note
        house.answers(HELLO, "hello to you")
        next_run = await ends(life, house, "hello to you", said=HELLO, operation_id="next")
        assert notes(house.asked(next_run)[0]) == [note]  # once, as history


async def test_a_replay_that_is_cancelled_tells_only_what_it_did_itself(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [LETTER, REFUND], "done")
        again = await replayed(life, first, force=LEE)
        await again.cancel(by="lee")
        assert await states(again) == [("letter", "succeeded", 0), ("refund", "abandoned", 0)]
        next_run = await ends(life, house, "hello to you", said=HELLO, operation_id="next")
        (note,) = notes(house.asked(next_run)[0])
        assert note.count("letter(") == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "write", ["accept_replay", "claim", "note_down", "answer", "decide", "started", "outcome", "commit"]
)
async def test_a_crash_at_any_write_of_a_guarded_replay_repeats_nothing(house: House, write: str, when: str) -> None:
    """It reuses a letter, and makes a refund that a person allowed: once each, whatever the process died at."""
    agent = house.agent([LETTER], error("rejected"))
    async with house.life(agent) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
    house.answers("go", [LETTER, REFUND], "done")

    async def through(life: Any) -> None:
        again = await life.rt.replay(first.id, force=LEE, operation_id="again")
        if await rest(again) == "waiting":
            await (await the_ask(again)).approve(by="lee")
            await rest(again)

    async with house.life(agent, dies_at=f"{write}.{when}") as life:
        await life.ends(through(life))
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        await through(life)
        again = await life.rt.find_run("again")
        assert await rest(again) == "completed"
        assert [e.state for e in await again.effects()] == ["succeeded", "succeeded"]
        assert (house.count("letter"), len(house.keys("refund"))) == (1, 1)
