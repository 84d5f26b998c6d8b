"""What the pages tell a newcomer to type works as it stands.

A block ``python name=hello.py`` (or ``toml``) is a file. A block ``console`` is typed: ``$`` begins a command, the
lines below it are its whole output, where ``…`` stands for anything, on a line of its own for any lines; a command that
shows no output must end well. What needs a network or a key stands below ``<!-- not run: why -->``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from ondol import effects, events, journal, transactions, values

ROOT = Path(__file__).parents[1]
STARTER = "examples/starter"  # what `ondol init` makes: its page is typed in a folder that has its files
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for f in ("docs", "examples") for p in (ROOT / f).rglob("*.md"))]
TIMEOUT = 60.0  # seconds for one block
END = "@@ended"

_FENCE = re.compile(r"^```(\w*)(?: name=(\S+))?$\n(.*?)^```$", re.M | re.S)
_NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*\Z")
_KILLED = re.compile(r"^\S+: line \d+: +\d+ Killed\b.*$", re.M)


@dataclass(frozen=True, slots=True)
class Block:
    """``line`` is where it begins in its page."""

    line: int
    language: str
    name: str | None
    body: str


@dataclass(frozen=True, slots=True)
class Typed:
    command: str
    shown: str


def blocks(page: str) -> Iterator[Block]:
    """What a page wants to be run, in order."""
    for found in _FENCE.finditer(page):
        if _NOT_RUN.search(page[: found.start()]) is None:
            yield Block(page.count("\n", 0, found.start()) + 1, found[1], found[2], found[3])


def typed(body: str) -> list[Typed]:
    before, *commands = re.split(r"^\$ ", body, flags=re.M)
    assert not before.strip(), f"a line before the first '$': {before}"
    return [Typed(*c.partition("\n")[::2]) for c in commands]


def run(commands: list[str], cwd: Path, name: str) -> list[tuple[str, int]]:
    """Type them into one shell; returns what each printed, and its exit code."""
    ends = f"__code=$?; printf '\\n{END} %s\\n' $__code; (exit $__code)"
    script = cwd / name
    script.write_text("exec 2>&1\n" + "".join(f"{command}\n{ends}\n" for command in commands))
    here = {k: v for k, v in os.environ.items() if not k.startswith(("ONDOL", "OPENAI", "PYTEST"))}
    here |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{here['PATH']}", "PYTHONUNBUFFERED": "1"}
    shell = subprocess.run(
        ["bash", script.name], cwd=cwd, env=here, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        timeout=TIMEOUT, check=False,
    )  # fmt: skip
    said = re.split(rf"^{END} (\d+)$", shell.stdout, flags=re.M)
    ended = zip(said[:-1:2], said[1::2], strict=True)
    return [(_KILLED.sub("Killed", out.strip("\n")), int(code)) for out, code in ended]


def looks_like(shown: str, out: str) -> bool:
    """Is that what a page shows? Widths of columns are not compared."""
    lines = [re.escape(" ".join(line.split())).replace("…", ".*") for line in shown.rstrip("\n").split("\n")]
    pattern = "".join(r"(?:.*\n)*" if line == ".*" else line + "\n" for line in lines)
    said = "".join(" ".join(line.split()) + "\n" for line in out.split("\n"))
    return re.fullmatch(pattern, said) is not None


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_can_be_typed(page: str, tmp_path: Path) -> None:
    if page.startswith(STARTER):
        shutil.copytree(ROOT / STARTER, tmp_path, dirs_exist_ok=True)
    else:
        (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in blocks((ROOT / page).read_text()):
        where = f"{page}, line {block.line}"
        match block.language:
            case "python" | "toml":
                assert block.name is not None, f"{where}: it has no name= to be written under"
                (tmp_path / block.name).write_text(block.body)
            case "console":
                lines = typed(block.body)
                ended = run([line.command for line in lines], tmp_path, f"block{block.line}.sh")
                assert len(ended) == len(lines), f"{where}: the shell stopped after {ended}"
                for line, (out, code) in zip(lines, ended, strict=True):
                    if line.shown.strip():
                        assert looks_like(line.shown, out), f"{where}: {line.command}\n--- exit {code}\n{out}"
                    else:
                        assert code == 0, f"{where}: {line.command}\n--- exit {code}\n{out}"
            case "text" | "mermaid":
                pass
            case other:
                raise AssertionError(f"{where}: {other!r} is neither run nor marked 'not run: why'")


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    headings = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


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
