"""Family ``together``: two processes come to one run at the same moment, and one of them has it.

They resume a run that has failed for now, or send its operation again, or both start where another one was killed. The
other one finds it owned, and is told the same: the run has one history, each step is thought once and each effect
happens once.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import behind
import pytest
from crash import invariants, together
from crash.aftermath import LATER, ledger, nothing_is_left
from crash.lives import Life
from crash.scenarios import FIRST, KINDS, NEXT, World, send, settled

from ondol import events
from ondol.testing import FaultPlan, ManualClock, kill
from torture.campaign import Family, Place, on_stores
from torture.test_kill import app

KILLED_AT = ("claim.after", "answer.before", "answer.after", "started.before", "started.after", "tool.after",
             "outcome.before", "outcome.after", "note_down.after")  # fmt: skip


async def case(seed: int, place: Place, **order: Any) -> None:
    chosen = random.Random(seed)
    how, kind = together.HOWS[seed % len(together.HOWS)], chosen.choice([*KINDS])
    db, downstream = place.db, await place.downstream()
    world = World(downstream.url, place.name, place.folder / "client.jsonl")
    if how == "taken up":
        together.paid(world).touch()
        plan, order = FaultPlan().at(chosen.choice(KILLED_AT), fault=kill()), {**order, "later": LATER.total_seconds()}
    else:
        plan = FaultPlan()
    app().starts(db, world, "", plan, together=None, kind=kind)
    assert app().ended() == (-9 if how == "taken up" else 0)
    behind.lose_the_dead(db)
    together.paid(world).touch()
    before, then = invariants.written(db), await ledger(downstream, world)
    asked_then = len(world.events("model"))

    os.mkfifo(meets := place.folder / "meets")
    app().starts(db, world, "", FaultPlan(), together=how, kind=kind, meets=str(meets), at_once=2, **order)
    assert [app().ended(), app().ended()] == [0, 0]
    met = invariants.written(db)
    (run,) = met.runs
    (came,) = {line["run"] for line in world.events("accepted")}
    assert came == run
    claims = [e.kind for e in met.entries(run) if isinstance(e, events.RunStarted | events.RunResumed)]
    already = [e.kind for e in before.entries(run) if isinstance(e, events.RunStarted | events.RunResumed)]
    assert claims == [*already, "run.resumed"], "both of them had it"
    assert [line["step"] for line in world.events("model")[asked_then:]] == [
        *range(before.state(run).step, _steps(met))
    ]

    async with Life(db, together.agent(world), clock=ManualClock(datetime.now(UTC) + 2 * LATER), deps=world) as life:
        await settled(life.rt, world, await life.rt.find_run(FIRST[0]))
        await settled(life.rt, world, await send(life.rt, world, *NEXT))
    nothing_is_left(db, set())
    after, now = invariants.written(db), await ledger(downstream, world)
    calls = Counter(line["run"] for line in world.events("model"))
    invariants.hold(after, now, world.noted, calls, checks=("mail",))
    invariants.nothing_happened_twice(now, reads=("look",))
    invariants.recorded_outcomes_are_reused(before, then, after, now)
    invariants.planned_writes_ask_nobody(before, after)
    invariants.history_only_grew(before, after)
    assert {r.state for r in after.runs.values()} == {"completed"}


def _steps(store: invariants.Written) -> int:
    (run,) = store.runs
    return store.state(run).step


async def control(seed: int, place: Place) -> None:
    """Who claims a run has it, though another one drives it."""
    await case(seed, place, unguarded=True)


#: C21: a hundred times of each. (On SQLite it is known before they come which of them drives.)
FAMILY = Family(case=case, control=control, cases=300, stores=("postgresql",))


@on_stores("seed", range(3), range(9))
async def test_of_two_processes_that_come_to_a_run_at_once_one_has_it(seed: int, place: Place) -> None:
    await case(seed, place)


@pytest.mark.parametrize("store_kind", ["postgresql"])
async def test_two_that_both_have_a_run_are_noticed(place: Place) -> None:
    await FAMILY.notices(place)
