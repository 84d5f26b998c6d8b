"""Is what came an answer, and which events of a stream are it?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Set
from contextlib import suppress
from typing import Any

_EXCERPT = 20_000  # bytes of what came instead of events: an error is read only as a whole
_END_SECONDS = 0.1  # as long as the end of a stream may take to come behind its last event, as in the client of OpenAI


class NoAnswer(Exception):
    """What came is none, though it has the status of one: a page, or an error."""


def look(said: object) -> None:
    """Raises ``NoAnswer`` where ``said``, which came in one piece, is an error and nothing else."""
    if isinstance(said, dict) and said.get("error") and not said.get("choices") and "output" not in said:
        raise NoAnswer(json.dumps(said))


async def of_answer(
    decode: Callable[[AsyncIterator[bytes]], AsyncIterator[Any]],
    stream: AsyncIterator[bytes],
    last: Set[str] = frozenset(),
) -> AsyncIterator[Any]:
    """The events in ``stream``, up to one of those that are the ``last``: how a connection ends behind it is no matter.

    Raises:
        NoAnswer: there is none, but something else.
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
        raise NoAnswer(beginning.decode("utf-8", "replace"))


async def _read_to_end(stream: AsyncIterator[bytes]) -> None:
    """A connection is used again only where nothing of its answer is left."""
    with suppress(Exception):
        async with asyncio.timeout(_END_SECONDS):
            async for _ in stream:
                pass
