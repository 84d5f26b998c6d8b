"""An upload that no run came to use goes after a day, one that a run uses stays, and nothing comes between the two."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ondol import Agent, Run, Runtime
from ondol.errors import NotFound, RevisionConflict
from ondol.stores.sqlite import SqliteStore
from ondol.stores.sqlite_admin import check
from ondol.testing import FaultPlan, FaultyStore, ManualClock, ScriptedModel, barrier

DATA = b"%PDF an invoice"
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def plan() -> FaultPlan:
    return FaultPlan()


@pytest.fixture
async def rt(tmp_path: Path, clock: ManualClock, plan: FaultPlan) -> AsyncIterator[Runtime]:
    agent = Agent(name="reader", model=ScriptedModel(["read"]))
    async with Runtime(FaultyStore(SqliteStore(tmp_path / "ondol.db"), plan), agents=[agent], clock=clock) as rt:
        yield rt
    assert check(tmp_path / "ondol.db") == []


async def upload_only(rt: Runtime) -> None:
    """The bytes arrive, their operation is refused."""
    with pytest.raises(RevisionConflict):
        await rt.start("reader", "read this", attachments=[DATA], session="s", expected_revision=99)


async def run_with_attachment(rt: Runtime, session: str = "s") -> Run:
    run = await rt.start("reader", "read this", attachments=[DATA], session=session)
    assert (await run.result()).text == "read"
    return run


async def collect(rt: Runtime) -> int:
    return await rt._working.collect_blobs()


async def is_kept(rt: Runtime) -> bool:
    try:
        assert await rt.get_blob(DIGEST) == DATA
    except NotFound:
        return False
    return True


async def test_an_upload_that_no_run_uses_is_collected_after_a_day(rt: Runtime, clock: ManualClock) -> None:
    await upload_only(rt)
    clock.advance(hours=24)
    assert await collect(rt) == 0
    assert await is_kept(rt)
    clock.advance(seconds=1)
    assert await collect(rt) == 1
    assert not await is_kept(rt)
    assert await collect(rt) == 0


async def test_what_a_run_uses_is_kept(rt: Runtime, clock: ManualClock) -> None:
    await run_with_attachment(rt)
    clock.advance(days=365)
    assert await collect(rt) == 0
    assert await is_kept(rt)


async def test_what_a_deleted_session_used_is_collected_unless_another_uses_it(rt: Runtime, clock: ManualClock) -> None:
    await run_with_attachment(rt, "one")
    await run_with_attachment(rt, "other")
    clock.advance(days=2)
    await rt.delete_session("one")
    assert await collect(rt) == 0
    assert await is_kept(rt)
    await rt.delete_session("other")
    assert await collect(rt) == 1
    assert not await is_kept(rt)


async def test_accepting_an_operation_renews_what_it_uses(rt: Runtime, clock: ManualClock) -> None:
    await upload_only(rt)
    clock.advance(hours=23)
    await run_with_attachment(rt)
    await rt.delete_session("s")
    clock.advance(hours=23)  # two days after the upload but for an hour twice
    assert await collect(rt) == 0
    assert await is_kept(rt)
    clock.advance(hours=2)
    assert await collect(rt) == 1


async def test_sending_it_again_renews_an_upload(rt: Runtime, clock: ManualClock) -> None:
    await upload_only(rt)
    clock.advance(hours=23)
    await upload_only(rt)
    clock.advance(hours=23)
    assert await collect(rt) == 0
    assert await is_kept(rt)


@asynccontextmanager
async def held_at(plan: FaultPlan, point: str, task: asyncio.Task[object]) -> AsyncIterator[None]:
    """The task stands at that point, or has come past it long ago."""
    held = barrier()
    plan.at(point, nth=None, fault=held)
    await asyncio.sleep(0)
    reached = asyncio.create_task(held.reached.wait())
    await asyncio.wait([reached, task], return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    assert held.reached.is_set(), f"{point} was never passed"
    yield
    held.go_on.set()


@pytest.mark.parametrize(
    "point", ["put_blob.before", "put_blob.after", "keep_blob.before", "keep_blob.after", "accept.before"]
)
async def test_a_collection_in_the_middle_of_an_upload_takes_nothing_from_it(
    rt: Runtime, clock: ManualClock, plan: FaultPlan, point: str
) -> None:
    await upload_only(rt)
    clock.advance(hours=25)
    uploading = asyncio.create_task(run_with_attachment(rt))
    async with held_at(plan, point, uploading):
        await collect(rt)
    await uploading
    assert await is_kept(rt)


@pytest.mark.parametrize("point", ["drop_unused_blobs.before", "drop_unused_blobs.after"])
async def test_an_upload_in_the_middle_of_a_collection_loses_nothing(
    rt: Runtime, clock: ManualClock, plan: FaultPlan, point: str
) -> None:
    await upload_only(rt)
    clock.advance(hours=25)
    collecting = asyncio.create_task(collect(rt))
    async with held_at(plan, point, collecting):
        await run_with_attachment(rt)
    await collecting
    assert await is_kept(rt)


async def test_a_collection_that_was_killed_is_finished_by_the_next_one(rt: Runtime, tmp_path: Path) -> None:
    """It had put aside the bytes of an accepted run, and of nobody, and came to no more."""
    await run_with_attachment(rt)
    store = SqliteStore(tmp_path / "ondol.db")
    kept = store._blob("default", DIGEST)
    other = kept.parent / f".dropped-{hashlib.sha256(b'of nobody').hexdigest()}"
    os.replace(kept, kept.parent / f".dropped-{DIGEST}")
    other.write_bytes(b"of nobody")
    await collect(rt)
    assert await is_kept(rt)
    assert names_in(kept.parent) == [DIGEST]


async def test_what_a_killed_upload_left_is_removed_after_a_day(
    rt: Runtime, clock: ManualClock, tmp_path: Path
) -> None:
    await run_with_attachment(rt)
    folder = SqliteStore(tmp_path / "ondol.db")._blob("default", DIGEST).parent
    for name, hours in ((".new-old", 25), (".new-young", 23)):
        (folder / name).write_bytes(b"half of someth")
        at = clock.now().timestamp() - hours * 3600
        os.utime(folder / name, (at, at))
    await collect(rt)
    assert names_in(folder) == [".new-young", DIGEST]
    assert await is_kept(rt)


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


async def test_a_new_blob_is_on_the_disk_with_each_folder_that_leads_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is not flushed is gone after a power cut, and the bytes with it."""
    flushed: list[Path] = []

    def recorded(descriptor: int, flush: object = os.fsync) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        assert callable(flush)
        flush(descriptor)

    store = SqliteStore(tmp_path / "ondol.db")
    await store.open(lambda: None)
    monkeypatch.setattr(os, "fsync", recorded)
    digest = await store.put_blob("t", DATA)
    await store.close()
    blob = store._blob("t", digest)
    assert flushed[0].parent == blob.parent, "the bytes first"
    for folder in (blob.parent, blob.parent.parent, store.blobs, tmp_path):
        assert folder in flushed[1:], f"the name in {folder} may be lost"
