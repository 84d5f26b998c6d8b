"""Several drivers of one database tell what its outbox holds: each message is told by one of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from kit import WatchedClock

from ondol import Agent, OutboxMessage, Runtime
from ondol.testing import ManualClock, ScriptedModel


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock("2026-01-01T00:00:00Z")


class Telling:
    """Hears messages; the first takes until ``done``."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.began, self.done, self.more = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, message: OutboxMessage) -> None:
        self.heard.append(message.run)
        self.more.set()
        if not self.began.is_set():
            self.began.set()
            await self.done.wait()

    async def hears(self, n: int) -> list[str]:
        while len(self.heard) < n:
            self.more.clear()
            await self.more.wait()
        return self.heard


def runtime(url: str, telling: Telling, clock: ManualClock) -> Runtime:
    return Runtime(url, agents=[Agent("a", model=ScriptedModel(lambda _: "ok"))], deliver=telling, clock=clock)


@contextlib.asynccontextmanager
async def another_driver(url: str) -> AsyncIterator[None]:
    """A process that tells nothing: whoever tells beside it is not the only one, and takes what it tells."""
    async with Runtime(url, agents=[Agent("b", model=ScriptedModel(lambda _: "ok"))]) as another:
        await another.run("b", "hello")  # once it drives
        yield


async def test_what_one_process_tells_another_does_not_tell_beside_it(
    new_database: Callable[[], str], clock: ManualClock
) -> None:
    url, slow, quick = new_database(), Telling(), Telling()
    quick.began.set()
    watched = WatchedClock()
    async with another_driver(url), runtime(url, slow, watched) as one:
        first = await one.run("a", "hello", session="s")
        await slow.began.wait()
        await watched.asked(20)
        async with runtime(url, quick, clock) as two:
            for minute in range(1, 4):
                for _ in range(3):  # it says that it is at it, three times a minute
                    watched.advance(seconds=20)
                    await watched.asked(20)
                    clock.advance(seconds=20)
                said = await two.run("a", f"are you there, {minute}?", session="s")
                assert (await quick.hears(minute))[-1] == said.run_id
            slow.done.set()
            while await one.outbox(state="pending"):
                pass
    assert slow.heard == [first.run_id]
    assert first.run_id not in quick.heard


async def test_what_a_process_did_not_tell_to_its_end_another_tells_a_minute_later(
    new_database: Callable[[], str], clock: ManualClock
) -> None:
    url, slow, quick = new_database(), Telling(), Telling()
    quick.began.set()
    async with another_driver(url):
        async with runtime(url, slow, clock) as one:
            first = await one.run("a", "hello")
            await slow.began.wait()
        async with runtime(url, quick, clock) as two:
            others = [(await two.run("a", "are you there?")).run_id for _ in range(3)]
            while len(await two.outbox(state="pending")) > 1:
                pass
            assert sorted(quick.heard) == sorted(others)
            clock.advance(seconds=60)
            while await two.outbox(state="pending"):
                pass
            assert quick.heard[3:] == [first.run_id]
