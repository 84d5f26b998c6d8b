"""What is written together?

T0 to T9 and the other changes, each one function. A function yields *batches* of statements that do not need each
other's rows, receives their rows, checks them, and returns; a store runs it inside one transaction. A check that
fails raises, and then nothing of it was written. A function may be run again from the start, so it keeps no state.

Who may write: the holder of a run names its ``Claim`` and touches nothing unless ``run.hold`` finds exactly that
claim. Everybody else inserts a signal while a run is held, and acts at once where nobody holds it, raising the fence.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ondol import effects, events, ids, journal, lifecycle, messages, values
from ondol.errors import (
    AlreadyDecided,
    AskClosed,
    CancelRequested,
    ClaimLost,
    InvalidInput,
    NotFound,
    OperationExpired,
    OperationMismatch,
    RevisionConflict,
    SessionBusy,
    SignalsUnread,
)
from ondol.records import AskRow, EffectRow, RunRow, SessionRow, columns

Row: TypeAlias = tuple[Any, ...]
Statement: TypeAlias = tuple[str, Mapping[str, Any]]
T = TypeVar("T")
Tx: TypeAlias = Generator[list[Statement], list[list[Row]], T]

REPLY_KEPT = 30 * 24 * 3600 * 1_000_000  # microseconds that the reply of a completed operation is kept


def _read_statements() -> dict[str, str]:
    text = Path(__file__).with_name("statements.sql").read_text("utf-8")
    rows = {"run": RunRow, "session": SessionRow, "effect": EffectRow, "ask": AskRow}
    for name, row in rows.items():
        text = text.replace("{" + name + "}", columns(row)).replace("{e." + name + "}", columns(row, "e."))
    parts = re.split(r"^-- name: (\S+)\n", text, flags=re.M)[1:]
    return dict(zip(parts[::2], (p.strip() for p in parts[1::2]), strict=True))


#: The text of each statement, by name.
STATEMENTS: Mapping[str, str] = _read_statements()


class Claim(NamedTuple):
    """The right to drive a run. ``head`` is the session's revision, ``deaths`` the run's, at the claim."""

    tenant: str
    run: str
    session: str
    fence: int
    head: int
    deaths: int = 0


# --- pieces -----------------------------------------------------------------------------------------------------


def _hold(claim: Claim, n: int, at: int, name: str = "run.hold", **more: Any) -> Statement:
    """Every transaction of the holder starts with it: it must touch exactly one run. ``n`` entries will follow."""
    return name, {"tenant": claim.tenant, "run": claim.run, "fence": claim.fence, "n": n, "at": at, **more}


def _held(rows: list[Row], claim: Claim, *, cancel: bool = True, unread: bool = True) -> int:
    """The first sequence for the holder's entries. ``cancel`` and ``unread`` say whether those are tolerated."""
    if not rows:
        raise ClaimLost(f"run {claim.run} is not held with fence {claim.fence} any more")
    seq, cancelled, waiting = rows[0]
    if cancelled and not cancel:
        raise CancelRequested(f"run {claim.run} is being cancelled")
    if waiting and not unread:
        raise SignalsUnread(f"run {claim.run} has signals that were not read")
    return int(seq)


def _append(
    tenant: str, run: str, fence: int, seq: int, at: int, entries: Sequence[events.Entry]
) -> tuple[Statement, journal.Batch]:
    body = journal.dumps(entries)
    row = {
        "tenant": tenant, "run": run, "seq": seq, "n": len(entries), "fence": fence, "at": at, "v": journal.VERSION,
        "body": body, "sum": journal.checksum(run, seq, fence, at, body),
    }  # fmt: skip
    return ("entry.insert", row), journal.Batch(seq, fence, at, tuple(entries))


def _message(tenant: str, run: str, ordinal: int, body: str) -> Statement:
    checksum = journal.message_checksum(run, ordinal, body)
    stored = messages.pack(body)
    return "message.insert", {"tenant": tenant, "run": run, "ordinal": ordinal, "body": stored, "sum": checksum}


def run_row(rows: list[Row], run: str) -> RunRow:
    if not rows:
        raise NotFound(f"there is no run {run!r}: 'ondol runs' lists them")
    return RunRow(*rows[0])


def _act(tenant: str, at: int, actor: str, door: str, act: str, subject: str, note: str = "") -> Statement:
    """A human act, kept for the audit. ``note`` is the person's own word of why; it may hold no content."""
    return "act.insert", {
        "tenant": tenant, "at": at, "actor": actor, "door": door, "act": act, "subject": subject, "note": note,
    }  # fmt: skip


# --- T0 accept --------------------------------------------------------------------------------------------------


class NewRun(NamedTuple):
    """All that T0 writes. ``definition`` is the agent's description as JSON text, ``input`` a stored message."""

    tenant: str
    run: str
    session: str
    user_id: str
    operation_id: str
    fingerprint: str
    agent: str
    definition: str
    definition_digest: str
    trigger: str
    door: str
    zone: str | None  # named by the request
    default_zone: str | None  # of the deployment, where neither the request nor the session names one
    input: str
    blobs: Sequence[tuple[str, int]] = ()  # digest, size in bytes
    expected_revision: int | None = None
    reject_if_busy: bool = False


class Accepted(NamedTuple):
    """``created`` is False when the operation was known; ``wake`` when a worker should look at the run."""

    run: RunRow
    created: bool
    wake: bool


