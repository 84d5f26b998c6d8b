"""What took how long in a run, and when did nothing happen? Rows and bars, from the events of one run.

Work is drawn to scale. Hours in which a run waited for a person, or lay in the queue, would leave no room for it: they
are drawn shorter, and marked (``shortened``). Where a process died nothing was written down: that is a gap, from the
last thing that is known of it to the first that the next process wrote.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from ondol.events import Event

Kind: TypeAlias = Literal["queued", "model", "tool", "waiting", "parked", "gap", "end"]
WIDTH = 1000.0  # of the whole drawing; bars are in these units
_LEAST = 5.0  # of a bar, so that it can be seen
_IDLE_SHARE = 0.2  # of the work in a drawing, that one stretch without work may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Something that took time. ``id`` stays the same while the run goes on; ``end`` is None while it does.

    ``state`` is one of a run or an effect, ``cut`` for what a dying process left, ``""`` for nothing to say. ``data``
    has what there is to say, by kind: a model's ``text``, ``model``, ``input``, ``output`` or ``error``, ``message``;
    a tool's ``effect``, ``tool``, ``class``, ``arguments``, ``result``, ``attempt``, ``by``; ``lost`` where nobody
    knows when it ended; the ``asks`` that are
    waited for; of an end, ``code``, ``message``, ``text``.
    """

    id: str
    kind: Kind
    title: str
    start: datetime
    end: datetime | None = None
    state: str = ""
    step: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    x: float = 0.0
    width: float = 0.0
    shortened: bool = False

    @property
    def took(self) -> timedelta | None:
        return None if self.end is None else self.end - self.start


def timeline(events: Iterable[Event], now: datetime) -> list[Row]:
    """The rows of a run in the order in which they began. What goes on is drawn until ``now``."""
    told = _Told()
    for event in events:
        told.add(event)
    begun = sorted(told.rows.values(), key=lambda row: row.start)
    return _drawn(begun, max(now, told.last) if told.last is not None else now)


