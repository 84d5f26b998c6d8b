"""Google's Gemini API: https://ai.google.dev/api/generate-content"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

from providers.wires.script import Attached, Call, Failure, Finish, Frame, Said, Say, Spent, Think

from ondol.errors import ModelErrorKind
from ondol.providers.google import google_gemini
from ondol.providers.pydantic_ai import PydanticAIModel

_FINISH: dict[Finish, str] = {"length": "MAX_TOKENS", "filter": "SAFETY"}
_FAILURES: dict[ModelErrorKind, tuple[int, str, str]] = {
    "rate_limited": (429, "RESOURCE_EXHAUSTED", "slow down"),
    "quota": (400, "FAILED_PRECONDITION", "Please enable billing on your project."),
    "overloaded": (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    "unavailable": (503, "UNAVAILABLE", "maintenance"),
    "server": (500, "INTERNAL", "An internal error has occurred."),
    "context_overflow": (
        400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8).",
    ),
    "auth": (403, "PERMISSION_DENIED", "no"),
    "rejected": (400, "INVALID_ARGUMENT", "bad"),
}  # fmt: skip


class Google:
    """Its calls come whole, and a call carries the signature of the thought before it."""

    name = "google"
    key_variables = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
    url_variable = "GOOGLE_GEMINI_BASE_URL"
    signs = True
    writes_cache = False
    tells_input_first = False

    def url(self, host: str) -> str:
        return f"http://{host}"

    def make(self, model: str, *, timeout: float, stream: bool) -> PydanticAIModel:
        return google_gemini(model, timeout=timeout, stream=stream)

    def frames(self, said: Sequence[Said], finish: Finish | None, spent: Spent | None) -> Iterable[Frame]:
        for part in _parts(said, whole=False):
            yield Frame(_chunk([part]))
        if finish is not None:
            yield Frame(_chunk([], finish, spent))

    def whole(self, said: Sequence[Said], finish: Finish | None, spent: Spent | None) -> dict[str, Any]:
        return _chunk(_parts(said, whole=True), finish, spent)

    def failure(self, kind: ModelErrorKind) -> Failure | None:
        if kind not in _FAILURES:
            return None
        code, status, message = _FAILURES[kind]
        return Failure(code, {"error": {"code": code, "message": message, "status": status}})

    def broken(self, kind: ModelErrorKind) -> Frame | None:
        failure = self.failure(kind)
        return Frame(failure.body) if failure and kind in ("rate_limited", "overloaded", "server", "quota") else None

    def files(self, body: dict[str, Any]) -> list[Attached]:
        return [
            Attached(part["inlineData"]["mime_type"], base64.urlsafe_b64decode(part["inlineData"]["data"]))
            for content in body["contents"]
            for part in content["parts"]
            if "inlineData" in part
        ]

    def calls(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        parts = [part for content in body["contents"] for part in content["parts"]]
        results = {
            p["functionResponse"]["id"]: next(iter(p["functionResponse"]["response"].values()))
            for p in parts if "functionResponse" in p
        }  # fmt: skip
        return [(p["functionCall"]["id"], results[p["functionCall"]["id"]]) for p in parts if "functionCall" in p]


def _parts(said: Sequence[Said], *, whole: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    signature = ""
    for part in said:
        match part:
            case Say(pieces):
                parts += [{"text": piece} for piece in (["".join(pieces)] if whole else pieces)]
            case Think(pieces, signature):
                thought = ["".join(pieces)] if whole and pieces else pieces
                parts += [{"text": piece, "thought": True} for piece in thought]
                continue
            case Call(id, name):
                parts.append({"functionCall": {"id": id, "name": name, "args": json.loads(part.arguments or "{}")}})
        if signature:
            parts[-1]["thoughtSignature"] = base64.b64encode(signature.encode()).decode()
            signature = ""
    return parts


def _chunk(parts: list[dict[str, Any]], finish: Finish | None = None, spent: Spent | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = _FINISH.get(finish, "STOP")
    chunk: dict[str, Any] = {"candidates": [candidate], "modelVersion": "served-1", "responseId": "r1"}
    if spent:
        chunk["usageMetadata"] = {
            "promptTokenCount": spent.input,
            "candidatesTokenCount": spent.output - spent.reasoning,
            "thoughtsTokenCount": spent.reasoning,
            "cachedContentTokenCount": spent.cached,
            "totalTokenCount": spent.input + spent.output,
        }
    return chunk
