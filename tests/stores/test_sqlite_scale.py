"""No statement reads or sorts what grows with the store, or with the history of a session.

Each is run on a small store and on one that is ten times as large, and the work is what SQLite's machine did.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from ondol import queries
from ondol.records import AskRow, EffectRow, RunRow, columns
from ondol.stores import sqlite
from ondol.transactions import STATEMENTS

FEW, MANY = 150, 1500
LIMIT = 2  # rows of a list
SLACK = 1.25  # a tree that is ten times as large is a step deeper

#: ``:n`` is the size. Sessions ``s1`` to ``sN`` have a run each, of which some fail; ``long`` and ``quiet`` have N of
#: them, each a user of its own. What is rare there lies as far away as it can: the failures and effects are old, the
#: asks (which are listed from the oldest on) new. In ``quiet`` there is little else. Most of the sessions were deleted.
FILL = """
WITH RECURSIVE k (k) AS (VALUES (1) UNION ALL SELECT k + 1 FROM k WHERE k < :n)
INSERT INTO sessions (tenant, id, revision, state, next_message, next_place, created_at, updated_at, deleted_at)
SELECT :tenant, 's' || k, 1, '{}', 4, 1, k, k, iif(k > 1, k, NULL) FROM k;

INSERT INTO sessions (tenant, id, revision, state, next_message, next_place, created_at, updated_at)
SELECT :tenant, id, 1, '{}', 4 * :n, :n + 9, 0, 0
FROM (SELECT 'long' AS id UNION ALL VALUES ('quiet'), ('live'), ('t1'), ('t2'));

WITH RECURSIVE k (k) AS (VALUES (1) UNION ALL SELECT k + 1 FROM k WHERE k < :n),
  of (s) AS (VALUES ('s'), ('long'), ('quiet'))
INSERT INTO runs (tenant, id, session, user_id, operation_id, fingerprint, agent, definition, trigger, door, state,
  place, fence, next_seq, base, told, accepted_at, updated_at)
SELECT :tenant, 'r_' || s || k, iif(s = 's', s || k, s), s, 'o' || s || k, '', 'a', 'd', 'api', '',
  iif(failed, 'failed', 'completed'), iif(s = 's', 0, k), 1, 9, iif(failed, NULL, iif(s = 's', 0, 4 * k)), failed, k, k
FROM (SELECT *, iif(s = 's', k % 20 = 3, k <= 3) AS failed FROM k, of) ORDER BY k;

INSERT INTO entries (tenant, run, seq, n, fence, at, v, body, sum) SELECT tenant, id, seq, 1, 1, 1, 1, '[]', 0
FROM runs, (SELECT 1 AS seq UNION ALL VALUES (2), (3)) WHERE tenant = :tenant;

INSERT INTO messages (tenant, run, ordinal, body, sum) SELECT tenant, id, ordinal, x'7b7d', 0
FROM runs, (SELECT 0 AS ordinal UNION ALL VALUES (1), (2), (3)) WHERE tenant = :tenant;

INSERT INTO effects (tenant, run, session, ordinal, tool, effect, call_id, reply, arguments, state, attempt, told,
  run_n)
SELECT tenant, id, session, ordinal, 't', 'once', '', 2, '{}', iif(state = 'failed', 'failed', 'succeeded'), 1,
  iif(state = 'failed', 'failed', NULL), n FROM runs, (SELECT 0 AS ordinal UNION ALL VALUES (1))
WHERE tenant = :tenant AND (session <> 'quiet' OR state = 'failed');

INSERT INTO asks (tenant, id, run, session, user_id, kind, effect, arguments, hash, question, state, opened_at)
SELECT tenant, 'a' || id, id, session, user_id, 'approval', 'e', '{}', '', '',
  iif(user_id = 's' AND place % 5 = 0 OR place > :n - 3, 'open', 'decided'), 1
FROM runs WHERE tenant = :tenant AND (session <> 'quiet' OR place > :n - 6);

INSERT INTO signals (tenant, run, kind, body, at, read_at)
SELECT tenant, id, 'ask', '', 1, 2 FROM runs WHERE tenant = :tenant;

INSERT INTO blobs (tenant, digest, size, renewed_at, in_use) SELECT tenant, id, 1, 1, 1 FROM runs
WHERE tenant = :tenant;

INSERT INTO blob_uses (tenant, digest, run) SELECT tenant, id, id FROM runs WHERE tenant = :tenant;

INSERT INTO acts (tenant, at, actor, door, act, subject, note) SELECT tenant, 1, '', '', '', id, '' FROM runs
WHERE tenant = :tenant;

