"""What does the holder of a run write: T1 to T6, and the commit T8?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ondol import checksums, context, effects, events, ids, journal, messages, usage, values
from ondol.errors import ClaimLost, SignalsUnread
from ondol.records import EffectRow, RunRow, SessionRow
from ondol.transactions import outbox
from ondol.transactions.ending import Ended
from ondol.transactions.pieces import (
    Claim,
    Seen,
    StateChange,
    Steer,
    append_entries,
    ask_row,
    checked_body,
    foresee,
    held_seq,
    hold,
    message_row,
    pins_rows,
    raised_revision,
    seen_rows,
    steers_in,
)
from ondol.transactions.remembering import Changes, change_memory
from ondol.transactions.statements import Final, Row, Statement, Tx
from ondol.usage import Usage

_UNTOLD_READ = 500  # runs, and effects, that one claim reads for its note; the next one goes on


class NotTold(NamedTuple):
    """Runs whose effects, or whose unanswered requests, no model was told of; ``more``: there are others."""

    runs: tuple[context.Untold, ...]
    more: bool


class Claimed(NamedTuple):
    """All that the holder needs to go on, read in the claim's own transaction."""

    run: RunRow
    claim: Claim
    session: SessionRow
    batches: tuple[journal.Batch, ...]
    bodies: Mapping[int, str]
    messages: Mapping[int, messages.Message]
    untold: tuple[context.Untold, ...]
    more_untold: bool  # there is more than was read
    steered: bool  # a message waits to join the run


def claim(tenant: str, run: str, owner: str, at: int) -> Tx[Claimed | None]:
    """T1: fence + 1, owner, head. None when it is not this run's turn."""
    key = {"tenant": tenant, "run": run}
    (rows,) = yield [("run.claim", key | {"owner": owner, "at": at})]
    if not rows:
        return None
    row = RunRow(*rows[0])
    entry = events.RunStarted() if row.fence == 1 else events.RunResumed()
    append, _ = append_entries(tenant, run, row.fence, row.next_seq - 1, at, [entry])
    _, stored, bodies, session, ((steered,),), *told_of = yield [
        append,
        ("entry.list", key | {"after": 0}),
        ("message.of_run", key),
        ("session.get", {"tenant": tenant, "session": row.session}),
        ("run.steered", key),
        *untold_rows(tenant, row.session, run),
    ]
    unknown = yield from read_untold(tenant, *told_of)
    found = SessionRow(*session[0])
    found.checked_state()
    batches = [journal.loads(run, *stored_row) for stored_row in stored]
    own = {o: checked_body(run, o, body, total) for o, body, total in bodies}
    return held(row, found, batches, own, unknown, steered=bool(steered))


def held(
    row: RunRow,
    session: SessionRow,
    batches: Sequence[journal.Batch],
    bodies: Mapping[int, str],
    untold: NotTold,
    *,
    steered: bool,
) -> Claimed:
    """A run that has its owner, with all that was written of it."""
    assert row.head is not None
    return Claimed(
        run=row,
        claim=Claim(row.tenant, row.id, row.session, row.fence, row.head, row.deaths),
        session=session,
        batches=tuple(batches),
        bodies=bodies,
        messages={o: messages.loads(body) for o, body in bodies.items()},
        untold=untold.runs,
        more_untold=untold.more,
        steered=steered,
    )


def untold_rows(tenant: str, session: str, run: str) -> list[Statement]:
    """What other runs of the session nobody was told of, for ``read_untold``."""
    of_session = {"tenant": tenant, "session": session, "run": run, "limit": _UNTOLD_READ}
    return [("run.untold", of_session), ("effect.untold", of_session)]


