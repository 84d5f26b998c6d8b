"""One file, several processes: one drives, others list, submit, decide and cancel."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ondol.testing import Process

from .command import Done, app, environment, ondol

DB = "sqlite:///own.db"


async def command(*words: str, cwd: Path) -> Done:
    return await asyncio.to_thread(ondol, "--db", DB, *words, cwd=cwd)


@asynccontextmanager
async def held(cwd: Path) -> AsyncIterator[Process]:
    """A process that drives a run which ends only when somebody writes to ``fifo``."""
    os.mkfifo(cwd / "fifo")
    words = ["-m", "ondol", "--db", DB, "run", app("holding"), "hold on", "--operation-id", "held"]
    async with Process(words, cwd=cwd, env=environment()) as process:
        await process.line("holding")
        yield process


def let_go(cwd: Path) -> None:
    (cwd / "fifo").write_text("enough")


async def test_another_process_sees_the_run_and_cancels_it(tmp_path: Path) -> None:
    async with held(tmp_path) as driver:
        listed = await command("runs", "--state", "running", "-o", "ids", cwd=tmp_path)
        cancelled = await command("runs", "cancel", *listed.ids, "--by", "lee", "--reason", "no", cwd=tmp_path)
        assert cancelled.code == 0
        assert await driver.wait() == 1
        assert "error [run_cancelled]: " in driver.errors
        shown = (await command("runs", "show", *listed.ids, "-o", "json", cwd=tmp_path)).json
        assert shown["state"] == "cancelled"
        assert [e["state"] for e in shown["effects"]] == ["unknown"]  # it had started: nobody knows
        (act,) = (await command("audit", "-o", "json", cwd=tmp_path)).json
        assert (act["by"], act["door"], act["act"], act["note"]) == ("lee", "cli", "run.cancel", "no")


async def test_the_driver_takes_up_what_another_process_submits_and_decides(tmp_path: Path) -> None:
    async with held(tmp_path) as driver:
        asked = await command("run", app("asking"), "refund it", "-o", "json", cwd=tmp_path)
        assert asked.code == 6  # this process drove nothing: the other one has the agent
        watching = Process(
            ["-m", "ondol", "--db", DB, "runs", "watch", asked.json["id"], "--after", f"{asked.json['id']}/9"],
            cwd=tmp_path, env=environment(),
        )  # fmt: skip
        approved = await command("asks", "approve", asked.json["asks"][0]["id"], "--by", "lee", cwd=tmp_path)
        assert (approved.code, approved.err) == (0, "")  # somebody serves the agent: nothing else is to be done
        async with watching:
            assert await watching.wait() == 0
            assert "run.completed" in watching.output
        assert (tmp_path / "refunds").read_text() == "1182 30\n"
        let_go(tmp_path)
        assert await driver.wait() == 0
        assert driver.output == "holding\nlet go"


async def test_a_run_that_another_process_drives_is_watched_as_it_goes(tmp_path: Path) -> None:
    async with held(tmp_path) as driver:
        (id,) = (await command("runs", "-o", "ids", cwd=tmp_path)).ids
        words = ["-m", "ondol", "--db", DB, "runs", "watch", id]
        from_the_start = Process([*words, "-o", "jsonl"], cwd=tmp_path, env=environment())
        from_there = Process([*words, "--after", f"{id}/8"], cwd=tmp_path, env=environment())
        async with from_the_start as watching, from_there as later:
            while json.loads(await watching.line("{"))["type"] != "effect.started":
                pass  # the tool is held: what comes next is not there yet
            assert "run.completed" not in watching.output
            let_go(tmp_path)
            assert (await watching.wait(), await later.wait(), await driver.wait()) == (0, 0, 0)
            seen = [json.loads(line) for line in watching.output.splitlines()]
            assert [e["id"] for e in seen] == [f"{id}/{n + 1}" for n in range(len(seen))]
            assert seen[-1]["type"] == "run.completed"
            assert [line.split()[3] for line in later.output.splitlines()] == [e["type"] for e in seen[8:]]


async def test_a_cursor_of_another_run_is_refused_at_once(tmp_path: Path) -> None:
    async with held(tmp_path) as driver:
        (id,) = (await command("runs", "-o", "ids", cwd=tmp_path)).ids
        refused = await command("runs", "watch", id, "--after", "r_other/3", cwd=tmp_path)
        assert (refused.code, refused.err.startswith("error [wrong_cursor]: 'r_other/3' is not an event")) == (2, True)
        let_go(tmp_path)
        assert await driver.wait() == 0


async def test_a_driver_without_the_agent_is_not_waited_for(tmp_path: Path) -> None:
    async with held(tmp_path) as driver:
        left = await command("run", app("hello"), "say hi to kim", cwd=tmp_path)
        assert left.code == 0
        (id,) = left.ids
        assert "stays queued" in left.err
        doctor = await command("doctor", "-o", "json", cwd=tmp_path)
        assert doctor.code == 1
        assert [f["check"] for f in doctor.json if f["state"] == "wrong"] == ["queued"]
        let_go(tmp_path)
        assert await driver.wait() == 0
    # Commands without agents may take the place of the driver for a moment. They leave it as it is.
    for words in (("runs", "cancel", "r_nobody"), ("sessions", "rm", "nobody"), ("asks", "deny", "a_nobody")):
        assert (await command(*words, cwd=tmp_path)).code == 4
    shown = (await command("runs", "show", id, "-o", "json", cwd=tmp_path)).json
    assert (shown["state"], [e["type"] for e in shown["events"]]) == ("queued", ["run.accepted"])
    resumed = await command("runs", "resume", id, "--app", app("hello"), cwd=tmp_path)
    assert (resumed.code, resumed.out) == (0, "hello kim\n")


async def test_who_only_watches_never_stands_in_the_way_of_a_driver(tmp_path: Path) -> None:
    # Left behind: a run that is running for a process that is gone.
    async with held(tmp_path) as driver:
        driver.kill()
        await driver.wait()
    (id,) = (await command("runs", "-o", "ids", cwd=tmp_path)).ids
    shown = await command("runs", "show", id, cwd=tmp_path)
    assert "no process drives" in shown.out
    async with Process(["-m", "ondol", "--db", DB, "runs", "watch", id], cwd=tmp_path, env=environment()) as watching:
        await watching.line("2")  # the first event
        driven = await command("runs", "resume", id, "--app", app("holding"), cwd=tmp_path)
        assert driven.code == 7  # it may have happened: a person is asked, nobody guesses
        assert await watching.wait() == 7


async def test_a_command_that_acts_takes_over_from_the_dead_for_a_moment(tmp_path: Path) -> None:
    async with held(tmp_path) as driver:
        driver.kill()
        await driver.wait()
    (id,) = (await command("runs", "-o", "ids", cwd=tmp_path)).ids
    assert (await command("runs", "cancel", id, cwd=tmp_path)).out == f"run {id} is cancelled\n"
