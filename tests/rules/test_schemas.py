"""Does a value fit what was asked for? And which value did somebody type?"""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv6Network
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import UUID4, AnyUrl, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ondol import InvalidInput, schemas


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    amount: int = Field(ge=1, le=5)
    colour: Colour | None = None


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    who: str = Field(min_length=2, max_length=4)
    lines: list[Line] = Field(max_length=2)
    due: date | None = None


class Tree(BaseModel):
    below: list[Tree] = []


MULTIPLE: Any = Annotated[Decimal, Field(multiple_of=5)] | date
EXACT = 10**9 + 1, 10**400  # whether they are multiples of 5, a float cannot tell

TYPES: list[Any] = [
    bool, int, float, str, Decimal, date, datetime, time, timedelta, UUID, Colour, Literal["a", 2, None], Line, Order,
    int | None, tuple[int, str], dict[str, int], list[Line | int], list[list[bool]], Any,
    Annotated[int, Field(multiple_of=5)], Annotated[float, Field(gt=0, lt=1)], Annotated[str, Field(pattern="^a+$")],
    Annotated[str, Field(pattern=r"^\p{L}+$")], Annotated[Decimal, Field(gt=0, le=Decimal("0.1"))],
    MULTIPLE, Annotated[float, Field(multiple_of=0.5)], UUID4, AnyUrl,
    IPv4Address, IPv6Network | IPv4Address, dict[date, int], dict[Literal["a"], Any],
    dict[Annotated[str, Field(pattern="^a")], int], Annotated[dict[str, Any], Field(min_length=1, max_length=2)],
    Annotated[Decimal, Field(ge=1)] | Annotated[str, Field(max_length=1)],
]  # fmt: skip

VALUES: list[Any] = [
    *EXACT, True, 0, 1, 5, 9, -1, 0.5, 3.1, 5.0, None, "", "a", "aa", "red", "yes", "0.10", "2026-03-01",
    "09:00:00", "PT1H",
    "2026-03-01T09:00:00+09:00", "00000000-0000-4000-8000-000000000000", [], [1, "a"], [True], [[True]], [1, 2, 3],
    {}, {"a": 1}, {"a": "x"}, {"amount": 3}, {"amount": 9}, {"amount": 3, "colour": "green"}, [{"amount": 2}, 7],
    {"who": "kim", "lines": []}, {"who": "k", "lines": []}, {"who": "kim", "lines": [{"amount": 1}] * 3},
    {"who": "kim", "lines": [{"amount": 1, "colour": "red"}], "due": "2026-03-01"}, {"lines": []},
    {"who": "kim", "lines": [], "due": "soon"}, {"who": "kim", "lines": [], "why": 1},
    "a\n", "é", "0.1", "0", "10", "12", "NaN", 10, 5 * 2**70, "http://a.example", "a.example", "10.0.0.1", "10.0.0",
    "fe80::/10", "00000000-0000-1000-8000-000000000000", {"2026-03-01": 1}, {"2026-03-01": "x"}, {"b": 1},
    {"a": 1, "ab": 2}, {"a": 1, "b": 2, "c": 3},
]  # fmt: skip


def fits(adapter: TypeAdapter[Any], value: Any) -> bool:
    """What pydantic itself says, as strictly as it is asked where the answer is used."""
    try:
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_value_fits_a_schema_where_it_fits_the_type(type_: Any) -> None:
    adapter = TypeAdapter(type_)
    schema = schemas.schema_of(adapter)
    for value in VALUES:
        if value in EXACT and type_ == MULTIPLE:  # that it is exact does not stand in its schema
            continue
        assert (schemas.problem(value, schema) is None) == fits(adapter, value), value


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**400, -(10**400)], ids=str)
def test_a_number_without_an_end_is_judged_too(value: Any) -> None:
    for type_ in (Any, int, float, Annotated[int, Field(multiple_of=5)], Annotated[float, Field(multiple_of=0.1)]):
        schema = schemas.schema_of(TypeAdapter[Any](type_))
        fits_all = type_ is Any or isinstance(value, int)  # that one is long, and has an end
        assert (schemas.problem(value, schema) is None) == fits_all, type_
    assert schemas.problem(1.7e308, schema) == "must be a multiple of 0.1, not 1.7e+308"
    of_five = schemas.schema_of(TypeAdapter[Any](Annotated[Decimal, Field(multiple_of=5)]))
    assert schemas.problem("1e999999", of_five) is not None