def read_untold(tenant: str, runs: list[Row], effect_rows: list[Row]) -> Tx[NotTold]:
    """Each run with its request, its own calls and what these returned, in the order of the queue."""
    more = max(len(runs), len(effect_rows)) == _UNTOLD_READ
    places = {run: (place, state, error) for run, place, state, error in runs}
    calls: dict[str, list[EffectRow]] = {}
    for place, state, error, *row in effect_rows:
        effect = EffectRow(*row)
        places[effect.run] = (place, state, error)
        calls.setdefault(effect.run, []).append(effect)
    if not places:
        return NotTold((), more)
    ordered = sorted(places, key=lambda run: places[run][0])
    of_runs = [{"tenant": tenant, "run": run} for run in ordered]
    inputs = yield [("message.one", of_run | {"ordinal": 1}) for of_run in of_runs]
    joined = yield [("run.steers", of_run | {"state": "joined"}) for of_run in of_runs]
    succeeded = [e for effects in calls.values() for e in effects if e.state == "succeeded"]
    replies = (
        (yield [("message.one", {"tenant": tenant, "run": e.run, "ordinal": e.reply}) for e in succeeded])
        if succeeded else []
    )  # fmt: skip
    results: dict[str, dict[int, str]] = {}
    for effect, rows in zip(succeeded, replies, strict=True):
        if rows:
            results.setdefault(effect.run, {})[effect.ordinal] = checked_body(effect.run, *rows[0])
    unanswered = {run for run, *_ in runs}
    codes = {run: values.loads(error).get("code", "") for run, (*_, error) in places.items() if error}
    found = tuple(
        context.Untold(
            run, places[run][1],
            (*(checked_body(run, *row) for row in first), *(s.body for s in steers_in(steers))),
            run in unanswered, tuple(sorted(calls.get(run, ()), key=lambda e: e.ordinal)), codes.get(run, ""),
            results.get(run, {}),
        )
        for run, first, steers in zip(ordered, inputs, joined, strict=True)
    )  # fmt: skip
    return NotTold(found, more)


def note_down(
    claim: Claim,
    at: int,
    entries: Sequence[events.Entry],
    *,
    message: tuple[int, str] | None = None,
    definition: tuple[str, str] | None = None,
    used: Mapping[str, Usage] | None = None,
    steers: Sequence[tuple[Steer, int]] = (),
    carried: tuple[str, str] | None = None,
    dropped: outbox.Dropped | None = None,
    unread: bool = True,
) -> Tx[journal.Batch]:
    """T2, and a failed model attempt: entries of the holder that change nothing else.

    ``message`` is a note's ordinal and body, ``definition`` the digest and body of an agent that changed meanwhile,
    ``used`` what the run has used with the failed attempt. ``steers`` join the run, each as its message of that
    ordinal; if one of them does not wait any more, or a cancel is requested, nothing is written. ``carried`` is the
    digest and the text of what the runtime carries, ``dropped`` what memory is offered since it is not shown any more.
    ``unread`` tolerates unread signals.
    """
    holding = hold(claim, len(entries), at)
    if used is not None:
        holding = hold(claim, len(entries), at, "run.hold_spent", **_spent(used))
    of_steer = {"tenant": claim.tenant, "host": claim.run, "at": at}
    joining = [("run.join", of_steer | {"run": s.run}) for s, _ in steers]
    held, *joined = yield [holding, *joining] if joining else foresee(claim, [holding])
    seq = held_seq(held, claim, cancel=not steers, unread=unread)  # nothing joins what was asked to stop
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, entries)
    writes = [append]
    for (steer, ordinal), moved in zip(steers, joined, strict=True):
        if not moved:
            raise SignalsUnread(f"run {steer.run} does not wait to join run {claim.run} any more")
        own = [events.RunJoined(host=claim.run)]
        writes.append(append_entries(claim.tenant, steer.run, moved[0][1], moved[0][0], at, own)[0])
        writes.append(message_row(claim.tenant, claim.run, ordinal, steer.body))
        writes.append(("blob.share", of_steer | {"run": steer.run}))
    if message is not None:
        writes.append(message_row(claim.tenant, claim.run, *message))
    if definition is not None:
        digest, body = definition
        writes.append(("definition.insert", {"tenant": claim.tenant, "digest": digest, "body": body}))
    if carried is not None:
        digest, body = carried
        of_session = {"tenant": claim.tenant, "session": claim.session}
        writes.append(("carried.insert", of_session | {"digest": digest, "body": body}))
    if dropped is not None:
        yield from outbox.offer(claim.tenant, claim.session, at, dropped)
    yield Final(writes)
    return batch


