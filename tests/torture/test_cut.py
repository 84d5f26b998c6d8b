"""Family ``cut``: the connection to PostgreSQL is lost at COMMIT, while clients work with one runtime.

A case is a new database behind a proxy, a few sessions whose clients send one operation after the other, and up to
three of their writes whose COMMIT is cut off: before the server hears of it, after it did it, while the network holds
it back, or while the server is in the middle of it and a plain look says that nothing is there. Clients notice nothing:
each step is thought once, and each effect happens once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import behind
import pytest
from crash import invariants, load
from crash.aftermath import ledger, nothing_is_left
from crash.scenarios import World
from proxy import Cut, Proxy

from ondol import Runtime
from ondol.stores import open_store, postgres_writer
from ondol.testing import FaultPlan, FaultyStore
from torture.campaign import Family, Place

HOWS: Mapping[str, Cut] = {"before": "before", "after": "after", "delayed": "delayed", "during": "delayed"}
EACH = 2  # operations of a session
WRITES = 3  # of an operation without any tool: it is accepted, answered, committed


@dataclass
class CutOff:
    """The fault: the COMMIT of that write, or of those that it shares it with, loses its connection."""

    proxy: Proxy
    cut: Cut

    def hit(self) -> None:
        self.proxy.cut = self.cut

    async def ahit(self) -> None:
        self.hit()


async def case(seed: int, place: Place, patience: float = 30.0) -> None:
    chosen = random.Random(seed)
    how, sessions = list(HOWS)[seed % len(HOWS)], chosen.randint(1, 4)
    db, downstream = place.db, await place.downstream()
    world = World(downstream.url, place.name, place.folder / "client.jsonl")
    port = urlsplit(db).port
    assert port is not None
    if how == "during":
        behind.slow_commits(db, 0.05)
    with Proxy(port) as proxy:
        proxy.delay = 0.0 if how == "during" else chosen.uniform(0.0, 0.2)
        plan = FaultPlan()
        for write in chosen.sample(range(1, sessions * EACH * WRITES), k=chosen.randint(1, 3)):
            plan.at_write(write, "before", CutOff(proxy, HOWS[how]))
        tasks = asyncio.all_tasks()
        async with Runtime(FaultyStore(open_store(proxy.url(db)), plan), agents=[load.agent(world)], deps=world) as rt:
            try:
                await asyncio.wait_for(load.clients(rt, world, seed, sessions, EACH), patience)
            except TimeoutError:
                raise AssertionError("somebody waits for ever") from None
        assert proxy.cuts, "nothing was cut off"
    nothing_is_left(db, asyncio.all_tasks() - tasks)
    after, now = invariants.written(db), await ledger(downstream, world)
    calls = Counter(line["run"] for line in world.events("model"))
    invariants.hold(after, now, world.noted, calls, checks=("mail",))
    invariants.nothing_happened_twice(now)
    assert Counter(run.state for run in after.runs.values()) == {"completed": sessions * EACH}


async def control(seed: int, place: Place) -> None:
    """A store that believes what it sees at once: what has no answer yet was not done."""
    with pytest.MonkeyPatch.context() as patch:  # of these seeds the server is in the middle of it
        patch.setattr(postgres_writer.Writer, "_read_back", lambda *_: None)
        await case(len(HOWS) * seed + 3, place, patience=5.0)


FAMILY = Family(case=case, control=control, cases=1_000, sample_postgres=8, stores=("postgresql",))


@FAMILY.sampled
async def test_a_commit_whose_answer_is_lost_is_done_once_and_everybody_is_told_the_truth(
    seed: int, place: Place
) -> None:
    await case(seed, place)


@pytest.mark.parametrize("store_kind", ["postgresql"])
async def test_who_believes_that_what_was_not_answered_was_not_done_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)
