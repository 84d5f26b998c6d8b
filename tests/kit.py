"""What do the tests of a whole runtime share?

``Conversation`` is a strict scripted model with one script for each user message, ``Outside`` what tools reach,
``app`` the same agents in a process of their own, and ``holds_in_all_cases`` what must be true whatever happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ondol import (
    Agent,
    Ask,
    Clock,
    Context,
    Event,
    Message,
    ModelOutput,
    ModelRequest,
    Run,
    Runtime,
    RunWaiting,
    ToolResponse,
)
from ondol.errors import NotFound, OndolError
from ondol.providers.script import Script
from ondol.stores import open_store
from ondol.testing import Downstream, FaultPlan, FaultyStore, ManualClock, Process, ScriptedModel, afault_point
from ondol.testing.downstream import arecord

NEXT = "hello"  # what the user says in the turn after
NEXT_ANSWER = "hello to you"


class Mute(Exception):
    """One that raises when it is asked what it says."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class Conversation:
    """A model that follows one script for each thing that the user says. Each is as strict as a ``ScriptedModel``."""

    def __init__(self, scripts: Mapping[str, Script], *, name: str = "script") -> None:
        self.name = name
        self.of = {said: ScriptedModel(s, name=name) for said, s in {NEXT: [NEXT_ANSWER], **scripts}.items()}
        self.requests: list[ModelRequest] = []
        self._more = asyncio.Event()

    async def asked_times(self, n: int) -> None:
        """Return once it was asked so many times in all."""
        while len(self.requests) < n:
            self._more.clear()
            await self._more.wait()

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        self.requests.append(request)
        self._more.set()
        return self.of[asked(request)].stream(request)


def asked(request: ModelRequest) -> str:
    """What the user said last."""
    return next(m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None)


def notes(request: ModelRequest) -> list[str]:
    """What the runtime itself told the model."""
    return [m.text for m in request.messages if m.origin == "runtime"]


def results(messages: Sequence[Message]) -> list[ToolResponse]:
    """The results of calls, in order."""
    return [p for m in messages for p in m.parts if isinstance(p, ToolResponse)]


