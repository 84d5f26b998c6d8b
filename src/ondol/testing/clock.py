"""How does time pass in a test? By hand."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ondol.clock import zone
from ondol.errors import InvalidInput

_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True, eq=False)
class _Timer:
    clock: ManualClock
    due: datetime
    callback: Callable[[], object]
    loop: asyncio.AbstractEventLoop
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True
        self.clock._forget(self)

    def schedule(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._fire)

    def _fire(self) -> None:
        if not self.cancelled:
            self.callback()


class ManualClock:
    """A clock that stands still until it is moved, also backwards.

    Timers keep the instant at which they are due, and fire in the event loop that made them, earliest first, when a
    move reaches that instant. ``advance`` and ``set`` may be called in the loop or in any thread. A test waits for
    the other side with ``wait_for_timers``, never by sleeping:

        await clock.wait_for_timers()
        clock.advance(minutes=5)

    ``time_zone`` is an IANA name for whoever asks the clock for one; ``now`` is in UTC.
    Raises InvalidInput for a time without a zone.
    """

    def __init__(self, start: datetime | str = "2026-01-01T00:00:00Z", time_zone: str | None = None) -> None:
        if time_zone is not None:
            zone(time_zone)
        self.time_zone = time_zone
        self._now = _instant(start)
        self._passed = 0.0  # seconds; what a jump skips has not passed
        self._timers: list[_Timer] = []  # those that wait, in the order in which they were made
        self._waiting: list[tuple[int, asyncio.Future[None], asyncio.AbstractEventLoop]] = []
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        """The seconds that passed: those by which it was moved forwards. What ``jump`` skips has not passed."""
        return self._passed

    def call_later(self, seconds: float, callback: Callable[[], object]) -> _Timer:
        loop = asyncio.get_running_loop()
        with self._lock:
            timer = _Timer(self, _later(self._now, seconds), callback, loop)
            if timer.due <= self._now:
                timer.schedule()
            else:
                self._timers.append(timer)
                self._tell_waiting()
        return timer

    def advance(
        self,
        by: timedelta | float = 0,
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> None:
        """Move by that much; a plain number counts seconds."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        step += timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)
        with self._lock:
            self._move(self._now + step)

    def set(self, to: datetime | str) -> None:
        """Move to that instant, forwards or backwards."""
        with self._lock:
            self._move(_instant(to))

    def jump(self, by: timedelta | float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """It shows another time from now on, as when the clock of a machine is set: no time passes, no timer fires."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        step += timedelta(minutes=minutes, hours=hours, days=days)
        with self._lock:
            self._now += step
            for timer in self._timers:
                timer.due = _later(timer.due, step.total_seconds())

    @property
    def pending(self) -> int:
        """How many timers wait for a later time."""
        with self._lock:
            return len(self._timers)

    async def wait_for_timers(self, n: int = 1) -> None:
        """Return once at least ``n`` timers are pending."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if len(self._timers) >= n:
                return
            enough: asyncio.Future[None] = loop.create_future()
            waiting = (n, enough, loop)
            self._waiting.append(waiting)
        try:
            await enough
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(waiting)

    def _forget(self, timer: _Timer) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._timers.remove(timer)

    # --- with the lock held -------------------------------------------------------------------------------------

    def _move(self, to: datetime) -> None:
        self._passed += max(0.0, (to - self._now).total_seconds())
        self._now = to
        due = sorted((t for t in self._timers if t.due <= to), key=lambda t: t.due)  # stable: else as they were made
        self._timers = [t for t in self._timers if t.due > to]
        for timer in due:
            timer.schedule()

    def _tell_waiting(self) -> None:
        for waiting in [w for w in self._waiting if w[0] <= len(self._timers)]:
            self._waiting.remove(waiting)
            _, enough, loop = waiting
            loop.call_soon_threadsafe(_resolve, enough)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _later(now: datetime, seconds: float) -> datetime:
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        return _END_OF_TIME


def _instant(at: datetime | str) -> datetime:
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError as error:
            raise InvalidInput(f"{at!r} is not a time: write it as '2026-01-01T09:00:00+09:00'") from error
    if not isinstance(at, datetime):
        raise InvalidInput(f"{at!r} is not a time: give a datetime with a zone, or a text")
    if at.tzinfo is None:
        raise InvalidInput(f"the time {at.isoformat()} has no zone: add one, such as '+09:00' or tzinfo=UTC")
    return at.astimezone(UTC)
