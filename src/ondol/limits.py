"""What may a run use, and has it used that up?

A limit is looked at between two steps, right before a model call: what a recorded answer asked for is carried through.
Reaching one ends the run as retryable, so that it goes on from its journal when the limit was raised.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from ondol import usage
from ondol.errors import EndCode, InvalidInput
from ondol.journal import State
from ondol.prices import Prices
from ondol.showing import counted
from ondol.usage import Usage

DEFAULT_STEPS = 50
DEFAULT_TOOL_OUTPUT = 20_000  # characters; about 5,000 tokens
LEAST_TOOL_OUTPUT = 1_000  # characters that each result may show, however many calls its step has
_LEAST = {"queue": 0, "attachments": 0, "attachment_bytes": 0, "tool_output": LEAST_TOOL_OUTPUT}  # of the others: 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where work stops by itself. None: no limit of that kind.

    Of one run:

    - ``steps``: model answers (50 where nobody says).
    - ``tokens``: input and output of all its model calls. A call that nobody counted is taken for what it was
      estimated at.
    - ``cost``: of those, in the currency of the price file.
    - ``wall``: time that it was worked on. Waiting for a person, for its turn or for a process does not count.
    - ``tool_time``: the part of that in which calls of tools were under way.

    Of one step:

    - ``tool_output``: characters of results that its model is shown (20,000 where nobody says), shared among the calls
      of the step, at least 1,000 each (fewer, where an agent's budget has no room). Of a longer result the model sees
      beginning and end, and reads the rest with ``read_more``.

    Of what is accepted:

    - ``queue``: operations that may wait in a session behind the one that is worked on.
    - ``attachments``, ``attachment_bytes``: their number, and their size together, in one operation.

    Of the process, so for ``Runtime(limits=...)`` only:

    - ``runs``: that are driven at once (200 where nobody says). One whose tool waits for another run lends that its
      place.

    Where an agent and its runtime both set one, the smaller counts.
    """

    steps: int | None = None
    tokens: int | None = None
    cost: Decimal | int | str | None = None
    wall: timedelta | None = None
    tool_time: timedelta | None = None
    tool_output: int | None = None
    queue: int | None = None
    attachments: int | None = None
    attachment_bytes: int | None = None
    runs: int | None = None

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            given = getattr(self, name)
            if given is None:
                continue
            if name == "cost":
                object.__setattr__(self, name, _amount(given))
            elif name in ("wall", "tool_time"):
                if not isinstance(given, timedelta) or given <= timedelta(0):
                    raise InvalidInput(f"Limits({name}={given!r}): give a timedelta longer than nothing")
            elif not isinstance(given, int) or isinstance(given, bool) or given < _LEAST.get(name, 1):
                raise InvalidInput(f"Limits({name}={given!r}): give a whole number from {_LEAST.get(name, 1)}")

    def within(self, other: Limits) -> Limits:
        """Both at once: of each the smaller."""
        both: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            said = [n for n in (getattr(self, name), getattr(other, name)) if n is not None]
            both[name] = min(said) if said else None
        return Limits(**both)


def _amount(given: Any) -> Decimal:
    try:
        amount = Decimal(given) if isinstance(given, int | str | Decimal) and not isinstance(given, bool) else None
    except InvalidOperation:
        amount = None
    if amount is None or not amount.is_finite() or amount <= 0:
        raise InvalidInput(f"Limits(cost={given!r}): give an amount as Decimal, text or whole number, above 0")
    return amount


class Bounds(NamedTuple):
    """The limits of an agent's runs, and what they are held against. ``model`` is the one that is asked next."""

    limits: Limits = Limits()
    prices: Prices = Prices()
    model: str = ""


class Reached(NamedTuple):
    """The message names what was reached, the knob, and the next move."""

    code: EndCode
    message: str


def reached(state: State, bounds: Bounds, now: int) -> Reached | None:
    """The limit that forbids the next model call of a run at this instant, if there is one.

    Once its context is written down, what the call itself is expected to take counts too.
    """
    limits = bounds.limits
    steps = limits.steps or DEFAULT_STEPS
    if state.step >= steps:
        return _reached("steps", counted(steps, "step"))
    at = max(now, state.retry_at or 0)  # an attempt that would begin too late is not waited for
    if limits.wall is not None and state.worked_at(at) >= _micros(limits.wall):
        return _reached("wall", f"{_said(limits.wall)} of work")
    if limits.tool_time is not None and state.in_tools >= _micros(limits.tool_time):
        return _reached("tool_time", f"{_said(limits.tool_time)} in tools")
    if limits.tokens is not None:
        used = usage.total(state.usage)
        spent = (used.input or 0) + (used.output or 0) + used.estimated
        if spent >= limits.tokens or spent + state.expected_input() > limits.tokens:
            return _reached("tokens", f"{limits.tokens} tokens", f"{spent} used", _next(f"{state.expected_input()}"))
    return None if limits.cost is None else _cost_reached(state, bounds)


def _cost_reached(state: State, bounds: Bounds) -> Reached | None:
    limit, prices = bounds.limits.cost, bounds.prices
    assert isinstance(limit, Decimal)
    if unpriced := prices.unpriced(state.usage):
        where = prices.source or "the price file"
        why = f"the run has used {unpriced[0]!r}, which has no price, so its limit of cost cannot be kept"
        return Reached("limit_cost", f"{why}: add it to {where} and send the same operation again")
    guessed = {m: Usage(input=u.estimated) for m, u in state.usage.items()}
    spent = prices.cost(state.usage) + prices.cost(guessed)
    ahead = prices.cost({bounds.model: Usage(input=state.expected_input())})
    if spent < limit and spent + ahead <= limit:
        return None
    return _reached("cost", f"{limit} {prices.currency}".strip(), f"{spent:f} spent", _next(f"{ahead:f}"))


def _reached(knob: str, limit: str, *details: str) -> Reached:
    codes: dict[str, EndCode] = {
        "steps": "limit_steps", "tokens": "limit_tokens", "cost": "limit_cost", "wall": "limit_wall",
        "tool_time": "limit_tool_time",
    }  # fmt: skip
    more = f" ({', '.join(details)})" if details else ""
    again = f"raise Limits({knob}=...) and send the same operation again"
    return Reached(codes[knob], f"the limit of {limit} is reached{more}: {again}")


def _next(expected: str) -> str:
    return f"about {expected} for the next call"


def time_left(state: State, limits: Limits, now: int) -> float | None:
    """Seconds that the run may still be worked on; None: for ever. Not below 0."""
    return None if limits.wall is None else max(0, _micros(limits.wall) - state.worked_at(now)) / 1e6


def tool_time_left(state: State, limits: Limits, now: int) -> float | None:
    """Seconds that its calls may still be under way."""
    wall = time_left(state, limits, now)
    if limits.tool_time is None:
        return wall
    left = max(0, _micros(limits.tool_time) - state.in_tools_at(now)) / 1e6
    return left if wall is None else min(left, wall)


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def _said(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"
