"""What goes wrong, and exactly where?

A *point* is a named place that is passed while a program runs, before or after something is done:

    a write of the store     ``accept`` ``claim`` ``answer`` ``started`` ``outcome`` ``commit`` ...: the name of the
                             transaction's function, with ``FaultyStore``; every write also passes ``write``
    any call of the store    the same with what it reads, and ``put_blob`` ``get_blob`` ``drop_blob`` ``tidy_blobs``
                             ``drives`` ``drivers`` ``open`` ``close``; every call also passes ``call``
    a model call             ``model.before`` ``model.delta`` (each piece) ``model.after``, with ``FaultyModel``
    anything in a tool       ``await afault_point(plan, "charge")``

``accept`` claims the run as well, where this process can drive it at once. A plan with a fault at ``claim`` keeps the
two apart.

A ``FaultPlan`` says what happens at which passing of which point. A first pass with an empty plan counts them
(``plan.writes``, ``plan.calls``), and then each can be tried:

    plan = FaultPlan().at("outcome", when="after", nth=2, fault=kill())
    Runtime(FaultyStore(store, plan), ...)
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast, get_args

from ondol.clock import Clock, SystemClock, sleep
from ondol.errors import InvalidInput, ModelError
from ondol.model import Answer, Model, ModelOutput, ModelRequest
from ondol.providers.script import ScriptedError
from ondol.store import Store
from ondol.transactions import NewRun, Tx

P = ParamSpec("P")
T = TypeVar("T")

When = Literal["before", "after", "delta"]


class Fault(Protocol):
    """What happens at a point. ``hit`` returns to let the program go on."""

    def hit(self) -> None:
        """Where nothing can be awaited. Raises TypeError if the fault has to be."""
        ...

    async def ahit(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Signal:
    """The process sends itself a signal."""

    name: Literal["kill", "stop"]

    def hit(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL if self.name == "kill" else signal.SIGSTOP)

    async def ahit(self) -> None:
        self.hit()


@dataclass(frozen=True, slots=True)
class _Raise:
    exception: BaseException | type[BaseException] | ScriptedError

    def hit(self) -> None:
        raise self.exception.exception() if isinstance(self.exception, ScriptedError) else self.exception

    async def ahit(self) -> None:
        self.hit()


class _Awaited:
    def hit(self) -> None:
        raise TypeError(f"{type(self).__name__.lower().strip('_')}() has to be awaited: use afault_point there")


@dataclass(frozen=True, slots=True)
class _Delay(_Awaited):
    until: asyncio.Event | float
    clock: Clock

    async def ahit(self) -> None:
        if isinstance(self.until, asyncio.Event):
            await self.until.wait()
        else:
            await sleep(self.clock, self.until)


class Barrier(_Awaited):
    """The program waits here. ``await barrier.reached.wait()``, look around, then ``barrier.go_on.set()``."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def ahit(self) -> None:
        self.reached.set()
        await self.go_on.wait()


def kill() -> Fault:
    """The process ends at once (SIGKILL), as when the power goes."""
    return _Signal("kill")


def stop() -> Fault:
    """The process stands still (SIGSTOP) until somebody sends SIGCONT, as when a machine is paused."""
    return _Signal("stop")


def raise_(exception: BaseException | type[BaseException] | ScriptedError) -> Fault:
    """An exception is raised, or a model's ``error(...)``. After a write it says that the answer was lost."""
    return _Raise(exception)


def delay(until: asyncio.Event | float, clock: Clock | None = None) -> Fault:
    """Nothing goes on until the event is set, or that many seconds have passed on the clock (default: the system's)."""
    return _Delay(until, clock or SystemClock())


def barrier() -> Barrier:
    """The program waits for the test, and the test for the program."""
    return Barrier()


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    point: str
    nth: int | None
    fault: Fault


