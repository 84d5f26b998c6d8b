"""What can be read?

Functions of the same form as those of ``transactions``, which change nothing. A store runs each on one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from ondol import checksums, ids, journal, lifecycle, messages, usage
from ondol.errors import NotFound, StoreError
from ondol.events import ContextBuilt, EffectSucceeded
from ondol.records import AskRow, EffectRow, RunRow, SessionRow, TokenRow
from ondol.runfile import Entries, RunFile, Said
from ondol.spending import CallUsage, RunUsage
from ondol.transactions import (
    CONFIRMED,
    Row,
    Statement,
    Steer,
    Tx,
    checked_body,
    run_row,
    session_row,
    steers_in,
    with_conditions,
)
from ondol.transactions import get_run as get_run


def find_operation(tenant: str, user_id: str, operation_id: str) -> Tx[RunRow | None]:
    key = {"tenant": tenant, "user_id": user_id, "operation_id": operation_id}
    (rows,) = yield [("run.by_operation", key)]
    return RunRow(*rows[0]) if rows else None


def read_lineage(run: RunRow) -> Tx[tuple[RunRow | None, list[RunRow]]]:
    """The run that it replays or is a fork of, and the replays and forks of it, the oldest first."""
    of_family = {"tenant": run.tenant, "family": run.family or run.id}
    origin, copies = yield [
        ("run.get", {"tenant": run.tenant, "run": run.replay_of}),
        ("run.copies", of_family | {"run": run.id}),
    ]
    return RunRow(*origin[0]) if origin else None, [RunRow(*r) for r in copies]


def list_runs(
    tenant: str, *, session: str | None = None, user_id: str | None = None, state: str | None = None,
    before: str | None = None, limit: int = 100,
) -> Tx[list[RunRow]]:  # fmt: skip
    name = (
        "run.list_unfinished" if state in ("queued", "running")
        else "run.list" if state in (None, "completed") else "run.list_unusual"
    )  # fmt: skip
    wanted = {"session": session, "user_id": user_id, "before": before, "state": state}
    (rows,) = yield [with_conditions(name, {"tenant": tenant, "limit": limit}, wanted)]
    if not rows and before is not None:
        yield from get_run(tenant, before)  # a place that is none is no last page
    return [RunRow(*r) for r in rows]


def read_journal(tenant: str, run: str, after: int = 0) -> Tx[tuple[RunRow, list[journal.Batch]]]:
    """The run and its batches behind ``after``, the sequence of the last entry of a batch. Raises StoreCorrupt."""
    run_rows, rows = yield [
        ("run.get", {"tenant": tenant, "run": run}),
        ("entry.list", {"tenant": tenant, "run": run, "after": after}),
    ]
    row, batches = run_row(run_rows, run), [journal.loads(run, *r) for r in rows]
    journal.check_whole(run, batches, after, row.next_seq - 1)
    return row, batches


def journal_ends(tenant: str, run: str) -> Tx[tuple[int, int]]:
    """The sequences of the first and of the last entry of a run that are stored; if none is, 1 more than the last that
    there was, and that. Raises NotFound."""
    key = {"tenant": tenant, "run": run}
    rows, first = yield [("run.get", key), ("entry.first", key)]
    last = run_row(rows, run).next_seq - 1
    return (journal.loads(run, *first[0]).seq if first else last + 1), last


def read_messages(tenant: str, run: str) -> Tx[dict[int, str]]:
    (rows,) = yield [("message.of_run", {"tenant": tenant, "run": run})]
    return {o: checked_body(run, o, body, total) for o, body, total in rows}


def read_some_messages(tenant: str, run: str, ordinals: Iterable[int]) -> Tx[dict[int, str]]:
    """Those of the run's messages that are stored."""
    found = yield [("message.one", {"tenant": tenant, "run": run, "ordinal": ordinal}) for ordinal in ordinals]
    return {o: checked_body(run, o, body, total) for rows in found for o, body, total in rows}


def read_inputs(tenant: str, runs: Sequence[str]) -> Tx[dict[str, str]]:
    """What each of the runs was asked; nothing of one whose input was erased, or is damaged."""
    found = yield [("message.one", {"tenant": tenant, "run": run, "ordinal": 1}) for run in runs]
    asked = {}
    for run, rows in zip(runs, found, strict=True):
        for row in rows:
            with suppress(StoreError):
                asked[run] = messages.loads(checked_body(run, *row)).text
    return asked


