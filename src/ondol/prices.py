"""What do tokens cost?

Prices come from a file that its operator keeps; they are looked up when somebody asks, and nothing of them is stored.
A model without a price is unpriced, which is not the same as free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from ondol.errors import InvalidInput
from ondol.usage import Usage

_PER = Decimal(1_000_000)  # tokens that a price in the file is for
_KNOWN = ("input", "output", "cache_read", "cache_write")


class Price(NamedTuple):
    """Of a million tokens. Where the file does not price the provider's cache, that is input like any other."""

    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal

    def of(self, used: Usage) -> Decimal:
        """What these tokens cost, exactly. What nobody counted is not in it."""
        read, write = used.cache_read or 0, used.cache_write or 0
        plain = max(0, (used.input or 0) - read - write)
        return (
            plain * self.input + read * self.cache_read + write * self.cache_write + (used.output or 0) * self.output
        ) / _PER


@dataclass(frozen=True, slots=True)
class Prices:
    """A price file. ``currency`` is its own word for it, ``source`` where it was read."""

    by_model: Mapping[str, Price] = field(default_factory=dict)
    currency: str = ""
    source: str = ""

    def of(self, model: str) -> Price | None:
        """By the name that the agent has for it (``openai:gpt-5.2``), else by what stands behind the colon."""
        return self.by_model.get(model) or self.by_model.get(model.partition(":")[2])

    def cost(self, used: Mapping[str, Usage]) -> Decimal:
        """What is known of the cost: without the unpriced models, and without what nobody counted."""
        return sum((p.of(u) for m, u in used.items() if (p := self.of(m)) is not None), Decimal(0)).normalize()

    def known_cost(self, used: Mapping[str, Usage]) -> Decimal | None:
        """As ``cost``; None where nothing of it has a price."""
        has_price = not used or len(self.unpriced(used)) < len(used)
        return self.cost(used) if self.by_model and has_price else None

    def unpriced(self, used: Mapping[str, Usage]) -> list[str]:
        return sorted(m for m in used if self.of(m) is None)


def parse(text: str, source: str) -> Prices:
    """A price file, as TOML or, where its name ends so, as JSON.

    ::

        currency = "USD"

        [models."openai:gpt-5.2"]            # per million tokens
        input = 1.25
        output = 10
        cache_read = 0.125                   # of the input, what came from the provider's cache
        cache_write = 1.25                   # of the input, what was put there

    Raises:
        InvalidInput: it cannot be read so; the message names file, model and key.
    """
    try:
        raw: Any = _reader(source)(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the price file {source} cannot be read: {error}") from error
    models = raw.get("models") if isinstance(raw, dict) else None
    if not isinstance(models, dict):
        raise InvalidInput(
            f'the price file {source} has no table "models": write [models."NAME"] with input and output'
        )
    return Prices({m: _price(p, m, source) for m, p in models.items()}, str(raw.get("currency", "")), source)


def _reader(source: str) -> Callable[..., Any]:
    if source.endswith(".json"):
        return json.loads
    import tomllib  # it takes a while to load, and most have no prices

    return tomllib.loads


def _price(raw: Any, model: str, source: str) -> Price:
    where = f"the price file {source}, model {model!r}"
    if not isinstance(raw, dict) or not {"input", "output"} <= raw.keys():
        raise InvalidInput(f"{where}: say what a million tokens of input and of output cost")
    if wrong := sorted(raw.keys() - set(_KNOWN)):
        raise InvalidInput(f"{where}: {wrong[0]!r} is unknown: there is {', '.join(_KNOWN)}")
    said = {key: _decimal(value, f"{where}, {key}") for key, value in raw.items()}
    return Price(**{"cache_read": said["input"], "cache_write": said["input"], **said})


def _decimal(value: Any, where: str) -> Decimal:
    try:
        price = Decimal(value) if isinstance(value, int | str | Decimal) and not isinstance(value, bool) else None
    except InvalidOperation:
        price = None
    if price is None or not price.is_finite() or price < 0:
        raise InvalidInput(f"{where}: {value!r} is no price: give a number")
    return price