def accept(new: NewRun, at: int) -> Tx[Accepted]:
    """T0. A known operation is answered before revision and queue are looked at."""
    key = {"tenant": new.tenant, "user_id": new.user_id, "operation_id": new.operation_id}
    of_session = {"tenant": new.tenant, "session": new.session}
    known, session_rows, unfinished = yield [
        ("run.by_operation", key),
        ("session.get", of_session),
        ("run.unfinished_in_session", of_session),
    ]
    if known:
        return (yield from _known(RunRow(*known[0]), new, at))
    session = SessionRow(*session_rows[0]) if session_rows else None
    if new.expected_revision is not None:
        actual = session.revision if session else 0
        if unfinished:
            run, state = unfinished[0]
            why = f"has the unfinished run {run} ({state}), so revision {new.expected_revision} will not last"
            raise RevisionConflict(new.session, new.expected_revision, actual, why)
        if actual != new.expected_revision:
            raise RevisionConflict(new.session, new.expected_revision, actual)
    if new.reject_if_busy and unfinished:
        raise SessionBusy(new.session, *unfinished[0])

    place = session.next_place if session else 0
    if session is None:
        yield [("tenant.insert", {"tenant": new.tenant})]
        place_session: Statement = ("session.insert", of_session | {"next_place": 1, "zone": new.zone, "at": at})
    elif session.deleted_at is not None:
        place_session = ("session.again", of_session | {"next_place": place + 1, "zone": new.zone, "at": at})
    else:
        place_session = ("session.place", of_session | {"zone": new.zone})
    known_zone = session.zone if session and session.deleted_at is None else None
    accepted = events.RunAccepted(agent=new.agent, session=new.session, trigger=new.trigger)
    append, _ = _append(new.tenant, new.run, 0, 1, at, [accepted])
    row = {
        "tenant": new.tenant, "run": new.run, "session": new.session, "user_id": new.user_id,
        "operation_id": new.operation_id, "fingerprint": new.fingerprint, "agent": new.agent,
        "definition": new.definition_digest, "trigger": new.trigger, "door": new.door,
        "zone": new.zone or known_zone or new.default_zone,
        "place": place, "at": at,
    }  # fmt: skip
    definition = {"tenant": new.tenant, "digest": new.definition_digest, "body": new.definition}
    *_, inserted = yield [
        place_session,
        ("run.insert", row),
        ("definition.insert", definition),
        append,
        _message(new.tenant, new.run, 1, new.input),
        *(("blob.insert", {"tenant": new.tenant, "digest": d, "size": size, "at": at}) for d, size in new.blobs),
        *(("blob.use", {"tenant": new.tenant, "digest": d, "run": new.run}) for d, _ in new.blobs),
        ("run.get", {"tenant": new.tenant, "run": new.run}),
    ]
    return Accepted(RunRow(*inserted[0]), created=True, wake=not unfinished)


def _known(run: RunRow, new: NewRun, at: int) -> Tx[Accepted]:
    """The same operation id again: the table of the contract, row by row."""
    if run.fingerprint != new.fingerprint:
        raise OperationMismatch(
            f"operation {new.operation_id!r} was used before with another agent, session, input or attachment: "
            "choose a new operation id"
        )
    if run.state == "completed":
        if run.reply is None or (run.ended_at or 0) + REPLY_KEPT <= at:
            raise OperationExpired(
                f"operation {new.operation_id!r} was completed by run {run.id}, its reply is no longer kept: "
                "read the session, or choose a new operation id"
            )
        return Accepted(run, created=False, wake=False)
    if run.state == "failed" and run.retryable:
        return (yield from _retry(run, at))
    return Accepted(run, created=False, wake=run.state == "queued")


def _retry(run: RunRow, at: int) -> Tx[Accepted]:
    """A retryable run goes on from its journal, at the tail of its session's queue."""
    ((place,),) = yield [("session.place", {"tenant": run.tenant, "session": run.session, "zone": None})]
    again = yield from _queue_again(run, "retried", at, place=place[0], deaths=0)
    return Accepted(again, created=False, wake=True)


def _queue_again(
    run: RunRow,
    why: str,
    at: int,
    *,
    place: int | None = None,
    deaths: int | None = None,
    before: Sequence[events.Entry] = (),
    also: Sequence[Statement] = (),
) -> Tx[RunRow]:
    """Put a run back into its queue by compare-and-swap, with ``before`` written ahead of ``run.queued``."""
    deaths = run.deaths if deaths is None else deaths
    entries = [*before, events.RunQueued(why=why, deaths=deaths)]
    (moved,) = yield [
        ("run.queue_again", {
            "tenant": run.tenant, "run": run.id, "state": run.state, "fence": run.fence,
            "place": place, "n": len(entries), "deaths": deaths, "at": at,
        })
    ]  # fmt: skip
    if not moved:
        raise ClaimLost(f"run {run.id} moved on while it was looked at")
    seq, fence = moved[0]
    append, _ = _append(run.tenant, run.id, fence, seq, at, entries)
    *_, rows = yield [append, *also, ("run.get", {"tenant": run.tenant, "run": run.id})]
    return RunRow(*rows[0])


# --- T1 claim ---------------------------------------------------------------------------------------------------


class Claimed(NamedTuple):
    """All that the holder needs to go on, read in the claim's own transaction."""

    run: RunRow
    claim: Claim
    session: SessionRow
    batches: tuple[journal.Batch, ...]
    bodies: Mapping[int, str]
    messages: Mapping[int, messages.Message]
    untold_runs: tuple[tuple[RunRow, str], ...]  # with the input's stored body
    untold_effects: tuple[EffectRow, ...]


