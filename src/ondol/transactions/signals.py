"""What does a signal mean: a person's word, or a request to stop?

The same entries and changes follow from it, whoever writes them down: the holder that reads the signal, or the
transaction of the one who decides on a run that nobody holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from ondol import events, ids, journal, messages, values
from ondol.errors import InvalidInput
from ondol.records import AskRow, EffectRow
from ondol.transactions.pieces import Claim, append_entries, held_seq, hold, lost, message_row, restored
from ondol.transactions.statements import Statement, Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a person (or the clock) said to an ask.

    ``kind``: approve, deny, expire (approvals) · answer, expire (questions) · happened, not_happened, give_up (unknown
    effects) · resume, fail (parked runs) · compact, drop, raise, fail (compactions). ``arguments`` replaces the
    arguments in full; ``result`` and ``value`` (of an answer) are encoded.
    """

    kind: str
    arguments: dict[str, Any] | None = None
    result: Any = None
    evidence: str = ""
    reason: str = ""
    value: Any = None

    def dumps(self) -> str:
        return values.dumps({
            "kind": self.kind, "arguments": values.encode(self.arguments), "result": self.result,
            "evidence": self.evidence, "reason": self.reason, "value": self.value,
        })  # fmt: skip

    @staticmethod
    def loads(stored: str) -> Decision:
        raw = values.loads(stored)
        return Decision(**raw | {"arguments": values.decode(raw["arguments"])})

    def same_as(self, other: Decision) -> bool:
        """The same word, whoever says it and why, and in whatever order its keys are."""
        mine, theirs = (
            values.canonical([d.kind, values.encode(d.arguments), d.result, d.value]) for d in (self, other)
        )
        return mine == theirs  # as bytes: to Python, True is 1


STOPS = ("cancel", "interrupt")  # signals that ask a run to stop
_NOT_APPROVED = "nobody approved this call in time, so it was not made"
CONFIRMED = "done (confirmed by a person)"  # where that person gave no result
STEER = "steer"  # a message waits to join the run
CLOCK = "clock"  # the door through which an ask expires
DECISIONS: Mapping[str, tuple[str, ...]] = {
    "approval": ("approve", "deny", "expire"),
    "question": ("answer", "expire"),
    "unknown_effect": ("happened", "not_happened", "give_up"),
    "compaction": ("compact", "drop", "raise", "fail"),
    "parked": ("resume", "fail"),
    "definition_changed": ("resume", "fail"),
}


def refuse_unfit(ask: str, kind: str, decision: str) -> None:
    """Raises InvalidInput where an ask of this kind is not decided so."""
    allowed = DECISIONS[kind]
    if decision not in allowed:
        said = ", ".join(a for a in allowed if a != "expire")
        raise InvalidInput(f"ask {ask} ({kind}) cannot be answered with {decision!r}: say {said}")


def effect_key(ask: AskRow) -> dict[str, Any]:
    assert ask.effect is not None
    run, ordinal = ids.effect_place(ask.effect)
    return {"tenant": ask.tenant, "run": run, "ordinal": ordinal}


def asked(ask: AskRow, decision: Decision, call: int | None = None) -> events.AskDecided:
    edited = values.encode(decision.arguments) if decision.arguments is not None else None
    return events.AskDecided(
        ask=ask.id, decision=decision.kind, by=ask.decided_by or "", door=ask.door or "", call=call, arguments=edited,
        value=decision.value,
    )  # fmt: skip


def settlement(
    ask: AskRow, decision: Decision, ended: bool, at: int
) -> Tx[tuple[EffectRow, list[events.Entry], list[Statement]]]:
    """What a decision about an effect means: entries and changes, the same whoever writes them down."""
    (rows,) = yield [("effect.get", effect_key(ask))]
    effect = EffectRow(*rows[0])
    if decision.kind in ("deny", "expire") and (yield from _is_doubted(effect)):  # approved since the backup, and made?
        entries, writes = lost(effect, ask.user_id, at, "it may have been made after the backup", presumed=True)
        writes.append(("run.wrote", {"tenant": ask.tenant, "run": ask.run}))
        said = asked(ask, decision) if decision.kind == "deny" else events.AskExpired(ask=ask.id)
        return effect, [said, *entries], writes
    made_with = (yield from _replacement(effect)) if decision.kind == "happened" else None
    entries, writes = _meaning(ask, effect, decision, made_with, ended, at)
    if decision.kind == "not_happened" and (refusal := (yield from _refusal(effect))) is not None:
        approval, word = refusal
        (*_, refused), writes = _meaning(approval, effect, word, None, ended, at)
        entries = [*entries[:2], refused]  # what a person, or the clock, had said of it before counts now
    return effect, entries, writes


def _is_doubted(effect: EffectRow) -> Tx[bool]:
    state = yield from restored(effect.tenant, effect.run)
    return state is not None and state.effects[effect.ordinal].doubted


def _refusal(effect: EffectRow) -> Tx[tuple[AskRow, Decision] | None]:
    """Its approval, where that was denied or has expired: it was asked about since all the same, because nobody knew
    whether it had been made."""
    (rows,) = yield [("ask.of_run", {"tenant": effect.tenant, "run": effect.run})]
    approvals = [a for row in rows if (a := AskRow(*row)).effect == effect.id and a.kind == "approval"]
    stored = approvals[-1].checked_decision() if approvals else None
    word = None if stored is None else Decision.loads(stored)
    return None if word is None or word.kind not in ("deny", "expire") else (approvals[-1], word)


