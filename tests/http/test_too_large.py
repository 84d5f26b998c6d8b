"""A request that is larger than its budget: what becomes of it is said over HTTP as it is in Python."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from door import Door, door

from ondol import Agent, AlreadyDecided, Ask, AsyncClient, ContextPolicy, InvalidInput, RunFailed, Runtime, RunWaiting
from ondol.handles import Run
from ondol.testing import ScriptedModel


class Asked(NamedTuple):
    http: Door
    there: AsyncClient
    run: Run
    ask: Ask


@pytest.fixture
async def asked(db: str) -> AsyncIterator[Asked]:
    """Somebody talked to an agent until a person was asked."""
    model = ScriptedModel(lambda request: "so it is, as far as anybody knows " * 20)
    policy = ContextPolicy(budget=1_200, on_overflow="ask", keep=1, summary="excerpt")
    agent = Agent("talks", model=model, context=policy)
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http, AsyncClient(http.url) as there:
        while True:
            run = await there.start("talks", "and then?", session="s")
            try:
                await run.result()
            except RunWaiting:
                break
        (ask,) = await run.asks()
        yield Asked(http, there, run, ask)


ANSWERS: list[Any] = ["compact", "drop", {"drop": ["turns"]}, "raise", {"raise": 9_000}, "fail"]


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
async def test_a_program_elsewhere_says_what_becomes_of_a_request_that_is_too_large(asked: Asked, answer: Any) -> None:
    http, there, run, ask = asked
    assert (ask.kind, ask.state, ask.arguments["budget"]) == ("compaction", "open", 1_200)
    decided = await ask.answer(answer, by="lee")
    kind = answer if isinstance(answer, str) else next(iter(answer))
    assert (decided.state, decided.decision, decided.decided_by) == ("decided", kind, "lee")
    assert (await ask.answer(answer, by="lee")).decision == kind  # said again, it is the same
    with pytest.raises(AlreadyDecided):
        await ask.answer("fail" if kind != "fail" else "compact", by="lee")
    if kind == "fail":
        with pytest.raises(RunFailed, match="limit_context"):
            await run.result()
        return
    await run.result()
    seen = await there.context(run.id)
    assert seen.matches
    assert seen == await http.app.runtime.context(run.id)  # with what was left out, and what it was before
    assert (seen.compaction is not None, seen.before is not None) == (kind != "raise",) * 2
    assert ("not shown any more" in seen.messages[1].text) == (kind != "raise")


@pytest.mark.parametrize(
    "body",
    [{"decision": "compact"}, {"decision": "drop", "value": ["turns"]}, {"decision": "raise", "value": 9_000}],
    ids=str,
)
async def test_the_words_of_the_route_are_those_of_the_ask(asked: Asked, body: dict[str, Any]) -> None:
    http, _, run, ask = asked
    at, seen = f"/v1/asks/{ask.id}/decision", {"if-match": f'"{ask.arguments_hash}"'}
    assert (await http.client.post(at, json=body)).status_code == 428
    for wrong in ({"decision": "maybe"}, {"decision": "drop", "value": ["all"]}, {"decision": "raise", "value": 1},
                  {"decision": "approve"}, {"decision": "resume"}):  # fmt: skip
        assert (await http.client.post(at, json=wrong, headers=seen)).status_code == 422, wrong
    done = await http.client.post(at, json=body | {"by": "lee"}, headers=seen)
    assert (done.status_code, done.json()["decision"]) == (200, body["decision"])
    result = await http.client.get(f"/v1/runs/{run.id}/result", params={"wait": 20})
    assert result.json()["state"] == "completed"


async def test_what_does_not_fit_is_refused_and_decides_nothing(asked: Asked) -> None:
    for wrong in ("maybe", {"raise": 1}, {"drop": []}, {"drop": ["all"]}):
        with pytest.raises(InvalidInput):
            await asked.ask.answer(wrong, by="lee")
    assert (await asked.there.get_ask(asked.ask.id)).state == "open"
