"""C23: what a session takes on the disk grows with what is said in it, and not with its square."""

from __future__ import annotations

import random
from itertools import pairwise

import behind
import pytest
from kit import asked

from ondol import Agent, ModelRequest, Runtime, tool
from ondol.providers.script import Reply
from ondol.testing import ScriptedModel, call

TURNS, STEPS, WORDS = 30, 3, 2000  # turns; model calls with a tool in each; characters of every message
PIECES = 3  # in which the session is looked at


def _text(*about: object) -> str:
    """So many characters that nobody has said before, and that cannot be made smaller by much."""
    return random.Random(repr(about)).randbytes(WORDS // 2).hex()


@tool(effect="read")
async def look(at: str) -> str:
    return _text("found", at)


def talker() -> Agent:
    def answer(request: ModelRequest) -> Reply:
        said = asked(request)[:20]
        if request.step < STEPS:
            return [_text(said, request.step), call("look", at=f"{said}{request.step}")]
        return _text(said, "end")

    return Agent("talker", model=ScriptedModel(answer), tools=[look])


def size(db: str) -> int:
    """Bytes of the store when nobody has it open."""
    if not db.startswith("sqlite:///"):
        behind.execute(db, "VACUUM")  # as the server does by itself, some time later
    return sum(behind.sizes(db))


@pytest.mark.both_stores
async def test_c23_a_session_grows_with_what_is_said_in_it(db: str) -> None:
    agent = talker()
    async with Runtime(db, agents=[agent]):
        empty = size(db)
    sizes = list[int]()
    for piece in range(PIECES):
        async with Runtime(db, agents=[agent]) as rt:
            for n in range(TURNS // PIECES):
                turn = piece * TURNS + n
                result = await rt.run(agent, _text("user", turn), session="s", operation_id=f"op-{turn}")
                assert result.text == _text(_text("user", turn)[:20], "end")
        sizes.append(size(db))
    first, second = (after - before for before, after in pairwise(sizes))
    assert second < 1.2 * first, f"it grew by {first}, then by {second}"
    said = TURNS * WORDS * (2 + 2 * STEPS)  # the user and the answer; in each step a text and a result
    assert sizes[-1] - empty < 3 * said, f"{sizes[-1] - empty} bytes for {said} characters"


async def test_c23_a_deleted_session_leaves_little_behind_and_its_ids_are_known(db: str) -> None:
    agent = talker()
    async with Runtime(db, agents=[agent]) as rt:
        for turn in range(TURNS // PIECES):
            await rt.run(agent, _text("user", turn), session="s", operation_id=f"op-{turn}")
        await (await rt.get_session("s")).delete(by="kim")
        for turn in range(TURNS // PIECES):
            assert (await rt.find_run(f"op-{turn}")).status == "completed"
        full = size(db)
    for turn in range(3):  # the room is used again: another session of the same size needs no more
        async with Runtime(db, agents=[agent]) as rt:
            for n in range(TURNS // PIECES):
                await rt.run(agent, _text("user", n), session=f"s{turn}", operation_id=f"again-{turn}-{n}")
            await (await rt.get_session(f"s{turn}")).delete(by="kim")
    assert size(db) < 2.5 * full
