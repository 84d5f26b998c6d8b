"""What stands on the pages: enough to see where things are, and what to do next."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from cli.command import ondol
from house import House, Page, find_order, house, visitor
from starlette.applications import Starlette
from starlette.routing import Mount

from ondol import Agent, ContextPolicy, Runtime, access
from ondol.events import KINDS
from ondol.http.console import looking, looks, shown
from ondol.http.guard import Admission
from ondol.testing import ManualClock, ScriptedModel, call


@pytest.fixture
async def at_home(db: str) -> AsyncIterator[House]:
    async with house(db, time_zone="Asia/Seoul") as opened:
        yield opened


async def everything(h: House) -> dict[str, str]:
    """One of each thing that has a page. Returns the addresses of all pages."""
    found = await h.rests("find", session="kim", user="kim", operation_id="ticket-7")
    paying, lost = await h.rests("pay"), await h.rests("lost")
    await h.rests("leave")
    await h.rests("x", "down")
    (ask,), (unknown,) = await paying.asks(), await h.rt.effects(state="unknown")
    await h.rt.memory.add("drinks tea", agent="support", user="kim")
    of_run = {tab: f"/runs/{found.id}/{tab}" for tab in ("context", "effects", "lineage", "raw", "replay")}
    return {
        "home": "/", "runs": "/runs", "run": f"/runs/{found.id}", **of_run, "lost": f"/runs/{lost.id}",
        "sessions": "/sessions", "session": "/session?id=kim", "asks": "/asks", "ask": f"/asks/{ask.id}",
        "effects": "/effects", "effect": f"/effects/{unknown.id}", "usage": "/usage", "memories": "/memory",
        "memory": "/memory?agent=support&user=kim", "system": "/system?checks=true",
        "nothing": "/runs/r_nobody", "sign in": "/sign-in",
    }  # fmt: skip


async def test_a_run_shows_its_latest_rows_and_where_the_earlier_ones_are(db: str) -> None:
    def answer(request: Any) -> Any:
        said = sum(m.role == "assistant" for m in request.messages)
        return [call("find_order", order_id=str(n)) for n in range(60)] if said < 4 else "found"

    agent = Agent("many", model=ScriptedModel(answer), tools=[find_order])
    async with Runtime(db, agents=[agent]) as rt, visitor(rt) as client:
        h = House(rt, client)
        run = await h.rests("find", "many")
        latest = await h.page(f"/runs/{run.id}")
        (link,) = [str(a["href"]) for a in latest.all("a") if "before=" in str(a.get("href"))]
        earlier = await h.page(link)
    shown = [[row["id"] for row in page.all("li") if "row" in str(row["class"])] for page in (earlier, latest)]
    ids = [f"t{n}" for n in range(247)]  # queued, 5 answers, 240 calls, the end
    assert shown == [ids[:47], ids[47:]]
    assert earlier.all("a", href=f"/runs/{run.id}")


async def test_what_was_spent_by_many_sessions_is_shown_for_those_that_took_the_most(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "_LINES", 2)
    async with house(db) as h:
        for session in "abbbcc":
            await h.rests("find", session=session)
        page, days = await h.page("/usage?by=session"), await h.page("/usage?by=day")
    assert re.findall(r'<th scope="row">(.*?)</th>', page.html) == ["b", "c"]
    assert "1 more took fewer tokens: the command above lists them." in page.text
    assert "more took fewer" not in days.text


async def test_a_page_that_grows_shows_a_long_text_in_part_and_where_the_whole_is(db: str) -> None:
    letter, word = "word " * 20_000, "x" * 50_000

    def answer(request: Any) -> Any:
        return letter if request.messages[-1].role == "tool" else [letter, call("find_order", order_id=word)]

    agent = Agent("writer", model=ScriptedModel(answer), tools=[find_order])
    async with Runtime(db, agents=[agent]) as rt, visitor(rt) as client:
        h = House(rt, client)
        run = await h.rests(letter, "writer", session="letters")
        (effect,) = await run.effects()
        for address in (f"/runs/{run.id}", "/session?id=letters"):
            page = await h.page(address)
            assert len(page.html) < 250_000, address
            assert "… 100 000 characters in all" in page.text
            assert page.all("a", href=f"/v1/runs/{run.id}/state")
            assert page.all("a", href=f"/effects/{effect.id}")
        whole = (await client.get(f"/v1/runs/{run.id}/state")).text
        assert whole.count(letter) >= 3  # what was said to it, and what it said twice
        assert word in (await h.page(f"/effects/{effect.id}")).text


async def test_every_page_runs_only_what_this_server_serves(at_home: House) -> None:
    for name, address in (await everything(at_home)).items():
        page = await at_home.page(address, 404 if name == "nothing" else 200)
        policy = page.answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';"), name
        assert "unsafe" not in policy
        assert page.answer.headers["x-content-type-options"] == "nosniff"
        assert [s.get("src") for s in page.all("script")] == ["/static/console.js"], name
        assert page.all("style") == []
        for tag, attributes in page.elements:
            assert not [a for a in attributes if a.startswith("on") or a == "style"], (name, tag, attributes)
            for a in ("href", "src", "action"):
                assert attributes.get(a, "/").startswith(("/", "#")), (name, tag, attributes)
                assert not attributes.get(a, "/").startswith("//")


async def test_every_page_can_be_found_ones_way_about(at_home: House) -> None:
    for name, address in (await everything(at_home)).items():
        page = await at_home.page(address, 404 if name == "nothing" else 200)
        ids = [a["id"] for _, a in page.elements if "id" in a]
        assert len(ids) == len(set(ids)), (name, sorted(i for i in ids if ids.count(i) > 1))
        assert len(page.all("h1")) == len(page.all("main")) == 1, name
        assert page.all("html", lang="en")
        assert page.all("a", href="#main")
        assert re.search(r"<title>[^<]+</title>", page.html)
        labelled = {a.get("for") for a in page.all("label")}
        for tag in ("input", "select", "textarea"):
            for field in page.all(tag):
                named = field.get("aria-label") or field.get("id") in labelled or field.get("type") == "hidden"
                inside = re.search(rf'<label[^>]*>(?:(?!</label>).)*name="{field.get("name")}"', page.html, re.S)
                assert named or inside, (name, field)
        for form in re.findall(r"<form.*?</form>", page.html, re.S):  # who presses Enter in a field has chosen nothing
            buttons, fields = re.findall(r"<button[^>]*>", form), re.findall(r"<input(?![^>]*hidden)", form)
            assert len(buttons) < 2 or not fields or buttons[0] == "<button disabled hidden>", (name, form)


ANY_APP = """
from ondol import Agent, Memory, tool

