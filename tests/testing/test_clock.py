"""A clock moved by hand moves timers too."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from ondol.clock import Clock, Jumps, SystemClock, sleep
from ondol.errors import InvalidInput
from ondol.testing import ManualClock

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)


async def settle() -> None:
    """Let everything run that is ready now."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_time_stands_still_until_it_is_moved() -> None:
    clock: Clock = ManualClock()
    assert clock.now() == clock.now() == datetime(2026, 1, 1, tzinfo=UTC)


def test_it_moves_by_any_measure_and_backwards() -> None:
    clock = ManualClock(NINE)
    clock.advance(timedelta(hours=1))
    clock.advance(5, seconds=1, minutes=1, hours=1, days=1)
    assert clock.now() == NINE + timedelta(days=1, hours=2, minutes=1, seconds=6)
    clock.set(NINE)
    clock.advance(seconds=-0.04)
    assert clock.now() == NINE - timedelta(milliseconds=40)


def test_now_is_in_utc_and_the_zone_is_kept() -> None:
    clock = ManualClock("2026-11-30T00:30:00+09:00", "Asia/Seoul")
    assert clock.now().isoformat() == "2026-11-29T15:30:00+00:00"
    assert clock.time_zone == "Asia/Seoul"


@pytest.mark.parametrize("start", [datetime(2026, 1, 1), "2026-01-01T00:00:00", "noon"])
def test_a_time_without_a_zone_is_refused(start: datetime | str) -> None:
    with pytest.raises(InvalidInput):
        ManualClock(start)
    with pytest.raises(InvalidInput):
        ManualClock().set(start)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Mars"):
        ManualClock(time_zone="Mars/Base")


async def test_due_timers_fire_in_order_of_their_instants() -> None:
    clock, fired = ManualClock(NINE), list[str]()
    clock.call_later(20, lambda: fired.append("20"))
    clock.call_later(10, lambda: fired.append("10"))
    clock.call_later(10, lambda: fired.append("10 again"))
    clock.call_later(30, lambda: fired.append("30"))
    clock.advance(seconds=9.9)
    await settle()
    assert (fired, clock.pending) == ([], 4)
    clock.advance(seconds=10.1)
    await settle()
    assert (fired, clock.pending) == (["10", "10 again", "20"], 1)


async def test_timers_keep_their_instant_when_time_goes_back() -> None:
    clock, fired = ManualClock(NINE), list[datetime]()
    clock.call_later(10, lambda: fired.append(clock.now()))
    clock.advance(hours=-1)
    clock.advance(minutes=59)
    await settle()
    assert fired == []
    clock.set(NINE + timedelta(seconds=10))
    await settle()
    assert fired == [NINE + timedelta(seconds=10)]


async def test_a_cancelled_timer_never_fires() -> None:
    clock, fired = ManualClock(), list[int]()
    early = clock.call_later(1, lambda: fired.append(1))
    early.cancel()
    assert clock.pending == 0
    late = clock.call_later(1, lambda: fired.append(2))
    clock.advance(1)
    late.cancel()  # due, but the loop has not come to it
    await settle()
    assert fired == []


async def test_a_timer_of_no_time_fires_at_once_and_an_endless_one_waits() -> None:
    clock, fired = ManualClock(), list[int]()
    clock.call_later(0, lambda: fired.append(0))
    clock.call_later(-3, lambda: fired.append(-3))
    clock.call_later(float("inf"), lambda: fired.append(9))
    await settle()
    assert (fired, clock.pending) == ([0, -3], 1)


async def test_another_thread_may_move_it() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(sleep(clock, 3600))
    await clock.wait_for_timers()
    await asyncio.to_thread(clock.advance, hours=1)
    await asyncio.wait_for(sleeper, 5)


async def test_waiting_for_timers_ends_when_there_are_enough() -> None:
    clock = ManualClock()
    enough = asyncio.create_task(clock.wait_for_timers(2))
    first = asyncio.create_task(sleep(clock, 1))
    await settle()
    assert not enough.done()
    second = asyncio.create_task(sleep(clock, 2))
    await enough
    await clock.wait_for_timers(2)
    clock.advance(2)
    await asyncio.gather(first, second)


async def test_a_cancelled_wait_is_forgotten() -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(clock.wait_for_timers())
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    clock.call_later(1, lambda: None)
    await clock.wait_for_timers()


async def test_after_a_jump_no_time_has_passed_and_no_timer_fires() -> None:
    clock, fired = ManualClock(NINE), list[str]()
    clock.call_later(20, lambda: fired.append("20"))
    clock.advance(5)
    clock.jump(hours=1)
    clock.jump(days=-1)
    await settle()
    assert clock.now() == NINE + timedelta(hours=1, days=-1, seconds=5)
    assert (clock.monotonic(), fired) == (5.0, [])
    clock.advance(15)
    await settle()
    assert (clock.monotonic(), fired) == (20.0, ["20"])


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(days=3650), timedelta(hours=-1)])
def test_a_jump_is_waited_out(by: timedelta) -> None:
    clock = ManualClock(NINE)
    jumps = Jumps(clock)
    clock.advance(days=1)  # time that passes is no jump
    assert jumps.pause() == 0.0
    clock.jump(by)
    assert jumps.pause() == 300.0
    clock.advance(minutes=4)
    assert jumps.pause() == 60.0
    clock.advance(minutes=1)
    assert jumps.pause() == 0.0


def test_a_clock_that_is_put_right_little_by_little_does_not_jump() -> None:
    clock = ManualClock(NINE)
    jumps = Jumps(clock)
    for _ in range(10):
        clock.jump(minutes=4)
        assert jumps.pause() == 0.0


def test_a_clock_without_a_monotonic_one_never_jumps() -> None:
    class Old:
        def __init__(self) -> None:
            self.clock = ManualClock(NINE)
            self.now, self.call_later = self.clock.now, self.clock.call_later

    clock = Old()
    jumps = Jumps(clock)
    clock.clock.jump(days=1)
    assert jumps.pause() == 0.0


def test_the_system_clock_notices_its_jumps() -> None:
    jumps = Jumps(SystemClock())
    assert jumps.pause() == 0.0
    assert abs(SystemClock().monotonic() - time.monotonic()) < 60
