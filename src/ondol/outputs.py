"""How is a result shown that is too long for a model, and how does the model read the rest?

All of it is kept as a blob. The message holds its beginning and its end, how much there is between them, and the
blob's digest, by which ``read_more`` pages through it. Lengths count characters of what a model reads, so nothing is
cut inside one.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ondol import values
from ondol.errors import NotDone
from ondol.limits import LEAST_TOOL_OUTPUT
from ondol.messages import Blob, Message, ToolResponse
from ondol.tools import Context, Tool, tool

_LEAST = 300  # characters that a result shows even where a budget has no room: most of them say how to read on
_DIGITS = 8  # of a digest that are enough, where they name one blob


class Shown(NamedTuple):
    """What a message holds of a result; ``data`` are the bytes of the blob, if there is one."""

    response: Any
    blob: Blob | None = None
    data: bytes = b""


def share(limit: int, calls: int, whole: int | None = None) -> int:
    """The characters that each result of a step with so many calls may show, where one alone may show ``limit``, and a
    budget has room for ``whole`` in all."""
    least = LEAST_TOOL_OUTPUT if whole is None else min(max(whole // calls, _LEAST), LEAST_TOOL_OUTPUT)
    return max(limit // calls, least)


def show(encoded: Any, text: str, limit: int) -> Shown:
    """An encoded result in at most ``limit`` characters; ``text`` is its plain text."""
    if len(text) <= limit:
        return Shown(encoded)
    plain = isinstance(encoded, str)
    data = (encoded if plain else values.dumps(encoded)).encode()
    media_type = "text/plain" if plain else "application/json"
    blob = Blob(hashlib.sha256(data).hexdigest(), media_type, len(data), len(text))

    def note(count: int, offset: int) -> str:
        how = f'{READ_MORE.name}(reference="{blob.digest}", offset={offset})'
        return f"[… {count} of {blob.length} characters left out: read on with {how} …]"

    return Shown(values.excerpt(text, limit, note), blob, data)


def text_of(blob: Blob, data: bytes) -> str:
    """What a model reads of a blob."""
    return values.plain_text(encoded_of(blob, data))


def value_of(blob: Blob, data: bytes) -> Any:
    """What the tool returned."""
    return values.decode(encoded_of(blob, data))


def encoded_of(blob: Blob, data: bytes) -> Any:
    """The result as it is stored."""
    return values.loads(data) if blob.media_type == "application/json" else data.decode()


def is_cut(message: Message) -> bool:
    """Does it hold a result that is too long to be shown whole?"""
    return any(isinstance(part, ToolResponse) and part.blob is not None for part in message.parts)


def blobs_of(messages: Iterable[Message]) -> dict[str, Blob]:
    """The blobs that the messages refer to, by digest."""
    parts = (p for m in messages if m.role == "tool" for p in m.parts if isinstance(p, ToolResponse))
    return {p.blob.digest: p.blob for p in parts if p.blob is not None}


def find(reference: str, blobs: Mapping[str, Blob]) -> Blob:
    """Raises NotDone where the reference does not name one of these blobs."""
    given = reference.strip().lower()
    found = [b for digest, b in blobs.items() if len(given) >= _DIGITS and digest.startswith(given)]
    if len(found) != 1:
        raise NotDone(
            f"this conversation has no result {given[:64]!r}: give the reference that a shortened result names"
        )
    return found[0]


_HEADING = "[characters {} to {} of {}; read on with offset={}]\n"


def page(text: str, offset: int, limit: int | None, room: int) -> str:
    """The text from the character ``offset`` on, under a heading: in all at most ``room`` characters of it."""
    size = len(text)
    if not 0 <= offset < size or (limit is not None and limit < 1):
        raise NotDone(f"there is nothing: it has {size} characters, offset counts from 0, limit from 1")
    most = room - len(_HEADING.format(size, size, size, size))
    end = min(size, offset + min(limit or most, most))
    if end == size:
        return f"[characters {offset} to {end}, the end]\n{text[offset:]}"
    return _HEADING.format(offset, end, size, end) + text[offset:end]


@tool(effect="read", name="read_more")
async def _read_more(ctx: Context[Any], reference: str, offset: int = 0, limit: int | None = None) -> str:
    """Read more of a result that was too long to be shown whole, or see again what is left out by now.

    reference: what stands there in its place, a digest or the number of a message. offset: the character to begin at,
    from 0. limit: at most so many characters; by default as many as fit.
    """
    text, room = await ctx._kept(reference)
    return page(text, offset, limit, room)


READ_MORE: Tool[..., Any] = _read_more


@functools.cache
def weight_of_read_more() -> int:
    """How much of a request it takes where it is offered; see ``sizes``. No definition holds it."""
    spec = READ_MORE.spec
    return len(spec.name + spec.description + values.dumps(spec.parameters))
