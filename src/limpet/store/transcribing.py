"""The books of one tenant given as they are, and kept the same in others: on lists and dicts."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from limpet.store import chain, paths, portable
from limpet.store.blanking import Blank
from limpet.store.port import Raw, RawKey, Replayed

if TYPE_CHECKING:
    from limpet.store.books import Books


def page(books: Books, after: int, limit: int) -> list[Raw]:
    """Return events after a position as they are kept; raise Corrupt for a damaged one."""
    return [_raw(books, at) for at in range(after + 1, min(len(books.rows), after + limit) + 1)]


def _raw(books: Books, position: int) -> Raw:
    name, row = books.rows[position - 1]
    books.event(position, name)
    stream, blank = books.numbered[row.place.stream], books.erased.get(position)
    based = next((base for base in stream.bases if base.stretch == position), None)
    return Raw(
        stream=name, position=position, number=row.place.stream, version=row.place.version,
        header=row.header, payload=row.payload, salt=row.salt, digest=row.digest, link=row.link,
        base=(based.source, based.version) if based else None,
        blobs=tuple(sorted(books.uses.get(position, ()))),
        erased=(blank.notice, blank.cause, blank.payload) if blank else None,
    )  # fmt: skip


def keys(books: Books, after: str, limit: int) -> list[RawKey]:
    """Return idempotency keys after one, by their text."""
    names = sorted(key for key in books.keys if key > after)
    return [key for name in names[:limit] if (key := There(books).key(name))]


class There:
    """What `portable.fit` compares a page with."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def head(self) -> tuple[int, bytes]:
        """Return position and link of the last event."""
        rows = self._books.rows
        return len(rows), rows[-1][1].link if rows else chain.GENESIS

    def stream(self, number: int) -> tuple[str, int] | None:
        """Return name and version of a stream."""
        found = self._books.numbered.get(number)
        return (self._books.rows[number - 1][0], found.version) if found else None

    def number(self, name: str) -> int:
        """Return the number of the stream that has a name."""
        found = self._books.streams.get(name)
        return found.number if found else 0

    def link(self, position: int) -> bytes:
        """Return the link of an event."""
        return self._books.rows[position - 1][1].link

    def lacks(self, hashes: Collection[bytes]) -> Collection[bytes]:
        """Return those of the blobs that are not there."""
        return [hash_ for hash_ in hashes if hash_ not in self._books.blobs]

    def key(self, key: str) -> RawKey | None:
        """Return what an idempotency key was used for."""
        use = self._books.keys.get(key)
        if use is None:
            return None
        said = use.replayed
        return RawKey(key, said.command_hash, said.first, said.last, use.time_us)


def put(books: Books, fit: portable.Fit) -> None:
    """Keep what fits."""
    for number, name in fit.renamed.items():
        _rename(books, number, name)
    books.blobs.update(fit.blobs)
    for raw in fit.new:
        _add(books, raw, fit.streams.get(raw.number))
    if fit.again:
        _erase_too(books, fit.again)
    for key in fit.keys:
        books.put_key(key.key, Replayed(key.command_hash, key.first, key.last), key.time_us)


def _rename(books: Books, number: int, name: str) -> None:
    stream = books.numbered[number]
    del books.streams[books.rows[number - 1][0]]
    books.streams[name] = stream
    for at in stream.positions:
        books.rows[at - 1] = (name, books.rows[at - 1][1])


def _add(books: Books, raw: Raw, added: str | None) -> None:
    if raw.number == raw.position:
        assert added is not None, "a new stream was looked at"
        books.open_stream(added, raw.number, raw.version)
    stream = books.numbered[raw.number]
    name = books.rows[raw.number - 1][0] if raw.number < raw.position else added
    assert name is not None, "every stream has a name"
    if raw.base is not None:
        stream.bases.append(paths.Base(raw.position, raw.version, *raw.base))
    stream.positions.append(raw.position)
    stream.ordinals.append(chain.kind_and_ordinal(raw.header)[1])
    books.rows.append((name, portable.row_of(raw)))
    _note(books, raw)


def _note(books: Books, raw: Raw) -> None:
    books.uses.pop(raw.position, None)
    if raw.blobs:
        books.uses[raw.position] = raw.blobs
    if raw.erased is not None:
        books.erased[raw.position] = Blank(*raw.erased)


def _erase_too(books: Books, again: list[Raw]) -> None:
    hashes: set[bytes] = set()
    for raw in again:
        hashes.update(books.uses.get(raw.position, ()))
        name, row = books.rows[raw.position - 1]
        books.rows[raw.position - 1] = (name, msgspec.structs.replace(row, payload=None, salt=None))
        _note(books, raw)
    books.drop_erased_keys()
    books.drop_unused(hashes)
