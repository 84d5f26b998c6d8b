"""What do all routes have in common?"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

PREFIX = "/v1"


def router(*tags: str, prefix: str = PREFIX) -> APIRouter:
    """Routes below ``prefix``, each with its function's name as its id. ``App`` takes them over as they are."""
    return APIRouter(prefix=prefix, tags=list(tags), generate_unique_id_function=lambda route: route.name)


def problems() -> dict[int | str, dict[str, Any]]:
    """What each route may answer when it fails."""
    shown = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "4XX": {"description": "The request was not taken: `code`, `detail` and `fix` say why.", "content": shown},
        "5XX": {"description": "The server could not do it.", "content": shown},
    }
