"""What is the text of each statement in PostgreSQL, and which lock does it need first?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ondol.stores.jobs import unfit
from ondol.transactions import STATEMENTS, Foreseen, Statement
from ondol.transactions.statements import read_statements

#: The lock that a statement of a writing transaction takes first. Only what a transaction looks at before it decides
#: is here: a change by compare-and-swap (``run.hold``, ``ask.decide``) is its own lock.
LOCKS: Mapping[str, str] = {
    "session.get": "lock.session",
    "session.suspend": "lock.session",
    "session.commit": "lock.session",
    "run.get": "lock.run",
    "run.claim": "lock.run",
    "signal.unread": "lock.run",
    "ask.get": "lock.ask",
    "effect.late": "lock.run",
    "outbox.set": "lock.outbox",
    "meta.get": "lock.meta",
    "blob.chunks": "lock.blob",
    "blob.erase": "lock.blob",
}
_MAY_MAKE_IT = "session.get"  # it may find none: there is no row that could be locked
_FAMILY = "run.family"  # reaches over sessions: a lock of its own, beside the first one

_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
_COMMENT = re.compile(r"^--.*$", flags=re.M)
_NO_INDEX = re.compile(r"(?<=AND )\+")  # a hint to SQLite's planner

# PostgreSQL has no NUL in a text. It is written as an escape that nobody uses: a noncharacter of Unicode, and a digit.
_ESCAPE = "\ufdd0"
_ESCAPE_BYTES = _ESCAPE.encode()

INT8, TEXT, BYTEA = 20, 25, 17  # object ids of types


class Text(NamedTuple):
    """A statement as PostgreSQL takes it: ``$1`` for its first parameter, and the names of all, in order."""

    sql: bytes
    parameters: tuple[str, ...]


def _numbered(text: str) -> Text:
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}"

    sql = _PARAMETER.sub(number, _NO_INDEX.sub("", _COMMENT.sub("", text)).strip())
    return Text(sql.encode(), tuple(names))


OWN: Mapping[str, str] = read_statements(Path(__file__).with_name("postgres.sql"))

_FORESEEN = "foreseen"

#: The statements of batches that are ``Foreseen``: these fail unless the row that is foreseen is the one that comes.
_CHECKED = {
    f"{name} {_FORESEEN}": f"WITH it AS ({STATEMENTS[name]}) SELECT 1 / count(*) FROM it WHERE it::text = :{_FORESEEN}"
    for name in (
        "run.hold",
        "run.hold_answered",
        "run.hold_spent",
        "run.hold_writing",
        "run.steered",
        "effect.start",
        "effect.outcome",
        "session.commit",
    )
}
NOT_AS_FORESEEN = "22012"  # SQLSTATE of a division by zero

#: Every statement, by name: the shared ones, and those that only PostgreSQL has.
TEXTS: Mapping[str, Text] = {name: _numbered(text) for name, text in {**STATEMENTS, **OWN, **_CHECKED}.items()}


def checked(batch: Foreseen) -> list[Statement]:
    """The statements of the batch, each of which fails unless it gives the row that is foreseen."""
    return [
        (f"{name} {_FORESEEN}", {**given, _FORESEEN: f"({','.join(map(str, row))})"})
        for (name, given), row in zip(batch, batch.rows, strict=True)
    ]


def only_reads(statement: Statement) -> bool:
    return TEXTS[statement[0]].sql.startswith(b"SELECT")


def locks(batch: list[Statement], *, first: bool) -> list[Statement]:
    """The locks that a batch of a writing transaction needs. ``first``: it has taken none yet.

    One lock is enough: whatever else a transaction looks at belongs to the same session, or is changed only by
    compare-and-swap. What is there to be decided about a whole family is not.
    """
    needed: list[Statement] = []
    for name, given in batch:
        if first and not needed and (lock := LOCKS.get(name)) is not None:
            if name == _MAY_MAKE_IT:
                needed.append(("lock.new_session", given))
            needed.append((lock, given))
        elif name == _FAMILY:
            needed.append(("lock.family", given))
    return needed


def encoded(value: Any) -> tuple[bytes | None, int, int]:
    """A parameter as it is sent: its bytes, the id of its type, and whether they are binary.

    Raises InvalidInput for a value that cannot be stored.
    """
    match value:
        case None:
            return None, 0, 0
        case str():
            if "\0" in value or _ESCAPE in value:
                value = value.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
            try:
                return value.encode(), TEXT, 0
            except UnicodeEncodeError as error:
                raise unfit(str(error)) from error
        case int():  # a bool is one, as in SQLite
            if not -(1 << 63) <= value < 1 << 63:
                raise unfit(f"{value} has more than 64 bits")
            return b"%d" % value, INT8, 0
        case bytes():
            return value, BYTEA, 1
        case _:
            raise unfit(f"it is {type(value).__name__}")


def _text(value: bytes) -> str:
    text = value.decode()
    if _ESCAPE_BYTES in value:
        text = text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
    return text


def _integer(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


#: From a type's id to what makes a value of its binary form. A truth is 0 or 1, as in SQLite.
DECODERS: Mapping[int, Any] = {
    16: _integer, 20: _integer, 21: _integer, 23: _integer, 17: bytes, 25: _text, 1043: _text, 19: _text,
    2278: lambda value: None,  # void
}  # fmt: skip
