"""A run goes to another machine as one file, and is looked at there."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ondol import Agent, FileDamaged, InvalidInput, NotFound, ReadOnly, Runtime, StoreTooNew
from ondol.cli.bystander import Bystander
from ondol.runfile import loads
from ondol.stores import sqlite_admin
from ondol.testing import Barrier, FaultPlan, call, raise_, text
from promise.house import HELLO, House, letter, look, mail, rest, the_ask, wire

PHOTO, SCAN = b"\x89PNG photo" * 20, b"%PDF scan" * 400


def lost() -> FaultPlan:
    """The letter goes out, and the connection breaks before anybody says so."""
    return FaultPlan().at("letter.after", fault=raise_(ConnectionError("the line broke")))


async def eventful(house: House) -> tuple[Agent, str]:
    """A run in a session with a history: a note, siblings, an approval with replaced arguments, an unknown, two
    attachments. It waits for a person."""
    agent = house.agent(
        [text("looking — 보는 중"), call("look", order="1")],
        [call("wire", to="kim"), call("letter", to="lee"), call("look", order="2")],
        "done",
        tools=[look, letter, mail, wire],
    )
    async with house.life(agent, plan=lost()) as life:
        await life.rt.run(agent, HELLO, session="s", operation_id="before", attachments=[b"earlier"])
        run = await life.rt.start(agent, "go", session="s", operation_id="op", attachments=[SCAN, PHOTO], user="kim")
        assert await rest(run) == "waiting"
        await (await the_ask(run)).approve(by="lee", arguments={"to": "park"})
        await rest(await run.refresh())
    return agent, run.id


@pytest.fixture
async def exported(house: House) -> tuple[Agent, str, str]:
    """The agent, the run's id, and its file's text."""
    agent, run = await eventful(house)
    async with house.life(agent) as life:
        return agent, run, await life.rt.export_run(run)


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/elsewhere.db"


async def test_another_machine_sees_all_that_happened(house: House, elsewhere: str) -> None:
    agent = house.agent(
        [call("look", order="1")],
        [call("wire", to="kim"), call("letter", to="lee"), call("mail", to="park")],
        "done",
        tools=[look, letter, mail, wire],
    )
    async with house.life(agent, plan=lost()) as life:
        await life.rt.run(agent, HELLO, session="s", operation_id="before")
        run = await life.rt.start(agent, "go", session="s", operation_id="op", attachments=[PHOTO], user="kim")
        assert await rest(run) == "waiting"
        await (await the_ask(run)).approve(by="lee", arguments={"to": "choi"})
        assert await rest(await run.refresh()) == "waiting"
        await (await the_ask(run, "unknown_effect")).happened("it arrived", by="lee")
        assert await rest(await run.refresh()) == "completed"
        file = await life.rt.export_run(run.id)
        here = run.id, run.status, run.usage, run.error, run.accepted_at, run.ended_at, run.user
        events, effects = [e async for e in run.events()], await run.effects()
        asks, said = await run.asks(state=None), await run.messages()
        contexts = [await life.rt.context(run.id, step) for step in (1, 2, 3)]
    async with Runtime(elsewhere) as rt:
        await rt.import_run(file)
    async with Runtime(elsewhere) as rt:  # it is kept
        copy = await rt.imported(run.id)
    there = copy.run
    assert (there.id, there.status, there.usage, there.error, there.accepted_at, there.ended_at, there.user) == here
    assert (copy.events(), copy.effects(), copy.messages()) == (events, effects, said)
    assert copy.events(after=events[4].id) == events[5:]
    assert copy.asks() == asks
    assert [copy.context(step) for step in (1, 2, 3)] == contexts
    assert all(context.matches for context in contexts)
    assert copy.context() == contexts[-1]
    assert list(copy.blobs.values()) == [PHOTO]
    with pytest.raises(NotFound, match="no step 9"):
        copy.context(9)


async def test_a_replay_brings_along_what_was_said_in_the_session_that_it_goes_on_from(
    house: House, elsewhere: str
) -> None:
    agent = house.agent("done")
    async with house.life(agent) as life, Runtime(elsewhere) as rt:
        await life.rt.run(agent, HELLO, session="s", operation_id="before")
        first = await life.rt.start(agent, "go", session="s", operation_id="op")
        await first.result()
        replayed = await life.rt.replay(first)
        await replayed.result()
        assert replayed.session != "s"
        copy = await rt.import_run(await life.rt.export_run(replayed.id))
        assert copy.context() == await life.rt.context(replayed.id)
        assert copy.context().matches
        assert copy.run.replay_of == first.id


async def test_a_message_that_joined_a_turn_and_its_host_are_both_looked_at(house: House, elsewhere: str) -> None:
    agent, place = house.agent([call("letter", to="kim")], "done", tools=[letter]), Barrier()
    house.answers("more", [], "both done")
    async with house.life(agent, plan=FaultPlan().at("letter.before", fault=place)) as life, Runtime(elsewhere) as rt:
        host = await life.rt.start(agent, "go", session="s", operation_id="op")
        await place.reached.wait()
        joined = await life.rt.start(agent, "more", session="s", operation_id="more", if_busy="steer")
        place.go_on.set()
        assert (await host.result()).text == "both done"
        for run in (host, joined):
            copy = await rt.import_run(await life.rt.export_run(run.id))
            assert copy.run.status == (await run.refresh()).status
            assert copy.events() == [e async for e in run.events()]
            assert copy.messages() == await run.messages()
        assert (await rt.imported(host.id)).context() == await life.rt.context(host.id)


@pytest.mark.file
@pytest.mark.parametrize("state", ["queued", "waiting", "running"])
async def test_nothing_drives_or_changes_an_imported_run(house: House, elsewhere: str, state: str) -> None:
    agent = house.agent([call("letter", to="kim")], "done", tools=[letter])
    if state == "running":  # its process died
        run_id = await house.dies(agent, at="letter.before")
        house.checked = False  # nobody takes it up again
        async with Runtime(Bystander(house.file)) as looking:
            file = await looking.export_run(run_id)
    else:
        asking = house.agent([call("wire", to="kim")], "done", tools=[wire], said="first")
        async with house.life(asking) as life:
            first = await life.rt.start(asking, "first", session="s", operation_id="first")
            await rest(first)
            behind = await life.rt.start(asking, HELLO, session="s", operation_id="op")
            file = await life.rt.export_run(first.id if state == "waiting" else behind.id)
    sent, asked = house.count(), len(house.requests)
    async with Runtime(elsewhere, agents=[agent], deps=house, clock=house.clock) as rt:
        copy = await rt.import_run(file)
        assert copy.run.status == state
        house.clock.advance(hours=1)
        assert (await rt.run(agent, HELLO)).text == "hello to you"  # it drives, but not that
        (own,) = await rt.runs()
        assert await rt.asks(state=None) == []
        assert await rt.effects() == []
        for verb in (copy.run.cancel, copy.run.result, copy.run.refresh):
            with pytest.raises(ReadOnly, match=f"run {copy.id} was imported"):
                await verb()
        for ask in copy.asks():
            with pytest.raises(ReadOnly):
                await ask.approve(by="lee")
        for missing in (rt.cancel(copy.id), rt.get_run(copy.id)):
            with pytest.raises(NotFound):
                await missing
    assert own.id != copy.id
    async with Runtime(elsewhere, agents=[agent], deps=house, clock=house.clock) as rt:
        again = await rt.imported(copy.id)
        assert (again.run.status, again.events()) == (copy.run.status, copy.events())
    assert (house.count(), len(house.requests)) == (sent, asked + 1)


async def test_a_later_export_of_a_run_replaces_the_earlier_one(house: House, elsewhere: str) -> None:
    agent, run = await eventful(house)
    async with house.life(agent) as life, Runtime(elsewhere) as rt:
        await rt.import_run(await life.rt.export_run(run))
        (unknown,) = await life.rt.asks(run=run)
        await unknown.happened(by="lee")
        assert await rest(await life.rt.get_run(run)) == "completed"
        await rt.import_run(await life.rt.export_run(run))
        assert [(c.id, c.run.status) for c in await rt.imports()] == [(run, "completed")]


async def test_a_run_of_this_store_is_not_imported_and_an_imported_one_can_be_removed(
    house: House, exported: tuple[Agent, str, str], elsewhere: str
) -> None:
    agent, run, file = exported
    async with house.life(agent) as life:
        with pytest.raises(InvalidInput, match=f"run {run} is of this store"):
            await life.rt.import_run(file)
    async with Runtime(elsewhere) as rt:
        await rt.import_run(file)
        await rt.forget_import(run)
        assert await rt.imports() == []
        for gone in (rt.imported(run), rt.forget_import(run)):
            with pytest.raises(NotFound, match="no imported run"):
                await gone


async def test_attachments_are_in_the_file_up_to_a_limit(house: House) -> None:
    agent, run = await eventful(house)
    async with house.life(agent) as life:
        everything = loads(await life.rt.export_run(run), "f").blobs
        small = loads(await life.rt.export_run(run, blob_limit=len(SCAN)), "f").blobs
        none = loads(await life.rt.export_run(run, blobs=False), "f").blobs
    assert set(everything.values()) == {SCAN, PHOTO}
    assert set(small.values()) == {len(SCAN), PHOTO}  # the smallest come first
    assert set(none.values()) == {len(SCAN), len(PHOTO)}


async def test_what_was_erased_cannot_be_exported(house: House) -> None:
    agent = house.agent()
    house.checked = False  # only tombstones are left
    async with house.life(agent) as life:
        done = await life.rt.run(agent, HELLO, session="s")
        await life.rt.delete_session("s", by="lee")
        with pytest.raises(NotFound, match="its session was deleted"):
            await life.rt.export_run(done.run_id)
        with pytest.raises(NotFound):
            await life.rt.export_run("r_nobody")


# --- damage -----------------------------------------------------------------------------------------------------


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(file: dict[str, Any]) -> None:
        place: Any = file
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def drop(part: str, n: int) -> Callable[[dict[str, Any]], None]:
    return lambda file: file[part].pop(n)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (put("journal", 2, "body", value='[["run.completed",{}]]'), "entry 3 of the journal does not match"),
        (put("journal", 1, "fence", value=7), "entry 2 of the journal does not match"),
        (drop("journal", 0), "entry 1 of the journal is missing"),
        (drop("journal", -1), "the part 'journal' does not match"),
        (put("messages", 0, "body", value='{"v":1,"role":"user","parts":[]}'), "message 1 of run r_"),
        (put("history", 0, "sum", value="1"), "message of the history 1 of run r_"),
        (put("run", "state", value="completed"), "the part 'run' does not match"),
        (put("effects", 0, "state", value="failed"), "the part 'effects'"),
        (put("asks", 0, "decided_by", value="eve"), "the part 'asks'"),
        (put("definitions", 0, "body", value="{}"), "the definition "),
        (put("blobs", 0, "data", value="AAAA"), "the blob "),
        (put("blobs", 0, "data", value="!"), "the part 'blobs' cannot be read"),
        (put("exported_at", value="2020-01-01T00:00:00+00:00"), "the part 'exported_at'"),
        (put("asks", value=None), "the part 'asks' cannot be read"),
        (lambda file: file.pop("effects"), "the part 'effects' is missing"),
        (lambda file: file.pop("sums"), "the part 'sums' is missing"),
    ],
)
async def test_a_damaged_file_is_refused_and_the_place_is_named(
    exported: tuple[Agent, str, str], elsewhere: str, change: Callable[[dict[str, Any]], None], place: str
) -> None:
    damaged = json.loads(exported[2])
    change(damaged)
    async with Runtime(elsewhere) as rt:
        with pytest.raises(FileDamaged) as refused:
            await rt.import_run(json.dumps(damaged), name="r.json")
        assert f"r.json: {place}" in str(refused.value)
        assert "ondol runs export" in str(refused.value)
        assert await rt.imports() == []


async def test_no_byte_of_what_is_shown_can_change_unnoticed(exported: tuple[Agent, str, str]) -> None:
    file = exported[2]
    whole = loads(file, "f")
    for n in range(0, len(file), 101):
        flipped = file[:n] + chr(ord(file[n]) ^ 1) + file[n + 1 :]
        with contextlib.suppress(FileDamaged, InvalidInput, StoreTooNew):
            assert loads(flipped, "f") == whole, f"{n}: {file[n - 20 : n + 20]!r}"  # it is in the words of 'about'


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
async def test_a_file_that_was_cut_off_names_the_line(exported: tuple[Agent, str, str], share: float) -> None:
    cut = exported[2][: int(len(exported[2]) * share)]
    with pytest.raises(FileDamaged, match=r"^f, line \d+, column \d+: "):
        loads(cut, "f")


async def test_a_file_of_a_newer_version_is_left_alone(exported: tuple[Agent, str, str]) -> None:
    file = json.loads(exported[2])
    for newer in (file | {"v": 2}, file | {"run": file["run"] | {"mood": "good"}}):
        with pytest.raises(StoreTooNew, match="newer version of Ondol"):
            loads(json.dumps(newer), "f")


@pytest.mark.parametrize("other", ["", "{}", "[]", "null", "not json", '{"format": "something"}', "[" * 100_000])
def test_what_is_no_exported_run_is_not_taken_for_one(other: str) -> None:
    with pytest.raises(InvalidInput, match="f holds no exported run"):
        loads(other, "f")


async def test_a_check_of_the_store_finds_a_damaged_import(
    exported: tuple[Agent, str, str], elsewhere: str, tmp_path: Path
) -> None:
    _, run, file = exported
    async with Runtime(elsewhere) as rt:
        await rt.import_run(file)
    path = tmp_path / "elsewhere.db"
    assert sqlite_admin.check(path) == []
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE imports SET body = substr(body, 1, length(body) - 9)")
    (problem,) = sqlite_admin.check(path)
    assert f"the imported run {run}" in problem
    async with Runtime(elsewhere) as rt:
        with pytest.raises(FileDamaged, match=f"the imported run {run}"):
            await rt.imported(run)
