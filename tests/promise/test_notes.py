"""What other runs of the session left behind is told to the next turn until one has committed it (P6, 7.4)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from crash.lives import Life
from kit import results

from ondol import ModelRequest, Run
from ondol.providers.script import Reply
from ondol.testing import FaultPlan, barrier, call, error
from promise.house import HELLO, House, notes, rest, the_ask

LETTER, LOOK, REFUND = call("letter", to="kim"), call("look", order="1"), call("refund", order="1")
SAID = "write to kim please"


async def told(house: House, run: Run) -> list[str]:
    """The notes in the first request of the run."""
    return notes(house.asked(run)[0])


async def turn(life: Any, house: House, operation: str, said: str = HELLO) -> list[str]:
    """One more turn. Returns what was new in the notes that it was shown."""
    run = await life.rt.start("a", said, session="s", operation_id=operation)
    assert await rest(run) == "completed"
    before = {m.message.text for m in await (await life.rt.get_session("s")).messages() if m.run != run.id}
    return [note for note in await told(house, run) if note not in before]


@asynccontextmanager
async def left_in_doubt(
    house: House, *, said: str = "go", at: str = "letter.after", plan: FaultPlan | None = None
) -> AsyncIterator[tuple[Life, Run]]:
    """A run that was cancelled after its process had died as it wrote: nobody knows what came of that."""
    agent = house.agent([LETTER], "done", said=said)
    run_id = await house.dies(agent, at=at, said=said)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        await run.cancel(by="kim")
        yield life, run


async def test_a_failed_run_is_told_once_with_its_request_and_its_writes(house: House) -> None:
    agent = house.agent([LETTER, LOOK], error("rejected"), said=SAID)
    async with house.life(agent) as life:
        assert await rest(await life.rt.start(agent, SAID, session="s", operation_id="op")) == "failed"
        (note,) = await turn(life, house, "next")
        assert SAID in note
        assert "letter" in note
        assert "kim" in note
        assert "succeeded" in note
        assert "look" not in note
        assert await turn(life, house, "later") == []


async def test_what_a_write_returned_is_told_with_it(house: House) -> None:
    """Without the number of what it made, a model could neither name it nor take it back."""
    agent = house.agent([LETTER, REFUND], error("rejected"), said=SAID)
    async with house.life(agent) as life:
        first = await life.rt.start(agent, SAID, session="s", operation_id="op")
        assert await rest(first) == "failed"
        returned = [r.text for r in results(await first.messages())]
        assert len(returned) == 2
        (note,) = await turn(life, house, "next")
        assert [word for word in returned if f"It returned {word!r}." not in note] == []


async def test_a_run_without_writes_is_told_of_as_an_unanswered_request(house: House) -> None:
    agent = house.agent(error("rejected"), said=SAID)
    async with house.life(agent) as life:
        assert await rest(await life.rt.start(agent, SAID, session="s", operation_id="op")) == "failed"
        (note,) = await turn(life, house, "next")
        assert SAID in note
        assert await turn(life, house, "later") == []


async def test_the_note_is_part_of_the_session_and_the_failed_run_is_not(house: House) -> None:
    agent = house.agent([LETTER], error("rejected"), said=SAID)
    async with house.life(agent) as life:
        assert await rest(await life.rt.start(agent, SAID, session="s", operation_id="op")) == "failed"
        (note,) = await turn(life, house, "next")
        messages = [m.message for m in await (await life.rt.get_session("s")).messages()]
        assert [m.text for m in messages] == [note, HELLO, "hello to you"]
        assert [m.origin for m in messages] == ["runtime", None, None]
        # The turn after sees it as history, and its calls never as calls.
        await turn(life, house, "later")
        assert notes(house.requests[-1]) == [note]
        assert not results(house.requests[-1].messages)


async def test_a_completed_run_leaves_no_note(house: House) -> None:
    agent = house.agent([LETTER], "done", said=SAID)
    async with house.life(agent) as life:
        assert await turn(life, house, "op", SAID) == []
        assert await turn(life, house, "next") == []


async def test_a_note_is_shown_again_until_a_turn_commits_it(house: House) -> None:
    agent = house.agent([LETTER], error("rejected"), said=SAID)
    house.answers("and this", error("rejected"))
    async with house.life(agent) as life:
        assert await rest(await life.rt.start(agent, SAID, session="s", operation_id="op")) == "failed"
        failing = await life.rt.start(agent, "and this", session="s", operation_id="two")
        assert await rest(failing) == "failed"
        (first,) = await told(house, failing)
        assert "letter" in first
        (second,) = await turn(life, house, "next")  # the turn that was told did not commit
        assert "letter" in second
        assert "and this" in second
        assert await turn(life, house, "later") == []


@pytest.mark.parametrize(("kind", "turns"), [("content_filter", 1), ("rejected", 3)])
async def test_words_that_the_provider_refuses_do_not_have_every_turn_after_refused(
    house: House, kind: Any, turns: int
) -> None:
    """It refuses a request that holds them in a note just as well."""

    def refuses(request: ModelRequest) -> Reply:
        return error(kind) if any("forbidden" in m.text for m in request.messages) else "hello to you"

    agent = house.agent([call("letter", to="forbidden")], error(kind), said="forbidden")
    house.answers("and this", refuses)
    house.answers(HELLO, refuses)
    async with house.life(agent) as life:
        assert await rest(await life.rt.start(agent, "forbidden", session="s", operation_id="op")) == "failed"
        for n in range(1, turns):
            failed = await life.rt.start(agent, "and this", session="s", operation_id=f"more-{n}")
            assert await rest(failed) == "failed"
        (note,) = await turn(life, house, "next")
        assert "forbidden" not in note
        assert "call letter(…): it succeeded" in note
        assert await turn(life, house, "later") == []


async def test_a_note_survives_a_crash_of_the_turn_that_was_told(house: House) -> None:
    agent = house.agent([LETTER], error("rejected"), said=SAID)
    async with house.life(agent) as life:
        assert await rest(await life.rt.start(agent, SAID, session="s", operation_id="first")) == "failed"
    run_id = await house.dies(agent, at="commit.before", said=HELLO)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        (note,) = await told(house, run)
        said = [m.message.text for m in await (await life.rt.get_session("s")).messages()]
        assert said == [note, HELLO, "hello to you"]
        assert await turn(life, house, "later") == []


async def test_an_unknown_is_told_as_unknown_and_its_settlement_makes_a_new_note(house: House) -> None:
    async with left_in_doubt(house) as (life, run):
        (note,) = await turn(life, house, "one")
        assert "unknown" in note
        assert await turn(life, house, "two") == []
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        (settled,) = await turn(life, house, "three")
        assert "letter" in settled
        assert "succeeded" in settled
        assert "unknown" not in settled
        assert await turn(life, house, "four") == []


async def test_a_settlement_that_it_did_not_happen_is_told_as_that(house: House) -> None:
    async with left_in_doubt(house, at="started.after") as (life, run):
        await turn(life, house, "one")
        await (await the_ask(run, "unknown_effect")).not_happened(by="lee")
        (settled,) = await turn(life, house, "two")
        assert "nothing happened" in settled
        assert await turn(life, house, "three") == []


async def test_what_is_settled_before_anybody_was_told_is_told_with_its_request(house: House) -> None:
    async with left_in_doubt(house, said=SAID) as (life, run):
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        (note,) = await turn(life, house, "one")
        assert "succeeded" in note
        assert "Do not act on it unless the user asks again." in note  # it is no news of what was told before
        assert await turn(life, house, "two") == []


async def test_what_is_settled_while_a_turn_is_under_way_is_told_to_the_one_after(house: House) -> None:
    in_look = barrier()
    house.answers("look", [LOOK], "seen")
    async with left_in_doubt(house, plan=FaultPlan().at("look.before", fault=in_look)) as (life, run):
        under_way = await life.rt.start("a", "look", session="s", operation_id="one")
        await in_look.reached.wait()
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        in_look.go_on.set()
        assert await rest(under_way) == "completed"
        (first,) = await told(house, under_way)
        assert "unknown" in first
        (second,) = await turn(life, house, "two")
        assert "succeeded" in second
        assert await turn(life, house, "three") == []


async def test_a_given_up_unknown_is_told_as_unknown(house: House) -> None:
    agent = house.agent([LETTER], "done")
    run_id = await house.dies(agent, at="letter.after")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).give_up(by="lee")
        assert await rest(run) == "failed"
        (note,) = await turn(life, house, "one")
        assert "letter" in note
        assert "unknown" in note


async def test_a_parked_run_is_told_of_and_what_it_says_later_is_its_own(house: House) -> None:
    agent = house.agent([LETTER], "done")
    await house.dies(agent, at="outcome.after")
    for _ in range(2):
        async with house.life(agent, dies_at="model.before") as life:
            await life.ends()
    async with house.life(agent) as life:
        parked = await life.rt.find_run("op")
        assert parked.status == "parked"
        (note,) = await turn(life, house, "one")
        assert "letter" in note
        await (await the_ask(parked, "parked")).answer("resume", by="lee")
        assert await rest(parked) == "completed"
        assert await turn(life, house, "two") == []
    assert house.count("letter") == 1


async def test_a_retryable_failure_is_told_of_until_it_completes(house: House) -> None:
    agent = house.agent([LETTER], lambda request: error("quota") if len(house.asked()) == 2 else "done", said=SAID)
    async with house.life(agent) as life:
        run = await life.rt.start(agent, SAID, session="s", operation_id="op")
        assert await rest(run) == "failed"
        (note,) = await turn(life, house, "one")
        assert "letter" in note
        assert await rest(await life.rt.start(agent, SAID, session="s", operation_id="op")) == "completed"
        assert await turn(life, house, "two") == []


async def test_writes_of_a_run_that_is_queued_again_are_told_to_the_turns_ahead_of_it(house: House) -> None:
    """It is not completed, so what it did is news to whoever comes first (7.4)."""
    agent, in_model = house.agent([LETTER], error("quota"), said=SAID), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", nth=3, fault=in_model)) as life:
        run = await life.rt.start(agent, SAID, session="s", operation_id="op")
        assert await rest(run) == "failed"
        first = await life.rt.start(agent, HELLO, session="s", operation_id="one")
        await in_model.reached.wait()
        second = await life.rt.start(agent, HELLO, session="s", operation_id="two")
        await first.cancel(by="kim")  # so nobody has committed the note
        again = await life.rt.start(agent, SAID, session="s", operation_id="op")
        assert again.status == "queued"
        in_model.go_on.set()
        assert await rest(first) == "cancelled"
        assert await rest(second) == "completed"
        assert any("letter" in note for note in await told(house, second))
        await rest(again)


async def test_each_call_is_told_under_the_request_of_its_own_run(house: House) -> None:
    agent = house.agent([LETTER], error("rejected"), said=SAID)
    house.answers("pay kim back", [REFUND], error("rejected"))
    async with house.life(agent) as life:
        first = await life.rt.start(agent, SAID, session="s", operation_id="one")
        assert await rest(first) == "failed"
        second = await life.rt.start(agent, "pay kim back", session="s", operation_id="two")
        assert await rest(second) == "failed"
        (note,) = await turn(life, house, "next")
        order = [note.index(part) for part in (SAID, "letter(", "pay kim back", "refund(")]
        assert order == sorted(order)


async def test_news_of_a_run_that_was_told_of_before_name_its_request_again(house: House) -> None:
    async with left_in_doubt(house, said=SAID) as (life, run):
        await turn(life, house, "one")
        await (await the_ask(run, "unknown_effect")).happened("letter 7 is on its way", by="lee")
        (news,) = await turn(life, house, "two")
        assert SAID in news
        assert "it succeeded" in news
        assert "letter 7 is on its way" in news


async def test_a_note_has_a_limit_and_the_turns_after_go_on_with_the_rest(house: House) -> None:
    letters = [call("letter", to=f"person {n} of many") for n in range(300)]
    agent = house.agent(letters, error("rejected"), said=SAID)
    async with house.life(agent) as life:
        assert await rest(await life.rt.start(agent, SAID, session="s", operation_id="op")) == "failed"
        told: list[str] = []
        for n in range(10):
            if not (new := await turn(life, house, f"turn-{n}")):
                break
            (note,) = new
            assert len(note) < 20_000
            assert SAID in note
            told += re.findall(r"person \d+ ", note)
        assert n > 1, "one note was enough"
        assert sorted(told) == sorted(f"person {n} " for n in range(300))  # each once


async def test_notes_stay_in_their_session(house: House) -> None:
    agent = house.agent([LETTER], error("rejected"), said=SAID)
    async with house.life(agent) as life:
        assert await rest(await life.rt.start(agent, SAID, session="s", operation_id="op")) == "failed"
        other = await life.rt.start(agent, HELLO, session="t", operation_id="other")
        assert await rest(other) == "completed"
        assert await told(house, other) == []


@pytest.mark.parametrize("settled", [False, True])
async def test_a_run_of_the_session_that_was_resumed_itself_is_not_told_of_its_own_effects(
    house: House, settled: bool
) -> None:
    agent = house.agent([LETTER], "done")
    run_id = await house.dies(agent, at="letter.after" if settled else "outcome.after")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        if settled:
            assert await rest(run) == "waiting"
            await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert [note for request in house.asked(run_id) for note in notes(request)] == []


async def test_a_retry_that_was_queued_while_a_turn_told_of_it_is_told_of_again_when_it_fails_again(
    house: House,
) -> None:
    """The turn's commit marks what it told; the run that it told of is unfinished again by then."""
    agent, in_look = house.agent(said=SAID), barrier()
    house.answers(SAID, [LETTER], lambda r: error("quota") if len(house.asked(r.run)) == 2 else error("rejected"))
    house.answers("look", [LOOK], "seen")
    async with house.life(agent, plan=FaultPlan().at("look.before", fault=in_look)) as life:
        failing = await life.rt.start(agent, SAID, session="s", operation_id="op")
        assert await rest(failing) == "failed"
        other = await life.rt.start(agent, "look", session="s", operation_id="other")
        await in_look.reached.wait()
        (note,) = await told(house, other)
        assert SAID in note
        assert "letter" in note
        again = await life.rt.start(agent, SAID, session="s", operation_id="op")
        assert (again.id, again.status) == (failing.id, "queued")
        in_look.go_on.set()
        assert await rest(other) == "completed"
        assert await rest(again) == "failed"
        assert len(house.asked(again)) == 3
        (note,) = await turn(life, house, "next")
        assert SAID in note
        assert "letter" not in note  # that was told, and a turn has committed it
        assert await turn(life, house, "later") == []
