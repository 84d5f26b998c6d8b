"""A message that steers: it joins the turn under way before its next model call, and shares its end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from crash.lives import Life

from ondol import (
    Agent,
    Limits,
    NotFound,
    OperationExpired,
    OperationMismatch,
    ReplayUnsafe,
    RevisionConflict,
    Run,
    RunFailed,
    Runtime,
    RunWaiting,
    SessionBusy,
)
from ondol.messages import Attachment
from ondol.model import ModelRequest
from ondol.testing import FaultPlan, barrier, call, error
from promise.house import HELLO, House, kinds, notes, rest, states, the_ask

LOOK, LETTER, WIRE = call("look", order="1"), call("letter", to="kim"), call("wire", to="kim")
MORE, EVEN_MORE = "and a stamp", "and an envelope"
ANSWERED = "both are on their way"


def agent_of(house: House, *answers: Any, **described: Any) -> Agent:
    """Its model calls these tools, one step after the other, then gives its answer, whatever was said last."""
    for said in (MORE, EVEN_MORE):
        house.answers(said, *answers, ANSWERED, ANSWERED, ANSWERED)
    return house.agent(*answers, ANSWERED, ANSWERED, ANSWERED, **described)


async def go(life: Life, agent: Agent, operation: str = "host", said: str = "go", **options: Any) -> Run:
    return await life.rt.start(agent, said, session="s", operation_id=operation, **options)


async def steer(life: Life, agent: Agent, operation: str = "steer", said: str = MORE, **options: Any) -> Run:
    return await go(life, agent, operation, said, if_busy="steer", **options)


def said(request: ModelRequest) -> list[str]:
    """The texts that it was asked and answered with, without system message and results."""
    return [m.text for m in request.messages if m.role in ("user", "assistant") and m.text and m.origin is None]


def attachments(request: ModelRequest) -> list[Attachment]:
    return [p for m in request.messages for p in m.parts if isinstance(p, Attachment)]


async def is_joined(run: Run, host: Run) -> None:
    await run.refresh()
    assert (run.status, run.host) == ("joined", host.id)
    events = [event async for event in run.events()]
    assert [e.type for e in events] == ["run.accepted", "run.joined"]
    assert events[-1].data == {"host": host.id}


# --- when it joins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["claim.before", "claim.after", "note_down.before"])
async def test_before_the_first_model_call_it_is_part_of_that(house: House, at: str) -> None:
    agent, place = agent_of(house), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining = await steer(life, agent)
        place.go_on.set()
        assert (await host.result()).text == ANSWERED
        await is_joined(joining, host)
        assert [said(request) for request in house.requests] == [["go", MORE]]


@pytest.mark.parametrize("at", ["letter.before", "letter.after", "outcome.before"])
async def test_while_a_tool_is_in_flight_it_is_part_of_the_next_model_call(house: House, at: str) -> None:
    agent, place = agent_of(house, [LETTER]), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining = await steer(life, agent)
        place.go_on.set()
        assert (await host.result()).text == ANSWERED
        await is_joined(joining, host)
        assert [said(request) for request in house.requests] == [["go"], ["go", MORE]]
        messages = [m.message.text for m in await (await life.rt.get_session("s")).messages()]
        assert [text for text in messages if text] == ["go", MORE, ANSWERED]
        assert await states(host) == [("letter", "succeeded", 1)]
    assert house.count("letter") == 1


@pytest.mark.parametrize("at", ["model.before", "model.delta", "model.after", "answer.before"])
@pytest.mark.parametrize("answers", [(), (["I write", LETTER],)], ids=["final", "calls"])
async def test_between_t2_and_t3_it_is_part_of_the_model_call_after(house: House, at: str, answers: Any) -> None:
    agent, place = agent_of(house, *answers), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining = await steer(life, agent)
        place.go_on.set()
        assert (await host.result()).text == ANSWERED
        await is_joined(joining, host)
        first = "I write" if answers else ANSWERED
        assert [said(request) for request in house.requests] == [["go"], ["go", first, MORE]]
        assert (await life.rt.get_session("s")).revision == 1
        for step in (1, 2):
            assert (await life.rt.context(host.id, step)).matches


@pytest.mark.parametrize("at", ["answer.after", "commit.before"])
async def test_the_answer_is_not_final_while_a_message_waits_to_join(house: House, at: str) -> None:
    agent, place = agent_of(house), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining = await steer(life, agent)
        place.go_on.set()
        assert await rest(host) == "completed"
        await is_joined(joining, host)
        assert [said(request) for request in house.requests] == [["go"], ["go", ANSWERED, MORE]]


@pytest.mark.one_driver
@pytest.mark.parametrize("at", ["outcome.before", "note_down.before"])
async def test_a_message_that_another_process_accepted_is_not_passed_by(house: House, at: str) -> None:
    """Its signal is in the store, and the driver has not looked: what the model sees next is refused without it."""
    agent, place = agent_of(house, [LETTER]), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        async with Runtime(house.db, agents=[agent], clock=house.clock) as other:
            assert not other.drives
            joining = await other.start(agent, MORE, session="s", operation_id="steer", if_busy="steer")
            place.go_on.set()
            assert (await host.result()).text == ANSWERED
            assert (await joining.result()).text == ANSWERED
        first = ["go"] if at == "outcome.before" else ["go", MORE]
        assert [said(request) for request in house.requests] == [first, ["go", MORE]]


async def test_before_a_retry_of_the_model_call_it_is_part_of_that(house: House) -> None:
    agent = house.agent(lambda r: error("overloaded", retry_after=5.0) if r.attempt == 1 else "done")
    house.answers(MORE, ANSWERED)
    async with house.life(agent) as life:
        host = await go(life, agent)
        async for event in host.events():
            if event.type == "step.failed":
                break
        joining = await steer(life, agent)
        house.clock.advance(seconds=5)
        assert (await host.result()).text == ANSWERED
        await is_joined(joining, host)
        assert [(said(r), r.attempt) for r in house.requests] == [(["go"], 1), (["go", MORE], 2)]


async def test_several_join_together_in_their_order_and_one_after_the_other(house: House) -> None:
    agent, first, second = agent_of(house, [LOOK], [LETTER]), barrier(), barrier()
    plan = FaultPlan().at("look.before", fault=first).at("letter.before", fault=second)
    house.answers("3", [LOOK], [LETTER], ANSWERED)
    async with house.life(agent, plan=plan) as life:
        host = await go(life, agent)
        await first.reached.wait()
        joining = [await steer(life, agent, f"steer {n}", text) for n, text in enumerate((MORE, EVEN_MORE))]
        first.go_on.set()
        await second.reached.wait()
        for run in joining:
            await is_joined(run, host)
        joining.append(await steer(life, agent, "steer 3", "3"))
        second.go_on.set()
        assert await rest(host) == "completed"
        await is_joined(joining[-1], host)
        assert said(house.requests[-1]) == ["go", MORE, EVEN_MORE, "3"]
        assert await rest(await go(life, agent, "next", HELLO)) == "completed"
        assert said(house.requests[-1]) == ["go", MORE, EVEN_MORE, "3", ANSWERED, HELLO]


async def test_what_is_attached_to_it_is_the_hosts_too(house: House) -> None:
    agent, place = agent_of(house, [LETTER]), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining = await steer(life, agent, attachments=[b"a drawing"])
        place.go_on.set()
        assert await rest(host) == "completed"
        await is_joined(joining, host)
        (attached,) = [p for m in await host.messages() for p in m.parts if hasattr(p, "digest")]
        assert await life.rt.get_blob(attached.digest) == b"a drawing"


async def test_it_waits_with_a_host_that_suspends_and_joins_when_that_goes_on(house: House) -> None:
    agent, place = agent_of(house, [WIRE, LETTER]), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining = await steer(life, agent)
        place.go_on.set()
        assert await rest(host) == "waiting"
        assert (await joining.refresh()).status == "queued"
        await (await the_ask(host)).approve(by="lee")
        assert (await joining.result()).text == ANSWERED
        await is_joined(joining, host)
        assert said(house.requests[-1]) == ["go", MORE]


# --- when it does not -------------------------------------------------------------------------------------------


async def test_in_an_idle_session_it_is_a_plain_run(house: House) -> None:
    agent = agent_of(house)
    async with house.life(agent) as life:
        run = await steer(life, agent)
        assert (await run.result()).text == ANSWERED
        assert (run.status, run.host) == ("completed", None)


async def test_behind_a_run_that_waits_for_a_person_it_queues(house: House) -> None:
    agent = agent_of(house, [WIRE])
    async with house.life(agent) as life:
        waiting = await go(life, agent)
        assert await rest(waiting) == "waiting"
        queued = await steer(life, agent, said=HELLO)
        assert (queued.status, queued.host) == ("queued", None)
        await (await the_ask(waiting)).deny(by="lee")
        assert [(await run.result()).revision for run in (waiting, queued)] == [3, 4]


@pytest.mark.parametrize("other", ["agent", "user", "cancelled"])
async def test_a_run_of_another_agent_or_user_or_one_that_stops_is_not_joined(house: House, other: str) -> None:
    agent, place, ending = house.agent([LETTER], "done"), barrier(), barrier()
    second = house.agent("done", name="b", said="not used")
    plan = FaultPlan().at("letter.before", fault=place).at("end.before", fault=ending)
    async with house.life(agent, second, plan=plan) as life:
        host = await go(life, agent, user="kim")
        await place.reached.wait()
        if other == "cancelled":
            await host.cancel(by="kim")
        queued = await steer(
            life, second if other == "agent" else agent, said=HELLO, user="lee" if other == "user" else "kim"
        )
        assert (queued.status, queued.host) == ("queued", None)
        place.go_on.set()
        ending.go_on.set()
        assert await rest(host) == ("cancelled" if other == "cancelled" else "completed")
        assert (await queued.result()).text == "hello to you"


async def test_at_the_step_limit_it_is_not_joined_and_runs_after_it(house: House) -> None:
    agent, place = house.agent([LETTER], "done", limits=Limits(steps=2)), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", nth=2, fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        queued = await steer(life, agent, said=HELLO)
        place.go_on.set()
        assert [(await run.result()).text for run in (host, queued)] == ["done", "hello to you"]
        assert (await queued.refresh()).host is None
        assert [said(r) for r in house.asked(queued)] == [["go", "done", HELLO]]


async def test_where_the_limit_ends_the_host_it_runs_after_it(house: House) -> None:
    agent, place = house.agent([LETTER], limits=Limits(steps=1)), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        queued = await steer(life, agent, said=HELLO)
        place.go_on.set()
        assert await rest(host) == "failed"
        assert (await queued.result()).text == "hello to you"
        (note,) = notes(house.asked(queued)[0])
        assert "letter" in note


@pytest.mark.parametrize("how", ["fails", "cancelled", "interrupted"])
async def test_whatever_ends_the_host_leaves_it_an_ordinary_queued_run(house: House, how: str) -> None:
    agent, place = house.agent(error("rejected")), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        queued = await steer(life, agent, said=HELLO)
        other = await go(life, agent, "other", HELLO, if_busy="interrupt") if how == "interrupted" else None
        if how == "cancelled":
            await host.cancel(by="kim")
        place.go_on.set()
        assert await rest(host) == ("failed" if how == "fails" else "cancelled")
        assert await rest(queued) == "completed"
        assert queued.host is None
        if other is not None:
            assert (await other.result()).revision < (await queued.result()).revision


@pytest.mark.parametrize("at", ["letter.before", "model.before", "note_down.before"])
@pytest.mark.parametrize("final", [True, False], ids=["final", "calls"])
async def test_cancelled_while_queued_it_never_joins(house: House, at: str, final: bool) -> None:
    agent, place = agent_of(house, *([] if final and at != "letter.before" else [[LETTER]])), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining, staying = await steer(life, agent), await steer(life, agent, "stays", EVEN_MORE)
        assert (await joining.cancel(by="kim")).status == "cancelled"
        place.go_on.set()
        assert await rest(host) == "completed"
        await is_joined(staying, host)
        assert await kinds(joining) == ["run.accepted", "run.cancelled"]
        assert all(MORE not in said(request) for request in house.requests)


async def test_when_all_of_them_were_cancelled_the_answer_is_final(house: House) -> None:
    agent, place = agent_of(house), barrier()
    async with house.life(agent, plan=FaultPlan().at("answer.after", fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining = await steer(life, agent)
        await joining.cancel(by="kim")
        place.go_on.set()
        assert await rest(host) == "completed"
        assert len(house.requests) == 1


@pytest.mark.one_driver
@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_no_signal_of_one_that_does_not_join_is_left_at_the_host(house: House, is_cancelled: bool) -> None:
    """It came through another process, and the driver has not looked. (The house is checked.)"""
    agent, place = agent_of(house, limits=Limits(steps=1)), barrier()
    async with house.life(agent, plan=FaultPlan().at("commit.before", fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        async with Runtime(house.db, agents=[agent], clock=house.clock) as other:
            joining = await other.start(agent, MORE, session="s", operation_id="steer", if_busy="steer")
            if is_cancelled:
                await joining.cancel(by="kim")
            place.go_on.set()
            assert await rest(host) == "completed"
            assert await rest(joining) == ("cancelled" if is_cancelled else "completed")


async def test_one_that_is_cancelled_as_it_joins_is_cancelled_or_joined(house: House) -> None:
    """The context is built again, and its hash is that of what it then holds."""
    agent, reading, joining = agent_of(house, [LETTER]), barrier(), barrier()
    plan = FaultPlan().at("letter.before", fault=reading).at("note_down.before", nth=2, fault=joining)
    async with house.life(agent, plan=plan) as life:
        host = await go(life, agent)
        await reading.reached.wait()
        first = await steer(life, agent)
        reading.go_on.set()
        await joining.reached.wait()  # it has read the message
        assert (await first.cancel(by="kim")).status == "cancelled"
        second = await steer(life, agent, "second", EVEN_MORE)
        joining.go_on.set()
        assert await rest(host) == "completed"
        await is_joined(second, host)
        assert said(house.requests[-1]) == ["go", EVEN_MORE]
        for step in (1, 2):
            assert (await life.rt.context(host.id, step)).matches


async def test_what_was_about_to_join_beside_one_that_is_cancelled_is_part_of_the_next_model_call(
    house: House,
) -> None:
    agent, reading, joining = agent_of(house, [LETTER]), barrier(), barrier()
    plan = FaultPlan().at("letter.before", fault=reading).at("note_down.before", nth=2, fault=joining)
    async with house.life(agent, plan=plan) as life:
        host = await go(life, agent)
        await reading.reached.wait()
        first, staying = await steer(life, agent), await steer(life, agent, "stays", EVEN_MORE)
        reading.go_on.set()
        await joining.reached.wait()  # it has read both
        assert (await first.cancel(by="kim")).status == "cancelled"
        joining.go_on.set()
        assert await rest(host) == "completed"
        await is_joined(staying, host)
    assert [said(request) for request in house.requests] == [["go"], ["go", EVEN_MORE]]


@pytest.mark.parametrize("how", ["cancel", "interrupt"])
async def test_it_does_not_join_a_host_that_was_asked_to_stop_meanwhile(house: House, how: str) -> None:
    agent, place, joins = agent_of(house, [LETTER]), barrier(), barrier()
    house.answers(MORE, "on its own")
    plan = FaultPlan().at("letter.before", fault=place).at("note_down.before", nth=2, fault=joins)
    async with house.life(agent, plan=plan) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining = await steer(life, agent)
        place.go_on.set()
        await joins.reached.wait()
        if how == "cancel":
            await host.cancel(by="kim")
        else:
            await go(life, agent, "next", HELLO, if_busy="interrupt")
        async for event in host.events():
            if event.type == "run.cancelling":  # its holder has read it
                break
        joins.go_on.set()
        assert await rest(host) == "cancelled"
        assert (await joining.result()).text == "on its own"
        assert (joining.status, joining.host) == ("completed", None)


async def test_after_it_has_joined_a_cancel_of_it_changes_nothing(house: House) -> None:
    agent, place, again = agent_of(house, [LETTER]), barrier(), barrier()
    plan = FaultPlan().at("letter.before", fault=place).at("model.before", nth=2, fault=again)
    async with house.life(agent, plan=plan) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining = await steer(life, agent)
        place.go_on.set()
        await again.reached.wait()
        assert (await joining.cancel(by="kim")).status == "joined"
        assert not (await host.refresh()).cancelling
        again.go_on.set()
        assert await rest(host) == "completed"


# --- the operation id -------------------------------------------------------------------------------------------


async def joined(house: House, life: Life, agent: Agent, place: Any, **options: Any) -> tuple[Run, Run]:
    """A host whose model stands still, and the run that has joined it."""
    host = await go(life, agent)
    await place.reached.wait()
    joining = await steer(life, agent, **options)
    return host, joining


async def test_a_joined_one_answers_as_the_run_that_it_joined(house: House) -> None:
    agent, place, again = agent_of(house, [LETTER]), barrier(), barrier()
    plan = FaultPlan().at("letter.before", fault=place).at("model.before", nth=2, fault=again)
    async with house.life(agent, plan=plan) as life:
        host, joining = await joined(house, life, agent, place)
        place.go_on.set()
        await again.reached.wait()
        attached = await steer(life, agent)  # the same id while its host runs
        assert (attached.id, attached.status, attached.replayed) == (joining.id, "joined", False)
        answers = [asyncio.create_task(run.result()) for run in (host, joining, attached)]
        again.go_on.set()
        first, *others = [await answer for answer in answers]
        assert [other.body for other in others] == [first.body] * 2
        assert others[0].run_id == host.id
        with pytest.raises(OperationMismatch):
            await steer(life, agent, said="something else")
        after = await steer(life, agent)
        assert (after.id, after.replayed, (await after.result()).body) == (joining.id, True, first.body)
        assert len(house.requests) == 2
    house.clock.advance(days=30)
    async with house.life(agent) as life:
        for run in (go, steer):
            with pytest.raises(OperationExpired, match=host.id):
                await run(life, agent)


async def test_while_its_host_waits_it_waits_with_the_hosts_asks(house: House) -> None:
    agent, place = agent_of(house, [LOOK], [WIRE]), barrier()
    async with house.life(agent, plan=FaultPlan().at("look.before", fault=place)) as life:
        host, joining = await joined(house, life, agent, place)
        place.go_on.set()
        with pytest.raises(RunWaiting) as waiting:
            await joining.result()
        assert waiting.value.run == host.id
        assert waiting.value.asks == ((await the_ask(host)).id,)
        assert (await steer(life, agent)).status == "joined"
        await (await the_ask(host)).approve(by="lee")
        assert (await joining.result()).body == (await host.result()).body


async def test_who_looks_at_a_joined_one_is_told_of_its_host(house: House) -> None:
    agent, place = agent_of(house, [LETTER]), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=place)) as life:
        host, joining = await joined(house, life, agent, place)
        place.go_on.set()
        assert await rest(host) == "completed"
        with pytest.raises(NotFound, match=f"is part of run {host.id}"):
            await life.rt.context(joining.id)
        for again in (life.rt.replay(joining), life.rt.fork(joining, at_step=1)):
            with pytest.raises(ReplayUnsafe, match=f"is part of run {host.id}"):
                await again


@pytest.mark.parametrize("retryable", [True, False])
@pytest.mark.parametrize("resumed", [False, True], ids=["sent_again", "resumed"])
async def test_when_its_host_fails_it_has_failed_and_both_are_told_of(
    house: House, retryable: bool, resumed: bool
) -> None:
    place = barrier()
    agent = house.agent([LETTER])
    house.answers(
        MORE, None, lambda r: error("quota" if retryable else "rejected") if len(house.asked()) == 2 else "ok"
    )
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=place)) as life:
        host, joining = await joined(house, life, agent, place)
        place.go_on.set()
        with pytest.raises(RunFailed) as failed:
            await joining.result()
        assert (failed.value.run, failed.value.retryable) == (host.id, retryable)
        following = await go(life, agent, "next", HELLO)
        assert await rest(following) == "completed"
        (note,) = notes(house.asked(following)[0])
        assert "go" in note
        assert MORE in note
        assert note.count("was not answered") == 1
        # Its id takes the host up again, as the host's own id would.
        again = await (life.rt.resume(joining) if resumed else steer(life, agent))
        assert again.id == joining.id
        if not retryable:
            assert await rest(host) == "failed"
            with pytest.raises(RunFailed):
                await again.result()
            return
        assert (await again.result()).text == "ok"
        assert (await host.refresh()).status == "completed"
        assert await states(host) == [("letter", "succeeded", 1)]
        assert said(house.requests[-1])[-2:] == ["go", MORE]


async def test_an_id_that_is_known_is_never_a_steer(house: House) -> None:
    agent, place = agent_of(house, [LETTER]), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        queued = await go(life, agent, "queued", HELLO)
        again = await go(life, agent, "queued", HELLO, if_busy="steer", expected_revision=0)
        assert (again.id, again.host) == (queued.id, None)
        assert (await go(life, agent, if_busy="steer")).id == host.id
        joining = await steer(life, agent, "steer", MORE)
        for if_busy in ("reject", "interrupt", "queue", "steer"):
            same = await go(life, agent, "steer", MORE, if_busy=if_busy, expected_revision=7)
            assert same.id == joining.id
        with pytest.raises(RevisionConflict):
            await steer(life, agent, "new", expected_revision=0)
        with pytest.raises(SessionBusy):
            await go(life, agent, "new", if_busy="reject")
        place.go_on.set()
        assert await rest(host) == await rest(queued) == "completed"
        await is_joined(joining, host)


async def test_a_joined_run_is_erased_with_its_session(house: House) -> None:
    agent, place = agent_of(house, [LETTER]), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=place)) as life:
        host, joining = await joined(house, life, agent, place)
        place.go_on.set()
        assert await rest(host) == "completed"
        await (await life.rt.get_session("s")).delete(by="kim")
        with pytest.raises(OperationExpired):
            await steer(life, agent)
        assert not await joining.messages()
    house.checked = False  # of the journals nothing is left


# --- crashes ----------------------------------------------------------------------------------------------------

IN_TOOL = [
    ("accept.after", 2), ("absorb.before", 1), ("absorb.after", 1), ("outcome.before", 1), ("outcome.after", 1),
    ("note_down.before", 2), ("note_down.after", 2),
]  # fmt: skip
IN_MODEL = [
    ("answer.before", 1), ("answer.after", 1), ("note_down.before", 2), ("note_down.after", 2), ("commit.before", 1),
    ("commit.after", 1),
]  # fmt: skip
PLACES = [*(("tool", *place) for place in IN_TOOL), *(("model", *place) for place in IN_MODEL)]


@pytest.mark.parametrize(("at", "dies_at", "nth"), PLACES)
async def test_it_outlives_the_process_that_accepted_it(house: House, at: str, dies_at: str, nth: int) -> None:
    agent, place = agent_of(house, *([[call("refund", order="1")]] if at == "tool" else [])), barrier()
    plan = FaultPlan().at("refund.before" if at == "tool" else "model.after", fault=place)
    async with house.life(agent, plan=plan, dies_at=dies_at, nth=nth) as life:
        host = await go(life, agent)
        await place.reached.wait()
        steering = asyncio.ensure_future(steer(life, agent))
        if dies_at != "accept.after":
            await asyncio.wait({steering, asyncio.ensure_future(life.store.died.wait())}, return_when="FIRST_COMPLETED")
        place.go_on.set()
        await life.ends()
        steering.cancel()
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        joining = await steer(life, agent)
        assert (await joining.result()).text == ANSWERED
        await is_joined(joining, await life.rt.get_run(host.id))
        assert said(house.requests[-1])[-1] == MORE
        for step in range(1, 1 + len({r.step for r in house.requests})):
            assert (await life.rt.context(host.id, step)).matches


async def test_its_signal_is_not_lost_on_a_host_that_was_given_back(house: House) -> None:
    agent, place = agent_of(house), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        joining = await steer(life, agent)
        await life.rt.close(drain=0)
    async with house.life(agent) as life:
        assert (await (await life.rt.get_run(joining.id)).result()).text == ANSWERED
        await is_joined(await life.rt.get_run(joining.id), await life.rt.get_run(host.id))
        assert said(house.requests[-1]) == ["go", MORE]


async def test_a_parked_host_leaves_it_an_ordinary_run_and_joins_nothing_when_it_is_resumed(house: House) -> None:
    agent, place = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("note_down.before", fault=place)) as life:
        host = await go(life, agent)
        await place.reached.wait()
        queued = await steer(life, agent, said=HELLO)
        life.die()
    for _ in range(2):
        async with house.life(agent, dies_at="note_down.before") as life:
            await life.ends()
    async with house.life(agent) as life:
        assert (await life.rt.get_run(host.id)).status == "parked"
        queued = await life.rt.get_run(queued.id)
        assert (await queued.result()).text == "hello to you"
        await (await the_ask(await life.rt.get_run(host.id), "parked")).answer("resume", by="lee")
        assert (await (await life.rt.get_run(host.id)).result()).text == "done"
        assert (await queued.refresh()).status == "completed"


async def test_a_message_that_waits_long_to_join_is_not_stale(house: House) -> None:
    agent, place = agent_of(house, [LETTER]), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=place)) as life:
        host, joining = await joined(house, life, agent, place)
        house.clock.advance(timedelta(seconds=20))
        place.go_on.set()
        assert await rest(host) == "completed"
        await is_joined(joining, host)


# --- replay and fork --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["completed", "failed"])
async def test_a_replay_of_its_host_is_asked_what_joined_it_too(house: House, ends: str, tmp_path: Path) -> None:
    (tmp_path / "stamp.txt").write_text("red")
    agent, place = agent_of(house, [LOOK]), barrier()
    if ends == "failed":
        house.answers(MORE, [LOOK], error("rejected"))
    async with house.life(agent, plan=FaultPlan().at("look.before", fault=place)) as life:
        host, _ = await joined(house, life, agent, place, attachments=[tmp_path / "stamp.txt"])
        place.go_on.set()
        assert await rest(host) == ends
        house.answers(MORE, [LOOK], ANSWERED)
        again = await life.rt.replay(host, operation_id="again")
        assert await rest(again) == "completed"
        twice = await life.rt.replay(again, operation_id="twice")
        fork = await life.rt.fork(twice, at_step=1) if await rest(twice) == "completed" else twice
        assert await rest(fork) == "completed"
        for run in (again, twice, fork):
            assert [said(request) for request in house.asked(run)] == [["go", MORE], ["go", MORE]]
            assert len(attachments(house.asked(run)[0])) == 1
            assert [(await life.rt.context(run.id, step)).matches for step in (1, 2)] == [True, True]


@pytest.mark.parametrize("at_step", [1, 2, 3])
async def test_a_fork_has_what_joined_its_host_up_to_that_step(house: House, at_step: int) -> None:
    agent, place = agent_of(house, [LOOK], [LETTER]), barrier()
    async with house.life(agent, plan=FaultPlan().at("look.before", fault=place)) as life:
        host, _ = await joined(house, life, agent, place)
        place.go_on.set()
        assert await rest(host) == "completed"
        fork = await life.rt.fork(host, at_step=at_step)
        assert await rest(fork) == "completed"
        first = house.asked(fork)[0]
        assert said(first) == (["go"] if at_step == 1 else ["go", MORE])
        for step in range(1, 4):
            assert (await life.rt.context(fork.id, step)).matches
    assert house.count("letter") == 1
