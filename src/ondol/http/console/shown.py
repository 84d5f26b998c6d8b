"""How does a value look on a page? Every text is escaped, and what would reorder or hide it is spelled out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from ondol import clock, values
from ondol.showing import as_json, exact, safe

_JOINERS = "\u200c\u200d"  # invisible, and part of emoji and of words in some scripts
_DEFAULT_FILE = "ondol.db"


class Look(NamedTuple):
    """How a state is told: a class of colour, an icon and a word. No state is told by its colour alone."""

    tone: str
    icon: str
    word: str


_LOOKS: Mapping[str, Look] = {
    "queued": Look("idle", "clock", "queued"),
    "running": Look("busy", "play", "running"),
    "waiting": Look("ask", "hand", "waiting"),
    "parked": Look("parked", "flag", "parked"),
    "completed": Look("good", "check", "completed"),
    "failed": Look("bad", "cross", "failed"),
    "cancelled": Look("off", "slash", "cancelled"),
    "cancelling": Look("off", "slash", "cancelling"),
    "expired": Look("off", "hourglass", "expired"),
    "joined": Look("idle", "merge", "joined"),
    # effects
    "planned": Look("idle", "clock", "planned"),
    "asked": Look("ask", "hand", "asked"),
    "approved": Look("busy", "check", "approved"),
    "started": Look("busy", "play", "started"),
    "succeeded": Look("good", "check", "succeeded"),
    "unknown": Look("unknown", "question", "unknown"),
    "denied": Look("off", "slash", "denied"),
    "abandoned": Look("off", "slash", "abandoned"),
    # asks
    "open": Look("ask", "hand", "open"),
    "decided": Look("good", "check", "decided"),
    "closed": Look("off", "slash", "closed"),
    # verdicts of a replay, findings
    "safe": Look("good", "check", "safe"),
    "guarded": Look("ask", "hand", "guarded"),
    "blocked": Look("bad", "cross", "blocked"),
    "ok": Look("good", "check", "ok"),
    "note": Look("idle", "info", "note"),
    "wrong": Look("bad", "cross", "wrong"),
}


def look(state: str) -> Look:
    return _LOOKS.get(state) or Look("idle", "info", state)


def finalized(value: Any) -> Any:
    """What Jinja is about to write: texts with everything invisible spelled out. Escaping comes after this."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return safe(value, keep="\n\t")
    return "" if value is None else value


def said(text: Any) -> Markup:
    """What a person or a model wrote, to be read as prose: as ``finalized``, with what joins emoji and letters."""
    return Markup(escape(safe(str(text), keep=f"\n\t{_JOINERS}")))


def kept(text: str) -> Markup:
    """What a form, or a script, hands back as it is: a browser reads each reference as the character that it is."""
    return Markup(safe(str(escape(text)), "\n\t", lambda character: f"&#{ord(character)};"))


def pretty(encoded: Any) -> str:
    """An encoded value (see ``values``) as JSON over several lines, nothing left out."""
    return as_json(encoded, indent=2)


def plain(encoded: Any) -> str:
    """An encoded value as a person reads it: a text as it is, anything else as JSON."""
    decoded = values.decode(encoded)
    return decoded if isinstance(decoded, str) else pretty(encoded)


def lines(arguments: Any) -> list[tuple[str, str]]:
    """Arguments by name, each exact; where they are no object, one line without a name."""
    if isinstance(arguments, dict):
        return [(str(name), exact(value)) for name, value in arguments.items()]
    return [("", exact(arguments))]


def moment(at: datetime | None, zone: str | None, now: datetime) -> Markup:
    """An instant in a zone; when pointed at, in UTC. The day is left out where it is today."""
    if at is None:
        return Markup("")
    here = clock.here(zone)
    local = at.astimezone(here)
    days = abs((now.astimezone(here).date() - local.date()).days)
    day = "" if days == 0 else f"{local:%a} " if days < 6 and local < now else f"{local.day} {local:%b} "
    if local.year != now.astimezone(here).year:
        day = f"{local.day} {local:%b %Y} "
    offset = local.strftime("%z")
    utc = at.astimezone(UTC)
    return Markup(
        '<time datetime="{}" title="{} UTC">{}{}<span class="zone"> {}</span></time>'
    ).format(
        utc.isoformat().replace("+00:00", "Z"), f"{utc:%Y-%m-%d %H:%M:%S}", day, f"{local:%H:%M:%S}",
        "UTC" if zone is None and offset == "+0000" else f"{offset[:3]}:{offset[3:5]}",
    )  # fmt: skip


def lasted(time: timedelta | None) -> str:
    """How long something took, as people say it."""
    if time is None:
        return ""
    seconds = time.total_seconds()
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    told = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(told[:2])


def number(value: int | None) -> str:
    """A count; what nobody counted is no zero."""
    return "unknown" if value is None else f"{value:,}".replace(",", "\u202f")


def money(cost: Decimal | None, currency: str) -> str:
    if cost is None:
        return "unpriced"
    return f"{cost:.4f} {currency}".rstrip()


def size(number: int) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000  # type: ignore[assignment]
    return f"{number:.1f} GB"


def address(path: str, *parts: str, **query: object) -> str:
    """A path below the console, ``{}`` in it filled with parts, and the query; what is None is left out."""
    filled = path.format(*(quote(part, safe="") for part in parts))
    asked = urlencode({k.removesuffix("_"): str(v) for k, v in query.items() if v is not None}, errors="replace")
    return f"{filled}?{asked}" if asked else filled


def options(given: Mapping[str, object], **more: object) -> list[str]:
    """As a command takes them: ``--state failed``, ``--newest-first``. What says nothing is left out."""
    words: list[str] = []
    for name, value in {**given, **more}.items():
        if value:
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words


def last(word: str) -> list[str]:
    """The last word of a command: one that begins with - would be an option."""
    return ["--", word] if word.startswith("-") else [word]


class Commands:
    """What to type instead of pressing a button. ``file`` is the store's; one that is no file is named by the variable
    that holds its address, which may have a password in it. ``of_server``: what a command does at the store itself is
    done to the things of the default tenant; to those of another, by a token that goes to the server."""

    def __init__(self, file: Path | None, *, of_server: bool = False) -> None:
        named = "" if file == Path(_DEFAULT_FILE).resolve() else ' --db "$ONDOL_DB"'
        if of_server:
            named = ' --url "$ONDOL_URL"'
        elif named and file is not None:
            named = f" --db {shlex.quote(f'sqlite:///{file}')}"
        self._start = f"ondol{named} "

    def __call__(self, *words: str) -> str:
        return self._start + shlex.join(words)
