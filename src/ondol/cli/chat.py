"""``ondol chat``: a session with an agent, line by line, on a terminal or in a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from ondol import ids
from ondol.bodies import run_body
from ondol.cli import codes
from ondol.cli.follow import AtRest, Behind, NoDriver, Progress, follow, say_waiting, waiting_code
from ondol.cli.lines import say_ask
from ondol.cli.output import say, say_failed
from ondol.cli.run import (
    AgentName,
    AppName,
    IfBusyOption,
    Model,
    as_options,
    runtime_for,
    say_cut_off,
    stop_on_signals,
)
from ondol.cli.surface import Cli, verb
from ondol.errors import OndolError, RunCancelled, RunWaiting
from ondol.events import Event
from ondol.handles import Ask, Run, RunResult
from ondol.runtime import Runtime
from ondol.transactions import IfBusy

_STOPPED = "Ctrl-C in the chat"  # the reason that is kept with a turn that was stopped so


def add_to(app: typer.Typer) -> None:
    verb(app, "chat")(chat)


async def chat(
    cli: Cli,
    app: AppName,
    session: Annotated[str | None, typer.Option("--session", metavar="S", help="Go on in this session.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="U", help="Who you are.")] = None,
    if_busy: IfBusyOption = "queue",
    model: Model = None,
    time_zone: Annotated[str | None, typer.Option("--time-zone", metavar="Z", help="As in Asia/Seoul.")] = None,
    agent: AgentName = None,
) -> int:
    """Talk with an agent, a line a message. Each is sent at once; --if-busy says what that does to a turn under way.

    Ctrl-C stops the turn. Without one, or in a pipe, it leaves.
    """
    runtime, name = runtime_for(cli, app, model, agent)
    ended_by = stop_on_signals()
    try:
        async with runtime as rt:
            talk = Chat(cli, rt, name, session, user, if_busy, time_zone)
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, talk.ctrl_c)
            if talk.for_people:
                same = as_options(
                    ("--user", user), ("--model", model), ("--time-zone", time_zone), ("--agent", agent),
                    ("--if-busy", None if if_busy == "queue" else if_busy),
                )  # fmt: skip
                go_on = cli.command("chat", app, "--session", talk.session, *same)
                say(f"session {talk.session} (Ctrl-C stops a turn, Ctrl-D leaves; go on later: {go_on})")
            try:
                await talk.go_on()
            finally:
                talk.leave()
            return talk.code
    except asyncio.CancelledError:
        if ended_by:
            return 128 + ended_by[0]  # as shells say it
        raise


class Lines:
    """What comes in on standard input, line by line; None when nothing more will come."""

    def __init__(self) -> None:
        self._loop, self._lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()
        # Not through sys.stdin: a thread that waits in it at the end of the process makes Python abort.
        threading.Thread(target=self._read, args=(sys.stdin.fileno(),), daemon=True).start()

    def _read(self, file: int) -> None:
        left = b""
        with contextlib.suppress(RuntimeError):  # the loop is closed, nobody listens any more
            while chunk := os.read(file, 65536):
                *whole, left = (left + chunk).split(b"\n")
                for line in whole:
                    self._put(line)
            if left:
                self._put(left)
            self._loop.call_soon_threadsafe(self.end)

    def _put(self, line: bytes) -> None:
        said = line.decode(errors="replace").rstrip("\r")
        self._loop.call_soon_threadsafe(self._lines.put_nowait, said)

    def end(self) -> None:
        self._lines.put_nowait(None)

    async def next(self) -> str | None:
        return await self._lines.get()


class Chat:
    """One session, and the messages that were sent to it here."""

    def __init__(
        self, cli: Cli, rt: Runtime, agent: str, session: str | None, user: str | None, if_busy: IfBusy,
        time_zone: str | None,
    ) -> None:  # fmt: skip
        self.cli, self.rt, self.agent, self.user = cli, rt, agent, user
        self.if_busy: IfBusy = if_busy
        self.session = session or ids.session_of(ids.new_run_id(rt.clock.now()))
        self.time_zone = time_zone
        self.for_people = cli.out.for_people and cli.out.is_terminal
        self.interactive = self.for_people and sys.stdin.isatty()
        self._lines = Lines()
        self._sent: dict[str, Run] = {}  # all of them, by their runs
        self._staying: dict[str, asyncio.Task[None]] = {}
        self._told = set[tuple[str, str]]()  # which run is queued behind which
        self._over = asyncio.Event()  # nothing more will be said
        self._left = False  # by Ctrl-C
        self._stopping: set[asyncio.Task[None]] = set()
        self._codes: list[int] = []

    @property
    def code(self) -> int:
        """An unknown effect wins over a question, and that over a turn that failed."""
        if self._left:
            return codes.INTERRUPTED
        wins = [code for code in (codes.UNKNOWN, codes.WAITING) if code in self._codes]
        return next(iter([*wins, *filter(None, self._codes)]), self.cli.code)

    async def go_on(self) -> None:
        for ask in await self.rt.asks(session=self.session):  # of turns before this chat
            say_ask(self.cli, ask)
        self._prompt()
        while (line := await self._lines.next()) is not None:
            if line.strip():
                await self._send(line)
            else:
                self._prompt()
        self._over.set()
        while self._staying:
            await asyncio.wait(self._staying.values())
        await asyncio.gather(*self._stopping)

    def leave(self) -> None:
        """Show nothing any more. What goes on is not lost."""
        self._over.set()
        for staying in self._staying.values():
            staying.cancel()

    def ctrl_c(self) -> None:
        task = asyncio.get_running_loop().create_task(self._stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    # --- a message ----------------------------------------------------------------------------------------------

    async def _send(self, text: str) -> None:
        try:
            run = await self.rt.start(
                self.agent, text, session=self.session, user=self.user, if_busy=self.if_busy, trigger="chat",
                time_zone=self.time_zone,
            )  # fmt: skip
        except OndolError as error:
            self.cli.failed(error)
            self._prompt()
            return
        self._sent[run.id] = run
        if run.status == "joined" and self.for_people:
            say("(that is the answer)")
        if (ahead := run.waits_behind) is not None and ahead.state == "waiting":
            self._say_behind(run, ahead.run, ahead.asks)
        staying = asyncio.get_running_loop().create_task(self._stay(run))
        self._staying[run.id] = staying
        staying.add_done_callback(lambda done: self._stands(run.id, done))

    def _say_behind(self, run: Run, ahead: str, asks: Sequence[Ask]) -> None:
        if (run.id, ahead) in self._told:
            return
        self._told.add((run.id, ahead))
        say(f"waiting [queued]: your message is queued behind run {ahead}, which waits for a person")
        for ask in asks:
            say_ask(self.cli, ask)

    def _stands(self, run: str, done: asyncio.Task[None]) -> None:
        del self._staying[run]
        if not done.cancelled() and (error := done.exception()) is not None:
            self._codes.append(codes.of_error(error) if isinstance(error, OndolError) else codes.FAILED)
            say(f"run {run} is not followed any more: {error}")
        self._prompt()

    async def _stay(self, run: Run) -> None:
        """Show what happens to the message until its turn has ended, or only a person can move it and none is here."""
        progress = Progress(self.cli) if self.for_people else None
        seen: str | None = None

        def show(event: Event) -> None:
            nonlocal seen
            mine = event.id is None or event.id.startswith(f"{run.id}/")  # what a host does is shown with the host
            seen = event.id if mine and event.id is not None else seen
            if progress is not None and mine:
                progress(event)

        while True:
            standing = await follow(self.rt, run, show, seen)
            await run.refresh()
            if progress is not None:
                progress.end_line()
            if run.status == "joined" and run.host is not None:
                if run.host not in self._sent:
                    await self._stay(await self.rt.get_run(run.host))
                return
            match standing:
                case AtRest() if run.status in ("waiting", "parked"):
                    code = (await say_waiting(self.cli, self.rt, RunWaiting("", run=run.id, asks=())))[1]
                case AtRest():
                    await self._end(run, progress)
                    return
                case Behind(run=ahead):
                    asks = await self.rt.asks(run=ahead.id)
                    self._say_behind(run, ahead.id, asks)
                    code = waiting_code(asks)
                case NoDriver(why=why):
                    say(f"your message stays queued: another process drives this store, and {why}")
                    code = codes.OK
            if not await self._moves(run, seen):
                self._codes.append(code)
                return

    async def _moves(self, run: Run, seen: str | None) -> bool:
        """True when something happened to the run, False when nobody will say anything any more before."""

        async def happens() -> None:
            async for _ in run.events(seen, through_asks=True):
                return

        happening, over = asyncio.ensure_future(happens()), asyncio.ensure_future(self._over.wait())
        try:
            done, _ = await asyncio.wait({happening, over}, return_when=asyncio.FIRST_COMPLETED)
            return happening in done and over not in done
        finally:
            for task in (happening, over):
                task.cancel()

    # --- what it came to ----------------------------------------------------------------------------------------

    async def _end(self, run: Run, progress: Progress | None) -> None:
        try:
            result = await run.result()
        except OndolError as error:
            if not self.cli.out.for_people:
                self.cli.out.bodies([(run.id, run_body(run))], one=True)
            self._failed(run, error)
            left = await self.rt.asks(run=run.id)
            for ask in left:
                say_ask(self.cli, ask)
            if left:
                self._codes.append(waiting_code(left))
        else:
            self._answer(result, progress)

    def _answer(self, result: RunResult, progress: Progress | None) -> None:
        out = self.cli.out
        match out.format:
            case "json" | "jsonl":
                out.line(result.body)
            case "ids":
                out.line(result.run_id)
            case _ if progress is None:
                out.line(result.text)
            case _ if progress.said != result.text:
                out.stream(result.text + "\n")
        say_cut_off(result)

    def _failed(self, run: Run, error: OndolError) -> None:
        stored = run.error or {}
        if isinstance(error, RunCancelled) and stored.get("message") == _STOPPED:
            say("(stopped)")
        elif isinstance(error, RunCancelled) and stored.get("code") == "interrupted":
            say("(interrupted)")
        else:
            say_failed(error)
            self._codes.append(codes.of_error(error))

    # --- Ctrl-C -------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Stop the turn under way. Where there is none, or nobody to go on talking, leave; nothing of it goes on."""
        working = [r for r in self._sent.values() if r.id in self._staying and await self._is_working(r)]
        if self.interactive and working:
            await min(working, key=lambda r: r.status != "running").cancel(by=self.user, reason=_STOPPED)
            return
        self._left = True
        for run in working:
            await run.cancel(by=self.user, reason=_STOPPED)
        self._lines.end()

    async def _is_working(self, run: Run) -> bool:
        await run.refresh()
        ahead = run.waits_behind
        return run.status == "running" or (run.status == "queued" and (ahead is None or ahead.state != "waiting"))

    def _prompt(self) -> None:
        if self.interactive and not self._staying and not self._over.is_set():
            self.cli.out.stream("> ")
