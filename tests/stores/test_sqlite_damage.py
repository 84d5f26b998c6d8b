"""One flipped byte in the file is found by whoever reads it, and nothing is done on its word."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import apsw
import pytest
from crash.lives import Life
from kit import waits

from ondol import Agent, Context, ModelRequest, Runtime, RunWaiting, tool
from ondol.errors import CursorExpired, StoreCorrupt
from ondol.stores.sqlite import SqliteStore
from ondol.stores.sqlite_admin import check
from ondol.testing import FaultPlan, FaultyStore, ScriptedModel, call
from ondol.transactions import Decision

PATIENCE = 10.0  # seconds until somebody who should be told is taken to wait for ever

sent: list[str] = []


@tool(approve=True)
async def send(ctx: Context, to: str) -> str:
    sent.append(to)
    return "sent"


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


def mail() -> Agent:
    return Agent(
        name="mail", model=ScriptedModel([["I shall write.", call("send", to="kim")], "it is done"]), tools=[send]
    )


def talk(*answers: str) -> Agent:
    return Agent(name="talk", model=ScriptedModel(list(answers or ["nice to meet you"])))


def flip(file: Path, text: str, bit: int = 0) -> None:
    """One bit of the file, in the only place where this text stands. With the highest bit it is no text any more."""
    data = bytearray(file.read_bytes())
    assert data.count(text.encode()) == 1, f"{text!r} stands {data.count(text.encode())} times in the file"
    data[data.index(text.encode()) + len(text) // 2] ^= 1 << bit
    file.write_bytes(data)


def settle(file: Path) -> None:
    """Everything is in the file and nothing in a log beside it; and it is SQLite's own checks that find no fault."""
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("VACUUM")  # no old copy of a row is left in a free page


def clear_header(file: Path) -> None:
    file.write_bytes(bytes(100) + file.read_bytes()[100:])


def content(file: Path) -> bytes:
    return file.read_bytes()


def sound(file: Path) -> bool:
    with closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return connection.execute("PRAGMA integrity_check").get == "ok"


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """A run that waits for an approval, and one that nobody drives yet."""
    file = tmp_path / "ondol.db"
    async with Runtime(SqliteStore(file), agents=[mail()]) as rt:
        waiting = await rt.start("mail", "please write to kim", operation_id="waiting", session="mail")
        with pytest.raises(RunWaiting):
            await waiting.result()
    driver = SqliteStore(file)
    await driver.open(lambda: None)
    assert await driver.drives("o", [])
    async with Runtime(SqliteStore(file), agents=[talk()]) as rt:  # it does not drive
        await rt.start("talk", "my name is Eun-ji", operation_id="queued", session="talk")
    await driver.close()
    settle(file)
    return file


@pytest.mark.parametrize("bit", [0, 7])
@pytest.mark.parametrize("what", ["an entry", "a message"])
async def test_a_run_with_a_flipped_bit_is_not_driven_and_says_why(file: Path, what: str, bit: int) -> None:
    flip(file, in_entry(file, "talk") if what == "an entry" else "my name is Eun-ji", bit)
    assert sound(file), "SQLite itself sees nothing wrong"
    agent, plan = talk(), FaultPlan()
    async with Runtime(FaultyStore(SqliteStore(file), plan), agents=[agent]) as rt:
        run = await rt.find_run("queued")
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreCorrupt, match="restore a backup"):
                await run.result()
        assert (await run.refresh()).status == "queued"
        assert isinstance(agent.model, ScriptedModel)
        assert agent.model.requests == [], "the model was not asked"
        assert (await rt.run("talk", "hello", session="another")).text == "nice to meet you"
        assert plan.writes.count("claim") <= 3, "it is not tried again and again"
    assert any(run.id in problem and "checksum" in problem for problem in check(file))


def in_entry(file: Path, agent: str) -> str:
    """What stands in the first entry of the run of this agent."""
    with closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        rows = connection.execute("SELECT body FROM entries JOIN runs ON runs.id = run WHERE agent = ?", (agent,))
        return str(rows.get)


