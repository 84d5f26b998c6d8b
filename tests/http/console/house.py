"""What do the tests of the console share? A runtime with something to lose behind pages, and a reader of pages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from html.parser import HTMLParser
from typing import Any, NamedTuple

import httpx
from kit import Conversation

from ondol import Agent, Context, Runtime, tool
from ondol.errors import OndolError
from ondol.handles import Run
from ondol.http.app import make_app
from ondol.http.guard import Admission
from ondol.testing import ScriptedModel, call, error


@tool(effect="read")
def find_order(order_id: str) -> dict[str, str]:
    """Look an order up."""
    return {"order": order_id, "paid": "30.00"}


@tool(approve=True)
def pay(amount: int, to: str = "kim") -> str:
    """Pay."""
    return f"paid {amount} to {to}"


@tool(effect="once")
def send_email(to: str, body: str) -> str:
    """Send one e-mail."""
    if to == "nowhere":
        raise RuntimeError("connection reset")
    return "sent"


@tool(effect="steps")
async def offboard(ctx: Context[None], who: str) -> str:
    """Close an account."""
    return "deleted" if await ctx.ask("Delete the mailbox too?", schema=bool) else "kept"


TOOLS = [find_order, pay, send_email, offboard]
SCRIPTS = {
    "find": [call("find_order", order_id="1182"), "found it"],
    "pay": [call("pay", amount=30), "done"],
    "pay much": [[call("pay", amount=n) for n in range(60)], "done"],
    "mail": [call("send_email", to="kim", body="hi"), "told"],
    "lost": [call("send_email", to="nowhere", body="hi"), "told"],
    "leave": [call("offboard", who="lee"), "bye"],
}


def agents() -> list[Agent]:
    down = ScriptedModel(lambda _: error("auth"))
    return [
        Agent("support", model=Conversation(SCRIPTS), tools=TOOLS, instructions="Be brief."),
        Agent("hello", model=ScriptedModel(lambda _: "hello")),
        Agent("down", model=down),
    ]


class House(NamedTuple):
    rt: Runtime
    client: httpx.AsyncClient

    async def page(self, address: str, status: int = 200, **options: Any) -> Page:
        answer = await self.client.get(address, **options)
        assert answer.status_code == status, (address, answer.status_code, answer.text[:3000])
        return Page(answer)

    async def post(self, address: str, status: int = 303, **fields: str) -> Page:
        """Send a form. Pages that are redirected to are not followed."""
        answer = await self.client.post(address, data=fields)
        assert answer.status_code == status, (address, answer.status_code, answer.text[:3000])
        return Page(answer)

    async def rests(self, said: str, agent: str = "support", **options: Any) -> Run:
        """A run of that, once it rests."""
        run = await self.rt.start(agent, said, **options)
        with contextlib.suppress(OndolError):
            await run.result()
        return await run.refresh()


@contextlib.asynccontextmanager
async def house(db: str, admission: Admission | None = None, **options: Any) -> AsyncIterator[House]:
    async with Runtime(db, agents=agents(), **options) as rt, visitor(rt, admission) as client:
        yield House(rt, client)


@contextlib.asynccontextmanager
async def visitor(rt: Runtime, admission: Admission | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A browser without a window, on this machine."""
    app = httpx.ASGITransport(make_app(rt, admission), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=app, base_url="http://localhost", timeout=30) as client:
        yield client


class Page:
    """An answer, read as HTML."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer, self.html = answer, answer.text
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._text: list[str] = []
        reader = _Reader(self.elements, self._text)
        reader.feed(self.html)
        reader.close()

    @property
    def text(self) -> str:
        """What a person reads, in one line."""
        return " ".join(" ".join(self._text).split())

    @property
    def to(self) -> str:
        return self.answer.headers["location"]

    def all(self, tag: str, **attributes: str) -> list[Mapping[str, str | None]]:
        wanted = attributes.items()
        return [found for name, found in self.elements if name == tag and wanted <= found.items()]

    def fields(self, action: str) -> dict[str, str]:
        """The hidden fields of the first form that sends to this address."""
        form = re.search(rf'<form[^>]*action="{re.escape(action)}".*?</form>', self.html, re.S)
        assert form is not None, f"no form for {action} in {self.html[:3000]}"
        inside = Page(httpx.Response(200, text=form[0]))
        return {str(i["name"]): i["value"] or "" for i in inside.all("input", type="hidden")}


class _Reader(HTMLParser):
    def __init__(self, elements: list[tuple[str, dict[str, str | None]]], text: list[str]) -> None:
        super().__init__()
        self._elements, self._text = elements, text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self._text.append(data)
