"""Checks for pages of a copied log, and the staging folder in which a copy is made.

`plan_page` compares a page with the target before the first change and returns what has to be
written. `locked_staging_folder` gives one process at a time a folder beside the target file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from limpet import errors, limits
from limpet.stores import chain
from limpet.stores.chain import is_erased_stream
from limpet.stores.port import RawEvent, RawKey, Store


class CopyTarget(Protocol):
    """The target's present log of one tenant, with which a page is compared."""

    def head(self) -> tuple[int, bytes]:
        """Return position and link of the last event."""
        ...

    def stream_name_and_version(self, number: int, /) -> tuple[str, int] | None:
        """Return name and version of a stream by its number."""
        ...

    def stream_number(self, name: str) -> int:
        """Return the number of the stream that has a name; 0 if none has it."""
        ...

    def link_at(self, position: int) -> bytes:
        """Return the link of an event; nothing if there is none."""
        ...

    def missing_blobs(self, hashes: Collection[bytes]) -> Collection[bytes]:
        """Return the hashes of missing blobs."""
        ...

    def find_raw_key(self, key: str) -> RawKey | None:
        """Return what an idempotency key was used for."""
        ...


class CopyPlan(msgspec.Struct, frozen=True):
    """The changes that a page makes in its target.

    `newly_erased` are existing events that the page erases, `blobs` those that the page's events need, and
    `renamed_streams` those that get the name of an erased stream. `head` is the head of the log after the change.
    """

    newly_erased: list[RawEvent]
    new_events: list[RawEvent]
    blobs: dict[bytes, bytes]
    new_keys: list[RawKey]
    new_streams: dict[int, str]
    renamed_streams: dict[int, str]
    head: tuple[int, bytes]

    def __bool__(self) -> bool:
        """Whether the page changes the target."""
        return bool(self.newly_erased or self.new_events or self.new_keys)


def raw_event_row(raw: RawEvent) -> chain.EventRow:
    place = chain.EventAddress(raw.position, raw.number, raw.version)
    return chain.EventRow(place, raw.header, raw.payload, raw.salt, raw.digest, raw.link)


def plan_page(
    there: CopyTarget, events: Sequence[RawEvent], blobs: Mapping[bytes, bytes], keys: Sequence[RawKey]
) -> CopyPlan:
    """Return what a page adds; raise Conflict or Corrupt, as `Store.paste` does, if it does not fit."""
    for hash_, content in blobs.items():
        if not chain.blob_matches(hash_, content):
            raise chain.damaged_blob_error(hash_)
    begin, link = there.head()
    again = [raw for raw in events if raw.position <= begin]
    new = list(events[len(again) :])
    for raw in again:
        _check_intact(raw)
        if raw.erased is None:
            raise _wrong_position_error(raw, begin)
        if raw.link != there.link_at(raw.position):
            raise _other_log_error(raw)
    for position, raw in enumerate(new, start=begin + 1):
        link = _check_next(raw, position, link, first=position == begin + 1)
    wanted = {hash_: raw.position for raw in events for hash_ in raw.blobs}
    _check_blobs(there, wanted, blobs)
    streams = _PageStreams(there)
    for raw in events:
        streams.take(raw, new=raw.position > begin)
    end = begin + len(new)
    fresh = [key for key in keys if not _key_exists(there, key, end)]
    needed = {hash_: content for hash_, content in blobs.items() if hash_ in wanted}
    return CopyPlan(again, new, needed, fresh, streams.added, streams.renamed, (end, link))


def _check_next(raw: RawEvent, position: int, link: bytes, *, first: bool) -> bytes:
    if raw.position != position:
        raise _wrong_position_error(raw, position - 1)
    _check_intact(raw)
    if not chain.is_linked(raw_event_row(raw), link):
        if first and position > 1:
            raise _other_log_error(raw)
        raise chain.damaged_event_error(raw_event_row(raw).address, "it is not linked to the one before")
    return raw.link


