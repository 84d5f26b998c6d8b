"""A server on the loopback that speaks OpenAI's chat completions, and breaks where it is told to.

Each request takes the next ``Behaviour`` of the script. One connection carries one request, so that the end of a
connection always means the end of that request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

Behaviour: TypeAlias = "Callable[[Exchange], Awaitable[None]]"

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
REASONS = {400: "Bad Request", 401: "Unauthorized", 429: "Too Many Requests", 500: "Internal Server Error"}


class Exchange:
    """One request, and the means to answer it or not. ``gone`` is set when the client has closed the socket."""

    def __init__(self, headers: dict[str, str], body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.headers, self.body, self._writer = headers, body, writer
        self.keep_open = False
        self.gone = asyncio.Event()
        self.began = asyncio.Event()  # the first bytes of the answer were handed to the socket

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    async def send_json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        await self._head(
            status, {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        )
        await self._write(data)

    async def open_stream(self) -> None:
        await self._head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})

    async def send_event(self, data: str) -> None:
        await self.send_raw(f"data: {data}\n\n")

    async def send_raw(self, text: str) -> None:
        """Text of the event stream as it is, in one HTTP chunk."""
        data = text.encode()
        await self._write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def send_chunk(
        self, delta: dict[str, Any] | None = None, finish: str | None = None, usage: dict[str, int] | None = None
    ) -> None:
        chunk: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "served-1",
        }
        chunk["choices"] = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        if usage:
            chunk["usage"] = usage
        await self.send_event(json.dumps(chunk))

    async def close_stream(self, *, done: bool = True) -> None:
        """End the stream as HTTP wants it; without ``done`` the protocol's own last word is missing."""
        if done:
            await self.send_event("[DONE]")
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


class OpenAIServer:
    """``exchanges`` holds every request so far. Without a script left, a request is answered with status 500."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self._script: list[Behaviour] = []
        self._arrived = asyncio.Condition()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

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
    async def running(self, port: int = 0) -> AsyncIterator[OpenAIServer]:
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
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except asyncio.IncompleteReadError:
            return  # opened and closed without a request
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))))
        exchange = Exchange(headers, body, writer)
        behaviour = self._script.pop(0) if self._script else fails(500, "no more behaviours in the script")
        async with self._arrived:
            self.exchanges.append(exchange)
            self._arrived.notify_all()
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._watch(reader, exchange))
            await behaviour(exchange)
            watch.cancel()

    async def _watch(self, reader: asyncio.StreamReader, exchange: Exchange) -> None:
        with suppress(ConnectionError):
            await reader.read()
        exchange.gone.set()


def call(index: int, id: str | None = None, name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    """A fragment of a tool call, as it stands in a delta."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"index": index, **({"id": id, "type": "function"} if id else {}), "function": function}


def calling(*fragments: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": list(fragments)}


def streams(
    *deltas: dict[str, Any], finish: str | None = "stop", usage: dict[str, int] | None = USAGE, done: bool = True
) -> Behaviour:
    """A whole answer. With ``finish=None`` and ``done=False`` it is cut off, cleanly."""

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        for delta in deltas:
            await exchange.send_chunk(delta)
        if finish:
            await exchange.send_chunk({}, finish)
        if usage:
            await exchange.send_chunk(usage=usage)
        await exchange.close_stream(done=done)

    return behave


def says(*texts: str, finish: str = "stop", usage: dict[str, int] | None = USAGE) -> Behaviour:
    """A text, in one object or in pieces as the request wants it."""

    async def behave(exchange: Exchange) -> None:
        if exchange.body.get("stream"):
            return await streams(*({"content": text} for text in texts), finish=finish, usage=usage)(exchange)
        message = {"role": "assistant", "content": "".join(texts)}
        completion = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "served-1",
            "usage": usage,
        }
        choices = [{"index": 0, "message": message, "finish_reason": finish}]
        return await exchange.send_json(200, {**completion, "choices": choices})

    return behave


def keeps_open(behaviour: Behaviour) -> Behaviour:
    """The same, but the connection is offered for a next request. Taking the offer is an error of the client's."""

    async def behave(exchange: Exchange) -> None:
        exchange.keep_open = True
        await behaviour(exchange)
        await exchange.gone.wait()

    return behave


def fails(
    status: int,
    message: str = "it broke",
    *,
    code: Any = None,
    type: str | None = None,
    headers: dict[str, str] | None = None,
) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.send_json(status, {"error": {"message": message, "code": code, "type": type}}, headers)

    return behave


def rate_limited(**headers: str) -> Behaviour:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return fails(429, "slow down", code="rate_limit_exceeded", headers=sent)


def insufficient_quota() -> Behaviour:
    return fails(429, "you have no credit", code="insufficient_quota", type="insufficient_quota")


def drops(*deltas: dict[str, Any]) -> Behaviour:
    """The connection breaks after those deltas; without any, before the answer begins."""

    async def behave(exchange: Exchange) -> None:
        if deltas:
            await exchange.open_stream()
        for delta in deltas:
            await exchange.send_chunk(delta)
        exchange.drop()

    return behave


def stalls(*deltas: dict[str, Any], meanwhile: Sequence[str] = ()) -> Behaviour:
    """Silence after those deltas, until the client leaves; without any, before the answer begins.

    ``meanwhile`` is text of the event stream that is sent again and again and says nothing.
    """

    async def behave(exchange: Exchange) -> None:
        if deltas or meanwhile:
            await exchange.open_stream()
        for delta in deltas:
            await exchange.send_chunk(delta)
        while meanwhile and not exchange.gone.is_set():
            for text in meanwhile:
                await exchange.send_raw(text)
            await asyncio.sleep(0.01)  # the pace of the keep-alive, not a wait for anything
        await exchange.gone.wait()

    return behave
