"""What did the model calls of a run take, in tokens?

Each entry that ends a model call says what that call took (``events.Spent``); these rules add it up, by model. What
nobody said is not zero: a sum over such calls says how many of them there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ondol import values
from ondol.errors import ModelErrorKind
from ondol.events import Spent, StepFailed
from ondol.showing import counted

_UNSAID = (None,) * 5  # input, output, cache_read, cache_write, reasoning


class Usage(NamedTuple):
    """What calls of one model took, in tokens. None: nobody said.

    ``calls`` are those that cost something, or may have. ``input`` is all input, of it ``cache_read`` came from the
    provider's cache and ``cache_write`` was put there; ``output`` is all output, of it ``reasoning`` was reasoning.
    ``unknown`` of the calls were not, or not wholly, counted by anybody; ``estimated`` is what those are believed to
    have taken, for limits.
    """

    calls: int = 0
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    unknown: int = 0
    estimated: int = 0

    def plus(self, other: Usage) -> Usage:
        summed = [b if a is None else a if b is None else a + b for a, b in zip(self, other, strict=True)]
        return Usage._make(summed)


def with_call(used: Mapping[str, Usage], entry: Spent, lost: int = 0, expected: int = 0) -> Mapping[str, Usage]:
    """The usage by model, with the call that this entry ended.

    ``lost`` calls of the same step had no end that anybody heard of; each of those is believed to have taken
    ``expected`` tokens of input.
    """
    known = entry.input, entry.output, entry.cache_read, entry.cache_write, entry.reasoning
    free = isinstance(entry, StepFailed) and not entry.untold and known == _UNSAID
    if free and not lost:
        return used
    silent = not free and (entry.input is None or entry.output is None)
    guessed = lost + (silent and entry.input is None)
    call = Usage(lost + (not free), *known, lost + silent, guessed * expected)
    model = model_of(entry)
    return {**used, model: used[model].plus(call) if model in used else call}


def by_hand(spent: Mapping[str, Any]) -> Mapping[str, Usage]:
    """What a call outside of any run took: fields of ``events.Spent``, empty for one that was free."""
    return with_call({}, Spent(**spent)) if spent else {}


def model_of(spent: Spent) -> str:
    """The model's name as the agent has it; its answer may have come under another one."""
    return spent.asked or spent.model


def merged(*several: Mapping[str, Usage]) -> dict[str, Usage]:
    """The usage of several runs, by model."""
    total: dict[str, Usage] = {}
    for used in several:
        for model, usage in used.items():
            total[model] = total.get(model, Usage()).plus(usage)
    return total


def total(used: Mapping[str, Usage]) -> Usage:
    """Of all models together."""
    if len(used) == 1:
        return next(iter(used.values()))
    whole = Usage()
    for usage in used.values():
        whole = whole.plus(usage)
    return whole


def told(used: Usage) -> str:
    """What model calls took. What nobody counted is not zero."""

    def said(tokens: int | None) -> str:
        return "-" if tokens is None else f"{tokens}"

    cached = f" ({used.cache_read} from the cache)" if used.cache_read else ""
    uncounted = f", {used.unknown} not counted" if used.unknown else ""
    calls = counted(used.calls, "call")
    return f"{said(used.input)} tokens in{cached}, {said(used.output)} out, {calls}{uncounted}"


#: These fail after the provider may have worked, and charged, for the answer. The others refuse the request.
_MAY_BE_BILLED: frozenset[ModelErrorKind] = frozenset({"timeout", "connection", "server", "content_filter"})


def may_be_billed(kind: ModelErrorKind, sent: bool) -> bool:
    """Can an attempt that failed like this have cost tokens?"""
    return sent and kind in _MAY_BE_BILLED


def dumps(used: Mapping[str, Usage]) -> str:
    """As it is stored with the run: by model, without what nobody said."""
    told = {
        model: {k: v for k, v in usage._asdict().items() if v != Usage._field_defaults[k]}
        for model, usage in used.items()
    }
    return values.dumps(told)


NOT_RECORDED = "(not recorded)"  # the model of runs from before it was recorded


def of_run(stored: str | None, tokens_in: int | None, tokens_out: int | None) -> dict[str, Usage]:
    """The usage of a run by model, from the columns of its row."""
    if stored is not None:
        return loads(stored)
    known = Usage(input=tokens_in, output=tokens_out)
    return {} if known == Usage() else {NOT_RECORDED: known}


def loads(stored: str) -> dict[str, Usage]:
    return {model: Usage(**usage) for model, usage in values.loads(stored).items()}
