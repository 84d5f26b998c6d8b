"""What does the exit code say?"""

from __future__ import annotations

from ondol import errors
from ondol.errors import OndolError

OK = 0
FAILED = 1  # the run failed, was cancelled or expired; or something is wrong
USAGE = 2
AUTH = 3
NOT_FOUND = 4
CONFLICT = 5
WAITING = 6  # for a person
UNKNOWN = 7  # an effect may or may not have happened; wins over 6
INTERRUPTED = 130  # by Ctrl-C, as shells say it


class NoDatabase(errors.NotFound):
    """The file that the URL names is not there, or the database has no store."""

    code = "no_database"


def of_error(error: OndolError) -> int:
    match error:
        case errors.NotFound():
            return NOT_FOUND
        case (
            errors.OperationMismatch() | errors.OperationExpired() | errors.RevisionConflict() | errors.SessionBusy()
            | errors.AlreadyDecided() | errors.AskClosed() | errors.ReplayUnsafe() | errors.ReadOnly()
            | errors.CannotGoOn() | errors.QueueFull() | errors.PreconditionFailed()
        ):  # fmt: skip
            return CONFLICT
        case errors.InvalidInput() | errors.TooLarge() | errors.Malformed() | errors.UnsupportedMedia():
            return USAGE
        case errors.Unauthenticated() | errors.Forbidden() | errors.PolicyDenied():
            return AUTH
        case errors.RunWaiting():
            return WAITING
        case errors.ModelError(kind="auth"):
            return AUTH
        case _:
            return FAILED
