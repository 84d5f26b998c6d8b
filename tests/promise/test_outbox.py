"""What is told when a run waits or ends: written with it, told at least once, and never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import behind
import pytest
from crash.lives import Life
from kit import Mute, cancels_itself, waits
from rememberer import rememberer

from ondol import (
    Agent,
    ContextPolicy,
    InvalidInput,
    Memory,
    Message,
    ModelRequest,
    NotFound,
    OutboxMessage,
    Run,
    RunFailed,
    Runtime,
    deliveries,
    tool,
    transactions,
)
from ondol.clock import micros
from ondol.stores import open_store
from ondol.testing import FaultPlan, FaultyStore, ManualClock, ScriptedModel, afault_point, call

KIM = {"agent": "friend", "user": "kim"}


class MuteExit(SystemExit):
    __str__ = Mute.__str__


class Listener:
    """Hears messages, and fails as often as it is told to."""

    def __init__(self, fails: int = 0) -> None:
        self.heard: list[OutboxMessage] = []
        self.fails = fails
        self._more = asyncio.Event()

    async def __call__(self, message: OutboxMessage) -> None:
        self.heard.append(message)
        self._more.set()
        if self.fails > 0:
            self.fails -= 1
            raise ConnectionError("nobody is there")

    async def hears(self, n: int) -> list[str]:
        """The kinds of the first n messages, once they came."""
        while len(self.heard) < n:
            self._more.clear()
            await self._more.wait()
        return [m.kind for m in self.heard[:n]]


@asynccontextmanager
async def runtime(db: str, *agents: Agent, **more: Any) -> AsyncIterator[Runtime]:
    async with Runtime(db, agents=agents, **more) as rt:
        yield rt


async def settled(rt: Runtime, state: str, n: int = 1, *, left: int = 0) -> list[OutboxMessage]:
    """The messages in this state, once no more than ``left`` wait to be told. There are just so many of them."""
    while len(await rt.outbox(state="pending")) > left:
        pass
    found = await rt.outbox(state=state)  # type: ignore[arg-type]
    assert len(found) == n
    return found


@pytest.mark.both_stores
async def test_a_run_that_waits_and_each_end_of_one_is_told_with_the_id_of_its_event(db: str) -> None:
    @tool(approve=True)
    async def sign(what: str) -> str:
        return what

    signer = Agent("signer", model=ScriptedModel([[call("sign", what="x")], ["signed"]]), tools=[sign])
    broken = Agent("broken", model=ScriptedModel([]))
    listener = Listener()
    async with runtime(db, signer, broken, deliver=listener) as rt:
        run = await rt.start(signer, "go", user="kim")
        (ask,) = await waits(run)
        assert await listener.hears(1) == ["run.waiting"]
        await ask.approve(by="lee")
        await run.result()
        other = await rt.start(signer, "go", user="kim")
        await waits(other)
        await other.cancel(by="kim")
        with pytest.raises(RunFailed):
            await rt.run(broken, "go", user="kim")
        kinds = await listener.hears(5)
        assert sorted(kinds) == ["run.cancelled", "run.completed", "run.failed", "run.waiting", "run.waiting"]
        for message in listener.heard:
            events = {e.id: e.type async for e in (await rt.get_run(message.run)).events()}
            assert events[message.id] == message.kind
        assert len(await settled(rt, "delivered", 5)) == 5


async def test_a_plain_function_that_was_told_is_not_told_again(db: str) -> None:
    friend, heard = rememberer(), list[OutboxMessage]()
    async with runtime(db, friend, deliver=heard.append) as rt:
        await rt.run(friend, "hello", user="kim")
        await settled(rt, "delivered")
    assert [m.kind for m in heard] == ["run.completed"]


async def test_what_was_not_told_before_a_crash_is_told_after_it_and_nobody_waits_for_it(db: str) -> None:
    listener = Listener()
    friend = rememberer()

    async def never(message: OutboxMessage) -> None:
        await asyncio.Event().wait()

    async with runtime(db, friend, deliver=never) as rt:
        run = await rt.start(friend, "hello", user="kim")
        assert (await run.result()).text == "ok"
        (message,) = await rt.outbox()
        assert message.state == "pending"
    async with runtime(db, friend, deliver=listener):
        assert await listener.hears(1) == ["run.completed"]
        assert listener.heard[0].id == message.id


async def test_a_message_that_cannot_be_told_is_tried_again_and_is_dead_at_last(db: str) -> None:
    clock, listener, friend = ManualClock("2026-01-01T00:00:00Z"), Listener(fails=8), rememberer()
    async with runtime(db, friend, deliver=listener, clock=clock) as rt:
        run = await rt.start(friend, "hello", user="kim")
        assert (await run.result()).text == "ok"
        for attempt in range(1, 8):
            await listener.hears(attempt)
            while (await rt.outbox())[0].attempts < attempt:
                pass
            (message,) = await rt.outbox()
            assert (message.state, message.error) == ("pending", "ConnectionError: nobody is there")
            await clock.wait_for_timers()  # nobody else looks for what is due by then
            assert len(listener.heard) == attempt
            clock.advance(message.due - clock.now())
        (dead,) = await settled(rt, "dead")
        assert dead.attempts == 8
        await rt.deliver_again(dead.id, by="lee")
        assert [(a.act, a.by, a.subject) for a in await rt.audit()] == [("outbox.retry", "lee", dead.id)]
        assert (await settled(rt, "delivered"))[0].id == dead.id
        assert {m.id for m in listener.heard} == {dead.id}
        with pytest.raises(NotFound):
            await rt.deliver_again("r_1/9")
        assert (await run.refresh()).status == "completed"


@pytest.mark.both_stores
async def test_a_message_that_processes_die_of_is_told_later_and_later_and_is_dead_at_last(db: str) -> None:
    clock, friend = ManualClock("2026-01-01T00:00:00Z"), rememberer()

    async def dies() -> float:
        """A process that dies as it tells what is due. Returns the seconds for which the next ones do not tell it."""

        async def deliver(message: OutboxMessage) -> None:
            await afault_point(life.plan, "deliver.before")

        async with (life := Life(db, friend, dies_at="deliver.before", clock=clock, deliver=deliver)):
            await life.rt.start(friend, "hello", user="kim", operation_id="op")
            await life.ends()
        async with runtime(db, friend, clock=clock) as rt:
            (message,) = await rt.outbox()
        pause = message.due - clock.now()
        clock.advance(max(pause, timedelta(seconds=1)))
        return pause.total_seconds()

    pauses = [await dies() for _ in range(9)]
    listener, other = Listener(), rememberer()
    async with runtime(db, other, clock=clock, deliver=listener) as rt:
        assert (await rt.run(other, "hello", user="kim", session="other")).text == "ok"  # nobody dies of it any more
        assert await listener.hears(1) == ["run.completed"]
        (dead,) = await settled(rt, "dead")
        assert (dead.attempts, dead.error) == (8, "its process ended while it was told")
        assert dead.id not in {m.id for m in listener.heard}
    # Nobody knew that the first one would die of it.
    assert all(pause >= least for pause, least in zip(pauses[1:], (2, 8, 32, 128, 512, 2048, 3600, 3600), strict=True))


class Doors:
    """Hears messages; each is heard to its end once its door is open."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.doors: dict[str, asyncio.Event] = {}
        self._more = asyncio.Event()

    async def __call__(self, message: OutboxMessage) -> None:
        self.began.append(message.run)
        self._more.set()
        await self.doors.setdefault(message.run, asyncio.Event()).wait()
        self.ended.append(message.run)

    async def begins(self, n: int) -> list[str]:
        while len(self.began) < n:
            self._more.clear()
            await self._more.wait()
        return self.began

    def open(self, run: str) -> None:
        self.doors.setdefault(run, asyncio.Event()).set()


