"""C03: a crash in the middle of a batch of calls does not replay the batch."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kit import Conversation, Outside, app, holds_in_all_cases, results, serve, waits

from ondol import Agent, Context, Happened, NotHappened, Runtime, tool
from ondol.testing import Downstream, FaultPlan, ManualClock, call, kill
from ondol.testing.downstream import afind

BATCH = ("send_mail", "update_db", "notify")
LATER = timedelta(hours=1)  # after the deadline of whatever the dead process had started


async def send_mail(ctx: Context[Outside]) -> str:
    await ctx.deps.effect(ctx, "send_mail", dedupe=True)
    return "mail sent"


async def update_db(ctx: Context[Outside]) -> str:
    await ctx.deps.effect(ctx, "update_db", dedupe=True)
    return "row written"


async def notify(ctx: Context[Outside]) -> str:
    await ctx.deps.effect(ctx, "notify", dedupe=True)
    return "all notified"


ANSWERS = ["mail sent", "row written", "all notified"]


async def look_downstream(ctx: Context[Outside]) -> Happened | NotHappened:
    return Happened("found downstream") if await afind(ctx.deps.url, ctx.idempotency_key) else NotHappened()


DECLARED: dict[str, dict[str, Any]] = {
    "once": {"effect": "once"},
    "checked": {"effect": "once", "check": look_downstream},
    "idempotent": {"effect": "idempotent"},
    "read": {"effect": "read"},
}


def batch(kind: str) -> Agent:
    model = Conversation({"do all three": [[call(name) for name in BATCH], "all three are done"]})
    return Agent(kind, model=model, tools=[tool(**DECLARED[kind])(f) for f in (send_mail, update_db, notify)])


#: Where the process dies, by the write or the place in a tool. The calls run side by side.
POINTS = [
    ("answer.after", 1),  # before call 1
    ("started.after", 1),  # written down as started, not made
    ("update_db.before", 1),  # inside call 2, before the effect
    ("update_db.after", 1),  # inside call 2, after the effect
    ("outcome.before", 2),  # two calls have returned, one of them is not written down
    ("outcome.after", 2),  # two calls are written down
    ("outcome.after", 3),  # all calls are written down, the model was not asked again
]


CASES = [("once", *point) for point in POINTS]
CASES += [(kind, *point) for kind in ("checked", "idempotent") for point in POINTS[1:6]]
CASES += [("read", "answer.after", 1), ("read", "update_db.after", 1), ("read", "outcome.after", 2)]


@pytest.mark.parametrize(("kind", "point", "nth"), CASES)
async def test_c03_a_crash_in_a_batch(db: str, tmp_path: Path, kind: str, point: str, nth: int) -> None:
    ledger = tmp_path / "ledger.jsonl"
    async with (
        Downstream(ledger) as downstream,
        app(__file__, db, downstream, FaultPlan().at(point, nth=nth, fault=kill())) as child,
    ):
        run_id = await child.do("start", agent=kind, input="do all three", session="s", operation_id="m1")
        await child.dies()
    async with Runtime(db) as nobody:  # it has no agent, so it only looks
        at_crash = await nobody.effects(run=run_id)

    agent = batch(kind)
    clock = ManualClock(datetime.now(UTC) + LATER)
    async with (  # the service was away too, so no request of the dead process is still on its way
        Downstream(ledger) as downstream,
        Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt,
    ):
        run = await rt.get_run(run_id)
        in_flight = [e.id for e in at_crash if e.state == "started"]
        if kind == "once" and in_flight:
            asks = await waits(run)
            assert [(a.kind, a.effect) for a in asks] == [("unknown_effect", id) for id in in_flight]
            for ask in asks:
                effect = await rt.get_effect(ask.effect or "")
                if await downstream.count(key=effect.key):
                    await ask.happened("seen in the ledger", by="kim")
                else:
                    await ask.not_happened("not in the ledger", by="kim")
        assert (await (await rt.get_run(run_id)).result()).text == "all three are done"

        after = {e.id: e for e in await run.effects()}
        for before in at_crash:
            now = after[before.id]
            assert (now.key, now.state) == (before.key, "succeeded")
            if before.state == "succeeded":
                assert (now.attempt, now.ended_at) == (before.attempt, before.ended_at)  # reused
        assert Counter(line.tool for line in await downstream.effects()) == dict.fromkeys(BATCH, 1)

        (request,) = model_requests(agent)  # what had been answered was not asked again
        told = [str(r.response) for r in results(request.messages)]
        assert len(told) == len(BATCH)
        for got, real in zip(told, ANSWERS, strict=True):
            assert got in (real, "seen in the ledger", "found downstream")
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


def model_requests(agent: Agent) -> list[Any]:
    assert isinstance(agent.model, Conversation)
    return agent.model.of["do all three"].requests


if __name__ == "__main__":
    serve([batch(kind) for kind in DECLARED])
