"""C43: "today" is the user's day, shown with its offset, and the same for the model and the tools.

Left out until they exist: schedules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo, reset_tzpath

import pytest
from kit import Conversation, Gate, Outside, app, asked, holds_in_all_cases, serve, until, waits

from ondol import Agent, Context, ContextPolicy, InvalidInput, Memory, ModelRequest, Runtime, tool
from ondol.providers.script import Reply, Script
from ondol.testing import Downstream, FaultPlan, ManualClock, ScriptedModel, call, kill

SEOUL, MONTEVIDEO = "Asia/Seoul", "America/Montevideo"
AFTER_MIDNIGHT_IN_SEOUL = "2026-11-29T15:30Z"
EVENING_IN_MONTEVIDEO = "2026-11-30T01:06Z"


async def remind(ctx: Context[Outside], day: str, hour: int) -> str:
    """File a reminder for ``today`` or ``tomorrow``, as the user counts days."""
    here = ctx.now().astimezone(ZoneInfo(ctx.time_zone or "UTC"))
    at = here.replace(hour=hour, minute=0, second=0) + timedelta(days=int(day == "tomorrow"))
    await ctx.deps.effect(ctx, "remind", at=at.isoformat())
    return at.isoformat()


@tool(approve=True)
async def note_time(ctx: Context[Outside]) -> str:
    await ctx.deps.effect(ctx, "note_time", at=ctx.now().isoformat(), zone=ctx.time_zone)
    return "noted"


def clerk() -> Agent:
    scripts = {
        "today": [[call("remind", day="today", hour=23)], "filed"],
        "tomorrow 9am": [[call("remind", day="tomorrow", hour=9)], "filed"],
        "when you may": [[call("note_time")], "noted it"],
        "what day is it?": ["see above"],
    }
    return Agent("clerk", model=Conversation(scripts), instructions="Be brief.", tools=[remind, note_time])


def shown(agent: Agent, said: str, nth: int = -1) -> str:
    """The system message of a request."""
    assert isinstance(agent.model, Conversation)
    return first_text(agent.model.of[said].requests[nth])


def first_text(request: ModelRequest) -> str:
    system = request.messages[0]
    assert system.role == "system"
    return system.text


@pytest.mark.parametrize(
    ("now", "zone", "clock_shown", "today", "tomorrow"),
    [
        (
            AFTER_MIDNIGHT_IN_SEOUL, SEOUL, "Monday, 2026-11-30 00:30 +09:00 (Asia/Seoul)",
            "2026-11-30T23:00:00+09:00", "2026-12-01T09:00:00+09:00",
        ),
        (
            EVENING_IN_MONTEVIDEO, MONTEVIDEO, "Sunday, 2026-11-29 22:06 -03:00 (America/Montevideo)",
            "2026-11-29T23:00:00-03:00", "2026-11-30T09:00:00-03:00",
        ),
        (
            "2026-03-08T06:59Z", "America/New_York", "Sunday, 2026-03-08 01:59 -05:00 (America/New_York)",
            "2026-03-08T23:00:00-04:00", "2026-03-09T09:00:00-04:00",
        ),
        (
            AFTER_MIDNIGHT_IN_SEOUL, None, "Sunday, 2026-11-29 15:30 +00:00 (UTC)",
            "2026-11-29T23:00:00+00:00", "2026-11-30T09:00:00+00:00",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("named_by", ["request", "deployment"])
async def test_c43_the_model_and_the_tools_have_the_users_day(
    db: str, downstream: Downstream, named_by: str, now: str, zone: str | None, clock_shown: str, today: str,
    tomorrow: str,
) -> None:  # fmt: skip
    agent, clock = clerk(), ManualClock(now)
    deployed, asked = (zone, None) if named_by == "deployment" else ("Pacific/Apia" if zone else None, zone)
    outside = Outside(downstream.url)
    async with Runtime(db, agents=[agent], deps=outside, clock=clock, time_zone=deployed) as rt:
        await rt.run(agent, "today", session="s", operation_id="m1", time_zone=asked)
        await rt.run(agent, "tomorrow 9am", session="s", operation_id="m2", time_zone=asked)
        for said in ("today", "tomorrow 9am"):
            assert shown(agent, said).startswith("Be brief.")
            assert f"{clock_shown}." in shown(agent, said)
        assert [line.arguments for line in await downstream.effects()] == [{"at": today}, {"at": tomorrow}]
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c43_the_zone_of_the_machine_does_not_matter(db: str, downstream: Downstream) -> None:
    agent = clerk()
    for n, machine in enumerate([MONTEVIDEO, SEOUL]):
        async with app(__file__, db, downstream, TZ=machine) as child:
            await child.do("run", agent="clerk", input="what day is it?", session="s", operation_id=f"n{n}")
            await child.do(
                "run", agent="clerk", input="what day is it?", session="s", operation_id=f"z{n}", time_zone="Asia/Tokyo"
            )
    async with Runtime(db, agents=[agent]) as rt:
        for run in await rt.runs(session="s"):
            zone, name = (UTC, "UTC") if run.time_zone is None else (ZoneInfo("Asia/Tokyo"), "Asia/Tokyo")
            text = (await rt.context(run.id)).messages[0].text
            local = run.accepted_at.astimezone(zone)
            assert f"{local:%Y-%m-%d %H:%M} {'+09:00' if name != 'UTC' else '+00:00'} ({name})" in text
            assert abs(run.accepted_at - datetime.now(UTC)) < timedelta(minutes=5)  # an instant, not a local time
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c43_a_run_that_slept_over_night_is_told_when_it_began_and_what_time_it_is(
    db: str, downstream: Downstream
) -> None:
    agent, clock = clerk(), ManualClock("2026-11-29T14:50Z")  # 23:50 in Seoul
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.start(agent, "when you may", session="s", operation_id="m1", time_zone=SEOUL)
        (ask,) = await waits(run)
        assert "Sunday, 2026-11-29 23:50 +09:00 (Asia/Seoul)" in shown(agent, "when you may")
    clock.set("2026-11-29T23:05Z")  # the next morning
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock, time_zone="UTC") as rt:
        await (await rt.get_ask(ask.id)).approve(by="kim")
        assert (await (await rt.get_run(run.id)).result()).text == "noted it"
        now = shown(agent, "when you may")
        assert "started at Sunday, 2026-11-29 23:50 +09:00 (Asia/Seoul)" in now
        assert "now it is Monday, 2026-11-30 08:05 +09:00 (Asia/Seoul)" in now
        (line,) = await downstream.effects()
        assert line.arguments == {"at": "2026-11-29T23:05:00+00:00", "zone": SEOUL}
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c43_a_message_that_was_queued_over_night_is_told_when_it_came_and_what_time_it_is(
    db: str, downstream: Downstream
) -> None:
    agent, clock = clerk(), ManualClock("2026-11-29T14:50Z")  # 23:50 in Seoul
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        first = await rt.start(agent, "when you may", session="s", operation_id="m1", time_zone=SEOUL)
        (ask,) = await waits(first)
        second = await rt.start(agent, "what day is it?", session="s", operation_id="m2", time_zone=SEOUL)
        clock.set("2026-11-29T23:05Z")  # the next morning
        third = await rt.start(agent, "today", session="s", operation_id="m3", time_zone=SEOUL)
        await ask.approve(by="kim")
        assert (await second.result()).text == "see above"
        assert "started at Sunday, 2026-11-29 23:50 +09:00 (Asia/Seoul)" in shown(agent, "what day is it?")
        assert "now it is Monday, 2026-11-30 08:05 +09:00 (Asia/Seoul)" in shown(agent, "what day is it?")
        assert (await third.result()).text == "filed"
        assert "Current date and time: Monday, 2026-11-30 08:05 +09:00 (Asia/Seoul)." in shown(agent, "today")
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


@pytest.mark.parametrize(
    ("minutes", "told"),
    [
        (4, "Current date and time: Sunday, 2026-11-29 23:50 +09:00 (Asia/Seoul)."),
        (9 * 60, "now it is Monday, 2026-11-30 08:50 +09:00 (Asia/Seoul)."),
    ],
    ids=["soon", "hours later"],
)
async def test_c43_a_message_that_joins_a_turn_is_told_what_time_it_is(db: str, minutes: float, told: str) -> None:
    clock, gate = ManualClock("2026-11-29T14:50Z"), Gate()  # 23:50 in Seoul

    @tool(effect="read", timeout=timedelta(days=1))
    async def build() -> str:
        gate.reach()
        await gate.wait()
        return "built"

    agent = Agent("builder", model=ScriptedModel([[call("build")], "built"]), tools=[build])
    async with Runtime(db, agents=[agent], clock=clock) as rt:
        run = await rt.start(agent, "build it", session="s", time_zone=SEOUL)
        await gate.reached.wait()
        clock.advance(minutes=minutes)
        steer = await rt.start(agent, "and test it", session="s", if_busy="steer")
        gate.open()
        await run.result()
        assert (await steer.refresh()).status == "joined"
        assert isinstance(agent.model, ScriptedModel)
        assert told in first_text(agent.model.requests[-1])
        assert (await rt.context(run.id)).matches


@pytest.mark.parametrize("dies_at", ["accept.after", "answer.after"])
async def test_c43_a_run_whose_process_was_gone_over_night_is_told_when_it_began_and_what_time_it_is(
    db: str, downstream: Downstream, dies_at: str
) -> None:
    async with app(__file__, db, downstream, FaultPlan().at(dies_at, fault=kill()), ZONE=SEOUL) as child:
        child.send("start", agent="clerk", input="today", session="s", operation_id="m1")
        await child.dies()
    agent, clock = clerk(), ManualClock(datetime.now(UTC) + timedelta(days=1))
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock, time_zone=SEOUL) as rt:
        (run,) = await rt.runs(session="s")
        assert (await run.result()).text == "filed"
        began, now = (t.astimezone(ZoneInfo(SEOUL)) for t in (run.accepted_at, clock.now()))
        assert f"started at {began:%A, %Y-%m-%d %H:%M} +09:00 (Asia/Seoul)" in shown(agent, "today")
        assert f"now it is {now:%A, %Y-%m-%d %H:%M} +09:00 (Asia/Seoul)" in shown(agent, "today")
        assert (await rt.context(run.id)).matches
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c43_a_fact_is_told_with_the_users_day_on_which_it_was_said(db: str) -> None:
    scripts: dict[str, Script] = {
        "I drink tea": [[call("remember", fact="Kim drinks tea.")], "noted"],
        "what do I drink?": [[call("recall", query="tea")], "tea"],
    }
    clock = ManualClock(AFTER_MIDNIGHT_IN_SEOUL)
    agent = Agent("friend", model=Conversation(scripts), memory=Memory(recall=0))
    async with Runtime(db, agents=[agent], clock=clock) as rt:
        await rt.run(agent, "I drink tea", user="kim", time_zone=SEOUL)
        clock.advance(timedelta(days=1))
        told = []
        for zone in (SEOUL, MONTEVIDEO, None):
            run = await rt.start(agent, "what do I drink?", user="kim", time_zone=zone)
            await run.result()
            (event,) = [e async for e in run.events() if e.type == "effect.succeeded"]
            told.append(event.data["result"][0]["since"])
    assert told == ["2026-11-30T00:30+09:00", "2026-11-29T12:30-03:00", "2026-11-29T15:30+00:00"]


async def test_c43_a_compaction_after_the_night_changes_nothing_of_what_time_it_is(
    db: str, downstream: Downstream
) -> None:
    """The summary is from the evening before; the clock of a request is not part of what is summarised."""
    agent, clock = narrow_clerk(), ManualClock("2026-11-29T14:50Z")  # 23:50 in Seoul
    assert isinstance(agent.model, ScriptedModel)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        for n in range(3):
            await rt.run(agent, f"chat {n} " + "and more of it " * 260, session="s", time_zone=SEOUL)
        run = await rt.start(agent, "when you may", session="s", time_zone=SEOUL)
        (ask,) = await waits(run)
        assert not any(e.type == "context.compacted" for e in [e async for e in run.events()])
    clock.set("2026-11-29T23:05Z")  # the next morning
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock, time_zone="UTC") as rt:
        await (await rt.get_ask(ask.id)).approve(by="kim")
        await (await rt.get_run(run.id)).result()
        await until(await rt.get_run(run.id), "context.compacted")
        told = first_text(agent.model.requests[-1])
        assert "started at Sunday, 2026-11-29 23:50 +09:00 (Asia/Seoul)" in told
        assert "now it is Monday, 2026-11-30 08:05 +09:00 (Asia/Seoul)" in told
        carried = agent.model.requests[-1].messages[1]
        assert (carried.origin, "They chatted" in carried.text) == ("runtime", True)
        assert (await rt.context(run.id)).matches
        await rt.run(agent, "chat 9", session="s", time_zone=MONTEVIDEO)
        told = first_text(agent.model.requests[-1])
        assert "Sunday, 2026-11-29 20:05 -03:00 (America/Montevideo)" in told
        assert "Asia/Seoul" not in told


def narrow_clerk() -> Agent:
    """Its requests have no room for what it notes and the turns before that."""

    @tool(effect="once", approve=True)
    async def look_it_up() -> str:
        return "as it is written " * 400

    def answer(request: ModelRequest) -> Reply:
        if request.purpose == "summary":
            return "They chatted in the evening."
        return [call("look_it_up")] if asked(request) == "when you may" and request.step == 0 else "well, " * 20

    return Agent("clerk", model=ScriptedModel(answer), tools=[look_it_up], context=ContextPolicy(budget=3_900, keep=1))


async def test_c43_two_users_of_one_session_have_their_own_zones(db: str, downstream: Downstream) -> None:
    agent, clock = clerk(), ManualClock(AFTER_MIDNIGHT_IN_SEOUL)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        for n, (user, zone) in enumerate([("kim", SEOUL), ("ana", MONTEVIDEO), ("kim", SEOUL)]):
            await rt.run(agent, "today", session="s", user=user, time_zone=zone, operation_id=f"m{n}")
        in_seoul, in_montevideo = "Monday, 2026-11-30 00:30 +09:00", "Sunday, 2026-11-29 12:30 -03:00"
        for nth, (own, other) in enumerate([(in_seoul, in_montevideo), (in_montevideo, in_seoul)]):
            assert own in shown(agent, "today", 2 * nth)
            assert other not in shown(agent, "today", 2 * nth)
        assert [line.arguments["at"] for line in await downstream.effects()] == [
            "2026-11-30T23:00:00+09:00", "2026-11-29T23:00:00-03:00", "2026-11-30T23:00:00+09:00",
        ]  # fmt: skip
        assert {(r.user, r.time_zone) for r in await rt.runs(session="s")} == {("kim", SEOUL), ("ana", MONTEVIDEO)}
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c43_the_zone_of_a_guest_is_not_that_of_the_session(db: str, downstream: Downstream) -> None:
    """Ana named hers for what she asked; kim, whose session it is, names none any more."""
    agent, clock = clerk(), ManualClock(AFTER_MIDNIGHT_IN_SEOUL)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        for n, (user, zone) in enumerate([("kim", SEOUL), ("ana", MONTEVIDEO), ("kim", None), ("kim", MONTEVIDEO)]):
            await rt.run(agent, "today", session="s", user=user, time_zone=zone, operation_id=f"m{n}")
        assert [r.time_zone for r in await rt.runs(session="s")][::-1] == [SEOUL, MONTEVIDEO, SEOUL, MONTEVIDEO]
        assert "Monday, 2026-11-30 00:30 +09:00" in shown(agent, "today", 4)
        assert (await rt.get_session("s")).time_zone == MONTEVIDEO  # kim is there now
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c43_a_call_of_the_model_is_made_again_with_the_clock_and_the_zone_it_had(
    db: str, downstream: Downstream
) -> None:
    """The process dies with the request written down. The next one runs a day later, in another zone."""
    async with app(__file__, db, downstream, FaultPlan().at("note_down.after", fault=kill()), ZONE=SEOUL) as child:
        run_id = await child.do("start", agent="clerk", input="what day is it?", session="s", operation_id="m1")
        await child.dies()
    async with Runtime(db) as nobody:
        recorded = await nobody.context(run_id)
        assert "+09:00 (Asia/Seoul)" in recorded.messages[0].text
    agent, clock = clerk(), ManualClock(datetime.now(UTC) + timedelta(days=1))
    async with Runtime(db, agents=[agent], clock=clock, time_zone=MONTEVIDEO) as rt:
        run = await rt.get_run(run_id)
        assert (await run.result()).text == "see above"
        await until(run, "run.resumed")
        assert isinstance(agent.model, Conversation)
        (request,) = agent.model.of["what day is it?"].requests
        assert list(request.messages) == recorded.messages
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c43_the_clock_stands_still_while_a_run_works(db: str, downstream: Downstream) -> None:
    """So that a run does not change its mind about the day in the middle, and what it sees can be built again."""
    agent, clock = clerk(), ManualClock("2026-11-29T14:59Z")  # a minute to midnight in Seoul
    await downstream.hold("before")
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
        run = await rt.start(agent, "today", session="s", operation_id="m1", time_zone=SEOUL)
        await downstream.wait_for_held()
        clock.advance(minutes=0.5)
        clock.advance(minutes=0.4)
        await downstream.release()
        await run.result()
        assert shown(agent, "today", 0) == shown(agent, "today", 1)
        assert "2026-11-29 23:59 +09:00" in shown(agent, "today", 1)
        assert [line.arguments for line in await downstream.effects()] == [{"at": "2026-11-29T23:00:00+09:00"}]
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


async def test_c43_a_replay_a_week_later_has_the_recorded_clock_and_zone(db: str, downstream: Downstream) -> None:
    """The model and the tools; "now" is asked for. A replay that had to wait goes on in its own time."""
    agent, clock = clerk(), ManualClock(AFTER_MIDNIGHT_IN_SEOUL)
    outside = Outside(downstream.url)
    async with Runtime(db, agents=[agent], deps=outside, clock=clock) as rt:
        first = await rt.start(agent, "what day is it?", session="s", operation_id="m1", time_zone=SEOUL)
        paused = await rt.start(agent, "when you may", session="t", operation_id="m2", time_zone=SEOUL)
        await first.result()
        await waits(paused)
        await paused.cancel(by="kim")
    clock.advance(hours=7 * 24)
    async with Runtime(db, agents=[agent], deps=outside, clock=clock, time_zone=MONTEVIDEO) as rt:
        again = await rt.replay(first.id)
        await again.result()
        assert "Monday, 2026-11-30 00:30 +09:00 (Asia/Seoul)" in shown(agent, "what day is it?")
        assert shown(agent, "what day is it?") == shown(agent, "what day is it?", 0)
        assert (await rt.context(again.id)).matches
        below = await rt.replay(again)  # of a replay: still that day
        await below.result()
        assert "Monday, 2026-11-30 00:30 +09:00 (Asia/Seoul)" in shown(agent, "what day is it?")
        fork = await rt.fork(first.id, at_step=1)
        await fork.result()
        assert "Monday, 2026-11-30 00:30 +09:00 (Asia/Seoul)" in shown(agent, "what day is it?")
        now = await rt.replay(first.id, clock="now", time_zone=MONTEVIDEO)
        await now.result()
        assert "Sunday, 2026-12-06 12:30 -03:00 (America/Montevideo)" in shown(agent, "what day is it?")

        waiting = await rt.replay(paused.id)
        (ask,) = await waits(waiting)
        clock.advance(hours=8)
        await ask.approve(by="kim")
        await waiting.result()
        told = shown(agent, "when you may")
        assert "started at Monday, 2026-11-30 00:30 +09:00 (Asia/Seoul)" in told
        assert "now it is Monday, 2026-11-30 08:30 +09:00 (Asia/Seoul)" in told
        (line,) = await downstream.effects()
        assert line.arguments == {"at": "2026-11-29T23:30:00+00:00", "zone": SEOUL}
        await holds_in_all_cases(rt, db, agent, "s", downstream, clock=clock)


@pytest.mark.parametrize("zone", ["Seoul", "KST+9", "+09:00", "", "../../etc/passwd"])
async def test_c43_a_zone_that_nobody_knows_is_refused_by_name(db: str, zone: str) -> None:
    agent = clerk()
    with pytest.raises(InvalidInput, match="time zone"):
        Runtime(db, agents=[agent], time_zone=zone)
    async with Runtime(db, agents=[agent]) as rt:
        with pytest.raises(InvalidInput, match="time zone"):
            await rt.start(agent, "today", time_zone=zone)
        assert await rt.runs() == []


if __name__ == "__main__":
    serve([clerk()])


async def test_c43_a_session_in_a_zone_that_this_machine_does_not_know_goes_on(
    db: str, downstream: Downstream, tmp_path: Path
) -> None:
    new_zone = tmp_path / "zones" / "Asia" / "Jeju"
    new_zone.parent.mkdir(parents=True)
    known = resources.files("tzdata.zoneinfo.Asia").joinpath("Seoul").read_bytes()
    agent, clock = clerk(), ManualClock(AFTER_MIDNIGHT_IN_SEOUL)
    new_zone.write_bytes(known)
    with _zones_in(str(tmp_path / "zones"), *TZPATH):
        async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
            run = await rt.start(agent, "when you may", session="s", time_zone="Asia/Jeju")
            (ask,) = await waits(run)
            assert "Monday, 2026-11-30 00:30 +09:00 (Asia/Jeju)" in shown(agent, "when you may")
    with _zones_in(*TZPATH):
        async with Runtime(db, agents=[agent], deps=Outside(downstream.url), clock=clock) as rt:
            await (await rt.get_ask(ask.id)).approve(by="kim")
            run = await rt.get_run(run.id)
            assert (await run.result()).text == "noted it"
            assert "Sunday, 2026-11-29 15:30 +00:00 (UTC)" in shown(agent, "when you may")
            assert (await rt.run(agent, "what day is it?", session="s")).text == "see above"
            assert "2026-11-29 15:30 +00:00" in run._repr_html_()
            assert not (await rt.context(run.id, 1)).matches  # what was shown there cannot be built again here
    assert [line.tool for line in await downstream.effects()] == ["note_time"]


@contextlib.contextmanager
def _zones_in(*folders: str) -> Iterator[None]:
    """A machine whose time zones are those of these folders."""
    reset_tzpath(folders)
    ZoneInfo.clear_cache()
    try:
        yield
    finally:
        reset_tzpath()
        ZoneInfo.clear_cache()