INSERT INTO outbox (tenant, id, run, kind, state, due, at)
SELECT tenant, id || '/9', id, 'run.completed', iif(place % 2, 'delivered', 'dead'), n, n FROM runs
WHERE tenant = :tenant;
"""

#: What is alive is the same in both: a run of each kind in a session of its own, and one at the end of the long one.
LIVE = """
INSERT INTO runs (tenant, id, session, user_id, operation_id, fingerprint, agent, definition, trigger, door, state,
  place, fence, next_seq, deaths, accepted_at, updated_at)
SELECT :tenant, id, session, 'u1', id, '', 'a', 'd', 'api', '', state, place, 1, 9, 0, 1, 1 FROM (
  SELECT 'r_queued' AS id, 'long' AS session, 'queued' AS state, 900001 AS place
  UNION ALL VALUES ('r_running', 'long', 'running', 900000), ('r_waiting', 'live', 'waiting', 2),
    ('r_parked', 'live', 'parked', 1), ('r_untold', 'long', 'failed', 900002));

INSERT INTO messages (tenant, run, ordinal, body, sum) VALUES (:tenant, 'r_running', 1, x'7b7d', 0);

INSERT INTO effects (tenant, run, session, ordinal, tool, effect, call_id, reply, arguments, state, attempt, run_n)
SELECT tenant, id, session, 0, 't', 'once', '', 2, '{}', 'started', 1, n FROM runs
WHERE tenant = :tenant AND id IN ('r_running', 'r_waiting', 'r_parked');

INSERT INTO effects (tenant, run, session, ordinal, tool, effect, call_id, reply, arguments, state, attempt, run_n)
SELECT tenant, id, session, 0, 't', 'once', '', 2, '{}', 'unknown', 1, n FROM runs
WHERE tenant = :tenant AND id = 'r_untold';

INSERT INTO asks (tenant, id, run, session, user_id, kind, effect, arguments, hash, question, state, opened_at,
  expires_at)
VALUES (:tenant, 'a_live', 'r_running', 'long', 'u1', 'approval', 'e', '{}', '', '', 'open', 1, 5);

INSERT INTO signals (tenant, run, kind, body, at) VALUES (:tenant, 'r_running', 'ask', 'a_live', 1);

INSERT INTO blobs (tenant, digest, size, renewed_at) VALUES (:tenant, 'loose', 1, 1);

INSERT INTO outbox (tenant, id, run, kind, due, at) VALUES (:tenant, 'r_running/9', 'r_running', 'run.waiting', 1, 1);
"""

AN_ASK = "ar_long40"
GIVEN: Mapping[str, Any] = {
    "tenant": "default", "run": "r_running", "limit": LIMIT, "before": "r_long40", "after": 20, "ordinal": 0,
    "id": "a_live", "effect": "e", "kind": "approval", "fence": 1, "digest": "loose", "deaths": 0,
    "n": 1, "at": 1, "since": 100, "until": 120, "key": "k", "state": "failed", "place": None,
    "next_place": 9, "attempt": 2, "size": 1, "seq": 90, "unstarted": 0, "seen": 0, "most": LIMIT, "window": LIMIT,
}  # fmt: skip
PARTICULAR: Mapping[str, Mapping[str, Any]] = {
    "run.claim": {"run": "r_queued"},
    "run.claimable": {"n": 0},
    "run.insert": {"run": "r_new", "operation_id": "new", "place": 900_009, "state": "queued", "fence": 0},
    "run.list": {"state": "completed"},
    "run.list_unfinished": {"state": "queued"},
    "effect.list": {"state": "succeeded", "after": "r_long40"},
    "effect.list_live": {"state": "started", "after": "r_running"},
    "effect.list_unusual": {"after": "r_long40"},
    "effect.insert": {"ordinal": 7},
    "ask.list": {"state": "decided", "after": AN_ASK},
    "ask.list_newest": {"state": "decided", "after": AN_ASK},
    "ask.list_open": {"after": AN_ASK},
    "ask.list_open_newest": {"after": "a_live"},
    "ask.insert": {"id": "a_new"},
    "session.insert": {"session": "new"},
    "session.branch": {"session": "new"},
    "session.list": {"after": "r"},
    "message.insert": {"ordinal": 7},
    "outbox.due": {"after": 0},
    "outbox.list": {"state": "dead", "after": "r_long40/9"},
    "blob.drop": {"before": 5},
    "blob.loose": {"before": 5},
    "tenant.insert": {"tenant": "new"},
    "text.insert": {"space": 1, "doc": 7, "place": 7},
    "blob.use": {"digest": "loose"},
    "entry.list": {"after": 0},
}  # fmt: skip
#: What a session's history is read or erased with: it grows with the session, though not with the store.
OF_THE_WHOLE_SESSION = {
    name for name in STATEMENTS if name.endswith((".erase", "_by_session", "_of_session", "text.of_session"))
}


def filled(file: Path, n: int) -> apsw.Connection:
    connection = sqlite._open_for_writing(file)
    connection.execute("PRAGMA foreign_keys = OFF")
    with connection:
        for tenant in ("another", "default", "third"):
            connection.execute("INSERT INTO tenants VALUES (?)", (tenant,))
            for text in (FILL + LIVE).split(";\n\n"):
                connection.execute(text, {"tenant": tenant, "n": n})
    return connection


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[apsw.Connection, apsw.Connection]]:
    folder = tmp_path_factory.mktemp("scale")
    with closing(filled(folder / "few.db", FEW)) as few, closing(filled(folder / "many.db", MANY)) as many:
        yield few, many


def steps(connection: apsw.Connection, name: str, session: str, given: Mapping[str, Any] | None = None) -> int:
    """How many instructions SQLite's machine carries out for the statement. Nothing of it stays."""
    text, particular = STATEMENTS[name], PARTICULAR.get(name.partition(" ")[0], {})
    known = {**GIVEN, "session": session, "user_id": session, "operation_id": f"o{session}7", **particular}
    known |= given or {}
    done = 0

    def one_more() -> bool:
        nonlocal done
        done += 1
        return False

    connection.execute("BEGIN")
    connection.set_progress_handler(one_more, 1)
    try:
        connection.execute(text, {p: known.get(p, "") for p in re.findall(r":(\w+)", text)}).fetchall()
    finally:
        connection.set_progress_handler(None)
        connection.execute("ROLLBACK")
    return done


