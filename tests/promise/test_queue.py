"""One run a session at a time, in the order in which they came; parked and failed runs hold nobody up."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from kit import results

from ondol import Context, Happened, InvalidInput, Run, RunCancelled, RunResult, SessionBusy, Tool, tool, toolset
from ondol.testing import FaultPlan, barrier, call, error
from promise.house import HELLO, HELLO_BACK, House, kinds, rest, the_ask

LETTER, WIRE = call("letter", to="kim"), call("wire", to="kim")


async def order(house: House) -> list[str]:
    """The operations in the order in which the model was first asked for them."""
    operations = {run.id: run.operation_id for run in house.written().runs.values()}
    return list(dict.fromkeys(operations[request.run] for request in house.requests))


async def statuses(*runs: Run) -> list[str]:
    return [(await run.refresh()).status for run in runs]


async def test_runs_of_one_session_go_one_after_the_other_in_the_order_of_their_acceptance(house: House) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_letter)) as life:
        runs = [await life.rt.start(agent, "go", session="s", operation_id="0")]
        await in_letter.reached.wait()
        runs += [await life.rt.start(agent, HELLO, session="s", operation_id=str(n)) for n in range(1, 5)]
        assert await statuses(*runs) == ["running", *["queued"] * 4]
        in_letter.go_on.set()
        results = [await run.result() for run in runs]
        assert [r.revision for r in results] == [1, 2, 3, 4, 5]
    assert await order(house) == ["0", "1", "2", "3", "4"]


async def test_sessions_do_not_wait_for_each_other(house: House) -> None:
    agent, plan = house.agent([LETTER], "done"), FaultPlan()
    gates = [barrier() for _ in range(3)]
    for nth, gate in enumerate(gates, 1):
        plan.at("letter.before", nth=nth, fault=gate)
    async with house.life(agent, plan=plan) as life:
        runs = [await life.rt.start(agent, "go", session=f"s{n}", operation_id=str(n)) for n in range(3)]
        for gate in gates:
            await gate.reached.wait()  # all three at once
        for gate in gates:
            gate.go_on.set()
        assert [await rest(run) for run in runs] == ["completed"] * 3


async def test_the_order_outlives_the_process(house: House) -> None:
    agent = house.agent([LETTER], "done")
    async with house.life(agent, dies_at="letter.before") as life:
        await life.rt.start(agent, "go", session="s", operation_id="0")
        last = None
        for n in range(1, 4):
            last = await life.rt.start(agent, HELLO, session="s", operation_id=str(n))
        assert last is not None
        await life.ends(last.result())
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        first = await life.rt.find_run("0")
        assert await rest(first) == "waiting"
        others = [await life.rt.find_run(str(n)) for n in range(1, 4)]
        assert await statuses(*others) == ["queued"] * 3
        await (await the_ask(first, "unknown_effect")).not_happened(by="lee")
        for run in (first, *others):
            assert await rest(run) == "completed"
    assert await order(house) == ["0", "1", "2", "3"]


async def test_a_waiting_run_holds_up_those_behind_it_and_keeps_its_place(house: House) -> None:
    agent = house.agent([WIRE], "done")
    async with house.life(agent) as life:
        waiting = await life.rt.start(agent, "go", session="s", operation_id="0")
        assert await rest(waiting) == "waiting"
        behind = [await life.rt.start(agent, HELLO, session="s", operation_id=str(n)) for n in (1, 2)]
        assert await statuses(*behind) == ["queued", "queued"]
        await (await the_ask(waiting)).approve(by="lee")
        assert [(await run.result()).revision for run in (waiting, *behind)] == [3, 4, 5]


@pytest.mark.parametrize("answers", [(error("rejected"),), (error("quota"),)], ids=["failed", "retryable"])
async def test_a_failed_run_holds_nobody_up(house: House, answers: tuple[object, ...]) -> None:
    agent, in_model = house.agent(*answers), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=in_model)) as life:
        failing = await life.rt.start(agent, "go", session="s", operation_id="0")
        await in_model.reached.wait()
        behind = await life.rt.start(agent, HELLO, session="s", operation_id="1")
        in_model.go_on.set()
        assert await rest(failing) == "failed"
        assert await rest(behind) == "completed"


async def test_a_parked_run_holds_nobody_up_and_enters_at_the_tail_when_it_is_taken_up(house: House) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    house.answers("park", "unparked")
    for _ in range(3):
        async with house.life(agent, dies_at="model.before") as life:
            again = life.rt.run(agent, "park", session="s", operation_id="0")
            await life.ends(again)
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_letter)) as life:
        parked = await life.rt.find_run("0")
        assert parked.status == "parked"
        first = await life.rt.start(agent, "go", session="s", operation_id="1")
        await in_letter.reached.wait()
        second = await life.rt.start(agent, HELLO, session="s", operation_id="2")
        await (await the_ask(parked, "parked")).answer("resume", by="lee")
        third = await life.rt.start(agent, HELLO, session="s", operation_id="3")
        assert await statuses(parked, second, third) == ["queued"] * 3
        in_letter.go_on.set()
        results = [await run.result() for run in (first, second, parked, third)]
        assert [r.revision for r in results] == [1, 2, 3, 4]
        said = [m.text for m in house.asked(parked.id)[-1].messages]
        assert said.count(HELLO) == 1  # it sees the history as it is now


async def test_a_retried_run_enters_at_the_tail_and_its_steps_follow_the_history(house: House) -> None:
    agent = house.agent([LETTER], lambda request: error("quota") if len(house.asked()) == 2 else "done")
    async with house.life(agent) as life:
        failed = await life.rt.start(agent, "go", session="s", operation_id="0")
        assert await rest(failed) == "failed"
        assert (await life.rt.run(agent, HELLO, session="s", operation_id="1")).revision == 2
        again = await life.rt.start(agent, "go", session="s", operation_id="0")
        assert (await again.result()).revision == 3
        last = house.asked(failed.id)[-1]
        said = [m.text for m in last.messages if m.role != "system" and m.text]
        assert said[-3:] == [HELLO, "hello to you", "go"]
        messages = [m.message.text for m in await (await life.rt.get_session("s")).messages()]
        assert messages[-1] == "done"
    assert house.count("letter") == 1


async def test_reject_refuses_while_a_run_is_unfinished_and_names_it(house: House) -> None:
    agent = house.agent([WIRE], "done")
    async with house.life(agent) as life:
        waiting = await life.rt.start(agent, "go", session="s", operation_id="0", if_busy="reject")
        assert await rest(waiting) == "waiting"
        with pytest.raises(SessionBusy) as busy:
            await life.rt.start(agent, HELLO, session="s", operation_id="1", if_busy="reject")
        assert busy.value.run == waiting.id
        assert len(house.written().runs) == 1
        assert (await life.rt.run(agent, HELLO, session="t", operation_id="1", if_busy="reject")).revision == 1
        await waiting.cancel(by="kim")
        assert (await life.rt.run(agent, HELLO, session="s", operation_id="2", if_busy="reject")).text


async def test_a_queued_run_builds_its_context_when_its_turn_comes(house: House) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=in_letter)) as life:
        first = await life.rt.start(agent, "go", session="s", operation_id="0")
        await in_letter.reached.wait()
        second = await life.rt.start(agent, HELLO, session="s", operation_id="1")
        in_letter.go_on.set()
        assert await rest(first) == await rest(second) == "completed"
        said = [m.text for m in house.asked(second)[0].messages if m.text]
        assert said[1:] == ["go", "done", HELLO]


async def test_a_run_whose_agent_no_process_has_waits_visibly_and_holds_its_place(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    other, agent = house.agent("done", name="other"), house.agent("done")
    async with house.life(other, agent, dies_at="claim.before") as life:
        await life.ends(life.rt.run(other, "go", session="s", operation_id="0"))
    async with house.life(agent) as life:
        stranded = await life.rt.find_run("0")
        behind = await life.rt.start(agent, HELLO, session="s", operation_id="1")
        assert "other" in (await life.rt.waits_for_driver(stranded) or "")
        assert await statuses(stranded, behind) == ["queued", "queued"]
        waiting = asyncio.create_task(stranded.result())
        async with asyncio.timeout(10):
            while "no process serves the agent 'other'" not in caplog.text:  # noqa: ASYNC110 - a log tells nobody
                await asyncio.sleep(0)
        waiting.cancel()
    async with house.life(agent, other) as life:
        stranded, behind = await life.rt.find_run("0"), await life.rt.find_run("1")
        assert await life.rt.waits_for_driver(stranded) is None
        assert await rest(stranded) == await rest(behind) == "completed"


async def test_a_hundred_operations_at_once_in_ten_sessions_all_complete_in_order(house: House) -> None:
    agent = house.agent([LETTER], "done")
    async with house.life(agent) as life:
        runs = await asyncio.gather(
            *(life.rt.start(agent, "go", session=f"s{n % 10}", operation_id=str(n)) for n in range(100))
        )
        results = await asyncio.gather(*(run.result() for run in runs))
        for session in range(10):
            revisions = [r.revision for r in results if r.session == f"s{session}"]
            assert sorted(revisions) == list(range(1, 11))
        assert all(["run.resumed" not in await kinds(run) for run in runs])
    assert house.count("letter") == 100


async def test_a_message_for_a_session_that_waits_for_a_person_says_what_it_queues_behind(house: House) -> None:
    agent = house.agent([WIRE], "done")
    async with house.life(agent) as life:
        waiting = await life.rt.start(agent, "go", session="s", operation_id="0")
        assert waiting.waits_behind is None
        assert await rest(waiting) == "waiting"
        for _ in range(2):  # and so does the same message again
            behind = await life.rt.start(agent, HELLO, session="s", operation_id="1")
            ahead = behind.waits_behind
            assert ahead is not None
            assert (ahead.run, ahead.state) == (waiting.id, "waiting")
            assert f"queued behind {waiting.id} (waiting)" in repr(behind)
        (ask,) = ahead.asks
        assert (ask.kind, ask.tool) == ("approval", "wire")
        await ask.approve(by="lee")
        assert await rest(behind) == "completed"
        assert (await behind.refresh()).waits_behind is None


async def test_words_in_a_session_that_waits_for_an_approval_approve_nothing(house: House) -> None:
    agent = house.agent([WIRE], "done")
    house.answers("yes, approve it", "I cannot approve it myself")
    async with house.life(agent) as life:
        waiting = await life.rt.start(agent, "go", session="s", user="kim", operation_id="0")
        assert await rest(waiting) == "waiting"
        for n, if_busy in enumerate(("queue", "steer")):
            said = await life.rt.start(
                agent, "yes, approve it", session="s", user="kim", operation_id=f"said {n}", if_busy=if_busy
            )
            assert said.waits_behind is not None
            assert (await the_ask(waiting)).state == "open"
        assert (await waiting.refresh()).status == "waiting"
        await (await the_ask(waiting)).deny(by="lee")
        assert await rest(said) == "completed"
    assert house.count("wire") == 0


async def test_a_session_with_more_runs_than_a_page_is_cancelled_and_deleted_as_a_whole(house: House) -> None:
    agent = house.agent([call("wire", to="kim")], "done")
    async with house.life(agent) as life:
        assert await rest(await life.rt.start(agent, "go", session="s", operation_id="first")) == "waiting"
        starting = [life.rt.start(agent, HELLO, session="s", operation_id=f"op-{n}") for n in range(110)]
        runs = await asyncio.gather(*starting)
    async with house.life(house.agent("done", name="another")) as life:  # nothing of them is driven here
        await (await life.rt.get_session("s")).delete(cancel=True, by="lee")
        assert {(await life.rt.get_run(run.id)).status for run in runs} == {"cancelled"}
    house.checked = False  # only tombstones are left


async def test_a_session_that_is_deleted_with_its_runs_begins_none_of_those_that_waited_in_it(house: House) -> None:
    agent = house.agent([call("wire", to="kim")], "done")
    async with house.life(agent) as life:
        first = await life.rt.start(agent, "go", session="s")
        assert await rest(first) == "waiting"
        queued = [await life.rt.start(agent, HELLO, session="s") for _ in range(3)]
        await life.rt.delete_session("s", cancel=True, by="lee")
        assert [(await run.refresh()).status for run in (first, *queued)] == ["cancelled"] * 4
    assert {request.run for request in house.asked()} == {first.id}
    house.checked = False  # the journal of a deleted session is gone


@pytest.mark.parametrize("word", ["happened", "give_up"])
async def test_a_session_is_not_deleted_while_nobody_said_whether_an_effect_happened(house: House, word: str) -> None:
    agent = house.agent([call("letter", to="kim")], "done")
    await house.dies(agent, "letter.after")
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "waiting"
        await run.cancel(by="kim")
        (effect,) = await run.effects()
        with pytest.raises(SessionBusy, match=rf"{effect.id} .* may have happened: settle it") as busy:
            await life.rt.delete_session("s", by="lee")
        assert busy.value.run == run.id
        await getattr(await the_ask(run, "unknown_effect"), word)(by="lee")
        await life.rt.delete_session("s", by="lee")
    house.checked = False  # the journal of a deleted session is gone


async def test_a_tool_that_waits_for_a_run_behind_its_own_is_told_at_once(house: House) -> None:
    """In its own session, or for its own run: neither would go on before its time is over."""
    later: list[asyncio.Task[RunResult]] = []

    @tool(effect="read")
    async def hand_on(ctx: Context[House], session: str) -> str:
        house.happened(ctx.idempotency_key, "hand_on")
        if session == "later":  # the tool does not wait for it
            later.append(asyncio.create_task(life.rt.run("a", HELLO, session="s")))
            while not (later[0].done() or life.engine._waits):  # noqa: ASYNC110 - it waits while the tool does its work
                await asyncio.sleep(0)
            return "begun"
        if session == "own":
            await (await life.rt.get_run(ctx.run_id)).result()
        return (await life.rt.run("a", HELLO, session=session)).text

    calls = [call("hand_on", session=session) for session in ("s", "own", "other", "later")]
    agent = house.agent(calls, "done", tools=[hand_on])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "completed"
        behind, own, other, begun = results(house.asked(run)[-1].messages)
        for refused in (behind, own):
            assert refused.error
            assert f"goes on when run {run.id} does, and a tool of that waits for it here" in str(refused.response)
        assert (other.response, begun.response) == (HELLO_BACK, "begun")
        assert (await later[0]).text == HELLO_BACK
        assert await statuses(*await life.rt.runs()) == ["completed"] * 4


@pytest.mark.parametrize(("if_busy", "ends"), [("queue", "completed"), ("interrupt", "cancelled")])
@pytest.mark.parametrize("sessions", [["s", "s1"], ["s", "s1", "s2", "s3"]])
async def test_a_tool_that_waits_for_a_run_behind_one_that_waits_for_its_own_is_told_at_once(
    house: House, sessions: list[str], if_busy: Any, ends: str
) -> None:
    """Each run's tool waits for one in the next session, and that of the last for one in the first."""

    @tool(effect="read")
    async def hand_on(ctx: Context[House], n: int) -> str:
        house.happened(ctx.idempotency_key, "hand_on")
        if n < len(sessions):
            begun.append(await life.rt.start("a", f"step {n}", session=sessions[n]))
        else:
            begun.append(await life.rt.start("a", HELLO, session=sessions[0], if_busy=if_busy))
        return (await begun[-1].result()).text

    begun: list[Run] = []
    agent = house.agent([call("hand_on", n=1)], "done", tools=[hand_on], said="step 0")
    for n in range(1, len(sessions)):
        house.answers(f"step {n}", [call("hand_on", n=n + 1)], "done")
    async with house.life(agent) as life:
        first = await life.rt.start(agent, "step 0", session=sessions[0])
        assert await rest(first) == ends
        assert [await rest(run) for run in begun] == ["completed"] * len(sessions)
        *between, last, hello = begun
        (refused,) = results(house.asked(last)[-1].messages)
        assert refused.error
        assert f"run {hello.id} goes on when run {last.id} does, and a tool of that waits" in str(refused.response)
        for run in between:
            assert [r.response for r in results(house.asked(run)[-1].messages)] == ["done"]


