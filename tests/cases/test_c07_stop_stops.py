"""C07: a cancel from another connection, and from another process, stops the model, a thread and a child process.

The client that goes away is in ``tests/http/test_stopping.py``.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from door import watch
from http_served import BOUND, calls, content, served, until
from providers.loopback import LoopbackServer
from providers.openai_server import stalls

from ondol.testing import Process


@pytest.mark.parametrize("by", ["another connection", "another process"])
async def test_c07_a_cancel_from_elsewhere_stops_all_within_two_seconds(db: str, tmp_path: Path, by: str) -> None:
    async with (
        LoopbackServer().running() as provider,
        served(db, provider, tmp_path) as (_, url),
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        cases = {
            "model": (stalls({"content": "Dear "}), lambda: provider.requests and provider.exchanges[-1].began.is_set(),
                      lambda: provider.exchanges[-1].gone.is_set()),
            "thread": (calls("heartbeat"), lambda: content(tmp_path / "beat"),
                       lambda: content(tmp_path / "beat") == "stopped"),
            "child": (calls("child"), lambda: content(tmp_path / "child"),
                      lambda: content(tmp_path / "child") == "gone"),
        }  # fmt: skip
        for session, (behaviour, reached, stopped) in cases.items():
            provider.will(behaviour)
            body = {"agent": "worker", "input": "go", "session": session}
            run = (await client.post("/v1/runs", json=body)).json()["id"]
            await until(reached)
            asked = provider.requests
            if by == "another connection":
                async with httpx.AsyncClient(base_url=url) as other:
                    answers = [await other.post(f"/v1/runs/{run}/cancel", json={"by": "lee"}) for _ in range(2)]
                assert {a.status_code for a in answers} <= {200, 202}  # idempotent
            else:
                command = ["-m", "ondol", "--db", db, "runs", "cancel", run, "--by", "lee"]
                async with Process(command) as process:
                    assert await process.wait() == 0, process.errors
            assert await until(stopped) < BOUND
            ended = (await client.get(f"/v1/runs/{run}/result", params={"wait": 10})).json()
            assert ended["state"] == "cancelled"
            assert provider.requests == asked  # nothing more was asked
            (told,) = [e for e in await _events(client, run) if e["type"] == "run.cancelled"]
            assert told["data"]["by"] == "lee"


async def _events(client: httpx.AsyncClient, run: str) -> list[dict[str, object]]:
    return [said.data for said in await watch(client, f"/v1/runs/{run}/events")]
