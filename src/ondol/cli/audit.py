"""``ondol audit``: what did people do?"""

from __future__ import annotations

import typer

from ondol.bodies import act_body
from ondol.cli.output import Column, when
from ondol.cli.surface import Cli, Limit, verb
from ondol.handles import Act

_COLUMNS: list[Column[Act]] = [
    Column("AT", lambda a: when(a.at, None)),
    Column("BY", lambda a: a.by),
    Column("DOOR", lambda a: a.door),
    Column("ACT", lambda a: a.act),
    Column("SUBJECT", lambda a: a.subject),
    Column("NOTE", lambda a: a.note),
]


def add_to(app: typer.Typer) -> None:
    verb(app, "audit")(audit)


async def audit(cli: Cli, limit: Limit = 100) -> None:
    """What people did: who, when, through which door. The newest comes first."""
    found = await cli.found(lambda rt: rt.audit(limit=limit))
    empty = f"nobody decided or cancelled anything in {cli.place}: '{cli.command('asks')}' lists what waits for that"
    cli.out.listing(found, _COLUMNS, id=lambda a: a.subject, body=act_body, empty=empty)
