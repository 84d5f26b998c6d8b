"""What bytes are: by how they begin, else by their name."""

from __future__ import annotations

import pytest

from ondol.media import UNKNOWN, is_text, media_type, text_of


@pytest.mark.parametrize(
    ("name", "data", "type"),
    [
        ("receipt.pdf", b"", "application/pdf"),
        ("hello.wav", b"", "audio/wav"),
        ("attachment", b"\x89PNG\r\n\x1a\n...", "image/png"),
        ("attachment", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("attachment", b"GIF89a", "image/gif"),
        ("attachment", b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        ("attachment", b"RIFF\x10\0\0\0WAVEfmt ", "audio/wav"),
        ("attachment", b"%PDF-1.7", "application/pdf"),
        ("photo.png", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("photo.jpg", b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        ("scan.pdf.gz", b"\x1f\x8b", UNKNOWN),
        ("app.log", "한국어\n".encode(), "text/plain"),
        ("notes.txt.gz", b"\x1f\x8b", UNKNOWN),
        ("attachment", b"\0\0", UNKNOWN),
        ("attachment", b"\xe9t\xe9", UNKNOWN),
        ("attachment", b"", UNKNOWN),
    ],
)
def test_bytes_are_known_by_how_they_begin_or_by_their_name(name: str, data: bytes, type: str) -> None:
    assert media_type(name, data) == type


@pytest.mark.parametrize(
    ("said", "data", "type"),
    [
        ("image/png", b"\xff\xd8\xff\xe0", "image/jpeg"),  # a browser goes by the name
        ("image/heic", b"\0\0\0\x18ftypheic", "image/heic"),
        ("text/csv", b"a,b", "text/csv"),
        ("audio/mp3", b"ID3", "audio/mpeg"),
    ],
)
def test_a_sender_is_believed_where_the_bytes_do_not_say_otherwise(said: str, data: bytes, type: str) -> None:
    assert media_type("upload.png", data, said) == type


def test_what_reads_as_text() -> None:
    texts = ["text/csv", "text/html; charset=utf-8", "application/json", "application/ld+json", "image/svg+xml"]
    assert all(map(is_text, texts))
    assert not any(map(is_text, ["image/png", "application/pdf", UNKNOWN, "audio/x-text"]))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_text_file_reads_as_it_was_written(encoding: str) -> None:
    assert text_of("Größe,€,설계\n".encode(encoding)) == ("Größe,€,설계\n", True)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_text_file_reads_in_either_order_of_bytes(encoding: str) -> None:
    assert text_of("\ufeff설계".encode(encoding)) == ("설계", True)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16-le"])
def test_of_a_text_file_in_another_encoding_nobody_says_that_all_of_it_was_read(encoding: str) -> None:
    assert text_of("Größe".encode(encoding))[1] is False
    assert text_of("size".encode("utf-16-be"))[1] is False
