"""How do an event and an ask read, in a line or two?"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ondol import schemas, values
from ondol.cli.output import say
from ondol.cli.surface import Cli
from ondol.errors import RunWaiting
from ondol.events import Event
from ondol.handles import Ask
from ondol.showing import called, exact, safe, short

_SAID_BY = {
    "tool": "", "check": " (check says so)", "person": " (a person says so)", "recorded": " (recorded, not made again)",
    "stub": " (made up, not made)",
}  # fmt: skip


def happened(event: Event) -> str:
    """What an event says, beside its type."""
    d = event.data
    match event.type:
        case "run.accepted":
            said = f"agent {d['agent']}, session {d['session']}"
        case "run.origin" if d.get("at_step"):
            said = f"fork of run {d['of']} at step {d['at_step']}, later writes: {d['effects']}"
        case "run.origin":
            forced = f", forced by {d['by']}: {d['why']}" if d.get("by") else ""
            said = f"replay of run {d['of']}{forced}"
        case "run.replayed":
            said = f"by run {d['run']}, so it will not go on"
        case "run.queued":
            said = d["why"] + (f", its process died ({d['deaths']} in a row)" if d.get("deaths") else "")
        case "run.waiting":
            said = "for " + ", ".join(d["asks"])
        case "run.failed":
            said = f"{d['code']}: {d['message']}" + (" (can go on)" if d.get("retryable") else "")
        case "run.cancelling" | "run.cancelled":
            how = "interrupted " if d.get("interrupted_by") else ""
            said = how + _by(d) + (f": {d['reason']}" if d.get("reason") else "")
        case "run.parked":
            said = f"{d['why']}, ask {d['ask']}"
        case "run.joined":
            said = f"run {d['host']}" + (f", it answers {d['ask']}" if d.get("ask") else "")
        case "session.committed":
            said = f"revision {d['revision']}"
        case "context.compacted":
            said = f"step {d['step']}, about {d['after']} tokens instead of {d['before']}"
        case "step.started" | "step.completed" | "context.built":
            said = f"step {d['step']}"
        case "step.failed":
            again = "" if d.get("retry_at") is None else ", tried again"
            again = again if d.get("fallback") is None else ", the next model takes over"
            said = f"step {d['step']}, attempt {d['attempt']}: {d['error']}: {d['message']}{again}"
        case "model.started":
            what = ", a summary" if d.get("summary") else ""
            said = f"step {d['step']}{what}" + (f", {d['model']}" if d.get("model") else "")
        case "model.completed":
            said = f"step {d['step']}" + (f": {short(d['text'])}" if d.get("text") else "")
        case "effect.planned":
            call = called(d["tool"], values.decode(d["arguments"])) if "arguments" in d else d["tool"]
            said = f"{call} {d.get('class', d['effect'])}" + (f", ask {d['ask']}" if d.get("ask") else "")
            said += f", step {d['place']} of {d['parent']}" if "parent" in d else ""
            said += f", has the outcome of {d['reuses']}" if d.get("reuses") else ""
        case "effect.started":
            said = f"{d['tool']} attempt {d['attempt']}"
        case "effect.succeeded":
            how = _SAID_BY[d.get("by", "tool")]
            said = f"{d['tool']}{how}" + (f": {short(values.plain_text(d['result']))}" if "result" in d else "")
            said += f" ({d['size']} bytes, blob {d['blob']})" if "blob" in d else ""
            said += f" (warning: {d['warning']})" if d.get("warning") else ""
        case "effect.failed":
            said = f"{d['tool']}: {d.get('reason', '')}"
        case "effect.unknown":
            said = f"{d['tool']}: {d.get('reason', '')}, ask {d['ask']}"
        case "effect.resolved":
            said = f"{d['effect']}: {d['outcome']}"
        case "ask.opened":
            said = f"{d['ask']} {d['ask_kind']}"
        case "ask.decided":
            what = f"answer {values.plain_text(d['value'])}" if "value" in d else d["decision"]
            said = f"{d['ask']} {what} {_by(d)}"
        case "ask.expired":
            default = f", answered by default: {values.plain_text(d['value'])}" if "value" in d else ""
            said = d["ask"] + (", not answered" if d.get("unanswered") else default)
        case "run.expired":
            said = d["message"]
        case "progress":
            done = f" {d['fraction']:.0%}" if d.get("fraction") is not None else ""
            said = f"{d.get('tool', '')}{done} {d.get('note', '')}".strip()
        case "run.completed":
            said = ""
        case _:
            said = ", ".join(f"{k}={v}" for k, v in d.items() if k not in ("call", "text"))
    return safe(said)


def of_effect(event: Event) -> str | None:
    """The one line that an effect gets while a run is followed; None for what is no outcome."""
    d = event.data
    match event.type:
        case "effect.succeeded":
            how = {
                "tool": "done", "check": "done: check found that it happened", "person": "done: a person says so",
                "recorded": "recorded: not made again", "stub": "made up: not made",
            }  # fmt: skip
            return f"{safe(d['tool']):<16} {how[d.get('by', 'tool')]}"
        case "effect.failed":
            return f"{safe(d['tool']):<16} failed: {safe(short(d.get('reason', '')))}"
        case "effect.unknown":
            return f"{safe(d['tool']):<16} unknown: {safe(d.get('reason', ''))}"
        case _:
            return None


def _by(data: dict[str, Any]) -> str:
    return f"by {data['by']}" if data.get("by") else ""


def say_asks(cli: Cli, waiting: RunWaiting, asks: Sequence[Ask]) -> None:
    """What a run waits for, with the exact arguments, and the commands that decide."""
    say(f"waiting [{waiting.code}]: run {waiting.run} waits for a person")
    for ask in asks:
        say_ask(cli, ask)


def say_ask(cli: Cli, ask: Ask) -> None:
    if ask.tool is not None:
        say(f"  {ask.id}  {ask.kind}  {called(ask.tool, ask.arguments)}")
    else:
        say(f"  {ask.id}  {ask.kind}  {safe(ask.question)}")
    for command in deciding(cli, ask):
        say(f"    {command}")


def decided(ask: Ask) -> str:
    """What was decided; of a question, its answer."""
    return f"answer {exact(ask.value)}" if ask.decision == "answer" else ask.decision or ""


def deciding(cli: Cli, ask: Ask) -> list[str]:
    """The commands that decide an ask, ready to be copied but for NAME and the reasons."""
    match ask.kind:
        case "approval":
            return [
                cli.command("asks", "approve", ask.id, "--by", "NAME"),
                cli.command("asks", "deny", ask.id, "--by", "NAME", "--reason", "WHY"),
            ]
        case "unknown_effect":
            settle = ("effects", "resolve", ask.effect or "")
            said = ("--evidence", "WHAT YOU SAW", "--by", "NAME")
            return [cli.command(*settle, f"--{outcome}", *said) for outcome in ("happened", "not-happened", "give-up")]
        case "question":
            by, choices = ("--by", "NAME"), schemas.choices(ask.schema or {}) or ["VALUE"]
            answer = functools.partial(cli.command, "asks", "answer")  # what begins with - would be an option
            return [answer(*by, "--", ask.id, v) if v.startswith("-") else answer(ask.id, v, *by) for v in choices]
        case "compaction":
            words = ("compact", "drop", "raise", "fail")
            return [cli.command("asks", "answer", ask.id, word, "--by", "NAME") for word in words]
        case _:
            return [cli.command("asks", "answer", ask.id, word, "--by", "NAME") for word in ("resume", "fail")]
