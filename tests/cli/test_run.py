"""`ondol run`: the answer, and what it says and exits with when there is none."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ondol.cli.follow import Progress
from ondol.cli.output import Column, Output
from ondol.cli.run import stop_on_signals
from ondol.cli.surface import Cli, Options, typed
from ondol.events import Event
from ondol.testing import Process

from .command import app, environment, ondol


def test_in_a_pipe_the_answer_is_all_that_is_printed(tmp_path: Path) -> None:
    done = ondol("run", app("hello"), "say hi to kim", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, "hello kim\n", "")


def test_an_answer_that_was_cut_off_is_called_so_beside_it(tmp_path: Path) -> None:
    done = ondol("run", app("cut"), "go", cwd=tmp_path)
    told = "(the answer is not complete: the model stopped with 'length')\n"
    assert (done.code, done.out, done.err) == (0, "half a sent\n", told)
    assert ondol("run", app("cut"), "go", "-o", "json", cwd=tmp_path).json["stop"] == "length"


def test_the_same_operation_again_is_the_stored_body_byte_for_byte(tmp_path: Path) -> None:
    words = ("run", app("hello"), "say hi to kim", "--operation-id", "k", "--session", "s", "-o", "json")
    first, second = ondol(*words, cwd=tmp_path), ondol(*words, cwd=tmp_path)
    assert (first.code, first.out) == (0, second.out)
    assert first.json["text"] == "hello kim"
    assert (first.json["session"], first.json["operation_id"], first.json["state"]) == ("s", "k", "completed")


def test_an_operation_id_with_another_input_is_a_conflict_in_one_line(tmp_path: Path) -> None:
    ondol("run", app("hello"), "the secret", "--operation-id", "k", cwd=tmp_path)
    done = ondol("run", app("hello"), "something else", "--operation-id", "k", cwd=tmp_path)
    assert (done.code, done.out, done.err.count("\n")) == (5, "", 1)
    assert done.err.startswith("error [operation_mismatch]: ")
    assert "secret" not in done.err


def test_text_comes_from_standard_input_and_files_are_attached(tmp_path: Path) -> None:
    (tmp_path / "receipt.txt").write_text("paid")
    done = ondol("run", app("hello"), "-", "--file", "receipt.txt", "-o", "ids", cwd=tmp_path, stdin="greet lee")
    shown = ondol("--db", "sqlite:///own.db", "context", *done.ids, "--step", "1", "-o", "json", cwd=tmp_path).json
    text, attached = shown["messages"][1]["parts"]
    assert (text["content"], attached["name"], attached["size"]) == ("greet lee", "receipt.txt", 4)
    assert shown["matches"] is True


def test_a_run_that_waits_prints_the_exact_arguments_and_what_decides(tmp_path: Path) -> None:
    done = ondol("run", app("asking"), "refund it", cwd=tmp_path, ONDOL_DB="sqlite:///t.db")
    assert (done.code, done.out) == (6, "")
    assert 'refund(order_id="1182", amount=30)' in done.err
    (command,) = [line.strip() for line in done.err.splitlines() if " asks approve " in line]
    decided = ondol(*command.split()[1:], cwd=tmp_path, ONDOL_DB="sqlite:///t.db")
    assert decided.code == 0
    assert "runs resume" in decided.err  # no process serves the agent: it says what goes on with it


def test_a_lost_outcome_exits_with_7_and_is_in_the_body(tmp_path: Path) -> None:
    done = ondol("run", app("losing"), "send it", "-o", "json", cwd=tmp_path)
    assert done.code == 7
    assert (done.json["state"], [a["kind"] for a in done.json["asks"]]) == ("waiting", ["unknown_effect"])
    assert f"effects resolve {done.json['asks'][0]['effect']} --happened" in done.err


def test_a_run_queued_behind_one_that_waits_says_so(tmp_path: Path) -> None:
    ondol("run", app("asking"), "refund it", "--session", "s", cwd=tmp_path)
    done = ondol("run", app("hello"), "and hello", "--session", "s", cwd=tmp_path)
    assert done.code == 6
    assert "is queued behind run" in done.err


def test_a_failed_run_exits_with_1_and_goes_on_with_another_model(tmp_path: Path) -> None:
    db = ("--db", "sqlite:///t.db")
    failed = ondol(*db, "run", app("broke"), "hello", "--operation-id", "k", "-o", "json", cwd=tmp_path)
    assert (failed.code, failed.json["state"], failed.json["retryable"]) == (1, "failed", True)
    assert failed.err.startswith("error [run_failed]: ")
    without_app = ondol(*db, "runs", "resume", failed.json["id"], cwd=tmp_path)
    assert (without_app.code, "--app" in without_app.err) == (2, True)
    (tmp_path / "answers.json").write_text(json.dumps(["paid by now"]))
    resumed = ondol(
        *db, "runs", "resume", failed.json["id"], "--app", app("broke"), "--model", "script:answers.json", cwd=tmp_path
    )
    assert (resumed.code, resumed.out) == (0, "paid by now\n")
    assert ondol(*db, "runs", "-o", "ids", cwd=tmp_path).ids == [failed.json["id"]]


def test_how_to_go_on_names_the_model_and_the_agent_that_were_named(tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps([{"error": "quota"}]))
    words = ("--agent", "served", "--model", "script:answers.json")
    failed = ondol("run", app("rt"), "hello", *words, cwd=tmp_path)
    (go_on,) = [line.partition("go on: ")[2] for line in failed.err.splitlines() if "go on: " in line]
    answers.write_text(json.dumps(["paid by now"]))
    resumed = ondol(*shlex.split(go_on)[1:], cwd=tmp_path)
    assert (failed.code, resumed.code, resumed.out) == (1, 0, "paid by now\n")


def test_an_app_that_cannot_be_loaded_is_a_usage_error_that_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import ondol\nondol.nothing\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "wrong.py").write_text("from ondol import Limits\nlimits = Limits(steps=-1)\n")
    (tmp_path / "loop.py").write_text("import asyncio\nwork = asyncio.sleep\nasyncio.run(work)\n")
    (tmp_path / "null.py").write_text("\0")
    (tmp_path / "base.py").write_text("class Left(BaseException): pass\n\nraise Left('not here')\n")
    for words, said in (
        ("null.py:x", "null.py cannot be loaded: SyntaxError: "),
        ("base.py:x", "(base.py, line 3): Left: not here"),
        ("nothing.py:x", "there is no file nothing.py"),
        ("nothing:x", "there is no module 'nothing'"),
        ("", "there is no module '' here: say MODULE:NAME or FILE.py:NAME"),
        (".", "there is no module '.' here: say MODULE:NAME or FILE.py:NAME"),
        ("./wrong:x", "there is no module './wrong' here: say ./wrong.py:NAME"),
        ("broken.py:x", "(broken.py, line 2)"),
        ("wrong.py:x", "(wrong.py, line 2): Limits(steps=-1)"),
        ("loop.py:x", "(loop.py, line 3)"),
        ("empty.py:x", "neither an Agent nor a Runtime"),
        (app("nobody"), "hello, cut, holding"),
        (app("rt"), "say which with --agent"),
    ):
        done = ondol("run", words, "hi", cwd=tmp_path)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert said in done.err


def test_another_agent_than_the_one_that_is_named_is_not_run(tmp_path: Path) -> None:
    refused = ondol("run", app("hello"), "hi", "--agent", "asking", cwd=tmp_path)
    assert (refused.code, refused.out, "is the agent 'hello', and not 'asking'" in refused.err) == (2, "", True)
    assert ondol("run", app("hello"), "hi", "--agent", "hello", cwd=tmp_path).code == 0


def test_ctrl_c_while_the_command_is_still_being_loaded_is_no_traceback(tmp_path: Path) -> None:
    program = """
import sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "ondol.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from ondol.cli import main
main(["runs"])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_current_folder_that_was_removed_is_called_that(tmp_path: Path) -> None:
    program = "import os; os.rmdir(os.getcwd())\nfrom ondol.cli import main; main(['run', 'app.py:agent', 'hi'])"
    (here := tmp_path / "here").mkdir()
    done = subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error [error]: the current folder cannot be used"), done.stderr


def test_a_module_of_the_current_folder_is_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from ondol import Agent\nagent = Agent('mine', model='script:demo')\n")
    done = ondol("run", "mine:agent", "hi", cwd=tmp_path)
    assert (done.code, done.out) == (0, "You said: hi\n")
    assert (tmp_path / "ondol.db").exists()


def test_the_modules_runtime_gives_deps_zone_and_store(tmp_path: Path) -> None:
    done = ondol("run", app("rt"), "hi", "--agent", "served", cwd=tmp_path)
    assert (done.code, done.out) == (0, "the bank, Asia/Seoul\n")
    assert (tmp_path / "own.db").exists()
    named = ondol("run", app("served"), "hi", "--time-zone", "Europe/Berlin", cwd=tmp_path, ONDOL_DB="sqlite:///b.db")
    assert (named.code, named.out) == (0, "the bank, Europe/Berlin\n")
    assert (tmp_path / "b.db").exists()
    listed = ondol("--db", "sqlite:///b.db", "runs", cwd=tmp_path)
    assert "+01:00" in listed.out or "+02:00" in listed.out


