"""Family ``storm``: very many come at once, with one operation id, or to one session.

A thousand send one operation, a fifth of them with another request under its id: there is one run, everybody who asked
for it gets the same reply, byte for byte, and everybody else is refused. Two hundred write to one session: each is
answered, one after the other, or told at once that the session is busy.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
from crash import invariants
from promise.house import House, letter

from ondol import Agent, RunResult, Runtime, SessionBusy
from ondol.errors import OperationMismatch
from ondol.testing import call
from ondol.transactions import accepting
from torture.campaign import Family, Place

AT_ONCE, OTHERS, WRITERS = 1000, 200, 200


async def case(seed: int, place: Place) -> None:
    chosen, house = random.Random(seed), House(place.db)
    if seed % 2 == 0:
        await one_operation(chosen, house)
    else:
        await one_session(chosen, house)


async def control(seed: int, place: Place) -> None:
    """A known id is answered whatever is asked under it."""
    known = accepting.known_operation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accepting, "known_operation", lambda run, _, at: known(run, run.fingerprint, at))
        await case(seed, place)


FAMILY = Family(case=case, control=control, cases=100, sample=2, tries=1, stores=("sqlite", "postgresql"))


@FAMILY.sampled
async def test_however_many_come_at_once_each_is_answered_once(seed: int, place: Place) -> None:
    await case(seed, place)


async def test_who_is_given_the_answer_to_another_request_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)


async def one_operation(chosen: random.Random, house: House) -> None:
    agent = house.agent([call("letter", to="kim")], "done", tools=[letter])
    house.answers("something else", [call("letter", to="lee")], "done too")
    said = ["go"] * (AT_ONCE - OTHERS) + ["something else"] * OTHERS
    chosen.shuffle(said)
    async with AsyncExitStack() as stack:
        # Of the two runtimes on the store one drives; the other only submits.
        doors = [await stack.enter_async_context(_runtime(house, agent)) for _ in range(2)]
        asked = [chosen.choice(doors).run(agent, words, session="s", operation_id="op") for words in said]
        replies = await asyncio.gather(*asked, return_exceptions=True)
    answered = {words for words, reply in zip(said, replies, strict=True) if isinstance(reply, RunResult)}
    assert len(answered) == 1, f"both requests were answered under one id: {answered}"
    first = answered.pop()
    for words, reply in zip(said, replies, strict=True):
        assert isinstance(reply, RunResult if words == first else OperationMismatch), f"{words}: {reply!r}"
    bodies = {reply.body for reply in replies if isinstance(reply, RunResult)}
    assert len(bodies) == 1, "one operation has two replies"
    written = invariants.written(house.db)
    assert [r.state for r in written.runs.values()] == ["completed"]
    assert [line.arguments for line in house.ledger] == [{"to": "kim" if first == "go" else "lee"}]
    house.check()


async def one_session(chosen: random.Random, house: House) -> None:
    agent = house.agent(tools=[letter])
    for n in range(WRITERS):
        house.answers(f"go {n}", [call("letter", to=str(n))], f"done {n}")
    log: list[dict[str, Any]] = []

    async def writes(rt: Runtime, n: int) -> str:
        operation = f"op{n}"
        log.append({"event": "sent", "operation": operation})
        try:
            if n % 10 == 9:
                await rt.write_session("s", title=f"title {n}")
                house.explicit["s"] += 1
                return "written"
            how: Any = chosen.choice(("queue", "queue", "queue", "reject"))
            run = await rt.start(agent, f"go {n}", session="s", operation_id=operation, if_busy=how)
            log.append({"event": "accepted", "operation": operation, "run": run.id})
            result = await run.result()
        except SessionBusy:
            return "busy"
        reply = {"event": "reply", "operation": operation, "body": result.body, "session": "s"}
        log.append(reply | {"revision": result.revision})
        assert result.text == f"done {n}"
        return "answered"

    async with AsyncExitStack() as stack:
        doors = [await stack.enter_async_context(_runtime(house, agent)) for _ in range(2)]
        numbers = list(range(WRITERS))
        chosen.shuffle(numbers)
        came = Counter(await asyncio.gather(*(writes(chosen.choice(doors), n) for n in numbers)))
    written = invariants.written(house.db)
    assert came["answered"] == len(written.runs) > WRITERS // 2
    assert {r.state for r in written.runs.values()} == {"completed"}
    assert Counter(line.key for line in house.ledger) == Counter(e.key for e in written.effects)
    assert written.sessions["default", "s"].revision == came["answered"] + came["written"]
    calls = Counter(request.run for request in house.requests)
    invariants.hold(written, house.ledger, log, calls, explicit=house.explicit)


def _runtime(house: House, agent: Agent) -> Runtime:
    return Runtime(house.db, agents=[agent], deps=house, clock=house.clock)
