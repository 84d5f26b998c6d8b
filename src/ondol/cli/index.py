"""``ondol index``: folders of documents become a collection that agents can search."""

from __future__ import annotations

from typing import Annotated

import typer

from ondol.cli.surface import Cli, verb
from ondol.errors import InvalidInput
from ondol.ids import DEFAULT_TENANT


def add_to(app: typer.Typer) -> None:
    verb(app, "index")(index)


async def index(
    cli: Cli,
    path: Annotated[list[str] | None, typer.Argument(metavar="PATH...", help="Files and folders.")] = None,
    collection: Annotated[str, typer.Option("--collection", "-c", metavar="C", help="The collection.")] = "documents",
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="NAME", help="A document or folder of the collection that is to go."),
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="T", help="Whose documents.")] = DEFAULT_TENANT,
) -> None:
    """Make text, Markdown, HTML and PDF findable. What is unchanged is not read again, what is gone is removed."""
    if not path and not remove:
        raise InvalidInput("nothing to do: name files or folders, or what is to go with --remove")
    async with cli.runtime(acts=True, makes=True) as rt:
        done = await rt.index(path or [], remove=remove or [], collection=collection, tenant=tenant)
    body = {
        "collection": collection, "added": done.added, "changed": done.changed, "unchanged": done.unchanged,
        "removed": done.removed, "skipped": done.skipped,
    }  # fmt: skip
    if not cli.out.for_people:
        cli.out.bodies([(name, body) for name in [collection]], one=True)
        return
    for what in ("added", "changed", "removed"):
        for name in getattr(done, what):
            cli.out.line(f"{what} {name}")
    for name, why in done.skipped.items():
        cli.out.line(f"skipped {name}: {why}")
    findable = len(done.added) + len(done.changed) + len(done.unchanged)
    if path:
        cli.out.line(f"{collection}: {findable} of these documents can be found")
