"""How are the models behind OpenAI's two APIs reached?"""

from __future__ import annotations

import itertools
import json
import secrets
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ondol.messages import parse_arguments
from ondol.providers import beside, details, sse
from ondol.providers.access import NO_KEY, Access, need, read
from ondol.providers.learned import Learned
from ondol.providers.pydantic_ai import CONNECT_SECONDS, SILENCE_SECONDS, Opened, PydanticAIModel

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_OFFICE = "application/vnd.openxmlformats-officedocument."
_CHAT_TAKES = _IMAGES | {"application/pdf", "audio/wav", "audio/mpeg"}
_RESPONSES_TAKES = _IMAGES | {
    "application/pdf",
    _OFFICE + "wordprocessingml.document",
    _OFFICE + "spreadsheetml.sheet",
    _OFFICE + "presentationml.presentation",
}


#: Of the Responses API. The client itself knows how the other one ends.
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


@dataclass(frozen=True, slots=True)
class _Item:
    id: str
    given: str
    index: object
    call: object


class _Items:
    """Which call an event of the Responses API belongs to. Its ``item_id`` should say so; some servers leave it out,
    give each event another one, or all calls the same."""

    def __init__(self) -> None:
        self._items: list[_Item] = []

    def put_right(self, event: Any) -> None:
        match event:
            case {"type": "response.output_item.added", "item": {"type": "function_call"} as item}:
                item["id"] = self._begun(event, item).id
            case {"type": "response.function_call_arguments.delta" | "response.function_call_arguments.done"}:
                if found := self._of(event, event.get("item_id"), event.get("call_id")):
                    event["item_id"] = found.id
            case {"type": "response.output_item.done", "item": {"type": "function_call"} as item}:
                found = self._of(event, item.get("id"), item.get("call_id")) or self._begun(event, item)
                item["id"] = found.id

    def _begun(self, event: dict[str, Any], item: dict[str, Any]) -> _Item:
        given = item.get("id") or ""
        is_new = given and all(given != other.id for other in self._items)
        id = given if is_new else f"fc_{secrets.token_hex(12)}"
        self._items.append(_Item(id, given, event.get("output_index"), item.get("call_id")))
        return self._items[-1]

    def _of(self, event: dict[str, Any], id: object, call: object) -> _Item | None:
        """The latest one that fits best."""
        index = event.get("output_index")
        fits = [(call == i.call, bool(id) and id == i.given, index == i.index, n) for n, i in enumerate(self._items)]
        return self._items[max(fits)[-1]] if fits else None


@dataclass(slots=True)
class _Call:
    number: int
    id: str
    name: str
    arguments: str = ""


