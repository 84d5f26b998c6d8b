"""How is one answer had from a model that pydantic-ai can speak to?

pydantic-ai translates the wire; what counts as an answer is decided here, because it is lenient where Ondol must not
be: it repairs arguments, calls a cut-off stream complete, and reports no usage as zero tokens.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from urllib.parse import urlsplit

from ondol import values
from ondol.errors import InvalidInput, ModelError, ModelErrorKind
from ondol.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResponse, parse_arguments
from ondol.model import Answer, Delta, ModelOutput, ModelRequest, ToolSpec

if TYPE_CHECKING:  # pydantic-ai takes about a second to import, and is an extra
    from pydantic_ai import messages as wire
    from pydantic_ai.exceptions import ModelAPIError
    from pydantic_ai.models import Model as WireModel
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

Opened: TypeAlias = "tuple[WireModel[Any], Callable[[], Awaitable[None]]]"
"""A model with live connections, and how to close them."""

_CONNECT_SECONDS = 10.0  # to open a connection; longer than this and the provider is not there
_KEY_BEGINNING = 8  # characters of a key by which it is found again
_SAID_LIMIT = 500  # characters of a provider's error text that are kept in ours
_NO_KEY = "no-key"  # local servers take any key, and the client refuses to send none
_OVERFLOW = ("context length", "context_length", "context window", "context size", "context_size")
_FILTERED = ("content_filter", "content_policy_violation")
_NEXT_MOVE: dict[ModelErrorKind, str] = {
    "auth": ": check the API key and what it may use",
    "quota": ": add credit or raise the limit of the account",
    "context_overflow": ": send less, or use a model with a larger context",
}


def openai_chat(model_name: str, *, timeout: float = 120.0) -> PydanticAIModel:
    """A model behind OpenAI's chat completions API, or behind a server that speaks it.

    Reads ``OPENAI_API_KEY`` and ``OPENAI_BASE_URL``, once, now. With a base URL the key may be missing.
    ``timeout`` is the longest silence in seconds: before the answer begins, and between two pieces of it.

    Raises:
        InvalidInput: a setting is missing or unusable, or the ``models`` extra is not installed.
    """
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    base_url = os.environ.get("OPENAI_BASE_URL", "").strip()
    if not key and not base_url:
        raise InvalidInput(
            "OPENAI_API_KEY is not set: set it, or set OPENAI_BASE_URL to a server that needs no key, "
            "for example http://localhost:11434/v1"
        )
    host = _host(base_url) if base_url else "api.openai.com"
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput("OPENAI_API_KEY holds characters that no key has: copy it again")
    if not timeout > 0:
        raise InvalidInput(f"timeout is {timeout}: give a number of seconds above 0")
    try:
        for module in ("pydantic_ai.direct", "pydantic_ai.models.openai", "pydantic_ai.providers.openai"):
            importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput("models need pydantic-ai, which is not installed: pip install 'ondol[models]'") from error

    def connect() -> Opened:
        from openai import AsyncOpenAI, Timeout
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        client = AsyncOpenAI(
            api_key=key or _NO_KEY,
            base_url=base_url or "https://api.openai.com/v1",  # given, so that a later environment changes nothing
            max_retries=0,  # the client's own retries would bill again, unseen
            timeout=Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
        )
        return OpenAIChatModel(model_name, provider=OpenAIProvider(openai_client=client)), client.close

    from pydantic_ai.models.openai import OpenAIChatModelSettings

    # By default usage is summed over all chunks, which counts double where a server reports a running total with each.
    # This setting takes the last one. It would also ask for running totals, which OpenAI refuses: so say what to ask.
    settings = OpenAIChatModelSettings(
        openai_continuous_usage_stats=True, extra_body={"stream_options": {"include_usage": True}}
    )
    origin = {"name": "openai", "host": host}
    return PydanticAIModel(
        f"openai:{model_name}", connect, origin=origin, timeout=timeout, settings=settings, secret=key
    )


def _host(base_url: str) -> str:
    with suppress(ValueError):  # unbalanced brackets, or a port that is no number
        url = urlsplit(base_url)
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return url.netloc.rpartition("@")[2]
    # The value itself may hold a password.
    raise InvalidInput("OPENAI_BASE_URL is no address: write it as http://HOST:PORT/v1 or https://HOST/v1")


class PydanticAIModel:
    """A ``Model`` that streams one attempt through pydantic-ai.

    ``connect`` opens connections in the running event loop; it is called at the first request there. ``origin`` names
    the provider and marks the parts that only this provider may read again. ``timeout`` is in seconds, see
    ``openai_chat``. ``secret`` is the key: it is taken out of what a provider says in an error. Call ``aclose`` in the
    event loop where the model was used.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Opened],
        *,
        origin: dict[str, str],
        timeout: float,
        settings: ModelSettings | None = None,
        secret: str = "",
    ) -> None:
        self._secret = secret
        self._name, self._connect, self._origin, self._timeout = name, connect, origin, timeout
        self._settings = settings
        self._opened: dict[asyncio.AbstractEventLoop, Opened] = {}

    @property
    def provider(self) -> str:
        """Whose private data in messages it can read back."""
        return self._origin["name"]

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        """See ``ondol.model.Model``."""
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.exceptions import AgentRunError, UserError

        try:
            async with AsyncExitStack() as stack:
                # Our own watch over silence: the client's read time-out starts again with every keep-alive comment.
                # Each watch ends before a yield, so that it never cancels the task of whoever reads us.
                async with asyncio.timeout(self._timeout):
                    response = await stack.enter_async_context(
                        model_request_stream(
                            self._model(),
                            _to_wire(request.messages, self._origin),
                            model_settings=self._settings,
                            model_request_parameters=_parameters(request.tools),
                        )
                    )
                events = aiter(response)
                while True:
                    async with asyncio.timeout(self._timeout):
                        event = await anext(events, None)
                    if event is None:
                        break
                    if delta := _delta(event):
                        yield delta
                answer = self._answer(response.get())
            yield answer
        except TimeoutError as error:
            message = f"{self._name} sent nothing for {self._timeout:g} seconds"
            raise ModelError("timeout", message) from error
        except (OSError, AgentRunError, UserError) as error:
            self._raise(error)

    async def aclose(self) -> None:
        """Close the connections that were opened in this event loop. The next request opens new ones."""
        if opened := self._opened.pop(asyncio.get_running_loop(), None):
            _, close = opened
            await close()

    def _model(self) -> WireModel[Any]:
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            # Connections belong to the loop that opened them. Those of a closed loop cannot even be closed any more.
            self._opened = {other: opened for other, opened in self._opened.items() if not other.is_closed()}
            self._opened[loop] = self._connect()
        model, _ = self._opened[loop]
        return model

    def _answer(self, response: wire.ModelResponse) -> Answer:
        details = response.provider_details or {}
        if refusal := details.get("refusal"):
            raise ModelError("content_filter", f"{self._name} refused: {self._said(refusal)}")
        # pydantic-ai itself fills in "stop" for a stream that just ended; only the raw word proves that it was the end.
        reason = details.get("finish_reason")
        if not reason:
            raise ModelError("connection", f"{self._name} broke off: the stream ended without a finish reason")
        parts = tuple(part for raw in response.parts if (part := _from_wire(raw, self._origin)))
        if not parts and reason in ("tool_calls", "function_call"):  # pydantic-ai drops a call that has no name
            raise ModelError("server", f"{self._name} broke off: it announced tool calls and named none")
        # Whether there are calls is seen in the parts: servers say "stop" with calls, and "tool_calls" without.
        if reason in ("stop", "tool_calls", "function_call"):
            reason = "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
        usage = response.usage
        counted = not usage.unmeasured_requests and (usage.input_tokens or usage.output_tokens)
        return Answer(
            parts=parts,
            stop=reason,
            input_tokens=usage.input_tokens if counted else None,
            output_tokens=usage.output_tokens if counted else None,
            model=response.model_name or "",
        )

    def _said(self, said: object) -> str:
        """A provider's words in one short line, without the key: some repeat it, in whole or from its beginning."""
        text = " ".join(str(said).split())
        if len(self._secret) > _KEY_BEGINNING:
            text = re.sub(re.escape(self._secret[:_KEY_BEGINNING]) + r"\S*", "***", text)
        return _valid(text)[:_SAID_LIMIT]

    def _raise(self, error: Exception) -> NoReturn:
        """Raise what the error means to Ondol."""
        from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError, UserError

        if not isinstance(error, ModelAPIError):
            # A UserError is found before sending (a schema that cannot be sent). The rest is an unreadable stream.
            unsendable = isinstance(error, UserError)
            kind: ModelErrorKind = "rejected" if unsendable else "connection"
            raise ModelError(kind, f"{self._name}: {self._said(error)}", sent=not unsendable) from error
        kind = _kind(error)
        said = (error.body.get("message") if isinstance(error.body, dict) else error.body) or error.message
        if isinstance(error, ModelConnectionError):
            said = _root(error)  # the library's own text is "Connection error."
        status = f" with status {error.status_code}" if isinstance(error, ModelHTTPError) else ""
        # The phase is known only where it is certain that no byte of the request was written.
        sent = not (isinstance(error, ModelConnectionError) and error.phase in ("pool", "connect"))
        where = "" if sent else f" at {self._origin.get('host', '?')}"
        message = f"{self._name}{where} failed{status} ({kind}): {self._said(said)}"
        message += _NEXT_MOVE.get(kind, "")
        raise ModelError(kind, message, retry_after=_retry_after(error), sent=sent) from error


