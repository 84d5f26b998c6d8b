"""C07: a cancel from another connection, and from another process, stops the model, a thread and a child process.

The client that goes away is in ``tests/http/test_stopping.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from door import watch
from http_served import BOUND, answering, calls, served
from providers.loopback import Behaviour, LoopbackServer
from providers.openai_server import stalls

from ondol.testing import Process


@pytest.mark.parametrize("by", ["another connection", "another process"])
async def test_c07_a_cancel_from_elsewhere_stops_all_within_two_seconds(db: str, tmp_path: Path, by: str) -> None:
    async with (
        LoopbackServer().running() as provider,
        served(db, provider, tmp_path) as (serving, url),
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        cases: dict[str, tuple[Behaviour, Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]] = {
            "model": (stalls({"content": "Dear "}), lambda: answering(provider, 1),
                      lambda: asyncio.wait_for(provider.exchanges[0].gone.wait(), BOUND)),
            "thread": (calls("heartbeat"), lambda: serving.line("heart beats"),
                       lambda: serving.line("heart stopped", BOUND)),
            "child": (calls("child"), lambda: serving.line("child started"),
                      lambda: serving.line("child gone", BOUND)),
        }  # fmt: skip
        for session, (behaviour, reached, stopped) in cases.items():
            provider.will(behaviour)
            body = {"agent": "worker", "input": "go", "session": session}
            run = (await client.post("/v1/runs", json=body)).json()["id"]
            await reached()
            asked = provider.requests
            if by == "another connection":
                async with httpx.AsyncClient(base_url=url) as other:
                    answers = [await other.post(f"/v1/runs/{run}/cancel", json={"by": "lee"}) for _ in range(2)]
                assert {a.status_code for a in answers} <= {200, 202}  # idempotent
            else:
                command = ["-m", "ondol", "--db", db, "runs", "cancel", run, "--by", "lee"]
                async with Process(command) as process:
                    assert await process.wait() == 0, process.errors
            await stopped()
            ended = (await client.get(f"/v1/runs/{run}/result", params={"wait": 10})).json()
            assert ended["state"] == "cancelled"
            assert provider.requests == asked  # nothing more was asked
            (told,) = [e for e in await _events(client, run) if e["type"] == "run.cancelled"]
            assert told["data"]["by"] == "lee"


async def _events(client: httpx.AsyncClient, run: str) -> list[dict[str, object]]:
    return [said.data for said in await watch(client, f"/v1/runs/{run}/events")]
