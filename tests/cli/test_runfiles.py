"""A run as a file, from one store to another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .command import Done, app, ondol

HERE, THERE = ("--db", "sqlite:///here.db"), ("--db", "sqlite:///there.db")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``run.json``: a run that waits for an approval, exported from one store and imported into another."""
    cwd = tmp_path_factory.mktemp("files")
    (cwd / "note.txt").write_text("a note")
    asked = ("refund it", "--session", "w", "--operation-id", "k", "--file", "note.txt")
    assert ondol(*HERE, "run", app("asking"), *asked, cwd=cwd).code == 6
    (run,) = ondol(*HERE, "runs", "-o", "ids", cwd=cwd).ids
    exported = ondol(*HERE, "runs", "export", run, cwd=cwd)
    assert (exported.code, exported.err) == (0, "")
    (cwd / "run.json").write_text(exported.out)
    (cwd / "id.txt").write_text(run)
    imported = ondol(*THERE, "runs", "import", "run.json", cwd=cwd)
    assert (imported.code, imported.err) == (0, "")
    assert imported.out == f"run {run} (waiting) is imported, to be looked at only: ondol {THERE[0]} {THERE[1]} " + (
        f"runs show {run}\n"
    )
    return cwd


def both(folder: Path, *words: str) -> tuple[Done, Done]:
    run = (folder / "id.txt").read_text()
    here, there = (ondol(*db, *words, run, "-o", "json", cwd=folder) for db in (HERE, THERE))
    assert here.code == there.code
    return here, there


def test_an_imported_run_is_shown_as_where_it_ran(folder: Path) -> None:
    here, there = both(folder, "runs", "show")
    copy = there.json
    assert copy.pop("imported")
    assert copy.pop("exported_at").endswith("Z")
    assert copy == here.json
    here, there = both(folder, "context")
    assert there.json == here.json
    assert there.json["matches"]
    here, there = both(folder, "runs", "watch")
    assert (there.code, there.out) == (6, here.out)
    run = (folder / "id.txt").read_text()
    shown = ondol(*THERE, "runs", "show", run, cwd=folder).out
    assert 'refund(order_id="1182", amount=30)' in shown
    assert "imported, to be looked at only: as it was at " in shown
    assert "to decide" not in shown


def test_an_imported_run_is_only_looked_at(folder: Path) -> None:
    run = (folder / "id.txt").read_text()
    tried = (
        ["cancel"],
        ["resume"],
        ["resume", "--app", app("asking")],
        ["replay"],
        ["replay", "--dry-run"],
        ["fork", "--at", "1"],
        ["export"],
    )
    for verb, *words in tried:
        refused = ondol(*THERE, "runs", verb, run, *words, cwd=folder)
        assert (refused.code, refused.err.startswith(f"error [read_only]: run {run} was imported")) == (5, True)
    assert ondol(*THERE, "runs", "-o", "ids", cwd=folder).out == ""
    assert ondol(*THERE, "asks", "-o", "ids", cwd=folder).out == ""
    assert ondol(*THERE, "runs", "--imported", "-o", "ids", cwd=folder).ids == [run]
    assert ondol(*THERE, "runs", "show", run, "-o", "json", cwd=folder).json["state"] == "waiting"


def test_a_file_comes_from_standard_input_and_is_removed_again(folder: Path, tmp_path: Path) -> None:
    run, file = (folder / "id.txt").read_text(), (folder / "run.json").read_text()
    first = ondol("runs", "import", "-", "-o", "json", cwd=tmp_path, stdin=file).json
    assert (first["id"], first["state"], first["imported"]) == (run, "waiting", True)
    assert ondol("runs", "import", "-", "-o", "ids", cwd=tmp_path, stdin=file).ids == [run]
    removed = ondol("runs", "import", "--forget", run, cwd=tmp_path)
    assert (removed.code, removed.out) == (0, f"the imported run {run} is removed\n")
    assert ondol("runs", "import", "--forget", run, cwd=tmp_path).code == 4
    assert ondol("runs", "show", run, cwd=tmp_path).code == 4
    empty = ondol("runs", "ls", "--imported", cwd=tmp_path)
    assert "no imported runs in" in empty.out


def test_what_is_wrong_with_a_file_is_said_and_the_next_one_is_taken(folder: Path, tmp_path: Path) -> None:
    file = (folder / "run.json").read_text()
    (tmp_path / "cut.json").write_text(file[:-300])
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "good.json").write_text(file)
    names = ("cut.json", "binary", "missing.json", "/dev/zero", "good.json")
    done = ondol("runs", "import", *names, "-o", "ids", cwd=tmp_path)
    assert done.code == 1  # of the first
    assert [line.split(":")[0] for line in done.err.splitlines()] == [
        "error [file_damaged]", "error [invalid_input]", "error [invalid_input]", "error [invalid_input]",
    ]  # fmt: skip
    assert done.ids == [(folder / "id.txt").read_text()]


def test_attachments_are_left_out_on_demand(folder: Path) -> None:
    run = (folder / "id.txt").read_text()
    with_bytes = json.loads((folder / "run.json").read_text())["blobs"]
    without = ondol(*HERE, "runs", "export", run, "--no-blobs", cwd=folder).json["blobs"]
    assert [(b["size"], b["data"]) for b in with_bytes] == [(6, "YSBub3Rl")]
    assert [(b["size"], b["data"]) for b in without] == [(6, None)]
    assert ondol(*HERE, "runs", "export", "r_nobody", cwd=folder).code == 4
