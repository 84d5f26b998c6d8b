"""What does a person see of a memory, and change in it? ``rt.memory``.

Whose memory it is must always be said, and is part of every read and write: there is no call that means "all of them".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from ondol import ids, lookups, transactions
from ondol.agent import Agent
from ondol.clock import from_micros, micros
from ondol.errors import InvalidInput, NotFound
from ondol.handles import acting
from ondol.ids import DEFAULT_TENANT, checked_id, checked_limit, checked_query
from ondol.memory import Memory, checked_fact
from ondol.records import FactRow
from ondol.transactions import NewFact, Scope
from ondol.vectors import Method

if TYPE_CHECKING:
    from ondol.runtime import Runtime

_PAGE = 500  # facts of an export that are read at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that an agent remembers of a user.

    ``run`` is the one that it comes from; None: a person wrote it, and ``author`` says who wrote it last by hand.
    ``untrusted``: that run had seen content from outside (a tool's result, an attachment), so it may be somebody
    else's word. ``score`` says how well it fits, where it was searched for, ``terms`` by what, and ``found_by`` whether
    ``words``, ``vectors`` or ``both`` found it; what vectors alone found has no score and no terms.
    """

    id: str
    text: str
    agent: str
    user: str
    untrusted: bool
    run: str | None
    author: str
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    score: int = 0
    terms: tuple[str, ...] = ()
    found_by: Method | None = None


class MemoryScope(NamedTuple):
    """Whose memory there is, and how many facts it holds. Nothing of what they say."""

    agent: str
    user: str
    facts: int


