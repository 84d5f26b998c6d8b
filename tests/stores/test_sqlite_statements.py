"""The SQL text: each statement is prepared by SQLite, stays within its tenant, and finds its rows by an index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress

import apsw
import pytest

from ondol.stores import sqlite
from ondol.transactions import STATEMENTS

WITHOUT_TENANT = {"tenant.list", "meta.get", "meta.set", "token.by_hash"}  # of the store itself, or what finds it

#: What a busy process asks all the time, and the columns by which each must find its rows.
BY_INDEX = {
    "run.by_operation": ["runs (tenant=? AND user_id=? AND operation_id=?)"],
    "run.claim": ["runs (tenant=? AND id=?)", "b (tenant=? AND session=? AND place<?)"],
    "message.history": ["r (tenant=? AND session=? AND base>? AND base<?)", "m (tenant=? AND run=? AND ordinal>?)"],
    "entry.list": ["entries (tenant=? AND run=? AND seq>?)"],
    "message.page": ["r (tenant=? AND session=? AND base>?)", "b (tenant=? AND session=? AND base<?)"],
    "run.untold": ["runs (tenant=? AND session=?)"],
    "ask.close_all": ["asks (tenant=? AND run=?)"],
    "ask.of_effect": ["asks (tenant=? AND run=?)"],
    "ask.questions": ["asks (tenant=? AND run=?)"],
    "run.unfinished_in_session": ["runs (tenant=? AND session=?)"],
    "run.count_unfinished": ["runs (tenant=? AND session=?)"],
    "run.next_in_session": ["runs (tenant=? AND session=?)"],
    "run.hold": ["runs (tenant=? AND id=?)"],
    "signal.unread": ["signals (tenant=? AND run=?)"],
    "effect.of_run": ["effects (tenant=? AND run=?)"],
    "ask.unknown_in_session": ["asks (tenant=? AND session=?)"],
    "space.not_all": ["search_spaces (tenant=? AND kind=? AND agent=? AND user_id=? AND name=?)"],
    "message.of_run": ["messages (tenant=? AND run=?)"],
}
#: These look for few rows among all of a tenant: the index that holds nothing but those.
BY_PARTIAL_INDEX = {
    "run.claimable": "runs_queued",
    "run.running": "runs_one_active",
    "effect.untold": "runs_untold",
    "ask.expirable": "asks_expiring",
}
LARGE = ("runs", "messages", "entries", "effects", "asks", "signals")


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """As a store opens it that it has just made: with what the schema says about sizes."""
    with closing(sqlite._open_for_writing(tmp_path_factory.mktemp("statements") / "ondol.db")) as connection:
        yield connection


def parameters(text: str) -> dict[str, None]:
    return dict.fromkeys(re.findall(r":(\w+)", text))


def plan(connection: apsw.Connection, name: str) -> list[str]:
    text = STATEMENTS[name]
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", parameters(text))]


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_is_one_that_sqlite_prepares(connection: apsw.Connection, name: str) -> None:
    text = STATEMENTS[name]
    assert list(connection.execute(f"EXPLAIN {text}", parameters(text)))
    assert ";" not in text, "one statement a name"
    assert "{" not in text.replace("'{}'", ""), "every {row} was filled in"


@pytest.mark.parametrize("name", sorted(set(STATEMENTS) - WITHOUT_TENANT))
def test_a_statement_names_the_tenant(name: str) -> None:
    assert "tenant" in parameters(STATEMENTS[name])


@pytest.mark.parametrize("name", sorted(set(STATEMENTS) - WITHOUT_TENANT))
def test_each_table_of_a_statement_is_read_by_its_tenant(connection: apsw.Connection, name: str) -> None:
    """A table that is looked through as a whole would be looked through for all tenants."""
    for line in plan(connection, name):
        if line.startswith("SEARCH "):
            assert "(tenant=?" in line, line
        assert not re.match(rf"SCAN ({'|'.join(LARGE)}|[a-z])\b", line), line


def test_the_statements_without_a_tenant_are_those_of_the_store_itself() -> None:
    assert {name for name, text in STATEMENTS.items() if "tenant" not in parameters(text)} == WITHOUT_TENANT


@pytest.mark.parametrize("name", BY_INDEX)
def test_a_hot_statement_finds_its_rows_by_all_that_it_knows(connection: apsw.Connection, name: str) -> None:
    lines = plan(connection, name)
    for wanted in BY_INDEX[name]:
        table, columns = wanted.split(" ", 1)
        assert any(line.startswith(f"SEARCH {table} USING ") and columns in line for line in lines), lines


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_that_was_prepared_is_not_prepared_anew_for_other_values(
    connection: apsw.Connection, name: str
) -> None:
    prepared: list[int] = []

    def asked(operation: int, *_: object) -> int:  # while a statement is prepared, and at no other time
        prepared.append(operation)
        return apsw.SQLITE_OK

    connection.authorizer = asked
    try:
        for value in ("1", "2"):
            prepared.clear()
            connection.execute("SAVEPOINT tried")
            with suppress(apsw.Error):  # a value that does not fit is refused while it runs
                connection.execute(STATEMENTS[name], dict.fromkeys(parameters(STATEMENTS[name]), value)).fetchall()
            connection.execute("ROLLBACK TO tried")
            connection.execute("RELEASE tried")
        assert apsw.SQLITE_READ not in prepared
    finally:
        connection.authorizer = None


@pytest.mark.parametrize("name", ["run.untold", "effect.untold"])
def test_a_claim_prepares_no_sorting(connection: apsw.Connection, name: str) -> None:
    assert not [line for line in plan(connection, name) if "B-TREE" in line]


@pytest.mark.parametrize("name", BY_PARTIAL_INDEX)
def test_a_statement_that_looks_for_few_rows_reads_only_those(connection: apsw.Connection, name: str) -> None:
    lines = plan(connection, name)
    assert any(line.startswith("SEARCH") and f"INDEX {BY_PARTIAL_INDEX[name]} " in line for line in lines), lines
