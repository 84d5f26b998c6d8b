"""B16 to B18: a full disk, a damaged or newer store, a restored one, as seen by runs and their callers."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from crash.lives import Life

from ondol import (
    Agent,
    By,
    Context,
    OndolError,
    ReplayUnsafe,
    Run,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreTooNew,
    carried,
    queries,
    tool,
)
from ondol.errors import OutcomeUnknown, StoreBusy
from ondol.stores import sqlite_admin
from ondol.testing import FaultPlan, barrier, call, error, raise_
from ondol.testing.faults import Fault
from promise.house import HELLO, House, letter, notes, rest, states, the_ask

LETTER = call("letter", to="kim")
#: Time passes while the disk is full, and a tool's time must not be over by then.
PATIENT = [tool(effect="once", timeout=timedelta(days=1), name="letter")(letter.function)]


def no_space() -> Fault:
    return raise_(StoreFull("no space left"))


async def passes(house: House, run: Run) -> str:
    """Let time pass until the run comes to rest."""
    resting = asyncio.create_task(rest(run))
    while not resting.done():
        house.clock.advance(seconds=1)
        await run.refresh()
    return await resting


# --- B16 --------------------------------------------------------------------------------------------------------


async def test_b16_a_full_disk_refuses_a_new_operation_and_takes_it_when_space_is_back(house: House) -> None:
    agent, plan = house.agent("done"), FaultPlan()
    for nth in (1, 2):
        plan.at("accept.before", nth=nth, fault=no_space())
    async with house.life(agent, plan=plan) as life:
        for _ in range(2):
            with pytest.raises(StoreFull):
                await life.rt.start(agent, "go", session="s", operation_id="op")
            assert not await life.rt.runs()  # reads go on
        assert (await life.rt.run(agent, "go", session="s", operation_id="op")).text == "done"


async def test_b16_a_claim_that_the_disk_refused_is_tried_again(house: House) -> None:
    agent, plan = house.agent("done"), FaultPlan()
    for nth in (1, 2, 3):
        plan.at("claim.before", nth=nth, fault=no_space())
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await passes(house, run) == "completed"
    assert not life.plan.unreached


async def test_b16_no_effect_starts_before_its_start_is_durable(house: House) -> None:
    agent, plan = house.agent([LETTER], "done", tools=PATIENT), FaultPlan()
    for nth in (1, 2, 3):
        plan.at("started.before", nth=nth, fault=no_space())
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.clock.wait_for_timers()
        assert house.count() == 0
        assert await states(run) == [("letter", "planned", 0)]
        assert await passes(house, run) == "completed"
    assert house.count("letter") == 1


async def test_b16_an_outcome_in_hand_is_written_as_soon_as_there_is_space_and_never_made_again(house: House) -> None:
    agent, plan = house.agent([LETTER], "done", tools=PATIENT), FaultPlan()
    for nth in range(1, 6):
        plan.at("outcome.before", nth=nth, fault=no_space())
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await passes(house, run) == "completed"
        assert await states(run) == [("letter", "succeeded", 1)]
    assert house.count("letter") == 1
    assert not life.plan.unreached


@pytest.mark.parametrize("at", ["note_down", "answer", "commit"])
async def test_b16_any_other_write_waits_for_space_and_nothing_is_asked_or_done_again(house: House, at: str) -> None:
    agent, plan = house.agent([LETTER], "done", tools=PATIENT), FaultPlan()
    for nth in (1, 2, 3):
        plan.at(f"{at}.before", nth=nth, fault=no_space())
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await passes(house, run) == "completed"
    assert house.count("letter") == 1
    assert [r.step for r in house.asked()] == [0, 1]


async def test_b16_a_run_that_waits_for_space_can_be_cancelled_when_there_is_some_again(house: House) -> None:
    agent, plan = house.agent([LETTER], "done", tools=PATIENT), FaultPlan()
    for nth in (1, 2, 3, 4):
        plan.at("started.before", nth=nth, fault=no_space())
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.clock.wait_for_timers()
        await run.cancel(by="kim")
        assert await passes(house, run) == "cancelled"
        assert await states(run) == [("letter", "abandoned", 0)]
    assert house.count() == 0


async def test_b16_a_process_that_dies_with_an_outcome_in_hand_leaves_an_unknown(house: House) -> None:
    agent, plan = house.agent([LETTER], "done", tools=PATIENT), FaultPlan()
    plan.at("outcome.before", nth=None, fault=no_space())
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await house.clock.wait_for_timers()
        assert house.count("letter") == 1
        life.die()
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("letter") == 1


# --- B17 --------------------------------------------------------------------------------------------------------


def files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]


def everything(folder: Path) -> dict[str, str]:
    """What lies there, byte for byte. Locks, SQLite's shared memory and an empty log are not content."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files(folder)
        if not path.name.endswith((".lock", "-shm"))
    }


