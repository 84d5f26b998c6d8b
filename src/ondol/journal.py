"""Given what is written down, where does this run stand?

``fold`` goes over the entries and changes nothing else. What it returns is all that ``lifecycle.next_action`` sees.
On disk the entries of one transaction are one row (a *batch*): they became durable together. Entry ``i`` of a batch
has the sequence ``batch.seq + i``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, assert_never

from ondol import checksums, events, usage, values
from ondol.effects import Effect, EffectState
from ondol.errors import StoreCorrupt, StoreTooNew
from ondol.usage import Usage
from ondol.view import View

VERSION = 1  # of the entries on disk
PAUSE = 5 * 60 * 1_000_000  # microseconds without work or word, after which the model is told the time anew

RunStatus: TypeAlias = Literal[
    "queued", "running", "waiting", "parked", "completed", "failed", "cancelled", "expired", "joined"
]


class Batch(NamedTuple):
    """The entries of one transaction. ``at`` is microseconds since 1970."""

    seq: int
    fence: int
    at: int
    entries: tuple[events.Entry, ...]


class Shown(NamedTuple):
    """What a context shows beside the run's own messages; see ``events.ContextBuilt``."""

    clock: int
    since: int | None
    zone: str | None
    history: int
    definition: str
    start: int = 0
    view: View = View()
    carried: str = ""
    recalled: tuple[tuple[Any, ...], ...] = ()  # facts of the memory
    recalled_by: tuple[str, ...] = ()  # the method that found each; empty: words found all


class Recorded(NamedTuple):
    """A recorded success of another run that an equal call may get: effect, tool, hash of the arguments."""

    effect: str
    tool: str
    hash: str


class Question(NamedTuple):
    """What a tool of steps asked a person, as the journal tells it. ``value`` is the answer, encoded, of ``at``."""

    ask: str
    call: int
    place: int
    hash: str
    has_outcome: bool = False
    value: Any = None
    at: int = 0