DESK = """
from ondol import Agent, Context, Runtime, tool
from ondol.testing import ScriptedModel, call

@tool(effect="idempotent")
async def look_up(ctx: Context[None]) -> str:
    return (await rt.run(clerk, "Which?", operation_id=ctx.idempotency_key)).text

def tell(message) -> None:
    print(message.kind, flush=True)

clerk = Agent("clerk", model=ScriptedModel(["1182"]))
desk = Agent("desk", model=ScriptedModel([call("look_up"), "It is there."]), tools=[look_up])
rt = Runtime("sqlite:///own.db", agents=[desk, clerk], deliver=tell)
"""


@pytest.mark.parametrize("named", [{}, {"ONDOL_DB": "sqlite:///named.db"}], ids=["its-own", "named"])
async def test_the_modules_runtime_is_the_one_that_its_tools_know_and_tells_its_listener(
    tmp_path: Path, named: dict[str, str]
) -> None:
    (tmp_path / "desk.py").write_text(DESK)
    done = ondol("run", "desk.py:desk", "Is it there?", cwd=tmp_path, **named)
    assert (done.code, set(done.out.splitlines()) - {"run.completed"}) == (0, {"It is there."})
    serve = ["-m", "ondol", "serve", "desk.py:rt", "--port", "0"]
    async with Process(serve, cwd=tmp_path, env=environment(**named)) as server:
        url = (await server.line("serving")).rpartition(" ")[2]
        there = {**named, "ONDOL_URL": url}
        done = ondol("run", "desk", "Is it there?", cwd=tmp_path, **there)
        assert (done.code, done.out) == (0, "It is there.\n")
        await server.line("run.completed")
    assert ((tmp_path / "named.db").exists(), (tmp_path / "own.db").exists()) == (bool(named), not named)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)], ids=["ctrl-c", "hang-up"])
async def test_who_goes_away_leaves_the_run_and_is_told_how_to_go_on(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    (tmp_path / "answers.json").write_text(json.dumps([{"error": "rate_limited", "retry_after": 50}, "at last"]))
    words = ["run", app("hello"), "hi", "--model", "script:answers.json", "--operation-id", "k"]
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # whatever these tests were started with
        f"from ondol.cli import main; main({words!r})"
    )
    async with Process(["-c", program], cwd=tmp_path, env=environment(ONDOL_DB="sqlite:///t.db")) as run:
        while not ondol("runs", "-o", "ids", "--state", "running", cwd=tmp_path, ONDOL_DB="sqlite:///t.db").ids:
            pass
        os.kill(run.pid, number)
        assert await run.wait() == code
        assert "runs resume r_" in run.errors
        assert "runs cancel r_" in run.errors
    listed = ondol("runs", "-o", "json", cwd=tmp_path, ONDOL_DB="sqlite:///t.db").json
    assert [r["state"] for r in listed] == ["queued"]


