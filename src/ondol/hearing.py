"""What did a model answer, whatever it does instead of answering?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ondol import values
from ondol.cancellation import InFlight, is_asked_to_end
from ondol.errors import ModelError
from ondol.model import Answer, Delta, Model, ModelRequest, why_no_answer
from ondol.secret import logger, redact

log = logger("ondol.model")


async def answer_of(model: Model, request: ModelRequest, hear: Callable[[Delta], None]) -> Answer:
    """Ask a model and hear it to the end; ``hear`` is told each piece. Whatever happens, its stream is closed.

    Raises:
        ModelError: it failed, it raised anything else, or its answer did not end, or is none.
    """
    answer: Delta | Answer | None = None
    stream = None
    try:
        stream = model.stream(request)
        async for output in stream:
            if isinstance(output, Delta) and isinstance(output.text, str):
                hear(output)
            else:
                answer = output
    except (ModelError, asyncio.CancelledError):  # whose cancellation it was, ``heard`` finds out
        raise
    except BaseException as error:  # an exit-type exception must not leave the task: it would end the event loop
        if isinstance(error, GeneratorExit) and not _is_heard():
            raise
        raise ModelError("rejected", f"the model raised {values.error_text(error)}") from error
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await _closed(close)
    if answer is None:
        raise ModelError("connection", "the answer ended before it was complete")
    why = why_no_answer(answer)
    if why is not None or not isinstance(answer, Answer):
        raise ModelError("rejected", f"the model gave what is no answer: {why}")
    return answer


def heard(asking: InFlight[Answer]) -> Answer:
    """What a model answered in a task that ended unasked. Raises ModelError, as ``answer_of``."""
    if asking.future.cancelled():
        raise ModelError("connection", "the model call was cancelled by the model itself")
    return asking.future.result()


def _is_heard() -> bool:
    """False where the event loop is gone, and what was left of a call is thrown away; else the model itself raised."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # there is no event loop
        return False


async def _closed(close: Callable[[], Awaitable[object]]) -> None:
    """What a model gave counts, however its stream ends. A cancellation of somebody else travels on."""
    try:
        await close()
    except BaseException as error:  # an exit-type exception too: it would end the event loop
        if isinstance(error, asyncio.CancelledError) and is_asked_to_end():
            raise
        log.warning("the stream of a model could not be closed: %s", redact(values.error_text(error)))