@pytest.mark.parametrize("lost", ["the first", "one in the middle", "the last"])
async def test_a_run_of_which_an_entry_is_missing_is_not_driven_and_says_why(file: Path, lost: str) -> None:
    """As where a bit in the inner pages of the file hides rows: each one that is left matches its checksum."""
    which = {
        "the first": "= 1",
        "one in the middle": "= 2",
        "the last": "= (SELECT max(seq) FROM entries e WHERE e.run = entries.run)",
    }
    with closing(apsw.Connection(str(file))) as connection:
        (waiting,) = connection.execute("SELECT id FROM runs WHERE agent = 'mail'").fetchall()[0]
        connection.execute(f"DELETE FROM entries WHERE run = ? AND seq {which[lost]}", (waiting,))
        assert connection.changes() == 1
    async with Runtime(SqliteStore(file), agents=[mail(), talk()]) as rt:
        run = await rt.get_run(waiting)
        (ask,) = await run.asks()
        await ask.approve(by="lee")
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreCorrupt, match="restore a backup"):
                await run.result()
            with pytest.raises((StoreCorrupt, CursorExpired)):
                [event async for event in run.events()]
        assert (await rt.run("talk", "hello", session="another")).text == "nice to meet you"
    assert sent == []
    assert any(run.id in problem for problem in check(file))


@pytest.mark.parametrize("lost", [1, 2, 3], ids=["what was asked", "the call", "the result"])
async def test_a_run_that_lacks_a_message_of_its_own_is_not_driven_and_says_why(file: Path, lost: int) -> None:
    twice = Agent("twice", model=ScriptedModel([call("send", to="kim"), call("send", to="lee"), "done"]), tools=[send])
    async with Runtime(SqliteStore(file), agents=[twice]) as rt:
        run = await rt.start(twice, "please write to kim and lee", session="two")
        (first,) = await waits(run)
        await first.approve()
        (second,) = await waits(run)
    lose_message(file, run.id, lost)
    async with Runtime(SqliteStore(file), agents=[twice, talk()]) as rt:
        await (await rt.get_ask(second.id)).approve()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreCorrupt, match=f"run {run.id} lacks message {lost}"):
                await (await rt.get_run(run.id)).result()
        assert sent == ["kim"]
        assert (await rt.run("talk", "hello", session="another")).text == "nice to meet you"
    assert any(f"{run.id}: message {lost} is missing" in problem for problem in check(file))


@pytest.mark.parametrize("lost", [(0, 2), (1, 1), (2, 2)], ids=["in the first turn", "in the middle", "the last"])
async def test_a_turn_is_not_had_where_what_was_said_before_is_missing(file: Path, lost: tuple[int, int]) -> None:
    async with Runtime(SqliteStore(file), agents=[talk()]) as rt:
        runs = [await rt.run("talk", f"message {n}", session="long") for n in range(3)]
    turn, ordinal = lost
    lose_message(file, runs[turn].run_id, ordinal)
    agent = talk()
    async with Runtime(SqliteStore(file), agents=[agent]) as rt:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreCorrupt, match="session long lacks message"):
                await rt.run("talk", "and now?", session="long")
        assert isinstance(agent.model, ScriptedModel)
        assert agent.model.requests == [], "the model was not asked"
        assert (await rt.run("talk", "hello", session="another")).text == "nice to meet you"


def lose_message(file: Path, run: str, ordinal: int) -> None:
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("DELETE FROM messages WHERE run = ? AND ordinal = ?", (run, ordinal))
        assert connection.changes() == 1


async def test_a_message_that_became_another_kind_of_value_is_damaged_too(file: Path) -> None:
    """One bit in the head of a row makes a text of bytes."""
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("UPDATE messages SET body = CAST(body AS TEXT)")
    async with Runtime(SqliteStore(file), agents=[talk()]) as rt:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreCorrupt, match="does not match its checksum"):
                await (await rt.find_run("queued")).result()
    assert any("does not match its checksum" in problem for problem in check(file))


async def test_an_approval_moves_nothing_when_the_call_it_is_about_was_damaged(file: Path) -> None:
    flip(file, "I shall write.")
    assert sound(file)
    async with Runtime(SqliteStore(file), agents=[mail()]) as rt:
        run = await rt.find_run("waiting")
        (ask,) = await run.asks()
        await ask.approve()
        with pytest.raises(StoreCorrupt, match="does not match its checksum"):
            await (await rt.find_run("waiting")).result()
        assert sent == []
        with pytest.raises(StoreCorrupt):
            await run.messages()


