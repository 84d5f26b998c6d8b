"""How are the models behind Anthropic's Messages API reached?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ondol.providers import beside, sse
from ondol.providers.access import NO_KEY, need, read
from ondol.providers.pydantic_ai import CONNECT_SECONDS, SILENCE_SECONDS, Opened, PydanticAIModel

_MOST_IN_ONE_PIECE = 20_000  # tokens; the client sends a request for more as a stream
_TAKES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})


def anthropic_messages(model_name: str, *, timeout: float = SILENCE_SECONDS, stream: bool = True) -> PydanticAIModel:
    """A model behind Anthropic's Messages API.

    Reads ``ANTHROPIC_API_KEY`` and ``ANTHROPIC_BASE_URL``, once, now. With a base URL the key may be missing.
    ``timeout`` and ``stream`` as in ``openai_chat``; an answer in one piece has at most 20 000 tokens.

    Raises:
        InvalidInput: a setting is missing or unusable, or the ``models`` extra is not installed.
    """
    access = read(
        ["ANTHROPIC_API_KEY"], "ANTHROPIC_BASE_URL", default="https://api.anthropic.com",
        example="http://localhost:8080",
    )  # fmt: skip
    need("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic")

    def connect() -> Opened:
        from anthropic import AsyncAnthropic, Timeout
        from anthropic._streaming import ServerSentEvent, SSEDecoder
        from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
        from pydantic_ai.providers.anthropic import AnthropicProvider

        class Decoder(SSEDecoder):
            def aiter_bytes(self, iterator: AsyncIterator[bytes]) -> AsyncIterator[ServerSentEvent]:
                return sse.of_answer(super().aiter_bytes, iterator, {"message_stop"})

        class Client(AsyncAnthropic):
            def _make_sse_decoder(self, *asked: Any, **how: Any) -> SSEDecoder:  # of what, differs by version
                return Decoder()

            def _process_response_data(self, *, data: object, **how: Any) -> Any:
                sse.look(data)
                beside.of_anthropic(data)
                return super()._process_response_data(data=data, **how)

        class Thinking(AnthropicModel):
            def _map_thinking_part(
                self, message: Any, part: Any, assistant_content_params: Any, carried_thinking_params: Any
            ) -> None:
                if part.signature:
                    super()._map_thinking_part(message, part, assistant_content_params, carried_thinking_params)
                else:  # the library would make a text of it; it goes back only to who gave it so
                    assistant_content_params.append({"type": "thinking", "thinking": part.content, "signature": ""})

        client = Client(
            api_key=access.key or NO_KEY,
            base_url=access.base_url,
            default_headers=access.headers,
            max_retries=0,  # the client's own retries would bill again, unseen
            timeout=Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        )
        provider = AnthropicProvider(anthropic_client=client)
        settings = AnthropicModelSettings()
        if not stream:
            settings["max_tokens"] = _MOST_IN_ONE_PIECE
        if AnthropicModel(model_name, provider=provider).profile.get("anthropic_binds_thinking_blocks"):
            # These models refuse the thinking of earlier turns, since the clock in the system message has moved on.
            # Without this pydantic-ai would have the request refused first, and then send it again.
            drop: Any = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
            settings["anthropic_thinking"] = drop
        model = Thinking(model_name, provider=provider, settings=settings)
        return model, client.close

    return PydanticAIModel(
        f"anthropic:{model_name}", connect, origin={"name": "anthropic", "host": access.host}, takes=_TAKES,
        timeout=timeout, stream=stream, secret=access.key,
    )  # fmt: skip
