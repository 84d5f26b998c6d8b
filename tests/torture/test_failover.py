"""Family ``failover``: the primary is gone while sixteen clients write, and its synchronous standby takes over.

As in ``server``, with another end: all processes of the primary are killed for good, and the standby is promoted. The
store's address names both servers, or a proxy that is moved, before or after the standby can be written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from postgres import Server
from proxy import Proxy

from ondol import Agent, Runtime
from ondol.stores import postgres_place
from ondol.testing import ScriptedModel
from torture.campaign import Family, Place
from torture.test_server import SYNCHRONOUS_COMMIT_AS_IT_IS, survives

HOW = ("both named", "a proxy moves first", "both named", "a proxy moves last")


@contextmanager
def pair() -> Iterator[tuple[Server, Server, str]]:
    """A primary, its standby, and the URL of a database at the primary.

    What the primary has not flushed when it is killed, the standby never hears of.
    """
    primary = Server(
        wal_level="replica", synchronous_commit="off", wal_writer_delay="10s", dynamic_shared_memory_type="mmap"
    )
    try:
        primary.init().start().make_template()
        direct = primary.new_database()
        standby = primary.standby()
        try:
            yield primary, standby, direct
        finally:
            standby.remove()
    finally:
        primary.remove()


def both_named(primary: Server, standby: Server, direct: str) -> str:
    return direct.replace(f":{primary.port}/", f":{primary.port},127.0.0.1:{standby.port}/")


async def case(seed: int, place: Place) -> None:
    how = HOW[seed % len(HOW)]
    with pair() as (primary, standby, direct), Proxy(primary.port) as proxy:

        def away() -> None:
            primary.kill()
            if how == "a proxy moves first":
                proxy.to = standby.port
            standby.promote()
            proxy.to = standby.port

        db = both_named(primary, standby, direct) if how == "both named" else proxy.url(direct)
        await survives(seed, place, db, away)


async def control(seed: int, place: Place) -> None:
    """A store that leaves ``synchronous_commit`` as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_place, "_SETTINGS", SYNCHRONOUS_COMMIT_AS_IT_IS)
        await case(seed, place)


FAMILY = Family(case=case, control=control, cases=10, stores=("postgresql",), tries=2, limit=120)


async def test_a_standby_takes_over_and_what_was_answered_is_there() -> None:
    agent = Agent("talk", model=ScriptedModel(["hello"]))
    with pair() as (primary, standby, direct):
        async with Runtime(both_named(primary, standby, direct), agents=[agent]) as rt:
            first = await rt.run(agent, "hi", session="s", operation_id="first")
            second = asyncio.create_task(rt.run(agent, "hi", session="s", operation_id="second"))
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(standby.promote)
            assert (await second).revision == first.revision + 1
            again = await rt.run(agent, "hi", session="s", operation_id="first")
            assert (again.body, again.replayed) == (first.body, True)
            assert (await rt.run(agent, "hi", session="s", operation_id="third")).revision == first.revision + 2


async def test_a_standby_that_is_not_promoted_yet_is_waited_for() -> None:
    """As where an address leads to it before it can be written."""
    agent = Agent("talk", model=ScriptedModel(["hello"]))
    server = Server(wal_level="replica").init().start()
    try:
        server.make_template()
        async with Runtime(server.url("template_ondol"), agents=[agent]) as rt:
            await rt.run(agent, "hi", session="s", operation_id="first")
            await asyncio.to_thread(server.stop)
            (server.data / "standby.signal").touch()
            await asyncio.to_thread(server.start)
            second = asyncio.create_task(rt.run(agent, "hi", session="s", operation_id="second"))
            reading = asyncio.create_task(rt.find_run("first"))
            await asyncio.to_thread(server.promote)
            assert (await second).text == "hello"
            assert (await reading).status == "completed"
    finally:
        server.remove()


@pytest.mark.long
async def test_what_the_standby_never_heard_of_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)
