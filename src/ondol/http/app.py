"""How is the HTTP door put together?

``make_app(runtime)`` is an ASGI application: ``ondol serve`` runs it, ``rt.asgi()`` gives it to whoever mounts it in
an application of their own.

**Where a page of the console goes:** ``ondol.http.console`` has a function ``pages(looks) -> APIRouter``. It
is included below, at the root, beside ``/v1``. A page takes ``request.state.caller`` (a ``Caller``, or None where the
request came without a token that counts: then ``request.state.refused`` says why, and the page asks for one; the
cookie ``callers.COOKIE`` counts as a token), and calls the same ``Service`` as the routes of ``/v1``. Its forms may be
``application/x-www-form-urlencoded``: ``guard`` has checked that they come from a page of this server. Live updates
read ``/v1/runs/{run}/events`` and ``/v1/sessions/{session}/events``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ondol import errors
from ondol.errors import Forbidden, InvalidInput, Malformed, NotFound, OndolError
from ondol.http import console, routes_asks, routes_memory, routes_outbox, routes_rest, routes_runs, routes_sessions
from ondol.http.console.looks import Looks
from ondol.http.description import describe
from ondol.http.drain import Drain
from ondol.http.guard import Admission, Guard
from ondol.http.memories import Memories
from ondol.http.metrics import METHODS, Metrics
from ondol.http.problems import internal, problem
from ondol.http.requests import SLASH, place, said
from ondol.http.service import HEARTBEAT, Service
from ondol.runtime import Runtime
from ondol.secret import logger

log = logger("ondol.http")

#: Headers that a page from elsewhere may send, and read, where its origin is allowed.
_SENT = ["authorization", "content-type", "idempotency-key", "if-match", "prefer", "last-event-id"]
_SHOWN = ["location", "etag", "idempotency-key", "idempotent-replayed", "ondol-on-disconnect", "retry-after"]


class App:
    """The application. ``drain`` is how whoever runs it says that it is about to stop."""

    def __init__(self, runtime: Runtime, admission: Admission, heartbeat: float, longest: float | None) -> None:
        self.runtime, self.drain, self.metrics = runtime, Drain(longest, runtime._streams.hurry, self._rest), Metrics()
        self.service = Service(runtime, self.drain, heartbeat=heartbeat)
        looks = Looks(self.service)
        self.api = _api(self.service, self.drain, self.metrics, looks)
        app: ASGIApp = Guard(self.api, runtime, admission, self.drain, looks.answer)
        if admission.origins:
            app = _Cors(
                app, allow_origins=list(admission.origins), allow_methods=["*"],
                allow_headers=_SENT, expose_headers=_SHOWN,
            )  # fmt: skip
        self._app = self.metrics.around(_heads(app))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _rest(self) -> None:
        if self.runtime.is_open:
            await self.runtime.drain()

    def openapi(self) -> dict[str, Any]:
        """The description of what there is, OpenAPI 3.1."""
        return self.api.openapi()


def _heads(app: ASGIApp) -> ASGIApp:
    """The application, where HEAD is answered as GET is, without the content. RFC 9110, 9.3.2."""

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await app(scope, receive, send)
            return
        begun = asyncio.Event()

        async def gone() -> Message:  # who asks for the head of a stream waits for no event
            await begun.wait()
            return {"type": "http.disconnect"}

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                begun.set()

        await app({**scope, "method": "GET"}, gone, sending)
        await send({"type": "http.response.body", "body": b""})

    return answering


class _Cors(CORSMiddleware):
    """Pages from elsewhere that may use the door. Any other is told so as the guard does."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        asked = request_headers["origin"], request_headers["access-control-request-method"]
        refused = Forbidden(
            "a page of {!r} may not send {!r} like that: 'ondol serve --allow-origin' says which may".format(*asked)
        )
        return problem(refused)


def make_app(
    runtime: Runtime, admission: Admission | None = None, *, heartbeat: float = HEARTBEAT, longest: float | None = None
) -> App:
    """An ASGI application over a runtime, which it opens and closes with itself unless it is open already.

    A stream in which nothing happens has a comment every ``heartbeat`` seconds; none lasts longer than ``longest``.
    """
    return App(runtime, admission or Admission(), heartbeat, longest)


def _api(service: Service, drain: Drain, metrics: Metrics, looks: Looks) -> FastAPI:
    from ondol import __version__

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if service.rt.is_open:
            yield
            return
        async with service.rt:
            yield

    api = FastAPI(
        title="Ondol", version=__version__, lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None,
        description="The durable execution lifecycle under AI agents. Errors are RFC 9457 problems.",
        redirect_slashes=False,
    )  # fmt: skip
    for router in (
        routes_runs.routes(service, drain), routes_sessions.routes(service, drain), routes_asks.routes(service),
        routes_memory.routes(Memories(service.rt)), routes_outbox.routes(service), routes_rest.routes(service),
        routes_rest.watching_over(service, drain, metrics), console.pages(looks),
    ):  # fmt: skip
        api.routes.extend(router.routes)  # ``include_router`` would make each once more, at the first request
    _add_errors(api, looks)
    described: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not described:
            described.update(describe(api))
        return described

    api.openapi = openapi  # type: ignore[method-assign]

    @api.get("/openapi.json", include_in_schema=False)
    async def show_openapi() -> Response:
        return JSONResponse(api.openapi())

    return api


def _add_errors(api: FastAPI, looks: Looks) -> None:
    """Every answer that is no success is a problem, or the page of one."""

    @api.exception_handler(OndolError)
    async def ours(request: Request, error: OndolError) -> Response:
        if isinstance(error, errors.RevisionConflict) and "if-match" not in request.headers:
            return await looks.answer(request, error, 409)
        response = await looks.answer(request, error)
        if response.status_code >= 500:
            log.warning("%s %s: %s", request.method, request.url.path, error)
        return response

    @api.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> Response:
        return await looks.answer(request, InvalidInput(said(error.errors())))

    @api.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        where = f"{request.method} {place(request).replace(SLASH, '%2F')}"
        match error.status_code:
            case 404:
                nothing = NotFound(f"there is nothing at {where}: /openapi.json says what there is")
                return await looks.answer(request, nothing)
            case 405:
                impossible = Malformed(f"{where} is not possible: /openapi.json says what is")
                response = await looks.answer(request, impossible, 405)
                response.headers["allow"] = ", ".join(_methods_at(api, request.scope))
                return response
            case status:
                return await looks.answer(request, Malformed(f"{where}: {error.detail}"), status)

    @api.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        log.error("%s %s", request.method, request.url.path, exc_info=error)
        return await looks.answer(request, internal(error))


def _methods_at(api: FastAPI, scope: Scope) -> list[str]:
    """The methods that an address has."""

    def takes(method: str) -> bool:
        return any(r.matches({**scope, "method": method})[0] is Match.FULL for r in api.routes)

    return [m for m in METHODS if takes("GET" if m == "HEAD" else m)]


__all__ = ["App", "make_app"]
