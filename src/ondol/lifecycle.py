"""Where may a run go, and what does it do next?

``next_action`` is the whole lifecycle after the claim: it looks at the fold of the journal and names one action of a
closed union. The runner performs it and writes down what came of it; then the question is asked again. A first run,
a restart and a resumption ask the same question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from ondol import effects
from ondol.errors import EndCode, ModelErrorKind, model_code
from ondol.journal import Question, State
from ondol.limits import Bounds, reached

#: These runs hold up the ones behind them in their session's queue.
UNFINISHED = ("queued", "running", "waiting")
#: Nothing more happens to the session by these runs.
ENDED = ("completed", "failed", "cancelled", "expired")
#: Nobody can do anything to these runs. (A joined one shares the end of its host.)
SETTLED = (*ENDED, "joined")

MAX_DEATHS = 3  # processes that may die at one step before the run is parked
SUSPECT_DEATHS = 2  # from here on the run is driven alone, so that it takes no other run with it


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Write down what the next model call will see (T2)."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model, not before the instant ``after`` (microseconds since 1970)."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Settle:
    """Write these down before anything new begins: a sibling's unknown outcome decides what may start."""

    work: tuple[tuple[int, effects.Verdict], ...]


@dataclass(frozen=True, slots=True)
class Advance:
    """Work on these calls, each by its verdict. They do not wait for each other."""

    work: tuple[tuple[int, effects.Verdict], ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Calls are in flight and nothing else can be done until one ends."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Every call has an outcome, an open ask, or is held behind an unknown sibling (T6)."""


@dataclass(frozen=True, slots=True)
class Park:
    """It cannot go on with the code of this process: an operator's word is needed (T6's twin)."""

    why: str


@dataclass(frozen=True, slots=True)
class Commit:
    """The answer is final: make it part of the session (T8)."""


@dataclass(frozen=True, slots=True)
class End:
    """End the run without a commit (T9)."""

    status: Literal["failed", "cancelled", "expired"]
    code: EndCode = "cancelled"
    message: str = ""
    retryable: bool = False


Action: TypeAlias = BuildContext | CallModel | Settle | Advance | Wait | Suspend | Park | Commit | End


def next_action(
    state: State,
    tools: Mapping[str, effects.Rules],
    *,
    busy: Set[int],
    now: int,
    bounds: Bounds,
    park_missing: bool = False,
    changed: Mapping[int, str] = MappingProxyType({}),
    steered: bool = False,
) -> Action:
    """The next action of a claimed run. ``busy`` holds the calls that this process is working on.

    ``park_missing``: a call whose tool is gone parks the run, instead of failing. ``changed`` holds tools of steps
    whose code does not fit what is recorded, and why. ``steered``: a message waits to join the run, which it does with
    the next context; an answer is not final before, as long as the run may call its model again.
    """
    if state.cancel:
        return Wait() if busy else End("cancelled")
    if state.gave_up is not None:
        tool = state.effects[state.gave_up].tool
        return Wait() if busy else End("failed", "unknown_effect", f"whether {tool!r} happened is unknown, given up")
    if state.expired is not None:
        return Wait() if busy else End("expired")
    if state.without_outcome:
        return _advance(state, tools, busy, now, park_missing, changed)
    if state.answered is not None:
        return BuildContext() if steered and reached(state, bounds, now) is None else Commit()
    if state.model_error is not None:
        return _model_gave_up(state)
    if (limit := reached(state, bounds, now)) is not None:
        return End("failed", limit.code, limit.message, retryable=True)
    if "compaction" in state.asks.values():
        return Suspend()
    if state.overflow is not None and state.overflow.decision == "fail":
        return End("failed", "limit_context", f"{state.overflow.by} ended the run: its next request was too large")
    if state.context is None or steered:
        return BuildContext()
    if state.context.over:
        return _too_long(state.context.over)
    return CallModel(after=state.retry_at or 0)


def _advance(
    state: State,
    tools: Mapping[str, effects.Rules],
    busy: Set[int],
    now: int,
    park_missing: bool,
    changed: Mapping[int, str],
) -> Action:
    unknown = sibling_unknown(state, busy)
    work: list[tuple[int, effects.Verdict]] = []
    stuck: str | None = None
    for effect in state.open_effects:
        root = effect if effect.parent is None else state.root(effect)
        if root.ordinal in busy:
            continue
        if root.ordinal in changed:
            stuck = changed[root.ordinal]
            continue
        rules = tools.get(root.tool)
        is_left = (rules is None and park_missing) or (rules is not None and rules.effect == "steps")
        if effect.parent is not None:
            if is_left:
                continue  # for the body of its parent, when that is entered again
            rules = None
        waits = effect.effect == "steps" and _waits(state, effect.ordinal, unknown, any_step=not is_left)
        verdict = effects.verdict(
            effect, rules, sibling_unknown=unknown, now=now, park_missing=park_missing, waits=waits
        )
        if isinstance(verdict, effects.Park):
            stuck = verdict.reason
        elif not isinstance(verdict, effects.Hold):
            work.append((effect.ordinal, verdict))
    known = tuple([w for w in work if isinstance(w[1], effects.Known)])
    if known:
        return Settle(known)
    if work:
        return Advance(tuple(work))
    if busy:
        return Wait()
    return Suspend() if stuck is None else Park(stuck)


def sibling_unknown(state: State, busy: Set[int]) -> bool:
    """Is the outcome of a call unknown, or about to be?

    What a tool of steps had started when its process died is looked at by its body, once that is entered again.
    """
    for e in state.open_effects:
        if e.state == "unknown":
            return True
        if e.state == "started" and e.parent is not None and state.root(e).ordinal not in busy:
            return True
    return False


def _waits(state: State, call: int, unknown: bool, *, any_step: bool) -> bool:
    """A tool of steps cannot go on: the step that it is at is held (or, with ``any_step``, has no outcome)."""
    return any(
        any_step
        or isinstance(step, Question)
        or effects.is_held(step, sibling_unknown=unknown)
        or (step.effect == "steps" and _waits(state, step.ordinal, unknown, any_step=any_step))
        for step in state.steps(call)
        if not step.has_outcome
    )


def is_ending(state: State) -> bool:
    """It was decided that the run ends: nothing new begins in it."""
    return state.cancel is not None or state.gave_up is not None or state.expired is not None


#: Provider trouble that asking again may cure.
_RETRIED: frozenset[ModelErrorKind] = frozenset(
    {"rate_limited", "overloaded", "unavailable", "server", "timeout", "connection"}
)
#: Not worth asking again at once, but the run can go on once somebody has paid, or given the right key.
_GOES_ON_LATER: frozenset[ModelErrorKind] = frozenset({"quota", "auth"})
MAX_MODEL_ATTEMPTS = 4
_BACKOFF = 0.5  # seconds before the second attempt; doubles
_BACKOFF_LIMIT = 30.0  # seconds
LONGEST_WAIT = 60.0  # seconds; where a provider asks for more the next model takes over, or the run ends for now


def retry_delay(kind: ModelErrorKind, attempt: int, retry_after: float | None, run: str) -> float | None:
    """Seconds until the next attempt of a model call, or None to give up.

    The jitter (up to a half) is derived from the run, so that many runs do not come back at once, and the same
    journal always gives the same delay.
    """
    if kind not in _RETRIED or attempt >= MAX_MODEL_ATTEMPTS:
        return None
    if retry_after is not None:
        return retry_after if retry_after <= LONGEST_WAIT else None
    base = min(_BACKOFF * 2.0 ** (attempt - 1), _BACKOFF_LIMIT)
    jitter = hashlib.sha256(f"{run}|{attempt}".encode()).digest()[0] / 255
    return base * (1 + jitter / 2)


def fallback(kind: ModelErrorKind, candidate: int, models: int) -> int | None:
    """Which of the agent's ``models`` takes over when it is no use to ask the ``candidate`` again; None: nobody.

    Another model is asked only where this one could not answer, never for another opinion on the same request.
    """
    following = candidate + 1
    return following if following < models and (kind in _RETRIED or kind in _GOES_ON_LATER) else None


def _too_long(over: str) -> End:
    if over == "window":
        why = "this turn alone is too long for the model, without anything of the session's history"
        return End("failed", "model_context_overflow", why)
    why = (
        "the request is larger than the agent's budget, and what is left of it may not go: raise "
        "ContextPolicy(budget=...) and send the same operation again"
    )
    return End("failed", "limit_context", why, retryable=True)


def _model_gave_up(state: State) -> End:
    error = state.model_error
    assert error is not None
    kind: str = error.error
    retryable = kind in _RETRIED or kind in _GOES_ON_LATER
    return End("failed", model_code(kind), error.message, retryable=retryable)
