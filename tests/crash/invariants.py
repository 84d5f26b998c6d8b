"""What is true whatever happened?

Each function is one sentence of the contract, checked against four witnesses: the rows of the store, the downstream's
own ledger, the log of the client (``sent`` ``accepted`` ``reply`` ``cancelled``), and the number of model calls. They
look from outside: plain SQL for the rows, and the public rules (``journal.fold``) for what the rows should say.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import behind

from ondol import checksums, effects, events, ids, journal, lifecycle, messages, usage, values
from ondol.outputs import READ_MORE
from ondol.records import AskRow, EffectRow, RunRow, SessionRow, columns
from ondol.testing import EffectLine
from ondol.transactions import Decision, OutboxRow
from ondol.transactions.signals import STOPS

T = TypeVar("T")

AT_REST = frozenset({*lifecycle.SETTLED, "waiting", "parked"})
TOLD = ("run.waiting", "run.completed", "run.failed", "run.cancelled", "run.expired")
WITH_AN_END = ("run.failed", "run.cancelled", "run.expired")


@dataclass(frozen=True)
class Written:
    """All rows of a store, in key order."""

    runs: Mapping[str, RunRow]
    batches: Mapping[str, Sequence[journal.Batch]]
    effects: Sequence[EffectRow]
    asks: Sequence[AskRow]
    sessions: Mapping[tuple[str, str], SessionRow]
    signals: Sequence[tuple[str, str, str]]  # run, kind, body of those that were not read
    messages: Mapping[tuple[str, int], str]
    uses: frozenset[tuple[str, str]]  # of blobs: run, digest
    blobs: frozenset[str]  # digests of those that are whole
    outbox: Mapping[str, OutboxRow]
    listened: frozenset[str]  # runs of which somebody wanted to hear
    restored: bool  # from a backup: then all fences have risen without an entry
    erased: Mapping[str, RunRow]  # tombstones: runs of sessions that were deleted, of which nothing else is above
    erased_keys: frozenset[str]  # of their effects
    faults: Sequence[Any]  # what the database finds wrong with itself
    _folded: dict[str, journal.State] = field(default_factory=dict, compare=False, repr=False)
    _raised: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    _joins: dict[str, dict[str, int]] = field(default_factory=dict, compare=False, repr=False)

    def entries(self, run: str) -> list[events.Entry]:
        return [entry for batch in self.batches[run] for entry in batch.entries]

    def state(self, run: str) -> journal.State:
        if run not in self._folded:
            self._folded[run] = journal.fold(self.batches[run])
        return self._folded[run]

    def raised(self, run: str) -> int:
        """How often this run has raised its session's revision: T6, T7 that wakes, T8, T9 with something to tell."""
        if run not in self._raised:
            self._raised[run] = _raises(self.entries(run))
        return self._raised[run]

    def joined(self, run: str) -> Mapping[str, int]:
        """The runs that joined this one, each with the ordinal that its message has here."""
        if run not in self._joins:
            self._joins[run] = _joined(self.batches[run])
        return self._joins[run]

    def knows(self, before: Written) -> None:
        """What is derived of the journals that have not grown since then."""
        for run in self.batches.keys() & before.batches.keys():
            if self.batches[run] == before.batches[run]:
                if run in before._folded:
                    self._folded[run] = before._folded[run]
                if run in before._raised:
                    self._raised[run] = before._raised[run]
                if run in before._joins:
                    self._joins[run] = before._joins[run]

    def effects_of(self, run: str) -> list[EffectRow]:
        return [e for e in self.effects if e.run == run]


def written(store: str | behind.Look, *, sound: bool = True) -> Written:
    """Read the store of a URL as it is. Checksums are looked at on the way (N7): a wrong one raises StoreCorrupt.

    Without ``sound`` the database is not asked to look through itself, which takes its time.
    """
    if isinstance(store, behind.Look):
        with store.at_one_instant():
            return _written(store, sound)
    with closing(behind.Look(store)) as look, look.at_one_instant():
        return _written(look, sound)


_batch = functools.lru_cache(maxsize=10_000)(journal.loads)  # what is looked at after every step is read once


_parsed = functools.lru_cache(maxsize=10_000)(messages.loads)


@functools.lru_cache(maxsize=10_000)
def _message(run: str, ordinal: int, stored: bytes, total: int) -> str:
    body = messages.unpack(stored)
    checksums.check_message(run, ordinal, body, total)
    return body