class FaultPlan:
    """Which fault happens where. Without any it only counts.

    ``writes`` holds the names of the writes so far, in the order in which they began, ``calls`` those of all calls of
    the store, ``passed`` those of all points (``"outcome.before"``).
    """

    def __init__(self) -> None:
        self.writes: list[str] = []
        self.calls: list[str] = []
        self.passed: list[str] = []
        self._planned: list[_Planned] = []
        self._counts: Counter[str] = Counter()
        self._hit: set[_Planned] = set()

    def at(self, point: str, *, when: When | None = None, nth: int | None = 1, fault: Fault) -> FaultPlan:
        """Plan a fault for the ``nth`` passing of a point, or with ``nth=None`` for each. Returns the plan.

        ``when`` may be part of the name: ``at("outcome.after")``. Without either it is ``before``.
        """
        if nth is not None and nth < 1:
            raise InvalidInput(f"nth counts from 1, not {nth}")
        if isinstance(fault, type) or not hasattr(fault, "ahit"):
            raise InvalidInput(f"{fault!r} is no fault: say kill(), stop(), raise_(...), delay(...) or barrier()")
        if when is not None and when not in get_args(When):
            raise InvalidInput(f"when={when!r} is unknown: say {', '.join(get_args(When))}")
        self._planned.append(_Planned(_full(point, when), nth, fault))
        return self

    def at_write(self, k: int, when: When, fault: Fault) -> FaultPlan:
        """Plan a fault for the ``k``-th write of any kind, counted from 1."""
        return self.at("write", when=when, nth=k, fault=fault)

    @property
    def unreached(self) -> list[str]:
        """The planned points that have not been passed: a test that ends with some has tested nothing there."""
        return [f"{p.point} #{p.nth or 1}" for p in self._planned if p not in self._hit]

    def plans(self, point: str) -> bool:
        """Is there a fault at the point, whenever?"""
        return any(p.point.rpartition(".")[0] == point for p in self._planned)

    # --- passing points -----------------------------------------------------------------------------------------

    def enter(self, point: str) -> int:
        """Count something that begins, and return which time it is. What comes after it has the same number."""
        self._counts[point] += 1
        return self._counts[point]

    def faults(self, point: str, number: int) -> list[Fault]:
        """The point is passed for that time: what is planned there?"""
        self.passed.append(point)
        due = [p for p in self._planned if p.point == point and p.nth in (None, number)]
        self._hit.update(due)
        return [p.fault for p in due]

    async def pass_(self, point: str, number: int) -> None:
        for fault in self.faults(point, number):
            await fault.ahit()

    # --- for another process ------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The plan as a text for another process. Raises InvalidInput where a fault is not kill, stop or raise."""
        return json.dumps([{"at": p.point, "nth": p.nth, **_fault_to_json(p.fault)} for p in self._planned])

    @classmethod
    def from_json(cls, text: str) -> FaultPlan:
        """The plan that ``to_json`` wrote. Raises InvalidInput."""
        plan = cls()
        try:
            for item in json.loads(text):
                plan.at(item["at"], nth=item["nth"], fault=_fault_from_json(item))
        except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
            raise InvalidInput(f"this is not a fault plan ({error!r}): {text[:200]}") from error
        return plan

    @classmethod
    def from_env(cls, name: str = "ONDOL_FAULTS") -> FaultPlan:
        """The plan in that environment variable; an empty one if it is not set."""
        return cls.from_json(os.environ.get(name) or "[]")


def _full(point: str, when: str | None = None) -> str:
    if point.rpartition(".")[2] in get_args(When):
        if when is not None and not point.endswith(f".{when}"):
            raise InvalidInput(f"{point!r} says when, and when={when!r} says it differently: leave one out")
        return point
    return f"{point}.{when or 'before'}"


def _fault_to_json(fault: Fault) -> dict[str, Any]:
    match fault:
        case _Signal(name):
            return {"fault": name}
        case _Raise(ScriptedError() as scripted) | _Raise(ModelError() as scripted):
            fields = {"kind": scripted.kind, "retry_after": scripted.retry_after, "sent": scripted.sent}
            message = scripted.message if isinstance(scripted, ScriptedError) else str(scripted)
            return {"fault": "error", **fields, "message": message}
        case _Raise(type() as kind):
            return _raise_to_json(kind, ())
        case _Raise(BaseException() as exception):
            return _raise_to_json(type(exception), exception.args)
        case _:
            raise InvalidInput(f"{type(fault).__name__} cannot be told to another process: use kill, stop or raise_")


def _raise_to_json(kind: type[BaseException], args: tuple[Any, ...]) -> dict[str, Any]:
    try:
        kind(*args)
        json.dumps(args)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{kind.__name__}{args} cannot be written down and made again: raise another one") from error
    return {"fault": "raise", "type": f"{kind.__module__}:{kind.__qualname__}", "args": args}


