"""How is a thing named, and how is the key for downstream derived?"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection
from datetime import datetime
from typing import NewType
from urllib.parse import quote

from ondol import values
from ondol.errors import InvalidInput, NotFound

Tenant = NewType("Tenant", str)
SessionId = NewType("SessionId", str)
RunId = NewType("RunId", str)
EffectId = NewType("EffectId", str)
AskId = NewType("AskId", str)

DEFAULT_TENANT = Tenant("default")
_ORDINAL_DIGITS = 9
MAX_WORDS = 10_000  # characters of a reason or of evidence
MAX_LIMIT = 1_000_000  # rows of a list
MAX_LENGTH = 200  # characters; long enough for ids of other systems, short enough for an index key

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u


def _base32(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, rest = divmod(number, 32)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))


def _sortable(now: datetime) -> str:
    """45 bits of milliseconds, then 35 random bits: new rows land at the end of the tree."""
    return _base32(int(now.timestamp() * 1000), 9) + _base32(secrets.randbits(35), 7)


def new_run_id(now: datetime) -> RunId:
    return RunId("r_" + _sortable(now))


def new_operation_id(now: datetime) -> str:
    return "op_" + _sortable(now)


def new_fact_id(now: datetime) -> str:
    """Of a fact that a person writes; one of a run is named after the call that noted it."""
    return "m_" + _sortable(now)


def new_call_id(now: datetime) -> str:
    """Of a model call outside of any run."""
    return "c_" + _sortable(now)


def session_of(run: str) -> SessionId:
    """The session that is made for a run for which none was named."""
    return SessionId("s_" + run[2:])


def effect_id(run: str, ordinal: int) -> EffectId:
    """The ordinal is the call's place among all calls of the run, from 0."""
    return EffectId(f"e_{run[2:]}_{ordinal}")


def effect_place(effect: str) -> tuple[RunId, int]:
    """The run and the ordinal that an effect id names.

    Raises:
        NotFound: it is not the id of an effect.
    """
    head, _, ordinal = effect.rpartition("_") if isinstance(effect, str) else ("", "", "")
    if not head.startswith("e_") or not ordinal.isdecimal() or len(ordinal) > _ORDINAL_DIGITS:
        raise NotFound(f"there is no effect {effect!r}: 'ondol effects' lists them")
    return RunId("r_" + head[2:]), int(ordinal)


def behind_effects(run: str) -> str:
    """The place behind all effects of a run, as the id of an effect that it does not have."""
    return effect_id(run, 10**_ORDINAL_DIGITS - 1)


def ask_id(run: str, subject: str) -> AskId:
    """The subject says what is asked about: a call's ordinal, ``<call>u<attempt>`` for an unknown outcome, ``p<n>``,
    ``<call>q<place>`` for the question of a tool of steps."""
    return AskId(f"a_{run[2:]}_{subject}")


_DIGEST = re.compile("[0-9a-f]{64}")


def check_digest(digest: str) -> None:
    """Raises NotFound for what is no name of a blob."""
    if not _DIGEST.fullmatch(digest):
        raise NotFound(f"{digest!r} is not the digest of a blob: it has 64 hex digits")


_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,40}")


def is_plain(id: str) -> bool:
    """Does every provider take it as the id of a call? Some make longer or stranger ones, which others refuse."""
    return _PLAIN.fullmatch(id) is not None


_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_tool_name(name: str) -> bool:
    """Does every provider take it as the name of a tool?"""
    return _TOOL_NAME.fullmatch(name) is not None


def as_tool_name(made_up: str) -> str:
    """What a model called a tool that there is not, as a name that every provider takes back."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", made_up)[:64] or "_"


def idempotency_key(tenant: str, key_root: str, ordinal: int, tool: str) -> str:
    """The key that downstream sees for one call.

    Made of what stays the same for ever: tenant, key root (the run), ordinal of the call and tool. Never of the
    arguments, the attempt or the provider's call id, which change when a step is asked again.
    """
    parts = "\x1f".join((tenant, key_root, str(ordinal), tool))
    return "ondol-" + hashlib.sha256(parts.encode()).hexdigest()[:32]


def checked_text(kind: str, value: str) -> str:
    """A person's own words. Raises InvalidInput for what is no text, or far too long."""
    if not isinstance(value, str):
        raise InvalidInput(f"{kind} must be a text, got {type(value).__name__}")
    if len(value) > MAX_WORDS:
        raise InvalidInput(f"{kind} has {len(value)} characters, at most {MAX_WORDS} are taken: shorten it")
    return values.valid(value)


def checked_person(kind: str, value: str) -> str:
    """The name of whoever does something, as it is kept. Raises InvalidInput for one that names nobody."""
    if not checked_id(kind, value).strip():
        raise InvalidInput(f"{kind} is blank: say who it is")
    return value


def checked_limit(value: int) -> int:
    """How many rows a list may have."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LIMIT:
        raise InvalidInput(f"limit={value!r}: say a number from 1 to {MAX_LIMIT}")
    return value


def checked_revision(value: int | None) -> int | None:
    """The revision that a session is to have, if it matters."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise InvalidInput(f"expected_revision={value!r}: give the number that the session had (session.revision)")
    return value


def checked_kind(kind: str, value: str | None, known: Collection[str]) -> str | None:
    """One of the words that there are, or none of them."""
    if value is not None and value not in known:
        raise InvalidInput(f"{kind}={value!r} is unknown: say {', '.join(known)}")
    return value


def checked_query(value: str) -> str:
    """What is searched for."""
    if not isinstance(value, str):
        raise InvalidInput(f"the query must be a text, got {type(value).__name__}")
    return value


_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def checked_id(kind: str, value: str) -> str:
    """Refuse an id that one of the stores or a log line could not hold.

    Raises:
        InvalidInput: empty, longer than 200 characters, or with control characters or broken Unicode in it.
    """
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{kind} must be a text that is not empty, got {value!r}")
    if len(value) > MAX_LENGTH:
        raise InvalidInput(f"{kind} has {len(value)} characters, at most {MAX_LENGTH} are taken: shorten or hash it")
    if _UNFIT.search(value):
        raise InvalidInput(f"{kind} {value!r} has a control character or broken Unicode in it: remove it")
    return value


def in_address(id: str) -> str:
    """An id, or a name, as one part of an address.

    Raises:
        InvalidInput: no address can hold it. What sends a request takes ``.`` and ``..`` for the folder, however they
        are written: to erase the fact ``.`` would erase the memory that it is in.
    """
    if checked_id("an id", id) in (".", ".."):
        raise InvalidInput(f"{id!r} would be another address, so no server can be asked for it: give an id")
    return quote(id, safe="")
