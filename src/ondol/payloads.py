"""What of a tool's result is an image, a sound or a document, and no text?

Such bytes are taken out of the result: they are kept once, as a blob, and attached to it, so that a model sees them as
what they are. In their place stands what they were. ``put_back`` gives the value again that the tool returned.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ondol import media, values
from ondol.messages import Attachment

_LEAST = 200  # bytes; less is no picture
_TAKEN = ("image/", "audio/", "application/pdf")


class Taken(NamedTuple):
    """``encoded`` is the result without the bytes; ``attached`` names them, ``data`` holds them, in the same order."""

    encoded: Any
    attached: tuple[Attachment, ...] = ()
    data: tuple[bytes, ...] = ()


def take(encoded: Any) -> Taken:
    """The result with a mark in the place of all bytes and texts in base64 that are an image, a sound or a document."""
    if not _is_long(encoded):
        return Taken(encoded)
    found: dict[str, tuple[Attachment, bytes]] = {}
    walked = _walk(encoded, "", found)
    if not found:
        return Taken(encoded)
    return Taken(walked, tuple(a for a, _ in found.values()), tuple(data for _, data in found.values()))


def _is_long(part: Any) -> bool:
    """Is any text in it long enough? Most results hold none, and some have many thousand parts."""
    kind = type(part)
    if kind is str:
        return len(part) * 3 // 4 >= _LEAST
    if kind is dict:
        return any(map(_is_long, part.values()))
    return kind is list and any(map(_is_long, part))


def _walk(part: Any, name: str, found: dict[str, tuple[Attachment, bytes]]) -> Any:
    match part:
        case {values.TAG: "bytes", "v": str(text)} if (data := _read(text)) is not None:
            return _mark(data, name, "bytes", "", found)
        case str() if (data := _read(part)) is not None:
            head = part[: part.index(",") + 1] if part.startswith("data:") else ""
            return _mark(data, name, "base64", head, found)
        case dict():
            return {k: _walk(inner, k if k not in (values.TAG, "v") else name, found) for k, inner in part.items()}
        case list():
            return [_walk(inner, name, found) for inner in part]
        case _:
            return part


def _mark(data: bytes, name: str, form: str, head: str, found: dict[str, tuple[Attachment, bytes]]) -> Any:
    type, digest = media.media_type("", data), hashlib.sha256(data).hexdigest()
    if digest not in found:
        found[digest] = Attachment(digest, type, media.shown_name(values.valid(name) or "result"), len(data)), data
    return {_MARK: digest, "media_type": type, "size": len(data), "form": form, **({"head": head} if head else {})}


_MARK = "$ondol_attached"


def _read(text: str) -> bytes | None:
    """The bytes that a text in base64 stands for, if they are a picture or the like."""
    body = text[text.index(",") + 1 :] if text.startswith("data:") and "," in text else text
    if len(body) * 3 // 4 < _LEAST or " " in body[:100]:
        return None
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return None
    if base64.b64encode(data).decode() != body:
        return None  # it could not be put back exactly
    return data if media.media_type("", data).startswith(_TAKEN) else None


def is_mark(encoded: Mapping[str, Any]) -> bool:
    """Does it stand for bytes that were taken out? A result of somebody's own may look like it."""
    return encoded.keys() >= {_MARK, "media_type", "size", "form"}


def put_back(encoded: Any, blobs: Mapping[str, bytes]) -> Any:
    """The result as the tool returned it, encoded."""
    match encoded:
        case dict() if is_mark(encoded) and isinstance(encoded[_MARK], str) and encoded[_MARK] in blobs:
            text = base64.b64encode(blobs[encoded[_MARK]]).decode()
            return {values.TAG: "bytes", "v": text} if encoded["form"] == "bytes" else encoded.get("head", "") + text
        case dict():
            return {key: put_back(inner, blobs) for key, inner in encoded.items()}
        case list():
            return [put_back(inner, blobs) for inner in encoded]
        case _:
            return encoded
