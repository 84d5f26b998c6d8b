"""What does a request say in its headers and in its body?"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

from fastapi import Header, Path, Query, Request
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.types import Scope

from ondol import pins, values
from ondol.attaching import File
from ondol.errors import InvalidInput, Malformed, PreconditionFailed, PreconditionRequired, UnsupportedMedia
from ondol.http.callers import Caller
from ondol.media import shown_name
from ondol.runtime import ForkEffects, ReplayClock
from ondol.transactions import IfBusy

_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,200})"')  # RFC 8941: a string
_BARE = re.compile(r"[!#-~](?:[ -~]{0,198}[!-~])?")  # as most clients send it
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,60}/[A-Za-z0-9!#$&^_.+-]{1,60}")
_MOST_FILES = 100
DEEPEST = 100  # levels that JSON may nest
#: Or is a text. Of that no place to come back to is kept (``*+``): they would take a hundred times its size.
_OPENS_OR_CLOSES = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.S)
OnDisconnect: TypeAlias = Literal["cancel", "continue"]
SaidBy: TypeAlias = Literal["api", "chat"]

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", description="The operation's id, quoted or bare. The same one again is the same run."
    ),
]
IfMatch = Annotated[str | None, Header(alias="If-Match", description="The ETag of what the sender saw.")]
Prefer = Annotated[
    str | None,
    Header(alias="Prefer", description="`wait=N`: for the end, up to N seconds. `respond-async`: do not wait."),
]
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="The id of the last event that the reader saw.")
]
After = Annotated[str | None, Query(description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]


SLASH = "\x1f"  # stands for a slash of an id in an address: no id has it
SessionId = Annotated[
    str, Path(description="The id of a session.", min_length=1), AfterValidator(lambda id: id.replace(SLASH, "/"))
]


_NAMES_THE_SERVER = re.compile(rb"https?://([^/?#]*)", re.I)


def in_origin_form(scope: Scope) -> None:
    """A request may name the server before the path, as one to a proxy does. That name counts, and not the one of
    ``Host``. RFC 9112, 3.2.2."""
    raw: bytes = scope.get("raw_path") or b""
    named = _NAMES_THE_SERVER.match(raw)
    if named is None:
        return
    scope["raw_path"] = raw[named.end() :] or b"/"
    scope["path"] = scope.get("root_path", "") + unquote(scope["raw_path"].decode("ascii", "replace"))
    scope["headers"] = [*(h for h in scope["headers"] if h[0] != b"host"), (b"host", named[1])]


def path_with_slashes(path: str, raw: bytes | None) -> str:
    """The path of a request in which a slash that was sent as ``%2F`` does not divide."""
    if raw is None or b"%2f" not in raw.lower():
        return path
    parts = re.split("%2[Ff]", raw.partition(b"?")[0].decode("ascii", "replace"))
    return SLASH.join(unquote(part) for part in parts)


def place(request: Request) -> str:
    """The path of a request below the place where the door is mounted."""
    return request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"


def caller_in(request: Request) -> Caller:
    """Whoever sent it. Outside ``/v1`` raises Unauthenticated where nobody did."""
    refused = request.state.refused
    if refused is not None:
        raise refused
    caller: Caller = request.state.caller
    return caller


# --- headers ----------------------------------------------------------------------------------------------------


def idempotency_key(header: str | None) -> str | None:
    """The operation id of ``Idempotency-Key``: a quoted string as the draft has it, or the bare value as most send it.

    Raises Malformed for a quoted string that does not end, or is empty.
    """
    if header is None:
        return None
    given = header.strip(" \t")
    quoted = _QUOTED.fullmatch(given)
    if quoted is not None:
        return re.sub(r"\\(.)", r"\1", quoted[1])
    if _BARE.fullmatch(given) is None:
        raise Malformed(f"Idempotency-Key {header!r} is neither one quoted string nor 1 to 200 printable characters")
    return given


def as_header(key: str) -> str:
    """An operation id as a quoted string; characters that a header cannot hold are left out."""
    shown = "".join(c for c in key if " " <= c <= "~")
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'


def etag(value: int | str) -> str:
    return f'"{value}"'


def matched(header: str | None) -> str | None:
    """The one value of ``If-Match``, without its quotation marks; None for ``*`` and where there is none.

    Raises Malformed for several, PreconditionFailed for a weak one.
    """
    if header is None or header.strip() == "*":
        return None
    given = header.strip()
    if given.startswith("W/"):
        raise PreconditionFailed(f"If-Match {header} is weak, and counts for nothing: send the ETag as it was given")
    found = re.fullmatch(r'"([^"]*)"', given)
    if found is None:
        raise Malformed(f"If-Match {header!r} is not one value in quotation marks")
    return found[1]


def revision(header: str | None) -> int | None:
    """The session revision that ``If-Match`` names. Raises Malformed, PreconditionFailed."""
    said = matched(header)
    if said is None:
        return None
    if not said.isdecimal() or len(said) > 18:
        raise PreconditionFailed(f"If-Match {header} is no revision of a session: load it again")
    return int(said)


def required_revision(header: str | None, session: str) -> int | None:
    """As ``revision``, for a write that must say what it saw; None for ``*``: whatever is there."""
    if header is None:
        raise PreconditionRequired(f"say what you saw: send the ETag of session {session!r} as If-Match")
    return revision(header)


class Preferred(NamedTuple):
    """``wait`` is in seconds; None: it does not say."""

    wait: float | None = None
    respond_async: bool = False


def preferred(header: str | None) -> Preferred:
    """RFC 7240; what is not known, or cannot be read, is no preference."""
    wait, respond_async = None, False
    for part in (header or "").split(","):
        name, _, value = part.split(";")[0].strip().partition("=")
        match name.strip().lower():
            case "wait" if re.fullmatch(r"\d{1,6}", value.strip().strip('"')):
                wait = float(value.strip().strip('"'))
            case "respond-async":
                respond_async = True
    return Preferred(wait, respond_async)


def wants_events(request: Request) -> bool:
    """Does it ask for a stream?"""
    return "text/event-stream" in _accepted(request)


def wants_page(request: Request) -> bool:
    """Is it a person's browser that asks, for something that is not of the API?"""
    return is_page(place(request)) and "text/html" in _accepted(request)


