"""What is written together?

T0 to T9 and the other changes, each one function. A function yields *batches* of statements that do not need each
other's rows, receives their rows, checks them, and returns; a store runs it inside one transaction. A check that
fails raises, and then nothing of it was written. A function may be run again from the start, so it keeps no state.

Who may write: the holder of a run names its ``Claim`` and touches nothing unless ``run.hold`` finds exactly that
claim. Everybody else inserts a signal while a run is held, and acts at once where nobody holds it, raising the fence.
"""

from ondol.transactions.accepting import REPLY_KEPT, Accepted, IfBusy, NewRun, accept, resume
from ondol.transactions.deciding import Decided, decide
from ondol.transactions.driving import (
    AskedAgain,
    Claimed,
    Given,
    Outcome,
    PlannedCall,
    Questioning,
    answer,
    ask_again,
    claim,
    commit,
    late_outcome,
    note_down,
    open_question,
    outcome,
    plan_step,
    started,
    suspend,
)
from ondol.transactions.ending import (
    RETRYABLE_AFTER_RESTORE,
    Cancelled,
    End,
    Ended,
    cancel,
    end,
    expired,
    park_changed,
    park_restored,
    recover,
    release,
    unknown_question,
)
from ondol.transactions.housekeeping import drop_import, drop_unused_blobs, keep_blob, keep_import, set_meta
from ondol.transactions.pieces import Blocking, Claim, Steer, blocking, checked_body, run_row, steers_in
from ondol.transactions.replaying import NewFork, NewReplay, accept_fork, accept_replay, read_family
from ondol.transactions.sessions import delete_session, write_session
from ondol.transactions.signals import CLOCK, CONFIRMED, DECISIONS, Absorbed, Decision, absorb
from ondol.transactions.statements import STATEMENTS, Row, Statement, Tx, with_conditions
from ondol.transactions.tokens import keep_token, revoke_token

__all__ = [
    "CLOCK",
    "CONFIRMED",
    "DECISIONS",
    "REPLY_KEPT",
    "RETRYABLE_AFTER_RESTORE",
    "STATEMENTS",
    "Absorbed",
    "Accepted",
    "AskedAgain",
    "Blocking",
    "Cancelled",
    "Claim",
    "Claimed",
    "Decided",
    "Decision",
    "End",
    "Ended",
    "Given",
    "IfBusy",
    "NewFork",
    "NewReplay",
    "NewRun",
    "Outcome",
    "PlannedCall",
    "Questioning",
    "Row",
    "Statement",
    "Steer",
    "Tx",
    "absorb",
    "accept",
    "accept_fork",
    "accept_replay",
    "answer",
    "ask_again",
    "blocking",
    "cancel",
    "checked_body",
    "claim",
    "commit",
    "decide",
    "delete_session",
    "drop_import",
    "drop_unused_blobs",
    "end",
    "expired",
    "keep_blob",
    "keep_import",
    "keep_token",
    "late_outcome",
    "note_down",
    "open_question",
    "outcome",
    "park_changed",
    "park_restored",
    "plan_step",
    "read_family",
    "recover",
    "release",
    "resume",
    "revoke_token",
    "run_row",
    "set_meta",
    "started",
    "steers_in",
    "suspend",
    "unknown_question",
    "with_conditions",
    "write_session",
]  # fmt: skip
