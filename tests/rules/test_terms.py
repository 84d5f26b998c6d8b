"""By which terms a text is found: in every script, however it is typed."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondol import terms


def finds(query: str, text: str) -> bool:
    """Does the text hold a term that the query asks for?"""
    found = terms.counted(text)
    return any(term.is_in(found) for term in terms.asked(query))


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("점검", "다음 점검은 금요일 오후로 정했다"),
        ("금요일", "다음 점검은 금요일 오후로 정했다"),
        ("밥", "오늘은 김밥을 먹었다"),
        ("밥", "밥 먹자"),
        ("김", "김 부장에게 전화"),
        ("점", "다음 점검은 금요일"),
        ("发票", "发票存放在SharePoint上"),
        ("票", "发票存放在SharePoint上"),
        ("SharePoint", "发票存放在SharePoint上"),
        ("sharepoint", "发票存放在SharePoint上"),
        ("会議", "会議は木曜日に変更された"),
        ("木曜日", "会議は木曜日に変更された"),
        ("カード", "ｶｰﾄﾞを再発行"),
        ("договор", "Договор подписан вчера"),
        ("creche", "La crèche ouvre à 9h"),
        ("Silbentrennung", "die Silben\u00adtrennung"),
        ("silben", "die Silben\u00adtrennung"),
        ("devops", "dev\u2011ops"),
        ("dev-ops", "dev\u2010ops"),
        ("lodz", "Dworzec Łódź Fabryczna"),
        ("kobenhavn", "Toget til København"),
        ("Da Nang", "Bay ra Đà Nẵng"),
        ("soeur", "chez ma sœur"),
        ("crèche", "La crèche ouvre à 9h"),
        ("CRÈCHE", "la crèche"),
        ("cafe", "cafe\u0301"),
        ("strasse", "Straße"),
        ("C++", "we write C++ here"),
        ("C#", "the C# team"),
        ("C", "we write C++ here"),
        ("dev-ops", "the DevOps team"),
        ("devops", "the dev-ops team"),
        ("ops", "the dev-ops team"),
        ("node.js", "NodeJS 22"),
        ("3.11", "Python 3.11 or newer"),
        ("kim@example.com", "write to kim@example.com"),
        ("API", "ＡＰＩ를 부른다"),
        ("K팝", "K팝 공연"),
        ("हिन्दी", "हिन्दी भाषा"),
        ("🙂", "a 🙂 b"),
        ("كتاب", "هذا كِتَابٌ جديد"),
        ("كِتَابٌ", "كتاب جديد"),
        ("هذا", "هٰذا كتاب"),
        ("احمد", "كتب أحمد الرسالة"),
        ("مدرسه", "إلى مدرسة قريبة"),
        ("محمد", "اسمه محمـــد"),
        ("يك", "یک کتاب"),
        ("ספר", "סֵפֶר חדש"),
        ("סֵפֶר", "ספר חדש"),
    ],
)
def test_a_query_finds_the_text(query: str, text: str) -> None:
    assert finds(query, text)
    assert finds(unicodedata.normalize("NFD", query), text)
    assert finds(query, unicodedata.normalize("NFD", text))


@pytest.mark.parametrize(
    ("query", "text"),
    [("C++", "vitamin C"), ("C#", "C++"), ("점검", "점심 검사"), ("밥", "빵"), ("3.11", "311")],
)
def test_a_query_does_not_find_another_text(query: str, text: str) -> None:
    assert not finds(query, text)


def test_an_accent_that_is_asked_for_counts_and_one_that_is_not_is_no_hindrance() -> None:
    with_accent, without = terms.counted("été"), terms.counted("ete")
    (bare,) = terms.asked("ete")
    assert bare.is_in(with_accent)
    assert bare.is_in(without)
    assert sum(bool(t.is_in(with_accent)) for t in terms.asked("été")) == 2
    assert sum(bool(t.is_in(without)) for t in terms.asked("été")) == 1


def test_a_particle_that_is_glued_to_a_noun_hides_it_from_nobody() -> None:
    for particle in ("", "은", "을", "에서", "까지", "이라는"):
        assert finds("회의실", f"회의실{particle} 예약했다")


def test_a_long_query_asks_for_a_bounded_number_of_terms_from_its_beginning_and_its_end() -> None:
    asked = terms.asked(" ".join(f"w{n}" for n in range(10_000)))
    assert len(asked) == terms.MOST_ASKED
    assert asked[0].text == "w0"
    assert asked[-1].text == "w9999"


def test_of_a_query_of_megabytes_only_its_ends_are_looked_at() -> None:
    """A large input is one, and the event loop stands still meanwhile."""
    asked = terms.asked(f"first{' .' * 20_000} middle{' .' * 20_000} last")
    assert [term.text for term in asked] == ["first", "last"]


def test_a_word_of_which_nothing_is_left_is_one_as_it_is() -> None:
    assert terms.counted("ـ") == {"ـ": 1}


def test_a_term_has_a_bounded_length() -> None:
    assert max(len(t) for t in terms.counted("x" * 5000)) == terms.LONGEST
    assert finds("x" * 5000, "x" * 5000)


@given(st.text())
def test_any_text_has_terms_that_a_database_can_hold_and_the_same_in_each_of_its_forms(text: str) -> None:
    found = terms.counted(text)
    assert not any("\0" in t or any(0xD800 <= ord(c) <= 0xDFFF for c in t) or not t for t in found)
    assert found == terms.counted(unicodedata.normalize("NFD", unicodedata.normalize("NFC", text)))


@given(st.text(alphabet=st.sampled_from("가나다라 점검abcé漢字かなC+#-_.1"), max_size=40))
def test_a_text_is_found_by_itself(text: str) -> None:
    assert not terms.asked(text) or finds(text, text)


def test_whatever_rules_a_text_was_indexed_by_its_terms_are_known_when_it_goes():
    text = "dev-ops\u2011team sal\u00adary هٰذا"
    assert terms.ever(text) >= {*terms.counted(text), "devops", "team", "sal", "ary", "ذا"}
    assert terms.ever("tea and 온돌") == {*terms.counted("tea and 온돌")}
