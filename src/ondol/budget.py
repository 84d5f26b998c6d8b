"""How large may what a model sees become, and what then?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from ondol.errors import InvalidInput

OnOverflow: TypeAlias = Literal["compact", "ask", "fail"]
SummaryBy: TypeAlias = Literal["model", "excerpt"]
LEAST_BUDGET = 100  # tokens


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """What an agent's model is shown of a long conversation.

    - ``budget``: tokens of input that a request may have. It is weighed before every model call, with an estimate that
      is put right by what the provider counts.
    - ``on_overflow``: what becomes of a request that would be larger. Long results that can be had again become
      references, and reasoning of earlier turns goes, in any case. If that is not enough, ``compact`` names finished
      calls instead of showing them, and then has a summary in the place of the oldest turns; ``ask`` asks a person
      first; ``fail`` ends the run, which goes on once the budget is raised.
    - ``keep``: so many of the last turns, beside the current one, stay word for word as long as that can be.
    - ``summary``: ``model`` asks the run's own model for it, ``excerpt`` puts it together from what was said.
    """

    budget: int
    on_overflow: OnOverflow = "compact"
    keep: int = 3
    summary: SummaryBy = "model"

    def __post_init__(self) -> None:
        if not isinstance(self.budget, int) or self.budget < LEAST_BUDGET:
            raise InvalidInput(f"ContextPolicy(budget={self.budget!r}): give tokens, at least {LEAST_BUDGET}")
        if self.on_overflow not in get_args(OnOverflow):
            raise InvalidInput(f"ContextPolicy(on_overflow={self.on_overflow!r}): say {_or(get_args(OnOverflow))}")
        if not isinstance(self.keep, int) or isinstance(self.keep, bool) or self.keep < 0:
            raise InvalidInput(f"ContextPolicy(keep={self.keep!r}): give a number of turns, a whole number from 0")
        if self.summary not in get_args(SummaryBy):
            raise InvalidInput(f"ContextPolicy(summary={self.summary!r}): say {_or(get_args(SummaryBy))}")


DROPPED = ("calls", "turns")  # what a person may let go of


def overflow_problem(decision: str, value: Any) -> str | None:
    """Why this is no answer to what becomes of a request that is too large; None where it is one."""
    if decision == "raise" and (not isinstance(value, int) or value < LEAST_BUDGET):
        return f"say to how many tokens the budget is raised, at least {LEAST_BUDGET}, as in {{'raise': 80000}}"
    if decision == "drop":
        unfit = not isinstance(value, list) or not value or any(part not in DROPPED for part in value)
        return f"name what may go: {_or(DROPPED)}, as in {{'drop': ['turns']}}" if unfit else None
    return None


def _or(words: tuple[str, ...]) -> str:
    return " or ".join(repr(w) for w in words)
