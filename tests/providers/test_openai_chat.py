"""What Ondol may rely on when a model speaks OpenAI's chat completions, checked against a real loopback server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from providers.loopback import Behaviour, Exchange, LoopbackServer, answers_with, keeps_open
from providers.openai_server import (
    call,
    calling,
    close_stream,
    drops,
    fails,
    insufficient_quota,
    rate_limited,
    says,
    send_chunk,
    stalls,
    streams,
)

from ondol import values
from ondol.errors import InvalidInput, ModelError
from ondol.messages import (
    Attachment,
    Message,
    Reasoning,
    Text,
    ToolCall,
    UnknownPart,
    parse_arguments,
    runtime_note,
    tool_result,
    user,
)
from ondol.model import Answer, Delta, ModelOutput, ModelRequest, ToolSpec, why_no_answer
from ondol.providers.openai import openai_chat
from ondol.providers.pydantic_ai import PydanticAIModel

PATIENCE = 30.0  # seconds; longer than any test may take, so it never decides one


@pytest.fixture
async def server() -> AsyncIterator[LoopbackServer]:
    async with LoopbackServer().running() as running:
        yield running


@pytest.fixture
async def model(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PydanticAIModel]:
    async with contextlib.aclosing(at(url(server), monkeypatch)) as model:
        yield model


def url(server: LoopbackServer) -> str:
    return f"http://{server.host}/v1"


def at(url: str, monkeypatch: pytest.MonkeyPatch, timeout: float = PATIENCE, *, stream: bool = True) -> PydanticAIModel:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return openai_chat("gpt-5.2", timeout=timeout, stream=stream)


async def load(attachment: Attachment) -> bytes:
    return b"cat"


def asking(*messages: Message, tools: Sequence[ToolSpec] = ()) -> ModelRequest:
    return ModelRequest(messages=messages or (user("hello"),), tools=tools, run="r1", step=0, attempt=1, load=load)


async def outputs(model: PydanticAIModel, *messages: Message, tools: Sequence[ToolSpec] = ()) -> list[ModelOutput]:
    return [output async for output in model.stream(asking(*messages, tools=tools))]


async def answer(model: PydanticAIModel, *messages: Message, tools: Sequence[ToolSpec] = ()) -> Answer:
    *deltas, last = await outputs(model, *messages, tools=tools)
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert isinstance(last, Answer)
    return last


async def failure(model: PydanticAIModel) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await outputs(model)
    return caught.value


async def sent(server: LoopbackServer, model: PydanticAIModel, *messages: Message) -> list[dict[str, Any]]:
    """The messages as they arrive at the provider."""
    server.will(says("ok"))
    await outputs(model, *messages)
    return server.exchanges[-1].body["messages"]


# What an answer is


async def test_text_comes_in_pieces_and_then_as_one_answer(server: LoopbackServer, model: PydanticAIModel) -> None:
    server.will(says("Guten", " Tag ", "온돌"))
    assert await outputs(model) == [
        Delta("Guten"),
        Delta(" Tag "),
        Delta("온돌"),
        Answer(parts=(Text("Guten Tag 온돌"),), stop="stop", input_tokens=11, output_tokens=7, model="served-1"),
    ]
    assert model.name == "openai:gpt-5.2"
    exchange = server.exchanges[0]
    assert exchange.body["model"] == "gpt-5.2"
    assert exchange.body["stream"] is True
    assert exchange.body["stream_options"] == {"include_usage": True}
    assert exchange.headers["authorization"] == "Bearer sk-test"
    assert float(exchange.headers["x-stainless-read-timeout"]) == PATIENCE


async def test_reasoning_is_streamed_apart_from_the_text(server: LoopbackServer, model: PydanticAIModel) -> None:
    server.will(streams({"reasoning_content": "let me "}, {"reasoning_content": "see"}, {"content": "42"}))
    *deltas, last = await outputs(model)
    assert deltas == [Delta("let me ", "reasoning"), Delta("see", "reasoning"), Delta("42")]
    assert isinstance(last, Answer)
    origin = {"name": "openai", "host": server.host, "id": "reasoning_content"}
    assert last.parts == (Reasoning("let me see", origin), Text("42"))


@pytest.mark.parametrize(
    "pieces", [("<think>", "hm", "</think>", "42"), ("<think>h", "m</think>\n\n42"), ("<think>hm</think>",)]
)
async def test_what_stands_between_tags_is_reasoning_however_it_comes(
    server: LoopbackServer, model: PydanticAIModel, pieces: tuple[str, ...]
) -> None:
    """As servers send it that do not know the model."""
    server.will(streams(*({"content": piece} for piece in pieces)))
    reasoning, *text = (await answer(model)).parts
    assert reasoning == Reasoning("hm")
    assert text == ([Text("42")] if len(pieces) > 1 else [])


async def test_fragments_of_parallel_calls_may_interleave(server: LoopbackServer, model: PydanticAIModel) -> None:
    server.will(
        streams(
            {"content": "two at once"},
            calling(call(0, "call_a", "weather", ""), call(1, "call_b", "mail", '{"to"')),
            calling(call(0, arguments='{"city":')),
            calling(call(1, arguments=': "민수"'), call(0, arguments='"서울"')),
            calling(call(1, arguments="}"), call(0, arguments="}")),
            finish="tool_calls",
        )
    )
    assert await answer(model) == Answer(
        parts=(
            Text("two at once"),
            ToolCall("call_a", "weather", {"city": "서울"}),
            ToolCall("call_b", "mail", {"to": "민수"}),
        ),
        stop="tool_calls",
        input_tokens=11,
        output_tokens=7,
        model="served-1",
    )


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call"])
async def test_calls_are_seen_in_the_parts_not_in_the_finish_reason(
    server: LoopbackServer, model: PydanticAIModel, finish: str
) -> None:
    server.will(streams(calling(call(0, "c1", "now", "{}")), finish=finish), says("no call here", finish=finish))
    with_call, without = await answer(model), await answer(model)
    assert (with_call.stop, with_call.parts) == ("tool_calls", (ToolCall("c1", "now", {}),))
    assert (without.stop, without.parts) == ("stop", (Text("no call here"),))


@pytest.mark.parametrize("finish", ["length", "content_filter", "guardrail_intervened"])
async def test_any_other_finish_reason_is_told_as_it_is(
    server: LoopbackServer, model: PydanticAIModel, finish: str
) -> None:
    server.will(streams({"content": "half an"}, calling(call(0, "c1", "pay", '{"amount": 1')), finish=finish))
    cut_off = await answer(model)
    assert cut_off.stop == finish
    assert cut_off.parts == (Text("half an"), ToolCall("c1", "pay", '{"amount": 1'))


@pytest.mark.parametrize("finish", ["STOP", "eos", "eos_token", "end_turn", "stop_sequence", "tool_use"])
async def test_an_end_in_other_words_is_nothing_unusual(
    server: LoopbackServer, model: PydanticAIModel, finish: str
) -> None:
    """As Together, TGI and gateways say it."""
    server.will(
        streams({"content": "done"}, finish=finish), streams(calling(call(0, "c1", "pay", "{}")), finish=finish)
    )
    assert [(await answer(model)).stop for _ in range(2)] == ["stop", "tool_calls"]


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("model_length", "length"), ("MAX_TOKENS", "length"), ("model_context_window_exceeded", "length"),
        ("sensitive", "content_filter"), ("content_filter: PROHIBITED_CONTENT", "content_filter"),
    ],
)  # fmt: skip
async def test_an_answer_that_was_cut_off_in_other_words_is_one(
    server: LoopbackServer, model: PydanticAIModel, finish: str, stop: str
) -> None:
    """As Mistral and Z.ai say it: none of its calls is made, for it may be one of several."""
    server.will(streams({"content": "half an"}, calling(call(0, "c1", "pay", '{"amount": 1}')), finish=finish))
    assert (await answer(model)).stop == stop


@pytest.mark.parametrize(
    "finish",
    [
        "abort", "error", "Cancelled", "insufficient_system_resource", "network_error",
        "function_call_filter: MALFORMED_FUNCTION_CALL", "MALFORMED_FUNCTION_CALL",
    ],
)  # fmt: skip
async def test_an_end_that_the_server_calls_none_is_no_answer(
    server: LoopbackServer, model: PydanticAIModel, finish: str
) -> None:
    """Neither is half a text the reply, nor is a call made that may be one of several."""
    server.will(streams({"content": "half"}, calling(call(0, "c1", "pay", '{"amount": 1}')), finish=finish))
    error = await failure(model)
    assert (error.kind, error.input_tokens, error.output_tokens) == ("server", 11, 7)


@pytest.mark.parametrize("deltas", [[{"content": "half"}], [calling(call(0, "c1", "pay", '{"amount": 1}'))], []])
async def test_a_stream_that_ends_without_a_finish_reason_is_no_answer(
    server: LoopbackServer, model: PydanticAIModel, deltas: list[dict[str, Any]]
) -> None:
    for done in (False, True):
        server.will(streams(*deltas, finish=None, usage=None, done=done))
        error = await failure(model)
        assert (error.kind, error.sent) == ("connection", True)


async def test_an_answer_is_complete_without_the_protocols_last_word(
    server: LoopbackServer, model: PydanticAIModel
) -> None:
    server.will(streams({"content": "whole"}, usage=None, done=False))
    assert (await answer(model)).parts == (Text("whole"),)


@pytest.mark.parametrize("last", [{"delta": None}, {}])
async def test_the_end_may_come_in_a_piece_that_adds_nothing(
    server: LoopbackServer, model: PydanticAIModel, last: dict[str, Any]
) -> None:
    async def ends(exchange: Exchange) -> None:
        await exchange.open_stream()
        await send_chunk(exchange, {"content": "whole"})
        await exchange.send_event(json.dumps({"id": "1", "choices": [{"index": 0, "finish_reason": "stop", **last}]}))
        await close_stream(exchange)

    server.will(ends)
    assert (await answer(model)).parts == (Text("whole"),)


@pytest.mark.parametrize("said", [None, 0, 2**70], ids=["nothing", "zero", "what cannot be"])
async def test_tokens_are_none_where_the_provider_did_not_say(
    server: LoopbackServer, model: PydanticAIModel, said: int | None
) -> None:
    server.will(*[says("hm", usage=said if said is None else {"prompt_tokens": said, "completion_tokens": said})] * 2)
    for _ in range(2):
        given = await answer(model)
        assert (given.input_tokens, given.output_tokens) == (None, None)


@pytest.mark.filterwarnings("ignore:Pydantic serializer")
async def test_tokens_may_be_written_with_a_point(server: LoopbackServer, model: PydanticAIModel) -> None:
    details = {"cached_tokens": 10.0}
    server.will(says("hm", usage={"prompt_tokens": 11.0, "completion_tokens": 7.0, "prompt_tokens_details": details}))
    given = await answer(model)
    assert (given.input_tokens, given.output_tokens, given.cache_read_tokens) == (11, 7, 10)
    assert why_no_answer(given) is None


async def test_running_totals_of_tokens_are_not_added_up(server: LoopbackServer, model: PydanticAIModel) -> None:
    async def counts_in_every_chunk(exchange: Exchange) -> None:
        await exchange.open_stream()
        for tokens in (1, 2, 3):
            await send_chunk(exchange, {"content": "x"}, usage={"prompt_tokens": 11, "completion_tokens": tokens})
        await send_chunk(exchange, {}, "stop", usage={"prompt_tokens": 11, "completion_tokens": 3})
        await close_stream(exchange)

    server.will(counts_in_every_chunk)
    given = await answer(model)
    assert (given.input_tokens, given.output_tokens) == (11, 3)


# Arguments


@pytest.mark.parametrize(
    "text",
    [
        '{"amount": 1',
        '{"amount": 1, "amount": 100}',
        '{"in": {"amount": 1, "amount": 100}}',
        '{"amount": NaN}',
        '{"amount": -Infinity}',
        '{"amount": 1e400}',
        '{"amount": 1,}',
        "{'amount': 1}",
        '{"amount": 1} {"amount": 2}',
        '```json\n{"amount": 1}\n```',
        '{"note": "line\nbreak"}',
        "[1]",
        '"{}"',
        "null",
        "",
        '{"a":' * 150 + "1" + "}" * 150,
        "[" * 100_000,
        '{"n": ' + "9" * 5000 + "}",
    ],
    ids=lambda text: text[:30] or "empty",
)
async def test_arguments_that_are_not_one_plain_object_stay_text(text: str) -> None:
    assert parse_arguments(text) == text


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (' { "a" : [ 1 , 2.5 , null , true ] } ', {"a": [1, 2.5, None, True]}),
        ('{"n": 12345678901234567890, "s": "\\ud83d\\ude00", "": {}}', {"n": 12345678901234567890, "s": "😀", "": {}}),
        ('{"$ondol": "opaque", "v": 1}', {"$ondol": "opaque", "v": 1}),
    ],
)
async def test_arguments_that_are_an_object_are_read_as_it(text: str, parsed: dict[str, Any]) -> None:
    assert parse_arguments(text) == parsed


async def test_unreadable_arguments_are_kept_word_for_word(server: LoopbackServer, model: PydanticAIModel) -> None:
    server.will(streams(calling(call(0, "c1", "pay", '{"amount": 1, "amount": ')), calling(call(0, arguments="100}"))))
    assert (await answer(model)).parts == (ToolCall("c1", "pay", '{"amount": 1, "amount": 100}'),)


async def test_a_call_with_no_arguments_at_all_has_an_empty_object(
    server: LoopbackServer, model: PydanticAIModel
) -> None:
    server.will(streams(calling(call(0, "c1", "now", ""), call(1, "c2", "today"), call(2, "c3", "here", "null"))))
    assert (await answer(model)).parts == tuple(
        ToolCall(id, name, {}) for id, name in (("c1", "now"), ("c2", "today"), ("c3", "here"))
    )


async def test_arguments_may_come_as_an_object(server: LoopbackServer, model: PydanticAIModel) -> None:
    spelled_out = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": {"q": "가"}}}
    server.will(streams(calling(spelled_out)))
    assert (await answer(model)).parts == (ToolCall("c1", "look", {"q": "가"}),)


# What is sent


async def test_messages_arrive_in_the_providers_words(server: LoopbackServer, model: PydanticAIModel) -> None:
    assert await sent(
        server,
        model,
        Message("system", (Text("be kind"),)),
        user("what is this?", Attachment("ab" * 32, "image/png", "그림.png", 3)),
        Message("assistant", (Text("looking"), ToolCall("c1", "look", {"at": "그림"}), ToolCall("c2", "now", {}))),
        tool_result("c1", "look", "a cat"),
        tool_result("c2", "now", values.encode({"at": datetime(2026, 11, 30, tzinfo=UTC)})),
        runtime_note("the worker was restarted"),
    ) == [
        {"role": "system", "content": "be kind"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "text", "text": "[attachment 그림.png, image/png, 3 bytes]"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,Y2F0"}},
            ],
        },
        {
            "role": "assistant",
            "content": "looking",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"그림"}'}},
                {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        {"role": "tool", "tool_call_id": "c2", "content": '{"at": "2026-11-30T00:00:00+00:00"}'},
        {"role": "user", "content": "the worker was restarted"},
    ]


async def test_nothing_empty_is_sent_but_each_call_keeps_its_result(
    server: LoopbackServer, model: PydanticAIModel
) -> None:
    assert await sent(
        server,
        model,
        Message("system", (Text(""),)),
        Message("user", (Text(""), Text("go"), Text(" \n"))),
        Message("assistant", (Text(""), ToolCall("c1", "clear", {}))),
        tool_result("c1", "clear", ""),
        Message("assistant", (Text(" "),)),
        Message("user", (UnknownPart({"type": "hologram"}),)),
    ) == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "clear", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "(empty)"},
    ]


async def test_unreadable_arguments_go_back_in_an_object_that_says_so(
    server: LoopbackServer, model: PydanticAIModel
) -> None:
    _, said, _ = await sent(
        server,
        model,
        user("pay"),
        Message("assistant", (ToolCall("c1", "pay", '{"amount": 1'),)),
        tool_result("c1", "pay", "not an object", error=True),
    )
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"invalid_arguments": '{"amount": 1'}


async def test_text_that_is_no_valid_unicode_can_be_sent(server: LoopbackServer, model: PydanticAIModel) -> None:
    half = "\ud83d"  # half of an emoji, as a cut through a text leaves it
    asked, said, result = await sent(
        server,
        model,
        user(f"a{half}"),
        Message("assistant", (Text(f"b{half}"), ToolCall("c1", "echo", {"x": half}))),
        tool_result("c1", "echo", values.encode(f"c{half}")),
    )
    assert (asked["content"], said["content"]) == ("a?", "b?")
    assert "c?" in result["content"]
    assert said["tool_calls"][0]["function"]["arguments"] == '{"x":"?"}'


async def test_only_our_own_reasoning_and_signatures_go_back(server: LoopbackServer, model: PydanticAIModel) -> None:
    signed = calling({**call(0, "c1", "look", "{}"), "extra_content": {"google": {"thought_signature": "s1"}}})
    server.will(streams({"reasoning_content": "hmm"}, signed))
    own = await answer(model)
    foreign = {"name": "openai", "host": "elsewhere.example"}
    _, said, _, other, _ = await sent(
        server,
        model,
        user("look"),
        Message("assistant", own.parts),
        tool_result("c1", "look", "seen"),
        Message(
            "assistant",
            (
                Reasoning("theirs", {**foreign, "field": "reasoning_content"}),
                Reasoning("nobody's"),
                ToolCall("c2", "look", {}, {**foreign, "details": {"extra_content": {"google": "s2"}}}),
            ),
        ),
        tool_result("c2", "look", "seen"),
    )
    assert said["reasoning_content"] == "hmm"
    assert said["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s1"}}
    assert "theirs" not in json.dumps(other)
    assert "nobody" not in json.dumps(other)
    assert "extra_content" not in other["tool_calls"][0]


@pytest.mark.parametrize(
    "refusal",
    [
        fails(400, "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9."),
        fails(500, "Tool call IDs should be alphanumeric strings with length 9!"),
    ],
)
async def test_who_takes_only_ids_of_nine_letters_gets_them_from_the_next_attempt_on(
    server: LoopbackServer, model: PydanticAIModel, refusal: Behaviour
) -> None:
    """As models of Mistral do, also those ids that their own server gave."""
    said = [user("look")]
    for id in ("call_1", "D681PevKs", "call_1", "functions.look:0"):
        said += [Message("assistant", (ToolCall(id, "look", {}),)), tool_result(id, "look", f"seen {len(said)}")]
    server.will(refusal)
    with pytest.raises(ModelError) as caught:
        await outputs(model, *said)
    assert caught.value.kind == "unavailable"
    messages = await sent(server, model, *said)
    calls = [m["tool_calls"][0]["id"] for m in messages if m["role"] == "assistant"]
    assert all(len(id) == 9 and id.isalnum() for id in calls)
    assert len({*calls}) == 4
    assert calls[1] == "D681PevKs"
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == calls


PNG = Attachment("ab" * 32, "image/png", "a.png", 3)
JOINED = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a note\n\nlook"}]
WITHOUT_SYSTEM = [{"role": "user", "content": "be kind\n\na note\n\nlook"}]
SHOWN = [
    {"type": "text", "text": "[attachment a.png, image/png, 3 bytes]"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,Y2F0"}},
]


@pytest.mark.parametrize(
    ("refusal", "first"),
    [
        *((said, JOINED) for said in (
            fails(400, "After the optional system message, conversation roles must alternate user/assistant"),
            fails(400, "deepseek-reasoner does not support successive user or assistant messages"),
        )),
        *((said, WITHOUT_SYSTEM) for said in (
            fails(500, "Jinja Exception: System role not supported"),
            fails(400, "Unsupported value: 'messages[0].role' does not support 'system' with this model."),
        )),
    ],
)  # fmt: skip
async def test_who_takes_only_some_roles_gets_those_from_the_next_attempt_on(
    server: LoopbackServer, model: PydanticAIModel, refusal: Behaviour, first: list[dict[str, Any]]
) -> None:
    """As the chat templates of some models have it."""
    said = [
        Message("system", (Text("be kind"),)), runtime_note("a note"), user("look"),
        Message("assistant", (ToolCall("c1", "look", {}),)), tool_result("c1", "look", "seen"),
        Message("assistant", (Text("so"),)), runtime_note("another"), user("and this?", PNG),
    ]  # fmt: skip
    server.will(refusal)
    with pytest.raises(ModelError) as caught:
        await outputs(model, *said)
    assert caught.value.kind == "unavailable"
    messages = await sent(server, model, *said)
    assert messages[: len(first)] == first
    assert [m["role"] for m in messages[len(first) :]] == ["assistant", "tool", "assistant", "user"]
    assert messages[-1]["content"] == [*({"type": "text", "text": t} for t in ("another", "and this?")), *SHOWN]


@pytest.mark.parametrize(
    "refusal",
    [
        fails(400, "Could not process image"),
        fails(
            400, "You uploaded an unsupported image. Please make sure your image is valid.", code="image_parse_error"
        ),
        fails(404, "No endpoints found that support image input"),
        fails(500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
    ],
)
async def test_an_image_that_is_refused_is_named_from_the_next_attempt_on_where_it_is_not_what_is_asked_about(
    server: LoopbackServer, model: PydanticAIModel, refusal: Behaviour
) -> None:
    """One of an earlier turn, or of a tool: else the session, or the run, could not go on."""
    said = [
        user("look", PNG), Message("assistant", (ToolCall("c1", "shot", {}),)),
        tool_result("c1", "shot", "taken", attached=[PNG]), Message("assistant", (Text("so"),)), user("and now?"),
    ]  # fmt: skip
    server.will(refusal)
    with pytest.raises(ModelError) as caught:
        await outputs(model, *said)
    assert caught.value.kind == "unavailable"
    shown = json.dumps(await sent(server, model, *said))
    assert ("image_url" in shown, shown.count("it cannot be shown")) == (False, 2)


async def test_an_image_that_is_asked_about_and_refused_ends_the_run_with_the_reason(
    server: LoopbackServer, model: PydanticAIModel
) -> None:
    server.will(fails(400, "Could not process image"), fails(400, "this model does not support image input"))
    for kind, why in (("rejected", "process image"), ("unavailable", "image input"), ("rejected", "does not take")):
        with pytest.raises(ModelError, match=why) as caught:
            await outputs(model, user("look", PNG))
        assert caught.value.kind == kind
    assert server.requests == 2


@pytest.mark.parametrize(
    "refusal",
    [
        "Invalid 'content': 'content' field must be a string or an array of objects.",
        "Invalid value for 'content': expected a string, got null.",
    ],
)
async def test_who_wants_a_text_beside_calls_gets_an_empty_one_from_the_next_attempt_on(
    server: LoopbackServer, model: PydanticAIModel, refusal: str
) -> None:
    said = [user("look"), Message("assistant", (ToolCall("c1", "look", {}),)), tool_result("c1", "look", "seen")]
    server.will(fails(400, refusal))
    with pytest.raises(ModelError) as caught:
        await outputs(model, *said)
    assert caught.value.kind == "unavailable"
    assert [m["content"] for m in await sent(server, model, *said)] == ["look", "", "seen"]


REASONING = ["hm", ""]  # so the library, once one of them has some
REFUSED = [
    ("'messages.2' : property 'reasoning_content' is unsupported", [None, None]),
    ("Extra inputs are not permitted, field: 'messages[2].reasoning_content'", [None, None]),
    ({"detail": [{"type": "extra_forbidden", "loc": ["messages", 2, "assistant", "reasoning_content"]}]}, [None, None]),
    ("reasoning_content is missing in assistant tool call message at index 4", ["hm", " "]),
    ("The `reasoning_content` in the thinking mode must be passed back to the API.", ["hm", " "]),
]


@pytest.mark.parametrize(("refusal", "reasoning"), REFUSED)
async def test_reasoning_goes_back_as_the_server_takes_it_from_the_next_attempt_on(
    server: LoopbackServer, model: PydanticAIModel, refusal: Any, reasoning: list[str | None]
) -> None:
    """Some refuse what they said themselves; some want it with each call, also with one that another model made."""
    server.will(streams({"reasoning_content": "hm"}, calling(call(0, "c1", "look", "{}"))))
    said = [
        user("look"), Message("assistant", (await answer(model)).parts), tool_result("c1", "look", "seen"),
        Message("assistant", (ToolCall("c2", "look", {}),)), tool_result("c2", "look", "seen"),
    ]  # fmt: skip
    for expected in (REASONING, reasoning):
        messages = await sent(server, model, *said)
        assert [m.get("reasoning_content") for m in messages if m["role"] == "assistant"] == expected
        server.will(fails(400, refusal))
        with pytest.raises(ModelError) as caught:
            await outputs(model, *said)
        assert caught.value.kind == ("unavailable" if expected is REASONING else "rejected")


async def test_a_call_without_a_signature_is_excused_from_the_next_attempt_on_where_one_is_wanted(
    server: LoopbackServer, model: PydanticAIModel
) -> None:
    """As Gemini behind OpenAI's API wants one, also of a call that another model made."""
    signed = {**call(0, "c2", "look", "{}"), "extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}
    server.will(streams(calling(signed, call(1, "c3", "look", "{}")), finish="tool_calls"))
    said = [
        user("look"), Message("assistant", (ToolCall("c1", "look", {}),)), tool_result("c1", "look", "seen"),
        Message("assistant", (await answer(model)).parts),
        *(tool_result(id, "look", "seen") for id in ("c2", "c3")),
    ]  # fmt: skip
    excused = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    for first in (None, excused):
        made = [c for m in await sent(server, model, *said) for c in m.get("tool_calls", ())]
        assert [c.get("extra_content") for c in made] == [first, signed["extra_content"], None]
        server.will(fails(400, "Function call is missing a thought_signature in functionCall parts."))
        with pytest.raises(ModelError) as caught:
            await outputs(model, *said)
        assert caught.value.kind == ("rejected" if first else "unavailable")


TEXT = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
SUMMARY = {"type": "reasoning.summary", "format": "openai-responses-v1", "index": 0}
SEALED = {"type": "reasoning.encrypted", "format": "google-gemini-v1", "index": 0}
SEALED_CALLS = [{**SEALED, "id": "c1", "data": "c2Vh"}, {**SEALED, "id": "c2", "data": "bGVk"}]


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (
            [{**TEXT, "text": "let me "}, {**TEXT, "text": "see"}, {**TEXT, "signature": "c2lnbmVk"}],
            [{**TEXT, "id": None, "text": "let me see", "signature": "c2lnbmVk"}],
        ),
        (
            [{**TEXT, "text": "let me see"}, *SEALED_CALLS],
            [{**TEXT, "id": None, "text": "let me see", "signature": None}, *SEALED_CALLS],
        ),
        (
            [{**SUMMARY, "id": "rs_1", "summary": "let me see"}, {**SEALED, "id": "rs_1", "data": "c2Vh"}],
            [{**SUMMARY, "id": "rs_1", "summary": "let me see"}, {**SEALED, "id": "rs_1", "data": "c2Vh"}],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_in_details_goes_back_as_it_came_to_who_gave_it(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch, pieces: list[Any], whole: list[Any], stream: bool
) -> None:
    """As OpenRouter gives it: models behind it (Gemini, Claude) refuse the results of their calls without it."""
    made = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    if stream:
        deltas = [{"reasoning": p.get("text", ""), "reasoning_details": [p]} for p in pieces]
        server.will(streams(*deltas, calling(call(0, "c1", "look", "{}")), finish="tool_calls"))
    else:
        message = {"role": "assistant", "content": None, "reasoning": "let me see", "reasoning_details": whole}
        choices = [{"index": 0, "finish_reason": "tool_calls", "message": {**message, "tool_calls": [made]}}]
        server.will(answers_with(200, {"id": "1", "object": "chat.completion", "created": 1, "choices": choices}))
    async with contextlib.aclosing(at(url(server), monkeypatch, stream=stream)) as model:
        *deltas, own = await outputs(model)
        assert isinstance(own, Answer)
        assert "".join(p.text for p in own.parts if isinstance(p, Reasoning)) == "let me see"
        if stream:
            assert "".join(d.text for d in deltas if isinstance(d, Delta) and d.kind == "reasoning") == "let me see"
        said = [user("look"), Message("assistant", own.parts), tool_result("c1", "look", "seen")]
        body = await sent(server, model, *said)
        assert body[1] == {"role": "assistant", "content": None, "tool_calls": [made], "reasoning_details": whole}
    async with (
        LoopbackServer().running() as elsewhere,
        contextlib.aclosing(at(url(elsewhere), monkeypatch)) as other,
    ):
        body = await sent(elsewhere, other, *said)
        assert body[1] == {"role": "assistant", "content": None, "tool_calls": [made]}


@pytest.mark.parametrize(
    "refusal",
    [
        fails(400, "Unrecognized request argument supplied: stream_options"),
        answers_with(422, {"message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "include_usage"]}]}}),
    ],
)
async def test_who_will_not_count_a_stream_is_not_asked_to_from_the_next_attempt_on(
    server: LoopbackServer, model: PydanticAIModel, refusal: Behaviour
) -> None:
    server.will(refusal, says("ok", usage=None), says("ok"))
    assert (await failure(model)).kind == "unavailable"
    assert (await answer(model)).input_tokens is None
    assert (await answer(model)).input_tokens == 11
    assert ["stream_options" in e.body for e in server.exchanges] == [True, False, False]


@pytest.mark.parametrize("days", [{"type": "integer", "default": 3}, {"type": "integer"}])
async def test_tools_are_shown_as_they_are_written(
    server: LoopbackServer, model: PydanticAIModel, days: dict[str, Any]
) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 1}, "days": days},
        "required": ["city"] if "default" in days else ["city", "days"],
        "additionalProperties": False,
    }
    server.will(says("ok"))
    await outputs(model, tools=[ToolSpec(name="weather", description="The weather.", parameters=schema)])
    body = server.exchanges[0].body
    assert body["tools"] == [
        {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": schema}}
    ]
    assert body["tool_choice"] == "auto"


LOOK, MAIL = '{"q": "a"}', '{"to": "kim"}'


@pytest.mark.parametrize(
    "pieces",
    [
        [[call(0, "c1", "look", LOOK)], [call(0, "c2", "mail", MAIL)]],
        [[call(0, "c1", "look", LOOK), call(0, "c2", "mail", MAIL)]],
        [[call(0, "c1", "look", '{"q"')], [call(0, None, None, ': "a"}')], [call(0, "c2", "mail", MAIL)]],
        [[call(0, "c1", "look", '{"q"')], [call(0, "c1", "look", ': "a"}')], [call(1, "c2", "mail", MAIL)]],
        [[call(0, "c1", "look", "")], [call(1, "c2", "mail", MAIL)], [call(0, "c1", "look", LOOK)]],
        [[call(0, "c1", "look", LOOK)], [call(0, "", "", "")], [call(1, "c2", "mail", MAIL)]],
        [[call(7, "c1", "look", LOOK)], [call(3, "c2", "mail", MAIL)]],
        [[call(0, None, "look", LOOK)], [call(0, None, "mail", MAIL)]],
        [[call(0, "c1", "look", '{"q"')], [call(0, "x", None, ': "a"}')], [call(0, "c2", "mail", MAIL)]],
        [[call(0, "c1", "look", '{"q"')], [call(0, "x", "look", ': "a"}')], [call(0, "c2", "mail", MAIL)]],
        [[{k: v for k, v in call(0, "c1", "look", LOOK).items() if k != "index"}], [call(1, "c2", "mail", MAIL)]],
    ],
)
async def test_each_call_is_one_however_a_server_numbers_its_pieces(
    server: LoopbackServer, model: PydanticAIModel, pieces: list[list[dict[str, Any]]]
) -> None:
    server.will(streams(*(calling(*p) for p in pieces), finish="tool_calls"))
    *_, answer = await outputs(model)
    assert isinstance(answer, Answer)
    calls = [p for p in answer.parts if isinstance(p, ToolCall)]
    assert [(p.name, p.arguments) for p in calls] == [("look", {"q": "a"}), ("mail", {"to": "kim"})]
    assert "x" not in [p.id for p in calls]


async def test_two_calls_without_arguments_are_two(server: LoopbackServer, model: PydanticAIModel) -> None:
    server.will(streams(calling(call(0, "c1", "now", "")), calling(call(0, "c2", "now", "")), finish="tool_calls"))
    assert (await answer(model)).parts == (ToolCall("c1", "now", {}), ToolCall("c2", "now", {}))


async def test_what_only_keeps_the_line_open_is_no_piece(server: LoopbackServer, model: PydanticAIModel) -> None:
    async def keeps_alive(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send_raw("\ufeffretry: 3000\n\n")
        await exchange.send_raw("id: 1\n")
        await send_chunk(exchange, {"content": "whole"})
        for nothing in ("event: ping\n\n", "data:\n\n", ": still here\n\n", "event: ping\ndata: \n\n"):
            await exchange.send_raw(nothing)
        await send_chunk(exchange, {}, "stop")
        await close_stream(exchange)

    server.will(keeps_alive)
    assert (await answer(model)).parts == (Text("whole"),)


async def test_a_character_that_comes_in_two_halves_is_one(server: LoopbackServer, model: PydanticAIModel) -> None:
    """As servers send it that count in UTF-16."""
    arguments = ('{"q": "\ud83d', '\ude00"}')
    server.will(
        streams(
            *({"reasoning_content": half} for half in ("\ud83d", "\ude00 hm")),
            *({"content": half} for half in ("a\ud83d", "\ude00b", "\ud83d")),
            *(calling(call(0, "c1", "look", piece)) for piece in arguments),
        )
    )
    *deltas, last = await outputs(model)
    assert deltas == [Delta("😀 hm", "reasoning"), Delta("a"), Delta("😀b")]
    assert isinstance(last, Answer)
    reasoning, text, look = last.parts
    assert isinstance(reasoning, Reasoning)
    assert reasoning.text == "😀 hm"
    assert (text, look) == (Text("a😀b\ud83d"), ToolCall("c1", "look", {"q": "😀"}))


# How it fails

#: As servers with the same API word it.
OVERFLOWS = [
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    (400, "Input is too long for requested model."),
    (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000"),
    (400, "Your request exceeded model token limit: 131072"),
    (400, "Prompt exceeds max length"),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens"),
    (400, "invalid params, context window exceeds limit"),
    (400, "Range of input length should be [1, 98304]"),
    (400, "prompt token count of 130000 exceeds the limit of 128000"),
    (400, "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens."),
    (429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 45000."),
    (422, "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000"),
    (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    (400, "max_tokens must be at least 1, got -5."),
    (400, "Max length reached!"),
    (400, "context shift is disabled"),
    (400, "length of prompt_tokens (34157) must be less than max_seq_len (32768)."),
    (400, "Total tokens of image and text exceed max message tokens."),
    (400, "Input length 140000 exceeds the maximum length 131072"),
    (400, "total message size 10176584 exceeds limit 2097152"),
    (400, "Request payload size exceeds the limit: 20971520 bytes."),
    (500, "Context size has been exceeded."),
    (500, "prompt too long; exceeded max context length by 5 tokens"),
]


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (rate_limited(), "rate_limited"),
        (insufficient_quota(), "quota"),
        (fails(402), "quota"),
        (fails(400, "Your credit balance is too low to access the API."), "quota"),
        (fails(401, "Insufficient balance"), "quota"),
        (answers_with(400, {"code": "invalid argument", "error": "Incorrect API key provided: sk***YA."}), "auth"),
        (answers_with(400, [{"error": {"code": 400, "message": "API key not valid."}}]), "auth"),
        (fails(429, "Insufficient balance or no resource package. Please recharge.", code="1113"), "quota"),
        (fails(400, "too long", code="context_length_exceeded"), "context_overflow"),
        (fails(400, "This model's maximum context length is 8192 tokens."), "context_overflow"),
        (fails(400, "the request exceeds the available context size", code=400), "context_overflow"),
        *((fails(status, said), "context_overflow") for status, said in OVERFLOWS),
        (fails(429, "Rate limit reached on tokens per min (TPM): Limit 30000, Used 29000"), "rate_limited"),
        (fails(400, "blocked", code="content_filter"), "content_filter"),
        (fails(400, "Content Exists Risk"), "content_filter"),
        (fails(400, "your prompt was flagged", code="invalid_prompt"), "content_filter"),
        (fails(400, "bad tool name"), "rejected"),
        (fails(404, "no such model", code="model_not_found"), "unavailable"),
        (fails(400, "Model Not Exist"), "unavailable"),
        (fails(400, "The model `mixtral` has been decommissioned"), "unavailable"),
        (fails(400, "a/b is not a valid model ID"), "unavailable"),
        (fails(400, "Invalid model name passed in model=a."), "unavailable"),
        (fails(400, "Invalid model: a", type="invalid_model"), "unavailable"),
        (answers_with(400, {"object": "error", "message": "Invalid model: a", "type": "invalid_model"}), "unavailable"),
        (fails(400, "The requested model 'a' does not exist.", code="model_not_found"), "unavailable"),
        (fails(403, "Project `p` does not have access to model `a`", code="model_not_found"), "unavailable"),
        (fails(400, "Failed to call a function. Please adjust your prompt.", code="tool_use_failed"), "server"),
        (fails(400, "The model generated output that could not be parsed.", code="output_parse_failed"), "server"),
        (fails(403, "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"), "content_filter"),
        (fails(424), "unavailable"),
        (fails(498, "capacity exceeded", code="capacity_exceeded"), "unavailable"),
        (fails(500, "the context size could not be read"), "server"),
        (fails(422), "rejected"),
        (fails(401), "auth"),
        (fails(403), "auth"),
        (fails(408), "timeout"),
        (fails(409), "unavailable"),
        (fails(499), "unavailable"),
        (fails(500), "server"),
        (fails(502), "server"),
        (fails(504), "server"),
        (fails(503), "unavailable"),
        (fails(529), "overloaded"),
        (streams(calling(call(0, "c1", None, "{}")), finish="tool_calls"), "server"),
        (drops(), "connection"),
        (drops({"content": "half"}), "connection"),
        (streams({"refusal": "I will not."}), "content_filter"),
    ],
)
async def test_a_failure_has_its_kind_and_is_never_retried_unseen(
    server: LoopbackServer, model: PydanticAIModel, behaviour: Behaviour, kind: str
) -> None:
    server.will(behaviour)
    error = await failure(model)
    assert error.kind == kind
    assert error.sent
    assert str(error).startswith("openai:gpt-5.2")
    assert server.requests == 1


@pytest.mark.parametrize("body", [{"error": {"message": "log in"}}, {"base_resp": {"status_msg": "log in"}}])
async def test_an_error_that_has_the_status_of_an_answer_is_told(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    server.will(answers_with(200, body))
    async with contextlib.aclosing(at(url(server), monkeypatch, stream=False)) as model:
        error = await failure(model)
    assert error.kind == "connection"
    assert "log in" in str(error)


@pytest.mark.parametrize(
    "raw",
    [
        "The model supports at most 1 tool.",
        '{"error": {"message": "The model supports at most 1 tool."}}',
        {"error": {"message": "The model supports at most 1 tool."}},
    ],
)
@pytest.mark.parametrize("in_stream", [False, True])
async def test_what_the_server_behind_a_gateway_said_is_told(
    server: LoopbackServer, model: PydanticAIModel, raw: object, in_stream: bool
) -> None:
    """As OpenRouter passes it on; its own words say that there was an error."""
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}}

    async def tells(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send_event(json.dumps(body))
        await close_stream(exchange)

    server.will(tells if in_stream else answers_with(400, body))
    assert "Provider returned error" in (said := str(await failure(model)))
    assert "The model supports at most 1 tool." in said


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow down", "code": "rate_limit_exceeded"}, "rate_limited"),
        ({"message": "full", "code": "server_is_overloaded"}, "overloaded"),
        ({"message": "upstream", "code": 502}, "server"),
        ({"message": "it broke"}, "server"),
        ({"message": "Context size has been exceeded."}, "context_overflow"),
        (
            {
                "message": "The number of tokens to keep from the initial prompt is greater than the context length. "
                "Try to load the model with a larger context length, or provide a shorter input"
            },
            "context_overflow",
        ),
        ({"message": "it was not called", "type": "invalid_request_error", "code": "tool_use_failed"}, "server"),
        ({"message": "bad image", "code": "invalid_image"}, "rejected"),
        ({"message": "bad image", "code": "image_content_policy_violation"}, "content_filter"),
        ({"message": "flagged", "code": "cyber_policy"}, "content_filter"),
        ({"message": "bad tool name", "type": "invalid_request_error"}, "rejected"),
        ({"message": "wrong key", "type": "authentication_error"}, "auth"),
    ],
)
async def test_an_error_told_inside_the_stream_has_its_kind(
    server: LoopbackServer, model: PydanticAIModel, error: dict[str, Any], kind: str
) -> None:
    async def fails_halfway(exchange: Exchange) -> None:
        await exchange.open_stream()
        await send_chunk(exchange, {"content": "half"})
        await exchange.send_event(json.dumps({"error": error}))
        await close_stream(exchange)

    server.will(fails_halfway)
    assert (await failure(model)).kind == kind


@pytest.mark.parametrize("begun", [False, True])
async def test_an_error_that_stands_in_a_field_of_its_own_is_told(
    server: LoopbackServer, model: PydanticAIModel, begun: bool
) -> None:
    """As llama.cpp did until the end of 2025."""

    async def fails_so(exchange: Exchange) -> None:
        await exchange.open_stream()
        if begun:
            await send_chunk(exchange, {"content": "half"})
        error = {"code": 400, "message": "the request exceeds the available context size"}
        await exchange.send_raw(f"error: {json.dumps(error)}\n\n")
        await close_stream(exchange)

    server.will(fails_so)
    error = await failure(model)
    assert error.kind == "context_overflow"
    assert "available context size" in str(error)


async def test_a_piece_that_is_not_json_breaks_the_answer(server: LoopbackServer, model: PydanticAIModel) -> None:
    async def garbles(exchange: Exchange) -> None:
        await exchange.open_stream()
        await send_chunk(exchange, {"content": "half"})
        await exchange.send_event('{"id": "chatcmpl-1", "choi')
        await close_stream(exchange)

    server.will(garbles)
    assert (await failure(model)).kind == "connection"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after_ms": "1500", "retry_after": "2"}, 1.5),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "-1"}, None),
        ({"retry_after": "nan"}, None),
        ({}, None),
    ],
)
async def test_the_wait_that_the_provider_asks_for_is_told(
    server: LoopbackServer, model: PydanticAIModel, headers: dict[str, str], seconds: float | None
) -> None:
    server.will(rate_limited(**headers))
    assert (await failure(model)).retry_after == seconds


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("Rate limit reached for gpt-5.2 on tokens per min (TPM). Please try again in 11.054s. Visit", 11.054),
        ("Please try again in 6m0s.", 360.0),
        ("Please try again in 328ms.", 0.328),
        ("Please retry after 32 seconds. To increase your limit", 32.0),
        ("You exceeded your current quota. Please retry in 34.07s.", 34.07),
        ("Please try again in a while", None),
        ("Please try again later. 3 of 5", None),
    ],
)
@pytest.mark.parametrize("in_stream", [False, True])
async def test_the_wait_may_be_asked_for_in_words(
    server: LoopbackServer, model: PydanticAIModel, said: str, seconds: float | None, in_stream: bool
) -> None:
    """As within a stream, where there is no header for it."""
    body = {"error": {"message": said, "code": "rate_limit_exceeded"}}

    async def tells(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send_event(json.dumps(body))
        await close_stream(exchange)

    server.will(tells if in_stream else answers_with(429, body))
    error = await failure(model)
    assert error.kind == "rate_limited"
    assert error.retry_after == (seconds if seconds is None else pytest.approx(seconds))


async def test_the_wait_may_be_a_date(server: LoopbackServer, model: PydanticAIModel) -> None:
    server.will(rate_limited(retry_after=format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)))
    wait = (await failure(model)).retry_after
    assert wait is not None
    assert 3500 < wait <= 3600


