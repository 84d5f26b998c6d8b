"""What becomes of a session that somebody compacts by hand?

Without a model: what is previewed is what is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ondol import carried, messages, sizes, values
from ondol.records import SessionRow
from ondol.transactions import Dropped
from ondol.view import Item, View, reference, turn_starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A compaction of a session, or the preview of one (not ``applied``).

    ``before`` and ``after`` are estimated tokens of what models are shown of its messages. ``first`` and ``last`` name
    the messages that ``summary`` stands for, both None where there was nothing to compact; ``kept`` counts the messages
    that stay as they are, ``pins`` the texts that are carried word for word. ``offered`` names the agents whose memory
    is offered what goes of their turns.
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
    offered: tuple[str, ...] = ()


class Plan(NamedTuple):
    """``seen`` is what is stored of it; None: there is nothing to compact."""

    row: SessionRow
    before: int
    after: int
    since: int
    kept: int
    summary: str
    seen: str | None
    offered: tuple[str, ...] = ()

    @property
    def dropped(self) -> list[Dropped]:
        return [Dropped(agent, self.row.shown.since, self.since) for agent in self.offered]

    def told(self, revision: int, *, applied: bool) -> Compaction:
        first, last = (None, None) if self.seen is None else (reference(0), reference(self.since - 1))
        return Compaction(
            session=self.row.id, revision=revision, applied=applied, before=self.before, after=self.after, first=first,
            last=last, kept=self.kept, pins=len(self.row.pinned.pinned), summary=self.summary, offered=self.offered,
        )  # fmt: skip


def plan(said: Sequence[tuple[int, str]], row: SessionRow, keep: int, learning: Sequence[str] = ()) -> Plan:
    """An excerpt for all but the last ``keep`` turns. ``said`` are the messages that are shown, with their places;
    ``learning`` are the agents that learn from turns."""
    items = [Item(place, m, sizes.weight_of_stored(body, m)) for place, body in said for m in [messages.loads(body)]]
    before = sizes.tokens(sum(i.weight for i in items) + sizes.weight_of_text(row.summary.text))
    turns = [*turn_starts(items), row.next_message]
    since = turns[len(turns) - 1 - keep] if len(turns) > keep else 0
    gone = [i for i in items if i.place < since]
    if not gone:
        return Plan(row, before, before, row.shown.since, len(items), row.summary.text, None)
    summary = carried.outline(gone, row.summary.text, carried.MOST)
    kept = [i for i in items if i.place >= since]
    seen = {"view": View(since=since).dumps(), "summary": summary, "by": "", "offered": list(learning)}
    after = sizes.tokens(sum(i.weight for i in kept) + sizes.weight_of_text(summary))
    return Plan(row, before, after, since, len(kept), summary, values.dumps(seen), tuple(learning))
