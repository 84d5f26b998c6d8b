"""Family ``machine``: anything may be asked of it, in any order, and the process may die between any two transactions.

One ``World`` has a store, the processes that open it one after the other, a client who remembers what it was told, and
a ledger of what tools really did. Its methods are the things that may happen; a seed (or Hypothesis, which then finds
the shortest way to a failure) chooses among them, and among all that happens at once inside. The pure ``model`` watches
each transaction, and after each step everything is looked at that holds whatever happened (N1 to N15).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Protocol, TypeVar
from unittest.mock import patch

import behind
import pytest
from crash import invariants
from hypothesis import HealthCheck, settings
from hypothesis import seed as choosing_by
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from in_memory import FOLDER
from promise.house import letter, look, mail, refund, wire

from ondol import Agent, Context, NotDone, ids, tool
from ondol import errors as refusals
from ondol.model import ModelRequest
from ondol.providers.script import Reply
from ondol.replay import By
from ondol.testing import EffectLine, FaultPlan, ManualClock, ScriptedModel, call, error
from ondol.transactions import driving
from torture import model
from torture.campaign import Family, Place, on_stores
from torture.turns import Gate, Gates, Process

T = TypeVar("T")

SESSIONS = ("s1", "s2")
STEPS = (
    ["look"], ["letter"], ["refund"], ["mail"], ["wire"], ["pay"], ["trip"], ["look", "letter"], ["mail", "letter"],
    ["letter", "wire", "refund"], ["trip", "letter"], [],
)  # fmt: skip
ANSWERS = ("answers", "answers", "answers", "overloaded", "connection", "auth", "rejected")
ENDS = ("does", "does", "does", "refuses", "raises", "does and raises", "does and hangs")
EXAMPLES = 100  # of 50 steps, twice; some 15 s of a processor each time
PASSES = tuple(timedelta(seconds=n) for n in (2, 61, 2 * 3600, 2 * 86_400, 31 * 86_400))
JUMPS = tuple(timedelta(hours=n) for n in (1, 24, 87_600, -1, -24))
DECISIONS = {
    "approval": (("approve", {}), ("approve", {}), ("deny", {})),
    "question": (("answer", {"value": "blue"}),),
    "unknown_effect": (("happened", {}), ("not_happened", {}), ("give_up", {})),
    "parked": (("answer", {"value": "resume"}), ("answer", {"value": "fail"})),
    "definition_changed": (("answer", {"value": "resume"}), ("answer", {"value": "fail"})),
}


class Draw(Protocol):
    """Who chooses."""

    def __call__(self, options: Sequence[T]) -> T: ...


# --- tools ------------------------------------------------------------------------------------------------------


@tool(effect="once", approve=True, approve_expires=timedelta(hours=1))
async def pay(ctx: Context[Any], to: str) -> str:
    return await ctx.deps.act(ctx, "pay", to=to)


@tool(effect="steps")
async def trip(ctx: Context[Any], to: str) -> str:
    first = await ctx.call(refund, order=to)
    colour = await ctx.ask(f"Which colour for {to}?", expires=timedelta(hours=1))
    return f"{first}, {await ctx.call(letter, to=colour)}"


TOOLS = (look, refund, letter, mail, wire, pay, trip)


# --- the world --------------------------------------------------------------------------------------------------


@dataclass
class Sent:
    """An operation as its client knows it."""

    id: str
    said: str
    options: Mapping[str, Any]
    contested: bool = False  # another request came under its id, and may have been the first


class World:
    """``url`` names a store that does not exist yet."""

    def __init__(self, url: str, chosen: random.Random) -> None:
        self.url, self.chosen = url, chosen
        self._ids = patch.object(ids.secrets, "randbits", random.Random(chosen.random()).getrandbits)
        self._ids.start()  # how long a run waits before it asks again follows from its id
        self.clock = ManualClock("2026-01-01T00:00:00Z")
        self.gates = Gates()
        self.plan = FaultPlan()  # for the tools of the promises, which pass its points
        self.ledger: list[EffectLine] = []
        self.reached: set[tuple[str, int]] = set()  # attempts that came to their tool
        self.asked: list[ModelRequest] = []
        self.noted: list[dict[str, Any]] = []  # the client's log
        self.sent: dict[str, Sent] = {}
        self.plans: dict[str, Sequence[Sequence[str]]] = {}  # of operations: the calls of each step
        self.explicit: Counter[str] = Counter()
        self.clients: dict[asyncio.Task[None], None] = {}  # in the order in which they came
        self.numbers = itertools.count(1)
        self.now = model.Seen()
        self.process: Process | None = None
        self.transactions: Counter[str] = Counter()
        self.broken: AssertionError | None = None
        self.well = True
        self._looking: behind.Look | None = None
        self._looked_at: tuple[Any, ...] = ()
        self._written: invariants.Written | None = None

    # --- processes ----------------------------------------------------------------------------------------------

    @property
    def life(self) -> Process:
        assert self.process is not None
        return self.process

    def agent(self) -> Agent:
        return Agent("a", model=_Counted(self), tools=TOOLS)

    async def opens(self) -> None:
        """The next process. It may die as it opens."""
        self.process = Process(self.url, self.agent(), chosen=self.chosen, saw=self.saw, clock=self.clock, deps=self)
        await self.life.does(self.life.rt.open())
        if self._looking is None:
            self._looking = behind.Look(self.url)
        self.now = model.seen(self._looking.rows)

    async def closes(self) -> None:
        for client in self.clients:
            client.cancel()
        await self.life.turns.settle()
        await self.life.does(self.life.rt.close(drain=0))
        await self._gone()

    async def dies(self) -> None:
        self.life.die()
        await self._gone()

    async def ends(self, draw: Draw) -> None:
        """The process ends, and the next one opens the store."""
        how = draw(("dies", "dies with the next write", "closes"))
        if how == "closes":
            await self.closes()
        else:
            if how == "dies with the next write":
                self.life.turns.dies = self.life.die
                await self.life.turns.settle()
            await self.dies()
        await self.opens()
        await self.goes_on(None)

    async def _gone(self) -> None:
        self.clients.clear()  # they were part of the process
        await self.life.cleared_away()
        self.process = None
        assert not self.gates.open, self.gates.open
        self.look()

    async def is_over(self) -> None:
        """Nothing stays open, however it ended."""
        self._ids.stop()
        if self.process is not None:
            self.life.die()
            await self.life.cleared_away()
            self.process = None
        if self._looking is not None:
            self._looking.close()
            self._looking = None

    # --- what everybody sees ------------------------------------------------------------------------------------

    def saw(self, name: str, args: dict[str, Any], refused: BaseException | None) -> None:
        """A transaction is over: the model says whether it may have done what it did."""
        self.transactions[name] += 1
        if self._looking is None:
            return
        before, self.now = self.now, model.seen(self._looking.rows)
        if session := _written_by_hand(name, args, before):
            self.explicit[session] += self.now.revision(session) - before.revision(session)
        try:
            model.permits(name, args, before, self.now, refused)
            if name == "started" and refused is None:
                self._starts_again(before.effects[args["claim"].run, args["call"]])
        except AssertionError as broken:
            self.broken = self.broken or broken

    def _starts_again(self, effect: model.EffectSeen) -> None:
        """P4: what nobody can look up and no key protects is not sent again, unless somebody said so."""
        key = ids.idempotency_key(ids.DEFAULT_TENANT, effect.run, effect.ordinal, effect.tool)
        if (effect.effect, effect.state) == ("once", "started") and effect.tool != "mail":
            assert (key, effect.attempt) not in self.reached, f"attempt {effect.attempt} of {effect} was made"

    def look(self) -> None:
        """After each step: all that holds between any two transactions, from every log there is."""
        well, self.well = self.well, False
        if self.broken is not None:
            raise self.broken
        if (self.now, len(self.ledger)) != self._looked_at and self._looking is not None:
            written = invariants.written(self._looking, sound=False)
            if self._written is not None:
                written.knows(self._written)
            self._written = written
            invariants.hold_at_any_time(written, self.ledger, self.noted, checks=("mail",), explicit=self.explicit)
        self._looked_at = (self.now, len(self.ledger))
        self.well = well

    # --- outside ------------------------------------------------------------------------------------------------

    async def answer(self, request: ModelRequest) -> Reply:
        steps = self.plans[self.now.runs[request.run].operation]
        self.asked.append(request)
        said = await self.gates.wait("model", request.run)
        if said != "answers":
            return error(said)  # type: ignore[arg-type]
        if request.step >= len(steps) or not steps[request.step]:
            return f"done at step {request.step}"
        return [_called(name, f"{request.step}.{n}") for n, name in enumerate(steps[request.step])]

    async def act(self, ctx: Context[Any], name: str, **arguments: Any) -> str:
        self.reached.add((ctx.idempotency_key, ctx.attempt))
        how = await self.gates.wait("tool", ctx.run_id)
        if how == "refuses":
            raise NotDone("not today")
        if how == "raises":
            raise RuntimeError("it broke before")
        now = self.clock.now()
        line = EffectLine(id=len(self.ledger) + 1, key=ctx.idempotency_key, tool=name, arguments=arguments, at=now)
        self.ledger.append(line)
        if how == "does and raises":
            raise RuntimeError("it broke after")
        if how == "does and hangs":
            await self.gates.wait("hangs", ctx.run_id)
        return f"{name} done"

    def written(self) -> invariants.Written:
        assert self._looking is not None
        return invariants.written(self._looking)

    def accepted_at(self, run: str) -> list[int]:
        """When it was accepted, and each instant at which it went on, in microseconds."""
        batches = self.written().batches[run]
        starts = ("run.accepted", "run.started", "run.resumed")
        return [b.at for b in batches if any(e.kind in starts for e in b.entries)]

    def keys(self, name: str) -> set[str | None]:
        return {line.key for line in self.ledger if line.tool == name}

    # --- what a client does -------------------------------------------------------------------------------------

    def asks_for(self, work: Coroutine[Any, Any, None]) -> None:
        self.clients[asyncio.get_running_loop().create_task(work)] = None

    async def goes_on(self, turns: int | None) -> None:
        await self.life.turns.settle(turns)
        for client in [c for c in self.clients if c.done()]:
            del self.clients[client]
            client.result()
        self.look()

    def sends(self, draw: Draw) -> None:
        """A new operation."""
        steps = [draw(STEPS) for _ in range(draw((0, 1, 1, 2)))]
        if_busy = draw(("queue", "queue", "reject", "interrupt", "steer"))
        self.operation(steps, session=draw(SESSIONS), if_busy=if_busy)

    def operation(self, steps: Sequence[Sequence[str]], **options: Any) -> Sent:
        """Somebody sends one whose model makes these calls, step by step."""
        number = next(self.numbers)
        sent = Sent(f"op{number}", f"say {number}", options)
        self.sent[sent.id], self.plans[sent.id] = sent, steps
        self.asks_for(self._send(sent))
        return sent

    async def _send(self, sent: Sent) -> None:
        self.noted.append({"event": "sent", "operation": sent.id})
        rt = self.life.rt
        try:
            run = await rt.start("a", sent.said, operation_id=sent.id, **sent.options)
        except (refusals.SessionBusy, refusals.OperationExpired):
            return
        except refusals.OperationMismatch:
            assert sent.contested
            return
        await self._told(sent, run)

    async def _told(self, sent: Sent, run: Any) -> None:
        self.noted.append({"event": "accepted", "operation": sent.id, "run": run.id})
        if run.replayed:
            result = await run.result()
            reply = {"event": "reply", "operation": sent.id, "body": result.body}
            self.noted.append(reply | {"session": result.session, "revision": result.revision})

    def sends_again(self, draw: Draw) -> None:
        """A known id, with the same request or with another one."""
        sent = draw(list(self.sent.values()))
        if draw((True, True, False)) or "session" not in sent.options:
            self.asks_for(self.again(sent))
        else:
            self.asks_for(self._with_another_payload(sent))

    async def again(self, sent: Sent) -> None:
        if "session" in sent.options:
            await self._send(sent)
        else:
            await self._copy(sent)

    async def _with_another_payload(self, sent: Sent) -> None:
        sent.contested = True
        try:
            await self.life.rt.start("a", "something else", operation_id=sent.id, **sent.options)
        except (refusals.OperationMismatch, refusals.OperationExpired, refusals.SessionBusy):
            return

    def cancels(self, draw: Draw) -> None:
        self.asks_for(self._cancel(draw(list(self.now.runs))))

    async def _cancel(self, run: str) -> None:
        settled = (*model.ENDED, "joined")
        done = await self.life.rt.cancel(run, by="kim")
        if done.status not in settled or done.status == "cancelled":
            self.noted.append({"event": "cancelled", "operation": done.operation_id})

    def decides(self, draw: Draw) -> None:
        ask = draw(list(self.now.asks.values()))
        how, given = draw(DECISIONS[ask.kind])
        self.asks_for(self.decision(ask.id, how, given))

    async def decision(self, ask: str, how: str, given: Mapping[str, Any]) -> None:
        try:
            await getattr(await self.life.rt.get_ask(ask), how)(by="lee", **given)
        except (refusals.AlreadyDecided, refusals.AskClosed):
            return

    def resumes(self, draw: Draw) -> None:
        self.asks_for(self._resume(draw(list(self.now.runs))))

    async def _resume(self, run: str) -> None:
        await self.life.rt.resume(run)

    def copies(self, draw: Draw) -> None:
        """A replay or a fork."""
        of = draw([r for r in self.now.runs.values() if r.state in model.ENDED])
        number = next(self.numbers)
        how: dict[str, Any] = (
            {"of": of.id, "force": draw((None, By("kim", "because")))} if draw((True, False))
            else {"of": of.id, "at_step": draw((1, 2)), "effects": draw(("reuse", "stub", "run"))}
        )  # fmt: skip
        sent = Sent(f"copy{number}", "", how)
        self.sent[sent.id], self.plans[sent.id] = sent, self.plans[of.operation]
        self.asks_for(self._copy(sent))

    async def _copy(self, sent: Sent) -> None:
        self.noted.append({"event": "sent", "operation": sent.id})
        how = dict(sent.options)
        of, rt = how.pop("of"), self.life.rt
        try:
            copying: Any = rt.fork if "at_step" in how else rt.replay
            run = await copying(of, operation_id=sent.id, **how)
        except (refusals.ReplayUnsafe, refusals.InvalidInput, refusals.OperationExpired, refusals.NotFound):
            return
        await self._told(sent, run)

    def writes(self, draw: Draw) -> None:
        self.asks_for(self._write(draw(SESSIONS), f"title {next(self.numbers)}"))

    async def _write(self, session: str, title: str) -> None:
        try:
            await self.life.rt.write_session(session, title=title)
        except refusals.SessionBusy:
            return

    def deletes(self, draw: Draw) -> None:
        self.asks_for(self._delete(draw(SESSIONS), draw((False, True))))

    async def _delete(self, session: str, cancel: bool) -> None:
        try:
            await self.life.rt.delete_session(session, cancel=cancel, by="kim")
        except (refusals.SessionBusy, refusals.NotFound):
            return

    # --- what happens by itself ---------------------------------------------------------------------------------

    def opens_a_gate(self, draw: Draw) -> None:
        gate: Gate = draw(self.gates.open)
        if not gate.told.done():
            gate.told.set_result(draw(ANSWERS if gate.kind == "model" else ENDS))

    def opens_all_gates(self) -> None:
        """All models and tools do as they should, but for those that hang."""
        for gate in self.gates.open:
            if not gate.told.done() and gate.kind != "hangs":
                gate.told.set_result("answers" if gate.kind == "model" else "does")

    def time_passes(self, draw: Draw) -> None:
        if draw((True, True, False)):
            self.clock.advance(draw(PASSES))
        else:
            self.clock.jump(draw(JUMPS))

    # --- the end ------------------------------------------------------------------------------------------------

    async def comes_to_rest(self) -> None:
        """Everybody outside does what is asked of them, time passes, and then nothing may be left undone (N1, N14)."""
        for _ in range(60):
            await self.goes_on(None)
            self.opens_all_gates()
            await self.goes_on(None)
            if not self.gates.open and not self._moving():
                break
            self.clock.advance(minutes=10)
        await self.goes_on(None)
        assert not self.clients, "a client is still waiting"
        assert not self._moving(), f"{self._moving()} do not come to rest"
        await self.closes()
        calls = Counter(request.run for request in self.asked)
        written = self.written()
        invariants.hold(written, self.ledger, self.noted, calls, checks=("mail",), explicit=self.explicit)

    def _moving(self) -> list[model.RunSeen]:
        moving = [r for r in self.now.runs.values() if r.state == "running"]
        for run in self.now.runs.values():
            first = self.now.first(run.session)
            if run.state == "queued" and first is not None and first.id == run.id:
                moving.append(run)
        return moving


def _written_by_hand(name: str, args: Mapping[str, Any], before: model.Seen) -> str | None:
    """The session whose revision no entry of a run tells of. (A session that was deleted begins anew one higher.)"""
    if name in ("write_session", "delete_session"):
        return str(args["session"])
    known = before.sessions.get(args["new"].session) if name == "accept" else None
    return known.id if known is not None and known.deleted_at is not None else None


class _Counted:
    """The world's model."""

    name = "script"

    def __init__(self, world: World) -> None:
        self._model = ScriptedModel(world.answer)
        self.stream = self._model.stream


