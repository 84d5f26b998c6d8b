"""Does a value fit a JSON schema, and which value did somebody type?

As much of JSON Schema (draft 2020-12) as pydantic writes for Python types: a person's answer is checked at once, also
in a process that does not have the type. Validators of one's own are part of no schema: they run where the answer is
used.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import math
import operator
import re
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Annotated, Any, TypeAlias, Union

from ondol import values
from ondol.errors import InvalidInput, Malformed
from ondol.showing import counted

Schema: TypeAlias = Mapping[str, Any]
_Problem: TypeAlias = tuple[str, str]  # where, as in "items.0.name", and why

_YES, _NO = ("true", "yes", "y"), ("false", "no", "n")
_SHOWN = 60  # characters of a value in a message


def problem(value: Any, schema: Schema) -> str | None:
    """Why the value (of JSON's own types) does not fit, for the one who gave it; None if it does."""
    for where, why in chain(_unreadable(value, ""), _problems(value, schema, schema, "")):
        return f"{where}: {why}" if where else why
    return None


#: A surrogate without its other half. With both of them it is a character, and is read as that.
_HALF = re.compile("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]")
_HOLDS_HALF = "holds half of a character (a lone surrogate): no tool can be given that"


def _unreadable(value: Any, where: str) -> Iterator[_Problem]:
    """What no type can be read from, whatever the schema says."""
    match value:
        case str():
            if _HALF.search(value):
                yield where, _HOLDS_HALF
        case list():
            for n, item in enumerate(value):
                yield from _unreadable(item, _in(where, n))
        case dict():
            for name, item in value.items():
                yield from _unreadable(name, where)
                yield from _unreadable(item, _in(where, name))
        case None | bool() | int() | float():
            pass
        case _:
            yield where, f"is no value of JSON, but {type(value).__name__}"


def typed(text: str, schema: Schema) -> Any:
    """The value that somebody typed: JSON where that fits, else the text itself, or yes and no for true and false.

    Raises:
        InvalidInput: it is no value of the schema; the message says why.
    """
    no_json = None
    try:
        value = values.read_json(text)
    except (ValueError, RecursionError, Malformed) as error:
        value, no_json = text, error
    if (why := problem(value, schema)) is None:
        return value
    if problem(text, schema) is None:
        return text
    word = text.strip().lower()
    if word in (*_YES, *_NO) and problem(word in _YES, schema) is None:
        return word in _YES
    raise InvalidInput(f"{why} ({no_json})" if no_json and text.lstrip().startswith(("{", "[")) else why)


def described(schema: Schema) -> str:
    """What is asked for, in a few words; of an object, and of a list of them, the fields too."""
    return _described(schema, schema, _FIELDS_SHOWN)


_FEW = 5  # choices that are worth a line each
_FIELDS_SHOWN = 3  # levels of which the fields are named: a type may hold itself


def choices(schema: Schema) -> list[str]:
    """All answers, as somebody would type them, where there are only a few; else nothing."""
    match _resolved(schema, schema):
        case {"const": only}:
            values = [only]
        case {"enum": list(values)} if len(values) <= _FEW:
            pass
        case {"type": "boolean"}:
            values = [True, False]
        case _:
            return []
    return [v if isinstance(v, str) and typed(v, schema) == v else json.dumps(v) for v in values]


_NAMES = {
    "string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "array": "a list", "object": "an object", "null": "null",
}  # fmt: skip


def _described(schema: Any, root: Schema, levels: int = 0) -> str:
    match _resolved(schema, root):
        case {"const": only}:
            return _shown(only)
        case {"enum": list(choices)}:
            return "one of " + ", ".join(map(_shown, choices))
        case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
            return " or ".join(dict.fromkeys(_described(c, root, levels) for c in choices))
        case {"type": "object", "properties": dict(fields), **more} if levels and fields:
            needed: Any = more.get("required", ())
            named = [
                f"{name}: {_described(field, root, levels - 1)}" + ("" if name in needed else ", may be left out")
                for name, field in fields.items()
            ]
            return f"an object {{{'; '.join(named)}}}"
        case {"type": "array", "items": items} if levels and _has_fields(items, root):
            return f"a list, each item {_described(items, root, levels - 1)}"
        case {"type": "string", "format": str(name)} if name in _FORMATS:
            return _a(name)
        case {"type": str(kind)}:
            return _NAMES.get(kind, kind)
        case _:
            return "any value"


def _has_fields(schema: Any, root: Schema) -> bool:
    resolved = _resolved(schema, root)
    return isinstance(resolved, Mapping) and bool(resolved.get("properties"))


def _resolved(schema: Any, root: Schema) -> Any:
    while isinstance(schema, Mapping) and "$ref" in schema:
        schema = root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], True)
    return schema


