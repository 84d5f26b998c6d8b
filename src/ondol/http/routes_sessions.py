"""The routes of sessions: make one, look at it, change it, erase it, read and watch what is said in it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from ondol.bodies import (
    CompactionBody,
    SessionBody,
    SessionMessageBody,
    compaction_body,
    session_body,
    session_message_body,
)
from ondol.http import replies, routing
from ondol.http.drain import Drain
from ondol.http.requests import (
    After,
    By,
    CompactSession,
    IfMatch,
    LastEventId,
    Limit,
    NewPin,
    NewSession,
    SessionChange,
    SessionId,
    caller_in,
    etag,
    required_revision,
    revision,
)
from ondol.http.routes_runs import EVENTS
from ondol.http.service import Service
from ondol.http.sse import EventStream


class Sessions(TypedDict):
    items: list[SessionBody]
    next: str | None


class Messages(TypedDict):
    items: list[SessionMessageBody]
    next: str | None


def routes(service: Service, drain: Drain) -> APIRouter:
    router = routing.router("sessions")

    @router.post("/sessions", responses={201: {"model": SessionBody}, **routing.problems()}, status_code=201)
    async def make_session(request: Request, body: NewSession) -> Response:
        """Make a session. Starting a run makes one too."""
        made = await service.make_session(
            caller_in(request), body.id, title=body.title, state=body.state, time_zone=body.time_zone, user=body.user
        )
        return replies.of_session(made, 201, {"location": f"{routing.PREFIX}/sessions/{quote(made.id, safe='')}"})

    @router.get("/sessions", responses={200: {"model": Sessions}, **routing.problems()})
    async def list_sessions(
        request: Request, user: str | None = None,
        after: After = None, limit: Limit = 50,
    ) -> Response:  # fmt: skip
        """Sessions by id."""
        found = await service.sessions(caller_in(request), user=user, after=after or None, limit=limit)
        return replies.page(found, session_body)

    @router.get("/sessions/{session}/messages", responses={200: {"model": Messages}, **routing.problems()})
    async def read_messages(
        request: Request, session: SessionId,
        after: Annotated[int, Query(ge=-1, le=10**15, description="`next` of the page before.")] = -1,
        limit: Limit = 50,
    ) -> Response:  # fmt: skip
        """The committed messages, in order."""
        found = await service.messages(caller_in(request), session, after=after, limit=limit)
        return replies.page(found, session_message_body)

    @router.get(
        "/sessions/{session}/events",
        responses={200: {"description": "Events as they come.", "content": EVENTS}, **routing.problems()},
        response_class=Response,
    )
    async def watch_session(
        request: Request, session: SessionId, last_event_id: LastEventId = None,
        after: Annotated[str | None, Query(description="As Last-Event-ID.")] = None,
    ) -> Response:  # fmt: skip
        """What happened and happens in all runs of a session, as server-sent events. It goes on until you leave."""
        events = await service.session_events(caller_in(request), session, last_event_id or after or None)
        return EventStream(events, drain)

    @router.post("/sessions/{session}/compact", responses={200: {"model": CompactionBody}, **routing.problems()})
    async def compact_session(
        request: Request, session: SessionId, body: CompactSession, if_match: IfMatch = None
    ) -> Response:
        """Show models a summary in the place of the older turns. Its messages stay; a fork from before has them all.

        It gives up where another turn comes in between. It is not for sending again blindly: look at the session first.
        """
        done = await service.compact_session(
            caller_in(request), session, keep=body.keep, preview=body.preview, model_free=body.model_free,
            agent=body.agent, by=body.by, expected_revision=revision(if_match),
        )  # fmt: skip
        return replies.Json(compaction_body(done), headers={"etag": etag(done.revision)})

    @router.post("/sessions/{session}/pins", responses={200: {"model": SessionBody}, **routing.problems()})
    async def pin(request: Request, session: SessionId, body: NewPin, if_match: IfMatch = None) -> Response:
        """Pin a text: every request to the session's models holds it, word for word. What is pinned stays as it is."""
        pinned = await service.pin(
            caller_in(request), session, body.text, by=body.by, expected_revision=revision(if_match)
        )
        return replies.of_session(pinned)

    @router.delete("/sessions/{session}/pins/{pin}", responses={200: {"model": SessionBody}, **routing.problems()})
    async def unpin(
        request: Request, session: SessionId, pin: str, if_match: IfMatch = None, by: By = None
    ) -> Response:
        """Take a pin away."""
        return replies.of_session(
            await service.unpin(caller_in(request), session, pin, by=by, expected_revision=revision(if_match))
        )

    @router.get("/sessions/{session}", responses={200: {"model": SessionBody}, **routing.problems()})
    async def get_session(request: Request, session: SessionId) -> Response:
        """One session. Its `ETag` is its revision."""
        return replies.of_session(await service.session(caller_in(request), session))

    @router.patch("/sessions/{session}", responses={200: {"model": SessionBody}, **routing.problems()})
    async def change_session(
        request: Request, session: SessionId, body: SessionChange, if_match: IfMatch = None
    ) -> Response:
        """Change title, state or time zone by hand. `If-Match` is required."""
        caller = caller_in(request)
        expected = required_revision(if_match, session)
        changed = await service.change_session(
            caller, session, title=body.title, state=body.state, time_zone=body.time_zone, expected_revision=expected
        )
        return replies.of_session(changed)

    @router.delete("/sessions/{session}", responses={204: {}, **routing.problems()}, status_code=204)
    async def erase_session(
        request: Request, session: SessionId, if_match: IfMatch = None,
        cancel: Annotated[bool, Query(description="Cancel its runs first, and let go of what is unknown.")] = False,
        by: By = None,
    ) -> Response:  # fmt: skip
        """Erase what was said and done in it. `If-Match` is required."""
        caller = caller_in(request)
        expected = required_revision(if_match, session)
        await service.delete_session(caller, session, expected_revision=expected, cancel=cancel, by=by)
        return Response(status_code=204)

    return router
