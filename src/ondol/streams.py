"""Who watches a run, and how are they told that something happened?

Watchers read what is durable from the store; this module only wakes them, and hands on what is not stored (deltas,
progress). A slow watcher loses no durable event: it reads them when it comes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ondol.events import DELTA, PROGRESS, Event
from ondol.records import RunRow

_PASSING_LIMIT = 1000  # deltas kept for one watcher that does not come to read them


class Watch:
    """One watcher of one run. Several may share one ``wake``: whoever waits for that takes from each."""

    def __init__(self, wake: asyncio.Event | None = None) -> None:
        self._passing: deque[tuple[int, Event]] = deque(maxlen=_PASSING_LIMIT)
        self._wake = wake or asyncio.Event()
        self._stored = False
        self._seen = 0  # the last entry that was read
        self.hurried = False  # nothing more is waited for: once all was read, that nothing happened is told at once
        self.missed: int | None = None  # the entry behind which it has not all pieces: it was not here, or too slow

    async def changed(self, within: float | None = None) -> bool | None:
        """Return when something may have happened since the last call: True if that may be stored. None if nothing
        did ``within`` so many seconds."""
        if self.hurried and not self._wake.is_set():
            self.hurried = False
            return None
        try:
            async with asyncio.timeout(within):
                await self._wake.wait()
        except TimeoutError:
            return None
        self._wake.clear()
        return self.take()

    def take(self) -> bool:
        """May something have been stored since the last call?"""
        stored, self._stored = self._stored, False
        return stored

    def wake(self) -> None:
        self._stored = True
        self._wake.set()

    def before(self, seq: int) -> Iterator[Event]:
        """What came before the entry ``seq``."""
        while self._passing and self._passing[0][0] < seq:
            after, event = self._passing.popleft()
            if after != self.missed or event.type != DELTA:
                yield event

    def passing(self, seen: int) -> Iterator[Event]:
        """What is not stored and follows the entry ``seen``. A delta that is late is part of the answer by now, and a
        part of one without its beginning is no use to anybody."""
        self._seen = seen
        while self._passing and self._passing[0][0] <= seen:
            after, event = self._passing.popleft()
            if (after == seen and after != self.missed) or event.type != DELTA:
                yield event

    def told(self, seen: int) -> None:
        """The pieces so far of the answer that follows the entry ``seen`` were told another way."""
        self.missed = None
        self._passing = deque((p for p in self._passing if p[0] != seen or p[1].type != DELTA), _PASSING_LIMIT)

    def add(self, after: int, event: Event) -> None:
        if len(self._passing) == _PASSING_LIMIT:
            self.missed = self._passing[0][0]
        self._passing.append((after, event))
        self._stored |= after > self._seen  # what it follows was not read yet
        self._wake.set()


class Streams:
    """All watchers of one process."""

    def __init__(self) -> None:
        self._watches: dict[str, set[Watch]] = defaultdict(set)
        self._said: dict[str, tuple[int, int, list[str]]] = {}  # by run: the entry behind which, the step, the pieces
        self._settled: dict[str, list[asyncio.Future[RunRow | None]]] = {}

    def watch(self, run: str, wake: asyncio.Event | None = None) -> Watch:
        watch = Watch(wake)
        watch.missed = self._said[run][0] if run in self._said else None
        self._watches[run].add(watch)
        return watch

    def unwatch(self, run: str, watch: Watch) -> None:
        self._watches[run].discard(watch)
        if not self._watches[run]:
            del self._watches[run]

    def is_watched(self, run: str) -> bool:
        return run in self._watches

    def notify(self, run: str) -> None:
        if run in self._watches:
            for watch in self._watches[run]:
                watch.wake()

    def notify_all(self) -> None:
        for run in list(self._watches):
            self.notify(run)

    def hurry(self) -> None:
        """Let every watcher read what is stored, and tell then that nothing happens."""
        for watches in self._watches.values():
            for watch in watches:
                watch.hurried = True
                watch.wake()

    def say(self, run: str, after: int, step: int, text: str) -> None:
        """A piece of the answer that follows the run's entry ``after``: kept for those who come in the middle."""
        so_far = self._said.get(run)
        if so_far is None or so_far[0] != after:
            so_far = self._said[run] = (after, step, [])
        so_far[2].append(text)

    def said(self, run: str, after: int) -> dict[str, Any] | None:
        """The text so far of the answer that follows the entry ``after``; None if none is under way in this process."""
        so_far = self._said.get(run)
        if so_far is None or so_far[0] != after:
            return None
        return {"step": so_far[1], "text": "".join(so_far[2])}

    def publish(self, run: str, event: Event, after: int) -> None:
        """Hand on something that is not stored, and follows the run's entry ``after``."""
        for watch in self._watches.get(run, ()):
            watch.add(after, event)

    def waits_for_store(self, run: str, error: Exception, at: datetime, after: int) -> None:
        """Nothing is lost, but it goes on only when the store does: watchers are told, not left in silence."""
        note = {"note": f"waiting for the store: {error}"}
        self.publish(run, Event(type=PROGRESS, data=note, at=at), after)

    def settled(self, run: RunRow) -> None:
        """The run came to rest in this process: whoever waits for that gets its row."""
        self._resolve(run.id, run)

    def close(self) -> None:
        """Whoever still waits looks once more, and finds the runtime closed."""
        for run in list(self._settled):
            self._resolve(run, None)
        self.notify_all()

    def dropped(self, run: str) -> None:
        """This process stopped driving the run without bringing it to rest."""
        self._resolve(run, None)

    def taken(self, run: str) -> None:
        """Another process has it, or has ended it, while this one is still at something: who waits looks once more."""
        self._tell(run, None)

    def _resolve(self, run: str, row: RunRow | None) -> None:
        self._said.pop(run, None)
        self._tell(run, row)

    def _tell(self, run: str, row: RunRow | None) -> None:
        for future in self._settled.pop(run, ()):
            if not future.done():
                future.set_result(row)
        self.notify(run)

    async def until_settled(self, run: str) -> RunRow | None:
        """The row of a run that this process drives, when it comes to rest; None if it is dropped before."""
        future: asyncio.Future[RunRow | None] = asyncio.get_running_loop().create_future()
        waiting = self._settled.setdefault(run, [])
        waiting.append(future)
        try:
            return await future
        finally:
            waiting.remove(future)
            if not waiting and self._settled.get(run) is waiting:  # everybody gave up, and nobody was told
                del self._settled[run]