class Given(NamedTuple):
    """The outcome of a call that is not made, with its stored result, and where all of a long one is kept."""

    entry: events.EffectSucceeded
    body: str
    blob: messages.Blob | None = None
    attached: tuple[messages.Attachment, ...] = ()


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
    given: Given | None = None

    @property
    def result(self) -> str | None:
        """The stored result of a call that has its outcome by now."""
        return self.refusal if self.given is None else self.given.body

    @property
    def state(self) -> effects.EffectState:
        if self.given is not None:
            return "succeeded"
        return "failed" if self.refusal is not None else "asked" if self.entry.ask else "planned"


def _spent(used: Mapping[str, Usage]) -> dict[str, Any]:
    total = usage.total(used)
    return {"usage": usage.dumps(used), "tokens_in": total.input, "tokens_out": total.output}


def answer(
    claim: Claim,
    user_id: str,
    at: int,
    completed: events.ModelCompleted,
    body: str,
    calls: Sequence[PlannedCall],
    used: Mapping[str, Usage],
    also: Sequence[events.Entry] = (),
) -> Tx[journal.Batch]:
    """T3: the answer, its usage, and every call as a planned effect with its decision and, where needed, its ask.

    ``used`` is what the run has used with it.
    """
    entries: list[events.Entry] = [completed]
    writes: list[Statement] = [message_row(claim.tenant, claim.run, completed.message, body)]
    for call in calls:
        planned, rows = _planned(claim, user_id, at, call)
        entries += planned
        writes += rows
    entries.extend(also)
    (held,) = yield foresee(claim, [hold(claim, len(entries), at, "run.hold_answered", **_spent(used))])
    seq = held_seq(held, claim, cancel=False)
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, entries)
    yield Final([append, *writes])
    return batch


def _planned(claim: Claim, user_id: str, at: int, call: PlannedCall) -> tuple[list[events.Entry], list[Statement]]:
    """A planned effect with its decision and, where needed, its ask."""
    planned = call.entry
    entries: list[events.Entry] = [planned]
    writes: list[Statement] = [("effect.insert", {
        "tenant": claim.tenant, "run": claim.run, "session": claim.session, "ordinal": planned.call,
        "tool": planned.tool, "effect": planned.effect, "call_id": call.call_id, "reply": call.reply,
        "arguments": call.arguments, "state": call.state, "decision": call.decision, "parent": planned.parent,
        "place": planned.place, "reuses": planned.reuses, **_kept(call.given and call.given.blob),
    })]  # fmt: skip
    if call.given is not None:
        entries.append(call.given.entry)
        for kept in (call.given.blob, *call.given.attached):
            writes += _uses(claim, kept, at)
    elif call.refusal is not None:
        entries.append(events.EffectFailed(call=planned.call, reason=call.refusal_reason))
    if call.result is not None:
        writes.append(message_row(claim.tenant, claim.run, call.reply, call.result))
    if planned.ask:
        entries.append(events.AskOpened(ask=planned.ask, ask_kind="approval", call=planned.call))
        writes.append(ask_row(
            claim.tenant, planned.ask, claim.run, claim.session, user_id, "approval", at,
            effect=ids.effect_id(claim.run, planned.call), tool=planned.tool, arguments=call.arguments,
            hash=call.hash, question=call.question, expires_at=call.expires_at,
        ))  # fmt: skip
    return entries, writes


def plan_step(claim: Claim, user_id: str, at: int, message: tuple[int, str], call: PlannedCall) -> Tx[journal.Batch]:
    """T3 of one call that a tool of steps makes. ``message`` is the ordinal and the body of what holds the call."""
    entries, writes = _planned(claim, user_id, at, call)
    (held,) = yield [hold(claim, len(entries), at)]
    seq = held_seq(held, claim, cancel=False)
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, entries)
    yield [append, message_row(claim.tenant, claim.run, *message), *writes]
    return batch


