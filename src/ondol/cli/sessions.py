"""``ondol sessions``: conversations, what was said in them, and how one is erased."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ondol import values
from ondol.bodies import compaction_body, message_body, pin_body, session_body
from ondol.cli.bystander import bystander
from ondol.cli.context import print_message
from ondol.cli.loading import load
from ondol.cli.output import Column, compact, when
from ondol.cli.surface import After, By, Cli, Ids, Limit, SessionId, noun, verb
from ondol.compacting import Compaction
from ondol.handles import Pin, Run, Session, SessionMessage
from ondol.runtime import Runtime
from ondol.showing import counted, safe

app = noun("Conversations and what was said in them.")

AtRevision = Annotated[int | None, typer.Option("--revision", metavar="N", help="Only if it is at this revision.")]

_COLUMNS: list[Column[Session]] = [
    Column("ID", lambda s: s.id),
    Column("REVISION", lambda s: s.revision),
    Column("TITLE", lambda s: s.title or ""),
    Column("CHANGED", lambda s: when(s.updated_at, None)),
]


@verb(app, "ls")
async def ls(
    cli: Cli,
    after: After = None,
    limit: Limit = 100,
) -> None:
    """List sessions by id."""
    found = await cli.found(lambda rt: rt.sessions(after=after, limit=limit))
    command = cli.command("run", "APP:AGENT", "TEXT", "--session", "S")
    empty = f"no sessions in {cli.place}: '{command}' makes one"
    if after is not None:
        empty = f"no such sessions in {cli.place}: '{cli.command('sessions')}' lists all"
    cli.out.listing(found, _COLUMNS, id=lambda s: s.id, body=session_body, empty=empty)


@verb(app, "show")
async def show(cli: Cli, id: Ids) -> None:
    """Show sessions: revision, state, runs and messages."""

    async def show_one(rt: Runtime, one: str) -> tuple[str, Any]:
        session = await rt.get_session(one)
        runs, said = await session.runs(), await session.messages()
        if cli.out.for_people:
            _print(cli, session, runs, said)
        messages = [{"seq": m.seq, "run": m.run, **message_body(m.message)} for m in said]
        return session.id, session_body(session) | {"runs": [r.id for r in runs], "messages": messages}

    await cli.for_each(id, show_one)


def _print(cli: Cli, session: Session, runs: list[Run], said: list[SessionMessage]) -> None:
    cli.out.fields([
        ("session", session.id), ("revision", session.revision), ("title", session.title),
        ("goes on from", "a session that was erased" if session.orphaned else session.parent),
        ("state", compact(values.encode(session.state)) if session.state else None),
        ("changed", when(session.updated_at, None)),
    ])  # fmt: skip
    for run in runs:
        if run.status in ("queued", "running", "waiting", "parked"):
            cli.out.line(f"run {run.id} is {run.status}: {cli.command('runs', 'show', run.id)}")
    for m in said:
        print_message(cli, m.message, f"#{m.seq} ")


@verb(app, "pins")
async def pins(cli: Cli, id: SessionId) -> None:
    """List what is pinned in a session: every request to its models holds it, word for word."""
    async with cli.runtime() as rt:
        found = (await rt.get_session(id)).pins
    command = cli.command("sessions", "pin", id, "TEXT", "--by", "NAME")
    empty = f"nothing is pinned in session {id}: '{command}' does that"
    cli.out.listing(found, _PIN_COLUMNS, id=lambda p: p.id, body=pin_body, empty=empty)


_PIN_COLUMNS: list[Column[Pin]] = [
    Column("ID", lambda p: p.id),
    Column("TEXT", lambda p: p.text),
    Column("BY", lambda p: p.by),
    Column("SINCE", lambda p: when(p.at, None)),
]


def _say_pins(cli: Cli, session: Session) -> None:
    if cli.out.for_people:
        cli.out.line(
            f"session {session.id} has {counted(len(session.pins), 'pin')} and is at revision {session.revision}"
        )
    else:
        cli.out.bodies([(p.id, pin_body(p)) for p in session.pins])


@verb(app, "pin")
async def pin(
    cli: Cli,
    id: SessionId,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    by: By = None,
) -> None:
    """Pin a text in a session: what its models are told in every request, word for word."""
    async with cli.runtime() as rt:
        session = await rt.pin(id, text, by=by)
    _say_pins(cli, session)


@verb(app, "unpin")
async def unpin(
    cli: Cli,
    id: SessionId,
    pin: Annotated[str, typer.Argument(metavar="PIN", help="As 'sessions pins' names it.")],
    by: By = None,
) -> None:
    """Take a pin away."""
    async with cli.runtime() as rt:
        session = await rt.unpin(id, pin, by=by)
    _say_pins(cli, session)


@verb(app, "compact")
async def compact_one(
    cli: Cli,
    id: SessionId,
    preview: Annotated[bool, typer.Option("--preview", help="Say what would become of it; change nothing.")] = False,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=0, help="Turns that stay word for word.")] = 3,
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP:AGENT", help="Whose model writes the summary.")
    ] = None,
    model_free: Annotated[bool, typer.Option("--model-free", help="An excerpt; no model is asked.")] = False,
    revision: AtRevision = None,
    by: By = None,
) -> None:
    """Show models a summary in the place of a session's older turns. Its messages stay; a fork undoes it.

    With --app, or on a server, the agent's own model writes it, else it is an excerpt.
    """
    asked: dict[str, Any] = {"keep": keep, "preview": preview, "by": by, "expected_revision": revision}
    if app is None or model_free or cli.server is not None:
        agent = None if app is None else app.rpartition(":")[2]  # one of the server's
        async with cli.runtime() as rt:
            excerpt = model_free or cli.server is None
            done = await rt.compact_session(id, model_free=excerpt, agent=None if excerpt else agent, **asked)
    else:
        loaded = load(app)
        if loaded.own is not None:
            cli.works_on(loaded.own._store)
        async with loaded.runtime(bystander(cli.url)) as rt:
            done = await rt.compact_session(id, agent=loaded.agent, **asked)
    if not cli.out.for_people:
        cli.out.bodies([(id, compaction_body(done))], one=True)
        return
    if done.first is None:
        cli.out.line(f"session {id} has {counted(keep, 'turn')} or fewer to show: there is nothing to compact")
        return
    kept = f"{counted(done.kept, 'message')} as {'it is' if done.kept == 1 else 'they are'}"
    cli.out.fields([
        ("session", id), ("revision", done.revision), ("done", "no, this is a preview" if preview else "yes"),
        ("tokens", f"about {done.after} instead of {done.before}"), ("summarised", f"{done.first} to {done.last}"),
        ("summary", _whose_summary(done, preview)),
        ("kept", f"{kept}, {counted(done.pins, 'pin')}"),
        ("offered to", f"the memory of {', '.join(done.offered)}" if done.offered else None),
    ])  # fmt: skip
    cli.out.line()
    for line in done.summary.splitlines():
        cli.out.line(f"  {safe(line)}")


def _whose_summary(done: Compaction, preview: bool) -> str:
    if preview and done.by:
        return f"by the model {done.by}; until it is asked, an excerpt:"
    if done.refused:
        return f"an excerpt (the model's was refused: {done.refused})"
    return f"by the model {done.by}" if done.by else "an excerpt"


@verb(app, "rm")
async def rm(
    cli: Cli,
    id: Ids,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel its runs first, and let go of what is unknown.")
    ] = False,
    revision: AtRevision = None,
    by: By = None,
) -> None:
    """Erase what was said and done in sessions. Operation ids and revisions stay as tombstones."""

    async def erase(rt: Runtime, one: str) -> tuple[str, Any]:
        await rt.delete_session(one, expected_revision=revision, cancel=cancel, by=by)
        if cli.out.for_people:
            cli.out.line(f"session {one} is erased")
        return one, {"id": one, "removed": True}

    await cli.for_each(id, erase, acts=True)
