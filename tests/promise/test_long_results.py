"""A long result is a blob before its outcome is written: what a crash between the two leaves, and what it does not."""

from __future__ import annotations

from decimal import Decimal

from ondol import By, Context, ModelRequest, PolicyRules, Rule, ToolResponse, tool
from ondol.testing import call
from promise.house import House, letter, rest, the_ask

LONG = "word by word, " * 3_000


@tool(effect="once")
async def report(ctx: Context[House]) -> str:
    await ctx.deps.act(ctx, "report")
    return LONG


async def test_a_crash_between_the_blob_and_the_outcome_leaves_a_blob_that_is_collected_after_a_day(
    house: House,
) -> None:
    agent = house.agent([call("report")], "done", tools=[report])
    await house.dies(agent, "outcome.before")
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "waiting"  # started, and nobody can tell
        (digest,) = house.written().blobs
        house.clock.advance(hours=22)  # after the hour that is over
        assert await life.engine.collect_blobs() == 0
        assert await life.rt.get_blob(digest) == LONG.encode()
        house.clock.advance(hours=2)
        assert await life.engine.collect_blobs() == 1
        await (await the_ask(run, "unknown_effect")).not_happened(by="kim")
        assert await rest(run) == "completed"  # the second attempt brings it again
        (again,) = house.written().blobs
        assert (again, (await run.effects())[0].blob) == (digest, digest)
        house.clock.advance(days=365)
        assert await life.engine.collect_blobs() == 0
    assert house.count("report") == 2  # as the person said


async def test_a_crash_after_the_outcome_leaves_a_blob_that_is_used(house: House) -> None:
    agent = house.agent([call("report")], "done", tools=[report])
    await house.dies(agent, "outcome.after")
    house.clock.advance(days=365)
    async with house.life(agent) as life:
        assert await life.engine.collect_blobs() == 0
        run = await life.rt.find_run("op")
        assert await rest(run) == "completed"
        (effect,) = await run.effects()
        assert await life.rt.get_blob(effect.blob or "") == LONG.encode()
    assert house.count("report") == 1


ROWS = [{"n": n, "paid": Decimal("0.10")} for n in range(2_000)]


@tool(effect="once")
async def rows(ctx: Context[House]) -> list[dict[str, object]]:
    await ctx.deps.act(ctx, "rows")
    return ROWS


@tool(effect="steps")
async def count(ctx: Context[House]) -> str:
    read = await ctx.call(rows)
    await ctx.call(letter, to=str(len(read)))
    return str(sum(row["paid"] for row in read))


async def test_the_body_of_a_tool_of_steps_is_given_all_of_a_long_result_also_after_a_crash(house: House) -> None:
    agent = house.agent([call("count")], "done", tools=[count])
    await house.dies(agent, "outcome.after", nth=1)  # that of the first step
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        assert await rest(run) == "completed"
        (_, asked, got, _) = await run.messages()
        assert [c.name for c in asked.calls] == ["count"]
        assert [p.response for p in got.parts if isinstance(p, ToolResponse)] == ["200.00"]
        whole, first, _ = await run.effects()
        assert (whole.blob, first.blob is not None) == (None, True)
        assert [t.name for t in house.asked(run)[-1].tools] == ["count"]  # the model was shown nothing long
    assert [(line.tool, line.arguments) for line in house.ledger] == [("rows", {}), ("letter", {"to": "2000"})]


async def test_no_policy_stands_before_the_rest_of_a_result_that_it_allowed(house: House) -> None:
    def read_on(request: ModelRequest) -> object:
        (result,) = (p for p in request.messages[-1].parts if isinstance(p, ToolResponse))
        assert result.blob is not None
        return call("read_more", reference=result.blob.digest)

    agent = house.agent([call("report")], read_on, "done", tools=[report])
    nothing_else = PolicyRules([Rule(tool="report", then="allow")], unknown="deny")
    async with house.life(agent, policy=nothing_else) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        assert [(e.tool, e.state) for e in await run.effects()] == [("report", "succeeded"), ("read_more", "succeeded")]


async def test_a_replay_that_reuses_a_long_result_keeps_it_and_reads_on_in_its_own_session(house: House) -> None:
    def read_on(request: ModelRequest) -> object:
        (result,) = (p for p in request.messages[-1].parts if isinstance(p, ToolResponse))
        assert result.blob is not None
        return call("read_more", reference=result.blob.digest, offset=len(LONG) - 5)

    agent = house.agent([call("report")], read_on, "done", tools=[report])
    async with house.life(agent) as life:
        run = await life.rt.start(agent, "go", session="s", operation_id="op")
        assert await rest(run) == "completed"
        again = await life.rt.replay(run, force=By("lee", "once more"))
        assert await rest(again) == "completed"
        assert again.session != run.session
        (first, read) = await again.effects()
        assert (first.reuses, first.blob, read.state) == ((await run.effects())[0].id, first.blob, "succeeded")
        assert first.blob is not None
        shown = house.asked(again)[-1].messages[-1].parts[0]
        assert isinstance(shown, ToolResponse)
        assert shown.text.endswith(LONG[-5:])
        assert {(run.id, first.blob), (again.id, first.blob)} == house.written().uses
    assert house.count("report") == 1
