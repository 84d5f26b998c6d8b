"""What does a runtime put together of an agent before it drives its runs?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ondol import files, outputs, prices, providers, values
from ondol.agent import Agent
from ondol.errors import InvalidInput
from ondol.limits import Bounds, Limits
from ondol.prices import Prices
from ondol.runner import Candidate, Served


def serve(agent: Agent, limits: Limits, price_file: str | Path | None) -> Served:
    """Raises InvalidInput: a model is unknown or its key is missing, or a limit of cost cannot be kept."""
    models: list[Candidate] = []
    for given in agent.models:
        model = providers.resolve(given) if isinstance(given, str) else given
        models.append(Candidate(model, getattr(model, "provider", model.name)))
    definition = values.dumps(agent.definition())
    tools = {**agent.toolset, outputs.READ_MORE.name: outputs.READ_MORE}
    digest = values.digest(agent.definition())
    rules = {name: t.rules for name, t in tools.items()}
    bounds = _bounds(agent, limits, price_file, [candidate.model.name for candidate in models])
    return Served(agent, tuple(models), definition, digest, tools, rules, bounds)


def _bounds(agent: Agent, limits: Limits, price_file: str | Path | None, models: Sequence[str]) -> Bounds:
    within = agent.limits.within(limits)
    if within.cost is None:
        return Bounds(within)
    known = read_prices(price_file)
    if unpriced := [name for name in models if known.of(name) is None]:
        where = f"it is not in {known.source}" if known.source else "there is no price file"
        raise InvalidInput(
            f"agent {agent.name!r} has a limit of cost, and its model {unpriced[0]!r} has no price ({where}): "
            "name a file that has it (Runtime(prices=...) or ONDOL_PRICES), or limit tokens instead"
        )
    return Bounds(within, known, models[0])


def read_prices(file: str | Path | None) -> Prices:
    """The prices as they are now; none where no file is named. Raises InvalidInput for one that cannot be read."""
    if file is None:
        return Prices()
    try:
        text = files.read(Path(file)).decode()
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(f"the price file {file} cannot be read: {error}") from error
    return prices.parse(text, str(file))


async def close_models(served: Sequence[Served]) -> None:
    """Close the models that ``serve`` made; those that the user gave are the user's to close."""
    for one in served:
        for candidate, given in zip(one.models, one.agent.models, strict=True):
            if candidate.model is not given and (close := getattr(candidate.model, "aclose", None)) is not None:
                await close()
