"""The log is the journal as it becomes durable, in records that programs can read."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from cli.command import app, ondol
from kit import waits

from ondol import Agent, AlreadyDecided, Runtime, tool
from ondol.errors import StoreBusy
from ondol.logs import JsonFormatter, TextFormatter
from ondol.stores import open_store
from ondol.testing import FaultPlan, FaultyStore, ScriptedModel, call, raise_
from promise.house import House, letter, rest


@tool(effect="once", approve=True)
async def pay(account: str) -> str:
    """Pay."""
    return "canary-result"


def paying() -> Agent:
    return Agent("pays", model=ScriptedModel([call("pay", account="canary-argument"), "canary-answer"]), tools=[pay])


def journal(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.name == "ondol.journal"]


def fields(record: logging.LogRecord) -> tuple[Any, ...]:
    return tuple(record.__dict__[name] for name in ("tenant", "run", "session", "operation"))


async def test_each_entry_of_the_journal_is_a_record_that_names_its_run(
    db: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ondol")
    agent = paying()
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "canary-input", session="s", operation_id="k")
        (ask,) = await waits(run)
    async with Runtime(db, agents=[agent]) as rt:  # another process
        await (await rt.get_ask(ask.id)).approve(by="lee")
        await (await rt.get_run(run.id)).result()
        seen = [(e.type, e.id) async for e in (await rt.get_run(run.id)).events()]
    assert [(r.getMessage(), r.__dict__["event_id"]) for r in journal(caplog)] == seen
    assert {fields(r) for r in journal(caplog)} == {("default", run.id, "s", "k")}
    assert {"run.accepted", "ask.decided", "effect.started", "run.completed"} <= {kind for kind, _ in seen}


async def test_what_was_said_and_done_stays_in_the_store(db: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ondol")
    agent = paying()
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "canary-input")
        (ask,) = await waits(run)
        await ask.approve(by="lee", arguments={"account": "canary-replaced"})
        await run.result()
    lines = [f.format(r) for r in caplog.records for f in (JsonFormatter(), TextFormatter())]
    assert any("ask.decided" in line for line in lines)
    assert [line for line in lines if "canary" in line] == []


async def test_at_info_only_what_moves_a_run_or_waits_for_somebody(db: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ondol")
    agent = paying()
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "pay")
        (ask,) = await waits(run)
        await ask.approve(by="lee")
        await run.result()
        with pytest.raises(AlreadyDecided):  # a refused write leaves no record
            await ask.deny(by="kim")
    assert [r.getMessage() for r in journal(caplog)] == [
        "run.accepted", "run.started", "ask.opened", "run.waiting", "ask.decided", "run.queued", "run.resumed",
        "run.completed",
    ]  # fmt: skip


async def test_the_next_process_says_what_it_found(house: House, caplog: pytest.LogCaptureFixture) -> None:
    agent = house.agent([call("letter", to="kim")], "done", tools=[letter])
    run_id = await house.dies(agent, at="letter.after")
    caplog.set_level(logging.INFO, "ondol")
    async with house.life(agent) as life:
        assert await rest(await life.rt.get_run(run_id)) == "waiting"
    found = [(r.getMessage(), r.__dict__["data"].get("why"), fields(r)) for r in journal(caplog)]
    names = ("default", run_id, "s", "op")
    assert found[:2] == [("run.queued", "recovered", names), ("run.resumed", None, names)]
    assert tuple(kind for kind, _, _ in found[2:]) == ("effect.unknown", "run.waiting")


async def test_a_warning_about_a_run_names_it_in_fields(db: str, caplog: pytest.LogCaptureFixture) -> None:
    plan = FaultPlan().at("answer", fault=raise_(StoreBusy("locked")))
    agent = Agent("a", model=ScriptedModel(["hello"]))
    async with Runtime(FaultyStore(open_store(db), plan), agents=[agent]) as rt:
        run = await rt.start(agent, "hi", session="s", operation_id="k")
        await run.result()
    (record,) = [r for r in caplog.records if r.name == "ondol.runner"]
    assert (record.levelname, fields(record)) == ("WARNING", ("default", run.id, "s", "k"))


@pytest.mark.parametrize("made", [call("refund", order="1"), call("mail", to="kim")], ids=["attempt", "check"])
async def test_what_waits_for_the_deadline_of_a_lost_attempt_says_so(
    house: House, caplog: pytest.LogCaptureFixture, made: Any
) -> None:
    """Else the run stands still, and nobody knows why."""
    agent = house.agent([made], "done")
    async with house.life(agent, dies_at="started.after") as life:
        await life.ends(life.rt.run(agent, "go", session="s", operation_id="op"))
    house.clock.advance(seconds=10)
    async with house.life(agent) as life:
        run = await life.rt.find_run("op")
        resting = asyncio.create_task(rest(run))
        await house.clock.wait_for_timers()
        (record,) = [r for r in caplog.records if r.name == "ondol.runner"]
        assert record.getMessage().endswith(" its last attempt was lost, and may act until 2026-01-01 00:01:00+00:00")
        assert (record.levelname, fields(record)) == ("WARNING", ("default", run.id, "s", "op"))
        house.clock.advance(seconds=50)
        assert await resting == "completed"


@pytest.mark.parametrize("part", ["filter", "handler"])
async def test_what_listens_to_the_log_and_raises_breaks_nothing(
    house: House, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    def breaks(*_: Any) -> bool:
        raise RuntimeError("the disk of the log is full")

    caplog.set_level(logging.DEBUG, "ondol")
    log, handler = logging.getLogger("ondol.journal"), logging.NullHandler()
    handler.handle = breaks  # type: ignore[method-assign]
    agent = house.agent([call("letter", to="kim")], "done", tools=[letter])
    try:
        log.addFilter(breaks) if part == "filter" else log.addHandler(handler)
        async with house.life(agent) as life:
            run = await life.rt.start(agent, "go", session="s", operation_id="op")
            assert await rest(run) == "completed"
    finally:
        log.removeFilter(breaks)
        log.removeHandler(handler)
    assert house.count("letter") == 1
    assert "the disk of the log is full" in capsys.readouterr().err


async def test_an_application_may_name_a_tenant_on_all_of_its_records(
    db: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = logging.getLogRecordFactory()

    def of_the_application(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = make(*args, **kwargs)
        made.__dict__.update(tenant="theirs", run=7, session=None)
        return made

    monkeypatch.setattr(logging, "_logRecordFactory", of_the_application)
    caplog.set_level(logging.INFO, "ondol")
    agent = Agent("a", model=ScriptedModel(["hello"]))
    async with Runtime(db, agents=[agent]) as rt:
        run = await rt.start(agent, "hi", session="s", operation_id="k")
        await run.result()
    assert {fields(r) for r in journal(caplog)} == {("default", run.id, "s", "k")}
    assert {r.funcName for r in journal(caplog)} == {"_say"}


# --- formatters -------------------------------------------------------------------------------------------------


def record(message: str, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("ondol.journal", logging.INFO, __file__, 1, message, None, None)
    made.__dict__.update(extra)
    made.created = 1796000000.25
    return made


def test_a_record_is_one_line_whatever_is_in_it() -> None:
    nasty = record("run.failed", run="r_1", session="a b", data={"message": 'two\nlines "and" quotes', "bad": "\ud800"})
    text, line = TextFormatter().format(nasty), JsonFormatter().format(nasty)
    assert text == (
        '2026-11-30T00:53:20.250Z info ondol.journal run.failed run=r_1 session="a b" '
        'message="two\\nlines \\"and\\" quotes" bad="?"'
    )
    assert "\n" not in line
    assert json.loads(line) == {
        "at": "2026-11-30T00:53:20.250Z", "level": "info", "logger": "ondol.journal", "message": "run.failed",
        "run": "r_1", "session": "a b", "data": {"message": 'two\nlines "and" quotes', "bad": "?"},
    }  # fmt: skip


def test_a_traceback_is_a_field_of_the_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        made = record("it failed")
        made.exc_info = (ValueError, error, error.__traceback__)
    assert json.loads(JsonFormatter().format(made))["error"].endswith("ValueError: broken")
    assert TextFormatter().format(made).endswith("ValueError: broken")


# --- the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--log-json", "run"], ["run", "--log-json"]])
def test_the_command_line_logs_json_beside_its_answer(tmp_path: Path, words: list[str]) -> None:
    done = ondol(*words, app("hello"), "say hi to kim", "--operation-id", "k", cwd=tmp_path)
    assert done.out == "hello kim\n"
    logged = [json.loads(line) for line in done.err.splitlines()]
    assert [(r["message"], r["operation"]) for r in logged] == [
        ("run.accepted", "k"), ("run.started", "k"), ("run.completed", "k"),
    ]  # fmt: skip


def test_the_environment_says_how_the_command_line_logs(tmp_path: Path) -> None:
    run = ("run", app("hello"), "say hi to kim", "--session", "s")
    logged = ondol(*run, cwd=tmp_path, ONDOL_LOG="text").err.splitlines()
    assert [line.split()[1:4] for line in logged][-1] == ["info", "ondol.journal", "run.completed"]
    assert "session=s" in logged[-1]
    assert json.loads(ondol(*run, cwd=tmp_path, ONDOL_LOG="json").err.splitlines()[-1])["session"] == "s"
    assert ondol(*run, cwd=tmp_path).err == ""
    wrong = ondol(*run, cwd=tmp_path, ONDOL_LOG="xml")
    assert (wrong.code, wrong.err.startswith("error [invalid_input]: ONDOL_LOG='xml'")) == (2, True)
