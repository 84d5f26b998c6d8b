"""One file, several processes: one of them drives, all of them may write, and the next takes over from a dead one."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import apsw
import pytest
from faulty_disk import faulty_disk

from ondol import Agent, Runtime
from ondol.errors import StoreBusy
from ondol.queries import get_meta
from ondol.stores import sqlite
from ondol.stores.sqlite import SqliteStore
from ondol.stores.sqlite_admin import check
from ondol.testing import Process, ScriptedModel
from ondol.transactions import set_meta

ROUNDS = 4  # new files that all processes open at once
PATIENCE = 10.0  # seconds for what must happen at last

OPENER = """
import asyncio, os, sys
from ondol.stores.sqlite import SqliteStore
from ondol.transactions import set_meta

async def open_and_write(file):
    store = SqliteStore(file)
    await store.open(lambda: None)
    await store.write(set_meta, str(os.getpid()), "was here")
    await store.close()

print("ready")
for line in sys.stdin:
    try:
        asyncio.run(open_and_write(line.strip()))
    except Exception as error:
        print("done", repr(error))
    else:
        print("done")
"""


async def test_eight_processes_open_one_new_file_at_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        openers = [await stack.enter_async_context(Process(["-c", OPENER])) for _ in range(8)]
        await asyncio.gather(*(opener.line("ready") for opener in openers))
        for n in range(ROUNDS):
            file = tmp_path / f"{n}.db"
            for opener in openers:
                opener.send(str(file))
            assert await asyncio.gather(*(opener.line("done") for opener in openers)) == ["done"] * 8
            store = SqliteStore(file)
            await store.open(lambda: None)
            for opener in openers:
                assert await store.read(get_meta, str(opener.pid)) == "was here"
            await store.close()
            assert check(file) == []


async def test_after_a_clean_close_the_file_is_whole_by_itself(tmp_path: Path) -> None:
    """What a copy of it would hold: no commit is left in a log beside it."""
    for n in range(5):
        store = SqliteStore(tmp_path / "ondol.db")
        await store.open(lambda: None)
        assert await store.drives("o", [])
        await store.write(set_meta, "a", str(n))
        await asyncio.gather(*(store.read(get_meta, "a") for _ in range(10)))
        await store.close()
        assert sorted(os.listdir(tmp_path)) == ["ondol.db", "ondol.db.lock"]


# --- who drives -------------------------------------------------------------------------------------------------

DRIVER = """
import asyncio, sys
from ondol import Agent, Runtime
from ondol.testing import ScriptedModel

async def asked_and_silent(request):
    print("asked")
    await asyncio.Event().wait()

async def main(db):
    async with Runtime(db, agents=[Agent(name="talk", model=ScriptedModel(asked_and_silent))]) as rt:
        print("drives", rt.drives)
        await (await rt.start("talk", "hello", operation_id="op")).result()

asyncio.run(main(sys.argv[1]))
"""


@asynccontextmanager
async def driving(db: str) -> AsyncIterator[Process]:
    """Another process that drives, with a run whose model does not answer."""
    async with Process(["-c", DRIVER, db]) as process:
        await process.line("drives True")
        await process.line("asked")
        yield process


def talk() -> Agent:
    return Agent(name="talk", model=ScriptedModel(["answered by the next process"]))


async def test_the_next_process_drives_when_the_first_is_killed(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'ondol.db'}"
    async with driving(db) as first, Runtime(db, agents=[talk()]) as second:
        assert not second.drives
        run = await second.find_run("op")
        assert run.status == "running"
        first.kill()
        async with asyncio.timeout(PATIENCE):
            assert (await run.result()).text == "answered by the next process"
        assert second.drives
    assert check(tmp_path / "ondol.db") == []


PARENT = """
import asyncio, os, signal, sys
from ondol.stores.sqlite import SqliteStore

