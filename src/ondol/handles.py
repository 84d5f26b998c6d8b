"""What does a user hold in hand? A run, an ask, an effect, a session: values with the verbs that fit them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ondol import clock, ids, lifecycle, messages, schemas, usage, values
from ondol.budget import DROPPED
from ondol.compacting import Compaction
from ondol.errors import InvalidInput, RunCancelled, RunExpired, RunFailed, RunWaiting
from ondol.events import Event
from ondol.ids import checked_person
from ondol.messages import Message
from ondol.records import AskRow, EffectRow, RunRow, SessionRow
from ondol.showing import called, card, ended_by, exact, safe, short
from ondol.transactions import Blocking, Decision
from ondol.usage import Usage

if TYPE_CHECKING:
    from ondol.runtime import Runtime

_RESULT_TAKEN = 20_000  # characters of what a person says a call returned; the model is shown all of it
ENDED = frozenset(lifecycle.SETTLED)
AT_REST = ENDED | {"waiting", "parked"}


def _when(micros: int | None) -> datetime | None:
    return None if micros is None else clock.from_micros(micros)


def this_person() -> str:
    """Who acts, where nobody is named: the user of this machine."""
    import getpass  # slow to import

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def acting(by: str | None) -> str:
    """Who acts: whoever was named, else whose process this is. Raises InvalidInput for a name that is none."""
    return checked_person("by", this_person() if by is None else by)


AskState: TypeAlias = Literal["open", "decided", "expired", "closed"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a completed run answered. ``body`` is the stored reply word for word: every reply has the same bytes.

    ``stop`` is why the model's text ended, where that is not the usual reason: ``length`` means that it was cut off.
    """

    text: str
    run_id: str
    session: str
    operation_id: str
    revision: int
    body: str = field(repr=False)
    replayed: bool = False
    stop: str = ""

    def _repr_html_(self) -> str:
        replayed = "its stored answer, the operation was completed before" if self.replayed else None
        return card(f"Answer of run {self.run_id}", [
            ("text", self.text), ("cut off", self.stop or None),
            ("session", f"{self.session} at revision {self.revision}"), ("operation", self.operation_id),
            ("replayed", replayed),
        ])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The first unfinished run of a session, while others queue behind it. ``asks`` are what it is waiting for."""

    run: str
    state: str
    asks: tuple[Ask, ...]


def ahead_of(runtime: Runtime, blocking: Blocking | None) -> Ahead | None:
    if blocking is None:
        return None
    return Ahead(run=blocking.run, state=blocking.state, asks=tuple(ask_of(runtime, a) for a in blocking.asks))


class Run:
    """A run as it was when it was last read. ``id``, ``session``, ``operation_id`` never change.

    ``created`` is True when ``start`` made it, ``replayed`` when it found the operation completed before.
    ``waits_behind`` is set while it is queued and its session has another turn to finish, or a person to ask, first.
    """

    def __init__(
        self, runtime: Runtime, row: RunRow, *, replayed: bool = False, created: bool = False,
        waits_behind: Ahead | None = None,
    ) -> None:  # fmt: skip
        self._rt, self._row, self.replayed, self.waits_behind = runtime, row, replayed, waits_behind
        self.created = created

    def __repr__(self) -> str:
        behind = f" behind {self.waits_behind.run} ({self.waits_behind.state})" if self.waits_behind else ""
        return f"<Run {self.id} {self.status}{behind} session={self.session!r} operation={self.operation_id!r}>"

    def _repr_html_(self) -> str:
        used = self.usage
        return card(f"Run {self.id}", [
            ("state", "cancelling" if self.cancelling else self.status), ("agent", self.agent),
            ("session", self.session), ("operation", self.operation_id), ("user", self.user),
            ("accepted", clock.shown(self.accepted_at, self.time_zone)),
            ("ended", clock.shown(self.ended_at, self.time_zone) if self.ended_at else None),
            ("model", usage.told(usage.total(used)) if used else "not asked yet"),
            ("error", ended_by(self.error)), ("can go on", "send the same operation again" if self.retryable else None),
        ])  # fmt: skip

    @property
    def id(self) -> str:
        """The run's id."""
        return self._row.id

    @property
    def session(self) -> str:
        """The id of its session."""
        return self._row.session

    @property
    def operation_id(self) -> str:
        """The caller's name for it."""
        return self._row.operation_id

    @property
    def agent(self) -> str:
        """The name of its agent."""
        return self._row.agent

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self._row.tenant

    @property
    def user(self) -> str | None:
        """Who asked for it."""
        return self._row.user_id or None

    @property
    def door(self) -> str:
        """The way it came in."""
        return self._row.door

    @property
    def metadata(self) -> dict[str, Any]:
        """What its caller noted with it."""
        return values.decode_object(values.loads(self._row.metadata)) if self._row.metadata else {}

    @property
    def trigger(self) -> str:
        """``chat``, ``workflow``, ``schedule``, ``webhook`` or ``api``."""
        return self._row.trigger

    @property
    def replay_of(self) -> str | None:
        """The id of the run that this one replays, or is a fork of."""
        return self._row.replay_of

    @property
    def forked_at(self) -> int | None:
        """A fork: the first step of its own; those before it are those of the run that ``replay_of`` names."""
        return self._row.forked_at

    @property
    def time_zone(self) -> str | None:
        """The zone whose clock the model is shown."""
        return self._row.zone

    @property
    def status(self) -> str:
        """``queued`` ``running`` ``waiting`` ``parked`` ``completed`` ``failed`` ``cancelled`` ``expired``; or
        ``joined``: part of the run ``host``."""
        return self._row.state

    @property
    def host(self) -> str | None:
        """The run that it is part of (``joined``), or wants to join (``queued``). A message that answered a question is
        part of the run that asked."""
        return self._row.host

    @property
    def retryable(self) -> bool:
        """It failed, and the same operation id goes on where it stopped."""
        return bool(self._row.retryable)

    @property
    def cancelling(self) -> bool:
        """A cancel was accepted; its holder is still stopping what is in flight."""
        return self._row.state == "running" and bool(self._row.cancel)

    @property
    def accepted_at(self) -> datetime:
        return clock.from_micros(self._row.accepted_at)

    @property
    def ended_at(self) -> datetime | None:
        return _when(self._row.ended_at)

    @property
    def error(self) -> dict[str, Any] | None:
        """``code`` and ``message`` of what ended or parked it."""
        return values.loads(self._row.error) if self._row.error else None

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Input and output tokens so far; None where no provider said."""
        return self._row.tokens_in, self._row.tokens_out

    @property
    def usage(self) -> dict[str, Usage]:
        """What its model calls took so far, by model, also where they failed or were cancelled."""
        return usage.of_run(self._row.usage, self._row.tokens_in, self._row.tokens_out)

    async def refresh(self) -> Run:
        """Read it again."""
        self._row = await self._rt._run_row(self.tenant, self.id)
        self.waits_behind = await self._rt._ahead(self._row)
        return self

    async def result(self, *, through_asks: bool = False) -> RunResult:
        """Wait until the run comes to rest, and return its answer. With ``through_asks``, until it has ended. One that
        joined another answers as that one does.

        Raises:
            RunWaiting: it waits for a person (or is parked); ``asks`` names what is open.
            RunFailed, RunCancelled, RunExpired: it ended. Each message names the next step.
            OperationExpired: it was completed, and its session was deleted.
        """
        at_rest = ENDED if through_asks else AT_REST
        self._row = row = await self._rt._until_rest(self._row, at_rest)
        if row.state == "joined" and row.host is not None:  # it answers as the run that it joined
            row = await self._rt._until_rest(await self._rt._run_row(self.tenant, row.host), at_rest)
        return await self._outcome(row)

    async def _outcome(self, row: RunRow) -> RunResult:
        error = values.loads(row.error) if row.error else {}
        why = ": ".join(p for p in (error.get("code", ""), error.get("message", "")) if p) or "its session was deleted"
        match row.state:
            case "completed":
                reply = row.kept_reply()
                body = values.loads(reply)
                return RunResult(
                    text=values.decode(body.get("text", "")), run_id=row.id, session=row.session,
                    operation_id=row.operation_id, revision=body.get("revision", 0), body=reply,
                    replayed=self.replayed, stop=body.get("stop", ""),
                )  # fmt: skip
            case "waiting" | "parked":
                asks = await self._rt.asks(run=row.id, limit=ids.MAX_LIMIT, tenant=row.tenant)
                open_asks = [a.id for a in asks]
                first = open_asks[0] if open_asks else "ID"
                message = (
                    f"run {row.id} is {row.state} for a person: decide {', '.join(open_asks)} (ondol asks show {first})"
                )
                raise RunWaiting(message, run=row.id, asks=open_asks)
            case "cancelled":
                how = f"interrupted ({error['message']})" if error.get("code") == "interrupted" else "cancelled"
                message = f"run {row.id} was {how}: 'ondol runs show {row.id}' lists what it had done"
                raise RunCancelled(message, run=row.id, error=error)
            case "expired":
                message = f"run {row.id} expired ({why}): start a new operation, and answer in time"
                raise RunExpired(message, run=row.id, error=error)
            case _:
                again = f"send operation {self.operation_id!r} again to go on" if row.retryable else "it will not go on"
                message = f"run {row.id} failed ({why}): {again}"
                raise RunFailed(message, run=row.id, error=error, retryable=bool(row.retryable))

    async def events(self, after: str | None = None, *, through_asks: bool = False) -> AsyncIterator[Event]:
        """Everything that happened and happens, in order, until the run comes to rest (with ``through_asks``, until
        it has ended). Watching never cancels it.

        ``after`` is the id of the last event seen: what follows it is given, nothing twice.
        """
        async for event in self._rt._events(self.tenant, self.id, after, ENDED if through_asks else AT_REST):
            yield event

    async def asks(self, state: str | None = "open") -> list[Ask]:
        """All that the run asks, the oldest first; with ``state=None`` also what was decided."""
        return await self._rt.asks(run=self.id, state=state, limit=ids.MAX_LIMIT, tenant=self.tenant)

    async def effects(self) -> list[Effect]:
        """Every call that the run planned, in call order."""
        return await self._rt.effects(run=self.id, tenant=self.tenant)

    async def messages(self) -> list[Message]:
        """The run's own messages, in order, committed or not."""
        stored = await self._rt._run_messages(self.tenant, self.id)
        return [messages.loads(stored[o]) for o in sorted(stored) if o >= 0]

    async def state(self) -> dict[str, Any]:
        """The run's scratchpad: where it stands, its messages and effects, as JSON values."""
        return await self._rt._scratchpad(self.tenant, self.id)

    async def lineage(self) -> Lineage:
        """What it replays or is a fork of, and the replays and forks of it."""
        return await self._rt._lineage(self._row)

    async def cancel(self, *, by: str | None = None, reason: str = "") -> Run:
        """Ask it to stop. Idempotent; on a run that nobody holds it takes effect at once."""
        return await self._rt.cancel(self.id, by=by, reason=reason, tenant=self.tenant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a run comes from, and what was made of it. ``origin`` is the run that it replays, or is a fork of."""

    origin: Run | None
    replays: list[Run]
    forks: list[Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question to a person, decided once. ``state``: ``open`` ``decided`` ``expired`` ``closed``.

    A free question (``kind`` ``question``) has the JSON ``schema`` of its answer, and may have a ``default`` for when
    it expires; ``value`` is its answer, once there is one.
    """

    id: str
    kind: str
    state: str
    question: str
    run: str
    session: str
    user: str | None
    tool: str | None
    arguments: Any
    arguments_hash: str
    effect: str | None
    opened_at: datetime
    expires_at: datetime | None
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None
    door: str | None
    schema: dict[str, Any] | None
    default: Any
    has_default: bool
    value: Any
    _rt: Runtime = field(repr=False, compare=False)
    _tenant: str = field(repr=False)

    def __repr__(self) -> str:
        return f"<Ask {self.id} {self.kind} {self.state}: {short(self._about)}>"

    def _repr_html_(self) -> str:
        decided = f"{self.decision} by {self.decided_by} through {self.door}" if self.decision else None
        return card(f"Ask {self.id}", [
            ("kind", self.kind), ("state", self.state), ("question", self.question),
            ("call", self._about if self.tool else None), ("run", self.run), ("session", self.session),
            ("opened", clock.shown(self.opened_at, None)),
            ("expires", clock.shown(self.expires_at, None) if self.expires_at else None), ("decision", decided),
        ])  # fmt: skip

    @property
    def _about(self) -> str:
        return called(self.tool, self.arguments) if self.tool else safe(self.question)

    async def approve(
        self, *, by: str | None = None, arguments: Mapping[str, Any] | None = None, reason: str = ""
    ) -> Ask:  # fmt: skip
        """Let the call run with exactly these arguments, or with ``arguments`` in their place, in full."""
        if arguments is not None and not isinstance(arguments, Mapping):
            raise InvalidInput(f"arguments must be a mapping in full, got {type(arguments).__name__}")
        replaced = None if arguments is None else dict(arguments)
        return await self._rt.decide(self, Decision(kind="approve", arguments=replaced, reason=reason), by=by)

    async def deny(self, *, by: str | None = None, reason: str = "") -> Ask:
        """Refuse the call: the model is told so, and the run goes on."""
        return await self._rt.decide(self, Decision(kind="deny", reason=reason), by=by)

    async def happened(self, result: Any = None, evidence: str = "", *, by: str | None = None) -> Ask:
        """The unknown effect did happen; ``result`` is what the model is told."""
        encoded = None if result is None else encode_given("result", result)
        if (length := len(values.plain_text(encoded))) > _RESULT_TAKEN:
            raise InvalidInput(
                f"the result given has {length} characters, at most {_RESULT_TAKEN} are taken: shorten it"
            )
        return await self._rt.decide(self, Decision(kind="happened", result=encoded, evidence=evidence), by=by)

    async def not_happened(self, evidence: str = "", *, by: str | None = None) -> Ask:
        """The unknown effect did not happen: the next attempt runs, with the same key."""
        return await self._rt.decide(self, Decision(kind="not_happened", evidence=evidence), by=by)

    async def give_up(self, reason: str = "", *, by: str | None = None) -> Ask:
        """Nobody will find out: the run ends ``failed(unknown_effect)``."""
        return await self._rt.decide(self, Decision(kind="give_up", reason=reason), by=by)

    async def answer(self, value: Any, *, by: str | None = None, reason: str = "") -> Ask:
        """Answer a question with a value that fits its schema; a parked run with ``"resume"`` or ``"fail"``.

        What becomes of a request that is too large: ``"compact"`` as the preview in ``arguments`` says, ``"drop"`` what
        may go without a summary (``{"drop": ["calls"]}`` for less than all), ``"raise"`` the budget of this run to what
        is needed (``{"raise": 80_000}`` to more), or ``"fail"``.

        Raises:
            InvalidInput: it does not fit. The message says why, and nothing was decided.
        """
        if self.kind == "question":
            decision = Decision(kind="answer", value=schemas.recorded(schemas.in_json(value)), reason=reason)
        elif self.kind == "compaction":
            decision = Decision(**_overflow_answer(self.arguments, value), reason=reason)
        else:
            decision = Decision(kind=value, reason=reason)
        return await self._rt.decide(self, decision, by=by)


def _overflow_answer(shown: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """The fields of the decision. A choice by its name alone is the one that the ask offers."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, chosen),) = value.items()
        return {"kind": kind, "value": values.encode(chosen)}
    offered = {"drop": list(DROPPED), "raise": shown.get("needed")}
    return {"kind": value, "value": offered.get(value) if isinstance(value, str) else None}


def encode_given(what: str, given: Any, encode: Callable[[Any, list[str]], Any] = values.encode) -> Any:
    """What a caller gives, encoded. Raises InvalidInput for a value that has no JSON form."""
    lost: list[str] = []
    encoded = encode(given, lost)
    if lost:
        raise InvalidInput(f"the {what} given holds what has no JSON form ({', '.join(lost)}): give its data instead")
    return encoded


def ask_of(runtime: Runtime, row: AskRow) -> Ask:
    stored = row.checked_decision()
    decision = None if stored is None else Decision.loads(stored)
    by_default = row.checked_default()
    default = None if by_default is None else values.decode(values.loads(by_default))
    value = default if row.state == "expired" else None if decision is None else values.decode(decision.value)
    return Ask(
        id=row.id, kind=row.kind, state=row.state, question=row.question, run=row.run, session=row.session,
        user=row.user_id or None, tool=row.tool, arguments=values.decode(values.loads(row.arguments)),
        arguments_hash=row.hash, effect=row.effect, opened_at=clock.from_micros(row.opened_at),
        expires_at=_when(row.expires_at), decision=None if decision is None else decision.kind,
        decided_by=row.decided_by, decided_at=_when(row.decided_at), door=row.door,
        schema=None if row.schema is None else values.loads(row.schema), default=default,
        has_default=by_default is not None, value=value, _rt=runtime, _tenant=row.tenant,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One tool call in the ledger. ``effect`` is its class, ``key`` what downstream sees, ``attempt`` counts starts.

    ``warning`` says what of its result, or of the session state that it set, could not be recorded as it was. A result
    that was too long to be shown is kept as the ``blob`` of that digest (``Runtime.get_blob``), ``size`` in bytes.
    ``parent`` is the id of the tool of steps that made it, if it is not a call of the model.
    ``reuses`` names the effect of another run whose recorded outcome it has; the call itself was not made.
    """

    id: str
    run: str
    session: str
    tool: str
    effect: str
    state: str
    key: str
    arguments: Any
    attempt: int
    decision: str | None
    reason: str | None
    warning: str | None
    blob: str | None
    size: int | None
    evidence: str | None
    started_at: datetime | None
    ended_at: datetime | None
    deadline: datetime | None
    parent: str | None = None
    reuses: str | None = None

    def __repr__(self) -> str:
        return f"<Effect {self.id} {self.effect} {self.state}: {short(called(self.tool, self.arguments))}>"

    def _repr_html_(self) -> str:
        return card(f"Effect {self.id}", [
            ("call", called(self.tool, self.arguments)), ("class", self.effect), ("state", self.state),
            ("attempt", self.attempt), ("why", self.reason), ("warning", self.warning), ("came late", self.evidence),
            ("key", self.key), ("run", self.run), ("session", self.session),
            ("started", clock.shown(self.started_at, None) if self.started_at else None),
            ("ended", clock.shown(self.ended_at, None) if self.ended_at else None),
        ])  # fmt: skip


def effect_of(row: EffectRow) -> Effect:
    return Effect(
        id=row.id, run=row.run, session=row.session, tool=row.tool, effect=row.effect, state=row.state, key=row.key,
        arguments=values.decode(values.loads(row.arguments)), attempt=row.attempt, decision=row.decision,
        reason=row.reason, warning=row.warning, blob=row.blob, size=row.size, evidence=row.evidence,
        started_at=_when(row.started_at), ended_at=_when(row.ended_at), deadline=_when(row.deadline),
        parent=None if row.parent is None else ids.effect_id(row.run, row.parent), reuses=row.reuses,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pin:
    """A text that is pinned in a session, and who did that."""

    id: str
    text: str
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """A committed message. ``seq`` orders the session; it may have gaps."""

    seq: int
    run: str
    message: Message


class Session:
    """A session as it was when it was last read."""

    def __init__(self, runtime: Runtime, row: SessionRow) -> None:
        self._rt, self._row = runtime, row

    def __repr__(self) -> str:
        return f"<Session {self.id!r} revision={self.revision}>"

    def _repr_html_(self) -> str:
        return card(f"Session {self.id}", [
            ("revision", self.revision), ("title", self.title), ("zone", self.time_zone),
            ("state", exact(self.state) if self.state else None), ("changed", clock.shown(self.updated_at, None)),
        ])  # fmt: skip

    @property
    def id(self) -> str:
        return self._row.id

    @property
    def tenant(self) -> str:
        return self._row.tenant

    @property
    def revision(self) -> int:
        return self._row.revision

    @property
    def title(self) -> str | None:
        return self._row.title

    @property
    def parent(self) -> str | None:
        """The session whose messages this one goes on from: it was made by a fork, or by a replay."""
        return self._row.parent

    @property
    def orphaned(self) -> bool:
        """The session that it went on from was erased: what was said there is missing here too."""
        return self._row.is_orphan

    @property
    def time_zone(self) -> str | None:
        """Named by the last request that named one."""
        return self._row.zone

    @property
    def state(self) -> dict[str, Any]:
        """The session's state, as its last committed turn left it."""
        return values.decode_object(values.loads(self._row.checked_state()))

    @property
    def updated_at(self) -> datetime:
        return clock.from_micros(self._row.updated_at)

    async def refresh(self) -> Session:
        self._row = (await self._rt.get_session(self.id, tenant=self.tenant))._row
        return self

    async def messages(self, after: int = -1, limit: int = 1000) -> list[SessionMessage]:
        """The committed messages with a sequence above ``after``, in order."""
        return await self._rt._session_messages(self.tenant, self.id, after, limit)

    async def runs(self, limit: int = 100) -> list[Run]:
        return await self._rt.runs(session=self.id, tenant=self.tenant, limit=limit)

    async def set_state(self, state: Mapping[str, Any], *, expected_revision: int | None = None) -> Session:
        """Replace the session's state. Raises SessionBusy while a run is unfinished, RevisionConflict when stale."""
        return await self._rt.write_session(
            self.id, state=state, expected_revision=expected_revision, tenant=self.tenant
        )

    async def set_title(self, title: str, *, expected_revision: int | None = None) -> Session:
        return await self._rt.write_session(
            self.id, title=title, expected_revision=expected_revision, tenant=self.tenant
        )

    @property
    def user(self) -> str | None:
        """Whose it is: the user of the request that made it."""
        return self._row.user_id

    @property
    def pins(self) -> list[Pin]:
        """What every request to its models holds, word for word."""
        return [Pin(p.id, p.text, p.by, clock.from_micros(p.at)) for p in self._row.pinned.pinned]

    async def pin(self, text: str, *, by: str | None = None, expected_revision: int | None = None) -> Session:
        """See ``Runtime.pin``."""
        return await self._rt.pin(self.id, text, by=by, expected_revision=expected_revision, tenant=self.tenant)

    async def unpin(self, pin: str, *, by: str | None = None, expected_revision: int | None = None) -> Session:
        """See ``Runtime.unpin``."""
        return await self._rt.unpin(self.id, pin, by=by, expected_revision=expected_revision, tenant=self.tenant)

    async def compact(
        self, *, keep: int = 3, preview: bool = False, model_free: bool = False, by: str | None = None,
        expected_revision: int | None = None,
    ) -> Compaction:  # fmt: skip
        """See ``Runtime.compact_session``."""
        return await self._rt.compact_session(
            self.id, keep=keep, preview=preview, model_free=model_free, by=by, expected_revision=expected_revision,
            tenant=self.tenant,
        )  # fmt: skip

    async def delete(
        self, *, expected_revision: int | None = None, cancel: bool = False, by: str | None = None
    ) -> None:
        """Erase what was said and done; operation ids and the revision stay as tombstones.

        Raises:
            SessionBusy: a run is unfinished or parked, or an effect is unknown. With ``cancel`` its runs are
                cancelled first, and what is unknown is let go.
        """
        await self._rt.delete_session(
            self.id, expected_revision=expected_revision, cancel=cancel, by=by, tenant=self.tenant
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something a person did."""

    at: datetime
    by: str
    door: str
    act: str
    subject: str
    note: str
