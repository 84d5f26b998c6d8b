"""``ondol memory``: what agents remember of people."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ondol.bodies import fact_body
from ondol.cli.output import Column, when
from ondol.cli.surface import By, Cli, Id, Limit, noun, verb
from ondol.errors import InvalidInput
from ondol.facts import Fact, MemoryScope
from ondol.ids import DEFAULT_TENANT
from ondol.runtime import Runtime
from ondol.showing import counted

app = noun("What agents remember of people. It is always one agent's memory of one user.")

Agent = Annotated[str | None, typer.Option("--agent", metavar="A", help="Whose memory.")]
User = Annotated[str | None, typer.Option("--user", metavar="U", help="Of whom.")]
Tenant = Annotated[str, typer.Option("--tenant", metavar="T", help="Whose agents.")]

_COLUMNS: list[Column[Fact]] = [
    Column("ID", lambda f: f.id),
    Column("FACT", lambda f: f.text),
    Column("FROM", lambda f: f.author or f.run),
    Column("OUTSIDE", lambda f: "yes" if f.untrusted else ""),
    Column("SINCE", lambda f: when(f.created_at, None)),
    Column("UNTIL", lambda f: when(f.expires_at, None)),
]
_SCOPES: list[Column[MemoryScope]] = [
    Column("AGENT", lambda s: s.agent),
    Column("USER", lambda s: s.user),
    Column("FACTS", lambda s: s.facts),
]


@verb(app, "ls")
async def ls(
    cli: Cli,
    agent: Agent = None,
    user: User = None,
    limit: Limit = 100,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """List what an agent remembers of a user, the newest first; without both, whose memory there is."""
    if agent is None and user is None:
        scopes = await cli.found(lambda rt: rt.memory.scopes(limit=limit, tenant=tenant))
        empty = f"no agent remembers anything in {cli.place}: one with memory=Memory() does"
        cli.out.listing(scopes, _SCOPES, id=lambda s: s.user, body=lambda s: s._asdict(), empty=empty)
        return
    whose, whom = _scope(agent, user)
    found = await cli.found(lambda rt: rt.memory.ls(agent=whose, user=whom, limit=limit, tenant=tenant))
    empty = f"{whose} remembers nothing of {whom} in {cli.place}: '{cli.command('memory')}' lists whose memory there is"
    cli.out.listing(found, _COLUMNS, id=lambda f: f.id, body=fact_body, empty=empty)


@verb(app, "search")
async def search(
    cli: Cli,
    query: Annotated[str, typer.Argument(metavar="TEXT")],
    agent: Agent = None,
    user: User = None,
    limit: Limit = 10,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Search what an agent remembers of a user, the best hit first."""
    whose, whom = _scope(agent, user)
    found = await cli.found(lambda rt: rt.memory.search(query, agent=whose, user=whom, limit=limit, tenant=tenant))
    listed = cli.command("memory", "ls", "--agent", whose, "--user", whom)
    columns = [*_COLUMNS[:2], Column[Fact]("SCORE", lambda f: f.score), *_COLUMNS[2:]]
    cli.out.listing(found, columns, id=lambda f: f.id, body=fact_body, empty=f"nothing fits: '{listed}' lists all")


@verb(app, "edit")
async def edit(
    cli: Cli,
    id: Id,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    agent: Agent = None,
    user: User = None,
    by: By = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Put your words in place of a fact."""
    whose, whom = _scope(agent, user)

    async def change(rt: Runtime, one: str) -> tuple[str, Any]:
        fact = await rt.memory.edit(one, text, agent=whose, user=whom, by=by, tenant=tenant)
        if cli.out.for_people:
            cli.out.line(f"fact {one} is changed")
        return one, fact_body(fact)

    await cli.for_each([id], change, acts=True)


@verb(app, "rm")
async def rm(
    cli: Cli,
    id: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="'-' reads ids from standard input.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="All that the agent remembers of the user.")] = False,
    agent: Agent = None,
    user: User = None,
    by: By = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Erase facts, or with --all a whole memory."""
    whose, whom = _scope(agent, user)
    if all == bool(id):
        raise InvalidInput("say which facts to erase: their ids, or --all")

    async def erase(rt: Runtime, one: str) -> tuple[str, Any]:
        await rt.memory.rm(one, agent=whose, user=whom, by=by, tenant=tenant)
        if cli.out.for_people:
            cli.out.line(f"fact {one} is erased")
        return one, {"id": one, "removed": True}

    if id:
        await cli.for_each(id, erase, acts=True)
        return
    async with cli.runtime(acts=True) as rt:
        erased = await rt.memory.erase(agent=whose, user=whom, by=by, tenant=tenant)
    if cli.out.for_people:
        cli.out.line(
            f"{counted(erased, 'fact')} {'is' if erased == 1 else 'are'} erased: {whose} remembers nothing of {whom}"
        )
    else:
        cli.out.bodies([(whom, {"agent": whose, "user": whom, "removed": erased})], one=True)


def _scope(agent: str | None, user: str | None) -> tuple[str, str]:
    if not agent or not user:
        raise InvalidInput(
            "a memory belongs to an agent and a user: say --agent A --user U ('ondol memory' lists them)"
        )
    return agent, user
