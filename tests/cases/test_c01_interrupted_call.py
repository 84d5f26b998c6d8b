"""C01: an interrupted tool call leaves the session usable.

Left out until there is an HTTP door: the client's stream is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kit import NEXT_ANSWER, App, Conversation, Gate, Outside, app, conversation, holds_in_all_cases, notes, results, serve, until

from ondol import Agent, Context, NotDone, RunCancelled, Runtime, RunWaiting, ToolCall, tool
from ondol.events import EffectClass
from ondol.testing import Downstream, FaultPlan, ManualClock, call, kill
from ondol.testing.downstream import record

GRACE = 10.0  # seconds that a write in flight gets to say how it ended
LATER = timedelta(hours=1)  # after the deadline of whatever a dead process had started


@dataclass(frozen=True)
class Held(Outside):
    """Outside, with a gate at which ``slow`` stands."""

    gate: Gate | None = None


# --- cancelled while the tool runs: how tools take it ---------------------------------------------------------------


async def gives_way(ctx: Context[Any], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", seconds=seconds)
    await ctx.deps.gate.wait()
    return "slept"


async def refuses_to_stop(ctx: Context[Any], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", seconds=seconds)
    try:
        await ctx.deps.gate.wait()
    except asyncio.CancelledError:
        ctx.deps.gate.tell()
        await ctx.deps.gate.wait()
    return "slept"


async def finishes_first(ctx: Context[Any], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", seconds=seconds)
    try:
        await ctx.deps.gate.wait()
    except asyncio.CancelledError:
        return "slept a little less"
    return "slept"


async def proves_that_nothing_happened(ctx: Context[Any], seconds: int) -> str:
    try:
        await ctx.deps.gate.wait()
    except asyncio.CancelledError:
        raise NotDone("it had not begun") from None
    return "slept"


async def exits(ctx: Context[Any], seconds: int) -> str:
    await ctx.deps.effect(ctx, "slow", seconds=seconds)
    try:
        await ctx.deps.gate.wait()
    except asyncio.CancelledError:
        raise SystemExit("out of here") from None
    return "slept"


def gives_way_in_a_thread(ctx: Context[Any], seconds: int) -> str:
    ctx.deps.gate.tell()
    ctx.cancelled.wait()
    raise NotDone("it had not begun")


def finishes_first_in_a_thread(ctx: Context[Any], seconds: int) -> str:
    record(ctx.deps.url, ctx.idempotency_key, "slow", {"seconds": seconds})
    ctx.deps.gate.tell()
    ctx.cancelled.wait()
    return "slept a little less"


def interrupts_the_keyboard_in_a_thread(ctx: Context[Any], seconds: int) -> str:
    record(ctx.deps.url, ctx.idempotency_key, "slow", {"seconds": seconds})
    ctx.deps.gate.tell()
    ctx.cancelled.wait()
    raise KeyboardInterrupt


Slow = Callable[..., Any]

# the tool, its class, what becomes of the effect, lines downstream
TAKEN: list[tuple[Slow, EffectClass, str, int]] = [
    (gives_way, "once", "unknown", 1),
    (gives_way, "idempotent", "unknown", 1),
    (gives_way, "read", "failed", 1),
    (finishes_first, "once", "succeeded", 1),
    (finishes_first, "read", "succeeded", 1),
    (proves_that_nothing_happened, "once", "failed", 0),
    (exits, "once", "unknown", 1),
    (exits, "read", "failed", 1),
    (gives_way_in_a_thread, "once", "failed", 0),
    (finishes_first_in_a_thread, "once", "succeeded", 1),
    (interrupts_the_keyboard_in_a_thread, "once", "unknown", 1),
    (interrupts_the_keyboard_in_a_thread, "read", "failed", 1),
]
TOLD = {"unknown": "unknown", "succeeded": "succeeded", "failed": "nothing happened"}


def sleeper(slow: Slow, effect: EffectClass, **scripts: Any) -> Agent:
    model = Conversation({"sleep": [[call("slow", seconds=10)], "slept well"], **scripts})
    return Agent("sleeper", model=model, tools=[tool(effect=effect, name="slow")(slow)])


def calls(messages: Any) -> list[ToolCall]:
    return [c for m in messages for c in m.calls]


def assert_told(note: str, effect: EffectClass, state: str) -> None:
    """A started write is told as what it is; a read is not worth telling, but the request that got no answer is."""
    assert "'sleep'" in note
    if effect == "read":
        assert "slow" not in note
    else:
        (line,) = [line for line in note.splitlines() if "slow(" in line]
        assert TOLD[state] in line
        assert [word for word in ("succeeded",) if word in line] == (["succeeded"] if state == "succeeded" else [])


@pytest.mark.parametrize(("slow", "effect", "state", "lines"), TAKEN)
async def test_c01_a_cancel_while_a_tool_runs(
    db: str, downstream: Downstream, slow: Slow, effect: EffectClass, state: str, lines: int
) -> None:
    gate = Gate()
    agent = sleeper(slow, effect)
    async with Runtime(db, agents=[agent], deps=Held(downstream.url, gate=gate)) as rt:
        run = await rt.start(agent, "sleep", session="s", operation_id="m1")
        inside, _ = (asyncio.create_task(w) for w in (gate.reached.wait(), gate.told.wait()))
        await asyncio.wait([inside, _], return_when=asyncio.FIRST_COMPLETED)
        await run.cancel(by="kim", reason="too slow")
        with pytest.raises(RunCancelled):
            await run.result()
        (stopped,) = await run.effects()
        assert stopped.state == state
        assert await downstream.count() == lines

        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert calls(request.messages) == []
        (note,) = notes(request)
        assert_told(note, effect, state)
        inside.cancel(), _.cancel()
