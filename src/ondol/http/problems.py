"""How is an error said over HTTP? RFC 9457: ``application/problem+json`` with ``code``, ``detail`` and ``fix``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired

from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from ondol import errors
from ondol.bodies import VerdictBody, verdict_body
from ondol.errors import OndolError

#: The status of each code. A run that ended badly is no failed request: its code stands in its body, and has one here
#: for where it is raised all the same.
STATUS: Mapping[str, int] = {
    "malformed": 400, "wrong_cursor": 400, "refused": 400, "usage": 400,
    "unauthenticated": 401,
    "forbidden": 403, "policy_denied": 403,
    "not_found": 404, "no_database": 404,
    "too_slow": 408,
    "already_decided": 409, "ask_closed": 409, "cannot_go_on": 409, "in_progress": 409, "read_only": 409,
    "replay_unsafe": 409, "session_busy": 409,
    "run_ended": 409, "run_failed": 409, "run_cancelled": 409, "run_expired": 409, "run_waiting": 409,
    "cancelled": 409, "expired": 409, "conflict": 409, "definition_changed": 409, "interrupted": 409, "parked": 409,
    "unknown_effect": 409, "limit_context": 409, "limit_cost": 409, "limit_steps": 409, "limit_tokens": 409,
    "limit_tool_time": 409, "limit_wall": 409, "call_failed": 409,
    "cursor_expired": 410, "operation_expired": 410,
    "precondition_failed": 412, "revision_conflict": 412,
    "too_large": 413,
    "unsupported_media": 415,
    "file_damaged": 422, "invalid_input": 422, "operation_mismatch": 422,
    "precondition_required": 428,
    "queue_full": 429,
    "internal": 500, "error": 500, "store_corrupt": 500, "store_error": 500, "store_fault": 500, "store_too_new": 500,
    "fenced": 500, "claim_lost": 500, "cancel_requested": 500, "signals_unread": 500,
    "model_error": 502, "model_auth": 502, "model_connection": 502, "model_content_filter": 502,
    "model_context_overflow": 502, "model_overloaded": 502, "model_quota": 502, "model_rate_limited": 502,
    "model_rejected": 502, "model_server": 502, "model_timeout": 502, "model_unavailable": 502,
    "draining": 503, "overloaded": 503, "unreachable": 503, "not_open": 503, "outcome_unknown": 503, "store_busy": 503,
    "store_full": 507,
}  # fmt: skip

#: Seconds after which the same request may succeed.
_RETRY_AFTER: Mapping[str, int] = {
    "queue_full": 5, "draining": 2, "overloaded": 2, "outcome_unknown": 1, "store_busy": 1, "not_open": 2,
}  # fmt: skip


class Problem(TypedDict):
    """``code`` is stable and has a page (``ondol explain CODE``); ``detail`` names the thing and the next move; ``fix``
    is what to do in general. All others are there where an error has them."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    fix: str
    run: NotRequired[str]
    session: NotRequired[str]
    limit: NotRequired[int]
    expected: NotRequired[int]
    actual: NotRequired[int]
    verdict: NotRequired[VerdictBody]


def status_of(error: OndolError) -> int:
    return STATUS.get(error.code, 500)


def problem(error: OndolError, status: int | None = None) -> JSONResponse:
    """The answer that an error is. ``status``: another than that of its code."""
    status = status or status_of(error)
    body = problem_body(error.code, str(error), error.fix, status)
    match error:
        case errors.ReplayUnsafe(verdict=verdict):
            body["verdict"] = verdict_body(verdict)
        case errors.InProgress(run=run):
            body["run"] = run
        case errors.SessionBusy(session=session, run=run):
            body["session"], body["run"] = session, run
        case errors.QueueFull(session=session, limit=limit):
            body["session"], body["limit"] = session, limit
        case errors.RevisionConflict(session=session, expected=expected, actual=actual):
            body["session"], body["expected"], body["actual"] = session, expected, actual
        case _:
            pass
    return problem_response(body)


def problem_body(code: str, detail: str, fix: str, status: int) -> Problem:
    title = code.replace("_", " ")
    return {
        "type": f"urn:ondol:error:{code}", "title": title[0].upper() + title[1:], "status": status, "code": code,
        "detail": detail, "fix": fix,
    }  # fmt: skip


def problem_response(body: Problem) -> JSONResponse:
    headers = failure_headers(body["code"], body["status"])
    return JSONResponse(dict(body), body["status"], headers, media_type="application/problem+json")


def failure_headers(code: str, status: int) -> dict[str, str]:
    """What goes with an error, whatever its body is."""
    headers: dict[str, str] = {"cache-control": "no-store"}
    if (wait := _RETRY_AFTER.get(code)) is not None:
        headers["retry-after"] = str(wait)
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="ondol"'
    return headers


def internal(error: Exception) -> OndolError:
    """A fault of Ondol's own. What it was stands in the log, not in the answer."""
    return error_of("internal", f"{type(error).__name__}: a bug in Ondol, the log of the server has it", {})


def raised(body: Any, status: int) -> OndolError:
    """The error that a problem is, for a client: of the class that has its code.

    What is no problem of ours (a proxy's answer) is an ``OndolError`` that says so.
    """
    if not isinstance(body, dict) or not isinstance(code := body.get("code"), str):
        return OndolError(f"the server answered {status}: {str(body)[:200]!r}")
    return error_of(code, str(body.get("detail", "")), body)


def error_of(code: str, message: str, body: Mapping[str, Any]) -> OndolError:
    found = _classes().get(code, OndolError)
    error = found.__new__(found)
    Exception.__init__(error, message)
    error.code = code
    for name in ("run", "session", "limit", "expected", "actual", "verdict"):
        if name in body:
            setattr(error, name, body[name])
    return error


def _classes() -> dict[str, type[OndolError]]:
    found: dict[str, type[OndolError]] = {}
    waiting: list[type[OndolError]] = [OndolError]
    while waiting:
        cls = waiting.pop()
        found.setdefault(cls.code, cls)
        waiting += cls.__subclasses__()
    return found
