"""What of the log does somebody see who types a command?"""

from __future__ import annotations

import logging
import os

from ondol.errors import InvalidInput
from ondol.logs import JsonFormatter, TextFormatter

_LOGGERS = ("ondol", "asyncio")


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()} [{record.name}]: {' '.join(record.getMessage().split())}"
        if record.exc_info and record.exc_info[1] is not None:
            line += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        elif record.exc_text:  # where secrets were taken out of it
            line += f" ({record.exc_text.splitlines()[-1]})"
        return line


def show_log(format: str | None) -> None:
    """Write the log to standard error: all that moves a run as ``json`` or ``text``, else warnings only, as lines like
    any other (their tracebacks are for ONDOL_DEBUG).

    Raises:
        InvalidInput: there is no such format.
    """
    handler = logging.StreamHandler()
    match format:
        case "json":
            handler.setFormatter(JsonFormatter())
        case "text":
            handler.setFormatter(TextFormatter())
        case None | "":
            handler.setLevel(logging.WARNING)
            if not os.environ.get("ONDOL_DEBUG"):
                handler.setFormatter(_OneLine())
        case _:
            raise InvalidInput(f"ONDOL_LOG={format!r} is unknown: say json or text")
    for name in _LOGGERS:
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO if format else logging.NOTSET)
