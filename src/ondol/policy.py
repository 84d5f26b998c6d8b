"""May this call be made, for this user, with these arguments?

The operator's rules, beside what a tool itself says: a function, or a small table. They decide over data and do
nothing. What they say is recorded with the call, before it is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from ondol import values
from ondol.errors import InvalidInput
from ondol.events import EffectClass
from ondol.secret import redact

Then: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCall:
    """A call that the model wants to make. ``arguments`` are as the tool takes them, ``user`` is who asked for the run.

    ``effect`` is the class of the tool; a plain function is ``once``.
    """

    tenant: str
    user: str | None
    agent: str
    session: str
    tool: str
    effect: EffectClass
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Allow:
    """The policy has nothing against the call. Where the tool itself asks first (``approve=``), it still does."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class AskFirst:
    """A person decides first, whatever the tool itself says."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Deny:
    """The call is not made, and the model is told so. No person can allow it."""

    reason: str = ""


Said: TypeAlias = Allow | AskFirst | Deny
Policy: TypeAlias = Callable[[PolicyCall], Said]
_SAID: Mapping[Then, type[Allow] | type[AskFirst] | type[Deny]] = {"allow": Allow, "ask": AskFirst, "deny": Deny}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of a table. It is about a call that fits all that it names, and whose arguments ``when`` is true of.

    ``tool``, ``tenant``, ``user``, ``agent`` and ``session`` are patterns with ``*`` and ``?``; upper and lower case
    differ. A run that names no user has the user ``""``.
    """

    then: Then
    tool: str = "*"
    effect: EffectClass | None = None
    tenant: str = "*"
    user: str = "*"
    agent: str = "*"
    session: str = "*"
    when: Callable[[Mapping[str, Any]], bool] | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        _checked_then("then", self.then)
        if self.effect is not None and self.effect not in get_args(EffectClass):
            raise InvalidInput(f"Rule(effect={self.effect!r}): say {', '.join(get_args(EffectClass))}")
        if self.when is not None and not callable(self.when):
            raise InvalidInput(f"Rule(when={self.when!r}): give a function of the arguments")
        for name in ("tool", "tenant", "user", "agent", "session", "reason"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInput(f"Rule({name}={getattr(self, name)!r}): give a text")

    def names(self, call: PolicyCall) -> bool:
        """Is the rule about this tool, of this class?"""
        return fnmatchcase(call.tool, self.tool) and self.effect in (None, call.effect)

    def fits(self, call: PolicyCall) -> bool:
        """Raises what ``when`` raises."""
        who = (call.tenant, self.tenant), (call.user or "", self.user), (call.agent, self.agent)
        if not self.names(call) or not all(fnmatchcase(*pair) for pair in (*who, (call.session, self.session))):
            return False
        return self.when is None or bool(self.when(call.arguments))


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """A policy as a table: the first rule that fits decides.

    ``default`` holds for a tool that some rule names when none fits the call, ``unknown`` for a tool that no rule
    names: one that came with a server or a later version, and that nobody has thought about.
    """

    rules: Sequence[Rule]
    default: Then = "allow"
    unknown: Then = "allow"

    def __post_init__(self) -> None:
        if not isinstance(self.rules, Sequence):
            raise InvalidInput(f"a policy is made of a list of Rule(...), got {self.rules!r}")
        object.__setattr__(self, "rules", tuple(self.rules))
        if wrong := [r for r in self.rules if not isinstance(r, Rule)]:
            raise InvalidInput(f"a policy is made of Rule(...), and one of them is {wrong[0]!r}")
        _checked_then("default", self.default)
        _checked_then("unknown", self.unknown)

    def __call__(self, call: PolicyCall) -> Said:
        for rule in self.rules:
            if rule.fits(call):
                return _SAID[rule.then](rule.reason)
        if any(rule.names(call) for rule in self.rules):
            return _SAID[self.default]()
        return _SAID[self.unknown]("" if self.unknown == "allow" else "no rule names this tool")


def _checked_then(what: str, then: str) -> None:
    if then not in get_args(Then):
        raise InvalidInput(f"{what}={then!r} is unknown: say {', '.join(get_args(Then))}")


def checked(policy: Policy | None) -> Policy | None:
    """Raises InvalidInput for what cannot be a policy."""
    if policy is None or (callable(policy) and not inspect.iscoroutinefunction(policy)):
        return policy
    raise InvalidInput(f"policy={policy!r}: give an ordinary function of a PolicyCall, or PolicyRules([...])")


def said(policy: Policy | None, call: PolicyCall) -> Said | None:
    """What the policy says about a call; None where there is none. A policy that raises, or says nothing, means ask."""
    if policy is None:
        return None
    try:
        answer = policy(call)
    except BaseException as error:  # an exit-type exception too: it would end the event loop
        return AskFirst(f"the policy raised {type(error).__name__}")
    if isinstance(answer, Allow | AskFirst | Deny):
        return (
            replace(answer, reason=redact(values.plain_text(values.encode(answer.reason)))) if answer.reason else answer
        )
    if inspect.iscoroutine(answer):
        answer.close()
    return AskFirst(f"the policy said {type(answer).__name__}, not Allow, AskFirst or Deny")


class Permission(NamedTuple):
    """``decision`` is recorded, ``asks`` says why a person decides first, ``refusal`` is what the model is told."""

    decision: str | None = None
    asks: str | None = None
    refusal: str | None = None


_NOBODY_ASKS = Permission()


def permission(answer: Said | None, tool_asks: Callable[[], str | None]) -> Permission:
    """The gate that every call passes: what the policy says, and what the tool itself says (why it asks)."""
    match answer:
        case Deny(reason):
            return Permission(decision=_line("deny", reason), refusal=refusal(answer))
        case AskFirst(reason):
            why = "the policy asks" + (f": {reason}" if reason else "")
            own = tool_asks()
            return Permission(decision=_line("ask", why if own is None else f"{why}; {own}"), asks=why)
        case Allow(reason):
            own = tool_asks()
            return Permission(decision=_line("allow", reason) if own is None else _line("ask", own), asks=own)
        case None:
            own = tool_asks()
            return _NOBODY_ASKS if own is None else Permission(decision=_line("ask", own), asks=own)


def refusal(denied: Deny) -> str:
    return "not called: the policy denies it" + (f" ({denied.reason})" if denied.reason else "")


def _line(what: str, why: str) -> str:
    return f"{what}: {values.valid(why)}" if why else what
