"""How is any Python value written as JSON and read back, and what is its hash?

JSON as it is stays as it is. What JSON lacks is an object with the key ``$ondol`` that names the kind:

    {"$ondol": "decimal",  "v": "0.10"}             exact
    {"$ondol": "datetime", "v": "2026-11-30T00:30:00+09:00"}   offset kept; without one it stays naive
    {"$ondol": "date" | "time" | "uuid", "v": "..."}
    {"$ondol": "timedelta", "v": "86400.5"}         seconds, exact to the microsecond
    {"$ondol": "bytes",    "v": "<base64>"}
    {"$ondol": "set",      "v": [...]}              sorted by canonical form
    {"$ondol": "int",      "v": "9007199254740993"} beyond 2^53
    {"$ondol": "float",    "v": "nan" | "inf" | "-inf"}
    {"$ondol": "text",     "v": "<base64>"}         a text with lone surrogates (UTF-8, surrogates passed)
    {"$ondol": "map",      "v": [[key, value]...]}  keys that are not texts, or a key named "$ondol"
    {"$ondol": "enum",     "v": ..., "name": "RED"} read back as its value
    {"$ondol": "opaque",   "type": "...", "v": "<repr>"}   no encoder; read back as ``Opaque``

A dataclass and a pydantic model are written as the object of their fields: no class paths on disk.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

TAG = "$ondol"
_SAFE_INT = 2**53 - 1
_INT_BITS = 14_000  # about 4,200 digits: Python converts no more by default
_REPR_LIMIT = 1000  # characters of a repr that are kept for a value without an encoder
_DEPTH_LIMIT = 100  # nested deeper than this, a value is written as opaque


@dataclasses.dataclass(frozen=True, slots=True)
class Opaque:
    """What is left of a value that had no encoder: its type's name and its repr."""

    type: str
    repr: str

    def __str__(self) -> str:
        return self.repr