async def test_a_damaged_message_of_the_history_stops_the_next_turn_of_its_session_only(tmp_path: Path) -> None:
    file = tmp_path / "ondol.db"
    async with Runtime(SqliteStore(file), agents=[talk("hello Eun-ji")]) as rt:
        await rt.run("talk", "my name is Eun-ji", session="talk")
    settle(file)
    flip(file, "my name is Eun-ji")
    assert sound(file)
    agent = talk("you never told me")
    async with Runtime(SqliteStore(file), agents=[agent]) as rt:
        run = await rt.start("talk", "what is my name?", session="talk")
        async with asyncio.timeout(PATIENCE):
            with pytest.raises((StoreCorrupt, RunWaiting)) as told:
                await run.result()
        assert isinstance(agent.model, ScriptedModel)
        assert agent.model.requests == []
        assert (await rt.run("talk", "hello", session="another")).text == "you never told me"
        said = f"{told.value} {run.error}" if (await run.refresh()).status != "parked" else str(run.error)
        assert "does not match its checksum" in said, "whoever waits, or has to decide, is told why"
        with pytest.raises(StoreCorrupt):
            await (await rt.get_session("talk")).messages()


@pytest.mark.parametrize("bit", [0, 7])
async def test_a_damaged_entry_is_not_shown_as_an_event(file: Path, bit: int) -> None:
    flip(file, in_entry(file, "talk"), bit)
    async with Runtime(SqliteStore(file), agents=[]) as rt:
        run = await rt.find_run("queued")
        with pytest.raises(StoreCorrupt):
            _ = [event async for event in run.events()]


async def test_a_file_cut_short_is_refused_and_left_as_it_is(file: Path) -> None:
    os.truncate(file, os.stat(file).st_size // 2)
    before = content(file)
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        await Runtime(SqliteStore(file), agents=[talk()]).open()
    assert content(file) == before


async def test_a_damaged_first_page_is_refused_and_left_as_it_is(file: Path) -> None:
    clear_header(file)
    before = content(file)
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        await Runtime(SqliteStore(file), agents=[talk()]).open()
    assert content(file) == before


# --- what stands in a row of its own ----------------------------------------------------------------------------


@tool
async def remember(ctx: Context, name: str) -> str:
    ctx.state["name"] = name
    return "kept"


def keeper() -> Agent:
    return Agent("keeper", model=ScriptedModel([[call("remember", name="Eun-ji")], "I keep Mi-rae"]), tools=[remember])


@pytest.fixture
async def kept(tmp_path: Path) -> Path:
    """A completed run, whose answer is in its reply and whose tool wrote to the session's state."""
    file = tmp_path / "ondol.db"
    async with Runtime(SqliteStore(file), agents=[keeper()]) as rt:
        await rt.run("keeper", "keep my name", session="kept", operation_id="op")
    settle(file)
    return file


def damage(file: Path, table: str, column: str, old: str, new: str) -> None:
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute(
            f"UPDATE {table} SET {column} = replace({column}, ?1, ?2) WHERE instr({column}, ?1)", (old, new)
        )  # fmt: skip
        assert connection.total_changes() == 1
        assert new in str(connection.execute(f"SELECT {column} FROM {table}").get)


async def test_a_damaged_reply_is_not_given_to_whoever_asks_again(kept: Path) -> None:
    damage(kept, "runs", "reply", "Mi-rae", "Mi-raf")
    async with Runtime(SqliteStore(kept), agents=[keeper()]) as rt:
        for again in (rt.find_run("op"), rt.start("keeper", "keep my name", session="kept", operation_id="op")):
            with pytest.raises(StoreCorrupt, match="the reply of run r_"):
                await (await again).result()
    assert any("the reply of run" in problem for problem in check(kept))


@pytest.mark.parametrize(("old", "new"), [("Eun-ji", "Eun-jj"), ('"', "!")])
async def test_a_damaged_session_state_is_neither_shown_nor_handed_to_a_tool(kept: Path, old: str, new: str) -> None:
    damage(kept, "sessions", "state", old, new)
    agent = keeper()
    async with Runtime(SqliteStore(kept), agents=[agent]) as rt:
        with pytest.raises(StoreCorrupt, match="the state of session 'kept' does not match its checksum"):
            _ = (await rt.get_session("kept")).state
        run = await rt.start("keeper", "keep my name", session="kept", operation_id="next")
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreCorrupt, match="the state of session 'kept'"):
                await run.result()
        assert isinstance(agent.model, ScriptedModel)
        assert agent.model.requests == []
    assert any("the state of session 'kept'" in problem for problem in check(kept))


