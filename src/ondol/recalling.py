"""What does a run remember, and what will it have remembered?

Its scope comes from the run, never from the model. What its tools change is recorded with their outcome and written by
the run's commit; a run that does not commit changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ondol import context, lookups, terms, values
from ondol.clock import from_micros, micros
from ondol.lookups import FoundFact
from ondol.memory import MEMORY_TOOLS, Memory, tells_marked
from ondol.messages import Attachment, Message, Part, ToolResponse
from ondol.outputs import READ_MORE
from ondol.secret import redact
from ondol.tools import Remembered
from ondol.transactions import Changes, NewFact, Scope

if TYPE_CHECKING:
    from ondol.runner import Drive

_OWN_TOOLS = frozenset(t.name for t in (*MEMORY_TOOLS, READ_MORE))
_MOST_SHOWN = 20  # facts of one automatic recall
_FOUND = 40  # facts that are looked at for it


class Recalled(NamedTuple):
    """Facts that a context shows, as the journal has them; see ``events.ContextBuilt``."""

    recalled: tuple[tuple[Any, ...], ...] = ()
    recalled_by: tuple[str, ...] = ()


class RunMemory:
    """The memory of one claimed run."""

    def __init__(self, drive: Drive, memory: Memory) -> None:
        self.drive, self.memory = drive, memory
        row = drive.row
        self.scope = Scope(row.tenant, row.agent, row.user_id)

    async def find(self, query: str, limit: int) -> list[FoundFact]:
        """The facts that fit best, by words and, where there is an embedder that answers, by vectors."""
        embedding, now = self.drive.runner.embedding, micros(self.drive.clock)
        near = await embedding.near(query)
        found = await self.drive.store.read(lookups.find_facts, self.scope, query, now, limit, near)
        embedding.look(self.scope)
        return found

    async def shown(self, request: str) -> Recalled:
        """The facts that a context shows: those that fit the request best, within the budget of characters."""
        if not self.memory.recall:
            return Recalled()
        room = self.memory.recall
        chosen: list[tuple[Any, ...]] = []
        methods: list[str] = []
        for fact, text, hit, by in await self.find(request, _FOUND):
            by_terms = " ".join(t.rstrip(terms.END) for t in hit.terms)
            one = (fact.id, values.valid(text), hit.score, by_terms, bool(fact.untrusted))
            size = len(context.recalled_text([*chosen, one]))
            if size <= room and len(chosen) < _MOST_SHOWN:
                chosen.append(one)
                methods.append(by)
        return Recalled(tuple(chosen), () if set(methods) <= {"words"} else tuple(methods))

    def changes(self) -> Changes | None:
        """What the commit writes."""
        said = [
            NewFact(change[1], change[2], change[3]) if change[0] == "remember" else str(change[1])
            for change in self.drive.state.remembered()
        ]
        keep = None if self.memory.keep is None else int(self.memory.keep.total_seconds() * 1e6)
        return Changes(self.scope, said, keep) if said else None

    def sees_outside(self) -> bool:
        """Has the run's model seen anything that neither the user nor the agent's author wrote?

        Nobody looks behind a summary: what it stands for is believed to have held such things.
        """
        talk = self.drive.talk
        if talk.history.start:
            return True
        if any(r[-1] for r in (self.drive.state.shown.recalled if self.drive.state.shown else ())):
            return True
        return any(_is_from_outside(m) for m in (*(i.message for i in talk.history.items), *talk.messages.values()))


def _is_from_outside(message: Message) -> bool:
    if message.role == "tool":
        return any(_is_outside_result(p) for p in message.parts)
    return context.tells_results(message) or any(isinstance(p, Attachment) for p in message.parts)


def _is_outside_result(part: Part) -> bool:
    return not isinstance(part, ToolResponse) or part.name not in _OWN_TOOLS or tells_marked(part)


class CallMemory:
    """The memory as one call of a tool sees it; see ``tools.Remembers``. ``changes`` is what the call changes."""

    def __init__(self, run: RunMemory, call: int) -> None:
        self.run, self.call = run, call
        self.changes: list[list[Any]] = []

    async def recall(self, query: str, limit: int) -> Sequence[Remembered]:
        drive = self.run.drive
        found = await self.run.find(query, limit)
        said = drive.state.remembered()
        gone = {change[1] for change in said if change[0] == "forget"}
        asked = terms.asked(query)
        fresh = [
            Remembered(id, text, drive.shown_now(), untrusted)
            for kind, id, text, untrusted in (c for c in said if c[0] == "remember")
            if id not in gone and any(term.is_in(terms.counted(text)) for term in asked)
        ]
        kept = [
            Remembered(f.fact.id, f.text, from_micros(f.fact.created_at), bool(f.fact.untrusted), f.by)
            for f in found
            if f.fact.id not in gone
        ]
        return [*fresh, *kept][:limit]

    def remember(self, fact: str) -> str:
        id = f"m_{self.run.drive.row.id[2:]}_{self.call}"
        self.changes.append(["remember", id, redact(values.valid(fact)), self.run.sees_outside()])
        return id

    async def forget(self, fact: str) -> bool:
        drive = self.run.drive
        said = any(change[:2] == ["remember", fact] for change in drive.state.remembered())
        stored = await drive.store.read(lookups.get_fact, self.run.scope, fact, micros(drive.clock))
        if said or stored is not None:
            self.changes.append(["forget", fact])
            return True
        return False
