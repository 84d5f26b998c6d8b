"""Every call of the store may fail, in every way: nothing is lost, nothing is done twice, and it works again.

A counting pass finds the calls, so that new ones are tried without being named here. The first seeds take a scenario of
the crash tests and a fault each, and try it at every call that no scenario before it had in the same neighbourhood. A
seed behind them takes two places of any scenario, the second perhaps in the process that takes up what the first left.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import behind
from crash.aftermath import LATER, is_taken_up
from crash.counting import counted, looks
from crash.lives import Death, HurriedClock, Life
from crash.scenarios import SCENARIOS, Scenario, World, WorldInside, first_life, second_life, take_up

from ondol import OutcomeUnknown, Runtime, effects
from ondol.errors import StoreBusy, StoreError, StoreFault, StoreFull
from ondol.testing import FaultPlan, ManualClock, raise_
from ondol.testing.faults import Fault, When
from ondol.worker import EmbeddedEngine
from torture.campaign import Family, Place

RAISED: Mapping[str, tuple[When, StoreError]] = {
    "error": ("before", StoreFault("nobody foresaw this")),
    "done_then_error": ("after", OutcomeUnknown("the answer was lost")),
    "busy": ("before", StoreBusy("another process writes")),
    "full": ("before", StoreFull("no space left")),
    "io_error": ("before", StoreError("reading or writing failed")),
}
FAULTS = (*RAISED, "cancelled", "gone")


@dataclass(frozen=True)
class Cell:
    """One call of a scenario, the ``nth`` of that name, and what goes wrong with it."""

    scenario: str
    call: str
    nth: int
    fault: str

    @property
    def must_come(self) -> bool:
        """What is read, and what rides on another write, comes or not as the tasks happen to fall."""
        is_write = self.call in counted()[self.scenario].writes and self.call not in looks()
        return is_write and not (self.call == "note_down" and self.nth > 1)

    def __str__(self) -> str:
        return f"{self.scenario}-{self.call}-{self.nth}-{self.fault}"


def places(scenario: str) -> list[tuple[str, int]]:
    """The calls of a scenario, each with how many of its name there were with it."""
    seen: Counter[str] = Counter()
    found = []
    for call in counted()[scenario].calls:
        seen[call] += 1
        if call not in looks():
            found.append((call, seen[call]))
    return found


@functools.cache
def singles() -> Mapping[str, Sequence[tuple[str, int]]]:
    """Of each scenario, the places that have no like in those before it: the same call after the same other one.

    What the engine looks for comes when it comes: it is tried in the first scenario.
    """
    found, known = {}, set()
    for scenario in SCENARIOS:
        found[scenario] = [] if found else [(call, nth) for call in sorted(looks()) for nth in (1, 2, 4)]
        before = ""
        for call, nth in places(scenario):
            if (before, call) not in known:
                known.add((before, call))
                found[scenario].append((call, nth))
            before = call
    return found


def pair(seed: int) -> tuple[Cell, Cell, bool]:
    """Two cells of one scenario, and whether the second is met by the process that takes it up."""
    chosen = random.Random(seed)
    scenario = chosen.choice(list(SCENARIOS))
    (a, n), (b, m) = chosen.choice(places(scenario)), chosen.choice(places(scenario))
    first, second = chosen.choice(FAULTS), chosen.choice(FAULTS)
    return Cell(scenario, a, n, first), Cell(scenario, b, m, second), chosen.random() < 0.5


# --- one life after the other -----------------------------------------------------------------------------------


class CutOff:
    """The fault "cancelled": a client's own task is; of the others, which nobody cancels alone, all are."""

    def __init__(self) -> None:
        self.happened = asyncio.Event()
        self.client: asyncio.Task[Any] | None = None

    def hit(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        if task is not self.client:
            self.happened.set()
        task.cancel()

    async def ahit(self) -> None:
        self.hit()


class Faults:
    """What goes wrong in the lives of a case."""

    def __init__(self, *cells: Cell) -> None:
        self.death, self.cut, self.plan = Death(), CutOff(), FaultPlan()
        for cell in cells:
            when, fault = self._of(cell)
            self.plan.at(cell.call, when=when, nth=cell.nth, fault=fault)

    def _of(self, cell: Cell) -> tuple[When, Fault]:
        if cell.fault in RAISED:
            when, error = RAISED[cell.fault]
            return when, raise_(error)
        return "before", self.cut if cell.fault == "cancelled" else self.death


Client = Callable[[Runtime], Coroutine[Any, Any, Any]]


async def lives(
    db: str, world: World, scenario: Scenario, clock: ManualClock, faults: Faults, *clients: Client
) -> None:
    """One process after the other on the store, each with its client."""
    for client in clients:
        try:
            async with Life(
                db, scenario.agent(world), plan=faults.plan, death=faults.death, clock=clock, deps=world
            ) as life:
                if life.is_dead:
                    return
                if not await _lives(life, faults.cut, client, lambda rt: take_up(rt, world, scenario)):
                    return
        except StoreError:  # it could not be opened, or closed
            return
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():  # this case itself is
                raise
            return


async def _lives(life: Life, cut: CutOff, client: Client, again: Client) -> bool:
    """False if the process ended before its client did. A client that was told of an error does the same again."""
    while True:
        working = cut.client = asyncio.create_task(client(life.rt))
        ends = [asyncio.create_task(end.wait()) for end in (cut.happened, life.store.died)]
        await asyncio.wait({working, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if cut.happened.is_set():
            cut.happened.clear()
            await life.cut_off()
            return False
        if life.is_dead:
            return False
        for end in ends:
            end.cancel()
        await asyncio.wait(ends)
        if not working.cancelled() and not isinstance(working.exception(), StoreError):
            working.result()
            return True
        client = again


@contextmanager
def _nobody_waits_for_a_deadline(clock: ManualClock) -> Iterator[None]:
    """Time passes when a run does nothing but wait for an instant, such as the deadline of a lost attempt.

    From the start of a process: it may be at such a run before its client comes.
    """
    fell_asleep = EmbeddedEngine._fell_asleep

    def passes(engine: EmbeddedEngine, run: str) -> None:
        fell_asleep(engine, run)
        clock.advance(minutes=2)

    with patch.object(EmbeddedEngine, "_fell_asleep", passes):
        yield


async def suffers(place: Place, first: Faults, second: Faults | None, name: str) -> None:
    """The client's first life, perhaps another that takes it up, and one in which all has to come to rest."""
    scenario, world, db = SCENARIOS[name], WorldInside.of(place.folder), place.db
    clock = HurriedClock(datetime.now(UTC))
    clients: list[Client] = [lambda rt: first_life(rt, world, scenario)]
    if scenario.asks:
        clients.append(lambda rt: second_life(rt, world))
    with patch("ondol.worker._STORE_RETRY", 0.001), _nobody_waits_for_a_deadline(clock):
        await lives(db, world, scenario, clock, first, *clients)
        if second is not None:
            await lives(db, world, scenario, clock, second, lambda rt: take_up(rt, world, scenario))
        if not behind.exists(db):  # it failed to open: there is nothing to look at yet
            await lives(db, world, scenario, clock, Faults(), lambda rt: rt.runs())
        await is_taken_up(db, world, name, world, LATER)


# --- the family -------------------------------------------------------------------------------------------------


KINDS = [(scenario, fault) for scenario in SCENARIOS for fault in FAULTS]


async def case(seed: int, place: Place) -> None:
    if seed < len(KINDS):
        await _singles(*KINDS[seed], place)
    else:
        a, b, later = pair(seed)
        first, second = (Faults(a), Faults(b)) if later else (Faults(a, b), None)
        await suffers(place, first, second, a.scenario)


async def _singles(scenario: str, fault: str, place: Place) -> None:
    """A process that is gone at a write is left out: that is tried at each of them in ``crash/test_in_process.py``."""
    writes = counted()[scenario].writes
    for call, nth in singles()[scenario]:
        if fault != "gone" or call not in writes:
            await _single(Cell(scenario, call, nth, fault), place.within(f"{call}-{nth}"))


async def _single(cell: Cell, place: Place) -> None:
    faults = Faults(cell)
    try:
        await suffers(place, faults, None, cell.scenario)
        if cell.must_come:
            assert faults.plan.unreached == [], f"not passed, but {faults.plan.passed}"
    except Exception as error:
        error.add_note(f"in {cell}")
        raise


async def control(seed: int, place: Place) -> None:
    """A lost write is made again, though nobody said that it did not happen."""
    with patch("ondol.effects._lost", lambda effect, rules, now: effects.Run(after=effect.deadline)):
        await _single(Cell("once_without_check", "outcome", 1, "gone"), place)


FAMILY = Family(
    case=case, control=control, cases=len(KINDS) + 10_000, sample=len(KINDS), tries=1, stores=("sqlite", "postgresql")
)


@FAMILY.sampled
async def test_a_call_of_the_store_that_fails_loses_nothing_and_repeats_nothing(seed: int, place: Place) -> None:
    await case(seed, place)


async def test_what_is_done_twice_is_noticed(place: Place) -> None:
    assert await FAMILY.notices(place) == 0


def test_every_call_that_a_scenario_makes_is_tried() -> None:
    made = {call for plan in counted().values() for call in plan.calls}
    assert made == {call for places in singles().values() for call, _ in places}
