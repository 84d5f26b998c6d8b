"""What is written beside the runs?"""

from __future__ import annotations

from typing import NamedTuple

from ondol.errors import InvalidInput, NotFound
from ondol.transactions.statements import Tx


def set_meta(key: str, value: str) -> Tx[None]:
    yield [("meta.set", {"key": key, "value": value})]


def keep_blob(tenant: str, digest: str, size: int, at: int) -> Tx[None]:
    """A blob was uploaded: it is collected after a day unless a run uses it."""
    yield [("tenant.insert", {"tenant": tenant})]
    yield [("blob.insert", {"tenant": tenant, "digest": digest, "size": size, "at": at})]


_LOOKED_AT = 100  # blobs in one transaction: others want to write too


class Collected(NamedTuple):
    """The digests of blobs that were forgotten, and whether there are more to look at."""

    dropped: list[str]
    more: bool


def drop_unused_blobs(tenant: str, before: int) -> Tx[Collected]:
    """Forget blobs that no run uses and that were not renewed since ``before``.

    What a run uses is marked, and looked at again only when a session that used it is deleted.
    """
    (rows,) = yield [("blob.loose", {"tenant": tenant, "before": before, "limit": _LOOKED_AT})]
    yield [("blob.in_use", {"tenant": tenant, "digest": digest}) for digest, used in rows if used]
    loose = [digest for digest, used in rows if not used]
    dropped = yield [("blob.drop", {"tenant": tenant, "digest": d, "before": before}) for d in loose]
    return Collected([d[0][0] for d in dropped if d], more=len(rows) == _LOOKED_AT)


def keep_import(tenant: str, run: str, body: bytes, at: int) -> Tx[None]:
    """A run of another store, to be looked at; a file of it that was imported before is replaced.

    Raises InvalidInput for a run of this store.
    """
    (rows,) = yield [("run.get", {"tenant": tenant, "run": run})]
    if rows:
        raise InvalidInput(f"run {run} is of this store: there is nothing to import")
    yield [("import.put", {"tenant": tenant, "run": run, "body": body, "at": at})]


def drop_import(tenant: str, run: str) -> Tx[None]:
    (dropped,) = yield [("import.drop", {"tenant": tenant, "run": run})]
    if not dropped:
        raise NotFound(f"there is no imported run {run!r}: 'ondol runs ls --imported' lists them")
