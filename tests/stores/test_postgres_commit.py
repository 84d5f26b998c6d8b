"""A connection that is lost at COMMIT: nobody is told anything before it is known whether that was done.

The network is a proxy of our own. Every cut is a real one, of a real server's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import behind
import psycopg
import pytest
from kit import NEXT, NEXT_ANSWER, Conversation, Gate
from postgres import Server
from proxy import Cut, Proxy

from ondol import Agent, Context, Runtime, RunWaiting, tool
from ondol.errors import OutcomeUnknown, StoreBusy
from ondol.queries import get_meta
from ondol.stores import postgres_listener, postgres_place, postgres_writer
from ondol.stores.postgres import PostgresStore
from ondol.stores.postgres_wire import PATIENCE
from ondol.testing import FaultPlan, FaultyStore, ScriptedModel, call
from ondol.transactions import Final, Tx, set_meta

CUTS = 10  # of each kind


@pytest.fixture
def proxy(postgres: Server) -> object:
    with Proxy(postgres.port) as proxy:
        yield proxy


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open(lambda: None)
    try:
        yield store
    finally:
        await store.close()


def count() -> Tx[int]:
    n = int((yield from get_meta("count")) or 0) + 1
    yield from set_meta("count", str(n))
    return n


def count_at_last() -> Tx[int]:
    """The same, with its COMMIT in the round trip of its last statement."""
    n = int((yield from get_meta("count")) or 0) + 1
    yield Final([("meta.set", {"key": "count", "value": str(n)})])
    return n


def count_and_look() -> Tx[int]:
    """And what it says is read in the round trip of its COMMIT."""
    n = int((yield from get_meta("count")) or 0) + 1
    _, rows = yield Final([("meta.set", {"key": "count", "value": str(n)}), ("meta.get", {"key": "count"})])
    return int(rows[0][0])


def set_at_once(value: str) -> Tx[None]:
    """All of it is one round trip, from BEGIN to COMMIT."""
    yield Final([("meta.set", {"key": "count", "value": value})])


counting = pytest.mark.parametrize("count", [count, count_at_last, count_and_look])


def talk() -> Agent:
    return Agent("talk", model=ScriptedModel(["hello"]))


def stored(url: str) -> int:
    """As somebody sees it who looks at this moment, without waiting for anybody."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT value FROM ondol.meta WHERE key = 'count'").fetchone()
    return int(row[0]) if row else 0


@counting
@pytest.mark.parametrize("cut", ["before", "after", "delayed"])
async def test_a_write_cut_off_at_commit_is_done_once(
    new_database: Callable[[], str], proxy: Proxy, cut: Cut, count: Callable[[], Tx[int]]
) -> None:
    direct = new_database()
    async with opened(proxy.url(direct)) as store:
        for n in range(1, CUTS + 1):
            proxy.cut = cut
            assert await store.write(count) == n
            assert stored(direct) == n
        assert proxy.cuts == CUTS


async def test_a_transaction_that_reaches_the_server_after_it_was_believed_lost_is_refused(
    new_database: Callable[[], str], proxy: Proxy
) -> None:
    """The network held all of it back: nothing holds a lock that the read-back could wait for."""
    direct = new_database()
    async with opened(proxy.url(direct)) as store:
        await store.write(set_at_once, "0")
        for n in range(1, CUTS + 1):
            proxy.came_late.clear()
            proxy.delay, proxy.cut = 0.2, "delayed"
            await store.write(set_at_once, str(n))
            await store.write(set_at_once, str(-n))
            await asyncio.to_thread(proxy.came_late.wait)
            assert stored(direct) == -n, "what came late was done once more"


@counting
async def test_a_commit_that_takes_its_time_is_waited_for(
    new_database: Callable[[], str], proxy: Proxy, count: Callable[[], Tx[int]]
) -> None:
    """As when it waits for a synchronous standby: a plain look says that nothing is there, and is wrong soon after."""
    direct = new_database()
    behind.slow_commits(direct, 0.2, "INSERT OR UPDATE ON ondol.meta")
    async with opened(proxy.url(direct)) as store:
        for n in range(1, CUTS + 1):
            proxy.was_cut.clear()
            writing = asyncio.create_task(store.write(count))
            await asyncio.to_thread(wait_for_slow_commit, direct)
            proxy.cut_all()
            assert stored(direct) == n - 1, "whoever believes this is wrong"
            assert await writing == n
            assert stored(direct) == n


def wait_for_slow_commit(url: str) -> None:
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(asleep).fetchone() == (0,):
            pass


@counting
async def test_many_writes_in_one_commit_that_is_cut_off_are_each_done_once(
    new_database: Callable[[], str], proxy: Proxy, count: Callable[[], Tx[int]]
) -> None:
    direct = new_database()
    async with opened(proxy.url(direct)) as store:
        cuts: list[Cut] = ["before", "after", "delayed"]
        for turn, cut in enumerate(cuts):
            proxy.cut = cut
            counted = await asyncio.gather(*(store.write(count) for _ in range(20)))
            assert sorted(counted) == list(range(turn * 20 + 1, turn * 20 + 21))
        assert stored(direct) == 60


