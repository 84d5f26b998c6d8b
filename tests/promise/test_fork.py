"""Fork: a new session that goes on from a step of a run that has ended."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import behind
import pytest
from kit import results

from ondol import By, Context, InvalidInput, Limits, OperationMismatch, ReplayUnsafe, Run, tool
from ondol.testing import FaultPlan, barrier, call, error
from promise.house import HELLO, HELLO_BACK, House, letter, notes, rest, the_ask, wire

REFUND, LETTER, LOOK, WIRE = (
    call("refund", order="1"), call("letter", to="kim"), call("look", order="1"), call("wire", to="kim"),
)  # fmt: skip
MORE = "and a stamp"


async def ends(life: Any, house: House, *answers: Any, said: str = "go", **options: Any) -> Run:
    house.answers(said, *answers)
    run = await life.rt.start("a", said, **{"session": "s", "operation_id": "op"} | options)
    await rest(run)
    return run


async def forked(life: Any, run: Run, at_step: int, **options: Any) -> Run:
    fork = await life.rt.fork(run, at_step=at_step, **options)
    await rest(fork)
    return fork


async def test_the_steps_before_are_shared_and_the_model_goes_on_from_there(house: House) -> None:
    async with house.life(house.agent()) as life:
        await ends(life, house, "before it", said="one", operation_id="one")
        first = await ends(life, house, [LOOK], [LETTER], "done")
        asked = len(house.requests)
        house.answers("go", [LOOK], [LETTER], "done anew")
        fork = await forked(life, first, 3)
        assert (fork.status, (await fork.result()).text) == ("completed", "done anew")
        assert len(house.requests) == asked + 1  # of the shared steps none was asked for again
        assert (house.count("look"), house.count("letter")) == (1, 1)
        assert fork.session != "s"
        assert (fork.replay_of, fork.forked_at) == (first.id, 3)
        assert [f.id for f in (await first.lineage()).forks] == [fork.id]
        said = [m.message.text for m in await (await life.rt.get_session(fork.session)).messages() if m.message.text]
        assert said == ["one", "before it", "go", "done anew"]
        request = house.asked(fork)[0]
        assert [r.name for r in results(request.messages)] == ["look", "letter"]
        assert [e.reuses for e in await fork.effects()] == [e.id for e in await first.effects()]
        for step in (1, 2, 3):
            assert (await life.rt.context(fork.id, step)).matches
        assert (await life.rt.get_session("s")).revision == 2
        (answered,) = [e.data async for e in fork.events() if e.type == "model.completed" and e.data["step"] == 3]
        assert fork.tokens == (answered["input"], answered["output"])  # of its own step: the rest was paid for


async def test_a_later_write_that_is_equal_reuses_its_outcome_and_another_one_is_made(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LOOK], [LETTER], "done")
        house.answers("go", [LOOK], [LETTER, LETTER, REFUND], "done")
        fork = await forked(life, first, 2)
        assert fork.status == "completed"
        (theirs,) = [e.id for e in await first.effects() if e.tool == "letter"]
        assert [e.reuses for e in await fork.effects()][1:] == [theirs, None, None]
        assert (house.count("letter"), house.count("refund")) == (2, 1)


async def test_what_a_shared_tool_of_steps_did_serves_no_later_call(house: House) -> None:
    @tool(effect="steps")
    async def task(ctx: Context[House]) -> str:
        return await ctx.call(letter, to="kim")

    async with house.life(house.agent(tools=[letter, task])) as life:
        first = await ends(life, house, [call("task")], "done")
        house.answers("go", [call("task")], [LETTER], "done")
        fork = await forked(life, first, 2)
        assert fork.status == "completed"
        assert [e.reuses for e in await fork.effects()] == [*(e.id for e in await first.effects()), None]
        assert house.count("letter") == 2


@pytest.mark.parametrize("how", ["by a message", "by default"])
async def test_a_shared_question_is_shared_with_its_answer(house: House, how: str) -> None:
    @tool(effect="steps")
    async def task(ctx: Context[House]) -> str:
        await ctx.call(letter, to="kim")
        sure = await ctx.ask("Sure?", schema=bool, default=True, expires=timedelta(hours=1))
        return await ctx.call(letter, to="lee") if sure else "no"

    agent = house.agent([call("task")], "done", tools=[task])
    async with house.life(agent) as life:
        first = await ends(life, house, [call("task")], "done")
        assert first.status == "waiting"
        if how == "by a message":
            assert (await life.rt.start(agent, "yes", session="s")).status == "joined"
        else:
            house.clock.advance(hours=2)
        assert (await first.result(through_asks=True)).text == "done"
        fork = await forked(life, first, 2)
        assert fork.status == "completed"
        asked = [e.data async for e in fork.events() if e.type in ("ask.opened", "ask.decided", "ask.expired")]
        assert [(e.get("place"), e.get("value")) for e in asked] == [(1, None), (None, True)]
        assert [e.reuses for e in await fork.effects()] == [e.id for e in await first.effects()]
        assert house.count("letter") == 2


async def test_a_stub_touches_nothing_and_says_so(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LOOK], [LETTER], "done")
        house.answers("go", [LOOK], [LETTER, REFUND, WIRE, LOOK], "done")
        fork = await forked(life, first, 2, effects="stub")
        assert fork.status == "completed"
        assert (house.count("letter"), house.count("refund"), house.count("wire")) == (1, 0, 0)
        made_up = [r for r in results(await fork.messages()) if "made up" in r.text]
        assert [r.name for r in made_up] == ["letter", "refund", "wire"]
        assert house.count("look") == 2


async def test_what_was_made_up_is_not_told_as_done(house: House) -> None:
    @tool(effect="steps")
    async def task(ctx: Context[House]) -> str:
        return str(1 / len((await ctx.call(letter, to="kim"))[99:]))

    async with house.life(house.agent(tools=[task])) as life:
        first = await ends(life, house, [call("task")], "done")
        said = []
        for effects in ("stub", "reuse"):
            fork = await forked(life, first, 1, effects=effects)
            (result,) = results(house.asked(fork)[-1].messages)
            said.append(result.text)
    assert said == ["ZeroDivisionError: division by zero", "ZeroDivisionError: division by zero (done by then: letter)"]


async def test_really_running_a_write_asks_first(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LOOK], [LETTER], "done")
        fork = await forked(life, first, 2, effects="run")
        assert fork.status == "waiting"
        await (await the_ask(fork)).approve(by="lee")
        assert await rest(fork) == "completed"
        assert house.count("letter") == 2


async def test_a_run_that_failed_is_forked_behind_its_last_step(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], error("rejected"))
        house.answers("go", [LETTER], "done")
        fork = await forked(life, first, 2)
        assert (fork.status, house.count("letter")) == ("completed", 1)
        assert (await life.rt.get_session("s")).revision == 1


async def test_a_note_that_a_fork_shares_is_still_told_in_the_session_that_it_is_about(house: House) -> None:
    async with house.life(house.agent()) as life:
        await ends(life, house, [LETTER], error("rejected"), said="write", operation_id="one")
        told = await ends(life, house, [LOOK], error("rejected"))
        assert any("letter" in note for note in notes(house.asked(told)[0]))
        house.answers("go", [LOOK], "done")
        fork = await forked(life, told, 2)
        assert fork.status == "completed"
        assert any("letter" in note for note in notes(house.asked(fork)[0]))
        later = await ends(life, house, "done", said="later", operation_id="later")
        assert any("letter" in note for note in notes(house.asked(later)[0]))  # no turn here has committed it


async def test_the_first_step_shares_only_the_input(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], "done")
        fork = await forked(life, first, 1)
        assert (fork.status, house.count("letter")) == ("completed", 1)  # equal: reused


async def test_only_steps_that_there_are_can_be_forked_at(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], "done")
        for step in (0, 3, -1, 2**70):
            with pytest.raises(InvalidInput, match="say 1 to 2"):
                await life.rt.fork(first, at_step=step)
        for bad in ({"at_step": True}, {"at_step": "2"}, {"at_step": 1, "effects": "all"}):
            with pytest.raises(InvalidInput):
                await life.rt.fork(first, **bad)


async def test_what_is_unfinished_unknown_or_erased_is_refused(house: House) -> None:
    @tool
    async def lose(ctx: Any) -> str:
        house.happened(ctx.idempotency_key, "lose")
        raise ConnectionError("no answer")

    async with house.life(house.agent(tools=[lose])) as life:
        run = await ends(life, house, [call("lose")], "done")
        with pytest.raises(ReplayUnsafe, match="is waiting: decide its asks"):
            await life.rt.fork(run, at_step=1)
        await run.cancel(by="lee")
        with pytest.raises(ReplayUnsafe, match="may have happened: settle it"):
            await life.rt.fork(run, at_step=1)
        await (await the_ask(run, "unknown_effect")).happened("sent", by="lee")
        assert (await forked(life, run, 2)).status == "completed"
        await (await life.rt.get_session("s")).delete()
        with pytest.raises(ReplayUnsafe, match="its session was deleted"):
            await life.rt.fork(run, at_step=1)
    house.checked = False


async def test_a_fork_survives_the_deletion_of_its_original(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], "done", attachments=[b"1182"])
        fork = await forked(life, first, 2)
        await (await life.rt.get_session("s")).delete()
        assert [r.name for r in results(await fork.messages())] == ["letter"]
        house.answers(HELLO, "hello to you")
        more = await life.rt.run("a", HELLO, session=fork.session, operation_id="more")
        assert more.text == "hello to you"
    house.checked = False


async def test_what_a_fork_did_counts_for_a_replay(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, error("rejected"))
        house.answers("go", [LETTER], "done")
        fork = await forked(life, first, 1)
        with pytest.raises(ReplayUnsafe):
            await life.rt.replay(first)
        again = await life.rt.replay(first, force=By("lee", "again"))
        assert await rest(again) == "completed"
        assert [e.reuses for e in await again.effects()] == [e.id for e in await fork.effects()]
        assert house.count("letter") == 1


async def test_the_verdict_over_a_fork_promises_no_outcome_of_a_failure(house: House) -> None:
    @tool(effect="once", not_done=(ValueError,))
    async def fails(ctx: Context[House]) -> str:
        raise ValueError("refused")

    async with house.life(house.agent(tools=[fails, letter])) as life:
        first = await ends(life, house, [call("fails"), LETTER], "done")
        fork = await forked(life, first, 2)
        verdict = await life.rt.replay(fork, dry_run=True)
        failed, sent = await first.effects()
        assert [(e.tool, e.do) for e in verdict.effects if e.run == fork.id] == [
            ("fails", "was never started, any fails asks first"),
            ("letter", f"an equal call gets the outcome of {sent.id}, any other letter asks first"),
        ]
        assert failed.state == "failed"


async def test_a_denied_and_an_edited_call_are_shared_as_they_were(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [WIRE, WIRE], "done")
        one, two = await first.asks()
        await one.deny(by="lee", reason="too much")
        await two.approve(by="lee", arguments={"to": "ana"})
        assert await rest(first) == "completed"
        fork = await forked(life, first, 2)
        assert [(e.state, e.arguments) for e in await fork.effects()] == [
            ("denied", {"to": "kim"}), ("succeeded", {"to": "ana"}),
        ]  # fmt: skip


async def test_the_session_state_of_the_shared_steps_is_the_forks(house: House) -> None:
    @tool
    async def enrol(ctx: Any, who: str) -> str:
        house.happened(ctx.idempotency_key, "enrol", who=who)
        ctx.state["who"] = [*ctx.state.get("who", ()), who]
        return "enrolled"

    async with house.life(house.agent(tools=[enrol])) as life:
        await ends(life, house, [call("enrol", who="ana")], "done", said="one", operation_id="one")
        first = await ends(life, house, [call("enrol", who="kim")], "done")
        fork = await forked(life, first, 2)
        for session in ("s", fork.session):
            assert (await life.rt.get_session(session)).state == {"who": ["ana", "kim"]}


@pytest.mark.both_stores
@tool
async def enrol(ctx: Context[House], who: str) -> str:
    ctx.deps.happened(ctx.idempotency_key, "enrol", who=who)
    ctx.state["who"] = [*ctx.state.get("who", ()), who]
    ctx.pin(f"{who} is in")
    return "enrolled"


@pytest.mark.parametrize("end", ["done", error("rejected")])
async def test_what_was_written_by_hand_since_is_not_in_a_fork(house: House, end: Any) -> None:
    async with house.life(house.agent(tools=[enrol])) as life:
        await life.rt.write_session("s", state={"of": "then"})
        await life.rt.pin("s", "of then", by="lee")
        first = await ends(life, house, [call("enrol", who="kim")], end)
        await life.rt.write_session("s", state={"of": "now"})
        await life.rt.unpin("s", "p1", by="lee")
        house.explicit["s"] = 4
        house.answers("go", [call("enrol", who="kim")], "done")
        fork = await forked(life, first, 2)
        session = await life.rt.get_session(fork.session)
        assert session.state == {"of": "then", "who": ["kim"]}
        assert [pin.text for pin in session.pins] == ["of then", "kim is in"]


@pytest.mark.both_stores
async def test_a_commit_keeps_what_it_changed_of_the_session_state_and_not_all_of_it(house: House) -> None:
    """C23: else each turn would cost as much as all that the session holds."""

    @tool
    async def edit(ctx: Context[House], sets: dict[str, Any], drops: list[str]) -> str:
        ctx.deps.happened(ctx.idempotency_key, "edit", sets=sets, drops=drops)
        ctx.state.update(sets)
        for key in drops:
            del ctx.state[key]
        return "edited"

    changes: list[tuple[dict[str, Any], list[str]]] = [
        ({"book": "word " * 500, "n": 1}, []), ({"n": 2, "of": {"a": 1}}, []), ({"n": 3}, ["of"]),
        ({"book": "again"}, ["n"]), ({"of": {"b": [1]}, "n": 5}, []),
    ]  # fmt: skip
    runs, states = list[Run](), [dict[str, Any]()]
    async with house.life(house.agent(tools=[edit])) as life:
        for turn, (sets, drops) in enumerate(changes):
            if turn == 3:
                states[-1] |= {"by": "hand", "book": "of hand"}
                await life.rt.write_session("s", state=states[-1])  # the runs before it are undone from the one of then
                house.explicit["s"] = 1
            asked = call("edit", sets=sets, drops=drops)
            runs.append(await ends(life, house, [asked], "done", said=f"go {turn}", operation_id=f"{turn}"))
            states.append(dict((await life.rt.get_session("s")).state))
        assert "of" not in states[3]
        kept = behind.execute(house.db, "SELECT state_before FROM runs WHERE state_before IS NOT NULL ORDER BY place")
        assert all(len(row[0]) < 100 for row in kept), kept
        assert len(kept) == len(runs)
        for turn, (run, before) in enumerate(zip(runs, states, strict=False)):
            house.answers(f"go {turn}", "done")
            fork = await forked(life, run, 1)
            assert (await life.rt.get_session(fork.session)).state == before


@pytest.mark.both_stores
async def test_a_fork_of_a_run_that_went_on_after_others_begins_with_what_it_began_with_before_them(
    house: House,
) -> None:
    async with house.life(house.agent(tools=[enrol])) as life:
        await life.rt.write_session("s", state={"of": "then"})
        await life.rt.pin("s", "of then", by="lee")
        first = await ends(life, house, error("auth"))
        assert first.retryable
        await life.rt.write_session("s", state={"of": "later"})
        await ends(life, house, [call("enrol", who="kim")], "done", said="other", operation_id="other")
        await life.rt.unpin("s", "p1", by="lee")
        house.explicit["s"] = 4
        house.answers("go", error("rejected"))
        await rest(await life.rt.resume(first))
        house.answers("go", "done")
        session = await life.rt.get_session((await forked(life, first, 1)).session)
        assert (session.state, [pin.text for pin in session.pins]) == ({"of": "then"}, ["of then"])
        assert [m.message.text for m in await session.messages()] == ["go", "done"]


@pytest.mark.both_stores
async def test_a_fork_of_a_run_that_never_began_begins_with_all_that_is_there_now(house: House) -> None:
    async with house.life(house.agent(tools=[enrol, wire])) as life:
        waiting = await ends(life, house, [WIRE], [call("enrol", who="kim")], "done")
        queued = await life.rt.start("a", HELLO, session="s", operation_id="queued")
        await queued.cancel(by="lee")
        await (await the_ask(waiting)).approve(by="lee")
        assert (await waiting.result(through_asks=True)).text == "done"
        await life.rt.write_session("s", state={"of": "now"})
        await life.rt.pin("s", "of now", by="lee")
        house.explicit["s"] = 2
        fork = await forked(life, queued, 1)
        session = await life.rt.get_session(fork.session)
        assert (session.state, [pin.text for pin in session.pins]) == ({"of": "now"}, ["kim is in", "of now"])
        said = [m.message.text for m in await session.messages() if m.message.text]
        assert said[-3:] == ["done", HELLO, HELLO_BACK]


async def test_a_fork_of_a_fork_and_the_same_operation_again(house: House) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LETTER], [REFUND], "done")
        fork = await forked(life, first, 2, operation_id="f")
        below = await forked(life, fork, 3)
        assert (below.status, house.count("letter"), house.count("refund")) == ("completed", 1, 1)
        same = await life.rt.fork(first, at_step=2, operation_id="f")
        assert (same.id, same.replayed) == (fork.id, True)
        with pytest.raises(OperationMismatch):
            await life.rt.fork(first, at_step=1, operation_id="f")


def said(run: Run, house: House) -> list[str]:
    """The texts that the model was asked and answered with in the last request of the run."""
    messages = house.asked(run)[-1].messages
    return [m.text for m in messages if m.role in ("user", "assistant") and m.text and m.origin is None]


@pytest.mark.parametrize(
    ("at", "joins", "step"), [("claim.after", 1, 1), ("commit.before", 3, 2), ("commit.before", 3, 3)]
)
async def test_what_joined_before_the_first_or_after_a_final_answer_is_part_of_the_fork(
    house: House, at: str, joins: int, step: int
) -> None:
    for asked in ("go", MORE):
        house.answers(asked, [LETTER], "done", "done")
    place = barrier()
    plan = FaultPlan().at(at, fault=place)
    async with house.life(house.agent([LETTER], "done", "done"), plan=plan) as life:
        host = await life.rt.start("a", "go", session="s", operation_id="op")
        await place.reached.wait()
        await life.rt.start("a", MORE, session="s", operation_id="more", if_busy="steer")
        place.go_on.set()
        assert await rest(host) == "completed"
        fork = await forked(life, host, step)
        below = await forked(life, fork, step)
        for run in (fork, below):
            assert (run.status, house.count("letter")) == ("completed", 1)
            assert (MORE in said(run, house)) == (joins <= step)
            assert house.asked(run)[0].step == step - 1  # it was asked, whatever the host had answered before
            assert (await life.rt.context(run.id, step)).matches


async def test_tokens_cost_and_time_of_the_shared_steps_are_not_the_forks(house: House, tmp_path: Path) -> None:
    @tool
    async def dig(ctx: Context[House], where: str) -> str:
        house.happened(ctx.idempotency_key, "dig", where=where)
        house.clock.advance(seconds=50)
        return "dug"

    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\n[models.script]\ninput = 1\noutput = 1\n')
    limits = Limits(tool_time=timedelta(seconds=60), wall=timedelta(seconds=60))
    async with house.life(house.agent(tools=[dig], limits=limits)) as life:
        first = await ends(life, house, [call("dig", where="here")], "done")
        house.clock.advance(hours=1)
        house.answers("go", [call("dig", where="here")], [call("dig", where="there")], "done")
        fork = await forked(life, first, 2)
        assert fork.status == "completed"  # its own 50 seconds, not 100
        state = house.written().state(fork.id)
        assert (state.worked, state.in_tools) == (50_000_000, 50_000_000)
        told = [e.data async for e in fork.events() if e.type == "model.completed"]
        own = {n: sum(d[n] for d in told if d["step"] > 1) for n in ("input", "output")}
        assert not any("input" in d or "output" in d for d in told if d["step"] == 1)
        (line,) = [u for u in await life.rt.usage(by="session", prices=prices) if u.key == fork.session]
        assert (line.tokens.calls, line.tokens.input, line.tokens.output) == (2, own["input"], own["output"])
        assert line.cost is not None
        assert line.cost * 1_000_000 == own["input"] + own["output"]


@pytest.mark.parametrize("at", ["accept_fork.before", "accept_fork.after", "answer.before", "answer.after"])
async def test_a_crash_leaves_all_of_a_fork_or_nothing(house: House, at: str) -> None:
    async with house.life(house.agent()) as life:
        first = await ends(life, house, [LOOK], [LETTER], "done")
    async with house.life(house.agent([LOOK], [LETTER], "done"), dies_at=at) as life:

        async def fork_it() -> Any:
            return await (await life.rt.fork(first.id, at_step=2, operation_id="f")).result()

        await life.ends(fork_it())
    async with house.life(house.agent([LOOK], [LETTER], "done")) as life:
        fork = await life.rt.fork(first.id, at_step=2, operation_id="f")
        assert await rest(fork) == "completed"
        assert (house.count("look"), house.count("letter")) == (1, 1)
        assert len(await life.rt.runs()) == 2
