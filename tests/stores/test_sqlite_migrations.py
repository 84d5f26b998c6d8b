"""A store opens at any version up to ours, ends up like a fresh one, and a file that is not ours is left alone."""

from __future__ import annotations

import importlib.resources
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from faulty_disk import faulty_disk

from ondol.errors import StoreCorrupt, StoreError, StoreFull, StoreTooNew
from ondol.queries import get_meta, get_session, list_effects
from ondol.stores.migrations import migrations
from ondol.stores.sqlite import SqliteStore
from ondol.stores.sqlite_admin import check, migrate
from ondol.transactions import set_meta

STEPS = migrations()


def at_version(file: Path, version: int) -> Path:
    """A store as the Ondol of that version left it."""
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for step in STEPS[:version]:
            connection.execute(step)
        connection.execute(f"PRAGMA user_version = {version}")
        if version:
            connection.execute("INSERT INTO meta (key, value) VALUES ('colour', 'red')")
    return file


def schema(file: Path) -> list[tuple[object, ...]]:
    with closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
        statistics = connection.execute("SELECT * FROM sqlite_stat1 ORDER BY 1, 2, 3").fetchall()
        return [*rows, *statistics, (connection.execute("PRAGMA user_version").get,)]


def bytes_of(folder: Path) -> dict[str, bytes]:
    """All files, but for SQLite's index of a log, which is made anew by each who comes first, and a log of nothing."""
    files = {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}
    return {n: data for n, data in files.items() if not n.endswith("-shm") and not (n.endswith("-wal") and not data)}


async def opened(file: Path) -> SqliteStore:
    store = SqliteStore(file)
    await store.open(lambda: None)
    return store


async def refused(file: Path, error: type[StoreError], words: str) -> None:
    """It is refused by a message that names it, and each byte beside it stays as it was."""
    before = bytes_of(file.parent)
    try:
        await opened(file)
    except error as refusal:
        said = str(refusal)
    else:
        pytest.fail(f"{file} was opened")
    assert words in said
    assert str(file) in said
    for left in apsw.connections():  # what the refusal left open, the end of the process would close
        if left.filename == str(file):
            left.close()
    assert bytes_of(file.parent) == before


# --- versions ---------------------------------------------------------------------------------------------------


def test_each_step_has_its_number_and_none_is_left_out() -> None:
    folder = importlib.resources.files("ondol.stores").joinpath("sqlite_migrations")
    assert sorted(f.name for f in folder.iterdir()) == [f"{n:04}.sql" for n in range(1, len(STEPS) + 1)]


@pytest.mark.parametrize("version", range(len(STEPS) + 1))
async def test_a_migrated_store_is_like_a_fresh_one(tmp_path: Path, version: int) -> None:
    fresh = await opened(tmp_path / "fresh.db")
    await fresh.close()
    old = at_version(tmp_path / "old.db", version)
    store = await opened(old)
    assert await store.read(get_meta, "colour") == ("red" if version else None)
    await store.close()
    assert schema(old) == schema(tmp_path / "fresh.db")
    assert check(old) == []


async def test_effects_of_the_first_version_are_listed_in_the_order_of_their_runs(tmp_path: Path) -> None:
    file = at_version(tmp_path / "old.db", 1)
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("INSERT INTO tenants VALUES ('t')")
        connection.execute("""
            INSERT INTO sessions (tenant, id, revision, state, next_message, next_place, created_at, updated_at)
            VALUES ('t', 's', 0, '{}', 0, 2, 1, 1)""")
        for place, run in enumerate(("r_b", "r_c", "r_a")):
            connection.execute(
                """
                INSERT INTO runs (tenant, id, session, user_id, operation_id, fingerprint, agent, definition, trigger,
                  door, state, place, next_seq, accepted_at, updated_at)
                VALUES ('t', :run, 's', '', :run, '', 'a', 'd', 'api', '', 'queued', :place, 1, 1, 1)""",
                {"run": run, "place": place},
            )
            connection.execute(
                """
                INSERT INTO effects (tenant, run, session, ordinal, tool, effect, call_id, reply, arguments, state)
                VALUES ('t', ?, 's', 0, 'x', 'read', '', 2, '{}', 'succeeded')""",
                (run,),
            )
    store = await opened(file)
    assert [e.run for e in await store.read(list_effects, "t")] == ["r_a", "r_c", "r_b"]
    await store.close()


async def test_forks_of_forks_of_a_session_that_an_older_version_deleted_say_that_a_part_is_erased(
    tmp_path: Path,
) -> None:
    file = at_version(tmp_path / "old.db", 14)
    sessions = [
        ("deleted", None, None, 1), ("fork", None, 2, None), ("below", "fork", 4, None), ("lowest", "below", 6, None),
        ("deleted fork", "other", 2, 1), ("other", None, None, None), ("whole", "other", 2, None),
        ("of the first run", None, 0, None),
    ]  # fmt: skip
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("INSERT INTO tenants VALUES ('t')")
        connection.executemany(
            """
            INSERT INTO sessions (tenant, id, revision, state, next_message, next_place, created_at, updated_at,
              parent, parent_until, deleted_at)
            VALUES ('t', ?1, 0, '{}', 9, 2, 1, 1, ?2, ?3, ?4)""",
            sessions,
        )
    store = await opened(file)
    found = {id: await store.read(get_session, "t", id) for id, *_, deleted in sessions if not deleted}
    assert {id for id, row in found.items() if row.is_orphan} == {"fork", "below", "lowest"}
    await store.close()


