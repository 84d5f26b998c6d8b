"""Databases that Ondol is attached to. Which one does a URL name?"""

from __future__ import annotations

import re

from ondol.errors import InvalidInput
from ondol.store import Store

_NAMED = "say sqlite:///FILE (sqlite:////abs/path for an absolute path), or postgresql://USER@HOST/DATABASE"


def open_store(store: str | Store) -> Store:
    """The store that a URL names. Raises InvalidInput for a URL of a kind that there is not."""
    if not isinstance(store, str):
        if not hasattr(store, "write") or not hasattr(store, "drives"):
            raise InvalidInput(f"a store cannot be {type(store).__name__}: {_NAMED}, or give a Store")
        return store
    if store == "sqlite:///:memory:":
        raise InvalidInput("a store in memory would keep nothing: name a file, as in sqlite:///ondol.db")
    if store.startswith("sqlite:///") and len(store) > len("sqlite:///") and "\0" not in store:
        from ondol.stores.sqlite import SqliteStore

        return SqliteStore(store.removeprefix("sqlite:///"))
    if store.startswith(("postgresql://", "postgres://")) and "\0" not in store:
        try:
            from ondol.stores.postgres import PostgresStore
        except ModuleNotFoundError as error:
            if error.name != "psycopg":
                raise
            raise InvalidInput("a store in PostgreSQL needs psycopg: pip install 'ondol[postgres]'") from error

        return PostgresStore(store)
    raise InvalidInput(f"{_shown(store)!r} names no store: {_NAMED}")


def _shown(url: str) -> str:
    """Without what may be a password."""
    return re.sub(r"//[^/@]*@", "//…@", url)
