"""How is a run of another store looked at?"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from ondol import journal, messages
from ondol.errors import ReadOnly
from ondol.events import Event
from ondol.handles import Ask, Effect, Run, ask_of, effect_of
from ondol.messages import Message
from ondol.runfile import RunFile
from ondol.seeing import SeenContext, context_place, seen_context
from ondol.telling import cursor, event_of

if TYPE_CHECKING:
    from ondol.runtime import Runtime


class ImportedRun:
    """A run as it was when it was exported where it ran. It is a copy, and can be looked at: nothing drives it,
    decides its asks, or changes it.

    ``run`` has its properties; the verbs of the run and of its asks raise ReadOnly.
    """

    def __init__(self, file: RunFile) -> None:
        self._file = file
        self._nobody = cast("Runtime", _Nobody(file.run.id))
        self.run = Run(self._nobody, file.run)

    def __repr__(self) -> str:
        return f"<ImportedRun {self.run.id} {self.run.status} exported={self.exported_at.isoformat()}>"

    @property
    def id(self) -> str:
        return self._file.run.id

    @property
    def exported_at(self) -> datetime:
        return self._file.exported_at

    @property
    def blobs(self) -> dict[str, bytes | int]:
        """Attachments by digest: their bytes, or how many there are where the file leaves them out."""
        return dict(self._file.blobs)

    def effects(self) -> list[Effect]:
        """Every call that the run planned, in call order."""
        return [effect_of(e) for e in self._file.effects]

    def asks(self) -> list[Ask]:
        """All that was asked, in order."""
        return [ask_of(self._nobody, a) for a in self._file.asks]

    def messages(self) -> list[Message]:
        """The run's own messages, in order, committed or not."""
        return [messages.loads(m.body) for m in self._file.messages if m.ordinal >= 0]

    def events(self, after: str | None = None) -> list[Event]:
        """All that had happened, in order; with ``after``, what follows the event of that id."""
        seen = cursor(self.id, after)
        bodies = {m.ordinal: messages.loads(m.body) for m in self._file.messages}
        state, happened = journal.State(), []
        for batch in self._file.batches:
            for n, entry in enumerate(batch.entries, batch.seq):
                state = journal.apply(state, entry, batch.at)
                if n > seen:
                    happened.append(event_of(self.id, n, batch.at, entry, bodies, state))
        return happened

    def context(self, step: int | None = None) -> SeenContext:
        """What the model saw at a step (by default the last). Raises NotFound."""
        file = self._file
        place = context_place(self.id, file.batches, step)
        own = {m.ordinal: m.body for m in file.messages}
        # The file holds the history of the last context; an earlier one may have seen less of it.
        shown = place.shown
        history = [(m.seq or 0, m.body) for m in file.history if m.seq is None or shown.start <= m.seq < shown.history]
        told = file.carried.get(shown.carried, "")
        return seen_context(self.id, place, file.definitions.get(shown.definition), history, own, file.incomplete, told)


class _Nobody:
    """What stands in the place of a runtime."""

    def __init__(self, run: str) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Any:
        raise ReadOnly(self._run)
