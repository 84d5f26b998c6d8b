"""The other routes: agents, usage, export; and what watches over the process: health, readiness, metrics, OpenAPI."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from typing_extensions import TypedDict

from ondol.bodies import AgentBody, UsageLineBody, agent_body, usage_line_body
from ondol.errors import Draining, OndolError
from ondol.http import replies, routing
from ondol.http.drain import Drain
from ondol.http.metrics import MEDIA_TYPE, Metrics
from ondol.http.problems import problem
from ondol.http.requests import caller_in
from ondol.http.service import Service
from ondol.spending import UsageBy, typed_date

_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9:.]{2,15}(?:Z|[+-][0-9]{2}:[0-9]{2})?)?$"


class Agents(TypedDict):
    items: list[AgentBody]
    next: str | None


class Lines(TypedDict):
    items: list[UsageLineBody]
    next: str | None


class Health(TypedDict):
    status: str


class Readiness(TypedDict):
    """``drives``: this process drives runs; any other may submit, watch and decide."""

    status: str
    drives: bool


def routes(service: Service) -> APIRouter:
    router = routing.router()

    @router.get("/agents", tags=["agents"], responses={200: {"model": Agents}, **routing.problems()})
    async def list_agents(request: Request) -> Response:
        """The agents of this process."""
        return replies.listing(service.agents(caller_in(request)), agent_body)

    @router.get("/usage", tags=["usage"], responses={200: {"model": Lines}, **routing.problems()})
    async def usage(
        request: Request, by: UsageBy = "model",
        since: Annotated[str | None, Query(pattern=_TIME, description="From then on: 2026-11-30, or a time.")] = None,
        until: Annotated[str | None, Query(pattern=_TIME, description="Before then.")] = None,
        time_zone: str | None = None,
    ) -> Response:  # fmt: skip
        """What model calls took and cost. What nobody counted, or priced, is never zero."""
        first, end = typed_date("since", since), typed_date("until", until)
        found = await service.usage(caller_in(request), by=by, since=first, until=end, time_zone=time_zone)
        return replies.listing(found, usage_line_body)

    @router.get(
        "/export/runs/{run}", tags=["runs"], response_class=Response,
        responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}, **routing.problems()},
    )  # fmt: skip
    async def export_run(request: Request, run: Annotated[str, Path(min_length=1)]) -> Response:
        """A run with all that happened in it, as the file that `ondol runs import` takes."""
        text = await service.export(caller_in(request), run)
        headers = {"content-disposition": f'attachment; filename="{run}.json"', "x-content-type-options": "nosniff"}
        return Response(text.encode(), 200, headers, media_type="application/json")

    return router


def watching_over(service: Service, drain: Drain, metrics: Metrics) -> APIRouter:
    """The routes that are not below ``/v1``."""
    router = routing.router("process", prefix="")

    @router.get("/healthz", responses={200: {"model": Health}, **routing.problems()})
    async def healthz() -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok"})

    @router.get("/readyz", responses={200: {"model": Readiness}, **routing.problems()})
    async def readyz() -> Response:
        """It takes work: the store can be written, and the process is not about to stop."""
        if drain.begun:
            return problem(Draining("this process stops: send new work to another one"))
        try:
            await service.rt.probe()
        except OndolError as error:
            return problem(error, 503)
        return JSONResponse({"status": "ready", "drives": service.rt.drives})

    @router.get(
        "/metrics", response_class=PlainTextResponse,
        responses={200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}, **routing.problems()},
    )  # fmt: skip
    async def show_metrics(request: Request) -> Response:
        """In the text form of OpenMetrics 1.0."""
        caller = caller_in(request)
        caller.needs("read")
        service.whole_tenant(caller)
        return Response(await metrics.text(service.rt, drain, caller.tenant), media_type=MEDIA_TYPE)

    return router
