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
    {"$ondol": "text",     "v": "<base64>"}         a text with lone surrogates or U+0000 (UTF-8, surrogates passed)
    {"$ondol": "map",      "v": [[key, value]...]}  keys that are not texts, or no plain ones, or named "$ondol"
    {"$ondol": "enum",     "v": ..., "name": "RED"} read back as its value
    {"$ondol": "opaque",   "type": "...", "v": "<repr>"}   no encoder; read back as ``Opaque``

A patch of an object has {"$ondol": "gone"} for a key that is taken out.

A dataclass and a pydantic model are written as the object of their fields: no class paths on disk. Scalars and arrays
in the manner of numpy are written as the Python values that they hold; a path, an IP address or network, a fraction, a
complex number and an address of pydantic (``HttpUrl``) as its text.

No text that is written holds U+0000, not even escaped: PostgreSQL has no room for it. Contents are tagged, so nothing
is lost; in names and reasons ``valid`` puts a visible sign in its place.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import hashlib
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import islice
from pathlib import PurePath
from typing import Any, NoReturn

from ondol.errors import Malformed

TAG = "$ondol"
GONE = {TAG: "gone"}  # no value is written as this
_SAFE_INT = 2**53 - 1
_INT_BITS = 14_000  # about 4,200 digits: Python converts no more by default
_REPR_LIMIT = 1000  # characters of a repr that are kept for a value without an encoder
_NAME_LIMIT = 200  # characters of the name of its type
_DEPTH_LIMIT = 100  # nested deeper than this, a value is written as opaque
_FEW = 20  # items of a mapping that is looked over before it is written
_ITEMS_LIMIT = 1_000_000  # a value with more items in all is not written to its end: it may have none
_AS_TEXT = (PurePath, IPv4Address, IPv6Address, IPv4Network, IPv6Network, Fraction, complex)


@dataclasses.dataclass(frozen=True, slots=True)
class Opaque:
    """What is left of a value that had no encoder: its type's name and its repr."""

    type: str
    repr: str

    def __str__(self) -> str:
        return self.repr


def encode(value: Any, lost: list[str] | None = None) -> Any:
    """The value in JSON's own types, tagged where needed. Never raises, whatever the value does when it is looked at.

    ``lost`` is given the name of the type of each value that had to be written as opaque.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() and "\0" not in value else _text(value)
    if value is None or kind is bool:
        return value
    if kind is int and -_SAFE_INT <= value <= _SAFE_INT:
        return value
    if kind is dict and len(value) <= _FEW and _is_plain(copied := value.copy()):  # a thread may change the original
        return copied
    return _Writing([] if lost is None else lost).value(value)


def _is_plain(given: dict[Any, Any]) -> bool:
    """Is it written as it is, as the arguments of most calls are? Never raises: nothing of its own is run."""
    for key, value in given.items():
        if type(key) is not str or key.startswith(TAG) or not key.isascii() or "\0" in key:
            return False
        kind = type(value)
        if kind is str:
            if not value.isascii() or "\0" in value:
                return False
        elif not (value is None or kind is bool or (kind is int and -_SAFE_INT <= value <= _SAFE_INT)):
            return False
    return True


def as_object(encoded: dict[str, Any]) -> dict[str, Any]:
    """An encoded mapping as a JSON object with one entry a key, so that another can be laid over it.

    Raises ValueError for what is tagged as something else.
    """
    if TAG not in encoded:
        return encoded
    decoded = decode(encoded)
    if not isinstance(decoded, dict):
        raise ValueError(f"a {type(decoded).__name__} is no object")
    return encode_object(decoded)


def encode_object(given: Mapping[Any, Any], lost: list[str] | None = None) -> dict[str, Any]:
    """A mapping as such an object, whatever its keys are: one that is no plain text is written into the key."""
    return {_encode_key(k, lost): encode(v, lost) for k, v in given.items()}


def decode_object(encoded: dict[str, Any]) -> dict[Any, Any]:
    """The mapping that ``encode_object`` wrote."""
    return {_decode_key(k): decode(v) for k, v in as_object(encoded).items()}


def patched(encoded: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """An encoded mapping, as an object, with what the patch sets and without what it takes out."""
    after = {**as_object(encoded), **patch}
    return {k: v for k, v in after.items() if v != GONE} if GONE in patch.values() else after


def undoing(encoded: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The patch that takes this one back, once it is laid over the mapping."""
    before = as_object(encoded)
    return {k: before.get(k, GONE) for k in patch}


