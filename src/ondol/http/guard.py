"""May this request come in at all?

It is looked at before its body is read and before anything is written: under which name the server was addressed and
from which page (a page elsewhere must not reach a server on your machine), whose token came with it, how large and how
slow its body is, and what is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ondol.errors import (
    Draining,
    Forbidden,
    Malformed,
    OndolError,
    TooLarge,
    TooSlow,
    Unauthenticated,
    UnsupportedMedia,
)
from ondol.http.callers import caller_of, is_loopback
from ondol.http.drain import Drain
from ondol.http.requests import DEEPEST, in_origin_form, is_page, json_of, path_with_slashes, place
from ondol.http.routing import PREFIX
from ondol.runtime import THROUGH, Runtime

Failed: TypeAlias = Callable[[Request, OndolError, int | None], Awaitable[Response]]
_CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
#: Headers that hold one thing. Those that hold a list may come in several lines. RFC 9110, 5.3.
_ONCE = ("authorization", "content-type", "idempotency-key", "if-match", "last-event-id")
_JSON = "application/json"
_FORM = "multipart/form-data"
_URLENCODED = "application/x-www-form-urlencoded"  # plain forms of the console's pages
_LINGER = 2.0  # seconds in which the rest of a body that is refused may come


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request may be.

    ``headers`` are bytes of all headers, ``body`` and ``upload`` of a JSON and of a multipart body, ``unknown`` of any
    body of somebody without a token that counts; ``depth`` is how deep JSON may nest, ``body_time`` the seconds in
    which a body must be there.
    """

    headers: int = 32_768
    body: int = 32_000_000
    upload: int = 64_000_000
    unknown: int = 16_384
    depth: int = DEEPEST
    body_time: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Who is let in. ``hosts`` are names by which the server is known beside those of this machine (``*``: any),
    ``origins`` pages from elsewhere that may use it (``https://app.example``)."""

    needs_token: bool = False
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    limits: Limits = Limits()


class Guard:
    """Around the whole application. A request that comes through has its ``Caller`` in ``request.state.caller``, or
    why it has none in ``request.state.refused`` (outside ``/v1`` that is for the page to answer), and what its body
    says in ``request.state.json``. ``failed`` is how an error is answered."""

    def __init__(
        self, app: ASGIApp, runtime: Runtime, admission: Admission, drain: Drain, failed: Failed
    ) -> None:  # fmt: skip
        self.app, self.runtime, self.admission, self.drain, self.failed = app, runtime, admission, drain, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        body = _Body(receive, self.admission.limits)
        in_origin_form(scope)
        scope["path"] = path_with_slashes(scope["path"], scope.get("raw_path"))
        of_this_request = {"caller": None, "refused": None, "json": None}
        scope["state"] = {**(scope.get("state") or {}), **of_this_request}
        started = False

        async def refuse(error: OndolError, status: int | None = None, *, close: bool) -> None:
            await body.discard()
            response = await self.failed(Request(scope), error, status)
            if close:  # its body was not read, so nothing more can come over this connection
                response.headers["connection"] = "close"
            await response(scope, receive, send)

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if not any(name == b"cache-control" for name, _ in message["headers"]):
                    message = {**message, "headers": [*message["headers"], (b"cache-control", b"no-store")]}
                if root := scope.get("root_path"):  # of the API, which names its places as it knows them
                    message = {**message, "headers": [_seen_from(root, *header) for header in message["headers"]]}
            await send(message)

        if (size := sum(len(name) + len(value) for name, value in scope["headers"])) > self.admission.limits.headers:
            error = TooLarge(f"the headers of the request have {size} bytes, and no more than are usual is taken")
            await refuse(error, 431, close=True)
            return
        try:
            await self._admit(scope, body)
        except OndolError as error:
            await refuse(error, close=not body.is_read)
            return
        door = scope["state"]["caller"].door if scope["state"]["caller"] is not None else "http"
        token = THROUGH.set(door)
        try:
            await self.app(scope, body.receive, sending)
        except (TooLarge, TooSlow) as error:  # of the body, which the application was reading
            if started:
                raise
            await refuse(error, close=True)
        finally:
            THROUGH.reset(token)

    async def _admit(self, scope: Scope, body: _Body) -> None:
        request = Request(scope)
        path = place(request)
        for name in _ONCE:
            if len(request.headers.getlist(name)) > 1:
                raise Malformed(f"the request has several lines {name!r}, and only one can count: send one")
        open_to_all = path in ("/healthz", "/readyz") or path.startswith("/static/")  # how a refusal looks, too
        if not open_to_all:
            self._check_names(request)
            try:
                scope["state"]["caller"] = await caller_of(
                    self.runtime, _lower(request), request.client.host if request.client else None,
                    needs_token=self.admission.needs_token, way="console" if is_page(path) else "http",
                )  # fmt: skip
            except Unauthenticated as refused:
                if path.startswith("/v1/") or path == "/metrics":
                    raise
                scope["state"]["refused"] = refused
        if request.method in _CHANGES:
            if self.drain.begun:
                raise Draining("this process stops: send the request again, another one takes over")
            state = scope["state"]
            await body.check(request, path, unknown=state["caller"] is None, refused=state["refused"])

    def _check_names(self, request: Request) -> None:
        """Raises Forbidden for a name that is not the server's, and for a page from elsewhere."""
        host = request.headers.get("host", "")
        name = _name(host)
        known = is_loopback(name) or name in self.admission.hosts or "*" in self.admission.hosts
        if not known and not (self.admission.needs_token and not self.admission.hosts):
            raise Forbidden(
                f"this server is not known as {host!r}: 'ondol serve --allow-host {name or 'NAME'}' says so"
            )
        origin = request.headers.get("origin")
        if origin is not None and origin not in self.admission.origins and not _same(origin, host):
            raise Forbidden(
                f"a page of {origin!r} may not use this server: 'ondol serve --allow-origin' says which may"
            )
        followed = request.method not in _CHANGES and request.headers.get("sec-fetch-mode") == "navigate"  # a link
        if origin is None and request.headers.get("sec-fetch-site") == "cross-site" and not followed:
            raise Forbidden("a page from elsewhere may not use this server")


def _seen_from(root: str, name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """A header of an answer, where the door is mounted below ``root``."""
    is_ours = name == b"location" and value.startswith(f"{PREFIX}/".encode())
    return name, quote(root).encode() + value if is_ours else value


def _name(host: str) -> str:
    """The host without its port, as it is compared."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _same(origin: str, host: str) -> bool:
    scheme, _, place = origin.partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme, "")
    return bool(place) and place.lower().removesuffix(default) == host.lower().removesuffix(default)


def _lower(request: Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


class _Body:
    """A request's body on its way in. JSON is read as a whole, looked at, and handed on; files pass through."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self._read: bytes | None = None
        self._handed_on = False
        self._taken, self._limit = 0, limits.body
        self._deadline: float | None = None
        self._refused: Unauthenticated | None = None
        self._is_held_back = False  # until it is asked for: "Expect: 100-continue"
        self.is_read = True

    async def check(self, request: Request, path: str, *, unknown: bool, refused: Unauthenticated | None) -> None:
        """``unknown``: nobody knows who sends it, as ``refused`` says. What is too large of them is not theirs to send.

        Raises TooLarge, TooSlow, UnsupportedMedia, Malformed, InvalidInput, Unauthenticated; so does reading the rest.
        """
        length = request.headers.get("content-length", "")
        if "content-length" in request.headers and not length.isdecimal():
            raise Malformed(f"Content-Length {length!r} is no number")
        has_body = int(length or 0) > 0 or "transfer-encoding" in request.headers
        if not has_body:
            return
        self.is_read = False
        self._is_held_back = request.headers.get("expect", "").lower() == "100-continue"
        if (coding := request.headers.get("content-encoding", "identity").strip().lower()) != "identity":
            raise UnsupportedMedia(f"a body that is encoded ({coding}) is not taken: send it without Content-Encoding")
        self._deadline = asyncio.get_running_loop().time() + self._limits.body_time
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        taken = (_JSON, _FORM, _URLENCODED) if is_page(path) else (_JSON, _FORM) if path.endswith("/runs") else (_JSON,)
        if media not in taken:
            raise UnsupportedMedia(f"a body of type {media or 'nothing'!r} is not taken: send {_JSON}")
        self._limit = self._limits.upload if media == _FORM else self._limits.body
        if unknown:
            self._limit, self._refused = min(self._limit, self._limits.unknown), refused
        if int(length or 0) > self._limit:
            raise self._too_large()
        if media == _JSON:
            chunks = []
            while True:
                message = await self.receive()
                chunks.append(message.get("body", b""))
                if not message.get("more_body"):
                    break
            self._read = b"".join(chunks)
            if not (encoding := json.detect_encoding(self._read)).startswith("utf-8"):
                raise Malformed(f"the body is encoded as {encoding}: send JSON in UTF-8")
            try:
                request.state.json = json_of(self._read, self._limits.depth) if self._read else None
            except ValueError as error:
                raise Malformed(f"the body cannot be read as JSON: {error}") from error

    async def receive(self) -> Message:
        if self._read is not None and not self._handed_on:
            self._handed_on = True
            return {"type": "http.request", "body": self._read, "more_body": False}
        if self.is_read:
            return await self._receive()
        self._is_held_back = False
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            limit = self._limits.body_time
            raise TooSlow(f"the body of the request was not there after {limit:g} s: send it at once") from error
        if message["type"] == "http.disconnect":
            raise Malformed("the body of the request ended before its end")
        self._taken += len(message.get("body", b""))
        if self._taken > self._limit:
            raise self._too_large()
        self.is_read = not message.get("more_body")
        return message

    async def discard(self) -> None:
        """Take what is still coming, for a moment: a client that is cut off while it sends does not hear why."""
        if self.is_read or self._is_held_back:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while not self.is_read:
                    message = await self._receive()
                    self.is_read = message["type"] == "http.disconnect" or not message.get("more_body")

    def _too_large(self) -> OndolError:
        return self._refused or TooLarge(
            f"the body of the request has more than {self._limit} bytes, and no more is taken: send less"
        )