def _problems(value: Any, schema: Any, root: Schema, where: str) -> Iterator[_Problem]:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping):  # true: anything; false: nothing
        if schema is False:
            yield where, "is not expected"
        return
    for choices in filter(None, (schema.get("anyOf"), schema.get("oneOf"))):
        yield from _none_of(value, choices, root, where)
    for part in schema.get("allOf", ()):
        yield from _problems(value, part, root, where)
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if allowed is not None and not any(type(value) is type(v) and value == v for v in allowed):
        yield where, f"must be {_described(schema, root)}, not {_shown(value)}"
        return
    kind: str = schema.get("type", "")
    if kind in _KINDS and not _KINDS[kind](value):
        yield where, f"must be {_described(schema, root)}, not {_shown(value)}"
        return
    match value:
        case str():
            yield from ((where, why) for why in _text(value, schema))
        case bool():
            pass
        case int() | float():
            yield from ((where, why) for why in _number(value, schema))
        case list():
            yield from _items(value, schema, root, where)
        case dict():
            yield from _properties(value, schema, root, where)


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: math.isfinite(v) if isinstance(v, float) else isinstance(v, int) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "null": lambda v: v is None,
}


def _none_of(value: Any, choices: list[Any], root: Schema, where: str) -> Iterator[_Problem]:
    """Where the value is nearly one of the choices, what is wrong with it as that."""
    choices = [_with_bounds(c, before) for before, c in zip([None, *choices], choices, strict=False)]
    firsts = [next(_problems(value, c, root, where), None) for c in choices]
    if None not in firsts:
        inside = [p for p in firsts if p is not None and p[0] != where]
        what = " or ".join(dict.fromkeys(_described(c, root) for c in choices))
        yield inside[0] if len(inside) == 1 else (where, f"must be {what}, not {_shown(value)}")


def _with_bounds(choice: Any, before: Any) -> Any:
    """A decimal may come as a number or as a text, and pydantic writes its bounds beside the number only."""
    match before, choice:
        case {"type": "number"}, {"type": "string", "format": "decimal"}:
            return {**before, **choice}
        case _:
            return choice


def _text(value: str, schema: Schema) -> Iterator[str]:
    if len(value) < schema.get("minLength", 0):
        yield f"needs at least {counted(schema['minLength'], 'character')}"
    if len(value) > schema.get("maxLength", math.inf):
        yield f"may have at most {counted(schema['maxLength'], 'character')}"
    if "pattern" in schema and not _matches(schema["pattern"], value):
        yield f"must match {schema['pattern']}, and {_shown(value)} does not"
    name = schema.get("format", "")
    if name in _FORMATS and not _is_one(value, name):
        yield f"must be {_a(name)}, as in {_FORMATS[name][1]}, not {_shown(value)}"
    elif name == "decimal":
        yield from _number(Decimal(value), schema)


def _a(name: str) -> str:
    return f"{'an' if name.startswith('ip') else 'a'} {name}"


def _matches(pattern: str, value: str) -> bool:
    """By the rules of the type, whose patterns are not Python's: there, $ matches before a last line break, too."""
    from pydantic import ValidationError  # slow to import
    from pydantic_core import SchemaError

    try:
        _of_pattern(pattern).validate_python(value)
    except ValidationError:
        return False
    except SchemaError:  # one that looks around itself, say: the type asks for Python's rules
        with contextlib.suppress(re.error):  # then it is checked where the answer is used
            return re.search(pattern, value) is not None
    return True