def _encode_key(key: Any, lost: list[str] | None) -> str:
    written = encode(key, lost)
    return written if type(written) is str and not written.startswith(TAG) else f"{TAG}:{dumps(written)}"


def _decode_key(key: str) -> Any:
    try:
        return _hashable(decode(loads(key[len(TAG) + 1 :]))) if key.startswith(f"{TAG}:") else key
    except ValueError:  # written before keys were
        return key


class _TooMany(Exception):
    """The value has more items than are written."""


class _Writing:
    """One value while it is written."""

    __slots__ = ("_inside", "_left", "_lost")

    def __init__(self, lost: list[str]) -> None:
        self._lost = lost
        self._inside: dict[int, None] = {}  # the ids of the values around this one
        self._left = _ITEMS_LIMIT

    def value(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return value if value.isascii() and "\0" not in value else _text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -_SAFE_INT <= value <= _SAFE_INT else self._large(value)
        if kind is float:
            return value if math.isfinite(value) else {TAG: "float", "v": repr(value)}
        # No repr here: that of a value which holds itself in many places would not come to an end.
        if id(value) in self._inside:
            return self._opaque(value, "it contains itself")
        if len(self._inside) >= _DEPTH_LIMIT:
            return self._opaque(value, f"nested deeper than {_DEPTH_LIMIT} levels")
        self._inside[id(value)] = None
        try:
            return self._written(value, kind)
        except _TooMany:
            return self._opaque(value, f"more than {_ITEMS_LIMIT} items")
        except BaseException:  # its own code raised; an exit-type exception too: it would end the event loop
            return self._opaque(value)
        finally:
            del self._inside[id(value)]

    def _written(self, value: Any, kind: type) -> Any:
        """Raises TypeError for a value without an encoder, and what the value's own code raises."""
        if kind is dict and len(value) <= min(_FEW, self._left) and _is_plain(copied := value.copy()):
            self._left -= len(copied)
            return copied
        if kind is dict or isinstance(value, Mapping):
            return self._mapping(value.items())
        if kind is list or kind is tuple:
            return [self.value(v) for v in self._items(value)]
        if isinstance(value, enum.Enum):
            return {TAG: "enum", "v": self.value(value.value), "name": valid(str(value.name))}
        if isinstance(value, bytes | bytearray | memoryview):
            return {TAG: "bytes", "v": base64.b64encode(bytes(value)).decode()}
        if isinstance(value, Set):
            return {TAG: "set", "v": sorted((self.value(v) for v in self._items(value)), key=canonical)}
        if isinstance(value, str):
            return _text(str.__str__(value))  # the characters it is made of, whatever its own __str__ says
        if isinstance(value, Sequence):
            return [self.value(v) for v in self._items(value)]
        if isinstance(value, int):
            return self.value(int.__int__(value))
        if isinstance(value, float):
            return self.value(float.__float__(value))
        if (name := _tag_of(value)) is not None:
            return {TAG: name, "v": _text_of(name, value)}
        if isinstance(value, Opaque):
            return _placeholder(value.type, value.repr)
        if dataclasses.is_dataclass(kind):
            return self._mapping([(f.name, getattr(value, f.name)) for f in dataclasses.fields(kind)])
        if hasattr(kind, "model_dump"):  # pydantic, without importing it
            return self.value(value.model_dump())
        if hasattr(kind, "dtype"):  # numpy, and what is like it
            if math.prod(getattr(value, "shape", ())) > self._left:
                raise _TooMany
            return self.value(value.tolist() if hasattr(kind, "tolist") else value.item())
        if isinstance(value, _AS_TEXT) or any(base.__module__ == "pydantic.networks" for base in kind.__mro__):
            return self.value(str(value))
        raise TypeError

    def _mapping(self, given: Iterable[tuple[Any, Any]]) -> Any:
        pairs = [[self.value(k), self.value(v)] for k, v in self._items(given)]
        if all(type(k) is str and not k.startswith(TAG) for k, _ in pairs):  # what begins so is a word of ours
            written = dict(pairs)
            if len(written) == len(pairs):  # not so in a mapping of somebody's own making
                return written
        return {TAG: "map", "v": pairs}

    def _items(self, given: Iterable[Any]) -> list[Any]:
        items = list(islice(given, self._left + 1))
        if len(items) > self._left:
            raise _TooMany
        self._left -= len(items)
        return items

    def _large(self, value: int) -> Any:
        """Digits, as far as Python itself reads them back."""
        if value.bit_length() > _INT_BITS:
            return self._opaque(value, f"an integer of {value.bit_length()} bits")
        return {TAG: "int", "v": str(value)}

    def _opaque(self, value: Any, why: str = "") -> Any:
        name = type(value).__name__
        self._lost.append(valid(name[:_NAME_LIMIT]))
        if why:
            return _placeholder(name, f"<{name}: {why}>")
        try:
            from ondol.secret import redact  # not above: it looks into what is written here

            return _placeholder(name, redact(str.__str__(repr(value))))
        except BaseException as error:  # as in ``value``: its own code raised
            return _placeholder(name, f"<{name}: its repr raised {type(error).__name__}>")


def _placeholder(type: str, shown: str) -> dict[str, Any]:
    return {TAG: "opaque", "type": valid(type[:_NAME_LIMIT]), "v": valid(shown[:_REPR_LIMIT])}


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        pass
    else:
        if "\0" not in value:
            return value
    return {TAG: "text", "v": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}


def _tag_of(value: Any) -> str | None:
    """The tag of a value that is one short text; a datetime is a date too."""
    kinds = (Decimal, datetime, date, time, timedelta, uuid.UUID)
    return next((kind.__name__.lower() for kind in kinds if isinstance(value, kind)), None)


def _text_of(tag: str, value: Any) -> str:
    match tag:
        case "decimal" | "uuid":
            text = str(value)
        case "timedelta":
            micros = value // timedelta(microseconds=1)
            whole, part = divmod(abs(micros), 1_000_000)
            text = "-" * (micros < 0) + f"{whole}.{part:06d}".rstrip("0").rstrip(".")
        case _:
            text = value.isoformat()
    _READERS[tag](text)  # raises for a subclass that shows itself in a way of its own
    return text


def _read_timedelta(text: str) -> timedelta:
    whole, _, part = text.partition(".")
    return timedelta(microseconds=int(whole + part.ljust(6, "0")))


def _read_items(items: list[Any]) -> set[Any]:
    return {_hashable(decode(item)) for item in items}


def _read_map(pairs: list[list[Any]]) -> dict[Any, Any]:
    return {_hashable(decode(k)): decode(v) for k, v in pairs}


def _read_bytes(v: str) -> bytes:
    return base64.b64decode(v, validate=True)  # else what is no base64 would be left out


_READERS: dict[str, Callable[[Any], Any]] = {
    "decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": _read_timedelta,
    "uuid": uuid.UUID,
    "bytes": _read_bytes,
    "set": _read_items,
    "int": int,
    "float": float,
    "text": lambda v: _read_bytes(v).decode("utf-8", "surrogatepass"),
    "map": _read_map,
    "enum": lambda v: decode(v),
}


def decode(encoded: Any) -> Any:
    """The value that ``encode`` wrote. What it never writes, an unknown tag for one, is returned as it stands."""
    if isinstance(encoded, list):
        return [decode(v) for v in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if TAG not in encoded:
        return {k: decode(v) for k, v in encoded.items()}
    if encoded[TAG] == "opaque":
        return Opaque(type=str(encoded.get("type", "?")), repr=str(encoded.get("v", "")))
    try:
        return _READERS[encoded[TAG]](encoded["v"])
    except Exception:  # an unknown tag, or a user's own object that looks like one: shown as it is, never lost
        return encoded


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _hashable(v)) for k, v in value.items())
    return frozenset(value) if isinstance(value, set) else value


