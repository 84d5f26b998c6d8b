"""Agents that the tests of the command line run, as ``apps.py:NAME``. What they touch is in the current folder."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from ondol import Agent, Context, ModelRequest, Runtime, tool
from ondol.providers.script import Reply
from ondol.testing import ScriptedModel, call, error, text, truncated


@tool(effect="read")
def greet(name: str) -> str:
    """Greet somebody."""
    return f"hello {name}"


hello = Agent("hello", model="script:demo", tools=[greet])
cut = Agent("cut", model=ScriptedModel([truncated("half a sent")]))


@tool(effect="once")
async def hold(fifo: str) -> str:
    """Return when somebody writes to the fifo."""
    written = asyncio.Event()
    file = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    asyncio.get_running_loop().add_reader(file, written.set)
    print("holding", flush=True)
    try:
        await written.wait()
        return os.read(file, 100).decode()
    finally:
        asyncio.get_running_loop().remove_reader(file)
        os.close(file)


holding = Agent("holding", model=ScriptedModel([call("hold", fifo="fifo"), "let go"]), tools=[hold])


@tool(effect="idempotent", timeout=timedelta(hours=8))
def build() -> str:
    """Build it. The process dies of the first attempt."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "built"


building = Agent("building", model=ScriptedModel([call("build"), "built"]), tools=[build])


def talk(request: ModelRequest) -> Reply:
    """Say what was said; ``hold`` holds on first."""
    said = [m.text for m in request.messages if m.role == "user" and m.origin is None]
    held = request.messages[-1].role == "tool" or request.step > 0
    return [call("hold", fifo="fifo")] if said[-1] == "hold" and not held else f"you said {', '.join(said)}"


@tool(effect="steps")
async def paint(ctx: Context[None]) -> str:
    """Paint the wall."""
    return f"{await ctx.ask('Which colour?')} it is"


painting = Agent("painting", model=ScriptedModel([call("paint"), "painted"]), tools=[paint])


@tool(effect="steps")
async def move(ctx: Context[None]) -> str:
    """Move a step."""
    return f"moved {await ctx.ask('Which way?', schema=Literal[-1, 1])}"


moving = Agent("moving", model=ScriptedModel([call("move"), "moved"]), tools=[move])
talking = Agent("talking", model=ScriptedModel(talk), tools=[hold])


@tool(effect="idempotent", approve=lambda amount: amount > 20)
def refund(order_id: str, amount: int) -> str:
    """Pay an order back."""
    with open("refunds", "a") as file:
        file.write(f"{order_id} {amount}\n")
    return f"refunded {amount}"


asking = Agent(
    "asking",
    model=ScriptedModel([[text("let me see"), call("refund", order_id="1182", amount=30)], "done"]),
    tools=[refund],
)


@tool(effect="once")
def lose(what: str) -> str:
    """Start something, and never tell how it ended."""
    with open("lost", "a") as file:
        file.write(f"{what}\n")
    raise RuntimeError("the line broke")


losing = Agent("losing", model=ScriptedModel([call("lose", what="a letter"), "well"]), tools=[lose])
broke = Agent("broke", model=ScriptedModel([error("quota", "pay first")]))
refused = Agent("refused", model=ScriptedModel([error("rejected", "no such model")]))


@dataclass
class Services:
    name: str


@tool(effect="read")
def ask_service(ctx: Context[Services]) -> str:
    """Name the service."""
    return f"{ctx.deps.name}, {ctx.time_zone}"


served = Agent("served", model="script:demo", tools=[ask_service])
rt = Runtime("sqlite:///own.db", agents=[served, holding, asking], deps=Services("the bank"), time_zone="Asia/Seoul")


@tool(effect="read")
def find_order(order_id: str) -> str:
    """Look an order up."""
    return "a lamp"


def wrote(line: str) -> str:
    with open("written", "a") as file:
        file.write(f"{line}\n")
    return "done"


writing = Agent(
    "writing",
    model=ScriptedModel(
        [
            [call("find_order", order_id="1182")],
            [call("refund", order_id="1182"), call("send_email", to="kim")],
            "all done",
        ]
    ),
    tools=[
        find_order,
        tool(effect="idempotent", name="refund")(lambda order_id: wrote(f"refund {order_id}")),
        tool(effect="once", name="send_email")(lambda to: wrote(f"send_email {to}")),
    ],
)
