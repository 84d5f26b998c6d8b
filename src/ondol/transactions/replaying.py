"""What is looked at, and written, when a run is replayed (its T0)?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ondol import checksums, events, ids, journal, lifecycle, messages, replay, values
from ondol.errors import InvalidInput, ReplayUnsafe, StoreCorrupt
from ondol.messages import Attachment, Message, ToolResponse
from ondol.records import EffectRow, RunRow, SessionRow
from ondol.replay import By, Family, Member
from ondol.transactions.accepting import Accepted, known_operation
from ondol.transactions.ending import RETRYABLE_AFTER_RESTORE
from ondol.transactions.pieces import (
    QUEUED,
    act_row,
    append_entries,
    checked_body,
    message_row,
    restored,
    run_row,
    touch,
)
from ondol.transactions.statements import Statement, Tx


def read_family(tenant: str, run_id: str) -> Tx[Family]:
    """The run with its whole family. Raises NotFound; StoreCorrupt if a message of it does not match its checksum."""
    key = {"tenant": tenant, "run": run_id}
    rows, stored = yield [("run.get", key), ("message.of_run", key)]
    run = run_row(rows, run_id)
    of_family = {"tenant": tenant, "family": run.family or run.id}
    bodies = [checked_body(run.id, *row) for row in stored if row[0] > 0]
    asked = [body for body in bodies if _is_asked(messages.loads(body))]
    attached = [a for body in asked for a in _attached(body)]
    runs, effects, *blobs = yield [
        ("run.family", of_family),
        ("effect.of_family", of_family),
        *(("blob.get", {"tenant": tenant, "digest": a.digest}) for a in attached),
    ]
    done = [EffectRow(*r) for r in effects]
    members = []
    for *row, kept in runs:
        member = RunRow(*row)
        doubted = yield from _is_doubted(member)
        members.append(Member(member, bool(kept), tuple(e for e in done if e.run == member.id), doubted))
    gone = tuple(a.name for a, b in zip(attached, blobs, strict=True) if not b)
    given_up = yield from _given_up(tenant, [e for e in done if e.state == "unknown"])
    return Family(run, tuple(members), asked[0] if asked else None, tuple(asked[1:]), gone, given_up)


def _is_doubted(run: RunRow) -> Tx[bool]:
    """May it have gone on after the backup that this store comes from? One that completed since was looked at."""
    if run.state not in lifecycle.ENDED or run.state == "completed":
        return False
    return run.retryable == RETRYABLE_AFTER_RESTORE or (yield from restored(run.tenant, run.id)) is not None


def _given_up(tenant: str, unknown: Sequence[EffectRow]) -> Tx[frozenset[str]]:
    """Those about which nobody is asked any more."""
    if not unknown:
        return frozenset()
    open_asks = yield [
        ("ask.of_effect", {"tenant": tenant, "run": e.run, "effect": e.id, "kind": "unknown_effect"}) for e in unknown
    ]
    return frozenset(e.id for e, asks in zip(unknown, open_asks, strict=True) if not asks)


def _is_asked(message: Message) -> bool:
    """Is it the input of a run, or of one that joined it?"""
    return message.role == "user" and message.origin is None


def _attached(body: str) -> list[Attachment]:
    return [p for p in messages.loads(body).parts if isinstance(p, Attachment)]


def _blobs(body: str) -> Iterator[tuple[str, int]]:
    """Digest and size of all that a message refers to."""
    for part in messages.loads(body).parts:
        if isinstance(part, Attachment):
            yield part.digest, part.size
        elif isinstance(part, ToolResponse) and part.blob is not None:
            yield part.blob.digest, part.blob.size


class NewReplay(NamedTuple):
    """All that T0 of a replay is told. ``clock_now``: the model is shown the time as it is, not as it was recorded."""

    tenant: str
    run: str
    of: str
    operation_id: str
    fingerprint: str
    door: str
    zone: str | None  # in place of the recorded one
    clock_now: bool
    force: By | None


def accept_replay(new: NewReplay, at: int) -> Tx[Accepted]:
    """T0 of a replay. A known operation is answered before the verdict is looked at.

    What the family has done is read in the transaction that accepts the replay, and what its guard may reuse is
    written down with it. From here on no other member goes on by itself: the guard would not know what it does.

    Raises:
        ReplayUnsafe: it is blocked, or guarded and nobody forces it.
    """
    family = yield from read_family(new.tenant, new.of)
    of = family.run
    if (known := (yield from _known(new, of, at))) is not None:
        return known
    verdict = replay.verdict(family)
    if (why := replay.needs(verdict, forced=new.force is not None)) is not None:
        raise ReplayUnsafe(why, verdict)
    guarded = verdict.kind == "guarded"
    origin = events.RunOrigin(
        of=of.id,
        effects="guard" if guarded else "free",
        clock=None if new.clock_now else (yield from _began(of)),
        by=new.force.name if new.force else "",
        why=new.force.why if new.force else "",
        pool=[list(r) for r in replay.recorded(family.members)] if guarded else [],
        steers=len(family.steers),
    )
    if new.force is not None:
        yield [act_row(new.tenant, at, new.force.name, new.door, "run.replay", of.id, new.force.why)]
    for member in (m.run for m in family.members):
        if member.retryable:
            no_more: Statement = ("run.replayed", {"tenant": new.tenant, "run": member.id})
            yield from touch(member, at, [events.RunReplayed(run=new.run)], [no_more])
    if of.state == "completed":
        assert of.base is not None
        session, place = yield from _branch(new, of, of.base, at)
    else:
        session, in_queue = of.session, {"tenant": new.tenant, "session": of.session, "zone": new.zone}
        ((placed,),) = yield [("session.place", in_queue)]
        place = placed[0]
    assert family.input is not None
    accepted = events.RunAccepted(agent=of.agent, session=session, trigger=of.trigger)
    copied = _Copied([accepted, origin], dict(enumerate((family.input, *family.steers), 1)))
    return (yield from _insert(new, of, session, place, copied, at))


class NewFork(NamedTuple):
    """All that T0 of a fork is told. ``effects`` says what becomes of its own writes."""

    tenant: str
    run: str
    of: str
    operation_id: str
    fingerprint: str
    door: str
    at_step: int
    effects: Literal["reuse", "stub", "run"]
    zone: str | None = None


def accept_fork(new: NewFork, at: int) -> Tx[Accepted]:
    """T0 of a fork: a new session, and in it a run that begins with the recorded steps before ``at_step``.

    They are copied, so that the fork outlives the session that it comes from.

    Raises:
        ReplayUnsafe: the run has not ended, or something in it must be settled first. InvalidInput: no such step.
    """
    family = yield from read_family(new.tenant, new.of)
    of = family.run
    if (known := (yield from _known(new, of, at))) is not None:
        return known
    if blockers := replay.fork_blockers(family):
        raise ReplayUnsafe(f"run {of.id} cannot be forked: {'; '.join(blockers)}", replay.verdict(family))
    of_run = {"tenant": of.tenant, "run": of.id}
    own, doubted = next((m.effects, m.doubted) for m in family.members if m.run.id == of.id)
    if doubted and new.effects == "reuse":
        why = "effects='run' asks before each write, 'stub' makes none"
        raise ReplayUnsafe(
            f"run {of.id} cannot be forked just so ({replay.doubt(of.id)}): {why}", replay.verdict(family)
        )
    stored, messages_of_run = yield [("entry.list", of_run | {"after": 0}), ("message.of_run", of_run)]
    batches = [journal.loads(of.id, *r) for r in stored]
    last = replay.last_fork_step(journal.fold(batches))
    if not 1 <= new.at_step <= last:
        raise InvalidInput(f"run {of.id} has no step {new.at_step} to be forked at: say 1 to {last}")
    shared = replay.shared(of.id, batches, {e.ordinal: e.reuses or e.id for e in own}, new.at_step)
    done = {e.reuses for e in shared.state.effects}
    origin = events.RunOrigin(
        of=of.id,
        effects=new.effects,
        at_step=new.at_step,
        clock=shared.clock or (yield from _began(of)),
        pool=[list(r) for r in replay.recorded(family.members) if r.effect not in done]
        if new.effects == "reuse" else [],
        steers=shared.state.origin.steers if shared.state.origin is not None else 0,
        remembers=shared.remembers,
    )  # fmt: skip
    until = of.base if of.base is not None else shared.history
    session, place = yield from _branch(new, of, until, at)
    told = {e.carried for e in shared.entries if isinstance(e, events.ContextBuilt) and e.carried}
    moving = {"tenant": of.tenant, "session": session, "parent": of.session}
    yield [("carried.copy", moving | {"digest": digest}) for digest in sorted(told)]
    bodies = {o: checked_body(of.id, o, body, total) for o, body, total in messages_of_run}
    named = {*range(1, shared.state.next_message), *(o for e in shared.state.effects for o in (e.message, e.reply))}
    named |= {e.note for e in shared.entries if isinstance(e, events.ContextBuilt) and e.note is not None}
    effects: list[Statement] = [
        ("effect.insert", {
            "tenant": new.tenant, "run": new.run, "session": session, "ordinal": row.ordinal, "tool": row.tool,
            "effect": row.effect, "call_id": row.call_id, "reply": row.reply, "arguments": row.arguments,
            "state": effect.state, "decision": row.decision, "parent": row.parent, "place": row.place,
            "reuses": effect.reuses, "blob": row.blob, "size": row.size,
        })
        for row, effect in zip(own, shared.state.effects, strict=False)
    ]  # fmt: skip
    accepted = events.RunAccepted(agent=of.agent, session=session, trigger=of.trigger)
    copied = _Copied([accepted, origin, *shared.entries], {o: b for o, b in bodies.items() if o in named}, effects)
    return (yield from _insert(new, of, session, place, copied, at, forked_at=new.at_step))


def _known(new: NewReplay | NewFork, of: RunRow, at: int) -> Tx[Accepted | None]:
    """What is answered to an operation that came before."""
    key = {"tenant": new.tenant, "user_id": of.user_id, "operation_id": new.operation_id}
    (known,) = yield [("run.by_operation", key)]
    return (yield from known_operation(RunRow(*known[0]), new.fingerprint, at)) if known else None


def _began(of: RunRow) -> Tx[int]:
    """The instant that the run was shown as the one of its acceptance."""
    if of.replay_of is None:
        return of.accepted_at
    (stored,) = yield [("entry.list", {"tenant": of.tenant, "run": of.id, "after": 0})]
    origin = journal.fold(journal.loads(of.id, *r) for r in stored).origin
    return of.accepted_at if origin is None or origin.clock is None else origin.clock


def _branch(new: NewReplay | NewFork, of: RunRow, until: int | None, at: int) -> Tx[tuple[str, int]]:
    """A new session with what was said in the run's session below the sequence ``until``, and with the state, the pins
    and the zone of then. Returns it and a place in its queue."""
    session, place = ids.session_of(new.run), of.place
    of_parent: dict[str, Any] = {"tenant": of.tenant, "session": of.session}
    rows, following = yield [("session.get", of_parent), ("run.first_from", of_parent | {"until": until})]
    parent = SessionRow(*rows[0])
    if until is None:  # it was shown nothing, and began never
        until, place = parent.next_message, parent.next_place
    elif following and following[0][0] < place:  # it failed for now before that one, and went on behind it
        place = following[0][0] - 1
    by_run, by_hand, pinned, then = yield [
        ("session.state_before", of_parent | {"until": until}),
        *(("replaced.first", of_parent | {"what": what, "place": place}) for what in ("state", "pins")),
        ("compaction.last", of_parent | {"until": until}),
    ]
    if pinned:
        body, total, _ = pinned[0]
        parent = parent._replace(pins=body, pins_sum=total)
    state, pins = _state_before(parent, by_run, by_hand), parent.checked_pins()
    seen: dict[str, Any] = {"seen": None, "seen_sum": None}
    if then:
        checksums.check_content(SessionRow.what_is_seen(of.session), *then[0])
        seen_then = then[0][0]
        seen = {"seen": seen_then, "seen_sum": checksums.of_content(SessionRow.what_is_seen(session), seen_then)}
    # Forks of this session take it from here, as this one took it.
    taken: list[Statement] = []
    if then:
        taken = [("compaction.insert", {"tenant": of.tenant, "session": session, "made": until, **seen})]
    branch = {
        "tenant": of.tenant, "session": session, "parent": of.session, "until": until, "orphaned": parent.orphaned,
        "at": at, "state": state, "state_sum": checksums.of_content(SessionRow.what_is_kept(session), state),
        "zone": new.zone or (parent.zone and of.zone), "owner": of.user_id or None, **seen, "pins": pins,
        "pins_sum": pins and checksums.of_content(SessionRow.what_is_pinned(session), pins),
    }  # fmt: skip
    yield [("session.branch", branch), *taken]
    return session, 0


def _state_before(now: SessionRow, by_run: Sequence[Sequence[Any]], by_hand: Sequence[Sequence[Any]]) -> str:
    """The state of a session before what runs and people changed of it: what runs changed is taken back, from the first
    whole state on that was kept since, or else from the one of now."""
    what, undone, state = now.what_is_kept(now.id), list[dict[str, Any]](), dict[str, Any]()
    runs = (row for row in by_run if not by_hand or row[-1] < by_hand[0][-1])  # by hand at a run's place is before it
    for body, total, _ in [*runs, *by_hand, (now.state, now.state_sum, None)]:
        if body is None:
            raise StoreCorrupt(f"{what} was damaged, and mended by hand: what it was before that is not known any more")
        checksums.check_content(what, body, total)
        found = values.loads(body)
        if isinstance(found, dict):  # by hand; and runs of older versions kept all of it
            state = found
            break
        undone += found
    for patch in reversed(undone):
        state = values.patched(state, patch)
    return values.dumps(state)


class _Copied(NamedTuple):
    """The first entries of a run, and the bodies of its first messages, by ordinal."""

    entries: Sequence[events.Entry]
    bodies: Mapping[int, str]
    effects: Sequence[Statement] = ()


def _insert(
    new: NewReplay | NewFork,
    of: RunRow,
    session: str,
    place: int,
    copied: _Copied,
    at: int,
    forked_at: int | None = None,
) -> Tx[Accepted]:  # fmt: skip
    append, _ = append_entries(new.tenant, new.run, 0, 1, at, copied.entries)
    row = {
        "tenant": new.tenant, "run": new.run, "session": session, "user_id": of.user_id,
        "operation_id": new.operation_id, "fingerprint": new.fingerprint, "agent": of.agent,
        "definition": of.definition, "trigger": of.trigger, "door": new.door, "zone": new.zone or of.zone,
        "place": place, "at": at, "next_seq": 1 + len(copied.entries), "family": of.family or of.id,
        "replay_of": of.id, "forked_at": forked_at, "host": None,
        "metadata": of.metadata, **QUEUED,
    }  # fmt: skip
    key = {"tenant": new.tenant, "run": new.run}
    blobs = {digest: size for body in copied.bodies.values() for digest, size in _blobs(body)}
    *_, inserted, first = yield [
        ("run.insert", row),
        append,
        *copied.effects,
        *(message_row(new.tenant, new.run, ordinal, body) for ordinal, body in copied.bodies.items()),
        *(("blob.insert", {"tenant": new.tenant, "digest": d, "size": n, "at": at}) for d, n in blobs.items()),
        *(("blob.use", key | {"digest": d}) for d in blobs),
        ("outbox.want_too", key | {"like": row["replay_of"]}),
        ("run.get", key),
        ("run.unfinished_in_session", {"tenant": new.tenant, "session": session}),
    ]
    return Accepted(RunRow(*inserted[0]), created=True, wake=first[0][0] == new.run)
