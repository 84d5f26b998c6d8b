"""What does a caller write to a session by hand?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ondol import checksums, pins, usage
from ondol.errors import RevisionConflict, SessionBusy, StoreCorrupt
from ondol.records import SessionRow
from ondol.transactions.indexing import forget_session, forget_some
from ondol.transactions.outbox import Dropped, offer
from ondol.transactions.pieces import Seen, act_row, not_theirs, pins_rows, replaced_row, seen_rows, session_row
from ondol.transactions.statements import Statement, Tx
from ondol.usage import Usage


def write_session(
    tenant: str,
    session: str,
    at: int,
    *,
    expected_revision: int | None,
    state: str | None,
    title: str | None,
    zone: str | None,
    user: str | None = None,
    own_only: bool = False,
) -> Tx[SessionRow]:
    """An explicit write by a caller: compare-and-swap, refused while a run is unfinished.

    One that makes the session makes it ``user``'s. With ``own_only`` a session of somebody else is none.
    """
    of_session = {"tenant": tenant, "session": session}
    rows, unfinished = yield [("session.get", of_session), ("run.unfinished_in_session", of_session)]
    found = SessionRow(*rows[0]) if rows else None
    revision = found.revision if found else 0
    alive = found is not None and found.deleted_at is None
    if own_only and found is not None and alive and found.user_id != user:
        raise not_theirs(session)
    if alive and unfinished:
        raise SessionBusy(session, *unfinished[0])
    if expected_revision is not None and expected_revision != revision:
        raise RevisionConflict(session, expected_revision, revision)
    if not alive:
        made = "session.again" if found else "session.insert"
        place = found.next_place if found else 0
        yield [
            ("tenant.insert", {"tenant": tenant}),
            (made, of_session | {"next_place": place, "zone": None, "at": at, "owner": user}),
        ]
    total = None if state is None else checksums.of_content(SessionRow.what_is_kept(session), state)
    writing = {"state": state, "state_sum": total, "title": title, "zone": zone, "at": at}
    kept = []
    if state is not None and found is not None and alive:
        kept.append(replaced_row(tenant, session, "state", known=_is_whole(found)))
    *_, written = yield [*kept, ("session.write", of_session | writing)]
    return SessionRow(*written[0])


def _is_whole(session: SessionRow) -> bool:
    """Is its state what was written? What is damaged is mended by the one that is written by hand."""
    try:
        session.checked_state()
    except StoreCorrupt:
        return False
    return True


def free_session(tenant: str, session: str, expected_revision: int | None = None) -> Tx[SessionRow]:
    """The session, if it may be written to by hand.

    Raises:
        NotFound; SessionBusy: a run is unfinished. RevisionConflict: it is not at that revision.
    """
    of_session = {"tenant": tenant, "session": session}
    rows, unfinished = yield [("session.get", of_session), ("run.unfinished_in_session", of_session)]
    found = session_row(rows, session)
    if unfinished:
        raise SessionBusy(session, *unfinished[0])
    if expected_revision is not None and expected_revision != found.revision:
        raise RevisionConflict(session, expected_revision, found.revision)
    return found


def _raised(tenant: str, session: str, at: int, writes: list[Statement]) -> Tx[SessionRow]:
    of_session = {"tenant": tenant, "session": session}
    raised: Statement = ("session.raise", of_session | {"at": at})
    *_, rows = yield [raised, *writes, ("session.get", of_session)]
    return SessionRow(*rows[0])


def pin_session(
    tenant: str, session: str, at: int, *, text: str | None = None, unpin: str | None = None, by: str, door: str,
    expected_revision: int | None = None,
) -> Tx[SessionRow]:  # fmt: skip
    """Pin a text in a session, or take one away. Raises InvalidInput where there is no room, NotFound."""
    found = yield from free_session(tenant, session, expected_revision)
    after = found.pinned
    if text is not None:
        after = pins.bounded(after.with_texts([text], by, at))
    if unpin is not None:
        after = after.without(unpin)
    if after == found.pinned:
        return found
    act = act_row(tenant, at, by, door, "session.pin" if text is not None else "session.unpin", session)
    return (yield from _raised(tenant, session, at, [*pins_rows(tenant, session, pins.dumps(after)), act]))


def compact_session(
    of: SessionRow, at: int, *, seen: str, by: str, door: str, dropped: Sequence[Dropped] = ()
) -> Tx[SessionRow]:
    """Change what models are shown of a session. It was made from the session as it was: if that is not so any more,
    it gives up (RevisionConflict). ``dropped`` is what memories are offered since it is not shown any more."""
    tenant, session = of.tenant, of.id
    found = yield from free_session(tenant, session, of.revision)
    if found.created_at != of.created_at:
        raise RevisionConflict(session, of.revision, found.revision, "has changed: a part of it was erased")
    for turns in dropped:
        yield from offer(tenant, session, at, turns)
    act = act_row(tenant, at, by, door, "session.compact", session)
    writes = [*seen_rows(tenant, session, Seen(seen, less=True), found.next_message), act]
    return (yield from _raised(tenant, session, at, writes))


def asking(tenant: str, call: str, agent: str, session: str, user: str, model: str, at: int) -> Tx[None]:
    """A model is about to be asked outside of any run. Until ``asked`` says otherwise nobody has counted the call."""
    used = usage.dumps({model: Usage(calls=1, unknown=1)})
    yield [
        ("spent.insert", {
            "tenant": tenant, "id": call, "agent": agent, "session": session, "user_id": user, "at": at, "usage": used,
        })
    ]  # fmt: skip


def asked(tenant: str, call: str, used: Mapping[str, Usage]) -> Tx[None]:
    """What that call took; nothing is kept of one that was free."""
    of_call = {"tenant": tenant, "id": call}
    yield [("spent.set", of_call | {"usage": usage.dumps(used)}) if used else ("spent.delete", of_call)]


def delete_session(
    tenant: str, session: str, at: int, *, expected_revision: int | None, by: str, door: str, with_unknown: bool
) -> Tx[SessionRow]:
    """Content goes, tombstones stay: the session's revision and its operations."""
    yield from _deletable(tenant, session, expected_revision, with_unknown)
    of_session = {"tenant": tenant, "session": session}
    yield from _orphan(tenant, session)
    yield from forget_session(tenant, session)
    erased = (
        "message.erase", "entry.erase", "effect.erase", "ask.erase", "run.erase", "replaced.erase",
        "blob.loosen_of_session", "blob.used_by_session",
        "compaction.erase", "carried.erase", "outbox.erase", "signal.erase", "act.erase",
    )  # fmt: skip
    yield [(name, of_session) for name in erased]
    _, _, after = yield [
        ("session.delete", of_session | {"at": at}),
        act_row(tenant, at, by, door, "session.delete", session),
        ("session.get", of_session),
    ]
    return SessionRow(*after[0])