def _written(look: behind.Look, sound: bool) -> Written:
    def rows(table: str, kind: type[T], order: str) -> list[T]:
        return [kind(*r) for r in look.rows(f"SELECT {columns(kind)} FROM {table} ORDER BY {order}")]

    runs = {r.id: r for r in rows("runs", RunRow, "n")}
    told_of = {run for (run,) in look.rows("SELECT DISTINCT run FROM entries")}
    erased = {id: runs.pop(id) for id in [*runs] if id not in told_of}
    effect_rows = rows("effects", EffectRow, "run, ordinal")
    batches: dict[str, list[journal.Batch]] = {run: [] for run in runs}
    for run, n, *stored in look.rows("SELECT run, n, seq, fence, at, v, body, sum FROM entries ORDER BY run, seq"):
        batch = _batch(run, *stored)
        assert len(batch.entries) == n, f"run {run}: the row at {batch.seq} holds {len(batch.entries)}, not {n}"
        batches[run].append(batch)
    found = look.rows("SELECT run, ordinal, body, sum FROM messages ORDER BY run, ordinal")
    bodies: dict[tuple[str, int], str] = {(run, n): _message(run, n, body, total) for run, n, body, total in found}
    return Written(
        runs=runs,
        batches=batches,
        effects=[e for e in effect_rows if e.run in runs],
        asks=[a for a in rows("asks", AskRow, "n") if a.run in runs],
        sessions={(s.tenant, s.id): s for s in rows("sessions", SessionRow, "tenant, id")},
        signals=[(r, k, b) for r, k, b in look.rows(_UNREAD)],
        messages=bodies,
        uses=frozenset((run, digest) for run, digest in look.rows("SELECT run, digest FROM blob_uses")),
        blobs=look.blobs(),
        outbox={m.id: m for m in rows("outbox", OutboxRow, "id")},
        listened=frozenset(run for (run,) in look.rows("SELECT run FROM outbox_wanted")),
        erased=erased,
        erased_keys=frozenset(e.key for e in effect_rows if e.run in erased),
        restored=bool(look.rows("SELECT 1 FROM meta WHERE key = 'generation'")),
        faults=look.faults() if sound else (),
    )


_UNREAD = "SELECT run, kind, body FROM signals WHERE read_at IS NULL ORDER BY n"


# --- the store alone --------------------------------------------------------------------------------------------


def accepted_operations_are_there(store: Written, client: Sequence[Mapping[str, Any]]) -> None:
    """N1, P1: each accepted id has one row, and every retry is told of it."""
    names = Counter((r.tenant, r.user_id, r.operation_id) for r in (*store.runs.values(), *store.erased.values()))
    assert all(n == 1 for n in names.values()), names
    accepted: dict[str, set[str]] = defaultdict(set)
    for line in client:
        if line["event"] == "accepted":
            accepted[line["operation"]].add(line["run"])
    for operation, said in accepted.items():
        assert len(said) == 1, f"retries of {operation} were told of {said}"
        (run,) = said
        known = {**store.runs, **store.erased}
        assert run in known, f"{operation} was accepted as {run}, which is not there"
        assert known[run].operation_id == operation


def runs_came_to_rest(store: Written) -> None:
    """N1: each run came to rest, or is queued behind one that did."""
    for run in store.runs.values():
        if run.state == "queued":
            before = [
                r for r in store.runs.values()
                if r.session == run.session and r.place < run.place and r.state in ("waiting", "parked")
            ]  # fmt: skip
            assert before, f"{run.id} is queued behind nothing"
        else:
            assert run.state in AT_REST, f"{run.id} is {run.state}"


def journals_are_whole(store: Written) -> None:
    """N7: sequences without a gap, fences that never fall. (Checksums were looked at when the rows were read.)"""
    for run in store.runs.values():
        expected, fence = 1, 0
        for batch in store.batches[run.id]:
            assert batch.seq == expected, f"{run.id}: {batch.seq} follows {expected - 1}"
            assert batch.fence >= fence, f"{run.id}: an entry with fence {batch.fence} after one with {fence}"
            assert batch.entries, f"{run.id}: nothing was written at {batch.seq}"
            expected, fence = batch.seq + len(batch.entries), batch.fence
        assert run.next_seq == expected, f"{run.id}: next_seq is {run.next_seq}, the journal ends at {expected - 1}"
        at_its_fence = run.fence >= fence if store.restored else run.fence == fence
        assert at_its_fence, f"{run.id}: fence {run.fence}, the journal ends with {fence}"