async def test_a_refused_connection_was_certainly_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # bound but not listening: nobody else can answer here
        host = f"127.0.0.1:{unheard.getsockname()[1]}"
        async with contextlib.aclosing(at(f"http://{host}/v1", monkeypatch)) as model:
            error = await failure(model)
    assert (error.kind, error.sent) == ("connection", False)
    assert host in str(error)


async def test_a_schema_that_cannot_be_sent_is_rejected_before_sending(
    server: LoopbackServer, model: PydanticAIModel
) -> None:
    schema = {"$ref": "#/$defs/Never", "$defs": {"Never": False}}
    with pytest.raises(ModelError) as caught:
        await outputs(model, tools=[ToolSpec(name="never", description="", parameters=schema)])
    assert (caught.value.kind, caught.value.sent) == ("rejected", False)
    assert server.requests == 0


# Silence


@pytest.mark.parametrize(
    "behaviour",
    [
        stalls(),
        stalls({"content": "half"}),
        stalls({"content": "half"}, meanwhile=[": still here\n\n"]),
        stalls(meanwhile=[": still here\n\n"]),
    ],
    ids=["before the answer", "within the answer", "behind keep-alive comments", "only keep-alive comments"],
)
async def test_silence_is_a_timeout_and_closes_the_socket(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour
) -> None:
    server.will(behaviour)
    async with contextlib.aclosing(at(url(server), monkeypatch, timeout=0.5)) as model:
        error = await failure(model)
        assert (error.kind, error.sent) == ("timeout", True)
        await asyncio.wait_for(server.exchanges[0].gone.wait(), 1)
    assert server.requests == 1


