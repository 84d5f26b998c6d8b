"""A full disk: what does not fit is absent, everything else goes on, and when space returns nothing has to restart."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import behind
import pytest
from faulty_disk import FaultyDisk, faulty_disk

from ondol import Agent, Context, Runtime, tool
from ondol.errors import NotFound, StoreError, StoreFull
from ondol.queries import get_meta
from ondol.stores.sqlite import SqliteStore
from ondol.stores.sqlite_admin import check
from ondol.testing import FaultPlan, FaultyStore, Process, ScriptedModel, call
from ondol.testing.store_contract import on_a_thread
from ondol.transactions import STATEMENTS, Tx, set_meta

LARGE = "x" * 400_000  # characters; a hundred pages


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with faulty_disk() as disk:
        yield disk


@asynccontextmanager
async def opened(file: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(file)
    await store.open(lambda: None)
    try:
        yield store
    finally:
        await store.close()


def set_all(values: dict[str, str]) -> Tx[None]:
    for key, value in values.items():
        yield [("meta.set", {"key": key, "value": value})]


def limit_pages(more: int) -> Tx[None]:
    """SQLite itself refuses to grow the file by more pages than this."""
    ((((pages,),),)) = yield [("test.pages", {})]
    yield [(f"test.limit.{pages + more}", {})]


def no_limit() -> Tx[None]:
    yield [("test.limit.1000000", {})]


class _Limits(dict[str, str]):
    """The statements of the store, and those by which this test sets its limit."""

    def __missing__(self, name: str) -> str:
        if name == "test.pages":
            return "PRAGMA page_count"
        return f"PRAGMA max_page_count = {int(name.removeprefix('test.limit.'))}"


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ondol.stores.sqlite.STATEMENTS", _Limits(STATEMENTS))


@contextmanager
def no_file_may_grow_beyond(size: int) -> Iterator[None]:
    """The kernel refuses it with an I/O error (EFBIG), in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def together(store: SqliteStore, *writes: Callable[[], Any]) -> list[Any]:
    """The results of writes that come as one group: they wait behind one that is held up."""
    reached, go_on = threading.Event(), threading.Event()

    def hold_up() -> Tx[None]:
        reached.set()
        go_on.wait()
        yield []

    first = asyncio.create_task(store.write(hold_up))
    await asyncio.to_thread(reached.wait)
    waiting = [asyncio.create_task(write()) for write in writes]
    await asyncio.sleep(0)  # each task has handed over its transaction
    go_on.set()
    await first
    return await asyncio.gather(*waiting, return_exceptions=True)


# --- one write --------------------------------------------------------------------------------------------------


async def test_a_write_that_the_disk_cannot_take_is_absent(tmp_path: Path, disk: FaultyDisk) -> None:
    """The disk says so at the commit, when all statements have passed."""
    async with opened(tmp_path / "ondol.db") as store:
        await store.write(set_meta, "kept", "before")
        disk.space = 0
        for _ in range(3):
            with pytest.raises(StoreFull, match=r"ondol\.db: free some, then try again"):
                await store.write(set_all, {"kept": "after", "new": LARGE})
            assert await store.read(get_meta, "kept") == "before", "reads go on"
            assert await store.read(get_meta, "new") is None
        disk.space = None
        await store.write(set_all, {"kept": "after", "new": LARGE})
        assert await store.read(get_meta, "kept") == "after"
    assert check(tmp_path / "ondol.db") == []


