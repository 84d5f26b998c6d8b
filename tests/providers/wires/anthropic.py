"""Anthropic's Messages: https://platform.claude.com/docs/en/api/messages"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

from providers.wires.script import Attached, Call, Failure, Finish, Frame, Said, Say, Spent, Think

from ondol.errors import ModelErrorKind
from ondol.providers.anthropic import anthropic_messages
from ondol.providers.pydantic_ai import PydanticAIModel

_FINISH: dict[Finish, str] = {"length": "max_tokens", "filter": "refusal"}
_FAILURES: dict[ModelErrorKind, tuple[int, str, str]] = {
    "rate_limited": (429, "rate_limit_error", "slow down"),
    "quota": (400, "invalid_request_error", "Your credit balance is too low to access the API."),
    "overloaded": (529, "overloaded_error", "Overloaded"),
    "unavailable": (503, "api_error", "maintenance"),
    "server": (500, "api_error", "Internal server error"),
    "context_overflow": (400, "invalid_request_error", "prompt is too long: 300000 tokens > 200000 maximum"),
    "auth": (401, "authentication_error", "invalid x-api-key"),
    "rejected": (400, "invalid_request_error", "messages: bad"),
}


class Anthropic:
    name = "anthropic"
    key_variables = ("ANTHROPIC_API_KEY",)
    url_variable = "ANTHROPIC_BASE_URL"
    signs = True
    writes_cache = True
    tells_input_first = True

    def url(self, host: str) -> str:
        return f"http://{host}"

    def make(self, model: str, *, timeout: float, stream: bool) -> PydanticAIModel:
        return anthropic_messages(model, timeout=timeout, stream=stream)

    def frames(self, said: Sequence[Said], finish: Finish | None, spent: Spent | None) -> Iterable[Frame]:
        whole = self.whole(said, finish, spent)
        usage = whole["usage"]
        begun = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1 if spent else 0}}
        yield _frame({"type": "message_start", "message": begun})
        for index, part in enumerate(said):
            block, deltas = _block(part)
            yield _frame({"type": "content_block_start", "index": index, "content_block": block})
            for delta in deltas:
                yield _frame({"type": "content_block_delta", "index": index, "delta": delta})
            if finish or index + 1 < len(said):
                yield _frame({"type": "content_block_stop", "index": index})
        if finish is not None:
            stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
            usage = {"output_tokens": usage["output_tokens"]}
            yield _frame({"type": "message_delta", "delta": stop, "usage": usage})
            yield _frame({"type": "message_stop"})

    def whole(self, said: Sequence[Said], finish: Finish | None, spent: Spent | None) -> dict[str, Any]:
        calls = any(isinstance(part, Call) for part in said)
        spent = spent or Spent(0, 0)
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "served-1", "stop_sequence": None,
            "content": [_whole_block(part) for part in said],
            "stop_reason": finish and _FINISH.get(finish, "tool_use" if calls else "end_turn"),
            "usage": {
                "input_tokens": spent.input - spent.cached - spent.written, "output_tokens": spent.output,
                "cache_read_input_tokens": spent.cached, "cache_creation_input_tokens": spent.written,
                **({"output_tokens_details": {"thinking_tokens": spent.reasoning}} if spent.reasoning else {}),
            },
        }  # fmt: skip

    def failure(self, kind: ModelErrorKind) -> Failure | None:
        if kind not in _FAILURES:
            return None
        status, type, message = _FAILURES[kind]
        return Failure(status, {"type": "error", "error": {"type": type, "message": message}})

    def broken(self, kind: ModelErrorKind) -> Frame | None:
        failure = self.failure(kind)
        return (
            Frame(failure.body, "error")
            if failure and kind in ("rate_limited", "overloaded", "server", "quota")
            else None
        )

    def files(self, body: dict[str, Any]) -> list[Attached]:
        return [
            Attached(block["source"]["media_type"], base64.b64decode(block["source"]["data"]))
            for message in body["messages"]
            for block in message["content"]
            if block["type"] in ("image", "document")
        ]

    def calls(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        blocks = [block for message in body["messages"] for block in message["content"]]
        results = {b["tool_use_id"]: b["content"][0]["text"] for b in blocks if b["type"] == "tool_result"}
        return [(b["id"], results[b["id"]]) for b in blocks if b["type"] == "tool_use"]


def _frame(data: dict[str, Any]) -> Frame:
    return Frame(data, data["type"])


def _block(part: Said) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match part:
        case Say(pieces):
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]
        case Think((), signature):
            return {"type": "redacted_thinking", "data": signature}, []
        case Think(pieces, signature):
            deltas: list[dict[str, Any]] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
            if signature:
                deltas.append({"type": "signature_delta", "signature": signature})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case Call(id, name, pieces):
            begun = {"type": "tool_use", "id": id, "name": name, "input": {}}
            return begun, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


def _whole_block(part: Said) -> dict[str, Any]:
    match part:
        case Say(pieces):
            return {"type": "text", "text": "".join(pieces)}
        case Think((), signature):
            return {"type": "redacted_thinking", "data": signature}
        case Think(pieces, signature):
            return {"type": "thinking", "thinking": "".join(pieces), "signature": signature}
        case Call(id, name):
            try:
                arguments = json.loads(part.arguments or "{}")
            except ValueError:
                arguments = {}
            return {"type": "tool_use", "id": id, "name": name, "input": arguments}
