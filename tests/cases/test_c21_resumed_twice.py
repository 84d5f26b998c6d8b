"""C21: two that take up the same run at the same moment do not interleave its history.

One holds the claim, and the other finds it held; whoever lost its claim writes nothing more.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from kit import Conversation, Outside

from ondol import Agent, Context, ModelRequest, Run, Runtime, tool
from ondol.errors import ClaimLost, OndolError
from ondol.providers.script import Reply
from ondol.stores import open_store
from ondol.testing import Downstream, call, error
from ondol.transactions import claim, release

TIMES = 100  # that both come at once
pytestmark = pytest.mark.both_stores


@tool(effect="once")
async def charge(ctx: Context[Outside], order: str) -> str:
    await ctx.deps.effect(ctx, "charge", order=order)
    return "charged"


class Paid:
    """An account that is empty so many times. It says so when ``told`` is set, until the next time that it is asked."""

    def __init__(self, empty: int) -> None:
        self.empty = empty
        self.told = asyncio.Event()

    async def __call__(self, request: ModelRequest) -> Reply:
        if request.step == 0:
            return [call("charge", order="1182")]
        await self.told.wait()
        self.told.clear()
        if self.empty > 0:
            self.empty -= 1
            return error("quota")
        return "paid for"


async def _rests(run: Run) -> None:
    with_an_end = await asyncio.gather(run.result(), return_exceptions=True)
    assert isinstance(with_an_end[0], OndolError) or with_an_end[0].text == "paid for"
    await run.refresh()


async def test_c21_resumed_by_two_at_once_a_hundred_times_it_has_one_history(db: str, downstream: Downstream) -> None:
    paid = Paid(TIMES)
    agent = Agent("till", model=Conversation({"charge": paid}), tools=[charge])
    async with AsyncExitStack() as stack:
        doors = [
            await stack.enter_async_context(Runtime(db, agents=[agent], deps=Outside(downstream.url))) for _ in range(2)
        ]
        run = await doors[0].start(agent, "charge", session="s", operation_id="op")
        paid.told.set()
        await _rests(run)
        for _ in range(TIMES):
            assert run.retryable
            taken_up = await asyncio.gather(*(door.resume(run.id) for door in doors))
            assert {r.id for r in taken_up} == {run.id}
            paid.told.set()  # both have come by now
            await _rests(run)
        assert run.status == "completed"
        events = [event async for event in run.events()]
    assert [e.id for e in events] == [f"{run.id}/{n + 1}" for n in range(len(events))]
    kinds = [e.type for e in events]
    assert kinds.count("run.queued") == TIMES  # the second of two found it taken up
    assert kinds.count("run.resumed") == TIMES
    assert kinds.count("step.failed") == TIMES  # and one of them asked the model each time
    assert kinds.count("effect.started") == 1
    assert await downstream.count(tool="charge") == 1


async def test_c21_of_two_that_claim_a_run_one_has_it_and_who_lost_it_writes_nothing(db: str) -> None:
    agent = Agent("till", model=Conversation({"charge": ["done"]}))
    elsewhere = Agent("other", model=Conversation({}))
    async with Runtime(db, agents=[agent, elsewhere]) as rt:
        done = await rt.run(agent, "charge", session="s", operation_id="op")
    stores = [open_store(db) for _ in range(2)]
    for store in stores:
        await store.open(lambda: None)
    try:
        for _ in range(20):
            claims = await asyncio.gather(
                *(store.write(claim, "default", done.run_id, f"owner {n}", 1) for n, store in enumerate(stores))
            )
            assert claims == [None, None]  # it has ended: nobody has it again
        with pytest.raises(ClaimLost):
            await stores[1].write(release, "default", done.run_id, 1, 1)
    finally:
        for store in stores:
            await store.close()
