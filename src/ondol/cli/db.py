"""``ondol db``: is the store sound, and how is it copied, put back, brought up to date?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ondol.cli import codes
from ondol.cli.output import say_error
from ondol.cli.surface import Cli, noun, verb

app = noun("The store: check, backup, restore, migrate.")


@verb(app, "check")
async def check(cli: Cli) -> int:
    """Read everything in the store and say what is wrong; exit 1 if anything is."""
    from ondol.stores import sqlite_admin

    problems = sqlite_admin.check(_existing(cli))
    if cli.out.for_people:
        if not problems:
            cli.out.line(f"{cli.path}: every page, checksum and blob is right")
        for problem in problems:
            say_error("store_corrupt", problem)
    elif cli.out.format == "jsonl":
        cli.out.bodies([("", {"problem": p}) for p in problems])
    else:
        cli.out.bodies([(p, {"problem": p}) for p in problems])
    return codes.FAILED if problems else codes.OK


@verb(app, "backup")
async def backup(cli: Cli, dest: Annotated[Path, typer.Argument(metavar="DEST", help="A new folder.")]) -> None:
    """Copy the store and its blobs into a new folder, while others go on working."""
    from ondol.stores import sqlite_admin

    sqlite_admin.backup(_existing(cli), dest)
    _done(cli, {"backup": str(dest)}, f"{cli.path} is copied to {dest}. To put it back: {_restore(cli, dest)}")


@verb(app, "restore")
async def restore(cli: Cli, src: Annotated[Path, typer.Argument(metavar="SRC", help="A backup's folder.")]) -> None:
    """Make the store out of a backup. Unfinished runs are parked: nobody knows what happened since."""
    from ondol.stores import sqlite_admin

    sqlite_admin.restore(src, cli.path)
    parked = cli.command("runs", "ls", "--state", "parked")
    words = f"{cli.path} is restored from {src}. What was unfinished is parked: {parked}"
    _done(cli, {"restored": str(cli.path)}, words)


@verb(app, "migrate")
async def migrate(cli: Cli) -> None:
    """Bring the store to the schema of this version."""
    from ondol.stores import sqlite_admin

    before, after = sqlite_admin.migrate(_existing(cli))
    words = f"{cli.path} is at schema {after}" + (" already" if before == after else f", it was at {before}")
    _done(cli, {"before": before, "after": after}, words)


def _existing(cli: Cli) -> Path:
    if not cli.path.exists():
        raise codes.NoDatabase(f"there is no database {cli.path}: name it with --db")
    return cli.path


def _done(cli: Cli, body: dict[str, object], words: str) -> None:
    if cli.out.for_people:
        cli.out.line(words)
    else:
        cli.out.bodies([(str(cli.path), body)], one=True)


def _restore(cli: Cli, folder: Path) -> str:
    return cli.command("db", "restore", str(folder))
