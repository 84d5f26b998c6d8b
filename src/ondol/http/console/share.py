"""What takes the room in what a model saw?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ondol.seeing import SeenContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of a request: about so many tokens, from ``x`` on, ``width`` wide in a drawing of 1000."""

    name: str
    tone: str
    tokens: int
    x: float
    width: float


_NAMES = {
    "instructions": "Instructions", "tools": "Tools", "memory": "Memory", "clock": "Clock", "carried": "Carried",
    "people": "People", "answers": "Answers", "reasoning": "Reasoning", "calls": "Calls", "results": "Results",
    "found": "Search hits", "files": "Attachments", "notes": "Notes of the runtime",
}  # fmt: skip


def shares(seen: SeenContext) -> list[Share]:
    """The parts of a request that take any room, in the order in which it is read."""
    whole, x, made = sum(seen.parts.values()) or 1, 0.0, list[Share]()
    for name, tokens in seen.parts.items():
        width = tokens / whole * 1000
        made.append(Share(name=_NAMES[name], tone=name, tokens=tokens, x=round(x, 1), width=round(width, 1)))
        x += width
    return made


def total(parts: Sequence[Share]) -> int:
    return sum(p.tokens for p in parts)
