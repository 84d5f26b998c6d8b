"""Lists, details, the store and its health."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from postgres import Server

from ondol.cli.surface import Cli, Options

from .command import app, environment, ondol


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two completed runs of one session, and one that waits."""
    cwd = tmp_path_factory.mktemp("looking")
    db = ("--db", "sqlite:///t.db")
    ondol(*db, "run", app("hello"), "say hi to kim", "--session", "s", "--operation-id", "k1", cwd=cwd)
    zone = ("--time-zone", "Asia/Seoul")
    ondol(*db, "run", app("hello"), "say hi to lee", "--session", "s", "--operation-id", "k2", *zone, cwd=cwd)
    ondol(*db, "run", app("asking"), "refund it", "--session", "w", "--operation-id", "k3", cwd=cwd)
    return cwd


def test_an_empty_list_says_what_fills_it_and_makes_no_file(tmp_path: Path) -> None:
    for noun in ("runs", "asks", "effects", "sessions", "audit"):
        done = ondol(noun, cwd=tmp_path)
        assert (done.code, done.out.count("\n")) == (0, 1)
        assert done.err.startswith("(there is no database ondol.db: name it with --db")  # it may be another folder
        assert "'ondol " in done.out
    assert ondol("runs", "-o", "json", cwd=tmp_path).json == []
    assert ondol("runs", "-o", "ids", cwd=tmp_path).out == ""
    done = ondol("db", "check", cwd=tmp_path)
    assert (done.code, done.err.startswith("error [no_database]: ")) == (4, True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_queued_names_the_one_that_it_waits_behind(tmp_path: Path) -> None:
    db = ("--db", "sqlite:///t.db")
    for text in ("refund it", "and then?"):
        assert ondol(*db, "run", app("asking"), text, "--session", "w", cwd=tmp_path).code == 6
    second, first = ondol(*db, "runs", "-o", "ids", cwd=tmp_path).ids
    told = f"it waits behind run {first} (waiting): ondol --db sqlite:///t.db runs show {first}\n"
    assert told in ondol(*db, "runs", "show", second, cwd=tmp_path).out
    ondol(*db, "runs", "cancel", first, cwd=tmp_path)
    assert "waits behind" not in ondol(*db, "runs", "show", first, second, cwd=tmp_path).out


def test_streams_that_are_closed_or_full_are_no_bugs(tmp_path: Path) -> None:
    ondol_ = f"{sys.executable} -m ondol"
    lines = f"{ondol_} asks approve - <&- >&-; echo $?; {ondol_} runs 2>&- | wc -l; {ondol_} explain >/dev/full"
    done = subprocess.run(["sh", "-c", lines], cwd=tmp_path, capture_output=True, text=True, env=environment())
    missing, full = done.stderr.splitlines()
    assert missing.startswith("error [no_database]")
    assert full.startswith("error [error]: standard output cannot be used (No space left on device): free some space")
    assert (done.stdout.split(), done.returncode) == (["4", "1"], 1)


def test_a_database_without_the_extra_that_reaches_it_names_that(tmp_path: Path) -> None:
    program = "import sys; sys.modules['psycopg'] = None; from ondol.cli import main; main(sys.argv[1:])"
    words = ["--db", "postgresql://app@127.0.0.1:1/app", "db", "check"]
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "pip install 'ondol[postgres]'" in done.stderr) == (2, True)


def test_a_database_without_a_store_is_looked_at_and_none_is_made(postgres: Server, tmp_path: Path) -> None:
    db = postgres.new_database("template0")
    doctor = ondol("--db", db, "doctor", "-o", "json", cwd=tmp_path)
    (store,) = [finding for finding in doctor.json if finding["check"] == "store"]
    assert (doctor.code, store["state"], store["found"]) == (0, "note", f"there is no store in {shown(db)}")
    listed = ondol("--db", db, "runs", "-o", "ids", cwd=tmp_path)
    assert (listed.code, listed.out, f"there is no store in {shown(db)}" in listed.err) == (0, "", True)
    assert ondol("--db", db, "runs", "show", "r_nobody", cwd=tmp_path).err.startswith("error [no_database]: ")
    assert postgres.execute("SELECT to_regnamespace('ondol')", db.rpartition("/")[2]) == [(None,)]


def shown(db: str) -> str:
    return db.replace("postgres@", "")


def test_what_is_looked_at_is_shown_without_its_password() -> None:
    for url in ("postgresql://me:canary@h/x?lease=9", "postgresql://me@h/x?password=canary&lease=9&sslpassword=canary"):
        assert Cli(Options(db=url), None).place == "postgresql://me@h/x?lease=9"


