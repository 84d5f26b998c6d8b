"""How those who wait for commits hear of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ondol import queries, threads
from ondol.errors import StoreFault
from ondol.stores import open_store
from ondol.stores.jobs import Job, Writes, deliver, fail
from ondol.stores.sqlite import SqliteStore
from ondol.transactions import set_meta


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


async def test_what_is_written_in_one_turn_of_the_event_loop_gets_to_the_thread_together() -> None:
    loop, writes = asyncio.get_running_loop(), Writes()
    first, second = (Job(lambda: iter(()), loop) for _ in range(2))  # type: ignore[arg-type]
    writes.put(first)
    assert writes.waiting.empty(), "a thread that is woken by it would leave without the second"
    writes.put(second)
    await asyncio.sleep(0)
    assert [writes.waiting.get_nowait() for _ in range(2)] == [first, second]


async def test_what_those_who_hear_of_a_commit_write_next_gets_to_the_thread_in_that_turn() -> None:
    """So it does where they begin a task that writes it."""
    loop, writes = asyncio.get_running_loop(), Writes()
    committed, following = (Job(lambda: iter(()), loop) for _ in range(2))  # type: ignore[arg-type]

    async def goes_on() -> None:
        await committed
        task = loop.create_task(writes_on())
        await task

    async def writes_on() -> None:
        writes.put(following)

    going_on = loop.create_task(goes_on())
    await asyncio.sleep(0)
    deliver([committed], writes)
    await asyncio.sleep(0)  # they hear of it
    assert writes.waiting.empty()
    await asyncio.sleep(0)
    assert writes.waiting.get_nowait() is following
    await going_on


async def test_what_is_written_in_one_turn_of_the_event_loop_shares_a_commit(tmp_path: Any) -> None:
    store = SqliteStore(tmp_path / "ondol.db")
    await store.open(lambda: None)
    before = store.commits.commits
    await asyncio.gather(*(store.write(set_meta, f"key {n}", "there") for n in range(64)))
    assert store.commits.commits == before + 1
    await store.close()


def left_behind(store: Any) -> list[Job]:
    """What a closed store will not write any more. Who waits for it is told: nothing else would end that."""
    left = []
    while not store._writes.waiting.empty():
        if (job := store._writes.waiting.get_nowait()) is not None:
            left.append(job)
    fail(left, StoreFault("the store is closed"))
    return left


@pytest.mark.both_stores
async def test_what_is_written_in_the_turn_in_which_a_store_closes_is_done(db: str) -> None:
    store = open_store(db)
    await store.open(lambda: None)
    writing = asyncio.create_task(store.write(set_meta, "key", "there"))
    closing = asyncio.create_task(store.close())
    await asyncio.wait([writing, closing], timeout=10)
    assert not left_behind(store)
    await writing
    again = open_store(db)
    await again.open(lambda: None)
    assert await again.read(queries.get_meta, "key") == "there"
    await again.close()


@pytest.mark.both_stores
async def test_what_was_handed_in_is_ahead_of_the_word_that_there_is_no_more(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where tasks begin as soon as they are made."""
    store: Any = open_store(db)
    await store.open(lambda: None)
    in_thread, coming = threads.in_thread, list[bool]()

    def at_once(call: Any, *args: Any) -> Any:
        coming.append(bool(store._writes._coming))
        return in_thread(call, *args)

    writing = asyncio.create_task(store.write(set_meta, "key", "there"))
    monkeypatch.setattr(f"{type(store).__module__}.in_thread", at_once)
    await asyncio.wait([writing, asyncio.create_task(store.close())], timeout=10)
    assert not left_behind(store)
    assert coming == [False]
