"""Who asked to stop, and how does it travel?

A cancel arrives as a signal in the store. Its run's holder reads it, and this module carries it to what is running:
an async function is cancelled, a function in a thread sees its token, and a write that is in flight gets up to
``effects.GRACE`` to say how it ended. What then is still running is left alone, and its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from ondol import values
from ondol.clock import Clock

T = TypeVar("T")

Ending: TypeAlias = Literal["done", "timeout", "cancelled"]

_UNWIND = timedelta(seconds=2)  # for an async function to end after it was cancelled


def begin(work: Coroutine[Any, Any, T], context: contextvars.Context | None = None) -> asyncio.Task[T]:
    """A task that begins when whoever starts it has noted that, also where the application made its tasks eager."""
    return asyncio.Task(work, loop=asyncio.get_running_loop(), context=context)


class CancelToken:
    """One for each claimed run. Whoever waits is told at once; set once, set for ever."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []
        self.is_set = False

    def set(self) -> None:
        if not self.is_set:
            self.is_set = True
            for listener in self._listeners.copy():
                listener()

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)


class InFlight(Generic[T]):
    """One call in flight: an async function in a task of its own, any other in a daemon thread.

    A daemon thread, because a function that never returns must not keep the process from exiting.
    """

    def __init__(self, future: asyncio.Future[T], in_thread: bool) -> None:
        self.future, self.in_thread = future, in_thread

    @staticmethod
    def of_coroutine(work: Coroutine[Any, Any, T]) -> InFlight[T]:
        return InFlight(begin(work), in_thread=False)

    @staticmethod
    def of_function(work: Callable[[], T], name: str) -> InFlight[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def deliver(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def run() -> None:
            result = work()
            try:
                loop.call_soon_threadsafe(deliver, result)
            except RuntimeError:
                return  # the loop is closed, nobody waits any more

        threading.Thread(target=contextvars.copy_context().run, args=(run,), name=name, daemon=True).start()
        return InFlight(future, in_thread=True)

    async def wait(self, clock: Clock, seconds: float | None, token: CancelToken | None) -> Ending:
        """Until it ends, its time is over (None: never), or somebody asks to stop; whichever comes first."""
        if not self.in_thread:
            await asyncio.sleep(0)  # many end in their first turn of the loop: nothing has to watch over those
        if self.future.done():
            return "done"
        waiter: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

        def tell(ending: Ending) -> None:
            if not waiter.done():
                waiter.set_result(ending)

        def on_cancel() -> None:
            tell("cancelled")

        def on_end(_: object) -> None:
            tell("done")

        self.future.add_done_callback(on_end)
        timer = None if seconds is None else clock.call_later(seconds, lambda: tell("timeout"))
        if token is not None:
            token.listen(on_cancel)
            if token.is_set:
                on_cancel()
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self.future.remove_done_callback(on_end)
            if token is not None:
                token.unlisten(on_cancel)

    def ended(self, cancelled: T) -> T:
        """How it ended, unasked; ``cancelled`` where its own code cancelled its task, which must not end who waited."""
        return cancelled if self.future.cancelled() else self.future.result()

    def leave(self) -> None:
        """Nobody waits for it any more: it is asked to end, and how it ends is told to nobody."""
        if self.future.done():
            _noticed(self.future)
        else:
            self.future.add_done_callback(_noticed)
            self.future.cancel()
            _left.add(self.future)

    async def stop(self, clock: Clock, patience: timedelta) -> bool:
        """Ask it to end and wait for that; False if it goes on all the same."""
        if not self.in_thread:
            self.future.cancel()
        return await self.wait(clock, patience.total_seconds(), None) == "done"

    async def stop_late(self, clock: Clock) -> bool:
        """As ``stop``, for an attempt whose time is over: a thread cannot be stopped, so nobody waits for it."""
        return False if self.in_thread else await self.stop(clock, _UNWIND)

    async def unwind(self, clock: Clock) -> bool:
        """As ``stop_late``, for one that only tidies up behind it: it is not told to end."""
        return await self.wait(clock, _UNWIND.total_seconds(), None) == "done"


_left: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()  # asked to end, and waited for by nobody


async def unwound() -> None:
    """Return when what was left has ended, or goes on all the same."""
    if left := [task for task in asyncio.all_tasks() if task in _left]:
        _, going = await asyncio.wait(left, timeout=_UNWIND.total_seconds())
        _forget(going)


def _forget(going: Iterable[asyncio.Task[Any]]) -> None:
    """These must not keep the process from exiting, as little as a thread does: ``asyncio.run`` would wait for each
    task that it knows, for ever."""
    for task in going:
        asyncio.tasks._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def run(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, where ``main`` closes what it has opened, as a second Ctrl-C must not leave that to the event
    loop: it would wait for a tool that catches its cancellation."""
    with asyncio.Runner() as runner:
        try:
            return runner.run(main)
        except KeyboardInterrupt:
            runner.run(_closed(main))
            raise


async def _closed(main: Coroutine[Any, Any, Any]) -> None:
    """Where it was interrupted as it was closing, it waits for no boundary; a third Ctrl-C waits for nothing."""
    closing = [task for task in asyncio.all_tasks() if task.get_coro() is main]
    for task in closing:
        task.cancel()
    try:
        if closing:
            await asyncio.wait(closing)
        await unwound()
    except asyncio.CancelledError:
        _forget(asyncio.all_tasks() - {asyncio.current_task()})
        raise


def _noticed(future: asyncio.Future[Any]) -> None:
    """Otherwise the event loop complains of an error that nobody looked at."""
    if not future.cancelled():
        future.exception()


async def sleep_or_cancel(clock: Clock, seconds: float, token: CancelToken) -> bool:
    """True when the time has passed, False when somebody asked to stop."""
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return await InFlight(never, in_thread=True).wait(clock, seconds, token) == "timeout"


def is_asked_to_end() -> bool:
    """Whose is a cancellation that came? True: somebody cancelled this task; else the code that it called did."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def from_outside(asked: Callable[[], Awaitable[T]], seconds: float) -> T:
    """What code of the user's gives within so many seconds, in a task of its own: it may cancel the one it runs in.

    Whatever goes wrong there is an ``Exception`` here: an exit-type exception would end the event loop, and a
    cancellation that nobody here asked for would end the task that waits.

    Raises:
        TimeoutError; what it raised; RuntimeError for what is no ``Exception``.
    """

    async def ask() -> T:
        try:
            return await asked()
        except (KeyboardInterrupt, SystemExit) as error:  # these would leave the task
            raise RuntimeError(f"it raised {values.error_text(error)}") from error

    asking = InFlight.of_coroutine(ask())
    try:
        await asyncio.wait([asking.future], timeout=seconds)
        if not asking.future.done():
            asking.future.cancel()
            await asyncio.wait([asking.future], timeout=_UNWIND.total_seconds())
            raise TimeoutError
    finally:
        asking.leave()
    try:
        return asking.future.result()
    except Exception:  # the caller's to deal with; what follows is only about what is none
        raise
    except asyncio.CancelledError as error:
        raise RuntimeError("it was cancelled by something of its own") from error
    except BaseException as error:
        raise RuntimeError(f"it raised {values.error_text(error)}") from error
