"""Questions to people: bound to one effect and its exact arguments, decided once (B10, B11, T7; ground rule 7.3)."""

from __future__ import annotations

import asyncio
import enum
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any

import pytest
from kit import results
from pydantic import BaseModel, Field, SecretStr

from ondol import (
    AlreadyDecided,
    Ask,
    AskClosed,
    By,
    Context,
    InvalidInput,
    NotFound,
    Run,
    RunWaiting,
    StoreFull,
    tool,
    transactions,
)
from ondol.clock import to_micros
from ondol.stores import open_store
from ondol.testing import FaultPlan, barrier, call, raise_
from ondol.transactions import Decision
from promise.house import HELLO, House, kinds, letter, look, rest, states, the_ask, wire

WIRE = [call("wire", to="kim")]


async def waiting(life: Any, agent: Any, said: str = "go", operation: str = "op") -> tuple[Run, Ask]:
    run = await life.rt.start(agent, said, session="s", operation_id=operation)
    assert await rest(run) == "waiting"
    return run, (await run.asks())[0]


async def test_all_that_a_run_asks_can_be_decided_one_after_the_other(house: House) -> None:
    agent = house.agent([call("wire", to=f"{n}") for n in range(101)], "done")
    async with house.life(agent) as life:
        run, _ = await waiting(life, agent)
        asked = await run.asks()
        with pytest.raises(RunWaiting) as waits:
            await run.result()
        assert waits.value.asks == tuple(ask.id for ask in asked)
        for ask in asked:
            await ask.deny(by="lee")
        assert await rest(run) == "completed"
        assert len(await run.asks(state=None)) == 101


def said_to_model(house: House, run: Run) -> str:
    """What the last request of the run says about its last calls."""
    return str(house.asked(run)[-1].messages[-1].parts)


# --- what is asked ----------------------------------------------------------------------------------------------


async def test_an_ask_shows_the_exact_arguments_and_nothing_has_happened_yet(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        (effect,) = await run.effects()
        assert (ask.kind, ask.state, ask.tool, ask.arguments) == ("approval", "open", "wire", {"to": "kim"})
        assert (ask.effect, ask.run, ask.session) == (effect.id, run.id, "s")
        assert ask.expires_at is None
        assert effect.state == "asked"
    assert house.count() == 0


async def test_the_ask_is_there_as_soon_as_the_answer_is(house: House) -> None:
    agent = house.agent(WIRE, "done")
    run_id = await house.dies(agent, at="answer.after")
    (ask,) = house.written().asks
    assert (ask.kind, ask.state, ask.run) == ("approval", "open", run_id)
    async with house.life(agent) as life:
        await (await life.rt.get_ask(ask.id)).approve(by="lee")
        assert await rest(await life.rt.get_run(run_id)) == "completed"
    assert house.count("wire") == 1


async def test_a_predicate_decides_over_the_arguments_and_one_that_raises_means_ask(house: House) -> None:
    def large(amount: int) -> bool:
        return 1 / amount < 0.05

    @tool(effect="once", approve=large)
    async def pay(ctx: Context[House], amount: int) -> str:
        return await ctx.deps.act(ctx, "pay", amount=amount)

    agent = house.agent([call("pay", amount=1), call("pay", amount=100), call("pay", amount=0)], "done", tools=[pay])
    async with house.life(agent) as life:
        run, _ = await waiting(life, agent)
        assert [e.state for e in await run.effects()] == ["succeeded", "asked", "asked"]
        assert [a.arguments["amount"] for a in await run.asks()] == [100, 0]
        for ask in await run.asks():
            await ask.deny(by="lee")
        assert await rest(run) == "completed"
    assert [line.arguments["amount"] for line in house.ledger] == [1]


async def test_words_in_the_chat_approve_nothing(house: House) -> None:
    agent = house.agent(WIRE, "done")
    house.answers("I approve it", "thank you")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        words = await life.rt.start(agent, "I approve it", session="s", operation_id="words")
        assert (await words.refresh()).status == "queued"
        assert (await life.rt.get_ask(ask.id)).state == "open"
        assert house.count() == 0
        await ask.deny(by="lee")
        assert await rest(run) == await rest(words) == "completed"
    assert house.count() == 0


# --- decided once -----------------------------------------------------------------------------------------------


async def test_b11_an_approved_call_runs_once_with_what_was_shown(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        decided = await ask.approve(by="lee")
        assert (decided.state, decided.decision, decided.decided_by) == ("decided", "approve", "lee")
        assert await rest(run) == "completed"
        assert await states(run) == [("wire", "succeeded", 1)]
    assert [line.arguments for line in house.ledger] == [{"to": "kim"}]


async def test_b11_the_same_decision_again_returns_the_stored_one_and_changes_nothing(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        first = await ask.approve(by="lee")
        assert await rest(run) == "completed"
        before = house.written()
        house.clock.advance(minutes=1)
        second = await ask.approve(by="park")
        assert (second.decided_by, second.decided_at) == ("lee", first.decided_at)
        assert house.written() == before
        assert len(await life.rt.audit()) == 1
    assert house.count("wire") == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Decision(kind="approve"), Decision(kind="deny")),
        (Decision(kind="deny"), Decision(kind="approve")),
        (Decision(kind="approve"), Decision(kind="approve", arguments={"to": "lee"})),
        (Decision(kind="approve", arguments={"to": "lee"}), Decision(kind="approve", arguments={"to": "park"})),
    ],
)
async def test_b11_another_decision_is_refused(house: House, first: Decision, second: Decision) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        await life.rt.decide(ask, first, by="lee")
        with pytest.raises(AlreadyDecided, match="lee"):
            await life.rt.decide(ask, second, by="park")
        assert await rest(run) == "completed"
        assert (await life.rt.get_ask(ask.id)).decided_by == "lee"
        assert len(await life.rt.audit()) == 1