def _parameters(tools: Sequence[ToolSpec]) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    # strict=None would let pydantic-ai turn the provider's strict mode on and rewrite schemas to fit it.
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name, description=tool.description, parameters_json_schema=tool.parameters, strict=False
            )
            for tool in tools
        ]
    )


def _to_wire(messages: Sequence[Message], origin: dict[str, str]) -> list[wire.ModelMessage]:
    """The messages without what the provider would refuse: empty texts, invalid Unicode, another provider's parts."""
    from pydantic_ai import messages as wire

    sent: list[wire.ModelMessage] = []
    for message in messages:
        if message.role == "assistant":
            if said := [given for part in message.parts if (given := _said_to_wire(part, origin))]:
                sent.append(wire.ModelResponse(parts=said, provider_name=origin["name"]))
            continue
        asked: list[wire.ModelRequestPart] = []
        for part in message.parts:
            if isinstance(part, ToolResponse):
                # A result is never left out: each call has exactly one.
                result = _valid(values.plain_text(part.response)) or "(empty)"
                asked.append(wire.ToolReturnPart(tool_name=part.name, content=result, tool_call_id=part.id))
        if text := "\n\n".join(filter(str.strip, map(_asked_text, message.parts))):
            system = message.role == "system"
            asked.append(wire.SystemPromptPart(content=text) if system else wire.UserPromptPart(content=text))
        if asked:
            sent.append(wire.ModelRequest(parts=asked))
    return sent


