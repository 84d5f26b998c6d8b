"""Family ``crowd``: ten thousand runs stand inside their model calls while others arrive.

Each of those holds a task and no connection. Who arrives meanwhile is accepted at once and answered; memory does not
grow with what has been answered. In the tests a smaller crowd stands at a gate, and nothing depends on time; the
campaign measures.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crash import invariants

from ondol import Agent, Limits, RunResult, Runtime
from ondol.model import ModelOutput, ModelRequest
from ondol.testing import ScriptedModel
from torture.campaign import Family, Place

RUNS, SMALL = 10_000, 500
SECONDS, A_SECOND = 60.0, 150  # that the crowd stands inside; operations that arrive meanwhile
P99 = 0.300  # seconds until an operation is accepted
MEMORY, GROWTH = 1_500_000_000, 1.15  # bytes; what may come on top between the first third of the arrivals and the end
A_RUN = 150_000  # bytes that a run which stands inside may hold


@dataclass
class Crowd:
    """``inside``: those whose model is asked and does not answer yet."""

    runs: int
    inside: set[str] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)
    all_inside: asyncio.Event = field(default_factory=asyncio.Event)
    may_go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return "script"

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        self.asked[request.run] += 1
        return self._slow(request) if request.messages[-1].text == "slowly" else _answer(request, "at once")

    async def _slow(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        self.inside.add(request.run)
        if len(self.inside) == self.runs:
            self.all_inside.set()
        await self.may_go.wait()
        async for output in _answer(request, "at last"):
            yield output


async def _answer(request: ModelRequest, text: str) -> AsyncIterator[ModelOutput]:
    async for output in ScriptedModel([text]).stream(request):
        yield output


@dataclass
class Seen:
    """What was measured: seconds until accepted, bytes in memory after each arrival. And what clients were told."""

    accepted: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)

    def told(self, result: RunResult, operation: str) -> None:
        reply = {"event": "reply", "operation": operation, "body": result.body, "session": result.session}
        self.log.append(reply | {"revision": result.revision})

    @property
    def p99(self) -> float:
        return sorted(self.accepted)[len(self.accepted) * 99 // 100]


async def stands(store: str, file: Path, runs: int, arrivals: int, a_second: float | None, slots: int) -> Seen:
    """That many runs stand inside, that many others arrive (so many a second, or as fast as they are answered)."""
    crowd, seen = Crowd(runs), Seen()
    agent = Agent("a", model=crowd)
    async with Runtime(store, agents=[agent], limits=Limits(runs=slots)) as rt:
        tasks = len(asyncio.all_tasks())
        handles = _handles()
        for first in range(0, runs, 500):
            numbers = range(first, min(first + 500, runs))
            seen.log += [{"event": "sent", "operation": f"slow{n}"} for n in numbers]
            began = await asyncio.gather(*(rt.start(agent, "slowly", operation_id=f"slow{n}") for n in numbers))
            seen.log += [{"event": "accepted", "operation": run.operation_id, "run": run.id} for run in began]
        try:
            async with asyncio.timeout(None if slots > runs else 1):
                await crowd.all_inside.wait()
        except TimeoutError:
            crowd.may_go.set()
            raise
        assert _handles() - handles <= 5, "a run that waits for its model holds something open"

        async def arrives(n: int) -> None:
            began = time.perf_counter()
            seen.log.append({"event": "sent", "operation": f"quick{n}"})
            run = await rt.start(agent, "hello", operation_id=f"quick{n}", session=f"q{n % 50}")
            seen.accepted.append(time.perf_counter() - began)
            seen.log.append({"event": "accepted", "operation": f"quick{n}", "run": run.id})
            result = await run.result()
            assert result.text == "at once"
            seen.told(result, f"quick{n}")
            seen.memory.append(_memory())

        opened = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for n in range(arrivals):
                if a_second is not None:
                    await asyncio.sleep(max(0.0, opened + n / a_second - time.perf_counter()))
                    group.create_task(arrives(n))
                else:
                    await arrives(n)
        assert len(crowd.inside) == runs, "the crowd did not stand still"
        assert {r.status for r in await rt.runs(state="running", limit=runs + 1)} == {"running"}
        crowd.may_go.set()
        for n in range(runs):
            result = await (await rt.find_run(f"slow{n}")).result()
            assert result.text == "at last"
            seen.told(result, f"slow{n}")
        gc.collect()
        assert len(asyncio.all_tasks()) <= tasks + 2, "tasks are left"
    written = invariants.written(f"sqlite:///{file}")
    assert Counter(r.state for r in written.runs.values()) == {"completed": runs + arrivals}
    assert set(crowd.asked.values()) == {1}
    invariants.nothing_runs(written)
    invariants.nothing_uncommitted_is_in_a_session(written)
    invariants.accepted_operations_are_there(written, seen.log)
    invariants.journals_are_whole(written)
    invariants.replies_agree(written, seen.log)
    invariants.model_calls_are_bounded(written, crowd.asked)
    if runs <= SMALL:  # the others compare each with each
        invariants.hold(written, (), seen.log, crowd.asked)
    return seen


async def case(seed: int, place: Place, url: str | None = None) -> None:
    file = place.folder / "ondol.db"
    arrivals = int(SECONDS * A_SECOND)
    seen = await stands(url or f"sqlite:///{file}", file, RUNS, arrivals, A_SECOND, RUNS + 1000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    early, late = max(seen.memory[: arrivals // 3]), max(seen.memory)
    print(f"crowd: accepted within {seen.p99 * 1000:.0f} ms (p99), {late / 1e6:.0f} MB, at most {peak / 1e6:.0f} MB")
    assert seen.p99 < P99, f"p99 of accepting is {seen.p99:.3f} s"
    assert late < MEMORY, f"{late} bytes"
    assert late < early * GROWTH, f"memory grew from {early} to {late} bytes while {arrivals} came and went"


async def control(seed: int, place: Place) -> None:
    """A process that drives fewer at once than there are."""
    file = place.folder / "ondol.db"
    try:
        await stands(f"sqlite:///{file}", file, 40, 1, None, slots=20)
    except TimeoutError as never:
        raise AssertionError("not all of them were driven") from never


FAMILY = Family(case=case, control=control, cases=3, limit=1200, tries=1)


async def test_a_crowd_inside_the_model_is_in_nobodys_way(place: Place) -> None:
    file = place.folder / "ondol.db"
    gc.collect()
    before = _memory()
    seen = await stands(f"sqlite:///{file}", file, SMALL, 150, None, SMALL + 50)
    assert max(seen.memory) - before < SMALL * A_RUN
    middle, late = max(seen.memory[:75]), max(seen.memory)
    assert late - middle < 75 * A_RUN


async def test_a_crowd_that_is_not_driven_at_once_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)


def _memory() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
