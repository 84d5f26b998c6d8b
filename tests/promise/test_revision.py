"""The session's revision: raised by T6, waking T7, T8, T9 with something to tell, and explicit writes; by nothing else.

(N2. Every other test of this folder looks at the same sum when it is over.)
"""

from __future__ import annotations

import asyncio
from typing import Any

import behind
import pytest
from crash.lives import Life

from ondol import InvalidInput, NotFound, RevisionConflict, SessionBusy
from ondol.testing import FaultPlan, barrier, call, error
from promise.house import HELLO, House, rest, states, the_ask

LETTER, LOOK, WIRE = call("letter", to="kim"), call("look", order="1"), call("wire", to="kim")


async def revision(life: Life) -> int:
    return (await life.rt.get_session("s")).revision


async def test_a_turn_raises_it_once_whatever_it_did(house: House) -> None:
    agent = house.agent([LOOK, LETTER], [call("refund", order="1")], "done")
    async with house.life(agent) as life:
        for n, said in enumerate((HELLO, "go", HELLO), 1):
            result = await life.rt.run(agent, said, session="s", operation_id=f"op-{n}")
            assert result.revision == n == await revision(life)


async def test_accepting_queueing_claiming_and_working_do_not_raise_it(house: House) -> None:
    agent, in_letter = house.agent([LETTER], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.after", fault=in_letter)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        behind = await life.rt.start(agent, HELLO, session="s", operation_id="behind")
        await in_letter.reached.wait()
        assert await revision(life) == 0
        in_letter.go_on.set()
        assert await rest(run) == await rest(behind) == "completed"
        assert await revision(life) == 2


async def test_waiting_and_being_woken_raise_it_once_each(house: House) -> None:
    agent = house.agent([WIRE, call("wire", to="lee")], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        assert await revision(life) == 1  # T6
        for ask in await run.asks():
            await ask.approve(by="lee")
            await rest(run)
        # T7, T6, T7 - or T7 alone, if the second word came before the run waited again - and T8
        assert await revision(life) == (await run.result()).revision
        waited = [e async for e in run.events() if e.type == "run.waiting"]
        assert await revision(life) == 2 * len(waited) + 1


async def test_a_run_that_ended_without_a_write_does_not_raise_it(house: House) -> None:
    agent = house.agent([LOOK], error("rejected"))
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "failed"
        assert await revision(life) == 0


@pytest.mark.parametrize("then", ["completed", "waiting"])
@pytest.mark.parametrize("end", ["fail", "cancel", "resume, and cancel in the queue"])
async def test_a_parked_run_that_ends_takes_nothing_from_the_one_that_runs(house: House, end: str, then: str) -> None:
    agent = house.agent([call("refund", order="1")], "done")
    house.answers("meanwhile", *(["done"] if then == "completed" else [[WIRE], "done"]))
    for _ in range(3):
        await house.dies(agent, "refund.before")
    asking = barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=asking)) as life:
        parked = await life.rt.find_run("op")
        running = await life.rt.start(agent, "meanwhile", session="s", operation_id="meanwhile")
        await asking.reached.wait()
        if end == "fail":
            await (await the_ask(parked, "parked")).answer("fail", by="lee")
        elif end == "cancel":
            await parked.cancel(by="lee")
        else:
            await (await the_ask(parked, "parked")).answer("resume", by="lee")
            await parked.cancel(by="lee")
        assert await revision(life) == 1  # its T9: there is something to tell
        asking.go_on.set()
        assert await rest(running) == then
        assert await revision(life) == 2


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_a_run_that_ended_with_a_write_raises_it_once(house: House, end: str) -> None:
    agent, asking = house.agent([LETTER], [LETTER], error("rejected")), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", nth=3, fault=asking)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await asking.reached.wait()
        if end == "cancelled":
            await run.cancel(by="kim")
        asking.go_on.set()
        assert await rest(run) == end
        assert await revision(life) == 1