@pytest.mark.parametrize("name", sorted(set(STATEMENTS) - {"tenant.list"}))
def test_a_statement_does_not_cost_more_in_a_larger_store(
    stores: tuple[apsw.Connection, apsw.Connection], name: str
) -> None:
    for session in ("s4",) if name in OF_THE_WHOLE_SESSION else ("long", "quiet"):
        few, many = (steps(connection, name, session) for connection in stores)
        assert many <= few * SLACK, f"{session}: {few} steps, and {many} in a store that is ten times as large"


# --- what waits --------------------------------------------------------------------------------------------------


def with_a_queue(file: Path, n: int) -> apsw.Connection:
    """So many runs that wait for their turn, in the session ``s`` behind the one that waits, and in others."""
    connection = sqlite._open_for_writing(file)
    connection.execute("PRAGMA foreign_keys = OFF")
    run = {"tenant": "default", "user_id": "", "at": 1, "state": "queued", "fence": 0, "next_seq": 2}
    insert = STATEMENTS["run.insert"]
    with connection:
        for k in range(n):
            for session in ("s", f"other{k}"):
                own = {"run": f"r_{session}{k}", "operation_id": f"{session}{k}", "session": session, "place": k}
                connection.execute(insert, dict.fromkeys(re.findall(r":(\w+)", insert), "") | run | own)
        connection.execute("UPDATE runs SET state = 'waiting' WHERE id = 'r_s0'")
    return connection


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[apsw.Connection, apsw.Connection]]:
    folder = tmp_path_factory.mktemp("queues")
    few, many = with_a_queue(folder / "few.db", FEW), with_a_queue(folder / "many.db", MANY)
    with closing(few), closing(many):
        yield few, many


@pytest.mark.parametrize("name", ["run.untold", "effect.untold", "run.unfinished_in_session", "run.next_in_session"])
def test_a_turn_does_not_cost_more_behind_which_others_wait(
    queues: tuple[apsw.Connection, apsw.Connection], name: str
) -> None:
    few, many = (steps(connection, name, "s") for connection in queues)
    assert many <= few * SLACK


def test_the_last_page_of_what_waits_costs_no_more_than_the_first(
    queues: tuple[apsw.Connection, apsw.Connection],
) -> None:
    for connection, n in zip(queues, (FEW, MANY), strict=True):
        first, last = (steps(connection, "run.claimable", "", {"n": behind, "limit": 20}) for behind in (0, 2 * n - 40))
        assert last <= first * SLACK


# --- and they list the same -------------------------------------------------------------------------------------

STATES = {
    "runs": [None, "queued", "running", "waiting", "completed", "failed", "parked"],
    "effects": [None, "planned", "started", "succeeded", "failed", "unknown"],
    "asks": [None, "open", "decided"],
}