def _asked_text(part: Part) -> str:
    match part:
        case Text(text):
            return _valid(text)
        case Attachment(_, media_type, name, size):
            return _valid(f"[attachment {name}, {media_type}, {size} bytes]")
        case _:
            return ""


def _said_to_wire(part: Part, origin: dict[str, str]) -> wire.ModelResponsePart | None:
    from pydantic_ai import messages as wire

    own = getattr(part, "provider", None) or {}
    if not origin.items() <= own.items():
        own = {}
    match part:
        case Text(text) if text.strip():
            return wire.TextPart(content=_valid(text))
        # Reasoning goes back only in the field it came in: as text it would teach the model to think aloud.
        case Reasoning(text) if text.strip() and own.get("field"):
            return wire.ThinkingPart(content=_valid(text), id=own["field"], provider_name=origin["name"])
        case ToolCall(id, name, arguments):
            if isinstance(arguments, str):
                arguments = {"invalid_arguments": arguments}
            details = own.get("details")
            return wire.ToolCallPart(
                tool_name=name,
                args=_valid(json.dumps(arguments, ensure_ascii=False)),
                tool_call_id=id,
                provider_name=origin["name"] if details else None,
                provider_details=details,
            )
        case _:
            return None


def _from_wire(part: wire.ModelResponsePart, origin: dict[str, str]) -> Part | None:
    from pydantic_ai import messages as wire

    match part:
        case wire.TextPart(content=text) if text:
            return Text(text)
        case wire.ThinkingPart(content=text, id=field) if text:
            # "content" says that it stood between tags in the text, so there is no field to put it back in.
            return Reasoning(text, {**origin, "field": field} if field and field != "content" else None)
        case wire.ToolCallPart(args=args, provider_details=details):
            # No text at all is how some servers send a call without arguments.
            arguments = parse_arguments(args) if isinstance(args, str) and args else dict[str, Any](args or {})
            provider = {**origin, "details": details} if details else None
            return ToolCall(part.tool_call_id, part.tool_name, arguments, provider)
        case _:
            return None


