"""What may each transaction change?

A small pure model of session, run, effect and ask. ``Seen`` is what can be seen of a store between two transactions,
``permits`` says whether the contract allows one to lead from the one to the other, or to be refused. Nothing of the
package is asked: these are the sentences of the contract once more, in other words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DAY = 24 * 3600 * 1_000_000  # microseconds
UNFINISHED = ("queued", "running", "waiting")
ENDED = ("completed", "failed", "cancelled", "expired")
OUTCOMES = ("succeeded", "failed", "denied", "abandoned", "expired")
EFFECT_MOVES = {
    "planned": {"asked", "started", "succeeded", "failed", "abandoned"},
    "asked": {"approved", "denied", "expired", "abandoned"},
    "approved": {"asked", "started", "succeeded", "failed", "abandoned"},
    "started": {"started", "succeeded", "failed", "unknown"},
    "unknown": {"succeeded", "approved", "failed"},
}
#: Transactions of a run's holder, and what they want of it: that no cancel is requested, that nothing is unread.
HOLDER = {
    "note_down": (False, False), "answer": (True, False), "plan_step": (True, False), "ask_again": (True, True),
    "open_question": (True, False), "started": (True, True), "outcome": (False, False), "suspend": (True, True),
    "park_changed": (True, True), "commit": (True, False), "end": (False, False), "absorb": (False, False),
}  # fmt: skip


class RunSeen(NamedTuple):
    id: str
    operation: str
    fingerprint: str
    session: str
    place: int
    state: str
    retryable: int
    fence: int
    cancel: int
    unread: int
    deaths: int
    wrote: int
    head: int | None
    host: str | None
    ended_at: int | None
    replied: int


class EffectSeen(NamedTuple):
    run: str
    ordinal: int
    tool: str
    effect: str
    state: str
    attempt: int


class AskSeen(NamedTuple):
    id: str
    run: str
    kind: str
    state: str
    effect: str | None
    expires_at: int | None


class SessionSeen(NamedTuple):
    id: str
    revision: int
    deleted_at: int | None


#: What fills ``Seen``, in the words that both databases understand. What is chosen from has an order: a seed replays.
QUERIES = {
    "runs": "SELECT id, operation_id, fingerprint, session, place, state, retryable, fence, cancel, unread, deaths,"
    " wrote, head, host, ended_at, CASE WHEN reply IS NULL THEN 0 ELSE 1 END FROM runs ORDER BY n",
    "effects": "SELECT run, ordinal, tool, effect, state, attempt FROM effects",
    "asks": "SELECT id, run, kind, state, effect, expires_at FROM asks ORDER BY n",
    "sessions": "SELECT id, revision, deleted_at FROM sessions",
}


@dataclass(frozen=True)
class Seen:
    runs: Mapping[str, RunSeen] = field(default_factory=dict)
    effects: Mapping[tuple[str, int], EffectSeen] = field(default_factory=dict)
    asks: Mapping[str, AskSeen] = field(default_factory=dict)
    sessions: Mapping[str, SessionSeen] = field(default_factory=dict)

    def of_session(self, session: str) -> list[RunSeen]:
        return sorted((r for r in self.runs.values() if r.session == session), key=lambda r: r.place)

    def first(self, session: str) -> RunSeen | None:
        """The first unfinished run of the session's queue."""
        return next((r for r in self.of_session(session) if r.state in UNFINISHED), None)

    def of_run(self, run: str) -> list[EffectSeen]:
        return [e for e in self.effects.values() if e.run == run]

    def open_asks(self, run: str) -> list[AskSeen]:
        return [a for a in self.asks.values() if a.run == run and a.state == "open"]

    def revision(self, session: str) -> int:
        return self.sessions[session].revision if session in self.sessions else 0

    def operation(self, id: str) -> RunSeen | None:
        return next((r for r in self.runs.values() if r.operation == id), None)


