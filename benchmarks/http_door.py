"""What does the HTTP door cost? ``python benchmarks/http_door.py`` prints three figures; nothing leaves this machine.

With ``--postgresql ADDRESS`` (of an empty database) they are printed for SQLite and for PostgreSQL.

- operations accepted a second (each durable before its 202), over so many connections
- what the door adds to the time until a run's first token, against the same runtime from Python
- the memory of watchers of a run in which nothing happens
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from ondol import Agent, Context, Runtime
from ondol.http.app import make_app
from ondol.http.serving import Server, config, listen
from ondol.testing import ScriptedModel, call

HOST = "127.0.0.1"
_FIRST = ("event: model.delta", "event: message.snapshot", "event: model.completed")


async def hold(ctx: Context[None]) -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


def serve(db: str) -> None:
    """Be the server."""
    agents = [
        Agent("hello", model=ScriptedModel(lambda _: "hello to you")),
        Agent("holder", model=ScriptedModel([[call("hold")], "done"]), tools=[hold]),
    ]

    async def main() -> None:
        async with Runtime(db, agents=agents) as rt:
            app = make_app(rt)
            with listen(HOST, 0) as listening:
                server = Server(config(app), app, drain=0.1)
                server.when_started = lambda: print(listening.getsockname()[1], flush=True)
                await server.serve([listening])

    asyncio.run(main())


def memory_of(pid: int) -> int:
    """Resident bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def accepts(client: httpx.AsyncClient, n: int, connections: int) -> float:
    """Operations a second."""
    waiting = iter(range(n))

    async def send() -> None:
        for i in waiting:
            body = {"agent": "hello", "input": "hi", "session": f"a{i}"}
            answer = await client.post("/v1/runs", json=body, headers={"prefer": "respond-async"})
            assert answer.status_code in (200, 202), answer.text

    began = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(connections)))
    return n / (time.perf_counter() - began)


async def first_token(client: httpx.AsyncClient, n: int) -> list[float]:
    """Seconds from sending an operation to the first piece of its answer."""
    took = []
    for i in range(n):
        body = {"agent": "hello", "input": "hi", "session": f"t{i}"}
        began = time.perf_counter()
        async with client.stream("POST", "/v1/runs", json=body, headers={"accept": "text/event-stream"}) as response:
            seen = False
            async for line in response.aiter_lines():
                if not seen and line in _FIRST:
                    took.append(time.perf_counter() - began)
                    seen = True
    return took


async def first_token_here(db: str, n: int) -> list[float]:
    """The same from Python."""
    took = []
    async with Runtime(db, agents=[Agent("hello", model=ScriptedModel(lambda _: "hello to you"))]) as rt:
        for i in range(n):
            began = time.perf_counter()
            run = await rt.start("hello", "hi", session=f"h{i}")
            seen = False
            async for event in run.events():
                if not seen and event.type in ("model.delta", "message.snapshot", "model.completed"):
                    took.append(time.perf_counter() - began)
                    seen = True
    return took


async def watchers(url: str, pid: int, n: int) -> float:
    """Bytes that one watcher of a quiet run costs the server."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        run = (await client.post("/v1/runs", json={"agent": "holder", "input": "hold"})).json()["id"]
        await asyncio.sleep(0.5)
        before = memory_of(pid)
        address = f"/v1/runs/{run}/events".encode()
        request = b"GET " + address + b" HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n"
        port = int(url.rpartition(":")[2])
        writers = []
        for _ in range(n):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(request)
            await reader.readuntil(b"effect.started")
            writers.append((reader, writer))
        after = memory_of(pid)
        for _, writer in writers:
            writer.close()
        await client.post(f"/v1/runs/{run}/cancel")
        return (after - before) / n


def milliseconds(took: list[float]) -> str:
    ordered = sorted(took)
    return f"p50 {statistics.median(ordered) * 1e3:.1f} ms, p99 {ordered[int(len(ordered) * 0.99) - 1] * 1e3:.1f} ms"


async def main(postgresql: str | None, n: int, connections: int, watched: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ondol-http-") as folder:
        print("SQLite")
        await figures(f"sqlite:///{folder}/served.db", f"sqlite:///{folder}/here.db", n, connections, watched)
    if postgresql is not None:
        print("PostgreSQL")
        await figures(postgresql, postgresql, n, connections, watched)


async def figures(db: str, here: str, n: int, connections: int, watched: int) -> None:
    """Print those of a store; ``here`` is where the same is done without a door, once the server is gone."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--serve", db, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    url = f"http://{HOST}:{int(await server.stdout.readline())}"
    try:
        limits = httpx.Limits(max_connections=connections)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            await accepts(client, 50, connections)  # warm
            print(f"accept: {await accepts(client, n, connections):.0f} operations/s over {connections} connections")
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            await first_token(client, 5)
            over = await first_token(client, 100)
        each = await watchers(url, server.pid, watched)
        print(f"{watched} watchers of a quiet run: {each * watched / 1e6:.1f} MB, {each / 1e3:.1f} kB each")
    finally:
        server.terminate()
        await server.wait()
    alone = await first_token_here(here, 100)
    print(f"first token over HTTP: {milliseconds(over)}; from Python: {milliseconds(alone)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", metavar="DB")
    parser.add_argument("--postgresql", metavar="ADDRESS", help="an empty database, to be measured too")
    parser.add_argument("-n", type=int, default=1000, help="operations to be accepted")
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--watchers", type=int, default=1000)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
    else:
        asyncio.run(main(given.postgresql, given.n, given.connections, given.watchers))