async def test_a_damaged_state_can_be_replaced_by_hand(kept: Path) -> None:
    damage(kept, "sessions", "state", "Eun-ji", "Eun-jj")
    async with Runtime(SqliteStore(kept), agents=[keeper()]) as rt:
        session = await (await rt.get_session("kept")).set_state({"name": "Eun-ji"})
        assert session.state == {"name": "Eun-ji"}
        assert (await session.set_title("mended")).state == {"name": "Eun-ji"}
        with pytest.raises(StoreCorrupt, match="state of session 'kept' was damaged, and mended by hand"):
            await rt.fork(await rt.find_run("op"), at_step=1)
    assert check(kept) == []


@pytest.mark.parametrize(
    ("where", "old", "what"),
    [
        ("runs.state_before", "first", "the state of"),
        ("replaced.body", "Eun-ji", "the state of"),
        ("replaced.body", "a rule", "what is pinned in"),
    ],
)
async def test_what_a_session_had_before_is_found_damaged_and_no_fork_begins_with_it(
    tmp_path: Path, where: str, old: str, what: str
) -> None:
    file, (table, column) = tmp_path / "ondol.db", where.split(".")
    agents = [keeper(), talk()]
    async with Runtime(SqliteStore(file), agents=agents) as rt:
        await rt.write_session("kept", state={"name": "first"})
        await rt.pin("kept", "a rule")
        runs = [await rt.start(agent, "keep my name", session="kept", operation_id=agent.name) for agent in agents]
        await runs[1].result()
        await rt.write_session("kept", state={"name": "by hand"})
        await rt.unpin("kept", "p1")
    settle(file)
    damage(file, table, column, old, old[::-1])
    async with Runtime(SqliteStore(file), agents=agents) as rt:
        with pytest.raises(StoreCorrupt, match=f"{what} session 'kept' does not match its checksum"):
            await rt.fork(runs[old == "Eun-ji"].id, at_step=1)
    assert [what in problem for problem in check(file)] == [True]


async def test_what_requests_carry_is_not_believed_where_it_is_damaged(tmp_path: Path) -> None:
    """A pinned rule, in a request that is made again since its process died of it."""
    file, asked = tmp_path / "ondol.db", asyncio.Event()

    async def never(request: ModelRequest) -> str:
        asked.set()
        await asyncio.get_running_loop().create_future()
        return ""

    async with Life(f"sqlite:///{file}", Agent("talk", model=ScriptedModel(never))) as life:
        await life.rt.write_session("s", title="of rules")
        await life.rt.pin("s", "refund nothing", by="lee")
        run = await life.rt.start("talk", "hi", session="s")
        await asked.wait()
        life.die()
    damage(file, "carried", "body", "nothing", "anything")
    agent = talk()
    async with Runtime(SqliteStore(file), agents=[agent]) as rt:
        with pytest.raises(StoreCorrupt, match="which requests carry, does not match its digest: restore a backup"):
            await (await rt.get_run(run.id)).result()
        with pytest.raises(StoreCorrupt, match="which requests carry"):
            await rt.context(run.id)
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.requests == []
    assert ["which requests carry" in str(problem) for problem in check(file)] == [True]


async def test_a_damaged_definition_is_not_shown_as_what_the_model_was_told(kept: Path) -> None:
    damage(kept, "definitions", "body", '"once"', '"read"')
    async with Runtime(SqliteStore(kept), agents=[keeper()]) as rt:
        with pytest.raises(StoreCorrupt, match=r"definition .* does not match its digest"):
            await rt.context((await rt.find_run("op")).id)
    assert ["definition" in str(problem) for problem in check(kept)] == [True]


