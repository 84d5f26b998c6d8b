"""What do two processes do that come to one run at the same moment?

The run writes a letter, and then the account of its model is empty: it has failed for now. Once the account is ``paid``
it goes on with a tool of the kind that its client named.
"""

from __future__ import annotations

import asyncio
import functools
import os
from pathlib import Path
from typing import Any, Literal

from crash.scenarios import FIRST, KINDS, SESSION, TOOLS, Watched, World, outcome
from ondol import Agent, ModelRequest, Runtime
from ondol.providers.script import Reply
from ondol.testing import call, error

How = Literal["resumed", "sent again", "taken up"]
HOWS: tuple[How, ...] = ("resumed", "sent again", "taken up")


def paid(world: World) -> Path:
    """The account is not empty once this file is there."""
    return world.log.with_name("paid")


def agent(world: World) -> Agent:
    return Agent("crashes", model=Watched(functools.partial(_reply, world), world), tools=TOOLS)


def _reply(world: World, request: ModelRequest) -> Reply:
    said = next(m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None)
    if said not in KINDS:
        return "we are done"
    if request.step == 0:
        return call("letter", to="lee")
    if not paid(world).exists():
        return error("quota")
    tool = KINDS[said]
    if request.step == 2 or tool == "nothing":
        return f"done: {said}"
    return call(tool, **{"order" if tool in ("look", "refund") else "to": "kim"})


async def begin(rt: Runtime, world: World, kind: str) -> None:
    """The first process: until the run has failed for now, if nothing ends it before."""
    world.note(event="sent", operation=FIRST[0])
    run = await rt.start("crashes", kind, session=SESSION, operation_id=FIRST[0])
    world.note(event="accepted", operation=FIRST[0], run=run.id)
    await outcome(world, run)


async def go_on(runtime: Runtime, world: World, kind: str, how: How, meets: Path, n: int) -> None:
    """One of the two that come after it: each does the same, once both are there."""
    if how == "taken up":
        await _meet(meets, n)
    async with runtime as rt:
        known = await rt.find_run(FIRST[0])
        if how != "taken up":
            await _meet(meets, n)
        if how == "resumed":
            await outcome(world, await rt.resume(known))
        else:
            await begin(rt, world, kind)


async def _meet(pipe: Path, n: int) -> None:
    """Return when the other one is here, too: to open a named pipe takes a reader and a writer."""
    opened: Any = await asyncio.to_thread(os.open, pipe, (os.O_RDONLY, os.O_WRONLY)[n])
    os.close(opened)
