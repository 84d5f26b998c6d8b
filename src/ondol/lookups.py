"""How are the texts found that fit a query?

Functions of the same form as those of ``queries``. The rarest terms name the candidates, frequent ones only where
several stand together; the candidates are read and ranked. So the time that a search takes has a bound, however many
texts there are: see ``ranking``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ondol import messages, ranking, terms, vectors
from ondol.errors import NotFound
from ondol.ranking import Held, Hit
from ondol.records import FactRow
from ondol.terms import Asked
from ondol.transactions import Row, Scope, Space, Statement, Tx, checked_body, stored_text, text_of, with_conditions
from ondol.vectors import Method, Near

T = TypeVar("T")

_HIGHEST = "\U0010ffff"
_DIGITS = 19  # of the largest number that a database holds


class Candidates(NamedTuple):
    """Texts of a space that may fit, and what each term of the query counts there. ``space`` is its number."""

    space: int
    texts: Sequence[int]
    rare: Mapping[Asked, int]


class FoundFact(NamedTuple):
    """A fact, and how it fits the query. What vectors alone found has no score and no terms."""

    fact: FactRow
    text: str
    hit: Hit
    by: Method = "words"


def find_facts(scope: Scope, query: str, now: int, limit: int, near: Near | None = None) -> Tx[list[FoundFact]]:
    """The facts of a scope that fit a query best, the best first; ``near``: also by what it means."""
    if near is None:
        return (yield from _by_words(scope, query, now, limit))
    words = {f.fact.doc: f for f in (yield from _by_words(scope, query, now, max(limit, vectors.NEAREST)))}
    close = {f.fact.doc: f for f in (yield from _by_vectors(scope, near, now))}
    return [found._replace(by=by) for found, by in _fused(words, close, limit)]


def _fused(words: Mapping[int, T], close: Mapping[int, T], limit: int) -> list[tuple[T, Method]]:
    """What was found by words and by vectors, by its number: the best first, each with what found it."""
    both = words.keys() & close.keys()
    order = vectors.fused([list(words), list(close)])[:limit]
    return [
        (words.get(doc) or close[doc], "both" if doc in both else "words" if doc in words else "vectors")
        for doc in order
    ]


def _by_words(scope: Scope, query: str, now: int, limit: int) -> Tx[list[FoundFact]]:
    found = yield from candidates(scope.space, query)
    if found is None:
        return []
    at = scope.key | {"space": found.space, "now": now}
    rows = yield [("fact.at", at | {"doc": doc}) for doc in found.texts]
    facts = {doc: FactRow(*row[0]) for doc, row in zip(found.texts, rows, strict=True) if row}
    texts = {doc: fact.checked_text() for doc, fact in facts.items()}
    hits = ranking.ranked(query, found.rare, texts, limit)
    return [FoundFact(facts[h.text], texts[h.text], h) for h in hits]


def _by_vectors(scope: Scope, near: Near, now: int) -> Tx[list[FoundFact]]:
    (spaces,) = yield [("space.get", scope.space.key)]
    if not spaces:
        return []
    at = scope.key | {"space": spaces[0][0], "now": now}
    (stored,) = yield [("vector.list", at | {"model": near.model, "window": vectors.SEEN})]
    docs = vectors.nearest(near.vector, [(doc, vector) for doc, vector in stored])
    rows = yield [("fact.at", at | {"doc": doc}) for doc in docs]
    facts = [FactRow(*row[0]) for row in rows if row]
    return [FoundFact(fact, fact.checked_text(), Hit(fact.doc, 0, ())) for fact in facts]


def without_vector(scope: Scope, model: str, now: int, limit: int, before: int | None = None) -> Tx[list[FactRow]]:
    """Facts of a scope whose meaning the model has not said yet, the newest first; ``before`` is the last one seen."""
    (spaces,) = yield [("space.get", scope.space.key)]
    if not spaces:
        return []
    at = scope.key | {"space": spaces[0][0], "now": now, "model": model, "window": vectors.SEEN, "limit": limit}
    (rows,) = yield [with_conditions("vector.missing", at, {"before": before})]
    return [FactRow(*row) for row in rows]


def list_facts(scope: Scope, now: int, limit: int, before: str | None = None) -> Tx[list[FactRow]]:
    """The facts of a scope, the newest first; ``before`` is the last one seen, or its place. Raises NotFound."""
    (spaces,) = yield [("space.get", scope.space.key)]
    if not spaces:
        return []
    place = None if before is None else (yield from _place(scope, before))
    always = scope.key | {"space": spaces[0][0], "now": now, "limit": limit}
    (rows,) = yield [with_conditions("fact.list", always, {"before": place})]
    return [FactRow(*row) for row in rows]


def _place(scope: Scope, before: str) -> Tx[int]:
    """Where a fact stands, also one whose time is over. A number is a place: that stays when the fact is erased."""
    if before.isdecimal() and len(before) < _DIGITS:
        return int(before)
    (rows,) = yield [("fact.get", scope.key | {"id": before, "now": -1})]
    if not rows:
        raise NotFound(f"this memory has no fact {before!r} to go on from: list it from the beginning")
    return FactRow(*rows[0]).doc


def get_fact(scope: Scope, fact: str, now: int) -> Tx[FactRow | None]:
    (rows,) = yield [("fact.get", scope.key | {"id": fact, "now": now})]
    return FactRow(*rows[0]) if rows else None


def list_memories(tenant: str, limit: int, user_id: str | None, after: tuple[str, str] | None = None) -> Tx[list[Row]]:
    """Which memories, maybe of one user, hold anything: agent, user, number of facts. Nothing of what they hold.
    ``after``: agent and user of the last one seen."""
    agent, user = after or (None, None)
    always = {"tenant": tenant, "kind": "memory", "limit": limit}
    wanted = {"user_id": user_id, "after": agent, "after_user": user}
    (rows,) = yield [with_conditions("space.list", always, wanted)]
    return rows


def candidates(space: Space, query: str) -> Tx[Candidates | None]:
    """None where nothing can fit: the space is empty, or no text holds any of the terms."""
    asked = terms.asked(query)
    (spaces,) = yield [("space.get", space.key)]
    if not asked or not spaces:
        return None
    number, texts, _ = spaces[0]
    key = {"tenant": space.tenant, "space": number}
    found = yield [_of_term("posting.count", key, term, ranking.COUNTED_TO) for term in asked]
    counts = [Held(term, rows[0][0]) for term, rows in zip(asked, found, strict=True)]
    rare = ranking.rarities(counts, texts)
    chosen = yield from _chosen(key, counts, rare)
    return Candidates(number, chosen, rare) if chosen else None


def _chosen(key: Mapping[str, Any], counts: Sequence[Held], rare: Mapping[Asked, int]) -> Tx[list[int]]:
    """The texts that are worth reading: those with rare terms, then those with several frequent ones at once."""
    whole = ranking.read_whole(counts)
    scores: dict[int, int] = {}
    lists = yield [_of_term("posting.of_term", key, term, ranking.TELLING) for term in whole]
    for term, rows in zip(whole, lists, strict=True):
        for doc, weight in rows:
            scores[doc] = scores.get(doc, 0) + rare[term] * weight
    chosen = dict.fromkeys(ranking.best(scores, ranking.LOOKED_AT // 2))
    for together in ranking.looked_for_together(counts):
        if len(chosen) >= ranking.LOOKED_AT:
            break
        (rows,) = yield [_together(key, together)]
        chosen |= dict.fromkeys(doc for (doc,) in rows)
    if not chosen and (wide := [h for h in counts if h.texts and h.term.begins]):  # one frequent syllable
        (rows,) = yield [_of_term("posting.of_term", key, wide[0].term, ranking.LOOKED_AT)]
        chosen = dict.fromkeys(doc for doc, _ in rows)
    return list(chosen | dict.fromkeys(ranking.best(scores)))[: ranking.LOOKED_AT]


def _of_term(name: str, key: Mapping[str, Any], term: Asked, most: int) -> Statement:
    wanted = {"low": term.text, "high": term.text + _HIGHEST} if term.begins else {"term": term.text}
    return with_conditions(name, {**key, "most": most}, wanted)


def _together(key: Mapping[str, Any], together: Sequence[Asked]) -> Statement:
    first, *others = (term.text for term in together)
    always = {**key, "term": first, "window": ranking.WINDOW, "most": ranking.LOOKED_AT // 2}
    return with_conditions("posting.together", always, dict(zip(("second", "third"), others, strict=False)))


class FoundText(NamedTuple):
    """A text of a history or of a collection: whose it is, its place there, and how it fits the query.

    ``source`` is the run of a message, or the path of a document. ``by`` says what found it.
    """

    source: str
    place: int
    text: str
    hit: Hit
    by: Method = "words"


def find_messages(space: Space, query: str, limit: int) -> Tx[list[FoundText]]:
    """The messages of a history that fit a query best, the best first. Notes of the runtime are none: they quote runs
    that did not complete, also those of other users."""
    found = yield from candidates(space, query)
    if found is None:
        return []
    at = {"tenant": space.tenant, "space": found.space}
    rows = yield [("text.at", at | {"doc": doc}) for doc in found.texts]
    places = {doc: (row[0][0], row[0][1]) for doc, row in zip(found.texts, rows, strict=True) if row}
    stored = yield [
        ("message.one", {"tenant": space.tenant, "run": run, "ordinal": ordinal}) for run, ordinal in places.values()
    ]
    texts = {
        doc: text_of(message)
        for (doc, (run, _)), body in zip(places.items(), stored, strict=True)
        if body and (message := messages.loads(checked_body(run, *body[0]))).origin is None
    }
    return [FoundText(*places[h.text], texts[h.text], h) for h in ranking.ranked(query, found.rare, texts, limit)]


def find_passages(space: Space, query: str, limit: int, near: Near | None = None) -> Tx[list[FoundText]]:
    """The passages of a collection that fit a query best, the best first; ``near``: also by what it means."""
    if near is None:
        return (yield from _passages_by_words(space, query, limit))
    by_words = yield from _passages_by_words(space, query, max(limit, vectors.NEAREST))
    words = {f.hit.text: f for f in by_words}
    close = {f.hit.text: f for f in (yield from _passages_by_vectors(space, near))}
    return [found._replace(by=by) for found, by in _fused(words, close, limit)]


def _passages_by_words(space: Space, query: str, limit: int) -> Tx[list[FoundText]]:
    found = yield from candidates(space, query)
    if found is None:
        return []
    known = yield from _passages(space, found.space, found.texts)
    texts = {doc: text for doc, (_, _, text) in known.items()}
    hits = ranking.ranked(query, found.rare, texts, limit)
    return [FoundText(*known[h.text], h) for h in hits]


def _passages_by_vectors(space: Space, near: Near) -> Tx[list[FoundText]]:
    (spaces,) = yield [("space.get", space.key)]
    if not spaces:
        return []
    at = {"tenant": space.tenant, "space": spaces[0][0], "model": near.model, "window": vectors.SEEN}
    (stored,) = yield [("text.vectors", at)]
    docs = vectors.nearest(near.vector, [(doc, vector) for doc, vector in stored])
    known = yield from _passages(space, spaces[0][0], docs)
    return [FoundText(*known[doc], Hit(doc, 0, ())) for doc in docs if doc in known]


def _passages(space: Space, number: int, docs: Sequence[int]) -> Tx[dict[int, tuple[str, int, str]]]:
    """Path, place and text of those that belong to a document as it is now."""
    at = {"tenant": space.tenant, "space": number}
    rows = yield [("text.at", at | {"doc": doc}) for doc in docs]
    stored = {doc: row[0] for doc, row in zip(docs, rows, strict=True) if row}
    sources = dict.fromkeys(source for source, _, _ in stored.values())
    named = yield [("document.of_source", at | {"source": source}) for source in sources]
    paths = {source: rows[0][0] for source, rows in zip(sources, named, strict=True) if rows}
    return {
        doc: (paths[source], place, stored_text(body))
        for doc, (source, place, body) in stored.items()
        if source in paths
    }


def passages_without_vector(space: Space, model: str, limit: int, before: int | None) -> Tx[list[tuple[int, str]]]:
    """Passages of a collection whose meaning the model has not said yet; ``before`` is the last one seen."""
    (spaces,) = yield [("space.get", space.key)]
    if not spaces:
        return []
    at = {"tenant": space.tenant, "space": spaces[0][0], "model": model, "window": vectors.SEEN, "limit": limit}
    (rows,) = yield [with_conditions("text.without_vector", at, {"before": before})]
    return [(doc, stored_text(body)) for doc, body in rows]


class KnownDocument(NamedTuple):
    path: str
    source: str
    digest: str


def list_documents(space: Space) -> Tx[list[KnownDocument]]:
    (spaces,) = yield [("space.get", space.key)]
    if not spaces:
        return []
    (rows,) = yield [("document.list", {"tenant": space.tenant, "space": spaces[0][0]})]
    return [KnownDocument(*row) for row in rows]
