"""How does a run end without a commit (T9), or leave its holder?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple, TypeAlias, cast

from ondol import effects, events, ids, journal, lifecycle, values
from ondol.errors import ClaimLost, EndCode
from ondol.records import AskRow, EffectRow, RunRow
from ondol.transactions.outbox import told
from ondol.transactions.pieces import (
    Claim,
    act_row,
    append_entries,
    ask_row,
    get_run,
    held_seq,
    hold,
    journal_of,
    lost,
    queue_again,
    restored,
    signal_rows,
    stored_error,
    touch,
    touched,
)
from ondol.transactions.signals import STOPS, read_signals
from ondol.transactions.statements import Statement, Tx, with_conditions

INTERRUPTED = 2  # a run's ``cancel`` while only an interrupt asked for it; 1 when a cancel did


End: TypeAlias = events.RunFailed | events.RunCancelled | events.RunExpired


class Ended(NamedTuple):
    """The run as it is stored now, and the id, agent and deaths of the first in its session's queue."""

    run: RunRow
    next_run: tuple[str, str, int] | None
    batch: journal.Batch


def expired(ask: str) -> events.RunExpired:
    return events.RunExpired(ask=ask, message=f"question {ask} was not answered in time")


def end(claim: Claim, at: int, last: End) -> Tx[Ended]:
    """T9 by the holder. With a cancel requested it is always ``cancelled``."""
    run = yield from get_run(claim.tenant, claim.run)
    if run.cancel and not isinstance(last, events.RunCancelled):
        last = yield from _asked_to_stop(run)
    return (yield from finish(run, at, last, held=claim))


def finish(
    run: RunRow,
    at: int,
    last: End,
    *,
    before: Sequence[events.Entry] = (),
    held: Claim | None = None,
) -> Tx[Ended]:
    """T9: what started without an outcome becomes unknown with its ask, the rest is abandoned, other asks close."""
    key = {"tenant": run.tenant, "run": run.id}
    if held is None and run.state == "running":  # its holder may still write: not behind what is looked at here
        _, fence = yield from touched(run, 0, at)
        run = run._replace(fence=fence)
    read = yield from read_signals(run.tenant, run.id, True, at)
    (effect_rows,) = yield [("effect.of_run", key)]
    entries: list[events.Entry] = [*before, *read.entries]
    writes = read.writes
    calls = [EffectRow(*r) for r in effect_rows]
    doubted = yield from _doubted(run, calls)
    for effect in calls:
        if effect.state in effects.OUTCOMES or effect.state == "unknown" or effect.ordinal in read.settled:
            continue
        if effect.ordinal in doubted or effect.state == "started":
            why = "the run ended while it ran"
            said, marks = lost(effect, run.user_id, at, why, presumed=effect.ordinal in doubted)
            entries += said
            writes += marks
        else:
            setting = key | {"ordinal": effect.ordinal, "at": at, "arguments": None}
            entries.append(events.EffectAbandoned(call=effect.ordinal))
            writes.append(("effect.set", setting | {"state": "abandoned"}))
    entries.append(last)
    if held is not None:
        (rows,) = yield [hold(held, len(entries), at)]
        seq, fence = held_seq(rows, held), held.fence
    else:
        seq, fence = yield from touched(run, len(entries), at)
    append, batch = append_entries(run.tenant, run.id, fence, seq, at, entries)
    match last:
        case events.RunFailed():
            state, error = "failed", stored_error(last.code, last.message)
        case events.RunExpired():
            state, error = "expired", stored_error("expired", last.message)
        case events.RunCancelled():
            code: EndCode = "interrupted" if last.interrupted_by else "cancelled"
            state, error = "cancelled", stored_error(code, last.reason, by=last.by)
    of_session = {"tenant": run.tenant, "session": run.session}
    wrote = run.wrote or doubted
    raised: list[Statement] = [("session.raise", of_session | {"at": at})] if wrote else []
    if wrote and held is None:
        raised.append(("run.follow", of_session))
    *_, rows, following = yield [
        append,
        *writes,
        *raised,
        told(run.tenant, run.id, seq + len(entries) - 1, last.kind, at),
        ("run.unhold", key | {
            "state": state, "ended_at": at, "error": error,
            "retryable": int(isinstance(last, events.RunFailed) and last.retryable),
        }),
        ("ask.close_all", key),
        ("signal.read", key | {"at": at}),
        ("signal.none_unread", key),
        ("run.get", key),
        ("run.next_in_session", of_session),
    ]  # fmt: skip
    return Ended(RunRow(*rows[0]), following[0] if following else None, batch)


def _doubted(run: RunRow, calls: Sequence[EffectRow]) -> Tx[frozenset[int]]:
    """The calls that may have been made after the backup that this store comes from, and about which nobody said a
    word since."""
    if not any(c.is_write and c.state in ("planned", "asked", "approved") for c in calls):
        return frozenset()
    state = yield from restored(run.tenant, run.id)
    return frozenset() if state is None else frozenset(e.ordinal for e in state.open_effects if e.doubted)


class Cancelled(NamedTuple):
    """``pending`` while the holder still has to stop; ``next_run`` as in ``Ended``."""

    run: RunRow
    pending: bool
    next_run: tuple[str, str, int] | None = None


def cancel(tenant: str, run_id: str, by: str, door: str, reason: str, at: int) -> Tx[Cancelled]:
    """A signal to the holder; at once where nobody holds the run. Idempotent. What failed for now goes on no more."""
    run = yield from get_run(tenant, run_id)
    if run.state in lifecycle.SETTLED and not run.retryable:
        return Cancelled(run, pending=False)
    return (yield from stop(run, events.RunCancelled(by=by, door=door, reason=reason), at))


