"""C13: the version of a session is a number that counts, not a time.

A database with a time zone of its own is left out until there is PostgreSQL; the processes have different ones here.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import behind
import pytest
from kit import Conversation, Outside, app, holds_in_all_cases, notes, refused, serve

from ondol import Agent, Context, Limits, ModelRequest, RevisionConflict, RunFailed, Runtime, tool
from ondol.providers.script import Reply
from ondol.testing import Downstream, ManualClock, call, text

pytestmark = pytest.mark.both_stores

EVENTS = 1000  # at least so many of one run
STEPS = 180
WRITES = 100  # explicit writes of a session in a row
RACES = 20  # of two writers


@tool(effect="read")
async def count(ctx: Context[Outside], n: int) -> int:
    return n + 1


def counter(clock: ManualClock) -> Agent:
    """A run with very many entries. Half-way the clock of the machine is set back."""

    def answer(request: ModelRequest) -> Reply:
        if request.step == STEPS // 2:
            clock.advance(seconds=-2)
        return [call("count", n=request.step)] if request.step < STEPS else "counted"

    return Agent("counter", model=Conversation({"count": answer}), tools=[count], limits=Limits(steps=STEPS + 1))


async def test_c13_a_thousand_events_with_equal_times_and_a_clock_set_back(db: str, downstream: Downstream) -> None:
    clock = ManualClock()  # it stands still: all times are equal
    agent = counter(clock)
    async with Runtime(db, agents=[agent], clock=clock) as rt:
        run = await rt.start(agent, "count", session="s", operation_id="m1")
        assert (await run.result()).text == "counted"
        events = [event async for event in run.events()]
        assert len(events) >= EVENTS
        assert [event.id for event in events] == [f"{run.id}/{n}" for n in range(1, len(events) + 1)]
        assert {event.at for event in events} == {clock.now(), clock.now() + timedelta(seconds=2)}
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c13_writes_in_a_row_never_conflict_with_themselves(db: str, downstream: Downstream) -> None:
    clock = ManualClock()
    agent = Agent("clerk", model=Conversation({f"m{n}": ["noted"] for n in range(WRITES)}))
    async with Runtime(db, agents=[agent], clock=clock) as rt:
        for n in range(WRITES):
            if n == WRITES // 2:
                clock.advance(seconds=-2)
            if n % 4:
                session = await rt.write_session("s", state={"n": n}, expected_revision=n)
                assert session.revision == n + 1
            else:
                await rt.run(agent, f"m{n}", session="s", expected_revision=n)
        assert (await rt.get_session("s")).revision == WRITES
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c13_processes_in_different_time_zones_share_a_session(db: str, downstream: Downstream) -> None:
    agent = writer()
    for n, zone in enumerate(["Asia/Seoul", "America/Montevideo", "UTC"]):
        async with app(__file__, db, downstream, TZ=zone) as child:
            await child.do("run", agent="writer", input="write", session="s", expected_revision=n)
    async with Runtime(db, agents=[agent]) as rt:
        runs = await rt.runs(session="s")
        accepted = [run.accepted_at for run in runs]
        assert accepted == sorted(accepted, reverse=True)  # instants, whatever the zone of the process
        assert max(accepted) - min(accepted) < timedelta(hours=1)
        await holds_in_all_cases(rt, db, agent, "s", downstream)


# --- two writers ------------------------------------------------------------------------------------------------


async def write_down(ctx: Context[Outside]) -> str:
    await ctx.deps.effect(ctx, "write_down")
    return "written down"


def writer() -> Agent:
    model = Conversation({"write": [[text("writing"), call("write_down")], "wrote it"]})
    return Agent("writer", model=model, tools=[write_down])


async def set_state(rt: Runtime, session: str, by: str, expected: int) -> int:
    return (await rt.write_session(session, state={"by": by}, expected_revision=expected)).revision


async def test_c13_of_two_true_writers_exactly_one_gets_a_typed_conflict(db: str, downstream: Downstream) -> None:
    agent = writer()
    async with app(__file__, db, downstream) as child, Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        winners = set()
        for n in range(RACES):
            theirs = child.send("set_state", session="s", by="child", expected=n)
            (ours,) = await asyncio.gather(set_state(rt, "s", "test", n), return_exceptions=True)
            won = {"child": await child.answer(theirs), "test": ours}
            (winner,) = (by for by, revision in won.items() if revision == n + 1)
            winners.add(winner)
            lost = won["test" if winner == "child" else "child"]
            if isinstance(lost, RevisionConflict):
                assert (lost.session, lost.expected, lost.actual) == ("s", n, n + 1)
                lost = refused(lost)
            assert lost == refused(RevisionConflict("s", n, n + 1))
            session = await rt.get_session("s")
            assert (session.revision, session.state) == (n + 1, {"by": winner})
        await child.kill()
    async with Runtime(db, agents=[agent]) as rt:
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c13_of_two_operations_that_expect_one_revision_exactly_one_is_accepted(
    db: str, downstream: Downstream
) -> None:
    agent = writer()
    async with app(__file__, db, downstream) as child:
        async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
            for n in range(RACES // 4):
                session = f"s{n}"
                expecting = {"session": session, "expected_revision": 0}
                theirs = child.send("start", agent="writer", input="write", operation_id=f"theirs{n}", **expecting)
                (ours,) = await asyncio.gather(
                    rt.start(agent, "write", operation_id=f"ours{n}", **expecting), return_exceptions=True
                )
                answer = await child.answer(theirs)
                conflicts = [isinstance(ours, RevisionConflict), isinstance(answer, dict)]
                assert sorted(conflicts) == [False, True]
                assert isinstance(answer, str) or answer["error"] == "RevisionConflict"
                (run,) = await rt.runs(session=session)
                await run.result()
                assert await downstream.count() == n + 1
        await child.kill()
    async with Runtime(db, agents=[agent]) as rt:
        await holds_in_all_cases(rt, db, agent, "s0", downstream)


async def test_c13_the_loser_keeps_the_record_of_what_its_tools_did(db: str, downstream: Downstream) -> None:
    agent = writer()
    await downstream.hold("after")
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "write", session="s", operation_id="m1")
        await downstream.wait_for(1)
        behind.execute(db, "UPDATE sessions SET revision = revision + 1")  # nothing of Ondol's own can do this
        await downstream.release()
        with pytest.raises(RunFailed) as lost:
            await run.result()
        assert lost.value.error["code"] == "conflict"
        assert str(RevisionConflict("s", expected=0, actual=1)) in lost.value.error["message"]
        assert not lost.value.retryable
        assert [(e.tool, e.state) for e in await run.effects()] == [("write_down", "succeeded")]
        assert await (await rt.get_session("s")).messages() == []  # never silently merged
        (note,) = notes(await holds_in_all_cases(rt, db, agent, "s", downstream))
        assert "write_down({}): it succeeded" in note


if __name__ == "__main__":
    serve([writer()], set_state=set_state)