def page_usage(tenant: str, after: int, since: int | None, until: int | None, limit: int = 1000) -> Tx[list[RunUsage]]:
    """What runs took, in the order of acceptance: those behind the place ``after``, accepted from ``since`` on and
    before ``until`` (microseconds since 1970)."""
    always = {"tenant": tenant, "after": after, "limit": limit}
    (rows,) = yield [with_conditions("run.usage", always, {"since": since, "until": until})]
    return [RunUsage(n, agent, session, user, at, usage.of_run(*used)) for n, agent, session, user, at, *used in rows]


def page_spent(tenant: str, after: str, since: int | None, until: int | None, limit: int = 1000) -> Tx[list[CallUsage]]:
    """What model calls outside of any run took: those behind ``after``, made from ``since`` on and before ``until``."""
    always = {"tenant": tenant, "after": after, "limit": limit}
    (rows,) = yield [with_conditions("spent.list", always, {"since": since, "until": until})]
    return [CallUsage(id, agent, session, user, at, usage.loads(used)) for id, agent, session, user, at, used in rows]


class StoredMessage(NamedTuple):
    """A committed message: its sequence in the session, its run, and its body as stored."""

    seq: int
    run: str
    ordinal: int
    body: str


def read_history(session: SessionRow, since: int, until: int) -> Tx[list[StoredMessage]]:
    """The committed messages with ``since <= base < until``, in order; those of the session it goes on from first."""
    parts: list[list[Row]] = []
    for part, upto in (yield from _ancestry(session, since, until)):
        where = {"tenant": part.tenant, "session": part.id, "since": since, "until": upto}
        parts += yield [("message.history", where)]
    return [_stored(row) for rows in parts for row in rows]


def read_window(session: SessionRow, since: int, until: int) -> Tx[list[StoredMessage]]:
    """As ``read_history``, where ``since`` is any place, also one within a run."""
    parts: list[list[Row]] = []
    for part, upto in (yield from _ancestry(session, since, until)):
        parts += yield [("message.window", {"tenant": part.tenant, "session": part.id, "since": since, "until": upto})]
    return [_stored(row) for rows in parts for row in rows]


def message_at(session: SessionRow, place: int) -> Tx[str | None]:
    """The body of the committed message at that place of the session, if there is one."""
    found = yield from page_messages(session.tenant, session.id, place - 1, 1)
    return found[0].body if found and found[0].seq == place else None


def get_carried(tenant: str, digest: str) -> Tx[str | None]:
    """A text that the runtime carried in requests; None where it is not stored any more. Raises StoreCorrupt if it is
    not what was written."""
    (rows,) = yield [("carried.get", {"tenant": tenant, "digest": digest})]
    for (text,) in rows:
        checksums.check_carried(digest, text)
    return rows[0][0] if rows else None


_FACTS_READ = 200  # decisions, and unknown effects, that are read to be carried


def recorded_facts(session: SessionRow) -> Tx[tuple[list[AskRow], list[EffectRow]]]:
    """What people decided about calls in the session, the oldest first, and its effects with an unknown outcome; in a
    fork also those that it shares with the session it comes from."""
    asks: list[Row] = []
    unknown: list[EffectRow] = []
    fork = None
    for part, until in (yield from _ancestry(session, 0, None))[::-1]:
        of_part = {"tenant": part.tenant, "session": part.id, "limit": _FACTS_READ}
        if until is None:
            batch: list[Statement] = [("ask.approvals", of_part)]
        else:
            reused = {"tenant": part.tenant, "fork": fork, "limit": _FACTS_READ}
            batch = [("ask.approvals_reused", reused), ("ask.approvals_shared", of_part | {"until": until})]
        for rows in (yield batch):
            asks += rows
        unknown += yield from list_effects(part.tenant, session=part.id, state="unknown", limit=_FACTS_READ)
        fork = part.id
    return [AskRow(*a) for a in asks[::-1]], unknown


