"""Erasing, inside one open transaction: payloads go, notices come, what is derived is made again. Nothing here commits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import apsw
import msgspec

from limpet import limits
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
from limpet.store.sqlite import opening, reading, writing
from limpet.store.sqlite.anchor import Head
from limpet.store.sqlite.known import Known
from limpet.store.sqlite.rows import (
    NUMBER_MASK,
    TENANT_SHIFT,
    head_of,
    mark,
    number,
    row_of,
    within,
)


class Going:
    """One erasure on its way, over the writing connection of the holder of the turn."""

    def __init__(
        self,
        connection: apsw.Connection,
        erasure: Erasure,
        derive: port.Derive,
        random: Callable[[int], bytes],
    ) -> None:
        self._connection = connection
        self._erasure = erasure
        self._derive = derive
        self._sql = opening.queries()
        # A memory of its own: names change on the way.
        self._known = Known()
        self._tenant = self._known.tenant(connection, erasure.tenant)
        self._base = self._tenant << TENANT_SHIFT
        self._batch = writing.Batch(connection.cursor(), self._known, random, careful=True)
        self._events = self._claims = self._rows = 0
        self._hashes: set[str] = set()
        self._drops: dict[tuple[str, str], None] = {}

    def stale(self) -> port.Stale | None:
        """Return what is not as expected: the feed's head, or the first stream that is at another version."""
        if self._erasure.head not in (None, self._next - 1):
            return port.Stale("", self._next - 1)
        for share in self._erasure.shares:
            actual = number(self._connection, self._sql["stream_version"], (self._key(share),))
            if actual != share.expected or not actual:
                return port.Stale(share.stream, actual)
        return None

    def _key(self, share: Share) -> int:
        return number(self._connection, self._sql["stream_key"], (self._tenant, share.stream))

    def run(self) -> tuple[Erased, dict[int, Head]]:
        """Erase; return what went, and the heads that this leads to."""
        shares = self._erasure.shares
        keys = [self._key(share) for share in shares]
        for share, key in zip(shares, keys, strict=True):
            self._forget_derived(share, key)
        writes = [
            self._take_out(share, key, self._next + at)
            for at, (share, key) in enumerate(zip(shares, keys, strict=True))
        ]
        appended = self._batch.append(
            port.Append(
                tenant=self._erasure.tenant, writes=tuple(writes), drops=tuple(self._drops),
                time_us=self._erasure.time_us,
            )
        )  # fmt: skip
        assert isinstance(appended, port.Appended), "versions were looked at under the turn"
        for share, key in zip(shares, keys, strict=True):
            if not share.whole:
                self._derive_again(share, key)
        return self._told(), self._batch.heads

    @functools.cached_property
    def _next(self) -> int:
        row = self._connection.execute(
            self._sql["head"], (self._base, self._base | NUMBER_MASK)
        ).fetchone()
        return head_of(row).position + 1

    def _forget_derived(self, share: Share, key: int) -> None:
        """Drop all that is derived from a stream; its rows are known by deriving them once more."""
        rows, _ = derived_rows(share, lambda: self._derived(share.stream, key))
        self._drops |= dict.fromkeys(rows)
        run, sql = self._connection.execute, self._sql
        self._hashes.update(str(found) for (found,) in run(sql["hashes_of"], (key,)))
        stretches = [key, *(made for (made,) in run(sql["stretches_of"], (key,)))]
        run(sql["drop_claims"], (msgspec.json.encode(stretches).decode(),))
        self._claims += self._connection.changes()
        run(sql["drop_uses"], (key,))
        run(sql["drop_snapshot"], (key,))

    def _derived(self, name: str, key: int) -> port.Derived:
        blobs = functools.partial(reading.blobs, self._connection, self._tenant)
        return self._derive(name, own_events(self._connection, key, name), blobs)

    def _take_out(self, share: Share, key: int, position: int) -> port.StreamWrite:
        """Take payloads out of one stream; return the write of its notice, which gets that position."""
        stand_ins = {each.position: each for each in share.stand_ins}
        gone: list[tuple[int, bytes]] = []
        ordinal = 0
        for event, header, digest, blank in self._connection.execute(
            self._sql["own_events"], (key,)
        ).fetchall():
            assert (
                isinstance(event, int) and isinstance(header, bytes) and isinstance(digest, bytes)
            )
            at, kind, ordinal = event & NUMBER_MASK, *chain.kind_and_ordinal(header)
            stand_in = stand_ins.pop(at, None)
            if is_notice(kind) or not (share.whole or stand_in):
                continue
            self._blank(event, self._base | position, stand_in)
            if not blank:
                gone.append((at, digest))
        assert not stand_ins, "a stand-in is for an event of its stream"
        self._events += len(gone)
        name = share.stream
        if share.whole:
            name = erased_name(key & NUMBER_MASK)
            check = mark(key, self._tenant, name)
            self._connection.execute(self._sql["rename_stream"], (name, check, key))
        told = notice(share.kind, self._erasure.time_us, ordinal, proof(gone))
        return port.StreamWrite(name, share.expected, (told,))

    def _blank(self, event: int, by: int, stand_in: StandIn | None) -> None:
        run, sql = self._connection.execute, self._sql
        # One that was erased before keeps the notice that proves it.
        by = number(self._connection, sql["erased_row"], (event,)) or by
        cause = self._base | stand_in.cause if stand_in else 0
        payload = stand_in.payload if stand_in else None
        run(sql["blank_event"], (event,))
        row = (event, by, cause, payload)
        run(sql["put_erased"], (*row, mark(*row)))
        for content in stand_in.blobs if stand_in else ():
            run(sql["add_blob"], (self._tenant, chain.blob_hash(content), content))

    def _derive_again(self, share: Share, key: int) -> None:
        self._batch.derive(self._tenant, key, self._derived(share.stream, key))

    def _told(self) -> Erased:
        run, sql, changes = self._connection.execute, self._sql, self._connection.changes
        run(sql["drop_keys"], (self._tenant,))
        keys = changes()
        run(sql["drop_blobs"], (self._tenant, msgspec.json.encode(sorted(self._hashes)).decode()))
        blobs = changes()
        run(sql["count_rebuild"])
        run(sql["put_pending"], (self._erasure.todo,))
        return Erased(
            events=self._events, blobs=blobs, keys=keys, claims=self._claims, rows=len(self._drops),
            link=self._batch.heads[self._tenant].link,
        )  # fmt: skip