async def test_nobody_decides_about_arguments_that_were_damaged(file: Path) -> None:
    """Whoever approved them would have seen another address than the one that is written to."""
    damage(file, "asks", "arguments", "kim", "kin")
    async with Runtime(SqliteStore(file), agents=[mail()]) as rt:
        run = await rt.find_run("waiting")
        (ask,) = await run.asks()
        with pytest.raises(StoreCorrupt, match="its arguments do not match their hash: restore a backup"):
            await ask.approve(by="lee")
        assert (await run.cancel(by="lee")).status == "cancelled"
    assert sent == []
    assert ["its arguments" in str(problem) for problem in check(file)] == [True]


@pytest.mark.parametrize(("column", "old"), [("decision", "approve"), ("arguments", "kim")])
async def test_no_model_is_told_a_damaged_decision(file: Path, column: str, old: str) -> None:
    async with Runtime(SqliteStore(file), agents=[mail()]) as rt:
        run = await rt.find_run("waiting")
        (ask,) = await run.asks()
        await ask.approve(by="lee")
        await run.result(through_asks=True)
        await rt.compact_session("mail", keep=0, model_free=True)
    settle(file)
    damage(file, "asks", column, old, old[::-1])
    agent = mail()
    async with Runtime(SqliteStore(file), agents=[agent]) as rt:
        with pytest.raises(StoreCorrupt, match=r"the decision of ask|its arguments do not match"):
            await rt.run("mail", "and now?", session="mail")
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.requests == []


@pytest.mark.parametrize(
    ("where", "old", "what"),
    [
        ("compactions.seen", "keep my name", "what models are shown of"),
        ("facts.body", "Eun-ji", "the fact"),
        ("asks.default_answer", "usual", "the default answer of"),
    ],
)
async def test_a_check_looks_at_each_checksum(tmp_path: Path, where: str, old: str, what: str) -> None:
    file, (table, column) = tmp_path / "ondol.db", where.split(".")

    @tool(effect="steps")
    async def order(ctx: Context) -> str:
        return str(await ctx.ask("What?", schema=str, default="the usual", expires=timedelta(days=1)))

    waiter = Agent("waiter", model=ScriptedModel([[call("order")], "done"]), tools=[order])
    async with Runtime(SqliteStore(file), agents=[keeper(), waiter]) as rt:
        await rt.run("keeper", "keep my name", session="kept")
        await rt.compact_session("kept", keep=0, model_free=True)
        await rt.memory.add("is called Eun-ji", agent="keeper", user="kim")
        with pytest.raises(RunWaiting):
            await rt.run("waiter", "hi")
    assert check(file) == []
    damage(file, table, column, old, old[::-1])
    assert [what in str(problem) for problem in check(file)] == [True]


async def test_a_damaged_decision_is_found(file: Path) -> None:
    async with Runtime(SqliteStore(file), agents=[mail()]) as rt:
        run = await rt.find_run("waiting")
        (ask,) = await run.asks()
        await ask.deny(by="lee", reason="not now")
        await run.result()
    damage(file, "asks", "decision", "deny", "dent")
    async with Runtime(SqliteStore(file), agents=[mail()]) as rt:
        with pytest.raises(StoreCorrupt, match="the decision of ask"):
            await rt.get_ask(ask.id)
        with pytest.raises(StoreCorrupt, match="the decision of ask"):
            await rt.decide(ask, Decision(kind="deny"), by="lee")
    assert any("the decision of ask" in problem for problem in check(file))


async def test_what_the_first_version_wrote_has_no_checksum_and_is_read(kept: Path) -> None:
    with closing(apsw.Connection(str(kept))) as connection:
        connection.execute("UPDATE runs SET reply_sum = NULL; UPDATE sessions SET state_sum = NULL")
    async with Runtime(SqliteStore(kept), agents=[keeper()]) as rt:
        assert (await (await rt.find_run("op")).result()).text == "I keep Mi-rae"
        assert (await rt.get_session("kept")).state == {"name": "Eun-ji"}
    assert check(kept) == []
