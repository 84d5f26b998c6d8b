"""C46: switching model or provider in the middle of a conversation leaves its history valid.

Left out until it exists: a compaction in between.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from kit import Outside, conversation, results

from ondol import (
    Agent,
    Context,
    Message,
    ModelError,
    ModelOutput,
    ModelRequest,
    Reasoning,
    Runtime,
    Text,
    ToolCall,
    ToolResponse,
    tool,
)
from ondol.messages import Part
from ondol.providers.script import Script
from ondol.testing import Downstream, ScriptedModel, error

ASKED, AGAIN, LAST = "how warm is it?", "and now?", "and the cellar?"


@tool(effect="read")
async def look(ctx: Context[Outside], at: str) -> str:
    """Look at something."""
    return f"{at} is warm"


@tool(effect="idempotent")
async def heat(ctx: Context[Outside], at: str) -> str:
    """Heat something."""
    await ctx.deps.effect(ctx, "heat", at=at)
    return f"{at} is hot"


class Strict:
    """A provider that signs what it says, and refuses what it did not say like this.

    Its own words must come back whole: reasoning with its signature, directly before the item that followed it. What
    is signed by others it refuses, and ids of calls that are not as it knows them.
    """

    def __init__(self, name: str, ids: str, script: Script) -> None:
        self.name = name
        self._ids, self._script = ids, ScriptedModel(script, name=name)
        self._given: dict[tuple[Any, ...], tuple[Part, ...]] = {}  # what it said, by what can be told from outside

    @property
    def requests(self) -> list[ModelRequest]:
        return self._script.requests

    def thinks(self, text: str, *calls: tuple[str, str, str]) -> list[Part | str]:
        """Signed reasoning, and then calls as it makes them: an id, a tool, and where."""
        signed = {"name": self.name, "signature": f"{self.name} signed: {text}"}
        return [Reasoning(text, signed), *(ToolCall(id, name, {"at": at}, dict(signed)) for id, name, at in calls)]

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        for message in request.messages:
            if why := self._refuses(message):
                raise ModelError("rejected", f"{self.name}: {why}")
        async for output in self._script.stream(request):
            if not hasattr(output, "kind"):
                parts = output.parts  # type: ignore[union-attr]
                self._given[_outside(parts)] = parts
            yield output

    def _refuses(self, message: Message) -> str:
        for part in message.parts:
            if isinstance(part, ToolCall | ToolResponse) and not re.fullmatch(self._ids, part.id):
                return f"the id {part.id!r} is not one of a call"
        given = self._given.get(_outside(message.parts)) if message.role == "assistant" else None
        private = [p for p in message.parts if isinstance(p, Reasoning) or getattr(p, "provider", None)]
        if given is None:
            return "this reasoning is not mine" if private else ""
        mine = [p for p in given if isinstance(p, Reasoning)]
        return "" if [p for p in message.parts if isinstance(p, Reasoning)] == mine else "my reasoning is incomplete"


def _outside(parts: Sequence[Part]) -> tuple[Any, ...]:
    return tuple(
        (p.name, str(p.arguments)) if isinstance(p, ToolCall) else p.text
        for p in parts
        if isinstance(p, ToolCall | Text)
    )


def asked(request: ModelRequest) -> str:
    return next(m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None)


def first(script: dict[str, list[Any]] | None = None, down: bool = False) -> Strict:
    """Its ids are long and full of signs. In each turn it looks and heats, and then says so."""

    def answers(request: ModelRequest) -> Any:
        if down and request.step:
            return error("quota", "no credit")
        if request.step == 0:
            where = {ASKED: "floor", LAST: "cellar"}.get(asked(request), "roof")
            ids = [f"p1|call/{where}:{n}|{'x' * 60}" for n in range(2)]
            return model.thinks(f"P1 thinks of the {where}", (ids[0], "look", where), (ids[1], "heat", where))
        return [*model.thinks("P1 is done"), "all warm, says P1"]

    model = Strict("p1", r".{1,200}", answers)
    return model


def second() -> Strict:
    """It takes short and plain ids only, and hides what it thinks."""

    def answers(request: ModelRequest) -> Any:
        if not any(isinstance(p, ToolResponse) for p in request.messages[-1].parts):
            return [*model.thinks("", ("p2_0", "look", "roof")), ToolCall("p2_1", "heat", {"at": "roof"})]
        return "all warm, says P2"

    model = Strict("p2", r"[A-Za-z0-9_-]{1,40}", answers)
    return model


TURN = [
    ("assistant", "look(at='floor')"), ("assistant", "heat(at='floor')"),
    ("tool", "look: floor is warm"), ("tool", "heat: floor is hot"),
]  # fmt: skip


async def committed(rt: Runtime) -> list[Message]:
    return [m.message for m in await (await rt.get_session("s")).messages()]


@pytest.mark.parametrize("restart", [False, True])
async def test_c46_one_provider_then_another_then_the_first_again(
    db: str, downstream: Downstream, restart: bool
) -> None:
    p1, p2 = first(), second()
    agents = [Agent("one", model=p1, tools=[look, heat]), Agent("two", model=p2, tools=[look, heat])]
    rt = Runtime(db, agents=agents, deps=Outside(downstream.url))
    await rt.open()
    for agent, said in ((agents[0], ASKED), (agents[1], AGAIN), (agents[0], LAST)):
        if restart:
            await rt.close()
            rt = Runtime(db, agents=agents, deps=Outside(downstream.url))
            await rt.open()
        await rt.run(agent, said, session="s", operation_id=said)
    try:
        *_, last = p1.requests
        told = conversation(last.messages)
        assert told[1:6] == [("user", ASKED), *TURN]
        assert ("assistant", "all warm, says P1") in told
        assert ("assistant", "all warm, says P2") in told
        assert [r.response for r in results(last.messages)] == [
            f"{at} is {how}" for at in ("floor", "roof", "cellar") for how in ("warm", "hot")
        ]
        signed = [p.text for m in last.messages for p in m.parts if isinstance(p, Reasoning)]
        assert signed == ["P1 thinks of the floor", "P1 is done", "P1 thinks of the cellar"]
        assert not any(isinstance(p, Reasoning) for r in p2.requests[:1] for m in r.messages for p in m.parts)
        assert await downstream.count() == 3

        stored = [p.provider for m in await committed(rt) for p in m.parts if isinstance(p, Reasoning)]
        assert [p["name"] for p in stored if p] == ["p1", "p1", "p2", "p1", "p1"]  # the journal keeps whose it was
        assert (await rt.run(agents[1], AGAIN, session="s")).text == "all warm, says P2"
    finally:
        await rt.close()


async def test_c46_what_is_signed_is_its_models_own_where_nobody_says_whose_it_is(db: str) -> None:
    signed = [Reasoning("it is cold", {"signature": "7f"}), ToolCall("c1", "look", {"at": "roof"}, {"item": "1"})]
    p1, p2 = ScriptedModel([signed, "warm"], name="p1"), ScriptedModel(["warm"], name="p2")
    agents = [Agent("one", model=p1, tools=[look]), Agent("two", model=p2, tools=[look])]
    async with Runtime(db, agents=agents) as rt:
        for agent, said in ((agents[0], ASKED), (agents[1], AGAIN), (agents[0], LAST)):
            await rt.run(agent, said, session="s", operation_id=said)
    elsewhere, back = (
        [part for m in request.messages if m.role == "assistant" for part in m.parts]
        for request in (p2.requests[0], p1.requests[2])
    )
    assert elsewhere == [ToolCall("c1", "look", {"at": "roof"}), Text("warm")]
    thought, called, *_ = back
    assert isinstance(thought, Reasoning)
    assert thought.provider == {"name": "p1", "signature": "7f"}
    assert called == ToolCall("c1", "look", {"at": "roof"}, {"name": "p1", "item": "1"})


async def test_c46_the_second_takes_over_in_the_middle_of_a_tool_loop(db: str, downstream: Downstream) -> None:
    p1, p2 = first(down=True), second()
    agent = Agent("both", model=[p1, p2], tools=[look, heat])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        assert (await rt.run(agent, ASKED, session="s", operation_id="op1")).text == "all warm, says P2"
        (request,) = p2.requests
        assert conversation(request.messages)[1:] == [("user", ASKED), *TURN]
        assert conversation(await committed(rt)) == [("user", ASKED), *TURN, ("assistant", "all warm, says P2")]
        assert await downstream.count() == 1, "what was done before is not done again"
        (run,) = await rt.runs(session="s")
        assert [e.attempt for e in await rt.effects(run=run.id) if e.tool == "heat"] == [1]


async def test_c46_a_restart_in_between_goes_on_with_the_second(db: str, downstream: Downstream) -> None:
    p1, p2 = first(down=True), second()
    reached = asyncio.Event()

    async def stuck(request: ModelRequest) -> str:
        reached.set()
        return await asyncio.get_running_loop().create_future()

    agent = Agent("both", model=[p1, ScriptedModel(stuck, name="p2")], tools=[look, heat])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, ASKED, session="s", operation_id="op1")
        await reached.wait()
        await rt.close(drain=0.0)
    asked_before = len(p1.requests)
    agent = Agent("both", model=[p1, p2], tools=[look, heat])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        assert (await (await rt.get_run(run.id)).result()).text == "all warm, says P2"
        assert len(p1.requests) == asked_before
        assert await downstream.count() == 1
        # The next turn is asked of the first again, which sees its own words whole.
        await rt.run(agent, LAST, session="s", operation_id="op2")
        assert [p.text for p in _reasoning(p1.requests[asked_before])] == ["P1 thinks of the floor"]


def _reasoning(request: ModelRequest) -> list[Reasoning]:
    return [p for m in request.messages for p in m.parts if isinstance(p, Reasoning)]
