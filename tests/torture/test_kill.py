"""The process is killed with ``kill -9`` at each named point of docs/guarantees.md, and perhaps once more afterwards.

The first seeds are the points of the table, during a model call, during a tool and inside a commit, each with each kind
of effect that has such a point. Those behind them are killed at such a point and then again while the next process
takes it up; the last ones at every write of every scenario.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import behind
import pytest
from crash import invariants
from crash.aftermath import LATER, is_taken_up
from crash.counting import every_place
from crash.scenarios import KINDS, World

from ondol import effects
from ondol.testing import Downstream, FaultPlan, kill
from ondol.testing.faults import When
from torture.campaign import Family, Place, on_stores


@dataclass(frozen=True)
class Inside:
    """So many changes of a file after that point, and so many instants of the talk with a server of PostgreSQL.

    Each round trip is two instants. A process that has fewer of them in its commit is not killed, and that is noticed.
    """

    point: str
    sqlite: int
    postgresql: int
    on_postgresql: str = ""  # another point

    def on(self, db: str) -> tuple[str, int]:
        """The point on that store, and how many behind it."""
        if behind.file_of(db) is not None:
            return self.point, self.sqlite
        return self.on_postgresql or self.point, self.postgresql


POINTS: dict[str, str | Inside] = {  # where a process dies: a point of a plan, or inside a commit
    "B0, before T0": "accept.before",
    "B1, T0 in flight": Inside("accept.before", 3, 4),
    "B2, T0 durable": "accept.after",
    "B3, claimed": "claim.after",
    "B4, the model is called": "model.before",
    "B5, answered and not recorded": "answer.before",
    "B6, planned": "answer.after",
    "B7, not started": "started.before",
    "B8, started": "started.after",
    "B9, its outcome is durable": "outcome.after",
    "B10, suspending": Inside("suspend.before", 2, 3),
    "B11, decided": "decide.after",
    "B12, T8 in flight": Inside("commit.before", 2, 2),
    "B13, T8 durable": "commit.after",
    "B14, told and not recorded": "delivered.before",
    "during a model call": "model.delta",
    "during a tool": "tool.after",
    "inside a commit": Inside("commit.before", 7, 2, on_postgresql="accept.before"),
}
NOT_OF = {"no_tool": ("B7", "B8", "B9", "during a tool"), "read": ("B7", "B8")}  # they have no such point
CELLS = [(point, kind) for point in POINTS for kind in KINDS if not point.startswith(NOT_OF.get(kind, "-"))]
_OF_POINT = [[cell for cell in CELLS if cell[0] == point] for point in POINTS]
EACH_POINT = [cells[n % len(cells)] for n, cells in enumerate(_OF_POINT)]  # of all kinds
AGAIN = (  # where the one that takes it up dies, or else as it closes
    "claim.after", "note_down.after", "answer.after", "started.after", "tool.after", "outcome.before", "commit.before",
)  # fmt: skip
PAIRS = [(cell, second) for cell in CELLS for second in AGAIN]
random.Random(0).shuffle(PAIRS)  # the first of them are of all kinds
WRITES = 600  # places in all scenarios, and some to spare: what is over is tried twice


class App:
    """A process of its own that does what the clients of scenarios do, each in a child."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        assert self._line() == "ready"

    def starts(self, db: str, world: World, name: str, plan: FaultPlan, **order: Any) -> int:
        """Returns the child's process id, or that of the first of those that are ``at_once``."""
        order |= {"scenario": name, "db": db, "url": world.url, "case": world.case, "log": str(world.log)}
        order |= {"plan": plan.to_json(), "listens": world.listens}
        print(json.dumps(order), file=self._to, flush=True)
        first, *_ = [int(self._line()) for _ in range(order.get("at_once", 1))]
        return first

    def ended(self) -> int:
        """The child's exit code, when it has one: -9 if it was killed."""
        return int(self._line())

    def stopped(self) -> bool:
        """True once the child stands still; False if it came to its end."""
        line = self._line()
        assert line in ("stopped", "0"), f"it ended with {line}"
        return line == "stopped"

    def _line(self) -> str:
        return self._from.readline().rstrip()