def stop(run: RunRow, last: events.RunCancelled, at: int) -> Tx[Cancelled]:
    """Ask a run that may go on to stop. A cancel goes further than an interrupt that came before it."""
    kind = "interrupt" if last.interrupted_by else "cancel"
    act = act_row(run.tenant, at, last.by, last.door, f"run.{kind}", run.id, last.reason)
    if run.state == "running":
        if not run.cancel or (run.cancel == INTERRUPTED and kind == "cancel"):
            yield [*signal_rows(run, kind, values.dumps(asdict(last)), at), act]
        return Cancelled(run, pending=True)
    yield [act]
    ended = yield from finish(run, at, last)
    return Cancelled(ended.run, pending=False, next_run=ended.next_run)


def _asked_to_stop(run: RunRow) -> Tx[events.RunCancelled]:
    """Who asked: the last signal, or the run's journal where the signals were read before its holder died."""
    (signals,) = yield [("signal.unread", {"tenant": run.tenant, "run": run.id})]
    said = [values.loads(body) for kind, body, _ in signals if kind in STOPS]
    if said:
        return events.RunCancelled(**said[-1])
    state = yield from journal_of(run.tenant, run.id)
    return events.RunCancelled(**asdict(state.cancel)) if state and state.cancel else events.RunCancelled()


def release(tenant: str, run_id: str, fence: int, at: int, cut: bool = False) -> Tx[RunRow]:
    """The holder gives the run back at its old place; ``cut``: in the middle of something. It counts as no death."""
    run = yield from get_run(tenant, run_id)
    if run.state != "running" or run.fence != fence:
        raise ClaimLost(f"run {run_id} is not held with fence {fence} any more")
    return (yield from queue_again(run, "released", at, cut=cut))


def recover(tenant: str, run_id: str, fence: int, at: int, why: str = "") -> Tx[RunRow]:
    """Whoever held the run is gone: back into the queue, or parked when it goes on like this."""
    run = yield from get_run(tenant, run_id)
    if run.state != "running" or run.fence != fence:
        return run
    if run.cancel:  # it was accepted, and the holder is gone: nobody else will carry it out
        asked = yield from _asked_to_stop(run)
        return (yield from finish(run, at, asked)).run
    deaths = run.deaths + 1
    if deaths >= lifecycle.MAX_DEATHS:
        return (yield from _park(run, f"{deaths} processes died at the same step of this run{why and ': '}{why}", at))
    return (yield from queue_again(run, "recovered", at, deaths=deaths))


def _park(run: RunRow, why: str, at: int, restored: bool = False) -> Tx[RunRow]:
    """T6's twin: an operator's word is needed. Effects are left as they are, the session does not move."""
    ask = ids.ask_id(run.id, f"p{run.fence}")
    parked = events.RunParked(why=why, ask=ask, restored=restored)
    question = f"{why}. Resume it, or fail it?"
    writes: list[Statement] = [
        ask_row(run.tenant, ask, run.id, run.session, run.user_id, "parked", at, question=question),
        ("run.park", {"tenant": run.tenant, "run": run.id, "error": stored_error("parked", why)}),
    ]
    return (yield from touch(run, at, [parked], writes))


def park_changed(claim: Claim, at: int, why: str) -> Tx[tuple[RunRow, journal.Batch]]:
    """The holder's code does not fit what is recorded: an operator decides. Effects are left as they are."""
    key = {"tenant": claim.tenant, "run": claim.run}
    held, rows = yield [hold(claim, 1, at), ("run.get", key)]
    seq = held_seq(held, claim, cancel=False, unread=False)
    user_id = RunRow(*rows[0]).user_id
    ask = ids.ask_id(claim.run, f"p{claim.fence}")
    parked = events.RunParked(why=why, ask=ask, ask_kind="definition_changed")
    append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, [parked])
    question = f"{why}. Resume it (with code that fits), or fail it?"
    *_, rows = yield [
        append,
        ask_row(claim.tenant, ask, claim.run, claim.session, user_id, "definition_changed", at, question=question),
        ("run.park", key | {"error": stored_error("definition_changed", why)}),
        ("run.get", key),
    ]
    return RunRow(*rows[0]), batch


#: What ``retryable`` says of a failed run whose store was restored since: a person is asked before it goes on.
RETRYABLE_AFTER_RESTORE = 2
_RESTORED = "the store was restored from a backup, and nobody knows what this run did after that was made"


def park_restored(tenant: str, run_id: str, at: int) -> Tx[RunRow]:
    """After a restore from a backup nobody knows what happened since: a person settles each run that could go on."""
    run = yield from get_run(tenant, run_id)
    if run.state == "parked":
        return (yield from _park_again(run, at))
    if run.state not in lifecycle.UNFINISHED and not (run.state == "failed" and run.retryable):
        return run
    return (yield from _park(run, _RESTORED, at, restored=True))


def _park_again(run: RunRow, at: int) -> Tx[RunRow]:
    """Its ask stays. What is new is that it may have gone on after the backup was made."""
    (rows,) = yield [with_conditions("ask.list_open", {"tenant": run.tenant, "limit": 10_000}, {"run": run.id})]
    (ask,) = [a for a in (AskRow(*r) for r in rows) if a.kind in ("parked", "definition_changed")]
    parked = events.RunParked(why=_RESTORED, ask=ask.id, ask_kind=cast(events.AskKind, ask.kind), restored=True)
    return (yield from touch(run, at, [parked], []))