def rows_are_the_fold(store: Written) -> None:
    """N8: what the journal and the unread signals say is what the rows say."""
    for run in store.runs.values():
        state = store.state(run.id)
        assert state.status == run.state, f"{run.id} is {run.state}, its journal says {state.status}"
        unread = [(kind, body) for of, kind, body in store.signals if of == run.id]
        assert run.unread == len(unread)
        if run.state in lifecycle.SETTLED:
            assert not unread, f"{run.id} has ended with signals that nobody read: {unread}"
        cancelling = state.cancel is not None or any(kind in STOPS for kind, _ in unread)
        assert bool(run.cancel) == cancelling or (run.cancel and run.state == "cancelled"), f"{run.id}: cancel"
        _effects_are_the_fold(store, run, state)
        _asks_are_the_fold(store, run, state, {body for kind, body in unread if kind == "ask"})
        _usage_is_the_sum(store, run)
        _messages_are_named(store, run, state)
        last = next((e for e in reversed(store.entries(run.id)) if e.kind in WITH_AN_END), None)
        expected = run.state == "failed" and isinstance(last, events.RunFailed) and last.retryable
        expected &= not any(isinstance(e, events.RunReplayed) for e in store.entries(run.id))
        assert bool(run.retryable) == expected, f"{run.id}: retryable"
    _session_states_are_the_fold(store)


def _effects_are_the_fold(store: Written, run: RunRow, state: journal.State) -> None:
    rows = store.effects_of(run.id)
    assert [e.ordinal for e in rows] == [e.ordinal for e in state.effects] == list(range(len(rows)))
    for row, effect in zip(rows, state.effects, strict=True):
        assert (row.state, row.attempt, row.tool, row.effect, row.reply) == (
            effect.state, effect.attempt, effect.tool, effect.effect, effect.reply,
        ), f"{row.id} is {row}, its journal says {effect}"  # fmt: skip
        assert (row.deadline or 0) == effect.deadline
        call = _parsed(store.messages[run.id, effect.message]).calls[effect.part]
        arguments = effect.arguments if effect.arguments is not None else values.encode(call.arguments)
        assert values.loads(row.arguments) == arguments, f"{row.id}: arguments"
        assert row.call_id == call.id
        assert (row.parent, row.place) == (effect.parent, effect.place), f"{row.id}: parent and place"
        assert row.key == ids.idempotency_key(run.tenant, run.id, row.ordinal, row.tool), f"{row.id}: key"


def _asks_are_the_fold(store: Written, run: RunRow, state: journal.State, undelivered: set[str]) -> None:
    rows = {a.id: a for a in store.asks if a.run == run.id}
    still_open = {a.id: a.kind for a in rows.values() if a.state == "open" or a.id in undelivered}
    assert still_open == dict(state.asks), f"{run.id}: open asks"
    said = {e.ask: e.decision for e in store.entries(run.id) if isinstance(e, events.AskDecided)}
    for ask in rows.values():
        about = [ask.question, values.loads(ask.schema)] if ask.schema else values.loads(ask.arguments)
        assert ask.effect is None or ask.hash == values.digest(about), f"{ask.id}: hash"
        if ask.state == "decided" and ask.id not in undelivered and run.state not in lifecycle.ENDED:
            assert ask.decision is not None
            assert said[ask.id] == Decision.loads(ask.decision).kind, f"{ask.id}: decision"


def _usage_is_the_sum(store: Written, run: RunRow) -> None:
    """Whatever became of it: what its model calls took is the sum of what each said."""
    spent = events.ModelCompleted | events.StepFailed | events.ContextCompacted
    said = [e for e in store.entries(run.id) if isinstance(e, spent)]
    for row, name in ((run.tokens_in, "input"), (run.tokens_out, "output")):
        known = [n for e in said if (n := getattr(e, name)) is not None]
        assert row == (sum(known) if known else None), f"{run.id}: {name} tokens"
    stored = usage.loads(run.usage) if run.usage else {}
    assert stored == dict(store.state(run.id).usage), f"{run.id}: usage"
    for model, used in stored.items():
        mine = [e for e in said if usage.model_of(e) == model]
        for name in ("input", "output", "cache_read", "cache_write", "reasoning"):
            known = [n for e in mine if (n := getattr(e, name)) is not None]
            assert getattr(used, name) == (sum(known) if known else None), f"{run.id}: {name} of {model}"


def _messages_are_named(store: Written, run: RunRow, state: journal.State) -> None:
    carried = state.origin.steers if state.origin is not None else 0
    named = {*range(1, 2 + carried), *store.joined(run.id).values()}  # the input, and what joined it
    for entry in store.entries(run.id):
        if isinstance(entry, events.ContextBuilt) and entry.note is not None:
            named.add(entry.note)
        elif isinstance(entry, events.ModelCompleted):
            named.add(entry.message)
    named |= {e.message for e in state.effects}
    told = {"succeeded", "failed", "denied", "expired"}
    if run.state in lifecycle.ENDED:  # settled after the end: nobody is told by a result
        replies = {e.reply for e in state.effects if e.state in told}
        extra = {o for r, o in store.messages if r == run.id} - named
        assert extra <= replies, f"{run.id}: messages that no entry names"
    else:
        named |= {e.reply for e in state.effects if e.state in told}
        assert {o for r, o in store.messages if r == run.id} == named, f"{run.id}: messages"


