"""How does a group of transactions become durable in PostgreSQL, and what is known when the answer to COMMIT is lost?

Transactions that wait together share one COMMIT, and those of different sessions share their round trips as well. Each
locks the writer's own row first. What foresees the rows of its first statements is done in one round trip: the server
refuses it where others come, and it is run again, step by step. When a connection is lost at COMMIT, that row is read
on a new one: the lock says when the lost transaction has ended, the row says how. If it is not there, its writer is
given up, so that it cannot come later either. Nobody is told anything before that.
"""

from __future__ import annotations

import functools
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ondol.errors import OndolError, OutcomeUnknown, StoreBusy, StoreError, StoreFault
from ondol.secret import logger
from ondol.stores import postgres_statements
from ondol.stores.jobs import Job
from ondol.stores.postgres_place import AGAIN, LOCK_TIMEOUT, PAUSE, Connector
from ondol.stores.postgres_wire import ConnectionLost, Refused, Wire
from ondol.transactions import Changes, Claim, Final, Foreseen, NewRun, Row, Statement

log = logger("ondol.store")

LOCK_PATIENCE = 10.0  # seconds that a transaction alone waits for a lock; longer than a stopped process keeps one
READ_BACK_PATIENCE = 10.0  # seconds until a lost transaction must have ended: the server ends an idle one after 5
_GROUP_PATIENCE = 0.25  # seconds that a group waits for a lock: others wait with it
_AGAIN = 8  # times that a transaction alone is run before a race is given up
_GIVEN_UP = (1 << 63) - 1  # in the row of a writer: no transaction of it can come after that
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

Key: TypeAlias = tuple[str, str]


class _Member:
    """One transaction of a group."""

    def __init__(self, job: Job, *, foresees: bool) -> None:
        self.job, self.foresees = job, foresees
        job.value = job.error = None
        self.tx = job.make()
        self.batch: list[Statement] = []
        self.locked = False
        self.changed = False
        self.ended = False

    def step(self, rows: list[list[Any]] | None) -> None:
        """Give it the rows that it waits for; after that it has its next batch, or has ended."""
        try:
            self.batch = next(self.tx) if rows is None else self.tx.send(rows)
        except StopIteration as done:
            self.ended = True
            self.job.value, self.job.error = done.value, None
        except BaseException as refusal:  # of this member alone: who waits for it is told, the others go on
            self.refuse(refusal)

    def refuse(self, refusal: BaseException) -> None:
        self.ended = True
        self.job.error = refusal

    def send(self, wire: Wire) -> tuple[int, int]:
        """Put its batch on its way; how many statements those are, and behind how many come those it waits for.

        What is foreseen it does not wait for: the next batch goes with it.
        """
        before = 0
        if self.foresees and isinstance(self.batch, Foreseen):
            before = wire.send([*self.locks(), *postgres_statements.checked(self.batch)])
            wire.begin()
            self.changed = True
            self.step([[row] for row in self.batch.rows])
        try:
            locks = [] if self.ended else self.locks()
            sent = 0 if self.ended else wire.send([*locks, *self.batch])
        except OndolError as refusal:  # a value that cannot be stored
            self.refuse(refusal)
            return before, before
        return before + sent, before + len(locks)

    def locks(self) -> list[Statement]:
        needed = postgres_statements.locks(self.batch, first=not self.locked)
        self.locked = self.locked or bool(needed)
        return needed

    @property
    def must_be_undone(self) -> bool:
        return self.job.error is not None and self.changed


class _Surprise(Exception):
    """The group is rolled back: what this one of it foresees is not what comes."""

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__()


class _Undo(Exception):
    """The group is rolled back; these members must run alone."""

    def __init__(self, alone: Sequence[_Member], why: Refused | None = None) -> None:
        self.alone, self.why = [m.job for m in alone], why
        super().__init__()


def _session(job: Job) -> Key | None:
    """The session outside of which the transaction changes nothing that another one could look at; None: not known."""
    if not isinstance(job.make, functools.partial) or not job.make.args:
        return None
    first, *others = *job.make.args, *job.make.keywords.values()
    if any(isinstance(other, Changes) for other in others):  # a user's memory is shared by sessions
        return None
    return (first.tenant, first.session) if isinstance(first, Claim | NewRun) else None