@pytest.mark.both_stores
async def test_who_does_not_answer_to_one_session_holds_up_only_what_comes_after_it_in_that_session(db: str) -> None:
    doors, friend = Doors(), rememberer()
    async with runtime(db, friend, deliver=doors) as rt:
        slow, behind_it = [(await rt.run(friend, "hello", user="kim", session="slow")).run_id for _ in range(2)]
        others = [(await rt.run(friend, "hello", user="kim", session=f"s{n}")).run_id for n in range(10)]
        for run in others:
            doors.open(run)
        assert set(await doors.begins(11)) == {slow, *others}
        await settled(rt, "delivered", 10, left=2)
        assert doors.began.count(behind_it) == 0
        doors.open(behind_it)
        doors.open(slow)
        await settled(rt, "delivered", 12)
        assert sorted(doors.ended[-2:], key=[slow, behind_it].index) == doors.ended[-2:] == [slow, behind_it]
        assert len(doors.began) == 12  # each once


async def test_so_many_sessions_are_told_of_at_once_and_no_more(db: str) -> None:
    doors, friend = Doors(), rememberer()
    async with runtime(db, friend, deliver=doors) as rt:
        at_once = deliveries._AT_ONCE
        names = [f"s{n}" for n in range(at_once + 2)]
        runs = [(await rt.run(friend, "hello", user="kim", session=name)).run_id for name in names]
        await doors.begins(at_once)
        for n, run in enumerate(runs):
            assert len(doors.began) == min(at_once + n, len(runs))
            doors.open(run)
            await doors.begins(min(at_once + n + 1, len(runs)))
        await settled(rt, "delivered", len(runs))
        # each once; what belongs to several sessions is in no order
        assert sorted(doors.began) == sorted(doors.ended) == sorted(runs)


