"""How is an ask decided (T7)?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from ondol import checksums, events, journal, lifecycle, replay, schemas, values
from ondol.budget import overflow_problem
from ondol.errors import AlreadyDecided, AskClosed, EndCode, InvalidInput, NotFound
from ondol.records import AskRow, RunRow
from ondol.transactions.ending import expired, finish
from ondol.transactions.pieces import act_row, get_run, queue_again, signal_rows, touch
from ondol.transactions.signals import CLOCK, DECISIONS, Decision, asked, refuse_unfit, settlement
from ondol.transactions.statements import Statement, Tx


class Decided(NamedTuple):
    """The ask as it is stored now. ``wake`` says whether a worker should look at its run; ``next_run`` is the first in
    the session's queue (id, agent, deaths) where the run ended by it."""

    ask: AskRow
    run: RunRow
    wake: bool
    first: bool
    next_run: tuple[str, str, int] | None = None


def decide(
    tenant: str, ask_id: str, decision: Decision, by: str, door: str, at: int, paused: bool = False
) -> Tx[Decided]:  # fmt: skip
    """T7: decided once, by compare-and-swap. Wakes a waiting run; a parked one only by its own ask.

    ``paused``: the clock has jumped, so that an ask whose time has come can be decided all the same.
    """
    (rows,) = yield [("ask.get", {"tenant": tenant, "id": ask_id})]
    if not rows:
        raise NotFound(f"there is no ask {ask_id!r}: 'ondol asks' lists the open ones")
    ask = AskRow(*rows[0])
    refuse_unfit(ask_id, ask.kind, decision.kind)
    if decision.kind == "expire" and door != CLOCK:
        raise InvalidInput(f"ask {ask_id} expires by the clock only: say {DECISIONS[ask.kind][0]}")
    if ask.kind == "compaction" and (why := overflow_problem(decision.kind, decision.value)) is not None:
        raise InvalidInput(f"this does not answer ask {ask_id}: {why}")
    if decision.kind == "answer":
        why = schemas.problem(values.decode(decision.value), values.loads(ask.schema or "{}"))
        if why is not None:
            raise InvalidInput(f"this does not answer ask {ask_id} ({ask.question!r}): {why}")
    run = yield from get_run(tenant, ask.run)
    if ask.state == "closed":
        raise AskClosed(f"ask {ask_id} was closed when run {ask.run} ended ({run.state}): there is nothing to decide")
    if ask.state != "open" and ask.decision is None:
        raise AskClosed(f"ask {ask_id} belongs to a session that was deleted: there is nothing to decide")
    if ask.state != "open":
        stored = Decision.loads(ask.checked_decision() or "")
        if stored.same_as(decision):
            return Decided(ask, run, wake=False, first=False)
        raise AlreadyDecided(f"ask {ask_id} was decided before: {stored.kind!r} by {ask.decided_by}")
    if decision.kind != "expire" and ask.expires_at is not None and at >= ask.expires_at and not paused:
        raise AlreadyDecided(f"ask {ask_id} has expired: nobody decided it in time")
    if decision.kind != "expire":  # by a person, who was shown its arguments as they are stored
        ask.check_arguments()
    if decision.arguments is not None:
        yield from _not_done_before(run, ask, decision.arguments)
    text = decision.dumps()
    (marked,) = yield [("ask.decide", {
        "tenant": tenant, "id": ask_id, "state": "expired" if decision.kind == "expire" else "decided",
        "decision": text, "decision_sum": checksums.of_content(AskRow.what_was_decided(ask_id), text),
        "decided_by": by, "door": door, "at": at,
    })]  # fmt: skip
    if not marked:
        raise AlreadyDecided(f"ask {ask_id} was decided at this moment by somebody else: look at it again")
    if decision.kind != "expire":
        yield [act_row(tenant, at, by, door, f"ask.{decision.kind}", ask_id, decision.reason or decision.evidence)]
    (rows,) = yield [("ask.get", {"tenant": tenant, "id": ask_id})]
    ask = AskRow(*rows[0])

    wake, following = False, None
    ends = decision.kind == "expire" and ask.kind == "question" and ask.default_answer is None
    if run.state == "running":
        yield signal_rows(run, "ask", ask_id, at)
    elif ends and run.state not in lifecycle.ENDED:  # nobody answered, and there is nothing to go on with
        nobody = events.AskExpired(ask=ask_id, unanswered=True)
        run, following, _ = yield from finish(run, at, expired(ask_id), before=[nobody])
    elif ask.kind in ("parked", "definition_changed"):
        if decision.kind == "fail":
            failed = events.RunFailed(
                code=cast(EndCode, ask.kind), message=decision.reason or "a person ended the parked run"
            )
            before = [asked(ask, decision)]
            run = (yield from finish(run, at, failed, before=before)).run
        else:
            ((place,),) = yield [("session.place", {"tenant": tenant, "session": run.session, "zone": None})]
            before = [asked(ask, decision)]
            run = yield from queue_again(run, "decided", at, place=place[0], deaths=0, before=before)
            wake = True
    else:
        entries, writes = yield from _meaning(ask, decision, run.state in lifecycle.ENDED, at)
        if run.state == "waiting":
            raised: Statement = ("session.raise", {"tenant": tenant, "session": run.session, "at": at})
            run = yield from queue_again(run, "decided", at, before=entries, also=[*writes, raised])
        else:
            news: Statement = ("run.news", {"tenant": tenant, "run": run.id})
            run = yield from touch(run, at, entries, [*writes, news])
        wake = run.state == "queued"
    return Decided(ask, run, wake, first=True, next_run=following)


def _not_done_before(run: RunRow, ask: AskRow, arguments: Mapping[str, Any]) -> Tx[None]:
    """Other arguments for a call of a replay or a fork: those of a recorded success, that nobody got yet, would do that
    again. Raises InvalidInput."""
    if run.replay_of is None:
        return
    (rows,) = yield [("entry.list", {"tenant": run.tenant, "run": run.id, "after": 0})]
    state = journal.fold(journal.loads(run.id, *row) for row in rows)
    ruling = replay.rule(state, ask.tool or "", values.digest(values.encode(arguments)), taken=frozenset())
    if isinstance(ruling, replay.Reuse):
        raise InvalidInput(
            f"an equal call of {ask.tool} succeeded before ({ruling.effect}), and run {run.id} does not make it again: "
            "deny this one, or approve it with other arguments"
        )


def _meaning(ask: AskRow, decision: Decision, ended: bool, at: int) -> Tx[tuple[list[events.Entry], list[Statement]]]:
    """The entries and changes that follow, where the ask is about an effect or about the run itself."""
    if ask.effect is None:
        return [asked(ask, decision)], []
    _, entries, writes = yield from settlement(ask, decision, ended, at)
    return entries, writes