def seen(execute: Callable[[str], Iterator[Any]]) -> Seen:
    """What the store holds now. ``execute`` gives the rows of a query."""
    return Seen(
        runs={r.id: r for r in (RunSeen(*row) for row in execute(QUERIES["runs"]))},
        effects={(e.run, e.ordinal): e for e in (EffectSeen(*row) for row in execute(QUERIES["effects"]))},
        asks={a.id: a for a in (AskSeen(*row) for row in execute(QUERIES["asks"]))},
        sessions={s.id: s for s in (SessionSeen(*row) for row in execute(QUERIES["sessions"]))},
    )


class Step:
    """What differs between two looks at a store."""

    def __init__(self, before: Seen, after: Seen) -> None:
        self.before, self.after = before, after
        self.runs = _changed(before.runs, after.runs)
        self.follows = [id for id, (b, a) in self.runs.items() if b and a and b._replace(head=a.head) == a]
        for id in self.follows:
            del self.runs[id]
        self.effects = _changed(before.effects, after.effects)
        self.asks = _changed(before.asks, after.asks)
        self.sessions = _changed(before.sessions, after.sessions)

    def touches(self, *runs: str | None, sessions: tuple[str, ...] = ()) -> None:
        """Nothing differs but what belongs to these runs, and these sessions."""
        assert set(self.runs) <= set(runs), f"{set(self.runs) - set(runs)} changed too"
        assert {run for run, _ in self.effects} <= set(runs), self.effects
        assert {(a or b).run for b, a in self.asks.values()} <= set(runs), self.asks
        assert set(self.sessions) <= set(sessions), self.sessions

    def nothing(self) -> None:
        self.touches()

    def raised(self, session: str) -> int:
        return self.after.revision(session) - self.before.revision(session)

    def run(self, id: str) -> tuple[RunSeen, RunSeen]:
        return self.before.runs[id], self.after.runs[id]

    def opened(self) -> list[AskSeen]:
        return [a for b, a in self.asks.values() if b is None]


def _changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    keys = [k for k in {**before, **after} if before.get(k) != after.get(k)]
    return {k: (before.get(k), after.get(k)) for k in keys}


def permits(name: str, args: Mapping[str, Any], before: Seen, after: Seen, refused: BaseException | None) -> None:
    """Raises AssertionError if this transaction may not have led from the one to the other."""
    step = Step(before, after)
    try:
        if isinstance(refused, asyncio.CancelledError) and before != after:
            refused = None  # it was written, and nobody was there any more to hear of it
        if refused is not None:
            step.nothing()
            _may_be_refused(name, args, before, type(refused).__name__)
            return
        always(step)
        if name in HOLDER:
            _held(step, name, args)
        RULES.get(name, lambda step, args: step.nothing())(step, args)
    except (AssertionError, KeyError) as broken:
        what = {"runs": step.runs, "effects": step.effects, "asks": step.asks, "sessions": step.sessions}
        happened = f"was refused ({refused!r})" if refused is not None else f"changed {what}"
        raise AssertionError(f"{name}({_short(args)}) {happened}: {broken!r}") from broken


def _short(args: Mapping[str, Any]) -> str:
    told = {**args, **(args["new"]._asdict() if "new" in args else {})}
    return ", ".join(f"{k}={v!r}" for k, v in told.items() if k not in ("new", "definition", "fingerprint"))


