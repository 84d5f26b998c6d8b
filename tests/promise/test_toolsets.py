"""Tools that are known only when a run is driven: which does it get, and what if they do not come?"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from kit import Mute

from ondol import Agent, Context, InvalidInput, Secret, Tool, Toolset, tool, toolset
from ondol.testing import call
from promise.house import House, letter, look, rest, states


async def users_tools(ctx: Context[House]) -> list[Tool[..., Any]]:
    return [letter] if ctx.user == "kim" else []


LETTER = [call("letter", to="lee")]


async def test_a_toolset_decides_by_the_context_of_the_run(house: House) -> None:
    agent = house.agent(LETTER, "done", tools=[look, users_tools])
    async with house.life(agent) as life:
        kims = await life.rt.start(agent, "go", session="s", user="kim", operation_id="1")
        assert await rest(kims) == "completed"
        lees = await life.rt.start(agent, "go", session="t", user="lee", operation_id="2")
        assert await rest(lees) == "completed"
        assert [t.name for t in house.asked(kims)[0].tools] == ["look", "letter"]
        assert [t.name for t in house.asked(lees)[0].tools] == ["look"]
        assert await states(kims) == [("letter", "succeeded", 1)]
        assert await states(lees) == [("letter", "failed", 0)]
        seen = await life.rt.context(kims.id)
        assert seen.matches
        assert [(t["name"], t.get("source")) for t in seen.definition["tools"]] == [
            ("look", None), ("letter", "users_tools"),
        ]  # fmt: skip


async def test_new_tools_of_a_toolset_are_seen_by_the_next_turn(house: House) -> None:
    there: list[Tool[..., Any]] = []

    @toolset
    def catalogue(ctx: Context[Any]) -> Sequence[Tool[..., Any]]:  # in a thread: it may block
        assert threading.current_thread() is not threading.main_thread()
        return there

    agent = house.agent("done", tools=[catalogue])
    async with house.life(agent) as life:
        await life.rt.run(agent, "go", session="s", operation_id="1")
        there.append(look)
        await life.rt.run(agent, "go", session="s", operation_id="2")
    assert [[t.name for t in r.tools] for r in house.requests] == [[], ["look"]]


async def test_a_toolset_may_be_a_plain_function_that_hands_on_what_an_async_one_gives(house: House) -> None:
    async def catalogue(user: str | None) -> list[Tool[..., Any]]:
        return [look]

    agent = house.agent([call("look", order="1")], "done", tools=[toolset(lambda ctx: catalogue(ctx.user))])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="1")
        assert await rest(run) == "completed"
        assert await states(run) == [("look", "succeeded", 0)]


class _Silent:
    """A toolset that gives nothing: it raises, returns nonsense, or does not answer."""

    @staticmethod
    async def raises(ctx: Context[Any]) -> list[Tool[..., Any]]:
        raise SystemExit("gone")

    @staticmethod
    async def mute(ctx: Context[Any]) -> list[Tool[..., Any]]:
        raise Mute

    @staticmethod
    async def nonsense(ctx: Context[Any]) -> list[Tool[..., Any]]:
        return 5  # type: ignore[return-value]

    @staticmethod
    async def never(ctx: Context[Any]) -> list[Tool[..., Any]]:
        return await asyncio.Event().wait()  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["raises", "mute", "nonsense", "never"])
async def test_a_toolset_that_gives_nothing_costs_only_its_own_tools(
    house: House, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    Secret("one that nobody says")  # from here on each line of the log is looked through
    source = toolset(timeout=timedelta(seconds=3))(getattr(_Silent, kind))
    agent = house.agent([call("look", order="1"), *LETTER], "done", tools=[look, source])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="1")
        resting = asyncio.create_task(rest(run))
        if kind == "never":
            await house.clock.wait_for_timers()
            house.clock.advance(seconds=3)
        assert await resting == "completed"
        assert await states(run) == [("look", "succeeded", 0), ("letter", "failed", 0)]
    assert f"toolset {kind}" in caplog.text


async def test_a_tool_that_the_agent_names_itself_is_not_replaced(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(effect="read", name="look")
    async def other(order: str) -> str:
        return "another one"

    async def more(ctx: Context[Any]) -> list[Tool[..., Any]]:
        return [other, letter]

    agent = house.agent([call("look", order="1")], "done", tools=[look, more])
    async with house.life(agent) as life:
        assert await rest(await life.rt.start(agent, "go", session="s", operation_id="1")) == "completed"
    assert house.count("look") == 1
    assert "there is a tool 'look' already" in caplog.text


async def test_a_process_that_stops_while_a_toolset_is_asked_refuses_no_call(house: House) -> None:
    asked = asyncio.Event()

    async def slow(ctx: Context[Any]) -> list[Tool[..., Any]]:
        asked.set()
        return await asyncio.Event().wait()  # type: ignore[return-value]

    async def quick(ctx: Context[Any]) -> list[Tool[..., Any]]:
        return [letter]

    run_id = await house.dies(house.agent(LETTER, "done", tools=[quick]), at="answer.after")
    async with house.life(house.agent(LETTER, "done", tools=[slow])):
        await asked.wait()
    async with house.life(house.agent(LETTER, "done", tools=[quick])) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("letter", "succeeded", 1)]


async def test_a_cancel_does_not_wait_for_a_toolset(house: House) -> None:
    asked = asyncio.Event()

    async def slow(ctx: Context[Any]) -> list[Tool[..., Any]]:
        asked.set()
        return await asyncio.Event().wait()  # type: ignore[return-value]

    agent = house.agent("never", tools=[slow])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="1")
        await asked.wait()
        await run.cancel(by="lee")
        assert await rest(run) == "cancelled"
    assert house.requests == []


def test_what_is_a_toolset_and_what_a_tool() -> None:
    def returns_text(ctx: Context[Any]) -> list[str]: ...  # type: ignore[empty-body]
    def of_an_id(id: str) -> list[Tool[..., Any]]: ...  # type: ignore[empty-body]
    async def look(query: str) -> list[str]: ...  # type: ignore[empty-body]
    def look_at_nothing() -> list[Tool[..., Any]]: ...  # type: ignore[empty-body]
    def functions(ctx: Context[Any]) -> Sequence[Tool[..., Any] | Callable[..., Any]]: ...  # type: ignore[empty-body]

    agent = Agent("a", model="script:demo", tools=[returns_text, functions, users_tools])
    assert [type(t) for t in agent.tools] == [Tool, Toolset, Toolset]
    with pytest.raises(InvalidInput, match="must take one parameter"):
        toolset(look_at_nothing)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="longer than nothing"):
        toolset(timeout=timedelta(0))(users_tools)
    assert isinstance(Agent("a", model="script:demo", tools=[of_an_id]).tools[0], Tool)
    for nothing in ("tools", functools.partial(users_tools)):
        with pytest.raises(InvalidInput, match="is no toolset: write a function"):
            toolset(nothing)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="must take one parameter"):
        toolset(dict)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is no source to search"):
        Agent("a", model="script:demo", search=[functools.partial(look)])  # type: ignore[list-item]
