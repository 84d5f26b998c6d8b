"""What the pages tell a newcomer to type works as it stands; ``pages`` says how it is read."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import get_args

import pytest
from pages import FIVE_MINUTES, ROOT, blocks, looks_like, part, play, run

from ondol import effects, events, journal, transactions, values

STARTER = "examples/starter"  # what `ondol init` makes: its page is typed in a folder that has its files
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for f in ("docs", "examples") for p in (ROOT / f).rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_can_be_typed(page: str, tmp_path: Path) -> None:
    if page.startswith(STARTER):
        shutil.copytree(ROOT / STARTER, tmp_path, dirs_exist_ok=True)
    else:
        (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / page).read_text()
    if page == "README.md":
        section = part(text, FIVE_MINUTES)
        text = text.replace(section, "\n" * section.count("\n"))
    for block in blocks(text):
        play(block, page, tmp_path)


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        there = (ROOT / page).parent / file if file else ROOT / page
        assert there.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.M)
            assert heading in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, target


# --- what concepts.md must not forget ----------------------------------------------------------------------------

CONCEPTS = (ROOT / "docs" / "concepts.md").read_text()


@pytest.mark.parametrize(
    "names",
    [
        {*events.KINDS, "model.delta", "progress"},
        set(get_args(journal.RunStatus)),
        set(get_args(effects.EffectState)) | set(get_args(events.EffectClass)),
        set(get_args(events.AskKind)) | {d for allowed in transactions.DECISIONS.values() for d in allowed},
    ],
    ids=["events", "runs", "effects", "asks"],
)
def test_concepts_name_everything_that_there_is(names: set[str]) -> None:
    assert {name for name in names if f"`{name}`" not in CONCEPTS} == set()


def test_concepts_name_every_tag_of_a_value() -> None:
    tags = set(re.findall(r'"\$ondol": "(\w+)"', values.__doc__ or "")) | {"time", "uuid"}  # two share a line
    assert tags == set(re.findall(r'"\$ondol": "(\w+)"', CONCEPTS))


# --- and the test itself -----------------------------------------------------------------------------------------


def test_a_shown_line_stands_for_itself_and_dots_for_anything() -> None:
    assert looks_like("run r_… is queued\n", "run r_17 is queued")
    assert looks_like("first\n…\nlast", "first\nand\nso on\nlast")
    assert looks_like("ID   STATE", "ID            STATE")
    assert not looks_like("sent", "sent\nsent")
    assert not looks_like("sent to kim", "sent to lee")


def test_a_block_that_is_not_run_says_why() -> None:
    page = (
        "<!-- not run: needs a key -->\n```console\n$ a\n```\n\n```console\n$ b\n```\n\n```python name=c.py\nd\n```\n"
    )
    assert [(b.line, b.language, b.name, b.body) for b in blocks(page)] == [
        (6, "console", None, "$ b\n"),
        (10, "python", "c.py", "d\n"),
    ]


def test_what_a_killed_command_leaves_is_one_word(tmp_path: Path) -> None:
    (tmp_path / "die.py").write_text("import os, signal\nprint('here')\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert run(["python die.py", "echo $?", "printf on", "false"], tmp_path, "block.sh") == [
        ("here\nKilled", 137),
        ("137", 0),
        ("on", 0),
        ("", 1),
    ]
