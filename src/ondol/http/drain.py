"""Is this process about to stop, and which streams are open?"""

from __future__ import annotations

from collections.abc import Callable


class Drain:
    """Of one application. Once it has begun no new work is taken; streams end when ``end_streams`` is called, or by
    themselves after ``longest`` seconds: their readers come back for the rest."""

    def __init__(self, longest: float | None = None) -> None:
        self.begun, self.longest = False, longest
        self._ends: set[Callable[[], None]] = set()

    @property
    def streams(self) -> int:
        """Streams that are open now."""
        return len(self._ends)

    def begin(self) -> None:
        self.begun = True

    def end_streams(self) -> None:
        for end in list(self._ends):
            end()

    def opened(self, end: Callable[[], None]) -> None:
        """A stream is open: ``end`` ends it."""
        self._ends.add(end)

    def closed(self, end: Callable[[], None]) -> None:
        self._ends.discard(end)
