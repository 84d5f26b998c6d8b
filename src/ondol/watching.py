"""What does a watcher of a run see, and from where on?

First everything that is stored behind the event that it saw last, then what happens. What is not stored (deltas,
progress) comes from this process only: a watcher that comes in the middle of an answer is first told what was said of
it so far (``message.snapshot``), and so is one that was too slow to hear each piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from ondol import journal, lifecycle, messages, queries
from ondol.clock import Clock
from ondol.errors import CursorExpired, NotFound, WrongCursor
from ondol.events import SNAPSHOT, Event
from ondol.messages import Message
from ondol.streams import Streams, Watch
from ondol.telling import cursor, event_of, told_of
from ondol.transactions import Tx

P = ParamSpec("P")
T = TypeVar("T")


class Read(Protocol):
    """See ``Store.read``."""

    async def __call__(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


async def check_cursor(read: Read, tenant: str, run: str, after: str | None) -> int:
    """Can a watcher go on from there? Returns the sequence of the last event that is stored.

    Raises:
        NotFound. WrongCursor: it is the id of no event of the run. CursorExpired: what follows is not stored any more.
    """
    seen = cursor(run, after)
    first, last = await read(queries.journal_ends, tenant, run)
    if first > last and last > seen:
        raise CursorExpired(f"what happened in run {run} is not stored any more: its session was deleted")
    if first > seen + 1:
        raise CursorExpired(f"what happened in run {run} before its event {first} is not stored any more: {_INSTEAD}")
    if seen > last:
        raise CursorExpired(f"{after!r} is behind the last event of run {run} that is stored: {_INSTEAD}")
    return last


_INSTEAD = "read its session"


async def watch(
    read: Read, streams: Streams, clock: Clock, tenant: str, run: str, after: str | None,
    at_rest: frozenset[str], idle: float | None = None, watching: Watch | None = None,
) -> AsyncIterator[Event | None]:  # fmt: skip
    """The events of a run in order, until it is in one of the states ``at_rest``. With ``idle``, None whenever nothing
    happened for so many seconds, and at once where nothing is stored behind ``after``. ``watching`` hears of the run
    by now.

    Raises:
        NotFound, WrongCursor, CursorExpired
    """
    watching = watching or streams.watch(run)
    try:
        await check_cursor(read, tenant, run, after)
        told = _Told(read, tenant, run, cursor(run, after))
        resting, stored = False, True
        while not resting:
            if stored:
                new = await told.new()
                if not new and idle is not None:
                    yield None
                for event in new:
                    for piece in watching.before(cursor(run, event.id)):
                        yield piece
                    yield event
                resting = told.state in at_rest
            if watching.missed == told.folded and (said := streams.said(run, told.folded)) is not None:
                watching.told(told.folded)
                yield Event(type=SNAPSHOT, data=said, at=clock.now())
            for event in watching.passing(told.folded):
                yield event
            if not resting:
                while (changed := await watching.changed(idle)) is None:
                    yield None
                stored = changed
    finally:
        streams.unwatch(run, watching)


async def recorded(read: Read, tenant: str, run: str, after: str | None = None) -> list[Event]:
    """The events that are stored now. Raises NotFound, WrongCursor, CursorExpired."""
    await check_cursor(read, tenant, run, after)
    return await _Told(read, tenant, run, cursor(run, after)).new()


# --- all runs of a session --------------------------------------------------------------------------------------


class InSession(NamedTuple):
    """An event of a run of a session; ``cursor`` is what a watcher gives to go on behind it."""

    event: Event
    cursor: str | None


class SessionPlace(NamedTuple):
    """Where a watcher of a session stands: how far it was told of runs that may go on, and of the newest that it knows.
    Of others that were accepted before that it was told all."""

    seen: Mapping[str, int]

    def __str__(self) -> str:
        return ";".join(f"{run}/{seq}" for run, seq in self.seen.items())


def of_session(tenant: str, session: str) -> str:
    """The name under which ``Streams`` tells that a session has a new run. No run's id has a space."""
    return f"{tenant} {session}"


async def session_place(read: Read, tenant: str, session: str, after: str | None) -> SessionPlace:
    """What a cursor means: ``RUN/SEQUENCE`` of the last event seen, and of each other run that may go on, with ``;``.

    Raises:
        WrongCursor: it is no place in this session. CursorExpired: what follows is not stored any more.
    """
    seen: dict[str, int] = {}
    for part in after.split(";") if after else ():
        run = part.rpartition("/")[0]
        try:
            row = await read(queries.get_run, tenant, run)
        except NotFound:
            row = None
        if row is None or row.session != session:
            raise WrongCursor(f"{after!r} is no place in session {session!r}: give the id of an event of it")
        await check_cursor(read, tenant, run, part)
        seen[run] = cursor(run, part)
    return SessionPlace(seen)


