"""A run that processes die of: alone after two deaths, parked after three; healthy runs go on (ground rule 7.10)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from ondol import Agent, AskClosed, InvalidInput, Run, RunFailed, tool
from ondol.testing import Barrier, FaultPlan, barrier, call
from promise.house import HELLO, House, kinds, letter, mail, rest, states, the_ask

LETTER = call("letter", to="kim")


async def deaths(house: House, agent: Agent, n: int, at: str = "model.before") -> None:
    """That many processes die of operation ``op`` at this point."""
    for _ in range(n):
        async with house.life(agent, dies_at=at) as life:
            await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
        house.clock.advance(hours=1)


async def parked(house: House, *answers: object) -> Agent:
    agent = house.agent(*(answers or ("done",)))
    await deaths(house, agent, 3)
    return agent


async def test_one_and_two_deaths_are_survived(house: House) -> None:
    agent = house.agent("done")
    await deaths(house, agent, 2)
    async with house.life(agent) as life:
        assert await rest(await life.rt.find_run("op")) == "completed"
    assert len(house.asked()) == 3


async def test_after_three_deaths_it_is_parked_with_an_ask_that_says_why(house: House) -> None:
    agent = await parked(house)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "parked"
        ask = await the_ask(run, "parked")
        assert "3 processes" in ask.question
        assert run.error is not None
        assert run.error["code"] == "parked"
        assert (await kinds(run))[-1] == "run.parked"
        assert (await life.rt.get_session("s")).revision == 0
    assert len(house.asked()) == 3  # and it is not tried again


async def test_it_stays_parked_over_restarts_and_the_same_id_does_not_wake_it(house: House) -> None:
    agent = await parked(house)
    for _ in range(2):
        async with house.life(agent) as life:
            run = await life.rt.start(agent, "go", session="s", operation_id="op")
            assert await rest(run) == "parked"
            assert len(await run.asks()) == 1
    assert len(house.asked()) == 3


async def test_healthy_runs_go_on_in_its_own_session_and_in_others(house: House) -> None:
    agent = await parked(house)
    async with house.life(agent) as life:
        for n, session in enumerate(("s", "t")):
            assert (await life.rt.run(agent, HELLO, session=session, operation_id=f"healthy-{n}")).text
        assert (await life.rt.find_run("op")).status == "parked"


async def test_a_person_resumes_it(house: House) -> None:
    agent = await parked(house)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        await (await the_ask(run, "parked")).answer("resume", by="lee")
        assert await rest(run) == "completed"
        assert (await life.rt.get_session("s")).revision == 1


async def test_a_resumed_run_has_three_new_lives(house: House) -> None:
    agent = await parked(house)
    async with house.life(agent, dies_at="model.before") as life:
        run = await life.rt.find_run("op")
        await (await the_ask(run, "parked")).answer("resume", by="lee")
        await life.ends(run.result())
    await deaths(house, agent, 2)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "parked"
        (first, second) = await run.asks(state=None)
        assert [first.state, second.state] == ["decided", "open"]
        await second.answer("resume", by="lee")
        assert await rest(run) == "completed"


async def test_a_person_fails_it(house: House) -> None:
    agent = await parked(house)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        await (await the_ask(run, "parked")).answer("fail", by="lee", reason="it kills us")
        with pytest.raises(RunFailed, match="it kills us") as failed:
            await run.result()
        assert not failed.value.retryable
        assert await rest(await life.rt.start(agent, "go", session="s", operation_id="op")) == "failed"


async def test_a_person_cancels_it(house: House) -> None:
    agent = await parked(house)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        ask = await the_ask(run, "parked")
        assert (await run.cancel(by="lee")).status == "cancelled"
        with pytest.raises(AskClosed):
            await ask.answer("resume", by="lee")


async def test_its_ask_takes_no_other_answer(house: House) -> None:
    agent = await parked(house)
    async with house.life(agent) as life:
        ask = await the_ask(await life.rt.find_run("op"), "parked")
        for wrong in (ask.approve(by="lee"), ask.happened(by="lee"), ask.give_up(by="lee"), ask.answer("no", by="lee")):
            with pytest.raises(InvalidInput):
                await wrong
        assert (await life.rt.get_ask(ask.id)).state == "open"


async def test_its_effects_are_left_as_they_are_until_it_is_taken_up(house: House) -> None:
    agent = house.agent([LETTER, call("refund", order="1")], "done")
    await deaths(house, agent, 3, at="refund.before")
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        if run.status == "parked":
            before = await states(run)
            assert ("refund", "started") in [(tool, state) for tool, state, _ in before]
            await (await the_ask(run, "parked")).answer("resume", by="lee")
        while await rest(run) == "waiting":
            await (await run.asks())[0].happened(by="lee")
        assert run.status == "completed"
    assert house.count("letter") == 1


async def test_an_ask_of_a_parked_run_that_is_decided_does_not_wake_it(house: House) -> None:
    agent = house.agent([call("wire", to="kim"), call("look", order="1")], "done")
    await deaths(house, agent, 3, at="look.before")
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "parked"
        await (await the_ask(run, "approval")).approve(by="lee")
        assert (await run.refresh()).status == "parked"
        assert house.count() == 0
        await (await the_ask(run, "parked")).answer("resume", by="lee")
        assert await rest(run) == "completed"
    assert (house.count("wire"), house.count("look")) == (1, 1)


async def test_progress_forgives_the_deaths_before_it(house: House) -> None:
    agent = house.agent([LETTER], [LETTER], "done")
    for step in range(3):
        await deaths(house, agent, 1)
        if step < 2:  # the next process takes it a step further, and dies too: five deaths, never three at one step
            async with house.life(agent, dies_at="outcome.after") as life:
                await life.ends()
    async with house.life(agent) as life:
        assert await rest(await life.rt.find_run("op")) == "completed"
    assert house.count("letter") == 2
    assert len(house.asked()) == 6


@pytest.mark.parametrize("cut_off", [False, True], ids=["at_a_boundary", "cut_off"])
async def test_clean_shutdowns_do_not_count(house: House, cut_off: bool) -> None:
    agent, plan = house.agent([LETTER], "done"), FaultPlan()
    for _ in range(5):
        gate = barrier()
        async with house.life(agent, plan=FaultPlan().at("model.before", fault=gate)) as life:
            await life.rt.start(agent, "go", session="s", operation_id="op")
            await gate.reached.wait()
            if cut_off:
                await life.rt.close(drain=0.01)
            else:
                closing = asyncio.create_task(life.rt.close())
                gate.go_on.set()
                await closing
        if house.written().runs and next(iter(house.written().runs.values())).state == "completed":
            break
    assert all(run.deaths == 0 for run in house.written().runs.values())
    async with house.life(agent, plan=plan) as life:
        assert await rest(await life.rt.find_run("op")) == "completed"
    assert house.count("letter") == 1


# --- the suspect ------------------------------------------------------------------------------------------------


async def not_claimed(run: Run) -> None:
    """It stays in its queue while others have every chance."""
    for _ in range(25):
        assert (await run.refresh()).status == "queued"
        await asyncio.sleep(0)


@pytest.mark.parametrize("sent_again", [False, True])
async def test_after_two_deaths_the_suspect_waits_until_the_others_are_done(house: House, sent_again: bool) -> None:
    agent, in_letter, in_model, claiming = house.agent("done"), barrier(), barrier(), barrier()
    house.answers("work", [LETTER], "worked")
    await deaths(house, agent, 1)
    plan = FaultPlan().at("model.before", fault=in_model).at("claim.before", nth=2, fault=claiming)
    async with house.life(agent, plan=plan) as life:
        await in_model.reached.wait()
        healthy = await life.rt.start(agent, "work", session="t", operation_id="healthy")
        await claiming.reached.wait()
        life.die()  # for the second time of that run, and the other one had not begun
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_letter)) as life:
        suspect, healthy = await life.rt.find_run("op"), await life.rt.find_run("healthy")
        await in_letter.reached.wait()
        if sent_again:
            suspect = await life.rt.start(agent, "go", session="s", operation_id="op")
        await not_claimed(suspect)
        in_letter.go_on.set()
        assert await rest(healthy) == await rest(suspect) == "completed"


async def test_while_the_suspect_runs_nothing_else_starts(house: House) -> None:
    agent, in_model = house.agent("done"), barrier()
    await deaths(house, agent, 2)
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=in_model)) as life:
        await in_model.reached.wait()
        suspect = await life.rt.find_run("op")
        assert suspect.status == "running"
        healthy = await life.rt.start(agent, HELLO, session="t", operation_id="healthy")
        await not_claimed(healthy)
        in_model.go_on.set()
        assert await rest(suspect) == await rest(healthy) == "completed"


async def test_two_suspects_run_one_after_the_other(house: House) -> None:
    agent = house.agent("done")
    for n in range(2):
        plan, gates = in_model_twice()
        async with house.life(agent, plan=plan) as life:
            for session in ("s", "t"):
                await life.rt.start(agent, "go", session=session, operation_id=f"op-{session}")
            for gate in gates:
                await gate.reached.wait()
            life.die()
        assert {run.deaths for run in house.written().runs.values()} == {n}
    plan, gates = in_model_twice()
    async with house.life(agent, plan=plan) as life:
        runs = {r.id: r for r in [await life.rt.find_run(f"op-{s}") for s in ("s", "t")]}
        await gates[0].reached.wait()
        running = house.requests[-1].run
        (other,) = [r for id, r in runs.items() if id != running]
        await not_claimed(other)
        gates[0].go_on.set()
        await gates[1].reached.wait()
        assert house.requests[-1].run == other.id
        gates[1].go_on.set()
        for run in runs.values():
            assert await rest(run) == "completed"


def in_model_twice() -> tuple[FaultPlan, list[Barrier]]:
    plan, gates = FaultPlan(), [barrier(), barrier()]
    for nth, gate in enumerate(gates, 1):
        plan.at("model.before", nth=nth, fault=gate)
    return plan, gates


MAIL = call("mail", to="kim")


async def waits_for_its_deadline(house: House, agent: Agent) -> None:
    """Two processes died: the first with a call in flight, the second while it waited for that call's deadline."""
    async with house.life(agent, dies_at="mail.after") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    async with house.life(agent) as life:
        await house.clock.wait_for_timers()
        life.die()


