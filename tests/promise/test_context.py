"""What a model sees stays within its budget, and nothing that matters is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest

from ondol import Agent, ContextPolicy, ModelRequest, Runtime, tool
from ondol.messages import ToolResponse
from ondol.providers.script import Reply, estimate_tokens
from ondol.testing import ScriptedModel, call

TURNS = 8
PAGE = "as it is written on this page " * 20


@tool(effect="read")
async def page(n: int) -> str:
    return f"page {n}: {PAGE}"


@tool(effect="once")
async def note(text: str) -> str:
    return f"noted {text}"


def asked_in(request: ModelRequest) -> str:
    return next(m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None)


def diligent(request: ModelRequest) -> Reply:
    """Reads two pages side by side, notes something, and answers."""
    if request.purpose == "summary":
        return "They asked about pages, and pages were read."
    match request.step:
        case 0:
            return [call("page", n=1), call("page", n=2)]
        case 1:
            return ["I note it.", call("note", text=asked_in(request))]
        case _:
            return f"read, as for {asked_in(request)!r}"


def carried(request: ModelRequest) -> str:
    """What the runtime carries in the request."""
    second = request.messages[1]
    return second.text if second.origin == "runtime" else ""


async def talk(rt: Runtime, agent: Agent, turns: int = TURNS, first: int = 0) -> list[Any]:
    runs = []
    for n in range(first, first + turns):
        run = await rt.start(agent, f"question {n}", session="s")
        await run.result()
        runs.append(run)
    return runs


@pytest.mark.parametrize("summary", ["model", "excerpt"])
@pytest.mark.parametrize("budget", [780, 840, 900, 1_000, 1_100, 1_500, 3_000])
async def test_every_request_keeps_the_budget_and_can_be_built_again(db: str, budget: int, summary: Any) -> None:
    model = ScriptedModel(diligent)
    agent = Agent("a", model=model, tools=[page, note], context=ContextPolicy(budget=budget, keep=1, summary=summary))
    async with Runtime(db, agents=[agent]) as rt:
        runs = await talk(rt, agent)
        for run in runs:
            for step in (1, 2, 3):
                assert (await rt.context(run.id, step)).matches
        assert len(await (await rt.get_session("s")).messages()) == TURNS * 7  # nothing of it is lost
    async with Runtime(db, agents=[agent]) as rt:
        (run,) = await talk(rt, agent, 1, first=TURNS)
        (seen,) = [r for r in model.requests if r.run == run.id and r.step == 2]
        assert (await rt.context(run.id, 3)).messages == list(seen.messages)
    for request in model.requests:
        assert estimate_tokens(request) <= budget, request.purpose
    answers = [r for r in model.requests if r.purpose == "answer"]
    assert len({(r.run, r.step) for r in answers}) == len(answers), "no request is made twice"
    assert all(asked_in(r).startswith("question") for r in answers)
    if budget < 1_200:
        assert "not shown any more" in carried(answers[-1])
        assert ("They asked about pages" in carried(answers[-1])) == (summary == "model")


async def test_a_request_that_cannot_be_made_small_enough_is_not_sent(db: str) -> None:
    model = ScriptedModel(["never"])
    agent = Agent("a", model=model, context=ContextPolicy(budget=200))
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "word " * 1_000, session="s", operation_id="op")
        with pytest.raises(Exception, match="limit_context"):
            await run.result()
        assert model.requests == []
    roomy = Agent("a", model=ScriptedModel(["read"]), context=ContextPolicy(budget=20_000))
    async with Runtime(db, agents=[roomy]) as rt:
        assert (await rt.run(roomy, "word " * 1_000, session="s", operation_id="op")).text == "read"


async def test_what_is_left_out_can_be_read_again(db: str) -> None:
    read: list[str] = []

    def reads_on(request: ModelRequest) -> Reply:
        if asked_in(request) != "again":
            return diligent(request)
        if request.step == 0:
            assert "read_more" in [t.name for t in request.tools]
            return call("read_more", reference="m3")
        (part,) = (p for p in request.messages[-1].parts if isinstance(p, ToolResponse))
        read.append(part.text)
        return "I see"

    agent = Agent("a", model=ScriptedModel(reads_on), tools=[page, note], context=ContextPolicy(budget=1_500, keep=1))
    async with Runtime(db, agents=[agent]) as rt:
        await talk(rt, agent)
        await rt.run(agent, "again", session="s")
    assert f"page 1: {PAGE}".strip() in read[0]


SUMMARIES = {"empty": "  ", "a call": [call("note", text="x")], "too long": "on and on " * 2_000, "fails": None}


@pytest.mark.parametrize("what", SUMMARIES)
async def test_what_is_no_summary_is_refused_and_the_oldest_is_told_in_its_own_words(db: str, what: str) -> None:
    from ondol.testing import error

    def answers(request: ModelRequest) -> Reply:
        if request.purpose == "summary":
            return SUMMARIES[what] or error("server", "down")  # type: ignore[return-value]
        return diligent(request)

    model = ScriptedModel(answers)
    agent = Agent("a", model=model, tools=[page, note], context=ContextPolicy(budget=1_000, keep=1))
    async with Runtime(db, agents=[agent]) as rt:
        runs = await talk(rt, agent)
        events = [e for run in runs async for e in run.events() if e.type == "context.compacted"]
    refused = [e.data for e in events if e.data.get("refused")]
    assert refused
    assert all(not e.get("by") for e in refused)
    assert "made as an excerpt" in carried(model.requests[-1])
    assert "Asked m" in carried(model.requests[-1])
