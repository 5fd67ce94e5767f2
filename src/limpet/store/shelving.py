"""What a change of a shelf looks like to a backend that offers one: the types are in the shelf's own room."""

from __future__ import annotations

from typing import Protocol


class Put(Protocol):
    """A row to be there."""

    @property
    def book(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...


class Drop(Protocol):
    """Rows to be gone."""

    @property
    def book(self) -> str: ...
    @property
    def first(self) -> bytes: ...
    @property
    def last(self) -> bytes: ...
