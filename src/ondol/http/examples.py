"""What does a request look like that somebody really sends? One story: the agent ``support``, kim's order 1182, and
lee, who decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_START: Mapping[str, Mapping[str, Any]] = {
    "a request": {"agent": "support", "input": "Refund order 1182", "session": "kim", "user": "kim"},
    "with a file": {
        "agent": "support", "input": "Is this receipt ours?", "session": "kim", "user": "kim", "if_busy": "steer",
        "attachments": [{"name": "receipt.txt", "data": "cGFpZCAzMC4wMA==", "media_type": "text/plain"}],
        "time_zone": "Asia/Seoul", "metadata": {"ticket": 7}, "on_disconnect": "continue",
    },
}  # fmt: skip

#: The JSON bodies of an operation, each with what it is an example of.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "start_run": _START,
    "start_in_session": {
        name: {field: value for field, value in body.items() if field != "session"} for name, body in _START.items()
    },
    "cancel_run": {"with a reason": {"by": "lee", "reason": "wrong order"}},
    "replay_run": {
        "a safe one": {},
        "forced": {"why": "the customer asked again", "by": "lee"},
        "with the clock of now": {"clock": "now", "time_zone": "Asia/Seoul"},
    },
    "fork_run": {"from a step": {"at_step": 2}, "without touching anything": {"at_step": 2, "effects": "stub"}},
    "make_session": {"a session": {"id": "kim", "title": "Order 1182", "user": "kim", "time_zone": "Asia/Seoul"}},
    "change_session": {
        "another title": {"title": "Order 1182, refunded"},
        "another state": {"state": {"refunded": {"$ondol": "decimal", "v": "30.00"}}},
    },
    "compact_session": {"a preview": {"keep": 3, "preview": True}, "done": {"keep": 3, "by": "lee"}},
    "pin": {"a pin": {"text": "Never mail outside example.org", "by": "lee"}},
    "decide_ask": {
        "approve": {"decision": "approve", "by": "lee"},
        "approve with other arguments": {
            "decision": "approve", "arguments": {"order_id": "1182", "amount": "20.00"}, "by": "lee",
        },
        "deny": {"decision": "deny", "reason": "the order was not paid", "by": "lee"},
        "answer a question": {"decision": "answer", "value": True, "by": "lee"},
        "of an unknown effect": {"decision": "happened", "evidence": "it is in the outbox", "by": "lee"},
        "of a parked run": {"decision": "resume", "by": "lee"},
        "of a request that is too large": {"decision": "raise", "value": 80_000, "by": "lee"},
    },
    "resolve_effect": {
        "it happened": {"outcome": "happened", "evidence": "it is in the outbox", "result": "sent", "by": "lee"},
        "it did not": {"outcome": "not_happened", "evidence": "the outbox is empty", "by": "lee"},
        "nobody can tell": {"outcome": "give_up", "evidence": "the outbox was lost", "by": "lee"},
    },
    "add_fact": {"a fact": {"fact": "Kim writes Korean.", "user": "kim", "by": "lee"}},
    "edit_fact": {"other words": {"fact": "Kim writes Korean and English.", "user": "kim", "by": "lee"}},
    "retry_message": {"by a person": {"by": "lee"}},
}  # fmt: skip

_RUN = "r_1m8pt5jmkfq9hwwv"
#: The values of a parameter, by its name; in front of it the operation, where it is another thing there.
PARAMETERS: Mapping[str, Any] = {
    "run": _RUN, "session": "kim", "ask": f"a_{_RUN[2:]}_1", "effect": f"e_{_RUN[2:]}_1", "agent": "support",
    "pin": "p1", "fact": "f_1m8pt5jmkfq9hwwv", "user": "kim", "by": "lee", "q": "order 1182", "step": 2,
    "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "wait": 30,
    "since": "2026-11-01", "until": "2026-12-01", "time_zone": "Asia/Seoul",
    "list_runs state": "waiting", "list_asks state": "open", "list_effects state": "unknown", "usage by": "agent",
    "Idempotency-Key": '"ticket-7"', "If-Match": '"7"', "Prefer": "wait=30", "Last-Event-ID": f"{_RUN}/12",
    "decide_ask If-Match": '"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"',
}  # fmt: skip


def add_to(operation: dict[str, Any]) -> None:
    """The examples of an operation of the description."""
    id = operation["operationId"]
    for parameter in operation.get("parameters", ()):
        name = parameter["name"]
        value = PARAMETERS.get(f"{id} {name}", PARAMETERS.get(name))
        if value is not None:
            parameter["example"] = value
    if (bodies := BODIES.get(id)) is not None:
        content = operation["requestBody"]["content"]["application/json"]
        content["examples"] = {
            name.replace(" ", "_"): {"summary": name, "value": body} for name, body in bodies.items()
        }
