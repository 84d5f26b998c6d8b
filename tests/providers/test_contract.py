"""What Ondol may rely on with every provider, checked on each wire against a real loopback server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, get_args

import pytest
from providers.loopback import Exchange, LoopbackServer, answers_with
from providers.wires.anthropic import Anthropic
from providers.wires.google import Google
from providers.wires.openai_chat import OpenAIChat
from providers.wires.openai_responses import OpenAIResponses
from providers.wires.script import (
    Attached,
    Call,
    Finish,
    Frame,
    Said,
    Say,
    Spent,
    Think,
    Wire,
    answers,
    breaks,
    fails,
    send,
    wants_stream,
)

from ondol import providers
from ondol.errors import InvalidInput, ModelError, ModelErrorKind
from ondol.ids import is_plain
from ondol.messages import Attachment, Message, Reasoning, Text, ToolCall, runtime_note, tool_result, user
from ondol.model import Answer, Delta, ModelOutput, ModelRequest, ToolSpec
from ondol.plans import message_of
from ondol.providers.pydantic_ai import PydanticAIModel

PATIENCE = 30.0  # seconds; longer than any test may take, so it never decides one
KEY = "sk-testing-12345"
PNG, PDF = b"\x89PNG\r\n\x1a\n...", b"%PDF-1.7 ..."
WIRES: list[Wire] = [OpenAIChat(), OpenAIResponses(), Anthropic(), Google()]
MODELS = {
    "openai": "gpt-5.2",
    "openai-responses": "gpt-5.2",
    "anthropic": "claude-sonnet-4-6",
    "google": "gemini-3.1-pro-preview",
}
VARIABLES = [name for wire in WIRES for name in (*wire.key_variables, wire.url_variable)]


@pytest.fixture(params=WIRES, ids=lambda wire: wire.name)
def wire(request: pytest.FixtureRequest) -> Wire:
    return request.param


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
def stream(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
async def server() -> AsyncIterator[LoopbackServer]:
    async with LoopbackServer().running() as running:
        yield running


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., PydanticAIModel]]:
    """Make a model of a wire that talks to a server; it is closed at the end."""
    async with contextlib.AsyncExitStack() as stack:

        def at(
            wire: Wire, host: str, *, stream: bool = True, timeout: float = PATIENCE, model: str = ""
        ) -> PydanticAIModel:
            for name in VARIABLES:
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv(wire.url_variable, wire.url(host))
            monkeypatch.setenv(wire.key_variables[0], KEY)
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            made = wire.make(model or MODELS[wire.name], timeout=timeout, stream=stream)
            stack.push_async_callback(made.aclose)
            return made

        yield at


@pytest.fixture
def model(wire: Wire, server: LoopbackServer, stream: bool, make: Callable[..., PydanticAIModel]) -> PydanticAIModel:
    return make(wire, server.host, stream=stream)


@pytest.fixture
def streamed(wire: Wire, server: LoopbackServer, make: Callable[..., PydanticAIModel]) -> PydanticAIModel:
    return make(wire, server.host)


TEXTS = ("제목\n€".encode(), "제목\n€".encode("utf-16"), "제목\n€".encode("cp949"))
BLOBS = {hashlib.sha256(data).hexdigest(): data for data in (PNG, PDF, *TEXTS, b"\0\1")}


async def load(attachment: Attachment) -> bytes:
    if (data := BLOBS.get(attachment.digest)) is None:
        raise ModelError("rejected", f"attachment {attachment.name} is gone", sent=False)
    return data


def attached(name: str, media_type: str, data: bytes) -> Attachment:
    return Attachment(hashlib.sha256(data).hexdigest(), media_type, name, len(data))


def asking(*messages: Message, tools: Sequence[ToolSpec] = ()) -> ModelRequest:
    said = messages or (user("hello"),)
    return ModelRequest(messages=said, tools=tools, run="r1", step=0, attempt=1, load=load)


async def outputs(model: PydanticAIModel, *messages: Message, tools: Sequence[ToolSpec] = ()) -> list[ModelOutput]:
    return [output async for output in model.stream(asking(*messages, tools=tools))]


async def answer(model: PydanticAIModel, *messages: Message, tools: Sequence[ToolSpec] = ()) -> Answer:
    *deltas, last = await outputs(model, *messages, tools=tools)
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert isinstance(last, Answer)
    return last


async def failure(model: PydanticAIModel, *messages: Message) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await outputs(model, *messages)
    return caught.value


async def sent(server: LoopbackServer, wire: Wire, model: PydanticAIModel, *messages: Message) -> dict[str, Any]:
    """The request as it arrives at the provider."""
    server.will(answers(wire, Say(("ok",))))
    await outputs(model, *messages)
    return server.exchanges[-1].body


def shown(body: dict[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False)


# What an answer is


async def test_a_text_is_one_answer(server: LoopbackServer, wire: Wire, model: PydanticAIModel, stream: bool) -> None:
    server.will(answers(wire, Say(("Guten", " Tag ", "온돌"))))
    *deltas, whole = await outputs(model)
    assert deltas == ([Delta("Guten"), Delta(" Tag "), Delta("온돌")] if stream else [])
    assert isinstance(whole, Answer)
    assert [part.text for part in whole.parts if isinstance(part, Text)] == ["Guten Tag 온돌"]
    assert (whole.stop, whole.input_tokens, whole.output_tokens) == ("stop", 11, 7)
    assert model.name == f"{wire.name}:{MODELS[wire.name]}"
    assert server.requests == 1
    assert wants_stream(server.exchanges[0]) is stream


async def test_fragments_of_parallel_calls_find_their_call(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel
) -> None:
    server.will(
        answers(
            wire,
            Say(("two at once",)),
            Call("call_a", "weather", ('{"city":', '"서울"', "}")),
            Call("call_b", "mail", ('{"to"', ': "민수"', ', "at": 1.5', "}")),
            Call("call_c", "now", ()),
        )
    )
    given = await answer(model)
    assert given.stop == "tool_calls"
    assert [(p.id, p.name, p.arguments) for p in given.parts if isinstance(p, ToolCall)] == [
        ("call_a", "weather", {"city": "서울"}),
        ("call_b", "mail", {"to": "민수", "at": 1.5}),
        ("call_c", "now", {}),
    ]


@pytest.mark.parametrize(
    ("finish", "stop"), [("length", "length"), ("filter", "content_filter")], ids=["length", "filter"]
)
async def test_what_was_cut_off_is_told(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel, finish: Finish, stop: str
) -> None:
    server.will(answers(wire, Say(("half an",)), Call("c1", "pay", ('{"amount": 1}',)), finish=finish))
    cut_off = await answer(model)
    assert cut_off.stop == stop
    assert cut_off.input_tokens == 11


async def test_an_answer_without_its_end_is_none(server: LoopbackServer, wire: Wire, model: PydanticAIModel) -> None:
    for said in ([Say(("half",))], [Call("c1", "pay", ('{"amount": 1}',))], []):
        server.will(answers(wire, *said, finish=None))
        error = await failure(model)
        assert (error.kind, error.sent) == ("connection", True)
        assert error.output_tokens in (None, 7), "a count that stopped half way is no count"
    assert server.requests == 3


async def test_what_only_keeps_the_line_open_is_no_piece(
    server: LoopbackServer, wire: Wire, streamed: PydanticAIModel
) -> None:
    async def keeps_alive(exchange: Exchange) -> None:
        await exchange.open_stream()
        for data, event in wire.frames([Say(("Guten", " Tag"))], "end", Spent()):
            for nothing in ("retry: 3000\n\n", ": still here\n\n", "event: ping\n\n", "data:\n\n"):
                await exchange.send_raw(nothing)
            await exchange.send_event(data if isinstance(data, str) else json.dumps(data), event)
        await exchange.end_stream()

    server.will(keeps_alive)
    assert [p.text for p in (await answer(streamed)).parts if isinstance(p, Text)] == ["Guten Tag"]


#: What the standard ends a line with, what a field may have behind its colon, and bytes in one piece.
FORMS = [("\n", " ", None), ("\n", " ", 1), ("\r\n", " ", 1), ("\r", " ", 7), ("\n", "", None)]


@pytest.mark.parametrize(("end", "space", "size"), FORMS)
async def test_an_answer_is_read_in_any_form_of_a_stream_and_no_character_of_it_ends_a_line(
    server: LoopbackServer, wire: Wire, streamed: PydanticAIModel, end: str, space: str, size: int | None
) -> None:
    """https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream"""
    strange = "온돌 \U0001f525 a\u2028b\u2029c\x85d\x7f\ufeff"

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        for data, event in wire.frames(
            [Say((strange, "!")), Call("c1", "pay", (f'{{"to": "{strange}"}}',))], "end", None
        ):
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            named = f"event:{space}{event}{end}" if event else ""
            await exchange.send_raw(f"{named}data:{space}{text}{end}{end}", size)
        await exchange.end_stream()

    server.will(behave)
    said, called = (await answer(streamed)).parts
    assert isinstance(said, Text)
    assert isinstance(called, ToolCall)
    assert (said.text, called.arguments) == (strange + "!", {"to": strange})


async def test_usage_tells_what_came_from_the_cache(server: LoopbackServer, wire: Wire, model: PydanticAIModel) -> None:
    written = 30 if wire.writes_cache else 0
    server.will(
        answers(wire, Say(("hm",)), spent=Spent(input=1000, output=50, cached=900, written=written, reasoning=20))
    )
    given = await answer(model)
    assert (given.input_tokens, given.output_tokens) == (1000, 50)
    assert given.cache_read_tokens == 900
    assert given.cache_write_tokens == (written or None)
    assert given.reasoning_tokens == 20
    assert given.model == "served-1" or wire.name in ("anthropic", "google")  # these streams are named as asked


async def test_tokens_are_none_where_the_provider_did_not_say(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel
) -> None:
    server.will(answers(wire, Say(("hm",)), spent=None))
    given = await answer(model)
    assert (given.input_tokens, given.output_tokens) == (None, None)
    assert (given.cache_read_tokens, given.cache_write_tokens, given.reasoning_tokens) == (None, None, None)


#: What a server may say beside its answer: under these names any of these values.
BESIDE: dict[str, tuple[Sequence[str], Sequence[Any]]] = {
    "usage": (("usage", "usageMetadata"), ([], "x", 7, True, [7], {"a": {"b": [1]}})),
    "tokens": (
        ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens", "promptTokenCount",
         "candidatesTokenCount", "totalTokenCount", "prompt_tokens_details", "completion_tokens_details",
         "input_tokens_details", "output_tokens_details"),
        ("x", -1, 1.5, [7], {"x": 7}, {}, 7, True),
    ),
    "the rest": (
        ("created", "created_at", "model", "modelVersion", "responseId", "object", "service_tier", "index", "logprobs",
         "incomplete_details"),
        (7, [], [7], {}, {"x": 7}, True, 1.5),
    ),
}  # fmt: skip
WITHIN = ("response", "message", "choices", "candidates", "usage", "usageMetadata")
ADDED = {"service_tier": "choices", "logprobs": "finish_reason"}  # beside what


def oddly(said: Any, names: Sequence[str], odd: Any) -> Any:
    """What is said, with something odd under each of the names."""
    if isinstance(said, list):
        return [oddly(inner, names, odd) for inner in said]
    if not isinstance(said, dict) or said.get("type", "").startswith("content_block"):  # where an index has a meaning
        return said
    within = {name: oddly(inner, names, odd) if name in WITHIN else inner for name, inner in said.items()}
    return within | {name: odd for name in names if name in said or ADDED.get(name) in said}


@pytest.mark.parametrize("beside", BESIDE)
async def test_what_a_server_says_beside_an_answer_does_not_cost_the_answer(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel, stream: bool, beside: str
) -> None:
    (names, odds), said = BESIDE[beside], [Say(("so", "so")), Call("call_1", "mail", ('{"to": ', '"kim"}'))]
    server.will(answers(wire, *said))
    plain = await answer(model)
    for odd in odds:

        async def says_oddly(exchange: Exchange, odd: Any = odd) -> None:
            if not stream:
                await exchange.send_json(200, oddly(wire.whole(said, "end", Spent()), names, odd))
                return
            await exchange.open_stream()
            await send(exchange, [Frame(oddly(data, names, odd), e) for data, e in wire.frames(said, "end", Spent())])
            await exchange.end_stream()

        server.will(says_oddly)
        given = await answer(model)
        assert (given.parts, given.stop) == (plain.parts, plain.stop), odd
        if beside == "usage":
            assert (given.input_tokens, given.output_tokens) == (None, None), odd


@pytest.mark.parametrize(("told", "counted"), [((), (None, None)), (("message_start",), (11, None))])
async def test_tokens_may_be_left_out_by_who_only_speaks_like_anthropic(
    server: LoopbackServer, make: Callable[..., PydanticAIModel], told: Sequence[str], counted: tuple[int | None, ...]
) -> None:
    async def says_no_more(exchange: Exchange) -> None:
        await exchange.open_stream()
        for frame in Anthropic().frames([Say(("hm",))], "end", Spent(input=11, output=7)):
            event = frame.data
            if event["type"] not in told:
                event.get("message", event).pop("usage", None)
            await exchange.send_event(json.dumps(event), event["type"])
        await exchange.end_stream()

    server.will(says_no_more)
    given = await answer(make(Anthropic(), server.host))
    assert ([p.text for p in given.parts if isinstance(p, Text)], given.stop) == (["hm"], "stop")
    assert (given.input_tokens, given.output_tokens) == counted


@pytest.mark.parametrize("wire", WIRES[:3], ids=lambda wire: wire.name)  # Google's calls are objects, never text
@pytest.mark.parametrize(
    "pieces",
    [('{"amount": ', "1"), ('{"amount": 1, "amount": 100}',), ('{"amount": NaN}',), ("{'amount': 1}",), ("[1]",)],
    ids=lambda pieces: "".join(pieces),
)
async def test_arguments_that_are_no_plain_object_stay_text(
    server: LoopbackServer, wire: Wire, streamed: PydanticAIModel, pieces: tuple[str, ...]
) -> None:
    server.will(answers(wire, Call("c1", "pay", pieces)))
    assert [p.arguments for p in (await answer(streamed)).parts if isinstance(p, ToolCall)] == ["".join(pieces)]


# Reasoning


async def test_reasoning_goes_back_only_to_who_signed_it(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel, make: Callable[..., PydanticAIModel]
) -> None:
    server.will(answers(wire, Think(("let me ", "see"), "c2lnbmVk"), Call("c1", "look", ("{}",))))
    own = await answer(model)
    thought = next(p for p in own.parts if isinstance(p, Reasoning))
    assert thought.text == "let me see"
    private = [p.provider for p in own.parts if isinstance(p, Text | Reasoning | ToolCall) and p.provider]
    assert private
    assert all(p["name"] == model.provider and p["host"] == server.host for p in private)

    said = [user("look"), Message("assistant", own.parts), tool_result("c1", "look", "seen")]
    mark = "c2lnbmVk" if wire.signs else "let me see"
    assert mark in shown(await sent(server, wire, model, *said)).replace("YzJsbmJtVms=", mark)

    async with LoopbackServer().running() as elsewhere:
        body = await sent(elsewhere, wire, make(wire, elsewhere.host), *said)
        assert wire.calls(body) == [("c1", "seen")]
        for word in ("c2lnbmVk", "YzJsbmJtVms", "let me see"):
            assert word not in shown(body)


UNREADABLE: dict[str, Sequence[str]] = {
    "anthropic": (
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "messages.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
    ),
    "openai-responses": (
        "The encrypted content gAAA...c90= could not be verified.",
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
    ),
    "google": ("Unable to submit request because Thought signature is not valid.", "Corrupted thought signature."),
}


@pytest.mark.parametrize(
    ("signing", "refusal"),
    [(wire, said) for wire in (OpenAIResponses(), Anthropic(), Google()) for said in UNREADABLE[wire.name]],
    ids=lambda given: getattr(given, "name", given),
)
async def test_what_a_provider_signed_and_does_not_take_back_is_left_out_from_the_next_attempt_on(
    server: LoopbackServer, signing: Wire, refusal: str, stream: bool, make: Callable[..., PydanticAIModel]
) -> None:
    """Another account, or another deployment behind its address, cannot read it; what is signed later goes back."""
    model = make(signing, server.host, stream=stream)
    said = [user("look")]
    for id, mark in (("c1", "c2lnbmVk"), ("c2", "c2VhbGVk")):
        server.will(answers(signing, Think(("let me see",), mark), Call(id, "look", ("{}",))))
        said += [Message("assistant", (await answer(model)).parts), tool_result(id, "look", "seen")]
        if id == "c1":
            refused = answers_with(400, {"error": {"message": refusal}})
            server.will(refused)
            assert (await failure(model, *said)).kind == "unavailable"
            body = await sent(server, signing, model, *said)
            assert signing.calls(body) == [("c1", "seen")]
            assert not any(word in shown(body) for word in ("c2lnbmVk", "YzJsbmJtVms", "let me see", "rs_", "fc_"))
            server.will(refused)
            assert (await failure(model, *said)).kind == "rejected"
    body = shown(await sent(server, signing, model, *said))
    assert "c2VhbGVk" in body.replace("YzJWaGJHVms=", "c2VhbGVk")
    assert not any(word in body for word in ("c2lnbmVk", "YzJsbmJtVms"))


@pytest.mark.parametrize("hidden", [OpenAIResponses(), Anthropic()], ids=lambda wire: wire.name)
async def test_hidden_reasoning_is_kept_for_its_provider(
    server: LoopbackServer, hidden: Wire, stream: bool, make: Callable[..., PydanticAIModel]
) -> None:
    server.will(answers(hidden, Think((), "c2VhbGVk"), Say(("done",))))
    model = make(hidden, server.host, stream=stream)
    own = await answer(model)
    assert [p.text for p in own.parts if isinstance(p, Reasoning)] == [""]
    body = await sent(server, hidden, model, user("go"), Message("assistant", own.parts), user("on"))
    assert "c2VhbGVk" in shown(body)


async def test_reasoning_is_streamed_apart_from_the_text(
    server: LoopbackServer, wire: Wire, streamed: PydanticAIModel
) -> None:
    server.will(answers(wire, Think(("let me ", "see"), "c2lnbmVk"), Say(("42",))))
    assert [o for o in await outputs(streamed) if isinstance(o, Delta)] == [
        Delta("let me ", "reasoning"),
        Delta("see", "reasoning"),
        Delta("42"),
    ]


# What is sent


async def test_images_and_files_arrive_as_bytes(server: LoopbackServer, wire: Wire, model: PydanticAIModel) -> None:
    body = await sent(
        server,
        wire,
        model,
        user(
            "what are these?", attached("그림.png", "image/png", PNG), attached("receipt.pdf", "application/pdf", PDF)
        ),
    )
    assert wire.files(body) == [Attached("image/png", PNG), Attached("application/pdf", PDF)]
    for told in ("what are these?", "그림.png", "receipt.pdf"):
        assert told in shown(body)
    assert "blob" not in shown(body)


async def test_a_text_file_is_shown_as_its_text(server: LoopbackServer, wire: Wire, model: PydanticAIModel) -> None:
    body = await sent(server, wire, model, user("", attached("notes.md", "text/markdown", "제목\n€".encode())))
    assert wire.files(body) == []
    assert "notes.md" in shown(body)
    assert "제목\\n€" in shown(body)


async def test_a_text_file_in_another_encoding_is_read_or_the_model_is_told(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel
) -> None:
    _, windows, korean = TEXTS
    body = await sent(server, wire, model, user("", attached("notes.txt", "text/plain", windows)))
    assert f"[attachment notes.txt, text/plain, {len(windows)} bytes]\\n제목\\n€" in shown(body)
    body = await sent(server, wire, model, user("", attached("notes.txt", "text/plain", korean)))
    assert f"[attachment notes.txt, text/plain, {len(korean)} bytes: not all of it reads as text in UTF-8]" in shown(
        body
    )


async def test_a_sound_arrives_where_the_api_hears(server: LoopbackServer, wire: Wire, model: PydanticAIModel) -> None:
    sound = attached("hello.wav", "audio/wav", b"\0\1")
    if wire.name in ("openai", "google"):
        assert wire.files(await sent(server, wire, model, user("listen", sound))) == [Attached("audio/wav", b"\0\1")]
        return
    error = await failure(model, user("listen", sound))
    assert (error.kind, error.sent) == ("rejected", False)
    assert str(error).startswith(f"{model.name} does not take audio/wav (hello.wav)")
    assert server.requests == 0


async def test_an_attachment_of_an_earlier_turn_never_blocks_a_session(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel
) -> None:
    strange = attached("model.blend", "application/x-blender", b"\0\1")
    gone = attached("old.png", "image/png", b"purged")
    earlier = [user("look", strange, gone), Message("assistant", (Text("nice"),))]
    body = await sent(server, wire, model, *earlier, user("thanks"), runtime_note("by the way"))
    assert wire.files(body) == []
    assert shown(body).count("it cannot be shown") == 2
    for refused in (strange, gone):
        error = await failure(model, user("look", refused), runtime_note("by the way"))
        assert (error.kind, error.sent) == ("rejected", False)
        assert refused.name in str(error)


async def test_every_call_keeps_its_one_result_whatever_its_id(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel
) -> None:
    """Some models number their calls, anew in each run."""
    body = await sent(
        server,
        wire,
        model,
        user("go"),
        Message("assistant", (ToolCall("call_0", "a", {}), ToolCall("call_1", "b", {"n": 1}))),
        tool_result("call_0", "a", "first"),
        tool_result("call_1", "b", "second"),
        Message("assistant", (ToolCall("call_0", "a", {}),)),
        tool_result("call_0", "a", "third"),
        runtime_note("the worker was restarted"),
    )
    calls = wire.calls(body)
    assert [result for _, result in calls] == ["first", "second", "third"]
    assert [id for id, _ in calls[:2]] == ["call_0", "call_1"]
    assert len({id for id, _ in calls}) == 3
    assert all(is_plain(id) for id, _ in calls)
    assert "the worker was restarted" in shown(body)


async def test_an_id_that_others_would_refuse_goes_back_to_who_gave_it(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel, make: Callable[..., PydanticAIModel]
) -> None:
    server.will(answers(wire, Call("functions.look:0", "look", ("{}",))))
    recorded = message_of(await answer(model), "r_1", 0, set(), model.name)
    (call,) = recorded.calls
    assert call.id == "call_r_1_0"
    said = [user("look"), recorded, tool_result(call.id, "look", "seen")]
    assert wire.calls(await sent(server, wire, model, *said)) == [("functions.look:0", "seen")]
    async with LoopbackServer().running() as elsewhere:
        assert wire.calls(await sent(elsewhere, wire, make(wire, elsewhere.host), *said)) == [("call_r_1_0", "seen")]


async def test_tools_are_shown_as_they_are_written(server: LoopbackServer, wire: Wire, model: PydanticAIModel) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 1}, "days": {"type": "integer", "default": 3}},
        "required": ["city"],
        "additionalProperties": False,
    }
    server.will(answers(wire, Say(("ok",))))
    await outputs(model, tools=[ToolSpec(name="weather", description="The weather.", parameters=schema)])
    body = server.exchanges[0].body
    tools = json.dumps(body["tools"])
    assert "The weather." in tools
    assert json.dumps(schema["properties"]) in tools


# How it fails


@pytest.mark.parametrize(
    ("wire", "kind"),
    [(wire, kind) for wire in WIRES for kind in get_args(ModelErrorKind) if wire.failure(kind)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
async def test_a_failure_has_its_kind_and_is_never_retried_unseen(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel, kind: ModelErrorKind
) -> None:
    server.will(fails(wire, kind))
    error = await failure(model)
    assert (error.kind, error.sent) == (kind, True)
    assert str(error).startswith(f"{model.name} failed with status")
    assert server.requests == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "insufficient_quota"}, "quota"),
        ("your credit balance is too low", "quota"),
        ({"message": "This model's maximum context length is 8192 tokens. You asked for 9000."}, "context_overflow"),
        ({"message": "no such key", "type": "authentication_error"}, "auth"),
        ({"message": "no such tool " * 100, "code": 400}, "rejected"),
        ({"message": "wait", "code": 429}, "rate_limited"),
        ({"message": "log in"}, "connection"),
    ],
)
async def test_an_error_with_the_status_of_an_answer_has_the_kind_that_it_says(
    server: LoopbackServer, model: PydanticAIModel, error: str | dict[str, Any], kind: ModelErrorKind
) -> None:
    """As gateways pass on what a server behind them said."""
    server.will(answers_with(200, {"error": error}))
    told = await failure(model)
    assert (told.kind, told.sent) == (kind, True)
    said = error if isinstance(error, str) else str(error.get("message") or error["code"])
    assert said[:50] in str(told)
    assert "cannot be read" not in str(told)


@pytest.mark.parametrize("body", ["[]", "null", "7", "{}", '{"error": "no"}', "<html>log in</html>", "", "\x1f\x8b"])
@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_that_is_none_of_the_apis_counts_as_a_broken_connection(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel, body: str, packed: bool
) -> None:
    """What stands between us and the provider answers in its place, with whatever it has."""

    async def something_else(exchange: Exchange) -> None:
        data = body.encode("latin-1")
        encoding = {"content-encoding": "gzip"} if packed else {}
        await exchange._head(200, {"content-type": "application/json", "content-length": str(len(data)), **encoding})
        await exchange._write(data)

    server.will(something_else)
    error = await failure(model)
    assert (error.kind, error.sent) == ("connection", True)
    assert model.name in str(error)
    assert server.requests == 1


#: Those whose stream has a last word; the end of Google's is that of the connection.
WITH_LAST_WORD = pytest.mark.parametrize("wire", WIRES[:3], ids=lambda wire: wire.name)


@WITH_LAST_WORD
@pytest.mark.parametrize(
    "said", ["<html>log in</html>", '{"error": {"message": "log in"}}', '{"status_msg": "log in"}']
)
async def test_what_came_instead_of_a_stream_is_told(
    server: LoopbackServer, wire: Wire, streamed: PydanticAIModel, said: str
) -> None:
    async def something_else(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send_raw(f"{said} {exchange.headers.get('authorization') or exchange.headers['x-api-key']}")
        await exchange.end_stream()

    server.will(something_else)
    error = await failure(streamed)
    assert error.kind == "connection"
    assert said in str(error)
    assert KEY not in str(error)


@WITH_LAST_WORD
@pytest.mark.parametrize("stays", [True, False], ids=["stays open", "breaks"])
async def test_an_answer_with_its_last_word_is_whole_however_the_connection_ends(
    server: LoopbackServer, wire: Wire, streamed: PydanticAIModel, stays: bool
) -> None:
    async def never_ends(exchange: Exchange) -> None:
        await exchange.open_stream()
        await send(exchange, wire.frames([Say(("whole",))], "end", Spent()))
        if stays:
            await exchange.gone.wait()

    server.will(never_ends)
    *_, answer = await outputs(streamed)
    assert isinstance(answer, Answer)
    assert [part.text for part in answer.parts if isinstance(part, Text)] == ["whole"]
    assert answer.output_tokens == 7


async def test_a_request_that_is_too_large_overflows(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel
) -> None:
    async def too_large(exchange: Any) -> None:
        await exchange.send_json(
            413, {"error": {"type": "request_too_large", "message": "too many bytes", "code": 413}}
        )

    server.will(too_large)
    assert (await failure(model)).kind == "context_overflow"


@pytest.mark.parametrize("body", [{"error": {"message": "no such model", "code": 404, "status": "NOT_FOUND"}}, {}])
async def test_a_model_that_is_not_there_cannot_answer_and_another_may(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel, body: dict[str, Any]
) -> None:
    server.will(answers_with(404, body))
    error = await failure(model)
    assert (error.kind, server.requests) == ("unavailable", 1)
    assert str(error).endswith(": check the name of the model, and the address")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"retry_after": "7"}, 7.0), ({"retry_after": "0.5"}, 0.5), ({"retry_after": "soon"}, None), ({}, None)],
)
async def test_the_wait_that_the_provider_asks_for_is_told(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel, headers: dict[str, str], seconds: float | None
) -> None:
    server.will(fails(wire, "rate_limited", **headers))
    assert (await failure(model)).retry_after == seconds


async def test_the_wait_may_be_a_date(server: LoopbackServer, wire: Wire, model: PydanticAIModel) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    server.will(fails(wire, "rate_limited", retry_after=at))
    wait = (await failure(model)).retry_after
    assert wait is not None
    assert 3500 < wait <= 3600


@pytest.mark.parametrize("kind", ["rate_limited", "overloaded", "server", "quota"])
async def test_an_error_told_inside_the_stream_has_its_kind(
    server: LoopbackServer, wire: Wire, streamed: PydanticAIModel, kind: ModelErrorKind
) -> None:
    frame = wire.broken(kind)
    assert frame is not None
    server.will(breaks(wire, frame, Say(("half",))))
    error = await failure(streamed)
    assert (error.kind, error.sent) == (kind, True)
    assert error.input_tokens == (11 if wire.tells_input_first or wire.name == "openai-responses" else None)
    assert server.requests == 1


async def test_a_piece_that_is_not_json_breaks_the_answer(
    server: LoopbackServer, wire: Wire, streamed: PydanticAIModel
) -> None:
    async def garbles(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send_event('{"id": "chatcmpl-1", "choi', "message_start")
        await exchange.end_stream()

    server.will(garbles)
    assert (await failure(streamed)).kind == "connection"


async def test_a_connection_that_breaks_was_sent(server: LoopbackServer, wire: Wire, model: PydanticAIModel) -> None:
    server.will(breaks(wire, "drop"))
    error = await failure(model)
    assert (error.kind, error.sent) == ("connection", True)
    assert server.requests == 1


async def test_a_stream_that_breaks_tells_what_it_had_used(
    server: LoopbackServer, wire: Wire, streamed: PydanticAIModel
) -> None:
    server.will(breaks(wire, "drop", Say(("half", " of it"))))
    error = await failure(streamed)
    assert (error.kind, error.sent) == ("connection", True)
    assert error.input_tokens == (11 if wire.tells_input_first else None)
    assert error.output_tokens is None, "more was said than had been counted"
    assert server.requests == 1


async def test_a_refused_connection_was_certainly_not_sent(
    wire: Wire, stream: bool, make: Callable[..., PydanticAIModel]
) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # bound but not listening: nobody else can answer here
        host = f"127.0.0.1:{unheard.getsockname()[1]}"
        error = await failure(make(wire, host, stream=stream))
    assert (error.kind, error.sent) == ("connection", False)
    assert host in str(error)


async def test_the_key_is_never_repeated(server: LoopbackServer, wire: Wire, model: PydanticAIModel) -> None:
    found = wire.failure("auth")
    assert found is not None
    said = json.loads(json.dumps(found.body).replace('"message": "', f'"message": "Incorrect key {KEY}. '))

    server.will(answers_with(found.status, said))
    error = await failure(model)
    assert "Incorrect key ***" in str(error)
    assert KEY[-5:] not in str(error)


# Silence, and stopping


@pytest.mark.parametrize("said", [[], [Say(("half",))]], ids=["before the answer", "within the answer"])
@pytest.mark.parametrize("alive", ["", ": still here\n\n"], ids=["silent", "alive"])
async def test_silence_is_a_timeout_and_closes_the_socket(
    server: LoopbackServer, wire: Wire, make: Callable[..., PydanticAIModel], said: list[Said], alive: str
) -> None:
    server.will(breaks(wire, "stall", *said, alive=alive))
    model = make(wire, server.host, timeout=1.0)
    error = await failure(model)
    assert (error.kind, error.sent, error.output_tokens) == ("timeout", True, None)
    await asyncio.wait_for(server.exchanges[0].gone.wait(), 1)
    assert server.requests == 1


async def test_a_whole_answer_that_does_not_come_is_a_timeout(
    server: LoopbackServer, wire: Wire, make: Callable[..., PydanticAIModel]
) -> None:
    server.will(breaks(wire, "stall"))
    error = await failure(make(wire, server.host, timeout=1.0, stream=False))
    assert (error.kind, error.sent) == ("timeout", True)
    await asyncio.wait_for(server.exchanges[0].gone.wait(), 1)
    assert server.requests == 1


async def test_cancelling_the_task_closes_the_socket(
    server: LoopbackServer, wire: Wire, model: PydanticAIModel
) -> None:
    server.will(breaks(wire, "stall"))
    task = asyncio.create_task(outputs(model))
    exchange = await server.exchange()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(exchange.gone.wait(), 1)


async def test_closing_the_stream_closes_the_socket(
    server: LoopbackServer, wire: Wire, streamed: PydanticAIModel
) -> None:
    server.will(breaks(wire, "stall", Say(("half",))))
    async with contextlib.aclosing(streamed.stream(asking())) as stream:
        assert await anext(stream) == Delta("half")
    await asyncio.wait_for(server.exchanges[0].gone.wait(), 1)
    assert server.requests == 1


# Before anything starts


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_missing_key_names_its_variable(wire: Wire, no_keys: pytest.MonkeyPatch) -> None:
    wanted = f"{' or '.join(wire.key_variables)} is not set: set it, or set {wire.url_variable} to a server"
    with pytest.raises(InvalidInput, match=wanted):
        providers.resolve(f"{wire.name}:any")


def test_each_usual_variable_is_read(wire: Wire, no_keys: pytest.MonkeyPatch) -> None:
    for name in wire.key_variables:
        with no_keys.context() as set_one:
            set_one.setenv(name, "sk-test")
            assert providers.resolve(f"{wire.name}:any").name == f"{wire.name}:any"


async def test_an_address_alone_is_enough(wire: Wire, server: LoopbackServer, no_keys: pytest.MonkeyPatch) -> None:
    no_keys.setenv(wire.url_variable, wire.url(server.host))
    no_keys.setenv("NO_PROXY", "127.0.0.1")
    server.will(answers(wire, Say(("ok",))))
    async with contextlib.aclosing(wire.make(MODELS[wire.name], timeout=PATIENCE, stream=True)) as model:
        no_keys.setenv(wire.url_variable, "http://127.0.0.1:1")  # read before, so this changes nothing
        await answer(model)
    assert "no-key" in "".join(server.exchanges[0].headers.values())


def test_a_model_of_nobody_names_those_that_there_are() -> None:
    with pytest.raises(InvalidInput, match="anthropic:MODEL, google:MODEL"):
        providers.resolve("acme:large")


async def test_a_password_in_the_address_is_sent_and_is_in_no_log(
    wire: Wire, server: LoopbackServer, make: Callable[..., PydanticAIModel], caplog: pytest.LogCaptureFixture
) -> None:
    """The libraries tell of each request with its address."""
    caplog.set_level(logging.DEBUG)
    server.will(answers(wire, Say(("hi",))))
    model = make(wire, f"me:can%40ary@{server.host}")
    await answer(model)
    (exchange,) = server.exchanges
    assert exchange.headers["authorization"] == "Basic " + base64.b64encode(b"me:can@ary").decode()
    assert server.host in caplog.text
    for hidden in ("can%40ary", "can@ary", "me:", base64.b64encode(b"me:can@ary").decode()):
        assert hidden not in caplog.text
    assert "can" not in repr(model)
