"""A crash while a request that was too long is made shorter."""

from __future__ import annotations

import pytest

from ondol import ModelRequest
from ondol.providers.script import Reply
from ondol.testing import error
from promise.house import House, rest

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
