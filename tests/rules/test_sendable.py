"""What of a recorded message another provider is shown, and what its own."""

from __future__ import annotations

import pytest

from ondol import messages
from ondol.context import sendable
from ondol.messages import Message, Part, Reasoning, Text, ToolCall, tool_result

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


def test_blank_parts_are_shown_to_nobody() -> None:
    assert sent(said(Text(" "), Reasoning("\n"), Text("so")), "p1") == said(Text("so"))


@pytest.mark.parametrize("id", ["toolu|01/" + "x" * 80, "온돌", "", "a b"])
def test_an_id_that_some_refuse_is_replaced_in_call_and_result(id: str) -> None:
    call, result = sent(said(ToolCall(id, "a", {})), "p1"), sent(tool_result(id, "a", "done"), "p2")
    assert call is not None
    assert result is not None
    assert call.calls[0].id == getattr(result.parts[0], "id")  # noqa: B009
    assert call.calls[0].id.startswith("call_")
    assert len(call.calls[0].id) <= 40


def test_a_plain_id_stays() -> None:
    for message in (said(ToolCall("call_0_0", "a", {})), tool_result("toolu_01A-b", "a", "done")):
        assert sent(message, "p2") is message
