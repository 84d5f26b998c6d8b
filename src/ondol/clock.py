"""What time is it? The only reader of the system clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ondol.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time as the runtime sees it.

    ``now`` is an instant in UTC. ``call_later`` calls back in the running event loop when that many seconds have
    passed on *this* clock, unless the timer is cancelled before. A clock moved by hand
    (``ondol.testing.ManualClock``) makes both move together.
    """

    def now(self) -> datetime: ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer: ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, seconds), callback)


async def sleep(clock: Clock, seconds: float) -> None:
    """Return when that much time has passed on the clock."""
    done = asyncio.Event()
    timer = clock.call_later(seconds, done.set)
    try:
        await done.wait()
    finally:
        timer.cancel()


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
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise InvalidInput(f"there is no time zone {name!r}: use an IANA name such as 'Asia/Seoul'") from error


def shown(at: datetime, zone_name: str | None) -> str:
    """The instant as people and models are shown it: weekday, date, time, offset, zone. Never a bare date."""
    local = at.astimezone(zone(zone_name)) if zone_name else at.astimezone(UTC)
    offset = local.strftime("%z")
    return f"{local:%A, %Y-%m-%d %H:%M} {offset[:3]}:{offset[3:5]} ({zone_name or 'UTC'})"
