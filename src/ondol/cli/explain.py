"""``ondol explain``: what does a code mean, and what is to be done about it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ondol.cli.output import Column
from ondol.cli.surface import Cli, verb
from ondol.errors import CODES, NotFound


class _Code(NamedTuple):
    code: str
    fix: str


_COLUMNS: list[Column[_Code]] = [
    Column("CODE", lambda c: c.code),
    Column("WHAT TO DO", lambda c: c.fix),
]


def add_to(app: typer.Typer) -> None:
    verb(app, "explain")(explain)


async def explain(
    cli: Cli, code: Annotated[str | None, typer.Argument(metavar="CODE", help="As in 'error [CODE]: ...'.")] = None
) -> None:
    """What a code means: what happened, why, what to do. Without one, all codes are listed."""
    if code is None:
        known = [_Code(*item) for item in CODES.items()]
        cli.out.listing(known, _COLUMNS, id=lambda c: c.code, body=lambda c: c._asdict(), empty="")
        return
    if code not in CODES:
        raise NotFound(f"there is no code {code!r}: '{cli.command('explain')}' lists them")
    text = page(code)
    if cli.out.for_people:
        cli.out.line(text.rstrip("\n"))
    else:
        cli.out.bodies([(code, {"code": code, "fix": CODES[code], "page": text})], one=True)


def page(code: str) -> str:
    """The page of a code, in Markdown. It is packed into the wheel; in a checkout it is where it was written."""
    here = Path(__file__)
    packed, written = here.with_name("errors"), here.parents[3] / "docs" / "errors"
    return ((packed if packed.is_dir() else written) / f"{code}.md").read_text("utf-8")
