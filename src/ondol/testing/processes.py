"""How does a test drive a Python process that may be killed?"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TypeVar

T = TypeVar("T")

_LAST_WORDS = 2.0  # seconds for the rest of the output, which a grandchild that holds the pipe may never end


class Process:
    """A Python process, ended with the block.

        async with Process(["worker.py", "--fast"], env={"ONDOL_DB": "sqlite:///t.db"}) as worker:
            await worker.line("ready")
            worker.kill()
            assert await worker.wait() == -9

    ``args`` are those of ``python``: a script or ``-m module``, and what it is given. ``env`` is added to the
    environment of this process. Standard output and error are captured as they come.
    """

    def __init__(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.args = [os.fspath(arg) for arg in args]
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._cwd = cwd
        self._lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._read_up_to: dict[str, int] = {}  # by prefix, how many lines of stdout were looked at
        self._ended: int | None = None
        self._waiting: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Process:
        self._loop = asyncio.get_running_loop()
        self._spawn()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ended is None:
            self.kill()
            await self.wait()
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def _spawn(self) -> None:
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(
            [sys.executable, *self.args], env=self._env, cwd=self._cwd, stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        readers = [
            threading.Thread(target=self._read, args=("stdout", self._popen.stdout), daemon=True),
            threading.Thread(target=self._read, args=("stderr", self._popen.stderr), daemon=True),
        ]
        for thread in (*readers, threading.Thread(target=self._watch, args=(readers,), daemon=True)):
            thread.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def output(self) -> str:
        """What it wrote to standard output so far."""
        return "\n".join(self._lines["stdout"])

    @property
    def errors(self) -> str:
        """What it wrote to standard error so far."""
        return "\n".join(self._lines["stderr"])

    async def line(self, prefix: str, timeout: float = 30) -> str:
        """Wait for a line of standard output that starts so, and return it. Asked again it waits for the next one.

        Raises TimeoutError after ``timeout`` seconds and RuntimeError when the process ends without it, both with
        everything that was captured.
        """

        def find() -> str | None:
            lines = self._lines["stdout"]
            for at in range(self._read_up_to.get(prefix, 0), len(lines)):
                self._read_up_to[prefix] = at + 1
                if lines[at].startswith(prefix):
                    return lines[at]
            if self._ended is not None:
                raise RuntimeError(f"no line {prefix!r}: {self._state()}")
            return None

        return await self._until(find, timeout, f"no line {prefix!r}")

    async def wait(self, timeout: float = 30) -> int:
        """Return the exit code once it has ended (negative: the signal). Raises TimeoutError after ``timeout`` s."""
        return await self._until(lambda: self._ended, timeout, "it has not ended")

    def send(self, line: str) -> None:
        """Write one line to its standard input."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(line.encode() + b"\n")
        self._popen.stdin.flush()

    def kill(self) -> None:
        """SIGKILL: it ends where it stands."""
        self._popen.kill()

    def terminate(self) -> None:
        """SIGTERM: it is asked to end."""
        self._popen.terminate()

    def stop(self) -> None:
        """SIGSTOP: it stands still when this returns."""
        self._popen.send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # else the signal may take effect a moment later
            self._wait_for_stop()

    async def stopped(self, timeout: float = 30) -> None:
        """Return once it stands still, as after the fault ``stop()``, or has ended. Raises TimeoutError."""
        stopped = threading.Event()

        def watch() -> None:
            self._wait_for_stop()
            stopped.set()
            self._tell()

        threading.Thread(target=watch, daemon=True).start()
        await self._until(lambda: stopped.is_set() or None, timeout, "it goes on")

    def cont(self) -> None:
        """SIGCONT: it goes on."""
        self._popen.send_signal(signal.SIGCONT)

    def _wait_for_stop(self) -> None:
        with contextlib.suppress(ChildProcessError):  # it has ended
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    # --- what the threads see -----------------------------------------------------------------------------------

    def _read(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                self._lines[name].append(line.decode(errors="replace").rstrip("\r\n"))
                self._tell()

    def _watch(self, readers: Sequence[threading.Thread]) -> None:
        code = self._popen.wait()
        for reader in readers:
            reader.join(_LAST_WORDS)
        self._ended = code
        self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _until(self, find: Callable[[], T | None], timeout: float, missing: str) -> T:
        try:
            async with asyncio.timeout(timeout):
                while (found := find()) is None:
                    change: asyncio.Future[None] = self._loop.create_future()
                    self._waiting.append(change)
                    await change
                return found
        except TimeoutError as error:
            raise TimeoutError(f"{missing} after {timeout} s: {self._state()}") from error

    def _state(self) -> str:
        state = "running" if self._ended is None else f"ended with {self._ended}"
        shown = " ".join(self.args)
        return f"python {shown} ({state})\n--- stdout\n{self.output}\n--- stderr\n{self.errors}"