def _check_intact(raw: RawEvent) -> None:
    chain.decode_event(raw_event_row(raw), raw.stream)
    if (raw.payload is None) != (raw.erased is not None):
        raise chain.unexplained_erasure_error(raw_event_row(raw).address)


def _check_blobs(there: CopyTarget, wanted: dict[bytes, int], blobs: Mapping[bytes, bytes]) -> None:
    lacking = there.missing_blobs([hash_ for hash_ in wanted if hash_ not in blobs])
    for hash_ in sorted(lacking, key=wanted.__getitem__):
        raise errors.Corrupt(
            chain.missing_blob_fault(hash_, wanted[hash_]),
            hint="Nothing was changed. Give the blob along with the events that refer to it.",
            facts={"blob": hash_.hex(), "position": wanted[hash_]},
        )


def _key_exists(there: CopyTarget, key: RawKey, end: int) -> bool:
    found = there.find_raw_key(key.key)
    if (found is None and key.last <= end) or found == key:
        return found is not None
    raise errors.Conflict(
        f"the idempotency key {key.key!r} was used for something else here, or for what is not here.",
        facts={"key": key.key, "last": key.last, "head": end},
    )


class _PageStreams:
    """Names and versions of the streams of a page, after the events passed to `take`."""

    def __init__(self, there: CopyTarget) -> None:
        self._there = there
        self._versions: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self.added: dict[int, str] = {}
        self.renamed: dict[int, str] = {}

    def take(self, raw: RawEvent, *, new: bool) -> None:
        if new and raw.number == raw.position:
            self._add(raw)
        elif raw.number not in self._versions:
            known = self._there.stream_name_and_version(raw.number)
            if known is None:
                raise chain.damaged_event_error(raw_event_row(raw).address, "the stream that it belongs to is missing")
            self._names[raw.number], self._versions[raw.number] = known
        self._name(raw)
        if new:
            self._follow(raw)

    def _add(self, raw: RawEvent) -> None:
        holder = self._there.stream_number(raw.stream)
        if (holder and holder not in self.renamed) or raw.stream in self.added.values():
            raise errors.Conflict(f"another stream is called {raw.stream!r} already.", facts={"stream": raw.stream})
        self.added[raw.number] = self._names[raw.number] = raw.stream
        self._versions[raw.number] = 0

    def _name(self, raw: RawEvent) -> None:
        name = self._names[raw.number]
        if name == raw.stream or is_erased_stream(name):
            return
        if not is_erased_stream(raw.stream):
            raise errors.Conflict(f"the stream {raw.stream!r} is called {name!r} here.", facts={"stream": raw.stream})
        self._names[raw.number] = raw.stream
        names = self.added if raw.number in self.added else self.renamed
        names[raw.number] = raw.stream

    def _follow(self, raw: RawEvent) -> None:
        before = self._versions[raw.number]
        if raw.base is not None:
            before = max(before, raw.base[1])
        if raw.version != before + 1:
            raise chain.damaged_event_error(raw_event_row(raw).address, "it does not follow the version before")
        self._versions[raw.number] = raw.version


def _wrong_position_error(raw: RawEvent, head: int) -> errors.Conflict:
    return errors.Conflict(
        f"the feed is at position {head:,}; the event at position {raw.position:,} does not go on from there.",
        hint="Ask for the head and go on after it.",
        facts={"head": head, "position": raw.position},
    )


def _other_log_error(raw: RawEvent) -> errors.Conflict:
    return errors.Conflict(
        f"the event at position {raw.position:,} belongs to another log than what is here.",
        hint="Copy into a store that is empty, or that has a part of the same log.",
        facts={"position": raw.position},
    )


