"""``ondol doctor``: is everything as it should be, and if not, what mends it?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import timedelta

import typer

from ondol import checkup
from ondol.checkup import Finding, State
from ondol.cli import codes
from ondol.cli.output import Column
from ondol.cli.surface import Cli, verb
from ondol.errors import OndolError
from ondol.runtime import Runtime
from ondol.showing import counted

_COUNTED = 1000  # runs of a state, and messages, that are counted
_TOLD_WITHIN = timedelta(minutes=1)  # of when it is due; what waits longer waits for nobody


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
    cli.needs_store()
    findings = checkup.findings(cli.path if cli.is_file else None, cli.command)
    if (not cli.is_file or cli.path.exists()) and not any(f.check == "schema" and f.state == "wrong" for f in findings):
        findings += [f async for f in _work(cli)]
    cli.out.listing(findings, _COLUMNS, id=lambda f: f.check, body=asdict, empty="")
    return codes.FAILED if any(f.state == "wrong" for f in findings) else codes.OK


async def _work(cli: Cli) -> AsyncIterator[Finding]:
    """What waits for whom."""
    try:
        async with cli.runtime() as rt:
            # As in "4711.a1b2c3": the number of a process, and what tells it from others of that number.
            drivers = ", ".join(sorted(owner.partition(".")[0] for owner in await rt._store.drivers()))
            if drivers:
                yield Finding("driver", "ok", f"process {drivers}")
            else:
                yield Finding("driver", "note", "no process drives it")
            async for finding in _runs(cli, rt, bool(drivers)):
                yield finding
            async for finding in _outbox(cli, rt, bool(drivers)):
                yield finding
    except codes.NoDatabase as missing:
        yield Finding("store", "note", str(missing).rpartition(": ")[0], cli.command("run", "APP:AGENT", "TEXT"))
    except OndolError as error:
        yield Finding("store", "wrong", str(error), cli.command("db", "check"))


async def _outbox(cli: Cli, rt: Runtime, driven: bool) -> AsyncIterator[Finding]:
    """What could not be told, and what nobody tells."""
    dead = len(await rt.outbox(state="dead", limit=_COUNTED))
    overdue = [m for m in await rt.outbox(state="pending", limit=_COUNTED) if m.due < rt.clock.now() - _TOLD_WITHIN]
    if dead:
        yield Finding("outbox", "wrong", f"{_messages(dead)} dead", cli.command("outbox", "ls", "--state", "dead"))
    if overdue and driven:
        fix = "give the process that drives a Runtime(deliver=...), or the agent its Memory(extract=...) again"
        yield Finding("outbox", "wrong", f"{_messages(len(overdue))} waiting, and nobody tells them", fix)
    elif overdue:
        yield Finding("outbox", "note", f"{_messages(len(overdue))} waiting for a process that drives")
    elif not dead:
        yield Finding("outbox", "ok", "nothing is left untold")


def _messages(number: int) -> str:
    return "1 message is" if number == 1 else f"{number} messages are"


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
    open_asks = await rt.asks(limit=_COUNTED)
    yield _found("waiting", "note", counts["waiting"], f", {len(open_asks)} open asks", cli.command("asks"))
    yield _found("parked", "wrong", counts["parked"], "", cli.command("runs", "ls", "--state", "parked"))
    unknown = sum(ask.kind == "unknown_effect" for ask in open_asks)  # what was given up waits for nobody
    settle = cli.command("asks")
    yield Finding("unknown effects", "wrong" if unknown else "ok", str(unknown), settle if unknown else "")


def _found(check: str, state: State, number: int, more: str, fix: str) -> Finding:
    return Finding(check, state, _count(number) + more, fix) if number else Finding(check, "ok", _count(0) + more)


def _runs_are(number: int) -> str:
    return "1 run is" if number == 1 else f"{number} runs are"


def _count(number: int) -> str:
    return counted(number, "run")
