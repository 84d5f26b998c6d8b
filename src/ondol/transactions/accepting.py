"""What is written when an operation comes in (T0), or comes again?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from ondol import events, journal, messages, schemas, values
from ondol.errors import (
    InvalidInput,
    OperationExpired,
    OperationMismatch,
    QueueFull,
    RevisionConflict,
    SessionBusy,
)
from ondol.records import AskRow, RunRow, SessionRow
from ondol.transactions.deciding import decide
from ondol.transactions.driving import Claimed, held, read_untold, untold_rows
from ondol.transactions.ending import RETRYABLE_AFTER_RESTORE, Cancelled, park_restored, stop
from ondol.transactions.pieces import (
    QUEUED,
    Blocking,
    append_entries,
    blocking,
    get_run,
    message_row,
    not_theirs,
    queue_again,
    run_row,
    signal_rows,
)
from ondol.transactions.signals import STEER, Decision
from ondol.transactions.statements import Final, Row, Statement, Tx

IfBusy: TypeAlias = Literal["queue", "reject", "interrupt", "steer"]
REPLY_KEPT = 30 * 24 * 3600 * 1_000_000  # microseconds that the reply of a completed operation is kept


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
    if_busy: IfBusy = "queue"
    by: str = ""  # who interrupts
    queue: int | None = None  # operations that may wait in the session behind the one that is worked on
    metadata: str | None = None  # the caller's own notes, JSON
    own_only: bool = False  # a session of somebody else is none
    outbox: bool = False  # somebody wants to hear of its end
    owner: str | None = None  # who claims it at once, if its turn has come


class Accepted(NamedTuple):
    """``created`` is False when the operation was known; ``wake`` when a worker should look at the run.

    ``interrupted`` is the run whose place was taken: it has ended, or its holder has a signal to read. ``host`` is the
    run that this one wants to join; of one that has joined it is the run that answers for both. ``behind`` is what a
    queued one waits for. ``claimed`` is there where T1 rode on this.
    """

    run: RunRow
    created: bool
    wake: bool
    interrupted: RunRow | None = None
    host: RunRow | None = None
    behind: Blocking | None = None
    claimed: Claimed | None = None

    @property
    def answering(self) -> RunRow:
        """The run whose end this operation has."""
        return self.host if self.host is not None and self.run.state == "joined" else self.run


def accept(new: NewRun, at: int) -> Tx[Accepted]:
    """T0. A known operation is answered before revision and queue are looked at. T1 rides on it, where its owner is
    there by now."""
    key = {"tenant": new.tenant, "user_id": new.user_id, "operation_id": new.operation_id}
    of_session = {"tenant": new.tenant, "session": new.session}
    known, session_rows, unfinished, *told_of = yield [
        ("run.by_operation", key),
        ("session.get", of_session),
        ("run.unfinished_in_session", of_session),
        *(untold_rows(new.tenant, new.session, new.run) if new.owner else ()),
    ]
    if known:
        return (yield from known_operation(RunRow(*known[0]), new.fingerprint, at))
    session = SessionRow(*session_rows[0]) if session_rows else None
    _check(new, session, unfinished)
    answer = (yield from _answer(new, unfinished[0][0], at)) if unfinished else None
    if new.queue is not None and unfinished and new.if_busy != "interrupt" and answer is None:
        (((waiting,),),) = yield [("run.count_unfinished", of_session)]
        if waiting > new.queue:
            raise QueueFull(new.session, new.queue)

    place = session.next_place if session else 0
    interrupted = None
    if new.if_busy == "interrupt" and unfinished:
        interrupted = yield from _interrupt(new, unfinished[0][0], at)
        place = interrupted.run.place + 1
        yield [("run.make_room", of_session | {"place": place})]
    host = (yield from _host(new, unfinished[0][0])) if new.if_busy == "steer" and unfinished else None
    if new.owner is not None and not unfinished:
        return (yield from _accept_and_claim(new, new.owner, session, told_of, at))
    writes, _ = _writes(new, session, place, at, answer[0].run if answer else host and host.id)
    if host is not None and host.state == "running":
        writes += signal_rows(host, STEER, new.run, at)
    if not unfinished:
        *_, rows = yield Final([*writes, ("run.get", {"tenant": new.tenant, "run": new.run})])
        return Accepted(RunRow(*rows[0]), created=True, wake=True)
    *_, rows = yield [*writes, ("run.get", {"tenant": new.tenant, "run": new.run})]
    run = RunRow(*rows[0])
    if answer is not None:
        return (yield from _answers(run, *answer, new, at))
    if interrupted is not None:
        behind = (yield from blocking(run)) if interrupted.pending else None
        return Accepted(run, created=True, wake=not interrupted.pending, interrupted=interrupted.run, behind=behind)
    return Accepted(run, created=True, wake=False, host=host, behind=(yield from blocking(run)))


def _check(new: NewRun, session: SessionRow | None, unfinished: list[Row]) -> None:
    """Whose session is it, is it where the caller thinks, and is somebody in it who was not to be?"""
    if new.own_only and session is not None and session.deleted_at is None and session.user_id != new.user_id:
        raise not_theirs(new.session)
    if new.expected_revision is not None:
        actual = session.revision if session else 0
        if unfinished:
            run, state = unfinished[0]
            why = f"has the unfinished run {run} ({state}), so revision {new.expected_revision} will not last"
            raise RevisionConflict(new.session, new.expected_revision, actual, why)
        if actual != new.expected_revision:
            raise RevisionConflict(new.session, new.expected_revision, actual)
    if new.if_busy == "reject" and unfinished:
        raise SessionBusy(new.session, *unfinished[0])


def _writes(
    new: NewRun, session: SessionRow | None, place: int, at: int, host: str | None = None, owner: str | None = None
) -> tuple[list[Statement], journal.Batch]:
    """The run in its place of the session: in the queue, or held by ``owner`` from the beginning."""
    of_session, of_run = {"tenant": new.tenant, "session": new.session}, {"tenant": new.tenant, "run": new.run}
    made = {"next_place": place + 1, "zone": new.zone, "at": at, "owner": new.user_id or None}
    if session is None:
        of_tenant: Statement = ("tenant.insert", {"tenant": new.tenant})
        writes = [of_tenant, ("session.insert", of_session | made)]
    elif session.deleted_at is not None:
        writes = [("session.again", of_session | made)]
    else:
        guest = new.user_id and session.user_id and new.user_id != session.user_id  # whose zone is for that run
        writes = [("session.place", of_session | {"zone": None if guest else new.zone})]
    known_zone = session.zone if session and session.deleted_at is None else None
    accepted = events.RunAccepted(agent=new.agent, session=new.session, trigger=new.trigger)
    append, batch = append_entries(new.tenant, new.run, 0, 1, at, [accepted])
    row = {
        "tenant": new.tenant, "run": new.run, "session": new.session, "user_id": new.user_id,
        "operation_id": new.operation_id, "fingerprint": new.fingerprint, "agent": new.agent,
        "definition": new.definition_digest, "trigger": new.trigger, "door": new.door,
        "zone": new.zone or known_zone or new.default_zone, "host": host, "metadata": new.metadata,
        "place": place, "at": at, "next_seq": 2, "family": None, "replay_of": None, "forked_at": None, **QUEUED,
    }  # fmt: skip
    if owner is not None:
        row |= {"state": "running", "fence": 1, "owner": owner, "next_seq": 3}
    return [
        *writes,
        ("run.insert", row),
        ("definition.insert", {"tenant": new.tenant, "digest": new.definition_digest, "body": new.definition}),
        append,
        message_row(new.tenant, new.run, 1, new.input),
        *(("blob.insert", {"tenant": new.tenant, "digest": d, "size": size, "at": at}) for d, size in new.blobs),
        *(("blob.use", of_run | {"digest": d}) for d, _ in new.blobs),
        *([("outbox.want", of_run)] if new.outbox else ()),
    ], batch


def _accept_and_claim(
    new: NewRun, owner: str, session: SessionRow | None, told_of: list[list[Row]], at: int
) -> Tx[Accepted]:
    """T0 and T1: nobody is before it in the session. ``told_of`` are the rows of ``untold_rows``."""
    untold = yield from read_untold(new.tenant, *told_of)
    if session is not None:
        session.checked_state()
    writes, accepted = _writes(new, session, session.next_place if session else 0, at, owner=owner)
    append, started = append_entries(new.tenant, new.run, 1, 2, at, [events.RunStarted()])
    of_run, of_session = {"tenant": new.tenant, "run": new.run}, {"tenant": new.tenant, "session": new.session}
    *_, rows, sessions = yield Final([*writes, append, ("run.get", of_run), ("session.get", of_session)])
    run, there = RunRow(*rows[0]), SessionRow(*sessions[0])
    if (run.owner, run.fence) != (owner, 1):  # the answer was lost for so long that another process took it over
        return Accepted(run, created=True, wake=False)
    claimed = held(run, there, [accepted, started], {1: new.input}, untold, steered=False)
    return Accepted(run, created=True, wake=False, claimed=claimed)


def _interrupt(new: NewRun, first: str, at: int) -> Tx[Cancelled]:
    """The session's first unfinished run makes room, in whatever state: no effect of it starts after this."""
    run = yield from get_run(new.tenant, first)
    why = f"run {new.run} took its place"
    last = events.RunCancelled(by=new.by, door=new.door, reason=why, interrupted_by=new.run)
    return (yield from stop(run, last, at))


