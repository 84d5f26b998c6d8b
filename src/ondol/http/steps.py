"""What did the model say at each step of a run, and what became of its calls?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import TypedDict

from ondol.bodies import stamp
from ondol.events import Event


class StepCallBody(TypedDict):
    """One call, as it stands now. ``result`` is as ``values.encode`` writes it."""

    effect: str
    tool: str
    arguments: Any
    state: str
    ask: str | None
    result: Any


class StepBody(TypedDict):
    """``attempts`` are those of the model call that failed. ``text`` is None until there is an answer."""

    step: int
    started_at: str | None
    completed_at: str | None
    model: str | None
    text: str | None
    attempts: list[dict[str, Any]]
    calls: list[StepCallBody]


_STATES = {
    "effect.started": "started",
    "effect.succeeded": "succeeded",
    "effect.failed": "failed",
    "effect.unknown": "unknown",
    "effect.abandoned": "abandoned",
    "effect.expired": "expired",
}
_RESOLVED = {"happened": "succeeded", "not_happened": "approved"}


def steps_of(events: Iterable[Event]) -> list[StepBody]:
    """The steps that these events, of one run and in order, tell of."""
    steps: dict[int, StepBody] = {}
    calls: dict[str, StepCallBody] = {}
    last: StepBody | None = None
    for event in events:
        data = event.data
        if (number := data.get("step")) is not None:
            last = steps.setdefault(number, {
                "step": number, "started_at": stamp(event.at), "completed_at": None, "model": None, "text": None,
                "attempts": [], "calls": [],
            })  # fmt: skip
        if last is None:
            continue
        match event.type:
            case "model.completed":
                last["text"], last["completed_at"] = data.get("text", ""), stamp(event.at)
                last["model"] = data.get("model") or None
            case "step.failed":
                last["attempts"].append({"at": stamp(event.at), "error": data["error"], "message": data["message"]})
            case "effect.planned":
                call: StepCallBody = {
                    "effect": data["effect"], "tool": data["tool"], "arguments": data.get("arguments"),
                    "state": "asked" if data.get("ask") else "planned", "ask": data.get("ask"), "result": None,
                }  # fmt: skip
                calls[data["effect"]] = call
                last["calls"].append(call)
            case kind if kind in _STATES and data.get("effect") in calls:
                calls[data["effect"]]["state"] = _STATES[kind]
                if "result" in data:
                    calls[data["effect"]]["result"] = data["result"]
            case "ask.decided" if data.get("effect") in calls and data["decision"] in ("approve", "deny"):
                calls[data["effect"]]["state"] = "denied" if data["decision"] == "deny" else "approved"
            case "effect.resolved" if data.get("effect") in calls and data["outcome"] in _RESOLVED:
                calls[data["effect"]]["state"] = _RESOLVED[data["outcome"]]
            case _:
                pass
    return list(steps.values())
