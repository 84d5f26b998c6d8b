"""What a model's answer may set off, and what it may not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kit import Conversation, WatchedClock, rests

from ondol import (
    Agent,
    Answer,
    Attachment,
    Delta,
    Message,
    ModelError,
    ModelRequest,
    Reasoning,
    RunEnded,
    RunFailed,
    Runtime,
    Text,
    ToolCall,
    ToolResponse,
    UnknownPart,
    tool,
)
from ondol.testing import ManualClock, ScriptedModel, call, error, text, truncated


class Raw:
    """A model that gives its answers as they are, one after the other, and keeps what it was asked."""

    name = "raw"

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.requests = answers, []

    async def stream(self, request: ModelRequest) -> AsyncIterator[Answer]:
        self.requests.append(request)
        yield self.answers[request.step]


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture
def mail(sent: list[str]) -> Callable[..., str]:
    def mail(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return f"sent to {to}"

    return mail


def results(messages: object) -> list[ToolResponse]:
    assert isinstance(messages, (list, tuple))
    return [p for m in messages if isinstance(m, Message) for p in m.parts if isinstance(p, ToolResponse)]


async def test_an_answer_that_was_cut_off_makes_none_of_its_calls(tmp_path: Path, mail, sent) -> None:
    model = ScriptedModel([truncated([call("mail", to="kim"), call("mail", to="lee")]), [text("sorry")]])
    agent = Agent("a", model=model, tools=[mail])
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        assert (await rt.run(agent, "write")).text == "sorry"
        assert [e.state for e in await rt.effects()] == ["failed", "failed"]
    assert sent == []
    told = results(model.requests[1].messages)
    assert len(told) == 2
    assert all(r.error and "cut off" in r.text for r in told)


async def test_an_answer_that_was_cut_off_says_so_wherever_it_is_read(tmp_path: Path, mail) -> None:
    script = {
        "go": [call("mail", to="kim"), truncated("half a sent")],
        "cut": [truncated([call("mail", to="x")]), "whole"],
    }
    agent = Agent("a", model=Conversation(script), tools=[mail])
    db = f"sqlite:///{tmp_path}/ondol.db"
    async with Runtime(db, agents=[agent]) as rt:
        result = await rt.run(agent, "go", session="s", operation_id="o")
        assert (result.text, result.stop, json.loads(result.body)["stop"]) == ("half a sent", "length", "length")
        whole = await rt.run(agent, "cut", session="s")
        assert (whole.text, whole.stop, "stop" in json.loads(whole.body)) == ("whole", "", False)
    async with Runtime(db, agents=[agent]) as rt:
        again = await rt.run(agent, "go", session="s", operation_id="o")
        assert (again.body, again.stop, again.replayed) == (result.body, "length", True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ('{"to": "kim"', "not a JSON object"),
        ({}, "to: Field required"),
        ({"to": 7}, "to: Input should be a valid string"),
        ({"to": "kim", "cc": "lee"}, "cc: Extra inputs are not permitted"),
    ],
)
async def test_arguments_that_do_not_fit_are_never_repaired_into_a_call(
    tmp_path: Path, mail, sent, arguments, complaint
) -> None:
    asks = Answer(parts=(ToolCall("c1", "mail", arguments),), stop="tool_calls")
    model = Raw(asks, Answer(parts=(Text("I see"),)))
    agent = Agent("a", model=model, tools=[mail])
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        assert (await rt.run(agent, "write")).text == "I see"
    assert sent == []
    (told,) = results(model.requests[1].messages)
    assert told.error
    assert complaint in told.text


async def test_a_call_of_a_tool_that_does_not_exist_is_told_to_the_model_with_the_names_there_are(
    tmp_path: Path, mail, sent
) -> None:
    model = Raw(Answer(parts=(ToolCall("c1", "fax", {}),)), Answer(parts=(Text("I see"),)))
    agent = Agent("a", model=model, tools=[mail])
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        await rt.run(agent, "write")
    (told,) = results(model.requests[1].messages)
    assert (told.error, told.text) == (True, "there is no tool 'fax'; the tools are: mail")


@pytest.mark.parametrize(
    "name", ["fax<|channel|>commentary", "", "fax it", "functions.fax", "팩스", "f\0", "f" * 80, "m ail"]
)
async def test_a_name_that_no_tool_can_have_is_told_to_the_model_and_sent_to_no_provider(
    tmp_path: Path, mail, sent, name: str
) -> None:
    """A provider refuses a request that holds it, and the session would never go on."""
    model = ScriptedModel(lambda r: [[call(name, to="kim"), call("mail", to="lee")], [text("I see")]][r.step])
    agent = Agent("a", model=model, tools=[tool(effect="read")(mail)])
    db = f"sqlite:///{tmp_path}/ondol.db"
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "write", session="s")
        assert (await run.result()).text == "I see"
        assert [(e.tool, e.state) for e in await run.effects()] == [
            (name.replace("\0", "\u2400"), "failed"), ("mail", "succeeded"),
        ]  # fmt: skip
        fork = await rt.fork(run, at_step=2)
        assert (await fork.result()).text == "I see"
    async with Runtime(db, agents=[agent]) as rt:
        assert (await rt.run(agent, "again", session="s")).text == "I see"
    first, second = results(model.requests[1].messages)
    assert (first.error, first.text.startswith("there is no tool "), second.text) == (True, True, "sent to lee")
    assert sent == ["lee"] * 2


@pytest.mark.parametrize("ids", [("", ""), ("x", "x"), ("call_1", ""), ("", "call_0")])
async def test_calls_without_an_id_of_their_own_get_one_and_their_own_result(tmp_path: Path, ids) -> None:
    @tool(effect="read")
    def echo(word: str) -> str:
        return word

    calls = tuple(ToolCall(id, "echo", {"word": w}) for id, w in zip(ids, ("one", "two"), strict=True))
    model = Raw(Answer(parts=calls), Answer(parts=(Text("ok"),)))
    agent = Agent("a", model=model, tools=[echo])
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        await rt.run(agent, "go")
    (asked,) = [m for m in model.requests[1].messages if m.calls]
    by_id = {r.id: r.text for r in results(model.requests[1].messages)}
    assert [by_id[c.id] for c in asked.calls] == ["one", "two"]


NO_ANSWERS: list[tuple[Any, str]] = [
    ("hello", "a str instead of an Answer"),
    (Delta(b"hello"), "a Delta instead of an Answer"),  # type: ignore[arg-type]
    (Answer(parts="hello"), "its parts are a str, not a tuple"),  # type: ignore[arg-type]
    (Answer(parts=("hello",)), "'hello' is no part of an answer"),  # type: ignore[arg-type]
    (Answer(parts=(Text(b"hello"),)), "is no part of an answer"),  # type: ignore[arg-type]
    (Answer(parts=(Text("so"), ToolCall("c1", "mail", None))), "is no part of an answer"),  # type: ignore[arg-type]
    (Answer(parts=(Text("so"), ToolCall(None, "mail", {}))), "is no part of an answer"),  # type: ignore[arg-type]
    (Answer(parts=(ToolCall("c1", "mail", {"to": "kim"}), ToolCall("c2", "mail", {"to": Decimal(1)}))), "Decimal('1')"),
    (Answer(parts=(Text("so"), ToolCall("c1", "mail", {"to": ["kim", float("nan")]}))), "is no part of an answer"),
    (Answer(parts=(Text("so"), ToolResponse("c1", "mail", "sent"))), "is no part of an answer"),
    (Answer(parts=(Text("so"), UnknownPart({"depth": float("nan")}))), "is no part of an answer"),
    (Answer(parts=(Text("so"), UnknownPart({"depth": b"3"}))), "is no part of an answer"),
    (Answer(parts=(Text("so"), Attachment("d", "image/png", "a", float("nan")))), "is no part of an answer"),  # type: ignore[arg-type]
    (Answer(parts=(Text("so"),), stop=None), "stop=None is no text"),  # type: ignore[arg-type]
    (Answer(parts=(Text("so"),), input_tokens=-1), "input_tokens=-1 is no number of tokens"),
    (Answer(parts=(Text("so"),), output_tokens="7"), "output_tokens='7' is no number"),  # type: ignore[arg-type]
    (Answer(parts=(Text("so"),), input_tokens=2**62), "is no number of tokens"),  # two of those have no room
    (Answer(parts=(Text("so", "private"),)), "is no part of an answer"),  # type: ignore[arg-type]
    (Answer(parts=(Text("so"), ToolCall("c1", "mail", {}, [1]))), "is no part of an answer"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("given", "why"), NO_ANSWERS)
async def test_what_is_no_answer_ends_the_run_with_what_is_wrong_and_the_session_goes_on(
    tmp_path: Path, mail, sent, given, why: str
) -> None:
    class Odd:
        name = "odd"
        asked = 0

        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            self.asked += 1
            yield given if self.asked == 1 else Answer(parts=(Text("good"),))

    agent = Agent("a", model=Odd(), tools=[mail])
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        with pytest.raises(RunFailed, match="model_rejected: the model gave what is no answer") as failed:
            await rt.run(agent, "go", session="s")
        assert why in str(failed.value)
        assert (await rt.run(agent, "go", session="s")).text == "good"
    assert sent == []


class Failing:
    """Begins to answer, and raises this, each time that it is asked."""

    name = "odd"

    def __init__(self, error: BaseException | type[BaseException]) -> None:
        self.error, self.asked = error, 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.asked += 1
        yield Delta("well")
        raise self.error


@pytest.mark.parametrize("raised", [GeneratorExit, SystemExit, KeyboardInterrupt, StopAsyncIteration])
async def test_a_model_that_raises_what_ends_a_program_ends_its_run(
    tmp_path: Path, raised: type[BaseException]
) -> None:
    """Each time that it is asked: one that is asked again must not be healed by that."""

    agent = Agent("a", model=(odd := Failing(raised)))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        with pytest.raises(RunFailed, match="the model raised"):
            await rt.run(agent, "go", session="s")
    assert odd.asked == 1


@pytest.mark.parametrize("raised", [SystemExit(3), RuntimeError("gone")], ids=["exits", "raises"])
async def test_an_answer_counts_however_its_stream_ends(tmp_path: Path, raised: BaseException) -> None:
    closed: list[Any] = []

    class Stream:
        given = False

        def __aiter__(self) -> Stream:
            return self

        async def __anext__(self) -> Answer:
            if self.given:
                raise StopAsyncIteration
            self.given = True
            return Answer(parts=(Text("good"),))

        async def aclose(self) -> None:
            closed.append(self)
            raise raised

    class Odd:
        name = "odd"

        def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            return Stream()

    agent = Agent("a", model=Odd())
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        assert (await rt.run(agent, "go", session="s")).text == "good"
        assert (await rt.run(agent, "go", session="s")).text == "good"
    assert len(closed) == 2


async def _raises(error: BaseException) -> AsyncIterator[Any]:
    yield Answer(parts=(Text("good"),))
    raise error


async def _fails_as_it_is_closed(error: BaseException) -> AsyncIterator[Any]:
    try:
        yield Answer(parts=(Text("good"),))
    finally:
        raise error


async def _answers_again() -> AsyncIterator[Any]:
    yield Answer(parts=(Text("good"),))
    yield Answer(parts=(Text("better"),))


async def _is_not_closed() -> AsyncIterator[Any]:
    try:
        yield Answer(parts=(Text("good"),))
    finally:
        yield Answer(parts=(Text("better"),))


async def _hangs() -> AsyncIterator[Any]:
    yield Answer(parts=(Text("good"),))
    await asyncio.get_running_loop().create_future()


BEHIND: dict[str, Callable[[], AsyncIterator[Any]]] = {
    "raises": lambda: _raises(RuntimeError("gone")),
    "raises what may be asked again": lambda: _raises(ModelError("server", "gone")),
    "raises what ends a program": lambda: _raises(SystemExit(3)),
    "answers again": _answers_again,
    "hangs": _hangs,
    "fails as it is closed": lambda: _fails_as_it_is_closed(ModelError("server", "gone")),
    "cancels itself as it is closed": lambda: _fails_as_it_is_closed(asyncio.CancelledError()),
    "is not closed": _is_not_closed,
}


class Once:
    """A model that gives this stream, each time that it is asked."""

    name = "once"

    def __init__(self, stream: Callable[[], Any]) -> None:
        self._stream, self.asked = stream, 0

    def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.asked += 1
        stream: AsyncIterator[Any] = self._stream()
        return stream


@pytest.mark.parametrize("behind", BEHIND)
async def test_an_answer_counts_whatever_its_model_does_behind_it(tmp_path: Path, behind: str) -> None:
    model = Once(BEHIND[behind])
    agent = Agent("a", model=model)
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        assert (await rt.run(agent, "go", session="s")).text == "good"
        assert (await rt.run(agent, "go", session="s")).text == "good"
    assert model.asked == 2


async def test_what_a_model_does_as_its_stream_is_closed_is_done_to_its_end(tmp_path: Path) -> None:
    noted: list[str] = []

    async def notes() -> AsyncIterator[Any]:
        try:
            yield Answer(parts=(Text("good"),))
        finally:
            for word in ("gave", "back", "its", "connection"):
                await asyncio.sleep(0)
                noted.append(word)

    agent = Agent("a", model=Once(notes))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        assert (await rt.run(agent, "go")).text == "good"
    assert noted == ["gave", "back", "its", "connection"]


class Unclosed:
    """A stream that says this, and then neither lets itself be closed nor be cancelled."""

    def __init__(self, said: Answer | ModelError, released: asyncio.Event) -> None:
        self._said, self._released = said, released

    def __aiter__(self) -> Unclosed:
        return self

    async def __anext__(self) -> Answer:
        if isinstance(self._said, ModelError):
            raise self._said
        return self._said

    async def aclose(self) -> None:
        while not self._released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._released.wait()


@contextlib.asynccontextmanager
async def _after(does: Callable[[], object]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        does()


@pytest.mark.parametrize("said", [Answer(parts=(Text("good"),)), ModelError("rejected", "bad request")])
async def test_a_stream_that_cannot_be_closed_is_waited_for_as_long_as_what_was_cancelled(
    tmp_path: Path, said: Answer | ModelError
) -> None:
    clock, released = WatchedClock(), asyncio.Event()
    agent = Agent("a", model=(model := Once(lambda: Unclosed(said, released))))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent], clock=clock) as rt, _after(released.set):
        run = await rt.start(agent, "go")
        await clock.asked(2.0)
        await run.refresh()
        assert run.status == "running"
        clock.advance(2)
        if isinstance(said, Answer):
            assert (await run.result()).text == "good"
        else:
            with pytest.raises(RunFailed, match="model_rejected: bad request"):
                await run.result()
    assert model.asked == 1


async def test_an_answer_counts_although_the_run_is_cancelled_as_its_stream_is_closed(tmp_path: Path) -> None:
    """It is complete, so what it took is known."""
    clock, released = WatchedClock(), asyncio.Event()
    whole = Answer(parts=(Text("good"),), input_tokens=5, output_tokens=9)
    agent = Agent("a", model=Once(lambda: Unclosed(whole, released)))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent], clock=clock) as rt, _after(released.set):
        run = await rt.start(agent, "go")
        await clock.asked(2.0)
        await run.cancel(by="kim")
        clock.advance(2)
        with pytest.raises(RunEnded):
            await run.result()
        await run.refresh()
        assert (run.status, run.tokens) == ("cancelled", (5, 9))


@pytest.mark.parametrize("parts", [(), (Reasoning("hm, hm"),), (Text(" \n"),)])
async def test_an_answer_that_was_cut_off_before_it_said_anything_is_paid_once(tmp_path: Path, parts) -> None:
    """A model that thinks until nothing may be written any more does so again."""
    model = Raw(*[Answer(parts=parts, stop="length", input_tokens=5, output_tokens=9)] * 4)
    agent = Agent("a", model=model)
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        run = await rt.start(agent, "go", session="s")
        with pytest.raises(RunFailed, match="model_rejected: the answer reached its length limit before it said"):
            await run.result()
        assert (len(model.requests), (await run.refresh()).tokens) == (1, (5, 9))


async def test_an_answer_that_a_filter_stopped_makes_none_of_its_calls(tmp_path: Path, mail, sent) -> None:
    stopped = Answer(parts=(ToolCall("c1", "mail", {"to": "kim"}),), stop="content_filter")
    agent = Agent("a", model=Raw(stopped), tools=[mail])
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        with pytest.raises(RunFailed, match="content_filter"):
            await rt.run(agent, "write")
    assert sent == []


async def test_each_attempt_of_a_model_call_is_in_the_journal_and_waits_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    model = ScriptedModel([error("rate_limited", retry_after=7.0), error("server"), "at last"])
    agent = Agent("a", model=model)
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent], clock=clock) as rt:
        run = await rt.start(agent, "go")
        await clock.wait_for_timers()
        clock.advance(seconds=6.9)
        assert len(model.requests) == 1
        clock.advance(seconds=0.2)
        await clock.wait_for_timers()
        clock.advance(minutes=1)
        assert (await run.result()).text == "at last"
        failed = [e.data async for e in run.events() if e.type == "step.failed"]
    assert [(f["attempt"], f["error"]) for f in failed] == [(1, "rate_limited"), (2, "server")]
    assert [r.attempt for r in model.requests] == [1, 2, 3]


async def test_an_answer_that_ends_before_it_is_complete_is_asked_for_again(tmp_path: Path) -> None:
    class Breaks:
        name = "breaks"
        asked = 0

        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            self.asked += 1
            yield Delta("on the w")
            if self.asked > 1:
                yield Answer(parts=(Text("on the way"),))

    clock, agent = ManualClock(), Agent("a", model=Breaks())
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent], clock=clock) as rt:
        run = await rt.start(agent, "go")
        await clock.wait_for_timers()
        clock.advance(minutes=1)
        assert (await run.result()).text == "on the way"
        failed = [e.data["error"] async for e in run.events() if e.type == "step.failed"]
    assert failed == ["connection"]


def _with(**attributes: Any) -> ModelError:
    error = ModelError("rate_limited", "later")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


NO_WAITS: list[Any] = ["3", timedelta(seconds=3), float("nan"), float("inf"), -1.0, True, [3]]


@pytest.mark.parametrize("since", [False, True], ids=["given", "set since"])
@pytest.mark.parametrize("no_wait", NO_WAITS, ids=str)
async def test_a_wait_that_is_no_number_of_seconds_was_not_asked_for(tmp_path: Path, no_wait: Any, since: bool) -> None:
    class Odd:
        name = "odd"
        asked = 0

        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            self.asked += 1
            if self.asked == 1:
                raise _with(retry_after=no_wait) if since else ModelError("rate_limited", "later", retry_after=no_wait)
            yield Answer(parts=(Text("good"),))

    clock, agent = WatchedClock(), Agent("a", model=Odd())
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent], clock=clock) as rt:
        run = await rt.start(agent, "go")
        at = clock.now().timestamp()
        await rests(clock, run)
        assert (await run.result()).text == "good"
        (failed,) = [e.data async for e in run.events() if e.type == "step.failed"]
    assert 0.5 <= failed["retry_at"] / 1e6 - at <= 0.75


class Bare(ModelError):
    """What has nothing that a ModelError has."""

    def __init__(self) -> None:
        Exception.__init__(self, "bare")


class Mute(ModelError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ODD_ERRORS: list[tuple[ModelError, str, int]] = [
    (_with(input_tokens="many", output_tokens=-1), "model_rate_limited: later", 4),
    (_with(sent="no"), "model_rate_limited: later", 4),
    (_with(kind="tired"), "model_rejected: the model raised a ModelError of kind 'tired', .* use rate_limited, ", 1),
    (_with(kind=["server"]), r"model_rejected: the model raised a ModelError of kind \['server'\], ", 1),
    (Bare(), "model_rejected: the model raised Bare: bare", 1),
    (Mute("server", "x"), "model_rejected: the model raised Mute", 1),
]


@pytest.mark.parametrize(("error", "ends", "asked"), ODD_ERRORS)
async def test_an_error_of_a_model_ends_its_run_whatever_is_wrong_with_it(
    tmp_path: Path, error: ModelError, ends: str, asked: int
) -> None:
    """No process dies of it, and the run is not parked for that."""

    clock, agent = WatchedClock(), Agent("a", model=(odd := Failing(error)))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent], clock=clock) as rt:
        run = await rt.start(agent, "go")
        await rests(clock, run)
        with pytest.raises(RunFailed, match=ends):
            await run.result()
    assert odd.asked == asked


async def test_a_request_that_the_provider_refuses_is_sent_once(tmp_path: Path) -> None:
    model = ScriptedModel([error("rejected", "bad request")])
    agent = Agent("a", model=model)
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        with pytest.raises(RunFailed, match="bad request") as failed:
            await rt.run(agent, "go")
    assert not failed.value.retryable
    assert len(model.requests) == 1


async def test_private_data_of_another_provider_is_not_handed_on(tmp_path: Path) -> None:
    first = Answer(parts=(Text("one", {"name": "other", "id": "1"}), ToolCall("c", "look", {}, {"name": "raw"})))
    model = Raw(first, Answer(parts=(Text("done"),)))

    @tool(effect="read")
    def look() -> str:
        return "seen"

    agent = Agent("a", model=model, tools=[look])
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        await rt.run(agent, "go", session="s")
        stored = [m.message for m in await (await rt.get_session("s")).messages()]
    (sent_back,) = [m for m in model.requests[1].messages if m.calls]
    assert [getattr(p, "provider", None) for p in sent_back.parts] == [None, {"name": "raw"}]
    (kept,) = [m for m in stored if m.calls]
    assert kept.parts[0] == Text("one", {"name": "other", "id": "1"})
