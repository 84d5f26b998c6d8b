"""How does a program read a run, an ask, an effect, a session? The JSON of each."""

from __future__ import annotations

from typing import Any

from ondol import values
from ondol.cli.output import stamp
from ondol.events import Event
from ondol.handles import Act, Ask, Effect, Run, Session
from ondol.replay import ReplayVerdict


def run_body(run: Run) -> dict[str, Any]:
    tokens_in, tokens_out = run.tokens
    return {
        "id": run.id, "state": run.status, "session": run.session, "operation_id": run.operation_id,
        "agent": run.agent, "user": run.user, "trigger": run.trigger, "time_zone": run.time_zone, "host": run.host,
        "replay_of": run.replay_of, "forked_at": run.forked_at,
        "retryable": run.retryable, "cancelling": run.cancelling, "error": run.error,
        "tokens": {"input": tokens_in, "output": tokens_out},
        "usage": {model: used._asdict() for model, used in run.usage.items()},
        "accepted_at": stamp(run.accepted_at), "ended_at": stamp(run.ended_at),
    }  # fmt: skip


def ask_body(ask: Ask) -> dict[str, Any]:
    return {
        "id": ask.id, "kind": ask.kind, "state": ask.state, "question": ask.question, "run": ask.run,
        "session": ask.session, "user": ask.user, "tool": ask.tool, "arguments": values.encode(ask.arguments),
        "arguments_hash": ask.arguments_hash, "effect": ask.effect, "opened_at": stamp(ask.opened_at),
        "expires_at": stamp(ask.expires_at), "decision": ask.decision, "decided_by": ask.decided_by,
        "decided_at": stamp(ask.decided_at), "door": ask.door, "schema": ask.schema,
        "default": values.encode(ask.default), "has_default": ask.has_default, "value": values.encode(ask.value),
    }  # fmt: skip


def effect_body(effect: Effect) -> dict[str, Any]:
    return {
        "id": effect.id, "run": effect.run, "session": effect.session, "tool": effect.tool, "class": effect.effect,
        "parent": effect.parent, "state": effect.state, "key": effect.key, "arguments": values.encode(effect.arguments),
        "attempt": effect.attempt, "decision": effect.decision, "reason": effect.reason, "warning": effect.warning,
        "blob": effect.blob, "size": effect.size,
        "evidence": effect.evidence,
        "started_at": stamp(effect.started_at), "ended_at": stamp(effect.ended_at), "deadline": stamp(effect.deadline),
        "reuses": effect.reuses,
    }  # fmt: skip


def verdict_body(verdict: ReplayVerdict) -> dict[str, Any]:
    effects = [
        {"id": e.id, "run": e.run, "tool": e.tool, "class": e.effect, "state": e.state, "at": stamp(e.at), "do": e.do}
        for e in verdict.effects
    ]
    return {"run": verdict.run, "kind": verdict.kind, "reasons": list(verdict.reasons), "effects": effects}


def session_body(session: Session) -> dict[str, Any]:
    return {
        "id": session.id, "revision": session.revision, "title": session.title,
        "parent": session.parent,
        "orphaned": session.orphaned, "state": values.encode(session.state), "updated_at": stamp(session.updated_at),
    }  # fmt: skip


def event_body(event: Event) -> dict[str, Any]:
    return {"id": event.id, "type": event.type, "at": stamp(event.at), "data": event.data}


def act_body(act: Act) -> dict[str, Any]:
    return {
        "at": stamp(act.at), "by": act.by, "door": act.door, "act": act.act, "subject": act.subject, "note": act.note,
    }  # fmt: skip
