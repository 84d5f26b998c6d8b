"""May this call run now? The rules, without any runtime."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ondol import effects
from ondol.effects import Check, Effect, Failed, Hold, OutcomeUnknown, Presume, Rules, Run

NOW = 1_000_000_000
TTL = Rules(key_ttl=timedelta(seconds=100))
CHECKED = Rules(has_check=True)


def effect(kind="once", state="planned", **more) -> Effect:
    return Effect(
        ordinal=0, step=1, tool="t", effect=kind, message=2, part=0, reply=3, state=state, **more
    )  # fmt: skip


def verdict(of: Effect, rules: Rules | None = Rules(), *, sibling_unknown=False, now=NOW):  # noqa: B008
    return effects.verdict(of, rules, sibling_unknown=sibling_unknown, now=now)


@pytest.mark.parametrize("kind", ["read", "idempotent", "once"])
@pytest.mark.parametrize("state", ["planned", "approved"])
def test_a_call_that_was_not_started_runs(kind, state):
    assert verdict(effect(kind, state)) == Run()


@pytest.mark.parametrize("state", ["asked", "unknown"])
def test_a_call_that_waits_for_a_person_is_held(state):
    assert verdict(effect(state=state)) == Hold()
    assert verdict(effect(state=state), None) == Hold()  # nothing is said about a tool that may come back meanwhile
    assert verdict(effect(state=state, doubted=True)) == Hold()  # its person is asked, and nothing taken for started


def test_only_a_call_that_may_have_been_made_after_a_backup_is_taken_for_started():
    assert verdict(effect(doubted=True)) == verdict(effect(doubted=True), None) == Presume()


@pytest.mark.parametrize(
    ("planned", "now", "runs"),
    [("read", "once", False), ("idempotent", "once", False), ("once", "idempotent", True), ("once", "read", True),
     ("steps", "once", False), ("steps", "read", False), ("read", "steps", False), ("once", "steps", False)],
)  # fmt: skip
def test_a_call_keeps_its_class_unless_its_tool_is_declared_stricter(planned, now, runs):
    said = verdict(effect(planned), Rules(effect=now))
    assert said == Run() if runs else isinstance(said, Failed)


def test_while_a_sibling_is_unknown_only_planned_once_calls_hold():
    assert verdict(effect("once"), sibling_unknown=True) == Hold()
    assert verdict(effect("read"), sibling_unknown=True) == Run()
    assert verdict(effect("idempotent"), TTL, sibling_unknown=True) == Run()


def test_a_started_once_call_without_a_check_is_unknown_at_once():
    assert isinstance(verdict(effect("once", "started", attempt=1, deadline=NOW + 5)), OutcomeUnknown)


def test_a_started_once_call_with_a_check_is_checked_after_the_deadline():
    assert verdict(effect("once", "started", attempt=1, deadline=NOW + 5), CHECKED) == Check(after=NOW + 5)


def test_a_started_idempotent_call_is_repeated_after_the_deadline():
    lost = effect("idempotent", "started", attempt=1, first_started=NOW, deadline=NOW + 5)
    assert verdict(lost, TTL) == Run(after=NOW + 5)


def test_an_idempotent_call_is_not_repeated_outside_its_key_ttl():
    lost = effect("idempotent", "started", attempt=1, first_started=NOW, deadline=NOW + 5)
    assert isinstance(verdict(lost, TTL, now=NOW + 100_000_000), OutcomeUnknown)


def test_the_key_must_still_be_valid_when_the_repeat_begins_not_now():
    lost = effect("idempotent", "started", attempt=1, first_started=NOW, deadline=NOW + 100_000_000)
    assert isinstance(verdict(lost, TTL), OutcomeUnknown)


def test_a_key_may_live_for_ever():
    lost = effect("idempotent", "started", attempt=1, first_started=NOW, deadline=NOW + 5)
    assert verdict(lost, Rules(effect="idempotent", key_ttl=timedelta.max)) == Run(after=NOW + 5)


def test_an_idempotent_call_whose_tool_is_declared_once_by_now_is_not_repeated_blindly():
    lost = effect("idempotent", "started", attempt=1, first_started=NOW, deadline=NOW + 5)
    assert isinstance(verdict(lost, Rules(effect="once")), OutcomeUnknown)
    assert verdict(lost, Rules(effect="once", has_check=True)) == Check(after=NOW + 5)
    again = effects.after_exception(lost, Rules(effect="once"), not_done=False, reason="boom", now=NOW)
    assert again == OutcomeUnknown("boom")  # also where the check allowed another attempt, and that raised
    strict = effect("once", "started", attempt=1, first_started=NOW, deadline=NOW + 5)
    assert isinstance(verdict(strict, Rules(effect="idempotent", key_ttl=timedelta(1))), OutcomeUnknown)


def test_after_three_attempts_nobody_repeats_an_idempotent_call():
    lost = effect("idempotent", "started", attempt=3, first_started=NOW, deadline=NOW + 5)
    assert isinstance(verdict(lost, TTL), OutcomeUnknown)


def test_a_persons_word_allows_further_attempts():
    lost = effect("idempotent", "started", attempt=4, granted=3, first_started=NOW, deadline=NOW + 5)
    assert verdict(lost, TTL) == Run(after=NOW + 5)


def test_a_planned_call_of_a_tool_that_is_gone_fails_and_a_started_one_is_unknown():
    assert isinstance(verdict(effect("once"), None), Failed)
    assert isinstance(verdict(effect("once", "started", attempt=1), None), OutcomeUnknown)


@pytest.mark.parametrize("kind", ["read", "idempotent", "once"])
def test_not_done_means_failed_for_every_class(kind):
    ended = effects.after_exception(effect(kind, "started", attempt=1), TTL, not_done=True, reason="no", now=NOW)
    assert ended == Failed("no")


def test_not_done_in_a_repeat_says_nothing_of_the_attempts_before_it():
    def after(kind, rules, **more):
        of = effect(kind, "started", first_started=NOW, **more)
        return effects.after_exception(of, rules, not_done=True, reason="no", now=NOW)

    assert after("idempotent", TTL, attempt=2) == Run()
    assert after("idempotent", TTL, attempt=3) == OutcomeUnknown("no; nobody knows of the attempts before it")
    assert after("idempotent", TTL, attempt=2, granted=1) == Failed("no")  # a person knew
    assert after("once", CHECKED, attempt=2) == Failed("no")  # check had looked
    assert after("idempotent", Rules(effect="once", has_check=True), attempt=2) == Failed("no")


def test_what_any_other_exception_means_depends_on_the_class():
    def after(kind, rules, **more):
        of = effect(kind, "started", attempt=1, first_started=NOW, **more)
        return effects.after_exception(of, rules, not_done=False, reason="boom", now=NOW)

    assert after("read", Rules()) == Failed("boom")
    assert after("idempotent", TTL) == Run()
    assert after("once", CHECKED) == Check()
    assert after("once", Rules()) == OutcomeUnknown("boom")


def test_a_check_that_says_no_of_a_call_that_goes_on_allows_no_other_one():
    of = effect("once", "started", attempt=1, first_started=NOW)
    ended = effects.after_exception(of, CHECKED, not_done=False, reason="too late", now=NOW, goes_on=True)
    assert ended == Check(goes_on=True)
    after = effects.after_check(of, CHECKED, happened=False, reason="", now=NOW, goes_on=True)
    assert isinstance(after, OutcomeUnknown)


def test_an_idempotent_call_that_raises_three_times_is_unknown():
    of = effect("idempotent", "started", attempt=3, first_started=NOW)
    assert effects.after_exception(of, TTL, not_done=False, reason="boom", now=NOW) == OutcomeUnknown("boom")


def test_a_check_that_says_no_allows_the_next_attempt_but_not_a_fourth():
    def after(attempt, happened):
        of = effect("once", "started", attempt=attempt, first_started=NOW)
        return effects.after_check(of, CHECKED, happened=happened, reason="?", now=NOW)

    assert after(1, False) == Run()
    assert isinstance(after(3, False), OutcomeUnknown)
    assert after(1, None) == OutcomeUnknown("?")


@pytest.mark.parametrize("kind", ["once", "idempotent"])
def test_an_attempt_that_was_not_sent_in_time_is_made_again_by_rule(kind):
    def after(attempt, now=NOW):
        of = effect(kind, "started", attempt=attempt, first_started=NOW)
        return effects.after_drop(of, TTL, now)

    assert after(1) == Run()
    unsent = "the last attempt was not sent in time, and another may not be made"
    assert after(3) == OutcomeUnknown("it did not happen in 3 attempts" if kind == "once" else unsent)
    assert after(2, NOW + 100_000_000) == (Run() if kind == "once" else OutcomeUnknown(unsent))


def test_an_attempt_by_rule_is_not_sent_with_a_key_that_is_too_old_one_that_a_person_allowed_is():
    def end(kind, rules=TTL, **more):
        return effects.key_end(effect(kind, "started", first_started=NOW, **more), rules)

    assert end("idempotent", attempt=2) == NOW + 100_000_000
    assert end("idempotent", attempt=3, granted=1) == NOW + 100_000_000
    assert end("idempotent", attempt=2, rules=Rules()) is None
    assert end("idempotent", attempt=1) is None
    assert end("idempotent", attempt=3, granted=2) is None
    assert end("once", attempt=2) is None


def test_how_old_a_key_is_nobody_knows_where_the_clock_was_set_back_since():
    def after(back):
        return verdict(effect("idempotent", "started", attempt=1, first_started=NOW), TTL, now=NOW - back)

    assert after(300_000_000) == Run()  # five minutes
    assert isinstance(after(300_000_001), OutcomeUnknown)
