"""What a notebook and a prompt show of the things that users hold."""

from __future__ import annotations

import asyncio
import json
from html.parser import HTMLParser
from typing import Protocol

import pytest
from kit import waits

from ondol import Agent, RunCancelled, Runtime, tool, values
from ondol.model import ModelRequest
from ondol.showing import called, card, exact, safe, short
from ondol.testing import ScriptedModel, call

NASTY = '<script>alert("x")</script>&\u202e'


class Shown(Protocol):
    def _repr_html_(self) -> str: ...


class Page(HTMLParser):
    """Text and tags of a piece of HTML; every tag is closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def page(shown: Shown) -> str:
    found = Page(shown._repr_html_())
    assert found.tags <= {"div", "b", "table", "tr", "th", "td", "br"}
    assert "\u202e" not in found.text
    return found.text


@tool(effect="once", approve=True)
async def pay(to: str) -> str:
    """Pay."""
    raise RuntimeError(NASTY)


async def test_a_notebook_shows_each_thing_and_runs_nothing_that_is_in_it(db: str) -> None:
    model = ScriptedModel([call("pay", to=NASTY), NASTY], name="script")
    agent = Agent("pays", model=model, tools=[pay])
    session = "<b>s</b>"
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, NASTY, session=session, operation_id="<i>k</i>", user="kim & lee")
        (ask,) = await waits(run)
        for words in ('<script>alert(\\"x\\")</script>&\\u202e', "approval", "open", session):
            assert words in page(ask)
        await ask.approve(by=NASTY.removesuffix("\u202e"))
        (unknown,) = await waits(await run.refresh())
        decided = await unknown.happened("<u>done</u>", by="lee")
        assert "happened by lee through python" in page(decided)
        (effect,) = await run.effects()
        result = await run.result()
        await rt.write_session(session, state={"<k>": NASTY}, title="<h1>")
        shown = [page(t) for t in (await run.refresh(), effect, result, await rt.get_session(session))]
    for text in shown:
        assert session in text
    assert all(w in shown[0] for w in ("Run r_", "completed", "<i>k</i>", "kim & lee", "+00:00 (UTC)"))
    assert all(w in shown[1] for w in ("Effect e_", "pay(to=", "once", "ondol-"))
    assert "alert" in shown[2]
    assert "<k>" in shown[3]


async def test_a_prompt_shows_each_thing_in_one_short_line(db: str) -> None:
    agent = Agent("pays", model=ScriptedModel([call("pay", to="k" * 500), "well"]), tools=[pay])
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "pay", session="s", operation_id="k")
        (ask,) = await waits(run)
        (effect,) = await run.effects()
        await ask.deny(by="lee")
        result = await run.result()
    assert repr(ask).startswith(f'<Ask {ask.id} approval open: pay(to="kkk')
    assert repr(effect).startswith(f'<Effect {effect.id} once asked: pay(to="kkk')
    assert repr(result) == (
        f"RunResult(text='well', run_id={run.id!r}, session='s', operation_id='k', revision=3, replayed=False, stop='')"
    )
    assert all(len(repr(t)) < 250 for t in (run, ask, effect, result))


async def test_a_notebook_shows_what_nobody_counted_and_an_end_without_a_reason(db: str) -> None:
    asked = asyncio.Event()

    async def never(request: ModelRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent("slow", model=ScriptedModel(never, name="script"))
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="k")
        assert "not asked yet" in page(run)
        await asked.wait()
        await run.cancel(by="lee")
        with pytest.raises(RunCancelled):
            await run.result()
        shown = page(await run.refresh())
    assert "- tokens in, - out, 1 call, 1 not counted" in shown
    assert "cancelled:" not in shown


def test_what_is_shown_short_says_that_it_is() -> None:
    assert short("a\n b") == "a b"
    assert short("abc", 2) == "ab …"


def test_lines_stay_lines_in_a_notebook() -> None:
    assert "two<br>lines" in card("t", [("text", "two\nlines"), ("nothing", None)])
    assert "nothing" not in card("t", [("nothing", None)])


def test_each_character_of_a_long_text_is_looked_at_once() -> None:
    told: list[str] = []

    def spelled(character: str) -> str:
        told.append(character)
        return f"<{ord(character):x}>"

    text = "온돌\u202e a\tb\r\n" * 1000
    assert safe(text, keep="\n", spelled=spelled) == "온돌<202e> a<9>b<d>\n" * 1000
    assert sorted(told) == ["\t", "\r", "\u202e"]


@pytest.mark.parametrize("hidden", ["\0", "\ud83d", "\x1b[8m"])
def test_what_is_decided_about_is_read_whatever_characters_are_in_it(hidden: str) -> None:
    arguments = {"body": f"all of it{hidden}", "to": [{"name": f"{hidden}kim"}], "at": {b"x"}, f"{hidden}": 1}
    assert 'body="all of it\\u' in called("pay", arguments)
    shown = exact(arguments)
    assert ('kim"' in shown, shown.isprintable()) == (True, True)
    assert values.decode(json.loads(shown)) == arguments


def test_an_object_that_looks_like_a_tagged_text_is_shown_as_that_object() -> None:
    looks = {"$ondol": "text", "v": "AAAA"}
    assert values.decode(json.loads(exact([looks]))) == [looks]
