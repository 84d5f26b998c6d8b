"""Case C25: nobody is shown what was remembered of somebody else, whichever way it is asked for."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from embedders import Alike, until_found
from rememberer import rememberer, requests

from ondol import Agent, InvalidInput, Memory, Message, NotFound, Runtime

WORD = "암호"  # which all of them hold


class Who(NamedTuple):
    tenant: str
    agent: str
    user: str

    @property
    def fact(self) -> str:
        return f"{WORD} {self.tenant}-{self.agent}-{self.user}-fact"


EVERYBODY = [Who(*who) for who in itertools.product(("t1", "t2"), ("x", "y"), ("a", "b"))]
SESSION = "same"  # of all of them


AGENTS = {name: rememberer(name) for name in ("x", "y")}


@asynccontextmanager
async def runtime(db: str) -> AsyncIterator[Runtime]:
    async with Runtime(db, agents=list(AGENTS.values())) as rt:
        yield rt


async def remember_all(rt: Runtime) -> None:
    """All in sessions of the same name. (What is said in one session is said to all who take part in it: that is no
    memory.)"""
    for who in EVERYBODY:
        await rt.run(who.agent, f"remember {who.fact}", user=who.user, tenant=who.tenant, session=SESSION)


def foreign(who: Who, text: str) -> list[str]:
    return [other.fact for other in EVERYBODY if other != who and other.fact in text]


async def shown_to(rt: Runtime, who: Who) -> dict[str, str]:
    """All that can be got for somebody, by each way."""
    scope = {"agent": who.agent, "user": who.user, "tenant": who.tenant}
    before = len(requests(AGENTS[who.agent]))
    told = (await rt.run(who.agent, f"recall {WORD}", user=who.user, tenant=who.tenant, session=SESSION)).text
    seen = [m.text for r in requests(AGENTS[who.agent])[before:] for m in r.messages if m.role == "system"]
    return {
        "recall": told,
        "automatic recall": "\n".join(seen),
        "search": "\n".join(f.text for f in await rt.memory.search(WORD, **scope)),
        "list": "\n".join(f.text for f in await rt.memory.ls(**scope)),
        "export": "\n".join([f.text async for f in rt.memory.export(**scope)]),
    }


@pytest.mark.both_stores
@pytest.mark.parametrize("after", ["nothing", "a restart", "a compaction"])
async def test_each_sees_its_own_fact_and_no_other_by_any_way(db: str, after: str) -> None:
    async with runtime(db) as rt:
        await remember_all(rt)
        if after == "nothing":
            await check(rt)
        if after == "a compaction":
            await compact_all(rt)
            await check(rt)
            for tenant in ("t1", "t2"):  # and what people pinned is still there, for those of the session alone
                assert [p.text for p in (await rt.get_session(SESSION, tenant=tenant)).pins] == [f"rule of {tenant}"]
    if after == "a restart":
        async with runtime(db) as rt:
            await check(rt)


async def compact_all(rt: Runtime) -> None:
    for tenant in ("t1", "t2"):
        await rt.pin(SESSION, f"rule of {tenant}", by="lee", tenant=tenant)
        assert (await rt.compact_session(SESSION, keep=0, by="lee", tenant=tenant)).applied
    for who in EVERYBODY:
        run = await rt.start(who.agent, "hello", user=who.user, tenant=who.tenant, session=SESSION)
        await run.result()
        told = requests(AGENTS[who.agent])[-1].messages[1].text
        assert f"rule of {who.tenant}" in told
        assert f"rule of {'t1' if who.tenant == 't2' else 't2'}" not in told
        assert not any(w.fact in told for w in EVERYBODY if w.tenant != who.tenant)


def learner(name: str) -> Agent:
    """Learns what the user said in each turn."""

    async def extract(said: Sequence[Message]) -> list[str]:
        return [m.text.split(". ")[0] for m in said if m.role == "user" and m.origin is None]

    return rememberer(name, memory=Memory(recall=0, extract=extract))


async def test_what_a_compaction_drops_is_learned_of_who_said_it_alone(db: str) -> None:
    """Both agents and both users of a tenant share one session, from a time before the agents learned."""
    plain = [rememberer(name) for name in ("x", "y")]
    async with Runtime(db, agents=plain) as rt:
        for who in EVERYBODY:
            await rt.run(who.agent, f"{who.fact}. And so on.", user=who.user, tenant=who.tenant, session=SESSION)
    async with Runtime(db, agents=[learner("x"), learner("y")]) as rt:
        for tenant in ("t1", "t2"):
            await rt.compact_session(SESSION, keep=0, by="lee", tenant=tenant)
            while {m.state for m in await rt.outbox(tenant=tenant)} != {"delivered"}:
                pass
        for who in EVERYBODY:
            kept = await rt.memory.ls(agent=who.agent, user=who.user, tenant=who.tenant)
            assert [f.text for f in kept] == [who.fact]


async def check(rt: Runtime) -> None:
    for who in EVERYBODY:
        for way, text in (await shown_to(rt, who)).items():
            assert who.fact in text, (who, way)
            assert foreign(who, text) == [], (who, way)


@pytest.mark.both_stores
@pytest.mark.parametrize("restarted", [False, True])
async def test_vectors_that_are_near_to_everything_find_nothing_of_anybody_else(db: str, restarted: bool) -> None:
    agents = list(AGENTS.values())
    async with Runtime(db, agents=agents, embedder=Alike()) as rt:
        await remember_all(rt)
        for who in EVERYBODY:
            scope = {"agent": who.agent, "user": who.user, "tenant": who.tenant}
            assert (await until_found(rt, "zzz", who.fact, **scope)).found_by == "vectors"
        if not restarted:
            await check(rt)
            await check_vectors(rt)
    if restarted:
        async with Runtime(db, agents=agents, embedder=Alike()) as rt:
            await check(rt)
            await check_vectors(rt)


async def check_vectors(rt: Runtime) -> None:
    for who in EVERYBODY:
        scope = {"agent": who.agent, "user": who.user, "tenant": who.tenant}
        assert [(f.text, f.found_by) for f in await rt.memory.search("zzz", **scope)] == [(who.fact, "vectors")]
        before = len(requests(AGENTS[who.agent]))
        told = (await rt.run(who.agent, "recall zzz", user=who.user, tenant=who.tenant)).text
        seen = "\n".join(m.text for r in requests(AGENTS[who.agent])[before:] for m in r.messages)
        for text in (told, seen):
            assert who.fact in text
            assert foreign(who, text) == []
    assert await rt.memory.search("zzz", agent="x", user="nobody", tenant="t1") == []
    assert await rt.memory.search("zzz", agent="x", user="a", tenant="t3") == []


@pytest.mark.both_stores
async def test_no_id_opens_a_fact_of_another_scope(db: str) -> None:
    async with runtime(db) as rt:
        await remember_all(rt)
        ids = {w: (await rt.memory.ls(agent=w.agent, user=w.user, tenant=w.tenant))[0].id for w in EVERYBODY}
        for who, other in itertools.permutations(EVERYBODY, 2):
            scope = {"agent": who.agent, "user": who.user, "tenant": who.tenant}
            with pytest.raises(NotFound):
                await rt.memory.get(ids[other], **scope)
            with pytest.raises(NotFound):
                await rt.memory.edit(ids[other], "mine", **scope)
            with pytest.raises(NotFound):
                await rt.memory.rm(ids[other], **scope)
        one, other = EVERYBODY[0], EVERYBODY[1]
        said = await rt.run(one.agent, f"forget {ids[other]}", user=one.user, tenant=one.tenant)
        assert "there is no fact" in said.text
        assert await rt.memory.erase(agent=one.agent, user=one.user, tenant=one.tenant) == 1
        for who in EVERYBODY[1:]:
            assert len(await rt.memory.ls(agent=who.agent, user=who.user, tenant=who.tenant)) == 1


@pytest.mark.parametrize("wanted", [None, "", 0, False])
async def test_a_missing_part_of_the_scope_is_an_error_and_never_means_all(db: str, wanted: object) -> None:
    async with runtime(db) as rt:
        await remember_all(rt)
        for scope in ({"user": wanted, "agent": "x"}, {"user": "a", "agent": wanted}):
            for look in (rt.memory.ls, rt.memory.erase):
                with pytest.raises(InvalidInput):
                    await look(**scope, tenant="t1")  # type: ignore[operator]
            with pytest.raises(InvalidInput):
                await rt.memory.search(WORD, **scope, tenant="t1")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await rt.memory.ls(agent="x", user="a", tenant="")


@pytest.mark.parametrize("user", ["*", "%", "a' OR '1'='1", "_", "a,b"])
async def test_no_sign_in_a_name_stands_for_several(db: str, user: str) -> None:
    async with runtime(db) as rt:
        await remember_all(rt)
        assert await rt.memory.ls(agent="x", user=user, tenant="t1") == []
        assert await rt.memory.search(WORD, agent="x", user=user, tenant="t1") == []
        before = len(requests(AGENTS["x"]))
        told = (await rt.run("x", f"recall {WORD}", user=user, tenant="t1")).text
        seen = [m.text for r in requests(AGENTS["x"])[before:] for m in r.messages]
        assert not any(w.fact in text for w in EVERYBODY for text in (told, *seen))