async def some_history(house: House) -> str:
    agent = house.agent([LETTER], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
    return str(run.id)


def no_header(file: Path) -> None:
    file.write_bytes(b"\0" * 100 + file.read_bytes()[100:])


def another_file(file: Path) -> None:
    file.write_bytes(b"Dear diary")


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def another_database(file: Path) -> None:
    file.unlink()
    connection = apsw.Connection(str(file))
    connection.execute("CREATE TABLE diary (day TEXT)")
    connection.close()


def under_two_names(file: Path) -> None:
    os.link(file, file.with_name("other.db"))


def newer(file: Path) -> None:
    connection = apsw.Connection(str(file))
    connection.execute("PRAGMA user_version = 9999")
    connection.close()


@pytest.mark.file
@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (no_header, StoreCorrupt),
        (another_file, StoreCorrupt),
        (emptied, StoreCorrupt),
        (another_database, StoreError),
        (under_two_names, StoreError),
        (newer, StoreTooNew),
    ],
)
async def test_b17_a_store_that_cannot_be_read_is_refused_named_and_left_as_it_is(
    house: House, damage: object, error: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondol.stores.sqlite._MAKING", 0)  # nobody makes it at this moment
    house.checked = False
    await some_history(house)
    damage(house.file)  # type: ignore[operator]
    before = everything(house.file.parent)
    with pytest.raises(error, match=house.file.name):
        async with house.life(house.agent("done")):
            pass
    assert everything(house.file.parent) == before


@pytest.mark.file
async def test_b17_a_store_that_is_gone_while_its_log_is_there_is_not_made_anew(house: House) -> None:
    house.checked = False
    await some_history(house)
    house.file.rename(house.file.with_suffix(".kept"))
    wal = house.file.with_name(house.file.name + "-wal")
    wal.write_bytes(b"not empty")
    with pytest.raises(StoreCorrupt):
        async with house.life(house.agent("done")):
            pass
    assert not house.file.exists()
    assert wal.read_bytes() == b"not empty"


@pytest.mark.file
async def test_b17_a_store_that_is_empty_while_its_log_is_there_is_not_made_anew(house: House) -> None:
    """A process was killed, and what it had committed last is in the log only."""
    house.checked = False
    agent = house.agent("done")
    async with house.life(agent, dies_at="answer.before") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
        wal = house.file.with_name(house.file.name + "-wal")
        log = wal.read_bytes()
    assert log
    wal.write_bytes(log)
    emptied(house.file)
    with pytest.raises(StoreCorrupt, match="is empty"):
        async with house.life(agent):
            pass
    assert house.file.read_bytes() == b""
    assert wal.read_bytes() == log


@pytest.mark.file
async def test_b17_a_file_that_was_never_driven_may_be_empty(house: House) -> None:
    house.file.touch()
    assert await some_history(house)


def flip(house: House, table: str, run_id: str) -> None:
    """One byte of what is stored is another."""
    connection = apsw.Connection(str(house.file))
    ((key, body),) = connection.execute(
        f"SELECT {'seq' if table == 'entries' else 'ordinal'}, body FROM {table} WHERE run = ? LIMIT 1", (run_id,)
    )
    flipped = body.replace("run.accepted", "run.accepteD") if isinstance(body, str) else body.replace(b"go", b"gO")
    assert flipped != body
    column = "seq" if table == "entries" else "ordinal"
    connection.execute(f"UPDATE {table} SET body = ? WHERE run = ? AND {column} = ?", (flipped, run_id, key))
    connection.close()


@pytest.mark.file
@pytest.mark.parametrize("table", ["entries", "messages"])
async def test_b17_a_flipped_byte_is_found_and_never_believed_and_other_runs_go_on(house: House, table: str) -> None:
    house.checked = False
    agent = house.agent([LETTER], "done")
    run_id = await house.dies(agent, at="answer.after")
    flip(house, table, run_id)
    async with house.life(agent) as life:
        assert (await life.rt.run(agent, HELLO, session="other", operation_id="other")).text
        damaged = await life.rt.get_run(run_id)
        with pytest.raises(StoreCorrupt, match=run_id):
            async with asyncio.timeout(10):
                await damaged.result()
        read = anext(damaged.events()) if table == "entries" else damaged.messages()
        with pytest.raises(StoreCorrupt, match=run_id):
            await read
        assert (await damaged.refresh()).status in ("queued", "running")
    assert house.count() == 0  # nothing was done on the word of a damaged journal
    assert len(house.asked(run_id)) == 1


@pytest.mark.file
async def test_b17_a_run_of_a_newer_version_is_refused_and_left_as_it_is(house: House) -> None:
    house.checked = False
    agent = house.agent([LETTER], "done")
    run_id = await house.dies(agent, at="answer.after")
    connection = apsw.Connection(str(house.file))
    connection.execute("UPDATE entries SET v = 9999 WHERE run = ? AND seq = 1", (run_id,))
    connection.close()
    async with house.life(agent) as life:
        newer_run = await life.rt.get_run(run_id)
        with pytest.raises(StoreTooNew, match="upgrade"):
            async with asyncio.timeout(10):
                await newer_run.result()
        assert (await life.rt.run(agent, HELLO, session="other", operation_id="other")).text
    assert house.count() == 0


@pytest.mark.file
async def test_b17_a_blob_that_was_changed_is_found(house: House) -> None:
    agent = house.agent("done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op", attachments=[b"receipt"])
        assert await rest(run) == "completed"
        (blob,) = files(Path(f"{house.file}.blobs"))
        blob.write_bytes(b"receipT")
        (message, *_) = await run.messages()
        with pytest.raises(StoreCorrupt):
            await life.rt.get_blob(message.parts[1].digest)  # type: ignore[union-attr]


def damage(house: House, text: str, *given: object) -> None:
    connection = apsw.Connection(str(house.file))
    connection.execute(text, given)
    assert connection.total_changes() == 1
    connection.close()


@pytest.mark.file
async def test_b17_a_run_that_cannot_be_taken_up_stops_no_other(house: House) -> None:
    """Its cancel was accepted, its holder died, and what it had started cannot be read."""
    house.checked = False
    agent, in_letter, reading = house.agent([LETTER], "done"), barrier(), barrier()
    plan = FaultPlan().at("letter.after", fault=in_letter).at("absorb.before", fault=reading)
    async with house.life(agent, plan=plan) as life:
        damaged = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_letter.reached.wait()
        await damaged.cancel(by="kim")
        life.die()
    damage(house, "UPDATE effects SET arguments = ? WHERE run = ?", '{"to', damaged.id)
    async with house.life(agent) as life:
        assert (await life.rt.run(agent, HELLO, session="other", operation_id="other")).text
        with pytest.raises(OndolError, match=damaged.id):
            async with asyncio.timeout(10):
                await (await life.rt.get_run(damaged.id)).result()


_FOR_NOW = [StoreBusy("away"), OutcomeUnknown("the answer to COMMIT was lost"), StoreError("the disk cannot be read")]


@pytest.mark.parametrize("lost", _FOR_NOW)
async def test_b16_what_the_store_could_not_take_up_at_that_moment_is_taken_up_later(
    house: House, lost: StoreError
) -> None:
    agent = house.agent("done")
    run_id = await house.dies(agent, "answer.before")
    async with house.life(agent, plan=FaultPlan().at("recover.after", fault=raise_(lost))) as life:
        assert await rest(await life.rt.get_run(run_id)) == "completed"


async def test_b16_an_ask_that_the_store_could_not_let_expire_at_that_moment_expires_later(house: House) -> None:
    agent = house.agent([call("rush", to="kim")], "then not", tools=[rush])
    plan = FaultPlan().at("decide.before", nth=1, fault=raise_(StoreError("the disk cannot be written")))
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        await house.clock.wait_for_timers()
        house.clock.advance(hours=8)
        while (await run.refresh()).status != "completed":
            assert [event async for event in run.events()]
    assert house.count() == 0


@pytest.mark.file
async def test_b17_an_ask_that_cannot_expire_stops_no_other(house: House) -> None:
    @tool(effect="once", approve=True, approve_expires=timedelta(hours=1))
    async def rush(ctx: Context[House], to: str) -> str:
        return await ctx.deps.act(ctx, "rush", to=to)

    house.checked = False
    agent = house.agent([call("rush", to="kim")], "then not", tools=[rush])
    async with house.life(agent) as life:
        runs = [await life.rt.start(agent, "go", session=f"s{n}", operation_id=f"op{n}") for n in range(2)]
        for run in runs:
            assert await rest(run) == "waiting"
    damage(house, "UPDATE asks SET effect = 'nothing' WHERE run = ?", runs[0].id)
    house.clock.advance(hours=2)
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(runs[1].id)) == "completed"
        await life.engine.look()
        assert (await life.rt.get_run(runs[0].id)).status == "waiting"
    assert house.count() == 0


