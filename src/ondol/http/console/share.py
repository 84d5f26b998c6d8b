"""What takes the room in what a model saw?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ondol import sizes, values
from ondol.messages import Attachment, Message, Reasoning, Text, ToolCall, ToolResponse
from ondol.seeing import SeenContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of a request: about so many tokens, from ``x`` on, ``width`` wide in a drawing of 1000."""

    name: str
    tone: str
    tokens: int
    x: float
    width: float


#: In the order in which a request is read.
_NAMES = {
    "instructions": "Instructions", "tools": "Tools", "user": "People", "assistant": "Answers",
    "reasoning": "Reasoning", "calls": "Calls", "results": "Results", "files": "Attachments",
    "notes": "Notes of the runtime",
}  # fmt: skip


def shares(seen: SeenContext) -> list[Share]:
    """The parts of a request that take any room, by a rough estimate: a token is about four bytes."""
    weights = dict.fromkeys(_NAMES, 0)
    weights["tools"] = len(values.dumps(values.encode(seen.definition.get("tools", []))).encode())
    for message in seen.messages:
        for name, weight in _weighed(message):
            weights[name] += weight
    counted = {name: sizes.tokens(weight) for name, weight in weights.items() if weight}
    total, x, made = sum(counted.values()) or 1, 0.0, list[Share]()
    for name, tokens in counted.items():
        width = tokens / total * 1000
        made.append(Share(name=_NAMES[name], tone=name, tokens=tokens, x=round(x, 1), width=round(width, 1)))
        x += width
    return made


def total(parts: Sequence[Share]) -> int:
    return sum(p.tokens for p in parts)


def _weighed(message: Message) -> Iterable[tuple[str, int]]:
    for part in message.parts:
        match part:
            case Attachment():
                yield "files", sizes.weight_of_attachment(part)
            case ToolCall():
                yield "calls", _size(message, part)
            case ToolResponse():
                yield "results", _size(message, part)
            case Reasoning():
                yield "reasoning", _size(message, part)
            case Text(text=text) if message.role == "system":
                yield "instructions", sizes.weight_of_text(text)
            case Text(text=text):
                by = "assistant" if message.role == "assistant" else "user"
                yield "notes" if message.origin == "runtime" else by, sizes.weight_of_text(text)
            case _:
                yield "assistant", _size(message, part)


def _size(message: Message, part: object) -> int:
    return sizes.weight_of(Message(message.role, (part,)))  # type: ignore[arg-type]
