"""Ids and timestamps of values that a caller makes: one replaceable factory.

No other module of the values reads a clock or draws random bytes. Ids are wide (64 random bits beside the
millisecond) and sort by time. The order in a session is position, never id or timestamp.
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


class _Pool:
    """Random bytes of the system, drawn many at a time.

    Each draw releases the interpreter lock, and a busy thread waits to get it back. No bytes are used
    twice, not even by a forked child.
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


SYSTEM = Factory(now_us=lambda: time.time_ns() // 1000, random=_Pool())

_current: ContextVar[Factory] = ContextVar("limpet_id_factory", default=SYSTEM)


def current() -> Factory:
    """Return the factory in use."""
    return _current.get()


@contextlib.contextmanager
def using(factory: Factory) -> Iterator[None]:
    """Use another factory in the body of a with statement, for tests that need the same ids every time."""
    token = _current.set(factory)
    try:
        yield
    finally:
        _current.reset(token)


def new_id(prefix: str, factory: Factory | None = None) -> str:
    """Return a fresh id: prefix, millisecond, 64 random bits."""
    source = factory or _current.get()
    return f"{prefix}_{source.now_us() // 1000:012x}{source.random(8).hex()}"


def new_session_id(factory: Factory | None = None) -> str:
    """Return a fresh session id with its UTC second readable in it."""
    source = factory or _current.get()
    moment = EPOCH + timedelta(microseconds=source.now_us())
    return f"session_{moment:%Y%m%d_%H%M%S}_{source.random(8).hex()}"


def iso(time_us: int) -> str:
    """Return the moment as ISO 8601, UTC, microseconds, offset written out."""
    second, micros = divmod(time_us, 1_000_000)
    return f"{_second(second)}.{micros:06d}+00:00"


@functools.lru_cache(maxsize=64)
def _second(second: int) -> str:
    return (EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat(timespec="seconds")


def microseconds(moment: str | datetime) -> int:
    """Return the moment as microseconds since 1970; a moment without offset is taken as UTC."""
    parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


def new_stamp(prefix: str) -> tuple[str, str]:
    """Return a fresh id and its moment as ISO 8601, from the factory in force."""
    source = _current.get()
    now = source.now_us()
    return f"{prefix}_{now // 1000:012x}{source.random(8).hex()}", iso(now)
