"""What does the next request of a run consist of?

The system message, what the runtime carries, the session's history, and the run's own messages: each is made once and
extended, so that a step costs what it adds and not what was said before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ondol import carried, context, messages, outputs, sizes, view
from ondol.histories import NO_HISTORY, History, Told
from ondol.journal import Shown
from ondol.messages import Blob, Message
from ondol.view import Forms, Item, MadeForms, View


class Conversation:
    """The messages of one claimed run, as they are stored and as its model takes them."""

    def __init__(
        self,
        bodies: Mapping[int, str],
        stored: Mapping[int, Message],
        instructions: str,
        provider: str,
        repeatable: Collection[str] = (),
    ) -> None:
        self.bodies: dict[int, str] = {}
        self.messages: dict[int, Message] = {}
        self.call_ids: set[str] = set()
        self.carried: dict[str, str] = {"": ""}  # texts that the runtime carries, by digest
        self.repeatable = repeatable
        self.provider = provider
        self._history = NO_HISTORY
        self._weight = 0  # of the own messages
        self._is_cut = False  # one of them is
        self._heavy: list[int] = []  # the ordinals of those with images, files and the like
        self._instructions = instructions
        self._sendable: dict[int, Item] = {}  # by ordinal, which is also its place here
        self._made: MadeForms = {}
        self._sent: list[Message] = []  # as the last request had them, up to the ordinal _sent_upto
        self._sent_at: list[int] = []  # their ordinals
        self._sent_upto = 0
        self._chain, self._chained = context.EMPTY_CHAIN, 0  # over the bodies of own messages up to that ordinal
        self._ahead: tuple[
            tuple[int, int], Mapping[int, str], bytes
        ]  # the same with bodies that were not committed yet
        self._ahead = (-1, -1), {}, context.EMPTY_CHAIN
        self._system: tuple[Shown, Message, bytes] | None = None
        self._before: _Before | None = None
        for ordinal, body in bodies.items():
            self.keep(ordinal, body, stored[ordinal])

    @property
    def history(self) -> History:
        return self._history

    @history.setter
    def history(self, history: History) -> None:
        self._history, self._before = history, None

    def keep(self, ordinal: int, body: str, message: Message | None = None) -> None:
        """A message was committed. What tools of steps did (below zero) is part of no conversation."""
        self.messages[ordinal] = message = message or messages.loads(body)
        if ordinal < 0:
            return
        self.bodies[ordinal] = body
        if message.role == "assistant":
            self.call_ids.update([c.id for c in message.calls])
        attached = messages.ATTACHED in body
        weight = sizes.weight_of_stored(body, message) if attached else sizes.weight_of_text(body)
        self._weight += weight
        if (sent := context.sendable(body, message, self.provider)) is not None:
            self._sendable[ordinal] = Item(ordinal, sent, weight)
        if message.role == "tool":
            self._is_cut = self._is_cut or outputs.is_cut(message)
        if (message.role == "tool" or attached) and view.is_heavy(message):
            self._heavy.append(ordinal)

    @property
    def is_cut(self) -> bool:
        """Is there a result that was too long to be shown whole?"""
        return self._is_cut or self._history.is_cut

    @property
    def has_calls(self) -> bool:
        return bool(self.call_ids) or self._history.has_calls

    def blobs(self) -> dict[str, Blob]:
        """What of it, and of the session before it, is kept as a blob because it is too long to be shown."""
        return outputs.blobs_of([i.message for i in (*self._history.items, *self._sendable.values())])

    def own_message(self, place: int) -> Message | None:
        """The run's own message at that place of the session."""
        return self.messages.get(place - self._history.until) if place >= self._history.until else None

    def shown_to(self, provider: str, history: History) -> Conversation:
        """The same conversation, as another provider takes it."""
        other = Conversation(self.bodies, self.messages, self._instructions, provider, self.repeatable)
        other.messages |= self.messages  # those of tools of steps too
        other.history, other.carried = history, self.carried
        return other

    def told(self) -> Told:
        """The own messages as they become part of the session."""
        until, ordinals = self._history.until, sorted(self.bodies)
        sent = [self._sendable[o] for o in ordinals if o in self._sendable]
        return Told(
            [self.bodies[o] for o in ordinals], [Item(until + i.place, i.message, i.weight) for i in sent],
            self._is_cut, bool(self.call_ids), [until + o for o in self._heavy],
        )  # fmt: skip

    def request(self, shown: Shown, upto: int) -> tuple[Message, ...]:
        """All that the model sees, with the own messages below the ordinal ``upto``."""
        new = range(self._sent_upto, upto)
        sendable = {o: self._sendable[o].message for o in new if o in self._sendable}
        for ordinal, message in context.own_messages(sendable, self._sent_upto, upto):
            self._sent.append(message)
            self._sent_at.append(ordinal)
        self._sent_upto = max(self._sent_upto, upto)
        block = carried.message(self.carried[shown.carried])
        own = self._sent
        if shown.view.last > shown.history:
            items = [self._item_of(shown.history, o, m) for o, m in zip(self._sent_at, own, strict=True)]
            own = Forms(items, self.repeatable, self._made).messages(shown.view)
        return (self._shown(shown)[0], *block, *self._seen(shown.view).messages, *own)

    def hash(self, shown: Shown, upto: int, extra: Mapping[int, str]) -> str:
        """The hash of that request, where ``extra`` holds bodies that are about to be committed."""
        chain = self._chain_up_to(upto, extra)
        return context.request_hash(self._shown(shown)[1], self._history.chain, chain)

    def committed(self, upto: int) -> None:
        """What a hash was about to be committed with is: none of it is read for the next one."""
        self._chain_up_to(upto, {})

    def _chain_up_to(self, upto: int, extra: Mapping[int, str]) -> bytes:
        between, ahead, chain = self._ahead
        if (self._chained, upto) != between or any(
            (extra.get(o) or self.bodies.get(o)) != body for o, body in ahead.items()
        ):  # what was about to be committed was not, or not this
            fresh = [self.bodies.get(o) or extra.get(o) for o in range(self._chained, upto)]
            chain = context.extend_chain(self._chain, [b for b in fresh if b is not None])
        if extra:
            self._ahead = (self._chained, upto), extra, chain
        else:
            self._chain, self._chained = chain, upto
        return chain

    def size(self, seen: View, extra: Mapping[int, str]) -> int:
        """What the messages weigh that a view shows, with ``extra`` bodies that are about to be committed."""
        before = self._seen(seen).weight
        if seen.last <= self._history.until:
            return before + self._weight + sum(map(sizes.weight_of_body, extra.values()))
        return before + Forms(self._own_items(extra), self.repeatable, self._made).size(seen)

    def forms(self, extra: Mapping[int, str]) -> Forms:
        """All messages, in the forms that views give them."""
        return Forms([*self._history.items, *self._own_items(extra)], self.repeatable, self._made)

    def payloads_seen(self, seen: View, answered: int | None) -> int:
        """The place behind the last image, file or the like that the model has answered, by now.

        ``answered`` is the ordinal of the run's last answer, if it has one.
        """
        if not self._heavy and not self._history.heavy:
            return seen.payloads
        until = self._history.until
        places = [p for p in self._history.heavy if p >= seen.payloads]
        if answered is not None:
            places += [until + o for o in self._heavy if o < answered]
        return max([seen.payloads, *(place + 1 for place in places)])

    def _item_of(self, own: int, ordinal: int, message: Message) -> Item:
        """A message of a request; what the runtime put in the place of a missing result has no weight."""
        known = self._sendable.get(ordinal)
        weight = known.weight if known is not None and known.message is message else 0
        return Item(own + ordinal, message, weight)

    def _own_items(self, extra: Mapping[int, str]) -> list[Item]:
        until = self._history.until
        items = {o: Item(until + o, item.message, item.weight) for o, item in self._sendable.items()}
        for ordinal, body in extra.items():
            if (sent := context.sendable(body, messages.loads(body), self.provider)) is not None:
                items[ordinal] = Item(until + ordinal, sent, sizes.weight_of_stored(body, sent))
        return [items[o] for o in sorted(items)]

    def _seen(self, seen: View) -> _Before:
        """What a view shows of the history; made once, as long as that is the same."""
        before = self._before
        if before is not None and before.seen == seen:
            return before
        history = self.history
        key = View(*(min(place, history.until) for place in seen))
        if before is not None and before.key == key:
            before = before._replace(seen=seen)
        elif key.last <= history.start:
            before = _Before(seen, key, history.messages, history.weight)
        else:
            forms = Forms(history.items, self.repeatable)
            before = _Before(seen, key, tuple(forms.messages(key)), forms.size(key))
        self._before = before
        return before

    def _shown(self, shown: Shown) -> tuple[Message, bytes]:
        """The system message of this context, and the head of its requests' hashes."""
        if self._system is None or self._system[0] != shown:
            system = context.shown_message(self._instructions, shown)
            self._system = shown, system, context.request_head(system, shown)
        return self._system[1:]


class _Before(NamedTuple):
    """What a view shows of the history. Its ``key`` takes all cuts behind the history for cuts at its end."""

    seen: View
    key: View
    messages: tuple[Message, ...]
    weight: int
