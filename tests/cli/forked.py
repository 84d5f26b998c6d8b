"""Runs commands, each in a forked child, with everything imported before. One JSON object a line says which."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import apsw  # noqa: F401
import pydantic  # noqa: F401
import rich.console
import rich.table  # noqa: F401

import ondol.stores.sqlite_admin
import ondol.testing  # noqa: F401
from ondol.cli.app import run

TOO_LONG = 30  # seconds; then the child is killed, and the test sees -14


def child(request: dict[str, Any]) -> int:
    signal.alarm(TOO_LONG)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, (path, flags) in enumerate(zip(request["files"], (os.O_RDONLY, WRITE, WRITE), strict=True)):
        os.dup2(os.open(path, flags, 0o600), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    return run(request["words"])


WRITE = os.O_WRONLY | os.O_CREAT | os.O_APPEND

for line in sys.stdin:
    if (pid := os.fork()) == 0:
        code = 1
        try:
            code = child(json.loads(line))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
