"""What is the text of each statement, and what is a transaction?"""

from __future__ import annotations

import itertools
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ondol.records import AskRow, EffectRow, FactRow, RunRow, SessionRow, TokenRow, columns

Row: TypeAlias = tuple[Any, ...]
Statement: TypeAlias = tuple[str, Mapping[str, Any]]
T = TypeVar("T")
Tx: TypeAlias = Generator[list[Statement], list[list[Row]], T]


class Final(list[Statement]):
    """The last batch of a transaction, which ends well whatever the rows of these say: a store may commit with it.

    A store whose answer was lost then gives it no rows of what wrote, and of what only read those that it reads now.
    """


class Foreseen(list[Statement]):
    """A batch of which it is known what it gives, unless something came between: one row of numbers a statement.

    A store may give a transaction the rows that are foreseen, and go on. Nothing may become durable then unless they
    are those that come; where they are not, the transaction is run again with those that do.
    """

    def __init__(self, batch: Iterable[Statement], rows: Sequence[Row]) -> None:
        super().__init__(batch)
        self.rows = rows


def read_statements(file: Path) -> dict[str, str]:
    """The statements of a file, by name, with each choice of their conditions."""
    text = file.read_text("utf-8")
    rows = {
        "run": RunRow, "session": SessionRow, "effect": EffectRow, "ask": AskRow, "token": TokenRow, "fact": FactRow,
    }  # fmt: skip
    for name, row in rows.items():
        text = text.replace("{" + name + "}", columns(row)).replace("{e." + name + "}", columns(row, "e."))
    parts = re.split(r"^-- name: (\S+)\n", text, flags=re.M)[1:]
    return {
        variant: text
        for name, part in zip(parts[::2], parts[1::2], strict=True)
        for variant, text in _variants(name, part.strip())
    }


def _variants(name: str, text: str) -> Iterator[tuple[str, str]]:
    """The statement with each choice of its conditions: ``[session: AND session = :session]`` is there or is not."""
    conditions = re.findall(r"(\[(\w+): ([^\]]*)\])", text)
    names = sorted({condition for _, condition, _ in conditions})
    for chosen in itertools.product((False, True), repeat=len(names)):
        variant, there = text, set(itertools.compress(names, chosen))
        for whole, condition, sql in conditions:
            variant = variant.replace(whole, sql if condition in there else "")
        yield _variant(name, there), variant


def _variant(name: str, conditions: Iterable[str]) -> str:
    return " ".join([name, *sorted(conditions)])


def with_conditions(name: str, always: Mapping[str, Any], wanted: Mapping[str, Any]) -> Statement:
    """A statement with those of its conditions for which a value other than None is wanted."""
    values = {what: value for what, value in wanted.items() if value is not None}
    there = [what for what in values if _variant(name, [what]) in STATEMENTS]  # the rest are its parameters anyway
    return _variant(name, there), {**always, **values}


#: The text of each statement, by name.
STATEMENTS: Mapping[str, str] = read_statements(Path(__file__).with_name("statements.sql"))
