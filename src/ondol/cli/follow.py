"""How does a command stay with a run until it comes to rest, or until it is clear that nobody drives it?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from ondol.cli import codes
from ondol.cli.bystander import unserved
from ondol.cli.lines import of_effect, say_asks
from ondol.cli.output import say
from ondol.cli.surface import Cli
from ondol.errors import OndolError, RunWaiting
from ondol.events import Event
from ondol.handles import Ask, Run
from ondol.runtime import Runtime

_LOOK = 0.25  # seconds between looks at a run that is queued
_PATIENCE = 2.5  # seconds for a driver to take up a queued run; one that looked in passing is gone by then
_LAST_EVENTS = 5.0  # seconds for a watcher to read what was written before the run came to rest


@dataclass(frozen=True, slots=True)
class AtRest:
    """It ended, waits or is parked."""


@dataclass(frozen=True, slots=True)
class Behind:
    """It is queued behind a run that waits for a person."""

    run: Run


@dataclass(frozen=True, slots=True)
class NoDriver:
    """It does not go on: no process that runs has its agent (or that of the run before it)."""

    why: str


Standing: TypeAlias = AtRest | Behind | NoDriver


async def follow(rt: Runtime, run: Run, show: Callable[[Event], None] | None, after: str | None = None) -> Standing:
    """Stay until the run stands somewhere. ``show`` gets its events; leaving never cancels the run."""
    watching = None if show is None else asyncio.create_task(_watch(rt, run, show, after))
    resting = asyncio.create_task(_rest(run))
    tasks = {resting} if watching is None else {resting, watching}
    loop = asyncio.get_running_loop()
    alone_since: float | None = None
    try:
        while not (await asyncio.wait(tasks, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED))[0]:
            standing = await _stuck(rt, await rt.get_run(run.id))
            if isinstance(standing, Behind):
                return standing
            alone_since = None if standing is None else alone_since or loop.time()
            if standing is not None and alone_since is not None and loop.time() - alone_since >= _PATIENCE:
                return standing
        if watching is not None and not watching.done():
            await resting
            await asyncio.wait({watching}, timeout=_LAST_EVENTS)
        if watching is not None and watching.done():
            watching.result()  # the cursor may be of another run, the journal may be damaged
        await resting
        return AtRest()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(rt: Runtime, run: Run, show: Callable[[Event], None], after: str | None) -> None:
    async for event in run.events(after):
        show(event)
    joined = await rt.get_run(run.id)
    if joined.status == "joined" and joined.host is not None:
        together = False
        async for event in (await rt.get_run(joined.host)).events():
            together = together or run.id in event.data.get("steers", ())
            if together:
                show(event)


async def _rest(run: Run) -> None:
    with contextlib.suppress(OndolError):  # what it came to is asked for again
        await run.result()


async def _stuck(rt: Runtime, run: Run) -> Behind | NoDriver | None:
    """Why a run does not go on, if that needs somebody."""
    if run.status == "running" and (why := await unserved(rt, run)):
        return NoDriver(why)
    if run.status != "queued":
        return None
    ahead = await rt.runs(session=run.session, state="waiting")
    if ahead:
        return Behind(ahead[0])
    queued = await rt.runs(session=run.session, state="queued")
    first = min([*queued, run], key=lambda r: r._row.place)
    why = await unserved(rt, first)
    return None if why is None else NoDriver(why)


def waiting_code(asks: list[Ask]) -> int:
    return codes.UNKNOWN if any(a.kind == "unknown_effect" for a in asks) else codes.WAITING


async def say_waiting(cli: Cli, rt: Runtime, waiting: RunWaiting) -> tuple[list[Ask], int]:
    """Print what is asked and how to decide it; returns the asks and the exit code."""
    asks = await rt.asks(run=waiting.run)
    say_asks(cli, waiting, asks)
    return asks, waiting_code(asks)


class Progress:
    """A run's progress on a terminal: the text as it is said, one line for each effect.

    What is not stored (deltas) may overtake what is, so it waits for the start of its step; the whole answer comes
    with ``model.completed``, and what was not said of it by then is said after it.
    """

    def __init__(self, cli: Cli) -> None:
        self._out = cli.out
        self._since = datetime.now(UTC)
        self._started = self._completed = 0  # steps
        self._early: list[Event] = []
        self._in_text = False
        self.said = ""  # of the answer that was said last

    def __call__(self, event: Event) -> None:
        d = event.data
        match event.type:
            case "model.delta" if d["step"] > self._started:
                self._early.append(event)
            case "model.delta" if d["kind"] == "text" and d["step"] > self._completed:
                self._say(d["text"])
            case "message.snapshot" if d["step"] > self._started:
                self._early.append(event)
            case "message.snapshot" if d["step"] > self._completed and d["text"].startswith(self.said):
                self._say(d["text"].removeprefix(self.said))  # what was said before this watcher came
            case "model.started":
                self._started, self.said = d["step"], ""
                early, self._early = self._early, []
                for waiting in early:
                    self(waiting)
            case "model.completed":
                if event.at >= self._since:
                    self._say_rest(d.get("text", ""))
                self._completed = d["step"]
            case "step.failed" | "run.resumed" if self._completed < self._started:
                if self._in_text:
                    self.end_line()
                    say("(what was said is taken back: the model is asked again)")
                self.said = ""
            case "progress":
                fraction = "" if d.get("fraction") is None else f"{d['fraction']:.0%} "
                self._line(f"{d.get('tool', '')} {fraction}{d.get('note') or ''}".strip())
            case _:
                if (line := of_effect(event)) is not None:
                    self._line(line if event.at >= self._since else f"{line} (recorded before)")

    def _say(self, words: str) -> None:
        if words:
            self.said += words
            self._in_text = True
            self._out.stream(words)

    def _say_rest(self, whole: str) -> None:
        if not whole.startswith(self.said):
            self.end_line()
            self.said = ""
        self._say(whole.removeprefix(self.said))
        self.end_line()

    def _line(self, words: str) -> None:
        self.end_line()
        say(f"  {words}")

    def end_line(self) -> None:
        if self._in_text:
            self._out.line()
        self._in_text = False
