"""How does a model make a summary, and what if it makes none?

It is asked like for any answer, and its answer is believed only in its form: a text of words. Whatever it says,
permissions are decided elsewhere. Anything else is refused, and the caller goes on without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ondol import carried, hearing, ids, limits, transactions, usage, values
from ondol.clock import Clock, micros
from ondol.errors import ModelError
from ondol.messages import Message
from ondol.model import Answer, Delta, Model, ModelRequest, spent_on
from ondol.records import SessionRow
from ondol.secret import redact
from ondol.store import Store

if TYPE_CHECKING:
    from ondol.runner import Drive, Served

_PATIENCE = 120.0  # seconds that somebody waits for a summary that they asked for by hand
_LATE = "it did not come in time"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Made(NamedTuple):
    """``text`` is empty where the model was refused, for the reason ``refused``. ``spent``: fields of ``events.Spent``;
    ``prompt``: the digest of what it was asked with."""

    text: str = ""
    by: str = ""
    prompt: str = ""
    refused: str = ""
    spent: Mapping[str, Any] = _NOTHING


async def ask_model(drive: Drive, asked: Sequence[Message], length: int) -> Made | None:
    """Ask the run's model for a summary of that many bytes; None: the run is asked to stop, or given back."""
    model, state = drive.asked.model, drive.state
    prompt = values.digest(carried.PROMPT)[:12]
    request = ModelRequest(
        messages=asked, tools=(), run=drive.row.id, step=state.step, attempt=state.attempt, purpose="summary"
    )
    asking = hearing.Asking(model, request, _to_nobody)
    try:
        left = limits.time_left(state, drive.served.bounds.limits, drive.now())
        ending = await asking.wait(drive.clock, left, drive.pause)
        if ending == "cancelled":
            return None
        if ending == "timeout":
            return Made(prompt=prompt, refused=_LATE, spent={"asked": model.name})
        answer = asking.answer()
    except ModelError as error:
        return Made(prompt=prompt, refused=redact(f"{error.kind}: {error}"), spent=_spent_on(error, model))
    finally:
        asking.leave()
    return _made_of(answer, model, length, prompt)


class Wanted(NamedTuple):
    """A summary of a session, in so many bytes, and what is asked for it."""

    session: SessionRow
    asked: Sequence[Message]
    length: int


async def ask_by_hand(store: Store, clock: Clock, served: Served, wanted: Wanted) -> Made:
    """Ask an agent's model for a summary outside of any run, and note what that took. Whatever goes wrong, the caller
    has none."""
    row, model = wanted.session, served.models[0].model
    call, whose = ids.new_call_id(clock.now()), (served.agent.name, row.id, row.user_id or "")
    # Record before asking: whoever dies or goes away from here on leaves a call that nobody has counted.
    await store.write(transactions.asking, row.tenant, call, *whose, model.name, micros(clock))
    made = await _made_by_hand(clock, model, wanted)
    await store.write(transactions.asked, row.tenant, call, usage.by_hand(made.spent))
    return made


async def _made_by_hand(clock: Clock, model: Model, wanted: Wanted) -> Made:
    request = ModelRequest(messages=wanted.asked, tools=(), run=wanted.session.id, step=0, attempt=1, purpose="summary")
    asking = hearing.Asking(model, request, _to_nobody)
    try:
        if await asking.wait(clock, _PATIENCE, None) == "timeout":
            return Made(refused=_LATE, spent={"asked": model.name})
        answer = asking.answer()
    except ModelError as error:
        return Made(refused=redact(f"{error.kind}: {error}"), spent=_spent_on(error, model))
    finally:
        asking.leave()
    return _made_of(answer, model, wanted.length)


def _made_of(answer: Answer, model: Model, length: int, prompt: str = "") -> Made:
    spent = spent_on(answer, model.name)
    if refused := carried.why_refused(answer.parts, answer.stop, length):
        return Made(prompt=prompt, refused=refused, spent=spent)
    return Made(redact(carried.text_of(answer.parts)), model.name, prompt, spent=spent)


def _spent_on(error: ModelError, model: Model) -> Mapping[str, Any]:
    billed = usage.may_be_billed(error.kind, error.sent) or error.input_tokens is not None
    return {"asked": model.name, "input": error.input_tokens, "output": error.output_tokens} if billed else {}


def _to_nobody(piece: Delta) -> None:
    """Nobody watches how a summary is written."""
