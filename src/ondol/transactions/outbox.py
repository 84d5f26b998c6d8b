"""What is written so that somebody hears how a run ended, or that it waits, or that a turn is not shown any more?

The message is written with what it tells (T6, T8, T9, a compaction), so neither is there without the other. It holds
no content, and its id is that of the run's event. It is told at least once; telling it changes nothing of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from ondol.errors import NotFound
from ondol.records import SessionRow
from ondol.transactions.pieces import act_row
from ondol.transactions.remembering import NewFact, Scope, remember
from ondol.transactions.statements import Statement, Tx, with_conditions

DROPPED = "turn.dropped"  # the kind of a message that only memory hears
OutboxState: TypeAlias = Literal["pending", "delivered", "dead"]
ATTEMPTS = 8  # after which a message is dead
_FIRST, LONGEST_PAUSE = 2_000_000, 3_600_000_000  # microseconds between attempts: four times as long after each
_CUT_OFF = "its process ended while it was told"


class OutboxRow(NamedTuple):
    id: str
    run: str
    kind: str
    state: str
    attempts: int
    due: int
    error: str | None
    at: int


def told(tenant: str, run: str, seq: int, kind: str, at: int) -> Statement:
    """The message about the run's entry ``seq``."""
    return "outbox.put", {"tenant": tenant, "id": f"{run}/{seq}", "run": run, "kind": kind, "at": at}


class Dropped(NamedTuple):
    """What models are not shown any more of the turns that ``agent`` had: those that begin from the place ``since`` on
    and before ``until``."""

    agent: str
    since: int
    until: int


def offer(tenant: str, session: str, at: int, dropped: Dropped) -> Tx[None]:
    """A message about each of these turns that memory has not heard of: it learns from it now, or never.

    Those of the sessions that this one goes on from are among them.
    """
    part: str | None = session
    agent, since, until = dropped.agent, dropped.since - 1, dropped.until - 1  # its request is the first of a turn
    while part is not None and since < until:
        of_part = {"tenant": tenant, "session": part}
        offered = "outbox.offer", of_part | {"at": at, "agent": agent, "since": since, "until": until}
        _, rows = yield [offered, ("session.get", of_part)]
        row = SessionRow(*rows[0])
        part, until = row.parent, min(until, row.parent_until or 0)


def due_messages(tenant: str, limit: int, after: tuple[int, str] = (-1, "")) -> Tx[list[OutboxRow]]:
    """What waits to be told, the next one first; it may not be due yet. ``after``: due and id of the last one seen."""
    (rows,) = yield [("outbox.due", {"tenant": tenant, "after": after[0], "last": after[1], "limit": limit})]
    return [OutboxRow(*row) for row in rows]


def list_outbox(tenant: str, state: str | None, limit: int, after: str | None = None) -> Tx[list[OutboxRow]]:
    """The newest first, behind the message ``after``. Raises NotFound."""
    always = {"tenant": tenant, "limit": limit}
    states = get_args(OutboxState) if state is None else [state]
    pages = yield [with_conditions("outbox.list", always | {"state": s}, {"after": after}) for s in states]
    found = [OutboxRow(*row) for page in pages for row in page]
    if not found and after is not None:
        yield from get_message(tenant, after)
    return sorted(found, key=lambda row: (row.at, row.id), reverse=True)[:limit]


def take_message(tenant: str, message: OutboxRow, until: int) -> Tx[OutboxRow | None]:
    """Nobody else tells it before ``until``. None when another process was first."""
    taking = {"tenant": tenant, "id": message.id, "before": message.attempts, "due": message.due, "until": until}
    (taken,) = yield [("outbox.take", taking)]
    return message._replace(due=until) if taken else None


def count_attempt(tenant: str, message: OutboxRow, at: int, least: int) -> Tx[OutboxRow | None]:
    """An attempt that is counted before it is made, and nobody makes another one for so many microseconds at least: the
    process may die of it. None when those before it were the last ones, or another process was first."""
    if message.attempts >= ATTEMPTS:
        yield [_set(tenant, message, "dead", message.attempts, at, _CUT_OFF)]
        return None
    attempts = message.attempts + 1
    due = at + max(_pause(attempts), least)
    (moved,) = yield [_set(tenant, message, "pending", attempts, due, _CUT_OFF)]
    return message._replace(attempts=attempts, due=due, error=_CUT_OFF) if moved else None


def delivered(
    tenant: str, message: OutboxRow, at: int, *, counted: bool = False, taught: bool = False,
    scope: Scope | None = None, facts: Sequence[NewFact] = (), expires_at: int | None = None,
) -> Tx[bool]:  # fmt: skip
    """It was told; with it, what was learned from the turn is remembered (``taught``: whether memory heard of it at
    all), unless the turn was erased meanwhile. False when another process was first."""
    attempts = message.attempts if counted else message.attempts + 1
    (moved,) = yield [_set(tenant, message, "delivered", attempts, message.due, None, taught)]
    if moved and moved[0][0] and scope is not None:
        for fact in facts:
            yield from remember(scope, fact, at, run=message.run, expires_at=expires_at)
    return bool(moved)


def not_delivered(tenant: str, message: OutboxRow, error: str, at: int, *, counted: bool = False) -> Tx[None]:
    """It is told again later, or given up: then it is dead, and stays to be seen."""
    attempts = message.attempts if counted else message.attempts + 1
    state = "dead" if attempts >= ATTEMPTS else "pending"
    yield [_set(tenant, message, state, attempts, at + _pause(attempts), error)]


def _pause(attempts: int) -> int:
    """Microseconds until the next one."""
    pause: int = _FIRST * 4 ** (attempts - 1)
    return min(pause, LONGEST_PAUSE)


def get_message(tenant: str, id: str) -> Tx[OutboxRow]:
    """Raises NotFound."""
    (rows,) = yield [("outbox.get", {"tenant": tenant, "id": id})]
    if not rows:
        raise NotFound(f"there is no message {id!r} in the outbox: 'ondol outbox' lists them")
    return OutboxRow(*rows[0])


def deliver_again(tenant: str, id: str, at: int, *, by: str, door: str) -> Tx[OutboxRow]:
    """A person's word: tell it (again), now. Raises NotFound."""
    message = yield from get_message(tenant, id)
    yield [_set(tenant, message, "pending", 0, at, None), act_row(tenant, at, by, door, "outbox.retry", id)]
    return message._replace(state="pending", attempts=0, due=at, error=None)


def _set(
    tenant: str, message: OutboxRow, state: str, attempts: int, due: int, error: str | None, taught: bool = False
) -> Statement:
    was = {"was": message.state, "before": message.attempts, "taught": int(taught)}
    return "outbox.set", {
        "tenant": tenant, "id": message.id, "state": state, "attempts": attempts, "due": due, "error": error, **was,
    }  # fmt: skip