def _joined(batches: Iterable[journal.Batch]) -> dict[str, int]:
    """The runs that joined this one, each with the ordinal that its message has here."""
    state, found = journal.State(), dict[str, int]()
    batches = list(batches)
    if not any(isinstance(e, events.ContextBuilt) and e.steers for b in batches for e in b.entries):
        return found
    for batch in batches:
        for entry in batch.entries:
            if isinstance(entry, events.ContextBuilt):
                first = state.next_message + bool(entry.note)
                found |= {run: first + n for n, run in enumerate(entry.steers)}
            state = journal.apply(state, entry, batch.at)
    return found


def _steers_of(store: Written, host: str) -> dict[str, int]:
    """Those that joined this run itself: the contexts that a fork shares are written with it."""
    if not (joined := store.joined(host)):
        return {}
    forked = _joined(store.batches[host][:1])
    return {steer: o for steer, o in joined.items() if steer not in forked}


def joined_runs_are_part_of_their_hosts(store: Written) -> None:
    """P1, N1: a joined run is named by one context of its host, which has its message, or it answered a question of its
    host; it never did anything itself."""
    named = [(steer, host) for host in store.runs for steer in _steers_of(store, host)]
    joined = {r.id: store.entries(r.id)[-1] for r in store.runs.values() if r.state == "joined" and store.batches[r.id]}
    answers = {run: e.ask for run, e in joined.items() if isinstance(e, events.RunJoined) and e.ask}
    assert sorted(named) == sorted((run, store.runs[run].host) for run in joined if run not in answers)
    for run, id in answers.items():
        (ask,) = [a for a in store.asks if a.id == id]
        assert (ask.state, ask.kind, ask.run) == ("decided", "question", store.runs[run].host)
        assert [e.kind for e in store.entries(run)] == ["run.accepted", "run.joined"]
    assert len(set(answers.values())) == len(answers), "a question was answered twice"
    for steer, host in named:
        ordinal = _steers_of(store, host)[steer]
        assert store.runs[host].state != "joined"
        assert store.runs[steer].session == store.runs[host].session
        assert store.messages[host, ordinal] == store.messages[steer, 1]
        assert [e.kind for e in store.entries(steer)] == ["run.accepted", "run.joined"]
        assert not store.effects_of(steer)
        mine, theirs = ({d for r, d in store.uses if r == run} for run in (steer, host))
        assert mine <= theirs, f"{host} does not use the attachments of {steer}"
    for run in store.runs.values():
        assert run.host is None or run.state in ("queued", "joined", "cancelled", "parked"), run


def _session_states_are_the_fold(store: Written) -> None:
    for session in store.sessions.values():
        known = [session, *_before(store, session)]
        if session.is_orphan or any(_written_by_hand(store, s) or _has_tombstones(store, s) for s in known):
            continue
        assert values.loads(session.state) == _folded_state(store, session, None), f"{session.id}: state"


def _folded_state(store: Written, session: SessionRow, until: int | None) -> dict[str, Any]:
    """The session's state below that sequence: what it began with, and the patches of its runs."""
    folded: dict[str, Any] = {}
    if session.parent is not None:
        folded = _folded_state(store, store.sessions[session.tenant, session.parent], session.parent_until)
    runs = [r for r in _of_session(store, session) if r.base is not None and (until is None or r.base < until)]
    for run in sorted(runs, key=lambda r: r.base or 0):
        folded = values.patched(folded, store.state(run.id).patch())
    return folded


def _before(store: Written, session: SessionRow) -> Iterator[SessionRow]:
    """The sessions that it goes on from."""
    while session.parent is not None:
        session = store.sessions[session.tenant, session.parent]
        yield session


def _of_session(store: Written, session: SessionRow) -> list[RunRow]:
    return [r for r in store.runs.values() if (r.tenant, r.session) == (session.tenant, session.id)]


def _has_tombstones(store: Written, session: SessionRow) -> bool:
    """It was deleted, maybe to begin anew: its own rows do not tell any more how it came to where it is."""
    erased = {(r.tenant, r.session) for r in store.erased.values()}
    return session.deleted_at is not None or (session.tenant, session.id) in erased


def _written_by_hand(store: Written, session: SessionRow) -> int:
    """How often the session was written explicitly, if the revision moved as promised."""
    return session.revision - sum(store.raised(r.id) for r in _of_session(store, session))


