"""The one piece of work: K model calls, each followed by one tool call of about 1 KB, then a final answer."""

from __future__ import annotations

import hashlib
import json
from typing import Any

TOOL_BYTES = 1024
# 64 KB of hex digits, so that no two records are alike
_PAD = "".join(hashlib.sha256(str(i).encode()).hexdigest() for i in range(1024))


def user_text(n: int) -> str:
    return f"request {n}: look through the open tickets of customer {n % 97} and say what is left to do"


def model_text(i: int) -> str:
    return f"step {i}: more detail is needed, looking up record {i} in the ticket system. " + _PAD[i * 1000 :][:100]


def final_text(n: int) -> str:
    return f"answer {n}: " + _PAD[n % 64 * 999 :][:300]


def tool_args(i: int) -> dict[str, Any]:
    return {"record": i, "fields": "status,owner,history"}


def tool(record: int, fields: str = "") -> str:
    head = json.dumps({"record": record, "fields": fields})
    return head + _PAD[record % 60 * TOOL_BYTES :][: TOOL_BYTES - len(head)]


def content_bytes(k: int) -> int:
    """Bytes of what is said in one turn: the texts, the arguments and the results."""
    said = sum(len(model_text(i)) + len(json.dumps(tool_args(i))) + len(tool(**tool_args(i))) for i in range(k))
    return len(user_text(0)) + said + len(final_text(k))
