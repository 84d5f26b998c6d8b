"""``ondol effects``: the ledger of tool calls, and the word that settles an unknown one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ondol import values
from ondol.bodies import effect_body
from ondol.cli.asks import parse_json
from ondol.cli.lines import deciding
from ondol.cli.output import Column, when
from ondol.cli.runs import say_who_drives
from ondol.cli.surface import After, By, Cli, Ids, Limit, OfSession, noun, verb
from ondol.effects import EffectState
from ondol.errors import InvalidInput, NotFound
from ondol.handles import Effect
from ondol.runtime import Runtime
from ondol.showing import called

app = noun("What tools did, and what may have happened.")

_COLUMNS: list[Column[Effect]] = [
    Column("ID", lambda e: e.id),
    Column("CALL", lambda e: called(e.tool, e.arguments)),
    Column("CLASS", lambda e: e.effect),
    Column("STATE", lambda e: e.state),
    Column("ATTEMPT", lambda e: e.attempt),
    Column("SESSION", lambda e: e.session),
]


@verb(app, "ls")
async def ls(
    cli: Cli,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only of this run.")] = None,
    session: OfSession = None,
    state: Annotated[EffectState | None, typer.Option("--state", help="Only those in this state.")] = None,
    after: After = None,
    limit: Limit = 100,
) -> None:
    """List effects, those of the newest runs first."""
    found = await cli.found(lambda rt: rt.effects(run=run, session=session, state=state, after=after, limit=limit))
    start = cli.command("run", "APP:AGENT", "TEXT")
    empty = f"no effects in {cli.place}: '{start}' starts a run, and its tools make them"
    if any(given is not None for given in (run, session, state, after)):
        empty = f"no such effects in {cli.place}: '{cli.command('effects')}' lists all"
    cli.out.listing(found, _COLUMNS, id=lambda e: e.id, body=effect_body, empty=empty)


@verb(app, "show")
async def show(
    cli: Cli,
    id: Ids,
    result: Annotated[
        bool, typer.Option("--result", help="Print what it returned, all of it, and nothing else.")
    ] = False,
) -> None:
    """Show effects in full; for an unknown one, how to settle it."""

    async def show_one(rt: Runtime, one: str) -> tuple[str, Any]:
        effect = await rt.get_effect(one)
        if result:
            returned = values.encode(await rt.effect_result(one))
            if cli.out.for_people:
                cli.out.stream(values.plain_text(returned) + "\n")
            return effect.id, returned
        zone = (await rt.get_run(effect.run)).time_zone
        if cli.out.for_people:
            await _print(cli, rt, effect, zone)
        return effect.id, effect_body(effect)

    await cli.for_each(id, show_one)


async def _print(cli: Cli, rt: Runtime, effect: Effect, zone: str | None) -> None:
    cli.out.fields([
        ("effect", effect.id), ("call", called(effect.tool, effect.arguments)), ("class", effect.effect),
        ("state", effect.state), ("attempt", effect.attempt), ("why", effect.reason), ("warning", effect.warning),
        ("result", _where_result_is(cli, effect)),
        ("permission", effect.decision), ("key", effect.key), ("step of", effect.parent), ("run", effect.run),
        ("session", effect.session),
        ("started", when(effect.started_at, zone) if effect.started_at else None),
        ("deadline", when(effect.deadline, zone) if effect.deadline else None),
        ("ended", when(effect.ended_at, zone) if effect.ended_at else None), ("came late", effect.evidence),
    ])  # fmt: skip
    if effect.state == "unknown":
        cli.out.line()
        for line in await _how_to_settle(cli, rt, effect):
            cli.out.line(f"  {line}")


async def _how_to_settle(cli: Cli, rt: Runtime, effect: Effect) -> list[str]:
    try:
        return deciding(cli, await rt.unknown_ask(effect.id))
    except NotFound:
        return ["it stays unknown: it was given up, or its session was deleted"]


def _where_result_is(cli: Cli, effect: Effect) -> str | None:
    if effect.state != "succeeded":
        return None
    kept = f"{effect.size} bytes, kept as blob {effect.blob}: " if effect.blob else ""
    if cli.server is not None:  # '--result' reads the store
        where = f"blobs/{effect.blob}" if effect.blob else "events" if effect.parent else "steps"
        return f"{kept}GET {cli.place.rstrip('/')}/v1/runs/{effect.run}/{where}"
    return kept + cli.command("effects", "show", effect.id, "--result")


@verb(app, "resolve")
async def resolve(
    cli: Cli,
    id: Ids,
    happened: Annotated[bool, typer.Option("--happened", help="It did happen.")] = False,
    not_happened: Annotated[bool, typer.Option("--not-happened", help="It did not: the next attempt runs.")] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="Nobody will find out: the run fails.")] = False,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help="With --happened: what the model is told.")
    ] = None,
    evidence: Annotated[str, typer.Option("--evidence", metavar="TEXT", help="How you know.")] = "",
    by: By = None,
) -> None:
    """Settle unknown effects, by the word of somebody who looked."""
    if happened + not_happened + give_up != 1:
        raise InvalidInput("say one of --happened, --not-happened and --give-up")
    if result is not None and not happened:
        raise InvalidInput("--result goes with --happened: it is what the model is told")
    if not evidence.strip():
        raise InvalidInput("say where you looked and what you saw: --evidence TEXT")
    said = None if result is None else parse_json("--result", result)

    async def settle(rt: Runtime, one: str) -> tuple[str, Any]:
        ask = await rt.settling_ask(one)
        if happened:
            await ask.happened(said, evidence, by=by)
        elif not_happened:
            await ask.not_happened(evidence, by=by)
        else:
            await ask.give_up(evidence, by=by)
        effect, run = await rt.get_effect(one), await rt.get_run(ask.run)
        if cli.out.for_people:
            cli.out.line(f"{effect.id} {effect.tool}: {effect.state}. Run {run.id} is {run.status}")
            await say_who_drives(cli, rt, run)
        return effect.id, effect_body(effect)

    await cli.for_each(id, settle, acts=True)
