"""The same operation id again: the table of the contract, row by row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from crash.lives import Life

from ondol import (
    Agent,
    Context,
    OperationExpired,
    OperationMismatch,
    RevisionConflict,
    Run,
    RunCancelled,
    RunExpired,
    RunFailed,
    SessionBusy,
    tool,
)
from ondol.testing import FaultPlan, barrier, call, error
from promise.house import HELLO, TOOLS, House, kinds, rest, states, the_ask

SECRET = "the code is 4711"


# --- an operation in each state ---------------------------------------------------------------------------------


async def _start(life: Life, agent: Agent, **options: Any) -> Run:
    return await life.rt.start(agent, SECRET, session="s", operation_id="op", **options)


@tool(effect="steps")
async def quiz(ctx: Context[House]) -> int:
    return await ctx.ask("how many?", schema=int, expires=timedelta(hours=1))


@asynccontextmanager
async def in_state(house: House, state: str) -> AsyncIterator[tuple[Life, Agent, Run]]:
    """A living process with the operation ``op`` in that state, and what it takes to let it end afterwards."""
    gate, plan = barrier(), FaultPlan()
    answers: tuple[object, ...] = ("done",)
    match state:
        case "queued" | "running":
            plan.at("model.before", fault=gate)
        case "waiting":
            answers = ([call("wire", to="kim")], "done")
        case "expired":
            answers = ([call("quiz")],)
        case "joined":
            plan.at("look.before", fault=gate)
            house.answers(HELLO, [call("look", order="1")], "hello to you")
            answers = ("never", "done")
        case "failed":
            answers = (error("rejected"),)
        case "failed, retryable":
            answers = (lambda request: error("quota") if len(house.asked()) == 1 else "done",)
    agent = house.agent(*answers, said=SECRET, tools=[*TOOLS, quiz])
    if state == "parked":
        for _ in range(3):
            async with house.life(agent, dies_at="model.before") as life:
                await life.ends(life.rt.run(agent, SECRET, session="s", operation_id="op"))
    async with house.life(agent, plan=plan) as life:
        if state in ("queued", "joined"):
            ahead = await life.rt.start(agent, HELLO, session="s", operation_id="ahead")
            await gate.reached.wait()
            run = await _start(life, agent, if_busy="queue" if state == "queued" else "steer")
            if state == "joined":
                gate.go_on.set()
                assert await rest(ahead) == "completed"
        else:
            run = await _start(life, agent)
            if state == "running":
                await gate.reached.wait()
            elif state == "cancelled":
                await run.cancel(by="kim")
                await rest(run)
            elif state == "expired":
                assert await rest(run) == "waiting"
                house.clock.advance(hours=1)
                assert [e.type async for e in run.events(through_asks=True)][-1] == "run.expired"
            else:
                await rest(run)
        await run.refresh()
        assert f"failed{', retryable' if run.retryable else ''}" == state or run.status == state
        yield life, agent, run
        gate.go_on.set()
        if state == "queued":
            assert await rest(ahead) == "completed"
        if state in ("queued", "running"):
            assert await rest(run) == "completed"


UNENDED = ["queued", "running", "waiting", "parked"]
ENDED = ["completed", "failed", "cancelled", "expired", "joined"]
ALL = [*UNENDED, *ENDED, "failed, retryable"]


# --- another fingerprint ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ALL)
async def test_other_content_is_refused_in_any_state_and_the_stored_input_is_not_echoed(
    house: House, state: str
) -> None:
    async with in_state(house, state) as (life, agent, run):
        before = house.written()
        with pytest.raises(OperationMismatch) as refused:
            await life.rt.start(agent, HELLO, session="s", operation_id="op")
        assert "4711" not in str(refused.value)
        assert HELLO not in str(refused.value)
        assert house.written().runs[run.id] == before.runs[run.id]
        assert len(house.written().runs) == len(before.runs)


async def test_the_fingerprint_is_agent_session_input_and_attachments(house: House, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.pdf"
    receipt.write_bytes(b"receipt")
    agent, other = house.agent("done"), house.agent("done", name="other")
    async with house.life(agent, other) as life:
        first = await life.rt.start(agent, "go", session="s", operation_id="op", attachments=[receipt, b"two"])
        same = await life.rt.start(agent, "go", session="s", operation_id="op", attachments=[b"two", b"receipt"])
        assert same.id == first.id
        options = {"session": "s", "operation_id": "op", "attachments": [receipt, b"two"]}
        for changed, agent_, input in (
            ({}, other, "go"),
            ({"session": "t"}, agent, "go"),
            ({}, agent, "go!"),
            ({"attachments": [receipt]}, agent, "go"),
            ({"attachments": [b"receipt", b"2"]}, agent, "go"),
        ):
            with pytest.raises(OperationMismatch):
                await life.rt.start(agent_, input, **{**options, **changed})
        # How it is asked for is not what is asked for.
        again = await life.rt.start(agent, "go", **options, time_zone="Asia/Seoul", trigger="chat")  # type: ignore[arg-type]
        assert again.id == first.id
        assert await rest(first) == "completed"


async def test_the_id_belongs_to_its_tenant_and_user(house: House) -> None:
    agent = house.agent("done")
    async with house.life(agent) as life:
        runs = [
            await life.rt.start(agent, "go", session=f"s{n}", operation_id="op", **whose)  # type: ignore[arg-type]
            for n, whose in enumerate([{}, {"user": "kim"}, {"user": "lee"}, {"user": "kim", "tenant": "acme"}])
        ]
        assert len({run.id for run in runs}) == 4
        for run in runs:
            assert await rest(run) == "completed"
        assert (await life.rt.find_run("op", user="kim", tenant="acme")).id == runs[3].id


# --- the same fingerprint ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", UNENDED)
async def test_while_it_is_unfinished_the_same_run_answers(house: House, state: str) -> None:
    async with in_state(house, state) as (life, agent, run):
        before = house.written()
        again = await _start(life, agent)
        assert (again.id, again.status, again.replayed) == (run.id, state, False)
        assert house.written().batches == before.batches
        assert house.written().sessions == before.sessions


async def test_after_completion_the_identical_body_for_thirty_days_then_expired_for_ever(house: House) -> None:
    async with in_state(house, "completed") as (life, agent, run):
        body = (await run.result()).body
        for step in ({"seconds": 1}, {"days": 29, "hours": 23, "minutes": 59, "seconds": 58}):
            house.clock.advance(**step)  # type: ignore[arg-type]
            again = await (await _start(life, agent)).result()
            assert (again.body, again.replayed) == (body, True)
        for step in ({"seconds": 1}, {"days": 365}):
            house.clock.advance(**step)  # type: ignore[arg-type]
            with pytest.raises(OperationExpired):
                await _start(life, agent)
        with pytest.raises(OperationMismatch):
            await life.rt.start(agent, HELLO, session="s", operation_id="op")
    assert len(house.asked()) == 1


@pytest.mark.parametrize("state", [*ENDED, "failed, retryable"])
@pytest.mark.parametrize("made_again", [False, True])
async def test_after_its_session_was_deleted_the_id_is_still_known(house: House, state: str, made_again: bool) -> None:
    async with in_state(house, state) as (life, agent, run):
        await life.rt.delete_session("s", by="lee")
        if made_again:
            await life.rt.write_session("s", title="another")
        asked = len(house.asked())
        with pytest.raises(OperationMismatch):
            await life.rt.start(agent, HELLO, session="s", operation_id="op")
        if state in ("completed", "joined"):
            with pytest.raises(OperationExpired, match="its session was deleted"):
                await _start(life, agent)
            with pytest.raises(OperationExpired, match="its session was deleted"):  # and no empty answer
                await (await life.rt.get_run(run.id)).result()
        else:  # nothing is left to go on from
            again = await _start(life, agent)
            assert (again.id, again.status, again.retryable) == (run.id, state.partition(",")[0], False)
            with pytest.raises((RunFailed, RunCancelled, RunExpired)) as ended:
                await again.result()
            assert "()" not in str(ended.value)
        assert len(house.asked()) == asked
    house.checked = False  # the journal of a deleted session is gone


async def test_after_a_retryable_failure_the_same_run_goes_on_from_its_journal(house: House) -> None:
    agent = house.agent(
        [call("letter", to="kim")],
        lambda request: error("quota") if len(house.asked()) == 2 else [call("refund", order="1")],
        "done",
    )
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert failed.value.retryable
        assert run.error is not None
        assert run.error["code"] == "model_quota"
        (sent,) = await run.effects()

        again = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert again.id == run.id
        assert await rest(again) == "completed"
        assert await states(again) == [("letter", "succeeded", 1), ("refund", "succeeded", 1)]
        assert (await again.effects())[0] == sent
    assert house.count("letter") == 1
    assert [r.step for r in house.asked()] == [0, 1, 1, 2]


async def test_a_retryable_run_goes_on_after_a_restart_too(house: House) -> None:
    agent = house.agent([call("letter", to="kim")], lambda request: error("quota") if len(house.asked()) == 2 else "ok")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "failed"
    async with house.life(agent) as life:
        assert (await life.rt.get_run(run.id)).status == "failed"  # nobody asked for it
        again = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert (await again.result()).text == "ok"
    assert house.count("letter") == 1


@pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
async def test_after_any_other_end_the_stored_end_answers(house: House, state: str) -> None:
    async with in_state(house, state) as (life, agent, run):
        before, asked = house.written(), len(house.asked())
        again = await _start(life, agent)
        assert (again.id, again.status) == (run.id, state)
        with pytest.raises({"failed": RunFailed, "cancelled": RunCancelled, "expired": RunExpired}[state]):
            await again.result()
        assert house.written().batches == before.batches
        assert len(house.asked()) == asked


async def test_when_the_first_process_died_the_retry_takes_over_at_once(house: House) -> None:
    """By fence, not after a time-to-live: the clock stands still."""
    agent = house.agent("done")
    async with house.life(agent, dies_at="answer.before") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert (await kinds(run)).count("run.resumed") == 1


# --- what is looked at first, and what an id is -----------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "waiting", "completed"])
async def test_a_known_id_is_answered_before_revision_and_queue_are_looked_at(house: House, state: str) -> None:
    async with in_state(house, state) as (life, agent, run):
        again = await life.rt.start(
            agent, SECRET, session="s", operation_id="op", expected_revision=99, if_busy="reject"
        )
        assert again.id == run.id
        with pytest.raises(RevisionConflict if state == "completed" else SessionBusy):
            await life.rt.start(
                agent, HELLO, session="s", operation_id="new", if_busy="reject",
                expected_revision=99 if state == "completed" else None,
            )  # fmt: skip


async def test_a_refused_operation_leaves_nothing_and_its_id_is_free(house: House) -> None:
    async with in_state(house, "waiting") as (life, agent, run):
        with pytest.raises(SessionBusy):
            await life.rt.start(agent, HELLO, session="s", operation_id="new", if_busy="reject")
        assert set(house.written().runs) == {run.id}
        await (await the_ask(run)).deny(by="lee")
        assert await rest(run) == "completed"
        assert (await life.rt.run(agent, HELLO, session="s", operation_id="new", if_busy="reject")).text


async def test_without_an_id_one_is_made_and_returned_and_each_call_is_new(house: House) -> None:
    agent = house.agent("done")
    async with house.life(agent) as life:
        first, second = [await life.rt.start(agent, "go", session="s") for _ in range(2)]
        assert first.operation_id != second.operation_id
        assert await rest(first) == await rest(second) == "completed"
        again = await life.rt.start(agent, "go", session="s", operation_id=first.operation_id)
        assert again.id == first.id
        assert again.replayed


async def test_ten_clients_with_one_id_are_one_run(house: House) -> None:
    agent = house.agent([call("letter", to="kim")], "done")
    async with house.life(agent) as life:
        results = await asyncio.gather(*(life.rt.run(agent, "go", session="s", operation_id="op") for _ in range(10)))
        assert len({r.body for r in results}) == 1
    assert house.count("letter") == 1
    assert len(house.written().runs) == 1