class Facts:
    """The memories of a store, for people: to look into, to correct, and to erase."""

    def __init__(self, runtime: Runtime) -> None:
        self._rt = runtime

    async def scopes(
        self, *, user: str | None = None, limit: int = 100, tenant: str = DEFAULT_TENANT
    ) -> list[MemoryScope]:
        """Whose memory there is in a tenant; of one user, where one is named."""
        return await self._scopes(user=user, limit=limit, after=None, tenant=tenant)

    async def _scopes(
        self, *, user: str | None, limit: int, after: tuple[str, str] | None, tenant: str
    ) -> list[MemoryScope]:
        """As ``scopes``, behind the one of this agent and user."""
        checked_id("tenant", tenant)
        whose = None if user is None else checked_id("user", user)
        rows = await self._rt._read(lookups.list_memories, tenant, checked_limit(limit), whose, after)
        return [MemoryScope(*row) for row in rows]

    async def ls(
        self, *, agent: Agent | str, user: str, limit: int = 100, before: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Fact]:  # fmt: skip
        """What an agent remembers of a user, the newest first; ``before`` is the last one seen.

        Raises NotFound where that one was erased.
        """
        found, _ = await self._page(agent=agent, user=user, limit=limit, before=before, tenant=tenant)
        return found

    async def _page(
        self, *, agent: Agent | str, user: str, limit: int, before: str | None, tenant: str
    ) -> tuple[list[Fact], str | None]:
        """As ``ls``, and the place behind which there is more, which stays when facts go; None: that was all."""
        scope = _scope(tenant, agent, user)
        if before is not None:
            checked_id("before", before)
        rows = await self._rt._read(lookups.list_facts, scope, self._now(), checked_limit(limit) + 1, before)
        return [_fact(row) for row in rows[:limit]], str(rows[limit - 1].doc) if len(rows) > limit else None

    async def search(
        self, query: str, *, agent: Agent | str, user: str, limit: int = 10, tenant: str = DEFAULT_TENANT
    ) -> list[Fact]:
        """The facts that fit the query best, the best first."""
        checked_query(query)
        scope = _scope(tenant, agent, user)
        checked_limit(limit)
        self._rt._check_open()
        near = await self._rt._embedding.near(query)
        found = await self._rt._read(lookups.find_facts, scope, query, self._now(), limit, near)
        self._rt._embedding.look(scope)
        return [_fact(f.fact, f.hit.score, f.hit.terms, f.by) for f in found]

    async def get(self, fact: str, *, agent: Agent | str, user: str, tenant: str = DEFAULT_TENANT) -> Fact:
        """Raises NotFound."""
        row = await self._rt._read(lookups.get_fact, _scope(tenant, agent, user), fact, self._now())
        if row is None:
            raise NotFound(f"this memory has no fact {fact!r}: 'ondol memory ls' lists what it holds")
        return _fact(row)

    async def add(
        self, text: str, *, agent: Agent | str, user: str, keep: timedelta | None = None, by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Fact:  # fmt: skip
        """Write a fact by hand; one that is there already begins its time anew.

        ``keep`` is how long it is kept; by default as long as the agent's ``Memory`` says, where it is given.
        """
        scope, now = _scope(tenant, agent, user), self._now()
        if keep is None and isinstance(agent, Agent) and agent.memory is not None:
            keep = agent.memory.keep
        Memory(keep=keep)  # refuses nonsense
        expires = None if keep is None else now + int(keep.total_seconds() * 1e6)
        new = NewFact(ids.new_fact_id(self._rt.clock.now()), checked_fact(text))
        row = await self._rt._write(
            transactions.remember_by_hand, scope, new, now, by=acting(by), door=self._rt.door, expires_at=expires
        )
        self._rt._embedding.look(scope)
        return _fact(row)

    async def edit(
        self, fact: str, text: str, *, agent: Agent | str, user: str, by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Fact:  # fmt: skip
        """Put a person's words in place of a fact. It counts as trusted from then on. Raises NotFound."""
        scope = _scope(tenant, agent, user)
        row = await self._rt._write(
            transactions.edit_fact, scope, fact, checked_fact(text), self._now(), by=acting(by), door=self._rt.door
        )
        self._rt._embedding.look(scope)
        return _fact(row)

    async def rm(
        self, fact: str, *, agent: Agent | str, user: str, by: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> None:
        """Erase one fact. Raises NotFound."""
        scope = _scope(tenant, agent, user)
        await self._rt._write(transactions.remove_fact, scope, fact, self._now(), by=acting(by), door=self._rt.door)

    async def erase(self, *, agent: Agent | str, user: str, by: str | None = None, tenant: str = DEFAULT_TENANT) -> int:
        """Erase all that an agent remembers of a user; returns how many facts that were."""
        scope, erased = _scope(tenant, agent, user), 0
        while some := await self._rt._write(
            transactions.erase_memory, scope, self._now(), by=acting(by), door=self._rt.door
        ):
            erased += some
        return erased

    async def export(self, *, agent: Agent | str, user: str, tenant: str = DEFAULT_TENANT) -> AsyncIterator[Fact]:
        """All that an agent remembers of a user, the newest first, however much it is."""
        place = None
        while True:
            page, place = await self._page(agent=agent, user=user, limit=_PAGE, before=place, tenant=tenant)
            for fact in page:
                yield fact
            if place is None:
                return

    def _now(self) -> int:
        return micros(self._rt.clock)


def _scope(tenant: str, agent: Agent | str, user: str) -> Scope:
    """Raises InvalidInput where a part of it is missing."""
    name = agent.name if isinstance(agent, Agent) else agent
    for kind, value in (("agent", name), ("user", user)):
        if not value:
            raise InvalidInput(f"a memory belongs to an agent and a user: name the {kind} ({kind}=...)")
    return Scope(checked_id("tenant", tenant), checked_id("the name of an agent", name), checked_id("user", user))


def _fact(row: FactRow, score: int = 0, terms: tuple[str, ...] = (), found_by: Method | None = None) -> Fact:
    return Fact(
        id=row.id, text=row.checked_text(), agent=row.agent, user=row.user_id, untrusted=bool(row.untrusted),
        run=row.run, author=row.author, created_at=from_micros(row.created_at), updated_at=from_micros(row.updated_at),
        expires_at=None if row.expires_at is None else from_micros(row.expires_at), score=score, terms=terms,
        found_by=found_by,
    )  # fmt: skip
