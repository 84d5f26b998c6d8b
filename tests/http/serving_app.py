"""An app whose tools show from outside whether they are still at it: a file that grows, a child process, a socket."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

from ondol import Agent, Context, Runtime, tool

HERE = Path(os.environ.get("HERE", "."))


@tool(effect="once")
def heartbeat(ctx: Context[Any]) -> str:
    """Beat, in a thread, until asked to stop."""
    n = 0
    while not ctx.cancelled:
        n += 1
        (HERE / "beat").write_text(str(n))
        threading.Event().wait(0.02)
    (HERE / "beat").write_text("stopped")
    return "stopped"


@tool(effect="once")
async def child(ctx: Context[Any]) -> str:
    """Start a child process, and see it to its end."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
    (HERE / "child").write_text(str(process.pid))
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        (HERE / "child").write_text("gone")
    return "done"


@tool(effect="once")
async def slow(ctx: Context[Any]) -> str:
    """Take until the file ``go`` is there."""
    (HERE / "slow").write_text("started")
    while not (HERE / "go").exists():  # noqa: ASYNC110 - a test says so from another process
        await asyncio.sleep(0.02)
    with (HERE / "done").open("a") as file:
        file.write("done\n")
    return "done"


@tool(approve=True)
def pay() -> str:
    """Pay."""
    with (HERE / "paid").open("a") as file:
        file.write("paid\n")
    return "paid"


@tool(effect="steps")
async def paint(ctx: Context[Any]) -> str:
    """Paint in a colour that a person names."""
    return f"painted {await ctx.ask('Which colour?', schema=str)}"


worker = Agent("worker", model="openai:served-1", tools=[heartbeat, child, slow, pay, paint])
rt = Runtime(agents=[worker])
