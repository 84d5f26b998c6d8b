"""Who may write? The transactions themselves, without anybody who drives: what each refuses, and whom it touches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from crash import invariants

from ondol import events, queries, transactions
from ondol.errors import AlreadyDecided, ClaimLost, SignalsUnread
from ondol.store import Store
from ondol.stores import open_store
from ondol.transactions import Claim, Claimed, NewRun, PlannedCall, Tx
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


async def held(store: Store, run: str = "r_1") -> Claimed:
    """The run is accepted and claimed, and has answered with a write and a read, which are planned."""
    await store.write(transactions.accept, new(run[2:]), 1)
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
    return transactions.end(mine.claim, 2, events.RunFailed(code="internal", message="no"))


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
    "end": lambda c, _: (transactions.end, c, 3, events.RunFailed(code="internal", message="no")),
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


# --- everybody else ---------------------------------------------------------------------------------------------


def interleaved(tx: Tx[Any], other: Tx[object]) -> Tx[Any]:
    """A transaction in which another one comes between what it has looked at first and what it does about that."""
    rows = yield next(tx)
    yield from other
    while True:
        try:
            batch = tx.send(rows)
        except StopIteration as done:
            return done.value
        rows = yield batch


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
    looks: dict[str, Callable[[], Tx[object]]] = {
        "release": lambda: transactions.release("default", run, fence, 3),
        "recover": lambda: transactions.recover("default", run, fence, 3),
        "recover a cancelled one": lambda: transactions.recover("default", run, fence, 3),
        "park": lambda: transactions.park_restored("default", run, 3),
        "end": lambda: transactions.end(mine.claim, 3, events.RunFailed(code="internal", message="no")),
    }
    if how == "recover a cancelled one":
        await store.write(transactions.cancel, "default", run, "kim", "python", "", 2)
    before = invariants.written(db, sound=False)
    with pytest.raises(ClaimLost):
        await store.write(interleaved, looks[how](), by(mine))
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
        transactions.decide("default", "a_1_x", transactions.Decision(kind=kind), by, "python", 3)
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
