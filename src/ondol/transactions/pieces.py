"""Which small pieces do the transactions share?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ondol import checksums, events, ids, journal, messages, values
from ondol.errors import CancelRequested, ClaimLost, EndCode, NotFound, RevisionConflict, SignalsUnread, StoreError
from ondol.records import AskRow, EffectRow, RunRow, SessionRow
from ondol.transactions.statements import Foreseen, Row, Statement, Tx, with_conditions

QUEUED: Mapping[str, Any] = {"state": "queued", "fence": 0, "owner": None}  # a new run that nobody drives yet


class Claim(NamedTuple):
    """The right to drive a run. ``head`` is the session's revision, ``deaths`` the run's, at the claim.

    ``next_seq`` is there where the holder knows that nobody else writes now: the sequence of its next entry.
    """

    tenant: str
    run: str
    session: str
    fence: int
    head: int
    deaths: int = 0
    next_seq: int | None = None


def hold(claim: Claim, n: int, at: int, name: str = "run.hold", **more: Any) -> Statement:
    """Every transaction of the holder starts with it: it must touch exactly one run. ``n`` entries will follow."""
    return name, {"tenant": claim.tenant, "run": claim.run, "fence": claim.fence, "n": n, "at": at, **more}


def foresee(claim: Claim, batch: list[Statement], *rows: Row) -> list[Statement]:
    """A batch that begins with ``hold``, with what it gives while nobody left a signal; ``rows`` are of the rest."""
    return batch if claim.next_seq is None else Foreseen(batch, [(claim.next_seq, 0, 0), *rows])


def held_seq(rows: list[Row], claim: Claim, *, cancel: bool = True, unread: bool = True) -> int:
    """The first sequence for the holder's entries. ``cancel`` and ``unread`` say whether those are tolerated."""
    if not rows:
        raise ClaimLost(f"run {claim.run} is not held with fence {claim.fence} any more")
    seq, cancelled, waiting = rows[0]
    if cancelled and not cancel:
        raise CancelRequested(f"run {claim.run} is being cancelled")
    if waiting and not unread:
        raise SignalsUnread(f"run {claim.run} has signals that were not read")
    return int(seq)


def append_entries(
    tenant: str, run: str, fence: int, seq: int, at: int, entries: Sequence[events.Entry]
) -> tuple[Statement, journal.Batch]:
    body = journal.dumps(entries)
    row = {
        "tenant": tenant, "run": run, "seq": seq, "n": len(entries), "fence": fence, "at": at, "v": journal.VERSION,
        "body": body, "sum": checksums.of_batch(run, seq, fence, at, body),
    }  # fmt: skip
    return ("entry.insert", row), journal.Batch(seq, fence, at, tuple(entries))


def message_row(tenant: str, run: str, ordinal: int, body: str) -> Statement:
    checksum = checksums.of_message(run, ordinal, body)
    stored = messages.pack(body)
    return "message.insert", {"tenant": tenant, "run": run, "ordinal": ordinal, "body": stored, "sum": checksum}


def run_row(rows: list[Row], run: str) -> RunRow:
    if not rows:
        raise NotFound(f"there is no run {run!r}: 'ondol runs' lists them")
    return RunRow(*rows[0])


def get_run(tenant: str, run: str) -> Tx[RunRow]:
    """Raises NotFound."""
    (rows,) = yield [("run.get", {"tenant": tenant, "run": run})]
    return run_row(rows, run)


def session_row(rows: list[Row], session: str) -> SessionRow:
    """One that was not deleted. Raises NotFound."""
    found = SessionRow(*rows[0]) if rows else None
    if found is None or found.deleted_at is not None:
        raise NotFound(f"there is no session {session!r}: 'ondol sessions' lists them")
    return found


def not_theirs(session: str) -> NotFound:
    """Of a session of somebody else, where one that there is not would be made. It says nothing of the other."""
    return NotFound(
        f"there is no session {session!r} for this user: those of other users are not shown, so choose another name"
    )


def act_row(tenant: str, at: int, actor: str, door: str, act: str, subject: str, note: str = "") -> Statement:
    """A human act, kept for the audit. ``note`` is the person's own word of why; it may hold no content."""
    return "act.insert", {
        "tenant": tenant, "at": at, "actor": actor, "door": door, "act": act, "subject": subject, "note": note,
    }  # fmt: skip


