"""Models that Ondol is attached to, by name."""

from __future__ import annotations

from ondol.errors import InvalidInput
from ondol.model import Model


def resolve(name: str) -> Model:
    """The model of that name: ``script:demo``, ``script:FILE.json``, or ``PROVIDER:MODEL``.

    Providers are ``openai`` (chat completions), ``openai-responses``, ``anthropic`` and ``google``.

    Raises:
        InvalidInput: there is none, its key is missing, or its extra is not installed. Nothing was started.
    """
    kind, _, rest = name.partition(":")
    match kind:
        case "script" if rest:
            from ondol.providers.script import script_model

            return script_model(name)
        case "openai" if rest:
            from ondol.providers.openai import openai_chat

            return openai_chat(rest)
        case "openai-responses" if rest:
            from ondol.providers.openai import openai_responses

            return openai_responses(rest)
        case "anthropic" if rest:
            from ondol.providers.anthropic import anthropic_messages

            return anthropic_messages(rest)
        case "google" if rest:
            from ondol.providers.google import google_gemini

            return google_gemini(rest)
        case _:
            raise InvalidInput(
                f"there is no model {name!r}: say openai:MODEL, openai-responses:MODEL, anthropic:MODEL, google:MODEL, "
                "script:demo or script:FILE.json"
            )
