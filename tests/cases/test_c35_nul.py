"""C35: a text with U+0000 is stored like any other, and no row of the store holds that character.

PostgreSQL has no room for it, neither in ``text`` nor, escaped, in ``jsonb``. So it may not come as far as a store.
Left out until it exists: PostgreSQL itself; facts of the memory.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import behind
import pytest
from kit import Conversation, Outside, holds_in_all_cases, results, waits

from ondol import Agent, Context, NotDone, Runtime, tool
from ondol.messages import Message, Text, ToolCall, ToolResponse, unpack
from ondol.testing import Downstream, call, error

pytestmark = pytest.mark.both_stores

SAW = "saw it"
LITERAL = r"\u0000 and \\u0000"  # the characters themselves: no text is what it looks like in JSON
FILE = "온돌 ok".encode("utf-16-le").decode("latin-1")  # a file read with the wrong encoding


def texts_of(db: str) -> Iterator[tuple[str, str]]:
    """Every text in the store, and where it stands."""
    for place, value in behind.values(db):
        text = unpack(value) if isinstance(value, bytes) else value
        if isinstance(text, str):
            yield place, text


def _said(message: Message) -> Iterator[str]:
    """All that a message says, as its model reads it."""
    for part in message.parts:
        if isinstance(part, ToolCall):
            yield from _inside(part.arguments)
        elif isinstance(part, Text | ToolResponse):
            yield part.text


def _inside(stored: Any) -> Iterator[str]:
    match stored:
        case str():
            yield stored
        case dict():
            yield from stored
            yield from _inside(list(stored.values()))
        case list():
            for inner in stored:
                yield from _inside(inner)


def assert_storable(db: str) -> None:
    texts = list(texts_of(db))
    assert len(texts) > 20
    for place, text in texts:
        assert "\0" not in text, place
        text.encode()
        with contextlib.suppress(ValueError):  # it is no JSON
            assert not any("\0" in inner for inner in _inside(json.loads(text))), f"{place}: {text}"
    assert {"messages.body", "entries.body", "effects.arguments"} <= {place for place, _ in texts}


@tool
async def echo(ctx: Context[Outside], text: str, more: dict[str, Any] | None = None) -> Any:
    await ctx.deps.effect(ctx, "echo")
    ctx.state[text] = text
    return {text: [text, more]}


@pytest.mark.parametrize("text", ["\0", "a\0b", "\0\0온돌\0", "\\\0", FILE, LITERAL, "\0" + LITERAL + "\ud800"])
async def test_c35_in_every_place_it_is_read_back_as_it_was(db: str, downstream: Downstream, text: str) -> None:
    sent = text.replace("\0", "\u2400").replace("\ud800", "?")
    more = {"k" + text: LITERAL, "n": [text]} if "\ud800" not in text else None
    given = text.replace("\ud800", "")  # of arguments: no text of a tool can hold it
    agent = Agent("a", model=Conversation({sent: [call("echo", text=given, more=more), text]}), tools=[echo])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, text, session="s", operation_id="m1")
        assert (await run.result()).text == text
        said, asked, got, answered = await run.messages()
        assert (said.text, answered.text) == (text, text)
        assert asked.calls[0].arguments == {"text": given, "more": more}
        assert results([got])[0].value == {given: [given, more]}
        (effect,) = await run.effects()
        assert (effect.state, effect.warning, effect.arguments) == ("succeeded", None, asked.calls[0].arguments)
        assert (await rt.get_session("s")).state == {given: given}
        second = agent.model.of[sent].requests[1]  # type: ignore[union-attr]
        assert not any("\0" in t for m in second.messages for t in _said(m))
        await holds_in_all_cases(rt, db, agent, "s", downstream)
    assert_storable(db)


async def test_c35_in_the_words_of_people_and_of_exceptions_a_sign_stands_for_it(
    db: str, downstream: Downstream
) -> None:
    @tool(effect="read")
    async def read() -> str:
        raise ValueError(f"bad\0 {LITERAL}")

    @tool
    async def refuse() -> str:
        raise NotDone(f"not\0 done {LITERAL}")

    @tool
    async def lose() -> str:
        raise ValueError(f"lost\0 {LITERAL}")

    @tool(approve=True)
    async def wait() -> str:
        raise AssertionError("it was called")

    script = [
        [call("read"), call("refuse"), call("lose"), call("wait"), call("no\0tool"), call("read", more="\0")],
        error("rejected", f"the provider\0 {LITERAL}"),
    ]
    agent = Agent(
        "a", model=Conversation({"go": script}), tools=[read, refuse, lose, wait], instructions="\0" + LITERAL
    )
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1")
        for ask in await waits(run):
            if ask.kind == "approval":
                await ask.deny(by="kim", reason=f"no\0 {LITERAL}")
            else:
                await ask.happened({"\0": "\0"}, f"seen\0 {LITERAL}", by="kim")
        with pytest.raises(Exception, match="the provider"):
            await run.result()
        assert run.error is not None
        assert run.error["message"] == f"the provider\u2400 {LITERAL}"
        told = [(r.name, r.text) for r in results(await run.messages())]
        assert told[:3] == [
            ("read", f"ValueError: bad\u2400 {LITERAL}"),
            ("refuse", f"not\u2400 done {LITERAL}"),
            ("lose", '{"\u2400": "\u2400"}'),
        ]
        assert told[3] == ("wait", f"kim refused this call: no\u2400 {LITERAL}")
        assert "there is no tool 'no\u2400tool'" in told[4][1].replace("\\u2400", "\u2400")
        session = await (await rt.get_session("s")).set_title(f"a\0 {LITERAL}")
        assert session.title == f"a\u2400 {LITERAL}"
        await session.set_state({"\0": "\0", "a": LITERAL})
        assert (await rt.get_session("s")).state == {"\0": "\0", "a": LITERAL}
        assert f"no\u2400 {LITERAL}" in {act.note for act in await rt.audit()}
        await holds_in_all_cases(rt, db, agent, "s", downstream)
    assert_storable(db)


async def test_c35_the_name_of_an_attachment(db: str, tmp_path: Path, downstream: Downstream) -> None:
    file = tmp_path / "온\udcff돌.txt"  # bytes that are no UTF-8, as Python reads them
    file.write_bytes(b"\0\xff")
    agent = Agent("a", model=Conversation({"go": [SAW]}))
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="m1", attachments=[file])
        assert (await run.result()).text == SAW
        (said, _) = await run.messages()
        assert said.parts[1].name == "온\udcff돌.txt"  # type: ignore[union-attr]
        await holds_in_all_cases(rt, db, agent, "s", downstream)
