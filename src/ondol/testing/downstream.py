"""What really happened in the outside world?

``Downstream`` stands for a mail provider, a bank, a shop: a small HTTP service in a process of its own, which outlives
a crash of what is tested and writes every effect down in a ledger. Its surface is plain HTTP, for tools in any process
and any language:

    POST /effects   {"key": "k1" | null, "tool": "send_email", "arguments": {...}, "dedupe": false}
                    → 200 {"id": 1, "count": 1, "recorded": true}
                    ``id`` numbers the lines of the ledger, ``count`` is how many of them have this key. With
                    ``dedupe`` an equal key is not recorded again and the first line's id comes back, as from a
                    provider that honours idempotency keys.
    GET  /effects   → 200 [{"id": 1, "key": "k1", "tool": "send_email", "arguments": {...}, "at": "<RFC 3339>"}, ...]
                    ``?key=K`` and ``?tool=T`` choose.
    GET  /wait      ``?for=effects|held&n=2&timeout=10&tool=T`` → 200 [...] when there are that many, else 408
    POST /hold      {"when": "before" | "after", "tool": null}    a request waits before or after it is recorded
    POST /release   {}
    POST /fail      {"times": 1, "status": 500 | null, "when": "before" | "after", "tool": null}

The ledger is a file with one JSON object a line, on the disk (fsync) before the answer goes out. Arguments that JSON
lacks (``Decimal``, ``datetime``) are written as their text by the functions below.

This file runs as it is in the other process, so it imports nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

When = Literal["before", "after"]

_START_TIMEOUT = 30.0  # seconds for a Python process to come up on a very busy machine
_STOP_TIMEOUT = 5.0  # seconds until it is ended by force


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectLine:
    """One line of the ledger: an effect that happened."""

    id: int
    key: str | None
    tool: str
    arguments: dict[str, Any]
    at: datetime


class DownstreamFailed(Exception):
    """The service answered with an error. ``status`` is the HTTP status."""

    def __init__(self, status: int, body: str) -> None:
        self.status = status
        super().__init__(f"downstream answered {status}: {body}")


# --- for tools, in any process ----------------------------------------------------------------------------------


def record(
    url: str, key: str | None, tool: str, arguments: Mapping[str, Any] | None = None, *, dedupe: bool = False
) -> dict[str, Any]:
    """Have an effect, and return the answer (``id``, ``count``, ``recorded``).

    Raises DownstreamFailed for an error status and ConnectionError when the answer did not come.
    """
    return _object(_request(url, "POST", "/effects", _effect(key, tool, arguments, dedupe)))


async def arecord(
    url: str, key: str | None, tool: str, arguments: Mapping[str, Any] | None = None, *, dedupe: bool = False
) -> dict[str, Any]:
    """As ``record``. A cancellation closes the connection; what was sent may still happen."""
    return _object(await _arequest(url, "POST", "/effects", _effect(key, tool, arguments, dedupe)))


def find(url: str, key: str) -> list[EffectLine]:
    """The effects that were recorded with this key."""
    return _lines(_request(url, "GET", f"/effects?{urlencode({'key': key})}"))


async def afind(url: str, key: str) -> list[EffectLine]:
    """As ``find``."""
    return _lines(await _arequest(url, "GET", f"/effects?{urlencode({'key': key})}"))


# --- for tests --------------------------------------------------------------------------------------------------


class Downstream:
    """The service, started and stopped by a test.

        async with Downstream() as downstream:
            await downstream.arecord("k1", "send_email", {"to": "kim"})
            assert await downstream.count(key="k1") == 1

    ``path`` is the ledger, kept after the end; started again on it the service goes on counting. Without a path the
    ledger lies in a temporary folder that goes away with the service. The service ends when its parent dies.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.url = ""
        self._folder = None if path is not None else tempfile.mkdtemp(prefix="ondol-downstream-")
        self.path = Path(path) if path is not None else Path(self._folder or "", "ledger.jsonl")
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    async def start(cls, path: str | os.PathLike[str] | None = None) -> Downstream:
        downstream = cls(path)
        await downstream.__aenter__()
        return downstream

    async def __aenter__(self) -> Downstream:
        self._process = _spawn(self.path)
        try:
            port = await asyncio.wait_for(asyncio.to_thread(_first_line, self._process), _START_TIMEOUT)
        except BaseException:  # also when the one who starts it is cancelled: no process stays
            self._process.kill()
            await self.stop()
            raise
        self.url = f"http://127.0.0.1:{int(port)}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End the service. Requests that it holds are cut off."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(_end, process)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- the ledger ---------------------------------------------------------------------------------------------

    def record(
        self, key: str | None, tool: str, arguments: Mapping[str, Any] | None = None, *, dedupe: bool = False
    ) -> dict[str, Any]:
        """Have an effect, from a synchronous tool."""
        return record(self.url, key, tool, arguments, dedupe=dedupe)

    async def arecord(
        self, key: str | None, tool: str, arguments: Mapping[str, Any] | None = None, *, dedupe: bool = False
    ) -> dict[str, Any]:
        """Have an effect, from an asynchronous tool."""
        return await arecord(self.url, key, tool, arguments, dedupe=dedupe)

    async def effects(self, key: str | None = None, tool: str | None = None) -> list[EffectLine]:
        """What happened, in order: everything, or what has this key, or is of this tool."""
        query = urlencode({name: value for name, value in (("key", key), ("tool", tool)) if value is not None})
        return _lines(await _arequest(self.url, "GET", f"/effects?{query}"))

    async def count(self, key: str | None = None, tool: str | None = None) -> int:
        """How many lines the ledger has: all, or of this key, or of this tool."""
        return len(await self.effects(key, tool))

    async def wait_for(self, n: int, tool: str | None = None, timeout: float = 10) -> list[EffectLine]:
        """Return the effects once there are ``n`` of them. Raises TimeoutError after ``timeout`` seconds."""
        return _lines(await self._wait("effects", n, tool, timeout))

    async def wait_for_held(self, n: int = 1, timeout: float = 10) -> None:
        """Return once ``n`` requests are being held. Raises TimeoutError after ``timeout`` seconds."""
        await self._wait("held", n, None, timeout)

    async def _wait(self, what: str, n: int, tool: str | None, timeout: float) -> Any:
        query = {"for": what, "n": n, "timeout": timeout} | ({"tool": tool} if tool else {})
        try:
            return await _arequest(self.url, "GET", f"/wait?{urlencode(query)}")
        except DownstreamFailed as late:
            if late.status != http.HTTPStatus.REQUEST_TIMEOUT:
                raise
            found = [f"{line.tool}({line.key})" for line in await self.effects()]
            raise TimeoutError(f"not {n} {what} of {tool or 'any tool'} in {timeout} s; the ledger: {found}") from late

    # --- faults -------------------------------------------------------------------------------------------------

    async def hold(self, when: When = "before", tool: str | None = None) -> None:
        """Let requests wait, before or after they are recorded, until ``release``.

        A held request has arrived: it is recorded on release even if its client has died.
        """
        await _arequest(self.url, "POST", "/hold", {"when": when, "tool": tool})

    async def release(self) -> None:
        """Let the held requests go on, and hold no more."""
        await _arequest(self.url, "POST", "/release", {})

    async def fail(
        self, times: int = 1, status: int | None = 500, when: When = "before", tool: str | None = None
    ) -> None:
        """Answer the next ``times`` requests with this status, instead of recording them or after it.

        ``status=None`` closes the connection without an answer.
        """
        await _arequest(self.url, "POST", "/fail", {"times": times, "status": status, "when": when, "tool": tool})


