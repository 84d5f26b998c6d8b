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


#: A number of tokens, in an error. What hangs on to letters or dashes is part of a name, a date or the id of a request.
_NUMBER = r"(?<![\w@#-])(?<!\d[.:])(\d[\d,]{2,}\d)(?!\w|[-.:]\d)"
_TOKENS_SAID = re.compile(_NUMBER)
_MOST_TOKENS = 100_000_000  # no window is larger
#: How a window is named, the surest way first.
_WINDOW_SAID = tuple(
    re.compile(words, re.IGNORECASE)
    for words in (
        r"(?:>|<)=?\s*" + _NUMBER,
        _NUMBER + r"[- ](?:tokens? )?(?:maximum|context)",
        r"(?:maximum|max|limit|allowed|up to|exceed|less than|while)\b\D{0,40}?" + _NUMBER,
    )
)


#: vLLM counts no further than what fits.
_AT_LEAST_SAID = re.compile(r"\bat least " + _NUMBER, re.IGNORECASE)


def _tokens_said(pattern: re.Pattern[str], said: str) -> list[int]:
    found = (int(digits.replace(",", "")) for digits in pattern.findall(said))
    return [n for n in found if n <= _MOST_TOKENS]


def _window_and_count(said: str) -> tuple[int, int] | None:
    """How large the window is and what was counted, where an error says both."""
    named = set(_tokens_said(_TOKENS_SAID, said))
    window = next((found[0] for p in _WINDOW_SAID if (found := _tokens_said(p, said))), min(named, default=0))
    others = named - {window}
    counted = max(others, default=0)
    if counted <= window:  # parts of the request: what it holds, and the answer that it leaves room for
        counted = sum(others)
    return (window, counted) if counted > window else None


def is_less(said: str, before: str) -> bool:
    """Did a provider count less than ``before``, when that was too long as well? True where it does not say."""
    now, then = _window_and_count(said), _window_and_count(before)
    return now is None or then is None or bool(_tokens_said(_AT_LEAST_SAID, said)) or now[1] < then[1]


def fits_after(said: str, sent: int) -> int:
    """Estimated tokens that may be sent once ``sent`` were too many, from what the provider said about it.

    With room for the answer. A provider that does not say its window and what it counted leaves only a careful guess:
    a second error would cost more than a shorter history. So does one that says how much the request was at least: a
    token more than fits, however long it is.
    """
    if at_least := _tokens_said(_AT_LEAST_SAID, said):
        return min(at_least) * 4 // 5 if sent > min(at_least) else sent // 2
    if (known := _window_and_count(said)) is None:
        return sent // 4
    window, counted = known
    return sent * window // counted * 4 // 5
