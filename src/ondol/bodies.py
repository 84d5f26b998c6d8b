"""How does a program read a run, an ask, an effect, a session? The JSON of each, the same at every door.

Times are ISO 8601 in UTC. Arguments, results, metadata and session states are as ``values.encode`` writes them: what
JSON lacks has a tag.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, cast

from typing_extensions import TypedDict

from ondol import values
from ondol.agent import Agent
from ondol.compacting import Compaction
from ondol.deliveries import OutboxMessage
from ondol.errors import CODES
from ondol.events import Event
from ondol.facts import Fact
from ondol.handles import Act, Ahead, Ask, Effect, Lineage, Pin, Run, Session, SessionMessage
from ondol.journal import RunStatus
from ondol.messages import Message, dumps
from ondol.replay import ReplayVerdict
from ondol.seeing import SeenContext
from ondol.spending import UsageLine
from ondol.usage import Usage


def stamp(at: datetime | None) -> str | None:
    """A time for programs: ISO 8601, UTC."""
    return None if at is None else _stamp(at)


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


class TokensBody(TypedDict):
    """None: nobody said."""

    input: int | None
    output: int | None


class UsageBody(TypedDict):
    """What calls of one model took, in tokens. ``unknown`` calls were not counted by anybody: unknown is not zero."""

    calls: int
    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None
    unknown: int
    estimated: int


class ErrorBody(TypedDict):
    """What ended or parked a run: its ``code`` has a page (``ondol explain CODE``), ``fix`` says what to do."""

    code: str
    message: str
    fix: str


class AheadBody(TypedDict):
    """The run that a queued one waits behind, and the ids of what that waits for."""

    run: str
    state: str
    asks: list[str]


class RunBody(TypedDict):
    id: str
    state: RunStatus
    session: str
    operation_id: str
    agent: str
    user: str | None
    trigger: str
    time_zone: str | None
    metadata: dict[str, Any]
    host: str | None
    replay_of: str | None
    forked_at: int | None
    retryable: bool
    cancelling: bool
    error: ErrorBody | None
    tokens: TokensBody
    usage: dict[str, UsageBody]
    accepted_at: str
    ended_at: str | None
    waits_behind: AheadBody | None


def run_body(run: Run) -> RunBody:
    tokens_in, tokens_out = run.tokens
    return {
        "id": run.id, "state": run.status, "session": run.session,  # type: ignore[typeddict-item]
        "operation_id": run.operation_id, "agent": run.agent, "user": run.user, "trigger": run.trigger,
        "time_zone": run.time_zone, "metadata": values.encode_object(run.metadata), "host": run.host,
        "replay_of": run.replay_of, "forked_at": run.forked_at,
        "retryable": run.retryable, "cancelling": run.cancelling, "error": _error(run.error),
        "tokens": {"input": tokens_in, "output": tokens_out},
        "usage": {model: _usage(used) for model, used in run.usage.items()},
        "accepted_at": _stamp(run.accepted_at), "ended_at": stamp(run.ended_at),
        "waits_behind": None if run.waits_behind is None else _ahead(run.waits_behind),
    }  # fmt: skip


def _error(error: dict[str, Any] | None) -> ErrorBody | None:
    if error is None:
        return None
    code = str(error.get("code", ""))
    return {"code": code, "message": str(error.get("message", "")), "fix": CODES.get(code, CODES["run_failed"])}


def _usage(used: Usage) -> UsageBody:
    return {
        "calls": used.calls, "input": used.input, "output": used.output, "cache_read": used.cache_read,
        "cache_write": used.cache_write, "reasoning": used.reasoning, "unknown": used.unknown,
        "estimated": used.estimated,
    }  # fmt: skip


def _ahead(ahead: Ahead) -> AheadBody:
    return {"run": ahead.run, "state": ahead.state, "asks": [a.id for a in ahead.asks]}


class AskBody(TypedDict):
    """A decision on it names ``arguments_hash``: what was shown is what is decided on."""

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
    opened_at: str
    expires_at: str | None
    decision: str | None
    decided_by: str | None
    decided_at: str | None
    door: str | None
    schema: dict[str, Any] | None
    default: Any
    has_default: bool
    value: Any


def ask_body(ask: Ask) -> AskBody:
    return {
        "id": ask.id, "kind": ask.kind, "state": ask.state, "question": ask.question, "run": ask.run,
        "session": ask.session, "user": ask.user, "tool": ask.tool, "arguments": values.encode(ask.arguments),
        "arguments_hash": ask.arguments_hash, "effect": ask.effect, "opened_at": _stamp(ask.opened_at),
        "expires_at": stamp(ask.expires_at), "decision": ask.decision, "decided_by": ask.decided_by,
        "decided_at": stamp(ask.decided_at), "door": ask.door, "schema": ask.schema,
        "default": values.encode(ask.default), "has_default": ask.has_default, "value": values.encode(ask.value),
    }  # fmt: skip


EffectBody = TypedDict(
    "EffectBody",
    {
        "id": str, "run": str, "session": str, "tool": str, "class": str, "parent": str | None, "state": str,
        "key": str, "arguments": Any, "attempt": int, "decision": str | None, "reason": str | None,
        "warning": str | None, "blob": str | None, "size": int | None, "evidence": str | None,
        "started_at": str | None, "ended_at": str | None, "deadline": str | None, "reuses": str | None,
    },
)  # fmt: skip


def effect_body(effect: Effect) -> EffectBody:
    return {
        "id": effect.id, "run": effect.run, "session": effect.session, "tool": effect.tool, "class": effect.effect,
        "parent": effect.parent, "state": effect.state, "key": effect.key, "arguments": values.encode(effect.arguments),
        "attempt": effect.attempt, "decision": effect.decision, "reason": effect.reason, "warning": effect.warning,
        "blob": effect.blob, "size": effect.size,
        "evidence": effect.evidence,
        "started_at": stamp(effect.started_at), "ended_at": stamp(effect.ended_at), "deadline": stamp(effect.deadline),
        "reuses": effect.reuses,
    }  # fmt: skip


VerdictEffectBody = TypedDict(
    "VerdictEffectBody",
    {"id": str, "run": str, "tool": str, "class": str, "state": str, "at": str | None, "do": str},
)


class VerdictBody(TypedDict):
    """``safe``, ``guarded`` or ``blocked``, why, and what would become of each call."""

    run: str
    kind: Literal["safe", "guarded", "blocked"]
    reasons: list[str]
    effects: list[VerdictEffectBody]
    time_zone: str | None
    accepted_at: str | None


def verdict_body(verdict: ReplayVerdict) -> VerdictBody:
    effects: list[VerdictEffectBody] = [
        {"id": e.id, "run": e.run, "tool": e.tool, "class": e.effect, "state": e.state, "at": stamp(e.at), "do": e.do}
        for e in verdict.effects
    ]
    return {
        "run": verdict.run, "kind": verdict.kind, "reasons": list(verdict.reasons), "effects": effects,
        "time_zone": verdict.time_zone, "accepted_at": stamp(verdict.accepted_at),
    }  # fmt: skip


class PinBody(TypedDict):
    """A text that every request to the models of its session holds, word for word."""

    id: str
    text: str
    by: str
    at: str


def pin_body(pin: Pin) -> PinBody:
    return {"id": pin.id, "text": pin.text, "by": pin.by, "at": _stamp(pin.at)}


class SessionBody(TypedDict):
    id: str
    revision: int
    title: str | None
    user: str | None
    time_zone: str | None
    parent: str | None
    orphaned: bool
    state: Any
    pins: list[PinBody]
    updated_at: str


def session_body(session: Session) -> SessionBody:
    return {
        "id": session.id, "revision": session.revision, "title": session.title, "user": session.user,
        "time_zone": session.time_zone, "parent": session.parent,
        "orphaned": session.orphaned, "state": values.encode(session.state),
        "pins": [pin_body(p) for p in session.pins], "updated_at": _stamp(session.updated_at),
    }  # fmt: skip


class CompactionBody(TypedDict):
    """A compaction of a session; a preview of one where it is not ``applied``.

    ``before`` and ``after`` are estimated tokens of what models are shown of its messages. ``first`` and ``last`` name
    the messages that ``summary`` stands for, None where there was nothing to compact; ``kept`` counts those that stay.
    ``by`` is the model that wrote the summary, empty for an excerpt; in a preview it is the one that would be asked.
    """

    session: str
    revision: int
    applied: bool
    before: int
    after: int
    first: str | None
    last: str | None
    kept: int
    pins: int
    summary: str
    by: str
    refused: str
    offered: list[str]
    tokens: TokensBody


def compaction_body(done: Compaction) -> CompactionBody:
    same = ("session", "revision", "applied", "before", "after", "first", "last", "kept", "pins", "summary", "by",
            "refused")  # fmt: skip
    tokens = TokensBody(input=done.tokens[0], output=done.tokens[1])
    body: Any = {name: getattr(done, name) for name in same} | {"offered": list(done.offered), "tokens": tokens}
    return cast(CompactionBody, body)


class EventBody(TypedDict):
    """What is not stored has no ``id``."""

    id: str | None
    type: str
    at: str
    data: dict[str, Any]


def event_body(event: Event) -> EventBody:
    return {"id": event.id, "type": event.type, "at": _stamp(event.at), "data": event.data}


class FactBody(TypedDict):
    """``run`` is the one that it comes from, ``author`` who wrote it last by hand. ``score``, ``terms`` and
    ``found_by`` where it was searched for."""

    id: str
    fact: Any
    agent: str
    user: str
    run: str | None
    author: str | None
    untrusted: bool
    created_at: str
    updated_at: str
    expires_at: str | None
    score: int | None
    terms: list[str]
    found_by: str | None


def fact_body(fact: Fact) -> FactBody:
    return {
        "id": fact.id, "fact": values.encode(fact.text), "agent": fact.agent, "user": fact.user, "run": fact.run,
        "author": fact.author or None, "untrusted": fact.untrusted, "created_at": _stamp(fact.created_at),
        "updated_at": _stamp(fact.updated_at), "expires_at": stamp(fact.expires_at), "score": fact.score or None,
        "terms": list(fact.terms), "found_by": fact.found_by,
    }  # fmt: skip


class OutboxBody(TypedDict):
    """``due`` is when a pending one is told next; ``error`` is of the last attempt."""

    id: str
    kind: str
    run: str
    state: str
    attempts: int
    at: str
    due: str
    error: str | None


def outbox_body(message: OutboxMessage) -> OutboxBody:
    return {
        "id": message.id, "kind": message.kind, "run": message.run, "state": message.state,
        "attempts": message.attempts, "at": _stamp(message.at), "due": _stamp(message.due), "error": message.error,
    }  # fmt: skip


class ActBody(TypedDict):
    at: str
    by: str
    door: str
    act: str
    subject: str
    note: str


def act_body(act: Act) -> ActBody:
    return {
        "at": _stamp(act.at), "by": act.by, "door": act.door, "act": act.act, "subject": act.subject, "note": act.note,
    }  # fmt: skip


def message_body(message: Message) -> dict[str, Any]:
    """A message as it is stored."""
    body: dict[str, Any] = values.loads(dumps(message))
    return body


class SessionMessageBody(TypedDict):
    """A committed message. ``seq`` orders the session; ``message`` has ``role`` and ``parts``."""

    seq: int
    run: str
    message: dict[str, Any]


def session_message_body(said: SessionMessage) -> SessionMessageBody:
    return {"seq": said.seq, "run": said.run, "message": message_body(said.message)}


class ContextBody(TypedDict):
    """What the model saw at a step. ``matches``: built again from what is stored, it has the recorded hash.

    ``leaves_out``: not all of the session is shown as it was said. ``compaction`` says what was left out from this step
    on, ``before`` holds the messages as they would have been. ``parts`` are the estimated tokens of each kind of part.
    """

    run: str
    step: int
    hash: str
    matches: bool
    incomplete: bool
    leaves_out: bool
    definition: dict[str, Any]
    messages: list[dict[str, Any]]
    compaction: dict[str, Any] | None
    before: list[dict[str, Any]] | None
    parts: dict[str, int]


def context_body(seen: SeenContext) -> ContextBody:
    return {
        "run": seen.run, "step": seen.step, "hash": seen.hash, "matches": seen.matches, "incomplete": seen.incomplete,
        "leaves_out": seen.leaves_out, "definition": values.encode(seen.definition),
        "messages": [message_body(m) for m in seen.messages], "compaction": seen.compaction,
        "before": None if seen.before is None else [message_body(m) for m in seen.before], "parts": dict(seen.parts),
    }  # fmt: skip


class LineageBody(TypedDict):
    """The ids of the run that this one replays or is a fork of, and of the replays and forks of it."""

    origin: str | None
    replays: list[str]
    forks: list[str]


def lineage_body(lineage: Lineage) -> LineageBody:
    return {
        "origin": None if lineage.origin is None else lineage.origin.id,
        "replays": [r.id for r in lineage.replays], "forks": [r.id for r in lineage.forks],
    }  # fmt: skip


class SpentBody(TypedDict):
    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    reasoning: int | None


class UsageLineBody(TypedDict):
    """``key`` is an agent, model, day, session or user: what was asked for. ``cost`` is a decimal as text; None where
    nothing of it has a price."""

    key: str | None
    runs: int
    calls: int
    uncounted_calls: int
    tokens: SpentBody
    cost: str | None
    currency: str | None
    unpriced: list[str]


def usage_line_body(line: UsageLine) -> UsageLineBody:
    tokens = line.tokens
    return {
        "key": line.key, "runs": line.runs, "calls": tokens.calls, "uncounted_calls": tokens.unknown,
        "tokens": {
            "input": tokens.input, "output": tokens.output, "cache_read": tokens.cache_read,
            "cache_write": tokens.cache_write, "reasoning": tokens.reasoning,
        },
        "cost": None if line.cost is None else f"{line.cost:f}", "currency": line.currency or None,
        "unpriced": list(line.unpriced),
    }  # fmt: skip


class ToolBody(TypedDict):
    name: str
    description: str
    effect: str
    parameters: dict[str, Any]


class AgentBody(TypedDict):
    name: str
    model: list[str]
    instructions: str
    tools: list[ToolBody]


def agent_body(agent: Agent) -> AgentBody:
    described = agent.definition()
    model = described["model"]
    tools: list[ToolBody] = [
        {"name": t["name"], "description": t["description"] or "", "effect": t["effect"], "parameters": t["parameters"]}
        for t in described["tools"]
    ]
    return {
        "name": agent.name, "model": [model] if isinstance(model, str) else model,
        "instructions": described["instructions"], "tools": tools,
    }  # fmt: skip
