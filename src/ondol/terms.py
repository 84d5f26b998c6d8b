"""By which terms is a text found?

Words where a script puts spaces between them; pairs of neighbouring characters in Hangul, Kana and Han, where nobody
can tell by rule alone where a word ends or which particle is glued to it; both in Thai and Lao. Both stores search by
these terms alone, so they find the same things. ``VERSION`` changes with the rules. What was indexed by earlier ones is
found by those terms that it still has, and ``ever`` names all that may be there.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

VERSION = 4
LONGEST = 64  # characters of a term; of a longer word (a key, a hash, base64) this much counts
_LOOKED_AT = 20_000  # characters of a query that is longer, for these; each takes a microsecond of the event loop
MOST_ASKED = 96  # terms of a query; of a longer one the first and the last, where a request says what it is about
END = "\x03"  # behind the last character of a run of Hangul, Kana or Han: each of its characters begins one pair

_PAIRED = (
    "\u1100-\u11ff\u3005-\u3007\u3040-\u30ff\u3105-\u312f\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003134f"
)
_MARKS_LATER = "\u0610-\u061a\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed"  # of Arabic
_MARKS = (  # inside a word
    "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u0dff\u0e00-\u0eff\u200c\u200d" + _MARKS_LATER
)
_WORD = rf"[^\W_{_PAIRED}](?:[^\W_{_PAIRED}]|[{_MARKS}])*"
_UNSPACED = re.compile("[\u0e01-\u0e4e\u0e81-\u0edf]{2,}")  # words without spaces between them: Thai, Lao
_BREAKS = "\u00ad\u2010\u2011"  # hyphens where a line may be broken, or may not
_JOINTS = "-_.'’&/@:" + _BREAKS  # inside a word, too
_INSIDE = re.compile(f"[{_JOINTS}]")
_HALF_OR_FULL = re.compile("[\uff01-\uffef\u3000]+")
_MARKS_FOLDED = re.compile(  # Latin, Greek, Cyrillic; Hebrew and Arabic, which are mostly written without their vowels
    "[\u0080-\u052f\u0591-\u06ff\u1e00-\u1fff]+"
)  # (in other scripts a mark is a letter)
_LETTERS = str.maketrans(  # that no mark can be taken from, and that are typed as others where a keyboard has none
    {
        "ł": "l", "ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th",
        "ٱ": "ا", "ى": "ي", "ی": "ي", "ک": "ك", "ة": "ه", "ـ": "",
    }
)  # fmt: skip


@functools.cache
def _piece() -> re.Pattern[str]:
    """What a text is made of: pairs, words, symbols. (It takes as long to compile as a module to import.)"""
    return re.compile(
        rf"(?P<pairs>[{_PAIRED}]+)"
        rf"|(?P<words>{_WORD}(?:[{_JOINTS}]{_WORD})*)(?P<sign>\+\+|\+|#)?"
        r"|(?P<symbol>[\u2190-\u2bff\U0001f000-\U0001faff])"
    )


_SEPARATED = re.compile(f"[{_MARKS_LATER}]"), re.compile(f"[{_MARKS_LATER}{_BREAKS}]")  # words, by earlier rules


def ever(text: str) -> set[str]:
    """The terms of a text by these rules and by those before, so that none is left behind when it goes."""
    forms = {text, *(earlier.sub(" ", text) for earlier in _SEPARATED)}
    return set().union(*map(counted, forms))


class Asked(NamedTuple):
    """A term that a query asks for. ``begins``: any term that begins with it, which is how one syllable is found."""

    text: str
    begins: bool = False

    def is_in(self, found: Counter[str]) -> int:
        """How often it stands in a text of these terms."""
        if not self.begins:
            return found[self.text]
        return sum(n for term, n in found.items() if term.startswith(self.text))


def normal(text: str) -> str:
    """One form of what may be written in several: composed, in one case, letters of full or half width as usual ones.

    The names of files on some systems, and texts of some keyboards, hold Hangul in pieces and accents on their own.
    """
    widths = _HALF_OR_FULL.sub(lambda m: unicodedata.normalize("NFKC", m[0]), text)
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", widths).casefold())


def counted(text: str) -> Counter[str]:
    """The terms of a text that is searched, each with how often it stands there."""
    found: Counter[str] = Counter()
    for kind, piece, sign in _pieces(text):
        match kind:
            case "pairs":
                found.update(piece[i : i + 2] for i in range(len(piece) - 1))
                found[piece[-1] + END] += 1
            case "words":
                found.update(_forms(piece, sign))
            case _:
                found[piece] += 1
    return found


def asked(query: str) -> tuple[Asked, ...]:
    """The terms that a query asks for, each once, in the order of the query."""
    if len(query) > _LOOKED_AT:
        query = f"{query[: _LOOKED_AT // 2]} {query[-_LOOKED_AT // 2 :]}"
    wanted: dict[Asked, None] = {}
    for kind, piece, sign in _pieces(query):
        match kind:
            case "pairs" if len(piece) == 1:
                wanted[Asked(piece, begins=True)] = None
            case "pairs":
                wanted.update(dict.fromkeys(Asked(piece[i : i + 2]) for i in range(len(piece) - 1)))
            case "words" if sign:  # who asks for C++ does not mean C
                wanted[Asked(_cut(piece + sign))] = None
            case "words":
                wanted.update(dict.fromkeys(Asked(form) for form in _forms(piece, "")))
            case _:
                wanted[Asked(piece)] = None
    several = list(wanted)
    if len(several) > MOST_ASKED:
        several = several[: MOST_ASKED // 2] + several[-MOST_ASKED // 2 :]
    return tuple(several)


def places(text: str, wanted: Sequence[Asked]) -> list[tuple[int, Asked]]:
    """Where a text, as it is written, holds these terms: about, inside of a run of Hangul, Kana or Han."""
    found: list[tuple[int, Asked]] = []
    inside: dict[str, list[tuple[int, Asked]]] = {}
    for piece in _piece().finditer(text):
        if (within := inside.get(piece[0])) is None:
            plain, held = normal(piece[0]), counted(piece[0])
            within = inside[piece[0]] = [
                (max(plain.find(term.text.rstrip(END)), 0) * len(piece[0]) // len(plain), term)
                for term in wanted
                if term.is_in(held)
            ]
        found += [(piece.start() + place, term) for place, term in within]
    return sorted(found, key=lambda at: at[0])


def _pieces(text: str) -> Iterator[tuple[str, str, str]]:
    for found in _piece().finditer(normal(text)):
        kind = found.lastgroup if found.lastgroup != "sign" else "words"
        yield kind or "", found[kind or 0], found["sign"] or ""


def _forms(word: str, sign: str) -> list[str]:
    """A word, and the other ways to look for it: its parts, the parts as one word, and all of that without accents."""
    parts = _INSIDE.split(word)
    forms = dict.fromkeys(parts)
    if len(parts) > 1:
        numbers = all(p.isdecimal() for p in parts)
        forms[word if numbers else "".join(parts)] = None
    if sign:
        forms[word + sign] = None
    for form in tuple(forms):
        forms[_without_accents(form)] = None
        forms[_without_accents(form).translate(_LETTERS)] = None
    cut = [_cut(form) for form in forms if form]
    if not word.isascii():
        cut += [run[i : i + 2] for run in _UNSPACED.findall(word) for i in range(len(run) - 1)]
    return cut


def _cut(term: str) -> str:
    return term[:LONGEST]


@functools.lru_cache(maxsize=4096)
def _without_accents(word: str) -> str:
    if word.isascii():
        return word
    return _MARKS_FOLDED.sub(lambda m: _bases(m[0]), word)


def _bases(characters: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", characters) if not unicodedata.combining(c))
