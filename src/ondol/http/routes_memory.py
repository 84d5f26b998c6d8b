"""The routes of memory: what agents remember of a user, to look into, to correct, and to erase."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator, Field, StringConstraints
from starlette.responses import Response
from typing_extensions import TypedDict

from ondol.bodies import FactBody, fact_body
from ondol.http import replies, routing
from ondol.http.memories import Memories
from ondol.http.replies import Json
from ondol.http.requests import SLASH, After, Body, Id, Limit, caller_in

AgentName = Annotated[
    str, Path(description="The name of an agent.", min_length=1), AfterValidator(lambda id: id.replace(SLASH, "/"))
]
FactId = Annotated[str, Path(description="The id of a fact.", min_length=1)]
User = Annotated[Id | None, Query(description="Of whom. A token that is bound to a user means that one.")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=2_000)]


class Memory(TypedDict):
    """How many facts an agent remembers of a user."""

    agent: str
    user: str
    facts: int


class MemoryList(TypedDict):
    items: list[Memory]
    next: str | None


class FactList(TypedDict):
    items: list[FactBody]
    next: str | None


class Erased(TypedDict):
    """How many facts there were."""

    erased: int


class NewFact(Body):
    """``user``: of whom, unless the token says it. ``by``: who writes it."""

    fact: Text = Field(description="A sentence that is clear on its own.")
    user: Id | None = None
    by: Id | None = None


class FactChange(NewFact):
    """The words that are put in its place."""


def routes(memories: Memories) -> APIRouter:
    router = routing.router("memory")

    @router.get("/memory", responses={200: {"model": MemoryList}, **routing.problems()})
    async def list_memories(
        request: Request, user: Annotated[Id | None, Query(description="Only of this user.")] = None,
        after: After = None, limit: Limit = 50,
    ) -> Response:  # fmt: skip
        """Whose memory there is. Nothing of what it holds."""
        found = await memories.whose(caller_in(request), user=user, after=after, limit=limit)
        return replies.page(found, lambda scope: scope._asdict())

    @router.get("/memory/{agent}", responses={200: {"model": FactList}, **routing.problems()})
    async def list_facts(
        request: Request, agent: AgentName, user: User = None,
        q: Annotated[str | None, Query(description="Only what fits these words, the best first.")] = None,
        before: Annotated[str | None, Query(description="`next` of the page before.")] = None, limit: Limit = 50,
    ) -> Response:  # fmt: skip
        """What an agent remembers of a user, the newest first."""
        caller = caller_in(request)
        if q is not None:
            found = await memories.search(caller, agent, q, user=user, limit=limit)
            return replies.listing(found, fact_body)
        return replies.page(await memories.facts(caller, agent, user=user, before=before, limit=limit), fact_body)

    @router.post("/memory/{agent}", responses={201: {"model": FactBody}, **routing.problems()}, status_code=201)
    async def add_fact(request: Request, agent: AgentName, body: NewFact) -> Response:
        """Write a fact by hand. The same one is kept once; said again, its time begins anew."""
        made = await memories.add(caller_in(request), agent, body.fact, user=body.user, by=body.by)
        return Json(fact_body(made), 201)

    @router.delete("/memory/{agent}", responses={200: {"model": Erased}, **routing.problems()})
    async def erase_memory(request: Request, agent: AgentName, user: User = None, by: Id | None = None) -> Response:
        """Erase all that an agent remembers of a user."""
        return Json({"erased": await memories.erase(caller_in(request), agent, user=user, by=by)})

    @router.get("/memory/{agent}/{fact}", responses={200: {"model": FactBody}, **routing.problems()})
    async def get_fact(request: Request, agent: AgentName, fact: FactId, user: User = None) -> Response:
        """One fact."""
        return Json(fact_body(await memories.fact(caller_in(request), agent, fact, user=user)))

    @router.patch("/memory/{agent}/{fact}", responses={200: {"model": FactBody}, **routing.problems()})
    async def edit_fact(request: Request, agent: AgentName, fact: FactId, body: FactChange) -> Response:
        """Put a person's words in place of a fact. From then on it is not marked as from outside."""
        changed = await memories.edit(caller_in(request), agent, fact, body.fact, user=body.user, by=body.by)
        return Json(fact_body(changed))

    @router.delete("/memory/{agent}/{fact}", responses={204: {}, **routing.problems()}, status_code=204)
    async def erase_fact(
        request: Request, agent: AgentName, fact: FactId, user: User = None, by: Id | None = None
    ) -> Response:
        """Erase one fact. It leaves neither text nor index in the tables of memory."""
        await memories.rm(caller_in(request), agent, fact, user=user, by=by)
        return Response(status_code=204)

    return router
