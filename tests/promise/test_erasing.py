"""A session that is deleted leaves nothing of what was said and done in it, wherever it was kept."""

from __future__ import annotations

import asyncio
import contextlib
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import behind
import pytest
from kit import until, waits

from ondol import (
    Agent,
    Ask,
    Context,
    ContextPolicy,
    Memory,
    Message,
    ModelRequest,
    Reasoning,
    RevisionConflict,
    Run,
    RunFailed,
    Runtime,
    SessionHistory,
    UserHistory,
    tool,
)
from ondol.providers.script import Reply
from ondol.testing import ManualClock, ScriptedModel, call, error

#: What is said, done and noted in the session; each word stands nowhere else, and nothing else begins with ``qz``.
WORDS = {
    "qzinput", "qzanswer", "qzreasoning", "qzargument", "qzresult", "qzlong", "qzimage", "qzwarning", "qzstate",
    "qzpinned", "qzpinnedbyhand", "qztitle", "qzmetadata", "qzfile", "qzbytes", "qzreplaced", "qzwhydenied",
    "qzquestion", "qzchoice", "qzdefault", "qzevidence", "qzhappened", "qztoolerror", "qzmodelerror", "qzunanswered",
    "qzwhycancelled", "qzwhystopped", "qzsummary", "qzbyhand", "qzdead",
}  # fmt: skip


BLOBS = {"blobs", "blob_chunks.data"}


@tool(effect="read")
async def look(ctx: Context[Any], what: str) -> Any:
    ctx.state["seen"] = ["qzstate", *ctx.state.get("seen", ())]
    ctx.pin("qzpinned")
    return {"found": "qzresult", "image": b"\x89PNG\r\n\x1a\n" + b"qzimage " * 200, "odd": {1: Odd()}}


class Odd:
    def __repr__(self) -> str:
        return "<qzwarning>"


@tool(effect="read")
async def read(n: int) -> str:
    return "qzlong " * 5_000


@tool(approve=True)
async def wire(to: str) -> str:
    return "wired"


@tool
async def lose(to: str) -> str:
    raise TimeoutError("qztoolerror")


@tool(effect="steps")
async def offer(ctx: Context[Any]) -> str:
    choices = Literal["qzchoice", "qzdefault"]
    return str(await ctx.ask("qzquestion?", schema=choices, default="qzdefault", expires=timedelta(days=1)))


SCRIPTS: dict[str, list[Any]] = {
    "look": [[Reasoning("qzreasoning"), call("look", what="qzargument"), call("read", n=1)], ["qzanswer"]],
    "wire": [[call("wire", to="kim")], [call("wire", to="lee")], ["done"]],
    "offer": [[call("offer")], ["done"]],
    "lose": [[call("lose", to="kim")], ["done"]],
    "fail": [error("rejected", "qzmodelerror")],
}


async def answers(request: ModelRequest) -> Reply:
    if request.purpose == "summary":
        return "qzbyhand" if request.run == "s" else "qzsummary"
    said = next(m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None)
    if said == "wait":
        await asyncio.Event().wait()
    script = SCRIPTS.get(said.split()[0], ["ok, " + "and so on " * 40])
    reply: Reply = script[request.step]
    return reply


async def extract(said: Sequence[Message]) -> list[str]:
    raise ValueError("qzdead")


def agent() -> Agent:
    tools, search = [look, read, wire, lose, offer], [SessionHistory(), UserHistory()]
    policy, memory = ContextPolicy(budget=4_000, keep=1), Memory(extract=extract)
    return Agent("a", model=ScriptedModel(answers), tools=tools, search=search, memory=memory, context=policy)


def words(db: str) -> dict[str, set[str]]:
    """Where they stand: in which columns of which tables, and in blobs."""
    found: dict[str, set[str]] = defaultdict(set)
    for place, value in behind.values(db):
        for word in words_in(value):
            found[word].add(place)
    file = behind.file_of(db)
    for blob in Path(f"{file}.blobs").rglob("*") if file is not None else []:
        for word in words_in(blob.read_bytes()) if blob.is_file() else ():
            found[word].add("blobs")
    return found


def words_in(value: Any) -> set[str]:
    if isinstance(value, bytes | memoryview):
        value = bytes(value)
        with contextlib.suppress(zlib.error):
            value = zlib.decompress(value)
        value = value.decode("utf-8", "replace")
    return set(re.findall(r"(?<![a-z0-9])qz[a-z]+", value)) if isinstance(value, str) else set()