class AskedAgain(NamedTuple):
    """An approval that is asked for before a call starts, since its tool is another one than when it was planned."""

    entry: events.AskOpened
    tool: str
    arguments: str
    hash: str
    decision: str
    question: str
    expires_at: int | None


def ask_again(claim: Claim, user_id: str, at: int, asking: AskedAgain) -> Tx[journal.Batch]:
    """A call that is planned or approved waits for a person (again). Refused like T4."""
    call = asking.entry.call
    assert call is not None
    effect = {"tenant": claim.tenant, "run": claim.run, "ordinal": call, "decision": asking.decision}
    held, marked = yield [hold(claim, 1, at), ("effect.ask", effect)]
    seq = held_seq(held, claim, cancel=False, unread=False)
    if not marked:
        raise ClaimLost(f"call {call} of run {claim.run} has started")
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, [asking.entry])
    ask = ask_row(
        claim.tenant, asking.entry.ask, claim.run, claim.session, user_id, "approval", at,
        effect=ids.effect_id(claim.run, call), tool=asking.tool, arguments=asking.arguments, hash=asking.hash,
        question=asking.question, expires_at=asking.expires_at,
    )  # fmt: skip
    yield [append, ask]
    return batch


class Questioning(NamedTuple):
    """A question as it is stored: its words, the JSON schema of its answer and, as texts of JSON, its default."""

    entry: events.AskOpened
    question: str
    schema: str
    default: str | None
    expires_at: int | None


def open_question(claim: Claim, user_id: str, at: int, asking: Questioning) -> Tx[journal.Batch]:
    """T3 of one question that a tool of steps asks: of the session's user. Refused while a cancel is requested."""
    opened = asking.entry
    assert opened.call is not None
    (held,) = yield [hold(claim, 1, at)]
    seq = held_seq(held, claim, cancel=False)
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, [opened])
    ask = ask_row(
        claim.tenant, opened.ask, claim.run, claim.session, user_id, "question", at,
        effect=ids.effect_id(claim.run, opened.call), hash=opened.hash, question=asking.question,
        expires_at=asking.expires_at, schema=asking.schema, default=asking.default,
    )  # fmt: skip
    yield [append, ask]
    return batch


class AskedAbout(NamedTuple):
    """What a person is shown of a request that is too large: ``preview`` is encoded, as JSON text."""

    entry: events.AskOpened
    question: str
    preview: str
    hash: str


def ask_compaction(claim: Claim, user_id: str, at: int, asking: AskedAbout) -> Tx[journal.Batch]:
    """The next request is larger than the budget, and a person says what becomes of it. Refused like T4."""
    (held,) = yield [hold(claim, 1, at)]
    seq = held_seq(held, claim, cancel=False, unread=False)
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, [asking.entry])
    ask = ask_row(
        claim.tenant, asking.entry.ask, claim.run, claim.session, user_id, "compaction", at,
        arguments=asking.preview, hash=asking.hash, question=asking.question,
    )  # fmt: skip
    yield [append, ask]
    return batch


def started(claim: Claim, at: int, call: int, attempt: int, deadline: int, presumed: bool = False) -> Tx[journal.Batch]:
    """T4: its own commit right before dispatch. Refused while a cancel or any signal is there."""
    key = {"tenant": claim.tenant, "run": claim.run}
    effect = key | {"ordinal": call, "attempt": attempt, "deadline": deadline, "at": at}
    held, marked = yield foresee(claim, [hold(claim, 1, at, "run.hold_writing"), ("effect.start", effect)], (call,))
    seq = held_seq(held, claim, cancel=False, unread=False)
    if not marked:
        raise ClaimLost(f"call {call} of run {claim.run} is not waiting for attempt {attempt}")
    entry = events.EffectStarted(call=call, attempt=attempt, deadline=deadline, presumed=presumed)
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, [entry])
    yield Final([append])
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
    blob: messages.Blob | None = None  # all of a result of which the message shows a part; its bytes are kept before
    attached: Sequence[messages.Attachment] = ()  # to the result; their bytes are kept before


