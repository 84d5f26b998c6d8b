"""What a provider says, in no provider's words, so that one test can have every wire say it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from providers.loopback import Behaviour, Exchange

from ondol.errors import ModelErrorKind
from ondol.providers.pydantic_ai import PydanticAIModel


@dataclass(frozen=True)
class Say:
    """A text, in the pieces in which it is streamed."""

    pieces: tuple[str, ...]


@dataclass(frozen=True)
class Think:
    """Reasoning. ``signature`` is what the provider wants to see again."""

    pieces: tuple[str, ...]
    signature: str = ""


@dataclass(frozen=True)
class Call:
    """A call of a tool, its arguments in the pieces in which they are streamed."""

    id: str
    name: str
    pieces: tuple[str, ...]

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


Said: TypeAlias = Say | Think | Call
Finish: TypeAlias = Literal["end", "length", "filter"]


@dataclass(frozen=True)
class Spent:
    """Tokens: ``cached`` and ``written`` are part of ``input``, ``reasoning`` is part of ``output``."""

    input: int = 11
    output: int = 7
    cached: int = 0
    written: int = 0
    reasoning: int = 0


class Frame(NamedTuple):
    """One event of a stream."""

    data: dict[str, Any] | str
    event: str | None = None


class Failure(NamedTuple):
    status: int
    body: dict[str, Any]


@dataclass(frozen=True)
class Attached:
    media_type: str
    data: bytes = field(repr=False)


class Wire(Protocol):
    """A provider's API as its server speaks it."""

    name: str
    key_variables: tuple[str, ...]
    url_variable: str
    signs: bool
    """Does its reasoning carry a signature?"""
    writes_cache: bool
    """Does it tell what was written to its cache?"""
    tells_input_first: bool
    """Does a stream begin with the tokens of its input?"""

    def url(self, host: str) -> str: ...

    def make(self, model: str, *, timeout: float, stream: bool) -> PydanticAIModel: ...

    def frames(self, said: Sequence[Said], finish: Finish | None, spent: Spent | None) -> Iterable[Frame]:
        """A streamed answer; without ``finish`` it has no end yet."""
        ...

    def whole(self, said: Sequence[Said], finish: Finish | None, spent: Spent | None) -> dict[str, Any]: ...

    def failure(self, kind: ModelErrorKind) -> Failure | None:
        """The answer that means this kind of error. None where the provider has no word for it."""
        ...

    def broken(self, kind: ModelErrorKind) -> Frame | None:
        """The same as an event within a stream."""
        ...

    def files(self, body: dict[str, Any]) -> list[Attached]:
        """What was attached to the messages of a request."""
        ...

    def calls(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        """Id and result of each call in a request, in order."""
        ...


def wants_stream(exchange: Exchange) -> bool:
    return bool(exchange.body.get("stream")) or "streamGenerateContent" in exchange.path


async def send(exchange: Exchange, frames: Iterable[Frame]) -> None:
    for data, event in frames:
        await exchange.send_event(data if isinstance(data, str) else json.dumps(data), event)


def answers(wire: Wire, *said: Said, finish: Finish | None = "end", spent: Spent | None = Spent()) -> Behaviour:
    """A whole answer, streamed or not, as the request wants it."""

    async def behave(exchange: Exchange) -> None:
        if not wants_stream(exchange):
            return await exchange.send_json(200, wire.whole(said, finish, spent))
        await exchange.open_stream()
        await send(exchange, wire.frames(said, finish, spent))
        return await exchange.end_stream()

    return behave


def breaks(wire: Wire, how: Literal["drop", "stall"] | Frame, *said: Said, alive: str = "") -> Behaviour:
    """A stream that breaks after what was said, or an answer that never begins. ``alive`` is sent again and again."""

    async def behave(exchange: Exchange) -> None:
        if said or alive or isinstance(how, Frame):
            await exchange.open_stream()
            await send(exchange, wire.frames(said, None, Spent()))
        if isinstance(how, Frame):
            await send(exchange, [how])
            return await exchange.end_stream()
        if how == "drop":
            return exchange.drop()
        while alive and not exchange.gone.is_set():
            await exchange.send_raw(alive)
            await asyncio.sleep(0.01)  # the pace of the keep-alive, not a wait for anything
        await exchange.gone.wait()
        return None

    return behave


def fails(wire: Wire, kind: ModelErrorKind, **headers: str) -> Behaviour:
    failure = wire.failure(kind)
    assert failure is not None
    sent = {name.replace("_", "-"): value for name, value in headers.items()}

    async def behave(exchange: Exchange) -> None:
        await exchange.send_json(failure.status, failure.body, sent)

    return behave


def interleaved(calls: Sequence[Call]) -> Iterable[tuple[int, str]]:
    """Pieces of several calls in turn, each with the number of its call."""
    for turn in range(max((len(c.pieces) for c in calls), default=0)):
        for number, call in enumerate(calls):
            if turn < len(call.pieces):
                yield number, call.pieces[turn]
