"""How do Ondol's messages become pydantic-ai's, and its answers become ours?"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from ondol import media
from ondol.errors import ModelError
from ondol.ids import is_plain
from ondol.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResponse, parse_arguments
from ondol.model import Delta, ModelRequest, ToolSpec
from ondol.providers.learned import Learned

if TYPE_CHECKING:  # pydantic-ai takes about a second to import, and is an extra
    from pydantic_ai import messages as wire
    from pydantic_ai.models import ModelRequestParameters


def parameters(tools: Sequence[ToolSpec]) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    # strict=None would let pydantic-ai turn the provider's strict mode on and rewrite schemas to fit it.
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name, description=tool.description, parameters_json_schema=tool.parameters, strict=False
            )
            for tool in tools
        ]
    )


# --- attachments ------------------------------------------------------------------------------------------------


async def read_attachments(request: ModelRequest, takes: Set[str], model: str, learned: Learned) -> dict[str, bytes]:
    """The bytes of what can be shown, by digest: text, and the media types that the API ``takes``.

    What cannot be shown of earlier turns, and of what tools gave, is left out: it would keep a session from ever going
    on with this model.

    Raises:
        ModelError: something attached to the input itself cannot be shown.
    """
    attached: dict[str, bytes] = {}
    asked = _asked_at(request.messages)
    for i, message in enumerate(request.messages):
        for part in message.parts:
            if not isinstance(part, Attachment) or message.role not in ("user", "tool") or part.digest in attached:
                continue
            try:
                refused = _is_image(part) and (learned.no_images or (i != asked and part.digest in learned.spoiled))
                if refused or (part.media_type not in takes and not media.is_text(part.media_type)):
                    why = f"{model} does not take {part.media_type} ({part.name}): leave it out, or use another model"
                    raise ModelError("rejected", why, sent=False)
                attached[part.digest] = await request.load(part)
            except ModelError as error:
                if i == asked or error.kind != "rejected":
                    raise
    return attached


def _asked_at(messages: Sequence[Message]) -> int:
    return max((i for i, m in enumerate(messages) if m.role == "user" and m.origin is None), default=-1)


def images_beside(messages: Sequence[Message]) -> set[str]:
    """The digests of images that are not attached to the input itself."""
    asked = _asked_at(messages)
    beside = (part for i, m in enumerate(messages) if i != asked for part in m.parts)
    return {part.digest for part in beside if isinstance(part, Attachment) and _is_image(part)}


def _is_image(part: Attachment) -> bool:
    return part.media_type.startswith("image/")


def _shown(part: Attachment, attached: Mapping[str, bytes]) -> list[str | wire.BinaryContent]:
    """Its name, and then its text or its bytes."""
    from pydantic_ai.messages import BinaryContent

    named = f"attachment {_valid(part.name)}, {_valid(part.media_type)}, {part.size} bytes"
    if (data := attached.get(part.digest)) is None:
        return [f"[{named}: it cannot be shown]"]
    if media.is_text(part.media_type):
        text, whole = media.text_of(data)
        unread = "" if whole else ": not all of it reads as text in UTF-8"
        return [f"[{named}{unread}]\n{text}"]
    return [f"[{named}]", BinaryContent(data, media_type=part.media_type)]


# --- what is sent -----------------------------------------------------------------------------------------------


def to_wire(
    messages: Sequence[Message], attached: Mapping[str, bytes], origin: Mapping[str, str], system: str, learned: Learned
) -> list[wire.ModelMessage]:
    """The messages without what the provider would refuse: empty texts, invalid Unicode, another provider's parts.

    ``system`` is pydantic-ai's word for the provider, under which it takes back what is signed. All that is said
    between two answers is one request there: some providers want all results of an answer together.
    """
    from pydantic_ai import messages as wire

    sent: list[wire.ModelMessage] = []
    ids = _CallIds(learned.nine)
    for message in messages:
        if message.role == "assistant":
            parts = [p for p in message.parts if not (learned.no_reasoning and isinstance(p, Reasoning))]
            owned = [(part, _own(part, origin, learned)) for part in parts]
            if not any(isinstance(part, Reasoning) and own for part, own in owned):
                # OpenAI refuses what it knows by its id to follow on reasoning, where that is not sent.
                owned = [(part, {**own, "id": None}) for part, own in owned]
            said = [given for part, own in owned if (given := _said(part, own, system, ids))]
            if learned.all_reasoning and message.calls and not any(isinstance(p, wire.ThinkingPart) for p in said):
                said.insert(0, wire.ThinkingPart(content=" ", id="reasoning_content", provider_name=system))
            if learned.excused:
                _excuse(said, system)
            if said:
                sent.append(wire.ModelResponse(parts=said, provider_name=system))
        elif asked := _asked(message, attached, ids):
            if sent and isinstance(sent[-1], wire.ModelRequest):
                # Results first, all of them: providers refuse what stands between a call and its result.
                ordered = sorted([*sent[-1].parts, *asked], key=lambda part: isinstance(part, wire.UserPromptPart))
                sent[-1] = wire.ModelRequest(parts=ordered)
            else:
                sent.append(wire.ModelRequest(parts=asked))
    if learned.alternate or learned.no_system:
        return [_joined(m, learned.no_system) if isinstance(m, wire.ModelRequest) else m for m in sent]
    return sent


def _excuse(said: Sequence[wire.ModelResponsePart], system: str) -> None:
    """https://ai.google.dev/gemini-api/docs/thought-signatures: the first call of an answer has to be signed."""
    from pydantic_ai import messages as wire

    first = next((part for part in said if isinstance(part, wire.ToolCallPart)), None)
    if first is not None and not first.provider_details:
        word = {"thought_signature": "skip_thought_signature_validator"}
        first.provider_details, first.provider_name = {"extra_content": {"google": word}}, system