async def test_a_retried_run_that_fails_again_raises_it_only_for_new_writes(house: House) -> None:
    down = 3
    agent = house.agent([LETTER], lambda request: error("quota") if len(house.asked()) <= down else "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "failed"
        assert await revision(life) == 1
        again = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(again) == "failed"
        assert await revision(life) == 1  # the letter was told of before
        again = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert (await again.result()).revision == 2


async def test_crashes_and_takeovers_do_not_raise_it(house: House) -> None:
    agent = house.agent([LETTER], "done")
    run_id = await house.dies(agent, at="outcome.after")
    async with house.life(agent, dies_at="commit.before") as life:
        await life.ends()
    async with house.life(agent) as life:
        assert (await (await life.rt.get_run(run_id)).result()).revision == 1


async def test_settling_what_an_ended_run_did_does_not_raise_it(house: House) -> None:
    agent = house.agent([LETTER], "done")
    run_id = await house.dies(agent, at="letter.after")
    async with house.life(agent) as life:
        run = await life.rt.get_run(run_id)
        assert await rest(run) == "waiting"
        await run.cancel(by="kim")
        before = await revision(life)
        assert before == 2  # T6, and T9 with the letter
        await (await the_ask(run, "unknown_effect")).happened(by="lee")
        assert await revision(life) == before


async def test_a_decision_on_a_running_run_does_not_raise_it(house: House) -> None:
    agent, in_look = house.agent([WIRE, LOOK], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("look.before", fault=in_look)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_look.reached.wait()
        await (await the_ask(run)).approve(by="lee")
        assert await revision(life) == 0
        in_look.go_on.set()
        assert (await run.result()).revision == 1


# --- explicit writes --------------------------------------------------------------------------------------------


async def test_explicit_writes_raise_it_once_each_and_only_at_the_revision_they_name(house: House) -> None:
    agent = house.agent("done")
    async with house.life(agent) as life:
        session = await life.rt.write_session("s", title="Order 1182")
        assert session.revision == 1
        await session.set_state({"language": "ko"}, expected_revision=1)
        with pytest.raises(RevisionConflict) as conflict:
            await session.set_title("Order 1183", expected_revision=1)
        assert (conflict.value.expected, conflict.value.actual) == (1, 2)
        assert (await session.refresh()).title == "Order 1182"
        assert (await life.rt.run(agent, "go", session="s", operation_id="op")).revision == 3
        house.explicit["s"] = 2
        house.checked = False  # its state was written by hand
    house.written()


async def test_explicit_writes_are_refused_while_a_run_is_unfinished(house: House) -> None:
    agent = house.agent([WIRE], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        for write in (life.rt.write_session("s", title="x"), life.rt.delete_session("s", by="lee")):
            with pytest.raises(SessionBusy) as busy:
                await write
            assert busy.value.run == run.id
        assert await revision(life) == 1
        await run.cancel(by="kim")
        assert (await life.rt.write_session("s", title="x")).revision == 2
        house.explicit["s"] = 1


async def test_a_session_is_deleted_with_its_runs_from_the_revision_that_its_caller_has_seen(house: House) -> None:
    """To cancel them raises it, and that is no news to who asked for it."""
    agent = house.agent([LETTER], [WIRE], "done")
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "waiting"
        seen = await revision(life)
        with pytest.raises(RevisionConflict) as conflict:
            await life.rt.delete_session("s", expected_revision=seen - 1, cancel=True)
        assert (conflict.value.expected, conflict.value.actual) == (seen - 1, seen)
        assert (await run.refresh()).status == "waiting", "what is refused has cancelled nothing"
        await life.rt.delete_session("s", expected_revision=seen, cancel=True)
        assert (await run.refresh()).status == "cancelled"
        with pytest.raises(NotFound):
            await life.rt.get_session("s")
    house.checked = False  # the journal of a deleted session is gone


async def test_a_turn_that_is_committed_as_its_session_is_to_be_deleted_is_not_erased_unseen(house: House) -> None:
    agent, in_commit = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("commit.before", fault=in_commit)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await in_commit.reached.wait()
        in_cancel = barrier()
        life.plan.at("cancel.before", fault=in_cancel)
        deleting = asyncio.create_task(life.rt.delete_session("s", expected_revision=0, cancel=True))
        await in_cancel.reached.wait()
        in_commit.go_on.set()
        assert await rest(run) == "completed"
        in_cancel.go_on.set()
        with pytest.raises(RevisionConflict):
            await deleting
        assert await revision(life) == 1


async def test_an_operation_at_another_revision_is_refused_with_both_numbers(house: House) -> None:
    agent = house.agent("done")
    async with house.life(agent) as life:
        await life.rt.run(agent, HELLO, session="s", operation_id="one", expected_revision=0)
        with pytest.raises(RevisionConflict) as conflict:
            await life.rt.start(agent, "go", session="s", operation_id="two", expected_revision=0)
        assert (conflict.value.session, conflict.value.expected, conflict.value.actual) == ("s", 0, 1)
        assert len(house.written().runs) == 1
        assert (await life.rt.run(agent, "go", session="s", operation_id="two", expected_revision=1)).revision == 2


@pytest.mark.parametrize("given", ["1", True, 1.0])
async def test_what_is_no_revision_is_refused_and_conflicts_with_none(house: House, given: Any) -> None:
    agent = house.agent("done")
    async with house.life(agent) as life:
        await life.rt.run(agent, HELLO, session="s", operation_id="one")
        session = await life.rt.get_session("s")
        for doing in (
            life.rt.start(agent, "go", session="s", expected_revision=given),
            session.set_title("t", expected_revision=given), session.pin("p", expected_revision=given),
            session.unpin("p1", expected_revision=given), session.compact(expected_revision=given),
            session.delete(expected_revision=given),
        ):  # fmt: skip
            with pytest.raises(InvalidInput, match="give the number that the session had"):
                await doing
        assert await revision(life) == 1


async def test_an_expected_revision_conflicts_at_once_while_a_run_is_unfinished(house: House) -> None:
    agent, in_model = house.agent("done"), barrier()
    async with house.life(agent, plan=FaultPlan().at("model.before", fault=in_model)) as life:
        run = await life.rt.start(agent, HELLO, session="s", operation_id="one")
        await in_model.reached.wait()
        with pytest.raises(RevisionConflict):
            await life.rt.start(agent, "go", session="s", operation_id="two", expected_revision=0)
        in_model.go_on.set()
        assert await rest(run) == "completed"


async def test_a_queued_run_is_not_stale_for_having_waited(house: House) -> None:
    agent, in_letter = house.agent([LETTER], error("rejected")), barrier()
    async with house.life(agent, plan=FaultPlan().at("letter.after", fault=in_letter)) as life:
        first = await life.rt.start(agent, "go", session="s", operation_id="one")
        await in_letter.reached.wait()
        second = await life.rt.start(agent, HELLO, session="s", operation_id="two")
        in_letter.go_on.set()
        assert await rest(first) == "failed"
        assert (await second.result()).revision == 2


async def test_n13_who_was_answered_before_the_next_one_was_sent_has_the_smaller_revision(house: House) -> None:
    agent = house.agent([LETTER], "done")
    async with house.life(agent) as life:
        before = 0
        for n in range(5):
            both = await asyncio.gather(
                life.rt.run(agent, "go", session="s", operation_id=f"a{n}"),
                life.rt.run(agent, HELLO, session="s", operation_id=f"b{n}"),
            )
            assert sorted(r.revision for r in both) == [before + 1, before + 2]
            before += 2


# --- B15 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["commit.before", "suspend.before"])
async def test_b15_a_revision_that_somebody_else_moved_fails_the_run_and_merges_nothing(house: House, at: str) -> None:
    agent, place = house.agent([LETTER] if at == "commit.before" else [LETTER, WIRE], "done"), barrier()
    async with house.life(agent, plan=FaultPlan().at(at, fault=place)) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        await place.reached.wait()
        behind.execute(house.db, "UPDATE sessions SET revision = revision + 1")
        house.explicit["s"] = 1
        place.go_on.set()
        assert await rest(run) == "failed"
        assert run.error is not None
        assert run.error["code"] == "conflict"
        assert not run.retryable
        assert (await states(run))[0] == ("letter", "succeeded", 1)  # it keeps its effects
        assert not await (await life.rt.get_session("s")).messages()
        assert not await run.asks()
        again = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(again) == "failed"
        assert (await life.rt.run(agent, HELLO, session="s", operation_id="next")).revision == 3
    assert house.count("letter") == 1
