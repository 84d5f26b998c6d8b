"""A log that is taken away while it is in use, as another copy of SQLite in the same process does it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from ondol.queries import get_meta
from ondol.stores.sqlite import SqliteStore
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
