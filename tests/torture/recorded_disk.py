"""What did the disk get, in which order, and what may be left of it when the power goes?

``recording`` takes down every write, truncation, flush, renaming and removal in a folder: those of SQLite by a VFS,
those of blobs by wrapping the functions of ``os`` with which they are made. ``Recording.image`` is what a disk may hold
that lost its power after one of them. What was flushed is there. What was not is there, or not, or half of it (in
sectors of 512 bytes), in any order. SQLite flushes the folder with the first flush of a log that it made: its name is
there then, and what was removed before is gone. A renaming is there with the flush of its folder.
"""

from __future__ import annotations

import os
import random
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import apsw

SECTOR = 512  # bytes, written whole or not at all
Loss = Literal["kept", "dropped", "reordered", "torn"]
LOSSES: tuple[Loss, ...] = ("kept", "dropped", "reordered", "torn")


class Write(NamedTuple):
    """Bytes at an offset; None cuts the file there."""

    file: str
    offset: int
    data: bytes | None


class Sync(NamedTuple):
    """A flush: of a file that SQLite writes, or of the names in a folder."""

    file: str


class Delete(NamedTuple):
    file: str
    synced: bool


class Blob(NamedTuple):
    """A whole file that was flushed."""

    file: str
    data: bytes


class Name(NamedTuple):
    """A change in a folder: ``new`` is made, or what was ``old`` is called so, or there is no ``old`` any more."""

    old: str | None
    new: str | None


Event = Write | Sync | Delete | Blob | Name | Any  # and whatever a test notes in between


@dataclass
class Recording:
    """What happened, in order. ``note`` adds what somebody outside of the disk saw at that time."""

    events: list[Event] = field(default_factory=list)

    def note(self, seen: Any) -> None:
        self.events.append(seen)

    def image(self, until: int, loss: Loss, chosen: random.Random) -> dict[str, bytes]:
        """The files after the first ``until`` events. ``loss`` says what became of what was not flushed by then."""
        disk = _Disk()
        for event in self.events[:until]:
            disk.apply(event)
        return disk.image(loss, chosen)