def _raises(entries: Iterable[events.Entry]) -> int:
    raised, wrote, status = 0, False, "queued"
    for entry in entries:
        match entry:
            case events.RunWaiting() | events.SessionCommitted():
                raised += 1
            case events.RunQueued(why="decided") if status == "waiting":
                raised += 1
            case events.EffectStarted():
                wrote = True
            case events.RunFailed() | events.RunCancelled() | events.RunExpired():
                raised, wrote = raised + wrote, False
            case _:
                pass
        status = journal.apply(journal.State(status=status), entry).status if entry.kind.startswith("run.") else status
    return raised


def revisions_moved_as_promised(store: Written, explicit: Mapping[str, int] | None = None) -> None:
    """N2: by T6, waking T7, T8, T9 with newly started writes and explicit writes; at most one T8 an operation."""
    explicit = explicit or {}
    for session in store.sessions.values():
        if _has_tombstones(store, session):
            continue
        by_hand = _written_by_hand(store, session)
        assert by_hand == explicit.get(session.id, 0), f"{session.id}: {by_hand} raises that no entry tells of"
        recorded = [
            e.revision for r in _of_session(store, session) for e in store.entries(r.id)
            if isinstance(e, events.RunWaiting | events.SessionCommitted)
        ]  # fmt: skip
        assert len(recorded) == len(set(recorded)), f"{session.id}: two changes made the same revision"
        assert all(1 <= r <= session.revision for r in recorded)
    for run in store.runs.values():
        commits = sum(isinstance(e, events.SessionCommitted) for e in store.entries(run.id))
        assert commits == (run.state == "completed"), f"{run.id} is {run.state} and was committed {commits} times"


def nothing_uncommitted_is_in_a_session(store: Written) -> None:
    """N9, P6: a session's messages are those of completed runs; places do not overlap."""
    for session in store.sessions.values():
        if _has_tombstones(store, session):
            continue
        until = session.parent_until or 0
        for run in sorted((r for r in _of_session(store, session) if r.base is not None), key=lambda r: r.base or 0):
            assert run.state == "completed", f"{run.id} is {run.state} and has a place in its session"
            assert run.base == until, f"{run.id} starts at {run.base}, the one before ended at {until}"
            until += 1 + max(o for r, o in store.messages if r == run.id)
        assert session.next_message == until
    for run in store.runs.values():
        assert (run.base is not None) == (run.state == "completed") == (run.reply is not None), run


def conversation(store: Written, session: str) -> list[tuple[int, str]]:
    """Place and run of each message that is part of the session: those of its completed runs, in order."""
    runs = [r for r in store.runs.values() if r.session == session and r.state == "completed"]
    return sorted(
        ((r.base or 0) + ordinal, r.id) for r in runs for run, ordinal in store.messages if run == r.id and ordinal >= 0
    )


def unknowns_are_visible(store: Written) -> None:
    """N11: every unknown has an open ask, or a person gave it up; and a run does not complete over it."""
    open_asks = {a.effect for a in store.asks if a.kind == "unknown_effect" and a.state == "open"}
    undelivered = {body for _, kind, body in store.signals if kind == "ask"}
    for effect in store.effects:
        if effect.state != "unknown":
            continue
        run = store.runs[effect.run]
        given_up = any(
            isinstance(e, events.EffectResolved) and e.call == effect.ordinal and e.outcome == "give_up"
            for e in store.entries(effect.run)
        )
        answered = any(a.id in undelivered for a in store.asks if a.effect == effect.id)
        assert effect.id in open_asks or given_up or answered, f"{effect.id} is unknown and nobody is asked"
        assert run.state != "completed", f"{run.id} completed with the unknown {effect.id}"
    for ask in store.asks:
        if ask.kind == "unknown_effect" and ask.state == "open":
            run_id, ordinal = ids.effect_place(ask.effect or "")
            (effect,) = [e for e in store.effects if (e.run, e.ordinal) == (run_id, ordinal)]
            assert effect.state == "unknown", f"{ask.id} asks about {effect.id}, which is {effect.state}"


def only_started_effects_are_unknown(store: Written) -> None:
    """B7: a person is asked what happened only where T4 of that very attempt was durable before."""
    for run in store.runs:
        started: dict[int, int] = {}
        for entry in store.entries(run):
            if isinstance(entry, events.EffectStarted):
                assert entry.attempt == started.get(entry.call, 0) + 1, f"{run}: attempts of call {entry.call}"
                started[entry.call] = entry.attempt
            elif isinstance(entry, events.EffectUnknown):
                assert entry.ask == ids.ask_id(run, f"{entry.call}u{started[entry.call]}")


