"""What may a caller do, and what comes of it? The rules that ``/v1`` and the console share, each once.

Everything goes through the same ``Runtime`` as a Python program's calls, and raises the same errors. What is added
here is what only a door to the network has: whose things a caller sees, and who may approve.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import date
from typing import Any, TypeVar

from ondol import access, ids, queries, values, watching
from ondol.agent import Agent
from ondol.attaching import File
from ondol.compacting import Compaction
from ondol.deliveries import OutboxMessage
from ondol.errors import (
    CannotGoOn,
    Forbidden,
    InProgress,
    InvalidInput,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    Unauthenticated,
)
from ondol.events import Event
from ondol.handles import AT_REST, ENDED, Ask, Effect, Run, Session, SessionMessage
from ondol.http.callers import Caller
from ondol.http.drain import Drain
from ondol.replay import By, ReplayVerdict
from ondol.runtime import ForkEffects, ReplayClock, Runtime, Trigger
from ondol.seeing import SeenContext
from ondol.spending import UsageBy, UsageLine
from ondol.transactions import IfBusy

T = TypeVar("T")

HEARTBEAT = 15.0  # seconds without an event after which a stream shows that it is alive
LONGEST_WAIT = 60.0  # seconds that a request may wait for an end
_LOOKED_AT = 2000  # runs that one search looks at, at most
_AT_ONCE = 50  # runs whose effects one search looks at, before it looks how many it has


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of a list. ``next`` is the cursor of the page behind it; None: this was the last."""

    items: list[Any]
    next: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a person says to an ask. ``kind``: approve (with other ``arguments``, in full, if given), deny · answer
    (with ``value``; ``...``: nothing was given) · happened (with ``result``), not_happened, give_up · resume, fail ·
    compact, drop, raise (both with a ``value``, if given). ``by`` is who says it."""

    kind: str
    arguments: Mapping[str, Any] | None = None
    value: Any = ...
    result: Any = None
    evidence: str = ""
    reason: str = ""
    by: str | None = None


class Service:
    """Every method takes the ``Caller`` first. What is not theirs is not found."""

    def __init__(self, runtime: Runtime, drain: Drain, *, heartbeat: float = HEARTBEAT) -> None:
        self.rt, self.drain, self.heartbeat = runtime, drain, heartbeat

    # --- runs ---------------------------------------------------------------------------------------------------

    async def start(
        self, caller: Caller, agent: str, input: str, *, session: str | None = None, user: str | None = None,
        operation_id: str | None = None, if_busy: IfBusy = "queue", expected_revision: int | None = None,
        attachments: Sequence[File] = (), time_zone: str | None = None, metadata: Mapping[str, Any] | None = None,
        trigger: Trigger = "api",
    ) -> Run:  # fmt: skip
        caller.needs("run")
        return await self.rt.start(
            agent, input, session=session, user=caller.user_for(user), operation_id=operation_id, if_busy=if_busy,
            expected_revision=expected_revision, attachments=attachments, time_zone=time_zone,
            metadata=_decoded(metadata), trigger=trigger, own_only=caller.user is not None, tenant=caller.tenant,
        )  # fmt: skip

    async def run(self, caller: Caller, run: str) -> Run:
        """Raises NotFound."""
        caller.needs("read")
        return await self._run(caller, run)

    async def _run(self, caller: Caller, run: str) -> Run:
        found = await self.rt.get_run(run, tenant=caller.tenant)
        caller.only_sees(found.user, "run", run, "ondol runs")
        return found

    async def runs(
        self, caller: Caller, *, session: str | None = None, user: str | None = None, state: str | None = None,
        agent: str | None = None, text: str | None = None, before: str | None = None, limit: int = 50,
    ) -> Page:  # fmt: skip
        """The newest first. ``text`` is looked for in what was asked, ids, operation, session, agent, user, error."""
        caller.needs("read")
        if before is not None and caller.user is not None:
            await self._run(caller, before)
        user, cursor, found, looked_at = caller.user_for(user), before, list[Run](), 0
        wanted = None if text is None else text.casefold()
        size = limit + 1 if text is None and agent is None else 200
        while True:
            rows = await self.rt.runs(
                session=session, user=user, state=state, before=cursor, limit=size, tenant=caller.tenant
            )
            asked = await self._asked(caller.tenant, rows) if wanted is not None else {}
            for run in rows:
                if (agent is None or run.agent == agent) and (wanted is None or wanted in _words(run, asked)):
                    found.append(run)
                    if len(found) > limit:
                        return Page(items=found[:limit], next=found[limit - 1].id)
            looked_at += len(rows)
            if len(rows) < size:
                return Page(items=found, next=None)
            cursor = rows[-1].id
            if looked_at >= _LOOKED_AT:  # what is left is for the next request
                return Page(items=found, next=cursor)

    async def _asked(self, tenant: str, runs: list[Run]) -> dict[str, str]:
        return await self.rt._read(queries.read_inputs, tenant, [run.id for run in runs]) if runs else {}

    async def events(
        self, caller: Caller, run: str, after: str | None = None, *, through_asks: bool = False
    ) -> AsyncIterator[Event | None] | None:
        """What happened and happens in a run until it comes to rest (with ``through_asks``, until it has ended); None
        in it where nothing did for a while. None: it is at rest, and all was told. Watching never cancels.

        Raises NotFound, WrongCursor, CursorExpired at once.
        """
        found = await self.run(caller, run)
        last = await watching.check_cursor(self.rt._read, found.tenant, run, after)
        at_rest = ENDED if through_asks else AT_REST
        if found.status in at_rest and after == f"{run}/{last}":
            return None
        return self._while_let_in(caller, self.rt._watch(found.tenant, run, after, at_rest, self.heartbeat))

    async def recorded(self, caller: Caller, run: str) -> list[Event]:
        """The events that are stored now."""
        found = await self.run(caller, run)
        return await watching.recorded(self.rt._read, found.tenant, run)

    def watch(self, caller: Caller, run: Run) -> AsyncIterator[Event | None]:
        """As ``events``, of a run that was just started or found, from its first event. It hears of it at once."""
        watch = self.rt._streams.watch(run.id)
        events = self.rt._watch(run.tenant, run.id, None, AT_REST, self.heartbeat, watch)
        weakref.finalize(events, self.rt._streams.unwatch, run.id, watch).atexit = False  # it may never be begun
        return self._while_let_in(caller, events)

    async def _while_let_in(self, caller: Caller, events: AsyncIterator[T]) -> AsyncIterator[T]:
        """The events, for as long as the caller's token counts: that is looked at once a heartbeat.

        Raises Unauthenticated.
        """
        looked = time.monotonic()
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if caller.token is not None and (now := time.monotonic()) - looked >= self.heartbeat:
                    looked = now
                    if not await access.counts(self.rt, caller.token, tenant=caller.tenant):
                        raise Unauthenticated("the token was revoked, or has expired: 'ondol tokens' lists them")
                yield event

    async def wait(self, run: Run, seconds: float) -> Run:
        """The run that answers for this one, as it is when it comes to rest or after so many seconds, or when this
        process is about to stop."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with self.drain.waiting(min(seconds, LONGEST_WAIT)):
                    await self.rt._until_rest((await self.answering(run))._row)
                    await self.rt._until_rest((await self.answering(run))._row)  # it may have joined another meanwhile
        return await self.answering(run)

    async def answering(self, run: Run) -> Run:
        """The run as it is now; of one that joined another, that one."""
        await run.refresh()
        if run.status == "joined" and run.host is not None:
            return await self.rt.get_run(run.host, tenant=run.tenant)
        return run

    def attached(self, run: Run, wait: float | None) -> None:
        """A request for an operation that was there already. Raises InProgress if it must not wait for its end."""
        if wait == 0 and not run.created and run.status not in ENDED:
            raise InProgress(run.operation_id, run.id, run.status)

    async def context(self, caller: Caller, run: str, step: int | None) -> SeenContext:
        found = await self.run(caller, run)
        return await self.rt.context(run, step, tenant=found.tenant)

    async def cancel(self, caller: Caller, run: str, *, by: str | None = None, reason: str = "") -> Run:
        caller.needs("run")
        found = await self._run(caller, run)
        return await self.rt.cancel(found, by=caller.acts_as(by), reason=reason)

    async def resume(self, caller: Caller, run: str) -> Run:
        """Go on with a run that failed for now. Raises CannotGoOn for one that has ended for good, or is parked."""
        caller.needs("run")
        found = await self._run(caller, run)
        resumed = await self.rt.resume(found)
        if resumed.status == "parked":
            open_asks = [a.id for a in await resumed.asks()]
            raise CannotGoOn(f"run {run} is parked: decide {', '.join(open_asks)} with 'resume' or 'fail'")
        if resumed.status in ("failed", "cancelled", "expired"):
            raise CannotGoOn(f"run {run} is {resumed.status} for good: start a new operation")
        return resumed

    async def verdict(self, caller: Caller, run: str) -> ReplayVerdict:
        found = await self.run(caller, run)
        return await self.rt.replay(found, dry_run=True)

    async def replay(
        self, caller: Caller, run: str, *, by: str | None = None, why: str | None = None,
        operation_id: str | None = None, clock: ReplayClock = "recorded", time_zone: str | None = None,
    ) -> Run:  # fmt: skip
        """With ``why`` the replay is forced. Raises ReplayUnsafe."""
        caller.needs("run")
        found = await self._run(caller, run)
        force = None if why is None else By(caller.acts_as(by), why)
        return await self.rt.replay(found, force=force, operation_id=operation_id, clock=clock, time_zone=time_zone)

    async def fork(
        self, caller: Caller, run: str, *, at_step: int, effects: ForkEffects = "reuse", operation_id: str | None = None
    ) -> Run:
        caller.needs("run")
        found = await self._run(caller, run)
        return await self.rt.fork(found, at_step=at_step, effects=effects, operation_id=operation_id)

    async def export(self, caller: Caller, run: str) -> str:
        found = await self.run(caller, run)
        return await self.rt.export_run(run, tenant=found.tenant)

    async def blob(self, caller: Caller, run: str, digest: str) -> bytes:
        """An attachment, or a long result, of a run. Raises NotFound, also for one that the run does not use."""
        found = await self.run(caller, run)
        if digest not in await self.rt.blobs_of(run, tenant=found.tenant):
            raise NotFound(f"run {run} has no blob {digest!r}: 'ondol effects show ID' names those of results")
        return await self.rt.get_blob(digest, tenant=found.tenant)

    # --- sessions -----------------------------------------------------------------------------------------------

    async def session(self, caller: Caller, session: str) -> Session:
        caller.needs("read")
        return await self._session(caller, session)

    async def _session(self, caller: Caller, session: str) -> Session:
        found = await self.rt.get_session(session, tenant=caller.tenant)
        caller.only_sees(found.user, "session", session, "ondol sessions")
        return found

    async def sessions(
        self, caller: Caller, *, user: str | None = None, after: str | None = None, limit: int = 50
    ) -> Page:
        caller.needs("read")
        rows = await self.rt.sessions(user=caller.user_for(user), after=after, limit=limit + 1, tenant=caller.tenant)
        return page_of(rows, limit)

    async def make_session(
        self, caller: Caller, session: str | None, *, state: Mapping[str, Any] | None = None, title: str | None = None,
        time_zone: str | None = None, user: str | None = None,
    ) -> Session:  # fmt: skip
        """Raises RevisionConflict, SessionBusy for one that exists."""
        caller.needs("run")
        return await self.rt.write_session(
            session or self.rt.new_session_id(), state=_decoded(state), title=title, time_zone=time_zone,
            user=caller.user_for(user), own_only=caller.user is not None, expected_revision=0, tenant=caller.tenant,
        )  # fmt: skip

    async def change_session(
        self, caller: Caller, session: str, *, state: Mapping[str, Any] | None = None, title: str | None = None,
        time_zone: str | None = None, expected_revision: int | None = None,
    ) -> Session:  # fmt: skip
        """Raises NotFound, RevisionConflict, SessionBusy."""
        caller.needs("run")
        found = await self._session(caller, session)
        return await self.rt.write_session(
            found.id, state=_decoded(state), title=title, time_zone=time_zone, own_only=caller.user is not None,
            user=caller.user, expected_revision=expected_revision, tenant=caller.tenant,
        )  # fmt: skip

    async def delete_session(
        self, caller: Caller, session: str, *, expected_revision: int | None, cancel: bool = False,
        by: str | None = None,
    ) -> None:  # fmt: skip
        caller.needs("run")
        found = await self._session(caller, session)
        await self.rt.delete_session(
            found.id, expected_revision=expected_revision, cancel=cancel, by=caller.acts_as(by), tenant=found.tenant
        )

    async def session_events(
        self, caller: Caller, session: str, after: str | None = None
    ) -> AsyncIterator[watching.InSession | None]:
        """What happened and happens in all runs of a session. Raises NotFound, WrongCursor, CursorExpired at once."""
        found = await self.session(caller, session)
        place = await watching.session_place(self.rt._read, found.tenant, found.id, after)
        return self._while_let_in(caller, self.rt._watch_session(found.tenant, found.id, place, self.heartbeat))

    async def compact_session(
        self, caller: Caller, session: str, *, keep: int = 3, preview: bool = False, model_free: bool = False,
        agent: str | None = None, by: str | None = None, expected_revision: int | None = None,
    ) -> Compaction:  # fmt: skip
        """Raises NotFound, RevisionConflict, SessionBusy. A preview changes nothing, and needs no more than to read."""
        caller.needs("read" if preview else "run")
        found = await self._session(caller, session)
        return await self.rt.compact_session(
            found.id, keep=keep, preview=preview, model_free=model_free, agent=agent, by=caller.acts_as(by),
            expected_revision=expected_revision, tenant=found.tenant,
        )  # fmt: skip

    async def pin(
        self, caller: Caller, session: str, text: str, *, by: str | None = None, expected_revision: int | None = None
    ) -> Session:
        """Raises NotFound, RevisionConflict, SessionBusy, InvalidInput."""
        caller.needs("run")
        found = await self._session(caller, session)
        return await found.pin(text, by=caller.acts_as(by), expected_revision=expected_revision)

    async def unpin(
        self, caller: Caller, session: str, pin: str, *, by: str | None = None, expected_revision: int | None = None
    ) -> Session:
        """Raises NotFound, RevisionConflict, SessionBusy."""
        caller.needs("run")
        found = await self._session(caller, session)
        return await found.unpin(pin, by=caller.acts_as(by), expected_revision=expected_revision)

    async def messages(self, caller: Caller, session: str, *, after: int = -1, limit: int = 50) -> Page:
        found = await self.session(caller, session)
        rows: list[SessionMessage] = await found.messages(after, limit + 1)
        return Page(items=rows[:limit], next=str(rows[limit - 1].seq) if len(rows) > limit else None)

    # --- asks and effects ---------------------------------------------------------------------------------------

    async def ask(self, caller: Caller, ask: str) -> Ask:
        caller.needs("read")
        return await self._ask(caller, ask)

    async def _ask(self, caller: Caller, ask: str) -> Ask:
        found = await self.rt.get_ask(ask, tenant=caller.tenant)
        caller.only_sees(found.user, "ask", ask, "ondol asks")
        return found

    async def asks(
        self, caller: Caller, *, run: str | None = None, session: str | None = None, user: str | None = None,
        state: str | None = "open", after: str | None = None, newest_first: bool = False, limit: int = 50,
    ) -> Page:  # fmt: skip
        """The oldest first, unless it is said otherwise."""
        caller.needs("read")
        if after is not None and caller.user is not None:
            await self._ask(caller, after)
        rows = await self.rt.asks(
            run=run, session=session, user=caller.user_for(user), state=state, after=after, newest_first=newest_first,
            limit=limit + 1, tenant=caller.tenant,
        )  # fmt: skip
        return page_of(rows, limit)

    async def waiting(self, caller: Caller, limit: int) -> Mapping[str, int]:
        """How many asks of each kind are open, of at most ``limit``."""
        caller.needs("read")
        return await self.rt._read(queries.count_open_asks, caller.tenant, caller.user, limit)

    async def decide(self, caller: Caller, ask: str, word: Word, *, seen: str | None) -> Ask:
        """Decide an ask, once. ``seen`` is the hash of the arguments that the person saw.

        Raises:
            PreconditionRequired, PreconditionFailed: nothing was said about what was seen, or it is not what is asked.
            Forbidden: it would approve what the same token started. AlreadyDecided, AskClosed, InvalidInput
        """
        caller.needs("answer")
        found = await self._ask(caller, ask)
        if seen is None:
            raise PreconditionRequired(
                f"say what you saw: send the arguments_hash of ask {ask} as If-Match ('ondol asks show {ask}')"
            )
        if seen != found.arguments_hash:
            raise PreconditionFailed(f"ask {ask} is about other arguments than those that you saw: look at it again")
        await self._check_not_own(caller, found, word)
        return await _say(found, word, caller.acts_as(word.by))

    async def _check_not_own(self, caller: Caller, ask: Ask, word: Word) -> None:
        """Whoever started a run, or said something that joined it, is not the one who approves what it does."""
        if caller.token is None or caller.is_admin or word.kind not in ("approve", "happened", "not_happened"):
            return
        if any(caller.came_by(door) for door in await self.rt._read(queries.doors, caller.tenant, ask.run)):
            raise Forbidden(
                f"run {ask.run} was started with this token, which cannot approve what it does: use another"
            )

    async def effect(self, caller: Caller, effect: str) -> Effect:
        caller.needs("read")
        return await self._own_effect(caller, effect)

    async def effects(
        self, caller: Caller, *, run: str | None = None, session: str | None = None, state: str | None = None,
        after: str | None = None, limit: int = 50,
    ) -> Page:  # fmt: skip
        """Those of the newest runs first, of each in call order; for one bound to a user, of that user's runs."""
        caller.needs("read")
        if caller.user is not None:
            if run is not None:
                await self._run(caller, run)
            elif session is not None:
                await self._session(caller, session)
            else:
                return await self._own_effects(caller, state, after, limit)
            if after is not None:
                await self._run(caller, ids.effect_place(after)[0])
        rows = await self.rt.effects(
            run=run, session=session, state=state, after=after, limit=limit + 1, tenant=caller.tenant
        )
        return page_of(rows, limit)

    async def effects_of(self, run: Run) -> list[Effect]:
        """All of a run that the caller sees, in call order."""
        return await self.rt.effects(run=run.id, tenant=run.tenant)

    async def _own_effects(self, caller: Caller, state: str | None, after: str | None, limit: int) -> Page:
        found: list[Effect] = []
        before, looked_at = None, 0
        if after is not None:
            before = ids.effect_place(after)[0]
            await self._run(caller, before)
            found += await self.rt.effects(run=before, state=state, after=after, tenant=caller.tenant)
        while len(found) <= limit:
            runs = await self.rt.runs(user=caller.user, before=before, limit=_AT_ONCE, tenant=caller.tenant)
            for run in runs:
                found += await self.rt.effects(run=run.id, state=state, tenant=caller.tenant)
            looked_at += len(runs)
            if len(runs) < _AT_ONCE:
                break
            before = ids.RunId(runs[-1].id)
            if looked_at >= _LOOKED_AT and len(found) <= limit:  # what is left is for the next request
                return Page(items=found, next=ids.behind_effects(before))
        return page_of(found, limit)

    async def resolve(self, caller: Caller, effect: str, word: Word) -> Effect:
        """Settle an unknown effect by the word of somebody who looked. The same word again is no error.

        Raises:
            NotFound: nothing about it is, or was, to be settled. AlreadyDecided: somebody said otherwise. Forbidden
            InvalidInput: it comes without evidence.
        """
        caller.needs("answer")
        await self._own_effect(caller, effect)
        if not word.evidence.strip():
            raise InvalidInput("say where you looked and what you saw: that is the evidence")
        ask = await self.rt.settling_ask(effect, tenant=caller.tenant)
        await self._check_not_own(caller, ask, word)
        await _say(ask, word, caller.acts_as(word.by))
        return await self.rt.get_effect(effect, tenant=caller.tenant)

    async def _own_effect(self, caller: Caller, effect: str) -> Effect:
        found = await self.rt.get_effect(effect, tenant=caller.tenant)
        if caller.user is not None:
            run = await self.rt.get_run(found.run, tenant=caller.tenant)
            caller.only_sees(run.user, "effect", effect, "ondol effects")
        return found

    # --- the rest -----------------------------------------------------------------------------------------------

    def agents(self, caller: Caller) -> list[Agent]:
        caller.needs("read")
        return list(self.rt.agents.values())

    async def usage(
        self, caller: Caller, *, by: UsageBy = "model", since: date | None = None, until: date | None = None,
        time_zone: str | None = None,
    ) -> list[UsageLine]:  # fmt: skip
        """Raises Forbidden for one bound to a user: sums are those of the tenant."""
        caller.needs("read")
        self.whole_tenant(caller)
        return await self.rt.usage(by=by, since=since, until=until, time_zone=time_zone, tenant=caller.tenant)

    def whole_tenant(self, caller: Caller) -> None:
        """Raises Forbidden for one bound to a user."""
        if caller.user is not None:
            raise Forbidden("this token is bound to one user, and this is about all: use one without '--user'")


