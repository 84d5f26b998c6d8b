"""The downstream tells what really happened, whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from ondol.testing import Downstream, DownstreamFailed, Process
from ondol.testing.downstream import afind, arecord, find, record


@pytest.fixture
async def downstream() -> AsyncIterator[Downstream]:
    async with Downstream() as downstream:
        yield downstream


async def test_effects_are_counted_by_key_and_tool(downstream: Downstream) -> None:
    assert await downstream.arecord("k1", "mail", {"to": "kim"}) == {"id": 1, "count": 1, "recorded": True}
    assert await downstream.arecord("k1", "mail", {"to": "kim"}) == {"id": 2, "count": 2, "recorded": True}
    await downstream.arecord(None, "pay")
    assert await downstream.count() == 3
    assert await downstream.count(key="k1") == await downstream.count(tool="mail") == 2
    assert await downstream.count(key="k1", tool="pay") == 0
    first, *_ = await downstream.effects()
    assert (first.id, first.key, first.tool, first.arguments) == (1, "k1", "mail", {"to": "kim"})
    assert isinstance(first.at, datetime)
    assert first.at.tzinfo is not None


async def test_a_provider_that_honours_keys_has_the_effect_once(downstream: Downstream) -> None:
    first = await downstream.arecord("k1", "pay", {"amount": 30}, dedupe=True)
    again = await downstream.arecord("k1", "pay", {"amount": 30}, dedupe=True)
    assert (first["recorded"], again) == (True, {"id": 1, "count": 1, "recorded": False})
    keyless = [await downstream.arecord(None, "pay", dedupe=True) for _ in range(2)]
    assert [k["recorded"] for k in keyless] == [True, True]


async def test_tools_need_only_the_url(downstream: Downstream) -> None:
    url = downstream.url
    await asyncio.to_thread(record, url, "k 1&", "메일", {"to": "김", "amount": Decimal("0.10"), "odd": "\ud800\x00"})
    await arecord(url, "k2", "mail")
    (line,) = await asyncio.to_thread(find, url, "k 1&")
    assert (line.tool, line.arguments) == ("메일", {"to": "김", "amount": "0.10", "odd": "\ud800\x00"})
    assert [e.key for e in await afind(url, "k2")] == ["k2"]
    assert await afind(url, "k3") == []


async def test_many_effects_at_once_are_all_written(downstream: Downstream) -> None:
    answers = await asyncio.gather(*(downstream.arecord("k", "mail", {"n": n}) for n in range(50)))
    assert sorted(a["id"] for a in answers) == sorted(a["count"] for a in answers) == list(range(1, 51))
    assert {e.arguments["n"] for e in await downstream.effects()} == set(range(50))


async def test_the_ledger_outlives_the_service_and_a_torn_line(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    async with Downstream(ledger) as downstream:
        await downstream.arecord("k1", "mail", {"to": "kim"})
    assert json.loads(ledger.read_text())["key"] == "k1"
    with ledger.open("a") as file:
        file.write('{"id": 2, "key": "k')
    downstream = await Downstream.start(ledger)
    try:
        assert (await downstream.arecord("k1", "mail"))["count"] == 2
        assert len(ledger.read_text().splitlines()) == 2
    finally:
        await downstream.stop()


async def test_a_ledger_of_its_own_goes_away() -> None:
    downstream = await Downstream.start()
    assert downstream.path.exists()
    await downstream.stop()
    await downstream.stop()
    assert not downstream.path.parent.exists()


async def test_waiting_ends_with_the_nth_effect(downstream: Downstream) -> None:
    waiting = asyncio.create_task(downstream.wait_for(2, tool="mail"))
    await downstream.arecord("k1", "mail")
    await downstream.arecord("k2", "pay")
    assert not waiting.done()
    await downstream.arecord("k3", "mail")
    assert [e.key for e in await waiting] == ["k1", "k3"]


async def test_waiting_in_vain_tells_what_is_there(downstream: Downstream) -> None:
    await downstream.arecord("k1", "mail")
    with pytest.raises(TimeoutError, match=r"not 2 effects of any tool .*mail\(k1\)"):
        await downstream.wait_for(2, timeout=0.01)


@pytest.mark.parametrize(("when", "recorded"), [("before", 0), ("after", 1)])
async def test_a_hold_keeps_requests_before_or_after_they_are_recorded(
    downstream: Downstream, when: str, recorded: int
) -> None:
    await downstream.hold("before" if when == "before" else "after", tool="mail")
    held = asyncio.create_task(downstream.arecord("k1", "mail"))
    await downstream.wait_for_held()
    await downstream.arecord("k2", "pay")
    assert await downstream.count(key="k1") == recorded
    assert not held.done()
    await downstream.release()
    assert (await held)["count"] == 1
    assert (await downstream.arecord("k3", "mail"))["recorded"]


async def test_more_held_requests_than_threads_can_still_be_released(downstream: Downstream) -> None:
    await downstream.hold()
    held = [asyncio.create_task(downstream.arecord("k", "mail")) for _ in range(60)]
    await downstream.wait_for_held(60)
    await downstream.release()
    assert len(await asyncio.gather(*held)) == await downstream.count() == 60


async def test_a_cancelled_request_may_still_happen(downstream: Downstream) -> None:
    await downstream.hold()
    held = asyncio.create_task(downstream.arecord("k", "mail"))
    await downstream.wait_for_held()
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    await downstream.release()
    assert len(await downstream.wait_for(1)) == 1


async def test_stopping_cuts_off_what_is_held() -> None:
    downstream = await Downstream.start()
    await downstream.hold()
    held = asyncio.create_task(downstream.arecord("k", "mail"))
    in_a_thread = asyncio.create_task(asyncio.to_thread(downstream.record, "k", "mail"))
    await downstream.wait_for_held(2)
    await downstream.stop()
    for request in (held, in_a_thread):
        with pytest.raises(ConnectionError):
            await request


async def test_failures_come_as_often_as_ordered(downstream: Downstream) -> None:
    await downstream.fail(times=2, status=503)
    for _ in range(2):
        with pytest.raises(DownstreamFailed) as failed:
            await downstream.arecord("k", "mail")
        assert failed.value.status == 503
    assert await downstream.count() == 0
    assert (await downstream.arecord("k", "mail"))["count"] == 1


async def test_a_failure_after_recording_loses_only_the_answer(downstream: Downstream) -> None:
    await downstream.fail(status=500, when="after", tool="mail")
    await downstream.arecord("k1", "pay")
    with pytest.raises(DownstreamFailed):
        await asyncio.to_thread(downstream.record, "k2", "mail")
    await downstream.fail(times=2, status=None, when="after")
    with pytest.raises(ConnectionError):
        await downstream.arecord("k3", "mail")
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(downstream.record, "k4", "mail")
    assert [e.key for e in await downstream.effects()] == ["k1", "k2", "k3", "k4"]


PARENT = """
import asyncio, sys
from ondol.testing import Downstream
async def main():
    downstream = await Downstream.start(sys.argv[1])
    print("url", downstream.url)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_the_service_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    async with Process(["-c", PARENT, tmp_path / "l.jsonl"]) as parent:
        url = (await parent.line("url")).split()[1]
        await arecord(url, "k1", "mail")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        parent.kill()
        assert await parent.wait() == -signal.SIGKILL
        with contextlib.suppress(ConnectionResetError):  # it was not accepted yet
            assert await asyncio.wait_for(reader.read(), 10) == b""  # an open connection ends with the service
        writer.close()
    with pytest.raises(ConnectionError):
        await arecord(url, "k2", "mail")
