"""Values that JSON lacks are written, read back and hashed without loss and without raising."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ondol import Opaque, values

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
    ],
)  # fmt: skip
def test_a_value_is_read_back_as_it_was_written(value):
    stored = values.dumps(values.encode(value))
    stored.encode()  # valid UTF-8, whatever the value was
    assert values.decode(json.loads(stored)) == value


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
    assert values.has_opaque(values.encode([{"f": object()}]))


def test_a_repr_that_raises_does_not_stop_the_encoding():
    class Rude:
        def __repr__(self):
            raise RuntimeError("no")

    assert "its repr raised RuntimeError" in values.decode(values.encode(Rude())).repr


def test_a_value_that_contains_itself_is_cut_off():
    loop: list[object] = []
    loop.append(loop)
    assert values.has_opaque(values.encode(loop))


def test_a_value_that_contains_itself_many_times_is_written_at_once():
    many: list[object] = []
    many += [many] * 50
    assert values.encode(many) == [values.encode(many)[0]] * 50


def test_an_integer_that_python_itself_does_not_convert_is_told_by_its_size():
    assert values.decode(values.encode(1 << 100_000)).repr == "an integer of 100001 bits"


def test_key_order_and_spacing_do_not_change_a_hash():
    assert values.digest({"a": 1, "b": [2]}) == values.digest(json.loads('{ "b": [2], "a": 1 }'))


def test_different_values_have_different_hashes():
    seen = [1, "1", Decimal(1), b"1", True, None, [1], {1}, {"1": 1}, {1: 1}, 2**53, str(2**53), math.nan, "nan"]
    assert len({values.digest(values.encode(v)) for v in seen}) == len(seen)


def test_models_read_plain_values_without_tags():
    shown = values.plain_text(values.encode({"at": date(2026, 1, 2), "n": Decimal("1.50"), "ids": {3}}))
    assert json.loads(shown) == {"at": "2026-01-02", "n": "1.50", "ids": [3]}
    assert values.plain_text("as it is") == "as it is"


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.decimals(allow_nan=False)    | st.datetimes(timezones=st.just(UTC)) | st.uuids(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_like)
def test_whatever_is_written_is_read_back(value):
    encoded = values.encode(value)
    assert values.decode(json.loads(values.dumps(encoded))) == value
    assert len(values.digest(encoded)) == 64
