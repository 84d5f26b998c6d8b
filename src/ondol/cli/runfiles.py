"""``ondol runs export`` and ``import``: a run as a file, and the file of another machine's run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ondol import files
from ondol.bodies import run_body
from ondol.cli.runs import own_run
from ondol.cli.surface import Cli, Id, typed, verb
from ondol.errors import InvalidInput, OndolError
from ondol.runtime import Runtime


def add_to(app: typer.Typer) -> None:
    verb(app, "export")(export)
    verb(app, "import")(import_)


async def export(
    cli: Cli,
    id: Id,
    no_blobs: Annotated[bool, typer.Option("--no-blobs", help="Leave the bytes of attachments out.")] = False,
) -> None:
    """Print a run as one file, with all that happened in it: 'ondol runs export RUN > FILE'."""
    async with cli.runtime() as rt:
        run = await own_run(rt, id)
        cli.out.line(await rt.export_run(run.id, blobs=not no_blobs))


async def import_(
    cli: Cli,
    file: Annotated[list[str], typer.Argument(metavar="FILE...", help="'-' reads one from standard input.")],
    forget: Annotated[
        bool, typer.Option("--forget", help="The other way round: remove these imported runs, named by their ids.")
    ] = False,
) -> None:
    """Keep the exported runs of another machine, to be looked at. Nothing drives or changes them here."""
    if forget:
        await cli.for_each(file, lambda rt, run: _forget(cli, rt, run))
        return
    done: list[tuple[str, Any]] = []
    async with cli.runtime(makes=True) as rt:
        for name in file:
            try:
                imported = await rt.import_run(_read(name), name="standard input" if name == "-" else name)
            except OndolError as error:
                cli.failed(error)
                continue
            done.append((imported.id, run_body(imported.run) | {"imported": True}))
            if cli.out.for_people:
                shown = cli.command("runs", "show", imported.id)
                cli.out.line(f"run {imported.id} ({imported.run.status}) is imported, to be looked at only: {shown}")
    if not cli.out.for_people:
        cli.out.bodies(done, one=True)


async def _forget(cli: Cli, rt: Runtime, run: str) -> tuple[str, Any]:
    await rt.forget_import(run)
    if cli.out.for_people:
        cli.out.line(f"the imported run {run} is removed")
    return run, {"id": run, "removed": True}


def _read(name: str) -> str:
    try:
        return typed() if name == "-" else files.read(Path(name)).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{name} is no text ({error.reason}): name a file of 'ondol runs export'") from error
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read ({error.strerror}): name a file of 'ondol runs export'") from error
