"""C42: the message of a failed turn is kept once, and never comes back as if it were new."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from kit import (
    Conversation,
    Gate,
    Outside,
    WatchedClock,
    asked,
    conversation,
    holds_in_all_cases,
    notes,
    rests,
    results,
)

from ondol import (
    Agent,
    Context,
    Message,
    ModelError,
    ModelOutput,
    ModelRequest,
    Reasoning,
    RunCancelled,
    RunFailed,
    Runtime,
    Text,
)
from ondol.errors import InvalidInput, RunEnded
from ondol.messages import Part
from ondol.providers.script import Reply
from ondol.testing import Downstream, FaultPlan, FaultyModel, ScriptedModel, barrier, call, error, text

OP1, OP2 = "delete the draft", "what time is it?"
FAILURES = 27  # in one session
ERRORS = ("too many requests", "internal server error")


async def delete(ctx: Context[Outside]) -> str:
    await ctx.deps.effect(ctx, "delete")
    return "it is gone"


class Desk:
    """Its provider is down until somebody says that it is up."""

    def __init__(self) -> None:
        self.up = False
        self.model = Conversation({OP1: self._delete, OP2: ["ten o'clock"]})
        self.agent = Agent("desk", model=self.model, tools=[delete])

    def _delete(self, request: ModelRequest) -> Reply:
        if not self.up:
            return error("rate_limited", ERRORS[0]) if request.attempt == 1 else error("server", ERRORS[1])
        return [call("delete")] if request.step == 0 else "deleted"


DELETED = [("user", OP1), ("assistant", "delete()"), ("tool", "delete: it is gone"), ("assistant", "deleted")]
ANSWERED = [("user", OP2), ("assistant", "ten o'clock")]


async def committed(rt: Runtime) -> list[Message]:
    return [m.message for m in await (await rt.get_session("s")).messages()]


def said(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """The conversation without what the runtime told."""
    return conversation([m for m in messages if m.origin is None])


async def fails(rt: Runtime, clock: WatchedClock, desk: Desk, operation_id: str = "op1") -> str:
    run = await rt.start(desk.agent, OP1, session="s", operation_id=operation_id)
    await rests(clock, run)
    with pytest.raises(RunFailed):
        await run.result()
    return run.id


async def test_c42_retried_it_is_one_message_and_one_answer(db: str, downstream: Downstream) -> None:
    desk, clock = Desk(), WatchedClock()
    async with Runtime(db, agents=[desk.agent], deps=Outside(downstream.url), clock=clock) as rt:
        first = await fails(rt, clock, desk)
        assert await fails(rt, clock, desk) == first  # and fails again
        assert await committed(rt) == []
        desk.up = True
        again = await rt.start(desk.agent, OP1, session="s", operation_id="op1")
        assert (await again.result()).text == "deleted"
        assert again.id == first
        for request in desk.model.requests:
            assert [text for role, text in conversation(request.messages) if role == "user"] == [OP1]
        assert conversation(await committed(rt)) == DELETED
        assert await downstream.count() == 1
        request = await holds_in_all_cases(rt, db, desk.agent, "s", downstream, clock=clock)
        assert conversation(request.messages)[1:-1] == DELETED


@pytest.mark.parametrize("providers", [2, 3])
async def test_c42_asked_of_one_provider_after_another_it_is_still_one_message(
    db: str, downstream: Downstream, providers: int
) -> None:
    clock = WatchedClock()
    up = Conversation({OP1: [[call("delete")], "deleted"], OP2: ["ten o'clock"]}, name="p3")
    down = [ScriptedModel([error("rate_limited", ERRORS[0])], name="p1"), ScriptedModel([error("server")], name="p2")]
    agent = Agent("desk", model=[*down[: providers - 1], up], tools=[delete])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.start(agent, OP1, session="s", operation_id="op1")
        await rests(clock, run)
        assert (await run.result()).text == "deleted"
        for request in [*up.requests, *(r for model in down for r in model.requests)]:
            assert [text for role, text in conversation(request.messages) if role == "user"] == [OP1]
        assert conversation(await committed(rt)) == DELETED
        assert await downstream.count() == 1
        again = await rt.start(agent, OP2, session="s", operation_id="op2")
        await rests(clock, again)
        assert said(up.requests[-1].messages)[1:] == [*DELETED, ("user", OP2)]


async def test_c42_another_message_instead_does_not_carry_out_the_old_one(db: str, downstream: Downstream) -> None:
    desk, clock = Desk(), WatchedClock()
    async with Runtime(db, agents=[desk.agent], deps=Outside(downstream.url), clock=clock) as rt:
        await fails(rt, clock, desk)
        desk.up = True
        assert (await rt.run(desk.agent, OP2, session="s", operation_id="op2")).text == "ten o'clock"
        (request,) = desk.model.of[OP2].requests
        assert said(request.messages)[1:] == [("user", OP2)]
        (note,) = notes(request)
        assert repr(OP1) in note
        assert "not answered" in note
        assert "unless the user asks again" in note
        assert not any(words in m.text for m in request.messages for words in ERRORS)  # errors are no conversation

        assert said(await committed(rt)) == ANSWERED
        later = await holds_in_all_cases(rt, db, desk.agent, "s", downstream, clock=clock)
        assert notes(later) == [note]  # as history: told once, not again as news
        assert later.messages[-1].origin is None
        assert await downstream.count() == 0


async def test_c42_retried_after_another_message_it_comes_behind_it(db: str, downstream: Downstream) -> None:
    desk, clock = Desk(), WatchedClock()
    async with Runtime(db, agents=[desk.agent], deps=Outside(downstream.url), clock=clock) as rt:
        await fails(rt, clock, desk)
        await rt.run(desk.agent, OP2, session="s", operation_id="op2")
        desk.up = True
        assert (await rt.run(desk.agent, OP1, session="s", operation_id="op1")).text == "deleted"
        assert said(await committed(rt)) == [*ANSWERED, *DELETED]
        assert await downstream.count() == 1
        await holds_in_all_cases(rt, db, desk.agent, "s", downstream, clock=clock)


async def test_c42_many_failures_leave_no_stubs_and_are_told_once(db: str, downstream: Downstream) -> None:
    desk, clock = Desk(), WatchedClock()
    async with Runtime(db, agents=[desk.agent], deps=Outside(downstream.url), clock=clock) as rt:
        for n in range(FAILURES):
            await fails(rt, clock, desk, f"op{n}")
        assert await committed(rt) == []
        assert (await rt.run(desk.agent, OP2, session="s")).text == "ten o'clock"
        (request,) = desk.model.of[OP2].requests
        assert [m.role for m in request.messages] == ["system", "user", "user"]  # the note, and the question
        assert len(await rt.runs(session="s", state="failed")) == FAILURES  # nothing is hidden either
        request = await holds_in_all_cases(rt, db, desk.agent, "s", downstream, clock=clock)
        assert len(notes(request)) == 1
        assert not any(words in m.text for m in request.messages for words in ERRORS)


class Unready(Conversation):
    """It raises before it gives back a stream."""

    error: Exception

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        if asked(request) == OP1:
            raise self.error
        return super().stream(request)


@pytest.mark.parametrize("error", [ModelError("auth", "there is no key"), KeyError("there is no key")])
async def test_c42_a_model_that_raises_at_once_fails_like_any_other(
    db: str, downstream: Downstream, error: Exception
) -> None:
    model = Unready({OP1: [], OP2: ["ten o'clock"]})
    model.error = error
    agent = Agent("desk", model=model, tools=[delete])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        with pytest.raises(RunFailed, match="there is no key") as failed:
            await rt.run(agent, OP1, session="s", operation_id="op1")
        assert failed.value.retryable == isinstance(error, ModelError)
        assert (await rt.run(agent, OP2, session="s", operation_id="op2")).text == "ten o'clock"
        assert said(await committed(rt)) == ANSWERED
        await holds_in_all_cases(rt, db, agent, "s", downstream)


# --- (c) no empty blocks ----------------------------------------------------------------------------------------


async def test_c42_cancelled_before_the_first_token(db: str, downstream: Downstream) -> None:
    gate = Gate()

    async def answer(request: ModelRequest) -> Reply:
        await gate.wait()
        return "never said"

    agent = Agent("desk", model=Conversation({OP1: answer}), tools=[delete])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, OP1, session="s", operation_id="op1")
        await gate.reached.wait()
        await run.cancel(by="kim")
        with pytest.raises(RunCancelled):
            await run.result()
        assert await committed(rt) == []
        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert [m.role for m in request.messages] == ["system", "user", "user"]


@pytest.mark.parametrize("pieces", [1, 2])
async def test_c42_cancelled_in_the_middle_of_an_answer(db: str, downstream: Downstream, pieces: int) -> None:
    wall = barrier()
    plan = FaultPlan().at("model.delta", nth=pieces, fault=wall)
    model = FaultyModel(Conversation({OP1: ["a long answer"]}), plan)
    agent = Agent("desk", model=model, tools=[delete])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, OP1, session="s", operation_id="op1")
        await wall.reached.wait()
        await run.cancel(by="kim")
        with pytest.raises(RunCancelled):
            await run.result()
        assert await committed(rt) == []
        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert not any(m.role == "assistant" or "a long" in m.text for m in request.messages)


EMPTY: list[list[Part | str]] = [[""], ["   "], ["\n\t "], [], [Reasoning("hm")], ["", " "]]


@pytest.mark.parametrize("nothing", EMPTY)
async def test_c42_an_answer_that_says_nothing_is_asked_for_again(
    db: str, downstream: Downstream, nothing: list[Part | str]
) -> None:
    clock = WatchedClock()

    def answer(request: ModelRequest) -> Any:
        return nothing if request.attempt == 1 else "deleted"

    agent = Agent("desk", model=Conversation({OP1: answer}), tools=[delete])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.start(agent, OP1, session="s", operation_id="op1")
        await rests(clock, run)
        assert (await run.result()).text == "deleted"
        assert conversation(await committed(rt)) == [("user", OP1), ("assistant", "deleted")]
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


@pytest.mark.parametrize("nothing", ["", "   ", "\n\t "])
async def test_c42_an_empty_text_beside_a_call_or_another_text_is_not_sent_back(
    db: str, downstream: Downstream, nothing: str
) -> None:
    script = [[text(nothing), call("delete")], [text("deleted"), text(nothing)]]
    agent = Agent("desk", model=Conversation({OP1: script}), tools=[delete])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        assert (await rt.run(agent, OP1, session="s", operation_id="op1")).text.strip() == "deleted"
        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert [r.response for r in results(request.messages)] == ["it is gone"]


@pytest.mark.parametrize("nothing", ["", "  \n"])
async def test_c42_a_message_that_says_nothing_does_not_spoil_the_session(
    db: str, downstream: Downstream, nothing: str
) -> None:
    model = Conversation({key: ["what did you mean?"] for key in ("", nothing)})
    agent = Agent("desk", model=model, tools=[delete])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        with pytest.raises((InvalidInput, RunEnded)):
            await rt.run(agent, nothing, session="s", operation_id="op1")
        with_a_file = await rt.run(agent, nothing, session="s", operation_id="op2", attachments=[b"a file"])
        assert with_a_file.text == "what did you mean?"
        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert all(p.text.strip() for m in request.messages for p in m.parts if isinstance(p, Text))
