"""``ondol demo``: the proof. A crash in the middle, in the usual loop and on Ondol. Offline, without a key."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from ondol.cli import tour
from ondol.cli.demo import durable, naive
from ondol.cli.demo.shop import Crash, Shop
from ondol.cli.surface import Cli, noun, verb

app = noun("The proof: a crash in the middle. Offline, no key.")

Dir = Annotated[
    Path | None, typer.Option("--dir", metavar="D", help="Where it keeps its files. [default: ondol-demo/NAME]")
]
KillAt = Annotated[
    Literal["find_order", "refund", "send_email"] | None,
    typer.Option("--kill-at", help="Kill the process there, after the effect and before the tool returns."),
]
Pause = Annotated[
    float, typer.Option("--pause", metavar="SECONDS", min=0, help="How long it waits inside send_email to be killed.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Begin anew: remove what an earlier demo left.")]

_PAUSE = 20.0  # seconds: time enough to read the line and type a kill


def _begin(name: str, dir: Path | None, kill_at: str | None, pause: float, fresh: bool) -> tuple[Shop, Crash, str]:
    folder = dir or Path("ondol-demo") / name
    again = f"ondol demo {name}" + (f" --dir {shlex.quote(str(dir))}" if dir else "")
    return Shop(folder, fresh=fresh), Crash(folder, kill_at, 0.0 if kill_at else pause, again), again


@verb(app, "tour")
async def _tour(cli: Cli) -> int:
    """Both loops, each killed with kill -9. It runs by itself, as the bare 'ondol demo' does."""
    return await tour.tour()


@verb(app, "naive")
async def _naive(
    cli: Cli, dir: Dir = None, kill_at: KillAt = None, pause: Pause = _PAUSE, fresh: Fresh = False
) -> None:
    """The usual loop, killed in the middle and run again: two e-mails."""
    shop, crash, _ = _begin("naive", dir, kill_at, pause, fresh)
    naive.run(shop, crash)


@verb(app, "refund")
async def _refund(
    cli: Cli, dir: Dir = None, kill_at: KillAt = None, pause: Pause = _PAUSE, fresh: Fresh = False
) -> int:
    """The same on Ondol, killed at the same place: one e-mail."""
    shop, crash, again = _begin("refund", dir, kill_at, pause, fresh)
    return await durable.run(durable.refund_agent(shop, crash), shop, crash, again)


@verb(app, "unknown")
async def _unknown(
    cli: Cli, dir: Dir = None, kill_at: KillAt = None, pause: Pause = _PAUSE, fresh: Fresh = False
) -> int:
    """The same, and nothing can look what happened: it asks, and does not guess."""
    shop, crash, again = _begin("unknown", dir, kill_at, pause, fresh)
    return await durable.run(durable.unknown_agent(shop, crash), shop, crash, again)


@verb(app, "approval")
async def _approval(cli: Cli, dir: Dir = None, kill_at: KillAt = None, pause: Pause = 0.0, fresh: Fresh = False) -> int:
    """A refund that a person approves: the question survives a restart."""
    shop, crash, again = _begin("approval", dir, kill_at, pause, fresh)
    return await durable.run(durable.approval_agent(shop, crash), shop, crash, again)