def staging_folder(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


@contextlib.contextmanager
def locked_staging_folder(target: Path) -> Iterator[Path]:
    """Yield the folder in which a file is built, to one process at a time; delete it when the body ends.

    After an exception the folder and its content stay for the next attempt. Raises InvalidRequest if it is locked.
    """
    folder = staging_folder(target)
    fd = _open_staging_lock(folder / "making", target)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _staging_busy_error(target) from error
        if not _is_same_file(fd, folder / "making"):
            # The last holder of the lock has deleted the folder meanwhile.
            raise _staging_busy_error(target)
        yield folder
        # Leftovers do no harm: the finished file has been moved to its path.
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(fd)


def _open_staging_lock(lock: Path, target: Path) -> int:
    try:
        lock.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError as error:
        raise errors.InvalidRequest(
            f"{target} can't be made: there is no folder {target.parent}.",
            hint=f"Make it first: mkdir -p {shlex.quote(str(target.parent))}",
        ) from error
    except PermissionError as error:
        raise errors.StoreReadOnly(
            f"{target} can't be written.", hint="Check the permissions of its folder, or name a file in another."
        ) from error
    except OSError as error:
        raise errors.InvalidRequest(
            f"nothing can be made beside {target}: {error.strerror}.",
            hint="Name a file in a folder that exists and may be written to.",
        ) from error


def _is_same_file(fd: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), lock.stat())
    except FileNotFoundError:
        return False


def _staging_busy_error(target: Path) -> errors.InvalidRequest:
    return errors.InvalidRequest(f"another process is writing {target}.", hint="Wait for it, or name another file.")


COPY_NOTE: Final = "arriving"


def is_copy_incomplete(store: Store, tenant: str) -> bool:
    """Return whether a copy of a tenant into this store has not been completed."""
    try:
        return store.note(tenant, COPY_NOTE) is not None
    except errors.EventsLost:
        raise
    except errors.Corrupt:
        # A damaged note must not prevent reading; if nothing can be read, `head` raises.
        store.head(tenant)
        return False


def refuse_incomplete_copy(store: Store, tenant: str) -> None:
    """Raise UnsafeStore if the copy of a tenant is incomplete: a write now would make it differ from its source."""
    if is_copy_incomplete(store, tenant):
        raise errors.UnsafeStore(
            f"a copy of tenant {tenant!r} into this store is incomplete.",
            hint="Run the same limpet migrate or limpet restore again: it goes on where it was stopped."
            " To use what has come so far instead: limpet rebuild --give-up-copy.",
            facts={"tenant": tenant},
        )


def set_note(store: Store, tenant: str, name: str, value: bytes | None) -> bool:
    """Set a note of a copy, or drop it (None); return whether that changed it."""
    for _ in range(limits.RETRIES_MAX):
        found = store.note(tenant, name)
        if (found.value if found else None) == value:
            return False
        if store.put_note(tenant, name, value, expected=found.version if found else 0):
            return True
    raise errors.Unavailable("other processes keep changing the target's notes; retry when no process uses it.")


class CopyMarks:
    """The "copy incomplete" marks of one running copy. Knows which tenants were usable before it."""

    def __init__(self, source: Store, target: Store) -> None:
        self._source, self._target = source, target
        self._usable_before: dict[str, bool] = {}
        """By tenant, whether it was usable before the copy: complete, or without any event."""

    def mark(self, tenant: str) -> None:
        """Mark a tenant's copy as incomplete; raise InvalidRequest if source and target are the same store."""
        refuse_incomplete_copy(self._source, tenant)
        put = set_note(self._target, tenant, COPY_NOTE, b"unfinished")
        self._usable_before.setdefault(tenant, put)
        if is_copy_incomplete(self._source, tenant):
            set_note(self._target, tenant, COPY_NOTE, None)
            raise errors.InvalidRequest("source and target are the same store.", hint="Name another store to copy to.")

    def unmark_unchanged(self, changed: Iterable[str]) -> None:
        """Remove the mark from tenants that were usable before the copy, except `changed`."""
        kept = frozenset(changed)
        for tenant, usable in self._usable_before.items():
            if usable and tenant not in kept:
                set_note(self._target, tenant, COPY_NOTE, None)

    def unmark_all(self) -> None:
        """Remove the mark from every tenant."""
        for tenant in self._usable_before:
            set_note(self._target, tenant, COPY_NOTE, None)
