"""What stands in a file that somebody named?"""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path

_WRITER = 5.0  # seconds in which somebody has to begin writing into a named pipe
_PIECE = 65_536  # bytes


def read(path: Path, at_most: int | None = None) -> bytes:
    """No more than it takes to see that it is more than ``at_most`` bytes: a pipe has no size, and a file may grow.

    Raises:
        OSError: also for a device, which may have no end (/dev/zero), and for a pipe into which nobody writes: it would
            be waited for, for ever.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer cannot even be opened otherwise
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISFIFO(mode):
            return _read_pipe(file, at_most)
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "it is a device, and no file")
        os.set_blocking(file, True)
        with open(file, "rb", closefd=False) as opened:
            return opened.read() if at_most is None else opened.read(at_most + 1)
    finally:
        os.close(file)


def _read_pipe(file: int, at_most: int | None) -> bytes:
    """Whoever has begun to write may take all the time of the world."""
    poll, data, waited = select.poll(), bytearray(), False
    poll.register(file, select.POLLIN)
    while at_most is None or len(data) <= at_most:
        try:
            piece = os.read(file, _PIECE)
        except BlockingIOError:  # somebody has it open, and says nothing now
            poll.poll()
            continue
        data += piece
        if piece:
            continue
        if data:
            break
        if waited:
            raise OSError(errno.EINVAL, "it is a pipe, and nobody writes into it")
        poll.poll(_WRITER * 1000)
        waited = True
    return bytes(data)
