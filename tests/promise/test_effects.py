"""What tools did: siblings, classes, exceptions, unknowns and their settlement (B6-B9, P3-P5; rules 7.2, 7.6)."""

from __future__ import annotations

import asyncio
import functools
import threading
from contextvars import ContextVar
from datetime import timedelta
from typing import Annotated, Any

import pytest
from kit import results, until
from pydantic import AfterValidator

from ondol import (
    Agent,
    AlreadyDecided,
    Ask,
    AskClosed,
    Context,
    Happened,
    InvalidInput,
    NotDone,
    NotFound,
    NotHappened,
    Run,
    tool,
)
from ondol.testing import FaultPlan, barrier, call, error
from promise.house import HELLO, SOON, House, kinds, letter, look, refund, rest, states, the_ask

LOOK, REFUND = call("look", order="1"), call("refund", order="1")
LETTER, MAIL = call("letter", to="kim"), call("mail", to="kim")


async def unknown_letter(house: House, *answers: Any) -> str:
    """A run that waits for a word about a letter that was sent. Returns its id."""
    agent = house.agent([LETTER], *(answers or ("done",)))
    return await house.dies(agent, at="outcome.before")


async def lost_letter_beside_a_read(house: House) -> tuple[Agent, str]:
    """The letter was sent and its outcome lost; the read that was asked for with it is still to be made."""
    agent = house.agent([LETTER, LOOK], "done")
    return agent, await house.dies(agent, at="letter.after", plan=FaultPlan().at("look.before", fault=barrier()))


async def question(run: Run) -> Ask:
    """The ask about its unknown effect, as soon as it is there."""
    async for event in run.events():
        if event.type == "effect.unknown":
            break
    return await the_ask(run, "unknown_effect")


# --- siblings ---------------------------------------------------------------------------------------------------


async def test_siblings_run_side_by_side_and_their_results_come_in_the_order_of_the_calls(house: House) -> None:
    agent = house.agent([LOOK, REFUND, LETTER, MAIL], "done")
    gates, plan = {name: barrier() for name in ("look", "refund", "letter", "mail")}, FaultPlan()
    for name, gate in gates.items():
        plan.at(f"{name}.before", fault=gate)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        for gate in gates.values():
            await gate.reached.wait()  # all of them are in flight at once
        for name in ("mail", "look", "letter", "refund"):
            done = asyncio.create_task(_until_effect(run, name))
            gates[name].go_on.set()
            await done
        assert await rest(run) == "completed"
    said = [(r.name, r.response) for r in results(house.asked(run)[-1].messages)]
    assert said == [(name, f"{name} done") for name in ("look", "refund", "letter", "mail")]
    assert [r.step for r in house.asked(run)] == [0, 1]


async def _until_effect(run: Run, name: str) -> None:
    async for event in run.events():
        if event.type == "effect.succeeded" and event.data["tool"] == name:
            return