def is_page(path: str) -> bool:
    """Is it of the console, and not of the API or for what watches over the process?"""
    return not path.startswith("/v1/") and path not in ("/healthz", "/readyz", "/metrics", "/openapi.json")


def _accepted(request: Request) -> list[str]:
    """The media types that it names, without what it thinks of each."""
    return [part.partition(";")[0].strip().lower() for part in listed(request, "accept").split(",")]


def listed(request: Request, header: str) -> str:
    """All lines of a header that holds a list, which may come in several, as one. RFC 9110, 5.3."""
    return ", ".join(request.headers.getlist(header))


# --- bodies -----------------------------------------------------------------------------------------------------


Id = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Words = Annotated[str, StringConstraints(max_length=10_000)]
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def _whole(given: Any) -> Any:
    """To JSON 3.0 is an integer."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


By = Annotated[Id | None, Query(description="Who does it, where the token does not say.")]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class AttachmentIn(Body):
    """A file in JSON. ``data`` is base64."""

    name: str = Field(min_length=1, max_length=200)
    data: Annotated[str, StringConstraints(pattern=_BASE64)]
    media_type: str | None = None


class StartRun(Body):
    """An operation. ``on_disconnect`` says what becomes of its run when the client of its stream goes away; ``trigger``
    whether a person said it in a chat."""

    agent: Id
    input: str
    session: Id | None = None
    user: Id | None = None
    if_busy: IfBusy = "queue"
    on_disconnect: OnDisconnect | None = None
    attachments: list[AttachmentIn] = Field(default=[], max_length=_MOST_FILES)
    time_zone: str | None = None
    metadata: dict[str, Any] | None = None
    trigger: SaidBy = "api"


class StartRunForm(BaseModel):
    """As a form: each field as text, each file as one ``attachments``."""

    agent: str
    input: str
    session: str | None = None
    user: str | None = None
    if_busy: IfBusy = "queue"
    on_disconnect: OnDisconnect | None = None
    attachments: Annotated[list[bytes], WithJsonSchema(
        {"type": "array", "items": {"type": "string", "format": "binary"}, "maxItems": _MOST_FILES}
    )] = []  # fmt: skip
    time_zone: str | None = None
    metadata: Annotated[str | None, Field(description="JSON.")] = None
    trigger: SaidBy = "api"


class CancelRun(Body):
    by: Id | None = None
    reason: Words = ""


class ReplayRun(Body):
    """With ``why`` it is forced: who wants it, and the reason, are kept."""

    why: Annotated[str, StringConstraints(max_length=10_000, pattern=r"\S")] | None = None
    by: Id | None = None
    clock: ReplayClock = "recorded"
    time_zone: str | None = None


class ForkRun(Body):
    at_step: Annotated[int, BeforeValidator(_whole)] = Field(ge=1, le=10**9)
    effects: ForkEffects = "reuse"


class NewSession(Body):
    """Without an ``id`` one is made."""

    id: Id | None = None
    title: Words | None = None
    state: dict[str, Any] | None = None
    time_zone: str | None = None
    user: Id | None = None


class SessionChange(Body):
    title: Words | None = None
    state: dict[str, Any] | None = None
    time_zone: str | None = None


class CompactSession(Body):
    """All turns but the last ``keep`` go. With ``preview`` nothing is changed, and no model is asked; with
    ``model_free`` the summary is an excerpt. ``agent`` is the one whose model writes it, by default the one that had
    the last turn."""

    keep: Annotated[int, BeforeValidator(_whole)] = Field(default=3, ge=0, le=10**9)
    preview: bool = False
    model_free: bool = False
    agent: Id | None = None
    by: Id | None = None


class NewPin(Body):
    text: Annotated[str, StringConstraints(max_length=pins.LONGEST, pattern=r"\S")]
    by: Id | None = None


class DecideAsk(Body):
    """``approve``, with ``arguments`` in the place of those that were asked about; ``deny``; ``answer`` with ``value``,
    which may be null; of an unknown effect ``happened`` with ``result``, ``not_happened``, ``give_up``, these with what
    was seen as ``evidence``; of a parked run ``resume``, ``fail``; of a request that is too large ``compact``, ``drop``
    (with the parts as ``value``, ``["calls", "turns"]`` or fewer), ``raise`` (with the tokens as ``value``), ``fail``.
    Why it is decided so goes with any of them as ``reason``, but for those with evidence."""

    decision: Literal[
        "approve", "deny", "answer", "happened", "not_happened", "give_up", "resume", "fail", "compact", "drop", "raise"
    ]
    arguments: dict[str, Any] | None = None
    value: Any = None
    result: Any = None
    evidence: Words = ""
    reason: Words = ""
    by: Id | None = None


class ResolveEffect(Body):
    """What somebody found out who looked: ``evidence`` is where, and what they saw; ``result`` is what the model is
    told."""

    outcome: Literal["happened", "not_happened", "give_up"]
    evidence: Words
    result: Any = None
    by: Id | None = None


class Sent(NamedTuple):
    """An operation with the bytes of its attachments."""

    asked: StartRun
    files: list[File]


async def sent(request: Request) -> Sent:
    """The operation in a body, JSON or multipart. Raises Malformed, UnsupportedMedia, InvalidInput."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == "multipart/form-data":
        return await _from_form(request)
    if media != "application/json":
        raise UnsupportedMedia(f"a body of type {media or 'nothing'!r} is not taken: send application/json")
    if not await request.body():
        raise Malformed("the body is empty: send JSON")
    given, request.state.json = request.state.json, None  # a stream lasts for long, and a body may be large
    asked = _checked(given)
    return Sent(asked, [_file(a) for a in asked.attachments])


