"""The process that is killed.

It imports all it needs, and then forks a child for each order that it reads: a child does what the client of a
scenario does, or takes that up some time ``later``, or is the ``load`` of that seed, or one of two that come to a run
``together``. It dies by SIGKILL where the order's plan of faults says, or ``inside`` a commit: from that point on
before the nth change of a file, or at the nth instant of its talk with a server. An order is one line of JSON, and so
is the answer: the child's process id at once, and its exit code as ``subprocess`` gives it when it has ended; of two
children first both ids, and then both codes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw

from crash import load, together
from crash.scenarios import NAMED, World, first_life, second_life, take_up
from ondol import Runtime
from ondol.clock import Clock, SystemClock
from ondol.stores import open_store, postgres_statements
from ondol.stores.postgres_wire import Wire
from ondol.testing import FaultPlan, FaultyStore, ManualClock
from ondol.transactions import Row, statements

HANGS = 60  # seconds, after which a child ends: whoever waits for it is told


class KillingDisk(apsw.VFS):
    """SQLite's own files; once told to, it kills this process before the ``nth`` change of one of them."""

    def __init__(self, nth: int, signal: int) -> None:
        super().__init__("killing-disk", "unix", makedefault=True)
        self.left, self.counting, self.signal = nth, False, signal

    def hit(self) -> None:
        self.counting = True

    async def ahit(self) -> None:
        self.hit()

    def change(self) -> None:
        self.left -= self.counting
        if self.counting and self.left == 0:
            os.kill(os.getpid(), self.signal)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: KillingDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.disk = disk
        read_only = flags[0] & apsw.SQLITE_OPEN_READONLY  # see faulty_disk
        given = [flags[0] & ~apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_READWRITE, 0] if read_only else flags
        super().__init__("unix", name, given)
        flags[1] = flags[1] or flags[0]

    def xWrite(self, data: bytes, offset: int) -> None:
        self.disk.change()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.disk.change()
        super().xSync(flags)


class KillingLine:
    """The way to a server of PostgreSQL; once told to, it kills this process at the ``nth`` instant.

    What a writer says of a run it says in round trips, and each has two instants: before anything is sent, and when all
    of it is sent and nothing of the answer was read. Housekeeping, which comes when it comes, has none.
    """

    def __init__(self, nth: int, signal: int) -> None:
        self.left, self.counting, self.signal = nth, False, signal
        receive, flush = Wire.receive, Wire._flush

        is_of_run: dict[Wire, bool] = {}

        def asked(wire: Wire) -> list[list[Row]]:
            is_of_run[wire] = any(name is not None and name.startswith("run.") for name, _ in wire._sent)
            if is_of_run[wire]:
                self.instant()
            return receive(wire)

        def flushed(wire: Wire) -> None:
            flush(wire)
            if is_of_run[wire]:
                self.instant()

        Wire.receive, Wire._flush = asked, flushed  # type: ignore[method-assign]

    def hit(self) -> None:
        self.counting = True

    async def ahit(self) -> None:
        self.hit()

    def instant(self) -> None:
        if self.counting and threading.current_thread().name.startswith("ondol-writer"):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.signal)


@dataclass(frozen=True)
class Over:
    """The fault: the commit is over. Who was to be killed inside of it, and was not, comes to its end."""

    killing: KillingDisk | KillingLine

    def hit(self) -> None:
        self.killing.counting = False

    async def ahit(self) -> None:
        self.hit()


@dataclass(frozen=True)
class SleptClock(SystemClock):
    """The machine's clock, for a process that stands still: for so many seconds as the file says, once it is there."""

    file: Path

    def _slept(self) -> float:
        return float(self.file.read_text()) if self.file.exists() else 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self._slept())

    def monotonic(self) -> float:
        return super().monotonic() + self._slept()


async def live(order: dict[str, Any], n: int) -> None:
    plan = FaultPlan.from_json(order["plan"])
    db = order["db"]
    world = World(order["url"], order["case"], Path(order["log"]), plan, order["listens"])
    if "load" in order:
        store = FaultyStore(open_store(db), plan)
        async with Runtime(store, agents=[load.agent(world)], deps=world) as rt:
            await load.clients(rt, world, order["load"])
        return
    if "together" in order:
        await _together(order, n, world, plan)
        return
    scenario = NAMED[order["scenario"]]
    if order.get("inside"):
        point, nth = order["inside"]
        kind = KillingDisk if db.startswith("sqlite:///") else KillingLine
        killing = kind(nth, order.get("signal", signal.SIGKILL))
        plan.at(point, fault=killing).at(point.replace(".before", ".after"), fault=Over(killing))
    own_clock = SleptClock(Path(order["slept"])) if "slept" in order else None

    def runtime(clock: Clock | None = own_clock) -> Runtime:
        store = FaultyStore(open_store(db), plan)
        return Runtime(store, agents=[scenario.agent(world)], deps=world, clock=clock, deliver=world.listener)

    if order.get("later"):
        async with runtime(ManualClock(datetime.now(UTC) + timedelta(seconds=order["later"]))) as rt:
            await take_up(rt, world, scenario)
        return
    async with runtime() as rt:
        await first_life(rt, world, scenario)
    if scenario.asks:
        async with runtime() as rt:
            await second_life(rt, world)
    world.note(event="writes", names=plan.writes)


async def _together(order: dict[str, Any], n: int, world: World, plan: FaultPlan) -> None:
    later = order.get("later")
    clock = ManualClock(datetime.now(UTC) + timedelta(seconds=later)) if later else None
    store = FaultyStore(open_store(order["db"]), plan)
    rt = Runtime(store, agents=[together.agent(world)], deps=world, clock=clock)
    if order["together"] is None:
        async with rt:
            await together.begin(rt, world, order["kind"])
    else:
        if order.get("unguarded"):
            _take_the_guard_of_a_claim_away()
        await together.go_on(rt, world, order["kind"], order["together"], Path(order["meets"]), n)


def _take_the_guard_of_a_claim_away() -> None:
    """Whoever claims a run has it, though another one drives it."""
    text = statements.STATEMENTS["run.claim"].replace("state = 'queued'", "state IN ('queued', 'running')")
    postgres_statements.TEXTS["run.claim"] = postgres_statements._numbered(text)  # type: ignore[index]


def fork(order: dict[str, Any], n: int = 0) -> int:
    """The process id of a child, which is the ``n``-th that does this."""
    child = os.fork()
    if not child:
        signal.alarm(HANGS)
        try:
            asyncio.run(live(order, n))
        except BaseException:  # a forked child must not come back into the loop that reads orders
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(child, flush=True)
    return child


def end_of(child: int) -> int:
    """Its exit code. Each time that it stands still before, that is said."""
    _, status = os.waitpid(child, os.WUNTRACED)
    while os.WIFSTOPPED(status):
        print("stopped", flush=True)
        _, status = os.waitpid(child, os.WUNTRACED)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        for child in [fork(order, n) for n in range(order.get("at_once", 1))]:
            print(end_of(child), flush=True)
