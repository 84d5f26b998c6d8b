"""Who hears how a run ended, and what is learned from a turn when it is over?

A driver tells what the outbox holds, behind the back of everybody: no turn waits for it, and nothing that goes wrong
here reaches one. What belongs to one session is told one after the other, some sessions at once, so that who listens
badly to one holds up no other. Of several drivers one takes a message and tells it. A message that cannot be told is
told again, later and later, and is dead after some attempts; then it stays in the outbox to be seen.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from ondol import clock as clocks
from ondol import messages, queries, transactions, values
from ondol.cancellation import from_outside
from ondol.clock import Clock, Timer, from_micros, micros
from ondol.embedding import Embedding
from ondol.errors import InvalidInput, NotFound, StoreError
from ondol.memory import Memory, checked_fact
from ondol.records import RunRow
from ondol.secret import logger, redact
from ondol.store import Store
from ondol.tools import is_awaitable
from ondol.transactions import NewFact, OutboxRow, Scope

if TYPE_CHECKING:
    from ondol.runner import Served

log = logger("ondol.outbox")

_PAGE = 500
_AT_ONCE = 8  # sessions of which messages are told
_LANE = 50  # messages of one that wait here for the one before
_STORE_RETRY = 1.0  # seconds until what the store did not take is tried again
_TAUGHT = ("run.completed", transactions.DROPPED)  # what there is something to learn from
_ERROR_KEPT = 500  # characters
_PATIENCE = timedelta(minutes=5)  # for one attempt
_SETTLED = 60_000_000  # microseconds that a message may come to be due before others that were seen by then
_TAKEN = 60.0  # seconds; after which another driver tells a message, if nothing was heard of who took it


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """``kind`` is the event (``run.completed`` and the like, ``run.waiting``) of the run, ``id`` that event's id; or
    ``turn.dropped``: models are not shown the run's turn any more, and only the agent's memory hears of it.

    It may be told more than once, always with the same id. ``state`` is ``pending``, ``delivered`` or ``dead``, and
    then ``error`` says why.
    """

    id: str
    kind: str
    run: str
    at: datetime
    tenant: str
    state: str = "pending"
    attempts: int = 0
    due: datetime
    error: str | None = None


Deliver: TypeAlias = Callable[[OutboxMessage], Awaitable[None] | None]
Lane: TypeAlias = tuple[str, str]  # tenant and session: what belongs to it is told in order


def message_of(tenant: str, row: OutboxRow) -> OutboxMessage:
    return OutboxMessage(
        id=row.id, kind=row.kind, run=row.run, at=from_micros(row.at), tenant=tenant, state=row.state,
        attempts=row.attempts, due=from_micros(row.due), error=row.error,
    )  # fmt: skip


class Deliveries:
    """Empties the outbox of a store, in a process that drives it."""

    def __init__(
        self, store: Store, clock: Clock, served: Mapping[str, Served], deliver: Deliver | None,
        embedding: Embedding,
    ) -> None:  # fmt: skip
        self.embedding = embedding
        self.store, self.clock, self.served, self.deliver = store, clock, served, deliver
        memories = {name: one.agent.memory for name, one in served.items()}
        #: The agents here that learn from turns.
        self.learning = [name for name, memory in memories.items() if memory is not None and memory.extract is not None]
        self._opened = 0  # when this process began: of what is older, one before it may have died
        self._others: set[str] = set()  # messages that are not for this process
        self._behind: dict[str, tuple[int, str]] = {}  # by tenant: up to where there are only such
        self._from_the_start = 0  # when all are looked at again
        self._lanes: dict[Lane, deque[tuple[OutboxRow, RunRow]]] = {}  # with what is told next
        self._full: set[Lane] = set()  # for which more is there than was taken
        self._telling: set[str] = set()  # the messages in them
        self._tasks: set[asyncio.Task[bool]] = set()  # one a lane
        self._wake = asyncio.Event()
        self._timer: Timer | None = None

    def wants(self, agent: str) -> bool:
        """Does anybody here want to hear of its runs?"""
        return self.deliver is not None or agent in self.learning

    def _hears(self, agent: str, kind: str) -> bool:
        """Is there somebody here for such a message?"""
        return agent in self.learning or (self.deliver is not None and kind != transactions.DROPPED)

    def look(self) -> None:
        """There may be something to tell. Where nobody listens, nobody looks."""
        if self.deliver is not None or self.learning:
            self._wake.set()

    async def run(self) -> None:
        """Tell what is due, until cancelled."""
        self._opened = self._now()
        try:
            await self._say_who_is_missing()
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    due = await self._look_for_due()
                except StoreError as error:
                    log.warning("%s", error)
                    due = self._now() + int(_STORE_RETRY * 1e6)
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                if due is not None:
                    self._timer = self.clock.call_later((due - self._now()) / 1e6, self._wake.set)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _say_who_is_missing(self) -> None:
        """Messages that this process is to tell, and has no function for, wait: that is to be seen."""
        if self.deliver is not None:
            return
        try:
            for tenant in await self.store.read(queries.tenants):
                for message in await self.store.read(transactions.due_messages, tenant, _PAGE):
                    run = await self.store.read(queries.get_run, tenant, message.run)
                    if run.agent in self.served and not self._hears(run.agent, message.kind):
                        said = "messages of the outbox wait, and this process has nobody to tell: %s"
                        log.warning(said, "'ondol outbox' lists them", extra={"run": run.id})
                        return
        except (StoreError, NotFound) as error:
            log.warning("%s", error)

    async def _look_for_due(self) -> int | None:
        """Begin to tell all that is due; when the next message is, if there is one."""
        next_due: list[int] = []
        self._full.clear()
        others = self._others
        if not 0 < self._from_the_start - self._now() <= _SETTLED:  # what was told by now is forgotten
            self._others, self._behind, self._from_the_start = set(), {}, self._now() + _SETTLED
        for tenant in await self.store.read(queries.tenants):
            only_others = True
            async for message in self._pending(tenant, next_due):
                if message.id in others:
                    self._others.add(message.id)
                    if only_others and message.due < self._now() - _SETTLED:
                        self._behind[tenant] = message.due, message.id
                    continue
                only_others = False
                if message.id in self._telling or message.id in self._others:
                    continue
                try:
                    run = await self.store.read(queries.get_run, tenant, message.run)
                except StoreError:
                    raise
                except Exception as error:  # of this message alone: the others are told
                    self._leave(message, error)
                    continue
                if run.agent not in self.served or not self._hears(run.agent, message.kind):
                    self._others.add(message.id)
                else:
                    await self._tell_behind((tenant, run.session), message, run)
        return min(next_due, default=None)

    def _leave(self, message: OutboxRow, why: Exception) -> None:
        """It waits for another process."""
        log.error("outbox message %s cannot be told", message.id, exc_info=why, extra={"run": message.run})
        self._others.add(message.id)

    async def _tell_behind(self, key: Lane, message: OutboxRow, run: RunRow) -> None:
        """Behind what else is told of its session. What is too much for now is seen again after that."""
        while key not in self._lanes and len(self._lanes) >= _AT_ONCE:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if (lane := self._lanes.get(key)) is None:
            self._lanes[key] = lane = deque()
            task = asyncio.create_task(self._tell_lane(lane))
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._end, key))
        if len(lane) >= _LANE or key in self._full:
            self._full.add(key)
        else:
            lane.append((message, run))
            self._telling.add(message.id)

    async def _tell_lane(self, lane: deque[tuple[OutboxRow, RunRow]]) -> bool:
        """True if all of it was told. After an error of the store, which is none of a message, the rest stays in it."""
        all_told = True
        while lane:
            message, run = lane[0]
            try:
                all_told &= await self._tell(message, run)
            except StoreError as error:
                log.warning("%s", error)
                await clocks.sleep(self.clock, _STORE_RETRY)
                return False
            except Exception as error:
                self._leave(message, error)
            lane.popleft()
            self._telling.discard(message.id)
        return all_told

    def _end(self, key: Lane, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        if left := self._lanes.pop(key):
            self._telling.difference_update([message.id for message, _ in left])
            self._full.add(key)  # what comes behind these does not overtake them
        if key in self._full or task.cancelled() or not task.result():
            self._wake.set()

    async def _pending(self, tenant: str, next_due: list[int]) -> AsyncIterator[OutboxRow]:
        """What is to be told, the next one first; ``next_due`` gets the instant of the first that has to wait. Messages
        that others have to tell stand in nobody's way, and are not all read again each time."""
        last = self._behind.get(tenant, (-1, ""))
        while page := await self.store.read(transactions.due_messages, tenant, _PAGE, last):
            for message in page:
                until = self._now() + transactions.LONGEST_PAUSE
                if self._now() < message.due <= until:
                    next_due.append(message.due)
                    last = until + 1, ""  # none waits longer than that: the clock was set back since
                    break
                last = message.due, message.id
                yield message

    async def _tell(self, message: OutboxRow, run: RunRow) -> bool:
        """False where another process does it, it was told since it was read, or it could not be told."""
        if await self.store.read(transactions.get_message, run.tenant, message.id) != message:
            return False
        alone, counted = len(await self.store.drivers()) < 2, message.at < self._opened
        taken: OutboxRow | None = message
        if counted:
            least = 0 if alone else int(_TAKEN * 1e6)
            taken = await self.store.write(transactions.count_attempt, run.tenant, message, self._now(), least)
        elif not alone:
            taken = await self._take(run.tenant, message)
        if taken is None:
            return False
        if alone:
            return await self._tell_now(taken, run, counted)
        keeping = asyncio.create_task(self._keep(run.tenant, taken))
        try:
            return await self._tell_now(taken, run, counted)
        finally:
            keeping.cancel()

    async def _take(self, tenant: str, message: OutboxRow) -> OutboxRow | None:
        return await self.store.write(transactions.take_message, tenant, message, self._now() + int(_TAKEN * 1e6))

    async def _keep(self, tenant: str, taken: OutboxRow | None) -> None:
        """Nobody else takes it while it is being told here."""
        while taken is not None:
            await clocks.sleep(self.clock, _TAKEN / 3)
            try:
                taken = await self._take(tenant, taken)
            except StoreError as error:
                log.warning("%s", error)

    async def _tell_now(self, message: OutboxRow, run: RunRow, counted: bool) -> bool:
        tenant = run.tenant
        try:
            if self.deliver is not None and message.kind != transactions.DROPPED:
                told = functools.partial(_told, self.deliver, message_of(tenant, message))
                await from_outside(told, _PATIENCE.total_seconds())
            taught = message.kind in _TAUGHT and run.agent in self.learning
            facts = await self._learned(run) if taught else []
        except Exception as error:  # of whoever listens: the run is not touched by it
            said = redact(values.error_text(error))[:_ERROR_KEPT]
            log.warning("outbox message %s: %s", message.id, said, extra={"run": message.run})
            await self.store.write(transactions.not_delivered, tenant, message, said, self._now(), counted=counted)
            return False
        scope, keep = Scope(tenant, run.agent, run.user_id), self._memory(run.agent).keep
        until = None if keep is None else self._now() + int(keep.total_seconds() * 1e6)
        await self.store.write(
            transactions.delivered, tenant, message, self._now(), counted=counted, taught=taught, scope=scope,
            facts=facts, expires_at=until,
        )  # fmt: skip
        if facts:
            self.embedding.look(scope)
        return True

    async def _learned(self, run: RunRow) -> list[NewFact]:
        """What the agent's ``extract`` finds in a turn. Nobody checked it, so it counts as untrusted."""
        memory = self._memory(run.agent)
        if memory.extract is None or not run.user_id:
            return []
        bodies = await self.store.read(queries.read_messages, run.tenant, run.id)
        said = [messages.loads(body) for ordinal, body in sorted(bodies.items()) if ordinal >= 0]
        found = functools.partial(memory.extract, said)
        facts = await from_outside(found, _PATIENCE.total_seconds()) if said else []
        if isinstance(facts, str) or not isinstance(facts, Sequence):  # of a text each letter would be one
            raise InvalidInput(f"extract gives a list of facts, and this was {type(facts).__name__}")
        return [
            NewFact(f"m_{run.id[2:]}_x{n}", redact(values.valid(checked_fact(fact))), True)
            for n, fact in enumerate(facts)
        ]

    def _memory(self, agent: str) -> Memory:
        served = self.served.get(agent)
        return (served.agent.memory if served is not None else None) or Memory()

    def _now(self) -> int:
        return micros(self.clock)


async def _told(deliver: Deliver, message: OutboxMessage) -> None:
    heard = deliver(message)
    if is_awaitable(heard):  # else it was told by then
        await heard
