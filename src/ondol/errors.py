"""Which exceptions does Ondol raise, and what should the caller do about each?

    OndolError
    ├── Refused                 the request was not taken: change it, then send it again
    │   ├── InvalidInput        a value cannot be used as it is
    │   │   └── WrongCursor     the place to go on from is no event of this run
    │   ├── CursorExpired       what followed that place is not kept any more: read from the start, or the session
    │   ├── Malformed           the request is not as HTTP and JSON have it
    │   ├── UnsupportedMedia    its body has another media type than is taken here
    │   ├── Unauthenticated     no token came with it, or one that does not count
    │   ├── Forbidden           this token, or this address, may not do that
    │   ├── PreconditionRequired  it must say what it saw (``If-Match``)
    │   ├── PreconditionFailed  what it saw is not there any more: look again
    │   ├── InProgress          the operation is under way, and it asked not to wait
    │   ├── TooSlow             it did not come in time
    │   ├── Draining            this process stops: send it again, to the next one
    │   ├── Overloaded          too many connections are open: send it again in a moment
    │   ├── NotFound            there is no such thing (or it belongs to somebody else)
    │   ├── OperationMismatch   the operation id was used before with other content
    │   ├── OperationExpired    the operation is done and its reply is no longer kept
    │   ├── RevisionConflict    the session moved on: load it again
    │   ├── SessionBusy         a run of the session is unfinished: wait for it or cancel it
    │   ├── QueueFull           as many operations wait in the session as may: send it again later
    │   ├── TooLarge            it has more attachments, or larger ones, than are taken
    │   ├── AlreadyDecided      somebody else decided this ask first
    │   ├── AskClosed           the run of this ask has ended
    │   ├── PolicyDenied        the policy denies what would be approved
    │   ├── ReplayUnsafe        settle first what its verdict names, or force it
    │   ├── CannotGoOn          the run has ended for good, or waits for a word of its own
    │   ├── ReadOnly            it is an imported run, which can be looked at and nothing else
    │   ├── FileDamaged         an exported run is not as it was written: export it again
    │   └── NotOpen             the runtime was used outside ``async with``
    ├── RunEnded                the run did not complete
    │   ├── RunFailed           (``retryable``: send the same operation id to go on)
    │   ├── RunCancelled
    │   └── RunExpired
    ├── RunWaiting              the run waits for a person: decide its asks
    ├── Unreachable             (a client) no answer came from the server: it may have come in all the same
    ├── CallFailed              (in a tool of steps) a call that it made did not succeed: go on without it, or give up
    ├── ModelError              the model did not answer (``kind`` says why)
    ├── StoreError              the store could not do it
    │   ├── StoreFull           free space, then retry
    │   ├── StoreBusy           retry in a moment
    │   ├── StoreCorrupt        restore a backup
    │   ├── StoreTooNew         upgrade Ondol
    │   ├── StoreFault          report it: a statement failed for a reason that asking again does not cure
    │   └── OutcomeUnknown      it may have happened: retry with the same operation id
    └── Fenced                  (internal) the holder of a run may not do this now
        ├── ClaimLost           somebody else drives the run
        ├── CancelRequested     a cancel came first
        └── SignalsUnread       read the signals first

``NotDone`` is not in the tree: tools raise it to say that nothing happened. ``Suspended`` is a signal, not an error.

A run that failed has a code as well, which is no class: ``EndCode``. ``CODES`` is the list of all codes, each with
what to do about it; ``docs/errors`` has a page for each, which ``ondol explain CODE`` prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

ModelErrorKind = Literal[
    "rate_limited", "quota", "overloaded", "unavailable", "server", "context_overflow",
    "auth", "rejected", "content_filter", "timeout", "connection",
]  # fmt: skip

#: What stands in the stored error of a run that failed, was cancelled or is parked.
EndCode: TypeAlias = Literal[
    "cancelled", "expired", "conflict", "definition_changed", "interrupted", "parked", "unknown_effect",
    "limit_context", "limit_cost", "limit_steps", "limit_tokens", "limit_tool_time", "limit_wall",
    "model_rate_limited", "model_quota", "model_overloaded", "model_unavailable", "model_server",
    "model_context_overflow", "model_auth", "model_rejected", "model_content_filter", "model_timeout",
    "model_connection",
]  # fmt: skip


def model_code(kind: str) -> EndCode:
    """The code of a model error of this kind (``ModelErrorKind``)."""
    return cast(EndCode, f"model_{kind}")


#: Every code, and what to do about it in one line. The page ``docs/errors/CODE.md`` says the rest.
CODES: Mapping[str, str] = {
    # what was asked for
    "error": "Read the message: it names the thing and the next move.",
    "refused": "Change the request as the message says, then send it again: nothing was done.",
    "usage": "Look at the command's --help, and type it again.",
    "invalid_input": "Change the value that the message names, then send it again.",
    "not_found": "Check the id, the store (--db) and the tenant: the matching 'ls' command lists what there is.",
    "no_database": "Name the store with --db or ONDOL_DB, or make one with 'ondol run'.",
    "read_only": "Do it where the run is at home: here is a copy of it, to be looked at.",
    "file_damaged": "Export the run again where it ran: 'ondol runs export RUN'.",
    "wrong_cursor": "Give the id of an event of this run, or none to read from the start.",
    "cursor_expired": "Read the run again without a cursor; what was committed is in its session.",
    "malformed": "Send what the message names as HTTP and JSON have it.",
    "unsupported_media": "Send JSON (Content-Type: application/json); where files are taken also multipart/form-data.",
    "unauthenticated": "Send 'Authorization: Bearer TOKEN'; 'ondol tokens create' makes one.",
    "forbidden": "Use a token with the scope, or let the name or page in when you start the server.",
    "precondition_required": "Read the thing, and send what you saw in 'If-Match'.",
    "precondition_failed": "Read it again, look at what changed, then send the new value in 'If-Match'.",
    "in_progress": "Ask for the run's result, or send the same operation again with another 'Prefer: wait=N'.",
    "too_slow": "Send the whole request at once, over a connection that is fast enough.",
    "draining": "Send the same operation again in a moment: another process takes over.",
    "not_open": "Use the runtime inside 'async with Runtime(...) as rt:'.",
    "operation_mismatch": "Choose a new operation id, or send what was sent with this one before.",
    "operation_expired": "Read the session: the operation is done. To do it once more, choose a new operation id.",
    "revision_conflict": "Load the session again, look at what changed, then repeat your write on the new revision.",
    "queue_full": "Wait until a run of the session has ended, then send the same operation again.",
    "too_large": "Send fewer or smaller attachments, or raise Limits(attachments=..., attachment_bytes=...).",
    "session_busy": "Wait for the run that the message names, cancel it or settle it; or let this one queue behind it.",
    "already_decided": "Look at the decision that counts: 'ondol asks show ID'.",
    "ask_closed": "Nothing is left to decide: 'ondol runs show RUN' says how its run ended.",
    "policy_denied": "Deny the ask, or approve it with arguments that the policy does not deny.",
    "replay_unsafe": "Settle what the verdict names; or force it with a name and a reason, or fork it from a step.",
    "cannot_go_on": "Start a new operation: this run has ended for good.",
    "overloaded": "Send the same request again in a moment, over a connection that you keep open.",
    # what a run came to
    "run_ended": "Read the stored error of the run: 'ondol runs show RUN'.",
    "run_failed": "Read the code that the run failed with; if it can go on, send the same operation id again.",
    "run_cancelled": "Nothing, if that was meant. Else start a new operation: its next turn is told what was done.",
    "run_expired": "Start a new operation, and answer its question in time.",
    "run_waiting": "Decide what is asked: 'ondol asks' lists it with the commands.",
    "cancelled": "Nothing, if that was meant. Else start a new operation: its next turn is told what was done.",
    "expired": "Start a new operation, and answer its question in time.",
    "conflict": "Look at what was changed by hand, then start a new operation.",
    "definition_changed": "Start the program with code that fits, then 'ondol asks answer ID resume', or 'fail'.",
    "interrupted": "Nothing: the message that took its place is told what was done, and is answered.",
    "limit_cost": "Raise Limits(cost=...) or choose a cheaper model, then send the same operation id.",
    "limit_tokens": "Raise Limits(tokens=...) or make what the model sees shorter, then send the same operation id.",
    "limit_tool_time": "Raise Limits(tool_time=...) or find the slow tool, then send the same operation id.",
    "limit_wall": "Raise Limits(wall=...) or find out what took so long, then send the same operation id.",
    "limit_context": "Raise ContextPolicy(budget=...), or unpin what is long, then send the same operation id.",
    "limit_steps": "Raise Limits(steps=...) or see why the agent goes in circles, then send the same operation id.",
    "parked": "Find out why processes died, then 'ondol asks answer ID resume' or 'fail'.",
    "unknown_effect": "Look outside whether it happened, and say so: 'ondol effects resolve ID'.",
    "call_failed": "In the tool of steps: catch it and go on without the call, or let it end the tool.",
    "unreachable": "Start 'ondol serve' there, or name the right address; then send the same operation id again.",
    # the model
    "model_error": "Read the kind behind 'model_': each has a page of its own.",
    "model_rate_limited": "Send the same operation id again later; ask less often, or get a higher limit.",
    "model_quota": "Pay or raise the quota at the provider, then send the same operation id again.",
    "model_overloaded": "Send the same operation id again later, or name another model.",
    "model_unavailable": "Send the same operation id again later; check the provider's status and the base URL.",
    "model_server": "Send the same operation id again; if it stays, the provider must mend it, or name another model.",
    "model_context_overflow": "Say less at once, or take a model with a larger window.",
    "model_auth": "Set the right API key in the environment of the process, then send the same operation id again.",
    "model_rejected": "Read what the provider refused, change the agent or the model, then start a new operation.",
    "model_content_filter": "Rephrase the request, or read the provider's rules: asking the same again does not help.",
    "model_timeout": "Send the same operation id again; if it stays, ask for shorter answers or a faster model.",
    "model_connection": "Check network, proxy and base URL, then send the same operation id again.",
    # the store
    "store_error": "Look at the disk and at the permissions of the file, then try again.",
    "store_full": "Free some space: work goes on by itself.",
    "store_busy": "Try again in a moment; find out which process keeps the file locked.",
    "store_corrupt": "Stop, keep the file, and restore a backup: 'ondol db restore'.",
    "store_too_new": "Upgrade Ondol to the version that wrote it, or a later one.",
    "store_fault": "Report it with the message: asking again does not cure it.",
    "outcome_unknown": "Send the same operation id again: it finds what was stored, or stores it.",
    # never seen, unless there is a bug
    "internal": "Report it with what ONDOL_DEBUG=1 prints.",
    "fenced": "Nothing: the runtime uses it inside.",
    "claim_lost": "Nothing: another process, or a person, took the run over, and it goes on there.",
    "cancel_requested": "Nothing: the run is about to end as cancelled.",
    "signals_unread": "Nothing: the run reads what others said to it, and goes on.",
}


class OndolError(Exception):
    """Base of all errors. ``code`` is stable, ``str()`` names the thing and the next move."""

    code: str = "error"

    @property
    def explained_by(self) -> str:
        """The code whose page says most about it."""
        return self.code

    @property
    def fix(self) -> str:
        """What to do about it, in one line."""
        return CODES.get(self.explained_by) or CODES.get(self.code) or CODES["error"]


class Refused(OndolError):
    """The request was not taken and nothing changed."""

    code = "refused"


class InvalidInput(Refused):
    """A value cannot be used as it is."""

    code = "invalid_input"


class WrongCursor(InvalidInput):
    """What a watcher wants to go on from is no event of the run."""

    code = "wrong_cursor"


class CursorExpired(Refused):
    """What followed the event that a watcher saw last is not stored any more."""

    code = "cursor_expired"


class Malformed(Refused):
    """The request is not as HTTP and JSON have it."""

    code = "malformed"


class UnsupportedMedia(Refused):
    """The body of the request has a media type that is not taken here."""

    code = "unsupported_media"


class Unauthenticated(Refused):
    """No token came with the request, or one that is not known, was revoked, or has expired."""

    code = "unauthenticated"


class Forbidden(Refused):
    """Whoever asks may not do this."""

    code = "forbidden"


class PreconditionRequired(Refused):
    """The request changes something, and does not say what it saw of it."""

    code = "precondition_required"


class PreconditionFailed(Refused):
    """The thing is not any more what the request says that it saw."""

    code = "precondition_failed"


class InProgress(Refused):
    """The operation is under way, and the request asked not to wait for it. ``run`` is its run."""

    code = "in_progress"

    def __init__(self, operation_id: str, run: str, state: str) -> None:
        self.run = run
        super().__init__(f"operation {operation_id!r} is under way: its run {run} is {state}")


class TooSlow(Refused):
    """The request, or its body, did not come in time."""

    code = "too_slow"


class Draining(Refused):
    """The process stops and takes no new work."""

    code = "draining"


class Overloaded(Refused):
    """As many connections are open as are served."""

    code = "overloaded"


class NotFound(Refused):
    """There is no such thing, or it belongs to another tenant."""

    code = "not_found"


class OperationMismatch(Refused):
    """The operation id was used before with other content. The stored content is not shown."""

    code = "operation_mismatch"


class OperationExpired(Refused):
    """The operation is done; its reply is no longer kept."""

    code = "operation_expired"


class RevisionConflict(Refused):
    """The session is not at the expected revision."""

    code = "revision_conflict"

    def __init__(self, session: str, expected: int, actual: int, why: str = "") -> None:
        self.session, self.expected, self.actual = session, expected, actual
        at = why or f"is at revision {actual}, not {expected}"
        super().__init__(f"session {session!r} {at}: load it again")


class SessionBusy(Refused):
    """A run of the session is unfinished. As it is to be deleted: or an ``effect`` of one that has ended is unknown."""

    code = "session_busy"

    def __init__(self, session: str, run: str, state: str, effect: str | None = None) -> None:
        self.session, self.run = session, run
        what = f"the unfinished run {run} ({state}): wait for it or cancel it"
        if effect is not None:
            what = f"{effect} of run {run}, which may have happened: settle it (ondol effects resolve), or let it go"
            what += " (cancel=True, ondol sessions rm --cancel)"
        super().__init__(f"session {session!r} has {what}")


class QueueFull(Refused):
    """As many operations wait in the session as ``Limits(queue=...)`` allows."""

    code = "queue_full"

    def __init__(self, session: str, limit: int) -> None:
        self.session, self.limit = session, limit
        super().__init__(
            f"session {session!r} has a run that is unfinished and {limit} behind it, and Limits(queue={limit}) allows "
            "no more: wait until one ends, then send the same operation again"
        )


class TooLarge(Refused):
    """The attachments are more, or larger, than ``Limits(attachments=..., attachment_bytes=...)`` allows."""

    code = "too_large"


class AlreadyDecided(Refused):
    """The ask was decided before, and differently."""

    code = "already_decided"


class AskClosed(Refused):
    """The ask was closed because its run has ended."""

    code = "ask_closed"


class PolicyDenied(Refused):
    """The policy denies a call that somebody wanted to approve. The ask is still open."""

    code = "policy_denied"


class ReplayUnsafe(Refused):
    """The run cannot be replayed as asked. ``verdict`` (a ``ReplayVerdict``) says why, effect by effect."""

    code = "replay_unsafe"

    def __init__(self, message: str, verdict: Any) -> None:
        self.verdict = verdict
        super().__init__(message)


class CannotGoOn(Refused):
    """The run is in no state to be resumed."""

    code = "cannot_go_on"


class ReadOnly(Refused):
    """The run was imported: it can be looked at, and nothing else."""

    code = "read_only"

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"run {run} was imported and can only be looked at: do it in the store where it ran")


class FileDamaged(Refused):
    """The file of an exported run is not as it was written. The message names the place."""

    code = "file_damaged"


class NotOpen(Refused):
    """The runtime is not open."""

    code = "not_open"


class RunEnded(OndolError):
    """A run ended without completing. ``run`` is its id, ``error`` the stored error (code, message)."""

    code = "run_ended"

    def __init__(self, message: str, *, run: str, error: dict[str, Any] | None = None, retryable: bool = False) -> None:
        self.run, self.error, self.retryable = run, error or {}, retryable
        super().__init__(message)


class RunFailed(RunEnded):
    """The run failed. With ``retryable`` the same operation id goes on where it stopped."""

    code = "run_failed"

    @property
    def explained_by(self) -> str:
        code = str(self.error.get("code"))
        return code if code in CODES else self.code


class RunCancelled(RunEnded):
    """The run was cancelled, or interrupted by another message."""

    code = "run_cancelled"

    @property
    def explained_by(self) -> str:
        return "interrupted" if self.error.get("code") == "interrupted" else self.code


class RunExpired(RunEnded):
    """A question of the run was not answered in time."""

    code = "run_expired"


class RunWaiting(OndolError):
    """The run waits for a person. ``asks`` holds the ids of what is open."""

    code = "run_waiting"

    def __init__(self, message: str, *, run: str, asks: Sequence[str]) -> None:
        self.run, self.asks = run, tuple(asks)
        super().__init__(message)


class Unreachable(OndolError):
    """No answer came from the server. What was sent may have come in: send the same operation id again."""

    code = "unreachable"


class CallFailed(OndolError):
    """A call that a tool of steps made did not succeed; ``str()`` says why, as a model would be told.

    ``tool`` is its name. ``state`` is how it ended: ``failed`` (nothing happened, or repeating is of no use),
    ``denied`` (a person said no) or ``expired`` (nobody said yes in time). The same is raised again whenever the tool
    of steps is entered again.
    """

    code = "call_failed"

    def __init__(self, message: str, *, tool: str, state: str) -> None:
        self.tool, self.state = tool, state
        super().__init__(message)


class ModelError(OndolError):
    """A model call failed.

    ``kind`` is one of ``ModelErrorKind``; ``retry_after`` is in seconds, as the provider asked, and None where that is
    no number of seconds; ``sent`` is False only when the request certainly never left this machine. ``input_tokens``
    and ``output_tokens`` are what the failed attempt used, where the provider said so.
    """

    code = "model_error"

    def __init__(
        self, kind: ModelErrorKind, message: str, *, retry_after: float | None = None, sent: bool = True,
        input_tokens: int | None = None, output_tokens: int | None = None,
    ) -> None:  # fmt: skip
        self.kind: ModelErrorKind = kind
        self.code = model_code(kind)
        self.retry_after, self.sent = number_of_seconds(retry_after), sent
        self.input_tokens, self.output_tokens = number_of_tokens(input_tokens), number_of_tokens(output_tokens)
        super().__init__(message)


_MOST_TOKENS = 10**12  # of one call; the sum of a run has to fit into 63 bits


def number_of_tokens(counted: Any) -> int | None:
    """What is no number of tokens was not counted. (An error is no place to raise another.)"""
    return counted if isinstance(counted, int) and 0 <= counted <= _MOST_TOKENS else None


def number_of_seconds(said: Any) -> float | None:
    """A wait that is no finite number of seconds was not asked for."""
    is_number = isinstance(said, int | float) and not isinstance(said, bool)
    return said if is_number and 0 <= said < math.inf else None


class StoreError(OndolError):
    """The store could not do it."""

    code = "store_error"


class StoreFull(StoreError):
    """No space is left. The change is absent; reads go on, and writes work again when space returns."""

    code = "store_full"


class StoreBusy(StoreError):
    """Another process kept the store locked for too long. The change is absent."""

    code = "store_busy"


class StoreCorrupt(StoreError):
    """What is stored does not match its checksum, or the file is damaged."""

    code = "store_corrupt"


class StoreTooNew(StoreError):
    """The store, or a run in it, was written by a newer version."""

    code = "store_too_new"


class StoreFault(StoreError):
    """A statement failed for a reason that asking again does not cure. The change is absent."""

    code = "store_fault"


class OutcomeUnknown(StoreError):
    """The change may or may not be durable. Send the same operation id again."""

    code = "outcome_unknown"


class Fenced(OndolError):
    """The holder of a run may not do this now. Never seen by users."""

    code = "fenced"


class ClaimLost(Fenced):
    """The run is not held with this fence any more."""

    code = "claim_lost"


class CancelRequested(Fenced):
    """A cancel was accepted before this step."""

    code = "cancel_requested"


class SignalsUnread(Fenced):
    """Signals came in that the holder has not read."""

    code = "signals_unread"


class Suspended(BaseException):
    """Unwinds the body of a tool of steps that waits for a person. Let it pass: the body is entered again later."""


class NotDone(Exception):
    """Raised by a tool to say that nothing happened; the model is told why."""
