"""How does one run look as a file that another machine can read?

A run file is one JSON object: the run with its effects, asks, journal and messages, the history that its model saw,
the definitions of its agent, and the bytes of its attachments (base64). Bodies of entries, messages and definitions
are the JSON texts that the store holds, with the checksums that it keeps of them; each part has a SHA-256 of its own.
Times are microseconds since 1970 in UTC. What was damaged on the way is found and named, never believed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn, TypeVar

from ondol import checksums, journal, messages, values
from ondol.errors import FileDamaged, InvalidInput, StoreCorrupt, StoreTooNew
from ondol.records import AskRow, EffectRow, RunRow

R = TypeVar("R", RunRow, EffectRow, AskRow)
T = TypeVar("T")

FORMAT = "ondol.run"
VERSION = 1
ABOUT = (
    "One run of Ondol, as it was at 'exported_at', to be looked at: 'ondol runs import FILE', then 'ondol runs show "
    "RUN'. Times are microseconds since 1970 (UTC). Bodies are JSON texts."
)
PARTS = (
    "exported_at", "run", "effects", "asks", "journal", "messages", "history", "incomplete", "definitions", "carried",
    "blobs",
)  # fmt: skip


class Entries(NamedTuple):
    """One batch of the journal, as it is stored."""

    seq: int
    fence: int
    at: int
    v: int
    body: str


class Said(NamedTuple):
    """One message as it is stored: the run that wrote it, its ordinal there, and its sequence in the session."""

    run: str
    ordinal: int
    body: str
    seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """``history`` is what the session had said before, ``incomplete`` if a part of that was erased.

    ``carried`` are texts of its requests, by digest. A blob is its bytes, or their number where they are left out.
    """

    run: RunRow
    effects: tuple[EffectRow, ...]
    asks: tuple[AskRow, ...]
    entries: tuple[Entries, ...]
    messages: tuple[Said, ...]
    history: tuple[Said, ...]
    incomplete: bool
    definitions: Mapping[str, str]
    carried: Mapping[str, str]
    blobs: Mapping[str, bytes | int]
    exported_at: datetime

    @property
    def batches(self) -> list[journal.Batch]:
        return [journal.loads(self.run.id, *e, _entries_sum(self.run.id, e)) for e in self.entries]


def dumps(file: RunFile) -> str:
    """The file's text."""
    run = file.run.id
    parts: dict[str, Any] = {
        "exported_at": file.exported_at.isoformat(),
        "run": file.run._asdict(),
        "effects": [e._asdict() for e in file.effects],
        "asks": [a._asdict() for a in file.asks],
        "journal": [e._asdict() | {"sum": str(_entries_sum(run, e))} for e in file.entries],
        "messages": [_said(m) for m in file.messages],
        "history": [_said(m) for m in file.history],
        "incomplete": file.incomplete,
        "definitions": [{"digest": digest, "body": body} for digest, body in file.definitions.items()],
        "carried": [{"digest": digest, "body": body} for digest, body in file.carried.items()],
        "blobs": [_blob(digest, data) for digest, data in file.blobs.items()],
    }
    head = {"format": FORMAT, "v": VERSION, "about": ABOUT}
    return json.dumps(head | parts | {"sums": {p: _sum(parts[p]) for p in PARTS}}, ensure_ascii=False, indent=1)


def _said(message: Said) -> dict[str, Any]:
    total = checksums.of_message(message.run, message.ordinal, message.body)
    return message._asdict() | {"sum": str(total)}


def _blob(digest: str, data: bytes | int) -> dict[str, Any]:
    if isinstance(data, int):
        return {"digest": digest, "size": data, "data": None}
    return {"digest": digest, "size": len(data), "data": base64.b64encode(data).decode()}


def _entries_sum(run: str, entries: Entries) -> int:
    return checksums.of_batch(run, entries.seq, entries.fence, entries.at, entries.body)


