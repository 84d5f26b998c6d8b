"""What are these bytes, as a model is told?"""

from __future__ import annotations

import codecs

UNKNOWN = "application/octet-stream"

#: How the files begin that models read.
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)

#: How a text begins that says how it is written. The first of two that begin alike is the longer one.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

#: The same type under other names.
_ALIASES = {"audio/x-wav": "audio/wav", "audio/wave": "audio/wav", "audio/mp3": "audio/mpeg", "image/jpg": "image/jpeg"}

_TEXT_TYPES = frozenset({"json", "xml", "yaml", "x-yaml", "toml", "javascript", "sql", "x-sh"})


def media_type(name: str, data: bytes, said: str | None = None) -> str:
    """The media type of a file: by how it begins, else as its sender ``said``, else by its name; text is what reads as
    UTF-8. A JPEG with a name that ends in .png is a JPEG: providers refuse the one under the type of the other."""
    if (begun := _by_beginning(data)) is not None:
        return begun
    if said is not None:
        return _ALIASES.get(said, said)
    import mimetypes  # slow to import, and few runs have attachments

    guessed, packed = mimetypes.guess_type(name)
    if packed:  # "notes.txt.gz" is no text
        return UNKNOWN
    if guessed:
        return _ALIASES.get(guessed, guessed)
    try:
        return "text/plain" if data and "\0" not in data.decode() else UNKNOWN
    except UnicodeDecodeError:
        return UNKNOWN


def _by_beginning(data: bytes) -> str | None:
    if data.startswith(b"RIFF"):
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12])
    return next((type for beginning, type in _BEGINNINGS if data.startswith(beginning)), None)


def is_text(media_type: str) -> bool:
    """Can the bytes be shown as text?"""
    top, _, sub = media_type.partition(";")[0].strip().lower().partition("/")
    return top == "text" or sub.endswith(("+json", "+xml")) or (top == "application" and sub in _TEXT_TYPES)


def text_of(data: bytes) -> tuple[str, bool]:
    """A text file as it reads, in UTF-8 where it does not say otherwise, and whether all of it could be read."""
    written = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "utf-8-sig")
    try:
        text = data.decode(written)
    except UnicodeDecodeError:
        return data.decode(written, "replace"), False
    return text, "\0" not in text


def shown_name(given: str) -> str:
    """The name of a file in one line: models are told it in notes of the runtime, and it may be anybody's. Bytes of it
    that are no UTF-8 stay as Python reads them."""
    kept = (c for c in given if c.isprintable() or "\ud800" <= c <= "\udfff")
    return "".join(kept)[-200:].strip() or "attachment"