#: What is encoded holds itself nowhere, so that need not be looked for.
_to_json: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode
_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")  # a backslash before it may be the end of another escape


def dumps(encoded: Any) -> str:
    """Compact JSON text of an encoded value, as it is stored.

    Contents are tagged before where a store could not hold them. What is left of that kind stands in names and
    reasons, and is replaced as ``valid`` does.
    """
    try:
        text = _writer()(encoded).decode()
    except ValueError:  # a text that is no valid Unicode
        text = valid(_to_json(encoded))
    if "NaN" in text or "Infinity" in text:  # a word of somebody's, or of the writer's own: that is no JSON
        text = valid(_to_json(encoded))
    return _ESCAPED_NUL.sub(r"\1" + _NUL_SHOWN, text) if "\\u0000" in text else text


@functools.cache
def _writer() -> Callable[[Any], bytes]:
    """Pydantic's, which takes a quarter of the time of Python's own. It is slow to load, so not with this module."""
    from pydantic_core import to_json

    return to_json


def is_json(given: Any) -> bool:
    """Does it consist of JSON's own types only?"""
    try:
        _to_strict_json(given)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_to_strict_json: Callable[[Any], str] = json.JSONEncoder(allow_nan=False).encode

_NUL_SHOWN = "\u2400"  # the sign that Unicode has for it