def own_events(connection: apsw.Connection, key: int, name: str) -> Iterator[port.StoredEvent]:
    """Yield the events that a stream has itself, those that a rewind has left out included."""
    after, query = 0, opening.queries()["read_stream"]
    while found := connection.execute(query, (key, after, 1 << 60, limits.READ_CHUNK)).fetchall():
        for event in reading.opened(connection, found, name):
            after = event.version
            yield event


def faults(connection: apsw.Connection) -> Iterator[str]:
    """Yield what is wrong with what is said to be erased: marks, notices, proofs, and what nothing explains."""
    sql = opening.queries()
    groups: dict[int, list[tuple[int, int, bytes]]] = {}
    for row in connection.execute(sql["every_erased"]):
        match row:
            case (int(event), int(by), int(), _, bytes(check), int(stream), bytes(digest), 1) if (
                check == mark(*row[:4])
            ):
                groups.setdefault(by, []).append((event, stream, digest))
            case _:
                yield "a row of erased is damaged."
    for by, gone in groups.items():
        yield from _notice_faults(connection, by, gone)
    for key, version in connection.execute(sql["unexplained"]):
        # In a damaged file either may be anything.
        place = chain.Place(within(key), 0, version if isinstance(version, int) else 0)
        yield chain.damaged(
            place, "its content is gone, and nothing says that it was erased"
        ).message


def _notice_faults(
    connection: apsw.Connection, by: int, gone: list[tuple[int, int, bytes]]
) -> Iterator[str]:
    first = gone[0][0] & NUMBER_MASK
    raw = connection.execute(opening.queries()["event_at"], (by,)).fetchone()
    if raw is not None:
        row, streams = row_of(raw), {stream for _, stream, _ in gone}
        kind, _ = chain.kind_and_ordinal(row.header)
        said = proof((event & NUMBER_MASK, digest) for event, _, digest in gone)
        later = all(event < by for event, _, _ in gone)
        if (
            is_notice(kind)
            and later
            and streams == {raw[1]}
            and row.payload == msgspec.json.encode(said)
        ):
            return
    yield f"{len(gone):,} event(s), from position {first:,} on, are erased, but no notice in the log says so."
