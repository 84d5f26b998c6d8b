"""Does ``docs/guarantees.md`` claim only what a test proves, and leave out nothing?"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from torture import campaign
from torture.test_kill import CELLS, KINDS
from torture.test_kill import POINTS as KILLED_AT

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guarantees.md"

_DEFINITION = re.compile(r"^\[([^\]\s]+)\]: (\S+)$", re.M)
_REFERENCE = re.compile(r"\[([^\[\]\s]+)\](?![(:])")  # a link with its address in the text is none
_CODE = re.compile(r"`[^`]*`")
IDS = [*(f"B{n}" for n in range(19)), *(f"P{n}" for n in range(1, 8)), *(f"N{n}" for n in range(1, 16))]

TEXT = PAGE.read_text()
BODY = _CODE.sub("", _DEFINITION.sub("", TEXT))
DEFINED = _DEFINITION.findall(TEXT)
TARGETS = dict(DEFINED)
SECTIONS = {part.split("\n", 1)[0]: part for part in re.split(r"^## ", BODY, flags=re.M)[1:]}


def references(text: str) -> list[str]:
    return _REFERENCE.findall(text)


def row(id: str) -> str:
    """The line of a table that is about this, or the item of a list with the lines that belong to it."""
    found = re.findall(rf"^\| {id} \|.*$|^- \*\*{id}\*\* .*(?:\n  .+)*", BODY, re.M)
    assert len(found) <= 1, f"{id} is there {len(found)} times"
    return found[0] if found else ""


def tables() -> list[tuple[str, list[list[str]]]]:
    """Of each section, the cells of the rows of its tables, without the rows of the header."""
    found = []
    for title, text in SECTIONS.items():
        rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
        found.append((title, rows[2:]))
    return found


@functools.cache
def functions(file: Path) -> dict[str, ast.AST]:
    """Every function of a file by its name, methods too."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def called_in(function: ast.AST) -> set[str]:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {f.attr if isinstance(f, ast.Attribute) else f.id for f in calls if isinstance(f, ast.Attribute | ast.Name)}


@pytest.mark.parametrize(("label", "target"), DEFINED, ids=[label for label, _ in DEFINED])
def test_a_reference_leads_to_a_test_that_exists(label: str, target: str) -> None:
    path, _, name = target.partition("#")
    file = (PAGE.parent / path).resolve()
    assert file.is_file(), f"[{label}]: there is no file {path}"
    assert name in functions(file), f"[{label}]: there is no test {name} in {path}"
    if not name.startswith("test_"):  # a sentence that tests look at when they are over
        of = functions(ROOT / "tests" / "crash" / "invariants.py")
        checks = called_in(of["hold"]) | called_in(of["hold_at_any_time"])
        assert name in checks, f"[{label}]: {name} is no test, and nothing looks at it"


def test_every_reference_is_defined_once_and_used() -> None:
    assert len(TARGETS) == len(DEFINED), "a label is defined twice"
    assert len(set(TARGETS.values())) == len(DEFINED), "one test has two labels"
    assert set(references(BODY)) == set(TARGETS)


@pytest.mark.parametrize("id", IDS)
def test_every_promise_has_a_proof(id: str) -> None:
    assert references(row(id)), f"{id} is claimed without a proof"


def test_every_cell_of_a_table_has_a_proof() -> None:
    for title, rows in tables():
        given = 2 if title in ("Boundaries and faults", "Trouble with the store") else 1  # cells that name the case
        for cells in rows:
            for cell in cells[given:]:
                assert cell == "–" or references(cell), f"{title}, {cells[0]}: {cell}"


@pytest.mark.parametrize(
    "title", ["Siblings", "Settling an unknown", "Asks", "Seven sentences", "Double-texting", "As assertions"]
)
def test_every_item_of_a_list_has_a_proof(title: str) -> None:
    items = re.findall(r"^- .*(?:\n  .+)*", SECTIONS[title], re.M)
    assert items
    assert [item for item in items if not references(item)] == []


def test_every_family_of_faults_proves_something() -> None:
    linked = {target.partition("#")[0] for target in TARGETS.values()}
    assert [name for name in campaign.names() if f"../tests/torture/test_{name}.py" not in linked] == []


def test_a_process_is_killed_at_every_boundary() -> None:
    """B15 is no instant, but a revision that somebody moved."""
    boundaries = {cells[0] for cells in next(rows for title, rows in tables() if title == "Boundaries and faults")}
    assert {point.partition(",")[0] for point in KILLED_AT} >= boundaries - {"B15"}


def test_the_cells_at_which_a_process_is_killed_are_counted_right() -> None:
    assert len(KILLED_AT) * len(KINDS) == 90
    assert f"these {len(KILLED_AT) * len(KINDS)} cells six do not exist" in " ".join(TEXT.split())
    assert f"The other {len(CELLS)} cells are tried" in TEXT
    assert len(CELLS) == 90 - 6


def test_the_faults_of_a_boundary_are_proved_by_tests_of_that_boundary() -> None:
    """A test that names its boundary and fault stands in no other cell's place."""
    for cells in next(rows for title, rows in tables() if title == "Boundaries and faults"):
        for fault, cell in zip("kcdz", cells[2:], strict=True):
            for label in references(cell):
                name = TARGETS[label].partition("#")[2]
                named = re.match(r"test_((?:b\d\d_)*)(?:([kcdz])_)?", name)
                assert named is not None
                assert named[2] in (None, fault), f"{cells[0]}, {fault}: {name}"


def test_nothing_is_said_about_what_is_not_ondol() -> None:
    assert re.findall(r"/(?:home|work|tmp|root)\b|PROMISE|DESIGN", TEXT) == []


# --- and the test itself ----------------------------------------------------------------------------------------


def test_references_are_told_from_other_brackets() -> None:
    assert references("seen [b07_k] and [Concepts](concepts.md), [d]; a list: [two words]") == ["b07_k", "d"]
