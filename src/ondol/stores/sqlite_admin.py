"""How is a SQLite store looked after: checked, backed up, restored, migrated?

A backup is a folder: the file ``ondol.db`` and its blobs. It is as good as its store was. What is damaged in the store
is not repaired in it, and ``check`` names it in both.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import apsw

from ondol import checksums, journal, lifecycle, runfile, transactions
from ondol.clock import Clock, SystemClock, to_micros
from ondol.errors import FileDamaged, InvalidInput, StoreBusy, StoreCorrupt, StoreError, StoreTooNew
from ondol.records import AskRow, FactRow, RunRow, SessionRow, columns
from ondol.secret import logger
from ondol.stores import sqlite
from ondol.stores.migrations import migrations
from ondol.stores.sqlite import SqliteStore
from ondol.transactions import STATEMENTS

log = logger("ondol.store")


class Asked(Protocol):
    """Whoever answers a question in SQL with its rows."""

    def execute(self, text: str, given: tuple[Any, ...] = (), /) -> Iterable[tuple[Any, ...]]: ...


PathLike: TypeAlias = str | os.PathLike[str]
Found: TypeAlias = str | StoreTooNew  # by a check: what is damaged, in words, or what a newer version wrote

FILE = "ondol.db"  # the store inside a backup's folder
GENERATION = "generation"  # in the store's meta table: how many times it was restored
_RESTORE = "restore a backup (ondol db restore)"
# A flipped bit may make a text that is none, or bytes of a text.
ENTRIES = """
    SELECT n, seq, fence, at, v, CAST(body AS BLOB), sum FROM entries WHERE tenant = ? AND run = ? ORDER BY seq"""
MESSAGES = """
    SELECT ordinal, iif(typeof(body) = 'blob', body, x''), sum FROM messages WHERE tenant = ? AND run = ?"""


# --- check ------------------------------------------------------------------------------------------------------


def check(path: PathLike) -> list[str]:
    """What is wrong with a store; empty if nothing is. Each line names the thing and the next move.

    Reads every page, entry, message and blob, on one snapshot, and changes nothing. Others may go on writing.
    """
    return [str(problem) for problem in problems(path)]


def problems(path: PathLike) -> list[StoreError]:
    """As ``check``, each with what kind of trouble it is: what is newer, or cannot be read now, is not damaged."""
    path = Path(path).resolve()
    log_file = Path(f"{path}-wal")
    while True:
        # Nobody has it open: it can be read without giving it a -wal that would stay there.
        alone = not log_file.exists()
        found = _check(path, alone)
        if not (alone and log_file.exists()):  # else somebody came in between: what was read may be torn
            return found


def _check(path: Path, alone: bool) -> list[StoreError]:
    found: list[StoreError] = []
    try:
        _refuse_no_store(path)
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        uri = path.as_uri() + ("?immutable=1" if alone else "")
        with closing(apsw.Connection(uri, flags=flags)) as connection:
            connection.set_busy_timeout(sqlite.BUSY_TIMEOUT)
            connection.execute("BEGIN")
            for problem in _problems(connection, path):
                found.append(as_error(problem))  # one by one: it stays when the next page cannot be read
            connection.execute("ROLLBACK")
            if "table blob_uses" in _schema(connection):
                found += map(StoreCorrupt, _blob_problems(connection, path))
    except apsw.Error as error:
        found.append(sqlite._translated(error, path))
    except UnicodeDecodeError as error:
        found.append(StoreCorrupt(f"{path} holds a text that is not valid ({error}): {_RESTORE}"))
    except StoreError as error:
        found.append(error)
    return found


def as_error(found: Found) -> StoreError:
    return StoreCorrupt(found) if isinstance(found, str) else found


def _problems(connection: apsw.Connection, path: Path) -> Iterator[Found]:
    for (line,) in connection.execute("PRAGMA integrity_check"):
        if line != "ok":
            yield f"{path}: {line}: {_RESTORE}"
    newest = len(migrations())
    version = sqlite._known_version(connection, path, newest)
    if version == 0:
        yield f"{path} holds no store of Ondol: name another file, or {_RESTORE}"
        return
    if version < newest:
        raise StoreError(
            f"{path} has schema {version}, this version of Ondol writes {newest}: migrate it (ondol db migrate)"
        )
    there = _schema(connection)
    for name, made in _fresh_schema().items():
        if there.get(name) != made:
            yield f"{path}: {name} is {'not as it was made' if name in there else 'missing'}: {_RESTORE}"
    for table, _, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"{path}: a row of {table} belongs to a row of {parent} that is not there: {_RESTORE}"
    yield from content_problems(connection)


def content_problems(connection: Asked) -> Iterator[Found]:
    """What the rows say against each other and against their checksums, in whatever database they are."""
    for digest, body in _rows(connection, "SELECT digest, body FROM definitions"):
        yield from _found(functools.partial(checksums.check_definition, digest, body))
    for digest, text in _rows(connection, "SELECT digest, body FROM carried"):
        yield from _found(functools.partial(checksums.check_carried, digest, text))
    for run, packed in _rows(connection, "SELECT run, body FROM imports"):
        try:
            runfile.unpack(run, packed)
        except StoreTooNew as error:
            yield error
        except (FileDamaged, InvalidInput) as error:
            yield str(error)
    for row in _rows(connection, f"SELECT {columns(RunRow)} FROM runs"):
        yield from _run_problems(connection, RunRow(*row))
        yield from _found(RunRow(*row).checked_reply)
    for row in _rows(connection, f"SELECT {columns(SessionRow)} FROM sessions"):
        session = SessionRow(*row)
        yield from _found(session.checked_state)
        yield from _found(session.checked_seen)
        yield from _found(session.checked_pins)
    for of, seen, total in _rows(connection, "SELECT session, seen, sum FROM compactions"):
        yield from _before_problems(SessionRow.what_is_seen(of), seen, total)
    for of, state, total in _rows(connection, "SELECT session, state_before, state_before_sum FROM runs"):
        yield from _before_problems(SessionRow.what_is_kept(of), state, total)
    for of, what, body, total in _rows(connection, "SELECT session, what, body, sum FROM replaced"):
        named = SessionRow.what_is_kept(of) if what == "state" else SessionRow.what_is_pinned(of)
        yield from _before_problems(named, body, total)
    for row in _rows(connection, f"SELECT {columns(AskRow)} FROM asks"):
        yield from _found(AskRow(*row).check_arguments)
        yield from _found(AskRow(*row).checked_decision)
        yield from _found(AskRow(*row).checked_default)
    for row in _rows(connection, f"SELECT {columns(FactRow)} FROM facts"):
        yield from _found(FactRow(*row).checked_text)


def _found(looking: Callable[[], object]) -> Iterator[str]:
    try:
        looking()
    except StoreCorrupt as error:
        yield str(error)


def _before_problems(what: str, body: str | None, total: int | None) -> Iterator[str]:
    if body is not None:
        yield from _found(functools.partial(checksums.check_content, what, body, total))


def _schema(connection: apsw.Connection) -> dict[str, tuple[Any, ...]]:
    rows = _rows(connection, "SELECT type || ' ' || name, tbl_name, sql FROM sqlite_schema")
    return {name: tuple(made) for name, *made in rows}


def _fresh_schema() -> dict[str, tuple[Any, ...]]:
    with closing(apsw.Connection(":memory:")) as fresh:
        for step in migrations():
            fresh.execute(step)
        return _schema(fresh)


def _run_problems(connection: Asked, run: RunRow) -> Iterator[Found]:
    """Checksums and sequence of its entries and messages, and whether journal and rows say the same."""
    key = (run.tenant, run.id)
    ordinals = set()
    for ordinal, body, total in _rows(connection, MESSAGES, key):
        ordinals.add(ordinal)
        try:
            transactions.checked_body(run.id, ordinal, body, total)
        except StoreCorrupt as error:
            yield str(error)

    batches: list[journal.Batch] = []
    following, whole = 1, True
    for n, seq, fence, at, v, body, total in _rows(connection, ENTRIES, key):
        if seq != following:
            whole = False
            yield f"run {run.id}: entry {following} is followed by {seq}: {_RESTORE}"
        following = seq + n
        try:
            batch = journal.loads(run.id, seq, fence, at, v, body.decode(errors="replace"), total)
        except (StoreCorrupt, StoreTooNew) as error:
            whole = False
            yield error if isinstance(error, StoreTooNew) else str(error)
            continue
        if len(batch.entries) != n:
            yield f"run {run.id}: {n} entries are announced from {seq} on, {len(batch.entries)} are there: {_RESTORE}"
        if batches and batch.fence < batches[-1].fence:
            yield f"run {run.id}: entry {seq} has a smaller fence than the one before it: {_RESTORE}"
        batches.append(batch)
    if following == 1 and run.state in lifecycle.SETTLED:
        return  # its session was deleted: only the tombstone is left
    if following != run.next_seq:
        whole = False
        yield f"run {run.id}: {run.next_seq - 1} entries were written, {following - 1} are there: {_RESTORE}"
    if whole:
        yield from _contradictions(connection, run, journal.fold(batches), ordinals)


def _contradictions(connection: Asked, run: RunRow, state: journal.State, ordinals: set[int]) -> Iterator[str]:
    """Where the journal and the rows beside it do not say the same."""
    key = (run.tenant, run.id)
    if state.status != run.state:
        yield f"run {run.id} is {run.state}, its journal says {state.status}: {_RESTORE}"
    if state.fence > run.fence:
        yield f"run {run.id} has fence {run.fence}, its journal {state.fence}: {_RESTORE}"
    for ordinal in journal.missing_messages(state, ordinals):
        yield f"run {run.id}: message {ordinal} is missing: {_RESTORE}"
    rows = _rows(connection, "SELECT ordinal, state, attempt FROM effects WHERE tenant = ? AND run = ?", key)
    stored = {ordinal: rest for ordinal, *rest in rows}
    for effect in state.effects:
        row = stored.pop(effect.ordinal, None)
        if row != [effect.state, effect.attempt]:
            says = f"is {row[0]} at attempt {row[1]}" if row else "has no row"
            yield (
                f"run {run.id}: call {effect.ordinal} {says}, "
                f"its journal says {effect.state} at attempt {effect.attempt}: {_RESTORE}"
            )
    for ordinal in stored:
        yield f"run {run.id}: call {ordinal} is not in its journal: {_RESTORE}"
    if run.unread:
        return  # a decision about a held run is not in its journal yet
    asks = _rows(connection, "SELECT id FROM asks WHERE tenant = ? AND run = ? AND state = 'open'", key)
    for ask in sorted({id for (id,) in asks} ^ set(state.asks)):
        where = "its journal" if ask in state.asks else "the list of asks"
        yield f"run {run.id}: ask {ask} is open only in {where}: {_RESTORE}"


def _blob_problems(connection: apsw.Connection, path: Path) -> Iterator[str]:
    for tenant, digest in _used_blobs(connection):
        try:
            _read_blob(path, tenant, digest)
        except StoreError as error:
            if (tenant, digest) in _used_blobs(connection):  # else its session was deleted a moment ago
                yield str(error)


def _used_blobs(connection: apsw.Connection) -> list[tuple[Any, ...]]:
    return list(_rows(connection, "SELECT DISTINCT tenant, digest FROM blob_uses ORDER BY tenant, digest"))


def _rows(connection: Asked, text: str, given: tuple[Any, ...] = ()) -> Iterable[tuple[Any, ...]]:
    return connection.execute(text, given)


# --- backup -----------------------------------------------------------------------------------------------------


def backup(path: PathLike, dest: PathLike) -> Path:
    """Copy a store into the new folder ``dest``, as it was at one instant, while others go on writing.

    The folder appears whole and on the disk, or not at all.

    Raises:
        StoreError: ``dest`` exists, or ``path`` does not. StoreFull, StoreCorrupt, StoreTooNew.
    """
    path, dest = Path(path).resolve(), Path(dest).absolute()
    if os.path.lexists(dest):
        raise StoreError(f"{dest} exists: name another folder for the backup")
    sqlite.refuse_name(dest)
    with _translated(dest), _staging(dest.with_name(f".{dest.name}.part")) as folder:
        copy = folder / FILE
        sqlite.refuse_to_begin_a_log(path)
        with _reading(path) as source:
            # Blobs before the snapshot: one that a deleted session used may be collected while the file is copied.
            _copy_blobs(source, path, copy)
            source.execute("VACUUM INTO ?", (str(copy),))
        with _reading(copy) as snapshot:
            for why in _copy_blobs(snapshot, path, copy):
                log.warning("the backup %s is not complete: %s", dest, why)
        _sync(copy)
        _sync(folder)
        os.rename(folder, dest)
        _sync(dest.parent)
    return dest


# --- restore ----------------------------------------------------------------------------------------------------


def restore(source: PathLike, path: PathLike, *, clock: Clock | None = None) -> None:
    """Make the store ``path`` out of a backup's folder. It is a new generation of that store.

    Nobody knows what happened after the backup was made. So all fences rise, and every unfinished run is parked until
    a person says whether it goes on. The file appears whole and on the disk, or not at all.

    Raises:
        StoreError: something is at ``path``, or ``source`` is no backup. StoreBusy: a live process drives ``path``.
        StoreCorrupt, StoreTooNew: the backup cannot be used. StoreFull.
    """
    source, path = Path(source).resolve(), Path(path).resolve()
    sqlite.refuse_name(path)
    blobs = SqliteStore(path).blobs
    with _translated(path), _driver_lock(path):
        for there in (path, Path(f"{path}-wal"), Path(f"{path}-journal"), blobs):
            if os.path.lexists(there):
                raise StoreError(f"{there} exists: move it away, or restore to another file")
        with _staging(path.with_name(f".{path.name}.restoring")) as folder:
            copy = folder / FILE
            with _reading(source / FILE) as backed_up:
                backed_up.execute("VACUUM INTO ?", (str(copy),))
            with closing(sqlite._open_for_writing(copy)) as connection:
                for why in _copy_blobs(connection, source / FILE, copy, damaged_ok=False):
                    log.warning("the backup %s is not complete: %s", source, why)
                _begin_generation(connection, to_micros((clock or SystemClock()).now()))
            _sync(copy)
            # The file comes last: with it the store is there. Blobs without it are not a store.
            if SqliteStore(copy).blobs.exists():
                os.rename(SqliteStore(copy).blobs, blobs)
            os.rename(copy, path)
            _sync(path.parent)


def _begin_generation(connection: apsw.Connection, at: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    generation = int(connection.execute(STATEMENTS["meta.get"], {"key": GENERATION}).get or 0) + 1
    connection.execute(STATEMENTS["meta.set"], {"key": GENERATION, "value": str(generation)})
    connection.execute("UPDATE runs SET fence = fence + 1")
    # One that failed for now is left alone until somebody sends its operation again: then a person is asked first.
    again = transactions.RETRYABLE_AFTER_RESTORE
    connection.execute("UPDATE runs SET retryable = ? WHERE state = 'failed' AND retryable <> 0", (again,))
    states = ", ".join(f"'{state}'" for state in (*lifecycle.UNFINISHED, "parked"))
    unfinished = _rows(connection, f"SELECT tenant, id FROM runs WHERE state IN ({states}) ORDER BY tenant, id")
    for tenant, run in list(unfinished):
        sqlite._run(connection, functools.partial(transactions.park_restored, tenant, run, at))
    connection.execute("COMMIT")


# --- migrate ----------------------------------------------------------------------------------------------------


def migrate(path: PathLike) -> tuple[int, int]:
    """Bring a store to the current schema; returns the version before and after. All of it happens, or nothing.

    Raises:
        StoreError: there is no store. StoreCorrupt, StoreTooNew: it is left as it is. StoreFull.
    """
    path = Path(path).resolve()
    _refuse_no_store(path)
    sqlite.refuse_to_begin_a_log(path)
    with _translated(path):
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as before:
            was = sqlite._version(before)
        with closing(sqlite._open_for_writing(path)) as connection:
            return was, sqlite._version(connection)


# --- files ------------------------------------------------------------------------------------------------------


def _refuse_no_store(path: Path) -> None:
    sqlite.refuse_what_is_no_store(path)
    if not path.exists():
        raise StoreError(f"{path} does not exist: name the file of a store")
    if not path.stat().st_size:
        raise StoreCorrupt(f"{path} is empty: {_RESTORE}, or delete it to begin anew")


@contextmanager
def _reading(path: Path) -> Iterator[apsw.Connection]:
    _refuse_no_store(path)
    with closing(_opened(path)) as connection:
        try:
            yield connection
        except (apsw.CorruptError, apsw.NotADBError) as error:  # of this file, not of the one that is written
            raise sqlite._translated(error, path) from error


def _opened(path: Path) -> apsw.Connection:
    with _translated(path):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.set_busy_timeout(sqlite.BUSY_TIMEOUT)
            if not sqlite._known_version(connection, path, len(migrations())):
                raise StoreCorrupt(f"{path} holds no store of Ondol: name another file")
        except BaseException:  # it travels on, and the connection must not stay open
            connection.close()
            raise
    return connection


def _copy_blobs(connection: apsw.Connection, source: Path, target: Path, *, damaged_ok: bool = True) -> list[str]:
    """Copy the blobs that runs use and ``target`` lacks; returns why some could not be."""
    missing = []
    for tenant, digest in _used_blobs(connection):
        copy = SqliteStore(target)._blob(tenant, digest)
        if copy.exists():
            continue
        try:
            data = _read_blob(source, tenant, digest)
        except StoreCorrupt:
            if not damaged_ok:
                raise
            missing.append(f"blob {digest} is damaged")
        except StoreError as error:
            missing.append(str(error))
        else:
            sqlite._write_blob(copy, data)
    return missing


def _read_blob(path: Path, tenant: str, digest: str) -> bytes:
    blob = SqliteStore(path)._blob(tenant, digest)
    try:
        data = blob.read_bytes()
    except OSError as error:
        raise StoreError(f"blob {digest} cannot be read at {blob} ({error.strerror}): {_RESTORE}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise StoreCorrupt(f"{blob} does not match its digest: {_RESTORE}")
    return data


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder to write in, gone afterwards unless it was renamed. What a killed process left in it goes first."""
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, f"{folder} is being written by another process: wait for it")
        try:
            for leftover in folder.iterdir():
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


@contextmanager
def _driver_lock(path: Path) -> Iterator[None]:
    """As ``SqliteStore.drives``: while it is held nobody can begin to drive this store."""
    with open(f"{path}.lock", "a+") as file:
        _lock(file.fileno(), f"{path} is driven by a live process: stop it first")
        yield


def _lock(handle: int, why: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreBusy(why) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise sqlite._translated(error, path) from error
    except OSError as error:
        raise sqlite._os_error(error, Path(error.filename or path)) from error


__all__ = ["FILE", "GENERATION", "backup", "check", "migrate", "problems", "restore"]
