"""A crash at any write of a turn that remembers and forgets, and of what is learned from it afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from crash.lives import Death, Life
from ondol import Agent, Memory, Message, Runtime
from ondol.errors import OndolError
from ondol.testing import FaultPlan, ScriptedModel, call

SCOPE = {"agent": "friend", "user": "kim"}
OLD, NEW, LEARNED = "drinks tea", "점검은 금요일", "please note that"
WRITES = ("accept", "claim", "note_down", "answer", "outcome", "commit", "delivered")
#: Those that a turn makes several times, and how often it certainly does.
TIMES = {"answer": 3, "outcome": 2}


def friend(old: str) -> Agent:
    async def extract(said: Sequence[Message]) -> list[str]:
        return [m.text for m in said if m.role == "user" and m.origin is None]

    answers = [[call("remember", fact=NEW)], [call("forget", id=old)], ["noted"]]
    return Agent("friend", model=ScriptedModel(answers), memory=Memory(extract=extract))


async def told(rt: Runtime) -> None:
    """Return when the outbox is empty."""
    while not (found := await rt.outbox()) or any(m.state != "delivered" for m in found):
        pass


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("write", "nth"), [(w, n) for w in WRITES for n in range(1, TIMES.get(w, 1) + 1)])
async def test_a_crash_at_any_write_leaves_all_of_it_remembered_or_nothing_and_it_goes_on(
    tmp_path: Path, write: str, nth: int, when: str
) -> None:
    file = tmp_path / "ondol.db"
    async with Runtime(f"sqlite:///{file}") as rt:
        old = (await rt.memory.add(OLD, **SCOPE)).id
    agent = friend(old)
    death = Death()
    plan = FaultPlan().at(write, when=when, nth=nth, fault=death)  # type: ignore[arg-type]
    async with Life(file, agent, plan=plan, death=death) as life:
        await life.lives_or_dies(turn(life.rt, agent))
    assert life.is_dead
    async with Runtime(f"sqlite:///{file}") as rt:  # no agent here: nothing goes on
        facts = {f.text for f in await rt.memory.ls(**SCOPE)}
        assert facts in ({OLD}, {NEW}, {NEW, LEARNED})
    async with Runtime(f"sqlite:///{file}", agents=[agent]) as rt:
        await turn(rt, agent)
        assert {f.text for f in await rt.memory.ls(**SCOPE)} == {NEW, LEARNED}
        assert [f.text for f in await rt.memory.search("금요일", **SCOPE)] == [NEW]
        assert await rt.memory.search("tea", **SCOPE) == []
        assert [(s.user, s.facts) for s in await rt.memory.scopes()] == [("kim", 2)]


async def turn(rt: Runtime, agent: Agent) -> None:
    with contextlib.suppress(OndolError):
        await rt.run(agent, LEARNED, user="kim", session="s", operation_id="op")
    await told(rt)