async def test_two_identical_calls_are_two_effects(house: House) -> None:
    agent = house.agent([LETTER, LETTER], [LETTER], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert len({e.id for e in await run.effects()}) == 3
    assert house.count("letter") == 3
    assert len(house.keys("letter")) == 3


async def test_while_one_is_unknown_reads_and_idempotent_siblings_go_on_and_planned_once_siblings_hold(
    house: House,
) -> None:
    agent = house.agent([LETTER, LOOK, REFUND, MAIL], "done")
    plan = FaultPlan()
    held = {name: barrier() for name in ("look", "refund", "mail")}
    for name, gate in held.items():
        plan.at("started.before" if name == "mail" else f"{name}.before", nth=3 if name == "mail" else 1, fault=gate)
    after_letter = barrier()
    plan.at("letter.after", fault=after_letter)
    async with house.life(agent, plan=plan) as life:  # the letter is sent, the rest is not done
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await after_letter.reached.wait()
        await held["mail"].reached.wait()
        life.die()
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        assert await states(run) == [
            ("letter", "unknown", 1), ("look", "succeeded", 0), ("refund", "succeeded", 2), ("mail", "planned", 0),
        ]  # fmt: skip
        assert house.count("mail") == 0
        assert len(house.asked(run)) == 1  # the model is asked again only when every call has an outcome
        await (await the_ask(run, "unknown_effect")).happened("sent", by="lee")
        assert await rest(run) == "completed"
        assert (await states(run))[3] == ("mail", "succeeded", 1)
    assert house.count("mail") == house.count("letter") == 1


async def test_siblings_that_are_held_ask_nobody_and_are_abandoned_when_the_unknown_is_given_up(house: House) -> None:
    agent = house.agent([LETTER, MAIL], "done")
    plan, after_letter, before_mail = FaultPlan(), barrier(), barrier()
    plan.at("letter.after", fault=after_letter).at("started.before", nth=2, fault=before_mail)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await after_letter.reached.wait()
        await before_mail.reached.wait()
        life.die()
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        assert [a.tool for a in await run.asks()] == ["letter"]
        await (await the_ask(run, "unknown_effect")).give_up(by="lee")
        assert await rest(run) == "failed"
        assert await states(run) == [("letter", "unknown", 1), ("mail", "abandoned", 0)]
    assert house.count("mail") == 0


# --- what an exception means ------------------------------------------------------------------------------------


class Refused(Exception):
    pass


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
@pytest.mark.parametrize("raised", [NotDone("no such person"), Refused("no such person")], ids=["NotDone", "declared"])
async def test_a_tool_that_says_that_nothing_happened_has_failed_and_the_model_is_told(
    house: House, effect: Any, raised: Exception
) -> None:
    @tool(effect=effect, not_done=(Refused,))
    async def act(ctx: Context[House], to: str) -> str:
        raise raised

    agent = house.agent([call("act", to="kim")], "I see", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert await states(run) == [("act", "failed", 0 if effect == "read" else 1)]
    (told,) = results(house.asked(run)[-1].messages)
    assert told.error
    assert "no such person" in str(told.response)


async def test_a_read_that_raises_has_failed_and_the_model_is_told(house: House) -> None:
    @tool(effect="read")
    async def act(ctx: Context[House]) -> str:
        raise ConnectionError("no answer")

    agent = house.agent([call("act")], "I see", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert await states(run) == [("act", "failed", 0)]
    (told,) = results(house.asked(run)[-1].messages)
    assert "no answer" in str(told.response)


class Exit(BaseException):
    pass


RAISED = {"key": KeyError("key"), "exit": Exit(), "cancelled": asyncio.CancelledError(), "text": ValueError("\ud800")}


def _picky(to: str) -> str:
    if to in RAISED:
        raise RAISED[to]
    return to


@tool(effect="once", approve=lambda to: to == "park")
async def picky(ctx: Context[House], to: Annotated[str, AfterValidator(_picky)]) -> str:
    return await ctx.deps.act(ctx, "picky", to=to)


@pytest.mark.parametrize("to", RAISED)
async def test_a_validator_that_raises_whatever_it_likes_is_an_error_result_and_the_run_goes_on(
    house: House, to: str
) -> None:
    agent = house.agent([call("picky", to=to), LOOK], "I see", tools=[picky, look])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert await states(run) == [("picky", "failed", 0), ("look", "succeeded", 0)]
    told, _ = results(house.asked(run)[-1].messages)
    assert told.error
    assert "do not fit" in str(told.response)
    assert house.count("picky") == 0


@pytest.mark.parametrize("to", RAISED)
async def test_a_validator_that_raises_refuses_an_edit_and_the_ask_stays_open(house: House, to: str) -> None:
    agent = house.agent([call("picky", to="park")], "done", tools=[picky])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        with pytest.raises(InvalidInput, match="do not fit"):
            await (await the_ask(run)).approve(by="lee", arguments={"to": to})
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    assert house.count("picky") == 1


async def test_an_idempotent_tool_that_raises_is_repeated_three_times_with_its_key_and_then_unknown(
    house: House,
) -> None:
    @tool(effect="idempotent")
    async def act(ctx: Context[House]) -> str:
        await ctx.deps.act(ctx, "act")
        raise ConnectionError("no answer")

    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert await states(run) == [("act", "unknown", 3)]
        assert house.count("act") == 3
        assert len(house.keys("act")) == 1
        await (await the_ask(run, "unknown_effect")).happened("paid", by="lee")
        assert await rest(run) == "completed"
    assert house.count("act") == 3


async def test_an_idempotent_tool_is_repeated_only_inside_the_life_of_its_key(house: House) -> None:
    @tool(effect="idempotent", key_ttl=timedelta(seconds=30))
    async def act(ctx: Context[House]) -> str:
        await ctx.deps.act(ctx, "act")
        ctx.deps.clock.advance(seconds=15)
        raise ConnectionError("no answer")

    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert await states(run) == [("act", "unknown", 2)]  # the third would have begun at 30 s
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"


@pytest.mark.parametrize("lost", ["raised", "crashed"])
@pytest.mark.parametrize("comes_back", [True, False])
async def test_not_done_proves_nothing_of_the_attempts_before_it(house: House, lost: str, comes_back: bool) -> None:
    """The first one may have moved the money, and the next could not even connect."""
    attempts = 0

    @tool(effect="idempotent", not_done=(ConnectionRefusedError,))
    async def pay(ctx: Context[House]) -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await ctx.deps.act(ctx, "pay")
            raise TimeoutError("no answer")
        if attempts == 2 or not comes_back:
            raise ConnectionRefusedError("nobody listens")
        return "paid before"

    agent = house.agent([call("pay")], "done", tools=[pay])
    if lost == "crashed":
        await house.dies(agent, at="pay.after")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        if comes_back:
            assert await rest(run) == "completed"
            assert await states(run) == [("pay", "succeeded", 3)]
        else:
            assert await rest(run) == "waiting"
            assert await states(run) == [("pay", "unknown", 3)]
            (effect,) = await run.effects()
            assert effect.reason == "ConnectionRefusedError: nobody listens; nobody knows of the attempts before it"
            await (await the_ask(run, "unknown_effect")).happened("paid", by="lee")
            assert await rest(run) == "completed"
    assert house.count("pay") == 1


async def test_not_done_is_the_end_of_a_call_of_which_a_person_said_that_it_did_not_happen(house: House) -> None:
    @tool(effect="idempotent", key_ttl=timedelta(minutes=1))
    async def pay(ctx: Context[House]) -> str:
        raise NotDone("no such account")

    agent = house.agent([call("pay")], "done", tools=[pay])
    await house.dies(agent, at="started.after")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).not_happened(by="lee")
        assert await rest(run) == "completed"
        assert await states(run) == [("pay", "failed", 2)]


async def test_a_once_call_that_waits_for_a_deadline_is_held_if_a_sibling_becomes_unknown_meanwhile(
    house: House,
) -> None:
    @tool(effect="once", approve=True)
    async def act(ctx: Context[House]) -> str:
        raise ConnectionError("no answer")

    agent = house.agent([LETTER, call("act")], "done", tools=[letter, act])
    async with house.life(agent, dies_at="started.after") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "waiting"
        await (await the_ask(run)).approve(by="lee")  # it is held, as long as the letter is unknown
        await (await the_ask(run, "unknown_effect")).not_happened(by="lee")
        resting = asyncio.create_task(rest(run))
        await house.clock.wait_for_timers()  # the letter waits for the deadline of the lost attempt
        await until(run, "effect.unknown", call=1)
        assert await states(run) == [("letter", "approved", 1), ("act", "unknown", 1)]
        house.clock.advance(seconds=60)
        assert await resting == "waiting"
        assert await states(run) == [("letter", "approved", 1), ("act", "unknown", 1)]
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("letter") == 1


async def test_a_key_that_grows_too_old_while_its_next_attempt_waits_is_not_used_again(house: House) -> None:
    """A laptop that slept, or a run that waited for its turn: the deadline of the lost attempt is long over."""
    agent = house.agent([REFUND], "done")
    async with house.life(agent, dies_at="outcome.before") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        resting = asyncio.create_task(rest(run))
        await house.clock.wait_for_timers()
        assert await states(run) == [("refund", "started", 1)]  # it waits for the deadline
        house.clock.advance(hours=24)
        assert await resting == "waiting"
        assert await states(run) == [("refund", "unknown", 1)]
        await (await the_ask(run, "unknown_effect")).happened("paid", by="lee")
        assert await rest(run) == "completed"
    assert house.count("refund") == 1


@pytest.mark.parametrize("word", [None, "not_happened"], ids=["by_rule", "by_a_person"])
async def test_a_key_that_grows_too_old_between_start_and_dispatch_is_not_used_again(
    house: House, word: str | None
) -> None:
    """A process that was paused; unless a person wanted that attempt."""

    @tool(effect="idempotent", key_ttl=timedelta(seconds=65))
    async def act(ctx: Context[House]) -> str:
        return await ctx.deps.act(ctx, "act")

    agent, started = house.agent([call("act")], "done", tools=[act]), barrier()
    async with house.life(agent, dies_at="outcome.before") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    house.clock.advance(seconds=61 if word is None else 66)
    async with house.life(agent, plan=FaultPlan().at("started.after", fault=started)) as life:
        run = await life.rt.find_run("op")
        if word is not None:
            assert await rest(run) == "waiting"
            await (await the_ask(run, "unknown_effect")).not_happened(by="lee")
        await started.reached.wait()
        house.clock.advance(seconds=4)
        started.go_on.set()
        if word is None:
            assert await rest(run) == "waiting"
            assert await states(run) == [("act", "unknown", 2)]
            (effect,) = await run.effects()
            assert effect.reason == "the last attempt was not sent in time, and another may not be made"
            await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("act") == (1 if word is None else 2)


@pytest.mark.parametrize("looks", [False, True], ids=["without_check", "with_check"])
async def test_a_lost_idempotent_call_whose_tool_is_declared_once_by_now_is_not_repeated_blindly(
    house: House, looks: bool
) -> None:
    async def found(ctx: Context[House]) -> Happened:
        return Happened("found")

    agent = house.agent([REFUND], "done")
    run_id = await house.dies(agent, at="refund.after")
    stricter = tool(effect="once", name="refund", check=found if looks else None)(refund.function)
    agent = house.agent([REFUND], "done", tools=[stricter])
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        if not looks:
            assert await rest(run) == "waiting"
            await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
        assert await states(run) == [("refund", "succeeded", 1)]
    assert house.count("refund") == 1


async def test_a_once_tool_that_raises_is_unknown_and_never_repeated(house: House) -> None:
    @tool
    async def act(ctx: Context[House]) -> str:
        await ctx.deps.act(ctx, "act")
        raise ConnectionError("no answer")

    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        (effect,) = await run.effects()
        assert (effect.state, effect.attempt) == ("unknown", 1)
        assert "no answer" in (effect.reason or "")
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("act") == 1


async def test_a_plain_function_is_a_once_tool(house: House) -> None:
    async def act(ctx: Context[House]) -> str:
        await ctx.deps.act(ctx, "act")
        raise ConnectionError("no answer")

    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert await states(run) == [("act", "unknown", 1)]
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"


async def test_check_that_denies_allows_three_attempts_and_then_a_person_is_asked(house: House) -> None:
    @tool(effect="once", check=lambda: NotHappened())  # type: ignore[arg-type]
    async def mail(ctx: Context[House]) -> str:
        raise ConnectionError("no answer")

    agent = house.agent([call("mail")], "done", tools=[mail])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert await states(run) == [("mail", "unknown", 3)]
        await (await the_ask(run, "unknown_effect")).give_up(by="lee")
        assert await rest(run) == "failed"


@pytest.mark.parametrize("answers", [True, False])
async def test_a_check_may_be_a_plain_function_that_hands_on_what_an_async_one_gives(
    house: House, answers: bool
) -> None:
    async def looks(key: str) -> Happened:
        if not answers:
            raise ConnectionError("mail server down")
        return Happened(key)

    @tool(effect="once", check=lambda ctx: looks(ctx.idempotency_key))
    async def act(ctx: Context[House]) -> str:
        raise ConnectionError("no answer")

    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == ("completed" if answers else "waiting")
        (effect,) = await run.effects()
        if answers:
            assert await life.rt.effect_result(effect.id) == effect.key
            house.checked = False  # this tool writes to no ledger
            return
        assert effect.reason == "check raised ConnectionError: mail server down"
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"


async def test_a_check_that_does_not_answer_in_time_cannot_tell(house: House) -> None:
    left: list[str] = []

    async def looks(ctx: Context[House]) -> Happened:
        house.in_tool.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            left.append("it is asked to end")
        return Happened("found")

    @tool(effect="once", check=looks, timeout=timedelta(seconds=5))
    async def act(ctx: Context[House]) -> str:
        raise ConnectionError("no answer")

    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.in_tool.wait()
        await house.clock.wait_for_timers()
        house.clock.advance(seconds=5)
        assert await rest(run) == "waiting"
        (effect,) = await run.effects()
        assert (effect.state, effect.reason) == ("unknown", "check did not answer in time")
        assert left
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_an_attempt_whose_time_is_over_means_what_an_exception_means(house: House, effect: Any) -> None:
    @tool(effect=effect, timeout=timedelta(seconds=5))
    async def act(ctx: Context[House]) -> str:
        await ctx.deps.act(ctx, "act")
        if ctx.attempt in (0, 1):
            await asyncio.get_running_loop().create_future()
        return "done at last"

    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.clock.wait_for_timers()
        house.clock.advance(seconds=5)
        ends = {"read": "completed", "idempotent": "completed", "once": "waiting"}[effect]
        assert await rest(run) == ends
        expected = {"read": ("failed", 0), "idempotent": ("succeeded", 2), "once": ("unknown", 1)}[effect]
        assert await states(run) == [("act", *expected)]
        if effect == "once":
            await (await the_ask(run, "unknown_effect")).happened(by="lee")
            assert await rest(run) == "completed"
    assert house.count("act") == (2 if effect == "idempotent" else 1)


async def test_a_check_allows_no_other_attempt_beside_one_that_goes_on_though_its_time_is_over(house: House) -> None:
    goes_on, loop = threading.Event(), asyncio.get_running_loop()

    @tool(effect="once", check=lambda: NotHappened(), timeout=timedelta(seconds=5))  # type: ignore[arg-type]
    def act(ctx: Context[House]) -> str:
        ctx.deps.happened(ctx.idempotency_key, "act")
        loop.call_soon_threadsafe(house.in_tool.set)
        goes_on.wait(SOON)  # nobody can stop a thread
        return "done at last"

    agent = house.agent([call("act")], "done", tools=[act])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.in_tool.wait()
        await house.clock.wait_for_timers()
        house.clock.advance(seconds=5)
        assert await rest(run) == "waiting"
        (effect,) = await run.effects()
        assert (effect.state, effect.attempt) == ("unknown", 1)
        assert "goes on" in effect.reason
        goes_on.set()
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("act") == 1


# --- keys -------------------------------------------------------------------------------------------------------


async def test_the_key_is_the_same_for_every_attempt_and_for_no_other_call_or_run(house: House) -> None:
    agent = house.agent([REFUND, call("refund", order="2")], [REFUND], "done")
    plan = FaultPlan()
    gates = [barrier(), barrier()]
    for nth, gate in enumerate(gates, 1):
        plan.at("refund.after", nth=nth, fault=gate)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        for gate in gates:
            await gate.reached.wait()
        life.die()
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(run.id)) == "completed"
        other = await life.rt.start(agent, "go", session="s", operation_id="op-2")
        assert await rest(other) == "completed"
        keys = {e.key for r in (run.id, other.id) for e in await life.rt.effects(run=r)}
    assert len(keys) == 6
    assert house.keys("refund") == keys
    assert house.count("refund") == 8  # two of them twice


# --- settling an unknown ----------------------------------------------------------------------------------------


async def test_what_a_person_said_is_said_once(house: House) -> None:
    run_id = await unknown_letter(house)
    async with house.life(house.agent([LETTER], "done")) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        ask = await the_ask(run, "unknown_effect")
        first = await ask.happened("sent", "post book", by="lee")
        assert await rest(run) == "completed"
        again = await ask.happened("sent", "I looked again", by="park")
        assert (again.decided_by, again.decided_at) == ("lee", first.decided_at)
        for other in (ask.happened("sent twice", by="park"), ask.not_happened(by="park"), ask.give_up(by="park")):
            with pytest.raises(AlreadyDecided):
                await other
        for wrong in (ask.approve(by="park"), ask.deny(by="park")):
            with pytest.raises(InvalidInput):
                await wrong
        with pytest.raises(NotFound):
            await life.rt.unknown_ask(ask.effect or "")
        assert await states(run) == [("letter", "succeeded", 1)]
    assert house.count("letter") == 1


async def test_an_effect_that_a_person_allowed_again_and_that_was_lost_again_asks_again(house: House) -> None:
    agent = house.agent([LETTER], "done")
    run_id = await house.dies(agent, at="started.after")
    async with house.life(agent, dies_at="started.after") as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        first = await the_ask(run, "unknown_effect")
        await first.not_happened(by="lee")
        await life.ends(run.result())
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        second = await the_ask(run, "unknown_effect")
        assert second.id != first.id
        assert await states(run) == [("letter", "unknown", 2)]
        await second.not_happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("letter") == 1


async def test_two_unknowns_are_settled_one_after_the_other_while_the_run_is_queued_or_driven(house: House) -> None:
    agent, plan = house.agent([LETTER, call("letter", to="lee")], "done"), FaultPlan()
    sent, claiming = [barrier(), barrier()], barrier()
    plan.at("letter.after", nth=1, fault=sent[0]).at("letter.before", nth=2, fault=sent[1])
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        for gate in sent:
            await gate.reached.wait()
        life.die()
    house.clock.advance(hours=1)
    async with house.life(agent, plan=FaultPlan().at("claim.before", nth=2, fault=claiming)) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        first, second = await run.asks()
        await first.happened("sent", by="lee")
        await claiming.reached.wait()
        assert (await run.refresh()).status == "queued"
        await second.not_happened(by="lee")
        claiming.go_on.set()
        assert await rest(run) == "completed"
        assert await states(run) == [("letter", "succeeded", 1), ("letter", "succeeded", 2)]
    assert [line.arguments["to"] for line in house.ledger] == ["kim", "lee"]


async def test_an_unknown_that_is_settled_while_the_run_is_driven_is_taken_up_by_its_holder(house: House) -> None:
    (agent, run_id), in_look = await lost_letter_beside_a_read(house), barrier()
    async with house.life(agent, plan=FaultPlan().at("look.before", fault=in_look)) as life:
        run = await life.rt.get_run(run_id)
        await in_look.reached.wait()
        await (await question(run)).happened("sent", by="lee")
        in_look.go_on.set()
        assert await rest(run) == "completed"
        assert await states(run) == [("letter", "succeeded", 1), ("look", "succeeded", 0)]
        assert "run.waiting" not in await kinds(run)
    assert house.count("letter") == 1


@pytest.mark.parametrize(("word", "state"), [("happened", "succeeded"), ("not_happened", "failed")])
async def test_on_a_run_that_has_ended_settling_changes_the_effect_and_nothing_else(
    house: House, word: str, state: str
) -> None:
    run_id = await unknown_letter(house)
    async with house.life(house.agent([LETTER], "done")) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        await run.cancel(by="kim")
        ask = await the_ask(run, "unknown_effect")  # the one kind of ask that outlives its run
        revision = (await life.rt.get_session("s")).revision
        await getattr(ask, word)(by="lee")
        assert await states(run) == [("letter", state, 1)]
        assert (await run.refresh()).status == "cancelled"
        assert (await life.rt.get_session("s")).revision == revision
        assert (await life.rt.run("a", HELLO, session="s")).text  # the session goes on
    assert house.count("letter") == 1
    assert len(house.asked(run_id)) == 1


async def test_on_a_run_that_has_ended_giving_up_leaves_it_unknown_and_asks_nobody_any_more(house: House) -> None:
    run_id = await unknown_letter(house)
    async with house.life(house.agent([LETTER], "done")) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        await run.cancel(by="kim")
        await (await the_ask(run, "unknown_effect")).give_up(by="lee")
        assert await states(run) == [("letter", "unknown", 1)]
        assert not await life.rt.asks()
    assert house.count("letter") == 1


async def test_a_word_that_comes_as_the_run_ends_is_not_lost(house: House) -> None:
    """The holder is about to write T9 and has not read the signal: what the person said counts all the same."""
    agent, run_id = await lost_letter_beside_a_read(house)
    plan, in_look, ending, reading = FaultPlan(), barrier(), barrier(), barrier()
    plan.at("look.before", fault=in_look).at("end.before", fault=ending).at("absorb.before", nth=2, fault=reading)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.get_run(run_id)
        await in_look.reached.wait()
        ask = await question(run)
        await run.cancel(by="kim")
        await ending.reached.wait()
        await ask.happened("sent", by="lee")
        await reading.reached.wait()
        ending.go_on.set()
        while (await run.refresh()).status == "running":
            pass
        reading.go_on.set()
        assert await rest(run) == "cancelled"
        assert (await states(run))[0] == ("letter", "succeeded", 1)
    assert house.count("letter") == 1


async def test_a_word_that_the_dead_process_had_not_read_counts_when_its_run_is_cancelled(house: House) -> None:
    agent, run_id = await lost_letter_beside_a_read(house)
    plan, in_look = FaultPlan().at("absorb.before", fault=barrier()), barrier()
    async with house.life(agent, plan=plan.at("look.before", fault=in_look)) as life:
        run = await life.rt.get_run(run_id)
        await in_look.reached.wait()
        await (await question(run)).happened("sent", by="lee")
        life.die()  # it has not read the signal
    plan, claiming = FaultPlan(), barrier()
    async with house.life(agent, plan=plan.at("claim.before", fault=claiming)) as life:
        run = await life.rt.get_run(run_id)
        await claiming.reached.wait()
        await run.cancel(by="kim")  # it is queued: nobody holds it
        claiming.go_on.set()
        assert await rest(run) == "cancelled"
        assert (await states(run))[0] == ("letter", "succeeded", 1)
    assert house.count("letter") == 1


async def test_run_it_is_not_offered_on_a_run_that_has_ended(house: House) -> None:
    """'It did not happen' then means that it failed: no attempt is made."""
    agent = house.agent([LETTER], error("rejected"))
    run_id = await house.dies(agent, at="started.after")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        ask = await the_ask(run, "unknown_effect")
        await run.cancel(by="kim")
        await ask.not_happened(by="lee")
        with pytest.raises((AlreadyDecided, AskClosed)):
            await ask.happened(by="park")
        assert await states(run) == [("letter", "failed", 1)]
    async with house.life(agent) as life:
        assert (await life.rt.get_run(run_id)).status == "cancelled"
    assert house.count("letter") == 0


# --- nothing is invisible ---------------------------------------------------------------------------------------


async def test_p5_what_reached_a_tool_is_listed_however_the_run_ended(house: House) -> None:
    agent = house.agent([LETTER], error("rejected"), tools=[look, letter])
    house.answers("and now", [LETTER], error("quota"))
    async with house.life(agent) as life:
        failed = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(failed) == "failed"
        later = await life.rt.start(agent, "and now", session="t", operation_id="op-2")
        assert await rest(later) == "failed"
        listed = {e.key for e in await life.rt.effects()}
    assert house.keys("letter") == listed
    assert len(listed) == 2


async def test_a_tool_that_is_gone_fails_its_planned_call_and_asks_about_its_started_one(house: House) -> None:
    agent = house.agent([LETTER], "done")
    run_id = await house.dies(agent, at="started.before")
    without = house.agent([LETTER], "done", tools=[look])
    async with house.life(without) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("letter", "failed", 0)]
    assert house.count("letter") == 0


