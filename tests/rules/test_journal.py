"""From entries to state, and the checksums that keep entries honest."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from ondol import checksums, events, journal
from ondol.errors import StoreCorrupt, StoreTooNew


def example(kind: type) -> events.Entry:
    """An entry of this kind with something in each field that has no default."""
    made = {"str": "x", "int": 0, "list[str]": [], "EffectClass": "once", "AskKind": "approval",
            "EndCode": "conflict"}  # fmt: skip
    fields = [f for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING]
    return kind(**{f.name: made[str(f.type)] for f in fields})


ALL = [example(k) for k in typing.get_args(events.Entry)]
SOME = (events.RunAccepted(agent="a", session="s", trigger="api"), events.StepStarted(step=1))


@pytest.mark.parametrize("entry", ALL, ids=lambda e: e.kind)
def test_every_kind_of_entry_is_read_back_as_it_was_written(entry):
    assert events.from_json(events.to_json(entry)) == entry


def test_every_kind_of_entry_has_its_own_name():
    assert len(events.KINDS) == len(ALL)


def test_a_batch_is_read_back_as_it_was_written():
    body = journal.dumps(SOME)
    total = checksums.of_batch("r", 1, 2, 3, body)
    assert journal.loads("r", 1, 2, 3, 1, body, total) == journal.Batch(1, 2, 3, SOME)


@pytest.mark.parametrize("change", ["run", "seq", "fence", "at", "body"])
def test_a_batch_that_was_changed_in_any_place_is_found(change):
    body = journal.dumps(SOME)
    told = {"run": "r", "seq": 1, "fence": 2, "at": 3, "body": body}
    total = checksums.of_batch(**told)
    told[change] = {"run": "q", "body": body.replace("s", "z", 1)}.get(change, 9)
    with pytest.raises(StoreCorrupt, match="checksum"):
        journal.loads(told["run"], told["seq"], told["fence"], told["at"], 1, told["body"], total)


def test_a_batch_of_a_newer_version_is_refused():
    body = journal.dumps(SOME)
    with pytest.raises(StoreTooNew, match="upgrade"):
        journal.loads("r", 1, 2, 3, journal.VERSION + 1, body, checksums.of_batch("r", 1, 2, 3, body))


def test_an_entry_of_an_unknown_kind_or_field_is_refused():
    for body in ('[["run.teleported",{}]]', '[["run.started",{"warp":9}]]'):
        with pytest.raises(StoreTooNew):
            journal.loads("r", 1, 2, 3, 1, body, checksums.of_batch("r", 1, 2, 3, body))


def test_results_keep_the_place_of_their_call_whatever_their_order_of_arrival():
    planned = [events.EffectPlanned(call=n, tool="t", effect="read") for n in range(3)]
    entries = (events.ModelCompleted(step=1, message=2), *planned)
    state = journal.fold([journal.Batch(1, 1, 1, entries)])
    assert [(e.message, e.part, e.reply) for e in state.effects] == [(2, 0, 3), (2, 1, 4), (2, 2, 5)]
    assert state.next_message == 6


def test_the_fold_of_two_halves_is_the_fold_of_the_whole():
    entries = [events.ModelCompleted(step=1, message=2), events.EffectPlanned(call=0, tool="t", effect="once")]
    entries.append(events.EffectStarted(call=0, attempt=1, deadline=7))
    batches = [journal.Batch(n + 1, 1, 1, (e,)) for n, e in enumerate(entries)]
    for cut in range(len(batches) + 1):
        assert journal.fold(batches[cut:], journal.fold(batches[:cut])) == journal.fold(batches)


def test_session_state_is_folded_in_call_order_not_in_order_of_arrival():
    planned = [events.EffectPlanned(call=n, tool="t", effect="read") for n in range(2)]
    done = [events.EffectSucceeded(call=n, patch={"k": n}) for n in (1, 0)]
    entries = (events.ModelCompleted(step=1, message=2), *planned, *done)
    assert journal.fold([journal.Batch(1, 1, 1, entries)]).patch() == {"k": 1}


def test_what_was_lost_with_a_restore_may_have_happened_since_the_last_instant_that_the_backup_knows():
    planned = [events.ModelCompleted(step=1, message=2), events.EffectPlanned(call=0, tool="t", effect="once")]
    parked = events.RunParked(why="restored", ask="ask_1", ask_kind="definition_changed", restored=True)
    presumed = events.EffectStarted(call=0, attempt=1, deadline=90, presumed=True)
    told = [journal.Batch(1, 1, 10, tuple(planned)), journal.Batch(3, 1, 50, (parked,))]
    state = journal.fold([*told, journal.Batch(4, 2, 80, (presumed,))])
    assert state.restored == (10, 50)
    assert state.effects[0].first_started == 10  # its key may have been used ever since


def test_calls_without_an_outcome_are_those_and_no_others():
    planned = [events.EffectPlanned(call=n, tool="t", effect="once") for n in range(4)]
    ends = [
        events.EffectSucceeded(call=0),
        events.EffectFailed(call=1, reason="no"),
        events.EffectStarted(call=2, attempt=1, deadline=7),
        events.EffectUnknown(call=2, ask="ask_2", reason="gone"),
    ]
    state = journal.fold([journal.Batch(1, 1, 1, (events.ModelCompleted(step=1, message=2), *planned, *ends))])
    assert [e.ordinal for e in state.open_effects] == [2, 3]
    assert [e.ordinal for e in state.open_effects] == [e.ordinal for e in state.effects if not e.has_outcome]
    assert state.calls_open
    later = journal.apply(state, events.ModelCompleted(step=2, message=9))
    assert not later.calls_open  # of the last answer


@pytest.mark.parametrize("entry", ALL, ids=lambda e: e.kind)
def test_an_entry_changes_fields_that_there_are(entry):
    planned = events.EffectPlanned(call=0, tool="t", effect="once")
    state = journal.fold([journal.Batch(1, 1, 1, (events.ModelCompleted(step=1, message=2), planned))])
    assert vars(journal.apply(state, entry)).keys() == {f.name for f in dataclasses.fields(journal.State)}


COMPLETED = events.ModelCompleted(step=1, message=2)
BEFORE = journal.fold([journal.Batch(1, 1, 0, (events.RunStarted(), events.StepStarted(step=1)))])
BATCH = journal.Batch(3, 1, 7, (COMPLETED, events.EffectPlanned(call=0, tool="look", effect="read")))


def test_what_was_foreseen_folds_to_the_same_and_changes_no_state_that_was_given():
    foreseen = journal.Foreseen(BEFORE, COMPLETED, journal.apply(BEFORE, COMPLETED))
    given = [dataclasses.replace(state) for state in (BEFORE, foreseen.after)]
    assert journal.fold([BATCH], BEFORE, foreseen) == journal.fold([BATCH], BEFORE)
    assert [BEFORE, foreseen.after] == given


def test_what_was_foreseen_from_another_state_is_not_taken_over():
    foreseen = journal.Foreseen(BEFORE, COMPLETED, journal.apply(BEFORE, COMPLETED))
    meanwhile = journal.fold([journal.Batch(3, 1, 5, (events.RunCancelling(by="kim", door="api"),))], BEFORE)
    later = BATCH._replace(seq=4)
    assert journal.fold([later], meanwhile, foreseen).cancel is not None
    assert journal.fold([later], meanwhile, foreseen) == journal.fold([later], meanwhile)
