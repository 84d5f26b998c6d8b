"""`ondol demo`: real kills, counted e-mails."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from ondol.testing import Process

from .command import app, environment, ondol

KILLED = -9


def emails(folder: Path) -> int:
    return len((folder / "outbox.jsonl").read_text().splitlines())


def refunds(folder: Path) -> int:
    return len((folder / "refunds.jsonl").read_text().splitlines())


def test_the_usual_loop_sends_two_e_mails(tmp_path: Path) -> None:
    kill = ("--kill-at", "send_email")
    assert ondol("demo", "naive", *kill, cwd=tmp_path).code == KILLED
    again = ondol("demo", "naive", *kill, cwd=tmp_path)
    assert (again.code, emails(tmp_path / "ondol-demo" / "naive")) == (0, 2)
    assert "2 e-mails in" in again.out


@pytest.mark.parametrize("step", ["find_order", "refund", "send_email"])
def test_on_ondol_it_is_one_wherever_it_was_killed(step: str, tmp_path: Path) -> None:
    words = ("demo", "refund", "--dir", str(tmp_path / "d"), "--kill-at", step)
    assert ondol(*words, cwd=tmp_path).code == KILLED
    again = ondol(*words, cwd=tmp_path)
    assert (again.code, emails(tmp_path / "d"), refunds(tmp_path / "d")) == (0, 1, 1)
    assert re.search(r"0 calls for the (1 step|[2-9] steps) before", again.out)
    assert "1 e-mail in" in again.out
    if step == "send_email":
        assert "check looks downstream: it is in" in again.out
        assert again.out.count("reused: its result is in the journal") == 2


async def test_kill_9_while_it_pauses_inside_send_email(tmp_path: Path) -> None:
    words = ["-m", "ondol", "demo", "refund", "--pause", "2"]
    async with Process(words, cwd=tmp_path, env=environment()) as demo:
        await demo.line("inside send_email")
        assert await demo.line("now, within 2 s: kill -9") == f"now, within 2 s: kill -9 {demo.pid}"
        demo.kill()
        assert await demo.wait() == KILLED
    assert emails(tmp_path / "ondol-demo" / "refund") == 1
    again = await asyncio.to_thread(ondol, "demo", "refund", cwd=tmp_path)
    assert (again.code, emails(tmp_path / "ondol-demo" / "refund")) == (0, 1)


def test_without_a_check_it_does_not_guess_and_names_the_command(tmp_path: Path) -> None:
    assert ondol("demo", "unknown", "--kill-at", "send_email", cwd=tmp_path).code == KILLED
    asked = ondol("demo", "unknown", cwd=tmp_path)
    assert (asked.code, emails(tmp_path / "ondol-demo" / "unknown")) == (7, 1)
    (settle,) = [line.strip() for line in asked.out.splitlines() if " --happened " in line]
    program, *words = shlex.split(settle)
    assert (program, words[0], words[2:4]) == ("ondol", "--db", ["effects", "resolve"])
    assert ondol(*words, cwd=tmp_path).code == 0
    settled = ondol("demo", "unknown", cwd=tmp_path)
    assert (settled.code, emails(tmp_path / "ondol-demo" / "unknown")) == (0, 1)


def test_an_approval_survives_a_restart_and_then_runs_once(tmp_path: Path) -> None:
    first, second = ondol("demo", "approval", cwd=tmp_path), ondol("demo", "approval", cwd=tmp_path)
    assert (first.code, second.code) == (6, 6)
    assert 'refund(order_id="1182", amount="30")' in second.out
    (approve,) = [line.strip() for line in second.out.splitlines() if " asks approve " in line]
    assert approve in first.out
    assert ondol(*shlex.split(approve)[1:], cwd=tmp_path).code == 0
    done = ondol("demo", "approval", cwd=tmp_path)
    once_more = ondol("demo", "approval", cwd=tmp_path)
    assert (done.code, once_more.code, refunds(tmp_path / "ondol-demo" / "approval")) == (0, 0, 1)
    assert "the stored answer" in once_more.out


def test_fresh_begins_anew_and_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    words = ("demo", "refund", "--dir", str(tmp_path), "--pause", "0")
    assert ondol(*words, cwd=tmp_path).code == 0
    ids = [json.loads(line)["key"] for line in (tmp_path / "outbox.jsonl").read_text().splitlines()]
    assert ondol(*words, "--fresh", cwd=tmp_path).code == 0
    fresh = [json.loads(line)["key"] for line in (tmp_path / "outbox.jsonl").read_text().splitlines()]
    assert (len(ids), len(fresh), ids != fresh) == (1, 1, True)
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_a_store_that_is_no_demos_is_left_alone(tmp_path: Path) -> None:
    assert ondol("--db", "sqlite:///ondol.db", "run", app("hello"), "hi", cwd=tmp_path).code == 0
    (run,) = ondol("runs", "-o", "ids", cwd=tmp_path).ids
    for words in (("refund", "--fresh"), ("naive", "--fresh"), ("refund",)):
        refused = ondol("demo", *words, "--dir", ".", "--pause", "0", cwd=tmp_path)
        assert (refused.code, refused.out, "ondol.db is there, and no demo made it" in refused.err) == (2, "", True)
    assert ondol("runs", "-o", "ids", cwd=tmp_path).ids == [run]


async def test_the_tour_kills_both_and_counts(tmp_path: Path) -> None:
    async with Process(["-m", "ondol.cli.tour"], cwd=tmp_path, env=environment(TMPDIR=str(tmp_path))) as tour:
        assert await tour.wait(timeout=50) == 0
        naive, durable = tour.output.splitlines()[-2:]
    assert re.fullmatch(r"naive: 2 e-mails in \S+/outbox\.jsonl", naive)
    assert re.fullmatch(r"ondol: 1 e-mail in \S+/outbox\.jsonl", durable)
    assert sys.executable  # the same interpreter runs both