@dataclass(frozen=True)
class State:
    """Where a run stands. ``step`` counts recorded model answers; ``answered`` is the ordinal of a final answer."""

    status: RunStatus = "queued"
    seq: int = 0  # of the last entry
    fence: int = 0
    step: int = 0
    attempt: int = 1  # of the next model call, with this model
    candidate: int = 0  # the place of that model in the agent's list
    retry_at: int | None = None
    model_error: events.StepFailed | None = None
    context: events.ContextBuilt | None = None  # of the next model call; None: it must be built
    shown: Shown | None = None  # by the last context
    told: tuple[tuple[str, ...], ...] = ()
    next_message: int = 2  # ordinal 0 is kept for a note before the input, which is 1
    answered: int | None = None
    last_answer: int = 0
    effects: tuple[Effect, ...] = ()
    without_outcome: tuple[int, ...] = ()  # the ordinals of those
    asks: Mapping[str, events.AskKind] = field(default_factory=dict)  # the open ones
    questions: tuple[Question, ...] = ()  # of tools of steps, also those that were answered
    expired: str | None = None  # the ask of a question that nobody answered in time, and that has no default
    patches: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # session state, by call
    memory: Mapping[int, list[list[Any]]] = field(default_factory=dict)  # what the commit changes of it, by call
    pins: tuple[str, ...] = ()  # by tools
    overflows: int = 0  # how often a person was asked what becomes of a request that is too large
    overflow: events.AskDecided | None = None  # the last word about that
    cancel: events.RunCancelling | None = None
    gave_up: int | None = None  # the call whose unknown outcome a person gave up on
    waited: bool = False  # since the last context: the clock it showed is old
    stop: str = ""  # why the last answer ended, where that is not the usual reason
    last_step_open: bool = False  # the last answer's step is not marked completed
    usage: Mapping[str, Usage] = field(default_factory=dict)  # by model
    at: int = 0  # of the last entry, in microseconds since 1970
    worked: int = 0  # microseconds in which a process worked on it; see ``worked_at``
    in_tools: int = 0  # of those, with calls under way
    lost_attempts: Mapping[int, int] = field(default_factory=dict)  # by call, that may act yet, of the last holder
    measured: tuple[int, int] | None = None  # what a provider counted, last, and what that had been estimated at
    too_long: events.StepFailed | None = None  # the last request that was, and what may be sent since
    compacted: events.ContextCompacted | None = None  # the last time that less was shown
    summarised: events.ContextCompacted | None = None  # the last time that turns went, so that a summary was made
    summarising: bool = False  # the model is asked for a summary, and nobody has heard what came of it
    lost: int = 0  # calls of the model at this step that a process may have made, of which nobody heard any more
    origin: events.RunOrigin | None = None  # of a replay or a fork
    pool: tuple[Recorded, ...] = ()  # what its calls may still reuse
    restored: tuple[int, int] | None = None  # from a backup: the last instant that it knows of, and that of the restore

    @property
    def fits(self) -> int | None:
        """Estimated tokens that a request may have, since one was too long."""
        return None if self.too_long is None else self.too_long.fits

    def but(self, **changes: Any) -> State:
        """The state with other values in these fields."""
        changed = object.__new__(State)
        object.__setattr__(changed, "__dict__", self.__dict__ | changes)  # copied as a whole, and not field by field
        return changed

    def draft(self) -> _Draft:
        """A copy that changes itself."""
        copied = object.__new__(_Draft)
        object.__setattr__(copied, "__dict__", self.__dict__.copy())
        return copied

    @property
    def open_effects(self) -> tuple[Effect, ...]:
        return tuple([self.effects[call] for call in self.without_outcome])

    @property
    def of_last_step(self) -> Iterator[Effect]:
        """The calls of the last answer, and those that they made, from the last one back."""
        return itertools.takewhile(lambda e: e.step == self.step, reversed(self.effects))

    @property
    def calls_of_step(self) -> int:
        """How many calls the last answer made, until the next context: their results follow on it."""
        return self.next_message - self.last_answer - 1

    @property
    def calls_open(self) -> bool:
        """Has a call of the last answer no outcome yet?"""
        return bool(self.without_outcome) and self.effects[self.without_outcome[-1]].step == self.step

    def worked_at(self, now: int) -> int:
        """Microseconds that processes have worked on the run so far. Waiting, of whatever kind, is no work."""
        return self.worked + (max(0, now - self._works_from) if self.status == "running" else 0)

    def in_tools_at(self, now: int) -> int:
        """Of those, the microseconds with calls under way; several at once count once."""
        return self.in_tools + (max(0, now - self._works_from) if self.status == "running" and self.calls_open else 0)

    @property
    def _works_from(self) -> int:
        """The instant of the last entry, or the deadline of a lost attempt where all calls wait for such a one."""
        if not self.lost_attempts:
            return self.at
        entered = {e.parent for e in self.open_effects}  # tools of steps: what they called tells
        left = [e for e in self.open_effects if e.ordinal not in entered and e.state not in ("asked", "unknown")]
        if any(e.attempt != self.lost_attempts.get(e.ordinal) for e in left):
            return self.at
        return max(self.at, min((e.deadline for e in left), default=0))

    def expected_input(self) -> int:
        """Tokens of input that the next model call is expected to take; 0 where its context is not written down."""
        if self.context is None:
            return 0
        counted, estimated = self._measured
        return self.context.tokens * counted // estimated

    def estimated(self, tokens: int) -> int:
        """What may be estimated for a request that a provider is to count that many tokens for, at most.

        That it counted less than estimated is believed by half: the next request is made of other things.
        """
        counted, estimated = self._measured
        return tokens * estimated // max(counted, (counted + estimated + 1) // 2)

    def counted(self, estimated: int) -> int:
        """What a provider is believed to count for a request that is estimated at that many tokens."""
        counted, before = self._measured
        return estimated * max(counted, (counted + before + 1) // 2) // before

    @property
    def _measured(self) -> tuple[int, int]:
        """What a provider counted, and what that had been estimated at, as far as it is believed."""
        counted, estimated = self.measured or (1, 1)
        return max(min(counted, 4 * estimated), estimated // 4, 1), estimated

    def path(self, effect: Effect) -> tuple[int, ...]:
        """The calls from the one that the model asked for down to this one. Only tools of steps make it longer."""
        above = () if effect.parent is None else self.path(self.effects[effect.parent])
        return (*above, effect.ordinal)

    def root(self, effect: Effect) -> Effect:
        """The call of the model that this one is part of."""
        return effect if effect.parent is None else self.effects[self.path(effect)[0]]

    def steps(self, call: int) -> tuple[Effect | Question, ...]:
        """What a tool of steps recorded, in order: each was done, or is about to be, at its place."""
        calls = [e for e in self.effects[call + 1 :] if e.parent == call]  # they come after it
        if not self.questions:
            return tuple(calls)
        asked = [q for q in self.questions if q.call == call]
        return tuple(sorted([*calls, *asked], key=lambda step: step.place or 0))

    def patch(self, before: Effect | None = None) -> dict[str, Any]:
        """Changes to the session's state, folded in call order; a tool of steps comes after the calls that it made.

        With ``before`` only what that call certainly comes after: earlier steps of the run, and earlier calls of its
        own tool of steps.
        """
        merged: dict[str, Any] = {}
        if not self.patches:
            return merged
        for effect in sorted((self.effects[call] for call in self.patches), key=lambda e: (*self.path(e), math.inf)):
            if before is None or self._precedes(effect, before):
                merged |= self.patches[effect.ordinal]
        return merged

    def remembered(self) -> list[list[Any]]:
        """What the commit changes of the memory, in call order. What a fork shares of a run that completed is that
        one's to keep."""
        shared = self.remembers_from
        own = (call for call in sorted(self.memory) if self.effects[call].step >= shared)
        return [change for call in own for change in self.memory[call]]

    @property
    def remembers_from(self) -> int:
        """The first step whose notes for the memory no other run keeps."""
        if self.origin is None:
            return 0
        return (self.origin.at_step or 0) if self.origin.remembers is None else self.origin.remembers

    def _precedes(self, effect: Effect, other: Effect) -> bool:
        if effect.step != other.step:
            return effect.step < other.step
        return self.root(effect).ordinal == self.root(other).ordinal and effect.ordinal < other.ordinal


class _Draft(State):
    """A state while a batch is folded into it: one copy is made for all of its entries."""

    def but(self, **changes: Any) -> State:
        self.__dict__.update(changes)
        return self

    def done(self) -> State:
        object.__setattr__(self, "__class__", State)
        return self


class Foreseen(NamedTuple):
    """What ``apply`` gave before the entry was written. It does not depend on the instant."""

    before: State
    entry: events.ModelCompleted | events.EffectSucceeded | events.EffectFailed
    after: State


def fold(batches: Iterable[Batch], state: State | None = None, foreseen: Foreseen | None = None) -> State:
    """``foreseen`` is not worked out again, if it is what comes next."""
    state = state or State()
    for batch in batches:
        worked, in_tools = _worked_until(state, batch)
        entries = batch.entries
        if foreseen is not None and state is foreseen.before and entries[0] is foreseen.entry:
            state, entries = foreseen.after, entries[1:]
        draft = state.draft()
        for entry in entries:
            apply(draft, entry, batch.at)
        last = batch.seq + len(batch.entries) - 1
        draft.but(seq=last, fence=batch.fence, at=batch.at, worked=worked, in_tools=in_tools)
        state = draft.done()
    return state


def apply(state: State, entry: events.Entry, at: int = 0) -> State:
    """The state after one more entry, which was written at the instant ``at``."""
    match entry:
        case events.ContextBuilt(clock=clock):
            shown = state.shown
            if clock is not None:
                shown = Shown(
                    clock, entry.since, entry.zone, entry.history, entry.definition, entry.start, View(**entry.view),
                    entry.carried, tuple(tuple(r) for r in entry.recalled), tuple(entry.recalled_by),
                )  # fmt: skip
                if state.candidate and state.shown is not None and shown.definition != state.shown.definition:
                    state = state.but(candidate=0, attempt=1)  # the list may be another one
            return state.but(
                context=entry,
                shown=shown,
                told=state.told + tuple(tuple(t) for t in entry.told),
                next_message=state.next_message + bool(entry.note) + len(entry.steers),
                answered=None,  # it was final, and then a steer came
                waited=False,
            )
        case events.ContextCompacted():
            went = entry.view.get("since") != entry.was.get("since")
            return state.but(
                compacted=entry,
                summarising=False,
                summarised=entry if went else state.summarised,
                usage=_with_summary(state, entry),
            )
        case events.StepFailed(attempt=attempt, retry_at=retry_at, fallback=fallback):
            state = state.but(**_spent(state, entry), summarising=False)
            if fallback is not None:
                return state.but(candidate=fallback, attempt=1, retry_at=None)
            if entry.fits is not None:
                return state.but(too_long=entry, context=None, attempt=attempt + 1, retry_at=None)
            if retry_at is None:
                return state.but(model_error=entry)
            return state.but(attempt=attempt + 1, retry_at=retry_at)
        case events.ModelCompleted(message=message):
            return state.but(
                step=state.step + 1, attempt=1, retry_at=None, context=None, answered=message, last_answer=message,
                next_message=message + 1, last_step_open=True, stop=entry.stop, **_spent(state, entry),
            )  # fmt: skip
        case events.EffectPlanned(parent=int()):
            message, reply = private_messages(entry.call)
            planned = Effect(
                ordinal=entry.call, step=state.step, tool=entry.tool, effect=entry.effect, message=message, part=0,
                reply=reply, state="asked" if entry.ask else "planned", ask=entry.ask, parent=entry.parent,
                place=entry.place, hash=entry.hash, reuses=entry.reuses,
                doubted=_is_doubted(state, entry), at=at,
            )  # fmt: skip
            return _planned(state, planned)
        case events.EffectPlanned():
            reply = state.next_message  # the results follow on their answer, in the order of its calls
            part = reply - state.last_answer - 1
            planned = Effect(
                ordinal=entry.call, step=state.step, tool=entry.tool, effect=entry.effect, message=state.last_answer,
                part=part, reply=reply, state="asked" if entry.ask else "planned", ask=entry.ask, reuses=entry.reuses,
                doubted=_is_doubted(state, entry), at=at,
            )  # fmt: skip
            return _planned(state, planned, answered=None, next_message=reply + 1)
        case events.EffectStarted(call=call, attempt=attempt, deadline=deadline, presumed=presumed):
            first = state.effects[call].first_started or (state.restored[0] if presumed and state.restored else at)
            begun = {"state": "started", "attempt": attempt, "deadline": deadline, "first_started": first, "began": at}
            return _set(state, call, **begun, doubted=False)
        case events.EffectSucceeded(call=call, patch=patch, pins=pins):
            state = _ends(state, call, "succeeded", at)
            if entry.memory:
                state = state.but(memory={**state.memory, call: entry.memory})
            if pins:
                state = state.but(pins=(*state.pins, *pins))
            return state.but(patches={**state.patches, call: patch}) if patch else state
        case events.RunOrigin(pool=pool, steers=steers):
            recorded = tuple(Recorded(*r) for r in pool)
            return state.but(origin=entry, pool=recorded, next_message=state.next_message + steers)
        case events.RunAccepted() | events.RunReplayed() | events.SessionCommitted() | events.StepStarted():
            return state
        case events.ModelStarted(summary=summary):
            return state.but(summarising=True) if summary else state
        case events.StepCompleted():
            return state.but(last_step_open=False)
        case events.RunQueued(why=why, cut=cut):
            broken = (state.context is not None or state.summarising) and (cut or why == "recovered")
            waited = _has_waited(state, at)
            state = state.but(status="queued", lost=state.lost + broken, summarising=False, waited=waited)
            return _asks_anew(state) if why == "retried" else state
        case events.RunStarted() | events.RunResumed():
            lost = {e.ordinal: e.attempt for e in state.open_effects if e.deadline > at}
            return state.but(status="running", waited=_has_waited(state, at), lost_attempts=lost)
        case events.RunWaiting():
            return state.but(status="waiting", waited=True)
        case events.RunParked(ask=ask, ask_kind=kind, restored=restored):
            broken = (state.context is not None or state.summarising) and state.status == "running"
            if restored:
                state = _restored(state, at)
            return state.but(
                status="parked", waited=True, context=None, asks={**state.asks, ask: kind}, lost=state.lost + broken
            )
        case events.RunJoined():
            return state.but(status="joined")
        case events.RunCancelling():
            return state.but(cancel=entry)
        case events.RunCompleted():
            return state.but(status="completed")
        case events.RunFailed():
            return _ended(state).but(status="failed", waited=True, overflow=None)
        case events.RunExpired():
            return _ended(state).but(status="expired")
        case events.RunCancelled():
            return _ended(state).but(status="cancelled")
        case events.EffectFailed(call=call):
            return _ends(state, call, "failed", at)
        case events.EffectUnknown(call=call, ask=ask, seen=seen):
            deadline = 0 if seen else state.effects[call].deadline
            state = _set(state, call, state="unknown", ask=ask, deadline=deadline)
            return state.but(asks={**state.asks, ask: "unknown_effect"})
        case events.EffectResolved(call=call, outcome=outcome):
            return _resolved(state, call, outcome)
        case events.EffectAbandoned(call=call):
            return _ends(state, call, "abandoned", at)
        case events.EffectExpired(call=call):
            return _ends(state, call, "expired", at)
        case events.AskOpened(ask=ask, ask_kind=kind, call=call, definition=definition):
            if definition and call is not None:
                state = _set(state, call, state="asked", ask=ask, vetted=definition)
            if entry.place is not None and call is not None:
                question = Question(ask, call, entry.place, entry.hash)
                state = state.but(questions=(*state.questions, question))
            overflows = state.overflows + (kind == "compaction")
            return state.but(asks={**state.asks, ask: kind}, overflows=overflows)
        case events.AskDecided(ask=ask):
            if state.asks.get(ask) == "compaction":
                return _closed(state, ask).but(overflow=entry)
            return _decided(_closed(state, ask), entry, at)
        case events.AskExpired(ask=ask, value=value, unanswered=unanswered):
            state = _closed(state, ask)
            return state.but(expired=ask) if unanswered else _answered(state, ask, value, at)
        case _:
            assert_never(entry)


def _without(pool: tuple[Recorded, ...], reused: str | None) -> tuple[Recorded, ...]:
    """Each recorded success serves one equal call."""
    return tuple(r for r in pool if r.effect != reused) if reused is not None else pool


def private_messages(call: int) -> tuple[int, int]:
    """The ordinals of the messages that hold a call which a tool of steps made, and its result.

    They are below zero: no model ever sees them, and they have no place in any conversation.
    """
    return -1 - 2 * call, -2 - 2 * call


def _has_waited(state: State, at: int) -> bool:
    """For a person, for its turn, or for a process: of one that died only the time tells."""
    return state.waited or 0 < state.at < at - PAUSE


def without_context(state: State) -> State:
    """As if the pending context had not been built."""
    return state.but(context=None)


def _worked_until(state: State, batch: Batch) -> tuple[int, int]:
    """The time of work, and of that in tools, until this was written. Nobody works for a holder that is gone."""
    held = batch.fence == state.fence or any(
        isinstance(e, events.RunQueued) and e.why == "released" for e in batch.entries
    )
    return (state.worked_at(batch.at), state.in_tools_at(batch.at)) if held else (state.worked, state.in_tools)


def used_with(
    state: State, entry: events.ModelCompleted | events.StepFailed | events.ContextCompacted
) -> Mapping[str, Usage]:
    """What the run has used with the model call that this entry ends."""
    if isinstance(entry, events.ContextCompacted):
        return _with_summary(state, entry)
    if state.origin is not None and entry.step < (state.origin.at_step or 0):
        return state.usage  # a step that a fork shares: the run that it is a fork of has paid for it
    return usage.with_call(state.usage, entry, state.lost, state.expected_input())


def _with_summary(state: State, entry: events.ContextCompacted) -> Mapping[str, Usage]:
    """What the run has used with the model call that made a summary, if one did."""
    return usage.with_call(state.usage, entry) if usage.model_of(entry) else state.usage


def _spent(state: State, entry: events.ModelCompleted | events.StepFailed) -> dict[str, Any]:
    """What a model call that ended changes of the state, however it ended."""
    used = used_with(state, entry)
    if used is state.usage:
        return {}
    measured = state.measured
    if entry.input and state.context is not None and state.context.tokens:
        measured = entry.input, state.context.tokens
    return {"usage": used, "lost": 0, "measured": measured}


def _set(state: State, call: int, /, **changes: Any) -> State:
    changed = state.effects[call]._replace(**changes)
    left = state.without_outcome
    if changed.has_outcome:
        left = tuple(o for o in left if o != call)
    return state.but(effects=(*state.effects[:call], changed, *state.effects[call + 1 :]), without_outcome=left)


def _ends(state: State, call: int, outcome: EffectState, at: int) -> State:
    """The instant is kept of what a tool of steps called: nothing else is asked for it, nor foreseen with one."""
    effect = state.effects[call]
    return _set(state, call, state=outcome, at=effect.at if effect.parent is None else at)


def _planned(state: State, planned: Effect, /, **changes: Any) -> State:
    return state.but(
        effects=(*state.effects, planned), without_outcome=(*state.without_outcome, planned.ordinal),
        pool=_without(state.pool, planned.reuses), **changes,
    )  # fmt: skip


def _ended(state: State) -> State:
    """Asks of an ended run are closed, but for those about what may have happened."""
    return state.but(asks={a: k for a, k in state.asks.items() if k == "unknown_effect"}, context=None)


def _closed(state: State, ask: str) -> State:
    return state.but(asks={a: k for a, k in state.asks.items() if a != ask})


def _restored(state: State, at: int) -> State:
    """Nobody knows what happened between the entry before and this one: each write may have been started meanwhile."""
    doubted = tuple(e._replace(doubted=True) if _may_be_lost(e) else e for e in state.effects)
    state = state.but(effects=doubted, restored=(state.at, at))
    return _asks_anew(state) if state.status == "failed" else state  # it would have gone on: as when it is retried


def _asks_anew(state: State) -> State:
    """All models had given up: it begins with the first again."""
    return state.but(model_error=None, attempt=1, retry_at=None, candidate=0)


def _is_doubted(state: State, entry: events.EffectPlanned) -> bool:
    """The run may have come here before, after the backup, and the call of that number have been this one."""
    return state.restored is not None and entry.effect not in ("read", "steps") and entry.reuses is None


def _may_be_lost(effect: Effect) -> bool:
    return effect.is_write and not effect.has_outcome and effect.state in ("planned", "asked", "approved")


def _answered(state: State, ask: str, value: Any, at: int) -> State:
    """Nothing changes for what is no question."""
    answered = (q._replace(has_outcome=True, value=value, at=at) if q.ask == ask else q for q in state.questions)
    return state.but(questions=tuple(answered))


def _decided(state: State, entry: events.AskDecided, at: int) -> State:
    if entry.call is None:
        return state
    match entry.decision:
        case "answer":
            return _answered(state, entry.ask, entry.value, at)
        case "approve":
            changes = {} if entry.arguments is None else {"arguments": entry.arguments}  # an earlier replacement stays
            return _set(state, entry.call, state="approved", doubted=False, at=at, **changes)  # a person's word
        case "deny":
            return _ends(state, entry.call, "denied", at)
        case _:
            return state  # an unknown: the entry ``effect.resolved`` beside it says what it means


def _resolved(state: State, call: int, outcome: str) -> State:
    match outcome:
        case "not_happened":  # a person allows the next attempt, with the same key
            return _set(state, call, state="approved", granted=state.effects[call].attempt)
        case "give_up" if state.status not in ("failed", "cancelled", "expired"):
            return _set(state, call, state="unknown").but(gave_up=call)
        case _:
            return state


def dumps(entries: Iterable[events.Entry]) -> str:
    """The entries of a batch as they are stored."""
    return values.dumps([events.to_json(e) for e in entries])


def check_whole(run: str, batches: Iterable[Batch], after: int, last: int) -> None:
    """Nothing is missing of what follows the entry ``after``, as far as the ``last`` one. Of a run that was erased
    there is nothing at all. Raises StoreCorrupt."""
    seq = None
    for batch in batches:
        if batch.seq != (after if seq is None else seq) + 1:
            break
        seq = batch.seq + len(batch.entries) - 1
    else:
        if seq in (None, last):
            return
    raise StoreCorrupt(f"run {run} lacks the entry behind {seq or after}: restore a backup (ondol db restore)")


def missing_messages(state: State, there: Set[int]) -> list[int]:
    """The ordinals of messages that were written, as the journal tells, and are not there. What a call came to when its
    run had ended, or ended with it, is told in no message."""
    ended = state.status in ("failed", "cancelled", "expired")
    written = set(range(1, state.next_message)).union(*((e.message, e.reply) for e in state.effects))
    return sorted(written - there - {e.reply for e in state.effects if ended or not e.has_outcome})


def loads(run: str, seq: int, fence: int, at: int, v: int, body: str, stored_sum: int) -> Batch:
    """A batch as it was written.

    Raises:
        StoreTooNew: it was written by a newer version. The run is left as it is.
        StoreCorrupt: it does not match its checksum.
    """
    if v > VERSION:
        raise StoreTooNew(f"run {run} was written by a newer version of Ondol (journal {v}): upgrade to go on with it")
    if checksums.of_batch(run, seq, fence, at, body) != stored_sum:
        raise StoreCorrupt(f"run {run}, entry {seq} does not match its checksum: restore a backup (ondol db restore)")
    try:
        entries = tuple(events.from_json(raw) for raw in values.loads(body))
    except (KeyError, TypeError) as error:
        raise StoreTooNew(f"run {run}, entry {seq} is of a kind that this version does not know: upgrade") from error
    return Batch(seq, fence, at, entries)
