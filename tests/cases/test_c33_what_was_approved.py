"""C33: what was approved is what is executed, once, for the call that it was given to.

Left out: hooks that rewrite arguments, and standing grants; there are none.
"""

from __future__ import annotations

from typing import Any

import pytest
from kit import Conversation, Outside, app, holds_in_all_cases, serve, waits

from ondol import Agent, AlreadyDecided, Context, NotHappened, Runtime, tool
from ondol.testing import Downstream, call, text

SAID = "pay kim"
OTHERS = "pay lee"


@tool(effect="once", approve=True)
async def pay(ctx: Context[Outside], to: str, amounts: dict[str, int]) -> str:
    amounts_seen = dict(amounts)
    amounts.clear()  # a tool may do what it likes with what it was given
    await ctx.deps.effect(ctx, "pay", to=to, amounts=amounts_seen)
    return f"paid {to}"


KIMS: dict[str, Any] = {"to": "kim", "amounts": {"eur": 5, "usd": 1}}
LEES: dict[str, Any] = {"to": "lee", "amounts": {"eur": 7}}


def desk(**other: Any) -> Agent:
    """When it is asked for kim again, by a new process, its model has other ideas (``other``)."""
    script = {
        SAID: [[call("pay", **{**KIMS, **other})], [text("done")]],
        OTHERS: [[call("pay", **LEES)], [text("done")]],
    }
    return Agent("desk", model=Conversation(script), tools=[pay])


async def test_c33_after_a_restart_the_recorded_call_runs_whatever_the_model_would_say_now(
    db: str, downstream: Downstream
) -> None:
    async with app(__file__, db, downstream) as child:
        run_id = await child.do("start", agent="desk", input=SAID, session="s", operation_id="m1")
        await child.do("until", run=run_id, type="run.waiting")
        await child.kill()
    agent = desk(to="mallory")
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.get_run(run_id)
        (ask,) = await waits(run)
        await ask.approve(by="lee")
        assert (await run.result()).text == "done"
        (effect,) = await downstream.effects()
        assert effect.arguments == KIMS
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c33_what_the_approver_is_shown_cannot_be_changed_from_outside(db: str, downstream: Downstream) -> None:
    agent = desk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, SAID, session="s", operation_id="m1")
        (ask,) = await waits(run)
        ask.arguments["amounts"]["eur"] = 5000
        (again,) = await run.asks()
        assert (again.arguments, again.arguments_hash) == (KIMS, ask.arguments_hash)
        await ask.approve(by="lee")
        await run.result()
        assert [e.arguments for e in await downstream.effects()] == [KIMS]


async def test_c33_the_order_of_keys_is_no_difference_and_any_other_value_is(db: str, downstream: Downstream) -> None:
    hashes = []
    for operation, amounts in (("1", {"eur": 5, "usd": 1}), ("2", {"usd": 1, "eur": 5}), ("3", {"eur": 6, "usd": 1})):
        async with Runtime(db, agents=[desk(amounts=amounts)], deps=Outside(downstream.url)) as rt:
            run = await rt.start("desk", SAID, session=f"s{operation}", operation_id=operation)
            hashes.append((await waits(run))[0].arguments_hash)
    assert hashes[0] == hashes[1] != hashes[2]


async def test_c33_a_replacement_is_what_runs_and_it_is_recorded(db: str, downstream: Downstream) -> None:
    agent = desk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, SAID, session="s", operation_id="m1")
        (ask,) = await waits(run)
        smaller = {"to": "kim", "amounts": {"eur": 1}}
        await ask.approve(by="lee", arguments=smaller)
        await run.result()
        assert [e.arguments for e in await downstream.effects()] == [smaller]
        (effect,) = await run.effects()
        assert effect.arguments == smaller
        with pytest.raises(AlreadyDecided):
            await ask.approve(by="lee")  # single use, and another word than the one that was given


async def test_c33_an_approval_of_one_user_lets_nothing_of_another_through(db: str, downstream: Downstream) -> None:
    agent = desk()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        kims = await rt.start(agent, SAID, session="k", user="kim", operation_id="m1")
        lees = await rt.start(agent, OTHERS, session="l", user="lee", operation_id="m1")
        (ask,) = await waits(kims)
        await waits(lees)
        await ask.approve(by="boss")
        await kims.result()
        assert [e.arguments for e in await downstream.effects()] == [KIMS]
        assert (await lees.refresh()).status == "waiting"
        assert [a.run for a in await rt.asks()] == [lees.id]


def spoils(to: str, amounts: dict[str, int]) -> bool:
    """A predicate that changes what it looks at."""
    amounts["eur"] += 1000
    return to == "lee"


@pytest.mark.parametrize("to", ["kim", "lee"])
async def test_c33_what_a_predicate_does_to_the_arguments_reaches_nobody(
    db: str, downstream: Downstream, to: str
) -> None:
    async def send(ctx: Context[Outside], to: str, amounts: dict[str, int]) -> str:
        await ctx.deps.effect(ctx, "send", to=to, amounts=amounts)
        return "sent"

    arguments = {"to": to, "amounts": {"eur": 5}}
    model = Conversation({SAID: [[call("send", **arguments)], [text("done")]]})
    agent = Agent("desk", model=model, tools=[tool(approve=spoils)(send)])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, SAID, session="s", operation_id="m1")
        if to == "lee":
            (ask,) = await waits(run)
            assert ask.arguments == arguments
            await ask.approve(by="boss")
        await run.result()
        assert [e.arguments for e in await downstream.effects()] == [arguments]
        assert [e.arguments for e in await run.effects()] == [arguments]
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize("effect", ["idempotent", "once"])
async def test_c33_each_attempt_is_given_what_was_recorded_whatever_the_one_before_did_to_it(
    db: str, downstream: Downstream, effect: Any
) -> None:
    given: list[dict[str, int]] = []

    async def look(ctx: Context[Outside], to: str, amounts: dict[str, int]) -> NotHappened:
        given.append(dict(amounts))
        amounts.clear()
        return NotHappened()

    async def send(ctx: Context[Outside], to: str, amounts: dict[str, int]) -> str:
        given.append(dict(amounts))
        amounts["eur"] += 1000
        if ctx.attempt < 3:
            raise RuntimeError("the line is down")
        await ctx.deps.effect(ctx, "send", to=to, amounts=given[-1])
        return "sent"

    model = Conversation({SAID: [[call("send", **KIMS)], [text("done")]]})
    sends = tool(effect=effect, check=look if effect == "once" else None)(send)
    agent = Agent("desk", model=model, tools=[sends])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, SAID, session="s", operation_id="m1")
        await run.result()
        assert given == [KIMS["amounts"]] * (3 if effect == "idempotent" else 5)
        assert [e.arguments for e in await downstream.effects()] == [KIMS]
        await holds_in_all_cases(rt, db, agent, "s", downstream)


if __name__ == "__main__":
    serve([desk()])
