"""P1-P7 when the process stops dead at any write of the journal: before it, or after it was durable.

In one process: the runtime is abandoned where it stands, and its file is opened again by the next one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from crash.aftermath import is_taken_up
from crash.counting import every_write, live
from crash.lives import Death
from crash.scenarios import SCENARIOS, World
from ondol.testing import Downstream, FaultPlan


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize(("name", "k", "when"), list(every_write()))


async def test_a_crash_at_any_write_loses_nothing_and_repeats_nothing(
    name: str, k: int, when: str, file: Path, world: World, shared_downstream: Downstream
) -> None:
    death = Death()
    plan = FaultPlan().at_write(k, when, death)  # type: ignore[arg-type]
    assert await live(file, world, SCENARIOS[name], plan, death), f"{plan.unreached} was not reached"
    await is_taken_up(file, world, name, shared_downstream)
