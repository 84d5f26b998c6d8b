"""OpenAI's chat completions as a loopback server speaks them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from providers.loopback import Behaviour, Exchange, answers_with

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


async def send_chunk(
    exchange: Exchange,
    delta: dict[str, Any] | None = None,
    finish: str | None = None,
    usage: dict[str, Any] | None = None,
) -> None:
    chunk: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "served-1"}
    chunk["choices"] = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    if usage:
        chunk["usage"] = usage
    await exchange.send_event(json.dumps(chunk))


async def close_stream(exchange: Exchange, *, done: bool = True) -> None:
    """End the stream; without ``done`` the protocol's own last word is missing."""
    if done:
        await exchange.send_event("[DONE]")
    await exchange.end_stream()


def call(index: int, id: str | None = None, name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    """A fragment of a tool call, as it stands in a delta."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"index": index, **({"id": id, "type": "function"} if id else {}), "function": function}


def calling(*fragments: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": list(fragments)}


def streams(
    *deltas: dict[str, Any], finish: str | None = "stop", usage: dict[str, Any] | None = USAGE, done: bool = True
) -> Behaviour:
    """A whole answer. With ``finish=None`` and ``done=False`` it is cut off, cleanly."""

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        for delta in deltas:
            await send_chunk(exchange, delta)
        if finish:
            await send_chunk(exchange, {}, finish)
        if usage:
            await send_chunk(exchange, usage=usage)
        await close_stream(exchange, done=done)

    return behave


def says(*texts: str, finish: str = "stop", usage: dict[str, Any] | None = USAGE) -> Behaviour:
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


def fails(
    status: int,
    message: str = "it broke",
    *,
    code: Any = None,
    type: str | None = None,
    headers: dict[str, str] | None = None,
) -> Behaviour:
    return answers_with(status, {"error": {"message": message, "code": code, "type": type}}, headers)


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
            await send_chunk(exchange, delta)
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
            await send_chunk(exchange, delta)
        while meanwhile and not exchange.gone.is_set():
            for text in meanwhile:
                await exchange.send_raw(text)
            await asyncio.sleep(0.01)  # the pace of the keep-alive, not a wait for anything
        await exchange.gone.wait()

    return behave
