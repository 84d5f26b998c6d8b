"""What do other processes do with this database, and how do they learn that this one is alive?

One connection on its own thread. It renews the lease of this process, tells others by NOTIFY that something was
written, and calls back when another one did: told by NOTIFY, or found by looking at the counters of its writers. NOTIFY
is sent apart from the transactions that write: it would line up all commits of the database behind one lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from ondol.errors import StoreError
from ondol.secret import logger
from ondol.stores.jobs import call
from ondol.stores.postgres_place import PATIENCE, Place
from ondol.stores.postgres_statements import OWN

log = logger("ondol.store")

_POLL = 1.0  # seconds between looks for changes that nobody told of
_PAUSE = 0.05  # seconds between two NOTIFY, which then stand for everything between them
_AGAIN = 1.0  # seconds until a lost connection is made again
_HOUSEKEEPING = 3600.0  # seconds between removals of rows of processes that are gone for long


class Listener:
    """The thread that listens. ``own``: the ids of this process's writers."""

    def __init__(
        self, place: Place, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None], own: Callable[[], set[str]]
    ) -> None:
        self.place, self._loop, self._on_change, self._own = place, loop, on_change, own
        self.owner: str | None = None
        self._agents = "[]"
        self._leased_until = 0.0  # of the monotonic clock, as are the next two
        self._out_of_touch = 0.0  # since when, the last time that it could not renew its lease in time
        self._forgives_until = 0.0
        self._unsaid = False  # something was written of which others were not told
        self._closing = False
        self._connection: psycopg.Connection[Any] | None = None
        self._seen: dict[str, int] | None = None
        self._living: set[str] = set()
        self._due = {"look": 0.0, "say": 0.0, "renew": 0.0, "tidy": 0.0}
        self._wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._wakes, False)
        self._thread = threading.Thread(target=self._listen, name="ondol-listener", daemon=True)

    def start(self) -> None:
        """Connect, and begin. Raises what connecting raises."""
        self._connect()
        self._thread.start()

    def stop(self) -> None:
        """No lease any more: others may take over at once."""
        self._closing = True
        self._nudge()
        if self._thread.ident is None:  # it could not begin
            self._disconnect()
        else:
            self._thread.join()
        os.close(self._wake)
        os.close(self._wakes)

    def wrote(self) -> None:
        if not self._unsaid:
            self._unsaid = True
            self._nudge()

    def renews(self, owner: str, agents: str) -> None:
        """The lease was taken a moment ago: from here on it is renewed."""
        self._agents, self.owner = agents, owner
        self._leased_until = time.monotonic() + self.place.lease
        self._due["renew"] = time.monotonic() + self.place.lease / 3
        self._nudge()

    def has_lease(self) -> bool:
        return self.owner is not None and time.monotonic() < self._leased_until

    def forgiven(self) -> float:
        """Others whose lease ended within so many seconds are not dead for that: this process could not renew its own,
        so it may have been the server that nobody reached. They have a lease's time, and a bit, to come back."""
        now = time.monotonic()
        return now - self._out_of_touch if now < self._forgives_until else 0.0

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):  # then it is awake
            os.write(self._wake, b".")

    # --- the thread ---------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._closing and not self._loop.is_closed():  # without it nobody drives, whoever has the lease
            try:
                self._turn(self._connection or self._connect())
            except (psycopg.Error, StoreError) as error:
                said = " ".join(str(error).split())
                log.warning("the connection that listens to %s was lost: %s", self.place.name, said)
                self._disconnect()
                self._wait([], _AGAIN)
            except Exception:  # this thread renews the lease: it outlives every fault
                log.exception("listening to %s failed", self.place.name)
                self._disconnect()
                self._wait([], _AGAIN)
        try:
            if self.owner is not None or self._unsaid:
                connection = self._connection or self._connect()  # it may just have been lost
                if self.owner is not None:
                    self._run("owner.forget", owner=self.owner)
                if self._unsaid:
                    connection.execute("NOTIFY ondol")
        except (psycopg.Error, StoreError) as error:  # the lease ends by itself
            log.debug("%s", error)
        self._disconnect()

    def _connect(self) -> psycopg.Connection[Any]:
        patience = max(self.place.lease, PATIENCE)  # the lease is over by then
        connection = self.place.connect(self.place.lease / 3, patience)
        connection.execute("LISTEN ondol")
        self._connection, self._seen = connection, None  # nobody knows what was missed
        self._due["look"] = 0.0
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _run(self, name: str, **given: Any) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        cursor = self._connection.execute(_TEXTS[name], given)
        return cursor.fetchall() if cursor.description else []

    def _turn(self, connection: psycopg.Connection[Any]) -> None:
        now = time.monotonic()
        if self.owner is not None and now >= self._due["renew"]:
            self._due["renew"] = now + self.place.lease / 3
            self._run("owner.lease", owner=self.owner, agents=self._agents, seconds=self.place.lease)
            lapsed, last = not self.has_lease(), self._leased_until - self.place.lease
            if now - last > self.place.lease * 2 / 3:  # it could not do it when it was due
                if now >= self._forgives_until:
                    self._out_of_touch = last
                self._forgives_until = now + self.place.lease + 2 * _AGAIN
            self._leased_until = now + self.place.lease
            if lapsed:
                log.warning("the lease of this process had ended: others may have taken over its runs")
                call(self._loop, self._on_change)
        if now >= self._due["look"]:
            self._due["look"] = now + _POLL
            self._look()
        if self._unsaid and now >= self._due["say"]:
            self._due["say"] = now + _PAUSE
            self._unsaid = False
            connection.execute("NOTIFY ondol")
        if now >= self._due["tidy"]:
            self._due["tidy"] = now + _HOUSEKEEPING
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):  # of a role that may only read
                self._run("writer.forget_old")
                self._run("owner.forget_old")
        next_due = min(at for name, at in self._due.items() if name != "say" or self._unsaid)
        if self.owner is None:
            next_due = min(self._due["look"], self._due["tidy"])
            next_due = min(next_due, self._due["say"]) if self._unsaid else next_due
        self._wait([connection.fileno()], next_due - time.monotonic())
        connection.execute("")  # takes in what came
        notified = False
        for told in connection.notifies(timeout=0):
            notified = notified or told.pid != connection.info.backend_pid
        if notified:
            call(self._loop, self._on_change)

    def _look(self) -> None:
        """What others wrote since the last time; and whose lease has ended meanwhile."""
        own = self._own()
        seen = {writer: n for writer, n in self._run("writer.list") if writer not in own}
        living = {owner for owner, _ in self._run("owner.list", ended=self.forgiven())}
        if seen != self._seen or living != self._living:
            call(self._loop, self._on_change)
        self._seen, self._living = seen, living

    def _wait(self, files: list[int], seconds: float) -> None:
        poll = select.poll()
        for file in (self._wakes, *files):
            poll.register(file, select.POLLIN)
        if self._wakes in dict(poll.poll(max(seconds, 0) * 1000)):
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakes, 4096)


_TEXTS = {name: re.sub(r":(\w+)", r"%(\1)s", text.replace("%", "%%")).encode() for name, text in OWN.items()}
