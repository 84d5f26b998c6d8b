"""What becomes of the calls of an answer: planned, asked about, or refused at once?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from ondol import events, ids, messages, policy, values
from ondol.clock import to_micros
from ondol.errors import InvalidInput
from ondol.messages import Message, Reasoning, Text, ToolCall
from ondol.model import Answer
from ondol.records import RunRow
from ondol.tools import Context, Tool
from ondol.transactions import Given, PlannedCall

_REFUSAL_SHOWN = 2_000  # characters; it may name what a model made up


def message_of(answer: Answer, run: str, number: int, taken: Set[str], provider: str) -> Message:
    """The answer as it is recorded: without blank texts, each call with an id of its own, and what is private with the
    name of its ``provider``, unless it carries one.

    Some models repeat call ids or give none; results could not be told apart. Others give ids that the next provider
    refuses. ``number`` is the ordinal of the answer's first call in the run, ``taken`` holds the ids that the run has
    used.
    """
    parts: list[messages.Part] = []
    used = set[str]()
    for part in answer.parts:
        if isinstance(part, Text) and not part.text.strip():
            continue
        if isinstance(part, ToolCall):
            # Names and ids come from a model too: what is not valid Unicode is replaced before anybody looks.
            id, name = values.valid(part.id), values.valid(part.name)
            if id in taken or id in used or not ids.is_plain(id):
                id = f"call_{run}_{number}"
            used.add(id)
            part = ToolCall(id, name, part.arguments, part.provider)
            number += 1
        if isinstance(part, Text | Reasoning | ToolCall) and part.provider:
            part = replace(part, provider={"name": provider, **part.provider})
        parts.append(part)
    return Message("assistant", tuple(parts))


def plan(
    call: ToolCall,
    number: int,
    reply: int,
    *,
    stop: str,
    run: str,
    tools: Mapping[str, Tool[..., Any]],
    context: Callable[[Tool[..., Any], int], Context[Any]],
    vet: Callable[[Tool[..., Any], Mapping[str, Any]], policy.Said | None],
    now: datetime,
    asks: str | None = None,
) -> tuple[PlannedCall, Mapping[str, Any] | None]:
    """The plan of one call, and its arguments as the tool takes them, unless it is refused.

    ``number`` is the call's ordinal in the run, ``reply`` the ordinal of its result's message. ``vet`` is what the
    policy says about a call of that tool with those arguments. ``asks`` says why a person decides first, whatever the
    policy and the tool say.
    """
    tool = tools.get(call.name)
    parsed: Mapping[str, Any] | None = None
    refusal = _refusal(call, tools, stop)
    if refusal is None and tool is not None and isinstance(call.arguments, dict):
        try:
            allowed, parsed = gate(tool, call.arguments, lambda: context(tool, number), vet)
            if asks is not None and allowed.refusal is None:
                allowed = policy.Permission(f"ask: {asks}", asks=asks)
        except InvalidInput as error:
            allowed = policy.Permission("refused", refusal=str(error))
    else:
        allowed = policy.Permission("refused", refusal=refusal)
    refusal = allowed.refusal and values.excerpt(values.valid(allowed.refusal), _REFUSAL_SHOWN)
    ask = ids.ask_id(run, str(number)) if allowed.asks is not None else None
    expires = tool.approve_expires if tool is not None and ask is not None else None
    encoded = values.encode(call.arguments)
    refused = None if refusal is None else messages.tool_result(call.id, call.name, refusal, error=True)
    planned = PlannedCall(
        entry=events.EffectPlanned(
            call=number,
            tool=call.name,
            effect=tool.effect if tool else "once",
            ask=ask,
            decision="" if allowed.decision in (None, "refused") else allowed.decision,
        ),
        reply=reply,
        call_id=call.id,
        arguments=values.dumps(encoded),
        hash="" if ask is None else values.digest(encoded),
        decision=allowed.decision,
        question="" if ask is None else f"{call.name} wants to run. Approve it?",
        expires_at=None if expires is None else to_micros(now + expires),
        refusal=None if refused is None else messages.dumps(refused),
        refusal_reason=refusal or "",
    )
    return planned, parsed


def policy_call(run: RunRow, tool: Tool[..., Any], arguments: Mapping[str, Any]) -> policy.PolicyCall:
    """The call as a policy sees it. Its arguments are made anew: nothing that a policy does to them reaches the tool.

    Raises:
        InvalidInput: the arguments do not fit the tool.
    """
    return policy.PolicyCall(
        tenant=run.tenant, user=run.user_id or None, agent=run.agent, session=run.session, tool=tool.name,
        effect=tool.effect, arguments=tool.parse(arguments),
    )  # fmt: skip


def gate(
    tool: Tool[..., Any],
    arguments: Mapping[str, Any],
    context: Callable[[], Context[Any]],
    vet: Callable[[Tool[..., Any], Mapping[str, Any]], policy.Said | None],
) -> tuple[policy.Permission, Mapping[str, Any] | None]:
    """What every call passes before it is planned, and its arguments as the tool takes them if it passes.

    Raises:
        InvalidInput: the arguments do not fit the tool.
    """
    parsed = tool.parse(arguments)
    allowed = policy.permission(vet(tool, arguments), lambda: tool.needs_approval(context, arguments))
    return allowed, None if allowed.refusal is not None else parsed


class Outcome(NamedTuple):
    """An outcome without a call. ``by`` says where it is from, ``reuses`` of which effect it is."""

    by: str
    response: Any
    error: bool = False
    patch: Mapping[str, Any] = {}
    blob: messages.Blob | None = None
    attached: tuple[messages.Attachment, ...] = ()
    pins: tuple[str, ...] = ()
    reuses: str | None = None


def given(planned: PlannedCall, outcome: Outcome) -> PlannedCall:
    """The plan of a call that is not made: it has this outcome at once, and asks nobody."""
    call = planned.entry
    result = messages.tool_result(
        planned.call_id, call.tool, outcome.response, outcome.error, outcome.blob, outcome.attached
    )
    patch, pins = dict(outcome.patch), list(outcome.pins)
    succeeded = events.EffectSucceeded(call=call.call, by=outcome.by, patch=patch, pins=pins)
    return planned._replace(
        entry=replace(call, ask=None, decision=outcome.by, reuses=outcome.reuses), decision=outcome.by, hash="",
        question="", expires_at=None, given=Given(succeeded, messages.dumps(result), outcome.blob, outcome.attached),
    )  # fmt: skip


def _refusal(call: ToolCall, tools: Mapping[str, Tool[..., Any]], stop: str) -> str | None:
    if stop == "length":
        return "not called: the answer was cut off by its length limit before it was complete"
    if call.name not in tools:
        return f"there is no tool {call.name!r}; the tools are: {', '.join(tools) or 'none'}"
    if isinstance(call.arguments, str):
        return "not called: the arguments are not a JSON object"
    return None
