"""What could not be told of runs, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from cli.command import ondol
from door import door
from rememberer import rememberer

from ondol import AsyncClient, Client, NotFound, OutboxMessage, Runtime, access
from ondol.errors import Forbidden
from ondol.http.guard import Admission
from ondol.testing import ManualClock


async def test_what_is_dead_is_seen_and_told_once_more_from_afar(db: str, tmp_path: Path) -> None:
    heard: list[OutboxMessage] = []
    reachable = asyncio.Event()

    async def deliver(message: OutboxMessage) -> None:
        heard.append(message)
        if not reachable.is_set():
            raise ConnectionError("nobody is there")

    friend, clock = rememberer(), ManualClock("2026-01-01T00:00:00Z")
    async with Runtime(db, agents=[friend], deliver=deliver, clock=clock) as rt, door(rt) as http:
        await rt.run(friend, "hello", user="kim")
        while not await rt.outbox(state="dead"):
            clock.advance(timedelta(hours=1))
            rt._deliveries.look()
            await asyncio.sleep(0)
        async with AsyncClient(http.url) as there:
            (dead,) = await there.outbox(state="dead")
            assert dead == (await rt.outbox())[0]
            assert (dead.error, dead.attempts) == ("ConnectionError: nobody is there", 8)
            shown = await asyncio.to_thread(ondol, "--url", http.url, "outbox", "--state", "dead", cwd=tmp_path)
            assert dead.id in shown.out
            reachable.set()
            assert (await there.deliver_again(dead.id, by="lee")).state == "pending"
            while not await there.outbox(state="delivered"):
                pass
            with pytest.raises(NotFound, match="no message 'r_x/1' in the outbox"):
                await there.deliver_again("r_x/1")

        def blocking() -> list[OutboxMessage]:
            with Client(http.url) as there:
                there.deliver_again(dead.id, by="lee")
                return there.outbox()

        assert [m.id for m in await asyncio.to_thread(blocking)] == [dead.id]
        for said in ("a", "b", "c"):
            await rt.run(friend, said, user="kim")
        seen, cursor = [], ""
        while cursor is not None:
            page = (await http.client.get("/v1/outbox", params={"limit": 2, "after": cursor})).json()
            seen += [m["id"] for m in page["items"]]
            cursor = page["next"]
        assert seen == [m.id for m in await rt.outbox()]
        assert len(seen) == 4
        assert (await http.client.get("/v1/outbox", params={"after": "r_x/1"})).status_code == 404
        assert {(a.act, a.by, a.door) for a in await rt.audit()} == {("outbox.retry", "lee", "http")}


async def test_the_outbox_is_not_for_a_token_of_one_user(db: str) -> None:
    async with Runtime(db) as rt, door(rt, Admission(needs_token=True)) as http:
        _, one = await access.create_token(rt, "kim", ["read", "run"], user="kim")
        async with AsyncClient(http.url, token=one) as there:
            for reach in (there.outbox(), there.deliver_again("r_1/2")):
                with pytest.raises(Forbidden):
                    await reach
        _, looks = await access.create_token(rt, "looks", ["read"])
        async with AsyncClient(http.url, token=looks) as there:
            assert await there.outbox() == []
            with pytest.raises(Forbidden):
                await there.deliver_again("r_1/2")
