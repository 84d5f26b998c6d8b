"""What is one row of each table? The fields of a class are the columns of its table, in this order."""

from __future__ import annotations

from typing import Any, NamedTuple

from ondol import checksums, pins, values
from ondol.errors import OperationExpired
from ondol.ids import EffectId, effect_id, idempotency_key
from ondol.pins import Pins
from ondol.view import Summary, View


class RunRow(NamedTuple):
    tenant: str
    id: str
    session: str
    user_id: str
    operation_id: str
    fingerprint: str
    agent: str
    definition: str
    trigger: str
    door: str
    zone: str | None
    state: str
    retryable: int
    place: int
    fence: int
    owner: str | None
    head: int | None
    next_seq: int
    base: int | None
    deaths: int
    cancel: int
    unread: int
    wrote: int
    told: int
    reply: str | None
    error: str | None
    tokens_in: int | None
    tokens_out: int | None
    accepted_at: int
    updated_at: int
    ended_at: int | None
    family: str | None
    replay_of: str | None
    forked_at: int | None
    usage: str | None
    reply_sum: int | None
    host: str | None
    metadata: str | None

    @staticmethod
    def what_was_replied(run: str) -> str:
        return f"the reply of run {run}"

    def checked_reply(self) -> str | None:
        """Raises StoreCorrupt if it is not what was written."""
        if self.reply is not None:
            checksums.check_content(self.what_was_replied(self.id), self.reply, self.reply_sum)
        return self.reply

    def kept_reply(self) -> str:
        """The reply of a completed run. Raises OperationExpired where it is no longer kept."""
        reply = self.checked_reply()
        if reply is None:
            raise OperationExpired(f"run {self.id} was completed, its reply is no longer kept: its session was deleted")
        return reply


class Measured(NamedTuple):
    """What the provider of ``model`` counted for a request, and what that had been estimated at."""

    model: str
    counted: int
    estimated: int

    def moved(self, before: Measured | None) -> bool:
        """Is it another one, by more than an eighth?"""
        if before is None or before.model != self.model:
            return True
        now, then = self.counted * before.estimated, before.counted * self.estimated
        return 8 * abs(now - then) > then


class SessionRow(NamedTuple):
    tenant: str
    id: str
    revision: int
    title: str | None
    state: str
    next_message: int
    next_place: int
    created_at: int
    updated_at: int
    deleted_at: int | None
    zone: str | None
    parent: str | None
    parent_until: int | None
    orphaned: int
    state_sum: int | None
    user_id: str | None
    seen: str | None
    seen_sum: int | None
    pins: str | None
    pins_sum: int | None

    @staticmethod
    def what_is_kept(session: str) -> str:
        return f"the state of session {session!r}"

    def checked_state(self) -> str:
        """Raises StoreCorrupt if it is not what was written."""
        checksums.check_content(self.what_is_kept(self.id), self.state, self.state_sum)
        return self.state

    @staticmethod
    def what_is_seen(session: str) -> str:
        return f"what models are shown of session {session!r}"

    @staticmethod
    def what_is_pinned(session: str) -> str:
        return f"what is pinned in session {session!r}"

    def checked_seen(self) -> dict[str, Any]:
        """Raises StoreCorrupt if it is not what was written."""
        if self.seen is None:
            return {}
        checksums.check_content(self.what_is_seen(self.id), self.seen, self.seen_sum)
        return dict(values.loads(self.seen))

    def checked_pins(self) -> str | None:
        """Raises StoreCorrupt if they are not what was written."""
        if self.pins is not None:
            checksums.check_content(self.what_is_pinned(self.id), self.pins, self.pins_sum)
        return self.pins

    @property
    def pinned(self) -> Pins:
        return pins.loads(self.checked_pins())

    @property
    def shown(self) -> View:
        """What models are shown of it, as its last turn left it."""
        return View() if self.seen is None else View(**self.checked_seen()["view"])

    @property
    def summary(self) -> Summary:
        """What stands in the place of the messages that they are not shown."""
        seen = self.checked_seen()
        return Summary(self.shown.since, seen.get("summary", ""), seen.get("by", "")) if seen else Summary()

    @property
    def measured(self) -> Measured | None:
        """What a model's provider counted, last, where the session's agent has a budget."""
        said = self.checked_seen().get("measured")
        return None if said is None else Measured(*said)

    @property
    def is_orphan(self) -> bool:
        """Some of its first messages were in a session that was erased."""
        return bool(self.orphaned)


class EffectRow(NamedTuple):
    tenant: str
    run: str
    session: str
    ordinal: int
    tool: str
    effect: str
    call_id: str
    reply: int
    arguments: str
    state: str
    decision: str | None
    attempt: int
    deadline: int | None
    started_at: int | None
    ended_at: int | None
    reason: str | None
    evidence: str | None
    told: str | None
    reuses: str | None
    warning: str | None
    parent: int | None
    place: int | None
    blob: str | None
    size: int | None

    @property
    def id(self) -> EffectId:
        return effect_id(self.run, self.ordinal)

    @property
    def is_write(self) -> bool:
        return self.effect not in ("read", "steps")

    @property
    def key(self) -> str:
        """What downstream sees; derived, so it is not stored."""
        return idempotency_key(self.tenant, self.run, self.ordinal, self.tool)


class AskRow(NamedTuple):
    tenant: str
    id: str
    run: str
    session: str
    user_id: str
    kind: str
    effect: str | None
    tool: str | None
    arguments: str
    hash: str
    question: str
    state: str
    decision: str | None
    decided_by: str | None
    door: str | None
    opened_at: int
    decided_at: int | None
    expires_at: int | None
    decision_sum: int | None
    schema: str | None
    default_answer: str | None
    default_sum: int | None

    def check_arguments(self) -> None:
        """Raises StoreCorrupt if they are not what was asked about. Where its session was deleted they are gone, and an
        ask about a run has none."""
        if self.hash and self.arguments != "{}":
            checksums.check_arguments(self.id, self.arguments, self.hash)

    @staticmethod
    def what_was_decided(ask: str) -> str:
        return f"the decision of ask {ask}"

    @staticmethod
    def what_is_by_default(ask: str) -> str:
        return f"the default answer of ask {ask}"

    def checked_decision(self) -> str | None:
        """Raises StoreCorrupt if it is not what was written."""
        if self.decision is not None:
            checksums.check_content(self.what_was_decided(self.id), self.decision, self.decision_sum)
        return self.decision

    def checked_default(self) -> str | None:
        """Raises StoreCorrupt if it is not what was written."""
        if self.default_answer is not None:
            checksums.check_content(self.what_is_by_default(self.id), self.default_answer, self.default_sum)
        return self.default_answer


class TokenRow(NamedTuple):
    tenant: str
    id: str
    name: str
    user_id: str | None
    scopes: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None


class FactRow(NamedTuple):
    tenant: str
    space: int
    doc: int
    id: str
    agent: str
    user_id: str
    body: str
    sum: int
    hash: str
    untrusted: int
    run: str | None
    author: str
    created_at: int
    updated_at: int
    expires_at: int | None

    @staticmethod
    def what_is_remembered(fact: str) -> str:
        return f"the fact {fact}"

    def checked_text(self) -> str:
        """Raises StoreCorrupt if it is not what was written."""
        checksums.check_content(self.what_is_remembered(self.id), self.body, self.sum)
        text: str = values.decode(values.loads(self.body))
        return text


def columns(row: type[Any], prefix: str = "") -> str:
    """The columns of the row's class for a SELECT, each with the prefix in front."""
    return ", ".join(prefix + name for name in row._fields)
