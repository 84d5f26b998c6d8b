"""A message that answers the question which its session waits for: it joins the run that asked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from crash.lives import Life

from ondol import Agent, Context, Limits, OperationMismatch, Run, SessionBusy, Tool, tool
from ondol.testing import FaultPlan, barrier, call, error
from promise.house import HELLO, House, notes, refund, rest, states, the_ask, wire

TASK = [call("task")]


def asking(schema: Any = str, **options: Any) -> Tool[..., Any]:
    """A tool of steps that pays, asks, and gives back the answer."""

    async def task(ctx: Context[Any]) -> str:
        await ctx.call(refund, order="1")
        return repr(await ctx.ask("Which colour?", schema=schema, **options))

    return tool(effect="steps", name="task")(task)


async def waiting(life: Life, agent: Agent, user: str | None = "kim", **options: Any) -> Run:
    run = await life.rt.start(agent, "go", session="s", user=user, operation_id="task", **options)
    assert await rest(run) == "waiting"
    return run


async def says(life: Life, agent: Agent, said: str, operation: str = "said", **options: Any) -> Run:
    return await life.rt.start(agent, said, session="s", operation_id=operation, **{"user": "kim", **options})


def told(house: House) -> str:
    return next(p.text for m in house.asked()[-1].messages for p in m.parts if m.role == "tool")


@pytest.mark.parametrize("if_busy", ["queue", "steer"])
@pytest.mark.parametrize("trigger", ["api", "chat"])
@pytest.mark.parametrize("user", ["kim", None])
async def test_the_senders_next_message_answers_the_question(
    house: House, if_busy: Any, trigger: Any, user: str | None
) -> None:
    agent = house.agent(TASK, "painted", tools=[asking()])
    async with house.life(agent, door="chat") as life:
        run = await waiting(life, agent, user)
        answer = await says(life, agent, "blue", if_busy=if_busy, trigger=trigger, user=user)
        assert (answer.status, answer.host, answer.waits_behind) == ("joined", run.id, None)
        result = await answer.result()
        assert (result.text, result.run_id) == ("painted", run.id)
        assert (await run.result()).body == result.body
        assert told(house) == "'blue'"
        (ask,) = await run.asks(state=None)
        assert (ask.decision, ask.value, ask.decided_by, ask.door) == ("answer", "blue", user or "chat", "chat")
        (act,) = await life.rt.audit()
        assert (act.act, act.subject, act.by) == ("ask.answer", ask.id, user or "chat")
        joined = [event async for event in answer.events()][-1]
        assert (joined.type, joined.data) == ("run.joined", {"host": run.id, "ask": ask.id})
        assert (await life.rt.get_session("s")).revision == 3  # it waited, it was woken, it was committed
        following = await says(life, agent, HELLO, "next", user=user)
        assert await rest(following) == "completed"
    assert house.count("refund") == 1


@pytest.mark.parametrize(("schema", "said", "value"), [(bool, "yes", "True"), (int, "7", "7"), (str, "7", "'7'")])
async def test_it_is_read_as_the_type_that_was_asked_for(house: House, schema: Any, said: str, value: str) -> None:
    agent = house.agent(TASK, "done", tools=[asking(schema)])
    async with house.life(agent) as life:
        await waiting(life, agent)
        assert (await (await says(life, agent, said)).result()).text == "done"
        assert told(house) == value


async def test_what_does_not_fit_queues_and_says_what_is_asked(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asking(int)])
    async with house.life(agent) as life:
        run = await waiting(life, agent)
        behind = await says(life, agent, HELLO)
        assert behind.status == "queued"
        assert behind.waits_behind is not None
        (ask,) = behind.waits_behind.asks
        assert (behind.waits_behind.run, ask.kind, ask.question) == (run.id, "question", "Which colour?")
        assert (await says(life, agent, "7", "answer")).status == "joined"
        assert await rest(run) == await rest(behind) == "completed"


@pytest.mark.parametrize("other", ["user", "agent", "schedule", "attachment", "expired"])
async def test_what_is_no_answer_of_that_sender_queues(house: House, other: str) -> None:
    agent = house.agent(TASK, "done", tools=[asking(default="red", expires=timedelta(hours=1))])
    second = house.agent("done", name="b", said="blue")
    async with house.life(agent, second) as life:
        run = await waiting(life, agent)
        options: dict[str, Any] = {}
        match other:
            case "user":
                options["user"] = "lee"
            case "schedule":
                options["trigger"] = "schedule"
            case "attachment":
                options["attachments"] = [b"a colour"]
            case "expired":
                house.clock.set(house.clock.now() + timedelta(hours=1))  # its timer has not fired yet
        said = await says(life, second if other == "agent" else agent, "blue", **options)
        assert (said.status, said.host) == ("queued", None)
        if other != "expired":
            await (await the_ask(run, "question")).answer("green", by="kim")
        assert await rest(said) == await rest(run) == "completed"


async def test_reject_and_interrupt_do_what_they_say(house: House) -> None:
    agent = house.agent(TASK, "done", tools=[asking()])
    async with house.life(agent) as life:
        run = await waiting(life, agent)
        with pytest.raises(SessionBusy):
            await says(life, agent, "blue", if_busy="reject")
        assert (await run.refresh()).status == "waiting"
        new = await says(life, agent, HELLO, if_busy="interrupt")
        assert [await rest(r) for r in (run, new)] == ["cancelled", "completed"]


async def test_of_two_open_questions_none_is_guessed(house: House) -> None:
    agent = house.agent([call("task"), call("task")], "done", tools=[asking()])
    async with house.life(agent) as life:
        run = await waiting(life, agent)
        said = await says(life, agent, HELLO)
        assert said.status == "queued"
        for ask in await run.asks():
            await ask.answer("blue", by="kim")
        assert await rest(run) == await rest(said) == "completed"


async def test_an_approval_beside_it_stays_open(house: House) -> None:
    agent = house.agent([call("task"), call("wire", to="kim")], "done", tools=[asking(), wire])
    async with house.life(agent) as life:
        run = await waiting(life, agent)
        assert (await says(life, agent, "yes, approve it")).status == "joined"
        assert await rest(run) == "waiting"
        assert [a.kind for a in await run.asks()] == ["approval"]
        assert (await says(life, agent, HELLO, "more")).status == "queued"
        await (await the_ask(run)).deny(by="lee")
        assert await rest(run) == "completed"
        assert await rest(await life.rt.find_run("more", user="kim")) == "completed"
    assert house.count("wire") == 0


@pytest.mark.parametrize(("questions", "becomes"), [(1, "joined"), (2, "queued")])
async def test_questions_are_found_behind_any_number_of_approvals(house: House, questions: int, becomes: str) -> None:
    approvals = [call("wire", to=f"{n}") for n in range(101 - questions)]
    agent = house.agent([*approvals, *[call("task")] * questions], tools=[asking(), wire])
    async with house.life(agent) as life:
        run = await waiting(life, agent)
        open_ones = await life.rt.asks(run=run.id, limit=200)
        assert [a.kind for a in open_ones] == ["approval"] * len(approvals) + ["question"] * questions
        assert (await says(life, agent, "blue")).status == becomes
        assert await rest(run) == "waiting"


async def test_the_same_message_again_is_the_same_answer(house: House) -> None:
    agent, place = house.agent(TASK, "painted", tools=[asking()]), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", nth=2, fault=place)) as life:
        run = await waiting(life, agent)
        first = await says(life, agent, "blue")
        await place.reached.wait()
        again = await says(life, agent, "blue", if_busy="interrupt")
        assert (again.id, again.status) == (first.id, "joined")
        with pytest.raises(OperationMismatch):
            await says(life, agent, "red")
        place.go_on.set()
        assert (await again.result()).body == (await run.result()).body
        assert len(await life.rt.audit()) == 1


async def test_two_messages_at_once_answer_once(house: House) -> None:
    agent = house.agent(TASK, "painted", tools=[asking()])
    house.answers("red", "red it is")
    house.answers("blue", "blue it is")
    async with house.life(agent) as life:
        run = await waiting(life, agent)
        both = await asyncio.gather(*(says(life, agent, colour, colour) for colour in ("blue", "red")))
        assert [await rest(r) for r in (run, *both)] == ["completed"] * 3
        (joined,) = [r for r in [await b.refresh() for b in both] if r.status == "joined"]
        assert told(house) in ("'blue'", "'red'")
        assert joined.host == run.id


async def test_an_answer_does_not_wait_so_the_length_of_the_queue_does_not_matter(house: House) -> None:
    agent = house.agent(TASK, "painted", tools=[asking()], limits=Limits(queue=0))
    async with house.life(agent) as life:
        await waiting(life, agent)
        assert (await (await says(life, agent, "blue")).result()).text == "painted"


async def test_when_the_run_that_asked_fails_the_note_tells_of_the_answer(house: House) -> None:
    agent = house.agent(TASK, error("rejected"), tools=[asking()])
    async with house.life(agent) as life:
        run = await waiting(life, agent)
        answer = await says(life, agent, "blue")
        assert await rest(run) == "failed"
        assert (await answer.refresh()).status == "joined"
        following = await says(life, agent, HELLO, "next")
        assert await rest(following) == "completed"
        (note,) = notes(house.asked(following)[0])
        assert "blue" in note


@pytest.mark.parametrize("at", ["accept.before", "accept.after", "claim.before", "claim.after"])
async def test_it_is_there_or_not_whenever_the_process_dies(house: House, at: str) -> None:
    agent = house.agent(TASK, "painted", tools=[asking()])
    async with house.life(agent, dies_at=at, nth=2) as life:
        run = await waiting(life, agent)
        saying = asyncio.ensure_future(says(life, agent, "blue"))
        await life.ends()
        saying.cancel()
    async with house.life(agent) as life:
        answer = await says(life, agent, "blue")
        assert (answer.status, answer.host) == ("joined", run.id)
        assert (await answer.result()).text == "painted"
        assert await states(await life.rt.get_run(run.id)) == [("task", "succeeded", 0), ("refund", "succeeded", 1)]
    assert house.count("refund") == 1
