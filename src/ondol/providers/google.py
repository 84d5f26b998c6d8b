"""How are the models behind Google's Gemini API reached?"""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from ondol.providers import beside, sse
from ondol.providers.access import NO_KEY, need, read
from ondol.providers.pydantic_ai import CONNECT_SECONDS, SILENCE_SECONDS, Opened, PydanticAIModel

_TAKES = frozenset(
    {"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "application/pdf"}
    | {"audio/wav", "audio/mpeg", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac"}
    | {"video/mp4", "video/mpeg", "video/quicktime", "video/x-msvideo", "video/webm", "video/x-ms-wmv", "video/3gpp"}
)


def google_gemini(model_name: str, *, timeout: float = SILENCE_SECONDS, stream: bool = True) -> PydanticAIModel:
    """A model behind Google's Gemini API.

    Reads ``GOOGLE_API_KEY``, else ``GEMINI_API_KEY``, and ``GOOGLE_GEMINI_BASE_URL``, once, now. With a base URL the
    key may be missing. ``timeout`` and ``stream`` as in ``openai_chat``.

    Raises:
        InvalidInput: a setting is missing or unusable, or the ``models`` extra is not installed.
    """
    access = read(
        ["GOOGLE_API_KEY", "GEMINI_API_KEY"], "GOOGLE_GEMINI_BASE_URL",
        default="https://generativelanguage.googleapis.com", example="http://localhost:8080",
    )  # fmt: skip
    need("pydantic_ai.models.google", "pydantic_ai.providers.google")

    def connect() -> Opened:
        import httpx2
        from google.genai.types import HttpRetryOptions
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        live: dict[asyncio.Task[Any] | None, httpx2.Response] = {}

        async def remember(response: httpx2.Response) -> None:
            live[asyncio.current_task()] = response
            response.aiter_lines = functools.partial(_said, response.aiter_text)  # type: ignore[method-assign]

        class OneRequest(GoogleModel):
            async def _build_content_and_config(self, *args: Any, **kwargs: Any) -> Any:
                contents, config = await super()._build_content_and_config(*args, **kwargs)
                # The library would go on with a broken or long answer in requests of its own.
                config["automatic_continuation"] = False
                return contents, config

            @asynccontextmanager
            async def request_stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
                asker = asyncio.current_task()
                try:
                    async with super().request_stream(*args, **kwargs) as response:
                        yield response
                finally:  # the library leaves a stream that is not read to its end to the garbage collector
                    if unread := live.pop(asker, None):
                        await unread.aclose()

        client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)), headers=access.headers,
            event_hooks={"response": [remember]},
        )  # fmt: skip
        provider = GoogleProvider(
            api_key=access.key or NO_KEY, base_url=access.base_url, http_client=client,
            retry_options=HttpRetryOptions(attempts=1),
        )  # fmt: skip
        reached: Any = provider.client._api_client  # the library looks at what comes without leaving anything out
        reached.async_request = functools.partial(_whole, reached.async_request)
        reached.async_request_streamed = functools.partial(_pieces, reached.async_request_streamed)
        return OneRequest(model_name, provider=provider), client.aclose

    return PydanticAIModel(
        f"google:{model_name}", connect, origin={"name": "google", "host": access.host}, takes=_TAKES,
        timeout=timeout, stream=stream, secret=access.key,
    )  # fmt: skip


async def _whole(ask: Callable[..., Awaitable[Any]], *asked: Any, **how: Any) -> Any:
    return _put_right(await ask(*asked, **how))


async def _pieces(ask: Callable[..., Awaitable[AsyncIterator[Any]]], *asked: Any, **how: Any) -> AsyncIterator[Any]:
    pieces = await ask(*asked, **how)

    async def put_right() -> AsyncIterator[Any]:
        async for piece in pieces:
            yield _put_right(piece)

    return put_right()


def _put_right(answer: Any) -> Any:
    """``answer`` is an ``HttpResponse`` of the library."""
    with suppress(ValueError):  # that is for the library to say
        said = json.loads(answer.body)
        sse.look(said)
        beside.of_google(said)
        answer.body = json.dumps(said)
    return answer


async def _said(texts: Callable[[], AsyncIterator[str]]) -> AsyncIterator[str]:
    """The lines without those that only keep it open: the library takes each for a piece of the answer."""
    async for line in _lines(texts()):
        name, colon, value = line.partition(":")
        if colon and name == "data":
            if value.strip():
                yield "data: " + value.removeprefix(" ")
        elif not (colon and name in ("", "event", "id", "retry")):
            with suppress(ValueError):
                sse.look(json.loads(line))
            yield line


_END_OF_LINE = re.compile("\r\n|\n|\r")


async def _lines(texts: AsyncIterator[str]) -> AsyncIterator[str]:
    """They end where the standard says; the library would end one at each U+2028, too, which a text may hold."""
    held, returned = list[str](), False
    async for text in texts:
        first, *more = _END_OF_LINE.split(text.removeprefix("\n") if returned else text)
        returned = text.endswith("\r")
        held.append(first)
        for line in more:
            yield "".join(held)
            held = [line]
    yield "".join(held)
