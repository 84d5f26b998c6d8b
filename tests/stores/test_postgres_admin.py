"""A store in PostgreSQL is opened, migrated, checked, backed up and put back."""

from __future__ import annotations

import asyncio
import re
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import behind
import psycopg
import pytest
from kit import Conversation
from postgres import Server
from proxy import Proxy
from psycopg.conninfo import conninfo_to_dict

from ondol import Agent, Runtime
from ondol.errors import InvalidInput, StoreBusy, StoreCorrupt, StoreError, StoreTooNew
from ondol.queries import get_meta
from ondol.stores import postgres_admin, postgres_schema
from ondol.stores.postgres import PostgresStore
from ondol.stores.postgres_place import Place
from ondol.stores.postgres_schema import Step
from ondol.transactions import Row, Tx, set_meta


def talk() -> Agent:
    return Agent("talk", model=Conversation({"hi": ["ho"]}))


@pytest.fixture
def empty(postgres: Server) -> str:
    return postgres.new_database("template0")


# --- opening ----------------------------------------------------------------------------------------------------


async def opens(url: str) -> None:
    store = PostgresStore(url)
    try:
        await store.open(lambda: None)
    finally:
        await store.close()


async def test_what_cannot_be_opened_says_why_and_what_to_do(empty: str, postgres: Server) -> None:
    with pytest.raises(StoreError, match=r"there is no such database .*: make it \(createdb\)"):
        await opens(postgres.url("nothing"))
    with pytest.raises(StoreError, match=r"does not let this user in .*: look at user and password"):
        await opens(empty.replace("postgres@", "nobody@"))
    postgres.execute(f"REVOKE CONNECT ON DATABASE {empty.rpartition('/')[2]} FROM PUBLIC")
    postgres.execute("CREATE ROLE passerby LOGIN")
    with pytest.raises(StoreError, match=r"does not let this user in .*permission denied.*: look at user and password"):
        await opens(empty.replace("postgres@", "passerby@"))
    with pytest.raises(StoreBusy, match=r"cannot be reached .*: is it running, and is the address right"):
        await opens("postgresql://postgres@127.0.0.1:1/x")
    with pytest.raises(StoreError, match=r"is read-only: name the primary, .* or unset default_transaction_read_only"):
        await opens(f"{empty}?options=-cdefault_transaction_read_only%3Don")
    with pytest.raises(StoreError, match=r"shares connections out by transaction: let it pool by session"):
        await opens(f"{empty}?options=-c%20ondol.taken%3Dyes")  # as it stands after another client of the pooler
    with pytest.raises(InvalidInput, match="this names no store"):
        PostgresStore("postgresql://localhost/x?nonsense=1")
    assert Place.of("postgresql://a:secret@db1:5432,db2:5433/x").name == "postgresql://db1:5432,db2:5433/x"
    for name in ("A;DROP", "pg_ondol"):
        with pytest.raises(InvalidInput, match="say a name of small letters"):
            PostgresStore(f"postgresql://localhost/x?schema={name}")
    for given in ("pool_size=nan", "pool_size=1e999", "lease=inf", "pool_timeout=nan", "lease=soon", "lease="):
        with pytest.raises(InvalidInput, match="say a number from"):
            PostgresStore(f"postgresql://localhost/x?{given}")


async def test_a_pooler_that_gives_each_transaction_a_connection_of_its_own_is_refused(
    empty: str, postgres: Server
) -> None:
    with Proxy(postgres.port) as pooler:
        await opens(pooler.url(empty))
        pooler.shares_out = True
        with pytest.raises(StoreError, match=r"shares connections out by transaction: let it pool by session"):
            await opens(pooler.url(empty))


async def test_what_the_server_refuses_once_a_connection_stands_is_told_as_that(empty: str, postgres: Server) -> None:
    database = empty.rpartition("/")[2]
    postgres.execute("REVOKE EXECUTE ON FUNCTION pg_catalog.set_config FROM PUBLIC", database)
    postgres.execute("CREATE ROLE setless LOGIN")
    with pytest.raises(StoreError, match=r"this user may not do that in .*set_config, 42501\): grant it"):
        await opens(empty.replace("postgres@", "setless@"))