def _joined(request: wire.ModelRequest, with_system: bool) -> wire.ModelRequest:
    """All that users and the runtime say between two answers in one message."""
    from pydantic_ai import messages as wire

    kinds = (wire.UserPromptPart, wire.SystemPromptPart) if with_system else (wire.UserPromptPart,)
    said: list[Any] = []
    for part in request.parts:
        if isinstance(part, kinds):
            said += [part.content] if isinstance(part.content, str) else part.content
    if not said:
        return request
    words = "\n\n".join(said) if all(isinstance(s, str) for s in said) else said
    return wire.ModelRequest(
        parts=[*(p for p in request.parts if not isinstance(p, kinds)), wire.UserPromptPart(content=words)]
    )


_NINE = re.compile(r"[A-Za-z0-9]{9}")


class _CallIds:
    """The ids of calls in one request, each once: a model that numbers its calls begins anew in every run."""

    def __init__(self, nine: bool) -> None:
        self._nine = nine
        self._sent: dict[str, str] = {}  # by the id as it is recorded; a result follows its call
        self._used: set[str] = set()

    def of_call(self, id: str, given: str | None) -> str:
        """``given`` is the id that this provider itself gave, where another one is recorded."""
        sent = given or id
        if sent in self._used or (self._nine and not _NINE.fullmatch(sent)):
            digest = hashlib.sha256(f"{len(self._used)}|{_valid(id)}".encode()).hexdigest()
            sent = digest[:9] if self._nine else "call_" + digest[:24]
        self._used.add(sent)
        self._sent[id] = sent
        return sent

    def of_result(self, id: str) -> str:
        return self._sent.get(id, id)


def _asked(message: Message, attached: Mapping[str, bytes], ids: _CallIds) -> list[wire.ModelRequestPart]:
    from pydantic_ai import messages as wire

    asked: list[wire.ModelRequestPart] = []
    said: list[str | wire.BinaryContent] = []
    for part in message.parts:
        match part:
            case ToolResponse(id, name):
                # A result is never left out: each call has exactly one.
                result = _valid(part.text) or "(empty)"
                asked.append(wire.ToolReturnPart(tool_name=name, content=result, tool_call_id=ids.of_result(id)))
            case Text(text) if text.strip():
                said.append(_valid(text))
            case Attachment():
                said += _shown(part, attached)
    texts = [s for s in said if isinstance(s, str)]
    if message.role == "system" and texts:
        asked.append(wire.SystemPromptPart(content="\n\n".join(texts)))
    elif said:
        asked.append(wire.UserPromptPart(content="\n\n".join(texts) if len(texts) == len(said) else said))
    return asked


def _own(part: Part, origin: Mapping[str, str], learned: Learned) -> Mapping[str, Any]:
    """What this provider itself gave with the part, and takes back."""
    own = getattr(part, "provider", None) or {}
    if not origin.items() <= own.items() or (learned.spoiled and _digest(part) in learned.spoiled):
        return {}
    return own


def signed(messages: Sequence[Message], origin: Mapping[str, str], learned: Learned) -> set[str]:
    """The digests of parts of answers that are sent with what only this provider reads."""
    said = (part for message in messages if message.role == "assistant" for part in message.parts)
    return {_digest(part) for part in said if _own(part, origin, learned)}


def _digest(part: Part) -> str:
    return hashlib.sha256(_valid(repr(part)).encode()).hexdigest()


