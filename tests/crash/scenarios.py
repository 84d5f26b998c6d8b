"""What runs while the process dies?

A scenario is an agent, and what its client does: it starts one operation and sees it through. Everything that must
outlive the process is outside of it: what happened in the downstream's ledger, what the client was told and what the
model was asked in a log (``World``).
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast

from ondol import (
    Agent,
    Ask,
    By,
    Context,
    ContextPolicy,
    Happened,
    Limits,
    ModelOutput,
    ModelRequest,
    NotHappened,
    OutboxMessage,
    Reasoning,
    Run,
    Runtime,
    ToolResponse,
    tool,
)
from ondol.deliveries import Deliver
from ondol.errors import RunEnded, RunWaiting
from ondol.providers.script import Reply
from ondol.testing import EffectLine, FaultPlan, FaultyModel, ScriptedModel, call, error, fault_point
from ondol.testing.downstream import find, record

SESSION = "s"
FIRST = ("op-1", "do it")
NEXT = ("op-2", "and what now?")
MEANWHILE = ("op-3", "wait, there is more")  # what is sent while the first one is under way
AGAIN = "op-4"  # the replay, or the fork, of the first one


@dataclass(frozen=True)
class World:
    """All that is not the process. ``case`` tells its lines in the ledger from those of others.

    A process that has a ``plan`` of faults passes its points ``tool`` and ``model`` too. With ``listens`` somebody
    hears each message of the outbox, and writes down that it came.
    """

    url: str
    case: str
    log: Path
    plan: FaultPlan = field(default_factory=FaultPlan, compare=False)
    listens: bool = False
    in_tool: asyncio.Event = field(default_factory=asyncio.Event, compare=False)
    go_on: asyncio.Event = field(default_factory=asyncio.Event, compare=False)

    def happens(self, ctx: Context[Any], tool: str, arguments: Mapping[str, Any]) -> str:
        """Have an effect. It blocks the event loop, so that no write of the store comes between sending and answer."""
        fault_point(self.plan, "tool.before")
        record(self.url, ctx.idempotency_key, tool, {"case": self.case, **arguments})
        fault_point(self.plan, "tool.after")
        return f"{tool} done"

    def has_seen(self, key: str) -> bool:
        """Did an effect with that key happen?"""
        return bool(find(self.url, key))

    async def gone_on(self) -> str:
        await self.go_on.wait()
        return "done"

    def note(self, **line: Any) -> None:
        """Written with one call of the operating system: a process that is killed has written it, or not."""
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)

    @property
    def listener(self) -> Deliver | None:
        return self._hears if self.listens else None

    async def _hears(self, message: OutboxMessage) -> None:
        self.note(event="heard", message=message.id, kind=message.kind)

    @property
    def noted(self) -> list[dict[str, Any]]:
        """Every line, in order."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.noted if line["event"] == event]


@dataclass(frozen=True)
class WorldInside(World):
    """A world in the memory of the process that tries it: for thousands of cases in which no process really ends."""

    ledger: list[EffectLine] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, folder: Path) -> WorldInside:
        return cls("", folder.name, folder / "client.jsonl")

    def happens(self, ctx: Context[Any], tool: str, arguments: Mapping[str, Any]) -> str:
        given, at = {"case": self.case, **arguments}, datetime.now(UTC)
        line = EffectLine(id=len(self.ledger) + 1, key=ctx.idempotency_key, tool=tool, arguments=given, at=at)
        self.ledger.append(line)
        return f"{tool} done"

    def has_seen(self, key: str) -> bool:
        return any(line.key == key for line in self.ledger)

    async def effects(self) -> list[EffectLine]:
        """As the downstream says it."""
        return list(self.ledger)


# --- tools ------------------------------------------------------------------------------------------------------


@tool(effect="read")
async def look(ctx: Context[World], order: str) -> str:
    """Look an order up."""
    return ctx.deps.happens(ctx, "look", {"order": order})


@tool(effect="idempotent", key_ttl=timedelta(hours=24))
async def refund(ctx: Context[World], order: str) -> str:
    """Pay an order back."""
    return ctx.deps.happens(ctx, "refund", {"order": order})


