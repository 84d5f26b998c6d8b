"""What is written so that a history or a document can be found?

All of it can be made again from what it stands for. It is written in small transactions, in any order and as often as
wanted; a document is found in its old version until all of the new one is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ondol import messages, terms, values
from ondol.errors import StoreCorrupt
from ondol.messages import Message, Text, ToolResponse
from ondol.transactions.pieces import checked_body
from ondol.transactions.remembering import Space, held, postings, unposted, without_terms
from ondol.transactions.statements import Row, Statement, Tx, with_conditions

_RUNS = 10  # of a history in one transaction
_ECHOES = frozenset(("search", "recall", "read_more"))  # tools that give what stands elsewhere
_TEXTS = 20  # that are removed in one transaction: others want to write too
_READ = 100  # messages that are read at once
_WRITES = 5_000  # statements of one batch; PostgreSQL ends a transaction that thinks for seconds about the next one


def history_space(tenant: str, kind: str, user_id: str, session: str) -> Space:
    """``kind`` is ``session`` or ``user``. What other users said in the session is in neither."""
    return Space(tenant, kind, "", user_id, session if kind == "session" else "")


def index_history(space: Space, behind: int = 0) -> Tx[int | None]:
    """Make some completed runs findable. Returns behind which to go on, where there are more."""
    number = yield from _opened(space)
    (stored,) = yield [("space.get", space.key)]
    indexed: int = stored[0][2]
    said = {"tenant": space.tenant, "user_id": space.user_id, "space": number, "limit": _RUNS}
    since = {"indexed": indexed, "behind": max(indexed, behind)}
    (found,) = yield [with_conditions("history.new", said | since, {"session": space.name or None})]
    new = sorted((n, run) for n, run in found if run is not None)
    settled = next(n for n, run in found if run is None)
    last = new[-1][0] if len(new) == _RUNS else None
    bodies = yield [("message.of_run", {"tenant": space.tenant, "run": run}) for _, run in new]
    texts = [
        (run, ordinal, text_of(messages.loads(checked_body(run, ordinal, body, total))))
        for (_, run), rows in zip(new, bodies, strict=True)
        for ordinal, body, total in rows
        if ordinal >= 0
    ]
    yield from _insert(space, number, [NewText(run, ordinal, text) for run, ordinal, text in texts], kept=False)
    # Behind one that may complete it is looked at again.
    if settled is not None and behind <= indexed:
        yield [("space.indexed", space.key | {"indexed": settled})]
    return last


def text_of(message: Message) -> str:
    """What of a message can be found. What a search found would be found again and again."""
    said = [
        part.text if isinstance(part, Text) else values.plain_text(part.response)
        for part in message.parts
        if isinstance(part, Text | ToolResponse) and getattr(part, "name", "") not in _ECHOES
    ]
    return "\n".join(said)


class NewText(NamedTuple):
    source: str
    place: int
    text: str


def _insert(space: Space, number: int, texts: Sequence[NewText], *, kept: bool) -> Tx[None]:
    """``kept``: the texts are stored with it, and are not those of messages."""
    (taken,) = yield [("space.take", space.key | {"docs": len(texts)})]
    writes: list[Statement] = []
    for doc, new in enumerate(texts, start=taken[0][1]):
        body = values.dumps(values.encode(new.text)) if kept else None
        row = {
            "tenant": space.tenant,
            "space": number,
            "doc": doc,
            "source": new.source,
            "place": new.place,
            "body": body,
        }
        writes += [("text.insert", row), *postings(space.tenant, number, doc, new.text)]
        if len(writes) >= _WRITES:
            yield writes
            writes = []
    yield writes


def add_passages(space: Space, texts: Sequence[NewText]) -> Tx[None]:
    """Some passages of a document. Nobody finds them before ``put_document``."""
    number = yield from _opened(space)
    yield from _insert(space, number, texts, kept=True)


def put_document(space: Space, path: str, source: str, digest: str, passages: int, at: int) -> Tx[bool]:
    """From now on this version of a document is found. False where not all of its passages are there: another indexing
    has ended meanwhile, which took them for those of one that died."""
    number = yield from _opened(space)
    key = {"tenant": space.tenant, "space": number, "source": source}
    (counted,) = yield [("text.count_of_source", key)]
    if counted[0][0] != passages:
        return False
    yield [("document.put", key | {"path": path, "digest": digest, "at": at})]
    return True


def drop_document(space: Space, path: str) -> Tx[None]:
    """From now on it is not found; its texts are removed by ``drop_texts``."""
    _, found = yield [held(space), ("space.get", space.key)]
    yield [("document.delete", {"tenant": space.tenant, "space": n, "path": path}) for n, *_ in found]


def drop_texts(space: Space) -> Tx[bool]:
    """Remove some texts that are no document's, or not any more; True where there may be more."""
    _, found = yield [held(space), ("space.get", space.key)]
    if not found:
        return False
    key = {"tenant": space.tenant, "space": found[0][0]}
    (orphans,) = yield [("text.orphaned", key)]
    if not orphans:
        return False
    (rows,) = yield [("text.of_source", key | {"source": orphans[0][0], "limit": _TEXTS})]
    writes: list[Statement] = []
    for doc, _, body in rows:
        writes += unposted(space.tenant, found[0][0], doc, stored_text(body))
        writes += [("text.delete_vector", key | {"doc": doc}), ("text.delete", key | {"doc": doc})]
    yield [*writes, ("space.shrink", space.key | {"docs": len(rows)})]
    return bool(rows)


