"""How does a command look at a store without standing in a driver's way?"""

from __future__ import annotations

from collections.abc import Sequence

from ondol.handles import Run
from ondol.runtime import Runtime
from ondol.stores.sqlite import SqliteStore, driver_of


class Bystander(SqliteStore):
    """A store whose process never drives: it leaves the lock to whoever has agents."""

    async def drives(self, owner: str, agents: Sequence[str]) -> bool:
        return False


async def unserved(rt: Runtime, run: Run) -> str | None:
    """Why nobody drives the run now, and what to do about it; None if a process does, or it needs none."""
    if run.status not in ("queued", "running"):
        return None
    if (why := await rt.waits_for_driver(run)) is not None:
        return why
    if isinstance(rt._store, Bystander) and driver_of(rt._store.path) is None:
        return f"no process drives {rt._store.path}: start the program that defines the agent {run.agent!r}"
    return None
