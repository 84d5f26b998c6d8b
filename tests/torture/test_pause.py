"""Family ``pause``: a process stands still (SIGSTOP) at a named point, for an hour, and then goes on (SIGCONT).

On PostgreSQL its lease is over by then: another process has taken up all that it held, and what the woken one still
sends or writes counts for nothing. On SQLite it keeps its lock: the other one says that it does not drive, nothing is
taken from the sleeper, and what was sent meanwhile waits for it.

The first seeds are the points at which processes are killed, too (see ``kill``); the others are writes of every
scenario. The hour passes at once: the sleeper finds it gone on its clock.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import behind
from crash import invariants
from crash.aftermath import LATER, is_taken_up
from crash.counting import every_place
from crash.lives import Life
from crash.scenarios import FIRST, NAMED, World, send, take_up

from ondol.errors import StoreBusy
from ondol.testing import Downstream, FaultPlan, ManualClock, stop
from torture.campaign import Family, Place, on_stores
from torture.test_kill import CELLS, EACH_POINT, POINTS, Inside, app

#: What stands still where it has an answer of the model or of downstream in hand, or is about to write it down.
SAMPLE = [cell for cell in EACH_POINT if not cell[0].startswith(("B0", "B2", "B10", "B11", "B14", "inside"))]


STRIDE = 7  # through every write of every scenario, so that those that are tried are of all kinds


@dataclass(frozen=True)
class Sleeper:
    """A process that stands still. ``pid`` is its own."""

    place: Place
    downstream: Downstream
    world: World
    name: str
    pid: int

    @property
    def db(self) -> str:
        return self.place.db

    async def another_takes_over(self, awake_at: Path | None) -> None:
        """All that it held is taken up, and nothing changes when it goes on."""
        before = invariants.written(self.db)
        if behind.file_of(self.db) is None:
            behind.execute(self.db, "UPDATE owners SET leased_until = clock_timestamp()")
        scenario, clock = NAMED[self.name], ManualClock(datetime.now(UTC) + LATER)
        async with Life(
            self.db, scenario.agent(self.world), clock=clock, deps=self.world, deliver=self.world.listener
        ) as life:
            await take_up(life.rt, self.world, scenario)
        taken = invariants.written(self.db)
        invariants.history_only_grew(before, taken)
        self.wakes(awake_at)
        after = invariants.written(self.db)
        assert _told(after) == _told(taken), "it wrote something"

    async def nobody_takes_over(self, awake_at: Path | None) -> None:
        """It has the lock, so it goes on where it was."""
        before = invariants.written(self.db)
        scenario, clock = NAMED[self.name], ManualClock(datetime.now(UTC) + LATER)
        async with Life(self.db, scenario.agent(self.world), clock=clock, deps=self.world) as life:
            assert not life.rt.drives
            try:
                run = await send(life.rt, self.world, *FIRST)
            except StoreBusy:  # it sleeps in the middle of a transaction
                pass
            else:
                assert (await run.refresh()).status == (before.runs[run.id].state if before.runs else "queued")
            meanwhile = invariants.written(self.db)
            assert {id: meanwhile.batches[id] for id in before.runs} == before.batches
        self.wakes(awake_at)

    async def is_taken_up(self) -> None:
        await is_taken_up(self.db, self.world, self.name, self.downstream, 2 * LATER)

    def wakes(self, at: Path | None) -> None:
        """An hour later, as its clock says where it has one. It comes to its end."""
        if at is not None:
            at.write_text(f"{LATER.total_seconds()}")
        os.kill(self.pid, signal.SIGCONT)
        assert app().ended() == 0


def _told(store: invariants.Written) -> dict[str, Any]:
    """What there is, but for what came too late and is kept as evidence beside its effect."""
    effects = [e._replace(evidence=None) for e in store.effects]
    return {
        "runs": store.runs, "batches": store.batches, "effects": effects, "asks": store.asks,
        "sessions": store.sessions, "messages": store.messages, "signals": store.signals,
    }  # fmt: skip


async def stands_still(name: str, plan: FaultPlan, place: Place, inside: Inside | None = None) -> Sleeper | None:
    """A process that passes a point of the plan. None if it came to its end without that."""
    downstream = await place.downstream()
    world = World(downstream.url, place.name, place.folder / "client.jsonl", listens=True)
    order: dict[str, Any] = {"slept": str(place.folder / "slept"), "signal": signal.SIGSTOP}
    if inside is not None:
        order["inside"] = inside.on(place.db)
    pid = app().starts(place.db, world, name, plan, **order)
    return Sleeper(place, downstream, world, name, pid) if app().stopped() else None


async def at_cell(point: str, kind: str, place: Place) -> Sleeper:
    name, at = f"{kind}_after_a_question" if point.startswith(("B10", "B11")) else kind, POINTS[point]
    if isinstance(at, Inside):
        sleeper = await stands_still(name, FaultPlan(), place, at)
    else:
        sleeper = await stands_still(name, FaultPlan().at(at, fault=stop()), place)
    assert sleeper is not None, f"{kind}: {point} was not passed"
    return sleeper


async def goes_on(sleeper: Sleeper) -> None:
    """Another process comes, and then it wakes."""
    awake_at = sleeper.place.folder / "slept"
    if behind.file_of(sleeper.db) is None:
        await sleeper.another_takes_over(awake_at)
    else:
        await sleeper.nobody_takes_over(awake_at)
    await sleeper.is_taken_up()


async def case(seed: int, place: Place) -> None:
    if seed < len(CELLS):
        await goes_on(await at_cell(*CELLS[seed], place))
        return
    places = every_place()
    name, at = places[(seed - len(CELLS)) * STRIDE % len(places)]
    sleeper = await stands_still(name, at.plan(stop()), place)
    assert sleeper is not None or not at.must_come, f"{name}: {at} was not passed"
    if sleeper is not None:
        await goes_on(sleeper)


async def control(seed: int, place: Place) -> None:
    """The sleeper does not learn how long it slept, and what kept others away is gone."""
    sleeper = await at_cell("B8, started", "once_without_check", place)
    if (file := behind.file_of(sleeper.db)) is not None:
        os.unlink(f"{file}.lock")
    await sleeper.another_takes_over(None)
    await sleeper.is_taken_up()


FAMILY = Family(case=case, control=control, cases=300, stores=("sqlite", "postgresql"), tries=1)


@on_stores(("point", "kind"), SAMPLE[::3], SAMPLE)
async def test_who_stands_still_past_its_lease_and_goes_on_changes_nothing(point: str, kind: str, place: Place) -> None:
    await goes_on(await at_cell(point, kind, place))


async def test_a_letter_that_is_sent_an_hour_late_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)
