"""`ondol runs replay`: the verdict as it is printed, and what its exit codes say."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from .command import Done, app, ondol


def command(*words: str, cwd: Path) -> Done:
    return ondol(*words, cwd=cwd, ONDOL_DB="sqlite:///t.db")


@pytest.fixture
def wrote(tmp_path: Path) -> tuple[Path, str]:
    """A run that looked, paid and wrote; in that folder."""
    return tmp_path, command("run", app("writing"), "write", "--session", "s", "-o", "ids", cwd=tmp_path).ids[0]


def test_a_dry_run_prints_a_line_for_each_effect_and_the_commands(wrote: tuple[Path, str]) -> None:
    cwd, run = wrote
    done = command("runs", "replay", run, "--dry-run", cwd=cwd)
    assert done.code == 0
    settled = r"succeeded \d\d:\d\d:\d\d   an equal call gets this outcome, any other"
    expected = [
        r"verdict: guarded \(2 write effects were started, all settled\)",
        r" find_order  read        free to repeat",
        rf" refund      idempotent  {settled} refund asks first",
        rf" send_email  once        {settled} send_email asks first",
        rf"needs --force --by NAME --why TEXT\. To go on from a step instead: ondol runs fork {run} --at 3",
    ]
    for line, pattern in zip(done.out.splitlines(), expected, strict=True):
        assert re.fullmatch(pattern, line), line
    assert command("runs", "-o", "ids", cwd=cwd).ids == [run]  # nothing was started
    body = command("runs", "replay", run, "--dry-run", "-o", "json", cwd=cwd).json
    assert (body["run"], body["kind"]) == (run, "guarded")
    assert [(e["tool"], e["class"], e["state"]) for e in body["effects"]] == [
        ("find_order", "read", "succeeded"), ("refund", "idempotent", "succeeded"), ("send_email", "once", "succeeded"),
    ]  # fmt: skip


def test_of_a_run_whose_journal_is_damaged_the_verdict_is_told_and_that_it_cannot_be_forked(
    wrote: tuple[Path, str],
) -> None:
    cwd, run = wrote
    with sqlite3.connect(cwd / "t.db") as damaged:
        damaged.execute("UPDATE entries SET body = replace(body, 'completed', 'competed')")
    done = command("runs", "replay", run, "--dry-run", cwd=cwd)
    assert (done.code, done.err) == (0, "")
    *_, said = done.out.splitlines()
    assert said.startswith(f"needs --force --by NAME --why TEXT. It cannot be forked: run {run}, entry ")


def test_without_force_it_is_refused_as_a_conflict(wrote: tuple[Path, str]) -> None:
    cwd, run = wrote
    done = command("runs", "replay", run, cwd=cwd)
    assert (done.code, done.out) == (5, "")
    assert "verdict: guarded" in done.err
    assert done.err.splitlines()[-1].startswith(f"error [replay_unsafe]: run {run} cannot be replayed just so")
    assert done.err.splitlines()[-2] == "needs --force --by NAME --why TEXT"
    assert "): say --force --by NAME --why TEXT, or fork it (ondol explain" in done.err.splitlines()[-1]
    assert command("runs", "replay", run, "--force", cwd=cwd).code == 2  # no reason
    assert command("runs", "replay", "r_nobody", cwd=cwd).code == 4


def test_with_force_it_runs_and_repeats_nothing_and_both_runs_show_it(wrote: tuple[Path, str]) -> None:
    cwd, run = wrote
    forced = ("--force", "--by", "lee", "--why", "the customer asked")
    done = command("runs", "replay", run, *forced, "--app", app("writing"), "-o", "ids", cwd=cwd)
    assert done.code == 0, done.err
    again = done.ids[0]
    assert sorted((cwd / "written").read_text().splitlines()) == ["refund 1182", "send_email kim"]
    first, second = (command("runs", "show", id, cwd=cwd).out for id in (run, again))
    assert re.search(rf"replayed by +{again}", first)
    assert re.search(rf"replay of +{run}", second)
    assert f"replay of run {run}, forced by lee: the customer asked" in second
    assert "send_email (recorded, not made again)" in second
    body = command("runs", "show", again, "-o", "json", cwd=cwd).json
    assert body["replay_of"] == run
    assert [e["reuses"] is not None for e in body["effects"]] == [False, True, True]
    assert command("runs", "show", run, "-o", "json", cwd=cwd).json["replays"] == [again]
    assert "goes on from  s" in command("sessions", "show", body["session"], cwd=cwd).out
    assert "run.replay" in command("audit", cwd=cwd).out


@pytest.mark.parametrize("words", [("replay", "--force", "--why", "again"), ("fork", "--at", "3")])
def test_an_app_that_has_not_its_agent_begins_nothing(wrote: tuple[Path, str], words: tuple[str, ...]) -> None:
    cwd, run = wrote
    done = command("runs", words[0], run, *words[1:], "--app", app("hello"), cwd=cwd)
    assert (done.code, done.out) == (2, "")
    assert f"run {run} is of agent 'writing'" in done.err
    assert command("runs", "-o", "ids", cwd=cwd).ids == [run]


def test_without_an_app_it_is_left_to_the_process_that_has_the_agent(tmp_path: Path) -> None:
    run = command("run", app("hello"), "say hi to kim", "-o", "ids", cwd=tmp_path).ids[0]
    assert command("runs", "replay", run, "--dry-run", cwd=tmp_path).out.splitlines()[-1] == (
        f"to do it: ondol runs replay {run}"
    )
    done = command("runs", "replay", run, "--now", "--time-zone", "Asia/Seoul", cwd=tmp_path)
    assert (done.code, done.out.endswith(" is queued\n")) == (0, True)
    again = done.out.split()[1]
    assert f"ondol runs resume {again} --app" in done.err
    assert command("runs", "resume", again, "--app", app("hello"), cwd=tmp_path).out == "hello kim\n"
    assert command("runs", "show", again, "-o", "json", cwd=tmp_path).json["time_zone"] == "Asia/Seoul"


def test_what_must_be_settled_first_is_named(tmp_path: Path) -> None:
    effect = command("run", app("losing"), "send it", "-o", "json", cwd=tmp_path).json["asks"][0]["effect"]
    (run,) = command("runs", "-o", "ids", cwd=tmp_path).ids
    waiting = command("runs", "replay", run, "--dry-run", cwd=tmp_path).out
    assert waiting.startswith(f"verdict: blocked (run {run} is waiting: decide its asks, or cancel it)\n")
    assert command("runs", "cancel", run, cwd=tmp_path).code == 0
    done = command("runs", "replay", run, "--force", "--by", "lee", "--why", "x", cwd=tmp_path)
    assert done.code == 5
    assert f"settle it (ondol effects resolve {effect} " in done.err


def test_a_replay_that_failed_for_now_is_resumed_by_its_id(tmp_path: Path) -> None:
    run = command("run", app("broke"), "anything", "-o", "json", cwd=tmp_path).json["id"]
    done = command("runs", "replay", run, "--app", app("broke"), "-o", "json", cwd=tmp_path)
    assert (done.code, done.json["retryable"]) == (1, True)
    again = command("runs", "resume", done.json["id"], "--app", app("broke"), "-o", "json", cwd=tmp_path)
    assert (again.code, again.json["id"], again.json["state"]) == (1, done.json["id"], "failed")
    assert command("runs", "resume", run, "--app", app("broke"), cwd=tmp_path).code == 5  # it was replayed


def test_a_fork_goes_on_from_a_step_and_both_runs_show_it(wrote: tuple[Path, str]) -> None:
    cwd, run = wrote
    done = command("runs", "fork", run, "--at", "2", "--app", app("writing"), "-o", "ids", cwd=cwd)
    assert done.code == 0, done.err
    fork = done.ids[0]
    assert sorted((cwd / "written").read_text().splitlines()) == ["refund 1182", "send_email kim"]
    assert re.search(rf"forked as +{fork}", command("runs", "show", run, cwd=cwd).out)
    shown = command("runs", "show", fork, cwd=cwd).out
    assert f"{run} at step 2" in shown
    assert f"fork of run {run} at step 2, later writes: reuse" in shown
    stubbed = command("runs", "fork", run, "--at", "2", "--effects", "stub", "--app", app("writing"), cwd=cwd)
    assert stubbed.out == "all done\n"
    assert len((cwd / "written").read_text().splitlines()) == 2
    asking = command("runs", "fork", run, "--at", "2", "--effects", "run", "--app", app("writing"), cwd=cwd)
    assert asking.code == 6
    assert command("runs", "fork", run, "--at", "9", cwd=cwd).code == 2
    assert command("runs", "fork", run, "--at", "2", "--effects", "all", cwd=cwd).code == 2
    waiting = command("runs", "--state", "waiting", "-o", "ids", cwd=cwd).ids[0]
    assert command("runs", "fork", waiting, "--at", "1", cwd=cwd).code == 5
