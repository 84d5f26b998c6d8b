"""What was said in a session before, and how is it kept at hand?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from ondol import context, messages, outputs, queries
from ondol.messages import Message
from ondol.records import SessionRow
from ondol.store import Store


class History(NamedTuple):
    """The committed messages of a session up to a sequence: as a provider takes them, with the chain over them all."""

    until: int
    messages: tuple[Message, ...]
    chain: bytes
    size: int  # characters of the stored bodies
    weight: int  # see ``context.weight``
    is_cut: bool  # a result in it was too long to be shown whole


NO_HISTORY = History(0, (), context.EMPTY_CHAIN, 0, 0, False)


class HistoryCache:
    """Histories of sessions that ran here lately, so that a warm turn reads only what is new."""

    LIMIT = 8_000_000  # characters of stored bodies, over all sessions

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, int, str], History] = OrderedDict()
        self._size = 0

    async def load(self, store: Store, session: SessionRow, provider: str) -> History:
        """The session's history as this provider takes it. Raises StoreTooNew for a message of a newer version."""
        known = self._kept.get(_key(session, provider)) or NO_HISTORY
        new = []
        if known.until != session.next_message:
            new = await store.read(queries.read_history, session, known.until, session.next_message)
        bodies = [m.body for m in new]
        sent = [m for b in bodies if (m := context.sendable(b, messages.loads(b), provider)) is not None]
        return self.extend(session, provider, known, bodies, sent, session.next_message)

    def extend(
        self,
        session: SessionRow,
        provider: str,
        before: History,
        bodies: Sequence[str],
        sent: Sequence[Message],
        until: int,
    ) -> History:
        """Keep the history with these committed bodies behind it, which the provider takes as ``sent``."""
        chain = context.extend_chain(before.chain, bodies)
        size, weight = before.size + sum(map(len, bodies)), before.weight + context.weight(bodies, sent)
        is_cut = before.is_cut or bool(outputs.blobs_of(sent))
        history = History(until, (*before.messages, *sent), chain, size, weight, is_cut)
        key = _key(session, provider)
        old = self._kept.pop(key, None)
        self._size += history.size - (old.size if old else 0)
        self._kept[key] = history
        while self._size > self.LIMIT and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._size -= dropped.size
        return history


def _key(session: SessionRow, provider: str) -> tuple[str, str, int, str]:
    return session.tenant, session.id, session.created_at, provider
