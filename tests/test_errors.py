"""Every error has a code, one line on what to do, and a page that an installed Ondol can show."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from ondol import Agent, InvalidInput, Runtime, errors
from ondol.cli import codes  # the command line has errors of its own
from ondol.errors import CODES, EndCode, ModelError, ModelErrorKind, OndolError, RunFailed

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "errors"
HEADINGS = ["What happened", "Why", "What to do", "Example"]


def classes(base: type[OndolError] = OndolError) -> Iterator[type[OndolError]]:
    """Those of Ondol itself: tests and users have some of their own."""
    if base.__module__.startswith("ondol."):
        yield base
    for sub in base.__subclasses__():
        yield from classes(sub)


OF_CLASSES = {c.code for c in classes()}
SAID = {  # by the command line, about what is no exception of ours
    node.args[0].value
    for path in (ROOT / "src" / "ondol" / "cli").rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say_error"
    if isinstance(node.args[0], ast.Constant)
}


def test_every_error_has_a_code_of_its_own_and_every_code_belongs_to_something() -> None:
    assert codes.NoDatabase in {*classes()}
    assert len(OF_CLASSES) == len({*classes()}), "two classes share a code"
    assert {*OF_CLASSES, *get_args(EndCode), *SAID} == set(CODES)


@pytest.mark.parametrize("kind", get_args(ModelErrorKind))
def test_a_model_error_has_the_code_with_which_its_run_ends(kind: ModelErrorKind) -> None:
    error = ModelError(kind, "no")
    assert error.code == f"model_{kind}"
    assert error.code in get_args(EndCode)
    assert error.fix == CODES[error.code]


def test_a_failed_run_is_explained_by_what_it_failed_with() -> None:
    failed = RunFailed("it failed", run="r_1", error={"code": "limit_steps", "message": "m"})
    assert (failed.code, failed.explained_by, failed.fix) == ("run_failed", "limit_steps", CODES["limit_steps"])
    assert RunFailed("it failed", run="r_1").explained_by == "run_failed"
    of_a_newer_version = RunFailed("it failed", run="r_1", error={"code": "limit_of_tomorrow", "message": "m"})
    assert of_a_newer_version.fix == CODES["run_failed"]
    assert type("Theirs", (OndolError,), {"code": "theirs"})("x").fix == CODES["error"]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = dict.fromkeys(re.findall(r"^ [ │├└─]*([A-Z]\w+)", errors.__doc__ or "", re.M))
    defined = [c.__name__ for c in classes() if c.__module__ == "ondol.errors"]
    assert sorted(drawn) == sorted(defined)


# --- pages ------------------------------------------------------------------------------------------------------


def test_there_is_a_page_for_each_code_and_no_other() -> None:
    assert {page.stem for page in PAGES.iterdir()} == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_a_page_says_what_happened_why_and_what_to_do(code: str) -> None:
    page = (PAGES / f"{code}.md").read_text()
    title, fix, rest = page.split("\n\n", 2)
    assert (title, fix) == (f"# {code}", f"> {CODES[code]}")
    parts = re.split(r"^## (.+)\n\n", rest, flags=re.M)
    assert parts[1::2] == HEADINGS
    assert all(body.strip() for body in parts[2::2])


def test_a_line_on_what_to_do_is_one_line_that_ends() -> None:
    assert [c for c, fix in CODES.items() if "\n" in fix or not fix.endswith(".") or len(fix) > 110] == []


# --- from an installed package ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked: what ``pip install`` leaves."""
    dist, site = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    built = subprocess.run([sys.executable, "-c", build, dist], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(dist / built.stdout.split()[-1]) as wheel:
        wheel.extractall(site)
    return site


def test_an_installed_package_explains_each_code(installed: Path) -> None:
    explain_all = (
        "import json, ondol; from ondol.cli.explain import page; from ondol.errors import CODES;"
        "print(json.dumps([ondol.__file__, {code: page(code) for code in CODES}]))"
    )
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", explain_all], cwd=installed, env=env, capture_output=True, text=True, check=True
    )
    where, pages = json.loads(done.stdout)
    assert Path(where).is_relative_to(installed)
    assert pages == {code: (PAGES / f"{code}.md").read_text() for code in CODES}


def test_an_installed_package_makes_a_project(installed: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    init = [sys.executable, "-m", "ondol", "init", "mine"]
    subprocess.run(init, cwd=tmp_path, env=env, check=True, capture_output=True)
    starter = ROOT / "examples" / "starter"
    assert (tmp_path / "mine" / "app.py").read_text() == (starter / "app.py").read_text()


async def test_run_sync_in_an_event_loop_says_what_to_write(tmp_path: Path) -> None:
    agent = Agent("a", model="script:demo")
    with pytest.raises(InvalidInput, match="use 'await rt"):
        Runtime(f"sqlite:///{tmp_path}/ondol.db", agents=[agent]).run_sync(agent, "hello")


def test_a_store_in_memory_is_refused_and_no_file_is_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="would keep nothing: name a file"):
        Runtime("sqlite:///:memory:")
    assert not list(tmp_path.iterdir())
