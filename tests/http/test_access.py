"""Who comes in: this machine, or a token that counts; and nobody sees what is somebody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from door import Door, door, run
from kit import Conversation

from ondol import Agent, Runtime, access, tool
from ondol.access import Scope
from ondol.http.guard import Admission
from ondol.testing import ScriptedModel, call

pytestmark = pytest.mark.both_stores


@tool(approve=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@pytest.fixture
async def http(db: str) -> AsyncIterator[Door]:
    hello = Agent("hello", model=ScriptedModel(lambda _: "hello"))
    payer = Agent("payer", model=Conversation({"pay": [[call("pay", amount=30)], "done"]}), tools=[pay])
    async with Runtime(db, agents=[hello, payer]) as rt, door(rt, Admission(needs_token=True)) as opened:
        yield opened


async def token(http: Door, *scopes: Scope, **options: Any) -> dict[str, str]:
    _, secret = await access.create_token(http.app.runtime, "test", scopes, **options)
    return {"authorization": f"Bearer {secret}"}


async def test_without_a_token_that_counts_nothing_is_done(http: Door) -> None:
    made, secret = await access.create_token(http.app.runtime, "test", ["admin"])
    for headers in ({}, {"authorization": "Bearer nope"}, {"authorization": "Basic x"}):
        answer = await http.client.get("/v1/runs", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    mine = {"authorization": f"Bearer {secret}"}
    assert (await http.client.get("/v1/runs", headers=mine)).status_code == 200
    await access.revoke_token(http.app.runtime, made.id)
    assert (await http.client.get("/v1/runs", headers=mine)).status_code == 401
    assert (await http.client.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [("GET", "/v1/runs", "read"), ("GET", "/metrics", "read"), ("POST", "/v1/runs/r/cancel", "run"),
     ("POST", "/v1/asks/a/decision", "answer")],
)  # fmt: skip
async def test_a_token_does_what_its_scopes_say(http: Door, method: str, path: str, scope: Scope) -> None:
    body = {"json": {"decision": "deny"}} if "decision" in path else {}
    for given in ("run", "read", "answer", "admin"):
        answer = await http.client.request(method, path, headers=await token(http, given), **body)
        assert (answer.status_code == 403) == (given not in (scope, "admin")), answer.text


async def test_whoever_started_a_run_does_not_approve_what_it_does(http: Door) -> None:
    starter, other = await token(http, "run", "read", "answer"), await token(http, "answer", "read")
    waiting = await http.client.post("/v1/runs", json={"agent": "payer", "input": "pay"},
                                     headers=starter | {"prefer": "wait=20"})  # fmt: skip
    (ask,) = (await http.client.get("/v1/asks", headers=starter)).json()["items"]
    assert ask["run"] == waiting.json()["id"]
    match = {"if-match": f'"{ask["arguments_hash"]}"'}
    where = f"/v1/asks/{ask['id']}/decision"
    own = await http.client.post(where, json={"decision": "approve"}, headers=starter | match)
    assert (own.status_code, own.json()["code"]) == (403, "forbidden")
    theirs = await http.client.post(where, json={"decision": "approve"}, headers=other | match)
    assert theirs.status_code == 200


async def test_what_is_somebody_elses_is_not_there(http: Door) -> None:
    kim, lee = await token(http, "admin", user="kim"), await token(http, "admin", user="lee")
    elsewhere, server = await token(http, "admin", tenant="acme"), await token(http, "admin")
    done = await http.client.post("/v1/runs", json={"agent": "payer", "input": "pay", "session": "s"},
                                  headers=kim | {"prefer": "wait=20"})  # fmt: skip
    id = done.json()["id"]
    (ask,) = (await http.client.get("/v1/asks", headers=kim)).json()["items"]
    paths = [f"/v1/runs/{id}", f"/v1/runs/{id}/events", f"/v1/runs/{id}/steps", f"/v1/runs/{id}/context",
             f"/v1/runs/{id}/result", f"/v1/export/runs/{id}", "/v1/sessions/s", "/v1/sessions/s/messages",
             "/v1/sessions/s/events", f"/v1/asks/{ask['id']}", f"/v1/effects/{ask['effect']}"]  # fmt: skip
    for path in paths:
        for stranger in (lee, elsewhere):
            seen = await http.client.get(path, headers=stranger)
            assert (seen.status_code, seen.json()["code"]) == (404, "not_found"), path
        if not path.endswith("/events"):
            for owner in (kim, server):
                assert (await http.client.get(path, headers=owner)).status_code in (200, 202), path
    match = {"if-match": f'"{ask["arguments_hash"]}"'}
    for stranger in (lee, elsewhere):
        for path, body, more in [
            (f"/v1/runs/{id}/cancel", {}, {}), (f"/v1/runs/{id}/replay", {}, {}), (f"/v1/runs/{id}/resume", None, {}),
            (f"/v1/runs/{id}/fork", {"at_step": 1}, {}),
            (f"/v1/asks/{ask['id']}/decision", {"decision": "deny"}, match),
            (f"/v1/effects/{ask['effect']}/resolution", {"outcome": "give_up"}, {}),
        ]:  # fmt: skip
            answer = await http.client.post(path, json=body, headers={**stranger, **more})
            assert answer.status_code == 404, (path, answer.text)
        for listed in ("/v1/runs", "/v1/sessions", "/v1/asks", "/v1/effects"):
            assert (await http.client.get(listed, headers=stranger)).json()["items"] == []
    into = {"agent": "hello", "input": "what did kim say?", "session": "s"}
    assert (await http.client.post("/v1/runs", json=into, headers=lee)).status_code == 404
    assert (await http.client.post("/v1/runs", json=into | {"user": "kim"}, headers=lee)).status_code == 403
    theirs = await http.client.post("/v1/runs", json=into, headers=elsewhere)  # a session of their own, of that name
    assert theirs.status_code == 202


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
     {"x-forwarded-for": "1.2.3.4"}],
)  # fmt: skip
async def test_a_page_or_a_proxy_from_elsewhere_does_not_reach_this_machine(
    db: str, headers: Mapping[str, str]
) -> None:
    hello = Agent("hello", model=ScriptedModel(lambda _: "hello"))
    async with Runtime(db, agents=[hello]) as rt, door(rt) as http:
        body = {"agent": "hello", "input": "hi"}
        answer = await http.client.post("/v1/runs", json=body, headers=headers)
        assert answer.status_code in (401, 403), answer.text
        assert await rt.runs() == []
        same = {"origin": http.url, "sec-fetch-site": "same-origin"}
        assert (await http.client.post("/v1/runs", json=body, headers=same)).status_code == 202
        assert "access-control-allow-origin" not in (await http.client.get("/v1/runs", headers=same)).headers


async def test_pages_that_are_allowed_may_read_answers(db: str) -> None:
    friend = "https://app.example"
    async with Runtime(db) as rt, door(rt, Admission(origins=[friend])) as http:
        seen = await http.client.get("/v1/runs", headers={"origin": friend})
        assert (seen.status_code, seen.headers["access-control-allow-origin"]) == (200, friend)
        asked = {"origin": friend, "access-control-request-method": "POST",
                 "access-control-request-headers": "idempotency-key"}  # fmt: skip
        assert (await http.client.options("/v1/runs", headers=asked)).status_code == 200
        assert (await http.client.get("/v1/runs", headers={"origin": "https://other.example"})).status_code == 403


async def test_the_door_says_who_came_through(http: Door) -> None:
    headers = await token(http, "admin")
    id = (await http.client.post("/v1/runs", json={"agent": "payer", "input": "pay"}, headers=headers)).json()["id"]
    await http.client.post(f"/v1/runs/{id}/cancel", json={"by": "lee"}, headers=headers)
    (made,) = await access.tokens(http.app.runtime)
    act = next(a for a in await http.app.runtime.audit() if a.act.endswith("cancel"))
    assert (act.by, act.door) == ("lee", f"http:{made.id}")
    assert (await run(http.client, "hello", "hi")).status_code == 401
