"""`ondol asks` and `ondol effects`: a person's word, given once."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from .command import Done, app, ondol


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return tmp_path


def command(*words: str, cwd: Path, stdin: str = "") -> Done:
    return ondol(*words, cwd=cwd, stdin=stdin, ONDOL_DB="sqlite:///t.db")


def wait_for_approval(cwd: Path, session: str = "s") -> tuple[str, str]:
    """The ids of a run and of its open ask."""
    body = command("run", app("asking"), "refund it", "--session", session, "-o", "json", cwd=cwd).json
    return body["id"], body["asks"][0]["id"]


def lose(cwd: Path) -> tuple[str, str]:
    """The ids of a run and of its unknown effect."""
    body = command("run", app("losing"), "send it", "-o", "json", cwd=cwd).json
    return body["id"], body["asks"][0]["effect"]


def go_on(run: str, name: str, cwd: Path) -> Done:
    return command("runs", "resume", run, "--app", app(name), cwd=cwd)


def test_a_value_that_looks_like_an_option_is_told_where_to_stand(tmp_path: Path) -> None:
    done = ondol("asks", "answer", "a_1", "-5", cwd=tmp_path)
    assert (done.code, "stands behind '--'" in done.err) == (2, True)
    assert ondol("asks", "answer", "a_1", "--", "-5", cwd=tmp_path).code == 4
    missing = ondol("asks", "answer", "a_1", cwd=tmp_path)
    assert (missing.code, "the answer is missing: ondol asks answer a_1 VALUE" in missing.err) == (2, True)
    unknown = ondol("runs", "--state", "lost", cwd=tmp_path)
    assert (unknown.code, "'--state': 'lost' is not one of 'queued'" in unknown.err) == (2, True)
    assert "--session" in ondol("run", app("hello"), "hi", "--sesion", "s", cwd=tmp_path).err


def test_the_commands_that_are_shown_for_a_question_can_be_copied(cwd: Path) -> None:
    command("run", app("moving"), "move", cwd=cwd)
    (ask,) = command("asks", "-o", "ids", cwd=cwd).ids
    down, up = [shlex.split(line) for line in command("asks", "show", ask, cwd=cwd).out.splitlines()[-2:]]
    assert (down[-1], up[-3]) == ("-1", "1")
    done = command(*down[1:], cwd=cwd)
    assert (done.code, done.out.startswith(f"{ask}: answer -1 by NAME.")) == (0, True)


def test_an_ask_is_shown_in_full_and_approved_once(cwd: Path) -> None:
    run, ask = wait_for_approval(cwd)
    shown = command("asks", "show", ask, cwd=cwd)
    assert 'refund(order_id="1182", amount=30)' in shown.out
    assert f"ondol asks approve {ask}" in shown.out
    blank = command("asks", "approve", ask, "--by", "  ", cwd=cwd)
    assert (blank.code, "by is blank: say who it is" in blank.err) == (2, True)
    assert command("asks", "approve", ask, "--by", "lee", cwd=cwd).code == 0
    assert command("asks", "approve", ask, "--by", "kim", cwd=cwd).out.startswith(f"{ask}: approve by lee.")
    other = command("asks", "deny", ask, cwd=cwd)
    assert (other.code, other.err.startswith("error [already_decided]: ")) == (5, True)
    assert (go_on(run, "asking", cwd).out, (cwd / "refunds").read_text()) == ("done\n", "1182 30\n")


def test_arguments_are_replaced_in_full(cwd: Path) -> None:
    run, ask = wait_for_approval(cwd)
    assert command("asks", "approve", ask, "--arguments", "{amount: 5}", cwd=cwd).code == 2
    assert command("asks", "approve", ask, "--arguments", "[5]", cwd=cwd).code == 2
    for given, why in (
        ('{"order_id": "1182", "amount": NaN}', "NaN is no number of JSON: line 1 column 32 "),
        ('{"order_id": "1182", "amount": 5, "amount": 6}', "has 'amount' twice"),
        ("[" * 100_000, "is not JSON"),
    ):
        refused = command("asks", "approve", ask, "--arguments", given, cwd=cwd)
        assert (refused.code, why in refused.err) == (2, True), refused.err
    assert command("asks", "approve", ask, "--arguments", '{"order_id": "1182", "amount": 5}', cwd=cwd).code == 0
    assert (go_on(run, "asking", cwd).code, (cwd / "refunds").read_text()) == (0, "1182 5\n")


def test_a_refusal_is_told_to_the_model_and_the_run_goes_on(cwd: Path) -> None:
    run, ask = wait_for_approval(cwd)
    assert command("asks", "deny", ask, "--by", "lee", "--reason", "too much", cwd=cwd).code == 0
    assert (go_on(run, "asking", cwd).out, (cwd / "refunds").exists()) == ("done\n", False)
    seen = command("context", run, cwd=cwd).out
    assert "lee refused this call: too much" in seen


def test_ids_are_read_from_standard_input_and_one_that_fails_does_not_stop_the_others(cwd: Path) -> None:
    first, second = wait_for_approval(cwd, "s1"), wait_for_approval(cwd, "s2")
    listed = command("asks", "-o", "ids", cwd=cwd)
    assert listed.ids == [first[1], second[1]]
    approved = command("asks", "approve", "a_nobody", "-", "-o", "ids", cwd=cwd, stdin=listed.out)
    assert (approved.code, approved.ids) == (4, listed.ids)
    assert approved.err.startswith("error [not_found]: ")
    assert command("asks", "-o", "ids", cwd=cwd).ids == []


def test_an_ask_of_a_run_that_ended_is_closed(cwd: Path) -> None:
    run, ask = wait_for_approval(cwd)
    assert command("runs", "cancel", run, cwd=cwd).out == f"run {run} is cancelled\n"
    done = command("asks", "approve", ask, cwd=cwd)
    assert (done.code, done.err.startswith("error [ask_closed]: ")) == (5, True)
    assert command("asks", "answer", ask, "resume", cwd=cwd).code == 2  # an approval is not answered like that


def test_an_unknown_effect_that_happened_is_not_repeated(cwd: Path) -> None:
    run, effect = lose(cwd)
    assert command("effects", "--state", "unknown", "-o", "ids", cwd=cwd).ids == [effect]
    settle = ("effects", "resolve", effect)
    assert command(*settle, cwd=cwd).code == 2
    assert command(*settle, "--happened", "--give-up", cwd=cwd).code == 2
    for outcome in ("--happened", "--not-happened", "--give-up"):
        unseen = command(*settle, outcome, "--evidence", " ", "--by", "lee", cwd=cwd)
        assert (unseen.code, "--evidence TEXT" in unseen.err) == (2, True)
    happened = (*settle, "--happened", "--result", '"sent"', "--evidence", "I saw it", "--by", "lee")
    assert command(*happened, cwd=cwd).code == 0
    assert command(*happened, cwd=cwd).code == 0  # the same word again
    assert command(*settle, "--not-happened", "--evidence", "looked", cwd=cwd).code == 5
    assert go_on(run, "losing", cwd).out == "well\n"
    assert (cwd / "lost").read_text() == "a letter\n"
    assert "lose returned: sent" in command("context", run, cwd=cwd).out
    (act,) = command("audit", "-o", "json", cwd=cwd).json
    assert (act["by"], act["act"], act["note"]) == ("lee", "ask.happened", "I saw it")


def test_an_unknown_effect_that_did_not_happen_is_tried_again(cwd: Path) -> None:
    run, effect = lose(cwd)
    assert command("effects", "resolve", effect, "--not-happened", "--evidence", "looked", cwd=cwd).code == 0
    assert go_on(run, "losing", cwd).code == 7  # it broke again
    assert (cwd / "lost").read_text() == "a letter\na letter\n"


def test_what_a_call_returned_is_printed_in_full_and_an_unknown_one_has_no_result(cwd: Path) -> None:
    _, effect = lose(cwd)
    none = command("effects", "show", effect, "--result", cwd=cwd)
    assert (none.code, none.out) == (4, "")
    assert "is unknown: no result of it is kept" in none.err
    settle = ("effects", "resolve", effect, "--happened", "--evidence", "seen", "--result", '{"id": [1, 2]}')
    assert command(*settle, cwd=cwd).code == 0
    assert command("effects", "show", effect, "--result", cwd=cwd).out == '{"id": [1, 2]}\n'
    assert json.loads(command("effects", "show", effect, "--result", "-o", "json", cwd=cwd).out) == {"id": [1, 2]}


def test_giving_up_fails_the_run(cwd: Path) -> None:
    run, effect = lose(cwd)
    assert command("effects", "resolve", effect, "--give-up", "--evidence", "nobody knows", cwd=cwd).code == 0
    done = go_on(run, "losing", cwd)
    assert (done.code, "unknown_effect" in done.err) == (1, True)


def test_what_was_given_up_is_shown_as_that_and_nobody_is_told_to_settle_it(cwd: Path) -> None:
    run, effect = lose(cwd)
    assert "effects resolve" in command("effects", "show", effect, cwd=cwd).out
    assert command("doctor", cwd=cwd).code == 1
    command("effects", "resolve", effect, "--give-up", "--evidence", "nobody knows", cwd=cwd)
    go_on(run, "losing", cwd)
    shown = command("effects", "show", effect, cwd=cwd)
    assert (shown.code, "it was given up" in shown.out, "effects resolve" in shown.out) == (0, True, False)
    replay = command("runs", "replay", run, "--dry-run", cwd=cwd).out
    assert ("was given up and stays unknown" in replay, "settle" in replay) == (True, False)
    assert command("doctor", cwd=cwd).code == 0


def test_what_is_not_there_is_not_found(cwd: Path) -> None:
    wait_for_approval(cwd)
    for words in (
        ("runs", "show", "r_nobody"), ("runs", "cancel", "r_nobody"), ("runs", "watch", "r_nobody"),
        ("asks", "show", "a_nobody"), ("asks", "deny", "a_nobody"), ("effects", "show", "nothing"),
        ("effects", "resolve", "e_nobody_0", "--happened", "--evidence", "seen"), ("sessions", "show", "nobody"),
        ("context", "r_nobody"),
    ):  # fmt: skip
        done = command(*words, cwd=cwd)
        assert (done.code, done.out, done.err.count("\n")) == (4, "", 1), words
        assert done.err.startswith("error [not_found]: ")
