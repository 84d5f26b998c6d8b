"""How does PostgreSQL run a transaction?

A few connections, each with its thread. One commits in groups (``postgres_writer``); what meets the lock of another
process goes to a second one, which has time to wait. The others read; none is held while a model or a tool runs. One
listens for changes by other processes, and renews the lease under which this process drives runs.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
import queue
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from ondol import ids
from ondol.errors import NotFound, StoreBusy, StoreCorrupt, StoreError, StoreFault
from ondol.secret import logger
from ondol.stores import postgres_schema
from ondol.stores.jobs import Job, Writes, deliver, to_its_end
from ondol.stores.postgres_listener import Listener
from ondol.stores.postgres_place import AGAIN, Connector, Place
from ondol.stores.postgres_wire import ConnectionLost, Refused, Wire
from ondol.stores.postgres_writer import Writer
from ondol.threads import in_thread
from ondol.transactions import Row, Tx

P = ParamSpec("P")
T = TypeVar("T")

log = logger("ondol.store")

_GROUP_LIMIT = 256  # transactions that share one commit
_CHUNK = 1_000_000  # bytes of a blob in one row
_KEPT_BACK = 4  # connections that do not read: two write, one listens, one is for reading back a lost COMMIT
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresStore:
    """A store in one schema of a PostgreSQL database, its blobs among it. Many processes may drive its runs."""

    def __init__(self, place: Place | str) -> None:
        self.place = Place.of(place) if isinstance(place, str) else place
        self.name = self.place.name
        self._connector = Connector(self.place)
        self.writers = Writer(self._connector, grouping=True), Writer(self._connector, grouping=False)
        self._writes = Writes()
        self._alone: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._listener: Listener | None = None

    # --- open and close -----------------------------------------------------------------------------------------

    async def open(self, on_change: Callable[[], None]) -> None:
        await in_thread(postgres_schema.migrate, self.place)
        own = functools.partial(set.union, *(writer.ids for writer in self.writers))
        listener = Listener(self.place, asyncio.get_running_loop(), on_change, own)
        self._listener = listener  # also one that is still connecting is ended by ``close``
        await to_its_end(in_thread(listener.start))
        group, alone = self.writers
        self._threads = [
            threading.Thread(target=self._write_loop, args=(group,), name="ondol-writer", daemon=True),
            threading.Thread(target=self._alone_loop, args=(alone,), name="ondol-writer-alone", daemon=True),
        ]
        for n in range(self.place.pool_size - _KEPT_BACK):
            self._threads.append(threading.Thread(target=self._read_loop, name=f"ondol-reader-{n}", daemon=True))
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        threads, self._threads = self._threads, []  # from here on nothing is taken any more
        self._writes.hand_over(asyncio.get_running_loop())  # before the word that there is no more
        listener, self._listener = self._listener, None
        if threads or listener is not None:
            await to_its_end(in_thread(self._end, threads, listener))

    def _end(self, threads: list[threading.Thread], listener: Listener | None) -> None:
        if threads:
            group, alone, *readers = threads
            for _ in readers:
                self._reads.put(None)
            self._writes.waiting.put(None)
            group.join()
            self._alone.put(None)  # what the group left to it comes first
            for thread in (alone, *readers):
                thread.join()
        if listener is not None:
            listener.wrote()  # what was written last, too
            listener.stop()

    # --- who drives ---------------------------------------------------------------------------------------------

    async def drives(self, owner: str, agents: Sequence[str]) -> bool:
        listener = self._listener
        if listener is None:
            return False
        if listener.owner != owner:
            try:
                await self.write(_lease, owner, json.dumps(sorted(agents)), self.place.lease)
            except asyncio.CancelledError:  # it was written all the same, and ``close`` has to end it
                listener.renews(owner, json.dumps(sorted(agents)))
                raise
            listener.renews(owner, json.dumps(sorted(agents)))
        return listener.has_lease()

    async def drivers(self) -> Mapping[str, Sequence[str]]:
        forgiven = 0.0 if self._listener is None else self._listener.forgiven()
        rows = await self.read(_list, "owner.list", ended=f"{forgiven:g}")
        return {owner: json.loads(agents) for owner, agents in rows}

    async def leases(self) -> dict[str, str]:
        """Until when each owner says that it lives; a later time where it was asked again: it does."""
        return {owner: until for owner, until in await self.read(_list, "owner.leases")}  # noqa: C416 - rows of anything

    # --- transactions -------------------------------------------------------------------------------------------

    def write(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._submit(self._writes.put, functools.partial(tx, *args, **kwargs))

    def read(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._submit(self._reads.put, functools.partial(tx, *args, **kwargs))

    async def _submit(self, put: Callable[[Job], None], make: Callable[[], Tx[T]]) -> T:
        if not self._threads:
            raise StoreError(f"{self.place.name} is not open")
        job = Job(make, asyncio.get_running_loop(), ticket=[None])
        job.waiting = job.loop.call_later(self.place.pool_timeout, self._give_up, job)
        put(job)
        try:
            return await job  # type: ignore[no-any-return]
        finally:
            job.waiting.cancel()

    def _give_up(self, job: Job) -> None:
        """No thread has taken it up: it was not run, and will not be. One that is at work may hand it to another."""
        if not job.take():
            job.waiting = job.loop.call_later(self.place.pool_timeout, self._give_up, job)
        else:
            job.error = StoreBusy(
                f"all connections to {self.place.name} were at work for {self.place.pool_timeout:g} s: try again, or "
                f"give it more ({self.place.pool_size} now; postgresql://…?pool_size=10&pool_timeout=60)"
            )
            deliver([job])

    def _write_loop(self, writer: Writer) -> None:
        closing = False
        while not closing:
            jobs, closing = self._next_group()
            alone = self._written(writer, jobs) if jobs else []
            deliver([job for job in jobs if job not in alone], self._writes)
            for job in alone:
                job.ticket.append(None)
                self._alone.put(job)
        writer.close()

    def _next_group(self) -> tuple[list[Job], bool]:
        """What waits to be written together, and whether the store closes after it."""
        jobs: list[Job] = []
        job = self._writes.waiting.get()
        while job is not None:
            if job.take():
                jobs.append(job)
            if len(jobs) >= _GROUP_LIMIT:
                return jobs, False
            try:
                job = self._writes.waiting.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True

    def _alone_loop(self, writer: Writer) -> None:
        while (job := self._alone.get()) is not None:
            if job.take():
                self._written(writer, [job])
                deliver([job])
        writer.close()

    def _written(self, writer: Writer, jobs: list[Job]) -> list[Job]:
        try:
            alone = writer.write(jobs)
        except BaseException as fault:  # whoever waits is told, whatever happens in this thread
            log.exception("the writer of %s failed", self.place.name)
            writer.drop()
            for job in jobs:
                job.error = StoreFault(f"{self.place.name}: {type(fault).__name__}: {fault}")
            return []
        if (listener := self._listener) is not None:
            listener.wrote()
        return alone

    def _read_loop(self) -> None:
        wire: Wire | None = None
        while (job := self._reads.get()) is not None:
            if not job.take():
                continue
            for attempt in range(3):
                try:
                    wire = wire or Wire(self._connector.connect())
                    job.value, job.error = _read(wire, job.make), None
                    break
                except ConnectionLost as lost:
                    job.error = StoreBusy(f"the connection to {self.place.name} was lost ({lost}): try again")
                    log.log(logging.INFO if attempt == 0 else logging.WARNING, "%s", job.error)
                    _close(wire)
                    wire = None
                except Refused as refused:
                    job.error = self.place.translated(refused)
                    if refused.sqlstate not in AGAIN or wire is None or not _ended(wire):
                        break
                except BaseException as refusal:  # who waits for it is told; the thread goes on for all others
                    job.error = refusal
                    break
            deliver([job])
            if job.error is not None and wire is not None and not _ended(wire):
                _close(wire)
                wire = None
        _close(wire)

    # --- blobs --------------------------------------------------------------------------------------------------

    async def put_blob(self, tenant: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        await self._submit(self._alone.put, functools.partial(_put_blob, tenant, digest, data))
        return digest

    async def get_blob(self, tenant: str, digest: str) -> bytes:
        ids.check_digest(digest)
        chunks = await self.read(_list, "blob.read", tenant=tenant, digest=digest)
        if not chunks:
            raise NotFound(f"blob {digest} is not in {self.place.name}: restore a backup, or send it again")
        data = b"".join(chunk for (chunk,) in chunks)
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreCorrupt(f"blob {digest} in {self.place.name} does not match its digest: restore a backup")
        return data

    async def drop_blob(self, tenant: str, digest: str) -> None:
        await self._submit(self._alone.put, functools.partial(_drop_blob, tenant, digest))

    async def tidy_blobs(self, tenant: str, before: datetime) -> None:
        for (digest,) in await self.read(_list, "blob.left_behind", tenant=tenant, before=int(before.timestamp())):
            await self.drop_blob(tenant, digest)


def _read(wire: Wire, make: Callable[[], Tx[T]]) -> T:
    """Drive one transaction function on one snapshot."""
    tx = make()
    batch = next(tx)
    wire.control(_BEGIN_READING)
    skip = 1
    try:
        while True:
            wire.send(batch)
            rows = wire.receive()[skip:]
            skip = 0
            batch = tx.send(rows)
    except StopIteration as done:
        wire.control("ROLLBACK")
        wire.receive()
        return done.value  # type: ignore[no-any-return]


def _ended(wire: Wire) -> bool:
    """End what a read left open. False if the connection is of no use any more."""
    try:
        wire.control("ROLLBACK")
        wire.receive()
    except (ConnectionLost, Refused):
        return False
    return True


def _close(wire: Wire | None) -> None:
    if wire is not None:
        wire.close()


# --- transactions of its own ------------------------------------------------------------------------------------


def _list(name: str, **given: Any) -> Tx[list[Row]]:
    (rows,) = yield [(name, given)]
    return rows


def _lease(owner: str, agents: str, seconds: float) -> Tx[None]:
    yield [("owner.lease", {"owner": owner, "agents": agents, "seconds": f"{seconds:g}"})]


def _put_blob(tenant: str, digest: str, data: bytes) -> Tx[None]:
    """What is there already, and right, is not sent again."""
    key = {"tenant": tenant, "digest": digest}
    (there,) = yield [("blob.chunks", key)]
    chunks = [data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)] or [b""]
    known: dict[int, str] = {n: digest for n, digest in there}  # noqa: C416 - a row is a tuple of anything
    wanted = {n: chunk for n, chunk in enumerate(chunks) if known.get(n) != hashlib.sha256(chunk).hexdigest()}
    writes: list[tuple[str, Mapping[str, Any]]] = [
        ("blob.put_chunk", key | {"n": n, "data": chunk}) for n, chunk in wanted.items()
    ]
    if len(known) > len(chunks):
        writes.append(("blob.cut", key | {"n": len(chunks)}))
    if writes:
        yield writes


def _drop_blob(tenant: str, digest: str) -> Tx[None]:
    """Unless the store knows it again: looked at behind the lock that whoever puts it takes as well."""
    yield [("blob.erase", {"tenant": tenant, "digest": digest})]


__all__ = ["PostgresStore"]