async def main(file):
    store = SqliteStore(file)
    await store.open(lambda: None)
    print("drives", await store.drives("o", []))
    child = os.fork()
    if not child:
        signal.pause()
    print("child", child)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


async def test_a_child_that_outlives_a_killed_driver_keeps_nobody_from_driving(tmp_path: Path) -> None:
    """As a pool of processes that a tool uses: its workers were forked, and nobody tells them that it is over."""
    async with Process(["-c", PARENT, str(tmp_path / "ondol.db")]) as parent:
        await parent.line("drives True")
        child = int((await parent.line("child ")).split()[1])
        try:
            parent.kill()
            assert await parent.wait() == -9
            async with Runtime(f"sqlite:///{tmp_path / 'ondol.db'}", agents=[talk()]) as rt:
                assert rt.drives
                assert (await rt.run("talk", "hello")).text == "answered by the next process"
        finally:
            os.kill(child, signal.SIGKILL)


async def test_a_fork_leaves_the_lock_with_its_parent(tmp_path: Path) -> None:
    async with Process(["-c", PARENT, str(tmp_path / "ondol.db")]) as parent:
        child = int((await parent.line("child ")).split()[1])
        try:
            async with Runtime(f"sqlite:///{tmp_path / 'ondol.db'}") as rt:
                assert not rt.drives
        finally:
            os.kill(child, signal.SIGKILL)


