"""Which key and which server does a provider use?"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ondol.errors import InvalidInput

NO_KEY = "no-key"  # local servers take any key, and clients refuse to send none


@dataclass(frozen=True, slots=True)
class Access:
    """``host`` is where ``base_url`` points: host and port, without a password."""

    key: str = field(repr=False)
    base_url: str
    host: str


def read(keys: Sequence[str], base_url: str, *, default: str, example: str) -> Access:
    """What the variables say now. ``keys`` are the names that a key may have, ``base_url`` the one of the address.

    ``default`` is the provider's own address. Where another one is given the key may be missing; ``example`` is such
    an address, for the message.

    Raises:
        InvalidInput: a variable is missing or unusable. The message names it and never shows its value.
    """
    name = next((k for k in keys if os.environ.get(k, "").strip()), keys[0])
    key = os.environ.get(name, "").strip()
    url = os.environ.get(base_url, "").strip()
    if not key and not url:
        raise InvalidInput(
            f"{' or '.join(keys)} is not set: set it, or set {base_url} to a server that needs no key, "
            f"for example {example}"
        )
    host = _host(base_url, url or default)
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput(f"{name} holds characters that no key has: copy it again")
    return Access(key, url or default, host)


def _host(name: str, base_url: str) -> str:
    with suppress(ValueError):  # unbalanced brackets, or a port that is no number
        url = urlsplit(base_url)
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return url.netloc.rpartition("@")[2]
    # The value itself may hold a password.
    raise InvalidInput(f"{name} is no address: write it as http://HOST:PORT/v1 or https://HOST/v1")


def need(*modules: str) -> None:
    """Raises InvalidInput where a module of the ``models`` extra is not installed."""
    try:
        for module in ("pydantic_ai.direct", *modules):
            importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput("models need pydantic-ai, which is not installed: pip install 'ondol[models]'") from error
