"""Stores that copy a log other than it is: the suite has to notice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from limpet.stores import chain
from limpet.stores.port import RawEvent, RawKey
from limpet.stores.volatile import VolatileStore

replace = msgspec.structs.replace
NO_BLOBS: Mapping[bytes, bytes] = {}


class CopiesWithoutRewinds(VolatileStore):
    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[RawEvent]:
        found = super().copy_events(tenant, after=after, limit=limit)
        return [replace(raw, base=None) if raw.base and raw.base[0] == raw.number else raw for raw in found]


class CopiesUnchecked(VolatileStore):
    """Gives what is damaged as if it were not."""

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[RawEvent]:
        made: list[RawEvent] = []
        for kept in self._driver.feed(tenant, after=after, limit=limit):
            row, place = kept.event, kept.event.address
            made.append(
                RawEvent(
                    stream=kept.stream, position=place.position, number=place.stream,
                    version=place.version, header=row.header, payload=row.payload, salt=row.salt,
                    digest=row.digest, link=row.link,
                )
            )  # fmt: skip
        return made


class CopiesOneEventLess(VolatileStore):
    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[RawEvent]:
        return super().copy_events(tenant, after=after, limit=limit - 1 or 1)


class KeysByAge(VolatileStore):
    def copy_keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[RawKey]:
        found = super().copy_keys(tenant, after=after, limit=limit)
        return sorted(found, key=lambda key: key.first)


class Pasting(VolatileStore):
    """Pastes something else than what it was given."""

    def paste(
        self,
        tenant: str,
        events: Sequence[RawEvent],
        *,
        blobs: Mapping[bytes, bytes] = NO_BLOBS,
        keys: Sequence[RawKey] = (),
    ) -> None:
        super().paste(tenant, self.rewritten(tenant, events), blobs=blobs, keys=keys)

    def rewritten(self, tenant: str, events: Sequence[RawEvent]) -> Sequence[RawEvent]:
        return events


class PastesOnTrust(Pasting):
    """Makes digests and links fit what it was given."""

    def rewritten(self, tenant: str, events: Sequence[RawEvent]) -> Sequence[RawEvent]:
        made: list[RawEvent] = []
        link = chain.GENESIS_LINK
        for raw in events:
            digest = raw.digest
            if raw.payload is not None and raw.salt is not None:
                digest = chain.event_digest(raw.salt, raw.header, raw.payload)
            link = chain.next_link(link, digest, raw.header)
            made.append(replace(raw, digest=digest, link=link))
        return made


class PastesWhatItLikes(Pasting):
    """Passes over what does not follow its head."""

    def rewritten(self, tenant: str, events: Sequence[RawEvent]) -> Sequence[RawEvent]:
        head = self.head(tenant)
        return [raw for raw in events if raw.position > head]


class PastesByPieces(VolatileStore):
    def paste(
        self,
        tenant: str,
        events: Sequence[RawEvent],
        *,
        blobs: Mapping[bytes, bytes] = NO_BLOBS,
        keys: Sequence[RawKey] = (),
    ) -> None:
        for raw in events:
            super().paste(tenant, [raw], blobs=blobs)
        super().paste(tenant, [], keys=keys)


class PastesKeysOverOthers(VolatileStore):
    def paste(
        self,
        tenant: str,
        events: Sequence[RawEvent],
        *,
        blobs: Mapping[bytes, bytes] = NO_BLOBS,
        keys: Sequence[RawKey] = (),
    ) -> None:
        for key in keys:
            if tenant in self._server.tenants:
                self._server.tenants[tenant].keys.pop(key.key, None)
        super().paste(tenant, events, blobs=blobs, keys=keys)


class PastesWithoutBlobs(VolatileStore):
    """Takes events whose blobs did not come."""

    def paste(
        self,
        tenant: str,
        events: Sequence[RawEvent],
        *,
        blobs: Mapping[bytes, bytes] = NO_BLOBS,
        keys: Sequence[RawKey] = (),
    ) -> None:
        missing = {hash_ for raw in events for hash_ in raw.blobs if hash_ not in blobs}
        fewer = [replace(raw, blobs=tuple(h for h in raw.blobs if h not in missing)) for raw in events]
        super().paste(tenant, fewer, blobs=blobs, keys=keys)


class KeepsWhatWasErasedMeanwhile(Pasting):
    def rewritten(self, tenant: str, events: Sequence[RawEvent]) -> Sequence[RawEvent]:
        head = self.head(tenant)
        return [raw for raw in events if raw.position > head or raw.erased is None]


class ErasesWhateverItIsTold(Pasting):
    """Takes an erasure for one of its own log."""

    def rewritten(self, tenant: str, events: Sequence[RawEvent]) -> Sequence[RawEvent]:
        own = {raw.position: raw for raw in self.copy_events(tenant, limit=10_000)}
        return [
            replace(
                raw, header=own[raw.position].header, digest=own[raw.position].digest,
                link=own[raw.position].link, number=own[raw.position].number,
                version=own[raw.position].version,
            )
            if raw.position in own and raw.erased
            else raw
            for raw in events
        ]  # fmt: skip


class PastesQuietly(VolatileStore):
    """Scrubs before anybody asked for it."""

    def paste(
        self,
        tenant: str,
        events: Sequence[RawEvent],
        *,
        blobs: Mapping[bytes, bytes] = NO_BLOBS,
        keys: Sequence[RawKey] = (),
    ) -> None:
        super().paste(tenant, events, blobs=blobs, keys=keys)
        self.scrub(self.pending_erasures() or b"")


PLANTED = {
    CopiesWithoutRewinds: "test_a_copy_shows_the_same",
    CopiesUnchecked: "test_damage_is_not_copied",
    CopiesOneEventLess: "test_pages_are_by_position",
    KeysByAge: "test_keys_are_kept_with_what_they_say",
    PastesOnTrust: "test_what_is_not_as_it_was_written_is_refused",
    PastesWhatItLikes: "test_events_follow_the_head_or_nothing_comes",
    PastesByPieces: "test_what_is_not_whole_is_refused",
    PastesKeysOverOthers: "test_keys_of_something_else_are_refused",
    PastesWithoutBlobs: "test_blobs_come_along_or_nothing_does",
    KeepsWhatWasErasedMeanwhile: "test_what_was_erased_meanwhile_is_erased_in_the_copy",
    ErasesWhateverItIsTold: "test_an_erasure_of_another_log_is_refused",
    PastesQuietly: "test_what_was_erased_meanwhile_is_erased_in_the_copy",
}