async def test_a_check_and_a_toolset_that_wait_for_a_run_behind_their_own_are_told_at_once(house: House) -> None:
    told: list[str] = []

    @toolset
    async def own_tools(ctx: Context[House]) -> list[Tool[..., Any]]:
        try:
            await (await life.rt.get_run(ctx.run_id)).result()
        except InvalidInput as error:
            told.append(str(error))
        return []

    async def look(ctx: Context[House]) -> Happened:
        await life.rt.run("a", HELLO, session=ctx.session, operation_id="behind")
        return Happened()

    @tool(check=look)
    async def pay(ctx: Context[House]) -> str:
        return await ctx.deps.act(ctx, "pay")

    agent = house.agent([call("pay")], "done", tools=[pay, own_tools])
    async with house.life(agent, dies_at="pay.after") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "waiting"
        assert all(f"run {run.id} goes on when run {run.id} does" in one for one in told)
        assert told
        (effect,) = await run.effects()
        behind = await life.rt.find_run("behind")
        assert f"run {behind.id} goes on when run {run.id} does" in str(effect.reason)
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert [await rest(run), await rest(behind)] == ["completed"] * 2


async def test_a_tool_that_follows_a_run_behind_its_own_is_told_once_it_has_heard_what_happened(house: House) -> None:
    @tool(effect="read")
    async def follow(ctx: Context[House], session: str) -> str:
        house.happened(ctx.idempotency_key, "follow")
        heard: list[str] = []
        begun.append(await life.rt.start("a", HELLO, session=session))
        try:
            async for event in begun[-1].events():
                heard.append(event.type)
        except InvalidInput as error:
            return f"{heard}: {error}"
        return heard[-1]

    begun: list[Run] = []
    agent = house.agent([call("follow", session=session) for session in ("s", "other")], "done", tools=[follow])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "completed"
        own, other = [str(r.response) for r in results(house.asked(run)[-1].messages)]
        assert own.startswith("['run.accepted']: run ")
        assert f"goes on when run {run.id} does" in own
        assert other == "run.completed"
        assert [await rest(run) for run in begun] == ["completed"] * 2