async def watch_session(
    read: Read, streams: Streams, clock: Clock, tenant: str, session: str, place: SessionPlace,
    idle: float | None = None,
) -> AsyncIterator[InSession | None]:  # fmt: skip
    """The events of all runs of a session, for as long as it is there. Those of one run are in order, and each comes
    once. With ``idle``, None as ``watch`` says, and once when all that is stored was told. Raises NotFound where there
    is no such session, or not any more; CursorExpired where it was begun anew."""
    watched = await read(queries.get_session, tenant, session)
    wake, key = asyncio.Event(), of_session(tenant, session)
    arriving = streams.watch(key, wake)
    arriving.wake()
    tails: dict[str, _Tail] = {}
    newest: str | None = None
    caught_up = idle is None
    try:
        while True:
            if arriving.take():
                if (await read(queries.get_session, tenant, session)).created_at != watched.created_at:
                    raise CursorExpired(f"session {session!r} was deleted, and begun anew: watch it from its beginning")
                for run in await _runs_behind(read, tenant, session, newest, place.seen):
                    tails[run] = _Tail(streams.watch(run, wake), _Told(read, tenant, run, place.seen.get(run, 0)))
                    tails[run].watch.wake()
                    newest = run
            for run, tail in list(tails.items()):
                if tail.watch.take():
                    for event in await tail.told.new():
                        for piece in tail.watch.before(cursor(run, event.id)):
                            yield InSession(replace(piece, data=piece.data | {"run": run}), None)
                        tail.seen = cursor(run, event.id)
                        yield InSession(event, _place(run, tails, newest))
                folded = tail.told.folded
                if tail.watch.missed == folded and (said := streams.said(run, folded)) is not None:
                    tail.watch.told(folded)
                    yield InSession(Event(type=SNAPSHOT, data=said | {"run": run}, at=clock.now()), None)
                for event in tail.watch.passing(folded):
                    yield InSession(replace(event, data=event.data | {"run": run}), None)
                if tail.told.is_over and run != newest:
                    streams.unwatch(run, tails.pop(run).watch)
            if not caught_up:
                caught_up = True
                yield None
            while not wake.is_set():
                if arriving.hurried:
                    arriving.hurried = False
                    yield None
                    continue
                try:
                    async with asyncio.timeout(idle):
                        await wake.wait()
                except TimeoutError:
                    yield None
            wake.clear()
    finally:
        streams.unwatch(key, arriving)
        for run, tail in tails.items():
            streams.unwatch(run, tail.watch)


class _Tail:
    """One run of a watched session. ``seen`` is the last of its events that the watcher was told."""

    def __init__(self, watch: Watch, told: _Told) -> None:
        self.watch, self.told, self.seen = watch, told, told.seen


def _place(run: str, tails: Mapping[str, _Tail], newest: str | None) -> str:
    others = [r for r, t in tails.items() if r != run and t.seen and (r == newest or not t.told.is_over)]
    return str(SessionPlace({r: tails[r].seen for r in [run, *others]}))


async def _runs_behind(read: Read, tenant: str, session: str, newest: str | None, seen: Mapping[str, int]) -> list[str]:
    """The runs that were accepted after the newest that is known, in that order; at first with those that were seen."""
    found: list[str] = []
    before: str | None = None
    while page := await read(queries.list_runs, tenant, session=session, before=before, limit=200):
        for row in page:
            if row.id == newest or (newest is None and row.id in seen):
                known = [] if newest is not None else [r for r in seen if r != row.id]
                return [*known, *([row.id] if newest is None else []), *reversed(found)]
            found.append(row.id)
        before = page[-1].id
    return found[::-1]


class _Told:
    """How far a watcher was told of the journal. Each entry, and each message, is read once."""

    def __init__(self, read: Read, tenant: str, run: str, seen: int) -> None:
        self._read, self._tenant, self._run, self._seen = read, tenant, run, seen
        self.seen, self.is_over = seen, False
        self._fold, self.folded, self.state = journal.State(), 0, ""
        self._bodies: dict[int, Message] = {}

    async def new(self) -> list[Event]:
        row, batches = await self._read(queries.read_journal, self._tenant, self._run, self.folded)
        happened = []
        for batch in batches:
            for i, entry in enumerate(batch.entries):
                self._fold = journal.apply(self._fold, entry, batch.at)
                self.folded = batch.seq + i
                if self.folded > self._seen:
                    happened.append((self.folded, batch.at, entry, self._fold))
        wanted = {o for *_, entry, then in happened for o in told_of(entry, then)}
        if missing := sorted(wanted - self._bodies.keys()):
            new = await self._read(queries.read_some_messages, self._tenant, self._run, missing)
            self._bodies |= {o: messages.loads(b) for o, b in new.items()}
        self.state = row.state  # as of the same snapshot as the entries
        self.is_over = row.state in lifecycle.SETTLED and not row.retryable
        return [event_of(self._run, seq, at, entry, self._bodies, then) for seq, at, entry, then in happened]
