"""A crash while a request that was too long is made shorter."""

from __future__ import annotations

import pytest

from ondol import ContextPolicy, ModelRequest
from ondol.providers.script import Reply
from ondol.testing import call, error
from promise.house import SUMMARY, House, rest

LONG = "as I said before. " * 500


def too_long_at_first(request: ModelRequest) -> Reply:
    if len(request.messages) > 3:
        return error("context_overflow", "the limit is 8000 tokens, and 25000 were sent")
    return "done"


@pytest.mark.parametrize("at", ["note_down.before", "note_down.after"])
@pytest.mark.parametrize("nth", [2, 3])  # the failed attempt, and the shorter context
async def test_a_crash_between_a_request_that_was_too_long_and_a_shorter_one_loses_nothing(
    house: House, at: str, nth: int
) -> None:
    agent = house.agent(too_long_at_first)
    house.answers("long", LONG)
    async with house.life(agent) as life:
        await life.rt.run(agent, "long", session="s")
    await house.dies(agent, at, nth=nth)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "completed"
        assert (await life.rt.context(run.id)).matches
    assert len(house.asked(run)[-1].messages) == 3


async def test_a_provider_that_finds_the_shorter_request_too_long_as_well_is_not_asked_again(house: House) -> None:
    agent = house.agent(lambda request: error("context_overflow", "the limit is 8000 tokens, 10000 were sent"))
    house.answers("long", LONG)
    async with house.life(agent) as life:
        for _ in range(3):
            await life.rt.run(agent, "long", session="s")
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "failed"
        assert run.error is not None
        assert run.error["code"] == "model_context_overflow"
    first, second = house.asked(run)
    assert 2 < len(second.messages) < len(first.messages)


@pytest.mark.parametrize("grows_by", [40_000, 6_000])
async def test_a_turn_that_outgrows_what_its_provider_takes_is_not_sent_a_little_more_may_fit(
    house: House, grows_by: int
) -> None:
    def answers(request: ModelRequest) -> Reply:
        if len(request.messages) > 6:
            return error("context_overflow", "the limit is 8000 tokens, and 25000 were sent")
        return [call("look", order="x" * grows_by)]

    agent = house.agent(answers, "done")
    house.answers("long", LONG)
    async with house.life(agent) as life:
        for _ in range(3):
            await life.rt.run(agent, "long", session="s")
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == ("completed" if grows_by < 40_000 else "failed")
        if run.error is not None:
            assert run.error["code"] == "model_context_overflow"
            assert not run.retryable
    assert len(house.asked(run)) == (3 if grows_by < 40_000 else 2)


async def test_where_the_provider_does_not_say_how_much_fits_the_request_is_made_shorter_until_it_does(
    house: House,
) -> None:
    """Else each turn would fail in a session that is many times too long for another model."""
    agent = house.agent(lambda r: error("context_overflow", "too long") if len(r.messages) > 3 else "done")
    house.answers("long", LONG)
    async with house.life(agent) as life:
        for _ in range(20):
            await life.rt.run(agent, "long", session="s")
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "completed"
    lengths = [len(request.messages) for request in house.asked(run)]
    assert len(lengths) == 3
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("at", ["note_down.before", "note_down.after"])
async def test_a_crash_while_a_summary_is_written_down_loses_nothing_and_the_request_is_the_same(
    house: House, at: str
) -> None:
    agent = house.agent("done", context=ContextPolicy(budget=4_000, keep=0))
    house.answers("long", LONG)
    async with house.life(agent) as life:
        await life.rt.run(agent, "long", session="s")
        await life.rt.run(agent, "long", session="s")
    await house.dies(agent, at, nth=2)  # the first says that a summary is asked for
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "completed"
        assert (await life.rt.context(run.id)).matches
        compacted = [e async for e in run.events() if e.type == "context.compacted"]
    assert [e.data["by"] for e in compacted] == ["script"]
    asked = house.asked(run)
    assert [r.purpose for r in asked if r.purpose == "answer"] == ["answer"]
    assert len(asked) == (3 if at == "note_down.before" else 2)  # one more summary for a crash, at most
    assert SUMMARY in asked[-1].messages[1].text


async def test_a_fork_behind_a_step_that_was_shortened_is_told_the_summary_and_so_is_its_session(house: House) -> None:
    agent = house.agent([call("look", order="1")], "done", context=ContextPolicy(budget=4_000, keep=0))
    house.answers("long", LONG)
    house.answers("later", "done")
    async with house.life(agent) as life:
        await life.rt.run(agent, "long", session="s")
        await life.rt.run(agent, "long", session="s")
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "completed"
        fork = await life.rt.fork(run, at_step=2)
        assert await rest(fork) == "completed"
        later = await life.rt.start(agent, "later", session=fork.session)
        assert await rest(later) == "completed"
    for asked in (house.asked(run), house.asked(fork), house.asked(later)):
        assert SUMMARY in asked[-1].messages[1].text
    assert [r.purpose for r in house.asked(fork) + house.asked(later)] == ["answer", "answer"]
