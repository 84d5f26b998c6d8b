"""Who comes in: this machine, or a token that counts; and nobody sees what is somebody else's."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli.command import ondol
from door import Door, door, run
from kit import Conversation, Gate, waits

from ondol import Agent, Context, Runtime, access, queries, tool
from ondol.access import Scope
from ondol.http.app import make_app
from ondol.http.guard import Admission
from ondol.testing import ManualClock, ScriptedModel, call

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


async def test_the_store_keeps_nothing_that_opens_the_door(http: Door) -> None:
    made, secret = await access.create_token(http.app.runtime, "test", ["admin"])
    kept = hashlib.sha256(secret.encode()).hexdigest()
    row = await http.app.runtime._read(queries.token_by_hash, kept)
    assert row is not None
    assert row.id == made.id
    assert (await http.client.get("/v1/runs", headers={"authorization": f"Bearer {kept}"})).status_code == 401


async def test_a_token_counts_until_it_expires(db: str) -> None:
    clock = ManualClock("2026-01-01T00:00:00Z")
    async with Runtime(db, clock=clock) as rt, door(rt, Admission(needs_token=True)) as http:
        headers = await token(http, "read", expires=timedelta(hours=1))
        assert (await http.client.get("/v1/runs", headers=headers)).status_code == 200
        clock.advance(hours=1)
        assert (await http.client.get("/v1/runs", headers=headers)).status_code == 401


@pytest.mark.parametrize("path", ["sessions/s/events", "runs/{}/events?through_asks=true"])
@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_stream_ends_when_its_token_does(db: str, path: str, how: str) -> None:
    clock, model = ManualClock("2026-01-01T00:00:00Z"), Conversation({"pay": [[call("pay", amount=30)], "done"]})
    async with (
        Runtime(db, agents=[Agent("payer", model=model, tools=[pay])], clock=clock) as rt,
        door(rt, Admission(needs_token=True), heartbeat=0.05) as http,
    ):
        made, secret = await access.create_token(rt, "test", ["read"], expires=timedelta(hours=1))
        waiting = await rt.start("payer", "pay", session="s")
        await waits(waiting)
        headers = {"authorization": f"Bearer {secret}"}
        async with http.client.stream("GET", f"/v1/{path.format(waiting.id)}", headers=headers) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            async for line in lines:
                if line == ": .":  # all was told, and it goes on
                    break
            if how == "revoked":
                await access.revoke_token(rt, made.id)
            else:
                clock.advance(hours=1)
            assert ": unauthenticated: the token was revoked, or has expired" in "\n".join(
                [line async for line in lines]
            )


BODIES = {"runs": {"agent": "hello", "input": "hi"}, "fork": {"at_step": 1}, "decision": {"decision": "deny"},
          "resolution": {"outcome": "give_up", "evidence": "it is lost"}, "{agent}": {"fact": "likes tea"},
          "{fact}": {"fact": "likes tea"}, "pins": {"text": "be brief"}}  # fmt: skip


async def test_a_token_does_what_its_scopes_say(http: Door) -> None:
    """Everything that there is: looking wants ``read``, deciding ``answer``, and any other change ``run``."""
    tokens = {given: await token(http, given) for given in sorted(access.SCOPES)}
    described = http.app.openapi()["paths"]
    wanted = [(method, path) for path in described for method in described[path] if path not in ("/healthz", "/readyz")]
    assert ("post", "/v1/runs") in wanted
    for method, path in wanted:
        last = path.rpartition("/")[2]
        needs = "read" if method == "get" else "answer" if last in ("decision", "resolution") else "run"
        body = None if method in ("get", "delete") else BODIES.get(last, {})
        for given, headers in tokens.items():
            answer = await http.client.request(
                method, re.sub(r"{\w+}", f"no-{method}", path), json=body, headers=headers | {"if-match": "*"}
            )
            assert (answer.status_code == 403) == (given not in (needs, "admin")), (method, path, given, answer.text)


async def test_a_command_says_by_its_exit_code_that_a_token_does_not_do(http: Door, tmp_path: Path) -> None:
    (_, reads) = await access.create_token(http.app.runtime, "reads", ["read"])
    for given, words, said in (
        ("no token", ("runs",), "unauthenticated"), (reads, ("run", "hello", "hi"), "forbidden"),
    ):  # fmt: skip
        done = await asyncio.to_thread(ondol, "--url", http.url, *words, cwd=tmp_path, ONDOL_TOKEN=given)
        assert (done.code, said in done.err) == (3, True), done.err


async def test_without_a_token_nobody_comes_from_another_machine(db: str) -> None:
    async with Runtime(db) as rt:
        for client, status in (("127.0.0.1", 200), ("::1", 200), ("192.0.2.1", 401)):
            app = httpx.ASGITransport(make_app(rt), client=(client, 1))
            async with httpx.AsyncClient(transport=app, base_url="http://localhost") as visitor:
                assert (await visitor.get("/v1/runs")).status_code == status


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


async def test_whoever_steers_a_run_does_not_approve_what_it_does(db: str) -> None:
    gate = Gate()

    async def look(ctx: Context[None]) -> str:
        """Look."""
        await gate.wait()
        return "nothing"

    model = ScriptedModel([[call("look")], [call("pay", amount=30)], "done"])
    payer = Agent("payer", model=model, tools=[tool(effect="read")(look), pay])
    async with Runtime(db, agents=[payer]) as rt, door(rt, Admission(needs_token=True)) as http:
        starter, steerer = await token(http, "run"), await token(http, "run", "read", "answer")
        body = {"agent": "payer", "session": "s", "if_busy": "steer"}
        await http.client.post("/v1/runs", json=body | {"input": "look around"}, headers=starter)
        await gate.reached.wait()
        steer = await http.client.post("/v1/runs", json=body | {"input": "pay him"}, headers=steerer)
        gate.open()
        waiting = await http.client.get(f"/v1/runs/{steer.json()['id']}/result?wait=20", headers=steerer)
        (ask,) = (await http.client.get("/v1/asks", headers=steerer)).json()["items"]
        assert ask["run"] == waiting.json()["id"] != steer.json()["id"]
        where, match = f"/v1/asks/{ask['id']}/decision", {"if-match": f'"{ask["arguments_hash"]}"'}
        own = await http.client.post(where, json={"decision": "approve"}, headers=steerer | match)
        assert (own.status_code, own.json()["code"]) == (403, "forbidden")
        other = await token(http, "answer")
        assert (await http.client.post(where, json={"decision": "approve"}, headers=other | match)).status_code == 200


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
    for unseen in ({}, {"evidence": " "}):
        bare = {"outcome": "happened", **unseen}
        answer = await http.client.post(f"/v1/effects/{ask['effect']}/resolution", json=bare, headers=server)
        assert (answer.status_code, "evidence" in answer.json()["detail"]) == (422, True), answer.text
    for stranger in (lee, elsewhere):
        for path, body, more in [
            (f"/v1/runs/{id}/cancel", {}, {}), (f"/v1/runs/{id}/replay", {}, {}), (f"/v1/runs/{id}/resume", None, {}),
            (f"/v1/runs/{id}/fork", {"at_step": 1}, {}),
            (f"/v1/asks/{ask['id']}/decision", {"decision": "deny"}, match),
            (f"/v1/effects/{ask['effect']}/resolution", {"outcome": "give_up", "evidence": "it is lost"}, {}),
        ]:  # fmt: skip
            answer = await http.client.post(path, json=body, headers={**stranger, **more})
            assert answer.status_code == 404, (path, answer.text)
        for listed in ("/v1/runs", "/v1/sessions", "/v1/asks", "/v1/effects"):
            assert (await http.client.get(listed, headers=stranger)).json()["items"] == []
    assert (await http.client.post("/v1/runs", json={"agent": "hello", "input": "hi", "session": "own"},
                                   headers=lee | {"prefer": "wait=20"})).status_code == 200  # fmt: skip
    for place in (f"runs?before={id}", f"asks?after={ask['id']}", f"effects?after={ask['effect']}",
                  f"effects?session=own&after={ask['effect']}"):  # fmt: skip
        assert (await http.client.get(f"/v1/{place}", headers=lee)).status_code == 404, place
        assert (await http.client.get(f"/v1/{place.replace('=own', '=s')}", headers=kim)).status_code == 200, place
    into = {"agent": "hello", "input": "what did kim say?", "session": "s"}
    assert (await http.client.post("/v1/runs", json=into, headers=lee)).status_code == 404
    assert (await http.client.post("/v1/runs", json=into | {"user": "kim"}, headers=lee)).status_code == 403
    theirs = await http.client.post("/v1/runs", json=into, headers=elsewhere)  # a session of their own, of that name
    assert theirs.status_code in (200, 202)


async def test_a_session_of_somebody_else_is_answered_as_one_that_there_is_not(http: Door) -> None:
    kim, lee = await token(http, "admin", user="kim"), await token(http, "admin", user="lee")
    into = {"agent": "hello", "input": "hi"}
    made = await http.client.post("/v1/sessions/theirs/runs", json=into, headers=kim | {"prefer": "wait=20"})
    assert made.status_code == 200

    async def answer(method: str, path: str, session: str, body: Any, more: Mapping[str, str]) -> tuple[int, str]:
        where = f"/v1/{path.format(session)}"
        said = await http.client.request(method, where, json=body, headers=lee | more)
        return said.status_code, said.text.replace(session, "SESSION")

    ways: list[tuple[str, str, Any]] = [
        ("GET", "sessions/{}", None), ("GET", "sessions/{}/messages", None), ("GET", "sessions/{}/events", None),
        ("PATCH", "sessions/{}", {"title": "x"}), ("DELETE", "sessions/{}", None),
        ("POST", "sessions/{}/compact", {}), ("POST", "sessions/{}/compact", {"preview": True}),
        ("POST", "sessions/{}/pins", {"text": "x"}), ("DELETE", "sessions/{}/pins/p", None),
        ("GET", "runs?session={}", None), ("GET", "asks?session={}", None),
    ]  # fmt: skip
    for method, path, body in ways:
        for more in ({}, {"if-match": '"1"'}, {"if-match": "*"}):
            seen = [await answer(method, path, session, body, more) for session in ("theirs", "none")]
            assert seen[0] == seen[1], (method, path, more)
    # One that there is not would be made: all that a refusal may say is what to do.
    for path, body, more in (
        ("sessions/theirs/runs", into, {}), ("sessions/theirs/runs", into, {"if-match": '"9"'}),
        ("runs", into | {"session": "theirs", "if_busy": "reject"}, {}), ("sessions", {"id": "theirs"}, {}),
    ):  # fmt: skip
        said = await http.client.post(f"/v1/{path}", json=body, headers=lee | more)
        assert (said.status_code, said.json()["code"]) == (404, "not_found"), path
        assert said.json()["detail"] == (
            "there is no session 'theirs' for this user: those of other users are not shown, so choose another name"
        )
        assert "kim" not in said.text


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
        seen = await http.client.get("/system?checks=true", headers=headers)  # as a picture in that page
        assert seen.status_code in (401, 403)
        if "sec-fetch-site" in headers:
            link = {"sec-fetch-mode": "navigate", "accept": "text/html"}
            assert (await http.client.get("/runs", headers={**headers, **link})).status_code == 200
        same = {"origin": http.url, "sec-fetch-site": "same-origin"}
        assert (await http.client.post("/v1/runs", json=body, headers=same)).status_code in (200, 202)
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