def claim(tenant: str, run: str, owner: str, at: int) -> Tx[Claimed | None]:
    """T1: fence + 1, owner, head. None when it is not this run's turn."""
    key = {"tenant": tenant, "run": run}
    (rows,) = yield [("run.claim", key | {"owner": owner, "at": at, "max_deaths": lifecycle.MAX_DEATHS})]
    if not rows:
        return None
    row = RunRow(*rows[0])
    entry = events.RunStarted() if row.fence == 1 else events.RunResumed()
    append, _ = _append(tenant, run, row.fence, row.next_seq - 1, at, [entry])
    of_session = {"tenant": tenant, "session": row.session, "run": run}
    _, stored, bodies, session, untold, untold_effects = yield [
        append,
        ("entry.list", key | {"after": 0}),
        ("message.of_run", key),
        ("session.get", of_session),
        ("run.untold", of_session),
        ("effect.untold", of_session),
    ]
    inputs: list[list[Row]] = []
    untold_runs = [RunRow(*r) for r in untold]
    if untold_runs:
        inputs = yield [("message.one", {"tenant": tenant, "run": r.id, "ordinal": 1}) for r in untold_runs]
    assert row.head is not None
    own = {o: checked_body(run, o, body, total) for o, body, total in bodies}
    return Claimed(
        run=row,
        claim=Claim(tenant, run, row.session, row.fence, row.head, row.deaths),
        session=SessionRow(*session[0]),
        batches=tuple(journal.loads(run, *stored_row) for stored_row in stored),
        bodies=own,
        messages={o: messages.loads(body) for o, body in own.items()},
        untold_runs=tuple(
            (r, checked_body(r.id, *i[0]) if i else "") for r, i in zip(untold_runs, inputs, strict=True)
        ),
        untold_effects=tuple(EffectRow(*r) for r in untold_effects),
    )


def checked_body(run: str, ordinal: int, stored: bytes, stored_sum: int) -> str:
    """The body of a stored message. Raises StoreCorrupt if it is not what was written."""
    try:
        body = messages.unpack(stored)
    except (ValueError, TypeError, AttributeError):  # damaged: it may not even be bytes any more
        body = ""
    journal.check_message(run, ordinal, body, stored_sum)
    return body


# --- T2 context, and small entries of the holder ----------------------------------------------------------------


def note_down(
    claim: Claim,
    at: int,
    entries: Sequence[events.Entry],
    *,
    message: tuple[int, str] | None = None,
    definition: tuple[str, str] | None = None,
) -> Tx[journal.Batch]:
    """T2, and a failed model attempt: entries of the holder that change nothing else.

    ``message`` is a note's ordinal and body, ``definition`` the digest and body of an agent that changed meanwhile.
    """
    (held,) = yield [_hold(claim, len(entries), at)]
    append, batch = _append(claim.tenant, claim.run, claim.fence, _held(held, claim), at, entries)
    writes = [append]
    if message is not None:
        writes.append(_message(claim.tenant, claim.run, *message))
    if definition is not None:
        digest, body = definition
        writes.append(("definition.insert", {"tenant": claim.tenant, "digest": digest, "body": body}))
    yield writes
    return batch


# --- T3 answer --------------------------------------------------------------------------------------------------


class PlannedCall(NamedTuple):
    """One call of an answer. ``refusal`` is the stored result of a call that is refused at once."""

    entry: events.EffectPlanned
    reply: int
    call_id: str
    arguments: str
    decision: str | None
    hash: str = ""
    question: str = ""
    expires_at: int | None = None
    refusal: str | None = None
    refusal_reason: str = ""


def answer(
    claim: Claim,
    user_id: str,
    at: int,
    completed: events.ModelCompleted,
    body: str,
    calls: Sequence[PlannedCall],
    also: Sequence[events.Entry] = (),
) -> Tx[journal.Batch]:
    """T3: the answer, its usage, and every call as a planned effect with its decision and, where needed, its ask."""
    entries: list[events.Entry] = [completed]
    writes: list[Statement] = [_message(claim.tenant, claim.run, completed.message, body)]
    for call in calls:
        planned = call.entry
        state: effects.EffectState = "failed" if call.refusal is not None else "asked" if planned.ask else "planned"
        entries.append(planned)
        writes.append(("effect.insert", {
            "tenant": claim.tenant, "run": claim.run, "session": claim.session, "ordinal": planned.call,
            "tool": planned.tool, "effect": planned.effect, "call_id": call.call_id, "reply": call.reply,
            "arguments": call.arguments, "state": state, "decision": call.decision,
        }))  # fmt: skip
        if call.refusal is not None:
            entries.append(events.EffectFailed(call=planned.call, reason=call.refusal_reason))
            writes.append(_message(claim.tenant, claim.run, call.reply, call.refusal))
        if planned.ask:
            entries.append(events.AskOpened(ask=planned.ask, ask_kind="approval", call=planned.call))
            writes.append(_ask(
                claim.tenant, planned.ask, claim.run, claim.session, user_id, "approval", at,
                effect=ids.effect_id(claim.run, planned.call), tool=planned.tool, arguments=call.arguments,
                hash=call.hash, question=call.question, expires_at=call.expires_at,
            ))  # fmt: skip
    entries.extend(also)
    usage = {"tokens_in": completed.input, "tokens_out": completed.output}
    (held,) = yield [_hold(claim, len(entries), at, "run.hold_answered", **usage)]
    append, batch = _append(claim.tenant, claim.run, claim.fence, _held(held, claim, cancel=False), at, entries)
    yield [append, *writes]
    return batch


def _ask(
    tenant: str, id: str, run: str, session: str, user_id: str, kind: events.AskKind, at: int, *, question: str,
    effect: str | None = None, tool: str | None = None, arguments: str = "{}", hash: str = "",
    expires_at: int | None = None,
) -> Statement:  # fmt: skip
    return "ask.insert", {
        "tenant": tenant, "id": id, "run": run, "session": session, "user_id": user_id, "kind": kind,
        "effect": effect, "tool": tool, "arguments": arguments, "hash": hash, "question": question,
        "at": at, "expires_at": expires_at,
    }  # fmt: skip


# --- T4 started, T5 outcome -------------------------------------------------------------------------------------


