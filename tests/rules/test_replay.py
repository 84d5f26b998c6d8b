"""May a run be replayed? The rules, without any runtime."""

from __future__ import annotations

from typing import Any

import pytest

from ondol import lifecycle, replay
from ondol.clock import to_micros
from ondol.errors import InvalidInput
from ondol.records import EffectRow, RunRow
from ondol.replay import By, Family, Member
from ondol.testing import ManualClock

BEGAN = to_micros(ManualClock("2026-11-30T08:51:00Z").now())
SECOND = 1_000_000


def run(id: str = "r_1", state: str = "failed", **more: Any) -> RunRow:
    nothing = dict.fromkeys(RunRow._fields)
    return RunRow(**nothing | {"tenant": "t", "id": id, "state": state, "accepted_at": BEGAN} | more)


def effect(tool: str, kind: str, state: str, *, run: str = "r_1", attempt: int | None = None, **more: Any) -> EffectRow:
    nothing = dict.fromkeys(EffectRow._fields)
    started = state in ("succeeded", "failed", "started", "unknown") and kind != "read"
    given = {"tenant": "t", "run": run, "ordinal": 0, "tool": tool, "effect": kind, "state": state, "arguments": "{}"}
    return EffectRow(**nothing | given | {"attempt": int(started) if attempt is None else attempt} | more)


def family(*effects: EffectRow, of: RunRow | None = None, others: tuple[Member, ...] = (), **more: Any) -> Family:
    of = of or run()
    return Family(of, (Member(of, True, effects), *others), more.pop("input", "{}"), **more)


LOOKED = effect("find_order", "read", "succeeded")
SENT = effect("send_email", "once", "succeeded")


@pytest.mark.parametrize(
    "effects",
    [
        (),
        (LOOKED,),
        (effect("send_email", "once", "planned", attempt=0),),
        (effect("send_email", "once", "abandoned", attempt=0),),
        (effect("send_email", "once", "denied", attempt=0),),
        (effect("send_email", "once", "failed", attempt=0),),  # refused at once: never called
    ],
)
def test_a_family_that_started_no_write_is_safe(effects):
    assert replay.verdict(family(*effects)).kind == "safe"


@pytest.mark.parametrize(("of_it", "writes"), [((), 0), ((SENT,), 1)])
def test_what_a_run_may_have_done_after_a_backup_is_guarded_and_said(of_it, writes):
    doubted = Family(run(), (Member(run(), True, (LOOKED, *of_it), doubted=True),), "{}")
    found = replay.verdict(doubted)
    assert (found.kind, len(found.reasons)) == ("guarded", writes + 1)
    assert "nobody knows what run r_1 did" in found.reasons[-1]


@pytest.mark.parametrize("state", ["succeeded", "failed", "abandoned"])
def test_what_was_started_counts_and_not_what_it_answered(state):
    found = replay.verdict(family(LOOKED, effect("refund", "idempotent", state, attempt=1)))
    assert (found.kind, found.reasons) == ("guarded", ("1 write effect was started, all settled",))


@pytest.mark.parametrize("state", ["started", "unknown"])
def test_an_effect_that_nobody_settled_blocks_and_says_which(state):
    found = replay.verdict(family(SENT, effect("refund", "idempotent", state, ordinal=7)))
    assert found.kind == "blocked"
    assert "refund of run r_1 may have happened" in found.reasons[0]
    assert "ondol effects resolve e_1_7" in found.reasons[0]


@pytest.mark.parametrize("state", ["queued", "running", "waiting", "parked", "joined"])
def test_an_unfinished_run_blocks(state):
    assert state not in lifecycle.ENDED
    found = replay.verdict(family(of=run(state=state)))
    assert found.kind == "blocked"
    assert f"run r_1 is {state}: " in found.reasons[0]


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "expired"])
def test_an_ended_run_does_not_block(state):
    assert replay.verdict(family(of=run(state=state))).kind == "safe"


def test_an_unfinished_member_of_the_family_blocks():
    found = replay.verdict(family(others=(Member(run("r_2", "waiting"), True, ()),)))
    assert (found.kind, "run r_2 is waiting: decide its asks" in found.reasons[0]) == ("blocked", True)


def test_what_another_member_started_counts():
    theirs = effect("refund", "idempotent", "succeeded", run="r_2")
    found = replay.verdict(family(LOOKED, others=(Member(run("r_2"), True, (theirs, LOOKED)),)))
    assert found.kind == "guarded"
    assert [(e.run, e.tool) for e in found.effects] == [("r_1", "find_order"), ("r_2", "refund")]


def test_a_run_whose_input_was_erased_is_blocked():
    found = replay.verdict(family(input=None))
    assert (found.kind, found.reasons) == ("blocked", ("the input of run r_1 is gone: its session was deleted",))


def test_an_attachment_that_is_gone_blocks():
    found = replay.verdict(family(gone=("receipt.pdf",)))
    assert found.kind == "blocked"
    assert "'receipt.pdf'" in found.reasons[0]


@pytest.mark.parametrize(("did", "kind"), [(SENT, "blocked"), (LOOKED, "safe")])
def test_a_member_that_was_erased_blocks_only_if_it_had_started_a_write(did, kind):
    erased = Member(run("r_2"), False, (did._replace(run="r_2"),))
    assert replay.verdict(family(others=(erased,))).kind == kind


def test_a_verdict_prints_a_line_for_each_effect():
    found = replay.verdict(
        family(
            LOOKED,
            effect("refund", "idempotent", "succeeded", ended_at=BEGAN + 44 * SECOND),
            effect("send_email", "once", "succeeded", ended_at=BEGAN + 45 * SECOND),
        )
    )
    assert str(found) == (
        "verdict: guarded (2 write effects were started, all settled)\n"
        " find_order  read        free to repeat\n"
        " refund      idempotent  succeeded 08:51:44   an equal call gets this outcome, any other refund asks first\n"
        " send_email  once        succeeded 08:51:45   "
        "an equal call gets this outcome, any other send_email asks first"
    )


def test_times_are_those_of_the_runs_zone_with_the_day_where_that_is_another():
    later = effect("refund", "idempotent", "failed", run="r_2", ended_at=BEGAN + 86_400 * SECOND)
    found = replay.verdict(family(of=run(zone="Asia/Seoul"), others=(Member(run("r_2"), True, (later,)),)))
    assert str(found).splitlines()[1] == (
        " refund  idempotent  failed 2026-12-01 17:51:00   nothing happened, any refund asks first (run r_2)"
    )


def test_a_guarded_replay_needs_force_and_a_blocked_one_is_refused_with_it():
    guarded, blocked = replay.verdict(family(SENT)), replay.verdict(family(SENT, of=run(state="running")))
    assert "force" in (replay.needs(guarded, forced=False) or "")
    assert replay.needs(guarded, forced=True) is None
    assert replay.needs(replay.verdict(family()), forced=False) is None
    for forced in (True, False):
        assert "run r_1 is running" in (replay.needs(blocked, forced=forced) or "")


@pytest.mark.parametrize(("name", "why"), [("", "why"), ("lee", ""), ("lee", "  "), ("lee", 7)])
def test_who_forces_a_replay_gives_a_name_and_a_reason(name, why):
    with pytest.raises(InvalidInput):
        By(name, why)
