"""A long list is read page by page: nothing is left out or told twice, at every door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from behind import execute
from cli.command import ondol
from door import Door, door
from kit import Conversation, waits

from ondol import Agent, AsyncClient, Runtime, access, ids, tool
from ondol.http import service
from ondol.testing import call

pytestmark = pytest.mark.both_stores


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return str(n)


@tool(approve=True)
def pay(n: int) -> str:
    """Pay."""
    return "paid"


SCRIPTS = {
    "look": [[call("look", n=n) for n in range(3)], "seen"],
    "pay": [[call("pay", n=n) for n in range(3)], "done"],
}


@pytest.fixture
async def http(db: str) -> AsyncIterator[Door]:
    """Four runs of two users: ten calls that were made, and five asks of which three were decided."""
    agent = Agent("busy", model=Conversation(SCRIPTS), tools=[look, pay])
    async with Runtime(db, agents=[agent]) as rt, door(rt) as opened:
        for user, said in (("kim", "look"), ("lee", "look"), ("kim", "pay"), ("lee", "pay")):
            run = await rt.start("busy", said, user=user)
            if said == "look":
                await run.result()
            else:
                for ask in (await waits(run))[: 2 if user == "kim" else 1]:
                    await ask.deny(by="lee")
        yield opened


async def pages(
    http: Door, what: str, wanted: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> list[list[str]]:
    """The ids on each page of a list, two by two."""
    found: list[list[str]] = []
    after: dict[str, str] = {}
    while True:
        answer = await http.client.get(f"/v1/{what}", params={**wanted, "limit": 2, **after}, headers=headers)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found.append([item["id"] for item in page["items"]])
        if page["next"] is None:
            return found
        after = {"after": page["next"]}


async def test_the_ledger_is_read_page_by_page(http: Door) -> None:
    rt = http.app.runtime
    whole = [e.id for e in await rt.effects()]
    runs = [r.id for r in await rt.runs()]
    assert whole == [ids.effect_id(run, n) for run in runs for n in range(3)]  # the newest runs, each in call order
    assert await pages(http, "effects", {}) == [whole[n : n + 2] for n in range(0, 12, 2)]
    of_run = [e.id for e in await rt.effects(run=runs[0])]
    assert await pages(http, "effects", {"run": runs[0]}) == [of_run[:2], of_run[2:]]
    looks = [e.id for e in await rt.effects(state="succeeded")]
    assert await pages(http, "effects", {"state": "succeeded"}) == [looks[:2], looks[2:4], looks[4:]]
    assert [e.id for e in await rt.effects(after=whole[4], limit=3)] == whole[5:8]
    async with AsyncClient(http.url) as there:
        assert [e.id for e in await there.effects(after=whole[4], limit=3)] == whole[5:8]
        assert [e.id for e in await there.effects(run=runs[0], limit=1)] == of_run  # of one run all
    listed = await _ondol(http, "effects", "ls", "--after", whole[4], "-n", "3")
    assert listed == whole[5:8]


async def test_what_there_is_not_has_nothing_in_any_list(http: Door) -> None:
    async with AsyncClient(http.url) as there:
        for rt in (http.app.runtime, there):
            for wanted in ({"run": "r_nowhere"}, {"session": "nowhere"}):
                assert await rt.effects(**wanted) == await rt.asks(**wanted) == []


async def test_whoever_is_bound_to_a_user_pages_through_their_own(http: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    rt = http.app.runtime
    _, secret = await access.create_token(rt, "kim's", ["read"], user="kim")
    kim = {"authorization": f"Bearer {secret}"}
    own = [e.id for r in await rt.runs(user="kim") for e in await rt.effects(run=r.id)]
    assert await pages(http, "effects", {}, kim) == [own[n : n + 2] for n in range(0, 6, 2)]
    monkeypatch.setattr(service, "_LOOKED_AT", 1)  # the rest is for the next request
    monkeypatch.setattr(service, "_AT_ONCE", 1)
    found = await pages(http, "effects", {"state": "succeeded"}, kim)
    assert [id for page in found for id in page] == own[3:]
    assert len(found) > 2
    theirs = (await rt.runs(user="lee"))[0].id
    refused = await http.client.get("/v1/effects", params={"after": ids.effect_id(theirs, 0)}, headers=kim)
    assert refused.status_code == 404


async def test_runs_are_found_by_what_was_asked(http: Door, db: str) -> None:
    async def found(**wanted: str) -> list[str]:
        answer = await http.client.get("/v1/runs", params=wanted)
        assert answer.status_code == 200, answer.text
        return [run["id"] for run in answer.json()["items"]]

    runs = [r.id for r in await http.app.runtime.runs()]  # the newest first: pay, pay, look, look
    assert await found(q="LOOK") == runs[2:]
    assert await found(q="look", user="kim") == runs[3:]
    assert await found(q="loot") == []
    session = await http.app.runtime.get_session((await http.app.runtime.get_run(runs[2])).session)
    await session.delete()
    assert await found(q="look") == runs[3:]
    execute(db, f"UPDATE messages SET sum = sum + 1 WHERE run = '{runs[0]}'")  # what is damaged hides nothing else
    assert await found(q="pay") == runs[1:2]


async def test_asks_are_read_page_by_page_from_either_end(http: Door) -> None:
    rt = http.app.runtime
    whole = [a.id for a in await rt.asks(state=None)]
    assert len(whole) == 6
    assert await pages(http, "asks", {"state": "all"}) == [whole[:2], whole[2:4], whole[4:]]
    back = whole[::-1]
    newest = {"state": "all", "order": "newest_first"}
    assert await pages(http, "asks", newest) == [back[:2], back[2:4], back[4:]]
    decided = [a.id for a in await rt.asks(state="decided", newest_first=True)]
    assert len(decided) == 3
    assert await pages(http, "asks", {"state": "decided", "order": "newest_first"}) == [decided[:2], decided[2:]]
    still_open = [a.id for a in await rt.asks()]
    assert await pages(http, "asks", {}) == [still_open[:2], still_open[2:]]
    assert [a.id for a in await rt.asks(state=None, after=whole[2], limit=2)] == whole[3:5]
    async with AsyncClient(http.url) as there:
        asked = await there.asks(state=None, after=whole[2], newest_first=True, limit=2)
        assert [a.id for a in asked] == whole[1::-1]
    of_line = await _ondol(http, "asks", "ls", "--state", "decided", "--newest-first", "--after", decided[0])
    assert of_line == decided[1:]


async def _ondol(http: Door, *words: str) -> list[str]:
    return (await asyncio.to_thread(ondol, "--url", http.url, "-o", "ids", *words, cwd=Path.cwd())).ids


@pytest.mark.parametrize(
    ("noun", "place"),
    [
        ("effects", {"after": "nonsense"}),
        ("effects", {"after": "e_1m8rsehjfjxz422x_0"}),
        ("runs", {"before": "r_1m8rsehjfjxz422x"}),
        ("runs", {"before": "r_1m8rsehjfjxz422x", "text": "hello"}),
        ("asks", {"after": "a_1m8rsehjfjxz422x_0"}),
        ("asks", {"after": "a_1m8rsehjfjxz422x_0", "order": "newest_first", "state": "all"}),
    ],
)
async def test_a_place_that_is_none_is_told_so(http: Door, noun: str, place: dict[str, str]) -> None:
    """It is no last page, which would say that nothing follows."""
    answer = await http.client.get(f"/v1/{noun}", params=place)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
