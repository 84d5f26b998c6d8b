"""``ondol openapi``: what does the HTTP door offer?"""

from __future__ import annotations

import typer

from ondol.cli.packed import packed
from ondol.cli.surface import Cli, verb


def add_to(app: typer.Typer) -> None:
    verb(app, "openapi")(openapi)


async def openapi(cli: Cli) -> None:
    """Print the description of the HTTP door (OpenAPI 3.1), for generators of clients."""
    cli.out.line((packed("docs") / "openapi.json").read_text("utf-8").rstrip("\n"))
