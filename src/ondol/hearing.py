"""What did a model answer, whatever it does instead of answering?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import get_args

from ondol import values
from ondol.cancellation import CancelToken, Ending, InFlight, is_asked_to_end
from ondol.clock import Clock
from ondol.errors import ModelError, ModelErrorKind
from ondol.model import Answer, Delta, Model, ModelRequest, why_no_answer
from ondol.secret import logger, redact

log = logger("ondol.model")


class Asking:
    """A model that was asked, in a task of its own; ``hear`` is told each piece.

    Its first ``Answer`` counts, or how it failed before. After that, its stream is only closed.
    """

    def __init__(self, model: Model, request: ModelRequest, hear: Callable[[Delta], None]) -> None:
        self._said: asyncio.Future[Answer | ModelError] = asyncio.get_running_loop().create_future()
        self._hearing = InFlight.of_coroutine(_hear(model, request, hear, self._said))

    async def wait(self, clock: Clock, seconds: float | None, token: CancelToken | None) -> Ending:
        """Until it has answered or failed, its time is over (None: never), or somebody asks to stop; whichever comes
        first. Then its stream is closed, or goes on all the same."""
        ending = await InFlight(self._said, in_thread=False).wait(clock, seconds, token)
        if ending != "done":
            await self._hearing.stop_late(clock)
        elif not self._hearing.future.done():
            await self._hearing.unwind(clock)
        return ending

    def answer(self) -> Answer:
        """What was said where ``wait`` is ``done``.

        Raises:
            ModelError: it failed, it raised anything else, or its answer did not end, or is none.
        """
        said = self._said.result()
        if isinstance(said, ModelError):
            raise said
        return said

    def leave(self) -> None:
        """Nobody waits for it any more."""
        self._hearing.leave()


async def _hear(
    model: Model, request: ModelRequest, hear: Callable[[Delta], None], said: asyncio.Future[Answer | ModelError]
) -> None:
    """Hear a model until it has ``said`` what counts. Whatever happens, its stream is closed."""
    stream = given = None
    try:
        stream = model.stream(request)
        async for output in stream:
            if isinstance(output, Delta) and isinstance(output.text, str):
                hear(output)
                continue
            given = output
            if isinstance(output, Answer):
                break
        said.set_result(_checked(given))
    except ModelError as error:
        said.set_result(_sound(error))
    except asyncio.CancelledError:  # whoever asked for it does not wait for an answer
        said.set_result(ModelError("connection", "the model call was cancelled by the model itself"))
        raise
    except BaseException as error:  # an exit-type exception must not leave the task: it would end the event loop
        if isinstance(error, GeneratorExit) and not _is_heard():
            raise
        said.set_result(_fault(error))
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await _closed(close)


def _sound(error: ModelError) -> ModelError:
    """The error as ``ModelError`` makes one: a class of its own, or whoever caught it, may have made it another."""
    try:
        if error.kind not in get_args(ModelErrorKind):
            kinds = ", ".join(get_args(ModelErrorKind))
            return _fault(error, f"a ModelError of kind {error.kind!r}, which there is not: use {kinds}: {error}")
        sound = ModelError(
            error.kind, str(error), retry_after=error.retry_after, sent=bool(error.sent),
            input_tokens=error.input_tokens, output_tokens=error.output_tokens,
        )  # fmt: skip
        sound.__cause__ = error
    except Exception:  # whatever its own code does when it is asked
        return _fault(error)
    return sound


def _fault(error: BaseException, what: str = "") -> ModelError:
    fault = ModelError("rejected", f"the model raised {what or values.error_text(error)}")
    fault.__cause__ = error
    return fault


def _checked(given: object) -> Answer:
    if given is None:
        raise ModelError("connection", "the answer ended before it was complete")
    why = why_no_answer(given)
    if why is not None or not isinstance(given, Answer):
        raise ModelError("rejected", f"the model gave what is no answer: {why}")
    return given


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
