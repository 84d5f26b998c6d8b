"""Plugs Ondol into a side-by-side benchmark: one turn is K model calls, each followed by one tool call of about 1 KB.

The host passes a context with ``backend``, ``workdir``, ``k`` and ``opts``; ``opts["effect"]`` chooses the class of
the tool (``read`` by default). The work itself (texts, arguments) comes from the host's module ``work`` where there is
one, else from ``benchmarks/work.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from typing import Any

from ondol import Agent, Answer, ModelRequest, Runtime, Text, ToolCall, tool

try:
    import work  # the host's own
except ModuleNotFoundError:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import work


class WorkModel:
    """Answers from the script of the work, by the number of answers the run already holds."""

    name = "work"

    def __init__(self, k: int) -> None:
        self.k = k

    async def stream(self, request: ModelRequest) -> AsyncIterator[Answer]:
        i = request.step
        if i == self.k:
            yield Answer(parts=(Text(work.final_text(i)),), stop="stop")
            return
        call = ToolCall(f"call_{i}", "lookup", work.tool_args(i))
        yield Answer(parts=(Text(work.model_text(i)), call), stop="tool_calls")


class OndolAdapter:
    durability = "T0, T1, then one commit an answer and one an outcome, T8; SQLite: WAL, synchronous=FULL"

    def __init__(self, ctx: Any) -> None:
        self.ctx, self.k = ctx, ctx.k
        effect = ctx.opts.get("effect", "read")

        @tool(effect=effect)
        async def lookup(record: int, fields: str = "") -> str:
            """Look a record up."""
            return work.tool(record, fields)

        self.agent = Agent("bench", model=WorkModel(self.k), tools=[lookup])
        self.runtime = Runtime(self.url(), agents=[self.agent])

    def url(self) -> str:
        """The store: a database of the host's server where the backend says so, else a file."""
        if self.ctx.backend == "postgres":
            return str(self.ctx.dsn)
        return f"sqlite:///{self.sqlite_path()}"

    def sqlite_path(self) -> str:
        return os.path.join(self.ctx.workdir, "db.sqlite")

    async def open(self) -> None:
        await self.runtime.open()

    async def close(self) -> None:
        await self.runtime.close()

    async def turn(self, session: str, n: int) -> None:
        await self.runtime.run(self.agent, work.user_text(n), session=session, operation_id=f"{session}:{n}")

    async def seed(self, session: str, n_messages: int) -> None:
        for t in range(-(-n_messages // (2 * self.k + 2))):
            await self.turn(session, t)

    async def load(self, session: str) -> int:
        found = await self.runtime.get_session(session)
        return len(await found.messages(limit=1_000_000))


ADAPTER = OndolAdapter