async def test_a_store_that_closes_while_its_disk_takes_nothing_holds_nothing_and_loses_nothing(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """As it closes, SQLite copies its log into the file."""
    file = tmp_path / "ondol.db"
    async with opened(file) as store:
        await store.write(set_meta, "key", "there")
        disk.refuses = apsw.SQLITE_FULL
    disk.refuses = None
    assert not behind.held(f"sqlite:///{file}")
    async with opened(file) as again:
        assert await again.read(get_meta, "key") == "there"


async def test_a_process_that_comes_to_a_full_disk_is_told_that_it_is_full(tmp_path: Path) -> None:
    """It has to make the files beside the store before it can read a page. That is no fault of the disk."""
    async with opened(tmp_path / "ondol.db"):
        pass
    with no_file_may_grow_beyond(1000):
        with pytest.raises(StoreFull, match=r"ondol\.db: free some, then try again"):
            await SqliteStore(tmp_path / "ondol.db").open(lambda: None)
        (problem,) = check(tmp_path / "ondol.db")
    assert "free some" in problem
    assert check(tmp_path / "ondol.db") == []


async def test_a_write_that_the_file_cannot_take_is_absent(tmp_path: Path, limits: None) -> None:
    """SQLite says so in the middle, after some statements of the transaction have passed."""
    async with opened(tmp_path / "ondol.db") as store:
        await store.write(set_meta, "kept", "before")
        await store.write(limit_pages, 10)
        for _ in range(3):
            with pytest.raises(StoreFull, match=r"ondol\.db: free some, then try again"):
                await store.write(set_all, {"kept": "after", "new": LARGE, "more": "1"})
            assert await store.read(get_meta, "kept") == "before", "reads go on"
            assert await store.read(get_meta, "more") is None
            await store.write(set_meta, "small", "fits")
        await store.write(no_limit)
        await store.write(set_all, {"kept": "after", "new": LARGE, "more": "1"})
        assert await store.read(get_meta, "kept") == "after"
    assert check(tmp_path / "ondol.db") == []


async def test_a_large_transaction_that_spills_to_a_full_disk_is_absent(tmp_path: Path, disk: FaultyDisk) -> None:
    """More than the page cache holds is written before the commit: SQLite rolls back the whole of it by itself."""
    async with opened(tmp_path / "ondol.db") as store:
        await store.write(set_meta, "kept", "before")
        disk.space = 1_000_000
        with pytest.raises(StoreFull):
            await store.write(set_all, {"kept": "after", **{f"k{n}": LARGE for n in range(12)}})
        assert await store.read(get_meta, "kept") == "before"
        assert await store.read(get_meta, "k0") is None
        disk.space = None
        await store.write(set_meta, "kept", "after")
    assert check(tmp_path / "ondol.db") == []


async def test_an_io_error_is_told_apart_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ondol.db"
    async with opened(file) as store:
        await store.write(set_meta, "kept", "before")
        with no_file_may_grow_beyond(file.with_name("ondol.db-wal").stat().st_size):
            with pytest.raises(StoreError, match=r"ondol\.db") as raised:
                await store.write(set_meta, "kept", "after")
            assert await store.read(get_meta, "kept") == "before"
        assert "try again" in str(raised.value)
        await store.write(set_meta, "kept", "after")
        assert await store.read(get_meta, "kept") == "after"
    assert check(file) == []


async def test_a_read_error_while_it_looks_for_what_others_wrote_does_not_end_the_store(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async def write_around_a_read_error() -> str | None:
        failed = Bell()
        disk.unread = failed.ring
        async with opened(tmp_path / "ondol.db") as store, opened(tmp_path / "ondol.db") as other:
            await store.write(set_meta, "a", "1")
            await other.write(set_meta, "a", "2")
            disk.reads_fail = True
            await other.write(set_meta, "a", "3")  # from its cache: it was the last that wrote
            await failed.wait()
            disk.reads_fail = False
            await store.write(set_meta, "a", "4")
            return await other.read(get_meta, "a")

    # On a thread and a loop of its own: a writer that is gone would never answer.
    assert await asyncio.wait_for(on_a_thread(write_around_a_read_error), 10) == "4"


# --- a group ----------------------------------------------------------------------------------------------------


async def test_members_of_a_broken_group_are_run_again_each_alone(tmp_path: Path, limits: None) -> None:
    async with opened(tmp_path / "ondol.db") as store:
        await store.write(limit_pages, 20)
        committed = store.commits.transactions
        writes: list[Callable[[], Any]] = [lambda n=n: store.write(set_meta, f"k{n}", "fits") for n in range(10)]
        writes.insert(3, lambda: store.write(set_meta, "large", LARGE))
        writes.insert(7, lambda: store.write(refuse_after_writing, "k5"))
        results = await together(store, *writes)
        assert isinstance(results.pop(7), _Refused)
        assert isinstance(results.pop(3), StoreFull)
        assert results == [None] * 10
        assert store.commits.transactions == committed + 11, "the one that held them up, and the ten that fit"
        await store.write(no_limit)
    async with opened(tmp_path / "ondol.db") as store:
        assert [await store.read(get_meta, f"k{n}") for n in range(10)] == ["fits"] * 10
        assert await store.read(get_meta, "large") is None
    assert check(tmp_path / "ondol.db") == []


async def test_of_a_group_that_the_disk_takes_in_part_exactly_the_durable_ones_are_told(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with opened(tmp_path / "ondol.db") as store:
        await store.write(set_meta, "a", "1")
        disk.space = 100_000
        value = "y" * 20_000
        results = await together(store, *(lambda n=n: store.write(set_meta, f"k{n}", value) for n in range(20)))
        there = [await store.read(get_meta, f"k{n}") == value for n in range(20)]
        assert there == [result is None for result in results]
        assert {type(r) for r in results} == {type(None), StoreFull}, "some fit and some do not"
        disk.space = None
    async with opened(tmp_path / "ondol.db") as store:
        assert [await store.read(get_meta, f"k{n}") == value for n in range(20)] == there
    assert check(tmp_path / "ondol.db") == []


class _Refused(Exception):
    pass


def refuse_after_writing(key: str) -> Tx[None]:
    yield [("meta.set", {"key": key, "value": "of the one that refused"})]
    raise _Refused


# --- blobs ------------------------------------------------------------------------------------------------------


async def test_a_blob_that_the_disk_cannot_take_is_absent_and_leaves_no_part(tmp_path: Path) -> None:
    async with opened(tmp_path / "ondol.db") as store:
        small = await store.put_blob("t", b"small")
        with no_file_may_grow_beyond(100_000), pytest.raises(StoreFull, match="free some"):
            await store.put_blob("t", LARGE.encode())
        assert files_below(store.blobs) == [store._blob("t", small)]
        large = await store.put_blob("t", LARGE.encode())
        assert await store.get_blob("t", large) == LARGE.encode()


async def test_a_blob_whose_folder_cannot_be_made_is_refused_by_an_error_of_the_store(tmp_path: Path) -> None:
    async with opened(tmp_path / "ondol.db") as store:
        store.blobs.write_bytes(b"a file where the folder should be")
        with pytest.raises(StoreError, match=r"ondol\.db\.blobs") as raised:
            await store.put_blob("t", b"data")
        assert not isinstance(raised.value, StoreFull), "it is not full: freeing space would not help"


def files_below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


# --- a whole run ------------------------------------------------------------------------------------------------


class Fill:
    """A fault: from here on the disk is full."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk

    def hit(self) -> None:
        self.disk.space = 0

    async def ahit(self) -> None:
        self.hit()


class Bell:
    """It is rung in any thread, and waited for in the loop."""

    def __init__(self) -> None:
        self._loop, self._rung = asyncio.get_running_loop(), asyncio.Event()

    def ring(self) -> None:
        self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self) -> None:
        await self._rung.wait()


@pytest.mark.parametrize(
    ("point", "effects"),
    [("claim", 0), ("note_down", 0), ("answer", 0), ("started", 0), ("outcome", 1), ("commit", 1)],
)
async def test_a_run_waits_out_a_full_disk_and_has_its_effect_once(
    tmp_path: Path, disk: FaultyDisk, point: str, effects: int
) -> None:
    sent: list[str] = []

    @tool(effect="once")
    async def send(ctx: Context, to: str) -> str:
        sent.append(to)
        return "sent"

    model = ScriptedModel([[call("send", to="kim")], "done"])
    agent = Agent(name="mail", model=model, tools=[send])
    plan = FaultPlan().at(point, fault=Fill(disk))
    refused = Bell()
    disk.refused = refused.ring
    async with Runtime(FaultyStore(SqliteStore(tmp_path / "ondol.db"), plan), agents=[agent]) as rt:
        run = await rt.start(agent, "write to kim", operation_id="first")
        await refused.wait()
        assert len(sent) == effects, "no effect starts unless it was recorded before"
        with pytest.raises(StoreFull):
            await rt.start(agent, "write to kim", operation_id="second")
        with pytest.raises(NotFound):
            await rt.find_run("second")
        assert (await rt.get_run(run.id)).status in ("queued", "running"), "reads go on"
        disk.space = None
        assert (await run.result()).text == "done"
        assert sent == ["kim"]
        assert (await rt.run(agent, "write to kim", operation_id="second")).text == "done"
        assert sent == ["kim", "kim"]
        assert [e.state for e in await run.effects()] == ["succeeded"]
    assert check(tmp_path / "ondol.db") == []


# --- a failed flush ---------------------------------------------------------------------------------------------

FLUSH_FAILS = """
import asyncio, sys
from faulty_disk import FaultyDisk
from ondol.stores.sqlite import SqliteStore
from ondol.transactions import set_meta

async def main(file, n):
    disk = FaultyDisk()
    store = SqliteStore(file)
    await store.open(lambda: None)
    await store.write(set_meta, "before", "durable")
    print("durable")
    disk.flush_fails = True
    await asyncio.gather(*(store.write(set_meta, f"k{i}", "never confirmed") for i in range(n)), return_exceptions=True)
    print("told")

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.parametrize("n", [1, 10])
async def test_after_a_failed_flush_the_process_exits_and_nobody_was_told(tmp_path: Path, n: int) -> None:
    """What is on the disk is unknown then, and asking the kernel again would say yes."""
    file = tmp_path / "ondol.db"
    kit = {"PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))}
    async with Process(["-c", FLUSH_FAILS, str(file), str(n)], env=kit) as process:
        await process.line("durable")
        assert await process.wait() == 74  # EX_IOERR
        assert "told" not in process.output
        assert "start it again when the disk is healthy" in process.errors
    async with opened(file) as store:
        assert await store.read(get_meta, "before") == "durable"
    assert check(file) == []
