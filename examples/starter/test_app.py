"""What must not go wrong, with a model that says what it is told to say."""

from dataclasses import replace
from pathlib import Path

from app import Outbox, agent

from ondol import RunResult, Runtime
from ondol.testing import ScriptedModel, call


def ask(folder: Path, outbox: Outbox, operation_id: str) -> RunResult:
    """One request, in a process of its own as far as the store can tell."""
    model = ScriptedModel(
        [
            call("find_address", name="Kim"),
            call("send_note", to="kim@example.com", body="See you at nine."),
            "Kim knows.",
        ]
    )
    tested = replace(agent, model=model)
    rt = Runtime(f"sqlite:///{folder}/test.db", agents=[tested], deps=outbox)
    return rt.run_sync(tested, "Tell Kim when we meet", operation_id=operation_id)


def sent(folder: Path) -> list[str]:
    return (folder / "outbox.txt").read_text().splitlines()


def test_a_request_that_comes_twice_sends_one_note(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.txt")
    first = ask(tmp_path, outbox, "message-1")
    again = ask(tmp_path, outbox, "message-1")
    assert first.text == "Kim knows."
    assert again.replayed
    assert again.body == first.body
    assert len(sent(tmp_path)) == 1


class LosesItsAnswer(Outbox):
    """The note goes out, and the connection breaks before anybody says so."""

    def send(self, key: str, to: str, body: str) -> None:
        super().send(key, to, body)
        raise ConnectionError("the line broke")


def test_a_note_whose_answer_was_lost_is_looked_for_and_not_sent_again(tmp_path: Path) -> None:
    assert ask(tmp_path, LosesItsAnswer(tmp_path / "outbox.txt"), "message-2").text == "Kim knows."
    assert len(sent(tmp_path)) == 1
