"""How do statements travel to PostgreSQL, and rows back?

Many statements in one round trip: libpq's pipeline mode, with each statement prepared once a connection. Directly on
libpq (``psycopg.pq``), because a cursor for each of the thousands of small statements a second costs more than the
statement itself.
"""

from __future__ import annotations

import hashlib
import select
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from ondol.errors import StoreFault
from ondol.stores.postgres_statements import DECODERS, TEXTS, encoded
from ondol.transactions import Row, Statement

Prepared: TypeAlias = tuple[bytes, tuple[int, ...]]  # the text of a statement, and the types of its parameters

PATIENCE = 60.0  # seconds without a word of the server after which the connection is taken for lost
_STILL_INSIDE = b"LOCK TABLE writers IN ACCESS SHARE MODE"  # any table will do, and any lock
_LONGEST_NAME = 64  # bytes of a name in PostgreSQL, with the one that ends it


class ConnectionLost(Exception):
    """The connection is gone; what of the transaction happened is not known here."""


class Refused(Exception):
    """The server refused a statement. ``place`` is its place among those of the round trip."""

    def __init__(self, place: int, sqlstate: str, message: str) -> None:
        self.place, self.sqlstate, self.message = place, sqlstate, message
        super().__init__(f"{message} ({sqlstate})")


