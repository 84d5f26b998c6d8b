"""What time is it? The only reader of the system clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ondol.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: Files beside the zones: what they say differs from machine to machine, or counts leap seconds.
_NO_ZONES = ("localtime", "posixrules", "Factory", "posix/", "right/")
JUMP = timedelta(minutes=5)  # more than any clock that is kept right is set at once; and how long one is waited out


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time as the runtime sees it.

    ``now`` is an instant in UTC. ``call_later`` calls back in the running event loop when that many seconds have
    passed on *this* clock, unless the timer is cancelled before. A clock moved by hand
    (``ondol.testing.ManualClock``) makes both move together.

    A clock may also have ``monotonic()``, the seconds that really passed since some instant, also while ``now`` is
    set to another time. With it a jump is noticed (see ``Jumps``).
    """

    def now(self) -> datetime: ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer: ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, seconds), callback)


class Jumps:
    """Was the clock set, or did the machine sleep? Held against the time that really passed.

    After a jump, forwards or backwards, nothing happens for a while because its time has come: a clock that is wrong is
    put right again, and people who could not act get their chance.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monotonic: Callable[[], float] | None = getattr(clock, "monotonic", None)
        self._ahead, self._until = 0.0, 0.0
        if self._monotonic is not None:
            self._ahead, self._until = self._look(self._monotonic), self._monotonic()

    def pause(self) -> float:
        """For how many seconds nothing happens only because its time has come; 0.0 without a jump."""
        if self._monotonic is None:
            return 0.0
        ahead, passed = self._look(self._monotonic), self._monotonic()
        if abs(ahead - self._ahead) > JUMP.total_seconds():
            self._until = passed + JUMP.total_seconds()
        self._ahead = ahead  # what a clock gains or loses little by little is no jump
        return max(0.0, self._until - passed)

    def _look(self, monotonic: Callable[[], float]) -> float:
        return (self._clock.now() - _EPOCH).total_seconds() - monotonic()


def elapsed(clock: Clock) -> float:
    """Seconds since some instant, for a difference of two: also where the clock is set meanwhile, if it can tell."""
    monotonic: Callable[[], float] | None = getattr(clock, "monotonic", None)
    return (clock.now() - _EPOCH).total_seconds() if monotonic is None else monotonic()


async def sleep(clock: Clock, seconds: float) -> None:
    """Return when that much time has passed on the clock."""
    done = asyncio.Event()
    timer = clock.call_later(seconds, done.set)
    try:
        await done.wait()
    finally:
        timer.cancel()


def micros(clock: Clock) -> int:
    """What the clock says, as it is stored."""
    return time.time_ns() // 1000 if type(clock) is SystemClock else to_micros(clock.now())


def to_micros(at: datetime) -> int:
    """Microseconds since 1970 in UTC, as they are stored."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND


def zone(name: str) -> ZoneInfo:
    """The IANA time zone of that name.

    Raises:
        InvalidInput: there is none.
    """
    try:
        if name.startswith(_NO_ZONES):
            raise ZoneInfoNotFoundError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError, AttributeError) as error:
        raise InvalidInput(f"there is no time zone {name!r}: use an IANA name such as 'Asia/Seoul'") from error


def here(zone_name: str | None) -> tzinfo:
    """The zone that a stored name means: UTC where nobody named one, and where this machine does not know it."""
    try:
        return zone(zone_name) if zone_name else UTC
    except InvalidInput:  # named where zones are newer: what is stored must be driven and looked at here all the same
        return UTC


def shown(at: datetime, zone_name: str | None) -> str:
    """The instant as people and models are shown it: weekday, date, time, offset, zone. Never a bare date."""
    known = here(zone_name)
    local = at.astimezone(known)
    offset = local.strftime("%z")
    return f"{local:%A, %Y-%m-%d %H:%M} {offset[:3]}:{offset[3:5]} ({getattr(known, 'key', 'UTC')})"