async def test_a_run_that_waits_for_the_deadline_of_a_lost_attempt_says_so(tmp_path: Path) -> None:
    db = {"ONDOL_DB": "sqlite:///t.db"}
    words = ("run", app("building"), "go", "--operation-id", "k")
    assert ondol(*words, cwd=tmp_path, **db).code == -signal.SIGKILL
    (run_id,) = ondol("runs", "-o", "ids", cwd=tmp_path, **db).ids
    assert "may act until" not in ondol("runs", "show", run_id, cwd=tmp_path, **db).out  # nobody has looked yet
    async with Process(["-m", "ondol", *words], cwd=tmp_path, env=environment(**db)) as again:
        waits = "waits: its last attempt was lost, and may act until 20"
        while f"effect e_{run_id[2:]}_0 (build) {waits}" not in again.errors:  # noqa: ASYNC110 - a thread reads it
            await asyncio.sleep(0)
        assert f"e_{run_id[2:]}_0 {waits}" in ondol("runs", "show", run_id, cwd=tmp_path, **db).out
        os.kill(again.pid, signal.SIGINT)
        assert await again.wait() == 130


def test_who_is_told_once_more_to_stop_goes_on_to_stop_in_order() -> None:
    """Whoever passes a signal on to what it started may not be the only one who sends it."""

    async def stops() -> list[int]:
        told, both = stop_on_signals(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, both.set)
        loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            for number in (signal.SIGTERM, signal.SIGUSR1):
                os.kill(os.getpid(), number)
            await both.wait()
        return told

    assert asyncio.run(stops()) == [signal.SIGTERM]


def test_ctrl_c_ends_the_reading_of_standard_input_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop, which hears of it, stands still meanwhile."""

    class Typed:
        def read(self) -> str:
            os.kill(os.getpid(), signal.SIGINT)
            return "not interrupted"

    async def reads() -> str:
        return typed()

    monkeypatch.setattr(sys, "stdin", Typed())
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(reads())


@pytest.mark.parametrize(("columns", "rows"), [(80, 4), (40, 2)])
def test_a_table_is_folded_where_it_can_be_read_and_else_left_to_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, rows: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Output("table", no_color=True)
    out.is_terminal = True
    call = "refund(order_id='1182', amount=30, why='it came broken')"
    out.table([call], [Column("ID", lambda _: "a_1m8s7amjxpwh5csv"), Column("CALL", str), Column("WHY", str)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == rows
    assert (call in lines[1]) == (rows == 2)


def test_a_terminal_shows_each_effect_and_the_text_as_it_is_said(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [sys.executable, "-m", "ondol", "run", app("hello"), "hi kim"], environment())
    said = b""
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        said += more
        if not more:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lines = said.decode().splitlines()
    assert lines[0].startswith("run r_")
    assert [line.split() for line in lines[1:]] == [["greet", "done"], ["hello", "kim"]]


@pytest.mark.parametrize("broke", ["step.failed", "run.resumed"])
def test_on_a_terminal_what_an_attempt_said_that_broke_is_taken_back(
    capsys: pytest.CaptureFixture[str], broke: str
) -> None:
    progress, at = Progress(Cli(Options(), None)), datetime.now(UTC) + timedelta(minutes=1)
    told = [
        ("model.started", {"step": 1}), ("model.delta", {"step": 1, "kind": "text", "text": "Dear"}),
        (broke, {"step": 1} if broke == "step.failed" else {}),
        ("model.delta", {"step": 1, "kind": "text", "text": "Dear"}),
        ("model.delta", {"step": 1, "kind": "text", "text": " Kim"}),
        ("model.completed", {"step": 1, "text": "Dear Kim"}), ("run.resumed", {}),
    ]  # fmt: skip
    for kind, data in told:
        progress(Event(type=kind, data=data, at=at))
    said = capsys.readouterr()
    assert said.out == "Dear\nDear Kim\n"
    assert said.err == "(what was said is taken back: the model is asked again)\n"
    assert progress.said == "Dear Kim"
