"""``ondol usage``: tokens and cost, and what nobody counted or priced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ondol import Agent, Answer, ModelOutput, ModelRequest, Runtime, Text
from ondol.testing import ManualClock

from .command import APPS, ondol


class Saying:
    """A model whose tokens are those that the user says: ``100 7``, or nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelOutput]:
        said = [int(n) for n in request.messages[-1].text.split() if n.isdecimal()]
        tokens = dict(zip(("input_tokens", "output_tokens", "cache_read_tokens"), said, strict=False))
        yield Answer(parts=(Text("done"),), **tokens)


async def fill(file: Path) -> None:
    """Three runs on two days of Seoul, which in UTC are one."""
    clock = ManualClock("2026-11-30T14:59:00Z")
    one, other = Agent("one", model=Saying("acme:grand")), Agent("other", model=Saying("acme:small"))
    async with Runtime(f"sqlite:///{file}", agents=[one, other], clock=clock) as rt:
        await rt.run(one, "1000000 100000 400000", session="s", user="kim")
        clock.advance(minutes=2)
        await rt.run(one, "nobody counts", session="s", user="kim")
        await rt.run(other, "2000000 5", session="t")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cwd = tmp_path_factory.mktemp("usage")
    asyncio.run(fill(cwd / "ondol.db"))
    prices = 'currency = "USD"\n[models."acme:grand"]\ninput = 1.25\noutput = 10\ncache_read = 0.125\n'
    (cwd / "prices.toml").write_text(prices)
    return cwd


def cells(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_each_model_with_its_tokens_and_cost_and_the_most_first(folder: Path) -> None:
    header, *rows = cells(ondol("usage", "--prices", "prices.toml", cwd=folder).out)
    assert header == ["MODEL", "RUNS", "CALLS", "INPUT", "CACHED", "OUTPUT", "NOT", "COUNTED", "COST"]
    assert rows == [
        ["acme:small", "1", "1", "2000000", "-", "5", "unpriced"],
        ["acme:grand", "2", "2", "1000000", "400000", "100000", "1", "call", "1.8000", "USD"],
    ]


def test_json_has_exact_costs_and_says_what_is_not_in_them(folder: Path) -> None:
    lines = ondol("usage", "--by", "agent", "-o", "json", cwd=folder, ONDOL_PRICES="prices.toml").json
    assert [line["agent"] for line in lines] == ["other", "one"]
    other, one = lines
    assert (other["cost"], other["unpriced"]) == (None, ["acme:small"])
    assert (one["cost"], one["currency"], one["unpriced"], one["uncounted_calls"]) == ("1.8", "USD", [], 1)
    assert one["tokens"] == {
        "input": 1000000, "output": 100000, "cache_read": 400000, "cache_write": None, "reasoning": None,
    }  # fmt: skip


def test_days_are_those_of_the_zone(folder: Path) -> None:
    days = ondol("usage", "--by", "day", "-o", "jsonl", cwd=folder).out.splitlines()
    assert len(days) == 1
    listed = ondol("usage", "--by", "day", "--time-zone", "Asia/Seoul", cwd=folder)
    assert [row[:2] for row in cells(listed.out)[1:]] == [["2026-11-30", "1"], ["2026-12-01", "2"]]


def test_runs_of_some_time_only(folder: Path) -> None:
    for options, runs in (
        (("--since", "2026-12-01", "--time-zone", "Asia/Seoul"), 2),
        (("--until", "2026-12-01", "--time-zone", "Asia/Seoul"), 1),
        (("--since", "2026-11-30T15:00:00+00:00"), 2),
        (("--since", "2026-12-02"), 0),
    ):
        lines = ondol("usage", "--by", "user", *options, "-o", "json", cwd=folder).json
        assert sum(line["runs"] for line in lines) == runs, options
    assert "no run in" in ondol("usage", "--since", "2026-12-02", cwd=folder).out


def test_users_and_sessions(folder: Path) -> None:
    users = ondol("usage", "--by", "user", "-o", "json", cwd=folder).json
    assert [(line["user"], line["runs"]) for line in users] == [(None, 1), ("kim", 2)]
    assert ondol("usage", "--by", "session", "-o", "ids", cwd=folder).ids == ["t", "s"]
    assert ondol("usage", "--tenant", "acme", "-o", "json", cwd=folder).json == []


def test_without_a_price_file_nothing_is_free(folder: Path) -> None:
    assert {line["cost"] for line in ondol("usage", "-o", "json", cwd=folder).json} == {None}


@pytest.mark.parametrize(
    "words", [("--by", "tool"), ("--since", "yesterday"), ("--prices", "gone.toml"), ("--time-zone", "Mars")]
)
def test_nonsense_is_a_usage_error(folder: Path, words: tuple[str, ...]) -> None:
    done = ondol("usage", *words, cwd=folder)
    assert (done.code, done.out) == (2, "")


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert ondol("usage", "-o", "json", cwd=tmp_path).json == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_says_what_each_model_took(folder: Path) -> None:
    (run,) = [r for r in ondol("runs", "-o", "json", cwd=folder).json if r["tokens"]["input"] == 1000000]
    assert run["usage"]["acme:grand"]["cache_read"] == 400000
    shown = ondol("runs", "show", run["id"], cwd=folder).out
    line = next(line for line in shown.splitlines() if line.startswith("model "))
    assert line.split(maxsplit=2)[1:] == [
        "acme:grand", "1000000 tokens in (400000 from the cache), 100000 out, 1 call",
    ]  # fmt: skip


def test_the_policy_and_the_limits_of_an_app_hold_on_the_command_line(tmp_path: Path) -> None:
    done = ondol("run", f"{APPS.with_name('bound_app.py')}:bound", "go", "--operation-id", "k", cwd=tmp_path)
    assert (done.code, "limit_steps" in done.err) == (1, True)
    (effect,) = ondol("effects", "--db", "sqlite:///bound.db", "-o", "json", cwd=tmp_path).json
    assert (effect["state"], effect["decision"]) == ("failed", "deny: not here")


def test_more_than_is_taken_is_a_usage_error_and_a_full_queue_a_conflict(tmp_path: Path) -> None:
    files = [word for name in "ab" for word in ("--file", str(tmp_path / name))]
    for name in "ab":
        (tmp_path / name).write_text(name)
    (tmp_path / "small.py").write_text(
        "from ondol import Agent, Limits, tool\n"
        "async def send(to: str) -> str: ...\n"
        "few = Agent('few', model='script:demo', limits=Limits(attachments=1))\n"
        "asks = Agent('asks', model='script:demo', tools=[tool(approve=True)(send)], limits=Limits(queue=0))\n"
    )
    done = ondol("run", "small.py:few", "go", *files, cwd=tmp_path)
    assert (done.code, "too_large" in done.err) == (2, True)
    assert ondol("run", "small.py:asks", "to kim", "--session", "s", cwd=tmp_path).code == 6
    full = ondol("run", "small.py:asks", "again", "--session", "s", cwd=tmp_path)
    assert (full.code, "queue_full" in full.err) == (5, True)
