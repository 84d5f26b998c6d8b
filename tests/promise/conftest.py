"""One house a test, and a look around when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from promise.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(f"sqlite:///{tmp_path / 'ondol.db'}")
    yield made
    if made.checked and made.file.exists():
        made.check()
