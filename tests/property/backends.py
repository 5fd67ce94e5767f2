"""Every backend, opened empty: those that run in a process, and those on servers where they are part of the checkout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.store.port import Store
from holdfast.wiring.stores import open_store

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
    with import_module("tests.servers.postgres").database() as url:
        yield url


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    yield import_module("tests.servers.valkey").fresh()


_EVERY: Mapping[str, Opener] = {
    "volatile": _volatile,
    "sqlite": _sqlite,
    "files": _files,
    "postgres": _postgres,
    "redis": _redis,
}

OPENERS = {name: opener for name, opener in _EVERY.items() if find_spec(f"holdfast.store.{name}")}
"""By name. A backend is here as soon as its room is."""


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Store]:
    """An empty store on a backend."""
    with OPENERS[name](folder) as url, closing(open_store(url)) as store:
        yield store
