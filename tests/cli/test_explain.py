"""Every error says its code, and what explains it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ondol.errors import CODES

from .command import app, ondol


def test_all_codes_are_listed_with_what_to_do(tmp_path: Path) -> None:
    assert ondol("explain", "-o", "ids", cwd=tmp_path).ids == list(CODES)
    listed = ondol("explain", cwd=tmp_path).out
    assert all(re.search(rf"^{code} +{re.escape(fix)}$", listed, re.M) for code, fix in CODES.items())


def test_a_code_is_explained_without_a_store_and_without_a_network(tmp_path: Path) -> None:
    page = ondol("explain", "unknown_effect", cwd=tmp_path).out
    assert page.startswith(f"# unknown_effect\n\n> {CODES['unknown_effect']}\n")
    body = ondol("explain", "unknown_effect", "-o", "json", cwd=tmp_path).json
    assert body == {"code": "unknown_effect", "fix": CODES["unknown_effect"], "page": page}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", ["nothing", "../concepts", ""])
def test_a_code_that_does_not_exist_is_not_found(tmp_path: Path, code: str) -> None:
    done = ondol("explain", code, cwd=tmp_path)
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("error [not_found]: ")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["runs", "nonsense"], "usage"),
        (["--db", "nonsense", "runs"], "invalid_input"),
        (["runs", "show", "r_1"], "no_database"),
        (["run", app("refused"), "hello"], "run_failed"),
        (["db", "restore", "nowhere"], "store_error"),
    ],
)
def test_every_error_names_the_command_that_explains_it(tmp_path: Path, words: list[str], code: str) -> None:
    done = ondol(*words, cwd=tmp_path)
    assert done.code != 0
    (line,) = done.err.splitlines()
    said = re.fullmatch(rf"error \[{code}\]: .+ \(ondol explain (\w+)\)", line)
    assert said is not None, line
    assert said[1] == ("model_rejected" if code == "run_failed" else code)
    assert ondol("explain", said[1], cwd=tmp_path).out.startswith(f"# {said[1]}\n")
