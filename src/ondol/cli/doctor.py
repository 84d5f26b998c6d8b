"""``ondol doctor``: is everything as it should be, and if not, what mends it?"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import typer

from ondol.cli import codes
from ondol.cli.output import Column
from ondol.cli.surface import Cli, verb
from ondol.errors import OndolError
from ondol.runtime import Runtime

_SAFE_SQLITE = (3, 51, 3)  # from here on its WAL cannot be corrupted by a checkpoint at the wrong moment
_LITTLE_SPACE = 200_000_000  # bytes; below it a long run may fill the disk
_COUNTED = 1000  # runs of a state that are counted
_MODEL_KEYS = (("OPENAI_API_KEY",), ("ANTHROPIC_API_KEY",), ("GOOGLE_API_KEY", "GEMINI_API_KEY"))


State: TypeAlias = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``state``: ``ok``, ``note`` (normal, but worth knowing) or ``wrong``."""

    check: str
    state: State
    found: str
    fix: str = ""


_COLUMNS: list[Column[Finding]] = [
    Column("CHECK", lambda f: f.check),
    Column("STATE", lambda f: f.state),
    Column("FOUND", lambda f: f.found),
    Column("FIX", lambda f: f.fix),
]


def add_to(app: typer.Typer) -> None:
    verb(app, "doctor")(doctor)


async def doctor(cli: Cli) -> int:
    """What is wrong here, and what mends it. Exit 1 if something is."""
    findings = [*_machine(), *_keys()]
    if cli.path.exists():
        of_file = list(_file(cli))
        findings += of_file
        if not any(f.check == "schema" and f.state == "wrong" for f in of_file):
            findings += [f async for f in _work(cli)]
    else:
        start = cli.command("run", "APP:AGENT", "TEXT")
        findings.append(Finding("store", "note", f"there is no {cli.path} yet", start))
    cli.out.listing(findings, _COLUMNS, id=lambda f: f.check, body=asdict, empty="")
    return codes.FAILED if any(f.state == "wrong" for f in findings) else codes.OK


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


def _file(cli: Cli) -> Iterator[Finding]:
    import apsw

    from ondol.stores.migrations import migrations

    path, known = cli.path, len(migrations())
    free = shutil.disk_usage(path.absolute().parent).free
    shown = f"{free / 1e9:.1f} GB free"
    little = "free some space: without it nothing new is accepted, and nothing is lost"
    yield Finding("disk", "ok", shown) if free >= _LITTLE_SPACE else Finding("disk", "wrong", shown, little)
    backup = cli.command("db", "restore", "BACKUP")
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            connection.set_busy_timeout(10_000)
            version = int(connection.execute("PRAGMA user_version").get)
            mode = str(connection.execute("PRAGMA journal_mode").get)
            sound = str(connection.execute("PRAGMA quick_check(1)").get)
    except apsw.Error as error:
        yield Finding("schema", "wrong", f"{path} cannot be read: {error}", backup)
        return
    match version:
        case 0:
            yield Finding("schema", "wrong", f"{path} holds no store of Ondol", "name another file with --db")
            return
        case _ if version > known:
            yield Finding("schema", "wrong", f"{version}, this version knows {known}", "upgrade Ondol")
        case _ if version < known:
            yield Finding("schema", "wrong", f"{version}, this version writes {known}", cli.command("db", "migrate"))
        case _:
            yield Finding("schema", "ok", f"{path}, version {version}")
    if mode == "wal":
        yield Finding("journal mode", "ok", mode)
    else:
        yield Finding("journal mode", "wrong", mode, "some other program changed it: open the store with Ondol once")
    if sound == "ok":
        yield Finding("pages", "ok", f"sound ('{cli.command('db', 'check')}' reads all of it)")
    else:
        yield Finding("pages", "wrong", sound, backup)


async def _work(cli: Cli) -> AsyncIterator[Finding]:
    """What waits for whom."""
    from ondol.stores.sqlite import driver_of

    driver = driver_of(cli.path)
    yield Finding("driver", "ok", f"process {driver}") if driver else Finding("driver", "note", "no process drives it")
    try:
        async with cli.runtime() as rt:
            async for finding in _runs(cli, rt, driver is not None):
                yield finding
    except OndolError as error:
        yield Finding("store", "wrong", str(error), cli.command("db", "check"))


async def _runs(cli: Cli, rt: Runtime, driven: bool) -> AsyncIterator[Finding]:
    from ondol.cli.bystander import unserved

    counts = {s: len(await rt.runs(state=s, limit=_COUNTED)) for s in ("running", "queued", "waiting", "parked")}
    if counts["running"] and not driven:
        fix = "start their program again, or: " + cli.command("runs", "resume", "ID", "--app", "APP:AGENT")
        yield Finding("running", "wrong", f"{_runs_are(counts['running'])} held by a process that is gone", fix)
    else:
        yield Finding("running", "ok", _count(counts["running"]))
    reasons: dict[str, int] = {}
    for run in await rt.runs(state="queued", limit=_COUNTED):
        if (why := await unserved(rt, run)) is not None:
            reasons[why] = reasons.get(why, 0) + 1
    for why, number in reasons.items():
        fix = "start its program, or: " + cli.command("runs", "resume", "ID", "--app", "APP:AGENT")
        yield Finding("queued", "wrong", f"{_runs_are(number)} queued: {why.partition(':')[0]}", fix)
    if not reasons:
        yield Finding("queued", "ok", _count(counts["queued"]))
    open_asks = len(await rt.asks(limit=_COUNTED))
    yield _found("waiting", "note", counts["waiting"], f", {open_asks} open asks", cli.command("asks"))
    yield _found("parked", "wrong", counts["parked"], "", cli.command("runs", "ls", "--state", "parked"))
    unknown = len(await rt.effects(state="unknown", limit=_COUNTED))
    settle = cli.command("effects", "ls", "--state", "unknown")
    yield Finding("unknown effects", "wrong" if unknown else "ok", str(unknown), settle if unknown else "")


def _found(check: str, state: State, number: int, more: str, fix: str) -> Finding:
    return Finding(check, state, _count(number) + more, fix) if number else Finding(check, "ok", _count(0) + more)


def _runs_are(number: int) -> str:
    return "1 run is" if number == 1 else f"{number} runs are"


def _count(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"