async def talk(rt: Runtime, folder: Path, name: str = "s") -> None:
    """Say and do all of that in that session."""

    async def asked(said: str, **options: Any) -> tuple[Run, Ask]:
        run = await rt.start("a", said, session=name, user="kim", **options)
        (ask,) = await waits(run)
        return run, ask

    (folder / "qzfile.txt").write_text("qzbytes", "utf-8")
    await rt.run(
        "a", "look qzinput", session=name, user="kim", metadata={"of": "qzmetadata"},
        attachments=[folder / "qzfile.txt"],
    )  # fmt: skip
    await rt.run("a", "look again", session=name, user="kim")  # what the state was before is kept beside the run
    run, ask = await asked("wire it")
    await ask.approve(by="lee", arguments={"to": "qzreplaced"})
    (ask,) = await waits(run)
    await ask.deny(by="lee", reason="qzwhydenied")
    await run.result()
    run, ask = await asked("offer it")
    await ask.answer("qzchoice", by="lee")
    await run.result()
    run, ask = await asked("lose it")
    await ask.happened("qzhappened", "qzevidence", by="lee")
    await run.result()
    with pytest.raises(RunFailed):
        await rt.run("a", "fail", session=name, user="kim")
    run, ask = await asked("wire qzunanswered")
    await run.cancel(by="lee", reason="qzwhycancelled")
    run = await rt.start("a", "wait", session=name, user="kim")
    await until(run, "model.started")
    await run.cancel(by="lee", reason="qzwhystopped")
    for n in range(12):
        await rt.run("a", f"go on {n} " + "and tell me more " * 40, session=name, user="kim")
    session = await rt.get_session(name)
    await session.set_title("qztitle")
    await session.pin("qzpinnedbyhand", by="lee")
    assert await rt.search_history("qzinput", user="kim")
    assert await rt.search_history("qzinput", user="kim", session=name)


@pytest.mark.both_stores
async def test_a_session_that_is_deleted_leaves_no_word_in_any_table(db: str, tmp_path: Path) -> None:
    """Blobs go a day later. What stays are the ids, the sums, and who did what when."""
    clock = ManualClock("2026-01-01T00:00:00Z")
    async with Runtime(db, agents=[agent()], clock=clock) as rt:
        await talk(rt, tmp_path)
        assert (await rt.compact_session("s", keep=0, by="lee")).by
        await rt.write_session("s", state={"seen": ["qzstate"]})
        assert set(words(db)) >= WORDS, "nothing is looked for in vain"
        assert words(db)["qzstate"] >= {"runs.state_before", "replaced.body"}
        assert "replaced.body" in words(db)["qzpinned"]
        acts = {(act.by, act.act) for act in await rt.audit()}
        runs = {(run.id, run.operation_id) for run in await rt.runs(session="s")}
        await rt.delete_session("s", by="lee")
        assert {word: kept for word, where in words(db).items() if (kept := where - BLOBS)} == {}
        clock.advance(days=2)
        await rt._working.collect_blobs()
        assert words(db) == {}
        assert {(act.by, act.act) for act in await rt.audit()} == acts | {("lee", "session.delete")}
        assert {(run.id, run.operation_id) for run in await rt.runs(session="s")} == runs


async def test_a_session_that_is_deleted_takes_no_word_of_another_one(db: str, tmp_path: Path) -> None:
    def counted() -> Counter[tuple[str, str]]:
        return Counter((place, word) for place, value in behind.values(db) for word in words_in(value))

    clock = ManualClock("2026-01-01T00:00:00Z")
    async with Runtime(db, agents=[agent()], clock=clock) as rt:
        await talk(rt, tmp_path, "t")
        while not all(message.attempts for message in await rt.outbox()):  # what memory makes of it has failed
            await rt._working.look()
        before, in_blobs = counted(), {word for word, where in words(db).items() if where & BLOBS}
        await talk(rt, tmp_path)
        await rt.delete_session("s", by="lee")
        assert counted() == before
        clock.advance(days=2)
        await rt._working.collect_blobs()
        assert {word for word, where in words(db).items() if where & BLOBS} == in_blobs


