"""Who says what a text means, in numbers?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Embedder(Protocol):
    """Texts in, one vector for each out; texts that mean something alike have vectors that point alike.

    ``name`` says by which model, with its version: vectors of another name are never compared with these, and are made
    anew. ``query`` says that the texts are what somebody looks for, rather than what is looked through; many models
    make a difference there. All vectors have the same length. It may raise anything, and may be asked for the same text
    again; it must not hold up the event loop.
    """

    @property
    def name(self) -> str: ...

    async def embed(self, texts: Sequence[str], *, query: bool) -> Sequence[Sequence[float]]: ...
