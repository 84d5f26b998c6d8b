"""``ondol sessions``: conversations, what was said in them, and how one is erased."""

from __future__ import annotations

from typing import Annotated

import typer

from ondol import values
from ondol.cli import codes
from ondol.cli.bodies import session_body
from ondol.cli.context import message_body, print_message
from ondol.cli.output import Column, compact, when
from ondol.cli.surface import By, Cli, Ids, Limit, noun, verb
from ondol.errors import OndolError
from ondol.handles import Session

app = noun("Conversations and what was said in them.")

_COLUMNS: list[Column[Session]] = [
    Column("ID", lambda s: s.id),
    Column("REVISION", lambda s: s.revision),
    Column("TITLE", lambda s: s.title or ""),
    Column("CHANGED", lambda s: when(s.updated_at, None)),
]


@verb(app, "ls")
async def ls(
    cli: Cli,
    after: Annotated[str | None, typer.Option("--after", metavar="ID", help="Only what follows this one.")] = None,
    limit: Limit = 100,
) -> None:
    """List sessions by id."""
    found: list[Session] = []
    try:
        async with cli.runtime() as rt:
            found = await rt.sessions(after=after, limit=limit)
    except codes.NoDatabase:
        pass
    command = cli.command("run", "APP:AGENT", "TEXT", "--session", "S")
    empty = f"no sessions in {cli.url}: '{command}' makes one"
    cli.out.listing(found, _COLUMNS, id=lambda s: s.id, body=session_body, empty=empty)


@verb(app, "show")
async def show(cli: Cli, id: Ids) -> None:
    """Show sessions: revision, state, runs and messages."""
    shown = []
    async with cli.runtime() as rt:
        for one in cli.each(id):
            try:
                session = await rt.get_session(one)
                runs, said = await session.runs(), await session.messages()
            except OndolError as error:
                cli.failed(error)
                continue
            messages = [{"seq": m.seq, "run": m.run, **message_body(m.message)} for m in said]
            shown.append((session.id, session_body(session) | {"runs": [r.id for r in runs], "messages": messages}))
            if cli.out.format != "table":
                continue
            cli.out.fields([
                ("session", session.id), ("revision", session.revision), ("title", session.title),
                ("state", compact(values.encode(session.state)) if session.state else None),
                ("changed", when(session.updated_at, None)),
            ])  # fmt: skip
            unfinished = [r for r in runs if r.status in ("queued", "running", "waiting", "parked")]
            for run in unfinished:
                cli.out.line(f"run {run.id} is {run.status}: {cli.command('runs', 'show', run.id)}")
            for m in said:
                print_message(cli, m.message, f"#{m.seq} ")
    if cli.out.format != "table":
        cli.out.bodies(shown, one=True)


@verb(app, "rm")
async def rm(
    cli: Cli,
    id: Ids,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel its runs first, and let go of what is unknown.")
    ] = False,
    revision: Annotated[
        int | None, typer.Option("--revision", metavar="N", help="Only if it is at this revision.")
    ] = None,
    by: By = None,
) -> None:
    """Erase what was said and done in sessions. Operation ids and revisions stay as tombstones."""
    removed: list[tuple[str, object]] = []
    async with cli.runtime(acts=True) as rt:
        for one in cli.each(id):
            try:
                await rt.delete_session(one, expected_revision=revision, cancel=cancel, by=by)
            except OndolError as error:
                cli.failed(error)
                continue
            removed.append((one, {"id": one, "removed": True}))
            if cli.out.format == "table":
                cli.out.line(f"session {one} is erased")
    if cli.out.format != "table":
        cli.out.bodies(removed, one=True)
