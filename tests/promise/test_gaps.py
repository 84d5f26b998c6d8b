"""What no other test of the contract shows: writes after the commit, what is left behind, secrets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest
from crash import invariants
from crash.lives import Life
from kit import WatchedClock, cancels_itself, rests
from providers.loopback import LoopbackServer
from providers.openai_server import fails, says

from ondol import (
    Agent,
    Context,
    ModelRequest,
    NotHappened,
    Run,
    RunFailed,
    Runtime,
    Text,
    events,
    outputs,
    tool,
    toolset,
    transactions,
)
from ondol.cancellation import from_outside, unwound
from ondol.clock import to_micros
from ondol.errors import ClaimLost, ModelError, NotOpen, OndolError, StoreError
from ondol.model import Answer, ModelOutput
from ondol.providers.openai import openai_chat
from ondol.records import SessionRow
from ondol.stores import sqlite_admin
from ondol.testing import FaultPlan, ScriptedModel, barrier, call, error, raise_
from ondol.transactions import Claim, Tx
from promise.house import HELLO, HELLO_BACK, SOON, House, letter, look, refund, rest, states, the_ask

LETTER, REFUND, MAIL = call("letter", to="kim"), call("refund", order="1"), call("mail", to="kim")
WIRE, LOOK = call("wire", to="kim"), call("look", order="1")


# --- P4 ---------------------------------------------------------------------------------------------------------


async def test_p4_when_the_key_is_too_old_a_person_may_still_have_it_repeated_with_that_key(house: House) -> None:
    agent = house.agent([REFUND], "done")
    run_id = await house.dies(agent, at="started.after")
    house.clock.advance(hours=24)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        assert house.count() == 0
        (lost,) = await run.effects()
        await (await the_ask(run, "unknown_effect")).not_happened("not in the books", by="lee")
        assert await rest(run) == "completed"
        assert await states(run) == [("refund", "succeeded", 2)]
    assert house.keys("refund") == {lost.key}
    assert house.count("refund") == 1


# --- boundaries -------------------------------------------------------------------------------------------------


async def test_b04_pieces_of_an_answer_that_broke_are_taken_back_by_its_failure_and_not_kept(house: House) -> None:
    """A piece is for who watches while the answer is written, so the test holds up what is recorded after it."""
    agent = house.agent("one two three")
    plan, asking, failing, answering = FaultPlan(), barrier(), barrier(), barrier()
    plan.at("model.before", fault=asking).at("model.delta", nth=2, fault=raise_(ModelError("connection", "cut")))
    plan.at("note_down.before", nth=2, fault=failing).at("answer.before", fault=answering)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await asking.reached.wait()
        seen: list[tuple[str, Any]] = []
        watching = asyncio.create_task(_watch(run, seen))

        async def until(enough: Callable[[], bool]) -> None:
            while not enough():
                await run.refresh()

        def shown() -> str:
            """By the attempt under way."""
            broke = max((n for n, (kind, _) in enumerate(seen) if kind == "step.failed"), default=0)
            return "".join(text for kind, text in seen[broke:] if kind == "model.delta")

        await until(lambda: "model.started" in [kind for kind, _ in seen])  # before there is anything to see
        asking.go_on.set()
        await failing.reached.wait()
        await until(lambda: shown() != "")
        failing.go_on.set()
        await house.clock.wait_for_timers()  # it waits to ask again
        house.clock.advance(minutes=1)
        await answering.reached.wait()
        await until(lambda: shown() == "one two three")
        answering.go_on.set()
        await watching
        told = [kind for kind, _ in seen if kind in ("model.delta", "step.failed", "model.completed")]
        assert told[-1] == "model.completed"
        assert told.count("step.failed") == 1
        assert (await run.result()).text == shown() == "one two three"
        assert [m.message.text for m in await (await life.rt.get_session("s")).messages()] == ["go", "one two three"]
        assert "model.delta" not in [event.type async for event in run.events()]


async def test_b04_pieces_that_a_dead_process_showed_are_taken_back_by_what_the_next_one_writes_first(
    house: House,
) -> None:
    agent = house.agent("one two three")
    run_id = await house.dies(agent, at="answer.before")
    answering = barrier()
    async with house.life(agent, plan=FaultPlan().at("answer.before", fault=answering)) as life:
        run = await life.rt.get_run(run_id)
        await answering.reached.wait()
        told = []
        async for event in run.events():
            told.append(event)
            if event.type == "message.snapshot":  # what the attempt under way has said
                break
        answering.go_on.set()
        assert (await run.result()).text == "one two three"
    kinds = [event.type for event in told]
    asked = next(event.id for event in told if event.type == "model.started")  # the last that the dead one told
    behind = kinds[[event.id for event in told].index(asked) + 1 :]
    assert behind == ["run.queued", "run.resumed", "message.snapshot"]
    assert told[-1].data["text"] == "one two three"


async def _watch(run: Run, seen: list[tuple[str, Any]]) -> None:
    async for event in run.events():
        seen.append((event.type, event.data.get("text")))


def _writes_of_a_holder(claim: Claim, session: SessionRow, now: int) -> dict[str, Callable[[], Tx[Any]]]:
    """Every transaction that only the holder of a claim makes."""
    succeeded = transactions.Outcome(entry=events.EffectSucceeded(call=0), attempt=1, reply=9, body="{}")
    completed = events.ModelCompleted(step=3, message=9)
    failed = events.RunFailed(code="too_late", message="too late")
    planned = transactions.PlannedCall(
        events.EffectPlanned(call=9, tool="letter", effect="once"), -20, "call_9", "{}", decision=None
    )
    again = transactions.AskedAgain(
        events.AskOpened(ask="a_9", ask_kind="approval", call=0), "letter", "{}", "", "ask", "Again?", None
    )
    return {
        "note_down": lambda: transactions.note_down(claim, now, [events.StepStarted(step=3)]),
        "note_down_used": lambda: transactions.note_down(claim, now, [events.StepStarted(step=3)], used={}),
        "answer": lambda: transactions.answer(claim, "", now, completed, "{}", (), {}),
        "plan_step": lambda: transactions.plan_step(claim, "", now, (-19, "{}"), planned),
        "ask_again": lambda: transactions.ask_again(claim, "", now, again),
        "park_changed": lambda: transactions.park_changed(claim, now, "the code changed"),
        "started": lambda: transactions.started(claim, now, 0, 2, now),
        "outcome": lambda: transactions.outcome(claim, "", now, succeeded),
        "suspend": lambda: transactions.suspend(claim, now, [], 1),
        "commit": lambda: transactions.commit(claim, session, now, {"text": "other"}, 1, None, (), 3, True),
        "end": lambda: transactions.end(claim, now, failed),
    }


async def test_b13_z_after_t8_nothing_that_its_holder_still_wants_to_write_is_taken(house: House) -> None:
    agent = house.agent([LETTER], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        body = (await run.result()).body
        before = house.written()
        row = before.runs[run.id]
        claim, now = Claim("default", run.id, "s", row.fence, row.head or 0), to_micros(house.clock.now())
        for name, write in _writes_of_a_holder(claim, before.sessions["default", "s"], now).items():
            with pytest.raises(OndolError) as refused:
                await life.store.write(write)
            assert isinstance(refused.value, ClaimLost), f"{name}: {refused.value!r}"
        assert house.written() == before
        assert (await (await life.rt.start(agent, "go", session="s", operation_id="op")).result()).body == body


@pytest.mark.file
async def test_b18_after_a_restore_a_check_answers_and_nobody_else_is_asked_what_happened(house: House) -> None:
    agent, sent = house.agent([MAIL], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("mail.after", fault=sent)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await sent.reached.wait()
        life.die()
    saved = sqlite_admin.backup(house.file, house.file.parent / "saved")
    for path in house.file.parent.glob(f"{house.file.name}*"):
        path.unlink()
    sqlite_admin.restore(saved, house.file)
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "parked"
        assert "check.before" not in life.plan.passed, "nothing goes on by itself"
        await (await the_ask(run, "parked")).answer("resume", by="lee")
        assert await rest(run) == "completed"
        assert await states(run) == [("mail", "succeeded", 1)]
        assert [a.kind for a in await run.asks(state=None)] == ["parked"]
    assert house.count("mail") == 1


# --- asks -------------------------------------------------------------------------------------------------------


async def test_the_ask_of_a_parked_run_never_expires(house: House) -> None:
    agent = house.agent("done")
    for _ in range(3):
        async with house.life(agent, dies_at="model.before") as life:
            await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    async with house.life(agent) as life:
        assert await rest(await life.rt.find_run("op")) == "parked"
    house.clock.advance(days=3650)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert run.status == "parked"
        await (await the_ask(run, "parked")).answer("resume", by="lee")
        assert await rest(run) == "completed"


# --- N14, N15: what is left -------------------------------------------------------------------------------------


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def open_files() -> list[str]:
    """What this process holds open, but for the pipes of the event loop itself."""
    found = []
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/dev/fd/{name}"))
    return sorted(path for path in found if path.startswith("/") and not path.startswith(("/dev/", "/proc/")))


async def no_more_tasks_than(n: int) -> None:
    """What is ending may still wait for a thread of the store: it gets as many turns of the loop as that takes."""
    with contextlib.suppress(TimeoutError):  # the test says which tasks are left
        async with asyncio.timeout(SOON):
            while len(asyncio.all_tasks()) > n:  # noqa: ASYNC110 - tasks tell nobody but who made them
                await asyncio.sleep(0)


async def all_connections_are_open(life: Life, file: Path) -> None:
    """A reader opens its connection with the first thing that it reads, and which of them reads is chance."""
    while sum(leads_to(connection, file) for connection in apsw.connections()) < 3:  # a writer and two readers
        await asyncio.gather(*(life.rt.runs() for _ in range(4)))


def leads_to(connection: apsw.Connection, file: Path) -> bool:
    with contextlib.suppress(apsw.ThreadingViolationError, apsw.ConnectionClosedError):  # at work, or just ended
        return connection.filename == str(file)
    return False


async def a_day(house: House, life: Life, agent: Agent, day: int) -> None:
    """Runs that complete, fail, wait, are cancelled in flight, and that somebody stopped watching."""
    session = f"day-{day}"
    assert (await life.rt.run(agent, "work", session=session, operation_id=f"work-{day}", attachments=[b"a"])).text
    assert await rest(await life.rt.start(agent, "fail", session=session, operation_id=f"fail-{day}")) == "failed"
    waiting = await life.rt.start(agent, "money", session=session, operation_id=f"money-{day}")
    assert await rest(waiting) == "waiting"
    await waiting.cancel(by="kim")
    house.in_tool.clear()
    cancelled = await life.rt.start(agent, "hang", session=session, operation_id=f"hang-{day}")
    watching = asyncio.create_task(_watch(cancelled, []))
    await house.in_tool.wait()
    watching.cancel()
    await asyncio.wait([watching])
    await cancelled.cancel(by="kim")
    assert await rest(cancelled) == "cancelled"


@tool(effect="read")
async def hang(ctx: Context[House]) -> str:
    ctx.deps.in_tool.set()
    await asyncio.get_running_loop().create_future()
    return "never"


@pytest.mark.file
async def test_n14_at_rest_there_are_no_more_tasks_files_or_connections_than_before(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    house.answers("work", [LOOK, REFUND, LETTER, MAIL], "worked")
    house.answers("fail", error("rejected"))
    house.answers("money", [WIRE], "paid")
    house.answers("hang", [call("hang")], "never")
    agent = house.agent("done", tools=[*house.agent().tools, hang])
    before = len(asyncio.all_tasks()), open_files()
    async with house.life(agent) as life:
        await all_connections_are_open(life, house.file)
        at_rest = len(asyncio.all_tasks())
        await a_day(house, life, agent, 1)
        await no_more_tasks_than(at_rest)
        baseline = len(asyncio.all_tasks()), open_files()
        for day in range(2, 6):
            await a_day(house, life, agent, day)
        await no_more_tasks_than(baseline[0])
        assert (len(asyncio.all_tasks()), open_files()) == baseline
        invariants.nothing_runs(house.written())
    await no_more_tasks_than(before[0])
    assert (len(asyncio.all_tasks()), open_files()) == before
    assert files(elsewhere) == {}
    left = files(tmp_path)
    assert {"ondol.db"} <= (names := {p.name for p in left if p.parent == tmp_path}) <= {"ondol.db", "ondol.db.lock"}, (
        names
    )
    assert [data for path, data in left.items() if path.parent != tmp_path] == [b"a"]  # the attachment


def threads() -> list[str]:
    """Those of stores that are open."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ondol")]


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 10])
async def test_n14_a_close_that_is_cancelled_half_way_leaves_nothing_behind(house: House, turns: int) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    before = len(asyncio.all_tasks())
    async with house.life(agent, plan=FaultPlan().at("letter.after", fault=in_letter)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_letter.reached.wait()
        assert threads()
        closing = asyncio.create_task(life.rt.close(drain=3600))
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not closing.done()  # it waits for the letter
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await no_more_tasks_than(before)
        assert (len(asyncio.all_tasks()), threads()) == (before, [])
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        assert life.rt.drives
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("letter") == 1


async def test_n14_a_tool_in_a_thread_that_outlives_its_runtime_ends_quietly_and_is_unknown(house: House) -> None:
    loop, go_on, ended = asyncio.get_running_loop(), threading.Event(), threading.Event()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    @tool(effect="once")
    def act(ctx: Context[House]) -> str:
        loop.call_soon_threadsafe(house.in_tool.set)
        go_on.wait(30)
        ctx.deps.happened(ctx.idempotency_key, "act")
        ended.set()
        return "done at last"

    agent = house.agent([call("act")], "done", tools=[act])
    before = len(asyncio.all_tasks())
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.in_tool.wait()
        await life.rt.close(drain=0)
    go_on.set()
    await asyncio.to_thread(ended.wait)
    await no_more_tasks_than(before)
    gc.collect()
    await asyncio.sleep(0)
    assert (len(asyncio.all_tasks()), complaints) == (before, [])
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        assert await states(run) == [("act", "unknown", 1)]
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("act") == 1


CANARY = "sk-canary-4711"


async def test_n15_the_key_of_a_model_is_in_no_file_event_error_or_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    async with LoopbackServer().running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://{server.host}/v1")
        server.will(
            says("good morning"), fails(401, f"Incorrect API key {CANARY}, or {CANARY[:11]}***", code="invalid_api_key")
        )
        async with contextlib.aclosing(openai_chat("gpt-5.2")) as model:
            agent = Agent("a", model=model)
            async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
                for operation, end in (("well", "completed"), ("badly", "failed")):
                    run = await rt.start(agent, "hello", session="s", operation_id=operation)
                    assert await rest(run) == end
                    shown += [repr(run), repr(run.error), repr(await rt.context(run.id)), repr(await run.state())]
                    shown += [repr(event) async for event in run.events()]
                shown.append(repr(agent) + repr(model))
        assert [e.headers["authorization"] for e in server.exchanges] == [f"Bearer {CANARY}"] * 2, "it was in use"
    sinks = {path.name: data for path, data in files(tmp_path).items()}
    sinks |= {"shown": "\n".join(shown).encode(), "logged": caplog.text.encode()}
    assert {"ondol.db", "shown", "logged"} <= set(sinks)
    assert [name for name, said in sinks.items() if b"canary" in said] == []


# --- code that cancels the task that it runs in -----------------------------------------------------------------


async def test_a_model_that_cancels_its_task_has_failed_and_is_asked_no_more_often_than_others(db: str) -> None:
    class Cancelling:
        name = "m"
        asked = 0

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
            self.asked += 1
            cancels_itself()
            yield await asyncio.sleep(0, Answer(parts=(Text("done"),)))

    model, clock = Cancelling(), WatchedClock()
    async with Runtime(db, agents=[Agent("a", model=model)], clock=clock) as rt:
        run = await rt.start("a", "go")
        await rests(clock, run)
        with pytest.raises(RunFailed, match="model_connection: the model call was cancelled by the model itself"):
            await run.result()
    assert model.asked == 4


async def test_what_nobody_waits_for_any_more_fails_quietly() -> None:
    loop, begun, complaints = asyncio.get_running_loop(), asyncio.Event(), list[Any]()
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    async def fails() -> None:
        begun.set()
        try:
            await loop.create_future()
        finally:
            raise ConnectionError("gone")

    asking = asyncio.create_task(from_outside(fails, 60))
    await begun.wait()
    asking.cancel()
    await asyncio.wait([asking])
    del asking
    await unwound()
    gc.collect()
    assert complaints == []


async def test_a_toolset_that_cancels_its_task_has_found_nothing(house: House) -> None:
    @toolset
    async def finds(ctx: Context[House]) -> list[Any]:
        cancels_itself()
        return []

    agent = house.agent("done", tools=[finds])
    async with house.life(agent) as life:
        assert (await life.rt.run(agent, "go", session="s", operation_id="op")).text == "done"


async def test_a_check_that_cancels_its_task_cannot_tell(house: House) -> None:
    async def was_sent(to: str) -> NotHappened:
        cancels_itself()
        return NotHappened()

    @tool(effect="once", check=was_sent)
    async def send(ctx: Context[House], to: str) -> str:
        await ctx.deps.act(ctx, "send", to=to)
        raise ConnectionError("no answer")

    agent = house.agent([call("send", to="kim")], "done", tools=[send])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert await states(run) == [("send", "unknown", 1)]
    assert house.count("send") == 1


# --- one runtime, used from several places ----------------------------------------------------------------------


async def test_a_runtime_is_open_once_however_many_open_it_at_the_same_moment(house: House) -> None:
    async with house.life(house.agent()) as life:
        with pytest.raises(NotOpen, match="open already"):
            await life.rt.open()
        assert (await life.rt.run("a", HELLO)).text == HELLO_BACK
        await life.rt.close()
        opening = await asyncio.gather(*[life.rt.open() for _ in range(3)], return_exceptions=True)
        assert [type(o) for o in opening] == [type(None), NotOpen, NotOpen]
        assert (await life.rt.run("a", HELLO)).text == HELLO_BACK


async def test_a_runtime_that_could_not_be_opened_can_be_opened_when_the_reason_is_gone(tmp_path: Path) -> None:
    agent = Agent("a", model=ScriptedModel(["done"]))
    rt = Runtime(f"sqlite:///{tmp_path}/not/yet/ondol.db", agents=[agent])
    for _ in range(2):
        with pytest.raises(StoreError, match="does not exist"):
            await rt.open()
    (tmp_path / "not" / "yet").mkdir(parents=True)
    async with rt:
        assert (await rt.run(agent, "go")).text == "done"


async def test_from_another_event_loop_a_runtime_is_refused_before_anything_is_written(house: House) -> None:
    async with house.life(house.agent()) as life:

        def elsewhere() -> None:
            with pytest.raises(NotOpen, match="another event loop"):
                asyncio.run(life.rt.run("a", HELLO))

        await asyncio.to_thread(elsewhere)
        assert await life.rt.runs() == []
        there = asyncio.get_running_loop()
        calling = asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(life.rt.run("a", HELLO), there).result())
        assert (await calling).text == HELLO_BACK


