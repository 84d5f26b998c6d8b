"""What does a model answer that only says what it was told to say?"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_args

from ondol import files, values
from ondol.errors import InvalidInput, ModelError, ModelErrorKind
from ondol.ids import is_tool_name
from ondol.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResponse, UnknownPart
from ondol.model import Answer, Delta, ModelOutput, ModelRequest

_CHARS_PER_TOKEN = 4  # a rough measure, but the same every time
_IMAGE_TOKENS = 1500  # about what providers count for a large image
_DELTAS = 3  # pieces in which a text is streamed
_PARTS = (str, *get_args(Part))


@dataclass(frozen=True, slots=True)
class ScriptedError:
    """An error in a script. A new exception is made each time."""

    kind: ModelErrorKind
    message: str = ""
    retry_after: float | None = None
    sent: bool = True

    def exception(self) -> ModelError:
        message = self.message or f"the script says {self.kind}"
        return ModelError(self.kind, message, retry_after=self.retry_after, sent=self.sent)


@dataclass(frozen=True, slots=True)
class Truncated:
    """An answer in a script that was cut off."""

    parts: tuple[Part | str, ...]


Parts: TypeAlias = Part | str | Sequence[Part | str]
Entry: TypeAlias = Parts | ScriptedError | Truncated
Reply: TypeAlias = Entry | Answer
Script: TypeAlias = Sequence[Entry] | Callable[[ModelRequest], Reply | Awaitable[Reply]]


def call(name: str, /, **arguments: Any) -> Part:
    """A call of a tool, with arguments as a model sends them, in JSON: ``amount="30.00"``. The model gives it its id.

    Raises InvalidInput for arguments that are no JSON, such as a Decimal.
    """
    for key, value in arguments.items():
        if not values.is_json(value):
            raise InvalidInput(f"call({name!r}): {key}={value!r} is no JSON: write it as a model does, such as a text")
    return ToolCall("", name, arguments)


def text(content: str) -> Part:
    """A text."""
    return Text(content)


def error(
    kind: ModelErrorKind, message: str = "", retry_after: float | None = None, *, sent: bool = True
) -> ScriptedError:
    """An attempt that fails. ``retry_after`` is in seconds; ``sent=False``: the request never left."""
    if kind not in get_args(ModelErrorKind):
        raise InvalidInput(f"there is no error {kind!r}: use {', '.join(get_args(ModelErrorKind))}")
    return ScriptedError(kind, message, retry_after, sent)


def truncated(parts: Parts) -> Truncated:
    """An answer that was cut off at the length limit."""
    return Truncated(_sequence(parts))


class ScriptedModel:
    """A model that answers from a script, and is as strict as the strictest provider.

    A list holds one entry for each answer of a run: its parts (a string is a text), or ``truncated(...)``. Which one
    it is, the number of answers that the run already holds decides, so a restarted process goes on at the right place.
    An ``error(...)`` in the list is one failed attempt at the answer behind it; at the end of the list, attempts fail
    with the last one for ever.

        ScriptedModel([[text("on it"), call("refund", order_id="1182")], error("rate_limited"), "refunded"])

    A function gets the request and returns the same, or a whole ``Answer``; it may be async, and wait.

    Calls get the ids ``call_<step>_<i>``. Tokens are estimated: characters / 4. ``stop`` is the reason given with
    every answer instead of the usual one. ``window`` is the most input that fits, in tokens.

    ``requests`` holds every request that was seen. A malformed one raises ModelError("rejected"), as providers do: an
    unpaired call or result, an empty message or text, invalid Unicode, a name that no tool can have, a system message
    that is not the first, the private data of another model. Input over the window raises
    ModelError("context_overflow").
    """

    def __init__(
        self, answers: Script, *, name: str = "script", stop: str | None = None, window: int | None = None
    ) -> None:
        if not callable(answers) and (isinstance(answers, str) or not isinstance(answers, Sequence)):
            raise InvalidInput(f"a script is a list of answers, or a function: write [...], got {answers!r}")
        self.requests: list[ModelRequest] = []
        self._answers = answers if callable(answers) else tuple(map(_checked, answers))
        self._name = name
        self._stop = stop
        self._window = window

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        self.requests.append(dataclasses.replace(request, messages=tuple(request.messages)))
        if why := malformed(request.messages, self._name):
            raise ModelError("rejected", why)
        size = estimate_tokens(request)
        if self._window is not None and size > self._window:
            raise ModelError("context_overflow", f"the input has {size} tokens, the window {self._window}")
        answer = self._answer(await self._reply(request), request, size)
        for delta in _deltas(answer):
            yield delta
            await asyncio.sleep(0)  # as on a network, others get their turn (and a cancellation its place) in between
        yield answer

    async def _reply(self, request: ModelRequest) -> Parts | Truncated | Answer:
        if callable(self._answers):
            given = self._answers(request)
            given = await given if inspect.isawaitable(given) else given
            reply = given if isinstance(given, Answer) else _checked(given)
        else:
            reply = _entry(self._answers, request.step, request.attempt)
        if isinstance(reply, ScriptedError):
            raise reply.exception()
        return reply

    def _answer(self, reply: Parts | Truncated | Answer, request: ModelRequest, size: int) -> Answer:
        if isinstance(reply, Answer):
            return dataclasses.replace(
                reply, parts=_with_ids(reply.parts, request.step), model=reply.model or self._name
            )
        cut = isinstance(reply, Truncated)
        parts = _with_ids(reply.parts if isinstance(reply, Truncated) else _sequence(reply), request.step)
        usual = "length" if cut else "tool_calls" if any(isinstance(p, ToolCall) for p in parts) else "stop"
        return Answer(
            parts=parts,
            stop=self._stop or usual,
            input_tokens=size,
            output_tokens=sum(map(_characters, parts)) // _CHARS_PER_TOKEN,
            model=self._name,
        )


def _checked(entry: Entry) -> Entry:
    """Raises InvalidInput for what is no answer."""
    if isinstance(entry, ScriptedError):
        return entry
    for part in entry.parts if isinstance(entry, Truncated) else _sequence(entry):
        if not isinstance(part, _PARTS):
            raise InvalidInput(
                f"{part!r} is no answer of a script: give a text, call(...), error(...), or a list of parts"
            )
    return entry


def _entry(answers: Sequence[Entry], step: int, attempt: int) -> Entry:
    """The entry for an attempt at a step, both as in the request."""
    errors: list[ScriptedError] = []
    at = 0
    for entry in answers:
        if isinstance(entry, ScriptedError):
            errors.append(entry)
        elif at < step:
            at, errors = at + 1, []
        else:
            return errors[attempt - 1] if attempt <= len(errors) else entry
    if errors:
        return errors[min(attempt, len(errors)) - 1]
    raise ModelError("rejected", f"the script has no answer {step + 1}: it holds {at}")


def _sequence(parts: Parts) -> tuple[Part | str, ...]:
    return tuple(parts) if isinstance(parts, Sequence) and not isinstance(parts, str) else (parts,)


def _with_ids(parts: Sequence[Part | str], step: int) -> tuple[Part, ...]:
    made: list[Part] = []
    calls = 0
    for part in parts:
        if isinstance(part, ToolCall):
            part = dataclasses.replace(part, id=part.id or f"call_{step}_{calls}")
            calls += 1
        made.append(Text(part) if isinstance(part, str) else part)
    return tuple(made)


def _deltas(answer: Answer) -> Iterator[Delta]:
    for part in answer.parts:
        if isinstance(part, (Text, Reasoning)):
            size = -(-len(part.text) // _DELTAS)
            for start in range(0, len(part.text), max(1, size)):
                yield Delta(part.text[start : start + size], "text" if isinstance(part, Text) else "reasoning")


# --- strictness -------------------------------------------------------------------------------------------------


def malformed(messages: Sequence[Message], model: str) -> str | None:
    """Why a provider would refuse these messages; None if it would not."""
    if not any(m.role != "system" for m in messages):
        return "there is no message"
    waiting: set[str] = set()  # calls of the last assistant message that still need their result
    for at, message in enumerate(messages):
        where = f"messages[{at}] ({message.role})"
        if message.role != "tool":
            if waiting:
                return f"{where}: no result of the call {_named(waiting)} before it"
            calls = [c.id for c in message.calls]
            waiting = set(calls)
            if len(waiting) < len(calls) or "" in waiting:
                return f"{where}: calls need ids of their own, not {calls}"
        for part in message.parts:
            if isinstance(part, ToolResponse):
                if part.id not in waiting:
                    return f"{where}: the result {part.id!r} has no call directly before it, or is the second one"
                waiting.remove(part.id)
        whys = (_malformed_message(at, message), *(_malformed_part(p, model) for p in message.parts))
        if why := next(filter(None, whys), None):
            return f"{where}: {why}"
    return f"no result of the call {_named(waiting)} at the end" if waiting else None


def _named(ids: set[str]) -> str:
    return ", ".join(sorted(ids))


_ALLOWED: dict[str, tuple[type, ...]] = {
    "system": (Text, UnknownPart),
    "user": (Text, Attachment, UnknownPart),
    "assistant": (Text, Reasoning, ToolCall, Attachment, UnknownPart),
    "tool": (ToolResponse, Attachment),
}


def _malformed_message(at: int, message: Message) -> str:
    if message.role not in _ALLOWED:
        return f"there is no role {message.role!r}"
    if message.role == "system" and at > 0:
        return "a system message has to be the first"
    if not message.parts:
        return "it has no parts"
    for part in message.parts:
        if not isinstance(part, _ALLOWED[message.role]):
            return f"a {type(part).__name__} does not belong there"
    last = message.parts[-1]
    if isinstance(last, Reasoning) and last.provider:
        return "signed reasoning needs the item that followed it"
    return ""


def _malformed_part(part: Part, model: str) -> str:
    if isinstance(part, Text) and not part.text.strip():
        return "a text is empty"
    if isinstance(part, (ToolCall, ToolResponse)) and not is_tool_name(part.name):
        return f"{part.name!r} cannot be the name of a tool"
    if isinstance(part, (Text, Reasoning, ToolCall)) and part.provider:
        maker = part.provider.get("name", model)
        if maker != model:
            return f"it carries private data of the model {maker!r}, this is {model!r}"
    try:
        json.dumps(dataclasses.astuple(part), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "its text is not valid Unicode"
    except (TypeError, ValueError) as error:
        return f"it is not JSON ({error})"
    return ""


def estimate_tokens(request: ModelRequest) -> int:
    """The size of a request as ``window`` measures it: characters of its messages and tools / 4."""
    tools = sum(len(t.name) + len(t.description) + len(json.dumps(t.parameters)) for t in request.tools)
    return (tools + sum(_characters(p) for m in request.messages for p in m.parts)) // _CHARS_PER_TOKEN


def _characters(part: Part) -> int:
    match part:
        case Text(text) | Reasoning(text):
            return len(text)
        case ToolCall(_, name, arguments):
            return len(name) + len(
                arguments if isinstance(arguments, str) else json.dumps(arguments, default=str, ensure_ascii=False)
            )
        case ToolResponse(_, name):
            return len(name) + len(part.text)
        case Attachment(media_type=media_type, size=size):
            return _IMAGE_TOKENS * _CHARS_PER_TOKEN if media_type.startswith("image/") else size
        case UnknownPart(raw):
            return len(json.dumps(raw, default=str, ensure_ascii=False))


# --- models by name ---------------------------------------------------------------------------------------------


def script_model(spec: str) -> ScriptedModel:
    """The model ``script:demo``, or the one whose answers the file of ``script:FILE.json`` holds.

    A file is a list as ``ScriptedModel`` takes it. A part is ``"text"``, ``{"text": "..."}`` or
    ``{"call": "tool", "arguments": {...}}``; an entry is a part, a list of parts, ``{"truncated": [...]}`` or
    ``{"error": "rate_limited", "message": "...", "retry_after": 1.0}``.

    Raises InvalidInput, which names the file, when it cannot be read or is not such a list.
    """
    file = spec.removeprefix("script:")
    if file == "demo":
        return ScriptedModel(_demo, name="script:demo")
    try:
        answers = json.loads(files.read(Path(file)).decode())
    except OSError as unreadable:
        raise InvalidInput(f"{file} cannot be read ({unreadable.strerror}): name a JSON file") from unreadable
    except ValueError as broken:
        raise InvalidInput(f"{file} is not JSON ({broken}): correct it") from broken
    if not isinstance(answers, list):
        raise InvalidInput(f"{file} holds no list: write one entry for each answer")
    entries = [_read_entry(entry, f"{file}: entry {n}") for n, entry in enumerate(answers, 1)]
    return ScriptedModel(entries, name=f"script:{file}")


def _read_entry(entry: Any, where: str) -> Entry:
    match entry:
        case {"error": kind}:
            if kind not in get_args(ModelErrorKind):
                raise InvalidInput(f"{where}: there is no error {kind!r}: use {', '.join(get_args(ModelErrorKind))}")
            return error(kind, entry.get("message", ""), entry.get("retry_after"))
        case {"truncated": list(parts)}:
            return truncated([_read_part(p, where) for p in parts])
        case list(parts):
            return [_read_part(p, where) for p in parts]
        case _:
            return _read_part(entry, where)


def _read_part(part: Any, where: str) -> Part:
    match part:
        case str(content) | {"text": str(content)}:
            return Text(content)
        case {"call": str(name)} if isinstance(arguments := part.get("arguments", {}), (dict, str)):
            return ToolCall("", name, arguments)  # a text: what a model sends that fails to write JSON
        case _:
            raise InvalidInput(f"{where} has {json.dumps(part)}, which is neither a text, nor a call, nor an error")


# --- the demo ---------------------------------------------------------------------------------------------------


def _demo(request: ModelRequest) -> Reply:
    """Call the first tool once, with arguments taken from the input; then say what it returned."""
    said = next((m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None), "")
    if request.tools and request.step == 0:
        tool = request.tools[0]
        return ToolCall("", tool.name, _arguments(tool.parameters, said, tool.parameters))
    results = (p for m in reversed(request.messages) for p in reversed(m.parts) if isinstance(p, ToolResponse))
    result = next(results, None) if request.tools else None
    return (values.plain_text(result.response).strip() or "Done.") if result else f"You said: {said}"


_ONE_WORD = re.compile(r"(?:.*_)?(?:to|who|whom|name|user|username|recipient|email|address|city|id|key|number)")
_FORMATS = {
    "date": "2026-01-01",
    "time": "09:00:00Z",
    "date-time": "2026-01-01T09:00:00Z",
    "duration": "PT1H",
    "uuid": "00000000-0000-4000-8000-000000000000",
}  # for what a sentence rarely holds word for word


def _arguments(schema: Mapping[str, Any], said: str, root: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    wanted = schema.get("required") or list(properties)
    return {name: _argument(name, properties.get(name, {}), said, root) for name in wanted}


def _argument(name: str, schema: Mapping[str, Any], said: str, root: Mapping[str, Any]) -> Any:
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    match schema.get("type"):
        case "integer" | "number" as kind:
            number = re.search(r"-?\d+(?:\.\d+)?", said)
            value = float(number[0]) if number else 1.0
            return int(value) if kind == "integer" or value.is_integer() else value
        case "boolean":
            return True
        case "array":
            return []
        case "object":
            return _arguments(schema, said, root)
        case "null":
            return None
        case _:
            return _FORMATS.get(schema.get("format", "")) or (_word(said) if _ONE_WORD.fullmatch(name) else said)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind a reference, or the first one of a choice."""
    while True:
        choice = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if "$ref" in schema:
            schema = root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {})
        elif choice:
            schema = choice[0]
        elif isinstance(schema.get("type"), list):
            schema = {**schema, "type": schema["type"][0]}
        else:
            return schema


def _word(said: str) -> str:
    """The word that most likely names something: the last one."""
    words = re.findall(r"[^\s,;:!?()\"']+", said)
    return words[-1].rstrip(".") if words else said