class _Told:
    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.last: datetime | None = None
        self.step: int | None = None
        self._open: dict[str, str] = {}  # what goes on, and the id of its row

    def add(self, event: Event) -> None:
        data, at = event.data, event.at
        self.step = data.get("step", self.step)
        match event.type:
            case "run.accepted":
                self._begin("queued", "queued", "In the queue", at)
            case "run.queued" if data["why"] == "recovered":
                self._cut(at)
            case "run.queued":
                self._finish("rest", at)
                self._cut_work(at)
                words = {"decided": "Decided, in the queue", "released": "Handed over", "retried": "Tried again"}
                self._begin("queued", "queued", words.get(data["why"], "In the queue"), at)
            case "run.started" | "run.resumed":
                self._finish("queued", at)
                self._finish("rest", at)
            case "model.started":
                self._begin("model", "model", data.get("model") or "Model", at, step=self.step, state="running")
            case "model.completed":
                kept = {k: data.get(k) for k in ("text", "model", "input", "output", "cache_read", "stop")}
                self._finish("model", at, state="", **kept)
            case "step.failed":
                kept = {k: data.get(k) for k in ("error", "message", "attempt", "input", "output")}
                if "model" not in self._open:  # it could not even be asked
                    self._begin("model", "model", "Model", at, step=self.step)
                self._finish("model", at, state="failed", **kept)
            case "run.waiting":
                self._begin("rest", "waiting", "Waits for a person", at, state="waiting", data={"asks": data["asks"]})
            case "run.parked":
                kept = {"asks": [data["ask"]], "message": data["why"]}
                self._begin("rest", "parked", "Parked", at, state="parked", data=kept)
            case "run.completed" | "run.failed" | "run.cancelled" | "run.expired" | "run.joined":
                self._end(event)
            case kind if kind.startswith("effect."):
                self._effect(kind.removeprefix("effect."), event)
            case "ask.decided" if data.get("call") is not None and data["decision"] in ("approve", "deny"):
                self._change(f"effect {data['call']}", state="denied" if data["decision"] == "deny" else "approved")
            case _:
                pass
        self.last = at

    def _effect(self, what: str, event: Event) -> None:
        data, at, key = event.data, event.at, f"effect {event.data['call']}"
        match what:
            case "planned":
                reads = data["class"] == "read" and not data.get("ask")
                kept = {k: data.get(k) for k in ("effect", "tool", "class", "arguments", "parent", "reuses", "ask")}
                self._begin(key, "tool", data["tool"], at, step=self.step, data=kept)
                self._change(key, state="asked" if data.get("ask") else "planned", end=None if reads else at)
            case "started" if data["attempt"] > 1:
                before = self.rows[self._open[key]]
                if before.end is None:
                    self._change(key, end=self.last or at, state="cut", lost=True)
                kept = {**before.data, "attempt": data["attempt"]}
                self._begin(key, "tool", before.title, at, step=before.step, state="started", data=kept)
            case "started":
                self._change(key, start=at, end=None, state="started", attempt=1)
            case "succeeded" | "failed" | "unknown" | "abandoned" | "expired":
                row = self.rows[self._open[key]]
                kept = {k: data[k] for k in ("result", "reason", "by", "warning", "blob", "size", "ask") if k in data}
                was_open = row.end is None
                self._change(key, end=at if was_open else row.end, state=what, **kept)
            case "resolved":
                settled = {"happened": "succeeded", "not_happened": "approved"}  # who gives up knows no more
                self._change(key, state=settled.get(data["outcome"], "unknown"), settled=data["outcome"])
            case _:
                pass

    def _begin(
        self, key: str, kind: Kind, title: str, at: datetime, *, step: int | None = None, state: str = "",
        data: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._finish(key, at)
        id = f"t{len(self.rows)}"
        self.rows[id] = Row(id=id, kind=kind, title=title, start=at, state=state, step=step, data=data or {})
        self._open[key] = id

    def _change(self, key: str, *, start: datetime | None = None, end: Any = ..., state: str | None = None,
                **data: Any) -> None:  # fmt: skip
        if (id := self._open.get(key)) is None:
            return
        row = self.rows[id]
        self.rows[id] = replace(
            row, start=start or row.start, end=row.end if end is ... else end,
            state=row.state if state is None else state, data={**row.data, **data},
        )  # fmt: skip

    def _finish(self, key: str, at: datetime, state: str | None = None, **data: Any) -> None:
        if (id := self._open.get(key)) is not None and self.rows[id].end is None:
            self._change(key, end=at, state=state, **data)
        if not key.startswith("effect"):  # those are told of for longer
            self._open.pop(key, None)

    def _cut_work(self, at: datetime) -> None:
        """What was under way in the process that gave it up; its outcome, if any, comes later."""
        for key in list(self._open):
            row = self.rows[self._open[key]]
            if row.end is None and row.kind in ("model", "tool"):
                self._change(key, end=at, state="cut", lost=True)
                if row.kind == "model":
                    self._open.pop(key)

    def _cut(self, at: datetime) -> None:
        died = self.last or at
        self._cut_work(died)
        self._finish("queued", died)
        self._begin("gap", "gap", "The process ended here", died)
        self._finish("gap", at)
        self._begin("queued", "queued", "In the queue again", at)

    def _end(self, event: Event) -> None:
        for key in list(self._open):
            self._finish(key, event.at)
        state = event.type.removeprefix("run.")
        kept = {k: v for k, v in event.data.items() if k in ("code", "message", "text", "by", "reason", "host")}
        self._begin("end", "end", state.capitalize(), event.at, state=state, data=kept)
        self._finish("end", event.at)


def _drawn(rows: list[Row], now: datetime) -> list[Row]:
    """The rows with their bars."""
    if not rows:
        return rows
    over = [(r.start, max(r.end or now, r.start)) for r in rows]
    marks = sorted({t for span in over for t in span})
    works = [span for span, row in zip(over, rows, strict=True) if row.kind in ("model", "tool") and span[0] < span[1]]
    places, shortened = _scale(marks, works)
    total = places[-1] or 1.0
    drawn = []
    for row, (start, end) in zip(rows, over, strict=True):
        first, last = bisect_right(marks, start) - 1, bisect_right(marks, end) - 1
        x, upto = places[first] / total * WIDTH, places[last] / total * WIDTH
        width = min(max(upto - x, _LEAST), WIDTH)
        broken = any(shortened[first:last])
        drawn.append(replace(row, x=round(min(x, WIDTH - width), 1), width=round(width, 1), shortened=broken))
    return drawn


def _scale(marks: Sequence[datetime], works: Sequence[tuple[datetime, datetime]]) -> tuple[list[float], list[bool]]:
    """The place of each mark, and which stretches between two of them are shortened."""
    long: list[float] = []
    busy: list[bool] = []
    begun, over = Counter(start for start, _ in works), Counter(end for _, end in works)
    under_way = 0
    for before, after in pairwise(marks):
        long.append((after - before).total_seconds())
        under_way += begun[before] - over[before]
        busy.append(under_way > 0)
    worked = sum(n for n, is_busy in zip(long, busy, strict=True) if is_busy)
    most = worked * _IDLE_SHARE or float("inf")
    shortened = [not is_busy and n > most for n, is_busy in zip(long, busy, strict=True)]
    drawn = [most if short else n for n, short in zip(long, shortened, strict=True)]
    places = [0.0]
    for n in drawn:
        places.append(places[-1] + n)
    return places, shortened
