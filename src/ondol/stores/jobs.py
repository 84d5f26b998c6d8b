"""How does a transaction travel from the event loop to a store's thread, and its result back?"""

from __future__ import annotations

import asyncio
import functools
import queue
from collections.abc import Callable, Generator, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ondol.errors import InvalidInput, OndolError
from ondol.secret import logger
from ondol.transactions import Tx

T = TypeVar("T")

log = logger("ondol.store")


def unfit(why: str) -> InvalidInput:
    """What the caller is told of a value that the database does not take."""
    return InvalidInput(
        f"a value is not of a kind that can be stored or looked for ({why}): give a text, as ids are, or a number "
        "of at most 64 bits"
    )


@dataclass(slots=True, eq=False)
class Job:
    """One transaction on its way through a thread; ``await job`` gives its result when it is durable.

    It is a future of its own kind: what a task asks of one is below. Whoever awaits it goes on in the very turn of the
    event loop in which the thread's word arrives. And what a thread does cannot be cancelled: who is cancelled hears of
    that after the end, too.
    """

    make: Callable[[], Tx[Any]]
    loop: asyncio.AbstractEventLoop
    value: Any = None
    error: BaseException | None = None
    told: bool = False  # on its way to the event loop
    delivered: bool = False
    waiting: asyncio.TimerHandle | None = None  # until the one who waits for a thread gives up
    ticket: list[None] = field(default_factory=list)  # one, where threads may hand it on
    _asyncio_future_blocking: bool = False
    _waiter: tuple[Callable[[Job], object], Context] | None = None
    _is_cancelled: bool = False

    def take(self) -> bool:
        """True for the first one who asks: a thread that runs it, or the one who gives up waiting for a thread."""
        try:
            self.ticket.pop()
        except IndexError:
            return False
        return True

    def __await__(self) -> Generator[Job, None, Any]:
        if not self.delivered:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def add_done_callback(self, callback: Callable[[Job], object], *, context: Context) -> None:
        self._waiter = callback, context

    def cancel(self, msg: object = None) -> bool:
        """True: the one who awaits it is told, at its end. It may be committed at this moment."""
        self._is_cancelled = not self.delivered
        return self._is_cancelled

    def result(self) -> Any:
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self.error is not None:
            raise self.error
        return self.value

    def resolve(self) -> None:
        """Whoever awaits it goes on, at once."""
        self.delivered = True
        if self._waiter is not None:
            callback, context = self._waiter
            context.run(callback, self)


class Writes:
    """What waits to be written. What is handed in within one turn of an event loop gets there together, so that it can
    share a commit: a thread that was woken by the first of it would leave with what it finds by then.
    """

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._coming: dict[asyncio.AbstractEventLoop, list[Job]] = {}

    def put(self, job: Job) -> None:
        """To be called in the event loop of the job."""
        self.expect(job.loop).append(job)

    def expect(self, loop: asyncio.AbstractEventLoop) -> list[Job]:
        """What comes from this event loop until its next turn ends. To be called in it."""
        if (coming := self._coming.get(loop)) is None:
            coming = self._coming[loop] = []
            loop.call_soon(self.hand_over, loop)
        return coming

    def hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        for job in self._coming.pop(loop, ()):
            self.waiting.put(job)


def fail(jobs: Iterable[Job], error: OndolError) -> None:
    """Tell those who were not told anything yet."""
    untold = [job for job in jobs if not job.told]
    for job in untold:
        job.error = error
    deliver(untold)


def deliver(jobs: Iterable[Job], writes: Writes | None = None) -> None:
    """Tell everybody how it ended, each in its own event loop. Whoever hears of it mostly writes what follows, now or
    in the next turn of the loop: ``writes`` hands that over as that turn ends, and not one later.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        job.told = True
        by_loop.setdefault(job.loop, []).append(job)
    for loop, of_loop in by_loop.items():
        call(loop, functools.partial(_resolve, of_loop, writes))


def _resolve(jobs: list[Job], writes: Writes | None) -> None:
    waiting = iter(jobs)
    try:
        for job in waiting:
            job.resolve()
        if writes is not None:
            writes.expect(jobs[0].loop)
    finally:  # one of them ends the event loop: the others hear of it as that is closed
        for job in waiting:
            job.loop.call_soon(job.resolve)


def call(loop: asyncio.AbstractEventLoop | None, callback: Callable[[], Any]) -> None:
    """Call it in the loop; nothing happens if that is closed, since nobody waits there any more."""
    try:
        if loop is not None:
            loop.call_soon_threadsafe(callback)
    except RuntimeError:
        log.debug("the event loop is closed, nobody waits any more")


async def to_its_end(work: asyncio.Future[T]) -> T:
    """What a thread does cannot be cancelled: it is awaited, and then the cancellation travels on."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return work.result()