def encode(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """The value in JSON's own types, tagged where needed. Never raises for a value it cannot write."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -_SAFE_INT <= value <= _SAFE_INT else _large(value)
    if kind is float:
        return value if math.isfinite(value) else {TAG: "float", "v": repr(value)}
    if len(inside) >= _DEPTH_LIMIT or id(value) in inside:  # too deep, or it contains itself
        return _opaque(value)
    if isinstance(value, Mapping):
        return _mapping(value, (*inside, id(value)))
    if isinstance(value, enum.Enum):
        return {TAG: "enum", "v": encode(value.value, (*inside, id(value))), "name": value.name}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {TAG: "bytes", "v": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, Set):
        within = (*inside, id(value))
        return {TAG: "set", "v": sorted((encode(v, within) for v in value), key=canonical)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        within = (*inside, id(value))
        return [encode(v, within) for v in value]
    return _other(value, inside)


def _large(value: int) -> Any:
    """Digits, as far as Python itself reads them back."""
    if value.bit_length() > _INT_BITS:
        return {TAG: "opaque", "type": "int", "v": f"an integer of {value.bit_length()} bits"}
    return {TAG: "int", "v": str(value)}


def _other(value: Any, inside: tuple[int, ...]) -> Any:
    match value:
        case str():
            return _text(str(value))
        case bool() | int() | float():
            return encode(int(value) if isinstance(value, int) else float(value))
        case Decimal():
            return {TAG: "decimal", "v": str(value)}
        case datetime():
            return {TAG: "datetime", "v": value.isoformat()}
        case date():
            return {TAG: "date", "v": value.isoformat()}
        case time():
            return {TAG: "time", "v": value.isoformat()}
        case timedelta():
            micros = value // timedelta(microseconds=1)
            return {TAG: "timedelta", "v": str(Decimal(micros) / 1_000_000)}
        case uuid.UUID():
            return {TAG: "uuid", "v": str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return _mapping(fields, (*inside, id(value)))
    dump = getattr(value, "model_dump", None)  # pydantic, without importing it
    if callable(dump) and not isinstance(value, type):
        try:
            return encode(dump(), (*inside, id(value)))
        except Exception:
            return _opaque(value)
    return _opaque(value)


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return {TAG: "text", "v": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
    return value


def _mapping(value: Mapping[Any, Any], inside: tuple[int, ...]) -> Any:
    if all(type(k) is str and k != TAG and (k.isascii() or _text(k) is k) for k in value):
        return {k: encode(v, inside) for k, v in value.items()}
    return {TAG: "map", "v": [[encode(k, inside), encode(v, inside)] for k, v in value.items()]}


def _opaque(value: Any) -> dict[str, Any]:
    try:
        shown = repr(value)
    except Exception as error:
        shown = f"<{type(value).__name__}: its repr raised {type(error).__name__}>"
    return {TAG: "opaque", "type": type(value).__name__, "v": valid(shown)[:_REPR_LIMIT]}


def has_opaque(encoded: Any) -> bool:
    """Is there a value in it that had no encoder?"""
    if isinstance(encoded, dict):
        return encoded.get(TAG) == "opaque" or any(has_opaque(v) for v in encoded.values())
    return isinstance(encoded, list) and any(has_opaque(v) for v in encoded)


def decode(encoded: Any) -> Any:
    """The value that ``encode`` wrote. An unknown tag is returned as it stands."""
    if isinstance(encoded, list):
        return [decode(v) for v in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if TAG not in encoded:
        return {k: decode(v) for k, v in encoded.items()}
    v = encoded.get("v")
    match encoded[TAG]:
        case "decimal":
            return Decimal(v)  # type: ignore[arg-type]
        case "datetime":
            return datetime.fromisoformat(v)  # type: ignore[arg-type]
        case "date":
            return date.fromisoformat(v)  # type: ignore[arg-type]
        case "time":
            return time.fromisoformat(v)  # type: ignore[arg-type]
        case "timedelta":
            return timedelta(microseconds=int(Decimal(v) * 1_000_000))  # type: ignore[arg-type]
        case "uuid":
            return uuid.UUID(v)
        case "bytes":
            return base64.b64decode(v)  # type: ignore[arg-type]
        case "set":
            return {_hashable(decode(item)) for item in v}  # type: ignore[union-attr]
        case "int":
            return int(v)  # type: ignore[arg-type]
        case "float":
            return float(v)  # type: ignore[arg-type]
        case "text":
            return base64.b64decode(v).decode("utf-8", "surrogatepass")  # type: ignore[arg-type]
        case "map":
            return {_hashable(decode(k)): decode(item) for k, item in v}  # type: ignore[union-attr]
        case "enum":
            return decode(v)
        case "opaque":
            return Opaque(type=encoded.get("type", "?"), repr=v or "")
        case _:
            return encoded


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _hashable(v)) for k, v in value.items())
    return frozenset(value) if isinstance(value, set) else value


_to_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def dumps(encoded: Any) -> str:
    """Compact JSON text of an encoded value, as it is stored.

    Contents are tagged before where they are not valid Unicode. What is left of that kind stands in names and reasons,
    and is replaced.
    """
    text = _to_json(encoded)
    return text if text.isascii() else valid(text)


def valid(text: str) -> str:
    """The text, with what is not valid Unicode in it replaced by question marks."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


loads = json.loads


def canonical(encoded: Any) -> bytes:
    """The canonical form (RFC 8785) of an encoded value: key order and spacing do not matter."""
    import rfc8785

    return rfc8785.dumps(encoded)


def digest(encoded: Any) -> str:
    """SHA-256 of the canonical form of an encoded value, in hex."""
    return hashlib.sha256(canonical(encoded)).hexdigest()


def plain_text(encoded: Any) -> str:
    """An encoded value as a model or a person reads it: texts as they are, the rest as JSON without tags."""
    if isinstance(encoded, str):
        return encoded
    return json.dumps(_untagged(encoded), ensure_ascii=False)


def _untagged(encoded: Any) -> Any:
    if isinstance(encoded, list):
        return [_untagged(v) for v in encoded]
    if not isinstance(encoded, dict):
        return encoded
    match encoded.get(TAG):
        case None:
            return {k: _untagged(v) for k, v in encoded.items()}
        case "map":
            return {plain_text(k): _untagged(v) for k, v in encoded["v"]}
        case "set":
            return [_untagged(v) for v in encoded["v"]]
        case "text":
            return valid(decode(encoded))
        case _:
            return _untagged(encoded.get("v"))
