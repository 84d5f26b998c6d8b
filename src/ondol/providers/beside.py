"""What stands beside an answer: nobody needs it, so whatever a server says there must not cost the answer.

The libraries stumble over it, each over something else; here it is put right before they see it.
"""

from __future__ import annotations

import json
from typing import Any

from ondol.errors import number_of_tokens

#: What the libraries want to find in any count. Zero: nobody said.
_NO_USAGE = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
_NO_CHAT_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def counts(said: object) -> dict[str, Any] | None:
    """The numbers of tokens in what a server has counted; None where it did not count."""
    if not isinstance(said, dict):
        return None
    counted: dict[str, Any] = {}
    for name, n in said.items():
        is_number = name.lower().endswith(("_tokens", "tokencount"))
        if isinstance(n, dict) and not is_number:
            counted[name] = {inner: t for inner, given in n.items() if (t := _tokens(given)) is not None}
        elif is_number and (tokens := _tokens(n)) is not None:
            counted[name] = tokens
    return counted


def _tokens(n: object) -> int | None:
    if isinstance(n, float) and n.is_integer():
        n = int(n)
    return None if isinstance(n, bool) else number_of_tokens(n)


def of_openai(said: object) -> None:
    """What came over either API of OpenAI: a whole answer, a piece of one, or an event that holds one."""
    if not isinstance(said, dict):
        return
    answer = said.get("response", said)
    if not isinstance(answer, dict):
        return
    for name in ("created", "created_at"):
        if name in answer:
            answer[name] = 0
    for name in ("service_tier", "system_fingerprint", "moderation", "metadata"):
        answer.pop(name, None)
    for name in ("id", "model"):
        if name in answer and not isinstance(answer[name], str):
            answer[name] = ""
    if "usage" in answer and (usage := counts(answer["usage"])) is not None:
        answer["usage"] = (_NO_CHAT_USAGE if "choices" in answer else _NO_USAGE) | usage
    elif "usage" in answer:
        answer["usage"] = None
    if "choices" in answer:
        answer["object"] = "chat.completion"
        answer.setdefault("id", "")
        answer.setdefault("model", "")
        _of_choices(answer["choices"])
    elif "output" in answer:
        why = answer.get("incomplete_details")
        if not isinstance(why, dict) or not isinstance(why.get("reason"), str):
            answer["incomplete_details"] = None
        answer["error"] = _error(answer.get("error"))
        _of_output(answer["output"])


def _error(said: object) -> dict[str, str] | None:
    """It is needed, to be told."""
    if not said:
        return None
    told = said if isinstance(said, dict) else {}
    words = {"code": "server_error", "message": json.dumps(said)}
    return {name: told[name] if isinstance(told.get(name), str) else word for name, word in words.items()}


def _of_choices(choices: object) -> None:
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        choice.pop("logprobs", None)
        choice["index"] = 0  # one answer was asked for
        message = choice.get("message")
        if isinstance(message, dict):
            message["role"] = "assistant"
            message.pop("annotations", None)
            message.pop("audio", None)


def _of_output(output: object) -> None:
    for item in output if isinstance(output, list) else ():
        content = item.get("content") if isinstance(item, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and "annotations" in part:
                part["annotations"] = []


def of_anthropic(said: object) -> None:
    """A whole message, or an event. Some servers with the same API count nothing, which the library does not expect."""
    if not isinstance(said, dict):
        return
    match said.get("type"):
        case "message_delta":
            said["usage"] = {"output_tokens": 0} | (counts(said.get("usage")) or {})
        case "message_start" | "message" as kind:
            message = said if kind == "message" else said.get("message")
            if isinstance(message, dict):
                message["usage"] = {"input_tokens": 0, "output_tokens": 0} | (counts(message.get("usage")) or {})
                if not isinstance(message.get("model"), str):
                    message["model"] = ""
                for block in message["content"] if isinstance(message.get("content"), list) else ():
                    if isinstance(block, dict) and block.get("type") == "thinking":
                        block.setdefault("signature", "")


def of_google(said: object) -> None:
    """A whole answer, or a piece of one."""
    if not isinstance(said, dict):
        return
    said["usageMetadata"] = counts(said.get("usageMetadata"))
    for name in ("modelVersion", "responseId"):
        if not isinstance(said.get(name), str):
            said.pop(name, None)
    candidates = said.get("candidates")
    for candidate in candidates if isinstance(candidates, list) else ():
        if isinstance(candidate, dict):
            for name in ("index", "tokenCount", "avgLogprobs", "logprobsResult", "citationMetadata", "safetyRatings"):
                candidate.pop(name, None)
            content = candidate.get("content")
            if isinstance(content, dict):
                content["role"] = "model"
