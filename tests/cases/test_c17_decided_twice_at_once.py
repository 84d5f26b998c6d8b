"""C17: of many decisions at once exactly one is taken, and later ones start nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

import pytest
from kit import Conversation, Outside, app, holds_in_all_cases, refused, serve, waits

from ondol import Agent, AlreadyDecided, Ask, Context, Runtime, tool
from ondol.errors import OndolError
from ondol.testing import Downstream, call

pytestmark = pytest.mark.both_stores

ROUNDS = 20
EACH = 5  # decisions of each word from each of the two processes
DOES_NOT_SAY = "I tried, and cannot tell"


async def refund(ctx: Context[Outside], amount: int) -> str:
    await ctx.deps.effect(ctx, "refund", amount=amount)
    return "refunded"


async def send(ctx: Context[Outside]) -> str:
    if ctx.attempt == 1:
        raise RuntimeError(DOES_NOT_SAY)
    await ctx.deps.effect(ctx, "send")
    return "sent"


def desk() -> Agent:
    model = Conversation({
        "refund 30": [[call("refund", amount=30)], "that is all"],
        "send it": [[call("send")], "that is all"],
    })  # fmt: skip
    return Agent("desk", model=model, tools=[tool(approve=True)(refund), send])


async def decide(rt: Runtime, ask: str, word: str, by: str) -> dict[str, Any]:
    try:
        decided: Ask = await getattr(await rt.get_ask(ask), word)(by=by)
    except OndolError as error:
        return {"word": word, **refused(error)}
    return {"word": word, "decision": decided.decision, "by": decided.decided_by}


async def decide_often(rt: Runtime, ask: str, words: Iterable[str], by: str) -> list[dict[str, Any]]:
    """All at once, each in another name."""
    voices = [(word, f"{by}-{word}-{n}") for n in range(EACH) for word in words]
    return list(await asyncio.gather(*(decide(rt, ask, word, name) for word, name in voices)))


def assert_one_was_taken(answers: list[dict[str, Any]], ask: Ask) -> None:
    for answer in answers:
        if answer["word"] == ask.decision:  # whoever said the same gets the stored decision
            assert (answer["decision"], answer["by"]) == (ask.decision, ask.decided_by)
        else:
            assert answer["error"] == "AlreadyDecided"
            assert repr(ask.decision) in answer["message"]
            assert str(ask.decided_by) in answer["message"]


@pytest.mark.parametrize(
    ("said", "words", "lines"),
    [
        ("refund 30", ("approve", "deny"), {"approve": 1, "deny": 0}),
        ("send it", ("not_happened", "happened"), {"not_happened": 1, "happened": 0}),
    ],
)
async def test_c17_many_decisions_at_once_from_two_processes(
    db: str, downstream: Downstream, said: str, words: tuple[str, str], lines: dict[str, int]
) -> None:
    agent = desk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        async with app(__file__, db, downstream, ONLY_A_DOOR="1") as other:
            expected = 0
            for n in range(ROUNDS):
                run = await rt.start(agent, said, session="s", operation_id=f"m{n}")
                (ask,) = await waits(run)
                order = words if n % 2 else words[::-1]
                theirs = other.send("decide_often", ask=ask.id, words=order, by="other")
                answers = await decide_often(rt, ask.id, order, "this")
                answers += await other.answer(theirs)
                assert (await run.result()).text == "that is all"

                decided = await rt.get_ask(ask.id)
                assert_one_was_taken(answers, decided)
                assert len(answers) == 4 * EACH
                assert len([a for a in await rt.audit(limit=1000) if a.subject == ask.id]) == 1
                expected += lines[str(decided.decision)]
                assert await downstream.count() == expected
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize("word", ["approve", "deny"])
async def test_c17_a_decision_delivered_again_starts_nothing(db: str, downstream: Downstream, word: str) -> None:
    other = "deny" if word == "approve" else "approve"
    agent = desk()
    model = agent.model
    assert isinstance(model, Conversation)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "refund 30", session="s", operation_id="m1")
        (ask,) = await waits(run)

        async def again() -> None:
            stored = await getattr(ask, word)(by="another")
            assert (stored.decision, stored.decided_by, stored.id) == (word, "kim", ask.id)
            with pytest.raises(AlreadyDecided, match=r"kim"):
                await getattr(ask, other)(by="another")

        await downstream.hold("after")
        await getattr(ask, word)(by="kim")
        if word == "approve":
            await downstream.wait_for(1)
            await again()  # while the call runs
            await downstream.release()
        assert (await run.result()).text == "that is all"
        asked = len(model.requests)
        await again()  # after the run has ended
        await rt.close()

    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        ask = await rt.get_ask(ask.id)
        await again()  # and in another process
        assert (await (await rt.get_run(run.id)).refresh()).status == "completed"
        assert len(model.requests) == asked
        assert await downstream.count() == int(word == "approve")
        await holds_in_all_cases(rt, db, agent, "s", downstream)


if __name__ == "__main__":
    serve([] if os.environ.get("ONLY_A_DOOR") else [desk()], decide_often=decide_often)
