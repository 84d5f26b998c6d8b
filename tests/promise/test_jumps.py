"""A clock that is set, forwards or backwards, while something waits for its time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from crash.lives import Life

from ondol import AlreadyDecided, Context, OutboxMessage, Run, tool
from ondol.testing import FaultPlan, barrier, call, error, raise_
from promise.house import House, letter, look, mail, refund, rest, states, the_ask

JUMPS = [timedelta(hours=9), timedelta(days=1), timedelta(days=3650)]


@tool(effect="once", approve=True, approve_expires=timedelta(hours=8))
async def rush(ctx: Context[House], to: str) -> str:
    return await ctx.deps.act(ctx, "rush", to=to)


RUSH = [call("rush", to="kim")]


async def looked(life: Life, *runs: Run) -> None:
    """Until the engine has looked at all that these runs gave it reason to."""
    look = life.engine._look
    while any(life.engine.is_working_on(r.id) for r in runs) or look.is_set() or not look._waiters:  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.parametrize("jump", JUMPS)
async def test_after_a_jump_of_more_than_five_minutes_nothing_expires_for_five_minutes(
    house: House, jump: timedelta
) -> None:
    agent = house.agent(RUSH, "then not", tools=[rush])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        ask = await the_ask(run)
        house.clock.jump(jump)
        for _ in range(4):
            await life.engine.look()
            assert (await life.rt.get_ask(ask.id)).state == "open"
            house.clock.advance(minutes=1)
        house.clock.advance(minutes=1)
        await life.engine.look()
        assert (await life.rt.get_ask(ask.id)).state == "expired"
        assert await rest(run) == "completed"
    assert house.count() == 0


async def test_what_comes_due_in_the_pause_expires_when_that_is_over(house: House) -> None:
    agent = house.agent(RUSH, "then not", tools=[rush])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        house.clock.jump(days=1)
        await life.engine.look()
        house.clock.advance(minutes=5)  # the timer that the look has set
        assert (await run.result(through_asks=True)).text == "then not"
        assert (await life.rt.get_ask((await run.asks(state=None))[0].id)).state == "expired"


async def test_a_clock_that_is_put_right_again_has_cost_nothing(house: House) -> None:
    agent = house.agent(RUSH, "done", tools=[rush])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        house.clock.jump(days=1)
        await life.engine.look()
        house.clock.advance(minutes=2)
        house.clock.jump(days=-1)
        await life.engine.look()
        house.clock.advance(hours=7)
        await life.engine.look()
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    assert house.count("rush") == 1


async def test_in_the_pause_a_persons_word_still_counts_and_after_it_no_more(house: House) -> None:
    agent = house.agent(RUSH, "done", tools=[rush])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        later = await life.rt.start(agent, "go", session="t", operation_id="later")
        assert await rest(run) == await rest(later) == "waiting"
        await looked(life, run, later)  # and has set its timer by the clock as it goes until then
        house.clock.jump(days=1)
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
        ask = await the_ask(later)
        house.clock.advance(minutes=6)
        with pytest.raises(AlreadyDecided, match="expire"):
            await ask.approve(by="lee")
        while (await later.refresh()).status != "completed":  # noqa: ASYNC110 - the engine looks in its own time
            await asyncio.sleep(0)
    assert house.count("rush") == 1


async def test_a_lost_attempt_is_not_waited_for_longer_than_it_could_take(house: House) -> None:
    """The clock was set back after it began: its deadline is a day away, and it was given a minute."""
    agent = house.agent([call("mail", to="kim")], "done", tools=[mail])
    async with house.life(agent, dies_at="mail.before") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    house.clock.jump(days=-1)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        await house.clock.wait_for_timers()
        assert house.count("mail") == 0  # until then the lost one may still act
        house.clock.advance(seconds=61)
        assert await rest(run) == "completed"
        assert await states(run) == [("mail", "succeeded", 2)]


@pytest.mark.parametrize(("back", "state"), [(timedelta(minutes=4), "completed"), (timedelta(minutes=6), "waiting")])
async def test_a_key_whose_age_nobody_knows_because_the_clock_was_set_back_is_not_sent_again(
    house: House, back: timedelta, state: str
) -> None:
    """It may be older than its ``key_ttl``: nobody knows for how long the clock was wrong."""
    agent = house.agent([call("refund", order="1")], "done", tools=[refund])
    async with house.life(agent, dies_at="refund.after") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    house.clock.jump(-back)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        if state == "completed":
            await house.clock.wait_for_timers()
            house.clock.advance(minutes=6)
        assert await rest(run) == state
        if state == "waiting":
            assert house.count("refund") == 1
            await (await the_ask(run, "unknown_effect")).not_happened("looked it up", by="lee")
            await house.clock.wait_for_timers()
            house.clock.advance(minutes=2)
            assert await rest(run) == "completed"
    assert house.count("refund") == 2
    assert len(house.keys("refund")) == 1


@pytest.mark.parametrize("jump", [timedelta(hours=10), timedelta(hours=-10)])
async def test_the_time_of_a_body_of_steps_is_the_time_that_passed_also_where_the_clock_is_set(
    house: House, jump: timedelta
) -> None:
    """It is over after a minute of its own, before and after the jump together."""
    reached, opened = asyncio.Queue[str](), asyncio.Queue[None]()

    @tool(effect="steps", timeout=timedelta(minutes=1))
    async def task(ctx: Context[House]) -> str:
        for order in ("1", "2"):
            reached.put_nowait(order)
            await opened.get()
            await ctx.call(look, order=order)
        reached.put_nowait("end")
        await opened.get()
        return "all of it"

    agent = house.agent([call("task")], "done", tools=[task])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await reached.get() == "1"
        house.clock.jump(jump)
        opened.put_nowait(None)
        assert await reached.get() == "2"
        house.clock.advance(seconds=40)
        opened.put_nowait(None)
        assert await reached.get() == "end"
        await house.clock.wait_for_timers()
        house.clock.advance(seconds=25)
        assert await rest(run) == "completed"
        assert await states(run) == [("task", "failed", 0), ("look", "succeeded", 0), ("look", "succeeded", 0)]


async def test_a_message_of_the_outbox_is_told_again_though_the_clock_was_set_back(house: House) -> None:
    agent, heard = house.agent("done"), asyncio.Queue[str]()

    async def listen(message: OutboxMessage) -> None:
        heard.put_nowait(message.run)
        if message.run == first.id and message.attempts == 0:
            raise ConnectionError("nobody is there")

    async with house.life(agent, deliver=listen) as life:
        first = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await heard.get() == first.id
        while (await life.rt.outbox())[0].error is None:
            pass
        house.clock.jump(days=-1)
        later = await life.rt.start(agent, "go", session="t", operation_id="later")
        assert {await heard.get(), await heard.get()} == {first.id, later.id}


async def test_the_next_attempt_at_the_model_comes_though_the_clock_was_set_back(house: House) -> None:
    agent = house.agent("done")
    overloaded = raise_(error("overloaded"))
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=overloaded)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.clock.wait_for_timers()
        house.clock.jump(days=-1)
        house.clock.advance(seconds=2)
        assert await rest(run) == "completed"
    assert len(house.asked()) == 2


async def test_the_next_attempt_at_the_model_comes_though_the_process_died_and_the_clock_was_set_back(
    house: House,
) -> None:
    agent = house.agent("done")
    plan = FaultPlan().at("model.before", fault=raise_(error("overloaded")))
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.clock.wait_for_timers()
        life.die()
    house.clock.jump(days=-1)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        await house.clock.wait_for_timers()
        house.clock.advance(seconds=61)
        assert await rest(run) == "completed"


async def test_an_attempt_gets_no_more_time_because_the_clock_was_set_back_as_it_began(house: House) -> None:
    hangs, starting = barrier(), barrier()
    agent = house.agent([call("letter", to="kim")], "done", tools=[letter, look])
    plan = FaultPlan().at("started", when="after", fault=starting).at("letter.before", fault=hangs)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await starting.reached.wait()
        house.clock.jump(days=-1)
        starting.go_on.set()
        await hangs.reached.wait()
        house.clock.advance(seconds=61)
        assert await rest(run) == "waiting"
        assert await states(run) == [("letter", "unknown", 1)]


def test_the_tools_above_are_given_a_minute() -> None:
    given: Any = refund.timeout, letter.timeout
    assert given == (timedelta(seconds=60), timedelta(seconds=60))
