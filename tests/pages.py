"""What does a page tell a newcomer to type, and what comes of it?

A block ``python name=hello.py`` (or ``toml``) is a file. A block ``console`` is typed: ``$`` begins a command, the
lines below it are its whole output, where ``…`` stands for anything, on a line of its own for any lines; a command that
shows no output must end well. What needs a network or a key stands below ``<!-- not run: why -->``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = Path(sys.executable).parent
TRUSTED = str(Path(__file__).with_name("nobody.pem"))  # one certificate, of which nobody has the key
OUTSIDE = "CERTIFICATES_OUTSIDE"  # what was trusted before, for what speaks TLS: the installer
TIMEOUT = 60.0  # seconds for one block
END = "@@ended"
FIVE_MINUTES = "## Five minutes"  # of README.md: typed in a folder and in an environment that have nothing

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


def part(page: str, heading: str) -> str:
    """The part of a page below a heading, up to the next one of its level."""
    begins = page.index(f"\n{heading}\n") + 1
    ends = page.find(f"\n{heading.split()[0]} ", begins)
    return page[begins:] if ends == -1 else page[begins : ends + 1]


def typed(body: str) -> list[Typed]:
    before, *commands = re.split(r"^\$ ", body, flags=re.M)
    assert not before.strip(), f"a line before the first '$': {before}"
    return [Typed(*c.partition("\n")[::2]) for c in commands]


def environment(programs: Path) -> dict[str, str]:
    """Of a shell that finds its programs there first, and in which nothing of this test run is set."""
    ours = ("ONDOL", "OPENAI", "PYTEST")
    here = {k: v for k, v in os.environ.items() if not k.startswith(ours) and v != TRUSTED}
    if trusted := here.pop(OUTSIDE, ""):
        here["SSL_CERT_FILE"] = trusted
    return here | {"PATH": f"{programs}{os.pathsep}{here['PATH']}", "PYTHONUNBUFFERED": "1"}


def run(
    commands: list[str], cwd: Path, name: str, programs: Path = HERE, timeout: float = TIMEOUT
) -> list[tuple[str, int]]:
    """Type them into one shell; returns what each printed, and its exit code."""
    ends = f"__code=$?; printf '\\n{END} %s\\n' $__code; (exit $__code)"
    script = cwd / name
    script.write_text("exec 2>&1\n" + "".join(f"{command}\n{ends}\n" for command in commands))
    shell = subprocess.Popen(
        ["bash", script.name], cwd=cwd, env=environment(programs), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        shown, _ = shell.communicate(timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)  # what it began and did not wait for, or what hangs
        shell.communicate()
    said = re.split(rf"^{END} (\d+)$", shown, flags=re.M)
    ended = zip(said[:-1:2], said[1::2], strict=True)
    return [(_KILLED.sub("Killed", out.strip("\n")), int(code)) for out, code in ended]


def looks_like(shown: str, out: str) -> bool:
    """Is that what a page shows? Widths of columns are not compared."""
    lines = [re.escape(" ".join(line.split())).replace("…", ".*") for line in shown.rstrip("\n").split("\n")]
    pattern = "".join(r"(?:.*\n)*" if line == ".*" else line + "\n" for line in lines)
    said = "".join(" ".join(line.split()) + "\n" for line in out.split("\n"))
    return re.fullmatch(pattern, said) is not None


def play(block: Block, page: str, folder: Path, programs: Path = HERE, timeout: float = TIMEOUT) -> None:
    """Do what a block says: keep it as a file, or type it and compare what is printed with what is shown."""
    where = f"{page}, line {block.line}"
    match block.language:
        case "python" | "toml":
            assert block.name is not None, f"{where}: it has no name= to be written under"
            (folder / block.name).write_text(block.body)
        case "console":
            lines = typed(block.body)
            ended = run([line.command for line in lines], folder, f"block{block.line}.sh", programs, timeout)
            assert len(ended) == len(lines), f"{where}: the shell stopped after {ended}"
            for line, (out, code) in zip(lines, ended, strict=True):
                if line.shown.strip():
                    assert looks_like(line.shown, out), f"{where}: {line.command}\n--- exit {code}\n{out}"
                else:
                    assert code == 0, f"{where}: {line.command}\n--- exit {code}\n{out}"
        case "json":
            json.loads(block.body)
        case "text" | "mermaid":
            pass
        case other:
            raise AssertionError(f"{where}: {other!r} is neither run nor marked 'not run: why'")
