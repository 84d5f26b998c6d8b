"""A disk that is full, cannot be written, lost a file, cut it short or changed it; a store of another version.

Where the disk is healthy again nothing was lost, and nothing has to be started again. Where the store is damaged that
is found: who reads it is told the truth or refused with an error that says so, and what was refused is left as it is.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import pytest
from crash import invariants
from crash.aftermath import is_taken_up
from crash.counting import counted
from crash.lives import HurriedClock, Life
from crash.scenarios import FIRST, NAMED, SESSION, WorldInside, first_life, second_life
from stores.faulty_disk import FaultyDisk, faulty_disk

from ondol import Runtime
from ondol.errors import OndolError, StoreCorrupt, StoreError, StoreTooNew
from ondol.stores.migrations import migrations
from torture.campaign import Family, Place, empty_folder
from torture.recorded_disk import Recording
from torture.test_calls import Client, Faults, lives
from torture.test_power import recorded

Files = dict[str, bytes]
LOG = "ondol.db-wal"
DRIVEN = ("once_with_check", "parallel", "long_result", "steps", "approved_after_restart")


# --- a fault that passes ----------------------------------------------------------------------------------------


class Refusing:
    """The fault: from here on the disk takes nothing, until it has refused so many writes."""

    def __init__(self, disk: FaultyDisk, code: int, times: int) -> None:
        self.disk, self.code, self.left = disk, code, times
        disk.refused = self.refused

    def hit(self) -> None:
        self.disk.refuses = self.code

    async def ahit(self) -> None:
        self.hit()

    def refused(self) -> None:
        self.left -= 1
        if self.left <= 0:
            self.disk.refuses = None


async def passes(code: int, chosen: random.Random, place: Place) -> None:
    """The disk refuses some writes and recovers, and the same processes go on."""
    name = chosen.choice(DRIVEN)
    scenario, world, db = NAMED[name], WorldInside.of(place.folder), place.db
    clients: list[Client] = [lambda rt: first_life(rt, world, scenario)]
    if scenario.asks:
        clients.append(lambda rt: second_life(rt, world))
    with faulty_disk() as disk, patch("ondol.worker._STORE_RETRY", 0.001):
        faults = Faults()
        kth = chosen.randrange(1, len(counted()[name].writes) + 1)
        faults.plan.at_write(kth, "before", Refusing(disk, code, chosen.randrange(1, 8)))
        await lives(db, world, scenario, HurriedClock(datetime.now(UTC)), faults, *clients)
        disk.refuses = None
        await is_taken_up(db, world, name, world)


# --- damage -----------------------------------------------------------------------------------------------------


@functools.cache
def settled(name: str) -> tuple[Files, dict[str, Any]]:
    """The files of a scenario that came to its end, and what they say."""
    with ThreadPoolExecutor(1) as elsewhere:  # whoever asks may be in an event loop
        return elsewhere.submit(lambda: asyncio.run(_settle(name))).result()


async def _settle(name: str) -> tuple[Files, dict[str, Any]]:
    with empty_folder() as folder:
        scenario, world, db = NAMED[name], WorldInside.of(folder), f"sqlite:///{folder / 'ondol.db'}"
        async with Life(db, scenario.agent(world), deps=world) as life:
            await first_life(life.rt, world, scenario)
        await is_taken_up(db, world, name, world)
        files = found(folder)
        runs = sorted(invariants.written(db).runs)
        async with Runtime(db, agents=[]) as rt:
            return files, await said(rt, runs)


async def said(rt: Runtime, runs: list[str]) -> dict[str, Any]:
    """All that has a checksum, as whoever asks is told; None where that is refused."""
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "state": lambda: _state(rt),
        "session": lambda: _messages(rt),
    }
    for run in runs:
        asked[f"events {run}"] = lambda run=run: _events(rt, run)  # type: ignore[misc]
        asked[f"body {run}"] = lambda run=run: _body(rt, run)  # type: ignore[misc]
        asked[f"blobs {run}"] = lambda run=run: _blobs(rt, run)  # type: ignore[misc]
    told: dict[str, Any] = {}
    for what, ask in asked.items():
        try:
            async with asyncio.timeout(5):
                told[what] = await ask()
        except OndolError:
            told[what] = None
    return told


async def _state(rt: Runtime) -> Any:
    return (await rt.get_session(SESSION)).state


async def _messages(rt: Runtime) -> Any:
    return [m.message for m in await (await rt.get_session(SESSION)).messages()]


async def _events(rt: Runtime, run: str) -> Any:
    return [(e.type, e.data) async for e in (await rt.get_run(run)).events()]


async def _body(rt: Runtime, run: str) -> Any:
    found = await rt.get_run(run)
    return (await found.result()).body if found.status == "completed" else None


async def _blobs(rt: Runtime, run: str) -> Any:
    return [await rt.get_blob(digest) for digest in sorted(await rt.blobs_of(run))]


def found(folder: Path) -> Files:
    """What is written there; not what processes share while they run."""
    files = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    return {name: data for name, data in files.items() if name.startswith("ondol.db") and not _shared(name)}


def _shared(name: str) -> bool:
    return name.endswith(("-shm", ".lock"))


def made_of(files: Files, folder: Path) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "ondol.db"


async def reads_truly(files: Files, truth: dict[str, Any], place: Place) -> None:
    """What is damaged is refused, at once or by whoever reads it; all else is what it was."""
    file = made_of(files, place.folder)
    runs = [what.removeprefix("events ") for what in truth if what.startswith("events ")]
    try:
        async with Runtime(f"sqlite:///{file}", agents=[]) as rt:
            told = await said(rt, runs)
    except StoreCorrupt:
        assert found(place.folder) == files, "it was refused, and not left as it is"
        return
    except StoreError:
        return
    wrong = [what for what, value in told.items() if value is not None and value != truth[what]]
    assert not wrong, [(what, told[what], truth[what]) for what in wrong]


async def flipped(chosen: random.Random, place: Place) -> None:
    """One bit of the file, of a blob, or of a log that a crash has left."""
    if chosen.random() < 0.3:
        files = left_by_a_crash(chosen)
        await goes_on_from(made_of({**files, LOG: with_a_flip(files[LOG], chosen)}, place.folder))
    else:
        await flipped_at_rest(chosen, place)


async def flipped_at_rest(chosen: random.Random, place: Place) -> None:
    files, truth = settled(chosen.choice(DRIVEN))
    name = chosen.choice([name for name, data in sorted(files.items()) if data])
    await reads_truly({**files, name: with_a_flip(files[name], chosen)}, truth, place)


def with_a_flip(data: bytes, chosen: random.Random) -> bytes:
    changed = bytearray(data)
    changed[chosen.randrange(len(changed))] ^= 1 << chosen.randrange(8)
    return bytes(changed)


async def cut_short(chosen: random.Random, place: Place) -> None:
    if chosen.random() < 0.5:
        files, truth = settled(chosen.choice(DRIVEN))
        data = files["ondol.db"]
        await reads_truly({**files, "ondol.db": data[: chosen.randrange(1, len(data))]}, truth, place)
        return
    files = left_by_a_crash(chosen)
    log = files[LOG]
    file = made_of({**files, LOG: log[: chosen.randrange(len(log))]}, place.folder)
    await goes_on_from(file)


async def goes_on_from(file: Path) -> None:
    """It is a store as it once was, and can be used."""
    scenario, world, db = NAMED["once_with_check"], WorldInside.of(file.parent), f"sqlite:///{file}"
    async with Life(db, scenario.agent(world), deps=world) as life:
        run = await life.rt.start("crashes", FIRST[1], session="another", operation_id="another")
        assert (await run.result()).text == "done"
    store = invariants.written(db)
    invariants.file_is_sound(store)
    invariants.journals_are_whole(store)
    invariants.rows_are_the_fold(store)


def left_by_a_crash(chosen: random.Random) -> Files:
    """With a log in which there is something, and of which nothing is copied into the file yet."""
    made: Recording = recorded(chosen.choice([name for name in DRIVEN if not NAMED[name].asks]), 1)
    middle = len(made.events) // 2
    files = made.image(chosen.randrange(middle, middle + middle // 4), "kept", chosen)
    assert files[LOG]
    return files


async def is_refused(file: Path, error: type[StoreError], files: Files) -> None:
    with pytest.raises(error, match=file.name):
        async with Runtime(f"sqlite:///{file}", agents=[]):
            pass
    assert found(file.parent) == files, "it was not left as it is"


async def deleted(chosen: random.Random, place: Place) -> None:
    files = left_by_a_crash(chosen)
    del files["ondol.db"]
    await is_refused(made_of(files, place.folder), StoreCorrupt, files)


async def of_another_version(chosen: random.Random, place: Place) -> None:
    files = dict(settled(chosen.choice(DRIVEN))[0] if chosen.random() < 0.5 else left_by_a_crash(chosen))
    file = made_of(files, place.folder)
    with closing(apsw.Connection(str(file))) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute(f"PRAGMA user_version = {len(migrations()) + chosen.randrange(1, 1000)}")
    await is_refused(file, StoreTooNew, found(place.folder))


KINDS: tuple[Callable[[random.Random, Place], Awaitable[None]], ...] = (
    functools.partial(passes, apsw.SQLITE_FULL),
    functools.partial(passes, apsw.SQLITE_READONLY),
    functools.partial(passes, apsw.SQLITE_IOERR_WRITE),
    deleted,
    flipped,
    cut_short,
    of_another_version,
)


async def case(seed: int, place: Place) -> None:
    await KINDS[seed % len(KINDS)](random.Random(seed), place)


async def control(seed: int, place: Place) -> None:
    """Nobody looks at the checksum of an entry, a message or a reply."""
    with patch("ondol.checksums.of_batch", lambda *_: 0), patch("ondol.checksums.check_message", lambda *_: None):
        await flipped_at_rest(random.Random(seed), place)


FAMILY = Family(case=case, control=control, cases=1_000, sample=63, tries=500, violation=(AssertionError, ValueError))


@FAMILY.sampled
async def test_a_faulty_disk_loses_nothing_and_what_is_damaged_is_not_believed(seed: int, place: Place) -> None:
    await case(seed, place)


async def test_a_store_without_checksums_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)