def always(step: Step) -> None:
    """Whatever happens: nothing comes back, nothing is forgotten."""
    for before, after in step.runs.values():
        assert after is not None, "a run vanished"
        if before is not None:
            assert after.fence >= before.fence, "a fence fell"
            same = (before.operation, before.fingerprint, before.session) == (
                after.operation,
                after.fingerprint,
                after.session,
            )
            assert same, "a run became another one"
            if before.state in ("completed", "cancelled", "expired", "joined"):
                assert after.state == before.state, f"{before.state} became {after.state}"
            if before.state == "failed" and not before.retryable:
                assert after.state == "failed"
    for before, after in step.effects.values():
        assert after is not None, "an effect vanished"
        if before is not None and before.state != after.state:
            assert after.state in EFFECT_MOVES.get(before.state, ()), (
                f"an effect went from {before.state} to {after.state}"
            )
        if before is not None:
            assert 0 <= after.attempt - before.attempt <= 1
            assert (after.attempt > before.attempt) <= (after.state == "started"), "an attempt that was not started"
    for before, after in step.asks.values():
        assert after is not None, "an ask vanished"
        assert before is None or before.state == "open", f"an ask that was {before.state} became {after.state}"
    for before, after in step.sessions.values():
        assert after is not None, "a session vanished"
        assert before is None or after.revision >= before.revision, "a revision fell"
    for id in step.follows:  # a run that ended beside the queue has raised the revision under the one that is driven
        b, a = step.before.runs[id], step.after.runs[id]
        assert a.state in ("running", "waiting"), "only the driven one follows"
        assert (a.head or 0) - (b.head or 0) == step.raised(a.session) == 1
    for session in after_sessions(step):
        held = [r.id for r in step.after.of_session(session) if r.state in ("running", "waiting")]
        assert len(held) <= 1, f"two runs of one session at once: {held}"


def after_sessions(step: Step) -> set[str]:
    return {after.session for _, after in step.runs.values()}


# --- refusals ---------------------------------------------------------------------------------------------------


def _may_be_refused(name: str, args: Mapping[str, Any], b: Seen, error: str) -> None:
    claim = args.get("claim")
    run = b.runs.get(claim.run if claim else args.get("run_id") or args.get("run") or "")
    session = args.get("session") or (args["new"].session if name == "accept" else run.session if run else "")
    match error:
        case "ClaimLost":
            if claim is not None and name not in ("outcome", "started", "ask_again"):  # those also name an attempt
                assert run is None or run.state != "running" or run.fence != claim.fence
        case "CancelRequested":
            assert run is not None
            assert run.cancel, "no cancel was requested"
        case "SignalsUnread":
            steers = [r for r in b.runs.values() if claim and r.host == claim.run and r.state == "queued"]
            assert run is not None
            assert run.unread or steers or name in ("suspend", "note_down"), "nothing was unread"
        case "SessionBusy":
            unknown = any(e.state == "unknown" and b.runs[e.run].session == session for e in b.effects.values())
            parked = any(r.state == "parked" for r in b.of_session(session))
            busy = b.first(session) is not None
            deleting = name in ("begin_delete_session", "delete_session")
            assert busy or (deleting and (parked or unknown)), "the session was not busy"
        case "OperationMismatch":
            known = b.operation(args["new"].operation_id)
            assert known is not None
            assert known.fingerprint != args["new"].fingerprint
        case "OperationExpired":
            known = b.operation(args["new"].operation_id)
            assert known is not None
            answering = b.runs[known.host or ""] if known.state == "joined" else known
            assert answering.state == "completed"
            assert not answering.replied or args["at"] >= (answering.ended_at or 0) + 30 * DAY
        case "RevisionConflict":
            expected = args.get("expected_revision") or (args["new"].expected_revision if name == "accept" else None)
            busy = b.first(session) is not None
            assert expected is not None, f"{name} conflicts though nobody else wrote"
            assert busy or expected != b.revision(session)
        case "AlreadyDecided" | "AskClosed":
            ask = b.asks[args["ask_id"]]
            expired = ask.expires_at is not None and args["at"] >= ask.expires_at
            assert ask.state != "open" or (expired and args["decision"].kind != "expire")
        case "CancelledError" | "ReplayUnsafe" | "NotFound" | "InvalidInput":
            pass  # what they are about is said by `replay` and by the caller
        case _:
            raise AssertionError(f"{error} is no refusal")


# --- T0 to T9 ---------------------------------------------------------------------------------------------------


