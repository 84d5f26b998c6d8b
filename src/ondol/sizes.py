"""How large is a request?

An offline estimate in tokens, the same every time. What a provider counts puts it right (``journal.State.measured``).
"""

from __future__ import annotations

import re

from ondol import messages
from ondol.messages import Attachment, Message

PER_TOKEN = 4  # bytes of JSON in UTF-8. Rough, and the same every time; a provider's own count puts it right
_OF_IMAGE = 1500 * PER_TOKEN  # about what providers count for a large image
_PER_BYTE_SENT = 40  # bytes of a document that weigh as much as one byte of text


def weight_of_stored(body: str, message: Message) -> int:
    """How much of a request a stored message takes, in bytes of text; ``message`` is the same, read."""
    weight = weight_of_text(body)
    for part in message.parts:
        if isinstance(part, Attachment):
            weight += weight_of_attachment(part)
    return weight


def weight_of_body(body: str) -> int:
    """The same, of a message that is read only if something is attached to it."""
    return weight_of_stored(body, messages.loads(body)) if messages.ATTACHED in body else weight_of_text(body)


def weight_of(message: Message) -> int:
    """How much of a request one message takes, in bytes of text."""
    return weight_of_stored(messages.dumps(message), message)


def weight_of_text(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def weight_of_attachment(attachment: Attachment) -> int:
    if attachment.media_type.startswith("text/"):
        return attachment.size
    return max(_OF_IMAGE, 0 if attachment.media_type.startswith("image/") else attachment.size // _PER_BYTE_SENT)


def tokens(weight: int) -> int:
    """What a request of that weight is believed to take, rounded up."""
    return -(-weight // PER_TOKEN)


_TOKENS_SAID = re.compile(r"\d[\d,]{3,}")  # in an error: the window, and mostly what was sent


def fits_after(said: str, sent: int) -> int:
    """Estimated tokens that may be sent once ``sent`` were too many, from what the provider said about it.

    With room for the answer. A provider that names no numbers leaves only a careful guess: a second error would cost
    more than a shorter history.
    """
    named = sorted({int(n.replace(",", "")) for n in _TOKENS_SAID.findall(said)})
    if len(named) < 2:
        return sent // 4
    return min(sent * named[0] // named[-1], sent) * 4 // 5
