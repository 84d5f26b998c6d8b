"""How does a command look at a store without standing in a driver's way?"""

from __future__ import annotations

from ondol.stores.sqlite import SqliteStore


class Bystander(SqliteStore):
    """A store whose process never drives: it leaves the lock to whoever has agents."""

    async def drives(self) -> bool:
        return False
