"""Appends of one tenant become one change: conditions first, then rows. Nothing here reaches the server but looks.

As a rule nothing is looked up: what is known tells the versions, and whether a key, a claim or a name is taken the
server finds out itself when the change is applied. That is rare, and then a `careful` batch asks before each
append, so that each has its own outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from limpet.store import chain, paths, port
from limpet.store.paths import Base, Span
from limpet.store.remote import marks, reading
from limpet.store.remote.driver import (
    Change,
    Driver,
    Head,
    Kept,
    KeptProjection,
    KeptSnapshot,
    Stream,
)
from limpet.store.remote.known import Tenant


class Batch:
    """Appends of one tenant on their way, and what is known once they are there."""

    def __init__(
        self,
        driver: Driver,
        tenant: str,
        known: Tenant,
        random: Callable[[int], bytes],
        *,
        careful: bool,
    ) -> None:
        self._driver = driver
        self._tenant = tenant
        self._known = known
        self._random = random
        self._careful = careful
        self.before = known.head
        """The head that it rests on."""
        self._position, self._link = known.head.position, known.head.link
        self.streams: dict[str, Stream] = {}
        self._numbered: dict[int, Stream] = {}
        self._before: dict[int, tuple[Span, ...]] = {}
        self._new: list[str] = []
        self._bases: list[tuple[int, Base]] = []
        self._rows: list[Kept] = []
        self._claims: dict[tuple[int, str], int] = {}
        self._keys: dict[str, port.RawKey] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._uses: list[tuple[int, bytes]] = []
        self._projections: dict[tuple[str, str], port.Projection | None] = {}
        self._snapshots: dict[int, KeptSnapshot] = {}

    def append(self, append: port.Append) -> port.Outcome:
        """Check one append's conditions and take it; on any other outcome than Appended nothing of it is taken."""
        if append.key is not None and (used := self._replayed(append.key, ask=self._careful)):
            return used
        streams: list[Stream | None] = []
        refused = self._stale(append, streams) or self._taken(append, streams)
        if refused is not None:
            # The key comes first, and was left to the server.
            key = append.key if not self._careful else None
            return (self._replayed(key, ask=True) if key is not None else None) or refused
        begin = self._position + 1
        for write, stream in zip(append.writes, streams, strict=True):
            self._write(write, stream)
        for row in append.projections:
            self._projections[row.kind, row.id] = row
        if append.drops or append.snapshots or append.key is not None:
            self._derive(append, begin)
        return port.Appended(begin, self._position)

    def _stale(self, append: port.Append, streams: list[Stream | None]) -> port.Stale | None:
        """Return the first stream that is at another version than expected; note those that are not."""
        for write in append.writes:
            # What is to be new is looked for by the server.
            stream = self._found(write.stream, ask=self._careful or write.expected > 0)
            actual = stream.version if stream is not None else 0
            if actual != write.expected:
                return port.Stale(write.stream, actual)
            streams.append(stream)
        return None

    def _taken(self, append: port.Append, streams: Sequence[Stream | None]) -> port.Claimed | None:
        for write, stream in zip(append.writes, streams, strict=True):
            if len(write.claims) == 1 and not self._careful and self._is_first(write, stream):
                continue
            if write.claims and (taken := self._claimed(write, stream)):
                return taken
        return None

    def _is_first(self, write: port.StreamWrite, stream: Stream | None) -> bool:
        """Whether a write is the first here to a stream without bases: what that has claimed so far only the server knows."""
        if write.base is not None or (stream is not None and stream.bases):
            return False
        return write.stream not in self.streams

    @property
    def after(self) -> Head:
        """The head that the batch leads to."""
        return Head(self._position, self._link, self.before.epoch)

    @property
    def empty(self) -> bool:
        """Whether nothing was taken."""
        return not self._rows

    def change(self) -> Change:
        """Return all of it as one change."""
        tenant, rows = self._tenant, self._projections
        put = [row for row in rows.values() if row is not None]
        # Most bring rows, claims and projections only: a generator for each of the others would take as long as those.
        return Change(
            tenant=tenant,
            before=self.before,
            after=self.after,
            streams=tuple(map(self._begun, self._new)) if self._new else (),
            bases=tuple(self._bases),
            rows=tuple(self._rows),
            claims=tuple([(*place, version) for place, version in self._claims.items()]),
            keys=tuple([marks.key(tenant, used) for used in self._keys.values()]),
            blobs=self._blobs,
            uses=tuple(self._uses),
            projections=tuple([KeptProjection(row, marks.projection(tenant, row)) for row in put]),
            drop_projections=tuple([place for place, row in rows.items() if row is None]),
            snapshots=tuple(self._snapshots.values()),
            renames=tuple(self._based_anew()) if self._bases else (),
        )

    def _begun(self, name: str) -> Stream:
        stream = self.streams[name]
        mark = marks.stream(self._tenant, stream)
        return msgspec.structs.replace(stream, bases=(), mark=mark)

    def _based_anew(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield the streams that were there and got a base: the name stays, the mark is another."""
        for number in {number: None for number, _ in self._bases}:
            stream = self._numbered[number]
            if stream.name not in self._new:
                yield number, stream.name, marks.stream(self._tenant, stream)

    def committed(self) -> None:
        """It is there: remember what follows from it."""
        known = self._known
        known.head = self.after
        known.streams |= self.streams
        known.before |= self._before

    def _replayed(self, key: port.KeyUse, *, ask: bool) -> port.Replayed | None:
        used = self._keys.get(key.key)
        if used is None and ask:
            kept = self._driver.key(self._tenant, key.key)
            used = marks.checked_key(self._tenant, kept) if kept else None
        return reading.replayed(used) if used else None

    def _found(self, name: str, *, ask: bool) -> Stream | None:
        """Return a stream as it is after what was taken so far; None if it is not there, or nobody asked."""
        found = self.streams.get(name) or self._known.streams.get(name)
        if found is None and ask:
            found = reading.found(self._driver, self._tenant, name)
            if found is not None:
                self._known.streams[name] = found
        return found

    def _claimed(self, write: port.StreamWrite, stream: Stream | None) -> port.Claimed | None:
        spans = self._spans(write, stream)
        found: dict[str, list[tuple[int, int]]] = {}
        # The server tells of a claim in the stretch that is written, not before it.
        if spans and (self._careful or write.base is not None or len(spans) > 1):
            stretches = [span.stretch for span in spans]
            texts = [text for text, _ in write.claims]
            for stretch, text, version in self._driver.claims(self._tenant, texts, stretches):
                found.setdefault(text, []).append((stretch, version))
        made: dict[str, int] = {}
        for text, index in write.claims:
            places = found.get(text, [])
            for span in spans:
                if version := self._claims.get((span.stretch, text)):
                    places = [*places, (span.stretch, version)]
            if taken := (paths.made(spans, places) if places else 0) or made.get(text, 0):
                return port.Claimed(write.stream, text, taken)
            made[text] = write.before + index + 1
        return None

    def _spans(self, write: port.StreamWrite, stream: Stream | None) -> tuple[Span, ...]:
        """Return what a write goes on from."""
        if write.base is not None:
            return self._based(write.base)[1]
        if stream is None:
            return ()
        last = Span(stream.number, _stretch(stream), 1, reading.LATEST)
        return (*self._earlier(stream), last) if stream.bases else (last,)

    def _earlier(self, stream: Stream) -> tuple[Span, ...]:
        """Return what came before the stretch that a stream with bases is written in."""
        found = self._before.get(stream.number) or self._known.before.get(stream.number)
        if found is None:
            *spans, _ = self._path(stream, stream.version)
            found = self._before[stream.number] = tuple(spans)
        return found

    def _based(self, base: tuple[str, int]) -> tuple[int, tuple[Span, ...]]:
        """Return the number of the stream that a base names, and what that is made of there."""
        source = self._found(base[0], ask=True)
        assert source is not None and base[1] <= source.version, (
            "a base names a stream that is there"
        )
        spans = self._path(source, base[1])
        assert paths.end(spans) == base[1], "a base names a version that was"
        return source.number, spans

    def _path(self, stream: Stream, at: int) -> tuple[Span, ...]:
        find = reading.bases(self._driver, self._tenant, *self._numbered.values(), stream)
        return paths.path(stream.number, at, find)

    def _write(self, write: port.StreamWrite, stream: Stream | None) -> None:
        begin, name = self._position + 1, write.stream
        if stream is None:
            stream = Stream(begin, name, write.before + 1, write.before)
            self._new.append(name)
        number, bases = stream.number, stream.bases
        if write.base is not None:
            source, spans = self._based(write.base)
            base = Base(begin, write.before + 1, source, write.base[1])
            self._bases.append((number, base))
            self._before[number] = spans
            bases = (*bases, base)
        version = self._seal(write, number)
        stream = Stream(number, name, stream.first, version, bases)
        self.streams[name] = self._numbered[number] = stream
        if write.claims:
            stretch = _stretch(stream)
            for text, index in write.claims:
                self._claims[stretch, text] = write.before + index + 1

    def _seal(self, write: port.StreamWrite, number: int) -> int:
        """Make the rows of a write's events; return the last one's version."""
        position, version, link, name = self._position, write.before, self._link, write.stream
        random, rows = self._random, self._rows
        for event in write.events:
            position, version, payload = position + 1, version + 1, event.payload
            place = chain.Place(position, number, version)
            header = chain.header(event, place)
            salt = random(chain.SALT_BYTES)
            digest = chain.digest(salt, header, payload)
            link = chain.link(link, digest, header)
            row = chain.Row(place, header, payload, salt, digest, link)
            rows.append(Kept(name, row, event.ordinal))
            if event.blobs:
                self._bring(position, event.blobs)
        self._position, self._link = position, link
        return version

    def _bring(self, position: int, contents: Sequence[bytes]) -> None:
        brought = {chain.blob_hash(content): content for content in contents}
        self._blobs |= brought
        self._uses += [(position, hash_) for hash_ in brought]

    def _derive(self, append: port.Append, begin: int) -> None:
        for place in append.drops:
            self._projections[place] = None
        for snapshot in append.snapshots:
            stream = self._found(snapshot.stream, ask=True)
            assert stream is not None, "a snapshot is of what was written"
            link = self._link_at(stream, snapshot.version)
            mark = marks.snapshot(self._tenant, stream.number, snapshot, link)
            self._snapshots[stream.number] = KeptSnapshot(snapshot, mark)
        if append.key is not None:
            key, hash_ = append.key.key, append.key.command_hash
            self._keys[key] = port.RawKey(key, hash_, begin, self._position, append.time_us)

    def _link_at(self, stream: Stream, version: int) -> bytes:
        place = (stream.number, version)
        for kept in reversed(self._rows):
            if (kept.row.place.stream, kept.row.place.version) == place:
                return kept.row.link
        return reading.link(self._driver, self._tenant, stream.number, version)[1]


def _stretch(stream: Stream) -> int:
    """Return the stretch that a stream is written in."""
    return stream.bases[-1].stretch if stream.bases else stream.number