async def test_a_runtime_is_closed_where_it_is_open(house: House) -> None:
    async with house.life(house.agent()) as life:

        def elsewhere() -> None:
            with pytest.raises(NotOpen, match="another event loop"):
                asyncio.run(life.rt.close())

        await asyncio.to_thread(elsewhere)
        assert (await life.rt.run("a", HELLO)).text == HELLO_BACK


@pytest.mark.both_stores
def test_a_runtime_that_was_left_open_in_an_event_loop_that_ended_holds_up_nobody(db: str) -> None:
    """As by ``asyncio.run`` of a function that opened it and raised. Its process goes on."""

    def runtime() -> Runtime:
        return Runtime(db, agents=[Agent("a", model=ScriptedModel(["done"]))])

    async def opens_and_breaks() -> None:
        await left.open()
        assert left.drives
        raise RuntimeError("of the application")

    async def drives(rt: Runtime) -> str:
        async with asyncio.timeout(SOON), rt:
            return (await rt.run("a", "go")).text

    left = runtime()
    for _ in range(2):  # the second time it is opened again where it was left
        with pytest.raises(RuntimeError, match="of the application"):
            asyncio.run(opens_and_breaks())
    assert asyncio.run(drives(runtime())) == "done"
    asyncio.run(left.close())
    assert asyncio.run(drives(left)) == "done"


