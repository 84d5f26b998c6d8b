"""A store that is checked says what is wrong with it, a backup is whole or absent, a restored store repeats nothing."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import resource
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest

from ondol import Agent, AlreadyDecided, Clock, Context, Runtime, RunWaiting, tool
from ondol.errors import ClaimLost, StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreTooNew
from ondol.queries import get_meta
from ondol.stores.migrations import migrations
from ondol.stores.sqlite import SqliteStore
from ondol.stores.sqlite_admin import FILE, GENERATION, backup, check, migrate, problems, restore
from ondol.testing import ManualClock, Process, ScriptedModel, call
from ondol.transactions import Claim, Tx, note_down

INVOICE = b"%PDF an invoice"


@dataclass
class World:
    """What tools reach, and a place at which one of them stands until it is let go."""

    sent: list[str] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)


@tool
async def send(ctx: Context[World], to: str) -> str:
    ctx.deps.sent.append(to)
    return f"sent to {to}"


@tool
async def hold(ctx: Context[World]) -> str:
    ctx.deps.sent.append("held")
    ctx.deps.reached.set()
    await ctx.deps.go_on.wait()
    return "held"


@tool(approve=True)
async def pay(ctx: Context[World], amount: int) -> str:
    ctx.deps.sent.append(f"paid {amount}")
    return "paid"


def agents() -> dict[str, Agent]:
    scripts = {
        "mail": [[call("send", to="kim")], "mail is sent"],
        "hold": [[call("hold")], "it was held"],
        "pay": [[call("pay", amount=3)], "it is paid"],
        "talk": ["hello"],
    }
    tools = [send, hold, pay]
    return {name: Agent(name=name, model=ScriptedModel(s), tools=tools) for name, s in scripts.items()}


@asynccontextmanager
async def runtime(file: Path, world: World | None = None, clock: Clock | None = None) -> AsyncIterator[Runtime]:
    async with Runtime(SqliteStore(file), agents=list(agents().values()), deps=world or World(), clock=clock) as rt:
        yield rt


@dataclass
class Lived:
    """A store with a run of each kind in it, by what became of it. ``running`` and ``queued`` are so at this moment."""

    rt: Runtime
    world: World
    runs: dict[str, str]

    async def rest(self) -> None:
        self.world.go_on.set()
        await (await self.rt.get_run(self.runs["running"])).result()


@asynccontextmanager
async def lived_in(file: Path) -> AsyncIterator[Lived]:
    world = World()
    async with runtime(file, world) as rt:
        runs = {}
        completed = await rt.start(
            "mail", "write to kim", session="one", operation_id="op-completed", attachments=[INVOICE]
        )
        await completed.result()
        runs["completed"] = completed.id
        waiting = await rt.start("pay", "pay it", session="two", operation_id="op-waiting")
        with pytest.raises(RunWaiting):
            await waiting.result()
        runs["waiting"] = waiting.id
        cancelled = await rt.start("pay", "pay this too", session="three", operation_id="op-cancelled")
        with pytest.raises(RunWaiting):
            await cancelled.result()
        runs["cancelled"] = (await cancelled.cancel()).id
        running = await rt.start("hold", "hold on", session="one", operation_id="op-running")
        await world.reached.wait()
        runs["running"] = running.id
        runs["queued"] = (await rt.start("mail", "and mail", session="one", operation_id="op-queued")).id
        await rt.write_session("gone", title="a title")
        await rt.run("talk", "a secret", session="gone")
        yield Lived(rt, world, runs)
        world.go_on.set()


@pytest.fixture
async def lived(tmp_path: Path) -> AsyncIterator[Lived]:
    async with lived_in(tmp_path / "ondol.db") as lived:
        yield lived


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """A store that nobody has open, with a run of each kind that is at rest."""
    async with lived_in(tmp_path / "ondol.db") as lived:
        await lived.rest()
        await (await lived.rt.find_run("op-queued")).result()
    with closing(apsw.Connection(str(tmp_path / "ondol.db"))) as connection:
        connection.execute("PRAGMA wal_checkpoint")  # as it is closed, nothing is left beside the file
    return tmp_path / "ondol.db"


def everything(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def change(file: Path, text: str) -> None:
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(text)
        assert connection.total_changes() or text.startswith(("DROP", "PRAGMA")), "nothing was changed"


def rows(file: Path, text: str) -> list[tuple[object, ...]]:
    with closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return connection.execute(text).fetchall()


def names(folder: Path) -> list[str]:
    """What is in a folder, but for SQLite's index of a log, and a log of nothing."""
    empty = [f.name for f in folder.glob("*-wal") if not f.stat().st_size]
    return sorted(f.name for f in folder.iterdir() if not f.name.endswith("-shm") and f.name not in empty)