def steps_are_in_order(store: Written) -> None:
    """A tool of steps does one thing after the other, and has an outcome only when all of them have one."""
    parents = {(e.run, e.parent) for e in store.effects if e.parent is not None}
    for run in {*(run for run, _ in parents), *(e.run for e in store.effects if e.effect == "steps")}:
        state = journal.State()
        for batch in store.batches[run]:
            for entry in batch.entries:
                state = journal.apply(state, entry, batch.at)
                for effect in state.effects:
                    steps = state.steps(effect.ordinal)
                    assert not steps or effect.effect == "steps", f"{run}: call {effect.ordinal} has steps"
                    assert [s.place for s in steps] == list(range(len(steps))), f"{run}: places of {effect.ordinal}"
                    unfinished = [s for s in steps if not s.has_outcome]
                    assert unfinished in ([], list(steps[-1:])), f"{run}: two steps of {effect.ordinal} at once"
                    is_done = effect.has_outcome and effect.state != "abandoned"  # which is by the end of the run
                    assert not (is_done and unfinished), f"{run}: {effect.ordinal} ended before its steps"


def long_results_are_kept(store: Written) -> None:
    """What is said to be kept as a blob is there, whole, and used by the run: nobody collects it."""
    kept = Counter(e.run for e in store.effects if e.blob)
    for (run, ordinal), body in store.messages.items():
        for part in _parsed(body).parts:
            if isinstance(part, messages.ToolResponse) and part.blob is not None:
                kept[run] -= 1
                assert part.blob.digest in store.blobs, f"{run}, message {ordinal}: its blob is not there"
                assert (run, part.blob.digest) in store.uses, f"{run}, message {ordinal}: its blob may be collected"
    assert not any(kept.values()), kept


def nothing_runs(store: Written) -> None:
    """N14: no run is ``running`` when no process is there."""
    running = [r.id for r in store.runs.values() if r.state == "running"]
    assert not running, f"{running} are running, and nobody drives them"
    assert all((r.owner is None) for r in store.runs.values())


def file_is_sound(store: Written) -> None:
    """N15: the database finds nothing wrong with itself."""
    assert not store.faults


# --- against the other witnesses --------------------------------------------------------------------------------


def effects_agree_with_ledger(store: Written, ledger: Sequence[EffectLine], checks: Sequence[str] = ()) -> None:
    """N3, N4, N5, P4, P5. ``checks`` names the tools whose ``check`` may allow another attempt."""
    rows = {e.key: e for e in store.effects}
    happened = Counter(line.key for line in ledger)
    for line in ledger:
        if line.key in store.erased_keys:
            continue
        assert line.key in rows, f"{line} is in no journal"
        row = rows[line.key]
        assert row.tool == line.tool
        started = row.attempt >= 1 or row.effect == "read"
        assert started, f"{row.id} was not started, and {line} happened"
    for key, effect in rows.items():
        entries = [e for e in store.entries(effect.run) if getattr(e, "call", None) == effect.ordinal]
        granted = sum(isinstance(e, events.EffectResolved) and e.outcome == "not_happened" for e in entries)
        by_word = {e.by for e in entries if isinstance(e, events.EffectSucceeded)} & {"person", "recorded", "stub"}
        if effect.effect == "once":
            if effect.tool not in checks:  # (an attempt that was dropped before it was sent may be followed by another)
                assert happened[key] <= 1 + granted, f"{effect.id} happened {happened[key]} times"
        elif effect.effect == "idempotent":
            assert effect.attempt <= effects.MAX_ATTEMPTS * (1 + granted), f"{effect.id}: {effect.attempt} attempts"
            assert happened[key] <= effect.attempt, f"{effect.id} happened more often than it was started"
        if effect.state == "failed" and effect.effect in ("once", "idempotent") and not granted:
            assert happened[key] == 0, f"{effect.id} failed, and happened: the model was told that it did not"
        touches_nothing = effect.effect == "steps" or effect.tool == READ_MORE.name
        if effect.state == "succeeded" and not touches_nothing and not by_word:
            assert happened[key] >= 1, f"{effect.id} succeeded, and did not happen"


def reused_outcomes_are_recorded(store: Written) -> None:
    """A call that got a recorded outcome was not made, and within a run each recorded success serves one call."""
    rows = {e.id: e for e in store.effects}
    for run in store.runs.values():
        reused = [e for e in store.effects_of(run.id) if e.reuses is not None]
        assert len({e.reuses for e in reused}) == len(reused), f"{run.id}: a recorded success served two calls"
        for effect in reused:
            if ids.effect_place(effect.reuses or "")[0] in store.erased:
                continue
            of = rows[effect.reuses or ""]
            assert (effect.attempt, effect.tool) == (0, of.tool), f"{effect.id} was started, and reuses {of.id}"
            assert effect.state == of.state, f"{effect.id} is {effect.state}, and {of.id} is {of.state}"
            assert effect.arguments == of.arguments or effect.arguments == "{}" or of.arguments == "{}"
            of_family = store.runs[of.run]
            assert (of_family.family or of_family.id) == (run.family or run.id), f"{effect.id} is of another family"


