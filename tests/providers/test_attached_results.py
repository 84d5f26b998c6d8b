"""What a tool returns beside words reaches a provider behind all results of the answer, which none of them may part."""

from __future__ import annotations

from pydantic_ai import messages as sent

from ondol import Attachment, Message, ModelRequest, Text, ToolCall
from ondol.messages import tool_result, user
from ondol.providers import wire
from ondol.providers.learned import Learned

PHOTO = Attachment("ab" * 32, "image/png", "photo.png", 3)
SAID = [
    user("look"),
    Message("assistant", (Text("I look."), ToolCall("1", "look", {}), ToolCall("2", "look", {}))),
    tool_result("1", "look", "one", attached=[PHOTO]),
    tool_result("2", "look", "two"),
]


async def load(_: Attachment) -> bytes:
    return b"png"


async def test_images_of_results_come_behind_all_results_of_the_answer() -> None:
    request = ModelRequest(messages=SAID, tools=(), run="r", step=1, attempt=1, load=load)
    attached = await wire.read_attachments(request, {"image/png"}, "model", Learned())
    *_, last = wire.to_wire(SAID, attached, {"name": "p"}, "p", Learned())
    first, second, image = last.parts
    assert [getattr(p, "content", None) for p in (first, second)] == ["one", "two"]
    assert isinstance(image, sent.UserPromptPart)
    assert isinstance(image.content[-1], sent.BinaryContent)
    assert image.content[-1].data == b"png"


async def test_a_model_that_takes_no_images_is_told_the_name_of_one_in_a_result() -> None:
    request = ModelRequest(messages=SAID, tools=(), run="r", step=1, attempt=1, load=load)
    attached = await wire.read_attachments(request, set(), "model", Learned())
    *_, last = wire.to_wire(SAID, attached, {"name": "p"}, "p", Learned())
    assert "photo.png, image/png, 3 bytes: it cannot be shown" in str(last.parts[-1].content)
