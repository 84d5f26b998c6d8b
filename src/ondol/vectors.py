"""Which texts are near to a query, and in which order come the hits of several methods?

Every vector of a memory is compared (brute force, by numpy, which the extra ``vectors`` brings). Ranks are merged, and
not scores: those of two methods have nothing in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

Method: TypeAlias = Literal["words", "vectors", "both"]

NEAREST = 10  # texts that vectors add to a search at most
SEEN = 20_000  # the newest texts of a memory that have vectors, and are compared
_DAMPING = 60  # of reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009): the first is no outlier


class Near(NamedTuple):
    """What a query means: its vector as it is stored, and the model that made it."""

    model: str
    vector: bytes


def packed(vector: Sequence[float]) -> bytes:
    """A vector as it is stored: of length one, in 32-bit numbers, the lowest byte first.

    Raises ValueError for what is no vector, or points nowhere.
    """
    import numpy

    given = numpy.asarray(vector, dtype="<f8")
    length = float(numpy.linalg.norm(given))
    if given.ndim != 1 or not 0 < length < float("inf"):  # also where one of the numbers is none
        raise ValueError("a vector must be a row of finite numbers, not all of them zero")
    return (given / length).astype("<f4").tobytes()


def nearest(query: bytes, stored: Sequence[tuple[int, bytes]], limit: int = NEAREST) -> list[int]:
    """The texts whose vectors point most nearly where the query's does; of equal ones the newest.

    What points away, or has another length, is none.
    """
    import numpy

    alike = [(doc, bytes(vector)) for doc, vector in stored if len(vector) == len(query)]
    if not alike:
        return []
    rows = numpy.frombuffer(b"".join(vector for _, vector in alike), "<f4").reshape(len(alike), -1)
    near = rows @ numpy.frombuffer(query, "<f4")
    docs = numpy.array([doc for doc, _ in alike])
    order = numpy.lexsort((-docs, -near))[:limit]
    return [int(docs[n]) for n in order if near[n] > 0]


def fused(rankings: Sequence[Sequence[int]]) -> list[int]:
    """Several rankings as one, by reciprocal rank: what stands high in one, or in several, stands high in it.

    Each text is in it once. Of equal ones the first is the one that an earlier ranking has, or has higher.
    """
    scores: dict[int, Fraction] = {}
    for ranking in rankings:
        for rank, text in enumerate(dict.fromkeys(ranking), 1):
            scores[text] = scores.get(text, Fraction(0)) + Fraction(1, _DAMPING + rank)
    return sorted(scores, key=lambda text: -scores[text])  # stable: equal ones stay as the rankings name them
