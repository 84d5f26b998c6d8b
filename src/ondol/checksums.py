"""Is what stands in the store what was written there?

What a run said and did has a checksum beside it. A byte that was flipped is found, and not believed.
"""

from __future__ import annotations

import hashlib

from ondol import values
from ondol.errors import StoreCorrupt


def of_batch(run: str, seq: int, fence: int, at: int, body: str) -> int:
    """63 bits of SHA-256 over everything that a batch of the journal says."""
    return _sum(f"{run}|{seq}|{fence}|{at}|{body}")


def of_message(run: str, ordinal: int, body: str) -> int:
    return _sum(f"{run}|{ordinal}|{body}")


def of_content(what: str, text: str) -> int:
    """Of a text that stands in a row: ``what`` names it, as "the reply of run r_1"."""
    return _sum(f"{what}|{text}")


def check_message(run: str, ordinal: int, body: str, stored_sum: int) -> None:
    """Raises StoreCorrupt if the message is not what was written."""
    if of_message(run, ordinal, body) != stored_sum:
        raise StoreCorrupt(f"run {run}, message {ordinal} does not match its checksum: {_RESTORE}")


def check_content(what: str, text: str, stored_sum: int | None) -> None:
    """Raises StoreCorrupt if the text is not what was written. An old row has no checksum, and at least is JSON."""
    if stored_sum is None:
        try:
            values.loads(text)
            return
        except ValueError:
            pass
    elif of_content(what, text) == stored_sum:
        return
    raise StoreCorrupt(f"{what} does not match its checksum: {_RESTORE}")


def of_carried(text: str) -> str:
    """The name of a text that requests carry."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check_carried(name: str, text: str) -> None:
    """Raises StoreCorrupt if it is not the text that was named so."""
    if of_carried(text) != name:
        raise StoreCorrupt(f"text {name}, which requests carry, does not match its digest: {_RESTORE}")


def check_definition(name: str, body: str) -> None:
    """Raises StoreCorrupt if it is not the definition of an agent that was named so."""
    if not _is_whole(body, name):
        raise StoreCorrupt(f"definition {name} does not match its digest: {_RESTORE}")


def check_arguments(ask: str, arguments: str, hashed: str) -> None:
    """Raises StoreCorrupt if they are not what the ask is about."""
    if not _is_whole(arguments, hashed):
        raise StoreCorrupt(f"ask {ask}: its arguments do not match their hash: {_RESTORE}")


def _is_whole(stored: str, digest: str) -> bool:
    try:
        return values.digest(values.loads(stored)) == digest
    except ValueError:
        return False


def _sum(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


_RESTORE = "restore a backup (ondol db restore)"