async def test_a_started_call_whose_tool_is_gone_is_unknown(house: House) -> None:
    agent = house.agent([MAIL], "done")
    run_id = await house.dies(agent, at="outcome.before")
    without = house.agent([MAIL], "done", tools=[look])
    async with house.life(without) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        assert await states(run) == [("mail", "unknown", 1)]
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("mail") == 1


# --- context variables ------------------------------------------------------------------------------------------

WHOSE: ContextVar[str] = ContextVar("whose", default="nobody's")


@tool(effect="read")
async def whose(ctx: Context[House]) -> str:
    ctx.deps.happened(ctx.idempotency_key, "whose")
    return WHOSE.get()


@tool(effect="read")
def whose_in_a_thread(ctx: Context[House]) -> str:
    ctx.deps.happened(ctx.idempotency_key, "whose_in_a_thread")
    return WHOSE.get()


@pytest.mark.parametrize("tool", [whose, whose_in_a_thread])
async def test_a_tool_sees_the_context_variables_of_who_opened_the_runtime_and_of_no_request(
    house: House, tool: Any
) -> None:
    agent = house.agent([call(tool.name)], "done", tools=[tool])

    async def request(user: str) -> Run:
        WHOSE.set(user)
        return await life.rt.start(agent, "go", session="s", user=user)

    WHOSE.set("the program's")
    async with house.life(agent) as life:
        # The first is driven as it is accepted, each other one as the one before it has ended.
        runs = [await asyncio.create_task(request(user)) for user in ("ann", "ben", "cem")]
        for run in runs:
            assert await rest(run) == "completed"
            assert [r.response for r in results(house.asked(run)[-1].messages)[-1:]] == ["the program's"]


