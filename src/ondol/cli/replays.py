"""``ondol runs replay`` and ``fork``: would it be safe to do it once more? Do it, or go on from a step of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias

import typer

from ondol.bodies import verdict_body
from ondol.cli import codes
from ondol.cli.output import say
from ondol.cli.run import AgentName, AppHere, Model, OperationId, drive
from ondol.cli.runs import check_agent, own_run, say_begun
from ondol.cli.surface import By, Cli, Id, verb
from ondol.errors import InvalidInput, ReplayUnsafe, StoreCorrupt
from ondol.handles import Run, this_person
from ondol.replay import By as Forced
from ondol.replay import ReplayVerdict
from ondol.runtime import ForkEffects, Runtime
from ondol.showing import safe

Start: TypeAlias = Callable[[Runtime, str], Awaitable[Run]]

_FORCED = "needs --force --by NAME --why TEXT"


def add_to(runs: typer.Typer) -> None:
    verb(runs, "replay")(replay)
    verb(runs, "fork")(fork)


async def replay(
    cli: Cli,
    id: Id,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say whether it is safe, effect by effect.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Though writes were started. They are not repeated.")] = False,
    by: By = None,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="Why it is forced. Kept.")] = None,
    now: Annotated[bool, typer.Option("--now", help="With the time as it is, not as it was.")] = False,
    time_zone: Annotated[str | None, typer.Option("--time-zone", metavar="Z", help="In another zone.")] = None,
    operation_id: OperationId = None,
    app: AppHere = None,
    model: Model = None,
    agent: AgentName = None,
) -> int:
    """Do what a run was asked once more, in a new run. What was done is not done again."""
    if force and not why:
        raise InvalidInput("--force needs a reason: say --why TEXT (and --by NAME), it is kept")
    forced = Forced(by or this_person(), why) if force and why else None

    async def start(rt: Runtime, name: str) -> Run:
        run = await own_run(rt, id)
        check_agent(rt, run, app)
        return await rt.replay(
            run,
            force=forced,
            operation_id=operation_id,
            clock="now" if now else "recorded",
            time_zone=time_zone,
        )

    try:
        if dry_run:
            async with cli.runtime() as rt:
                verdict = await rt.replay(await own_run(rt, id), dry_run=True)
                if cli.out.for_people:
                    cli.out.line(safe(str(verdict), keep="\n"))
                    cli.out.line(await _next(cli, rt, verdict))
                else:
                    cli.out.bodies([(id, verdict_body(verdict))], one=True)
            return codes.OK
        return await begin(cli, start, app, model, agent)
    except ReplayUnsafe as unsafe:
        if cli.out.for_people:
            say(safe(str(unsafe.verdict), keep="\n"))
        if unsafe.verdict.kind != "guarded":
            raise
        if cli.out.for_people:
            say(_FORCED)
        why = f"run {id} cannot be replayed just so ({unsafe.verdict.reasons[0]})"
        raise ReplayUnsafe(f"{why}: say --force --by NAME --why TEXT, or fork it", unsafe.verdict) from unsafe


async def fork(
    cli: Cli,
    id: Id,
    at: Annotated[int, typer.Option("--at", metavar="N", min=1, help="The first step that is done anew.")],
    effects: Annotated[
        ForkEffects, typer.Option("--effects", help="Later writes: reuse recorded outcomes, make them up, or ask.")
    ] = "reuse",
    operation_id: OperationId = None,
    app: AppHere = None,
    model: Model = None,
    agent: AgentName = None,
) -> int:
    """Go on from a step of a run that has ended, in a new session. The steps before it are shared."""

    async def start(rt: Runtime, name: str) -> Run:
        run = await own_run(rt, id)
        check_agent(rt, run, app)
        return await rt.fork(run, at_step=at, effects=effects, operation_id=operation_id)

    return await begin(cli, start, app, model, agent)


async def begin(cli: Cli, start: Start, app: str | None, model: str | None, agent: str | None) -> int:
    """Start the run, and stay with it where its agent is; else leave it to the process that has that."""
    if app is not None:
        return await drive(cli, app, start, model=model, agent=agent)
    async with cli.runtime(acts=True) as rt:
        await say_begun(cli, rt, await start(rt, ""))
    return codes.OK


async def _next(cli: Cli, rt: Runtime, verdict: ReplayVerdict) -> str:
    """The commands that a verdict leads to."""
    match verdict.kind:
        case "safe":
            return f"to do it: {cli.command('runs', 'replay', verdict.run)}"
        case "guarded":
            try:
                step = str(await _behind_writes(rt, verdict.run))
            except StoreCorrupt as damaged:  # what is asked once more is whole: its journal is read for a fork only
                return f"{_FORCED}. It cannot be forked: {damaged}"
            fork = cli.command("runs", "fork", verdict.run, "--at", step)
            return f"{_FORCED}. To go on from a step instead: {fork}"
        case _:
            return "it is refused as long as that is so"


async def _behind_writes(rt: Runtime, run: str) -> int:
    """The first step behind the last write that was started, as far as there is one."""
    state = await (await rt.get_run(run)).state()
    behind = max((e["step"] + 1 for e in state["effects"] if e["class"] != "read" and e["attempt"]), default=1)
    return min(behind, max(1, int(state["step"])))
