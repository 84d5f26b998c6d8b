"""What is written beside the runs?"""

from __future__ import annotations

from ondol.transactions.statements import Tx


def set_meta(key: str, value: str) -> Tx[None]:
    yield [("meta.set", {"key": key, "value": value})]


def keep_blob(tenant: str, digest: str, size: int, at: int) -> Tx[None]:
    """A blob was uploaded: it is collected after a day unless a run uses it."""
    yield [("tenant.insert", {"tenant": tenant})]
    yield [("blob.insert", {"tenant": tenant, "digest": digest, "size": size, "at": at})]


def drop_unused_blobs(tenant: str, before: int) -> Tx[list[str]]:
    """Forget blobs that no run uses and that were not renewed since ``before``; returns their digests."""
    (rows,) = yield [("blob.unused", {"tenant": tenant, "before": before})]
    if not rows:
        return []
    dropped = yield [("blob.drop", {"tenant": tenant, "digest": r[0], "before": before}) for r in rows]
    return [d[0][0] for d in dropped if d]
