"""Which texts fit a query best?

BM25 over the terms of ``terms``, in whole numbers, so that both stores give the same order. How long a text usually is
does not depend on what else is stored: what a term counts in a text is written down with it once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ondol import terms
from ondol.terms import Asked

_K1, _B = 1.2, 0.6  # as usual for BM25, with less weight on length: facts are short
_USUAL = 60  # terms of a text
_WHOLE = 3, 2  # what a text that holds the query as it stands gains: half as much again
_LEAST = 6  # a hit has at least this part of the best one's score

COUNTED_TO = 20_000  # of texts that hold a term: beyond that it is simply frequent
TELLING = 2_000  # terms that no more texts hold are read whole
READ = 20_000  # rows of those, in all
WINDOW = 50_000  # of a frequent term, the newest texts in which it is looked for together with others
TOGETHER = 3  # frequent terms that are looked for together
LOOKED_AT = 200  # texts that are read to be ranked


class Held(NamedTuple):
    """A term of a query, and how many of the texts hold it, counted up to ``COUNTED_TO``."""

    term: Asked
    texts: int


class Hit(NamedTuple):
    """A text that fits: its score, and the terms of the query that it holds, the rarest first."""

    text: int
    score: int
    terms: tuple[str, ...]


def weight(n: int, length: int) -> int:
    """What a term that stands ``n`` times in a text of ``length`` terms counts there; something, however long it is."""
    return max(1, round(100 * n * (_K1 + 1) / (n + _K1 * (1 - _B + _B * length / _USUAL))))


def weights(found: Counter[str]) -> dict[str, int]:
    """What each term of a text counts in it."""
    length = found.total()
    return {term: weight(n, length) for term, n in found.items()}


def rarity(held: int, texts: int) -> int:
    """What a term counts that ``held`` of all the texts hold."""
    held = min(held, texts)
    return max(1, round(1000 * math.log(1 + (texts - held + 0.5) / (held + 0.5))))


def rarities(counts: Iterable[Held], texts: int) -> dict[Asked, int]:
    """Of the terms that some text holds."""
    return {h.term: rarity(h.texts, texts) for h in counts if h.texts}


def read_whole(counts: Iterable[Held]) -> list[Asked]:
    """The terms whose texts are all looked at: the rarest, as long as they are few."""
    chosen, room = [], READ
    for held in sorted(counts, key=lambda h: h.texts):
        if 0 < held.texts <= min(TELLING, room):
            chosen.append(held.term)
            room -= held.texts
    return chosen


def looked_for_together(counts: Sequence[Held]) -> list[list[Asked]]:
    """Of the terms that too many texts hold: which to look for in one text, the most first."""
    whole = set(read_whole(counts))
    left = sorted((h for h in counts if h.texts and h.term not in whole and not h.term.begins), key=lambda h: h.texts)
    chosen = [h.term for h in left[:TOGETHER]]
    return [chosen[:n] for n in range(len(chosen), 0, -1)]


def best(scores: Mapping[int, int], limit: int = LOOKED_AT) -> list[int]:
    """The texts with the highest scores; of equal ones the newest."""
    return sorted(scores, key=lambda text: (-scores[text], -text))[:limit]


def ranked(query: str, rare: Mapping[Asked, int], texts: Mapping[int, str], limit: int) -> list[Hit]:
    """The texts that fit the query best, the best first; what fits far less than the best is left out.

    ``rare`` is what each term of the query counts, ``texts`` are the candidates.
    """
    whole = terms.normal(query).strip()
    hits = [hit for n, text in texts.items() if (hit := _hit(n, text, whole, rare)).score]
    hits.sort(key=lambda h: (-h.score, -h.text))
    least = hits[0].score // _LEAST if hits else 0
    return [h for h in hits[:limit] if h.score >= least]


def _hit(n: int, text: str, whole: str, rare: Mapping[Asked, int]) -> Hit:
    found = terms.counted(text)
    length = found.total()
    counts = {term: count for term in rare if (count := term.is_in(found))}
    score = sum(rare[term] * weight(count, length) for term, count in counts.items())
    if whole and whole in terms.normal(text):
        score = score * _WHOLE[0] // _WHOLE[1]
    return Hit(n, score, tuple(t.text for t in sorted(counts, key=lambda t: (-rare[t], t.text))))


def excerpt(text: str, query: str, room: int) -> str:
    """The part of a text, of at most ``room`` characters, that holds most of what a query asks for."""
    if len(text) <= room:
        return text
    start = max(
        0, min(_fullest(terms.places(text, terms.asked(query)), room * 3 // 4) - room // 8, len(text) - room + 2)
    )
    end = start + room - 2
    return ("…" if start else "") + text[start:end].strip() + ("…" if end < len(text) else "")


def _fullest(places: Sequence[tuple[int, Asked]], width: int) -> int:
    """The first place from which on most different terms stand within so many characters."""
    fullest, most, until = 0, 0, 0
    within: Counter[Asked] = Counter()
    for start, term in places:
        while until < len(places) and places[until][0] < start + width:
            within[places[until][1]] += 1
            until += 1
        if len(within) > most:
            fullest, most = start, len(within)
        within[term] -= 1
        if not within[term]:
            del within[term]
    return fullest