async def test_more_than_one_session_is_given_at_once_is_told_in_its_order(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "_LANE", 2)
    doors, friend = Doors(), rememberer()
    async with runtime(db, friend, deliver=doors) as rt:
        runs = [(await rt.run(friend, "hello", user="kim", session="one")).run_id for _ in range(7)]
        for run in runs[::-1]:
            doors.open(run)
        await settled(rt, "delivered", len(runs))
        assert doors.ended == runs


async def test_what_was_told_while_it_waited_for_the_one_before_is_not_told_again(db: str) -> None:
    doors, friend = Doors(), rememberer()
    async with runtime(db, friend, deliver=doors) as rt:
        first, second, third = [(await rt.run(friend, "hello", user="kim", session="one")).run_id for _ in range(3)]
        await doors.begins(1)
        while len(rt._deliveries._telling) < 3:
            await rt.outbox()
        waiting = await rt._store.read(transactions.due_messages, "default", 10)
        (of_second,) = [row for row in waiting if row.run == second]
        await rt._store.write(transactions.delivered, "default", of_second, of_second.due)
        for run in (first, second, third):
            doors.open(run)
        await settled(rt, "delivered", 3)
        assert doors.ended == [first, third]


@pytest.mark.both_stores
@pytest.mark.parametrize("deliver", [True, False], ids=["deliver", "extract"])
async def test_a_message_that_names_a_run_that_is_not_there_stands_in_nobodys_way(db: str, deliver: bool) -> None:
    learned: list[str] = []

    async def extract(said: Sequence[Message]) -> list[str]:
        learned.append(said[0].text)
        return []

    async def never(message: OutboxMessage) -> None:
        await asyncio.Event().wait()

    friend, listener = rememberer(), Listener()
    async with runtime(db, friend, deliver=never) as rt:
        await rt.run(friend, "hello", user="kim")
    behind.execute(db, "UPDATE outbox SET run = 'r_gone'")
    learns = rememberer(memory=Memory(extract=extract))
    async with runtime(db, friend if deliver else learns, deliver=listener if deliver else None) as rt:
        run = await rt.start("friend", "and now?", user="kim")
        await run.result()
        (message,) = await settled(rt, "delivered", left=1)
        assert (message.kind, message.run) == ("run.completed", run.id)
        assert [m.run for m in listener.heard] == ([run.id] if deliver else [])
        assert learned == ([] if deliver else ["and now?"])
        assert [m.run for m in await rt.outbox(state="pending")] == ["r_gone"]


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (SystemExit(3), "RuntimeError: it raised SystemExit: 3"),
        (asyncio.CancelledError("of its own"), "RuntimeError: it was cancelled by something of its own"),
        (None, "RuntimeError: it was cancelled by something of its own"),
        (Mute(), "Mute, whose text raised RuntimeError"),
        (MuteExit(), "RuntimeError: it raised MuteExit, whose text raised RuntimeError"),
    ],
    ids=["exits", "cancels", "cancels-its-task", "mute", "mute-exit"],
)
@pytest.mark.parametrize("where", ["deliver", "extract"])
async def test_a_listener_that_exits_or_cancels_itself_ends_nothing_but_its_own_attempt(
    db: str, where: str, raised: BaseException | None, told: str
) -> None:
    async def fails_once(given: Any) -> list[str]:
        calls.append(given)
        if len(calls) == 1:
            if raised is not None:
                raise raised
            cancels_itself()
            await asyncio.sleep(0)
        return []

    calls: list[Any] = []
    clock = ManualClock("2026-01-01T00:00:00Z")
    friend = rememberer(memory=Memory(extract=fails_once) if where == "extract" else None)
    deliver = fails_once if where == "deliver" else None
    async with runtime(db, friend, clock=clock, deliver=deliver) as rt:
        await rt.run(friend, "hello", user="kim")
        while not (message := (await rt.outbox())[0]).attempts:
            pass
        assert message.error == told
        clock.advance(message.due - clock.now())
        rt._deliveries.look()
        await settled(rt, "delivered")
        assert (await rt.run(friend, "and now?", user="kim")).text == "ok"
        await settled(rt, "delivered", 2)
    assert len(calls) == 3


