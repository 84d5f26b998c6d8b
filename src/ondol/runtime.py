"""How do the pieces become one thing that users hold? ``Runtime`` puts them together; it holds no rule."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

from ondol import (
    attaching,
    cancellation,
    compacting,
    ids,
    indexed,
    journal,
    messages,
    outputs,
    payloads,
    pins,
    plans,
    queries,
    runfile,
    schemas,
    searching,
    spending,
    summaries,
    transactions,
    values,
    watching,
)
from ondol import clock as clocks
from ondol import policy as policies
from ondol.agent import Agent
from ondol.attaching import Attached
from ondol.attempts import calling
from ondol.clock import Clock, SystemClock, from_micros, micros, to_micros
from ondol.compacting import Compaction
from ondol.deliveries import Deliver, Deliveries, OutboxMessage, message_of
from ondol.effects import EffectState
from ondol.embedder import Embedder
from ondol.embedding import Embedding
from ondol.errors import InvalidInput, NotFound, NotOpen, PolicyDenied, RevisionConflict
from ondol.events import Event
from ondol.facts import Facts
from ondol.handles import (
    AT_REST,
    Act,
    Ahead,
    Ask,
    AskState,
    Effect,
    Lineage,
    Run,
    RunResult,
    Session,
    SessionMessage,
    acting,
    ahead_of,
    ask_of,
    effect_of,
    encode_given,
    this_person,
)
from ondol.ids import (
    DEFAULT_TENANT,
    MAX_LIMIT,
    checked_id,
    checked_kind,
    checked_limit,
    checked_query,
    checked_revision,
    checked_text,
)
from ondol.imported import ImportedRun
from ondol.indexed import Indexed
from ondol.journal import RunStatus
from ondol.limits import Limits
from ondol.logs import about, journaled
from ondol.policy import Policy
from ondol.records import RunRow, SessionRow
from ondol.replay import By, ReplayVerdict, verdict
from ondol.runner import Runner, Served
from ondol.secret import logger
from ondol.seeing import SeenContext, context_place, seen_context
from ondol.served import close_models, read_prices, serve
from ondol.spending import UsageBy, UsageLine
from ondol.store import Store
from ondol.stores import open_store
from ondol.streams import Streams, Watch
from ondol.threads import in_thread
from ondol.tools import Found, as_sent
from ondol.transactions import INTERRUPTED, Accepted, Decision, IfBusy, NewFork, NewReplay, NewRun, OutboxState, Tx
from ondol.worker import SLOTS, EmbeddedEngine, no_driver_reason

if TYPE_CHECKING:
    from ondol.http.app import App as HttpApp
    from ondol.http.guard import Admission

P = ParamSpec("P")
T = TypeVar("T")

log = logger("ondol.runtime")

ForkEffects: TypeAlias = Literal["reuse", "stub", "run"]
ReplayClock: TypeAlias = Literal["recorded", "now"]
MissingTool: TypeAlias = Literal["refuse", "park"]
Trigger: TypeAlias = Literal["chat", "workflow", "schedule", "webhook", "api"]


class StartOptions(TypedDict, total=False):
    """The options of ``Runtime.start``, for the methods that pass them on."""

    session: str | None
    user: str | None
    operation_id: str | None
    if_busy: IfBusy
    expected_revision: int | None
    attachments: Sequence[Attached]
    time_zone: str | None
    trigger: Trigger
    metadata: Mapping[str, Any] | None
    own_only: bool
    tenant: str


PROBED_KEY = "probed"  # in the store's meta table: when it was last tried whether the store can be written
#: Set where a task acts for somebody who came in by a door of their own, such as a token of the HTTP door.
THROUGH: ContextVar[str | None] = ContextVar("door", default=None)
DEFAULT_STORE = "sqlite:///ondol.db"
BLOB_LIMIT = 64_000_000  # bytes of attachments in an exported file
_METADATA_TAKEN = 16_000  # characters
DRAIN = 5.0  # seconds that runs in flight get to reach a boundary when the runtime closes


class Runtime:
    """Accepts operations, drives their runs, and answers about both.

    ``store`` is a URL (``sqlite:///ondol.db`` beside the process, ``sqlite:////var/lib/app.db`` anywhere,
    ``postgresql://USER@HOST/DATABASE``; by default ``ONDOL_DB`` or ``sqlite:///ondol.db``) or a ``Store``. Use it as
    ``async with Runtime(...) as rt:``; opening resumes what a crash left. ``deps`` is handed to tools as ``ctx.deps``.
    ``time_zone`` holds where neither the request nor anybody else names one. ``missing_tool`` says what becomes of a
    planned call whose tool is gone after a deploy: ``refuse`` tells the model, ``park`` parks the run until an operator
    decides. ``policy`` allows, denies or asks about each call (see ``ondol.PolicyRules``). ``limits`` hold for the
    process and, beside their own, for all agents. ``prices`` is a file of what tokens cost, by default
    ``ONDOL_PRICES``. ``door`` names this way in, in the record of every human act. ``deliver`` is told, at least once,
    when a run waits or has ended; no run waits for it. ``embedder`` lets memories be searched by what is meant, beside
    words; needs the extra ``vectors``.
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        agents: Sequence[Agent] = (),
        time_zone: str | None = None,
        deps: Any = None,
        clock: Clock | None = None,
        door: str = "python",
        missing_tool: MissingTool = "refuse",
        policy: Policy | None = None,
        limits: Limits | None = None,
        prices: str | Path | None = None,
        deliver: Deliver | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        self._store = open_store(store or os.environ.get("ONDOL_DB") or DEFAULT_STORE)
        self._journaled = journaled(self._store)
        if not isinstance(agents, Collection) or isinstance(agents, str):
            raise InvalidInput("agents must be a list of Agent: write agents=[...]")
        for given in agents:
            if not isinstance(given, Agent):
                raise InvalidInput(f"agents must be a list of Agent, and one of them is {given!r}")
        if limits is not None and not isinstance(limits, Limits):
            raise InvalidInput(f"limits must be Limits(...), got {limits!r}")
        self.policy, self.limits = policies.checked(policy), limits or Limits()
        self.prices = prices or os.environ.get("ONDOL_PRICES") or None
        self.agents = {a.name: a for a in agents}
        if len(self.agents) < len(agents):
            names = [a.name for a in agents]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"two agents are named {twice!r}: rename one")
        if time_zone is not None:
            clocks.zone(time_zone)
        if clock is not None and not hasattr(clock, "now"):
            raise InvalidInput(f"clock must be one as ondol.Clock describes it, got {clock!r}")
        if clock is not None and clock.now().utcoffset() is None:
            raise InvalidInput("clock gives a time without an offset: let its now() return datetime.now(timezone.utc)")
        checked_id("door", door)
        if prices is not None and not isinstance(prices, str | os.PathLike):
            raise InvalidInput(f"prices must name a file, got {prices!r}")
        if deliver is not None and not callable(deliver):
            raise InvalidInput(f"deliver must be a function of a message of the outbox, got {deliver!r}")
        self.clock: Clock = clock or SystemClock()
        self.time_zone = time_zone or getattr(self.clock, "time_zone", None)
        if missing_tool not in get_args(MissingTool):
            raise InvalidInput(f"missing_tool={missing_tool!r} is unknown: say {' or '.join(get_args(MissingTool))}")
        self.deps, self._door, self.missing_tool = deps, door, missing_tool
        self.memory, self.deliver = Facts(self), deliver
        self._embedding = Embedding(self._journaled, self.clock, embedder)
        self._streams = Streams()
        self._served: dict[str, Served] = {}
        self._engine: EmbeddedEngine | None = None
        self._opened = threading.Lock()  # held from the start of ``open`` to the end of ``close``
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    # --- open and close -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Runtime:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the store, take up what a dead process left, and begin to drive.

        Raises:
            InvalidInput: an agent's model is unknown or its key is missing, or it has a limit of cost and no price;
                nothing was started.
            StoreCorrupt, StoreTooNew, StoreError: the store cannot be used, and was left as it is.
        """
        if self._engine is not None and self._is_left_behind:
            await self.close()
        if not self._opened.acquire(blocking=False):  # by another task or thread, maybe at this moment
            raise NotOpen("this runtime is open already: one at a time, or make another Runtime")
        try:
            await self._open()
        except BaseException:  # whatever it is, it travels on, and the runtime can be opened again
            self._opened.release()
            raise

    async def _open(self) -> None:
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        self._served = {name: serve(agent, self.limits, self.prices) for name, agent in self.agents.items()}
        self._deliveries = deliveries = Deliveries(
            self._journaled, self.clock, self._served, self.deliver, self._embedding
        )
        runner = Runner(
            self._journaled, self.clock, self._streams, self.deps, self._embedding, self.missing_tool == "park",
            self.policy, wants=deliveries.wants,
        )  # fmt: skip
        slots = self.limits.runs or SLOTS
        engine = EmbeddedEngine(
            self._journaled, self.clock, self._streams, runner, self._served, slots, deliveries, self._embedding
        )
        try:
            await self._store.open(engine.changed)
            await engine.open()
        except BaseException:  # also when the one who opens is cancelled: nothing of ours stays open
            await self._close_all()
            raise
        self._engine = engine

    def _override(self, store: str | Store | None, *, agent: Agent | None = None, door: str | None = None) -> None:
        """Before it is opened: what a command names counts more than what the program does."""
        if store is not None:
            self._store = open_store(store)
            self._journaled = self._embedding.store = journaled(self._store)
        if agent is not None:
            self.agents[agent.name] = agent
        self._door = door or self._door

    def asgi(self, admission: Admission | None = None) -> HttpApp:
        """The HTTP door, an ASGI application: mount it where you like, or ``ondol serve`` runs it.

        It opens and closes the runtime with itself; one that is mounted leaves that to you (``async with rt:``).
        Needs the extra ``server``.
        """
        try:
            from ondol.http.app import make_app
        except ModuleNotFoundError as error:
            raise InvalidInput(f"{error.name} is missing: pip install 'ondol[server]'") from error
        return make_app(self, admission)

    async def drain(self, patience: float = DRAIN) -> None:
        """Stop driving: runs in flight reach a boundary within so many seconds. Reading goes on until ``close``."""
        await self._working.close(patience)

    async def close(self, drain: float = DRAIN) -> None:
        """Stop: no new runs, those in flight reach a step's boundary within ``drain`` seconds, then the store closes.

        Nothing is lost: what was not finished is taken up at the next ``open``.

        Raises:
            NotOpen: it is open in another event loop, which goes on. (Of one that was closed, as by ``asyncio.run``,
            any other one may let go.)
        """
        if self._engine is None:
            return
        left_behind = self._is_left_behind
        engine, self._engine = self._engine if left_behind else self._working, None
        try:
            if not left_behind:  # else nothing of it can reach a boundary any more
                await engine.close(drain)
        finally:  # whatever happens, nothing of ours stays open
            try:
                self._streams.close()
                await self._close_all()
            finally:
                self._opened.release()

    async def _close_all(self) -> None:
        try:
            await self._store.close()
        finally:
            await close_models(tuple(self._served.values()))

    @property
    def _working(self) -> EmbeddedEngine:
        if self._engine is None:
            raise NotOpen("the runtime is not open: use 'async with Runtime(...) as rt:'")
        if self._loop is not asyncio.get_running_loop():
            if self._process != os.getpid():
                raise NotOpen("the runtime was opened before this process was forked: make another Runtime here")
            raise NotOpen(
                "the runtime is open in another event loop: call it there, as with asyncio.run_coroutine_threadsafe"
            )
        return self._engine

    def _check_open(self) -> None:
        """Raises NotOpen."""
        _ = self._working

    @property
    def _is_left_behind(self) -> bool:
        """Was the event loop closed in which this is open?"""
        return self._loop is not None and self._loop.is_closed()

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    @property
    def door(self) -> str:
        """What the record of a human act calls this way in."""
        return THROUGH.get() or self._door

    @property
    def drives(self) -> bool:
        """Does this process drive runs? Only one process a SQLite file does."""
        return self._engine is not None and self._engine.is_driver

    # --- operations ---------------------------------------------------------------------------------------------

    async def start(
        self,
        agent: Agent | str,
        input: str,
        *,
        session: str | None = None,
        user: str | None = None,
        operation_id: str | None = None,
        if_busy: IfBusy = "queue",
        expected_revision: int | None = None,
        attachments: Sequence[Attached] = (),
        time_zone: str | None = None,
        trigger: Trigger = "api",
        metadata: Mapping[str, Any] | None = None,
        own_only: bool = False,
        tenant: str = DEFAULT_TENANT,
    ) -> Run:
        """Accept an operation. Returns when it is durable; its run goes on without the caller.

        The same ``operation_id`` with the same input is the same run, whatever became of it. Without an id one is
        made, and every call is new. ``attachments`` are paths or bytes, copied now.

        ``if_busy`` says what happens when a run of the session is unfinished: ``queue`` behind it, ``reject``, or
        ``interrupt`` it: no effect of it starts any more, those in flight finish, it ends cancelled, and this run is
        next; or ``steer`` it: the input joins it before its next model call, and both share one end. (It queues where
        that run waits for a person, ends first, or works for another agent or user.)

        ``metadata`` is kept with the run; no rule looks at it. With ``own_only`` a session of another user is none.

        Raises:
            OperationMismatch, OperationExpired, RevisionConflict, SessionBusy, QueueFull, TooLarge, InvalidInput,
            NotFound
        """
        engine = self._working
        name = agent.name if isinstance(agent, Agent) else checked_id("the name of an agent", agent)
        served = self._served.get(name)
        if served is None:
            raise self._no_agent(name)
        if isinstance(agent, Agent) and agent is not served.agent:
            raise InvalidInput(f"this runtime has another agent named {agent.name!r}: use that one, or rename this one")
        if trigger not in get_args(Trigger):
            raise InvalidInput(f"trigger={trigger!r} is unknown: say {', '.join(get_args(Trigger))}")
        if not isinstance(attachments, Sequence) or isinstance(attachments, str | bytes):
            raise InvalidInput("attachments must be a list of paths or bytes")
        if if_busy not in get_args(IfBusy):
            raise InvalidInput(f"if_busy={if_busy!r} is unknown: say {', '.join(get_args(IfBusy))}")
        if not isinstance(input, str):
            raise InvalidInput(f"the input must be a text, got {type(input).__name__}")
        if not input.strip() and not attachments:
            raise InvalidInput("the input is empty: say something, or attach something")
        checked_id("tenant", tenant)
        for kind, value in (("session", session), ("user", user), ("operation_id", operation_id)):
            if value is not None:
                checked_id(kind, value)
        checked_revision(expected_revision)
        if time_zone is not None:
            clocks.zone(time_zone)
        if served.agent.memory is not None and user is None:
            raise InvalidInput(f"agent {name!r} has a memory, which belongs to a user: name one (user=..., --user)")
        limits = served.bounds.limits
        await in_thread(attaching.check_size, attachments, limits) if attachments else None
        now = self.clock.now()
        parts = await attaching.attach_all(self._store, self.clock, tenant, attachments, limits)
        fingerprint = values.digest(values.encode([served.agent.name, session, input, sorted(p.digest for p in parts)]))
        run = ids.new_run_id(now)
        new = NewRun(
            tenant=tenant, run=run, session=session or ids.session_of(run), user_id=user or "",
            operation_id=operation_id or ids.new_operation_id(now), fingerprint=fingerprint,
            agent=served.agent.name, definition=served.definition, definition_digest=served.digest, trigger=trigger,
            door=self.door, zone=time_zone, default_zone=self.time_zone,
            input=messages.dumps(messages.user(input, *parts)),
            blobs=[(p.digest, p.size) for p in parts], expected_revision=expected_revision,
            if_busy=if_busy, outbox=self._deliveries.wants(served.agent.name),
            by=user or (this_person() if if_busy == "interrupt" else ""), queue=limits.queue,
            metadata=None if metadata is None else _metadata(metadata), own_only=own_only,
        )  # fmt: skip

        def accept(owner: str | None) -> Awaitable[Accepted]:
            return self._write(transactions.accept, new._replace(owner=owner), to_micros(now))

        return self._accepted(engine, await engine.accept(accept, run, new.agent))

    async def run(self, agent: Agent | str, input: str, **options: Unpack[StartOptions]) -> RunResult:
        """``start``, then ``Run.result``."""
        return await (await self.start(agent, input, **options)).result()

    def run_sync(self, agent: Agent | str, input: str, **options: Unpack[StartOptions]) -> RunResult:
        """Open, run one operation, close. For scripts; inside an event loop use ``await rt.run(...)``."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise InvalidInput(
                "run_sync is for scripts, and an event loop runs here: use 'await rt.run(...)', or call it below "
                "'if __name__ == \"__main__\":'"
            )

        async def once() -> RunResult:
            async with self:
                return await self.run(agent, input, **options)

        return cancellation.run(once())

    @overload
    async def replay(
        self, run: Run | str, *, dry_run: Literal[True], force: By | None = None, operation_id: str | None = None,
        clock: ReplayClock = "recorded", time_zone: str | None = None, tenant: str = DEFAULT_TENANT,
    ) -> ReplayVerdict: ...  # fmt: skip
    @overload
    async def replay(
        self, run: Run | str, *, dry_run: Literal[False] = False, force: By | None = None,
        operation_id: str | None = None, clock: ReplayClock = "recorded", time_zone: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Run: ...  # fmt: skip
    async def replay(
        self, run: Run | str, *, dry_run: bool = False, force: By | None = None, operation_id: str | None = None,
        clock: ReplayClock = "recorded", time_zone: str | None = None, tenant: str = DEFAULT_TENANT,
    ) -> Run | ReplayVerdict:  # fmt: skip
        """Do what was asked once more, in a new run: the model thinks anew. With ``dry_run``, whether that is safe.

        A failed or cancelled run is replayed in its session, a completed one in a new session that has what was said
        before it. The model and ``ctx.now()`` have the recorded clock and zone; ``clock="now"`` and ``time_zone``
        replace them. Where writes of the run or of its other replays were started, ``force`` says who wants it and
        why; then a write that is equal to one that succeeded gets that outcome and touches nothing, and any other
        write asks a person first.

        Raises:
            ReplayUnsafe: something must be settled first, or it needs ``force``. OperationMismatch, NotFound
        """
        id, tenant = self._named(run, tenant)
        if force is not None and not isinstance(force, By):
            raise InvalidInput(f"force={force!r}: say force=By(name, why)")
        if clock not in get_args(ReplayClock):
            raise InvalidInput(f"clock={clock!r} is unknown: say {' or '.join(map(repr, get_args(ReplayClock)))}")
        if time_zone is not None:
            clocks.zone(time_zone)
        if dry_run:
            return verdict(await self._read(transactions.read_family, tenant, id))
        engine, now = self._working, self.clock.now()
        new = NewReplay(
            tenant=tenant, run=ids.new_run_id(now), of=id, door=self.door, zone=time_zone, force=force,
            operation_id=checked_id("operation_id", operation_id or ids.new_operation_id(now)),
            fingerprint=values.digest(["replay", id, clock, time_zone]), clock_now=clock == "now",
        )  # fmt: skip
        return self._accepted(engine, await self._write(transactions.accept_replay, new, to_micros(now)))

    async def fork(
        self, run: Run | str, *, at_step: int, effects: ForkEffects = "reuse", operation_id: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Run:  # fmt: skip
        """Go on from a step of a run that has ended, in a new session: the steps before it are shared, the model
        thinks anew from there.

        ``effects`` says what becomes of the writes that follow: ``reuse`` gives one that is equal to a recorded
        success that outcome, and any other is made as in any run; ``stub`` gives each a made-up result and touches
        nothing; ``run`` really makes them, and asks a person first.

        Raises:
            ReplayUnsafe: the run has not ended, or something in it must be settled first. InvalidInput: no such step.
        """
        id, tenant = self._named(run, tenant)
        if effects not in get_args(ForkEffects):
            raise InvalidInput(f"effects={effects!r} is unknown: say {', '.join(map(repr, get_args(ForkEffects)))}")
        if not isinstance(at_step, int) or isinstance(at_step, bool):
            raise InvalidInput(f"at_step={at_step!r}: say the number of a step, from 1")
        engine, now = self._working, self.clock.now()
        new = NewFork(
            tenant=tenant, run=ids.new_run_id(now), of=id, door=self.door, at_step=at_step, effects=effects,
            operation_id=checked_id("operation_id", operation_id or ids.new_operation_id(now)),
            fingerprint=values.digest(values.encode(["fork", id, at_step, effects])),
        )  # fmt: skip
        return self._accepted(engine, await self._write(transactions.accept_fork, new, to_micros(now)))

    async def resume(self, run: Run | str, *, tenant: str = DEFAULT_TENANT) -> Run:
        """Go on with a run that failed for now, as sending its operation again does: of one that joined another, that
        one. Any other stays as it is."""
        id, tenant = self._named(run, tenant)
        engine, now = self._working, micros(self.clock)
        return self._accepted(engine, await self._write(transactions.resume, tenant, id, now))

    def _accepted(self, engine: EmbeddedEngine, accepted: Accepted) -> Run:
        if accepted.interrupted is not None:
            self._stops(accepted.interrupted)
        if accepted.host is not None:
            engine.signal(accepted.host.id)
            self._streams.notify(accepted.host.id)
        turn = accepted.answering
        if accepted.wake:
            engine.wake(turn.tenant, turn.id, turn.agent, turn.deaths)
        replayed = not accepted.created and turn.state == "completed"
        if accepted.created:
            self._streams.notify(watching.of_session(turn.tenant, accepted.run.session))
        behind = ahead_of(self, accepted.behind)
        return Run(self, accepted.run, replayed=replayed, created=accepted.created, waits_behind=behind)

    def _named(self, run: Run | str, tenant: str) -> tuple[str, str]:
        """The id and the tenant of a run that was given as such or by its id."""
        return (run.id, run.tenant) if isinstance(run, Run) else (checked_id("run", run), checked_id("tenant", tenant))

    # --- runs ---------------------------------------------------------------------------------------------------

    async def get_run(self, run: str, *, tenant: str = DEFAULT_TENANT) -> Run:
        """Raises NotFound."""
        return Run(self, await self._run_row(tenant, run))

    async def find_run(self, operation_id: str, *, user: str | None = None, tenant: str = DEFAULT_TENANT) -> Run:
        """The run of an operation. Raises NotFound."""
        row = await self._read(queries.find_operation, tenant, user or "", operation_id)
        if row is None:
            raise NotFound(f"there is no operation {operation_id!r}")
        return Run(self, row)

    async def runs(
        self, *, session: str | None = None, user: str | None = None, state: str | None = None,
        before: str | None = None, limit: int = 100, tenant: str = DEFAULT_TENANT,
    ) -> list[Run]:  # fmt: skip
        """The newest first. ``before`` is the id of the last one seen."""
        checked_kind("state", state, get_args(RunStatus))
        rows = await self._read(
            queries.list_runs,
            tenant,
            session=session,
            user_id=user,
            state=state,
            before=before,
            limit=checked_limit(limit),
        )
        return [Run(self, r) for r in rows]

    async def cancel(
        self, run: str | Run, *, by: str | None = None, reason: str = "", tenant: str = DEFAULT_TENANT
    ) -> Run:
        """Ask a run to stop. Idempotent; returns the run, which is ``cancelling`` while its holder stops."""
        engine = self._working
        id, tenant = self._named(run, tenant)
        by, reason = acting(by), checked_text("reason", reason)
        now = micros(self.clock)
        done = await self._write(transactions.cancel, tenant, id, by, self.door, reason, now)
        self._stops(done.run)
        if done.pending:
            return Run(self, await self._run_row(tenant, id))
        if done.next_run is not None:
            engine.wake(tenant, *done.next_run)
        return Run(self, done.run)

    def _stops(self, run: RunRow) -> None:
        """A run was asked to stop: its holder has a signal to read, or it has ended."""
        if run.state == "running":
            self._working.signal(run.id)
        else:
            self._streams.settled(run)

    async def _run_row(self, tenant: str, run: str) -> RunRow:
        return await self._read(queries.get_run, tenant, run)

    async def _ahead(self, run: RunRow) -> Ahead | None:
        return ahead_of(self, await self._read(transactions.blocking, run)) if run.state == "queued" else None

    async def _run_messages(self, tenant: str, run: str) -> dict[int, str]:
        return await self._read(queries.read_messages, tenant, run)

    async def _until_rest(self, row: RunRow, at_rest: frozenset[str] = AT_REST) -> RunRow:
        """The run's row when it is at rest. Raises what made this process refuse to drive it."""
        engine = self._working
        with engine.awaited(row.id):
            return await self._rested(engine, row, at_rest)

    async def _rested(self, engine: EmbeddedEngine, row: RunRow, at_rest: frozenset[str]) -> RunRow:
        if row.state in ("waiting", "parked", "failed"):
            row = await self._run_row(row.tenant, row.id)  # it may have moved on since it was read
        if (why := await self._why_unserved(row)) is not None:
            log.warning("run %s waits: %s", row.id, why, extra=about(row))
        while row.state not in at_rest:
            if row.state in ("queued", "running") and engine.waits_for_caller(row):
                row = await self._can_end(engine, row)
            if row.state not in at_rest:
                with engine.stands_still(row):
                    row = await self._moved(engine, row, at_rest)
        return row

    async def _can_end(self, engine: EmbeddedEngine, row: RunRow) -> RunRow:
        """The row as it is now, of a run that seems to wait for the one whose tool asks this. Raises InvalidInput where
        it does: neither would go on before the tool's time is over."""
        while chain := engine.waits_for_caller(row):
            row, *others = [await self._run_row(one.tenant, one.id) for one in chain]
            if not all(map(_is_held_up, (row, *others))):
                break
            if [one.id for one in engine.waits_for_caller(row)] == [one.id for one in chain]:
                raise InvalidInput(
                    f"run {row.id} goes on when run {chain[-1].id} does, and a tool of that waits for it here: "
                    "start it in another session, or do not wait for it"
                )
        return row

    async def _moved(self, engine: EmbeddedEngine, row: RunRow, at_rest: frozenset[str]) -> RunRow:
        """The row of a run that is not at rest, when something happened to it. Raises as ``_until_rest``."""
        watch = self._streams.watch(row.id)
        try:
            if engine.is_working_on(row.id):
                return await self._streams.until_settled(row.id) or await self._run_row(row.tenant, row.id)
            row = await self._run_row(row.tenant, row.id)
            if row.state not in at_rest and not engine.is_working_on(row.id):
                if (refused := engine.refused.get(row.id)) is not None:
                    raise refused
                await watch.changed()
                row = await self._run_row(row.tenant, row.id)
            return row
        finally:
            self._streams.unwatch(row.id, watch)

    async def _events(self, tenant: str, run: str, after: str | None, at_rest: frozenset[str]) -> AsyncIterator[Event]:
        engine = self._working
        with engine.awaited(run):
            # Before anything is awaited: whoever started the run misses no piece.
            watching, is_tool = self._streams.watch(run), calling() is not None
            watching.hurried = is_tool
            async for event in self._watch(tenant, run, after, at_rest, None, watching):
                if event is not None:
                    yield event
                    watching.hurried = is_tool
                else:  # all was told, and the tool of a run would wait for more
                    row = await self._run_row(tenant, run)
                    if row.state == "queued":  # one that runs may have more to tell
                        await self._can_end(engine, row)

    def _watch(
        self, tenant: str, run: str, after: str | None, at_rest: frozenset[str], idle: float | None = None,
        watch: Watch | None = None,
    ) -> AsyncIterator[Event | None]:  # fmt: skip
        return watching.watch(self._read, self._streams, self.clock, tenant, run, after, at_rest, idle, watch)

    def _watch_session(
        self, tenant: str, session: str, place: watching.SessionPlace, idle: float | None = None
    ) -> AsyncIterator[watching.InSession | None]:
        return watching.watch_session(self._read, self._streams, self.clock, tenant, session, place, idle)

    async def _scratchpad(self, tenant: str, run: str) -> dict[str, Any]:
        row, batches = await self._read(queries.read_journal, tenant, run)
        state = journal.fold(batches)
        stored = await self._run_messages(tenant, run)
        return {
            "run": run, "state": row.state, "agent": row.agent, "session": row.session, "step": state.step,
            "seq": state.seq, "messages": [values.loads(stored[o]) for o in sorted(stored) if o >= 0],
            "effects": [
                {"id": ids.effect_id(run, e.ordinal), "tool": e.tool, "class": e.effect, "state": e.state,
                 "attempt": e.attempt, "step": e.step,
                 "parent": None if e.parent is None else ids.effect_id(run, e.parent)}
                for e in state.effects
            ],
            "asks": dict(state.asks), "session_state": state.patch(),
        }  # fmt: skip

    async def context(self, run: str, step: int | None = None, *, tenant: str = DEFAULT_TENANT) -> SeenContext:
        """What the model saw at a step (by default the last), built again from what is stored."""
        row, batches = await self._read(queries.read_journal, tenant, run)
        place = context_place(run, batches, step)
        described = await self._read(queries.get_definition, tenant, place.shown.definition)
        session = await self._read(queries.get_session, tenant, row.session)
        history = await self._read(queries.read_window, session, place.shown.start, place.shown.history)
        own = await self._run_messages(tenant, run)
        told = await self._read(queries.get_carried, tenant, place.shown.carried) if place.shown.carried else ""
        missing = session.is_orphan or told is None
        return seen_context(run, place, described, [(m.seq, m.body) for m in history], own, missing, told or "")

    async def _lineage(self, row: RunRow) -> Lineage:
        origin, copies = await self._read(queries.read_lineage, row)
        made = [Run(self, r) for r in copies]
        return Lineage(
            origin=None if origin is None else Run(self, origin),
            replays=[r for r in made if r.forked_at is None], forks=[r for r in made if r.forked_at is not None],
        )  # fmt: skip

    # --- to and from other stores -------------------------------------------------------------------------------

    async def export_run(
        self, run: str, *, blobs: bool = True, blob_limit: int = BLOB_LIMIT, tenant: str = DEFAULT_TENANT
    ) -> str:
        """A run with all that happened in it, as the text of a file that another machine can import.

        Attachments are in it up to ``blob_limit`` bytes in all, the smallest first; with ``blobs=False`` none is.
        Raises NotFound.
        """
        whole = await self._read(queries.whole_run, tenant, run, self.clock.now())
        held, room = dict(whole.blobs), blob_limit if blobs else -1
        for size, digest in sorted((size, digest) for digest, size in held.items() if isinstance(size, int)):
            if (room := room - size) >= 0:
                held[digest] = await self._store.get_blob(tenant, digest)
        return runfile.dumps(replace(whole, blobs=held))

    async def import_run(self, text: str, *, name: str = "the file", tenant: str = DEFAULT_TENANT) -> ImportedRun:
        """Keep an exported run of another store, to be looked at. A later export of the same run replaces it.

        Raises:
            FileDamaged, StoreTooNew: it was left out; the message names the place. InvalidInput: it is no exported
            run, or one of this store.
        """
        self._check_open()
        if not isinstance(text, str):
            raise InvalidInput(f"the exported run must be a text, got {type(text).__name__}")
        file = runfile.loads(text, name)
        run = checked_id(f"the run's id in {name}", file.run.id)
        packed, now = runfile.pack(text), micros(self.clock)
        await self._write(transactions.keep_import, checked_id("tenant", tenant), run, packed, now)
        return ImportedRun(file)

    async def imported(self, run: str, *, tenant: str = DEFAULT_TENANT) -> ImportedRun:
        """Raises NotFound."""
        packed = await self._read(queries.get_import, tenant, run)
        if packed is None:
            raise NotFound(f"there is no imported run {run!r}: 'ondol runs ls --imported' lists them")
        return ImportedRun(runfile.unpack(run, packed))

    async def imports(self, *, limit: int = 100, tenant: str = DEFAULT_TENANT) -> list[ImportedRun]:
        """The imported runs, the latest import first."""
        found = await self._read(queries.list_imports, tenant, checked_limit(limit))
        return [ImportedRun(runfile.unpack(run, packed)) for run, packed in found]

    async def forget_import(self, run: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """Remove an imported run. Raises NotFound."""
        await self._write(transactions.drop_import, tenant, run)

    async def waits_for_driver(self, run: Run) -> str | None:
        """Why a queued run is not driven, and what to do about it; None if some process has its agent."""
        self._check_open()
        if not isinstance(run, Run):
            raise InvalidInput(f"waits_for_driver takes a Run, as runs() and get_run(id) give it, got {run!r}")
        return await self._why_unserved(run._row)

    async def _why_unserved(self, row: RunRow) -> str | None:
        if row.state != "queued" or (self.drives and row.agent in self._served):
            return None
        drivers = await self._store.drivers()
        return no_driver_reason(row, {agent for of_driver in drivers.values() for agent in of_driver})

    # --- asks and effects ---------------------------------------------------------------------------------------

    async def asks(
        self, *, run: str | None = None, session: str | None = None, user: str | None = None,
        state: str | None = "open", after: str | None = None, newest_first: bool = False, limit: int = 100,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Ask]:  # fmt: skip
        """What waits for a person, the oldest first. ``state=None`` lists the decided ones too; ``after`` is the id of
        the ask behind which to go on."""
        checked_kind("state", state, get_args(AskState))
        rows = await self._read(
            queries.list_asks, tenant, run=run, session=session, user_id=user, state=state, after=after,
            newest_first=newest_first, limit=checked_limit(limit),
        )  # fmt: skip
        return [ask_of(self, r) for r in rows]

    async def get_ask(self, ask: str, *, tenant: str = DEFAULT_TENANT) -> Ask:
        """Raises NotFound."""
        return ask_of(self, await self._read(queries.get_ask, tenant, ask))

    async def decide(self, ask: Ask, decision: Decision, *, by: str | None = None) -> Ask:
        """Decide an ask once. The same decision again returns the stored one.

        Raises:
            AlreadyDecided: somebody decided otherwise. AskClosed: its run has ended. InvalidInput: no such answer.
            PolicyDenied: the policy denies what would be approved; the ask stays open.
        """
        if not isinstance(ask, Ask) or not isinstance(decision, Decision):
            raise InvalidInput(
                "decide takes an Ask, as asks() and get_ask(id) give it, and a Decision: "
                f"ask.approve() and its like make one, got {ask!r} and {decision!r}"
            )
        by = acting(by)
        decision = replace(
            decision, reason=checked_text("reason", decision.reason),
            evidence=checked_text("evidence", decision.evidence),
        )  # fmt: skip
        given = decision.arguments
        if given is not None:
            decision = replace(decision, arguments=as_sent(given))
            schemas.recorded(decision.arguments)
        if decision.kind == "approve" and (given is not None or self.policy is not None):
            await self._may_be_approved(ask, decision.arguments, given)
        now = micros(self.clock)
        if paused := self._working.jumps.pause() > 0:
            self._working.look_soon()  # what was to expire was waited for by the clock as it went before
        decided = await self._write(transactions.decide, ask._tenant, ask.id, decision, by, self.door, now, paused)
        if decided.first:
            self._working.decided(decided)
        return ask_of(self, decided.ask)

    async def _may_be_approved(
        self, ask: Ask, sent: Mapping[str, Any] | None, given: Mapping[str, Any] | None
    ) -> None:  # fmt: skip
        """Tell the approver at once what cannot be approved, where this process has the run's agent. ``sent`` is what
        was ``given`` in place of the call's own arguments.

        Elsewhere the run's holder finds out before the call is made, and the model is told.

        Raises:
            InvalidInput: a replacement does not fit. PolicyDenied: the policy denies a call with these arguments.
        """
        row = await self._run_row(ask._tenant, ask.run)
        served = self._served.get(row.agent)
        if served is None or (tool := served.tools.get(ask.tool or "")) is None:
            return
        if sent is not None and given is not None:
            tool.takes(given, sent)
        wanted = plans.policy_call(row, tool, ask.arguments if sent is None else sent)
        if isinstance(denied := policies.said(self.policy, wanted), policies.Deny):
            why = f" ({denied.reason})" if denied.reason else ""
            raise PolicyDenied(
                f"the policy denies this call of {tool.name}{why}, and nobody can approve it: deny ask {ask.id}, "
                "or approve it with other arguments"
            )

    async def effects(
        self, *, run: str | None = None, session: str | None = None, state: str | None = None,
        after: str | None = None, limit: int = 100, tenant: str = DEFAULT_TENANT,
    ) -> list[Effect]:  # fmt: skip
        """The ledger of tool calls: those of the newest runs first, of each in call order; of one run all of them.
        ``after`` is the id of the effect behind which to go on. Raises NotFound for one that is no id of an effect."""
        checked_kind("state", state, get_args(EffectState))
        if run is not None:
            behind = -1 if after is None else ids.effect_place(after)[1]
            rows = await self._read(queries.effects_of_run, tenant, run)
            return [effect_of(r) for r in rows if state in (None, r.state) and r.ordinal > behind]
        rows = await self._read(
            queries.list_effects, tenant, session=session, state=state, after=after, limit=checked_limit(limit)
        )
        return [effect_of(r) for r in rows]

    async def get_effect(self, effect: str, *, tenant: str = DEFAULT_TENANT) -> Effect:
        """Raises NotFound."""
        return effect_of(await self._read(queries.get_effect, tenant, effect))

    async def effect_result(self, effect: str, *, tenant: str = DEFAULT_TENANT) -> Any:
        """What a call that succeeded returned, all of it. Raises NotFound where none is recorded, or it was erased."""
        found = await self.get_effect(effect, tenant=tenant)
        outcome = await self._read(queries.recorded_outcome, tenant, effect) if found.state == "succeeded" else None
        if outcome is None:
            raise NotFound(f"effect {effect} is {found.state}: no result of it is kept")
        blobs = {a.digest: await self.get_blob(a.digest, tenant=tenant) for a in outcome.attached}
        if outcome.blob is None:
            return values.decode(payloads.put_back(outcome.response, blobs))
        data = await self.get_blob(outcome.blob.digest, tenant=tenant)
        return values.decode(payloads.put_back(outputs.encoded_of(outcome.blob, data), blobs))

    async def unknown_ask(self, effect: str, *, tenant: str = DEFAULT_TENANT) -> Ask:
        """The open ask about an unknown effect. Raises NotFound when nothing about it is open."""
        found = await self.get_effect(effect, tenant=tenant)
        row = await self._read(queries.open_unknown_ask, tenant, effect)
        if row is None:
            raise NotFound(f"effect {effect} is {found.state}: there is nothing to settle")
        return ask_of(self, row)

    async def settling_ask(self, effect: str, *, tenant: str = DEFAULT_TENANT) -> Ask:
        """The open ask about an unknown effect, else the one that settled it: the same word again is no error.

        Raises NotFound when nothing about it is, or was, to be settled.
        """
        try:
            return await self.unknown_ask(effect, tenant=tenant)
        except NotFound:
            found = await self.get_effect(effect, tenant=tenant)
            asks = await self.asks(run=found.run, state=None, limit=ids.MAX_LIMIT, tenant=tenant)
            about = [a for a in asks if a.effect == effect and a.kind == "unknown_effect"]
            if not about:
                raise
            return about[-1]

    async def audit(self, *, limit: int = 100, tenant: str = DEFAULT_TENANT) -> list[Act]:
        """What people did, the newest first: who, when, through which door."""
        rows = await self._read(queries.list_acts, tenant, checked_limit(limit))
        return [
            Act(at=from_micros(at), by=by, door=door, act=act, subject=subject, note=note)
            for at, by, door, act, subject, note in rows
        ]

    async def usage(
        self, *, by: UsageBy = "model", since: date | None = None, until: date | None = None,
        prices: str | Path | None = None, time_zone: str | None = None, tenant: str = DEFAULT_TENANT,
    ) -> list[UsageLine]:  # fmt: skip
        """What model calls took and cost, summed up by agent, model, day, session or user.

        A run counts, whole, for the instant at which it was accepted: from ``since`` on, and before ``until``. So does
        what a session's compaction by hand took, which is of no run, for the user whose session it is. Days,
        and instants without an offset, are those of ``time_zone``, by default the runtime's, else UTC. Days come in
        order, anything else with the most tokens first. ``prices`` is a price file instead of the runtime's own.

        Raises:
            InvalidInput: there is no such zone, or the price file cannot be read.
        """
        if by not in get_args(UsageBy):
            raise InvalidInput(f"by={by!r} is unknown: say {', '.join(get_args(UsageBy))}")
        for at in (since, until):
            if at is not None and not isinstance(at, date):
                raise InvalidInput(f"{at!r} is no instant: give a date or a datetime")
        zone = clocks.zone(time_zone or self.time_zone or "UTC")
        known = read_prices(prices or self.prices)
        first, end = (None if at is None else spending.instant(at, zone) for at in (since, until))
        sums: spending.Sums = {}
        n, call, tenant = 0, "", checked_id("tenant", tenant)
        while page := await self._read(queries.page_usage, tenant, n, first, end):
            sums, n = spending.summed(sums, page, by, zone), page[-1].n
        while calls := await self._read(queries.page_spent, tenant, call, first, end):
            sums, call = spending.summed(sums, calls, by, zone), calls[-1].id
        return spending.lines(sums, by, known)

    # --- outbox -------------------------------------------------------------------------------------------------

    async def outbox(
        self, *, state: OutboxState | None = None, after: str | None = None, limit: int = 100,
        tenant: str = DEFAULT_TENANT,
    ) -> list[OutboxMessage]:  # fmt: skip
        """What was, is or could not be told, the newest first; ``state="dead"`` is what was given up. ``after`` is the
        id of the message behind which to go on."""
        checked_kind("state", state, get_args(OutboxState))
        checked_id("tenant", tenant)
        rows = await self._read(transactions.list_outbox, tenant, state, checked_limit(limit), after)
        return [message_of(tenant, row) for row in rows]

    async def deliver_again(
        self, message: str, *, by: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> OutboxMessage:
        """Tell a message of the outbox (again), also one that is dead. Raises NotFound."""
        by, now = acting(by), micros(self.clock)
        row = await self._write(transactions.deliver_again, tenant, message, now, by=by, door=self.door)
        self._deliveries.look()
        return message_of(tenant, row)

    # --- search -------------------------------------------------------------------------------------------------

    async def index(
        self, paths: str | Path | Sequence[str | Path], *, remove: Sequence[str] = (), collection: str = "documents",
        tenant: str = DEFAULT_TENANT,
    ) -> Indexed:  # fmt: skip
        """Bring a collection of documents up to date with files and folders; agents find it by ``Documents(...)``.

        Only files that changed are read again, and what is gone from a folder is removed; documents and folders that
        ``remove`` names, as locators do, are taken out. It may be stopped any time.
        Raises InvalidInput for a path that is not there, or a name that is not in the collection.
        """
        self._check_open()
        checked_id("tenant", tenant)
        space = checked_id("the name of a collection", collection)
        given = [paths] if isinstance(paths, str | Path) or not isinstance(paths, Iterable) else list(paths)
        if wrong := [path for path in given if not isinstance(path, str | Path) or path == ""]:  # (that is no folder)
            raise InvalidInput(f"what is indexed is named by paths, got {wrong[0]!r}")
        if not isinstance(remove, Sequence) or isinstance(remove, str) or not all(isinstance(r, str) for r in remove):
            raise InvalidInput(f"remove must be a list of the names of documents and folders, got {remove!r}")
        done = await indexed.index(self._store, tenant, space, given, micros(self.clock), remove)
        self._embedding.look(searching.documents_of(tenant, space))
        return done

    async def search_documents(
        self, query: str, *, collection: str = "documents", limit: int = 10, tenant: str = DEFAULT_TENANT
    ) -> list[Found]:
        """The passages of a collection that fit best, the best first."""
        self._check_open()
        checked_id("tenant", tenant)
        checked_limit(limit)
        checked_query(query)
        return await searching.find_documents(self._store, self._embedding, tenant, collection, query, limit)

    async def search_history(
        self, query: str, *, user: str, session: str | None = None, limit: int = 10, tenant: str = DEFAULT_TENANT
    ) -> list[Found]:
        """What was said by and to a user, in one session or in all of them, the best hit first."""
        self._check_open()
        checked_id("tenant", tenant)
        checked_id("user", user)
        checked_query(query)
        kind = "user" if session is None else "session"
        space = transactions.history_space(tenant, kind, user, session or "")
        return await searching.find_history(self._store, space, query, checked_limit(limit))

    # --- sessions -----------------------------------------------------------------------------------------------

    async def get_session(self, session: str, *, tenant: str = DEFAULT_TENANT) -> Session:
        """Raises NotFound."""
        return Session(self, await self._read(queries.get_session, tenant, session))

    async def sessions(
        self, *, user: str | None = None, after: str | None = None, limit: int = 100, tenant: str = DEFAULT_TENANT
    ) -> list[Session]:
        """By id, of one user or of all; ``after`` is the last one seen."""
        rows = await self._read(queries.list_sessions, tenant, after, checked_limit(limit), user_id=user)
        return [Session(self, r) for r in rows]

    async def write_session(
        self, session: str, *, state: Mapping[str, Any] | None = None, title: str | None = None,
        time_zone: str | None = None, expected_revision: int | None = None, user: str | None = None,
        own_only: bool = False, tenant: str = DEFAULT_TENANT,
    ) -> Session:  # fmt: skip
        """Write to a session by hand; it is made, as ``user``'s, if it does not exist. With ``own_only`` a session of
        another user is none.

        Raises:
            SessionBusy: a run is unfinished. RevisionConflict: it is not at ``expected_revision``.
        """
        self._check_open()
        checked_id("tenant", tenant)
        checked_id("session", session)
        checked_revision(expected_revision)
        if state is not None and not isinstance(state, Mapping):
            raise InvalidInput(f"the state of a session must be a mapping, got {type(state).__name__}")
        if title is not None:
            title = checked_text("title", title)
        if time_zone is not None:
            clocks.zone(time_zone)
        stored = None if state is None else values.dumps(encode_given("state", state, values.encode_object))
        now = micros(self.clock)
        row = await self._store.write(
            transactions.write_session, tenant, session, now, expected_revision=expected_revision, state=stored,
            title=title, zone=time_zone, user=None if user is None else checked_id("user", user), own_only=own_only,
        )  # fmt: skip
        return Session(self, row)

    async def pin(
        self, session: str, text: str, *, by: str | None = None, expected_revision: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Session:  # fmt: skip
        """Pin a text in a session: every request to its models holds it, word for word.

        Raises:
            SessionBusy: a run is unfinished. RevisionConflict, NotFound; InvalidInput: it is too long, or too many.
        """
        return await self._pin(session, tenant, by, text=pins.checked(text), expected_revision=expected_revision)

    async def unpin(
        self, session: str, pin: str, *, by: str | None = None, expected_revision: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Session:  # fmt: skip
        """Take away a pin, named by its id. Raises as ``pin`` does."""
        return await self._pin(session, tenant, by, unpin=pin, expected_revision=expected_revision)

    async def _pin(self, session: str, tenant: str, by: str | None, **change: Any) -> Session:
        self._check_open()
        checked_revision(change["expected_revision"])
        by, now = acting(by), micros(self.clock)
        row = await self._store.write(transactions.pin_session, tenant, session, now, by=by, door=self.door, **change)
        return Session(self, row)

    async def compact_session(
        self, session: str, *, keep: int = 3, preview: bool = False, model_free: bool = False,
        agent: Agent | str | None = None, by: str | None = None, expected_revision: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Compaction:  # fmt: skip
        """Show models a summary in the place of all turns of a session but the last ``keep``. Messages stay in the
        session; a fork from before has them all again.

        The summary is made by the model of ``agent``, by default of the one that had the session's last turn, where it
        is here and its ``ContextPolicy`` asks a model; else, and with ``model_free``, it is an excerpt. With
        ``preview`` nothing is changed, and no model is asked.

        Raises:
            SessionBusy: a run is unfinished. RevisionConflict: another turn came first, so it gave up; or the session
                is not at ``expected_revision``. NotFound
        """
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 0:
            raise InvalidInput(f"keep={keep!r}: give a number of turns, a whole number from 0")
        checked_revision(expected_revision)
        if preview:
            row = await self._read(queries.get_session, tenant, session)
        else:  # looked at now: no model is asked in vain
            row = await self._read(transactions.free_session, tenant, session)
        if expected_revision is not None and expected_revision != row.revision:
            raise RevisionConflict(session, expected_revision, row.revision)
        said = await self._read(queries.read_window, row, row.shown.since, row.next_message)
        last = await self._read(queries.get_run, tenant, said[-1].run) if said else None
        described = None if last is None else await self._read(queries.get_definition, tenant, last.definition)
        plan = compacting.plan([(m.seq, m.body) for m in said], row, keep, described, self._deliveries.learning)
        served = None if model_free else self._summarising(agent, last)
        if preview or not plan.gone:
            asked = served.models[0].model.name if served is not None and plan.gone else ""
            return plan.told(row.revision, applied=False, by=asked)
        if served is not None:
            budget = None if served.agent.context is None else served.agent.context.budget
            wanted = summaries.Wanted(row, plan.question(budget), plan.length(budget))
            made = await summaries.ask_by_hand(self._store, self.clock, served, wanted)
            plan = plan.summarised(made.text, made.by, made.refused, made.spent)
        by, now = acting(by), micros(self.clock)
        row = await self._store.write(
            transactions.compact_session, row, now, seen=plan.seen, by=by, door=self.door, dropped=plan.dropped
        )  # fmt: skip
        self._deliveries.look()
        return plan.told(row.revision, applied=True)

    def _no_agent(self, name: str) -> NotFound:
        names = ", ".join(self._served)
        return NotFound(
            f"this runtime has no agent {name!r}: "
            + (f"its agents are {names}" if names else "give it to Runtime(agents=[...])")
        )

    def _summarising(self, agent: Agent | str | None, last: RunRow | None) -> Served | None:
        """Whose model makes a summary of a session; None where none is known, or it is not to be asked. ``last`` is the
        run of its last turn."""
        if agent is None:
            name = "" if last is None else last.agent
        else:
            name = agent.name if isinstance(agent, Agent) else checked_id("the name of an agent", agent)
            if name not in self._served:
                raise self._no_agent(name)
        served = self._served.get(name)
        policy = None if served is None else served.agent.context
        return None if policy is not None and policy.summary == "excerpt" else served

    async def delete_session(
        self, session: str, *, expected_revision: int | None = None, cancel: bool = False, by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> None:  # fmt: skip
        """See ``Session.delete``."""
        self._check_open()
        checked_revision(expected_revision)
        by = acting(by)
        if cancel:
            seen = await self._read(queries.get_session, tenant, session)
            if expected_revision is not None and expected_revision != seen.revision:
                raise RevisionConflict(session, expected_revision, seen.revision)
            for state in ("queued", "waiting", "running", "parked"):  # whoever waits for its turn does not get it
                for run in await self.runs(session=session, state=state, limit=MAX_LIMIT, tenant=tenant):
                    stopping = await self.cancel(run, by=by, reason="session deleted", tenant=tenant)
                    await self._until_rest(stopping._row)
            if expected_revision is not None:
                expected_revision = await self._only_ended(seen)
        after: int | None = 0
        while after is not None:
            after = await self._store.write(
                transactions.begin_delete_session, tenant, session, after, expected_revision=expected_revision,
                with_unknown=cancel,
            )  # fmt: skip
        now = micros(self.clock)
        await self._store.write(
            transactions.delete_session, tenant, session, now, expected_revision=expected_revision, by=by,
            door=self.door, with_unknown=cancel,
        )  # fmt: skip
        self._streams.notify(watching.of_session(tenant, session))

    async def _only_ended(self, seen: SessionRow) -> int:
        """The session's revision, if its runs have ended since it was ``seen`` and nothing else happened to it; else
        the one of then."""
        now = await self._read(queries.get_session, seen.tenant, seen.id)
        same = seen._replace(revision=now.revision, updated_at=now.updated_at, next_place=now.next_place)
        return now.revision if now == same else seen.revision

    async def _session_messages(self, tenant: str, session: str, after: int, limit: int) -> list[SessionMessage]:
        if not isinstance(after, int) or isinstance(after, bool):
            raise InvalidInput(f"after={after!r}: say the number of a message (its seq)")
        stored = await self._read(queries.page_messages, tenant, session, after, checked_limit(limit))
        return [SessionMessage(m.seq, m.run, messages.loads(m.body)) for m in stored]

    def new_session_id(self) -> str:
        return ids.session_of(ids.new_run_id(self.clock.now()))

    async def probe(self) -> None:
        """Can the store be written? Raises StoreError where it cannot."""
        self._check_open()
        await self._store.write(transactions.set_meta, PROBED_KEY, str(micros(self.clock)))

    async def blobs_of(self, run: str, *, tenant: str = DEFAULT_TENANT) -> dict[str, int | None]:
        """The blobs that a run uses, by digest, with their size in bytes. Raises NotFound."""
        return await self._read(queries.blobs_of, tenant, run)

    async def get_blob(self, digest: str, *, tenant: str = DEFAULT_TENANT) -> bytes:
        """The bytes of an attachment. Raises NotFound."""
        self._check_open()
        return await self._store.get_blob(checked_id("tenant", tenant), checked_id("digest", digest))

    async def _write(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        try:
            return await self._journaled.write(tx, *args, **kwargs)
        except asyncio.CancelledError:
            # The caller went away, but it may well be durable: the engine has to find out for itself.
            if self._engine is not None:
                self._engine.changed()
            raise

    async def _read(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        return await self._store.read(tx, *args, **kwargs)


def _is_held_up(run: RunRow) -> bool:
    """Does it go on only when what it waits for does? A cancel ends also what a tool of it waits for."""
    return run.state in ("queued", "running") and run.cancel in (0, INTERRUPTED)


def _metadata(given: Mapping[str, Any]) -> str:
    """Raises InvalidInput for what is no JSON object, or has more than 16,000 characters."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"metadata must be a mapping, got {type(given).__name__}")
    text = values.dumps(encode_given("metadata", given, values.encode_object))
    if len(text) > _METADATA_TAKEN:
        raise InvalidInput(f"metadata has {len(text)} characters, at most {_METADATA_TAKEN} are taken: shorten it")
    return text
