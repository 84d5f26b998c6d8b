"""Family ``misbehaviour``: models and tools that do what they must not.

A wire that hangs, breaks after any byte, names two calls alike, cuts arguments off, or says ten megabytes; a model or a
tool in Python that raises what ends programs, does not let itself be cancelled, stands still in a thread, holds up the
loop, or ends the process. Whatever they do: the run comes to rest and says why, what happened outside is in the
journal, nothing happens twice without a word, and the next turn of the session works.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from crash import invariants
from kit import WatchedClock, passes
from promise.house import House
from providers.loopback import Behaviour, Exchange, LoopbackServer
from providers.wires.anthropic import Anthropic
from providers.wires.google import Google
from providers.wires.openai_chat import OpenAIChat
from providers.wires.openai_responses import OpenAIResponses
from providers.wires.script import Call, Say, Spent, Wire, answers, wants_stream

from ondol import (
    Agent,
    Answer,
    Context,
    Delta,
    Happened,
    ModelError,
    NotHappened,
    Run,
    RunEnded,
    Runtime,
    RunWaiting,
    attempts,
    tool,
)
from ondol.messages import Text
from ondol.model import ModelOutput, ModelRequest
from ondol.testing import EffectLine, Process, ScriptedModel, call
from torture.campaign import Family, Place

T = TypeVar("T")
WIRES: Sequence[Wire] = (OpenAIChat(), OpenAIResponses(), Anthropic(), Google())
MEGABYTE = "0123456789abcdef" * 65_536


@tool(effect="once")
async def letter(ctx: Context[House], to: str) -> str:
    return await ctx.deps.act(ctx, "letter", to=to)


# --- the wire ---------------------------------------------------------------------------------------------------


def _text(wire: Wire, *said: Any, finish: Any) -> str:
    frames = wire.frames(said, finish, Spent())
    return "".join(
        (f"event: {e}\n" if e else "") + f"data: {d if isinstance(d, str) else json.dumps(d)}\n\n" for d, e in frames
    )


def _cut(chosen: random.Random, wire: Wire, *said: Any, how: str) -> Behaviour:
    """An answer of which so many bytes come; then the connection breaks, or ends well, or nothing comes any more."""

    async def behave(exchange: Exchange) -> None:
        if not wants_stream(exchange):
            exchange.drop()
            return
        whole = _text(wire, *said, finish=None)  # with its finish it would be complete, whatever is missing then
        await exchange.open_stream()
        await exchange.send_raw(whole[: chosen.randrange(1, len(whole))])
        if how == "drops":
            exchange.drop()
        elif how == "ends":
            await exchange.end_stream()
        else:
            await exchange.gone.wait()

    return behave


def _raw(text: str) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send_raw(text)
        await exchange.end_stream()

    return behave


LETTER = Call("call_1", "letter", ('{"to":', '"kim"}'))
#: What a provider may do instead of asking for one letter properly, and how many letters may then be written.
ON_THE_WIRE: dict[str, tuple[Callable[[random.Random, Wire], Behaviour], set[int]]] = {
    "drops": (lambda r, w: _cut(r, w, LETTER, how="drops"), {1}),
    "ends early": (lambda r, w: _cut(r, w, LETTER, how="ends"), {1}),
    "hangs": (lambda r, w: _cut(r, w, LETTER, how="hangs"), {0}),
    "is no JSON": (lambda r, w: _raw("data: {no json\n\n"), {0, 1}),
    "is empty": (lambda r, w: answers(w), {1}),
    "says the same id twice": (lambda r, w: answers(w, LETTER, Call("call_1", "letter", ('{"to":"lee"}',))), {2}),
    "has no arguments": (lambda r, w: answers(w, Call("call_1", "letter", ())), {0}),
    "cuts its arguments off": (lambda r, w: answers(w, Call("call_1", "letter", ('{"to": "k',))), {0}),
    "gives arguments that do not fit": (lambda r, w: answers(w, Call("call_1", "letter", ('{"to": 5, "x": 1}',))), {0}),
    "calls what there is not": (lambda r, w: answers(w, Call("call_1", "explode", ("{}",))), {0}),
    "is cut at its length": (lambda r, w: answers(w, Say(("I will",)), LETTER, finish="length"), {0}),
    "is filtered": (lambda r, w: answers(w, Say(("I",)), LETTER, finish="filter"), {0}),
    "says ten megabytes": (lambda r, w: answers(w, Say((MEGABYTE,) * 10)), {0}),
}


async def on_the_wire(seed: int, place: Place) -> None:
    chosen = random.Random(seed)
    wire, what = WIRES[seed % 4], list(ON_THE_WIRE)[seed // 4 % len(ON_THE_WIRE)]
    behaves, letters = ON_THE_WIRE[what]
    house = House(place.db)
    house.clock = clock = WatchedClock()
    async with LoopbackServer().running() as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NO_PROXY", "127.0.0.1")
            patch.setenv(wire.url_variable, wire.url(server.host))
            for variable in wire.key_variables:
                patch.setenv(variable, "key")
            model = wire.make("m", timeout=20.0, stream=True)
            server.will(behaves(chosen, wire))
            if letters & {1}:  # it is asked again, and behaves
                server.will(answers(wire, LETTER))
            server.will(*[answers(wire, Say(("done",)))] * 4)
            agent = Agent("a", model=model, tools=[letter])
            async with house.life(agent) as life:
                run = await life.rt.start(agent, "go", session="s", operation_id="op")
                if what == "hangs":  # until somebody has enough of it
                    hanging = await server.exchange()
                    await hanging.began.wait()
                    await run.cancel(by="kim")
                    await hanging.gone.wait()
                await _rests(clock, run)
                ends = ("cancelled",) if what == "hangs" else ("completed", "failed")
                assert run.status in ends, f"{wire.name} {what}: {run!r}"
                why = (run.error or {}).get("code") if run.status == "failed" else None
                assert why in (None, "model_content_filter", "model_rejected"), f"{wire.name} {what}: {run.error}"
                for effect in await run.effects():
                    assert effect.state in ("succeeded", "failed")
                assert (await life.rt.run(agent, "again", session="s", operation_id="next")).text == "done"
            await model.aclose()
    assert house.count("letter") in letters, f"{wire.name} {what}: {house.ledger}"
    invariants.hold(house.written(), house.ledger)


async def _rests(clock: WatchedClock, run: Run) -> None:
    """The run comes to rest; the time between attempts at the model passes."""
    async for event in run.events():
        if event.type == "step.failed" and event.data.get("retry_at", 0) / 1e6 > clock.now().timestamp() + 1e-3:
            await passes(clock, event)
    await run.refresh()


# --- models in Python -------------------------------------------------------------------------------------------


class Rude:
    """A model that misbehaves when it is asked to go, and otherwise does as it is asked.

    It does so the first time (``once``), each time (``always``), each time behind its answer (``behind``), or as the
    stream of that is closed (``closing``).
    """

    name = "rude"

    def __init__(self, what: str, when: str) -> None:
        self.what, self.when, self.asked = what, when, 0
        self.begun, self.released = asyncio.Event(), asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        self.asked += 1
        goes = _asked(request) == "go"
        if goes and (self.when == "always" or (self.when == "once" and self.asked == 1)):
            self.begun.set()
            async for output in MODELS[self.what](self.released):
                yield output
            return
        script = [[call("letter", to="kim")], "done"] if goes else ["done"]
        try:
            async for output in ScriptedModel(script, name=self.name).stream(request):
                yield output
            if goes and self.when == "behind":
                async for output in MODELS[self.what](self.released):
                    yield output
        finally:
            if goes and self.when == "closing":
                async for _ in MODELS[self.what](self.released):
                    pass


def _asked(request: ModelRequest) -> str:
    return next(m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None)


async def _answers_again(released: asyncio.Event) -> AsyncIterator[ModelOutput]:
    yield Answer(parts=(Text("again"),), stop="stop", input_tokens=1, output_tokens=1, model="rude")


async def _says_nothing(released: asyncio.Event) -> AsyncIterator[ModelOutput]:
    return
    yield


async def _only_begins(released: asyncio.Event) -> AsyncIterator[ModelOutput]:
    for word in ("I ", "will ", "not"):
        yield Delta("text", word)


async def _holds_up_the_loop(released: asyncio.Event) -> AsyncIterator[ModelOutput]:
    time.sleep(0.05)  # noqa: ASYNC251 - that is the fault
    return
    yield


async def _ignores_its_end(released: asyncio.Event) -> AsyncIterator[ModelOutput]:
    yield Delta("text", "no")
    while not released.is_set():
        try:
            await released.wait()
        except asyncio.CancelledError:
            continue


def _raises(error: BaseException) -> Callable[[asyncio.Event], AsyncIterator[ModelOutput]]:
    async def stream(released: asyncio.Event) -> AsyncIterator[ModelOutput]:
        yield Delta("text", "well")
        raise error

    return stream


class Strange(BaseException):
    """What no `except Exception` catches."""


ERRORS: Sequence[BaseException] = (
    SystemExit(3), KeyboardInterrupt(), Strange("odd"), asyncio.CancelledError(), MemoryError(), RecursionError("deep"),
    GeneratorExit(), BaseExceptionGroup("several", [SystemExit(1), ValueError("x")]), StopAsyncIteration(),
)  # fmt: skip
MODELS: dict[str, Callable[[asyncio.Event], AsyncIterator[ModelOutput]]] = {
    "ignores its end": _ignores_its_end,
    "raises ModelError": _raises(ModelError("overloaded", "later", retry_after="3")),  # type: ignore[arg-type]
    **{f"raises {type(e).__name__}": _raises(e) for e in ERRORS},
    "answers again": _answers_again, "only begins": _only_begins, "says nothing": _says_nothing,
    "holds up the loop": _holds_up_the_loop,
}  # fmt: skip
#: What is no fault at that time, or has no end.
NOT_THEN: dict[str, set[str]] = {
    "once": {"answers again"}, "closing": {"says nothing"}, "behind": {"says nothing"},
    "always": {"answers again", "ignores its end"},
}  # fmt: skip
#: Of each time in turn, so that a few of them are about all.
RUDE = [
    (what, when)
    for them in itertools.zip_longest(*[[(w, when) for w in MODELS if w not in no] for when, no in NOT_THEN.items()])
    for what, when in filter(None, them)
]


async def in_the_model(seed: int, place: Place) -> None:
    what, when = RUDE[seed % len(RUDE)]
    said = f"{what}, {when}"
    house, rude = House(place.db), Rude(what, when)
    house.clock = clock = WatchedClock()
    agent = Agent("a", model=rude, tools=[letter])
    loud: list[Any] = []  # what the loop has to say about tasks that nobody looked after
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loud.append(context))
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        is_stopped, letters = (what, when) == ("ignores its end", "once"), 1
        if is_stopped:
            await rude.begun.wait()
            await run.cancel(by="kim")
        elif (what, when) == ("ignores its end", "closing"):  # for each of its two answers
            await clock.asked(2.0)
            clock.advance(2)
        if what == "ignores its end" and when in ("once", "closing"):
            await clock.asked(2.0)  # that an async function gets to end when nobody waits for it any more
            clock.advance(2)
        await _rests(clock, run)
        match when:
            case "once":
                assert (run.status == "cancelled") == is_stopped
                assert run.status in ("completed", "failed", "cancelled"), f"{said}: {run!r}"
                letters = 1 if run.status == "completed" else 0
            case "always":
                assert run.status == "failed", f"{said}: {run!r}"
                assert rude.asked in (1, 4), f"{said}: it was asked {rude.asked} times"
                letters = 0
            case _:
                assert (run.status, rude.asked) == ("completed", 2), f"{said}: {run!r}, asked {rude.asked} times"
                assert (await run.result()).text == "done", said
        assert (await life.rt.run(agent, "again", session="s", operation_id="next")).text == "done"
        rude.released.set()
    gc.collect()
    assert not loud, f"{said}: {loud}"
    assert house.count("letter") == letters, f"{said}: {house.ledger}"
    invariants.hold(house.written(), house.ledger)


# --- tools in Python --------------------------------------------------------------------------------------------


class Unruly:
    """A tool that misbehaves in its first attempt, before or after it did what it is for, and then behaves."""

    def __init__(self, house: House, what: str, after: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.house, self.what, self.after, self._loop = house, what, after, loop
        self.times = 0
        self.begun, self.released, self.thread = asyncio.Event(), asyncio.Event(), threading.Event()

    def _does(self, ctx: Context[House], to: str) -> None:
        self.house.happened(ctx.idempotency_key, "work", to=to)

    async def in_the_loop(self, ctx: Context[House], to: str) -> Any:
        self.times += 1
        first, given = self.times == 1, "done"
        if not first or self.after:
            self._does(ctx, to)
        if first:
            self.begun.set()
            given = await self._misbehaves()
            if not self.after:
                self._does(ctx, to)
        return given

    def in_a_thread(self, ctx: Context[House], to: str) -> Any:
        self.times += 1
        if self.times > 1 or self.after:
            self._does(ctx, to)
        if self.times == 1:
            self._loop.call_soon_threadsafe(self.begun.set)
            if (error := RAISED.get(self.what)) is not None:
                raise error
            self.thread.wait()
        return "done"

    async def _misbehaves(self) -> Any:
        if (error := RAISED.get(self.what)) is not None:
            raise error
        if self.what in GIVEN:
            return GIVEN[self.what]()
        match self.what:
            case "hangs":
                await self.released.wait()
            case "ignores its end":
                while not self.released.is_set():
                    try:
                        await self.released.wait()
                    except asyncio.CancelledError:
                        continue
            case "holds up the loop":
                time.sleep(0.05)  # noqa: ASYNC251 - that is the fault
        return "done"


def _cyclic() -> Any:
    mine: dict[str, Any] = {}
    mine["me"] = mine
    return mine


RAISED = {f"raises {type(e).__name__}": e for e in ERRORS}
GIVEN: dict[str, Callable[[], Any]] = {
    "gives ten megabytes": lambda: MEGABYTE * 10,
    "gives an object": object,
    "gives a generator": lambda: (n for n in "abc"),
    "gives itself": _cyclic,
    "gives half a character": lambda: "\ud800",
    "gives NaN": lambda: float("nan"),
}
TOOLS = (*RAISED, *GIVEN, "hangs", "ignores its end", "holds up the loop")
CLASSES = ("read", "idempotent", "once", "once with a check")


def tool_of(unruly: Unruly, kind: str, thread: bool) -> Any:
    async def looks(ctx: Context[House]) -> Happened | NotHappened:
        return Happened("found") if ctx.idempotency_key in unruly.house.keys("work") else NotHappened()

    declared: dict[str, Any] = {"effect": kind.split()[0], "name": "work"}
    if kind == "once with a check":
        declared["check"] = looks
    if kind == "idempotent":
        declared["key_ttl"] = timedelta(hours=24)
    body: Any = unruly.in_a_thread if thread else unruly.in_the_loop

    if thread:

        def work(ctx: Context[House], to: str) -> Any:
            return body(ctx, to)
    else:

        async def work(ctx: Context[House], to: str) -> Any:  # type: ignore[misc]
            return await body(ctx, to)

    return tool(**declared)(work)


async def in_a_tool(seed: int, place: Place) -> None:
    chosen = random.Random(seed)
    what, kind = TOOLS[seed % len(TOOLS)], CLASSES[seed // len(TOOLS) % len(CLASSES)]
    after, cancels = chosen.random() < 0.5, what in ("hangs", "ignores its end") and chosen.random() < 0.3
    thread = (what in RAISED or what == "hangs") and chosen.random() < 0.5
    goes_on = what == "ignores its end" or (what == "hangs" and thread)  # so a check that says no is not enough
    house = House(place.db)
    house.clock = clock = WatchedClock()
    unruly = Unruly(house, what, after, asyncio.get_running_loop())
    agent = house.agent([call("work", to="kim")], "done", tools=[tool_of(unruly, kind, thread)])
    said = f"{what}, {kind}, {'after' if after else 'before'}, {'thread' if thread else 'loop'}, cancelled: {cancels}"
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await unruly.begun.wait()
        if cancels:
            await run.cancel(by="kim")
        await _time_is_over(clock, what, thread, cancels)
        for _ in range(3):
            await _comes_to_rest(run)
            if run.status != "waiting":
                break
            (ask,) = await run.asks()
            assert kind == "once" or (kind == "once with a check" and goes_on), said
            await (ask.happened(by="lee") if house.ledger else ask.not_happened(by="lee"))
        assert run.status == ("cancelled" if cancels else "completed"), f"{said}: {run!r}"
        if kind != "read" and house.ledger:
            assert {e.state for e in await run.effects()} <= {"succeeded", "unknown"}, f"{said}: it did happen"
        unruly.released.set()
        unruly.thread.set()
        assert (await life.rt.run(agent, "hello", session="s", operation_id="next")).text == "hello to you"
    if kind.startswith("once") and not (what == "ignores its end" and not after):
        assert len(house.ledger) <= 1, f"{said}: {house.ledger}"
    assert len({line.key for line in house.ledger}) <= 1, said
    invariants.hold(house.written(), house.ledger, checks=("work",))


async def _time_is_over(clock: WatchedClock, what: str, thread: bool, cancels: bool) -> None:
    """What a call gets when nobody waits for it any more has passed."""
    if what not in ("hangs", "ignores its end"):
        return
    if cancels:
        if thread or what == "ignores its end":
            await clock.asked(10.0)
            clock.advance(10)
        return
    clock.advance(60)
    if what == "ignores its end":
        await clock.asked(2.0)
        clock.advance(2)


async def _comes_to_rest(run: Run) -> None:
    with contextlib.suppress(RunEnded, RunWaiting):
        await run.result()
    await run.refresh()


# --- processes --------------------------------------------------------------------------------------------------

EXITS: dict[str, Callable[[], object]] = {
    "exits": lambda: os._exit(3), "aborts": os.abort, "is killed": lambda: os.kill(os.getpid(), 9),
    "is ended": lambda: os.kill(os.getpid(), 15),
}  # fmt: skip


def exiting(ledger: Path, how: str, after: bool) -> Agent:
    """An agent whose tool ends the process, before or after its line is in the ledger."""

    def does(ctx: Context[Any]) -> None:
        with ledger.open("a") as file:
            file.write(ctx.idempotency_key + "\n")

    @tool(effect="once")
    async def work(ctx: Context[Any], to: str) -> str:
        if not how or after:
            does(ctx)
        if how:
            EXITS[how]()
            await asyncio.get_running_loop().create_future()
        return "done"

    def script(request: ModelRequest) -> Any:
        return [call("work", to="kim")] if request.step == 0 and _asked(request) == "go" else "done"

    return Agent("a", model=ScriptedModel(script), tools=[work])


async def in_another_process(seed: int, place: Place) -> None:
    how, after = list(EXITS)[seed % len(EXITS)], seed // len(EXITS) % 2 == 1
    ledger, url = place.folder / "ledger", f"sqlite:///{place.folder / 'ondol.db'}"
    given = [str(Path(__file__)), url, str(ledger), how, "after" if after else ""]
    async with Process(
        given, env={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    ) as dying:
        assert await dying.wait() != 0, dying.errors
    happened = ledger.read_text().split() if ledger.exists() else []
    agent = exiting(ledger, "", False)
    clock = WatchedClock(datetime.now(UTC) + timedelta(hours=1))
    async with Runtime(url, agents=[agent], clock=clock) as rt:
        run = await rt.find_run("op")
        await _comes_to_rest(run)
        assert run.status == "waiting", f"{how}: {run!r}"
        (ask,) = await run.asks()
        await (ask.happened(by="lee") if happened else ask.not_happened(by="lee"))
        await _comes_to_rest(run)
        assert run.status == "completed", f"{how}: {run!r}"
        assert (await rt.run(agent, "hello", session="s", operation_id="next")).text == "done"
    (key,) = ledger.read_text().split()
    line = EffectLine(id=1, key=key, tool="work", arguments={"to": "kim"}, at=clock.now())
    invariants.hold(invariants.written(place.db), [line])


async def _lives_and_dies(url: str, ledger: Path, how: str, after: bool) -> None:
    agent = exiting(ledger, how, after)
    async with Runtime(url, agents=[agent]) as rt:
        await rt.run(agent, "go", session="s", operation_id="op")


# --- the family -------------------------------------------------------------------------------------------------

#: Of twenty seeds so many are about each.
KINDS = ((9, on_the_wire), (3, in_the_model), (7, in_a_tool), (1, in_another_process))


async def case(seed: int, place: Place) -> None:
    n = seed % 20
    for share, kind in KINDS:
        if n < share:
            return await kind(seed // 20 * share + n, place)
        n -= share
    return None


async def control(seed: int, place: Place) -> None:
    """A tool that was told to end, and did not say how, is taken for one that did nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "_raised", lambda tool, error: attempts.Raised(repr(error), not_done=True))
        await in_a_tool(seed + 2 * len(TOOLS), place)


FAMILY = Family(case=case, control=control, cases=500, sample=60)


@FAMILY.sampled
async def test_whatever_models_and_tools_do_the_run_comes_to_rest_and_says_why(seed: int, place: Place) -> None:
    await case(seed, place)


async def test_a_failure_that_is_taken_for_nothing_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)


if __name__ == "__main__":
    asyncio.run(_lives_and_dies(sys.argv[1], Path(sys.argv[2]), sys.argv[3], bool(sys.argv[4])))
