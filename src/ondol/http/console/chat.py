"""How does a session read as a conversation? One turn a run, whatever became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ondol import watching
from ondol.errors import CursorExpired
from ondol.events import Event
from ondol.handles import ENDED, Ask, Effect, Run
from ondol.http.steps import StepBody, steps_of
from ondol.messages import Attachment, Message
from ondol.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A run: what was said to it, its steps, what it asks now. ``input`` is None where it was erased.

    ``effects`` are its calls by id, as they stand: with the arguments that a person put in the place of the model's.
    ``draft`` names the answer that is being written now, of which nothing is stored.
    """

    run: Run
    input: str | None
    attachments: tuple[Attachment, ...]
    steps: Sequence[StepBody]
    effects: Mapping[str, Effect]
    asks: Sequence[Ask]
    cut: bool
    draft: str | None

    @property
    def is_over(self) -> bool:
        return self.run.status in ENDED


async def turns(rt: Runtime, runs: Iterable[Run], asks: Iterable[Ask]) -> list[Turn]:
    """The turns of these runs of one session, in their order, with the asks that are open in it."""
    open_asks = list(asks)

    async def one(run: Run) -> Turn:
        events = await recorded(rt, run)
        mine = [a for a in open_asks if a.run == run.id]
        return turn(run, events, await run.messages(), await run.effects(), mine)

    return list(await asyncio.gather(*map(one, runs)))


async def recorded(rt: Runtime, run: Run) -> list[Event]:
    """What is stored of what happened in a run; nothing where it was erased."""
    try:
        return await watching.recorded(rt._read, run.tenant, run.id)
    except CursorExpired:
        return []


def turn(
    run: Run, events: Sequence[Event], messages: Sequence[Message], effects: Sequence[Effect], asks: Sequence[Ask]
) -> Turn:  # fmt: skip
    first = messages[0] if messages and messages[0].role == "user" else None
    steps = steps_of(events)
    writing = run.status == "running" and bool(steps) and steps[-1]["text"] is None
    return Turn(
        run=run,
        input=None if first is None else first.text,
        attachments=() if first is None else tuple(p for p in first.parts if isinstance(p, Attachment)),
        steps=steps,
        effects={e.id: e for e in effects},
        asks=asks,
        cut=any(e.type == "run.queued" and e.data["why"] == "recovered" for e in events),
        draft=f"{run.id}-{steps[-1]['step']}" if writing else None,
    )


def place(runs: Iterable[Run]) -> str | None:
    """Where a watcher of the session goes on that has seen these runs as they are, the newest first: its cursor."""
    known = list(runs)
    seen = {r.id: r._row.next_seq - 1 for n, r in enumerate(known) if n == 0 or r.status not in ENDED or r.retryable}
    return str(watching.SessionPlace(seen)) if seen else None