async def test_a_tool_may_wait_for_a_run_that_was_cancelled_though_that_waited_for_its_own(house: House) -> None:
    @tool(effect="read")
    async def hand_on(ctx: Context[House]) -> str:
        house.happened(ctx.idempotency_key, "hand_on")
        return (await life.rt.run("a", "stop it", session="s1", operation_id="second")).text

    @tool(effect="read")
    async def stop(ctx: Context[House]) -> str:
        house.happened(ctx.idempotency_key, "stop")
        for run in (first, await life.rt.start("a", HELLO, session="s1")):  # as they were before
            await life.rt.cancel(run, by="kim")
            with pytest.raises(RunCancelled):
                await run.result()
        return "stopped"

    agent = house.agent([call("hand_on")], "done", tools=[hand_on, stop])
    house.answers("stop it", [call("stop")], "done")
    async with house.life(agent) as life:
        first = await life.rt.start(agent, "go", session="s")
        assert await rest(first) == "cancelled"
        assert await rest(second := await life.rt.find_run("second")) == "completed"
        assert [r.response for r in results(house.asked(second)[-1].messages)] == ["stopped"]


@pytest.mark.parametrize("how", ["in a task", "too late"])
async def test_a_tool_may_wait_for_a_run_behind_one_that_does_not_wait_for_its_tool(house: House, how: str) -> None:
    """That tool has only begun something that waits, or it goes on when its time is over."""
    answers: list[asyncio.Task[RunResult]] = []
    asked, waits, gone_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer() -> RunResult:
        while True:
            try:
                return await (await life.rt.find_run("second")).result()
            except asyncio.CancelledError:
                continue

    @tool(effect="read", timeout=timedelta(seconds=20))
    async def hand_on(ctx: Context[House]) -> str:
        house.happened(ctx.idempotency_key, "hand_on")
        await life.rt.start("a", "look", session="s1", operation_id="second")
        if how == "in a task":
            answers.append(asyncio.create_task(answer()))
            await waits.wait()
            return "begun"
        return (await answer()).text

    @tool(effect="read", timeout=timedelta(hours=1))
    async def look(ctx: Context[House]) -> str:
        house.happened(ctx.idempotency_key, "look")
        asked.set()
        if how == "too late":
            await gone_on.wait()
        hello = await life.rt.start("a", HELLO, session="s")
        loop.call_soon(waits.set)
        return (await hello.result()).text

    @tool(effect="read")
    async def stay(ctx: Context[House]) -> str:
        house.happened(ctx.idempotency_key, "stay")
        gone_on.set()
        await waits.wait()
        return "stayed"

    loop = asyncio.get_running_loop()
    agent = house.agent([call("hand_on")], [call("stay")], "done", tools=[hand_on, look, stay])
    house.answers("look", [call("look")], "done")
    async with house.life(agent) as life:
        first = await life.rt.start(agent, "go", session="s")
        await asked.wait()
        if how == "too late":
            await house.clock.wait_for_timers(2)
            house.clock.advance(seconds=20)
            await house.clock.wait_for_timers(2)
            house.clock.advance(seconds=2)
        assert await rest(first) == "completed"
        assert await rest(second := await life.rt.find_run("second")) == "completed"
        assert [r.response for r in results(house.asked(second)[-1].messages)] == [HELLO_BACK]


