"""A project to begin with, which works as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ondol.cli.init import FILES

from .command import environment, ondol

STARTER = Path(__file__).parents[2] / "examples" / "starter"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projects") / "of" / "mine"
    done = ondol("init", folder, cwd=folder.parents[1])
    assert (done.code, done.err) == (0, "")
    return folder


def test_a_new_project_has_the_files_of_the_starter(project: Path) -> None:
    assert {p.name for p in project.iterdir()} == set(FILES)
    assert all((project / name).read_text() == (STARTER / name).read_text() for name in FILES)


def test_the_agent_of_a_new_project_runs_offline_from_wherever_it_is_named(project: Path) -> None:
    cwd = project.parents[1]
    run = ("run", f"{project.relative_to(cwd)}/app.py:agent", "Write to kim", "--operation-id", "first")
    assert ondol(*run, cwd=cwd).out == "sent to kim\n"
    assert ondol(*run, cwd=cwd).out == "sent to kim\n"
    assert len((cwd / "outbox.txt").read_text().splitlines()) == 1


def test_the_tests_of_a_new_project_pass(project: Path) -> None:
    pytest_q = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(pytest_q, cwd=project, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("there", ["app.py", ".git/config"])
def test_a_folder_that_is_not_empty_is_left_as_it_is(tmp_path: Path, there: str) -> None:
    file = tmp_path / "mine" / there
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    done = ondol("init", "mine", cwd=tmp_path)
    assert done.code == 2
    assert done.err.startswith("error [invalid_input]: mine is not empty: ")
    assert [p for p in (tmp_path / "mine").rglob("*") if p.is_file()] == [file]
    assert file.read_text() == "mine"


def test_a_project_may_be_made_in_an_empty_folder_and_not_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    made = ondol("init", "empty", "-o", "json", cwd=tmp_path)
    assert made.json == {"folder": "empty", "files": list(FILES)}
    (tmp_path / "file").touch()
    for wrong in ("file", "file/below"):
        assert ondol("init", wrong, cwd=tmp_path).code == 2
