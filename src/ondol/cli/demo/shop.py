"""What do the demos act on? Files that stand for the services downstream, and a crash at the worst moment."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ondol.errors import InvalidInput
from ondol.showing import counted

ORDERS = {"1182": {"customer": "kim@example.com", "item": "teapot", "paid": "30"}}
REQUEST = "Order 1182 arrived broken. Refund it and tell the customer."
TO, BODY = "kim@example.com", "Your refund of 30 for the teapot is on its way."
DONE = "Order 1182 is refunded, and the customer was told."


def tell(line: str) -> None:
    """A line, and its end with it: ``print`` writes that alone, and a tool in its thread may have something to say."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


_DB_FILES = ("", "-wal", "-shm", ".lock")
_FILES = ("outbox.jsonl", "refunds.jsonl", "crashed", *(f"ondol.db{end}" for end in _DB_FILES))
_MARK = ".ondol-demo"  # says that the files of these names are a demo's: the store of an app is called ondol.db, too


class Shop:
    """A folder with the mail service's outbox and the bank's refunds, one JSON object a line. ``fresh``: without what
    an earlier demo left; nothing else of the folder goes.

    Raises:
        InvalidInput: a file of such a name is there, and no demo made it.
    """

    def __init__(self, folder: Path, *, fresh: bool) -> None:
        there = [folder / name for name in _FILES if (folder / name).exists()]
        if there and not (folder / _MARK).exists():
            raise InvalidInput(f"{there[0]} is there, and no demo made it: name another folder with --dir")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
        for file in there if fresh else ():
            file.unlink(missing_ok=True)
        self.folder = folder
        self.outbox = folder / "outbox.jsonl"
        self.refunds = folder / "refunds.jsonl"
        self.db = folder / "ondol.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.db}"

    def send(self, key: str, to: str, body: str) -> None:
        """The mail service: whatever it is handed goes out, twice if it is handed over twice."""
        _append(self.outbox, {"key": key, "to": to, "body": body})

    def pay_back(self, key: str, order_id: str, amount: str) -> None:
        """The bank: it knows the key of a refund, and does none twice."""
        if key not in [line["key"] for line in _lines(self.refunds)]:
            _append(self.refunds, {"key": key, "order_id": order_id, "amount": amount})

    def was_sent(self, key: str) -> bool:
        return key in [line["key"] for line in _lines(self.outbox)]

    def emails(self) -> str:
        return _counted(len(_lines(self.outbox)), "e-mail", self.outbox)

    def refunded(self) -> str:
        return _counted(len(_lines(self.refunds)), "refund", self.refunds)


class Crash:
    """The crash of a demo: after the effect, before the tool returns. It comes once, so that the next start goes on."""

    def __init__(self, folder: Path, kill_at: str | None, pause: float, again: str) -> None:
        self.kill_at, self.pause, self.again = kill_at, pause, again
        self._came = folder / "crashed"

    def comes(self, step: str) -> None:
        """Called inside each tool, when its effect is there."""
        at = self.kill_at or ("send_email" if self.pause else None)
        if step != at or self._came.exists():
            return
        self._came.write_text(step)
        pid = os.getpid()
        if self.kill_at:
            tell(f"killed inside {step}: the effect is there, the call has not returned (kill -9 {pid})")
            os.kill(pid, signal.SIGKILL)
        tell(f"inside {step}: the effect is there, the call has not returned")
        tell(f"now, within {self.pause:g} s: kill -9 {pid}")
        tell(f"then run the same command again: {self.again}")
        time.sleep(self.pause)
        tell("nobody killed it, so it goes on as on any good day. Begin anew with --fresh")


def _append(file: Path, line: dict[str, Any]) -> None:
    with file.open("a") as opened:
        opened.write(json.dumps(line) + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _counted(number: int, thing: str, file: Path) -> str:
    return f"{counted(number, thing)} in {file}"