def started(claim: Claim, at: int, call: int, attempt: int, deadline: int) -> Tx[journal.Batch]:
    """T4: its own commit right before dispatch. Refused while a cancel or any signal is there."""
    key = {"tenant": claim.tenant, "run": claim.run}
    effect = key | {"ordinal": call, "attempt": attempt, "deadline": deadline, "at": at}
    held, marked = yield [_hold(claim, 1, at, "run.hold_writing"), ("effect.start", effect)]
    seq = _held(held, claim, cancel=False, unread=False)
    if not marked:
        raise ClaimLost(f"call {call} of run {claim.run} is not waiting for attempt {attempt}")
    entry = events.EffectStarted(call=call, attempt=attempt, deadline=deadline)
    append, batch = _append(claim.tenant, claim.run, claim.fence, seq, at, [entry])
    yield [append]
    return batch


class Outcome(NamedTuple):
    """How an attempt ended. ``body`` is the stored result message; an unknown has none, but a question."""

    entry: events.EffectSucceeded | events.EffectFailed | events.EffectUnknown
    attempt: int
    reply: int
    body: str = ""
    reason: str = ""
    unstarted: bool = False  # it may end without having started (a tool that is gone)
    tool: str = ""
    arguments: str = "{}"
    hash: str = ""
    question: str = ""


def outcome(claim: Claim, user_id: str, at: int, done: Outcome, also: Sequence[events.Entry] = ()) -> Tx[journal.Batch]:
    """T5. Requires the effect to be started with this attempt (a read: planned). ``also`` may hold the next T2."""
    entry = done.entry
    state: effects.EffectState = (
        "succeeded" if isinstance(entry, events.EffectSucceeded)
        else "failed" if isinstance(entry, events.EffectFailed) else "unknown"
    )  # fmt: skip
    entries = [entry, *also]
    held, marked = yield [
        _hold(claim, len(entries), at),
        ("effect.outcome", {
            "tenant": claim.tenant, "run": claim.run, "ordinal": entry.call, "state": state, "at": at,
            "attempt": done.attempt, "reason": done.reason or None, "unstarted": int(done.unstarted),
            "seen": int(isinstance(entry, events.EffectUnknown) and entry.seen),
        }),
    ]  # fmt: skip
    seq = _held(held, claim)
    if not marked:
        raise ClaimLost(f"call {entry.call} of run {claim.run} is not at attempt {done.attempt} any more")
    append, batch = _append(claim.tenant, claim.run, claim.fence, seq, at, entries)
    writes = [append]
    if claim.deaths:
        writes.append(("run.progressed", {"tenant": claim.tenant, "run": claim.run}))
    if isinstance(entry, events.EffectUnknown):
        writes.append(_ask(
            claim.tenant, entry.ask, claim.run, claim.session, user_id, "unknown_effect", at,
            effect=ids.effect_id(claim.run, entry.call), tool=done.tool, arguments=done.arguments, hash=done.hash,
            question=done.question,
        ))  # fmt: skip
    else:
        writes.append(_message(claim.tenant, claim.run, done.reply, done.body))
    yield writes
    return batch


def late_outcome(tenant: str, run: str, call: int, evidence: str) -> Tx[None]:
    """An outcome that came after the claim or the attempt was over: kept beside the effect, never in the journal."""
    yield [("effect.late", {"tenant": tenant, "run": run, "ordinal": call, "evidence": evidence})]


# --- T6 suspend -------------------------------------------------------------------------------------------------


def suspend(claim: Claim, at: int, asks: Sequence[str], after: int) -> Tx[tuple[RunRow, journal.Batch]]:
    """T6. Fails if an ask was decided meanwhile: its signal is unread, or was read after the entry ``after``."""
    of_session = {"tenant": claim.tenant, "session": claim.session, "head": claim.head, "at": at}
    held, raised = yield [_hold(claim, 1, at), ("session.raise", of_session)]
    seq = _held(held, claim, cancel=False, unread=False)
    if seq != after + 1:
        raise SignalsUnread(f"run {claim.run} moved on while it was about to wait")
    revision = yield from _raised(raised, claim)
    entry = events.RunWaiting(asks=list(asks), revision=revision)
    append, batch = _append(claim.tenant, claim.run, claim.fence, seq, at, [entry])
    key = {"tenant": claim.tenant, "run": claim.run}
    *_, rows = yield [append, ("run.suspend", key), ("run.get", key)]
    return RunRow(*rows[0]), batch


def _raised(rows: list[Row], claim: Claim) -> Tx[int]:
    """The session's new revision. Raises RevisionConflict if the session was not at the claim's ``head``."""
    if not rows:
        (found,) = yield [("session.get", {"tenant": claim.tenant, "session": claim.session})]
        actual = SessionRow(*found[0]).revision if found else 0
        raise RevisionConflict(claim.session, claim.head, actual)
    return int(rows[0][0])


