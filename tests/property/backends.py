"""Every backend, opened empty: those that run in a process, and those on servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from limpet.stores.port import Store
from limpet.wiring.store_opener import open_store
from tests.servers import postgres, valkey

Opener = Callable[[Path], Any]
"""From an empty folder to a context manager that yields the URL of a store that is not there yet."""


@contextmanager
def _volatile(folder: Path) -> Iterator[str]:
    yield "volatile:"


@contextmanager
def _sqlite(folder: Path) -> Iterator[str]:
    yield str(folder / "state.db")


@contextmanager
def _files(folder: Path) -> Iterator[str]:
    yield f"files://{folder / 'state'}"


@contextmanager
def _postgres(folder: Path) -> Iterator[str]:
    with postgres.database() as url:
        yield url


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    yield valkey.fresh()


OPENERS: Mapping[str, Opener] = {
    "volatile": _volatile,
    "sqlite": _sqlite,
    "files": _files,
    "postgres": _postgres,
    "redis": _redis,
}
"""By name."""


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Store]:
    """An empty store on a backend."""
    with OPENERS[name](folder) as url, closing(open_store(url)) as store:
        yield store
