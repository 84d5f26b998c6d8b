"""What does a run do next? The rule, over states that are built by hand from entries."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

import pytest

from ondol import events, journal, lifecycle
from ondol.effects import Rules, Run
from ondol.errors import ModelErrorKind
from ondol.events import ContextBuilt, EffectPlanned, EffectStarted, EffectSucceeded, EffectUnknown, ModelCompleted
from ondol.lifecycle import Advance, BuildContext, CallModel, Commit, End, Settle, Suspend, Wait
from ondol.limits import Bounds, Limits

RULES = {"read": Rules(), "once": Rules(), "idem": Rules(key_ttl=timedelta(hours=1))}
BUILT = ContextBuilt(step=1, hash="h", clock=1, definition="d")


def state(*entries: events.Entry) -> journal.State:
    accepted = events.RunAccepted(agent="a", session="s", trigger="api")
    return journal.fold([journal.Batch(1, 1, 1, (accepted, events.RunStarted(), *entries))])


def action(of: journal.State, busy=frozenset(), now=10, **limits):
    return lifecycle.next_action(of, RULES, busy=busy, now=now, bounds=Bounds(Limits(**limits)))


def planned(call: int, tool: str, kind="once", ask=None):
    return EffectPlanned(call=call, tool=tool, effect=kind, ask=ask)


def test_a_new_run_builds_its_context_then_asks_the_model_then_commits():
    assert action(state()) == BuildContext()
    assert action(state(BUILT)) == CallModel()
    assert action(state(BUILT, ModelCompleted(step=1, message=2))) == Commit()


def test_a_call_is_worked_on_before_the_model_is_asked_again():
    called = state(BUILT, ModelCompleted(step=1, message=2), planned(0, "once"))
    assert action(called) == Advance(((0, Run()),))
    assert action(called, busy={0}) == Wait()


def test_the_model_is_asked_again_only_when_every_call_has_an_outcome():
    entries = [BUILT, ModelCompleted(step=1, message=2), planned(0, "read", "read"), planned(1, "once", ask="a")]
    entries.append(EffectSucceeded(call=0))
    assert action(state(*entries)) == Suspend()
    entries.append(events.AskDecided(ask="a", decision="deny", by="kim", door="python", call=1))
    assert action(state(*entries)) == BuildContext()


def test_a_run_with_an_unknown_effect_suspends_and_holds_planned_once_siblings():
    entries = [
        BUILT,
        ModelCompleted(step=1, message=2),
        planned(0, "once"),
        planned(1, "once"),
        planned(2, "read", "read"),
    ]
    entries += [EffectStarted(call=0, attempt=1, deadline=5), EffectUnknown(call=0, ask="u")]
    assert action(state(*entries)) == Advance(((2, Run()),))
    assert action(state(*entries, EffectSucceeded(call=2))) == Suspend()


def test_a_lost_call_is_written_down_before_a_planned_sibling_may_start():
    entries = [BUILT, ModelCompleted(step=1, message=2), planned(0, "once"), planned(1, "once")]
    entries.append(EffectStarted(call=0, attempt=1, deadline=5))
    first = action(state(*entries))
    assert isinstance(first, Settle)
    assert [call for call, _ in first.work] == [0]


def test_a_cancel_comes_before_everything_once_nothing_is_in_flight():
    cancelled = state(
        BUILT, ModelCompleted(step=1, message=2), planned(0, "once"), events.RunCancelling(by="k", door="d")
    )
    assert action(cancelled, busy={0}) == Wait()
    assert action(cancelled) == End("cancelled")


def test_a_failed_model_call_waits_for_its_time_and_is_asked_again():
    failed = events.StepFailed(step=1, attempt=1, error="server", message="500", retry_at=99)
    assert action(state(BUILT, failed)) == CallModel(after=99)
    assert state(BUILT, failed).attempt == 2


def test_the_model_that_takes_over_is_asked_at_once_and_for_the_rest_of_the_run():
    failed = events.StepFailed(step=1, attempt=4, error="server", message="500", fallback=1)
    asked = state(BUILT, failed)
    assert action(asked) == CallModel(after=0)
    assert (asked.candidate, asked.attempt, asked.model_error) == (1, 1, None)
    answered = [ModelCompleted(step=1, message=2), planned(0, "read", "read"), EffectSucceeded(call=0)]
    assert state(BUILT, failed, *answered).candidate == 1


def test_a_changed_definition_and_a_retried_run_begin_with_the_first_model():
    entries = [BUILT, events.StepFailed(step=1, attempt=1, error="quota", message="no", fallback=1)]
    same, other = BUILT, ContextBuilt(step=1, hash="h", clock=1, definition="another")
    assert state(*entries, same).candidate == 1
    assert (state(*entries, other).candidate, state(*entries, other).attempt) == (0, 1)
    gave_up = events.StepFailed(step=1, attempt=1, error="quota", message="no")
    assert state(*entries, gave_up, events.RunQueued(why="retried")).candidate == 0
    assert state(*entries, events.RunQueued(why="recovered")).candidate == 1


def test_another_model_takes_over_where_one_is_down_and_never_where_the_request_is_refused():
    takes_over = {k: lifecycle.fallback(k, 0, 3) for k in get_args(ModelErrorKind)}
    down = ("rate_limited", "overloaded", "unavailable", "server", "timeout", "connection", "quota", "auth")
    assert {k for k, v in takes_over.items() if v is not None} == set(down)
    assert [lifecycle.fallback("server", n, 3) for n in range(3)] == [1, 2, None]


@pytest.mark.parametrize(
    ("kind", "retryable"), [("server", True), ("quota", True), ("auth", True), ("rejected", False)]
)
def test_a_model_that_gave_up_ends_the_run_retryable_where_trying_later_may_help(kind, retryable):
    gave_up = events.StepFailed(step=1, attempt=4, error=kind, message="no")
    ended = action(state(BUILT, gave_up))
    assert isinstance(ended, End)
    assert (ended.status, ended.code, ended.retryable) == ("failed", f"model_{kind}", retryable)


def test_the_limit_of_steps_ends_the_run_and_names_the_knob():
    entries = [BUILT, ModelCompleted(step=1, message=2), planned(0, "read", "read"), EffectSucceeded(call=0)]
    ended = action(state(*entries), steps=1)
    assert isinstance(ended, End)
    assert ended.retryable
    assert "Limits(steps=" in ended.message


def test_giving_up_on_an_unknown_effect_ends_the_run():
    entries = [
        BUILT,
        ModelCompleted(step=1, message=2),
        planned(0, "once"),
        EffectStarted(call=0, attempt=1, deadline=5),
    ]
    entries += [EffectUnknown(call=0, ask="u"), events.EffectResolved(call=0, outcome="give_up")]
    ended = action(state(*entries))
    assert isinstance(ended, End)
    assert ended.code == "unknown_effect"


def test_only_safe_kinds_of_model_errors_are_tried_again():
    again = {k: lifecycle.retry_delay(k, 1, None, "r") is not None for k in
             ("rate_limited", "overloaded", "unavailable", "server", "timeout", "connection",
              "quota", "context_overflow", "auth", "rejected", "content_filter")}  # fmt: skip
    assert [k for k, v in again.items() if v] == list(again)[:6]


def test_the_wait_grows_with_each_attempt_is_the_same_for_the_same_run_and_ends():
    waits = [lifecycle.retry_delay("server", n, None, "r_1") for n in range(1, lifecycle.MAX_MODEL_ATTEMPTS)]
    assert waits == sorted(waits)
    assert (
        waits[0] == lifecycle.retry_delay("server", 1, None, "r_1") != lifecycle.retry_delay("server", 1, None, "r_2")
    )
    assert lifecycle.retry_delay("server", lifecycle.MAX_MODEL_ATTEMPTS, None, "r_1") is None


def test_a_provider_that_says_when_is_believed_within_reason():
    assert lifecycle.retry_delay("rate_limited", 1, 7.0, "r") == 7.0
    assert lifecycle.retry_delay("rate_limited", 1, 3600.0, "r") is None


# --- tools of steps ---------------------------------------------------------------------------------------------

STEPS = {**RULES, "task": Rules(effect="steps")}


def task(*entries: events.Entry) -> journal.State:
    """A tool of steps (call 0) beside a planned ``once`` call (1), after these entries."""
    called = [BUILT, ModelCompleted(step=1, message=2), planned(0, "task", "steps"), planned(1, "once")]
    return state(*called, *entries)


def step(call: int, place: int, kind="idempotent", ask=None):
    return EffectPlanned(call=call, tool="step", effect=kind, ask=ask, parent=0, place=place)


def next_of(of: journal.State, busy=frozenset(), tools=STEPS, **options):
    return lifecycle.next_action(of, tools, busy=busy, now=10, bounds=Bounds(), **options)


def test_a_tool_of_steps_is_entered_again_for_what_it_had_begun():
    assert next_of(task()) == Advance(((0, Run()), (1, Run())))
    begun = task(step(2, 0), EffectStarted(call=2, attempt=1, deadline=5), EffectSucceeded(call=2), step(3, 1))
    assert next_of(begun) == Advance(((0, Run()), (1, Run())))
    assert next_of(begun, busy={0, 1}) == Wait()  # nobody but its body works on a step


def test_a_step_that_was_lost_holds_planned_once_siblings_until_its_body_has_looked():
    lost = task(step(2, 0), EffectStarted(call=2, attempt=1, deadline=5))
    assert next_of(lost) == Advance(((0, Run()),))
    assert next_of(lost, busy={0}) == Advance(((1, Run()),))  # it is in flight, and not lost


@pytest.mark.parametrize(
    "waits",
    [
        [step(2, 0, ask="a")],
        [step(2, 0), EffectStarted(call=2, attempt=1, deadline=5), EffectUnknown(call=2, ask="u")],
        [events.AskOpened(ask="q", ask_kind="question", call=0, place=0, hash="h")],
    ],
    ids=["approval", "unknown", "question"],
)
def test_a_tool_of_steps_that_waits_for_a_person_is_held(waits):
    assert next_of(task(EffectSucceeded(call=1), *waits)) == Suspend()


def test_an_answer_and_a_default_let_a_tool_of_steps_go_on_and_neither_ends_the_run():
    opened = [EffectSucceeded(call=1), events.AskOpened(ask="q", ask_kind="question", call=0, place=0, hash="h")]
    answered = events.AskDecided(ask="q", decision="answer", by="kim", door="d", call=0, value=False)
    for outcome in (answered, events.AskExpired(ask="q", value=False)):
        after = task(*opened, outcome)
        assert next_of(after) == Advance(((0, Run()),))
        assert [(s.has_outcome, s.value) for s in after.steps(0) if isinstance(s, journal.Question)] == [(True, False)]
    nobody = task(*opened, events.AskExpired(ask="q", unanswered=True))
    assert next_of(nobody, busy={1}) == Wait()
    assert next_of(nobody) == End("expired")


def test_code_that_does_not_fit_parks_the_run_once_nothing_else_can_be_done():
    assert next_of(task(step(2, 0)), changed={0: "why"}) == Advance(((1, Run()),))
    assert next_of(task(step(2, 0), EffectSucceeded(call=1)), changed={0: "why"}) == lifecycle.Park("why")


def test_steps_of_a_tool_that_is_gone_are_settled_before_it():
    lost = task(EffectSucceeded(call=1), step(2, 0), EffectStarted(call=2, attempt=1, deadline=5))
    first = next_of(lost, tools=RULES)
    assert isinstance(first, Settle)
    assert [call for call, _ in first.work] == [2]
    assert isinstance(next_of(lost, tools=RULES, park_missing=True), lifecycle.Park)
