"""How does something look to a person: a text that may hold anything, a call, a thing in a notebook?"""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ondol import values

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # Unicode's controls, formats (bidi too), line separators


def safe(words: str, keep: str = "", spelled: Callable[[str], str] | None = None) -> str:
    """The text with everything spelled out that would move the cursor, change colours or reorder what is read."""
    if words.isascii() and words.isprintable():
        return words
    spelled = spelled or _spelled
    odd = {ord(c): spelled(c) for c in set(words) if c not in keep and unicodedata.category(c) in _INVISIBLE}
    return words.translate(odd) if odd else words


def counted(number: int, thing: str) -> str:
    """``1 pin``, ``2 pins``."""
    return f"{number} {thing}" + "s" * (number != 1)


def _spelled(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def exact(value: Any) -> str:
    """A value as JSON in one line, nothing left out: what a person decides about."""
    return as_json(values.encode(value))


def as_json(encoded: Any, indent: int | None = None) -> str:
    """An encoded value as JSON that is safe to show, and still means that value."""
    text = json.dumps(encoded, ensure_ascii=False, indent=indent)
    if values.TAG in text:
        text = json.dumps(_with_texts(encoded), ensure_ascii=False, indent=indent)
    return safe(text, "\n", lambda character: json.dumps(character)[1:-1])


def _with_texts(encoded: Any) -> Any:
    """The encoded value with its texts as JSON writes them, also those that no store holds: who decides reads them."""
    match encoded:
        case list():
            return [_with_texts(v) for v in encoded]
        case {values.TAG: "text"}:
            return values.decode(encoded)
        case dict():
            return {k: _with_texts(v) for k, v in encoded.items()}
        case _:
            return encoded


def called(tool: str | None, arguments: Any) -> str:
    """A call as people write it: ``refund(order_id="1182", amount="30")``. Nothing is left out."""
    if not isinstance(arguments, dict):
        return f"{tool}({exact(arguments)})"
    return f"{safe(tool or '')}({', '.join(f'{safe(str(k))}={exact(v)}' for k, v in arguments.items())})"


def short(words: str, most: int = 120) -> str:
    """The text in one line of so many characters at the most."""
    words = " ".join(words.split(None, most))  # so many words have more characters than that
    return words if len(words) <= most else words[:most] + " …"


def ended_by(error: Mapping[str, Any] | None) -> str | None:
    """The code of how a run ended, and what is said about it."""
    return ": ".join(filter(None, (error.get("code"), error.get("message")))) if error else None


def card(title: str, fields: Iterable[tuple[str, object]]) -> str:
    """HTML for a notebook: a title and ``name value`` rows, all of it escaped. A value of None is left out."""
    rows = "".join(
        f'<tr><th style="text-align:left">{_escaped(name)}</th><td style="text-align:left">{_escaped(value)}</td></tr>'
        for name, value in fields
        if value is not None
    )
    return f"<div><b>{_escaped(title)}</b><table>{rows}</table></div>"


def _escaped(value: object) -> str:
    return html.escape(safe(str(value), keep="\n\t")).replace("\n", "<br>")
