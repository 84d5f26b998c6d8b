"""How does one seed decide in which order everything happens that happens at once?

Whatever wants something from the store stands in front of it (``Turns``) and is let through one at a time, in an order
that is chosen. Models and tools stand at gates (``Gates``) until somebody says how they end. Between two turns nothing
moves, so that a look at the store shows what a process would leave that died there.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from crash.lives import MortalStore

from ondol import Agent, Runtime
from ondol.store import Store
from ondol.stores import open_store
from ondol.transactions import Tx
from ondol.worker import EmbeddedEngine

P = ParamSpec("P")
T = TypeVar("T")

#: A transaction: its name, its arguments by name, how it was refused.
Saw = Callable[[str, dict[str, Any], BaseException | None], None]


_signature = functools.lru_cache(maxsize=1_000)(inspect.signature)


class Turns:
    """A store that is given to one at a time. ``saw`` is told of each transaction when it is over."""

    def __init__(self, store: Store, chosen: random.Random, saw: Saw) -> None:
        self.store, self._chosen, self._saw = store, chosen, saw
        self.dies: Callable[[], None] | None = None  # called when the next write is durable, before anybody hears of it
        self._waiting: list[asyncio.Future[None]] = []
        self._inside = 0
        self._left = asyncio.Event()

    async def settle(self, turns: int | None = None) -> None:
        """Let so many through (None: all that come), and return when nothing moves any more."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        while True:
            while ready:  # noqa: ASYNC110 - everybody else first
                await asyncio.sleep(0)
            if self._inside:
                self._left.clear()
                await self._left.wait()
            elif not self._waiting or turns == 0:
                return
            else:
                turns = None if turns is None else turns - 1
                self._waiting.pop(self._chosen.randrange(len(self._waiting))).set_result(None)

    @property
    def queue(self) -> int:
        return len(self._waiting)

    async def _through(self, work: Callable[[], Awaitable[T]]) -> T:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._waiting.remove(turn)
            raise
        return await self._inside_of(work)

    async def _inside_of(self, work: Callable[[], Awaitable[T]]) -> T:
        self._inside += 1
        try:
            return await work()
        finally:
            self._inside -= 1
            self._left.set()

    async def write(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def work() -> T:
            given = dict(_signature(tx).bind(*args, **kwargs).arguments)
            try:
                result = await self.store.write(tx, *args, **kwargs)
            except (Exception, asyncio.CancelledError) as refused:  # whoever is cancelled may have written all the same
                self._saw(tx.__name__, given, refused)
                raise
            self._saw(tx.__name__, given, None)
            if self.dies is not None:
                self.dies()
            return result

        return await self._through(work)

    async def read(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._through(lambda: self.store.read(tx, *args, **kwargs))

    async def open(self, on_change: Callable[[], None]) -> None:
        """Nobody else is there whose changes could be told of, and a listener tells of its own start when it likes."""
        await self._inside_of(lambda: self.store.open(lambda: None))

    async def close(self) -> None:
        await self._inside_of(self.store.close)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args: self._through(lambda: found(*args))


@dataclass(frozen=True, eq=False)
class Gate:
    """Somebody who waits to be told how to go on. ``kind``: a model, a tool of that name, ..."""

    kind: str
    run: str
    told: asyncio.Future[str]


class Gates:
    """All who wait, in the order in which they came."""

    def __init__(self) -> None:
        self.open: list[Gate] = []

    async def wait(self, kind: str, run: str) -> str:
        """What whoever opens the gate says."""
        gate = Gate(kind, run, asyncio.get_running_loop().create_future())
        self.open.append(gate)
        try:
            return await gate.told
        finally:
            self.open.remove(gate)


class Process:
    """A runtime on the store of a URL, all of whose work goes by turns. It can end, and it can die."""

    def __init__(self, url: str, *agents: Agent, chosen: random.Random, saw: Saw, **options: Any) -> None:
        self._others = asyncio.all_tasks()
        self.turns = Turns(open_store(url), chosen, saw)
        self.store = MortalStore(self.turns)
        self.rt = Runtime(self.store, agents=agents, **options)

    @property
    def engine(self) -> EmbeddedEngine:
        assert self.rt._engine is not None
        return self.rt._engine

    @property
    def is_dead(self) -> bool:
        return self.store.died.is_set()

    async def does(self, work: Coroutine[Any, Any, T], turns: int | None = None) -> T | None:
        """The work, with all the turns that it takes. None if the process died of it."""
        doing = asyncio.create_task(work)
        while not doing.done() and not self.is_dead:
            await self.turns.settle(turns)
            if not doing.done() and not self.is_dead and not self.turns.queue:
                await asyncio.sleep(0.001)  # a thread of the opening or the closing store
        return None if self.is_dead else doing.result()

    def die(self) -> None:
        self.store.died.set()

    async def cleared_away(self) -> None:
        """What is left of the dead process goes, as the operating system does it."""
        self.store.gone = True
        await self.turns.settle(0)
        while left := asyncio.all_tasks() - self._others - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        await self.turns.store.close()