# --- threads ----------------------------------------------------------------------------------------------------


@tool
def in_a_thread(ctx: Context[House]) -> str:
    raise AssertionError("there is no thread for it")


async def test_a_call_for_which_there_is_no_thread_has_failed_and_nobody_is_asked_about_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "ondol-tool-in_a_thread":
            raise RuntimeError("can't start new thread")  # as the operating system's limit does
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    agent = house.agent([call("in_a_thread"), LETTER], "done", tools=[in_a_thread, letter])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go")
        assert await rest(run) == "completed"
        assert await states(run) == [("in_a_thread", "failed", 1), ("letter", "succeeded", 1)]
    said, _ = results(house.asked(run)[-1].messages)
    assert (said.error, "no thread" in str(said.response)) == (True, True)


# --- decorators -------------------------------------------------------------------------------------------------


def _in_a_thread(function: Any) -> Any:
    @functools.wraps(function)
    async def inside(**given: Any) -> Any:
        return await asyncio.to_thread(function, **given)

    return inside


def _remembered(function: Any) -> Any:
    @functools.wraps(function)
    def inside(ctx: Context[House]) -> str:
        ctx.deps.happened(ctx.idempotency_key, function.__name__)
        return "as remembered"

    return inside


@tool
@_in_a_thread
def by_an_async_decorator(ctx: Context[House]) -> str:
    ctx.deps.happened(ctx.idempotency_key, "by_an_async_decorator")
    return "done"


@tool
@_remembered
async def by_a_plain_decorator(ctx: Context[House]) -> str:
    raise AssertionError("it is not called")


@pytest.mark.parametrize(
    ("tool", "said"), [(by_an_async_decorator, "done"), (by_a_plain_decorator, "as remembered")]
)  # fmt: skip
async def test_what_a_decorated_tool_gives_is_its_result_whatever_of_the_two_is_async(
    house: House, tool: Any, said: str
) -> None:
    agent = house.agent([call(tool.name)], "done", tools=[tool])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go")
        assert await rest(run) == "completed"
        assert await states(run) == [(tool.name, "succeeded", 1)]
        assert [r.response for r in results(house.asked(run)[-1].messages)] == [said]