@functools.lru_cache(maxsize=128)
def _of_pattern(pattern: str) -> Any:
    from pydantic import StringConstraints, TypeAdapter

    return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])


def _is_one(value: str, name: str) -> bool:
    from pydantic import ValidationError

    try:
        _of_format(name).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


@functools.cache
def _of_format(name: str) -> Any:
    import pydantic

    type_ = _FORMATS[name][0]
    return pydantic.TypeAdapter(getattr(pydantic, type_, str) if isinstance(type_, str) else type_)


#: What a text stands for, by a type or the name of one of pydantic's, and an example.
_FORMATS: Mapping[str, tuple[Any, str]] = {
    "date": (date, "2026-03-01"),
    "date-time": (datetime, "2026-03-01T09:00:00+09:00"),
    "time": (time, "09:00:00"),
    "duration": (timedelta, "PT1H30M"),
    "uuid": (uuid.UUID, "00000000-0000-4000-8000-000000000000"),
    **{f"uuid{n}": (f"UUID{n}", f"00000000-0000-{n}000-8000-000000000000") for n in (1, 3, 4, 5, 6, 7, 8)},
    "uri": ("AnyUrl", "https://example.org"),
    "ipv4": (ipaddress.IPv4Address, "192.0.2.1"),
    "ipv4interface": (ipaddress.IPv4Interface, "192.0.2.1/24"),
    "ipv4network": (ipaddress.IPv4Network, "192.0.2.0/24"),
    "ipv6": (ipaddress.IPv6Address, "2001:db8::1"),
    "ipv6interface": (ipaddress.IPv6Interface, "2001:db8::1/64"),
    "ipv6network": (ipaddress.IPv6Network, "2001:db8::/64"),
    "decimal": (Decimal, "0.10"),
}


def in_json(value: Any) -> Any:
    """A Python value in JSON's own types, as pydantic writes it, but for sets: those are in one order, as ``values``
    writes them, and not in that of the process. Raises InvalidInput for what has no JSON form, or one of another value.
    """
    from pydantic_core import to_jsonable_python

    try:
        written = _with_sets_in_order(value, to_jsonable_python(value))
    except ValueError as error:
        is_half = isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed"
        why = f"it {_HOLDS_HALF}" if is_half else values.valid(str(error))
        raise InvalidInput(f"there is no JSON form of it: {why}") from error
    except BaseException as error:  # a serializer is the user's code, and may raise anything
        raise InvalidInput(f"there is no JSON form of it: {values.error_text(error)}") from error
    is_written_as_it_is(value)
    return written


def recorded(written: Any) -> Any:
    """What ``in_json`` gave, as it is recorded. Raises InvalidInput where a part of it would be a placeholder."""
    lost: list[str] = []
    encoded = values.encode(written, lost)
    if lost:
        raise InvalidInput("there is no JSON form of it that is recorded: it nests too deep, or has too many items")
    return encoded


def is_written_as_it_is(value: Any) -> None:
    """Raises InvalidInput where pydantic writes another value than this one: asterisks for a secret, a field with
    ``exclude=True`` not at all, and of two keys that are written alike (1 and "1") the last one. The value must not
    hold itself.
    """
    if getattr(type(value), "__pydantic_root_model__", False):
        value = value.root
    if hasattr(type(value), "get_secret_value"):
        raise InvalidInput("there is no JSON form of it: pydantic writes asterisks for a secret: hand it over in deps")
    fields = getattr(type(value), "__pydantic_fields__", {})
    for name, field in fields.items():
        if field.exclude and not _is_default(getattr(value, name, field.default), field):
            why = f"{type(value).__name__}.{name} is not written (exclude=True)"
            raise InvalidInput(f"there is no JSON form of it: {why}: hand it over in deps")
    if isinstance(value, Mapping):
        if len(set(map(type, value))) > 1 and _has_keys_alike(value):
            raise InvalidInput("there is no JSON form of it: two keys of a dict are written alike")
        inside: Iterable[Any] = value.values()
    elif isinstance(value, Sequence | Set):
        inside = () if isinstance(value, str | bytes | bytearray) else value
    else:
        names = fields or getattr(type(value), "__dataclass_fields__", ())
        inside = [getattr(value, name, None) for name in names]
    for one in inside:
        is_written_as_it_is(one)


