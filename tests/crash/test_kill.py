"""P1-P7 when the process is killed (SIGKILL) at any write of the journal: before it, or after it was durable."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crash.aftermath import is_taken_up
from crash.counting import every_write
from crash.scenarios import World
from ondol.testing import Downstream, FaultPlan, kill
from ondol.testing.faults import When

Order = Callable[[dict[str, Any]], int]


@pytest.fixture(scope="module")
def app() -> Iterator[Order]:
    """Gives an order to a process of its own, and returns how that ended."""
    tests = Path(__file__).parent.parent
    command = [sys.executable, "-m", "crash.app"]
    with subprocess.Popen(command, cwd=tests, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def order(what: dict[str, Any]) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps(what), file=process.stdin, flush=True)
            return int(process.stdout.readline())

        yield order
        process.stdin.close()


@pytest.mark.parametrize(("name", "k", "when"), every_write())
async def test_a_kill_at_any_write_loses_nothing_and_repeats_nothing(
    name: str, k: int, when: When, file: Path, world: World, shared_downstream: Downstream, app: Order
) -> None:
    plan = FaultPlan().at_write(k, when, kill())
    order = {"scenario": name, "file": str(file), "url": world.url, "case": world.case, "log": str(world.log)}
    assert app({**order, "plan": plan.to_json()}) == -9, f"it was not killed; its writes: {world.events('writes')}"
    await is_taken_up(file, world, name, shared_downstream)
