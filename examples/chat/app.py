"""A chat with any provider by its key: the session outlives the process, and a second model takes over from the first.

Without a key ``script:demo`` answers, which calls the first tool with what you say.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from ondol import Agent, Context, RunFailed, Runtime, RunWaiting, tool
from ondol.errors import InvalidInput

NOTES = Path("notes.jsonl")


def known() -> list[dict[str, str]]:
    return [json.loads(line) for line in NOTES.read_text().splitlines()] if NOTES.exists() else []


@tool(effect="idempotent", key_ttl=timedelta(days=1))
def take_note(ctx: Context, text: str) -> str:
    """Write a note down for the user."""
    if not any(note["key"] == ctx.idempotency_key for note in known()):  # a repeated call writes no second one
        with NOTES.open("a") as notes:
            notes.write(json.dumps({"key": ctx.idempotency_key, "note": text}) + "\n")
    return f"noted: {text}"


@tool(effect="read")
def read_notes() -> list[str]:
    """All notes of the user."""
    return [note["note"] for note in known()]


async def lines(given: list[str]) -> AsyncIterator[str]:
    """What the user says: as arguments, else line by line."""
    for line in given:
        yield line
    while not given and (line := await asyncio.to_thread(sys.stdin.readline)):
        if line.strip():
            yield line.strip()


async def main(chat: Agent, session: str, said: list[str], files: list[Path]) -> None:
    async with Runtime(agents=[chat]) as rt:
        async for line in lines(said):
            try:
                print((await rt.run(chat, line, session=session, attachments=files, trigger="chat")).text, flush=True)
            except (RunFailed, RunWaiting) as error:  # the session goes on; the message says what to do
                print(error, file=sys.stderr, flush=True)
            files = []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("said", nargs="*", help="what you say; without it lines are read from standard input")
    parser.add_argument("--session", default="chat")
    parser.add_argument("--model", action="append", help="as anthropic:claude-sonnet-5; several: in reserve")
    parser.add_argument("--file", action="append", type=Path, default=[], help="attached to what you say first")
    args = parser.parse_args()
    chat = Agent(
        "chat", model=args.model or "script:demo", tools=[take_note, read_notes],
        instructions="You are a helpful assistant. Be brief. Take notes when you are asked to.",
    )  # fmt: skip
    try:
        asyncio.run(main(chat, args.session, args.said, args.file))
    except InvalidInput as error:  # a key is missing, or there is no such model
        sys.exit(str(error))
