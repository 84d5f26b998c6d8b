"""What is written when something is remembered, changed or forgotten?

A scope (tenant, agent, user) is part of every statement: there is no way to name a fact without it. What a run
remembers is written by its commit (T8); what people do is written at once, with who did it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ondol import checksums, ranking, terms, values
from ondol.errors import InvalidInput, NotFound
from ondol.records import FactRow
from ondol.showing import counted
from ondol.transactions.pieces import act_row
from ondol.transactions.statements import Row, Statement, Tx

ERASED_AT_ONCE = 200  # facts in one transaction: others want to write too


class Scope(NamedTuple):
    """Whose memory it is. ``agent`` is empty where all agents of the tenant share it."""

    tenant: str
    agent: str
    user_id: str

    @property
    def key(self) -> dict[str, str]:
        return {"tenant": self.tenant, "agent": self.agent, "user_id": self.user_id}

    @property
    def space(self) -> Space:
        return Space(self.tenant, "memory", self.agent, self.user_id, "")


class Space(NamedTuple):
    """What is searched together."""

    tenant: str
    kind: str
    agent: str
    user_id: str
    name: str

    @property
    def key(self) -> dict[str, str]:
        return self._asdict()


class NewFact(NamedTuple):
    """A fact to be remembered. ``untrusted``: it comes from a run that saw content from outside."""

    id: str
    text: str
    untrusted: bool = False


class Changes(NamedTuple):
    """What a run changes of its memory, in the order in which it said so: a NewFact, or the id of one to forget."""

    scope: Scope
    said: Sequence[NewFact | str]
    keep: int | None  # microseconds; None: for ever


def change_memory(changes: Changes, run: str, at: int) -> Tx[None]:
    """The part of T8 that is about memory. What is not there any more need not be forgotten."""
    until = None if changes.keep is None else at + changes.keep
    for one in changes.said:
        if isinstance(one, NewFact):
            yield from remember(changes.scope, one, at, run=run, expires_at=until)
        else:
            yield from _forget(changes.scope, one, at)


def remember(
    scope: Scope, new: NewFact, at: int, *, run: str | None, author: str = "", expires_at: int | None
) -> Tx[FactRow]:
    """Keep a fact. The same one is kept once: then its time begins anew. One that is kept by now, and that a person
    put into other words since, stays as it is."""
    hashed = fact_hash(new.text)
    taken, same, known = yield [
        ("space.take", scope.space.key | {"docs": 1}),
        ("fact.same", scope.key | {"hash": hashed}),
        ("fact.get", scope.key | {"id": new.id, "now": -1}),
    ]
    space, doc = taken[0]
    if same and (kept := FactRow(*same[0])).space == space:
        renewed = {"at": at, "expires_at": expires_at, "untrusted": int(new.untrusted)}
        yield [
            ("fact.renew", {"tenant": scope.tenant, "space": space, "doc": kept.doc, **renewed}),
            ("space.shrink", scope.space.key | {"docs": 1}),
        ]
        return kept._replace(updated_at=at, expires_at=expires_at, untrusted=kept.untrusted * new.untrusted)
    if known:
        yield [("space.shrink", scope.space.key | {"docs": 1})]
        return FactRow(*known[0])
    body = values.dumps(values.encode(new.text))
    row = FactRow(
        space=space, doc=doc, id=new.id, **scope.key, body=body, sum=_sum(new.id, body), hash=hashed,
        untrusted=int(new.untrusted), run=run, author=author, created_at=at, updated_at=at, expires_at=expires_at,
    )  # fmt: skip
    yield [("fact.insert", row._asdict() | {"at": at}), *postings(scope.tenant, space, doc, new.text)]
    return row


def remember_by_hand(scope: Scope, new: NewFact, at: int, *, by: str, door: str, expires_at: int | None) -> Tx[FactRow]:
    yield [
        ("tenant.insert", {"tenant": scope.tenant}),
        act_row(scope.tenant, at, by, door, "memory.add", new.id),
    ]
    return (yield from remember(scope, new, at, run=None, author=by, expires_at=expires_at))


def edit_fact(scope: Scope, fact: str, text: str, at: int, *, by: str, door: str) -> Tx[FactRow]:
    """Another text for a fact, in a person's words. Raises NotFound, and InvalidInput where that is another fact."""
    hashed = fact_hash(text)
    _, found, same = yield [
        _held(scope),
        ("fact.get", scope.key | {"id": fact, "now": at}),
        ("fact.same", scope.key | {"hash": hashed}),
    ]
    row = _found(found, fact)
    if same and (other := FactRow(*same[0])).id != row.id:
        raise InvalidInput(f"fact {other.id} says the same already: remove one of the two (ondol memory rm)")
    before = row.checked_text()
    body = values.dumps(values.encode(text))
    at_row = {"tenant": scope.tenant, "space": row.space, "doc": row.doc}
    total = _sum(row.id, body)
    changed = {"body": body, "sum": total, "hash": hashed, "author": by, "at": at}
    yield [
        *unposted(scope.tenant, row.space, row.doc, before),
        ("vector.delete", at_row),
        ("fact.edit", at_row | changed),
        *postings(scope.tenant, row.space, row.doc, text),
        act_row(scope.tenant, at, by, door, "memory.edit", row.id),
    ]
    return row._replace(body=body, sum=total, hash=hashed, untrusted=0, author=by, updated_at=at)