async def test_a_reader_may_take_longer_than_the_timeout(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.will(says("one", "two"))
    async with contextlib.aclosing(at(url(server), monkeypatch, timeout=20.0)) as model:
        stream = model.stream(asking())
        assert await anext(stream) == Delta("one")
        loop, time = asyncio.get_running_loop(), asyncio.get_running_loop().time
        over = asyncio.Event()
        loop.call_later(30.0, over.set)
        monkeypatch.setattr(loop, "time", lambda: time() + 30.0)  # the reader's own time
        await over.wait()
        assert [type(output) async for output in stream] == [Delta, Answer]


# Stopping


async def test_closing_the_stream_closes_the_socket(server: LoopbackServer, model: PydanticAIModel) -> None:
    server.will(stalls({"content": "half"}))
    async with contextlib.aclosing(model.stream(asking())) as stream:
        assert await anext(stream) == Delta("half")
    await asyncio.wait_for(server.exchanges[0].gone.wait(), 1)


@pytest.mark.parametrize("deltas", [[], [{"content": "half"}]], ids=["before the answer", "within the answer"])
async def test_cancelling_the_task_closes_the_socket(
    server: LoopbackServer, model: PydanticAIModel, deltas: list[dict[str, Any]]
) -> None:
    server.will(stalls(*deltas))
    halfway = asyncio.Event()

    async def read() -> None:
        async for _ in model.stream(asking()):
            halfway.set()

    task = asyncio.create_task(read())
    exchange = await server.exchange()
    if deltas:
        await halfway.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(exchange.gone.wait(), 1)


async def test_two_answers_at_once_do_not_mix(server: LoopbackServer, model: PydanticAIModel) -> None:
    both_asked = asyncio.Barrier(2)

    async def echoes(exchange: Exchange) -> None:
        await both_asked.wait()
        await says("you said ", exchange.body["messages"][0]["content"])(exchange)

    server.will(echoes, echoes)
    first, second = await asyncio.gather(answer(model, user("a")), answer(model, user("b")))
    assert (first.parts, second.parts) == ((Text("you said a"),), (Text("you said b"),))


async def test_a_closed_model_opens_again(server: LoopbackServer, model: PydanticAIModel) -> None:
    await model.aclose()
    server.will(says("one"), says("two"))
    assert (await answer(model)).parts == (Text("one"),)
    await model.aclose()
    await model.aclose()
    assert (await answer(model)).parts == (Text("two"),)


def test_one_model_serves_one_event_loop_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    server = LoopbackServer()
    models: list[PydanticAIModel] = []

    async def once(port: int) -> int:
        async with server.running(port):
            server.will(keeps_open(says("ok")))
            models.append(models[0] if models else at(url(server), monkeypatch))
            assert (await answer(models[0])).parts == (Text("ok"),)  # and not closed, as a stopped worker leaves it
            return server.port

    asyncio.run(once(asyncio.run(once(0))))


# Before anything starts


def test_neither_key_nor_address_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY is not set: set it, or set OPENAI_BASE_URL"):
        openai_chat("gpt-5.2")


async def test_an_address_alone_is_enough(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", url(server))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server.will(says("ok"))
    async with contextlib.aclosing(openai_chat("llama")) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")  # read before, so this changes nothing
        await answer(model)
    assert server.exchanges[0].headers["authorization"] == "Bearer no-key"


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://localhost", "http://", "http://[::1/v1", "http://a:b/v1"])
def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(InvalidInput, match="OPENAI_BASE_URL"):
        openai_chat("gpt-5.2")


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-비밀")
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY") as caught:
        openai_chat("gpt-5.2")
    assert "비밀" not in str(caught.value)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setitem(sys.modules, "pydantic_ai.direct", None)
    with pytest.raises(InvalidInput, match=r"pip install 'ondol\[models\]'"):
        openai_chat("gpt-5.2")


def test_importing_the_module_imports_no_library() -> None:
    code = "import sys, ondol.providers.pydantic_ai; print(*(m for m in ('pydantic_ai', 'openai') if m in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert ran.stdout.strip() == ""
