"""A server on the loopback that answers as a provider does, and breaks where it is told to.

Each request takes the next ``Behaviour`` of the script. One connection carries one request, so that the end of a
connection always means the end of that request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self, TypeAlias

Behaviour: TypeAlias = "Callable[[Exchange], Awaitable[None]]"

REASONS = {400: "Bad Request", 401: "Unauthorized", 429: "Too Many Requests", 500: "Internal Server Error"}


class Exchange:
    """One request, and the means to answer it or not. ``gone`` is set when the client has closed the socket."""

    def __init__(self, path: str, headers: dict[str, str], body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.path, self.headers, self.body, self._writer = path, headers, body, writer
        self.keep_open = False
        self.gone = asyncio.Event()
        self.began = asyncio.Event()  # the first bytes of the answer were handed to the socket

    async def send_json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        await self._head(
            status, {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        )
        await self._write(data)

    async def open_stream(self) -> None:
        await self._head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})

    async def send_event(self, data: str, event: str | None = None) -> None:
        await self.send_raw((f"event: {event}\n" if event else "") + f"data: {data}\n\n")

    async def send_raw(self, text: str, size: int | None = None) -> None:
        """Text of the event stream as it is, in one HTTP chunk, or in chunks of so many bytes."""
        whole = text.encode()
        for n in range(0, len(whole), size or len(whole)):
            data = whole[n : n + size] if size else whole
            await self._write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end_stream(self) -> None:
        """End the stream as HTTP wants it, whatever the protocol in it would still have to say."""
        await self._write(b"0\r\n\r\n")

    def drop(self) -> None:
        """Cut the connection."""
        self._writer.transport.abort()

    async def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Whatever')}"]
        lines += ["connection: keep-alive" if self.keep_open else "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        await self._write("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
        self.began.set()


class LoopbackServer:
    """``exchanges`` holds every request so far. Without a script left, a request is answered with status 500."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self._script: list[Behaviour] = []
        self._arrived = asyncio.Condition()
        self.port = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def requests(self) -> int:
        return len(self.exchanges)

    def will(self, *behaviours: Behaviour) -> None:
        self._script += behaviours

    async def exchange(self, number: int = 1) -> Exchange:
        """The request with that number, from 1, as soon as it is here."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.requests >= number)
        return self.exchanges[number - 1]

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[Self]:
        connections: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            task.add_done_callback(connections.discard)
            try:
                await self._serve(reader, writer)
            except (ConnectionError, asyncio.CancelledError):
                pass  # the client left, or the test is over
            finally:
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first, *head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except asyncio.IncompleteReadError:
            return  # opened and closed without a request
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))))
        exchange = Exchange(first.split(" ")[1], headers, body, writer)
        behaviour = self._script.pop(0) if self._script else answers_with(500, {"error": "no more behaviours"})
        async with self._arrived:
            self.exchanges.append(exchange)
            self._arrived.notify_all()
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._watch(reader, exchange))
            try:
                await behaviour(exchange)
            except ConnectionError:  # a write saw it before the watch did
                exchange.gone.set()
            watch.cancel()

    async def _watch(self, reader: asyncio.StreamReader, exchange: Exchange) -> None:
        with suppress(ConnectionError):
            await reader.read()
        exchange.gone.set()


def answers_with(status: int, body: Any, headers: dict[str, str] | None = None) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.send_json(status, body, headers)

    return behave


def keeps_open(behaviour: Behaviour) -> Behaviour:
    """The same, but the connection is offered for a next request. Taking the offer is an error of the client's."""

    async def behave(exchange: Exchange) -> None:
        exchange.keep_open = True
        await behaviour(exchange)
        await exchange.gone.wait()

    return behave