def _delta(event: wire.ModelResponseStreamEvent) -> Delta | None:
    from pydantic_ai import messages as wire

    match event:
        case (
            wire.PartStartEvent(part=wire.TextPart(content=text))
            | wire.PartDeltaEvent(delta=wire.TextPartDelta(content_delta=text))
        ) if text:
            return Delta(text)
        case (
            wire.PartStartEvent(part=wire.ThinkingPart(content=text))
            | wire.PartDeltaEvent(delta=wire.ThinkingPartDelta(content_delta=text))
        ) if text:
            return Delta(text, "reasoning")
        case _:
            return None


def _kind(error: ModelAPIError) -> ModelErrorKind:
    from pydantic_ai import exceptions as e

    names = (error.provider_error_code, error.provider_error_type)
    if any(name in _FILTERED for name in names):
        return "content_filter"
    status = error.status_code if isinstance(error, e.ModelHTTPError) else None
    if status == 408:
        return "timeout"
    if status in (400, 413) and any(said in error.message.lower() for said in _OVERFLOW):
        return "context_overflow"
    kinds: tuple[tuple[type[e.ModelAPIError], ModelErrorKind], ...] = (  # a class comes before its base
        (e.ModelQuotaExceededError, "quota"),  # often a 429 too, but waiting does not help
        (e.ModelRateLimitError, "rate_limited"),
        (e.ModelOverloadedError, "overloaded"),
        (e.ModelUnavailableError, "unavailable"),
        (e.ModelServerError, "server"),
        (e.ModelTimeoutError, "timeout"),
        (e.ModelConnectionError, "connection"),
        (e.ModelContextWindowExceededError, "context_overflow"),
        (e.ModelAuthenticationError, "auth"),
        (e.ModelRequestRejectedError, "rejected"),
        (e.ModelHTTPError, "rejected"),
    )
    for cls, kind in kinds:
        if isinstance(error, cls):
            return kind
    # What is left is an error inside the stream that says nothing more, or a piece of it that is not JSON.
    return "server" if error.in_stream else "connection"


def _retry_after(error: ModelAPIError) -> float | None:
    """Seconds the provider asked to wait."""
    if error.retry_after is not None:
        return error.retry_after
    # pydantic-ai reads milliseconds, whole seconds and dates; servers also send fractions of a second.
    headers: dict[str, str] = getattr(error, "headers", None) or {}
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def _root(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _valid(text: str) -> str:
    """The text without lone surrogates, which cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()