async def _from_form(request: Request) -> Sent:
    try:
        form = await request.form(max_files=_MOST_FILES, max_fields=50, max_part_size=32_000_000)
    except HTTPException as error:
        raise Malformed(f"the form cannot be read: {error.detail}") from error
    fields: dict[str, Any] = {}
    files: list[File] = []
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                files.append(File(base_name(value.filename), await value.read(), media_type(value.content_type)))
            elif name in fields:
                raise InvalidInput(f"the field {name!r} is there twice: send it once")
            else:
                fields[name] = _json(name, value) if name in ("metadata", "attachments") else value
    finally:
        await form.close()
    asked = _checked(fields)
    return Sent(asked, [*files, *(_file(a) for a in asked.attachments)])


def _json(name: str, value: str) -> Any:
    try:
        return json_of(value)
    except ValueError as error:
        raise Malformed(f"the field {name!r} is no JSON: {error}") from error


def json_of(text: bytes | str, deepest: int = DEEPEST) -> Any:
    """What a body, or a field of a form, holds as JSON.

    Raises ValueError; Malformed where an object has a name twice, InvalidInput where it nests too deep.
    """
    try:
        given = values.read_json(text)
    except RecursionError:
        given = None  # deeper than any that is taken
    check_depth(text if isinstance(text, bytes) else text.encode("utf-8", "replace"), deepest)
    return given


def check_depth(text: bytes, most: int) -> None:
    """Raises InvalidInput. What stands in strings does not count."""
    depth = 0
    for found in _OPENS_OR_CLOSES.finditer(text):
        opens_or_closes = text[found.start()]
        if opens_or_closes in b"[{":
            depth += 1
            if depth > most:
                raise InvalidInput(f"the JSON of the request nests deeper than {most} levels: make it flatter")
        elif opens_or_closes in b"]}":
            depth -= 1


def _checked(given: Any) -> StartRun:
    try:
        return StartRun.model_validate(given)
    except ValidationError as error:
        raise InvalidInput(said(error.errors(include_url=False, include_context=False, include_input=False))) from error


def said(errors: Any) -> str:
    """What is wrong with a body, in one line."""
    lines = []
    for error in errors:
        place = ".".join(str(p) for p in error["loc"] if p != "body") or "the body"
        lines.append(f"{place}: {error['msg']}")
    return "; ".join(lines[:5]) or "the request is not as it must be"


def _file(given: AttachmentIn) -> File:
    try:
        data = base64.b64decode(given.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"attachment {given.name!r}: its data is no base64 ({error})") from error
    return File(base_name(given.name), data, media_type(given.media_type))


def media_type(given: str | None) -> str | None:
    """As the sender has it; what is no media type, or says nothing, is for us to find out."""
    plain = (given or "").partition(";")[0].strip().lower()
    return plain if _MEDIA_TYPE.fullmatch(plain) and plain != "application/octet-stream" else None


def base_name(given: str | None) -> str:
    """A file's name without folders and without what no name may hold."""
    name = re.split(r"[/\\]", given or "")[-1]
    return shown_name(name)
