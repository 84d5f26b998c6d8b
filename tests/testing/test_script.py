"""A scripted model says what it was told, and is as strict as providers are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ondol.errors import InvalidInput, ModelError
from ondol.messages import (
    Attachment,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResponse,
    runtime_note,
    tool_result,
    user,
)
from ondol.model import Answer, Delta, ModelRequest, ToolSpec
from ondol.providers.script import script_model
from ondol.testing import ScriptedModel, call, error, text, truncated

SYSTEM = Message("system", (Text("be brief"),))


def request(*messages: Message, step: int = 0, attempt: int = 1, tools: Sequence[ToolSpec] = ()) -> ModelRequest:
    return ModelRequest(messages=messages or (user("hi"),), tools=tools, run="r1", step=step, attempt=attempt)


def assistant(*parts: Part) -> Message:
    return Message("assistant", parts)


async def ask(model: ScriptedModel, wanted: ModelRequest) -> Answer:
    outputs = [output async for output in model.stream(wanted)]
    assert all(isinstance(output, Delta) for output in outputs[:-1])
    answer = outputs[-1]
    assert isinstance(answer, Answer)
    return answer


async def refusal(model: ScriptedModel, wanted: ModelRequest) -> ModelError:
    with pytest.raises(ModelError) as raised:
        await ask(model, wanted)
    return raised.value


# --- the script -------------------------------------------------------------------------------------------------


async def test_the_step_chooses_the_answer() -> None:
    model = ScriptedModel([[call("find", order="1")], [text("found "), "it"], "bye"])
    first, second, third = [await ask(model, request(step=step)) for step in range(3)]
    assert (first.parts, first.stop) == ((ToolCall("call_0_0", "find", {"order": "1"}),), "tool_calls")
    assert (second.parts, second.stop) == ((Text("found "), Text("it")), "stop")
    assert third.parts == (Text("bye"),)


async def test_a_restarted_process_goes_on_at_its_step() -> None:
    answers = [[call("find", order="1")], [text("found")]]
    await ask(ScriptedModel(answers), request(step=0))
    assert (await ask(ScriptedModel(answers), request(step=1))).parts == (Text("found"),)


async def test_calls_get_ids_by_step_and_place() -> None:
    model = ScriptedModel(["one", [call("a"), text("and"), call("b", name="kim"), ToolCall("own", "c", {})]])
    answer = await ask(model, request(step=1))
    assert [(p.id, p.name, p.arguments) for p in answer.parts if isinstance(p, ToolCall)] == [
        ("call_1_0", "a", {}),
        ("call_1_1", "b", {"name": "kim"}),
        ("own", "c", {}),
    ]


async def test_errors_before_an_answer_are_its_first_attempts() -> None:
    model = ScriptedModel(["one", error("rate_limited", retry_after=1.5), error("overloaded"), "two"])
    assert (await ask(model, request(step=0))).parts == (Text("one"),)
    limited = await refusal(model, request(step=1, attempt=1))
    assert (limited.kind, limited.retry_after, limited.sent) == ("rate_limited", 1.5, True)
    assert (await refusal(model, request(step=1, attempt=2))).kind == "overloaded"
    assert (await ask(model, request(step=1, attempt=3))).parts == (Text("two"),)


async def test_errors_at_the_end_go_on_for_ever() -> None:
    model = ScriptedModel(["one", error("timeout"), error("server", sent=False)])
    kinds = [(await refusal(model, request(step=1, attempt=attempt))).kind for attempt in (1, 2, 3, 9)]
    assert kinds == ["timeout", "server", "server", "server"]


async def test_a_script_that_is_over_says_so() -> None:
    refused = await refusal(ScriptedModel(["one"]), request(step=1))
    assert refused.kind == "rejected"
    assert "no answer 2" in str(refused)


async def test_a_text_is_streamed_in_pieces() -> None:
    model = ScriptedModel([[Reasoning("hm"), text("a text that is long enough")]])
    deltas = [output async for output in model.stream(request()) if isinstance(output, Delta)]
    assert "".join(d.text for d in deltas if d.kind == "text") == "a text that is long enough"
    assert [d.text for d in deltas if d.kind == "reasoning"] == ["h", "m"]
    assert sum(d.kind == "text" for d in deltas) == 3


async def test_a_truncated_answer_stops_with_length() -> None:
    answer = await ask(ScriptedModel([truncated(["half a", call("refund")])]), request())
    assert answer.stop == "length"
    assert answer.parts == (Text("half a"), ToolCall("call_0_0", "refund", {}))


async def test_the_stop_reason_can_be_given() -> None:
    assert (await ask(ScriptedModel(["no"], stop="content_filter"), request())).stop == "content_filter"


async def test_tokens_are_counted_the_same_each_time() -> None:
    answers = [await ask(ScriptedModel(["twelve chars"]), request(user("12345678"))) for _ in range(2)]
    assert [(a.input_tokens, a.output_tokens, a.model) for a in answers] == [(2, 3, "script")] * 2


async def test_a_function_decides_from_the_request() -> None:
    def answer(seen: ModelRequest) -> Any:
        return error("server") if seen.attempt == 1 else [call("echo", said=seen.messages[-1].text)]

    model = ScriptedModel(answer, name="f")
    assert (await refusal(model, request())).kind == "server"
    assert (await ask(model, request(attempt=2))).parts == (ToolCall("call_0_0", "echo", {"said": "hi"}),)


async def test_an_async_function_may_wait_and_give_a_whole_answer() -> None:
    may_answer = asyncio.Event()

    async def answer(_: ModelRequest) -> Answer:
        await may_answer.wait()
        return Answer(parts=(call("a"),), stop="odd", input_tokens=None)

    asked = asyncio.create_task(ask(ScriptedModel(answer, name="w"), request()))
    await asyncio.sleep(0)
    assert not asked.done()
    may_answer.set()
    assert await asked == Answer(parts=(ToolCall("call_0_0", "a", {}),), stop="odd", model="w")


async def test_requests_are_kept_as_they_were() -> None:
    model = ScriptedModel(["one"])
    messages = [user("hi")]
    await ask(model, ModelRequest(messages=messages, tools=(), run="r1", step=0, attempt=1))
    await refusal(model, request(assistant()))
    messages.append(user("later"))
    assert [len(r.messages) for r in model.requests] == [1, 1]
    assert model.requests[0].messages == (user("hi"),)


# --- strictness -------------------------------------------------------------------------------------------------

A, B = ToolCall("a", "t", {}), ToolCall("b", "t", {})
IMAGE = Attachment("0" * 64, "image/png", "x.png", 9)

WELL_FORMED: dict[str, tuple[Message, ...]] = {
    "system first": (SYSTEM, user("hi")),
    "parallel calls, results in any order": (
        user("hi"), assistant(A, B), tool_result("b", "t", 1), tool_result("a", "t", 2)
    ),
    "results in one message": (
        user("hi"),
        assistant(Text("on it"), A, B),
        Message("tool", (ToolResponse("a", "t", 1), ToolResponse("b", "t", "", error=True))),
        user("and?"),
    ),
    "the same id in a later turn": (
        user("hi"), assistant(A), tool_result("a", "t", 1), assistant(A), tool_result("a", "t", 1)
    ),
    "own private data": (
        user("hi"), assistant(Reasoning("hm", {"name": "script", "sig": "x"}), Text("yes")), user("so?")
    ),
    "arguments that are not JSON": (user("hi"), assistant(ToolCall("a", "t", "{")), tool_result("a", "t", 1)),
    "user messages in a row, with a file": (Message("user", (IMAGE,)), runtime_note("stopped"), user("hi", IMAGE)),
    "escaped surrogates": (user("hi"), assistant(A), tool_result("a", "t", {"$ondol": "text", "v": "7aCA"})),
}  # fmt: skip

MALFORMED: dict[str, tuple[tuple[Message, ...], str]] = {
    "nothing": ((SYSTEM,), "no message"),
    "call without result, at the end": ((user("hi"), assistant(A)), "no result of the call a"),
    "call without result, then a user": ((user("hi"), assistant(A), user("so?")), "no result of the call a"),
    "one of two results": ((user("hi"), assistant(A, B), tool_result("a", "t", 1), user("so?")), "the call b"),
    "result later than directly after": (
        (user("hi"), assistant(A), runtime_note("wait"), tool_result("a", "t", 1)), "no result of the call a"
    ),
    "result without call": ((user("hi"), tool_result("a", "t", 1)), "result 'a' has no call"),
    "result twice": ((user("hi"), assistant(A), tool_result("a", "t", 1), tool_result("a", "t", 1)), "second one"),
    "ids twice": ((user("hi"), assistant(A, A), tool_result("a", "t", 1)), "ids of their own"),
    "no id": ((user("hi"), assistant(ToolCall("", "t", {}))), "ids of their own"),
    "empty text": ((user("hi"), assistant(Text("")), user("so?")), "a text is empty"),
    "blank text": ((user(" \n"),), "a text is empty"),
    "no parts": ((user("hi"), assistant()), "no parts"),
    "system later": ((user("hi"), SYSTEM), "has to be the first"),
    "lone surrogate": ((user("\ud800"),), "not valid Unicode"),
    "lone surrogate in arguments": (
        (user("hi"), assistant(ToolCall("a", "t", {"x": ["\udfff"]})), tool_result("a", "t", 1)), "not valid Unicode"
    ),
    "lone surrogate in a key of a result": (
        (user("hi"), assistant(A), tool_result("a", "t", {"\udfff": 1})), "not valid Unicode"
    ),
    "NaN": ((user("hi"), assistant(A), tool_result("a", "t", float("nan"))), "not JSON"),
    "private data of another": (
        (user("hi"), assistant(Text("yes", {"name": "other"})), user("so?")), "private data of the model 'other'"
    ),
    "private data of another in a call": (
        (user("hi"), assistant(ToolCall("a", "t", {}, {"name": "other"})), tool_result("a", "t", 1)), "'other'"
    ),
    "signed reasoning alone": ((user("hi"), assistant(Reasoning("hm", {"sig": "x"})), user("so?")), "followed it"),
    "call of a user": ((Message("user", (A,)), tool_result("a", "t", 1)), "does not belong there"),
    "text of a tool": ((user("hi"), assistant(A), Message("tool", (Text("1"),))), "does not belong there"),
}  # fmt: skip


@pytest.mark.parametrize("messages", WELL_FORMED.values(), ids=WELL_FORMED)
async def test_a_well_formed_history_is_taken(messages: tuple[Message, ...]) -> None:
    assert (await ask(ScriptedModel(["ok"]), request(*messages))).parts == (Text("ok"),)


@pytest.mark.parametrize(("messages", "why"), MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_history_is_refused(messages: tuple[Message, ...], why: str) -> None:
    refused = await refusal(ScriptedModel(["ok"]), request(*messages))
    assert refused.kind == "rejected"
    assert why in str(refused)


async def test_what_does_not_fit_the_window_overflows() -> None:
    model = ScriptedModel(["ok"], window=10)
    assert await ask(model, request(user("x" * 43)))
    assert (await refusal(model, request(user("x" * 44)))).kind == "context_overflow"
    assert (await refusal(model, request(user("hi", IMAGE)))).kind == "context_overflow"
    tool = ToolSpec(name="find", description="x" * 50, parameters={})
    assert (await refusal(model, request(user("hi"), tools=[tool]))).kind == "context_overflow"


@pytest.mark.parametrize("word", ["leave", "연차휴가를", "🏠🏠🏠🏠🏠"])
async def test_the_arguments_of_a_call_have_as_many_characters_as_they_are_written_with(word: str) -> None:
    called = ToolCall(id="c1", name="find", arguments={"q": word * 8})
    given = request(user("hi"), assistant(called), tool_result("c1", "find", "ok"))
    assert await ask(ScriptedModel(["ok"], window=20), given)


# --- models by name ---------------------------------------------------------------------------------------------


async def test_a_file_holds_a_script(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(
        json.dumps(
            [
                {"error": "rate_limited", "retry_after": 2.0},
                [{"text": "on it"}, {"call": "find", "arguments": {"order": "1"}}],
                {"truncated": ["hal"]},
                "done",
            ]
        )
    )
    model = script_model(f"script:{file}")
    assert (await refusal(model, request())).retry_after == 2.0
    first = await ask(model, request(attempt=2))
    assert first.parts == (Text("on it"), ToolCall("call_0_0", "find", {"order": "1"}))
    assert (await ask(model, request(step=1))).stop == "length"
    assert (await ask(model, request(step=2))).parts == (Text("done"),)
    assert model.name == f"script:{file}"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read"),
        ("[", "is not JSON"),
        ("\udcff", "is not JSON"),
        ("{}", "holds no list"),
        ('["a", 7]', "entry 2 has 7"),
        ('[{"error": "sad"}]', "entry 1: there is no error 'sad'"),
        ('[{"call": "t", "arguments": 3}]', "entry 1"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str | None, why: str) -> None:
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InvalidInput, match=r"bad\.json") as refused:
        script_model(f"script:{file}")
    assert why in str(refused.value)


def test_a_device_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    with pytest.raises(InvalidInput, match="it is a device, and no file"):
        script_model(f"script:{tmp_path}/endless.json")


def tool(name: str, required: list[str] | None = None, defs: Any = None, **properties: Any) -> ToolSpec:
    parameters = {"type": "object", "properties": properties, "required": required or list(properties)}
    return ToolSpec(name=name, description="", parameters=parameters | ({"$defs": defs} if defs else {}))


STRING = {"type": "string"}


async def test_the_demo_calls_the_first_tool_and_tells_its_result() -> None:
    model = script_model("script:demo")
    tools = [tool("send_email", to=STRING, body=STRING), tool("other")]
    said = user("Write to kim.")
    first = await ask(model, request(SYSTEM, said, tools=tools))
    called = ToolCall("call_0_0", "send_email", {"to": "kim", "body": "Write to kim."})
    assert first.parts == (called,)
    told = assistant(called), tool_result(called.id, "send_email", "sent to kim")
    then = request(SYSTEM, said, *told, tools=tools, step=1)
    assert (await ask(model, then)).parts == (Text("sent to kim"),)


async def test_the_demo_says_something_also_for_an_empty_result() -> None:
    called = ToolCall("call_0_0", "t", {})
    then = request(user("x"), assistant(called), tool_result("call_0_0", "t", ""), tools=[tool("t")], step=1)
    assert (await ask(script_model("demo"), then)).parts == (Text("Done."),)


async def test_the_demo_echoes_without_tools() -> None:
    assert (await ask(script_model("demo"), request(user("hello"), runtime_note("late")))).parts == (
        Text("You said: hello"),
    )


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"order_id": STRING}, "1182"),
        ({"question": STRING}, "Refund 12.5 for order 1182"),
        ({"untyped": {}}, "Refund 12.5 for order 1182"),
        ({"amount": {"type": "number"}}, 12.5),
        ({"count": {"type": "integer"}}, 12),
        ({"sure": {"type": "boolean"}}, True),
        ({"kind": {"type": "string", "enum": ["a", "b"]}}, "a"),
        ({"kind": {"const": "x"}}, "x"),
        ({"amount": {"anyOf": [{"type": "number"}, {"type": "string"}]}}, 12.5),
        ({"maybe": {"type": ["integer", "null"]}}, 12),
        ({"rows": {"type": "array", "items": STRING}}, []),
        ({"bag": {"type": "object"}}, {}),
        ({"order": {"$ref": "#/$defs/Order"}}, {"id": "1182"}),
        ({"day": {"type": "string", "format": "date"}}, "2026-01-01"),
    ],
)
async def test_the_demo_makes_arguments_by_schema(schema: dict[str, Any], value: Any) -> None:
    defs = {"Order": {"type": "object", "properties": {"id": STRING, "note": STRING}, "required": ["id"]}}
    wanted = request(user("Refund 12.5 for order 1182"), tools=[tool("t", defs=defs, **schema)])
    answer = await ask(script_model("script:demo"), wanted)
    (part,) = answer.parts
    assert isinstance(part, ToolCall)
    assert part.arguments == {next(iter(schema)): value}


async def test_the_demo_leaves_out_what_has_a_default() -> None:
    wanted = request(user("go"), tools=[tool("t", required=["to"], to=STRING, cc=STRING)])
    (part,) = (await ask(script_model("script:demo"), wanted)).parts
    assert isinstance(part, ToolCall)
    assert part.arguments == {"to": "go"}
