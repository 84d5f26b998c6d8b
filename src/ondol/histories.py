"""What was said in a session before, and how is it kept at hand?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from ondol import context, messages, queries
from ondol.messages import Message
from ondol.records import SessionRow
from ondol.store import Store


@dataclass(frozen=True, slots=True)
class History:
    """The committed messages of a session up to a sequence, with their chained hash."""

    until: int
    messages: tuple[Message, ...]
    chain: bytes
    size: int  # characters of the stored bodies


class HistoryCache:
    """Histories of sessions that ran here lately, so that a warm turn reads only what is new."""

    LIMIT = 8_000_000  # characters of stored bodies, over all sessions

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, int], History] = OrderedDict()
        self._size = 0

    async def load(self, store: Store, session: SessionRow) -> History:
        key = (session.tenant, session.id, session.created_at)
        known = self._kept.get(key) or History(0, (), context.EMPTY_CHAIN, 0)
        if known.until == session.next_message:
            return known
        new = await store.read(queries.read_history, session.tenant, session.id, known.until, session.next_message)
        bodies = [m.body for m in new]
        return self._keep(key, _extended(known, session.next_message, [messages.loads(b) for b in bodies], bodies))

    def committed(
        self, session: SessionRow, before: History, own: Sequence[Message], bodies: Sequence[str], until: int
    ) -> None:
        self._keep((session.tenant, session.id, session.created_at), _extended(before, until, own, bodies))

    def _keep(self, key: tuple[str, str, int], history: History) -> History:
        old = self._kept.pop(key, None)
        self._size += history.size - (old.size if old else 0)
        self._kept[key] = history
        while self._size > self.LIMIT and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._size -= dropped.size
        return history


def _extended(before: History, until: int, own: Sequence[Message], bodies: Sequence[str]) -> History:
    chain = context.extend_chain(before.chain, bodies)
    return History(until, (*before.messages, *own), chain, before.size + sum(map(len, bodies)))
