"""A fault happens at the planned passing of the planned point, and nowhere else."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ondol.clock import sleep
from ondol.errors import InvalidInput, ModelError, RevisionConflict, StoreFull
from ondol.messages import user
from ondol.model import Answer, Delta, ModelOutput, ModelRequest
from ondol.store import Store
from ondol.testing import (
    FaultPlan,
    FaultyModel,
    FaultyStore,
    ManualClock,
    Process,
    ScriptedModel,
    afault_point,
    barrier,
    delay,
    error,
    fault_point,
    kill,
    raise_,
    stop,
)
from ondol.transactions import Tx


class Notebook:
    """The least that is a store: it lists what was done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def open(self, on_change: Callable[[], None]) -> None:
        self.done.append("open")

    async def close(self) -> None:
        self.done.append("close")

    async def drives(self, owner: str, agents: list[str]) -> bool:
        return True

    async def write(self, tx: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        with pytest.raises(StopIteration) as done:
            next(tx(*args, **kwargs))
        self.done.append(f"write {done.value.value}")
        return done.value.value

    async def read(self, tx: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        with pytest.raises(StopIteration) as done:
            next(tx(*args, **kwargs))
        return done.value.value

    async def put_blob(self, tenant: str, data: bytes) -> str:
        self.done.append("put_blob")
        return "digest"

    async def get_blob(self, tenant: str, digest: str) -> bytes:
        return b"bytes"

    async def drop_blob(self, tenant: str, digest: str) -> None:
        self.done.append("drop_blob")


def accept(name: str) -> Tx[str]:
    return name
    yield


def outcome(name: str, *, n: int = 0) -> Tx[str]:
    return f"{name}{n}"
    yield


# --- the store --------------------------------------------------------------------------------------------------


async def test_without_a_fault_a_store_is_as_it_was_and_its_writes_are_listed() -> None:
    notebook, plan = Notebook(), FaultPlan()
    store: Store = FaultyStore(notebook, plan)
    await store.open(lambda: None)
    assert await store.drives("o", [])
    assert await store.write(accept, "a") == "a"
    assert await store.write(outcome, "b", n=2) == "b2"
    assert await store.write(functools.partial(accept, "c")) == "c"
    assert await store.read(accept, "d") == "d"
    assert await store.put_blob("t", b"") == "digest"
    assert await store.get_blob("t", "digest") == b"bytes"
    await store.drop_blob("t", "digest")
    await store.close()
    assert plan.writes == ["accept", "outcome", "accept"]
    assert notebook.done == ["open", "write a", "write b2", "write c", "put_blob", "drop_blob", "close"]


def test_what_a_store_has_beyond_the_protocol_is_reached() -> None:
    notebook = Notebook()
    assert FaultyStore(notebook, FaultPlan()).done is notebook.done


async def test_a_fault_before_a_write_leaves_it_undone_and_one_after_it_loses_the_answer() -> None:
    notebook = Notebook()
    plan = FaultPlan().at("outcome", when="before", nth=2, fault=raise_(StoreFull("full")))
    plan.at("outcome.after", nth=3, fault=raise_(ValueError))
    store = FaultyStore(notebook, plan)
    await store.write(outcome, "a")
    await store.write(accept, "x")
    assert plan.unreached == ["outcome.before #2", "outcome.after #3"]
    with pytest.raises(StoreFull, match="full"):
        await store.write(outcome, "b")
    with pytest.raises(ValueError):
        await store.write(outcome, "c")
    await store.write(outcome, "d")
    assert notebook.done == ["write a0", "write x", "write c0", "write d0"]
    assert plan.unreached == []
    assert plan.passed.count("outcome.after") == 3


async def test_the_kth_write_of_any_kind_can_fail() -> None:
    notebook = Notebook()
    store = FaultyStore(notebook, FaultPlan().at_write(2, "before", raise_(StoreFull("full"))))
    await store.write(outcome, "a")
    with pytest.raises(StoreFull):
        await store.write(accept, "b")
    await store.write(accept, "c")
    assert notebook.done == ["write a0", "write c"]


async def test_a_fault_can_come_each_time() -> None:
    store = FaultyStore(Notebook(), FaultPlan().at("accept", nth=None, fault=raise_(StoreFull("full"))))
    for _ in range(3):
        with pytest.raises(StoreFull):
            await store.write(accept, "a")
    assert await store.write(outcome, "b") == "b0"


async def test_a_barrier_holds_a_write_until_the_test_says_go_on() -> None:
    notebook, wall = Notebook(), barrier()
    store = FaultyStore(notebook, FaultPlan().at("accept", when="after", fault=wall))
    writing = asyncio.create_task(store.write(accept, "a"))
    await wall.reached.wait()
    assert notebook.done == ["write a"]
    assert not writing.done()
    await store.write(accept, "b")  # only the first is held
    wall.go_on.set()
    assert await writing == "a"


async def test_writes_that_overtake_each_other_keep_their_numbers() -> None:
    first, fault = barrier(), raise_(StoreFull("full"))
    plan = FaultPlan().at("accept", when="before", nth=1, fault=first).at("accept", when="after", nth=1, fault=fault)
    store = FaultyStore(Notebook(), plan)
    writing = asyncio.create_task(store.write(accept, "a"))
    await first.reached.wait()
    assert await store.write(accept, "b") == "b"
    first.go_on.set()
    with pytest.raises(StoreFull):
        await writing


async def test_a_delay_ends_with_an_event_or_on_a_clock() -> None:
    clock, event = ManualClock(), asyncio.Event()
    plan = FaultPlan().at("accept", fault=delay(30, clock)).at("accept", when="after", fault=delay(event))
    writing = asyncio.create_task(FaultyStore(Notebook(), plan).write(accept, "a"))
    await clock.wait_for_timers()
    clock.advance(30)
    event.set()
    assert await writing == "a"
    await sleep(clock, 0)


async def test_a_blob_can_fail() -> None:
    notebook = Notebook()
    store = FaultyStore(notebook, FaultPlan().at("put_blob", when="after", fault=raise_(StoreFull("full"))))
    with pytest.raises(StoreFull):
        await store.put_blob("t", b"")
    assert notebook.done == ["put_blob"]


@pytest.mark.parametrize("build", [
    lambda: FaultPlan().at("accept", nth=0, fault=kill()),
    lambda: FaultPlan().at("accept.after", when="before", fault=kill()),
])  # fmt: skip
def test_a_plan_that_cannot_come_true_is_refused(build: Callable[[], FaultPlan]) -> None:
    with pytest.raises(InvalidInput):
        build()


# --- the model and one's own code -------------------------------------------------------------------------------

REQUEST = ModelRequest(messages=(user("hi"),), tools=(), run="r1", step=0, attempt=1)


async def test_a_model_fails_before_during_and_after_its_answer() -> None:
    plan = (
        FaultPlan()
        .at("model.before", nth=1, fault=raise_(error("connection")))
        .at("model.delta", nth=2, fault=raise_(ConnectionError("cut")))
        .at("model.after", nth=3, fault=raise_(error("timeout")))
    )
    inner = ScriptedModel(["a long answer"] * 4)
    model = FaultyModel(inner, plan)

    async def outcome() -> list[type]:
        seen: list[type] = []
        try:
            async for output in model.stream(REQUEST):
                seen.append(type(output))
        except (ModelError, ConnectionError) as broken:
            seen.append(type(broken))
        return seen

    assert await outcome() == [ModelError]
    assert await outcome() == [Delta, ConnectionError]
    assert await outcome() == [Delta, Delta, Delta, ModelError]
    assert await outcome() == [Delta, Delta, Delta, Answer]
    assert model.name == "script"
    assert len(model.requests) == len(inner.requests) == 3
    assert plan.unreached == []


async def test_closing_the_stream_closes_the_models_own() -> None:
    closed: list[bool] = []

    class Endless:
        name = "endless"

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
            try:
                while True:
                    yield Delta("x")
            finally:
                closed.append(True)

    stream: Any = FaultyModel(Endless(), FaultPlan()).stream(REQUEST)
    await anext(stream)
    await stream.aclose()
    assert closed == [True]


async def test_points_in_ones_own_code() -> None:
    plan = FaultPlan().at("charge", nth=2, fault=raise_(OSError("down"))).at("charge.after", fault=raise_(KeyError))
    fault_point(plan, "charge")
    with pytest.raises(KeyError):
        fault_point(plan, "charge.after")
    with pytest.raises(OSError, match="down"):
        await afault_point(plan, "charge")
    fault_point(None, "charge")
    await afault_point(None, "charge")


def test_code_that_cannot_wait_says_so() -> None:
    for fault in (barrier(), delay(1, ManualClock())):
        with pytest.raises(TypeError, match="afault_point"):
            fault_point(FaultPlan().at("charge", fault=fault), "charge")


# --- other processes --------------------------------------------------------------------------------------------


async def test_a_plan_is_told_to_another_process() -> None:
    plan = FaultPlan().at("charge", when="after", nth=2, fault=kill()).at_write(3, "before", stop())
    plan.at("a", nth=None, fault=raise_(StoreFull("full"))).at("b", fault=raise_(KeyError))
    plan.at("c", fault=raise_(error("rate_limited", "slow", 1.5)))
    plan.at("d", fault=raise_(ModelError("server", "sad", sent=False)))
    told = FaultPlan.from_json(plan.to_json())
    assert told.to_json() == plan.to_json()
    for _ in range(2):
        with pytest.raises(StoreFull, match="full"):
            fault_point(told, "a")
    with pytest.raises(KeyError):
        fault_point(told, "b")
    for point, expected in (("c", ("rate_limited", "slow", 1.5, True)), ("d", ("server", "sad", None, False))):
        with pytest.raises(ModelError) as raised:
            fault_point(told, point)
        e = raised.value
        assert (e.kind, str(e), e.retry_after, e.sent) == expected


@pytest.mark.parametrize("fault", [barrier(), delay(1), raise_(RevisionConflict("s", 1, 2)), raise_(ValueError({1}))])
def test_what_cannot_be_told_is_refused(fault: Any) -> None:
    with pytest.raises(InvalidInput):
        FaultPlan().at("a", fault=fault).to_json()


@pytest.mark.parametrize(
    "told",
    [
        "{",
        '[{"at": "a"}]',
        '[{"at": "a", "nth": 1, "fault": "melt"}]',
        '[{"at": "a", "nth": 1, "fault": "raise", "type": "os:getpid", "args": []}]',
        '[{"at": "a", "nth": 1, "fault": "raise", "type": "no_such_module:X", "args": []}]',
    ],
)
def test_a_text_that_is_no_plan_is_refused(told: str) -> None:
    with pytest.raises(InvalidInput, match="not a fault plan"):
        FaultPlan.from_json(told)


CHILD = """
import asyncio
from ondol.testing import FaultPlan, afault_point, fault_point
async def main():
    plan = FaultPlan.from_env()
    for n in range(1, 4):
        fault_point(plan, "charge")
        print("charged", n)
        await afault_point(plan, "charge.after")
asyncio.run(main())
"""


async def test_without_a_plan_in_the_environment_nothing_happens() -> None:
    async with Process(["-c", CHILD], env={"ONDOL_FAULTS": ""}) as child:
        assert await child.wait() == 0
        assert child.output.count("charged") == 3


async def test_a_child_kills_itself_where_it_was_told() -> None:
    plan = FaultPlan().at("charge", nth=2, when="after", fault=kill())
    async with Process(["-c", CHILD], env={"ONDOL_FAULTS": plan.to_json()}) as child:
        assert await child.wait() == -signal.SIGKILL
        assert child.output.splitlines() == ["charged 1", "charged 2"]


async def test_a_child_stands_still_until_it_is_continued() -> None:
    plan = FaultPlan().at("charge", nth=2, fault=stop())
    async with Process(["-c", CHILD], env={"ONDOL_FAULTS": plan.to_json()}) as child:
        await child.line("charged 1")
        await child.stopped()
        assert child.output.splitlines() == ["charged 1"]
        child.cont()
        assert await child.wait() == 0
        assert child.output.count("charged") == 3
