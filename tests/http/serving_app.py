"""An app whose tools say on standard output that they began, in a thread or with a child process, and how it ended."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from ondol import Agent, Context, Runtime, tool

HERE = Path(os.environ.get("HERE", "."))


def say(what: str) -> None:
    print(what, flush=True)


@tool(effect="once")
def heartbeat(ctx: Context[Any]) -> str:
    """Block a thread until asked to stop."""
    say("heart beats")
    ctx.cancelled.wait()
    say("heart stopped")
    return "stopped"


@tool(effect="once")
async def child(ctx: Context[Any]) -> str:
    """Start a child process, and see it to its end."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
    say("child started")
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        say("child gone")
    return "done"


@tool(effect="once")
async def slow(ctx: Context[Any]) -> str:
    """Take until a line comes on standard input."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, told.set)
    say("slow started")
    await told.wait()
    loop.remove_reader(0)
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