def _said(part: Part, own: Mapping[str, Any], system: str, ids: _CallIds) -> wire.ModelResponsePart | None:
    from pydantic_ai import messages as wire

    private: dict[str, Any] = {}
    if id := own.get("id") or own.get("field"):
        private["id"] = id
    if details := own.get("details"):
        private["provider_details"] = details
    if private or "signature" in own:
        private["provider_name"] = system
    match part:
        case Text(text) if text.strip():
            return wire.TextPart(content=_valid(text), **private)
        # Reasoning goes back only to where it came from: as text it would teach the model to think aloud.
        case Reasoning(text) if private:
            return wire.ThinkingPart(content=_valid(text), signature=own.get("signature"), **private)
        case ToolCall(id, name, arguments):
            if isinstance(arguments, str):
                arguments = {"invalid_arguments": arguments}
            args = _valid(json.dumps(arguments, ensure_ascii=False))
            return wire.ToolCallPart(
                tool_name=name, args=args, tool_call_id=ids.of_call(id, own.get("call_id")), **private
            )
        case _:
            return None


# --- what comes back --------------------------------------------------------------------------------------------


_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*(.*)", re.DOTALL)


def parts_from_wire(said: Sequence[wire.ModelResponsePart], origin: Mapping[str, str]) -> Iterator[Part]:
    """The parts of an answer as they are recorded. What stands between tags at the beginning of a text is reasoning:
    the library sees it only where each tag comes in a piece of its own."""
    for raw in said:
        part = from_wire(raw, origin)
        if isinstance(part, Text) and part.provider is None and (thought := _THOUGHT.fullmatch(part.text)):
            yield Reasoning(thought[1])
            part = Text(thought[2]) if thought[2] else None
        if part is not None:
            yield part


def from_wire(part: wire.ModelResponsePart, origin: Mapping[str, str]) -> Part | None:
    """The part as it is recorded, with what only its provider reads under the provider's name."""
    from pydantic_ai import messages as wire

    match part:
        case wire.TextPart(content=text) if text:
            return Text(_whole(text), _private(part, origin))
        case wire.ThinkingPart(content=text, id=id):
            # "content" says that it stood between tags in the text, so there is no field to put it back in.
            private = None if id == "content" else _private(part, origin, part.signature)
            if private is None and part.provider_name == "anthropic":  # servers with its API that do not sign
                private = {**origin, "signature": ""}
            return Reasoning(_whole(text), private) if text or private else None
        case wire.ToolCallPart(args=args):
            # No text at all, or null, is how some servers send a call without arguments.
            sent = args if isinstance(args, str) else json.dumps(args)
            arguments = parse_arguments("{}" if sent.strip() in ("", "null") else _whole(sent))
            id, private = part.tool_call_id, _private(part, origin)
            if id and not is_plain(id):  # it is recorded under another one, see ``plans.message_of``
                private = {**origin, **(private or {}), "call_id": id}
            return ToolCall(id, part.tool_name, arguments, private)
        case _:
            return None


def _private(
    part: wire.TextPart | wire.ThinkingPart | wire.ToolCallPart, origin: Mapping[str, str], signature: str | None = None
) -> dict[str, Any] | None:
    said = {"id": part.id, "signature": signature, "details": part.provider_details}
    kept = {name: value for name, value in said.items() if value}
    return {**origin, **kept} if kept else None


def delta(event: wire.ModelResponseStreamEvent) -> Delta | None:
    from pydantic_ai import messages as wire

    match event:
        case (
            wire.PartStartEvent(part=wire.TextPart(content=text))
            | wire.PartDeltaEvent(delta=wire.TextPartDelta(content_delta=text))
        ) if text:
            return Delta(text)
        case (
            wire.PartStartEvent(part=wire.ThinkingPart(content=text))
            | wire.PartDeltaEvent(delta=wire.ThinkingPartDelta(content_delta=text))
        ) if text:
            return Delta(text, "reasoning")
        case _:
            return None


class Pieces:
    """The pieces of one answer. Half of a character waits for its other half."""

    def __init__(self) -> None:
        self._half = ""

    def of(self, event: wire.ModelResponseStreamEvent) -> Delta | None:
        if (said := delta(event)) is None or (said.text.isascii() and not self._half):
            return said
        text, self._half = self._half + said.text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return Delta(_whole(text), said.kind) if text else None


_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def _whole(text: str) -> str:
    """The text with each character in one: some servers send the halves of one in two pieces."""
    if text.isascii():
        return text
    return _HALVES.sub(lambda two: two[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)


def _valid(text: str) -> str:
    """The text without lone surrogates, which cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()
