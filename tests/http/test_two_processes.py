"""Two servers on one store are one: cases C17 and C38 over HTTP, each request sent to both at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from ondol.testing import Process

APP = Path(__file__).with_name("paying_app.py")
TIMES = 10


@contextlib.asynccontextmanager
async def two_servers(db: str, ledger: Path) -> AsyncIterator[list[httpx.AsyncClient]]:
    env = {"ONDOL_DB": db, "LEDGER": str(ledger)}
    command = ["-m", "ondol", "serve", f"{APP}:rt", "--port", "0"]
    async with Process(command, env=env) as one, Process(command, env=env) as two, contextlib.AsyncExitStack() as stack:
        urls = [(await process.line("serving")).rpartition(" ")[2] for process in (one, two)]
        yield [await stack.enter_async_context(httpx.AsyncClient(base_url=u, timeout=30)) for u in urls]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def paid(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


async def test_c38_the_same_request_at_once_to_two_servers_is_one_run(db: str, ledger: Path) -> None:
    async with two_servers(db, ledger) as servers:
        texts = [
            '{"agent": "order", "input": "tea", "session": "s"}',
            '{"session": "s", "input": "tea", "agent": "order"}',
        ]

        async def send(client: httpx.AsyncClient, text: str, key: str = "K") -> httpx.Response:
            headers = {"content-type": "application/json", "idempotency-key": key, "prefer": "wait=30"}
            return await client.post("/v1/runs", content=text, headers=headers)

        both = [send(client, text) for client in servers for text in texts for _ in range(TIMES // 2)]
        answers = await asyncio.gather(*both)
        assert {a.status_code for a in answers} == {200}
        assert len({a.content for a in answers}) == 1  # byte for byte
        assert paid(ledger) == ["tea"]
        again = await send(servers[1], texts[0])
        assert (again.content, again.headers["idempotent-replayed"]) == (answers[0].content, "true")
        other = await send(servers[0], '{"agent": "order", "input": "the secret", "session": "s"}')
        assert (other.status_code, other.json()["code"]) == (422, "operation_mismatch")
        assert "tea" not in other.text
        theirs = await send(servers[0], '{"agent": "order", "input": "tea", "session": "s", "user": "lee"}')
        assert theirs.json()["id"] != again.json()["id"]  # another user has another key space


async def test_c17_a_decision_sent_to_two_servers_at_once_counts_once(db: str, ledger: Path) -> None:
    async with two_servers(db, ledger) as servers:
        for n in range(3):
            body = {"agent": "payer", "input": "pay", "session": f"s{n}"}
            waiting = await servers[0].post("/v1/runs", json=body, headers={"prefer": "wait=30"})
            run = waiting.json()["id"]
            (ask,) = (await servers[1].get("/v1/asks", params={"run": run})).json()["items"]
            match = {"if-match": f'"{ask["arguments_hash"]}"'}

            async def say(client: httpx.AsyncClient, word: str, ask: str, match: dict[str, str]) -> tuple[str, int]:
                answer = await client.post(f"/v1/asks/{ask}/decision", json={"decision": word}, headers=match)
                return word, answer.status_code

            words = [(client, word) for _ in range(5) for client in servers for word in ("approve", "deny")]
            said = await asyncio.gather(*(say(client, word, ask["id"], match) for client, word in words))
            accepted = {word for word, status in said if status == 200}
            assert len(accepted) == 1
            assert {status for word, status in said if word not in accepted} == {409}
            assert {status for word, status in said if word in accepted} == {200}
            result = await servers[1].get(f"/v1/runs/{run}/result", params={"wait": 30})
            assert result.json()["state"] == "completed"
            won = accepted == {"approve"}
            assert paid(ledger).count(f"pay {run}") == won
            assert (await say(servers[1], "approve" if won else "deny", ask["id"], match))[1] == 200
            assert paid(ledger).count(f"pay {run}") == won