@pytest.mark.parametrize("given", ["김은차를좋아함", None, {"fact": "tea"}])
async def test_what_is_no_list_of_facts_is_said_so_and_no_letter_is_kept_as_one(db: str, given: Any) -> None:
    async def extract(said: Sequence[Message]) -> Any:
        return given

    friend = rememberer(memory=Memory(extract=extract))
    async with runtime(db, friend) as rt:
        assert (await rt.run(friend, "hello", user="kim")).text == "ok"
        while not (message := (await rt.outbox())[0]).attempts:
            pass
        assert message.error == (f"InvalidInput: extract gives a list of facts, and this was {type(given).__name__}")
        assert await rt.memory.ls(**KIM) == []


async def test_facts_are_learned_after_the_turn_once_and_marked(db: str) -> None:
    calls, fails = 0, 1

    async def extract(said: Sequence[Message]) -> list[str]:
        nonlocal calls, fails
        calls += 1
        if fails:
            fails -= 1
            raise TimeoutError("later")
        return [m.text for m in said if m.role == "user"]

    clock = ManualClock("2026-01-01T00:00:00Z")
    friend = rememberer(memory=Memory(extract=extract, keep=timedelta(days=9)))
    async with runtime(db, friend, clock=clock) as rt:
        await rt.run(friend, "I live in Seoul", user="kim")
        while not (found := await rt.outbox()) or not found[0].attempts:
            pass
        clock.advance(timedelta(seconds=10))
        rt._deliveries.look()
        await settled(rt, "delivered")
        (fact,) = await rt.memory.ls(**KIM)
        assert (fact.text, fact.untrusted, fact.run is not None) == ("I live in Seoul", True, True)
        assert fact.expires_at is not None
        (message,) = await rt.outbox()
        await rt.deliver_again(message.id)
        await settled(rt, "delivered")
        assert len(await rt.memory.ls(**KIM)) == 1
        assert calls == 3


async def test_a_turn_that_is_not_completed_teaches_nothing(db: str) -> None:
    async def extract(said: Sequence[Message]) -> list[str]:
        return ["learned"]

    broken = Agent("friend", model=ScriptedModel([]), memory=Memory(extract=extract))
    async with runtime(db, broken) as rt:
        with pytest.raises(RunFailed):
            await rt.run(broken, "go", user="kim")
        await settled(rt, "delivered")
        assert await rt.memory.ls(**KIM) == []


