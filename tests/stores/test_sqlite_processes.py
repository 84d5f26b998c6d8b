"""One file, several processes: one of them drives, all of them may write, and the next takes over from a dead one."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from ondol.queries import get_meta
from ondol.stores.sqlite import SqliteStore
from ondol.stores.sqlite_admin import check
from ondol.testing import Process

ROUNDS = 4  # new files that all processes open at once

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
