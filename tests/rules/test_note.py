"""What a note says: each started write under its own request, within a limit."""

from __future__ import annotations

import re

import pytest

from ondol import context, messages
from ondol.context import NOTE_LIMIT, Untold
from ondol.records import EffectRow

LONG = "word " * 400


def effect(run: str, ordinal: int, state: str = "succeeded", arguments: str = LONG) -> EffectRow:
    values = dict.fromkeys(EffectRow._fields)
    values |= {"run": run, "ordinal": ordinal, "tool": f"send_{run}_{ordinal}", "state": state}
    return EffectRow(**values | {"arguments": f'{{"to":"{arguments}"}}'})


def untold(run: str, calls: int, *, request: str = LONG, unanswered: bool = True) -> Untold:
    rows = tuple(effect(run, n) for n in range(calls))
    return Untold(run, "failed", (messages.dumps(messages.user(f"{run}: {request}")),), unanswered, rows)


def test_each_call_stands_under_the_request_of_its_own_run():
    text, told = context.note([untold("r_1", 1), untold("r_2", 0), untold("r_3", 2, unanswered=False)])
    order = [text.index(part) for part in ("r_1: ", "send_r_1_0", "r_2: ", "r_3: ", "send_r_3_0", "send_r_3_1")]
    assert order == sorted(order)
    assert told == [
        ["run", "r_1"], ["effect", "e_1_0", "succeeded"], ["run", "r_2"],
        ["effect", "e_3_0", "succeeded"], ["effect", "e_3_1", "succeeded"],
    ]  # fmt: skip


def test_a_short_note_repeats_requests_and_arguments():
    text, _ = context.note([untold("r_1", 1, request="a soup")])
    assert "'r_1: a soup'" in text
    assert "word word word" in text


@pytest.mark.parametrize(("runs", "calls"), [(1, 40), (20, 3), (60, 1), (3, 30)])
def test_requests_and_arguments_are_shortened_before_a_call_is_left_out(runs, calls):
    text, told = context.note([untold(f"r_{n}", calls) for n in range(runs)])
    assert len(text) < NOTE_LIMIT * 1.1
    assert all(f"send_r_{n}_{k}(" in text for n in range(runs) for k in range(calls))
    assert len(told) == runs + runs * calls
    assert "not listed" not in text


@pytest.mark.parametrize(("calls", "is_told"), [(1, True), (20, True), (60, False)])
def test_results_are_shortened_and_left_out_before_a_call_is(calls: int, is_told: bool):
    body = messages.dumps(messages.tool_result("c", "send", f"it is done {LONG}"))
    one = untold("r_1", calls)._replace(results=dict.fromkeys(range(calls), body))
    text, told = context.note([one])
    assert len(text) < NOTE_LIMIT * 1.1
    assert len(told) == 1 + calls
    assert text.count("It returned 'it is done word") == (calls if is_told else 0)


def test_what_does_not_fit_is_counted_and_comes_in_the_next_note():
    left = [untold(f"r_{n}", 3 if n % 20 == 0 else 0) for n in range(400)]
    told: set[tuple[str, ...]] = set()
    notes = []
    while left:
        text, now = context.note(left)
        assert len(text) < NOTE_LIMIT * 1.1
        assert now, "each note tells something"
        assert not told & {tuple(t) for t in now}
        told |= {tuple(t) for t in now}
        left = context.still_untold(left, told)
        said = re.search(r"(\d+) more requests and calls are not listed", text)
        assert int(said[1]) == sum(one.unanswered + len(one.effects) for one in left) if said else not left
        notes.append(text)
    assert len(told) == 400 + 3 * 20
    assert all(f"send_r_{n}_2(" in notes[0] for n in range(0, 400, 20)), "writes come first"


@pytest.mark.parametrize("limit", [100, 3_000, 30_000])
def test_a_note_leaves_most_of_a_budget_to_the_request_in_every_script(limit: int):
    korean = "가나다라 " * 400
    left = [untold("r_0", 4, request=korean)]
    left += [untold(f"r_{n}", n % 2, request=korean) for n in range(1, 30)]
    left[3] = left[3]._replace(requests=left[3].requests * 50)  # that many messages joined it
    told: set[tuple[str, ...]] = set()
    while left:
        text, now = context.note(left, limit=limit)
        assert len(text.encode()) <= max(limit // 4, 600) + 150
        assert now, "each note tells something"
        told |= {tuple(t) for t in now}
        left = context.still_untold(left, told)
    assert len(told) == 30 + 4 + 15


def test_the_calls_of_one_run_go_on_in_the_next_note_under_its_request():
    first, told = context.note([untold("r_1", 500)])
    (rest,) = context.still_untold([untold("r_1", 500)], {tuple(t) for t in told})
    assert not rest.unanswered
    second, _ = context.note([rest])
    assert "r_1: " in first
    assert "r_1: " in second
    assert not set(re.findall(r"send_r_1_\d+", first)) & set(re.findall(r"send_r_1_\d+", second))


def test_a_note_that_was_not_given_all_says_so():
    assert "At least 1 more" in context.note([untold("r_1", 1)], more=True).text
