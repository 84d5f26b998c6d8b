"""Places where a client library would send a second request of its own."""

from __future__ import annotations

import base64
import contextlib

import pytest
from providers.loopback import LoopbackServer, answers_with
from providers.wires.anthropic import Anthropic
from providers.wires.google import Google
from providers.wires.script import Exchange, Frame, Say, answers, send

from ondol.errors import ModelError
from ondol.messages import Message, Reasoning, Text, user
from ondol.model import ModelRequest

STALE = "messages.1.content.0: The block is bound to a different conversation."


async def test_thinking_of_an_earlier_turn_is_dropped_by_the_provider_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn shows another time, and some models bind their thinking to all that stood before it."""
    wire = Anthropic()
    refused = {"type": "error", "error": {"type": "invalid_request_error", "message": STALE}}
    async with LoopbackServer().running() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", wire.url(server.host))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        async with contextlib.aclosing(wire.make("claude-opus-5-5", timeout=30, stream=True)) as model:
            thought = Reasoning("hm", {"name": "anthropic", "host": server.host, "signature": "c2ln"})
            said = (user("a"), Message("assistant", (thought, Text("b"))), user("c"))
            request = ModelRequest(messages=said, tools=(), run="r1", step=0, attempt=1)
            server.will(answers(wire, Say(("ok",))), answers_with(400, refused), answers(wire, Say(("again",))))
            assert [o async for o in model.stream(request)]
            body = server.exchanges[0].body
            assert body["thinking"] == {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
            assert "c2ln" in str(body["messages"])
            with pytest.raises(ModelError) as caught:
                _ = [o async for o in model.stream(request)]
        assert caught.value.kind == "rejected"
        assert server.requests == 2


async def test_a_long_answer_is_not_continued_in_a_request_of_the_clients_own(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Google()

    async def breaks_off_with_a_token(exchange: Exchange) -> None:
        (frame,) = wire.frames([Say(("half",))], None, None)
        assert isinstance(frame.data, dict)
        frame.data["candidates"][0]["continuationToken"] = base64.b64encode(b"t").decode()
        await exchange.open_stream()
        await send(exchange, [Frame(frame.data)])
        await exchange.end_stream()

    async with LoopbackServer().running() as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", wire.url(server.host))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        server.will(breaks_off_with_a_token, answers(wire, Say((" and half",))))
        async with contextlib.aclosing(wire.make("gemini-4-carbon", timeout=30, stream=True)) as model:
            request = ModelRequest(messages=(user("a"),), tools=(), run="r1", step=0, attempt=1)
            with pytest.raises(ModelError) as caught:
                _ = [o async for o in model.stream(request)]
        assert caught.value.kind == "connection"
        assert server.requests == 1
