"""Is everything as it should be on this machine and with this file, and if not, what mends it?"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

_SAFE_SQLITE = (3, 51, 3)  # from here on its WAL cannot be corrupted by a checkpoint at the wrong moment
_LITTLE_SPACE = 200_000_000  # bytes; below it a long run may fill the disk
_MODEL_KEYS = (("OPENAI_API_KEY",), ("ANTHROPIC_API_KEY",), ("GOOGLE_API_KEY", "GEMINI_API_KEY"))

State: TypeAlias = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``state``: ``ok``, ``note`` (normal, but worth knowing) or ``wrong``."""

    check: str
    state: State
    found: str
    fix: str = ""


def findings(path: Path | None, command: Callable[..., str]) -> list[Finding]:
    """What was found, in the order in which it was looked for. ``path`` is the file of the store, None where it is in
    none; ``command`` makes of words a command that works on it. Reading all of a large file takes seconds."""
    found = [*_machine(), *_keys()]
    if path is not None and path.exists():
        found += _file(path, command)
    elif path is not None:
        found.append(Finding("store", "note", f"there is no {path} yet", command("run", "APP:AGENT", "TEXT")))
    return found


def versions() -> list[tuple[str, str]]:
    """What this process is made of, by name."""
    import apsw

    return [("Python", ".".join(map(str, sys.version_info[:3]))), ("SQLite", apsw.sqlite_lib_version())]


def _machine() -> Iterator[Finding]:
    import apsw

    python = ".".join(map(str, sys.version_info[:3]))
    yield (
        Finding("python", "ok", python)
        if sys.version_info >= (3, 11)
        else Finding("python", "wrong", python, "install Python 3.11 or newer")
    )
    version = apsw.sqlite_lib_version()
    yield (
        Finding("sqlite", "ok", version)
        if tuple(map(int, version.split("."))) >= _SAFE_SQLITE
        else Finding("sqlite", "wrong", version, "pip install --upgrade apsw")
    )


def _keys() -> Iterator[Finding]:
    for names in _MODEL_KEYS:
        if found := [name for name in names if os.environ.get(name)]:
            yield Finding("model key", "ok", f"{found[0]} is set")
        else:
            needed = "needed for its models only; script:demo needs none"
            yield Finding("model key", "note", f"{names[0]} is not set", needed)
    if importlib.util.find_spec("pydantic_ai") is None:
        yield Finding("model library", "note", "not installed", "pip install 'ondol[models]', for models by name")
    else:
        yield Finding("model library", "ok", "installed")


def _file(path: Path, command: Callable[..., str]) -> Iterator[Finding]:
    import apsw

    from ondol.errors import StoreError
    from ondol.stores.migrations import migrations
    from ondol.stores.sqlite import refuse_to_begin_a_log, refuse_what_is_no_store

    known = len(migrations())
    free = shutil.disk_usage(path.absolute().parent).free
    shown = f"{free / 1e9:.1f} GB free"
    little = "free some space: without it nothing new is accepted, and nothing is lost"
    yield Finding("disk", "ok", shown) if free >= _LITTLE_SPACE else Finding("disk", "wrong", shown, little)
    backup = command("db", "restore", "BACKUP")
    try:
        refuse_what_is_no_store(path.absolute())
        refuse_to_begin_a_log(path)
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            connection.set_busy_timeout(10_000)
            version = int(connection.execute("PRAGMA user_version").get)
            mode = str(connection.execute("PRAGMA journal_mode").get)
            sound = str(connection.execute("PRAGMA quick_check(1)").get)
    except apsw.Error as error:
        damaged = isinstance(error, apsw.CorruptError | apsw.NotADBError)
        fix = backup if damaged else "look at the permissions of the file and its folder, or at the disk"
        yield Finding("schema", "wrong", f"{path} cannot be read: {error}", fix)
        return
    except StoreError as error:
        what, _, fix = str(error).partition(": ")
        yield Finding("schema", "wrong", what, fix)
        return
    match version:
        case 0:
            yield Finding("schema", "wrong", f"{path} holds no store of Ondol", "name another file with --db")
            return
        case _ if version > known:
            yield Finding("schema", "wrong", f"{version}, this version knows {known}", "upgrade Ondol")
        case _ if version < known:
            yield Finding("schema", "wrong", f"{version}, this version writes {known}", command("db", "migrate"))
        case _:
            yield Finding("schema", "ok", f"{path}, version {version}")
    if mode == "wal":
        yield Finding("journal mode", "ok", mode)
    else:
        yield Finding("journal mode", "wrong", mode, "some other program changed it: open the store with Ondol once")
    if sound == "ok":
        yield Finding("pages", "ok", f"sound ('{command('db', 'check')}' reads all of it)")
    else:
        yield Finding("pages", "wrong", sound, backup)
