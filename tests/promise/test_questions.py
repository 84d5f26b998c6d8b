"""Free questions of tools of steps: asked once, answered with a value that fits, expired by the clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field

from ondol import (
    AlreadyDecided,
    Ask,
    AskClosed,
    CallFailed,
    Context,
    InvalidInput,
    Run,
    RunExpired,
    Runtime,
    Secret,
    Tool,
    ToolResponse,
    tool,
    values,
)
from ondol.testing import FaultPlan, barrier, call
from ondol.transactions import Decision
from promise.house import HELLO, House, kinds, letter, notes, refund, rest, states, the_ask, wire

TASK = [call("task")]


def steps(body: Callable[[Context[Any]], Awaitable[Any]], **declared: Any) -> Tool[..., Any]:
    async def task(ctx: Context[Any]) -> Any:
        return await body(ctx)

    return tool(effect="steps", name="task", **declared)(task)


def asks(question: str = "Shall we?", **options: Any) -> Tool[..., Any]:
    """A tool of steps that pays, asks, and gives back the answer."""

    async def body(ctx: Context[Any]) -> str:
        await ctx.call(refund, order="1")
        return repr(await ctx.ask(question, **options))

    return steps(body)


async def asked(rt: Runtime, agent: Any, said: str = "go", operation: str = "op", **options: Any) -> tuple[Run, Ask]:
    run = await rt.start(agent, said, session="s", operation_id=operation, **options)
    assert await rest(run) == "waiting"
    return run, await the_ask(run, "question")


def told(house: House) -> ToolResponse:
    part = house.asked()[-1].messages[-1].parts[-1]
    assert isinstance(part, ToolResponse)
    return part


# --- asked and answered -----------------------------------------------------------------------------------------


async def test_a_question_waits_for_the_sessions_user_with_its_words_schema_and_default(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(schema=bool, default=False, expires=timedelta(days=2))])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent, user="kim")
        assert (ask.kind, ask.question, ask.user, ask.tool) == ("question", "Shall we?", "kim", None)
        assert (ask.schema, ask.default, ask.has_default, ask.value) == ({"type": "boolean"}, False, True, None)
        assert ask.expires_at == house.clock.now() + timedelta(days=2)
        assert ask.effect == (await run.effects())[0].id
        assert await life.rt.asks(user="kim") == [ask]
        answered = await ask.answer(True, by="kim")
        assert (answered.state, answered.decision, answered.value) == ("decided", "answer", True)
        assert await rest(run) == "completed"
        opened, decided = [e.data for e in [e async for e in run.events()] if e.type in ("ask.opened", "ask.decided")]
        assert (opened["ask_kind"], opened["place"]) == ("question", 1)
        assert (decided["decision"], decided["value"], decided["by"]) == ("answer", True, "kim")
        assert [(a.act, a.by) for a in await life.rt.audit()] == [("ask.answer", "kim")]
    assert told(house).value == "True"
    assert house.count("refund") == 1


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


class Colour(Enum):
    RED = "red"


class Order(BaseModel):
    amount: Decimal
    due: date | None = None


@pytest.mark.parametrize(
    ("schema", "said", "given", "wrong"),
    [
        (str, "yes", "yes", 5),
        (str, "", "", None),
        (bool, False, False, "no"),
        (int, 0, 0, True),
        (int | None, None, None, "x"),
        (Literal["a", "b"], "b", "b", "c"),
        (Colour, Colour.RED, Colour.RED, "green"),
        (Colour, "red", Colour.RED, 1),
        (Decimal, Decimal("0.10"), Decimal("0.10"), "much"),
        (date, date(2026, 3, 1), date(2026, 3, 1), "tomorrow"),
        (Order, Order(amount=Decimal(3)), Order(amount=Decimal(3)), {"due": "2026-03-01"}),
        (Order, {"amount": "3", "due": "2026-03-01"}, Order(amount=Decimal(3), due=date(2026, 3, 1)), {"amount": []}),
        (list[Annotated[int, Field(ge=1)]], [1, 2], [1, 2], [0]),
        (int, 2**70, 2**70, 2.5),
        (str, "a\0b", "a\0b", "a \ud800 b"),
        (Annotated[Decimal, Field(le=10)], Decimal("0.10"), Decimal("0.10"), Decimal("10.01")),
        (dict[date, int], {date(2026, 3, 1): 1}, {date(2026, 3, 1): 1}, {"soon": 1}),
        (Any, math.inf, math.inf, nested(150)),
        (Any, {"\0": ["\0"]}, {"\0": ["\0"]}, {"a": [{"b": "\udfff"}]}),
        (dict[str, Any], {"😀": "\ud83d\ude00"}, {"😀": "😀"}, {"\ud83d": 1}),
    ],
)
async def test_an_answer_that_does_not_fit_is_refused_at_once_and_one_that_fits_comes_as_its_type(
    house: House, schema: Any, said: Any, given: Any, wrong: Any
) -> None:
    seen: list[Any] = []

    async def body(ctx: Context[Any]) -> None:
        seen.append(await ctx.ask("What?", schema=schema))

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        _, ask = await asked(life.rt, agent)
    async with house.life() as life:  # a process that has neither the agent nor the type
        ask = await life.rt.get_ask(ask.id)
        with pytest.raises(InvalidInput, match=r"does not answer|half of a character|no JSON form"):
            await ask.answer(wrong, by="lee")
        assert (await life.rt.get_ask(ask.id)).state == "open"
        await ask.answer(said, by="lee")
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(ask.run)) == "completed"
    assert seen == [given]
    assert type(seen[0]) is type(given)


class Moody:
    @classmethod
    def __get_pydantic_core_schema__(cls, *given: Any) -> Any:
        raise SystemExit("not today")


@pytest.mark.parametrize("schema", [object(), {"type": "string"}, Moody])
async def test_what_is_no_type_is_refused_in_the_tool_and_the_run_goes_on(house: House, schema: Any) -> None:
    seen: list[str] = []

    async def body(ctx: Context[Any]) -> str:
        try:
            await ctx.ask("What?", schema=schema)
        except InvalidInput as error:
            seen.append(str(error))
        return "nothing was asked"

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "completed"
        assert await life.rt.asks() == []
    (why,) = seen
    assert "is no type that a person can answer with" in why


async def test_what_has_no_json_form_is_no_answer(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(schema=Any)])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        for formless in (object(), nested(150)):
            with pytest.raises(InvalidInput, match="no JSON form"):
                await ask.answer(formless, by="lee")
        with pytest.raises(InvalidInput, match="no value of JSON"):
            await life.rt.decide(ask, Decision(kind="answer", value=values.encode(nested(150))), by="lee")
        await ask.answer({"any": ["thing", None]}, by="lee")
        assert await rest(run) == "completed"
    assert told(house).value == "{'any': ['thing', None]}"


async def test_a_question_is_answered_once(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(schema=int)])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        first = await ask.answer(1, by="lee")
        assert await ask.answer(1, by="park") == first
        for other in (2, 0):
            with pytest.raises(AlreadyDecided, match="lee"):
                await ask.answer(other, by="park")
        assert await rest(run) == "completed"
    assert told(house).value == "1"


async def test_true_is_another_answer_than_one(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(schema=bool | int)])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        await ask.answer(True, by="lee")
        with pytest.raises(AlreadyDecided):
            await ask.answer(1, by="lee")
        assert await rest(run) == "completed"
    assert told(house).value == "True"


async def test_an_answer_with_its_keys_in_another_order_is_the_same_answer(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(schema=dict[str, Any])])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        first = await ask.answer({"street": "Main", "at": {"number": 1, "floor": 2}}, by="lee")
        assert await ask.answer({"at": {"floor": 2, "number": 1}, "street": "Main"}, by="park") == first
        assert await rest(run) == "completed"


@pytest.mark.parametrize("verb", ["approve", "deny", "happened", "give_up"])
async def test_a_question_takes_an_answer_and_nothing_else(house: House, verb: str) -> None:
    agent = house.agent(TASK, "done", tools=[asks()])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        with pytest.raises(InvalidInput, match="say answer"):
            await getattr(ask, verb)(by="lee")
        assert (await life.rt.get_ask(ask.id)).state == "open"
        await ask.answer("fine", by="lee")
        assert await rest(run) == "completed"


async def test_two_questions_and_the_calls_between_them_are_each_done_once(house: House) -> None:
    entered: list[int] = []

    async def body(ctx: Context[Any]) -> str:
        entered.append(len(entered))
        await ctx.call(refund, order="1")
        if not await ctx.ask("ok?", schema=bool):
            return "no"
        await ctx.call(refund, order="2")
        if await ctx.ask("sure?", schema=bool):
            await ctx.call(letter, to="kim")
        return "yes"

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        assert ask.question == "ok?"
        await ask.answer(True, by="lee")
        assert await rest(run) == "waiting"
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        ask = await the_ask(run, "question")
        assert ask.question == "sure?"
        await ask.answer(True, by="lee")
        assert await rest(run) == "completed"
    assert [line.tool for line in house.ledger] == ["refund", "refund", "letter"]
    assert entered == [0, 1, 2]


async def test_an_answer_that_comes_before_the_run_waits_is_not_lost(house: House) -> None:
    """A sibling still works, so the run has not suspended."""

    @tool(effect="idempotent")
    async def slow(ctx: Context[House]) -> str:
        return await ctx.deps.act(ctx, "slow")

    agent, in_slow = house.agent([*TASK, call("slow")], "done", tools=[asks(schema=int), slow]), barrier()
    async with house.life(agent, plan=FaultPlan().at("slow.before", fault=in_slow)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_slow.reached.wait()
        async for event in run.events():
            if event.type == "ask.opened":
                break
        await (await the_ask(run, "question")).answer(3, by="lee")
        async for event in run.events():
            if event.type == "effect.succeeded" and event.data["tool"] == "task":
                break
        in_slow.go_on.set()
        assert await rest(run) == "completed"
        assert "run.waiting" not in await kinds(run)


@pytest.mark.parametrize("at", ["open_question.before", "open_question.after", "suspend.before", "suspend.after"])
async def test_a_question_is_there_once_wherever_the_process_died(house: House, at: str) -> None:
    agent = house.agent(TASK, "done", tools=[asks(schema=int)])
    run_id = await house.dies(agent, at=at)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        (ask,) = await life.rt.asks(state=None)
        await ask.answer(7, by="lee")
        assert await rest(run) == "completed"
    assert told(house).value == "7"
    assert house.count("refund") == 1


# --- in time, or not --------------------------------------------------------------------------------------------


async def test_a_question_that_nobody_answered_in_time_has_its_default(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(schema=Colour, default=Colour.RED, expires=timedelta(days=2))])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        await house.clock.wait_for_timers()
        house.clock.advance(days=2)
        await run.result(through_asks=True)
        ask = await life.rt.get_ask(ask.id)
        assert (ask.state, ask.value) == ("expired", "red")
        expired = [e async for e in run.events() if e.type == "ask.expired"]
        assert [e.data["value"] for e in expired] == ["red"]
        with pytest.raises(AlreadyDecided):
            await ask.answer("red", by="lee")
        assert not await life.rt.audit()  # no person did this
    assert told(house).value == "<Colour.RED: 'red'>"


async def test_null_is_a_default_too(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(schema=int | None, default=None, expires=timedelta(days=2))])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        assert ask.has_default
    house.clock.advance(days=3)
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(run.id)) == "completed"
    assert told(house).value == "None"


async def test_without_a_default_the_run_ends_expired_and_its_session_goes_on(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(expires=timedelta(days=2))])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        behind = await life.rt.start(agent, HELLO, session="s", user="lee", operation_id="behind")
        await house.clock.wait_for_timers()
        house.clock.advance(days=2)
        with pytest.raises(RunExpired, match=f"{ask.id} was not answered in time.*start a new operation"):
            await run.result(through_asks=True)
        assert await rest(behind) == "completed"
        assert (await life.rt.get_ask(ask.id)).state == "expired"
        assert await states(run) == [("task", "abandoned", 0), ("refund", "succeeded", 1)]
        assert (await kinds(run))[-2:] == ["effect.abandoned", "run.expired"]
        assert (run.status, run.error) == (
            "expired", {"code": "expired", "message": f"question {ask.id} was not answered in time"},
        )  # fmt: skip
        (note,) = notes(house.asked(behind)[0])
        assert "refund" in note
        assert "(expired)" in note
        again = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert (again.id, again.status) == (run.id, "expired")  # the stored end
    assert house.count("refund") == 1


async def test_a_run_whose_question_expires_while_a_sibling_works_ends_after_that(house: House) -> None:
    @tool(effect="idempotent", timeout=timedelta(days=9))
    async def slow(ctx: Context[House]) -> str:
        return await ctx.deps.act(ctx, "slow")

    agent = house.agent([*TASK, call("slow")], "done", tools=[asks(expires=timedelta(days=2)), slow])
    in_slow = barrier()
    async with house.life(agent, plan=FaultPlan().at("slow.before", fault=in_slow)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_slow.reached.wait()
        async for event in run.events():
            if event.type == "ask.opened":
                break
        house.clock.advance(days=3)
        life.engine.changed()  # as when another process wrote something: it looks around
        async for event in run.events():
            if event.type == "ask.expired":
                break
        in_slow.go_on.set()
        assert await rest(run) == "expired"
        assert await states(run) == [
            ("task", "abandoned", 0), ("slow", "succeeded", 1), ("refund", "succeeded", 1),
        ]  # fmt: skip
    assert len(house.asked()) == 1


async def test_a_question_that_expired_while_no_process_was_there_expires_at_the_next_start(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(expires=timedelta(days=2))])
    async with house.life(agent) as life:
        run, _ = await asked(life.rt, agent)
        behind = await life.rt.start(agent, HELLO, session="s", user="lee", operation_id="behind")
    house.clock.advance(days=3)
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(run.id)) == "expired"
        assert await rest(await life.rt.get_run(behind.id)) == "completed"


async def test_an_answer_in_time_is_not_undone_by_the_clock(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(schema=int, default=1, expires=timedelta(days=2))])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        house.clock.advance(days=1)
        await ask.answer(2, by="lee")
        house.clock.advance(days=2)
        assert await rest(run) == "completed"
    assert told(house).value == "2"


# --- closed -----------------------------------------------------------------------------------------------------


async def test_a_question_that_is_open_when_its_run_is_cancelled_is_closed(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks(default="x", expires=timedelta(days=2))])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        await house.clock.wait_for_timers()
        await run.cancel(by="kim")
        assert await rest(await run.refresh()) == "cancelled"
        with pytest.raises(AskClosed):
            await ask.answer("late", by="lee")
        house.clock.advance(days=3)
        life.engine.changed()
        later = await life.rt.start(agent, HELLO, session="s", operation_id="later")
        assert await rest(later) == "completed"
        assert (await life.rt.get_ask(ask.id)).state == "closed"


async def test_a_cancel_that_comes_first_asks_nothing(house: House) -> None:
    agent, opening = house.agent(TASK, "done", tools=[asks()]), barrier()
    async with house.life(agent, plan=FaultPlan().at("open_question.before", fault=opening)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await opening.reached.wait()
        await run.cancel(by="kim")
        opening.go_on.set()
        assert await rest(run) == "cancelled"
        assert not await life.rt.asks(state=None)


async def test_a_deleted_session_keeps_no_word_of_its_questions(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asks("Whose?", schema=Literal["kim", "lee"])])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        await ask.answer("kim", by="lee")
        assert await rest(run) == "completed"
        await (await life.rt.get_session("s")).delete()
        kept = await life.rt.get_ask(ask.id)
        assert (kept.question, kept.schema, kept.value) == ("", None, None)
    house.checked = False  # its journal is gone


# --- what a body may ask ----------------------------------------------------------------------------------------


async def test_what_cannot_be_asked_raises_and_nothing_is_recorded(house: House) -> None:
    async def body(ctx: Context[Any]) -> str:
        wrong: list[dict[str, Any]] = [
            {"schema": int, "default": "x", "expires": timedelta(days=1)},
            {"schema": int, "default": 1},
            {"default": "a \ud800 b", "expires": timedelta(days=1)},
            {"schema": Any, "default": {"\udfff": 1}, "expires": timedelta(days=1)},
            {"schema": Any, "default": nested(150), "expires": timedelta(days=1)},
            {"expires": timedelta(0)},
            {"expires": timedelta(days=10_000)},
            {"expires": 3},
            {"schema": 5},
            {"schema": asyncio.Event},
        ]
        for options in wrong:
            with pytest.raises(InvalidInput):
                await ctx.ask("What?", **options)
        with pytest.raises(InvalidInput):
            await ctx.ask("  ")
        with pytest.raises(InvalidInput):
            await ctx.ask(5)  # type: ignore[call-overload]
        return await ctx.ask("What?")

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        assert ask.id.endswith("_0q0")
        await ask.answer("that", by="lee")
        assert await rest(run) == "completed"
    assert told(house).value == "that"


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_in_any_other_class_a_question_raises_before_anything_happens(house: House, effect: Any) -> None:
    async def task(ctx: Context[Any]) -> str:
        with pytest.raises(InvalidInput, match=r"ctx\.ask is for tools of steps"):
            ctx.ask("May I?")
        return "no"

    agent = house.agent(TASK, "done", tools=[tool(effect=effect)(task)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert not await life.rt.asks(state=None)
    house.checked = False  # this tool writes to no ledger


async def test_a_validator_of_ones_own_refuses_where_the_answer_is_used_and_the_body_may_ask_again(
    house: House,
) -> None:
    def even(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n

    async def body(ctx: Context[Any]) -> int:
        even_number = Annotated[int, AfterValidator(even)]
        with pytest.raises(InvalidInput, match="it does not fit: the answer: Value error, odd"):
            await ctx.ask("An even number?", schema=even_number)
        answer: int = await ctx.ask("An even number, please?", schema=even_number)
        return answer

    agent = house.agent(TASK, "done", tools=[steps(body)])
    async with house.life(agent) as life:
        run, ask = await asked(life.rt, agent)
        await ask.answer(3, by="lee")
        assert await rest(run) == "waiting"
        await (await the_ask(run, "question")).answer(4, by="lee")
        assert await rest(run) == "completed"
    assert told(house).value == 4


# --- the code changed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (asks("Shall I?", schema=bool), "step 1 was a question, and is another one, or for another type"),
        (asks(schema=int), "step 1 was a question, and is another one, or for another type"),
        (steps(lambda ctx: ctx.call(refund, order="1")), "it ended without step 1, which was a question"),
    ],
)
async def test_another_question_parks_the_run_until_the_code_fits(
    house: House, changed: Tool[..., Any], why: str
) -> None:
    old, new = (house.agent(TASK, "done", tools=[t]) for t in (asks(schema=bool), changed))
    async with house.life(old) as life:
        run, ask = await asked(life.rt, old)
    async with house.life(new) as life:
        await (await life.rt.get_ask(ask.id)).answer(True, by="lee")
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "parked"
        parked = await the_ask(run, "definition_changed")
        assert why in parked.question
    async with house.life(old) as life:
        await (await life.rt.get_ask(parked.id)).answer("resume", by="lee")
        assert await rest(await life.rt.get_run(run.id)) == "completed"
    assert told(house).value == "True"


async def test_a_call_in_the_place_of_a_question_parks_the_run_and_the_other_way_round(house: House) -> None:
    async def calls(ctx: Context[Any]) -> str:
        await ctx.call(refund, order="1")
        return await ctx.call(wire, to="kim")

    old, new = (house.agent(TASK, "done", tools=[t]) for t in (asks(), steps(calls)))
    for first, then, why in (
        (old, new, "step 1 was a question, and is a call of wire"),
        (new, old, "step 1 was a call of wire, and is a question"),
    ):
        async with house.life(first) as life:
            run = await life.rt.start(first, "go", session=why[:20], operation_id=why)
            assert await rest(run) == "waiting"
            (ask,) = await run.asks()
        async with house.life(then) as life:
            ask = await life.rt.get_ask(ask.id)
            await (ask.answer("yes", by="lee") if ask.kind == "question" else ask.deny(by="lee"))
            run = await life.rt.get_run(run.id)
            assert await rest(run) == "parked"
            parked = await the_ask(run, "definition_changed")
            assert why in parked.question
            await parked.answer("fail", by="lee")
    assert house.count("wire") == 0


async def test_a_parked_run_with_an_open_question_may_be_answered_and_stays_parked(house: House) -> None:
    """Its sibling's tool is gone: that parks it. The question of the tool of steps can be answered all the same."""
    both = [*TASK, call("wire", to="kim")]
    old, new = (house.agent(both, "done", tools=[asks(schema=int), *more]) for more in ([wire], []))
    async with house.life(old) as life:
        run, _ = await asked(life.rt, old)
    async with house.life(new, missing_tool="park") as life:
        run = await life.rt.get_run(run.id)
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "parked"
        await (await the_ask(run, "question")).answer(5, by="lee")
        assert (await run.refresh()).status == "parked"
        parked = await the_ask(run, "definition_changed")
    async with house.life(old, missing_tool="park") as life:
        await (await life.rt.get_ask(parked.id)).answer("resume", by="lee")
        assert await rest(await life.rt.get_run(run.id)) == "completed"
    assert house.count("wire") == house.count("refund") == 1


