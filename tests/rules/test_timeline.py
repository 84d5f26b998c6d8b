"""A timeline shows where the time went: work to scale, waiting shortened, and a gap where a process died."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ondol.events import Event
from ondol.http.console.timeline import WIDTH, Row, timeline

START = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


def rows(*told: tuple[float, str, dict[str, Any]], now: float = 10_000) -> list[Row]:
    events = [
        Event(type=type, data=data, at=START + timedelta(seconds=at), id=f"r/{n}")
        for n, (at, type, data) in enumerate(told, 1)
    ]
    return timeline(events, START + timedelta(seconds=now))


ACCEPTED = (0, "run.accepted", {"agent": "a", "session": "s"})
STEP = (1, "step.started", {"step": 1})
ASKED = (1, "model.started", {"step": 1})
ANSWERED = (3, "model.completed", {"step": 1, "text": "hi", "input": 10, "output": 2})


def planned(at: float, kind: str = "once", ask: str | None = None) -> tuple[float, str, dict[str, Any]]:
    said = {"call": 0, "effect": "e_0", "tool": "send", "class": kind, "arguments": {}}
    return at, "effect.planned", said | ({"ask": ask} if ask else {})


def started(at: float, attempt: int = 1) -> tuple[float, str, dict[str, Any]]:
    return at, "effect.started", {"call": 0, "effect": "e_0", "attempt": attempt, "deadline": 0, "tool": "send"}


def summary(made: list[Row]) -> list[tuple[str, str, float | None]]:
    return [(r.kind, r.state, None if r.took is None else r.took.total_seconds()) for r in made]


def test_work_is_told_in_the_order_in_which_it_began() -> None:
    made = rows(
        ACCEPTED, (1, "run.started", {}), STEP, ASKED, ANSWERED, planned(3), started(4),
        (6, "effect.succeeded", {"call": 0, "effect": "e_0", "tool": "send", "result": "sent"}),
        (6, "run.completed", {"text": "done"}),
    )  # fmt: skip
    assert summary(made) == [("queued", "", 1), ("model", "", 2), ("tool", "succeeded", 2), ("end", "completed", 0)]
    assert made[1].data["text"] == "hi"
    assert made[2].data["result"] == "sent"


def test_a_crash_is_a_gap_from_the_last_that_is_known_to_the_next_process() -> None:
    made = rows(
        ACCEPTED, (1, "run.started", {}), STEP, ASKED, ANSWERED, planned(3), started(4),
        (60, "run.queued", {"why": "recovered", "deaths": 1}), (61, "run.resumed", {}),
        (61, "effect.unknown", {"call": 0, "effect": "e_0", "ask": "a", "tool": "send"}),
        (61, "run.waiting", {"asks": ["a"], "revision": 1}),
    )  # fmt: skip
    assert summary(made) == [
        ("queued", "", 1), ("model", "", 2), ("tool", "unknown", 0), ("gap", "", 56), ("queued", "", 1),
        ("waiting", "waiting", None),
    ]  # fmt: skip
    gap = next(r for r in made if r.kind == "gap")
    assert (gap.start, gap.end) == (START + timedelta(seconds=4), START + timedelta(seconds=60))
    assert gap.shortened


def test_what_a_dying_process_was_doing_is_cut_and_its_next_attempt_is_a_row_of_its_own() -> None:
    made = rows(
        ACCEPTED, (1, "run.started", {}), STEP, ASKED, (9, "run.queued", {"why": "recovered"}), (9, "run.resumed", {}),
        ASKED, ANSWERED, planned(10, "idempotent"), started(10), (20, "run.queued", {"why": "recovered"}),
        (21, "run.resumed", {}), started(21, 2),
        (22, "effect.succeeded", {"call": 0, "effect": "e_0", "tool": "send"}),
    )  # fmt: skip
    assert [r.state for r in made if r.kind == "model"] == ["cut", ""]
    assert [(r.state, r.data["attempt"]) for r in made if r.kind == "tool"] == [("cut", 1), ("succeeded", 2)]


def test_a_long_wait_leaves_room_for_the_work() -> None:
    day = 86_400
    made = rows(
        ACCEPTED, (0, "run.started", {}), (0, "step.started", {"step": 1}), (0, "model.started", {"step": 1}),
        (2, "model.completed", {"step": 1}), planned(2, ask="a"), (2, "run.waiting", {"asks": ["a"], "revision": 1}),
        (day, "ask.decided", {"ask": "a", "decision": "approve", "by": "lee", "door": "http", "call": 0}),
        (day, "run.queued", {"why": "decided"}), (day, "run.resumed", {}), started(day),
        (day + 2, "effect.succeeded", {"call": 0, "effect": "e_0", "tool": "send"}), (day + 2, "run.completed", {}),
    )  # fmt: skip
    model, tool, waited = (next(r for r in made if r.kind == k) for k in ("model", "tool", "waiting"))
    assert waited.shortened
    assert not model.shortened
    assert not tool.shortened
    assert model.width == tool.width > waited.width > 0
    assert (waited.took or timedelta()).total_seconds() == day - 2, "the words still say how long it was"
    assert all(0 <= r.x <= r.x + r.width <= WIDTH + 0.2 for r in made)


@pytest.mark.parametrize(
    ("outcome", "state"), [("happened", "succeeded"), ("not_happened", "approved"), ("give_up", "unknown")]
)
def test_a_call_that_a_person_gave_up_has_not_failed(outcome: str, state: str) -> None:
    made = rows(
        ACCEPTED, (1, "run.started", {}), STEP, ASKED, ANSWERED, planned(3), started(4),
        (6, "effect.unknown", {"call": 0, "effect": "e_0", "ask": "a", "tool": "send"}),
        (7, "effect.resolved", {"call": 0, "effect": "e_0", "outcome": outcome, "by": "kim"}),
    )  # fmt: skip
    assert (made[2].kind, made[2].state) == ("tool", state)


def test_a_call_that_was_asked_about_first_stands_where_it_started() -> None:
    made = rows(
        ACCEPTED, (1, "run.started", {}), STEP, ASKED, ANSWERED, planned(3, ask="a"),
        (3, "run.waiting", {"asks": ["a"], "revision": 1}), (9, "run.queued", {"why": "decided"}),
        (10, "run.resumed", {}), started(10),
    )  # fmt: skip
    assert [r.kind for r in made] == ["queued", "model", "waiting", "queued", "tool"]


def test_what_goes_on_is_drawn_until_now() -> None:
    made = rows(ACCEPTED, (1, "run.started", {}), STEP, ASKED, now=5)
    assert made[-1].end is None
    assert made[-1].x + made[-1].width == pytest.approx(WIDTH)
    assert rows() == []


def test_rows_keep_their_ids_while_the_run_goes_on() -> None:
    told = [ACCEPTED, (1, "run.started", {}), STEP, ASKED, ANSWERED, planned(3), started(4)]
    for n in range(1, len(told)):
        before, after = rows(*told[:n]), rows(*told)
        assert {r.id: r.title for r in before}.items() <= {r.id: r.title for r in after}.items()


@pytest.mark.parametrize("why", ["released", "retried"])
def test_a_process_that_hands_over_leaves_no_gap(why: str) -> None:
    made = rows(ACCEPTED, (1, "run.started", {}), STEP, ASKED, (2, "run.queued", {"why": why}), (3, "run.resumed", {}))
    assert [r.kind for r in made] == ["queued", "model", "queued"]
