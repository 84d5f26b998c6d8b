"""What was spent, by agent, model, day, session or user?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, tzinfo
from decimal import Decimal
from typing import Literal, NamedTuple, TypeAlias

from ondol import clock, usage
from ondol.errors import InvalidInput
from ondol.prices import Prices
from ondol.usage import Usage

UsageBy: TypeAlias = Literal["agent", "model", "day", "session", "user"]


class RunUsage(NamedTuple):
    """What the model calls of one run took. ``n`` is its place in the order of acceptance."""

    n: int
    agent: str
    session: str
    user: str
    at: int
    used: Mapping[str, Usage]


class CallUsage(NamedTuple):
    """What a model call outside of any run took, as a mapping of one model or none."""

    id: str
    agent: str
    session: str
    user: str
    at: int
    used: Mapping[str, Usage]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLine:
    """What the runs of one agent, model, day, session or user took together, and summaries made by hand with them.

    ``key`` says of which; None for runs that name no user. ``cost`` is what is known of it, in ``currency``: None if
    no model of these has a price, and without those that ``unpriced`` names. ``tokens.unknown`` calls were not counted
    by anybody, so they are in no sum: unknown is not zero.
    """

    key: str | None
    runs: int
    tokens: Usage
    cost: Decimal | None
    currency: str
    unpriced: tuple[str, ...]


#: For each key the number of runs, and what they took by model.
Sums: TypeAlias = dict[str, tuple[int, dict[str, Usage]]]


def summed(so_far: Sums, more: Iterable[RunUsage | CallUsage], by: UsageBy, zone: tzinfo) -> Sums:
    """With these runs and calls added. Days are those of the zone."""
    sums = dict(so_far)
    for one in more:
        for key, used in _parts(one, by, zone):
            n, before = sums.get(key, (0, {}))
            sums[key] = n + isinstance(one, RunUsage), usage.merged(before, used)
    return sums


def _parts(one: RunUsage | CallUsage, by: UsageBy, zone: tzinfo) -> Iterator[tuple[str, Mapping[str, Usage]]]:
    match by:
        case "model":
            yield from ((model, {model: used}) for model, used in one.used.items())
        case "day":
            yield clock.from_micros(one.at).astimezone(zone).date().isoformat(), one.used
        case "agent":
            yield one.agent, one.used
        case "session":
            yield one.session, one.used
        case "user":
            yield one.user, one.used


def lines(sums: Sums, by: UsageBy, prices: Prices) -> list[UsageLine]:
    """Days in their order, anything else with the most tokens first."""
    made = [_line(key, n, used, prices) for key, (n, used) in sums.items()]
    if by == "day":
        return sorted(made, key=lambda line: line.key or "")
    return sorted(made, key=lambda line: (-(line.tokens.input or 0) - (line.tokens.output or 0), line.key or ""))


def _line(key: str, n: int, used: Mapping[str, Usage], prices: Prices) -> UsageLine:
    return UsageLine(
        key=key or None, runs=n, tokens=usage.total(used), cost=prices.known_cost(used), currency=prices.currency,
        unpriced=tuple(prices.unpriced(used)),
    )  # fmt: skip


def typed_date(what: str, given: str | None) -> date | None:
    """A day or a time, as somebody typed it. Raises InvalidInput."""
    if given is None:
        return None
    try:
        return date.fromisoformat(given) if len(given) == len("2026-11-30") else datetime.fromisoformat(given)
    except ValueError as error:
        raise InvalidInput(f"{what} {given!r} is no time: write 2026-11-30 or 2026-11-30T09:00+09:00") from error


def instant(at: date, zone: tzinfo) -> int:
    """Microseconds since 1970. A date is its first instant in the zone, a time without an offset one of the zone."""
    if not isinstance(at, datetime):
        at = datetime.combine(at, time.min)
    return clock.to_micros(at if at.tzinfo is not None else at.replace(tzinfo=zone))
