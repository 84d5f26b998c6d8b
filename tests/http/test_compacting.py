"""A session is compacted, and texts are pinned in it, through each door to the same effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cli.command import Done, ondol
from door import Door, door
from kit import Gate

from ondol import (
    Agent,
    AsyncClient,
    Client,
    InvalidInput,
    ModelRequest,
    NotFound,
    RevisionConflict,
    Runtime,
    SessionBusy,
    access,
)
from ondol.http.guard import Admission
from ondol.providers.script import Reply
from ondol.testing import ScriptedModel

MODEL = "script"


def answers(request: ModelRequest) -> Reply:
    return "They spoke of pages." if request.purpose == "summary" else "so it is, " + "and so on " * 30


@pytest.fixture
async def http(db: str) -> AsyncIterator[Door]:
    async with Runtime(db, agents=[Agent("talks", model=ScriptedModel(answers))]) as rt, door(rt) as opened:
        for n in range(4):
            await rt.run("talks", f"question {n}", session="a/b", user="kim")
        yield opened


async def test_a_compaction_over_http_is_the_one_of_python(http: Door) -> None:
    rt, address = http.app.runtime, "/v1/sessions/a%2Fb/compact"
    looked = await http.client.post(address, json={"keep": 1, "preview": True})
    assert (looked.status_code, looked.json()["applied"], looked.headers["etag"]) == (200, False, '"4"')
    here = await rt.compact_session("a/b", keep=1, preview=True)
    assert (looked.json()["summary"], looked.json()["by"]) == (here.summary, MODEL)
    for stale, status in (('"3"', 412), ('W/"4"', 412), ("4", 400)):
        refused = await http.client.post(address, json={"keep": 1}, headers={"if-match": stale})
        assert refused.status_code == status, refused.text
    refused = await http.client.post(address, json={"keep": 1}, headers={"if-match": '"3"'})
    assert (refused.json()["code"], refused.json()["expected"], refused.json()["actual"]) == ("revision_conflict", 3, 4)
    done = await http.client.post(address, json={"keep": 1, "by": "lee"}, headers={"if-match": looked.headers["etag"]})
    assert (done.status_code, done.headers["etag"]) == (200, '"5"')
    body = done.json()
    assert {k: body[k] for k in ("session", "revision", "applied", "first", "last", "kept", "by", "summary")} == {
        "session": "a/b", "revision": 5, "applied": True, "first": here.first, "last": here.last, "kept": 2,
        "by": MODEL, "summary": "They spoke of pages.",
    }  # fmt: skip
    assert body["after"] < body["before"]
    assert body["tokens"]["input"] > 0
    acts = [(a.act, a.by, a.door) for a in await rt.audit()]
    assert ("session.compact", "lee", "http") in acts
    again = await http.client.post(address, json={"keep": 1})
    assert (again.status_code, again.json()["applied"], again.json()["first"]) == (200, False, None)
    assert (await rt.get_session("a/b")).revision == 5  # there was nothing to do
    for given, status in (({"keep": -1}, 422), ({"keep": "1"}, 422), ({"what": 1}, 422), ({"agent": "nobody"}, 404)):
        assert (await http.client.post(address, json=given)).status_code == status, given
    missing = await http.client.post("/v1/sessions/nobody/compact", json={})
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_a_session_that_works_is_not_compacted(db: str) -> None:
    gate = Gate()

    async def slow(request: ModelRequest) -> Reply:
        if request.messages[-1].text == "wait":
            await gate.wait()
        return answers(request)

    async with Runtime(db, agents=[Agent("talks", model=ScriptedModel(slow))]) as rt, door(rt) as http:
        await rt.run("talks", "question", session="s")
        run = await rt.start("talks", "wait", session="s")
        await gate.reached.wait()
        refused = await http.client.post("/v1/sessions/s/compact", json={"keep": 0})
        assert (refused.status_code, refused.json()["code"], refused.json()["run"]) == (409, "session_busy", run.id)
        pinning = await http.client.post("/v1/sessions/s/pins", json={"text": "be brief"})
        assert (pinning.status_code, pinning.json()["code"]) == (409, "session_busy")
        async with AsyncClient(http.url) as there:
            with pytest.raises(SessionBusy):
                await there.compact_session("s", keep=0)
        gate.open()
        await run.result()


async def test_looking_is_for_those_who_read_and_compacting_for_those_who_run(db: str) -> None:
    async with (
        Runtime(db, agents=[Agent("talks", model=ScriptedModel(answers))]) as rt,
        door(rt, Admission(needs_token=True)) as http,
    ):
        await rt.run("talks", "question", session="s", user="kim")

        async def comes(scope: Any, user: str | None, path: str, body: dict[str, Any]) -> int:
            _, secret = await access.create_token(rt, "test", [scope], user=user)
            headers = {"authorization": f"Bearer {secret}"}
            return (await http.client.post(f"/v1/sessions/s/{path}", json=body, headers=headers)).status_code

        assert await comes("read", None, "compact", {"preview": True}) == 200
        assert await comes("read", None, "compact", {}) == 403
        assert await comes("answer", None, "compact", {"preview": True}) == 403
        assert await comes("run", "lee", "compact", {}) == 404
        assert await comes("read", "lee", "compact", {"preview": True}) == 404
        assert await comes("run", "lee", "pins", {"text": "be brief"}) == 404
        assert await comes("read", None, "pins", {"text": "be brief"}) == 403
        assert await comes("run", "kim", "pins", {"text": "be brief"}) == 200
        assert await comes("run", "kim", "compact", {"keep": 0}) == 200
        acts = [(a.act, a.by) for a in await rt.audit() if a.act.startswith("session.")]
        assert acts == [("session.compact", "kim"), ("session.pin", "kim")]


async def test_the_clients_compact_and_pin_as_a_runtime_does(http: Door) -> None:
    async with AsyncClient(http.url) as there:
        session = await there.get_session("a/b")
        preview = await session.compact(keep=1, preview=True)
        assert preview == await http.app.runtime.compact_session("a/b", keep=1, preview=True)
        with pytest.raises(RevisionConflict) as refused:
            await session.compact(keep=1, expected_revision=2)
        assert (refused.value.expected, refused.value.actual) == (2, 4)
        with pytest.raises(NotFound, match="no agent 'nobody'"):
            await there.compact_session("a/b", agent="nobody")
        done = await session.compact(keep=1, model_free=True, by="lee", expected_revision=session.revision)
        assert (done.applied, done.by, done.last, done.revision) == (True, "", preview.last, 5)
        pinned = await session.pin("never mail outside", by="lee")
        here = await http.app.runtime.get_session("a/b")
        assert (pinned.pins, pinned.revision) == (here.pins, 6)
        assert [(p.id, p.text, p.by) for p in pinned.pins] == [("p1", "never mail outside", "lee")]
        with pytest.raises(InvalidInput):
            await session.pin("x" * 4001)
        with pytest.raises(NotFound, match="no pin 'p9'"):
            await session.unpin("p9")
        assert (await session.unpin("p1", by="lee", expected_revision=6)).pins == []

    def program() -> Any:
        with Client(http.url) as rt:
            session = rt.get_session("a/b").pin("be brief")
            assert [p.text for p in session.pins] == ["be brief"]
            assert session.unpin("p2").pins == []
            assert [s.id for s in rt.sessions(user="kim")] == ["a/b"]
            assert len(session.messages()) == 8
            assert [r.status for r in session.runs()] == ["completed"] * 4
            assert session.set_title("About pages").title == "About pages"
            assert rt.write_session("a/b", state={"n": 1}).refresh().state == {"n": 1}
            assert [a["name"] for a in rt.agents()] == ["talks"]
            assert rt.compact_session("a/b", keep=0, preview=True).by == MODEL
            done = session.compact(keep=0)
            session.delete(by="lee")
            with pytest.raises(NotFound):
                rt.get_session("a/b")
            return done.summary

    assert await asyncio.to_thread(program) == "They spoke of pages."
    acts = [(a.act, a.by) for a in await http.app.runtime.audit()]
    assert ("session.delete", "lee") in acts
    assert ("session.unpin", "lee") in acts


async def test_the_commands_compact_and_pin_on_a_server(http: Door, tmp_path: Path) -> None:
    async def typed(*words: str) -> Done:
        return await asyncio.to_thread(ondol, "--url", http.url, "sessions", *words, cwd=tmp_path)

    preview = await typed("compact", "a/b", "--keep", "1", "--preview")
    assert (preview.code, "by the model script; until it is asked, an excerpt:" in preview.out) == (0, True), preview
    stale = await typed("compact", "a/b", "--keep", "1", "--revision", "3", "--by", "lee")
    assert (stale.code, "is at revision 4, not 3" in stale.err) == (5, True), stale
    done = await typed("compact", "a/b", "--keep", "1", "--app", "app.py:talks", "--by", "lee", "-o", "json")
    assert done.code == 0, done
    assert (done.json["summary"], done.json["applied"]) == ("They spoke of pages.", True)
    assert "has 1 pin and is" in (await typed("pin", "a/b", "be brief", "--by", "lee")).out
    assert "be brief" in (await typed("pins", "a/b")).out
    assert (await typed("unpin", "a/b", "p1", "--by", "lee")).code == 0
    assert (await typed("rm", "a/b", "--by", "lee")).code == 0
    acts = [(a.act, a.by) for a in await http.app.runtime.audit()]
    assert acts == [(f"session.{what}", "lee") for what in ("delete", "unpin", "pin", "compact")]
