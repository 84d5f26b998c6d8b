"""How are the pages of the console put together? Files, who is let in, and the routes of both kinds."""

from __future__ import annotations

from importlib import resources
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ondol.errors import NotFound, Unauthenticated
from ondol.http.callers import COOKIE
from ondol.http.console import acting, looking, memory
from ondol.http.console.looks import HEADERS, THEME_COOKIE, THEMES, Looks

_FILES = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_YEAR = 365 * 24 * 3600  # seconds


def pages(looks: Looks) -> APIRouter:
    """All pages and forms of the console, to be included at the root."""
    router = APIRouter(route_class=looks.route(), include_in_schema=False)
    looking.add_to(router, looks)
    acting.add_to(router, looks)
    memory.add_to(router, looks)
    _add_files(router)
    _add_preferences(router, looks)
    return router


def _add_files(router: APIRouter) -> None:
    folder = resources.files("ondol.http.console") / "static"
    held = {name: (folder / name).read_bytes() for name in _FILES}

    @router.get("/static/{name}")
    async def file(name: str) -> Response:
        if name not in held:
            raise NotFound(f"there is no file {name!r}: the files of the console are {', '.join(held)}")
        headers = {**HEADERS, "cache-control": "no-cache"}
        return Response(held[name], 200, headers, media_type=_FILES[name])


def _add_preferences(router: APIRouter, looks: Looks) -> None:
    @router.post("/theme")
    async def choose_theme(request: Request) -> Response:
        """Light or dark, for this browser."""
        form = await request.form()
        chosen = form.get("theme")
        response = looks.back(request, form.get("next"), "/")
        response.set_cookie(THEME_COOKIE, next((t for t in THEMES if t == chosen), "auto"), **_cookie(request))
        return response

    @router.get("/sign-in")
    async def sign_in(request: Request) -> Response:
        return await looks.page(request, "sign_in.html", error=request.state.refused, next="/")

    @router.post("/sign-in")
    async def signed_in(request: Request) -> Response:
        """From now on this browser sends the token with every request."""
        form = await request.form()
        token = form.get("token")
        if not isinstance(token, str) or not token.strip() or not token.strip().isascii() or ";" in token:
            raise Unauthenticated("that is no token: 'ondol tokens create --scope read' makes one")
        response = looks.back(request, form.get("next"), "/")
        response.set_cookie(COOKIE, token.strip(), httponly=True, **_cookie(request))
        return response

    @router.post("/sign-out")
    async def sign_out(request: Request) -> Response:
        response = looks.to(request, "/sign-in")
        response.delete_cookie(COOKIE, path=_cookie(request)["path"])
        return response


def _cookie(request: Request) -> dict[str, Any]:
    """A proxy that has the certificate speaks HTTP to this server: which scheme a browser uses is in its ``Origin``."""
    root = request.scope.get("root_path", "") or "/"
    encrypted = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    return {"path": root, "max_age": _YEAR, "samesite": "lax", "secure": encrypted}