def _called(name: str, to: str) -> Any:
    return call(name, **{"order" if name in ("look", "refund") else "to": to})


# --- who chooses ------------------------------------------------------------------------------------------------

#: What may happen, how often compared with the rest, and when it can.
RULES: Mapping[str, tuple[int, Callable[[World], Any]]] = {
    "sends": (8, lambda w: True),
    "sends_again": (3, lambda w: w.sent),
    "opens_a_gate": (24, lambda w: w.gates.open),
    "cancels": (2, lambda w: w.now.runs),
    "decides": (8, lambda w: w.now.asks),
    "resumes": (1, lambda w: w.now.runs),
    "copies": (2, lambda w: any(r.state in model.ENDED for r in w.now.runs.values())),
    "writes": (1, lambda w: True),
    "deletes": (1, lambda w: w.now.runs),
    "time_passes": (3, lambda w: True),
    "ends": (3, lambda w: True),
}
TURNS = (None, None, None, 0, 1, 2, 3, 5)  # of the store, before the next thing happens; None: all that come


async def happens(world: World, what: str, draw: Draw) -> None:
    """One thing, with as many turns of the store after it as are drawn."""
    if what == "ends":
        await world.ends(draw)
    else:
        getattr(world, what)(draw)
        await world.goes_on(draw(TURNS))