def begin_delete_session(
    tenant: str, session: str, after: int, *, expected_revision: int | None, with_unknown: bool
) -> Tx[int | None]:
    """Take some runs of a long session out of what is searched, before it is deleted; see ``forget_some``."""
    yield from _deletable(tenant, session, expected_revision, with_unknown)
    return (yield from forget_some(tenant, session, after))


def _deletable(tenant: str, session: str, expected_revision: int | None, with_unknown: bool) -> Tx[None]:
    of_session = {"tenant": tenant, "session": session}
    rows, unfinished, unknown, parked = yield [
        ("session.get", of_session),
        ("run.unfinished_in_session", of_session),
        ("ask.unknown_in_session", of_session),
        ("run.parked_in_session", of_session),
    ]
    found = session_row(rows, session)
    if expected_revision is not None and found.revision != expected_revision:
        raise RevisionConflict(session, expected_revision, found.revision)
    if unfinished:
        raise SessionBusy(session, *unfinished[0])
    if parked:
        raise SessionBusy(session, parked[0][0], "parked")
    if unknown and not with_unknown:
        raise SessionBusy(session, unknown[0][0], "ended", unknown[0][1])


def _orphan(tenant: str, session: str) -> Tx[None]:
    """Sessions that go on from an erased one do not show that part any more, nor do those that go on from them; and
    no summary, which may tell of it: their own turns are shown again.

    The instant of their making moves with it, so that no process goes on with a history that it has at hand.
    """
    name, parents = "session.orphan", [session]
    while parents:
        found = yield [(name, {"tenant": tenant, "session": parent}) for parent in parents]
        name, parents = "session.orphan_below", [child for rows in found for (child,) in rows]
        told = ("compaction.erase", "carried.erase")
        yield [(erase, {"tenant": tenant, "session": child}) for child in parents for erase in told]