def nothing_happened_twice(ledger: Sequence[EffectLine], reads: Sequence[str] = ()) -> None:
    """What a customer notices: each write is in the ledger once. Holds where downstream or a person knew the key."""
    twice = {key: n for key, n in Counter(line.key for line in ledger if line.tool not in reads).items() if n > 1}
    assert not twice, twice


def equal_writes_happened_once(ledger: Sequence[EffectLine], reads: Sequence[str]) -> None:
    """What a replay or a fork is for: nothing that the run did is done by them once more, under another key."""
    keys = defaultdict[tuple[str, str], set[str | None]](set)
    for line in ledger:
        if line.tool not in reads:
            keys[line.tool, values.dumps(line.arguments)].add(line.key)
    assert all(len(k) == 1 for k in keys.values()), keys


def replies_agree(store: Written, client: Sequence[Mapping[str, Any]]) -> None:
    """N6, P2: all completed replies of one operation are the stored body, byte for byte."""
    answering = {
        r.operation_id: store.runs[r.host] if r.state == "joined" and r.host else r for r in store.runs.values()
    }
    stored = {operation: run.reply for operation, run in answering.items()}
    erased = {r.operation_id for r in store.erased.values()}
    for line in client:
        if line["event"] == "reply" and line["operation"] not in erased:
            assert line["body"] == stored[line["operation"]], line


def later_operations_have_later_revisions(client: Sequence[Mapping[str, Any]]) -> None:
    """N13: if A's reply came before B was first sent, revision(A) < revision(B) in their session."""
    sent: dict[str, int] = {}
    replied: dict[str, tuple[int, str, int]] = {}
    for n, line in enumerate(client):
        if line["event"] == "sent":
            sent.setdefault(line["operation"], n)
        elif line["event"] == "reply":
            replied.setdefault(line["operation"], (n, line["session"], line["revision"]))
    for a, b in itertools.permutations(replied, 2):
        if replied[a][0] < sent[b] and replied[a][1] == replied[b][1]:
            assert replied[a][2] < replied[b][2], f"{a} was answered before {b} was sent"


def accepted_cancels_win(store: Written, client: Sequence[Mapping[str, Any]]) -> None:
    """B12: a cancel that was accepted before T8 wins."""
    runs = {r.operation_id: r for r in (*store.runs.values(), *store.erased.values())}
    replied = {line["operation"] for line in client if line["event"] == "reply"}
    for line in client:
        if line["event"] == "cancelled":
            run = runs[line["operation"]]
            assert run.state == "cancelled" or run.operation_id in replied, f"{run.id} is {run.state}, not cancelled"


def model_calls_are_bounded(store: Written, calls: Mapping[str, int]) -> None:
    """N10: steps + takeovers + recorded retries + answers refused by a cancel."""
    for run in store.runs.values():
        entries = store.entries(run.id)
        steps = sum(isinstance(e, events.ModelCompleted) for e in entries)
        takeovers = sum(isinstance(e, events.RunQueued) and e.why in ("recovered", "released") for e in entries)
        takeovers += sum(isinstance(e, events.RunParked) for e in entries)  # in place of being queued again
        retries = sum(isinstance(e, events.StepFailed) and e.error != "cancelled" for e in entries)
        refused = int(run.state == "cancelled")
        origin = store.state(run.id).origin
        steps -= origin.at_step - 1 if origin is not None and origin.at_step else 0  # those that a fork shares
        summaries = sum(isinstance(e, events.ContextCompacted) and bool(usage.model_of(e)) for e in entries)
        bound = steps + takeovers + retries + refused + summaries
        assert steps <= calls.get(run.id, 0) <= bound, f"{run.id}: {calls.get(run.id, 0)} model calls, not {bound}"
        _each_call_is_counted(store, run, calls.get(run.id, 0))


def _each_call_is_counted(store: Written, run: RunRow, calls: int) -> None:
    """A call whose tokens nobody told counts as unknown, also where its process died. Unknown is not zero."""
    state, batches = store.state(run.id), store.batches[run.id]
    told = [e for b in batches for e in b.entries if isinstance(e, events.ModelCompleted | events.StepFailed)]
    free = sum(isinstance(e, events.StepFailed) and not e.untold and e.input is None for e in told)
    counted = sum(used.calls for used in state.usage.values()) + free + state.lost
    if run.state not in ("completed", "failed") and len(batches) > 1 and batches[-1].fence > batches[-2].fence:
        counted += 1  # its holder was gone, and somebody else ended it
    assert calls <= counted, f"{run.id}: {calls} model calls, {counted} are counted"


