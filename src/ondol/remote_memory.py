"""How does a program look into, correct and erase what agents elsewhere remember? The methods of ``rt.memory``, over
HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ondol.errors import InvalidInput
from ondol.facts import Fact, MemoryScope
from ondol.from_bodies import fact_of
from ondol.ids import DEFAULT_TENANT, checked_limit, in_address

if TYPE_CHECKING:
    from ondol.agent import Agent
    from ondol.client import AsyncClient

T = TypeVar("T")

_PAGE = 500  # facts of an export that are read at once


class RemoteMemory:
    """``AsyncClient.memory``. Whose memory it is must always be said, except that a token which is bound to a user
    means that one: then ``user`` may be left out."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def scopes(
        self, *, user: str | None = None, limit: int = 100, tenant: str = DEFAULT_TENANT
    ) -> list[MemoryScope]:
        """Whose memory there is; of one user, where one is named."""
        return [MemoryScope(**b) for b in await self._client._list("memory", {"user": user}, limit)]

    async def ls(
        self, *, agent: Agent | str, user: str | None = None, limit: int = 100, before: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Fact]:  # fmt: skip
        """As ``rt.memory.ls``."""
        found: list[Fact] = []
        checked_limit(limit)
        while len(found) < limit:
            page, before = await self._page(agent, user, before, min(limit - len(found), 1000))
            found += page
            if before is None:
                break
        return found

    async def _page(
        self, agent: Agent | str, user: str | None, before: str | None, limit: int
    ) -> tuple[list[Fact], str | None]:
        """Some facts, and what names the next ones; None: that was all."""
        page = await self._client._get(_memory(agent), {"user": user, "before": before, "limit": limit})
        return [fact_of(body) for body in page["items"]], page["next"]

    async def search(
        self, query: str, *, agent: Agent | str, user: str | None = None, limit: int = 10, tenant: str = DEFAULT_TENANT
    ) -> list[Fact]:
        """As ``rt.memory.search``."""
        page = await self._client._get(_memory(agent), {"q": query, "user": user, "limit": limit})
        return [fact_of(body) for body in page["items"]]

    async def get(
        self, fact: str, *, agent: Agent | str, user: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> Fact:
        """Raises NotFound."""
        return fact_of(await self._client._get(_memory(agent, fact), {"user": user}))

    async def add(
        self, text: str, *, agent: Agent | str, user: str | None = None, by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Fact:  # fmt: skip
        """As ``rt.memory.add``. It is kept as long as the server's agent keeps facts."""
        body = {"fact": text, "user": user, "by": by}  # the same fact is kept once, so it may be sent again
        return fact_of((await self._client._send("POST", _memory(agent), body)).json())

    async def edit(
        self, fact: str, text: str, *, agent: Agent | str, user: str | None = None, by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Fact:  # fmt: skip
        """As ``rt.memory.edit``. Raises NotFound."""
        body = {"fact": text, "user": user, "by": by}
        return fact_of((await self._client._send("PATCH", _memory(agent, fact), body)).json())

    async def rm(
        self, fact: str, *, agent: Agent | str, user: str | None = None, by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> None:  # fmt: skip
        """Erase one fact. Raises NotFound."""
        await self._client._send("DELETE", _memory(agent, fact), params=_given(user=user, by=by), safe=False)

    async def erase(
        self, *, agent: Agent | str, user: str | None = None, by: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> int:
        """Erase all that an agent remembers of a user; returns how many facts that were."""
        answer = await self._client._send("DELETE", _memory(agent), params=_given(user=user, by=by), safe=False)
        erased: int = answer.json()["erased"]
        return erased

    async def export(
        self, *, agent: Agent | str, user: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> AsyncIterator[Fact]:
        """All that an agent remembers of a user, the newest first, however much it is."""
        place = None
        while True:
            page, place = await self._page(agent, user, place, _PAGE)
            for fact in page:
                yield fact
            if place is None:
                return


class BlockingMemory:
    """``Client.memory``: ``RemoteMemory`` for programs without an event loop."""

    def __init__(self, there: RemoteMemory, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._there, self._run = there, run

    def scopes(self, **wanted: Any) -> list[MemoryScope]:
        return self._done(self._there.scopes(**wanted))

    def ls(self, *, agent: Agent | str, **wanted: Any) -> list[Fact]:
        return self._done(self._there.ls(agent=agent, **wanted))

    def search(self, query: str, *, agent: Agent | str, **wanted: Any) -> list[Fact]:
        return self._done(self._there.search(query, agent=agent, **wanted))

    def get(self, fact: str, *, agent: Agent | str, user: str | None = None) -> Fact:
        return self._done(self._there.get(fact, agent=agent, user=user))

    def add(self, text: str, *, agent: Agent | str, user: str | None = None, by: str | None = None) -> Fact:
        return self._done(self._there.add(text, agent=agent, user=user, by=by))

    def edit(self, fact: str, text: str, *, agent: Agent | str, user: str | None = None, by: str | None = None) -> Fact:
        return self._done(self._there.edit(fact, text, agent=agent, user=user, by=by))

    def rm(self, fact: str, *, agent: Agent | str, user: str | None = None, by: str | None = None) -> None:
        self._done(self._there.rm(fact, agent=agent, user=user, by=by))

    def erase(self, *, agent: Agent | str, user: str | None = None, by: str | None = None) -> int:
        return self._done(self._there.erase(agent=agent, user=user, by=by))

    def _done(self, work: Coroutine[Any, Any, T]) -> T:
        done: T = self._run(work)
        return done


def _memory(agent: Agent | str, *fact: str) -> str:
    name: Any = getattr(agent, "name", agent)
    if name == "":
        raise InvalidInput("a memory belongs to an agent and a user: name the agent (agent=...)")
    return "/".join(["memory", *map(in_address, (name, *fact))])


def _given(**named: str | None) -> dict[str, str]:
    return {name: value for name, value in named.items() if value is not None}
