"""What did the model see at a step? Built again from what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ondol import context, events, journal, outputs, queries, search, sizes, values
from ondol.errors import NotFound
from ondol.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResponse
from ondol.view import View

#: The kinds of parts that a request is put together from, in the order in which it is read. ``carried``: what the
#: runtime carries word for word, with a summary of what is not shown. ``found``: what the agent's searches found.
PARTS = (
    "instructions", "tools", "memory", "clock", "carried", "people", "answers", "reasoning", "calls", "results",
    "found", "files", "notes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenContext:
    """What the model saw at a step, built again from what is stored. ``matches``: its hash is the recorded one.

    ``incomplete``: the session that this one goes on from was erased, so that its messages are missing here.
    ``leaves_out``: not all of the session is shown as it was said. ``compaction`` says what was left out from this step
    on, if anything was: see ``events.ContextCompacted``. Then ``before`` are the messages as they would have been.
    ``parts`` are the estimated tokens of each kind of part (``PARTS``) that it has.
    """

    run: str
    step: int
    messages: list[Message]
    definition: dict[str, Any]
    hash: str
    matches: bool
    incomplete: bool = False
    leaves_out: bool = False
    compaction: dict[str, Any] | None = None
    before: list[Message] | None = None
    parts: Mapping[str, int] = field(default_factory=dict)


class ContextPlace(NamedTuple):
    """Where a context was built: the entry, what it shows, and the ordinal up to which it holds own messages."""

    built: events.ContextBuilt
    shown: journal.Shown
    upto: int
    compaction: events.ContextCompacted | None = None


def context_place(run: str, batches: Sequence[journal.Batch], step: int | None) -> ContextPlace:
    """The context of a step, or the last one. Raises NotFound."""
    state = journal.State()
    found: ContextPlace | None = None
    steps: list[int] = []
    for batch in batches:
        for entry in batch.entries:
            if isinstance(entry, events.RunJoined):
                raise NotFound(f"run {run} is part of run {entry.host}, whose model saw it: look at that one")
            state = journal.apply(state, entry, batch.at)
            if isinstance(entry, events.ContextBuilt) and state.shown is not None:
                steps.append(entry.step)
                if step not in (None, entry.step):
                    continue
                less = state.compacted if state.compacted and state.compacted.step == entry.step else None
                found = ContextPlace(entry, state.shown, state.next_message, less)
    if found is None:
        if not steps:
            raise NotFound(f"run {run} has not asked the model yet") if batches else queries.erased(run)
        there = f"{steps[0]}" if steps[0] == steps[-1] else f"{steps[0]} to {steps[-1]}"
        raise NotFound(f"run {run} has no step {step!r}: say {there}")
    return found


def seen_context(
    run: str,
    place: ContextPlace,
    described: str | None,
    history: Sequence[tuple[int, str]],
    own: Mapping[int, str],
    incomplete: bool,
    carried: str,
) -> SeenContext:
    """What the model saw there, from the stored bodies of the definition, the session's history and the run's own
    messages. ``incomplete``: a part of the history was erased.

    Raises:
        NotFound: the definition is not stored any more.
    """
    if described is None:
        raise NotFound(f"the definition of run {run} is not stored any more")
    definition = values.loads(described)
    mine = {o: body for o, body in own.items() if o >= 0}
    seen, digest = context.rebuild(definition, place.shown, history, mine, place.upto, carried)
    less, before = place.compaction, None
    if less is not None:
        then = place.shown._replace(view=View(**less.was))
        before, _ = context.rebuild(definition, then, history, mine, place.upto, "")
    return SeenContext(
        leaves_out=place.shown.view.last > 0, compaction=None if less is None else events.to_json(less)[1],
        before=before,
        run=run, step=place.built.step, messages=seen, definition=values.decode(definition), hash=place.built.hash,
        matches=digest == place.built.hash, incomplete=incomplete, parts=_parts(seen, definition, place.shown, carried),
    )  # fmt: skip


def _parts(
    seen: Sequence[Message], definition: Mapping[str, Any], shown: journal.Shown, carried: str
) -> dict[str, int]:
    system, *rest = seen
    weights: dict[str, int] = dict.fromkeys(PARTS, 0)
    weights["instructions"] = sizes.weight_of_text(values.valid(values.decode(definition["instructions"])))
    weights["memory"] = sizes.weight_of_text(context.recalled_text(shown.recalled)) if shown.recalled else 0
    weights["clock"] = sizes.weight_of_text(system.text) - weights["instructions"] - weights["memory"]
    weights["tools"] = len(values.dumps(definition.get("tools", [])).encode())
    if shown.view.last or outputs.blobs_of(seen):
        weights["tools"] += outputs.weight_of_read_more()
    if carried:
        weights["carried"] = sizes.weight_of_text(rest.pop(0).text)
    for message in rest:
        for part in message.parts:
            weights[_kind(message, part)] += _weight(message, part)
    return {kind: sizes.tokens(weight) for kind, weight in weights.items() if weight}


def _weight(message: Message, part: Part) -> int:
    match part:
        case Attachment():
            return sizes.weight_of_attachment(part)
        case Text(text=text):
            return sizes.weight_of_text(text)
        case _:
            return sizes.weight_of(Message(message.role, (part,)))


def _kind(message: Message, part: Part) -> str:
    match part:
        case Attachment():
            return "files"
        case ToolCall():
            return "calls"
        case ToolResponse(name=search.NAME):
            return "found"
        case ToolResponse():
            return "results"
        case Reasoning():
            return "reasoning"
        case _ if message.role == "assistant":
            return "answers"
        case _:
            return "notes" if message.origin == "runtime" else "people"