def outcome(claim: Claim, user_id: str, at: int, done: Outcome, also: Sequence[events.Entry] = ()) -> Tx[journal.Batch]:
    """T5. Requires the effect to be started with this attempt (a read: planned).

    ``also`` may hold the next T2. With it everything is refused while a signal is unread: it could be a message for it.
    """
    entry = done.entry
    state: effects.EffectState = (
        "succeeded" if isinstance(entry, events.EffectSucceeded)
        else "failed" if isinstance(entry, events.EffectFailed) else "unknown"
    )  # fmt: skip
    entries = [entry, *also]
    ended = {
        "tenant": claim.tenant, "run": claim.run, "ordinal": entry.call, "state": state, "at": at,
        "attempt": done.attempt, "reason": done.reason or None, "unstarted": int(done.unstarted),
        "warning": entry.warning or None if isinstance(entry, events.EffectSucceeded) else None,
        **_kept(done.blob),
        "seen": int(isinstance(entry, events.EffectUnknown) and entry.seen),
    }  # fmt: skip
    holding = hold(claim, len(entries), at)
    held, marked = yield foresee(claim, [holding, ("effect.outcome", ended)], (entry.call,))
    seq = held_seq(held, claim, unread=not also)
    if not marked:
        raise ClaimLost(f"call {entry.call} of run {claim.run} is not at attempt {done.attempt} any more")
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, entries)
    writes = [append]
    if claim.deaths:
        writes.append(("run.progressed", {"tenant": claim.tenant, "run": claim.run}))
    if isinstance(entry, events.EffectUnknown):
        writes.append(ask_row(
            claim.tenant, entry.ask, claim.run, claim.session, user_id, "unknown_effect", at,
            effect=ids.effect_id(claim.run, entry.call), tool=done.tool, arguments=done.arguments, hash=done.hash,
            question=done.question,
        ))  # fmt: skip
    else:
        writes.append(message_row(claim.tenant, claim.run, done.reply, done.body))
    for kept in (done.blob, *done.attached):
        writes += _uses(claim, kept, at)
    yield Final(writes)
    return batch


def _kept(blob: messages.Blob | None) -> dict[str, Any]:
    """The columns of an effect that say where all of its result is kept."""
    return {"blob": blob and blob.digest, "size": blob and blob.size}


def _uses(claim: Claim, blob: messages.Blob | messages.Attachment | None, at: int) -> list[Statement]:
    """Its bytes are kept by now; from here on they are not collected."""
    if blob is None:
        return []
    kept = {"tenant": claim.tenant, "digest": blob.digest}
    return [("blob.insert", kept | {"size": blob.size, "at": at}), ("blob.use", kept | {"run": claim.run})]


def late_outcome(tenant: str, run: str, call: int, evidence: str) -> Tx[None]:
    """An outcome that came after the claim or the attempt was over: kept beside the effect, never in the journal."""
    yield [("effect.late", {"tenant": tenant, "run": run, "ordinal": call, "evidence": evidence})]


def rest(claim: Claim, *, asleep: bool) -> Tx[None]:
    """A suspect does nothing but wait for an instant: of what its process dies meanwhile, it is not this run."""
    of_run = {"tenant": claim.tenant, "run": claim.run, "fence": claim.fence}
    (held,) = yield [("run.rests", of_run | {"deaths": claim.deaths - asleep})]
    if not held:
        raise ClaimLost(f"run {claim.run} is not held with fence {claim.fence} any more")


# --- T6 suspend -------------------------------------------------------------------------------------------------