def _host(new: NewRun, first: str) -> Tx[RunRow | None]:
    """The session's first unfinished run, if the message can join it: it works for the same agent and the same user,
    and neither waits for a person nor has been asked to stop. Else the message queues."""
    run = yield from get_run(new.tenant, first)
    able = run.state in ("queued", "running") and not run.cancel
    return run if able and (run.agent, run.user_id) == (new.agent, new.user_id) else None


def _answer(new: NewRun, first: str, at: int) -> Tx[tuple[AskRow, Decision] | None]:
    """The question that the message answers: the only one that the session's first unfinished run, waiting for the same
    user in talk with the same agent, has open. It must fit; approvals and unknown effects are never settled so."""
    if new.if_busy not in ("queue", "steer") or new.trigger not in ("chat", "api") or new.blobs:
        return None
    rows, asks = yield [
        ("run.get", {"tenant": new.tenant, "run": first}),
        ("ask.questions", {"tenant": new.tenant, "run": first}),
    ]
    run = run_row(rows, first)
    if run.state != "waiting" or (run.agent, run.user_id) != (new.agent, new.user_id):
        return None
    questions = [AskRow(*a) for a in asks]
    if len(questions) != 1 or (questions[0].expires_at is not None and questions[0].expires_at <= at):
        return None
    try:
        said = schemas.typed(messages.loads(new.input).text, values.loads(questions[0].schema or "{}"))
    except InvalidInput:
        return None
    return questions[0], Decision(kind="answer", value=values.encode(said))


