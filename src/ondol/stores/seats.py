"""Is the log that a connection writes still the one that everybody reads?

Another copy of SQLite in this process (the ``sqlite3`` of the standard library, say) that closes the file does not see
our locks, which belong to the process: it takes itself for the last one, copies the log into the file and removes it.
What is written from then on would go into a file without a name, and be lost with the process. So each use of a
connection looks first whether its log is still there; if not, all connections of this process to the file are closed
(SQLite shares the memory of the log between them), and opened again when they are needed.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import apsw

from ondol.secret import logger

log = logger("ondol.store")


class Table:
    """All connections of this process to one file."""

    _tables: ClassVar[weakref.WeakValueDictionary[Path, Table]] = weakref.WeakValueDictionary()
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path) -> None:
        self.path, self._log = path, f"{path}-wal"
        self._seats: list[Seat] = []
        self._changing = threading.Lock()
        self._inode: int | None = None  # of the log, once it was seen

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
                self._inode = None  # the last one that closes removes the log

    def is_cut_off(self) -> bool:
        try:
            inode = os.stat(self._log).st_ino
        except FileNotFoundError:
            return self._inode is not None
        if self._inode is None:
            self._inode = inode
        return inode != self._inode

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
        if self._connection is not None and self._table.is_cut_off():
            self._table.clear()
        self.lock.acquire()
        try:
            if self._connection is None:
                self._connection = self._opening(self._table.path)
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
            self.close(checkpoint=True)
        self._table.remove(self)

    def close(self, *, checkpoint: bool) -> None:
        """Under ``lock``. The last connection that closes copies the log into the file, unless told not to."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if not checkpoint:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()
