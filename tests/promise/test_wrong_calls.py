"""What is called with the wrong thing, or too early, says so at once: it names the thing and the next move."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ondol import Agent, InvalidInput, NotOpen, PolicyRules, Runtime
from ondol.testing import FaultPlan, ManualClock, ScriptedModel, call, error, kill
from promise.house import House

anything: Any = 5


class Naive(ManualClock):
    """The clock of somebody who forgot that there are zones."""

    def now(self) -> datetime:
        return super().now().replace(tzinfo=None)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Runtime(agents=anything), r"agents must be a list of Agent: write agents=\[...\]"),
        (lambda: Runtime(Agent("a", model="script:demo")), "a store cannot be Agent: say sqlite:///FILE"),  # type: ignore[arg-type]
        (lambda: Runtime(Path("a.db")), "a store cannot be PosixPath: say sqlite:///FILE"),  # type: ignore[arg-type]
        (lambda: Runtime(agents=[Agent("a", model="script:demo")] * 2), "two agents are named 'a': rename one"),
        (lambda: Runtime(clock=anything), "clock must be one as ondol.Clock describes it"),
        (lambda: Runtime(clock=Naive()), "clock gives a time without an offset: let its now"),
        (lambda: Runtime(door=anything), "door must be a text that is not empty, got 5"),
        (lambda: Runtime(prices=anything), "prices must name a file, got 5"),
        (lambda: Runtime(deliver=anything), "deliver must be a function of a message of the outbox"),
        (lambda: PolicyRules(anything), r"a policy is made of a list of Rule\(...\)"),
        (lambda: Agent("a", model=ScriptedModel), "ScriptedModel is a class: make a model of it"),  # type: ignore[arg-type]
        (lambda: ScriptedModel("hello"), r"a script is a list of answers, or a function: write \[...\], got 'hello'"),
        (lambda: ScriptedModel([anything]), r"5 is no answer of a script: give a text, call\(...\), error\(...\)"),
        (lambda: call("pay", amount=Decimal("30")), r"call\('pay'\): amount=Decimal\('30'\) is no JSON: write it as a"),
        (lambda: error("sad"), "there is no error 'sad': use rate_limited"),  # type: ignore[arg-type]
        (lambda: ManualClock(anything), "5 is not a time: give a datetime with a zone, or a text"),
        (lambda: FaultPlan().at("outcome", fault=kill), r"is no fault: say kill\(\)"),  # type: ignore[arg-type]
        (lambda: FaultPlan().at("outcome", when=anything, fault=kill()), "when=5 is unknown: say before, after, delta"),
    ],
)
def test_what_cannot_be_used_is_refused_as_it_is_given(make: Callable[[], object], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        make()


@pytest.mark.both_stores
async def test_what_is_no_id_and_no_state_is_refused_and_not_taken_for_nothing(house: House) -> None:
    agent = house.agent("done")
    async with house.life(agent) as life:
        rt = life.rt
        run = await rt.start(agent, "go", operation_id="op")
        await run.result()
        with pytest.raises(InvalidInput, match="tenant must be a text"):
            await rt.start(agent, "go", tenant=None)  # type: ignore[arg-type]
        for asked in (rt.cancel(anything), rt.get_run(run), rt.asks(run=run), rt.import_run(anything)):  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="a text"):
                await asked
        session = await rt.get_session(run.session)
        for asked in (session.messages(after=run), rt.index(anything), rt.usage(prices=anything)):  # type: ignore[arg-type]
            with pytest.raises(InvalidInput):
                await asked
        for paths in ("", ["notes", ""], "x" * 5000, "\ud800"):
            with pytest.raises(InvalidInput):
                await rt.index(paths)
        for remove in ("notes", [anything], anything):
            with pytest.raises(InvalidInput):
                await rt.index([], remove=remove)
        with pytest.raises(InvalidInput, match="takes a Run, as"):
            await rt.waits_for_driver(run.id)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="takes an Ask, as"):
            await rt.decide("ask", "approve")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="before must be a text"):
            await rt.memory.ls(agent=agent, user="kim", before=anything)
        for listed in (rt.runs, rt.asks, rt.effects, rt.outbox):
            with pytest.raises(InvalidInput, match="state='pendig' is unknown: say "):
                await listed(state="pendig")  # type: ignore[arg-type]


async def test_a_runtime_that_is_not_open_says_so_whatever_it_is_asked(tmp_path: Path) -> None:
    rt = Runtime(f"sqlite:///{tmp_path}/ondol.db")
    for asked in (rt.deliver_again("1"), rt.forget_import("r_1"), rt.get_blob("0" * 64), rt.import_run("{}")):
        with pytest.raises(NotOpen, match="use 'async with"):
            await asked