def _answers(run: RunRow, ask: AskRow, decision: Decision, new: NewRun, at: int) -> Tx[Accepted]:
    """T7 in the transaction of the message: its run is part of the one that asked."""
    key = {"tenant": run.tenant, "run": run.id}
    (moved,) = yield [("run.join", key | {"host": ask.run, "at": at})]
    joined = events.RunJoined(host=ask.run, ask=ask.id)
    append, _ = append_entries(run.tenant, run.id, moved[0][1], moved[0][0], at, [joined])
    _, rows = yield [append, ("run.get", key)]
    decided = yield from decide(run.tenant, ask.id, decision, new.user_id or new.door, new.door, at)
    return Accepted(RunRow(*rows[0]), created=True, wake=decided.wake, host=decided.run)


def known_operation(run: RunRow, fingerprint: str, at: int) -> Tx[Accepted]:
    """The same operation id again: the table of the contract, row by row."""
    if run.fingerprint != fingerprint:
        raise OperationMismatch(
            f"operation {run.operation_id!r} was used before with another agent, session, input or attachment: "
            "choose a new operation id"
        )
    if run.state == "joined":  # it answers as the run that it joined
        host = yield from get_run(run.tenant, run.host or "")
        answered = yield from _stands(host, run.operation_id, at)
        return answered._replace(run=run, host=answered.run)
    return (yield from _stands(run, run.operation_id, at))


def _stands(run: RunRow, operation_id: str, at: int) -> Tx[Accepted]:
    if run.state == "completed":
        if run.reply is None or (run.ended_at or 0) + REPLY_KEPT <= at:
            instead = "its session was deleted, so" if run.reply is None else "read the session, or"
            raise OperationExpired(
                f"operation {operation_id!r} was completed by run {run.id}, its reply is no longer kept: "
                f"{instead} choose a new operation id"
            )
        return Accepted(run, created=False, wake=False)
    return (yield from _goes_on(run, at))


def resume(tenant: str, run_id: str, at: int) -> Tx[Accepted]:
    """As its operation, sent again: a run that failed for now goes on, any other stays as it is."""
    run = yield from get_run(tenant, run_id)
    if run.state == "joined":
        host = yield from get_run(tenant, run.host or "")
        resumed = yield from _goes_on(host, at)
        return resumed._replace(run=run, host=resumed.run)
    return (yield from _goes_on(run, at))


def _goes_on(run: RunRow, at: int) -> Tx[Accepted]:
    if run.state == "failed" and run.retryable:
        return (yield from _retry(run, at))
    return Accepted(run, created=False, wake=run.state == "queued", behind=(yield from blocking(run)))


def _retry(run: RunRow, at: int) -> Tx[Accepted]:
    """A retryable run goes on from its journal, at the tail of its session's queue."""
    if run.retryable == RETRYABLE_AFTER_RESTORE:
        parked = yield from park_restored(run.tenant, run.id, at)
        return Accepted(parked, created=False, wake=False)
    ((place,),) = yield [("session.place", {"tenant": run.tenant, "session": run.session, "zone": None})]
    again = yield from queue_again(run, "retried", at, place=place[0], deaths=0)
    return Accepted(again, created=False, wake=True, behind=(yield from blocking(again)))
