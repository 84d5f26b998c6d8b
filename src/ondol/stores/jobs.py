"""How does a transaction travel from the event loop to a store's thread, and its result back?"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ondol.errors import OndolError
from ondol.secret import logger
from ondol.transactions import Tx

T = TypeVar("T")

log = logger("ondol.store")


@dataclass(slots=True, eq=False)
class Job:
    """One transaction on its way through a thread."""

    make: Callable[[], Tx[Any]]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None
    told: bool = False  # on its way to the event loop
    delivered: bool = False
    waiting: asyncio.TimerHandle | None = None  # until the one who waits for a thread gives up
    ticket: list[None] = field(default_factory=lambda: [None])

    def take(self) -> bool:
        """True for the first one who asks: a thread that runs it, or the one who gives up waiting for a thread."""
        try:
            self.ticket.pop()
        except IndexError:
            return False
        return True

    async def ended(self) -> Any:
        """Its result, when it is durable. A caller that is cancelled hears of that after the end, too."""
        try:
            return await self.future
        except asyncio.CancelledError:
            # It may be committed at this moment: wait for its end, then let the cancellation travel on. Another one
            # that comes meanwhile changes nothing of that, and how it ended nobody is here to hear any more.
            while not self.delivered:
                self.future = self.loop.create_future()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await self.future
            raise


def new_job(make: Callable[[], Tx[Any]]) -> Job:
    """A job of the running event loop."""
    loop = asyncio.get_running_loop()
    return Job(make, loop, loop.create_future())


def fail(jobs: Iterable[Job], error: OndolError) -> None:
    """Tell those who were not told anything yet."""
    untold = [job for job in jobs if not job.told]
    for job in untold:
        job.error = error
    deliver(untold)


def deliver(jobs: Iterable[Job]) -> None:
    """Tell everybody how it ended, each in its own event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        job.told = True
        by_loop.setdefault(job.loop, []).append(job)
    for loop, of_loop in by_loop.items():
        call(loop, functools.partial(_resolve, of_loop))


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        job.delivered = True
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


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