async def test_b11_true_in_edited_arguments_is_another_decision_than_one(house: House) -> None:
    @tool(approve=True)
    async def set_to(ctx: Context[House], value: object) -> str:
        return await ctx.deps.act(ctx, "set_to", value=value)

    agent = house.agent([call("set_to", value=0)], "done", tools=[set_to])
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        await ask.approve(by="lee", arguments={"value": True})
        assert (await ask.approve(by="park", arguments={"value": True})).decided_by == "lee"
        with pytest.raises(AlreadyDecided, match="lee"):
            await ask.approve(by="park", arguments={"value": 1})
        assert await rest(run) == "completed"


async def test_b11_of_two_who_decide_at_once_one_is_told_that_the_other_was_first(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        said = await asyncio.gather(ask.approve(by="lee"), ask.deny(by="park"), return_exceptions=True)
        (refused,) = [s for s in said if isinstance(s, AlreadyDecided)]
        (decided,) = [s for s in said if isinstance(s, Ask)]
        assert decided.decided_by in str(refused)
        assert await rest(run) == "completed"
    assert house.count("wire") == (decided.decision == "approve")


async def test_b11_a_person_who_goes_away_before_the_reply_has_decided_all_the_same(house: House) -> None:
    agent, replying = house.agent(WIRE, "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("decide.after", fault=replying)) as life:
        run, ask = await waiting(life, agent)
        person = asyncio.create_task(ask.approve(by="lee"))
        await replying.reached.wait()
        person.cancel()
        with pytest.raises(asyncio.CancelledError):
            await person
        assert await rest(run) == "completed"
    assert house.count("wire") == 1


async def test_a_denial_is_told_to_the_model_with_its_reason_and_the_run_goes_on(house: House) -> None:
    agent = house.agent(WIRE, "I see")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        await ask.deny(by="lee", reason="not this month")
        assert (await run.result()).text == "I see"
        assert await states(run) == [("wire", "denied", 0)]
        assert "not this month" in said_to_model(house, run)
    assert house.count() == 0


async def test_an_answer_that_the_ask_does_not_know_is_refused_and_it_stays_open(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        wrong = (ask.happened(), ask.not_happened(), ask.give_up(), ask.answer("resume"), ask.answer("perhaps"))
        for answer in wrong:
            with pytest.raises(InvalidInput):
                await answer
        assert (await life.rt.get_ask(ask.id)).state == "open"
        with pytest.raises(NotFound):
            await life.rt.get_ask("a_nothing")
        await ask.deny(by="lee")
        assert await rest(run) == "completed"


async def test_nobody_but_the_clock_may_say_that_an_ask_expired(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        with pytest.raises(InvalidInput):
            await ask.answer("expire", by="lee")
        assert (await life.rt.get_ask(ask.id)).state == "open"
        await ask.deny(by="lee")
        assert await rest(run) == "completed"


async def test_a_name_that_is_none_decides_nothing(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        for act in (ask.approve(by=""), ask.deny(by="\n"), life.rt.cancel(run, by="")):
            with pytest.raises(InvalidInput, match="by "):
                await act
        assert (await life.rt.get_ask(ask.id)).state == "open"
        assert await life.rt.audit() == []
        await ask.deny(by="lee")
        assert await rest(run) == "completed"


async def test_every_decision_is_recorded_with_who_when_and_through_which_door(house: House) -> None:
    agent = house.agent([*WIRE, call("wire", to="park")], "done")
    async with house.life(agent, door="console") as life:
        run, _ = await waiting(life, agent)
        first, second = await run.asks()
        house.clock.advance(minutes=5)
        await first.approve(by="lee")
        await second.deny(by="choi", reason="no")
        assert await rest(run) == "completed"
        acts = {act.subject: act for act in await life.rt.audit()}
        assert {a.id: (acts[a.id].act, acts[a.id].by, acts[a.id].door) for a in (first, second)} == {
            first.id: ("ask.approve", "lee", "console"),
            second.id: ("ask.deny", "choi", "console"),
        }
        assert {act.at for act in acts.values()} == {house.clock.now()}


# --- edited -----------------------------------------------------------------------------------------------------


async def test_an_edit_replaces_the_arguments_in_full_and_is_recorded(house: House) -> None:
    @tool(effect="once", approve=True)
    async def pay(ctx: Context[House], to: str, amount: int = 1) -> str:
        return await ctx.deps.act(ctx, "pay", to=to, amount=amount)

    agent = house.agent([call("pay", to="kim", amount=100)], "done", tools=[pay])
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        await ask.approve(by="lee", arguments={"to": "kim-2"})  # nothing of the old ones is kept
        assert await rest(run) == "completed"
        (effect,) = await run.effects()
        assert effect.arguments == {"to": "kim-2"}
        (decided,) = [e async for e in run.events() if e.type == "ask.decided"]
        assert decided.data["arguments"] == {"to": "kim-2"}
        assert (await life.rt.get_ask(ask.id)).arguments == {"to": "kim", "amount": 100}  # what was asked
    assert [line.arguments for line in house.ledger] == [{"to": "kim-2", "amount": 1}]


async def test_the_model_is_told_what_an_edited_call_was_made_with(house: House) -> None:
    """Else it would believe, and say, that its own arguments were used, or make the call once more."""
    told = '[a person changed the arguments of this call, it was made with {"to": "park"}]\nwire done'
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        await ask.approve(by="lee", arguments={"to": "park"})
        assert await rest(run) == "completed"
        (result,) = results(house.asked(run)[-1].messages)
        assert (result.text, result.value, result.error) == (told, "wire done", False)
        (effect,) = await run.effects()
        assert await life.rt.effect_result(effect.id) == "wire done"
        fork = await life.rt.fork(run, at_step=2)
        assert await rest(fork) == "completed"
        assert [r.text for r in results(house.asked(fork)[-1].messages)] == [told]
    async with house.life(agent) as life:
        later = await life.rt.start(agent, HELLO, session="s", operation_id="later")
        assert await rest(later) == "completed"
        assert [r.text for r in results(house.asked(later)[0].messages)] == [told]
        assert (await life.rt.context(later.id, 1)).matches
        house.answers("go", [call("wire", to="park")], "done")
        again = await life.rt.replay(run, force=By("lee", "to see"))  # the model says itself what was used
        assert await rest(again) == "completed"
        assert [r.text for r in results(house.asked(again)[-1].messages)] == ["wire done"]
    assert house.count("wire") == 1


@pytest.mark.parametrize("is_driven", [False, True])
async def test_the_model_is_told_that_too_when_a_person_settles_the_edited_call(house: House, is_driven: bool) -> None:
    agent = house.agent([call("wire", to="kim"), call("look", order="1")], "done")
    async with house.life(agent, dies_at="wire.after") as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        await (await the_ask(run)).approve(by="lee", arguments={"to": "park"})
        await life.ends(run.result())
    house.clock.advance(hours=1)
    place = barrier()
    plan = FaultPlan().at("suspend.before", fault=place) if is_driven else None
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.get_run(run.id)
        if is_driven:
            await place.reached.wait()
        else:
            assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).happened("paid", "it is in the books", by="lee")
        place.go_on.set()
        await run.result(through_asks=True)
        told, _ = results(house.asked(run)[-1].messages)
        assert (told.value, told.made_with) == ("paid", {"to": "park"})
    assert house.count("wire") == 1


async def test_an_edit_that_does_not_fit_is_refused_at_once_and_the_ask_stays_open(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        for wrong in ({}, {"to": 1}, {"to": "kim", "amount": 1}):
            with pytest.raises(InvalidInput):
                await ask.approve(by="lee", arguments=wrong)
        assert (await life.rt.get_ask(ask.id)).state == "open"
        await ask.approve(by="lee")
        assert await rest(run) == "completed"
    assert house.count("wire") == 1


async def test_an_edit_that_no_tool_could_be_given_as_it_is_is_refused_at_once(house: House) -> None:
    @tool(effect="once", approve=True)
    async def note(ctx: Context[House], what: Any) -> str:
        assert what == {"a\0": ["b\0"]}
        return await ctx.deps.act(ctx, "note")

    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    agent = house.agent([call("note", what="x")], "done", tools=[note])
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        for half in ("a \ud800 b", {"a": ["\udfff"]}, {"\ud800": 1}):
            with pytest.raises(InvalidInput, match="half of a character"):
                await ask.approve(by="lee", arguments={"what": half})
        with pytest.raises(InvalidInput, match="no JSON form"):
            await ask.approve(by="lee", arguments={"what": deep})
        assert (await life.rt.get_ask(ask.id)).state == "open"
        await ask.approve(by="lee", arguments={"what": {"a\0": ["b\0"]}})
        assert await rest(run) == "completed"
    assert house.count("note") == 1


class Reading(BaseModel):
    level: int = Field(default=0, validation_alias="Level")


async def test_an_edit_that_a_tool_would_read_as_another_value_is_refused_at_once(house: House) -> None:
    @tool(effect="once", approve=True)
    async def keep(ctx: Context[House], reading: Annotated[Reading, Field(alias="of")]) -> str:
        return await ctx.deps.act(ctx, "keep", level=reading.level)

    agent = house.agent([call("keep", of={"Level": 1})], "done", tools=[keep])
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        with pytest.raises(InvalidInput, match=r"Reading\.level"):
            await ask.approve(by="lee", arguments={"of": Reading.model_validate({"Level": 3})})
        await ask.approve(by="lee", arguments={"of": {"Level": 3}})
        assert await rest(run) == "completed"
    assert [line.arguments for line in house.ledger] == [{"level": 3}]


async def test_an_edit_is_held_against_the_tool_of_the_runs_own_agent(house: House) -> None:
    @tool(name="wire", effect="once", approve=True)
    async def by_amount(ctx: Context[House], amount: int) -> str:
        return await ctx.deps.act(ctx, "wire", amount=amount)

    other, agent = house.agent("done", name="first"), house.agent(WIRE, "done", tools=[by_amount])
    house.answers("go", [call("wire", amount=1)], "done")
    async with house.life(other, agent) as life:
        run, ask = await waiting(life, agent)
        with pytest.raises(InvalidInput):
            await ask.approve(by="lee", arguments={"to": "kim"})  # would fit the tool of that name of the other agent
        await ask.approve(by="lee", arguments={"amount": 2})
        assert await rest(run) == "completed"
    assert [line.arguments for line in house.ledger] == [{"amount": 2}]


class Kind(enum.Enum):
    FULL = "full"


async def test_an_edit_may_hold_the_values_that_the_function_takes(house: House) -> None:
    """They are written as a model would have sent them, so that the journal has one form of each argument."""

    @tool(effect="once", approve=True)
    async def pay(ctx: Context[House], amount: Decimal, at: datetime, day: date, kind: Kind, tags: set[str]) -> str:
        assert (type(amount), type(at), type(day), kind) == (Decimal, datetime, date, Kind.FULL)
        return await ctx.deps.act(ctx, "pay", amount=str(amount), at=at.isoformat(), tags=sorted(tags))

    sent = {"amount": "1.10", "at": "2026-01-02T03:04:05+09:00", "day": "2026-01-02", "kind": "full", "tags": []}
    agent = house.agent([call("pay", **sent)], "done", tools=[pay])
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=9)))
    edited = {"amount": Decimal("0.90"), "at": at, "day": at.date(), "kind": Kind.FULL, "tags": {"a"}}
    async with house.life(agent, dies_at="started.before") as life:
        run, ask = await waiting(life, agent)
        with pytest.raises(InvalidInput, match="amount"):
            await ask.approve(by="lee", arguments=edited | {"amount": "much"})
        for formless in (object(), SecretStr("1.10")):
            with pytest.raises(InvalidInput, match="no JSON"):
                await ask.approve(by="lee", arguments=edited | {"amount": formless})
        await ask.approve(by="lee", arguments=edited)
        await life.ends(run.result())
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        same = await (await life.rt.get_ask(ask.id)).approve(by="lee", arguments=edited)  # the same decision again
        assert same.decision == "approve"
        assert await rest(run) == "completed"
        (effect,) = await run.effects()
        assert effect.arguments == sent | {"amount": "0.90", "tags": ["a"]}
    assert [line.arguments for line in house.ledger] == [{"amount": "0.90", "at": at.isoformat(), "tags": ["a"]}]


async def test_an_edit_survives_a_crash_before_the_call(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent, dies_at="started.before") as life:
        run, ask = await waiting(life, agent)
        await ask.approve(by="lee", arguments={"to": "park"})
        await life.ends(run.result())
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(run.id)) == "completed"
    assert [line.arguments for line in house.ledger] == [{"to": "park"}]


# --- one effect -------------------------------------------------------------------------------------------------


async def test_an_approval_covers_one_effect(house: House) -> None:
    agent = house.agent(WIRE, WIRE, "done")
    async with house.life(agent) as life:
        run, first = await waiting(life, agent)
        await first.approve(by="lee")
        assert await rest(run) == "waiting"  # an equal call in a later step asks anew
        second = await the_ask(run)
        assert second.id != first.id
        assert house.count("wire") == 1
        await second.approve(by="lee")
        assert await rest(run) == "completed"
    assert house.count("wire") == 2
    assert len(house.keys("wire")) == 2


async def test_a_repeat_of_an_approved_effect_with_its_key_needs_no_new_approval(house: House) -> None:
    @tool(effect="idempotent", approve=True)
    async def pay(ctx: Context[House], amount: int) -> str:
        await ctx.deps.act(ctx, "pay", amount=amount)
        if ctx.attempt == 1:
            raise ConnectionError("no answer")
        return "paid"

    agent = house.agent([call("pay", amount=1)], "done", tools=[pay])
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        await ask.approve(by="lee")
        assert await rest(run) == "completed"
        assert len(await run.asks(state=None)) == 1
    assert house.count("pay") == 2
    assert len(house.keys("pay")) == 1


async def test_a_repeat_after_a_crash_needs_no_new_approval_either(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent, dies_at="started.after") as life:
        run, ask = await waiting(life, agent)
        await ask.approve(by="lee")
        await life.ends(run.result())
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).not_happened(by="lee")
        assert await rest(run) == "completed"
        assert {a.kind for a in await run.asks(state=None)} == {"approval", "unknown_effect"}
    assert house.count("wire") == 1


