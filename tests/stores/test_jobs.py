"""How those who wait for commits hear of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ondol.stores.jobs import Job, deliver


def test_who_shares_a_commit_with_one_that_ends_the_event_loop_hears_of_it_all_the_same() -> None:
    loop = asyncio.new_event_loop()
    exits, goes_on = (Job(lambda: iter(()), loop, value=n) for n in (1, 2))  # type: ignore[arg-type]

    async def leaves() -> None:
        raise SystemExit(await exits)

    async def waits() -> Any:
        return await goes_on

    first, second = loop.create_task(leaves()), loop.create_task(waits())
    loop.run_until_complete(asyncio.sleep(0))
    deliver([exits, goes_on])
    with pytest.raises(SystemExit):
        loop.run_until_complete(second)
    done, _ = loop.run_until_complete(asyncio.wait([second], timeout=5))
    assert [task.result() for task in done] == [2]
    assert isinstance(first.exception(), SystemExit)