def test_global_options_stand_before_or_after_the_noun_or_in_the_environment(folder: Path) -> None:
    db = ("--db", "sqlite:///t.db")
    three = ondol(*db, "-o", "ids", "runs", cwd=folder).ids
    assert len(three) == 3
    assert ondol("runs", *db, "-o", "ids", cwd=folder).ids == three
    assert ondol("runs", *db, "ls", "-o", "ids", cwd=folder).ids == three
    assert ondol("runs", "ls", "-o", "ids", *db, "--no-color", cwd=folder).ids == three
    assert ondol("runs", "-o", "ids", cwd=folder, ONDOL_DB="sqlite:///t.db").ids == three
    assert ondol("--db", "nonsense", "runs", cwd=folder).code == 2
    assert ondol("-o", "xml", "runs", cwd=folder).code == 2
    assert ondol("runs", "nonsense", cwd=folder).code == 2


@pytest.mark.parametrize("option", ["--db", "--url"])
def test_an_empty_variable_is_no_store_and_no_server(folder: Path, option: str) -> None:
    for words in ([option, "", "runs"], ["runs", "ls", option, ""]):
        done = ondol(*words, cwd=folder)
        assert done.code == 2, done.out
        assert f"{option} names nothing" in done.err


def test_lists_are_filtered_and_never_cut_or_coloured_in_a_pipe(folder: Path) -> None:
    db = ("--db", "sqlite:///t.db")
    listed = ondol(*db, "runs", cwd=folder)
    header, *rows = listed.out.splitlines()
    assert header.split() == ["ID", "STATE", "AGENT", "SESSION", "OPERATION", "ACCEPTED"]
    assert [row.split()[1:5] for row in rows] == [
        ["waiting", "asking", "w", "k3"], ["completed", "hello", "s", "k2"], ["completed", "hello", "s", "k1"],
    ]  # fmt: skip
    assert rows[1].endswith("+09:00")  # in the run's own zone
    assert "\x1b" not in listed.out
    lines = ondol(*db, "runs", "--session", "s", "-o", "jsonl", cwd=folder).out.splitlines()
    assert [json.loads(line)["operation_id"] for line in lines] == ["k2", "k1"]
    for filtered in ("runs --state failed", "asks --session s", "effects --state unknown", "sessions --after z"):
        noun = filtered.split()[0]  # an ask does wait, in another session
        assert ondol(*db, *filtered.split(), cwd=folder).out.startswith(f"no such {noun} in "), filtered


def test_a_long_cell_makes_its_own_line_long_and_no_other(tmp_path: Path) -> None:
    db = ("--db", "sqlite:///t.db")
    for session, operation in (("s", "k" * 200), ("w", "k")):
        ondol(*db, "run", app("hello"), "hi", "--session", session, "--operation-id", operation, cwd=tmp_path)
    header, short, long = ondol(*db, "runs", cwd=tmp_path).out.splitlines()
    assert "k" * 200 in long
    assert len(header) < len(short) < 200
    assert header.index("ACCEPTED") == short.index("20", short.index(" k "))


def test_a_run_is_shown_with_all_that_happened(folder: Path) -> None:
    db = ("--db", "sqlite:///t.db")
    id = ondol(*db, "runs", "--state", "waiting", "-o", "ids", cwd=folder).ids[0]
    shown = ondol(*db, "runs", "show", id, cwd=folder)
    for said in ("waiting", "asking", "k3", "effects", 'refund(order_id="1182", amount=30)', "asks", "run.accepted"):
        assert said in shown.out
    assert f"to decide: ondol {' '.join(db)} asks approve a_" in shown.out
    body = ondol(*db, "runs", "show", id, "-o", "json", cwd=folder).json
    assert [e["class"] for e in body["effects"]] == ["idempotent"]
    assert [e["type"] for e in body["events"]][-1] == "run.waiting"
    two = ondol(*db, "runs", "show", "-", "-o", "jsonl", cwd=folder, stdin=f"{id}\nr_nobody\n{id}")
    assert (two.code, len(two.out.splitlines())) == (4, 1)


