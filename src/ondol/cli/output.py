"""What does a command print? Tables for people, JSON for programs, ids for pipes; errors as one line each."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ondol import clock
from ondol.errors import OndolError
from ondol.showing import safe

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

_LEAST = 10  # columns of a terminal that a column of a table has
_MOST = 60  # columns that what is shorter is filled up to, in a line that is not cut or wrapped

_STYLES = {
    "completed": "green", "succeeded": "green", "decided": "green", "ok": "green", "approved": "green",
    "failed": "red", "cancelled": "red", "expired": "red", "abandoned": "red", "denied": "red", "wrong": "bold red",
    "waiting": "yellow", "parked": "yellow", "open": "yellow", "asked": "yellow", "note": "yellow",
    "unknown": "bold magenta", "running": "cyan", "started": "cyan",
}  # fmt: skip


class Column(NamedTuple, Generic[T]):
    title: str
    cell: Callable[[T], object]


class Output:
    """Where the answer of a command goes: standard output, in the format that was asked for."""

    def __init__(self, format: str, *, no_color: bool) -> None:
        self.format = format
        self.is_terminal = sys.stdout.isatty()
        self._no_color = no_color
        self._console: Console | None = None

    @property
    def for_people(self) -> bool:
        return self.format == "table"

    @property
    def console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(
                file=sys.stdout, highlight=False, markup=False, emoji=False, force_terminal=self.is_terminal,
                no_color=self._no_color or None,
            )  # fmt: skip
        return self._console

    def listing(
        self, items: Sequence[T], columns: Sequence[Column[T]], *, id: Callable[[T], str],
        body: Callable[[T], Any], empty: str,
    ) -> None:  # fmt: skip
        """Print a list. ``empty`` is the line for people when there is nothing."""
        match self.format:
            case "table" if not items:
                self.line(empty)
            case "table":
                self.table(items, columns)
            case _:
                self.bodies([(id(item), body(item)) for item in items])

    def bodies(self, items: Sequence[tuple[str, Any]], *, one: bool = False) -> None:
        """Print ids, or JSON: a list, or with ``one`` the only item by itself."""
        match self.format:
            case "ids":
                for id, _ in items:
                    self.line(id)
            case "jsonl":
                for _, body in items:
                    self.line(compact(body))
            case _:
                shown = items[0][1] if one and len(items) == 1 else [body for _, body in items]
                self.line(json.dumps(shown, ensure_ascii=False, indent=2))

    def table(self, items: Iterable[T], columns: Sequence[Column[T]], indent: int = 0) -> None:
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        rows = [[safe(text(c.cell(item))) for c in columns] for item in items]
        needed, widths = 0, list[int]()
        for column, *cells in zip(columns, *rows, strict=True):
            longest = max(map(cell_len, (column.title, *cells)))
            is_id = column.title == "ID"  # ids are there to be copied
            least = longest if is_id else min(longest, max(_LEAST, cell_len(column.title)))
            needed += least + 2
            widths.append(min(longest, _MOST))
            table.add_column(column.title, overflow="fold", no_wrap=is_id, min_width=least)
        lines = [Text("  ".join(c.title.ljust(w) for c, w in zip(columns, widths, strict=True)), style="bold")]
        for cells in rows:
            styles = [
                _STYLES.get(cell, "") if c.title == "STATE" else "" for c, cell in zip(columns, cells, strict=True)
            ]
            table.add_row(*map(Text, cells, styles))
            filled = [
                Text(cell, style) + " " * (width - cell_len(cell))
                for cell, style, width in zip(cells, styles, widths, strict=True)
            ]
            lines.append(Text("  ").join(filled))
        with self.console.capture() as captured:
            if self.is_terminal and needed <= self.console.width:
                self.console.print(table)
            else:  # a terminal may wrap it: nobody can read columns of two characters
                for line in lines:
                    line.rstrip()
                self.console.print(*lines, sep="\n", soft_wrap=True)
        for printed in captured.get().splitlines():
            self.line(" " * indent + (printed if self.is_terminal else printed.rstrip()))

    def title(self, words: str) -> None:
        from rich.text import Text

        self.console.print(Text(safe(words), style="bold"), soft_wrap=True)

    def fields(self, pairs: Iterable[tuple[str, object]]) -> None:
        """``name   value`` lines; a value of None is left out."""
        shown = [(name, safe(text(value))) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.line(f"{name:<{width}}  {value}")

    def line(self, words: str = "") -> None:
        sys.stdout.write(words + "\n")
        sys.stdout.flush()

    def stream(self, words: str) -> None:
        """A piece of a text that is still being said, for people."""
        sys.stdout.write(safe(words, keep="\n\t"))
        sys.stdout.flush()


def say(words: str = "") -> None:
    """A line for people, beside the answer. Where it cannot be written (a closed terminal), nobody would read it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(words + "\n")
        sys.stderr.flush()


def say_error(code: str, message: str, explained_by: str | None = None) -> None:
    say(f"error [{code}]: {safe(' '.join(message.split()))} (ondol explain {explained_by or code})")


def say_failed(error: OndolError) -> None:
    say_error(error.code, str(error), error.explained_by)


def text(value: object) -> str:
    match value:
        case None:
            return "-"
        case str():
            return value
        case datetime():
            return when(value, None)
        case _:
            return str(value)


def when(at: datetime | None, zone: str | None) -> str:
    """A time for people: in the run's zone when it has one, else UTC; always with its offset."""
    if at is None:
        return "-"
    local = at.astimezone(clock.here(zone))
    offset = local.strftime("%z")
    return f"{local:%Y-%m-%d %H:%M:%S} {offset[:3]}:{offset[3:5]}"


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