async def lives(seed: int, url: str, steps: int) -> World:
    """So many things happen, as the seed says, and then everything comes to rest."""
    chosen = random.Random(seed)
    world = World(url, chosen)

    def draw(options: Sequence[T]) -> T:
        return options[chosen.randrange(len(options))]

    try:
        await world.opens()
        for _ in range(steps):
            able = {name: weight for name, (weight, can) in RULES.items() if can(world)}
            await happens(world, chosen.choices(list(able), list(able.values()))[0], draw)
        await world.comes_to_rest()
    finally:
        await world.is_over()
    return world


# --- the family -------------------------------------------------------------------------------------------------


async def case(seed: int, place: Place) -> None:
    await lives(seed, place.db, 80)


async def control(seed: int, place: Place) -> None:
    """The holder of a run does not look whether somebody has said something."""
    looks = driving.held_seq
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driving, "held_seq", lambda rows, claim, **_: looks(rows, claim))
        await case(seed, place)


FAMILY = Family(case=case, control=control, cases=5_000, sample=4, sample_postgres=2, stores=("sqlite", "postgresql"))


@FAMILY.sampled
async def test_whatever_is_asked_in_whatever_order_every_promise_holds(seed: int, place: Place) -> None:
    await case(seed, place)


@on_stores("seed", [23], [23, 26])  # in which several runs wait for the same instant, and are taken up together
async def test_a_seed_decides_all_that_happens(seed: int, place: Place) -> None:
    stories = []
    for db in (place.db, place.within("again").db):
        world = await lives(seed, db, 80)
        written = invariants.written(db)
        stories.append((written.batches, written.messages, [(line.key, line.tool) for line in world.ledger]))
    assert stories[0] == stories[1]


