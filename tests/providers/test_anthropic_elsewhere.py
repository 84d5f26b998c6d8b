"""What servers that speak Anthropic's API want otherwise than Anthropic does."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from providers.loopback import LoopbackServer, answers_with
from providers.wires.anthropic import Anthropic
from providers.wires.script import Call, Say, Think, answers

from ondol.errors import ModelError
from ondol.messages import Message, ToolCall, tool_result, user
from ondol.model import Answer, ModelRequest
from ondol.providers.pydantic_ai import PydanticAIModel

WIRE = Anthropic()
THOUGHT = {"type": "thinking", "thinking": "let me see", "signature": ""}


@pytest.fixture
async def server() -> AsyncIterator[LoopbackServer]:
    async with LoopbackServer().running() as running:
        yield running


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
async def model(
    server: LoopbackServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PydanticAIModel]:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", WIRE.url(server.host))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with contextlib.aclosing(WIRE.make("deepseek-v4-pro", timeout=10, stream=request.param)) as model:
        yield model


async def ask(model: PydanticAIModel, *said: Message) -> Answer:
    *_, last = [o async for o in model.stream(ModelRequest(messages=said, tools=(), run="r1", step=0, attempt=1))]
    assert isinstance(last, Answer)
    return last


def first_blocks(body: dict[str, Any]) -> list[Any]:
    return [m["content"][0] for m in body["messages"] if m["role"] == "assistant"]


async def test_reasoning_that_nobody_signed_goes_back_to_who_gave_it(
    server: LoopbackServer, model: PydanticAIModel
) -> None:
    """As DeepSeek gives it, which refuses the results of a call without the thought before it."""
    server.will(answers(WIRE, Think(("let me ", "see")), Call("c1", "look", ("{}",))), answers(WIRE, Say(("done",))))
    said = [user("look")]
    said += [Message("assistant", (await ask(model, *said)).parts), tool_result("c1", "look", "seen")]
    await ask(model, *said)
    assert first_blocks(server.exchanges[-1].body) == [THOUGHT]


async def test_who_wants_reasoning_with_each_call_gets_some_from_the_next_attempt_on(
    server: LoopbackServer, model: PydanticAIModel
) -> None:
    """Also with one that another model made."""
    said = [user("look"), Message("assistant", (ToolCall("c1", "look", {}),)), tool_result("c1", "look", "seen")]
    refusal = "The `content[].thinking` in the thinking mode must be passed back to the API."
    server.will(answers_with(400, {"error": {"message": refusal}}), answers(WIRE, Say(("done",))))
    with pytest.raises(ModelError) as caught:
        await ask(model, *said)
    assert caught.value.kind == "unavailable"
    await ask(model, *said)
    assert first_blocks(server.exchanges[-1].body) == [{**THOUGHT, "thinking": " "}]


async def test_an_answer_may_leave_the_signature_out(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", WIRE.url(server.host))
    body = WIRE.whole([Think(("let me see",)), Say(("done",))], "end", None)
    del body["content"][0]["signature"]
    server.will(answers_with(200, body))
    async with contextlib.aclosing(WIRE.make("deepseek-v4-pro", timeout=10, stream=False)) as model:
        assert len((await ask(model, user("look"))).parts) == 2
