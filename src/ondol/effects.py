"""May this tool call run now?

Plain rules over what is written down. ``verdict`` answers for a call that nobody is working on, ``after`` answers
when an attempt of this process ended without a result. Times are microseconds since 1970 and come in as data.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, NamedTuple, TypeAlias

from ondol.clock import JUMP
from ondol.events import EffectClass
from ondol.showing import counted

EffectState: TypeAlias = Literal[
    "planned", "asked", "approved", "started", "succeeded", "failed", "unknown", "denied", "abandoned", "expired"
]
#: The call has a result that the model can be told.
OUTCOMES: frozenset[str] = frozenset({"succeeded", "failed", "denied", "abandoned", "expired"})
MAX_ATTEMPTS = 3  # starts of one write effect without a person's word
_JUMP = JUMP // timedelta(microseconds=1)
GRACE = timedelta(seconds=10)  # how long a write in flight may go on after a cancel


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the operator declared about a tool, as far as repeating it is concerned."""

    effect: EffectClass = "read"
    has_check: bool = False
    key_ttl: timedelta | None = None


class Effect(NamedTuple):
    """One tool call, as the journal tells it.

    ``message`` and ``part`` locate the call in the answer, ``reply`` is the ordinal of its result's message.
    ``attempt`` counts starts; ``granted`` is the attempt at which a person last allowed another one.
    ``arguments`` is set only where a person replaced them. ``vetted`` is the digest of the agent's definition under
    which its approval was asked for again, because the tool had changed. A call that a tool of steps made has that
    tool's call as its ``parent``, its ``place`` among all that the parent recorded, and the ``hash`` of its arguments.
    """

    ordinal: int
    step: int
    tool: str
    effect: EffectClass
    message: int
    part: int
    reply: int
    state: EffectState
    attempt: int = 0
    granted: int = 0
    first_started: int = 0
    began: int = 0  # the last start
    deadline: int = 0
    ask: str | None = None
    arguments: dict[str, object] | None = None
    reuses: str | None = None  # the effect of another run whose outcome it has
    vetted: str = ""
    parent: int | None = None
    place: int | None = None
    hash: str = ""
    doubted: bool = False  # the store was restored from a backup: it may have been started after that was made
    at: int = 0  # planned, or approved; of what a tool of steps called, then when it had its outcome

    @property
    def has_outcome(self) -> bool:
        return self.state in OUTCOMES

    @property
    def is_write(self) -> bool:
        return self.effect not in ("read", "steps")


@dataclass(frozen=True, slots=True)
class Run:
    """Start the next attempt, not before the instant ``after`` (the deadline of a lost attempt; 0: at once)."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """Ask the tool's ``check`` what happened, not before ``after``: until then the lost attempt may still act.

    ``goes_on``: it is known to, as it goes on in this process though its time is over.
    """

    after: int = 0
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Presume:
    """It may have been started after the backup that the store comes from: write that down, and take it for lost."""


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """Nobody can tell what happened: hand it to a person."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It certainly did not happen, or repeating is of no use: tell the model."""

    reason: str


@dataclass(frozen=True, slots=True)
class Park:
    """The code changed under it, and the operator wants to be asked then: park the run."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Not now: it waits for a person, or for a sibling whose outcome is unknown."""


#: A call keeps the class under which it was planned, unless the operator has since corrected it to a stricter one.
_STRICTNESS: dict[EffectClass, int] = {"read": 0, "idempotent": 1, "once": 2, "steps": 3}


def _stricter(effect: Effect, rules: Rules) -> EffectClass:
    return max(effect.effect, rules.effect, key=_STRICTNESS.__getitem__)


Verdict: TypeAlias = Run | Check | Presume | OutcomeUnknown | Failed | Park | Hold
#: Verdicts that only have to be written down.
Known = OutcomeUnknown | Failed


