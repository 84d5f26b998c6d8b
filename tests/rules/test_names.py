"""The names of the package: each is there, from its own module, and none of them is imported before it is asked for."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ondol

IMPORTED = {
    name.name: statement.module
    for statement in ast.walk(ast.parse(Path(ondol.__file__).read_text()))
    if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("ondol.")
    for name in statement.names
    if statement.col_offset == 4  # what type checkers see
}


NEED_SERVER = {"AsyncClient", "Client"}  # the extra


@pytest.mark.parametrize("name", sorted(IMPORTED))
def test_a_public_name_comes_from_the_module_that_type_checkers_are_told(name: str) -> None:
    assert getattr(ondol, name) is getattr(import_module(IMPORTED[name]), name)
    assert (name in dir(ondol)) == (name not in NEED_SERVER)


def test_type_checkers_are_told_of_no_other_names() -> None:
    assert sorted(IMPORTED.keys() - NEED_SERVER) == sorted(ondol.__all__)


def test_a_star_brings_what_is_there_without_any_extra() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('httpx', 'starlette', 'psycopg', 'numpy')))\n"  # not installed
        "from ondol import *; print(Runtime.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Runtime"]


def test_what_there_is_not_is_said_as_python_says_it() -> None:
    with pytest.raises(AttributeError, match="module 'ondol' has no attribute 'nothing'"):
        ondol.nothing  # noqa: B018
    assert not hasattr(ondol, "__main__")  # (it would run)
    assert not hasattr(ondol, "errors.nothing")


def test_a_module_is_there_without_being_imported_by_its_name() -> None:
    program = "import ondol; print(ondol.errors.NotFound is ondol.NotFound, ondol.testing.ManualClock.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "ManualClock"]


def test_only_what_is_asked_for_is_imported() -> None:
    program = (
        "import json, sys, ondol; before = [m for m in sys.modules if m.startswith('ondol.')]; from ondol import tool; "
        "print(json.dumps([before, 'ondol.tools' in sys.modules, 'ondol.runtime' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], True, False]
