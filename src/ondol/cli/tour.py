"""The demo that runs by itself: the usual loop and Ondol, both killed with kill -9 in the middle, both run again."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

_PAUSE = 1.9  # seconds that the mail is held, to be killed in; its time-out is 2
_PATIENCE = 45.0  # seconds for all of it


async def tour() -> int:
    """Returns 0 if the usual loop sent two e-mails and Ondol one."""
    folder = Path(tempfile.mkdtemp(prefix="tour-"))
    async with asyncio.timeout(_PATIENCE):
        print("The usual loop, killed (kill -9) inside send_email, then started again:", flush=True)
        killed = await _demo("naive", folder / "naive", kill=True)
        print("  -- started again")
        ended = await _demo("naive", folder / "naive", kill=False)
        print("The same work on Ondol, killed (kill -9) at the same place, then started again:", flush=True)
        killed = await _demo("refund", folder / "refund", kill=True) and killed
        print("  -- started again")
        ended = await _demo("refund", folder / "refund", kill=False) and ended
    naive, durable = _emails(folder / "naive"), _emails(folder / "refund")
    print()
    print(f"naive: {naive} e-mail{'s' * (naive != 1)} in {folder / 'naive' / 'outbox.jsonl'}")
    print(f"ondol: {durable} e-mail{'s' * (durable != 1)} in {folder / 'refund' / 'outbox.jsonl'}", flush=True)
    return 0 if killed and ended and (naive, durable) == (2, 1) else 1


async def _demo(name: str, folder: Path, *, kill: bool) -> bool:
    """Run a demo in a process of its own; with ``kill`` until it is inside send_email. True if it ended like that."""
    command = [sys.executable, "-m", "ondol", "demo", name, "--dir", str(folder), "--pause", str(_PAUSE)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        async for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if kill and line.startswith("now, within"):
                process.send_signal(signal.SIGKILL)
                print(f"  killed      with kill -9 {process.pid}", flush=True)
            elif not kill or not line.startswith("then run"):
                print(f"  {line}", flush=True)
        return await process.wait() == (-signal.SIGKILL if kill else 0)
    finally:
        if process.returncode is None:
            process.kill()


def _emails(folder: Path) -> int:
    outbox = folder / "outbox.jsonl"
    return len(outbox.read_text().splitlines()) if outbox.exists() else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(tour()))
