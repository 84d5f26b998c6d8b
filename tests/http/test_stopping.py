"""Who stops what: the client of a stream, a cancel from elsewhere, a process that is asked to stop.

A real server in a process of its own, a provider that sees its socket close, a tool in a thread, a tool with a child
process.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import httpx
import pytest
from door import door, read, watch
from http_served import APP, BOUND, answering, calls, content, served
from kit import Gate
from providers.loopback import LoopbackServer
from providers.openai_server import says, stalls

from ondol import Agent, Context, Event, Runtime
from ondol.http import replies
from ondol.http.drain import Drain
from ondol.testing import Process, ScriptedModel, call, error

STREAM = {"accept": "text/event-stream"}


@pytest.fixture
async def provider() -> AsyncIterator[LoopbackServer]:
    async with LoopbackServer().running() as server:
        yield server


async def test_a_client_that_goes_away_stops_everything_that_its_run_does(
    db: str, tmp_path: Path, provider: LoopbackServer
) -> None:
    async with served(db, provider, tmp_path) as (process, url), httpx.AsyncClient(base_url=url, timeout=30) as client:

        async def leave(session: str, reached: Awaitable[object]) -> str:
            body = {"agent": "worker", "input": "go", "session": session}
            async with client.stream("POST", "/v1/runs", json=body, headers=STREAM) as response:
                events = read(response)
                id: str = (await anext(events)).data["id"].partition("/")[0]
                await reached
            return id

        async def ended(run: str) -> dict[str, Any]:
            answer = await client.get(f"/v1/runs/{run}/result", params={"wait": 10})
            body: dict[str, Any] = answer.json()
            return body

        # the model's socket
        provider.will(stalls({"content": "Dear "}))
        run = await leave("model", answering(provider, 1))
        await asyncio.wait_for(provider.exchanges[0].gone.wait(), BOUND)
        assert (await ended(run))["state"] == "cancelled"

        # a function in a thread
        provider.will(calls("heartbeat"))
        run = await leave("thread", process.line("heart beats"))
        await process.line("heart stopped", BOUND)
        assert (await ended(run))["state"] == "cancelled"

        # a child process
        provider.will(calls("child"))
        run = await leave("child", process.line("child started"))
        await process.line("child gone", BOUND)
        assert (await ended(run))["state"] == "cancelled"

        # what was done stays listed, the session is as before, and the next turn works
        (effect,) = (await client.get("/v1/effects", params={"run": run})).json()["items"]
        assert (effect["tool"], effect["attempt"]) == ("child", 1)
        assert (await client.get("/v1/sessions/child/messages")).json()["items"] == []
        provider.will(says("hello again"))
        body = {"agent": "worker", "input": "hello", "session": "child"}
        answer = await client.post("/v1/runs", json=body, headers={"prefer": "wait=20"})
        assert answer.json()["text"] == "hello again"
        told = [m["role"] for m in provider.exchanges[-1].body["messages"]]
        assert told.count("user") >= 1
        assert len((await client.get("/v1/sessions/child/messages")).json()["items"]) >= 2


async def test_a_client_that_goes_away_as_its_run_fails_for_now_does_not_end_it_for_good(db: str) -> None:
    agent = Agent("a", model=ScriptedModel(lambda request: error("quota")))
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "go")
        told = [event async for event in run.events()]
        last_is_told, never = asyncio.Event(), asyncio.Event()

        async def events() -> AsyncIterator[Event | None]:
            for event in told:
                yield event
            last_is_told.set()
            await never.wait()

        async def send(message: object) -> None:
            pass

        async def receive() -> dict[str, str]:
            await last_is_told.wait()
            return {"type": "http.disconnect"}

        stream = replies.stream(run, events(), Drain(), on_disconnect="cancel")
        await stream({"type": "http"}, receive, send)  # type: ignore[arg-type]
        assert (await run.refresh()).retryable


async def test_a_process_that_is_asked_to_stop_reaches_a_boundary_and_the_next_one_goes_on(
    db: str, tmp_path: Path, provider: LoopbackServer
) -> None:
    provider.will(calls("slow"))
    async with served(db, provider, tmp_path) as (process, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        run = (await client.post("/v1/runs", json={"agent": "worker", "input": "go"})).json()["id"]
        await process.line("slow started")
        async with client.stream("GET", f"/v1/runs/{run}/events") as response:
            events = read(response)
            first = await anext(events)
            process.terminate()
            body = {"agent": "worker", "input": "more"}
            while (refused := await client.post("/v1/runs", json=body)).status_code in (200, 202):
                pass  # the signal is on its way
            assert (refused.status_code, refused.json()["code"]) == (503, "draining")
            assert int(refused.headers["retry-after"]) > 0
            assert (await client.get("/readyz")).status_code == 503
            process.send("go on")
            told = [first, *[e async for e in events]]
        assert await process.wait() == 0, process.errors
        last = next(e.id for e in reversed(told) if e.id)
        assert "effect.succeeded" in {e.event for e in told}  # the boundary that was reached is told before the end
        assert "run.completed" not in {e.event for e in told}
    provider.will(says("it is done"), says("it is done"), says("it is done"), says("it is done"))
    async with served(db, provider, tmp_path) as (_, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        async with client.stream("GET", f"/v1/runs/{run}/events", headers={"last-event-id": last or ""}) as response:
            rest = [e async for e in read(response)]
        assert "effect.succeeded" not in {e.event for e in rest}
        assert rest[-1].event == "run.completed"
        stored = [e.id for e in [*told, *rest] if e.id]
        assert stored == [f"{run}/{n + 1}" for n in range(len(stored))]
        happened = [e.event for e in [*told, *rest]]
        assert happened.index("effect.succeeded") < happened.index("run.resumed")  # by the one that was asked to stop
    assert content(tmp_path / "done") == "done\n"


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
async def test_a_process_that_is_told_once_more_to_stop_stops_in_order_all_the_same(
    db: str, tmp_path: Path, provider: LoopbackServer, first: signal.Signals
) -> None:
    """Ctrl-C in a terminal is for all processes in it, and 'ondol dev' asks the one that it started to stop, too."""
    provider.will(calls("slow"))
    async with served(db, provider, tmp_path) as (process, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        run = (await client.post("/v1/runs", json={"agent": "worker", "input": "go"})).json()["id"]
        await process.line("slow started")
        process._popen.send_signal(first)
        while (await client.get("/readyz")).status_code == 200:
            pass
        process.terminate()
        process.send("go on")
        assert await process.wait() == 0
    assert content(tmp_path / "done") == "done\n"
    async with Runtime(db) as rt:
        waits = await rt.get_run(run)
        assert (waits.status, waits._row.deaths) == ("queued", 0)


async def test_a_second_ctrl_c_waits_for_nothing(db: str, tmp_path: Path, provider: LoopbackServer) -> None:
    provider.will(calls("slow"))
    async with served(db, provider, tmp_path) as (process, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        await client.post("/v1/runs", json={"agent": "worker", "input": "go"})
        await process.line("slow started")
        process._popen.send_signal(signal.SIGINT)
        while (await client.get("/readyz")).status_code == 200:
            pass
        process._popen.send_signal(signal.SIGINT)
        assert await process.wait(3) == 130


async def test_who_waits_for_the_end_of_a_run_is_answered_when_the_process_stops(db: str) -> None:
    gate = Gate()

    async def slow(ctx: Context[None]) -> str:
        """Take long."""
        await gate.wait()
        return "done"

    agent = Agent("slow", model=ScriptedModel([call("slow"), "done"]), tools=[slow])
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http:
        body, prefer = {"agent": "slow", "input": "go"}, {"prefer": "wait=9999"}
        starting = asyncio.create_task(http.client.post("/v1/runs", json=body, headers=prefer))
        await gate.reached.wait()
        (run,) = await rt.runs()
        where, long = f"/v1/runs/{run.id}/result", {"wait": 3000}
        waiting = asyncio.create_task(http.client.get(where, params=long))
        while http.app.drain._waiting < 2:  # noqa: ASYNC110 - a request tells nobody that it waits
            await asyncio.sleep(0)
        assert http.app.drain.streams == 0
        http.app.drain.end_streams()
        for answer in (await starting, await waiting, await http.client.get(where, params=long)):
            assert (answer.status_code, answer.json()["id"]) == (202, run.id)
        assert starting.result().headers["preference-applied"] == "wait=60"  # no more than that is waited
        gate.open()
        await run.result()


@pytest.mark.parametrize("path", ["runs/{}", "sessions/s"])
async def test_who_comes_back_to_a_process_that_stops_does_not_hold_it_up(db: str, path: str) -> None:
    gate = Gate()

    async def slow(ctx: Context[None]) -> str:
        """Take long."""
        await gate.wait()
        return "done"

    agent = Agent("slow", model=ScriptedModel([call("slow"), "done"]), tools=[slow])
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http:
        run = await rt.start(agent, "go", session="s")
        await gate.reached.wait()
        address, last = f"/v1/{path.format(run.id)}/events", None
        async with http.client.stream("GET", address) as response:
            async for event in read(response):
                last = event.id or last
                if event.event == "effect.started":
                    http.app.drain.end_streams()
        async with asyncio.timeout(10):
            assert await watch(http.client, address, last) == []
        assert http.app.drain.streams == 0
        gate.open()
        await run.result()


async def test_a_mounted_door_lets_the_uvicorn_above_it_stop(db: str, tmp_path: Path, provider: LoopbackServer) -> None:
    """A stream that would never end (all runs of a session) does not keep the process from stopping."""
    provider.will(calls("slow"))
    env = {"ONDOL_DB": db, "OPENAI_BASE_URL": f"http://{provider.host}/v1", "HERE": str(tmp_path)}
    async with Process([APP.with_name("mounted_app.py")], env=env) as process:
        url = re.search(r"running on (http://\S+)", await process.line("INFO:     Uvicorn running on", 50))
        assert url is not None
        async with httpx.AsyncClient(base_url=f"{url[1]}/agents", timeout=30) as client:
            body = {"agent": "worker", "input": "go", "session": "s"}
            await client.post("/v1/runs", json=body)
            await process.line("slow started")
            async with client.stream("GET", "/v1/sessions/s/events") as response:
                events = read(response)
                told = [await anext(events)]
                process.terminate()
                process.send("go on")
                told += [e async for e in events]
            assert "effect.succeeded" in {e.event for e in told}
            assert "run.completed" not in {e.event for e in told}
        await process.wait()
    assert content(tmp_path / "done") == "done\n"


async def test_a_server_whose_terminal_is_closed_stops_in_order(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from ondol import Agent\nagent = Agent('a', model='script:demo')\n")
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # whatever these tests were started with
        "from ondol.cli import main; main(['serve', 'app.py', '--port', '0'])"
    )
    async with Process(["-c", program], cwd=tmp_path) as process:
        await process.line("serving a on", 50)
        os.kill(process.pid, signal.SIGHUP)
        assert await process.wait() == 0


def test_an_address_for_others_needs_a_token(tmp_path: Path) -> None:
    import subprocess
    import sys

    env = {**os.environ, "ONDOL_DB": f"sqlite:///{tmp_path / 'ondol.db'}", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    command = [sys.executable, "-m", "ondol", "serve", f"{APP}:rt", "--host", "0.0.0.0", "--port", "0"]
    refused = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 2
    assert "there is no token for them: 'ondol tokens create' makes one" in refused.stderr
