"""What does an error of pydantic-ai mean to Ondol?"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ondol.errors import ModelError, ModelErrorKind
from ondol.providers.sse import NoAnswer

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError

_KEY_BEGINNING = 8  # characters of a key by which it is found again
_SAID_LIMIT = 500  # characters of a provider's error text that are kept in ours
#: How servers say, without a code for it, that a request has too many tokens.
_OVERFLOW = (
    "context length", "context_length", "context window", "context size", "context_size", "context limit",
    "prompt length", "prompt is too long", "prompt exceeds", "prompt token count", "too many tokens",
    "input token count", "input tokens exceed", "input is too long", "input length", "model token limit",
    "max_new_tokens` must be", "must have less than", "maximum model length", "max_model_len", "max length reached",
    "context shift is disabled", "max_tokens must be at least 1, got -", "max_seq_len", "max message tokens",
    "total message size", "payload size exceeds",
)  # fmt: skip
#: The words that make it certain where there is no status, or another one.
_CERTAINLY = ("exceed", "too long", "larger context")
_OVER_A_MINUTE = "request too large"  # for what is allowed in a minute: it would never be taken, however long one waits
_NOT_NOW = (409, 424, 425, 498, 499)  # it was busy with another request, or gave this one up
#: Errors inside of a stream that have no status.
_IN_STREAM: dict[str, ModelErrorKind] = {
    "invalid_request_error": "rejected", "BadRequestError": "rejected", "authentication_error": "auth",
    "permission_error": "auth",
}  # fmt: skip
_NO_CREDIT = ("credit balance", "insufficient balance", "insufficient credit", "api usage limits")
_WRONG_KEY = ("incorrect api key", "invalid api key", "api key not valid", "api key expired")
_NO_SUCH_MODEL = ("model_not_found", "invalid_model", "unknown_model", "1211")
_NO_SUCH_MODEL_SAID = (
    "model not exist", "model does not exist", "has been decommissioned", "not a valid model", "invalid model name",
)  # fmt: skip
#: The model wrote a call that its server could not read. Asked again, it may write another one.
_MISWRITTEN = ("tool_use_failed", "output_parse_failed")
_FILTERED = (
    "content_filter", "content_policy_violation", "image_content_policy_violation", "invalid_prompt", "cyber_policy",
    "data_inspection_failed", "1301",
)  # fmt: skip
_FILTER_SAID = (
    "content filtering policy", "content management policy", "content exists risk", "inappropriate content",
    "considered high risk", "violates usage guidelines",
)  # fmt: skip
#: A wait that is asked for in words only, as within a stream: "Please try again in 1m2.5s", "retry after 32 seconds".
_WAIT = re.compile(r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)? ?[a-z]+ ?)+)")
_WAIT_PART = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)")
_UNITS = {"ms": 0.001, "milliseconds": 0.001, "s": 1, "second": 1, "seconds": 1, "m": 60, "minute": 60, "minutes": 60,
          "h": 3600, "hour": 3600, "hours": 3600}  # fmt: skip
_NEXT_MOVE: dict[ModelErrorKind, str] = {
    "auth": ": check the API key and what it may use",
    "quota": ": add credit or raise the limit of the account",
    "context_overflow": ": send less, or use a model with a larger context",
}


@dataclass(frozen=True, slots=True)
class Sayings:
    """What is said about the model ``name`` at ``host``, without its key."""

    name: str
    host: str
    secret: str = field(repr=False)

    def short(self, said: object) -> str:
        """A provider's words in one short line, without the key: some repeat it, in whole or from its beginning."""
        text = " ".join(str(said).split())
        if len(self.secret) > _KEY_BEGINNING:
            text = re.sub(re.escape(self.secret[:_KEY_BEGINNING]) + r"\S*", "***", text)
        return text.encode("utf-8", "replace").decode()[:_SAID_LIMIT]


