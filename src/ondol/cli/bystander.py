"""How does a command look at a store without standing in a driver's way?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ondol.handles import Run
from ondol.runtime import Runtime
from ondol.store import Store
from ondol.stores import open_store
from ondol.stores.sqlite import SqliteStore


class NeverDrives:
    """What makes a store one whose process never drives: it leaves that to whoever has agents."""

    async def drives(self, owner: str, agents: Sequence[str]) -> bool:
        return False


class Bystander(NeverDrives, SqliteStore):
    """A file that is looked at."""


def bystander(url: str) -> Store:
    """The store of that URL, to be looked at. Raises InvalidInput for a URL of a kind that there is not."""
    store = open_store(url)
    if isinstance(store, SqliteStore):
        return Bystander(store.path)
    from ondol.stores.postgres import PostgresStore

    class Beside(NeverDrives, PostgresStore):
        """A database that is looked at."""

    return Beside(url)


async def unserved(rt: Runtime, run: Run) -> str | None:
    """Why nobody drives the run now, and what to do about it; None if a process does, or it needs none."""
    if run.status not in ("queued", "running"):
        return None
    if (why := await rt.waits_for_driver(run)) is not None:
        return why
    store: Store | None = getattr(rt, "_store", None)  # a server has its own
    if isinstance(store, NeverDrives) and not await store.drivers():
        return f"no process drives {_name(store)}: start the program that defines the agent {run.agent!r}"
    return None


def _name(store: Store) -> str:
    path: Path | None = getattr(store, "path", None)
    return str(path) if path is not None else getattr(store, "name", "the store")
