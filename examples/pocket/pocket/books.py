"""What the file has of each tenant, as values that can be written; and how a change is made to them."""

from __future__ import annotations

import msgspec

from limpet.stores.server.driver import (
    FeedHead,
    FeedRow,
    KeyRow,
    NoteRow,
    ProjectionRow,
    SnapshotRow,
    StreamRow,
    TenantChange,
)

replace = msgspec.structs.replace


class Books(msgspec.Struct):
    """What is kept of one tenant."""

    head: FeedHead = FeedHead()
    streams: dict[int, StreamRow] = {}
    rows: list[FeedRow] = []
    claims: dict[tuple[int, str], int] = {}
    keys: dict[str, KeyRow] = {}
    projections: dict[tuple[str, str], ProjectionRow] = {}
    snapshots: dict[int, SnapshotRow] = {}
    blobs: dict[bytes, bytes] = {}
    uses: set[tuple[int, bytes]] = set()
    notes: dict[str, NoteRow] = {}
    noted: int = 0

    def stream(self, stream: str | int) -> StreamRow | None:
        """Return a stream by name or number."""
        if isinstance(stream, int):
            return self.streams.get(stream)
        return next((each for each in self.streams.values() if each.name == stream), None)

    def number(self, position: int) -> int:
        """Return the number of the stream that an event belongs to."""
        return self.rows[position - 1].event.address.stream

    def taken(self, change: TenantChange) -> bool:
        """Whether something that a change adds is there already."""
        renamed = {number: name for number, name, _ in change.renames}
        names = {renamed.get(number, stream.name) for number, stream in self.streams.items()}
        claims = {place for place in self.claims if place[0] not in change.drop_claims}
        return (
            any(stream.number in self.streams or stream.name in names for stream in change.streams)
            or any(kept.event.address.position <= len(self.rows) for kept in change.rows)
            or any((stretch, text) in claims for stretch, text, _ in change.claims)
            or any(each.key in self.keys.keys() - change.drop_keys for each in change.keys)
        )

    def take(self, change: TenantChange) -> None:
        """Make a change that was looked at."""
        self.drop(change)
        for number, name, mark in change.renames:
            self.streams[number] = replace(self.streams[number], name=name, checksum=mark)
            for at, kept in enumerate(self.rows):
                if kept.event.address.stream == number:
                    self.rows[at] = replace(kept, stream=name)
        for position, blank in change.erasures:
            kept = self.rows[position - 1]
            row = replace(kept.event, payload=None, salt=None)
            self.rows[position - 1] = replace(kept, event=row, erasure=blank)
        self.streams |= {stream.number: stream for stream in change.streams}
        for number, base in change.bases:
            stream = self.streams[number]
            self.streams[number] = replace(stream, bases=(*stream.bases, base))
        for kept in change.rows:
            self.rows.append(kept)
            place = kept.event.address
            self.streams[place.stream] = replace(self.streams[place.stream], version=place.version)
        self.keys |= {each.key: each for each in change.keys}
        self.blobs |= change.blobs
        self.snapshots |= {
            stream.number: each for each in change.snapshots if (stream := self.stream(each.snapshot.stream))
        }
        self.derive(change)
        self.head = change.after

    def drop(self, change: TenantChange) -> None:
        """Drop what a change takes away."""
        for place in change.drop_projections:
            self.projections.pop(place, None)
        for number in change.drop_snapshots:
            self.snapshots.pop(number, None)
        for key in change.drop_keys:
            self.keys.pop(key, None)
        for hash_ in change.drop_blobs:
            self.blobs.pop(hash_, None)
        if change.drop_claims:
            kept = self.claims.items()
            self.claims = {p: v for p, v in kept if p[0] not in change.drop_claims}
        if change.drop_blob_uses:
            gone = change.drop_blob_uses
            self.uses = {use for use in self.uses if self.number(use[0]) not in gone}

    def derive(self, change: TenantChange) -> None:
        """Put what is derived."""
        self.claims |= {(stretch, text): version for stretch, text, version in change.claims}
        self.uses |= set(change.blob_uses)
        for kept in change.projections:
            self.projections[kept.projection.kind, kept.projection.id] = kept


class Everything(msgspec.Struct):
    """What the file has: the books of each tenant, and what erasures left to do."""

    tenants: dict[str, Books] = {}
    pending: bytes | None = None