def _held(step: Step, name: str, args: Mapping[str, Any]) -> None:
    """Every transaction of the holder: with its own fence, on a run that it drives; nothing else is touched."""
    claim = args["claim"]
    before, after = step.run(claim.run) if claim.run in step.before.runs else (None, None)
    assert before is not None
    assert after is not None
    no_cancel, all_read = HOLDER[name]
    if step.runs or step.effects or step.asks or step.sessions or name != "absorb":
        assert before.state == "running", f"written to a run that is {before.state}"
        assert before.fence == claim.fence == after.fence, "written with another fence"
    assert not (no_cancel and before.cancel), "written though a cancel was requested"
    assert not (all_read and before.unread), "written though something was unread"
    joined = [r.id for _, r in step.runs.values() if r.host == claim.run and r.state == "joined"]
    step.touches(claim.run, *(joined if name == "note_down" else ()), sessions=(claim.session,))
    if name not in ("suspend", "commit", "end"):
        assert not step.raised(claim.session), "the revision moved"


def accept(step: Step, args: Mapping[str, Any]) -> None:
    new, b, a = args["new"], step.before, step.after
    known = b.operation(new.operation_id)
    if known is not None:
        assert known.fingerprint == new.fingerprint, "another request under a known id was taken"
        _comes_again(step, b.runs[known.host or ""] if known.state == "joined" else known)
        return
    run, first = a.runs[new.run], b.first(new.session)
    assert (run.operation, run.session) == (new.operation_id, new.session)
    assert not (new.if_busy == "reject" and first), "accepted though the session was busy"
    others = {id for id in step.runs if id != new.run}
    if run.state == "joined":  # a message that answers a question
        (asked,) = [a for b, a in step.asks.values()]
        assert first is not None
        assert (first.state, run.host, asked.kind, asked.state) == ("waiting", first.id, "question", "decided")
        assert others == {first.id}
        return
    claimed = new.owner is not None and first is None
    assert (run.state, run.fence) == (("running", 1) if claimed else ("queued", 0))
    assert not claimed or run.head == a.revision(new.session), "the head is not that of the claim"
    match new.if_busy if first is not None else "queue":
        case "interrupt":
            assert first is not None
            now = a.runs[first.id]
            if first.state == "running":
                assert now.state == "running"
                assert now.cancel, "nobody was asked to stop"
            else:
                assert now.state == "cancelled"
                _ends(step, first.id)
            waiting = [r.id for r in a.of_session(new.session) if r.state in UNFINISHED]
            assert waiting[0 if now.state == "cancelled" else 1] == new.run, "it is not the next"
            order = [r.id for r in b.of_session(new.session) if r.state in UNFINISHED and r.id in waiting]
            assert [r for r in waiting if r != new.run] == order, "the queue changed its order"
        case how:
            if others:
                assert how == "steer"
                assert first is not None
                assert others == {run.host} == {first.id}
                assert a.runs[first.id].unread == first.unread + 1
            assert run.place >= max((r.place for r in b.of_session(new.session)), default=-1), "it jumped the queue"
            again = new.session in b.sessions and b.sessions[new.session].deleted_at is not None
            assert step.raised(new.session) == again, "the revision moved"  # a deleted session begins anew


def _comes_again(step: Step, run: RunSeen) -> None:
    """A known operation: only what failed for now goes on, at the tail. One that joined another is as that one is."""
    if run.host is not None and run.state == "joined":
        run = step.before.runs[run.host]
    if not step.runs:
        assert not (run.state == "failed" and run.retryable), "what failed for now did not go on"
        step.nothing()
        return
    step.touches(run.id, sessions=(run.session,))
    before, after = step.run(run.id)
    assert (before.state, before.retryable, after.state) == ("failed", 1, "queued")
    assert after.place >= max(r.place for r in step.before.of_session(run.session))
    assert not step.effects
    assert not step.raised(run.session)


def resume(step: Step, args: Mapping[str, Any]) -> None:
    _comes_again(step, step.before.runs[args["run_id"]])


