"""What does the next request of a run consist of?

The system message, the session's history, and the run's own messages: each is made once and extended, so that a step
costs what it adds and not what was said before.
"""

from __future__ import annotations

from collections.abc import Mapping

from ondol import context, messages, outputs
from ondol.histories import NO_HISTORY, History
from ondol.journal import Shown
from ondol.messages import Blob, Message


class Conversation:
    """The messages of one claimed run, as they are stored and as its model takes them."""

    def __init__(
        self, bodies: Mapping[int, str], stored: Mapping[int, Message], instructions: str, provider: str
    ) -> None:
        self.history = NO_HISTORY
        self.bodies: dict[int, str] = {}
        self.messages: dict[int, Message] = {}
        self.call_ids: set[str] = set()
        self._weight = 0  # of the own messages
        self._is_cut = False  # one of them is
        self.provider = provider
        self._instructions = instructions
        self._sendable: dict[int, Message] = {}
        self._sent: list[Message] = []  # own messages as the last request had them, up to the ordinal _sent_upto
        self._sent_upto = 0
        self._chain, self._chained = context.EMPTY_CHAIN, 0  # over the bodies of own messages up to that ordinal
        self._ahead: tuple[
            tuple[int, int], Mapping[int, str], bytes
        ]  # the same with bodies that were not committed yet
        self._ahead = (-1, -1), {}, context.EMPTY_CHAIN
        self._system: tuple[Shown, Message, bytes] | None = None
        for ordinal, body in bodies.items():
            self.keep(ordinal, body, stored[ordinal])

    def keep(self, ordinal: int, body: str, message: Message | None = None) -> None:
        """A message was committed. What tools of steps did (below zero) is part of no conversation."""
        self.messages[ordinal] = message = message or messages.loads(body)
        if ordinal < 0:
            return
        self.bodies[ordinal] = body
        if message.role == "assistant":
            self.call_ids.update(c.id for c in message.calls)
        self._weight += context.weight([body], [message])
        if (sent := context.sendable(body, message, self.provider)) is not None:
            self._sendable[ordinal] = sent
        self._is_cut |= bool(outputs.blobs_of((message,)))

    @property
    def is_cut(self) -> bool:
        """Is there a result that was too long to be shown whole?"""
        return self._is_cut or self.history.is_cut

    def blobs(self) -> dict[str, Blob]:
        """What of it, and of the session before it, is kept as a blob because it is too long to be shown."""
        return outputs.blobs_of((*self.history.messages, *self._sendable.values()))

    def shown_to(self, provider: str, history: History) -> Conversation:
        """The same conversation, as another provider takes it."""
        other = Conversation(self.bodies, self.messages, self._instructions, provider)
        other.messages |= self.messages  # those of tools of steps too
        other.history = history
        return other

    def in_order(self) -> tuple[list[str], list[Message]]:
        """The bodies of the own messages as they follow each other, and the messages as the model takes them."""
        ordinals = sorted(self.bodies)
        return [self.bodies[o] for o in ordinals], [self._sendable[o] for o in ordinals if o in self._sendable]

    def request(self, shown: Shown, upto: int) -> tuple[Message, ...]:
        """All that the model sees, with the own messages below the ordinal ``upto``."""
        self._sent += context.own_messages(self._sendable, self._sent_upto, upto)
        self._sent_upto = upto
        before = context.without_turns(self.history.messages, shown.turns_out)
        return (self._shown(shown)[0], *before, *self._sent)

    def hash(self, shown: Shown, upto: int, extra: Mapping[int, str]) -> str:
        """The hash of that request, where ``extra`` holds bodies that are about to be committed."""
        between, ahead, chain = self._ahead
        if (self._chained, upto) != between or any(
            (extra.get(o) or self.bodies.get(o)) != body for o, body in ahead.items()
        ):  # what was about to be committed was not, or not this
            fresh = [self.bodies.get(o) or extra.get(o) for o in range(self._chained, upto)]
            chain = context.extend_chain(self._chain, (b for b in fresh if b is not None))
        if extra:
            self._ahead = (self._chained, upto), extra, chain
        else:
            self._chain, self._chained = chain, upto
        return context.request_hash(self._shown(shown)[1], self.history.chain, chain)

    def size(self, definition: str, extra: Mapping[int, str], fits: int | None) -> tuple[int, int]:
        """An estimate of the request with all own messages, and ``extra`` bodies that are about to be committed, in
        tokens; and how many turns of the history must be left out of it so that it fits."""
        whole = context.weight([definition, *extra.values()], ()) + self.history.weight + self._weight
        n, left = (0, 0) if fits is None else context.turns_out(self.history.messages, whole, fits)
        return context.tokens(whole - left), n

    def _shown(self, shown: Shown) -> tuple[Message, bytes]:
        """The system message of this context, and the head of its requests' hashes."""
        if self._system is None or self._system[0] != shown:
            system = context.shown_message(self._instructions, shown)
            self._system = shown, system, context.request_head(system, shown.definition)
        return self._system[1:]
