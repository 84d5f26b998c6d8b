"""Whatever stands in any field, a page shows it and does not become it."""

from __future__ import annotations

import itertools
import re
import unicodedata
from html import unescape

from house import House, Page, visitor

from ondol import Agent, Memory, Runtime, tool
from ondol.handles import Run
from ondol.testing import ScriptedModel, call, error

_SEEDS = [
    "<script>x()</script>", "</script><script>x()</script>", "<img src=x onerror=x()>", "<svg/onload=x()>",
    '"><b onmouseover=x()>', "' onfocus=x() autofocus '", "javascript:x()", "data:text/html,<script>x()</script>",
    "{{ 7*7 }}", "{% raw %}", "${7*7}", "<!-- -->", "]]>", "<style>*{}</style>", "<base href=//evil.example>",
    "<meta http-equiv=refresh content=0;url=//evil.example>", "<iframe src=//evil.example>", "<form action=//evil>",
    "<textarea></textarea><script>x()</script>", "</textarea><script>x()</script>", "</title><script>x()</script>",
    "<a href=javascript:x()>x</a>", "<link rel=stylesheet href=//evil.example/x>", "<math><mi//xlink:href='data:x'>",
    "\u202egnp.exe", "\u2066abc\u2069", "a\u200bb", "\u0007bell", "\x1b[31mred", "line\nline", "tab\tx", "\u2028sep",
    "../../etc/passwd", "..", "%2e%2e%2f", "?a=b&c=d#e", "a/b/c", "%00", "%", "\\", "//evil.example", "+", " ",
    "😀👩\u200d🔬", "김철수", "عربى", "e\u0301", "A" * 300, "&lt;script&gt;", "&amp;", "&#x3c;script&#x3e;",
]  # fmt: skip
HOSTILE = [
    f"{before}{seed}{after}" for (before, after), seed in itertools.product(
        [("", ""), ("x", "y"), ("<", ">"), ("'\"", "\"'"), ("  ", ";")], _SEEDS)
][:260]  # fmt: skip


@tool(approve=True)
def pay(what: str) -> str:
    """Pay."""
    return what


@tool(effect="read")
def echo(what: str) -> str:
    """Say it again."""
    return what


def agents() -> list[Agent]:
    """One whose model says, calls, and makes fail with what is hostile."""

    def answer(request):  # type: ignore[no-untyped-def]
        said = next(m.text for m in request.messages if m.role == "user")
        step = sum(m.role == "assistant" for m in request.messages)
        if "fail" in request.messages[0].text:
            return error("rejected", said)
        return [[call("echo", what=said)], [call("pay", what=said)], said][step]

    return [Agent("talks", model=ScriptedModel(answer), tools=[pay, echo])]


async def test_no_string_in_any_field_becomes_a_part_of_a_page(db: str) -> None:
    assert len(HOSTILE) >= 200
    async with Runtime(db, agents=agents()) as rt, visitor(rt) as client:
        h = House(rt, client)
        plain = await structure_of(h, await fill(h, await begin(h, "plain words", 0)))
        runs = [await begin(h, text, n) for n, text in enumerate(HOSTILE, 1)]
        for run in runs[::20]:  # on every page; the others only in lists
            for was, now in zip(plain, await structure_of(h, await fill(h, run)), strict=True):
                assert now == was, (run, [pair for pair in zip(was, now, strict=False) if pair[0] != pair[1]][:3])
        for run in runs:
            await rests(run)
        for address in ("/runs", "/asks", "/effects", "/sessions", "/", "/usage?by=session", "/usage?by=user"):
            page = await h.page(address)
            while True:
                check(page, address)
                further = page.all("a", rel="next")
                if not further:
                    break
                page = await h.page(str(further[0]["href"]))


