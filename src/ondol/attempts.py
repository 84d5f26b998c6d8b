"""How did one attempt of a tool call end?

``dispatch`` makes the call and gives back how it ended, as a value: nothing that a tool raises gets past it.
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypeVar

from ondol import effects, values
from ondol.cancellation import CancelToken, InFlight
from ondol.clock import Clock
from ondol.errors import CallFailed, NotDone
from ondol.secret import redact
from ondol.tools import Context, Tool, is_awaitable

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Returned:
    """The tool came back. ``result`` is encoded (see ``values``), ``lost`` the types of what had no JSON form in it."""

    result: Any
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Raised:
    """The tool raised. ``not_done``: it says that nothing happened."""

    reason: str
    not_done: bool


@dataclass(frozen=True, slots=True)
class Unwound:
    """The tool ended by a cancellation, its own or ours, without saying how."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt's time is over. ``goes_on``: it has not ended, as a function in a thread, say, cannot be stopped."""

    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run is being cancelled, and the call did not say in time how it ended."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """It was never sent: the attempt's deadline had passed before (this process had been paused)."""


AttemptEnd: TypeAlias = Returned | Raised | Unwound | TimedOut | Stopped | Dropped


#: The run whose tool this is, and the task of the call, if it has one: a task that the tool has begun is not waited for
#: by the tool.
_CALLING: ContextVar[tuple[str, weakref.ref[asyncio.Task[Any]] | None] | None] = ContextVar("calling", default=None)


def calling() -> str | None:
    """The run whose ``async`` tool this is, where this is its own code."""
    call = _CALLING.get()
    is_own = call is not None and call[1] is not None and call[1]() is asyncio.current_task()
    return call[0] if call is not None and is_own else None


def begun_by() -> str | None:
    """The run whose tool this is, or has begun this: in a task of its own, or from its thread."""
    call = _CALLING.get()
    return None if call is None else call[0]


async def asked_of(
    run: str, ask: Callable[[], Any], answered: Callable[[Awaitable[Any]], Coroutine[Any, Any, T]], *,
    thread: str | None, clock: Clock, seconds: float, token: CancelToken, cancelled: U,
) -> T | U | Literal["cancelled", "timeout"]:  # fmt: skip
    """What other code of the user's gives that the run waits for, as it does for its tools: ``ask`` in a thread of that
    name, where it may block, or else in a task; and ``answered`` of what it gives, where that has to be awaited.

    Neither raises. ``cancelled`` counts where it was cancelled by something of its own.
    """
    asking: InFlight[Any] = (
        InFlight.of_coroutine(_waited_for(run, lambda: _given(ask, answered))) if thread is None
        else InFlight.of_function(ask, thread)
    )  # fmt: skip
    try:
        ending = await asking.wait(clock, seconds, token)
        if ending == "done" and is_awaitable(given := asking.ended(cancelled)):  # what an ``async`` function gave it
            asking = InFlight.of_coroutine(_waited_for(run, lambda: answered(given)))
            ending = await asking.wait(clock, seconds, token)
        return asking.ended(cancelled) if ending == "done" else ending
    finally:
        asking.leave()


async def _waited_for(run: str, asks: Callable[[], Awaitable[T]]) -> T:
    task = asyncio.current_task()
    _CALLING.set((run, weakref.ref(task)) if task else None)
    return await asks()


async def _given(ask: Callable[[], Any], answered: Callable[[Awaitable[Any]], Awaitable[Any]]) -> Any:
    given = ask()
    return await answered(given) if is_awaitable(given) else given


def returned(result: Any) -> Returned:
    lost: list[str] = []
    return Returned(redact(values.encode(result, lost)), tuple(lost))


async def dispatch(
    tool: Tool[..., Any],
    ctx: Context[Any],
    arguments: Mapping[str, Any],
    *,
    seconds: float,
    within: float | None = None,
    clock: Clock,
    token: CancelToken,
    late: Callable[[AttemptEnd], None],
) -> AttemptEnd:
    """Call the tool, at most for so many seconds, until it ends or the run is cancelled. It begins ``within`` so many,
    if that is less, or not at all.

    If nobody waits for it any more and it ends after all, ``late`` is told how.
    """
    latest = clock.now() + timedelta(seconds=seconds if within is None else min(seconds, within))

    def is_late() -> bool:
        """The process may have stood still since the call was put on its way."""
        return clock.now() >= latest

    if is_late():
        return Dropped()
    if tool.is_async:
        call = InFlight.of_coroutine(awaited(tool, ctx, arguments, is_late))
    else:
        try:
            call = InFlight.of_function(lambda: _called(tool, ctx, arguments, is_late), f"ondol-tool-{tool.name}")
        except RuntimeError as error:
            return Raised(f"not called: this process has no thread for it ({error})", not_done=True)
    try:
        ending = await call.wait(clock, seconds, token)
        if ending == "done":
            return call.ended(Unwound())  # cancelled before its first line ran
        ctx.cancelled.set()  # for a function in a thread: it can only look
        if ending == "timeout":
            if await call.stop_late(clock):
                ended = call.ended(Unwound())
                return TimedOut() if isinstance(ended, Unwound) else ended
        elif await call.stop(clock, effects.GRACE):
            ended = call.ended(Unwound())
            said = isinstance(ended, Returned) or (isinstance(ended, Raised) and ended.not_done)
            return ended if said else Stopped()
        call.future.add_done_callback(lambda future: None if future.cancelled() else late(future.result()))
        return TimedOut(goes_on=True) if ending == "timeout" else Stopped()
    finally:
        if not call.in_thread:
            call.leave()


async def awaited(
    tool: Tool[..., Any], ctx: Context[Any], arguments: Mapping[str, Any], is_late: Callable[[], bool] = lambda: False
) -> AttemptEnd:
    """The call as a value. An exit-type exception must not leave the task: it would end the event loop."""
    try:
        if is_late():
            return Dropped()
        task = asyncio.current_task()
        _CALLING.set((ctx.run_id, weakref.ref(task)) if ctx and task else None)
        result = tool.call(ctx, arguments)
        return _end(tool, await result if is_awaitable(result) else result)
    except asyncio.CancelledError:
        return Unwound()
    except BaseException as error:
        return _raised(tool, error)


def _called(
    tool: Tool[..., Any], ctx: Context[Any], arguments: Mapping[str, Any], is_late: Callable[[], bool]
) -> AttemptEnd:
    try:
        _CALLING.set((ctx.run_id, None) if ctx else None)
        return Dropped() if is_late() else _end(tool, tool.call(ctx, arguments))
    except BaseException as error:  # what leaves a thread is lost, and somebody waits for its end
        return _raised(tool, error)


def _end(tool: Tool[..., Any], result: Any) -> AttemptEnd:
    if not is_awaitable(result):
        return returned(result)
    if inspect.iscoroutine(result):  # nobody awaits it, and it may have acted before it was made
        result.close()
    return Raised(f"{tool.name} gave back an awaitable: declare it with 'async def' and await it", not_done=False)


def _raised(tool: Tool[..., Any], error: BaseException) -> Raised:
    reason = redact(values.error_text(error))
    if type(error) in (NotDone, CallFailed):  # its words are meant for the model
        reason = reason.removeprefix(f"{type(error).__name__}: ")
    return Raised(reason, not_done=isinstance(error, tool.not_done))
