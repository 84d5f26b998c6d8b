"""Where is the database, how is it connected to, and what does an error of the server mean?"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg import conninfo
from psycopg.abc import PQGen
from psycopg.waiting import Ready

from ondol.errors import (
    InvalidInput,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFault,
    StoreFull,
)
from ondol.stores.jobs import unfit
from ondol.stores.postgres_wire import Refused

SMALLEST_POOL = 5
_OWN = ("pool_size", "pool_timeout", "lease", "schema")
_SCHEMA = re.compile("(?!pg_)[a-z_][a-z0-9_]{0,62}")
_UNKNOWN_PARAMETER = re.compile(r'invalid URI query parameter: "\w+"')
_QUOTED = re.compile('"[^"]*"')
_ENCODE = "write what is special in a password as %2F (/), %40 (@), %25 (%)"
OLDEST_SERVER = 140000  # the oldest version of PostgreSQL that is tried
PATIENCE = 10.0  # seconds that a server may be away, as in a restart or a failover, before callers are told
PAUSE = 0.05  # seconds between two attempts to connect
_IDLE_IN_TRANSACTION = 5.0  # seconds after which the server ends a transaction whose process has stopped
_CONNECTING = {
    "connect_timeout": "10", "application_name": "ondol",
    "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3", "tcp_user_timeout": "30000",
}  # fmt: skip

UNIQUE_VIOLATION = "23505"
#: States after which the same transaction may succeed: a race with another one, which has committed by now.
AGAIN = frozenset({UNIQUE_VIOLATION, "40001", "40P01"})
LOCK_TIMEOUT = "55P03"
_ENDED = ("08", "57P", "25P03")  # the connection was, by the network, by the server or by its operator


RV = TypeVar("RV")


class _Connection(psycopg.Connection[Any]):
    """psycopg itself waits for an answer for ever, as long as the connection stands: a proxy may hold it open."""

    patience: float | None = None

    def wait(self, gen: PQGen[RV], *how: Any, **more: Any) -> RV:
        return super().wait(gen if self.patience is None else _answered(gen, self.patience), *how, **more)


def _answered(gen: PQGen[RV], patience: float) -> PQGen[RV]:
    """The same, which is told every now and then that nothing came, and fails when that was so for too long."""
    until = time.monotonic() + patience
    try:
        waits_for = next(gen)
        while True:
            ready = yield waits_for
            if ready == Ready.NONE and time.monotonic() >= until:
                raise psycopg.OperationalError(f"no word from the server for {patience:g} s")
            waits_for = gen.send(ready)
    except StopIteration as done:
        answer: RV = done.value
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A database, and how much of it one process uses.

    ``pool_size``: connections, at least 5: one commits in groups, one commits alone what met another process, one
    listens and renews the lease, one is kept for reading back a lost COMMIT, the others read. ``pool_timeout``: seconds
    that a transaction waits until one of them is free. ``lease``: seconds after which a process that does not say
    anything is taken for dead. ``schema``: the namespace of all tables in that database.
    """

    conninfo: str = field(repr=False)
    name: str  # as it is shown, without a password
    pool_size: int = SMALLEST_POOL
    pool_timeout: float = 30.0
    lease: float = 15.0
    schema: str = "ondol"

    @staticmethod
    def of(url: str) -> Place:
        """The place that ``postgresql://…`` names. The parameters that a place has are ours, all others are
        libpq's. Raises InvalidInput."""
        address, _, query = url.partition("?")
        given = [(unquote(pair.partition("=")[0]), pair) for pair in query.split("&") if pair]
        own = {name: unquote(pair.partition("=")[2]) for name, pair in given if name in _OWN}
        rest = "&".join(pair for name, pair in given if name not in own)  # as it stands: a + is no space to libpq
        authority, _, path = address.partition("//")[2].partition("/")
        if authority.count("@") > 1 or "@" in path:  # else part of it is taken for the host, or the database, and shown
            raise InvalidInput(f"this names no store: an @ stands behind the host: {_ENCODE}")
        try:
            parsed = conninfo.conninfo_to_dict(f"{address}?{rest}" if rest else address)
        except psycopg.Error as error:
            said = str(error).strip()
            if not _UNKNOWN_PARAMETER.fullmatch(said):  # what it quotes may be a password
                said = f"{_QUOTED.sub('…', said)} ({_ENCODE})"
            raise InvalidInput(f"this names no store: {said}: say postgresql://USER@HOST/DATABASE") from None
        hosts, ports = (str(parsed.get(name, "")).split(",") for name in ("host", "port"))
        ports = ports * len(hosts) if len(ports) == 1 else ports
        where = ",".join(f"{h or 'localhost'}{p and ':'}{p}" for h, p in zip(hosts, ports, strict=False))
        schema = own.get("schema", "ondol")
        if not _SCHEMA.fullmatch(schema):
            allowed = "small letters, digits and _, not pg_…"
            raise InvalidInput(f"schema={schema!r} is not possible: say a name of {allowed}")
        several = {"target_session_attrs": "read-write"} if "," in str(parsed.get("host", "")) else {}
        wanted = {name: str(value) for name, value in parsed.items() if value is not None}
        made = conninfo.make_conninfo(**{**_CONNECTING, **several, **wanted, "client_encoding": "UTF8"})
        return Place(
            conninfo=made,
            name=f"postgresql://{where}/{parsed.get('dbname', '')}",
            pool_size=int(_number(own, "pool_size", SMALLEST_POOL, SMALLEST_POOL)),
            pool_timeout=_number(own, "pool_timeout", 30.0, 0.001),
            lease=_number(own, "lease", 15.0, 0.5),
            schema=schema,
        )

    def connect(self, lock_timeout: float = 0, patience: float | None = None) -> psycopg.Connection[Any]:
        """A new connection to the primary, set up for us. ``lock_timeout`` in seconds, 0: as long as it takes.

        With ``patience`` it is taken for lost when a statement has no answer after so many seconds.
        Raises StoreBusy where it cannot be reached now, StoreError where it never can be.
        """
        try:
            connection = _Connection.connect(self.conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise self._unreachable(str(error)) from error
        try:
            connection.patience = PATIENCE
            settings = (f"{lock_timeout * 1000:.0f}ms", f"{_IDLE_IN_TRANSACTION * 1000:.0f}ms", self.schema)
            was_taken, *_ = connection.execute(_SETTINGS, settings).fetchone() or ("",)
            version, standby, read_only, encoding, taken = connection.execute(_KIND).fetchone() or (0,) * 5
            if was_taken or not taken:
                raise StoreError(
                    f"{self.name} is reached through a pooler that shares connections out by transaction: let it pool "
                    "by session (pgbouncer: pool_mode = session), or name the server itself"
                )
            if version < OLDEST_SERVER:
                raise StoreError(f"{self.name} is too old: PostgreSQL {OLDEST_SERVER // 10000} or newer is needed")
            if encoding not in _ENCODINGS:  # found out before anything is accepted that could not be kept
                raise StoreError(
                    f"{self.name} has the encoding {encoding}, which has no room for most of what people write: make a "
                    "database with ENCODING 'UTF8'"
                )
            if standby:  # perhaps it is about to take over
                raise StoreBusy(f"{self.name} is a standby: {_NAME}, or promote it")
            if read_only:
                raise StoreError(f"{self.name} is read-only: {_NAME}, or unset default_transaction_read_only")
        except BaseException as error:  # it travels on, and the connection must not stay open
            connection.close()
            if isinstance(error, psycopg.Error):
                raise self.told(error) from error
            raise
        connection.patience = patience
        return connection

    def _unreachable(self, said: str) -> StoreError:
        said = " ".join(said.split())
        if "does not exist" in said and "database" in said:
            return StoreError(f"{self.name}: there is no such database ({said}): make it (createdb), or name another")
        if "too many" in said or "connection slots" in said:  # some of these name a role
            return StoreBusy(f"{self.name} has no connection left ({said}): raise max_connections, or use fewer")
        if any(words in said for words in _NOT_LET_IN):
            return StoreError(f"{self.name} does not let this user in ({said}): look at user and password")
        return StoreBusy(f"{self.name} cannot be reached ({said}): is it running, and is the address right?")

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection for what is done once. Raises as ``connect`` does, and what ``told`` gives."""
        with self.connect() as connection:
            try:
                yield connection
            except psycopg.Error as error:
                raise self.told(error) from error

    def told(self, error: psycopg.Error) -> StoreError | InvalidInput:
        """What the caller is told of an error on a connection that stood."""
        said = error.diag.message_primary or " ".join(str(error).split())
        if error.sqlstate is None or error.sqlstate.startswith(_ENDED):
            return StoreBusy(f"the connection to {self.name} was lost ({said}): try again")
        return self._translated(error.sqlstate, said)

    def translated(self, refused: Refused) -> StoreError | InvalidInput:
        """What the caller is told of a refusal by the server. The change is absent."""
        new = self._translated(refused.sqlstate, refused.message)
        new.__cause__ = refused
        return new

    def _translated(self, state: str, message: str) -> StoreError | InvalidInput:
        said = f"{message}, {state}"
        if state in ("53100", "53400"):
            return StoreFull(f"no space left for {self.name} ({said}): free some, then try again")
        if state == LOCK_TIMEOUT:
            return StoreBusy(f"another process keeps a row of {self.name} locked for too long ({said}): try again")
        if state == UNIQUE_VIOLATION:  # no race, or it would have passed by now
            return StoreFault(f"{self.name} holds what this would write once more ({said})")
        if state in AGAIN or state.startswith("53") or state == "57014":
            return StoreBusy(f"{self.name} is too busy ({said}): try again")
        if state.startswith("XX00") and state != "XX000":
            return StoreCorrupt(f"{self.name} is damaged ({said}): restore a backup")
        if state in ("22021", "22P05", "22003", "42883"):  # (the last: a number where there are texts)
            return unfit(said)
        if state == "25006":
            return StoreError(f"{self.name} cannot be written ({said}): name the primary")
        if state == "42501":
            return StoreError(f"this user may not do that in {self.name} ({said}): grant it, or use the owner's name")
        if state in ("42P01", "42703"):
            return StoreError(f"{self.name} has not the tables of this version ({said}): migrate it (ondol db migrate)")
        if state.startswith("58"):
            return StoreError(f"reading or writing {self.name} failed ({said}): look at the disk, then try again")
        return StoreFault(f"{self.name}: {said}")


class Connector:
    """Connects the threads of one process. A server that is away is waited for, by all who come meanwhile at once."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._away = self._last = -PATIENCE  # when it was first found away, and last; of the monotonic clock

    def connect(self, lock_timeout: float = 0) -> psycopg.Connection[Any]:
        """See ``Place.connect``. Raises StoreBusy when the server has been away for too long."""
        while True:
            began = time.monotonic()
            try:
                return self.place.connect(lock_timeout)
            except StoreBusy:
                if began - self._last > PATIENCE:  # nobody has looked for a while: this is another time
                    self._away = began
                self._last = time.monotonic()
                if self._last - self._away > PATIENCE:
                    raise
            time.sleep(PAUSE)


_NOT_LET_IN = ("authentication", "no password", "role", "pg_hba", "permission denied")
_NAME = "name the primary, or all hosts (HOST1,HOST2)"
#: ``ondol.taken`` is there before it is set, or not after that, where a pooler gives a connection to several.
_SETTINGS = """
SELECT current_setting('ondol.taken', true), set_config('ondol.taken', 'yes', false),
  set_config('lock_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false),
  set_config('statement_timeout', '0', false), set_config('jit', 'off', false),
  set_config('search_path', %s, false), set_config('enable_seqscan', 'off', false),
  set_config('enable_bitmapscan', 'off', false),
  set_config('default_transaction_isolation', 'read committed', false), set_config('idle_session_timeout', '0', false),
  CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL  -- not in every version
    THEN set_config('transaction_timeout', '0', false) END,
  set_config('synchronous_commit', CASE now.now WHEN 'off' THEN 'on' ELSE now.now END, false)
FROM current_setting('synchronous_commit') AS now (now)
"""
_KIND = """
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('transaction_read_only')::bool,
  current_setting('server_encoding'), current_setting('ondol.taken', true)
"""
_ENCODINGS = ("UTF8", "SQL_ASCII")  # that one keeps whatever bytes it is given


def _number(given: dict[str, str], name: str, default: float, least: float) -> float:
    try:
        number = float(given.get(name, default))
    except ValueError:
        number = least - 1
    if not least <= number < math.inf:
        raise InvalidInput(f"{name}={given[name]!r} is not possible: say a number from {least:g} on")
    return number
