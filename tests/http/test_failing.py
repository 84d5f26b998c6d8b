"""Whatever goes wrong, and wherever: a browser gets a page to read, a program a problem with ``code`` and ``fix``."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import sqlite3
from collections.abc import AsyncIterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from door import JSON, Door, door, raw, run

from ondol import Agent, Runtime, access, tool
from ondol.client import AsyncClient
from ondol.errors import CODES, InvalidInput, StoreCorrupt
from ondol.http import guard, serving
from ondol.http.app import make_app
from ondol.http.guard import Admission
from ondol.testing import ScriptedModel, call

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PROGRAM = {"accept": "*/*"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
LIMITS = guard.Limits(body=2000, upload=4000, depth=20, body_time=0.2)


class Wrong(NamedTuple):
    """A request that is not taken, for a page and for the API; ``headers`` and ``content`` are the same for both."""

    status: int
    code: str
    page: str
    api: str
    headers: Mapping[str, str] = {}
    content: bytes | None = None


DEEP = b'{"a": ' + b"[" * 30 + b"]" * 30 + b"}"
WRONG = {
    "host": Wrong(403, "forbidden", "GET /runs", "GET /v1/runs", {"host": "elsewhere.example"}),
    "host that is no name": Wrong(403, "forbidden", "GET /runs", "GET /v1/runs", {"host": "[::1"}),
    "origin": Wrong(403, "forbidden", "POST /theme", "POST /v1/runs", {"origin": "https://elsewhere.example"}),
    "another site": Wrong(403, "forbidden", "POST /theme", "POST /v1/runs", {"sec-fetch-site": "cross-site"}),
    "token": Wrong(401, "unauthenticated", "GET /runs", "GET /v1/runs", {"authorization": "Bearer nope"}),
    "large headers": Wrong(431, "too_large", "GET /runs", "GET /v1/runs", {"x": "x" * 33_000}),
    "large body": Wrong(413, "too_large", "POST /theme", "POST /v1/runs", JSON, b" " * 3000),
    "large file": Wrong(
        413,
        "too_large",
        "POST /session/send",
        "POST /v1/runs",
        {"content-type": "multipart/form-data; boundary=b"},
        b"x" * 5000,
    ),
    "deep": Wrong(422, "invalid_input", "POST /theme", "POST /v1/runs", JSON, DEEP),
    "type": Wrong(415, "unsupported_media", "POST /theme", "POST /v1/runs", {"content-type": "text/plain"}, b"hi"),
    "packed": Wrong(
        415,
        "unsupported_media",
        "POST /theme",
        "POST /v1/runs",
        JSON | {"content-encoding": "gzip"},
        gzip.compress(b'{"agent": "hello", "input": "hi"}'),
    ),
    "form without a boundary": Wrong(
        400, "malformed", "POST /session/send", "POST /v1/runs", {"content-type": "multipart/form-data"}, b"x"
    ),
    "nothing there": Wrong(404, "not_found", "GET /nowhere", "GET /v1/nowhere"),
    "nobody": Wrong(404, "not_found", "GET /runs/r_nobody", "GET /v1/runs/r_nobody"),
    "method": Wrong(405, "malformed", "PUT /runs", "PUT /v1/runs"),
    "parameter": Wrong(422, "invalid_input", "GET /runs/r_nobody/raw?after=x", "GET /v1/runs?limit=x"),
}


@pytest.fixture
async def http(db: str) -> AsyncIterator[Door]:
    hello = Agent("hello", model=ScriptedModel(lambda _: "hello"))
    async with Runtime(db, agents=[hello]) as rt, door(rt, Admission(limits=LIMITS)) as opened:
        yield opened


def assert_is_page(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    if status == 401:
        assert 'action="/sign-in"' in answer.text
    else:
        assert f"ondol explain {code}" in answer.text
        assert escape(CODES[code]).replace("&#x27;", "&#39;") in answer.text


def assert_is_problem(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    said = answer.json()
    assert (said["status"], said["code"], said["fix"]) == (status, code, CODES[code])
    assert said["detail"]


@pytest.mark.parametrize("name", WRONG)
async def test_a_browser_gets_a_page_and_a_program_a_problem(http: Door, name: str) -> None:
    wrong = WRONG[name]

    async def asked(what: str, accept: Mapping[str, str]) -> httpx.Response:
        method, _, address = what.partition(" ")
        return await http.client.request(method, address, headers={**wrong.headers, **accept}, content=wrong.content)

    assert_is_page(await asked(wrong.page, BROWSER), wrong.status, wrong.code)
    assert_is_problem(await asked(wrong.api, PROGRAM), wrong.status, wrong.code)
    assert_is_problem(await asked(wrong.api, BROWSER), wrong.status, wrong.code)  # the API has one form
    if name not in ("nobody", "form without a boundary", "token"):  # those are told by a page that was reached
        assert_is_problem(await asked(wrong.page, PROGRAM), wrong.status, wrong.code)


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [("PUT /v1/runs", "GET, HEAD, POST"), ("GET /session/send", "POST"), ("PUT /asks/a_x", "GET, HEAD, POST"),
     ("POST /healthz", "GET, HEAD"), ("PUT /v1/sessions/a%2Fb", "DELETE, GET, HEAD, PATCH")],
)  # fmt: skip
async def test_an_address_says_what_it_takes(http: Door, asked: str, allowed: str) -> None:
    refused = await http.client.request(*asked.split())
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
    assert f"{asked} is not possible" in refused.json()["detail"]


async def test_head_is_answered_as_get_is_without_the_content(http: Door) -> None:
    """RFC 9110, 9.3.2. Of a stream too, which nobody reads then."""
    run = (await http.client.post("/v1/runs", json={"agent": "hello", "input": "hi"})).json()["id"]
    for address in ("/healthz", "/v1/runs", f"/v1/runs/{run}/events", "/v1/runs/r_nobody", "/", "/v1/hello"):
        whole, head = await http.client.get(address), await http.client.head(address)
        assert (head.status_code, head.content, whole.content != b"") == (whole.status_code, b"", True)
        assert head.headers["content-type"] == whole.headers["content-type"]
    refused = await http.client.head("/session/send")
    assert (refused.status_code, refused.headers["allow"], refused.content) == (405, "POST", b"")


@pytest.mark.parametrize("name", ["idempotency-key", "if-match", "last-event-id", "authorization", "content-type"])
async def test_of_two_lines_neither_counts(http: Door, name: str) -> None:
    content = b'{"agent": "hello", "input": "hi"}'
    headers = [("content-type", "application/json")] if name != "content-type" else []
    twice = [*headers, (name, "a"), (name, "b")]
    refused = await http.client.post("/v1/runs", content=content, headers=twice)
    assert_is_problem(refused, 400, "malformed")
    assert name in refused.json()["detail"]


async def test_of_whom_nothing_is_known_no_more_is_taken_than_a_form_to_sign_in_has(db: str) -> None:
    known, chunks = {"authorization": "Bearer "}, [b"theme=" + b"x" * 1000, *[b"x" * 1000] * 20]

    async def slowly() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async with Runtime(db) as rt, door(rt, Admission(needs_token=True)) as http:
        known["authorization"] += (await access.create_token(rt, "kim", ["admin"]))[1]
        for content in (b"".join(chunks), slowly()):
            refused = await http.client.post("/theme", content=content, headers=FORM | BROWSER)
            assert_is_page(refused, 401, "unauthenticated")
        large = await http.client.post("/healthz", content=b" " * 20_000, headers=JSON)
        assert_is_problem(large, 413, "too_large")
        taken = await http.client.post("/theme", content=b"".join(chunks), headers=FORM | known)
        assert taken.status_code == 303


async def test_methods_that_are_made_up_leave_nothing_behind(http: Door) -> None:
    for n in range(3):
        assert (await http.client.request("BREW" * (n + 1), "/healthz")).status_code == 405
    assert (await http.client.head("/healthz")).status_code == 200
    counted = (await http.client.get("/metrics")).text
    assert "BREW" not in counted
    assert 'ondol_http_requests_total{method="?",status="405"} 3' in counted
    assert 'ondol_http_requests_total{method="HEAD",status="200"} 1' in counted


async def test_unknown_effects_are_counted_as_long_as_they_wait_for_a_person(db: str) -> None:
    @tool(effect="once")
    def send() -> str:
        """Send."""
        raise OSError("the line broke")

    agent = Agent("sender", model=ScriptedModel([[call("send")]]), tools=[send])
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http:
        waiting = await run(http.client, "sender", "go")
        assert waiting.json()["state"] == "waiting"
        assert "\nondol_effects_unknown 1\n" in (await http.client.get("/metrics")).text
        await (await rt.asks())[0].give_up(by="kim")
        assert [effect.state for effect in await rt.effects()] == ["unknown"]
        assert "\nondol_effects_unknown 0\n" in (await http.client.get("/metrics")).text


async def test_a_stream_of_what_is_damaged_is_refused_and_says_so(tmp_path: Path) -> None:
    """A reader that is told nothing, and comes back to nothing, would do so for ever."""
    agent = Agent("hello", model=ScriptedModel(["Hello."]))
    async with Runtime(f"sqlite:///{tmp_path}/t.db", agents=[agent]) as rt, door(rt) as http:
        id = (await run(http.client, "hello", "hi", session="s")).json()["id"]
        with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as damaged, damaged:
            damaged.execute("UPDATE entries SET body = replace(body, 'completed', 'competed')")
        for address in (f"/v1/runs/{id}/events", "/v1/sessions/s/events"):
            refused = await http.client.get(address)
            assert (refused.status_code, refused.json()["code"]) == (500, "store_corrupt")
        async with AsyncClient(http.url) as there:
            with pytest.raises(StoreCorrupt, match="does not match its checksum"):
                [event async for event in (await there.get_run(id)).events()]


async def test_nothing_is_kept_on_the_way(http: Door) -> None:
    for address in ("/v1/runs", "/runs", "/readyz", "/metrics", "/v1/nowhere"):
        assert (await http.client.get(address)).headers["cache-control"] == "no-store"


async def test_a_refusal_is_a_page_that_looks_like_one(http: Door) -> None:
    style = await http.client.get("/static/console.css", headers={"host": "elsewhere.example"})
    assert (style.status_code, style.headers["content-type"]) == (200, "text/css; charset=utf-8")


async def test_a_process_that_stops_says_so_to_both(http: Door) -> None:
    http.app.drain.begin()
    for address, accept in (("/theme", BROWSER), ("/theme", PROGRAM), ("/v1/runs", PROGRAM)):
        answer = await http.client.post(address, headers={**FORM, **accept})
        (assert_is_page if accept is BROWSER else assert_is_problem)(answer, 503, "draining")
        assert int(answer.headers["retry-after"]) > 0


async def test_a_runtime_that_is_not_open_is_told_to_both(db: str) -> None:
    app = httpx.ASGITransport(make_app(Runtime(db)), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
        assert_is_page(await client.get("/", headers=BROWSER), 503, "not_open")
        assert_is_problem(await client.get("/v1/runs", headers=PROGRAM), 503, "not_open")


async def answer_to(http: Door, *pieces: bytes) -> httpx.Response:
    head, _, body = (await raw(http, *pieces)).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


async def test_a_slow_body_is_told_to_both(http: Door) -> None:
    head = "POST {} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: {}\r\n"
    head += "content-type: application/json\r\ncontent-length: 50\r\n\r\n"

    async def asked(address: str, accept: str) -> httpx.Response:
        return await answer_to(http, head.format(address, accept).encode(), b'{"agent"')

    answers: Any = await asyncio.gather(asked("/theme", BROWSER["accept"]), asked("/v1/runs", "*/*"))
    assert_is_page(answers[0], 408, "too_slow")
    assert_is_problem(answers[1], 408, "too_slow")


@pytest.mark.parametrize("media", ["application/json", "multipart/form-data; boundary=b", FORM["content-type"]])
async def test_a_client_that_is_gone_before_its_body_is_there_is_no_fault_of_ours(
    http: Door, caplog: pytest.LogCaptureFixture, media: str
) -> None:
    pages = ("/theme", "/sign-in", "/session/send")
    for path in pages if media == FORM["content-type"] else (*pages, "/v1/runs"):
        left, told = [{"type": "http.request", "body": b"--b\r\n", "more_body": True}], []

        async def receive(left: list[Any] = left) -> Any:
            return left.pop() if left else {"type": "http.disconnect"}

        async def send(message: Any, told: list[Any] = told) -> None:
            told.append(message)

        given = {"host": "localhost", "content-type": media, "transfer-encoding": "chunked"}
        await http.app({
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(n.encode(), v.encode()) for n, v in given.items()], "client": ("127.0.0.1", 1),
            "server": ("localhost", 80), "scheme": "http", "root_path": "",
        }, receive, send)  # fmt: skip
        assert told[0]["status"] == 400, path
    assert caplog.records == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01 this is TLS\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"POST /v1/runs HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nx: " + b"x" * 100_000, 431),
    ],
)
async def test_what_is_no_request_is_told_so(http: Door, sent: bytes, status: int) -> None:
    assert_is_problem(await answer_to(http, sent), status, "malformed")


async def test_what_is_no_part_of_a_request_ends_a_stream_and_is_no_fault_of_ours(
    http: Door, caplog: pytest.LogCaptureFixture
) -> None:
    await http.client.post("/v1/sessions", json={"id": "s"})
    host, _, port = http.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/sessions/s/events HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n")
    await reader.readuntil(b"retry: ")
    writer.write(b"no chunk\r\n")
    assert b"400" not in await reader.read()
    writer.close()
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


async def test_who_waits_to_be_asked_for_a_body_that_is_refused_is_not_asked_for_it(http: Door) -> None:
    head = b"POST /v1/runs HTTP/1.1\r\nhost: 127.0.0.1\r\nexpect: 100-continue\r\ncontent-type: application/json\r\n"
    refused = await answer_to(http, head + b"content-length: 99999999\r\n\r\n")
    assert_is_problem(refused, 413, "too_large")
    slow = await raw(http, head + b"content-length: 50\r\n\r\n", b'{"agent"')
    assert slow.startswith(b"HTTP/1.1 100 ")
    assert b"HTTP/1.1 408 " in slow


async def test_who_offers_another_protocol_is_answered_in_this_one(
    http: Door, caplog: pytest.LogCaptureFixture
) -> None:
    offered = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}
    assert (await http.client.get("/healthz", headers=offered)).status_code == 200
    assert caplog.records == []


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://127.0.0.1/v1/runs?limit=1", "127.0.0.1", 200),
        ("HTTP://localhost:8080/v1/runs", "evil.example", 200),  # what the target says counts
        ("http://evil.example/v1/runs", "127.0.0.1", 403),
        ("https://127.0.0.1", "127.0.0.1", 200),
        ("http://127.0.0.1/v1/runs/http://127.0.0.1/healthz", "127.0.0.1", 404),
    ],
)
async def test_a_request_may_name_the_server_before_the_path_as_one_to_a_proxy_does(
    http: Door, target: str, host: str, status: int
) -> None:
    asked = f"GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    assert (await answer_to(http, asked.encode())).status_code == status


async def test_too_many_connections_are_told_so(http: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_CONNECTIONS", 0)
    answer = await answer_to(http, b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    assert_is_problem(answer, 503, "overloaded")
    assert int(answer.headers["retry-after"]) > 0


async def test_a_page_from_elsewhere_is_told_what_it_may_not_send(db: str) -> None:
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    async with Runtime(db) as rt, door(rt, Admission(origins=["https://app.example"])) as http:
        taken = await http.client.options("/v1/runs", headers={"origin": "https://app.example", **asks})
        assert taken.status_code == 200
        refused = await http.client.options("/v1/runs", headers={"origin": "https://elsewhere.example", **asks})
        assert_is_problem(refused, 403, "forbidden")


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "127.0.0.256"])
def test_an_address_that_is_none_cannot_be_listened_on(host: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{host}:0 cannot be listened on \("):
        serving.listen(host, 0)
