"""Over HTTP a run is what it is from Python: started once, watched from anywhere, stopped, decided, done again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from door import Door, door, read, run, watch
from kit import Conversation, Gate
from starlette.applications import Starlette
from starlette.routing import Mount

from ondol import Agent, Context, Runtime, tool
from ondol.testing import ScriptedModel, call

RUNS = "/v1/runs"


@tool(approve=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def agents() -> list[Agent]:
    payer = Agent("payer", model=Conversation({"pay": [[call("pay", amount=30)], "done"]}), tools=[pay])
    return [Agent("hello", model=ScriptedModel(lambda _: "hello")), payer]


@pytest.fixture
async def http(db: str) -> AsyncIterator[Door]:
    async with Runtime(db, agents=agents()) as rt, door(rt) as opened:
        yield opened


async def test_an_accepted_run_is_durable_and_has_an_address(http: Door) -> None:
    answer = await http.client.post(RUNS, json={"agent": "hello", "input": "hi"}, headers={"idempotency-key": '"k 1"'})
    assert answer.status_code == 202
    assert answer.headers["idempotency-key"] == '"k 1"'
    body = answer.json()
    assert body["operation_id"] == "k 1"
    assert answer.headers["location"] == f"/v1/runs/{body['id']}"
    result = await http.client.get(f"{answer.headers['location']}/result", params={"wait": 20})
    assert result.status_code == 200
    assert result.json() == {
        "id": body["id"], "state": "completed", "session": body["session"], "operation_id": "k 1", "text": "hello",
        "revision": 1,
    }  # fmt: skip


async def test_an_address_is_one_where_the_door_is_mounted_too(db: str) -> None:
    async with Runtime(db, agents=agents()) as rt:
        app = Starlette(routes=[Mount("/über uns", app=rt.asgi())])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            made = await client.post("/über uns/v1/sessions", json={"id": "a b"})
            started = await client.post(f"/über uns{RUNS}", json={"agent": "payer", "input": "pay"})
            where = [answer.headers["location"] for answer in (made, started)]
            assert where == ["/%C3%BCber%20uns/v1/sessions/a%20b", f"/%C3%BCber%20uns/v1/runs/{started.json()['id']}"]
            assert [(await client.get(address)).status_code for address in where] == [200, 200]


async def test_the_same_key_again_has_the_same_bytes_and_says_so(http: Door) -> None:
    first = await run(http.client, "hello", "hi", "k")
    again = await run(http.client, "hello", "hi", '"k"')  # quoted or bare
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.content == again.content
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    other = await run(http.client, "hello", "something else", "k")
    assert (other.status_code, other.json()["code"]) == (422, "operation_mismatch")
    assert "hi" not in other.json()["detail"].split()


async def test_a_key_is_made_and_returned_where_none_was_sent(http: Door) -> None:
    first, second = await run(http.client, "hello", "hi"), await run(http.client, "hello", "hi")
    assert first.json()["id"] != second.json()["id"]
    assert first.headers["idempotency-key"] == f'"{first.json()["operation_id"]}"'


async def test_what_a_client_prefers_may_come_in_several_lines(http: Door) -> None:
    lines = [("prefer", "handling=lenient"), ("prefer", "wait=20"), ("accept", "*/*"), ("accept", "application/json")]
    waited = await http.client.post(RUNS, json={"agent": "hello", "input": "hi"}, headers=lines)
    assert (waited.status_code, waited.headers["preference-applied"]) == (200, "wait=20")
    lines = [("accept", "application/json;q=0.5"), ("accept", "text/event-stream")]
    streamed = await http.client.post(RUNS, json={"agent": "hello", "input": "hi"}, headers=lines)
    assert streamed.headers["content-type"].startswith("text/event-stream")


async def test_a_stream_tells_everything_and_ends_with_the_run(http: Door) -> None:
    body = {"agent": "hello", "input": "hi"}
    async with http.client.stream("POST", RUNS, json=body, headers={"accept": "text/event-stream"}) as response:
        assert response.headers["ondol-on-disconnect"] == "cancel"
        told = [said async for said in read(response)]
    assert (told[0].event, told[-1].event) == ("run.accepted", "run.completed")
    stored = [said for said in told if said.id is not None]
    id = told[0].data["id"].partition("/")[0]
    assert [said.id for said in stored] == [f"{id}/{n + 1}" for n in range(len(stored))]
    assert {said.event for said in told if said.id is None} <= {"model.delta", "message.snapshot"}
    assert [said.id for said in await watch(http.client, f"{RUNS}/{id}/events")] == [said.id for said in stored]
    rest = await watch(http.client, f"{RUNS}/{id}/events", after=f"{id}/3")
    assert [said.id for said in rest] == [said.id for said in stored[3:]]
    over = await http.client.get(f"{RUNS}/{id}/events", headers={"last-event-id": stored[-1].id or ""})
    assert over.status_code == 204  # a browser does not come back


async def test_an_approval_counts_for_what_was_shown_once(http: Door) -> None:
    waiting = await run(http.client, "payer", "pay")
    assert (waiting.status_code, waiting.json()["state"]) == (202, "waiting")
    (ask,) = (await http.client.get("/v1/asks", params={"run": waiting.json()["id"]})).json()["items"]
    where, match = f"/v1/asks/{ask['id']}/decision", {"if-match": f'"{ask["arguments_hash"]}"'}
    unseen = await http.client.post(where, json={"decision": "approve"})
    assert (unseen.status_code, unseen.json()["code"]) == (428, "precondition_required")
    stale = await http.client.post(where, json={"decision": "approve"}, headers={"if-match": '"of something else"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    for more in ("value", "result"):
        unfit = await http.client.post(where, json={"decision": "approve", more: {"amount": 1}}, headers=match)
        assert (unfit.status_code, unfit.json()["detail"].partition(":")[0]) == (
            422, f"a {more} does not go with 'approve'",
        )  # fmt: skip
    for _ in range(2):
        decided = await http.client.post(where, json={"decision": "approve", "by": "lee"}, headers=match)
        assert (decided.status_code, decided.json()["decided_by"]) == (200, "lee")
    other = await http.client.post(where, json={"decision": "deny"}, headers=match)
    assert (other.status_code, other.json()["code"]) == (409, "already_decided")
    result = await http.client.get(f"/v1/runs/{waiting.json()['id']}/result", params={"wait": 20})
    assert result.json()["text"] == "done"


async def test_an_answer_without_a_value_is_none_and_null_is_one(db: str) -> None:
    @tool(effect="steps")
    async def ask(ctx: Context[None]) -> str:
        """Ask."""
        return str(await ctx.ask("Which table?", schema=int | None))

    agent = Agent("asker", model=Conversation({"ask": [[call("ask")], "done"]}), tools=[ask])
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http:
        waiting = await run(http.client, "asker", "ask")
        (ask_,) = (await http.client.get("/v1/asks", params={"run": waiting.json()["id"]})).json()["items"]
        where, match = f"/v1/asks/{ask_['id']}/decision", {"if-match": f'"{ask_["arguments_hash"]}"'}
        nothing = await http.client.post(where, json={"decision": "answer", "by": "lee"}, headers=match)
        assert (nothing.status_code, nothing.json()["code"]) == (422, "invalid_input")
        assert "send the answer as 'value'" in nothing.json()["detail"]
        assert (await rt.get_ask(ask_["id"])).state == "open"
        null = await http.client.post(where, json={"decision": "answer", "value": None, "by": "lee"}, headers=match)
        assert (null.status_code, null.json()["decision"], null.json()["value"]) == (200, "answer", None)


async def test_why_it_was_decided_is_kept_or_told_where_to_say_it(http: Door) -> None:
    waiting = await run(http.client, "payer", "pay")
    (ask,) = (await http.client.get("/v1/asks", params={"run": waiting.json()["id"]})).json()["items"]
    where, match = f"/v1/asks/{ask['id']}/decision", {"if-match": f'"{ask["arguments_hash"]}"'}
    for decision, other, goes in [
        ("approve", "evidence", "reason"), ("deny", "evidence", "reason"), ("happened", "reason", "evidence"),
    ]:  # fmt: skip
        unfit = await http.client.post(where, json={"decision": decision, other: "seen"}, headers=match)
        assert (unfit.status_code, f"as '{goes}'" in unfit.json()["detail"]) == (422, True), unfit.text
    why = {"decision": "approve", "by": "lee", "reason": "the customer called"}
    assert (await http.client.post(where, json=why, headers=match)).status_code == 200
    (act,) = [a for a in await http.app.runtime.audit() if a.act == "ask.approve"]
    assert (act.by, act.door, act.note) == ("lee", "http", "the customer called")


async def test_the_client_of_the_stream_that_made_a_run_takes_it_with_it(db: str) -> None:
    gate = Gate()

    async def slow(ctx: Context[None]) -> str:
        """Take long."""
        await gate.wait()
        return "done"

    model = Conversation({"go": [[call("slow")], "done"]})
    body = {"agent": "slow", "input": "go", "session": "s"}
    stream = {"accept": "text/event-stream"}
    async with Runtime(db, agents=[Agent("slow", model=model, tools=[slow])]) as rt, door(rt) as http:
        keyed = stream | {"idempotency-key": "k"}
        async with http.client.stream("POST", RUNS, json=body, headers=keyed) as response:
            events = read(response)
            id = (await anext(events)).data["id"].partition("/")[0]
            await gate.reached.wait()
            for method, path in (("GET", f"{RUNS}/{id}/events"), ("POST", RUNS)):  # goes away, and does not matter
                sent = body if method == "POST" else None
                async with http.client.stream(method, path, json=sent, headers=keyed) as watching:
                    assert watching.headers["ondol-on-disconnect"] == "continue"
                    assert (await anext(read(watching))).data["id"] == f"{id}/1"
            assert (await rt.get_run(id)).status == "running"
        ended = await http.client.get(f"{RUNS}/{id}/result", params={"wait": 20})
        assert ended.json()["state"] == "cancelled"
        assert ended.json()["error"]["code"] == "cancelled"
        gate.reached.clear()
        body["on_disconnect"] = "continue"
        async with http.client.stream("POST", RUNS, json=body, headers=stream) as response:
            assert response.headers["ondol-on-disconnect"] == "continue"
            events = read(response)
            id = (await anext(events)).data["id"].partition("/")[0]
            await gate.reached.wait()
        gate.open()
        ended = await http.client.get(f"{RUNS}/{id}/result", params={"wait": 20})
        assert ended.json()["state"] == "completed"


async def test_a_watcher_in_the_middle_of_a_message_is_told_what_was_said(db: str) -> None:
    said, go_on = asyncio.Event(), asyncio.Event()

    class Slow:
        name = "slow"

        async def stream(self, request: object) -> AsyncIterator[object]:
            from ondol import Answer, Delta, Text

            yield Delta("Dear ")
            yield Delta("Kim")
            said.set()
            await go_on.wait()
            yield Delta(", hello")
            yield Answer(parts=(Text("Dear Kim, hello"),))

    async with Runtime(db, agents=[Agent("slow", model=Slow())]) as rt, door(rt, heartbeat=0.05) as http:
        id = (await http.client.post(RUNS, json={"agent": "slow", "input": "go"})).json()["id"]
        await said.wait()
        async with http.client.stream("GET", f"{RUNS}/{id}/events") as response:
            told = []
            async for event in read(response):
                told.append(event)
                if event.event == "message.snapshot":
                    assert event.data["data"] == {"step": 1, "text": "Dear Kim"}
                    go_on.set()
        deltas = [e.data["data"]["text"] for e in told if e.event == "model.delta"]
        assert deltas == [", hello"]


async def test_what_is_wrong_is_said_in_the_words_of_the_command_line(http: Door) -> None:
    missing = await http.client.get(f"{RUNS}/r_nobody")
    assert missing.headers["content-type"] == "application/problem+json"
    assert missing.status_code == missing.json()["status"] == 404
    assert missing.json()["detail"] == "there is no run 'r_nobody': 'ondol runs' lists them"
    for content, status, code in [
        ('{"agent": ', 400, "malformed"), ('{"agent": "hello"}', 422, "invalid_input"),
        ("[" * 200 + "]" * 200, 422, "invalid_input"), ('{"agent": "nobody", "input": "x"}', 404, "not_found"),
    ]:  # fmt: skip
        answer = await http.client.post(RUNS, content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (status, code), json.dumps(answer.json())
    plain = await http.client.post(RUNS, content="x", headers={"content-type": "text/plain"})
    assert (plain.status_code, plain.json()["code"]) == (415, "unsupported_media")


async def test_a_header_that_cannot_be_read_is_refused_also_where_nothing_would_be_done(http: Door) -> None:
    done = await run(http.client, "hello", "hi", session="s")
    address = f"{RUNS}/{done.json()['id']}/replay?dry_run=true"
    assert (await http.client.post(address, headers={"idempotency-key": '"k"'})).json()["kind"] == "safe"
    refused = await http.client.post(address, headers={"idempotency-key": '"'})
    assert (refused.status_code, refused.json()["code"]) == (400, "malformed")
    compact = "/v1/sessions/s/compact"
    refused = await http.client.post(compact, json={"preview": True}, headers={"if-match": "7"})
    assert (refused.status_code, refused.json()["code"]) == (400, "malformed")
