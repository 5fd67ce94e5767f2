"""Readable documents that a store may keep beside its log, for people and tools: the port, for backends that have such a place.

Nothing in them is the truth: they are made from the log, and a store drops those that may show what was erased.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from limpet.core.values.json_values import Json


class Documents(Protocol):
    """The documents of one store, each known by a name that is safe. Threads and processes may share them."""

    def name(self, text: str, apart: str = "") -> str:
        """Return a safe name for any text; no two have one. `apart` keeps the same text of several tenants apart."""
        ...

    def turn(self) -> AbstractContextManager[None]:
        """Keep others from writing; raise StoreBusy if they do not pass it on. Whoever writes has it."""
        ...

    def put(self, name: str, document: Mapping[str, Json]) -> None:
        """Replace a document, whole or not at all; the one before is its backup."""
        ...

    def get(self, name: str) -> dict[str, Json] | None:
        """Return a document, or its backup if it is missing or does not verify; None if neither can be had."""
        ...

    def primary(self, name: str) -> dict[str, Json] | None:
        """Return a document; None if it is missing or does not verify."""
        ...

    def has(self, name: str) -> bool:
        """Whether a document is there, whatever is in it."""
        ...

    def seal(self, name: str) -> bytes | None:
        """Return what tells a document from every other; None if it is missing."""
        ...

    def drop(self, name: str) -> None:
        """Remove a document and its backup."""
        ...


@runtime_checkable
class Documented(Protocol):
    """A store that has a place for documents."""

    documents: Documents
