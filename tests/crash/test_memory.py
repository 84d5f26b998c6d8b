"""A crash at any write of a turn that remembers and forgets, and of what is learned from it afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from crash.lives import Death, Life
from ondol import Agent, ContextPolicy, Memory, Message, ModelRequest, Runtime, queries
from ondol.errors import OndolError
from ondol.events import ContextCompacted
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
    async with Life(f"sqlite:///{file}", agent, plan=plan, death=death) as life:
        await life.lives_or_dies(turn(life.rt, agent))
        await life.ends()  # the last write may be seen before its process dies of it
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


# --- what a compaction drops ------------------------------------------------------------------------------------

DROPPING = [("note_down", 1), ("note_down", 2), ("answer", 1), ("commit", 1), ("delivered", 1), ("delivered", 2)]


def wordy(request: ModelRequest) -> str:
    return "They talked." if request.purpose == "summary" else "ok, " + "as was to be expected " * 12


def narrow(learns: bool) -> Agent:
    """Its requests have room for four of its turns. It notes the first two words of each turn, if it learns."""

    async def extract(said: Sequence[Message]) -> list[str]:
        return [" ".join(m.text.split()[:2]) for m in said if m.role == "user" and m.origin is None]

    memory = Memory(recall=0, extract=extract if learns else None)
    return Agent("friend", model=ScriptedModel(wordy), memory=memory, context=ContextPolicy(budget=800, keep=1))


async def say(rt: Runtime, n: int) -> None:
    with contextlib.suppress(OndolError):
        words = f"turn {n} " + "and some words more " * 10
        await rt.run("friend", words, user="kim", session="s", operation_id=f"{n}")


async def offers(rt: Runtime) -> int:
    """How many records of a compaction say that what it drops is offered."""
    found = 0
    for run in await rt.runs(session="s"):
        _, batches = await rt._read(queries.read_journal, "default", run.id)
        found += sum(isinstance(e, ContextCompacted) and e.offered for b in batches for e in b.entries)
    return found


async def dropped(rt: Runtime) -> list[str]:
    return [m.state for m in await rt.outbox() if m.kind == "turn.dropped"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("write", "nth"), DROPPING)
async def test_a_crash_at_any_write_of_a_compaction_offers_what_goes_with_its_record_or_not_at_all(
    tmp_path: Path, write: str, nth: int, when: str
) -> None:
    file = tmp_path / "ondol.db"
    async with Runtime(f"sqlite:///{file}", agents=[narrow(learns=False)]) as rt:
        for n in range(4):
            await say(rt, n)
    death = Death()
    plan = FaultPlan().at(write, when=when, nth=nth, fault=death)  # type: ignore[arg-type]

    async def turns(rt: Runtime) -> None:
        await say(rt, 4)
        await told(rt)

    async with Life(f"sqlite:///{file}", narrow(learns=True), plan=plan, death=death) as life:
        await life.lives_or_dies(turns(life.rt))
        await life.ends()
    async with Runtime(f"sqlite:///{file}") as rt:  # no agent here: nothing goes on
        assert bool(await offers(rt)) == bool(await dropped(rt))
    async with Runtime(f"sqlite:///{file}", agents=[narrow(learns=True)]) as rt:
        await turns(rt)
        assert await offers(rt) == 1
        assert await dropped(rt) == ["delivered"] * 3  # the one before the last is still shown
        assert {f.text for f in await rt.memory.ls(**SCOPE)} == {f"turn {n}" for n in (0, 1, 2, 4)}
