"""C37: a viewer that comes back gets what it missed, once: after a drop, after the end, after a restart, elsewhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from door import Said, door, read, watch

from ondol import Agent, AsyncClient, Runtime, values
from ondol.client import _read
from ondol.testing import ScriptedModel, call

STEPS = 12  # a run of a hundred events


def note(n: int) -> str:
    """Note."""
    return f"noted {n}"


def agents() -> list[Agent]:
    model = ScriptedModel([*([call("note", n=n)] for n in range(STEPS)), "done"])
    return [Agent("noter", model=model, tools=[note])]


async def take(client: httpx.AsyncClient, run: str, n: int, after: str | None = None) -> list[Said]:
    """The first ``n`` events of a stream, then the viewer drops it."""
    headers = {"last-event-id": after} if after else {}
    async with client.stream("GET", f"/v1/runs/{run}/events", headers=headers) as response:
        events, seen = read(response), list[Said]()
        while sum(e.id is not None for e in seen) < n:
            seen.append(await anext(events))
        await events.aclose()
    return [e for e in seen if e.id is not None]


async def test_c37_the_union_of_what_viewers_got_is_complete_and_nothing_is_twice(db: str) -> None:
    async with Runtime(db, agents=agents()) as rt, door(rt) as http:
        run = (await http.client.post("/v1/runs", json={"agent": "noter", "input": "go"})).json()["id"]
        first = await take(http.client, run, 30)
        again = {"last-event-id": first[-1].id or ""}
        async with http.client.stream("GET", f"/v1/runs/{run}/events", headers=again):
            pass  # gone before any event with an id
        rest = [e for e in await watch(http.client, f"/v1/runs/{run}/events", after=first[-1].id) if e.id]
        whole = [e.id for e in [*first, *rest]]
        assert len(whole) > 90
        assert whole == [f"{run}/{n + 1}" for n in range(len(whole))]
        late = [e.id for e in await watch(http.client, f"/v1/runs/{run}/events") if e.id]  # no id, after the end
        assert late == whole
        over = await http.client.get(f"/v1/runs/{run}/events", headers={"last-event-id": whole[-1] or ""})
        assert over.status_code == 204  # the end marker

    async with Runtime(db, agents=agents()) as rt, door(rt) as http:  # after a restart
        async with Runtime(db) as beside, door(beside) as elsewhere:  # and in another process's place on the same store
            for client in (http.client, elsewhere.client):
                rest = [e for e in await watch(client, f"/v1/runs/{run}/events", after=first[-1].id) if e.id]
                assert [e.id for e in [*first, *rest]] == whole
        other = (await http.client.post("/v1/runs", json={"agent": "noter", "input": "go"})).json()["id"]
        wrong = await http.client.get(f"/v1/runs/{other}/events", headers={"last-event-id": whole[3] or ""})
        assert (wrong.status_code, wrong.json()["code"]) == (400, "wrong_cursor")
        ended = await http.client.get(f"/v1/runs/{run}", timeout=20)
        await rt.delete_session(ended.json()["session"], by="lee")
        gone = await http.client.get(f"/v1/runs/{run}/events", headers={"last-event-id": whole[3] or ""})
        assert (gone.status_code, gone.json()["code"]) == (410, "cursor_expired")


async def test_c37_a_session_is_watched_without_a_gap_over_several_runs(db: str) -> None:
    hello = Agent("hello", model=ScriptedModel(lambda _: "hello"))
    async with Runtime(db, agents=[hello]) as rt, door(rt) as http:
        runs = [await rt.start("hello", f"hi {n}", session="s") for n in range(3)]
        for run in runs:
            await run.result()
        wanted = {e.id for run in runs for e in [e async for e in run.events()] if e.id}
        seen: list[str] = []
        cursor: str | None = None
        while len(seen) < len(wanted):
            headers = {"last-event-id": cursor} if cursor else {}
            async with http.client.stream("GET", "/v1/sessions/s/events", headers=headers) as response:
                events = read(response)
                for _ in range(7):
                    if len(seen) == len(wanted):
                        break
                    said = await anext(events)
                    if said.id is not None:
                        seen.append(said.data["id"])
                        cursor = said.id
                await events.aclose()
        assert len(seen) == len(set(seen))
        assert set(seen) == wanted
        for run in runs:
            of_run = [int(id.rpartition("/")[2]) for id in seen if id.startswith(run.id)]
            assert of_run == sorted(of_run)
        wrong = await http.client.get("/v1/sessions/s/events", params={"after": "r_nobody/3"})
        assert wrong.status_code == 400


STRANGE = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\r\nh\ri\nj \ufeff 온돌 \U0001f525 \0"


@pytest.mark.parametrize("lone", ["", "\ud800"])
async def test_c37_no_character_of_what_was_said_ends_a_line_for_any_reader(db: str, lone: str) -> None:
    said = STRANGE + lone
    agent = Agent("strange", model=ScriptedModel([said]))
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http:
        async with http.client.stream(
            "POST", "/v1/runs", json={"agent": "strange", "input": STRANGE}, headers={"accept": "text/event-stream"}
        ) as response:
            events = [e async for e in read(response)]  # httpx ends lines where Python's splitlines does
        assert events[-1].event == "run.completed"
        texts = [e.data["data"]["text"] for e in events if e.event == "model.delta"]
        assert "".join(texts).startswith(STRANGE)
        async with AsyncClient(http.url) as client:
            run = await client.start("strange", STRANGE)
            seen = [e async for e in run.events()]
            assert [e.data["text"] for e in seen if e.type == "model.completed"] == [values.valid(said)]
            assert (await run.result()).text == said


async def test_c37_the_client_ends_lines_where_the_standard_does() -> None:
    """Whatever stands between may have written the JSON anew, and cut it anywhere."""
    body = json.dumps({"id": "r_1/1", "type": "delta", "at": "2026-01-01T00:00:00Z", "data": {"text": STRANGE}},
                      ensure_ascii=False).encode()  # fmt: skip
    stream = b"event: delta\r\ndata: " + body + b"\r\n\r\n: .\n\ndata:" + body + b"\n\n"

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(stream), size):
            yield stream[start : start + size]

    for size in (1, 7, len(stream)):
        read_by_client = [e async for e in _read(httpx.Response(200, content=pieces(size)))]
        assert [e.data["text"] for e in read_by_client] == [STRANGE] * 2


@pytest.mark.parametrize("after", ["nonsense", "r_1/", "/3", "r_1/x"])
async def test_c37_an_id_that_is_none_is_refused(db: str, after: str) -> None:
    async with Runtime(db, agents=agents()) as rt, door(rt) as http:
        run = await rt.start("noter", "go")
        answer = await http.client.get(f"/v1/runs/{run.id}/events", params={"after": after})
        assert (answer.status_code, answer.json()["code"]) == (400, "wrong_cursor")
