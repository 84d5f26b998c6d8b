"""How is one answer had from a model that pydantic-ai can speak to?

pydantic-ai translates the wire; what counts as an answer is decided here, because it is lenient where Ondol must not
be: it repairs arguments, calls a cut-off stream complete, and reports no usage as zero tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Set
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from ondol.errors import InvalidInput, ModelError, number_of_tokens
from ondol.messages import ToolCall
from ondol.model import Answer, ModelOutput, ModelRequest
from ondol.providers import wire
from ondol.providers.learned import Learned
from ondol.providers.wire_errors import Sayings, model_error

if TYPE_CHECKING:  # pydantic-ai takes about a second to import, and is an extra
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model as WireModel
    from pydantic_ai.models import StreamedResponse
    from pydantic_ai.usage import RequestUsage

#: What servers call an end for which the API has another word. ``error``: it is none.
_IN_OTHER_WORDS: dict[str, Literal["stop", "error", "length", "content_filter"]] = {
    "stop": "stop", "eos": "stop", "eos_token": "stop", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "stop",
    "abort": "error", "aborted": "error", "cancelled": "error", "canceled": "error", "error": "error",
    "failed": "error", "insufficient_system_resource": "error", "network_error": "error",
    "function_call_filter": "error", "malformed_function_call": "error", "unexpected_tool_call": "error",
    "malformed_response": "error",
    "max_tokens": "length", "model_length": "length", "model_context_window_exceeded": "length",
    "sensitive": "content_filter", "content_filter": "content_filter",
}  # fmt: skip

Opened: TypeAlias = "tuple[WireModel[Any], Callable[[], Awaitable[None]]]"
"""A model with live connections, and how to close them."""

CONNECT_SECONDS = 10.0  # to open a connection; longer than this and the provider is not there
SILENCE_SECONDS = 300.0  # a model that thinks hard may say nothing for minutes


class PydanticAIModel:
    """A ``Model`` that makes one attempt through pydantic-ai.

    ``connect`` opens connections in the running event loop; it is called at the first request there. ``origin`` names
    the provider and marks the parts that only this provider may read again. ``takes`` holds the media types that its
    API reads besides text. ``timeout`` is in seconds, it and ``stream`` are as in ``openai_chat``. ``secret`` is the
    key: it is taken out of what a provider says in an error. Call ``aclose`` in the event loop where the model was
    used.
    """

    def __init__(
        self, name: str, connect: Callable[[], Opened], *, origin: dict[str, str], takes: Set[str],
        timeout: float = SILENCE_SECONDS, stream: bool = True, secret: str = "", learned: Learned | None = None,
    ) -> None:  # fmt: skip
        if not timeout > 0:
            raise InvalidInput(f"timeout is {timeout}: give a number of seconds above 0")
        self._name, self._connect, self._origin, self._takes = name, connect, origin, takes
        self._timeout, self._streams = timeout, stream
        self._sayings = Sayings(name, origin["host"], secret)
        self._opened: dict[asyncio.AbstractEventLoop, Opened] = {}
        self._learned = learned or Learned()

    @property
    def provider(self) -> str:
        """Whose private data in messages it can read back."""
        return self._origin["name"]

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        """See ``ondol.model.Model``."""
        from pydantic_ai.direct import model_request, model_request_stream

        model = self._model()
        attached = await wire.read_attachments(request, self._takes, self._name, self._learned)
        messages = wire.to_wire(request.messages, attached, self._origin, model.system, self._learned)
        parameters = wire.parameters(request.tools)
        response: StreamedResponse | None = None
        try:
            if not self._streams:
                async with asyncio.timeout(self._timeout):
                    whole = await model_request(model, messages, model_request_parameters=parameters)
                yield self._answer(whole)
                return
            async with AsyncExitStack() as stack:
                # Our own watch over silence: the client's read time-out starts again with every keep-alive comment.
                # Each watch ends before a yield, so that it never cancels the task of whoever reads us.
                async with asyncio.timeout(self._timeout):
                    asking = model_request_stream(model, messages, model_request_parameters=parameters)
                    response = await stack.enter_async_context(asking)
                events, pieces = aiter(response), wire.Pieces()
                while True:
                    async with asyncio.timeout(self._timeout):
                        event = await anext(events, None)
                    if event is None:
                        break
                    if delta := pieces.of(event):
                        yield delta
                answer = self._answer(response.get())
            yield answer
        except TimeoutError as error:
            message = f"{self._name} sent nothing for {self._timeout:g} seconds"
            raise ModelError("timeout", message, **_begun(response)) from error
        except ModelError:
            raise
        except Exception as error:  # the libraries below raise whatever they like at an answer that is none
            images = wire.images_beside(request.messages) & attached.keys()
            if self._learned.learns(error, images, wire.signed(request.messages, self._origin, self._learned)):
                what = f"{self._name} takes another form of the request: {self._sayings.short(error)}"
                raise ModelError("unavailable", what) from error
            raise model_error(error, self._sayings, **_begun(response)) from error

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

    def _answer(self, response: ModelResponse) -> Answer:
        details = response.provider_details or {}
        used = _used(response.usage)
        if refusal := details.get("refusal") or details.get("block_reason"):
            raise ModelError("content_filter", f"{self._name} refused: {self._sayings.short(refusal)}", **used)
        # pydantic-ai itself fills in "stop" for a stream that just ended; only the raw word proves that it was the end.
        reason = details.get("finish_reason")
        if not reason:
            message = f"{self._name} broke off: the answer ended without a finish reason"
            raise ModelError("connection", message, **(_begun(response) if self._streams else used))
        parts = tuple(wire.parts_from_wire(response.parts, self._origin))
        # Some say behind a colon what it is about.
        match response.finish_reason or _IN_OTHER_WORDS.get(reason.partition(":")[0].lower()):
            case "error":
                raise ModelError("server", f"{self._name} failed while it answered ({reason})", **used)
            case "tool_call" if not parts:  # pydantic-ai drops a call that has no name
                message = f"{self._name} broke off: it announced tool calls and named none"
                raise ModelError("server", message, **used)
            case "stop" | "tool_call":
                # Whether there are calls is seen in the parts: servers say "stop" with calls, and "tool_calls" without.
                stop = "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
            case "length" | "content_filter" as known:
                stop = known
            case None:
                stop = reason
        return Answer(parts=parts, stop=stop, model=response.model_name or "", **used, **_parts(response.usage))


class _Used(TypedDict):
    input_tokens: int | None
    output_tokens: int | None


class _Parts(TypedDict):
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None


def _is_counted(usage: RequestUsage) -> bool:
    """Where nothing was said pydantic-ai counts zero, which no answer costs."""
    return not usage.unmeasured_requests and bool(usage.input_tokens or usage.output_tokens)


def _used(usage: RequestUsage) -> _Used:
    """The tokens of an answer, as far as the provider said so."""
    if not _is_counted(usage):
        return {"input_tokens": None, "output_tokens": None}
    said = int(usage.input_tokens), int(usage.output_tokens)
    return {"input_tokens": number_of_tokens(said[0]) or None, "output_tokens": number_of_tokens(said[1]) or None}


def _begun(response: StreamedResponse | ModelResponse | None) -> _Used:
    """The tokens of a stream that broke off. What it had counted of its output is not what it had said by then."""
    return {"input_tokens": None if response is None else _used(response.usage)["input_tokens"], "output_tokens": None}


def _parts(usage: RequestUsage) -> _Parts:
    """A zero counts only where the provider said that it is one."""

    def part(tokens: int, name: str) -> int | None:
        return number_of_tokens(int(tokens)) if _is_counted(usage) and (tokens or name in usage.details) else None

    return {
        "cache_read_tokens": part(usage.cache_read_tokens, "cache_read_input_tokens"),
        "cache_write_tokens": part(usage.cache_write_tokens, "cache_creation_input_tokens"),
        "reasoning_tokens": part(usage.output_reasoning_tokens, "reasoning_tokens"),
    }
