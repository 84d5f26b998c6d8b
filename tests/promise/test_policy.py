"""The policy: decided before a call is made, recorded with it, and never outvoted."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from ondol import (
    Allow,
    AskFirst,
    Context,
    Deny,
    InvalidInput,
    PolicyCall,
    PolicyDenied,
    PolicyRules,
    Rule,
    Runtime,
    ToolResponse,
    tool,
)
from ondol.testing import FaultPlan, call
from promise.house import House, look, rest, states, the_ask


@tool(effect="once")
async def pay(ctx: Context[House], amount: Decimal, to: str = "kim") -> str:
    return await ctx.deps.act(ctx, "pay", amount=str(amount), to=to)


PAY = [call("pay", amount="30")]
SMALL = PolicyRules([
    Rule(tool="pay", when=lambda a: a["amount"] > 100, then="deny", reason="over 100"),
    Rule(tool="pay", when=lambda a: a["amount"] > 20, then="ask", reason="over 20"),
])  # fmt: skip


def told(house: House, run: str) -> list[ToolResponse]:
    return [p for m in house.asked(run)[-1].messages for p in m.parts if isinstance(p, ToolResponse)]


async def test_a_policy_sees_who_and_what_and_the_arguments_as_the_tool_takes_them(house: House) -> None:
    seen: list[PolicyCall] = []

    def policy(wanted: PolicyCall) -> Allow:
        seen.append(wanted)
        return Allow("fine")

    agent = house.agent(PAY, "done", tools=[pay])
    async with house.life(agent, policy=policy) as life:
        options: Any = {"session": "s", "user": "lee", "tenant": "acme"}
        run = await life.rt.start(agent, "go", **options)
        assert await rest(run) == "completed"
        (effect,) = await run.effects()
        assert effect.decision == "allow: fine"
        (planned,) = [e.data async for e in run.events() if e.type == "effect.planned"]
        assert planned["decision"] == "allow: fine"
    arguments = {"amount": Decimal(30), "to": "kim"}
    assert seen == [
        PolicyCall(tenant="acme", user="lee", agent="a", session="s", tool="pay", effect="once", arguments=arguments)
    ]


async def test_a_denied_call_is_never_made_and_the_model_is_told_at_once(house: House) -> None:
    agent = house.agent([call("pay", amount="101"), call("look", order="1")], "done", tools=[pay, look])
    async with house.life(agent, policy=SMALL) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "completed"
        assert await states(run) == [("pay", "failed", 0), ("look", "succeeded", 0)]
        assert [e.decision for e in await run.effects()] == ["deny: over 100", "allow"]
        assert await run.asks(state=None) == []
    assert told(house, run.id)[0].text == "not called: the policy denies it (over 100)"
    assert house.count("pay") == 0


async def test_a_policy_asks_where_the_tool_itself_would_not(house: House) -> None:
    agent = house.agent(PAY, "done", tools=[pay])
    async with house.life(agent, policy=SMALL) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "waiting"
        assert house.count() == 0
        (effect,) = await run.effects()
        assert (effect.state, effect.decision) == ("asked", "ask: the policy asks: over 20")
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    assert house.count("pay") == 1


async def test_a_policy_that_allows_leaves_the_tools_own_question(house: House) -> None:
    agent = house.agent([call("wire", to="kim")], "done")
    async with house.life(agent, policy=lambda wanted: Allow()) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "waiting"
    assert house.count() == 0


async def test_a_policy_that_breaks_asks(house: House) -> None:
    def policy(wanted: PolicyCall) -> Allow:
        raise SystemExit("a bug")

    agent = house.agent(PAY, "done", tools=[pay])
    async with house.life(agent, policy=policy) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "waiting"
        (effect,) = await run.effects()
        assert effect.decision == "ask: the policy asks: the policy raised SystemExit"


async def test_an_edit_that_the_policy_denies_is_refused_and_the_ask_stays_open(house: House) -> None:
    agent = house.agent(PAY, "done", tools=[pay])
    async with house.life(agent, policy=SMALL) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "waiting"
        ask = await the_ask(run)
        with pytest.raises(PolicyDenied, match=r"over 100.*approve it with other arguments"):
            await ask.approve(by="lee", arguments={"amount": Decimal(500)})
        assert (await the_ask(run)).id == ask.id
        await ask.approve(by="lee", arguments={"amount": Decimal(60)})
        assert await rest(run) == "completed"
    assert [line.arguments["amount"] for line in house.ledger] == ["60"]


async def test_an_edit_by_a_process_without_the_policy_is_refused_before_the_call_is_made(house: House) -> None:
    agent = house.agent(PAY, "done", tools=[pay])
    async with house.life(agent, policy=SMALL) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        async with Runtime(house.db, clock=house.clock) as other:
            (ask,) = await other.asks()
            await ask.approve(by="lee", arguments={"amount": "500"})
        assert await rest(await run.refresh()) == "completed"
        assert await states(run) == [("pay", "failed", 0)]
    assert told(house, run.id)[0].text == "not called: the policy denies it (over 100)"
    assert house.count() == 0


async def test_what_a_person_approved_is_not_made_when_the_policy_denies_it_by_then(house: House) -> None:
    agent = house.agent(PAY, "done", tools=[pay])
    async with house.life(agent, policy=SMALL) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
    async with Runtime(house.db, clock=house.clock) as nobody:  # has no agent: it only decides
        (ask,) = await nobody.asks()
        await ask.approve(by="lee")
    async with house.life(agent, policy=lambda wanted: Deny("closed")) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "completed"
        assert await states(run) == [("pay", "failed", 0)]
    assert house.count() == 0


async def test_a_planned_call_that_its_process_did_not_make_is_held_against_the_policy_of_the_next(
    house: House,
) -> None:
    agent = house.agent(PAY, "done", tools=[pay])
    run_id = await house.dies(agent, at="answer.after")
    async with house.life(agent, policy=lambda wanted: Deny("closed")) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("pay", "failed", 0)]
    assert house.count() == 0


async def test_a_started_call_is_repeated_whatever_the_policy_says_by_then(house: House) -> None:
    """It may have happened: to deny it now would only hide that."""
    agent = house.agent([call("refund", order="1")], "done")
    run_id = await house.dies(agent, at="started.after")
    async with house.life(agent, policy=lambda wanted: Deny("closed")) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("refund", "succeeded", 2)]


async def test_what_a_policy_does_to_the_arguments_does_not_reach_the_tool(house: House) -> None:
    @tool(effect="once")
    async def order(ctx: Context[House], what: list[str]) -> str:
        return await ctx.deps.act(ctx, "order", what=list(what))

    def policy(wanted: PolicyCall) -> Allow:
        wanted.arguments["what"].append("a yacht")
        return Allow()

    agent = house.agent([call("order", what=["tea"])], "done", tools=[order])
    async with house.life(agent, policy=policy) as life:
        assert await rest(await life.rt.start(agent, "go", session="s")) == "completed"
    assert [line.arguments["what"] for line in house.ledger] == [["tea"]]


async def test_calls_that_a_tool_of_steps_makes_pass_the_same_gate(house: House) -> None:
    @tool(effect="steps")
    async def settle(ctx: Context[House]) -> str:
        await ctx.call(pay, amount=Decimal(10))
        await ctx.call(pay, amount=Decimal(101))
        return "settled"

    agent = house.agent([call("settle")], "done", tools=[settle, pay])
    async with house.life(agent, policy=SMALL) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "completed"
        assert [(e.tool, e.state, e.decision) for e in await run.effects()] == [
            ("settle", "failed", "allow"), ("pay", "succeeded", "allow"), ("pay", "failed", "deny: over 100"),
        ]  # fmt: skip
    assert [line.arguments["amount"] for line in house.ledger] == ["10"]


async def test_a_tool_of_steps_that_has_begun_goes_on_whatever_the_policy_says_of_it_by_then(house: House) -> None:
    @tool(effect="steps")
    async def settle(ctx: Context[House]) -> str:
        await ctx.call(pay, amount=Decimal(10))
        return await ctx.call(pay, amount=Decimal(30))

    agent = house.agent([call("settle")], "done", tools=[settle, pay])
    async with house.life(agent, policy=SMALL) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "waiting"
    async with house.life(agent, policy=PolicyRules([Rule(tool="settle", then="deny")])) as life:
        run = await life.rt.get_run(run.id)
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    assert [line.arguments["amount"] for line in house.ledger] == ["10", "30"]


async def test_tools_that_the_policy_does_not_know_are_once_and_asked_where_the_operator_says_so(house: House) -> None:
    async def plain(ctx: Context[House], to: str) -> str:
        return await ctx.deps.act(ctx, "plain", to=to)

    agent = house.agent([call("plain", to="kim")], "done", tools=[plain])
    rules = PolicyRules([Rule(tool="pay", then="allow")], unknown="ask")
    async with house.life(agent, policy=rules) as life:
        run = await life.rt.start(agent, "go", session="s")
        assert await rest(run) == "waiting"
        (effect,) = await run.effects()
        assert (effect.effect, effect.decision) == ("once", "ask: the policy asks: no rule names this tool")


async def test_an_ask_of_the_policy_survives_a_crash_right_after_the_answer(house: House) -> None:
    agent = house.agent(PAY, "done", tools=[pay])
    async with house.life(agent, policy=SMALL, dies_at="answer.after", plan=FaultPlan()) as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    async with house.life(agent, policy=lambda wanted: AskFirst("anew")) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "waiting"
        (effect,) = await run.effects()
        assert effect.decision == "ask: the policy asks: over 20"  # what was decided then is recorded, not made again
    assert house.count() == 0


def test_what_cannot_be_a_policy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="an ordinary function"):
        Runtime("sqlite:///x.db", policy="allow")  # type: ignore[arg-type]
