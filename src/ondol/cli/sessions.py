"""``ondol sessions``: conversations, what was said in them, and how one is erased."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ondol import values
from ondol.bodies import message_body, session_body
from ondol.cli.context import print_message
from ondol.cli.output import Column, compact, when
from ondol.cli.surface import By, Cli, Ids, Limit, noun, verb
from ondol.handles import Run, Session, SessionMessage
from ondol.runtime import Runtime

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
    found = await cli.found(lambda rt: rt.sessions(after=after, limit=limit))
    command = cli.command("run", "APP:AGENT", "TEXT", "--session", "S")
    empty = f"no sessions in {cli.url}: '{command}' makes one"
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

    async def erase(rt: Runtime, one: str) -> tuple[str, Any]:
        await rt.delete_session(one, expected_revision=revision, cancel=cancel, by=by)
        if cli.out.for_people:
            cli.out.line(f"session {one} is erased")
        return one, {"id": one, "removed": True}

    await cli.for_each(id, erase, acts=True)
