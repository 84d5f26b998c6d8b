"""`ondol chat`: a line a message, in a pipe and on a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ondol.testing import Process

from .command import Done, app, environment, ondol

DB = "sqlite:///t.db"


async def command(*words: str, cwd: Path) -> Done:
    return await asyncio.to_thread(ondol, "--db", DB, *words, cwd=cwd)


@asynccontextmanager
async def talking(cwd: Path, *options: str, agent: str = "talking") -> AsyncIterator[Process]:
    """A chat in a pipe, in the session ``s``."""
    os.mkfifo(cwd / "fifo")
    words = ["-m", "ondol", "--db", DB, "chat", app(agent), "--session", "s", *options]
    async with Process(words, cwd=cwd, env=environment()) as process:
        yield process


async def states(cwd: Path) -> list[tuple[str, str | None]]:
    """State of each run, and the code of its error, the oldest first."""
    runs = (await command("runs", "--session", "s", "-o", "json", cwd=cwd)).json
    return [(r["state"], (r["error"] or {}).get("code")) for r in reversed(runs)]


def let_go(cwd: Path) -> None:
    (cwd / "fifo").write_text("enough")


def first_line(*words: str, cwd: Path) -> str:
    """What a chat on a terminal begins with."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execve(sys.executable, [sys.executable, "-m", "ondol", *words], environment())
    said = b""
    while b"> " not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, b"\x04")
    os.waitpid(pid, 0)
    return said.decode().partition("\n")[0]


def test_how_to_go_on_later_is_with_all_that_was_said(tmp_path: Path) -> None:
    said = [
        "--user",
        "kim",
        "--model",
        "script:demo",
        "--time-zone",
        "Asia/Seoul",
        "--agent",
        "asking",
        "--if-busy",
        "steer",
    ]
    begins = first_line("chat", app("rt"), "--session", "s", *said, cwd=tmp_path)
    go_on = shlex.split(begins.partition("go on later: ")[2].strip().removesuffix(")"))
    assert go_on == ["ondol", "--db", f"sqlite:///{tmp_path}/own.db", "chat", app("rt"), "--session", "s", *said]


def test_in_a_pipe_each_line_is_a_message_and_only_answers_are_printed(tmp_path: Path) -> None:
    done = ondol("--db", DB, "chat", app("talking"), cwd=tmp_path, stdin="hello\n\nhow are you")
    assert (done.code, done.out) == (0, "you said hello\nyou said hello, how are you\n")
    assert done.err == ""
    (session,) = {run["session"] for run in ondol("--db", DB, "runs", "-o", "json", cwd=tmp_path).json}
    again = ondol("--db", DB, "chat", app("talking"), "--session", session, "-o", "jsonl", cwd=tmp_path, stdin="bye\n")
    assert again.json["text"] == "you said hello, how are you, bye"
    assert {run["trigger"] for run in ondol("--db", DB, "runs", "-o", "json", cwd=tmp_path).json} == {"chat"}


async def test_a_second_line_queues_while_a_turn_runs(tmp_path: Path) -> None:
    async with talking(tmp_path) as chat:
        chat.send("hold")
        await chat.line("holding")
        chat.send("more")
        let_go(tmp_path)
        await chat.line("you said hold, more")
        assert chat.output.splitlines() == ["holding", "you said hold", "you said hold, more"]
    assert await states(tmp_path) == [("completed", None)] * 2


async def test_a_second_line_steers_the_turn_that_runs(tmp_path: Path) -> None:
    async with talking(tmp_path, "--if-busy", "steer") as chat:
        chat.send("hold")
        await chat.line("holding")
        chat.send("more")
        while len(await states(tmp_path)) < 2:
            pass
        let_go(tmp_path)
        await chat.line("you said hold, more")
        assert chat.output.splitlines() == ["holding", "you said hold, more"]  # one turn, one answer
    assert await states(tmp_path) == [("completed", None), ("joined", None)]
    shown = await command("runs", "--session", "s", cwd=tmp_path)
    assert "joined r_" in shown.out


async def test_a_second_line_interrupts_the_turn_that_runs(tmp_path: Path) -> None:
    async with talking(tmp_path, "--if-busy", "interrupt") as chat:
        chat.send("hold")
        await chat.line("holding")
        chat.send("more")
        while len(await states(tmp_path)) < 2:
            pass
        let_go(tmp_path)
        await chat.line("you said more")
        assert chat._popen.stdin is not None
        chat._popen.stdin.close()
        assert await chat.wait() == 0  # it was meant
        assert "(interrupted)" in chat.errors
    assert await states(tmp_path) == [("cancelled", "interrupted"), ("completed", None)]


async def test_a_second_line_is_rejected_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with talking(tmp_path, "--if-busy", "reject") as chat:
        chat.send("hold")
        await chat.line("holding")
        chat.send("more")
        while "session_busy" not in chat.errors:
            assert len(await states(tmp_path)) == 1
        let_go(tmp_path)
        await chat.line("you said hold")
        assert chat._popen.stdin is not None
        chat._popen.stdin.close()
        assert await chat.wait() == 5


