"""An app served by a process of its own, whose provider and tools a test sees from outside."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from providers.loopback import Exchange, LoopbackServer
from providers.openai_server import call, calling, streams

from ondol.testing import Process

APP = Path(__file__).parent / "http" / "serving_app.py"
BOUND = 2.0  # seconds within which all has stopped


@contextlib.asynccontextmanager
async def served(db: str, provider: LoopbackServer, here: Path, *more: str) -> AsyncIterator[tuple[Process, str]]:
    env = {"ONDOL_DB": db, "OPENAI_BASE_URL": f"http://{provider.host}/v1", "HERE": str(here)}
    async with Process(["-m", "ondol", "serve", f"{APP}:rt", "--port", "0", *more], env=env) as process:
        yield process, (await process.line("serving")).rpartition(" ")[2]


async def answering(provider: LoopbackServer, number: int) -> Exchange:
    """The request with that number, from 1, once its answer has begun."""
    exchange = await provider.exchange(number)
    await exchange.began.wait()
    return exchange


def content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def calls(tool: str) -> Any:
    return streams(calling(call(0, "c1", tool, "{}")), finish="tool_calls")
