"""PostgreSQL keeps the contract that every store keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from ondol.store import Store
from ondol.stores.postgres import PostgresStore
from ondol.testing.store_contract import StoreContract


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def databases(self, new_database: Callable[[], str]) -> None:
        self._new, self._urls = new_database, {}

    def make_store(self, folder: Path) -> PostgresStore:
        url = self._urls.get(folder) or self._urls.setdefault(folder, self._new())
        return PostgresStore(url)

    async def damage_blob(self, store: Store, tenant: str, digest: str) -> None:
        assert isinstance(store, PostgresStore)
        with psycopg.connect(store.place.conninfo) as connection:
            connection.execute(
                "UPDATE ondol.blob_chunks SET data = set_byte(data, 0, get_byte(data, 0) # 1) "
                "WHERE tenant = %s AND digest = %s",
                (tenant, digest),
            )

    async def test_every_store_that_is_open_may_drive(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as first, self.opened(tmp_path) as second:
            assert await first.drives("first", ["a"])
            assert await second.drives("second", ["b"])
            assert await first.drivers() == {"first": ["a"], "second": ["b"]}
