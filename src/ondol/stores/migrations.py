"""Which steps lead from an empty database to the current schema?"""

from __future__ import annotations

import functools
import importlib.resources


@functools.cache
def migrations() -> tuple[str, ...]:
    """The text of each step of SQLite's schema, in order; step ``n`` makes version ``n``."""
    folder = importlib.resources.files("ondol.stores").joinpath("sqlite_migrations")
    steps = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return tuple(f.read_text("utf-8") for f in steps)
