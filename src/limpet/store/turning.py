"""The turn of a store, as a context manager."""

from __future__ import annotations

from collections.abc import Callable


class Turn:
    """A turn, for the body of a `with`. No generator: an interrupt could leave one between its halves."""

    __slots__ = ("_leave", "_take")

    def __init__(self, take: Callable[[], bool], leave: Callable[[], None]) -> None:
        self._take = take
        self._leave = leave

    def __enter__(self) -> bool:
        """Take the turn."""
        return self._take()

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self._leave()
