"""Who is asking, and what may they see and do?"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ondol.access import SCOPES, Scope, token_of
from ondol.errors import Forbidden, NotFound, Unauthenticated
from ondol.handles import this_person
from ondol.ids import DEFAULT_TENANT
from ondol.runtime import Runtime

Way: TypeAlias = Literal["http", "console"]
COOKIE = "ondol_token"  # a browser's way to send its token
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whoever sent a request. With a ``user`` it sees and does only what is that user's; ``token`` is the id of the
    token that came with it, if one did; ``way``, whether through a page of the console."""

    tenant: str
    user: str | None
    scopes: frozenset[Scope]
    name: str
    token: str | None
    way: Way

    @property
    def door(self) -> str:
        """How the journal calls this way in."""
        return self.way if self.token is None else f"{self.way}:{self.token}"

    def came_by(self, door: str) -> bool:
        """Did the token of this caller come by that door, whichever way?"""
        return self.token is not None and door in (f"http:{self.token}", f"console:{self.token}")

    @property
    def is_admin(self) -> bool:
        return "admin" in self.scopes

    def needs(self, scope: Scope) -> None:
        """Raises Forbidden."""
        if scope not in self.scopes and not self.is_admin:
            raise Forbidden(
                f"token {self.token} has no scope {scope!r}: 'ondol tokens create --scope {scope}' makes one"
            )

    def acts_as(self, named: str | None) -> str:
        """The name that goes with a human act: one bound to a user acts as that user, any other may name a person."""
        return self.user or named or self.name

    def user_for(self, named: str | None) -> str | None:
        """Whom a request is for. Raises Forbidden for somebody else than the token's own user."""
        if self.user is not None and named is not None and named != self.user:
            raise Forbidden("this token is bound to one user, and the request is for another: leave 'user' out")
        return self.user or named

    def sees(self, user: str | None) -> bool:
        """Is what belongs to this user there for the caller?"""
        return self.user is None or self.user == user

    def only_sees(self, user: str | None, what: str, id: str, verb: str) -> None:
        """Raises NotFound, in the words that are used for what does not exist."""
        if not self.sees(user):
            raise NotFound(f"there is no {what} {id!r}: '{verb}' lists them")


#: Somebody on this machine, where the server was started so that they need no token.
def local(way: Way) -> Caller:
    return Caller(tenant=DEFAULT_TENANT, user=None, scopes=SCOPES, name=this_person(), token=None, way=way)


async def caller_of(
    rt: Runtime, headers: Mapping[str, str], client: str | None, *, needs_token: bool, way: Way
) -> Caller:
    """Who sent a request with these headers (names in lower case) from this address. Raises Unauthenticated."""
    secret = _bearer(headers.get("authorization")) or _cookie(headers.get("cookie", ""))
    if secret is not None:
        token = await token_of(rt, secret)
        if token is None:
            raise Unauthenticated("the token is not known, was revoked, or has expired: 'ondol tokens' lists them")
        return Caller(
            tenant=token.tenant, user=token.user, scopes=token.scopes, name=token.name, token=token.id, way=way
        )
    if needs_token:
        raise Unauthenticated("no token came with the request: send 'Authorization: Bearer TOKEN'")
    if not is_loopback(client) or any(name in headers for name in _FORWARDED):
        raise Unauthenticated("without a token only this machine is served: send 'Authorization: Bearer TOKEN'")
    return local(way)


def is_loopback(host: str | None) -> bool:
    """An address, or a name that means one, of this machine and no other. A Unix socket has no address."""
    if host is None or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bearer(header: str | None) -> str | None:
    if header is None:
        return None
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthenticated("the header Authorization is not 'Bearer TOKEN'")
    return secret.strip()


def _cookie(header: str) -> str | None:
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE and value:
            return value
    return None
