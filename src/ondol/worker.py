"""Which runs does this process drive, and when?

The embedded engine: it claims runs whose turn it is and whose agent it has, drives them, and keeps house: what a dead
process left, asks that expire, blobs that nobody uses. Only a process that may drive does so: one at a time on SQLite,
any number on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ondol import lifecycle, queries, transactions
from ondol.attempts import begun_by, calling
from ondol.cancellation import InFlight, begin, unwound
from ondol.clock import Clock, Jumps, Timer, micros, to_micros
from ondol.deliveries import Deliveries
from ondol.embedding import Embedding
from ondol.errors import (
    AlreadyDecided,
    AskClosed,
    ClaimLost,
    OndolError,
    StoreCorrupt,
    StoreError,
    StoreFault,
    StoreTooNew,
)
from ondol.logs import about
from ondol.records import RunRow
from ondol.runner import Drive, Runner, Served
from ondol.secret import logger, redact
from ondol.store import Store
from ondol.streams import Streams
from ondol.transactions import Accepted, Claimed, Decision

log = logger("ondol.worker")

SLOTS = 200  # runs driven at once where no limit is set; each holds a task, no connection
_PAGE = 500  # queued runs read at once
_SUSPECT_PATIENCE = 60.0  # seconds that a suspect waits for the others to end before it runs beside them
_BLOBS_KEPT = timedelta(hours=24)  # for an upload whose operation never came
_STORE_RETRY = 0.5  # seconds until a claim that the store could not take is tried again
_LOCK_RETRY = 0.5  # seconds between attempts to become the driver
_ACCEPTING = 10.0  # seconds that a process which stops waits for what is being accepted
_HOUSEKEEPING = 3600.0  # seconds between collections of unused blobs


@dataclass(slots=True, eq=False)
class _Driven:
    """A run that has a task in this process."""

    task: asyncio.Future[None]
    drive: Drive | None = None  # None while the run is being claimed
    signalled: bool = False  # by a signal that came meanwhile
    asleep: bool = False  # a suspect that only waits for an instant, so that nobody has to wait for it
    waking: asyncio.Future[None] | None = None  # its instant has come: it goes on as soon as it is alone


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    """A tool of the run ``caller`` that itself waits for another run. (Where its task was cancelled, as its time was
    over, say, it may do so for ever: its own run goes on.)
    """

    caller: str
    run: RunRow
    task: asyncio.Task[Any]


class EmbeddedEngine:
    """Drives runs in this process, in tasks of the running event loop."""

    def __init__(
        self, store: Store, clock: Clock, streams: Streams, runner: Runner, served: Mapping[str, Served], slots: int,
        deliveries: Deliveries, embedding: Embedding,
    ) -> None:  # fmt: skip
        self.slots, self.deliveries, self.embedding = slots, deliveries, embedding
        self.store, self.clock, self.streams, self.runner, self.served = store, clock, streams, runner, served
        self.owner = f"{os.getpid()}.{secrets.token_hex(6)}"
        self.is_driver = False
        self._driven: dict[str, _Driven] = {}
        self._pending: dict[str, str] = {}  # run -> tenant, wanting a task
        self._suspects: dict[str, str] = {}  # the same, of runs that are driven alone
        self._alone: str | None = None
        self._lent: set[str] = set()  # places of runs that wait for the deadline of a lost attempt
        self._waits: Counter[tuple[str, str]] = Counter()  # a run here, and the one that a tool of it waits for
        self._stands: set[_Wait] = set()  # those of them that the tool itself waits for
        self._over: set[str] = set()  # of those waited for: it has ended here, and whoever waits is about to hear it
        self._patience: Timer | None = None
        self._look_again = False
        self.refused: dict[str, OndolError] = {}  # runs that cannot be read here, and why
        self._draining = False
        self._look = asyncio.Event()
        self._at_all = False  # there is reason to look at all that waits, and not only at
        self._asked: set[str] = set()  # tenants of whom a run came to wait for an ask, which may expire
        self._background: list[asyncio.Task[None]] = []
        self._context = contextvars.Context()  # that of whoever opened it
        self._expiry: Timer | None = None
        self._expires_at = 0  # when it rings
        self.jumps = Jumps(clock)

    async def open(self) -> None:
        self._context = contextvars.copy_context()
        try:
            await self._become_driver()
        except StoreError as error:
            if not _is_for_now(error):
                raise  # else reads go on, and the watch below tries again
        self.look_soon()
        work = (self._keep_looking(), self._keep_house(), self.deliveries.run(), self.embedding.run())
        self._background = [asyncio.create_task(w) for w in work]

    async def close(self, patience: float) -> None:
        """No new runs; those in flight reach a boundary within ``patience`` seconds, the rest is cut off."""
        self._draining = True
        try:
            for timer in (self._expiry, self._patience):
                if timer is not None:
                    timer.cancel()
            for driven in self._driven.values():
                if driven.drive is not None:
                    driven.drive.drain()
            if self._driven:
                await asyncio.wait([d.task for d in self._driven.values()], timeout=patience)
        finally:  # also when the one who closes is cancelled
            places = [d.task for d in self._driven.values() if not isinstance(d.task, asyncio.Task)]
            late = [*self._background, *(d.task for d in self._driven.values() if isinstance(d.task, asyncio.Task))]
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            if places:  # what is being accepted is not cut in half
                await asyncio.wait(places, timeout=_ACCEPTING)
            await self._give_back_the_rest()
            await unwound()

    def is_working_on(self, run: str) -> bool:
        return run in self._driven or run in self._pending or run in self._suspects

    def waits_for_caller(self, run: RunRow) -> list[RunRow]:
        """The given run and each that it waits for in turn, up to the one whose tool asks this. Empty where there is no
        such chain.

        A run waits for the one that its session is at, and that for those that its tools wait for.
        """
        caller = calling()
        end = None if caller is None else self._drive(caller)
        if end is None:
            return []
        todo, passed = [[run]], set[tuple[str, str]]()
        while todo:
            chain = todo.pop()
            place = chain[-1].tenant, chain[-1].session
            if place == (end.row.tenant, end.row.session):
                return [*chain, end.row]
            if place in passed:
                continue
            passed.add(place)
            for wait in self._stands:
                drive = None if wait.task.cancelling() else self._drive(wait.caller)
                if drive is not None and (drive.row.tenant, drive.row.session) == place:
                    todo.append([*chain, drive.row, wait.run])
        return []

    @contextlib.contextmanager
    def stands_still(self, run: RunRow) -> Iterator[None]:
        """The caller goes no further before that run does. Where it is a tool's own code, nor does the tool's run."""
        caller, task = calling(), asyncio.current_task()
        if caller is None or task is None:
            yield
            return
        wait = _Wait(caller, run, task)
        self._stands.add(wait)
        try:
            yield
        finally:
            self._stands.discard(wait)

    @contextlib.contextmanager
    def awaited(self, run: str) -> Iterator[None]:
        """Somebody waits for the run. A tool that does lends it the place of its own: else both might wait for ever."""
        if (caller := begun_by()) is None:
            yield
            return
        self._waits[caller, run] += 1
        if not self._draining:
            self._start_pending()
        try:
            yield
        finally:
            self._waits -= Counter([(caller, run)])
            if all(run != other for _, other in self._waits):
                self._over.discard(run)

    # --- what makes it look -------------------------------------------------------------------------------------

    def look_soon(self) -> None:
        self._at_all = True
        self._look.set()

    def wake(self, tenant: str, run: str, agent: str, deaths: int) -> None:
        """It may be this run's turn."""
        if self.is_driver and not self._draining:
            self._want(tenant, run, agent, deaths)
            self._start_pending()

    def _want(self, tenant: str, run: str, agent: str, deaths: int) -> None:
        if agent not in self.served or run in self.refused:
            return
        if run in self._driven:
            if not self._is_claiming(run):
                self._look_again = True  # its last task is just ending
        else:
            suspect = deaths >= lifecycle.SUSPECT_DEATHS
            (self._suspects if suspect else self._pending)[run] = tenant

    def _is_claiming(self, run: str) -> bool:
        """Is its claim on the way? Then there is nothing more to do: should it fail, the end of its task is seen."""
        driven = self._driven[run]
        return driven.drive is None and isinstance(driven.task, asyncio.Task)

    def signal(self, run: str) -> None:
        """A signal for the run is in the store."""
        if (drive := self._drive(run)) is not None:
            drive.signal()
        elif run in self._driven:
            self._driven[run].signalled = True  # its claim is on the way

    def _drive(self, run: str) -> Drive | None:
        driven = self._driven.get(run)
        return None if driven is None else driven.drive

    def changed(self) -> None:
        """Another process changed the store."""
        self.look_soon()
        self.streams.notify_all()

    # --- claims -------------------------------------------------------------------------------------------------

    async def accept(self, accept: Callable[[str | None], Awaitable[Accepted]], run: str, agent: str) -> Accepted:
        """T0. With a slot for the run T1 rides on it: ``accept`` is given the owner then."""
        try:
            accepted = await (self._accept_and_claim(accept, run) if await self._has_slot(agent) else accept(None))
        except StoreError:
            self.look_soon()  # it may be there all the same, and claimed
            raise
        found = accepted.answering
        if found.owner == self.owner and found.state == "running" and not self.is_working_on(found.id):
            self.look_soon()  # its claim was not heard of when it came
        return accepted

    async def _has_slot(self, agent: str) -> bool:
        """Can a run of the agent be driven at once?"""
        try:
            if not self.is_driver or not await self.store.drives(self.owner, list(self.served)):
                return False
        except StoreError:  # it may be accepted all the same
            return False
        waiting = self._pending or self._suspects or self._alone is not None or len(self._driven) >= self.slots
        return agent in self.served and not waiting and not self._draining

    async def _accept_and_claim(self, accept: Callable[[str | None], Awaitable[Accepted]], run: str) -> Accepted:
        place = self._driven[run] = _Driven(asyncio.get_running_loop().create_future())
        claimed: Claimed | None = None
        try:
            try:
                accepted = await accept(self.owner)
            except (StoreCorrupt, StoreTooNew):  # of what the run would be driven with: that is said when it is
                accepted = await accept(None)
            claimed = None if self._draining else accepted.claimed  # whoever closes gives it back
            return accepted
        finally:
            del self._driven[run]
            place.task.cancel()  # who waits for it goes on
            if claimed is not None:
                self._start(run, claimed.run.tenant, claimed)
                self._driven[run].signalled = place.signalled
            else:
                self.streams.dropped(run)
                self._has_room()

    def _start_pending(self) -> None:
        """As many as there are slots. A run that processes died of runs alone, so that it takes no other with it.

        Each run whose tool waits for others lends its slot to one of these; where all wait, to what is before those.
        """
        waits = [(caller, run) for caller, run in self._waits if run not in self._over]
        waiting = len({caller for caller, _ in waits if caller in self._driven})
        slots = self.slots + len(self._lent)
        awaited = list(dict.fromkeys(run for _, run in waits if run in self._pending))
        for run in awaited[: max(0, slots + waiting - len(self._driven))]:
            self._start(run, self._pending.pop(run))
        if self._alone is not None:
            return
        while self._pending and len(self._driven) < max(slots, waiting + 1):
            run = next(iter(self._pending))
            self._start(run, self._pending.pop(run))
        if not self._suspects and not any(d.waking for d in self._driven.values()):
            return
        if all(d.asleep for d in self._driven.values()):
            self._let_one_alone()
        elif self._patience is None:
            self._patience = self.clock.call_later(_SUSPECT_PATIENCE, self._let_one_alone)

    def _let_one_alone(self) -> None:
        """The next suspect goes on, or starts. Nothing else does until its dangerous step is done."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._draining:
            return
        for run, driven in self._driven.items():
            if driven.waking is not None:
                self._alone = run
                self._wake_up(driven)
                return
        if self._suspects:
            self._alone = next(iter(self._suspects))
            self._start(self._alone, self._suspects.pop(self._alone))

    def _wake_up(self, driven: _Driven) -> None:
        waking, driven.waking, driven.asleep = driven.waking, None, False
        if waking is not None and not waking.done():
            waking.set_result(None)

    def _fell_asleep(self, run: str) -> None:
        """It does nothing but wait for an instant, such as the deadline of a lost attempt: that can harm nobody."""
        if self._alone == run:
            self._driven[run].asleep = True
            self._alone = None
            self._start_pending()

    def _lends(self, run: str, lent: bool) -> None:
        """The deadline of a lost attempt may be far away, and after a crash many wait for theirs."""
        if not lent:
            self._lent.discard(run)
        elif run in self._driven and not self._draining:
            self._lent.add(run)
            self._start_pending()

    async def _awakes(self, run: str) -> bool:
        """Return True when it may go on; False when something asked it not to wait."""
        driven = self._driven[run]
        if not driven.asleep or driven.drive is None:
            return True
        if driven.waking is None:
            driven.waking = asyncio.get_running_loop().create_future()
            self._start_pending()
        if driven.waking is None:
            return True
        return await InFlight(driven.waking, in_thread=True).wait(self.clock, None, driven.drive.pause) == "done"

    def _progressed(self, run: str) -> None:
        """The step that processes died at is behind it: it is no suspect any more."""
        driven = self._driven[run]
        if driven.asleep or driven.waking is not None:
            self._wake_up(driven)
        if self._alone == run:
            self._alone = None
            self._start_pending()

    def _start(self, run: str, tenant: str, claimed: Claimed | None = None) -> None:
        # Not in the context of whoever happens to be here: that may be the request of somebody else.
        task = begin(self._claim_and_drive(tenant, run, claimed), self._context.copy())
        self._driven[run] = _Driven(task)
        task.add_done_callback(lambda done: self._stopped(run, done))

    def _stopped(self, run: str, task: asyncio.Task[None]) -> None:
        if run in self._driven and self._driven[run].task is task:  # not yet forgotten, and not started again
            self._forget(run)
            self.streams.dropped(run)
            self._look_again = True
        self._has_room()

    def _has_room(self) -> None:
        """A place is free: for whoever waits for one, or was to be looked at when the one who had it was gone."""
        if self._look_again:
            self._look_again = False
            self.look_soon()
        if not self._draining:
            self._start_pending()

    async def _claim_and_drive(self, tenant: str, run: str, claimed: Claimed | None) -> None:
        try:
            if claimed is None:
                if not await self.store.drives(self.owner, list(self.served)):
                    return
                claimed = await self.store.write(transactions.claim, tenant, run, self.owner, self._now())
            if claimed is None:
                return
            self.streams.notify(run)  # it may sleep before it writes anything else
            drive = self.runner.drive(claimed, self.served[claimed.run.agent])
            driven = self._driven[run]
            driven.drive = drive
            drive.progressed = functools.partial(self._progressed, run)
            drive.fell_asleep = functools.partial(self._fell_asleep, run)
            drive.awakes = functools.partial(self._awakes, run)
            drive.lends = functools.partial(self._lends, run)
            if driven.signalled:
                drive.signal()
            if self._draining:
                drive.drain()
            await drive.run()
        except ClaimLost as lost:
            log.info("%s", lost, extra=self._about(run))
        except asyncio.CancelledError:
            await self._give_back(run)
            raise
        except StoreError as error:
            await self._store_failed(tenant, run, error)
        except Exception as error:
            log.exception("run %s stopped by an error of the runtime itself", run, extra=self._about(run))
            if self._drive(run) is None:  # it could not even be claimed
                self._refuse(run, error)
            await self._count_as_death(tenant, run, error)
        else:
            self._after(drive)

    def _refuse(self, run: str, error: Exception) -> None:
        """Whoever waits for the run is told why it is not driven here."""
        self.refused[run] = OndolError(redact(f"run {run} cannot be driven: {type(error).__name__}: {error}"))

    def _about(self, run: str) -> dict[str, str]:
        drive = self._drive(run)
        return {"run": run} if drive is None else about(drive.row)

    async def _store_failed(self, tenant: str, run: str, error: StoreError) -> None:
        """A run that cannot be read is left as it is and refused; a store that is full or busy is tried again."""
        log.error("run %s: %s", run, error, extra=self._about(run))
        if isinstance(error, StoreFault):
            await self._count_as_death(tenant, run, error)
            return
        await self._give_back(run)
        if not _is_for_now(error):
            self.refused[run] = error
        else:
            self.streams.waits_for_store(run, error, self.clock.now(), 1)  # behind run.accepted
            self.clock.call_later(_STORE_RETRY, self.look_soon)

    async def _count_as_death(self, tenant: str, run: str, error: Exception) -> None:
        """As if the process had died of it: the run is taken up again, and parked when it goes on like this."""
        drive = self._drive(run)
        if drive is not None:
            try:
                why = redact(str(error) if isinstance(error, OndolError) else f"{type(error).__name__}: {error}")
                await self.store.write(transactions.recover, tenant, run, drive.claim.fence, self._now(), why)
            except StoreError as refused:
                said = "run %s stays claimed until this process ends: %s"
                log.error(said, run, refused, extra=about(drive.row))
            self.look_soon()

    def _after(self, drive: Drive) -> None:
        tenant, run = drive.claim.tenant, drive.row.id
        if drive.ended is not None and any(run == other for _, other in self._waits):
            self._over.add(run)
        self._forget(run)
        self.deliveries.look()
        if drive.ended is not None:
            memory, drive.memory = drive.memory, None  # it holds the drive
            if memory is not None:
                self.embedding.look(memory.scope)
            self.streams.settled(drive.ended.run)
            if drive.ended.next_run is not None:
                self.wake(tenant, *drive.ended.next_run)
        elif drive.suspended is not None:
            self.streams.settled(drive.suspended)
            if drive.suspended.state == "waiting":
                self._asked.add(tenant)
                self._look.set()
            else:  # parked: whoever is behind it goes on
                self.look_soon()
        else:  # given back
            self.streams.dropped(drive.row.id)

    def _forget(self, run: str) -> None:
        self._driven.pop(run, None)
        self._lent.discard(run)
        if self._alone == run:
            self._alone = None

    async def _give_back(self, run: str) -> None:
        """The time to stop is over: what is in flight stays as it is written down, the claim is released."""
        if (drive := self._drive(run)) is not None:
            await self._release(drive.claim.tenant, run, drive.claim.fence)

    async def _give_back_the_rest(self) -> None:
        """What this process was given and never heard of, because whoever accepted it was cut off."""
        if not self.is_driver:
            return
        try:
            for tenant in await self.store.read(queries.tenants):
                for run, fence, owner, _, _ in await self.store.read(queries.running, tenant):
                    if owner == self.owner:
                        await self._release(tenant, run, fence)
        except StoreError as error:
            log.warning("not all runs were given back: %s", error)

    async def _release(self, tenant: str, run: str, fence: int) -> None:
        try:
            await self.store.write(transactions.release, tenant, run, fence, self._now(), cut=True)
        except (ClaimLost, StoreError) as error:
            log.warning("run %s was not given back: %s", run, error, extra=self._about(run))

    # --- housekeeping -------------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        """Look when there is reason to, and try to become the driver as long as somebody else is it."""
        pause: float | None = None
        while not self._draining:
            with contextlib.suppress(TimeoutError):  # not wait_for: before Python 3.12 it may swallow a cancellation
                async with asyncio.timeout(pause):
                    await self._look.wait()
            self._look.clear()
            at_all, self._at_all = self._at_all or pause is not None, False
            try:
                if not self.is_driver:
                    await self._become_driver()
                elif at_all:
                    await self.look()
                else:
                    await self._look_at_asks()
                pause = None if self.is_driver else _LOCK_RETRY
            except StoreError as error:
                log.warning("%s", error)
                pause = _STORE_RETRY
            except Exception:  # this task outlives every fault: it holds the right to drive
                log.exception("looking for work failed")
                pause = _STORE_RETRY

    async def _become_driver(self) -> None:
        """What dead processes held is taken over first. It may be done again from the start."""
        if not await self.store.drives(self.owner, list(self.served)):
            return
        await self._take_over()
        self.is_driver = True
        await self.look()

    async def _take_over(self) -> bool:
        """Whoever else holds a run and may not drive is dead, or will find that it lost its claim. Was there one?"""
        found = False
        for tenant in await self.store.read(queries.tenants):
            held = await self.store.read(queries.running, tenant)
            living = await self.store.drivers()  # asked last: who holds one of these was among them by then
            for run, fence, owner, _, _ in held:
                if owner in living or owner == self.owner:
                    continue
                try:
                    await self.store.write(transactions.recover, tenant, run, fence, self._now())
                    self.streams.notify(run)
                    found = True
                except Exception as error:
                    if _is_for_now(error):
                        raise
                    # It is of this run alone: it stays as it is, and the others are taken up.
                    log.exception("run %s cannot be taken up", run, extra={"run": run})
                    self._refuse(run, error)
        return found

    async def look(self) -> None:
        """Take over what dead processes held, claim what can be claimed, hand on signals, expire what is due."""
        self.is_driver = await self.store.drives(self.owner, list(self.served))
        if not self.is_driver:
            return
        self.deliveries.look()
        living = await self.store.drivers()
        self._asked.clear()
        due: list[int] = []
        driven, held, lost = [run for run in self._driven if self._drive(run) is not None], set[str](), False
        for tenant in await self.store.read(queries.tenants):
            await self._look_for_queued(tenant)
            for run, fence, owner, _, unread in await self.store.read(queries.running, tenant):
                if owner == self.owner:
                    held.add(run)
                elif owner not in living and run not in self.refused:
                    lost = True
                if owner == self.owner and run not in self._driven:
                    await self._free(tenant, run, fence)
                elif unread:
                    self.signal(run)
            if (at := await self._expire(tenant)) is not None:
                due.append(at)
        if lost and await self._take_over():
            self.look_soon()
        for run in driven:
            if run not in held:  # it was lost, and what is in flight goes on
                self.streams.taken(run)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for at in due:
            self._look_at(at)
        if not self._draining:
            self._start_pending()

    async def _look_at_asks(self) -> None:
        """Asks of runs that came to wait: how many others wait for their turn makes no difference to these."""
        while self._asked:
            if (at := await self._expire(self._asked.pop())) is not None:
                self._look_at(at)

    def _look_at(self, at: int) -> None:
        """Look again at that instant, or before. (By a clock that jumped it may have come, and nothing rang.)"""
        if self._expiry is None or at < self._expires_at or self._expires_at < self._now():
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry, self._expires_at = self.clock.call_later((at - self._now()) / 1e6, self.look_soon), at

    async def _look_for_queued(self, tenant: str) -> None:
        deaths, n = 0, 0
        while True:
            page = await self.store.read(queries.claimable, tenant, deaths, n, _PAGE)
            for run, agent, deaths, n in page:  # noqa: B007 - the last ones say where the next page begins
                self._want(tenant, run, agent, deaths)
            if len(page) < _PAGE:
                return

    async def _free(self, tenant: str, run: str, fence: int) -> None:
        """This process holds the run and does not drive it: it could not give it back when it stopped."""
        with contextlib.suppress(ClaimLost):
            freed = await self.store.write(transactions.release, tenant, run, fence, self._now())
            self._want(tenant, run, freed.agent, freed.deaths)

    async def _expire(self, tenant: str) -> int | None:
        """Expiry is a decision that the clock makes. Returns when the next one is due."""
        if pause := self.jumps.pause():
            return self._now() + int(pause * 1e6)
        now = self._now()
        asks = await self.store.read(queries.expirable_asks, tenant)
        expired = False
        for ask, at in asks:
            if at > now:
                return at
            try:
                decided = await self.store.write(
                    transactions.decide, tenant, ask, Decision(kind="expire"), "ondol", transactions.CLOCK, now
                )
            except (AlreadyDecided, AskClosed):
                expired = True
                continue
            except Exception as error:
                if _is_for_now(error):
                    raise
                # It is of this ask alone: it stays open, and the others expire.
                log.exception("ask %s cannot expire", ask)
                continue
            expired = True
            self.decided(decided)
        return now if expired else None  # a full page was due: look for more

    def decided(self, decided: transactions.Decided) -> None:
        run = decided.run
        if run.state == "running":
            self.signal(run.id)
        elif decided.wake:
            self.wake(run.tenant, run.id, run.agent, run.deaths)
        if decided.next_run is not None:
            self.wake(run.tenant, *decided.next_run)
        self.streams.notify(run.id)

    async def _keep_house(self) -> None:
        while True:
            if self.is_driver and not self.jumps.pause():
                try:
                    await self.collect_blobs()
                    await self.drop_expired_facts()
                except StoreError as error:
                    log.warning("%s", error)
                except Exception:  # a file that cannot be removed, say: the next time it is tried again
                    log.exception("collecting unused blobs failed")
            await asyncio.sleep(_HOUSEKEEPING)

    async def drop_expired_facts(self) -> None:
        """Retention of memories. What is over is not found any more, whether or not it was removed yet."""
        for tenant in await self.store.read(queries.tenants):
            while await self.store.write(transactions.drop_expired_facts, tenant, self._now()):
                pass

    async def collect_blobs(self) -> int:
        """Remove uploads that no run came to use within a day. References are looked at again as they go."""
        before = to_micros(self.clock.now() - _BLOBS_KEPT)
        gone = 0
        for tenant in await self.store.read(queries.tenants):
            await self.store.tidy_blobs(tenant, self.clock.now() - _BLOBS_KEPT)
            more = True
            while more:
                dropped, more = await self.store.write(transactions.drop_unused_blobs, tenant, before)
                for digest in dropped:
                    await self.store.drop_blob(tenant, digest)
                gone += len(dropped)
        return gone

    def _now(self) -> int:
        return micros(self.clock)


def _is_for_now(error: Exception) -> bool:
    """Is it of the store as a whole (full, busy, out of reach, a disk that fails), so that it is tried again?"""
    return isinstance(error, StoreError) and not isinstance(error, StoreFault | StoreCorrupt | StoreTooNew)


def no_driver_reason(run: RunRow, agents: Collection[str]) -> str | None:
    """Why a queued run waits for a process, and what to do about it; None if one of these agents is its own."""
    if run.state != "queued" or run.agent in agents:
        return None
    return f"no process serves the agent {run.agent!r}: start the program that defines it (ondol run APP:{run.agent} …)"
