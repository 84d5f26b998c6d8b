"""What does a process write to its log?

The journal itself, as it becomes durable: one record an entry, whose message is the entry's kind (``run.started``,
``effect.unknown``), from the logger ``ondol.journal``. What moves a run or waits for somebody is at INFO, the rest at
DEBUG. These records, and the warnings of other loggers about a run, have the attributes ``tenant``, ``run``,
``session`` and ``operation``; an entry has ``event_id`` (``<run>/<seq>``, as in the stream) and ``data`` as well.
Arguments, results and what was said stay in the store. Of a write whose caller was cancelled meanwhile there may be
no record: the log is a copy, the journal is what counts.

    handler = logging.StreamHandler()
    handler.setFormatter(ondol.logs.JsonFormatter())
    logging.getLogger("ondol").addHandler(handler)
    logging.getLogger("ondol").setLevel(logging.INFO)
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from ondol import ids, values
from ondol.records import RunRow, columns
from ondol.secret import logger
from ondol.store import Store
from ondol.transactions import STATEMENTS, Row, Statement, Tx

log = logger("ondol.journal")

FIELDS = ("tenant", "run", "session", "operation", "event_id", "data")  # of a record, beside the usual ones

_KNOWN_RUNS = 10_000  # whose session and operation are remembered; the holder of a run met it at its claim
_TOLD = ("run.", "ask.")  # kinds at INFO begin with it
_TOLD_TOO = frozenset({"step.failed", "effect.unknown", "effect.resolved"})
_RUN_ROWS = re.compile(rf"(SELECT|RETURNING) {re.escape(columns(RunRow))}(\s+FROM|\s*$)")  # and nothing beside them
_READS_RUNS = frozenset(name for name, text in STATEMENTS.items() if _RUN_ROWS.search(text))


def about(run: RunRow) -> dict[str, str]:
    """The fields of a record that says something about a run: ``log.warning(..., extra=about(run))``."""
    return {"tenant": run.tenant, "run": run.id, "session": run.session, "operation": run.operation_id}


# --- the journal, as a log --------------------------------------------------------------------------------------


def journaled(store: Store) -> Store:
    """The same store, which writes to the log what became durable."""
    return cast(Store, _Journaled(store))


class _Journaled:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: dict[str, RunRow] = {}

    def __getattr__(self, name: str) -> Any:  # all but ``write`` is the store's own
        return getattr(self._store, name)

    def write(self, tx: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        told = log.isEnabledFor(logging.INFO)
        return (self._write_and_tell if told else self._store.write)(tx, *args, **kwargs)

    async def _write_and_tell(self, tx: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        seen: list[tuple[Statement, list[Row]]] = []
        result = await self._store.write(_watched(tx, seen), *args, **kwargs)
        for (name, _), rows in seen:
            for row in rows if name in _READS_RUNS else ():
                self._remember(RunRow(*row))
        for (name, given), _ in seen:
            if name == "entry.insert":
                self._say(given)
        return result

    def _remember(self, run: RunRow) -> None:
        self._runs.pop(run.id, None)
        self._runs[run.id] = run
        if len(self._runs) > _KNOWN_RUNS:
            del self._runs[next(iter(self._runs))]

    def _say(self, written: Mapping[str, Any]) -> None:
        run = written["run"]
        known = self._runs.get(run)
        fields: dict[str, Any] = about(known) if known is not None else {"tenant": written["tenant"], "run": run}
        for n, (kind, data) in enumerate(values.loads(written["body"]), written["seq"]):
            level = logging.INFO if kind.startswith(_TOLD) or kind in _TOLD_TOO else logging.DEBUG
            if log.isEnabledFor(level):
                log.log(level, kind, extra=fields | {"event_id": f"{run}/{n}", "data": _shown(run, data)})


def _shown(run: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry says, without what was said in the run."""
    said = data.get("error") == "cancelled"  # then the message is a part of an answer
    shown = {n: v for n, v in data.items() if not isinstance(v, dict) and not (said and n == "message")}
    if (call := data.get("call")) is not None:
        shown["effect"] = ids.effect_id(run, call)
    return shown


def _watched(tx: Callable[..., Tx[Any]], seen: list[tuple[Statement, list[Row]]]) -> Callable[..., Tx[Any]]:
    """The same transaction. What it wrote and read stands in ``seen`` when it has run to its end for the last time."""

    @functools.wraps(tx)
    def watched(*args: Any, **kwargs: Any) -> Tx[Any]:
        seen.clear()
        steps = tx(*args, **kwargs)
        try:
            statements = next(steps)
            while True:
                rows = yield statements
                seen.extend(zip(statements, rows, strict=True))
                statements = steps.send(rows)
        except StopIteration as end:
            return end.value

    return watched


# --- formatters -------------------------------------------------------------------------------------------------


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``at`` (ISO 8601, UTC), ``level``, ``logger``, ``message``, the fields that the record
    has, and ``error`` with the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _at(record), "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage(),
        } | _fields(record)  # fmt: skip
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["error"] = record.exc_text
        return values.valid(json.dumps(line, ensure_ascii=False, default=str))


class TextFormatter(logging.Formatter):
    """One line: ``at level logger message name=value ...``; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        fields |= fields.pop("data", {})
        said = " ".join(f"{name}={_word(value)}" for name, value in fields.items())
        line = f"{_at(record)} {record.levelname.lower()} {record.name} {' '.join(record.getMessage().split())} {said}"
        if record.exc_info and record.exc_info[0] is not None:
            line += f"\n{self.formatException(record.exc_info)}"
        elif record.exc_text:
            line += f"\n{record.exc_text}"
        return values.valid(line.rstrip())


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _word(value: Any) -> str:
    """A value as it stands in a line: quoted where it would not be one word."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text, ensure_ascii=False)
