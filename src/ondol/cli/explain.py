"""``ondol explain``: what does a code mean, and what is to be done about it?"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from ondol.cli.output import Column
from ondol.cli.packed import packed
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
    """The page of a code, in Markdown."""
    return (packed("docs/errors") / f"{code}.md").read_text("utf-8")