def _sum(part: Any) -> str:
    plain = json.dumps(part, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


# --- read -------------------------------------------------------------------------------------------------------


def loads(text: str, name: str) -> RunFile:
    """The run in a file. ``name`` is what the file is called in messages.

    Raises:
        InvalidInput: it is no run file.
        StoreTooNew: a newer version of Ondol wrote it.
        FileDamaged: it is not as it was written; the message names the place.
    """
    try:
        raw = json.loads(text)
    except ValueError as error:
        if not isinstance(error, json.JSONDecodeError) or f'"{FORMAT}"' not in text:
            raise _no_run_file(name) from error
        _damaged(f"{name}, line {error.lineno}, column {error.colno}: {error.msg}", error)
    except RecursionError as error:
        raise _no_run_file(name) from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise _no_run_file(name)
    if not isinstance(raw.get("v"), int) or raw["v"] > VERSION:
        raise StoreTooNew(f"{name} was written by a newer version of Ondol: upgrade to look at it")
    return _Reader(name, raw).read()


def pack(text: str) -> bytes:
    """A file's text as a store keeps it."""
    return messages.pack(text)


def unpack(run: str, packed: bytes) -> RunFile:
    """What ``pack`` was given for that run. Raises as ``loads`` does."""
    name = f"the imported run {run}"
    try:
        text = messages.unpack(packed)
    except (ValueError, TypeError, AttributeError) as error:  # damaged: it may not even be bytes any more
        raise FileDamaged(f"{name} cannot be read: import it again") from error
    return loads(text, name)


def _no_run_file(name: str) -> InvalidInput:
    return InvalidInput(f"{name} holds no exported run: make one with 'ondol runs export RUN'")


def _damaged(place: str, cause: Exception | None = None) -> NoReturn:
    raise FileDamaged(f"{place}: export the run again where it ran (ondol runs export RUN)") from cause


@dataclass(frozen=True, slots=True)
class _Reader:
    name: str
    raw: Mapping[str, Any]

    def read(self) -> RunFile:
        run = self._part("run", lambda given: _row(RunRow, given))
        file = RunFile(
            run=run,
            effects=self._part("effects", lambda given: tuple(_row(EffectRow, e) for e in given)),
            asks=self._part("asks", lambda given: tuple(_row(AskRow, a) for a in given)),
            entries=self._part("journal", lambda given: tuple(self._entries(run.id, given))),
            messages=self._part("messages", lambda given: tuple(self._said("message", m) for m in given)),
            history=self._part("history", lambda given: tuple(self._said("message of the history", m) for m in given)),
            incomplete=self._part("incomplete", bool),
            definitions=self._part("definitions", lambda given: dict(self._definition(d) for d in given)),
            carried=self._carried(),
            blobs=self._part("blobs", lambda given: dict(self._blob(b) for b in given)),
            exported_at=self._part("exported_at", lambda given: datetime.fromisoformat(given).astimezone(UTC)),
        )
        state = journal.fold(file.batches)
        if (state.status, state.seq) != (run.state, run.next_seq - 1):
            says = f"run {run.id} is {run.state} after {run.next_seq - 1} entries, the journal says {state.status}"
            _damaged(f"{self.name}: {says} after {state.seq}")
        return file

    def _part(self, part: str, read: Callable[[Any], T]) -> T:
        """A part, after a look at each thing in it, and at the whole of it."""
        sums = self.raw.get("sums")
        if part not in self.raw or not isinstance(sums, dict):
            _damaged(f"{self.name}: the part {part if sums else 'sums'!r} is missing")
        try:
            done = read(self.raw[part])
            if sums.get(part) != _sum(self.raw[part]):
                _damaged(f"{self.name}: the part {part!r} does not match its checksum")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _damaged(f"{self.name}: the part {part!r} cannot be read", error)
        return done

    def _entries(self, run: str, given: Iterable[dict[str, Any]]) -> Iterable[Entries]:
        following = 1
        for one in given:
            entries = Entries(*(one[f] for f in Entries._fields))
            if entries.seq != following:
                _damaged(f"{self.name}: entry {following} of the journal is missing")
            try:
                batch = journal.loads(run, *entries, int(one["sum"]))
            except StoreCorrupt as error:
                _damaged(f"{self.name}: entry {following} of the journal does not match its checksum", error)
            following += len(batch.entries)
            yield entries

    def _said(self, what: str, given: Mapping[str, Any]) -> Said:
        message = Said(*(given[f] for f in Said._fields))
        try:
            checksums.check_message(message.run, message.ordinal, message.body, int(given["sum"]))
        except StoreCorrupt as error:
            where = f"{what} {message.ordinal} of run {message.run}"
            _damaged(f"{self.name}: {where} does not match its checksum", error)
        messages.loads(message.body)
        return message

    def _definition(self, given: Mapping[str, Any]) -> tuple[str, str]:
        digest, body = given["digest"], given["body"]
        if values.digest(values.loads(body)) != digest:
            _damaged(f"{self.name}: the definition {digest} does not match its digest")
        return digest, body

    def _carried(self) -> dict[str, str]:
        """None are in the files of earlier versions, which carried nothing."""
        if "carried" not in self.raw and "carried" not in (self.raw.get("sums") or {}):
            return {}
        return self._part("carried", lambda given: {one["digest"]: one["body"] for one in given})

    def _blob(self, given: Mapping[str, Any]) -> tuple[str, bytes | int]:
        digest, data = given["digest"], given["data"]
        if data is None:
            return digest, int(given["size"])
        blob = base64.b64decode(data, validate=True)
        if hashlib.sha256(blob).hexdigest() != digest:
            _damaged(f"{self.name}: the blob {digest} does not match its digest")
        return digest, blob


def _row(kind: type[R], given: Mapping[str, Any]) -> R:
    """A row, where columns that an older version did not have are empty."""
    if more := given.keys() - set(kind._fields):
        raise StoreTooNew(f"the field {min(more)!r} is of a newer version of Ondol: upgrade to look at it")
    columns: list[Any] = [given.get(name) for name in kind._fields]
    return kind(*columns)
