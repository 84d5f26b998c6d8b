"""How does what a caller attaches become an attachment?"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ondol import files, media, transactions
from ondol.clock import Clock, micros
from ondol.errors import InvalidInput, TooLarge
from ondol.ids import checked_id
from ondol.limits import Limits
from ondol.messages import Attachment
from ondol.store import Store
from ondol.threads import in_thread


class File(NamedTuple):
    """An attachment by its name and its bytes. ``media_type``: as its sender has it, where that is said."""

    name: str
    data: bytes
    media_type: str | None = None


Attached: TypeAlias = Path | str | bytes | File


def check_size(given: Sequence[Attached], limits: Limits) -> None:
    """Before anything is read into memory. What is no file is refused later. Raises TooLarge."""
    most, at_most = limits.attachments, limits.attachment_bytes
    if most is not None and len(given) > most:
        raise TooLarge(f"{len(given)} attachments, and Limits(attachments={most}) allows no more: send fewer at once")
    if at_most is None:
        return
    size = 0
    for attachment in given:
        with contextlib.suppress(OSError, ValueError):
            match attachment:
                case bytes():
                    size += len(attachment)
                case File():
                    size += len(attachment.data)
                case _:
                    size += Path(attachment).stat().st_size
    if size > at_most:
        raise TooLarge(
            f"the attachments have {size} bytes, and Limits(attachment_bytes={at_most}) allows no more: send less"
        )


async def attach_all(
    store: Store, clock: Clock, tenant: str, given: Sequence[Attached], limits: Limits
) -> list[Attachment]:
    """Store the bytes of attachments. Raises TooLarge, also where what was read is more than a file had said; and as
    ``attach``."""
    parts: list[Attachment] = []
    left = limits.attachment_bytes
    for attachment in given:
        part = await attach(store, clock, tenant, attachment, left)
        left = None if left is None else left - part.size
        parts.append(part)
    return parts


async def attach(store: Store, clock: Clock, tenant: str, given: Attached, at_most: int | None = None) -> Attachment:
    """Store the bytes of an attachment. Raises InvalidInput for one that cannot be read, or is an address; TooLarge."""
    media_type: str | None = None
    if isinstance(given, bytes):
        name, data = "attachment", given
    elif isinstance(given, File):
        name = media.shown_name(checked_id("the name of an attachment", given.name))
        data, media_type = given.data, given.media_type
    elif not isinstance(given, str | Path):
        raise InvalidInput(f"an attachment must be a path or bytes, got {type(given).__name__}")
    elif isinstance(given, str) and "://" in given:
        raise InvalidInput(f"attachment {given!r} is an address: fetch it first and give its bytes")
    else:
        path = Path(given)
        try:
            name, data = media.shown_name(path.name), await in_thread(files.read, path, at_most)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InvalidInput(f"attachment {str(path)!r} cannot be read ({why})") from error
    if at_most is not None and len(data) > at_most:
        raise TooLarge(
            f"attachment {name!r} has more bytes than Limits(attachment_bytes=...) allows ({at_most} are left for it): "
            "send less"
        )
    # Renewed before it is stored: a collection that runs at this moment leaves it, or leaves room for it.
    digest = hashlib.sha256(data).hexdigest()
    await store.write(transactions.keep_blob, tenant, digest, len(data), micros(clock))
    await store.put_blob(tenant, data)
    return Attachment(digest, media.media_type(name, data, media_type), name, len(data))
