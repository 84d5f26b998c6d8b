"""Which texts fit a query best."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondol import ranking, terms
from ondol.ranking import Held


def rank(query: str, *texts: str, limit: int = 10) -> list[str]:
    """The texts that fit, the best first."""
    stored = dict(enumerate(texts))
    hits = ranking.ranked(query, rare(query, stored), stored, limit)
    return [stored[h.text] for h in hits]


def rare(query: str, texts: Mapping[int, str]) -> dict[terms.Asked, int]:
    counted = [terms.counted(t) for t in texts.values()]
    held = [Held(term, sum(bool(term.is_in(c)) for c in counted)) for term in terms.asked(query)]
    return ranking.rarities(held, len(texts))


def test_a_rare_term_counts_more_than_a_frequent_one() -> None:
    filler = [f"the meeting number {n}" for n in range(50)]
    assert rank("the crèche", *filler, "a crèche")[0] == "a crèche"


def test_what_holds_more_of_the_query_is_better() -> None:
    assert rank("점검 금요일", "점검은 월요일", "금요일 점심", "점검은 금요일")[0] == "점검은 금요일"


def test_a_short_text_is_better_than_a_long_one_that_says_the_same() -> None:
    assert rank("tea", "tea " + "and more words " * 40, "likes tea") == ["likes tea", "tea " + "and more words " * 40]


def test_the_words_as_they_stand_are_better_than_the_same_pairs_elsewhere() -> None:
    assert rank("금요일", "회의는 금요일", "금요 의 일요일")[0] == "회의는 금요일"  # with as many pairs, and older


def test_of_two_that_fit_the_same_the_newer_comes_first() -> None:
    hits = ranking.ranked("tea", rare("tea", {1: "tea", 2: "tea"}), {1: "tea", 2: "tea"}, 10)
    assert [h.text for h in hits] == [2, 1]


def test_what_hardly_fits_is_left_out() -> None:
    texts = [f"회의 안건 {n}" for n in range(30)]
    assert rank("회의록 비밀번호 초기화 방법", *texts, "비밀번호 초기화 방법은 3층에서") == [
        "비밀번호 초기화 방법은 3층에서"
    ]


def test_a_hit_says_by_which_terms() -> None:
    (hit,) = ranking.ranked("점검 언제", rare("점검 언제", {1: "점검은 금요일"}), {1: "점검은 금요일"}, 10)
    assert hit.terms == ("점검",)


@given(st.lists(st.integers(0, 100_000), max_size=60))
def test_what_is_read_has_a_bound(counts: list[int]) -> None:
    held = [Held(terms.Asked(f"w{n}"), min(texts, ranking.COUNTED_TO)) for n, texts in enumerate(counts)]
    by_term = {h.term: h.texts for h in held}
    whole = ranking.read_whole(held)
    assert sum(by_term[t] for t in whole) <= ranking.READ
    assert all(0 < by_term[t] <= ranking.TELLING for t in whole)
    for together in ranking.looked_for_together(held):
        assert not set(together) & set(whole)
        assert len(together) <= ranking.TOGETHER


@given(st.text(min_size=1, max_size=300), st.integers(20, 100))
def test_an_excerpt_fits(text: str, room: int) -> None:
    assert len(ranking.excerpt(text, "a", room)) <= room


@pytest.mark.parametrize(
    ("query", "around", "found"),
    [
        ("금요일 점검", "하나 둘 셋 ", "점검은 금요일 오후"),
        ("판다", unicodedata.normalize("NFD", "하나 둘 셋 "), unicodedata.normalize("NFD", "판다 한 마리")),
        ("다", "하나 둘 셋 ", "판다 한 마리"),
        ("creche", "word ", "the crèche closes"),
        ("devops", "word ", "our dev-ops team"),
        ("cat", "concatenate ", "the cat sat"),
        ("strasse", "ßß ", "in der Straße"),
        ("ＡＢＣ", "word ", "the abc of it"),
        ("C++", "C ", "in C++ it is"),
        ("🏠", "word ", "my 🏠 is here"),
    ],
)
def test_an_excerpt_holds_what_was_found_however_it_is_written(query: str, around: str, found: str) -> None:
    assert found in ranking.excerpt(around * 300 + found + " " + around * 300, query, 100)