@pytest.mark.both_stores
async def test_what_a_fork_took_over_of_a_session_that_is_deleted_is_its_pins_and_its_state(
    db: str, tmp_path: Path
) -> None:
    """The fork itself shares a step, whose words are its own. What was said before that is erased, its summary too."""
    clock = ManualClock("2026-01-01T00:00:00Z")
    async with Runtime(db, agents=[agent()], clock=clock) as rt:
        await talk(rt, tmp_path)
        run = await rt.start("a", "go on", session="s", user="kim")
        await run.result()
        fork = await rt.fork(run, at_step=1)
        await fork.result()
        below = await rt.fork(fork, at_step=1)
        await below.result()
        for session in (fork.session, below.session):
            assert "qzsummary" in (await rt.get_session(session))._row.summary.text
        await rt.delete_session("s", by="lee")
        clock.advance(days=2)
        await rt._working.collect_blobs()
        kept = {"qzstate", "qzpinned", "qzpinnedbyhand", "qzdead"}  # the last is said of its own turn
        assert set(words(db)) == kept
        for session in (fork.session, below.session):
            run = await rt.start("a", "go on", session=session, user="kim")
            await run.result()
            assert (await rt.context(run.id)).matches
        assert set(words(db)) == kept


@pytest.mark.both_stores
@pytest.mark.parametrize("made", ["in_a_turn", "by_hand"])
async def test_a_summary_is_not_shown_where_what_it_tells_of_was_erased_meanwhile(db: str, made: str) -> None:
    """A fork sums up what it goes on from, which somebody deletes before that is written down."""
    summing, erased = asyncio.Event(), asyncio.Event()
    asked: list[str] = []

    async def says(request: ModelRequest) -> Reply:
        asked.append("".join(m.text for m in request.messages))
        if request.purpose != "summary":
            return "ok"
        summing.set()
        await erased.wait()
        return "qzsummary"

    policy = ContextPolicy(budget=2_000, keep=1)
    agent = Agent("a", model=ScriptedModel(says), context=policy)
    async with Runtime(db, agents=[agent]) as rt:
        for _ in range(3):
            last = await rt.start(agent, "qzinput " * 100, session="s")
            await last.result()
        assert len(asked) == 3, "something was summed up already"
        fork = await rt.fork(last, at_step=1)
        await fork.result()
        if made == "by_hand":
            making: asyncio.Task[Any] = asyncio.create_task(rt.compact_session(fork.session, keep=0, agent=agent))
        else:
            making = asyncio.create_task(rt.run(agent, "so on " * 1_000, session=fork.session))
        await summing.wait()
        await rt.delete_session("s")
        erased.set()
        if made == "by_hand":
            with pytest.raises(RevisionConflict, match="a part of it was erased"):
                await making
        else:
            await making
        assert (await rt.get_session(fork.session))._row.summary.text == ""
        then = await rt.start(agent, "and then?", session=fork.session)
        await then.result()
        assert (await rt.context(then.id)).matches
        assert "qzsummary" not in asked[-1]


@pytest.mark.file
async def test_what_was_erased_is_overwritten_in_the_file_too(db: str, tmp_path: Path) -> None:
    """Once its process has ended, the write-ahead log has gone into the file."""
    file = behind.file_of(db)
    assert file is not None
    async with Runtime(db, agents=[agent()]) as rt:
        await talk(rt, tmp_path)
    assert {word for word in WORDS if word.encode() in file.read_bytes()} >= {"qzinput", "qzpinned", "qztoolerror"}
    async with Runtime(db, agents=[agent()]) as rt:
        await rt.delete_session("s", by="lee")
    files = [f for f in file.parent.iterdir() if f.is_file() and f.name.startswith(file.name)]
    assert {word: f.name for f in files for word in WORDS if word.encode() in f.read_bytes()} == {}


@pytest.mark.both_stores
@pytest.mark.parametrize("fails", [True, False])
async def test_who_learns_from_a_turn_as_it_is_erased_leaves_no_word_of_it(db: str, fails: bool) -> None:
    reading, erased = asyncio.Event(), asyncio.Event()

    async def slow(said: Sequence[Message]) -> list[str]:
        reading.set()
        await erased.wait()
        if fails:
            raise ValueError(f"qzdead: {said[0].text}")
        return [said[0].text]

    one = Agent("a", model=ScriptedModel(["ok"]), memory=Memory(extract=slow))
    other = Agent("b", model=ScriptedModel(["ok"]))
    async with Runtime(db, agents=[one, other]) as rt:
        await rt.run(other, "of this everything stays", session="t")
        await rt.run(one, "qzinput", session="s", user="kim")
        await reading.wait()
        await rt.delete_session("s", by="lee")
        erased.set()
        while not (found := await rt.outbox()) or not found[0].attempts:
            await rt._working.look()
        assert found[0].error is None
        assert words(db) == {}