def keep_text_vectors(space: Space, model: str, made: Sequence[tuple[int, bytes]]) -> Tx[None]:
    """Keep what passages of a collection mean, by a model; of one that was removed meanwhile nothing is kept."""
    _, found = yield [held(space), ("space.get", space.key)]
    yield [
        ("text.put_vector", {"tenant": space.tenant, "space": n, "doc": doc, "model": model, "vector": vector})
        for n, *_ in found
        for doc, vector in made
    ]


def stored_text(body: str) -> str:
    text: str = values.decode(values.loads(body))
    return text


def forget_some(tenant: str, session: str, after: int) -> Tx[int | None]:
    """What ``forget_session`` does, for some runs that were accepted behind ``after``: others want to write, too. The
    last of them; None where so few are left that nothing is done.

    If the session is not deleted after all, whoever searches makes them findable again.
    """
    of_part = {"tenant": tenant, "session": session, "after": after}
    (page,) = yield [("run.searched_of_session", of_part | {"limit": _RUNS})]
    if len(page) < _RUNS:
        return None
    until: int = page[-1][0]
    taken = yield from _taken(tenant, session)
    (found,) = yield [("text.of_part", of_part | {"until": until})]
    numbers = sorted({number for number, *_ in found})
    yield [("space.not_indexed", taken[number].key | {"after": after}) for number in numbers]
    yield from _forget(tenant, taken, found)
    return until


def forget_session(tenant: str, session: str) -> Tx[None]:
    """Remove the messages of a session from all that is searched; before they are erased.

    Nobody makes one of them findable until the transaction ends: also the spaces that are not there yet are taken.
    """
    taken = yield from _taken(tenant, session)
    (found,) = yield [("text.of_session", {"tenant": tenant, "session": session})]
    yield from _forget(tenant, taken, found)


def _taken(tenant: str, session: str) -> Tx[dict[int, Space]]:
    """What the messages of a session may be found in, by number."""
    (rows,) = yield [("user.all_of_session", {"tenant": tenant, "session": session})]
    spaces = [history_space(tenant, kind, user, session) for (user,) in sorted(rows) for kind in ("session", "user")]
    taken = yield [("space.take", space.key | {"docs": 0}) for space in spaces]
    return {rows[0][0]: space for space, rows in zip(spaces, taken, strict=True)}


def _forget(tenant: str, by_number: Mapping[int, Space], found: Sequence[Row]) -> Tx[None]:
    places: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for number, doc, run, ordinal in found:
        places.setdefault((run, ordinal), []).append((number, doc))
    said = list(places)
    writes: list[Statement] = []
    for first in range(0, len(said), _READ):
        some = said[first : first + _READ]
        bodies = yield [("message.one", {"tenant": tenant, "run": run, "ordinal": n}) for run, n in some]
        for message, stored in zip(some, bodies, strict=True):
            found_by = sorted(terms.ever(_readable(message[0], stored)))
            for number, doc in places[message]:
                writes += without_terms(tenant, number, doc, found_by)
                writes.append(("text.delete", {"tenant": tenant, "space": number, "doc": doc}))
            if len(writes) >= _WRITES:
                yield writes
                writes = []
    gone = Counter(number for number, *_ in found)
    writes += [("space.shrink", by_number[number].key | {"docs": docs}) for number, docs in gone.items()]
    if writes:
        yield writes


def _readable(run: str, rows: Iterable[Row]) -> str:
    """A message that is damaged has no terms that anybody knows; its number is not found again either way."""
    try:
        return "\n".join(text_of(messages.loads(checked_body(run, *row))) for row in rows)
    except (StoreCorrupt, ValueError, KeyError):
        return ""


def _opened(space: Space) -> Tx[int]:
    """The number of the space, which nobody else changes until the transaction ends."""
    _, found = yield [("tenant.insert", {"tenant": space.tenant}), ("space.take", space.key | {"docs": 0})]
    return int(found[0][0])
