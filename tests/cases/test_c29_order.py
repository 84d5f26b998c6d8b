"""C29: order comes from a sequence, never from the clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from kit import Conversation, Outside, conversation, holds_in_all_cases, notes, waits

from ondol import Agent, Context, RunCancelled, Runtime, Session, SessionMessage, tool
from ondol.testing import Downstream, ManualClock, call, text

STEP_BACK = -0.040  # seconds
JUMP_BACK = -3600.0  # seconds
TURNS = 3
PAGE = 2


@dataclass(frozen=True)
class Machine(Outside):
    """Its clock is set back while a tool runs."""

    clock: ManualClock = field(default_factory=ManualClock)
    back: float = STEP_BACK


async def measure(ctx: Context[Machine], what: str) -> str:
    ctx.deps.clock.advance(ctx.deps.back)
    await ctx.deps.effect(ctx, "measure", what=what)
    return f"{what} measured"


@tool(approve=True)
async def publish(ctx: Context[Machine], what: str) -> str:
    ctx.deps.clock.advance(ctx.deps.back)
    await ctx.deps.effect(ctx, "publish", what=what)
    return f"{what} published"


def turn(n: int) -> list[tuple[str, str]]:
    return [
        ("user", f"turn {n}"),
        ("assistant", "I measure"),
        ("assistant", f"measure(what='a{n}')"),
        ("assistant", f"measure(what='b{n}')"),
        ("assistant", f"publish(what='c{n}')"),
        ("tool", f"measure: a{n} measured"),
        ("tool", f"measure: b{n} measured"),
        ("tool", f"publish: c{n} published"),
        ("assistant", f"done {n}"),
    ]


def lab() -> Agent:
    def script(n: int) -> list[object]:
        calls = [call("measure", what=f"a{n}"), call("measure", what=f"b{n}"), call("publish", what=f"c{n}")]
        return [[text("I measure"), *calls], f"done {n}"]

    scripts = {f"turn {n}": script(n) for n in range(1, TURNS + 1)}
    return Agent("lab", model=Conversation(scripts), tools=[measure, publish])  # type: ignore[arg-type]


async def paged(session: Session) -> list[SessionMessage]:
    """All messages, two at a time."""
    seen: list[SessionMessage] = []
    while page := await session.messages(after=seen[-1].seq if seen else -1, limit=PAGE):
        assert len(page) <= PAGE
        seen += page
    return seen


@pytest.mark.parametrize("back", [0.0, STEP_BACK, JUMP_BACK], ids=["frozen", "40 ms back", "an hour back"])
async def test_c29_three_turns_with_parallel_calls_and_a_suspension(
    db: str, downstream: Downstream, back: float
) -> None:
    clock, agent = ManualClock(), lab()
    machine = Machine(downstream.url, clock=clock, back=back)
    runs = []
    for n in range(1, TURNS + 1):
        async with Runtime(db, agents=[agent], deps=machine, clock=clock) as rt:
            run = await rt.start(agent, f"turn {n}", session="s", operation_id=f"m{n}")
            (ask,) = await waits(run)
            clock.advance(back)
            runs.append(run.id)
        clock.advance(back)
        async with Runtime(db, agents=[agent], deps=machine, clock=clock) as rt:
            await (await rt.get_ask(ask.id)).approve(by="kim")
            assert (await (await rt.get_run(run.id)).result()).text == f"done {n}"
        clock.advance(back)

    async with Runtime(db, agents=[agent], deps=machine, clock=clock) as rt:
        session = await rt.get_session("s")
        stored = await session.messages()
        assert conversation([m.message for m in stored]) == [line for n in range(1, TURNS + 1) for line in turn(n)]
        assert [m.seq for m in stored] == sorted({m.seq for m in stored})
        assert await paged(session) == stored
        # Newest first is the order in which they were accepted, whatever the clock said then.
        assert [r.id for r in await session.runs()] == runs[::-1]
        first, second = (await rt.runs(session="s", limit=PAGE))[:PAGE]
        assert [r.id for r in await rt.runs(session="s", limit=PAGE, before=second.id)] == runs[:1]
        assert [first.id, second.id] == runs[:0:-1]
        assert [a.run for a in await rt.asks(session="s", state=None)] == runs  # the oldest first
        assert list(dict.fromkeys(e.run for e in await rt.effects(session="s"))) == runs[::-1]

        request = await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)
        assert conversation(request.messages)[1:-1] == [line for n in range(1, TURNS + 1) for line in turn(n)]


async def test_c29_what_was_left_unanswered_is_told_in_its_order(db: str, downstream: Downstream) -> None:
    clock, agent = ManualClock(), lab()
    machine = Machine(downstream.url, clock=clock, back=JUMP_BACK)
    async with Runtime(db, agents=[agent], deps=machine, clock=clock) as rt:
        for n in range(1, TURNS + 1):
            run = await rt.start(agent, f"turn {n}", session="s", operation_id=f"m{n}")
            await waits(run)
            await run.cancel(by="kim")
            with pytest.raises(RunCancelled):
                await run.result()
        (note,) = notes(await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock))
        places = [note.index(what) for n in range(1, TURNS + 1) for what in (f"'turn {n}'",)]
        assert places == sorted(places)
        effects = [note.index(f"a{n}") for n in range(1, TURNS + 1)]
        assert effects == sorted(effects)
