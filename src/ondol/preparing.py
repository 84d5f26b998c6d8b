"""What will the model see next, and how is that written down (T2)?

The request is weighed before every model call, with the agent's budget and with what the provider said of its window.
One that is too large is relieved by the rules of ``view``; what is told in the place of turns that go is written here,
by a model or without one. All of it is recorded before the call: what was decided is never decided again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ondol import (
    carried,
    checksums,
    context,
    events,
    ids,
    journal,
    lifecycle,
    messages,
    outputs,
    pins,
    queries,
    sizes,
    transactions,
    values,
    view,
)
from ondol.errors import CancelRequested, SignalsUnread
from ondol.recalling import Recalled
from ondol.records import Measured
from ondol.summaries import Made, ask_model
from ondol.transactions import Steer
from ondol.view import Room, Summary, View

if TYPE_CHECKING:
    from ondol.runner import Drive

_FRAMED = 200  # bytes of the words around a summary
_NO_FACTS = Recalled()
_FACTS_SHARE = 5  # what is recorded of decisions may take this part of a request


class Frame(NamedTuple):
    """What a context is made of beside the run's own messages: the view, and what is carried."""

    view: View
    block: str


class Preparation:
    """The contexts of one claimed run."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self._noted = False
        self._facts: Sequence[str] = ()
        self._recalled: Recalled | None = None  # for the next context; None: as in the last one
        self._made: tuple[tuple[int, int], Made] | None = None  # the last summary by a model, and what of

    async def open(self) -> None:
        """Have at hand what the run's requests begin with."""
        drive = self.drive
        drive.talk.history = await drive.history(drive.talk.provider)
        if drive.state.shown is not None and (digest := drive.state.shown.carried):
            text: str | None = await drive.store.read(queries.get_carried, drive.row.tenant, digest)
            drive.talk.carried[digest] = text or ""
        if self._leaves_out(self._view(drive.state)):
            await self._read_facts()

    # --- T2 -----------------------------------------------------------------------------------------------------

    async def build(self) -> None:
        """T2, with which the messages that wait for it join the run."""
        drive, steers = self.drive, list[Steer]()
        if drive.steered:
            drive.steered = False  # one that comes from here on leaves a signal, which T2 does not pass by
            steers = await drive.store.read(queries.steers, drive.row.tenant, drive.row.id)
            if not steers and not isinstance(drive.next_action(), lifecycle.BuildContext):
                return  # they were cancelled
        await self._recall(steers)
        state = drive.seen(drive.state)
        note = self._note(state)
        joining, extra, upto = _added(state, note, steers)
        frame, compacted = self._frame(state), None
        if self._is_over(state, frame, extra):
            compacted = await self._relieved(state, frame, extra)
            if compacted is None or isinstance(compacted, transactions.AskedAbout):
                if compacted is not None:
                    await self._ask(compacted)
                drive.steered = drive.steered or bool(steers)
                return  # something else comes first
            frame, compaction = compacted
        else:
            compaction = None
        entries = self._entries(state, frame, extra, upto, note, steers, compaction)
        try:
            batch = await self._write(entries, frame, note, joining, compaction)
        except (CancelRequested, SignalsUnread):
            drive.steered = drive.steered or bool(steers)
            drive.signal()
            return
        if note is not None:
            drive.talk.keep(*note[:2])
            self._noted = True
        for steer, ordinal in joining:
            drive.talk.keep(ordinal, steer.body)
        drive.record(batch)
        for steer in steers:
            drive.runner.streams.notify(steer.run)

    async def _write(
        self, entries: list[events.Entry], frame: Frame, note: _Note | None, joining: Sequence[tuple[Steer, int]],
        compaction: events.ContextCompacted | None,
    ) -> journal.Batch:  # fmt: skip
        drive = self.drive
        changed = drive.served.digest != drive.row.definition
        spent = compaction is not None and bool(compaction.asked or compaction.model)
        return await drive.write(
            transactions.note_down, drive.claim_now, drive.now(), entries, message=None if note is None else note[:2],
            definition=(drive.served.digest, drive.served.definition) if changed else None, steers=joining,
            unread=False, carried=(digest_of(frame.block), frame.block) if frame.block else None,
            used=journal.used_with(drive.state, compaction) if spent and compaction is not None else None,
            dropped=self._dropped(compaction.was, compaction.view) if compaction and compaction.offered else None,
        )  # fmt: skip

    def if_last(
        self, call: int, entry: events.EffectSucceeded | events.EffectFailed, reply: int, body: str
    ) -> Sequence[events.Entry]:
        """The next T2, which rides on the outcome ``entry`` of this call if that is the last of its step."""
        drive = self.drive
        if drive.early or drive.signalled or drive.absorbing or drive.steered or drive.draining or drive.busy - {call}:
            return ()
        if drive.state.shown is None or drive.state.shown.definition != drive.served.digest:
            return ()  # the new definition is written down with the context, in a commit of its own
        if drive.state.effects[call].parent is not None:
            return ()  # the tool of steps that made it has no outcome yet
        after = drive.foresee(entry)
        action = lifecycle.next_action(after, drive.served.rules, busy=set(), now=drive.now(), bounds=drive.bounds)
        if not isinstance(action, lifecycle.BuildContext):
            return ()
        frame, extra = self._frame(after), {reply: body}
        if self._is_over(after, frame, extra) or digest_of(frame.block) != drive.state.shown.carried:
            return ()  # what is told of that is written down with the context, too
        return self._entries(after, frame, extra, after.next_message, None, (), None)

    def _entries(
        self, state: journal.State, frame: Frame, extra: Mapping[int, str], upto: int, note: _Note | None,
        steers: Sequence[Steer], compaction: events.ContextCompacted | None,
    ) -> list[events.Entry]:  # fmt: skip
        drive, step = self.drive, state.step + 1
        size = self._size(frame, extra)
        digest = digest_of(frame.block)
        drive.talk.carried[digest] = frame.block
        shown = self._show(state, frame.view, digest, joined=bool(steers))
        built = events.ContextBuilt(
            step=step, hash=drive.talk.hash(shown, upto, extra), tokens=sizes.tokens(size),
            over=self._over(state, size), note=note and note[0], told=note[2] if note else [],
            steers=[s.run for s in steers], **({} if shown == state.shown else _recorded(shown)),
        )  # fmt: skip
        entries: list[events.Entry] = [events.StepCompleted(step=state.step)] if state.last_step_open else []
        entries.append(events.StepStarted(step=step))
        if compaction is not None:
            entries.append(compaction)
        return [*entries, built, drive.model_started(step)]

    async def _recall(self, steers: Sequence[Steer]) -> None:
        """Look into the memory for what a request is about, once for each."""
        drive = self.drive
        if drive.memory is not None and (steers or drive.state.shown is None):
            asked = [drive.talk.messages[1], *(messages.loads(s.body) for s in steers)]
            self._recalled = await drive.memory.shown("\n".join(m.text for m in asked))

    def _shown_facts(self, state: journal.State) -> Recalled | journal.Shown:
        """What is recalled for this step, or else what the step before was shown."""
        return self._recalled or state.shown or _NO_FACTS

    def _note(self, state: journal.State) -> _Note | None:
        """What other runs of the session left behind that no turn was told yet. One note a claim: it has a limit."""
        untold = context.still_untold(self.drive.claimed.untold, state.told)
        if self._noted or not untold:
            return None
        text, told = context.note(untold, more=self.drive.claimed.more_untold, limit=self._limit(state))
        ordinal = 0 if state.shown is None else state.next_message
        return ordinal, messages.dumps(messages.runtime_note(text)), told

    def _show(self, state: journal.State, seen: View, carried: str, *, joined: bool) -> journal.Shown:
        """The clock of a run stands still while it works; after a pause it is told both times, and so is a run that
        somebody ``joined`` much later."""
        drive, history, before = self.drive, self.drive.talk.history, state.shown
        facts = self._shown_facts(state)
        began = drive.row.accepted_at - drive.lag
        times: tuple[int, int | None, str | None] = began, None, drive.row.zone
        late = joined and before is not None and before.clock < drive.now() - drive.lag - journal.PAUSE
        if state.waited or late:
            times = drive.now() - drive.lag, (None if before is None else before.since) or began, drive.row.zone
        elif before is not None:
            times = before.clock, before.since, before.zone
        return journal.Shown(
            *times, history.until, drive.served.digest, history.start, seen, carried, facts.recalled, facts.recalled_by
        )

    def leaves(self) -> transactions.Seen | None:
        """What the session's models are shown after this run, and what their provider counts; None where that is no
        news.

        Where nobody set a budget it is not kept: another model may have room for all.
        """
        drive, state, shown = self.drive, self.drive.state, self.drive.state.shown
        if drive.served.agent.context is None or shown is None:
            return None
        before = drive.claimed.session.measured
        measured = before if state.measured is None else Measured(drive.asked.model.name, *state.measured)
        less = state.compacted is not None
        if not less and (measured is None or not measured.moved(before)):
            return None
        seen = drive.claimed.session.checked_seen() or {"view": {}}
        if less:
            summary = self._summary(state, shown.view)
            seen = {"view": shown.view.dumps(), "summary": summary.text, "by": summary.by}
        return transactions.Seen(values.dumps(seen | ({} if measured is None else {"measured": list(measured)})), less)

    def pinned(self) -> str | None:
        """All that is pinned in the session with this run, as it is stored; None where that is no news."""
        drive = self.drive
        if not drive.state.pins:
            return None
        by = f"run {drive.row.id}"
        return pins.dumps(drive.claimed.session.pinned.with_texts(drive.state.pins, by, drive.now()))

    # --- what is shown, and how much it is ----------------------------------------------------------------------

    def _view(self, state: journal.State) -> View:
        """As in the context before, if there is one over the same history; else as the session's last turn left it."""
        shown, history = state.shown, self.drive.talk.history
        same = shown is not None and (shown.start, shown.history) == (history.start, history.until)
        now = shown.view if same and shown is not None else self.drive.claimed.session.shown
        answered = state.last_answer if state.step else None
        payloads = self.drive.talk.payloads_seen(now, answered)
        return now if payloads == now.payloads else now._replace(payloads=payloads)

    def _summary(self, state: journal.State, seen: View) -> Summary:
        """What stands in the place of the turns that a view does not show."""
        own = state.summarised
        if own is not None and own.view.get("since") == seen.since:
            return Summary(seen.since, own.summary, own.by)
        return self.drive.claimed.session.summary if seen.since else Summary()

    def _frame(self, state: journal.State) -> Frame:
        seen = self._view(state)
        if not (state.pins or self.drive.claimed.session.pins or self._leaves_out(seen)):
            return Frame(seen, "")
        return Frame(seen, self._block(state, seen, self._summary(state, seen)))

    def _block(self, state: journal.State, seen: View, summary: Summary) -> str:
        facts = self._facts if self._leaves_out(seen) else ()
        pinned = self.drive.claimed.session.pinned.texts if self.drive.claimed.session.pins else []
        return carried.block(list(dict.fromkeys([*pinned, *state.pins])), facts, summary)

    def _leaves_out(self, seen: View) -> bool:
        return bool(seen.since or seen.detail)

    def _size(self, frame: Frame, extra: Mapping[int, str]) -> int:
        return self._fixed(frame.block) + self.drive.talk.size(frame.view, extra)

    def _fixed(self, block: str) -> int:
        beside = 0 if self.drive.served.agent.context is None else _beside()
        recalled = self._shown_facts(self.drive.state).recalled
        beside += sizes.weight_of_text(context.recalled_text(recalled)) if recalled else 0
        return self.drive.served.weight + (sizes.weight_of_text(block) if block else 0) + beside

    def _limit(self, state: journal.State) -> int | None:
        """What a request may weigh: the agent's budget, or less where the provider said so."""
        policy = self.drive.served.agent.context
        limits = [] if policy is None else [self._calibrated(state).estimated(self._budget(state))]
        if state.fits is not None:
            limits.append(state.fits)
        return min(limits) * sizes.PER_TOKEN if limits else None

    def _is_over(self, state: journal.State, frame: Frame, extra: Mapping[int, str]) -> bool:
        limit = self._limit(state)
        return limit is not None and self._size(frame, extra) > limit

    def _over(self, state: journal.State, size: int) -> Any:
        policy = self.drive.served.agent.context
        if state.fits is not None and 4 * size > 5 * state.fits * sizes.PER_TOKEN:  # it left room for the answer
            return "window"
        if policy is None or size <= self._calibrated(state).estimated(self._budget(state)) * sizes.PER_TOKEN:
            return ""
        return "budget"

    def _calibrated(self, state: journal.State) -> journal.State:
        """The state with what a provider counted last: in an earlier run, as long as it did not in this one."""
        known = self.drive.claimed.session.measured if state.measured is None else None
        if known is None or known.model != self.drive.asked.model.name:
            return state
        return state.but(measured=(known.counted, known.estimated))

    def _room(self, limit: int) -> Room:
        policy = self.drive.served.agent.context
        told = carried.room_for_summary(limit) + 2 * limit // 25
        if policy is None:
            return Room(limit, limit, 0, told)
        return Room(limit, limit * 3 // 4, policy.keep, told)

    def can_fit(self, fits: int) -> bool:
        """Can the request be made so small, in estimated tokens?"""
        state, frame = self.drive.state, self._frame(self.drive.state)
        limit = fits * sizes.PER_TOKEN
        relief = view.relieve(
            self.drive.talk.forms({}), frame.view, self.drive.talk.history.until, self._fixed(frame.block),
            Room(limit, limit),
        )  # fmt: skip
        return relief.size <= limit and (state.shown is None or relief.view != state.shown.view)

    # --- relief -------------------------------------------------------------------------------------------------

    def _levels(self, state: journal.State) -> Collection[str]:
        """What may go from a request that is too large."""
        policy, said = self.drive.served.agent.context, state.overflow
        if policy is None or policy.on_overflow == "compact" or (said is not None and said.decision == "compact"):
            return view.LEVELS
        if said is not None and said.decision == "drop":
            dropped = {"calls": "detail", "turns": "since"}
            return (*view.LOSSLESS, *(dropped[part] for part in values.decode(said.value)))
        return view.LOSSLESS

    async def _ask(self, asking: transactions.AskedAbout) -> None:
        drive = self.drive
        try:
            drive.record(
                await drive.write(transactions.ask_compaction, drive.claim, drive.row.user_id, drive.now(), asking)
            )
        except (CancelRequested, SignalsUnread):
            drive.signal()

    def _asking(
        self, state: journal.State, frame: Frame, extra: Mapping[int, str], limit: int
    ) -> transactions.AskedAbout:
        """The question to a person, with what each answer would do."""
        drive, forms, own = self.drive, self.drive.talk.forms(extra), self.drive.talk.history.until
        fixed, size = self._fixed(frame.block), self._size(frame, extra)
        compacted = view.relieve(forms, frame.view, own, fixed, self._room(limit))
        went = [i for i in drive.talk.history.items if frame.view.since <= i.place < compacted.view.since]
        before = self._summary(state, frame.view).text
        known = self._calibrated(state)
        needed = known.counted(sizes.tokens(size))
        preview: dict[str, Any] = {
            "tokens": needed, "budget": self._budget(state), "needed": needed + needed // 10,
            "compact": {
                "tokens": known.counted(sizes.tokens(compacted.size)),
                "calls": _range(frame.view.detail, compacted.view.detail),
                "turns": _range(frame.view.since, compacted.view.since),
                "excerpt": carried.outline(went, before, carried.LEAST * 5) if went else "",
            },
        }  # fmt: skip
        for part, level in (("calls", "detail"), ("turns", "since")):
            relief = view.relieve(forms, frame.view, own, fixed, Room(limit, limit), (*view.LOSSLESS, level))
            preview[f"drop {part}"] = {"tokens": known.counted(sizes.tokens(relief.size))}
        encoded = values.encode(preview)
        ask = ids.ask_id(drive.row.id, f"o{state.overflows}")
        why = f"the budget is {preview['budget']}: compact, drop, raise or fail?"
        if state.fits is not None and limit == state.fits * sizes.PER_TOKEN:
            why = f"its model takes about {known.counted(state.fits)}: compact, drop or fail?"  # whatever the budget is
        return transactions.AskedAbout(
            events.AskOpened(ask=ask, ask_kind="compaction"),
            f"the next request has about {needed} tokens, and {why}",
            values.dumps(encoded), values.digest(encoded),
        )  # fmt: skip

    def _budget(self, state: journal.State) -> int:
        """Tokens that a request of this run may have: as its agent says, or as a person raised it."""
        policy, said = self.drive.served.agent.context, state.overflow
        assert policy is not None
        raised = values.decode(said.value) if said is not None and said.decision == "raise" else 0
        return max(policy.budget, raised)

    async def _relieved(
        self, state: journal.State, frame: Frame, extra: Mapping[int, str]
    ) -> tuple[Frame, events.ContextCompacted | None] | transactions.AskedAbout | None:
        """A frame with which the request fits, or as small as it gets, and the record of it; or the question what
        becomes of it. None: a cancel or the like comes first."""
        drive, limit = self.drive, self._limit(state)
        assert limit is not None
        forms, own = drive.talk.forms(extra), drive.talk.history.until
        levels = self._levels(state)
        relief = view.relieve(forms, frame.view, own, self._fixed(frame.block), self._room(limit), levels)
        policy, said = drive.served.agent.context, state.overflow
        asks = policy is not None and policy.on_overflow == "ask" and (said is None or said.decision == "raise")
        if asks and relief.size > limit:
            return self._asking(state, frame, extra, limit)
        if relief.view == frame.view:
            return frame, None
        summary, made = self._summary(state, relief.view), Made()
        if self._leaves_out(relief.view):
            await self._read_facts()
        if relief.view.since > frame.view.since:
            left = limit - self._fixed(self._block(state, relief.view, Summary(relief.view.since)))
            length = min(carried.room_for_summary(limit), left - forms.size(relief.view) - _FRAMED)
            found = await self._summarise(state, frame, relief.view.since, limit, length)
            if found is None:
                return None
            made, summary = found, Summary(relief.view.since, found.text, found.by)
        after = Frame(relief.view, self._block(state, relief.view, summary))
        known = self._calibrated(state)
        before, now = (known.counted(sizes.tokens(self._size(f, extra))) for f in (frame, after))
        compaction = events.ContextCompacted(
            step=state.step + 1, before=before, after=now, was=frame.view.dumps(), view=after.view.dumps(),
            summary=made.text, by=made.by, prompt=made.prompt, refused=made.refused,
            offered=self._dropped(frame.view.dumps(), after.view.dumps()) is not None, **made.spent,
        )  # fmt: skip
        return after, compaction

    def _dropped(self, was: Mapping[str, int], seen: Mapping[str, int]) -> transactions.Dropped | None:
        """What goes of earlier turns, where the agent learns from turns."""
        memory = self.drive.served.agent.memory
        went = [seen[name] for name in ("since", "detail") if seen.get(name, 0) > was.get(name, 0)]
        if memory is None or memory.extract is None or not went:
            return None
        return transactions.Dropped(self.drive.row.agent, was.get("since", 0), max(went))

    async def _summarise(self, state: journal.State, frame: Frame, until: int, limit: int, length: int) -> Made | None:
        """What is told in the place of the turns before ``until``, in so many bytes; None: a cancel or the like
        comes first."""
        if length < carried.LEAST // 2:
            return Made()
        drive, since = self.drive, frame.view.since
        before = self._summary(state, frame.view).text
        gone = [i for i in drive.talk.history.items if since <= i.place < until]
        policy, said = drive.served.agent.context, state.overflow
        if said is not None and said.decision == "drop":
            return Made()
        if policy is None or policy.summary == "excerpt":
            return Made(carried.outline(gone, before, length))
        if self._made is not None and self._made[0] == (since, until):
            return self._made[1]
        asked = carried.request(gone, before, limit // 4, length)
        # Record before asking: after a crash we must know that it may have cost something.
        started = events.ModelStarted(step=state.step + 1, model=drive.asked.model.name, summary=True)
        drive.record(await drive.write(transactions.note_down, drive.claim, drive.now(), [started]))
        made = await ask_model(drive, asked, length)
        if made is None:
            await drive.gave_up_summary()
        if made is not None and not made.text:
            made = made._replace(text=carried.outline(gone, before, length))
        if made is not None:
            self._made = (since, until), made
        return made

    async def _read_facts(self) -> None:
        drive = self.drive
        limit = self._limit(drive.state)
        room = carried.MOST if limit is None else max(carried.LEAST, limit // _FACTS_SHARE)
        decided, unknown = await drive.store.read(queries.recorded_facts, drive.claimed.session)
        self._facts = carried.facts(decided, unknown, room)


_Note = tuple[int, str, list[list[str]]]  # ordinal, body, and what it tells of


def _beside() -> int:
    """What the clock weighs, and the tool that is offered once something is left out: no definition holds them."""
    return 200 + outputs.weight_of_read_more()


def digest_of(block: str) -> str:
    """The name of a text that the runtime carries; empty for none."""
    return checksums.of_carried(block) if block else ""


def _range(before: int, after: int) -> str | None:
    """The messages that go, by their references."""
    return f"{view.reference(before)} to {view.reference(after - 1)}" if after > before else None


def _recorded(shown: journal.Shown) -> dict[str, Any]:
    rows = {"recalled": [list(r) for r in shown.recalled], "recalled_by": list(shown.recalled_by)}
    return {**shown._asdict(), "view": shown.view.dumps(), **rows}


def _added(
    state: journal.State, note: _Note | None, steers: Sequence[Steer]
) -> tuple[list[tuple[Steer, int]], dict[int, str], int]:
    """The messages that join, each with its ordinal; all bodies that are new; and the ordinal behind them."""
    upto, extra = state.next_message, dict[int, str]()
    if note is not None:
        extra[note[0]] = note[1]
        upto = max(upto, note[0] + 1)
    joining = [(s, upto + n) for n, s in enumerate(steers)]
    return joining, extra | {ordinal: s.body for s, ordinal in joining}, upto + len(joining)
