"""How does SQLite run a transaction?

One writer connection on its own thread commits in groups: transactions that wait together share one fsync, each in a
savepoint. Nobody is told before COMMIT. A full disk can roll back the whole transaction under the savepoints; then
each member runs again alone. Readers are read-only and never hold a snapshot across an await. A lock file, held as
long as the process lives, decides who drives runs; other processes may read, submit, decide and cancel.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import hashlib
import json
import os
import queue
import tempfile
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

import apsw

from ondol import ids, queries
from ondol.errors import (
    NotFound,
    OndolError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFault,
    StoreFull,
    StoreTooNew,
)
from ondol.secret import logger
from ondol.stores.jobs import Job, Writes, call, deliver, fail, to_its_end, unfit
from ondol.stores.migrations import migrations
from ondol.stores.seats import Seat, Table
from ondol.threads import in_thread
from ondol.transactions import STATEMENTS, Row, Statement, Tx, set_meta

P = ParamSpec("P")
T = TypeVar("T")

log = logger("ondol.store")

DRIVER_KEY = "driver"  # in the meta table: who drives, and which agents it has
BUSY_TIMEOUT = 10_000  # milliseconds that a write waits for another process's write
_BUSY_PAUSE = 10  # milliseconds between attempts where SQLite itself does not wait
_MAKING = 1000  # milliseconds that a process may take from making the file to filling it
_GROUP_LIMIT = 256  # transactions that share one commit
_READERS = 2
_POLL = 0.05  # seconds between looks for changes by other processes, when nothing is written
_LOOK_EVERY = 16  # commits between such looks under load
_CHECKPOINT_PAGES = 4000  # of the log, after which the driver copies it into the database
_LOG_KEPT = 64_000_000  # bytes of it that are used again: somebody who read for hours may have made it far longer
_STATEMENT_CACHE = 200  # prepared statements a connection keeps; all of ours fit
_NEW, _DROPPED = ".new-", ".dropped-"  # names of blobs on their way in and out
_FSYNC_FAILED = frozenset({apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC})
_NO_ROOM = frozenset({apsw.SQLITE_FULL, apsw.SQLITE_IOERR_SHMSIZE})  # the latter: for -shm, which who reads needs too
_EXIT_FSYNC_FAILED = 74  # EX_IOERR of sysexits.h


@dataclass(slots=True)
class _Commits:
    """Seen by tests and benchmarks: how many transactions shared how many commits."""

    transactions: int = 0
    commits: int = 0


class SqliteStore:
    """A store in one SQLite file, with its blobs in a folder beside it (``<file>.blobs``)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).resolve()  # one file under two names is one store
        self.blobs = Path(f"{self.path}.blobs")
        self.commits = _Commits()
        self._writes = Writes()
        self._reads: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock: IO[str] | None = None
        self._driving: dict[str, Sequence[str]] = {}  # this process's owner, and its agents
        self._on_change: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- open and close -----------------------------------------------------------------------------------------

    async def open(self, on_change: Callable[[], None]) -> None:
        self._loop, self._on_change = asyncio.get_running_loop(), on_change
        table = Table.of(self.path)
        seat = Seat(table, _open_for_writing)
        taking = in_thread(_take, seat)
        try:
            first = await to_its_end(taking)
        except asyncio.CancelledError:
            if taking.exception() is None:
                await to_its_end(in_thread(seat.leave))
            raise
        self._threads = [
            threading.Thread(target=self._write_loop, args=(seat, *first), name="ondol-writer", daemon=True)
        ]
        for n in range(_READERS):
            seat = Seat(table, _open_for_reading)
            reading = threading.Thread(target=self._read_loop, args=(seat,), name=f"ondol-reader-{n}", daemon=True)
            self._threads.append(reading)
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        threads, self._threads = self._threads, []  # from here on nothing is taken any more
        self._writes.hand_over(asyncio.get_running_loop())  # before the word that there is no more
        if threads:
            await to_its_end(in_thread(self._end, *threads))

    def _end(self, writer: threading.Thread, *readers: threading.Thread) -> None:
        for _ in readers:
            self._reads.put(None)
        for thread in readers:
            thread.join()
        self._writes.waiting.put(None)  # it closes last, and so copies the log into the file
        writer.join()
        self._stop_driving()

    async def drives(self, owner: str, agents: Sequence[str]) -> bool:
        if self._lock is not None and not _has_its_name(self._lock):
            log.warning("%s was removed while this process drives: leave it where it is", self._lock.name)
            self._stop_driving()  # whoever came meanwhile holds another one, and drives
        if self._lock is None:
            self._lock = _try_lock(Path(f"{self.path}.lock"))
        if self._lock is not None and owner not in self._driving:
            driver = {"owner": owner, "pid": os.getpid(), "agents": sorted(agents)}
            await self.write(set_meta, DRIVER_KEY, json.dumps(driver))
            self._driving = {owner: sorted(agents)}
        return self._lock is not None

    def _stop_driving(self) -> None:
        lock, self._lock, self._driving = self._lock, None, {}
        if lock is not None:
            lock.close()

    async def drivers(self) -> Mapping[str, Sequence[str]]:
        if self._lock is not None or driver_of(self.path) is None:
            return self._driving
        stored = await self.read(queries.get_meta, DRIVER_KEY)
        driver = json.loads(stored) if stored else {}
        return {driver.get("owner", ""): driver.get("agents", [])}

    # --- transactions -------------------------------------------------------------------------------------------

    def write(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._submit(self._writes.put, functools.partial(tx, *args, **kwargs))

    def read(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._submit(self._reads.put, functools.partial(tx, *args, **kwargs))

    async def _submit(self, put: Callable[[Job], None], make: Callable[[], Tx[T]]) -> T:
        if not self._threads:
            raise StoreError(f"{self.path} is not open")
        job = Job(make, asyncio.get_running_loop())
        put(job)
        return await job  # type: ignore[no-any-return]

    def _write_loop(self, seat: Seat, connection: apsw.Connection, seen: int) -> None:
        groups, said = 0, ""
        while True:
            jobs, closing = self._next_group()
            if not jobs and self._lock is not None and self._loop is not None and self._loop.is_closed():
                log.warning("%s is driven no more: the event loop was closed, and its runtime was not", self.path)
                self._stop_driving()
            try:
                with seat as current:
                    if current is not connection:  # opened again: nobody knows what was missed
                        connection, seen = current, -1
                    if self._lock is not None:
                        connection.wal_autocheckpoint(_CHECKPOINT_PAGES)
                    if jobs:
                        self._commit(connection, jobs)
                        groups += 1
                    if not jobs or groups % _LOOK_EVERY == 0:
                        now = _data_version(connection)  # counts the commits of other connections only
                        if now != seen:
                            seen = now
                            call(self._loop, self._on_change)
                said = ""
            except Exception as error:  # whatever it is, the thread goes on for all that comes
                problem = error if isinstance(error, OndolError) else _translated(error, self.path)
                if str(problem) != said:  # (it looks twenty times a second)
                    log.warning("%s", problem)  # who waits for a write is told, or was told already
                    said = str(problem)
                fail(jobs, problem)
            if closing:
                seat.leave()
                return

    def _next_group(self) -> tuple[list[Job], bool]:
        """What waits to be written together, and whether the store closes after it. Empty when nobody came for long."""
        jobs: list[Job] = []
        try:
            job = self._writes.waiting.get(timeout=_POLL)
            while job is not None:
                jobs.append(job)
                if len(jobs) >= _GROUP_LIMIT:
                    return jobs, False
                job = self._writes.waiting.get_nowait()
        except queue.Empty:
            return jobs, False
        return jobs, True

    def _commit(self, connection: apsw.Connection, jobs: list[Job]) -> None:
        try:
            if len(jobs) == 1:
                self._commit_alone(connection, jobs[0])
            else:
                self._commit_together(connection, jobs)
        except BaseException as fault:  # whoever waits is told, whatever happens in this thread
            log.exception("the writer of %s failed", self.path)
            for job in jobs:
                job.error = StoreFault(f"{self.path}: {type(fault).__name__}: {fault}")
        deliver(jobs, self._writes)

    def _commit_together(self, connection: apsw.Connection, jobs: list[Job]) -> None:
        try:
            # A refusal is rare and mostly comes before the first change: only then savepoints are paid for.
            if not self._commit_group(connection, jobs, savepoints=False):
                self._commit_group(connection, jobs, savepoints=True)
        except apsw.BusyError as error:  # each alone would wait for the same lock again
            _roll_back(connection)
            for job in jobs:
                job.error = _translated(error, self.path)
        except apsw.Error as error:
            _exit_if_fsync_failed(error, self.path)
            _roll_back(connection)
            for job in jobs:  # nobody was told: each again, alone
                self._commit_alone(connection, job)

    def _commit_group(self, connection: apsw.Connection, jobs: list[Job], *, savepoints: bool) -> bool:
        """All in one transaction. Without savepoints, False (and nothing is written) if a member must be undone."""
        connection.execute("BEGIN IMMEDIATE")
        for job in jobs:
            if savepoints:
                connection.execute("SAVEPOINT member")
            changes = connection.total_changes()
            try:
                job.value, job.error = _run(connection, job.make), None
            except apsw.Error:
                raise
            except BaseException as refusal:  # of this member alone: who waits for it is told, the others go on
                job.error = refusal
                if savepoints:
                    connection.execute("ROLLBACK TO member")
                elif connection.total_changes() != changes:
                    connection.execute("ROLLBACK")
                    return False
            if savepoints:
                connection.execute("RELEASE member")
        connection.execute("COMMIT")
        self.commits.commits += 1
        self.commits.transactions += len(jobs)
        return True

    def _commit_alone(self, connection: apsw.Connection, job: Job) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            job.value, job.error = _run(connection, job.make), None
            connection.execute("COMMIT")
            self.commits.commits += 1
            self.commits.transactions += 1
        except apsw.Error as error:
            _exit_if_fsync_failed(error, self.path)
            _roll_back(connection)
            job.error = _translated(error, self.path)
        except BaseException as refusal:  # who waits for it is told; the thread goes on for all others
            _roll_back(connection)
            job.error = refusal

    def _read_loop(self, seat: Seat) -> None:
        while (job := self._reads.get()) is not None:
            try:
                with seat as connection:
                    connection.execute("BEGIN")
                    try:
                        job.value = _run(connection, job.make)
                    finally:
                        _roll_back(connection)
            except apsw.Error as error:
                job.error = _translated(error, self.path)
            except BaseException as refusal:  # who waits for it is told; the thread goes on for all others
                job.error = refusal
            deliver([job])
        seat.leave()

    # --- blobs --------------------------------------------------------------------------------------------------

    async def put_blob(self, tenant: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        await in_thread(_write_blob, self._blob(tenant, digest), data)
        return digest

    async def get_blob(self, tenant: str, digest: str) -> bytes:
        ids.check_digest(digest)
        path = self._blob(tenant, digest)
        try:
            data = await in_thread(path.read_bytes)
        except FileNotFoundError as error:
            raise NotFound(f"blob {digest} is not in {self.blobs}: restore a backup, or send it again") from error
        except OSError as error:
            raise _os_error(error, path) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreCorrupt(f"{path} does not match its digest: restore a backup (ondol db restore)")
        return data

    async def drop_blob(self, tenant: str, digest: str) -> None:
        """Put it aside, and look once more: somebody may have come with the same bytes meanwhile."""
        path = self._blob(tenant, digest)
        aside = path.with_name(_DROPPED + digest)
        try:
            await in_thread(os.replace, path, aside)
        except FileNotFoundError:
            return
        await self._settle_dropped(tenant, aside)

    async def _settle_dropped(self, tenant: str, aside: Path) -> None:
        digest = aside.name.removeprefix(_DROPPED)
        if await self.read(queries.has_blob, tenant, digest):
            await in_thread(os.replace, aside, aside.with_name(digest))
        else:
            await in_thread(aside.unlink, missing_ok=True)

    async def tidy_blobs(self, tenant: str, before: datetime) -> None:
        for left in await in_thread(list, self._folder(tenant).glob("*/.*")):
            if left.name.startswith(_DROPPED):
                await self._settle_dropped(tenant, left)
            elif left.name.startswith(_NEW) and left.stat().st_mtime < before.timestamp():
                left.unlink(missing_ok=True)

    def _blob(self, tenant: str, digest: str) -> Path:
        return self._folder(tenant) / digest[:2] / digest

    def _folder(self, tenant: str) -> Path:
        return self.blobs / hashlib.sha256(tenant.encode()).hexdigest()[:16]  # a name may not be a file name


# --- connections ------------------------------------------------------------------------------------------------


def _open_for_writing(path: Path) -> apsw.Connection:
    """Open, check and migrate the file.

    Raises:
        StoreCorrupt, StoreTooNew: the file is left as it is.
        StoreError: it cannot be opened.
    """
    refuse_what_is_no_store(path)
    if path.exists() and (names := path.stat().st_nlink) > 1:  # each would have a log, and a lock, of its own
        raise StoreError(
            f"{path} has {names} names (hard links), and what is written under one of them is lost under the others: "
            "remove all but one, or work on a copy"
        )
    refuse_to_begin_a_log(path)
    # It was driven, and holds nothing: unless another process makes it at this moment, beside a lock that was left.
    emptied = _is_empty(path) and Path(f"{path}.lock").exists()
    try:
        connection = apsw.Connection(str(path), statementcachesize=_STATEMENT_CACHE)
    except apsw.Error as error:
        raise _translated(error, path) from error
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT)
        _migrate(connection, path, emptied)
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what was erased is overwritten, not only let go
        connection.execute("PRAGMA temp_store = MEMORY")  # savepoints keep old pages: not in a file
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # the driver checkpoints
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_KEPT}")
        _keep_plans(connection)
        _version(connection)  # the first look into a new log makes its memory, which is locked next
    except BaseException as error:  # it travels on, and the connection must not stay open
        # Closing would copy the log into a file that is refused: it is to be left as it is.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()
        if isinstance(error, apsw.Error):
            raise _translated(error, path) from error
        raise
    return connection


def refuse_to_begin_a_log(path: Path) -> None:
    """Of a file of another user that this one may not write: the log would belong to this one, and that one could not
    write it."""
    if not path.exists() or Path(f"{path}-wal").exists():
        return
    if path.stat().st_uid != os.geteuid() and not os.access(path, os.W_OK, effective_ids=True):
        why = "this user may not write it, and nobody has it open"
        raise StoreError(f"{path} cannot be used: {why}; look at its permissions, or be the user that it belongs to")


def _use_wal(connection: apsw.Connection) -> None:
    """Other processes may open the same new file now. SQLite says "busy" here at once, whatever the time-out."""
    for attempt in range(BUSY_TIMEOUT // _BUSY_PAUSE):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except apsw.BusyError:
            if attempt == BUSY_TIMEOUT // _BUSY_PAUSE - 1:
                raise
            _pause()


def _open_for_reading(path: Path) -> apsw.Connection:
    # Without a log there is nothing that a read-only connection could attach to: let this one make it, and not write.
    mode = apsw.SQLITE_OPEN_READONLY if Path(f"{path}-wal").exists() else apsw.SQLITE_OPEN_READWRITE
    connection = apsw.Connection(str(path), flags=mode, statementcachesize=_STATEMENT_CACHE)
    connection.set_busy_timeout(BUSY_TIMEOUT)
    connection.execute("PRAGMA query_only = ON")
    _keep_plans(connection)
    return connection


def _keep_plans(connection: apsw.Connection) -> None:
    """A plan may not depend on the values given. Else a statement that could use a partial index is prepared anew each
    time that it is run, which costs more than running it."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def _try_lock(path: Path) -> IO[str] | None:
    """The lock file, held until it is closed or the process dies; None while another process holds it."""
    try:
        file = path.open("a+")
    except OSError as error:
        raise _os_error(error, path) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    _LOCKS.add(file)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _has_its_name(file: IO[str]) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    except OSError:
        return False


_LOCKS: weakref.WeakSet[IO[str]] = weakref.WeakSet()  # that this process holds


def _let_go_of_locks() -> None:
    """In a child that was forked: it has the open files of its parent, and would keep their locks when that dies."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in _LOCKS:
        if not file.closed:
            os.dup2(nothing, file.fileno(), inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_let_go_of_locks)


def driver_of(path: Path) -> str | None:
    """The number of the process that drives a store, None if nobody does. The lock is left as it is."""
    try:
        with open(f"{path}.lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "?"
    except FileNotFoundError:
        pass
    return None


def refuse_name(path: Path) -> None:
    """SQLite takes names in UTF-8 only."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        where = f"the name {str(path)!r} is not in UTF-8, as SQLite wants it"
        raise StoreError(f"{where}: rename that folder or file") from error


def refuse_what_is_no_store(path: Path) -> None:
    refuse_name(path)
    if not path.parent.is_dir():
        raise StoreError(f"the folder {path.parent} does not exist: make it, or name another file")
    if path.is_dir():
        raise StoreError(f"{path} is a folder: name a file")
    log_file = Path(f"{path}-wal")
    if not path.exists() and log_file.exists():
        raise StoreCorrupt(f"{path} is gone but {log_file} is there: put the file back or restore a backup")
    if _is_empty(path) and log_file.exists() and log_file.stat().st_size:  # SQLite would delete that
        raise StoreCorrupt(f"{path} is empty but {log_file} is not: put the file back or restore a backup")
    # The file itself is left to SQLite: opening and closing it here would drop the locks that this process has on it.


def _is_empty(path: Path) -> bool:
    return path.exists() and not path.stat().st_size


def _migrate(connection: apsw.Connection, path: Path, emptied: bool) -> None:
    steps = migrations()
    if _known_version(connection, path, len(steps)) == len(steps):
        return
    if emptied and not _is_made_now(connection):
        raise StoreCorrupt(f"{path} is empty, and was not: restore a backup, or delete it to begin anew")
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Looked at again inside the lock: another process may have made the store at this moment.
        version = _known_version(connection, path, len(steps))
        if version == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise StoreCorrupt(f"{path} holds tables that are not Ondol's: name another file")
        for number, text in enumerate(steps[version:], start=version + 1):
            connection.execute(text)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
        connection.execute("ANALYZE sqlite_schema")  # reads what the steps say about sizes, and analyses nothing
    except BaseException:  # it travels on: a migration is done as a whole or not at all
        _roll_back(connection)
        raise


def _is_made_now(connection: apsw.Connection) -> bool:
    """Does another process fill the empty file at this moment? It may be beside a lock file that an older one left."""
    for _ in range(_MAKING // _BUSY_PAUSE):
        if _version(connection):
            return True
        _pause()
    return False


def _pause() -> None:
    threading.Event().wait(_BUSY_PAUSE / 1000)


def _known_version(connection: apsw.Connection, path: Path, newest: int) -> int:
    version = _version(connection)
    if version > newest:
        raise StoreTooNew(f"{path} has schema {version}, this version of Ondol knows {newest}: upgrade Ondol")
    return version


def _version(connection: apsw.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").get)


def _data_version(connection: apsw.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").get)


def _run(connection: apsw.Connection, make: Callable[[], Tx[T]]) -> T:
    """Drive one transaction function over the connection."""
    tx = make()
    try:
        batch = next(tx)
        while True:
            batch = tx.send(_rows(connection, batch))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def _rows(connection: apsw.Connection, batch: list[Statement]) -> list[list[Row]]:
    execute = connection.execute
    try:
        return [execute(STATEMENTS[name], params).fetchall() for name, params in batch]
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise unfit(str(error)) from error
    except UnicodeDecodeError as error:
        why = f"{connection.filename} holds a text that is not valid ({error}): restore a backup (ondol db restore)"
        raise StoreCorrupt(why) from error


def _roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _exit_if_fsync_failed(error: apsw.Error, path: Path) -> None:
    """After a failed fsync nobody knows what is on the disk, and asking again would say yes: stop at once."""
    if getattr(error, "extendedresult", 0) in _FSYNC_FAILED:
        log.critical("fsync of %s failed: the process stops, start it again when the disk is healthy", path)
        os._exit(_EXIT_FSYNC_FAILED)


def _translated(error: Exception, path: Path) -> StoreError:
    match error:
        case apsw.FullError() | apsw.IOError() if getattr(error, "extendedresult", 0) in _NO_ROOM:
            new: StoreError = StoreFull(f"no space left for {path}: free some, then try again")
        case apsw.BusyError() | apsw.LockedError():
            new = StoreBusy(f"{path} is locked by another process for too long: try again")
        case apsw.NotADBError():
            new = StoreCorrupt(f"{path} is not a SQLite file, or its first page is damaged: restore a backup")
        case apsw.CorruptError():
            new = StoreCorrupt(f"{path} is damaged ({error}): restore a backup (ondol db restore)")
        case apsw.CantOpenError():
            new = StoreError(f"{path} cannot be opened ({error}): look at the folder and its permissions")
        case apsw.ReadOnlyError():
            beside = f"the files beside it ({path.name}-wal, {path.name}-shm)"
            why = f"look at the permissions of it, of its folder and of {beside}, or work on a copy"
            new = StoreError(f"{path} cannot be written ({error}): {why}")
        case apsw.IOError():
            new = StoreError(f"reading or writing {path} failed ({error}): look at the disk, then try again")
        case _:
            new = StoreFault(f"{path}: {type(error).__name__}: {error}")
    new.__cause__ = error
    return new


def _take(seat: Seat) -> tuple[apsw.Connection, int]:
    """Open the connection, and how many commits of others it has seen."""
    with seat.taken() as connection:
        return connection, _data_version(connection)


def _write_blob(path: Path, data: bytes) -> None:
    """Temp file, fsync, rename, fsync of each folder that leads to it: whole or not there."""
    try:
        if path.exists() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_NEW)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:  # it travels on, and half a file must not stay
            Path(temporary).unlink(missing_ok=True)
            raise
        for folder in path.parents[:4]:  # up to the folder in which the store itself lies
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise _os_error(error, path) from error


def _os_error(error: OSError, path: Path) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(f"no space left for {path}: free some, then try again")
    return StoreError(f"{path} cannot be used ({error.strerror}): look at the folder and its permissions")


__all__ = ["SqliteStore", "driver_of", "refuse_to_begin_a_log"]
