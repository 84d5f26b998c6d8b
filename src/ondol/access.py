"""Who may come in over the network, and what may they do there?

A token is 256 random bits. What is stored is its SHA-256, so a copy of the store opens no door; nobody can show it a
second time. It belongs to a tenant, and may be bound to one user: then it sees and does only what is that user's.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias, get_args

from ondol import ids, queries, transactions
from ondol.clock import from_micros, micros, to_micros
from ondol.errors import InvalidInput
from ondol.handles import acting
from ondol.ids import DEFAULT_TENANT, checked_id, checked_person
from ondol.records import TokenRow
from ondol.runtime import Runtime

Scope: TypeAlias = Literal["run", "read", "answer", "admin"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
_PREFIX = "ondol_"  # so that scanners for leaked secrets know it


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token. ``name`` stands in the record of what is done with it."""

    id: str
    name: str
    tenant: str
    user: str | None
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    def counts(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def _token(row: TokenRow) -> Token:
    return Token(
        id=row.id, name=row.name, tenant=row.tenant, user=row.user_id,
        scopes=frozenset(s for s in get_args(Scope) if s in row.scopes.split()),
        created_at=from_micros(row.created_at),
        expires_at=None if row.expires_at is None else from_micros(row.expires_at),
        revoked_at=None if row.revoked_at is None else from_micros(row.revoked_at),
    )  # fmt: skip


async def create_token(
    rt: Runtime, name: str, scopes: Collection[Scope], *, user: str | None = None, expires: timedelta | None = None,
    by: str | None = None, tenant: str = DEFAULT_TENANT,
) -> tuple[Token, str]:  # fmt: skip
    """Make a token. Returns what is known of it, and the token itself, which nobody can read again.

    ``run`` starts and stops, ``read`` looks, ``answer`` decides asks, ``admin`` does all of it and sees to tokens.
    """
    if unknown := set(scopes) - SCOPES:
        raise InvalidInput(f"there is no scope {min(unknown)!r}: say {', '.join(get_args(Scope))}")
    if not scopes:
        raise InvalidInput(f"a token without a scope may do nothing: say {', '.join(get_args(Scope))}")
    if expires is not None and expires <= timedelta(0):
        raise InvalidInput("it would have expired before anybody used it: say how long it is to count")
    now = rt.clock.now()
    secret = _PREFIX + secrets.token_urlsafe(32)
    row = TokenRow(
        tenant=checked_id("tenant", tenant), id="t_" + ids.new_run_id(now)[2:], name=checked_person("name", name),
        user_id=None if user is None else checked_id("user", user),
        scopes=" ".join(s for s in get_args(Scope) if s in scopes), created_at=to_micros(now),
        expires_at=None if expires is None else to_micros(now + expires), revoked_at=None,
    )  # fmt: skip
    await rt._write(transactions.keep_token, row, _digest(secret), acting(by), rt.door)
    return _token(row), secret


async def tokens(rt: Runtime, *, tenant: str = DEFAULT_TENANT) -> list[Token]:
    """All that were made, the oldest first, also those that do not count any more."""
    return [_token(row) for row in await rt._read(queries.list_tokens, tenant)]


async def revoke_token(rt: Runtime, token: str, *, by: str | None = None, tenant: str = DEFAULT_TENANT) -> Token:
    """From now on it does not count, in any process. Raises NotFound."""
    now, by = micros(rt.clock), acting(by)
    return _token(await rt._write(transactions.revoke_token, tenant, token, by, rt.door, now))


async def token_of(rt: Runtime, secret: str) -> Token | None:
    """The token that counts now and is this one; None if there is none."""
    row = await rt._read(queries.token_by_hash, _digest(secret))
    token = None if row is None else _token(row)
    return token if token is not None and token.counts(rt.clock.now()) else None


async def counts(rt: Runtime, token: str, *, tenant: str = DEFAULT_TENANT) -> bool:
    """Does the token with this id count now?"""
    now = rt.clock.now()
    return any(known.id == token and known.counts(now) for known in await tokens(rt, tenant=tenant))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
