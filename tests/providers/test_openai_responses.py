"""What servers that speak OpenAI's Responses say otherwise than OpenAI does."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from providers.loopback import Behaviour, Exchange, LoopbackServer
from providers.wires.openai_responses import OpenAIResponses
from providers.wires.script import Call, Said, Say, Think, answers

from ondol.messages import Message, Reasoning, ToolCall, tool_result, user
from ondol.model import Answer, ModelRequest

WIRE = OpenAIResponses()
SAID: list[Said] = [Call("call_a", "look", ('{"at": ', '"a"}')), Call("call_b", "mail", ('{"to": ', '"kim"}'))]
MADE = [("call_a", "look", {"at": "a"}), ("call_b", "mail", {"to": "kim"})]


def streams(*, id: Any, item_id: Any, done_id: Any = "as it began", index: bool = True) -> Behaviour:
    """The calls, with those ids: a function of the number of the call."""

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        for frame in WIRE.frames(SAID, "end", None):
            data: dict[str, Any] = frame.data  # type: ignore[assignment]
            match data:
                case {"type": "response.output_item.added", "item": item}:
                    item["id"] = id(data["output_index"])
                case {"type": "response.output_item.done", "item": item}:
                    item["id"] = (id if done_id == "as it began" else done_id)(data["output_index"])
                case {"item_id": _}:
                    data["item_id"] = item_id(data["output_index"])
            if not index:
                data.pop("output_index", None)
            await exchange.send_event(json.dumps(data), frame.event)
        await exchange.end_stream()

    return behave


@pytest.mark.parametrize(
    "behaviour",
    [
        streams(id=lambda n: None, item_id=lambda n: None),
        streams(id=lambda n: "", item_id=lambda n: ""),
        streams(id=lambda n: f"fc_{n}", item_id=lambda n: None),
        streams(id=lambda n: f"fc_{n}", item_id=lambda n: f"other_{n}", done_id=lambda n: f"third_{n}"),
        streams(id=lambda n: "fc", item_id=lambda n: "fc"),
        streams(id=lambda n: f"fc_{n}", item_id=lambda n: f"fc_{n}", index=False),
    ],
)
async def test_each_call_has_its_arguments_whatever_the_ids_of_its_events(
    behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a call is made without what the model gave, or in the place of another one."""
    async with LoopbackServer().running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", WIRE.url(server.host))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        server.will(behaviour)
        async with contextlib.aclosing(WIRE.make("gpt-5.2", timeout=10, stream=True)) as model:
            request = ModelRequest(messages=[user("look")], tools=(), run="r1", step=0, attempt=1)
            *_, answer = [output async for output in model.stream(request)]
    assert isinstance(answer, Answer)
    assert [(p.id, p.name, p.arguments) for p in answer.parts if isinstance(p, ToolCall)] == MADE


@pytest.mark.parametrize("reasoned", [True, False])
async def test_what_followed_on_reasoning_is_named_only_beside_it(
    reasoned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasoning of earlier turns goes from a request that is too long."""
    said: list[Said] = [Think(("let me see",), "c2lnbmVk"), Say(("I look",)), SAID[0]]
    async with LoopbackServer().running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", WIRE.url(server.host))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        server.will(answers(WIRE, *said), answers(WIRE, Say(("warm",))))
        async with contextlib.aclosing(WIRE.make("gpt-5.2", timeout=10, stream=True)) as model:
            request = ModelRequest(messages=[user("look")], tools=(), run="r1", step=0, attempt=1)
            *_, answer = [output async for output in model.stream(request)]
            assert isinstance(answer, Answer)
            parts = tuple(p for p in answer.parts if reasoned or not isinstance(p, Reasoning))
            told = [user("look"), Message("assistant", parts), tool_result("call_a", "look", "warm")]
            *_, answer = [output async for output in model.stream(replace(request, messages=told))]
    items = [item for item in server.exchanges[1].body["input"] if item.get("type") != "function_call_output"]
    named = ["rs_0", "msg_1", "fc_2"] if reasoned else [None, None]
    assert [item.get("id") for item in items[1:]] == named
    assert ("c2lnbmVk" in str(items)) == reasoned
