"""An agent that does with its memory what it is told: ``remember X``, ``recall X``, ``forget ID``; else it is quiet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ondol import Agent, Memory, Message, ModelRequest, ToolResponse
from ondol.testing import ScriptedModel, call, text

ARGUMENT = {"remember": "fact", "recall": "query", "forget": "id", "look": "at", "search": "query"}


def answer(request: ModelRequest) -> list[Any]:
    last = request.messages[-1]
    if last.role == "tool":
        return [text(said(last))]
    verb, _, rest = next(m.text for m in reversed(request.messages) if m.role == "user" and not m.origin).partition(" ")
    return [call(verb, **{ARGUMENT[verb]: rest})] if verb in ARGUMENT else [text("ok")]


def said(message: Message) -> str:
    (part,) = message.parts
    assert isinstance(part, ToolResponse)
    return str(part.response)


def rememberer(name: str = "friend", *, tools: Sequence[Any] = (), memory: Memory | None = None, **more: Any) -> Agent:
    return Agent(name, model=ScriptedModel(answer), tools=tools, memory=memory or Memory(), **more)


def system(agent: Agent) -> str:
    """What the system message of the agent's last request said."""
    return requests(agent)[-1].messages[0].text


def requests(agent: Agent) -> list[ModelRequest]:
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.requests