class _Disk:
    """What is there for certain, and what is under way."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.waiting: dict[str, list[Write | Delete]] = {}
        self.flushed: dict[str, bytes] = {}  # of blobs, under whatever name
        self.folders = {"."}
        self.blobs: dict[str, bytes] = {}
        self.names: dict[str, list[Name]] = {}  # by folder

    def apply(self, event: Event) -> None:
        match event:
            case Write(file):
                self.waiting.setdefault(file, []).append(event)
            case Delete(file, synced):
                self.waiting.setdefault(file, []).append(event)
                if synced:
                    self._flush(file)
            case Sync(file) if file in self.waiting or file in self.files:
                if file not in self.files:
                    self._flush_removals()
                    self.files[file] = bytearray()
                self._flush(file)
            case Sync(folder):
                for name in self.names.pop(folder, []):
                    self._rename(name)
            case Blob(file, data):
                self.flushed[file] = data
            case Name(old, new):
                self.names.setdefault(os.path.dirname(new or old or "") or ".", []).append(event)

    def _flush_removals(self) -> None:
        """The name of a new file is flushed with it, by a flush of the folder: so is what was removed before."""
        for file, waiting in self.waiting.items():
            removed = max((n for n, w in enumerate(waiting, 1) if isinstance(w, Delete)), default=0)
            for write in waiting[:removed]:
                _write(self.files, write)
            self.waiting[file] = waiting[removed:]

    def _flush(self, file: str) -> None:
        for waiting in self.waiting.pop(file, []):
            _write(self.files, waiting)

    def _rename(self, name: Name) -> None:
        if name.old is None:
            self.folders.add(name.new or "")
            return
        data = self.blobs.pop(name.old, None)
        if name.new is not None:
            self.blobs[name.new] = self.flushed.get(name.old, data if data is not None else b"never flushed")
            self.flushed[name.new] = self.blobs[name.new]

    def image(self, loss: Loss, chosen: random.Random) -> dict[str, bytes]:
        left = list(self.waiting.values())
        chosen.shuffle(left)  # files do not wait for each other
        for writes in left:
            for write in _survivors(writes, loss, chosen):
                _write(self.files, write)
        for names in self.names.values():
            for name in names if loss == "kept" else [n for n in names if loss != "dropped" and chosen.random() < 0.5]:
                self._rename(name)
        blobs = {name: data for name, data in self.blobs.items() if self._leads_to(name)}
        return {name: bytes(data) for name, data in self.files.items()} | blobs

    def _leads_to(self, name: str) -> bool:
        return all(str(folder) in self.folders for folder in Path(name).parents)


def _survivors(writes: list[Write | Delete], loss: Loss, chosen: random.Random) -> list[Write | Delete]:
    """What the disk had done of it by then."""
    match loss:
        case "kept":
            return writes
        case "dropped":  # from some point on, most often all
            return writes[: chosen.choice((0, 0, chosen.randrange(len(writes) + 1)))]
        case "reordered":
            some = [w for w in writes if chosen.random() < 0.5]
            chosen.shuffle(some)
            return some
        case "torn":
            some = [w for w in writes if chosen.random() < 0.8]
            torn = chosen.randrange(len(some)) if some else 0
            return [piece for n, w in enumerate(some) for piece in ([w] if n != torn else _torn(w, chosen))]


def _torn(write: Write | Delete, chosen: random.Random) -> list[Write | Delete]:
    if isinstance(write, Delete) or write.data is None:
        return []
    pieces, at, end = [], write.offset, write.offset + len(write.data)
    while at < end:
        upto = min(end, (at // SECTOR + 1) * SECTOR)
        pieces.append(Write(write.file, at, write.data[at - write.offset : upto - write.offset]))
        at = upto
    if chosen.random() < 0.5:
        return list(pieces[: chosen.randrange(len(pieces) + 1)])
    return [piece for piece in pieces if chosen.random() < 0.5]


def _write(files: dict[str, bytearray], write: Write | Delete) -> None:
    if isinstance(write, Delete):
        files.pop(write.file, None)
        return
    content = files.setdefault(write.file, bytearray())
    if write.data is None:
        del content[write.offset :]
        return
    if len(content) < write.offset:
        content.extend(bytes(write.offset - len(content)))
    content[write.offset : write.offset + len(write.data)] = write.data


# --- taking it down ---------------------------------------------------------------------------------------------


@contextmanager
def recording(folder: Path) -> Iterator[Recording]:
    """All that happens to the files of SQLite and the blobs below this folder, in the block, in any thread."""
    made = Recording()
    vfs = _Vfs(folder, made)
    try:
        with ExitStack() as wrapped:
            for name, wrapper in (("fsync", _fsync), ("replace", _replace), ("unlink", _unlink), ("mkdir", _mkdir)):
                wrapped.enter_context(patch.object(os, name, wrapper(getattr(os, name), folder, made)))
            yield made
    finally:
        apsw.set_default_vfs("unix")
        vfs.unregister()


class _Vfs(apsw.VFS):
    def __init__(self, folder: Path, made: Recording) -> None:
        super().__init__(f"recorded-{threading.get_ident()}", "unix", makedefault=True)
        self.folder, self.made = folder, made

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _File:
        return _File(self, name, flags)

    def xDelete(self, name: str, sync_folder: bool) -> None:
        super().xDelete(name, sync_folder)
        self.made.note(Delete(Path(name).name, bool(sync_folder)))


class _File(apsw.VFSFile):
    def __init__(self, disk: _Vfs, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self.made, self.name = disk.made, Path(path).name if path else ""
        read_only = flags[0] & apsw.SQLITE_OPEN_READONLY  # see faulty_disk
        given = [flags[0] & ~apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_READWRITE, 0] if read_only else flags
        super().__init__("unix", name, given)
        flags[1] = flags[1] or flags[0]

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        if self.name:
            self.made.note(Write(self.name, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        if self.name:
            self.made.note(Write(self.name, size, None))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        if self.name:
            self.made.note(Sync(self.name))


Function = Callable[..., Any]


def _below(folder: Path, path: Any) -> str | None:
    path = Path(os.fsdecode(path))
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else None


def _fsync(real: Function, folder: Path, made: Recording) -> Function:
    def fsync(descriptor: int) -> None:
        real(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if (name := _below(folder, path)) is not None:
            whole = stat.S_ISREG(os.fstat(descriptor).st_mode)
            made.note(Blob(name, Path(path).read_bytes()) if whole else Sync(name))

    return fsync


def _replace(real: Function, folder: Path, made: Recording) -> Function:
    def replace(old: Any, new: Any) -> None:
        real(old, new)
        if _below(folder, new) is not None:
            made.note(Name(_below(folder, old), _below(folder, new)))

    return replace


def _unlink(real: Function, folder: Path, made: Recording) -> Function:
    def unlink(path: Any, **options: Any) -> None:
        real(path, **options)
        if (name := _below(folder, path)) is not None:
            made.note(Name(name, None))

    return unlink


def _mkdir(real: Function, folder: Path, made: Recording) -> Function:
    def mkdir(path: Any, *mode: Any, **options: Any) -> None:
        real(path, *mode, **options)
        if (name := _below(folder, path)) is not None:
            made.note(Name(None, name))

    return mkdir