@functools.cache
def app() -> App:
    """It ends with this process."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "crash.app"]
    process = subprocess.Popen(command, cwd=tests, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return App(process)


@dataclass(frozen=True)
class Killed:
    """What a process that is killed has to do with."""

    place: Place
    downstream: Downstream
    name: str

    @property
    def db(self) -> str:
        return self.place.db

    @functools.cached_property
    def world(self) -> World:
        return World(self.downstream.url, self.place.name, self.place.folder / "client.jsonl", listens=True)

    def dies(self, at: str | Inside, later: float = 0) -> bool:
        """False if it came to its end without passing that point. One that takes it up ``later`` dies at its end."""
        plan, inside = FaultPlan(), None
        if isinstance(at, Inside):
            inside = at.on(self.db)
        else:
            plan.at(at, fault=kill())
        if later:
            plan.at("close.before", fault=kill())
        app().starts(self.db, self.world, self.name, plan, inside=inside, later=later)
        code = app().ended()
        assert code in (0, -9), f"it ended with {code}"
        behind.lose_the_dead(self.db)
        return code == -9

    async def is_taken_up(self, times: int = 1) -> None:
        await is_taken_up(self.db, self.world, self.name, self.downstream, times * LATER)


async def at_cell(point: str, kind: str, place: Place) -> Killed:
    """It was killed there."""
    name = f"{kind}_after_a_question" if point.startswith(("B10", "B11")) else kind
    killed = Killed(place, await place.downstream(), name)
    assert killed.dies(POINTS[point]), f"{kind}: {point} was not passed, but {killed.world.events('writes')}"
    return killed


async def case(seed: int, place: Place) -> None:
    if seed < len(CELLS):
        await (await at_cell(*CELLS[seed], place)).is_taken_up()
        return
    seed -= len(CELLS)
    if seed < len(PAIRS):
        cell, second = PAIRS[seed]
        killed = await at_cell(*cell, place)
        assert killed.dies(second, later=LATER.total_seconds())
        await killed.is_taken_up(2)
        return
    assert len(every_place()) <= WRITES, f"of {len(every_place())} places not each is tried"
    name, at = every_place()[(seed - len(PAIRS)) % len(every_place())]
    killed = Killed(place, await place.downstream(), name)
    app().starts(killed.db, killed.world, name, at.plan(kill()))
    died = app().ended() == -9
    behind.lose_the_dead(killed.db)
    assert died or not at.must_come, f"{at} was not passed, but {killed.world.events('writes')}"
    await killed.is_taken_up()


async def control(seed: int, place: Place) -> None:
    """A lost write is made again, though nobody said that it did not happen."""
    killed = await at_cell("during a tool", "once_without_check", place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effects, "_lost", lambda effect, rules, now: effects.Run(after=effect.deadline))
        await killed.is_taken_up()


FAMILY = Family(
    case=case, control=control, cases=len(CELLS) + len(PAIRS) + WRITES, tries=1, stores=("sqlite", "postgresql")
)


@pytest.mark.both_stores
async def test_a_message_that_was_told_as_its_process_died_is_told_again_with_its_id(place: Place) -> None:
    killed = await at_cell("B14, told and not recorded", "idempotent", place)
    (message,) = invariants.written(killed.db).outbox.values()
    assert message.state == "pending"
    assert [line["message"] for line in killed.world.events("heard")] == [message.id]
    await killed.is_taken_up()
    assert [line["message"] for line in killed.world.events("heard")].count(message.id) == 2


@on_stores(["point", "kind"], CELLS, EACH_POINT)
async def test_a_kill_at_any_named_point_loses_nothing_and_repeats_nothing(point: str, kind: str, place: Place) -> None:
    await (await at_cell(point, kind, place)).is_taken_up()


@pytest.mark.parametrize("store_kind", ["postgresql"])
@pytest.mark.parametrize(("sent", "state"), [(False, "running"), (True, "completed")])
async def test_a_commit_that_reached_the_server_is_done_though_its_sender_is_dead(
    sent: bool, state: str, place: Place
) -> None:
    in_flight = POINTS["B12, T8 in flight"]
    assert isinstance(in_flight, Inside)
    killed = Killed(place, await place.downstream(), "idempotent")
    assert killed.dies(replace(in_flight, postgresql=in_flight.postgresql - (not sent)))
    assert [run.state for run in invariants.written(killed.db).runs.values()] == [state]
    await killed.is_taken_up()


@on_stores("seed", range(len(CELLS), len(CELLS) + 40), range(len(CELLS) + 40, len(CELLS) + 44))
async def test_a_second_kill_while_it_is_taken_up_changes_nothing_of_that(seed: int, place: Place) -> None:
    await case(seed, place)


async def test_a_letter_that_is_sent_twice_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)


@pytest.mark.parametrize("held", ["before", "after"])
@pytest.mark.parametrize("name", ["read", "idempotent", "once_with_check", "once_without_check", "parallel"])
async def test_a_kill_while_a_request_is_under_way_downstream(name: str, held: When, place: Place) -> None:
    """What was sent arrives though its sender is dead, perhaps only after that."""
    downstream = await place.downstream()
    killed = Killed(place, downstream, name)
    await downstream.hold(held)  # type: ignore[arg-type]
    child = app().starts(killed.db, killed.world, name, FaultPlan())
    await downstream.wait_for_held()
    os.kill(child, signal.SIGKILL)
    assert app().ended() == -9
    behind.lose_the_dead(killed.db)
    happened = await downstream.count()
    await downstream.release()
    await downstream.wait_for(happened + (held == "before"))
    await killed.is_taken_up()
