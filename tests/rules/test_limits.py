"""What may a run use? Limits and prices, over journals that are made by hand."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from ondol import events, journal, limits, prices
from ondol.errors import InvalidInput
from ondol.events import ContextBuilt, EffectPlanned, EffectSucceeded, ModelCompleted, StepFailed
from ondol.limits import Bounds, Limits
from ondol.usage import Usage

SECOND = 1_000_000
CHEAP = prices.parse('currency = "KRW"\n[models.m]\ninput = 2\noutput = 10\n[models."o:n"]\ninput = 1\noutput = 1', "p")


def story(*lines: tuple[float, int, events.Entry]) -> journal.State:
    """Each line is the second, the fence, and what was written then."""
    batches, accepted = [], events.RunAccepted(agent="a", session="s", trigger="api")
    for seq, (at, fence, entry) in enumerate([(0.0, 0, accepted), *lines], 1):
        batches.append(journal.Batch(seq, fence, int(at * SECOND), (entry,)))
    return journal.fold(batches)


def built(step: int = 1, tokens: int = 0) -> ContextBuilt:
    return ContextBuilt(step=step, hash="h", clock=1, definition="d", tokens=tokens)


def answered(step: int = 1, **tokens: int) -> ModelCompleted:
    return ModelCompleted(step=step, message=2 * step, model="m", **tokens)


STARTED = (0.0, 1, events.RunStarted())
READ = EffectPlanned(call=0, tool="look", effect="read")


def reached(state: journal.State, now: float = 0.0, **limited: object) -> str | None:
    found = limits.reached(state, Bounds(Limits(**limited), CHEAP, "m"), int(now * SECOND))
    return found and found.code


# --- tokens -----------------------------------------------------------------------------------------------------


def test_tokens_used_and_the_estimate_of_the_next_call_are_held_against_the_limit_before_the_call():
    used = [STARTED, (1, 1, built()), (2, 1, answered(input=60, output=20)), (2, 1, READ)]
    used += [(3, 1, EffectSucceeded(call=0))]
    assert reached(story(*used), tokens=81) is None
    assert reached(story(*used), tokens=80) == "limit_tokens"
    before_the_call = story(*used, (4, 1, built(2, tokens=100)))
    assert reached(before_the_call, tokens=180) is None
    assert reached(before_the_call, tokens=179) == "limit_tokens"


def test_the_estimate_is_put_right_by_what_the_provider_counted():
    used = [STARTED, (1, 1, built(tokens=50)), (2, 1, answered(input=100, output=0)), (2, 1, READ)]
    state = story(*used, (3, 1, EffectSucceeded(call=0)), (3, 1, built(2, tokens=60)))
    assert state.expected_input() == 120


def test_a_provider_that_counts_nonsense_does_not_make_the_estimate_nonsense():
    for counted, expected in ((1, 25), (1_000_000, 400)):
        used = [STARTED, (1, 1, built(tokens=50)), (2, 1, answered(input=counted, output=0)), (2, 1, READ)]
        state = story(*used, (3, 1, EffectSucceeded(call=0)), (3, 1, built(2, tokens=100)))
        assert state.expected_input() == pytest.approx(expected, abs=2)


def test_a_call_that_nobody_counted_counts_as_estimated_and_not_as_zero():
    used = [STARTED, (1, 1, built(tokens=500)), (2, 1, answered()), (2, 1, READ), (3, 1, EffectSucceeded(call=0))]
    assert story(*used).usage == {"m": Usage(calls=1, unknown=1, estimated=500)}
    assert reached(story(*used), tokens=500) == "limit_tokens"
    assert reached(story(*used), tokens=501) is None


def test_an_attempt_that_failed_counts_too():
    failed = StepFailed(step=1, attempt=1, error="timeout", message="", retry_at=1, untold=True, asked="m")
    state = story(STARTED, (1, 1, built(tokens=500)), (2, 1, failed))
    assert reached(state, now=3, tokens=999) == "limit_tokens"  # and 500 more are expected
    assert reached(state, now=3, tokens=1000) is None


# --- cost -------------------------------------------------------------------------------------------------------


def test_cost_is_held_against_the_limit_with_the_estimate_of_the_next_call():
    used = [STARTED, (1, 1, built()), (2, 1, answered(input=1_000_000, output=100_000)), (2, 1, READ)]
    used += [(3, 1, EffectSucceeded(call=0))]
    assert reached(story(*used), cost=Decimal("3.01")) is None  # 2 + 1
    assert reached(story(*used), cost=3) == "limit_cost"
    assert reached(story(*used, (4, 1, built(2, tokens=5_000))), cost="3.01") is None
    assert reached(story(*used, (4, 1, built(2, tokens=5_001))), cost="3.01") == "limit_cost"


def test_what_a_model_without_a_price_took_is_not_taken_for_free():
    used = ModelCompleted(step=1, message=2, model="other", input=1, output=1)
    state = story(STARTED, (1, 1, built()), (2, 1, used), (2, 1, READ), (3, 1, EffectSucceeded(call=0)))
    assert reached(state, cost=100) == "limit_cost"


# --- time -------------------------------------------------------------------------------------------------------


def test_only_time_in_which_a_process_worked_on_it_counts():
    waiting = events.RunWaiting(asks=["k"], revision=1)
    decided, resumed = events.RunQueued(why="decided"), events.RunResumed()
    state = story(
        (100, 1, events.RunStarted()), (110, 1, built()), (130, 1, answered()), (130, 1, READ), (140, 1, waiting),
        (9_000, 2, decided), (9_500, 3, resumed), (9_501, 3, EffectSucceeded(call=0)),
    )  # fmt: skip
    assert (state.worked, state.in_tools) == (41 * SECOND, 11 * SECOND)
    assert state.worked_at(9_511 * SECOND) == 51 * SECOND
    assert reached(state, now=9_511, wall=timedelta(seconds=51)) == "limit_wall"
    assert reached(state, now=9_510, wall=timedelta(seconds=51)) is None
    assert reached(state, now=9_510, tool_time=timedelta(seconds=11)) == "limit_tool_time"
    assert reached(state, now=9_510, tool_time=timedelta(seconds=12)) is None


def test_time_after_its_process_had_died_does_not_count():
    recovered = events.RunQueued(why="recovered", deaths=1)
    state = story(
        (1, 1, events.RunStarted()), (3, 1, built()), (90_000, 2, recovered), (90_001, 3, events.RunResumed())
    )
    assert state.worked == 2 * SECOND


def test_time_until_a_lost_attempt_can_act_no_more_counts_where_other_calls_are_under_way():
    calls = [(2, 1, EffectPlanned(call=n, tool="send", effect="idempotent")) for n in (0, 1)]
    lost = [(3, 1, events.EffectStarted(call=n, attempt=1, deadline=(60 + 40 * n) * SECOND)) for n in (0, 1)]
    recovered = events.RunQueued(why="recovered", deaths=1)
    read = EffectPlanned(call=2, tool="look", effect="read")
    story_so_far = [STARTED, (1, 1, built()), (2, 1, answered()), *calls, (2, 1, read), *lost, (10, 2, recovered)]
    story_so_far += [(20, 3, events.RunResumed()), (25, 3, EffectSucceeded(call=2))]
    state = story(*story_so_far)
    assert state.worked_at(55 * SECOND) == (3 + 5) * SECOND
    assert state.worked_at(70 * SECOND) == (3 + 5 + 10) * SECOND
    again = (60, 3, events.EffectStarted(call=0, attempt=2, deadline=120 * SECOND))
    assert story(*story_so_far, again).worked_at(70 * SECOND) == (3 + 5 + 10) * SECOND
    rested = story(*story_so_far, again, (70, 3, EffectSucceeded(call=0)))
    assert rested.worked_at(90 * SECOND) == (3 + 5 + 10) * SECOND
    assert (rested.worked_at(101 * SECOND), rested.in_tools_at(101 * SECOND)) == (19 * SECOND, 17 * SECOND)


def test_time_until_it_was_given_back_counts():
    released = events.RunQueued(why="released")
    state = story((1, 1, events.RunStarted()), (3, 1, built()), (13, 2, released), (90, 3, events.RunResumed()))
    assert state.worked == 12 * SECOND


def test_a_clock_that_was_set_back_takes_no_time_away():
    state = story((100, 1, events.RunStarted()), (50, 1, built()), (60, 1, answered()))
    assert state.worked == 10 * SECOND


def test_an_attempt_that_would_begin_when_the_time_is_over_is_not_waited_for():
    failed = StepFailed(step=1, attempt=1, error="server", message="", retry_at=30 * SECOND)
    state = story(STARTED, (1, 1, built()), (2, 1, failed))
    assert reached(state, now=2, wall=timedelta(seconds=30)) == "limit_wall"
    assert reached(state, now=2, wall=timedelta(seconds=31)) is None


# --- limits -----------------------------------------------------------------------------------------------------


def test_of_two_limits_the_smaller_counts_and_what_is_not_set_limits_nothing():
    both = Limits(steps=5, tokens=100, cost="2").within(Limits(steps=7, tokens=90, wall=timedelta(hours=1)))
    assert both == Limits(steps=5, tokens=90, cost="2", wall=timedelta(hours=1))


def test_each_message_names_what_was_reached_the_knob_and_the_next_move():
    used = [
        STARTED,
        (1, 1, built()),
        (9, 1, answered(input=60, output=20)),
        (9, 1, READ),
        (12, 1, EffectSucceeded(call=0)),
    ]
    state, second = story(*used), timedelta(seconds=1)
    for knob, value in {"steps": 1, "tokens": 80, "cost": "0.0001", "wall": second, "tool_time": second}.items():
        found = limits.reached(state, Bounds(Limits(**{knob: value}), CHEAP, "m"), 12 * SECOND)
        assert found is not None
        assert found.code == f"limit_{knob}"
        assert f"raise Limits({knob}=...) and send the same operation again" in found.message


@pytest.mark.parametrize(
    "nonsense",
    [{"steps": 0}, {"tokens": -1}, {"tokens": True}, {"tokens": 1.5}, {"cost": 0}, {"cost": "much"}, {"cost": 0.5},
     {"cost": "nan"}, {"wall": 30}, {"wall": timedelta(0)}, {"queue": -1}, {"runs": 0}],
)  # fmt: skip
def test_nonsense_is_refused_with_the_name_of_the_knob(nonsense):
    with pytest.raises(InvalidInput, match=f"Limits.{next(iter(nonsense))}="):
        Limits(**nonsense)


# --- prices -----------------------------------------------------------------------------------------------------


def test_cost_is_exact_and_the_cache_has_a_price_of_its_own():
    file = "[models.m]\ninput = 1.25\noutput = 10\ncache_read = 0.125\ncache_write = 2.5"
    used = Usage(calls=1, input=1000, output=10, cache_read=700, cache_write=100)
    assert prices.parse(file, "p").cost({"m": used}) == Decimal("0.0006875")  # (200 * 1.25 + 87.5 + 250 + 100) / 10^6
    without = prices.parse("[models.m]\ninput = 1.25\noutput = 10", "p")
    assert without.cost({"m": used}) == Decimal("0.00135")


def test_a_third_of_a_cent_a_million_times_is_what_it_is():
    tenth = prices.parse('{"models": {"m": {"input": 0.1, "output": 0.2}}}', "prices.json")
    assert sum((tenth.cost({"m": Usage(input=1)}) for _ in range(10)), Decimal(0)) == Decimal("0.000001")


def test_a_model_is_found_by_the_name_it_was_asked_by_or_by_what_stands_behind_the_colon():
    assert CHEAP.of("o:n") == CHEAP.by_model["o:n"]
    assert CHEAP.of("openai:m") == CHEAP.by_model["m"]
    assert CHEAP.of("n") is None


def test_a_model_without_a_price_is_unpriced_and_not_free():
    used = {"m": Usage(input=1_000_000), "other": Usage(input=1_000_000)}
    assert (CHEAP.cost(used), CHEAP.unpriced(used)) == (2, ["other"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("input = ", "cannot be read"),
        ("[prices]", 'no table "models"'),
        ("[models.m]\ninput = 1", "model 'm': say what"),
        ("[models.m]\ninput = 1\noutput = -1", "output: .* is no price"),
        ("[models.m]\ninput = 1\noutput = nan", "is no price"),
        ('[models.m]\ninput = 1\noutput = "x"', "'x' is no price"),
        ("[models.m]\ninput = 1\noutput = 1\ncache = 1", "'cache'"),
    ],
)
def test_a_price_file_that_cannot_be_used_is_refused_with_the_place(text, complaint):
    with pytest.raises(InvalidInput, match=complaint) as refused:
        prices.parse(text, "prices.toml")
    assert "prices.toml" in str(refused.value)
