"""A result that is too long is shown in part, and every character of the rest can be read."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondol import Agent, InvalidInput, Limits, NotDone, messages, outputs, tool, values
from ondol.conversation import Conversation
from ondol.histories import NO_HISTORY
from ondol.limits import LEAST_TOOL_OUTPUT
from ondol.messages import Blob, Message, Text, tool_result

LIMIT = LEAST_TOOL_OUTPUT
LONG = "🔥온" * 5_000

results = st.one_of(
    st.text(),
    st.text(max_size=9).map(lambda text: text * 3_000),
    st.dictionaries(
        st.text(max_size=3), st.text(max_size=40) | st.integers() | st.decimals() | st.binary(), max_size=99
    ),
)


@given(results, st.integers(LIMIT, 3 * LIMIT))
def test_no_result_is_shown_longer_than_it_may_be_and_nothing_of_it_is_lost(result: Any, limit: int) -> None:
    encoded = values.encode(result)
    whole = values.plain_text(encoded)
    shown = outputs.show(encoded, whole, limit)
    if len(whole) <= limit:
        assert shown == (encoded, None, b"")
        return
    assert shown.blob is not None
    assert len(shown.response) <= limit
    shown.response.encode()
    begins, _, _, ends = shown.response.partition("\n[… ")[0], *shown.response.rpartition(" …]\n")
    assert whole.startswith(begins)
    assert whole.endswith(ends)
    assert len(begins) + len(ends) > limit - 300
    assert (shown.blob.size, shown.blob.length) == (len(shown.data), len(whole))
    assert shown.blob.digest == hashlib.sha256(shown.data).hexdigest()
    assert outputs.text_of(shown.blob, shown.data) == whole


def test_a_value_that_is_no_text_is_kept_with_its_tags() -> None:
    paid = [{"paid": Decimal("0.10")}] * 1_000
    encoded = values.encode(paid)
    shown = outputs.show(encoded, values.plain_text(encoded), LIMIT)
    assert shown.blob is not None
    assert shown.blob.media_type == "application/json"
    assert values.decode(values.loads(shown.data)) == paid


@given(st.text(min_size=1).map(lambda text: text * 50), st.integers(LIMIT, 2 * LIMIT), st.integers(1) | st.none())
def test_page_by_page_a_text_is_read_as_a_whole(text: str, room: int, limit: int | None) -> None:
    read, offset = "", 0
    while offset < len(text):
        page = outputs.page(text, offset, limit, room)
        assert len(page) <= room
        heading, _, piece = page.partition("\n")
        assert len(piece) <= (limit or room)
        assert heading.startswith(f"[characters {offset} to {offset + len(piece)}")
        read, offset = read + piece, offset + len(piece)
        assert ("the end" in heading) == (offset == len(text))
    assert read == text


@pytest.mark.parametrize(("offset", "limit"), [(-1, None), (5, None), (10**30, 1), (0, 0), (0, -5)])
def test_a_page_that_there_is_not_is_refused(offset: int, limit: int | None) -> None:
    with pytest.raises(NotDone, match="it has 5 characters"):
        outputs.page("12345", offset, limit, LIMIT)


def test_many_calls_of_a_step_share_what_a_budget_has_room_for() -> None:
    assert [outputs.share(20_000, calls, 60_000) for calls in (1, 4, 60, 100)] == [20_000, 5_000, 1_000, 600]
    assert [outputs.share(3_000, calls, 3_000) for calls in (1, 4, 8, 100)] == [3_000, 750, 375, 300]


def test_many_calls_of_a_step_share_what_one_may_show() -> None:
    assert [outputs.share(20_000, calls) for calls in (1, 4, 20, 1000)] == [20_000, 5_000, 1_000, 1_000]


def test_a_reference_is_one_that_a_result_of_the_conversation_has() -> None:
    first, second = (Blob(digest * 8, "text/plain", 1, 1) for digest in ("01234567", "0123abcd"))
    other = tool_result("c3", "t", f"forged: {'f' * 64}")
    said = [tool_result("c1", "t", "…", blob=first), tool_result("c2", "t", "…", blob=second), other]
    blobs = outputs.blobs_of(said)
    assert outputs.find(first.digest, blobs) == first
    assert outputs.find(" 0123ABCD", blobs) == second  # as much of it as names one
    for reference in ("", "0123", "f" * 64, "../etc", first.digest + "0", "01234567 "[:7], "\0" * 500):
        with pytest.raises(NotDone, match="this conversation has no result"):
            outputs.find(reference, blobs)


def test_a_conversation_knows_whether_there_is_more_to_read() -> None:
    cut = tool_result("c", "t", "…", blob=Blob("0" * 64, "text/plain", 1, 1))
    shown = (Message("user", (Text("0" * 64),)), tool_result("c", "t", "short"))
    assert not conversation(*shown).is_cut
    assert conversation(*shown, cut).is_cut
    assert conversation(*shown, cut).shown_to("another", NO_HISTORY).is_cut
    later = conversation(*shown)
    later.history = NO_HISTORY._replace(is_cut=True)
    assert later.is_cut


def conversation(*said: Message) -> Conversation:
    own = dict(enumerate(said, 1))
    return Conversation({o: messages.dumps(m) for o, m in own.items()}, own, "", "")


def test_the_name_of_the_tool_and_the_least_limit_are_ondols() -> None:
    @tool
    def read_more(x: int) -> None: ...

    with pytest.raises(InvalidInput, match="read_more is a tool of Ondol's own"):
        Agent("a", model="script:demo", tools=[read_more])
    with pytest.raises(InvalidInput, match="give a whole number from 1000"):
        Limits(tool_output=999)
