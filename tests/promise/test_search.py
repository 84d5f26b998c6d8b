"""What an agent searches: its history, documents, the user's own functions; what was found is in the journal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import behind
import pytest
from kit import Gate, waits
from rememberer import requests

from ondol import (
    Agent,
    Context,
    Documents,
    Found,
    InvalidInput,
    ModelRequest,
    RunFailed,
    Runtime,
    RunWaiting,
    Search,
    SessionHistory,
    UserHistory,
    indexed,
    lookups,
    ranking,
    tool,
    transactions,
)
from ondol.errors import RevisionConflict
from ondol.stores import sqlite
from ondol.testing import ScriptedModel, call, error, text
from ondol.transactions import indexing


def answer(request: ModelRequest) -> list[Any]:
    last = request.messages[-1]
    if last.role == "tool":
        return [text("found it")]
    asked = next(m.text for m in reversed(request.messages) if m.role == "user" and not m.origin)
    where, _, query = asked.removeprefix("search ").partition(" ")
    return [call("search", where=where, query=query)] if asked.startswith("search ") else [text(f"you said: {asked}")]


def searcher(*sources: Any) -> Agent:
    return Agent("searcher", model=ScriptedModel(answer), search=sources)


def hits(agent: Agent) -> list[dict[str, Any]]:
    """What the last search told the model."""
    (part,) = requests(agent)[-1].messages[-1].parts
    response: list[dict[str, Any]] = part.response  # type: ignore[union-attr]
    return response


@pytest.mark.both_stores
async def test_what_was_said_in_the_session_is_found_and_nothing_of_another_user_or_session(db: str) -> None:
    agent = searcher(SessionHistory(), UserHistory())
    async with Runtime(db, agents=[agent]) as rt:
        said = await rt.start(agent, "점검은 금요일 오후로 정했다", user="kim", session="a")
        await said.result()
        await rt.run(agent, "점검은 월요일", user="lee", session="a")
        await rt.run(agent, "점검은 목요일", user="kim", session="b")
        await rt.run(agent, "점검은 화요일", user="kim", session="c", tenant="other")
        await rt.run(agent, "search this_conversation 점검", user="kim", session="a")
        found = hits(agent)
        assert [f["locator"] for f in found] == [f"session a run {said.id} message {n}" for n in (1, 2)]
        assert all("금요일" in f["text"] for f in found)
        await rt.run(agent, "search conversations 점검", user="kim", session="d")
        days = {d for f in hits(agent) for d in ("금요일", "월요일", "목요일", "화요일") if d in f["text"]}
        assert days == {"금요일", "목요일"}
        direct = await rt.search_history("목요일", user="kim")
        assert direct[0].locator.startswith("session b ")


async def test_what_a_note_quotes_of_another_user_is_not_found(db: str) -> None:
    agent = searcher(SessionHistory(), UserHistory())
    answers = iter([[error("rejected")]])
    agent = replace(agent, model=ScriptedModel(lambda request: next(answers, None) or answer(request)))
    async with Runtime(db, agents=[agent]) as rt:
        with pytest.raises(RunFailed):
            await rt.run(agent, "my number is 4711", user="lee", session="a")
        told = await rt.start(agent, "which number?", user="kim", session="a")
        await told.result()
        assert "4711" in (await told.messages())[0].text
        for where in ("this_conversation", "conversations"):
            await rt.run(agent, f"search {where} number", user="kim", session="a")
            assert {f["text"] for f in hits(agent)} >= {"which number?"}
            assert not any("4711" in f["text"] for f in hits(agent))


@pytest.mark.both_stores
async def test_a_fork_finds_what_was_said_before_it_and_nothing_that_came_later(db: str) -> None:
    agent = searcher(SessionHistory())
    async with Runtime(db, agents=[agent]) as rt:
        first = await rt.start(agent, "점검은 금요일", user="kim", session="a")
        await first.result()
        await rt.run(agent, "점검은 수요일", user="lee", session="a")
        turn = await rt.start(agent, "점검은 목요일", user="kim", session="a")
        await turn.result()
        await rt.run(agent, "점검은 토요일", user="kim", session="a")
        fork = await rt.fork(turn, at_step=1)
        await fork.result()
        again = await rt.fork(fork, at_step=1)
        await again.result()
        for session in (fork.session, again.session):
            await rt.run(agent, "search this_conversation 점검", user="kim", session=session)
            days = {d for f in hits(agent) for d in ("금요일", "수요일", "목요일", "토요일") if d in f["text"]}
            assert days == {"금요일", "목요일"}
        found = await rt.search_history("금요일", user="kim", session=fork.session)
        assert f"session a run {first.id} message 1" in [f.locator for f in found]
        assert await rt.search_history("금요일", user="kim", session="nowhere") == []
        with pytest.raises(InvalidInput, match="the query must be a text"):
            await rt.search_history(None, user="kim")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="the query must be a text"):
            await rt.search_documents(5)  # type: ignore[arg-type]


async def test_what_was_searched_and_found_is_in_the_journal(db: str) -> None:
    agent = searcher(SessionHistory())
    async with Runtime(db, agents=[agent]) as rt:
        await rt.run(agent, "the meeting is on Friday", user="kim", session="a")
        run = await rt.start(agent, "search this_conversation friday", user="kim", session="a")
        await run.result()
        (effect,) = await run.effects()
        assert (effect.tool, effect.effect, effect.state) == ("search", "read", "succeeded")
        assert effect.arguments == {"where": "this_conversation", "query": "friday"}
        assert "the meeting is on Friday" in str((await run.messages())[-2])


async def test_a_run_that_is_not_completed_is_not_found_and_one_that_completes_late_is(db: str) -> None:
    @tool(approve=True)
    async def sign(what: str) -> str:
        return f"signed {what}"

    agent = searcher(UserHistory())
    slow = Agent("slow", model=ScriptedModel([[call("sign", what="the lease")], ["signed"]]), tools=[sign])
    async with Runtime(db, agents=[agent, slow]) as rt:
        waiting = await rt.start(slow, "a late word", user="kim", session="x")
        (ask,) = await waits(waiting)
        await rt.run(agent, "an early word", user="kim", session="y")
        assert (await rt.search_history("word", user="kim"))[0].text == "an early word"
        assert not any("late" in f.text for f in await rt.search_history("late word", user="kim"))
        await ask.approve(by="lee")
        await waiting.result()
        assert "a late word" in [f.text for f in await rt.search_history("late word", user="kim")]
        assert "signed the lease" in [f.text for f in await rt.search_history("lease", user="kim")]


async def test_a_run_that_is_worked_on_while_others_are_searched_is_found_once_it_completes(db: str) -> None:
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def answers(request: ModelRequest) -> str:
        asked.set()
        await goes_on.wait()
        return "slowly"

    agent, slow = searcher(UserHistory()), Agent("slow", model=ScriptedModel(answers))
    async with Runtime(db, agents=[agent, slow]) as rt:
        late = await rt.start(slow, "a late word", user="kim", session="x")
        await asked.wait()
        await rt.run(agent, "an early word", user="kim", session="y")
        assert await rt.search_history("early", user="kim")
        goes_on.set()
        await late.result()
        assert "a late word" in [f.text for f in await rt.search_history("late", user="kim")]


@pytest.mark.both_stores
@pytest.mark.parametrize("rests", ["waiting", "failed"])
async def test_a_run_that_rests_for_months_holds_up_no_search_and_is_found_once_it_completes(
    db: str, rests: str
) -> None:
    """What was made findable behind it is not gone through again by each search."""
    down = rests == "failed"

    @tool(approve=not down)
    async def sign(what: str) -> str:
        return f"signed {what}"

    def answers(request: ModelRequest) -> Any:
        return error("auth", "no key") if down else [call("sign", what="the lease")] if not request.step else "signed"

    agent = searcher(UserHistory())
    slow = Agent("slow", model=ScriptedModel(answers), tools=[sign])
    async with Runtime(db, agents=[agent, slow]) as rt:
        late = await rt.start(slow, "a late word", user="kim", session="x")
        with pytest.raises((RunWaiting, RunFailed)):
            await late.result()
        await rt.run(agent, "an early word", user="kim", session="x" if down else "y")
        assert await rt.search_history("early", user="kim")
        assert await rt.search_history("early", user="kim", session="x" if down else "y")
        indexed = behind.execute(db, "SELECT min(indexed) FROM search_spaces WHERE docs > 0")
        assert indexed == behind.execute(db, "SELECT max(n) FROM runs")
        down = False
        if rests == "failed":
            await rt.resume(late)
        for ask in await late.asks():
            await ask.approve(by="lee")
        await late.result()
        for session in (None, "x"):
            assert "a late word" in [f.text for f in await rt.search_history("late", user="kim", session=session)]
            assert "signed the lease" in [f.text for f in await rt.search_history("lease", user="kim", session=session)]


@pytest.mark.parametrize("held_up", [False, True])
async def test_a_long_history_is_gone_through_once_when_it_is_first_searched(
    db: str, monkeypatch: pytest.MonkeyPatch, held_up: bool
) -> None:
    """Also where a run at its beginning may complete later."""
    given: list[int] = []
    conditions = indexing.with_conditions

    def noted(name: str, always: Any, wanted: Any) -> Any:
        if name == "history.new":
            given.append(always["behind"])
        return conditions(name, always, wanted)

    monkeypatch.setattr(indexing, "_RUNS", 2)
    monkeypatch.setattr(indexing, "with_conditions", noted)

    gate = Gate()

    @tool(effect="read")
    async def look() -> str:
        await gate.wait()
        return "seen"

    agent = searcher()
    slow = Agent("slow", model=ScriptedModel([[call("look")], ["looked"]]), tools=[look])
    async with Runtime(db, agents=[agent, slow]) as rt:
        if held_up:
            run = await rt.start(slow, "say nothing", user="kim", session="x")
            await gate.reached.wait()
        for n in range(6):
            await rt.run(agent, f"say {n}", user="kim")
        found = await rt.search_history("say", user="kim", limit=20)
        assert {f.text for f in found} >= {f"say {n}" for n in range(6)}
        assert given == sorted(set(given))
        assert len(given) == 4
        gate.open()
        if held_up:
            await run.result()
            assert "say nothing" in {f.text for f in await rt.search_history("say", user="kim", limit=20)}


async def test_a_session_that_is_deleted_is_not_found_and_leaves_no_term(db: str) -> None:
    agent = searcher(UserHistory(), SessionHistory())
    async with Runtime(db, agents=[agent]) as rt:
        await rt.run(agent, "xylophone lessons", user="kim", session="a")
        await rt.run(agent, "violin lessons", user="kim", session="b")
        assert len(await rt.search_history("xylophone", user="kim")) == 2
        assert len(await rt.search_history("xylophone", user="kim", session="a")) == 2
        await rt.delete_session("a", by="kim")
        assert await rt.search_history("xylophone", user="kim") == []
        assert len(await rt.search_history("lessons", user="kim")) == 2
    assert behind.execute(db, "SELECT term FROM postings WHERE term LIKE 'xylo%'") == []


@pytest.mark.both_stores
async def test_a_long_session_goes_from_the_index_in_many_steps(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL ends a transaction whose process thinks for five seconds about its next statements, and SQLite lets
    nobody else write during a transaction."""
    batches: list[list[int]] = []

    def watched(tx: Callable[..., transactions.Tx[Any]], *args: Any, **options: Any) -> transactions.Tx[Any]:
        doing, rows = tx(*args, **options), None
        batches.append([])
        while True:
            try:
                batch = next(doing) if rows is None else doing.send(rows)
            except StopIteration as done:
                return done.value
            batches[-1].append(len(batch))
            rows = yield batch

    for name in ("begin_delete_session", "delete_session"):
        monkeypatch.setattr(transactions, name, partial(watched, getattr(transactions.sessions, name)))
    agent = searcher(UserHistory(), SessionHistory())
    async with Runtime(db, agents=[agent]) as rt:
        for n in range(25):
            words = " ".join(f"w{n}x{i}" for i in range(300))
            await rt.run(agent, words, user="kim", session="long")
        assert await rt.search_history("w7x7", user="kim")
        assert await rt.search_history("w7x7", user="kim", session="long")
        await rt.delete_session("long", by="kim")
    whole = [sum(batch) for batch in batches]
    assert sum(whole) > 25_000
    assert max(whole) < sum(whole) // 2
    assert max(max(batch) for batch in batches) < 10_000
    assert behind.execute(db, "SELECT count(*) FROM postings") == [(0,)]
    assert behind.execute(db, "SELECT sum(docs) FROM search_spaces") == [(0,)]


