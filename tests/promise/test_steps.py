"""Tools of steps: their body is entered as often as needed, and what it recorded is never done again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit import until
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, RootModel, SecretStr, computed_field

from ondol import (
    Allow,
    AskClosed,
    By,
    CallFailed,
    Context,
    Deny,
    InvalidInput,
    NotDone,
    PolicyCall,
    RunFailed,
    Secret,
    Tool,
    ToolResponse,
    tool,
)
from ondol.testing import Barrier, FaultPlan, barrier, call, raise_
from promise.house import HELLO, House, letter, look, mail, notes, refund, rest, states, the_ask, wire

TASK = [call("task")]


def steps(body: Callable[[Context[Any]], Awaitable[Any]], name: str = "task", **declared: Any) -> Tool[..., Any]:
    """A tool of steps with this body."""

    async def task(ctx: Context[Any]) -> Any:
        return await body(ctx)

    return tool(effect="steps", name=name, **declared)(task)


def in_order(*calls: tuple[Tool[..., Any], dict[str, Any]]) -> Tool[..., Any]:
    """A tool of steps that makes these calls."""

    async def body(ctx: Context[Any]) -> list[Any]:
        return [await ctx.call(made, **arguments) for made, arguments in calls]

    return steps(body)


def told(house: House) -> ToolResponse:
    """What the model was told of the call that it made."""
    part = house.asked()[-1].messages[-1].parts[-1]
    assert isinstance(part, ToolResponse)
    return part


BOTH = in_order((refund, {"order": "1"}), (letter, {"to": "kim"}))
DONE = ["refund done", "letter done"]
TWO = [(refund, {"order": "1"}), (refund, {"order": "2"})]


# --- what is recorded -------------------------------------------------------------------------------------------


async def test_each_call_of_a_tool_of_steps_is_an_effect_of_its_own_with_its_own_key(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[BOTH])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        task, first, second = await run.effects()
        assert [(e.tool, e.effect, e.state, e.attempt) for e in (task, first, second)] == [
            ("task", "steps", "succeeded", 0), ("refund", "idempotent", "succeeded", 1),
            ("letter", "once", "succeeded", 1),
        ]  # fmt: skip
        assert task.parent is None
        assert first.parent == second.parent == task.id
        assert [line.key for line in house.ledger] == [first.key, second.key]
        planned = [e async for e in run.events() if e.type == "effect.planned"]
        assert [e.data.get("place") for e in planned] == [None, 0, 1]
        assert [e.data["arguments"] for e in planned] == [{}, {"order": "1"}, {"to": "kim"}]
        assert [e.data.get("parent") for e in planned] == [None, task.id, task.id]
        assert [e["parent"] for e in (await run.state())["effects"]] == [None, task.id, task.id]
    assert told(house).value == DONE


async def test_what_the_steps_said_is_part_of_no_conversation(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[BOTH])
    async with house.life(agent) as life:
        for n in range(4):  # so that there is something where its steps would stand
            assert await rest(await life.rt.start(agent, HELLO, session="s", operation_id=f"before {n}")) == "completed"
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        for shown in (
            await run.messages(),
            [m.message for m in await (await life.rt.get_session("s")).messages()][8:],
            house.asked(run)[-1].messages[9:],
        ):
            assert [m.role for m in shown][:3] == ["user", "assistant", "tool"]
            assert "order" not in repr(shown)
        assert len((await run.state())["messages"]) == 4
        assert (await life.rt.context(run.id, 2)).matches
        later = await life.rt.start(agent, HELLO, session="s", operation_id="later")
        assert await rest(later) == "completed"
        assert "order" not in repr(house.asked(later)[0].messages)
    async with house.life(agent) as life:  # another process reads the history from the file
        again = await life.rt.start(agent, HELLO, session="s", operation_id="again")
        assert await rest(again) == "completed"
        assert "order" not in repr(house.asked(again)[0].messages)
        assert (await life.rt.context(again.id, 1)).matches


class Tax(BaseModel):
    model_config = ConfigDict(extra="forbid")
    net: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gross(self) -> int:
        return self.net * 2


class Order(BaseModel):
    id: str
    amount: Decimal
    due: date
    class_: str = Field(alias="class")
    taxes: list[Tax] = [Tax(net=1)]
    shop: HttpUrl = HttpUrl("http://shop.example/a?b=1")
    scan: Path | None = Path("scans/1182.pdf")
    share: Fraction = Fraction(1, 3)
    seen_at: list[IPv4Address | IPv6Network] = [IPv4Address("10.0.0.1"), IPv6Network("2001:db8::/32")]


ORDER = {"id": "1182", "amount": Decimal("3.10"), "due": date(2026, 3, 1), "class": "A"}


@dataclass
class Paid:
    amounts: tuple[Decimal, ...]


def refuse(value: Any) -> Any:
    raise RuntimeError("a validator may raise anything")


class Moody:
    @classmethod
    def __get_pydantic_core_schema__(cls, *given: Any) -> Any:
        raise SystemExit("not today")


Odd = Annotated[str, AfterValidator(refuse)]


async def test_a_recorded_result_comes_back_as_the_type_that_the_tool_returns(house: House) -> None:
    @tool(effect="read")
    async def find(id: str) -> Order:
        return Order.model_validate(ORDER | {"id": id})

    @tool(effect="idempotent")
    def pay(ctx: Context[Any], amount: Decimal, due: date) -> Paid:
        return Paid((amount,))

    def lies(n: int) -> int:
        return "many"  # type: ignore[return-value]

    def odd(n: int) -> Odd:
        return "odd"

    def untyped(n: int) -> Moody:
        return "no type"  # type: ignore[return-value]

    def some(n: int) -> Iterable[int]:
        return [n, n]

    def where(n: int) -> Path:
        return Path("/tmp") / str(n)

    seen: list[Any] = []

    async def body(ctx: Context[Any]) -> str:
        order = await ctx.call(find, "1182")
        paid = await ctx.call(pay, order.amount, due=order.due)
        seen.append((order, paid, await ctx.call(lies, n=1), await ctx.call(odd, n=1)))
        assert await ctx.call(untyped, n=1) == "no type"
        assert await ctx.call(some, n=1) == [1, 1]
        assert await ctx.call(where, n=1) == Path("/tmp/1")
        await ctx.call(wire, to="kim")
        return "ok"

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    expected = Order.model_validate(ORDER), Paid((Decimal("3.10"),)), "many", "odd"
    assert seen == [expected, expected]
    assert house.count() == 1
    house.checked = False  # these tools write to no ledger


PNG = b"\x89PNG\r\n\xff\x00"


async def test_what_one_step_gave_may_be_handed_to_the_next_also_bytes(house: House) -> None:
    """Bytes that are no text, alone and beside other values; approved, after a restart, and in a replay."""

    @tool(effect="read")
    async def render(n: int) -> bytes:
        return PNG * n

    @tool(effect="once", approve=lambda image, **rest: len(image) > len(PNG))
    async def upload(ctx: Context[House], image: bytes, due: date, amount: Decimal, more: Any = None) -> list[Any]:
        await ctx.deps.act(ctx, "upload", image=image, due=due, amount=amount, more=more)
        return [image, due]

    async def body(ctx: Context[Any]) -> int:
        given: dict[str, Any] = {"due": date(2026, 3, 1), "amount": Decimal("0.10")}
        first, _ = await ctx.call(upload, await ctx.call(render, n=1), **given)
        with pytest.raises(InvalidInput):
            await ctx.call(upload, first, **given, more=object())
        return len((await ctx.call(upload, await ctx.call(render, n=2), **given, more={"of": first}))[0])

    Secret("open sesame")
    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        ask = await the_ask(run)
        assert ask.arguments["image"] == PNG * 2
        await ask.approve(by="lee")
        assert await rest(run) == "completed"
        assert told(house).value == 2 * len(PNG)
        again = await life.rt.replay(run, force=By("lee", "to see"))
        assert await rest(again) == "completed"
    expected = {"due": date(2026, 3, 1), "amount": Decimal("0.10")}
    assert [line.arguments for line in house.ledger] == [
        {"image": PNG, **expected, "more": None}, {"image": PNG * 2, **expected, "more": {"of": PNG}},
    ]  # fmt: skip
    house.checked = False  # one of these tools writes to no ledger


class Numbers(RootModel[set[int]]):
    pass


class Tagged(BaseModel):
    tags: set[int]
    also: set[int] = Field(alias="from")
    numbers: Numbers


@dataclass
class Group:
    of: Tagged
    more: frozenset[tuple[int, frozenset[int]]]


async def test_a_set_is_the_same_argument_in_whatever_order_a_process_holds_it(house: House) -> None:
    """That of texts is another one in each process."""

    @tool(effect="once")
    async def label(ctx: Context[House], tags: set[int], group: Group, by: dict[str, list[set[int]]]) -> str:
        return await ctx.deps.act(ctx, "label")

    orders = [[0, 8, 16], [16, 8, 0]]
    assert list(set(orders[0])) != list(set(orders[1]))

    async def body(ctx: Context[Any]) -> str:
        order = orders.pop(0)
        more = frozenset((1, frozenset([n])) for n in order) | {(1, frozenset(order))}
        tagged = Tagged.model_validate({"tags": set(order), "from": set(order), "numbers": set(order)})
        group = Group(tagged, more)
        done = await ctx.call(label, tags=set(order), group=group, by={"a": [set(order)]})
        await ctx.ask("sure?", schema=bool)
        return done

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        sent = (await run.effects())[1].arguments
        assert (sent["tags"], sent["by"]) == ([0, 16, 8], {"a": [[0, 16, 8]]})
        assert list(sent["group"]["of"].values()) == [[0, 16, 8]] * 3
        await (await the_ask(run, "question")).answer(True)
        assert await rest(run) == "completed"
    assert told(house).value == "label done"


class Login(BaseModel):
    user: str
    password: SecretStr = Field(alias="pass")


@pytest.mark.parametrize("given", [{"word": SecretStr("hunter22")}, {"login": {"user": "kim", "pass": "hunter22"}}])
async def test_a_secret_of_pydantic_is_no_argument_that_is_recorded(house: House, given: dict[str, Any]) -> None:
    """It is written as asterisks, and the tool would have been called with these."""

    @tool(effect="once")
    async def sign_in(ctx: Context[House], word: SecretStr | None = None, login: Login | None = None) -> str:
        return await ctx.deps.act(ctx, "sign_in")

    made = {k: Login.model_validate(v) if k == "login" else v for k, v in given.items()}
    agent = house.agent(TASK, "done", tools=[in_order((sign_in, made))])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert await states(run) == [("task", "failed", 0)]
    assert "secret" in str(told(house).value)
    assert not house.ledger


class Parcel(BaseModel):
    to: str
    customs: str = Field(default="none", exclude=True)
    seen_at: list[str] = Field(default_factory=list, exclude=True)


@pytest.mark.parametrize("seal", [b"", b"\xff"])  # that one has no form in JSON
async def test_a_field_that_pydantic_leaves_out_is_no_argument_that_is_recorded(house: House, seal: bytes) -> None:
    """The tool would have been called with its default. One that has its default is written as it is."""

    @tool(effect="once")
    async def send(ctx: Context[House], parcels: list[Parcel], seal: bytes) -> str:
        return await ctx.deps.act(ctx, "send", customs=[p.customs for p in parcels])

    given = [Parcel(to="kim"), Parcel(to="lee", customs="declared")]
    steps = in_order(*((send, {"parcels": given[:n], "seal": seal}) for n in (1, 2)))
    agent = house.agent(TASK, "done", tools=[steps])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert await states(run) == [("task", "failed", 0), ("send", "succeeded", 1)]
    assert "Parcel.customs is not written" in str(told(house).value)
    assert [line.arguments for line in house.ledger] == [{"customs": ["none"]}]


@pytest.mark.parametrize("seal", [b"", b"\xff"])  # that one has no form in JSON
async def test_a_dict_with_two_keys_that_are_written_alike_is_no_argument_that_is_recorded(
    house: House, seal: bytes
) -> None:
    """One of its entries would have been lost."""

    @tool(effect="once")
    async def keep(ctx: Context[House], more: dict[int | str, Any], seal: bytes) -> str:
        return await ctx.deps.act(ctx, "keep", more=[str(key) for key in more])

    async def body(ctx: Context[Any]) -> str:
        for alike in ({1: "a", "1": "b"}, {"in": {None: 1, "None": 2}}):
            with pytest.raises(InvalidInput, match="written alike"):
                await ctx.call(keep, more=alike, seal=seal)
            with pytest.raises(InvalidInput, match="written alike"):
                await ctx.ask("so?", schema=Any, default=alike, expires=timedelta(days=1))
        return await ctx.call(keep, more={1: "a", "2": "b"}, seal=b"")

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert told(house).value == "keep done"
    assert [line.arguments for line in house.ledger] == [{"more": ["1", "2"]}]


class Reading(BaseModel):
    """As two others write it: one is read, the other is written to."""

    level: int = Field(default=0, validation_alias="Level")
    unit: str = Field(default="m", serialization_alias="einheit")


async def test_a_field_that_is_written_under_a_name_that_is_not_read_is_no_argument(house: House) -> None:
    """The tool would have been called with its default. One that takes the data itself is given it."""

    @tool(effect="once")
    async def keep(ctx: Context[House], readings: list[Reading]) -> str:
        return await ctx.deps.act(ctx, "keep", units=[r.unit for r in readings])

    @tool(effect="once")
    async def post(ctx: Context[House], body: dict[str, Any]) -> str:
        return await ctx.deps.act(ctx, "post", body=body)

    made = Reading.model_validate({"Level": 3})
    other = Reading.model_construct(unit="ft")

    async def body(ctx: Context[Any]) -> str:
        await ctx.call(keep, readings=[Reading()])
        for lost, named in ((made, "Reading.level"), (other, "Reading.unit")):
            with pytest.raises(InvalidInput, match=named):
                await ctx.call(keep, readings=[Reading(), lost])
            with pytest.raises(InvalidInput, match=named):
                await ctx.ask("so?", schema=Reading, default=lost, expires=timedelta(days=1))
        return await ctx.call(post, body=made)

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert told(house).value == "post done"
    assert [line.arguments for line in house.ledger] == [{"units": ["m"]}, {"body": {"level": 3, "einheit": "m"}}]


async def test_what_a_tool_could_not_be_given_as_it_is_is_no_argument_that_is_recorded(house: House) -> None:
    @tool(effect="once")
    async def note(ctx: Context[House], what: Any) -> str:
        assert what == "a\0b"
        return await ctx.deps.act(ctx, "note")

    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]

    async def body(ctx: Context[Any]) -> str:
        for half in ("a \ud800 b", ["\udfff"], {"\ud800": 1}):
            with pytest.raises(InvalidInput, match="half of a character"):
                await ctx.call(note, what=half)
        with pytest.raises(InvalidInput, match="no JSON form"):
            await ctx.call(note, what=deep)
        return await ctx.call(note, what="a\0b")

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert await states(run) == [("task", "succeeded", 0), ("note", "succeeded", 1)]


# --- entered again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["plan_step", "started", "outcome"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
async def test_what_was_recorded_is_never_done_again(house: House, at: str, when: str, nth: int) -> None:
    agent = house.agent(TASK, "done", tools=[in_order((refund, {"order": "1"}), (mail, {"to": "kim"}))])
    run_id = await house.dies(agent, at=f"{at}.{when}", nth=nth)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert [e.state for e in await run.effects()] == ["succeeded"] * 3
    assert told(house).value in (["refund done", "mail done"], ["refund done", "found"])
    assert len(house.keys("refund")) == house.count("mail") == 1


async def test_after_a_crash_a_step_gets_its_own_verdict(house: House) -> None:
    """A read again, idempotent again with its key, once unknown; what is planned starts normally."""
    agent = house.agent(TASK, "done", tools=[in_order((look, {"order": "1"}), (refund, {"order": "1"}), *WITH_LETTER)])
    run_id = await house.dies(agent, at="look.after")
    run_id = await house.dies(agent, at="refund.after") or run_id
    await house.dies(agent, at="letter.after")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        assert await states(run) == [
            ("task", "planned", 0), ("look", "succeeded", 0), ("refund", "succeeded", 2), ("letter", "unknown", 1),
        ]  # fmt: skip
        assert house.count("letter") == 1
        await (await the_ask(run, "unknown_effect")).happened("it lay in the box", by="lee")
        assert await rest(run) == "completed"
    assert told(house).value == ["look done", "refund done", "it lay in the box"]
    assert (house.count("look"), house.count("refund"), len(house.keys("refund"))) == (2, 2, 1)
    house.checked = False  # downstream counts keys; this ledger does not


WITH_LETTER = ((letter, {"to": "kim"}),)


async def test_a_person_may_allow_the_next_attempt_of_a_step_or_give_it_up(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[BOTH])
    run_id = await house.dies(agent, at="letter.before")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).not_happened("nothing arrived", by="lee")
        assert await rest(run) == "completed"
        assert (await states(run))[2] == ("letter", "succeeded", 2)
        house.answers("again", TASK, "done")
    await _given_up(house)


async def _given_up(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[BOTH], said="again")
    async with house.life(agent, dies_at="letter.before") as life:
        await life.ends(life.rt.run(agent, "again", session="s", operation_id="op-2"))
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op-2")
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).give_up(by="lee")
        assert await rest(run) == "failed"
        assert run.error is not None
        assert run.error["code"] == "unknown_effect"
        assert await states(run) == [("task", "abandoned", 0), ("refund", "succeeded", 1), ("letter", "unknown", 1)]


async def test_a_step_that_was_lost_is_looked_at_before_a_planned_sibling_starts(house: House) -> None:
    agent = house.agent([*TASK, call("wire", to="kim")], "done", tools=[BOTH, wire])
    async with house.life(agent, dies_at="letter.after") as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await life.ends(run.result())
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        await (await the_ask(run)).approve(by="lee")  # of the sibling, which is held behind the unknown
        assert await rest(run) == "waiting"
        assert house.count("wire") == 0
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("wire") == house.count("letter") == 1


# --- people -----------------------------------------------------------------------------------------------------


async def test_a_step_may_need_an_approval_and_the_body_is_entered_again_after_it(house: House) -> None:
    entered: list[str] = []

    async def body(ctx: Context[Any]) -> str:
        entered.append("in")
        await ctx.call(refund, order="1")
        try:
            sent = await ctx.call(wire, to="kim")
        finally:
            entered.append("out")
        return sent

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert entered == ["in", "out"]  # nothing of it stays in memory
        ask = await the_ask(run)
        assert (ask.tool, ask.arguments, ask.effect) == ("wire", {"to": "kim"}, (await run.effects())[2].id)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        assert entered == ["in", "out"]  # nor is it entered for nothing
        await (await the_ask(run)).approve(by="lee", arguments={"to": "park"})
        assert await rest(run) == "completed"
    assert entered == ["in", "out"] * 2
    assert [line.arguments for line in house.ledger] == [{"order": "1"}, {"to": "park"}]
    assert told(house).value == "wire done"


async def test_a_refused_step_raises_the_same_whenever_the_body_is_entered(house: House) -> None:
    caught: list[tuple[str, str, str]] = []

    @tool(effect="idempotent")
    async def picky(ctx: Context[House], n: int) -> str:
        raise NotDone("not today")

    @tool(effect="once", approve=True, approve_expires=timedelta(hours=1))
    async def soon(ctx: Context[House]) -> str:
        return await ctx.deps.act(ctx, "soon")

    async def body(ctx: Context[Any]) -> int:
        caught.clear()
        refused: Sequence[tuple[Tool[..., Any], dict[str, Any]]] = (
            (picky, {"n": 1}),
            (wire, {"to": "kim"}),
            (soon, {}),
        )
        for made, arguments in refused:
            try:
                await ctx.call(made, **arguments)
            except CallFailed as error:
                caught.append((error.tool, error.state, str(error)))
        return len(caught)

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        await (await the_ask(run)).deny(by="lee", reason="too much")
        assert await rest(run) == "waiting"
        await house.clock.wait_for_timers()
        house.clock.advance(hours=2)
        await run.result(through_asks=True)
    assert caught == [
        ("picky", "failed", "picky: not today"), ("wire", "denied", "wire: lee refused this call: too much"),
        ("soon", "expired", "soon: nobody approved this call in time, so it was not made"),
    ]  # fmt: skip
    assert house.count() == 0


async def test_a_body_that_raises_has_failed_and_the_model_is_told_what_was_done(house: House) -> None:
    async def body(ctx: Context[Any]) -> None:
        await ctx.call(refund, order="1")
        await ctx.call(look, order="1")
        raise LookupError("no such person")

    agent = house.agent(TASK, "sorry", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert [e.state for e in await run.effects()] == ["failed", "succeeded", "succeeded"]
    assert told(house).error
    assert told(house).value == "LookupError: no such person (done by then: refund)"


async def test_a_call_that_fails_and_is_not_caught_is_the_failure_of_the_body(house: House) -> None:
    agent = house.agent(TASK, "sorry", tools=[BOTH])
    async with house.life(agent, plan=FaultPlan().at("refund.before", fault=raise_(NotDone("closed")))) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
    assert told(house).value == "refund: closed"
    assert house.count() == 0


async def test_a_tool_of_steps_may_itself_need_an_approval(house: House) -> None:
    async def body(ctx: Context[Any]) -> str:
        return await ctx.call(letter, to="kim")

    agent = house.agent(TASK, "done", tools=[steps(body, approve=True)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert await states(run) == [("task", "asked", 0)]
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    assert house.count("letter") == 1


# --- what a body may not do -------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_in_any_other_class_a_call_raises_before_anything_happens(
    house: House, effect: Any, is_async: bool
) -> None:
    caught: list[InvalidInput] = []

    def tries(ctx: Context[Any]) -> str:
        with pytest.raises(InvalidInput, match="for tools of steps") as refused:
            ctx.call(letter, to="kim")
        caught.append(refused.value)
        return "no"

    async def tries_in_the_loop(ctx: Context[Any]) -> str:
        return tries(ctx)

    made = tool(effect=effect, name="task")(tries_in_the_loop if is_async else tries)
    agent = house.agent(TASK, "done", tools=[made])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert len(await run.effects()) == len(caught) == 1
    assert house.count() == 0
    house.checked = False  # this tool writes to no ledger


@pytest.mark.filterwarnings("ignore:coroutine 'Body._step' was never awaited:RuntimeWarning")
async def test_a_step_that_is_not_awaited_was_not_made_and_the_model_is_told(house: House) -> None:
    async def body(ctx: Context[Any]) -> str:
        await ctx.call(letter, to="kim")
        ctx.call(refund, order="1")
        return "both done"

    agent = house.agent(TASK, "sorry", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert await states(run) == [("task", "failed", 0), ("letter", "succeeded", 1)]
    assert "a step of it was not awaited" in str(told(house).value)
    assert "(done by then: letter)" in str(told(house).value)


async def test_calls_beside_each_other_are_refused_before_anything_happens(house: House) -> None:
    async def body(ctx: Context[Any]) -> str:
        with pytest.raises(InvalidInput, match="one thing after the other"):
            await asyncio.gather(ctx.call(refund, order="1"), ctx.call(refund, order="2"))
        return await ctx.call(letter, to="kim")

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert [e.tool for e in await run.effects()] == ["task", "letter"]
    assert told(house).value == "letter done"


class _Releases:
    """The program goes on, and so does what waits at a barrier."""

    def __init__(self, held: Barrier) -> None:
        self.held = held

    def hit(self) -> None:
        self.held.go_on.set()

    async def ahit(self) -> None:
        self.hit()


async def test_a_step_that_is_planned_while_a_sibling_does_not_know_of_its_own_outcome_yet_waits_for_it(
    house: House,
) -> None:
    held = barrier()  # the outcome is durable, and nobody was told

    async def first(ctx: Context[Any]) -> Any:
        return await ctx.call(letter, to="kim")

    async def second(ctx: Context[Any]) -> Any:
        await held.reached.wait()
        return await ctx.call(refund, order="1")

    plan = FaultPlan().at("outcome.after", fault=held).at("plan_step.after", nth=2, fault=_Releases(held))
    agent = house.agent([call("first"), call("second")], "done", tools=[steps(first, "first"), steps(second, "second")])
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert await states(run) == [
            ("first", "succeeded", 0), ("second", "succeeded", 0),
            ("letter", "succeeded", 1), ("refund", "succeeded", 1),
        ]  # fmt: skip


async def test_a_body_that_does_not_wait_for_its_call_has_failed_once_that_is_over(house: House) -> None:
    in_letter = barrier()

    async def body(ctx: Context[Any]) -> str:
        try:
            async with asyncio.timeout(0):
                await ctx.call(letter, to="kim")
        except TimeoutError:
            in_letter.go_on.set()
        return await ctx.call(refund, order="1")

    agent = house.agent(TASK, "sorry", tools=[steps(body)])
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_letter)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert await states(run) == [("task", "failed", 0), ("letter", "succeeded", 1)]
    assert "it did not wait for a step of its own" in told(house).text
    assert house.count() == house.count("letter") == 1


async def test_arguments_that_do_not_fit_raise_and_nothing_is_recorded(house: House) -> None:
    async def body(ctx: Context[Any]) -> str:
        for wrong in (
            lambda: ctx.call(letter, to=3),  # type: ignore[call-overload]
            lambda: ctx.call(letter),  # type: ignore[call-overload]
            lambda: ctx.call(letter, "kim", to="lee"),  # type: ignore[call-overload]
            lambda: ctx.call(letter, to=object()),  # type: ignore[call-overload]
            lambda: ctx.call(letter, to="the word is open sesame"),
            lambda: ctx.call(letter, to=b"open sesame\xff"),  # type: ignore[call-overload]
        ):
            with pytest.raises(InvalidInput):
                await wrong()
        return await ctx.call(letter, "kim")

    Secret("open sesame")
    agent = house.agent(TASK, "done", tools=[steps(body)])
    run_id = await house.dies(agent, at="outcome.after")  # the right call has the place of the first
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("task", "succeeded", 0), ("letter", "succeeded", 1)]
    assert [line.arguments for line in house.ledger] == [{"to": "kim"}]


async def test_a_body_that_catches_everything_repeats_nothing_and_blocks_nobody(house: House) -> None:
    swallowed: list[str] = []
    others: list[str] = []
    turns: list[int] = []

    async def body(ctx: Context[Any]) -> str:
        await ctx.call(refund, order="1")
        others.clear()
        for _ in range(3):
            asyncio.get_running_loop().call_soon(others.append, "had a turn")
            try:
                return await ctx.call(wire, to="kim")
            except Exception:  # what a careless body does: the signal must pass by it
                swallowed.append("an exception")
            except BaseException as signal:
                swallowed.append(type(signal).__name__)
        turns.append(len(others))
        return "pretends to be done"

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert swallowed == ["Suspended"] * 3
        assert turns == [3]
        assert await states(run) == [("task", "planned", 0), ("refund", "succeeded", 1), ("wire", "asked", 0)]
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    assert told(house).value == "wire done"
    assert house.count("refund") == house.count("wire") == 1


def test_a_tool_of_steps_is_async_and_takes_its_context() -> None:
    with pytest.raises(InvalidInput, match="async def plain"):

        @tool(effect="steps")
        def plain(ctx: Context[Any]) -> None: ...

    with pytest.raises(InvalidInput, match="ctx: Context"):

        @tool(effect="steps")
        async def blind(who: str) -> None: ...


# --- time -------------------------------------------------------------------------------------------------------


async def test_the_time_out_bounds_what_the_body_computes_and_not_what_its_steps_take(house: House) -> None:
    @tool(effect="idempotent", timeout=timedelta(hours=2))
    async def long(ctx: Context[House]) -> str:
        ctx.deps.clock.advance(hours=1)
        return await ctx.deps.act(ctx, "long")

    async def body(ctx: Context[House]) -> str:
        for _ in range(2):
            ctx.deps.clock.advance(seconds=4)
            await ctx.call(long)
        return "in time"

    agent = house.agent(TASK, "done", tools=[steps(body, timeout=timedelta(seconds=10))])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
    assert told(house).value == "in time"


async def test_a_body_whose_time_is_over_has_failed(house: House) -> None:
    async def body(ctx: Context[House]) -> None:
        await ctx.call(refund, order="1")
        ctx.deps.clock.advance(seconds=4)
        await ctx.call(look, order="1")
        ctx.deps.in_tool.set()
        await asyncio.get_running_loop().create_future()

    agent = house.agent(TASK, "sorry", tools=[steps(body, timeout=timedelta(seconds=10))])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.in_tool.wait()
        await house.clock.wait_for_timers()
        house.clock.advance(seconds=5.9)
        house.clock.advance(seconds=0.2)
        assert await rest(run) == "completed"
    assert told(house).value == "its own code did not end within 10 s (done by then: refund)"


# --- cancel and shutdown ----------------------------------------------------------------------------------------


async def test_a_cancel_lets_the_step_in_flight_end_and_begins_no_other(house: House) -> None:
    entered: list[str] = []

    async def body(ctx: Context[Any]) -> None:
        try:
            await ctx.call(quick, order="1")
            await ctx.call(letter, to="kim")
        finally:
            entered.append("out")

    @tool(effect="idempotent")
    async def quick(ctx: Context[House], order: str) -> str:
        try:
            return await ctx.deps.act(ctx, "quick", order=order)
        except asyncio.CancelledError:
            ctx.deps.happened(ctx.idempotency_key, "quick", order=order)
            return "made it"

    agent, in_step = house.agent(TASK, "done", tools=[steps(body)]), barrier()
    async with house.life(agent, plan=FaultPlan().at("quick.before", fault=in_step)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_step.reached.wait()
        await run.cancel(by="kim")
        assert await rest(run) == "cancelled"
        assert await states(run) == [("task", "abandoned", 0), ("quick", "succeeded", 1)]
        assert entered == ["out"]
        later = await life.rt.start(agent, HELLO, session="s", operation_id="later")
        assert await rest(later) == "completed"
        (note,) = notes(house.asked(later)[0])
        assert 'quick({"order": "1"}): it succeeded' in note
        assert "task(" not in note
    assert house.count("letter") == 0


@pytest.mark.parametrize("how", ["an unknown call was given up", "nobody answered in time"])
async def test_what_ends_the_run_while_a_body_works_lets_its_step_end_and_begins_no_other(
    house: House, how: str
) -> None:
    async def asks(ctx: Context[Any]) -> None:
        await ctx.ask("which?", expires=timedelta(seconds=30))  # before the time of the step is over

    gives_up, in_step = how.endswith("given up"), barrier()
    beside = call("letter", to="kim") if gives_up else call("asks")
    agent = house.agent([beside, *TASK], tools=[letter, steps(asks, "asks"), in_order(*TWO)])
    plan = FaultPlan().at("letter.before", fault=raise_(TimeoutError())).at("refund.before", fault=in_step)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_step.reached.wait()
        await until(run, "effect.unknown" if gives_up else "ask.opened")
        if gives_up:
            await (await the_ask(run, "unknown_effect")).give_up(by="lee")
        else:
            house.clock.advance(seconds=30)
            await life.engine.look()
        await until(run, "effect.resolved" if gives_up else "ask.expired")  # its holder knows
        in_step.go_on.set()
        assert await rest(run) == ("failed" if gives_up else "expired")
        assert ("refund", "succeeded", 1) in await states(run)
    assert house.count("refund") == 1


async def test_an_approval_of_a_step_that_is_open_when_its_run_is_cancelled_is_closed(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[in_order((refund, {"order": "1"}), (wire, {"to": "kim"}))])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        ask = await the_ask(run)
        await run.cancel(by="kim")
        assert await rest(await run.refresh()) == "cancelled"
        assert [e.state for e in await run.effects()] == ["abandoned", "succeeded", "abandoned"]
        with pytest.raises(AskClosed):
            await ask.approve(by="lee")
    assert house.count("wire") == 0


async def test_a_cancel_stops_a_body_that_computes(house: House) -> None:
    async def body(ctx: Context[House]) -> None:
        await ctx.call(refund, order="1")
        ctx.deps.in_tool.set()
        await asyncio.get_running_loop().create_future()

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.in_tool.wait()
        await run.cancel(by="kim")
        assert await rest(run) == "cancelled"
        assert [e.state for e in await run.effects()] == ["abandoned", "succeeded"]


async def test_a_step_that_a_cancel_made_unknown_can_be_settled_afterwards(house: House) -> None:
    agent, in_step = house.agent(TASK, "done", tools=[in_order((slow, {"to": "kim"}))]), barrier()
    async with house.life(agent, plan=FaultPlan().at("slow.after", fault=in_step)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_step.reached.wait()
        await run.cancel(by="kim")
        assert await rest(run) == "cancelled"
        assert [e.state for e in await run.effects()] == ["abandoned", "unknown"]
        await (await the_ask(run, "unknown_effect")).happened("seen", by="lee")
        assert [e.state for e in await run.effects()] == ["abandoned", "succeeded"]
    assert house.count("slow") == 1


@tool(effect="once")
async def slow(ctx: Context[House], to: str) -> str:
    return await ctx.deps.act(ctx, "slow", to=to)


async def test_a_clean_shutdown_ends_after_the_step_in_flight(house: House) -> None:
    agent, in_step = house.agent(TASK, "done", tools=[BOTH]), barrier()
    async with house.life(agent, plan=FaultPlan().at("refund.before", fault=in_step)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_step.reached.wait()
        closing = asyncio.create_task(life.rt.close())
        await asyncio.sleep(0)
        in_step.go_on.set()
        await closing
        assert house.count() == house.count("refund") == 1
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "completed"
        assert house.written().runs[run.id].deaths == 0
    assert house.count("refund") == house.count("letter") == 1


async def test_a_late_outcome_of_a_step_that_was_waited_for_is_evidence(house: House) -> None:
    """It arrives after the run has suspended (T6)."""
    release = asyncio.Event()

    @tool(effect="once", timeout=timedelta(seconds=5))
    async def stubborn(ctx: Context[House]) -> str:
        ctx.deps.in_tool.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ctx.deps.happened(ctx.idempotency_key, "stubborn")
        return "at last"

    agent, written = house.agent(TASK, "done", tools=[in_order((stubborn, {}))]), barrier()
    async with house.life(agent, plan=FaultPlan().at("late_outcome.after", fault=written)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.in_tool.wait()
        await house.clock.wait_for_timers()
        house.clock.advance(seconds=6)  # its time is over
        await house.clock.wait_for_timers()
        house.clock.advance(seconds=3)  # nor does it end when it is told to
        assert await rest(run) == "waiting"
        before = house.written()
        release.set()
        await written.reached.wait()
        written.go_on.set()
        while (await run.effects())[1].evidence is None:  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0)
        assert house.written().batches == before.batches
        await (await the_ask(run, "unknown_effect")).happened("at last", by="lee")
        assert await rest(run) == "completed"
    assert house.count("stubborn") == 1


# --- the session's state ----------------------------------------------------------------------------------------


@tool(effect="once")
async def marks(ctx: Context[House], by: str) -> str:
    ctx.state["last"] = by
    ctx.state[by] = ctx.state.get("first")
    return await ctx.deps.act(ctx, "marks", by=by)


async def test_the_state_that_a_body_sees_is_the_same_whenever_it_is_entered(house: House) -> None:
    seen: list[dict[str, Any]] = []

    async def body(ctx: Context[Any]) -> None:
        seen.append(dict(ctx.state))
        await ctx.call(marks, by="one")
        await ctx.call(marks, by="two")
        await ctx.call(wire, to="kim")
        ctx.state["last"] = "the body"

    agent = house.agent([call("marks", by="first")], TASK, "done", tools=[steps(body), marks])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert (await run.state())["session_state"] == {"last": "two", "first": None, "one": None, "two": None}
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
        state = (await life.rt.get_session("s")).state
    assert seen == [{"last": "first", "first": None}] * 2
    assert state == {"last": "the body", "first": None, "one": None, "two": None}


async def test_the_time_that_a_body_sees_is_the_same_whenever_it_is_entered(house: House) -> None:
    """So a time that it computes may be an argument. It is that of what the body was told last."""

    @tool(effect="once")
    async def book(ctx: Context[House], when: datetime) -> str:
        house.clock.advance(seconds=1)
        return await ctx.deps.act(ctx, "book", when=when)

    seen: list[list[datetime]] = []

    async def body(ctx: Context[Any]) -> str:
        seen.append([ctx.now()])
        await ctx.call(book, when=ctx.now() + timedelta(days=1))
        seen[-1].append(ctx.now())
        with contextlib.suppress(CallFailed):
            await ctx.call(wire, to="kim")
        seen[-1].append(ctx.now())
        await ctx.ask("sure?", schema=bool, default=True, expires=timedelta(days=1))
        seen[-1].append(ctx.now())
        await ctx.call(book, when=ctx.now())
        await ctx.ask("really?", schema=bool)
        return ctx.now().isoformat()

    agent = house.agent(TASK, "done", tools=[steps(body, approve=True)])
    start = house.clock.now()
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        house.clock.advance(hours=1)
        await (await the_ask(run)).approve(by="lee")  # of the tool itself
        assert await rest(run) == "waiting"
        house.clock.advance(hours=1)
        await (await the_ask(run)).deny(by="lee")  # of a step
        assert await rest(run) == "waiting"
    house.clock.advance(days=2)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        house.clock.advance(hours=1)
        await (await the_ask(run, "question")).answer(True)
        assert await rest(run) == "completed"
    hour, second = timedelta(hours=1), timedelta(seconds=1)
    began = start + hour
    last = [began, began + second, began + second + hour, began + second + hour + timedelta(days=2)]
    assert seen == [last[:2], last[:3], last, last]
    assert [line.arguments["when"] for line in house.ledger] == [began + timedelta(days=1), last[3]]
    assert told(house).value == (last[3] + second + hour).isoformat()


async def test_a_step_and_a_sibling_of_its_tool_do_not_overwrite_each_other(house: House) -> None:
    async def body(ctx: Context[Any]) -> str:
        await ctx.call(wire, to="kim")
        with pytest.raises(CallFailed, match="another call of the same step set last differently") as clash:
            await ctx.call(marks, by="one")
        return clash.value.state

    agent = house.agent([*TASK, call("marks", by="beside")], "done", tools=[steps(body), marks])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
        assert (await life.rt.get_session("s")).state == {"last": "beside", "beside": None}
    assert house.count("marks") == 2
    assert "succeeded" in repr(house.asked()[-1].messages)


# --- the code changed -------------------------------------------------------------------------------------------

R1, L1, W1 = (refund, {"order": "1"}), (letter, {"to": "kim"}), (wire, {"to": "kim"})


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ([L1, R1, W1], "step 0 was a call of refund, and is a call of letter"),
        ([(refund, {"order": "2"}), L1, W1], "step 0 was a call of refund, and is the same with other arguments"),
        ([R1, W1], "step 1 was a call of letter, and is a call of wire"),
        ([R1, L1], "it ended without step 2, which was a call of wire"),
        ([R1, L1, (look, {"order": "1"})], "step 2 was a call of wire, and is a call of look"),
    ],
)
async def test_code_that_does_something_else_parks_the_run_until_it_fits(
    house: House, changed: list[Any], why: str
) -> None:
    old, new = (house.agent(TASK, "done", tools=[in_order(*made)]) for made in ([R1, L1, W1], changed))
    async with house.life(old) as life:
        run = await life.rt.start(old, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
    async with house.life(new) as life:
        run = await life.rt.get_run(run.id)
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "parked"
        assert (await states(run))[1:] == [
            ("refund", "succeeded", 1), ("letter", "succeeded", 1), ("wire", "approved", 0),
        ]  # fmt: skip
        ask = await the_ask(run, "definition_changed")
        assert why in ask.question
        later = await life.rt.start(new, HELLO, session="s", operation_id="later")
        assert await rest(later) == "completed"  # it holds nobody up
        await ask.answer("resume", by="lee")
        assert await rest(await run.refresh()) == "parked"  # nothing has changed yet
    async with house.life(old) as life:
        run = await life.rt.get_run(run.id)
        await (await the_ask(run, "definition_changed")).answer("resume", by="lee")
        assert await rest(run) == "completed"
    assert [line.tool for line in house.ledger] == ["refund", "letter", "wire"]


async def test_a_tool_of_steps_whose_recorded_arguments_do_not_fit_any_more_parks_its_run(house: House) -> None:
    async def body(ctx: Context[Any], more: str) -> str:
        return await ctx.call(wire, to="kim")

    old = house.agent(TASK, "done", tools=[in_order(W1)])
    new = house.agent(TASK, "done", tools=[tool(effect="steps", name="task")(body)])
    async with house.life(old) as life:
        run = await life.rt.start(old, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
    async with house.life(new) as life:
        run = await life.rt.get_run(run.id)
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "parked"
        assert "more: Field required" in (await the_ask(run, "definition_changed")).question
    async with house.life(old) as life:
        run = await life.rt.get_run(run.id)
        await (await the_ask(run, "definition_changed")).answer("resume", by="lee")
        assert await rest(run) == "completed"
    assert house.count("wire") == 1


async def test_an_operator_may_fail_a_run_whose_code_changed(house: House) -> None:
    old, new = (house.agent(TASK, "done", tools=[in_order(*made)]) for made in ([R1, L1], [L1]))
    run_id = await house.dies(old, at="letter.after")
    async with house.life(new) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "parked"
        await (await the_ask(run, "definition_changed")).answer("fail", by="lee", reason="not worth it")
        with pytest.raises(RunFailed, match="definition_changed: not worth it"):
            await (await run.refresh()).result()
        assert await states(run) == [("task", "abandoned", 0), ("refund", "succeeded", 1), ("letter", "unknown", 1)]
        await (await the_ask(run, "unknown_effect")).happened(by="lee")


async def test_a_body_that_fails_earlier_than_before_parks_its_run_instead_of_forgetting_what_it_did(
    house: House,
) -> None:
    broken = [False]

    async def body(ctx: Context[Any]) -> str:
        if broken[0]:
            raise OSError("no network")
        await ctx.call(refund, order="1")
        return await ctx.call(wire, to="kim")

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        broken[0] = True
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "parked"
        ask = await the_ask(run, "definition_changed")
        assert "it ended without step 0, which was a call of refund (OSError: no network)" in ask.question
        broken[0] = False
        await ask.answer("resume", by="lee")
        assert await rest(run) == "completed"
    assert house.count("refund") == house.count("wire") == 1


@pytest.mark.parametrize("crashed_at", ["letter.after", "started.before"])
async def test_a_tool_of_steps_that_is_gone_fails_after_its_steps_are_settled(house: House, crashed_at: str) -> None:
    lost = crashed_at == "letter.after"
    old, new = house.agent(TASK, "sorry", tools=[BOTH]), house.agent(TASK, "sorry", tools=[look])
    run_id = await house.dies(old, at=crashed_at, nth=1 if lost else 2)
    async with house.life(new) as life:
        run = await life.rt.get_run(run_id)
        if lost:
            assert await rest(run) == "waiting"
            assert await states(run) == [("task", "planned", 0), ("refund", "succeeded", 1), ("letter", "unknown", 1)]
            await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
        assert [e.state for e in await run.effects()] == ["failed", "succeeded", "succeeded" if lost else "failed"]
    done = "refund, letter" if lost else "refund"
    assert told(house).value == f"the tool 'task' is no longer available (done by then: {done})"


async def test_where_the_operator_says_so_a_tool_of_steps_that_is_gone_parks_its_run(house: House) -> None:
    old, new = house.agent(TASK, "done", tools=[BOTH]), house.agent(TASK, "done", tools=[look])
    run_id = await house.dies(old, at="letter.before")
    async with house.life(new, missing_tool="park") as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "parked"
        assert await states(run) == [("task", "planned", 0), ("refund", "succeeded", 1), ("letter", "started", 1)]
    async with house.life(old, missing_tool="park") as life:
        run = await life.rt.get_run(run_id)
        await (await the_ask(run, "definition_changed")).answer("resume", by="lee")
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).not_happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("refund") == house.count("letter") == 1


@pytest.mark.parametrize("now", ["read", "once"])
async def test_a_tool_that_is_no_tool_of_steps_any_more_is_not_called(house: House, now: Any) -> None:
    async def task(ctx: Context[House]) -> str:
        return await ctx.deps.act(ctx, "task")

    old, new = house.agent(TASK, "sorry", tools=[BOTH]), house.agent(TASK, "sorry", tools=[tool(effect=now)(task)])
    run_id = await house.dies(old, at="outcome.after")
    async with house.life(new) as life:
        assert await rest(await life.rt.get_run(run_id)) == "completed"
    assert told(house).value == f"task is declared {now} now, not steps: call it again (done by then: refund)"
    assert house.count("task") == 0


@pytest.mark.parametrize("missing", ["refuse", "park"])
async def test_a_tool_that_is_no_tool_of_steps_any_more_fails_after_its_steps_are_settled(
    house: House, missing: Any
) -> None:
    async def task(ctx: Context[House]) -> str:
        return await ctx.deps.act(ctx, "task")

    old, new = house.agent(TASK, "sorry", tools=[BOTH]), house.agent(TASK, "sorry", tools=[tool(effect="once")(task)])
    run_id = await house.dies(old, at="letter.after")
    async with house.life(new, missing_tool=missing) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        assert await states(run) == [("task", "planned", 0), ("refund", "succeeded", 1), ("letter", "unknown", 1)]
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    said = "task is declared once now, not steps: call it again (done by then: refund, letter)"
    assert told(house).value == said


async def test_arguments_that_do_not_fit_any_more_park_a_tool_of_steps_that_has_begun(house: House) -> None:
    def agent_of(type_: type) -> Any:
        async def task(ctx: Context[Any], who: Any) -> str:
            await ctx.call(refund, order="1")
            return await ctx.call(letter, to="kim")

        task.__annotations__["who"] = type_
        return house.agent([call("task", who="kim")], "done", tools=[tool(effect="steps")(task)])

    run_id = await house.dies(agent_of(str), at="letter.before")
    async with house.life(agent_of(int)) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "parked"
        assert "the arguments of task do not fit" in (await the_ask(run, "definition_changed")).question
        assert await states(run) == [("task", "planned", 0), ("refund", "succeeded", 1), ("letter", "started", 1)]
    async with house.life(agent_of(str)) as life:
        run = await life.rt.get_run(run_id)
        await (await the_ask(run, "definition_changed")).answer("resume", by="lee")
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).not_happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("refund") == house.count("letter") == 1


def denies(*tools: str) -> Callable[[PolicyCall], Allow | Deny]:
    return lambda wanted: Deny("not in March") if wanted.tool in tools else Allow()


async def test_a_policy_looks_at_each_step_and_not_again_at_a_tool_that_has_begun(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[BOTH])
    run_id = await house.dies(agent, at="letter.before")
    async with house.life(agent, policy=denies("task", "letter")) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"  # for the letter that may have been sent before the policy was there
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
        again = await life.rt.start(agent, "go", session="s", operation_id="again")
        assert await rest(again) == "completed"
        assert [e.state for e in await again.effects()] == ["failed"]

    async with house.life(agent, policy=denies("letter")) as life:
        third = await life.rt.start(agent, "go", session="s", operation_id="third")
        assert await rest(third) == "completed"
        assert [e.state for e in await third.effects()] == ["failed", "succeeded", "failed"]
    assert "letter: " in told(house).text
    assert "not in March" in told(house).text
    assert house.count("letter") == 0
    house.checked = False  # the first letter was not sent, whatever the person said


# --- more than one ----------------------------------------------------------------------------------------------


async def test_two_tools_of_steps_work_beside_each_other(house: House) -> None:
    async def one(ctx: Context[Any]) -> list[str]:
        return [await ctx.call(refund, order=f"{n}") for n in range(5)]

    async def other(ctx: Context[Any]) -> list[str]:
        return [await ctx.call(mail, to=f"{n}") for n in range(5)]

    agent = house.agent([call("one"), call("other")], "done", tools=[steps(one, "one"), steps(other, "other")])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        made = await run.effects()
        assert [e.arguments for e in made if e.parent == made[0].id] == [{"order": f"{n}"} for n in range(5)]
        assert [e.arguments for e in made if e.parent == made[1].id] == [{"to": f"{n}"} for n in range(5)]
    assert house.count("refund") == house.count("mail") == 5


async def test_a_tool_of_steps_may_call_another(house: House) -> None:
    async def inner(ctx: Context[Any]) -> str:
        await ctx.call(refund, order="1")
        return await ctx.call(wire, to="kim")

    nested = steps(inner, "inner")

    async def outer(ctx: Context[Any]) -> str:
        before = await ctx.call(look, order="1")
        return f"{before}, {await ctx.call(nested)}, {await ctx.call(mail, to='lee')}"

    agent = house.agent(TASK, "done", tools=[steps(outer)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert [e.state for e in await run.effects()] == ["planned", "succeeded", "planned", "succeeded", "asked"]
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
        task, _, inside, *_ = made = await run.effects()
        assert [e.parent for e in made] == [None, task.id, task.id, inside.id, inside.id, task.id]
    assert told(house).value == "look done, wire done, mail done"
    assert [line.tool for line in house.ledger] == ["look", "refund", "wire", "mail"]


async def test_a_tool_of_steps_that_calls_itself_without_end_is_refused(house: House) -> None:
    async def body(ctx: Context[Any]) -> str:
        await ctx.call(refund, order=str(len(house.ledger)))
        return await ctx.call(itself[0])

    itself = [steps(body)]
    agent = house.agent(TASK, "sorry", tools=itself)
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
    assert "task is not called: 20 tools of steps are inside each other" in told(house).text
    assert house.count("refund") == 20


async def test_a_decision_that_comes_while_the_body_works_is_read_before_its_next_write(house: House) -> None:
    agent, in_step = house.agent([*TASK, call("wire", to="kim")], "done", tools=[BOTH, wire]), barrier()
    async with house.life(agent, plan=FaultPlan().at("refund.before", fault=in_step)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_step.reached.wait()
        await (await the_ask(run)).approve(by="lee")
        in_step.go_on.set()
        assert await rest(run) == "completed"
    assert sorted(line.tool for line in house.ledger) == ["letter", "refund", "wire"]
