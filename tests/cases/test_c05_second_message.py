"""C05: a second message during a running turn waits for its turn, or is refused; no answer is lost.

Or it interrupts, or steers. (On SQLite one process drives, the other one submits, which is tested.)
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kit import Conversation, Gate, Outside, app, conversation, holds_in_all_cases, serve, until, waits

from ondol import Agent, Context, ModelRequest, RunCancelled, RunFailed, Runtime, SessionBusy, tool
from ondol.providers.script import Reply
from ondol.testing import Downstream, FaultPlan, call, error, kill

pytestmark = pytest.mark.both_stores

BURST = 10  # messages that arrive together


async def make_branch(ctx: Context[Outside], name: str) -> str:
    await ctx.deps.effect(ctx, "make_branch", name=name)
    return f"branch {name} made"


class Team:
    """An agent whose model stands still at a gate, and which counts how many model calls run at once."""

    def __init__(self, *gated: str) -> None:
        self.gates = {said: Gate() for said in gated}
        self.at_once = self.most_at_once = 0
        scripts = {"make a branch": self._branch, **{f"message {n}": self._answer for n in range(1, BURST + 1)}}
        self.model = Conversation(scripts)
        self.agent = Agent("team", model=self.model, tools=[make_branch])

    async def _stand(self, request: ModelRequest, said: str) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if gate := self.gates.get(said):
                await gate.wait()
        finally:
            self.at_once -= 1

    async def _branch(self, request: ModelRequest) -> Reply:
        await self._stand(request, "make a branch")
        return [call("make_branch", name="fix")] if request.step == 0 else "the branch is made"

    async def _answer(self, request: ModelRequest) -> Reply:
        said = request.messages[-1].text
        await self._stand(request, said)
        return f"answer to {said}"


BRANCH = [
    ("user", "make a branch"), ("assistant", "make_branch(name='fix')"), ("tool", "make_branch: branch fix made"),
    ("assistant", "the branch is made"),
]  # fmt: skip


async def committed(rt: Runtime, session: str = "s") -> list[tuple[str, str]]:
    return conversation([m.message for m in await (await rt.get_session(session)).messages()])


@pytest.mark.parametrize("moment", ["model", "tool"])
async def test_c05_a_second_message_waits_in_the_queue(db: str, downstream: Downstream, moment: str) -> None:
    team = Team(*(["make a branch"] if moment == "model" else []))
    if moment == "tool":
        await downstream.hold("before")
    async with Runtime(db, agents=[team.agent], deps=Outside(downstream.url)) as rt:
        first = await rt.start(team.agent, "make a branch", session="s", operation_id="m1")
        await (team.gates["make a branch"].reached.wait() if moment == "model" else downstream.wait_for_held())
        second = await rt.start(team.agent, "message 2", session="s", operation_id="m2")
        assert (await second.refresh()).status == "queued"
        assert team.model.of["message 2"].requests == []
        if moment == "model":
            team.gates["make a branch"].open()
        await downstream.release()
        assert (await second.result()).text == "answer to message 2"
        assert (await first.result()).text == "the branch is made"

        assert await committed(rt) == [*BRANCH, ("user", "message 2"), ("assistant", "answer to message 2")]
        (request,) = team.model.of["message 2"].requests
        assert conversation(request.messages)[1:-1] == BRANCH  # it knows what came before it
        assert team.most_at_once == 1
        assert await downstream.count(tool="make_branch") == 1
        await holds_in_all_cases(rt, db, team.agent, "s", downstream)


async def test_c05_a_burst_of_messages_is_answered_one_by_one_in_the_order_of_acceptance(
    db: str, downstream: Downstream
) -> None:
    team = Team()
    async with Runtime(db, agents=[team.agent], deps=Outside(downstream.url)) as rt:
        order: list[str] = []

        async def send(n: int) -> None:
            run = await rt.start(team.agent, f"message {n}", session="s", operation_id=f"m{n}")
            order.append(f"message {n}")
            await run.result()

        async with asyncio.TaskGroup() as group:
            for n in range(1, BURST + 1):
                group.create_task(send(n))
        said = [text for role, text in await committed(rt) if role == "user"]
        assert said == order
        assert [text for role, text in await committed(rt) if role == "assistant"] == [f"answer to {s}" for s in said]
        assert team.most_at_once == 1
        revisions = [(await run.result()).revision for run in reversed(await rt.runs(session="s"))]
        assert sorted(revisions) == list(range(1, BURST + 1))  # each turn its own revision
        await holds_in_all_cases(rt, db, team.agent, "s", downstream)


async def test_c05_reject_names_the_running_run_and_leaves_no_trace(db: str, downstream: Downstream) -> None:
    team = Team("make a branch")
    async with Runtime(db, agents=[team.agent], deps=Outside(downstream.url)) as rt:
        first = await rt.start(team.agent, "make a branch", session="s", operation_id="m1")
        await team.gates["make a branch"].reached.wait()
        with pytest.raises(SessionBusy, match=first.id) as busy:
            await rt.start(team.agent, "message 2", session="s", operation_id="m2", if_busy="reject")
        assert busy.value.run == first.id
        team.gates["make a branch"].open()
        await first.result()
        assert await committed(rt) == BRANCH
        again = await rt.run(team.agent, "message 2", session="s", operation_id="m2", if_busy="reject")
        assert again.text == "answer to message 2"  # the refused operation was never accepted, so it is free
        await holds_in_all_cases(rt, db, team.agent, "s", downstream)


async def test_c05_the_same_message_delivered_twice_at_once_is_one_turn(db: str, downstream: Downstream) -> None:
    team = Team()
    async with Runtime(db, agents=[team.agent], deps=Outside(downstream.url)) as rt:
        twice = await asyncio.gather(
            *(rt.run(team.agent, "make a branch", session="s", operation_id="m1") for _ in range(BURST))
        )
        assert len({result.body for result in twice}) == 1
        assert await committed(rt) == BRANCH
        assert len(team.model.requests) == 2
        await holds_in_all_cases(rt, db, team.agent, "s", downstream)


@pytest.mark.parametrize("end", ["fails", "cancelled", "denied"])
async def test_c05_the_second_message_is_answered_however_the_first_turn_ends(
    db: str, downstream: Downstream, end: str
) -> None:
    script = [[call("make_branch", name="fix")], error("rejected", "the provider said no")]
    model = Conversation({"make a branch": script, "message 2": ["answer to message 2"]})
    agent = Agent("team", model=model, tools=[tool(approve=True)(make_branch)])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        first = await rt.start(agent, "make a branch", session="s", operation_id="m1")
        (ask,) = await waits(first)
        second = await rt.start(agent, "message 2", session="s", operation_id="m2")
        assert (await second.refresh()).status == "queued"  # a turn that waits for a person is not finished
        match end:
            case "fails":
                await ask.approve(by="kim")
            case "denied":
                await ask.deny(by="kim")
            case "cancelled":
                await first.cancel(by="kim")
        assert (await second.result()).text == "answer to message 2"
        with pytest.raises(RunCancelled if end == "cancelled" else RunFailed):
            await first.result()
        assert await downstream.count() == int(end == "fails")
        await holds_in_all_cases(rt, db, agent, "s", downstream)


# --- two processes on one store ---------------------------------------------------------------------------------


def in_another_process() -> Agent:
    model = Conversation({
        "make a branch": [[call("make_branch", name="fix")], "the branch is made"],
        "message 2": lambda request: "answer to message 2",
    })  # fmt: skip
    return Agent("team", model=model, tools=[make_branch])


async def test_c05_two_processes_on_one_store_have_the_same_queue(db: str, downstream: Downstream) -> None:
    await downstream.hold("before")
    agent = in_another_process()
    async with app(__file__, db, downstream) as driver, Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        assert rt.drives == db.startswith("postgresql")  # where it can, it takes part
        first = await driver.do("start", agent="team", input="make a branch", session="s", operation_id="m1")
        await downstream.wait_for_held()
        with pytest.raises(SessionBusy, match=first):
            await rt.start(agent, "message 2", session="s", operation_id="m2", if_busy="reject")
        second = await rt.start(agent, "message 2", session="s", operation_id="m2")
        assert (await second.refresh()).status == "queued"
        await downstream.release()
        assert (await second.result()).text == "answer to message 2"
        assert (await (await rt.get_run(first)).result()).text == "the branch is made"
        assert await committed(rt) == [*BRANCH, ("user", "message 2"), ("assistant", "answer to message 2")]
        assert rt.drives or model_requests(agent) == 0  # it was driven over there
        await driver.kill()
    async with Runtime(db, agents=[agent]) as rt:
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize("if_busy", ["interrupt", "steer"])
async def test_c05_two_processes_agree_on_a_message_that_stops_or_steers(
    db: str, downstream: Downstream, if_busy: Any
) -> None:
    await downstream.hold("before")
    agent = in_another_process()
    async with app(__file__, db, downstream) as driver, Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        first = await driver.do("start", agent="team", input="make a branch", session="s", operation_id="m1")
        await downstream.wait_for_held()
        second = await rt.start(agent, "message 2", session="s", operation_id="m2", if_busy=if_busy)
        if if_busy == "interrupt":
            await until(await rt.get_run(first), "run.cancelling")
        await downstream.release()
        assert (await second.result()).text == "answer to message 2"
        ended = await (await rt.get_run(first)).refresh()
        if if_busy == "interrupt":
            assert (ended.status, (ended.error or {})["code"]) == ("cancelled", "interrupted")
            (effect,) = await ended.effects()
            assert effect.state == "succeeded"  # what was in flight has finished
        else:
            assert (ended.status, second.status, second.host) == ("completed", "joined", first)
            branch = [*BRANCH[:-1], ("user", "message 2"), ("assistant", "answer to message 2")]
            assert await committed(rt) == branch
        assert rt.drives or model_requests(agent) == 0  # it was driven over there
        await driver.kill()
    async with Runtime(db, agents=[agent]) as rt:
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c05_both_messages_survive_the_death_of_the_process(db: str, downstream: Downstream) -> None:
    agent = in_another_process()
    async with app(__file__, db, downstream, FaultPlan().at("outcome.after", fault=kill())) as child:
        await downstream.hold("before")
        first = await child.do("start", agent="team", input="make a branch", session="s", operation_id="m1")
        await downstream.wait_for_held()
        second = await child.do("start", agent="team", input="message 2", session="s", operation_id="m2")
        await downstream.release()
        await child.dies()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        assert (await (await rt.get_run(second)).result()).text == "answer to message 2"
        assert (await (await rt.get_run(first)).refresh()).status == "completed"
        assert await committed(rt) == [*BRANCH, ("user", "message 2"), ("assistant", "answer to message 2")]
        await until(await rt.get_run(first), "run.resumed")
        assert await downstream.count(tool="make_branch") == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


def model_requests(agent: Agent) -> int:
    assert isinstance(agent.model, Conversation)
    return len(agent.model.requests)


if __name__ == "__main__":
    serve([in_another_process()])
