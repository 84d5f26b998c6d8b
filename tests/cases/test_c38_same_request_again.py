"""C38: the same request again is the same run; the same key with other content is refused.

Python's door, where the input is a text: attachments in another order stand for bodies whose keys come in another
order. Left out until it exists: HTTP.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kit import Conversation, Outside, app, conversation, holds_in_all_cases, serve

from ondol import Agent, Context, OperationMismatch, RunCancelled, Runtime
from ondol.errors import OutcomeUnknown, RunEnded, RunFailed
from ondol.stores import open_store
from ondol.testing import Downstream, FaultPlan, FaultyStore, call, error, kill, raise_

pytestmark = pytest.mark.both_stores

TIMES = 10  # that the same request is sent from each process
SECRET = "the account is 4711"
ORDER = f"order it, {SECRET}"


async def order(ctx: Context[Outside], what: str) -> str:
    await ctx.deps.effect(ctx, "order", what=what)
    return f"{what} ordered"


def shop(name: str = "shop", *failures: Any) -> Agent:
    answers = [[call("order", what="tea")], *failures, "ordered it"]
    model = Conversation({ORDER: answers, "another order": answers})
    return Agent(name, model=model, tools=[order])


def model_of(agent: Agent) -> Conversation:
    assert isinstance(agent.model, Conversation)
    return agent.model


TURN = [
    ("user", ORDER), ("assistant", "order(what='tea')"), ("tool", "order: tea ordered"), ("assistant", "ordered it"),
]  # fmt: skip


async def send_often(rt: Runtime, **options: Any) -> list[dict[str, Any]]:
    async def send() -> dict[str, Any]:
        run = await rt.start("shop", ORDER, session="s", operation_id="K", **options)
        result = await run.result()
        return {"run": run.id, "body": result.body, "replayed": result.replayed}

    return list(await asyncio.gather(*(send() for _ in range(TIMES))))


async def test_c38_sent_ten_times_at_once_to_two_processes_it_runs_once(db: str, downstream: Downstream) -> None:
    agent = shop()
    async with app(__file__, db, downstream) as driver, Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        await downstream.hold("before")
        theirs = driver.send("send_often")
        ours = asyncio.create_task(send_often(rt))
        await downstream.wait_for_held()
        during = await rt.start(agent, ORDER, session="s", operation_id="K")
        assert (during.status, during.replayed) == ("running", False)  # in progress, the same run
        await downstream.release()
        answers = [*await ours, *await driver.answer(theirs)]
        assert len(answers) == 2 * TIMES
        assert {a["run"] for a in answers} == {during.id}
        assert len({a["body"] for a in answers}) == 1  # byte for byte

        again = await rt.start(agent, ORDER, session="s", operation_id="K")
        assert (again.id, again.replayed) == (during.id, True)
        assert (await again.result()).body == answers[0]["body"]
        replay = await driver.do("run", agent="shop", input=ORDER, session="s", operation_id="K")
        assert replay == {"run": during.id, "body": answers[0]["body"], "replayed": True}
        await driver.kill()

    async with Runtime(db, agents=[agent]) as rt:  # after a restart
        again = await rt.start(agent, ORDER, session="s", operation_id="K")
        assert (again.id, again.replayed) == (during.id, True)
        assert (await again.result()).body == answers[0]["body"]
        assert json.loads(answers[0]["body"])["text"] == "ordered it"
        assert len(await rt.runs()) == 1
        assert db.startswith("postgresql") or model_of(agent).requests == []
        assert await downstream.count() == 1
        session = await rt.get_session("s")
        assert conversation([m.message for m in await session.messages()]) == TURN
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize("point", ["accept.after", "started.before", "outcome.after", "commit.after"])
async def test_c38_sent_again_after_the_process_died_it_goes_on(db: str, downstream: Downstream, point: str) -> None:
    async with app(__file__, db, downstream, FaultPlan().at(point, fault=kill())) as child:
        child.send("start", agent="shop", input=ORDER, session="s", operation_id="K")
        await child.dies()
    agent = shop()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        answers = await send_often(rt)
        assert len({a["run"] for a in answers}) == len({a["body"] for a in answers}) == 1
        assert len(await rt.runs()) == 1
        assert await downstream.count() == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c38_a_caller_that_never_heard_back_sends_it_again(db: str, downstream: Downstream) -> None:
    agent = shop()
    plan = FaultPlan().at("accept.after", fault=raise_(OutcomeUnknown("the answer was lost")))
    store = FaultyStore(open_store(db), plan)
    async with Runtime(store, agents=[agent], deps=Outside(downstream.url)) as rt:
        with pytest.raises(OutcomeUnknown):
            await rt.start(agent, ORDER, session="s", operation_id="K")
        assert (await rt.run(agent, ORDER, session="s", operation_id="K")).text == "ordered it"
        assert len(await rt.runs()) == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


# --- after a first attempt that failed ----------------------------------------------------------------------------


async def test_c38_after_a_failure_that_may_pass_it_goes_on_with_what_is_recorded(
    db: str, downstream: Downstream
) -> None:
    agent = shop("shop", error("quota", "pay first"))
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        first = await rt.start(agent, ORDER, session="s", operation_id="K")
        with pytest.raises(RunFailed, match="pay first") as failed:
            await first.result()
        assert failed.value.retryable
        model_of(agent).of[ORDER] = model_of(shop()).of[ORDER]  # it was paid
        answers = await send_often(rt)
        assert {a["run"] for a in answers} == {first.id}
        assert len({a["body"] for a in answers}) == 1
        assert [r.step for r in model_of(agent).requests] == [0, 1, 1]  # on from the failed step
        assert await downstream.count() == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_c38_after_an_end_that_stays_it_tells_the_same_end(db: str, downstream: Downstream, end: str) -> None:
    agent = shop("shop", error("rejected", "not like this"))
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        if end == "cancelled":
            await downstream.hold("after")
        run = await rt.start(agent, ORDER, session="s", operation_id="K")
        if end == "cancelled":
            await downstream.wait_for(1)
            await run.cancel(by="kim", reason="changed my mind")
        ends = []
        for _ in range(3):
            again = await rt.start(agent, ORDER, session="s", operation_id="K")
            assert again.id == run.id
            with pytest.raises(RunFailed if end == "failed" else RunCancelled) as ended:
                await again.result()
            assert isinstance(ended.value, RunEnded)
            ends.append((str(ended.value), json.dumps(ended.value.error)))
        assert len(set(ends)) == 1
        assert len(await rt.runs()) == 1
        assert await downstream.count() == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


# --- the same key, other content ----------------------------------------------------------------------------------


async def refused(rt: Runtime, agent: Agent, input: str, **options: Any) -> None:
    with pytest.raises(OperationMismatch) as mismatch:
        await rt.start(agent, input, operation_id="K", **options)
    assert "4711" not in str(mismatch.value)  # it does not tell what the first request said
    assert "4711" not in repr(mismatch.value.__dict__)


@pytest.mark.parametrize("state", ["queued", "running", "completed", "failed", "cancelled"])
async def test_c38_the_key_with_other_content_is_refused_in_every_state(
    db: str, downstream: Downstream, state: str
) -> None:
    agent = shop("shop", *([error("rejected")] if state == "failed" else []))
    other = shop("other")
    async with Runtime(db, agents=[agent, other], deps=Outside(downstream.url)) as rt:
        if state in ("queued", "running", "cancelled"):
            await downstream.hold("before")
        if state == "queued":
            await rt.start(other, "another order", session="s", operation_id="before")
        run = await rt.start(agent, ORDER, session="s", operation_id="K")
        if state in ("queued", "running", "cancelled"):
            await downstream.wait_for_held()
        if state == "cancelled":
            await run.cancel(by="kim")
        if state in ("completed", "failed", "cancelled"):
            await asyncio.wait([asyncio.create_task(run.result())])
        assert (await run.refresh()).status == state

        await refused(rt, agent, "something else", session="s")
        await refused(rt, agent, ORDER, session="t")
        await refused(rt, agent, ORDER)
        await refused(rt, other, ORDER, session="s")
        await refused(rt, agent, ORDER, session="s", attachments=[b"and this"])
        assert (await rt.start(agent, ORDER, session="s", operation_id="K")).id == run.id
        await downstream.release()
        await asyncio.wait([asyncio.create_task(run.result())])
        assert len(await rt.runs()) == 1 + (state == "queued")
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c38_attachments_in_another_order_are_the_same_request(
    db: str, downstream: Downstream, tmp_path: Path
) -> None:
    (tmp_path / "receipt.txt").write_text("tea")
    agent = shop()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        files = [tmp_path / "receipt.txt", b"the other one"]
        first = await rt.start(agent, ORDER, session="s", operation_id="K", attachments=files)
        again = await rt.start(agent, ORDER, session="s", operation_id="K", attachments=files[::-1])
        assert again.id == first.id
        await refused(rt, agent, ORDER, session="s", attachments=files[:1])
        await first.result()
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c38_each_user_and_each_tenant_has_keys_of_their_own(db: str, downstream: Downstream) -> None:
    agent = shop()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        owners = [{"user": "kim"}, {"user": "lee"}, {}, {"user": "kim", "tenant": "other"}]
        runs = [await rt.start(agent, ORDER, operation_id="K", session="s", **owner) for owner in owners]
        assert len({r.id for r in runs}) == len(owners)
        again = [await rt.start(agent, ORDER, operation_id="K", session="s", **owner) for owner in owners]
        assert [r.id for r in again] == [r.id for r in runs]
        await rt.start(agent, "another order", operation_id="K", session="s", user="park")  # no clash with the others
        for run in await rt.runs():
            await run.result()
        await runs[-1].result()
        assert await downstream.count() == len(owners) + 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c38_without_a_key_each_request_is_new_and_is_told_its_key(db: str, downstream: Downstream) -> None:
    agent = shop()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        runs = [await rt.start(agent, ORDER, session="s") for _ in range(3)]
        assert len({r.id for r in runs}) == len({r.operation_id for r in runs}) == 3
        for run in runs:
            await run.result()
            again = await rt.start(agent, ORDER, session="s", operation_id=run.operation_id)
            assert (again.id, again.replayed) == (run.id, True)
        assert await downstream.count() == 3
        await holds_in_all_cases(rt, db, agent, "s", downstream)


if __name__ == "__main__":
    serve([shop()], send_often=send_often)