# --- B18 --------------------------------------------------------------------------------------------------------


@pytest.mark.file
async def test_b18_unfinished_runs_of_a_restored_store_are_parked_until_a_person_settles_them(house: House) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    house.answers("money", [call("wire", to="kim")], "done")
    async with house.life(agent, plan=FaultPlan().at("letter.after", fault=in_letter)) as life:
        running = await life.rt.start(agent, "go", session="s", operation_id="running")
        await in_letter.reached.wait()
        queued = await life.rt.start(agent, HELLO, session="s", operation_id="queued")
        waiting = await life.rt.start(agent, "money", session="t", operation_id="waiting")
        assert await rest(waiting) == "waiting"
        done = await life.rt.start(agent, HELLO, session="u", operation_id="done")
        assert await rest(done) == "completed"
        life.die()
    fences = {run.id: run.fence for run in house.written().runs.values()}
    saved = sqlite_admin.backup(house.file, house.file.parent / "saved")
    for path in house.file.parent.glob(f"{house.file.name}*"):
        path.unlink()
    sqlite_admin.restore(saved, house.file)
    house.clock.advance(hours=1)
    async with house.life(agent) as life:
        runs = {o: await life.rt.find_run(o) for o in ("running", "queued", "waiting", "done")}
        assert {o: r.status for o, r in runs.items()} == {
            "running": "parked", "queued": "parked", "waiting": "parked", "done": "completed",
        }  # fmt: skip
        for run in (running, queued, waiting, done):
            assert house.written().runs[run.id].fence > fences[run.id]
        assert house.count("letter") == 1
        for run in runs.values():
            if run.status == "parked":
                ask = await the_ask(run, "parked")
                assert "restored" in ask.question
                await ask.answer("resume", by="lee")
        while await rest(runs["running"]) == "waiting":
            await (await the_ask(runs["running"], "unknown_effect")).happened(by="lee")
        assert await rest(runs["queued"]) == "completed"
        assert await rest(runs["waiting"]) == "waiting"
        await (await the_ask(runs["waiting"])).approve(by="lee")
        assert await rest(runs["waiting"]) == "completed"
    assert house.count("letter") == house.count("wire") == 1