def garble(file: Path) -> None:
    """All pages but the first two."""
    data = file.read_bytes()
    file.write_bytes(data[:8192] + os.urandom(len(data) - 8192))


def only_blob(file: Path) -> Path:
    (blob,) = (f for f in SqliteStore(file).blobs.rglob("*") if f.is_file())
    return blob


@contextmanager
def no_file_may_grow_beyond(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- check ------------------------------------------------------------------------------------------------------


async def test_a_healthy_store_has_no_problems_at_work_and_at_rest(lived: Lived, tmp_path: Path) -> None:
    file = tmp_path / "ondol.db"
    assert check(file) == []
    await lived.rest()
    assert check(file) == []
    await lived.rt.close()
    assert check(file) == []


async def test_check_changes_nothing(file: Path, tmp_path: Path) -> None:
    before = everything(tmp_path)
    assert check(file) == []
    assert everything(tmp_path) == before


async def test_check_reads_what_a_crash_left_and_changes_nothing(lived: Lived, tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    shutil.copytree(tmp_path / "ondol.db.blobs", crashed / "ondol.db.blobs")
    for name in ("ondol.db", "ondol.db-wal"):
        shutil.copy(tmp_path / name, crashed / name)
    before = everything(crashed)
    assert check(crashed / "ondol.db") == []
    after = everything(crashed)
    after.pop("ondol.db-shm", None)  # SQLite's index of the log, made by whoever comes first
    assert after == before


async def test_check_gives_no_false_alarm_while_others_write(tmp_path: Path) -> None:
    file = tmp_path / "ondol.db"
    async with runtime(file) as rt:
        await rt.run("mail", "hi", session="0")
        working = asyncio.create_task(_work(rt, 60))
        looks = 0
        while not working.done():
            assert await asyncio.to_thread(check, file) == []
            looks += 1
        await working
    assert looks > 1


async def _work(rt: Runtime, turns: int) -> None:
    for n in range(turns):
        await rt.run("mail", "hi", session=str(n % 3), attachments=[b"number %d" % n])
        if n % 10 == 9:
            await rt.delete_session(str(n % 3))


DAMAGE: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "a flipped byte in an entry": (
        lambda f: change(f, "UPDATE entries SET body = replace(body, 'effect', 'effecT') WHERE body LIKE '%effect%'"),
        ["does not match its checksum", "restore a backup"],
    ),
    "an entry that is no text any more": (
        lambda f: change(f, "UPDATE entries SET body = CAST(x'c1' || CAST(body AS BLOB) AS TEXT)"),
        ["does not match its checksum"],
    ),
    "a message that became a text": (
        lambda f: change(f, "UPDATE messages SET body = CAST(body AS TEXT)"),
        ["message", "does not match its checksum"],
    ),
    "a name that is no text any more": (
        lambda f: change(f, "UPDATE runs SET agent = CAST(x'c1' AS TEXT)"),
        ["not valid", "restore a backup"],
    ),
    "an entry that is gone": (
        lambda f: change(f, "DELETE FROM entries WHERE seq = 2 AND run IN (SELECT id FROM runs WHERE agent = 'pay')"),
        ["entry 2 is followed by"],
    ),
    "the last entry is gone": (
        lambda f: change(f, "DELETE FROM entries WHERE seq IN (SELECT max(seq) FROM entries GROUP BY run)"),
        ["entries were written", "are there"],
    ),
    "another fence at an entry": (
        lambda f: change(f, "UPDATE entries SET fence = fence + 1"),
        ["does not match its checksum"],
    ),
    "an entry of another run": (
        lambda f: change(f, "UPDATE entries SET body = (SELECT max(body) FROM entries)"),
        ["does not match its checksum"],
    ),
    "a flipped byte in a message": (
        lambda f: change(f, "UPDATE messages SET body = CAST(replace(CAST(body AS TEXT), 'pay it', 'pay 1t') AS BLOB)"),
        ["message", "does not match its checksum"],
    ),
    "a message that is gone": (
        lambda f: change(f, "DELETE FROM messages WHERE ordinal = 1"),
        ["message 1 is missing"],
    ),
    "a run that is said to be over": (
        lambda f: change(f, "UPDATE runs SET state = 'completed' WHERE state = 'waiting'"),
        ["is completed, its journal says waiting"],
    ),
    "a fence that fell": (
        lambda f: change(f, "UPDATE runs SET fence = 0"),
        ["has fence 0, its journal"],
    ),
    "an effect that is said to have an outcome": (
        lambda f: change(f, "UPDATE effects SET state = 'succeeded' WHERE state = 'asked'"),
        ["call 0 is succeeded", "its journal says asked"],
    ),
    "an effect that is gone": (
        lambda f: change(f, "DELETE FROM effects"),
        ["call 0 has no row"],
    ),
    "an ask that is gone": (
        lambda f: change(f, "DELETE FROM asks"),
        ["is open only in its journal"],
    ),
    "an ask about another amount": (
        lambda f: change(f, "UPDATE asks SET arguments = replace(arguments, '3', '30')"),
        ["ask", "arguments do not match their hash"],
    ),
    "a definition that is another": (
        lambda f: change(f, "UPDATE definitions SET body = replace(body, 'pay', 'buy')"),
        ["definition", "does not match its digest"],
    ),
    "a row that belongs to nothing": (
        lambda f: change(f, "DELETE FROM sessions WHERE id = 'two'"),
        ["a row of runs belongs to a row of sessions that is not there"],
    ),
    "an index that is gone": (
        lambda f: change(f, "DROP INDEX runs_one_active"),
        ["index runs_one_active is missing"],
    ),
    "a blob that is gone": (
        lambda f: only_blob(f).unlink(),
        ["blob", "cannot be read"],
    ),
    "a flipped byte in a blob": (
        lambda f: only_blob(f).write_bytes(INVOICE.replace(b"a", b"A")),
        ["does not match its digest"],
    ),
    "pages of garbage": (
        lambda f: garble(f),
        ["restore a backup"],
    ),
    "a file cut short": (
        lambda f: os.truncate(f, f.stat().st_size // 2),
        ["restore a backup"],
    ),
    "a first page of zeros": (
        lambda f: f.write_bytes(bytes(4096) + f.read_bytes()[4096:]),
        ["not a SQLite file", "restore a backup"],
    ),
    "an empty file": (
        lambda f: os.truncate(f, 0),
        ["is empty", "restore a backup"],
    ),
    "a file that is gone": (
        lambda f: f.unlink(),
        ["does not exist"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_is_named_with_the_next_move(file: Path, what: str) -> None:
    damage, words = DAMAGE[what]
    damage(file)
    before = everything(file.parent)
    problems = check(file)
    assert any(all(word in problem for word in words) for problem in problems), problems
    assert all(": " in problem for problem in problems), "each names the thing and the next move"
    assert everything(file.parent) == before


async def test_what_a_newer_version_wrote_is_not_taken_for_damage(file: Path) -> None:
    change(file, "UPDATE entries SET v = 99 WHERE run IN (SELECT id FROM runs WHERE agent = 'mail')")
    found = problems(file)
    assert {p.code for p in found} == {"store_too_new"}
    assert all(re.search(r"run r_\w+ was written by a newer version .* upgrade", str(p)) for p in found)


# --- backup -----------------------------------------------------------------------------------------------------


async def test_a_backup_is_a_whole_store(lived: Lived, tmp_path: Path) -> None:
    dest = tmp_path / "backup"
    assert backup(tmp_path / "ondol.db", dest) == dest
    await lived.rest()
    assert check(dest / FILE) == []
    assert only_blob(dest / FILE).read_bytes() == INVOICE
    states = dict(rows(dest / FILE, "SELECT id, state FROM runs"))
    assert {name: states[run] for name, run in lived.runs.items()} == {name: name for name in lived.runs}
    assert names(tmp_path) == ["backup", "ondol.db", "ondol.db-wal", "ondol.db.blobs", "ondol.db.lock"]


async def test_a_backup_shows_one_instant_while_others_write(tmp_path: Path) -> None:
    """Two keys always change together; and no run, message or blob is half there."""
    file = tmp_path / "ondol.db"
    store = SqliteStore(file)
    async with runtime(file) as rt:
        await store.open(lambda: None)
        stop = asyncio.Event()

        async def write_on() -> None:
            n = 0
            while not stop.is_set():
                await store.write(_set_both, str(n))
                n += 1

        await store.write(_set_both, "first")
        writing = [asyncio.create_task(write_on()), asyncio.create_task(_work(rt, 10_000))]
        for n in range(4):
            await asyncio.to_thread(backup, file, tmp_path / f"backup-{n}")
        stop.set()
        await writing[0]
        writing[1].cancel()
        await asyncio.gather(writing[1], return_exceptions=True)
        await store.close()
    for n in range(4):
        copy = tmp_path / f"backup-{n}" / FILE
        assert check(copy) == []
        ((left,), (right,)) = rows(copy, "SELECT value FROM meta WHERE key IN ('left', 'right') ORDER BY key")
        assert left == right


def _set_both(value: str) -> Tx[None]:
    yield [("meta.set", {"key": "left", "value": value}), ("meta.set", {"key": "right", "value": value})]


async def test_a_backup_overwrites_nothing(file: Path, tmp_path: Path) -> None:
    for name in ("folder", "file", "link"):
        there = tmp_path / name
        if name == "folder":
            there.mkdir()
        elif name == "file":
            there.write_text("mine")
        else:
            there.symlink_to(tmp_path / "nowhere")
        before = everything(tmp_path)
        with pytest.raises(StoreError, match="exists: name another folder"):
            backup(file, there)
        assert everything(tmp_path) == before


async def test_a_backup_of_what_is_no_store_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear Sir or Madam, " * 100)
    with closing(apsw.Connection(str(tmp_path / "theirs.db"))) as connection:
        connection.execute("CREATE TABLE addresses (a)")
    before = everything(tmp_path)
    for name, words in (
        ("nothing.db", "does not exist"),
        ("letter.txt", "not a SQLite file"),
        ("theirs.db", "no store"),
    ):
        with pytest.raises(StoreError, match=f"{name} .*{words}"):
            backup(tmp_path / name, tmp_path / "backup")
        assert everything(tmp_path) == before
        assert not (tmp_path / "backup").exists()


async def test_a_backup_that_the_disk_cannot_take_leaves_nothing(file: Path, tmp_path: Path) -> None:
    with no_file_may_grow_beyond(8192), pytest.raises(StoreError):
        backup(file, tmp_path / "backup")
    assert names(tmp_path) == ["ondol.db", "ondol.db.blobs", "ondol.db.lock"]
    backup(file, tmp_path / "backup")
    assert check(tmp_path / "backup" / FILE) == []


async def test_a_blob_that_the_disk_cannot_take_is_told_as_such(file: Path, tmp_path: Path) -> None:
    async with runtime(file) as rt:
        await rt.run("talk", "read", attachments=[os.urandom(2_000_000)], session="large")
    before = names(tmp_path)
    with no_file_may_grow_beyond(1_000_000), pytest.raises(StoreFull):
        backup(file, tmp_path / "backup")
    assert names(tmp_path) == before


async def test_damaged_pages_are_found_by_a_backup_and_leave_none(file: Path, tmp_path: Path) -> None:
    garble(file)
    with pytest.raises(StoreCorrupt, match=r"ondol\.db is damaged") as raised:
        backup(file, tmp_path / "backup")
    assert str(file) in str(raised.value)
    assert not (tmp_path / "backup").exists()


async def test_a_lost_blob_does_not_stand_in_the_way_of_a_backup_and_is_told(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blob = only_blob(file)
    blob.write_bytes(b"something else")
    backup(file, tmp_path / "backup")
    assert blob.name in caplog.text
    (problem,) = check(tmp_path / "backup" / FILE)
    assert blob.name in problem


async def test_a_name_may_have_signs_that_mean_something_elsewhere(tmp_path: Path) -> None:
    file, dest = tmp_path / "a 100%?#&'.db", tmp_path / "it's a backup?"
    async with runtime(file) as rt:
        await rt.run("talk", "read", attachments=[INVOICE])
    assert check(file) == []
    backup(file, dest)
    restore(dest, tmp_path / "again %41?mode=memory.db")
    assert check(tmp_path / "again %41?mode=memory.db") == []


async def test_a_name_that_is_not_in_utf_8_is_refused_as_that(file: Path, tmp_path: Path) -> None:
    latin = tmp_path / os.fsdecode(b"caf\xe9")
    latin.mkdir()
    backup(file, tmp_path / "backup")
    before = everything(tmp_path)
    for refused in (
        lambda: backup(file, latin / "backup"),
        lambda: restore(tmp_path / "backup", latin / "ondol.db"),
        lambda: migrate(latin / "ondol.db"),
    ):
        with pytest.raises(StoreError, match="is not in UTF-8, as SQLite wants it: rename"):
            refused()
    with pytest.raises(StoreError, match="is not in UTF-8"):
        async with runtime(latin / "ondol.db"):
            pass
    assert "is not in UTF-8" in check(latin / "ondol.db")[0]
    assert everything(tmp_path) == before


async def test_a_store_behind_a_link_is_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "ondol.db")
    async with runtime(tmp_path / "data" / "ondol.db") as rt:
        await rt.run("talk", "read", attachments=[INVOICE])
    assert check(tmp_path / "link.db") == []
    backup(tmp_path / "link.db", tmp_path / "backup")
    assert check(tmp_path / "backup" / FILE) == []
    assert only_blob(tmp_path / "backup" / FILE).read_bytes() == INVOICE


async def test_what_was_erased_is_not_in_a_backup(file: Path, tmp_path: Path) -> None:
    backup(file, tmp_path / "before")
    assert b"a secret" in (tmp_path / "before" / FILE).read_bytes()
    async with runtime(file) as rt:
        await rt.delete_session("gone", cancel=True)
    backup(file, tmp_path / "after")
    assert b"a secret" not in (tmp_path / "after" / FILE).read_bytes()


ADMIN = """
import sys
from ondol.stores import sqlite_admin
verb, *paths = sys.argv[1:]
print("begins")
getattr(sqlite_admin, verb)(*paths)
print("done")
"""


@contextmanager
def stands_still_at(blob: Path) -> Iterator[None]:
    """Whoever reads this blob waits for ever: in its place is a pipe into which nobody writes."""
    data = blob.read_bytes()
    blob.unlink()
    os.mkfifo(blob)
    try:
        yield
    finally:
        blob.unlink(missing_ok=True)
        blob.write_bytes(data)


async def reads(pipe: Path) -> int:
    """Return when somebody has opened the pipe to read it."""
    return await asyncio.to_thread(os.open, pipe, os.O_WRONLY)


async def test_a_backup_that_is_killed_is_absent_and_the_next_one_is_whole(file: Path, tmp_path: Path) -> None:
    dest, blob = tmp_path / "backup", only_blob(file)
    with stands_still_at(blob):
        async with Process(["-c", ADMIN, "backup", str(file), str(dest)]) as process:
            await process.line("begins")
            pipe = await reads(blob)
            with pytest.raises(StoreBusy, match="being written by another process"):
                backup(file, dest)
            process.kill()
            assert await process.wait() == -9
            os.close(pipe)
    assert not dest.exists()
    backup(file, dest)
    assert check(dest / FILE) == []
    assert only_blob(dest / FILE).read_bytes() == INVOICE
    assert names(tmp_path) == ["backup", "ondol.db", "ondol.db.blobs", "ondol.db.lock"]


@pytest.fixture
async def two_blobs(tmp_path: Path) -> tuple[Runtime, list[Path]]:
    """A runtime with a session for each of two blobs, named by the digest that comes first and second."""
    rt = Runtime(SqliteStore(tmp_path / "ondol.db"), agents=list(agents().values()), clock=ManualClock())
    await rt.open()
    digests = [await _blob_of(rt, data) for data in (b"one", b"two")]
    store = SqliteStore(tmp_path / "ondol.db")
    return rt, [store._blob("default", digest) for digest in sorted(digests)]


async def _blob_of(rt: Runtime, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    await rt.run("talk", "read", attachments=[data], session=digest)
    return digest


async def erase(rt: Runtime, blob: Path) -> None:
    """Its session is deleted, and a day later its bytes."""
    await rt.delete_session(blob.name)
    assert isinstance(rt.clock, ManualClock)
    rt.clock.advance(days=2)
    assert await rt._working.collect_blobs() == 1


async def test_a_blob_that_is_collected_during_a_backup_is_not_missed_in_it(
    two_blobs: tuple[Runtime, list[Path]], tmp_path: Path
) -> None:
    rt, (first, second) = two_blobs
    data = first.read_bytes()
    with stands_still_at(first):
        working = asyncio.create_task(asyncio.to_thread(backup, tmp_path / "ondol.db", tmp_path / "backup"))
        pipe = await reads(first)
        await erase(rt, second)
        os.write(pipe, data)
        os.close(pipe)
        await working
    assert check(tmp_path / "backup" / FILE) == []
    await rt.close()


async def test_a_blob_that_is_collected_during_a_check_is_no_problem(
    two_blobs: tuple[Runtime, list[Path]], tmp_path: Path
) -> None:
    rt, (first, _) = two_blobs
    with stands_still_at(first):
        looking = asyncio.create_task(asyncio.to_thread(check, tmp_path / "ondol.db"))
        pipe = await reads(first)
        await erase(rt, first)
        os.write(pipe, b"nothing that has this digest")
        os.close(pipe)
        assert await looking == []
    await rt.close()


# --- restore ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def backed_up(tmp_path: Path) -> tuple[Path, Lived]:
    """A backup made while runs were running, waiting and queued."""
    (tmp_path / "source").mkdir()
    async with lived_in(tmp_path / "source" / "ondol.db") as lived:
        backup(tmp_path / "source" / "ondol.db", tmp_path / "backup")
    return tmp_path / "backup", lived


async def test_a_restored_store_is_a_new_generation_in_which_nothing_goes_on_by_itself(
    backed_up: tuple[Path, Lived], tmp_path: Path
) -> None:
    folder, lived = backed_up
    file = tmp_path / "restored.db"
    before = everything(folder)
    restore(folder, file)
    assert everything(folder) == before
    assert check(file) == []
    assert rows(file, f"SELECT value FROM meta WHERE key = '{GENERATION}'") == [("1",)]
    fences = dict(rows(folder / FILE, "SELECT id, fence FROM runs"))
    assert all(fence > fences[run] for run, fence in rows(file, "SELECT id, fence FROM runs"))

    world = World()
    async with runtime(file, world) as rt:
        states = {name: (await rt.get_run(run)).status for name, run in lived.runs.items()}
        parked = dict.fromkeys(("waiting", "running", "queued"), "parked")
        assert states == {"completed": "completed", "cancelled": "cancelled"} | parked
        for name in parked:
            run = await rt.get_run(lived.runs[name])
            with pytest.raises(RunWaiting):
                await run.result()
            kinds = sorted(ask.kind for ask in await run.asks())
            assert kinds == (["approval", "parked"] if name == "waiting" else ["parked"])
            assert "restored from a backup" in (run.error or {})["message"]
        again = await rt.run("mail", "write to kim", session="one", operation_id="op-completed", attachments=[INVOICE])
        assert again.replayed
        assert (await rt.run("mail", "news", session="four")).text == "mail is sent", "new work goes on"
        assert world.sent == ["kim"], "nothing else was done by itself"


async def test_a_parked_run_goes_on_when_a_person_says_so(backed_up: tuple[Path, Lived], tmp_path: Path) -> None:
    folder, lived = backed_up
    file, world, clock = tmp_path / "restored.db", World(), ManualClock(datetime.now(UTC))
    restore(folder, file, clock=clock)
    clock.advance(hours=1)  # whatever was started before the restore has ended by then
    async with runtime(file, world, clock) as rt:
        queued, waiting, running = [await rt.get_run(lived.runs[n]) for n in ("queued", "waiting", "running")]
        (ask,) = await queued.asks()
        await ask.answer("resume")
        assert (await queued.refresh()).status in ("queued", "running", "waiting")
        with pytest.raises(RunWaiting):
            await queued.result()
        assert world.sent == [], "it may have been sent after the backup was made"
        (unknown,) = await queued.asks()
        assert unknown.kind == "unknown_effect"
        await unknown.not_happened("it is not in the outbox")
        assert (await queued.result()).text == "mail is sent"
        assert world.sent == ["kim"]

        approval, parked = sorted(await waiting.asks(), key=lambda a: a.kind)
        await approval.approve()
        assert (await waiting.refresh()).status == "parked", "an approval does not wake it"
        await parked.answer("resume")
        assert (await waiting.result()).text == "it is paid"
        assert world.sent == ["kim", "paid 3"]

        (ask,) = await running.asks()
        await ask.answer("resume")
        with pytest.raises(RunWaiting):
            await running.result()
        (unknown,) = await running.asks()
        assert unknown.kind == "unknown_effect", "it had started, and nobody knows how it ended"
        await unknown.happened("held it")
        assert (await running.result()).text == "it was held"
        assert world.sent == ["kim", "paid 3"]
        with pytest.raises(AlreadyDecided):
            await ask.answer("fail")
    assert check(file) == []


async def test_whoever_held_a_run_before_the_backup_can_write_nothing_more(
    backed_up: tuple[Path, Lived], tmp_path: Path
) -> None:
    folder, lived = backed_up
    file = tmp_path / "restored.db"
    restore(folder, file)
    ((fence, head),) = rows(folder / FILE, f"SELECT fence, head FROM runs WHERE id = '{lived.runs['running']}'")
    claim = Claim("default", lived.runs["running"], "one", fence, head)
    store = SqliteStore(file)
    await store.open(lambda: None)
    with pytest.raises(ClaimLost):
        await store.write(note_down, claim, 0, [])
    await store.close()


async def test_each_restore_is_a_generation_of_its_own(backed_up: tuple[Path, Lived], tmp_path: Path) -> None:
    folder, _ = backed_up
    restore(folder, tmp_path / "first.db")
    backup(tmp_path / "first.db", tmp_path / "second")
    restore(tmp_path / "second", tmp_path / "second.db")
    store = SqliteStore(tmp_path / "second.db")
    await store.open(lambda: None)
    assert await store.read(get_meta, GENERATION) == "2"
    await store.close()
    first, second = (dict(rows(tmp_path / f"{n}.db", "SELECT id, fence FROM runs")) for n in ("first", "second"))
    assert second.keys() == first.keys()
    assert all(second[run] > first[run] for run in first)
    assert check(tmp_path / "second.db") == []


async def test_an_older_backup_is_restored_to_the_schema_of_today(
    backed_up: tuple[Path, Lived], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = backed_up
    steps = (*migrations(), "CREATE TABLE later (a)")
    for module in ("sqlite", "sqlite_admin"):
        monkeypatch.setattr(f"ondol.stores.{module}.migrations", lambda: steps)
    restore(folder, tmp_path / "restored.db")
    assert rows(tmp_path / "restored.db", "SELECT count(*) FROM later") == [(0,)]
    assert check(tmp_path / "restored.db") == []


@pytest.mark.parametrize("there", ["ondol.db", "ondol.db-wal", "ondol.db-journal", "ondol.db.blobs"])
async def test_a_restore_overwrites_nothing(backed_up: tuple[Path, Lived], tmp_path: Path, there: str) -> None:
    folder, _ = backed_up
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / there).write_text("mine")
    with pytest.raises(StoreError, match=f"{there} exists: move it away"):
        restore(folder, tmp_path / "here" / "ondol.db")
    assert everything(tmp_path / "here") == {there: b"mine", "ondol.db.lock": b""}


DRIVER = """
import asyncio, sys
from ondol.stores.sqlite import SqliteStore

async def main(file):
    store = SqliteStore(file)
    await store.open(lambda: None)
    print("drives", await store.drives("o", []))
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


async def test_a_store_that_a_live_process_drives_is_not_restored(
    backed_up: tuple[Path, Lived], tmp_path: Path
) -> None:
    """Even when its files were taken away under it."""
    folder, _ = backed_up
    here = tmp_path / "here"
    here.mkdir()
    async with Process(["-c", DRIVER, str(here / "ondol.db")]) as driver:
        await driver.line("drives True")
        for name in ("ondol.db", "ondol.db-wal"):
            (here / name).unlink()
        with pytest.raises(StoreBusy, match="driven by a live process: stop it first"):
            restore(folder, here / "ondol.db")
        driver.kill()
        await driver.wait()
    (here / "ondol.db-shm").unlink(missing_ok=True)
    restore(folder, here / "ondol.db")
    assert check(here / "ondol.db") == []


def spoil(folder: Path, how: str) -> None:
    file = folder / FILE
    match how:
        case "no store in it":
            file.unlink()
        case "pages of garbage":
            garble(file)
        case "cut short":
            os.truncate(file, file.stat().st_size // 2)
        case "a newer schema":
            change(file, f"PRAGMA user_version = {len(migrations()) + 1}")
        case "no database":
            file.write_text("Dear Sir or Madam, " * 100)
        case "another program's file":
            file.unlink()
            with closing(apsw.Connection(str(file))) as connection:
                connection.execute("CREATE TABLE addresses (a)")
        case "a flipped byte in a blob":
            only_blob(file).write_bytes(INVOICE.replace(b"a", b"A"))


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("no store in it", StoreError, "does not exist"),
        ("pages of garbage", StoreCorrupt, "restore a backup"),
        ("cut short", StoreCorrupt, "restore a backup"),
        ("a newer schema", StoreTooNew, "upgrade Ondol"),
        ("no database", StoreCorrupt, "backup/ondol.db is not a SQLite file"),
        ("another program's file", StoreCorrupt, "no store of Ondol"),
        ("a flipped byte in a blob", StoreCorrupt, "does not match its digest"),
    ],
)
async def test_a_spoilt_backup_is_refused_and_leaves_nothing(
    backed_up: tuple[Path, Lived], tmp_path: Path, how: str, error: type[StoreError], words: str
) -> None:
    folder, _ = backed_up
    spoil(folder, how)
    here = tmp_path / "here"
    here.mkdir()
    with pytest.raises(error, match=words):
        restore(folder, here / "ondol.db")
    assert names(here) == ["ondol.db.lock"]


async def test_a_restore_that_the_disk_cannot_take_leaves_nothing(
    backed_up: tuple[Path, Lived], tmp_path: Path
) -> None:
    folder, _ = backed_up
    here = tmp_path / "here"
    here.mkdir()
    with no_file_may_grow_beyond(8192), pytest.raises(StoreError):
        restore(folder, here / "ondol.db")
    assert names(here) == ["ondol.db.lock"]
    restore(folder, here / "ondol.db")
    assert check(here / "ondol.db") == []


async def test_a_restore_that_is_killed_is_absent_and_the_next_one_is_whole(
    backed_up: tuple[Path, Lived], tmp_path: Path
) -> None:
    folder, _ = backed_up
    here = tmp_path / "here"
    here.mkdir()
    blob = only_blob(folder / FILE)
    with stands_still_at(blob):
        async with Process(["-c", ADMIN, "restore", str(folder), str(here / "ondol.db")]) as process:
            await process.line("begins")
            pipe = await reads(blob)
            with pytest.raises(StoreBusy, match="live process"):
                restore(folder, here / "ondol.db")
            process.kill()
            assert await process.wait() == -9
            os.close(pipe)
    assert not (here / "ondol.db").exists()
    restore(folder, here / "ondol.db")
    assert check(here / "ondol.db") == []
    assert names(here) == ["ondol.db", "ondol.db.blobs", "ondol.db.lock"]
    assert rows(here / "ondol.db", f"SELECT value FROM meta WHERE key = '{GENERATION}'") == [("1",)]
