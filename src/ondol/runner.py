"""How is one run driven, from its claim to its end?

Prepare (claim, history, context), execute (model, tools, suspend), commit: one loop over ``lifecycle.next_action``.
A run that starts and a run that comes back from a crash pass the same lines. Each action writes down what came of it
before the next is chosen, so that whatever the process was doing when it died, the journal says what was done.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, ParamSpec, TypeVar, assert_never

from ondol import clock as clocks
from ondol import (
    effects,
    events,
    hearing,
    journal,
    lifecycle,
    limits,
    messages,
    outputs,
    plans,
    queries,
    replay,
    sizes,
    transactions,
    usage,
    values,
)
from ondol.agent import Agent
from ondol.attempts import asked_of
from ondol.calls import Calls
from ondol.cancellation import CancelToken, sleep_or_cancel
from ondol.clock import Clock, micros
from ondol.conversation import Conversation
from ondol.embedding import Embedding
from ondol.errors import (
    CancelRequested,
    ModelError,
    NotFound,
    OutcomeUnknown,
    RevisionConflict,
    SignalsUnread,
    StoreCorrupt,
    StoreError,
    StoreFault,
    StoreTooNew,
)
from ondol.guards import Guard
from ondol.histories import History, HistoryCache
from ondol.limits import Bounds
from ondol.logs import about
from ondol.messages import Attachment, Blob, Text, ToolCall
from ondol.model import Answer, Delta, Model, ModelRequest, ToolSpec, spent_on
from ondol.policy import Policy
from ondol.preparing import Preparation
from ondol.recalling import RunMemory
from ondol.records import RunRow
from ondol.secret import logger, redact
from ondol.store import Store
from ondol.streams import Streams
from ondol.tools import Tool
from ondol.toolsets import Toolset
from ondol.transactions import Claim, Claimed, Ended, Tx

P = ParamSpec("P")
T = TypeVar("T")

log = logger("ondol.runner")

_STORE_RETRY = 0.5  # seconds between attempts to write something that is already true
_ADDING = (transactions.note_down, transactions.absorb)  # nothing refuses them a second time
_ALL_THOUGHT = (
    "the answer reached its length limit before it said anything: let the model think less, or use one that may write "
    "more"
)
_PARTIAL_KEPT = 2000  # characters of an aborted answer that are kept for whoever looks into it


class Candidate(NamedTuple):
    """One of the models of an agent. ``provider``: whose private data in messages it can read back."""

    model: Model
    provider: str


@dataclass(frozen=True)
class Served:
    """An agent that this process can drive, ready to be used. Each of its models takes over from the one before."""

    agent: Agent
    models: Sequence[Candidate]
    definition: str
    digest: str
    tools: Mapping[str, Tool[..., Any]]
    rules: Mapping[str, effects.Rules]
    bounds: Bounds

    @functools.cached_property
    def repeatable(self) -> frozenset[str]:
        """The tools that may be called again: nothing is lost when what they returned is not shown any more."""
        return frozenset(name for name, t in self.tools.items() if t.effect == "read")

    @functools.cached_property
    def weight(self) -> int:
        """How much of a request its instructions and tools take; see ``sizes``."""
        return sizes.weight_of_text(self.definition)

    @functools.cached_property
    def whole_tools(self) -> Mapping[str, Tool[..., Any]]:
        """The tools that a model is offered as long as nothing that it sees is cut: there is no more to read."""
        return {name: t for name, t in self.tools.items() if t is not outputs.READ_MORE}

    @functools.cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as a model is offered them."""
        return tuple(t.spec for t in self.tools.values())

    @functools.cached_property
    def whole_specs(self) -> tuple[ToolSpec, ...]:
        return tuple(t.spec for t in self.whole_tools.values())


@dataclass(frozen=True, slots=True)
class Runner:
    """What all drives of one process share."""

    store: Store
    clock: Clock
    streams: Streams
    deps: Any
    embedding: Embedding
    park_missing: bool = False  # a call whose tool is gone parks its run
    policy: Policy | None = None
    histories: HistoryCache = field(default_factory=HistoryCache)
    wants: Callable[[str], bool] = lambda agent: False  # does somebody want to hear how runs of the agent end?

    def drive(self, claimed: Claimed, served: Served) -> Drive:
        return Drive(self, claimed, served)


