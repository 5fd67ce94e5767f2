"""Erasing in the books of one tenant: the same rules as on disk, on lists and dicts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from limpet import errors
from limpet.store import chain, port
from limpet.store.erasure import (
    Erased,
    Erasure,
    Share,
    StandIn,
    derived_rows,
    erased_name,
    is_notice,
    notice,
    proof,
)

if TYPE_CHECKING:
    from limpet.store.books import Books, Salts, Stream


class Blank(msgspec.Struct, frozen=True):
    """What became of an erased event: the position of its notice, and what is read in its place."""

    notice: int
    cause: int
    payload: bytes | None = None


def erased(
    books: Books, erasure: Erasure, derive: port.Derive, salts: Salts
) -> tuple[Books, Erased] | port.Stale:
    """Return the books after an erasure, and what went. The books given stay as they are."""
    if erasure.head not in (None, len(books.rows)):
        return port.Stale("", len(books.rows))
    for share in erasure.shares:
        actual = books.version(share.stream)
        if actual != share.expected or not actual:
            return port.Stale(share.stream, actual)
    going = _Going(cloned(books), erasure, derive)
    return going.books, going.run(salts)


def cloned(books: Books) -> Books:
    """Return books that can be changed without changing these."""
    made = copy.copy(books)
    for name in ("rows", "keys", "snapshots", "blobs", "uses", "erased"):
        setattr(made, name, copy.copy(getattr(books, name)))
    made.streams = {name: _stream(stream) for name, stream in books.streams.items()}
    made.numbered = {stream.number: stream for stream in made.streams.values()}
    made.projections = {kind: dict(rows) for kind, rows in books.projections.items()}
    return made


def _stream(stream: Stream) -> Stream:
    made = copy.copy(stream)
    for name in ("positions", "ordinals", "bases", "claims"):
        setattr(made, name, copy.copy(getattr(stream, name)))
    return made


class _Going:
    def __init__(self, books: Books, erasure: Erasure, derive: port.Derive) -> None:
        self.books = books
        self._erasure = erasure
        self._derive = derive
        self._events = self._claims = self._rows = 0
        self._hashes: set[bytes] = set()

    def run(self, salts: Salts) -> Erased:
        books = self.books
        before = len(books.rows)
        for share in self._erasure.shares:
            self._forget_derived(share)
        writes = [
            self._take_out(share, before + 1 + at) for at, share in enumerate(self._erasure.shares)
        ]
        append = port.Append(
            tenant=self._erasure.tenant, writes=tuple(writes), time_us=self._erasure.time_us
        )
        outcome = books.take(append, salts)
        assert isinstance(outcome, port.Appended), "versions were looked at under the lock"
        for share in self._erasure.shares:
            if not share.whole:
                self._derive_again(share)
        keys, blobs = books.drop_erased_keys(), books.drop_unused(self._hashes)
        return Erased(
            events=self._events, blobs=blobs, keys=keys, claims=self._claims,
            rows=self._rows, link=books.rows[-1][1].link,
        )  # fmt: skip

    def _forget_derived(self, share: Share) -> None:
        books = self.books
        stream = books.streams[share.stream]
        rows, _ = derived_rows(share, lambda: books.derived_of(share.stream, self._derive))
        for kind, id_ in rows:
            self._rows += books.projections.get(kind, {}).pop(id_, None) is not None
        self._claims += sum(map(len, stream.claims.values()))
        stream.claims = {}
        for position in stream.positions:
            self._hashes.update(books.uses.pop(position, ()))
        books.snapshots.pop(share.stream, None)

    def _take_out(self, share: Share, position: int) -> port.StreamWrite:
        books, name = self.books, share.stream
        stream = books.streams[name]
        if share.whole:
            name = erased_name(stream.number)
            books.streams[name] = books.streams.pop(share.stream)
            for at in stream.positions:
                books.rows[at - 1] = (name, books.rows[at - 1][1])
        stand_ins = {each.position: each for each in share.stand_ins}
        gone: list[tuple[int, bytes]] = []
        for at in stream.positions:
            row = books.rows[at - 1][1]
            stand_in = stand_ins.pop(at, None)
            if is_notice(chain.kind_and_ordinal(row.header)[0]) or not (share.whole or stand_in):
                continue
            if row.payload is not None:
                gone.append((at, row.digest))
            self._blank(name, row, at, position, stand_in)
        assert not stand_ins, "a stand-in is for an event of its stream"
        self._events += len(gone)
        told = notice(share.kind, self._erasure.time_us, stream.ordinals[-1], proof(gone))
        return port.StreamWrite(name, share.expected, (told,))

    def _blank(
        self, name: str, row: chain.Row, at: int, position: int, stand_in: StandIn | None
    ) -> None:
        books = self.books
        known = books.erased.get(at)
        by = known.notice if known else position
        cause, payload = (stand_in.cause, stand_in.payload) if stand_in else (0, None)
        books.erased[at] = Blank(by, cause, payload)
        books.rows[at - 1] = (name, msgspec.structs.replace(row, payload=None, salt=None))
        for content in stand_in.blobs if stand_in else ():
            books.blobs[chain.blob_hash(content)] = content

    def _derive_again(self, share: Share) -> None:
        books = self.books
        found = books.derived_of(share.stream, self._derive)
        books.streams[share.stream].claim_anew(found.claims)
        books.uses |= books.uses_of(share.stream, found)
        for row in found.projections:
            books.projections.setdefault(row.kind, {})[row.id] = row


def faults(books: Books) -> Iterator[str]:
    """Yield what is wrong with what is said to be erased."""
    groups: dict[int, list[int]] = {}
    for position in sorted(books.erased):
        groups.setdefault(books.erased[position].notice, []).append(position)
    for by, gone in groups.items():
        rows = [books.rows[at - 1] for at in gone]
        said = msgspec.json.encode(proof((row.place.position, row.digest) for _, row in rows))
        name, row = books.rows[by - 1] if 0 < by <= len(books.rows) else ("", None)
        right = row is not None and is_notice(chain.kind_and_ordinal(row.header)[0])
        right = right and row is not None and row.payload == said and gone[-1] < by
        if not right or {stream for stream, _ in rows} != {name}:
            yield f"{len(gone):,} event(s), from position {gone[0]:,} on, are erased, but no notice in the log says so."
    for position, (_, row) in enumerate(books.rows, start=1):
        if row.payload is None and position not in books.erased:
            yield unexplained(row).message


def unexplained(row: chain.Row) -> errors.Corrupt:
    """Return the error for an event whose payload is gone though nothing says that it was erased."""
    return chain.damaged(row.place, "its content is gone, and nothing says that it was erased")
