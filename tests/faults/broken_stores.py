"""Stores that break one promise now and then, on any backend: what a checker must catch, or it proves nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from limpet import errors
from limpet.stores import port

NEVER = 999_999
"""A version that no list has: a client that names it means to be refused."""

_SELDOM, _OFTEN = 0.03, 0.3

Commit = Callable[[Sequence[port.Append]], list[port.AppendOutcome]]


class _Bent:
    """Another store, whatever it is not said otherwise about."""

    def __init__(self, store: port.Store, seed: int) -> None:
        self._store = store
        self._rng = random.Random(seed)
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _now(self, often: float = _SELDOM) -> bool:
        with self._lock:
            return self._rng.random() < often


class Flaky(_Bent):
    """No broken promise: a commit's answer is lost now and then, and so is the question."""

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        return lossy(self._store.commit, self._rng)(appends)


def lossy(commit: Commit, rng: random.Random) -> Commit:
    """Return a commit whose question or answer is lost now and then."""

    def lost(appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        roll = rng.random()
        if roll < _SELDOM:
            raise errors.Unavailable("the question was lost, as it was told to be.")
        outcomes = commit(appends)
        if roll < 2 * _SELDOM:
            raise errors.Unavailable("the answer was lost, as it was told to be.")
        return outcomes

    return lost


class _Forgetful(_Bent):
    """Acknowledges what it did not keep."""

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        if self._now() and not _is_doomed(appends[0]):
            return [port.Appended(1, 1) for _ in appends]
        return self._store.commit(appends)


class _Stuttering(_Bent):
    """Keeps something twice."""

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        outcomes = self._store.commit(appends)
        if isinstance(outcomes[0], port.Appended) and self._now():
            self._store.commit([_as_it_is(self._store, appends[0])])
        return outcomes


class _Careless(_Bent):
    """Appends to whatever is there by now, whatever was decided on."""

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        outcomes = self._store.commit(appends)
        if isinstance(outcomes[0], port.Stale) and not _is_doomed(appends[0]):
            return self._store.commit([_as_it_is(self._store, appends[0], key=appends[0].key)])
        return outcomes


class _Denying(_Bent):
    """Says of what it kept that it was refused."""

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        outcomes = self._store.commit(appends)
        if isinstance(outcomes[0], port.Stale) and self._now(_OFTEN):
            self._store.commit([_as_it_is(self._store, appends[0])])
        return outcomes


class _Halving(_Bent):
    """Keeps one stream's share of what belongs together."""

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        (append,) = appends
        if len(append.writes) > 1 and self._now(_OFTEN):
            append = msgspec.structs.replace(append, writes=append.writes[:1])
        return self._store.commit([append])


class _Keyless(Flaky):
    """Answers and questions are lost, and keys are not kept."""

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        return super().commit([msgspec.structs.replace(each, key=None) for each in appends])


class _Remembering(_Bent):
    """Reads what it remembers, which may not be all that there is."""

    def __init__(self, store: port.Store, seed: int) -> None:
        super().__init__(store, seed)
        self._last: dict[tuple[str, str], list[port.StoredEvent]] = {}

    def read(self, tenant: str, stream: str, *, limit: int = 256) -> list[port.StoredEvent]:
        remembered = self._last.get((tenant, stream))
        if remembered is not None and self._now(_OFTEN):
            return remembered
        events = self._store.read(tenant, stream, limit=limit)
        self._last[tenant, stream] = events
        return events


class _Shuffling(_Bent):
    """Reads the last two the other way round."""

    def read(self, tenant: str, stream: str, *, limit: int = 256) -> list[port.StoredEvent]:
        events = self._store.read(tenant, stream, limit=limit)
        if len(events) > 1 and self._now():
            events[-1], events[-2] = events[-2], events[-1]
        return events


class _Hasty(_Bent):
    """Shows an event before one that comes before it, as if that were not committed yet."""

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.StoredEvent]:
        events = self._store.feed(tenant, after=after, limit=limit)
        if len(events) > 1 and self._now():
            del events[-2]
        return events


def _is_doomed(append: port.Append) -> bool:
    return append.writes[0].expected == NEVER


def _as_it_is(store: port.Store, append: port.Append, key: port.KeyUse | None = None) -> port.Append:
    """Return the append on the versions that the streams have now."""
    writes = tuple(
        msgspec.structs.replace(write, expected=store.version(append.tenant, write.stream)) for write in append.writes
    )
    return msgspec.structs.replace(append, writes=writes, key=key)


_BENT: dict[str, Callable[[port.Store, int], _Bent]] = {
    "flaky": Flaky,
    "forgetful": _Forgetful,
    "stuttering": _Stuttering,
    "careless": _Careless,
    "denying": _Denying,
    "halving": _Halving,
    "keyless": _Keyless,
    "remembering": _Remembering,
    "shuffling": _Shuffling,
    "hasty": _Hasty,
}

LOSSY = frozenset({"flaky", "keyless"})
"""Those that lose answers."""

CAUGHT_AS: dict[str, set[str]] = {
    "forgetful": {"lost"},
    "stuttering": {"doubled"},
    "careless": {"lost update", "not serializable", "skewed read", "stale"},
    "denying": {"aborted"},
    "halving": {"torn"},
    "keyless": {"aborted", "doubled"},
    "remembering": {"stale", "lost update", "not serializable", "skewed read"},
    "shuffling": {"reordered"},
}
"""The anomalies, one of which each of them must show as."""


def unguarded(store: port.Store) -> None:
    """Have a store on a server wait for nobody: nothing may rest on the guard that stores have in turn."""
    driver = getattr(store, "_driver", None)
    if driver is not None:
        setattr(driver, "acquire_advisory_lock", lambda tenant, timeout_s: True)  # noqa: B010
        setattr(driver, "release_advisory_lock", lambda tenant: None)  # noqa: B010


def bent(name: str, store: port.Store, seed: int) -> port.Store:
    """Return the store, bent as the name says; without a name as it is."""
    return cast("port.Store", _BENT[name](store, seed)) if name else store
