"""What was said in a session before, and how is it kept at hand?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from ondol import context, messages, outputs, queries, sizes, view
from ondol.errors import StoreCorrupt
from ondol.messages import Message
from ondol.records import SessionRow
from ondol.store import Store
from ondol.view import Item


class History(NamedTuple):
    """The committed messages of a session from the place ``start`` up to ``until``: as a provider takes them, with the
    chain over them all. What was said before ``start`` no model is shown any more, so nobody reads it."""

    start: int
    until: int
    items: tuple[Item, ...]
    messages: tuple[Message, ...]  # of the items
    chain: bytes
    size: int  # characters of the stored bodies
    weight: int  # see ``sizes.weight``
    is_cut: bool  # a result in it was too long to be shown whole
    has_calls: bool
    heavy: tuple[int, ...]  # the places of images, files and the like


class Told(NamedTuple):
    """Committed messages that follow on a history: their bodies, and what of them a provider takes. ``is_cut``,
    ``has_calls`` and ``heavy`` are as in ``History``."""

    bodies: Sequence[str]
    items: Sequence[Item]
    is_cut: bool
    has_calls: bool
    heavy: Sequence[int]


NO_HISTORY = History(0, 0, (), (), context.EMPTY_CHAIN, 0, 0, False, False, ())


class HistoryCache:
    """Histories of sessions that ran here lately, so that a warm turn reads only what is new."""

    LIMIT = 8_000_000  # characters of stored bodies, over all sessions
    BESIDE = 1000  # that each session counts for beside these, also where nothing was said in it yet

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, int, str], History] = OrderedDict()
        self._size = 0

    async def load(self, store: Store, session: SessionRow, provider: str) -> History:
        """The session's history as this provider takes it. Raises StoreTooNew for a message of a newer version."""
        start, until = session.shown.since, session.next_message
        known = self._kept.get(_key(session, provider))
        if known is None or known.start != start:
            known = NO_HISTORY._replace(start=start, until=start)
        new = []
        if known.until != until:
            read = queries.read_window if known.until == start else queries.read_history
            new = await store.read(read, session, known.until, until)
            check_whole(session, new, until)
        said = [(m.seq, m.body, context.sendable(m.body, messages.loads(m.body), provider)) for m in new]
        items = [
            Item(place, sent, sizes.weight_of_stored(body, sent)) for place, body, sent in said if sent is not None
        ]
        is_cut = any(i.message.role == "tool" and outputs.is_cut(i.message) for i in items)
        heavy = [i.place for i in items if view.is_heavy(i.message)]
        told = Told([m.body for m in new], items, is_cut, any(i.message.calls for i in items), heavy)
        return self.extend(session, provider, known, told, until)

    def extend(self, session: SessionRow, provider: str, before: History, told: Told, until: int) -> History:
        """Keep the history with what was committed behind it."""
        chain = context.extend_chain(before.chain, told.bodies)
        added = [i.message for i in told.items]
        size, weight = before.size + sum(map(len, told.bodies)), before.weight + sum([i.weight for i in told.items])
        history = History(
            before.start, until, (*before.items, *told.items), (*before.messages, *added), chain, size, weight,
            before.is_cut or told.is_cut, before.has_calls or told.has_calls, (*before.heavy, *told.heavy),
        )  # fmt: skip
        key = _key(session, provider)
        old = self._kept.pop(key, None)
        self._size += history.size - old.size if old else history.size + self.BESIDE
        self._kept[key] = history
        while self._size > self.LIMIT and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._size -= dropped.size + self.BESIDE
        return history


def check_whole(session: SessionRow, said: Sequence[queries.StoredMessage], until: int) -> None:
    """Nothing is missing of what was said between the first of these messages and the place ``until``; message 0 of a
    run, which is what the runtime tells it, need not be there. Raises StoreCorrupt."""
    following = None
    for message in said:
        if following is not None and message.seq - following not in (0, int(message.ordinal == 1)):
            break
        following = message.seq + 1
    else:
        if following in (None, until):
            return
    raise StoreCorrupt(f"session {session.id} lacks message {following}: restore a backup (ondol db restore)")


def _key(session: SessionRow, provider: str) -> tuple[str, str, int, str]:
    return session.tenant, session.id, session.created_at, provider
