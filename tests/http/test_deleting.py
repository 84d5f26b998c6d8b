"""A session is erased over HTTP at the revision that its ``ETag`` said, with its runs where that is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from door import Door, door

from ondol import Agent, AsyncClient, OperationExpired, Runtime, tool
from ondol.testing import ScriptedModel, call

SESSION = "/v1/sessions/s"


@pytest.fixture
async def http(db: str) -> AsyncIterator[Door]:
    @tool
    async def letter(to: str) -> str:
        return f"sent to {to}"

    @tool(approve=True)
    async def wire(to: str) -> str:
        return f"wired to {to}"

    model = ScriptedModel([[call("letter", to="kim")], [call("wire", to="kim")], "done"])
    async with Runtime(db, agents=[Agent("a", model=model, tools=[letter, wire])]) as rt, door(rt) as opened:
        answer = await opened.client.post(
            "/v1/runs", json={"agent": "a", "input": "go", "session": "s"}, headers={"prefer": "wait=30"}
        )
        assert answer.json()["state"] == "waiting"
        yield opened


async def _delete(http: Door, etag: str | None, **query: str) -> tuple[int, str]:
    headers = {} if etag is None else {"if-match": etag}
    answer = await http.client.delete(SESSION, params=query, headers=headers)
    return answer.status_code, answer.json()["code"] if answer.content else ""


async def test_an_unfinished_run_is_cancelled_with_its_session_at_the_revision_that_was_seen(http: Door) -> None:
    etag = (await http.client.get(SESSION)).headers["etag"]
    (run,) = await http.app.runtime.runs(session="s")
    assert await _delete(http, None, cancel="true") == (428, "precondition_required")
    assert await _delete(http, etag) == (409, "session_busy")
    assert await _delete(http, '"99"', cancel="true") == (412, "revision_conflict")
    assert (await run.refresh()).status == "waiting", "what was refused has cancelled nothing"
    assert await _delete(http, etag, cancel="true") == (204, "")
    assert (await run.refresh()).status == "cancelled"
    assert (await http.client.get(SESSION)).status_code == 404


async def test_who_watches_a_session_that_is_erased_is_told_so(db: str) -> None:
    agent = Agent("a", model=ScriptedModel(["done"]))
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http:
        await rt.run(agent, "go", session="s")
        async with http.client.stream("GET", "/v1/sessions/s/events") as watching:
            lines = watching.aiter_lines()
            async for line in lines:
                if line == "event: run.completed":
                    break
            await rt.delete_session("s", by="lee")
            rest = [line async for line in lines]
        assert any(line.startswith(": not_found: there is no session 's'") for line in rest)
        assert (await http.client.get("/v1/sessions/s/events")).status_code == 404


async def test_the_result_of_a_completed_run_whose_session_is_erased_is_gone_and_no_empty_answer(db: str) -> None:
    agent = Agent("a", model=ScriptedModel(["done"]))
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http, AsyncClient(http.url) as there:
        run = await rt.start(agent, "go", session="s", operation_id="op")
        await run.result()
        await rt.delete_session("s", by="lee")
        answer = await http.client.get(f"/v1/runs/{run.id}/result")
        assert (answer.status_code, answer.json()["code"]) == (410, "operation_expired")
        with pytest.raises(OperationExpired, match="its session was deleted"):
            await (await there.get_run(run.id)).result()
        watched = await http.client.get(f"/v1/runs/{run.id}/events")
        assert (watched.status_code, "its session was deleted" in watched.json()["detail"]) == (410, True)
