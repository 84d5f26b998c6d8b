"""A disk that fills up, whose flush fails, that cannot be read: under a real SQLite, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw


class FaultyDisk(apsw.VFS):
    """SQLite's own files, until a fault is set. Connections that are opened meanwhile use it.

    ``space``: bytes by which files may still grow (None: as much as there is). ``refuses``: the code of SQLite with
    which each write fails (None: none does). ``flush_fails``, ``reads_fail``: as they say. ``refused`` is called, in
    any thread, when a write was refused, ``unread`` when a read failed, ``busy`` when a lock was taken already.
    ``between`` is called once, when the first statement of a connection has ended.
    """

    def __init__(self) -> None:
        super().__init__("faulty-disk", "unix", makedefault=True)
        self.space: int | None = None
        self.refuses: int | None = None
        self.flush_fails = self.reads_fail = False
        self.refused: Callable[[], object] = lambda: None
        self.unread: Callable[[], object] = lambda: None
        self.busy: Callable[[], object] = lambda: None
        self.between: Callable[[], object] | None = None

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _File:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.disk = disk
        # Below, a read-only file is opened for writing too. SQLite tries a lock that such a file cannot have, as it is
        # closed, and does not mind; but here each error of a method comes out as an exception.
        given = [flags[0] & ~apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_READWRITE, 0]
        super().__init__("unix", name, given if flags[0] & apsw.SQLITE_OPEN_READONLY else flags)
        flags[1] = flags[1] or flags[0]

    def xWrite(self, data: bytes, offset: int) -> None:
        if (code := self.disk.refuses) is not None:
            self.disk.refused()
            raise apsw.exception_for(code)
        if self.disk.space is not None:
            growth = max(0, offset + len(data) - self.xFileSize())
            if growth > self.disk.space:
                self.disk.refused()
                raise apsw.exception_for(apsw.SQLITE_FULL)
            self.disk.space -= growth
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if self.disk.flush_fails:
            raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)
        super().xSync(flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        if self.disk.reads_fail:
            self.disk.unread()
            raise apsw.exception_for(apsw.SQLITE_IOERR_READ)
        return super().xRead(amount, offset)

    def xLock(self, level: int) -> None:
        try:
            super().xLock(level)
        except apsw.BusyError:
            self.disk.busy()
            raise

    def xUnlock(self, level: int) -> None:
        super().xUnlock(level)
        if (between := self.disk.between) is not None and level == apsw.SQLITE_LOCK_NONE:
            self.disk.between = None
            between()


@contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    try:
        yield disk
    finally:
        apsw.set_default_vfs("unix")
        disk.unregister()
