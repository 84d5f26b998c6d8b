"""The outside world of all crashes: one service, whose ledger outlives every process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.scenarios import World
from ondol.testing import Downstream


@pytest.fixture(scope="session")
def shared_downstream() -> Iterator[Downstream]:
    service = asyncio.run(Downstream.start())
    yield service
    asyncio.run(service.stop())


@pytest.fixture
def world(shared_downstream: Downstream, tmp_path: Path) -> World:
    return World(shared_downstream.url, tmp_path.name, tmp_path / "client.jsonl")