@pytest.mark.parametrize(
    "verb", ["runs watch", "runs replay --dry-run", "runs fork --at 9", "context", "sessions pins"]
)
def test_a_command_that_takes_one_id_reads_it_from_standard_input(folder: Path, verb: str) -> None:
    db, words = ("--db", "sqlite:///t.db"), verb.split()
    listed = ondol(*db, "sessions" if "sessions" in words else "runs", "-o", "ids", cwd=folder)
    given = ondol(*db, *words, listed.ids[0], "-o", "json", cwd=folder)
    assert ondol(*db, *words, "-", "-o", "json", cwd=folder, stdin=listed.ids[0] + "\n") == given
    two = ondol(*db, *words, "-", cwd=folder, stdin=listed.out)
    assert (two.code, "takes one id, and there are" in two.err) == (2, True)


def test_sessions_are_shown_and_erased(folder: Path) -> None:
    db = ("--db", "sqlite:///t.db")
    assert ondol(*db, "sessions", "-o", "ids", cwd=folder).ids == ["s", "w"]
    said = ondol(*db, "sessions", "show", "s", cwd=folder).out
    assert "say hi to kim" in said
    assert "hello lee" in said
    busy = ondol(*db, "sessions", "rm", "w", cwd=folder)
    assert (busy.code, busy.err.startswith("error [session_busy]: ")) == (5, True)
    stale = ondol(*db, "sessions", "rm", "s", "--revision", "7", cwd=folder)
    assert (stale.code, stale.err.startswith("error [revision_conflict]: ")) == (5, True)
    assert ondol(*db, "db", "backup", "copy", cwd=folder).code == 0
    assert ondol(*db, "sessions", "rm", "s", cwd=folder).code == 0
    assert ondol(*db, "sessions", "show", "s", cwd=folder).code == 4
    run = ondol(*db, "runs", "--session", "s", "-o", "ids", cwd=folder).ids[0]
    erased = ondol(*db, "runs", "show", run, cwd=folder)
    assert (erased.code, "completed" in erased.out, "kim" in erased.out) == (0, True, False)
    assert "what was said and done in it was erased with its session" in erased.out
    unseen = ondol(*db, "context", run, cwd=folder)
    assert (unseen.code, "its session was deleted" in unseen.err) == (4, True)
    gone = ondol(*db, "run", app("hello"), "say hi to kim", "--session", "s", "--operation-id", "k1", cwd=folder)
    assert (gone.code, gone.err.startswith("error [operation_expired]: ")) == (5, True)
    restored = ondol("--db", "sqlite:///back.db", "db", "restore", "copy", cwd=folder)
    assert restored.code == 0
    assert "say hi to kim" in ondol("--db", "sqlite:///back.db", "sessions", "show", "s", cwd=folder).out
    (parked,) = ondol("--db", "sqlite:///back.db", "runs", "--state", "parked", "-o", "ids", cwd=folder).ids
    resumed = ondol("--db", "sqlite:///back.db", "runs", "resume", parked, "--app", app("asking"), cwd=folder)
    assert resumed.code == 6  # it goes on, and waits for its approval again


def test_a_parked_run_stays_parked_where_it_cannot_go_on(folder: Path, tmp_path: Path) -> None:
    """The word of a person is not given by a command that fails."""
    assert ondol("--db", "sqlite:///t.db", "db", "backup", str(tmp_path / "backup"), cwd=folder).code == 0
    db = ("--db", "sqlite:///back.db")
    assert ondol(*db, "db", "restore", "backup", cwd=tmp_path).code == 0
    (parked,) = ondol(*db, "runs", "--state", "parked", "-o", "ids", cwd=tmp_path).ids
    other = "from ondol import Agent\n\nother = Agent('other', model='script:demo')\n"
    (tmp_path / "other.py").write_text(other)
    for elsewhere, why in (("nowhere.py:asking", "there is no file"), ("other.py:other", "is of agent 'asking'")):
        failed = ondol(*db, "runs", "resume", parked, "--app", elsewhere, cwd=tmp_path)
        assert (failed.code, why in failed.err) == (2, True)
        assert ondol(*db, "runs", "--state", "parked", "-o", "ids", cwd=tmp_path).ids == [parked]
    assert "ask.resume" not in ondol(*db, "audit", cwd=tmp_path).out


def test_the_context_of_each_step_can_be_seen(folder: Path) -> None:
    db = ("--db", "sqlite:///t.db")
    id = ondol(*db, "runs", "--session", "w", "-o", "ids", cwd=folder).ids[0]
    seen = ondol(*db, "context", id, "--step", "1", cwd=folder)
    assert "(as recorded)" in seen.out
    assert "refund it" in seen.out
    missing = ondol(*db, "context", id, "--step", "9", cwd=folder)
    assert missing.code == 4
    assert "has no step 9: say 1" in missing.err


