"""One house a test, and a look around when it is over."""

from __future__ import annotations

from collections.abc import Iterator

import behind
import pytest

from promise.house import House


@pytest.fixture
def house(db: str, caplog: pytest.LogCaptureFixture) -> Iterator[House]:
    made = House(db)
    yield made
    if made.checked and behind.exists(made.db):
        made.check()
    said = [record.getMessage() for record in caplog.get_records("call")]
    assert not [one for one in said if "an error of the runtime itself" in one], "and the next holder went on behind it"