async def test_an_approved_call_runs_at_once_and_the_others_go_on_waiting(house: House) -> None:
    agent = house.agent([*WIRE, call("wire", to="lee"), call("look", order="1")], "done")
    async with house.life(agent) as life:
        run, _ = await waiting(life, agent)
        assert house.count("look") == 1  # nobody waits for a person who is not asked
        first, second = await run.asks()
        await second.approve(by="lee")
        assert await rest(run) == "waiting"
        assert [line.arguments for line in house.ledger if line.tool == "wire"] == [{"to": "lee"}]
        assert [r.step for r in house.asked(run)] == [0]  # the model is asked again when every call has an outcome
        await first.deny(by="lee")
        assert await rest(run) == "completed"
    assert house.count("wire") == 1


# --- while the run is driven ------------------------------------------------------------------------------------


async def test_a_decision_on_a_running_run_only_decides_and_the_holder_takes_it_up(house: House) -> None:
    agent, in_look = house.agent([*WIRE, call("look", order="1")], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("look.before", fault=in_look)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_look.reached.wait()
        await (await the_ask(run)).approve(by="lee")
        assert (await run.refresh()).status == "running"
        in_look.go_on.set()
        assert await rest(run) == "completed"
        assert "run.waiting" not in await kinds(run)
        assert (await life.rt.get_session("s")).revision == 1  # T8 alone
    assert house.count("wire") == 1


async def test_b10_a_suspension_fails_when_an_ask_was_decided_meanwhile(house: House) -> None:
    agent, suspending = house.agent(WIRE, "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("suspend.before", fault=suspending)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await suspending.reached.wait()
        await (await the_ask(run)).approve(by="lee")
        suspending.go_on.set()
        assert await rest(run) == "completed"
        assert "run.waiting" not in await kinds(run)
        assert (await life.rt.get_session("s")).revision == 1
    assert house.count("wire") == 1


async def test_b10_b16_a_suspension_that_the_disk_refused_looks_at_decisions_again(house: House) -> None:
    agent, plan = house.agent(WIRE, "done"), FaultPlan()
    for nth in (1, 2):
        plan.at("suspend.before", nth=nth, fault=raise_(StoreFull("no space")))
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.clock.wait_for_timers()  # it waits for space
        await (await the_ask(run)).approve(by="lee")
        house.clock.advance(seconds=1)
        assert await rest(run) == "completed"
    assert house.count("wire") == 1


async def test_two_decisions_in_a_row_are_both_taken_up(house: House) -> None:
    """The first one wakes the run, the second finds it queued or claimed."""
    agent, claiming = house.agent([*WIRE, call("wire", to="lee")], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("claim.before", nth=2, fault=claiming)) as life:
        run, _ = await waiting(life, agent)
        first, second = await run.asks()
        await first.approve(by="lee")
        await claiming.reached.wait()
        await second.approve(by="lee")
        claiming.go_on.set()
        assert await rest(run) == "completed"
        assert (await life.rt.get_session("s")).revision == 3  # T6, the T7 that woke it, T8
    assert house.count("wire") == 2


# --- closed -----------------------------------------------------------------------------------------------------


async def test_asks_of_a_run_that_has_ended_are_closed(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        await run.cancel(by="kim")
        assert (await life.rt.get_ask(ask.id)).state == "closed"
        assert not await life.rt.asks()
        for answer in (ask.approve(by="lee"), ask.deny(by="lee")):
            with pytest.raises(AskClosed):
                await answer
        assert await rest(run) == "cancelled"
    assert house.count() == 0


async def test_an_ask_that_was_decided_in_a_session_that_is_deleted_says_so(house: House) -> None:
    agent = house.agent(WIRE, "done")
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        await ask.approve(by="lee")
        assert await rest(run) == "completed"
        await life.rt.delete_session("s", by="kim")
        for answer in (ask.approve(by="lee"), ask.deny(by="lee")):
            with pytest.raises(AskClosed, match="belongs to a session that was deleted"):
                await answer
    assert house.count() == 1


# --- expired ----------------------------------------------------------------------------------------------------


@tool(effect="once", approve=True, approve_expires=timedelta(hours=2), name="rush")
async def rush(ctx: Context[House], to: str) -> str:
    return await ctx.deps.act(ctx, "rush", to=to)


RUSH = [call("rush", to="kim")]


async def test_an_approval_that_did_not_come_in_time_is_a_refusal_and_the_run_goes_on(house: House) -> None:
    agent = house.agent(RUSH, "then not", tools=[rush])
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        assert ask.expires_at == house.clock.now() + timedelta(hours=2)
        await house.clock.wait_for_timers()
        house.clock.advance(hours=1, minutes=59)
        assert (await run.refresh()).status == "waiting"
        house.clock.advance(minutes=1)
        events = [event.type async for event in run.events()]
        while events[-1] == "run.waiting":  # the clock has spoken, and nobody has heard it yet
            events = [event.type async for event in run.events()]
        await run.refresh()
        assert (await run.result()).text == "then not"
        assert await states(run) == [("rush", "expired", 0)]
        assert (await life.rt.get_ask(ask.id)).state == "expired"
        assert "ask.expired" in events
        with pytest.raises(AlreadyDecided):
            await ask.approve(by="lee")
        assert "in time" in said_to_model(house, run)
        assert not await life.rt.audit()  # no person did this
    assert house.count() == 0


async def test_an_approval_in_time_is_not_undone_by_the_clock(house: House) -> None:
    agent = house.agent(RUSH, "done", tools=[rush])
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
        house.clock.advance(hours=1, minutes=59)
        await ask.approve(by="lee")
        house.clock.advance(hours=1)
        assert await rest(run) == "completed"
        assert (await life.rt.get_ask(ask.id)).state == "decided"
    assert house.count("rush") == 1


@pytest.mark.parametrize("kind", ["approve", "deny"])
async def test_a_word_that_comes_after_the_time_is_refused_also_before_the_clock_has_spoken(
    house: House, kind: str
) -> None:
    agent = house.agent(RUSH, "then not", tools=[rush])
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
    house.clock.advance(hours=2)
    store = open_store(house.db)  # nobody drives: the clock has not decided
    await store.open(lambda: None)
    late = transactions.decide, "default", ask.id, Decision(kind=kind), "lee", "python", to_micros(house.clock.now())
    with pytest.raises(AlreadyDecided, match="expired"):
        await store.write(*late)
    await store.close()
    assert [(a.state, a.decision) for a in house.written().asks] == [("open", None)]
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(run.id)) == "completed"
        assert (await life.rt.get_ask(ask.id)).state == "expired"
    assert house.count() == 0


async def test_an_ask_that_expired_while_no_process_was_there_expires_at_the_next_start(house: House) -> None:
    agent = house.agent(RUSH, "then not", tools=[rush])
    async with house.life(agent) as life:
        run, ask = await waiting(life, agent)
    house.clock.advance(days=1)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert (await life.rt.get_ask(ask.id)).state == "expired"
        assert await rest(run) == "completed"
    assert house.count() == 0


async def test_an_approval_without_a_limit_and_an_unknown_effect_never_expire(house: House) -> None:
    agent = house.agent([call("letter", to="kim")], "done", tools=[look, letter, wire])
    house.answers("money", WIRE, "done")
    await house.dies(agent, at="outcome.before")
    async with house.life(agent) as life:
        unknown = await life.rt.find_run("op")
        assert await rest(unknown) == "waiting"
        approval = await life.rt.start(agent, "money", session="t", operation_id="op-2")
        assert await rest(approval) == "waiting"
    house.clock.advance(days=3650)
    async with house.life(agent) as life:
        assert sorted(a.kind for a in await life.rt.asks()) == ["approval", "unknown_effect"]
        for operation in ("op", "op-2"):
            assert (await life.rt.find_run(operation)).status == "waiting"
        await (await the_ask(await life.rt.find_run("op"), "unknown_effect")).happened(by="lee")
        await (await the_ask(await life.rt.find_run("op-2"))).approve(by="lee")
        assert await rest(await life.rt.find_run("op")) == "completed"
        assert await rest(await life.rt.find_run("op-2")) == "completed"


async def test_an_ask_that_expires_on_a_running_run_is_taken_up_by_its_holder(house: House) -> None:
    @tool(effect="once", approve=True, approve_expires=timedelta(seconds=30))  # before the time of ``look`` is over
    async def rush(ctx: Context[House], to: str) -> str:
        return await ctx.deps.act(ctx, "rush", to=to)

    agent, in_look = house.agent([*RUSH, call("look", order="1")], "then not", tools=[rush, look]), barrier()
    async with house.life(agent, plan=FaultPlan().at("look.before", fault=in_look)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_look.reached.wait()
        ask = await the_ask(run)
        house.clock.advance(seconds=30)
        await life.engine.look()
        in_look.go_on.set()
        assert await rest(run) == "completed"
        assert (await life.rt.get_ask(ask.id)).state == "expired"
        assert "run.waiting" not in await kinds(run)
    assert house.count("rush") == 0
