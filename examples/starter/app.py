"""An assistant with one tool that acts and one that only looks. Make it yours."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ondol import Agent, Context, Happened, NotHappened, Runtime, tool


@dataclass(frozen=True)
class Outbox:
    """The world outside, for now a file. In your project it is a mail server, a bank, somebody's API."""

    path: Path = Path("outbox.txt")

    def send(self, key: str, to: str, body: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{key} to {to}: {body}\n")

    def has(self, key: str) -> bool:
        return self.path.exists() and any(line.startswith(key) for line in self.path.read_text().splitlines())


async def was_sent(ctx: Context[Outbox]) -> Happened | NotHappened:
    """Asked when nobody knows how a call ended, as after a crash: look, and never guess."""
    return Happened("it was sent") if ctx.deps.has(ctx.idempotency_key) else NotHappened()


@tool(effect="once", check=was_sent, timeout=timedelta(seconds=10))
async def send_note(ctx: Context[Outbox], to: str, body: str) -> str:
    """Send somebody a short note."""
    ctx.deps.send(ctx.idempotency_key, to, body)
    return f"sent to {to}"


@tool(effect="read")
async def find_address(name: str) -> str:
    """Find somebody's address."""
    return f"{name.lower()}@example.com"


agent = Agent(
    "assistant",
    model="script:demo",  # works offline; with a key for example "openai:gpt-5.2"
    instructions="Help with notes. Be brief.",
    tools=[send_note, find_address],
)
rt = Runtime(agents=[agent], deps=Outbox())
