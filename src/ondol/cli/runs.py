"""``ondol runs``: what was asked, where it stands, and how to stop it or go on."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ondol import usage
from ondol.bodies import ask_body, effect_body, event_body, run_body, stamp
from ondol.cli import codes
from ondol.cli.bystander import unserved
from ondol.cli.follow import AtRest, Behind, NoDriver, follow, say_waiting, waiting_code
from ondol.cli.lines import decided, deciding, happened
from ondol.cli.output import Column, compact, say, when
from ondol.cli.run import AgentName, AppHere, Model, drive
from ondol.cli.surface import By, Cli, Id, Ids, Limit, OfSession, OfUser, imported_instead, noun, verb, why_not
from ondol.errors import CannotGoOn, CursorExpired, InvalidInput, NotFound, OndolError, RunWaiting
from ondol.events import Event
from ondol.handles import Ask, Effect, Lineage, Run
from ondol.imported import ImportedRun
from ondol.journal import RunStatus
from ondol.runtime import Runtime
from ondol.showing import called, ended_by

app = noun("What was asked, and where it stands.")


def _stands(run: Run) -> str:
    if run.status == "joined":
        return f"joined {run.host}"
    return "cancelling" if run.cancelling else run.status


_COLUMNS: list[Column[Run]] = [
    Column("ID", lambda r: r.id),
    Column("STATE", _stands),
    Column("AGENT", lambda r: r.agent),
    Column("SESSION", lambda r: r.session),
    Column("OPERATION", lambda r: r.operation_id),
    Column("ACCEPTED", lambda r: when(r.accepted_at, r.time_zone)),
]


@verb(app, "ls")
async def ls(
    cli: Cli,
    imported: Annotated[bool, typer.Option("--imported", help="Those of other stores that were imported.")] = False,
    session: OfSession = None,
    user: OfUser = None,
    state: Annotated[RunStatus | None, typer.Option("--state", help="Only those in this state.")] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="ID", help="Only runs before this one.")] = None,
    limit: Limit = 50,
) -> None:
    """List runs, the newest first."""
    if imported:
        copies = await cli.found(lambda rt: rt.imports(limit=limit))
        runs = [copy.run for copy in copies]
        none = f"no imported runs in {cli.place}: '{cli.command('runs', 'import', 'FILE')}' imports one"
        cli.out.listing(runs, _COLUMNS, id=lambda r: r.id, body=run_body, empty=none)
        return
    stands: str | None = None

    async def look(rt: Runtime) -> list[Run]:
        nonlocal stands
        found = await rt.runs(session=session, user=user, state=state, before=before, limit=limit)
        for run in found:
            stands = stands or await unserved(rt, run)
        return found

    found = await cli.found(look)
    empty = f"no runs in {cli.place}: '{cli.command('run', 'APP:AGENT', 'TEXT')}' makes one"
    if any(given is not None for given in (session, user, state, before)):
        empty = f"no such runs in {cli.place}: '{cli.command('runs')}' lists all"
    cli.out.listing(found, _COLUMNS, id=lambda r: r.id, body=run_body, empty=empty)
    if stands is not None and cli.out.for_people:
        say(f"something does not go on now: {stands}")


@verb(app, "show")
async def show(cli: Cli, id: Ids) -> None:
    """Show runs in full: effects, asks and all that happened."""

    async def show_one(rt: Runtime, one: str) -> tuple[str, Any]:
        try:
            run = await rt.get_run(one)
        except NotFound as missing:
            imported = await imported_instead(rt, one, missing)
            shown = Shown(imported.run, imported.effects(), imported.asks(), imported.events(), UNKNOWN)
            if cli.out.for_people:
                _print(cli, shown)
                cli.out.line()
                cli.out.line(f"imported, to be looked at only: as it was at {when(imported.exported_at, None)}")
            return one, shown.body() | {"imported": True, "exported_at": stamp(imported.exported_at)}
        effects, asks = await run.effects(), await run.asks(state=None)
        shown = Shown(run, effects, asks, await _so_far(run), await run.lineage())
        if cli.out.for_people:
            _print(cli, shown)
            for line in await _next(cli, rt, shown):
                cli.out.line()
                cli.out.line(line)
        return run.id, shown.body()

    await cli.for_each(id, show_one)


UNKNOWN = Lineage(origin=None, replays=[], forks=[])  # the file of a run does not say what became of it


@dataclass(frozen=True, slots=True)
class Shown:
    """A run in full."""

    run: Run
    effects: list[Effect]
    asks: list[Ask]
    events: list[Event]
    lineage: Lineage

    def body(self) -> dict[str, Any]:
        return run_body(self.run) | {
            "effects": [effect_body(e) for e in self.effects], "asks": [ask_body(a) for a in self.asks],
            "events": [event_body(e) for e in self.events],
            "replays": [r.id for r in self.lineage.replays], "forks": [r.id for r in self.lineage.forks],
        }  # fmt: skip


def _lost(shown: Shown) -> Iterator[Effect]:
    """Calls that were under way when the process that made them was gone."""
    under_way = set[str]()
    for event in shown.events:
        if event.type == "effect.started":
            under_way.discard(event.data["effect"])
        elif event.type == "run.queued":
            under_way |= {e.id for e in shown.effects if e.state == "started"}
    return (e for e in shown.effects if e.id in under_way)


async def _so_far(run: Run) -> list[Event]:
    """What is written down by now, without waiting for more; nothing where it was erased."""
    events: list[Event] = []
    with contextlib.suppress(CursorExpired):
        last = (await run.state())["seq"]
        async for event in run.events():
            events.append(event)
            if event.id is not None and int(event.id.rpartition("/")[2]) >= last:
                break
    return events


def _print(cli: Cli, shown: Shown) -> None:
    run, out = shown.run, cli.out
    zone = run.time_zone
    out.fields([
        ("run", run.id), ("state", _stands(run)), ("joins", run.host if run.status == "queued" else None),
        ("agent", run.agent),
        ("session", run.session), ("operation", run.operation_id), ("user", run.user), ("trigger", run.trigger),
        ("replay of", run.replay_of if run.forked_at is None else None),
        ("fork of", run.replay_of and f"{run.replay_of} at step {run.forked_at}" if run.forked_at else None),
        ("replayed by", ", ".join(r.id for r in shown.lineage.replays) or None),
        ("forked as", ", ".join(r.id for r in shown.lineage.forks) or None),
        ("zone", zone), ("accepted", when(run.accepted_at, zone)),
        ("ended", when(run.ended_at, zone) if run.ended_at else None),
        *((f"model {model}", usage.told(used)) for model, used in run.usage.items()),
        ("error", ended_by(run.error)),
    ])  # fmt: skip
    if shown.effects:
        out.line()
        out.title("effects")
        out.table(_with_steps(shown.effects), EFFECT_COLUMNS, indent=2)
    if shown.asks:
        out.line()
        out.title("asks")
        out.table(shown.asks, _ASK_COLUMNS, indent=2)
    out.line()
    if not shown.events:
        out.line("what was said and done in it was erased with its session")
        return
    out.title("events")
    timeline: list[Column[Event]] = [
        Column("SEQ", lambda e: (e.id or "").rpartition("/")[2]),
        Column("AT", lambda e: when(e.at, zone)),
        Column("EVENT", lambda e: e.type),
        Column("WHAT", happened),
    ]
    out.table(shown.events, timeline, indent=2)


def _with_steps(effects: Sequence[Effect]) -> Iterator[tuple[int, Effect]]:
    """The effects in call order, each followed by what it did as a tool of steps; and how deep each lies."""
    below: defaultdict[str | None, list[Effect]] = defaultdict(list)
    for effect in effects:
        below[effect.parent].append(effect)

    def of(parent: str | None, depth: int) -> Iterator[tuple[int, Effect]]:
        for effect in below[parent]:
            yield depth, effect
            yield from of(effect.id, depth + 1)

    return of(None, 0)


def _why(effect: Effect) -> str:
    if effect.reuses is not None:
        return f"as {effect.reuses}"
    return "" if effect.state == "succeeded" else effect.reason or ""


EFFECT_COLUMNS: list[Column[tuple[int, Effect]]] = [
    Column("ID", lambda row: row[1].id),
    Column("CALL", lambda row: "  " * row[0] + called(row[1].tool, row[1].arguments)),
    Column("CLASS", lambda row: row[1].effect),
    Column("STATE", lambda row: row[1].state),
    Column("ATTEMPT", lambda row: row[1].attempt),
    Column("WHY", lambda row: _why(row[1])),
]

_ASK_COLUMNS: list[Column[Ask]] = [
    Column("ID", lambda a: a.id),
    Column("KIND", lambda a: a.kind),
    Column("STATE", lambda a: a.state),
    Column("DECISION", decided),
    Column("BY", lambda a: a.decided_by or ""),
]


async def _next(cli: Cli, rt: Runtime, shown: Shown) -> list[str]:
    """What moves the run on, if that needs somebody or time."""
    run = shown.run
    lines = [f"to decide: {deciding(cli, ask)[0]}" for ask in shown.asks if ask.state == "open"]
    lines += [
        f"{lost.id} waits: its last attempt was lost, and may act until {when(lost.deadline, run.time_zone)}"
        for lost in _lost(shown)
        if lost.deadline is not None and lost.deadline > rt.clock.now()
    ]
    if run.status == "failed" and run.retryable:
        lines.append(f"to go on: {cli.command('runs', 'resume', run.id, '--app', 'APP:' + run.agent)}")
    if run.status == "queued" and (ahead := (await run.refresh()).waits_behind) is not None:
        lines.append(f"it waits behind run {ahead.run} ({ahead.state}): {cli.command('runs', 'show', ahead.run)}")
    if (why := await unserved(rt, run)) is not None:
        lines.append(f"it does not go on now: {why}")
    return lines


@verb(app, "watch")
async def watch(
    cli: Cli,
    id: Id,
    after: Annotated[str | None, typer.Option("--after", metavar="EVENT", help="Only what follows this event.")] = None,
) -> int:
    """Follow a run until it comes to rest. Watching never cancels it; the exit code says what it came to."""

    def print_event(event: Event) -> None:
        match cli.out.format:
            case "json" | "jsonl":
                cli.out.line(compact(event_body(event)))
            case "ids":
                cli.out.line(event.id or "-")
            case _:
                cli.out.line(f"{when(event.at, run.time_zone)}  {event.type:<18} {happened(event)}".rstrip())

    async with cli.runtime() as rt:
        try:
            run = await rt.get_run(id)
        except NotFound as missing:
            imported = await imported_instead(rt, id, missing)
            run = imported.run
            for event in imported.events(after):
                print_event(event)
            at = when(imported.exported_at, None)
            say(f"imported: run {id} was {run.status} at {at}, and is not followed further")
            return _code_of(imported)
        match await follow(rt, run, print_event, after):
            case NoDriver(why=why):
                say(f"run {run.id} is {(await run.refresh()).status}: {why}")
                return codes.OK
            case Behind(run=ahead):
                say(f"run {run.id} is queued behind run {ahead.id}, which waits for a person")
                return waiting_code(await rt.asks(run=ahead.id))
            case AtRest():
                pass
        try:
            await run.result()
        except RunWaiting as waiting:
            return (await say_waiting(cli, rt, waiting))[1]
        except OndolError as error:
            cli.failed(error)
    return codes.OK


def _code_of(imported: ImportedRun) -> int:
    match imported.run.status:
        case "waiting" | "parked":
            return waiting_code([a for a in imported.asks() if a.state == "open"])
        case "failed" | "cancelled" | "expired":
            return codes.FAILED
        case _:
            return codes.OK


@verb(app, "cancel")
async def cancel(
    cli: Cli,
    id: Ids,
    by: By = None,
    reason: Annotated[str, typer.Option("--reason", metavar="WHY", help="Kept with the run.")] = "",
) -> None:
    """Ask runs to stop. What has started is not undone; what may have happened stays listed as unknown."""

    async def cancel_one(rt: Runtime, one: str) -> tuple[str, Any]:
        run = await rt.cancel(one, by=by, reason=reason)
        if cli.out.for_people:
            await _say_cancelled(cli, rt, run)
        return run.id, run_body(run)

    await cli.for_each(id, cancel_one, acts=True)


async def _say_cancelled(cli: Cli, rt: Runtime, run: Run) -> None:
    if run.cancelling:
        cli.out.line(f"run {run.id} is cancelling: its process stops what is in flight")
    elif run.status == "cancelled":
        cli.out.line(f"run {run.id} is cancelled")
    elif run.status == "joined":
        cli.out.line(f"run {run.id} is part of run {run.host}: nothing was cancelled")
        say(f"  to stop both: {cli.command('runs', 'cancel', run.host or '')}")
    else:
        cli.out.line(f"run {run.id} is {run.status} already: nothing was cancelled")
    for effect in await rt.effects(run=run.id, state="unknown"):
        say(f"  {effect.id} {effect.tool} may have happened: {cli.command('effects', 'show', effect.id)}")


@verb(app, "resume")
async def resume(
    cli: Cli,
    id: Ids,
    app: AppHere = None,
    model: Model = None,
    agent: AgentName = None,
    by: By = None,
    reason: Annotated[str, typer.Option("--reason", metavar="WHY", help="Why a parked run may go on.")] = "",
) -> None:
    """Go on with runs. Those that are parked, those that failed for now, and with --app those whose process is gone."""
    for one in cli.each(id):
        try:
            cli.ends_with(await _resume(cli, one, app, model, agent, by, reason))
        except OndolError as error:
            cli.failed(error)


async def _resume(
    cli: Cli, id: str, app: str | None, model: str | None, agent: str | None, by: str | None, reason: str
) -> int:
    async with cli.runtime(acts=True) as rt:
        run = await own_run(rt, id)
        if run.status == "joined" and run.host is not None:  # they go on together
            run = await rt.get_run(run.host)
        match run.status:
            case "waiting":
                asks, code = await say_waiting(cli, rt, RunWaiting("", run=run.id, asks=()))
                if not cli.out.for_people:
                    cli.out.bodies([(run.id, run_body(run) | {"asks": [ask_body(a) for a in asks]})], one=True)
                return code
            case "parked" if app is None:
                run = await _unparked(run, by, reason)
            case "parked":
                pass  # not before it is known that it can go on here
            case "failed" if run.retryable:
                if app is None:
                    command = cli.command("runs", "resume", run.id, "--app", f"FILE.py:{run.agent}")
                    raise InvalidInput(f"run {run.id} can go on where its agent is: {command}")
            case "queued" | "running":
                pass
            case _:
                shown = cli.command("runs", "show", run.id)
                raise CannotGoOn(f"run {run.id} is {run.status} and will not go on: {shown}")
        if app is None:
            await say_begun(cli, rt, run)
            return codes.OK

    async def find(rt: Runtime, name: str) -> Run:
        found = await rt.get_run(run.id)
        check_agent(rt, run, app)
        if found.status == "parked":
            await _unparked(found, by, reason)
        return await rt.resume(id)

    return await drive(cli, app, find, model=model, agent=agent)


async def _unparked(run: Run, by: str | None, reason: str) -> Run:
    for ask in await run.asks():
        if ask.kind in ("parked", "definition_changed"):
            await ask.answer("resume", by=by, reason=reason)
    return await run.refresh()


async def own_run(rt: Runtime, id: str) -> Run:
    """A run that something can be done with. Raises NotFound, or ReadOnly for an imported one."""
    try:
        return await rt.get_run(id)
    except NotFound as missing:
        raise await why_not(rt, id, missing) from None


def check_agent(rt: Runtime, run: Run, app: str | None) -> None:
    """Raises InvalidInput where the app that is to go on with the run has not its agent."""
    if app is not None and isinstance(rt, Runtime) and run.agent not in rt.agents:  # (a server has its own)
        raise InvalidInput(f"run {run.id} is of agent {run.agent!r}, not in {app}: say --app FILE.py:{run.agent}")


async def say_begun(cli: Cli, rt: Runtime, run: Run) -> None:
    """Of a run that is left to the process that has its agent."""
    if cli.out.for_people:
        cli.out.line(f"run {run.id} is {run.status}")
        await say_who_drives(cli, rt, run)
    else:
        cli.out.bodies([(run.id, run_body(run))], one=True)


async def say_who_drives(cli: Cli, rt: Runtime, run: Run) -> None:
    """After somebody decided: what to run so that the run goes on, if no process is there to do it."""
    if await unserved(rt, run) is not None:
        say(f"no process serves the agent {run.agent!r} now. To go on, run its program again, or:")
        say(f"  {cli.command('runs', 'resume', run.id, '--app', 'FILE.py:' + run.agent)}")
