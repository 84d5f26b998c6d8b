"""What a tool is: its schema, its strictness, what it needs."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, Protocol

import pytest
from pydantic import BaseModel, Field

from ondol import Agent, Context, InvalidInput, NotDone, tool


@tool(effect="idempotent", approve=lambda amount: amount > 20)
async def refund(ctx: Context[None], order_id: str, amount: Decimal, day: date | None = None) -> str:
    """Refund an order."""
    return order_id


def test_the_schema_leaves_the_context_out():
    assert list(refund.spec.parameters["properties"]) == ["order_id", "amount", "day"]
    assert refund.spec.parameters["required"] == ["order_id", "amount"]
    assert refund.spec.description == "Refund an order."


def test_arguments_arrive_in_the_types_that_the_function_asks_for():
    assert refund.parse({"order_id": "7", "amount": "30.10", "day": "2026-01-02"}) == {
        "order_id": "7", "amount": Decimal("30.10"), "day": date(2026, 1, 2),
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [{}, {"order_id": 7, "amount": 1}, {"order_id": "7", "amount": "x"}, {"order_id": "7", "amount": 1, "extra": 1}],
)
def test_arguments_that_do_not_fit_are_refused_with_the_reason(arguments):
    with pytest.raises(InvalidInput, match="the arguments of refund do not fit"):
        refund.parse(arguments)


def test_a_whole_number_is_an_integer_however_json_writes_it():
    @tool
    def f(n: int, share: float = 0.5, rows: list[dict[str, int]] | None = None) -> None: ...

    assert f.parse({"n": 3.0, "share": 1.0, "rows": [{"a": -2.0}]}) == {"n": 3, "share": 1.0, "rows": [{"a": -2}]}
    assert type(f.parse({"n": 3.0, "share": 2.0})["share"]) is float
    for no in (3.5, "3", True, 1e400):
        with pytest.raises(InvalidInput, match="do not fit"):
            f.parse({"n": no})


@pytest.mark.parametrize(
    ("kind", "as_list", "given", "wrong"),
    [
        (Iterable[int], list[int], [1, 2], [1, "x"]),
        (Annotated[Iterable[int] | None, Field(description="whom")], list[int] | None, [1, 2], [1, "x"]),
        (dict[str, list[Iterable[int]]], dict[str, list[list[int]]], {"a": [[1, 2]]}, {"a": [[1, "x"]]}),
    ],
)
def test_the_items_of_an_iterable_are_looked_at_before_anything_is_called(kind, as_list, given, wrong):
    def schema(annotation):
        send.__annotations__["to"] = annotation
        return tool(send).spec.parameters["properties"]["to"]

    def send(to): ...

    assert schema(kind).items() >= schema(as_list).items()
    send.__annotations__["to"] = kind
    assert tool(send).parse({"to": given}) == {"to": given}
    with pytest.raises(InvalidInput, match="do not fit"):
        tool(send).parse({"to": wrong})


def test_numbers_in_texts_are_not_taken_for_numbers():
    @tool
    def f(n: int, kind: Literal["a", "b"] = "a") -> None: ...

    with pytest.raises(InvalidInput):
        f.parse({"n": "5"})
    with pytest.raises(InvalidInput):
        f.parse({"n": 5, "kind": "c"})


def test_a_plain_function_is_a_once_tool():
    def send(to: str) -> str:
        return to

    (made,) = Agent("a", model="script:demo", tools=[send]).toolset.values()
    assert made.effect == "once"
    assert made.name == "send"


def test_a_predicate_decides_whether_to_ask_and_one_that_raises_asks():
    def no_context():
        raise AssertionError("the predicate did not ask for it")

    @tool(approve=lambda amount: amount > 20)
    def pay(amount: int) -> None: ...

    @tool(approve=lambda amount: amount / 0 > 1)
    def broken(amount: int) -> None: ...

    assert pay.needs_approval(lambda: None, {"amount": 30})  # type: ignore[arg-type,return-value]
    assert not pay.needs_approval(lambda: None, {"amount": 3})  # type: ignore[arg-type,return-value]
    assert "ZeroDivisionError" in (broken.needs_approval(lambda: None, {"amount": 3}) or "")  # type: ignore[arg-type,return-value]

    @tool
    def free() -> None: ...

    assert free.needs_approval(no_context, {}) is None


def test_not_done_is_always_among_the_exceptions_that_prove_that_nothing_happened():
    class Refused(Exception): ...

    @tool(not_done=(Refused,))
    def f() -> None: ...

    assert f.not_done == (NotDone, Refused)


async def coroutine() -> bool:
    return True


@pytest.mark.parametrize(
    ("declared", "complaint"),
    [
        ({"effect": "twice"}, "read, idempotent, once or steps"),
        ({"timeout": timedelta(0)}, "longer than nothing"),
        ({"timeout": timedelta.max}, "how long one attempt can take"),
        ({"approve": True, "approve_expires": timedelta.max}, "leave approve_expires out"),
        ({"approve": True, "approve_expires": timedelta(0)}, "approve_expires must be longer than nothing"),
        ({"effect": "read", "check": lambda: None}, "check= is for once tools"),
        ({"approve": coroutine}, "approve must be an ordinary function"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused_when_it_is_made(declared, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        tool(**declared)(nothing)


def nothing() -> None: ...


class Callable_:
    def __call__(self, x: int) -> int:
        return x


@pytest.mark.parametrize("given", [Callable_(), functools.partial(nothing), int, time.sleep])
def test_what_is_no_function_is_refused_by_name(given):
    for declare in (tool, lambda g: tool(name="f")(g), lambda g: Agent("a", model="script:demo", tools=[g])):
        with pytest.raises(InvalidInput, match="write a function that calls it"):
            declare(given)


@pytest.mark.parametrize("annotation", ["1 +", "functools.nothing", "Unknown"])
def test_an_annotation_that_cannot_be_read_is_refused_with_the_name_of_the_tool(annotation):
    def send(to): ...

    send.__annotations__["to"] = annotation
    with pytest.raises(InvalidInput, match="tool 'send': "):
        Agent("a", model="script:demo", tools=[send]).definition()


def test_an_object_that_is_called_and_has_a_name_is_no_function_either():
    named = Callable_()
    named.__name__ = "named"
    with pytest.raises(InvalidInput, match="tool 'named': "):
        Agent("a", model="script:demo", tools=[named]).definition()


def test_a_parameter_that_would_be_kept_from_the_model_is_refused():
    for name in ("_hidden", "model_config"):
        made: dict[str, Any] = {}
        exec(f"def f({name}: int = 1) -> int: return 1", made)
        with pytest.raises(InvalidInput, match=f"could not give parameter '{name}'"):
            tool(made["f"]).spec  # noqa: B018


@pytest.mark.parametrize("kind", [Callable[[], None], AsyncIterator[int]])
def test_a_parameter_that_no_schema_can_tell_is_refused_with_the_name_of_the_tool(kind):
    def send(to): ...

    send.__annotations__["to"] = kind
    with pytest.raises(InvalidInput, match="tool 'send': a model cannot be told what its parameters take: Cannot"):
        Agent("a", model="script:demo", tools=[send]).definition()


@pytest.mark.filterwarnings("error")
def test_a_parameter_may_have_a_name_that_pydantic_uses():
    @tool
    def f(json: str, schema: int = 1, copy: bool = False) -> None: ...

    assert f.parse({"json": "a", "schema": 2}) == {"json": "a", "schema": 2, "copy": False}


def test_a_name_that_no_provider_takes_is_refused():
    for name in ("", "two words", "n" * 65, "\ud800"):
        with pytest.raises(InvalidInput, match="cannot be named"):
            tool(name=name)(nothing)
    with pytest.raises(InvalidInput, match="cannot be named"):
        tool(lambda: None)


def test_a_parameter_that_a_model_cannot_name_is_refused():
    with pytest.raises(InvalidInput, match="ordinary parameter"):

        @tool
        def f(*many: int) -> None: ...


def test_a_context_that_is_not_the_first_parameter_is_refused():
    def named(order: str, ctx): ...

    def annotated(order: str, given: Context[int]): ...

    for function in (named, annotated):
        with pytest.raises(InvalidInput, match="the context is the first parameter: write '"):
            tool(function)


def test_what_is_called_ctx_and_is_no_context_is_refused():
    """The tool would be given the context where it wants a text, and the model could not give that."""

    def a_text(ctx: str, n: int): ...

    def texts(ctx: list[str]): ...

    def written_out(ctx): ...

    written_out.__annotations__["ctx"] = dict[str, int]
    for function in (a_text, texts, written_out):
        with pytest.raises(InvalidInput, match="'ctx' is the context: annotate it with Context, or call it otherwise"):
            tool(function)

    def anything(ctx: Any, n: int): ...

    def of_its_own(ctx: HasMail, n: int): ...

    for function in (anything, of_its_own):
        assert [*tool(function).spec.parameters["properties"]] == ["n"]


class HasMail(Protocol):
    deps: object


def test_a_class_of_its_own_that_is_called_context_is_an_argument_like_any_other():
    names: dict[str, Any] = {"BaseModel": BaseModel}
    program = """class Context(BaseModel): ...
