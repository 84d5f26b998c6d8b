"""``ondol asks``: what waits for a person, with its exact arguments, and how it is decided."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from ondol import schemas, values
from ondol.bodies import ask_body
from ondol.cli.lines import decided, deciding
from ondol.cli.output import Column, when
from ondol.cli.runs import say_who_drives
from ondol.cli.surface import IDS, After, By, Cli, Ids, Limit, OfSession, OfUser, noun, verb
from ondol.errors import InvalidInput, Malformed
from ondol.handles import Ask, AskState
from ondol.runtime import Runtime
from ondol.showing import called, exact

app = noun("What waits for a person.")

Reason = Annotated[str, typer.Option("--reason", metavar="WHY", help="Told to the model, and kept.")]

_AS_IN = """'{"amount": "30"}'"""

_COLUMNS: list[Column[Ask]] = [
    Column("ID", lambda a: a.id),
    Column("KIND", lambda a: a.kind),
    Column("STATE", lambda a: a.state if a.decision is None else f"{a.state}: {decided(a)}"),
    Column("WHAT", lambda a: called(a.tool, a.arguments) if a.tool else a.question),
    Column("RUN", lambda a: a.run),
    Column("OPENED", lambda a: when(a.opened_at, None)),
]


@verb(app, "ls")
async def ls(
    cli: Cli,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only of this run.")] = None,
    session: OfSession = None,
    user: OfUser = None,
    all: Annotated[bool, typer.Option("--all", help="The decided ones too.")] = False,
    state: Annotated[AskState | None, typer.Option("--state", help="Only those in this state.")] = None,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="The newest first.")] = False,
    after: After = None,
    limit: Limit = 100,
) -> None:
    """List what is open, the oldest first."""
    if all and state is not None:
        raise InvalidInput("say --all or --state: one of them")
    wanted = None if all else state or "open"
    found = await cli.found(
        lambda rt: rt.asks(
            run=run, session=session, user=user, state=wanted, after=after, newest_first=newest_first, limit=limit
        )
    )
    start = cli.command("run", "APP:AGENT", "TEXT")
    empty = f"nothing waits for a person in {cli.place}: '{start}' starts what may ask"
    if all or any(given is not None for given in (run, session, user, state, after)):
        empty = f"no such asks in {cli.place}: '{cli.command('asks')}' lists what is open"
    cli.out.listing(found, _COLUMNS, id=lambda a: a.id, body=ask_body, empty=empty)


@verb(app, "show")
async def show(cli: Cli, id: Ids) -> None:
    """Show asks in full, and the commands that decide them."""

    async def show_one(rt: Runtime, one: str) -> tuple[str, Any]:
        ask = await rt.get_ask(one)
        zone = (await rt.get_run(ask.run)).time_zone
        if cli.out.for_people:
            _print(cli, ask, zone)
        return ask.id, ask_body(ask)

    await cli.for_each(id, show_one)


def _print(cli: Cli, ask: Ask, zone: str | None) -> None:
    cli.out.fields([
        ("ask", ask.id), ("kind", ask.kind), ("state", ask.state), ("question", ask.question),
        ("call", called(ask.tool, ask.arguments) if ask.tool else None), ("hash", ask.arguments_hash or None),
        ("what would become of it", exact(ask.arguments) if ask.kind == "compaction" else None),
        ("effect", ask.effect), ("run", ask.run), ("session", ask.session), ("user", ask.user),
        ("answer with", schemas.described(ask.schema) if ask.schema is not None else None),
        ("by default", exact(ask.default) if ask.has_default else None),
        ("opened", when(ask.opened_at, zone)), ("expires", when(ask.expires_at, zone) if ask.expires_at else None),
        ("decision", decided(ask) if ask.decision else None), ("by", ask.decided_by), ("door", ask.door),
        ("decided", when(ask.decided_at, zone) if ask.decided_at else None),
    ])  # fmt: skip
    if ask.state == "open":
        cli.out.line()
        for command in deciding(cli, ask):
            cli.out.line(f"  {command}")


@verb(app, "approve")
async def approve(
    cli: Cli,
    id: Ids,
    by: By = None,
    arguments: Annotated[
        str | None, typer.Option("--arguments", metavar="JSON", help="Run it with these instead, given in full.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="WHY", help="Kept with the approval.")] = "",
) -> None:
    """Let a call run, with exactly the arguments that 'asks show' prints."""
    replaced = None if arguments is None else parse_object("--arguments", arguments)
    await _decide(cli, id, lambda ask: ask.approve(by=by, arguments=replaced, reason=reason))


@verb(app, "deny")
async def deny(cli: Cli, id: Ids, by: By = None, reason: Reason = "") -> None:
    """Refuse a call: the model is told so, and the run goes on."""
    await _decide(cli, id, lambda ask: ask.deny(by=by, reason=reason))


@verb(app, "answer")
async def answer(
    cli: Cli,
    *,
    id: Annotated[list[str] | None, typer.Argument(metavar="ID...", help=IDS)] = None,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="JSON, a text, or a word that 'asks show' lists.")],
    by: By = None,
    reason: Reason = "",
) -> None:
    """Answer a question with a value of its type, or say what becomes of a parked run."""

    if not id:  # the last word of the line is the value
        raise InvalidInput(f"the answer is missing: {cli.command('asks', 'answer', value, 'VALUE')}")

    async def say(ask: Ask) -> Ask:
        if ask.schema is None:
            chosen: Any = parse_object("VALUE", value) if value.lstrip().startswith("{") else value
            return await ask.answer(chosen, by=by, reason=reason)
        try:
            said = schemas.typed(value, ask.schema)
        except InvalidInput as error:
            raise InvalidInput(f"this does not answer ask {ask.id} ({ask.question!r}): {error}") from error
        return await ask.answer(said, by=by, reason=reason)

    await _decide(cli, id, say)


async def _decide(cli: Cli, ids: list[str], decide: Callable[[Ask], Awaitable[Ask]]) -> None:
    async def decide_one(rt: Runtime, one: str) -> tuple[str, Any]:
        ask = await decide(await rt.get_ask(one))
        run = await rt.get_run(ask.run)
        if cli.out.for_people:
            cli.out.line(f"{ask.id}: {decided(ask)} by {ask.decided_by}. Run {run.id} is {run.status}")
            await say_who_drives(cli, rt, run)
        return ask.id, ask_body(ask)

    await cli.for_each(ids, decide_one, acts=True)


def parse_json(option: str, given: str) -> Any:
    """What somebody typed as JSON, with the tags of stored values understood. Raises InvalidInput."""
    try:
        return values.decode(values.read_json(given))
    except (ValueError, RecursionError, Malformed) as error:
        raise InvalidInput(f"{option} is not JSON ({error}): quote it as in {_AS_IN}") from error


def parse_object(option: str, given: str) -> dict[str, Any]:
    parsed = parse_json(option, given)
    if not isinstance(parsed, dict):
        raise InvalidInput(f"{option} must be a JSON object, as in {_AS_IN}")
    return parsed