def valid(text: str) -> str:
    """The text as every store and provider takes it: "?" for what is not valid Unicode, a visible sign for U+0000."""
    if "\0" in text:
        text = text.replace("\0", _NUL_SHOWN)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def error_text(error: BaseException) -> str:
    """The class of an exception and what it says; of a group, what those in it say, too. Never raises, whatever the
    exception does when it is asked."""
    if isinstance(error, BaseExceptionGroup):
        inside = _leaves(error)
        named = [_error_text(e) for e in inside[:_IN_GROUP]] + (["…"] if len(inside) > _IN_GROUP else [])
        return f"{_error_text(error)}: {'; '.join(named)}"
    return _error_text(error)


_IN_GROUP = 5  # exceptions of a group that are named


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    """What was raised, without the groups around it."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [group]
    while waiting and len(found) <= _IN_GROUP:
        error = waiting.pop(0)
        if isinstance(error, BaseExceptionGroup):
            waiting[:0] = BaseExceptionGroup.exceptions.__get__(error)
        else:
            found.append(error)
    return found


def _error_text(error: BaseException) -> str:
    name = type(error).__name__
    try:
        said = str.__str__(str(error))
    except BaseException as raised:  # its own code, and whoever tells of an error must not raise another
        return valid(f"{name}, whose text raised {type(raised).__name__}")
    return valid(f"{name}: {said}" if said else name)


def left_out(count: int, offset: int) -> str:
    return f"[… {count} characters left out …]"


def excerpt(text: str, limit: int, note: Callable[[int, int], str] = left_out) -> str:
    """The text in at most ``limit`` characters: of a longer one its beginning, a note on what is missing, and its end.

    ``note`` is given how many characters are left out, and from which on.
    """
    if len(text) <= limit:
        return text
    room = max(limit - len(note(len(text), len(text))) - 2, 0)
    tail = room // 3
    head = room - tail
    return f"{text[:head]}\n{note(len(text) - room, head)}\n{text[len(text) - tail :]}"


loads = json.loads


def read_json(text: str | bytes) -> Any:
    """What somebody sent or typed as JSON (RFC 8259): it has no NaN and no Infinity, no number that is too large to be
    one, and no name twice in an object.

    Raises:
        ValueError: it is none; the message says where.
        Malformed: an object has a name twice; the message says which.
        RecursionError: it nests deeper than can be read.
    """
    try:
        return json.loads(text, object_pairs_hook=_once_each, parse_constant=_no_number, parse_float=_finite)
    except _NoNumber as error:
        literal, whole = str(error), text if isinstance(text, str) else text.decode("utf-8", "replace")
        place = next((found.start() for found in _LITERALS.finditer(whole) if found[0] == literal), 0)
        raise json.JSONDecodeError(f"{literal} is no number of JSON", whole, place) from None


class _NoNumber(Exception):
    """A literal that stands where a number could."""


_LITERALS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^\s\[\]{},:"]+', re.S)  # and texts, in which it may stand too


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(given := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Malformed(f"the JSON has {twice!r} twice in one object, and only one can count: send it once")
    return given


def _no_number(literal: str) -> NoReturn:
    raise _NoNumber(literal)


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise _NoNumber(digits)
    return number


def canonical(encoded: Any) -> bytes:
    """The canonical form (RFC 8785) of an encoded value: key order and spacing do not matter."""
    import rfc8785

    return rfc8785.dumps(encoded)


def digest(encoded: Any) -> str:
    """SHA-256 of the canonical form of an encoded value, in hex."""
    return hashlib.sha256(canonical(encoded)).hexdigest()


def plain_text(encoded: Any) -> str:
    """An encoded value as a model or a person reads it: texts as they are, the rest as JSON without tags."""
    if type(encoded) is str:
        return encoded
    text = _to_plain_json(encoded)
    if TAG not in text:
        return text
    plain = _untagged(encoded)
    return plain if isinstance(plain, str) else _to_plain_json(plain)


_to_plain_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False).encode


def _untagged(encoded: Any) -> Any:
    if isinstance(encoded, list):
        return [_untagged(v) for v in encoded]
    if not isinstance(encoded, dict):
        return encoded
    v = encoded.get("v")
    match encoded.get(TAG):
        case None:
            return {k: _untagged(v) for k, v in encoded.items()}
        case "map":
            pairs = [(plain_text(k), _untagged(item)) for k, item in v or ()]
            return written if len(written := dict(pairs)) == len(pairs) else [list(pair) for pair in pairs]
        case "text":
            return valid(decode(encoded))
        case "int":
            return decode(encoded)
        case _:
            return _untagged(v)
