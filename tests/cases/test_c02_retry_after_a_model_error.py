"""C02: after a failed model call only that call is made again, never a tool that had succeeded.

Left out until there are forks: going on from the completed steps of a run that failed for good.
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from kit import (
    Conversation,
    Outside,
    WatchedClock,
    app,
    holds_in_all_cases,
    notes,
    passes,
    rests,
    results,
    serve,
    until,
)

from ondol import Agent, Context, RunFailed, Runtime, tool
from ondol.errors import ModelErrorKind
from ondol.events import EffectClass
from ondol.providers.script import Script
from ondol.testing import Downstream, FaultPlan, call, error, kill, text

RETRIED: list[ModelErrorKind] = ["rate_limited", "overloaded", "unavailable", "server", "timeout", "connection"]
LATER: list[ModelErrorKind] = ["quota", "auth"]  # asking at once again is of no use, but the run can go on one day
FINAL: list[ModelErrorKind] = ["rejected", "context_overflow", "content_filter"]


async def charge(ctx: Context[Outside], amount: Decimal) -> str:
    await ctx.deps.effect(ctx, "charge", dedupe=True, amount=amount)
    return f"charged {amount}"


def shop(answers: Script, effect: EffectClass = "once") -> Agent:
    return Agent("shop", model=Conversation({"charge 10": answers}), tools=[tool(effect=effect)(charge)])


def model_of(agent: Agent) -> Conversation:
    assert isinstance(agent.model, Conversation)
    return agent.model


CHARGE = [text("one moment"), call("charge", amount="10")]


@pytest.mark.parametrize(
    ("kind", "effect"), [*((kind, "once") for kind in RETRIED), ("server", "idempotent"), ("server", "read")]
)
async def test_c02_an_error_that_passes_is_retried_at_the_failed_step(
    db: str, downstream: Downstream, kind: ModelErrorKind, effect: EffectClass
) -> None:
    clock = WatchedClock()
    agent = shop([CHARGE, error(kind), error(kind), "charged, thank you"], effect)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.start(agent, "charge 10", session="s", operation_id="m1")
        for failure in (1, 2):
            failed = await until(run, "step.failed", failure)
            await passes(clock, failed)
        assert (await run.result()).text == "charged, thank you"

        asks = model_of(agent).of["charge 10"].requests
        assert [(r.step, r.attempt) for r in asks] == [(0, 1), (1, 1), (1, 2), (1, 3)]
        assert [[x.response for x in results(r.messages)] for r in asks[1:]] == [["charged 10"]] * 3
        assert await downstream.count() == 1
        assert [(e.state, e.attempt) for e in await run.effects()] == [("succeeded", int(effect != "read"))]
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


@pytest.mark.parametrize("kind", FINAL)
async def test_c02_an_error_that_stays_is_not_retried_and_the_steps_before_it_are_kept(
    db: str, downstream: Downstream, kind: ModelErrorKind
) -> None:
    agent = shop([CHARGE, error(kind, "the provider said no"), "never said"])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        for _ in range(3):  # the same operation again tells the same end, and asks nobody
            run = await rt.start(agent, "charge 10", session="s", operation_id="m1")
            with pytest.raises(RunFailed, match="the provider said no") as failed:
                await run.result()
            assert not failed.value.retryable
        assert len(model_of(agent).of["charge 10"].requests) == 2
        assert [(e.tool, e.state) for e in await run.effects()] == [("charge", "succeeded")]
        assert [r.response for r in results(await run.messages())] == ["charged 10"]

        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert not any(m.calls for m in request.messages)
        (note,) = notes(request)  # the charge did happen: the next turn knows
        assert "charge" in note
        assert "it succeeded" in note


@pytest.mark.parametrize("kind", [*RETRIED, *LATER])
async def test_c02_when_patience_ends_the_same_operation_goes_on_at_the_failed_step(
    db: str, downstream: Downstream, kind: ModelErrorKind
) -> None:
    clock = WatchedClock()
    up = False

    def answers(request: object) -> object:
        step = getattr(request, "step", 0)
        return CHARGE if step == 0 else "charged, thank you" if up else error(kind)

    agent = shop(answers)  # type: ignore[arg-type]
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.start(agent, "charge 10", session="s", operation_id="m1")
        await rests(clock, run)
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert failed.value.retryable
        asked = len(model_of(agent).of["charge 10"].requests)

    up = True
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        again = await rt.start(agent, "charge 10", session="s", operation_id="m1")
        assert again.id == run.id
        assert (await again.result()).text == "charged, thank you"
        (request,) = model_of(agent).of["charge 10"].requests[asked:]
        assert (request.step, [r.response for r in results(request.messages)]) == (1, ["charged 10"])
        assert await downstream.count() == 1
        assert len([m for m in await (await rt.get_session("s")).messages() if m.message.role == "user"]) == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


@pytest.mark.parametrize("effect", ["once", "idempotent"])
async def test_c02_a_crash_while_the_retry_is_awaited_repeats_no_tool(
    db: str, downstream: Downstream, effect: EffectClass
) -> None:
    async with app(__file__, db, downstream, FaultPlan().at("note_down.after", nth=2, fault=kill())) as child:
        run_id = await child.do("start", agent=effect, input="charge 10", session="s", operation_id="m1")
        await child.dies()
    agent = in_another_process(effect)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.get_run(run_id)
        assert (await run.result()).text == "charged, thank you"
        assert [(r.step, r.attempt) for r in model_of(agent).of["charge 10"].requests] == [(1, 2)]
        assert [(e.state, e.attempt) for e in await run.effects()] == [("succeeded", 1)]
        assert await downstream.count() == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


def in_another_process(effect: EffectClass) -> Agent:
    answers = [CHARGE, error("server"), "charged, thank you"]
    return Agent(effect, model=Conversation({"charge 10": answers}), tools=[tool(effect=effect)(charge)])


if __name__ == "__main__":
    serve([in_another_process("once"), in_another_process("idempotent")])