FORKING = """
import asyncio, multiprocessing, os, signal, sys, threading
from ondol import Agent, NotOpen, Runtime
from ondol.stores.sqlite import SqliteStore
from ondol.transactions import set_meta

written, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)

def slowly():
    written.set()
    forking.wait()
    return (yield from set_meta("parent", "was here"))

def child(file, inherited):
    signal.alarm(10)
    asyncio.run(use(file, inherited))

async def use(file, inherited):
    try:
        await inherited.start("talk", "hello")
    except NotOpen as error:
        print("inherited", error)
    async with Runtime(f"sqlite:///{file}", agents=[Agent("talk", model="script:demo")]) as rt:
        await rt.start("talk", "hello", operation_id="of the child")
    print("accepted")

async def main(file):
    store = SqliteStore(file)
    async with Runtime(store) as rt:
        writing = asyncio.create_task(store.write(slowly))
        await asyncio.to_thread(written.wait)
        forked = multiprocessing.get_context("fork").Process(target=child, args=(file, rt))
        forked.start()
        await writing
        await asyncio.to_thread(forked.join)
        print("child ended", forked.exitcode)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_child_that_is_forked_while_something_is_written_opens_the_file_as_its_own(tmp_path: Path) -> None:
    """It has the connections of its parent, and none of their locks."""
    async with Process(["-c", FORKING, str(tmp_path / "ondol.db")]) as parent:
        assert "make another Runtime here" in await parent.line("inherited")
        await parent.line("accepted")
        await parent.line("child ended 0")
        assert await parent.wait() == 0
    async with Runtime(f"sqlite:///{tmp_path / 'ondol.db'}", agents=[talk()]) as rt:
        assert (await (await rt.find_run("of the child")).result()).text == "answered by the next process"


async def test_it_takes_over_also_while_others_go_on_writing(tmp_path: Path) -> None:
    """Each write makes it look; it must come to try the lock nevertheless."""
    db = f"sqlite:///{tmp_path / 'ondol.db'}"
    other = SqliteStore(tmp_path / "ondol.db")
    async with driving(db) as first, Runtime(db, agents=[talk()]) as second:
        await other.open(lambda: None)
        stop = asyncio.Event()

        async def write_on() -> None:
            n = 0
            while not stop.is_set():
                await other.write(set_meta, "n", str(n := n + 1))

        writing = asyncio.create_task(write_on())
        try:
            run = await second.find_run("op")
            first.kill()
            async with asyncio.timeout(PATIENCE):
                assert (await run.result()).text == "answered by the next process"
        finally:
            stop.set()
            await writing
            await other.close()


async def test_it_takes_over_although_the_disk_is_full_at_that_moment(tmp_path: Path) -> None:
    loop, refused = asyncio.get_running_loop(), asyncio.Event()
    with faulty_disk() as disk:
        disk.refused = lambda: loop.call_soon_threadsafe(refused.set)
        first = SqliteStore(tmp_path / "ondol.db")
        await first.open(lambda: None)
        assert await first.drives("o", [])
        async with Runtime(SqliteStore(tmp_path / "ondol.db"), agents=[talk()]) as second:
            run = await second.start("talk", "hello")
            disk.space = 0
            await first.close()
            await refused.wait()
            disk.space = None
            async with asyncio.timeout(PATIENCE):
                assert (await run.result()).text == "answered by the next process"
    assert check(tmp_path / "ondol.db") == []


async def test_a_process_that_does_not_drive_submits_reads_and_cancels(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'ondol.db'}"
    async with driving(db) as first, Runtime(db, agents=[talk()]) as second:
        queued = await second.start("talk", "me too", session=(await second.find_run("op")).session)
        assert queued.status == "queued"
        assert (await queued.cancel()).status == "cancelled"
        other = await second.start("talk", "and me")
        await first.line("asked")  # the driver noticed it, and drives it
        assert (await second.get_run(other.id)).status == "running"
        await other.cancel(by="kim")
        async with asyncio.timeout(PATIENCE):
            assert [e.type async for e in other.events()][-1] == "run.cancelled"


async def test_a_file_under_two_names_is_one_store(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "ondol.db")
    store, linked = SqliteStore(tmp_path / "data" / "ondol.db"), SqliteStore(tmp_path / "link.db")
    await store.open(lambda: None)
    await linked.open(lambda: None)
    assert await store.drives("o", [])
    assert not await linked.drives("o", [])
    digest = await store.put_blob("t", b"data")
    assert await linked.get_blob("t", digest) == b"data"
    await linked.close()
    await store.close()


async def test_of_two_processes_one_drives_also_where_the_lock_file_was_removed(tmp_path: Path) -> None:
    lock = tmp_path / "ondol.db.lock"
    first, second = SqliteStore(tmp_path / "ondol.db"), SqliteStore(tmp_path / "ondol.db")
    await first.open(lambda: None)
    await second.open(lambda: None)
    assert await first.drives("one", ["a"])
    lock.unlink()
    assert await first.drives("one", ["a"])  # nobody came meanwhile
    assert not await second.drives("two", ["b"])
    lock.unlink()
    assert await second.drives("two", ["b"])
    assert not await first.drives("one", ["a"])
    assert await first.drivers() == await second.drivers() == {"two": ["b"]}
    await second.close()
    assert await first.drives("one", ["a"])
    await first.close()


async def test_a_new_file_beside_the_lock_of_an_older_one_may_be_filled_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ondol.db"
    (tmp_path / "ondol.db.lock").touch()
    file.touch()  # the other one has made it, and goes on while this one waits

    def goes_on() -> None:
        with closing(apsw.Connection(str(file))) as other:
            sqlite._migrate(other, file, emptied=False)

    monkeypatch.setattr("ondol.stores.sqlite._pause", goes_on)
    store = SqliteStore(file)
    await store.open(lambda: None)
    await store.write(set_meta, "a", "1")
    await store.close()


async def test_a_group_waits_for_a_lock_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else holds it: waiting anew for each member would hold up everybody for that many times as long."""
    timeout = 200  # milliseconds
    monkeypatch.setattr("ondol.stores.sqlite.BUSY_TIMEOUT", timeout)
    store, clock = SqliteStore(tmp_path / "ondol.db"), asyncio.get_running_loop().time
    await store.open(lambda: None)
    with closing(apsw.Connection(str(tmp_path / "ondol.db"))) as other:
        other.execute("BEGIN IMMEDIATE")
        began = clock()
        writes = (store.write(set_meta, f"k{n}", "written") for n in range(20))
        results = await asyncio.gather(*writes, return_exceptions=True)
        waited = clock() - began
    assert [type(result) for result in results] == [StoreBusy] * 20
    assert waited < 5 * timeout / 1000, "the first may wait alone, the others came as a group"
    await asyncio.gather(*(store.write(set_meta, f"k{n}", "written") for n in range(20)))
    await store.close()


