"""What must never be written down?

A ``Secret`` is a handle for a value that tools need and that nobody else may see. What a tool gives back, raises, or
says on the way passes ``redact`` before it reaches a prompt, the journal, an event or a log line: where the value of
a secret stands, ``[secret]`` is written instead.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import logging
import os
import re
import string
import sys
import traceback
from typing import Any, NoReturn

from ondol import values
from ondol.errors import InvalidInput

_SHOWN = "[secret]"
_SHORTEST = 6  # characters; a shorter value would be found in ordinary words
_ESCAPED = 8  # backslashes that one may become: what is escaped may be escaped again, and again
_PARTS = re.compile(r"\\+|[^\\]")
_AS_IT_IS = frozenset(string.ascii_letters + string.digits + "-._~")  # wherever it is written

_known: set[str] = set()  # every secret of this process; one that is gone may still stand in an exception
_pattern: re.Pattern[str] | None = None


class Secret:
    """A value for tools only: hand it to them in ``deps``, and call ``reveal`` where it is used.

    It has no text form. ``Secret.env("NAME")`` reads an environment variable. At least six characters.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not isinstance(value, str) or len(value) < _SHORTEST:
            raise InvalidInput(f"a secret must be a text of at least {_SHORTEST} characters")
        self._value = value
        _remember(value)

    @classmethod
    def env(cls, name: str) -> Secret:
        """The value of an environment variable. Raises InvalidInput when it is not set."""
        if not (value := os.environ.get(name)):
            raise InvalidInput(f"the environment variable {name} is not set: it should hold a secret")
        return cls(value)

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled or copied: hand on the handle itself")


def _remember(value: str) -> None:
    global _pattern
    _known.add(value)
    longest_first = sorted(_known, key=len, reverse=True)
    _pattern = re.compile("|".join("".join(map(_written, _PARTS.findall(known))) for known in longest_first))


def _written(part: str) -> str:
    """A pattern of a character, or of a run of backslashes, as it stands in a text, in JSON, in a Python repr, in an
    address and in HTML. Each for itself: which of them are escaped differs from library to library."""
    if part in _AS_IT_IS:
        return re.escape(part)
    data = part.encode("utf-8", "surrogatepass")
    forms = {"".join(f"%{byte:02x}" for byte in data), "".join(f"&#{ord(c)};" for c in part)}
    if part.startswith("\\"):
        found = [rf"\\{{{len(part)},{_ESCAPED * len(part)}}}", *map(re.escape, forms)]
    else:
        forms |= {
            part, f"\\{part}", data.decode("latin-1"), json.dumps(part)[1:-1], repr(part)[1:-1], repr(data)[2:-1],
            html.escape(part), "+" if part == " " else part,
        }  # fmt: skip
        # Never given back, so that a text of many backslashes takes no longer than another.
        found = [re.escape(form).replace(r"\\", rf"\\{{1,{_ESCAPED}}}+") for form in forms]
    return f"(?i:{'|'.join(sorted(found, key=len, reverse=True))})"


def redact(encoded: Any) -> Any:
    """A text, or an encoded value, without what secrets hold. Nothing changes where no secret was ever made."""
    if _pattern is None:
        return encoded
    match encoded:
        case str():
            return _pattern.sub(_SHOWN, encoded)
        case {values.TAG: "bytes", "v": str(stored)}:
            raw = base64.b64decode(stored).decode("latin-1")  # as many characters as bytes
            return _SHOWN if _pattern.search(raw) else encoded
        case {values.TAG: "text"}:
            text = values.decode(encoded)
            return values.encode(clean) if (clean := _pattern.sub(_SHOWN, text)) != text else encoded
        case dict():
            return {redact(k): redact(v) for k, v in encoded.items()}
        case list():
            return [redact(v) for v in encoded]
        case _:
            return encoded


def logger(name: str) -> Log:
    """The logger of that name, whose records hold no secrets: not in the message, nor in the traceback."""
    log = logging.getLogger(name)
    if not any(f is _prepared for f in log.filters):
        log.addFilter(_prepared)
    return Log(log, {})


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger that reaches no further than the log.

    Handlers, filters and the making of records are the application's, and may raise. What was done is done all the
    same: whoever says so here must not take it for failed.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        fields = {_GIVEN: kwargs.pop("extra", None) or {}}
        try:
            self.logger.log(level, msg, *args, extra=fields, stacklevel=2, **kwargs)
        except Exception:  # of whoever listens: said as handlers say it
            if logging.raiseExceptions and sys.stderr is not None:
                with contextlib.suppress(OSError, ValueError):  # it is closed
                    sys.stderr.write(redact(traceback.format_exc()))


_GIVEN = "_ondol"  # of a record: its fields, until it is made


def _prepared(record: logging.LogRecord) -> bool:
    """An application that puts a ``tenant`` or a ``session`` on all records would not let us give it one as we make
    it."""
    record.__dict__.update(record.__dict__.pop(_GIVEN, {}))
    if _pattern is not None:
        record.msg, record.args = redact(record.getMessage()), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = redact("".join(traceback.format_exception(*record.exc_info)).rstrip())
            record.exc_info = None
    return True