# --- T7 decide --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a person (or the clock) said to an ask.

    ``kind``: approve, deny, expire (approvals) · happened, not_happened, give_up (unknown effects) · resume, fail
    (parked runs). ``arguments`` replaces the arguments in full; ``result`` is an encoded value.
    """

    kind: str
    arguments: dict[str, Any] | None = None
    result: Any = None
    evidence: str = ""
    reason: str = ""

    def dumps(self) -> str:
        return values.dumps({
            "kind": self.kind, "arguments": values.encode(self.arguments), "result": self.result,
            "evidence": self.evidence, "reason": self.reason,
        })  # fmt: skip

    @staticmethod
    def loads(stored: str) -> Decision:
        raw = values.loads(stored)
        return Decision(**raw | {"arguments": values.decode(raw["arguments"])})

    def same_as(self, other: Decision) -> bool:
        """The same word, whoever says it and why."""
        mine, theirs = (values.encode(d.arguments) for d in (self, other))
        return (self.kind, mine, self.result) == (other.kind, theirs, other.result)


CLOCK = "clock"  # the door through which an ask expires
DECISIONS: Mapping[str, tuple[str, ...]] = {
    "approval": ("approve", "deny", "expire"),
    "unknown_effect": ("happened", "not_happened", "give_up"),
    "parked": ("resume", "fail"),
}


class Decided(NamedTuple):
    """The ask as it is stored now. ``wake`` says whether a worker should look at its run."""

    ask: AskRow
    run: RunRow
    wake: bool
    first: bool


def decide(tenant: str, ask_id: str, decision: Decision, by: str, door: str, at: int) -> Tx[Decided]:
    """T7: decided once, by compare-and-swap. Wakes a waiting run; a parked one only by its own ask."""
    (rows,) = yield [("ask.get", {"tenant": tenant, "id": ask_id})]
    if not rows:
        raise NotFound(f"there is no ask {ask_id!r}: 'ondol asks' lists the open ones")
    ask = AskRow(*rows[0])
    allowed = DECISIONS[ask.kind]
    if decision.kind not in allowed:
        said = ", ".join(a for a in allowed if a != "expire")
        raise InvalidInput(f"ask {ask_id} ({ask.kind}) cannot be answered with {decision.kind!r}: say {said}")
    if decision.kind == "expire" and door != CLOCK:
        raise InvalidInput(f"ask {ask_id} expires by the clock only: say approve or deny")
    (run_rows,) = yield [("run.get", {"tenant": tenant, "run": ask.run})]
    run = run_row(run_rows, ask.run)
    if ask.state == "closed":
        raise AskClosed(f"ask {ask_id} was closed when run {ask.run} ended ({run.state}): there is nothing to decide")
    if ask.state != "open" and ask.decision is None:
        raise AskClosed(f"ask {ask_id} belongs to a session that was deleted: there is nothing to decide")
    if ask.state != "open":
        stored = Decision.loads(ask.decision or "")
        if stored.same_as(decision):
            return Decided(ask, run, wake=False, first=False)
        raise AlreadyDecided(f"ask {ask_id} was decided before: {stored.kind!r} by {ask.decided_by}")
    if decision.kind != "expire" and ask.expires_at is not None and at >= ask.expires_at:
        raise AlreadyDecided(f"ask {ask_id} has expired: nobody decided it in time")
    (marked,) = yield [("ask.decide", {
        "tenant": tenant, "id": ask_id, "state": "expired" if decision.kind == "expire" else "decided",
        "decision": decision.dumps(), "decided_by": by, "door": door, "at": at,
    })]  # fmt: skip
    if not marked:
        raise AlreadyDecided(f"ask {ask_id} was decided at this moment by somebody else: look at it again")
    if decision.kind != "expire":
        yield [_act(tenant, at, by, door, f"ask.{decision.kind}", ask_id, decision.reason or decision.evidence)]
    (rows,) = yield [("ask.get", {"tenant": tenant, "id": ask_id})]
    ask = AskRow(*rows[0])

    wake = False
    if run.state == "running":
        yield _signal(run, "ask", ask_id, at)
    elif ask.kind == "parked":
        if decision.kind == "fail":
            failed = events.RunFailed(code="parked", message=decision.reason or "a person ended the parked run")
            before = [_asked(ask, decision)]
            run = (yield from _end(run, at, failed, before=before)).run
        else:
            ((place,),) = yield [("session.place", {"tenant": tenant, "session": run.session, "zone": None})]
            before = [_asked(ask, decision)]
            run = yield from _queue_again(run, "decided", at, place=place[0], deaths=0, before=before)
            wake = True
    else:
        (effect_rows,) = yield [("effect.get", _effect_key(ask))]
        entries, writes = _settlement(ask, EffectRow(*effect_rows[0]), decision, run.state in lifecycle.ENDED, at)
        if run.state == "waiting":
            raised: Statement = ("session.raise", {"tenant": tenant, "session": run.session, "head": None, "at": at})
            run = yield from _queue_again(run, "decided", at, before=entries, also=[*writes, raised])
        else:
            news: Statement = ("run.news", {"tenant": tenant, "run": run.id})
            run = yield from _touch(run, at, entries, [*writes, news])
        wake = run.state == "queued"
    return Decided(ask, run, wake, first=True)


def _signal(run: RunRow, kind: str, body: str, at: int) -> list[Statement]:
    key = {"tenant": run.tenant, "run": run.id, "kind": kind}
    return [("signal.insert", key | {"body": body, "at": at}), ("signal.arrived", key)]


def _effect_key(ask: AskRow) -> dict[str, Any]:
    assert ask.effect is not None
    run, ordinal = ids.effect_place(ask.effect)
    return {"tenant": ask.tenant, "run": run, "ordinal": ordinal}


def _touch(run: RunRow, at: int, entries: Sequence[events.Entry], writes: Sequence[Statement]) -> Tx[RunRow]:
    """Append to a run that nobody holds, without moving it."""
    key = {"tenant": run.tenant, "run": run.id}
    moving = {"state": run.state, "fence": run.fence, "n": len(entries), "at": at}
    (moved,) = yield [("run.touch", key | moving)]
    if not moved:
        raise ClaimLost(f"run {run.id} moved on while it was looked at")
    append, _ = _append(run.tenant, run.id, moved[0][1], moved[0][0], at, entries)
    *_, rows = yield [append, *writes, ("run.get", key)]
    return RunRow(*rows[0])


def _asked(ask: AskRow, decision: Decision, call: int | None = None) -> events.AskDecided:
    edited = values.encode(decision.arguments) if decision.arguments is not None else None
    return events.AskDecided(
        ask=ask.id, decision=decision.kind, by=ask.decided_by or "", door=ask.door or "", call=call, arguments=edited
    )


def _settlement(
    ask: AskRow, effect: EffectRow, decision: Decision, ended: bool, at: int
) -> tuple[list[events.Entry], list[Statement]]:
    """What a decision about an effect means: entries and changes, the same whoever writes them down."""
    call = effect.ordinal
    key = {"tenant": effect.tenant, "run": effect.run, "ordinal": call}
    setting = key | {"at": None, "arguments": None}
    decided = _asked(ask, decision, call)

    def ends(state: str) -> Statement:
        return "effect.set", setting | {"state": state, "at": at}

    def replies(text: Any, error: bool) -> Statement:
        body = messages.dumps(messages.tool_result(effect.call_id, effect.tool, text, error))
        return _message(effect.tenant, effect.run, effect.reply, body)

    match decision.kind:
        case "approve":
            if decision.arguments is not None:
                setting |= {"arguments": values.dumps(values.encode(decision.arguments))}
            return [decided], [("effect.set", setting | {"state": "approved"})]
        case "deny":
            why = f"{ask.decided_by} refused this call" + (f": {decision.reason}" if decision.reason else "")
            return [decided], [ends("denied"), replies(why, error=True)]
        case "expire":
            why = "nobody approved this call in time, so it was not made"
            entries: list[events.Entry] = [events.AskExpired(ask=ask.id), events.EffectExpired(call=call)]
            return entries, [ends("expired"), replies(why, error=True)]
        case "happened":
            entries = [decided, events.EffectResolved(call=call, outcome="happened")]
            entries.append(events.EffectSucceeded(call=call, by="person"))
            result = decision.result if decision.result is not None else "done (confirmed by a person)"
            return entries, [ends("succeeded"), *([] if ended else [replies(result, error=False)])]
        case "not_happened":
            entries = [decided, events.EffectResolved(call=call, outcome="not_happened")]
            if ended:
                return [*entries, events.EffectFailed(call=call, reason="it did not happen")], [ends("failed")]
            return entries, [("effect.set", setting | {"state": "approved"})]
        case _:
            return [decided, events.EffectResolved(call=call, outcome="give_up")], []


# --- signals ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Read:
    """What unread signals come to: entries, changes, and the calls that they settle."""

    entries: list[events.Entry]
    writes: list[Statement]
    settled: set[int]


def _read_signals(tenant: str, run: str, ended: bool, at: int) -> Tx[_Read]:
    """``ended``: the run ends with this, so only what concerns unknown effects still counts."""
    (signals,) = yield [("signal.unread", {"tenant": tenant, "run": run})]
    read = _Read([], [], set())
    for kind, body, _ in signals:
        if kind == "cancel":
            if not ended and not any(isinstance(e, events.RunCancelling) for e in read.entries):
                read.entries.append(events.RunCancelling(**values.loads(body)))
            continue
        (rows,) = yield [("ask.get", {"tenant": tenant, "id": body})]
        ask = AskRow(*rows[0])
        if ended and ask.kind != "unknown_effect":
            continue  # its call is abandoned anyway
        (effect_rows,) = yield [("effect.get", _effect_key(ask))]
        effect = EffectRow(*effect_rows[0])
        entries, writes = _settlement(ask, effect, Decision.loads(ask.decision or "{}"), ended, at)
        read.entries += entries
        read.writes += writes
        read.settled.add(effect.ordinal)
    return read


def absorb(claim: Claim, at: int) -> Tx[tuple[journal.Batch | None, dict[int, str]]]:
    """The holder turns the signals of others into entries. With them come the messages that were written."""
    key = {"tenant": claim.tenant, "run": claim.run}
    read = yield from _read_signals(claim.tenant, claim.run, False, at)
    if not read.entries:
        return None, {}
    (held,) = yield [_hold(claim, len(read.entries), at)]
    append, batch = _append(claim.tenant, claim.run, claim.fence, _held(held, claim), at, read.entries)
    yield [append, *read.writes, ("signal.read", key | {"at": at}), ("signal.none_unread", key)]
    bodies = {row["ordinal"]: messages.unpack(row["body"]) for name, row in read.writes if name == "message.insert"}
    return batch, bodies


# --- T8 commit, T9 end ------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """The run as it is stored now, and the id, agent and deaths of the first in its session's queue."""

    run: RunRow
    next_run: tuple[str, str, int] | None
    batch: journal.Batch