@tool(effect="idempotent", key_ttl=timedelta(hours=24), name="flaky")
async def flaky(ctx: Context[World], order: str) -> str:
    """Pay an order back; the answer to the first attempt is lost on the way."""
    ctx.deps.happens(ctx, "flaky", {"order": order})
    if ctx.attempt == 1:
        raise ConnectionError("no answer")
    return "flaky done"


@tool(effect="idempotent", key_ttl=timedelta(hours=24))
async def report(ctx: Context[World], order: str) -> str:
    """Write a report that is too long to be shown."""
    return ctx.deps.happens(ctx, "report", {"order": order}) + ", word by word" * 200


async def was_sent(ctx: Context[World], to: str) -> Happened | NotHappened:
    return Happened("mail done") if ctx.deps.has_seen(ctx.idempotency_key) else NotHappened()


@tool(effect="once", check=was_sent)
async def mail(ctx: Context[World], to: str) -> str:
    """Send a mail; it can be looked up."""
    return ctx.deps.happens(ctx, "mail", {"to": to})


@tool(effect="once")
async def letter(ctx: Context[World], to: str) -> str:
    """Send a letter; nobody can look it up."""
    ctx.state["letters"] = to
    return ctx.deps.happens(ctx, "letter", {"to": to})


@tool(effect="once", approve=True)
async def wire(ctx: Context[World], to: str) -> str:
    """Send money, if a person says so."""
    return ctx.deps.happens(ctx, "wire", {"to": to})


@tool(effect="once")
async def slow(ctx: Context[World], to: str) -> str:
    """Send something, and then never end by itself."""
    ctx.deps.happens(ctx, "slow", {"to": to})
    ctx.deps.in_tool.set()
    await asyncio.get_running_loop().create_future()
    return "never"


@tool(effect="once")
async def parcel(ctx: Context[World], to: str) -> str:
    """Send something, and say so when the client has gone on."""
    ctx.deps.happens(ctx, "parcel", {"to": to})
    ctx.deps.in_tool.set()
    await ctx.deps.go_on.wait()
    return "parcel done"


@tool(effect="steps")
async def errand(ctx: Context[World], order: str) -> str:
    """Look, pay and write: each is recorded."""
    said = [await ctx.call(look, order=order), await ctx.call(refund, order=order)]
    return ", ".join([*said, await ctx.call(mail, to="kim")])


@tool(effect="steps")
async def visit(ctx: Context[World], to: str) -> str:
    """Announce a transfer, and make it if a person says so."""
    await ctx.call(letter, to=to)
    return await ctx.call(wire, to=to)


@tool(effect="steps")
async def survey(ctx: Context[World], order: str) -> str:
    """Pay, and write if a person says so."""
    await ctx.call(refund, order=order)
    return await ctx.call(mail, to="kim") if await ctx.ask("Write, too?", schema=bool) else "not written"


@tool(effect="steps")
async def inquiry(ctx: Context[World], order: str) -> str:
    """Pay, and write what somebody says."""
    await ctx.call(refund, order=order)
    return await ctx.call(mail, to=await ctx.ask("To whom?"))


@tool(effect="steps")
async def permitted(ctx: Context[World], what: str) -> str:
    """Do something if a person says so."""
    if not await ctx.ask("May I?", schema=bool):
        return "not done"
    match what:
        case "look":
            return await ctx.call(look, order="1")
        case "refund":
            return await ctx.call(refund, order="1")
        case "mail":
            return await ctx.call(mail, to="kim")
        case "letter":
            return await ctx.call(letter, to="kim")
        case _:
            return "nothing to do"


TOOLS = (look, refund, flaky, report, mail, letter, wire, slow, parcel, errand, visit, survey, inquiry, permitted)


# --- the model --------------------------------------------------------------------------------------------------


UNANSWERED = "was not answered"  # what a note says of other runs; there are others, about what is not shown any more


