"""Whose turn is it? The claim itself, without anybody who drives."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from crash.lives import MortalStore

from ondol import Agent, Runtime, transactions
from ondol.clock import to_micros
from ondol.stores import open_store
from ondol.testing import ScriptedModel


async def test_a_run_is_claimed_only_when_no_run_before_it_is_unfinished(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ondol.db"
    agent = Agent("a", model=ScriptedModel(["hi"]))
    store_of_driver = MortalStore(open_store(url))
    store_of_driver.others |= {"me", "you"}
    async with Runtime(store_of_driver) as driver, Runtime(url, agents=[agent]) as other:  # the driver lacks the agent
        assert (driver.drives, other.drives) == (True, False)
        first, second = [await other.start(agent, f"turn {n}", session="s") for n in (1, 2)]
        elsewhere = await other.start(agent, "hello", session="t")
        store, now = other._store, to_micros(other.clock.now())
        assert await store.write(transactions.claim, "default", second.id, "me", now) is None
        assert await store.write(transactions.claim, "default", elsewhere.id, "me", now) is not None
        claimed = await store.write(transactions.claim, "default", first.id, "me", now)
        assert claimed is not None
        assert claimed.claim.fence == 1
        assert await store.write(transactions.claim, "default", first.id, "you", now) is None
        assert await store.write(transactions.claim, "default", second.id, "me", now) is None
        await store.write(transactions.release, "default", first.id, 1, now)
        again = await store.write(transactions.claim, "default", first.id, "you", now)
        assert again is not None
        assert again.claim.fence == 3  # every change of hands raises it


async def test_the_file_itself_lets_no_two_runs_of_a_session_be_driven_or_wait(tmp_path: Path) -> None:
    """Behind every other guard: whatever is written, by hand or by a fault of ours."""
    file = tmp_path / "ondol.db"
    agent = Agent("a", model=ScriptedModel(["hi"]))
    async with Runtime(f"sqlite:///{file}") as driver, Runtime(f"sqlite:///{file}", agents=[agent]) as other:
        assert driver.drives
        for n in (1, 2):
            await other.start(agent, f"turn {n}", session="s")
    connection = apsw.Connection(str(file))
    try:
        for states in (("running", "running"), ("running", "waiting"), ("waiting", "waiting")):
            with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
                connection.execute("UPDATE runs SET state = CASE place WHEN 0 THEN ? ELSE ? END", states)
    finally:
        connection.close()
