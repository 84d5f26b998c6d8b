"""What does Ondol ask of a model?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, Protocol, TypeAlias

from ondol import values
from ondol.errors import ModelError, number_of_tokens
from ondol.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, UnknownPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model is shown it. ``parameters`` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


async def _no_bytes(attachment: Attachment) -> bytes:
    raise ModelError(
        "rejected", f"the bytes of {attachment.name} are not at hand: give the request a 'load'", sent=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request. ``messages`` start with the system message; every call in them has exactly one result, in order.

    ``step`` is the number of answers that the run already holds, ``attempt`` counts from 1 within the step and model.
    ``purpose`` is ``summary`` where the answer will stand in the place of older turns: then there are no tools.
    ``await load(attachment)`` gives the bytes of an attachment in the messages. It raises ModelError: ``rejected``
    where they are gone for good, ``unavailable`` where the store could not be read.
    Later requests hold the same messages and tools: nothing in them may be changed, only copied.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    run: str
    step: int
    attempt: int
    purpose: Literal["answer", "summary"] = "answer"
    load: Callable[[Attachment], Awaitable[bytes]] = field(default=_no_bytes, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer while it is written. Only for watchers: it is not stored."""

    text: str
    kind: Literal["text", "reasoning"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer, the last thing a stream yields.

    ``stop`` is the reason the provider gave: ``stop``, ``tool_calls``, ``length`` (cut off: none of its calls are
    made), ``content_filter``, or its own word. Tokens are None where the provider did not say. ``input_tokens`` counts
    all input; of it ``cache_read_tokens`` came from the provider's cache and ``cache_write_tokens`` were put there.
    ``output_tokens`` counts all output; of it ``reasoning_tokens`` were reasoning.
    """

    parts: tuple[Part, ...]
    stop: str = "stop"
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    model: str = ""


_COUNTED = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens",
)  # fmt: skip
_tokens = attrgetter(*_COUNTED)


def why_no_answer(given: object) -> str | None:
    """What is wrong with what a model gave as its answer; None where it can be taken for one."""
    if not isinstance(given, Answer):
        return f"a {type(given).__name__} instead of an Answer"
    if not isinstance(given.parts, tuple | list):
        return f"its parts are a {type(given.parts).__name__}, not a tuple"
    for part in given.parts:
        if not _is_answered(part):
            return f"{values.excerpt(values.plain_text(values.encode(repr(part))), 200)} is no part of an answer"
    if not isinstance(given.stop, str):
        return f"stop={given.stop!r} is no text"
    for name, n in zip(_COUNTED, _tokens(given), strict=True):
        if n is not None and number_of_tokens(n) is None:
            return f"{name}={n!r} is no number of tokens"
    return None


def _is_answered(part: object) -> bool:
    match part:
        case Text(text=text, provider=private) | Reasoning(text=text, provider=private):
            return isinstance(text, str) and isinstance(private, dict | None)
        case ToolCall(id=id, name=name, arguments=arguments, provider=private):
            named = isinstance(id, str) and isinstance(name, str) and isinstance(private, dict | None)
            return named and _are_arguments(arguments)
        case UnknownPart(raw=raw):
            return isinstance(raw, dict) and values.is_json(raw)
        case Attachment(digest=digest, media_type=media_type, name=name, size=size):
            return all(isinstance(t, str) for t in (digest, media_type, name)) and isinstance(size, int)
        case _:
            return False


def _are_arguments(given: object) -> bool:
    """A text, or an object of JSON: every later request has to hold it, so it is looked at before the call is made."""
    if not isinstance(given, dict):
        return isinstance(given, str)
    return {*map(type, given), *map(type, given.values())} <= _SURELY_JSON or values.is_json(given)


_SURELY_JSON = {str, int, bool, type(None)}


def spent_on(answer: Answer, asked: str) -> dict[str, Any]:
    """The fields of ``events.Spent``. ``asked`` is the name that the agent has for the model."""
    return {
        "model": answer.model, "asked": "" if asked == answer.model else asked, "input": answer.input_tokens,
        "output": answer.output_tokens, "cache_read": answer.cache_read_tokens,
        "cache_write": answer.cache_write_tokens, "reasoning": answer.reasoning_tokens,
    }  # fmt: skip


ModelOutput: TypeAlias = Delta | Answer


class Model(Protocol):
    """One request in, a stream of parts out.

    ``stream`` yields any number of ``Delta`` and then exactly one ``Answer``. A stream that ends without an answer
    counts as a broken connection. Nothing is asked for behind the answer: the stream is closed, and what is left to do
    stands in a ``finally``, which gets 2 seconds. It makes one attempt: retries are Ondol's. Closing the stream
    (``aclose``) or cancelling the task stops the request and closes its socket.
    Raises ModelError, with the kind that says what to do.

    The attribute ``provider`` (by default the name) says whose private data (signatures, ids) it can read back: that
    of its own answers is recorded with it as ``name``, and parts that carry another name lose it before they are handed
    over.
    """

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]: ...
