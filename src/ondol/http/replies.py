"""How does a run, a list, a stream look as an answer?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeVar

from starlette.responses import JSONResponse, Response

from ondol.bodies import run_body, session_body
from ondol.events import Event
from ondol.handles import ENDED, Run, Session
from ondol.http.drain import Drain
from ondol.http.requests import OnDisconnect, as_header, etag
from ondol.http.routing import PREFIX
from ondol.http.service import Page
from ondol.http.sse import EventStream

T = TypeVar("T")
_REPLAYED = {"idempotent-replayed": "true"}  # the operation was completed before


class Json(JSONResponse):
    """JSON as it is stored: any text, and numbers that JSON lacks as tagged values."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def listing(items: Iterable[T], body: Callable[[T], Any], next: str | None = None) -> Json:
    return Json({"items": [body(item) for item in items], "next": next})


def page(found: Page, body: Callable[[Any], Any]) -> Json:
    return listing(found.items, body, found.next)


def of_session(session: Session, status: int = 200, headers: Mapping[str, str] | None = None) -> Json:
    return Json(session_body(session), status, {"etag": etag(session.revision), **(headers or {})})


def of_run(run: Run, status: int | None = None) -> Json:
    """200 for one that has ended, else 202: it goes on."""
    return Json(run_body(run), status or (200 if run.status in ENDED else 202), _headers(run))


def of_copy(run: Run) -> Json:
    """A replay or a fork. Its operation id may be sent again, as that of any operation."""
    answer = of_run(run)
    answer.headers.update(_REPLAYED if run.replayed else {})
    return answer


def outcome(run: Run, *, replayed: bool = False) -> Response:
    """What came of it: of a completed run the stored reply, byte for byte."""
    headers = _headers(run) | (_REPLAYED if replayed else {})
    if run.status == "completed":
        return Response(run._row.kept_reply().encode(), 200, headers, media_type="application/json")
    return Json(run_body(run), 200 if run.status in ENDED else 202, headers)


def _headers(run: Run) -> dict[str, str]:
    headers = {"idempotency-key": as_header(run.operation_id)}
    return headers if run.status in ENDED else headers | {"location": f"{PREFIX}/runs/{run.id}"}


def stream(
    run: Run, events: AsyncIterator[Event | None], drain: Drain, *, on_disconnect: OnDisconnect, replayed: bool = False
) -> EventStream:
    """The events of a run. Only the stream of the request that made the run may own it: then its client's going away
    cancels it."""
    headers = _headers(run) | {"ondol-on-disconnect": on_disconnect} | (_REPLAYED if replayed else {})

    async def gone() -> None:
        if (await run.refresh()).status not in ENDED:  # what failed for now may go on
            await run.cancel(by=run.user or "client", reason="the client of its stream went away")

    return EventStream(events, drain, headers=headers, gone=gone if on_disconnect == "cancel" else None)
