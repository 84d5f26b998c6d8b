"""C41: a run that waits for its model holds no connection, and readers are in no writer's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from kit import Outside, asked

from ondol import Agent, Context, Model, ModelOutput, ModelRequest, Runtime, tool
from ondol.testing import Downstream, ScriptedModel, call

RUNS, WRITES = 50, 200


@tool(effect="once")
async def book(ctx: Context[Outside], seat: str) -> str:
    await ctx.deps.effect(ctx, "book", seat=seat)
    return "booked"


class Slow:
    """A model at which many stand at once; who says hello is answered."""

    name = "script"

    def __init__(self) -> None:
        self.inside, self.all_inside, self.may_go = 0, asyncio.Event(), asyncio.Event()
        self.model: Model = ScriptedModel(
            lambda r: (
                "hello to you" if asked(r) == "hello" else [call("book", seat=asked(r))] if r.step == 0 else "done"
            )
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        if asked(request) != "hello" and request.step == 0:
            self.inside += 1
            if self.inside == RUNS:
                self.all_inside.set()
            await self.may_go.wait()
        async for output in self.model.stream(request):
            yield output


def _handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_c41_fifty_that_wait_for_the_model_hold_no_connection_and_all_finish(
    db: str, downstream: Downstream
) -> None:
    slow = Slow()
    agent = Agent("travel", model=slow, tools=[book])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        await rt.run(agent, "hello", operation_id="first")  # what is opened when it is first needed
        handles = _handles()
        runs = await asyncio.gather(*(rt.start(agent, f"seat {n}", operation_id=f"op{n}") for n in range(RUNS)))
        await slow.all_inside.wait()
        assert _handles() <= handles + 5  # a pool may open all of its few
        assert (await rt.run(agent, "hello", operation_id="hello")).text == "hello to you"  # others are answered
        slow.may_go.set()
        assert {(await run.result()).text for run in runs} == {"done"}
        for run in runs:
            assert [(e.state, e.attempt) for e in await run.effects()] == [("succeeded", 1)]
    assert await downstream.count(tool="book") == RUNS


async def test_c41_readers_and_a_writer_never_tell_anybody_that_the_store_is_locked(db: str) -> None:
    agent = Agent("a", model=ScriptedModel(["done"] * 2))
    async with Runtime(db, agents=[agent]) as rt, Runtime(db, agents=[agent]) as other:
        written = asyncio.Event()

        async def reads(door: Runtime) -> int:
            n = 0
            while not written.is_set():
                await door.sessions()
                await door.runs()
                n += 1
            return n

        async def writes() -> None:
            for n in range(WRITES):
                await (rt, other)[n % 2].write_session(f"s{n % 7}", title=f"title {n}")
            written.set()

        *read, _ = await asyncio.gather(reads(rt), reads(other), reads(other), writes())
        assert min(read) > 0
        assert sum(s.revision for s in await rt.sessions()) == WRITES