def test_a_turn_that_waits_shows_what_is_asked_and_how_to_decide_it(tmp_path: Path) -> None:
    done = ondol("--db", DB, "chat", app("asking"), "--session", "s", cwd=tmp_path, stdin="refund it\nyes, do it\n")
    assert (done.code, done.out) == (6, "")
    assert 'refund(order_id="1182", amount=30)' in done.err
    assert "asks approve a_" in done.err
    assert "your message is queued behind run r_" in done.err  # and approves nothing
    listed = ondol("--db", DB, "asks", "-o", "json", cwd=tmp_path).json
    assert [a["state"] for a in listed] == ["open"]
    again = ondol("--db", DB, "chat", app("asking"), "--session", "s", cwd=tmp_path)
    assert "asks approve a_" in again.err  # it is still open


async def test_what_another_process_decides_goes_on_in_the_chat(tmp_path: Path) -> None:
    async with talking(tmp_path, agent="asking") as chat:
        chat.send("refund it")
        while not (asks := (await command("asks", "-o", "ids", cwd=tmp_path)).ids):
            pass
        approved = await command("asks", "approve", *asks, "--by", "lee", cwd=tmp_path)
        assert approved.code == 0
        await chat.line("done")
        assert (tmp_path / "refunds").read_text() == "1182 30\n"


async def test_a_question_is_answered_by_the_next_line(tmp_path: Path) -> None:
    async with talking(tmp_path, agent="painting") as chat:
        chat.send("paint it")
        while not (await command("asks", "-o", "ids", cwd=tmp_path)).ids:
            pass
        chat.send("blue")
        await chat.line("painted")
        assert chat.output.splitlines() == ["painted"]
    assert await states(tmp_path) == [("completed", None), ("joined", None)]
    assert "Which colour?" in chat.errors


def test_an_unknown_effect_wins_and_a_failed_turn_does_not_end_the_chat(tmp_path: Path) -> None:
    lost = ondol("--db", DB, "chat", app("losing"), cwd=tmp_path, stdin="send it\n")
    assert lost.code == 7
    assert "effects resolve e_" in lost.err
    failed = ondol("--db", DB, "chat", app("refused"), cwd=tmp_path, stdin="hello\nagain\n")
    assert failed.code == 1
    assert failed.err.count("error [run_failed]: ") == 2


async def test_ctrl_c_in_a_pipe_cancels_the_turn_and_leaves(tmp_path: Path) -> None:
    async with talking(tmp_path) as chat:
        chat.send("hold")
        await chat.line("holding")
        os.kill(chat.pid, signal.SIGINT)
        assert await chat.wait() == 130
        assert "(stopped)" in chat.errors
    assert await states(tmp_path) == [("cancelled", "cancelled")]
    (act,) = (await command("audit", "-o", "json", cwd=tmp_path)).json
    assert (act["act"], act["door"], act["note"]) == ("run.cancel", "cli", "Ctrl-C in the chat")


async def test_a_chat_that_is_ended_leaves_its_turn_as_it_is_and_says_nothing_of_itself(tmp_path: Path) -> None:
    async with talking(tmp_path) as chat:
        chat.send("hold")
        await chat.line("holding")
        pipe = os.open(tmp_path / "fifo", os.O_WRONLY | os.O_NONBLOCK)
        os.kill(chat.pid, signal.SIGTERM)
        os.write(pipe, b"enough")
        os.close(pipe)
        assert await chat.wait() == 143
        assert "not open" not in chat.errors
    assert (await states(tmp_path))[0][0] in ("queued", "completed")  # the call may have ended before


@pytest.mark.parametrize("leave", [b"\x04", b"\x03"], ids=["ctrl-d", "ctrl-c"])
async def test_ctrl_c_on_a_terminal_stops_the_turn_and_the_chat_goes_on(tmp_path: Path, leave: bytes) -> None:
    os.mkfifo(tmp_path / "fifo")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        words = [sys.executable, "-m", "ondol", "--db", DB, "chat", app("talking"), "--session", "s"]
        os.execve(sys.executable, words, environment())
    said = b""

    async def shows(text: bytes) -> None:
        nonlocal said
        while text not in said:
            said += await asyncio.to_thread(os.read, terminal, 4096)
        said = said.partition(text)[2]

    await shows(b"> ")
    os.write(terminal, b"hold\n")
    await shows(b"holding")
    os.write(terminal, b"\x03")
    await shows(b"(stopped)")
    await shows(b"> ")
    os.write(terminal, b"and now\n")
    await shows(b"you said and now")
    await shows(b"> ")
    os.write(terminal, leave)
    status = (await asyncio.to_thread(os.waitpid, pid, 0))[1]
    assert os.waitstatus_to_exitcode(status) == (7 if leave == b"\x04" else 130)  # nobody knows what was let go
    assert await states(tmp_path) == [("cancelled", "cancelled"), ("completed", None)]
