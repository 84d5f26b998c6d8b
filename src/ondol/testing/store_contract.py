"""What must every store do, whatever database it stands on?

The suite that a store has to pass. A test module names a class after it and says how a store is made:

    from ondol.testing.store_contract import StoreContract

    class TestMyStore(StoreContract):
        def make_store(self, folder): return MyStore(folder / "db")
        async def damage_blob(self, store, tenant, digest): ...   # change bytes behind the store's back

pytest (with ``asyncio_mode = "auto"``) runs it; this module itself does not need pytest.
"""

from __future__ import annotations

import abc
import asyncio
import functools
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ondol.errors import NotFound, StoreCorrupt, StoreError
from ondol.queries import get_meta
from ondol.store import Store
from ondol.transactions import Tx, set_meta

T = TypeVar("T")

_PATIENCE = 10.0  # seconds after which something that must happen is taken not to
_MANY = 200  # writes at once: more than one group commit takes
_ROUNDS = 10  # of what depends on how two things fall


class StoreContract(abc.ABC):
    """The promises of ``ondol.Store``, each a test."""

    @abc.abstractmethod
    def make_store(self, folder: Path) -> Store:
        """A store that is not open yet. Made again with the same folder, it is another door to the same data."""

    @abc.abstractmethod
    async def damage_blob(self, store: Store, tenant: str, digest: str) -> None:
        """Change bytes of a blob behind the store's back."""

    @asynccontextmanager
    async def opened(self, folder: Path, on_change: Callable[[], None] = lambda: None) -> AsyncIterator[Store]:
        store = self.make_store(folder)
        await store.open(on_change)
        try:
            yield store
        finally:
            await store.close()

    # --- writes and reads ---------------------------------------------------------------------------------------

    async def test_a_write_returns_what_its_function_returned_and_the_next_read_sees_it(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert await store.write(_set_and_return, "colour", "red") == "red"
            assert await store.read(get_meta, "colour") == "red"

    async def test_arguments_are_handed_to_the_function(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.write(set_meta, "a", value="1")
            assert await store.read(get_meta, key="a") == "1"

    async def test_a_function_that_raises_after_its_writes_leaves_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.write(set_meta, "kept", "before")
            with _raises(_Refusal):
                await store.write(_write_then_raise, _Refusal("no"), "kept", "lost")
            assert await store.read(get_meta, "kept") == "before"
            assert await store.read(get_meta, "lost") is None

    async def test_the_exception_of_a_function_travels_as_it_is(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            for run in (store.write, store.read):
                refusal = _Refusal("as it is")
                with _raises(_Refusal) as raised:
                    await run(_raise, refusal)
                assert raised == [refusal]
            assert await store.write(_set_and_return, "still", "works") == "works"

    async def test_what_was_written_is_there_after_close_and_open(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.write(set_meta, "kept", "yes")
            digest = await store.put_blob("t", b"kept too")
        async with self.opened(tmp_path) as store:
            assert await store.read(get_meta, "kept") == "yes"
            assert await store.get_blob("t", digest) == b"kept too"

    async def test_a_store_can_be_opened_again(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for n in range(3):
            await store.open(lambda: None)
            await store.write(set_meta, "opened", str(n))
            assert await store.read(get_meta, "opened") == str(n)
            await store.close()
            await store.close()  # a second time nothing happens

    async def test_a_store_that_is_not_open_refuses(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        with _raises(StoreError):
            await store.write(set_meta, "a", "1")
        await store.open(lambda: None)
        await store.close()
        with _raises(StoreError):
            await store.read(get_meta, "a")

    async def test_a_write_while_the_store_closes_is_done_or_refused_and_never_hangs(self, tmp_path: Path) -> None:
        async def close_and_write(n: int) -> list[BaseException | None]:
            store = self.make_store(tmp_path)
            await store.open(lambda: None)
            closing = asyncio.create_task(store.close())
            writes = []
            for i in range(5):
                writes.append(asyncio.create_task(store.write(set_meta, f"{n}.{i}", "done")))
                await asyncio.sleep(0)
            await closing
            return await asyncio.gather(*writes, return_exceptions=True)

        for n in range(_ROUNDS):
            # On a thread and a loop of its own: what hangs cannot be cancelled, and must not hold up the other tests.
            results = await asyncio.wait_for(on_a_thread(functools.partial(close_and_write, n)), _PATIENCE)
            async with self.opened(tmp_path) as again:
                for i, result in enumerate(results):
                    there = await again.read(get_meta, f"{n}.{i}")
                    assert there == "done" if result is None else isinstance(result, StoreError) and there is None

    async def test_a_close_whose_caller_is_cancelled_closes_all_the_same(self, tmp_path: Path) -> None:
        async def cancel_while_it_closes() -> None:
            store = self.make_store(tmp_path)
            await store.open(lambda: None)
            assert await store.drives("one", [])
            closing = asyncio.create_task(store.close())
            await asyncio.sleep(0)
            closing.cancel()
            with _raises(asyncio.CancelledError):
                await closing

        await asyncio.wait_for(on_a_thread(cancel_while_it_closes), _PATIENCE)
        async with self.opened(tmp_path) as again:
            assert await again.drives("another", []), "nobody holds that right any more"
            assert list(await again.drivers()) == ["another"]

    async def test_a_read_sees_one_instant(self, tmp_path: Path) -> None:
        """Two batches of one read see the same, though another door wrote between them."""
        async with self.opened(tmp_path) as store:
            await store.write(_set_both, "old")
            before, after = await store.read(_read_twice, lambda: self._elsewhere(tmp_path, _set_both, "new"))
            assert before == after == ("old", "old")
            assert await store.read(get_meta, "left") == "new"

    async def test_a_read_cannot_write(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            with _raises(StoreError):
                await store.read(set_meta, "a", "1")
            assert await store.read(get_meta, "a") is None

    async def test_a_row_that_belongs_to_nothing_is_refused(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            with _raises(StoreError):
                await store.write(_signal_to_nobody)
            assert await store.write(_set_and_return, "still", "works") == "works"

    def _elsewhere(self, folder: Path, tx: Callable[..., Tx[Any]], *args: Any) -> None:
        """Write through another door, on another thread and event loop, to the end."""

        async def write() -> None:
            async with self.opened(folder) as store:
                await store.write(tx, *args)

        thread = threading.Thread(target=lambda: asyncio.run(write()))
        thread.start()
        thread.join()

    # --- many at once -------------------------------------------------------------------------------------------

    async def test_many_writes_at_once_all_land(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            keys = [f"k{n}" for n in range(_MANY)]
            results = await asyncio.gather(*(store.write(_set_and_return, key, f"of {key}") for key in keys))
            assert results == [f"of {key}" for key in keys]
            assert await asyncio.gather(*(store.read(get_meta, key) for key in keys)) == results

    async def test_no_update_of_many_at_once_is_lost(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store, self.opened(tmp_path) as other:
            counted = await asyncio.gather(*(s.write(_count) for _ in range(_MANY // 4) for s in (store, other)))
            assert sorted(counted) == list(range(1, len(counted) + 1))
            assert await store.read(get_meta, "count") == str(len(counted))

    async def test_one_refusal_among_many_does_not_disturb_the_others(self, tmp_path: Path) -> None:
        """Whether it refuses before its first change or after it."""
        for refuse in (_raise, _write_then_raise):
            async with self.opened(tmp_path / refuse.__name__) as store:
                refusal = _Refusal("not me")
                writes = [store.write(_set_and_return, f"k{n}", "done") for n in range(10)]
                writes.insert(5, store.write(refuse, refusal, "k4", "k5"))  # keys of its neighbours
                results = await asyncio.gather(*writes, return_exceptions=True)
                assert results.pop(5) is refusal
                assert results == ["done"] * 10
                assert [await store.read(get_meta, f"k{n}") for n in range(10)] == ["done"] * 10

    async def test_a_write_whose_caller_is_cancelled_is_committed_to_its_end(self, tmp_path: Path) -> None:
        """Handed over, it may be on its way to the disk: the caller hears of its cancellation after that."""
        async with self.opened(tmp_path) as store:
            for n in range(_ROUNDS):
                task, cancel = _current(), _cancelling(1)
                with _raises(asyncio.CancelledError):
                    await store.write(_cancel_and_set, cancel, f"c{n}")
                task.uncancel()
                assert await store.read(get_meta, f"c{n}") == "done"

    async def test_a_caller_that_is_cancelled_twice_still_waits_for_the_end(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            task, twice = _current(), asyncio.Event()
            cancel = _cancelling(2, twice)
            with _raises(asyncio.CancelledError):
                await store.write(_cancel_and_set, cancel, "c")
            with suppress(asyncio.CancelledError):  # the second one may come after the end
                await twice.wait()
            while task.cancelling():
                task.uncancel()
            assert await store.read(get_meta, "c") == "done"

    # --- other processes ----------------------------------------------------------------------------------------

    async def test_a_change_through_another_door_is_noticed_in_the_event_loop(self, tmp_path: Path) -> None:
        noticed = asyncio.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        def on_change() -> None:
            loops.append(asyncio.get_running_loop())
            noticed.set()

        async with self.opened(tmp_path, on_change), self.opened(tmp_path) as other:
            for n in range(3):
                await other.write(set_meta, "n", str(n))
                async with asyncio.timeout(_PATIENCE):
                    await noticed.wait()
                noticed.clear()
        assert set(loops) == {asyncio.get_running_loop()}

    async def test_a_change_is_noticed_by_a_store_that_writes_all_the_time(self, tmp_path: Path) -> None:
        noticed = asyncio.Event()
        async with self.opened(tmp_path, noticed.set) as busy, self.opened(tmp_path) as other, _writing(busy):
            await other.write(set_meta, "a", "1")
            async with asyncio.timeout(_PATIENCE):
                await noticed.wait()

    async def test_whoever_drives_is_known_to_all_with_its_agents(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as second:
            assert await second.drivers() == {}
            async with self.opened(tmp_path) as first:
                assert await first.drives("first", ["talk", "support"])
                assert await first.drives("first", ["talk", "support"]), "the right is kept"
                for store in (first, second):
                    assert await store.drivers() == {"first": ["support", "talk"]}
                await second.write(set_meta, "a", "1")  # whoever does not drive may write
            assert await second.drivers() == {}, "the first one closed"
            assert await second.drives("second", [])
            assert await second.drivers() == {"second": []}

    async def test_a_store_becomes_the_driver_in_the_middle_of_its_writes(self, tmp_path: Path) -> None:
        written = 0
        for _ in range(_ROUNDS):
            async with self.opened(tmp_path) as store:
                async with _writing(store) as counts:
                    await store.write(set_meta, "a", "1")
                    assert await store.drives("o", [])
                written += sum(counts)
                assert int(await store.read(get_meta, "count") or 0) == written

    # --- blobs --------------------------------------------------------------------------------------------------

    async def test_a_blob_is_kept_under_its_digest(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            for data in (b"", b"a few", bytes(range(256)) * 8000):
                digest = await store.put_blob("t", data)
                assert digest == hashlib.sha256(data).hexdigest()
                assert await store.get_blob("t", digest) == data

    async def test_the_same_bytes_twice_are_one_blob(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            first, second = await store.put_blob("t", b"same"), await store.put_blob("t", b"same")
            assert first == second
            await store.drop_blob("t", first)
            with _raises(NotFound):
                await store.get_blob("t", first)

    async def test_the_same_bytes_at_once_are_one_blob(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            digests = await asyncio.gather(*(store.put_blob("t", b"same" * 10_000) for _ in range(10)))
            assert set(digests) == {hashlib.sha256(b"same" * 10_000).hexdigest()}
            assert await store.get_blob("t", digests[0]) == b"same" * 10_000

    async def test_a_blob_belongs_to_its_tenant(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            digest = await store.put_blob("../a tenant", b"secret")
            for other in ("another", "", ".", "../A tenant"):
                with _raises(NotFound):
                    await store.get_blob(other, digest)
                await store.drop_blob(other, digest)
            assert await store.get_blob("../a tenant", digest) == b"secret"

    async def test_a_blob_that_is_not_there_is_not_found_and_can_be_dropped(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            digest = hashlib.sha256(b"never").hexdigest()
            with _raises(NotFound):
                await store.get_blob("t", digest)
            await store.drop_blob("t", digest)

    async def test_a_damaged_blob_is_found_and_never_believed(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            digest = await store.put_blob("t", b"as it was written")
            await self.damage_blob(store, "t", digest)
            with _raises(StoreCorrupt):
                await store.get_blob("t", digest)

    async def test_a_damaged_blob_is_whole_again_when_its_bytes_are_put_again(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            digest = await store.put_blob("t", b"as it was written")
            await self.damage_blob(store, "t", digest)
            await store.put_blob("t", b"as it was written")
            assert await store.get_blob("t", digest) == b"as it was written"


class _Refusal(Exception):
    """What a transaction function may raise."""


@contextmanager
def _raises(kind: type[BaseException]) -> Iterator[list[BaseException]]:
    """The block raises this; the exception is in the list afterwards."""
    raised: list[BaseException] = []
    try:
        yield raised
    except kind as error:
        raised.append(error)
    assert raised, f"{kind.__name__} was not raised"


async def on_a_thread(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it on another thread, in another event loop, which may be left alone if it never ends."""
    loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def tell(tell_it: Callable[[Any], None], what: object) -> None:
        loop.call_soon_threadsafe(lambda: None if ended.done() else tell_it(what))

    def run() -> None:
        try:
            result = asyncio.run(make())
        except BaseException as error:  # what leaves a thread is lost, and the test waits for it
            tell(ended.set_exception, error)
        else:
            tell(ended.set_result, result)

    threading.Thread(target=run, daemon=True).start()
    return await ended


@asynccontextmanager
async def _writing(store: Store) -> AsyncIterator[list[int]]:
    """During the block the store writes all the time; how much each of the writers wrote is in the list after it."""
    stop = asyncio.Event()
    counts = [0] * 4

    async def write_on(writer: int) -> None:
        while not stop.is_set():
            await store.write(_count)
            counts[writer] += 1

    async with asyncio.TaskGroup() as group:
        for writer in range(len(counts)):
            group.create_task(write_on(writer))
        try:
            yield counts
        finally:
            stop.set()


def _current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _cancelling(times: int, done: asyncio.Event | None = None) -> Callable[[], object]:
    """Cancels the current task, from any thread, so many times, each in a turn of the event loop of its own."""
    loop, task = asyncio.get_running_loop(), _current()

    def cancel(left: int) -> None:
        if left:
            task.cancel()
            loop.call_soon(cancel, left - 1)
        elif done is not None:
            done.set()

    return lambda: loop.call_soon_threadsafe(cancel, times)


# --- transactions, as those of ``ondol.transactions`` -----------------------------------------------------------


def _set_and_return(key: str, value: str) -> Tx[str]:
    yield from set_meta(key, value)
    return value


def _cancel_and_set(cancel: Callable[[], object], key: str) -> Tx[None]:
    cancel()
    yield from set_meta(key, "done")


def _set_both(value: str) -> Tx[None]:
    yield [("meta.set", {"key": "left", "value": value}), ("meta.set", {"key": "right", "value": value})]


def _read_twice(between: Callable[[], None]) -> Tx[tuple[tuple[str, ...], tuple[str, ...]]]:
    both = [("meta.get", {"key": "left"}), ("meta.get", {"key": "right"})]
    before = yield list(both)
    between()
    after = yield list(both)
    return tuple(rows[0][0] for rows in before), tuple(rows[0][0] for rows in after)


def _write_then_raise(error: Exception, *keys: str) -> Tx[str]:
    for key in keys:
        yield [("meta.set", {"key": key, "value": "lost"})]
    raise error


def _raise(error: Exception, *_: str) -> Tx[str]:
    yield [("meta.get", {"key": "a"})]
    raise error


def _signal_to_nobody() -> Tx[None]:
    yield [("tenant.insert", {"tenant": "t"})]
    yield [("signal.insert", {"tenant": "t", "run": "r_none", "kind": "cancel", "body": "{}", "at": 0})]


def _count() -> Tx[int]:
    n = int((yield from get_meta("count")) or 0) + 1
    yield from set_meta("count", str(n))
    return n


__all__ = ["StoreContract"]
