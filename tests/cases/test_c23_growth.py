"""C23: what a session takes on the disk grows with what is said in it, and not with its square."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import ParamSpec, TypeVar

import apsw
import behind
import pytest
from kit import asked

from ondol import Agent, Answer, ContextPolicy, ModelRequest, Runtime, Text, checksums, messages, tool
from ondol.providers.script import Reply
from ondol.stores import open_store
from ondol.testing import FaultPlan, FaultyStore, ScriptedModel, call
from ondol.transactions import Tx

P = ParamSpec("P")
T = TypeVar("T")

TURNS, STEPS, WORDS = 30, 3, 2000  # turns; model calls with a tool in each; characters of every message
PIECES = 3  # in which the session is looked at


def _text(*about: object) -> str:
    """So many characters that nobody has said before, and that cannot be made smaller by much."""
    return random.Random(repr(about)).randbytes(WORDS // 2).hex()


@tool(effect="read")
async def look(at: str) -> str:
    return _text("found", at)


def talker() -> Agent:
    def answer(request: ModelRequest) -> Reply:
        said = asked(request)[:20]
        if request.step < STEPS:
            return [_text(said, request.step), call("look", at=f"{said}{request.step}")]
        return _text(said, "end")

    return Agent("talker", model=ScriptedModel(answer), tools=[look])


def size(db: str) -> int:
    """Bytes of the store when nobody has it open."""
    if not db.startswith("sqlite:///"):
        behind.execute(db, "VACUUM")  # as the server does by itself, some time later
    return sum(behind.sizes(db))


@pytest.mark.both_stores
async def test_c23_a_session_grows_with_what_is_said_in_it(db: str) -> None:
    agent = talker()
    async with Runtime(db, agents=[agent]):
        empty = size(db)
    sizes = list[int]()
    for piece in range(PIECES):
        async with Runtime(db, agents=[agent]) as rt:
            for n in range(TURNS // PIECES):
                turn = piece * TURNS + n
                result = await rt.run(agent, _text("user", turn), session="s", operation_id=f"op-{turn}")
                assert result.text == _text(_text("user", turn)[:20], "end")
        sizes.append(size(db))
    first, second = (after - before for before, after in pairwise(sizes))
    assert second < 1.2 * first, f"it grew by {first}, then by {second}"
    said = TURNS * WORDS * (2 + 2 * STEPS)  # the user and the answer; in each step a text and a result
    assert sizes[-1] - empty < 3 * said, f"{sizes[-1] - empty} bytes for {said} characters"


async def test_c23_a_deleted_session_leaves_little_behind_and_its_ids_are_known(db: str) -> None:
    agent = talker()
    async with Runtime(db, agents=[agent]) as rt:
        for turn in range(TURNS // PIECES):
            await rt.run(agent, _text("user", turn), session="s", operation_id=f"op-{turn}")
        await (await rt.get_session("s")).delete(by="kim")
        for turn in range(TURNS // PIECES):
            assert (await rt.find_run(f"op-{turn}")).status == "completed"
        full = size(db)
    for turn in range(3):  # the room is used again: another session of the same size needs no more
        async with Runtime(db, agents=[agent]) as rt:
            for n in range(TURNS // PIECES):
                await rt.run(agent, _text("user", n), session=f"s{turn}", operation_id=f"again-{turn}-{n}")
            await (await rt.get_session(f"s{turn}")).delete(by="kim")
    assert size(db) < 2.5 * full


# --- loading the next turn --------------------------------------------------------------------------------------


class Counting(FaultyStore):
    """A store that counts the rows, and their bytes, that are read from it."""

    rows = size = 0

    async def read(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await super().read(self._counted(tx), *args, **kwargs)

    async def write(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await super().write(self._counted(tx), *args, **kwargs)

    def _counted(self, tx: Callable[P, Tx[T]]) -> Callable[P, Tx[T]]:
        def counted(*args: P.args, **kwargs: P.kwargs) -> Tx[T]:
            running = tx(*args, **kwargs)
            batch = next(running, None)
            while batch is not None:
                found = yield batch
                read = [row for rows in found for row in rows]
                self.rows += len(read)
                self.size += sum(len(v) for row in read for v in row if isinstance(v, str | bytes))
                try:
                    batch = running.send(found)
                except StopIteration as ended:
                    return ended.value  # type: ignore[no-any-return]
            raise AssertionError("a transaction has statements")

        counted.__name__ = tx.__name__
        return counted


@contextmanager
def work(db: str) -> Iterator[list[int]]:
    """What the database did meanwhile, in a list of one number: steps of SQLite's machine, or rows that PostgreSQL
    looked at."""
    done = [0]
    if behind.file_of(db) is None:
        seen = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables"
        (before,) = behind.execute(db, seen)[0]
        yield done
        assert behind.held(db) == []  # a connection that ends says what it did
        done[0] = behind.execute(db, seen)[0][0] - before
        return

    def step() -> bool:
        done[0] += 1
        return False

    def watched(connection: apsw.Connection) -> None:
        connection.set_progress_handler(step, 1)

    apsw.connection_hooks.append(watched)
    try:
        yield done
    finally:
        apsw.connection_hooks.remove(watched)


def talked_before(db: str, session: str, count: int) -> None:
    """As if the turn of a session had been had again and again, until there are so many messages."""
    (run,) = [row for row in behind.rows_of(db, "runs") if row["session"] == session]
    said = [row for row in behind.rows_of(db, "messages") if row["run"] == run["id"]]
    places = 1 + len(said)  # a turn has one for its note
    runs, bodies = [], []
    for turn in range(1, count // len(said)):
        id = f"r_{session}_{turn}"
        runs.append({**run, "id": id, "operation_id": id, "base": places * turn, "place": turn})
        for m in said:
            total = checksums.of_message(id, m["ordinal"], messages.unpack(bytes(m["body"])))
            bodies.append({**m, "run": id, "sum": total})
    for table, rows in (("runs", runs), ("messages", bodies)):
        behind.insert(db, table, [{name: row[name] for name in row if name != "n"} for row in rows])
    next_message = places * (len(runs) + 1)
    behind.execute(
        db, f"UPDATE sessions SET next_message = {next_message}, next_place = {len(runs) + 1} WHERE id = '{session}'"
    )
    if behind.file_of(db) is None:
        behind.execute(db, "ANALYZE")  # as the server does by itself, some time later


@pytest.mark.both_stores
async def test_c23_loading_the_next_turn_costs_the_window_and_not_the_history(db: str) -> None:
    """Each in a process of its own, which has nothing at hand."""
    model = ScriptedModel(lambda request: _text("answer"))
    agent = Agent("talker", model=model, context=ContextPolicy(budget=20_000, keep=2))
    costs = dict[int, tuple[int, int, int]]()
    for count in (100, 1_000, 10_000):
        session = f"s{count}"
        async with Runtime(db, agents=[agent]) as rt:
            await rt.run(agent, _text("user"), session=session)
        talked_before(db, session, count)
        async with Runtime(db, agents=[agent]) as rt:
            assert len(await (await rt.get_session(session)).messages(limit=20_000)) == count
            await rt.compact_session(session, keep=5, model_free=True, by="kim")
        store = Counting(open_store(db), FaultPlan())
        with work(db) as done:
            async with Runtime(store, agents=[agent]) as rt:
                await rt.run(agent, _text("next"), session=session)
        assert [m.role for m in model.requests[-1].messages[-11:]] == ["user", "assistant"] * 5 + ["user"]
        costs[count] = store.rows, store.size, done[0]
    (rows, size, steps), *more = costs.values()
    for later in more:
        assert later[0] <= rows + 2, costs
        assert later[1] <= 1.05 * size, costs
        assert later[2] <= 1.25 * steps, costs  # a tree that is a hundred times as large is a few steps deeper


class Steady:
    """A model that keeps nothing of what it is asked."""

    name = "steady"

    async def stream(self, request: ModelRequest) -> AsyncIterator[Answer]:
        yield Answer(parts=(Text("well"),), stop="stop")


async def test_c23_a_turn_calls_no_more_functions_after_a_hundred_turns(db: str) -> None:
    """Of an agent without tools, too, which asks whether the session holds calls of another one."""
    agent = Agent("steady", model=Steady())
    called: Counter[str] = Counter()

    async def turns(rt: Runtime, count: int) -> int:
        called.clear()
        sys.setprofile(lambda frame, event, _: called.update([event]))
        try:
            for _ in range(count):
                await rt.run(agent, "hello", session="s")
        finally:
            sys.setprofile(None)
        return called["call"] // count

    async with Runtime(db, agents=[agent]) as rt:
        await turns(rt, 5)
        first = await turns(rt, 10)
        await turns(rt, 100)
        assert await turns(rt, 10) < first + 100  # one function a message would be 230 more