def claim(step: Step, args: Mapping[str, Any]) -> None:
    before, now = step.before.runs[args["run"]], step.after.runs[args["run"]]
    first = step.before.first(before.session)
    turn = before.state == "queued" and first is not None and first.id == before.id and before.deaths < 3
    assert bool(step.runs) == turn, "its turn" if turn else "not its turn"
    if turn:
        step.touches(before.id)
        assert (now.state, now.fence) == ("running", before.fence + 1)
        assert now.head == step.before.revision(now.session), "the head is not that of the claim"
        assert not step.effects
        assert not step.asks


def note_down(step: Step, args: Mapping[str, Any]) -> None:
    assert not step.effects
    assert not step.asks
    if len(step.runs) > 1 or any(r.state == "joined" for _, r in step.runs.values()):
        assert not step.before.runs[args["claim"].run].cancel, "joined what was asked to stop"
    for before, after in step.runs.values():
        if after.id != args["claim"].run:
            assert (before.state, before.host, after.state) == ("queued", args["claim"].run, "joined")


def answer(step: Step, args: Mapping[str, Any]) -> None:
    for before, after in step.effects.values():
        assert before is None, "a call that was there changed"
        assert after.attempt == 0
        assert after.state in ("planned", "asked", "failed", "succeeded")
        asks = [a for a in step.opened() if a.effect and a.effect.endswith(f"_{after.ordinal}")]
        assert len(asks) == (after.state == "asked"), "asked without an ask"
    assert all(a.kind == "approval" for a in step.opened())
    unfinished = [e for e in step.before.of_run(args["claim"].run) if e.state not in OUTCOMES and e.state != "asked"]
    assert step.after.runs[args["claim"].run].state == "running"
    if any(e.effect != "steps" for e in unfinished):
        assert set(step.effects) != set() or not unfinished


def plan_step(step: Step, args: Mapping[str, Any]) -> None:
    assert len(step.effects) == 1
    answer(step, args)


def ask_again(step: Step, args: Mapping[str, Any]) -> None:
    ((before, after),) = step.effects.values()
    assert (after.state, before.attempt) == ("asked", 0)
    assert [a.kind for a in step.opened()] == ["approval"]


def open_question(step: Step, args: Mapping[str, Any]) -> None:
    assert not step.effects
    assert [a.kind for a in step.opened()] == ["question"]


def started(step: Step, args: Mapping[str, Any]) -> None:
    ((before, after),) = step.effects.values()
    assert (after.state, after.attempt) == ("started", before.attempt + 1)
    assert before.state in ("planned", "approved", "started")
    assert step.after.runs[after.run].wrote
    assert not step.asks


def outcome(step: Step, args: Mapping[str, Any]) -> None:
    ((before, after),) = step.effects.values()
    assert after.attempt == before.attempt == args["done"].attempt
    assert after.state in ("succeeded", "failed", "unknown")
    if after.state != "failed" and before.effect not in ("read", "steps"):
        assert before.state == "started", f"{after.state} without having started"
    assert [a.kind for a in step.opened()] == (["unknown_effect"] if after.state == "unknown" else [])


def suspend(step: Step, args: Mapping[str, Any]) -> None:
    run = args["claim"].run
    assert step.after.runs[run].state == "waiting"
    assert step.raised(args["claim"].session) == 1
    assert not step.effects
    assert not step.asks
    states = [(e.effect, e.state) for e in step.after.of_run(run) if e.state not in OUTCOMES]
    unknown = any(state == "unknown" for _, state in states)
    held = [s for s in states if s[1] not in ("asked", "unknown") and s[0] != "steps"]
    assert not held or unknown, f"waits though something could be done: {held}"
    assert step.after.open_asks(run), "waits for nothing"


def park_changed(step: Step, args: Mapping[str, Any]) -> None:
    assert step.after.runs[args["claim"].run].state == "parked"
    assert [a.kind for a in step.opened()] == ["definition_changed"]
    assert not step.raised(args["claim"].session)


