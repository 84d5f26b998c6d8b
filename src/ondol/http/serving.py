"""How does a process serve the door until it is asked to stop?

It listens on this machine only, unless there is a token for whoever comes from elsewhere. Asked to stop (SIGTERM,
Ctrl-C) it takes no new work, lets its runs reach a boundary, ends the streams, and leaves the rest to the next
process; at a Ctrl-C while it does so, it stops at once.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ondol import access, queries
from ondol.errors import InvalidInput, Malformed, Overloaded
from ondol.http.app import App, make_app
from ondol.http.callers import is_loopback
from ondol.http.guard import Admission
from ondol.http.problems import problem
from ondol.http.sse import PATIENCE
from ondol.runtime import DRAIN, Runtime

_HEADERS_TIME = 10.0  # seconds in which the head of a request must be there
_HEADERS_SIZE = 32_768  # bytes of the head of a request
_IDLE = 75  # seconds that a connection may be idle: longer than proxies and clients keep theirs (60 s and less), which
# would else send a request on one that is just being closed, and take that for a failure
_CLOSE = 3  # seconds for connections to close once the streams have ended
_UNREAD_TIME = PATIENCE - 1  # seconds in which a client must take some of an answer: just before a stream gives it up,
# which alone closes nothing, as a connection that is closed in order waits for what was written to be taken
_CONNECTIONS = 5_000  # at once; more are told to come back


class _InTime(H11Protocol):
    """HTTP/1.1 whose requests must have their head in time, and whose answers must be taken: a client that sends a byte
    a minute, or reads none, holds no place."""

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS:
            self.app = _overloaded
        self._arm()

    def send_400_response(self, msg: str) -> None:
        """What came is no request: say so as everything else is said, unless an answer is under way, and close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        wrong = sys.exception()
        status = wrong.error_status_hint if isinstance(wrong, h11.RemoteProtocolError) else 400
        said = problem(Malformed(f"what came is no HTTP request that is taken ({wrong or msg})"), status)
        head = h11.Response(status_code=status, headers=[*said.raw_headers, (b"connection", b"close")], reason=b"")
        for event in (head, h11.Data(data=bytes(said.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: some clients offer HTTP/2 with each request, and are answered in HTTP/1.1."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wait_no_more()

    def _wait_for_reader(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(_UNREAD_TIME, self._look_at_reader, waiting)

    def _wait_no_more(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _look_at_reader(self, waited: int) -> None:
        if self.transport.get_write_buffer_size() < waited:
            self._wait_for_reader()
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._disarm()
        if self.cycle is None or self.cycle.response_complete:  # the head of the next one is still on its way
            self._arm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._arm()

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(_HEADERS_TIME, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


async def _overloaded(scope: Scope, receive: Receive, send: Send) -> None:
    refused = problem(Overloaded(f"{_CONNECTIONS} connections are open, and no more are served"))
    refused.headers["connection"] = "close"
    await refused(scope, receive, send)


class Server(uvicorn.Server):
    """A uvicorn that drains before it exits."""

    def __init__(self, config: uvicorn.Config, app: App, drain: float) -> None:
        super().__init__(config)
        self._app, self._patience = app, drain
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.when_started: Callable[[], object] = lambda: None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.when_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None:
            super().handle_exit(sig, frame)
        elif not self._app.drain.begun:
            self._app.drain.begin()
            self._loop.call_soon_threadsafe(self._begin)
        elif sig == signal.SIGINT:  # others come twice also from whoever only passes on that it is to stop
            super().handle_exit(sig, frame)
            self.force_exit = True

    def _begin(self) -> None:
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        try:
            if self._app.runtime.is_open:
                await self._app.runtime.drain(self._patience)
        finally:
            self._app.drain.end_streams()
            self.should_exit = True


async def serve(
    runtime: Runtime, *, host: str = "127.0.0.1", port: int = 8000, fd: int | None = None,
    hosts: Sequence[str] = (), origins: Sequence[str] = (), drain: float = DRAIN,
    ready: Callable[[str], object] | None = None,
) -> None:  # fmt: skip
    """Serve a runtime until the process is asked to stop. ``ready`` is called with the address once it listens.

    Raises:
        InvalidInput: the address cannot be listened on, or is one for others, and there is no token for them.
    """
    with listen(host, port) if fd is None else socket.socket(fileno=fd) as listening:
        here = is_loopback(host)
        async with runtime:
            if not here and not await any_token(runtime):
                raise InvalidInput(
                    f"{host} is an address for others, and there is no token for them: 'ondol tokens create' makes one"
                )
            app = make_app(runtime, Admission(needs_token=not here, hosts=hosts, origins=origins))
            server = Server(config(app), app, drain)
            place, at = listening.getsockname()[:2]
            shown = f"[{place}]" if ":" in place else place
            if ready is not None:
                server.when_started = lambda: ready(f"http://{shown}:{at}")
            await server.serve([listening])


async def any_token(runtime: Runtime) -> bool:
    """Is there a token that counts now, of any tenant?"""
    now = runtime.clock.now()
    for tenant in await runtime._read(queries.tenants):
        if any(t.counts(now) for t in await access.tokens(runtime, tenant=tenant)):
            return True
    return False


def config(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app, http=_InTime, ws="none", lifespan="off", log_level="warning", access_log=False, server_header=False,
        h11_max_incomplete_event_size=_HEADERS_SIZE, proxy_headers=False,
        timeout_keep_alive=_IDLE, timeout_graceful_shutdown=_CLOSE,
    )  # fmt: skip


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises InvalidInput.

    It names its protocol: only then asyncio sends each part of an answer at once (``TCP_NODELAY``), which would else
    wait for the client's acknowledgement, 40 ms for each.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(found[0], socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(found[4])
            listening.listen(2048)
        except BaseException:  # whatever it is, it travels on, and leaves no socket behind
            listening.close()
            raise
    except (OSError, UnicodeError) as error:  # the latter for what no name of a host can be
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"{host}:{port} cannot be listened on ({why}): name another port or address") from error
    return listening
