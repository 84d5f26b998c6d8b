"""SQLite keeps the contract that every store keeps."""

from __future__ import annotations

from pathlib import Path

from ondol.store import Store
from ondol.stores.sqlite import SqliteStore
from ondol.testing.store_contract import StoreContract


class TestSqliteStore(StoreContract):
    def make_store(self, folder: Path) -> SqliteStore:
        folder.mkdir(exist_ok=True)
        return SqliteStore(folder / "ondol.db")

    async def test_one_store_at_a_time_drives(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as second:
            async with self.opened(tmp_path) as first:
                assert await first.drives("first", [])
                assert not await second.drives("second", [])
            assert await second.drives("second", []), "the first one closed"

    async def damage_blob(self, store: Store, tenant: str, digest: str) -> None:
        assert isinstance(store, SqliteStore)
        file = store._blob(tenant, digest)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