def conversation(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Who said what; a call is ``name(arguments)``, a result ``name: result``."""
    said: list[tuple[str, str]] = []
    for message in messages:
        calls = [f"{c.name}({', '.join(f'{k}={v!r}' for k, v in dict(c.arguments).items())})" for c in message.calls]
        said += [(message.role, text) for text in ([message.text] if message.text else []) + calls]
        said += [(message.role, f"{r.name}: {r.response}") for r in results([message])]
    return said


# --- tools ------------------------------------------------------------------------------------------------------


class Gate:
    """A place in a tool, in the loop or in a thread, that a test waits for, and from which it lets the tool go on."""

    def __init__(self) -> None:
        self.reached, self.told = asyncio.Event(), asyncio.Event()
        self._loop, self._opened = asyncio.get_running_loop(), asyncio.Event()
        self._opened_for_threads = threading.Event()

    def reach(self) -> None:
        self._loop.call_soon_threadsafe(self.reached.set)

    def tell(self) -> None:
        """Something else that the test waits for happened."""
        self._loop.call_soon_threadsafe(self.told.set)

    async def wait(self) -> None:
        self.reach()
        await self._opened.wait()

    def block(self) -> None:
        """As ``wait``, in a thread."""
        self.reach()
        self._opened_for_threads.wait()

    def open(self) -> None:
        self._opened.set()
        self._opened_for_threads.set()


@dataclass(frozen=True)
class Outside:
    """What tools get as ``ctx.deps``. Each effect passes the fault points ``<tool>.before`` and ``<tool>.after``."""

    url: str
    plan: FaultPlan = field(default_factory=FaultPlan)

    async def effect(self, ctx: Context[Any], tool: str, *, dedupe: bool = False, **arguments: Any) -> None:
        await afault_point(self.plan, f"{tool}.before")
        await arecord(self.url, ctx.idempotency_key, tool, arguments, dedupe=dedupe)
        await afault_point(self.plan, f"{tool}.after")


class WatchedClock(ManualClock):
    """A clock moved by hand that says when somebody waits for it."""

    def __init__(self, start: datetime | str = "2026-01-01T00:00:00Z") -> None:
        super().__init__(start)
        self._asked: list[float] = []
        self._more = asyncio.Event()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Any:
        timer = super().call_later(seconds, callback)
        self._asked.append(seconds)
        self._more.set()
        return timer

    async def asked(self, seconds: float) -> None:
        """Return once somebody waits until so many seconds have passed, since the last call of this."""
        while not any(abs(asked - seconds) < 1e-3 for asked in self._asked):
            self._more.clear()
            await self._more.wait()
        self._asked.clear()


def cancels_itself() -> None:
    """It cancels the task that it runs in, as a time-out of a library does that goes wrong."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


# --- watching ---------------------------------------------------------------------------------------------------


async def until(run: Run, type: str, n: int = 1, **data: Any) -> Event:
    """The ``n``-th event of that type whose data has these values. Fails when the run comes to rest without it."""
    async for event in run.events():
        if event.type == type and data.items() <= event.data.items():
            n -= 1
            if n == 0:
                return event
    raise AssertionError(f"{run!r} came to rest without {n} more {type} {data}")


async def passes(clock: WatchedClock, failed: Event) -> None:
    """The time until the next attempt of a model call, as the failed one (``step.failed``) says it."""
    wait = failed.data["retry_at"] / 1e6 - clock.now().timestamp()
    await clock.asked(wait)
    clock.advance(wait)


async def rests(clock: WatchedClock, run: Run) -> None:
    """The run comes to rest; the time between its attempts passes."""
    async for event in run.events():
        retry_at = event.data.get("retry_at", 0) / 1e6 if event.type == "step.failed" else 0
        if retry_at > clock.now().timestamp() + 1e-3:
            await passes(clock, event)


async def waits(run: Run) -> list[Ask]:
    """What is asked, once the run waits for a person."""
    with pytest.raises(RunWaiting):
        await run.result()
    return await run.asks()


async def unserved(rt: Runtime, run: Run) -> str:
    """Why no process serves the run, once that is known: a dead one may be taken for living until its lease is over."""
    while (why := await rt.waits_for_driver(run)) is None:  # noqa: ASYNC110 - the clock of a database tells nobody
        await asyncio.sleep(0)
    return why


# --- another process --------------------------------------------------------------------------------------------


class App:
    """A runtime in a process of its own, which does what it is asked to."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._numbers = itertools.count(1)

    def send(self, verb: str, **options: Any) -> int:
        """Ask for something; the answer to this number is not awaited."""
        n = next(self._numbers)
        self.process.send(json.dumps([n, verb, options]))
        return n

    async def answer(self, n: int) -> Any:
        return json.loads((await self.process.line(f"#{n} ")).partition(" ")[2])

    async def do(self, verb: str, **options: Any) -> Any:
        return await self.answer(self.send(verb, **options))

    async def dies(self) -> None:
        """Return when it has ended by SIGKILL."""
        assert await self.process.wait() == -9, self.process.errors

    async def kill(self) -> None:
        self.process.kill()
        await self.dies()


@contextlib.asynccontextmanager
async def app(
    file: str, db: str, downstream: Downstream, plan: FaultPlan | None = None, **env: str
) -> AsyncIterator[App]:
    """The file as a process, which calls ``serve``. Its faults are those of the plan."""
    settings = {
        "ONDOL_DB": db,
        "DOWNSTREAM": downstream.url,
        "ONDOL_FAULTS": (plan or FaultPlan()).to_json(),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    async with Process([file], env=settings | env) as process:
        await process.line("ready")
        yield App(process)


Verb = Callable[..., Awaitable[Any]]


def serve(agents: Sequence[Agent], **verbs: Verb) -> None:
    """Be the other process: open a runtime and do what standard input asks for, until it ends."""
    asyncio.run(_serve(agents, verbs))


async def _serve(agents: Sequence[Agent], verbs: Mapping[str, Verb]) -> None:
    plan = FaultPlan.from_env()
    store = FaultyStore(open_store(os.environ["ONDOL_DB"]), plan)
    outside = Outside(os.environ["DOWNSTREAM"], plan)
    door, zone = os.environ.get("DOOR", "app"), os.environ.get("ZONE")
    async with Runtime(store, agents=agents, deps=outside, door=door, time_zone=zone) as rt:
        print("ready")
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        async with asyncio.TaskGroup() as group:
            async for line in lines:
                number, verb, options = json.loads(line)
                group.create_task(_do(rt, number, {**_VERBS, **verbs}[verb], options))


async def _do(rt: Runtime, number: int, verb: Verb, options: Mapping[str, Any]) -> None:
    try:
        answer = await verb(rt, **options)
    except OndolError as error:
        answer = refused(error)
    print(f"#{number} {json.dumps(answer)}")


def refused(error: OndolError) -> dict[str, str]:
    return {"error": type(error).__name__, "message": str(error)}


async def _start(rt: Runtime, agent: str, input: str, **options: Any) -> str:
    return (await rt.start(agent, input, **options)).id


async def _result(rt: Runtime, run: str) -> str:
    return (await (await rt.get_run(run)).result()).body


async def _run(rt: Runtime, agent: str, input: str, **options: Any) -> dict[str, Any]:
    started = await rt.start(agent, input, **options)
    result = await started.result()
    return {"run": started.id, "body": result.body, "replayed": result.replayed}


async def _until(rt: Runtime, run: str, type: str, n: int = 1, **data: Any) -> dict[str, Any]:
    return (await until(await rt.get_run(run), type, n, **data)).data


async def _decide(rt: Runtime, ask: str, kind: str, by: str, **options: Any) -> dict[str, Any]:
    decided = await getattr(await rt.get_ask(ask), kind)(by=by, **options)
    return {"decision": decided.decision, "by": decided.decided_by}


async def _cancel(rt: Runtime, run: str, by: str) -> str:
    return (await rt.cancel(run, by=by)).status


_VERBS: dict[str, Verb] = {
    "start": _start, "result": _result, "run": _run, "until": _until, "decide": _decide, "cancel": _cancel,
}  # fmt: skip


# --- what is always true ----------------------------------------------------------------------------------------


async def record(rt: Runtime, session: str) -> dict[str, Any]:
    """All that can be seen of a session, in values that compare."""
    runs = await rt.runs(session=session)
    return {
        "session": [getattr(await rt.get_session(session), name) for name in ("revision", "title", "state")],
        "messages": [(m.seq, m.run, m.message) for m in await (await rt.get_session(session)).messages()],
        "asks": [
            (a.id, a.kind, a.state, a.arguments, a.decision, a.decided_by)
            for a in await rt.asks(session=session, state=None)
        ],
        "runs": [await _record_of_run(rt, run) for run in runs],
    }


async def _record_of_run(rt: Runtime, run: Run) -> dict[str, Any]:
    assert run.status in ("completed", "failed", "cancelled", "expired", "waiting", "parked", "joined"), run
    events = [event async for event in run.events()]
    assert [e.id for e in events] == [f"{run.id}/{n + 1}" for n in range(len(events))]
    seen = []
    steps = [e.data["step"] for e in events if e.type == "context.built"]
    for step in dict.fromkeys(steps[:2] + steps[-3:]):
        with contextlib.suppress(NotFound):
            context = await rt.context(run.id, step)
            assert context.matches, f"{run!r}: what the model saw at step {step} cannot be built again"
            seen.append(context)
    return {
        "id": run.id, "operation": run.operation_id, "user": run.user, "status": run.status, "error": run.error,
        "retryable": run.retryable, "accepted": run.accepted_at, "ended": run.ended_at, "tokens": run.tokens,
        "events": events, "effects": await run.effects(), "messages": await run.messages(), "seen": seen,
        "state": await run.state(),
    }  # fmt: skip


async def holds_in_all_cases(
    rt: Runtime, db: str, agent: Agent, session: str, downstream: Downstream, *, reads: Sequence[str] = (),
    clock: Clock | None = None,
) -> ModelRequest:  # fmt: skip
    """Whatever happened: no effect twice, the next turn works, and a fresh process shows the same history.

    ``rt`` is closed by this. ``reads`` names tools that may be seen downstream more than once. Returns the request
    of the next turn: the strict model took it.
    """
    model = getattr(agent.model, "model", agent.model)  # a FaultyModel has it inside
    assert isinstance(model, Conversation)
    before = len(model.of[NEXT].requests)
    assert (await rt.run(agent, NEXT, session=session)).text == NEXT_ANSWER
    (request,) = model.of[NEXT].requests[before:]

    shown = await record(rt, session)
    await rt.close()
    async with Runtime(db, agents=[agent], clock=clock) as fresh:
        assert await record(fresh, session) == shown
    counts = Counter(line.key for line in await downstream.effects() if line.tool not in reads)
    assert None not in counts, "an effect without a key"
    assert {key: n for key, n in counts.items() if n > 1} == {}, "an effect happened twice"
    return request
