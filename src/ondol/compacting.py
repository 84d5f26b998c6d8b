"""What becomes of a session that somebody compacts by hand?

Rules only: what goes, and what is stored. A summary is an excerpt, or what a model made of what goes (``summaries``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ondol import carried, context, messages, sizes, values
from ondol.messages import Message
from ondol.records import SessionRow
from ondol.transactions import Dropped
from ondol.view import Forms, Item, reference, turn_starts

_ROOM = 60_000  # characters of what goes that a model is sent, where no budget says how many


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A compaction of a session, or the preview of one (not ``applied``).

    ``before`` and ``after`` are estimated tokens of what models are shown of its messages. ``first`` and ``last`` name
    the messages that ``summary`` stands for, both None where there was nothing to compact; ``kept`` counts the messages
    that stay as they are shown, ``pins`` the texts that are carried word for word. ``offered`` names the agents whose
    memory is offered what goes of their turns. ``by`` is the model that wrote the summary, empty for an excerpt; in a
    preview it is the one that would be asked, and the summary is the excerpt. ``refused`` says why what a model wrote
    was not taken. ``tokens`` are the input and output of its call, None where nobody said.
    """

    session: str
    revision: int
    applied: bool
    before: int
    after: int
    first: str | None
    last: str | None
    kept: int
    pins: int
    summary: str
    by: str = ""
    refused: str = ""
    offered: tuple[str, ...] = ()
    tokens: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``gone`` is what goes: the messages from what is shown now on, up to the place ``since``. ``weights`` are those
    of what models are shown of the messages, before and after."""

    row: SessionRow
    since: int
    gone: Sequence[Item]
    kept: int
    weights: tuple[int, int]
    summary: str
    by: str = ""
    refused: str = ""
    spent: Mapping[str, Any] = field(default_factory=dict)
    offered: tuple[str, ...] = ()

    @property
    def seen(self) -> str:
        """As it is stored."""
        view = self.row.shown._replace(since=self.since)
        seen: dict[str, Any] = {"view": view.dumps(), "summary": self.summary, "by": self.by}
        if self.offered:
            seen["offered"] = list(self.offered)
        if (measured := self.row.measured) is not None:
            seen["measured"] = list(measured)
        return values.dumps(seen)

    @property
    def dropped(self) -> list[Dropped]:
        return [Dropped(agent, self.row.shown.since, self.since) for agent in self.offered]

    def question(self, budget: int | None) -> list[Message]:
        """What a model is asked, which is to have so many tokens in a request."""
        room = _ROOM if budget is None else budget * sizes.PER_TOKEN // 4
        return carried.request(self.gone, self.row.summary.text, room, self.length(budget))

    def length(self, budget: int | None) -> int:
        """Bytes that a summary may have."""
        return carried.MOST if budget is None else carried.room_for_summary(budget * sizes.PER_TOKEN)

    def told(self, revision: int, *, applied: bool, by: str | None = None) -> Compaction:
        """``by``: the model that would be asked."""
        first, last = (reference(0), reference(self.since - 1)) if self.gone else (None, None)
        before, after = self.weights
        return Compaction(
            session=self.row.id, revision=revision, applied=applied,
            before=sizes.tokens(before + sizes.weight_of_text(self.row.summary.text)),
            after=sizes.tokens(after + sizes.weight_of_text(self.summary)), first=first, last=last, kept=self.kept,
            pins=len(self.row.pinned.pinned), summary=self.summary, by=self.by if by is None else by,
            refused=self.refused, offered=self.offered, tokens=(self.spent.get("input"), self.spent.get("output")),
        )  # fmt: skip

    def summarised(self, text: str, by: str, refused: str, spent: Mapping[str, Any]) -> Plan:
        """With what a model made of it; an empty text leaves the excerpt."""
        return replace(self, summary=text or self.summary, by=by, refused=refused, spent=spent)


def plan(
    said: Sequence[tuple[int, str]], row: SessionRow, keep: int, described: str | None = None,
    learning: Sequence[str] = (),
) -> Plan:  # fmt: skip
    """An excerpt for all but the last ``keep`` turns, which stay as they are shown. ``said`` are the messages that are
    shown, with their places; ``described`` is the definition of the agent that had the last turn, as it is stored;
    ``learning`` are the agents that learn from turns."""
    items = [Item(place, m, sizes.weight_of_stored(body, m)) for place, body in said for m in [messages.loads(body)]]
    forms = Forms(items, () if described is None else context.repeatable(values.loads(described)))
    seen = row.shown._replace(payloads=row.next_message)
    size = forms.size(seen)
    turns = [*turn_starts(items), row.next_message]
    since = turns[len(turns) - 1 - keep] if len(turns) > keep else 0
    gone = [i for i in items if i.place < since]
    kept, weights = len(items) - len(gone), (size, forms.size(seen._replace(since=since)))
    if not gone:
        return Plan(row=row, since=seen.since, gone=(), kept=kept, weights=(size, size), summary=row.summary.text)
    summary = carried.outline(gone, row.summary.text, carried.MOST)
    return Plan(row=row, since=since, gone=gone, kept=kept, weights=weights, summary=summary, offered=tuple(learning))