class Writer:
    """One connection that writes, used by one thread."""

    def __init__(self, connector: Connector, *, grouping: bool) -> None:
        self.connector, self.place, self.grouping = connector, connector.place, grouping
        self.transactions = self.commits = self.trips = 0  # seen by tests and benchmarks
        self.ids: set[str] = set()  # that its connections had
        self._id = ""
        self._n = 0
        self._behind = 0  # statements of the next round trip that belong to no member
        self._wire: Wire | None = None

    def connect(self) -> Wire:
        if self._wire is None:
            self._wire = Wire(self.connector.connect(_GROUP_PATIENCE if self.grouping else LOCK_PATIENCE))
            # The row of a lost connection may be locked by it still.
            self._id, self._n = secrets.token_hex(8), 0
            self.ids.add(self._id)
        return self._wire

    def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            try:
                wire.send([("writer.forget", {"writer": self._id})])
                wire.receive()
            except (ConnectionLost, Refused) as error:  # the row is removed when it is old
                log.debug("%s", error)
            wire.close()

    def write(self, jobs: list[Job]) -> list[Job]:
        """Run them all, each with its result or error at the end; returns those that must be run by one alone."""
        alone: list[Job] = []
        surprised: list[Job] = []
        losses = tries = 0
        while jobs:
            tries += 1
            try:
                self._write_together(jobs, surprised)
                break
            except _Surprise as surprise:
                surprised.append(surprise.job)
            except _Undo as undo:
                if not self.grouping:
                    if undo.why is None or undo.why.sqlstate not in AGAIN or tries >= _AGAIN:
                        if undo.why is not None:
                            jobs[0].error = self.place.translated(undo.why)
                        break
                    time.sleep(random.random() * 0.01 * tries)  # two that raced do not race again
                    continue
                alone += undo.alone
                jobs = [job for job in jobs if job not in undo.alone]
            except ConnectionLost as lost:  # before COMMIT: nothing of it is there
                self.drop()
                losses += 1
                log.warning("a connection to %s was lost, the transaction is run again: %s", self.place.name, lost)
                if self.grouping and losses > 1 and len(jobs) > 1:
                    return alone + jobs  # one of them may be what breaks it
                if losses > 3:
                    return alone + self._failed(jobs, StoreBusy(f"{self.place.name} breaks connections off: {lost}"))
            except OndolError as error:  # no connection, or nobody knows what became of it
                self.drop()
                return alone + self._failed(jobs, error)
        return alone

    def _failed(self, jobs: list[Job], error: OndolError) -> list[Job]:
        for job in jobs:
            job.error = job.error or error  # a refusal of its own stays
        return []

    def _write_together(self, jobs: list[Job], surprised: list[Job]) -> None:
        wire = self.connect()
        self._n += 1
        wire.control(_BEGIN)
        wire.send([("writer.mark", {"writer": self._id, "n": self._n})])
        wire.begin()
        self._behind = 2
        members = [_Member(job, foresees=job not in surprised) for job in jobs]
        *before, last = _in_turn(members)
        try:
            for together in before:
                self._run(wire, together, members, is_last=False)
            if not self._run(wire, last, members, is_last=True):
                if undone := [m for m in members if m.must_be_undone]:
                    raise _Undo(undone)
                self.trips += 1
                if not any(m.changed for m in members):
                    self._roll_back(wire)
                    return
                self._commit(wire, members, 0, {})
        except (_Undo, _Surprise):
            self._roll_back(wire)
            raise
        self.commits += 1
        self.transactions += len(jobs)

    def _run(self, wire: Wire, members: list[_Member], group: list[_Member], *, is_last: bool) -> bool:
        """Run members in step, each batch of all of them in one round trip. True if COMMIT was in the last one: it can
        be where they are the last of the group to run, and each is at its ``Final`` batch."""
        for member in members:
            member.step(None)
        while going := [m for m in members if not m.ended]:
            owned, end = [], self._behind
            for member in going:
                n, behind = member.send(wire)
                owned.append((member, slice(end + behind, end + n)))
                end += n
            self._behind = 0
            commits = is_last and all(isinstance(m.batch, Final) for m in going if not m.ended)
            commits = commits and not any(m.must_be_undone for m in group)
            rows = self._receive(wire, owned, (group, end) if commits else None)
            for member, own in owned:
                member.changed = member.changed or any(wire.changed[own])
                if not member.ended:
                    member.step(rows[own])
            if commits:
                return True
        return False

    def _receive(
        self, wire: Wire, owned: list[tuple[_Member, slice]], committing: tuple[list[_Member], int] | None
    ) -> list[list[Row]]:
        """The rows of a round trip in which each member owns a slice. ``committing``: the group, and behind how many
        statements its COMMIT comes in the same one.

        Raises:
            _Surprise, _Undo: a statement of one of them was refused.
        """
        self.trips += 1
        try:
            if committing is None:
                return wire.receive()
            last = {own.start: member.batch for member, own in owned if not member.ended}
            return self._commit(wire, *committing, last)
        except Refused as refused:
            for member, own in owned:
                if refused.place < own.stop:
                    if refused.sqlstate == postgres_statements.NOT_AS_FORESEEN and member.foresees:
                        raise _Surprise(member.job) from None
                    raise _Undo([member], refused) from None
            raise _Undo([member for member, _ in owned], refused) from None

    def _roll_back(self, wire: Wire) -> None:
        wire.control("ROLLBACK")
        wire.receive()

    def _commit(
        self, wire: Wire, group: list[_Member], statements: int, last: Mapping[int, Sequence[Statement]]
    ) -> list[list[Row]]:
        """COMMIT, behind so many statements that are on their way; the rows of those. ``last`` are the ``Final``
        batches among them, by the place where each begins.

        Raises:
            Refused: one of them was, so the server did not come to COMMIT. _Undo: COMMIT was. ConnectionLost
        """
        try:
            wire.control("COMMIT")
            *rows, ((done,),) = wire.receive()
        except Refused as refused:
            if refused.place < statements:
                raise
            raise _Undo(group, refused) from refused
        except ConnectionLost as lost:
            self.drop()
            of_reads = {
                place: statement
                for start, batch in last.items()
                for place, statement in enumerate(batch, start)
                if postgres_statements.only_reads(statement)
            }
            read = self._read_back(lost, list(of_reads.values()))
            if read is None:
                raise  # it is certain now: nothing of it is there
            rows = [[] for _ in range(statements)]
            for place, found in zip(of_reads, read, strict=True):
                rows[place] = found
            return rows
        if done != b"COMMIT":
            raise StoreFault(f"{self.place.name} answered COMMIT with {done!r}")
        return rows

    def _read_back(self, lost: ConnectionLost, reads: Sequence[Statement]) -> list[list[Row]] | None:
        """Wait until the lost transaction has ended, and see how: what ``reads`` give behind it, or None if it is not
        there, and never will be. Raises OutcomeUnknown if that cannot be learned.
        """
        log.warning("a connection to %s was lost at COMMIT, which is read back: %s", self.place.name, lost)
        until = time.monotonic() + READ_BACK_PATIENCE
        why: Exception = lost
        while time.monotonic() < until:
            try:
                wire = Wire(self.connector.connect(READ_BACK_PATIENCE), READ_BACK_PATIENCE)
            except StoreError as error:
                why = error
                time.sleep(PAUSE)
                continue
            try:
                wire.control(_BEGIN)
                back = ("writer.read_back", {"writer": self._id, "n": self._n, "given_up": _GIVEN_UP})
                wire.send([back, *reads])
                _, ((n,),), *rows = wire.receive()
                wire.control("COMMIT")
                wire.receive()
                return rows if n == self._n else None
            except Refused as error:
                why = error
                if error.sqlstate == LOCK_TIMEOUT:
                    break
            except ConnectionLost as error:
                why = error
            finally:
                wire.close()
        raise OutcomeUnknown(
            f"the connection to {self.place.name} was lost at COMMIT, and it cannot be learned whether that was done "
            f"({why}): send the same operation id again"
        )

    def drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()


def _in_turn(members: list[_Member]) -> list[list[_Member]]:
    """Those of different sessions run in step. Of the others nothing is known: each runs when the ones before ended."""
    together: dict[Key, _Member] = {}
    later: list[list[_Member]] = []
    for member in members:
        key = _session(member.job)
        if key is None or key in together:
            later.append([member])
        else:
            together[key] = member
    return [*([list(together.values())] if together else []), *later]
