"""Which exceptions does Ondol raise, and what should the caller do about each?

    OndolError
    ├── Refused                 the request was not taken: change it, then send it again
    │   ├── InvalidInput        a value cannot be used as it is
    │   ├── NotFound            there is no such thing (or it belongs to somebody else)
    │   ├── OperationMismatch   the operation id was used before with other content
    │   ├── OperationExpired    the operation is done and its reply is no longer kept
    │   ├── RevisionConflict    the session moved on: load it again
    │   ├── SessionBusy         a run of the session is unfinished: wait for it or cancel it
    │   ├── AlreadyDecided      somebody else decided this ask first
    │   ├── AskClosed           the run of this ask has ended
    │   └── NotOpen             the runtime was used outside ``async with``
    ├── RunEnded                the run did not complete
    │   ├── RunFailed           (``retryable``: send the same operation id to go on)
    │   ├── RunCancelled
    │   └── RunExpired
    ├── RunWaiting              the run waits for a person: decide its asks
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

``NotDone`` is not in the tree: tools raise it to say that nothing happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

ModelErrorKind = Literal[
    "rate_limited", "quota", "overloaded", "unavailable", "server", "context_overflow",
    "auth", "rejected", "content_filter", "timeout", "connection",
]  # fmt: skip


class OndolError(Exception):
    """Base of all errors. ``code`` is stable, ``str()`` names the thing and the next move."""

    code: ClassVar[str] = "error"


class Refused(OndolError):
    """The request was not taken and nothing changed."""

    code = "refused"


class InvalidInput(Refused):
    """A value cannot be used as it is."""

    code = "invalid_input"


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
    """A run of the session is unfinished."""

    code = "session_busy"

    def __init__(self, session: str, run: str, state: str) -> None:
        self.session, self.run = session, run
        super().__init__(f"session {session!r} has the unfinished run {run} ({state}): wait for it or cancel it")


class AlreadyDecided(Refused):
    """The ask was decided before, and differently."""

    code = "already_decided"


class AskClosed(Refused):
    """The ask was closed because its run has ended."""

    code = "ask_closed"


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


class RunCancelled(RunEnded):
    """The run was cancelled."""

    code = "run_cancelled"


class RunExpired(RunEnded):
    """A question of the run was not answered in time."""

    code = "run_expired"


class RunWaiting(OndolError):
    """The run waits for a person. ``asks`` holds the ids of what is open."""

    code = "run_waiting"

    def __init__(self, message: str, *, run: str, asks: Sequence[str]) -> None:
        self.run, self.asks = run, tuple(asks)
        super().__init__(message)


class ModelError(OndolError):
    """A model call failed.

    ``kind`` is one of ``ModelErrorKind``; ``retry_after`` is in seconds, as the provider asked;
    ``sent`` is False only when the request certainly never left this machine. ``input_tokens`` and ``output_tokens``
    are what the failed attempt used, where the provider said so.
    """

    code = "model_error"

    def __init__(
        self, kind: ModelErrorKind, message: str, *, retry_after: float | None = None, sent: bool = True,
        input_tokens: int | None = None, output_tokens: int | None = None,
    ) -> None:  # fmt: skip
        self.kind: ModelErrorKind = kind
        self.retry_after, self.sent = retry_after, sent
        self.input_tokens, self.output_tokens = input_tokens, output_tokens
        super().__init__(message)


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


class NotDone(Exception):
    """Raised by a tool to say that nothing happened; the model is told why."""