def verdict(
    effect: Effect,
    rules: Rules | None,
    *,
    sibling_unknown: bool,
    now: int,
    park_missing: bool = False,
    waits: bool = False,
) -> Verdict:
    """What to do with a call that has no outcome and that nobody is working on.

    ``rules`` is None when no tool of that name exists any more; ``park_missing`` says what is done about it then.
    ``waits``: a tool of steps that cannot go on, because one of its own steps is held.
    """
    if waits or effect.state in ("asked", "unknown"):
        return Hold()
    if effect.state == "started":
        return _lost(effect, rules, now)
    if effect.doubted:
        return Presume()
    # Planned or approved: certainly not done, but for an attempt whose end nobody saw: that may act until its deadline.
    if rules is None:
        gone = f"the tool {effect.tool!r}" if effect.parent is None else "the tool of steps that made this call"
        reason = f"{gone} is no longer available"
        return Park(reason) if park_missing else Failed(reason)
    # (What is recorded of a tool of steps means something to a tool of steps only.)
    if rules.effect != effect.effect and (effect.effect == "steps" or _stricter(effect, rules) == rules.effect):
        return Failed(f"{effect.tool} is declared {rules.effect} now, not {effect.effect}: call it again")
    if is_held(effect, sibling_unknown=sibling_unknown):
        return Hold()
    return Run(after=effect.deadline)


def is_held(effect: Effect, *, sibling_unknown: bool) -> bool:
    """Nothing is done about this call before a person has said something, about it or about its sibling."""
    if effect.state in ("asked", "unknown"):
        return True
    return effect.effect == "once" and effect.state != "started" and sibling_unknown


def _lost(effect: Effect, rules: Rules | None, now: int) -> Verdict:
    """A write was started and its outcome is not written down: the process that ran it is gone."""
    if rules is None:
        return OutcomeUnknown(f"the process stopped while it ran, and there is no tool {effect.tool!r} any more")
    if _stricter(effect, rules) == "idempotent" and _may_repeat(effect, rules, now, after=effect.deadline):
        return Run(after=effect.deadline)
    if rules.has_check:
        return Check(after=effect.deadline)
    return OutcomeUnknown("the process stopped while it ran")


def after_exception(
    effect: Effect, rules: Rules, *, not_done: bool, reason: str, now: int, goes_on: bool = False
) -> Verdict:
    """What an exception or a time-out of the attempt that just ended in this process means.

    That nothing happened in it proves nothing of an idempotent call's attempts before it, whose outcomes were lost.
    """
    is_repeat = _stricter(effect, rules) == "idempotent" and effect.attempt - effect.granted > 1
    if not effect.is_write or (not_done and not is_repeat):
        return Failed(reason)
    if not_done:
        reason = f"{reason}; nobody knows of the attempts before it"
    if _stricter(effect, rules) == "idempotent":
        return Run() if _may_repeat(effect, rules, now) else OutcomeUnknown(reason)
    return Check(goes_on=goes_on) if rules.has_check else OutcomeUnknown(reason)


def after_check(
    effect: Effect, rules: Rules, *, happened: bool | None, reason: str, now: int, goes_on: bool = False
) -> Verdict:
    """``check`` did not say that it happened: False is a clear no, None is "cannot tell".

    It may happen yet where the attempt ``goes_on``, so that its no allows no other one beside it.
    """
    if happened is False and goes_on:
        return OutcomeUnknown("it has not happened so far, but the call goes on though its time is over")
    if happened is False and _may_repeat(effect, rules, now):
        return Run()
    if happened is False:
        return OutcomeUnknown(f"it did not happen in {counted(effect.attempt, 'attempt')}")
    return OutcomeUnknown(reason)


def after_drop(effect: Effect, rules: Rules, now: int) -> Verdict:
    """The attempt was started and not sent, because its time was over. What became of those before is not known."""
    if _stricter(effect, rules) == "idempotent" and not _may_repeat(effect, rules, now):
        return OutcomeUnknown("the last attempt was not sent in time, and another may not be made")
    return after_check(effect, rules, happened=False, reason="", now=now)


def key_end(effect: Effect, rules: Rules) -> int | None:
    """The instant from which on the attempt that was just started may not be sent: its key would be too old.

    None for a first attempt, for one that a person allowed, and where a key never grows too old.
    """
    if effect.attempt - effect.granted <= 1 or _stricter(effect, rules) != "idempotent":
        return None
    return _key_end(effect, rules)


def _key_end(effect: Effect, rules: Rules) -> int | None:
    ttl = rules.key_ttl
    return None if ttl is None else effect.first_started + ttl // timedelta(microseconds=1)


def _may_repeat(effect: Effect, rules: Rules, now: int, after: int = 0) -> bool:
    """Not before ``after``. How old a key is nobody knows where the clock was set back since it was first sent."""
    if effect.attempt - effect.granted >= MAX_ATTEMPTS:
        return False
    end = _key_end(effect, rules) if _stricter(effect, rules) == "idempotent" else None
    return end is None or (max(now, after) < end and now >= effect.first_started - _JUMP)
