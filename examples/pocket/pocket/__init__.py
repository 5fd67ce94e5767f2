"""A sixth backend, whole: the worked example of the backend handbook (docs/internals/store-guide.md).

Everything that a store keeps is in one file, which is written anew with every change. It is for a few conversations,
not for many; but it keeps every promise of the port, for many processes, and the suite of `limpet.testing` says so.
Registered in pyproject.toml, it is opened by `limpet.connect("pocket:///path/to/file")`.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from limpet import errors
from limpet.stores.port import Store
from limpet.stores.server.store import ServerStore
from pocket.driver import PocketDriver


def open_store(url: str) -> Store:
    """Open the store that a URL names: pocket:///path. This is what the entry point names."""
    parts = urlsplit(url)
    if parts.netloc or not parts.path:
        raise errors.InvalidRequest("write pocket:///absolute/path.")
    return ServerStore(PocketDriver(Path(unquote(parts.path))))
