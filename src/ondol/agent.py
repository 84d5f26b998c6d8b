"""What is an agent? A frozen description, nothing that runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ondol import values
from ondol.budget import ContextPolicy
from ondol.errors import InvalidInput
from ondol.ids import checked_id
from ondol.limits import Limits
from ondol.memory import MEMORY_TOOLS, Memory
from ondol.model import Model
from ondol.outputs import READ_MORE
from ondol.search import Finder, Search, as_search, search_tool
from ondol.tools import Tool
from ondol.toolsets import Finds, Toolset, as_tool_or_toolset


@dataclass(frozen=True)
class Agent:
    """A name, a model, instructions and tools.

    ``model`` is a name (``openai:gpt-5.2``, ``script:demo``, ``script:answers.json``), anything with the methods of
    ``ondol.Model``, or a list of these: each takes over, for the rest of a run, when the one before it is down.
    A plain function among ``tools`` is a ``once`` tool; a function of the run's context that returns tools
    (``list[Tool]``) is a ``Toolset``. ``context`` says how large a request may be, and what is shown when it would be
    larger. With a ``memory`` it has the tools ``remember``, ``recall`` and ``forget``, and each of its runs needs a
    user. With sources to ``search`` it has the tool ``search``.
    """

    name: str
    model: str | Model | Sequence[str | Model]
    instructions: str = ""
    tools: Sequence[Tool[..., Any] | Toolset | Finds | Callable[..., Any]] = ()
    limits: Limits = field(default_factory=Limits)
    context: ContextPolicy | None = None
    memory: Memory | None = None
    search: Sequence[Search | Finder] = ()

    def __post_init__(self) -> None:
        checked_id("the name of an agent", self.name)
        if isinstance(self.model, Sequence) and not isinstance(self.model, str):
            object.__setattr__(self, "model", self.models)
        if not self.models:
            raise InvalidInput(f"agent {self.name!r}: the list of models is empty: name at least one")
        for model in self.models:
            if isinstance(model, type):
                raise InvalidInput(f"agent {self.name!r}: {model.__name__} is a class: make a model of it")
            if not isinstance(model, str) and not hasattr(model, "stream"):
                raise InvalidInput(
                    f"agent {self.name!r}: {model!r} is no model: give a name or an object with 'stream'"
                )
        if not isinstance(self.instructions, str):
            raise InvalidInput(f"agent {self.name!r}: the instructions must be a text")
        if not isinstance(self.tools, Sequence) or isinstance(self.tools, str):
            raise InvalidInput(f"agent {self.name!r}: tools must be a list, got {self.tools!r}")
        made = tuple(as_tool_or_toolset(t) for t in self.tools)
        object.__setattr__(self, "tools", made)
        if not isinstance(self.limits, Limits):
            raise InvalidInput(f"agent {self.name!r}: limits must be Limits(...), got {self.limits!r}")
        if self.context is not None and not isinstance(self.context, ContextPolicy):
            raise InvalidInput(f"agent {self.name!r}: context must be ContextPolicy(...), got {self.context!r}")
        if self.limits.runs is not None:
            raise InvalidInput(f"agent {self.name!r}: runs at once are a limit of the process: Runtime(limits=...)")
        if self.memory is not None and not isinstance(self.memory, Memory):
            raise InvalidInput(f"agent {self.name!r}: memory must be Memory(...), got {self.memory!r}")
        if not isinstance(self.search, Sequence) or isinstance(self.search, str):
            raise InvalidInput(f"agent {self.name!r}: search must be a list of sources, got {self.search!r}")
        names = [t.name for t in made]
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise InvalidInput(f"agent {self.name!r} has two tools named {', '.join(sorted(twice))}: rename one")
        for own in (READ_MORE, *self._own_tools):
            if own.name in names:
                raise InvalidInput(f"agent {self.name!r}: {own.name} is a tool of Ondol's own: rename yours")

    @property
    def toolset(self) -> dict[str, Tool[..., Any]]:
        return {t.name: t for t in (*self.tools, *self._own_tools) if isinstance(t, Tool)}

    @functools.cached_property
    def _own_tools(self) -> tuple[Tool[..., Any], ...]:
        """Of its memory and its search."""
        searching = [search_tool([as_search(s) for s in self.search])] if self.search else []
        return (*(MEMORY_TOOLS if self.memory is not None else ()), *searching)

    @property
    def toolsets(self) -> list[Toolset]:
        """Where more tools are found when a run is driven."""
        return [t for t in self.tools if isinstance(t, Toolset)]

    @property
    def models(self) -> tuple[str | Model, ...]:
        """The model, and those that take over from it, in order."""
        if isinstance(self.model, Sequence) and not isinstance(self.model, str):
            return tuple(self.model)
        return (self.model,)

    def definition(self, found: Sequence[tuple[Tool[..., Any], str]] = ()) -> dict[str, Any]:
        """What the model is told about this agent, as JSON; its digest names it in the journal.

        ``found`` are tools beside those that it names, each with the name of the toolset that it came from.
        """
        tools = [
            {
                "name": t.name,
                "description": t.spec.description,
                "parameters": t.spec.parameters,
                "effect": t.effect,
            }
            | ({"source": source} if source else {})
            for t, source in [*((t, "") for t in self.toolset.values()), *found]
        ]
        names = [m if isinstance(m, str) else m.name for m in self.models]
        model = names if len(names) > 1 else names[0]
        described = {"name": self.name, "model": model, "instructions": self.instructions, "tools": tools}
        encoded: dict[str, Any] = values.encode(described)
        return encoded