async def test_a_database_that_cannot_hold_every_text_is_refused_before_anything_is_accepted(postgres: Server) -> None:
    def made(encoding: str) -> str:
        name = f"in_{encoding.lower()}"
        as_it_is = f"ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        postgres.execute(f"CREATE DATABASE {name} {as_it_is}")
        return postgres.url(name)

    for encoding in ("LATIN1", "EUC_KR"):
        with pytest.raises(StoreError, match=f"has the encoding {encoding}, .* ENCODING 'UTF8'"):
            await opens(made(encoding))
    for encoding in ("UTF8", "SQL_ASCII"):
        agent = Agent("talk", model=Conversation({"안녕 ✓": ["응 😀"]}))
        async with Runtime(made(encoding), agents=[agent]) as rt:
            assert (await rt.run(agent, "안녕 ✓", session="김")).text == "응 😀"
            assert [m.message.text for m in await (await rt.get_session("김")).messages()] == ["안녕 ✓", "응 😀"]


@pytest.mark.parametrize("given", ["client_encoding=LATIN1", "options=-c%20client_encoding%3DLATIN1"])
async def test_what_is_said_is_stored_as_it_is_whatever_encoding_a_url_names(empty: str, given: str) -> None:
    agent = Agent("talk", model=Conversation({"안녕": ["café"]}))
    async with Runtime(f"{empty}?{given}", agents=[agent]) as rt:
        await rt.run(agent, "안녕", session="김")
    async with Runtime(empty) as rt:
        assert [m.message.text for m in await (await rt.get_session("김")).messages()] == ["안녕", "café"]


