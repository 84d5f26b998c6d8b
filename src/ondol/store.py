"""What does Ondol ask of a database?"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, ParamSpec, Protocol, TypeVar

from ondol.transactions import Tx

P = ParamSpec("P")
T = TypeVar("T")


class Store(Protocol):
    """Runs the functions of ``transactions``, and keeps blobs. It holds no rule of its own.

    ``write`` runs one function in one transaction and returns when that is durable. It may run the function several
    times, but only one run's writes stay. An exception of the function means that nothing was written, and travels
    on. Once handed over, a transaction is awaited to its end even if the caller is cancelled.
    Raises StoreFull, StoreBusy, StoreCorrupt, OutcomeUnknown.

    ``read`` runs a function that writes nothing on one consistent snapshot, which ends before ``read`` returns.

    ``on_change`` (given to ``open``) is called in the event loop when another process changed the store.
    """

    async def open(self, on_change: Callable[[], None]) -> None: ...

    async def close(self) -> None: ...

    async def drives(self, owner: str, agents: Sequence[str]) -> bool:
        """May this process claim runs now, as ``owner``, which has these agents? Asks for the right the first time.

        It is kept until ``close``, unless the process fails to say in time that it is alive. Whoever lost it is no
        driver any more, and its runs may be taken over.
        """
        ...

    async def drivers(self) -> Mapping[str, Sequence[str]]:
        """The owners that may claim runs now, each with its agents. What any other owner holds can be taken over."""
        ...

    def write(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...

    def read(self, tx: Callable[P, Tx[T]], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...

    async def put_blob(self, tenant: str, data: bytes) -> str:
        """Keep bytes under their SHA-256 (hex, returned). Durable on return; the same bytes twice are kept once."""
        ...

    async def get_blob(self, tenant: str, digest: str) -> bytes:
        """Raises NotFound, or StoreCorrupt when the bytes do not match their digest."""
        ...

    async def tidy_blobs(self, tenant: str, before: datetime) -> None:
        """Finish what a process left that died while it dropped a blob, or kept one and was at it ``before``."""
        ...

    async def drop_blob(self, tenant: str, digest: str) -> None:
        """Remove the bytes, unless the store knows them again. Nothing happens if they are not there."""
        ...