def _replacement(effect: EffectRow) -> Tx[dict[str, Any] | None]:
    """The arguments that a person approved in place of the model's, encoded."""
    (rows,) = yield [("ask.of_run", {"tenant": effect.tenant, "run": effect.run})]
    approvals = (a for row in reversed(rows) if (a := AskRow(*row)).effect == effect.id and a.kind == "approval")
    words = (a.checked_decision() for a in approvals)  # None where it is open, or was erased
    said = (Decision.loads(word).arguments for word in words if word is not None)
    replaced = next((arguments for arguments in said if arguments is not None), None)
    return None if replaced is None or effect.parent is not None else values.encode(replaced)


def _meaning(
    ask: AskRow, effect: EffectRow, decision: Decision, made_with: dict[str, Any] | None, ended: bool, at: int
) -> tuple[list[events.Entry], list[Statement]]:
    call = effect.ordinal
    key = {"tenant": effect.tenant, "run": effect.run, "ordinal": call}
    setting = key | {"at": None, "arguments": None}
    decided = asked(ask, decision, call)

    def ends(state: str) -> Statement:
        return "effect.set", setting | {"state": state, "at": at}

    def replies(text: Any, error: bool) -> Statement:
        body = messages.dumps(messages.tool_result(effect.call_id, effect.tool, text, error, made_with=made_with))
        return message_row(effect.tenant, effect.run, effect.reply, body)

    match decision.kind:
        case "answer":
            return [decided], []
        case "expire" if ask.kind == "question" and (default := ask.checked_default()) is not None:
            return [events.AskExpired(ask=ask.id, value=values.loads(default))], []
        case "expire" if ask.kind == "question":
            return [events.AskExpired(ask=ask.id, unanswered=True)], []
        case "approve":
            if decision.arguments is not None:
                setting |= {"arguments": values.dumps(values.encode(decision.arguments))}
            return [decided], [("effect.set", setting | {"state": "approved"})]
        case "deny":
            why = f"{ask.decided_by} refused this call" + (f": {decision.reason}" if decision.reason else "")
            return [decided], [ends("denied"), replies(why, error=True)]
        case "expire":
            entries: list[events.Entry] = [events.AskExpired(ask=ask.id), events.EffectExpired(call=call)]
            return entries, [ends("expired"), replies(_NOT_APPROVED, error=True)]
        case "happened":
            entries = [decided, events.EffectResolved(call=call, outcome="happened")]
            entries.append(events.EffectSucceeded(call=call, by="person"))
            result = decision.result if decision.result is not None else CONFIRMED
            return entries, [ends("succeeded"), replies(result, error=False)]
        case "not_happened":
            entries = [decided, events.EffectResolved(call=call, outcome="not_happened")]
            if ended:
                reason = "it did not happen"
                return [*entries, events.EffectFailed(call=call, reason=reason)], [
                    ends("failed"), replies(reason, error=True),
                ]  # fmt: skip
            return entries, [("effect.set", setting | {"state": "approved"})]
        case _:
            return [decided, events.EffectResolved(call=call, outcome="give_up")], []


@dataclass(slots=True)
class _Read:
    """What unread signals come to: entries, changes, the calls that they settle, and whether a steer came."""

    entries: list[events.Entry]
    writes: list[Statement]
    settled: set[int]
    steered: bool = False


def read_signals(tenant: str, run: str, ended: bool, at: int) -> Tx[_Read]:
    """``ended``: the run ends with this, so only what concerns unknown effects still counts."""
    (signals,) = yield [("signal.unread", {"tenant": tenant, "run": run})]
    read = _Read([], [], set())
    for kind, body, _ in signals:
        if kind in STOPS:
            if not ended:
                read.entries.append(events.RunCancelling(**values.loads(body)))
            continue
        if kind == STEER:
            read.steered = True  # it becomes an entry when it joins
            continue
        (rows,) = yield [("ask.get", {"tenant": tenant, "id": body})]
        ask = AskRow(*rows[0])
        if ended and ask.kind != "unknown_effect":
            continue  # its call is abandoned anyway
        if ask.effect is None:
            read.entries.append(asked(ask, Decision.loads(ask.checked_decision() or "{}")))
            continue
        word = Decision.loads(ask.checked_decision() or "{}")
        effect, entries, writes = yield from settlement(ask, word, ended, at)
        read.entries += entries
        read.writes += writes
        read.settled.add(effect.ordinal)
    return read


class Absorbed(NamedTuple):
    """The entries that the signals became, the messages written with them, and whether a steer waits to join."""

    batch: journal.Batch | None = None
    bodies: Mapping[int, str] = MappingProxyType({})
    steered: bool = False


def absorb(claim: Claim, at: int) -> Tx[Absorbed]:
    """The holder turns the signals of others into entries."""
    key = {"tenant": claim.tenant, "run": claim.run}
    read = yield from read_signals(claim.tenant, claim.run, False, at)
    if not read.entries and not read.steered:
        return Absorbed()
    (held,) = yield [hold(claim, len(read.entries), at)]
    seq = held_seq(held, claim)
    writes = [*read.writes, ("signal.read", key | {"at": at}), ("signal.none_unread", key)]
    batch = None
    if read.entries:
        append, batch = append_entries(claim.tenant, claim.run, claim.fence, seq, at, read.entries)
        writes.insert(0, append)
    yield writes
    bodies = {row["ordinal"]: messages.unpack(row["body"]) for name, row in read.writes if name == "message.insert"}
    return Absorbed(batch, bodies, read.steered)
