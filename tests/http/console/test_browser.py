"""In a real browser: pages grow, forms decide, nothing else runs, and a killed server is only a pause.

One Chromium and one server for all; the server that is killed is another. Whatever a page does is watched: a request
to another server, a script that fails, a violation of the policy fails the test that opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from chromium import CHROMIUM
from door import door
from house import SCRIPTS, TOOLS
from http_served import served
from kit import Conversation, waits
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect
from providers.loopback import Exchange, LoopbackServer
from providers.openai_server import send_chunk, stalls
from test_hostile import HOSTILE

from ondol import Agent, Answer, Delta, Runtime, Text, access, tool
from ondol.handles import Run
from ondol.http.guard import Admission
from ondol.testing import ScriptedModel, call, error

pytestmark = pytest.mark.asyncio(loop_scope="module")
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
MOST_COLOURS = ("home", "run", "lost", "context", "session", "usage")  # together they have every colour
PATIENCE = 15_000  # milliseconds in which a page must show what happened


class Writer:
    """A model that says half of its answer, and the rest when it is let."""

    name = "writer"

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def stream(self, request: object) -> AsyncIterator[object]:
        yield Delta("Dear Kim, ")
        await self.go_on.wait()
        yield Delta("hello")
        yield Answer(parts=(Text("Dear Kim, hello"),))


@tool(effect="read")
def echo(what: str) -> str:
    """Say it again."""
    return what


class Site(NamedTuple):
    rt: Runtime
    url: str
    browser: Browser
    writer: Writer
    images: Path | None


def hostile_agent() -> Agent:
    def answer(request: Any) -> Any:
        said = request.messages[1].text
        if sum(m.role == "assistant" for m in request.messages) == 0:
            return [call("echo", what=said), call("pay", amount=1, to=said)]
        return said

    return Agent("hostile", model=ScriptedModel(answer), tools=[*TOOLS, echo])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    writer = Writer()
    agents = [
        Agent("support", model=Conversation(SCRIPTS), tools=TOOLS, instructions="Help the customer. Be brief."),
        Agent("writer", model=writer), Agent("down", model=ScriptedModel(lambda _: error("auth"))), hostile_agent(),
    ]  # fmt: skip
    images = request.config.getoption("--screenshots")
    db = f"sqlite:///{tmp_path_factory.mktemp('site') / 'ondol.db'}"
    async with Runtime(db, agents=agents, time_zone="Asia/Seoul") as rt, door(rt) as d, async_playwright() as p:
        browser = await p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield Site(rt, d.url, browser, writer, Path(images) if images else None)
        await in_time(browser.close())


async def in_time(closing: Awaitable[None]) -> None:
    """A browser that does not close by itself is closed with the process that drives it."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(closing, 20)


