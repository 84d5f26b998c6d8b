"""`ondol chat --url`: with an agent of a server in a process of its own, on a terminal and in a pipe."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli.command import environment
from crash import invariants
from door import read
from http_served import answering, calls, content, served
from providers.loopback import LoopbackServer
from providers.openai_server import says, stalls

from ondol.testing import Process


@pytest.fixture
async def provider() -> AsyncIterator[LoopbackServer]:
    async with LoopbackServer().running() as server:
        yield server


class Terminal:
    """A command on a terminal of its own: what it shows, in order."""

    def __init__(self, url: str, cwd: Path, *words: str) -> None:
        self.said = b""
        self.pid, self._screen = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execve(sys.executable, [sys.executable, "-m", "ondol", "--url", url, *words], environment())

    async def shows(self, text: str) -> None:
        async with asyncio.timeout(45):
            while text.encode() not in self.said:
                self.said += await asyncio.to_thread(os.read, self._screen, 4096)
        self.said = self.said.partition(text.encode())[2]

    def types(self, text: bytes) -> None:
        os.write(self._screen, text)

    async def ends(self) -> int:
        return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, self.pid, 0))[1])


async def open_asks(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get("/v1/asks")).json()["items"]
    return found


async def test_on_a_terminal_a_turn_is_seen_as_it_is_said_stopped_and_asked_about(
    db: str, tmp_path: Path, provider: LoopbackServer
) -> None:
    async with served(db, provider, tmp_path) as (_, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        provider.will(stalls({"content": "Dear Kim, "}))
        chat = Terminal(url, tmp_path, "chat", "app:worker", "--session", "s")
        await chat.shows("> ")
        chat.types(b"write\n")
        await chat.shows("Dear Kim, ")  # while the answer is not complete
        chat.types(b"\x03")
        await chat.shows("(stopped)")
        await provider.exchanges[-1].gone.wait()  # the server's model hears of it
        await chat.shows("> ")
        provider.will(calls("pay"), says("it is paid"))
        chat.types(b"pay it\n")
        await chat.shows("asks approve a_")
        (ask,) = await open_asks(client)
        decided = await client.post(
            f"/v1/asks/{ask['id']}/decision", json={"decision": "approve", "by": "lee"},
            headers={"if-match": f'"{ask["arguments_hash"]}"'},
        )  # fmt: skip
        assert decided.status_code == 200
        await chat.shows("it is paid")
        await chat.shows("> ")
        provider.will(calls("paint"), says("it is blue"))
        chat.types(b"paint it\n")
        await chat.shows("Which colour?")
        chat.types(b"blue\n")  # the next line answers
        await chat.shows("it is blue")
        await chat.shows("> ")
        chat.types(b"\x04")
        assert await chat.ends() == 0
        runs = (await client.get("/v1/runs", params={"session": "s"})).json()["items"]
        assert [r["state"] for r in reversed(runs)] == ["cancelled", "completed", "completed", "joined"]
        assert {r["trigger"] for r in runs} == {"chat"}
        assert runs[-1]["error"]["message"] == "Ctrl-C in the chat"
        assert content(tmp_path / "paid") == "paid\n"
        answers = (await client.get("/v1/asks", params={"state": "decided"})).json()["items"]
        assert [(a["decision"], a["value"]) for a in answers] == [("approve", None), ("answer", "blue")]


async def test_whoever_comes_in_the_middle_of_an_answer_sees_what_was_said_so_far(
    db: str, tmp_path: Path, provider: LoopbackServer
) -> None:
    async with served(db, provider, tmp_path) as (_, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        provider.will(stalls({"content": "Dear Kim, "}))
        body, key = {"agent": "worker", "input": "write"}, {"idempotency-key": "k"}
        run = (await client.post("/v1/runs", json=body, headers=key)).json()["id"]
        async with client.stream("GET", f"/v1/runs/{run}/events") as response:
            async for event in read(response):
                if event.event in ("model.delta", "message.snapshot"):
                    break
        watcher = Terminal(url, tmp_path, "run", "app:worker", "write", "--operation-id", "k")
        await watcher.shows("Dear Kim, ")
        await client.post(f"/v1/runs/{run}/cancel", json={})
        assert await watcher.ends() == 1


async def test_in_a_pipe_each_line_is_a_message_and_ctrl_c_leaves_nothing_running(
    db: str, tmp_path: Path, provider: LoopbackServer
) -> None:
    async with served(db, provider, tmp_path) as (_, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        provider.will(says("hello Kim"), stalls({"content": "Dear "}))
        words = ["-m", "ondol", "--url", url, "chat", "app:worker", "--session", "s"]
        async with Process(words, cwd=tmp_path, env=environment()) as chat:
            chat.send("hello")
            await chat.line("hello Kim")
            chat.send("write")
            await answering(provider, 2)
            os.kill(chat.pid, signal.SIGINT)
            assert await chat.wait() == 130, chat.errors
            assert chat.output.splitlines() == ["hello Kim"]
        await provider.exchanges[-1].gone.wait()
        runs = (await client.get("/v1/runs", params={"session": "s"})).json()["items"]
        assert [r["state"] for r in runs] == ["cancelled", "completed"]
        lost = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ondol", "--url", url, "chat", "app:nobody", stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env=environment(), cwd=tmp_path,
        )  # fmt: skip
        _, errors = await lost.communicate(b"hello\n")
        assert (lost.returncode, b"nobody" in errors) == (4, True)


async def test_whoever_runs_something_on_a_server_that_dies_is_told_how_to_go_on(
    db: str, tmp_path: Path, provider: LoopbackServer
) -> None:
    async with served(db, provider, tmp_path) as (server, url):
        provider.will(stalls({"content": "Dear "}))
        words = ["-m", "ondol", "--url", url, "run", "app:worker", "write", "--operation-id", "op"]
        async with Process(words, cwd=tmp_path, env=environment()) as client:
            await answering(provider, 1)
            os.kill(server.pid, signal.SIGKILL)
            assert await client.wait() == 1, client.errors
    (run,) = invariants.written(db).runs.values()
    assert f"detached from run {run.id}, which is not lost" in client.errors
    assert f"ondol --url {url} runs resume {run.id}" in client.errors
    assert "[unreachable]" in client.errors