@tool(approve=True)
def pay(to: str) -> str:
    return f"paid {to}"

agent = Agent("pays", model="script:demo", tools=[pay])
remembers = Agent("remembers", model="script:demo", memory=Memory())
"""


@pytest.mark.parametrize("address", ["/", "/runs", "/sessions", "/asks", "/effects", "/usage", "/memory"])
async def test_an_empty_page_says_the_command_that_fills_it(db: str, tmp_path: Path, address: str) -> None:
    async with house(db) as h:
        (said,) = commands_of_empty(await h.page(address))
    (tmp_path / "app.py").write_text(ANY_APP)
    app = "app.py:remembers" if address == "/memory" else "app.py:agent"
    program, *words = [w.replace("APP:AGENT", app).replace("$ONDOL_DB", db) for w in shlex.split(said)]
    assert (program, words[:2]) == ("ondol", ["--db", db])  # a store that is no file is named by a variable
    done = await asyncio.to_thread(ondol, *words, cwd=tmp_path)
    assert done.code in (0, 6), done.err
    async with house(db) as h:
        assert commands_of_empty(await h.page(address)) == []


def commands_of_empty(page: Page) -> list[str]:
    found = re.findall(r'<div class="empty">(?:(?!</div>).)*?<code class="twin"[^>]*>(.*?)</code>', page.html, re.S)
    return [html.unescape(command) for command in found]


async def test_the_command_beside_a_page_does_the_same(tmp_path: Path) -> None:
    clock = ManualClock("2026-11-30T20:00:00Z")
    (tmp_path / "app.py").write_text("""
from ondol import Agent
from ondol.testing import ScriptedModel

