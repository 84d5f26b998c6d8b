"""How does the body of a tool of steps get from one recorded step to the next?

The body has no effects of its own, so it is entered from its top as often as needed: after a restart, and after a
person's answer. Each ``ctx.call`` and ``ctx.ask`` stops it. What is recorded at that place is handed back; what is not
is done first, and recorded. Where a person has to be waited for, the body is unwound, and nothing of it stays in
memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from ondol import effects, journal, lifecycle, messages, schemas, values
from ondol.attempts import AttemptEnd, Raised, Returned, Stopped, TimedOut, awaited
from ondol.cancellation import CancelToken, InFlight, begin
from ondol.clock import Clock, elapsed, from_micros
from ondol.effects import Effect
from ondol.errors import CallFailed, InvalidInput, Suspended
from ondol.questions import AnswerType, Question
from ondol.secret import logger, redact
from ondol.tools import Context, StepCall, Tool, as_sent

if TYPE_CHECKING:
    from ondol.calls import Calls

log = logger("ondol.runner")

Wanted: TypeAlias = StepCall | Question

_DEPTH = 20  # tools of steps inside each other; one that calls itself comes to no end
_UNWIND = timedelta(seconds=2)  # for a body to end after it was told to

_ONE_BY_ONE = (
    "a tool of steps does one thing after the other, in its own task: no gather, no task and no time-out around "
    "ctx.call and ctx.ask, so that they come in the same order again"
)

_NOT_AWAITED = "a step of it was not awaited, and so not done: write 'await ctx.call(...)' and 'await ctx.ask(...)'"


class Body:
    """The running body: what it says next, and what it is told.

    ``at`` is its time, in microseconds since 1970: when it could begin, then when the step had its outcome that it was
    told of last. A time of day that it computes with must be the same whenever it is entered.
    """

    def __init__(self, clock: Clock, at: int) -> None:
        self.at = at
        self._clock = clock
        self._said: asyncio.Future[Wanted | AttemptEnd] = asyncio.get_running_loop().create_future()
        self._answer: asyncio.Future[Any] | None = None  # what it waits for
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False  # nobody listens any more
        self._left_early = False  # it stopped waiting for an answer
        self._unawaited = 0  # steps that it wanted, and did not await

    def start(self, tool: Tool[..., Any], ctx: Context[Any], arguments: Mapping[str, Any]) -> None:
        async def run() -> None:
            self._say(await awaited(tool, ctx, arguments))

        self._task = begin(run())

    def _say(self, said: Wanted | AttemptEnd) -> None:
        if not self._said.done():
            self._said.set_result(said)

    def step(self, wanted: Wanted) -> Awaitable[Any]:
        """``ctx.call`` and ``ctx.ask``, for the body to await."""
        self._unawaited += 1
        return self._step(wanted)

    async def _step(self, wanted: Wanted) -> Any:
        self._unawaited -= 1
        if asyncio.current_task() is not self._task:
            raise InvalidInput(_ONE_BY_ONE)
        if self._is_closed or self._left_early:
            await asyncio.sleep(0)  # a body that catches everything and tries again must not block the loop
            raise Suspended
        self._answer = asyncio.get_running_loop().create_future()
        self._say(wanted)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self._left_early = True
            raise

    async def next(self, seconds: float, token: CancelToken) -> Wanted | AttemptEnd:
        """What it says next, if it needs at most so many seconds for that."""
        match await InFlight(self._said, in_thread=False).wait(self._clock, seconds, token):
            case "timeout":
                return TimedOut()
            case "cancelled":
                return Stopped()
            case "done":
                said, self._said = self._said.result(), asyncio.get_running_loop().create_future()
                if self._left_early:
                    return Raised(f"it did not wait for a step of its own: {_ONE_BY_ONE}", not_done=False)
                if self._unawaited and isinstance(said, Returned):
                    return Raised(_NOT_AWAITED, not_done=False)
                return said

    def tell(self, outcome: Given | Refused) -> None:
        self.at = max(self.at, outcome.at)  # also where a clock went back
        if self._answer is None or self._answer.done():
            return
        if isinstance(outcome, Given):
            self._answer.set_result(outcome.value)
        else:
            self._answer.set_exception(outcome.error)

    async def unwind(self) -> None:
        """Let it end, in order: by ``Suspended`` where it waits, by a cancellation where it computes."""
        self._is_closed = True
        if self._task is None or self._task.done():
            return
        body = InFlight(self._task, in_thread=False)
        try:
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(Suspended())
                if await body.wait(self._clock, _UNWIND.total_seconds(), None) == "done":
                    return
            if not await body.stop(self._clock, _UNWIND):
                log.warning("the body of a tool of steps does not end: it catches what should pass through it")
        finally:
            body.leave()


@dataclass(frozen=True, slots=True)
class Given:
    """The step has this outcome."""

    value: Any
    at: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The body is told by an exception. Where nothing was recorded for it, the next step has its place."""

    error: CallFailed | InvalidInput
    at: int = 0
    is_recorded: bool = True


@dataclass(frozen=True, slots=True)
class Waits:
    """The step has no outcome yet, and this process cannot bring it about now."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The code does not do what is recorded."""

    why: str


Step: TypeAlias = Given | Refused | Waits | Changed


