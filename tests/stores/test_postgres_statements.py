"""The statements of all stores, as PostgreSQL takes them; and its tables, beside those of SQLite."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import psycopg
import pytest

from ondol import transactions
from ondol.stores.migrations import migrations
from ondol.stores.postgres_place import Place
from ondol.stores.postgres_statements import BYTEA, INT8, LOCKS, OWN, TEXT, TEXTS, encoded
from ondol.stores.postgres_wire import Refused, Wire
from ondol.transactions import STATEMENTS

#: Of the database as a whole: who writes to it and drives its runs, which tenants there are, and notes about itself.
OF_NO_TENANT = re.compile(r"token\.by_hash|(writer|owner|meta)\.\w+|tenant\.list|lock\.meta")
#: One of two columns names it: which index finds it the planner says by how much there is.
BY_EITHER = {"run.family"}
_ALL_OF_A_TENANT = re.compile(r"Index Cond: \((\w+\.)?tenant = [$\w.]+\)$")
_NAMED = re.compile(r"\b(id|run|session|host|effect|source|doc|digest) = ")
_TYPES = {INT8: "bigint", TEXT: "text", BYTEA: "bytea"}


@pytest.fixture
def connection(new_database: Callable[[], str]) -> psycopg.Connection:
    return Place.of(new_database()).connect()


def test_every_statement_is_one_for_postgresql_too(connection: psycopg.Connection) -> None:
    """Also where nothing is known of a parameter's type, since its value is NULL."""
    for name, text in TEXTS.items():
        try:
            connection.execute(b"PREPARE p AS " + text.sql)
        except psycopg.Error as error:
            pytest.fail(f"{name}: {error}")
        connection.execute("DEALLOCATE p")
    connection.close()


def test_what_is_named_is_found_without_a_look_through_all_of_a_tenant(connection: psycopg.Connection) -> None:
    """On a new database, too, where nothing could be counted yet: a connection keeps to the plan that it made.

    An index that is read row by row remembers which of them are dead. A bitmap looks at them all again: at each turn of
    a session, until somebody cleans up, for one more run that was unfinished once.
    """
    for name, text in TEXTS.items():
        plan = [line.strip() for (line,) in connection.execute(b"EXPLAIN (GENERIC_PLAN) " + text.sql)]
        assert not [line for line in plan if "Bitmap" in line], name
        for condition, filtered in itertools.pairwise(plan):
            if _ALL_OF_A_TENANT.match(condition) and name not in BY_EITHER:
                assert not _NAMED.search(filtered.partition("Filter: ")[2]), f"{name}: {filtered}"
    connection.close()


MANY = """
INSERT INTO tenants (tenant) VALUES ('t');
INSERT INTO sessions (tenant, id, revision, state, next_message, next_place, created_at, updated_at)
  SELECT 't', 's' || i, 1, '{}', 1, 1, i, i FROM generate_series(1, 400) AS i;
INSERT INTO runs (tenant, id, session, user_id, operation_id, fingerprint, agent, definition, trigger, door, state,
    place, next_seq, base, told, accepted_at, updated_at)
  SELECT 't', 'r' || i, 's' || i, 'u', 'o' || i, 'f', 'a', 'd', 't', 'd', 'completed', 0, 1, 1, 1, i, i
  FROM generate_series(1, 400) AS i;
"""


@pytest.mark.parametrize("name", ["run.claim", "run.claimable"])
def test_what_waits_is_found_one_by_one_though_nothing_waited_as_the_server_counted(
    connection: psycopg.Connection, name: str
) -> None:
    """It takes an index of what waits for an empty one then, and whatever is read through it for nothing."""
    connection.execute(MANY.encode())
    connection.execute("VACUUM ANALYZE sessions, runs")
    plan = [line for (line,) in connection.execute(b"EXPLAIN (GENERIC_PLAN) " + TEXTS[name].sql)]
    connection.close()
    assert not [line for line in plan if "Join Filter" in line or "Sort" in line]
    for condition, filtered in itertools.pairwise(map(str.strip, plan)):
        assert not (_ALL_OF_A_TENANT.match(condition) and _NAMED.search(filtered)), plan


def test_every_statement_is_about_one_tenant() -> None:
    for name, text in {**STATEMENTS, **OWN}.items():
        if not OF_NO_TENANT.fullmatch(name):
            assert not list(_open_to_all(text)), name


def test_a_statement_that_forgets_the_tenant_is_found() -> None:
    assert list(_open_to_all("SELECT id FROM runs WHERE id = :run")) == ["runs"]
    assert list(_open_to_all("DELETE FROM runs WHERE session = :tenant")) == ["runs"]
    joined = "SELECT r.id FROM runs r JOIN effects e ON e.run = r.id WHERE r.tenant = :tenant"
    assert list(_open_to_all(joined)) == ["effects"]
    nested = "SELECT id FROM asks WHERE tenant = :tenant AND run IN (SELECT id FROM runs r WHERE r.session = :session)"
    assert list(_open_to_all(nested)) == ["runs"]
    assert list(_open_to_all("WITH new AS (SELECT id FROM runs) SELECT id FROM new")) == ["runs"]


def test_after_its_final_batch_a_transaction_only_gives_its_result() -> None:
    """A store may have committed by then: it asks nothing more, and refuses nothing. Where the answer was lost, it has
    the rows of what only reads."""
    there = found = 0
    for file in Path(transactions.__file__).parent.glob("*.py"):
        text = file.read_text("utf-8")
        there += text.count("yield Final(")
        for block in _blocks(ast.parse(text)):
            for n, statement in enumerate(block):
                if "yield Final(" not in ast.unparse(statement).partition("\n")[0]:
                    continue
                found += 1
                behind = [node for later in block[n + 1 :] for node in ast.walk(later)]
                assert isinstance(block[-1], ast.Return), ast.unparse(statement)
                assert not any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Raise) for node in behind)
                if isinstance(statement, ast.Assign):
                    assert all(STATEMENTS[name].startswith("SELECT") for name in _rows_taken(statement))
    assert there == found > 0, "one stands where more may follow"


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, name, None), list):
                yield block