def _fault_from_json(item: Mapping[str, Any]) -> Fault:
    match item["fault"]:
        case "kill" | "stop" as name:
            return _Signal(name)
        case "error":
            return _Raise(ScriptedError(item["kind"], item["message"], item["retry_after"], item["sent"]))
        case "raise":
            module, _, name = item["type"].partition(":")
            kind = functools.reduce(getattr, name.split("."), importlib.import_module(module))
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(f"{item['type']} is not an exception")
            return _Raise(kind(*item["args"]))
        case other:
            raise ValueError(f"no fault {other!r}")


# --- points in one's own code -----------------------------------------------------------------------------------


def fault_point(plan: FaultPlan | None, name: str) -> None:
    """Pass a point of that name (``"charge"``, or ``"charge.after"``). Without a plan nothing happens."""
    if plan is not None:
        point = _full(name)
        for fault in plan.faults(point, plan.enter(point)):
            fault.hit()


async def afault_point(plan: FaultPlan | None, name: str) -> None:
    """As ``fault_point``, where the program may also be made to wait."""
    if plan is not None:
        point = _full(name)
        await plan.pass_(point, plan.enter(point))


# --- around the store and the model -----------------------------------------------------------------------------


class FaultyStore:
    """A store that passes points before and after each call. All else is the store's own."""

    def __init__(self, store: Store, plan: FaultPlan) -> None:
        self.store = store
        self.plan = plan

    async def write(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        name = _name(tx)
        self.plan.writes.append(name)
        given: Any = args
        if name == "accept" and self.plan.plans("claim"):
            given = [a._replace(owner=None) if isinstance(a, NewRun) else a for a in args]
        return await self._passing(["call", "write", name], lambda: self.store.write(tx, *given, **kwargs))

    async def read(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._passing(["call", _name(tx)], lambda: self.store.read(tx, *args, **kwargs))

    async def put_blob(self, tenant: str, data: bytes) -> str:
        return await self._passing(["call", "put_blob"], lambda: self.store.put_blob(tenant, data))

    async def get_blob(self, tenant: str, digest: str) -> bytes:
        return await self._passing(["call", "get_blob"], lambda: self.store.get_blob(tenant, digest))

    async def drop_blob(self, tenant: str, digest: str) -> None:
        await self._passing(["call", "drop_blob"], lambda: self.store.drop_blob(tenant, digest))

    async def tidy_blobs(self, tenant: str, before: datetime) -> None:
        await self._passing(["call", "tidy_blobs"], lambda: self.store.tidy_blobs(tenant, before))

    async def drives(self, owner: str, agents: Sequence[str]) -> bool:
        return await self._passing(["call", "drives"], lambda: self.store.drives(owner, agents))

    async def drivers(self) -> Mapping[str, Sequence[str]]:
        return await self._passing(["call", "drivers"], self.store.drivers)

    async def open(self, on_change: Callable[[], None]) -> None:
        await self._passing(["call", "open"], lambda: self.store.open(on_change))

    async def close(self) -> None:
        await self._passing(["call", "close"], self.store.close)

    async def _passing(self, points: list[str], call: Callable[[], Awaitable[T]]) -> T:
        self.plan.calls.append(points[-1])
        numbered = [(point, self.plan.enter(point)) for point in points]
        for point, nth in numbered:
            await self.plan.pass_(f"{point}.before", nth)
        result = await call()
        for point, nth in reversed(numbered):
            await self.plan.pass_(f"{point}.after", nth)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)  # what a store has beyond the Protocol


class FaultyModel:
    """A model that passes ``model.before`` the request, ``model.delta`` each piece, ``model.after`` the answer.

    After it, the answer is complete (and paid for) but not yet handed over.
    """

    def __init__(self, model: Model, plan: FaultPlan) -> None:
        self.model = model
        self.plan = plan

    @property
    def name(self) -> str:
        return self.model.name

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        nth = self.plan.enter("model")
        await self.plan.pass_("model.before", nth)
        async with aclosing(cast(Any, self.model.stream(request))) as outputs:
            async for output in outputs:
                if isinstance(output, Answer):
                    await self.plan.pass_("model.after", nth)
                else:
                    await self.plan.pass_("model.delta", self.plan.enter("model.delta"))
                yield output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def _name(tx: Callable[..., object]) -> str:
    while isinstance(tx, functools.partial):
        tx = tx.func
    return getattr(tx, "__name__", type(tx).__name__)
