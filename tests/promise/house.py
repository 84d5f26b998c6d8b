"""Where do the tests of the promises live? On one store, with one world outside, and a clock that is moved by hand.

A ``House`` outlives the processes (``Life``) that open its store. Its tools have their effects in ``house.ledger``, and
pass the fault points ``<tool>.before`` and ``<tool>.after`` around them. When a test is over, all that holds whatever
happened is looked at (``crash.invariants``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import behind
from crash import invariants
from crash.lives import Life

from ondol import Agent, Ask, Context, Happened, NotHappened, Run, RunEnded, RunWaiting, tool
from ondol.model import ModelOutput, ModelRequest
from ondol.providers.script import Reply
from ondol.testing import EffectLine, FaultPlan, FaultyModel, ManualClock, ScriptedModel, afault_point

SOON = 30.0  # seconds; a run that nobody drives is noticed, though slowly; a busy disk is waited for
HELLO = "hello"  # a turn without tools
HELLO_BACK = "hello to you"
SUMMARY = "they said it before"  # of turns that are not shown any more


class House:
    """``checked`` is switched off by a test that leaves the store in a state that no promise allows."""

    def __init__(self, db: str) -> None:
        self.db = db
        self.clock = ManualClock("2026-01-01T00:00:00Z")
        self.ledger: list[EffectLine] = []
        self.model = ScriptedModel(self._answer)
        self.requests: list[ModelRequest] = []  # those that were sent, whether or not an answer came
        self.plan = FaultPlan()  # of the process that lives now
        self.explicit: Counter[str] = Counter()  # writes by hand, by session
        self.asked_when_saved = 0  # requests that were sent before a backup was made
        self.checked = True
        self.in_tool = asyncio.Event()  # for tools that a test makes for itself
        self._scripts: dict[str, Any] = {HELLO: [HELLO_BACK]}

    @property
    def file(self) -> Path:
        """That of a store in SQLite."""
        file = behind.file_of(self.db)
        assert file is not None
        return file

    # --- the agent ----------------------------------------------------------------------------------------------

    def agent(self, *answers: Any, tools: Sequence[Any] | None = None, said: str = "go", **described: Any) -> Agent:
        """An agent whose model gives these answers, one a step, when the user says ``said``."""
        self.answers(said, *answers)
        name = described.pop("name", "a")
        return Agent(name, model=_Model(self), tools=TOOLS if tools is None else tools, **described)

    def answers(self, said: str, *answers: Any) -> None:
        """What the model answers to this, one a step. A function is given the request."""
        self._scripts[said] = answers

    def _answer(self, request: ModelRequest) -> Reply:
        if request.purpose == "summary":
            return SUMMARY
        said = next(m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None)
        reply = self._scripts[said][request.step]
        return reply(request) if callable(reply) else reply

    def asked(self, run: Run | str | None = None) -> list[ModelRequest]:
        """The requests that the model saw: all, or those of one run."""
        id = run.id if isinstance(run, Run) else run
        return [r for r in self.requests if id in (None, r.run)]

    # --- processes ----------------------------------------------------------------------------------------------

    def life(self, *agents: Agent, plan: FaultPlan | None = None, **options: Any) -> Life:
        """The next process on the store."""
        self.plan = plan or FaultPlan()
        return Life(self.db, *agents, plan=self.plan, **{"clock": self.clock, "deps": self, **options})

    async def dies(
        self, agent: Agent, at: str, said: str = "go", *, nth: int = 1, plan: FaultPlan | None = None
    ) -> str:
        """A process that dies at this point of operation ``op`` in session ``s``. Returns the run's id, if it has one.

        Then all deadlines of its attempts pass.
        """
        async with self.life(agent, dies_at=at, nth=nth, plan=plan) as life:
            await life.ends(life.rt.run(agent, said, session="s", operation_id="op"))
        self.clock.advance(hours=1)
        return next((r.id for r in self.written().runs.values() if r.operation_id == "op"), "")

    # --- the world outside --------------------------------------------------------------------------------------

    async def act(self, ctx: Context[Any], tool: str, **arguments: Any) -> str:
        """Have an effect."""
        await afault_point(self.plan, f"{tool}.before")
        self.happened(ctx.idempotency_key, tool, **arguments)
        await afault_point(self.plan, f"{tool}.after")
        return f"{tool} done"

    def happened(self, key: str, tool: str, **arguments: Any) -> None:
        line = EffectLine(id=len(self.ledger) + 1, key=key, tool=tool, arguments=arguments, at=self.clock.now())
        self.ledger.append(line)

    def count(self, tool: str | None = None) -> int:
        return sum(tool in (None, line.tool) for line in self.ledger)

    def keys(self, tool: str) -> set[str | None]:
        return {line.key for line in self.ledger if line.tool == tool}

    # --- what is written ----------------------------------------------------------------------------------------

    def written(self) -> invariants.Written:
        return invariants.written(self.db)

    def check(self) -> None:
        """All that holds whatever happened."""
        calls = Counter(request.run for request in self.requests)
        invariants.hold(self.written(), self.ledger, (), calls, checks=("mail",), explicit=self.explicit)


class _Model:
    """The house's model, with the faults of the process that lives at the moment."""

    name = "script"

    def __init__(self, house: House) -> None:
        self._house = house

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        self._house.requests.append(request)
        return FaultyModel(self._house.model, self._house.plan).stream(request)


# --- tools, one of each kind ------------------------------------------------------------------------------------


@tool(effect="read")
async def look(ctx: Context[House], order: str) -> str:
    return await ctx.deps.act(ctx, "look", order=order)


@tool(effect="idempotent", key_ttl=timedelta(hours=24))
async def refund(ctx: Context[House], order: str) -> str:
    return await ctx.deps.act(ctx, "refund", order=order)


@tool(effect="once")
async def letter(ctx: Context[House], to: str) -> str:
    return await ctx.deps.act(ctx, "letter", to=to)


async def was_sent(ctx: Context[House]) -> Happened | NotHappened:
    await afault_point(ctx.deps.plan, "check")
    return Happened("found") if ctx.idempotency_key in ctx.deps.keys("mail") else NotHappened()


@tool(effect="once", check=was_sent)
async def mail(ctx: Context[House], to: str) -> str:
    return await ctx.deps.act(ctx, "mail", to=to)


@tool(effect="once", approve=True)
async def wire(ctx: Context[House], to: str) -> str:
    return await ctx.deps.act(ctx, "wire", to=to)


TOOLS = (look, refund, letter, mail, wire)


# --- looking ----------------------------------------------------------------------------------------------------


async def turns(come_to: Callable[[], bool]) -> None:
    """Of the event loop, until it has come to this."""
    for _ in range(10_000):
        if come_to():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def rest(run: Run) -> str:
    """The state in which the run comes to rest. Fails where nobody takes it there."""
    async with asyncio.timeout(SOON):
        try:
            await run.result()
        except (RunEnded, RunWaiting):
            return run.status
    return "completed"


async def kinds(run: Run) -> list[str]:
    """The types of the run's events, in order."""
    return [event.type async for event in run.events()]


async def the_ask(run: Run, kind: str = "approval") -> Ask:
    """The one open ask of that kind."""
    (ask,) = [a for a in await run.asks() if a.kind == kind]
    return ask


async def states(run: Run) -> list[tuple[str, str, int]]:
    """Tool, state and number of attempts of each of its effects."""
    return [(e.tool, e.state, e.attempt) for e in await run.effects()]


def notes(request: ModelRequest) -> list[str]:
    """What the runtime itself told the model."""
    return [m.text for m in request.messages if m.origin == "runtime"]
