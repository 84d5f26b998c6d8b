"""``ondol init``: a project that works, to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ondol.cli.packed import packed
from ondol.cli.surface import Cli, verb
from ondol.errors import InvalidInput

FILES = ("app.py", "test_app.py", "README.md", ".gitignore")


def add_to(app: typer.Typer) -> None:
    verb(app, "init")(init)


async def init(
    cli: Cli, folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or an empty one.")]
) -> None:
    """Make a project: an agent with two tools, a test, a README. It runs offline as it is."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file: name a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty: name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write((packed("examples/starter") / name).read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written ({error.strerror}): name another folder") from error
    if not cli.out.for_people:
        cli.out.bodies([(str(folder), {"folder": str(folder), "files": list(FILES)})], one=True)
        return
    cli.out.line(f"{folder} has {', '.join(FILES)}. Try it:")
    cli.out.line(f"  cd {shlex.quote(str(folder))}")
    cli.out.line('  ondol run app.py:agent "Write to kim" --operation-id first')