@pytest.mark.parametrize("version", range(1, len(STEPS) + 1))
def test_migrate_says_from_where_to_where(tmp_path: Path, version: int) -> None:
    old = at_version(tmp_path / "old.db", version)
    assert migrate(old) == (version, len(STEPS))
    assert migrate(old) == (len(STEPS), len(STEPS))
    assert check(old) == []


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of a version that is still to come; a test adds to them."""
    steps = list(STEPS)
    for module in ("sqlite", "sqlite_admin"):
        monkeypatch.setattr(f"ondol.stores.{module}.migrations", lambda: tuple(steps))
    return steps


async def test_the_next_version_migrates_what_this_one_wrote(tmp_path: Path, next_version: list[str]) -> None:
    file = tmp_path / "ondol.db"
    store = await opened(file)
    await store.write(set_meta, "kept", "yes")
    await store.close()
    next_version += ["CREATE TABLE one (a)", "CREATE TABLE two (a); INSERT INTO two VALUES (7)"]
    assert any("migrate" in problem for problem in check(file))
    assert migrate(file) == (len(STEPS), len(STEPS) + 2)
    assert check(file) == []
    store = await opened(file)
    assert await store.read(get_meta, "kept") == "yes"
    await store.close()


async def test_a_migration_that_breaks_half_way_leaves_the_store_as_it_was(
    tmp_path: Path, next_version: list[str]
) -> None:
    file = at_version(tmp_path / "ondol.db", len(STEPS))
    before = schema(file)
    next_version += ["CREATE TABLE one (a)", "CREATE TABLE two (a); INSERT INTO nowhere VALUES (1)"]
    with pytest.raises(StoreError, match="nowhere"):
        await opened(file)
    assert schema(file) == before
    with pytest.raises(StoreError, match="nowhere"):
        migrate(file)
    assert schema(file) == before
    del next_version[-2:]
    assert check(file) == []


async def test_a_store_that_another_process_makes_at_this_moment_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "ondol.db"

    def another() -> None:
        with closing(apsw.Connection(str(file), vfs="unix")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for step in STEPS:
                connection.execute(step)
            connection.execute(f"PRAGMA user_version = {len(STEPS)}")
            connection.execute("COMMIT")

    with faulty_disk() as disk:
        disk.between = another
        store = await opened(file)
        assert disk.between is None, "nobody came between"
        await store.write(set_meta, "a", "1")
        await store.close()
    assert check(file) == []


async def test_a_lock_on_a_new_file_is_waited_for(tmp_path: Path) -> None:
    """Another process is half way through making the same store, and gives way when ours has met its lock."""
    file = tmp_path / "ondol.db"
    with closing(apsw.Connection(str(file))) as other, faulty_disk() as disk:
        for step in STEPS:
            other.execute(step)
        other.execute(f"PRAGMA user_version = {len(STEPS)}")
        other.execute("BEGIN IMMEDIATE")
        met = []

        def give_way() -> None:
            if not met:
                other.execute("ROLLBACK")
            met.append(True)

        disk.busy = give_way
        store = await opened(file)
        assert met, "it met no lock"
        await store.write(set_meta, "a", "1")
        await store.close()
    assert check(file) == []


# --- files that are not ours ------------------------------------------------------------------------------------


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "ondol.db").touch()
    store = await opened(tmp_path / "ondol.db")
    await store.write(set_meta, "a", "1")
    await store.close()
    assert check(tmp_path / "ondol.db") == []


async def test_a_newer_store_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file = at_version(tmp_path / "ondol.db", len(STEPS))
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    await refused(file, StoreTooNew, "upgrade Ondol")
    before = bytes_of(tmp_path)
    with pytest.raises(StoreTooNew):
        migrate(file)
    assert any("upgrade Ondol" in problem for problem in check(file))
    assert bytes_of(tmp_path) == before


async def test_a_newer_store_that_a_crash_left_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """Its last commits are in the log beside it: an older version must not even move them into the file."""
    file = at_version(tmp_path / "newer.db", len(STEPS))
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
        for name in ("newer.db", "newer.db-wal"):
            (crashed / name).write_bytes((tmp_path / name).read_bytes())
    assert (crashed / "newer.db-wal").stat().st_size > 0
    await refused(crashed / "newer.db", StoreTooNew, "upgrade Ondol")


async def test_a_sqlite_file_of_somebody_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with closing(apsw.Connection(str(tmp_path / "theirs.db"))) as connection:
        connection.execute("CREATE TABLE addresses (a); INSERT INTO addresses VALUES (1)")
    await refused(tmp_path / "theirs.db", StoreCorrupt, "not Ondol's: name another file")
    assert any("name another file" in problem for problem in check(tmp_path / "theirs.db"))


async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    for name, content in (("letter.txt", b"Dear Sir or Madam"), ("short.txt", b"SQ"), ("zeros.db", bytes(8192))):
        (tmp_path / name).write_bytes(content)
        await refused(tmp_path / name, StoreCorrupt, "not a SQLite file")


async def test_a_missing_file_whose_log_is_there_is_refused_and_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "ondol.db-wal").write_bytes(b"the last commits")
    await refused(tmp_path / "ondol.db", StoreCorrupt, "put the file back or restore a backup")
    assert not (tmp_path / "ondol.db").exists()


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="make it, or name another file"):
        await opened(tmp_path / "nowhere" / "ondol.db")
    assert bytes_of(tmp_path) == {}
    assert not (tmp_path / "nowhere").exists()


async def test_a_full_disk_leaves_no_half_made_store(tmp_path: Path) -> None:
    file = tmp_path / "ondol.db"
    with faulty_disk() as disk:
        disk.space = 20_000  # less than an empty store takes
        with pytest.raises(StoreFull, match="free some"):
            await opened(file)
        disk.space = None
        store = await opened(file)
        await store.write(set_meta, "a", "1")
        await store.close()
    assert check(file) == []
