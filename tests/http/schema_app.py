"""A door for schemathesis: its agent has the shortest name, so that generated requests find it; streams end soon."""

from __future__ import annotations

import asyncio
import os

from ondol import Agent, Runtime, tool
from ondol.http.app import make_app
from ondol.http.serving import Server, config, listen
from ondol.testing import ScriptedModel


@tool(approve=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def main() -> None:
    agent = Agent("0", model=ScriptedModel(lambda _: "hello"), tools=[pay])
    async with Runtime(os.environ["ONDOL_DB"], agents=[agent]) as rt:
        app = make_app(rt, longest=0.1)
        with listen("127.0.0.1", 0) as listening:
            server = Server(config(app), app, drain=1.0)
            server.when_started = lambda: print(f"ready {listening.getsockname()[1]}")
            await server.serve([listening])


asyncio.run(main())