def _spawn(ledger: Path) -> subprocess.Popen[bytes]:
    # -I: as a file of its own, neither the environment nor this folder may change what it imports.
    command = [sys.executable, "-I", __file__, os.fspath(ledger)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the downstream service ended at its start ({process.wait()}): see its stderr")
    return line


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


# --- the client -------------------------------------------------------------------------------------------------


def _place(url: str) -> tuple[str, int]:
    where = urlsplit(url)
    if where.hostname is None or where.port is None:
        raise RuntimeError(f"no service is at {url!r}: start one with 'async with Downstream() as downstream:'")
    return where.hostname, where.port


def _effect(key: str | None, tool: str, arguments: Mapping[str, Any] | None, dedupe: bool) -> dict[str, Any]:
    return {"key": key, "tool": tool, "arguments": dict(arguments or {}), "dedupe": dedupe}


def _content(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body, default=str).encode()


def _request(url: str, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection(*_place(url))  # no proxy is asked, unlike with urllib
    try:
        connection.request(method, path, _content(body) or None)
        response = connection.getresponse()
        return _answer(response.status, response.read())
    finally:
        connection.close()


async def _arequest(url: str, method: str, path: str, body: Any = None) -> Any:
    # Not in a thread: held requests would use up the threads that everybody shares, and could not be cancelled.
    host, port = _place(url)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        content = _content(body)
        head = f"{method} {path} HTTP/1.0\r\nHost: {host}:{port}\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()
        head_and_body = await reader.read()  # HTTP/1.0: the answer ends with the connection
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if not head_and_body:
        raise ConnectionResetError("downstream closed the connection without an answer")
    answer_head, _, answer_body = head_and_body.partition(b"\r\n\r\n")
    return _answer(int(answer_head.split(maxsplit=2)[1]), answer_body)


def _answer(status: int, body: bytes) -> Any:
    if status != http.HTTPStatus.OK:
        raise DownstreamFailed(status, body.decode())
    return json.loads(body)


def _object(answer: Any) -> dict[str, Any]:
    return dict(answer)


def _lines(answer: Iterable[dict[str, Any]]) -> list[EffectLine]:
    return [EffectLine(**{**line, "at": datetime.fromisoformat(str(line["at"]))}) for line in answer]


# --- the service ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Hold:
    when: str
    tool: str | None


@dataclass(slots=True)
class _Failure:
    times: int
    status: int | None
    when: str
    tool: str | None


class _Ledger:
    """The lines, on disk and in memory, and the faults that were ordered. One lock guards it all."""

    def __init__(self, path: Path) -> None:
        self.changed = threading.Condition()
        self.file = path.open("a+b")
        self.file.seek(0)
        stored = self.file.read()
        whole = stored[: stored.rfind(b"\n") + 1]  # a crash may have left half a line, which nobody was told about
        self.file.truncate(len(whole))
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        self.holds: list[_Hold] = []
        self.held = 0
        self.failures: list[_Failure] = []

    def select(self, **wanted: str | None) -> list[dict[str, Any]]:
        return [line for line in self.lines if all(v is None or line[k] == v for k, v in wanted.items())]

    def add(self, effect: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            key, known = effect["key"], [line for line in self.lines if line["key"] == effect["key"]]
            if effect["dedupe"] and key is not None and known:
                return {"id": known[0]["id"], "count": len(known), "recorded": False}
            line = {"id": len(self.lines) + 1, "key": key, "tool": effect["tool"], "arguments": effect["arguments"]}
            line["at"] = datetime.now(UTC).isoformat()
            self.file.write(json.dumps(line).encode() + b"\n")
            self.file.flush()
            os.fsync(self.file.fileno())
            self.lines.append(line)
            self.changed.notify_all()
            return {"id": line["id"], "count": len(known) + 1, "recorded": True}

    def pause(self, when: str, tool: str) -> _Failure | None:
        """Wait while requests of this tool are held here. Returns the failure that was ordered, if any."""
        with self.changed:
            hold = next((h for h in self.holds if h.when == when and h.tool in (None, tool)), None)
            if hold is not None:
                self.held += 1
                self.changed.notify_all()
                self.changed.wait_for(lambda: hold not in self.holds)
                self.held -= 1
            for failure in self.failures:
                if failure.times > 0 and failure.when == when and failure.tool in (None, tool):
                    failure.times -= 1
                    return failure
            return None

    def order(self, fault: _Hold | _Failure) -> None:
        with self.changed:
            if isinstance(fault, _Hold):
                self.holds.append(fault)
            else:
                self.failures.append(fault)

    def release(self) -> None:
        with self.changed:
            self.holds.clear()
            self.changed.notify_all()

    def wait(self, what: str, n: int, tool: str | None, timeout: float) -> list[dict[str, Any]] | None:
        with self.changed:
            reached = self.changed.wait_for(
                lambda: (self.held if what == "held" else len(self.select(tool=tool))) >= n, timeout
            )
            return self.select(tool=tool) if reached else None


class _Service(ThreadingHTTPServer):
    request_queue_size = 256  # connections at once: a test may start hundreds of tools together
    ledger: _Ledger

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own would ask DNS for the name of this machine


class _Requests(BaseHTTPRequestHandler):
    @property
    def ledger(self) -> _Ledger:
        assert isinstance(self.server, _Service)
        return self.server.ledger

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        ledger = self.ledger
        match path:
            case "/effects":
                with ledger.changed:
                    found = ledger.select(key=query.get("key"), tool=query.get("tool"))
                self._reply(200, found)
            case "/wait":
                reached = ledger.wait(query["for"], int(query["n"]), query.get("tool"), float(query["timeout"]))
                self._reply(408 if reached is None else 200, reached)
            case _:
                self._reply(404, f"no {path}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        ledger = self.ledger
        match self.path:
            case "/effects":
                self._have_effect({"key": None, "tool": "", "arguments": {}, "dedupe": False} | body)
                return
            case "/hold":
                ledger.order(_Hold(body["when"], body.get("tool")))
            case "/release":
                ledger.release()
            case "/fail":
                ledger.order(_Failure(body["times"], body["status"], body["when"], body.get("tool")))
            case _:
                self._reply(404, f"no {self.path}")
                return
        self._reply(200, {})

    def _have_effect(self, effect: dict[str, Any]) -> None:
        answer = None
        failure = self.ledger.pause("before", effect["tool"])
        if failure is None:
            answer = self.ledger.add(effect)
            failure = self.ledger.pause("after", effect["tool"])
        if failure is None:
            self._reply(200, answer)
        elif failure.status is not None:
            self._reply(failure.status, {"error": "as ordered"})

    def _reply(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        with contextlib.suppress(OSError):  # the client has gone
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: what happened is in the ledger."""


def serve(path: Path) -> None:
    """Serve on a free port of the loopback, print the port, and go on until stdin ends."""
    with _Service(("127.0.0.1", 0), _Requests) as service:
        service.ledger = _Ledger(path)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        print(service.server_address[1], flush=True)  # noqa: T201 - the parent reads it
        sys.stdin.buffer.read()  # ends when the parent closes it, or dies
        os._exit(0)  # at once, whatever is held


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
