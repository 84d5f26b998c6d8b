"""What agents remember, over HTTP: to look into, to correct and to erase, each their own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli.command import ondol
from door import Door, door
from rememberer import rememberer

from ondol import AsyncClient, Client, InvalidInput, Memory, NotFound, Runtime, access
from ondol.errors import Forbidden
from ondol.http.guard import Admission

AGENT = "a/b c"  # a name may hold what an address must not
AGENTS = {name: rememberer(name) for name in (AGENT, "other")}
KIM = {"agent": AGENT, "user": "kim"}


@pytest.fixture
async def http(db: str) -> AsyncIterator[Door]:
    async with Runtime(db, agents=list(AGENTS.values())) as rt, door(rt) as opened:
        yield opened


async def test_a_program_elsewhere_looks_into_corrects_and_erases_a_memory(http: Door) -> None:
    here = http.app.runtime.memory
    async with AsyncClient(http.url) as there:
        memory = there.memory
        assert await memory.scopes() == []
        made = await memory.add("drinks green tea", **KIM, by="lee")
        assert made == await here.get(made.id, **KIM)
        assert (made.author, made.run, made.untrusted) == ("lee", None, False)
        await there.run(AGENT, "remember 점검은 금요일", user="kim")
        assert await memory.ls(**KIM) == await here.ls(**KIM)
        assert [s._asdict() for s in await memory.scopes(user="kim")] == [{**KIM, "facts": 2}]
        (found,) = await memory.search("점검", **KIM)
        assert (found, found.terms, found.found_by) == ((await here.search("점검", **KIM))[0], ("점검",), "words")
        changed = await memory.edit(found.id, "점검은 목요일", **KIM, by="lee")
        assert (changed.text, changed.author, (await memory.get(found.id, **KIM)).text) == (
            "점검은 목요일", "lee", "점검은 목요일"
        )  # fmt: skip
        await memory.rm(made.id, **KIM, by="lee")
        with pytest.raises(NotFound, match="this memory has no fact"):
            await memory.get(made.id, **KIM)
        for n in range(5):
            await memory.add(f"fact {n}", **KIM)
        assert [f.text async for f in memory.export(**KIM)] == [f.text for f in await here.ls(**KIM)]
        assert await memory.erase(**KIM, by="lee") == 6
        assert await memory.ls(**KIM) == []
        acts = {(a.act, a.by, a.door) for a in await http.app.runtime.audit()}
        assert {("memory.edit", "lee", "http"), ("memory.rm", "lee", "http"), ("memory.erase", "lee", "http")} <= acts
        for nobody in ({"agent": AGENT}, {"agent": "", "user": "kim"}):
            with pytest.raises(InvalidInput, match="a memory belongs to an agent and a user"):
                await memory.ls(**nobody)


@pytest.mark.parametrize("id", [".", "..", "", "\ud800"])
async def test_what_would_be_another_address_erases_nothing(http: Door, tmp_path: Path, id: str) -> None:
    async with AsyncClient(http.url) as there:
        memory = there.memory
        made = await memory.add("drinks green tea", **KIM)
        session = await there.get_session((await there.run("other", "hello", session="s", user="kim")).session)
        for erasing in (memory.rm(id, **KIM), memory.erase(agent=id, user="kim"), memory.edit(id, "coffee", **KIM),
                        session.unpin(id, expected_revision=session.revision), there.delete_session(id)):  # fmt: skip
            with pytest.raises(InvalidInput):
                await erasing
        assert await memory.ls(**KIM) == [made]
        assert (await session.refresh()).revision == 1
    if id == ".":
        rm = ("memory", "rm", id, "--agent", AGENT, "--user", "kim")
        done = await asyncio.to_thread(ondol, "--url", http.url, *rm, cwd=tmp_path)
        assert (done.code, "'.' would be another address" in done.err) == (2, True), done


async def test_a_fact_that_is_added_is_kept_as_long_as_its_agent_keeps_facts(db: str) -> None:
    keeps = rememberer("keeps", memory=Memory(keep=timedelta(days=90)))
    async with Runtime(db, agents=[keeps]) as rt, door(rt) as opened, AsyncClient(opened.url) as there:
        made = await there.memory.add("drinks tea", agent="keeps", user="kim")
        assert made.expires_at is not None
        assert made.expires_at - made.created_at == timedelta(days=90)
        assert (await there.memory.add("drinks tea", agent="elsewhere", user="kim")).expires_at is None


async def test_facts_come_page_by_page(http: Door) -> None:
    for n in range(5):
        await http.app.runtime.memory.add(f"fact {n}", agent="other", user="kim")
    seen, cursor = [], None
    while True:
        more = {"before": cursor} if cursor else {}
        page = (await http.client.get("/v1/memory/other", params={"user": "kim", "limit": 2, **more})).json()
        seen += [f["fact"] for f in page["items"]]
        if (cursor := page["next"]) is None:
            break
    assert seen == [f"fact {n}" for n in (4, 3, 2, 1, 0)]


@pytest.mark.both_stores
async def test_memories_come_page_by_page_and_those_of_a_user_are_found_behind_many_others(http: Door) -> None:
    there = [("a/b", "kim"), ("a/b", "lee/%2F"), ("other", "kim"), ("other", "zoe")]
    for agent, user in there:
        await http.app.runtime.memory.add("drinks tea", agent=agent, user=user)
    seen, cursor = [], ""
    while cursor is not None:
        page = (await http.client.get("/v1/memory", params={"limit": 1, "after": cursor})).json()
        seen += [(m["agent"], m["user"]) for m in page["items"]]
        cursor = page["next"]
    assert seen == there
    wrong = await http.client.get("/v1/memory", params={"after": "a/b/c"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_input")
    async with AsyncClient(http.url) as client:
        assert [s.agent for s in await client.memory.scopes(user="zoe", limit=1)] == ["other"]


async def test_pages_go_on_where_they_were_when_facts_are_erased_meanwhile(
    http: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondol.remote_memory._PAGE", 2)
    whose = {"agent": "other", "user": "kim"}
    there = f"/v1/memory/{whose['agent']}"

    async def page(before: str) -> Any:
        return await http.client.get(there, params={"user": "kim", "limit": 2, "before": before})

    async with AsyncClient(http.url) as client:
        for n in range(5):
            await client.memory.add(f"fact {n}", **whose)
        first = (await page("")).json()
        assert [f["fact"] for f in first["items"]] == ["fact 4", "fact 3"]
        last = first["items"][-1]["id"]
        assert (await page(last)).json()["items"] == (await page(first["next"])).json()["items"]
        await client.memory.rm(last, **whose)
        assert [f["fact"] for f in (await page(first["next"])).json()["items"]] == ["fact 2", "fact 1"]
        refused = await page(last)
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
        seen = []
        async for fact in client.memory.export(**whose):
            seen.append(fact.text)
            await client.memory.rm(fact.id, **whose)
        assert seen == ["fact 4", "fact 2", "fact 1", "fact 0"]


async def test_a_program_without_a_loop_and_the_command_line_have_the_same(http: Door, tmp_path: Path) -> None:
    def in_a_thread() -> list[str]:
        with Client(http.url) as there:
            fact = there.memory.add("drinks tea", **KIM)
            there.memory.edit(fact.id, "drinks coffee", **KIM)
            assert there.memory.search("coffee", **KIM)[0].id == there.memory.get(fact.id, **KIM).id
            there.memory.rm(there.memory.add("gone", **KIM).id, **KIM)
            assert there.memory.scopes()[0].facts == 1
            said = [f.text for f in there.memory.ls(**KIM)]
            assert there.memory.erase(agent=AGENT, user="lee") == 0
            return said

    assert await asyncio.to_thread(in_a_thread) == ["drinks coffee"]
    whose = ("--agent", AGENT, "--user", "kim")
    listed = await asyncio.to_thread(ondol, "--url", http.url, "memory", "ls", *whose, cwd=tmp_path)
    assert "drinks coffee" in listed.out
    (fact,) = await http.app.runtime.memory.ls(**KIM)
    assert (await asyncio.to_thread(ondol, "--url", http.url, "memory", "rm", fact.id, *whose, cwd=tmp_path)).code == 0
    assert await http.app.runtime.memory.ls(**KIM) == []


@pytest.mark.both_stores
async def test_a_token_of_a_user_reaches_what_is_remembered_of_that_user_alone(db: str) -> None:
    """Two tenants, two agents, two users, in every combination of who asks for whom, by every route."""
    everybody = list(itertools.product(("t1", "t2"), (AGENT, "other"), ("a", "b")))
    async with Runtime(db, agents=list(AGENTS.values())) as rt, door(rt, Admission(needs_token=True)) as http:
        ids = {
            (tenant, agent, user): (
                await rt.memory.add(f"secret of {tenant} {agent} {user}", agent=agent, user=user, tenant=tenant)
            ).id
            for tenant, agent, user in everybody
        }
        for tenant, user in itertools.product(("t1", "t2"), ("a", "b")):
            _, token = await access.create_token(rt, user, ["read", "run"], user=user, tenant=tenant)
            async with AsyncClient(http.url, token=token) as there:
                own = [f"secret of {tenant} {agent} {user}" for agent in (AGENT, "other")]
                assert [s.user for s in await there.memory.scopes()] == [user, user]
                for agent, text in zip((AGENT, "other"), own, strict=True):
                    assert [f.text for f in await there.memory.ls(agent=agent)] == [text]
                    assert [f.text for f in await there.memory.search("secret", agent=agent)] == [text]
                    for named in ("*", "%", "a" if user == "b" else "b"):
                        with pytest.raises(Forbidden):
                            await there.memory.ls(agent=agent, user=named)
                        with pytest.raises(Forbidden):
                            await there.memory.erase(agent=agent, user=named)
                        with pytest.raises(Forbidden):
                            await there.memory.add("mine", agent=agent, user=named)
                    for whose, id in ids.items():
                        if whose == (tenant, agent, user):
                            continue
                        for reach in (
                            there.memory.get(id, agent=agent), there.memory.edit(id, "mine", agent=agent),
                            there.memory.rm(id, agent=agent),
                        ):  # fmt: skip
                            with pytest.raises(NotFound):
                                await reach
        for tenant, agent, user in everybody:
            (fact,) = await rt.memory.ls(agent=agent, user=user, tenant=tenant)
            assert fact.text == f"secret of {tenant} {agent} {user}"


async def test_looking_needs_read_and_changing_needs_run(db: str) -> None:
    async with Runtime(db, agents=list(AGENTS.values())) as rt, door(rt, Admission(needs_token=True)) as http:
        fact = await rt.memory.add("tea", **KIM)
        at = httpx.URL(f"{http.url}/v1/memory/a%2Fb%20c")
        kim = {"user": "kim"}

        async def status(scope: access.Scope, method: str, path: str = "", **sent: object) -> int:
            _, token = await access.create_token(rt, scope, [scope])
            headers = {"authorization": f"Bearer {token}"}
            return (await http.client.request(method, f"{at}{path}", headers=headers, **sent)).status_code  # type: ignore[arg-type]

        assert await status("read", "GET", params=kim) == 200
        assert await status("run", "GET", params=kim) == 403
        for method, path, sent in (
            ("POST", "", {"json": {"fact": "x", "user": "kim"}}),
            ("PATCH", f"/{fact.id}", {"json": {"fact": "x", "user": "kim"}}),
            ("DELETE", f"/{fact.id}", {"params": kim}),
            ("DELETE", "", {"params": kim}),
        ):
            assert await status("read", method, path, **sent) == 403
        assert await status("run", "PATCH", f"/{fact.id}", json={"fact": "coffee", "user": "kim"}) == 200
        assert await status("run", "DELETE", f"/{fact.id}", params=kim) == 204
        assert await status("run", "DELETE", f"/{fact.id}", params=kim) == 404
        assert await status("run", "POST", json={"fact": "x" * 2001, "user": "kim"}) == 422
        assert await status("read", "GET") == 422