class Wire:
    """One connection, used by one thread: ``send`` several times, then ``receive`` once for the rows of all.

    What is sent lies here until ``begin`` or ``receive``.
    """

    def __init__(self, connection: psycopg.Connection[Any], patience: float = PATIENCE) -> None:
        self._connection, self._pg, self._patience = connection, connection.pgconn, patience
        self._prepared: dict[Prepared, bytes] = {}
        self._decoders: dict[str, list[Callable[[bytes], Any]]] = {}
        self._sent: list[tuple[str | None, Prepared | None]] = []  # whose rows are asked for; what it prepares
        self.changed: list[bool] = []  # whether each statement of the last round trip changed rows
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)

    def send(self, batch: Iterable[Statement]) -> int:
        """Put statements on their way; returns how many. Raises InvalidInput, and then none of them is."""
        ready = []
        for name, given in batch:
            text = TEXTS[name]
            parameters = [encoded(given[p]) for p in text.parameters]
            ready.append((name, text.sql, parameters))
        try:
            for name, sql, parameters in ready:
                known = self._known(name, sql, tuple([p[1] for p in parameters]))
                self._pg.send_query_prepared(known, [p[0] for p in parameters], [p[2] for p in parameters], 1)
                self._sent.append((name, None))
        except psycopg.Error as error:
            raise ConnectionLost(str(error)) from error
        return len(ready)

    def begin(self) -> None:
        """Let the server begin with what was sent of a transaction, while more of it is made ready here.

        That part ends in a Sync: a server that waits in the middle of a part waits for ever, and keeps its locks, where
        this process is stopped. Between two of them the transaction is idle, and the server ends it. The next part
        begins with a LOCK, which is refused outside of a transaction, or in one that has failed: nothing behind it in
        that part is run then, whatever became of BEGIN.
        """
        try:
            self._pg.pipeline_sync()
            self._sent.append((None, None))
            self._pg.send_query_prepared(self._known(None, _STILL_INSIDE, ()), None)
            self._sent.append((None, None))
        except psycopg.Error as error:
            raise ConnectionLost(str(error)) from error

    def control(self, sql: str) -> None:
        """Put BEGIN, COMMIT or ROLLBACK on its way."""
        try:
            self._pg.send_query_prepared(self._known("", sql.encode(), ()), None)
        except psycopg.Error as error:
            raise ConnectionLost(str(error)) from error
        self._sent.append(("", None))

    def _known(self, name: str | None, sql: bytes, types: tuple[int, ...]) -> bytes:
        """What the server calls the statement, which goes there first if this connection has not used it yet."""
        known = self._prepared.get((sql, types))
        if known is None:
            known = self._prepared[sql, types] = _name_of(sql, types)
            self._pg.send_prepare(known, sql, types)
            self._sent.append((name, (sql, types)))
        return known

    def receive(self) -> list[list[Row]]:
        """The rows of each statement since the last time, in one round trip.

        Raises:
            Refused: by the server. What stood behind that statement was not run.
            ConnectionLost
        """
        sent, self._sent = self._sent, []
        rows: list[list[Row]] = []
        changed: list[bool] = []
        refused: Refused | None = None
        try:
            self._pg.pipeline_sync()
            self._flush()
            for name, prepares in sent:
                result = self._result()
                if result.status in (ExecStatus.PIPELINE_ABORTED, ExecStatus.FATAL_ERROR):
                    if prepares is not None:
                        del self._prepared[prepares]
                    if refused is None:
                        refused = _refused(result, len(rows))
                elif prepares is None and name is not None:
                    rows.append(self._rows(name, result) if name else [(result.command_status or b"",)])
                    changed.append(_changed(result))
            while self._result().status != ExecStatus.PIPELINE_SYNC:
                pass
        except psycopg.Error as error:
            raise ConnectionLost(str(error)) from error
        self.changed = changed
        if refused is not None:
            raise refused
        return rows

    def _flush(self) -> None:
        while self._pg.flush():
            self._wait(select.POLLIN | select.POLLOUT)
            self._pg.consume_input()

    def _result(self) -> PGresult:
        """The next result of a statement: each is followed by None."""
        while True:
            while self._pg.is_busy():
                self._wait(select.POLLIN)
                self._pg.consume_input()
            result = self._pg.get_result()
            if result is None:
                if self._pg.status != psycopg.pq.ConnStatus.OK:
                    raise ConnectionLost(self._pg.get_error_message())
                continue
            if result.status == ExecStatus.FATAL_ERROR and self._pg.status != psycopg.pq.ConnStatus.OK:
                raise ConnectionLost(result.get_error_message())
            return result

    def _wait(self, event: int) -> None:
        self._poll.modify(self._pg.socket, event)
        left = self._patience
        until = time.monotonic() + left
        while not self._poll.poll(left * 1000):
            left = until - time.monotonic()
            if left <= 0:  # (less than nothing would be for ever)
                raise ConnectionLost(f"no word from the server for {self._patience:g} s")

    def _rows(self, name: str, result: PGresult) -> list[Row]:
        width = result.nfields
        if not width:
            return []
        decoders = self._decoders.get(name)
        if decoders is None:
            decoders = self._decoders[name] = [_decoder(name, result.ftype(column)) for column in range(width)]
        get = result.get_value
        return [
            tuple([
                None if (value := get(row, column)) is None else decode(value)
                for column, decode in enumerate(decoders)
            ])
            for row in range(result.ntuples)
        ]  # fmt: skip

    def close(self) -> None:
        self._connection.close()


def _decoder(name: str, kind: int) -> Callable[[bytes], Any]:
    decoder: Callable[[bytes], Any] | None = DECODERS.get(kind)
    if decoder is None:
        raise StoreFault(f"statement {name} gives a value of type {kind}, which is not known here")
    return decoder


def _name_of(sql: bytes, types: tuple[int, ...]) -> bytes:
    """By what it says: should a connection be shared by others, none of them runs another statement under this name.
    COMMIT and the like are called so."""
    if not types and len(sql) < _LONGEST_NAME:
        return sql
    return hashlib.sha256(sql + repr(types).encode()).hexdigest()[:32].encode()


def _refused(result: PGresult, place: int) -> Refused:
    state = result.error_field(DiagnosticField.SQLSTATE) or b""
    message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b""
    return Refused(place, state.decode(), message.decode(errors="replace"))


def _changed(result: PGresult) -> bool:
    """Whether rows were inserted, updated or deleted."""
    word = result.command_status or b""
    return word.startswith((b"INSERT", b"UPDATE", b"DELETE")) and not word.endswith(b" 0")
