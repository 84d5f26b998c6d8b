"""A TCP proxy before PostgreSQL that cuts a connection around a COMMIT: a network that fails at the worst time."""

from __future__ import annotations

import asyncio
import threading
from typing import Literal

Cut = Literal["before", "after", "delayed"]
_COMMIT = b"COMMIT\0"  # as a client says it, and as a server answers it


class Proxy:
    """Passes everything on, until ``cut`` says what becomes of the next COMMIT that comes along.

    ``before``: the server never hears of it. ``after``: the server does it, and its answer is lost. ``delayed``: the
    client is cut off at once, and the COMMIT reaches the server ``delay`` seconds later (a network that holds back
    what it was given): ``came_late`` says that the server is through with it. Every connection is cut off while
    ``down`` is set, and ``refused`` says that one was. ``silence`` leaves those that listen open, and passes nothing
    on any more; so it is with each that says the word ``mute``. With ``shares_out`` what a client sets is gone behind
    its transaction, as before a pooler that gives it another connection for the next one.
    """

    def __init__(self, port: int) -> None:
        self.to = port
        self.port = 0
        self.cut: Cut | None = None
        self.delay = 0.1  # seconds
        self.cuts = 0
        self.down = False
        self.mute: bytes | None = None
        self.shares_out = False
        self.was_cut = threading.Event()
        self.came_late = threading.Event()
        self.refused = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._listening_ones: list[asyncio.Event] = []  # each cleared where its connection is silent

    def __enter__(self) -> Proxy:
        ready = threading.Event()
        self._listening = self._loop.create_task(self._listen(ready))
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(self, direct: str) -> str:
        """The URL of the same database, through here."""
        return direct.replace(f":{self.to}/", f":{self.port}/")

    def cut_all(self) -> None:
        """Every connection that there is, now."""
        self._loop.call_soon_threadsafe(lambda: [self._abort(*pair) for pair in list(self._pairs)])

    def silence(self) -> None:
        """Every connection that has asked to LISTEN, now."""
        self._loop.call_soon_threadsafe(lambda: [flows.clear() for flows in self._listening_ones])

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _listen(self, ready: threading.Event) -> None:
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await asyncio.get_running_loop().create_future()

    async def _client(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self.down:
            to_client.transport.abort()
            self.refused.set()
            return
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:  # there is nobody
            to_client.transport.abort()
            return
        pair = (to_client, to_server)
        self._pairs.add(pair)
        is_through, flows = asyncio.Event(), asyncio.Event()
        flows.set()
        ways = self._up(from_client, pair, is_through, flows), self._down(from_server, pair, is_through, flows)
        try:
            await asyncio.gather(*ways, return_exceptions=True)
        except asyncio.CancelledError:
            pass  # the proxy ends, and nobody waits for this
        finally:
            self._pairs.discard(pair)
            self._abort(*pair)

    async def _up(
        self,
        from_client: asyncio.StreamReader,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        is_through: asyncio.Event,
        flows: asyncio.Event,
    ) -> None:
        to_client, to_server = pair
        try:
            while data := await from_client.read(1 << 16):
                if _COMMIT in data and self.cut in ("before", "delayed"):
                    cut = self._cuts_now()
                    to_client.transport.abort()
                    if cut == "delayed":
                        await asyncio.sleep(self.delay)
                        to_server.write(data)
                        to_server.write_eof()
                        await is_through.wait()
                        self.came_late.set()
                    break
                if b"LISTEN " in data:
                    self._listening_ones.append(flows)
                if self.mute is not None and self.mute in data:
                    flows.clear()
                await flows.wait()
                if self.shares_out:
                    data = data.replace(b"'yes', false)", b"'yes', true )")
                to_server.write(data)
                await to_server.drain()
        finally:  # also where one end is reset
            to_server.transport.abort()

    async def _down(
        self,
        from_server: asyncio.StreamReader,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        is_through: asyncio.Event,
        flows: asyncio.Event,
    ) -> None:
        to_client, to_server = pair
        try:
            while data := await from_server.read(1 << 16):
                if _COMMIT in data and self.cut == "after":
                    self._cuts_now()
                    to_server.transport.abort()
                    return
                await flows.wait()
                if not to_client.transport.is_closing():
                    to_client.write(data)
                    await to_client.drain()
        finally:
            is_through.set()
            to_client.transport.abort()

    def _cuts_now(self) -> Cut | None:
        cut, self.cut = self.cut, None
        self.cuts += 1
        self.was_cut.set()
        return cut

    def _abort(self, *ends: asyncio.StreamWriter) -> None:
        for end in ends:
            end.transport.abort()