async def test_what_cannot_be_learned_in_time_is_said_to_be_unknown(
    new_database: Callable[[], str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The COMMIT is on its way for longer than anybody waits. The same operation id settles it."""
    monkeypatch.setattr(postgres_writer, "READ_BACK_PATIENCE", 0.2)
    direct, agent = new_database(), talk()
    async with Runtime(proxy.url(direct), agents=[agent]) as rt:
        proxy.delay, proxy.cut = 1.0, "delayed"
        with pytest.raises(OutcomeUnknown, match="send the same operation id again"):
            await rt.start(agent, "hi", session="s", operation_id="op")
        run = await rt.start(agent, "hi", session="s", operation_id="op")
        await run.result()
        assert [r.id for r in await rt.runs()] == [run.id]


async def test_a_read_back_that_brings_no_answer_is_waited_for_as_long_as_is_said(
    new_database: Callable[[], str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stands, and passes nothing on: not for as long as any statement may take."""
    monkeypatch.setattr(postgres_writer, "READ_BACK_PATIENCE", 0.5)
    async with opened(proxy.url(new_database())) as store:
        await store.write(count)
        proxy.cut, proxy.mute = "after", b"WHEN writers.n = "
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(store.write(count), PATIENCE / 2)
        proxy.mute = None
        assert await store.write(count) == 3


async def test_a_run_that_is_there_after_nobody_knew_is_driven_when_its_operation_comes_again(
    new_database: Callable[[], str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its COMMIT goes on for longer than the store waits, and than the engine looks for what may be there."""
    monkeypatch.setattr(postgres_writer, "READ_BACK_PATIENCE", 0.2)
    direct, agent = new_database(), talk()
    async with Runtime(proxy.url(direct), agents=[agent]) as rt:
        behind.slow_commits(direct, 0.5, "INSERT ON ondol.runs")
        starting = asyncio.create_task(rt.start(agent, "hi", session="s", operation_id="op"))
        await asyncio.to_thread(wait_for_slow_commit, direct)
        proxy.cut_all()
        with pytest.raises(OutcomeUnknown):
            await starting
        run = await rt.start(agent, "hi", session="s", operation_id="op")
        assert not run.created
        assert (await run.result()).text == "hello"


class Holds:
    """The fault: the network holds back the next COMMIT for longer than anybody waits."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    def hit(self) -> None:
        self.proxy.delay, self.proxy.cut = 0.5, "delayed"

    async def ahit(self) -> None:
        self.hit()


@tool(effect="once", timeout=timedelta(seconds=1))  # so long is an attempt waited for that nobody knows of
async def letter(ctx: Context[list[str]]) -> str:
    ctx.deps.append(ctx.idempotency_key)
    return "sent"


@pytest.mark.parametrize("at", ["answer", "started", "outcome", "commit"])
async def test_a_run_whose_write_stays_unknown_reads_what_is_there_and_goes_on(
    new_database: Callable[[], str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    monkeypatch.setattr(postgres_writer, "READ_BACK_PATIENCE", 0.1)
    agent = Agent("writes", model=ScriptedModel([call("letter"), "done"]), tools=[letter])
    plan, sent = FaultPlan().at(at, fault=Holds(proxy)), list[str]()
    store = FaultyStore(PostgresStore(proxy.url(new_database())), plan)
    async with Runtime(store, agents=[agent], deps=sent) as rt:
        run = await rt.start(agent, "hi", session="s", operation_id="op")
        try:
            assert (await run.result()).text == "done"
        except RunWaiting:  # it was started, and whoever took the run up again cannot know what became of that
            (ask,) = await run.asks()
            if sent:
                await ask.happened("sent", "it is there", by="lee")
            else:
                await ask.not_happened("it is not there", by="lee")
            assert (await run.result()).text == "done"
    assert not plan.unreached
    assert proxy.cuts == len(sent) == 1


@pytest.mark.parametrize("cut", ["before", "after", "delayed"])
async def test_an_operation_whose_acceptance_was_cut_off_is_one_run(
    new_database: Callable[[], str], proxy: Proxy, cut: Cut
) -> None:
    """T0, and then every other transaction of the turn."""
    agent = talk()
    async with Runtime(proxy.url(new_database()), agents=[agent]) as rt:
        proxy.delay = 0.02
        for n in range(3):
            for _ in range(2):
                proxy.cut = cut
                result = await rt.run(agent, "hi", session=f"s{n}", operation_id=f"op{n}")
                assert result.text == "hello"
        assert len(await rt.runs()) == 3


async def test_who_closes_just_after_its_server_was_away_leaves_no_lease(
    new_database: Callable[[], str], proxy: Proxy
) -> None:
    direct = new_database()
    async with opened(proxy.url(direct)) as store:
        assert await store.drives("owner", [])
        assert store._listener is not None
        proxy.down = True
        proxy.cut_all()
        while store._listener._connection is not None:  # noqa: ASYNC110 - a thread tells nobody
            await asyncio.sleep(0)
        proxy.down = False
    assert behind.execute(direct, "SELECT id FROM owners") == []


async def test_when_nobody_reached_the_server_nothing_is_taken_from_one_that_comes_back_later(
    new_database: Callable[[], str], postgres: Server
) -> None:
    """The leases of all were over, and none of them was dead."""
    direct, gates = f"{new_database()}?lease=5", [Gate(), Gate()]

    def desk(gate: Gate) -> Agent:
        @tool(effect="once")
        async def mail(ctx: Context[None]) -> str:
            await gate.wait()
            return "sent"

        return Agent("desk", model=Conversation({"go": [[call("mail")], "done"]}), tools=[mail])

    def alive() -> int:
        return len(behind.execute(direct, "SELECT id FROM owners WHERE leased_until > clock_timestamp()"))

    agents = [desk(gate) for gate in gates]
    with Proxy(postgres.port) as one, Proxy(postgres.port) as two:
        async with (
            Runtime(one.url(direct), agents=[agents[0]]) as first,
            Runtime(two.url(direct), agents=[agents[1]]) as second,
        ):
            runs = [await rt.start(agent, "go") for rt, agent in zip((first, second), agents, strict=True)]
            for gate in gates:
                await gate.reached.wait()
            for proxy in (one, two):
                proxy.down = True
                proxy.cut_all()
            while alive():  # noqa: ASYNC110 - the clock of a database tells nobody
                await asyncio.sleep(0)
            one.down = False
            assert (await first.run(agents[0], NEXT)).text == NEXT_ANSWER
            two.down = False
            while alive() < 2:  # noqa: ASYNC110 - the clock of a database tells nobody
                await asyncio.sleep(0)
            for gate in gates:
                gate.open()
            for run in runs:
                assert (await run.result()).text == "done"
    assert behind.execute(direct, "SELECT DISTINCT fence, deaths FROM runs") == [(1, 0)]


async def test_a_connection_that_stands_and_says_nothing_is_given_up_and_the_process_drives_on(
    new_database: Callable[[], str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy in between may hold it open for ever. It is the one that renews the lease and hears of the others."""
    monkeypatch.setattr(postgres_listener, "PATIENCE", 1.0)
    direct, agent = f"{new_database()}?lease=1", talk()
    async with Runtime(proxy.url(direct), agents=[agent]) as rt:
        proxy.silence()
        alive = "SELECT id FROM owners WHERE leased_until > clock_timestamp()"
        while behind.execute(direct, alive):  # noqa: ASYNC110 - the clock of a database tells nobody
            await asyncio.sleep(0)
        assert (await rt.run(agent, "hi")).text == "hello"
        assert rt.drives
        proxy.silence()  # whoever closes now comes to an end, too


async def test_whoever_is_let_in_and_told_nothing_more_says_that_nobody_can_be_reached(
    new_database: Callable[[], str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a pooler whose server is away."""
    monkeypatch.setattr(postgres_place, "PATIENCE", 0.5)
    place, proxy.mute = postgres_place.Place.of(proxy.url(new_database())), b"set_config"
    connecting = asyncio.create_task(asyncio.to_thread(place.connect))
    await asyncio.wait([connecting], timeout=PATIENCE / 2)
    proxy.cut_all()  # it ends in any case
    with pytest.raises(StoreBusy, match="no word from the server"):
        await connecting


@pytest.mark.parametrize("does", ["reads", "writes"])
async def test_a_server_that_is_away_for_a_moment_is_waited_for(
    new_database: Callable[[], str], proxy: Proxy, does: str
) -> None:
    """As in a restart, or while another one takes over: whoever reads hears of that as little as whoever writes."""
    async with opened(proxy.url(new_database())) as store:
        assert await store.write(count) == 1
        assert await store.read(get_meta, "count") == "1"
        proxy.down = True
        proxy.cut_all()
        waiting = asyncio.create_task(store.write(count) if does == "writes" else store.read(get_meta, "count"))
        for _ in range(2):  # more than one of its attempts is in vain
            proxy.refused.clear()
            await asyncio.to_thread(proxy.refused.wait)
        assert not waiting.done()
        proxy.down = False
        assert await waiting == (2 if does == "writes" else "1")


async def test_a_server_that_stays_away_is_said_to_be_and_that_once_is_waited_for(
    new_database: Callable[[], str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who come later do not wait anew for what others have waited for in vain."""
    monkeypatch.setattr(postgres_place, "PATIENCE", 0.5)
    async with opened(proxy.url(new_database())) as store:
        proxy.down = True
        proxy.cut_all()
        clock = asyncio.get_running_loop().time
        began = clock()
        reads = [store.read(get_meta, "count") for _ in range(20)]
        refused = await asyncio.gather(*reads, return_exceptions=True)
        assert {type(error) for error in refused} == {StoreBusy}
        assert all("cannot be reached" in str(error) for error in refused)
        assert clock() - began < 10 * 0.5
        proxy.down = False
        assert await store.read(get_meta, "count") is None