def page_messages(tenant: str, session: str, after: int, limit: int) -> Tx[list[StoredMessage]]:
    """The first committed messages behind the sequence ``after``."""
    (found,) = yield [("session.get", {"tenant": tenant, "session": session})]
    page: list[Row] = []
    for part, upto in (yield from _ancestry(SessionRow(*found[0]), after + 1, None)) if found else ():
        where = {"tenant": tenant, "session": part.id, "after": after, "until": upto, "limit": limit - len(page)}
        (rows,) = yield [("message.page", where)]
        page += rows
    return [_stored(row) for row in page]


def lineage(tenant: str, session: str) -> Tx[list[tuple[str, int | None]]]:
    """The session, and those that it was forked from, each with the place before which its messages belong to it."""
    (found,) = yield [("session.get", {"tenant": tenant, "session": session})]
    line = (yield from _ancestry(SessionRow(*found[0]), 0, None)) if found else []
    return [(part.id, until) for part, until in reversed(line)]


def _ancestry(session: SessionRow, since: int, until: int | None) -> Tx[list[tuple[SessionRow, int | None]]]:
    """The sessions that messages from ``since`` on are in, the oldest first, each with where its own part ends."""
    line = [(session, until)]
    while session.parent is not None and session.parent_until is not None and since < session.parent_until:
        until = session.parent_until if until is None else min(until, session.parent_until)
        (found,) = yield [("session.get", {"tenant": session.tenant, "session": session.parent})]
        session = SessionRow(*found[0])
        line.append((session, until))
    return line[::-1]


def _stored(row: Row) -> StoredMessage:
    seq, run, ordinal, body, total = row
    return StoredMessage(seq, run, ordinal, checked_body(run, ordinal, body, total))


def erased(run: str) -> NotFound:
    return NotFound(f"what happened in run {run} is not stored any more: its session was deleted")


def whole_run(tenant: str, run: str, at: datetime) -> Tx[RunFile]:
    """All that is known of a run, with what its model saw of the session. Of blobs only the sizes."""
    key = {"tenant": tenant, "run": run}
    row, batches = yield from read_journal(tenant, run)
    if not batches:
        raise erased(run)
    own = yield from read_messages(tenant, run)
    entries, sessions, effects, asks, blobs = yield [
        ("entry.list", key | {"after": 0}),
        ("session.get", {"tenant": tenant, "session": row.session}),
        ("effect.of_run", key),
        ("ask.of_run", key),
        ("blob.of_run", key),
    ]
    built = [e for b in batches for e in b.entries if isinstance(e, ContextBuilt)]
    digests = dict.fromkeys([row.definition, *(e.definition for e in built if e.definition)])
    definitions = yield [("definition.get", {"tenant": tenant, "digest": d}) for d in digests]
    session = SessionRow(*sessions[0])
    places = [(e.start, e.history) for e in built if e.clock is not None] or [(0, 0)]
    history = yield from read_window(session, min(s for s, _ in places), max(until for _, until in places))
    told = {e.carried for e in built if e.carried}
    texts = yield [("carried.get", {"tenant": tenant, "digest": digest}) for digest in told]
    return RunFile(
        run=row,
        effects=tuple(EffectRow(*e) for e in effects),
        asks=tuple(AskRow(*a) for a in asks),
        entries=tuple(Entries(*e[:5]) for e in entries),
        messages=tuple(Said(run, ordinal, body) for ordinal, body in own.items()),
        history=tuple(Said(m.run, m.ordinal, m.body, m.seq) for m in history),
        incomplete=session.is_orphan,
        definitions={d: found[0][0] for d, found in zip(digests, definitions, strict=True) if found},
        carried={d: found[0][0] for d, found in zip(told, texts, strict=True) if found},
        blobs=dict(blobs),
        exported_at=at,
    )


def blobs_of(tenant: str, run: str) -> Tx[dict[str, int | None]]:
    key = {"tenant": tenant, "run": run}
    rows, blobs = yield [("run.get", key), ("blob.of_run", key)]
    run_row(rows, run)
    return dict(blobs)


def get_import(tenant: str, run: str) -> Tx[bytes | None]:
    """An imported run's file, packed as messages are."""
    (rows,) = yield [("import.get", {"tenant": tenant, "run": run})]
    return rows[0][0] if rows else None