def _has_keys_alike(value: Mapping[Any, Any]) -> bool:
    from pydantic_core import to_jsonable_python

    try:
        return len(to_jsonable_python(dict.fromkeys(value))) < len(value)
    except BaseException:  # the user's code; bytes that are no text
        return False


_PLAIN = frozenset({str, int, float, bool, type(None)})


def is_read_as_it_is(given: Any, read: Any) -> None:
    """Raises InvalidInput where a field of ``given`` was written under another name than its type reads it by, so that
    ``read`` has the default in its place.
    """
    kind = type(given)
    if kind in _PLAIN or kind is not type(read):
        return
    inside: Iterable[tuple[Any, Any]] = ()
    fields = getattr(kind, "__pydantic_fields__", {})
    if names := fields or getattr(kind, "__dataclass_fields__", ()):
        for name, field in fields.items():
            if field.validation_alias == field.serialization_alias:
                continue
            if _is_default(getattr(read, name, None), field) and not _is_default(getattr(given, name, None), field):
                why = f"{kind.__name__}.{name} is written under another name than it is read by"
                raise InvalidInput(f"there is no JSON form of it: {why}: give its data instead, as it is read")
        inside = ((getattr(given, name, None), getattr(read, name, None)) for name in names)
    elif isinstance(given, Mapping):
        inside = ((one, read.get(key)) for key, one in given.items())
    elif isinstance(given, list | tuple):
        inside = zip(given, read, strict=False)
    for one, other in inside:
        if type(one) not in _PLAIN:
            is_read_as_it_is(one, other)


def _is_default(value: Any, field: Any) -> bool:
    """Whether whoever reads a value without that field has it all the same."""
    try:
        return bool(value == field.get_default(call_default_factory=True))
    except BaseException:  # the user's code, or a factory that needs the other fields
        return False


def _with_sets_in_order(value: Any, written: Any) -> Any:
    """What was ``written`` of the value, each in its place."""
    if getattr(type(value), "__pydantic_root_model__", False):
        value = value.root
    if isinstance(written, list) and isinstance(value, Sequence | Set) and len(value) == len(written):
        items = [_with_sets_in_order(v, w) for v, w in zip(value, written, strict=True)]
        return sorted(items, key=lambda w: values.canonical(values.encode(w))) if isinstance(value, Set) else items
    if not isinstance(written, dict):
        return written
    if isinstance(value, Mapping) and len(value) == len(written):
        return {k: _with_sets_in_order(v, w) for v, (k, w) in zip(value.values(), written.items(), strict=True)}
    if isinstance(value, Mapping):
        return written
    return {k: _with_sets_in_order(_field(value, k), w) for k, w in written.items()}


def _field(value: Any, written_as: str) -> Any:
    """What stands in the field of a model or a dataclass that is written under that name, its alias perhaps."""
    fields = getattr(type(value), "__pydantic_fields__", {})
    aliased = (name for name, field in fields.items() if written_as == field.serialization_alias)
    return getattr(value, next(aliased, written_as), None)


def at_once(kind: Any) -> Any:
    """The type with a list in the place of each ``Iterable``: pydantic looks at the items of such a one only as they
    are taken, when a tool has begun, and gives them once.
    """
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Iterable or origin is Iterable:
        return list[at_once(inside[0])] if inside else list  # type: ignore[misc]
    changed = tuple(at_once(one) for one in inside)
    if all(map(operator.is_, changed, inside)):
        return kind
    generic: Any = Union if origin is types.UnionType else Annotated if origin is Annotated else origin
    first, *more = changed
    return generic[changed if more else first]


def with_whole_numbers(value: Any) -> Any:
    """The same JSON with 3 for each 3.0."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {k: with_whole_numbers(v) for k, v in value.items()}
        case list():
            return [with_whole_numbers(v) for v in value]
        case _:
            return value


def mismatch(error: BaseException, whole: str) -> str:
    """What pydantic, or a validator that it called, found wrong; ``whole`` names what has no place inside."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return values.error_text(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if any(e["type"] == "json_invalid" and "hex escape" in e["msg"] for e in found):  # a place in text of our own
        return f"{whole}: {_HOLDS_HALF}"
    return "; ".join(f"{'.'.join(str(place) for place in e['loc']) or whole}: {e['msg']}" for e in found)


