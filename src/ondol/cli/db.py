"""``ondol db``: is the store sound, and how is it copied, put back, brought up to date?"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from ondol.cli import codes
from ondol.cli.output import say_failed
from ondol.cli.surface import Cli, noun, verb
from ondol.errors import InvalidInput, StoreError
from ondol.stores import open_store

app = noun("The store: check, backup, restore, migrate.")


@verb(app, "check")
async def check(cli: Cli) -> int:
    """Read everything in the store and say what is wrong; exit 1 if anything is."""
    cli.needs_store()
    problems = await asyncio.to_thread(_problems, cli)
    if cli.out.for_people:
        if not problems:
            read = "page, checksum and blob" if cli.is_file else "checksum and blob"
            cli.out.line(f"{_name(cli)}: every {read} is right")
        for problem in problems:
            say_failed(problem)
    else:
        cli.out.bodies([(str(p), {"code": p.code, "problem": str(p)}) for p in problems])
    return codes.FAILED if problems else codes.OK


def _problems(cli: Cli) -> list[StoreError]:
    if not cli.is_file:
        open_store(cli.url)  # raises where it takes an extra
        from ondol.stores import postgres_admin

        return postgres_admin.problems(cli.url)
    from ondol.stores import sqlite_admin

    return sqlite_admin.problems(_existing(cli))


@verb(app, "backup")
async def backup(cli: Cli, dest: Annotated[Path, typer.Argument(metavar="DEST", help="A new folder.")]) -> None:
    """Copy the store and its blobs into a new folder, while others go on working."""
    from ondol.stores import sqlite_admin

    cli.needs_store()
    if not cli.is_file:
        raise InvalidInput(
            "a database is backed up by its own tools, blobs and all: pg_dump --format=custom --schema=ondol "
            f"--file={dest} DATABASE"
        )
    sqlite_admin.backup(_existing(cli), dest)
    _done(cli, {"backup": str(dest)}, f"{cli.path} is copied to {dest}. To put it back: {_restore(cli, dest)}")


@verb(app, "restore")
async def restore(cli: Cli, src: Annotated[Path, typer.Argument(metavar="SRC", help="A backup's folder.")]) -> None:
    """Make the store out of a backup. Unfinished runs are parked: nobody knows what happened since."""
    from ondol.stores import sqlite_admin

    cli.needs_store()
    if not cli.is_file:
        raise InvalidInput(
            f"a database is put back by its own tools: pg_restore --dbname=DATABASE {src}. Then, before any process "
            f"opens it: {cli.command('db', 'restored')}"
        )
    sqlite_admin.restore(src, cli.path)
    parked = cli.command("runs", "ls", "--state", "parked")
    words = f"{cli.path} is restored from {src}. What was unfinished is parked: {parked}"
    _done(cli, {"restored": str(cli.path)}, words)


@verb(app, "restored")
async def restored(cli: Cli) -> None:
    """PostgreSQL: say that a backup was put back. Unfinished runs are parked: nobody knows what happened since."""
    cli.needs_store()
    if cli.is_file:
        raise InvalidInput(f"a file is restored by one command: {cli.command('db', 'restore', 'SRC')}")
    open_store(cli.url)
    from ondol.stores import postgres_admin

    n = await postgres_admin.begin_generation(cli.url)
    parked = cli.command("runs", "ls", "--state", "parked")
    words = f"{_name(cli)} is a new generation. What was unfinished ({n}) is parked: {parked}"
    _done(cli, {"restored": _name(cli), "parked": n}, words)


@verb(app, "migrate")
async def migrate(
    cli: Cli,
    sql: Annotated[bool, typer.Option("--sql", help="PostgreSQL: only print what an administrator would run.")] = False,
    post: Annotated[
        bool, typer.Option("--post", help="PostgreSQL: also remove what no process of this version needs.")
    ] = False,
) -> None:
    """Bring the store to the schema of this version."""
    cli.needs_store()
    if cli.is_file:
        from ondol.stores import sqlite_admin

        if sql or post:
            raise InvalidInput("--sql and --post are for PostgreSQL: a file is migrated by whoever opens it")
        before, after = sqlite_admin.migrate(_existing(cli))
    else:
        open_store(cli.url)
        from ondol.stores import postgres_admin

        if sql:
            script = await asyncio.to_thread(postgres_admin.migration_script, cli.url, post=post)
            sys.stdout.write(script or f"-- {_name(cli)} is at the schema of this version already\n")
            return
        before, after = await asyncio.to_thread(postgres_admin.migrate, cli.url, post=post)
    words = f"{_name(cli)} is at schema {after}" + (" already" if before == after else f", it was at {before}")
    _done(cli, {"before": before, "after": after}, words)


def _name(cli: Cli) -> str:
    """The store as it is shown: without a password."""
    if cli.is_file:
        return str(cli.path)
    from ondol.stores.postgres_place import Place

    return Place.of(cli.url).name


def _existing(cli: Cli) -> Path:
    if not cli.path.exists():
        raise codes.NoDatabase(f"there is no database {cli.path}: name it with --db")
    return cli.path


def _done(cli: Cli, body: dict[str, object], words: str) -> None:
    if cli.out.for_people:
        cli.out.line(words)
    else:
        cli.out.bodies([(_name(cli), body)], one=True)


def _restore(cli: Cli, folder: Path) -> str:
    return cli.command("db", "restore", str(folder))
