"""C11: a run whose process died does not stay ``running``, and holds up nobody.

The next process takes it up at once, and one that works on the same store takes over when the first is gone. A process
that is asked to end begins nothing more, lets what is in flight come to an end, and gives its runs back.
"""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import kit
import pytest
from kit import Conversation, Outside, app, conversation, holds_in_all_cases, until

from ondol import Agent, Context, ModelRequest, Runtime, tool
from ondol.providers.script import Reply
from ondol.testing import Downstream, call

SESSIONS = ("one", "two", "three")


@tool(effect="once")
async def file_claim(ctx: Context[Outside], case: str) -> str:
    await ctx.deps.effect(ctx, "file_claim", case=case)
    return "filed"


@tool(effect="idempotent")
async def notify(ctx: Context[Outside], case: str) -> str:
    await ctx.deps.effect(ctx, "notify", case=case, dedupe=True)
    return "told"


def clerk() -> Agent:
    def work(request: ModelRequest) -> Reply:
        steps: list[Reply] = [[call("notify", case="7")], [call("file_claim", case="7")], "all done"]
        return steps[request.step]

    model = Conversation({"work": work, "and now?": ["something new"]})
    return Agent("clerk", model=model, tools=[file_claim, notify])


async def said(rt: Runtime, session: str) -> list[tuple[str, str]]:
    return conversation([m.message for m in await (await rt.get_session(session)).messages()])


async def begun(child: kit.App, downstream: Downstream, session: str = "one") -> str:
    """A run that stands inside its first tool, before that has done anything."""
    options: dict[str, Any] = {"session": session, "operation_id": f"work-{session}"}
    run: str = await child.do("start", agent="clerk", input="work", **options)
    await child.do("until", run=run, type="effect.started")
    return run


async def test_c11_after_a_kill_the_next_process_goes_on_and_a_new_message_is_answered(
    db: str, downstream: Downstream
) -> None:
    await downstream.hold("before")
    async with app(__file__, db, downstream) as child:
        run = await begun(child, downstream)
        await downstream.wait_for_held()
        await child.kill()
    await downstream.release()
    agent = clerk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=later()) as rt:
        new = await rt.start(agent, "and now?", session="one", operation_id="new")
        assert (await (await rt.get_run(run)).result()).text == "all done"
        assert (await new.result()).text == "something new"
        assert [s for s, _ in await said(rt, "one")][:2] == ["user", "assistant"]
        assert await rt.runs(state="running") == []
        await holds_in_all_cases(rt, db, agent, "one", downstream, reads=("notify",), clock=later())


async def test_c11_a_second_live_process_takes_over_and_only_when_the_first_is_gone(
    db: str, downstream: Downstream
) -> None:
    await downstream.hold("before")
    async with app(__file__, db, downstream) as first, app(__file__, db, downstream) as second:
        run = await begun(first, downstream)
        new = await second.do("start", agent="clerk", input="and now?", session="one", operation_id="new")
        assert (await second.do("look", run=run))["status"] == "running"  # somebody drives it
        await downstream.wait_for_held()
        await first.kill()
        await second.do("until", run=run, type="run.resumed")  # not never
        assert (await second.do("look", run=run))["status"] == "running"  # and not failed
        await second.do("cancel", run=run, by="kim")
        assert json.loads(await second.do("result", run=new))["text"] == "something new"
        await second.kill()
    await downstream.release()


@pytest.mark.both_stores
async def test_c11_a_process_that_is_asked_to_end_gives_its_runs_back(db: str, downstream: Downstream) -> None:
    await downstream.hold("before")
    async with app(__file__, db, downstream) as child:
        runs = [await begun(child, downstream, session) for session in SESSIONS]
        await downstream.wait_for_held(len(SESSIONS))
        child.process.terminate()
        await child.process.line("asked to end")
        await downstream.release()  # what is in flight comes to its end; no second tool begins
        assert await child.process.wait() == 0, child.process.errors
    assert await downstream.count(tool="notify") == len(SESSIONS)
    assert await downstream.count(tool="file_claim") == 0
    agent = clerk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        for run, session in zip(runs, SESSIONS, strict=True):
            new = await rt.start(agent, "and now?", session=session, operation_id=f"new-{session}")
            assert (await (await rt.get_run(run)).result()).text == "all done"
            assert (await new.result()).text == "something new"
            given_back = await until(await rt.get_run(run), "run.queued")
            assert given_back.data["why"] == "released"
            assert not given_back.data.get("deaths")  # nobody died of it
            assert [e.attempt for e in await (await rt.get_run(run)).effects()] == [1, 1]
    assert await downstream.count(tool="notify") == await downstream.count(tool="file_claim") == len(SESSIONS)


def later() -> kit.WatchedClock:
    """After the deadline of every lost attempt."""
    return kit.WatchedClock(datetime.now(UTC) + timedelta(minutes=5))


async def _look(rt: Runtime, run: str) -> dict[str, Any]:
    return {"status": (await rt.get_run(run)).status}


async def _until_asked_to_end() -> None:
    """As ``kit.serve``; SIGTERM ends it in good order."""
    task = asyncio.current_task()
    assert task is not None

    def ends() -> None:
        print("asked to end", flush=True)
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends)
    try:
        await kit._serve([clerk()], {"look": _look})
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    asyncio.run(_until_asked_to_end())
