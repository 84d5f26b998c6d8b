"""Embedders whose vectors anybody can tell beforehand, and some that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kit import cancels_itself

from ondol import Fact, Runtime

THEMES = (
    ("tea", "beverage", "녹차", "음료"),
    ("deploy", "release", "배포", "출시"),
    ("chess", "hobby", "바둑", "취미"),
)


class Themes:
    """A vector has one number for each theme: how many of its words the text holds; the last is for no theme."""

    def __init__(self, name: str = "themes-1") -> None:
        self.name = name
        self.asked: list[tuple[str, bool]] = []

    async def embed(self, texts: Sequence[str], *, query: bool) -> list[list[float]]:
        self.asked += [(text, query) for text in texts]
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        counts = [float(sum(word in text for word in theme)) for theme in THEMES]
        return [*counts, 0.0 if any(counts) else 1.0]


class Alike(Themes):
    """To it all texts mean the same: each is as near as can be to whatever is looked for."""

    def _vector(self, text: str) -> list[float]:
        return [1.0, 1.0]


class Broken(Themes):
    """It fails where it is asked, for a query or for what is looked through."""

    def __init__(self, what: Any, *, queries: bool) -> None:
        super().__init__()
        self.what, self.queries = what, queries

    async def embed(self, texts: Sequence[str], *, query: bool) -> list[list[float]]:
        made = await super().embed(texts, query=query)
        if query is not self.queries:
            return made
        if isinstance(self.what, BaseException):
            raise self.what
        if self.what == "never":
            await asyncio.Event().wait()
        if self.what == "cancels":
            cancels_itself()
            await asyncio.sleep(0)
        return self.what  # type: ignore[no-any-return]


async def until_found(rt: Runtime, query: str, text: str, **scope: Any) -> Fact:
    """The fact as a search finds it by its vector, once that is made."""
    async with asyncio.timeout(20):
        while True:
            for fact in await rt.memory.search(query, **scope):
                if fact.text == text and fact.found_by != "words":
                    return fact
