"""Which key and which server does a provider use?"""

from __future__ import annotations

import base64
import importlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ondol.errors import InvalidInput

NO_KEY = "no-key"  # local servers take any key, and clients refuse to send none


@dataclass(frozen=True, slots=True)
class Access:
    """``host`` is where ``base_url`` points: host and port. A password in the address is none of it: libraries write
    the address of each request into the log. It is in ``headers``, to be sent with each."""

    key: str = field(repr=False)
    base_url: str
    host: str
    headers: Mapping[str, str] = field(repr=False)


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
    url = url or default
    host = _host(base_url, url)
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput(f"{name} holds characters that no key has: copy it again")
    user = urlsplit(url).netloc.rpartition("@")[0]
    return Access(key, url.replace(f"{user}@", "", 1) if user else url, host, _as_header(user))


def _as_header(user: str) -> dict[str, str]:
    if not user:
        return {}
    name, _, password = user.partition(":")
    basic = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return {"Authorization": f"Basic {basic}"}


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
