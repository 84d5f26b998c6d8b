"""What of a recorded message another provider is shown, and what its own."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ondol import ids, messages
from ondol.context import sendable
from ondol.messages import Message, Part, Reasoning, Text, ToolCall
from ondol.model import Answer
from ondol.plans import message_of

SIGNED = {"name": "p1", "signature": "s"}


def sent(message: Message, provider: str) -> Message | None:
    return sendable(messages.dumps(message), message, provider)


def said(*parts: Part) -> Message:
    return Message("assistant", parts)


def test_a_provider_sees_its_own_words_as_they_were() -> None:
    whole = said(Reasoning("hm", SIGNED), Reasoning("", SIGNED), Text("so", SIGNED), ToolCall("c1", "a", {}, SIGNED))
    assert sent(whole, "p1") is whole


def test_another_sees_them_without_what_only_the_first_can_read() -> None:
    whole = said(Reasoning("hm", SIGNED), Reasoning("", SIGNED), Text("so", SIGNED), ToolCall("c1", "a", {}, SIGNED))
    assert sent(whole, "p2") == said(Text("so"), ToolCall("c1", "a", {}))


def test_hidden_reasoning_alone_leaves_nothing_for_another() -> None:
    assert sent(said(Reasoning("", SIGNED)), "p2") is None


@pytest.mark.parametrize("name", ["look it up!", "온돌", "a" * 200, ""])
def test_a_name_of_a_tool_that_a_model_made_up_is_one_that_providers_take(name: str) -> None:
    message = sent(said(ToolCall("c1", name, {})), "p1")
    assert message is not None
    assert [ids.is_tool_name(call.name) for call in message.calls] == [True]


def test_blank_parts_are_shown_to_nobody() -> None:
    assert sent(said(Text(" "), Reasoning("\n"), Text("so")), "p1") == said(Text("so"))


@pytest.mark.parametrize("id", ["toolu|01/" + "x" * 80, "functions.look:0", "온돌", "", "a b", "twice"])
def test_an_id_that_some_provider_refuses_is_not_recorded(id: str) -> None:
    answer = Answer(parts=(ToolCall("twice", "a", {}), ToolCall(id, "b", {}), ToolCall("toolu_01A-b", "c", {})))
    first, second, third = message_of(answer, ids.new_run_id(datetime.now(UTC)), 7, set(), "wherever").calls
    assert (first.id, third.id) == ("twice", "toolu_01A-b")
    assert second.id.startswith("call_")
    assert second.id.endswith("_8")
    assert ids.is_plain(second.id)
