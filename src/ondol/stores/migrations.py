"""Which steps lead from an empty database to the current schema?"""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def migrations() -> tuple[str, ...]:
    """The text of each step of SQLite's schema, in order; step ``n`` makes version ``n``."""
    steps = sorted(Path(__file__).with_name("sqlite_migrations").glob("*.sql"))
    return tuple(step.read_text("utf-8") for step in steps)
