"""OpenAI's chat completions: https://platform.openai.com/docs/api-reference/chat"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

from providers.wires.script import Attached, Call, Failure, Finish, Frame, Said, Say, Spent, Think, interleaved

from ondol.errors import ModelErrorKind
from ondol.providers.openai import openai_chat
from ondol.providers.pydantic_ai import PydanticAIModel

_FINISH: dict[Finish, str] = {"length": "length", "filter": "content_filter"}
_FAILURES: dict[ModelErrorKind, tuple[int, str]] = {
    "rate_limited": (429, "rate_limit_exceeded"),
    "quota": (429, "insufficient_quota"),
    "overloaded": (503, "server_is_overloaded"),
    "unavailable": (503, ""),
    "server": (500, ""),
    "context_overflow": (400, "context_length_exceeded"),
    "auth": (401, "invalid_api_key"),
    "rejected": (400, "invalid_value"),
    "content_filter": (400, "content_filter"),
}


class OpenAIChat:
    name = "openai"
    key_variables = ("OPENAI_API_KEY",)
    url_variable = "OPENAI_BASE_URL"
    signs = False
    writes_cache = False
    tells_input_first = False

    def url(self, host: str) -> str:
        return f"http://{host}/v1"

    def make(self, model: str, *, timeout: float, stream: bool) -> PydanticAIModel:
        return openai_chat(model, timeout=timeout, stream=stream)

    def frames(self, said: Sequence[Said], finish: Finish | None, spent: Spent | None) -> Iterable[Frame]:
        for part in said:
            match part:
                case Say(pieces):
                    yield from (_chunk({"content": piece}) for piece in pieces)
                case Think(pieces):
                    yield from (_chunk({"reasoning_content": piece}) for piece in pieces)
        calls = [part for part in said if isinstance(part, Call)]
        for index, call in enumerate(calls):
            begun = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
            yield _chunk({"tool_calls": [{"index": index, **begun}]})
        for index, piece in interleaved(calls):
            yield _chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        if finish is not None:
            yield _chunk({}, _FINISH.get(finish, "tool_calls" if calls else "stop"))
            if spent:
                yield Frame({**_HEAD, "object": "chat.completion.chunk", "choices": [], "usage": _usage(spent)})
            yield Frame("[DONE]")

    def whole(self, said: Sequence[Said], finish: Finish | None, spent: Spent | None) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant"}
        message["content"] = "".join(p for part in said if isinstance(part, Say) for p in part.pieces) or None
        if thought := "".join(p for part in said if isinstance(part, Think) for p in part.pieces):
            message["reasoning_content"] = thought
        calls = [part for part in said if isinstance(part, Call)]
        if calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
            ]
        reason = finish and _FINISH.get(finish, "tool_calls" if calls else "stop")
        completion = {**_HEAD, "object": "chat.completion", "usage": spent and _usage(spent)}
        return {**completion, "choices": [{"index": 0, "message": message, "finish_reason": reason}]}

    def failure(self, kind: ModelErrorKind) -> Failure | None:
        if kind not in _FAILURES:
            return None
        status, code = _FAILURES[kind]
        return Failure(status, {"error": {"message": "it broke", "code": code or None, "type": code or None}})

    def broken(self, kind: ModelErrorKind) -> Frame | None:
        failure = self.failure(kind)
        return Frame(failure.body) if failure and kind in ("rate_limited", "overloaded", "server", "quota") else None

    def files(self, body: dict[str, Any]) -> list[Attached]:
        found = []
        for message in body["messages"]:
            for part in message["content"] if isinstance(message["content"], list) else []:
                match part:
                    case {"type": "image_url", "image_url": {"url": url}} | {
                        "type": "file",
                        "file": {"file_data": url},
                    }:
                        found.append(from_data_url(url))
                    case {"type": "input_audio", "input_audio": {"data": data, "format": form}}:
                        found.append(Attached(f"audio/{form}", base64.b64decode(data)))
        return found

    def calls(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        results = {m["tool_call_id"]: m["content"] for m in body["messages"] if m["role"] == "tool"}
        return [(c["id"], results[c["id"]]) for m in body["messages"] for c in m.get("tool_calls", ())]


_HEAD = {"id": "chatcmpl-1", "created": 1, "model": "served-1"}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> Frame:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return Frame({**_HEAD, "object": "chat.completion.chunk", "choices": choices})


def _usage(spent: Spent) -> dict[str, Any]:
    return {
        "prompt_tokens": spent.input,
        "completion_tokens": spent.output,
        "total_tokens": spent.input + spent.output,
        "prompt_tokens_details": {"cached_tokens": spent.cached},
        "completion_tokens_details": {"reasoning_tokens": spent.reasoning},
    }


def from_data_url(url: str) -> Attached:
    media_type, data = url.removeprefix("data:").split(";base64,")
    return Attached(media_type, base64.b64decode(data))
