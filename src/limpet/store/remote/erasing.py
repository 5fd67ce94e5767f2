"""Erasing: payloads go, notices come, what is derived is made again; all of it is one change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

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
from limpet.store.remote import marks, reading
from limpet.store.remote.committing import Batch
from limpet.store.remote.deriving import Deriving, Spread
from limpet.store.remote.driver import Blank, Change, Driver, Head, Kept, Stream
from limpet.store.remote.known import Tenant


class Going:
    """One erasure on its way, made for the head that the tenant has now."""

    def __init__(
        self,
        driver: Driver,
        erasure: Erasure,
        derive: port.Derive,
        random: Callable[[int], bytes],
    ) -> None:
        self._driver = driver
        self._erasure = erasure
        self._tenant = erasure.tenant
        self._derive = derive
        self.head = driver.head(erasure.tenant)
        self._batch = Batch(driver, self._tenant, Tenant(self.head), random, careful=True)
        self._streams: list[Stream] = []
        self._blanks: dict[int, Blank] = {}
        self._brought: dict[bytes, bytes] = {}
        self._hashes: set[bytes] = set()
        self._drops: dict[tuple[str, str], None] = {}
        self._events = 0

    def stale(self) -> port.Stale | None:
        """Return what is not as expected: the feed's head, or the first stream that is at another version."""
        if self._erasure.head not in (None, self.head.position):
            return port.Stale("", self.head.position)
        for share in self._erasure.shares:
            stream = reading.found(self._driver, self._tenant, share.stream)
            actual = stream.version if stream is not None else 0
            if stream is None or actual != share.expected:
                return port.Stale(share.stream, actual)
            self._streams.append(stream)
        return None

    def change(self) -> tuple[Change, Erased]:
        """Return the change that erases, and what goes by it."""
        shares = list(zip(self._erasure.shares, self._streams, strict=True))
        for share, stream in shares:
            self._forget_derived(share, stream)
        begin = self.head.position + 1
        writes = [self._take_out(*each, begin + at) for at, each in enumerate(shares)]
        told = port.Append(tenant=self._tenant, writes=tuple(writes), time_us=self._erasure.time_us)
        outcome = self._batch.append(told)
        assert isinstance(outcome, port.Appended), "versions were looked at before"
        notices = self._batch.change()
        made = Spread([], [], [])
        for (share, stream), row in zip(shares, notices.rows, strict=True):
            if not share.whole:
                made.take(self._derived_again(share, stream, row))
        return self._whole(notices, made)

    def _forget_derived(self, share: Share, stream: Stream) -> None:
        """Note all that is derived from a stream, by deriving it once more."""
        events = Deriving(self._driver, self._tenant, stream, share.stream).events()
        rows, before = derived_rows(
            share, lambda: self._derive(share.stream, events, self._contents)
        )
        self._drops |= dict.fromkeys(rows)
        used = (hash_ for hash_, _ in before.blobs) if before else self._used(stream)
        self._hashes.update(used)

    def _used(self, stream: Stream) -> Iterator[bytes]:
        """Yield the blobs that a stream's events are said to refer to, whatever is in them."""
        own = {kept.row.place.position for kept in reading.own(self._driver, self._tenant, stream)}
        after = 0
        while page := self._driver.uses(self._tenant, after=after):
            yield from (hash_ for position, hash_ in page if position in own)
            after = page[-1][0]

    def _contents(self, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        brought = {hash_: self._brought[hash_] for hash_ in hashes if hash_ in self._brought}
        others = [hash_ for hash_ in hashes if hash_ not in brought]
        return brought | reading.blobs(self._driver, self._tenant, others)

    def _take_out(self, share: Share, stream: Stream, position: int) -> port.StreamWrite:
        """Take payloads out of one stream; return the write of its notice, which gets that position."""
        stand_ins = {each.position: each for each in share.stand_ins}
        gone: list[tuple[int, bytes]] = []
        ordinal = 0
        for kept in reading.own(self._driver, self._tenant, stream):
            at = kept.row.place.position
            kind, ordinal = chain.kind_and_ordinal(kept.row.header)
            stand_in = stand_ins.pop(at, None)
            if is_notice(kind) or not (share.whole or stand_in):
                continue
            self._blank(kept, position, stand_in)
            if kept.row.payload is not None:
                gone.append((at, kept.row.digest))
        assert not stand_ins, "a stand-in is for an event of its stream"
        self._events += len(gone)
        name = erased_name(stream.number) if share.whole else share.stream
        self._batch.streams[name] = msgspec.structs.replace(stream, name=name)
        told = notice(share.kind, self._erasure.time_us, ordinal, proof(gone))
        return port.StreamWrite(name, share.expected, (told,))

    def _blank(self, kept: Kept, position: int, stand_in: StandIn | None) -> None:
        at = kept.row.place.position
        # One that was erased before keeps the notice that proves it.
        by = kept.blank.notice if kept.blank is not None else position
        cause, payload = (stand_in.cause, stand_in.payload) if stand_in else (0, None)
        self._blanks[at] = marks.blank(self._tenant, at, by, cause, payload)
        for content in stand_in.blobs if stand_in else ():
            self._brought[chain.blob_hash(content)] = content

    def _derived_again(self, share: Share, stream: Stream, notice: Kept) -> Spread:
        deriving = Deriving(self._driver, self._tenant, stream, share.stream)
        events = deriving.events(self._left(stream, notice))
        return deriving.spread(self._derive(share.stream, events, self._contents))

    def _left(self, stream: Stream, notice: Kept) -> Iterator[Kept]:
        """Yield a stream's own events as they are once the change is made."""
        for kept in reading.own(self._driver, self._tenant, stream):
            blank = self._blanks.get(kept.row.place.position)
            if blank is None:
                yield kept
            else:
                row = msgspec.structs.replace(kept.row, payload=None, salt=None)
                yield Kept(kept.stream, row, kept.ordinal, blank)
        yield notice

    def _unnamed(self, stream: Stream) -> tuple[int, str, bytes]:
        """Return what a stream is called once it is erased, and its mark."""
        made = msgspec.structs.replace(stream, name=erased_name(stream.number))
        return stream.number, made.name, marks.stream(self._tenant, made)

    def _whole(self, notices: Change, made: Spread) -> tuple[Change, Erased]:
        driver, tenant, streams = self._driver, self._tenant, self._streams
        numbers = tuple(stream.number for stream in streams)
        stretches = [*numbers, *(base.stretch for stream in streams for base in stream.bases)]
        keys = driver.keys_of(tenant, list(self._blanks)) if self._blanks else []
        needed = {hash_ for _, hash_ in made.uses}
        unused = driver.unused(tenant, self._hashes, but=numbers) if self._hashes else set[bytes]()
        unused -= needed | set(self._brought)
        head = notices.after
        change = msgspec.structs.replace(
            notices,
            after=Head(head.position, head.link, head.epoch + 1),
            claims=tuple(made.claims),
            uses=tuple(made.uses),
            projections=tuple(made.projections),
            blobs=self._brought,
            blanks=tuple(self._blanks.items()),
            renames=tuple(
                self._unnamed(stream)
                for share, stream in zip(self._erasure.shares, streams, strict=True)
                if share.whole
            ),
            drop_projections=tuple(self._drops),
            drop_claims=tuple(dict.fromkeys(stretches)),
            drop_snapshots=numbers,
            drop_uses=numbers,
            drop_keys=tuple(keys),
            drop_blobs=tuple(unused),
            todo=self._erasure.todo,
        )
        gone = Erased(
            events=self._events, blobs=len(unused), keys=len(keys),
            claims=driver.claims_of(tenant, change.drop_claims), rows=len(self._drops), link=head.link,
        )  # fmt: skip
        return change, gone
