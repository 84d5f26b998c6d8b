"""Family ``server``: PostgreSQL itself goes down while sixteen clients write, and comes back.

A case is a new database, sixteen sessions whose clients send one operation after the other to one of two runtimes, and
one end of the server at some write: an immediate shutdown, a backend that is killed, all of its processes killed. Then
it is started again. What a client had been told before that is there at once, and all that was asked is done once; also
where the patience of the store is over before (every other seed): then clients are refused, or told that nobody knows.

The server has ``synchronous_commit`` off, so that what is not flushed is lost: Ondol has to switch it on.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from crash import invariants, load
from crash.aftermath import ledger, nothing_is_left
from crash.lives import HurriedClock
from crash.scenarios import KINDS, World, outcome, settled
from postgres import Server

from ondol import Runtime
from ondol.errors import OutcomeUnknown, StoreBusy
from ondol.stores import open_store, postgres_place, postgres_writer
from ondol.testing import FaultPlan, FaultyStore, ManualClock
from torture.campaign import Family, Place

WRITERS, EACH = 16, 2
OPERATIONS = WRITERS * EACH
WRITES = 4 * OPERATIONS  # a turn without any tool makes as many
STILL = 2.0  # seconds in which nothing comes to its end
SYNCHRONOUS_COMMIT_AS_IT_IS = postgres_place._SETTINGS.replace("WHEN 'off' THEN 'on'", "WHEN '' THEN ''")


@functools.cache
def server() -> Server:
    """Of this family alone: it goes down. Not with its files: those of a killed one go away with this process."""
    made = Server(synchronous_commit="off", wal_writer_delay="10s", dynamic_shared_memory_type="mmap").init().start()
    made.make_template()
    return made


@dataclass
class Outage:
    """The fault: the store goes away at that write, and comes back, while everybody goes on.

    ``away`` does both. What clients were told by then is looked for at once when it has come back.
    """

    away: Callable[[], object]
    db: str
    world: World
    began: bool = False
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def hit(self) -> None:
        raise TypeError("it is awaited where it happens")

    async def ahit(self) -> None:
        self.began = True
        asyncio.get_running_loop().run_in_executor(None, self._happens).add_done_callback(self._tell)

    def _happens(self) -> None:
        told = self.world.noted
        self.away()
        there = invariants.written(self.db)
        invariants.accepted_operations_are_there(there, told)
        invariants.replies_agree(there, told)
        invariants.journals_are_whole(there)
        invariants.rows_are_the_fold(there)

    def _tell(self, done: asyncio.Future[None]) -> None:
        if (error := done.exception()) is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)


async def clients(doors: list[Runtime], world: World, seed: int, outage: Outage, clock: ManualClock) -> None:
    """All of them, until each operation has ended; or until what they were told is found to be lost.

    Where nothing but the time is waited for, as for the deadline of an attempt that nobody knows of, it passes.
    """
    working = asyncio.create_task(_everybody(doors, world, seed))
    try:
        await asyncio.wait({working, outage.over}, return_when=asyncio.FIRST_COMPLETED)
        if outage.began:  # what a client stumbles over may be what was lost
            await outage.over
        while not (await asyncio.wait({working}, timeout=STILL))[0]:
            clock.advance(minutes=2)
        await working
        assert outage.began, "it did not go down"
        await outage.over
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _everybody(doors: list[Runtime], world: World, seed: int) -> None:
    async with asyncio.TaskGroup() as together:
        for n in range(WRITERS):
            chosen = random.Random(f"{seed} {n}")
            together.create_task(_client(chosen.choice(doors), world, f"s{n}", chosen))


async def _client(rt: Runtime, world: World, session: str, chosen: random.Random) -> None:
    for n in range(EACH):
        operation = f"{session}-{n}"
        said = f"{chosen.choice(list(KINDS))} of {operation}"
        while not await _is_done(rt, world, session, operation, said):
            pass


async def _is_done(rt: Runtime, world: World, session: str, operation: str, said: str) -> bool:
    """False where the client was told to send it again."""
    world.note(event="sent", operation=operation)
    try:
        run = await rt.start("crashes", said, session=session, operation_id=operation)
        world.note(event="accepted", operation=operation, run=run.id)
        await settled(rt, world, run)
        await outcome(world, run)
    except (StoreBusy, OutcomeUnknown) as refused:
        world.note(event="refused", operation=operation, why=str(refused))
        return False
    return True


async def survives(seed: int, place: Place, db: str, away: Callable[[], object]) -> Counter[str]:
    """The whole case, with its end in ``away``. Returns how many lines of each kind the clients wrote down."""
    chosen, downstream = random.Random(seed), await place.downstream()
    world = World(downstream.url, place.name, place.folder / "client.jsonl")
    outage = Outage(away, db, world)
    clock = HurriedClock(datetime.now(UTC))
    plan = FaultPlan().at_write(chosen.randrange(1, WRITES), "before", outage)
    tasks = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        doors = [
            await stack.enter_async_context(
                Runtime(FaultyStore(open_store(db), plan), agents=[load.agent(world)], deps=world, clock=clock)
            )
            for _ in range(2)
        ]
        await clients(doors, world, seed, outage, clock)
    nothing_is_left(db, asyncio.all_tasks() - tasks)
    after, now = invariants.written(db), await ledger(downstream, world)
    calls = Counter(line["run"] for line in world.events("model"))
    invariants.hold(after, now, world.noted, calls, checks=("mail",))
    invariants.nothing_happened_twice(now, reads=("look",))
    assert Counter(run.state for run in after.runs.values()) == {"completed": OPERATIONS}
    return Counter(line["event"] for line in world.noted)


def goes_down(server: Server, how: str, database: str) -> None:
    """And comes back, or does so by itself."""
    if how == "a backend":
        server.kill_one(database)
    elif how == "all of it":
        server.kill()
        server.start()
    else:
        server.stop("immediate")
        server.start()


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """So long does the store wait for a server that is away, and for the end of what was lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_place, "PATIENCE", seconds)
        patch.setattr(postgres_writer, "READ_BACK_PATIENCE", seconds)
        yield


async def case(seed: int, place: Place) -> None:
    how = ("immediately", "a backend", "all of it")[seed % 3]
    db = await asyncio.to_thread(server().new_database)
    try:
        with patience(10.0 if seed % 2 == 0 else 0.05):
            await survives(seed, place, db, functools.partial(goes_down, server(), how, db.rpartition("/")[2]))
    finally:
        await asyncio.to_thread(server().drop, db)


async def control(seed: int, place: Place) -> None:
    """A store that leaves ``synchronous_commit`` as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_place, "_SETTINGS", SYNCHRONOUS_COMMIT_AS_IT_IS)
        await case(3 * seed, place)  # of these, the server is shut down immediately


FAMILY = Family(case=case, control=control, cases=200, sample_postgres=3, stores=("postgresql",), tries=3, limit=120)


@FAMILY.sampled
async def test_a_server_that_goes_down_under_sixteen_writers_loses_nothing(seed: int, place: Place) -> None:
    await case(seed, place)


async def test_what_was_not_flushed_and_is_lost_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)
