"""A test drives a process that may be killed, and always sees what it wrote."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from ondol.testing import Process

ECHO = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    print("got", line.strip(), flush=True)
    print("warning", line.strip(), file=sys.stderr)
"""


async def test_lines_are_waited_for_and_each_is_given_once() -> None:
    async with Process(["-c", ECHO]) as child:
        assert await child.line("ready") == "ready"
        child.send("one")
        child.send("two")
        assert [await child.line("got"), await child.line("got")] == ["got one", "got two"]
        third = asyncio.create_task(child.line("got"))
        child.send("three")
        assert await third == "got three"
        child.kill()
        assert await child.wait() == -signal.SIGKILL
        assert child.output == "ready\ngot one\ngot two\ngot three"
        assert "warning two" in child.errors


async def test_the_environment_is_added_to_ours() -> None:
    script = "import os; print(os.environ['COLOUR'], os.environ['PATH'])"
    async with Process(["-c", script], env={"COLOUR": "red"}) as child:
        assert await child.wait() == 0
        assert child.output == f"red {os.environ['PATH']}"


async def test_a_process_that_ends_without_the_line_shows_what_it_wrote() -> None:
    async with Process(["-c", "import sys; print('almost'); sys.exit('broken')"]) as child:
        with pytest.raises(RuntimeError, match=r"(?s)ended with 1.*almost.*broken"):
            await child.line("ready")
        assert await child.wait() == 1


async def test_a_line_that_does_not_come_in_time_shows_what_was_written() -> None:
    async with Process(["-c", ECHO]) as child:
        await child.line("ready")
        with pytest.raises(TimeoutError, match=r"(?s)no line 'steady'.*running.*ready"):
            await child.line("steady", timeout=0.01)


async def test_a_stopped_process_stands_still_until_it_is_continued() -> None:
    async with Process(["-c", ECHO]) as child:
        await child.line("ready")
        child.stop()
        child.send("one")
        with pytest.raises(TimeoutError):
            await child.line("got", timeout=0.05)
        child.cont()
        assert await child.line("got") == "got one"
        child.stop()  # the block ends it all the same


async def test_the_block_ends_the_process_by_force() -> None:
    async with Process(["-c", f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN){ECHO}"]) as child:
        await child.line("ready")
        child.terminate()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


async def test_stopping_what_has_ended_does_nothing() -> None:
    async with Process(["-c", "pass"]) as child:
        assert await child.wait() == 0
        child.stop()
        child.cont()
        child.kill()
