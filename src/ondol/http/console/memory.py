"""What do agents remember of people, and what of it is wrong, or is to go? One page, and its forms."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ondol.errors import InvalidInput, OndolError, Unauthenticated
from ondol.http.callers import Caller
from ondol.http.console.acting import by_in, form_of, text_in
from ondol.http.console.looks import Looks
from ondol.http.memories import Memories
from ondol.http.problems import status_of
from ondol.http.requests import caller_in

_PER_PAGE = 50
_MEMORIES = 1000  # that are listed
_FOUND = 20  # facts that a search shows


def add_to(router: APIRouter, looks: Looks) -> None:
    memories = Memories(looks.service.rt)

    async def show(
        request: Request, caller: Caller, agent: str, user: str, *, q: str = "", before: str | None = None,
        error: OndolError | None = None, typed: str = "", about: str = "",
    ) -> Response:  # fmt: skip
        """``error`` is of a form that was not taken: about the fact ``about``, for which this was ``typed``."""
        known = await memories.whose(caller, limit=_MEMORIES)
        user = user or caller.user or ""
        fitting = known
        if user and known.next is not None:  # theirs may be behind those
            fitting = await memories.whose(caller, user=user, limit=_MEMORIES)
        scopes = known.items
        listed = [s for s in fitting.items if agent in ("", s.agent) and user in ("", s.user)]
        found, next = [], None
        if agent and user:
            if q:
                found = await memories.search(caller, agent, q, user=user, limit=_FOUND)
            else:
                page = await memories.facts(caller, agent, user=user, before=before, limit=_PER_PAGE)
                found, next = page.items, page.next
        return await looks.page(
            request, "memory.html", status=200 if error is None else status_of(error), caller=caller, scopes=scopes,
            listed=listed, more=fitting.next is not None, agent=agent, user=user, q=q, found=found, next=next,
            first=before is None, error=error, typed=typed, about=about,
        )  # fmt: skip

    @router.get("/memory")
    async def page(
        request: Request, agent: str = "", user: str = "", q: str = "", before: str | None = None
    ) -> Response:
        """Whose memory there is, and what is missing to name one; with an agent and a user, what it holds."""
        return await show(request, caller_in(request), agent, user, q=q, before=before)

    @router.post("/memory/edit")
    async def edit(request: Request) -> Response:
        """Put a person's words in place of a fact. What is not taken is told on the page, with what was typed."""
        caller, form = caller_in(request), await form_of(request)
        agent, user, fact, text = (text_in(form, name) for name in ("agent", "user", "fact", "text"))
        try:
            await memories.edit(caller, agent, fact, text, user=user, by=by_in(form))
        except Unauthenticated:
            raise
        except OndolError as error:
            return await show(request, caller, agent, user, error=error, typed=text, about=fact)
        return looks.to(request, "/memory", agent=agent, user=user)

    @router.post("/memory/erase")
    async def erase(request: Request) -> Response:
        """Erase one fact, or with ``all`` the whole memory."""
        caller, form = caller_in(request), await form_of(request)
        agent, user, fact = (text_in(form, name) for name in ("agent", "user", "fact"))
        if fact:
            await memories.rm(caller, agent, fact, user=user, by=by_in(form))
            return looks.to(request, "/memory", agent=agent, user=user)
        if text_in(form, "sure") != "yes":
            raise InvalidInput("nothing was erased: tick the box that says so, it cannot be taken back")
        await memories.erase(caller, agent, user=user, by=by_in(form))
        return looks.to(request, "/memory")
