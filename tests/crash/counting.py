"""Which calls of the store does an uninterrupted scenario make? At each of them something can go wrong."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from crash.lives import Death, Life
from crash.scenarios import SCENARIOS, Scenario, World, WorldInside, first_life, second_life
from ondol.testing import FaultPlan
from ondol.testing.faults import Fault, When


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


@functools.cache
def looks() -> frozenset[str]:
    """The calls that are at no certain place of a scenario: the engine looks for work, and keeps house."""
    return frozenset().union(*(plan.looks for plan in counted().values())) - {"call", "write"}


@functools.cache
def counted() -> Mapping[str, Counting]:
    """What each scenario passes when nothing goes wrong: its ``calls`` of the store, its ``writes``."""
    with ThreadPoolExecutor(1) as elsewhere:  # whoever asks may be in an event loop
        return elsewhere.submit(lambda: asyncio.run(_count())).result()


async def _count() -> Mapping[str, Counting]:
    plans: dict[str, Counting] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, scenario in SCENARIOS.items():
            plans[name] = Counting()
            world = WorldInside("", name, Path(folder, f"{name}.jsonl"))
            await live(f"sqlite:///{folder}/{name}.db", world, scenario, plans[name])
    return plans


@dataclass(frozen=True)
class Place:
    """The ``nth`` write of that name in an uninterrupted run, its ``k``-th of any, and whether before or after it."""

    k: int
    write: str
    nth: int
    when: When

    @property
    def must_come(self) -> bool:
        """What the model sees next rides on the last outcome of a step, or, as it happens, is a write of its own."""
        return not (self.write == "note_down" and self.nth > 1)

    def plan(self, fault: Fault) -> FaultPlan:
        return FaultPlan().at(self.write, when=self.when, nth=self.nth, fault=fault)


@functools.cache
def every_place(*whens: When) -> list[tuple[str, Place]]:
    """Of each scenario, each write that it makes, before and after it.

    Housekeeping comes when it comes: left out. So is what precedes a replay or a fork: others die at that.
    """
    places = []
    for name, plan in counted().items():
        seen: Counter[str] = Counter()
        for k, write in enumerate((n for n in plan.writes if n not in looks()), 1):
            seen[write] += 1
            if SCENARIOS[name].again and not (seen["accept_replay"] or seen["accept_fork"]):
                continue
            places += [(name, Place(k, write, seen[write], when)) for when in whens or ("before", "after")]
    return places


def every_write(*whens: When) -> list[object]:
    """The same as parameters, with a name that says so."""
    return [pytest.param(name, at, id=f"{name}-{at.k:02}-{at.write}-{at.when}") for name, at in every_place(*whens)]