async def test_a_suspect_that_only_waits_for_a_deadline_holds_up_nobody(house: House) -> None:
    agent = house.agent([MAIL], "done")
    await waits_for_its_deadline(house, agent)
    async with house.life(agent) as life:
        suspect = await life.rt.find_run("op")
        await house.clock.wait_for_timers()
        healthy = await life.rt.start(agent, HELLO, session="t", operation_id="healthy")
        assert await rest(healthy) == "completed"
        assert (await suspect.refresh()).status == "running"
        house.clock.advance(minutes=2)
        assert await rest(suspect) == "completed"
    assert house.count("mail") == 1


async def test_a_suspect_waits_no_longer_for_a_deadline_where_the_clock_is_set_back_meanwhile(house: House) -> None:
    agent, resting, rests = house.agent([MAIL], "done"), barrier(), barrier()
    await waits_for_its_deadline(house, agent)
    plan = FaultPlan().at("rest.before", fault=resting).at("rest.after", fault=rests)
    async with house.life(agent, plan=plan) as life:
        suspect = await life.rt.find_run("op")
        await resting.reached.wait()
        house.clock.jump(days=-1)
        resting.go_on.set()
        await rests.reached.wait()
        rests.go_on.set()
        for _ in range(100):  # turns of the event loop, until it waits: others wait for the clock, too
            await asyncio.sleep(0)
        house.clock.advance(minutes=2)
        assert await rest(suspect) == "completed"
    assert house.count("mail") == 1


