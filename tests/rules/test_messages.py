"""Messages on disk, and the request that is made of them."""

from __future__ import annotations

import json

import pytest

from ondol import context, messages
from ondol.messages import Attachment, Blob, Message, Reasoning, Text, ToolCall, ToolResponse, UnknownPart

EACH = Message(
    "assistant",
    (
        Text("hi", {"name": "p", "id": "1"}),
        Reasoning("hm", {"name": "p", "signature": "s"}),
        ToolCall("c1", "t", {"n": 2**60, "lone": "\ud800"}),
        ToolCall("c2", "t", "{not json"),
        ToolResponse("c1", "t", {"x": 1}, error=True),
        ToolResponse("c1", "t", "done", made_with={"to": "kim"}),
        ToolResponse("c2", "t", "begins … ends", blob=Blob("cd" * 32, "text/plain", 40_000, 30_000)),
        Attachment("ab" * 32, "image/png", "a.png", 3),
        UnknownPart({"type": "hologram", "depth": 3}),
    ),
    origin="runtime",
    extra={"later": [1]},
)


def test_a_message_is_read_back_as_it_was_written():
    assert messages.loads(messages.dumps(EACH)) == EACH


def test_unknown_parts_and_fields_are_kept_word_for_word():
    stored = '{"v":1,"role":"user","parts":[{"type":"hologram","depth":3}],"mood":"good"}'
    assert json.loads(messages.dumps(messages.loads(stored))) == json.loads(stored)


def test_part_names_follow_the_genai_conventions():
    assert [p["type"] for p in json.loads(messages.dumps(EACH))["parts"]] == [
        "text", "reasoning", "tool_call", "tool_call", *["tool_call_response"] * 3, "uri",
        "hologram",
    ]  # fmt: skip


@pytest.mark.parametrize("body", ['{"role":"user"}', '{"x":"' + "온돌" * 2000 + '"}', '{"x":"' + "\x00" * 5000 + '"}'])
def test_a_packed_body_is_unpacked_as_it_was(body):
    assert messages.unpack(messages.pack(body)) == body


def test_short_bodies_stay_readable_in_the_file_and_long_ones_shrink():
    assert messages.pack('{"a":1}') == b'{"a":1}'
    assert len(messages.pack('{"a":"' + "x" * 5000 + '"}')) < 500


def test_bytes_that_are_no_message_are_refused():
    with pytest.raises(ValueError):
        messages.unpack(b"\x00\x01garbage")


def test_a_call_without_a_recorded_result_gets_one_that_never_says_success():
    answer = Message("assistant", (ToolCall("c1", "mail", {}), ToolCall("c2", "read", {})))
    own = {1: messages.user("go"), 2: answer, 4: messages.tool_result("c2", "read", "found")}
    seen = [m for _, m in context.own_messages(own, 0, 5)]
    assert [m.role for m in seen] == ["user", "assistant", "tool", "tool"]
    made = next(p for m in seen for p in m.parts if isinstance(p, ToolResponse) and p.id == "c1")
    assert made.error
    assert "unknown" in made.response
    assert "success" not in made.response


def test_the_chained_hash_depends_on_every_message_and_on_their_order():
    chain = context.extend_chain(context.EMPTY_CHAIN, ["a", "b"])
    assert chain == context.extend_chain(context.extend_chain(context.EMPTY_CHAIN, ["a"]), ["b"])
    assert chain != context.extend_chain(context.EMPTY_CHAIN, ["b", "a"])
    assert chain != context.extend_chain(context.EMPTY_CHAIN, ["a", "c"])