async def test_nothing_is_written_where_nobody_listens(db: str) -> None:
    friend = rememberer()
    async with runtime(db, friend) as rt:
        await rt.run(friend, "hello", user="kim")
        assert await rt.outbox() == []
    with pytest.raises(InvalidInput, match="extract"):
        Memory(extract=len)  # type: ignore[arg-type]


async def test_messages_that_another_process_has_to_tell_stand_in_nobodys_way(db: str) -> None:
    """More of them than are read at once, of an agent that is not here; and one of an agent that is."""
    other, friend, listener = rememberer("other"), rememberer(), Listener(fails=1_000)
    async with runtime(db, other, friend, deliver=listener) as rt:
        for n in range(5):
            await rt.run(other, "hello", user="kim", operation_id=f"{n}")
        await rt.run(friend, "hello", user="kim")
        await listener.hears(6)
    heard = Listener()
    deliveries._PAGE, usual = 2, deliveries._PAGE
    try:
        clock = ManualClock(datetime.now(UTC) + timedelta(days=1))
        async with runtime(db, friend, deliver=heard, clock=clock) as rt:
            assert await heard.hears(1) == ["run.completed"]
            assert (await rt.get_run(heard.heard[0].run)).agent == "friend"
            await settled(rt, "delivered", left=5)
            assert len(await rt.outbox(state="pending")) == 5
    finally:
        deliveries._PAGE = usual


async def test_messages_that_others_have_to_tell_are_not_read_again_for_each_turn_and_forgotten_once_told(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "_PAGE", 2)
    here, there = (Agent(name, model=ScriptedModel(["hi"])) for name in ("here", "there"))
    clock, plan, heard = ManualClock(datetime(2026, 1, 1, tzinfo=UTC), "UTC"), FaultPlan(), Listener()
    async with runtime(db, there, clock=clock, deliver=Listener(fails=1_000)) as rt:
        runs = [await rt.start(there, "go", session=f"s{n}") for n in range(40)]
        for run in runs:
            await run.result()
        await settled(rt, "pending", 40, left=40)
    clock.advance(minutes=2)
    async with Runtime(FaultyStore(open_store(db), plan), agents=[here], clock=clock, deliver=heard) as rt:
        for n in range(1, 5):
            before = plan.calls.count("due_messages")
            await rt.run(here, "go")
            await heard.hears(n)
            await settled(rt, "delivered", n, left=40)
        assert plan.calls.count("due_messages") - before < 15
        assert len(rt._deliveries._others) == 40
        for row in await rt._store.read(transactions.due_messages, "default", 100):
            scope = transactions.Scope("default", "there", "")
            telling = {"taught": False, "scope": scope, "facts": [], "expires_at": None}
            await rt._store.write(transactions.delivered, "default", row, micros(clock), **telling)
        clock.advance(minutes=2)
        await rt.run(here, "go")
        await heard.hears(5)
        assert not rt._deliveries._others