def list_imports(tenant: str, limit: int) -> Tx[list[tuple[str, bytes]]]:
    (rows,) = yield [("import.list", {"tenant": tenant, "limit": limit})]
    return [(r[0], r[1]) for r in rows]


def get_session(tenant: str, session: str) -> Tx[SessionRow]:
    (rows,) = yield [("session.get", {"tenant": tenant, "session": session})]
    return session_row(rows, session)


def list_sessions(
    tenant: str, after: str | None = None, limit: int = 100, *, user_id: str | None = None
) -> Tx[list[SessionRow]]:
    wanted = {"after": after, "user_id": user_id}
    (rows,) = yield [with_conditions("session.list", {"tenant": tenant, "limit": limit}, wanted)]
    return [SessionRow(*r) for r in rows]


def get_effect(tenant: str, effect: str) -> Tx[EffectRow]:
    run, ordinal = ids.effect_place(effect)
    (rows,) = yield [("effect.get", {"tenant": tenant, "run": run, "ordinal": ordinal})]
    if not rows:
        raise NotFound(f"there is no effect {effect!r}: 'ondol effects' lists them")
    return EffectRow(*rows[0])


def effects_of_run(tenant: str, run: str) -> Tx[list[EffectRow]]:
    (rows,) = yield [("effect.of_run", {"tenant": tenant, "run": run})]
    return [EffectRow(*r) for r in rows]


def list_effects(
    tenant: str, *, session: str | None = None, state: str | None = None, after: str | None = None, limit: int = 100
) -> Tx[list[EffectRow]]:
    """Those of the newest runs first, of each in call order; behind the effect ``after``."""
    name = (
        "effect.list_live" if state in ("planned", "started")
        else "effect.list" if state in (None, "succeeded") else "effect.list_unusual"
    )  # fmt: skip
    run, ordinal = ids.effect_place(after) if after is not None else (None, None)
    wanted = {"session": session, "after": run, "after_ordinal": ordinal, "state": state}
    (rows,) = yield [with_conditions(name, {"tenant": tenant, "limit": limit}, wanted)]
    if not rows and run is not None:
        yield from get_run(tenant, run)
    return [EffectRow(*r) for r in rows]


def get_ask(tenant: str, ask: str) -> Tx[AskRow]:
    (rows,) = yield [("ask.get", {"tenant": tenant, "id": ask})]
    if not rows:
        raise NotFound(f"there is no ask {ask!r}: 'ondol asks' lists the open ones")
    return AskRow(*rows[0])


class RecordedOutcome(NamedTuple):
    """What a call that succeeded came to: its encoded result, whether that says that something failed, its patch of
    the session state, where all of a long result is kept, and what it pinned."""

    response: Any
    error: bool
    patch: Mapping[str, Any]
    blob: messages.Blob | None = None
    attached: tuple[messages.Attachment, ...] = ()
    pins: tuple[str, ...] = ()


def recorded_outcome(tenant: str, effect: str) -> Tx[RecordedOutcome | None]:
    """The outcome of an effect that succeeded; None when it was erased with its session."""
    run, ordinal = ids.effect_place(effect)
    key = {"tenant": tenant, "run": run}
    effects, entries = yield [("effect.get", key | {"ordinal": ordinal}), ("entry.list", key | {"after": 0})]
    if not effects or not entries:
        return None
    (rows,) = yield [("message.one", key | {"ordinal": EffectRow(*effects[0]).reply})]
    batches = [journal.loads(run, *r) for r in entries]
    patch = journal.fold(batches).patches.get(ordinal, {})
    if not rows:  # a person settled it when its run had ended, with an older version of Ondol
        return RecordedOutcome(CONFIRMED, False, patch)
    part, *more = messages.loads(checked_body(run, *rows[0])).parts
    assert isinstance(part, messages.ToolResponse)
    attached = tuple(p for p in more if isinstance(p, messages.Attachment))
    ends = (e for b in batches for e in b.entries if isinstance(e, EffectSucceeded) and e.call == ordinal)
    pins = tuple(pin for end in ends for pin in end.pins)
    return RecordedOutcome(part.response, part.error, patch, part.blob, attached, pins)