def model_error(
    error: Exception, sayings: Sayings, *, input_tokens: int | None = None, output_tokens: int | None = None
) -> ModelError:
    """The tokens are what the attempt had used, where the provider said so."""
    from pydantic_ai.exceptions import AgentRunError, ModelAPIError, ModelConnectionError, ModelHTTPError, UserError

    name = sayings.name
    instead = _instead(error, name) if isinstance(error, NoAnswer) else None
    error = instead or error
    if not isinstance(error, OSError | AgentRunError | UserError):
        # The client, or the library, stumbled over what came: not JSON, not what the API says, not even gzip.
        what = f"{name}: its answer cannot be read ({type(error).__name__}: {sayings.short(error)})"
        return ModelError("connection", what, input_tokens=input_tokens, output_tokens=output_tokens)
    if not isinstance(error, ModelAPIError):
        # A UserError is found before sending (a schema that cannot be sent). The rest is an unreadable answer.
        unsendable = isinstance(error, UserError)
        kind: ModelErrorKind = "rejected" if unsendable else "connection"
        return ModelError(
            kind, f"{name}: {sayings.short(error)}", sent=not unsendable, input_tokens=input_tokens,
            output_tokens=output_tokens,
        )  # fmt: skip
    kind = _kind(error, is_instead=instead is not None)
    said = _said(error.body) or error.message
    if isinstance(error, ModelConnectionError):
        said = _root(error)  # the library's own text is "Connection error."
    status = f" with status {error.status_code}" if isinstance(error, ModelHTTPError) else ""
    # The phase is known only where it is certain that no byte of the request was written.
    sent = not (isinstance(error, ModelConnectionError) and error.phase in ("pool", "connect"))
    where = "" if sent else f" at {sayings.host}"
    message = f"{name}{where} failed{status} ({kind}): {sayings.short(said)}"
    is_missing = isinstance(error, ModelHTTPError) and error.status_code in (400, 403, 404) and kind == "unavailable"
    message += ": check the name of the model, and the address" if is_missing else _NEXT_MOVE.get(kind, "")
    return ModelError(
        kind, message, retry_after=_retry_after(error), sent=sent, input_tokens=input_tokens,
        output_tokens=output_tokens,
    )  # fmt: skip


def _instead(error: NoAnswer, name: str) -> ModelAPIError | None:
    """The error that came with the status of an answer; None where it is something else."""
    from pydantic_ai._model_errors import stream_error

    try:
        body = json.loads(str(error))
    except ValueError:
        return None
    told = body.get("error") if isinstance(body, dict) else None
    return stream_error(name, str(_said(body) or told), told if isinstance(told, dict) else body) if told else None


def _said(body: object) -> object:
    """The provider's own words: some put them in an object in the body."""
    if not isinstance(body, dict):
        return body
    inner = body.get("error")
    about = inner if isinstance(inner, dict) else body
    said = body.get("message") or (about.get("message") if about is inner else inner) or body.get("detail")
    # A gateway's own words are that there was an error; what the server behind it said stands beside them.
    beside = about.get("metadata")
    passed_on = beside.get("raw") if isinstance(beside, dict) else None
    return f"{said}: {passed_on}" if passed_on else said


def _kind(error: ModelAPIError, *, is_instead: bool) -> ModelErrorKind:
    """What came instead of an answer says what the same body says with the status that it should have had."""
    from pydantic_ai import exceptions as e

    names = (error.provider_error_code, error.provider_error_type)
    if any(name in _FILTERED for name in names):
        return "content_filter"
    if any(name in _MISWRITTEN for name in names):
        return "server"
    status = error.status_code if isinstance(error, e.ModelHTTPError) else 400 if is_instead else None
    if status == 408:
        return "timeout"
    said = error.message.lower()
    if status in (400, 403) and _says(said, _FILTER_SAID):
        return "content_filter"
    # A name that nobody has, or not any more; the request itself may well be right.
    is_nobody = any(name in _NO_SUCH_MODEL for name in names) or _says(said, _NO_SUCH_MODEL_SAID)
    if status == 404 or (status in (None, 400, 403) and is_nobody):
        return "unavailable"
    if status in _NOT_NOW:
        return "unavailable"
    if status in (400, 401, 403, 429) and _says(said, _NO_CREDIT):
        return "quota"
    if status == 400 and _says(said, _WRONG_KEY):
        return "auth"
    if status == 413 or (status in (400, 422) and _says(said, _OVERFLOW)):
        return "context_overflow"
    # Some servers notice it late, and then it is an error of theirs. The same request would end the same way.
    if status in (None, 500) and _says(said, _OVERFLOW) and _says(said, _CERTAINLY):
        return "context_overflow"
    if status == 429 and _OVER_A_MINUTE in said:
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
    if error.in_stream and "image" in (error.provider_error_code or ""):
        return "rejected"
    # What is left is an error inside the stream that says little more, or a piece of it that is not JSON.
    if not error.in_stream:
        return "connection"
    return _IN_STREAM.get(error.provider_error_type or "", "connection" if is_instead else "server")


def _says(said: str, any_of: tuple[str, ...]) -> bool:
    return any(words in said for words in any_of)


def _retry_after(error: ModelAPIError) -> float | None:
    """Seconds the provider asked to wait."""
    if error.retry_after is not None:
        return error.retry_after
    # pydantic-ai reads milliseconds, whole seconds and dates; servers also send fractions of a second.
    headers: dict[str, str] = getattr(error, "headers", None) or {}
    with suppress(ValueError):
        return float(headers["retry-after"]) if "retry-after" in headers else _in_words(error.message)
    return None


def _in_words(said: str) -> float | None:
    if not (asked := _WAIT.search(said.lower())):
        return None
    parts = [(float(n), _UNITS.get(unit)) for n, unit in _WAIT_PART.findall(asked[1])]
    known = [n * seconds for n, seconds in parts if seconds is not None]
    return sum(known) if known else None


def _root(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
