"""What is told in the place of turns that a model is not shown any more, and what a model is sent to shorten them."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from ondol import carried, values
from ondol.messages import Message, Text, ToolCall, user
from ondol.records import AskRow
from ondol.sizes import weight_of, weight_of_text
from ondol.view import Item


def decided(**decision: Any) -> AskRow:
    """An approval of ``mail`` that was decided so by lee."""
    row = dict.fromkeys(AskRow._fields) | {"tool": "mail", "arguments": '{"to":"kim"}', "decided_by": "lee"}
    return AskRow(**row | {"decision": values.dumps(decision)})  # type: ignore[arg-type]


def said(*messages: Message) -> list[Item]:
    return [Item(place, m, weight_of(m)) for place, m in enumerate(messages)]


def answer(text: str, *calls: ToolCall) -> Message:
    return Message("assistant", (Text(text), *calls))


def test_a_decision_is_told_with_who_made_it_and_about_which_arguments() -> None:
    approved, others, refused, late = (
        decided(kind="approve"), decided(kind="approve", arguments={"to": "pat"}),
        decided(kind="deny", reason="no\n- ever"), decided(kind="expire"),
    )  # fmt: skip
    assert carried.facts([approved, others, refused, late], [], 8_000) == [
        'lee approved mail({"to": "kim"}) once',
        'lee approved mail({"to": "kim"}) with other arguments, {"to": "pat"}, once',
        'lee refused mail({"to": "kim"}): no - ever',
        'nobody approved mail({"to": "kim"}) in time',
    ]


def test_of_many_decisions_the_latest_are_told_and_of_the_rest_their_number() -> None:
    each = weight_of_text('lee refused mail({"to": "kim"}): 99')
    told = carried.facts([decided(kind="deny", reason=str(n)) for n in range(10, 30)], [], 5 * each)
    assert told[0] == "15 earlier decisions are not listed"
    assert [line[-2:] for line in told[1:]] == ["25", "26", "27", "28", "29"]


def test_a_long_decision_is_one_line_of_its_beginning_and_its_end() -> None:
    (told,) = carried.facts([decided(kind="deny", reason="so " * 500 + "\nand so it ends")], [], 600)
    assert told.startswith('lee refused mail({"to": "kim"}): so so')
    assert told.endswith("and so it ends")
    assert "\n" not in told
    assert len(told) <= 300


def test_an_outline_has_a_line_for_each_turn_with_all_that_was_asked_and_the_answer_to_it() -> None:
    called = ToolCall("c1", "look", {})
    items = said(
        user("first"), answer("found"), user("second"), answer("on it", called), user("and third"), answer("so it is"),
        user("last"),
    )  # fmt: skip
    assert carried.outline(items, "", 8_000).splitlines() == [
        "- Asked m0 'first'. Answered m1: 'found'",
        "- Asked m2 'second'; m4 'and third'. Answered m5: 'so it is'",
        "- Asked m6 'last'.",
    ]
    assert carried.outline(items[2:], "- what was before", 8_000).startswith("- what was before\n- Asked m2")
    assert carried.outline(items, "- what was before", 160).splitlines() == [
        "- 1 earlier requests are not listed",
        "- Asked m2 'second'; m4 'and third'. Answered m5: 'so it is'",
        "- Asked m6 'last'.",
    ]


def test_a_model_that_shortens_a_conversation_is_sent_all_of_it_where_there_is_room() -> None:
    words = "word " * 700
    items = said(user(words), answer("yes"))
    (_, all_of_it), (_, short) = (carried.request(items, "", room, 400) for room in (10_000, 2_000))
    assert all_of_it.text == f"m0 user: {words}\nm1 assistant: yes"
    assert len(short.text) <= 2_000
    assert short.text.endswith("m1 assistant: yes")


@pytest.mark.parametrize(
    "wrote",
    [
        "Клиент хочет вернуть деньги за заказ и просит написать ему до пятницы",
        "ग्राहक अपने ऑर्डर का पैसा वापस चाहता है और शुक्रवार से पहले उत्तर माँगता है",
        "고객은 주문 금액을 돌려받고 싶어 하며 금요일까지 답장을 원한다",
    ],
)
@pytest.mark.parametrize("length", [600, 8_000])
def test_a_summary_of_all_the_words_that_it_may_have_is_taken_in_the_language_of_the_user(
    wrote: str, length: int
) -> None:
    """Else a session in such a language pays for summaries that are all refused, or goes on in another one."""
    system, _ = carried.request(said(user(wrote), answer("да")), "", 2_000, length)
    assert "the language that the user writes in" in system.text
    words = int(re.findall(r"at most (\d+) words", system.text)[0])
    summary = " ".join(itertools.islice(itertools.cycle(wrote.split()), words))
    assert carried.why_refused([Text(summary)], "stop", length) == ""
