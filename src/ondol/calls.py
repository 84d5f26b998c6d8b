"""How is one tool call worked on, until it has an outcome?

Write down, act, write down the outcome. A crash between two of these lines leaves what ``effects.verdict`` looks at.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_never

from ondol import (
    carried,
    effects,
    events,
    ids,
    journal,
    lifecycle,
    limits,
    media,
    messages,
    outputs,
    payloads,
    pins,
    plans,
    policy,
    queries,
    sizes,
    steps,
    transactions,
    values,
    view,
)
from ondol.attempts import (
    AttemptEnd,
    Dropped,
    Raised,
    Returned,
    Stopped,
    TimedOut,
    Unwound,
    asked_of,
    dispatch,
    returned,
)
from ondol.clock import from_micros, to_micros
from ondol.errors import CancelRequested, ClaimLost, InvalidInput, NotDone, SignalsUnread, StoreError
from ondol.logs import about
from ondol.messages import Attachment, Blob, Message, ToolCall, ToolResponse
from ondol.questions import AnswerType, Question
from ondol.recalling import CallMemory
from ondol.searching import find
from ondol.secret import logger, redact
from ondol.threads import in_thread
from ondol.tools import Cancelled, CannotTell, Context, Happened, NotHappened, SessionState, Steps, Tool
from ondol.toolsets import Toolset
from ondol.transactions import Outcome

if TYPE_CHECKING:
    from ondol.runner import Drive

log = logger("ondol.runner")

_OUT_OF_TIME = "the time that the run may take is over"
_EVIDENCE_KEPT = 2000  # characters of an outcome that came too late
_REASON_KEPT = 10_000  # characters of why a call failed, or nobody can tell
_NAMED = 5  # types that a warning names
_NOTICED = 5_000_000  # microseconds, after which somebody may wonder why a run stands still


class Calls:
    """The calls of one claimed run in this process."""

    def __init__(self, drive: Drive) -> None:
        self.drive, self.row = drive, drive.row
        # The arguments of calls that this process planned, as the tool takes them; None once an attempt was given them.
        self.parsed: dict[int, Mapping[str, Any] | None] = {}
        self._begun: dict[int, effects.Effect] = {}  # started by this process and not yet at an outcome
        self._attached: dict[int, Sequence[Attachment]] = {}  # what belongs to a result that is about to be recorded
        self._patches: dict[int, Mapping[str, Any]] = {}  # decided here; maybe not yet folded
        self.tools: dict[int, Tool[..., Any]] = {}  # of calls that tools of steps made: the agent need not have them
        self.changed: dict[int, str] = {}  # tools of steps whose code does not fit what is recorded, and why

    @functools.cached_property
    def _numbering(self) -> asyncio.Lock:
        """Whoever plans a step of a tool of steps takes the next ordinal."""
        return asyncio.Lock()

    async def advance(self, call: int, verdict: effects.Verdict) -> None:
        """Work on one call of the model."""
        try:
            await self.work(call, verdict)
        except (CancelRequested, SignalsUnread):
            self.drive.signal()  # nothing was started: the loop reads the signals and asks again
        finally:
            self.drive.busy.discard(call)
            self.drive.rest_if_asleep()
            self.drive.changed.set()

    async def work(self, call: int, verdict: effects.Verdict) -> None:
        """Work on one call until it has an outcome, an ask, or something else comes first."""
        todo: effects.Verdict | None = verdict
        try:
            while todo is not None:
                if self.drive.stopping.is_set and isinstance(todo, effects.Run | effects.Check):
                    return  # nothing new begins; what is known is written down all the same
                match todo:
                    case effects.Run(after=after):
                        todo = await self._attempt(call, after)
                    case effects.Check(after=after, goes_on=goes_on):
                        todo = await self._check(call, after, goes_on)
                    case effects.Presume():
                        todo = await self._presume(call)
                    case effects.OutcomeUnknown(reason=reason):
                        await self._unknown(call, reason)
                        todo = None
                    case effects.Failed(reason=reason):
                        await self._failed(call, reason)
                        todo = None
                    case effects.Hold() | effects.Park():
                        todo = None
                    case _:
                        assert_never(todo)
        finally:
            self._begun.pop(call, None)

    async def _attempt(self, call: int, after: int) -> effects.Verdict | None:
        """Write down, act, write down the outcome."""
        effect = self._effect(call)
        if after and not await self._is_over(effect, after):
            return None
        effect = self._effect(call)
        tool = self._tool(effect)
        if after and not isinstance(verdict := self._verdict_now(effect, tool), effects.Run):
            return verdict
        try:
            parsed = self._parse(effect, tool)
        except InvalidInput as error:  # the tool's schema changed, or a person's replacement does not fit
            if effect.state == "started":
                return effects.OutcomeUnknown(f"the process stopped while it ran, and now {error}")
            if self.drive.state.steps(call):  # those must not be left behind
                self.changed[self.drive.state.root(effect).ordinal] = str(error)
                return None
            await self._failed(call, str(error))
            return None
        is_new = effect.attempt == 0 and not self.drive.state.steps(call)  # a tool of steps has begun with its first
        if is_new and (denied := self._denied(effect, tool)) is not None:
            return effects.Failed(policy.refusal(denied))
        if is_new and effect.parent is None and (why := await self._why_ask_again(effect, tool)):
            await self._ask_again(effect, tool, why)
            return None
        if tool.effect == "steps":
            entered = await steps.enter(self, effect, tool, parsed)
            return None if entered is None else await self._write_outcome(effect, tool, *entered)
        timeout, cut = self._timeout(effect, tool)
        if timeout <= timedelta(0):
            return effects.Failed(f"not called: {_OUT_OF_TIME}")
        left, within = timeout, None
        if effect.is_write:
            # Record before calling: after a crash we must know that it may have run.
            deadline = self.drive.clock.now() + timeout
            effect = await self._write_started(effect, deadline)
            left = min(timeout, deadline - self.drive.clock.now())  # (the clock may be set back)
            if (end := effects.key_end(effect, tool.rules)) is not None:
                within = (end - self.drive.now()) / 1e6
        ctx = self.context(tool, effect.ordinal, effect.attempt)
        # A crash from here on leaves it started without an outcome: see effects.verdict.
        ending = await dispatch(
            tool, ctx, parsed, clock=self.drive.clock, token=self.drive.token, seconds=left.total_seconds(),
            within=within, late=functools.partial(self._late, call),
        )  # fmt: skip
        if cut and isinstance(ending, TimedOut):
            return effects.Failed(f"given up: {_OUT_OF_TIME}")
        return await self._write_outcome(effect, tool, ctx, ending)

    def _verdict_now(self, effect: effects.Effect, tool: Tool[..., Any]) -> effects.Verdict:
        """It waited: its key may be too old by now, and a sibling unknown."""
        drive = self.drive
        unknown = lifecycle.sibling_unknown(drive.state, drive.busy | {drive.state.root(effect).ordinal})
        return effects.verdict(effect, tool.rules, sibling_unknown=unknown, now=drive.now())

    async def _is_over(self, effect: effects.Effect, after: int) -> bool:
        """Wait for the deadline of a lost attempt; False when something asked not to wait for it."""
        until = self._not_too_long(effect, after)
        if until - self.drive.now() > _NOTICED:
            name, end = ids.effect_id(self.row.id, effect.ordinal), from_micros(until).isoformat(" ", "seconds")
            said = "run %s: effect %s (%s) waits: its last attempt was lost, and may act until %s"
            log.warning(said, self.row.id, name, effect.tool, end, extra=about(self.row))
        return await self.drive.sleep(until)

    def _not_too_long(self, effect: effects.Effect, after: int) -> int:
        """A clock that was set back since the last attempt began makes nobody wait longer than that could take."""
        return min(after, self.drive.now() + effect.deadline - effect.began) if effect.began else after

    def _timeout(self, effect: effects.Effect, tool: Tool[..., Any]) -> tuple[timedelta, bool]:
        """How long the attempt may take, and whether that is less than its tool allows.

        Nothing begins when the run's time is over, and a read is given up then. A write that may have happened gets
        all of its own time.
        """
        bounds = self.drive.served.bounds.limits
        if effect.attempt or (bounds.wall is None and bounds.tool_time is None):
            return tool.timeout, False
        left = limits.tool_time_left(self.drive.state, bounds, self.drive.now())
        if left is None or left >= tool.timeout.total_seconds() or (effect.is_write and left > 0):
            return tool.timeout, False
        return timedelta(seconds=left), True

    def vet(self, tool: Tool[..., Any], arguments: Mapping[str, Any]) -> policy.Said | None:
        """What the policy says about a call."""
        rules = self.drive.runner.policy
        if tool is outputs.READ_MORE:  # it gives what an allowed call of this session returned, and nothing else
            return None
        return None if rules is None else policy.said(rules, plans.policy_call(self.row, tool, arguments))

    def _denied(self, effect: effects.Effect, tool: Tool[..., Any]) -> policy.Deny | None:
        """A call that waited since it was planned, for a person or for a process: does the policy deny it by now?

        Its arguments may be others, and so may the policy. That a person approved it changes nothing of a denial.
        """
        if effect.state != "approved" and effect.ordinal in self.parsed:
            return None
        answer = self.vet(tool, self._arguments(effect))
        return answer if isinstance(answer, policy.Deny) else None

    async def _why_ask_again(self, effect: effects.Effect, tool: Tool[..., Any]) -> str | None:
        """A call that was planned, and maybe approved, with another tool of that name: would a person be asked now?"""
        shown = self.drive.state.shown
        if shown is None or self.drive.served.digest in (shown.definition, effect.vetted):
            return None
        if await self.drive.planned_with(shown.definition, tool):
            return None
        arguments = self._arguments(effect)
        answer = self.vet(tool, arguments)
        asks = policy.permission(
            answer, lambda: tool.needs_approval(lambda: self.context(tool, effect.ordinal), arguments)
        ).asks
        return self.drive.guard.asks(tool, arguments) if asks is None else asks

    async def _ask_again(self, effect: effects.Effect, tool: Tool[..., Any], why: str) -> None:
        drive, call, now = self.drive, effect.ordinal, self.drive.clock.now()
        ask = ids.ask_id(self.row.id, f"{call}c{drive.claim.fence}")
        opened = events.AskOpened(ask=ask, ask_kind="approval", call=call, definition=self.drive.served.digest)
        encoded = values.encode(self._arguments(effect))
        asking = transactions.AskedAgain(
            entry=opened,
            tool=tool.name,
            arguments=values.dumps(encoded),
            hash=values.digest(encoded),
            decision=f"ask: {why}",
            question=f"{tool.name} changed since this call was planned, and wants to run. Approve it?",
            expires_at=None if tool.approve_expires is None else to_micros(now + tool.approve_expires),
        )
        drive.record(await drive.write(transactions.ask_again, drive.claim, self.row.user_id, drive.now(), asking))

    async def _write_started(self, effect: effects.Effect, deadline: datetime) -> effects.Effect:
        """T4. The effect as it is now is kept at hand: the fold may still wait for the batch of a sibling."""
        drive, attempt, until = self.drive, effect.attempt + 1, to_micros(deadline)
        now = drive.now()
        batch = await drive.write(transactions.started, drive.claim_now, now, effect.ordinal, attempt, until)
        first = effect.first_started or now
        begun = effect._replace(state="started", attempt=attempt, deadline=until, first_started=first, began=now)
        self._begun[effect.ordinal] = begun
        self.drive.record(batch)
        return begun

    async def _presume(self, call: int) -> effects.Verdict:
        """A process may have started it after the backup was made, at the latest as the store was restored."""
        drive, effect = self.drive, self._effect(call)
        tool = self.tools.get(call) or self.drive.served.tools.get(effect.tool)
        assert drive.state.restored is not None
        latest = from_micros(drive.state.restored[1]) + (tool.timeout if tool is not None else timedelta(0))
        drive.record(
            await drive.write(
                transactions.started, drive.claim, drive.now(), call, effect.attempt + 1, to_micros(latest), True
            )
        )
        await drive.caught_up()
        rules = None if tool is None else tool.rules
        return effects.verdict(drive.state.effects[call], rules, sibling_unknown=False, now=drive.now())

    def _effect(self, call: int) -> effects.Effect:
        return self._begun.get(call) or self.drive.state.effects[call]

    def _tool(self, effect: effects.Effect) -> Tool[..., Any]:
        return self.tools.get(effect.ordinal) or self.drive.served.tools[effect.tool]

    def _late(self, call: int, ended: AttemptEnd) -> None:
        said = values.plain_text(ended.result) if isinstance(ended, Returned) else repr(ended)
        evidence = redact(values.valid(f"{self.drive.clock.now().isoformat()}: {said}"))[:_EVIDENCE_KEPT]
        task = asyncio.get_running_loop().create_task(self._write_late(call, evidence))
        _EVIDENCE.add(task)
        task.add_done_callback(_EVIDENCE.discard)

    async def _write_late(self, call: int, evidence: str) -> None:
        try:
            await self.drive.store.write(transactions.late_outcome, self.row.tenant, self.row.id, call, evidence)
        except StoreError as error:
            said = "run %s: the late outcome of call %s is lost (%s): %s"
            log.warning(said, self.row.id, call, error, evidence, extra=about(self.row))

    async def _write_outcome(
        self, effect: effects.Effect, tool: Tool[..., Any], ctx: Context[Any], ending: AttemptEnd
    ) -> effects.Verdict | None:
        if isinstance(ending, Returned):
            await self._succeeded(effect, ctx, ending, "tool")
            return None
        call, now = effect.ordinal, self.drive.now()
        match ending:
            case Raised(reason=reason, not_done=not_done):
                return effects.after_exception(effect, tool.rules, not_done=not_done, reason=reason, now=now)
            case Unwound():
                return effects.after_exception(effect, tool.rules, not_done=False, reason="it was cancelled", now=now)
            case TimedOut(goes_on=goes_on):
                whose = "its own code" if tool.effect == "steps" else "it"
                reason = f"{whose} did not end within {tool.timeout.total_seconds():g} s"
                return effects.after_exception(
                    effect, tool.rules, not_done=False, reason=reason, now=now, goes_on=goes_on
                )
            case Dropped():
                return effects.after_drop(effect, tool.rules, now)
            case Stopped():
                if not effect.is_write:
                    await self._failed(call, "cancelled")
                return None  # T9 makes it unknown, unless it said in time how it ended
            case _:
                assert_never(ending)

    async def _check(self, call: int, after: int, goes_on: bool) -> effects.Verdict | None:
        """The operator's hook looks at what really happened; until the deadline a lost attempt may still act."""
        effect = self._effect(call)
        if after and not await self._is_over(effect, after):
            return None
        tool = self._tool(effect)
        ctx = self.context(tool, effect.ordinal, effect.attempt)
        try:
            parsed = self._parse(effect, tool)
        except InvalidInput as error:
            return effects.OutcomeUnknown(str(error))
        answer = await asked_of(
            self.row.id, lambda: tool.check_called(ctx, parsed), tool.check_answered,
            thread=None if tool.check_is_async else f"ondol-check-{tool.name}", clock=self.drive.clock,
            seconds=tool.timeout.total_seconds(), token=self.drive.token,
            cancelled=CannotTell("check was cancelled by something of its own"),
        )  # fmt: skip
        match answer:
            case "cancelled":
                return None
            case "timeout":
                return effects.OutcomeUnknown("check did not answer in time")
            case Happened(result=result):
                await self._succeeded(effect, ctx, returned(result), "check")
                return None
            case NotHappened():
                return effects.after_check(
                    effect, tool.rules, happened=False, reason="", now=self.drive.now(), goes_on=goes_on
                )
            case CannotTell(reason=why):
                reason = why or "check cannot tell"
                return effects.after_check(effect, tool.rules, happened=None, reason=reason, now=self.drive.now())

    async def _succeeded(self, effect: effects.Effect, ctx: Context[Any], ended: Returned, by: str) -> None:
        encoded, lost_state = ended.result, list[str]()
        patch, clash = self._patch(effect, ctx, lost_state)
        error = clash is not None
        if clash is not None:
            encoded = f"done, but the session state was not changed: {clash}. Result: {values.plain_text(encoded)}"
        warning = ""
        if ended.lost or lost_state:
            warning = "; ".join(filter(None, (_lost("result", ended.lost), _lost("session state", lost_state))))
            effect_id = ids.effect_id(self.row.id, effect.ordinal)
            log.warning("run %s: effect %s (%s) succeeded, but %s", self.row.id, effect_id, effect.tool, warning)
        changes = ctx._memory.changes if isinstance(ctx._memory, CallMemory) else []
        pinned = redact(list(dict.fromkeys(ctx._pins))) if ctx._pins else []
        entry = events.EffectSucceeded(
            call=effect.ordinal, by=by, patch=patch, warning=warning, memory=changes, pins=pinned
        )
        taken = payloads.take(encoded) if not error and effect.parent is None else payloads.Taken(encoded)
        for attachment, data in zip(taken.attached, taken.data, strict=True):
            await self.drive.keep_blob(attachment, data)
        if taken.attached:
            self._attached[effect.ordinal] = taken.attached
        text = values.plain_text(taken.encoded)
        shown = outputs.show(taken.encoded, text, self._room(effect, text))
        if shown.blob is not None:
            # Before the outcome that names it. A crash between the two leaves a blob that is collected after a day.
            await self.drive.keep_blob(shown.blob, shown.data)
        await self._finish(effect.ordinal, entry, shown.response, error, shown.blob)

    def _room(self, effect: effects.Effect, text: str) -> int:
        """The characters that the call's result may show, if they weigh as much as ``text``. What a tool of steps calls
        is shown to no model."""
        limit, state = self.drive.served.bounds.limits.tool_output or limits.DEFAULT_TOOL_OUTPUT, self.drive.state
        if effect.parent is not None:
            return limit
        whole = None
        if (policy := self.drive.served.agent.context) is not None and text:
            # New results may not fill the budget: about a quarter.
            whole = policy.budget * len(text) // sizes.weight_of_text(text)
            limit = min(limit, whole)
        return outputs.share(limit, state.calls_of_step, whole)

    async def value_of(self, result: ToolResponse) -> Any:
        """The whole of a recorded result, as the body of a tool of steps is given it."""
        if result.blob is None:
            return result.value
        data = await self.drive.store.get_blob(self.row.tenant, result.blob.digest)
        return await in_thread(outputs.value_of, result.blob, data)

    async def _kept(self, call: int, reference: str) -> tuple[str, int]:
        """For ``read_more``: the whole of a result or a message of this session, and the characters that the call may
        show of it. What is no text is attached to the result of the call."""
        if (place := view.place_of(reference)) is not None:
            text, self._attached[call] = await self._said_at(*place)
        else:
            text = await self._text_of(outputs.find(reference, self.drive.talk.blobs()))
        # No page may hold more than its result can show, so its largest character counts.
        return text, self._room(self._effect(call), max(text, default=""))

    async def _text_of(self, blob: Blob) -> str:
        data = await self.drive.store.get_blob(self.row.tenant, blob.digest)
        return await in_thread(outputs.text_of, blob, data)

    async def _said_at(self, place: int, n: int | None) -> tuple[str, list[Attachment]]:
        """What was said at that place of the session, or an attachment of it. Raises NotDone where there is nothing."""
        drive = self.drive
        message = drive.talk.own_message(place)
        if message is None:
            body = await drive.store.read(queries.message_at, drive.claimed.session, place)
            message = None if body is None else messages.loads(body)
        parts = () if message is None else message.parts if n is None else message.parts[n : n + 1]
        said: list[str] = []
        attached: list[Attachment] = []
        for part in parts:
            if isinstance(part, ToolResponse) and part.blob is not None:
                said.append(await self._text_of(part.blob))
            elif not isinstance(part, Attachment):
                said.append(carried.told(part))
            elif media.is_text(part.media_type):
                said.append((await drive.store.get_blob(self.row.tenant, part.digest)).decode("utf-8-sig", "replace"))
            else:
                said.append(f"{carried.told(part)} follows")
                attached.append(part)
        if not any(said):
            raise NotDone(f"this conversation has nothing to show at {view.reference(place, n)}")
        return "\n".join(filter(None, said)), attached

    def _patch(self, effect: effects.Effect, ctx: Context[Any], lost: list[str]) -> tuple[dict[str, Any], str | None]:
        """The call's change of the session state. Siblings do not see each other, so they may not overwrite."""
        changed = ctx.state.patch(lost)
        patch = redact(changed) if changed else {}
        state = self.drive.state
        for sibling in state.of_last_step if patch else ():
            if state.root(sibling).ordinal != state.root(effect).ordinal:
                theirs = self._patches.get(sibling.ordinal) or self.drive.state.patches.get(sibling.ordinal, {})
                if clash := sorted(k for k in patch if k in theirs and theirs[k] != patch[k]):
                    return {}, f"another call of the same step set {', '.join(clash)} differently"
        self._patches[effect.ordinal] = patch
        return patch, None

    async def _failed(self, call: int, reason: str) -> None:
        effect = self._effect(call)
        if effect.effect == "steps" and effect.parent is None:
            reason += steps.done_by(self, effect)
        reason = values.valid(reason)
        reason = values.excerpt(reason, min(_REASON_KEPT, self._room(effect, reason)))
        await self._finish(call, events.EffectFailed(call=call, reason=reason), reason, error=True)

    async def _finish(
        self, call: int, entry: events.EffectSucceeded | events.EffectFailed, response: Any, error: bool,
        blob: Blob | None = None,
    ) -> None:  # fmt: skip
        """T5. When it was the last outcome of the step, what the model sees next rides on the same commit."""
        effect = self._effect(call)
        the_call = self.drive.talk.messages[effect.message].calls[effect.part]
        attached = tuple(self._attached.pop(call, ()))
        was_made = effect.attempt or isinstance(entry, events.EffectSucceeded)
        made_with = effect.arguments if was_made and effect.parent is None else None
        message = messages.tool_result(the_call.id, effect.tool, response, error, blob, attached, made_with)
        body = messages.dumps(message)
        done = Outcome(
            entry=entry, attempt=effect.attempt, reply=effect.reply, body=body,
            reason=entry.reason if isinstance(entry, events.EffectFailed) else "",
            unstarted=isinstance(entry, events.EffectFailed), blob=blob, attached=attached,
        )  # fmt: skip
        also = self.drive.prepare.if_last(call, entry, effect.reply, body)
        try:
            try:
                batch = await self._write_end(done, also)
            except SignalsUnread:  # what somebody said may belong into what the model sees next
                self.drive.signal()
                batch, also = await self._write_end(done), ()
        except ClaimLost:
            said = isinstance(entry, events.EffectSucceeded)
            self._late(call, Returned(response) if said else Raised(done.reason, not_done=True))
            raise
        self.drive.talk.keep(effect.reply, body, message)
        self.drive.record(batch)
        self.drive.went_on()
        if also:
            self.drive.talk.committed(self.drive.state.next_message)

    def _write_end(self, done: Outcome, also: Sequence[events.Entry] = ()) -> Awaitable[journal.Batch]:
        drive = self.drive
        return drive.write(transactions.outcome, drive.claim_now, self.row.user_id, drive.now(), done, also)

    async def _unknown(self, call: int, reason: str) -> None:
        """Nobody can tell: a person's word is needed. It is neither success nor failure."""
        reason = values.excerpt(values.valid(reason), _REASON_KEPT)
        effect = self._effect(call)
        ask = ids.ask_id(self.row.id, f"{call}u{effect.attempt}")
        encoded = values.encode(self._arguments(effect))
        done = Outcome(
            entry=events.EffectUnknown(call=call, ask=ask, reason=reason, seen=call in self._begun),
            attempt=effect.attempt,
            reply=effect.reply,
            reason=reason,
            tool=effect.tool,
            arguments=values.dumps(encoded),
            hash=values.digest(encoded),
            question=transactions.unknown_question(effect.tool),
        )
        self.drive.record(
            await self.drive.write(transactions.outcome, self.drive.claim, self.row.user_id, self.drive.now(), done)
        )

    def _parse(self, effect: effects.Effect, tool: Tool[..., Any]) -> Mapping[str, Any]:
        """For one attempt, or one ``check``: a function may change what it is given."""
        at_hand = self.parsed.get(effect.ordinal)
        if effect.arguments is None and at_hand is not None:
            self.parsed[effect.ordinal] = None
            return at_hand
        return tool.parse(self._arguments(effect))

    def _arguments(self, effect: effects.Effect) -> dict[str, Any]:
        if effect.arguments is not None:
            return dict(values.decode(effect.arguments))
        arguments = self.drive.talk.messages[effect.message].calls[effect.part].arguments
        assert isinstance(arguments, dict)
        return arguments

    async def plan(
        self, parent: effects.Effect, place: int, tool: Tool[..., Any], arguments: dict[str, Any], digest: str
    ) -> effects.Effect:
        """T3 of one call that a tool of steps makes, with its permission decision and, where needed, its ask."""
        drive = self.drive
        async with self._numbering:
            await drive.caught_up()
            number = len(drive.state.effects)
            message, reply = journal.private_messages(number)
            call = ToolCall(f"call_{self.row.id}_{number}", tool.name, arguments)
            planned, parsed = await drive.guard.plan(call, number, reply, tools={tool.name: tool})
            entry = replace(planned.entry, parent=parent.ordinal, place=place, hash=digest)
            planned, body = planned._replace(entry=entry), messages.dumps(Message("assistant", (call,)))
            batch = await drive.write(
                transactions.plan_step, drive.claim, self.row.user_id, drive.now(), (message, body), planned
            )
            drive.talk.keep(message, body)
            if planned.result is not None:
                drive.talk.keep(reply, planned.result)
            if parsed is not None:
                self.parsed[number] = parsed
            drive.record(batch)
            await drive.caught_up()
            return drive.state.effects[number]

    async def ask(
        self, parent: effects.Effect, place: int, question: Question, answer: AnswerType, words: str, digest: str
    ) -> None:
        """T3 of one question that a tool of steps asks."""
        drive, now = self.drive, self.drive.clock.now()
        ask = ids.ask_id(self.row.id, f"{parent.ordinal}q{place}")
        default = None if question.default is ... else values.encode(answer.written(question.default))
        asking = transactions.Questioning(
            entry=events.AskOpened(ask=ask, ask_kind="question", call=parent.ordinal, place=place, hash=digest),
            question=words,
            schema=values.dumps(answer.schema),
            default=None if question.default is ... else values.dumps(default),
            expires_at=None if question.expires is None else to_micros(now + question.expires),
        )
        batch = await drive.write(transactions.open_question, drive.claim, self.row.user_id, drive.now(), asking)
        drive.record(batch)
        await drive.caught_up()

    def context(
        self, tool: Tool[..., Any] | Toolset, call: int, attempt: int = 0, *, steps: Steps | None = None,
        before: effects.Effect | None = None, now: Callable[[], datetime] | None = None,
    ) -> Context[Any]:  # fmt: skip
        """``before``: of the session state it sees only what this call certainly comes after. ``now``: in place of the
        actual time."""
        loop = asyncio.get_running_loop()

        def progress(fraction: float | None, note: str) -> None:  # a tool in a thread may call it too
            words = redact(values.plain_text(values.encode(note)))
            said = {"tool": tool.name, "fraction": _share(fraction), "note": words}
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody watches any more
                loop.call_soon_threadsafe(self.drive.publish, events.PROGRESS, said)

        key = ids.idempotency_key(self.row.tenant, self.row.id, call, tool.name)
        state = SessionState(values.patched(self.drive.session_state, self.drive.state.patch(before)))
        return Context(
            deps=self.drive.runner.deps, idempotency_key=key, operation_id=self.row.operation_id, run_id=self.row.id,
            session=self.row.session, user=self.row.user_id or None, tenant=self.row.tenant, attempt=attempt,
            time_zone=self.row.zone, state=state,
            cancelled=Cancelled(), _now=now or self.drive.shown_now, _progress=progress, _steps=steps,
            _kept=functools.partial(self._kept, call),
            _find=functools.partial(find, self.drive.store, self.drive.runner.embedding, self.row),
            _memory=None if self.drive.memory is None else CallMemory(self.drive.memory, call),
            _check_pins=self.check_pins,
        )  # fmt: skip

    def check_pins(self, texts: Sequence[str]) -> None:
        """Raises InvalidInput where the session has no room for these, too."""
        session, policy = self.drive.claimed.session, self.drive.served.agent.context
        held = session.pinned.texts if session.pins else []
        room = None if policy is None else policy.budget * sizes.PER_TOKEN // 2
        pins.check_room(dict.fromkeys([*held, *self.drive.state.pins, *texts]), room)


def _lost(what: str, types: Sequence[str]) -> str:
    """A warning that part of it is written as a placeholder; empty if nothing is."""
    if not types:
        return ""
    names = sorted(set(types))
    named = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return f"its {what} holds what has no JSON form, so a placeholder with its repr is recorded: {named}"


def _share(fraction: Any) -> float | None:
    try:
        return share if math.isfinite(share := float(fraction)) else None
    except (TypeError, ValueError, OverflowError):
        return None


_EVIDENCE: set[asyncio.Task[None]] = set()  # the loop keeps only weak references to tasks
