"""How does a model make a summary, and what if it makes none?

It is asked like for any answer, and its answer is believed only in its form: a text of words. Whatever it says,
permissions are decided elsewhere. Anything else is refused, and the caller goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ondol import carried, limits, usage, values
from ondol.cancellation import InFlight
from ondol.errors import ModelError
from ondol.messages import Message
from ondol.model import Answer, Model, ModelRequest
from ondol.secret import redact

if TYPE_CHECKING:
    from ondol.runner import Drive

_PATIENCE = 120.0  # seconds that somebody waits for a summary that they asked for by hand
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
    asking = InFlight.of_coroutine(_answer(model, request))
    try:
        left = limits.time_left(state, drive.served.bounds.limits, drive.now())
        ending = await asking.wait(drive.clock, left, drive.pause)
        if ending == "cancelled":
            await asking.stop_late(drive.clock)
            return None
        if ending == "timeout" or asking.future.cancelled():
            await asking.stop_late(drive.clock)
            return Made(prompt=prompt, refused="it did not come in time", spent={"asked": model.name})
        answer = asking.future.result()
    except ModelError as error:
        billed = usage.may_be_billed(error.kind, error.sent) or error.input_tokens is not None
        spent = {"asked": model.name, "input": error.input_tokens, "output": error.output_tokens} if billed else {}
        return Made(prompt=prompt, refused=redact(f"{error.kind}: {error}"), spent=spent)
    finally:
        asking.leave()
    refused = carried.why_refused(answer.parts, answer.stop, length)
    if refused:
        return Made(prompt=prompt, refused=refused, spent=drive.spent(answer))
    return Made(redact(carried.text_of(answer.parts)), model.name, prompt, spent=drive.spent(answer))


async def ask_by_hand(model: Model, session: str, asked: Sequence[Message], length: int) -> Made:
    """Ask a model for a summary of that many bytes, outside of any run. Whatever goes wrong, the caller has none."""
    request = ModelRequest(messages=asked, tools=(), run=session, step=0, attempt=1, purpose="summary")
    try:
        async with asyncio.timeout(_PATIENCE):
            answer = await _answer(model, request)
    except TimeoutError:
        return Made(refused="it did not come in time")
    except ModelError as error:
        return Made(refused=redact(f"{error.kind}: {error}"))
    spent = {"input": answer.input_tokens, "output": answer.output_tokens}
    refused = carried.why_refused(answer.parts, answer.stop, length)
    if refused:
        return Made(refused=refused, spent=spent)
    return Made(redact(carried.text_of(answer.parts)), model.name, spent=spent)


async def _answer(model: Model, request: ModelRequest) -> Answer:
    answer: Answer | None = None
    stream = model.stream(request)
    try:
        async for output in stream:
            if isinstance(output, Answer):
                answer = output
    except ModelError:
        raise
    except Exception as error:
        raise ModelError("rejected", f"the model raised {values.error_text(error)}") from error
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
    if answer is None:
        raise ModelError("connection", "the answer ended before it was complete")
    return answer
