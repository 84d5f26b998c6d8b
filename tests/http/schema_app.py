"""A door for schemathesis: one agent has the shortest name, so that generated requests find it, one that of the
examples; streams end soon."""

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
    agents = [Agent(name, model=ScriptedModel(lambda _: "hello"), tools=[pay]) for name in ("0", "support")]
    async with Runtime(os.environ["ONDOL_DB"], agents=agents) as rt:
        app = make_app(rt, longest=0.1)
        with listen("127.0.0.1", 0) as listening:
            server = Server(config(app), app, drain=1.0)
            server.when_started = lambda: print(f"ready {listening.getsockname()[1]}")
            await server.serve([listening])


asyncio.run(main())
