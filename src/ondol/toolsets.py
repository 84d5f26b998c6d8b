"""Which tools does a run get that are known only when it is driven?

A ``Toolset`` is a function of the run's context that gives back tools: those that a user may use, or those that a
catalogue elsewhere has today. It is asked each time a run is taken up; what it gave is recorded with the next context.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, overload

from ondol.errors import InvalidInput
from ondol.tools import Context, Tool, as_tool, is_awaitable, is_awaited

Some: TypeAlias = Sequence[Tool[..., Any] | Callable[..., Any]]
Finds: TypeAlias = Callable[[Context[Any]], Some | Awaitable[Some]]
Found: TypeAlias = Sequence[Tool[..., Any]] | BaseException
DEFAULT_TIMEOUT = timedelta(seconds=10)  # a run waits for a catalogue that is slow to start, but not for ever


class Toolset:
    """A function that finds tools for a run. Without an answer in ``timeout`` the run goes on without them."""

    def __init__(self, function: Finds, *, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        if not callable(function) or not hasattr(function, "__name__"):
            raise InvalidInput(f"{function!r} is no toolset: write a function of the run's context that returns tools")
        self.function, self.name, self.timeout = function, function.__name__, timeout
        if not _takes_one(function):
            raise InvalidInput(f"toolset {self.name!r}: it must take one parameter, the context of the run")
        if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
            raise InvalidInput(f"toolset {self.name!r}: timeout must be a timedelta longer than nothing")
        self.is_async = is_awaited(function)

    def __repr__(self) -> str:
        return f"Toolset({self.name!r})"

    def called(self, ctx: Context[Any]) -> Any:
        """What it found, or what it raised, or what is to be awaited for that with ``answered``: an exit-type exception
        must not leave the task."""
        try:
            found = self.function(ctx)
            return found if is_awaitable(found) else self._checked(found)
        except BaseException as error:  # what leaves a thread is lost, and somebody waits for what it found
            return error

    async def answered(self, found: Awaitable[Any]) -> Found:
        try:
            return self._checked(await found)
        except BaseException as error:
            return error

    def _checked(self, found: Any) -> Sequence[Tool[..., Any]]:
        if not isinstance(found, Iterable):
            raise InvalidInput(f"toolset {self.name!r} gave back {type(found).__name__}, not a list of tools")
        return [as_tool(f) for f in found]


@overload
def toolset(function: Finds, /) -> Toolset: ...
@overload
def toolset(*, timeout: timedelta = ...) -> Callable[[Finds], Toolset]: ...
def toolset(function: Any = None, /, **declared: Any) -> Any:
    """Declare a function of the run's context that gives back tools."""
    if function is not None:
        return Toolset(function, **declared)
    return lambda function: Toolset(function, **declared)


def as_tool_or_toolset(given: Any) -> Tool[..., Any] | Toolset:
    """A plain function is a ``once`` tool, unless it takes the context alone and says that it returns tools."""
    if isinstance(given, Toolset):
        return given
    return Toolset(given) if not isinstance(given, Tool) and _returns_tools(given) else as_tool(given)


def _returns_tools(function: Any) -> bool:
    if not callable(function) or isinstance(function, type) or not _takes_one(function):
        return False
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # what it is instead says why that is refused
        return False
    taken = [hint for name, hint in hints.items() if name != "return"]
    if not taken or Context not in (taken[0], typing.get_origin(taken[0])):
        return False
    returned = hints.get("return")
    kind, inside = typing.get_origin(returned), typing.get_args(returned)
    return isinstance(kind, type) and issubclass(kind, Iterable) and bool(inside) and _is_tool(inside[0])


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        return len(inspect.signature(function).parameters) == 1
    except (ValueError, TypeError):  # some of what is built into Python
        return False


def _is_tool(hint: Any) -> bool:
    return Tool in (hint, typing.get_origin(hint)) or any(_is_tool(h) for h in typing.get_args(hint))
