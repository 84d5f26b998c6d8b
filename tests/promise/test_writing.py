"""Who may write? The transactions themselves, without anybody who drives: what each refuses, and whom it touches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import pytest
from crash import invariants

from ondol import events, lookups, queries, transactions
from ondol.errors import AlreadyDecided, CancelRequested, ClaimLost, NotFound, SessionBusy, SignalsUnread
from ondol.records import RunRow
from ondol.store import Store
from ondol.stores import open_store
from ondol.transactions import Claim, Claimed, NewRun, PlannedCall, Tx
from ondol.transactions.outbox import offer
from ondol.transactions.pieces import Steer

INPUT = '{"role":"user","parts":[]}'
ANSWER = '{"role":"assistant","parts":[]}'
RESULT = '{"role":"tool","parts":[]}'


@pytest.fixture
async def store(db: str) -> AsyncIterator[Store]:
    opened = open_store(db)
    await opened.open(lambda: None)
    yield opened
    await opened.close()


def new(name: str, session: str = "s", **more: Any) -> NewRun:
    return NewRun(
        **{
            "tenant": "default", "run": f"r_{name}", "session": session, "user_id": "", "operation_id": name,
            "fingerprint": name, "agent": "a", "definition": "{}", "definition_digest": "d", "trigger": "api",
            "door": "python", "zone": None, "default_zone": None, "input": INPUT, **more,
        }
    )  # fmt: skip


async def claimed(store: Store, run: str, owner: str = "me") -> Claimed | None:
    return await store.write(transactions.claim, "default", run, owner, 1)


async def held(store: Store, run: str = "r_1", session: str = "s") -> Claimed:
    """The run is accepted and claimed, and has answered with a write and a read, which are planned."""
    await store.write(transactions.accept, new(run[2:], session), 1)
    mine = await claimed(store, run)
    assert mine is not None
    calls = [
        PlannedCall(entry=entry, reply=3 + entry.call, call_id="c", arguments="{}", decision=None)
        for entry in (
            events.EffectPlanned(call=0, tool="letter", effect="once"),
            events.EffectPlanned(call=1, tool="look", effect="read"),
        )
    ]
    completed = events.ModelCompleted(step=0, message=2)
    await store.write(transactions.answer, mine.claim, "", 1, completed, ANSWER, calls, {})
    return mine


# --- the holder -------------------------------------------------------------------------------------------------


def taken_over(mine: Claimed) -> Tx[object]:
    yield from transactions.release("default", mine.run.id, mine.claim.fence, 2)
    return (yield from transactions.claim("default", mine.run.id, "you", 2))


def suspended(mine: Claimed) -> Tx[object]:
    return transactions.suspend(mine.claim, 2, [], 5)


def committed(mine: Claimed) -> Tx[object]:
    return transactions.commit(mine.claim, mine.session, 2, {}, 2, None, (), 0, True)


def ended(mine: Claimed) -> Tx[object]:
    return transactions.end(mine.claim, 2, events.RunFailed(code="model_rejected", message="no"))


def parked(mine: Claimed) -> Tx[object]:
    return transactions.park_changed(mine.claim, 2, "the code changed")


def asked(kind: events.AskKind) -> events.AskOpened:
    return events.AskOpened(ask="a_1_x", ask_kind=kind, call=0)


#: Each as it is called with the claim and what was claimed.
WRITES: dict[str, Callable[[Claim, Claimed], tuple[Any, ...]]] = {
    "note_down": lambda c, _: (transactions.note_down, c, 3, [events.StepStarted(step=1)]),
    "note_down (spent)": lambda c, _: (transactions.note_down, c, 3, [events.StepStarted(step=1)]),
    "answer": lambda c, _: (
        transactions.answer, c, "", 3, events.ModelCompleted(step=1, message=5), ANSWER, [], {},
    ),
    "plan_step": lambda c, _: (
        transactions.plan_step, c, "", 3, (-3, ANSWER),
        PlannedCall(
            entry=events.EffectPlanned(call=2, tool="look", effect="read", parent=0, place=0), reply=-4, call_id="",
            arguments="{}", decision=None,
        ),
    ),
    "ask_again": lambda c, _: (
        transactions.ask_again, c, "", 3,
        transactions.AskedAgain(asked("approval"), "letter", "{}", "", "ask", "May it?", None),
    ),
    "open_question": lambda c, _: (
        transactions.open_question, c, "", 3, transactions.Questioning(asked("question"), "Which?", "{}", None, None),
    ),
    "ask_compaction": lambda c, _: (
        transactions.ask_compaction, c, "", 3,
        transactions.AskedAbout(events.AskOpened(ask="a_1_x", ask_kind="compaction"), "Too long.", "{}", ""),
    ),
    "started": lambda c, _: (transactions.started, c, 3, 0, 1, 9),
    "outcome": lambda c, _: (
        transactions.outcome, c, "", 3,
        transactions.Outcome(events.EffectFailed(call=0), 0, 3, RESULT, unstarted=True),
    ),
    "rest": lambda c, _: (transactions.rest, c),
    "suspend": lambda c, _: (transactions.suspend, c, 3, [], 6),
    "commit": lambda c, m: (transactions.commit, c, m.session, 3, {}, 2, None, (), 0, True),
    "end": lambda c, _: (transactions.end, c, 3, events.RunFailed(code="model_rejected", message="no")),
    "park_changed": lambda c, _: (transactions.park_changed, c, 3, "the code changed"),
    "release": lambda c, _: (transactions.release, "default", c.run, c.fence, 3),
}  # fmt: skip


@pytest.mark.parametrize("by", [taken_over, suspended, committed, ended, parked])
async def test_p7_whoever_does_not_hold_a_run_any_more_writes_nothing_of_it(
    store: Store, db: str, by: Callable[[Claimed], Tx[object]]
) -> None:
    """Whether another process has it, or its own holder has let it go: the fence alone would not tell the second."""
    mine = await held(store)
    await store.write(by, mine)
    before = invariants.written(db, sound=False)
    for name, write in WRITES.items():
        more = {"used": {}} if "spent" in name else {"asleep": True} if name == "rest" else {}
        with pytest.raises(ClaimLost):
            await store.write(*write(mine.claim, mine), **more)
        assert invariants.written(db, sound=False) == before, name


#: What goes on while a cancel is requested, and while any other signal is unread.
IN_SPITE_OF_CANCEL = {"note_down", "note_down (spent)", "outcome", "rest", "end", "release"}
NOT_BEFORE_SIGNALS = {"ask_again", "ask_compaction", "started", "suspend", "park_changed"}


@pytest.mark.parametrize("name", WRITES)
async def test_what_a_cancel_or_an_unread_signal_refuses(store: Store, db: str, name: str) -> None:
    """T3, T4, T6 and T8 while a cancel is requested, T4 while any signal is unread."""
    cancelled, signalled = await held(store), await held(store, "r_2", "t")
    await store.write(transactions.cancel, "default", "r_1", "kim", "python", "", 2)
    await store.write(transactions.accept, new("steer", "t", if_busy="steer"), 2)
    more = {"used": {}} if "spent" in name else {"asleep": True} if name == "rest" else {}
    for mine, goes_on, refusal in (
        (cancelled, name in IN_SPITE_OF_CANCEL, CancelRequested),
        (signalled, name not in NOT_BEFORE_SIGNALS, SignalsUnread),
    ):
        before = invariants.written(db, sound=False)
        write = WRITES[name](mine.claim, mine)
        if goes_on:
            await store.write(*write, **more)
        else:
            with pytest.raises(refusal):
                await store.write(*write, **more)
        assert (invariants.written(db, sound=False) == before) is not goes_on


# --- everybody else ---------------------------------------------------------------------------------------------


Begins: TypeAlias = Callable[[], Tx[Any]]  # a transaction; a store may run it several times


def _not_last(tx: Tx[Any]) -> Tx[None]:
    """The batch that ends a transaction on its own does not end another one."""
    rows = None
    with suppress(StopIteration):
        while True:
            rows = yield list(tx.send(rows))


def interleaved(one: Begins, other: Begins, behind: str = "") -> Tx[Any]:
    """A transaction in which another one comes between what it has looked at first (or in the statement ``behind``) and
    what it does about that."""
    tx = one()
    batch, is_due = next(tx), True
    while True:
        rows = yield batch
        if is_due and any(name.startswith(behind) for name, _ in batch):
            is_due = False
            yield from _not_last(other())
        try:
            batch = tx.send(rows)
        except StopIteration as done:
            return done.value


@pytest.mark.parametrize(
    ("how", "by"),
    [
        *((how, by) for how in ("release", "recover", "park", "end") for by in (taken_over, suspended)),
        ("recover a cancelled one", taken_over),
    ],
)
async def test_whoever_looked_at_a_run_that_moved_on_since_writes_nothing_of_it(
    store: Store, db: str, how: str, by: Callable[[Claimed], Tx[object]]
) -> None:
    """A run is moved by compare-and-swap on its state and its fence: either of them may be what has changed."""
    mine = await held(store)
    run, fence = mine.run.id, mine.claim.fence
    looks: dict[str, Begins] = {
        "release": lambda: transactions.release("default", run, fence, 3),
        "recover": lambda: transactions.recover("default", run, fence, 3),
        "recover a cancelled one": lambda: transactions.recover("default", run, fence, 3),
        "park": lambda: transactions.park_restored("default", run, 3),
        "end": lambda: transactions.end(mine.claim, 3, events.RunFailed(code="model_rejected", message="no")),
    }
    if how == "recover a cancelled one":
        await store.write(transactions.cancel, "default", run, "kim", "python", "", 2)
    before = invariants.written(db, sound=False)
    with pytest.raises(ClaimLost):
        await store.write(interleaved, looks[how], partial(by, mine))
    assert invariants.written(db, sound=False) == before


async def test_a_run_that_is_claimed_as_it_is_cancelled_is_not_ended_under_its_holder(store: Store, db: str) -> None:
    await store.write(transactions.accept, new("1"), 1)
    before = invariants.written(db, sound=False)
    cancel = partial(transactions.cancel, "default", "r_1", "kim", "python", "", 3)
    with pytest.raises(ClaimLost):
        await store.write(interleaved, cancel, partial(transactions.claim, "default", "r_1", "me", 2))
    assert invariants.written(db, sound=False) == before


async def test_p4_no_call_starts_that_waits_for_a_person_or_has_its_outcome(store: Store, db: str) -> None:
    mine = await held(store)
    for state in ("asked", "denied", "succeeded", "failed", "unknown", "abandoned", "expired"):
        for call in (0, 1):
            await store.write(in_state, mine, call, state)
        before = invariants.written(db, sound=False)
        read = transactions.Outcome(events.EffectSucceeded(call=1), 0, 4, RESULT)
        writes = [WRITES[name](mine.claim, mine) for name in ("started", "outcome", "ask_again")]
        for write in (*writes, (transactions.outcome, mine.claim, "", 3, read)):
            with pytest.raises(ClaimLost):
                await store.write(*write)
            assert invariants.written(db, sound=False) == before, (state, write)


async def test_whoever_allowed_another_attempt_is_not_asked_before_it_as_for_the_first(store: Store, db: str) -> None:
    mine = await held(store)
    await store.write(transactions.started, mine.claim, 2, 0, 1, 9)
    await store.write(in_state, mine, 0, "approved")
    before = invariants.written(db, sound=False)
    with pytest.raises(ClaimLost):
        await store.write(*WRITES["ask_again"](mine.claim, mine))
    assert invariants.written(db, sound=False) == before


def in_state(mine: Claimed, call: int, state: str) -> Tx[None]:
    of_call = {"tenant": "default", "run": mine.run.id, "ordinal": call}
    yield [("effect.set", of_call | {"state": state, "at": None, "arguments": None})]


@pytest.mark.parametrize("first", ["approve", "deny"])
async def test_b11_of_two_decisions_at_one_instant_the_second_is_refused(store: Store, db: str, first: str) -> None:
    mine = await held(store)
    await store.write(*WRITES["ask_again"](mine.claim, mine))
    before = invariants.written(db, sound=False)
    one, two = (
        partial(transactions.decide, "default", "a_1_x", transactions.Decision(kind=kind), by, "python", 3)
        for kind, by in ((first, "kim"), ("approve", "lee"))
    )
    with pytest.raises(AlreadyDecided):
        await store.write(interleaved, two, one)
    assert invariants.written(db, sound=False) == before


# --- the queue --------------------------------------------------------------------------------------------------


async def test_a_run_that_interrupts_moves_only_those_that_it_overtakes(store: Store, db: str) -> None:
    """What comes to another session later stands behind all that is there."""
    for name in ("t1", "t2", "t3"):
        await store.write(transactions.accept, new(name, "t"), 1)
    await held(store)
    before = invariants.written(db, sound=False).runs
    for name in ("2", "3"):
        await store.write(transactions.accept, new(name, if_busy="interrupt"), 2)
    after = invariants.written(db, sound=False).runs
    assert [after[run].place for run in before] == [run.place for run in before.values()]
    assert [after[run].place for run in ("r_1", "r_3", "r_2")] == [0, 1, 2]


async def test_a_run_waits_for_those_of_its_own_session_only(store: Store) -> None:
    """Wherever it stands in its own queue, and however long another session waits for a person."""
    one = await claimed_in(store, "t")
    await store.write(committed, one)
    await store.write(suspended, await held(store))
    await store.write(transactions.accept, new("t2", "t"), 1)
    assert [id for id, *_ in await store.read(queries.claimable, "default", 0, 0, 10)] == ["r_t2"]
    assert await claimed(store, "r_t2") is not None


async def test_a_steer_joins_its_own_host_only(store: Store, db: str) -> None:
    mine, other = await held(store), await claimed_in(store, "t")
    await store.write(transactions.accept, new("steer", if_busy="steer"), 1)
    before = invariants.written(db, sound=False)
    entry = [events.ContextBuilt(step=1, hash="", steers=["r_steer"])]
    steers = [(Steer("r_steer", INPUT), 2)]
    with pytest.raises(SignalsUnread):
        await store.write(transactions.note_down, other.claim, 2, entry, steers=steers)
    assert invariants.written(db, sound=False) == before
    assert before.runs["r_steer"].host == mine.run.id


async def claimed_in(store: Store, session: str) -> Claimed:
    await store.write(transactions.accept, new(session, session), 1)
    mine = await claimed(store, f"r_{session}")
    assert mine is not None
    return mine


# --- what nobody may lose ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["uploaded", "used"])
async def test_b00_a_blob_that_is_wanted_as_unused_ones_are_collected_stays(store: Store, how: str) -> None:
    """Whoever uploads it renews it; a run that uses it keeps it, also one whose clock is slow."""
    await store.write(transactions.keep_blob, "default", "d1", 1, 1)
    wanted: Begins = partial(transactions.keep_blob, "default", "d1", 1, 20)
    if how == "used":
        wanted = partial(transactions.accept, new("1", blobs=[("d1", 1)]), 1)
    collected = await store.write(interleaved, partial(transactions.drop_unused_blobs, "default", 10), wanted)
    assert collected.dropped == []


async def test_a_run_that_completes_as_its_history_is_made_findable_is_found(store: Store) -> None:
    said = '{"v":1,"role":"user","parts":[{"type":"text","content":"a teapot"}]}'
    for name in ("1", "2"):
        await store.write(transactions.accept, new(name, name, user_id="kim", input=said), 1)
    mine = await claimed(store, "r_1")
    assert mine is not None
    space = transactions.history_space("default", "user", "kim", "")
    await store.write(interleaved, partial(transactions.index_history, space), partial(committed, mine), "history.")
    await store.write(transactions.index_history, space)
    assert [f.source for f in await store.read(lookups.find_messages, space, "teapot", 10)] == ["r_1"]


async def test_a_steer_joins_with_what_its_host_has_attached_too(store: Store, db: str) -> None:
    await store.write(transactions.accept, new("1", blobs=[("d1", 1)]), 1)
    mine = await claimed(store, "r_1")
    assert mine is not None
    await store.write(transactions.accept, new("2", blobs=[("d1", 1)], if_busy="steer"), 1)
    entry = [events.ContextBuilt(step=0, hash="", steers=["r_2"])]
    await store.write(transactions.note_down, mine.claim, 2, entry, steers=[(Steer("r_2", INPUT), 2)])
    assert invariants.written(db, sound=False).uses == {("r_1", "d1"), ("r_2", "d1")}


async def test_a_session_is_not_deleted_twice_nor_under_a_run_that_is_parked(store: Store, db: str) -> None:
    """What is parked goes on from its journal, once somebody says so."""

    wanted = {"expected_revision": None, "with_unknown": True}
    by = {"by": "kim", "door": "python"}

    async def refused(error: type[Exception]) -> None:
        before = invariants.written(db, sound=False)
        with pytest.raises(error):
            await store.write(transactions.delete_session, "default", "s", 3, **wanted, **by)
        with pytest.raises(error):
            await store.write(transactions.begin_delete_session, "default", "s", 0, **wanted)
        assert invariants.written(db, sound=False) == before

    await refused(NotFound)
    await store.write(parked, await held(store))
    await refused(SessionBusy)
    await store.write(transactions.cancel, "default", "r_1", "kim", "python", "", 3)
    await store.write(transactions.delete_session, "default", "s", 3, **wanted, **by)
    await refused(NotFound)
    with pytest.raises(NotFound):
        await store.write(transactions.pin_session, "default", "s", 4, text="this", **by)


async def test_of_a_session_that_was_deleted_a_tombstone_stays_and_whoever_begins_it_anew_owns_it(
    store: Store, db: str
) -> None:
    """Its revision goes on, and so do the places in its queue."""
    await store.write(transactions.accept, new("1", user_id="kim", zone="Asia/Seoul", metadata="{}"), 1)
    mine = await claimed(store, "r_1")
    assert mine is not None
    state = transactions.StateChange.by_patch(mine.session.state, {"a": 1})
    await store.write(transactions.commit, mine.claim, mine.session, 2, {"text": "yes"}, 2, state, (), 0, True)
    failed = await held(store, "r_2")
    await store.write(ended, failed)
    gone = {"expected_revision": None, "with_unknown": True, "by": "kim", "door": "python"}
    after = await store.write(transactions.delete_session, "default", "s", 3, **gone)
    assert (after.revision, after.deleted_at, after.state, after.state_sum) == (2, 3, "{}", None)
    for run in ("r_1", "r_2"):
        row = await store.read(queries.get_run, "default", run)
        told = (row.reply, row.reply_sum, row.base, row.error, row.metadata)
        assert (told, row.retryable, row.told) == ((None,) * 5, 0, 1)
    for name, zone in (("3", "Europe/Rome"), ("4", None)):
        await store.write(transactions.accept, new(name, user_id="lee", zone=zone), 4)
    written = invariants.written(db, sound=False)
    again = written.sessions["default", "s"]
    assert (again.revision, again.user_id, again.zone, again.deleted_at) == (3, "lee", "Europe/Rome", None)
    assert [written.runs[run].place for run in ("r_3", "r_4")] == [2, 3]


async def test_a_run_that_goes_on_later_is_as_one_that_never_stopped(store: Store) -> None:
    """Of what stopped it, nothing is shown any more; and each change by another raises the fence."""

    async def row() -> RunRow:
        return await store.read(queries.get_run, "default", "r_1")

    mine = await held(store)
    quota = events.RunFailed(code="model_quota", message="paid up", retryable=True)
    await store.write(transactions.end, mine.claim, 2, quota)
    failed = await row()
    assert (failed.state, failed.retryable, failed.ended_at, failed.owner) == ("failed", 1, 2, None)
    await store.write(transactions.resume, "default", "r_1", 3)
    again = await row()
    assert (again.state, again.retryable, again.ended_at, again.owner) == ("queued", 0, None, None)
    assert (again.error, again.told, again.fence) == (None, 0, failed.fence + 1)
    mine = await claimed(store, "r_1")
    assert mine is not None
    await store.write(transactions.end, mine.claim, 4, quota)
    await store.write(transactions.park_restored, "default", "r_1", 5)
    stopped = await row()
    assert (stopped.state, stopped.retryable, stopped.ended_at, stopped.owner) == ("parked", 0, None, None)
    assert stopped.fence == again.fence + 2
    await store.write(transactions.cancel, "default", "r_1", "kim", "python", "", 6)
    assert (await row()).fence == stopped.fence + 1


@pytest.mark.parametrize("how", ["answer", "suspend", "end", "park_changed"])
async def test_deaths_are_counted_at_one_step_only(store: Store, how: str) -> None:
    mine = await held(store)
    for _ in range(2):
        left = await store.write(transactions.recover, "default", "r_1", mine.claim.fence, 2)
        assert left.owner is None
        again = await claimed(store, "r_1")
        assert again is not None
        mine = again
    assert mine.run.deaths == mine.claim.deaths == 2
    write = WRITES[how](mine.claim, mine)
    if how == "suspend":
        write = (transactions.suspend, mine.claim, 3, [], mine.run.next_seq - 1)
    await store.write(*write)
    assert (await store.read(queries.get_run, "default", "r_1")).deaths == 0


async def test_b17_all_that_is_kept_of_a_session_has_a_checksum(store: Store) -> None:
    """What has none is believed: it is taken for a row of an older version."""

    def state_before(until: int) -> Tx[list[tuple[Any, ...]]]:
        (rows,) = yield [("session.state_before", {"tenant": "default", "session": "s", "until": until})]
        return rows

    for name, n in (("1", 1), ("2", 2)):
        await store.write(transactions.accept, new(name), 1)
        mine = await claimed(store, f"r_{name}")
        assert mine is not None
        kept: dict[str, Any] = {"seen": transactions.Seen("{}", less=True), "pins": "[]"}
        state = transactions.StateChange.by_patch(mine.session.state, {"n": n})
        await store.write(transactions.commit, mine.claim, mine.session, 2, {}, 2, state, (), 0, True, **kept)
    row = await store.read(queries.get_session, "default", "s")
    assert (row.checked_state(), row.checked_seen(), row.checked_pins()) == ('{"n":2}', {}, "[]")
    assert None not in (row.state_sum, row.seen_sum, row.pins_sum)
    ((before, total, _),) = await store.read(state_before, 2)
    assert before == '[{"n":1}]'
    assert total is not None


async def test_a_zone_that_is_named_is_that_of_what_comes_later_in_the_session(store: Store) -> None:
    async def accepted(name: str, zone: str | None) -> str | None:
        done = await store.write(transactions.accept, new(name, zone=zone, default_zone="UTC"), 1)
        return done.run.zone

    assert [await accepted(name, zone) for name, zone in (("1", None), ("2", "Asia/Seoul"), ("3", None))] == [
        "UTC", "Asia/Seoul", "Asia/Seoul",
    ]  # fmt: skip
    for name in ("1", "2", "3"):
        await store.write(transactions.cancel, "default", f"r_{name}", "kim", "python", "", 2)
    options: dict[str, Any] = {"expected_revision": None, "state": None, "title": None, "zone": "Europe/Rome"}
    await store.write(transactions.write_session, "default", "s", 3, **options)
    assert await accepted("4", None) == "Europe/Rome"


@pytest.mark.parametrize("by", [ended, parked])
async def test_p6_a_run_that_stops_is_there_to_be_told_of(store: Store, by: Callable[[Claimed], Tx[object]]) -> None:
    await store.write(by, await held(store))
    await store.write(transactions.accept, new("2"), 3)
    following = await claimed(store, "r_2")
    assert following is not None
    assert [(one.run, one.unanswered) for one in following.untold] == [("r_1", True)]


async def test_a_turn_that_is_shown_no_more_is_offered_once(store: Store, db: str) -> None:
    """By whichever of the sessions that go on from it."""
    await store.write(transactions.accept, new("1", user_id="kim"), 1)
    mine = await claimed(store, "r_1")
    assert mine is not None
    await store.write(committed, mine)
    for at in (3, 4):
        await store.write(offer, "default", "s", at, transactions.Dropped("a", 0, 9))
    ((id, message),) = invariants.written(db, sound=False).outbox.items()
    assert (id, message.at) == ("r_1/dropped", 3)


async def test_what_an_older_text_of_a_fact_means_is_not_kept_for_the_new_one(store: Store) -> None:
    scope = transactions.Scope("default", "a", "kim")
    fact = transactions.NewFact("f_1", "likes tea")
    by = {"by": "kim", "door": "python"}
    old = await store.write(transactions.remember_by_hand, scope, fact, 1, expires_at=None, **by)
    new_one = await store.write(transactions.edit_fact, scope, "f_1", "likes coffee", 2, **by)
    await store.write(transactions.keep_vectors, scope, "m", [(old, b"tea")])
    assert await store.read(lookups.without_vector, scope, "m", 3, 10) == [new_one]
    await store.write(transactions.keep_vectors, scope, "m", [(new_one, b"coffee")])
    assert await store.read(lookups.without_vector, scope, "m", 3, 10) == []


async def test_what_a_passage_means_is_kept_by_the_model_that_is_used_now(store: Store) -> None:
    space = transactions.Space("default", "documents", "", "", "handbook")
    await store.write(transactions.add_passages, space, [transactions.NewText("d", 0, "how to")])
    for model in ("one", "other"):
        await store.write(transactions.keep_text_vectors, space, model, [(0, b"v")])
        assert await store.read(lookups.passages_without_vector, space, model, 10, None) == []