def commit(
    claim: Claim,
    at: int,
    reply: Mapping[str, Any],
    n_messages: int,
    state: str | None,
    told: Iterable[Sequence[str]],
    step: int,
) -> Tx[Ended]:
    """T8, the only completion point: session revision by compare-and-swap on ``head``, messages, reply, run."""
    key = {"tenant": claim.tenant, "run": claim.run}
    of_session = {"tenant": claim.tenant, "session": claim.session}
    held, committed = yield [
        _hold(claim, 3, at),
        ("session.commit", of_session | {"head": claim.head, "n": n_messages, "at": at}),
    ]
    seq = _held(held, claim, cancel=False)
    revision = yield from _raised(committed, claim)
    base = committed[0][1]
    entries: list[events.Entry] = [events.StepCompleted(step=step)]
    entries += [events.SessionCommitted(revision=revision), events.RunCompleted()]
    append, batch = _append(claim.tenant, claim.run, claim.fence, seq, at, entries)
    body = values.dumps({**reply, "revision": revision})
    writes: list[Statement] = [append, ("run.complete", key | {"reply": body, "base": base, "at": at})]
    if state is not None:
        writes.append(("session.state", of_session | {"state": state}))
    writes += _told(claim.tenant, told)
    *_, rows, following = yield [*writes, ("run.get", key), ("run.next_in_session", of_session)]
    return Ended(RunRow(*rows[0]), following[0] if following else None, batch)


def _told(tenant: str, told: Iterable[Sequence[str]]) -> list[Statement]:
    """Mark what the run's notes told. What was settled since then is news, and makes a note again."""
    writes: list[Statement] = []
    runs: dict[str, None] = {}
    for kind, id, *state in told:
        if kind == "effect":
            run, ordinal = ids.effect_place(id)
            writes.append(("effect.told", {"tenant": tenant, "run": run, "ordinal": ordinal, "state": state[0]}))
            id = run
        runs[id] = None
    return writes + [("run.told", {"tenant": tenant, "run": run}) for run in runs]


