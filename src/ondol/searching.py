"""How does a run search a history or a collection?

A history is made findable when somebody searches it, as far as it is not yet: whoever never searches pays nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ondol import lookups, queries, ranking, transactions
from ondol.embedding import Embedding
from ondol.lookups import FoundText
from ondol.records import RunRow
from ondol.store import Store
from ondol.threads import in_thread
from ondol.tools import Found
from ondol.transactions import Space

_SHOWN = 600  # characters of a message that was found


async def find(
    store: Store, embedding: Embedding, run: RunRow, kind: str, name: str, query: str, limit: int
) -> Sequence[Found]:
    """What a run finds in the history of its session or of its user, or in a collection of its tenant."""
    if kind == "documents":
        return await find_documents(store, embedding, run.tenant, name, query, limit)
    return await find_history(store, transactions.history_space(run.tenant, kind, run.user_id, name), query, limit)


async def find_history(store: Store, space: Space, query: str, limit: int) -> list[Found]:
    """Messages that fit best; ``locator`` names session, run and message. What a fork shares with the session it comes
    from is found in both."""
    parts: Sequence[tuple[str, int | None]] = [(space.name, None)]
    if space.kind == "session":
        parts = await store.read(queries.lineage, space.tenant, space.name)
    found: list[tuple[FoundText, RunRow]] = []
    for session, until in parts:
        part = space._replace(name=session)
        behind: int | None = 0
        while behind is not None:
            behind = await store.write(transactions.index_history, part, behind)
        texts = await store.read(lookups.find_messages, part, query, limit if until is None else ranking.LOOKED_AT)
        runs = {f.source: await store.read(queries.get_run, space.tenant, f.source) for f in texts}
        found += [(f, run) for f in texts for run in [runs[f.source]] if until is None or (run.base or 0) < until]
    best = sorted(found, key=lambda one: -one[0].hit.score)[:limit]
    # A message may be long: nobody else waits for that.
    shown = await in_thread(lambda: [ranking.excerpt(f.text, query, _SHOWN) for f, _ in best])
    return [
        Found(text=text, locator=f"session {run.session} run {f.source} message {f.place}")
        for text, (f, run) in zip(shown, best, strict=True)
    ]


async def find_documents(
    store: Store, embedding: Embedding, tenant: str, collection: str, query: str, limit: int
) -> list[Found]:
    """Passages that fit best, by words and, where there is an embedder that answers, by vectors; ``locator`` is the
    path, and the line or page."""
    space = documents_of(tenant, collection)
    near = await embedding.near(query)
    found: list[FoundText] = await store.read(lookups.find_passages, space, query, limit, near)
    embedding.look(space)
    return [
        Found(text=f.text, locator=f"{f.source}:{f.place}", title=f.source.rpartition("/")[2], found_by=f.by)
        for f in found
    ]


def documents_of(tenant: str, collection: str) -> Space:
    return Space(tenant, "documents", "", "", collection)
