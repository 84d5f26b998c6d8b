"""Which vectors are near, and how rankings become one."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondol import vectors

RANKING = st.lists(st.integers(0, 30), unique=True, max_size=20)
RANKINGS = st.lists(RANKING, max_size=4)
VECTOR = st.lists(st.integers(-9, 9), min_size=3, max_size=3).filter(any)


@given(RANKINGS)
def test_what_any_ranking_has_is_there_once_and_nothing_else(rankings: list[list[int]]) -> None:
    fused = vectors.fused(rankings)
    assert len(fused) == len(set(fused))
    assert set(fused) == {text for ranking in rankings for text in ranking}


@given(st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=3))
def test_a_ranking_that_names_a_text_twice_is_as_if_it_named_it_once(rankings: list[list[int]]) -> None:
    assert vectors.fused(rankings) == vectors.fused([list(dict.fromkeys(ranking)) for ranking in rankings])


@given(RANKING, st.integers(1, 3))
def test_rankings_that_agree_are_not_changed(ranking: list[int], times: int) -> None:
    assert vectors.fused([ranking] * times) == ranking
    assert vectors.fused([ranking, []]) == ranking


@given(RANKINGS)
def test_what_stands_higher_in_each_ranking_stands_higher(rankings: list[list[int]]) -> None:
    fused = vectors.fused(rankings)
    places = {t: [r.index(t) if t in r else math.inf for r in rankings] for t in fused}
    for a in fused:
        for b in fused:
            if a != b and all(x <= y for x, y in zip(places[a], places[b], strict=True)):
                assert fused.index(a) < fused.index(b)


@given(RANKINGS, st.integers(0, 30))
def test_one_more_ranking_that_puts_a_text_first_never_lowers_it(rankings: list[list[int]], text: int) -> None:
    before, after = vectors.fused(rankings), vectors.fused([*rankings, [text]])
    if text in before:
        assert after.index(text) <= before.index(text)
    assert [t for t in after if t != text] == [t for t in before if t != text]


@given(RANKING, RANKING)
def test_the_order_of_the_rankings_decides_between_equals_alone(a: list[int], b: list[int]) -> None:
    one, other = vectors.fused([a, b]), vectors.fused([b, a])

    def score(text: int) -> float:
        return sum(1 / (60 + r.index(text) + 1) for r in (a, b) if text in r)

    assert [score(t) for t in one] == pytest.approx([score(t) for t in other])


def test_the_first_of_words_comes_before_the_first_of_vectors() -> None:
    assert vectors.fused([[1, 2], [3, 4]]) == [1, 3, 2, 4]
    assert vectors.fused([[1, 2], [3, 2]]) == [2, 1, 3]


@given(VECTOR, st.floats(0.001, 1000))
def test_a_stored_vector_has_length_one_whatever_it_was(vector: list[int], scale: float) -> None:
    stored = numpy.frombuffer(vectors.packed([n * scale for n in vector]), "<f4")
    assert float(numpy.linalg.norm(stored)) == pytest.approx(1, abs=1e-6)
    assert stored == pytest.approx(numpy.array(vector) / math.hypot(*vector), abs=1e-6)


@pytest.mark.parametrize("vector", [[], [0.0, 0.0], [1.0, math.nan], [math.inf, 1.0], [[1.0], [2.0]], ["a"], 3.0, None])
def test_what_is_no_vector_is_refused(vector: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        vectors.packed(vector)  # type: ignore[arg-type]


@given(VECTOR, st.lists(VECTOR, max_size=12), st.integers(1, 5))
def test_the_nearest_are_those_with_the_smallest_angle(query: list[int], texts: list[list[int]], limit: int) -> None:
    def cosine(text: list[int]) -> float:
        return sum(a * b for a, b in zip(query, text, strict=True)) / math.hypot(*query) / math.hypot(*text)

    found = vectors.nearest(vectors.packed(query), [(n, vectors.packed(t)) for n, t in enumerate(texts)], limit)
    cosines = sorted((c for c in map(cosine, texts) if c > 1e-6), reverse=True)[:limit]
    assert [cosine(texts[n]) for n in found if cosine(texts[n]) > 1e-6] == pytest.approx(cosines, abs=1e-5)


def test_of_two_that_are_as_near_the_newer_comes_first_and_another_length_is_no_hit() -> None:
    query = vectors.packed([1, 0])
    stored = [(1, query), (2, query), (3, vectors.packed([1, 0, 0])), (4, vectors.packed([-1, 0])), (5, b"")]
    assert vectors.nearest(query, stored) == [2, 1]
