"""An app served by a process of its own, whose provider and tools a test sees from outside."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from providers.loopback import LoopbackServer
from providers.openai_server import call, calling, streams

from ondol.testing import Process

APP = Path(__file__).parent / "http" / "serving_app.py"
BOUND = 2.0  # seconds within which all has stopped


@contextlib.asynccontextmanager
async def served(db: str, provider: LoopbackServer, here: Path, *more: str) -> AsyncIterator[tuple[Process, str]]:
    env = {"ONDOL_DB": db, "OPENAI_BASE_URL": f"http://{provider.host}/v1", "HERE": str(here)}
    async with Process(["-m", "ondol", "serve", f"{APP}:rt", "--port", "0", *more], env=env) as process:
        yield process, (await process.line("serving")).rpartition(" ")[2]


async def until(seen: Callable[[], Any], within: float = 20.0) -> float:
    """The seconds until something can be seen from outside, where nothing tells us."""
    began = time.monotonic()
    async with asyncio.timeout(within):
        while not seen():  # noqa: ASYNC110 - a file or a socket of another process
            await asyncio.sleep(0.01)
    return time.monotonic() - began


def content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def calls(tool: str) -> Any:
    return streams(calling(call(0, "c1", tool, "{}")), finish="tool_calls")
