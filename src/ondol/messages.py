"""What is said in a session, independent of any provider?

Part names follow the message schema of OpenTelemetry's GenAI conventions (``text``, ``reasoning``, ``tool_call``,
``tool_call_response``, ``uri``). Each part may carry an opaque ``provider`` object (signatures, ids), which only the
provider that made it reads. A part of an unknown type is kept word for word.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ondol import values
from ondol.errors import Malformed, StoreTooNew

VERSION = 1  # of the messages on disk
_DEFLATED_FROM = 1000  # bytes; shorter messages stay readable in the file
_DEFLATE_MEMORY = 6  # zlib clears its tables for each message: at its default of 8 that takes longer than the rest

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    provider: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str
    provider: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments`` is the object the model sent, or the raw text where that was not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | str
    provider: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Blob:
    """Where all of a result is kept that is too long for a message.

    ``digest`` is the SHA-256 of the bytes in hex, ``size`` counts them, ``length`` the characters that a model reads.
    ``media_type`` is ``text/plain`` for a text (UTF-8), ``application/json`` for any other value, encoded.
    """

    digest: str
    media_type: str
    size: int
    length: int


_ARGUMENTS_SHOWN = 2_000  # characters of those that a person put in place of the model's


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """The result of one call. ``response`` is an encoded value (see ``values``); ``error`` marks a failure.

    With a ``blob``, ``response`` is only its beginning and its end. ``made_with`` holds, encoded, the arguments that
    the call was made with, where a person had replaced those of the model.
    """

    id: str
    name: str
    response: Any
    error: bool = False
    blob: Blob | None = None
    made_with: dict[str, Any] | None = None

    @property
    def value(self) -> Any:
        """The result as a Python value; where there is a ``blob``, the part of its text that is shown."""
        return values.decode(self.response)

    @property
    def text(self) -> str:
        """The result as a model reads it."""
        result = values.plain_text(self.response)
        if self.made_with is None:
            return result
        arguments = values.excerpt(values.plain_text(self.made_with), _ARGUMENTS_SHOWN)
        return f"[a person changed the arguments of this call, it was made with {arguments}]\n{result}"


@dataclass(frozen=True, slots=True)
class Attachment:
    """Bytes kept as a blob; ``digest`` is their SHA-256 in hex, ``size`` counts bytes."""

    digest: str
    media_type: str
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class UnknownPart:
    """A part that this version does not know, word for word."""

    raw: dict[str, Any]


Part: TypeAlias = Text | Reasoning | ToolCall | ToolResponse | Attachment | UnknownPart


@dataclass(frozen=True, slots=True)
class Message:
    """``origin`` is ``"runtime"`` for what Ondol itself wrote (notes), else None."""

    role: Role
    parts: tuple[Part, ...]
    origin: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(p.text for p in self.parts if isinstance(p, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple([p for p in self.parts if isinstance(p, ToolCall)])


def user(text: str, *attachments: Attachment) -> Message:
    """A blank text beside attachments says nothing: it is left out."""
    return Message("user", (*((Text(text),) if text.strip() or not attachments else ()), *attachments))


def runtime_note(text: str) -> Message:
    return Message("user", (Text(text),), origin="runtime")


def tool_result(
    call_id: str, name: str, response: Any, error: bool = False, blob: Blob | None = None,
    attached: Sequence[Attachment] = (), made_with: dict[str, Any] | None = None,
) -> Message:  # fmt: skip
    """What a call returned, with the images and files that belong to it."""
    return Message("tool", (ToolResponse(call_id, name, response, error, blob, made_with), *attached))


def parse_arguments(text: str) -> dict[str, Any] | str:
    """The JSON object that the text is, or the text itself, unchanged.

    Nothing is repaired: a cut-off object, a key that comes twice, NaN, or a number too large to be one mean that
    nobody knows what the model asked for. Nor is an object one that is nested too deeply to be stored as it is.
    """
    try:
        parsed = values.read_json(text)
    except (ValueError, RecursionError, Malformed):
        return text
    lost: list[str] = []
    values.encode(parsed, lost)
    return parsed if isinstance(parsed, dict) and not lost else text


def dumps(message: Message) -> str:
    """The message as it is stored."""
    body: dict[str, Any] = {"v": VERSION, "role": message.role, "parts": [_part_to_json(p) for p in message.parts]}
    if message.origin:
        body["origin"] = message.origin
    return values.dumps(body | message.extra)


def loads(stored: str) -> Message:
    """Raises StoreTooNew for a message that a newer version wrote."""
    body = json.loads(stored)
    if body.pop("v", VERSION) > VERSION:
        raise StoreTooNew("a message was written by a newer version of Ondol: upgrade to go on with it")
    parts = tuple(_part_from_json(p) for p in body.pop("parts"))
    return Message(body.pop("role"), parts, body.pop("origin", None), body)


def pack(body: str) -> bytes:
    """A stored message as bytes: as it is, or deflated (zlib, RFC 1950) where that is worth it."""
    plain = body.encode()
    if len(plain) < _DEFLATED_FROM:
        return plain
    deflate = zlib.compressobj(level=1, memLevel=_DEFLATE_MEMORY)
    deflated = deflate.compress(plain) + deflate.flush()
    return deflated if len(deflated) < len(plain) else plain


def unpack(stored: bytes) -> str:
    """What ``pack`` was given. Raises ValueError for bytes that it did not make.

    A body is a JSON object: plain it starts with ``{``, which no zlib stream does.
    """
    if stored.startswith(b"{"):
        return stored.decode()
    try:
        return zlib.decompress(stored).decode()
    except zlib.error as error:
        raise ValueError(str(error)) from error


def _part_to_json(part: Part) -> dict[str, Any]:
    match part:
        case Text(text, provider):
            raw: dict[str, Any] = {"type": "text", "content": values.encode(text)}
        case Reasoning(text, provider):
            raw = {"type": "reasoning", "content": values.encode(text)}
        case ToolCall(id, name, arguments, provider):
            raw = {"type": "tool_call", "id": id, "name": name, "arguments": values.encode(arguments)}
        case ToolResponse(id, name, response, error, blob, made_with):
            raw, provider = {"type": "tool_call_response", "id": id, "name": name, "response": response}, None
            if error:
                raw["error"] = True
            if blob is not None:
                raw["blob"] = {**_uri(blob), "size": blob.size, "length": blob.length}
            if made_with is not None:
                raw["made_with"] = made_with
        case Attachment(_, _, name, size):
            raw, provider = {"type": "uri", **_uri(part), "name": values.encode(name), "size": size}, None
        case UnknownPart(raw):
            return raw
    if provider:
        raw["provider"] = values.encode(provider)
    return raw


def _part_from_json(raw: dict[str, Any]) -> Part:
    match raw:
        case {"type": "text", "content": content}:
            return Text(values.decode(content), values.decode(raw.get("provider")))
        case {"type": "reasoning", "content": content}:
            return Reasoning(values.decode(content), values.decode(raw.get("provider")))
        case {"type": "tool_call", "id": id, "name": name, "arguments": arguments}:
            return ToolCall(id, name, values.decode(arguments), values.decode(raw.get("provider")))
        case {"type": "tool_call_response", "id": id, "name": name, "response": response}:
            blob = _blob_from_json(raw.get("blob"))
            return ToolResponse(id, name, response, bool(raw.get("error")), blob, raw.get("made_with"))
        case {"type": "uri", "uri": str(uri), "mime_type": media_type} if uri.startswith(_BLOB):
            digest = uri.removeprefix(_BLOB)
            return Attachment(digest, media_type, values.decode(raw.get("name", "")), raw.get("size", 0))
        case _:
            return UnknownPart(raw)


_BLOB = "blob:sha256:"
ATTACHED = '"type":"uri"'  # stands in the stored body of each message that has an attachment


def _uri(blob: Blob | Attachment) -> dict[str, Any]:
    return {"uri": f"{_BLOB}{blob.digest}", "mime_type": blob.media_type}


def _blob_from_json(raw: Any) -> Blob | None:
    match raw:
        case {"uri": str(uri), "mime_type": str(media_type), "size": int(size), "length": int(length)}:
            return Blob(uri.removeprefix(_BLOB), media_type, size, length)
        case _:
            return None