async def test_what_waits_is_not_gone_through_again_for_each_run_that_ends(house: House) -> None:
    agent, claiming, looking = house.agent("done"), barrier(), barrier()
    async with house.life(agent) as life:
        await life.rt.drain(0)  # from here on it only accepts
        runs = [await life.rt.start(agent, "go", session="s", operation_id=str(n)) for n in range(5)]
    plan = FaultPlan().at("claim.before", fault=claiming).at("claimable.after", nth=2, fault=looking)
    async with house.life(agent, plan=plan) as life:
        await looking.reached.wait()  # it was opened, and its first claim is on the way
        looking.go_on.set()
        claiming.go_on.set()
        assert [await rest(await life.rt.get_run(run.id)) for run in runs] == ["completed"] * 5
    assert plan.calls.count("claimable") == 2


async def test_what_waits_is_not_gone_through_when_a_run_comes_to_wait_for_a_person(house: House) -> None:
    agent, plan, gates = house.agent([WIRE], "done"), FaultPlan(), [barrier() for _ in range(5)]
    for nth, gate in enumerate(gates, 1):
        plan.at("expirable_asks.after", nth=nth, fault=gate)
    async with house.life(agent, plan=plan) as life:
        for nth, gate in enumerate(gates, 1):
            assert await rest(await life.rt.start(agent, "go", session=f"s{nth}")) == "waiting"
            await gate.reached.wait()  # an ask of it may expire
            gate.go_on.set()
    assert plan.calls.count("claimable") < 2