async def test_a_log_that_somebody_made_long_by_reading_does_not_stay_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = 100_000
    monkeypatch.setattr("ondol.stores.sqlite._LOG_KEPT", kept)
    monkeypatch.setattr("ondol.stores.sqlite._CHECKPOINT_PAGES", 10)
    store, log = SqliteStore(tmp_path / "ondol.db"), tmp_path / "ondol.db-wal"
    await store.open(lambda: None)
    assert await store.drives("o", [])
    with closing(apsw.Connection(str(tmp_path / "ondol.db"))) as reader:
        reader.execute("BEGIN").execute("SELECT count(*) FROM meta").fetchall()
        for n in range(20):  # nothing can be copied out of the log meanwhile
            await store.write(set_meta, "long", f"{n}" * 10_000)
        assert log.stat().st_size > 2 * kept
    for n in range(2):
        await store.write(set_meta, "short", f"{n}")
    assert log.stat().st_size <= kept
    await store.close()


# --- what may not be written ------------------------------------------------------------------------------------

UNPRIVILEGED = """
import asyncio, os, sys
from ondol.errors import StoreError
from ondol.stores.migrations import migrations
from ondol.stores.sqlite import SqliteStore
from ondol.transactions import set_meta

async def main(file):
    store = SqliteStore(file)
    try:
        await store.open(lambda: None)
        print("drives", await store.drives("o", []))
        await store.write(set_meta, "a", "1")
    except StoreError as error:
        print("refused", error)
    else:
        print("written")

migrations()
asyncio.run(asyncio.to_thread(int))  # everything is imported
if os.geteuid() == 0:  # it may write everything
    os.setegid(65534)
    os.seteuid(65534)
asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others may look into."""
    with tempfile.TemporaryDirectory(prefix="ondol-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o755)


async def made(file: Path) -> None:
    store = SqliteStore(file)
    await store.open(lambda: None)
    await store.write(set_meta, "a", "0")
    await store.close()


@pytest.mark.parametrize(
    "what", ["a read-only file", "a read-only folder", "no file in a read-only folder", "a lock of somebody else"]
)
async def test_what_may_not_be_written_is_refused_by_name(open_folder: Path, what: str) -> None:
    file = open_folder / "ondol.db"
    if what != "no file in a read-only folder":
        await made(file)
        os.chmod(file, 0o666 if what == "a lock of somebody else" else 0o444)
    if what == "a lock of somebody else":
        os.close(os.open(f"{file}.lock", os.O_CREAT, 0o644))
    os.chmod(open_folder, 0o555 if "folder" in what else 0o777)
    async with Process(["-c", UNPRIVILEGED, str(file)]) as process:
        assert await process.wait() == 0, process.errors
        said = process.output.splitlines()[-1]
    assert said.startswith("refused "), said
    assert str(file) in said
    assert "permissions" in said
    if what != "no file in a read-only folder":
        os.chmod(open_folder, 0o755)
        assert check(file) == []


async def test_who_may_not_write_a_file_leaves_no_log_that_its_owner_could_not_write(open_folder: Path) -> None:
    await made(open_folder / "ondol.db")
    os.chmod(open_folder / "ondol.db", 0o444)
    os.chmod(open_folder, 0o777)
    async with Process(["-c", UNPRIVILEGED, str(open_folder / "ondol.db")]) as process:
        await process.line("refused ")
        await process.wait()
    assert {file.stat().st_uid for file in os.scandir(open_folder)} == {os.geteuid()}