class _Pieces:
    """Which call a piece of a stream belongs to. The number that it has should say so; some servers give all calls the
    same one, and some say the name of a call, or another id, with each of its pieces."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}  # the latest one with each number that a server gave
        self._numbers = itertools.count()

    def put_right(self, piece: Any) -> None:
        """``piece`` is a ``ChoiceDeltaToolCall``."""
        if piece.function is not None and isinstance(piece.function.arguments, dict):
            piece.function.arguments = json.dumps(piece.function.arguments)
        if piece.index is None or piece.function is None:
            return
        id, name = piece.id or "", piece.function.name or ""
        call = self._calls.get(piece.index)
        if call is None or self._begins(call, id, name):
            call = self._calls[piece.index] = _Call(next(self._numbers), id, name)
        elif name == call.name:
            piece.function.name = None
        call.id = piece.id = call.id or id
        call.arguments += piece.function.arguments or ""
        piece.index = call.number

    @staticmethod
    def _begins(call: _Call, id: str, name: str) -> bool:
        if not name or (id and id == call.id):
            return False
        if id and call.id and (name != call.name or not call.arguments):
            return True
        return isinstance(parse_arguments(call.arguments), dict)


def openai_chat(model_name: str, *, timeout: float = SILENCE_SECONDS, stream: bool = True) -> PydanticAIModel:
    """A model behind OpenAI's chat completions API, or behind a server that speaks it.

    Reads ``OPENAI_API_KEY`` and ``OPENAI_BASE_URL``, once, now. With a base URL the key may be missing.
    ``timeout`` is the longest silence in seconds: before the answer begins, and between two pieces of it. Without
    ``stream`` the answer comes in one piece, within that time.

    Raises:
        InvalidInput: a setting is missing or unusable, or the ``models`` extra is not installed.
    """
    access, learned = _access(), Learned()
    need("pydantic_ai.models.openai", "pydantic_ai.providers.openai")

    def connect() -> Opened:
        from openai import omit
        from openai.types.chat.chat_completion_chunk import ChoiceDelta
        from pydantic_ai.messages import ThinkingPart
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings, OpenAIStreamedResponse
        from pydantic_ai.providers.openai import OpenAIProvider

        class EachCall(OpenAIStreamedResponse):
            _pieces: _Pieces | None = None

            def _map_chunk_provider_details(self, chunk: Any) -> Any:
                for choice in chunk.choices or ():
                    if choice.delta is None:  # the library would not hear the reason for the end beside it
                        choice.delta = ChoiceDelta()
                return super()._map_chunk_provider_details(chunk)

            def _map_thinking_delta(self, choice: Any) -> Any:
                if not (found := details.given(choice.delta)):
                    yield from super()._map_thinking_delta(choice)
                for number, detail in enumerate(found):
                    yield from self._parts_manager.handle_thinking_delta(
                        vendor_part_id=details.key(detail, number), provider_name=self.provider_name,
                        **details.fields(detail),
                    )  # fmt: skip

            def _map_tool_call_delta(self, choice: Any) -> Any:
                self._pieces = self._pieces or _Pieces()
                for piece in choice.delta.tool_calls or ():
                    self._pieces.put_right(piece)
                return super()._map_tool_call_delta(choice)

        class Chat(OpenAIChatModel):
            def _get_stream_options(self, model_settings: OpenAIChatModelSettings) -> Any:
                return omit if learned.uncounted else {"include_usage": True}

            def _process_thinking(self, message: Any) -> Any:
                found = details.given(message)
                parts = [ThinkingPart(provider_name=self.system, **details.fields(detail)) for detail in found]
                return parts or super()._process_thinking(message)

            def _map_carried_thinking(self, message: Any) -> Any:
                return super()._map_carried_thinking(replace(message, parts=details.taken_out(message.parts)[1]))

            def _map_model_response(self, message: Any) -> Any:
                reasoned, others = details.taken_out(message.parts)
                said: Any = super()._map_model_response(replace(message, parts=others))
                if reasoned and said is not None:
                    said["reasoning_details"] = reasoned
                if learned.worded and said is not None and said.get("content") is None:
                    said["content"] = ""
                return said

            def _validate_completion(self, response: Any) -> Any:
                if not response.choices:
                    raise sse.NoAnswer(response.to_json(indent=None))
                return super()._validate_completion(response)

            @property
            def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
                return EachCall

        # By default usage is summed over all chunks, which counts double where a server reports a running total with
        # each. This setting takes the last one. It would also ask for running totals, which OpenAI refuses: so the
        # model says what to ask.
        settings = OpenAIChatModelSettings(openai_continuous_usage_stats=True) if stream else OpenAIChatModelSettings()
        client = _client(access, timeout)
        provider = OpenAIProvider(openai_client=client)
        return Chat(model_name, provider=provider, settings=settings), client.close

    return PydanticAIModel(
        f"openai:{model_name}", connect, origin={"name": "openai", "host": access.host}, takes=_CHAT_TAKES,
        timeout=timeout, stream=stream, secret=access.key, learned=learned,
    )  # fmt: skip


def openai_responses(model_name: str, *, timeout: float = SILENCE_SECONDS, stream: bool = True) -> PydanticAIModel:
    """A model behind OpenAI's Responses API, with the settings of ``openai_chat``.

    Nothing is kept at the provider: its reasoning comes encrypted, is recorded, and goes back with the next request.
    """
    access = _access()
    need("pydantic_ai.models.openai", "pydantic_ai.providers.openai")

    def connect() -> Opened:
        from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
        from pydantic_ai.providers.openai import OpenAIProvider

        settings = OpenAIResponsesModelSettings(openai_store=False)
        client = _client(access, timeout)
        provider = OpenAIProvider(openai_client=client)
        return OpenAIResponsesModel(model_name, provider=provider, settings=settings), client.close

    # A name of its own: what the two APIs sign is not exchangeable.
    return PydanticAIModel(
        f"openai-responses:{model_name}", connect, origin={"name": "openai-responses", "host": access.host},
        takes=_RESPONSES_TAKES, timeout=timeout, stream=stream, secret=access.key,
    )  # fmt: skip


def _access() -> Access:
    return read(
        ["OPENAI_API_KEY"], "OPENAI_BASE_URL", default="https://api.openai.com/v1", example="http://localhost:11434/v1"
    )


def _client(access: Access, timeout: float) -> AsyncOpenAI:
    from openai import AsyncOpenAI, Timeout
    from openai._streaming import ServerSentEvent, SSEDecoder

    class Decoder(SSEDecoder):
        def aiter_bytes(self, iterator: AsyncIterator[bytes]) -> AsyncIterator[ServerSentEvent]:
            return sse.of_answer(super().aiter_bytes, iterator, _LAST)

        def decode(self, line: str) -> Any:
            line = line.removeprefix("\ufeff")
            if line.startswith("error: {"):  # llama.cpp, until the end of 2025
                line = f'data: {{"error": {line.removeprefix("error: ")}}}'
            event = super().decode(line)
            return event if event is not None and event.data else None  # without any it only keeps the line open

    class Client(AsyncOpenAI):
        def _make_sse_decoder(self, *asked: Any, **how: Any) -> SSEDecoder:  # of what, differs by version
            return Decoder()

        def _process_response_data(self, *, data: object, response: Any, **how: Any) -> Any:
            sse.look(data)
            beside.of_openai(data)
            items.setdefault(response, _Items()).put_right(data)
            return super()._process_response_data(data=data, response=response, **how)

    items: weakref.WeakKeyDictionary[object, _Items] = weakref.WeakKeyDictionary()  # by the response that they come in
    return Client(
        api_key=access.key or NO_KEY,
        base_url=access.base_url,  # given, so that a later environment changes nothing
        default_headers=access.headers,
        max_retries=0,  # the client's own retries would bill again, unseen
        timeout=Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
    )
