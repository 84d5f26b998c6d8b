"""What do the tests of the HTTP door share? A real server on loopback, and a reader of its streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import httpx

from ondol import Runtime
from ondol.http.app import App, make_app
from ondol.http.guard import Admission
from ondol.http.serving import Server, config, listen

JSON = {"content-type": "application/json"}


class Door(NamedTuple):
    client: httpx.AsyncClient
    app: App
    server: Server
    url: str


@contextlib.asynccontextmanager
async def door(rt: Runtime, admission: Admission | None = None, *, heartbeat: float = 15.0) -> AsyncIterator[Door]:
    """The door of an open runtime, on a free port of this machine."""
    app = make_app(rt, admission, heartbeat=heartbeat)
    server = Server(config(app), app, drain=2.0)
    with listen("127.0.0.1", 0) as listening:
        started = asyncio.Event()
        server.when_started = started.set
        serving = asyncio.create_task(server._serve([listening]))
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            try:
                yield Door(client, app, server, url)
            finally:
                app.drain.end_streams()
                server.should_exit = True
                await serving


class Said(NamedTuple):
    """One server-sent event."""

    event: str
    id: str | None
    data: Any


async def read(response: httpx.Response) -> AsyncIterator[Said]:
    """The events of a stream, as a browser reads them."""
    event, id, data = "message", None, list[str]()
    async for line in response.aiter_lines():
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                event = value
            case "id":
                id = value
            case "data":
                data.append(value)
            case "" if not line:
                if data:
                    yield Said(event, id, json.loads("\n".join(data)))
                event, id, data = "message", None, []
            case _:
                pass


async def watch(
    client: httpx.AsyncClient, address: str, after: str | None = None, headers: Mapping[str, str] | None = None
) -> list[Said]:
    """All events of a stream until it ends."""
    sent = {**(headers or {}), **({"last-event-id": after} if after else {})}
    async with client.stream("GET", address, headers=sent) as response:
        assert response.status_code == 200, await response.aread()
        return [said async for said in read(response)]


async def run(client: httpx.AsyncClient, agent: str, input: str, key: str | None = None, **body: Any) -> httpx.Response:
    """Start a run, and wait for its end."""
    headers = {"prefer": "wait=20", **({"idempotency-key": key} if key else {})}
    return await client.post("/v1/runs", json={"agent": agent, "input": input, **body}, headers=headers)


async def raw(http: Door, *pieces: bytes) -> bytes:
    """What comes back for these bytes, when the server closes."""
    host, _, port = http.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
