"""How do events become a stream of server-sent events, and what ends it?

What is durable carries an id, and a reader that comes back with the last one it saw misses nothing. So a stream may
end at any event: with the run, when the process stops, when its reader goes away, or when the reader is too slow.
Nothing is ever left out to keep up: a reader that does not read for ``patience`` seconds is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from fastapi.sse import format_sse_event
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ondol.bodies import event_body
from ondol.errors import OndolError
from ondol.events import Event
from ondol.http.drain import Drain
from ondol.watching import InSession

RETRY = 1000  # milliseconds after which a browser comes back
PATIENCE = 30.0  # seconds in which a reader must take what was sent
_PIECE = 65_536  # bytes of an event that a reader must take in that time
_LAST = 2.0  # seconds for a reader to be told what is stored, when its stream is about to end
_HEARTBEAT = b": .\n\n"
#: As JSON has them: half of a character, which a model may send alone, and what is no line end though many readers take
#: it for one.
_ESCAPED = {c: f"\\u{c:04x}" for c in (0x85, 0x2028, 0x2029, *range(0xD800, 0xE000))}


def framed(happened: Event | InSession) -> bytes:
    """One event: its type, its cursor if it is durable, and its body as JSON."""
    event, cursor = (happened, happened.id) if isinstance(happened, Event) else happened
    body = json.dumps(event_body(event), ensure_ascii=False, separators=(",", ":"))
    return format_sse_event(data_str=body.translate(_ESCAPED), event=event.type, id=cursor)


class EventStream(Response):
    """Events as they come; None in ``events`` is a moment in which nothing happened, and becomes a heartbeat.

    What cannot be read at all is a refusal with its status: the stream begins with the first of ``events``. ``gone`` is
    awaited when the reader goes away before the end.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[Event | None] | AsyncIterator[InSession | None],
        drain: Drain,
        *,
        headers: Mapping[str, str] | None = None,
        gone: Callable[[], Awaitable[object]] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        self._events, self._drain, self._gone, self._patience = events, drain, gone, patience
        self._begun = self._ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))

        def end() -> None:
            self._ending = True
            loop.call_later(_LAST, sending.cancel)

        self._drain.opened(end)
        try:
            await asyncio.wait({sending, leaving}, timeout=self._drain.longest, return_when=asyncio.FIRST_COMPLETED)
            left = leaving.done() and not sending.done()
        except asyncio.CancelledError:  # the server takes the request away, as it does when it is forced to stop
            left = False
            raise
        finally:
            self._drain.closed(end)
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait({sending, leaving})
        failed = None if sending.cancelled() else sending.exception()
        if left or isinstance(failed, OSError):  # some servers say so where something is sent to who is gone
            if self._gone is not None:
                await self._gone()
            if isinstance(failed, TimeoutError):
                raise ConnectionAbortedError("the reader of a stream did not read: it is disconnected")
            return
        if failed is not None:
            raise failed
        await self._begin(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._put(send, format_sse_event(retry=RETRY))

    async def _send(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:  # type: ignore[type-var]
            try:
                async for event in events:
                    await self._begin(send)
                    if event is None and self._ending:
                        return  # all that is stored was told
                    await self._put(send, _HEARTBEAT if event is None else framed(event))
            except OndolError as error:
                if not self._begun:
                    raise
                # It began well, and cannot go on: the reader comes back and is told.
                await self._put(send, format_sse_event(comment=f"{error.code}: {error}"))

    async def _put(self, send: Send, chunk: bytes) -> None:
        for at in range(0, len(chunk), _PIECE):  # else a reader that is slow would never have a large event
            message: Message = {"type": "http.response.body", "body": chunk[at : at + _PIECE], "more_body": True}
            async with asyncio.timeout(self._patience):
                await send(message)
        await asyncio.sleep(0)  # what is stored comes without a pause, and it must be heard when its reader goes away


async def _left(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
