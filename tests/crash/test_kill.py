"""P1-P7 when the process is killed (SIGKILL) at any write of the journal: before it, or after it was durable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.aftermath import is_taken_up
from crash.counting import Place, every_write
from crash.scenarios import World
from ondol.testing import Downstream, FaultPlan, kill
from ondol.testing.faults import When


class App:
    """A process of its own that does what the clients of scenarios do, each in a child."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        assert self._line() == "ready"

    def starts(self, file: Path, world: World, name: str, plan: FaultPlan) -> int:
        """Returns the child's process id."""
        order = {"scenario": name, "file": str(file), "url": world.url, "case": world.case, "log": str(world.log)}
        print(json.dumps({**order, "plan": plan.to_json()}), file=self._to, flush=True)
        return int(self._line())

    def ended(self) -> int:
        """The child's exit code, when it has one: -9 if it was killed."""
        return int(self._line())

    def close(self) -> None:
        self._to.close()

    def _line(self) -> str:
        return self._from.readline().rstrip()


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    tests = Path(__file__).parent.parent
    command = [sys.executable, "-m", "crash.app"]
    with subprocess.Popen(command, cwd=tests, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        made = App(process)
        yield made
        made.close()


@pytest.mark.parametrize(("name", "place"), every_write())
async def test_a_kill_at_any_write_loses_nothing_and_repeats_nothing(
    name: str, place: Place, file: Path, world: World, shared_downstream: Downstream, app: App
) -> None:
    app.starts(file, world, name, place.plan(kill()))
    killed = app.ended() == -9
    assert killed or not place.must_come, f"{place} was not passed, but {world.events('writes')}"
    await is_taken_up(file, world, name, shared_downstream)


@pytest.mark.parametrize("held", ["before", "after"])
@pytest.mark.parametrize("name", ["read", "idempotent", "once_with_check", "once_without_check", "parallel"])
async def test_a_kill_while_a_request_is_under_way_downstream(
    name: str, held: When, file: Path, world: World, shared_downstream: Downstream, app: App
) -> None:
    """What was sent arrives though its sender is dead, perhaps only after that."""
    await shared_downstream.hold(held)  # type: ignore[arg-type]
    child = app.starts(file, world, name, FaultPlan())
    await shared_downstream.wait_for_held()
    os.kill(child, signal.SIGKILL)
    assert app.ended() == -9
    happened = await shared_downstream.count()
    await shared_downstream.release()
    await shared_downstream.wait_for(happened + (held == "before"))
    await is_taken_up(file, world, name, shared_downstream)
