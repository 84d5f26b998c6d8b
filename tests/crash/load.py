"""What do many clients do at once, each in its own session, one operation after the other?"""

from __future__ import annotations

import asyncio
import random

from crash.scenarios import KINDS, TOOLS, Watched, World, outcome, settled
from ondol import Agent, ModelRequest, Runtime
from ondol.providers.script import Reply
from ondol.testing import call

SESSIONS, EACH = 7, 10
OPERATIONS = SESSIONS * EACH
_TOOL = {name: tool for name, tool in KINDS.items() if tool != "nothing"}


def agent(world: World) -> Agent:
    return Agent("crashes", model=Watched(_reply, world), tools=TOOLS)


def _reply(request: ModelRequest) -> Reply:
    said = next(m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None)
    tool = _TOOL.get(said.split()[0])
    if tool is None or request.step:
        return f"done: {said}"
    return call(tool, **{"order" if tool in ("look", "refund") else "to": said})


async def clients(rt: Runtime, world: World, seed: int, sessions: int = SESSIONS, each: int = EACH) -> None:
    """All of them, until each operation has ended and nobody is asked anything. Done again it changes nothing."""
    async with asyncio.TaskGroup() as together:
        for n in range(sessions):
            together.create_task(_client(rt, world, f"s{n}", random.Random(f"{seed} {n}"), each))


async def _client(rt: Runtime, world: World, session: str, chosen: random.Random, each: int) -> None:
    for n in range(each):
        operation = f"{session}-{n}"
        said = f"{chosen.choice(list(KINDS))} of {operation}"
        world.note(event="sent", operation=operation)
        run = await rt.start("crashes", said, session=session, operation_id=operation)
        world.note(event="accepted", operation=operation, run=run.id)
        await settled(rt, world, run)
        await outcome(world, run)