async def test_a_suspect_is_not_parked_for_what_its_process_dies_of_while_it_waits_for_a_deadline(house: House) -> None:
    agent = house.agent([MAIL], "done")
    await waits_for_its_deadline(house, agent)
    for _ in range(2):
        async with house.life(agent) as life:
            await house.clock.wait_for_timers()
            life.die()
    async with house.life(agent) as life:
        suspect = await life.rt.find_run("op")
        await house.clock.wait_for_timers()
        house.clock.advance(minutes=2)
        assert await rest(suspect) == "completed"
    assert house.count("mail") == 1


async def test_a_suspect_is_parked_for_what_its_process_dies_of_behind_a_deadline(house: House) -> None:
    agent = house.agent([MAIL], "done")
    await waits_for_its_deadline(house, agent)
    async with house.life(agent, dies_at="check") as life:
        await house.clock.wait_for_timers()
        house.clock.advance(minutes=2)
        await life.ends()
    async with house.life(agent) as life:
        assert await rest(await life.rt.find_run("op")) == "parked"


async def test_a_suspect_whose_deadline_has_come_goes_on_alone(house: House) -> None:
    agent, in_letter, in_check = house.agent([MAIL], "done"), barrier(), barrier()
    house.answers("work", [LETTER], "worked")
    await waits_for_its_deadline(house, agent)
    plan = FaultPlan().at("letter.before", fault=in_letter).at("check", fault=in_check)
    patient = [tool(effect="once", timeout=timedelta(days=1), name="letter")(letter.function), mail]
    agent = house.agent([MAIL], "done", tools=patient)
    async with house.life(agent, plan=plan) as life:
        suspect = await life.rt.find_run("op")
        await house.clock.wait_for_timers()
        beside = await life.rt.start(agent, "work", session="t", operation_id="beside")
        await in_letter.reached.wait()
        house.clock.advance(seconds=61)
        await house.clock.wait_for_timers(2)  # the time of the letter, and how long the suspect waits for it to end
        assert not in_check.reached.is_set()
        in_letter.go_on.set()
        assert await rest(beside) == "completed"
        await in_check.reached.wait()
        healthy = await life.rt.start(agent, HELLO, session="u", operation_id="healthy")
        await not_claimed(healthy)
        in_check.go_on.set()
        assert await rest(suspect) == await rest(healthy) == "completed"
    assert (house.count("mail"), house.count("letter")) == (1, 1)


async def test_a_suspect_that_waits_to_be_alone_can_be_cancelled(house: House) -> None:
    agent, in_letter = house.agent([MAIL], "done"), barrier()
    house.answers("work", [LETTER], "worked")
    await waits_for_its_deadline(house, agent)
    patient = [tool(effect="once", timeout=timedelta(days=1), name="letter")(letter.function), mail]
    agent = house.agent([MAIL], "done", tools=patient)
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_letter)) as life:
        suspect = await life.rt.find_run("op")
        await house.clock.wait_for_timers()
        beside = await life.rt.start(agent, "work", session="t", operation_id="beside")
        await in_letter.reached.wait()
        house.clock.advance(seconds=61)
        await house.clock.wait_for_timers(2)
        await suspect.cancel(by="lee")
        assert await rest(suspect) == "cancelled"
        in_letter.go_on.set()
        assert await rest(beside) == "completed"
