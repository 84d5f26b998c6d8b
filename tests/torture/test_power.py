"""The power may go at any instant: what a client was told and a tool was sent is there when it comes back.

Scenarios of the crash tests run once on a disk that is recorded, together with what the client was told and the outside
world saw between two of its events. A case builds what the disk may hold after one of them, and has a real runtime take
it up. The first seeds take each event with each loss; one behind them takes any event of a later recording. Images that
SQLite reads alike, and of which the world knows the same, are taken up once.

How the threads of a recording fall is not in the seed: a failure leaves its image in the folder that it names.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import apsw
import pytest
from crash import invariants
from crash.aftermath import is_taken_up
from crash.counting import live
from crash.lives import Life
from crash.scenarios import SCENARIOS, WorldInside

from ondol import Context
from ondol.stores import sqlite
from ondol.testing import EffectLine, FaultPlan
from torture.campaign import Family, Place, empty_folder
from torture.recorded_disk import LOSSES, Loss, Recording, recording

TRIED = ("parallel", "steps", "long_result", "approved_after_restart")  # each kind of effect, a blob, a restart
PLACES = 512  # events of a recording, and some to spare: each is tried with each loss
STRIDE = 7  # through them, so that the first of the cases are of every part of a recording
A_RECORDING = PLACES * len(TRIED) * len(LOSSES)  # cases that share the recordings
FEW_PAGES = 4  # of the log, after which it is copied into the file: often, so that a cut meets it


@dataclass(frozen=True)
class Seen:
    """Something that became known outside of the process."""

    what: Literal["noted", "happened"]
    line: Any


@dataclass(frozen=True)
class Watching(WorldInside):
    """A world that tells the recording what it sees."""

    made: Recording = field(default_factory=Recording, compare=False)

    def note(self, **line: Any) -> None:
        super().note(**line)
        self.made.note(Seen("noted", line))

    def happens(self, ctx: Context[Any], tool: str, arguments: Any) -> str:
        said = super().happens(ctx, tool, arguments)
        self.made.note(Seen("happened", self.ledger[-1]))
        return said


Opening = Callable[[Path], apsw.Connection]


@functools.lru_cache(maxsize=2 * len(TRIED))
def recorded(name: str, which: int, synchronous: str = "FULL") -> Recording:
    """One run of that scenario; ``which`` tells several from each other."""
    with ThreadPoolExecutor(1) as elsewhere:  # whoever asks may be in an event loop
        return elsewhere.submit(lambda: asyncio.run(_record(name, which, synchronous))).result()


async def _record(name: str, which: int, synchronous: str) -> Recording:
    def opened(path: Path, opening: Opening = sqlite._open_for_writing) -> apsw.Connection:
        connection = opening(path)
        if synchronous != "FULL":  # which is how the store itself opens it
            connection.execute(f"PRAGMA synchronous = {synchronous}")
        return connection

    pages = FEW_PAGES if which % 2 == 0 else sqlite._CHECKPOINT_PAGES
    with (
        empty_folder() as folder,
        patch.object(sqlite, "_open_for_writing", opened),
        patch.object(sqlite, "_CHECKPOINT_PAGES", pages),
        recording(folder) as made,
    ):
        world = Watching("", name, folder / "client.jsonl", made=made)
        await live(f"sqlite:///{folder / 'ondol.db'}", world, SCENARIOS[name], FaultPlan())
    return made


@dataclass(frozen=True)
class Cut:
    """Where the power went, and what that did."""

    scenario: str
    made: Recording
    until: int
    loss: Loss

    def world(self, folder: Path) -> WorldInside:
        """What was known outside at that time."""
        seen = [e for e in self.made.events[: self.until] if isinstance(e, Seen)]
        world = WorldInside("", self.scenario, folder / "client.jsonl")
        world.ledger.extend(e.line for e in seen if isinstance(e.line, EffectLine))
        for event in seen:
            if event.what == "noted":
                world.note(**event.line)
        return world


def cut(seed: int) -> Cut:
    chosen = random.Random(seed)
    scenario = TRIED[seed % len(TRIED)]
    made = recorded(scenario, seed // A_RECORDING)
    assert len(made.events) < PLACES, f"of {len(made.events)} events of {scenario} not each is tried"
    if seed >= A_RECORDING:
        return Cut(scenario, made, chosen.randrange(len(made.events) + 1), chosen.choice(LOSSES))
    at, loss = divmod(seed // len(TRIED), len(LOSSES))
    return Cut(scenario, made, at * STRIDE % PLACES * (len(made.events) + 1) // PLACES, LOSSES[loss])


passed: set[tuple[str, bytes, int, int]] = set()  # images of recordings that were taken up: as they are, and as read


async def _case(cut: Cut, seed: int, place: Place) -> None:
    image = cut.made.image(cut.until, cut.loss, random.Random(seed))
    world = cut.world(place.folder)
    raw = (cut.scenario, _digest(image), len(world.ledger), len(world.noted))
    if raw in passed:
        return
    known = hashlib.sha256()
    before = _before(image, place.within("looked-at").folder, known)
    key = (cut.scenario, known.digest(), len(world.ledger), len(world.noted))
    if key in passed:
        passed.add(raw)
        return
    db = f"sqlite:///{_made_of(image, place.within('taken-up').folder)}"
    scenario = SCENARIOS[cut.scenario]
    try:
        if before is None:
            async with Life(db, scenario.agent(world), deps=world):
                before = invariants.written(db)
        await is_taken_up(db, world, cut.scenario, world, before=before)
    except Exception as error:
        what = f"{cut.scenario}, after event {cut.until} of {len(cut.made.events)}, what was not flushed {cut.loss}"
        error.add_note(f"{what}; before it came {cut.made.events[max(0, cut.until - 3) : cut.until]}"[:1000])
        raise
    passed.update((key, raw))


def _digest(image: dict[str, bytes]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(image):
        digest.update(f"{name} {len(image[name])} ".encode())
        digest.update(image[name])
    return digest.digest()


def _made_of(image: dict[str, bytes], folder: Path) -> Path:
    for name, data in image.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "ondol.db"


def _before(image: dict[str, bytes], folder: Path, known: Any) -> invariants.Written | None:
    """What is written there, once SQLite has read its log; None if there is no store yet. ``known`` tells it apart."""
    file = _made_of(image, folder)
    for name in sorted(image):
        if ".blobs/" in name:
            known.update(name.encode() + image[name])
    if not file.exists():
        return None
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("PRAGMA schema_version")
        known.update(connection.serialize("main"))
        if not connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'runs'").get:
            return None
        return invariants.written(f"sqlite:///{file}")


async def case(seed: int, place: Place) -> None:
    await _case(cut(seed), seed, place)


async def control(seed: int, place: Place) -> None:
    """SQLite does not flush its log at each commit."""
    chosen = random.Random(seed)
    scenario = chosen.choice(TRIED)
    made = recorded(scenario, 0, "NORMAL")
    await _case(Cut(scenario, made, chosen.randrange(len(made.events) + 1), "dropped"), seed, place)


FAMILY = Family(case=case, control=control, cases=200_000, sample=5_000, tries=50)


@pytest.mark.parametrize("part", range(10))
async def test_what_was_told_is_there_when_the_power_comes_back(part: int, place: Place) -> None:
    for seed in range(part, FAMILY.sample, 10):
        await case(seed, place.within(str(seed)))


async def test_a_log_that_is_not_flushed_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)
