"""What is reasoning whose server gives it as a list of details, and wants that back as it was?

OpenRouter began with it (https://openrouter.ai/docs/use-cases/reasoning-tokens), other gateways followed: so a model
behind it gets back what it signed or encrypted. Without that some refuse the results of their calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pydantic-ai takes about a second to import, and is an extra
    from pydantic_ai import messages as wire

_OURS = "reasoning_detail"  # in the details that the library keeps with a part
_APART = ("id", "text", "summary", "signature", "data")


def given(message: Any) -> list[dict[str, Any]]:
    """Those in a message of the client's, or in a piece of one."""
    said = (message.model_extra or {}).get("reasoning_details")
    return [detail for detail in said if isinstance(detail, dict)] if isinstance(said, list) else []


def fields(detail: dict[str, Any]) -> dict[str, Any]:
    """Of the ``ThinkingPart`` that it is."""

    def text(*names: str) -> str | None:
        return next((t for name in names if isinstance(t := detail.get(name), str) and t), None)

    rest = {name: value for name, value in detail.items() if name not in _APART}
    return {
        "id": text("id"), "content": text("text", "summary") or "", "signature": text("signature", "data"),
        "provider_details": {_OURS: rest},
    }  # fmt: skip


def key(detail: dict[str, Any], number: int) -> str:
    """What the pieces of one have in common. What is encrypted comes whole, and may have the index of another one."""
    kind = detail.get("type")
    own = detail.get("id") if kind == "reasoning.encrypted" else None
    return f"detail {kind} {detail.get('index', number)} {own}"


def taken_out(parts: Sequence[wire.ModelResponsePart]) -> tuple[list[dict[str, Any]], list[wire.ModelResponsePart]]:
    """The details among the parts of an answer, and the other parts."""
    details, others = [*_found(parts)], [part for part in parts if _rest(part) is None]
    return details, others


def _found(parts: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if (rest := _rest(part)) is not None:
            match rest.get("type"):
                case "reasoning.encrypted":
                    own = {"data": part.signature}
                case "reasoning.summary":
                    own = {"summary": part.content}
                case _:
                    own = {"text": part.content, "signature": part.signature}
            yield {**rest, "id": part.id, **own}


def _rest(part: Any) -> dict[str, Any] | None:
    return (getattr(part, "provider_details", None) or {}).get(_OURS)