class Drive:
    """One claimed run in this process."""

    def __init__(self, runner: Runner, claimed: Claimed, served: Served) -> None:
        self.runner, self.served, self.claimed = runner, served, claimed
        self.claim, self.row = claimed.claim, claimed.run
        self.store, self.clock = runner.store, runner.clock
        self.now: Callable[[], int] = functools.partial(micros, runner.clock)
        journal.check_whole(self.row.id, claimed.batches, 0, self.row.next_seq - 1)
        self.state = journal.fold(claimed.batches)
        if missing := journal.missing_messages(self.state, claimed.bodies.keys()):
            raise StoreCorrupt(f"run {self.row.id} lacks message {missing[0]}: restore a backup (ondol db restore)")
        self.talk = Conversation(
            claimed.bodies, claimed.messages, served.agent.instructions, self.asked.provider, served.repeatable
        )
        self.lag = replay.lag(self.state, claimed.run.accepted_at)
        self.token = CancelToken()  # set by a cancel: what is in flight is told
        self.stopping = CancelToken()  # set by an interrupt too: nothing new begins, and the model is not waited for
        self.pause = CancelToken()  # set by either and by draining: nobody sleeps through them
        self.busy: set[int] = set()
        self.signalled = claimed.run.unread > 0
        self.steered = claimed.steered  # a message may wait to join
        self.draining = False
        self.ended: Ended | None = None
        self.suspended: RunRow | None = None
        self.progressed: Callable[[], None] = lambda: None  # called after each answer and each outcome
        self.fell_asleep: Callable[[], None] = lambda: None  # it does nothing but wait for an instant
        #: Its place, while that instant is the deadline of a lost attempt.
        self.lends: Callable[[bool], None] = lambda _: None
        self.awakes: Callable[[], Awaitable[bool]] = _at_once  # before it goes on after that
        self._asleep = 0  # calls that wait for an instant
        self._rests = False  # a suspect that does nothing else, as it is written down
        self.changed = asyncio.Event()
        self.early: dict[int, journal.Batch] = {}  # committed, but an earlier batch is not folded yet
        self._folded: asyncio.Event | None = None  # for whoever waits for that
        self._foreseen: journal.Foreseen | None = None
        memory = served.agent.memory
        self.memory = None if memory is None else RunMemory(self, memory)
        self.calls = Calls(self)
        self.guard = Guard(self)
        self.prepare = Preparation(self)
        self._definitions: dict[str, dict[str, Any]] = {}  # older ones of its agent, by digest
        self._rested = 0  # the instant of the next attempt at the model that was waited for
        self._partial: list[str] = []
        self._bounds = served.bounds  # with the model that was asked last
        self._group: asyncio.TaskGroup | None = None
        self.absorbing = False
        self._writes = 0  # in flight

    # --- from outside -------------------------------------------------------------------------------------------

    def signal(self) -> None:
        """Somebody left a signal in the store: read it now, whatever else is going on."""
        self.signalled = True
        if self._group is not None and not self.absorbing:
            absorbing = self._absorb()
            try:
                self._group.create_task(absorbing)
                self.absorbing = True
            except RuntimeError:  # the drive is breaking off: the signal is for the next holder
                absorbing.close()

    def drain(self) -> None:
        """Give the run back at the next boundary."""
        self.draining = True
        self.pause.set()
        self.changed.set()

    async def sleep(self, until: int) -> bool:
        """True when the instant has come, False when something asked not to wait for it."""
        most = until - self.now()  # known before anything is awaited: the clock may be set back meanwhile
        self._asleep += 1
        try:
            if self.claim.deaths >= lifecycle.SUSPECT_DEATHS and self._asleep >= len(self.busy):
                await self._rest(True)
            self.rest_if_asleep()
            has_come = await sleep_or_cancel(self.clock, min(most, until - self.now()) / 1e6, self.pause)
        finally:
            self._asleep -= 1
            self.lends(False)
        has_come = has_come and await self.awakes()
        if self._rests:
            await self._rest(False)
        return has_come

    async def _rest(self, asleep: bool) -> None:
        """What other runs do to the process meanwhile does not count as its own."""
        if self.claim.deaths and asleep != self._rests:
            await self.write(transactions.rest, self.claim, asleep=asleep)
        self._rests = asleep

    def went_on(self) -> None:
        """The step that processes died at is behind it."""
        if self.claim.deaths:
            self.claim = self.claim._replace(deaths=0)
        self.progressed()

    def rest_if_asleep(self) -> None:
        if self._asleep and self._asleep >= len(self.busy):
            self.fell_asleep()
            self.lends(bool(self.state.without_outcome))

    # --- the loop -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Drive it until it ends, waits, or is given back.

        Raises:
            ClaimLost: somebody else drives it now; nothing more was done here.
        """
        await self.prepare.open()
        self.session_state = values.as_object(values.loads(self.claimed.session.state))  # as it is stored
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                try:
                    await self._loop(group)
                finally:
                    self._group = None  # a signal that comes now is for the next holder
        except BaseExceptionGroup as several:
            # A signal that came as the run ended finds nothing to hold any more: that is no loss.
            if self.ended is None and self.suspended is None:
                raise several.exceptions[0] from None
        finally:
            del self.calls, self.guard, self.prepare  # they hold it: without them it is freed at once, by no collection

    @property
    def asked(self) -> Candidate:
        """The model that is asked now. A changed definition begins with its first."""
        shown = self.state.shown
        changed = shown is not None and shown.definition != self.served.digest
        return self.served.models[0 if changed else self.state.candidate]

    @property
    def bounds(self) -> Bounds:
        if len(self.served.models) == 1:
            return self.served.bounds
        model = self.asked.model.name
        if self._bounds.model != model:
            self._bounds = self.served.bounds._replace(model=model)
        return self._bounds

    def model_started(self, step: int) -> events.ModelStarted:
        return events.ModelStarted(step=step, model=self.asked.model.name if len(self.served.models) > 1 else "")

    async def history(self, provider: str) -> History:
        return await self.runner.histories.load(self.store, self.claimed.session, provider)

    async def _find_tools(self) -> None:
        """Ask the agent's toolsets. What one does not give is missing, which whoever calls it is told."""
        tools, more = dict(self.served.tools), []
        for source in self.served.agent.toolsets:
            for one in await self._found_by(source):
                if tools.setdefault(one.name, one) is one:
                    more.append((one, source.name))
                else:
                    log.warning("run %s: toolset %s: there is a tool %r already", self.row.id, source.name, one.name)
        definition = self.served.agent.definition(more)
        self.served = replace(
            self.served, tools=tools, rules={name: t.rules for name, t in tools.items()},
            definition=values.dumps(definition), digest=values.digest(definition),
        )  # fmt: skip
        self.talk.repeatable = self.served.repeatable

    async def _found_by(self, source: Toolset) -> Sequence[Tool[..., Any]]:
        ctx = self.calls.context(source, -1)
        found = await asked_of(
            self.row.id, functools.partial(source.called, ctx), source.answered,
            thread=None if source.is_async else f"ondol-toolset-{source.name}", clock=self.clock,
            seconds=source.timeout.total_seconds(), token=self.pause, cancelled=asyncio.CancelledError("by itself"),
        )  # fmt: skip
        if isinstance(found, str):
            found = TimeoutError("it did not answer in time")
        if not isinstance(found, BaseException):
            return found
        log.warning("run %s: toolset %s: %s", self.row.id, source.name, values.error_text(found))
        return ()

    async def _loop(self, group: asyncio.TaskGroup) -> None:
        if self.served.agent.toolsets:
            await self._find_tools()
            if self.draining:  # it was cut short: what is missing now proves nothing
                await self._release()
                return
        while True:
            self.changed.clear()
            if self.signalled or self.absorbing:
                self.signal()
                await self.changed.wait()
                continue
            action = self.next_action()
            if self.draining and not isinstance(action, lifecycle.Settle | lifecycle.Commit | lifecycle.End):
                if self.busy:  # nothing new begins
                    await self.changed.wait()
                    continue
                await self._release()
                return
            match action:
                case lifecycle.BuildContext():
                    await self.prepare.build()
                case lifecycle.CallModel(after=after):
                    await self._ask_model(after)
                case lifecycle.Settle(work=work):
                    for call, verdict in work:
                        await self.calls.advance(call, verdict)
                case lifecycle.Advance(work=((call, verdict),)) if len(self.state.without_outcome) == 1:
                    await self.calls.advance(call, verdict)
                case lifecycle.Advance(work=work):
                    for call, verdict in work:
                        self.busy.add(call)
                        group.create_task(self.calls.advance(call, verdict))
                case lifecycle.Wait():
                    await self.changed.wait()
                case lifecycle.Suspend():
                    if await self._suspend():
                        return
                case lifecycle.Park(why=why):
                    if await self._park(why):
                        return
                case lifecycle.Commit():
                    if await self._commit():
                        return
                case lifecycle.End():
                    await self._end(action)
                    return
                case _:
                    assert_never(action)

    async def _release(self) -> None:
        await self.write(transactions.release, self.row.tenant, self.row.id, self.claim.fence, self.now())

    def next_action(self) -> lifecycle.Action:
        if self.early:  # committed but not folded yet: it would be taken for lost
            return lifecycle.Wait()
        return lifecycle.next_action(
            self.seen(self.state), self.served.rules, busy=self.busy, now=self.now(),
            bounds=self.bounds, park_missing=self.runner.park_missing, changed=self.calls.changed,
            steered=self.steered,
        )  # fmt: skip

    def seen(self, state: journal.State) -> journal.State:
        """The code changed since the context was recorded: a new one must say so."""
        if state.context is not None and state.shown is not None and state.shown.definition != self.served.digest:
            return journal.without_context(state)
        return state

    @property
    def claim_now(self) -> Claim:
        """The claim, with the sequence of the next entry where nothing else is being written."""
        if self._writes or self.early:
            return self.claim
        tenant, run, session, fence, head, deaths, _ = self.claim
        return Claim(tenant, run, session, fence, head, deaths, self.state.seq + 1)

    def write(self, tx: Callable[P, Tx[T]], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Write until it is durable."""
        return self._until_durable(self.store.write, tx, *args, **kwargs)

    async def keep_blob(self, blob: Blob | Attachment, data: bytes) -> None:
        """Keep the bytes of a blob. Until a run uses it, it is one that is collected after a day."""
        tenant = self.row.tenant
        await self.write(transactions.keep_blob, tenant, blob.digest, blob.size, self.now())
        await self._until_durable(self.store.put_blob, tenant, data)

    async def _until_durable(self, write: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """A full disk is waited out: what is in hand is true, and is not thrown away.

        Raises:
            OutcomeUnknown: it may be there, and could not be had by writing it once more. The run is given back, and
                whoever claims it next reads what is there.
        """
        first, doubt = True, None
        while True:
            self._writes += 1
            try:
                return await write(*args, **kwargs)
            except (StoreCorrupt, StoreTooNew):
                raise
            except StoreFault:
                if doubt is not None:  # it is there, and refuses to be written twice
                    raise doubt from None
                raise
            except StoreError as error:
                doubt = error if isinstance(error, OutcomeUnknown) else doubt
                if error is doubt and any(tx in args for tx in _ADDING):
                    raise
                log.warning("run %s: %s", self.row.id, error, extra=about(self.row))
                self.runner.streams.waits_for_store(self.row.id, error, self.clock.now(), self.state.seq)
                if not first:
                    await clocks.sleep(self.clock, _STORE_RETRY)
                first = False
            finally:
                self._writes -= 1

    def record(self, batch: journal.Batch | None) -> None:
        """Fold what was committed. Two calls may hear of it in either order; the fold keeps the journal's."""
        if batch is None:
            return
        self.early[batch.seq] = batch
        while (following := self.early.pop(self.state.seq + 1, None)) is not None:
            self.state = journal.fold([following], self.state, self._foreseen)
        self._foreseen = None
        if self._folded is not None:
            self._folded.set()
        self.runner.streams.notify(self.row.id)

    def foresee(self, entry: events.ModelCompleted | events.EffectSucceeded | events.EffectFailed) -> journal.State:
        """The state with an entry that is about to be written. When it is, it is not folded a second time."""
        self._foreseen = journal.Foreseen(self.state, entry, journal.apply(self.state, entry))
        return self._foreseen.after

    async def caught_up(self) -> None:
        """Return when the fold holds all that was committed here."""
        while self.early:
            self._folded = self._folded or asyncio.Event()
            self._folded.clear()
            await self._folded.wait()

    @property
    def is_stopping(self) -> bool:
        """Nothing new begins any more in this process."""
        return self.draining or self.token.is_set or lifecycle.is_ending(self.state)

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        if self.runner.streams.is_watched(self.row.id):
            event = events.Event(type=kind, data=data, at=self.clock.now())
            self.runner.streams.publish(self.row.id, event, self.state.seq)

    def shown(self, at: datetime) -> datetime:
        """An instant in the time of the run's own world: the actual one, but for a replay with the recorded clock."""
        return at - timedelta(microseconds=self.lag)

    def shown_now(self) -> datetime:
        return self.shown(self.clock.now())

    # --- signals ------------------------------------------------------------------------------------------------

    async def _absorb(self) -> None:
        try:
            while self.signalled:
                self.signalled = False
                read = await self.write(transactions.absorb, self.claim, self.now())
                for ordinal, body in read.bodies.items():
                    self.talk.keep(ordinal, body)
                self.record(read.batch)
                self.steered = self.steered or read.steered
                for entry in read.batch.entries if read.batch else ():
                    if isinstance(entry, events.RunCancelling):  # it is durable: it travels to what is in flight
                        self.stopping.set()
                        self.pause.set()
                        if not entry.interrupted_by:
                            self.token.set()
        finally:
            self.absorbing = False
            self.changed.set()

    async def planned_with(self, definition: str, tool: Tool[..., Any]) -> bool:
        """Was the tool the same, as far as its arguments and its class go, in that definition of the agent?"""
        if definition not in self._definitions:
            stored = await self.store.read(queries.get_definition, self.row.tenant, definition)
            self._definitions[definition] = values.loads(stored) if stored else {}
        before = self._definitions[definition].get("tools", [])
        now = values.encode({"parameters": tool.spec.parameters, "effect": tool.effect})
        return any(t["name"] == tool.name and now.items() <= t.items() for t in before)

    # --- execute: the model -------------------------------------------------------------------------------------

    async def _ask_model(self, after: int) -> None:
        if after and after != self._rested and after > self.now():
            # A clock that is set back meanwhile makes it wait no longer, nor once more.
            if await self.sleep(min(after, self.now() + int(lifecycle.LONGEST_WAIT * 1e6))):
                self._rested = after
            return  # a message may have come meanwhile, for this call
        asked = self.asked
        if asked.provider != self.talk.provider:
            history = await self.history(asked.provider)
            self.talk = self.talk.shown_to(asked.provider, history)
        upto, shown = self.state.next_message, self.state.shown
        assert shown is not None
        seen = self.talk.request(shown, upto)
        is_whole = not (self.talk.is_cut or shown.view.last)
        if is_whole and not self.served.whole_specs:  # providers refuse calls where no tools are offered
            is_whole = not self.talk.has_calls
        tools = self.served.whole_tools if is_whole else self.served.tools
        request = ModelRequest(
            messages=seen, tools=self.served.whole_specs if is_whole else self.served.specs,
            run=self.row.id, step=self.state.step, attempt=self.state.attempt, load=self._load,
        )  # fmt: skip
        left = limits.time_left(self.state, self.served.bounds.limits, self.now())
        asking = hearing.Asking(asked.model, request, self._hear(request.step + 1))
        try:
            ending = await asking.wait(self.clock, left, self.stopping)
            if ending == "timeout":
                await self._out_of_time()
                return
            if ending == "cancelled":
                await self._write_cancelled("".join(self._partial), untold=True, asked=asked.model.name)
                return
            answer = _complete(asking.answer())
        except ModelError as error:
            await self._model_failed(error)
            return
        finally:
            self._partial = []
            asking.leave()
        try:
            await self._write_answer(answer, tools)
        except CancelRequested:
            said = "".join(p.text for p in answer.parts if isinstance(p, Text))
            await self._write_cancelled(said, **spent_on(answer, self.asked.model.name))
            self.signal()

    async def _load(self, attachment: Attachment) -> bytes:
        """See ``ModelRequest.load``."""
        try:
            return await self.store.get_blob(self.row.tenant, attachment.digest)
        except (NotFound, StoreCorrupt) as error:
            raise ModelError("rejected", f"attachment {attachment.name}: {error}", sent=False) from error
        except StoreError as error:
            raise ModelError("unavailable", f"attachment {attachment.name}: {error}", sent=False) from error

    def _hear(self, step: int) -> Callable[[Delta], None]:
        """Who tells the pieces of the answer that is the ``step``."""
        pieces: list[str] = []
        self._partial = pieces

        def hear(piece: Delta) -> None:
            if self._partial is not pieces:  # it was given up, and goes on all the same
                return
            pieces.append(piece.text)
            if piece.kind == "text":
                self.runner.streams.say(self.row.id, self.state.seq, step, piece.text)
            self.publish(events.DELTA, {"step": step, "kind": piece.kind, "text": piece.text})

        return hear

    async def _write_cancelled(self, said: str, **spent: Any) -> None:
        """A cancel came before the answer: what it had said so far, for whoever looks into it, and what it cost.

        It is not part of any conversation.
        """
        await self._write_given_up("cancelled", said[:_PARTIAL_KEPT], **spent)

    async def gave_up_summary(self) -> None:
        """The model was asked for a summary, and something else came first. What it cost nobody said."""
        await self._write_given_up(
            "cancelled", "given up: a summary", untold=True, asked=self.asked.model.name, retry_at=self.now()
        )

    async def _out_of_time(self) -> None:
        """The run may not be worked on any longer, so the call was given up. The next action says the rest."""
        said = "given up: the time that the run may be worked on is over"
        await self._write_given_up("limit_wall", said, untold=True, asked=self.asked.model.name, retry_at=self.now())

    async def _write_given_up(self, error: str, message: str, **more: Any) -> None:
        step, attempt = self.state.step + 1, self.state.attempt
        await self._write_failed(events.StepFailed(step=step, attempt=attempt, error=error, message=message, **more))

    async def _model_failed(self, error: ModelError) -> None:
        attempt, now = self.state.attempt, self.now()
        delay = lifecycle.retry_delay(error.kind, attempt, error.retry_after, self.row.id)
        takes_over, fits = None, self._fits(error)
        if delay is None and fits is None:
            takes_over = lifecycle.fallback(error.kind, self.state.candidate, len(self.served.models))
        untold = usage.may_be_billed(error.kind, error.sent) and error.input_tokens is None
        counted = untold or error.input_tokens is not None
        failed = events.StepFailed(
            step=self.state.step + 1, attempt=attempt, error=error.kind, message=redact(str(error)),
            retry_at=None if delay is None else now + int(delay * 1e6), fallback=takes_over, untold=untold, fits=fits,
            asked=self.asked.model.name if counted else "", input=error.input_tokens, output=error.output_tokens,
        )  # fmt: skip
        await self._write_failed(failed)

    def _fits(self, error: ModelError) -> int | None:
        """The request was too long: what may be sent instead, if leaving out history makes it fit. Again, as long as
        the provider counts less of what is shorter, or does not say how much it counts."""
        if error.kind != "context_overflow" or self.state.context is None:
            return None
        before, step = self.state.too_long, self.state.step + 1
        if before is not None and before.step == step and not sizes.is_less(str(error), before.message):
            return None
        fits = sizes.fits_after(str(error), self.state.context.tokens)
        return fits if self.prepare.can_fit(fits) else None

    async def _write_failed(self, failed: events.StepFailed) -> None:
        used = journal.used_with(self.state, failed)
        entries: list[events.Entry] = [failed]
        if failed.fallback is not None:
            entries.append(events.ModelStarted(step=failed.step, model=self.served.models[failed.fallback].model.name))
        self.record(await self.write(transactions.note_down, self.claim, self.now(), entries, used=used))

    async def _write_answer(self, answer: Answer, tools: Mapping[str, Tool[..., Any]]) -> None:
        """T3. An answer that was cut off makes none of its calls. ``tools`` are those that the model was offered."""
        ordinal, number = self.state.next_message, len(self.state.effects)
        message = plans.message_of(answer, self.row.id, number, self.talk.call_ids, self.asked.provider)
        body = messages.dumps(message)
        calls = []
        for i, call in enumerate(message.calls):
            planned, parsed = await self.guard.plan(call, number + i, ordinal + 1 + i, tools=tools, stop=answer.stop)
            calls.append(planned)
            if parsed is not None:
                self.calls.parsed[number + i] = parsed
        spent = spent_on(answer, self.asked.model.name)
        completed = events.ModelCompleted(
            step=self.state.step + 1, message=ordinal, stop=_unusual(answer.stop), **spent
        )
        used = self.foresee(completed).usage
        batch = await self.write(
            transactions.answer, self.claim_now, self.row.user_id, self.now(), completed, body, calls, used
        )
        self.talk.keep(ordinal, body, message)
        for planned in calls:
            if planned.result is not None:
                self.talk.keep(planned.reply, planned.result)
        self.record(batch)
        self.went_on()

    # --- execute: suspend; commit; end --------------------------------------------------------------------------

    async def _suspend(self) -> bool:
        try:
            self.suspended, batch = await self.write(
                transactions.suspend, self.claim, self.now(), list(self.state.asks), self.state.seq
            )
        except (CancelRequested, SignalsUnread):
            self.signal()
            return False
        except RevisionConflict as error:
            await self._end(lifecycle.End("failed", "conflict", str(error)))
            return True
        self.record(batch)
        return True

    async def _park(self, why: str) -> bool:
        try:
            self.suspended, batch = await self.write(transactions.park_changed, self.claim, self.now(), why)
        except (CancelRequested, SignalsUnread):
            self.signal()
            return False
        self.record(batch)
        return True

    async def _commit(self) -> bool:
        """T8, the only place where a run becomes part of its session."""
        assert self.state.answered is not None
        final = self.talk.messages[self.state.answered]
        reply = {
            "id": self.row.id, "state": "completed", "session": self.row.session,
            "operation_id": self.row.operation_id, "text": values.encode(final.text),
        }  # fmt: skip
        if self.state.stop:  # whoever reads a text that was cut off has to know
            reply["stop"] = self.state.stop
        patch = self.state.patch()
        state = transactions.StateChange.by_patch(self.claimed.session.state, patch) if patch else None
        n_messages = self.state.next_message
        last = limits.reached(self.state, self.bounds, self.now()) is not None
        try:
            self.ended = await self.write(
                transactions.commit, self.claim_now, self.claimed.session, self.now(), reply, n_messages, state,
                self.state.told, self.state.step, last, self.prepare.leaves(),
                None if self.memory is None else self.memory.changes(), self.prepare.pinned(),
                self.runner.wants(self.row.agent),
            )  # fmt: skip
        except CancelRequested:
            self.signal()
            return False
        except SignalsUnread:
            self.steered = True
            return False
        except RevisionConflict as error:
            await self._end(lifecycle.End("failed", "conflict", str(error)))
            return True
        self.record(self.ended.batch)
        assert self.ended.run.base is not None
        self.runner.histories.extend(
            self.claimed.session, self.talk.provider, self.talk.history, self.talk.told(),
            self.ended.run.base + n_messages,
        )  # fmt: skip
        return True

    async def _end(self, action: lifecycle.End) -> None:
        last: transactions.End
        match action.status:
            case "cancelled":
                assert self.state.cancel is not None
                last = events.RunCancelled(**dataclasses.asdict(self.state.cancel))
            case "expired":
                assert self.state.expired is not None
                last = transactions.expired(self.state.expired)
            case "failed":
                last = events.RunFailed(code=action.code, message=action.message, retryable=action.retryable)
        self.ended = await self.write(transactions.end, self.claim, self.now(), last)
        self.record(self.ended.batch)


async def _at_once() -> bool:
    return True


def _complete(answer: Answer) -> Answer:
    """The answer, where there is something in it to go on with. Raises ModelError."""
    used: Any = {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
    if answer.stop == "content_filter":
        raise ModelError("content_filter", "the provider's filter stopped the answer", **used)
    if not any(isinstance(p, ToolCall) or (isinstance(p, Text) and p.text.strip()) for p in answer.parts):
        if answer.stop == "length":  # asked again it would write as much, and be paid again
            raise ModelError("rejected", _ALL_THOUGHT, **used)
        raise ModelError("server", "the model gave an empty answer", **used)
    return answer


def _unusual(stop: str) -> str:
    return "" if stop in ("stop", "tool_calls") else stop
