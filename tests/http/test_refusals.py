"""What is too large, too deep, too slow or too much is refused before anything of it is written."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import tracemalloc
from collections.abc import AsyncIterator, Mapping

import pytest
from door import Door, door, raw, read, run
from kit import Gate

from ondol import Agent, Context, Limits, Runtime
from ondol.errors import InvalidInput, StoreFull
from ondol.events import Event
from ondol.http import guard, serving, sse
from ondol.http.drain import Drain
from ondol.http.guard import Admission
from ondol.http.requests import check_depth
from ondol.stores import open_store
from ondol.testing import FaultPlan, FaultyStore, ScriptedModel, call, raise_

JSON = {"content-type": "application/json"}
SMALL = Admission(limits=guard.Limits(body=2000, upload=4000, depth=20, body_time=1.0))


@pytest.fixture
async def http(db: str) -> AsyncIterator[Door]:
    hello = Agent("hello", model=ScriptedModel(lambda _: "hello"), limits=Limits(attachments=2))
    async with Runtime(db, agents=[hello]) as rt, door(rt, SMALL) as opened:
        yield opened


def body(**more: object) -> dict[str, object]:
    return {"agent": "hello", "input": "hi", **more}


@pytest.mark.parametrize("tagged", [{"$ondol": "bytes", "v": "AA=="}, {"$ondol": "decimal", "v": "1"}])
async def test_an_object_that_is_tagged_as_something_else_is_refused(http: Door, tagged: dict[str, str]) -> None:
    for method, path, given in [
        ("POST", "/v1/runs", body(metadata=tagged)), ("POST", "/v1/sessions", {"id": "s", "state": tagged}),
    ]:  # fmt: skip
        answer = await http.client.request(method, path, json=given)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), answer.text
    assert await http.app.runtime.runs() == []


async def test_an_object_that_only_looks_tagged_is_an_object_like_others(http: Door) -> None:
    state = {"$ondol": "bytes", "v": "!"}
    made = await http.client.post("/v1/sessions", json={"id": "s", "state": state})
    assert made.status_code == 201, made.text
    assert (await http.app.runtime.get_session("s")).state == state


async def test_what_is_too_large_is_413_and_too_deep_422(http: Door) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * 1000

    file = {"name": "a.txt", "data": base64.b64encode(b"x").decode()}
    deep: object = 1
    for _ in range(30):
        deep = [deep]
    for content, status in [
        (json.dumps(body(input="x" * 3000)).encode(), 413), (chunks(), 413),
        (json.dumps(body(attachments=[file] * 3)).encode(), 413),
        (json.dumps(body(metadata={"a": deep})).encode(), 422),
    ]:  # fmt: skip
        answer = await http.client.post("/v1/runs", content=content, headers=JSON)
        assert answer.status_code == status, answer.text
    form = await http.client.post("/v1/runs", data={"agent": "hello", "input": "hi"},
                                  files={"attachments": ("a.txt", b"x" * 5000)})  # fmt: skip
    assert form.status_code == 413
    assert await http.app.runtime.runs() == []


async def test_json_nests_no_deeper_by_another_way_in(http: Door) -> None:
    deep = '{"∀": ' + "[" * 200 + "]" * 200 + "}"
    fields = {"agent": "hello", "input": "hi"}
    metadata = {"metadata": (None, deep)}
    form = await http.client.post("/v1/runs", data=fields, files=metadata)
    assert (form.status_code, "nests deeper" in form.json()["detail"]) == (422, True)
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        text = json.dumps(fields)[:-1] + f', "metadata": {deep}}}'
        answer = await http.client.post("/v1/runs", content=text.encode(encoding), headers=JSON)
        assert (answer.status_code, "UTF-8" in answer.json()["detail"]) == (400, True)
    marked = json.dumps(fields).encode("utf-8-sig")
    assert (await http.client.post("/v1/runs", content=marked, headers=JSON)).status_code == 202


async def test_a_name_that_is_there_twice_is_named_and_nothing_begins(http: Door) -> None:
    run = (await http.client.post("/v1/runs", json={"agent": "hello", "input": "hi"})).json()["id"]
    fields = {"agent": "hello", "input": "hi"}
    for path, sent, named in [
        ("/v1/runs", '{"agent": "hello", "input": "buy", "input": "sell"}', "input"),
        ("/v1/runs", '{"agent": "hello", "input": "hi", "metadata": [{"k": 1, "l": 2, "k": 1}]}', "k"),
        (f"/v1/runs/{run}/cancel", '{"by": "lee", "by": "kim"}', "by"),
    ]:
        answer = await http.client.post(path, content=sent, headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed")
        assert f"has {named!r} twice" in answer.json()["detail"]
    form = await http.client.post("/v1/runs", data=fields, files={"metadata": (None, '{"k": 1, "k": 2}')})
    assert (form.status_code, "has 'k' twice" in form.json()["detail"]) == (400, True)
    assert [r.id for r in await http.app.runtime.runs()] == [run]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1E999"])
async def test_what_is_no_number_of_json_is_refused_with_its_place(http: Door, number: str) -> None:
    metadata = f'{{"of": "\\" {number}", "n": [1.5, {number}]}}'
    text = f'{{"agent": "hello", "input": "{number}", "metadata": {metadata}}}'
    answer = await http.client.post("/v1/runs", content=text, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")
    assert f"{number} is no number of JSON: line 1 column {text.rindex(number) + 1} " in answer.json()["detail"]
    form = await http.client.post(
        "/v1/runs", data={"agent": "hello", "input": "hi"}, files={"metadata": (None, metadata)}
    )
    assert (form.status_code, f"{number} is no number of JSON" in form.json()["detail"]) == (400, True)
    assert await http.app.runtime.runs() == []


async def test_a_body_that_may_be_left_out_may_be_empty_in_pieces(http: Door) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    run = (await http.client.post("/v1/runs", json={"agent": "hello", "input": "hi"})).json()["id"]
    empty = await http.client.post(f"/v1/runs/{run}/cancel", content=nothing(), headers=JSON)
    assert empty.status_code in (200, 202)
    refused = await http.client.post("/v1/runs", content=nothing(), headers=JSON)
    assert (refused.status_code, "empty" in refused.json()["detail"]) == (400, True)


def test_a_long_text_is_passed_over_in_the_memory_that_it_has() -> None:
    """An attachment in JSON is one. How deep JSON nests is looked for beside its texts."""
    for text in ("x" * 300_000, '\\"[' * 100_000):
        sent = json.dumps([text, {}]).encode()
        tracemalloc.start()
        check_depth(sent, 2)
        assert tracemalloc.get_traced_memory()[1] < 100_000
        tracemalloc.stop()
        with pytest.raises(InvalidInput):
            check_depth(sent, 1)


async def test_files_come_by_form_and_by_json_and_go_out_as_downloads(http: Door) -> None:
    page = b"<script>alert(1)</script>"
    files = {"attachments": ("../evil.html", page, "text/html")}
    by_form = await http.client.post("/v1/runs", data={"agent": "hello", "input": "hi"}, files=files,
                                     headers={"idempotency-key": "k"})  # fmt: skip
    elsewhere = await http.client.post("/v1/sessions", files={"attachments": ("evil.html", page)})
    assert elsewhere.status_code == 415, "a form where no files are taken"
    attachment = {"name": "evil.html", "data": base64.b64encode(page).decode(), "media_type": "text/html"}
    by_json = await http.client.post("/v1/runs", json=body(attachments=[attachment]), headers={"idempotency-key": "k"})
    assert {by_form.status_code, by_json.status_code} <= {200, 202}, (by_form.text, by_json.text)  # ended, or goes on
    assert by_form.json()["id"] == by_json.json()["id"]  # the same operation
    run = await http.app.runtime.get_run(by_form.json()["id"])
    (digest,) = await http.app.runtime.blobs_of(run.id)
    given = await http.client.get(f"/v1/runs/{run.id}/blobs/{digest}")
    assert given.content == page
    assert given.headers["content-disposition"].startswith("attachment")
    assert (given.headers["content-type"], given.headers["x-content-type-options"]) == (
        "application/octet-stream", "nosniff",
    )  # fmt: skip
    assert (await http.client.get(f"/v1/runs/{run.id}/blobs/{'0' * 64}")).status_code == 404
    other = (await http.client.post("/v1/runs", json=body())).json()["id"]  # a run that does not use it
    assert (await http.client.get(f"/v1/runs/{other}/blobs/{digest}")).status_code == 404


async def test_a_slow_client_holds_no_place(http: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_HEADERS_TIME", 0.2)
    assert await raw(http, b"GET /healthz HT") == b""  # cut off
    assert await raw(http) == b""
    head = b"POST /v1/runs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n"
    assert b"408 Request Timeout" in await raw(http, head, b'{"agent"')
    large = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"x" * 40_000 + b"\r\n\r\n"
    assert b"431 " in await raw(http, large)


async def test_an_idle_connection_is_kept_for_longer_than_a_proxy_keeps_it(http: Door) -> None:
    """Sixty seconds, in most. Who sends nothing at all on a new one has ten."""
    assert serving.config(http.app).timeout_keep_alive > 60


async def test_each_part_of_an_answer_is_sent_at_once(http: Door) -> None:
    await http.client.get("/healthz")
    (connection,) = http.server.server_state.connections
    of_it = connection.transport.get_extra_info("socket")  # type: ignore[union-attr]
    assert of_it.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_b16_a_full_disk_is_507_until_there_is_space_and_reads_go_on(db: str) -> None:
    agent = Agent("hello", model=ScriptedModel(["hello"]))
    store = FaultyStore(open_store(db), FaultPlan().at("accept", nth=None, fault=raise_(StoreFull("the disk is full"))))
    async with Runtime(store, agents=[agent]) as rt, door(rt) as http:
        refused = await run(http.client, "hello", "hi", key="k")
        assert (refused.status_code, refused.headers["content-type"]) == (507, "application/problem+json")
        said = refused.json()
        assert (said["code"], said["detail"]) == ("store_full", "the disk is full")
        assert "space" in said["fix"]
        assert (await http.client.get("/v1/runs")).json()["items"] == []
        store.plan = FaultPlan()  # there is space again
        done = await run(http.client, "hello", "hi", key="k")
        assert (done.status_code, done.json()["text"]) == (200, "hello")


async def test_a_proxy_is_told_to_hold_no_stream_up(db: str) -> None:
    async with Runtime(db, agents=[Agent("hello", model=ScriptedModel(["hello"]))]) as rt, door(rt) as http:
        made = await run(http.client, "hello", "hi")
        async with http.client.stream("GET", f"/v1/runs/{made.json()['id']}/events") as stream:
            assert (stream.headers["x-accel-buffering"], stream.headers["cache-control"]) == ("no", "no-store")
            assert "content-length" not in stream.headers


async def test_a_queue_that_is_full_says_when_to_come_back(db: str) -> None:
    gate = Gate()

    async def slow(ctx: Context[None]) -> str:
        """Take long."""
        await gate.wait()
        return "done"

    agent = Agent("slow", model=ScriptedModel([[call("slow")], "done"]), tools=[slow], limits=Limits(queue=0))
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http:
        sent = {"agent": "slow", "input": "go", "session": "s"}
        first = await http.client.post("/v1/runs", json=sent, headers={"idempotency-key": "k"})
        await gate.reached.wait()
        full = await http.client.post("/v1/runs", json=sent)
        assert (full.status_code, full.json()["code"]) == (429, "queue_full")
        assert int(full.headers["retry-after"]) > 0
        again = {"idempotency-key": "k", "prefer": "wait=0"}
        running = await http.client.post("/v1/runs", json=sent, headers=again)
        assert (running.status_code, running.json()["run"]) == (409, first.json()["id"])
        gate.open()


async def test_a_reader_that_does_not_read_is_disconnected_and_told_nothing_false() -> None:
    """Its stream stops between two events: what it has is a beginning, and it comes back for the rest."""
    from datetime import UTC, datetime

    async def events() -> AsyncIterator[Event]:
        n = 0
        while True:
            n += 1
            yield Event(type="step.started", data={"step": n}, at=datetime.now(UTC), id=f"r_1/{n}")

    sent: list[bytes] = []
    full, never = 5, asyncio.Event()

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        if len(sent) == full:
            await never.wait()
        sent.append(message.get("body", b""))

    async def receive() -> dict[str, str]:
        await never.wait()
        return {"type": "http.disconnect"}

    stream = sse.EventStream(events(), Drain(), patience=0.05)
    with pytest.raises(ConnectionAbortedError):
        await stream({"type": "http"}, receive, send)  # type: ignore[arg-type]
    assert len(sent) == full
    assert all(chunk.endswith(b"\n\n") for chunk in sent if chunk)


@pytest.mark.parametrize("address", ["sessions/s/messages", "sessions/s/events", "runs/{}/events"])
async def test_a_client_that_takes_nothing_of_a_large_answer_is_cut_off(
    db: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    """In order it could not be: what was written waits for ever to be taken, and holds its memory and its place."""
    monkeypatch.setattr(serving, "_UNREAD_TIME", 0.1)
    agent = Agent("talks", model=ScriptedModel(lambda _: "x" * 8_000_000))
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http:
        id = (await rt.run("talks", "go", session="s")).run_id
        connections = http.server.server_state.connections
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            host, _, port = http.url.removeprefix("http://").partition(":")
            await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
            client.send(f"GET /v1/{address.format(id)} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            assert await asyncio.get_running_loop().sock_recv(client, 12) == b"HTTP/1.1 200"
            async with asyncio.timeout(20):
                while connections or http.app.drain.streams:  # noqa: ASYNC110 - nothing tells it
                    await asyncio.sleep(0)
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


async def test_a_client_that_takes_some_of_an_answer_is_waited_for(db: str) -> None:
    agent = Agent("talks", model=ScriptedModel(lambda _: "x" * 8_000_000))
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http:
        await rt.run("talks", "go", session="s")
        async with http.client.stream("GET", "/v1/sessions/s/messages"):
            (connection,) = http.server.server_state.connections
            assert isinstance(connection, serving._InTime)
            waiting = connection.transport.get_write_buffer_size()
            assert waiting > 0
            connection._look_at_reader(waiting + 1)
            assert not connection.transport.is_closing()
            connection._look_at_reader(waiting)
            assert connection.transport.is_closing()


async def test_a_large_event_is_sent_in_pieces_of_which_a_slow_reader_takes_each_in_time() -> None:
    from datetime import UTC, datetime

    large = Event(type="model.completed", data={"text": "x" * 300_000}, at=datetime.now(UTC), id="r_1/1")

    async def events() -> AsyncIterator[Event]:
        yield large

    sent = list[bytes]()

    async def send(message: Mapping[str, bytes]) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError("nobody leaves")

    await sse.EventStream(events(), Drain())({"type": "http"}, receive, send)  # type: ignore[arg-type]
    assert max(map(len, sent)) == sse._PIECE
    assert b"".join(sent).endswith(sse.framed(large))


async def test_a_reader_that_goes_away_in_the_middle_of_what_is_stored_is_sent_no_more_of_it() -> None:
    """Each further piece would be a line of the log: asyncio warns of a write to who is gone."""
    from datetime import UTC, datetime

    async def events() -> AsyncIterator[Event]:
        for n in range(1, 1000):
            yield Event(type="step.started", data={"step": n}, at=datetime.now(UTC), id=f"r_1/{n}")

    sent, left = list[object](), asyncio.Event()

    async def send(message: object) -> None:
        sent.append(message)
        if len(sent) == 5:
            left.set()

    async def receive() -> dict[str, str]:
        await left.wait()
        return {"type": "http.disconnect"}

    await sse.EventStream(events(), Drain())({"type": "http"}, receive, send)  # type: ignore[arg-type]
    assert len(sent) < 20


async def test_a_reader_that_is_gone_is_gone_however_its_server_says_so() -> None:
    """ASGI servers differ: some raise where something is sent to it, and tell of it later, or never."""
    left: list[str] = []

    async def events() -> AsyncIterator[Event | None]:
        yield None

    async def send(message: Mapping[str, object]) -> None:
        if message["type"] == "http.response.body":
            raise ConnectionResetError

    async def gone() -> None:
        left.append("gone")

    await sse.EventStream(events(), Drain(), gone=gone)({"type": "http"}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert left == ["gone"]


async def test_while_nothing_happens_a_stream_shows_that_it_is_alive(db: str) -> None:
    gate = Gate()

    async def slow(ctx: Context[None]) -> str:
        """Take long."""
        await gate.wait()
        return "done"

    agent = Agent("slow", model=ScriptedModel([[call("slow")], "done"]), tools=[slow])
    async with Runtime(db, agents=[agent]) as rt, door(rt, heartbeat=0.05) as http:
        run = (await http.client.post("/v1/runs", json={"agent": "slow", "input": "go"})).json()["id"]
        async with http.client.stream("GET", f"/v1/runs/{run}/events") as response:
            async for line in response.aiter_lines():
                if line == ": .":
                    break
        gate.open()
        async with http.client.stream("GET", f"/v1/runs/{run}/events") as response:
            assert [e.event async for e in read(response)][-1] == "run.completed"
