"""Pages of a log that is copied: whether they fit onto what is there. Pure rules, the same on every backend.

A backend looks a page through with `fit` before its first change, inside its turn; what comes back can be put
without a second look.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from limpet import errors
from limpet.store import chain
from limpet.store.erasure import is_erased
from limpet.store.port import Raw, RawKey


class There(Protocol):
    """What is there of one tenant: whatever a page has to be compared with."""

    def head(self) -> tuple[int, bytes]:
        """Return position and link of its last event."""
        ...

    def stream(self, number: int, /) -> tuple[str, int] | None:
        """Return name and version of a stream by its number."""
        ...

    def number(self, name: str) -> int:
        """Return the number of the stream that has a name; 0 if none has it."""
        ...

    def link(self, position: int) -> bytes:
        """Return the link of an event; nothing if there is none."""
        ...

    def lacks(self, hashes: Collection[bytes]) -> Collection[bytes]:
        """Return those of the blobs that are not there."""
        ...

    def key(self, key: str) -> RawKey | None:
        """Return what an idempotency key was used for."""
        ...


class Fit(msgspec.Struct, frozen=True):
    """What a page brings: events that are erased here as well, new ones, blobs that they need, keys that are not there.

    `streams` are new ones by their numbers, `renamed` those that take the name of an erased one. `end` is the head
    that this leads to.
    """

    again: list[Raw]
    new: list[Raw]
    blobs: dict[bytes, bytes]
    keys: list[RawKey]
    streams: dict[int, str]
    renamed: dict[int, str]
    end: tuple[int, bytes]

    def __bool__(self) -> bool:
        """Whether it brings anything."""
        return bool(self.again or self.new or self.keys)


def row_of(raw: Raw) -> chain.Row:
    """Return an event's columns."""
    place = chain.Place(raw.position, raw.number, raw.version)
    return chain.Row(place, raw.header, raw.payload, raw.salt, raw.digest, raw.link)


def fit(
    there: There, events: Sequence[Raw], blobs: Mapping[bytes, bytes], keys: Sequence[RawKey]
) -> Fit:
    """Return what a page brings; raise Conflict or Corrupt, as the port says, if it does not fit."""
    for hash_, content in blobs.items():
        if not chain.is_blob(hash_, content):
            raise chain.damaged_blob(hash_)
    begin, link = there.head()
    again = [raw for raw in events if raw.position <= begin]
    new = list(events[len(again) :])
    for raw in again:
        _check_again(raw, there.link(raw.position), begin)
    for position, raw in enumerate(new, start=begin + 1):
        link = _check_next(raw, position, link, first=position == begin + 1)
    wanted = {hash_: raw.position for raw in events for hash_ in raw.blobs}
    _check_blobs(there, wanted, blobs)
    streams = _Streams(there)
    for raw in events:
        streams.take(raw, new=raw.position > begin)
    end = begin + len(new)
    fresh = [key for key in keys if not _is_there(there, key, end)]
    needed = {hash_: content for hash_, content in blobs.items() if hash_ in wanted}
    return Fit(again, new, needed, fresh, streams.added, streams.renamed, (end, link))


def _check_again(raw: Raw, link: bytes, head: int) -> None:
    _check_whole(raw)
    if raw.erased is None:
        raise _elsewhere(raw, head)
    if raw.link != link:
        raise _another_log(raw)


def _check_next(raw: Raw, position: int, link: bytes, *, first: bool) -> bytes:
    if raw.position != position:
        raise _elsewhere(raw, position - 1)
    _check_whole(raw)
    if not chain.linked(row_of(raw), link):
        if first and position > 1:
            raise _another_log(raw)
        raise chain.damaged(row_of(raw).place, "it is not linked to the one before")
    return raw.link


def _check_whole(raw: Raw) -> None:
    chain.opened(row_of(raw), raw.stream)
    if (raw.payload is None) != (raw.erased is not None):
        raise chain.damaged(
            row_of(raw).place, "its content is gone, and nothing says that it was erased"
        )


def _check_blobs(there: There, wanted: dict[bytes, int], blobs: Mapping[bytes, bytes]) -> None:
    lacking = there.lacks([hash_ for hash_ in wanted if hash_ not in blobs])
    for hash_ in sorted(lacking, key=wanted.__getitem__):
        raise errors.Corrupt(
            chain.missing_blob(hash_, wanted[hash_]),
            hint="Nothing was changed. Give the blob along with the events that refer to it.",
            facts={"blob": hash_.hex(), "position": wanted[hash_]},
        )


def _is_there(there: There, key: RawKey, end: int) -> bool:
    found = there.key(key.key)
    if (found is None and key.last <= end) or found == key:
        return found is not None
    raise errors.Conflict(
        f"the idempotency key {key.key!r} was used for something else here, or for what is not here.",
        facts={"key": key.key, "last": key.last, "head": end},
    )


class _Streams:
    """The streams of a page, each as it is after the events that were taken."""

    def __init__(self, there: There) -> None:
        self._there = there
        self._versions: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self.added: dict[int, str] = {}
        self.renamed: dict[int, str] = {}

    def take(self, raw: Raw, *, new: bool) -> None:
        if new and raw.number == raw.position:
            self._add(raw)
        elif raw.number not in self._versions:
            known = self._there.stream(raw.number)
            if known is None:
                raise chain.damaged(row_of(raw).place, "the stream that it belongs to is missing")
            self._names[raw.number], self._versions[raw.number] = known
        self._name(raw)
        if new:
            self._follow(raw)

    def _add(self, raw: Raw) -> None:
        holder = self._there.number(raw.stream)
        if (holder and holder not in self.renamed) or raw.stream in self.added.values():
            raise errors.Conflict(
                f"another stream is called {raw.stream!r} already.", facts={"stream": raw.stream}
            )
        self.added[raw.number] = self._names[raw.number] = raw.stream
        self._versions[raw.number] = 0

    def _name(self, raw: Raw) -> None:
        name = self._names[raw.number]
        if name == raw.stream or is_erased(name):
            return
        if not is_erased(raw.stream):
            raise errors.Conflict(
                f"the stream {raw.stream!r} is called {name!r} here.", facts={"stream": raw.stream}
            )
        self._names[raw.number] = raw.stream
        names = self.added if raw.number in self.added else self.renamed
        names[raw.number] = raw.stream

    def _follow(self, raw: Raw) -> None:
        before = self._versions[raw.number]
        if raw.base is not None:
            before = max(before, raw.base[1])
        if raw.version != before + 1:
            raise chain.damaged(row_of(raw).place, "it does not follow the version before")
        self._versions[raw.number] = raw.version


def _elsewhere(raw: Raw, head: int) -> errors.Conflict:
    return errors.Conflict(
        f"the feed is at position {head:,}; the event at position {raw.position:,} does not go on from there.",
        hint="Ask for the head and go on after it.",
        facts={"head": head, "position": raw.position},
    )


def _another_log(raw: Raw) -> errors.Conflict:
    return errors.Conflict(
        f"the event at position {raw.position:,} belongs to another log than what is here.",
        hint="Copy into a store that is empty, or that has a part of the same log.",
        facts={"position": raw.position},
    )