@pytest.mark.both_stores
async def test_an_application_that_has_filled_its_threads_holds_up_nobody_but_itself(
    house: House, tmp_path: Path
) -> None:
    """As with tools that wait in ``asyncio.to_thread``. An outcome would not be durable before one of them ends."""
    loop, go_on, file = asyncio.get_running_loop(), threading.Event(), tmp_path / "a.txt"
    file.write_text("attached")

    @tool
    async def tell(ctx: Context[House]) -> str:
        house.happened(ctx.idempotency_key, "tell")
        return "long " * 10_000

    def read_on(seen: ModelRequest) -> Any:
        (blob,) = outputs.blobs_of(seen.messages).values()
        return [call("read_more", reference=blob.digest)]

    agent = house.agent([call("tell")], read_on, "done", tools=[tell])
    loop.set_default_executor(ThreadPoolExecutor(1))
    filled = loop.run_in_executor(None, go_on.wait)
    try:
        async with house.life(agent) as life:
            assert (await life.rt.run(agent, "go", session="s", attachments=[file])).text == "done"
    finally:
        go_on.set()
        await filled


async def test_an_application_may_make_its_tasks_eager(house: House) -> None:
    """What begins later than it is made is no task of the application's kind, which is eager from Python 3.12 on."""
    kinds: list[str] = []
    as_usual = functools.partial(asyncio.Task, loop=asyncio.get_running_loop())

    def made(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        kinds.append(work.__qualname__)
        eager = getattr(asyncio, "eager_task_factory", None)
        return eager(loop, work, **options) if eager else as_usual(work, **options)  # type: ignore[no-any-return]

    @tool(effect="steps")
    async def both(ctx: Context[Any]) -> str:
        return " and ".join([await ctx.call(refund, order="1"), await ctx.call(letter, to="kim")])

    agent = house.agent([LOOK, call("both")], [LETTER], "done", tools=[look, both, letter])
    asyncio.get_running_loop().set_task_factory(made)
    async with house.life(agent) as life:
        runs = [await life.rt.start(agent, "go", session="s") for _ in range(2)]  # one as it is accepted, one queued
        for run in runs:
            assert await rest(run) == "completed"
            assert [e.state for e in await run.effects()] == ["succeeded"] * 5
    assert kinds
    late = ("_claim_and_drive", "awaited", "Body.start.<locals>.run")
    assert [kind for kind in kinds if kind.endswith(late)] == []
