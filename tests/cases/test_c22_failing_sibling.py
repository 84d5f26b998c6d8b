"""C22: a call that fails neither discards nor cancels the calls beside it.

Left out until it exists: a tool that ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from kit import Conversation, Outside, WatchedClock, app, holds_in_all_cases, results, serve, until, waits

from ondol import Agent, CannotTell, Context, NotDone, Runtime, Tool, tool
from ondol.messages import ToolCall
from ondol.testing import Downstream, call


class Refused(Exception):
    """What a downstream says when it did nothing."""


class Strange(BaseException):
    """Not an Exception."""


async def ok1(ctx: Context[Outside]) -> str:
    await ctx.deps.effect(ctx, "ok1")
    return "first is done"


async def ok2(ctx: Context[Outside]) -> str:
    await ctx.deps.effect(ctx, "ok2")
    return "second is done"


def raising(error: BaseException | type[BaseException], **declared: Any) -> Tool[..., Any]:
    async def boom() -> str:
        raise error

    return tool(**declared)(boom)


def raising_in_a_thread(error: BaseException | type[BaseException], **declared: Any) -> Tool[..., Any]:
    def boom() -> str:
        raise error

    return tool(**declared)(boom)


def crew(boom: Tool[..., Any] | None, boom_call: Any = None) -> Agent:
    script = [[call("ok1"), boom_call or call("boom"), call("ok2")], "saw what happened"]
    tools = [ok1, *([boom] if boom else []), ok2]
    return Agent("crew", model=Conversation({"go": script}), tools=tools)


def told(agent: Agent) -> list[tuple[str, Any, bool]]:
    """The results in the request after the calls, in order."""
    assert isinstance(agent.model, Conversation)
    (_, request) = agent.model.of["go"].requests
    return [(r.name, r.response, r.error) for r in results(request.messages)]


async def assert_the_others_are_whole(agent: Agent, downstream: Downstream, name: str = "boom") -> str:
    """Two values and one error between them, in call order, each effect once. Returns the error."""
    first, failed, second = told(agent)
    assert first == ("ok1", "first is done", False)
    assert second == ("ok2", "second is done", False)
    assert (failed[0], failed[2]) == (name, True)
    assert sorted(line.tool for line in await downstream.effects()) == ["ok1", "ok2"]
    return str(failed[1])


READ = {"effect": "read"}


RAISED: list[tuple[BaseException, dict[str, Any]]] = [
    (ValueError("boom said no"), READ),
    (SystemExit("boom said no"), READ),
    (KeyboardInterrupt("boom said no"), READ),
    (GeneratorExit("boom said no"), READ),
    (Strange("boom said no"), READ),
    (BaseExceptionGroup("boom said no", [SystemExit(1)]), READ),
    (asyncio.CancelledError("boom said no"), READ),
    (TimeoutError("boom said no"), READ),
    (NotDone("boom said no"), {}),
    (Refused("boom said no"), {"not_done": (Refused,)}),
    (SystemExit("boom said no"), {"not_done": (SystemExit,)}),
    (NotDone("boom said no"), {"effect": "idempotent"}),
]
IN_A_THREAD = [RAISED[1], RAISED[2], RAISED[6], RAISED[8]]


@pytest.mark.parametrize(
    ("make", "error", "declared"),
    [*((raising, *how) for how in RAISED), *((raising_in_a_thread, *how) for how in IN_A_THREAD)],
)
async def test_c22_one_call_raises_and_the_others_are_whole(
    db: str, downstream: Downstream, make: Callable[..., Tool[..., Any]], error: BaseException, declared: dict[str, Any]
) -> None:
    agent = crew(make(error, **declared))
    await downstream.hold("before", tool="ok2")  # it takes longer
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        await until(run, "effect.failed", tool="boom")
        await downstream.wait_for_held()  # the failure beside it did not stop it
        await downstream.release()
        assert (await run.result()).text == "saw what happened"
        why = await assert_the_others_are_whole(agent, downstream)
        assert "boom said no" in why or isinstance(error, asyncio.CancelledError)
        await holds_in_all_cases(rt, db, agent, "s", downstream)


@pytest.mark.parametrize(
    ("boom_call", "name"),
    [
        (call("boom", colour="red"), "boom"),  # no such argument
        (ToolCall("", "boom", '{"half'), "boom"),  # not JSON
        (call("bang"), "bang"),  # no such tool
    ],
)
async def test_c22_one_call_cannot_be_made_and_the_others_are_whole(
    db: str, downstream: Downstream, boom_call: Any, name: str
) -> None:
    agent = crew(raising(AssertionError("it was called")), boom_call)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        assert (await rt.run(agent, "go", session="s", operation_id="m1")).text == "saw what happened"
        assert "it was called" not in await assert_the_others_are_whole(agent, downstream, name)
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c22_one_call_takes_too_long_and_the_others_are_whole(db: str, downstream: Downstream) -> None:
    never, clock = asyncio.Event(), WatchedClock()

    @tool(effect="read", timeout=timedelta(seconds=7))
    async def boom() -> str:
        await never.wait()
        return "late"

    agent = crew(boom)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        await until(run, "effect.succeeded", tool="ok1")
        await until(run, "effect.succeeded", tool="ok2")
        await clock.asked(7)
        clock.advance(7)
        assert (await run.result()).text == "saw what happened"
        assert "7 s" in await assert_the_others_are_whole(agent, downstream)
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


# --- a write that raises: nobody knows whether it happened --------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (raising, ValueError("boom said no")),
        (raising, SystemExit("boom said no")),
        (raising, asyncio.CancelledError()),
        (raising_in_a_thread, SystemExit("boom said no")),
    ],
)
@pytest.mark.parametrize("word", ["happened", "not_happened", "give_up"])
async def test_c22_a_write_that_raises_waits_for_a_word_with_the_others_finished(
    db: str, downstream: Downstream, make: Callable[..., Tool[..., Any]], error: BaseException, word: str
) -> None:
    agent = crew(make(error))
    await downstream.hold("before", tool="ok2")
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        await until(run, "effect.unknown", tool="boom")
        await downstream.wait_for_held()
        await downstream.release()
        (ask,) = await waits(run)
        assert (ask.kind, ask.tool) == ("unknown_effect", "boom")
        assert [e.state for e in await run.effects()] == ["succeeded", "unknown", "succeeded"]
        assert isinstance(agent.model, Conversation)
        assert len(agent.model.requests) == 1  # never asked with a hole in the results

        match word:
            case "happened":
                await ask.happened("it is there", by="kim")
                assert (await run.result()).text == "saw what happened"
                assert told(agent)[1] == ("boom", "it is there", False)
            case "not_happened":
                await ask.not_happened("it is not there", by="kim")
                (ask,) = await waits(run)  # it was made again, and raised again
                assert [(e.state, e.attempt) for e in await run.effects()][1] == ("unknown", 2)
                await run.cancel(by="kim")
            case "give_up":
                await ask.give_up(by="kim")
                assert (await (await rt.get_run(run.id)).refresh()).status in ("queued", "running", "failed")
        request = await holds_in_all_cases(rt, db, agent, "s", downstream)
        assert len(results(request.messages)) == (3 if word == "happened" else 0)


# --- what decides about a call ----------------------------------------------------------------------------------

ERRORS: dict[str, type[BaseException]] = {e.__name__: e for e in (ValueError, SystemExit, KeyboardInterrupt, Strange)}


def breaking(name: str) -> Agent:
    """Its predicate and its check raise."""
    error = ERRORS[name]

    def predicate() -> bool:
        raise error("the predicate broke")

    async def check() -> CannotTell:
        raise error("the check broke")

    async def boom() -> str:
        raise ValueError("did it?")

    return Agent(name, model=crew(None).model, tools=[ok1, tool(approve=predicate, check=check)(boom), ok2])


@pytest.mark.parametrize("error", ERRORS)
async def test_c22_what_decides_about_a_call_may_raise_too(db: str, downstream: Downstream, error: str) -> None:
    """A predicate that raises means ask; a check that raises cannot tell. Neither takes others with it."""
    async with app(__file__, db, downstream) as child, Runtime(db) as rt:
        run = await rt.get_run(await child.do("start", agent=error, input="go", session="s", operation_id="m1"))
        (approval,) = await waits(run)
        assert approval.kind == "approval"
        assert sorted(line.tool for line in await downstream.effects()) == ["ok1", "ok2"]
        await approval.approve(by="kim")
        (unknown,) = await waits(run)
        assert unknown.kind == "unknown_effect"
        await unknown.happened("it is there", by="kim")
        assert (await run.result()).text == "saw what happened"
        assert [(r.name, r.response, r.error) for r in results(await run.messages())] == [
            ("ok1", "first is done", False), ("boom", "it is there", False), ("ok2", "second is done", False),
        ]  # fmt: skip
        await child.kill()
    agent = breaking(error)
    async with Runtime(db, agents=[agent]) as rt:
        await holds_in_all_cases(rt, db, agent, "s", downstream)


if __name__ == "__main__":
    serve([breaking(name) for name in ERRORS])
