"""``ondol tokens``: who may come in over HTTP."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, cast

import typer

from ondol import access
from ondol.access import Scope, Token
from ondol.bodies import stamp
from ondol.cli.output import Column, say, when
from ondol.cli.surface import By, Cli, Ids, noun, verb
from ondol.errors import InvalidInput
from ondol.ids import DEFAULT_TENANT
from ondol.runtime import Runtime

app = noun("Tokens for those who come in over HTTP.")

Tenant = Annotated[str, typer.Option("--tenant", metavar="T", help="Whose things it opens.")]

_COLUMNS: list[Column[Token]] = [
    Column("ID", lambda t: t.id),
    Column("NAME", lambda t: t.name),
    Column("SCOPES", lambda t: " ".join(sorted(t.scopes))),
    Column("USER", lambda t: t.user or ""),
    Column("MADE", lambda t: when(t.created_at, None)),
    Column("STATE", lambda t: _state(t)),
]


@verb(app, "ls")
async def ls(cli: Cli, tenant: Tenant = DEFAULT_TENANT) -> None:
    """List tokens: what each may do. The tokens themselves are kept nowhere."""
    found = await cli.found(lambda rt: access.tokens(rt, tenant=tenant))
    make = cli.command("tokens", "create", "--name", "NAME", "--scope", "read")
    empty = f"no tokens in {cli.place}: '{make}' makes one"
    cli.out.listing(found, _COLUMNS, id=lambda t: t.id, body=_body, empty=empty)


@verb(app, "create")
async def create(
    cli: Cli,
    scope: Annotated[list[str], typer.Option("--scope", help="run, read, answer, admin; give it several times.")],
    name: Annotated[str, typer.Option("--name", metavar="N", help="Stands with what is done with it.")] = "token",
    user: Annotated[
        str | None, typer.Option("--user", metavar="U", help="It sees and does only what is this user's.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="Counts so long: 90d, 12h, 30m.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    by: By = None,
) -> None:
    """Make a token and print it, once. It is not stored: only its hash is."""
    span = None if expires is None else _span(expires)
    async with cli.runtime(makes=True) as rt:
        scopes = cast("list[Scope]", scope)
        token, secret = await access.create_token(rt, name, scopes, user=user, expires=span, by=by, tenant=tenant)
    if cli.out.for_people:
        cli.out.line(secret)
        say(f"token {token.id}: it is shown this once, send it as 'Authorization: Bearer TOKEN'")
    else:
        cli.out.bodies([(token.id, _body(token) | {"token": secret})], one=True)


@verb(app, "revoke")
async def revoke(cli: Cli, id: Ids, tenant: Tenant = DEFAULT_TENANT, by: By = None) -> None:
    """From now on they do not count, in any process."""

    async def revoke_one(rt: Runtime, one: str) -> tuple[str, Any]:
        token = await access.revoke_token(rt, one, by=by, tenant=tenant)
        if cli.out.for_people:
            cli.out.line(f"token {token.id} ({token.name}) is revoked")
        return token.id, _body(token)

    await cli.for_each(id, revoke_one)


def _state(token: Token) -> str:
    if token.revoked_at is not None:
        return f"revoked {when(token.revoked_at, None)}"
    if token.expires_at is None:
        return "counts"
    return f"{'counts until' if token.counts(datetime.now(UTC)) else 'expired'} {when(token.expires_at, None)}"


def _body(token: Token) -> dict[str, Any]:
    return {
        "id": token.id, "name": token.name, "tenant": token.tenant, "user": token.user,
        "scopes": sorted(token.scopes), "created_at": stamp(token.created_at), "expires_at": stamp(token.expires_at),
        "revoked_at": stamp(token.revoked_at),
    }  # fmt: skip


def _span(given: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,5})([dhm])", given.strip())
    if found is None:
        raise InvalidInput(f"--expires {given!r} is no time: write 90d, 12h or 30m")
    unit = {"d": "days", "h": "hours", "m": "minutes"}[found[2]]
    return timedelta(**{unit: int(found[1])})
