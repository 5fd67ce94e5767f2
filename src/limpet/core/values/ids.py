"""Ids and timestamps, made by one replaceable factory.

No other module of `core` reads a clock or draws random bytes. An id holds the millisecond and 64 random bits, and sorts
by time. The order in a session is the position, never the id or timestamp.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

import msgspec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Factory(msgspec.Struct, frozen=True):
    """Supplies the time, in microseconds since 1970 UTC, and random bytes."""

    now_us: Callable[[], int]
    random: Callable[[int], bytes]


class _RandomPool:
    """Random bytes of the system, drawn in batches: each draw releases the interpreter lock, which costs time.

    No bytes are used twice, not even by a forked child.
    """

    PIECES = 64

    def __init__(self) -> None:
        self._ready: dict[int, list[bytes]] = {}
        os.register_at_fork(after_in_child=self._ready.clear)

    def __call__(self, size: int) -> bytes:
        try:
            return self._ready[size].pop()
        except (KeyError, IndexError):
            drawn = os.urandom(size * self.PIECES)
            *rest, piece = [drawn[at : at + size] for at in range(0, len(drawn), size)]
            self._ready[size] = rest
            return piece


SYSTEM_FACTORY = Factory(now_us=lambda: time.time_ns() // 1000, random=_RandomPool())

_factory_in_use: ContextVar[Factory] = ContextVar("limpet_id_factory", default=SYSTEM_FACTORY)


@contextlib.contextmanager
def using(factory: Factory) -> Iterator[None]:
    """Use another factory in the body of a with statement, for tests that need the same ids every time."""
    token = _factory_in_use.set(factory)
    try:
        yield
    finally:
        _factory_in_use.reset(token)


def new_id(prefix: str, factory: Factory | None = None) -> str:
    """Return a fresh id: prefix, millisecond, 64 random bits."""
    source = factory or _factory_in_use.get()
    return f"{prefix}_{source.now_us() // 1000:012x}{source.random(8).hex()}"


def new_session_id(factory: Factory | None = None) -> str:
    """Return a fresh session id that contains the UTC date and time."""
    source = factory or _factory_in_use.get()
    moment = EPOCH + timedelta(microseconds=source.now_us())
    return f"session_{moment:%Y%m%d_%H%M%S}_{source.random(8).hex()}"


def iso(time_us: int) -> str:
    """Return a time as ISO 8601 in UTC, with microseconds and offset."""
    second, micros = divmod(time_us, 1_000_000)
    return f"{_iso_second(second)}.{micros:06d}+00:00"


@functools.lru_cache(maxsize=64)
def _iso_second(second: int) -> str:
    return (EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat(timespec="seconds")


def microseconds(moment: str | datetime) -> int:
    """Return a time as microseconds since 1970; a time without offset is taken as UTC."""
    parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


def new_id_and_time(prefix: str) -> tuple[str, str]:
    """Return a fresh id and its time as ISO 8601, from the factory in use."""
    source = _factory_in_use.get()
    now = source.now_us()
    return f"{prefix}_{now // 1000:012x}{source.random(8).hex()}", iso(now)