def commit(step: Step, args: Mapping[str, Any]) -> None:
    run, session = args["claim"].run, args["claim"].session
    assert step.after.runs[run].state == "completed"
    assert step.after.runs[run].replied
    assert step.raised(session) == 1
    assert step.before.revision(session) == step.before.runs[run].head, "somebody else had written"
    assert not step.effects
    assert not step.asks
    assert all(e.state in OUTCOMES for e in step.after.of_run(run)), "completed over a call without an outcome"
    assert not step.after.open_asks(run), "completed over an open ask"
    waiting = [r.id for r in step.before.runs.values() if r.host == run and r.state == "queued"]
    assert args["last"] or not waiting, f"completed, and {waiting} wait to join"


def _ends(step: Step, run: str) -> None:
    """T9: started becomes unknown with its ask, the rest is abandoned, every other ask is closed."""
    before = step.before.runs[run]
    assert step.raised(before.session) == bool(before.wrote), "the revision tells what there is to tell"
    for effect in step.after.of_run(run):
        assert effect.state in OUTCOMES or effect.state == "unknown", f"ended with a call that is {effect.state}"
    for ask in step.after.asks.values():
        if ask.run == run and ask.state == "open":
            assert ask.kind == "unknown_effect"
    for was, now in step.effects.values():
        if was.state == "started":
            assert now.state == "unknown"
    assert step.after.runs[run].unread == 0


def end(step: Step, args: Mapping[str, Any]) -> None:
    before, after = step.run(args["claim"].run)
    assert after.state in ("failed", "cancelled", "expired")
    assert not before.cancel or after.state == "cancelled", "a cancel did not win"
    assert not (after.retryable and any(e.state not in OUTCOMES for e in step.before.of_run(before.id)))
    _ends(step, before.id)


def cancel(step: Step, args: Mapping[str, Any]) -> None:
    before = step.before.runs[args["run_id"]]
    after = step.after.runs[before.id]
    step.touches(before.id, sessions=(before.session,))
    if before.state in (*ENDED, "joined") and not before.retryable:
        step.nothing()
    elif before.state == "running":
        assert after.state == "running"
        assert after.cancel == 1, "nobody will hear of it"
        assert not step.effects
        assert not step.raised(before.session)
    else:
        assert after.state == "cancelled"
        _ends(step, before.id)


def release(step: Step, args: Mapping[str, Any]) -> None:
    before, after = step.run(args["run_id"])
    step.touches(before.id)
    assert (before.state, before.fence, after.state) == ("running", args["fence"], "queued")
    assert (before.place, before.deaths) == (after.place, after.deaths)
    assert not step.effects


def rest(step: Step, args: Mapping[str, Any]) -> None:
    before, after = step.run(args["claim"].run)
    step.touches(before.id)
    assert (before.state, before.fence) == (after.state, after.fence) == ("running", args["claim"].fence)
    assert after.deaths == args["claim"].deaths - args["asleep"]
    assert not step.effects


def recover(step: Step, args: Mapping[str, Any]) -> None:
    before = step.before.runs[args["run_id"]]
    if before.state != "running" or before.fence != args["fence"]:
        step.nothing()
        return
    after = step.after.runs[before.id]
    step.touches(before.id, sessions=(before.session,))
    if before.cancel:
        assert after.state == "cancelled", "an accepted cancel was lost with its holder"
        _ends(step, before.id)
        return
    assert after.state == ("parked" if before.deaths >= 2 else "queued")
    assert not step.effects
    assert not step.raised(before.session)
    assert [a.kind for a in step.opened()] == (["parked"] if after.state == "parked" else [])