async def test_a_holder_that_does_not_listen_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)


class Machine(RuleBasedStateMachine):
    """The same world, where Hypothesis chooses: it finds the shortest way to a failure."""

    reached: ClassVar[Counter[str]] = Counter()  # transactions, and states in which effects and runs ended up

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(prefix="torture-", dir=FOLDER)
        self.runner = asyncio.Runner()
        self.world: World | None = None

    @initialize(seed=st.integers(0, 2**32))
    def opens(self, seed: int) -> None:
        self.world = World(f"sqlite:///{self.folder.name}/ondol.db", random.Random(seed))
        self.runner.run(self.world.opens())

    def may(self, name: str) -> bool:
        return self.world is not None and bool(RULES[name][1](self.world))

    def teardown(self) -> None:
        try:
            if self.world is not None:
                self.runner.run(self._ends(self.world))
        finally:
            self.runner.close()
            self.folder.cleanup()

    async def _ends(self, world: World) -> None:
        try:
            if world.well:
                await world.comes_to_rest()
        finally:
            await world.is_over()
        self.reached.update(world.transactions)
        self.reached.update(e.state for e in world.now.effects.values())
        self.reached.update(r.state for r in world.now.runs.values())


def _rule(name: str) -> Any:
    @precondition(lambda machine: machine.may(name))
    @rule(data=st.data())
    def happening(machine: Machine, data: st.DataObject) -> None:
        def draw(options: Sequence[T]) -> T:
            return data.draw(st.sampled_from(options))

        assert machine.world is not None
        machine.runner.run(happens(machine.world, name, draw))

    happening.__name__ = name
    return happening


for name, (weight, _) in RULES.items():
    for again in range(max(1, weight // 4)):  # Hypothesis takes each rule as often as any other
        setattr(Machine, f"{name}_{again}", _rule(name))


@pytest.mark.long
@pytest.mark.parametrize("half", [3, 4])  # these come to all that is asked for at the end
def test_hypothesis_finds_no_way_to_break_a_promise(half: int) -> None:
    class Half(Machine):
        reached: ClassVar[Counter[str]] = Counter()

    run_state_machine_as_test(choosing_by(half)(Half), settings=settings(
        max_examples=EXAMPLES, stateful_step_count=50, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    ))  # fmt: skip
    states = {"completed", "failed", "cancelled", "joined", "waiting", "succeeded", "denied", "abandoned", "unknown"}
    never = {"ask_again", "park_changed"}  # the code of the tools does not change here
    assert Half.reached.keys() >= states | (model.RULES.keys() - never)
