"""What does a client hold, of what a server tells? The way back from each body of ``bodies``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from ondol import clock, messages, pins, usage, values
from ondol.bodies import CompactionBody
from ondol.compacting import Compaction
from ondol.deliveries import OutboxMessage
from ondol.events import Event
from ondol.facts import Fact
from ondol.handles import Ask, Effect, Run, Session
from ondol.ids import DEFAULT_TENANT
from ondol.records import RunRow, SessionRow
from ondol.replay import ReplayEffect, ReplayVerdict
from ondol.seeing import SeenContext
from ondol.spending import UsageLine
from ondol.usage import Usage


def run_of(there: Any, body: Mapping[str, Any]) -> Run:
    """``there`` is what the handle asks: it needs no more of a runtime than a client has."""
    return Run(there, run_row(body))


def run_row(body: Mapping[str, Any]) -> RunRow:
    """A run's row, as far as its body tells of it."""
    used = {model: Usage(**of) for model, of in body["usage"].items()}
    accepted = clock.to_micros(_at(body["accepted_at"]))
    ended = _maybe(body["ended_at"])
    error = body["error"] and values.dumps({k: body["error"][k] for k in ("code", "message")})
    known = {
        "tenant": DEFAULT_TENANT, "id": body["id"], "session": body["session"], "user_id": body["user"] or "",
        "operation_id": body["operation_id"], "agent": body["agent"], "trigger": body["trigger"],
        "zone": body["time_zone"], "state": body["state"], "retryable": int(body["retryable"]),
        "cancel": int(body["cancelling"]), "error": error, "tokens_in": body["tokens"]["input"],
        "tokens_out": body["tokens"]["output"], "accepted_at": accepted, "updated_at": accepted,
        "ended_at": None if ended is None else clock.to_micros(ended), "replay_of": body["replay_of"],
        "forked_at": body["forked_at"], "usage": usage.dumps(used), "host": body["host"],
        "metadata": values.dumps(body["metadata"]),
    }  # fmt: skip
    unknown: dict[str, Any] = {"fingerprint": "", "definition": "", "door": "http"}
    numbers = ("place", "fence", "next_seq", "deaths", "unread", "wrote", "told")
    columns: list[Any] = [known.get(name, unknown.get(name, 0 if name in numbers else None)) for name in RunRow._fields]
    return RunRow(*columns)


def session_of(there: Any, body: Mapping[str, Any]) -> Session:
    at = clock.to_micros(_at(body["updated_at"]))
    known = {
        "tenant": DEFAULT_TENANT, "id": body["id"], "revision": body["revision"], "title": body["title"],
        "state": values.dumps(body["state"]), "created_at": at, "updated_at": at, "zone": body["time_zone"],
        "parent": body["parent"], "orphaned": int(body["orphaned"]), "user_id": body["user"],
        "pins": pins.dumps(_pins(body["pins"])),
    }  # fmt: skip
    numbers = ("next_message", "next_place")
    columns: list[Any] = [known.get(name, 0 if name in numbers else None) for name in SessionRow._fields]
    return Session(there, SessionRow(*columns))


def _pins(listed: list[Mapping[str, Any]]) -> pins.Pins:
    return pins.Pins(tuple(pins.Pinned(p["id"], p["text"], p["by"], clock.to_micros(_at(p["at"]))) for p in listed))


def ask_of(there: Any, body: Mapping[str, Any]) -> Ask:
    same = ("id", "kind", "state", "question", "run", "session", "user", "tool", "arguments_hash", "effect",
            "decision", "decided_by", "door", "schema", "has_default")  # fmt: skip
    return Ask(
        **{name: body[name] for name in same}, arguments=values.decode(body["arguments"]),
        opened_at=_at(body["opened_at"]), expires_at=_maybe(body["expires_at"]),
        decided_at=_maybe(body["decided_at"]), default=values.decode(body["default"]),
        value=values.decode(body["value"]), _rt=there, _tenant=DEFAULT_TENANT,
    )  # fmt: skip


def effect_of(body: Mapping[str, Any]) -> Effect:
    same = ("id", "run", "session", "tool", "state", "key", "attempt", "decision", "reason", "warning", "blob", "size",
            "evidence", "parent", "reuses")  # fmt: skip
    return Effect(
        **{name: body[name] for name in same}, effect=body["class"], arguments=values.decode(body["arguments"]),
        started_at=_maybe(body["started_at"]), ended_at=_maybe(body["ended_at"]), deadline=_maybe(body["deadline"]),
    )  # fmt: skip


def verdict_of(body: Mapping[str, Any]) -> ReplayVerdict:
    effects = tuple(
        ReplayEffect(id=e["id"], run=e["run"], tool=e["tool"], effect=e["class"], state=e["state"], at=_maybe(e["at"]),
                     do=e["do"])
        for e in body["effects"]
    )  # fmt: skip
    return ReplayVerdict(
        run=body["run"], kind=body["kind"], reasons=tuple(body["reasons"]), effects=effects,
        time_zone=body.get("time_zone"), accepted_at=_maybe(body.get("accepted_at")),
    )  # fmt: skip


def compaction_of(body: CompactionBody) -> Compaction:
    tokens = body["tokens"]["input"], body["tokens"]["output"]
    given: dict[str, Any] = {**body, "offered": tuple(body["offered"]), "tokens": tokens}
    return Compaction(**given)


def event_of(body: Mapping[str, Any]) -> Event:
    return Event(type=body["type"], data=body["data"], at=_at(body["at"]), id=body["id"])


def message_of(body: Mapping[str, Any]) -> messages.Message:
    return messages.loads(values.dumps(body))


def context_of(body: Mapping[str, Any]) -> SeenContext:
    return SeenContext(
        run=body["run"], step=body["step"], messages=[message_of(m) for m in body["messages"]],
        definition=values.decode(body["definition"]), hash=body["hash"], matches=body["matches"],
        incomplete=body["incomplete"], leaves_out=body["leaves_out"], compaction=body["compaction"],
        before=None if body["before"] is None else [message_of(m) for m in body["before"]], parts=body["parts"],
    )  # fmt: skip


def fact_of(body: Mapping[str, Any]) -> Fact:
    same = ("id", "agent", "user", "untrusted", "run", "found_by")
    return Fact(
        **{name: body[name] for name in same}, text=values.decode(body["fact"]), author=body["author"] or "",
        created_at=_at(body["created_at"]), updated_at=_at(body["updated_at"]), expires_at=_maybe(body["expires_at"]),
        score=body["score"] or 0, terms=tuple(body["terms"]),
    )  # fmt: skip


def outbox_message_of(body: Mapping[str, Any]) -> OutboxMessage:
    same = ("id", "kind", "run", "state", "attempts", "error")
    return OutboxMessage(
        **{name: body[name] for name in same}, at=_at(body["at"]), due=_at(body["due"]), tenant=DEFAULT_TENANT
    )


def usage_line_of(body: Mapping[str, Any]) -> UsageLine:
    tokens = body["tokens"]
    return UsageLine(
        key=body["key"], runs=body["runs"],
        tokens=Usage(
            calls=body["calls"], input=tokens["input"], output=tokens["output"], cache_read=tokens["cache_read"],
            cache_write=tokens["cache_write"], reasoning=tokens["reasoning"], unknown=body["uncounted_calls"],
        ),
        cost=None if body["cost"] is None else Decimal(body["cost"]), currency=body["currency"] or "",
        unpriced=tuple(body["unpriced"]),
    )  # fmt: skip


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _maybe(text: str | None) -> datetime | None:
    return None if text is None else _at(text)