def test_what_went_wrong_with_a_call_can_be_told_from_other_exceptions() -> None:
    error = CallFailed("wire: no", tool="wire", state="denied")
    assert (error.tool, error.state, str(error), error.code) == ("wire", "denied", "wire: no", "call_failed")


@pytest.mark.file
@pytest.mark.parametrize(
    "options",
    [
        {"schema": str, "default": "open sesame", "expires": timedelta(hours=1)},
        {"schema": Annotated[str, Field(description="not open sesame")]},
    ],
)
async def test_a_question_that_would_record_a_secret_is_not_asked(house: House, options: dict[str, Any]) -> None:
    Secret("open sesame")
    agent = house.agent(TASK, "done", tools=[asks(**options)])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "completed"
        assert await run.asks(state=None) == []
    assert told(house).error
    assert "holds a secret" in str(told(house).value)
    assert b"open sesame" not in house.file.read_bytes()


async def test_the_words_of_a_question_are_recorded_without_a_secret(house: House) -> None:
    Secret("open sesame")
    agent = house.agent(TASK, "done", tools=[asks("Is it open sesame?", schema=bool)])
    async with house.life(agent) as life:
        _, ask = await asked(life.rt, agent)
        assert ask.question == "Is it [secret]?"
        await ask.answer(True, by="kim")
        assert await rest(await life.rt.get_run(ask.run)) == "completed"
