"""Which agent does ``app:support`` or ``app.py:support`` name, and with what is it run?"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ondol import values
from ondol.agent import Agent
from ondol.errors import InvalidInput, OndolError
from ondol.runtime import Runtime
from ondol.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """What an app brings: the agent that was named, and the runtime of its module, if there is one."""

    agent: Agent
    own: Runtime | None = None

    def runtime(self, db: str | Store | None) -> Runtime:
        """The app's own runtime, which its tools may know by its name, on the store that was named, else on its own;
        one that is made where there is none."""
        if self.own is None:
            return Runtime(db, agents=[self.agent], door="cli")
        self.own._override(db, agent=self.agent, door="cli")
        return self.own

    def with_model(self, model: str) -> App:
        return dataclasses.replace(self, agent=dataclasses.replace(self.agent, model=model))


def load(name: str, agent: str | None = None) -> App:
    """The app ``module:name`` or ``file.py:name``, where the name is an Agent, or a Runtime with its only agent
    (or with the ``agent`` that is named).

    Raises:
        InvalidInput: it cannot be loaded, or there is no such thing in it; nothing was started.
    """
    place, attribute, module = _named(name)
    found = getattr(module, attribute, None) if attribute else None
    match found:
        case Agent() if agent not in (None, found.name):
            raise InvalidInput(f"{name} is the agent {found.name!r}, and not {agent!r}: --agent is for a Runtime")
        case Agent():
            return App(agent=found, own=_runtime_of(module, found))
        case Runtime():
            return App(agent=_only_agent(name, found, agent), own=found)
    offered = [n for n, v in vars(module).items() if isinstance(v, Agent | Runtime)]
    said = f"say {place}:NAME with one of {', '.join(offered)}" if offered else "it has neither an Agent nor a Runtime"
    raise InvalidInput(f"{name!r} names no agent: {said}")


def load_runtime(name: str, db: str | None) -> Runtime:
    """The runtime that an app names, for a process that serves all of it: ``FILE.py`` with the only one in it, or with
    a runtime of all its agents.

    Raises:
        InvalidInput: it cannot be loaded, or there is no such thing in it; nothing was started.
    """
    place, attribute, module = _named(name)
    named = getattr(module, attribute, None) if attribute else None
    if isinstance(named, Agent):
        return App(agent=named, own=_runtime_of(module, named)).runtime(db)
    here = [v for v in vars(module).values() if isinstance(v, Runtime)]
    agents = [v for v in vars(module).values() if isinstance(v, Agent)]
    if not isinstance(named, Runtime) and not attribute and len(here) <= 1:
        named = here[0] if here else Runtime(db, agents=list(dict.fromkeys(agents))) if agents else None
    if not isinstance(named, Runtime):
        offered = [n for n, v in vars(module).items() if isinstance(v, Agent | Runtime)]
        said = f"say {place}:NAME with one of {', '.join(offered)}" if offered else "it has neither"
        raise InvalidInput(f"{name!r} names no Runtime and no Agent: {said}")
    named._override(db)
    return named


def _runtime_of(module: ModuleType, agent: Agent) -> Runtime | None:
    """The runtime of the module that has the agent, or its only one."""
    runtimes = [v for v in vars(module).values() if isinstance(v, Runtime)]
    having = [r for r in runtimes if any(a is agent for a in r.agents.values())]
    chosen = having or runtimes
    return chosen[0] if len(chosen) == 1 else None


def _only_agent(name: str, runtime: Runtime, wanted: str | None) -> Agent:
    names = ", ".join(runtime.agents) or "none"
    if wanted is not None:
        if wanted not in runtime.agents:
            raise InvalidInput(f"{name} has no agent {wanted!r}: its agents are {names}")
        return runtime.agents[wanted]
    if len(runtime.agents) != 1:
        raise InvalidInput(f"{name} is a runtime with the agents {names}: say which with --agent")
    return next(iter(runtime.agents.values()))


def _named(name: str) -> tuple[str, str, ModuleType]:
    """The place of a module and what is named in it, if anything, of ``PLACE:NAME``; and that module."""
    place, _, attribute = name.rpartition(":")
    if not place:
        place, attribute = name, ""
    return place, attribute, _module(place)


def _module(place: str) -> ModuleType:
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    if not place or (place.startswith(".") and not place.endswith(".py")):  # to Python, one beside another module
        raise _no_module(place)
    try:
        if place.endswith(".py"):
            return _file(Path(place))
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(error.name + ".")):
            raise _no_module(place) from error
        raise InvalidInput(f"{place} cannot be loaded{_where(error)}: {error}") from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as error:  # an app may raise anything (SystemExit, or what pytest skips with)
        said = str(error) if isinstance(error, OndolError) else values.error_text(error)
        raise InvalidInput(f"{place} cannot be loaded{_where(error)}: {said}") from error


def _no_module(place: str) -> InvalidInput:
    hint = f"say {place}.py:NAME" if place and Path(f"{place}.py").exists() else "say MODULE:NAME or FILE.py:NAME"
    return InvalidInput(f"there is no module {place!r} here: {hint}")


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}: say FILE.py:NAME or MODULE:NAME")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem not in sys.modules else f"app_{path.stem}"  # a file may be named like a library
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints of its tools are looked up there
    spec.loader.exec_module(module)
    return module


def _where(error: BaseException) -> str:
    """The line of the user's code that raised."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f" (line {error.lineno})"
    others = ("<", str(Path(__file__).parents[1]), str(Path(os.__file__).parent))  # this package, and Python's own
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(others)]
    last = frames[-1] if frames else None
    if last is None:
        return ""
    return f" ({Path(last.filename).name}, line {last.lineno})"
