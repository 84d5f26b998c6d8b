"""When are the vectors of a memory or of a collection made, and what does a search do without them?

Those of what is looked through are made in the background, when it has changed or was searched: nobody waits. That of a
query is waited for a moment; whatever goes wrong, words alone answer.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
from collections.abc import Sequence

from ondol import lookups, transactions, values, vectors
from ondol.cancellation import from_outside
from ondol.clock import Clock, micros
from ondol.embedder import Embedder
from ondol.errors import InvalidInput, StoreCorrupt
from ondol.ids import checked_id
from ondol.records import FactRow
from ondol.secret import logger, redact
from ondol.store import Store
from ondol.transactions import Scope, Space
from ondol.vectors import Near

log = logger("ondol.embedding")

_MOMENT = 0.25  # seconds that a search waits for the vector of its query
_REST = 30_000_000  # microseconds for which an embedder that failed a search is not asked by another
_PATIENCE = 60.0  # seconds for a page of facts or passages, in the background
_PAGE = 16  # facts or passages that are embedded at once
_ASKED = 300  # characters of a query; of a longer one the first and the last, where it says what it is about
_REMEMBERED = 10_000  # memories and collections that wait for their vectors; of others the next search says so again


class Embedding:
    """The embedder of a runtime, or the lack of one."""

    def __init__(self, store: Store, clock: Clock, embedder: Embedder | None) -> None:
        """Raises InvalidInput for what is no embedder, or where numpy is missing."""
        if embedder is not None:
            if not callable(getattr(embedder, "embed", None)):
                raise InvalidInput(f"embedder must have a name and an async embed(texts, *, query), got {embedder!r}")
            checked_id("the name of an embedder", getattr(embedder, "name", ""))
            if importlib.util.find_spec("numpy") is None:
                raise InvalidInput("numpy is missing: pip install 'ondol[vectors]'")
        self.store, self.clock, self.embedder = store, clock, embedder
        self._wanted: dict[Scope | Space, None] = {}
        self._wake = asyncio.Event()
        self._rests_until = 0

    async def near(self, query: str) -> Near | None:
        """What a query means. None where nobody can say so in a moment: then words alone are searched."""
        if self.embedder is None or not query.strip() or 0 < self._rests_until - self._now() <= _REST:
            return None
        try:
            asked = functools.partial(self.embedder.embed, [values.valid(_cut(query))], query=True)
            (vector,) = await from_outside(asked, _MOMENT)
            return Near(self.embedder.name, vectors.packed(vector))
        except Exception as error:  # of the embedder: no search fails by it
            self._rests_until = self._now() + _REST
            _warn("a query was searched by its words alone", error)
            return None

    def look(self, scope: Scope | Space) -> None:
        """Facts of this memory, or passages of this collection, may be without a vector."""
        if self.embedder is not None and len(self._wanted) < _REMEMBERED:
            self._wanted[scope] = None
            self._wake.set()

    async def run(self) -> None:
        """Make the vectors that are wanted, until cancelled."""
        self._wake = asyncio.Event()  # of this event loop: a runtime may be open in one after another
        while True:
            if not self._wanted:
                await self._wake.wait()
                self._wake.clear()
            while self._wanted:
                scope = next(iter(self._wanted))
                del self._wanted[scope]
                try:
                    await (self._make(scope) if isinstance(scope, Scope) else self._make_of_passages(scope))
                except Exception as error:  # of the embedder or of the store: the next search wants them again
                    what = "a memory" if isinstance(scope, Scope) else f"the collection {scope.name!r}"
                    _warn(f"{what} is searched by its words alone", error)

    async def _make(self, scope: Scope) -> None:
        assert self.embedder is not None
        model, before = self.embedder.name, None
        while page := await self.store.read(lookups.without_vector, scope, model, self._now(), _PAGE, before):
            before = page[-1].doc
            texts = [(fact, text) for fact in page if (text := _readable(fact)) is not None]
            if not texts:
                continue
            given = await self._embedded([text for _, text in texts])
            made = [(fact, vector) for (fact, _), vector in zip(texts, given, strict=True) if vector is not None]
            await self.store.write(transactions.keep_vectors, scope, model, made)

    async def _make_of_passages(self, space: Space) -> None:
        assert self.embedder is not None
        model, before = self.embedder.name, None
        while page := await self.store.read(lookups.passages_without_vector, space, model, _PAGE, before):
            before = page[-1][0]
            given = await self._embedded([text for _, text in page])
            made = [(doc, vector) for (doc, _), vector in zip(page, given, strict=True) if vector is not None]
            await self.store.write(transactions.keep_text_vectors, space, model, made)

    async def _embedded(self, texts: Sequence[str]) -> list[bytes | None]:
        """The vectors of these texts; None for one that the embedder does not take, so that it is in the way of no
        other. Raises what the embedder raised where it takes none of them."""
        try:
            return [*await self._asked(texts)]
        except TimeoutError:
            raise
        except Exception:  # of one of them, it may be: each is asked about by itself
            if len(texts) == 1:
                raise
        made: list[bytes | None] = []
        refused: list[Exception] = []
        for text in texts:
            try:
                made += await self._asked([text])
            except TimeoutError:
                raise
            except Exception as error:  # of this text, if it takes another one
                refused.append(error)
                made.append(None)
        if len(refused) == len(texts):
            raise refused[-1]
        if refused:
            _warn(f"{len(refused)} of {len(texts)} texts are searched by their words alone", refused[-1])
        return made

    async def _asked(self, texts: Sequence[str]) -> list[bytes]:
        assert self.embedder is not None
        asked = functools.partial(self.embedder.embed, [values.valid(text) for text in texts], query=False)
        given = [vectors.packed(vector) for vector in await from_outside(asked, _PATIENCE)]
        if len(given) != len(texts):
            raise InvalidInput(f"{len(given)} vectors for {len(texts)} texts")
        return given

    def _now(self) -> int:
        return micros(self.clock)


def _cut(query: str) -> str:
    return query if len(query) <= _ASKED else f"{query[: _ASKED // 2]} {query[-_ASKED // 2 :]}"


def _readable(fact: FactRow) -> str | None:
    """A damaged fact has no vector."""
    try:
        return fact.checked_text()
    except StoreCorrupt:
        return None


def _warn(what: str, error: Exception) -> None:
    log.warning("%s: %s", what, redact(values.error_text(error)))
