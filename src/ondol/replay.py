"""May this run be replayed, and what becomes of each call then?

Plain rules over what is written down. A *family* is a run, what it replays, and all replays and forks of those: what
any of them did has happened in the world, so the verdict and the guard of a replay look at all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from ondol import clock, events, ids, lifecycle, values
from ondol.errors import InvalidInput
from ondol.journal import Batch, Recorded, State, apply
from ondol.records import EffectRow, RunRow

Kind: TypeAlias = Literal["safe", "guarded", "blocked"]


@dataclass(frozen=True, slots=True)
class By:
    """Who takes it upon themselves, and why. Both are kept with the run and in the audit."""

    name: str
    why: str

    def __post_init__(self) -> None:
        ids.checked_person("name", self.name)
        if not ids.checked_text("why", self.why).strip():
            raise InvalidInput(f"{self.name} gives no reason: say why, it is kept")


class Member(NamedTuple):
    """A run of the family with its effects. ``kept`` is False when what it was asked and did was erased; ``doubted``
    when the store was restored from a backup, and nobody can tell all that it did after that was made."""

    run: RunRow
    kept: bool
    effects: tuple[EffectRow, ...]
    doubted: bool = False


class Family(NamedTuple):
    """All that a verdict looks at: the run in question, its family (the oldest first), the stored input of the run
    (None when it was erased) and of what joined it, the names of their attachments that are gone, and the effects that
    stay unknown, since a person gave them up."""

    run: RunRow
    members: tuple[Member, ...]
    input: str | None
    steers: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    given_up: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEffect:
    """One recorded call, and what a replay would ``do`` about an equal one.

    ``effect`` is its class, ``at`` the instant at which it came to its ``state``. Calls of the other runs of the
    family are listed where they were started.
    """

    id: str
    run: str
    tool: str
    effect: str
    state: str
    at: datetime | None
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayVerdict:
    """May the run be replayed? Printed, it is a line for each effect.

    ``safe``: no write of the family was started, it may run. ``guarded``: writes were started and all are settled, or
    may have been after a backup that was restored, it runs with ``force`` only, and then under guard. ``blocked``:
    ``reasons`` say what to settle first.
    """

    run: str
    kind: Kind
    reasons: tuple[str, ...]
    effects: tuple[ReplayEffect, ...]
    time_zone: str | None = None
    accepted_at: datetime | None = None

    def __str__(self) -> str:
        lines = [f"verdict: {self.kind} ({'; '.join(self.reasons)})"]
        names, classes = (max((len(c) for c in column), default=0) for column in self._columns())
        states = [self._state(e) for e in self.effects]
        width = max((len(s) for s in states), default=0)
        for effect, state in zip(self.effects, states, strict=True):
            stands = f"{state:<{width}}   " if state else ""
            whose = "" if effect.run == self.run else f" (run {effect.run})"
            lines.append(f" {effect.tool:<{names}}  {effect.effect:<{classes}}  {stands}{effect.do}{whose}")
        return "\n".join(lines)

    def _columns(self) -> tuple[list[str], list[str]]:
        return [e.tool for e in self.effects], [e.effect for e in self.effects]

    def _state(self, effect: ReplayEffect) -> str:
        """Nothing for what is free to repeat, whatever became of it."""
        if effect.effect in ("read", "steps"):
            return ""
        if effect.at is None:
            return effect.state
        zone = clock.here(self.time_zone)
        at, day = (None if t is None else t.astimezone(zone) for t in (effect.at, self.accepted_at))
        assert at is not None
        same_day = day is not None and at.date() == day.date()
        return f"{effect.state} {at:%H:%M:%S}" if same_day else f"{effect.state} {at:%Y-%m-%d %H:%M:%S}"


def verdict(family: Family) -> ReplayVerdict:
    """The verdict over a family: what was *started* counts, not what answered."""
    run = family.run
    started = sum(e.is_write and e.attempt > 0 for m in family.members for e in m.effects)
    doubted = tuple(doubt(m.run.id) for m in family.members if m.doubted)
    kind: Kind = "blocked"
    reasons = tuple(_blockers(family))
    if not reasons and (started or doubted):
        kind = "guarded"
        count = f"{started} write effect{'s were' if started > 1 else ' was'} started, all settled"
        reasons = (*((count,) if started else ()), *doubted)
    elif not reasons:
        kind, reasons = "safe", ("no write effect was started",)
    own = [e for m in family.members if m.run.id == run.id for e in m.effects]
    others = [e for m in family.members if m.run.id != run.id for e in m.effects if e.is_write and e.attempt > 0]
    return ReplayVerdict(
        run=run.id, kind=kind, reasons=reasons, time_zone=run.zone, accepted_at=clock.from_micros(run.accepted_at),
        effects=tuple(_line(e, kind != "safe", e.id in family.given_up) for e in (*own, *others)),
    )  # fmt: skip


def doubt(run: str) -> str:
    return f"the store was restored from a backup, and nobody knows what run {run} did after that was made"


def _blockers(family: Family) -> Iterator[str]:
    """What must be settled before anybody can tell what a replay would do."""
    if family.input is None:
        yield f"the input of run {family.run.id} is gone: its session was deleted"
    for name in family.gone:
        yield f"the attachment {name!r} of run {family.run.id} is gone"
    for run, kept, effects, _ in family.members:
        if run.state == "joined":
            yield f"run {run.id} is joined: it is part of run {run.host}, and that one can be replayed or forked"
            continue
        if run.state not in lifecycle.ENDED:
            yield f"run {run.id} is {run.state}: {_UNFINISHED.get(run.state, 'wait for it, or cancel it')}"
            continue
        for effect in effects:
            if effect.id in family.given_up:
                yield f"whether {effect.tool} of run {run.id} happened was given up and stays unknown: begin a new run"
            elif effect.state in ("started", "unknown"):
                how = f"ondol effects resolve {effect.id} --happened|--not-happened --evidence TEXT --by NAME"
                yield f"{effect.tool} of run {run.id} may have happened: settle it ({how})"
        if not kept and run.id != family.run.id and any(e.is_write and e.attempt > 0 for e in effects):
            yield f"what run {run.id} did is gone, and belongs to it too: its session was deleted"


_UNFINISHED = {
    "waiting": "decide its asks, or cancel it",
    "parked": "resume it, fail it, or cancel it",
}


def _line(effect: EffectRow, guarded: bool, given_up: bool) -> ReplayEffect:
    at = effect.ended_at or effect.started_at
    return ReplayEffect(
        id=effect.id, run=effect.run, tool=effect.tool, effect=effect.effect, state=effect.state,
        at=None if at is None else clock.from_micros(at),
        do="blocks, since it was given up" if given_up else _what_a_replay_does(effect, guarded),
    )  # fmt: skip


def _what_a_replay_does(effect: EffectRow, guarded: bool) -> str:
    tool = effect.tool
    if effect.effect == "steps":
        return "free to repeat, but for the calls that it made"
    if not effect.is_write:
        return "free to repeat"
    if effect.reuses is not None and effect.state == "succeeded":
        return f"an equal call gets the outcome of {effect.reuses}, any other {tool} asks first"
    if effect.attempt == 0:
        asks = f"any {tool} asks first" if guarded else "runs as any other call"
        return f"was never started, {asks}"
    match effect.state:
        case "succeeded":
            return f"an equal call gets this outcome, any other {tool} asks first"
        case "started" | "unknown":
            return "blocks until it is settled"
        case _:
            return f"nothing happened, any {tool} asks first"


def needs(verdict: ReplayVerdict, *, forced: bool) -> str | None:
    """Why a replay under this verdict is refused, with the next move; None if it may run."""
    run = verdict.run
    match verdict.kind:
        case "safe":
            return None
        case "guarded" if forced:
            return None
        case "guarded":
            why = f"run {run} cannot be replayed just so ({verdict.reasons[0]})"
            return f"{why}: force it with a name and a reason, or fork it"
        case _:
            return f"run {run} cannot be replayed: {'; '.join(verdict.reasons)}"


def lag(state: State, accepted_at: int) -> int:
    """Microseconds by which the clock that a run shows is behind: its time begins where the recorded one did."""
    began = state.origin.clock if state.origin is not None else None
    return 0 if began is None else accepted_at - began


# --- forks ------------------------------------------------------------------------------------------------------


def fork_blockers(family: Family) -> tuple[str, ...]:
    """What must be settled before the run can be forked. What other members do is no matter: a fork is a way of its
    own, which a person takes."""
    own = tuple(m for m in family.members if m.run.id == family.run.id)
    return tuple(_blockers(family._replace(members=own)))


def last_fork_step(state: State) -> int:
    """The last step from which the run can be forked: its last one, or the one that would follow it."""
    answers = [e for e in state.effects if e.message == state.last_answer]
    told = state.answered is None and all(e.state in ("succeeded", "failed", "denied", "expired") for e in answers)
    return max(1, state.step + told)


class Shared(NamedTuple):
    """What a fork has of the run: entries as they are written for it, the state they lead to, the sequence below
    which history was shown, the instant that was shown, and the first step whose notes for the memory nobody keeps."""

    entries: tuple[events.Entry, ...]
    state: State
    history: int | None
    clock: int | None
    remembers: int


def shared(run: str, batches: Sequence[Batch], reused: Mapping[int, str], at_step: int) -> Shared:
    """The steps of the run before ``at_step``. ``reused`` names, by call, the effects whose outcome those have.

    Messages that joined for the step ``at_step`` were said before it: its context is shared, then.
    """
    whole, entries, history = State(), list[events.Entry](), None
    built = (e for b in batches for e in b.entries if isinstance(e, events.ContextBuilt))
    contexts = at_step + any(e.steers for e in built if e.step == at_step)
    for batch in batches:
        for entry in batch.entries:
            whole = apply(whole, entry, batch.at)
            if history is None and whole.shown is not None:
                history = whole.shown.history
            if (kept := _kept(entry, whole, reused, at_step, contexts)) is not None:
                entries.append(kept)
    carried = whole.origin.steers if whole.origin is not None else 0
    state = apply(State(), events.RunOrigin(of=run, at_step=at_step, steers=carried))
    for entry in entries:
        state = apply(state, entry)
    shown = state.shown
    remembers = at_step if whole.status == "completed" else min(at_step, whole.remembers_from)
    if shown is None:
        return Shared(tuple(entries), state, history, None, remembers)
    return Shared(tuple(entries), state, shown.history, shown.clock, remembers)


def _kept(
    entry: events.Entry, state: State, reused: Mapping[int, str], at_step: int, contexts: int
) -> events.Entry | None:
    """The entry as the fork has it; None for what is not of the shared steps, or is about how they came about.

    Contexts are shared before the step ``contexts``.
    """
    match entry:
        case events.ModelCompleted(step=step) if step < at_step:  # the run has paid for it
            return events.ModelCompleted(
                step=step, message=entry.message, stop=entry.stop, model=entry.model, asked=entry.asked
            )
        case events.ContextBuilt(step=step) if step < contexts:
            return replace(entry, told=[])  # the notes of another session are not told by this one
        case events.ContextCompacted(step=step) if step < contexts:  # the run has paid for it
            unpaid: dict[str, Any] = asdict(events.Spent())
            return replace(entry, **unpaid)
        case events.StepStarted(step=step) | events.ModelStarted(step=step):
            return entry if step < contexts else None
        case events.StepCompleted(step=step):
            return entry if step < at_step else None
        case events.EffectPlanned(call=call) if state.effects[call].step < at_step:
            return replace(entry, ask=None, reuses=reused[call])
        case events.EffectSucceeded(call=call) if state.effects[call].step < at_step:
            return replace(entry, by="recorded")
        case events.EffectFailed(call=call) | events.EffectAbandoned(call=call) | events.EffectExpired(call=call):
            return entry if state.effects[call].step < at_step else None
        case events.AskDecided(call=int(call), decision="approve" | "deny" | "answer"):
            return entry if state.effects[call].step < at_step else None
        case events.AskOpened(ask_kind="question", call=int(call)):
            return entry if state.effects[call].step < at_step else None
        case events.AskExpired(ask=ask):
            asked = (state.effects[q.call].step for q in state.questions if q.ask == ask)
            return entry if any(step < at_step for step in asked) else None
        case _:
            return None


# --- what becomes of a call -------------------------------------------------------------------------------------


def recorded(members: Sequence[Member]) -> tuple[Recorded, ...]:
    """The successes of a family that equal calls may get. Each happened once, so each is there once: what only reused
    the outcome of another is not, and what failed did not happen."""
    return tuple(
        Recorded(e.id, e.tool, values.digest(values.loads(e.arguments)))
        for m in members
        for e in m.effects
        if e.is_write and e.attempt > 0 and e.state == "succeeded"
    )


@dataclass(frozen=True, slots=True)
class Free:
    """As of any other run."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """It gets the outcome of this effect, and touches nothing."""

    effect: str


@dataclass(frozen=True, slots=True)
class MakeUp:
    """It gets a result that says that it was made up, and touches nothing."""


@dataclass(frozen=True, slots=True)
class Asks:
    """A person decides, whatever its tool says."""

    why: str


Ruling: TypeAlias = Free | Reuse | MakeUp | Asks


def rule(state: State, tool: str, arguments: str, *, taken: Set[str]) -> Ruling:
    """What becomes of a write that is about to be planned. ``arguments`` is their hash; ``taken`` holds the effects
    whose outcome went to calls that are not in ``state`` yet."""
    origin = state.origin
    if origin is None:
        return Free()
    match origin.effects:
        case "free":
            return Free()
        case "stub":
            return MakeUp()
        case "run":
            return Asks(f"it is a write in a fork of run {origin.of}")
        case "guard" | "reuse":
            for effect, of_tool, of_arguments in state.pool:
                if (of_tool, of_arguments) == (tool, arguments) and effect not in taken:
                    return Reuse(effect)
    if origin.effects == "reuse":
        return Free()
    return Asks(f"this is a replay of run {origin.of}, in which no equal call succeeded that was not reused yet")