async def enter(
    calls: Calls, effect: Effect, tool: Tool[..., Any], arguments: Mapping[str, Any]
) -> tuple[Context[Any], AttemptEnd] | None:
    """Run the body from its top to its end. None: it was unwound on the way, and what it did is recorded."""
    drive = calls.drive
    body = Body(drive.clock, effect.at)
    ctx = calls.context(tool, effect.ordinal, steps=body, before=effect, now=lambda: drive.shown(from_micros(body.at)))
    body.start(tool, ctx, arguments)
    seconds, place = tool.timeout.total_seconds(), 0
    try:
        while True:
            began = elapsed(drive.clock)
            said = await body.next(seconds, drive.token)
            seconds -= elapsed(drive.clock) - began  # what its steps take does not count
            if isinstance(said, StepCall):
                step = await _call(calls, effect, place, said)
            elif isinstance(said, Question):
                step = await _ask(calls, effect, place, said)
            elif isinstance(said, Stopped):
                return None
            elif (left := await _recorded(calls, effect, place)) is not None:
                step = Changed(f"it ended without step {place}, which was {_named(left)}{_why(said)}")
            else:
                return ctx, said
            match step:
                case Given() | Refused():
                    body.tell(step)
                    place += not isinstance(step, Refused) or step.is_recorded
                case Waits():
                    return None
                case Changed(why=why):
                    root = drive.state.root(effect).ordinal
                    calls.changed[root] = f"the code of {effect.tool} does not fit what is recorded: {why}"
                    return None
    finally:
        await body.unwind()


async def _recorded(calls: Calls, parent: Effect, place: int) -> Effect | journal.Question | None:
    await calls.drive.caught_up()
    recorded = calls.drive.state.steps(parent.ordinal)
    return recorded[place] if place < len(recorded) else None


async def _call(calls: Calls, parent: Effect, place: int, wanted: StepCall) -> Step:
    drive, tool = calls.drive, wanted.tool
    try:
        if tool.effect == "steps" and len(drive.state.path(parent)) >= _DEPTH:
            raise InvalidInput(f"{tool.name} is not called: {_DEPTH} tools of steps are inside each other")
        arguments = as_sent(wanted.arguments)
        encoded = schemas.recorded(arguments)
        if redact(encoded) != encoded:
            raise InvalidInput(f"an argument of {tool.name} holds a secret, and would be recorded: take it in the tool")
        tool.takes(wanted.arguments, arguments)
    except InvalidInput as error:
        return Refused(error, is_recorded=False)
    digest = values.digest(encoded)
    step = await _recorded(calls, parent, place)
    if isinstance(step, journal.Question) or (step is not None and (step.tool, step.hash) != (tool.name, digest)):
        same = isinstance(step, Effect) and step.tool == tool.name
        now = "the same with other arguments" if same else f"a call of {tool.name}"
        return Changed(f"step {place} was {_named(step)}, and is {now}")
    if step is None and not drive.is_stopping:
        step = await calls.plan(parent, place, tool, arguments, digest)
    if step is None or (drive.is_stopping and not step.has_outcome):
        return Waits()
    if not step.has_outcome:
        # Write down, act, write down the outcome, as for any call. What a crash left of it gets its own verdict.
        unknown = lifecycle.sibling_unknown(drive.state, drive.busy | {drive.state.root(parent).ordinal})
        verdict = effects.verdict(step, tool.rules, sibling_unknown=unknown, now=drive.now())
        calls.tools[step.ordinal] = tool
        await calls.work(step.ordinal, verdict)
        await drive.caught_up()
        step = drive.state.effects[step.ordinal]
    return await _outcome(calls, step, tool) if step.has_outcome else Waits()


async def _outcome(calls: Calls, step: Effect, tool: Tool[..., Any]) -> Given | Refused:
    reply = calls.drive.talk.messages[step.reply].parts[0]
    assert isinstance(reply, messages.ToolResponse)
    if step.state == "succeeded" and not reply.error:
        return Given(tool.read_back(await calls.value_of(reply)), step.at)
    return Refused(CallFailed(f"{step.tool}: {reply.text}", tool=step.tool, state=step.state), step.at)


async def _ask(calls: Calls, parent: Effect, place: int, wanted: Question) -> Step:
    try:
        answer = AnswerType(wanted.type)
        default = None if wanted.default is ... else answer.written(wanted.default)
        if redact([default, answer.schema]) != [default, answer.schema]:
            raise InvalidInput("the default or the schema of a question holds a secret, and would be recorded")
    except InvalidInput as error:
        return Refused(error, is_recorded=False)
    words = redact(values.valid(wanted.words))
    digest = values.digest(values.encode([words, answer.schema]))
    step = await _recorded(calls, parent, place)
    if step is None:
        if not calls.drive.is_stopping:
            await calls.ask(parent, place, wanted, answer, words, digest)
        return Waits()
    if isinstance(step, Effect) or step.hash != digest:
        now = "a question" if isinstance(step, Effect) else "another one, or for another type"
        return Changed(f"step {place} was {_named(step)}, and is {now}")
    if not step.has_outcome:
        return Waits()
    try:
        return Given(answer.read(values.decode(step.value)), step.at)
    except InvalidInput as error:
        return Refused(error, step.at)


def _named(step: Effect | journal.Question) -> str:
    return "a question" if isinstance(step, journal.Question) else f"a call of {step.tool}"


def _why(ended: AttemptEnd) -> str:
    match ended:
        case Raised(reason=reason):
            return f" ({reason})"
        case TimedOut():
            return " (its time was over)"
        case _:
            return ""


def done_by(calls: Calls, effect: Effect) -> str:
    """What a tool of steps that failed has done all the same, for the model to know."""
    state = calls.drive.state
    happened = (s for s in state.effects if s.state == "succeeded" and s.is_write and (s.attempt or s.reuses))
    done = [s.tool for s in happened if effect.ordinal in state.path(s)]
    return f" (done by then: {', '.join(done)})" if done else ""
