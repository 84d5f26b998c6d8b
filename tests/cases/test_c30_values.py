"""C30: whatever a tool returns, sets or raises is recorded, and the run goes on.

Left out until it exists: PostgreSQL.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import itertools
import json
import logging
import math
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Interface, IPv6Address
from pathlib import Path
from typing import Any

import pytest
from kit import Conversation, Mute, Outside, holds_in_all_cases, results, until, waits
from pydantic import BaseModel, HttpUrl

from ondol import Agent, Context, Happened, InvalidInput, NotDone, Opaque, Runtime, Tool, tool
from ondol.testing import Downstream, ScriptedModel, call

SEOUL = timezone(timedelta(hours=9))
SAW = "saw it"


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: Decimal


class Order(BaseModel):
    id: str
    amount: Decimal


class NumpyLike:
    dtype = "float64"

    def item(self) -> float:
        return 0.5


class Unruly:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(f"no {name}")

    def __repr__(self) -> str:
        raise KeyboardInterrupt


class BrokenModel(BaseModel):
    def model_dump(self, **_: Any) -> Any:
        raise ValueError("no")

    def __repr__(self) -> str:
        return "BrokenModel()"


class Endless(dict[str, int]):
    """A mapping that says of itself that it has no end."""

    def items(self) -> Any:
        return ((str(n), n) for n in itertools.count())


def contains_itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def numbers() -> Iterator[int]:
    yield 1


async def pages() -> AsyncIterator[int]:
    yield 1


def giving(make: Callable[[], Any], *, in_a_thread: bool = False) -> Tool[..., Any]:
    """A ``once`` tool that acts, and then returns what ``make`` makes."""

    async def give(ctx: Context[Outside]) -> Any:
        await ctx.deps.effect(ctx, "give")
        return make()

    def give_in_thread(ctx: Context[Outside]) -> Any:
        return make()

    return tool(name="give")(give_in_thread if in_a_thread else give)


def giver(give: Tool[..., Any]) -> Agent:
    return Agent("giver", model=Conversation({"go": [call("give"), SAW]}), tools=[give])


def seen_by(agent: Agent) -> tuple[str, bool]:
    """The result as the model read it, and whether it was told as a failure."""
    assert isinstance(agent.model, Conversation)
    (result,) = results(agent.model.of["go"].requests[1].messages)
    return result.text, result.error


# fmt: off
LOSSLESS: dict[str, tuple[Any, str]] = {  # what a tool returns and gets back, and what the model reads
    "aware datetime": (datetime(2026, 11, 30, 0, 30, tzinfo=SEOUL), "2026-11-30T00:30:00+09:00"),
    "naive datetime": (datetime(2026, 11, 30, 0, 30), "2026-11-30T00:30:00"),
    "date": (date(2026, 2, 28), "2026-02-28"),
    "timedelta": (timedelta(days=1, microseconds=1), "86400.000001"),
    "decimal": (Decimal("0.10"), "0.10"),
    "uuid": (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    "set": ({3, 1, 2}, "[1, 2, 3]"),
    "bytes": (b"\x00\xff", "AP8="),
    "infinity": (-math.inf, "-inf"),
    "integer": (2**64 + 1, "18446744073709551617"),
    "integer keys": ({1: {2: "x"}}, '{"1": {"2": "x"}}'),
    "keys of any kind": ({date(2026, 1, 1): 1, (1, 2): 2}, '{"2026-01-01": 1, "[1, 2]": 2}'),
    "reserved key": ({"$ondol": "decimal", "v": 1}, '{"$ondol": "decimal", "v": 1}'),
    "lone surrogate": ("온\ud800돌", "온?돌"),
    "surrogate in a key": ({"k\udfff": 1}, '{"k?": 1}'),
    "nothing": (None, "null"),
    "nested": ({"rows": [{"at": date(2026, 1, 2), "paid": Decimal("1.50")}]},
               '{"rows": [{"at": "2026-01-02", "paid": "1.50"}]}'),
}
CHANGED: dict[str, tuple[Any, Any, str]] = {  # what is returned, what is read back, and what the model reads
    "nan": (math.nan, "nan", "nan"),
    "enum": (Colour.RED, "red", "red"),
    "dataclass": (Point(1, Decimal("2.0")), {"x": 1, "y": Decimal("2.0")}, '{"x": 1, "y": "2.0"}'),
    "model": (Order(id="7", amount=Decimal(3)), {"id": "7", "amount": Decimal(3)}, '{"id": "7", "amount": "3"}'),
    "tuple": ((1, "a"), [1, "a"], '[1, "a"]'),
    "path": ([Path("scans") / "온돌.pdf"], ["scans/온돌.pdf"], '["scans/온돌.pdf"]'),
    "IP address": ({IPv6Address("::1"): IPv4Interface("10.0.0.1/8")}, {"::1": "10.0.0.1/8"}, '{"::1": "10.0.0.1/8"}'),
    "fraction": (Fraction(1, 3), "1/3", "1/3"),
    "complex number": (1 + 2j, "(1+2j)", "(1+2j)"),
    "URL": (HttpUrl("http://shop.example/a?b=1"), "http://shop.example/a?b=1", "http://shop.example/a?b=1"),
    "numpy": ({"mean": NumpyLike()}, {"mean": 0.5}, '{"mean": 0.5}'),
}
PLACEHOLDERS: dict[str, tuple[Callable[[], Any], str]] = {  # and the type that the placeholder names
    "object": (object, "object"),
    "function": (lambda: numbers, "function"),
    "generator": (lambda: (n for n in range(3)), "generator"),
    "started generator": (numbers, "generator"),
    "async generator": (pages, "async_generator"),
    "unruly": (Unruly, "Unruly"),
    "broken model": (lambda: BrokenModel(), "BrokenModel"),
    "contains itself": (contains_itself, "list"),
    "no end": (lambda: range(10**15), "range"),
    "a mapping without an end": (Endless, "Endless"),
    "inside": (lambda: {"kept": 1, "lost": [object()]}, "object"),
    "an integer of a million digits": (lambda: 10**1_000_000, "int"),
}
# fmt: on


@pytest.mark.parametrize("name", [*LOSSLESS, *CHANGED])
async def test_c30_a_value_is_recorded_as_it_is_and_the_run_goes_on(db: str, downstream: Downstream, name: str) -> None:
    value, read, seen = (LOSSLESS[name][0], *LOSSLESS[name]) if name in LOSSLESS else CHANGED[name]
    agent = giver(giving(lambda: value))
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        assert (await run.result()).text == SAW
        assert seen_by(agent) == (seen, False)
        (result,) = results(await run.messages())
        assert result.value == read or (name == "nan" and math.isnan(result.value))
        (effect,) = await run.effects()
        assert (effect.state, effect.attempt, effect.warning) == ("succeeded", 1, None)
        assert len(await downstream.effects()) == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize("in_a_thread", [False, True])
@pytest.mark.parametrize("name", PLACEHOLDERS)
async def test_c30_a_value_without_a_json_form_is_a_placeholder_with_a_warning(
    db: str, downstream: Downstream, caplog: pytest.LogCaptureFixture, name: str, in_a_thread: bool
) -> None:
    make, type_name = PLACEHOLDERS[name]
    agent = giver(giving(make, in_a_thread=in_a_thread))
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        with caplog.at_level(logging.WARNING, "ondol.runner"):
            succeeded = await until(run, "effect.succeeded")
        assert (await run.result()).text == SAW
        shown, failed = seen_by(agent)
        assert shown
        assert not failed
        warning = f"its result holds what has no JSON form, so a placeholder with its repr is recorded: {type_name}"
        (effect,) = await run.effects()
        assert (effect.state, effect.attempt, effect.warning) == ("succeeded", 1, warning)
        assert succeeded.data["warning"] == warning
        assert any(effect.id in said and warning in said for said in caplog.messages)
        (result,) = results(await run.messages())
        assert type_name in {p["type"] for p in _placeholders(result.response)}
        await holds_in_all_cases(rt, db, agent, "s", downstream)


def _placeholders(encoded: Any) -> Iterator[dict[str, Any]]:
    match encoded:
        case {"$ondol": "opaque"}:
            yield encoded
        case dict():
            for inner in encoded.values():
                yield from _placeholders(inner)
        case list():
            for inner in encoded:
                yield from _placeholders(inner)


async def test_c30_what_a_tool_should_have_awaited_is_no_result(db: str, downstream: Downstream) -> None:
    async def act() -> str:
        return "never"

    agent = giver(giving(act))  # by mistake without "await": what it stands for did not happen
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        (ask,) = await waits(run)
        (effect,) = await run.effects()
        assert (effect.state, ask.kind) == ("unknown", "unknown_effect")
        assert "gave back an awaitable" in (effect.reason or "")
        await ask.happened({"sent": Decimal("1.50")}, by="kim")
        assert (await run.result()).text == SAW
        assert seen_by(agent) == ('{"sent": "1.50"}', False)
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c30_what_a_check_found_is_recorded_like_a_result(db: str, downstream: Downstream) -> None:
    async def look(ctx: Context[Outside]) -> Happened:
        return Happened({"at": date(2026, 1, 2), "raw": (n for n in range(3))})

    @tool(name="give", check=look)
    async def give(ctx: Context[Outside]) -> str:
        await ctx.deps.effect(ctx, "give")
        raise ConnectionError("the answer was lost")

    agent = giver(give)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        assert (await run.result()).text == SAW
        (result,) = results(await run.messages())
        assert result.value["at"] == date(2026, 1, 2)
        assert isinstance(result.value["raw"], Opaque)
        (effect,) = await run.effects()
        assert (effect.state, "generator" in (effect.warning or "")) == ("succeeded", True)
        await holds_in_all_cases(rt, db, agent, "s", downstream)


# --- session state ----------------------------------------------------------------------------------------------

STATE = {
    "at": datetime(2026, 11, 30, 0, 30, tzinfo=SEOUL), "paid": Decimal("0.10"), "seen": {1, 2}, "raw": b"\x00\xff",
    "n": 2**64, "by id": {1: "a"}, 7: "an integer for a key", "$ondol": "the reserved key", "k\ud800": "lone \udfff",
    "k\0": "a\0b", (1, 2): None,
}  # fmt: skip


async def test_c30_session_state_is_read_back_by_the_next_turn_and_the_next_process(
    db: str, downstream: Downstream
) -> None:
    seen: list[dict[Any, Any]] = []

    @tool
    async def give(ctx: Context[Outside]) -> str:
        seen.append(dict(ctx.state))
        await ctx.deps.effect(ctx, "give")
        for key, value in STATE.items():
            ctx.state[key] = value  # type: ignore[index]
        return "kept"

    agent = Agent("giver", model=Conversation({"go": [call("give"), SAW], "again": [call("give"), SAW]}), tools=[give])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        await rt.run(agent, "go", session="s", operation_id="m1")
        assert (await rt.get_session("s")).state == STATE
        await holds_in_all_cases(rt, db, agent, "s", downstream)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        assert (await rt.get_session("s")).state == STATE
        await rt.run(agent, "again", session="s", operation_id="m2")
        session = await rt.get_session("s")
        assert session.state == STATE
        session = await session.set_state({**session.state, "more": 1})
        assert session.state == {**STATE, "more": 1}
    assert seen == [{}, STATE]


CART = {"items": ["tea"], "sizes": {1: {"s"}}, "by": {"kim": [{"n": 1}]}}


async def test_c30_what_a_tool_changes_inside_of_the_session_state_is_kept_and_seen_by_the_next(
    db: str, downstream: Downstream
) -> None:
    seen: list[dict[Any, Any]] = []

    @tool(effect="read")
    async def change(ctx: Context[Outside], n: int) -> str:
        seen.append(copy.deepcopy(dict(ctx.state.items())))
        ctx.state["items"].append(f"cup {n}")
        next(v for v in ctx.state.values() if isinstance(v, dict) and 1 in v)[1].add(f"size {n}")
        if n == 3:
            raise NotDone("that one is sold out")
        if n == 2:
            ctx.state["by"]["kim"][0]["n"] = n
        return "changed"

    @tool(effect="read")
    async def look(ctx: Context[Outside]) -> str:
        seen.append(copy.deepcopy(dict(ctx.state)))
        return "seen"

    steps = [[call("change", n=1)], [call("look")], [call("change", n=3)], [call("change", n=2)], SAW]
    agent = Agent("giver", model=Conversation({"go": steps, "again": [call("look"), SAW]}), tools=[change, look])
    after = {**CART, "items": ["tea", "cup 1"], "sizes": {1: {"s", "size 1"}}}
    last = {"items": ["tea", "cup 1", "cup 2"], "sizes": {1: {"s", "size 1", "size 2"}}, "by": {"kim": [{"n": 2}]}}
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        await rt.write_session("s", state=CART)
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        await run.result()
        assert seen == [CART, after, after, after]  # what the call that failed did is lost with it
        patches = [e.data["patch"].keys() for e in [e async for e in run.events()] if e.data.get("patch")]
        assert patches == [{"items", "sizes"}, {"items", "sizes", "by"}]  # and who only looks changes nothing
        assert (await rt.get_session("s")).state == last
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        await rt.run(agent, "again", session="s", operation_id="m2")
        assert seen[-1] == last
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize("how", ["del", "pop", "popitem", "clear"])
async def test_c30_what_a_tool_takes_out_of_the_session_state_is_gone(
    db: str, downstream: Downstream, how: str
) -> None:
    seen: list[dict[Any, Any]] = []
    stored: dict[Any, Any] = {"$ondol": None, (1, 2): {"a": 1}}

    @tool
    async def take(ctx: Context[Outside]) -> str:
        await ctx.deps.effect(ctx, "take")
        state: Any = ctx.state
        match how:
            case "del":
                del state["$ondol"], state[1, 2]
            case "pop":
                assert [state.pop("$ondol"), state.pop((1, 2))] == [None, {"a": 1}]
            case "popitem":
                assert dict([state.popitem(), state.popitem()]) == stored
            case "clear":
                state["new"] = 1
                state.clear()
        state.pop("never there", None)
        seen.append(dict(state))
        return "taken"

    @tool(effect="read")
    async def look(ctx: Context[Outside]) -> str:
        seen.append(dict(ctx.state))
        return "seen"

    steps = [[call("take")], [call("look")], SAW]
    agent = Agent("giver", model=Conversation({"go": steps, "again": [call("look"), SAW]}), tools=[take, look])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        await rt.write_session("s", state=stored)
        await rt.run(agent, "go", session="s", operation_id="m1")
        assert (await rt.get_session("s")).state == {}
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        await rt.run(agent, "again", session="s", operation_id="m2")
        assert seen == [{}, {}, {}]
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c30_what_a_tool_took_out_can_be_set_again_and_a_sibling_that_set_it_gets_an_error(
    db: str, downstream: Downstream
) -> None:
    @tool(effect="read")
    async def change(ctx: Context[Outside], key: str, *, sets: int | None = None) -> str:
        ctx.state.pop(key, None)
        if sets is not None:
            ctx.state[key] = sets
        return "changed"

    steps = [
        [call("change", key="a", sets=2), call("change", key="b"), call("change", key="b"), call("change", key="c")],
        [call("change", key="a"), call("change", key="a", sets=3), call("change", key="b", sets=4)],
        SAW,
    ]
    agent = Agent("giver", model=Conversation({"go": steps}), tools=[change])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        await rt.write_session("s", state={"a": 1, "b": 1})
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        await run.result()
        told = results(await run.messages())
        clash = "another call of the same step set a differently"
        assert [clash in str(r.response) for r in told].count(True) == 1 == sum(r.error for r in told[4:6])
        state = (await rt.get_session("s")).state
        assert state == ({"b": 4} if told[5].error else {"a": 3, "b": 4})
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c30_session_state_without_a_json_form_warns_and_the_run_goes_on(db: str, downstream: Downstream) -> None:
    @tool
    async def give(ctx: Context[Outside]) -> str:
        await ctx.deps.effect(ctx, "give")
        ctx.state["kept"], ctx.state["lost"] = 1, numbers()
        return "kept"

    agent = giver(give)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        assert (await run.result()).text == SAW
        session = await rt.get_session("s")
        assert (session.state["kept"], session.state["lost"].type) == (1, "generator")
        (effect,) = await run.effects()
        assert "session state holds what has no JSON form" in (effect.warning or "")
        session = await session.set_state({**session.state, "kept": 2})  # what is a placeholder stays one
        assert (session.state["kept"], session.state["lost"].type) == (2, "generator")
        with pytest.raises(InvalidInput, match="the state given holds what has no JSON form"):
            await session.set_state({"lost": numbers()})
        await holds_in_all_cases(rt, db, agent, "s", downstream)


# --- exceptions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no\0pe \ud800"), "ValueError: no\u2400pe ?"),
        (Mute(), "Mute, whose text raised RuntimeError"),
        (NotDone(), "NotDone"),
        (NotDone("full\udfff"), "full?"),
        (ValueError(b"\xff", {"a": math.nan}), "ValueError: (b'\\xff', {'a': nan})"),
    ],
)
@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_c30_an_exception_is_told_whatever_its_text_is(
    db: str, downstream: Downstream, error: Exception, told: str, in_a_thread: bool
) -> None:
    def give() -> str:
        raise error

    async def give_async() -> str:
        raise error

    agent = giver(tool(name="give", effect="read")(give if in_a_thread else give_async))
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        assert (await run.result()).text == SAW
        assert seen_by(agent) == (told, True)
        (effect,) = await run.effects()
        assert (effect.state, effect.reason) == ("failed", told)
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c30_a_long_text_of_an_exception_is_kept_by_its_beginning_and_its_end(
    db: str, downstream: Downstream
) -> None:
    @tool(effect="read")
    async def give() -> str:
        raise ValueError("begins " + "🔥" * 1_000_000 + " ends")

    agent = giver(give)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        assert (await run.result()).text == SAW
        (effect,) = await run.effects()
        reason = effect.reason or ""
        assert reason.startswith("ValueError: begins 🔥")
        assert "characters left out" in reason
        assert reason.endswith("🔥 ends")
        assert len(reason) < 11_000
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c30_an_outcome_that_nobody_can_tell_keeps_the_exceptions_words(db: str, downstream: Downstream) -> None:
    @tool
    async def give(ctx: Context[Outside]) -> str:
        await ctx.deps.effect(ctx, "give")
        raise ValueError("half\0done \ud800")

    agent = giver(give)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        (ask,) = await waits(run)
        (effect,) = await run.effects()
        assert (effect.state, effect.reason) == ("unknown", "ValueError: half\u2400done ?")
        with pytest.raises(InvalidInput, match="the result given holds what has no JSON form"):
            await ask.happened(numbers(), by="kim")
        await ask.happened({"lone": "\ud800", 1: b"\xff"}, "it is\0there", by="kim")
        assert (await run.result()).text == SAW
        assert seen_by(agent) == ('{"lone": "?", "1": "/w=="}', False)
        await holds_in_all_cases(rt, db, agent, "s", downstream)


# --- what users and models say ----------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["lone \ud800 surrogate", "\udcff\udcfe", "a\0b", "\ufeff온돌\u202e", "🔥" * 100_000])
async def test_c30_whatever_a_user_says_is_kept_and_sent_as_valid_text(
    db: str, downstream: Downstream, said: str
) -> None:
    sent = said.replace("\0", "\u2400").encode("utf-8", "replace").decode()
    agent = Agent("giver", model=Conversation({sent: [said]}))
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, said, session="s", operation_id="m1")
        assert (await run.result()).text == said  # the model's own answer: it is not changed either
        again = await rt.start(agent, said, session="s", operation_id="m1")
        assert again.id == run.id
        assert [m.text for m in await run.messages()] == [said, said]
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c30_arguments_are_recorded_as_the_model_sent_them(db: str, downstream: Downstream) -> None:
    given = {"n": 2**70, "rows": [{"1": 0.1, "deep": [[[]]]}], "text": "온\0돌", "$ondol": "x", "k\0": None}
    got: list[Any] = []

    @tool(approve=True)
    async def keep(ctx: Context[Outside], what: dict[str, Any]) -> str:
        await ctx.deps.effect(ctx, "keep")
        got.append(what)
        return "kept"

    agent = Agent("giver", model=Conversation({"go": [call("keep", what=given), SAW]}), tools=[keep])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        (ask,) = await waits(run)
        assert ask.arguments == {"what": given}
        await rt.close()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        await (await rt.get_ask(ask.id)).approve(by="kim")
        assert (await (await rt.get_run(run.id)).result()).text == SAW
        assert got == [given]
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c30_arguments_that_no_text_can_hold_are_refused_and_nothing_is_called(
    db: str, downstream: Downstream
) -> None:
    @tool
    async def keep(text: str) -> str:
        raise AssertionError("it was called")

    script = [call("keep", text="half an emoji: \ud83d"), SAW]
    agent = Agent("giver", model=Conversation({"go": script}), tools=[keep])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        assert (await run.result()).text == SAW
        ((why, failed),) = [(r.text, r.error) for r in results(await run.messages())]
        assert ("do not fit" in why, failed) == (True, True)
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c30_progress_may_say_anything(db: str, downstream: Downstream) -> None:
    @tool(effect="read")
    async def give(ctx: Context[Outside]) -> str:
        for fraction, note in ((Decimal("0.5"), "half\0"), ("x", object()), (math.nan, "\ud800")):
            ctx.progress(fraction, note)  # type: ignore[arg-type]
        await ctx.deps.effect(ctx, "give")  # long enough for them to be heard
        return "done"

    agent = giver(give)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        said = [(e.data["fraction"], e.data["note"]) async for e in run.events() if e.type == "progress"]
        assert said[0] == (0.5, "half\u2400")
        assert [fraction for fraction, _ in said[1:]] == [None, None]
        json.dumps(said, ensure_ascii=False).encode()


async def test_c30_what_a_caller_notes_with_a_run_is_read_back_as_it_was(db: str) -> None:
    noted = {"at": datetime(2026, 1, 2, tzinfo=UTC), "paid": Decimal("1.50"), "n": 2**60, 7: {1, 2}, "$ondol": "a key"}
    agent = Agent("a", model=ScriptedModel(["done"]))
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "go", metadata=noted)
        assert run.metadata == (await rt.get_run(run.id)).metadata == noted
