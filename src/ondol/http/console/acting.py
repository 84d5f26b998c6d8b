"""What can a person do? The forms. Each does one thing through the ``Service`` and then shows a page.

A form that starts something carries a key that was made with its page: pressed twice, it is one run. What is decided
carries the hash of what was shown.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from typing import Any

from fastapi import APIRouter, Request
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from ondol import schemas, values
from ondol.attaching import File
from ondol.errors import InvalidInput, OndolError, Unauthenticated
from ondol.handles import Ask
from ondol.http.console.looking import show_ask, show_effect
from ondol.http.console.looks import Looks
from ondol.http.problems import status_of
from ondol.http.requests import base_name, caller_in, json_of, media_type
from ondol.http.service import Word

_MOST_FILES = 20


def add_to(router: APIRouter, looks: Looks) -> None:
    _add_session(router, looks)
    _add_run(router, looks)
    _add_decisions(router, looks)


def _add_session(router: APIRouter, looks: Looks) -> None:
    service = looks.service

    @router.post("/session/send")
    async def send(request: Request) -> Response:
        """Start a run, in a session or in one of its own. It goes on whoever watches."""
        caller, form = caller_in(request), await form_of(request)
        agent, text = text_in(form, "agent"), text_in(form, "text")
        session, user = text_in(form, "session").strip(), text_in(form, "user").strip()
        files = [
            File(base_name(f.filename), await f.read(), media_type(f.content_type))
            for f in form.getlist("files")
            if isinstance(f, UploadFile) and f.filename
        ]
        await form.close()
        if not text.strip() and not files:
            raise InvalidInput("there is nothing to send: write something first")
        busy = text_in(form, "if_busy") or "queue"
        if busy not in ("queue", "interrupt", "steer", "reject"):
            raise InvalidInput(f"if_busy {busy!r} is none of queue, interrupt, steer, reject")
        key = _key(form, "send", agent, session, user, text, *(hashlib.sha256(f.data).hexdigest() for f in files))
        run = await service.start(
            caller, agent, text, session=session or None, user=user or None, operation_id=key, attachments=files,
            if_busy=busy,  # type: ignore[arg-type]
        )  # fmt: skip
        return looks.to(request, "/session", id=run.session)

    @router.post("/session/compact")
    async def compact(request: Request) -> Response:
        """Do what the preview showed: of the session as it was then."""
        caller, form = caller_in(request), await form_of(request)
        keep = text_in(form, "keep")
        if not keep.isdecimal() or len(keep) > 9:
            raise InvalidInput(f"{keep!r} is no number of turns")
        done = await service.compact_session(
            caller, text_in(form, "session"), keep=int(keep), by=by_in(form), expected_revision=_revision(form)
        )
        return looks.to(request, "/session", id=done.session)

    @router.post("/session/erase")
    async def erase(request: Request) -> Response:
        caller, form = caller_in(request), await form_of(request)
        revision = _revision(form)
        if text_in(form, "sure") != "yes":
            raise InvalidInput("nothing was erased: tick the box that says so, it cannot be taken back")
        await service.delete_session(
            caller, text_in(form, "session"), expected_revision=revision, cancel=text_in(form, "cancel") == "yes"
        )
        return looks.to(request, "/sessions")


def _add_run(router: APIRouter, looks: Looks) -> None:
    service = looks.service

    @router.post("/runs/{run}/cancel")
    async def cancel(request: Request, run: str) -> Response:
        caller, form = caller_in(request), await form_of(request)
        await service.cancel(caller, run, by=by_in(form), reason=text_in(form, "reason"))
        return looks.back(request, form.get("next"), "/runs/{}", run)

    @router.post("/runs/{run}/resume")
    async def resume(request: Request, run: str) -> Response:
        caller, form = caller_in(request), await form_of(request)
        await service.resume(caller, run)
        return looks.back(request, form.get("next"), "/runs/{}", run)

    @router.post("/runs/{run}/replay")
    async def replay(request: Request, run: str) -> Response:
        caller, form = caller_in(request), await form_of(request)
        why = text_in(form, "why").strip()
        made = await service.replay(
            caller, run, by=by_in(form), why=why or None, operation_id=_key(form, "replay", run, why)
        )
        return looks.to(request, "/runs/{}", made.id)

    @router.post("/runs/{run}/fork")
    async def fork(request: Request, run: str) -> Response:
        caller, form = caller_in(request), await form_of(request)
        at, effects = text_in(form, "at_step"), text_in(form, "effects") or "reuse"
        if not at.isdecimal() or not 0 < int(at[:10]) < 10**9:
            raise InvalidInput(f"{at!r} is no step: steps are counted from 1")
        if effects not in ("reuse", "stub", "run"):
            raise InvalidInput(f"effects {effects!r} is none of reuse, stub, run")
        made = await service.fork(
            caller, run, at_step=int(at), effects=effects,  # type: ignore[arg-type]
            operation_id=_key(form, "fork", run, at, effects),
        )  # fmt: skip
        return looks.to(request, "/runs/{}", made.id)


def _add_decisions(router: APIRouter, looks: Looks) -> None:
    service = looks.service

    @router.post("/asks/{ask}")
    async def decide(request: Request, ask: str) -> Response:
        """Decide an ask. What is not taken is told on its page, with what was typed."""
        caller, form = caller_in(request), await form_of(request)
        try:
            word = _word(form, await service.ask(caller, ask))
            await service.decide(caller, ask, word, seen=text_in(form, "seen") or None)
        except Unauthenticated:
            raise
        except OndolError as error:
            now = await service.ask(caller, ask)
            typed = text_in(form, "arguments") or text_in(form, "value")
            return await show_ask(looks, request, caller, now, error=error, status=status_of(error), typed=typed)
        return looks.back(request, form.get("next"), "/asks/{}", ask)

    @router.post("/effects/{effect}/resolve")
    async def resolve(request: Request, effect: str) -> Response:
        caller, form = caller_in(request), await form_of(request)
        await service.effect(caller, effect)
        result = text_in(form, "result")
        try:
            kind = text_in(form, "outcome")
            word = Word(
                kind=kind, evidence=text_in(form, "evidence"), by=by_in(form),
                result=_json_or_text(result) if result.strip() and kind == "happened" else None,
            )  # fmt: skip
            if kind not in ("happened", "not_happened", "give_up"):
                raise InvalidInput("say what you saw: it happened, it did not, or nobody can tell")
            await service.resolve(caller, effect, word)
        except Unauthenticated:
            raise
        except OndolError as error:
            now = await service.effect(caller, effect)
            return await show_effect(
                looks, request, caller, now, error=error, status=status_of(error), typed=text_in(form, "evidence"),
                result=result,
            )  # fmt: skip
        return looks.back(request, form.get("next"), "/effects/{}", effect)


def _word(form: FormData, ask: Ask) -> Word:
    """What the form says about the ask. Raises InvalidInput."""
    kind, by, reason = text_in(form, "decision"), by_in(form), text_in(form, "reason")
    match kind:
        case "approve":
            if (typed := text_in(form, "arguments")).strip() and not _is_shown(typed, ask):
                raise InvalidInput(
                    "the arguments below were edited, and Approve is for those that were asked about: nothing was "
                    "decided. Press Approve these, or load the page again"
                )
            return Word(kind=kind, reason=reason, by=by)
        case "replace":
            return Word(kind="approve", arguments=_object(text_in(form, "arguments")), reason=reason, by=by)
        case "answer":
            return Word(kind=kind, value=_answer(text_in(form, "value"), ask.schema or {}), reason=reason, by=by)
        case "raise" if tokens := text_in(form, "tokens").strip():
            if not tokens.isdecimal() or len(tokens) > 12:
                raise InvalidInput(f"{tokens!r} is no number of tokens: nothing was decided")
            return Word(kind=kind, value=int(tokens), by=by)
        case "drop" if part := text_in(form, "part"):
            return Word(kind=kind, value=[part], by=by)
        case "deny" | "resume" | "fail" | "compact" | "drop" | "raise":
            return Word(kind=kind, reason=reason, by=by)
        case _:
            raise InvalidInput("the form says nothing that this ask understands: load the page again")


def _is_shown(typed: str, ask: Ask) -> bool:
    try:
        return values.canonical(json_of(typed)) == values.canonical(values.encode(ask.arguments))
    except ValueError:
        return False


def _object(text: str) -> dict[str, Any]:
    try:
        given = json_of(text)
    except ValueError as error:
        raise InvalidInput(f"the arguments are no JSON ({error}): nothing was decided") from error
    if not isinstance(given, dict):
        raise InvalidInput("the arguments must be a JSON object with all of them: nothing was decided")
    return given


def _answer(text: str, schema: dict[str, Any]) -> Any:
    """What was typed, as the question wants it: a text as it is, anything else as the command line takes it. What does
    not fit is refused where it is decided."""
    if schema.get("type") == "string":
        return text
    given = _json_or_text(text)
    with contextlib.suppress(InvalidInput):
        given = schemas.typed(text, schema)
    return given


def _json_or_text(text: str) -> Any:
    try:
        return json_of(text)
    except ValueError:
        return text


async def form_of(request: Request) -> FormData:
    return await request.form(max_files=_MOST_FILES, max_fields=50, max_part_size=8_000_000)


def text_in(form: FormData, name: str) -> str:
    """A field; as browsers send line ends, so they are not in what is kept."""
    value = form.get(name)
    return value.replace("\r\n", "\n") if isinstance(value, str) else ""


def by_in(form: FormData) -> str | None:
    return text_in(form, "by").strip() or None


def _revision(form: FormData) -> int:
    revision = text_in(form, "revision")
    if not revision.isdecimal() or len(revision) > 18:
        raise InvalidInput("the form does not say which revision was looked at: load the page again")
    return int(revision)


def _key(form: FormData, *said: str) -> str:
    """The operation id: of the page that the form came from and of what it says. A page that is gone back to and sent
    with other words is another operation."""
    page = text_in(form, "key")[:64] or secrets.token_hex(8)
    return f"console:{page}:{hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]}"
