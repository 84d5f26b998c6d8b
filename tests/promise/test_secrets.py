"""A secret that a tool was given never reaches prompt, journal, logs, events or exception text."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import html
import json
import logging
import pickle
import threading
import urllib.parse
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ondol import (
    Agent,
    Allow,
    AskFirst,
    CannotTell,
    Context,
    Deny,
    Happened,
    InvalidInput,
    RunFailed,
    Runtime,
    RunWaiting,
    Secret,
    tool,
    values,
)
from ondol.secret import redact
from ondol.testing import ManualClock, ScriptedModel, call, text

CANARY = 'canary-b7f"é/41-token'
FORMS = (CANARY, json.dumps(CANARY)[1:-1], "canary-b7f", "b7f%22")


def _leaks(where: str, text: str) -> None:
    for form in FORMS:
        assert form not in text, f"{where} holds the secret"


def _look_through(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            _leaks(file.name, file.read_bytes().decode("utf-8", "replace"))


@tool(effect="read")
def returns(ctx: Context[Secret]) -> dict[str, Any]:
    value = ctx.deps.reveal()
    ctx.state["token"] = f"Bearer {value}"
    ctx.progress(0.5, f"with {value}")
    return {"headers": {f"x-{value}": value}, "raw": value.encode(), "list": [f"a {value} b"], "kept": "kept"}


@tool(effect="read")
async def raises(ctx: Context[Secret]) -> str:
    raise RuntimeError(f"401 for https://api.example/?key={ctx.deps.reveal()}")


async def _finds(ctx: Context[Secret]) -> Happened | CannotTell:
    if ctx.state.get("cannot"):
        return CannotTell(f"no answer with {ctx.deps.reveal()}")
    return Happened({"by": ctx.deps.reveal()})


@tool(effect="once", check=_finds)
async def looks(ctx: Context[Secret]) -> str:
    raise ConnectionError(ctx.deps.reveal())


@tool(effect="once")
async def lost(ctx: Context[Secret]) -> str:
    raise ConnectionError(ctx.deps.reveal())


async def test_a_secret_is_found_in_no_sink(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    model = ScriptedModel([[call("returns"), call("raises"), call("looks")], [call("lost")], [text("never")]])
    agent = Agent("a", model=model, tools=[returns, raises, looks, lost])
    seen: list[str] = []
    async with Runtime(f"sqlite:///{tmp_path}/x.db", agents=[agent], deps=Secret(CANARY)) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="one")
        async for event in run.events():
            seen.append(repr(event))
        with pytest.raises(RunWaiting) as waits:
            await run.result()
        seen += [repr(await run.state()), str(waits.value), repr(await run.effects()), repr(await run.asks())]
        await (await run.asks())[0].give_up(by="lee")
        with pytest.raises(RunFailed) as failed:
            await run.result()
        seen += [str(failed.value), repr(failed.value.error), repr(await rt.audit())]
        assert any("[secret]" in s for s in seen)
        assert "kept" in repr(model.requests[1].messages)
    _leaks("an event or an answer", "\n".join(seen))
    _leaks("a prompt", repr(model.requests))
    _leaks("a log line", caplog.text)
    _look_through(tmp_path)


async def test_an_outcome_that_comes_too_late_is_kept_without_the_secret(tmp_path: Path) -> None:
    clock, started, go = ManualClock("2026-01-01T00:00:00Z"), threading.Event(), threading.Event()

    @tool(effect="once")
    def slow(ctx: Context[Secret]) -> str:
        started.set()
        go.wait(30)
        return f"done with {ctx.deps.reveal()}"

    agent = Agent("a", model=ScriptedModel([[call("slow")], [text("never")]]), tools=[slow])
    async with Runtime(f"sqlite:///{tmp_path}/x.db", agents=[agent], deps=Secret(CANARY), clock=clock) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="one")
        await asyncio.to_thread(started.wait, 30)
        clock.advance(timedelta(minutes=2))
        with pytest.raises(RunWaiting):
            await run.result()
        go.set()
        async with asyncio.timeout(30):
            while (await run.effects())[0].evidence is None:  # noqa: ASYNC110 - nothing tells of evidence
                await asyncio.sleep(0)
        evidence = (await run.effects())[0].evidence or ""
        assert "done with [secret]" in evidence
        _leaks("the evidence", evidence)


@pytest.mark.parametrize("says", [Allow, AskFirst, Deny])
async def test_what_a_policy_says_of_a_secret_is_recorded_without_it(tmp_path: Path, says: type[Allow]) -> None:
    model = ScriptedModel([[call("returns")], [text("done")]])
    agent = Agent("a", model=model, tools=[returns])
    secret = Secret(CANARY)
    url = f"sqlite:///{tmp_path}/x.db"
    async with Runtime(url, agents=[agent], deps=secret, policy=lambda _: says(f"it holds {secret.reveal()}")) as rt:
        run = await rt.start(agent, "go", session="s", operation_id="one")
        with contextlib.suppress(RunWaiting):
            await run.result()
    assert b"it holds" in (tmp_path / "x.db").read_bytes()
    _leaks("the model", repr(model.requests))
    _look_through(tmp_path)


def test_the_log_of_an_error_of_the_runtime_itself_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    from ondol.secret import logger

    secret = Secret(CANARY)
    try:
        raise ValueError(secret.reveal())
    except ValueError:
        logger("ondol.worker").exception("it failed with %s", secret.reveal())
    _leaks("the log", caplog.text)
    assert "[secret]" in caplog.text
    assert "ValueError" in caplog.text


PASSWORD = "pass w@rd/é=+\"'\\&<end"


@pytest.mark.parametrize(
    "written",
    [
        PASSWORD,
        json.dumps({"key": PASSWORD}),
        json.dumps({"key": PASSWORD}, ensure_ascii=False),
        json.dumps(json.dumps({"key": PASSWORD})),
        repr({"key": PASSWORD}),
        repr(PASSWORD.encode()),
        html.escape(PASSWORD),
        urllib.parse.quote(PASSWORD),
        urllib.parse.quote(PASSWORD, safe="").lower(),
        urllib.parse.urlencode({"key": PASSWORD}),
        "https://api.example/?key=" + urllib.parse.quote(PASSWORD, safe="!$'()*+,;=:@/?"),
        PASSWORD.encode(),
    ],
    ids=repr,
)
def test_a_secret_is_known_however_it_is_written(written: str | bytes) -> None:
    secret = Secret(PASSWORD)
    clean = values.decode(redact(values.encode(written)))
    assert "[secret]" in clean
    assert not any(part in clean for part in ("pass", "rd", "end"))
    assert redact("pass word: the end") == "pass word: the end"
    assert secret.reveal() == PASSWORD


@pytest.mark.parametrize("value", ["\\\\\\\\\\\\x", '""""""zz', '\\"' * 4 + "z", "&&&&&&&&z", "%%%%%%%%z"])
def test_a_text_like_a_secret_takes_no_longer_than_another(value: str) -> None:
    """Where a pattern could be tried in many ways this would not end."""
    secret = Secret(value)
    for almost in ("\\" * 50_000, '"' * 50_000, '\\"' * 50_000, "&amp;" * 50_000, "%25" * 50_000, value[:-1] * 9_000):
        assert redact(almost) == almost
        assert redact(almost + json.dumps(value)[1:-1]).endswith("[secret]")
    assert secret.reveal() == value


def test_a_secret_has_no_text_form() -> None:
    secret = Secret(CANARY)
    for shown in (repr(secret), str(secret), f"{secret}", repr([secret]), repr({"a": secret})):
        _leaks("a repr", shown)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copied(secret)


def test_a_secret_that_is_no_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="at least 6 characters"):
        Secret("abc")
    monkeypatch.delenv("NO_SUCH_SECRET", raising=False)
    with pytest.raises(InvalidInput, match="NO_SUCH_SECRET is not set"):
        Secret.env("NO_SUCH_SECRET")
    monkeypatch.setenv("A_SECRET", CANARY)
    assert Secret.env("A_SECRET").reveal() == CANARY
