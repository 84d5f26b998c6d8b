"""What is the text of each statement, and what is a transaction?"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ondol.records import AskRow, EffectRow, RunRow, SessionRow, columns

Row: TypeAlias = tuple[Any, ...]
Statement: TypeAlias = tuple[str, Mapping[str, Any]]
T = TypeVar("T")
Tx: TypeAlias = Generator[list[Statement], list[list[Row]], T]


def _read_statements() -> dict[str, str]:
    text = Path(__file__).with_name("statements.sql").read_text("utf-8")
    rows = {"run": RunRow, "session": SessionRow, "effect": EffectRow, "ask": AskRow}
    for name, row in rows.items():
        text = text.replace("{" + name + "}", columns(row)).replace("{e." + name + "}", columns(row, "e."))
    parts = re.split(r"^-- name: (\S+)\n", text, flags=re.M)[1:]
    return dict(zip(parts[::2], (p.strip() for p in parts[1::2]), strict=True))


#: The text of each statement, by name.
STATEMENTS: Mapping[str, str] = _read_statements()
