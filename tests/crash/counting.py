"""Which calls of the store does an uninterrupted scenario make? At each of them something can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from crash.lives import Death, Life
from crash.scenarios import SCENARIOS, Scenario, World, WorldInside, first_life, second_life
from ondol.testing import FaultPlan
from ondol.testing.faults import Fault, When

_SHARED = "ONDOL_TESTS_COUNTED"  # the path of what the first of the processes of a test run counted


async def live(db: str, world: World, scenario: Scenario, plan: FaultPlan, death: Death | None = None) -> bool:
    """All that the client does, with a restart where the scenario has one. Returns whether a process died of it."""
    agent = scenario.agent(world)
    async with Life(db, agent, plan=plan, death=death, deps=world) as life:
        if not life.is_dead:
            await life.lives_or_dies(first_life(life.rt, world, scenario))
    if life.is_dead or not scenario.asks:
        return life.is_dead
    async with Life(db, agent, plan=plan, death=death, deps=world) as life:
        if not life.is_dead:
            await life.lives_or_dies(second_life(life.rt, world))
    return life.is_dead


class Counting(FaultPlan):
    """It also remembers which calls the engine made by itself (``looks``): those come when they come."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: set[str] = set()

    def enter(self, point: str) -> int:
        task = asyncio.current_task()
        if task is not None and getattr(task.get_coro(), "__qualname__", "").startswith("EmbeddedEngine._keep"):
            self.looks.add(point)
        return super().enter(point)


class Counted(NamedTuple):
    """What a scenario passes when nothing goes wrong."""

    calls: list[str]  # of the store
    writes: list[str]
    looks: list[str]  # see Counting


@functools.cache
def looks() -> frozenset[str]:
    """The calls that are at no certain place of a scenario: the engine looks for work, and keeps house."""
    return frozenset().union(*(passed.looks for passed in counted().values())) - {"call", "write"}


@contextlib.contextmanager
def counted_once() -> Iterator[None]:
    """All processes that this one begins count as the first of them did: on a busy machine a scenario may look for a
    signal once more, and then each would have other tests."""
    with tempfile.NamedTemporaryFile() as file:
        os.environ[_SHARED] = file.name
        yield
        del os.environ[_SHARED]


@functools.cache
def counted() -> Mapping[str, Counted]:
    if (shared := os.environ.get(_SHARED)) is None:
        return _counted_elsewhere()
    with open(shared, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (known := file.read()):
            known = json.dumps(_counted_elsewhere())
            file.write(known)
    return {name: Counted(*passed) for name, passed in json.loads(known).items()}


def _counted_elsewhere() -> Mapping[str, Counted]:
    with ThreadPoolExecutor(1) as elsewhere:  # whoever asks may be in an event loop
        return elsewhere.submit(lambda: asyncio.run(_count())).result()


async def _count() -> Mapping[str, Counted]:
    found: dict[str, Counted] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, scenario in SCENARIOS.items():
            plan = Counting()
            world = WorldInside("", name, Path(folder, f"{name}.jsonl"))
            await live(f"sqlite:///{folder}/{name}.db", world, scenario, plan)
            found[name] = Counted(plan.calls, plan.writes, sorted(plan.looks))
    return found


@dataclass(frozen=True)
class Place:
    """The ``nth`` write of that name in an uninterrupted run, its ``k``-th of any, and whether before or after it."""

    k: int
    write: str
    nth: int
    when: When

    @property
    def must_come(self) -> bool:
        """What the model sees next rides on the last outcome of a step, or, as it happens, is a write of its own; and
        a signal that was read may be looked for once more."""
        return not (self.write in ("note_down", "absorb") and self.nth > 1)

    def plan(self, fault: Fault) -> FaultPlan:
        return FaultPlan().at(self.write, when=self.when, nth=self.nth, fault=fault)


@functools.cache
def every_place(*whens: When) -> list[tuple[str, Place]]:
    """Of each scenario, each write that it makes, before and after it.

    Housekeeping comes when it comes: left out. So is what precedes a replay or a fork: others die at that.
    """
    places = []
    for name, passed in counted().items():
        seen: Counter[str] = Counter()
        for k, write in enumerate((n for n in passed.writes if n not in looks()), 1):
            seen[write] += 1
            if SCENARIOS[name].again and not (seen["accept_replay"] or seen["accept_fork"]):
                continue
            places += [(name, Place(k, write, seen[write], when)) for when in whens or ("before", "after")]
    return places


def every_write(*whens: When) -> list[object]:
    """The same as parameters, with a name that says so."""
    return [pytest.param(name, at, id=f"{name}-{at.k:02}-{at.write}-{at.when}") for name, at in every_place(*whens)]
