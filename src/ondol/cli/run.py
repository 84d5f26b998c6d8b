"""``ondol run``: one operation of an agent, from the command line."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ondol.bodies import ask_body, run_body
from ondol.cli import codes
from ondol.cli.follow import Behind, NoDriver, Progress, follow, say_waiting, waiting_code
from ondol.cli.lines import say_ask
from ondol.cli.loading import load
from ondol.cli.output import say, say_failed
from ondol.cli.surface import Cli, typed, verb
from ondol.errors import InvalidInput, OndolError, RunFailed, RunWaiting
from ondol.handles import AT_REST, Run, RunResult
from ondol.runtime import DRAIN, Runtime
from ondol.transactions import IfBusy

AppName = Annotated[str, typer.Argument(metavar="APP", help="MODULE:NAME or FILE.py:NAME, an Agent or a Runtime.")]
AppHere = Annotated[
    str | None, typer.Option("--app", metavar="APP", help="Drive it here: MODULE:NAME or FILE.py:NAME.")
]
OperationId = Annotated[
    str | None, typer.Option("--operation-id", metavar="K", help="The same K again is the same run.")
]
Model = Annotated[str | None, typer.Option("--model", metavar="M", help="Another model than the agent's own.")]
IfBusyOption = Annotated[
    IfBusy, typer.Option("--if-busy", help="What becomes of it while a run of the session is unfinished.")
]
AgentName = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Which agent of a Runtime.")]


def add_to(app: typer.Typer) -> None:
    verb(app, "run")(run)


async def run(
    cli: Cli,
    app: AppName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is asked. '-' reads it from standard input.")],
    session: Annotated[str | None, typer.Option("--session", metavar="S", help="Go on in this session.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="U", help="Whom it is for.")] = None,
    operation_id: OperationId = None,
    file: Annotated[list[Path] | None, typer.Option("--file", metavar="F", help="Attach a file.")] = None,
    model: Model = None,
    time_zone: Annotated[str | None, typer.Option("--time-zone", metavar="Z", help="As in Asia/Seoul.")] = None,
    if_busy: IfBusyOption = "queue",
    agent: AgentName = None,
) -> int:
    """Run an agent once and print its answer. The same --operation-id again goes on where it stopped."""

    asked = typed() if text == "-" else text

    async def start(rt: Runtime, name: str) -> Run:
        return await rt.start(
            name, asked, session=session, user=user, operation_id=operation_id, attachments=file or [],
            time_zone=time_zone, if_busy=if_busy,
        )  # fmt: skip

    return await drive(cli, app, start, model=model, agent=agent)


async def drive(
    cli: Cli, app: str, start: Callable[[Runtime, str], Awaitable[Run]], *, model: str | None, agent: str | None
) -> int:
    """Open the app's runtime, start (or find) a run, stay with it, print what it came to. Returns the exit code."""
    runtime, name = runtime_for(cli, app, model, agent)
    here = as_options(("--app", app), ("--model", model), ("--agent", agent))
    progress = Progress(cli) if cli.out.for_people and cli.out.is_terminal else None
    ended_by = stop_on_signals()
    accepted: Run | None = None
    try:
        async with runtime as rt:
            accepted = await start(rt, name)
            if progress is not None:
                say(f"run {accepted.id}, operation {accepted.operation_id}")
            try:
                standing = await follow(rt, accepted, progress)
            except asyncio.CancelledError:
                if progress is not None:
                    progress.end_line()
                    say(f"stopping: what is in flight gets {DRAIN:g} s to end")
                raise
            if progress is not None:
                progress.end_line()
            match standing:
                case NoDriver(why=why):
                    return _detach(cli, accepted, why, here)
                case Behind(run=ahead):
                    return await _say_behind(cli, rt, accepted, ahead)
            return await _say_end(cli, rt, accepted, progress, here)
    except asyncio.CancelledError:
        _say_detached(cli, accepted, here)
        if not ended_by:
            raise
        return 128 + ended_by[0]  # as shells say it
    except OndolError:  # the server, or the store, is out of reach
        if accepted is not None and accepted.status not in AT_REST:
            _say_detached(cli, accepted, here)
        raise


