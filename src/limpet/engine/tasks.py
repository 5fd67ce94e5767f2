"""Work that is done in the background: one shape for every kind, so that any worker can share any of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from limpet.core.values.json_values import Json

Beat = Callable[[], None]
"""Says that the work goes on; raises LeaseLost if somebody else has taken it over meanwhile."""


class LeaseLost(Exception):
    """The work is another's now, or is to be left: break it off where it is. Not a failure."""


class Task(Protocol):
    """One kind of background work. Whoever has its lease for a tenant does a step of it."""

    @property
    def name(self) -> str:
        """What it is called in leases, in status and in the log."""
        ...

    def step(self, tenant: str, beat: Beat) -> bool:
        """Do some of the work that there is; return whether there may be more at once.

        May be broken off at any point, in any process, and taken up by another: whatever is kept of its
        progress is kept in one step with its effect, or the effect is the same when it is repeated.
        """
        ...


@runtime_checkable
class Lazy(Protocol):
    """A task that can tell without a lease whether there is work. One that can't is asked to do some."""

    def due(self, tenant: str) -> bool:
        """Whether a step would find something to do. Only looks."""
        ...


@runtime_checkable
class Telling(Protocol):
    """A task that can tell how far it is."""

    def told(self, tenant: str) -> Mapping[str, Json]:
        """Return facts for people: where its cursor is, what waits, what was given up."""
        ...