def recorded_steps_are_not_computed_again(before: Written, calls: Sequence[Mapping[str, Any]]) -> None:
    """P3. ``before`` is the store as a crash left it, ``calls`` are the model calls after that."""
    for line in calls:
        known = before.state(line["run"]).step if line["run"] in before.runs else 0
        assert line["step"] >= known, f"step {line['step']} was recorded, and the model was asked again"


def recorded_outcomes_are_reused(
    before: Written, then: Sequence[EffectLine], after: Written, now: Sequence[EffectLine]
) -> None:
    """P3, B9. What had an outcome when the process died was not touched again, and the outcome did not change."""
    happened_then, happened_now = (Counter(line.key for line in ledger) for ledger in (then, now))
    rows = {e.key: e for e in after.effects}
    for effect in before.effects:
        if effect.state in effects.OUTCOMES:
            assert happened_now[effect.key] == happened_then[effect.key], f"{effect.id} was done again"
            assert rows[effect.key].state == effect.state


def planned_writes_ask_nobody(before: Written, after: Written) -> None:
    """B7. What had not been started when the process died is certainly not done: it starts, and nobody is asked.

    (Unless it was then cancelled in the middle of its own attempt.)
    """
    for effect in before.effects:
        if effect.attempt == 0 and after.runs[effect.run].state != "cancelled":
            asked = [a.id for a in after.asks if a.effect == effect.id and a.kind == "unknown_effect"]
            assert not asked, f"{effect.id} was {effect.state}, and {asked} asks what happened"


def people_are_asked_only_where_nobody_can_look(after: Written, looked_up: Sequence[str]) -> None:
    """B8. Reads, keyed writes and checked writes are settled without a person."""
    asked = {a.tool for a in after.asks if a.kind == "unknown_effect"}
    assert not asked & set(looked_up), asked


def history_only_grew(before: Written, after: Written) -> None:
    """The journal is append-only: what a crash left is still there, word for word."""
    for run, batches in before.batches.items():
        assert list(after.batches[run][: len(batches)]) == list(batches), run
    for key, body in before.messages.items():
        assert after.messages[key] == body
    for ask in before.asks:
        if ask.state == "decided":
            (same,) = [a for a in after.asks if a.id == ask.id]
            assert (same.decision, same.decided_by, same.decided_at) == (ask.decision, ask.decided_by, ask.decided_at)


def ends_and_waits_are_told(store: Written, heard: Sequence[str]) -> None:
    """N12, B14: where somebody listens, each wait and each end is one message. That was told at least once, always with
    the id of its event, and is told no more. ``heard`` are the ids as they came."""
    expected = {
        f"{run}/{batch.seq + n}": entry.kind
        for run in store.listened if run in store.batches for batch in store.batches[run]
        for n, entry in enumerate(batch.entries) if entry.kind in TOLD
    }  # fmt: skip
    assert {m.id: m.kind for m in store.outbox.values() if m.run in store.batches} == expected
    assert {m.state for m in store.outbox.values()} <= {"delivered"}, store.outbox
    assert set(heard) == set(store.outbox), "somebody heard of what did not happen, or did not hear of what did"


# --- all of it --------------------------------------------------------------------------------------------------


def hold_at_any_time(
    store: Written,
    ledger: Sequence[EffectLine] = (),
    client: Sequence[Mapping[str, Any]] = (),
    *,
    checks: Sequence[str] = (),
    explicit: Mapping[str, int] | None = None,
) -> None:
    """Everything that holds between any two transactions, whatever goes on."""
    file_is_sound(store)
    accepted_operations_are_there(store, client)
    journals_are_whole(store)
    rows_are_the_fold(store)
    revisions_moved_as_promised(store, explicit)
    nothing_uncommitted_is_in_a_session(store)
    joined_runs_are_part_of_their_hosts(store)
    unknowns_are_visible(store)
    only_started_effects_are_unknown(store)
    steps_are_in_order(store)
    long_results_are_kept(store)
    effects_agree_with_ledger(store, ledger, checks)
    reused_outcomes_are_recorded(store)
    replies_agree(store, client)
    later_operations_have_later_revisions(client)


def hold(
    store: Written,
    ledger: Sequence[EffectLine] = (),
    client: Sequence[Mapping[str, Any]] = (),
    calls: Mapping[str, int] | None = None,
    *,
    checks: Sequence[str] = (),
    explicit: Mapping[str, int] | None = None,
) -> None:
    """Everything that holds at rest. ``calls`` counts the model calls of each run; None where nobody counted."""
    hold_at_any_time(store, ledger, client, checks=checks, explicit=explicit)
    nothing_runs(store)
    runs_came_to_rest(store)
    accepted_cancels_win(store, client)
    if calls is not None:
        model_calls_are_bounded(store, calls)