def test_the_store_is_checked_and_migrated(folder: Path) -> None:
    db = ("--db", "sqlite:///t.db")
    assert ondol(*db, "db", "check", cwd=folder).code == 0
    assert "already" in ondol(*db, "db", "migrate", cwd=folder).out


def test_a_store_that_is_not_damaged_is_not_called_damaged(folder: Path, tmp_path: Path) -> None:
    """'store_corrupt' tells people to put a backup back: over a file that only another version can read."""
    whole = sqlite3.connect(folder / "t.db")
    with sqlite3.connect(tmp_path / "t.db") as copy:
        whole.backup(copy)
        newest = copy.execute("PRAGMA user_version").fetchone()[0]
    for version, code, move in ((9999, "store_too_new", "upgrade Ondol"), (newest - 1, "store_error", "db migrate")):
        with sqlite3.connect(tmp_path / "t.db") as copy:
            copy.execute(f"PRAGMA user_version = {version}")
        done = ondol("--db", "sqlite:///t.db", "db", "check", cwd=tmp_path)
        assert (done.code, done.err.startswith(f"error [{code}]: ")) == (1, True)
        assert move in done.err
        (found,) = ondol("--db", "sqlite:///t.db", "db", "check", "-o", "json", cwd=tmp_path).json
        assert found["code"] == code
        assert move in found["problem"]


def test_a_run_whose_journal_is_damaged_is_not_watched_in_silence(tmp_path: Path) -> None:
    db = ("--db", "sqlite:///t.db")
    ondol(*db, "run", app("hello"), "say hi to kim", cwd=tmp_path)
    with sqlite3.connect(tmp_path / "t.db") as damaged:
        damaged.execute("UPDATE entries SET body = replace(body, 'completed', 'competed')")
    done = ondol(*db, "runs", "watch", ondol(*db, "runs", "-o", "ids", cwd=tmp_path).out.strip(), cwd=tmp_path)
    assert (done.code, done.err.startswith("error [store_corrupt]: ")) == (1, True)


def test_the_doctor_says_what_mends_each_thing_and_never_a_key(folder: Path, tmp_path: Path) -> None:
    well = ondol("--db", "sqlite:///t.db", "doctor", "-o", "json", cwd=folder, OPENAI_API_KEY="sk-canary")
    assert well.code == 0
    assert "canary" not in well.out + well.err
    assert {f["check"] for f in well.json} >= {
        "python",
        "sqlite",
        "model key",
        "disk",
        "schema",
        "journal mode",
        "driver",
    }
    (tmp_path / "none.db").write_bytes(b"this is no database" * 300)
    broken = ondol("--db", "sqlite:///none.db", "doctor", "-o", "json", cwd=tmp_path)
    assert broken.code == 1
    assert all(f["fix"] for f in broken.json if f["state"] == "wrong")
    (tmp_path / "folder.db").mkdir()
    unread = ondol("--db", "sqlite:///folder.db", "doctor", "-o", "json", cwd=tmp_path)
    wrong = [(f["check"], f["found"], f["fix"]) for f in unread.json if f["state"] == "wrong"]
    assert wrong == [("schema", f"{tmp_path / 'folder.db'} is a folder", "name a file")]
    with sqlite3.connect(tmp_path / "new.db") as newer:
        newer.execute("PRAGMA user_version = 99")
    assert ondol("--db", "sqlite:///new.db", "doctor", cwd=tmp_path).code == 1
    refused = ondol("--db", "sqlite:///new.db", "runs", "show", "r_1", cwd=tmp_path)
    assert (refused.code, refused.err.startswith("error [store_too_new]: ")) == (1, True)


def test_importing_the_library_loads_no_command_line_and_nothing_that_is_slow_to_import() -> None:
    slow = {"typer", "rich", "ondol.cli", "pydantic", "httpx", "fastapi", "psycopg", "apsw", "numpy"}
    code = f"import sys, ondol; assert not {slow} & set(sys.modules), {slow} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_is_given_for_every_command(tmp_path: Path) -> None:
    assert ondol(cwd=tmp_path).out == ondol("--help", cwd=tmp_path).out
    assert "Exit codes" in ondol("-h", cwd=tmp_path).out
    assert "--operation-id" in ondol("run", "--help", cwd=tmp_path).out
    assert "resume" in ondol("runs", "--help", cwd=tmp_path).out
    assert ondol("--version", cwd=tmp_path).out.startswith("ondol 0.")
