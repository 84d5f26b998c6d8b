"""Where the cases of the families happen when the tests run a few of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from ondol.testing import Downstream
from torture.campaign import Place, empty_folder


@pytest.fixture(scope="session")
def outside() -> Iterator[Callable[[], Awaitable[Downstream]]]:
    """The outside world of all cases, from the first one that asks for it."""
    started: list[Downstream] = []

    async def downstream() -> Downstream:
        if not started:
            started.append(await Downstream.start())
        return started[0]

    yield downstream
    for service in started:
        asyncio.run(service.stop())


@pytest.fixture
def place(
    outside: Callable[[], Awaitable[Downstream]], store_kind: str, request: pytest.FixtureRequest
) -> Iterator[Place]:
    new_database = request.getfixturevalue("new_database") if store_kind == "postgresql" else None
    with empty_folder() as folder:
        yield Place(folder, outside, new_database)
