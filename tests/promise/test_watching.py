"""What a watcher costs: what is new, and not all that was there before."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from ondol import Context, Run, streams, tool
from ondol.http.callers import Caller
from ondol.http.drain import Drain
from ondol.http.service import Service
from ondol.stores import sqlite
from ondol.testing import FaultPlan, barrier, call
from ondol.watching import SessionPlace
from promise.house import House, rest, turns

STEPS = 30


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many rows each statement gave, and as ``asked <statement>`` how often it was asked."""
    counted: Counter[str] = Counter()
    rows = sqlite._rows

    def counting(connection: Any, batch: Any) -> Any:
        given = rows(connection, batch)
        for (name, _), found in zip(batch, given, strict=True):
            counted[name] += len(found)
            counted[f"asked {name}"] += 1
        return given

    monkeypatch.setattr(sqlite, "_rows", counting)
    return counted


async def seen(run: Run, after: str | None = None) -> list[Any]:
    return [event async for event in run.events(after)]


async def test_a_watcher_reads_each_entry_and_each_message_once(house: House, read: Counter[str]) -> None:
    agent = house.agent(*[[call("look", order=str(n))] for n in range(STEPS)], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        events = await seen(run)
        assert events[-1].type == "run.completed"
        told = read["message.one"] + read["message.of_run"]
        batches, messages = len(house.written().batches[run.id]), len(await run.messages())
    assert read["entry.list"] <= batches + 2  # and what the claim read
    assert told <= messages + 1
    assert [e.data["arguments"] for e in events if e.type == "effect.planned"] == [
        {"order": str(n)} for n in range(STEPS)
    ]
    assert [e.data["result"] for e in events if e.type == "effect.succeeded"] == ["look done"] * STEPS
    assert [e.data["text"] for e in events if e.type in ("run.completed", "model.completed")][-2:] == ["done"] * 2


async def test_a_watcher_that_comes_back_is_told_what_follows_in_full(house: House) -> None:
    agent = house.agent([call("look", order="1"), call("look", order="2")], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        events = await seen(run)
        for n, event in enumerate(events):
            if event.id is not None:
                assert await seen(run, event.id) == [e for e in events[n + 1 :] if e.id is not None]


async def test_pieces_of_an_answer_are_handed_on_without_a_look_at_the_store(house: House, read: Counter[str]) -> None:
    agent, plan, gates = house.agent("an answer in three pieces"), FaultPlan(), [barrier() for _ in range(3)]
    for point, gate in zip((("model.delta", 2), ("model.delta", 3), ("model.after", 1)), gates, strict=True):
        plan.at(point[0], nth=point[1], fault=gate)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        pieces = (event async for event in run.events() if event.type == "model.delta")
        await anext(pieces)
        gates[0].go_on.set()
        await anext(pieces)  # whatever was written before is read by now
        looked = read["asked entry.list"]
        gates[1].go_on.set()
        await anext(pieces)
        assert read["asked entry.list"] == looked
        gates[2].go_on.set()
        assert await rest(run) == "completed"


@pytest.mark.parametrize("late", [False, True])
async def test_whoever_starts_a_run_hears_each_piece_of_its_first_answer(house: House, late: bool) -> None:
    """Though it looks into the store after the first piece was said, or after all is done."""
    said, plan, reading, second = "an answer in three pieces", FaultPlan(), barrier(), barrier()
    plan.at("journal_ends.before", fault=reading).at("model.delta", nth=2, fault=second)
    agent = house.agent(said)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        events = run.events()
        first = asyncio.create_task(anext(events))
        await reading.reached.wait()
        await second.reached.wait()
        if late:
            second.go_on.set()
            assert await rest(run) == "completed"
        reading.go_on.set()
        told = [await first]
        async for event in events:
            told.append(event)
            if event.type in ("model.delta", "message.snapshot"):
                second.go_on.set()
    kinds = [e.type for e in told]
    assert "message.snapshot" not in kinds
    assert "".join(e.data["text"] for e in told if e.type == "model.delta") == said
    assert kinds.index("model.started") < kinds.index("model.delta") < kinds.index("model.completed")


@pytest.mark.parametrize("of_session", [False, True])
@pytest.mark.parametrize("why", ["it came in the middle", "it was too slow"])
async def test_no_piece_of_an_answer_is_told_to_who_missed_its_beginning_and_reads_on_when_it_is_over(
    house: House, monkeypatch: pytest.MonkeyPatch, why: str, of_session: bool
) -> None:
    if why == "it was too slow":
        monkeypatch.setattr(streams, "_PASSING_LIMIT", 2)
    plan, piece = FaultPlan(), barrier()
    plan.at("model.delta", nth=2 if why == "it came in the middle" else 1, fault=piece)
    agent = house.agent(["an answer in three pieces", call("look", order="1")], "and another one")
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await piece.reached.wait()
        stream = (
            (one.event async for one in life.rt._watch_session("default", "s", SessionPlace({}), 0.0) if one)
            if of_session
            else run.events()
        )
        told = [await anext(stream)]
        piece.go_on.set()
        assert await rest(run) == "completed"
        while told[-1].type != "run.completed":
            told.append(await anext(stream))
        await stream.aclose()
    assert [e.data["text"] for e in told if e.type == "model.completed"] == [
        "an answer in three pieces", "and another one",
    ]  # fmt: skip
    pieces = [(e.data["step"], e.data["text"]) for e in told if e.type == "model.delta"]
    said = {step: "".join(text for of, text in pieces if of == step) for step, _ in pieces}
    assert 1 not in said
    assert said.get(2, "and another one") == "and another one"


@pytest.mark.parametrize("begun", [False, True])
async def test_a_stream_that_is_given_up_leaves_no_watcher(house: House, begun: bool) -> None:
    """Though it never began, as when its reader is gone before the first byte."""
    caller = Caller(
        tenant="default", user=None, scopes=frozenset({"run", "read"}), name="kim", token=None, way="http"
    )  # fmt: skip
    agent, in_model = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=in_model)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        stream = Service(life.rt, Drain()).watch(caller, run)
        assert life.rt._streams.is_watched(run.id)
        if begun:
            await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        del stream
        assert not life.rt._streams.is_watched(run.id)
        in_model.go_on.set()
        assert await rest(run) == "completed"


async def test_whoever_gives_up_waiting_for_a_run_leaves_nothing_behind(house: House) -> None:
    agent, in_model = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=in_model)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_model.reached.wait()
        settled = life.rt._streams._settled
        for n in (1, 2):
            waiting = [asyncio.create_task(rest(run)) for _ in range(n)]
            await turns(lambda n=n: len(settled.get(run.id, ())) == n)
            for one in waiting:
                one.cancel()
            await asyncio.wait(waiting)
            assert not settled
        waiting = [asyncio.create_task(rest(run)) for _ in range(2)]
        await turns(lambda: len(settled.get(run.id, ())) == 2)
        waiting[0].cancel()
        in_model.go_on.set()
        assert await waiting[1] == "completed"
        assert not settled


async def test_a_tool_in_a_thread_tells_watchers_how_far_it_is(house: House) -> None:
    go_on, loop_thread = threading.Event(), threading.get_ident()

    @tool(effect="read")
    def count(ctx: Context[House], upto: int) -> str:
        assert threading.get_ident() != loop_thread
        ctx.deps.happened(ctx.idempotency_key, "count", upto=upto)
        for n in range(1, upto + 1):
            ctx.progress(n / upto, f"{n} of {upto}")
        assert go_on.wait(10)  # it is not done: what follows is told while it runs
        return "counted"

    agent = house.agent([call("count", upto=3)], "done", tools=[count])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        told = []
        async for event in run.events():
            if event.type == "progress":
                told.append(event)
            if len(told) == 3:
                go_on.set()
    assert [(e.data["fraction"], e.data["note"]) for e in told] == [(1 / 3, "1 of 3"), (2 / 3, "2 of 3"), (1, "3 of 3")]
    assert {e.id for e in told} == {None}
    assert {e.data["tool"] for e in told} == {"count"}
