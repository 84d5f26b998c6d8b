"""How does a process die inside a test, and leave nothing behind but its store?

``Life`` is a runtime on a store that can be stopped dead: from that instant no write reaches the store, no answer of
the store reaches the runtime, and nothing is closed in good order. Its connections, its lock or its lease are then let
go, as the operating system and time do for a process that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from ondol import Agent, Runtime
from ondol.store import Store
from ondol.stores import open_store
from ondol.testing import FaultPlan, FaultyStore, ManualClock
from ondol.transactions import Tx
from ondol.worker import EmbeddedEngine

P = ParamSpec("P")
T = TypeVar("T")

SOON = 30.0  # seconds; what never comes is noticed, though slowly; a busy disk is waited for


class HurriedClock(ManualClock):
    """It stands still, but nobody waits for the pause between two attempts to write."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Any:
        return super().call_later(0 if seconds <= 0.5 else seconds, callback)


class MortalStore:
    """A store whose process can die. What hangs on it then is never answered, and what comes later is unwound."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.died = asyncio.Event()
        self.gone = False  # what is left of the process is being cleared away
        self.others: set[str] = set()  # owners that are alive, as a test has it

    async def _alive(self) -> None:
        if self.gone:
            raise asyncio.CancelledError
        if self.died.is_set():
            await asyncio.get_running_loop().create_future()

    async def write(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._alive()
        result = await self.store.write(tx, *args, **kwargs)
        await self._alive()
        return result

    async def read(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._alive()
        result = await self.store.read(tx, *args, **kwargs)
        await self._alive()
        return result

    async def put_blob(self, tenant: str, data: bytes) -> str:
        await self._alive()
        digest = await self.store.put_blob(tenant, data)
        await self._alive()
        return digest

    async def get_blob(self, tenant: str, digest: str) -> bytes:
        await self._alive()
        return await self.store.get_blob(tenant, digest)

    async def drop_blob(self, tenant: str, digest: str) -> None:
        await self._alive()
        await self.store.drop_blob(tenant, digest)

    async def open(self, on_change: Callable[[], None]) -> None:
        await self.store.open(on_change)

    async def close(self) -> None:
        await self._alive()
        await self.store.close()

    async def drives(self, owner: str, agents: Sequence[str]) -> bool:
        return await self.store.drives(owner, agents)

    async def drivers(self) -> Mapping[str, Sequence[str]]:
        return {**dict.fromkeys(self.others, ()), **await self.store.drivers()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Death:
    """The fault: the process that passes it stops there. One that is given to several lives ends the one it meets."""

    store: MortalStore

    def hit(self) -> None:
        raise TypeError("a process dies where it can be awaited: use afault_point there")

    async def ahit(self) -> None:
        if self.store.gone:  # the dead do not die once more as they are cleared away
            raise asyncio.CancelledError
        self.store.died.set()
        await asyncio.get_running_loop().create_future()


class Life:
    """A process with a runtime in it, on the store of a URL that outlives it.

        async with Life(db, agent, dies_at="answer.before") as life:
            await life.ends(life.rt.run(agent, "hi"))

    ``dies_at`` names a point of the plan, passed for the ``nth`` time; a plan that has a ``death`` in it brings that.
    Without a death the block ends with a clean shutdown. A process can die while it opens: then the block begins with
    a dead one.
    """

    def __init__(
        self,
        db: str,
        *agents: Agent,
        dies_at: str | None = None,
        nth: int = 1,
        plan: FaultPlan | None = None,
        death: Death | None = None,
        **options: Any,
    ) -> None:
        self.plan = plan or FaultPlan()
        self._own = open_store(db)
        self.store = MortalStore(self._own)
        death = death or Death()
        death.store = self.store
        if dies_at is not None:
            self.plan.at(dies_at, nth=nth, fault=death)
        self.rt = Runtime(FaultyStore(self.store, self.plan), agents=agents, **options)
        self._others: set[asyncio.Task[Any]] = set()
        self._was_cut_off = False

    @property
    def is_dead(self) -> bool:
        return self.store.died.is_set()

    @property
    def engine(self) -> EmbeddedEngine:
        assert self.rt._engine is not None
        return self.rt._engine

    async def __aenter__(self) -> Life:
        self._others = asyncio.all_tasks()
        try:
            await self.lives_or_dies(self.rt.open())
        except BaseException:  # a test that is cut off too: its connections must not stay open
            await self._own.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if not self.is_dead and not self._was_cut_off:
                await (self.lives_or_dies(self.rt.close()) if kind is None else self.rt.close())
        except BaseException:  # it could not be closed in good order: its process ends all the same
            self._was_cut_off = True
            raise
        finally:
            if self.is_dead or self._was_cut_off:
                self.store.gone = True
                await self._end_tasks()
                await self._own.close()

    async def lives_or_dies(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await the work, or the death that comes before its end."""
        doing = asyncio.create_task(work)
        dying = asyncio.create_task(self.store.died.wait())
        await asyncio.wait({doing, dying}, return_when=asyncio.FIRST_COMPLETED)
        if self.is_dead:
            return None
        dying.cancel()
        await asyncio.wait({dying})
        return doing.result()

    async def ends(self, work: Coroutine[Any, Any, Any] | None = None) -> None:
        """Do the work until the process dies of it, or wait until it dies of what it found. Fails if it does not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SOON):
                await self.lives_or_dies(work or self.store.died.wait())
        assert self.is_dead, f"{self.plan.unreached} was not passed, but {self.plan.passed}"

    def die(self) -> None:
        """The process stops here and now. What is left of it is cleared away at the end of the block."""
        self.store.died.set()

    async def cut_off(self) -> None:
        """Cancel all of its tasks, as ``asyncio.run`` does when its program ends; nothing is closed in good order."""
        self._was_cut_off = True
        self.store.gone = self.is_dead  # both at once
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        while left := asyncio.all_tasks() - self._others - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
