"""An agent with several models: when one is down the next takes over, and the journal says who is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kit import WatchedClock, conversation, rests

from ondol import Agent, ModelRequest, RunFailed, Runtime, tool
from ondol.errors import InvalidInput, ModelErrorKind
from ondol.testing import ScriptedModel, call, error


@tool(effect="read")
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is warm"


def down(kind: ModelErrorKind = "server", **options: Any) -> ScriptedModel:
    return ScriptedModel([error(kind, **options)], name="first")


def up(*answers: Any) -> ScriptedModel:
    return ScriptedModel(list(answers) or ["hello"], name="second")


async def told(rt: Runtime, run: str) -> list[tuple[str, Any]]:
    """What the journal says about its model calls: who is asked, and what came of it."""
    said: list[tuple[str, Any]] = []
    async for event in (await rt.get_run(run)).events():
        match event.type:
            case "model.started":
                said.append(("asked", event.data["model"]))
            case "step.failed":
                said.append((event.data["error"], event.data.get("fallback")))
            case "model.completed":
                said.append(("answered", event.data["model"]))
    return said


@pytest.mark.parametrize("kind", ["rate_limited", "overloaded", "unavailable", "server", "timeout", "connection"])
async def test_the_second_model_answers_when_the_first_stays_down(db: str, kind: ModelErrorKind) -> None:
    first, second, clock = down(kind), up(), WatchedClock()
    agent = Agent("desk", model=[first, second])
    async with Runtime(db, agents=[agent], clock=clock) as rt:
        run = await rt.start(agent, "hello", session="s")
        await rests(clock, run)
        assert (await run.result()).text == "hello"
        tries = [(kind, None)] * 3
        assert await told(rt, run.id) == [
            ("asked", "first"), *tries, (kind, 1), ("asked", "second"), ("answered", "second"),
        ]  # fmt: skip
        assert [len(m.requests) for m in (first, second)] == [4, 1]
        assert "second" in (await run.refresh()).usage
        messages = [m.message for m in await (await rt.get_session("s")).messages()]
        assert conversation(messages) == [("user", "hello"), ("assistant", "hello")]  # once, however many were asked


@pytest.mark.parametrize(
    "first", [down("quota"), down("auth"), down("rate_limited", retry_after=3600.0)], ids=["quota", "auth", "wait"]
)
async def test_it_takes_over_at_once_where_waiting_is_no_use(db: str, first: ScriptedModel) -> None:
    agent = Agent("desk", model=[first, up()])
    async with Runtime(db, agents=[agent]) as rt:
        assert (await rt.run(agent, "hello")).text == "hello"
    assert len(first.requests) == 1


@pytest.mark.parametrize("kind", ["rejected", "context_overflow", "content_filter"])
async def test_no_other_model_is_asked_where_the_request_is_refused(db: str, kind: ModelErrorKind) -> None:
    second = up()
    agent = Agent("desk", model=[down(kind), second])
    async with Runtime(db, agents=[agent]) as rt:
        with pytest.raises(RunFailed) as failed:
            await rt.run(agent, "hello")
    assert failed.value.error["code"] == f"model_{kind}"
    assert second.requests == []


async def test_the_one_that_took_over_stays_for_the_run_and_the_next_begins_with_the_first(db: str) -> None:
    first = ScriptedModel([[call("look", at="ondol")], error("quota")], name="first")
    second = up("never", [call("look", at="floor")], "both are warm")
    agent = Agent("desk", model=[first, second], tools=[look])
    async with Runtime(db, agents=[agent]) as rt:
        assert (await rt.run(agent, "how is it?", session="s")).text == "both are warm"
        assert [r.step for r in first.requests] == [0, 1]
        assert [(r.step, r.attempt) for r in second.requests] == [(1, 1), (2, 1)]
        await rt.run(agent, "and now?", session="s")
        assert [r.step for r in first.requests] == [0, 1, 0, 1]


async def test_when_all_are_down_the_run_can_go_on_later_and_begins_with_the_first(db: str) -> None:
    works = False

    def script(request: Any) -> Any:
        return "at last" if works else error("quota", "no credit")

    first, second = ScriptedModel(script, name="first"), down("auth")
    agent = Agent("desk", model=[first, second])
    async with Runtime(db, agents=[agent]) as rt:
        with pytest.raises(RunFailed) as failed:
            await rt.run(agent, "hello", operation_id="op")
        assert (failed.value.error["code"], failed.value.retryable) == ("model_auth", True)
        works = True
        assert (await rt.run(agent, "hello", operation_id="op")).text == "at last"
    assert [len(m.requests) for m in (first, second)] == [2, 1]


async def test_after_a_restart_the_one_that_took_over_is_asked_and_no_other(db: str) -> None:
    asked = asyncio.Event()

    async def never(request: ModelRequest) -> str:
        asked.set()
        return await asyncio.get_running_loop().create_future()

    agent = Agent("desk", model=[down("quota"), ScriptedModel(never, name="second")])
    async with Runtime(db, agents=[agent]) as rt:
        run = (await rt.start(agent, "hello")).id
        await asked.wait()
        await rt.close(drain=0.0)
    first, second = down("quota"), up()
    agent = Agent("desk", model=[first, second])
    async with Runtime(db, agents=[agent]) as rt:
        assert (await (await rt.get_run(run)).result()).text == "hello"
    assert (first.requests, len(second.requests)) == ([], 1)


async def test_another_list_of_models_begins_with_its_first(db: str) -> None:
    waiting = asyncio.Event()

    async def never(request: ModelRequest) -> str:
        waiting.set()
        return await asyncio.get_running_loop().create_future()

    agent = Agent("desk", model=[down("quota"), ScriptedModel(never, name="second")])
    async with Runtime(db, agents=[agent]) as rt:
        run = (await rt.start(agent, "hello")).id
        await waiting.wait()
        await rt.close(drain=0.0)
    agent = Agent("desk", model=ScriptedModel(["from the only one"], name="third"))
    async with Runtime(db, agents=[agent]) as rt:
        assert (await (await rt.get_run(run)).result()).text == "from the only one"


async def test_what_the_model_saw_is_rebuilt_whoever_was_asked(db: str) -> None:
    second = up([call("look", at="a")], "warm")
    agent = Agent("desk", model=[down("quota"), second], tools=[look])
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "hello")
        await run.result()
        for step, request in enumerate(second.requests, 1):
            seen = await rt.context(run.id, step)
            assert seen.matches
            assert [m.parts for m in seen.messages] == [m.parts for m in request.messages]
        assert seen.definition["model"] == ["first", "second"]


def test_every_model_of_a_list_is_looked_at_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    agent = Agent("desk", model=["script:demo", "anthropic:claude-sonnet-5"])
    with pytest.raises(InvalidInput, match="ANTHROPIC_API_KEY is not set"):
        Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]).run_sync(agent, "hello")
    assert not (tmp_path / "ondol.db").exists()


@pytest.mark.parametrize("models", [[], ["script:demo", 7], [None]])
def test_a_list_that_holds_no_model_is_refused(models: list[Any]) -> None:
    with pytest.raises(InvalidInput, match="desk"):
        Agent("desk", model=models)


def test_a_single_model_and_a_list_of_one_are_the_same_agent() -> None:
    assert Agent("desk", model=["script:demo"]).definition() == Agent("desk", model="script:demo").definition()
