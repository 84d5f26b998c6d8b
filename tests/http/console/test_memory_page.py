"""The page of memory: whose there is, what it holds, and how a person corrects and erases it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from house import House, house, visitor

from ondol import access
from ondol.http.guard import Admission

KIM = {"agent": "support", "user": "kim"}


@pytest.fixture
async def h(db: str) -> AsyncIterator[House]:
    async with house(db) as opened:
        yield opened


async def test_an_empty_page_says_how_a_memory_begins(h: House) -> None:
    page = await h.page("/memory")
    assert "No agent remembers anything yet" in page.text
    assert "--user kim" in page.text


async def test_facts_are_found_corrected_and_erased(h: House) -> None:
    tea = await h.rt.memory.add("drinks <b>green</b> tea", **KIM, by="lee")
    await h.rt.memory.add("점검은 금요일", **KIM, by="lee")
    assert [a["href"] for a in (await h.page("/memory")).all("a") if "agent=" in str(a.get("href"))] == [
        "/memory?agent=support&user=kim"
    ]
    page = await h.page("/memory?agent=support&user=kim")
    assert "drinks <b>green</b> tea" in page.text
    assert not page.all("b", **{"class": "x"})
    assert "by lee" in page.text
    found = await h.page("/memory?agent=support&user=kim&q=점검")
    assert "점검은 금요일" in found.text
    assert "tea" not in found.text

    fields = page.fields("/memory/edit") | {"fact": tea.id}
    there = await h.post("/memory/edit", **fields, text="drinks coffee", by="jo")
    assert there.to == "/memory?agent=support&user=kim"
    changed = await h.rt.memory.get(tea.id, **KIM)
    assert (changed.text, changed.author) == ("drinks coffee", "jo")
    refused = await h.post("/memory/edit", 422, **fields, text="점검은 금요일")
    assert "says the same already" in refused.text
    assert "점검은 금요일" in refused.text
    await h.post("/memory/edit", 404, **(fields | {"fact": "m_gone"}), text="x")

    await h.post("/memory/erase", **fields)
    assert [f.text for f in await h.rt.memory.ls(**KIM)] == ["점검은 금요일"]
    whole = {"agent": "support", "user": "kim"}
    assert "nothing was erased" in (await h.post("/memory/erase", 422, **whole)).text
    assert (await h.post("/memory/erase", **whole, sure="yes")).to == "/memory"
    assert await h.rt.memory.ls(**KIM) == []
    acts = [(a.act, a.by) for a in await h.rt.audit()]
    assert ("memory.edit", "jo") in acts


async def test_half_a_name_lists_what_fits_and_says_what_is_missing(h: House) -> None:
    for agent, user in (("support", "kim"), ("support", "lee"), ("sales", "kim")):
        await h.rt.memory.add("drinks tea", agent=agent, user=user)
    belongs = "A memory belongs to an agent and a user: name the"

    async def listed(query: str) -> tuple[list[str], str]:
        page = await h.page(f"/memory{query}")
        links = [str(a["href"]) for a in page.all("a") if "agent=" in str(a.get("href"))]
        said = page.text.partition(belongs)[2].split(",")[0].split(".")[0].strip()
        return [link.partition("?")[2] for link in links], said

    support = ["agent=support&user=kim", "agent=support&user=lee"]
    assert await listed("") == (["agent=sales&user=kim", *support], "")
    assert await listed("?agent=support") == (support, "user")
    assert await listed("?agent=support&q=tea") == (support, "user")
    assert await listed("?user=kim") == (["agent=sales&user=kim", support[0]], "agent")
    assert await listed("?q=tea") == (["agent=sales&user=kim", *support], "agent and the user")
    assert await listed("?agent=nobody") == ([], "user")
    assert await listed("?user=nobody") == ([], "agent")


async def test_a_person_with_a_token_of_their_own_sees_their_own(db: str) -> None:
    async with house(db) as opened, visitor(opened.rt, Admission(needs_token=True)) as client:
        for user in ("kim", "lee"):
            await opened.rt.memory.add(f"secret of {user}", agent="support", user=user)
        _, token = await access.create_token(opened.rt, "kim", ["read", "run"], user="kim")
        client.headers["authorization"] = f"Bearer {token}"
        h = House(opened.rt, client)
        whose = (await h.page("/memory")).text
        assert "lee" not in whose
        assert "name the" not in whose
        for half in ("?q=tea", "?user=lee"):
            assert "name the agent" in (await h.page(f"/memory{half}")).text
        page = await h.page("/memory?agent=support")
        assert "secret of kim" in page.text
        await h.page("/memory?agent=support&user=lee", 403)
        await h.post("/memory/erase", 403, agent="support", user="lee", sure="yes")
        (fact,) = await opened.rt.memory.ls(agent="support", user="lee")
        await h.post("/memory/erase", 404, agent="support", user="", fact=fact.id)
        assert len(await opened.rt.memory.ls(agent="support", user="lee")) == 1
