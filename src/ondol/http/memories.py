"""What may a caller do with what agents remember? The rules that ``/v1/memory`` and the console's page share.

A token that is bound to a user sees and changes what is remembered of that user alone. Any other names the user: there
is no request that means "all of them".
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from ondol.errors import InvalidInput
from ondol.facts import Fact
from ondol.http.callers import Caller
from ondol.http.service import Page
from ondol.runtime import Runtime


class Memories:
    """Every method takes the ``Caller`` first, and raises Forbidden for what is not theirs to ask for."""

    def __init__(self, runtime: Runtime) -> None:
        self.rt = runtime

    async def whose(self, caller: Caller, *, user: str | None = None, after: str | None = None, limit: int) -> Page:
        """Whose memory there is, and how many facts it holds."""
        caller.needs("read")
        found = await self.rt.memory._scopes(
            user=caller.user_for(user), limit=limit + 1, after=_place(after), tenant=caller.tenant
        )
        last = found[limit - 1] if len(found) > limit else None
        next = None if last is None else f"{quote(last.agent, safe='')}/{quote(last.user, safe='')}"
        return Page(items=found[:limit], next=next)

    async def facts(
        self, caller: Caller, agent: str, *, user: str | None, before: str | None = None, limit: int = 50
    ) -> Page:
        """What an agent remembers of a user, the newest first."""
        caller.needs("read")
        items, next = await self.rt.memory._page(
            agent=agent, user=_user(caller, user), before=before or None, limit=limit, tenant=caller.tenant
        )
        return Page(items=items, next=next)

    async def search(self, caller: Caller, agent: str, query: str, *, user: str | None, limit: int = 10) -> list[Fact]:
        """The facts that fit best, the best first."""
        caller.needs("read")
        return await self.rt.memory.search(
            query, agent=agent, user=_user(caller, user), limit=limit, tenant=caller.tenant
        )

    async def fact(self, caller: Caller, agent: str, fact: str, *, user: str | None) -> Fact:
        caller.needs("read")
        return await self.rt.memory.get(fact, agent=agent, user=_user(caller, user), tenant=caller.tenant)

    async def add(self, caller: Caller, agent: str, text: str, *, user: str | None, by: str | None = None) -> Fact:
        """Write a fact by hand. It is kept as long as the agent's memory keeps facts, where the agent is here."""
        caller.needs("run")
        whose = self.rt.agents.get(agent, agent)
        return await self.rt.memory.add(
            text, agent=whose, user=_user(caller, user), by=caller.acts_as(by), tenant=caller.tenant
        )

    async def edit(
        self, caller: Caller, agent: str, fact: str, text: str, *, user: str | None, by: str | None = None
    ) -> Fact:
        """Put a person's words in place of a fact."""
        caller.needs("run")
        return await self.rt.memory.edit(
            fact, text, agent=agent, user=_user(caller, user), by=caller.acts_as(by), tenant=caller.tenant
        )

    async def rm(self, caller: Caller, agent: str, fact: str, *, user: str | None, by: str | None = None) -> None:
        caller.needs("run")
        await self.rt.memory.rm(
            fact, agent=agent, user=_user(caller, user), by=caller.acts_as(by), tenant=caller.tenant
        )

    async def erase(self, caller: Caller, agent: str, *, user: str | None, by: str | None = None) -> int:
        """Erase all that an agent remembers of a user; says how many facts that were."""
        caller.needs("run")
        return await self.rt.memory.erase(
            agent=agent, user=_user(caller, user), by=caller.acts_as(by), tenant=caller.tenant
        )


def _place(after: str | None) -> tuple[str, str] | None:
    """The agent and the user that the ``next`` of a page names. Raises InvalidInput."""
    if not after:
        return None
    agent, slash, user = after.partition("/")
    if not slash or "/" in user:
        raise InvalidInput(f"{after!r} is no place in this list: give the 'next' of a page, as it is")
    return unquote(agent), unquote(user)


def _user(caller: Caller, named: str | None) -> str:
    """Of whom; where nobody is named, an empty name, which every memory refuses."""
    return caller.user_for(named or None) or ""