def queue_again(
    run: RunRow,
    why: str,
    at: int,
    *,
    place: int | None = None,
    deaths: int | None = None,
    cut: bool = False,
    before: Sequence[events.Entry] = (),
    also: Sequence[Statement] = (),
) -> Tx[RunRow]:
    """Put a run back into its queue by compare-and-swap, with ``before`` written ahead of ``run.queued``."""
    deaths = run.deaths if deaths is None else deaths
    entries = [*before, events.RunQueued(why=why, deaths=deaths, cut=cut)]
    (moved,) = yield [
        ("run.queue_again", {
            "tenant": run.tenant, "run": run.id, "state": run.state, "fence": run.fence,
            "place": place, "n": len(entries), "deaths": deaths, "at": at,
        })
    ]  # fmt: skip
    if not moved:
        raise ClaimLost(f"run {run.id} moved on while it was looked at")
    seq, fence = moved[0]
    append, _ = append_entries(run.tenant, run.id, fence, seq, at, entries)
    *_, rows = yield [append, *also, ("run.get", {"tenant": run.tenant, "run": run.id})]
    return RunRow(*rows[0])


def checked_body(run: str, ordinal: int, stored: bytes, stored_sum: int) -> str:
    """The body of a stored message. Raises StoreCorrupt if it is not what was written."""
    try:
        body = messages.unpack(stored)
    except (ValueError, TypeError, AttributeError):  # damaged: it may not even be bytes any more
        body = ""
    checksums.check_message(run, ordinal, body, stored_sum)
    return body


def ask_row(
    tenant: str, id: str, run: str, session: str, user_id: str, kind: events.AskKind, at: int, *, question: str,
    effect: str | None = None, tool: str | None = None, arguments: str = "{}", hash: str = "",
    expires_at: int | None = None, schema: str | None = None, default: str | None = None,
) -> Statement:  # fmt: skip
    return "ask.insert", {
        "tenant": tenant, "id": id, "run": run, "session": session, "user_id": user_id, "kind": kind,
        "effect": effect, "tool": tool, "arguments": arguments, "hash": hash, "question": question,
        "at": at, "expires_at": expires_at, "schema": schema, "default_answer": default,
        "default_sum": default and checksums.of_content(AskRow.what_is_by_default(id), default),
    }  # fmt: skip


class Blocking(NamedTuple):
    """The run that a queued one waits behind, and its open asks."""

    run: str
    state: str
    asks: tuple[AskRow, ...]


def blocking(run: RunRow) -> Tx[Blocking | None]:
    """What a queued run waits behind: the first unfinished one of its session. It changes nothing."""
    if run.state != "queued":
        return None
    (rows,) = yield [("run.unfinished_in_session", {"tenant": run.tenant, "session": run.session})]
    if not rows or rows[0][0] == run.id:
        return None
    ahead, state = rows[0]
    (asks,) = yield [with_conditions("ask.list_open", {"tenant": run.tenant, "limit": 100}, {"run": ahead})]
    return Blocking(ahead, state, tuple(AskRow(*a) for a in asks))


class Seen(NamedTuple):
    """What models are shown of a session from now on, as it is stored. ``less``: it is less than before."""

    text: str
    less: bool


def seen_rows(tenant: str, session: str, seen: Seen, made: int) -> list[Statement]:
    """What models are shown of a session from now on; it has ``made`` messages."""
    of_session = {"tenant": tenant, "session": session}
    kept = {"seen": seen.text, "seen_sum": checksums.of_content(SessionRow.what_is_seen(session), seen.text)}
    rows: list[Statement] = [("session.see", of_session | kept)]
    return [*rows, ("compaction.insert", of_session | kept | {"made": made})] if seen.less else rows


def pins_rows(tenant: str, session: str, pins: str, run: str | None = None) -> list[Statement]:
    """What is pinned in a session from now on, by the commit of a run or by hand."""
    total = checksums.of_content(SessionRow.what_is_pinned(session), pins)
    row: Statement = ("session.pins", {"tenant": tenant, "session": session, "pins": pins, "pins_sum": total})
    return [replaced_row(tenant, session, "pins", run), row]


def replaced_row(
    tenant: str, session: str, what: Literal["state", "pins"], run: str | None = None, *, known: bool = True
) -> Statement:
    """Keep what a session has, before it gets something else by hand, or by the commit of a run. Where that is damaged,
    it is not ``known`` any more."""
    return "replaced.insert", {"tenant": tenant, "session": session, "what": what, "run": run, "known": int(known)}


class StateChange(NamedTuple):
    """The state of a session from now on, as it is stored, and the patch that takes the change back."""

    state: str
    undo: str

    @classmethod
    def by_patch(cls, before: str, patch: Mapping[str, Any]) -> StateChange:
        stored = values.loads(before)
        return cls(values.dumps(values.patched(stored, patch)), values.dumps([values.undoing(stored, patch)]))


