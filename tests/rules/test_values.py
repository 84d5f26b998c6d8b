"""Values that JSON lacks are written, read back and hashed without loss and without raising."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import math
import sys
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ondol import Opaque, payloads, values

SEOUL = timezone(timedelta(hours=9))


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: Decimal


class Order(BaseModel):
    id: str
    amount: Decimal


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 1.5, "", "text", "온돌 🔥", [1, [2]], {"a": {"b": 1}},
        Decimal("0.10"), Decimal("1E+2"), datetime(2026, 11, 30, 0, 30, tzinfo=SEOUL), datetime(2026, 1, 1),
        date(2026, 2, 28), time(9, 30), timedelta(days=-1, microseconds=1), uuid.UUID(int=7), b"\x00\xff", {1, 2, 3},
        2**53, -(2**80), {1: "a", (1, 2): "b"}, {"$ondol": "x"}, "\x00", "lone \ud800 surrogate", {"k\ud800": 1},
        "온\x00돌", {"k\x00": 1}, "\\u0000", "\\\x00", frozenset({frozenset({1})}), timedelta(microseconds=-1),
        timedelta.max, Opaque("f", "<f>"), {Opaque("f", "<f>"): 1}, Decimal("Infinity"), time(9, 30, tzinfo=SEOUL),
    ],
)  # fmt: skip
def test_a_value_is_read_back_as_it_was_written(value):
    stored = values.dumps(values.encode(value))
    stored.encode()  # valid UTF-8, whatever the value was
    assert values.decode(json.loads(stored)) == value
    assert not any("\0" in text for text in texts(json.loads(stored)))  # PostgreSQL has no room for it


def texts(stored: Any) -> Iterator[str]:
    """All texts in a piece of JSON, keys too."""
    match stored:
        case str():
            yield stored
        case dict():
            yield from stored
            yield from texts(list(stored.values()))
        case list():
            for inner in stored:
                yield from texts(inner)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_floats_that_json_lacks_are_read_back(value):
    assert repr(values.decode(values.encode(value))) == repr(value)


def test_a_decimal_keeps_its_digits_and_a_datetime_its_offset():
    assert str(values.decode(values.encode(Decimal("0.10")))) == "0.10"
    back = values.decode(values.encode(datetime(2026, 11, 30, 0, 30, tzinfo=SEOUL)))
    assert back.utcoffset() == timedelta(hours=9)


def test_an_enum_is_read_back_as_its_value_and_keeps_its_name_on_disk():
    assert values.decode(values.encode(Colour.RED)) == "red"
    assert values.encode(Colour.RED)["name"] == "RED"


def test_a_dataclass_and_a_model_become_the_object_of_their_fields():
    assert values.decode(values.encode(Point(1, Decimal("2.0")))) == {"x": 1, "y": Decimal("2.0")}
    assert values.decode(values.encode(Order(id="7", amount=Decimal(3)))) == {"id": "7", "amount": Decimal(3)}


def test_a_value_without_an_encoder_becomes_a_typed_placeholder():
    back = values.decode(values.encode({"f": values.encode}))
    assert isinstance(back["f"], Opaque)
    assert back["f"].type == "function"
    lost: list[str] = []
    values.encode([{"f": object()}, {1, 2}, values.encode], lost)
    assert lost == ["object", "function"]


def test_a_repr_that_raises_does_not_stop_the_encoding():
    class Rude:
        def __repr__(self):
            raise RuntimeError("no")

    assert "its repr raised RuntimeError" in values.decode(values.encode(Rude())).repr


def test_a_value_that_contains_itself_is_cut_off():
    loop: list[object] = []
    loop.append(loop)
    assert values.decode(values.encode(loop)) == [Opaque("list", "<list: it contains itself>")]


def test_a_value_that_contains_itself_many_times_is_written_at_once():
    many: list[object] = []
    many += [many] * 50
    assert values.encode(many) == [values.encode(many)[0]] * 50


def test_an_integer_that_python_itself_does_not_convert_is_told_by_its_size():
    assert values.decode(values.encode(1 << 100_000)).repr == "<int: an integer of 100001 bits>"


def test_key_order_and_spacing_do_not_change_a_hash():
    assert values.digest({"a": 1, "b": [2]}) == values.digest(json.loads('{ "b": [2], "a": 1 }'))


def test_different_values_have_different_hashes():
    seen = [1, "1", Decimal(1), b"1", True, None, [1], {1}, {"1": 1}, {1: 1}, 2**53, str(2**53), math.nan, "nan"]
    assert len({values.digest(values.encode(v)) for v in seen}) == len(seen)


def test_models_read_plain_values_without_tags():
    shown = values.plain_text(values.encode({"at": date(2026, 1, 2), "n": Decimal("1.50"), "ids": {3}}))
    assert json.loads(shown) == {"at": "2026-01-02", "n": "1.50", "ids": [3]}
    assert values.plain_text("as it is") == "as it is"
    assert values.plain_text(values.encode(Decimal("0.10"))) == "0.10"
    assert values.plain_text(values.encode(2**60)) == str(2**60)
    assert values.plain_text(values.encode("a\0b")) == "a\u2400b"
    assert values.plain_text(values.encode(["$ondol", {"n": Decimal("1.50")}])) == '["$ondol", {"n": "1.50"}]'


def test_a_large_result_without_tags_and_bytes_is_not_walked_through_item_by_item_to_be_read():
    """The event loop stands still meanwhile."""
    encoded = values.encode([{"id": n, "of": {"name": "x"}} for n in range(1_000)])
    walked = Counter[str]()
    sys.setprofile(lambda frame, event, _: walked.update([event]))
    try:
        text = values.plain_text(encoded)
    finally:
        sys.setprofile(None)
    assert walked["call"] < 50
    assert json.loads(text) == encoded
    assert payloads.take(encoded).encoded is encoded


def test_models_read_every_entry_of_a_map_whose_keys_look_alike():
    assert values.plain_text(values.encode({1: "a", 2: "b"})) == '{"1": "a", "2": "b"}'
    assert values.plain_text(values.encode({1: "a", "1": "b"})) == '[["1", "a"], ["1", "b"]]'


# --- values with code of their own ------------------------------------------------------------------------------


class Told(str):
    def __str__(self):
        raise RuntimeError("no")


class Scalar:
    """In the manner of numpy."""

    dtype = "int64"

    def item(self):
        return 7


class Array(Scalar):
    shape = (2, 2)

    def tolist(self):
        return [[1, 2], [3, 4]]


class NotATime(datetime):
    """As ``NaT`` of pandas: a datetime that is none."""

    def isoformat(self, *_: Any):
        return "NaT"

    def __repr__(self):
        return "NaT"


class Liar(dict):
    def __iter__(self):
        return iter(("other",))

    def keys(self):
        return ["other"]

    def items(self):
        return [("a", 1), ("a", 2)]


class Disguised:
    __class__ = dict  # type: ignore[assignment]

    def __repr__(self):
        return "<disguised>"


class Moody:
    """Looks at nobody: whatever is asked of it raises, and not only an ``Exception``."""

    def __getattribute__(self, name):
        raise KeyboardInterrupt

    def __repr__(self):
        raise SystemExit


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (Told("온돌"), "온돌"), (Scalar(), 7), (Array(), [[1, 2], [3, 4]]), (range(3), [0, 1, 2]), (deque([1]), [1]),
        (memoryview(b"ab"), b"ab"), (enum.IntFlag("Flag", "A B")(3), 3), ({Colour.RED: 1}, {"red": 1}),
        (NotATime(2026, 1, 1), Opaque("NotATime", "NaT")), (Disguised(), Opaque("Disguised", "<disguised>")),
        ({"a": {Told("k"): Told("v")}}, {"a": {"k": "v"}}),
    ],
)  # fmt: skip
def test_a_value_with_a_mind_of_its_own_is_read_back_as_far_as_it_goes(value, read):
    assert values.decode(json.loads(values.dumps(values.encode(value)))) == read


def test_a_value_that_raises_whatever_is_asked_of_it_does_not_stop_the_encoding():
    written = values.encode([Moody()])  # pytest itself cannot look at it
    assert values.decode(written) == [Opaque("Moody", "<Moody: its repr raised SystemExit>")]


def test_a_mapping_that_lies_about_its_keys_loses_none_of_its_items():
    assert values.encode(Liar()) == {"$ondol": "map", "v": [["a", 1], ["a", 2]]}


def test_a_model_whose_dump_raises_is_a_placeholder_and_what_is_around_it_stays():
    class Broken(BaseModel):
        def model_dump(self, **_: Any):
            raise ValueError("no")

    (placeholder, kept) = values.decode(values.encode([Broken(), 1]))
    assert (placeholder.type, kept) == ("Broken", 1)


def test_a_generator_is_not_consumed():
    generator = (n for n in range(3))
    assert values.decode(values.encode(generator)).type == "generator"
    assert list(generator) == [0, 1, 2]


def test_what_has_no_end_is_cut_off_and_what_is_beside_it_stays(monkeypatch):
    monkeypatch.setattr(values, "_ITEMS_LIMIT", 1000)
    many: list[Any] = ["x"]
    for _ in range(90):
        many = [many] * 10  # 10 ** 90 items in all
    lost: list[str] = []
    written = values.dumps(values.encode([range(10**15), itertools.count(), many], lost))
    assert {"range", "count", "list"} <= set(lost)
    assert len(written) < 100_000
    placeholder = Opaque("range", "<range: more than 1000 items>")
    assert values.decode(values.encode({"rows": range(10**15), "n": [1]})) == {"rows": placeholder, "n": [1]}


def test_a_long_repr_is_kept_in_part():
    class Long:
        def __repr__(self):
            return "온" * 10**6

    assert values.decode(values.encode(Long())).repr == "온" * 1000


def test_an_encoding_does_not_depend_on_the_decimal_context():
    with localcontext(prec=3):
        assert values.decode(values.encode(timedelta.max)) == timedelta.max
        assert values.decode(values.encode(Decimal("1.23456"))) == Decimal("1.23456")


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        {"$ondol": "later", "v": 1}, {"$ondol": "decimal", "v": "x"}, {"$ondol": "decimal"}, {"$ondol": ["set"]},
        {"$ondol": "int", "v": "1" * 5000}, {"$ondol": "map", "v": [1]},
        {"$ondol": "date", "v": None}, {"$ondol": "set", "v": 5}, {"$ondol": "bytes", "v": "a***"},
        {"$ondol": "text", "v": "what?"},
    ],
)  # fmt: skip
def test_what_was_never_written_is_returned_as_it_stands(written):
    assert values.decode(written) == written


def test_names_and_reasons_show_a_sign_for_what_no_store_holds():
    said = {"reason": "a\0\0b\\\0c\ud800", "literal": "\\u0000 \\\\u0000"}
    assert values.loads(values.dumps(said)) == {"reason": "a\u2400\u2400b\\\u2400c?", "literal": said["literal"]}


@pytest.mark.parametrize(
    "key", ["k", 5, "", "$ondol", "$ondol:5", "$ondol:x", "\0", "\ud800", (1, 2), None, Opaque("a", "b")]
)
def test_whatever_the_keys_one_object_can_be_laid_over_another(key):
    first, second = values.encode_object({key: 1, "kept": 2}), values.encode_object({key: {3}})
    merged = json.loads(values.dumps({**first, **second}))
    assert values.decode_object(merged) == {key: {3}, "kept": 2}


def test_an_object_that_was_written_as_a_map_is_read_as_an_object():
    old = values.encode({1: "a", "b": 2})
    assert values.decode_object(old) == {1: "a", "b": 2}
    assert values.decode_object({"$ondol:mine": 1}) == {"$ondol:mine": 1}
    assert values.decode_object({**values.as_object(old), **values.encode_object({1: "z"})}) == {1: "z", "b": 2}


# --- exceptions, and texts that are too long ----------------------------------------------------------------------


def test_an_exception_is_told_whatever_it_does():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert values.error_text(ValueError("no\0pe \ud800")) == "ValueError: no\u2400pe ?"
    assert values.error_text(Mute()) == "Mute, whose text raised RuntimeError"


def test_a_group_of_exceptions_is_told_by_those_in_it():
    class Lies(ExceptionGroup):
        @property
        def exceptions(self):
            raise RuntimeError

    inner = BaseExceptionGroup("inner", [KeyError("a"), ExceptionGroup("g", [ValueError("no\0pe")])])
    told = values.error_text(ExceptionGroup("unhandled errors", [inner, OSError("b")]))
    assert told == (
        "ExceptionGroup: unhandled errors (2 sub-exceptions): KeyError: 'a'; ValueError: no\u2400pe; OSError: b"
    )
    many = values.error_text(ExceptionGroup("g", [ValueError(n) for n in range(1000)]))
    assert many.endswith("ValueError: 4; …")
    assert "ValueError: a" in values.error_text(Lies("g", [ValueError("a")]))


def test_a_long_text_is_shown_by_its_beginning_and_its_end():
    shown = values.excerpt("온" * 100 + "x" * 10_000 + "돌" * 100, 300)
    assert shown == "온" * 100 + "x" * 78 + "\n[… 9933 characters left out …]\n" + "돌" * 89
    assert len(shown) <= 300
    assert values.excerpt("온" * 300, 300) == "온" * 300


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.decimals(allow_nan=False)    | st.datetimes(timezones=st.just(UTC)) | st.uuids(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_like)
def test_whatever_is_written_is_read_back(value):
    encoded = values.encode(value)
    stored = json.loads(values.dumps(encoded))
    assert values.decode(stored) == value
    assert not any("\0" in text for text in texts(stored))
    assert len(values.digest(encoded)) == 64


@pytest.mark.parametrize("not_json", [math.nan, [math.inf], {"a": {"b": -math.inf}}])
def test_what_is_no_json_is_never_written(not_json: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        values.dumps(not_json)
    assert values.dumps(["NaN", "-Infinity"]) == '["NaN","-Infinity"]'
