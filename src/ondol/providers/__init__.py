"""Models that Ondol is attached to, by name."""

from __future__ import annotations

from ondol.errors import InvalidInput
from ondol.model import Model


def resolve(name: str) -> Model:
    """The model of that name: ``script:demo``, ``script:FILE.json`` or ``openai:MODEL``.

    Raises:
        InvalidInput: there is none, its key is missing, or its extra is not installed. Nothing was started.
    """
    kind, _, rest = name.partition(":")
    match kind:
        case "script" if rest:
            from ondol.providers.script import script_model

            return script_model(name)
        case "openai" if rest:
            from ondol.providers.pydantic_ai import openai_chat

            return openai_chat(rest)
        case _:
            raise InvalidInput(f"there is no model {name!r}: say script:demo, script:FILE.json or openai:MODEL")