def decide(step: Step, args: Mapping[str, Any]) -> None:
    ask = step.before.asks[args["ask_id"]]
    run = step.before.runs[ask.run]
    if ask.state != "open":
        step.nothing()  # the same word again
        return
    step.touches(run.id, sessions=(run.session,))
    kind = args["decision"].kind
    now = step.after.runs[run.id]
    assert step.after.asks[ask.id].state == ("expired" if kind == "expire" else "decided")
    raised = step.raised(run.session)
    if run.state == "running":
        assert (now.state, now.unread, now.fence) == ("running", run.unread + 1, run.fence)
        assert not step.effects
        assert not raised
    elif now.state == "expired" and run.state != "expired":  # nobody answered, wherever the run was
        assert (ask.kind, kind) == ("question", "expire")
        _ends(step, run.id)
    elif ask.kind in ("parked", "definition_changed"):
        assert run.state == "parked"
        assert now.state == ("failed" if kind == "fail" else "queued")
        assert now.state == "failed" or not raised
        assert now.state == "failed" or not step.effects
    elif run.state == "waiting":
        assert now.state == "queued"
        assert now.place == run.place, "a decision moved the run in its queue"
        assert raised == 1
    else:  # it has ended, or is queued or parked: it stays so
        assert now.state == run.state
        assert not raised


def absorb(step: Step, args: Mapping[str, Any]) -> None:
    if step.runs:
        assert step.after.runs[args["claim"].run].unread == 0
    for before, after in step.effects.values():
        assert before.state in ("asked", "unknown")
        assert after.attempt == before.attempt
    assert not step.asks


def write_session(step: Step, args: Mapping[str, Any]) -> None:
    session = args["session"]
    step.touches(sessions=(session,))
    alive = step.before.sessions.get(session)
    assert alive is None or alive.deleted_at is not None or step.before.first(session) is None, "it was busy"
    again = alive is not None and alive.deleted_at is not None
    assert step.raised(session) == 1 + again


def delete_session(step: Step, args: Mapping[str, Any]) -> None:
    session = args["session"]
    of_session = [r.id for r in step.before.of_session(session)]
    step.touches(*of_session, sessions=(session,))
    assert step.before.first(session) is None, "deleted under an unfinished run"
    assert step.after.sessions[session].deleted_at is not None
    assert step.raised(session) == 1
    for before, after in step.runs.values():
        assert before.state == after.state
    for before, after in step.effects.values():
        assert before.state == after.state


def accept_replay(step: Step, args: Mapping[str, Any]) -> None:
    new, b = args["new"], step.before
    if (known := b.operation(new.operation_id)) is not None:
        _comes_again(step, known)
        return
    run = step.after.runs[new.run]
    assert run.state == "queued"
    of = b.runs[new.of]
    assert of.state in ENDED
    assert not any(e.state == "unknown" for e in b.of_run(of.id)), "replayed over an unknown"
    assert (run.session == of.session) == (of.state != "completed")
    if any(e.attempt for e in b.of_run(of.id)):
        assert new.force is not None, "writes were started, and nobody forced it"
    assert not step.after.runs[of.id].retryable, "the original may go on by itself"
    for effect in step.after.of_run(run.id):
        assert effect.attempt == 0


def accept_fork(step: Step, args: Mapping[str, Any]) -> None:
    new, b = args["new"], step.before
    if (known := b.operation(new.operation_id)) is not None:
        _comes_again(step, known)
        return
    run, of = step.after.runs[new.run], b.runs[new.of]
    step.touches(run.id, sessions=(run.session,))
    assert of.state in ENDED
    assert run.session not in b.sessions
    assert all(e.state in OUTCOMES and e.attempt == 0 for e in step.after.of_run(run.id))


RULES: Mapping[str, Callable[[Step, Mapping[str, Any]], None]] = {
    f.__name__: f for f in (
        accept, accept_fork, accept_replay, absorb, answer, ask_again, cancel, claim, commit, decide, delete_session,
        end, note_down, open_question, outcome, park_changed, plan_step, recover, release, rest, resume, started,
        suspend, write_session,
    )
}  # fmt: skip