def end(claim: Claim, at: int, last: events.RunFailed | events.RunCancelled) -> Tx[Ended]:
    """T9 by the holder. With a cancel requested it is always ``cancelled``."""
    (rows,) = yield [("run.get", {"tenant": claim.tenant, "run": claim.run})]
    if not rows or rows[0] is None:
        raise ClaimLost(f"run {claim.run} is gone")
    run = RunRow(*rows[0])
    if run.state != "running" or run.fence != claim.fence:
        raise ClaimLost(f"run {claim.run} is not held with fence {claim.fence} any more")
    if run.cancel and isinstance(last, events.RunFailed):
        (signals,) = yield [("signal.unread", {"tenant": claim.tenant, "run": claim.run})]
        who: dict[str, Any] = next((values.loads(body) for kind, body, _ in signals if kind == "cancel"), {})
        last = events.RunCancelled(**who)
    return (yield from _end(run, at, last, held=claim))


def _end(
    run: RunRow,
    at: int,
    last: events.RunFailed | events.RunCancelled,
    *,
    before: Sequence[events.Entry] = (),
    held: Claim | None = None,
) -> Tx[Ended]:
    """T9: what started without an outcome becomes unknown with its ask, the rest is abandoned, other asks close."""
    key = {"tenant": run.tenant, "run": run.id}
    read = yield from _read_signals(run.tenant, run.id, True, at)
    (effect_rows,) = yield [("effect.of_run", key)]
    entries: list[events.Entry] = [*before, *read.entries]
    writes = read.writes
    for effect in (EffectRow(*r) for r in effect_rows):
        if effect.state in effects.OUTCOMES or effect.state == "unknown" or effect.ordinal in read.settled:
            continue
        setting = key | {"ordinal": effect.ordinal, "at": at, "arguments": None}
        if effect.state == "started":
            ask = ids.ask_id(run.id, f"{effect.ordinal}u{effect.attempt}")
            entries.append(events.EffectUnknown(call=effect.ordinal, ask=ask, reason="the run ended while it ran"))
            writes.append(("effect.set", setting | {"state": "unknown"}))
            writes.append(_ask(
                run.tenant, ask, run.id, run.session, run.user_id, "unknown_effect", at, effect=effect.id,
                tool=effect.tool, arguments=effect.arguments, hash=values.digest(values.loads(effect.arguments)),
                question=unknown_question(effect.tool),
            ))  # fmt: skip
        else:
            entries.append(events.EffectAbandoned(call=effect.ordinal))
            writes.append(("effect.set", setting | {"state": "abandoned"}))
    entries.append(last)
    if held is not None:
        (rows,) = yield [_hold(held, len(entries), at)]
        seq, fence = _held(rows, held), held.fence
    else:
        moving = {"state": run.state, "fence": run.fence, "n": len(entries), "at": at}
        (rows,) = yield [("run.touch", key | moving)]
        if not rows:
            raise ClaimLost(f"run {run.id} moved on while it was looked at")
        seq, fence = rows[0]
    append, batch = _append(run.tenant, run.id, fence, seq, at, entries)
    failed = isinstance(last, events.RunFailed)
    error = (
        {"code": last.code, "message": last.message} if isinstance(last, events.RunFailed)
        else {"code": "cancelled", "message": last.reason, "by": last.by}
    )  # fmt: skip
    of_session = {"tenant": run.tenant, "session": run.session}
    raised: list[Statement] = [("session.raise", of_session | {"head": None, "at": at})] if run.wrote else []
    *_, rows, following = yield [
        append,
        *writes,
        *raised,
        ("run.unhold", key | {
            "state": "failed" if failed else "cancelled", "ended_at": at, "error": values.dumps(error),
            "retryable": int(isinstance(last, events.RunFailed) and last.retryable),
        }),
        ("ask.close_all", key),
        ("signal.read", key | {"at": at}),
        ("signal.none_unread", key),
        ("run.get", key),
        ("run.next_in_session", of_session),
    ]  # fmt: skip
    return Ended(RunRow(*rows[0]), following[0] if following else None, batch)


def unknown_question(tool: str) -> str:
    return f"{tool} was started and its outcome could not be learned. Did it happen?"


# --- cancel, release, recover, park -----------------------------------------------------------------------------


class Cancelled(NamedTuple):
    """``pending`` while the holder still has to stop; ``next_run`` as in ``Ended``."""

    run: RunRow
    pending: bool
    next_run: tuple[str, str, int] | None = None


def cancel(tenant: str, run_id: str, by: str, door: str, reason: str, at: int) -> Tx[Cancelled]:
    """A signal to the holder; at once where nobody holds the run. Idempotent."""
    (rows,) = yield [("run.get", {"tenant": tenant, "run": run_id})]
    run = run_row(rows, run_id)
    if run.state in lifecycle.ENDED:
        return Cancelled(run, pending=False)
    who = {"by": by, "door": door, "reason": reason}
    if run.state == "running":
        if not run.cancel:
            yield [
                *_signal(run, "cancel", values.dumps(who), at),
                _act(tenant, at, by, door, "run.cancel", run_id, reason),
            ]
        return Cancelled(run, pending=True)
    yield [_act(tenant, at, by, door, "run.cancel", run_id, reason)]
    ended = yield from _end(run, at, events.RunCancelled(**who))
    return Cancelled(ended.run, pending=False, next_run=ended.next_run)


def release(tenant: str, run_id: str, fence: int, at: int) -> Tx[RunRow]:
    """The holder gives the run back at its old place. It does not count as a death."""
    (rows,) = yield [("run.get", {"tenant": tenant, "run": run_id})]
    run = run_row(rows, run_id)
    if run.state != "running" or run.fence != fence:
        raise ClaimLost(f"run {run_id} is not held with fence {fence} any more")
    return (yield from _queue_again(run, "released", at))


