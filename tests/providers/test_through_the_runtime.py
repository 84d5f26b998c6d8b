"""A whole runtime on real wires: attachments reach the model, and a session may change its provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from providers.loopback import LoopbackServer
from providers.wires.anthropic import Anthropic
from providers.wires.google import Google
from providers.wires.openai_chat import OpenAIChat
from providers.wires.openai_responses import OpenAIResponses
from providers.wires.script import Attached, Call, Say, Think, Wire, answers

from ondol import Agent, RunFailed, Runtime, tool

PNG = b"\x89PNG\r\n\x1a\n..."
MODELS: dict[str, str] = {
    "openai": "openai:gpt-5.2",
    "openai-responses": "openai-responses:gpt-5.2",
    "anthropic": "anthropic:claude-sonnet-4-6",
    "google": "google:gemini-3.1-pro-preview",
}


@tool(effect="read")
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is warm"


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LoopbackServer]:
    async with LoopbackServer().running() as running:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for wire in (OpenAIChat(), OpenAIResponses(), Anthropic(), Google()):
            monkeypatch.setenv(wire.url_variable, wire.url(running.host))
        yield running


@pytest.mark.parametrize("wire", [OpenAIChat(), OpenAIResponses(), Anthropic(), Google()], ids=lambda w: w.name)
async def test_attached_bytes_reach_the_model_in_this_turn_and_the_next(
    server: LoopbackServer, wire: Wire, tmp_path: Path
) -> None:
    (tmp_path / "receipt.png").write_bytes(PNG)
    agent = Agent("eye", model=MODELS[wire.name])
    server.will(answers(wire, Say(("a receipt",))), answers(wire, Say(("yes",))))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        await rt.run(agent, "what is this?", session="s", attachments=[tmp_path / "receipt.png"])
    (tmp_path / "receipt.png").unlink()
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        await rt.run(agent, "sure?", session="s")
    assert [wire.files(e.body) for e in server.exchanges] == [[Attached("image/png", PNG)]] * 2


async def test_bytes_that_a_model_does_not_take_end_the_run_with_the_reason(
    server: LoopbackServer, tmp_path: Path
) -> None:
    agent = Agent("eye", model=MODELS["anthropic"])
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]) as rt:
        with pytest.raises(RunFailed, match=r"does not take application/octet-stream \(attachment\)") as failed:
            await rt.run(agent, "look", attachments=[b"\0\1"])
    assert failed.value.error["code"] == "model_rejected"
    assert not failed.value.retryable
    assert server.requests == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Anthropic(), OpenAIResponses()),
        (OpenAIResponses(), Anthropic()),
        (Anthropic(), OpenAIChat()),
        (Google(), Anthropic()),
        (OpenAIResponses(), OpenAIChat()),
    ],
    ids=lambda wire: wire.name,
)
async def test_a_session_goes_on_with_another_provider_and_back(
    server: LoopbackServer, first: Wire, second: Wire, tmp_path: Path
) -> None:
    one = Agent("one", model=MODELS[first.name], tools=[look])
    two = Agent("two", model=MODELS[second.name], tools=[look])
    thinks = Think(("let me see",), "c2lnbmVk")
    for wire, id in ((first, "call_a"), (second, "call_b")):
        looks = Call(id, "look", ('{"at":', '"ondol"}'))
        server.will(answers(wire, thinks, looks), answers(wire, Say(("it is warm",))))
    server.will(answers(first, Say(("told you",))))
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[one, two]) as rt:
        for agent, said in ((one, "how is it?"), (two, "look again"), (one, "so?")):
            await rt.run(agent, said, session="s")
    own, _, other, _, again = (exchange.body for exchange in server.exchanges[0:5])
    assert first.calls(own) == []
    assert second.calls(other) == [("call_a", "ondol is warm")]
    assert first.calls(again) == [("call_a", "ondol is warm"), ("call_b", "ondol is warm")]
    marks = ("c2lnbmVk", "YzJsbmJtVms")
    assert not any(mark in str(other) for mark in marks)
    assert sum(str(again).count(mark) for mark in marks) == 1