@given(
    st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3), lambda inner: st.lists(inner))
)
def test_any_value_is_judged_as_its_type_judges_it(value: Any) -> None:
    for type_ in (int | None, list[int | bool], list[Any] | str, tuple[bool, ...]):
        adapter = TypeAdapter[Any](type_)
        assert (schemas.problem(value, schemas.schema_of(adapter)) is None) == fits(adapter, value)


@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        (bool, "maybe", 'must be true or false, not "maybe"'),
        (int, 2.5, "must be a whole number, not 2.5"),
        (int, True, "must be a whole number, not true"),
        (Colour, "green", 'must be one of "red", "blue", not "green"'),
        (date, "soon", 'must be a date, as in 2026-03-01, not "soon"'),
        (Decimal, "much", 'must be a number or a decimal, not "much"'),
        (int | None, "x", 'must be a whole number or null, not "x"'),
        (Order, {"lines": []}, "who: is missing"),
        (Order, {"who": "kim", "lines": [{"amount": 9}]}, "lines.0.amount: must be at most 5, not 9"),
        (Order, {"who": "kim", "lines": [], "why": 1}, "why: is not expected"),
        (list[Line | int], [{"amount": 0}], "0.amount: must be at least 1, not 0"),
        (dict[str, int], {"a": "x"}, 'a: must be a whole number, not "x"'),
        (str, 5, "must be a text, not 5"),
        (float, float("nan"), "must be a number, not NaN"),
        (float, float("inf"), "must be a number, not Infinity"),
        (Any, float("inf"), None),
        (dict[str, Any], {"a": [float("-inf")]}, None),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(type_: Any, value: Any, why: str | None) -> None:
    assert schemas.problem(value, schemas.schema_of(TypeAdapter(type_))) == why


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (bool, "true", True),
        (bool, "no", False),
        (bool, " Yes ", True),
        (int, "12", 12),
        (str, "12", "12"),
        (str, "yes", "yes"),
        (str, '"12"', "12"),
        (str, "two words", "two words"),
        (Colour, "red", "red"),
        (date, "2026-03-01", "2026-03-01"),
        (int | None, "null", None),
        (list[int], "[1, 2]", [1, 2]),
        (Line, '{"amount": 2}', {"amount": 2}),
        (Any, "12", 12),
        (Any, "hello", "hello"),
        (Any, "NaN", "NaN"),
        (Decimal, "1e400", "1e400"),
        (str, '{"k": 1, "k": 2}', '{"k": 1, "k": 2}'),
    ],
)
def test_what_somebody_types_is_json_or_the_text_itself(type_: Any, text: str, value: Any) -> None:
    assert schemas.typed(text, schemas.schema_of(TypeAdapter(type_))) == value


@pytest.mark.parametrize(
    ("type_", "text"),
    [(bool, "maybe"), (int, "yes"), (Line, "{"), (date, "tomorrow"), (float, "Infinity"), (float, "1e400")],
)
def test_what_is_no_value_is_refused(type_: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match="must be"):
        schemas.typed(text, schemas.schema_of(TypeAdapter(type_)))


def test_of_an_object_that_is_asked_for_the_fields_are_named() -> None:
    line = "an object {amount: a whole number; colour: one of 'red', 'blue' or null, may be left out}"
    order = f"an object {{who: a text; lines: a list, each item {line}; due: a date or null, may be left out}}"
    for type_, said in ((Line, line), (Order, order), (Line | None, f"{line} or null"), (list[int], "a list")):
        assert schemas.described(schemas.schema_of(TypeAdapter(type_))) == said.replace("'", '"')
    assert schemas.described(schemas.schema_of(TypeAdapter(Tree))).count("below:") == 2


def test_of_what_was_to_be_json_it_is_said_where_it_is_none() -> None:
    for text, why in (('{"amount": 2', "line 1 column 13"), ('{"amount": 2, "amount": 3}', "has 'amount' twice")):
        with pytest.raises(InvalidInput, match=why):
            schemas.typed(text, schemas.schema_of(TypeAdapter(Line)))
