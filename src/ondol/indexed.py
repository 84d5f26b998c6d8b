"""How do folders of documents become a collection that can be searched?

Files are read again only where they changed, and what is gone from a folder is gone from the collection. A document is
named by its folder and its path there (``handbook/leave.md``), so a collection can be indexed from anywhere.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ondol import lookups, passages, searching, terms, transactions, values
from ondol.errors import InvalidInput
from ondol.lookups import KnownDocument
from ondol.passages import Passage
from ondol.store import Store
from ondol.threads import in_thread
from ondol.transactions import NewText, Space

LARGEST = 50_000_000  # bytes of a file
_AT_ONCE = 10  # passages in one transaction: others want to write too
_TRIES = 5  # of a document, while others index the same collection
_TEXT = (".txt", ".md", ".markdown", ".rst", ".csv", ".log")
_RULES = f"{passages.VERSION}.{terms.VERSION}:".encode()  # a file that was read by others is read again
_HTML = (".html", ".htm", ".xhtml")


@dataclass(frozen=True, slots=True)
class Indexed:
    """What an indexing did: paths of documents, and for what was left out the reason."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


class _Found(NamedTuple):
    """Each file by the name of its document, the folders that were named, and what could not be looked into."""

    files: dict[str, Path]
    folders: list[str]
    unread: dict[str, str]


def _found(paths: Sequence[str | Path], known: Collection[str], collection: str) -> _Found:
    """Raises InvalidInput."""
    found = _Found({}, [], {})
    for given in paths:
        try:
            path = Path(given).resolve()
            is_folder, is_file = path.is_dir(), path.is_file()
        except (OSError, ValueError) as error:  # too long, or with what no name has
            raise InvalidInput(f"{str(given)[:100]!r} cannot be a path ({error}): name a file or a folder") from error
        if is_folder:
            found.folders.append(f"{path.name}/")
            named = {f"{path.name}/{file.relative_to(path).as_posix()}": file for file in _files(path, found.unread)}
        elif is_file:
            named = {path.name: path}
        else:
            if any(_is_in(name, path.name) for name in known):
                how = f"'ondol index --remove {path.name} --collection {collection}' takes out what is found of it"
                raise InvalidInput(f"{given} is not there any more: {how}")
            raise InvalidInput(f"{given} is no file and no folder: name what is to be indexed")
        for name, file in named.items():
            if found.files.setdefault(name, file) != file:
                raise InvalidInput(
                    f"{found.files[name]} and {file} would both be the document {name}: name a folder that holds both, "
                    "or give each a collection of its own"
                )
    return found


def _is_in(name: str, given: str) -> bool:
    """Is it that document, or one of that folder?"""
    return name == given or name.startswith(f"{given.rstrip('/')}/")


def _named(given: str, known: Collection[str], collection: str) -> list[str]:
    """Raises InvalidInput."""
    if named := [name for name in known if _is_in(name, given)]:
        return named
    raise InvalidInput(f"collection {collection} has no document and no folder {given}: name it as locators of hits do")


def _files(folder: Path, unread: dict[str, str]) -> Iterator[Path]:
    """What is hidden is left alone, and so is what a link leads to. A folder that cannot be read is noted in
    ``unread``: nobody knows whether its documents are gone."""

    def note(error: OSError) -> None:
        path = Path(error.filename).relative_to(folder)
        unread[values.valid(f"{Path(folder.name, path).as_posix()}/")] = str(error)

    for at, folders, names in os.walk(folder, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(at, name) for name in sorted(names) if not name.startswith(".")):
            if path.suffix.lower() in _READERS and not os.path.islink(path):
                yield path


def _text(data: bytes) -> str:
    """Raises ValueError for what is no text."""
    if b"\0" in data:
        raise ValueError("it is no text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not in UTF-8 (byte {error.start + 1}): convert it, for instance with iconv") from error


def _pdf(data: bytes) -> list[Passage]:
    try:
        import pypdf
    except ImportError as error:
        raise ValueError("reading PDF needs an extra: pip install 'ondol[documents]'") from error
    import io

    try:
        found = passages.of_pages(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(data)).pages)
    except Exception as error:  # whatever the library finds wrong with a file of somebody
        raise ValueError(f"it cannot be read as PDF: {type(error).__name__}: {error}") from error
    if not found:
        raise ValueError("it holds no text: if its pages are pictures, let a program recognise what stands on them")
    return found


_READERS: Mapping[str, Callable[[bytes], list[Passage]]] = {
    **dict.fromkeys(_TEXT, lambda data: passages.of_text(_text(data))),
    **dict.fromkeys(_HTML, lambda data: passages.of_html(_text(data))),
    ".pdf": _pdf,
}


class _Bytes:
    """A file, read once."""

    def __init__(self, path: Path) -> None:
        looked = path.stat()
        if not stat.S_ISREG(looked.st_mode):
            raise ValueError("it is no regular file")  # a pipe would be waited for, for ever
        if looked.st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST} bytes")
        self.data = path.read_bytes()
        self.digest = hashlib.sha256(_RULES + self.data).hexdigest()


async def index(
    store: Store, tenant: str, collection: str, paths: Sequence[str | Path], now: int, remove: Sequence[str] = ()
) -> Indexed:
    """Bring a collection up to date with files and folders, and take documents and folders out of it that ``remove``
    names. May be stopped, and done again, at any time."""
    space = searching.documents_of(tenant, collection)
    known = {d.path: d for d in await store.read(lookups.list_documents, space)}
    gone = {name for given in remove for name in _named(given, known, collection)}
    files, folders, unread = await in_thread(_found, paths, known, collection)
    done = Indexed(skipped=unread)
    for name, path in files.items():
        await _index_one(store, space, name, path, known.get(name), now, done)
    for name in known:
        left = name.startswith(tuple(folders)) and not name.startswith(tuple(unread))
        if name not in files and (left or name in gone):
            await store.write(transactions.drop_document, space, name)
            done.removed.append(name)
    while await store.write(transactions.drop_texts, space):
        pass
    return done


async def _index_one(
    store: Store, space: Space, name: str, path: Path, known: KnownDocument | None, now: int, done: Indexed
) -> None:
    if values.valid(name) != name:
        done.skipped[values.valid(name)] = "its name is not in UTF-8: rename it"
        return
    try:
        file = await in_thread(_Bytes, path)
        if known is not None and known.digest == file.digest:
            done.unchanged.append(name)
            return
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise ValueError(f"a file {path.suffix or path.name} cannot be read: {', '.join(_READERS)} can")
        found = await in_thread(reader, file.data)
    except (OSError, ValueError) as error:
        done.skipped[name] = str(error)
        return
    for _ in range(_TRIES):
        source = f"{secrets.token_hex(8)} {name}"  # nobody else's: two may index the same folder at once
        for i in range(0, len(found), _AT_ONCE):
            texts = [NewText(source, p.place, p.text) for p in found[i : i + _AT_ONCE]]
            await store.write(transactions.add_passages, space, texts)
        if await store.write(transactions.put_document, space, name, source, file.digest, len(found), now):
            (done.added if known is None else done.changed).append(name)
            return
    done.skipped[name] = "others index this collection all the time: index it again when they are done"