def _rows_taken(statement: ast.Assign) -> list[str]:
    """The names of the statements whose rows it takes: the last ones of the batch."""
    (target,) = statement.targets
    assert isinstance(target, ast.Tuple)
    assert isinstance(target.elts[0], ast.Starred)
    assert isinstance(statement.value, ast.Yield)
    assert isinstance(statement.value.value, ast.Call)
    (batch,) = statement.value.value.args
    assert isinstance(batch, ast.List)
    return [ast.literal_eval(s.elts[0]) for s in batch.elts[1 - len(target.elts) :] if isinstance(s, ast.Tuple)]


_TABLES = re.compile(r"\b(?:FROM|JOIN|UPDATE|INTO)\s+(?!SET\b|OF\b)(\w+)(?:\s+(?!SET|WHERE|JOIN|ON\b|ORDER|FOR)(\w+))?")


def _open_to_all(text: str) -> Iterator[str]:
    """The tables that a statement names and does not ask for the tenant of: by its alias, where it has one."""
    sql = re.sub(r"^--.*$", "", text, flags=re.M)
    for table, alias in _TABLES.findall(sql):
        if re.search(rf"\bWITH {table} AS \(", sql):  # what it is made of is looked at
            continue
        names = rf"\b{alias}\.tenant" if alias else rf"(?:\b{table}\.|(?<![.:\w]))tenant"
        compared = rf"{names} = :tenant|{names} = \w+\.tenant|= {names}\b"
        inserted = rf"INTO {table} \(tenant[,)]"
        if not re.search(rf"{compared}|{inserted}", sql):
            yield table


def test_every_table_is_walled_by_the_tenant(connection: psycopg.Connection) -> None:
    """Its key begins with it, and so does every reference to another table."""
    rows = connection.execute("""
        SELECT c.conrelid::regclass::text, c.contype, array_agg(a.attname ORDER BY k.place)
        FROM pg_constraint c CROSS JOIN unnest(c.conkey) WITH ORDINALITY AS k (attnum, place)
        JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
        WHERE c.connamespace = 'ondol'::regnamespace AND c.contype IN ('p', 'f') GROUP BY c.oid, c.conrelid, c.contype
    """).fetchall()  # fmt: skip
    of_no_tenant = {"meta", "owners", "writers", "schema_steps"}
    assert {table for table, _, _ in rows} > of_no_tenant
    for table, kind, columns in rows:
        if table not in of_no_tenant:
            assert columns[0] == "tenant", (table, kind, columns)
    connection.close()


def test_both_stores_have_the_same_columns(connection: psycopg.Connection) -> None:
    fresh = apsw.Connection(":memory:")
    for step in migrations():
        fresh.execute(step)
    kinds = {"INTEGER": "bigint", "TEXT": "text", "BLOB": "bytea"}
    theirs = {
        (table, column): (kinds[kind], bool(required))
        for (table,) in list(fresh.execute("SELECT name FROM sqlite_schema WHERE type = 'table'"))
        for column, kind, required in list(fresh.execute(
            "SELECT name, type, \"notnull\" OR pk FROM pragma_table_info(?)", (table,)
        ))
        if not table.startswith("sqlite_")
    }  # fmt: skip
    ours = {
        (table, column): (kind, required == "NO")
        for table, column, kind, required in connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns "
            "WHERE table_schema = 'ondol'"
        )
    }
    only_here = {"owners", "writers", "blob_chunks", "schema_steps"}
    theirs.pop(("messages", "n"))  # nothing asks for it, and here no table needs a number to have a key
    assert {name: made for name, made in ours.items() if name[0] not in only_here} == theirs
    texts = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'ondol' "
    assert not connection.execute(texts + "AND data_type = 'text' AND collation_name <> 'C'").fetchall()
    connection.close()


def test_a_lock_takes_no_parameter_that_its_statement_lacks() -> None:
    for name, lock in [*LOCKS.items(), ("run.family", "lock.family"), ("session.get", "lock.new_session")]:
        assert set(TEXTS[lock].parameters) <= set(TEXTS[name].parameters), name


def test_a_name_under_which_a_statement_is_prepared_is_no_other_ones(connection: psycopg.Connection) -> None:
    """Also on a connection that a pooler gives to two."""
    one, two = Wire(connection), Wire(connection)
    one.send([("writer.forget_old", {})])
    assert one.receive() == [[]]
    two.send([("owner.list", {"ended": "0"})])
    assert two.receive() == [[]]
    two.send([("writer.forget_old", {})])
    with pytest.raises(Refused, match="already exists"):
        two.receive()


def test_a_text_with_any_character_comes_back_as_it_was(connection: psycopg.Connection, tmp_path: Path) -> None:
    wire = Wire(connection)
    for text in ("", "a\0b", "\0", "\ufdd0", "\ufdd00", "\ufdd01\0", "\\u0000", "\U0001f600 é é", "\ufffe\uffff"):
        assert b"\0" not in (encoded(text)[0] or b"")
        wire.send([("meta.set", {"key": "k", "value": text}), ("meta.get", {"key": "k"})])
        assert wire.receive()[1] == [(text,)]
    wire.close()
