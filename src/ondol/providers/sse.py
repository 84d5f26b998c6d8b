"""Which events of a stream are an answer?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Set
from contextlib import suppress
from typing import Any

_EXCERPT = 500  # bytes of what came instead of events
_END_SECONDS = 0.1  # as long as the end of a stream may take to come behind its last event, as in the client of OpenAI


class NoEvents(Exception):
    """What came is no stream of events: a page, or an error that has the status of an answer."""


async def of_answer(
    decode: Callable[[AsyncIterator[bytes]], AsyncIterator[Any]],
    stream: AsyncIterator[bytes],
    last: Set[str] = frozenset(),
) -> AsyncIterator[Any]:
    """The events in ``stream``, up to one of those that are the ``last``: how a connection ends behind it is no matter.

    Raises:
        NoEvents: there is none, but something else.
    """
    beginning, heard = b"", False

    async def noted() -> AsyncIterator[bytes]:
        nonlocal beginning
        async for piece in stream:
            if not heard and len(beginning) < _EXCERPT:
                beginning += piece[:_EXCERPT]
            yield piece

    async for event in decode(noted()):
        heard = True
        yield event
        if event.event in last:
            await _read_to_end(stream)
            return
    if not heard and beginning.strip():
        raise NoEvents(beginning.decode("utf-8", "replace"))


async def _read_to_end(stream: AsyncIterator[bytes]) -> None:
    """A connection is used again only where nothing of its answer is left."""
    with suppress(Exception):
        async with asyncio.timeout(_END_SECONDS):
            async for _ in stream:
                pass
