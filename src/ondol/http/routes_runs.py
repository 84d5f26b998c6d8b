"""The routes of runs: start one, look at it, watch it, stop it, do it again."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from ondol.bodies import (
    ContextBody,
    LineageBody,
    RunBody,
    VerdictBody,
    context_body,
    lineage_body,
    run_body,
    verdict_body,
)
from ondol.errors import InvalidInput
from ondol.handles import Run
from ondol.http import replies, routing
from ondol.http.callers import Caller
from ondol.http.drain import Drain
from ondol.http.replies import Json
from ondol.http.requests import (
    CancelRun,
    ForkRun,
    IfMatch,
    Key,
    LastEventId,
    Limit,
    OnDisconnect,
    Prefer,
    ReplayRun,
    SessionId,
    caller_in,
    idempotency_key,
    listed,
    preferred,
    revision,
    sent,
    wants_events,
)
from ondol.http.service import LONGEST_WAIT, Service
from ondol.http.steps import StepBody, steps_of
from ondol.journal import RunStatus

RunId = Annotated[str, Path(description="The id of a run.", min_length=1)]

# What tools of OpenAPI 3.1 take for each event of the stream.
EVENTS = {"text/event-stream": {"schema": {
    "type": "object", "description": "One server-sent event.",
    "properties": {
        "event": {"type": "string"},
        "id": {"type": "string", "description": "Where a reader goes on behind it. What is not stored has none."},
        "data": {
            "type": "string", "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/EventBody"},
        },
        "retry": {"type": "integer"},
    },
    "required": ["event", "data"],
}}}  # fmt: skip
_START_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/StartRun"}},
            "multipart/form-data": {"schema": {"$ref": "#/components/schemas/StartRunForm"}},
        },
    }
}


class Reply(TypedDict):
    """What a completed run answered, as it is stored: every answer has the same bytes. ``text`` is as ``values.encode``
    writes it. ``stop`` is there where it did not end for the usual reason: ``length`` means that it was cut off."""

    id: str
    state: str
    session: str
    operation_id: str
    text: Any
    revision: int
    stop: NotRequired[str]


class Runs(TypedDict):
    items: list[RunBody]
    next: str | None


class Steps(TypedDict):
    items: list[StepBody]
    next: str | None


_STARTED: dict[int | str, dict[str, Any]] = {
    200: {"model": Reply | RunBody, "description": "It has ended.", "content": EVENTS},
    202: {"model": RunBody, "description": "It is durable, and goes on without the client."},
    **routing.problems(),
}


def routes(service: Service, drain: Drain) -> APIRouter:
    router = routing.router("runs")

    async def start(request: Request, session: str | None, key: str | None, if_match: str | None) -> Response:
        caller, said, wanted = caller_in(request), preferred(listed(request, "prefer")), await sent(request)
        asked = wanted.asked
        if session is not None and asked.session not in (None, session):
            raise InvalidInput(f"the body names session {asked.session!r}, and the address {session!r}: name one")
        run = await service.start(
            caller, asked.agent, asked.input, session=session or asked.session, user=asked.user,
            operation_id=idempotency_key(key), if_busy=asked.if_busy, expected_revision=revision(if_match),
            attachments=wanted.files, time_zone=asked.time_zone, metadata=asked.metadata,
            trigger=asked.trigger,
        )  # fmt: skip
        if wants_events(request):
            return await follow(caller, run, asked.on_disconnect, said.respond_async)
        service.attached(run, said.wait)
        if said.wait and not said.respond_async:
            answering = await service.wait(run, said.wait)
            response = replies.outcome(answering, replayed=run.replayed)
            response.headers["preference-applied"] = f"wait={min(said.wait, LONGEST_WAIT):g}"
            return response
        if run.created:
            return replies.of_run(run)  # as it was accepted, however far it has come meanwhile
        return replies.outcome(await service.answering(run), replayed=run.replayed)

    async def follow(caller: Caller, run: Run, on_disconnect: OnDisconnect | None, respond_async: bool) -> Response:
        owns = run.created and on_disconnect != "continue" and not respond_async
        return replies.stream(
            run,
            service.watch(caller, run),
            drain,
            on_disconnect="cancel" if owns else "continue",
            replayed=run.replayed,
        )

    @router.post("/runs", responses=_STARTED, openapi_extra=_START_BODY, status_code=202)
    async def start_run(request: Request, key: Key = None, if_match: IfMatch = None, prefer: Prefer = None) -> Response:
        """Start a run, in the session that the body names or in one of its own."""
        return await start(request, None, key, if_match)

    @router.post("/sessions/{session}/runs", responses=_STARTED, openapi_extra=_START_BODY, status_code=202)
    async def start_in_session(
        request: Request, session: SessionId, key: Key = None, if_match: IfMatch = None, prefer: Prefer = None
    ) -> Response:
        """Start a run in a session, which is made if it does not exist."""
        return await start(request, session, key, if_match)

    @router.get("/runs", responses={200: {"model": Runs}, **routing.problems()})
    async def list_runs(
        request: Request, session: str | None = None, user: str | None = None, state: RunStatus | None = None,
        agent: str | None = None,
        q: Annotated[str | None, Query(description="A text to look for, in what was asked, ids and errors.")] = None,
        before: Annotated[str | None, Query(description="`next` of the page before.")] = None, limit: Limit = 50,
    ) -> Response:  # fmt: skip
        """Runs, the newest first."""
        found = await service.runs(
            caller_in(request),
            session=session,
            user=user,
            state=state,
            agent=agent,
            text=q,
            before=before or None,
            limit=limit,
        )
        return replies.page(found, run_body)

    @router.get("/runs/{run}", responses={200: {"model": RunBody}, **routing.problems()})
    async def get_run(request: Request, run: RunId) -> Response:
        """One run."""
        return replies.of_run(await service.run(caller_in(request), run), 200)

    @router.get("/runs/{run}/steps", responses={200: {"model": Steps}, **routing.problems()})
    async def get_steps(request: Request, run: RunId) -> Response:
        """What the model said at each step, and what became of its calls."""
        return replies.listing(steps_of(await service.recorded(caller_in(request), run)), dict)

    @router.get("/runs/{run}/state", responses={200: {"model": dict[str, Any]}, **routing.problems()})
    async def get_state(request: Request, run: RunId) -> Response:
        """Its scratchpad: where it stands, its messages and effects."""
        found = await service.run(caller_in(request), run)
        return Json(await found.state())

    @router.get("/runs/{run}/lineage", responses={200: {"model": LineageBody}, **routing.problems()})
    async def get_lineage(request: Request, run: RunId) -> Response:
        """What it replays or is a fork of, and the replays and forks of it."""
        found = await service.run(caller_in(request), run)
        return Json(lineage_body(await found.lineage()))

    @router.get("/runs/{run}/context", responses={200: {"model": ContextBody}, **routing.problems()})
    async def get_context(
        request: Request, run: RunId, step: Annotated[int | None, Query(ge=1, le=10**9)] = None
    ) -> Response:
        """What the model saw at a step, by default the last."""
        return Json(context_body(await service.context(caller_in(request), run, step)))

    @router.get(
        "/runs/{run}/events",
        responses={
            200: {"description": "Events as they come.", "content": EVENTS},
            204: {"description": "It has come to rest, and all was told: do not come back."},
            **routing.problems(),
        },
        response_class=Response,
    )
    async def watch_run(
        request: Request,
        run: RunId,
        last_event_id: LastEventId = None,
        after: Annotated[str | None, Query(description="As Last-Event-ID.")] = None,
        through_asks: Annotated[bool, Query(description="Go on where it waits for a person.")] = False,
    ) -> Response:
        """Everything that happened and happens, as server-sent events. Watching never cancels."""
        caller = caller_in(request)
        found = await service.run(caller, run)
        events = await service.events(caller, run, last_event_id or after or None, through_asks=through_asks)
        if events is None:
            return Response(status_code=204)
        return replies.stream(found, events, drain, on_disconnect="continue")

    @router.get(
        "/runs/{run}/result", responses={200: {"model": Reply | RunBody}, 202: {"model": RunBody}, **routing.problems()}
    )
    async def get_result(
        request: Request, run: RunId, wait: Annotated[float, Query(ge=0, le=3600, description="Seconds.")] = 0
    ) -> Response:
        """What came of it: 200 with its reply or its end, 202 while it goes on, 410 where its session was deleted."""
        found = await service.run(caller_in(request), run)
        return replies.outcome(await service.wait(found, wait))

    @router.get("/runs/{run}/blobs/{digest}", responses={200: {"content": {"application/octet-stream": {
        "schema": {"type": "string", "format": "binary"}}}}, **routing.problems()},
        response_class=Response)  # fmt: skip
    async def get_blob(request: Request, run: RunId, digest: str) -> Response:
        """The bytes of an attachment, or of a long result, to be saved: never to be shown."""
        data = await service.blob(caller_in(request), run, digest)
        headers = {
            "content-disposition": f'attachment; filename="{digest}"', "x-content-type-options": "nosniff",
            "content-security-policy": "sandbox; default-src 'none'",
        }  # fmt: skip
        return Response(data, 200, headers, media_type="application/octet-stream")

    settled: dict[int | str, dict[str, Any]] = {200: {"model": RunBody}, 202: {"model": RunBody}, **routing.problems()}

    @router.post("/runs/{run}/cancel", responses=settled, status_code=202)
    async def cancel_run(request: Request, run: RunId, body: CancelRun | None = None) -> Response:
        """Ask it to stop. Idempotent: 202 while it stops, 200 when it has ended."""
        asked = body or CancelRun()
        return replies.of_run(await service.cancel(caller_in(request), run, by=asked.by, reason=asked.reason))

    @router.post("/runs/{run}/resume", responses=settled, status_code=202)
    async def resume_run(request: Request, run: RunId) -> Response:
        """Go on with a run that failed for now, as sending its operation again does."""
        return replies.of_run(await service.resume(caller_in(request), run))

    @router.post(
        "/runs/{run}/replay",
        responses={200: {"model": VerdictBody | RunBody}, 202: {"model": RunBody}, **routing.problems()},
        status_code=202,
    )  # fmt: skip
    async def replay_run(
        request: Request, run: RunId, body: ReplayRun | None = None, dry_run: bool = False, key: Key = None
    ) -> Response:
        """Do what was asked once more, in a new run; with `dry_run` only whether that is safe."""
        caller, asked, operation = caller_in(request), body or ReplayRun(), idempotency_key(key)
        if dry_run:
            return Json(verdict_body(await service.verdict(caller, run)))
        return replies.of_copy(await service.replay(
            caller, run, by=asked.by, why=asked.why, operation_id=operation, clock=asked.clock,
            time_zone=asked.time_zone,
        ))  # fmt: skip

    @router.post("/runs/{run}/fork", responses=settled, status_code=202)
    async def fork_run(request: Request, run: RunId, body: ForkRun, key: Key = None) -> Response:
        """Go on from a step of a run that has ended, in a new session."""
        return replies.of_copy(await service.fork(
            caller_in(request), run, at_step=body.at_step, effects=body.effects, operation_id=idempotency_key(key)
        ))  # fmt: skip

    return router
