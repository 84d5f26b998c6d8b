"""The process is killed with ``kill -9`` at any moment while many clients are at work.

A case is a new store, clients in several sessions that send one operation after the other, and one kill: at any write,
or while a tool is at it. The next process serves the same clients, who send all of it again.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime

import behind
import pytest
from crash import invariants, load
from crash.aftermath import LATER, ledger, nothing_is_left
from crash.lives import Life
from crash.scenarios import World

from ondol import effects
from ondol.testing import FaultPlan, ManualClock, kill
from torture.campaign import Family, Place
from torture.test_kill import app

WRITES = 5 * load.OPERATIONS  # a run without any tool makes about as many


async def case(seed: int, place: Place) -> None:
    chosen = random.Random(seed)
    plan = FaultPlan()
    if chosen.random() < 0.7:
        plan.at_write(chosen.randrange(1, WRITES), chosen.choice(("before", "after")), kill())
    else:
        plan.at(
            "tool", when=chosen.choice(("before", "after")), nth=chosen.randrange(1, load.OPERATIONS // 3), fault=kill()
        )
    await _killed(plan, seed, place)


async def _killed(plan: FaultPlan, seed: int, place: Place) -> None:
    db, downstream = place.db, await place.downstream()
    world = World(downstream.url, place.name, place.folder / "client.jsonl")
    app().starts(db, world, "", plan, load=seed)
    assert app().ended() == -9, "it ended before it was killed"
    behind.lose_the_dead(db)
    before, then = invariants.written(db), await ledger(downstream, world)
    async with Life(db, load.agent(world), clock=ManualClock(datetime.now(UTC) + LATER), deps=world) as life:
        await load.clients(life.rt, world, seed)
    nothing_is_left(db, set())
    after, now = invariants.written(db), await ledger(downstream, world)
    calls = Counter(line["run"] for line in world.events("model"))
    invariants.hold(after, now, world.noted, calls, checks=("mail",))
    invariants.nothing_happened_twice(now, reads=("look", "refund"))
    invariants.recorded_outcomes_are_reused(before, then, after, now)
    invariants.planned_writes_ask_nobody(before, after)
    invariants.history_only_grew(before, after)
    assert Counter(run.state for run in after.runs.values()) == {"completed": load.OPERATIONS}


async def control(seed: int, place: Place) -> None:
    """A lost write is made again, though nobody said that it did not happen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effects, "_lost", lambda effect, rules, now: effects.Run(after=effect.deadline))
        await _killed(FaultPlan().at("tool.after", nth=3 + seed, fault=kill()), seed, place)


#: 300 kills, 21,000 operations, on each store.
FAMILY = Family(case=case, control=control, cases=300, sample=10, sample_postgres=2, stores=("sqlite", "postgresql"))


@FAMILY.sampled
async def test_a_kill_under_load_loses_nothing_and_repeats_nothing(seed: int, place: Place) -> None:
    await case(seed, place)


async def test_a_letter_that_is_sent_twice_under_load_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)