class Visit:
    """A person with a browser, which is watched."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context, self.url = context, url
        self.wrong: list[str] = []
        context.on("request", lambda r: r.url.startswith(url) or self.wrong.append(f"asked {r.url}"))
        context.on("console", lambda m: m.type == "error" and self.wrong.append(m.text))
        context.on("weberror", lambda e: self.wrong.append(str(e.error)))
        context.on("dialog", lambda d: self.wrong.append(f"a dialog: {d.message}"))

    async def open(self, address: str) -> Page:
        page = await self.context.new_page()
        page.set_default_timeout(PATIENCE)
        await page.goto(self.url + address)
        return page


async def visit(site: Site, **options: Any) -> Visit:
    return Visit(await site.browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options}), site.url)


@pytest_asyncio.fixture(loop_scope="module")
async def person(site: Site) -> AsyncIterator[Visit]:
    visiting = await visit(site)
    yield visiting
    await in_time(visiting.context.close())
    assert visiting.wrong == []


async def shows(page: Page, words: str, where: str = "main") -> None:
    await expect(page.locator(where)).to_contain_text(words, timeout=PATIENCE)


async def lacks(page: Page, words: str, where: str = "main") -> None:
    await expect(page.locator(where)).not_to_contain_text(words, timeout=PATIENCE)


async def at(run: Run, status: str) -> Run:
    """The run, once it is in that state."""
    while (await run.refresh()).status != status:
        async for _ in run.events(through_asks=True):
            if (await run.refresh()).status == status:
                break
    return run


# --- growing ----------------------------------------------------------------------------------------------------


async def test_an_answer_grows_and_survives_a_reload_in_its_middle_in_two_tabs(site: Site, person: Visit) -> None:
    site.writer.go_on.clear()
    chat = await person.open("/sessions")
    await chat.fill("textarea[name=text]", "Write to kim")
    await chat.select_option("select[name=agent]", "writer")
    await chat.fill("input[name=session]", "letter")
    await chat.click("button:has-text('Start')")
    await shows(chat, "Dear Kim, ", ".draft")
    other = await person.open("/session?id=letter")
    await shows(other, "Dear Kim, ", ".draft")
    await chat.reload()
    await shows(chat, "Dear Kim, ", ".draft")
    site.writer.go_on.set()
    for page in (chat, other):
        await shows(page, "Dear Kim, hello", ".bubble:not(.me):not(.draft)")
        await shows(page, "completed", ".foot")
        await expect(page.locator(".draft")).to_have_count(0)
        assert (await page.locator(".bubble").all_inner_texts())[-1] == "Dear Kim, hello"


async def test_what_a_killed_server_had_said_of_an_answer_is_taken_back(site: Site, tmp_path: Path) -> None:
    asked_again, db = asyncio.Event(), f"sqlite:///{tmp_path / 'ondol.db'}"

    async def says_late(exchange: Exchange) -> None:
        await exchange.open_stream()
        await asked_again.wait()
        await send_chunk(exchange, {"content": "Dear Lee"})
        await exchange.gone.wait()

    async with LoopbackServer().running() as provider:
        provider.will(stalls({"content": "Dear Kim"}), says_late)
        async with served(db, provider, tmp_path) as (_, url):
            person = Visit(await site.browser.new_context(), url)
            page = await person.open("/sessions")
            await page.fill("textarea[name=text]", "Write to kim")
            await page.fill("input[name=session]", "letter")
            await page.click("button:has-text('Start')")
            draft = page.locator("[data-draft]")
            await expect(draft).to_have_text("Dear Kim", timeout=PATIENCE)
        async with served(db, provider, tmp_path, "--port", url.rpartition(":")[2]):  # the one before was killed
            await provider.exchange(2)
            await expect(page.locator("#link")).to_have_text("live", timeout=PATIENCE)
            asked_again.set()
            await expect(draft).to_have_text("Dear Lee", timeout=PATIENCE)
            await in_time(person.context.close())


async def written(site: Site, session: str) -> None:
    """A session with one letter in it; the next one stops in its middle."""
    site.writer.go_on.set()
    await site.rt.run("writer", "Write to kim", session=session)
    site.writer.go_on.clear()


async def test_closing_the_tab_leaves_the_run_going_and_opening_it_shows_it(site: Site, person: Visit) -> None:
    await written(site, "closing")
    chat = await person.open("/session?id=closing")
    await chat.fill("textarea[name=text]", "And to lee")
    await chat.keyboard.press("Control+Enter")
    await shows(chat, "Dear Kim, ", ".draft")
    await chat.close()
    site.writer.go_on.set()
    run = (await site.rt.runs(session="closing", limit=1))[0]
    await run.result()
    again = await person.open("/session?id=closing")
    await expect(again.locator(".turn")).to_have_count(2)
    await shows(again, "completed", ".turn:last-child .foot")


async def test_stop_in_a_conversation_cancels_the_turn(site: Site, person: Visit) -> None:
    await written(site, "stopping")
    chat = await person.open("/session?id=stopping")
    await chat.fill("textarea[name=text]", "Never mind")
    await chat.click("button:has-text('Send')")
    await shows(chat, "Dear Kim, ", ".draft")
    await chat.click(".foot button:has-text('Stop')")
    await shows(chat, "cancelled", ".turn:last-child .foot")
    site.writer.go_on.set()
    assert (await site.rt.runs(session="stopping", limit=1))[0].status == "cancelled"


async def test_a_run_started_elsewhere_appears_in_an_open_conversation(site: Site, person: Visit) -> None:
    await (await site.rt.start("support", "find", session="kim")).result()
    chat = await person.open("/session?id=kim")
    await shows(chat, "found it")
    await shows(chat, "live", "#link")
    await site.rt.start("support", "pay", session="kim", user="kim")
    await shows(chat, "approval", ".turn:last-child .card.ask")


async def test_what_a_message_does_to_a_run_can_be_chosen_once_there_is_one(site: Site, person: Visit) -> None:
    await written(site, "choosing")
    chat = await person.open("/session?id=choosing")
    await shows(chat, "live", "#link")
    await chat.fill("textarea[name=text]", "Be short")
    choice = chat.locator("select[name=if_busy]")
    await expect(choice).to_have_count(0)
    run = await site.rt.start("writer", "And to lee", session="choosing")
    await choice.select_option("interrupt", timeout=PATIENCE)
    await shows(chat, "Dear Kim, ", ".draft")
    await expect(choice).to_have_value("interrupt")
    site.writer.go_on.set()
    await run.result()
    await expect(choice).to_have_count(0, timeout=PATIENCE)
    await expect(chat.locator("textarea[name=text]")).to_have_value("Be short")


# --- deciding ---------------------------------------------------------------------------------------------------


async def asked(site: Site, said: str = "pay") -> Run:
    run = await site.rt.start("support", said)
    await waits(run)
    return run


async def test_approve_on_the_run_and_see_it_go_on(site: Site, person: Visit) -> None:
    run = await asked(site)
    page = await person.open(f"/runs/{run.id}")
    await shows(page, "30", ".card.ask .args")
    await page.click("button:has-text('Approve')")
    await shows(page, "completed", "#title")
    await shows(page, "Completed", "#timeline")
    await expect(page.locator(".card.ask")).to_have_count(0)


async def test_deny_says_why_and_edit_replaces_in_full(site: Site, person: Visit) -> None:
    denied, edited = await asked(site), await asked(site)
    page = await person.open(f"/runs/{denied.id}")
    await page.fill("input[name=reason]", "too much")
    await page.press("input[name=reason]", "Enter")  # that decides nothing: not what comes first, either
    await page.click("button:has-text('Deny')")
    await shows(page, "denied", "#timeline")
    page = await person.open(f"/runs/{edited.id}")
    await page.click("summary:has-text('Approve with other arguments')")
    await page.fill("textarea[name=arguments]", '{"amount": "much"}')
    await page.click("button:has-text('Approve these')")
    await shows(page, "amount", ".alert")
    assert [w for w in person.wrong if "422" in w] == person.wrong  # Chromium says so of a page, too
    person.wrong.clear()
    await expect(page.locator("textarea[name=arguments]")).to_have_value('{"amount": "much"}')
    await page.fill("textarea[name=arguments]", '{"amount": 7, "to": "lee"}')
    await page.click("button:has-text('Approve these')")
    await edited.result()
    (effect,) = await edited.effects()
    assert effect.arguments == {"amount": 7, "to": "lee"}


async def test_decided_elsewhere_is_seen_at_once_and_a_stale_page_decides_nothing(site: Site, person: Visit) -> None:
    run, stale = await asked(site), await asked(site)
    page = await person.open(f"/runs/{run.id}")
    await shows(page, "Approve", ".card.ask")
    for ask in await run.asks():
        await ask.deny(by="lee")
    await expect(page.locator(".card.ask")).to_have_count(0, timeout=PATIENCE)
    plain = await visit(site, java_script_enabled=False)  # it does not hear of it
    page = await plain.open(f"/runs/{stale.id}")
    (ask,) = await stale.asks()
    await ask.deny(by="lee")
    await page.click("button:has-text('Approve')")
    await shows(page, "already decided")
    await shows(page, "deny by lee")
    await plain.context.close()
    assert (await site.rt.get_ask(ask.id)).decision == "deny"


async def test_what_is_being_written_is_kept_when_the_ask_is_decided_elsewhere(site: Site, person: Visit) -> None:
    run = await asked(site)
    page = await person.open(f"/runs/{run.id}")
    await page.fill("input[name=reason]", "I was about to say")
    for ask in await run.asks():
        await ask.approve(by="lee")
    await shows(page, "This changed meanwhile", ".card.ask")
    await expect(page.locator("input[name=reason]")).to_have_value("I was about to say")


async def test_the_inbox_and_home_fill_and_empty_by_themselves(site: Site, person: Visit) -> None:
    home, inbox = await person.open("/"), await person.open("/asks")
    run = await asked(site, "leave")
    (ask,) = await run.asks()
    await home.bring_to_front()
    await shows(home, "Delete the mailbox too?", f"#ask-{ask.id}")
    await home.click(f"#ask-{ask.id} button:has-text('Yes')")
    await inbox.bring_to_front()
    await expect(inbox.locator(f"#ask-{ask.id}")).to_have_count(0, timeout=PATIENCE)
    assert (await run.result()).text == "bye"


# --- a token that ends -----------------------------------------------------------------------------------------


async def test_an_open_page_says_that_its_token_does_not_count_any_more(site: Site, db: str) -> None:
    agents = [Agent("support", model=Conversation(SCRIPTS), tools=TOOLS)]
    async with Runtime(db, agents=agents) as rt, door(rt, Admission(needs_token=True), heartbeat=0.2) as guarded:
        token, secret = await access.create_token(rt, "kim", ["admin"])
        run = await rt.start("support", "pay")
        await waits(run)
        person = Visit(await site.browser.new_context(), guarded.url)
        page = await person.open("/sign-in")
        await page.fill("input[type=password]", secret)
        await page.keyboard.press("Enter")
        await page.wait_for_url(guarded.url + "/")
        await page.goto(f"{guarded.url}/runs/{run.id}")
        await shows(page, "live", "#link")
        asks = await person.open("/asks")  # which asks again every few seconds
        await access.revoke_token(rt, token.id)
        await shows(asks, "signed out: load the page again", "#link")
        await page.bring_to_front()
        await shows(page, "signed out: load the page again", "#link")
        await page.reload()
        await expect(page.locator("input[type=password]")).to_be_visible()
        await person.context.close()
    assert [w for w in person.wrong if "401" not in w] == []


# --- for everybody ----------------------------------------------------------------------------------------------


async def addresses(site: Site) -> dict[str, str]:
    """One page of each kind, with something on it."""
    found = await site.rt.start("support", "find", session="all", user="kim", operation_id="ticket-7")
    await found.result()
    paying, lost = await asked(site), await asked(site, "lost")
    (ask,) = await paying.asks()
    (effect,) = await lost.effects()
    of_run = {tab: f"/runs/{found.id}/{tab}" for tab in ("context", "effects", "lineage", "raw", "replay")}
    return {
        "home": "/", "runs": "/runs", "run": f"/runs/{found.id}", **of_run, "lost": f"/runs/{lost.id}",
        "sessions": "/sessions", "session": "/session?id=all", "asks": "/asks", "ask": f"/asks/{ask.id}",
        "ledger": "/effects", "effect": f"/effects/{effect.id}", "usage": "/usage", "system": "/system?checks=true",
        "sign-in": "/sign-in",
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("colours", "width"), [("light", 1280), ("dark", 375)])
async def test_everybody_can_read_and_use_every_page_light_dark_and_narrow(
    site: Site, colours: Any, width: int
) -> None:
    pages = await addresses(site)
    size: Any = {"width": width, "height": 800}
    person = await visit(site, color_scheme=colours, viewport=size)
    page = await person.open("/")
    for name, address in pages.items():
        await page.goto(person.url + address)
        await page.evaluate("for (const d of document.querySelectorAll('main details')) d.open = true")
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, (name, width, wide)
        hidden = await page.evaluate("""[...document.querySelectorAll('.side nav a')]
            .filter(a => a.getBoundingClientRect().right > innerWidth).map(a => a.textContent)""")
        assert hidden == [], name
        unsaid = await page.evaluate("""[...document.querySelectorAll('.rows:not(.raw) td.num:not(:empty)')]
            .filter(td => !td.closest('table').tHead.offsetHeight && !td.dataset.is).map(td => td.textContent)""")
        assert unsaid == [], f"{name}: without the head of its table a number says what it counts"
        dark = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (dark == "rgb(23, 21, 19)") == (colours == "dark"), (name, dark)
        if colours == "light":
            found = await Axe().run(page, options={"resultTypes": ["violations"]})
            assert found.violations_count == 0, (name, found.generate_report())
        elif name in MOST_COLOURS:
            found = await Axe().run(page, options=COLOURS)
            assert found.violations_count == 0, (name, found.generate_report())
        await snap(site, page, f"{name}-{colours}" if width > 400 else f"{name}-narrow", full=False)
    await person.context.close()
    assert person.wrong == []


async def test_everything_but_growing_works_without_javascript(site: Site) -> None:
    person = await visit(site, java_script_enabled=False)
    page = await person.open("/sessions")
    await page.fill("textarea[name=text]", "pay")
    await page.fill("input[name=session]", "plain")
    async with page.expect_navigation():
        await page.click("button:has-text('Start')")
    (run,) = await site.rt.runs(session="plain")
    await waits(run)
    await page.reload()
    async with page.expect_navigation():
        await page.click(".ask button:has-text('Approve')")
    await run.result()
    await page.reload()
    await shows(page, "completed", ".foot")
    await page.click("button:has-text('dark')")
    assert await page.locator("html").get_attribute("data-theme") == "dark"
    await page.click("nav a:has-text('Runs')")
    await page.select_option("select[name=state]", "completed")
    await page.click("button:has-text('Show')")
    assert "state=completed" in page.url
    await page.click(f"a:has-text('{run.id}')")
    await page.click(".k-tool summary")
    await expect(page.locator(".k-tool .args")).to_be_visible()
    await page.click(".tabs a:has-text('Context')")
    await shows(page, "as recorded")
    await person.context.close()
    assert person.wrong == []


async def test_everything_works_with_a_keyboard_alone(site: Site, person: Visit) -> None:
    run = await asked(site)
    page = await person.open("/")
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await expect(page.locator(".skip")).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await page.keyboard.type("gr")
    await page.wait_for_url("**/runs")
    await page.keyboard.press("/")
    await page.keyboard.type(run.id)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**q=*")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/runs/{run.id}")
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.textContent.trim()") == "Approve":
            break
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where one is cannot be seen"
    await page.keyboard.press("Enter")
    await shows(page, "Completed", "#timeline")
    await page.wait_for_load_state()
    await page.keyboard.press("?")
    await expect(page.locator("#keys")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("#keys")).to_be_hidden()


async def test_a_double_click_is_one_run(site: Site, person: Visit) -> None:
    page = await person.open("/sessions")
    await page.fill("textarea[name=text]", "find")
    await page.fill("input[name=session]", "twice")
    await page.dblclick("button:has-text('Start')")
    await shows(page, "found it")
    assert len(await site.rt.runs(session="twice")) == 1


async def test_no_text_of_somebody_else_runs(site: Site, person: Visit) -> None:
    texts = [t for t in HOSTILE if t.strip() and t.isprintable()][:60]
    everything = "\n".join(HOSTILE).replace("\x00", "")
    runs = [await site.rt.start("hostile", text, session=f"{text[:150]}!", operation_id=text[:150]) for text in texts]
    runs.append(await site.rt.start("hostile", everything, session="everything"))
    for run in runs:
        await waits(run)
    (effect, _), (ask,) = await runs[-1].effects(), await runs[-1].asks()
    page = await person.open("/")
    await person.context.add_init_script("window.x = () => { window.ran = true }")
    of_run = [f"/runs/{runs[-1].id}{tab}" for tab in ("", "/context", "/effects", "/raw")]
    for address in ("/", "/runs", "/asks", "/effects", "/sessions", "/session?id=everything", *of_run,
                    f"/asks/{ask.id}", f"/effects/{effect.id}", "/usage?by=session"):  # fmt: skip
        await page.goto(person.url + address)
        await page.evaluate("for (const d of document.querySelectorAll('main details')) d.open = true")
        assert await page.evaluate("[window.ran, document.querySelectorAll('script').length]") == [None, 1], address


# --- pictures ---------------------------------------------------------------------------------------------------


async def snap(site: Site, page: Page, name: str, *, full: bool = True) -> None:
    """A picture for the documents, where the test run was asked for them."""
    if site.images is not None:
        site.images.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=site.images / f"{name}.png", full_page=full)
