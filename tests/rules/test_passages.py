"""The parts of a document that can be found by themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondol import passages
from ondol.passages import LENGTH, Passage


def test_short_paragraphs_stand_together_and_name_their_first_line() -> None:
    assert passages.of_text("\n# Leave\n\nFour weeks.\n\nAsk lee.") == [Passage(2, "# Leave\nFour weeks.\nAsk lee.")]


def test_a_long_text_is_several_passages_each_with_its_line() -> None:
    text = "\n\n".join("word " * 150 for _ in range(5))
    found = passages.of_text(text)
    assert [p.place for p in found] == [1, 3, 5, 7, 9]


def test_each_passage_of_many_lines_without_a_gap_names_its_own_line() -> None:
    text = "".join(f"line {n} says nothing new\n" for n in range(1, 400))
    found = passages.of_text(text)
    assert len(found) > 5
    assert all(p.text.startswith(f"line {p.place} ") for p in found)
    rows = passages.of_html("<pre>" + text + "</pre>")
    assert len(rows) > 5
    assert all(p.text.startswith(f"line {p.place} ") for p in rows)


def test_lines_are_counted_as_an_editor_counts_them() -> None:
    text = "one\x0ctwo\u2028three\n\x0c\r\n" + "word " * 240 + "\r\n\r\nfive"
    assert [p.place for p in passages.of_text(text)] == [1, 3, 5]


def test_words_that_stand_apart_on_a_page_are_no_one_word() -> None:
    page = "<details><summary>Leave</summary>Four weeks</details><select><option>one<option>two</select>"
    assert passages.of_html(page)[0].text.split() == ["Leave", "Four", "weeks", "one", "two"]


def test_of_a_page_only_what_its_reader_sees_is_found() -> None:
    page = "<html><head><title>Leave</title><style>p {}</style></head>\n<body><p>Four&nbsp;weeks<br>a year</p>\n"
    page += "<script>alert('no')</script><ul><li>ask <b>lee</b></ul>"
    assert passages.of_html(page) == [Passage(1, "Leave\nFour weeks\na year\nask lee")]


@pytest.mark.parametrize(
    "page",
    [
        "<p>zebra<p>okapi",
        "<![foo bar]><p>zebra<p>okapi",
        "<![CDATA[ x ]]><p>zebra<p>okapi",
        "<p>zebra<![if !IE]><p>okapi <![endif",
        "<!DOCTYPE html PUBLIC '-//[' ><p>zebra<p>okapi <b",
    ],
)
def test_a_page_that_is_not_well_formed_is_read_as_far_as_it_can_be(page: str) -> None:
    assert {"zebra", "okapi"} <= set(" ".join(p.text for p in passages.of_html(page)).split())


def test_a_passage_reaches_over_no_two_pages() -> None:
    assert passages.of_pages(["one", "", "three"]) == [Passage(1, "one"), Passage(3, "three")]


@given(st.text(alphabet=st.sampled_from("ab .\n가。"), max_size=6000))
def test_every_word_is_in_a_passage_and_none_is_too_long(text: str) -> None:
    found = passages.of_text(text)
    assert "".join("".join(p.text.split()) for p in found) == "".join(text.split())
    assert all(len(p.text) <= LENGTH + 2 for p in found)
    assert [p.place for p in found] == sorted(p.place for p in found)
