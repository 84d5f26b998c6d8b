"""How does a page become an answer? Templates, what each of them knows, and the headers that keep a page to itself."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ondol import schemas, values
from ondol.errors import OndolError, Unauthenticated
from ondol.handles import ENDED
from ondol.http.callers import Caller
from ondol.http.console import shown
from ondol.http.problems import failure_headers, problem, status_of
from ondol.http.requests import place, wants_page
from ondol.http.service import Service
from ondol.ids import DEFAULT_TENANT
from ondol.showing import called, exact, short

T = TypeVar("T")
STOPPED = ("parked", "definition_changed")  # kinds of asks: about a run, which goes on when somebody says so
COUNTED = 1_000  # asks at most: each page shows how many there are
_MOST_SHOWN = 20_000  # characters of one text, on a page that is sent again whenever something happens
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "ondol_theme"

#: A page runs what this server serves and nothing else: no script or style of a page itself, none from elsewhere.
HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # 'no-referrer' would take the origin from forms, by which they are checked
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How much waits for a person: effects of which nobody knows whether they happened, runs that were stopped, and
    other asks."""

    asks: int = 0
    unknown: int = 0
    stopped: int = 0
    more: str = ""  # "+" where nobody counted further


@cache
def _templates() -> Environment:
    """Each is compiled once in a process."""
    from ondol import __version__

    env = Environment(
        loader=PackageLoader("ondol.http.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=shown.finalized,
    )  # fmt: skip
    env.filters |= {
        "look": shown.look, "said": shown.said, "kept": shown.kept, "pretty": shown.pretty, "plain": shown.plain,
        "exact": exact, "lines": shown.lines, "lasted": shown.lasted, "number": shown.number, "size": shown.size,
        "short": short, "encoded": values.encode, "described": schemas.described,
    }  # fmt: skip
    env.globals |= {
        "called": called, "version": __version__, "money": shown.money, "options": shown.options, "last": shown.last,
        "most_shown": _MOST_SHOWN, "ended": ENDED,
        "new_key": lambda: secrets.token_hex(8),
    }  # fmt: skip
    return env


class Looks:
    """Renders pages over one ``Service``."""

    def __init__(self, service: Service) -> None:
        self.service = service
        file = getattr(service.rt._store, "path", None)
        self.file = file if isinstance(file, Path) else None
        self.command = shown.Commands(self.file)
        self._through_server = shown.Commands(self.file, of_server=True)

    async def page(
        self, request: Request, template: str, *, status: int = 200, caller: Caller | None = None, **context: Any
    ) -> Response:
        root = request.scope.get("root_path", "")
        now = self.service.rt.clock.now()
        own_zone = self.service.rt.time_zone
        theme = request.cookies.get(THEME_COOKIE, "auto")
        command = self.command if caller is None or caller.tenant == DEFAULT_TENANT else self._through_server
        text = _templates().get_template(template).render(
            me=caller, root=root, command=command, at_store=self.command, now=now,
            theme=theme if theme in THEMES else "auto",
            own_zone=own_zone,
            here=_here(request) if request.method == "GET" else "/",
            href=lambda path, *parts, **q: root + shown.address(path, *parts, **q),
            time=lambda at, zone=None: shown.moment(at, zone or own_zone, now),
            waiting=await self._waiting(caller), **context,
        )  # fmt: skip
        return Response(text.encode(), status, HEADERS, media_type="text/html; charset=utf-8")

    async def _waiting(self, caller: Caller | None) -> Waiting:
        if caller is None or not (caller.is_admin or "read" in caller.scopes):
            return Waiting()
        of_kind = dict(await self.service.waiting(caller, COUNTED))
        more = "+" if sum(of_kind.values()) == COUNTED else ""
        unknown, stopped = of_kind.pop("unknown_effect", 0), sum(of_kind.pop(kind, 0) for kind in STOPPED)
        return Waiting(asks=sum(of_kind.values()), unknown=unknown, stopped=stopped, more=more)

    async def failed(self, request: Request, error: OndolError, status: int | None = None) -> Response:
        """The page of an error: what is wrong, and what mends it. ``status``: another than that of its code."""
        status = status or status_of(error)
        if isinstance(error, Unauthenticated):
            response = await self.page(request, "sign_in.html", status=status, error=error, next=_asked(request))
        else:
            page = partial(self.page, request, "error.html", status=status, error=error, status_code=status)
            try:
                response = await page(caller=request.state.caller)
            except OndolError:  # the store cannot even say how much waits for a person
                response = await page()
        response.headers.update(failure_headers(error.code, status))
        return response

    async def answer(self, request: Request, error: OndolError, status: int | None = None) -> Response:
        """What an error is to whoever asks: a page to a browser, a problem to a program."""
        return await self.failed(request, error, status) if wants_page(request) else problem(error, status)

    def route(self) -> type[APIRoute]:
        """Routes whose errors are pages."""
        looks = self

        class Page(APIRoute):
            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                handler = super().get_route_handler()
                return partial(_or_its_error, looks, handler)

        return Page

    def to(self, request: Request, path: str, *parts: str, **query: object) -> Response:
        """What a form answers: go and look at this page."""
        return RedirectResponse(
            request.scope.get("root_path", "") + shown.address(path, *parts, **query), 303, dict(HEADERS)
        )

    def back(self, request: Request, next: object, otherwise: str, *parts: str) -> Response:
        """As ``to``, where the form came from, if it says so."""
        if isinstance(next, str) and is_local(next):
            return RedirectResponse(request.scope.get("root_path", "") + next, 303, dict(HEADERS))
        return self.to(request, otherwise, *parts)


async def _or_its_error(
    looks: Looks, handler: Callable[[Request], Coroutine[Any, Any, Response]], request: Request
) -> Response:
    try:
        return await handler(request)
    except OndolError as error:
        return await looks.failed(request, error)


def is_local(path: str) -> bool:
    """Does it lead to a page of this server, and nowhere else?"""
    return re.fullmatch(r"/(?![/\\])[\x21-\x7e]*", path) is not None


def _asked(request: Request) -> str:
    if request.method != "GET":
        return "/"
    asked = _here(request)
    return asked if is_local(asked) else "/"


def _here(request: Request) -> str:
    """The page that is asked for, as its address says it below the place where the door is mounted."""
    query = request.scope["query_string"].decode("latin-1")
    return f"{place(request)}?{query}" if query else place(request)
