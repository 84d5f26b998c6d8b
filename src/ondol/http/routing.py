"""What do all routes have in common?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

PREFIX = "/v1"


class Route(APIRoute):
    """Makes no schemas of its answers before it is described: they take longer than all else as a server starts."""

    def __init__(self, *args: Any, responses: dict[int | str, dict[str, Any]] | None = None, **more: Any) -> None:
        self._made_of = args, {"responses": responses, **more}
        super().__init__(*args, **more)

    def described(self) -> APIRoute:
        args, more = self._made_of
        return APIRoute(*args, **more)


def described(routes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """The routes with their answers, for who describes them."""
    return [route.described() if isinstance(route, Route) else route for route in routes]


def router(*tags: str, prefix: str = PREFIX) -> APIRouter:
    """Routes below ``prefix``, each with its function's name as its id. ``App`` takes them over as they are."""
    return APIRouter(
        prefix=prefix, tags=list(tags), route_class=Route, generate_unique_id_function=lambda route: route.name
    )  # fmt: skip


def problems() -> dict[int | str, dict[str, Any]]:
    """What each route may answer when it fails."""
    shown = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "4XX": {"description": "The request was not taken: `code`, `detail` and `fix` say why.", "content": shown},
        "5XX": {"description": "The server could not do it.", "content": shown},
    }