def remove_fact(scope: Scope, fact: str, at: int, *, by: str, door: str) -> Tx[None]:
    """Raises NotFound."""
    _, found = yield [_held(scope), ("fact.get", scope.key | {"id": fact, "now": at})]
    yield [*_deleted(_found(found, fact)), act_row(scope.tenant, at, by, door, "memory.rm", fact)]


def erase_memory(scope: Scope, at: int, *, by: str, door: str) -> Tx[int]:
    """Erase some facts of a scope, and say how many: none are left when it says 0. Each call notes the act."""
    _, spaces = yield [_held(scope), ("space.get", scope.space.key)]
    if not spaces:
        return 0
    listing = scope.key | {"space": spaces[0][0], "now": -1, "limit": ERASED_AT_ONCE}
    (rows,) = yield [("fact.list", listing)]
    if not rows:
        return 0
    act = act_row(scope.tenant, at, by, door, "memory.erase", scope.user_id, counted(len(rows), "fact"))
    yield [*(s for row in rows for s in _deleted(FactRow(*row))), act]
    return len(rows)


def drop_expired_facts(tenant: str, now: int) -> Tx[int]:
    """Retention: remove facts of one memory whose time is over, and say how many: none are left when it says 0."""
    expired = "fact.expired", {"tenant": tenant, "now": now, "limit": ERASED_AT_ONCE}
    (rows,) = yield [expired]
    if not rows:
        return 0
    scope = _scope_of(FactRow(*rows[0]))
    _, rows = yield [_held(scope), expired]  # looked at again: another process may have removed them meanwhile
    gone = [row for row in map(FactRow._make, rows) if _scope_of(row) == scope]
    yield [s for row in gone for s in _deleted(row)]
    return len(rows)


def keep_vectors(scope: Scope, model: str, made: Sequence[tuple[FactRow, bytes]]) -> Tx[None]:
    """Keep what facts mean, by a model; of a fact that was changed or erased meanwhile nothing is kept."""
    yield [_held(scope)]
    yield [
        ("vector.put", scope.key | {"space": f.space, "doc": f.doc, "hash": f.hash, "model": model, "vector": vector})
        for f, vector in made
    ]


def _forget(scope: Scope, fact: str, at: int) -> Tx[None]:
    _, found = yield [_held(scope), ("fact.get", scope.key | {"id": fact, "now": at})]
    if found:
        yield _deleted(FactRow(*found[0]))


def _found(rows: list[Row], fact: str) -> FactRow:
    if not rows:
        raise NotFound(f"this memory has no fact {fact!r}: 'ondol memory ls' lists what it holds")
    return FactRow(*rows[0])


def _held(scope: Scope) -> Statement:
    """Nobody else changes this memory until the transaction ends, in a store where several write at once."""
    return held(scope.space)


def held(space: Space) -> Statement:
    """As above, of any space that may be there."""
    return "space.shrink", space.key | {"docs": 0}


def _scope_of(row: FactRow) -> Scope:
    return Scope(row.tenant, row.agent, row.user_id)


def _deleted(row: FactRow) -> list[Statement]:
    scope = _scope_of(row)
    return [
        *unposted(row.tenant, row.space, row.doc, row.checked_text()),
        ("vector.delete", {"tenant": row.tenant, "space": row.space, "doc": row.doc}),
        ("fact.delete", scope.key | {"space": row.space, "doc": row.doc}),
        ("space.shrink", scope.space.key | {"docs": 1}),
    ]


def postings(tenant: str, space: int, doc: int, text: str) -> list[Statement]:
    """Make a text findable."""
    key = {"tenant": tenant, "space": space, "doc": doc}
    weights = ranking.weights(terms.counted(text))
    return [("posting.insert", key | {"term": term, "weight": weights[term]}) for term in sorted(weights)]


def unposted(tenant: str, space: int, doc: int, text: str) -> list[Statement]:
    """The opposite of ``postings``, by whichever rules they were made."""
    return without_terms(tenant, space, doc, sorted(terms.ever(text)))


def without_terms(tenant: str, space: int, doc: int, found_by: Iterable[str]) -> list[Statement]:
    key = {"tenant": tenant, "space": space, "doc": doc}
    return [("posting.delete", key | {"term": term}) for term in found_by]


def fact_hash(text: str) -> str:
    """The same for texts that say the same but for case, spaces and the form of their letters."""
    return hashlib.sha256(" ".join(terms.normal(text).split()).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _sum(fact: str, body: str) -> int:
    return checksums.of_content(FactRow.what_is_remembered(fact), body)