def saved(house: House) -> None:
    """A backup is made. What is asked of the model from here on, a restored store knows nothing of."""
    sqlite_admin.backup(house.file, house.file.parent / "saved")
    house.asked_when_saved = len(house.requests)


def restored(house: House) -> None:
    """The store as it was then. What happened after it happened all the same."""
    for path in house.file.parent.glob(f"{house.file.name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    sqlite_admin.restore(house.file.parent / "saved", house.file, clock=house.clock)
    del house.requests[house.asked_when_saved :]
    house.clock.advance(hours=1)


async def saved_and_gone_on(house: House, agent: Agent, at: str) -> str:
    """A backup is made as a run stands at that point. Then the run completes, and the backup is restored."""
    place = barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await place.reached.wait()
        saved(house)
        place.go_on.set()
        assert await rest(run) == "completed"
    restored(house)
    return str(run.id)


async def resumed(life: Any, run_id: str) -> Run:
    run = await life.rt.get_run(run_id)
    assert run.status == "parked"
    await (await the_ask(run, "parked")).answer("resume", by="lee")
    return run  # type: ignore[no-any-return]


@pytest.mark.file
@pytest.mark.parametrize("at", ["claim.before", "model.before", "answer.before", "started.before"])
async def test_b18_a_write_that_may_have_been_made_after_the_backup_is_checked_before_it_starts(
    house: House, at: str
) -> None:
    agent = house.agent([call("mail", to="kim")], "done")
    run_id = await saved_and_gone_on(house, agent, at)
    assert house.count("mail") == 1
    async with house.life(agent) as life:
        run = await resumed(life, run_id)
        assert await rest(run) == "completed"
        assert await states(run) == [("mail", "succeeded", 1)]
        (begun,) = [e async for e in run.events() if e.type == "effect.started"]
        assert begun.data["presumed"]
    assert house.count("mail") == 1


@pytest.mark.file
async def test_b18_a_write_that_check_does_not_find_is_made(house: House) -> None:
    agent, place = house.agent([call("mail", to="kim")], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("started.before", fault=place)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await place.reached.wait()
        saved(house)
        life.die()
    restored(house)
    async with house.life(agent) as life:
        assert await rest(await resumed(life, run.id)) == "completed"
        assert await states(await life.rt.get_run(run.id)) == [("mail", "succeeded", 2)]
    assert house.count("mail") == 1


@pytest.mark.file
@pytest.mark.parametrize("word", ["happened", "not_happened", "give_up"])
async def test_b18_without_a_check_a_person_is_asked_whether_it_happened_after_the_backup(
    house: House, word: str
) -> None:
    agent = house.agent([LETTER], "done")
    run_id = await saved_and_gone_on(house, agent, "started.before")
    if word == "not_happened":
        house.ledger.clear()  # and so it is
    async with house.life(agent) as life:
        run = await resumed(life, run_id)
        assert await rest(run) == "waiting"
        await getattr(await the_ask(run, "unknown_effect"), word)(by="lee")
        assert await rest(run) == ("failed" if word == "give_up" else "completed")
    assert house.count("letter") == 1


@pytest.mark.file
async def test_b18_an_idempotent_write_is_repeated_with_its_key_while_that_lives(house: House) -> None:
    agent = house.agent([call("refund", order="1")], "done")
    run_id = await saved_and_gone_on(house, agent, "started.before")
    async with house.life(agent) as life:
        assert await rest(await resumed(life, run_id)) == "completed"
    assert house.count("refund") == 2
    assert len(house.keys("refund")) == 1


@pytest.mark.file
async def test_b18_an_idempotent_write_whose_key_may_be_too_old_is_unknown(house: House) -> None:
    agent = house.agent([call("refund", order="1")], "done")
    run_id = await saved_and_gone_on(house, agent, "started.before")
    house.clock.advance(hours=24)
    async with house.life(agent) as life:
        run = await resumed(life, run_id)
        assert await rest(run) == "waiting"
        await (await the_ask(run, "unknown_effect")).happened("paid", by="lee")
        assert await rest(run) == "completed"
    assert house.count("refund") == 1


@pytest.mark.file
async def test_b18_an_approval_after_the_restore_is_a_persons_word(house: House) -> None:
    agent = house.agent([call("wire", to="kim")], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        saved(house)
    restored(house)
    async with house.life(agent) as life:
        run = await resumed(life, run.id)
        assert await rest(run) == "waiting"
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    assert house.count("wire") == 1


@pytest.mark.file
@pytest.mark.parametrize("again", ["start", "resume"])
async def test_b18_a_run_that_failed_for_now_is_parked_before_it_goes_on(house: House, again: str) -> None:
    agent = house.agent(lambda request: error("quota") if len(house.asked()) == 1 else [LETTER], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "failed"
        saved(house)
        assert await rest(await life.rt.start(agent, "go", session="s", operation_id="op")) == "completed"
    restored(house)
    async with house.life(agent) as life:
        failed = await life.rt.get_run(run.id)
        assert (failed.status, failed.retryable) == ("failed", True)
        assert not await life.rt.asks()  # as long as nobody wants it
        if again == "start":
            await life.rt.start(agent, "go", session="s", operation_id="op")
        else:
            await life.rt.resume(failed)
        asked = len(house.asked())
        run = await resumed(life, run.id)
        assert await rest(run) == "waiting"
        assert len(house.asked()) == asked + 1
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await rest(run) == "completed"
    assert house.count("letter") == 1


@tool(effect="once", approve=True, approve_expires=timedelta(hours=8))
async def rush(ctx: Context[House], to: str) -> str:
    return await ctx.deps.act(ctx, "rush", to=to)


@pytest.mark.file
@pytest.mark.parametrize("as_it", ["is parked", "waits", "works"])
@pytest.mark.parametrize("in_steps", [False, True])
@pytest.mark.parametrize("said", ["nothing", "no"])
async def test_b18_a_call_that_nobody_approves_after_the_restore_may_have_been_made(
    house: House, as_it: str, in_steps: bool, said: str
) -> None:
    """Somebody may have approved it after the backup was made: nobody is told that it was not made."""

    @tool(effect="steps")
    async def task(ctx: Context[House]) -> str:
        return await ctx.call(rush, to="kim")

    agent = house.agent([call("task") if in_steps else call("rush", to="kim")], "done", tools=[rush, task])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        saved(house)
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    restored(house)
    place, plan = barrier(), FaultPlan()
    if as_it == "works":
        plan.at("claim.after", fault=place)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.get_run(run.id)
        if as_it != "is parked":
            await (await the_ask(run, "parked")).answer("resume", by="lee")
            await (place.reached.wait() if as_it == "works" else rest(run))
        await not_approved(house, life, run, said)
        place.go_on.set()
        if as_it == "is parked":
            await (await the_ask(run, "parked")).answer("resume", by="lee")
        assert await rest(run) == "waiting"
        assert ("rush", "unknown", 1) in await states(run)
        await (await the_ask(run, "unknown_effect")).happened("sent", by="lee")
        assert await rest(run) == "completed"
        assert ("rush", "succeeded", 1) in await states(run)
    assert house.count("rush") == 1


async def not_approved(house: House, life: Life, run: Run, said: str) -> None:
    """The call that waits for an approval is denied, or nobody says a word in time."""
    if said == "no":
        await (await the_ask(run, "approval")).deny(by="kim", reason="not now")
    else:
        house.clock.advance(hours=9)
        await life.engine.look()


@asynccontextmanager
async def not_approved_since_the_backup(house: House, said: str = "nothing") -> AsyncIterator[tuple[Life, Agent, Run]]:
    """A run that waited for an approval, which nobody gave after the store was restored."""
    agent = house.agent([call("rush", to="kim")], "done", tools=[rush])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        saved(house)
    restored(house)
    async with house.life(agent) as life:
        run = await life.rt.get_run(run.id)
        await not_approved(house, life, run, said)
        run = await resumed(life, run.id)
        assert await rest(run) == "waiting"
        yield life, agent, run


@pytest.mark.file
@pytest.mark.parametrize("said", ["nothing", "no"])
async def test_b18_a_cancel_of_a_run_whose_call_nobody_approved_after_the_restore_tells_what_it_may_have_done(
    house: House, said: str
) -> None:
    async with not_approved_since_the_backup(house, said) as (life, agent, run):
        before = (await life.rt.get_session("s")).revision
        await run.cancel(by="lee")
        assert (await life.rt.get_session("s")).revision == before + 1
        assert await rest(await life.rt.start(agent, HELLO, session="s", operation_id="next")) == "completed"
        (told,) = notes(house.requests[-1])
        assert "it may have happened" in told


@pytest.mark.file
async def test_b18_what_is_carried_of_a_call_that_nobody_approved_since_does_not_say_that_it_was_not_made(
    house: House,
) -> None:
    async with not_approved_since_the_backup(house) as (life, _, _):
        session = (await life.rt.get_session("s"))._row
        decided, unknown = await life.rt._read(queries.recorded_facts, session)
    may_be, not_approved = carried.facts(decided, unknown, carried.LEAST)
    assert "it may have happened" in may_be
    assert not_approved == 'nobody approved rush({"to": "kim"}) in time'


@pytest.mark.file
@pytest.mark.parametrize(
    ("said", "state", "told"),
    [("nothing", "expired", "nobody approved this call in time"), ("no", "denied", "kim refused this call: not now")],
)
async def test_b18_a_call_that_was_not_made_after_the_backup_and_that_nobody_approved_since_is_not_made(
    house: House, said: str, state: str, told: str
) -> None:
    async with not_approved_since_the_backup(house, said) as (_, _, run):
        await (await the_ask(run, "unknown_effect")).not_happened("nothing went out", by="lee")
        assert await rest(run) == "completed"
        assert await states(run) == [("rush", state, 1)]
    assert house.count("rush") == 0
    assert told in str(house.asked()[-1].messages[-1].parts[-1])


@pytest.mark.file
@pytest.mark.parametrize("how", ["cancel", "fail", "cancel as it goes on"])
async def test_b18_of_a_run_that_a_person_ends_the_writes_that_it_may_have_made_are_unknown(
    house: House, how: str
) -> None:
    agent = house.agent([LETTER, call("wire", to="kim")], "done")
    place = barrier()
    async with house.life(agent, plan=FaultPlan().at("started.before", fault=place)) as life:
        run = await life.rt.start(agent, "go", session="t", operation_id="planned")
        await place.reached.wait()
        saved(house)
        place.go_on.set()
        assert await rest(run) == "waiting"
        await (await the_ask(run)).approve(by="lee")
        assert await rest(run) == "completed"
    restored(house)
    place, plan = barrier(), FaultPlan()
    if how == "cancel as it goes on":
        plan.at("claim.after", fault=place)
    async with house.life(agent, plan=plan) as life:
        run = await life.rt.get_run(run.id)
        ask = await the_ask(run, "parked")
        if how == "fail":
            await ask.answer("fail", by="lee")
        elif how == "cancel":
            await run.cancel(by="lee")
        else:
            await ask.answer("resume", by="lee")
            await place.reached.wait()
            await run.cancel(by="lee")
            place.go_on.set()
        assert await rest(run) == ("failed" if how == "fail" else "cancelled")
        assert await states(run) == [("letter", "unknown", 1), ("wire", "unknown", 1)]
        assert (await life.rt.replay(run, dry_run=True)).kind == "blocked"
        assert await rest(await life.rt.start(agent, HELLO, session="t", operation_id="next")) == "completed"
        (told,) = notes(house.requests[-1])
        assert told.count("it may have happened") == 2
        for ask in await life.rt.asks():
            if ask.kind == "unknown_effect":
                await ask.happened("sent", by="lee")
        assert await states(run) == [("letter", "succeeded", 1), ("wire", "succeeded", 1)]


@pytest.mark.file
async def test_b18_nobody_knows_what_a_run_did_after_the_backup_so_a_replay_asks_before_each_write(
    house: House,
) -> None:
    agent = house.agent(lambda request: error("quota") if len(house.asked()) == 1 else [LETTER], "done")
    async with house.life(agent) as life:
        failed = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(failed) == "failed"
        saved(house)
        assert await rest(await life.rt.start(agent, "go", session="s", operation_id="op")) == "completed"
    restored(house)
    house.answers("go", [LETTER], "done")
    async with house.life(agent) as life:
        failed = await life.rt.get_run(failed.id)
        verdict = await life.rt.replay(failed, dry_run=True)
        assert (verdict.kind, "nobody knows" in verdict.reasons[0]) == ("guarded", True)
        with pytest.raises(ReplayUnsafe, match="nobody knows what run"):
            await life.rt.fork(failed, at_step=1)
        again = await life.rt.replay(failed, force=By("lee", "look again"))
        fork = await life.rt.fork(failed, at_step=1, effects="run")
        for run in (again, fork):
            assert await rest(run) == "waiting"
            await (await the_ask(run)).deny(by="lee")
            assert await rest(run) == "completed"
    assert house.count("letter") == 1
    house.checked = False  # what was done after the backup is in no journal


@pytest.mark.file
async def test_b18_a_run_that_was_parked_when_the_backup_was_made_is_doubted_too(house: House) -> None:
    agent = house.agent([call("mail", to="kim")], "done")
    for _ in range(3):
        async with house.life(agent, dies_at="started.before") as life:
            await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "parked"
        saved(house)
        assert await rest(await resumed(life, run.id)) == "completed"
    restored(house)
    async with house.life(agent) as life:
        assert await rest(await resumed(life, run.id)) == "completed"
        assert len(await (await life.rt.get_run(run.id)).asks(state=None)) == 1
    assert house.count("mail") == 1