agent = Agent("down", model=ScriptedModel(lambda _: "up again"))
""")

    async def typed(command: str) -> str:
        program, *words = shlex.split(command.replace("APP:down", "app.py:agent"))
        assert program == "ondol"
        done = await asyncio.to_thread(ondol, *words, cwd=tmp_path)
        assert done.code == 0, (command, done.err)
        return done.out

    async with house(f"sqlite:///{tmp_path / 'o.db'}", clock=clock, time_zone="Asia/Seoul") as h:
        before = await h.rests("hi", "hello", session="--x")
        clock.set("2026-12-01T20:00:00Z")  # the second of December there
        late = await h.rests("hi", "down", session="day")
        lists = [
            await h.page("/usage?by=session&days=1"), await h.page("/usage?by=day&days=30"),
            await h.page("/runs?state=failed"), await h.page("/session?id=--x"),
            await h.page(f"/runs/{before.id}/context"),
        ]  # fmt: skip
        filtered = [await h.page(f"/runs?{query}") for query in ("agent=down", "q=hi")]
        (resume,) = [c for c in commands(await h.page(f"/runs/{late.id}")) if "resume" in c]
    today, month, failed, rm, preview = (commands(page)[-1] for page in lists)
    assert [commands(page) for page in filtered] == [[], []], "the command line has no such filters"
    shown = await typed(today)
    assert "day" in shown
    assert "--x" not in shown
    assert "2026-12-01" in await typed(month)
    assert "2026-12-02" in await typed(month)
    assert late.id in await typed(failed)
    assert "there is nothing to compact" in await typed(preview)
    assert "up again" in await typed(resume)
    assert "is erased" in await typed(rm)


async def test_the_command_beside_a_page_is_about_the_same_tenant(db: str) -> None:
    async with house(db) as h, visitor(h.rt, Admission(needs_token=True)) as client:
        _, token = await access.create_token(h.rt, "lee", ["admin"], tenant="acme")
        bearer = {"authorization": f"Bearer {token}"}
        sent = await client.post(
            "/session/send", data={"agent": "hello", "text": "x", "session": "kim"}, headers=bearer
        )
        assert sent.status_code == 303
        page = Page(await client.get("/session?id=kim", headers=bearer))
        assert commands(page) == ['ondol --url "$ONDOL_URL" sessions rm kim'], "else it erases that of another tenant"


def commands(page: Page) -> list[str]:
    return [html.unescape(c) for c in re.findall(r'<code class="twin" data-copy>(.*?)</code>', page.html, re.S)]


async def test_home_says_what_needs_a_person(at_home: House) -> None:
    calm = await at_home.page("/")
    assert "Nothing waits for a person." in calm.text
    await everything(at_home)
    page = await at_home.page("/")
    assert "Nothing waits" not in page.text
    assert "2 open asks 1 unknown effect 1 failed in 7 days 0 parked" in page.text
    assert "Delete the mailbox too?" in page.text
    assert "model_auth the script says auth" in page.text


async def test_home_counts_what_is_behind_its_page(at_home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ("pay much", "lost"):  # sixty asks, and an unknown effect behind them
        await at_home.rests(said, user="kim")
    for _ in range(9):
        await at_home.rests("x", agent="down")
    shown = (await at_home.page("/")).text
    for words in ("60 open asks", "1 unknown effect", "8+ failed", "0 parked", "Asks 60 open", "Effects 1 unknown"):
        assert words in shown, shown[:600]
    _, token = await access.create_token(at_home.rt, "lee", ["read"], user="lee")
    shown = (await at_home.page("/", headers={"authorization": f"Bearer {token}"})).text
    assert "0 open asks 0 unknown effects" in shown
    assert "tokens today" not in shown, "these are of all, and not theirs to know"
    monkeypatch.setattr(looks, "COUNTED", 50)
    shown = (await at_home.page("/")).text
    assert "50+ open asks" in shown, shown[:600]


async def test_a_run_shows_its_steps_with_what_went_in_and_came_out(at_home: House) -> None:
    run = await at_home.rests("find", session="kim", user="kim", operation_id="ticket-7")
    page = await at_home.page(f"/runs/{run.id}")
    for words in ("ticket-7", "kim revision 1", 'order_id "1182"', '"paid": "30.00"', "found it", "Completed",
                  f"runs fork {run.id} --at 2", f"runs export {run.id}"):  # fmt: skip
        assert words in page.text, words
    seen = await at_home.page(f"/runs/{run.id}/context?step=2")
    assert "as recorded" in seen.text
    assert "Be brief." in seen.text
    assert "Results" in seen.text
    raw = await at_home.page(f"/runs/{run.id}/raw")
    assert "effect.succeeded" in raw.text


async def test_times_are_of_the_runs_zone_with_utc_behind_them(db: str) -> None:
    clock = ManualClock("2026-11-30T20:00:00Z")
    async with house(db, clock=clock, time_zone="Asia/Seoul") as h:
        here = await h.rests("hi", "hello", time_zone="America/New_York")
        page = await h.page(f"/runs/{here.id}")
        assert page.all("time")[0] == {"datetime": "2026-11-30T20:00:00Z", "title": "2026-11-30 20:00:00 UTC"}
        assert "15:00:00 -05:00" in page.text
        clock.set("2026-12-01T20:00:00Z")
        assert "Mon 15:00:00 -05:00" in (await h.page("/runs")).text
        clock.set("2027-12-01T20:00:00Z")
        assert "30 Nov 2026 15:00:00 -05:00" in (await h.page("/runs")).text


async def test_what_needs_a_person_is_told_in_the_zone_of_its_run(db: str) -> None:
    async with house(db, clock=ManualClock("2026-11-30T20:00:00Z"), time_zone="Asia/Seoul") as h:
        await h.rests("pay", time_zone="America/New_York")
        for address in ("/", "/asks"):
            page = await h.page(address)
            assert "15:00:00 -05:00" in page.text, address
            assert "+09:00" not in page.text, address


async def test_filters_of_runs_stand_in_the_address(at_home: House) -> None:
    mine = await at_home.rests("find", operation_id="needle-7", user="kim")
    other = await at_home.rests("x", "down")
    for query in ("state=completed", "agent=support", "user=kim", "q=NEEDLE", f"session={mine.session}"):
        page = await at_home.page(f"/runs?{query}")
        assert mine.id in page.text, query
        assert other.id not in page.text, query
    assert "No run is like that." in (await at_home.page("/runs?q=haystack")).text
    wrong = await at_home.page("/runs?state=odd", 422)
    assert "is none of queued, running" in wrong.text


async def test_lists_go_on_where_a_page_ends(at_home: House) -> None:
    runs = [await at_home.rt.start("hello", "hi", session=f"s{n:03}") for n in range(60)]
    first = await at_home.page("/runs")
    (older,) = first.all("a", rel="next")
    second = await at_home.page(str(older["href"]))
    shown = [p.html.count(f'id="runs-{r.id}"') for p in (first, second) for r in runs]
    assert (sum(shown[:60]), sum(shown[60:])) == (50, 10)
    assert second.all("a", rel="next") == []
    (further,) = (await at_home.page("/sessions")).all("a", rel="next")
    assert "s055" in (await at_home.page(str(further["href"]))).text


async def test_the_ledger_and_the_asks_go_on_where_a_page_ends(at_home: House) -> None:
    run = await at_home.rests("pay much")
    effects, asks = await run.effects(), await run.asks()
    assert (len(effects), len(asks)) == (60, 60)

    async def shown(address: str, row: str, all: list[str]) -> list[str]:
        first = await at_home.page(address)
        (further,) = first.all("a", rel="next")
        second = await at_home.page(str(further["href"]))
        assert second.all("a", rel="next") == []
        assert f"--after {all[49]}" in second.text  # how the command line goes on there
        on = [[i for i in all if f'id="{row}-{i}"' in page.html] for page in (first, second)]
        assert [len(o) for o in on] == [50, 10]
        return [*on[0], *on[1]]

    of_run, asked = [e.id for e in effects], [a.id for a in asks]
    assert await shown("/effects?state=asked", "effects", of_run) == of_run
    assert await shown("/asks", "ask", asked) == asked  # who waits longest comes first
    (more,) = [a for a in (await at_home.page("/")).all("a") if "/asks?after=" in str(a["href"])]
    assert "ask-" + asked[-1] in (await at_home.page(str(more["href"]))).html
    for ask in asks:
        await ask.deny(by="lee")
    assert await shown("/asks?state=decided", "ask", asked[::-1]) == asked[::-1]  # the latest come first


async def test_ten_thousand_runs_are_listed_quickly(tmp_path: Path) -> None:
    async with house(f"sqlite:///{tmp_path / 'ondol.db'}") as h:
        template = await h.rests("find", operation_id="ticket-7")
        with closing(apsw.Connection(str(tmp_path / "ondol.db"))) as other:
            columns = [c[1] for c in other.execute("PRAGMA table_info(runs)") if c[1] != "n"]
            made = {"id": "'r_' || k", "operation_id": "'o' || k", "session": "'s' || k"}
            other.execute(
                "WITH RECURSIVE k (k) AS (VALUES (1) UNION ALL SELECT k + 1 FROM k WHERE k < 10000) "
                f"INSERT INTO runs ({', '.join(columns)}) SELECT {', '.join(made.get(c, c) for c in columns)} "
                "FROM k, runs WHERE id = ?", [template.id],
            )  # fmt: skip
        took = []
        for address in ("/runs", "/runs?state=completed", "/runs?before=r_5000", "/runs?agent=support") * 2:
            began = time.perf_counter()
            page = await h.page(address)
            took.append(time.perf_counter() - began)
            assert "r_10000" in page.text or "r_4999" in page.text
    assert max(map(min, zip(took[:4], took[4:], strict=True))) < 0.3, took  # the better of two: others use the machine


async def test_an_error_is_a_page_that_says_what_to_do(at_home: House) -> None:
    page = await at_home.page("/runs/r_nobody", 404)
    assert "there is no run 'r_nobody': 'ondol runs' lists them" in page.text
    assert "explain not_found" in page.text
    assert (await at_home.page("/runs/r_nobody/context", 404)).all("h1")
    assert (await at_home.page("/asks?state=odd", 422)).all("h1")


async def test_without_a_token_a_page_asks_for_one_and_keeps_it_from_scripts(db: str) -> None:
    async with house(db, Admission(needs_token=True)) as h:
        run = await h.rests("hi", "hello", user="kim")
        refused = await h.page(f"/runs/{run.id}", 401)
        assert refused.fields("/sign-in") == {"next": f"/runs/{run.id}"}
        _, secret = await access.create_token(h.rt, "laptop", ["admin"])
        let_in = await h.post("/sign-in", token=secret, next=f"/runs/{run.id}")
        assert let_in.to == f"/runs/{run.id}"
        cookie = let_in.answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "Secure" not in cookie
        behind = {"origin": "https://localhost"}  # a proxy has the certificate
        let_in_by_proxy = await h.client.post("/sign-in", data={"token": secret}, headers=behind)
        assert "Secure" in let_in_by_proxy.headers["set-cookie"]
        await h.post("/sign-in", token=secret)
        assert run.id in (await h.page(let_in.to)).text
        assert (await h.post("/sign-out")).to == "/sign-in"
        await h.page("/", 401)
        await h.post("/sign-in", 401, token="")


async def test_somebody_elses_things_are_not_there(db: str) -> None:
    async with house(db, Admission(needs_token=True)) as h:
        run = await h.rests("pay", user="kim", session="kim")
        (ask,) = await run.asks()
        for user, status in (("lee", 404), ("kim", 200)):
            _, secret = await access.create_token(h.rt, user, ["admin"], user=user)
            async with visitor(h.rt, Admission(needs_token=True)) as client:
                theirs = House(h.rt, client)
                await theirs.post("/sign-in", token=secret, next="/")
                for address in (f"/runs/{run.id}", "/session?id=kim", f"/asks/{ask.id}", f"/effects/{ask.effect}",
                                f"/runs/{run.id}/raw", f"/runs/{run.id}/lineage"):  # fmt: skip
                    await theirs.page(address, status)
                for address in ("/", "/runs", "/sessions", "/asks", "/effects"):
                    assert (run.id in (await theirs.page(address)).text) == (status == 200 and address != "/sessions")


async def test_colours_are_chosen_without_a_script_and_lead_nowhere_else(at_home: House) -> None:
    assert (await at_home.page("/runs")).all("html")[0]["data-theme"] == "auto"
    assert (await at_home.post("/theme", theme="dark", next="/runs?state=failed")).to == "/runs?state=failed"
    assert (await at_home.page("/runs")).all("html")[0]["data-theme"] == "dark"
    for elsewhere in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", ""):
        assert (await at_home.post("/theme", theme="light", next=elsewhere)).to == "/", elsewhere
    await at_home.post("/theme", theme='"><script>', next="/")
    assert (await at_home.page("/")).all("html")[0]["data-theme"] == "auto"


async def test_its_files_are_in_the_wheel_and_nothing_else_is_served(at_home: House) -> None:
    for name, media in (("console.css", "text/css"), ("console.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        file = await at_home.client.get(f"/static/{name}")
        assert file.headers["content-type"].startswith(media)
        assert "http" not in file.text.replace("http://www.w3.org/2000/svg", ""), "asks another server"
    for name in ("looks.py", "..%2flooks.py", "%2e%2e/looks.py", "x"):
        assert (await at_home.client.get(f"/static/{name}")).status_code == 404


async def test_below_a_folder_every_address_is_below_it(db: str) -> None:
    async with house(db) as h:
        await everything(h)
        outer = Starlette(routes=[Mount("/floor", app=h.rt.asgi())])
        inside = httpx.ASGITransport(outer, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=inside, base_url="http://localhost") as client:
            below = House(h.rt, client)
            for address in ("/floor/", "/floor/runs", "/floor/asks"):
                page = await below.page(address)
                for tag, attributes in page.elements:
                    for a in ("href", "src", "action"):
                        assert attributes.get(a, "#").startswith(("/floor/", "#")), (tag, attributes)
            assert (await below.post("/floor/theme", theme="dark", next="/runs")).to == "/floor/runs"


async def test_a_compaction_shows_what_is_left_out_and_what_stands_for_it(db: str) -> None:
    model = ScriptedModel(lambda request: f"answer {len(request.messages)} " + "and so on " * 30)
    agent = Agent("talks", model=model, context=ContextPolicy(budget=1_500, keep=1, summary="excerpt"))
    async with Runtime(db, agents=[agent]) as rt, visitor(rt) as client:
        for n in range(30):
            run = await rt.start(agent, f"question {n}", session="s")
            await run.result()
            if (less := (await rt.context(run.id)).compaction) is not None:
                break
        assert less is not None
        page = await House(rt, client).page(f"/runs/{run.id}/context")
        assert "Compacted from this step on" in page.text
        assert "An excerpt stands for the oldest turns" in page.text
        assert "question 0" in page.text.partition("No longer shown, or shown shorter")[2]


async def test_what_was_erased_is_said_to_be(at_home: House) -> None:
    run = await at_home.rests("find", session="kim")
    await (await at_home.rt.get_session("kim")).delete(by="lee")
    page = await at_home.page(f"/runs/{run.id}")
    assert "its session was erased" in page.text
    assert "there is no session" in (await at_home.page("/session?id=kim", 404)).text
    for tab in ("context", "effects", "lineage", "raw"):
        await at_home.page(f"/runs/{run.id}/{tab}")
    await at_home.rests("mail", session="kim")  # the id is used again
    page = await at_home.page("/session?id=kim")
    assert "Erased." in page.text
    assert "told" in page.text


async def test_a_page_of_another_process_shows_what_a_driver_does(db: str) -> None:
    async with house(db) as h:
        run = await h.rests("find")
        async with Runtime(db) as looking, visitor(looking) as client:
            page = await House(looking, client).page(f"/runs/{run.id}")
            assert "found it" in page.text
            assert "nothing can be started here" in (await House(looking, client).page("/")).text


def test_the_console_knows_each_state() -> None:
    others = ("open", "decided", "closed", "safe", "guarded", "blocked", "ok", "note", "wrong")
    for state in (*looking.RUN_STATES, *looking.EFFECT_STATES, *others):
        assert shown.look(state).word == state
    script = (resources.files("ondol.http.console") / "static" / "console.js").read_text()
    assert [kind for kind in KINDS if f'"{kind}"' not in script] == []


async def test_what_a_compaction_would_leave_is_seen_before_it_is_done(at_home: House) -> None:
    for n in range(3):
        run = await at_home.rests(f"say {n} <b>at length</b> " + "and on " * 40, "hello", session="kim")
    before = (await at_home.rt.get_session("kim")).revision
    first = await at_home.page(f"/runs/{run.id}/context")
    assert "sessions compact --preview --keep 3 kim" in first.text
    assert first.fields(f"/runs/{run.id}/context#preview") == {"step": "1"}
    page = await at_home.page(f"/runs/{run.id}/context?step=1&keep=1")
    told = await at_home.rt.compact_session("kim", keep=1, preview=True)
    assert f"{told.first} to {told.last}" in page.text
    assert " ".join(told.summary.split()) in page.text
    assert "<b>at length</b>" not in page.html
    assert "sessions compact --preview --keep 1 kim" in page.text
    assert "there is nothing to compact" in (await at_home.page(f"/runs/{run.id}/context?keep=3")).text
    await at_home.page(f"/runs/{run.id}/context?keep=no", 422)
    assert (await at_home.rt.get_session("kim")).revision == before  # looking changes nothing