def f(context: 'Context', n: int): ...
def g(n: int, context: Context): ..."""
    exec(program, names)
    for function in (names["f"], names["g"]):
        assert sorted(tool(function).spec.parameters["properties"]) == ["context", "n"]


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(InvalidInput, match="two tools named"):
        Agent("a", model="script:demo", tools=[refund, refund])


def test_a_generator_is_no_tool_because_calling_it_runs_nothing():
    def lines(n: int):
        yield n

    async def pages(n: int):
        yield n

    for function in (lines, pages):
        with pytest.raises(InvalidInput, match="is a generator: nobody would run it"):
            tool(function)


class Labels(BaseModel):
    of: set[int]


def test_a_set_as_a_default_is_the_same_description_in_each_process() -> None:
    """The order in which a process holds one is its own, and a tool that is described otherwise has changed."""

    def described(order: list[int]) -> dict[str, Any]:
        @tool(effect="read")
        def label(labels: Labels = Labels(of=set(order))) -> None: ...  # noqa: B008

        return label.spec.parameters

    assert list({0, 8}) != list({8, 0})
    assert json.dumps(described([0, 8])) == json.dumps(described([8, 0]))


def logged(function):
    @functools.wraps(function)
    def inside(*args, **kwargs):
        return function(*args, **kwargs)

    return inside


def in_a_thread(function):
    @functools.wraps(function)
    async def inside(*args, **kwargs):
        return await asyncio.to_thread(function, *args, **kwargs)

    return inside


@pytest.mark.parametrize(
    ("function", "is_async"),
    [(nothing, False), (coroutine, True), (logged(nothing), False), (logged(coroutine), True),
     (in_a_thread(nothing), True), (logged(in_a_thread(nothing)), True)],
)  # fmt: skip
def test_a_decorated_function_is_called_as_what_it_is(function, is_async):
    assert tool(function).is_async is is_async
    assert tool(check=function)(nothing).check_is_async is is_async


def test_a_method_is_a_tool_where_it_has_its_object():
    class Desk:
        def refund(self, order: str) -> str:
            return f"{order} refunded"

    bound = tool(effect="idempotent")(Desk().refund)
    assert list(bound.spec.parameters["properties"]) == ["order"]
    assert bound("7") == "7 refunded"
    for declare in (tool, tool(effect="read"), lambda f: Agent("a", model="script:demo", tools=[f])):
        with pytest.raises(InvalidInput, match="'refund' is a method without its object"):
            declare(Desk.refund)


def test_a_tool_inside_of_a_decorator_is_refused_because_what_it_declares_would_be_lost():
    @logged
    @tool(effect="read", approve=True)
    def look() -> None: ...

    for declare in (tool, lambda g: Agent("a", model="script:demo", tools=[g]), lambda g: tool(tool(g.__wrapped__))):
        with pytest.raises(InvalidInput, match="'look' is inside of a decorator: write @tool above"):
            declare(look)


def test_who_calls_a_tool_names_a_parameter_as_python_does_and_the_model_as_it_was_told():
    @tool
    def send(ctx: Context[None], from_: Annotated[str, Field(alias="from")], to: str) -> None: ...

    assert list(send.spec.parameters["properties"]) == ["from", "to"]
    sent = {"from": "kim", "to": "lee"}
    assert send.parse(sent) == {"from_": "kim", "to": "lee"}
    assert send.named((), {"from_": "kim", "to": "lee"}) == sent
    assert send.named(("kim", "lee"), {}) == sent
    assert send.named((), sent) == sent
    for args, kwargs in [(("kim",), sent), ((), sent | {"from_": "kim"}), (("kim", "lee", "max"), {})]:
        with pytest.raises(InvalidInput, match="each once"):
            send.named(args, kwargs)


def test_a_tool_may_name_what_is_made_after_it():
    class Mail(BaseModel):
        to: str

    @tool
    def send(mail: Mail) -> str:
        return later + Mail.__name__

    assert send.parse({"mail": {"to": "kim"}}) == {"mail": Mail(to="kim")}
    assert Agent("a", model="script:demo", tools=[send]).definition()["tools"][0]["name"] == "send"
    later = "a runtime, say, and a "
    assert send(Mail(to="kim")) == "a runtime, say, and a Mail"