def page_of(rows: Sequence[Ask | Effect | OutboxMessage | Session], limit: int) -> Page:
    """The first of these, which are one more where there is another page."""
    return Page(items=list(rows[:limit]), next=rows[limit - 1].id if len(rows) > limit else None)


def _decoded(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if given is None else _read(lambda: values.decode_object(dict(given)))


def _untagged(value: Any) -> Any:
    return _read(lambda: values.decode(value))


def _read(decode: Callable[[], T]) -> T:
    """Raises InvalidInput for a tag that says nothing."""
    try:
        return decode()
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise InvalidInput(f"a value has a tag of Ondol's that cannot be read: {error}") from error


def _words(run: Run, asked: Mapping[str, str]) -> str:
    said = [asked.get(run.id, ""), run.id, run.operation_id, run.session, run.agent, run.user or "", run.status]
    said += [str(v) for v in (run.error or {}).values()]
    return "\n".join(said).casefold()


async def _say(ask: Ask, word: Word, by: str) -> Ask:
    """Through the same methods as a Python program's."""
    if word.arguments is not None and word.kind != "approve":
        raise InvalidInput("arguments go with 'approve': they replace those that were asked about, in full")
    chosen = None if word.value is ... else _untagged(word.value)
    if chosen is not None and word.kind not in ("answer", "drop", "raise"):
        raise InvalidInput(f"a value does not go with {word.kind!r}: it goes with answer, drop and raise")
    if word.result is not None and word.kind != "happened":
        raise InvalidInput(f"a result does not go with {word.kind!r}: it goes with happened, as what the model is told")
    if word.evidence and word.kind not in ("happened", "not_happened", "give_up"):
        raise InvalidInput(f"evidence does not go with {word.kind!r}: say why as 'reason'")
    if word.reason and word.kind in ("happened", "not_happened"):
        raise InvalidInput(f"a reason does not go with {word.kind!r}: say what was seen as 'evidence'")
    match word.kind:
        case "approve":
            return await ask.approve(by=by, arguments=_decoded(word.arguments), reason=word.reason)
        case "deny":
            return await ask.deny(by=by, reason=word.reason)
        case "happened":
            return await ask.happened(_untagged(word.result), word.evidence, by=by)
        case "not_happened":
            return await ask.not_happened(word.evidence, by=by)
        case "give_up":
            return await ask.give_up(word.reason or word.evidence, by=by)
        case "answer" if word.value is ... and ask.kind == "question":
            raise InvalidInput(f"ask {ask.id} ({ask.question!r}) is not answered: send the answer as 'value'")
        case "answer":
            return await ask.answer(chosen, by=by, reason=word.reason)
        case "drop" | "raise" if chosen is not None:
            return await ask.answer({word.kind: chosen}, by=by, reason=word.reason)
        case _:
            return await ask.answer(word.kind, by=by, reason=word.reason)
