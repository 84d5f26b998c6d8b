"""``ondol usage``: what was spent?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ondol.bodies import usage_line_body
from ondol.cli.output import Column
from ondol.cli.surface import Cli, verb
from ondol.ids import DEFAULT_TENANT
from ondol.showing import counted
from ondol.spending import UsageBy, UsageLine, typed_date


def add_to(app: typer.Typer) -> None:
    verb(app, "usage")(usage)


async def usage(
    cli: Cli,
    by: Annotated[UsageBy, typer.Option("--by", help="Of what each line is.")] = "model",
    since: Annotated[
        str | None, typer.Option("--since", metavar="T", help="Runs accepted from then on: 2026-11-30, or a time.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="T", help="Runs accepted before then.")] = None,
    prices: Annotated[
        str | None, typer.Option("--prices", metavar="FILE", help="What tokens cost. [env: ONDOL_PRICES]")
    ] = None,
    time_zone: Annotated[str | None, typer.Option("--time-zone", metavar="Z", help="Whose days: Asia/Seoul.")] = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="T", help="Whose runs.")] = DEFAULT_TENANT,
) -> None:
    """What model calls took and cost. What nobody counted, or priced, is never shown as zero."""
    first, end = typed_date("--since", since), typed_date("--until", until)
    found = await cli.found(
        lambda rt: rt.usage(by=by, since=first, until=end, prices=prices, time_zone=time_zone, tenant=tenant)
    )
    empty = f"no run in {cli.place} was accepted then: '{cli.command('runs')}' lists them"
    columns: list[Column[UsageLine]] = [
        Column(by.upper(), lambda line: line.key),
        Column("RUNS", lambda line: line.runs),
        Column("CALLS", lambda line: line.tokens.calls or None),
        Column("INPUT", lambda line: line.tokens.input),
        Column("CACHED", lambda line: line.tokens.cache_read),
        Column("OUTPUT", lambda line: line.tokens.output),
        Column("NOT COUNTED", _uncounted),
        Column("COST", _cost),
    ]
    cli.out.listing(found, columns, id=lambda line: line.key or "", body=lambda line: _body(line, by), empty=empty)


def _uncounted(line: UsageLine) -> str:
    unknown = line.tokens.unknown
    return counted(unknown, "call") if unknown else ""


def _cost(line: UsageLine) -> str:
    if line.cost is None:
        return "unpriced"
    cost = f"{line.cost:.4f} {line.currency}".rstrip()
    return f"{cost} + unpriced" if line.unpriced else cost


def _body(line: UsageLine, by: str) -> dict[str, Any]:
    body = dict(usage_line_body(line))
    return {by: body.pop("key"), **body}