class Steer(NamedTuple):
    """A run that joins another one, with the stored body of its input."""

    run: str
    body: str


def steers_in(rows: list[Row]) -> list[Steer]:
    """What ``run.steers`` found, in the order in which they came."""
    return [Steer(run, checked_body(run, *stored)) for _, run, *stored in sorted(rows)]


def raised_revision(rows: list[Row], claim: Claim) -> Tx[int]:
    """The session's new revision. Raises RevisionConflict if the session was not at the claim's ``head``."""
    if not rows:
        (found,) = yield [("session.get", {"tenant": claim.tenant, "session": claim.session})]
        actual = SessionRow(*found[0]).revision if found else 0
        raise RevisionConflict(claim.session, claim.head, actual)
    return int(rows[0][0])


def signal_rows(run: RunRow, kind: str, body: str, at: int) -> list[Statement]:
    key = {"tenant": run.tenant, "run": run.id, "kind": kind}
    return [("signal.insert", key | {"body": body, "at": at}), ("signal.arrived", key)]


def stored_error(code: EndCode, message: str, **more: str) -> str:
    """What a run keeps of its end, and a parked one of what stopped it."""
    return values.dumps({"code": code, "message": message, **more})


def touch(run: RunRow, at: int, entries: Sequence[events.Entry], writes: Sequence[Statement]) -> Tx[RunRow]:
    """Append to a run that nobody holds, without moving it."""
    seq, fence = yield from touched(run, len(entries), at)
    append, _ = append_entries(run.tenant, run.id, fence, seq, at, entries)
    *_, rows = yield [append, *writes, ("run.get", {"tenant": run.tenant, "run": run.id})]
    return RunRow(*rows[0])


def touched(run: RunRow, n: int, at: int) -> Tx[tuple[int, int]]:
    """The sequence of the first of ``n`` entries, and their fence. Raises ClaimLost if the run is not as it was."""
    moving = {"state": run.state, "fence": run.fence, "n": n, "at": at}
    (moved,) = yield [("run.touch", {"tenant": run.tenant, "run": run.id} | moving)]
    if not moved:
        raise ClaimLost(f"run {run.id} moved on while it was looked at")
    seq, fence = moved[0]
    return seq, fence


def restored(tenant: str, run: str) -> Tx[journal.State | None]:
    """Where the run stands, if the store was restored from a backup while it was unfinished; else None."""
    (asks,) = yield [("ask.of_run", {"tenant": tenant, "run": run})]
    if not any(AskRow(*a).kind in ("parked", "definition_changed") for a in asks):
        return None
    state = yield from journal_of(tenant, run)
    return None if state is None or state.restored is None else state


def journal_of(tenant: str, run: str) -> Tx[journal.State | None]:
    """Where the run stands, as its journal tells; None where that cannot be read here: it ends all the same."""
    (rows,) = yield [("entry.list", {"tenant": tenant, "run": run, "after": 0})]
    try:
        return journal.fold(journal.loads(run, *row) for row in rows)
    except StoreError:
        return None


def unknown_question(tool: str) -> str:
    return f"{tool} was started and its outcome could not be learned. Did it happen?"


def lost(
    effect: EffectRow, user_id: str, at: int, why: str, *, presumed: bool
) -> tuple[list[events.Entry], list[Statement]]:
    """Nobody knows whether a call happened, and a person is asked. ``presumed``: it may have been started after the
    backup that this store comes from."""
    key = {"tenant": effect.tenant, "run": effect.run, "ordinal": effect.ordinal}
    entries: list[events.Entry] = []
    writes: list[Statement] = []
    attempt = effect.attempt
    if presumed:
        attempt += 1
        begun = {"attempt": attempt, "deadline": at}
        entries.append(events.EffectStarted(call=effect.ordinal, **begun, presumed=True))
        approved = key | {"state": "approved", "at": None, "arguments": None}
        writes += [("effect.set", approved), ("effect.start", key | begun | {"at": at})]
    ask = ids.ask_id(effect.run, f"{effect.ordinal}u{attempt}")
    entries.append(events.EffectUnknown(call=effect.ordinal, ask=ask, reason=why))
    writes.append(("effect.set", key | {"state": "unknown", "at": at, "arguments": None}))
    writes.append(ask_row(
        effect.tenant, ask, effect.run, effect.session, user_id, "unknown_effect", at, effect=effect.id,
        tool=effect.tool, arguments=effect.arguments, hash=values.digest(values.loads(effect.arguments)),
        question=unknown_question(effect.tool),
    ))  # fmt: skip
    return entries, writes
