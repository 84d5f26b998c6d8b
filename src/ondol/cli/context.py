"""``ondol context``: what did the model see?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ondol import outputs
from ondol.bodies import context_body
from ondol.cli.surface import ONE_ID, Cli, imported_instead, one_id, verb
from ondol.errors import NotFound
from ondol.messages import Attachment, Message, Reasoning, Text, ToolCall, ToolResponse
from ondol.showing import called, exact, safe


def add_to(app: typer.Typer) -> None:
    verb(app, "context")(context)


async def context(
    cli: Cli,
    run: Annotated[str, typer.Argument(metavar="RUN", help=ONE_ID, callback=one_id)],
    step: Annotated[int | None, typer.Option("--step", metavar="N", min=1, help="The last one unless given.")] = None,
    before: Annotated[bool, typer.Option("--before", help="As it would have been without what was left out.")] = False,
) -> None:
    """What the model saw at a step of a run. It is built again from what is stored, and compared with its hash."""
    async with cli.runtime() as rt:
        try:
            seen = await rt.context(run, step)
        except NotFound as missing:
            seen = (await imported_instead(rt, run, missing)).context(step)
    if not cli.out.for_people:
        cli.out.bodies([(seen.run, context_body(seen))], one=True)
        return
    proof = "as recorded" if seen.matches else "DIFFERENT FROM WHAT WAS RECORDED: do not rely on it"
    if seen.incomplete:
        proof = "the session that this one goes on from was erased, and that part is missing here"
    tools = [tool["name"] for tool in seen.definition.get("tools", [])]
    if outputs.blobs_of(seen.messages) or seen.leaves_out:
        tools.append(outputs.READ_MORE.name)
    cli.out.fields([
        ("run", seen.run), ("step", seen.step), ("hash", f"{seen.hash} ({proof})"),
        ("model", seen.definition.get("model")), ("tools", ", ".join(tools) or None),
        ("tokens", ", ".join(f"{kind} {tokens}" for kind, tokens in seen.parts.items())),
    ])  # fmt: skip
    if (less := seen.compaction) is not None:
        cli.out.fields(_left_out(less))
        shows = cli.command("context", run, "--step", str(seen.step), "--before")
        cli.out.line("  what would have been sent:" if before else f"  '{shows}' shows it before")
    for message in seen.before or [] if before else seen.messages:
        print_message(cli, message)


def _left_out(less: dict[str, Any]) -> list[tuple[str, Any]]:
    """What is shown less from this step on."""
    was, now = less.get("was", {}), less.get("view", {})
    names = {"results": "references", "reasoning": "no reasoning", "detail": "calls only named", "since": "not shown"}
    moved = [(name, now[level]) for level, name in names.items() if now.get(level, 0) > was.get(level, 0)]
    by = f"by the model {less['by']}" if less.get("by") else "an excerpt"
    refused = f" (the model's was refused: {less['refused']})" if less.get("refused") else ""
    return [
        ("less from here on", f"about {less['after']} tokens instead of {less['before']}"),
        *((f"  {name}", f"before m{place}") for name, place in moved),
        ("  summary", by + refused if less.get("summary") else None),
        ("  memory", "what goes of earlier turns is offered to it" if less.get("offered") else None),
    ]  # fmt: skip


def print_message(cli: Cli, message: Message, mark: str = "") -> None:
    cli.out.line()
    cli.out.title(mark + message.role + (" (by the runtime)" if message.origin == "runtime" else ""))
    for part in message.parts:
        match part:
            case Text(text=said):
                shown = safe(said, keep="\n\t")
            case Reasoning(text=said):
                shown = f"(reasoning) {safe(said, keep=chr(10))}"
            case ToolCall():
                shown = f"calls {called(part.name, part.arguments)}"
            case ToolResponse():
                how = "was refused or failed" if part.error else "returned"
                shown = f"{safe(part.name)} {how}: {safe(part.text, keep=chr(10))}"
            case Attachment():
                shown = f"attachment {safe(part.name)} ({part.media_type}, {part.size} bytes)"
            case _:
                shown = exact(part.raw)
        for line in shown.split("\n"):
            cli.out.line(f"  {line}")
