"""The command as somebody types it: each in a process of its own.

Most are children of one process that has everything imported (``forked.py``), so that a test waits for no import.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

APPS = Path(__file__).with_name("apps.py")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def ids(self) -> list[str]:
        return self.out.split()


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ONDOL_")}
    return {**kept, "FORCE_COLOR": "1", **more}  # no colour in a pipe, whatever a machine's environment says


class _Forks:
    """The process that the commands are children of."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._one_at_a_time = threading.Lock()

    def run(self, request: dict[str, Any]) -> int:
        with self._one_at_a_time:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("forked.py"))],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                atexit.register(self._end)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def _end(self) -> None:
        assert self._process is not None
        self._process.communicate()


_forks = _Forks()


def ondol(*words: str | Path, cwd: Path, stdin: str = "", **env: str) -> Done:
    with TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("in", "out", "err")]
        files[0].write_text(stdin)
        request = {"words": [str(w) for w in words], "cwd": str(cwd), "env": environment(**env)}
        code = _forks.run({**request, "files": [str(f) for f in files]})
        done = Done(code, files[1].read_text(), files[2].read_text())
    assert "Traceback" not in done.err, done.err
    return done


def app(name: str) -> str:
    return f"{APPS}:{name}"
