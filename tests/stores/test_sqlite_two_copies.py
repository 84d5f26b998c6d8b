"""Another copy of SQLite in the same process: the standard library's, which many people reach for to have a look."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ondol import Agent, Runtime
from ondol.testing import Process, ScriptedModel

LOOKS_AND_DIES = """
import asyncio, os, signal, sqlite3, sys
from ondol import Agent, Runtime
from ondol.testing import ScriptedModel

async def main():
    agent = Agent("a", model=ScriptedModel(["hi"]))
    async with Runtime("sqlite:///" + sys.argv[1], agents=[agent]) as rt:
        for n in range(3):
            await rt.run(agent, "hello", operation_id=f"op-{n}")
            connection = sqlite3.connect(sys.argv[1])
            print("seen", connection.execute("SELECT count(*) FROM runs WHERE state = 'completed'").fetchone()[0])
            connection.close()
        await rt.run(agent, "hello", operation_id="op-3")
        print("done", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_look_with_another_copy_of_sqlite_loses_nothing_to_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "ondol.db"
    async with Process(["-c", LOOKS_AND_DIES, str(file)]) as process:
        await process.line("done")
        await process.wait()
        assert [line for line in process.output.splitlines() if line.startswith("seen")] == [
            "seen 1",
            "seen 2",
            "seen 3",
        ]
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM runs WHERE state = 'completed'").fetchone() == (4,)


async def test_reads_and_writes_go_on_after_such_a_look(tmp_path: Path) -> None:
    file = tmp_path / "ondol.db"
    agent = Agent("a", model=ScriptedModel(["hi"]))
    async with Runtime(f"sqlite:///{file}", agents=[agent]) as rt:
        for n in range(1, 4):
            await rt.run(agent, "hello", session="s", operation_id=f"op-{n}")
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("SELECT count(*) FROM runs").fetchone()
            assert len(await rt.runs()) == n
            assert len(await (await rt.get_session("s")).messages()) == 2 * n