@functools.cache
def generator() -> Any:
    """Pydantic's, but a default that holds a set is the same in each process: a schema is part of what is recorded."""
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        def encode_default(self, dft: Any) -> Any:
            return _with_sets_in_order(dft, super().encode_default(dft))

    return Generator


def schema_of(adapter: Any) -> dict[str, Any]:
    """The JSON schema of a pydantic ``TypeAdapter``, where decimals in texts can be told from other texts.

    Raises:
        InvalidInput: the type has no JSON schema.
    """
    from pydantic import PydanticUserError

    class Generator(generator()):  # type: ignore[misc]
        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            number: dict[str, Any] = super().decimal_schema(schema)
            return {"anyOf": [c | {"format": "decimal"} if c.get("type") == "string" else c for c in number["anyOf"]]}

    try:
        made: dict[str, Any] = adapter.json_schema(schema_generator=Generator)
    except PydanticUserError as error:
        raise InvalidInput(f"there is no JSON schema of it: {error}") from error
    return made


def _number(value: float | Decimal, schema: Schema) -> Iterator[str]:
    bounds: dict[str, Any] = {name: schema[name] for name in _BOUNDS if name in schema}
    if isinstance(value, Decimal):
        bounds = {name: Decimal(str(bound)) for name, bound in bounds.items()}
    for name, bound in bounds.items():
        what, holds = _BOUNDS[name]
        if not holds(value, bound):
            yield f"must be {what} {schema[name]}, not {value}"


def _is_multiple(value: Any, of: Any) -> bool:
    if not isinstance(value, float) and not isinstance(of, float):
        with contextlib.suppress(InvalidOperation):  # 1e999999, say
            return bool(value % of == 0)
        return False
    try:
        rest, nearly = math.fmod(value, of), abs(value) / 1e9  # as pydantic weighs it
        return math.isfinite(value / of) and (abs(rest) <= nearly or abs(abs(rest) - of) <= nearly)
    except OverflowError:  # it is checked where the answer is used
        return True


#: By the name of a bound: what a number must be, and does it keep it?
_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", operator.ge),
    "maximum": ("at most", operator.le),
    "exclusiveMinimum": ("more than", operator.gt),
    "exclusiveMaximum": ("less than", operator.lt),
    "multipleOf": ("a multiple of", _is_multiple),
}


def _items(value: list[Any], schema: Schema, root: Schema, where: str) -> Iterator[_Problem]:
    if len(value) < schema.get("minItems", 0):
        yield where, f"needs at least {counted(schema['minItems'], 'item')}"
    if len(value) > schema.get("maxItems", math.inf):
        yield where, f"may have at most {counted(schema['maxItems'], 'item')}"
    if schema.get("uniqueItems") and len({json.dumps(v, sort_keys=True) for v in value}) < len(value):
        yield where, "has an item twice"
    first = schema.get("prefixItems", [])
    for n, item in enumerate(value):
        yield from _problems(item, first[n] if n < len(first) else schema.get("items", True), root, _in(where, n))


def _properties(value: dict[str, Any], schema: Schema, root: Schema, where: str) -> Iterator[_Problem]:
    if len(value) < schema.get("minProperties", 0):
        yield where, f"needs at least {schema['minProperties']} entries"
    if len(value) > schema.get("maxProperties", math.inf):
        yield where, f"may have at most {schema['maxProperties']} entries"
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield _in(where, name), "is missing"
    names, others = schema.get("propertyNames", True), schema.get("additionalProperties", not patterns)
    for name, item in value.items():
        for _, why in _problems(name, names, root, ""):
            yield _in(where, name), f"the name {why}"
        fitting = [known[name]] if name in known else [part for p, part in patterns.items() if _matches(p, name)]
        for part in fitting or [others]:
            yield from _problems(item, part, root, _in(where, name))


def _in(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
