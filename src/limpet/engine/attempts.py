"""Running what strangers wrote: a memory engine, a summariser, a task. Whatever it raises is a value here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from limpet import errors, limits
from limpet.engine.tasks import LeaseLost

T = TypeVar("T")


class Failed(msgspec.Struct, frozen=True):
    """What was raised."""

    error: Exception

    @property
    def code(self) -> str:
        """What it is called. Never its text, which may have somebody's words in it."""
        return str(getattr(self.error, "code", "") or type(self.error).__name__)


def attempt(work: Callable[[], T]) -> T | Failed:
    """Return what work comes to, or its failure. That the lease is lost or the engine closed is none."""
    try:
        return work()
    except (LeaseLost, errors.EngineClosed, errors.ForkedEngine):
        raise
    except Exception as error:  # noqa: BLE001 - see above
        return Failed(error)


def backoff_us(failures: int) -> int:
    """Return how long to leave work alone that has failed so many times in a row."""
    doubled = limits.BACKOFF_S * 2.0 ** min(failures - 1, 30)
    return int(min(doubled, limits.BACKOFF_S_MAX) * 1_000_000)


def due(retry_us: int, now_us: int) -> bool:
    """Whether it is time. A moment further off than any backoff was noted by a clock that has been set back since."""
    return not now_us < retry_us <= now_us + int(limits.BACKOFF_S_MAX * 1_000_000)