def suspend(claim: Claim, at: int, asks: Sequence[str], after: int) -> Tx[tuple[RunRow, journal.Batch]]:
    """T6. Fails if an ask was decided meanwhile: its signal is unread, or was read after the entry ``after``."""
    of_session = {"tenant": claim.tenant, "session": claim.session, "run": claim.run, "at": at}
    held, raised = yield [hold(claim, 1, at), ("session.suspend", of_session)]
    seq = held_seq(held, claim, cancel=False, unread=False)
    if seq != after + 1:
        raise SignalsUnread(f"run {claim.run} moved on while it was about to wait")
    revision = yield from raised_revision(raised, claim)
    entry = events.RunWaiting(asks=list(asks), revision=revision)
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, [entry])
    key = {"tenant": claim.tenant, "run": claim.run}
    message = outbox.told(claim.tenant, claim.run, seq, "run.waiting", at)
    *_, rows = yield Final([append, message, ("run.suspend", key), ("run.get", key)])
    return RunRow(*rows[0]), batch


def commit(
    claim: Claim,
    session: SessionRow,
    at: int,
    reply: Mapping[str, Any],
    n_messages: int,
    state: StateChange | None,
    told: Iterable[Sequence[str]],
    step: int,
    last: bool,
    seen: Seen | None = None,
    memory: Changes | None = None,
    pins: str | None = None,
    tell: bool = False,
) -> Tx[Ended]:
    """T8, the only completion point: session revision by compare-and-swap on ``head``, messages, reply, run, memory.

    ``session`` is as it was at the claim. Refused while a message waits to join the run, unless this was its ``last``
    step. ``seen`` is what models are shown of the session from now on, ``pins`` what is pinned in it, where that is
    news. ``tell``: somebody may want to hear of it.
    """
    key = {"tenant": claim.tenant, "run": claim.run}
    of_session = {"tenant": claim.tenant, "session": claim.session}
    first: list[Statement] = [
        hold(claim, 3, at),
        ("session.commit", of_session | {"run": claim.run, "n": n_messages, "at": at}),
        ("run.steered", key),
    ]
    held, committed, ((steered,),) = yield foresee(
        claim, first, (claim.head + 1, session.next_message, session.created_at), (0,)
    )
    seq = held_seq(held, claim, cancel=False)
    if steered and not last:
        raise SignalsUnread(f"a message waits to join run {claim.run}")
    revision = yield from raised_revision(committed, claim)
    base = committed[0][1]
    entries: list[events.Entry] = [events.StepCompleted(step=step)]
    entries += [events.SessionCommitted(revision=revision), events.RunCompleted()]
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, entries)
    body = values.dumps({**reply, "revision": revision})
    done = {"reply": body, "reply_sum": checksums.of_content(RunRow.what_was_replied(claim.run), body)}
    of_state = SessionRow.what_is_kept(claim.session)
    undo, undo_sum = (None, None) if state is None else (state.undo, checksums.of_content(of_state, state.undo))
    done |= {"base": base, "state_before": undo, "state_before_sum": undo_sum, "at": at}
    writes: list[Statement] = [append, ("run.complete", key | done)]
    if held[0][2]:  # of messages that were cancelled before they joined, or run after it: nobody reads them any more
        writes += [("signal.read", key | {"at": at}), ("signal.none_unread", key)]
    if state is not None:
        kept = checksums.of_content(of_state, state.state)
        writes.append(("session.state", of_session | {"state": state.state, "state_sum": kept}))
    if seen is not None and committed[0][2] == session.created_at:  # else what it tells of was erased meanwhile
        writes += seen_rows(claim.tenant, claim.session, seen, base + n_messages)
    if pins is not None:
        writes += pins_rows(claim.tenant, claim.session, pins, claim.run)
    writes += _told(claim.tenant, told)
    if claim.fence > 1:  # it may have rested while others were made findable that came after it
        histories = {"kind": "session", "name": claim.session}, {"kind": "user", "name": ""}
        writes += [("space.not_all", key | history) for history in histories]
    if tell:
        writes.append(outbox.told(claim.tenant, claim.run, seq + 2, "run.completed", at))
    if memory is not None:
        yield from change_memory(memory, claim.run, at)
    *_, rows, following = yield Final([*writes, ("run.get", key), ("run.next_in_session", of_session)])
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
