"""C06: a client goes away before, in the middle, and near the end: its run ends as was said, and no trace is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from door import door, read
from kit import Gate

from ondol import Agent, Answer, Context, Delta, ModelOutput, ModelRequest, Runtime, Text
from ondol.messages import ToolCall


class Held:
    """A model whose last answer stops in the middle until it is let go on."""

    name = "held"

    def __init__(self) -> None:
        self.talks, self.go_on = asyncio.Event(), asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        if request.step == 0:
            yield Answer(parts=(ToolCall("c1", "work", {}),))
            return
        yield Delta("nearly ")
        self.talks.set()
        await self.go_on.wait()
        yield Answer(parts=(Text("nearly done"),))


@pytest.mark.parametrize("policy", ["cancel", "continue"])
@pytest.mark.parametrize("moment", ["before the first event", "during the tool", "during the last answer"])
async def test_c06_the_run_ends_as_was_said(db: str, policy: str, moment: str) -> None:
    gate, model = Gate(), Held()

    async def work(ctx: Context[None]) -> str:
        """Work."""
        await gate.wait()
        return "worked"

    body = {"agent": "worker", "input": "go", "session": "s", "on_disconnect": policy}
    stream = {"accept": "text/event-stream", "idempotency-key": "k"}
    async with Runtime(db, agents=[Agent("worker", model=model, tools=[work])]) as rt, door(rt) as http:
        if moment == "during the last answer":
            gate.open()
        async with http.client.stream("POST", "/v1/runs", json=body, headers=stream) as response:
            assert response.headers["ondol-on-disconnect"] == policy
            events = read(response)
            if moment != "before the first event":
                await (gate.reached if moment == "during the tool" else model.talks).wait()
                await anext(events)
            await events.aclose()
        gate.open() if policy == "continue" else None
        model.go_on.set() if policy == "continue" else None
        run = await rt.find_run("k")
        ended = await http.client.get(f"/v1/runs/{run.id}/result", params={"wait": 30})
        assert ended.json()["state"] == {"cancel": "cancelled", "continue": "completed"}[policy]
        told = [e async for e in run.events()]
        assert [e.id for e in told] == [f"{run.id}/{n + 1}" for n in range(len(told))]
        said = (await http.client.get("/v1/sessions/s/messages")).json()["items"]
        assert len(said) == (4 if policy == "continue" else 0)
        for effect in (await http.client.get("/v1/effects", params={"run": run.id})).json()["items"]:
            assert effect["state"] in ("succeeded", "unknown", "abandoned", "failed")
        gate.open()  # the next turn works
        model.go_on.set()
        after = {"agent": "worker", "input": "and now?", "session": "s"}
        answer = await http.client.post("/v1/runs", json=after, headers={"prefer": "wait=30"})
        assert answer.json()["text"] == "nearly done"
