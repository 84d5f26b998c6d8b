"""What a view shows: pairs whole, order kept, and within what a request may weigh, wherever it is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ondol import context, sizes, view
from ondol.journal import Shown
from ondol.messages import Attachment, Message, Reasoning, Text, ToolCall, ToolResponse, tool_result, user
from ondol.providers.script import malformed
from ondol.view import Forms, Item, Room, View

READS = {"look", "read_more"}
CARRIED = 300


def a_conversation(seed: int, turns: int) -> list[Item]:
    """Turns of all kinds: several steps, calls side by side, reasoning, images, long and short results."""
    chance = random.Random(seed)
    said: list[Message] = []
    for turn in range(turns):
        photo = Attachment(f"{turn:064}", "image/png", "photo.png", 50_000)
        said.append(user(f"question {turn} " * chance.randint(1, 40), *([photo] if chance.random() < 0.2 else [])))
        for step in range(chance.randint(0, 3)):
            ids = [f"c{turn}_{step}_{n}" for n in range(chance.randint(1, 3))]
            calls = [ToolCall(id, chance.choice(["look", "pay"]), {"n": step}) for id in ids]
            reasoning = (Reasoning("hm " * 30, {"name": "script", "signature": "s"}),) if chance.random() < 0.5 else ()
            said.append(Message("assistant", (*reasoning, Text("on it"), *calls)))
            said += [tool_result(c.id, c.name, f"{c.name} {turn} " * chance.choice([2, 60, 400])) for c in calls]
        said.append(Message("assistant", (Text(f"answer {turn} " * chance.randint(1, 40)),)))
    return [Item(place, m, sizes.weight_of(m)) for place, m in enumerate(said)]


def asked_last(items: Sequence[Item]) -> tuple[list[Item], int]:
    """The same without its last answer: what is asked when that is not given yet. And where the last turn begins."""
    items = list(items[:-1])
    return items, view.turn_starts(items)[-1]


def every_text(message: Message) -> str:
    return message.text + "".join(p.text for p in message.parts if isinstance(p, ToolResponse))


@pytest.mark.parametrize("seed", range(12))
def test_at_every_budget_a_request_is_one_that_the_strictest_provider_takes(seed: int) -> None:
    items, own = asked_last(a_conversation(seed, 9))
    whole = Forms(items, READS).size(View())
    least = None
    for limit in range(whole, 400, -max(1, whole // 60)):
        forms = Forms(items, READS)
        relief = view.relieve(forms, View(), own, 0, Room(limit, limit * 3 // 4, keep=2, carried=CARRIED))
        shown = forms.messages(relief.view)
        assert malformed(shown, "script") is None
        told = CARRIED if relief.view.since else 0  # what stands in the place of turns that went
        assert sum(map(sizes.weight_of, shown)) + told <= relief.size
        assert any(m == items[own].message for m in shown if m.role == "user"), "the current input stays as it is"
        of_this_turn = [i.message for i in items[own:] if i.message.calls]
        calls = [m for m in shown if m.calls and m.calls[0].id in {of.calls[0].id for of in of_this_turn}]
        assert calls == of_this_turn[len(of_this_turn) - len(calls) :], "its calls stay with their reasoning"
        last = max(n for n, i in enumerate(items) if i.message.role == "assistant")
        unseen = [i.message for i in items[last + 1 :]]
        assert shown[len(shown) - len(unseen) :] == unseen, "what was not answered yet stays as it is"
        words = [m.text for m in shown if m.role == "user" and m.origin is None]
        all_words = [i.message.text for i in items if i.message.role == "user"]
        assert words == all_words[len(all_words) - len(words) :], "the order is kept, and the latest stay"
        if relief.size > limit:
            least = relief.size if least is None else least
            assert relief.size == least, "what cannot be made smaller is the same at each budget"
            assert relief.view.since == own


@pytest.mark.parametrize("seed", range(6))
def test_a_view_at_any_place_shows_calls_with_their_results_or_names_them(seed: int) -> None:
    """Also where no rule would cut: a stored view may have been made for another model."""
    items = a_conversation(seed, 5)
    forms = Forms(items, READS)
    for stop in view._detail(items, 0):
        for cuts in ({"detail": stop}, {"detail": stop, "results": stop, "payloads": stop, "reasoning": stop}):
            assert malformed(forms.messages(View(**cuts)), "script") is None


def test_relief_comes_in_the_order_that_loses_least() -> None:
    items, own = asked_last(a_conversation(3, 9))
    forms, seen = Forms(items, READS), []
    for limit in range(forms.size(View()), 400, -200):
        now = view.relieve(forms, View(), own, 0, Room(limit, limit)).view
        seen.append(now)
    for level, before in (("reasoning", "results"), ("detail", "reasoning"), ("since", "detail")):
        first = next(v for v in seen if getattr(v, level))
        furthest = max(getattr(v, before) for v in seen)
        assert getattr(first, before) == furthest, f"{level} before all {before}"


def test_what_may_not_go_stays_however_large_the_request_is() -> None:
    items, own = asked_last(a_conversation(3, 9))
    furthest = view.relieve(Forms(items, READS), View(), own, 0, Room(1, 1)).view
    assert all([furthest.results, furthest.reasoning, furthest.detail, furthest.since])
    for levels in ((), ("results",), view.LOSSLESS, (*view.LOSSLESS, "detail"), (*view.LOSSLESS, "since")):
        left = view.relieve(Forms(items, READS), View(), own, 0, Room(1, 1), levels).view
        assert {name for name, place in left._asdict().items() if place} == set(levels)


def test_of_a_result_that_can_be_had_again_a_reference_is_left_and_of_a_write_its_words() -> None:
    long = "as it stands there " * 100
    said = [
        user("go"), Message("assistant", (ToolCall("1", "look", {}), ToolCall("2", "pay", {}))),
        tool_result("1", "look", long), tool_result("2", "pay", long), Message("assistant", (Text("done"),)),
    ]  # fmt: skip
    items = [Item(n, m, sizes.weight_of(m)) for n, m in enumerate(said)]
    shown = Forms(items, READS).messages(View(results=5))
    assert 'read_more(reference="m2") shows them again' in every_text(shown[2])
    assert every_text(shown[3]) == long


def test_an_image_that_was_answered_is_named_and_the_words_beside_it_stay() -> None:
    photo = Attachment("ab" * 32, "image/png", "photo.png", 1_500_000)
    said = [user("what is this?", photo), Message("assistant", (Text("a cat"),)), user("and this?", photo)]
    items = [Item(n, m, sizes.weight_of(m)) for n, m in enumerate(said)]
    first, named, _, last = Forms(items, READS).messages(View(payloads=1))
    assert first == user("what is this?")
    assert named.origin == "runtime"
    for word in ("photo.png", "1500000 bytes", "abababababab", 'read_more(reference="m0.1")'):
        assert word in named.text
    assert last == said[2]


def test_base64_in_an_old_result_is_not_sent_again() -> None:
    result = {"page": 1, "image": "QUJD" * 1_000, "note": "short"}
    message = tool_result("1", "look", result)
    assert view.is_heavy(message)
    (item,) = Forms([Item(7, message, 0)], READS).messages(View(payloads=8))
    (part,) = item.parts
    assert isinstance(part, ToolResponse)
    assert part.response["note"] == "short"
    assert 'read_more(reference="m7")' in part.response["image"]
    assert not view.is_heavy(tool_result("1", "look", {"note": "words " * 1_000}))


def test_base64_in_a_result_that_was_not_answered_yet_stays() -> None:
    message = tool_result("1", "look", {"image": "QUJD" * 1_000})
    assert Forms([Item(7, message, 0)], ()).messages(View(reasoning=8, payloads=7)) == [message]


def test_bytes_of_an_old_result_are_named_and_what_only_looks_like_them_stays() -> None:
    mark = {"$ondol_attached": "ab" * 32, "media_type": "image/png", "size": 3_008, "form": "bytes"}
    other = {"$ondol_attached": "x"}  # of a tool that reads what somebody else wrote
    raw = {"$ondol": "bytes", "v": "QUJD" * 1_000}
    message = Message("tool", (ToolResponse("1", "look", {"shot": mark, "other": other, "raw": raw}),))
    (item,) = Forms([Item(7, message, 0)], READS).messages(View(payloads=8))
    (part,) = item.parts
    assert isinstance(part, ToolResponse)
    shown = 'shown before: read_more(reference="m7") shows it again]'
    assert part.response["shot"] == f"[image/png, 3008 bytes, {shown}"
    assert part.response["other"] == other
    assert "4000 characters of base64" in part.response["raw"]


def test_finished_calls_are_named_by_their_writes_in_a_bounded_room_and_reads_by_their_number() -> None:
    said = [user("go")]
    for n in range(100):
        calls = (ToolCall(f"p{n}", "pay", {"to": f"payee {n} " * 20}), ToolCall(f"l{n}", "look", {}))
        said += [
            Message("assistant", calls),
            tool_result(f"p{n}", "pay", "paid " * 50),
            tool_result(f"l{n}", "look", ""),
        ]
    items = [Item(n, m, sizes.weight_of(m)) for n, m in enumerate(said)]
    told = view.named_calls(items[1:], READS)
    assert len(told) < 5_000
    assert "- 60 earlier writes" in told
    assert "- 100 reads" in told
    assert "payee 99" in told
    assert "payee 59" not in told
    few = view.named_calls(items[1:7], READS)
    assert few.count(": paid paid") == 2
    assert "earlier writes" not in few
    assert "- 2 reads" in few


def test_a_short_result_is_no_longer_as_a_reference() -> None:
    said = [Message("assistant", (ToolCall("1", "look", {}),)), tool_result("1", "look", "yes")]
    items = [Item(n, m, sizes.weight_of(m)) for n, m in enumerate(said)]
    assert every_text(Forms(items, READS).messages(View(results=9))[1]) == "yes"


@pytest.mark.parametrize(("given", "place"), [("m12", (12, None)), (" M3.1 ", (3, 1)), ("12", None), ("m", None)])
def test_a_reference_names_a_message_or_a_part_of_it(given: str, place: object) -> None:
    assert view.place_of(given) == place


def test_the_hash_of_a_request_tells_what_of_the_session_it_shows() -> None:
    shown = Shown(clock=0, since=None, zone=None, history=9, definition="d")
    told = Message("system", (Text("be kind"),))
    others = [
        shown, shown._replace(definition="e"), shown._replace(carried="c"),
        *(shown._replace(view=View(**{part: 3})) for part in View._fields),
    ]  # fmt: skip
    heads = {context.request_head(told, each) for each in others}
    heads.add(context.request_head(Message("system", (Text("be strict"),)), shown))
    assert len(heads) == len(others) + 1
