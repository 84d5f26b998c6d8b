"""OpenAI's Responses: https://platform.openai.com/docs/api-reference/responses"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from providers.wires.openai_chat import OpenAIChat, from_data_url
from providers.wires.script import Attached, Call, Failure, Finish, Frame, Said, Say, Spent, Think, interleaved

from ondol.errors import ModelErrorKind
from ondol.providers.openai import openai_responses
from ondol.providers.pydantic_ai import PydanticAIModel

_WHY: dict[Finish, str] = {"length": "max_output_tokens", "filter": "content_filter"}


class OpenAIResponses:
    name = "openai-responses"
    key_variables = ("OPENAI_API_KEY",)
    url_variable = "OPENAI_BASE_URL"
    signs = True
    writes_cache = False
    tells_input_first = False

    def url(self, host: str) -> str:
        return f"http://{host}/v1"

    def make(self, model: str, *, timeout: float, stream: bool) -> PydanticAIModel:
        return openai_responses(model, timeout=timeout, stream=stream)

    def frames(self, said: Sequence[Said], finish: Finish | None, spent: Spent | None) -> Iterable[Frame]:
        events: list[dict[str, Any]] = [{"type": "response.created", "response": _response([], "in_progress", None)}]
        items = [_item(part, number) for number, part in enumerate(said)]
        calls = [(number, part) for number, part in enumerate(said) if isinstance(part, Call)]
        for number, part in enumerate(said):
            at = {"output_index": number, "item_id": items[number]["id"]}
            events.append({"type": "response.output_item.added", **at, "item": _begun(items[number])})
            match part:
                case Say(pieces):
                    events += [
                        {"type": "response.output_text.delta", **at, "content_index": 0, "delta": p, "logprobs": []}
                        for p in pieces
                    ]
                case Think(pieces):
                    events += [
                        {"type": "response.reasoning_summary_text.delta", **at, "summary_index": 0, "delta": p}
                        for p in pieces
                    ]
                case Call():
                    continue  # their pieces come below, and then their end
            events.append({"type": "response.output_item.done", **at, "item": items[number]})
        for index, piece in interleaved([call for _, call in calls]):
            number, _ = calls[index]
            at = {"output_index": number, "item_id": items[number]["id"]}
            events.append({"type": "response.function_call_arguments.delta", **at, "delta": piece})
        if finish is not None:
            for number, call in calls:
                at = {"output_index": number, "item_id": items[number]["id"]}
                done = {"type": "response.function_call_arguments.done", **at, "arguments": call.arguments}
                events.append({**done, "name": call.name})
                events.append({"type": "response.output_item.done", **at, "item": items[number]})
            whole = self.whole(said, finish, spent)
            events.append({"type": f"response.{whole['status']}", "response": whole})
        for number, event in enumerate(events):
            yield Frame({**event, "sequence_number": number}, event["type"])

    def whole(self, said: Sequence[Said], finish: Finish | None, spent: Spent | None) -> dict[str, Any]:
        items = [_item(part, number) for number, part in enumerate(said)]
        if finish in _WHY:
            return _response(items, "incomplete", spent, why=_WHY[finish])
        return _response(items, "completed" if finish else None, spent)

    def failure(self, kind: ModelErrorKind) -> Failure | None:
        return OpenAIChat().failure(kind)

    def broken(self, kind: ModelErrorKind) -> Frame | None:
        codes: dict[ModelErrorKind, str] = {
            "rate_limited": "rate_limit_exceeded",
            "quota": "insufficient_quota",
            "overloaded": "server_is_overloaded",
            "server": "server_error",
        }
        if kind not in codes:
            return None
        failed = _response([], "failed", Spent()) | {"error": {"code": codes[kind], "message": "it broke"}}
        return Frame({"type": "response.failed", "response": failed, "sequence_number": 99}, "response.failed")

    def files(self, body: dict[str, Any]) -> list[Attached]:
        found = []
        for item in body["input"]:
            for part in item["content"] if isinstance(item.get("content"), list) else []:
                match part:
                    case {"type": "input_image", "image_url": url} | {"type": "input_file", "file_data": url}:
                        found.append(from_data_url(url))
        return found

    def calls(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        items = body["input"]
        results = {i["call_id"]: i["output"] for i in items if i.get("type") == "function_call_output"}
        return [(i["call_id"], results[i["call_id"]]) for i in items if i.get("type") == "function_call"]


def _item(part: Said, number: int) -> dict[str, Any]:
    match part:
        case Say(pieces):
            text = {"type": "output_text", "text": "".join(pieces), "annotations": []}
            return {
                "type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [text]
            }  # fmt: skip
        case Think(pieces, signature):
            summary = [{"type": "summary_text", "text": "".join(pieces)}] if pieces else []
            return {"type": "reasoning", "id": f"rs_{number}", "summary": summary, "encrypted_content": signature}
        case Call(id, name):
            return {
                "type": "function_call", "id": f"fc_{number}", "call_id": id, "name": name,
                "arguments": part.arguments, "status": "completed",
            }  # fmt: skip


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    match item["type"]:
        case "message":
            return {**item, "content": [], "status": "in_progress"}
        case "reasoning":
            return {**item, "summary": [], "encrypted_content": None}
        case _:
            return {**item, "arguments": "", "status": "in_progress"}


def _response(
    items: list[dict[str, Any]], status: str | None, spent: Spent | None, why: str | None = None
) -> dict[str, Any]:
    usage = spent and {
        "input_tokens": spent.input,
        "input_tokens_details": {"cached_tokens": spent.cached},
        "output_tokens": spent.output,
        "output_tokens_details": {"reasoning_tokens": spent.reasoning},
        "total_tokens": spent.input + spent.output,
    }
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "served-1", "status": status, "output": items,
        "error": None, "incomplete_details": {"reason": why} if why else None, "instructions": None, "metadata": {},
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage, "temperature": None,
        "top_p": None,
    }  # fmt: skip
