"""Family ``clock``: the clock of the machine is set, forwards or backwards, between any two steps of a run.

On PostgreSQL that is while its process has a lease, which other clocks measure. Whatever the clock shows then, the run
comes to rest in the time that it would take anyway: a few minutes that really pass. Nothing is done twice, nothing that
waits for a person expires because of the jump, and the model is told the time of its run as its zone has it, also on
the day on which that changes.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from ondol import clock
from torture import model
from torture.campaign import Family, Place
from torture.test_machine import Sent, World

HOUR, DAY, DECADE = timedelta(hours=1), timedelta(days=1), timedelta(days=3653)
JUMPS = (HOUR, -HOUR, DAY, -DAY, DECADE, -DECADE, 2 * HOUR, timedelta(minutes=4), timedelta(minutes=-4))
#: In Berlin the clock goes from 01:59 to 03:00, and from 02:59 to 02:00, half a minute after these.
STARTS = ("2026-01-01T00:00:00Z", "2026-03-29T00:59:30Z", "2026-10-25T00:59:30Z")
ZONES = (None, "Europe/Berlin", "Asia/Seoul")
WORK = ("talk", "look", "refund", "letter", "mail")
MOMENTS = 30  # more than a run has of them
PATIENCE = 20  # minutes that may really pass: five after a jump, one for each deadline of a lost attempt


async def case(seed: int, place: Place) -> None:
    chosen = random.Random(seed)
    jump, work = JUMPS[seed % len(JUMPS)], WORK[seed // len(JUMPS) % len(WORK)]
    moment, dies = chosen.randrange(MOMENTS), chosen.choice(("no", "no", "before", "after"))
    world = World(place.db, chosen)
    world.clock.set(chosen.choice(STARTS))
    zone = chosen.choice(ZONES)
    try:
        await world.opens()
        asking = world.operation([["pay"]], session="s2", time_zone=zone)
        await rests(world, asking, 0)
        assert world.now.runs[run_of(world, asking)].state == "waiting"
        working = world.operation([[work]] if work != "talk" else [], session="s1", time_zone=zone)
        await moves(world, moment)
        if dies == "before":
            await world.dies()
            await world.opens()
        world.clock.jump(jump)
        if dies == "no":
            await nothing_expires(world, asking)
        elif dies == "after":
            await world.dies()
            await world.opens()
        if world.now.operation(working.id) is None:  # its process died before it was accepted
            world.asks_for(world.again(working))
        since = world.clock.monotonic()
        await rests(world, working, PATIENCE)
        await is_told_what_happened(world, working, work, jump)
        if dies == "no" and world.clock.monotonic() < since + clock.JUMP.total_seconds():
            await nothing_expires(world, asking)
        done = world.now.runs[run_of(world, working)]
        assert done.state == "completed", f"{done}: the clock jumped by {jump}"
        wanted = [work] if work != "talk" else []
        assert [name for name, _ in {(line.tool, line.key) for line in world.ledger}] == wanted
        the_time_was_told(world, zone)
        await world.comes_to_rest()
    finally:
        await world.is_over()


async def control(seed: int, place: Place) -> None:
    """Nobody notices the jump."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock.Jumps, "pause", lambda jumps: 0.0)
        await case(seed, place)


FAMILY = Family(
    case=case, control=control, cases=200, sample=30, sample_postgres=9, tries=60, stores=("sqlite", "postgresql")
)


@FAMILY.sampled
async def test_a_clock_that_jumps_holds_nothing_up_and_lets_nothing_expire(seed: int, place: Place) -> None:
    await case(seed, place)


async def test_expiry_right_after_a_jump_is_noticed(place: Place) -> None:
    await FAMILY.notices(place)


# --- what happens -----------------------------------------------------------------------------------------------


def run_of(world: World, sent: Sent) -> str:
    run = world.now.operation(sent.id)
    assert run is not None, f"{sent} was not accepted"
    return run.id


async def moves(world: World, moments: int) -> None:
    """So many turns of the store, and answers of models and tools. Each is a moment at which the clock may jump."""
    for _ in range(moments):
        await world.goes_on(1)
        if not world.life.turns.queue:
            world.opens_all_gates()


async def rests(world: World, sent: Sent, minutes: int) -> None:
    """The run comes to rest while at most so many minutes really pass."""
    for half in range(2 * minutes + 1):
        while True:
            await world.goes_on(None)
            if not world.gates.open:
                break
            world.opens_all_gates()
        if world.now.runs[run_of(world, sent)].state in (*model.ENDED, "waiting", "parked"):
            return
        if half < 2 * minutes:
            world.clock.advance(30)
    raise AssertionError(f"{world.now.operation(sent.id)} is not at rest after {minutes} minutes")


async def nothing_expires(world: World, asking: Sent) -> None:
    """What waits for a person still does, whatever the clock shows."""
    (ask,) = (a for a in world.now.asks.values() if a.run == run_of(world, asking))
    world.life.engine.changed()
    await world.goes_on(None)
    assert world.now.asks[ask.id].state == "open", f"it is {world.now.asks[ask.id].state} because of a jump"


async def is_told_what_happened(world: World, sent: Sent, work: str, jump: timedelta) -> None:
    """A person says what nobody else can know: whether a letter went out before its process died, or a refund whose
    key may be too old by now."""
    run = run_of(world, sent)
    if world.now.runs[run].state == "waiting":
        assert work == "letter" or (work == "refund" and (jump >= DAY or jump < -clock.JUMP))
        (ask,) = world.now.open_asks(run)
        how = "happened" if world.ledger else "not_happened"
        world.asks_for(world.decision(ask.id, how, {}))
        await rests(world, sent, PATIENCE)


def the_time_was_told(world: World, zone: str | None) -> None:
    """Every request says an instant at which its run was accepted or went on, in the zone's time of then."""
    assert world.asked
    for request in world.asked:
        said = request.messages[0].text
        instants = [clock.from_micros(at) for at in world.accepted_at(request.run)]
        assert any(clock.shown(at, zone) in said for at in instants), f"{said!r} tells none of {instants}"


def test_the_starts_are_half_a_minute_before_the_clocks_change() -> None:
    for start, before, after in ((STARTS[1], "+01:00", "+02:00"), (STARTS[2], "+02:00", "+01:00")):
        at = datetime.fromisoformat(start).astimezone(UTC)
        assert before in clock.shown(at, "Europe/Berlin")
        assert after in clock.shown(at + timedelta(seconds=30), "Europe/Berlin")
