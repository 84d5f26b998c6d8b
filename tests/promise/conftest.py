"""One house a test, and a look around when it is over."""

from __future__ import annotations

from collections.abc import Iterator

import behind
import pytest

from promise.house import House


@pytest.fixture
def house(db: str) -> Iterator[House]:
    made = House(db)
    yield made
    if made.checked and behind.exists(made.db):
        made.check()
