"""What must be true after a crash: the next process takes everything up, and every witness agrees."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from crash import invariants
from crash.lives import Life
from crash.scenarios import FIRST, NEXT, SCENARIOS, World, take_up
from ondol.testing import Downstream, EffectLine, ManualClock

LATER = timedelta(hours=1)  # after every attempt's deadline, before any key is too old


async def ledger(downstream: Downstream, world: World) -> list[EffectLine]:
    return [line for line in await downstream.effects() if line.arguments["case"] == world.case]


async def is_taken_up(file: Path, world: World, name: str, downstream: Downstream) -> None:
    """Start a new process on the file, do what the client does, and look at everything."""
    scenario = SCENARIOS[name]
    before = invariants.written(file) if file.exists() and file.stat().st_size else None
    then = await ledger(downstream, world)
    asked_then = len(world.events("model"))
    clock = ManualClock(datetime.now(UTC) + LATER)
    async with Life(file, scenario.agent(world), clock=clock, deps=world) as life:
        run = await take_up(life.rt, world, scenario)

    after, now = invariants.written(file), await ledger(downstream, world)
    calls = world.events("model")
    invariants.hold(
        after, now, world.noted, Counter(line["run"] for line in calls), checks=("mail",)
    )
    invariants.nothing_happened_twice(now, reads=("look", "refund", "flaky"))
    if before is not None:
        invariants.recorded_steps_are_not_computed_again(before, calls[asked_then:])
        invariants.recorded_outcomes_are_reused(before, then, after, now)
        invariants.planned_writes_ask_nobody(before, after)
        invariants.history_only_grew(before, after)

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
    else:  # P6: what it did is told to the next turn
        (note,) = told
        assert all(e.tool in note for e in started)
