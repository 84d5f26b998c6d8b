"""The routes of the outbox: what was, is or could not be told, and how it is told once more."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator
from starlette.responses import Response
from typing_extensions import TypedDict

from ondol.bodies import OutboxBody, outbox_body
from ondol.http import replies, routing
from ondol.http.replies import Json
from ondol.http.requests import SLASH, After, Body, Id, Limit, caller_in
from ondol.http.service import Service, page_of
from ondol.transactions import OutboxState

MessageId = Annotated[
    str, Path(description="The id of a message: that of the run's event.", min_length=1),
    AfterValidator(lambda id: id.replace(SLASH, "/")),
]  # fmt: skip


class Outbox(TypedDict):
    items: list[OutboxBody]
    next: str | None


class Retry(Body):
    by: Id | None = None


def routes(service: Service) -> APIRouter:
    router = routing.router("outbox")

    @router.get("/outbox", responses={200: {"model": Outbox}, **routing.problems()})
    async def list_outbox(
        request: Request,
        state: Annotated[OutboxState | None, Query(description="`dead`: what was given up.")] = None,
        after: After = None, limit: Limit = 50,
    ) -> Response:  # fmt: skip
        """What was, is or could not be told of runs, the newest first. It holds nothing of what was said."""
        caller = caller_in(request)
        caller.needs("read")
        service.whole_tenant(caller)
        found = await service.rt.outbox(state=state, after=after or None, limit=limit + 1, tenant=caller.tenant)
        return replies.page(page_of(found, limit), outbox_body)

    @router.post("/outbox/{message}/retry", responses={200: {"model": OutboxBody}, **routing.problems()})
    async def retry_message(request: Request, message: MessageId, body: Retry | None = None) -> Response:
        """Tell a message once more, also one that is dead or was told."""
        caller = caller_in(request)
        caller.needs("run")
        service.whole_tenant(caller)
        by = caller.acts_as(body.by if body is not None else None)
        return Json(outbox_body(await service.rt.deliver_again(message, by=by, tenant=caller.tenant)))

    return router