def recover(tenant: str, run_id: str, fence: int, at: int, why: str = "") -> Tx[RunRow]:
    """Whoever held the run is gone: back into the queue, or parked when it goes on like this."""
    (rows,) = yield [("run.get", {"tenant": tenant, "run": run_id})]
    run = run_row(rows, run_id)
    if run.state != "running" or run.fence != fence:
        return run
    if run.cancel:  # it was accepted, and the holder is gone: nobody else will carry it out
        (signals,) = yield [("signal.unread", {"tenant": tenant, "run": run_id})]
        who: dict[str, Any] = next((values.loads(body) for kind, body, _ in signals if kind == "cancel"), {})
        return (yield from _end(run, at, events.RunCancelled(**who))).run
    deaths = run.deaths + 1
    if deaths >= lifecycle.MAX_DEATHS:
        return (yield from _park(run, f"{deaths} processes died at the same step of this run{why and ': '}{why}", at))
    return (yield from _queue_again(run, "recovered", at, deaths=deaths))


def _park(run: RunRow, why: str, at: int) -> Tx[RunRow]:
    """T6's twin: an operator's word is needed. Effects are left as they are, the session does not move."""
    ask = ids.ask_id(run.id, f"p{run.fence}")
    parked = events.RunParked(why=why, ask=ask)
    question = f"{why}. Resume it, or fail it?"
    writes: list[Statement] = [
        _ask(run.tenant, ask, run.id, run.session, run.user_id, "parked", at, question=question),
        ("run.park", {"tenant": run.tenant, "run": run.id, "error": values.dumps({"code": "parked", "message": why})}),
    ]
    return (yield from _touch(run, at, [parked], writes))


def park_restored(tenant: str, run_id: str, at: int) -> Tx[RunRow]:
    """After a restore from a backup nobody knows what happened since: a person settles each unfinished run."""
    (rows,) = yield [("run.get", {"tenant": tenant, "run": run_id})]
    run = run_row(rows, run_id)
    if run.state not in lifecycle.UNFINISHED:
        return run
    return (yield from _park(run, "the store was restored from a backup while this run was unfinished", at))


# --- sessions ---------------------------------------------------------------------------------------------------


def write_session(
    tenant: str,
    session: str,
    at: int,
    *,
    expected_revision: int | None,
    state: str | None,
    title: str | None,
    zone: str | None,
) -> Tx[SessionRow]:
    """An explicit write by a caller: compare-and-swap, refused while a run is unfinished."""
    of_session = {"tenant": tenant, "session": session}
    rows, unfinished = yield [("session.get", of_session), ("run.unfinished_in_session", of_session)]
    found = SessionRow(*rows[0]) if rows else None
    revision = found.revision if found else 0
    alive = found is not None and found.deleted_at is None
    if alive and unfinished:
        raise SessionBusy(session, *unfinished[0])
    if expected_revision is not None and expected_revision != revision:
        raise RevisionConflict(session, expected_revision, revision)
    if not alive:
        made = "session.again" if found else "session.insert"
        place = found.next_place if found else 0
        yield [
            ("tenant.insert", {"tenant": tenant}),
            (made, of_session | {"next_place": place, "zone": None, "at": at}),
        ]
    (written,) = yield [("session.write", of_session | {"state": state, "title": title, "zone": zone, "at": at})]
    return SessionRow(*written[0])


def delete_session(
    tenant: str, session: str, at: int, *, expected_revision: int | None, by: str, door: str, with_unknown: bool
) -> Tx[SessionRow]:
    """Content goes, tombstones stay: the session's revision and its operations."""
    of_session = {"tenant": tenant, "session": session}
    rows, unfinished, unknown, parked = yield [
        ("session.get", of_session),
        ("run.unfinished_in_session", of_session),
        ("effect.unknown_in_session", of_session),
        ("run.list", of_session | {"user_id": None, "state": "parked", "before": None, "limit": 1}),
    ]
    found = SessionRow(*rows[0]) if rows else None
    if found is None or found.deleted_at is not None:
        raise NotFound(f"there is no session {session!r}: 'ondol sessions' lists them")
    if expected_revision is not None and found.revision != expected_revision:
        raise RevisionConflict(session, expected_revision, found.revision)
    if unfinished:
        raise SessionBusy(session, *unfinished[0])
    if parked:
        raise SessionBusy(session, parked[0][1], "parked")
    if unknown and not with_unknown:
        raise SessionBusy(session, unknown[0][0], f"effect {ids.effect_id(*unknown[0])} unknown")
    erased = ("message.erase", "entry.erase", "effect.erase", "ask.erase", "run.erase", "blob.used_by_session")
    yield [(name, of_session) for name in erased]
    _, _, after = yield [
        ("session.delete", of_session | {"at": at}),
        _act(tenant, at, by, door, "session.delete", session),
        ("session.get", of_session),
    ]
    return SessionRow(*after[0])


# --- beside the runs ------------------------------------------------------------------------------------------------


def set_meta(key: str, value: str) -> Tx[None]:
    yield [("meta.set", {"key": key, "value": value})]


def keep_blob(tenant: str, digest: str, size: int, at: int) -> Tx[None]:
    """A blob was uploaded: it is collected after a day unless a run uses it."""
    yield [("tenant.insert", {"tenant": tenant})]
    yield [("blob.insert", {"tenant": tenant, "digest": digest, "size": size, "at": at})]


def drop_unused_blobs(tenant: str, before: int) -> Tx[list[str]]:
    """Forget blobs that no run uses and that were not renewed since ``before``; returns their digests."""
    (rows,) = yield [("blob.unused", {"tenant": tenant, "before": before})]
    if not rows:
        return []
    dropped = yield [("blob.drop", {"tenant": tenant, "digest": r[0], "before": before}) for r in rows]
    return [d[0][0] for d in dropped if d]
