"""Is the log that a connection writes still the one that everybody reads?

Another copy of SQLite in this process (the ``sqlite3`` of the standard library, say) that closes the file does not see
our locks, which belong to the process: it takes itself for the last one, copies the log into the file and removes it.
What is written from then on would go into a file without a name, and be lost with the process. So each use of a
connection looks first whether its log is still there; if not, all connections of this process to the file are closed
(SQLite shares the memory of the log between them), and opened again when they are needed.

The file itself may be removed, or another one put in its place, under a process that goes on. What is written then is
lost in the same way, so nothing is: whoever wants to read or write is told, until the file is back.

A child that is forked has the connections of its parent, but none of their locks: SQLite in it would take the file for
locked, and others would remove the log that it writes. So no connection is in use as a process forks, and the child
closes all of them. What it opens then is its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import apsw

from ondol.errors import StoreError
from ondol.secret import logger

log = logger("ondol.store")


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
            finally:
                for seat in self._seats:
                    seat.lock.release()


class Seat:
    """One connection, used by one thread: ``with seat as connection``."""

    def __init__(self, table: Table, opening: Callable[[Path], apsw.Connection]) -> None:
        self._table, self._opening = table, opening
        self._connection: apsw.Connection | None = None
        self.lock = threading.Lock()  # held while the connection is in use
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
            connection.close()


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
    Table._tables.clear()
    _go_on()


os.register_at_fork(before=_stand_still, after_in_parent=_go_on, after_in_child=_begin_anew)