@pytest.mark.parametrize("of", ["the user", "the server"])
def test_a_server_with_no_connection_left_is_busy_and_lets_in_later(empty: str, postgres: Server, of: str) -> None:
    """What it says then names a role, and the user is let in all the same."""
    name = f"crowded_{of.split()[1]}"
    postgres.execute(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT {0 if of == 'the user' else -1}")
    place = Place.of(empty.replace("postgres@", f"{name}@"))
    held = []

    def take_all() -> None:
        while True:
            held.append(place.connect())

    try:
        with pytest.raises(StoreBusy, match=r"has no connection left .*: raise max_connections, or use fewer"):
            take_all()
    finally:
        for connection in held:
            connection.close()


def test_what_is_libpqs_in_a_url_reaches_it_as_it_stands() -> None:
    url = "postgresql://a@h/x?options=-c%20work_mem%3D8MB&pool%5Fsize=7&password=a+b%26&application_name=my%20app"
    place = Place.of(url)
    given = conninfo_to_dict(place.conninfo)
    assert (given["options"], given["password"]) == ("-c work_mem=8MB", "a+b&")
    assert (given["application_name"], place.pool_size) == ("my app", 7)


def test_a_url_that_names_no_store_does_not_show_its_password() -> None:
    with pytest.raises(InvalidInput) as refused:
        Runtime("mysql://me:canary@localhost/x")
    assert "canary" not in str(refused.value)
    for password in ("x/canary", "x@canary", "canary%zz", "canary y", "x/y?canary"):
        with pytest.raises(InvalidInput, match="write what is special in a password as %2F") as refused:
            Place.of(f"postgresql://me:{password}@localhost/x")
        assert "canary" not in str(refused.value)
    assert "canary" not in repr(Place.of("postgresql://me:canary@localhost/x?password=canary"))


# --- migrations -------------------------------------------------------------------------------------------------

EXTRA = (
    Step(False, 9001, "ALTER TABLE runs ADD COLUMN colour TEXT; CREATE INDEX runs_colour ON runs (tenant, colour);"),
    Step(False, 9002, "CREATE TABLE shades (tenant TEXT, n BIGINT, PRIMARY KEY (tenant, n));"),
    Step(True, 9002, "DROP INDEX runs_colour; ALTER TABLE runs DROP COLUMN colour;"),
)


def catalog(url: str) -> list[tuple[Any, ...]]:
    """All that makes the schema: columns, indexes, constraints."""
    return [
        *behind.execute(url, """
            SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name, is_identity
            FROM information_schema.columns WHERE table_schema = 'ondol' ORDER BY 1, 2"""),
        *behind.execute(url, "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'ondol' ORDER BY 1"),
        *behind.execute(url, """
            SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
            WHERE connamespace = 'ondol'::regnamespace ORDER BY 1, 2"""),
        *behind.execute(url, """
            SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'ondol'::regnamespace ORDER BY 1"""),
        *behind.execute(url, "SELECT name FROM schema_steps ORDER BY name"),
    ]  # fmt: skip


def test_a_fresh_schema_and_one_migrated_step_by_step_are_equal(postgres: Server) -> None:
    fresh, migrated, by_hand = (postgres.new_database("template0") for _ in range(3))
    known = (*postgres_schema.steps(), *EXTRA)
    postgres_schema.migrate(Place.of(fresh), tuple(sorted(known)), post=True)
    for n in range(1, len(known) + 1):
        postgres_schema.migrate(Place.of(migrated), known[:n], post=True)
    assert catalog(fresh) == catalog(migrated)
    with psycopg.connect(by_hand, autocommit=True) as administrator:
        administrator.execute(postgres_admin.migration_script(by_hand).encode())
    postgres_schema.migrate(Place.of(by_hand), tuple(sorted(known)), post=True)
    assert catalog(by_hand) == catalog(fresh)
    with pytest.raises(StoreTooNew):
        postgres_admin.migration_script(fresh)


async def test_older_code_works_on_a_newer_schema_until_the_step_that_removes(empty: str) -> None:
    """The code of this version is the older one: a step of a version that it does not know was done."""
    place, agent = Place.of(empty), talk()
    async with Runtime(empty, agents=[agent]) as rt:
        await rt.run(agent, "hi", session="s", operation_id="1")
        postgres_schema.migrate(place, (*postgres_schema.steps(), EXTRA[0]))
        assert (await rt.run(agent, "hi", session="s", operation_id="2")).text == "ho"
    with pytest.raises(StoreTooNew, match=r"has schema 9001, this version of Ondol knows \d+: upgrade Ondol"):
        await opens(empty)


MEETS = Step(False, 9001, "ALTER TABLE sessions ADD COLUMN hue TEXT; ALTER TABLE runs ADD COLUMN hue TEXT;")
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


def meeting(url: str, threads: ThreadPoolExecutor, gate: psycopg.Connection) -> Future[tuple[int, int]]:
    """Steps that wait for what another one, which began before, holds of the second of their tables."""
    migrating = threads.submit(postgres_schema.migrate, Place.of(url), (*postgres_schema.steps(), MEETS))
    while gate.execute(WAITING).fetchone() == (0,):
        assert not migrating.done()
    return migrating


def test_steps_are_done_beside_a_transaction_that_uses_their_tables_the_other_way_round(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    with ThreadPoolExecutor(1) as threads, psycopg.connect(url, autocommit=True) as gate:
        with behind.connected(url) as writing, writing.transaction():
            writing.execute("INSERT INTO writers (id, n, at) VALUES ('w', 1, now())")
            writing.execute("UPDATE runs SET told = told")
            migrating = meeting(url, threads, gate)
            writing.execute("LOCK TABLE sessions IN ROW EXCLUSIVE MODE NOWAIT")
        assert migrating.result()[1] == MEETS.version


def test_steps_that_the_server_breaks_off_for_one_who_reads_are_done_again(new_database: Callable[[], str]) -> None:
    url = new_database()
    with ThreadPoolExecutor(1) as threads, psycopg.connect(url, autocommit=True) as gate:
        with behind.connected(url) as reading:
            reading.execute("SET deadlock_timeout = '30s'")  # the other one is broken off
            with reading.transaction():
                reading.execute("SELECT count(*) FROM runs")
                migrating = meeting(f"{url}?options=-c%20deadlock_timeout%3D1s", threads, gate)
                reading.execute("SELECT count(*) FROM sessions")
        assert migrating.result()[1] == MEETS.version


async def test_a_read_that_the_server_breaks_off_for_a_step_is_done_again(new_database: Callable[[], str]) -> None:
    url, read, may_go_on = new_database(), threading.Event(), threading.Event()

    def reads() -> Tx[list[Row]]:
        yield [("run.get", {"tenant": "default", "run": "r"})]
        read.set()
        may_go_on.wait()
        (rows,) = yield [("session.get", {"tenant": "default", "session": "s"})]
        return rows

    store = PostgresStore(url)
    await store.open(lambda: None)
    try:
        with ThreadPoolExecutor(1) as threads, psycopg.connect(url, autocommit=True) as gate:
            with behind.connected(url) as stepping:
                stepping.execute("SET deadlock_timeout = '1h'")
                with stepping.transaction():
                    stepping.execute("LOCK TABLE sessions")
                    reading = asyncio.create_task(store.read(reads))
                    await asyncio.to_thread(read.wait)
                    rest = threads.submit(stepping.execute, "LOCK TABLE runs")
                    while gate.execute(WAITING).fetchone() == (0,):
                        assert not rest.done()
                    may_go_on.set()
                    await asyncio.wrap_future(rest)
            assert await reading == []
    finally:
        await store.close()


def test_what_removes_is_done_only_when_it_is_asked_for(empty: str) -> None:
    place, known = Place.of(empty), (*postgres_schema.steps(), *EXTRA)
    assert postgres_schema.migrate(place, known) == (0, 9002)
    assert behind.execute(empty, "SELECT colour FROM runs") == []
    assert postgres_schema.migrate(place, known, post=True) == (9002, 9002)
    with pytest.raises(psycopg.errors.UndefinedColumn):
        behind.execute(empty, "SELECT colour FROM runs")


async def test_many_that_open_a_new_database_at_once_make_its_tables_once(empty: str) -> None:
    await asyncio.gather(*(asyncio.to_thread(postgres_schema.migrate, Place.of(empty)) for _ in range(8)))
    names = [step.name for step in postgres_schema.steps() if not step.post]
    assert [name for (name,) in behind.execute(empty, "SELECT name FROM schema_steps ORDER BY name")] == names


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_two_that_migrate_at_once_do_it_once_whatever_isolation_is_set_for_the_role(empty: str, isolation: str) -> None:
    url = f"{empty}?options=-c%20default_transaction_isolation%3D{isolation.replace(' ', '%5C%20')}"
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor(2) as threads, psycopg.connect(empty) as gate:
        gate.execute("SELECT pg_advisory_xact_lock(hashtextextended('ondol.migrate.ondol', 0))")
        both = [threads.submit(postgres_schema.migrate, Place.of(url)) for _ in range(2)]
        while gate.execute(waiting).fetchone() != (2,):
            assert not any(one.done() for one in both)
        gate.rollback()
        newest = postgres_schema.newest(postgres_schema.steps())
        assert sorted(one.result() for one in both) == [(0, newest), (newest, newest)]


@pytest.mark.parametrize("name", ["idle_session_timeout", "transaction_timeout", "statement_timeout"])
def test_no_time_that_is_set_for_the_role_ends_what_ondol_does(empty: str, name: str) -> None:
    place = Place.of(f"{empty}?options=-c%20{name}%3D1h")
    with place.connect() as connection:
        assert connection.execute("SELECT current_setting(%s)", [name]).fetchone() == ("0",)


async def test_a_role_that_was_given_the_schema_makes_its_tables(empty: str, postgres: Server) -> None:
    """It may make no other schema in that database."""
    postgres.execute("CREATE ROLE tenant LOGIN")
    with psycopg.connect(empty, autocommit=True) as administrator:
        administrator.execute("CREATE SCHEMA ondol AUTHORIZATION tenant")
    agent = talk()
    async with Runtime(empty.replace("postgres@", "tenant@"), agents=[agent]) as rt:
        assert (await rt.run(agent, "hi")).text == "ho"


async def test_a_role_without_rights_is_told_so_and_nobody_is_sent_to_a_backup(
    new_database: Callable[[], str], postgres: Server
) -> None:
    postgres.execute("CREATE ROLE stranger LOGIN")
    theirs = new_database()
    url = theirs.replace("postgres@", "stranger@")

    async def is_told(why: str) -> None:
        with pytest.raises(StoreError, match=why):
            await opens(url)
        with pytest.raises(StoreError, match=why):
            postgres_admin.migration_script(url)
        (problem,) = postgres_admin.problems(url)
        assert problem.code == "store_error"
        assert re.search(why, str(problem))

    await is_told("may not do that .*permission denied for schema ondol, 42501.: grant it, or use the owner's name")
    behind.execute(theirs, "GRANT USAGE ON SCHEMA ondol TO stranger")
    await is_told("may not do that .*permission denied for table schema_steps, 42501.: grant it")


async def test_a_role_that_may_only_read_hears_of_changes_and_warns_of_nothing(
    new_database: Callable[[], str], postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    postgres.execute("CREATE ROLE reader LOGIN")
    url, agent, changed = new_database(), talk(), asyncio.Event()
    behind.execute(url, "GRANT USAGE ON SCHEMA ondol TO reader")
    behind.execute(url, "GRANT SELECT ON ALL TABLES IN SCHEMA ondol TO reader")
    store = PostgresStore(url.replace("postgres@", "reader@"))
    await store.open(changed.set)
    try:
        await changed.wait()  # it has begun to listen
        changed.clear()
        async with Runtime(url, agents=[agent]) as rt:
            await rt.run(agent, "hi")
            await changed.wait()
    finally:
        await store.close()
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == []


async def test_a_check_whose_connection_is_ended_is_to_be_tried_again(new_database: Callable[[], str]) -> None:
    url, agent = new_database(), talk()
    async with Runtime(url, agents=[agent]) as rt:
        await rt.run(agent, "hi")
    of_who_waits = "FROM pg_locks WHERE relation = 'ondol.entries'::regclass AND NOT granted"
    with ThreadPoolExecutor(1) as thread, psycopg.connect(url) as administrator:
        administrator.execute("LOCK TABLE ondol.entries")
        checking = thread.submit(postgres_admin.problems, url)
        while not administrator.execute(f"SELECT pg_terminate_backend(pid) {of_who_waits}".encode()).fetchall():
            assert not checking.done()
        (problem,) = checking.result()
    assert problem.code == "store_busy"
    assert "was lost (terminating connection" in str(problem)


def test_a_migration_that_fails_leaves_nothing(empty: str) -> None:
    wrong = Step(False, 9001, "CREATE TABLE half (n BIGINT); SELECT nonsense;")
    postgres_schema.migrate(Place.of(empty))
    before = catalog(empty)
    with pytest.raises((StoreError, psycopg.Error)):
        postgres_schema.migrate(Place.of(empty), (*postgres_schema.steps(), wrong))
    assert catalog(empty) == before


async def test_tables_that_are_not_ours_are_left_alone(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as other:
        other.execute("CREATE SCHEMA ondol; CREATE TABLE ondol.runs (n BIGINT)")
    with pytest.raises(StoreCorrupt, match="holds tables that are not Ondol's: name another one"):
        await opens(empty)
    await opens(f"{empty}?schema=agents")  # beside them there is room


# --- check, backup and restore ----------------------------------------------------------------------------------


async def test_a_check_finds_what_was_damaged(new_database: Callable[[], str], postgres: Server) -> None:
    url, agent = new_database(), talk()
    async with Runtime(url, agents=[agent]) as rt:
        run = await rt.start(agent, "hi", session="s", operation_id="1", attachments=[b"a file"])
        await run.result()
        assert await asyncio.to_thread(postgres_admin.check, url) == []
    damages = {
        "UPDATE entries SET body = replace(body, 'talk', 'tall') WHERE seq = 1": "does not match its checksum",
        "UPDATE messages SET body = set_byte(body, 3, 1) WHERE ordinal = 1": "does not match its checksum",
        "DELETE FROM entries WHERE seq = 2": "is followed by|entries were written",
        "UPDATE runs SET state = 'failed'": "its journal says completed",
        "UPDATE blob_chunks SET data = 'another'": "blob .* does not match its digest",
        "DELETE FROM blob_chunks": "blob .* is not there",
    }
    for damage, found in damages.items():
        damaged = postgres.new_database(url.rpartition("/")[2])
        behind.execute(damaged, damage)
        problems = postgres_admin.check(damaged)
        assert any(re.search(found, p) for p in problems), (damage, problems)


async def test_what_a_newer_version_wrote_is_not_taken_for_damage(new_database: Callable[[], str]) -> None:
    url, agent = new_database(), talk()
    async with Runtime(url, agents=[agent]) as rt:
        await rt.run(agent, "hi")
    behind.execute(url, "UPDATE entries SET v = 99")
    assert {p.code for p in postgres_admin.problems(url)} == {"store_too_new"}


async def test_a_backup_of_the_databases_own_tools_is_a_new_generation_when_it_is_put_back(
    new_database: Callable[[], str], postgres: Server, tmp_path: Path
) -> None:
    url, agent, dump = new_database(), talk(), tmp_path / "dump"
    async with Runtime(f"{url}?lease=0.5") as nobody, Runtime(url, agents=[agent]) as rt:
        done = await rt.run(agent, "hi", session="s", operation_id="1", attachments=[b"a file"])
        await rt.close()
        async with Runtime(url, agents=[Agent("talk", model=Conversation({"hi": stuck}))]) as other:
            unfinished = await other.start("talk", "hi", session="t", operation_id="2")
            await asked.wait()
            tool = postgres.program("pg_dump")
            await asyncio.to_thread(subprocess.run, [tool, "-Fc", "-n", "ondol", "-f", dump, url], check=True)
        with pytest.raises(StoreError, match="is driven by"):
            await postgres_admin.begin_generation(url)
        assert await nobody._store.drivers() != {}
    back = postgres.new_database("template0")
    tool = postgres.program("pg_restore")
    await asyncio.to_thread(subprocess.run, [tool, "-d", back, dump], check=True)
    behind.execute(back, "UPDATE owners SET leased_until = clock_timestamp() + interval '1 second'")  # a quick restore
    assert await postgres_admin.begin_generation(back) == 1
    assert behind.execute(back, "SELECT reltuples FROM pg_class WHERE relname = 'runs'") == [(2,)]
    assert postgres_admin.check(back) == []
    async with Runtime(back, agents=[agent]) as rt:
        again = await rt.start(agent, "hi", session="s", operation_id="1", attachments=[b"a file"])
        assert (await again.result()).body == done.body
        run = await rt.get_run(unfinished.id)
        assert run.status == "parked"
        (ask,) = await run.asks()
        await ask.answer("resume", by="lee")
        assert (await run.result()).text == "ho"


asked = asyncio.Event()


async def stuck(request: Any) -> str:
    asked.set()
    await asyncio.Event().wait()
    return "never"


async def test_a_store_in_a_schema_of_its_own_is_apart_from_another(empty: str) -> None:
    one, two = PostgresStore(f"{empty}?schema=one"), PostgresStore(f"{empty}?schema=order")  # a word of SQL
    for store in (one, two):
        await store.open(lambda: None)
    await one.write(set_meta, "a", "1")
    assert await two.read(get_meta, "a") is None
    for store in (one, two):
        await store.close()
