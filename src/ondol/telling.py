"""What does a watcher read of an entry of a journal, and how does it name the place where it stands?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ondol import clock, events, ids, journal, messages, values
from ondol.errors import WrongCursor
from ondol.events import Event
from ondol.messages import Message


def told_of(entry: events.Entry, state: journal.State) -> tuple[int, ...]:
    """The ordinals of the messages that ``event_of`` looks at."""
    match entry:
        case events.ModelCompleted(message=ordinal):
            return (ordinal,)
        case events.EffectPlanned(call=call):
            return (state.effects[call].message,)
        case events.EffectSucceeded(call=call) | events.EffectFailed(call=call):
            return (state.effects[call].reply,)
        case events.RunCompleted() if state.answered is not None:
            return (state.answered,)
        case _:
            return ()


def cursor(run: str, after: str | None) -> int:
    """The sequence behind which a watcher wants to go on. Raises WrongCursor for the id of no event of the run."""
    if after is None:
        return 0
    of_run, _, seq = after.rpartition("/") if isinstance(after, str) else ("", "", "")
    if of_run != run or not seq.isdecimal() or len(seq) > 18:
        raise WrongCursor(f"{after!r} is not an event of run {run}: give the id of an event of this run")
    return int(seq)


def event_of(
    run: str, seq: int, at: int, entry: events.Entry, bodies: Mapping[int, Message], state: journal.State
) -> Event:
    """An entry as watchers see it: with the ids that people use and, for answers and calls, what was said."""
    data: dict[str, Any] = events.to_json(entry)[1]
    if (call := data.get("call")) is not None:
        data["effect"] = ids.effect_id(run, call)
    match entry:
        case events.ModelCompleted(message=ordinal) if ordinal in bodies:
            data["text"] = values.valid(bodies[ordinal].text)
        case events.EffectPlanned(call=call):
            effect = state.effects[call]
            if effect.message in bodies:
                data["arguments"] = values.encode(bodies[effect.message].calls[effect.part].arguments)
            data["class"] = entry.effect
            if entry.parent is not None:
                data["parent"] = ids.effect_id(run, entry.parent)
        case events.EffectSucceeded() | events.EffectFailed():
            effect = state.effects[entry.call]
            data["tool"] = effect.tool
            reply = bodies.get(effect.reply)
            if reply is not None and isinstance(part := reply.parts[0], messages.ToolResponse):
                data["result"] = part.response
                if part.blob is not None:
                    data |= {"blob": part.blob.digest, "size": part.blob.size}
        case events.EffectStarted() | events.EffectUnknown():
            data["tool"] = state.effects[entry.call].tool
        case events.RunCompleted():
            final = bodies.get(state.answered) if state.answered is not None else None
            data["text"] = values.valid(final.text) if final else ""
        case _:
            pass
    return Event(type=entry.kind, data=data, at=clock.from_micros(at), id=f"{run}/{seq}")
