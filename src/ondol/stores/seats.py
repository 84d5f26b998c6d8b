"""Is the log that a connection writes still the one that everybody reads?

Another copy of SQLite in this process (the ``sqlite3`` of the standard library, say) that closes the file does not see
our locks, which belong to the process: it takes itself for the last one, copies the log into the file and removes it.
What is written from then on would go into a file without a name, and be lost with the process. So each use of a
connection looks first whether its log is still there; if not, all connections of this process to the file are closed
(SQLite shares the memory of the log between them), and opened again when they are needed.

On Linux it does not come so far: locks that belong to an open file, and not to the process, show that copy that
somebody is there. (What is committed while it removes the log would be lost, and had been told.)

The file itself may be removed, or another one put in its place, under a process that goes on. What is written then is
lost in the same way, so nothing is: whoever wants to read or write is told, until the file is back.

A child that is forked has the connections of its parent, but none of their locks: SQLite in it would take the file for
locked, and others would remove the log that it writes. So no connection is in use as a process forks, and the child
closes all of them. What it opens then is its own.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import apsw

from ondol.errors import StoreError
from ondol.secret import logger

log = logger("ondol.store")

_SET_LOCK: Any = getattr(fcntl, "F_OFD_SETLK", None)
# What SQLite locks as long as it reads in a file, and has the memory of its log: the first byte, and how many.
_LOCKED = {"": (0x40000000 + 2, 510), "-shm": (128, 1)}


class Table:
    """All connections of this process to one file."""

    _tables: ClassVar[weakref.WeakValueDictionary[Path, Table]] = weakref.WeakValueDictionary()
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path) -> None:
        self.path, self._name, self._log = path, str(path), f"{path}-wal"
        self._seats: list[Seat] = []
        self._changing = threading.Lock()
        self._inode: int | None = None  # of the log, once it was seen
        self._file: tuple[int, int] | None = None  # the file that is open, by its device and inode
        self._held: dict[str, int] = {}  # closed only with the last connection: that drops all locks of the process
        self._holding = threading.Lock()

    @classmethod
    def of(cls, path: Path) -> Table:
        with cls._making:
            table = cls._tables.get(path)
            if table is None:
                table = cls._tables[path] = cls(path)
            return table

    def add(self, seat: Seat) -> None:
        with self._changing:
            self._seats.append(seat)

    def remove(self, seat: Seat) -> None:
        with self._changing:
            self._seats.remove(seat)
            if not self._seats:
                self._set_log_aside()
                self._inode = self._file = None  # the last one that closes removes the log
                self.close_held()

    def is_cut_off(self) -> bool:
        try:
            inode = os.stat(self._log).st_ino
        except FileNotFoundError:
            return self._inode is not None
        except OSError as error:  # nobody knows: whoever wants to read or write is told, until it is known again
            why = f"{self._log} cannot be used ({error.strerror}): look at the disk and the folder"
            raise StoreError(why) from error
        if self._inode is None:
            self._inode = inode
        return inode != self._inode

    def is_replaced(self) -> bool:
        """Is the file that is open no longer the one that has its name?"""
        return self._file is not None and self._found() != self._file

    def is_gone(self) -> bool:
        return self._file is not None and self._found() is None

    def _set_log_aside(self) -> None:
        """Another file has the name by now. SQLite leaves the log, and would apply it to that one."""
        if self.is_replaced() and not self.is_gone() and not self.is_cut_off():
            with suppress(OSError):
                os.replace(self._log, f"{self._log}.of-the-one-before")
                os.unlink(f"{self.path}-shm")

    def opened(self) -> None:
        if self._file is None:
            self._file = self._found()
        self._hold()

    def leaving(self, seat: Seat) -> None:
        """Before its connection closes. The last one is to remove the log."""
        with self._changing:
            seat.is_leaving = True
            if all(other.is_leaving for other in self._seats):
                self._let_go()

    def _hold(self) -> None:
        with self._holding, suppress(OSError):  # some file systems have no such locks: as on other machines, then
            for beside, bytes_ in _LOCKED.items() if _SET_LOCK else ():
                if beside not in self._held:
                    self._held[beside] = os.open(f"{self._name}{beside}", os.O_RDONLY)
                _set_lock(self._held[beside], fcntl.F_RDLCK, bytes_)

    def _let_go(self) -> None:
        with self._holding, suppress(OSError):
            for beside, file in self._held.items():
                _set_lock(file, fcntl.F_UNLCK, _LOCKED[beside])

    def close_held(self) -> None:
        with self._holding:
            for file in self._held.values():
                os.close(file)
            self._held.clear()

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._name)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def clear(self) -> None:
        """Close every connection. What was committed through them is in the file."""
        with self._changing:
            for seat in self._seats:
                seat.lock.acquire()
            try:
                if self.is_cut_off():  # nobody else was faster
                    log.warning("%s was removed while in use: is another copy of SQLite in this process?", self._log)
                    for seat in self._seats:
                        seat.close(checkpoint=False)
                    self._inode = None
                    self.close_held()
            finally:
                for seat in self._seats:
                    seat.lock.release()


class Seat:
    """One connection, used by one thread: ``with seat as connection``."""

    def __init__(self, table: Table, opening: Callable[[Path], apsw.Connection]) -> None:
        self._table, self._opening = table, opening
        self._connection: apsw.Connection | None = None
        self.lock = threading.Lock()  # held while the connection is in use
        self.is_leaving = False
        table.add(self)

    @contextmanager
    def taken(self) -> Iterator[apsw.Connection]:
        """The first use, which shows whether it can be opened. Raises what opening raises; the seat is free again."""
        try:
            with self as connection:
                yield connection
        except BaseException:  # whatever it was, and it travels on: a seat that nobody sits on must not stay
            self._table.remove(self)
            raise

    def __enter__(self) -> apsw.Connection:
        """Raises StoreError while the file is gone, or another one has its name."""
        if self._table.is_replaced():
            path = self._table.path
            raise StoreError(
                f"{path} was removed, or replaced, while it was in use, and nothing is written any more: stop, then "
                f"put it back beside its log ({path.name}-wal), or restore a backup"
            )
        if self._connection is not None and self._table.is_cut_off():
            self._table.clear()
        self.lock.acquire()
        try:
            if self._connection is None:
                self._connection = self._opening(self._table.path)
                self._table.opened()
            return self._connection
        except BaseException:  # it travels on: the lock must not stay behind
            self.lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()

    def leave(self) -> None:
        self._table.leaving(self)
        with self.lock:
            # Whoever puts the file back needs the log beside it.
            self.close(checkpoint=not self._table.is_gone())
        self._table.remove(self)

    def close(self, *, checkpoint: bool) -> None:
        """Under ``lock``. The last connection that closes copies the log into the file, unless told not to."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if not checkpoint:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            try:
                connection.close()
            except apsw.Error as error:  # it is closed, and what was committed stays in the log
                log.warning("the log of %s was not copied into it: %s", self._table.path, error)


def _set_lock(file: int, kind: int, bytes_: tuple[int, int]) -> None:
    fcntl.fcntl(file, _SET_LOCK, struct.pack("hhqqi", kind, os.SEEK_SET, *bytes_, 0))


_forking: list[Table] = []  # those that stand still meanwhile


def _stand_still() -> None:
    """Before a fork. Whoever uses a connection at this moment ends its transaction first."""
    Table._making.acquire()
    _forking.extend(Table._tables.values())
    for table in _forking:
        table._changing.acquire()
        for seat in table._seats:
            seat.lock.acquire()


def _go_on() -> None:
    for table in _forking:
        for seat in table._seats:
            seat.lock.release()
        table._changing.release()
    _forking.clear()
    Table._making.release()


def _begin_anew() -> None:
    """In the child. What was committed is in the log, which its parent copies into the file."""
    for table in _forking:
        for seat in table._seats:
            seat.close(checkpoint=False)
        table.close_held()
    Table._tables.clear()
    _go_on()


os.register_at_fork(before=_stand_still, after_in_parent=_go_on, after_in_child=_begin_anew)