def list_asks(
    tenant: str, *, run: str | None = None, session: str | None = None, user_id: str | None = None,
    state: str | None = "open", after: str | None = None, newest_first: bool = False, limit: int = 100,
) -> Tx[list[AskRow]]:  # fmt: skip
    """In the order of opening, or against it; behind the ask ``after``."""
    name = ("ask.list_open" if state == "open" else "ask.list") + ("_newest" if newest_first else "")
    wanted = {"run": run, "session": session, "user_id": user_id, "after": after, "state": state}
    (rows,) = yield [with_conditions(name, {"tenant": tenant, "limit": limit}, wanted)]
    if not rows and after is not None:
        yield from get_ask(tenant, after)
    return [AskRow(*r) for r in rows]


def count_open_asks(tenant: str, user_id: str | None, limit: int) -> Tx[dict[str, int]]:
    """By kind; of more than ``limit`` any so many are counted."""
    (rows,) = yield [with_conditions("ask.count_open", {"tenant": tenant, "limit": limit}, {"user_id": user_id})]
    return dict(rows)


def open_unknown_ask(tenant: str, effect: str) -> Tx[AskRow | None]:
    run, _ = ids.effect_place(effect)
    (rows,) = yield [("ask.of_effect", {"tenant": tenant, "run": run, "effect": effect, "kind": "unknown_effect"})]
    return AskRow(*rows[0]) if rows else None


def expirable_asks(tenant: str) -> Tx[list[tuple[str, int]]]:
    (rows,) = yield [("ask.expirable", {"tenant": tenant})]
    return [(r[0], r[1]) for r in rows]


def list_acts(tenant: str, limit: int = 100) -> Tx[list[Row]]:
    (rows,) = yield [("act.list", {"tenant": tenant, "limit": limit})]
    return rows


def token_by_hash(digest: str) -> Tx[TokenRow | None]:
    (rows,) = yield [("token.by_hash", {"hash": digest})]
    return TokenRow(*rows[0]) if rows else None


def list_tokens(tenant: str) -> Tx[list[TokenRow]]:
    (rows,) = yield [("token.list", {"tenant": tenant})]
    return [TokenRow(*r) for r in rows]


def tenants() -> Tx[list[str]]:
    (rows,) = yield [("tenant.list", {})]
    return [r[0] for r in rows]


def claimable(tenant: str, deaths: int, n: int, limit: int) -> Tx[list[Row]]:
    """Queued runs whose turn it is, behind this place: id, agent, deaths, n. Runs that nothing died of come first."""
    behind = {deaths: n} | dict.fromkeys(range(deaths + 1, lifecycle.MAX_DEATHS), 0)
    pages = yield [
        ("run.claimable", {"tenant": tenant, "deaths": d, "n": m, "limit": limit}) for d, m in behind.items()
    ]
    return [row for page in pages for row in page][:limit]


def running(tenant: str) -> Tx[list[Row]]:
    """Runs that somebody holds: id, fence, owner, deaths, number of unread signals."""
    (rows,) = yield [("run.running", {"tenant": tenant})]
    return rows


def steers(tenant: str, run: str) -> Tx[list[Steer]]:
    """Those that wait to join the run, in the order in which they came."""
    (rows,) = yield [("run.steers", {"tenant": tenant, "run": run, "state": "queued"})]
    return steers_in(rows)


def doors(tenant: str, run: str) -> Tx[list[str]]:
    """The door by which the run came, and those of what has joined it. Raises NotFound."""
    key = {"tenant": tenant, "run": run}
    rows, joined = yield [("run.get", key), ("run.joined_doors", key)]
    return [run_row(rows, run).door, *(door for (door,) in joined)]


def get_definition(tenant: str, digest: str) -> Tx[str | None]:
    """Raises StoreCorrupt if it is not what was written."""
    (rows,) = yield [("definition.get", {"tenant": tenant, "digest": digest})]
    for (body,) in rows:
        checksums.check_definition(digest, body)
    return rows[0][0] if rows else None


def get_meta(key: str) -> Tx[str | None]:
    (rows,) = yield [("meta.get", {"key": key})]
    return rows[0][0] if rows else None


def has_blob(tenant: str, digest: str) -> Tx[bool]:
    (rows,) = yield [("blob.get", {"tenant": tenant, "digest": digest})]
    return bool(rows)