def runtime_for(cli: Cli, app: str, model: str | None, agent: str | None) -> tuple[Runtime, str]:
    """The server that was named, else the runtime of the app, in this process; and the name of its agent."""
    if cli.server is not None:
        return _there(cli.server, app, model, agent)
    loaded = load(app, agent)
    if model is not None:
        loaded = loaded.with_model(model)
    runtime = loaded.runtime(cli.named_db)
    cli.works_on(runtime._store)
    return runtime, loaded.agent.name


def _there(server: str, app: str, model: str | None, agent: str | None) -> tuple[Runtime, str]:
    """What stands behind the last ``:`` of the app is the name of one of its agents."""
    if model is not None:
        raise InvalidInput("--model goes with an app that runs here: the server has its own")
    from ondol import AsyncClient

    return cast(Runtime, AsyncClient(server)), agent or app.rpartition(":")[2]


def as_options(*given: tuple[str, str | None]) -> list[str]:
    """The options that were given, for a command that is to be copied."""
    return [word for name, value in given if value is not None for word in (name, value)]


def stop_on_signals() -> list[int]:
    """SIGTERM, and a terminal that is closed (SIGHUP), stop as Ctrl-C does: what is in flight may end, and runs are
    given back, which does not count as a crash."""
    task, seen = asyncio.current_task(), list[int]()

    def stop(number: int) -> None:
        if task is not None and not task.cancelling():  # it may come once more from whoever only passes it on
            seen.append(number)
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # (nohup)
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return seen


async def _say_end(cli: Cli, rt: Runtime, run: Run, progress: Progress | None, here: Sequence[str]) -> int:
    try:
        result = await run.result()
    except RunWaiting as waiting:
        asks, code = await say_waiting(cli, rt, waiting)
        _print(cli, run, run_body(run) | {"asks": [ask_body(a) for a in asks]})
        return code
    except OndolError as error:
        _print(cli, run, run_body(run))
        say_failed(error)
        if isinstance(error, RunFailed) and error.retryable:
            say(f"  go on: {cli.command('runs', 'resume', run.id, *here)}")
        for ask in await rt.asks(run=run.id):
            say_ask(cli, ask)
        return codes.of_error(error)
    match cli.out.format:
        case "json" | "jsonl":
            cli.out.line(result.body)
        case "ids":
            cli.out.line(run.id)
        case _ if progress is None:
            cli.out.line(result.text)
        case _:
            if progress.said != result.text:
                cli.out.stream(result.text + "\n")
            if result.replayed:
                say(f"(operation {run.operation_id} was completed before: this is its stored answer)")
    say_cut_off(result)
    return codes.OK


def say_cut_off(result: RunResult) -> None:
    if result.stop:
        say(f"(the answer is not complete: the model stopped with {result.stop!r})")


def _print(cli: Cli, run: Run, body: Mapping[str, Any]) -> None:
    """For programs, what a run came to that has no answer."""
    if not cli.out.for_people:
        cli.out.bodies([(run.id, body)], one=True)


def _detach(cli: Cli, run: Run, why: str, here: Sequence[str]) -> int:
    """It is accepted, but another process drives the store and lacks the agent: nobody waits for ever."""
    if cli.out.for_people:
        cli.out.line(run.id)
    else:
        _print(cli, run, run_body(run))
    say(f"run {run.id} is accepted and stays queued: another process drives this store, and {why}")
    say(f"  go on when that one has ended: {cli.command('runs', 'resume', run.id, *here)}")
    return codes.OK


async def _say_behind(cli: Cli, rt: Runtime, run: Run, ahead: Run) -> int:
    asks = await rt.asks(run=ahead.id)
    _print(cli, run, run_body(run) | {"behind": ahead.id, "asks": [ask_body(a) for a in asks]})
    say(f"waiting [queued]: run {run.id} is queued behind run {ahead.id}, which waits for a person")
    for ask in asks:
        say_ask(cli, ask)
    return waiting_code(asks)


def _say_detached(cli: Cli, run: Run | None, here: Sequence[str]) -> None:
    if run is None:
        say("stopped before anything was accepted")
        return
    say(f"detached from run {run.id}, which is not lost")
    say(f"  go on:   {cli.command('runs', 'resume', run.id, *here)}")
    say(f"  give up: {cli.command('runs', 'cancel', run.id)}")
