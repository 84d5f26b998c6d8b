"""A log that is taken away while it is in use, as another copy of SQLite in the same process does it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from kit import Gate

from ondol import Agent, Runtime
from ondol.errors import StoreError
from ondol.queries import get_meta
from ondol.stores.sqlite import SqliteStore
from ondol.testing import ScriptedModel, call
from ondol.transactions import set_meta

LOOK = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT value FROM meta').fetchall())"


async def test_what_is_written_after_the_log_was_taken_away_is_seen_by_everybody(tmp_path: Path) -> None:
    file = tmp_path / "ondol.db"
    store = SqliteStore(file)
    await store.open(lambda: None)
    await store.write(set_meta, "k", "before")
    assert await store.read(get_meta, "k") == "before"
    with closing(apsw.Connection(str(file))) as other:
        other.execute("PRAGMA wal_checkpoint(FULL)")  # all of it is in the file, and then the log goes
    os.unlink(f"{file}-wal")
    os.unlink(f"{file}-shm")
    await store.write(set_meta, "k", "after")
    assert await store.read(get_meta, "k") == "after"
    assert "after" in await asyncio.to_thread(seen_by_another_process, file)
    await store.close()


LOCKED = """
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDWR)
asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, int(sys.argv[2]), 1, 0)
print(struct.unpack_from("h", fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
"""


async def test_another_copy_of_sqlite_in_this_process_takes_no_lock_and_no_log_away(tmp_path: Path) -> None:
    file, log = tmp_path / "ondol.db", tmp_path / "ondol.db-wal"
    store = SqliteStore(file)
    await store.open(lambda: None)
    await store.write(set_meta, "k", "before")
    first = os.stat(log).st_ino
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("SELECT value FROM meta WHERE key = 'k'").fetchall() == [("before",)]
    assert os.stat(log).st_ino == first
    assert "before" in await asyncio.to_thread(seen_by_another_process, file)
    assert os.stat(log).st_ino == first, "another process found no lock, and took itself for the last one"
    for name, byte in ((file, 0x40000000 + 2), (f"{file}-shm", 128)):  # while it reads, and has the memory of the log
        locked = [sys.executable, "-c", LOCKED, str(name), str(byte)]
        assert (await asyncio.to_thread(subprocess.check_output, locked, text=True)).strip() == "True"
    await store.write(set_meta, "k", "after")
    assert "after" in await asyncio.to_thread(seen_by_another_process, file)
    await store.close()
    assert {entry.name for entry in os.scandir(tmp_path)} == {"ondol.db"}


@pytest.mark.parametrize("with_log", [False, True])
async def test_a_file_that_is_removed_while_it_is_in_use_is_not_made_anew_and_nothing_more_is_accepted(
    tmp_path: Path, with_log: bool
) -> None:
    file = tmp_path / "ondol.db"
    agent = Agent("a", model=ScriptedModel(lambda _: "well"))
    async with Runtime(f"sqlite:///{file}", agents=[agent]) as rt:
        await rt.run(agent, "hello", session="s")
        file.unlink()
        if with_log:
            os.unlink(f"{file}-wal")
            os.unlink(f"{file}-shm")
        for _ in range(2):
            with pytest.raises(StoreError, match="was removed, or replaced, while it was in use"):
                await rt.run(agent, "hello again", session="s")
        with pytest.raises(StoreError, match="was removed, or replaced"):
            await rt.get_session("s")
    assert not file.exists()


async def test_a_log_that_cannot_be_looked_at_is_told_and_used_again_when_it_can_be(tmp_path: Path) -> None:
    file, log = tmp_path / "ondol.db", tmp_path / "ondol.db-wal"
    store = SqliteStore(file)
    await store.open(lambda: None)
    await store.write(set_meta, "k", "before")
    assert await store.read(get_meta, "k") == "before"
    (tmp_path / "aside").hardlink_to(log)
    (tmp_path / "loop").symlink_to(log)
    (tmp_path / "loop").replace(log)  # a disk or a mount that answers with an error does the same
    with pytest.raises(StoreError, match=r"ondol\.db-wal cannot be used"):
        await store.write(set_meta, "k", "lost")
    with pytest.raises(StoreError, match=r"cannot be (used|opened)"):  # each reader opens it when it is first needed
        await store.read(get_meta, "k")
    (tmp_path / "aside").replace(log)
    assert await store.read(get_meta, "k") == "before"
    await store.write(set_meta, "k", "after")
    assert await store.read(get_meta, "k") == "after"
    await store.close()


async def test_a_run_waits_for_a_file_that_is_moved_away_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    file, gate = tmp_path / "ondol.db", Gate()

    async def act() -> str:
        await gate.wait()
        return "done"

    model = ScriptedModel([[call("act")], "well"])
    agent = Agent("a", model=model, tools=[act])
    async with Runtime(f"sqlite:///{file}", agents=[agent]) as rt:
        run = await rt.start(agent, "go", session="s")
        waiting = asyncio.create_task(run.result())
        await gate.reached.wait()
        aside = file.rename(tmp_path / "aside.db")
        with pytest.raises(StoreError, match="was removed, or replaced"):
            await rt.start(agent, "another", session="t")
        gate.open()
        with pytest.raises(StoreError):
            await rt.probe()
        aside.rename(file)
        assert (await waiting).text == "well"
    async with Runtime(f"sqlite:///{file}", agents=[agent]) as rt:
        assert (await rt.get_run(run.id)).status == "completed"
        assert [(e.state, e.attempt) for e in await rt.effects()] == [("succeeded", 1)]


async def test_another_file_in_the_place_of_the_one_in_use_is_left_as_it_is(tmp_path: Path) -> None:
    file, other = tmp_path / "ondol.db", tmp_path / "other.db"
    agent = Agent("a", model=ScriptedModel(lambda _: "well"))
    async with Runtime(f"sqlite:///{other}", agents=[agent]) as rt:
        await rt.run(agent, "hello", session="other")
    before = other.read_bytes()
    async with Runtime(f"sqlite:///{file}", agents=[agent]) as rt:
        await rt.run(agent, "hello", session="s")
        other.replace(file)
        with pytest.raises(StoreError, match="was removed, or replaced"):
            await rt.run(agent, "hello again", session="s")
    assert file.read_bytes() == before
    async with Runtime(f"sqlite:///{file}", agents=[agent]) as rt:
        assert [s.id for s in await rt.sessions()] == ["other"]


async def test_an_open_whose_caller_is_cancelled_leaves_no_connection(tmp_path: Path) -> None:
    opening = asyncio.create_task(SqliteStore(tmp_path / "ondol.db").open(lambda: None))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert held_below(tmp_path) == []


def held_below(folder: Path) -> list[str]:
    """The open files of this process."""
    held = [str(fd.readlink()) for fd in Path("/proc/self/fd").glob("*") if fd.is_symlink()]
    return [path for path in held if path.startswith(str(folder))]


def seen_by_another_process(file: Path) -> str:
    look = [sys.executable, "-c", LOOK, str(file)]
    return subprocess.run(look, capture_output=True, text=True, check=True).stdout
