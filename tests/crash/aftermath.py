"""What must be true after a crash: the next process takes everything up, and every witness agrees."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import behind

from crash import invariants
from crash.lives import Death, Life
from crash.scenarios import AGAIN, FIRST, NAMED, NEXT, SESSION, World, WorldInside, take_up
from ondol.testing import Downstream, EffectLine, FaultPlan, ManualClock
from ondol.testing.faults import When

LATER = timedelta(hours=1)  # after every attempt's deadline, before any key is too old


async def ledger(downstream: Downstream | WorldInside, world: World) -> list[EffectLine]:
    return [line for line in await downstream.effects() if line.arguments["case"] == world.case]


async def dies_again(db: str, world: World, name: str, k: int, when: When) -> None:
    """Take it up in a process that dies at its own ``k``-th write. Fails if it does not make as many."""
    scenario, death = NAMED[name], Death()
    plan, clock = FaultPlan().at_write(k, when, death), ManualClock(datetime.now(UTC) + LATER)
    async with Life(db, scenario.agent(world), plan=plan, death=death, clock=clock, deps=world) as life:
        if not life.is_dead:
            await life.lives_or_dies(take_up(life.rt, world, scenario))
    assert life.is_dead, f"it did not die at write {k} of {plan.writes}, but passed {plan.passed}"


def nothing_is_left(db: str, tasks: set[asyncio.Task[Any]]) -> None:
    """N14: after a clean shutdown no task goes on, nothing is held open, and nothing temporary lies about."""
    assert not tasks, tasks
    assert not (held := behind.held(db)), held


async def is_taken_up(
    db: str,
    world: World,
    name: str,
    downstream: Downstream | WorldInside,
    later: timedelta = LATER,
    before: invariants.Written | None = None,
) -> None:
    """Start a new process on the store, do what the client does, and look at everything.

    ``before`` is what the store held; without it that is read first.
    """
    scenario = NAMED[name]
    before = before or invariants.written(db)
    then = await ledger(downstream, world)
    asked_then = len(world.events("model"))
    clock = ManualClock(datetime.now(UTC) + later)
    tasks = asyncio.all_tasks()
    async with Life(db, scenario.agent(world), clock=clock, deps=world, deliver=world.listener) as life:
        run = await take_up(life.rt, world, scenario)
        said = [(m.seq, m.run) for m in await (await life.rt.get_session(SESSION)).messages()]
    nothing_is_left(db, asyncio.all_tasks() - tasks)

    after, now = invariants.written(db), await ledger(downstream, world)
    calls = world.events("model")
    invariants.hold(after, now, world.noted, Counter(line["run"] for line in calls), checks=("mail",))
    invariants.nothing_happened_twice(now, reads=("look", "refund", "flaky", "report"))
    invariants.ends_and_waits_are_told(after, [line["message"] for line in world.events("heard")])
    if scenario.again:
        assert [r.state for r in after.runs.values() if r.operation_id == AGAIN] == ["completed"]
        invariants.equal_writes_happened_once(now, reads=("look",))
    invariants.recorded_steps_are_not_computed_again(before, calls[asked_then:])
    invariants.recorded_outcomes_are_reused(before, then, after, now)
    invariants.planned_writes_ask_nobody(before, after)
    invariants.history_only_grew(before, after)

    invariants.people_are_asked_only_where_nobody_can_look(after, looked_up=("look", "refund", "report", "mail"))

    assert said == invariants.conversation(after, SESSION)
    assert after.runs[run.id].state in scenario.ends
    assert after.runs[run.id].operation_id == FIRST[0]
    (following,) = [r for r in after.runs.values() if r.operation_id == NEXT[0]]
    assert following.state == "completed"
    assert not [a for a in after.asks if a.state == "open"], "somebody is still asked"
    assert not [e for e in after.effects if e.state == "unknown"], "something is still unknown"
    told = [note for line in calls if line["run"] == following.id for note in line["notes"]]
    started = [e for e in after.effects if e.run == run.id and e.attempt]
    if after.runs[run.id].state == "completed":
        assert told == []
    else:  # P6: what it did is told to the next turn, by the one before it or anew
        assert told
        assert all(e.tool in "\n".join(told) for e in started)
