"""What does a session of fifty turns with images cost in tokens and bytes, against a loop that sends all of it again?

    python benchmarks/context.py           tokens and bytes of 50 turns, and what loading the next turn reads
    python benchmarks/context.py --json    the figures as one JSON object

Turns 1, 11, 21, 31 and 41 bring an image of 1 MB; each turn calls a tool that returns 4 KB. The loop keeps all messages
in a list and sends them all. Tokens are estimated as the scripted model does; bytes are those of the messages and of
the images that a provider would be sent, in base64.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ondol import Agent, Answer, ContextPolicy, ModelOutput, ModelRequest, Runtime, queries, tool
from ondol.messages import Attachment, Message, Text, dumps
from ondol.providers.script import Reply, estimate_tokens
from ondol.testing import ScriptedModel, call

TURNS, EVERY, IMAGE = 50, 10, 1_000_000
LENGTHS = (100, 1_000, 10_000)  # messages of the session whose next turn is loaded


@tool(effect="read")
async def look(n: int) -> str:
    return f"record {n}: " + "a line as it stands there. " * 150


def answers(request: ModelRequest) -> Reply:
    if request.purpose == "summary":
        return "They looked at records, one after the other, and at some pictures."
    return call("look", n=len(request.messages)) if request.step == 0 else "I looked it up, and it is as expected. " * 4


def size(messages: Sequence[Message]) -> int:
    images = sum(p.size * 4 // 3 for m in messages for p in m.parts if isinstance(p, Attachment))
    return images + sum(len(dumps(m)) for m in messages)


async def talk(policy: ContextPolicy | None) -> tuple[ScriptedModel, list[Message]]:
    """Fifty turns, and all that was said in them."""
    model = ScriptedModel(answers)
    agent = Agent("a", model=model, tools=[look], context=policy)
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(f"sqlite:///{folder}/ondol.db", agents=[agent]) as rt:
            for n in range(TURNS):
                image = [b"\x89PNG\r\n\x1a\n" + os.urandom(IMAGE)] if n % EVERY == 0 else []
                await rt.run(agent, f"question {n}", session="s", attachments=image)
            said = await (await rt.get_session("s")).messages(limit=1000)
    return model, [m.message for m in said]


def sent(requests: Sequence[ModelRequest]) -> dict[str, int]:
    return {
        "requests": len(requests),
        "tokens": sum(estimate_tokens(r) for r in requests),
        "bytes": sum(size(r.messages) for r in requests),
        "largest": max(estimate_tokens(r) for r in requests),
    }


def naive(model: ScriptedModel, said: Sequence[Message]) -> dict[str, int]:
    """The same answers, each asked for with all that was said before it."""
    requests, system = [], model.requests[0].messages[0]
    for n, message in enumerate(said):
        if message.role == "assistant":
            before = [system, *said[:n]]
            requests.append(ModelRequest(messages=before, tools=model.requests[0].tools, run="", step=0, attempt=1))
    return sent(requests)


class Brief:
    """Answers at once, and looks at nothing: a long history is to be made, not checked."""

    name = "brief"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        yield Answer(parts=(Text("so it is " * 20),))


async def loading() -> dict[str, dict[str, float]]:
    """Seconds and messages that a fresh process needs for what the next turn of a long session is shown."""
    found: dict[str, dict[str, float]] = {}
    for kind, policy in (("all", None), ("budget", ContextPolicy(budget=8_000, summary="excerpt"))):
        agent = Agent("a", model=Brief(), context=policy)
        with tempfile.TemporaryDirectory() as folder:
            url, turns = f"sqlite:///{folder}/ondol.db", 0
            for length in LENGTHS:
                async with Runtime(url, agents=[agent]) as rt:
                    while turns < length // 2:
                        await rt.run(agent, f"question {turns}", session="s")
                        turns += 1
                async with Runtime(url, agents=[agent]) as rt:
                    row = (await rt.get_session("s"))._row
                    began = time.perf_counter()
                    read = await rt._read(queries.read_window, row, row.shown.since, row.next_message)
                    took = time.perf_counter() - began
                found.setdefault(str(length), {}).update({f"{kind} messages": len(read), f"{kind} ms": took * 1000})
    return found


async def figures(with_loading: bool) -> dict[str, Any]:
    plain, said = await talk(None)
    within, _ = await talk(ContextPolicy(budget=8_000))
    result: dict[str, Any] = {
        "loop": naive(plain, said),
        "ondol": sent(plain.requests),
        "ondol, budget 8000": sent(within.requests),
    }
    return result | ({"loading": await loading()} if with_loading else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-loading", action="store_true", help="only the fifty turns")
    given = parser.parse_args()
    result = asyncio.run(figures(not given.no_loading))
    if given.json:
        print(json.dumps(result))
        return
    loop = result["loop"]
    for name in ("loop", "ondol", "ondol, budget 8000"):
        one = result[name]
        share = f"{one['tokens'] / loop['tokens']:6.1%} of the tokens, {one['bytes'] / loop['bytes']:6.1%} of the bytes"
        print(f"{name:20} {one['requests']:4} requests {one['tokens']:9} tokens {one['bytes']:12} bytes  {share}")
    for length, one in result.get("loading", {}).items():
        print(f"next turn after {length:>6} messages: " + ", ".join(f"{k} {v:.1f}" for k, v in one.items()))


if __name__ == "__main__":
    main()
