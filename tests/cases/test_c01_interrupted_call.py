"""C01: an interrupted tool call leaves the session usable.

Left out until there is an HTTP door: the client's stream is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kit import Conversation, Gate, Outside, WatchedClock, app, holds_in_all_cases, notes, results, serve, until

from ondol import Agent, Context, NotDone, RunCancelled, Runtime, RunWaiting, tool
from ondol.events import EffectClass
from ondol.testing import Downstream, FaultPlan, ManualClock, call, kill
from ondol.testing.downstream import record

GRACE = 10.0  # seconds that a write in flight gets to say how it ended
LATER = timedelta(hours=1)  # after the deadline of whatever a dead process had started


@dataclass(frozen=True)
class Held(Outside):
    """Outside, with a gate at which ``slow`` stands."""

    gate: Gate | None = None


def sleeper(slow: Callable[..., Any], effect: EffectClass, **scripts: Any) -> Agent:
    model = Conversation({"sleep": [[call("slow", seconds=10)], "slept well"], **scripts})
    return Agent("sleeper", model=model, tools=[tool(effect=effect, name="slow")(slow)])


def model_of(agent: Agent) -> Conversation:
    assert isinstance(agent.model, Conversation)
    return agent.model


# --- a cancel, and how tools take it ----------------------------------------------------------------------------


async def gives_way(ctx: Context[Held], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", seconds=seconds)
    await ctx.deps.gate.wait()
    return "slept"


async def finishes_first(ctx: Context[Held], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", seconds=seconds)
    try:
        await ctx.deps.gate.wait()
    except asyncio.CancelledError:
        return "slept a little less"
    return "slept"


async def had_not_begun(ctx: Context[Held], seconds: int) -> str:
    try:
        await ctx.deps.gate.wait()
    except asyncio.CancelledError:
        raise NotDone("it had not begun") from None
    return "slept"


async def exits(ctx: Context[Held], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", seconds=seconds)
    try:
        await ctx.deps.gate.wait()
    except asyncio.CancelledError:
        raise SystemExit("out of here") from None
    return "slept"


def thread_finishes_first(ctx: Context[Held], seconds: int) -> str:
    record(ctx.deps.url, ctx.idempotency_key, "slow", {"seconds": seconds})
    ctx.deps.gate.reach()
    ctx.cancelled.wait()
    return "slept a little less"


def thread_had_not_begun(ctx: Context[Held], seconds: int) -> str:
    ctx.deps.gate.reach()
    ctx.cancelled.wait()
    raise NotDone("it had not begun")


def thread_exits(ctx: Context[Held], seconds: int) -> str:
    record(ctx.deps.url, ctx.idempotency_key, "slow", {"seconds": seconds})
    ctx.deps.gate.reach()
    ctx.cancelled.wait()
    raise KeyboardInterrupt


def says(word: str) -> str:
    """How the next turn is told of a write that ended so."""
    return {"unknown": "outcome is unknown", "succeeded": "it succeeded", "failed": "nothing happened"}[word]


def assert_told(note: str, effect: EffectClass, state: str) -> None:
    """The request without an answer is told; a write beside it as what it is, never as more; a read is not."""
    assert "'sleep'" in note
    told = [line for line in note.splitlines() if "slow(" in line]
    assert len(told) == (effect != "read")
    for line in told:
        assert [w for w in ("unknown", "succeeded", "failed") if says(w) in line] == [state]


@pytest.mark.parametrize(
    ("slow", "effect", "state", "lines"),
    [
        (gives_way, "once", "unknown", 1),
        (gives_way, "idempotent", "unknown", 1),
        (gives_way, "read", "failed", 1),
        (finishes_first, "once", "succeeded", 1),
        (finishes_first, "read", "succeeded", 1),
        (had_not_begun, "once", "failed", 0),
        (exits, "once", "unknown", 1),
        (exits, "read", "failed", 1),
        (thread_finishes_first, "once", "succeeded", 1),
        (thread_had_not_begun, "once", "failed", 0),
        (thread_exits, "once", "unknown", 1),
        (thread_exits, "read", "failed", 1),
    ],
)
async def test_c01_a_cancel_while_a_tool_runs(
    db: str, downstream: Downstream, slow: Callable[..., Any], effect: EffectClass, state: str, lines: int
) -> None:
    gate, agent = Gate(), sleeper(slow, effect)
    async with Runtime(db, agents=[agent], deps=Held(downstream.url, gate=gate)) as rt:
        run = await rt.start(agent, "sleep", session="s", operation_id="m1")
        await gate.reached.wait()
        await run.cancel(by="kim", reason="too slow")
        with pytest.raises(RunCancelled):
            await run.result()
        assert [e.state for e in await run.effects()] == [state]
        assert await downstream.count() == lines

        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert not any(m.calls for m in request.messages)
        (note,) = notes(request)
        assert_told(note, effect, state)


async def ignores_it(ctx: Context[Held], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", seconds=seconds)
    try:
        await ctx.deps.gate.wait()
    except asyncio.CancelledError:
        ctx.deps.gate.tell()
        await ctx.deps.gate.wait()
    return "slept"


def thread_ignores_it(ctx: Context[Held], seconds: int) -> str:
    record(ctx.deps.url, ctx.idempotency_key, "slow", {"seconds": seconds})
    ctx.deps.gate.reach()
    ctx.cancelled.wait()
    ctx.deps.gate.tell()
    ctx.deps.gate.block()
    return "slept"


@pytest.mark.parametrize("slow", [ignores_it, thread_ignores_it])
@pytest.mark.parametrize("effect", ["once", "read"])
async def test_c01_a_cancel_while_a_tool_runs_that_ignores_it(
    db: str, downstream: Downstream, slow: Callable[..., Any], effect: EffectClass
) -> None:
    gate, agent, clock = Gate(), sleeper(slow, effect), WatchedClock()
    async with Runtime(db, agents=[agent], deps=Held(downstream.url, gate=gate), clock=clock) as rt:
        run = await rt.start(agent, "sleep", session="s", operation_id="m1")
        await gate.reached.wait()
        await run.cancel(by="kim")
        await gate.told.wait()
        assert (await run.refresh()).cancelling  # no lie: it is not stopped yet
        await clock.asked(GRACE)
        clock.advance(GRACE)
        with pytest.raises(RunCancelled):
            await run.result()
        assert [e.state for e in await run.effects()] == ["unknown" if effect == "once" else "failed"]

        (note,) = notes(await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock))
        assert_told(note, effect, "unknown")
        gate.open()


# --- two calls, of which one had finished -----------------------------------------------------------------------


async def fast(ctx: Context[Outside]) -> str:
    await ctx.deps.effect(ctx, "fast")
    return "fast is done"


def pair(slow: Callable[..., Any]) -> Agent:
    model = Conversation({"both": [[call("fast"), call("slow", seconds=10)], "both are done"]})
    return Agent("pair", model=model, tools=[fast, tool(name="slow")(slow)])


async def test_c01_a_cancel_when_one_of_two_calls_had_finished(db: str, downstream: Downstream) -> None:
    gate, agent = Gate(), pair(gives_way)
    async with Runtime(db, agents=[agent], deps=Held(downstream.url, gate=gate)) as rt:
        run = await rt.start(agent, "both", session="s", operation_id="m1")
        await until(run, "effect.succeeded", tool="fast")
        await gate.reached.wait()
        await run.cancel(by="kim")
        with pytest.raises(RunCancelled):
            await run.result()
        assert [(e.tool, e.state) for e in await run.effects()] == [("fast", "succeeded"), ("slow", "unknown")]
        assert [r.response for r in results(await run.messages())] == ["fast is done"]  # its real result is kept

        (note,) = notes(await holds_in_all_cases(rt, db, agent, "s", downstream))
        done, lost = (next(line for line in note.splitlines() if f"{name}(" in line) for name in ("fast", "slow"))
        assert says("succeeded") in done
        assert says("unknown") in lost


# --- cancellations that are not anybody's wish --------------------------------------------------------------------


async def raises_cancelled(ctx: Context[Held], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", seconds=seconds)
    raise asyncio.CancelledError


async def loses_its_own_task(ctx: Context[Held], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", seconds=seconds)
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task
    return "slept"


def thread_raises_cancelled(ctx: Context[Held], seconds: int) -> str:
    record(ctx.deps.url, ctx.idempotency_key, "slow", {"seconds": seconds})
    raise asyncio.CancelledError


@pytest.mark.parametrize("slow", [raises_cancelled, loses_its_own_task, thread_raises_cancelled])
async def test_c01_a_read_that_ends_by_a_cancellation_of_its_own_is_an_error_to_the_model(
    db: str, downstream: Downstream, slow: Callable[..., Any]
) -> None:
    agent = sleeper(slow, "read")
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        assert (await rt.run(agent, "sleep", session="s", operation_id="m1")).text == "slept well"
        (result,) = results(model_of(agent).of["sleep"].requests[1].messages)
        assert result.error
        assert "slept" not in str(result.response)
        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert results(request.messages) == [result]  # paired with its call in every later turn


@pytest.mark.parametrize("slow", [raises_cancelled, loses_its_own_task, thread_raises_cancelled])
async def test_c01_a_write_that_ends_by_a_cancellation_of_its_own_is_unknown(
    db: str, downstream: Downstream, slow: Callable[..., Any]
) -> None:
    agent = sleeper(slow, "once")
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "sleep", session="s", operation_id="m1")
        with pytest.raises(RunWaiting):
            await run.result()
        (ask,) = await run.asks()
        assert ask.kind == "unknown_effect"
        await ask.happened("slept, says the log", by="kim")
        assert (await run.result()).text == "slept well"
        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert [r.response for r in results(request.messages)] == ["slept, says the log"]


async def test_c01_the_callers_task_is_cancelled_and_the_run_goes_on(db: str, downstream: Downstream) -> None:
    gate, agent = Gate(), sleeper(gives_way, "once")
    async with Runtime(db, agents=[agent], deps=Held(downstream.url, gate=gate)) as rt:
        caller = asyncio.create_task(rt.run(agent, "sleep", session="s", operation_id="m1"))
        await gate.reached.wait()
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        gate.open()
        assert (await (await rt.find_run("m1")).result()).text == "slept well"
        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert [r.response for r in results(request.messages)] == ["slept"]


@pytest.mark.parametrize("effect", ["once", "idempotent", "read"])
async def test_c01_the_runtime_closes_while_a_tool_runs(db: str, downstream: Downstream, effect: EffectClass) -> None:
    gate, agent, clock = Gate(), sleeper(gives_way, effect), ManualClock()
    held = Held(downstream.url, gate=gate)
    async with Runtime(db, agents=[agent], deps=held, clock=clock) as rt:
        run = await rt.start(agent, "sleep", session="s", operation_id="m1")
        await gate.reached.wait()
        await rt.close(drain=0)
    gate.open()
    clock.advance(LATER)
    async with Runtime(db, agents=[agent], deps=Repeating(downstream.url, gate=gate), clock=clock) as rt:
        run = await rt.get_run(run.id)
        if effect == "once":
            with pytest.raises(RunWaiting):
                await run.result()
            (ask,) = await run.asks()
            await ask.happened("slept, says the log", by="kim")
        assert (await run.result()).text == "slept well"
        request = await holds_in_all_cases(
            rt, db, agent, "s", downstream, clock=clock, reads=["slow"] if effect == "read" else []
        )
        assert [r.response for r in results(request.messages)] == [
            "slept, says the log" if effect == "once" else "slept"
        ]


@dataclass(frozen=True)
class Repeating(Held):
    """A downstream that honours the key."""

    async def effect(self, ctx: Context[Any], tool: str, *, dedupe: bool = False, **arguments: Any) -> None:
        await super().effect(ctx, tool, dedupe=True, **arguments)


# --- kill -9 ----------------------------------------------------------------------------------------------------


async def reaches_outside(ctx: Context[Outside], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", dedupe=True, seconds=seconds)
    return "slept"


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_c01_kill_9_while_a_repeatable_call_runs(db: str, downstream: Downstream, effect: EffectClass) -> None:
    agent = sleeper(reaches_outside, effect)
    async with app(__file__, db, downstream, FaultPlan().at("slow.after", fault=kill())) as child:
        run_id = await child.do("start", agent=effect, input="sleep", session="s", operation_id="m1")
        await child.dies()
    clock = ManualClock(datetime.now(UTC) + LATER)
    agent = Agent(effect, model=agent.model, tools=agent.tools)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.get_run(run_id)
        assert (await run.result()).text == "slept well"
        request = await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)
        assert [r.response for r in results(request.messages)] == ["slept"]
    assert len(model_of(agent).of["sleep"].requests) == 1  # the answer that was recorded is not asked for again


@pytest.mark.parametrize(
    ("point", "word", "told"),
    [
        ("slow.after", "cancel", None),
        ("slow.after", "happened", "slept, says the log"),
        ("slow.before", "not_happened", "slept"),
        ("slow.after", "give_up", None),
    ],
)
async def test_c01_kill_9_while_a_once_call_runs(
    db: str, downstream: Downstream, point: str, word: str, told: str | None
) -> None:
    agent = Agent("once", model=sleeper(reaches_outside, "once").model, tools=[tool(name="slow")(reaches_outside)])
    async with app(__file__, db, downstream, FaultPlan().at(point, fault=kill())) as child:
        run_id = await child.do("start", agent="once", input="sleep", session="s", operation_id="m1")
        await child.dies()
    clock = ManualClock(datetime.now(UTC) + LATER)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.get_run(run_id)
        with pytest.raises(RunWaiting):
            await run.result()
        (ask,) = await run.asks()
        assert (ask.kind, ask.tool, ask.arguments) == ("unknown_effect", "slow", {"seconds": 10})
        behind = await rt.start(agent, "hello", session="s", operation_id="m2")
        match word:
            case "cancel":
                await run.cancel(by="kim")
            case "happened":
                await ask.happened(told, by="kim")
            case "not_happened":
                await ask.not_happened("nothing in the log", by="kim")
            case "give_up":
                await ask.give_up("nobody knows", by="kim")
        assert (await behind.result()).text == "hello to you"  # the next turn only waited for the word

        (request,) = model_of(agent).of["hello"].requests
        if told is None:
            assert not any(m.calls for m in request.messages)
            assert_told(*notes(request), "once", "unknown")
        else:
            assert [r.response for r in results(request.messages)] == [told]
            assert notes(request) == []
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c01_kill_9_when_one_of_two_calls_had_finished(db: str, downstream: Downstream) -> None:
    agent = pair(reaches_outside)
    await downstream.hold("after", tool="slow")
    async with app(__file__, db, downstream) as child:
        run_id = await child.do("start", agent="pair", input="both", session="s", operation_id="m1")
        await child.do("until", run=run_id, type="effect.succeeded", tool="fast")
        await downstream.wait_for(1, tool="slow")
        await child.kill()
    await downstream.release()
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.get_run(run_id)
        with pytest.raises(RunWaiting):
            await run.result()
        (ask,) = await run.asks()
        await ask.happened("slept, says the log", by="kim")
        assert (await run.result()).text == "both are done"
        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert [r.response for r in results(request.messages)] == ["fast is done", "slept, says the log"]
        assert await downstream.count(tool="fast") == 1


if __name__ == "__main__":
    serve(
        [
            *(Agent(e, model=sleeper(reaches_outside, e).model, tools=sleeper(reaches_outside, e).tools)
              for e in ("read", "idempotent", "once")),
            pair(reaches_outside),
        ]
    )  # fmt: skip
