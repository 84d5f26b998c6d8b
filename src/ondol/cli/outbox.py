"""``ondol outbox``: what is told when runs wait or end, and what could not be told."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ondol.bodies import outbox_body
from ondol.cli.output import Column, when
from ondol.cli.surface import By, Cli, Ids, Limit, noun, verb
from ondol.deliveries import OutboxMessage
from ondol.runtime import Runtime
from ondol.transactions import OutboxState

app = noun("What is told when runs wait or end, and what could not be told.")

State = Annotated[OutboxState | None, typer.Option("--state", help="Only these. 'dead' is what was given up.")]

_COLUMNS: list[Column[OutboxMessage]] = [
    Column("ID", lambda m: m.id),
    Column("KIND", lambda m: m.kind),
    Column("STATE", lambda m: m.state),
    Column("ATTEMPTS", lambda m: m.attempts),
    Column("AT", lambda m: when(m.at, None)),
    Column("NEXT", lambda m: when(m.due, None) if m.state == "pending" else ""),
    Column("ERROR", lambda m: m.error or ""),
]


@verb(app, "ls")
async def ls(cli: Cli, state: State = None, limit: Limit = 100) -> None:
    """List messages, the newest first."""
    found = await cli.found(lambda rt: rt.outbox(state=state, limit=limit))
    empty = f"nothing is to be told in {cli.place}: a runtime with deliver=, or Memory(extract=...), has messages"
    if state is not None:
        empty = f"no message in {cli.place} is {state}: '{cli.command('outbox')}' lists all"
    cli.out.listing(found, _COLUMNS, id=lambda m: m.id, body=outbox_body, empty=empty)


@verb(app, "retry")
async def retry(cli: Cli, id: Ids, by: By = None) -> None:
    """Tell messages once more, also those that are dead. The process that drives their agents does it."""

    async def again(rt: Runtime, one: str) -> tuple[str, Any]:
        message = await rt.deliver_again(one, by=by)
        if cli.out.for_people:
            cli.out.line(f"message {one} is told once more")
        return one, outbox_body(message)

    await cli.for_each(id, again, acts=True)
