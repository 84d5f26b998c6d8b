"""P1-P7 when the process stops dead at any write of the journal: before it, or after it was durable.

In one process: the runtime is abandoned where it stands, and its store is opened again by the next one.
"""

from __future__ import annotations

import pytest

from crash.aftermath import LATER, dies_again, is_taken_up
from crash.counting import Place, every_write, live
from crash.lives import Death
from crash.scenarios import SCENARIOS, World
from ondol.testing import Downstream
from ondol.testing.faults import When


@pytest.mark.parametrize(("name", "place"), every_write())
async def test_a_crash_at_any_write_loses_nothing_and_repeats_nothing(
    name: str, place: Place, db: str, world: World, shared_downstream: Downstream
) -> None:
    death = Death()
    plan = place.plan(death)
    died = await live(db, world, SCENARIOS[name], plan, death)
    assert died or not place.must_come, f"{place} was not passed, but {plan.passed}"
    await is_taken_up(db, world, name, shared_downstream)


@pytest.mark.parametrize(("name", "place"), every_write("after"))
async def test_a_second_crash_while_it_is_taken_up_changes_nothing_of_that(
    name: str, place: Place, db: str, world: World, shared_downstream: Downstream
) -> None:
    """All pairs of crashes would be twenty times as many: here each first one meets one second one."""
    death = Death()
    plan = place.plan(death)
    died = await live(db, world, SCENARIOS[name], plan, death)
    assert died or not place.must_come, f"{place} was not passed, but {plan.passed}"
    second = 2 + place.k % 5  # behind the claim, the call or the outcome of what the first crash cut off
    when: When = "before" if place.k % 2 else "after"
    await dies_again(db, world, name, second, when)
    await is_taken_up(db, world, name, shared_downstream, 2 * LATER)