class Watched:
    """A model whose calls are written down when they begin: each is paid for."""

    def __init__(
        self, script: Callable[[ModelRequest], Reply | Awaitable[Reply]], world: World, name: str = "script"
    ) -> None:
        self.model, self.world = ScriptedModel(script, name=name), world

    @property
    def name(self) -> str:
        return self.model.name

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        told = [m.text for m in request.messages if m.origin == "runtime" and UNANSWERED in m.text]
        self.world.note(event="model", run=request.run, step=request.step, attempt=request.attempt, notes=told)
        faulty = FaultyModel(self.model, self.world.plan)
        async with aclosing(cast(Any, faulty.stream(request))) as outputs:
            async for output in outputs:
                yield output


# --- scenarios --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """``answers`` are the model's, one a step; a function of the request where attempts differ.

    ``ends`` names the states that the operation may end in. ``cancels``: the client cancels it while its tool, or its
    model, is in flight. ``asks``: it needs a person's approval, which comes after a restart. ``meanwhile``: while its
    tool is in flight the client sends another operation, with this ``if_busy``. ``second`` are the answers of a
    model that takes over. ``again``: when it has ended, the client replays it, or forks it at its second step.
    """

    name: str
    answers: tuple[Any, ...]
    context: ContextPolicy | None = None
    ends: frozenset[str] = frozenset({"completed"})
    cancels: bool = False
    asks: bool = False
    second: tuple[Any, ...] = ()
    meanwhile: Any = None
    again: Literal["replay", "fork"] | None = None

    @property
    def goes_on(self) -> bool:
        """The client does something while the tool is in flight."""
        return self.cancels or bool(self.meanwhile)

    def agent(self, world: World) -> Agent:
        models = [Watched(functools.partial(self._reply, world, self.answers), world)]
        if self.second:
            models.append(Watched(functools.partial(self._reply, world, self.second), world, "second"))
        return Agent("crashes", model=models, tools=TOOLS, limits=LIMITS, context=self.context)

    def _reply(self, world: World, answers: tuple[Any, ...], request: ModelRequest) -> Reply | Awaitable[Reply]:
        said = next(m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None)
        if said in (NEXT[1], MEANWHILE[1]):
            return "we are done"
        answer = answers[request.step]
        if answer is ENDLESS:
            world.in_tool.set()
            return asyncio.get_running_loop().create_future()
        if answer is UNHURRIED:
            world.in_tool.set()
            return world.gone_on()
        return answer(request) if callable(answer) else answer


LIMITS = Limits(tool_output=1_000)
ENDLESS = object()  # an answer that never comes
UNHURRIED = object()  # one that comes when the client has gone on


def _first_attempt_fails(request: ModelRequest) -> Reply:
    return error("overloaded", retry_after=0.0) if request.attempt == 1 else "done"


def _only_a_replay_goes_on(*answers: Any) -> tuple[Any, ...]:
    """A replay is told of the run that it replays; that one is refused an answer."""

    def said(answer: Any, request: ModelRequest) -> Any:
        return answer if any(m.origin == "runtime" for m in request.messages) else error("rejected")

    return tuple(functools.partial(said, answer) for answer in answers)


def _read_on(request: ModelRequest) -> Reply:
    (result,) = (p for p in request.messages[-1].parts if isinstance(p, ToolResponse))
    assert result.blob is not None
    return call("read_more", reference=result.blob.digest, offset=900)


_NARROW = 1_300  # tokens: too few for all that is said in these steps
_WORDY = (*(["it is as I said before, " * 45, call("refund", order=str(n))] for n in range(3)), "done")

_ALL = (
    Scenario(name="no_tool", answers=("done",)),
    Scenario(name="read", answers=([call("look", order="1")], "done")),
    Scenario(name="idempotent", answers=([call("refund", order="1")], "done")),
    Scenario(name="idempotent_whose_answer_was_lost", answers=([call("flaky", order="1")], "done")),
    Scenario(name="once_with_check", answers=([call("mail", to="kim")], "done")),
    Scenario(name="once_without_check", answers=([call("letter", to="kim")], "done")),
    Scenario(
        name="parallel",
        answers=([call("look", order="1"), call("refund", order="1"), call("letter", to="kim")], "done"),
    ),
    Scenario(name="two_steps", answers=(["first", call("letter", to="kim")], [call("refund", order="1")], "done")),
    Scenario(name="model_asked_again", answers=(_first_attempt_fails,)),
    Scenario(
        name="another_model_takes_over",
        answers=([Reasoning("hm", {"name": "script"}), call("refund", order="1")], error("quota")),
        second=("never asked for", [call("letter", to="kim")], "done"),
    ),
    Scenario(name="failed", answers=([call("letter", to="kim")], error("rejected")), ends=frozenset({"failed"})),
    Scenario(name="approved_after_restart", answers=([call("wire", to="kim")], "done"), asks=True),
    Scenario(name="steps", answers=([call("errand", order="1"), call("flaky", order="2")], "done")),
    Scenario(name="steps_answered_after_restart", answers=([call("survey", order="1")], "done"), asks=True),
    Scenario(name="steps_approved_after_restart", answers=([call("visit", to="kim")], "done"), asks=True),
    Scenario(name="cancelled", answers=([call("slow", to="kim")], "done"), ends=frozenset({"cancelled"}), cancels=True),
    Scenario(name="cancelled_while_it_answers", answers=(ENDLESS,), ends=frozenset({"cancelled"}), cancels=True),
    Scenario(name="long_result", answers=([call("report", order="1")], _read_on, "done")),
    Scenario(name="compacted", answers=_WORDY, context=ContextPolicy(budget=_NARROW, summary="excerpt")),
    Scenario(
        name="compacted_after_restart",
        answers=_WORDY,
        context=ContextPolicy(budget=_NARROW, on_overflow="ask", summary="excerpt"),
        asks=True,
    ),
    Scenario(
        name="interrupted",
        answers=([call("parcel", to="kim")], "done"),
        ends=frozenset({"cancelled"}),
        meanwhile="interrupt",
    ),
    Scenario(name="answered_by_a_message", answers=([call("inquiry", order="1")], "done"), meanwhile="queue"),
    Scenario(name="steered", answers=([call("parcel", to="kim")], "done"), meanwhile="steer"),
    Scenario(name="steered_while_it_answers", answers=(UNHURRIED,), meanwhile="steer"),
    Scenario(
        name="replayed",
        answers=([call("look", order="1")], *_only_a_replay_goes_on("done")),
        ends=frozenset({"failed"}),
        again="replay",
    ),
    Scenario(
        name="replayed_under_guard",
        answers=([call("letter", to="kim")], *_only_a_replay_goes_on([call("refund", order="1")], "done")),
        ends=frozenset({"failed"}),
        again="replay",
    ),
    Scenario(name="forked", answers=([call("letter", to="kim")], [call("refund", order="1")], "done"), again="fork"),
)
SCENARIOS: Mapping[str, Scenario] = {s.name: s for s in _ALL}

KINDS = {
    "no_tool": "nothing", "read": "look", "idempotent": "refund", "once_with_check": "mail",
    "once_without_check": "letter",
}  # fmt: skip
_PERMITTED = (
    Scenario(name=f"{name}_after_a_question", answers=([call("permitted", what=what)], "done"), asks=True)
    for name, what in KINDS.items()
)
NAMED: Mapping[str, Scenario] = {**SCENARIOS, **{s.name: s for s in _PERMITTED}}  # and those that only few look for


# --- the client -------------------------------------------------------------------------------------------------


async def send(rt: Runtime, world: World, operation: str, input: str, **options: Any) -> Run:
    """Send the operation; whether it was accepted is in the log."""
    world.note(event="sent", operation=operation)
    run = await rt.start("crashes", input, session=SESSION, operation_id=operation, **options)
    world.note(event="accepted", operation=operation, run=run.id)
    return run


async def outcome(world: World, run: Run) -> str:
    """Wait until it comes to rest, and write down what the client was told."""
    try:
        result = await run.result()
    except (RunEnded, RunWaiting):
        world.note(event="rest", operation=run.operation_id, status=run.status)
        return run.status
    said = {"body": result.body, "session": run.session, "revision": result.revision}
    world.note(event="reply", operation=run.operation_id, **said)
    return "completed"


async def goes_on(rt: Runtime, world: World, scenario: Scenario, run: Run) -> None:
    """What the client does once the tool or the model is in flight, or the run came to rest without."""
    resting, in_tool = asyncio.create_task(outcome(world, run)), asyncio.create_task(world.in_tool.wait())
    await asyncio.wait({resting, in_tool}, return_when=asyncio.FIRST_COMPLETED)
    in_tool.cancel()
    if scenario.cancels:
        await run.cancel(by="kim", reason="enough")
        world.note(event="cancelled", operation=run.operation_id)
    if scenario.meanwhile:
        await send(rt, world, *MEANWHILE, if_busy=scenario.meanwhile)
        world.go_on.set()
    await resting


async def first_life(rt: Runtime, world: World, scenario: Scenario) -> None:
    """What the client does if nothing dies: all of it, or with a restart in between as far as the ask."""
    run = await send(rt, world, *FIRST)
    if scenario.goes_on:
        await goes_on(rt, world, scenario, run)
    if scenario.meanwhile and (await run.refresh()).status != "waiting":  # about what was lost: then it is behind that
        await outcome(world, await rt.find_run(MEANWHILE[0]))
    rests = await outcome(world, run)
    if scenario.again and rests != "waiting":  # about what was lost: then that comes first
        await settled(rt, world, await again(rt, world, scenario, run))
    await everything_is_told(rt, world)


async def everything_is_told(rt: Runtime, world: World) -> None:
    while world.listens and await rt.outbox(state="pending"):
        pass


async def again(rt: Runtime, world: World, scenario: Scenario, run: Run) -> Run:
    """Replay or fork it; whether that was accepted is in the log."""
    world.note(event="sent", operation=AGAIN)
    if scenario.again == "fork":
        anew = await rt.fork(run, at_step=2, operation_id=AGAIN)
    else:
        anew = await rt.replay(run, force=By("lee", "once more"), operation_id=AGAIN)
    world.note(event="accepted", operation=AGAIN, run=anew.id)
    return anew


async def second_life(rt: Runtime, world: World) -> None:
    """After the restart the ask is still there; a person approves."""
    run = await send(rt, world, *FIRST)
    await outcome(world, run)
    for ask in await run.asks():
        await settle(rt, world, ask)
    await outcome(world, run)
    await everything_is_told(rt, world)


async def settle(rt: Runtime, world: World, ask: Ask) -> None:
    """A person answers: yes to an approval and a question, and what the ledger says about what may have happened."""
    if ask.kind == "approval":
        await ask.approve(by="lee")
        world.note(event="approved", ask=ask.id)
        return
    if ask.kind == "compaction":
        await ask.answer("compact", by="lee")
        return
    if ask.kind == "question":
        await ask.answer("kim" if ask.schema == {"type": "string"} else True, by="lee")
        return
    assert ask.kind == "unknown_effect", ask
    assert ask.effect is not None
    effect = await rt.get_effect(ask.effect)
    if world.has_seen(effect.key):
        await ask.happened(f"{effect.tool} done", "it is in the ledger", by="lee")
    else:
        await ask.not_happened("it is not in the ledger", by="lee")


async def settled(rt: Runtime, world: World, run: Run) -> None:
    """Wait until it has ended, and answer all that it asks."""
    while await outcome(world, run) == "waiting":
        for ask in await run.asks():
            await settle(rt, world, ask)
    await run.refresh()
    for ask in await run.asks():  # about what a run that has ended may have done
        await settle(rt, world, ask)


async def take_up(rt: Runtime, world: World, scenario: Scenario) -> Run:
    """After a crash: the same client does the same again, with the same operation id, until all is settled.

    Then it goes on with the next operation in the same session.
    """
    run = await send(rt, world, *FIRST)
    if scenario.goes_on:
        await goes_on(rt, world, scenario, run)
    await settled(rt, world, run)
    same = await send(rt, world, *FIRST)
    assert same.id == run.id
    await outcome(world, same)
    if scenario.meanwhile:
        await outcome(world, await send(rt, world, *MEANWHILE))
    if scenario.again:
        await settled(rt, world, await again(rt, world, scenario, run))
    await settled(rt, world, await send(rt, world, *NEXT))
    await everything_is_told(rt, world)
    return run
