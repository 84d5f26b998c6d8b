"""Is this process about to stop, and who is still waited for: streams, and requests that wait for the end of a run?

``ondol serve`` says so itself. Under another server nobody tells an application in time: ASGI speaks to it only when
all connections are closed, and whoever waits keeps one open. So while anybody does, the door looks whether the server
that has the signals (uvicorn) was asked to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

_LOOK = 0.25  # seconds between two looks at the server


async def _nothing() -> None:
    """Nobody drives runs here."""


def _server_stops() -> bool:
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", None) is True


class Drain:
    """Of one application. Once it has begun no new work is taken. Streams end when ``end_streams`` is called, with what
    was stored by then, or by themselves after ``longest`` seconds: their readers come back for the rest. So do requests
    that wait: they are answered with what is there.

    ``rest`` brings runs to a boundary, ``hurry`` lets the watchers of streams read what is stored.
    """

    def __init__(
        self, longest: float | None = None, hurry: Callable[[], None] = lambda: None,
        rest: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:  # fmt: skip
        self.begun, self.longest, self._hurry, self._rest = False, longest, hurry, rest
        self._looking: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._ends: set[Callable[[], None]] = set()
        self._waiting, self._ended = 0, False

    @property
    def streams(self) -> int:
        """Streams that are open now."""
        return len(self._ends) - self._waiting

    def begin(self) -> None:
        self.begun = True

    def end_streams(self) -> None:
        self._ended = True
        for end in list(self._ends):
            end()
        self._hurry()

    def opened(self, end: Callable[[], None]) -> None:
        """A stream is open: ``end`` lets it end once its reader was told what is stored."""
        self._ends.add(end)
        if self._ended:  # its reader came back before the server was closed
            end()
        if self._looking is None and not self.begun:
            self._looking = asyncio.ensure_future(self._look())

    def closed(self, end: Callable[[], None]) -> None:
        self._ends.discard(end)
        if not self._ends and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    @contextlib.asynccontextmanager
    async def waiting(self, seconds: float) -> AsyncIterator[None]:
        """As ``asyncio.timeout``, whose time is also over when streams are to end."""
        async with asyncio.timeout(seconds) as limit:

            def end() -> None:
                if not limit.expired():
                    limit.reschedule(asyncio.get_running_loop().time())

            self._waiting += 1
            self.opened(end)
            try:
                yield
            finally:
                self._waiting -= 1
                self.closed(end)

    async def _look(self) -> None:
        """Until the server is asked to stop; then let runs rest, and end the streams."""
        while not _server_stops():  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(_LOOK)
        self._stopping, self._looking = self._looking, None  # from here on it is not cancelled with the last stream
        if not self.begun:
            self.begin()
            try:
                await self._rest()
            finally:
                self.end_streams()