@pytest.mark.both_stores
async def test_a_long_session_whose_deletion_breaks_off_is_found_again(db: str) -> None:
    agent = searcher(UserHistory(), SessionHistory())
    async with Runtime(db, agents=[agent]) as rt:
        for n in range(12):
            await rt.run(agent, f"word{n}", user="kim", session="long")
        for _ in range(2):
            assert all([await rt.search_history("word0", user="kim", session=s) for s in (None, "long")])
            begin = partial(transactions.begin_delete_session, expected_revision=None, with_unknown=False)
            after = await rt._store.write(begin, "default", "long", 0)
            assert await rt._store.write(begin, "default", "long", after) is None
            assert behind.execute(db, "SELECT sum(docs) FROM search_spaces") == [(8,)]
        with pytest.raises(RevisionConflict):
            await rt.delete_session("long", by="kim", expected_revision=5)
        assert all([await rt.search_history("word0", user="kim", session=s) for s in (None, "long")])
        await rt.delete_session("long", by="kim")
    assert behind.execute(db, "SELECT count(*) FROM postings") == [(0,)]
    assert behind.execute(db, "SELECT sum(docs) FROM search_spaces") == [(0,)]


async def test_an_agent_that_does_not_search_indexes_nothing(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = searcher(SessionHistory())
    names: list[str] = []
    rows = sqlite._rows

    def watched(connection: Any, batch: Any) -> Any:
        names.extend(name for name, _ in batch)
        return rows(connection, batch)

    monkeypatch.setattr(sqlite, "_rows", watched)
    async with Runtime(db, agents=[agent]) as rt:
        await rt.run(agent, "hello", user="kim")
    assert not [n for n in names if n.startswith(("posting.", "text.", "space.", "history."))]


# --- documents --------------------------------------------------------------------------------------------------


@pytest.fixture
def handbook(tmp_path: Path) -> Path:
    folder = tmp_path / "handbook"
    (folder / "deep").mkdir(parents=True)
    (folder / "leave.md").write_text("# 휴가\n\n연차 휴가는 1년에 15일이다.\n", "utf-8")
    (folder / "deep" / "it.html").write_text("<h1>IT</h1><p>The printer is on floor 3.</p>", "utf-8")
    (folder / "notes.txt").write_text("C++ style: no raw pointers", "utf-8")
    (folder / "image.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.md").write_text("secret plans", "utf-8")
    return folder


@pytest.mark.both_stores
async def test_documents_are_found_with_their_line_and_follow_the_folder(db: str, handbook: Path) -> None:
    agent = searcher(Documents("work"))
    async with Runtime(db, agents=[agent]) as rt:
        done = await rt.index([handbook], collection="work")
        assert sorted(done.added) == ["handbook/deep/it.html", "handbook/leave.md", "handbook/notes.txt"]
        await rt.run(agent, "search work 연차", user="kim")
        assert [(h["locator"], h["title"]) for h in hits(agent)] == [("handbook/leave.md:1", "leave.md")]
        assert [f.locator for f in await rt.search_documents("C++", collection="work")] == ["handbook/notes.txt:1"]
        assert await rt.search_documents("secret", collection="work") == []

        (handbook / "leave.md").write_text("# 휴가\n\n연차 휴가는 1년에 20일이다.\n", "utf-8")
        (handbook / "notes.txt").unlink()
        done = await rt.index([handbook], collection="work")
        assert (done.changed, done.removed) == (["handbook/leave.md"], ["handbook/notes.txt"])
        assert done.unchanged == ["handbook/deep/it.html"]
        (found,) = await rt.search_documents("연차", collection="work")
        assert "20일" in found.text
        assert await rt.search_documents("pointers", collection="work") == []
        assert await rt.search_documents("연차", collection="other") == []
        assert await rt.search_documents("연차", collection="work", tenant="other") == []


async def test_what_was_read_by_other_rules_is_read_again(
    db: str, handbook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(db) as rt:
        added = (await rt.index([handbook])).added
        monkeypatch.setattr(indexed, "_RULES", b"those of a later version")
        assert (await rt.index([handbook])).changed == added
        assert (await rt.index([handbook])).unchanged == added


async def test_an_indexing_that_was_stopped_anywhere_is_done_again(db: str, handbook: Path) -> None:
    """Each write of it fails once; until it is done again, the old version of each document is found as a whole."""
    (handbook / "long.txt").write_text("\n\n".join(f"old {n} " + "word " * 200 for n in range(25)), "utf-8")
    async with Runtime(db) as rt:
        await rt.index([handbook])
        (handbook / "long.txt").write_text("\n\n".join(f"new {n} " + "word " * 200 for n in range(25)), "utf-8")
        write, left, stopped = rt._store.write, 0, 0

        async def failing(tx: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError("stopped here")
            return await write(tx, *args, **kwargs)

        rt._store.write = failing  # type: ignore[method-assign]
        while True:
            left = stopped
            try:
                await rt.index([handbook])
                break
            except OSError:
                stopped += 1
            old = len(await rt.search_documents("old", limit=50))
            new = len(await rt.search_documents("new", limit=50))
            assert (old, new) in ((25, 0), (0, 25))
        rt._store.write = write  # type: ignore[method-assign]
        assert stopped > 5
        assert len(await rt.search_documents("new", limit=50)) == 25
        assert await rt.search_documents("old", limit=50) == []


@pytest.mark.both_stores
async def test_two_indexings_of_a_folder_at_once_lose_nothing_of_it(db: str, handbook: Path) -> None:
    """One has written some passages of a document when another begins and ends."""
    (handbook / "long.txt").write_text("\n\n".join(f"zebra {n} " + "word " * 200 for n in range(25)), "utf-8")
    async with Runtime(db) as rt:
        write, begun = rt._store.write, False

        async def overtaken(tx: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal begun
            done = await write(tx, *args, **kwargs)
            if not begun and tx is transactions.add_passages and "long.txt" in args[1][0].source:
                begun = True
                await rt.index([handbook])
            return done

        rt._store.write = overtaken  # type: ignore[method-assign]
        await rt.index([handbook])
        places = [f.locator for f in await rt.search_documents("zebra", limit=50)]
        assert begun
        assert len(places) == len(set(places)) == 25


async def test_a_folder_that_cannot_be_read_any_more_keeps_its_documents_and_is_named(db: str, tmp_path: Path) -> None:
    """Its path is too long for the system, once the folder above it has moved."""
    above = tmp_path / "short"
    deep = above / "base"
    while len(str(deep)) < 3_890:
        deep /= "d" * 99
    deep.mkdir(parents=True)
    (deep / "leave.md").write_text("two weeks", "utf-8")
    (above / "base" / "other.md").write_text("three weeks", "utf-8")
    async with Runtime(db) as rt:
        await rt.index([above / "base"])
        moved = above.rename(tmp_path / ("long" * 60))
        (moved / "base" / "other.md").unlink()
        done = await rt.index([moved / "base"])
        assert (done.added, done.removed) == ([], ["base/other.md"])
        assert [why for name, why in done.skipped.items() if name.startswith("base/ddd")]
        assert len(await rt.search_documents("weeks")) == 1


async def test_a_file_or_a_folder_that_is_gone_is_taken_out_by_its_name(db: str, handbook: Path) -> None:
    alone = handbook.parent / "alone.md"
    alone.write_text("okapi", "utf-8")
    async with Runtime(db) as rt:
        await rt.index([handbook, alone])
        assert (await rt.index(alone)).unchanged == (await rt.index(str(alone))).unchanged == ["alone.md"]
        alone.unlink()
        with pytest.raises(InvalidInput, match=r"ondol index --remove alone.md --collection documents"):
            await rt.index(alone)
        with pytest.raises(InvalidInput, match="has no document and no folder hand"):
            await rt.index([], remove=["hand"])
        assert await rt.search_documents("okapi") != []
        assert (await rt.index([], remove=["alone.md", "handbook/deep/"])).removed == [
            "alone.md", "handbook/deep/it.html",
        ]  # fmt: skip
        assert await rt.search_documents("okapi") == []
        assert await rt.search_documents("C++") != []
        assert len((await rt.index([handbook], remove=["handbook"])).removed) == 0


async def test_two_documents_of_one_name_are_refused(db: str, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "docs").mkdir(parents=True)
        (tmp_path / folder / "docs" / "read.me.md").write_text(folder, "utf-8")
    async with Runtime(db) as rt:
        with pytest.raises(InvalidInput, match=r"would both be the document docs/read.me.md"):
            await rt.index([tmp_path / "one" / "docs", tmp_path / "two" / "docs"])
        done = await rt.index([tmp_path / "one" / "docs", tmp_path / "one" / "docs"])
        assert done.added == ["docs/read.me.md"]
        assert (await rt.index([tmp_path])).added


async def test_what_is_hidden_what_links_lead_to_and_what_is_too_large_is_left_alone(
    db: str, handbook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = handbook.parent / "outside"
    for folder in (outside, handbook / ".git"):
        folder.mkdir()
        (folder / "plans.md").write_text("secret plans", "utf-8")
    (handbook / "link.md").symlink_to(outside / "plans.md")
    (handbook / "links").symlink_to(outside)
    (handbook / "long.txt").write_text("secret " * 100, "utf-8")
    (handbook / "marked.txt").write_text("okapi", "utf-8-sig")
    monkeypatch.setattr(indexed, "LARGEST", 500)
    async with Runtime(db) as rt:
        done = await rt.index(handbook)
        assert done.skipped == {"handbook/long.txt": "it is larger than 500 bytes"}
        assert await rt.search_documents("secret") == []
        assert [f.text for f in await rt.search_documents("okapi")] == ["okapi"]


def a_pdf(*pages: str) -> bytes:
    """Pages with one line each; an empty one has none."""
    said = [f"BT /F1 12 Tf 50 700 Td ({page}) Tj ET" if page else "" for page in pages]
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, line in enumerate(said):
        shown = f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * n} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] {shown} >>")
        objects.append(f"<< /Length {len(line)} >>\nstream\n{line}\nendstream")
    made, places = "%PDF-1.4\n", []
    for n, one in enumerate(objects, start=1):
        places.append(len(made))
        made += f"{n} 0 obj\n{one}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer << /Size {size} /Root 1 0 R >>\n"
    return f"{made}{end}startxref\n{len(made)}\n%%EOF".encode()


async def test_a_pdf_is_found_by_its_page_and_one_that_holds_no_text_is_named(db: str, tmp_path: Path) -> None:
    (tmp_path / "two.PDF").write_bytes(a_pdf("first about marmots", "then about capybaras"))
    (tmp_path / "scanned.pdf").write_bytes(a_pdf("", ""))
    async with Runtime(db) as rt:
        done = await rt.index([tmp_path / "two.PDF", tmp_path / "scanned.pdf"])
        assert done.added == ["two.PDF"]
        assert "it holds no text" in done.skipped["scanned.pdf"]
        assert [f.locator for f in await rt.search_documents("capybaras")] == ["two.PDF:2"]
        assert [f.locator for f in await rt.search_documents("marmots")] == ["two.PDF:1"]


async def test_what_cannot_be_read_is_said_and_the_rest_is_indexed(db: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00bad")
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.4 broken")
    (tmp_path / "c.txt").write_text("fine", "utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "pipe.txt")
    (folder / "korean.txt").write_bytes("급여일".encode("cp949"))
    (folder / os.fsdecode("급여일.md".encode("cp949"))).write_text("a name of another system", "utf-8")
    (folder / "page.html").write_text("<![foo]><p>fine", "utf-8")
    async with Runtime(db) as rt:
        done = await rt.index([tmp_path / "a.txt", tmp_path / "b.pdf", tmp_path / "c.txt"])
        assert done.added == ["c.txt"]
        assert set(done.skipped) == {"a.txt", "b.pdf"}
        done = await rt.index([folder])
        assert done.added == ["folder/page.html"]
        assert done.skipped["folder/pipe.txt"] == "it is no regular file"
        assert "not in UTF-8" in done.skipped["folder/korean.txt"]
        assert len(done.skipped) == 3
        with pytest.raises(InvalidInput, match="is no file and no folder"):
            await rt.index([tmp_path / "gone"])


# --- functions of the user --------------------------------------------------------------------------------------


async def test_a_function_is_a_source_and_knows_whose_search_it_is(db: str) -> None:
    async def web(ctx: Context[Any], query: str, limit: int) -> list[Found]:
        """The web."""
        return [Found(f"{ctx.tenant}/{ctx.user} asked {query} {limit}", "https://example.org/1", "One")]

    async def company(query: str) -> list[dict[str, str]]:
        """The company's wiki."""
        return [{"text": query.upper(), "url": "wiki:7"}]

    agent = searcher(web, company)
    assert "The company's wiki." in agent.toolset["search"].description
    async with Runtime(db, agents=[agent]) as rt:
        await rt.run(agent, "search web tea", user="kim")
        assert hits(agent) == [{"text": "default/kim asked tea 5", "locator": "https://example.org/1", "title": "One"}]
        await rt.run(agent, "search company tea", user="kim")
        assert hits(agent) == [{"text": "TEA", "locator": "wiki:7"}]


async def test_what_a_source_gives_is_told_within_bounds_and_not_found_again_in_the_history(db: str) -> None:
    wanted: list[int] = []

    async def wiki(query: str, limit: int) -> list[str]:
        """The wiki."""
        wanted.append(limit)
        return ["okapi " * 1_000] if limit == 1 else ["okapi"] * 100

    def asks(request: ModelRequest) -> list[Any]:
        if request.messages[-1].role == "tool":
            return [text("found it")]
        where, limit = request.messages[-1].text.split()
        return [call("search", where=where, query="okapi", limit=int(limit))]

    agent = Agent("searcher", model=ScriptedModel(asks), search=[wiki, SessionHistory()])
    async with Runtime(db, agents=[agent]) as rt:
        await rt.run(agent, "wiki 1000", session="s")
        assert len(hits(agent)) == 50
        await rt.run(agent, "wiki 0", session="s")
        assert wanted == [50, 1]
        assert len(hits(agent)[0]["text"]) <= 1_200
        await rt.run(agent, "this_conversation 5", session="s")
        assert hits(agent) == []


async def test_a_run_of_no_user_finds_the_conversations_of_nobody(db: str) -> None:
    agent = searcher(UserHistory())
    async with Runtime(db, agents=[agent]) as rt:
        await rt.run(agent, "점검은 금요일", session="a")
        await rt.run(agent, "search conversations 점검", session="b")
        assert "this run is of no user" in str(hits(agent))


async def test_what_is_read_of_frequent_words_has_a_bound(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whose = {"agent": "a", "user": "kim"}
    async with Runtime(db) as rt:
        for n in range(12):
            await rt.memory.add(f"tea number {n}", **whose)
        monkeypatch.setattr(ranking, "TELLING", 4)
        monkeypatch.setattr(ranking, "COUNTED_TO", 5)
        monkeypatch.setattr(ranking, "WINDOW", 3)
        found = await rt._read(lookups.candidates, transactions.Scope("default", "a", "kim").space, "tea number")
        assert set(found.rare.values()) == {ranking.rarity(5, 12)}
        newest = [f"tea number {n}" for n in (11, 10, 9)]
        assert [f.text for f in await rt.memory.search("tea number", **whose)] == newest


async def test_what_is_no_source_is_refused() -> None:
    def plain(query: str) -> list[str]:
        return []

    async def other(words: str) -> list[str]:
        return []

    for wrong, why in ((plain, "is no source"), (other, "parameter named query"), (7, "is no source")):
        with pytest.raises(InvalidInput, match=why):
            searcher(wrong)
    with pytest.raises(InvalidInput, match="the same name"):
        searcher(Documents("a"), Documents("a"))
    assert isinstance(Documents(), Search)


async def test_a_word_at_the_end_of_a_very_long_message_is_found(db: str) -> None:
    agent = Agent("plain", model=ScriptedModel([["ok"]]))
    async with Runtime(db, agents=[agent]) as rt:
        await rt.run(agent, "ordinary words " * 40_000 + "and one needle", user="kim")
        (found,) = await rt.search_history("needle", user="kim")
        assert found.text.endswith("needle")