async def test_a_form_sends_back_what_was_there_also_what_cannot_be_seen(db: str) -> None:
    """Joiners are in names, emoji and words of some scripts; a flag of England ends with letters that nobody sees."""
    said = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u202e"
    said += "\U0001f3f4\U000e0067\U000e0065\U000e006e\U000e007f <b>&\"'"
    remembers = Agent("remembers \u200d", model=ScriptedModel(lambda _: "yes"), memory=Memory())
    async with Runtime(db, agents=[*agents(), remembers]) as rt, visitor(rt) as client:
        h = House(rt, client)
        run = await rt.start("talks", said, session=said, user=said)
        await rests(run)
        page = await h.page(str(client.build_request("GET", "/session", params={"id": said}).url))
        assert page.all("div", id="live")[0]["data-session"] == said
        sent = page.fields("/session/send")
        assert (sent["session"], sent["agent"]) == (said, "talks")
        assert page.fields("/session/erase")["session"] == said
        assert [o["value"] for o in (await h.page("/sessions")).all("option")] == ["talks", "remembers \u200d"]
        page = await h.page(str(client.build_request("GET", "/runs", params={"session": said, "q": said}).url))
        assert {i["value"] for i in page.all("input") if i["name"] in ("session", "q")} == {said}

        (ask,) = await run.asks()
        shown = re.search(r"<textarea[^>]*>([^<]*)", (await h.page(f"/asks/{ask.id}")).html)
        assert shown is not None
        await h.post(f"/asks/{ask.id}", seen=ask.arguments_hash, decision="replace", arguments=unescape(shown[1]))
        await rests(run)
        assert (await run.effects())[1].arguments == {"what": said}

        await rt.memory.add(said, agent=remembers, user=said)
        where = str(client.build_request("GET", "/memory", params={"agent": remembers.name, "user": said}).url)
        page = await h.page(where)
        shown = re.search(r"<textarea[^>]*>([^<]*)", page.html)
        assert shown is not None
        fields = page.fields("/memory/edit")
        assert unescape(shown[1]) == said
        await h.post("/memory/edit", **fields, text="yes")
        assert [f.text for f in await rt.memory.ls(agent=remembers, user=said)] == ["yes"]
        check(page, where)


async def begin(h: House, text: str, n: int) -> Run:
    """A run that has the text wherever a text may be. No id holds control characters."""
    id = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Zl", "Zp"))[:150].strip() + str(n)
    return await h.rt.start("talks", text if text.strip() else f"-{text}", session=id, user=id, operation_id=id)


async def rests(run: Run) -> None:
    async for _ in run.events():
        pass


async def fill(h: House, run: Run) -> list[str]:
    """The addresses of the pages of a run, once it waits."""
    await rests(run)
    (ask,) = await run.asks()
    (echoed, paid) = await run.effects()
    id = run.session
    return [
        f"/runs/{run.id}", f"/runs/{run.id}/context", f"/runs/{run.id}/effects", f"/runs/{run.id}/raw",
        f"/runs/{run.id}/lineage", f"/asks/{ask.id}", f"/effects/{echoed.id}", f"/effects/{paid.id}",
        str(h.client.build_request("GET", "/session", params={"id": id}).url),
        str(h.client.build_request("GET", "/runs", params={"q": id, "agent": id, "session": id, "user": id}).url),
    ]  # fmt: skip


async def structure_of(h: House, addresses: list[str]) -> list[list[tuple[str, tuple[str, ...]]]]:
    """The elements of these pages and the names of their attributes: what a text must not change."""
    made = []
    for address in addresses:
        page = await h.page(address)
        check(page, address)
        slow = "drawn shorter than it was"  # how long a run was queued says nothing about its texts
        made.append([(tag, tuple(sorted(a))) for tag, a in page.elements if a.get("title") != slow])
    return made


def check(page: Page, address: str) -> None:
    """Nothing runs, nothing leads elsewhere, nothing hides."""
    for tag, attributes in page.elements:
        assert tag not in ("iframe", "object", "embed", "base", "style", "math", "img"), (address, tag)
        assert not [a for a in attributes if a.startswith("on")], (address, tag, attributes)
        for a in ("href", "src", "action", "formaction"):
            value = attributes.get(a, "/") or "/"
            assert re.match(r"(/(?![/\\])|#)", value), (address, tag, value)
    assert [s.get("src") for s in page.all("script")] == ["/static/console.js"], address
    hidden = re.search("[\u202a-\u202e\u2066-\u2069\u200b\u0007\x1b\u2028]", page.html)
    assert hidden is None, (address, hidden)
    assert page.answer.headers["content-type"] == "text/html; charset=utf-8"