def all_rows(connection: apsw.Connection, row: type[Any], table: str) -> list[Any]:
    return [row(*r) for r in connection.execute(f"SELECT {columns(row)} FROM {table} WHERE tenant = 'default'")]


@pytest.mark.parametrize("session", [None, "long", "live", "s3"])
@pytest.mark.parametrize("user", [None, "long", "s"])
@pytest.mark.parametrize("state", STATES["runs"])
@pytest.mark.parametrize("before", [None, "r_long40"])
def test_a_list_of_runs_has_what_fits_the_newest_first(
    stores: tuple[apsw.Connection, apsw.Connection],
    session: str | None,
    user: str | None,
    state: str | None,
    before: str | None,
) -> None:
    few, _ = stores
    order = dict(few.execute("SELECT id, n FROM runs WHERE tenant = 'default'"))
    wanted = [
        r for r in all_rows(few, RunRow, "runs")
        if session in (None, r.session) and user in (None, r.user_id) and state in (None, r.state)
        and (before is None or order[r.id] < order[before])
    ]  # fmt: skip
    wanted.sort(key=lambda r: -order[r.id])
    listing = functools.partial(
        queries.list_runs, "default", session=session, user_id=user, state=state, before=before, limit=10_000
    )
    assert sqlite._run(few, listing) == wanted


@pytest.mark.parametrize("session", [None, "long", "live", "s3"])
@pytest.mark.parametrize("state", STATES["effects"])
@pytest.mark.parametrize("after", [None, "e_long40_0"])
def test_a_list_of_effects_has_what_fits_those_of_the_newest_runs_first(
    stores: tuple[apsw.Connection, apsw.Connection], session: str | None, state: str | None, after: str | None
) -> None:
    few, _ = stores
    order = dict(few.execute("SELECT id, n FROM runs WHERE tenant = 'default'"))
    wanted = [
        e for e in all_rows(few, EffectRow, "effects")
        if session in (None, e.session) and state in (None, e.state)
        and (after is None or (-order[e.run], e.ordinal) > (-order["r_long40"], 0))
    ]  # fmt: skip
    wanted.sort(key=lambda e: (-order[e.run], e.ordinal))
    listing = functools.partial(
        queries.list_effects, "default", session=session, state=state, after=after, limit=10_000
    )
    assert sqlite._run(few, listing) == wanted


@pytest.mark.parametrize("session", [None, "long", "s5"])
@pytest.mark.parametrize("user", [None, "long", "s"])
@pytest.mark.parametrize("run", [None, "r_long149"])
@pytest.mark.parametrize("state", STATES["asks"])
@pytest.mark.parametrize("after", [None, AN_ASK])
@pytest.mark.parametrize("newest_first", [False, True])
def test_a_list_of_asks_has_what_fits_in_order(
    stores: tuple[apsw.Connection, apsw.Connection],
    session: str | None,
    user: str | None,
    run: str | None,
    state: str | None,
    after: str | None,
    newest_first: bool,
) -> None:
    few, _ = stores
    order = dict(few.execute("SELECT id, n FROM asks WHERE tenant = 'default'"))
    wanted = [
        a for a in all_rows(few, AskRow, "asks")
        if session in (None, a.session) and user in (None, a.user_id) and run in (None, a.run)
        and state in (None, a.state)
        and (after is None or (order[a.id] < order[after] if newest_first else order[a.id] > order[after]))
    ]  # fmt: skip
    wanted.sort(key=lambda a: order[a.id], reverse=newest_first)
    listing = functools.partial(
        queries.list_asks, "default", session=session, user_id=user, run=run, state=state, after=after,
        newest_first=newest_first, limit=10_000,
    )  # fmt: skip
    assert sqlite._run(few, listing) == wanted


@pytest.mark.parametrize("after", [-1, 0, 5, 22, 10_000])
def test_a_page_of_messages_begins_behind_the_one_that_was_seen(
    stores: tuple[apsw.Connection, apsw.Connection], after: int
) -> None:
    few, _ = stores
    bases = few.execute("SELECT base FROM runs WHERE tenant = 'default' AND session = 'long' AND base IS NOT NULL")
    seqs = sorted(base + ordinal for (base,) in bases for ordinal in range(4))
    page = few.execute(
        STATEMENTS["message.page"], {"tenant": "default", "session": "long", "after": after, "until": None, "limit": 7}
    ).fetchall()
    assert [row[0] for row in page] == [seq for seq in seqs if seq > after][:7]