async def test_who_has_nobody_to_tell_says_so_and_leaves_the_messages(
    db: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With another agent that learns, too: what it takes is its own."""
    friend, listener = rememberer(), Listener(fails=1_000)
    async with runtime(db, friend, deliver=listener) as rt:
        await rt.run(friend, "hello", user="kim")
        await listener.hears(1)
    learner = rememberer("learner", memory=Memory(extract=requests_learned))
    clock = ManualClock(datetime.now(UTC) + timedelta(days=1))
    async with runtime(db, friend, learner, clock=clock) as rt:
        await rt.run(learner, "I like tea.", user="kim")
        (told,) = await settled(rt, "delivered", left=1)
        assert (await rt.get_run(told.run)).agent == "learner"
        (left,) = await rt.outbox(state="pending")
        assert (await rt.get_run(left.run)).agent == "friend"
    assert "this process has nobody to tell: 'ondol outbox' lists them" in caplog.text


# --- what a compaction drops ------------------------------------------------------------------------------------


def wordy(request: ModelRequest) -> str:
    return "ok, " + "as was to be expected " * 12


async def requests_learned(said: Sequence[Message]) -> list[str]:
    return [m.text.split(".")[0] for m in said if m.role == "user" and m.origin is None]


def forgetful(extract: Any = None, budget: int = 800) -> Agent:
    """Its requests have room for about two of its turns."""
    policy = ContextPolicy(budget=budget, keep=1, summary="excerpt")
    return Agent("friend", model=ScriptedModel(wordy), memory=Memory(recall=0, extract=extract), context=policy)


async def talk(rt: Runtime, turns: Sequence[int], users: Sequence[str] = ("kim",)) -> Run:
    for n in turns:
        words = f"turn {n}. " + "and some words more " * 10
        run = await rt.start("friend", words, user=users[n % len(users)], session="s", operation_id=str(n))
        await run.result()
    return run


async def compactions(rt: Runtime, run: Run) -> list[dict[str, Any]]:
    return [e.data for r in await rt.runs(session="s") async for e in r.events() if e.type == "context.compacted"]


@pytest.mark.both_stores
async def test_what_a_compaction_drops_is_offered_to_memory_and_the_record_says_so(db: str) -> None:
    """The first turns are from a time when the agent did not learn yet."""
    async with runtime(db, forgetful()) as rt:
        await talk(rt, range(2))
        assert await rt.outbox() == []
    agent = forgetful(requests_learned)
    async with runtime(db, agent) as rt:
        run = await talk(rt, range(2, 6))
        assert [c["offered"] for c in await compactions(rt, run)][-1] is True
        told = await settled(rt, "delivered", 6)
        assert sorted(m.kind for m in told) == ["run.completed"] * 4 + ["turn.dropped"] * 2
        facts = await rt.memory.ls(**KIM)
        assert sorted(f.text for f in facts) == [f"turn {n}" for n in range(6)]
        assert all(f.untrusted for f in facts)
        assert (await rt.context(run.id)).matches


async def test_a_turn_is_offered_to_memory_once_so_what_a_person_erased_does_not_come_back(db: str) -> None:
    calls: list[str] = []

    async def extract(said: Sequence[Message]) -> list[str]:
        found = await requests_learned(said)
        calls.extend(found)
        return found

    agent = forgetful(extract)
    async with runtime(db, agent) as rt:
        await talk(rt, range(2))
        await settled(rt, "delivered", 2)
        await rt.memory.erase(**KIM)
        run = await talk(rt, range(2, 6))
        assert any(c["offered"] for c in await compactions(rt, run))
        await settled(rt, "delivered", 6)
        assert sorted(f.text for f in await rt.memory.ls(**KIM)) == [f"turn {n}" for n in range(2, 6)]
    assert sorted(calls) == [f"turn {n}" for n in range(6)]


@pytest.mark.both_stores
async def test_a_turn_that_only_a_listener_was_told_of_or_that_was_given_up_is_offered_when_it_is_dropped(
    db: str,
) -> None:
    """Memory has not heard of either: the first is from before it learned, of the other it could not be told."""
    listener = Listener()
    async with runtime(db, forgetful(), deliver=listener) as rt:
        await talk(rt, range(1))
        await settled(rt, "delivered")
    fails = True

    async def extract(said: Sequence[Message]) -> list[str]:
        if fails:
            raise TimeoutError("later")
        return await requests_learned(said)

    clock = ManualClock(datetime.now(UTC))
    agent = forgetful(extract)
    async with runtime(db, agent, deliver=listener, clock=clock) as rt:
        await talk(rt, range(1, 2))
        while not await rt.outbox(state="dead"):
            clock.advance(hours=2)
            rt._deliveries.look()
            await asyncio.sleep(0)
        fails = False
        run = await talk(rt, range(2, 6))
        assert any(c["offered"] for c in await compactions(rt, run))
        await settled(rt, "delivered", 7)
        assert sorted(m.kind for m in await rt.outbox()) == ["run.completed"] * 6 + ["turn.dropped"] * 2
        assert sorted(f.text for f in await rt.memory.ls(**KIM)) == [f"turn {n}" for n in range(6)]


@pytest.mark.both_stores
async def test_a_turn_that_is_still_shown_is_offered_when_it_goes_and_not_before(db: str) -> None:
    async with runtime(db, forgetful()) as rt:
        await talk(rt, range(4))
    async with runtime(db, forgetful(requests_learned)) as rt:
        run = await talk(rt, [4])
        (compacted,), session = await compactions(rt, run), await rt.get_session("s")
        shown = {m.run for m in await session.messages() if m.seq >= compacted["view"]["since"]}
        earlier = {r.id for r in await rt.runs(session="s")} - shown
        assert {m.run for m in await rt.outbox() if m.kind == "turn.dropped"} == earlier
        assert len(earlier) == 3
        await talk(rt, range(5, 8))
        await settled(rt, "delivered", 8)
        assert sorted(f.text for f in await rt.memory.ls(**KIM)) == [f"turn {n}" for n in range(8)]


@pytest.mark.both_stores
async def test_what_is_dropped_of_a_session_of_two_goes_to_the_memory_of_who_said_it(db: str) -> None:
    async with runtime(db, forgetful()) as rt:
        await talk(rt, range(3), users=("kim", "lee"))
    agent = forgetful(requests_learned)
    async with runtime(db, agent) as rt:
        await talk(rt, range(4, 8), users=("kim", "kim"))
        await settled(rt, "delivered", 7)
        kims, lees = await rt.memory.ls(**KIM), await rt.memory.ls(agent="friend", user="lee")
        assert sorted(f.text for f in kims) == [f"turn {n}" for n in (0, 2, 4, 5, 6, 7)]
        assert [f.text for f in lees] == ["turn 1"]


async def test_a_turn_does_not_wait_for_memory_to_take_what_it_drops(db: str) -> None:
    async with runtime(db, forgetful()) as rt:
        await talk(rt, range(2))

    async def never(said: Sequence[Message]) -> list[str]:
        await asyncio.Event().wait()
        return []

    agent = forgetful(never)
    async with runtime(db, agent) as rt:
        run = await talk(rt, range(2, 6))
        assert any(c["offered"] for c in await compactions(rt, run))
        assert {m.state for m in await rt.outbox()} == {"pending"}


async def test_what_a_fork_drops_of_the_session_that_it_goes_on_from_is_offered_too(db: str) -> None:
    async with runtime(db, forgetful(budget=5_000)) as rt:
        run = await talk(rt, range(3))
        fork = await rt.fork(run, at_step=1)
        await fork.result()
        session = fork.session
        await rt.run("friend", "and then?", user="kim", session=session)
    agent = forgetful(requests_learned, budget=5_000)
    async with runtime(db, agent) as rt:
        done = await rt.compact_session(session, keep=1, by="lee")
        assert done.offered == ("friend",)
        await settled(rt, "delivered", 3)
        assert sorted(f.text for f in await rt.memory.ls(**KIM)) == ["turn 0", "turn 1", "turn 2"]


async def test_what_somebody_compacts_by_hand_is_offered_and_not_told_to_anybody_else(db: str) -> None:
    listener = Listener()
    async with runtime(db, forgetful(budget=5_000)) as rt:
        await talk(rt, range(2))
    agent = forgetful(requests_learned, budget=5_000)
    async with runtime(db, agent, deliver=listener) as rt:
        seen = await rt.compact_session("s", keep=1, preview=True)
        assert seen.offered == ("friend",)
        assert await rt.outbox() == []
        await rt.compact_session("s", keep=1, by="lee")
        (message,) = await rt.outbox()
        assert message.kind == "turn.dropped"
        await settled(rt, "delivered")
        assert [f.text for f in await rt.memory.ls(**KIM)] == ["turn 0"]
    assert listener.heard == []
