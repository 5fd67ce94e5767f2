"""After an erasure: the file written anew, its log emptied, boxes blanked, the list brought up, copies told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw

from limpet import errors, limits
from limpet.store import chain, port
from limpet.store.erasure import Again, Erasure, Share, is_notice
from limpet.store.sqlite import checks, erasures, opening, reading
from limpet.store.sqlite.rows import TENANT_SHIFT, first, number


def rewrite(connection: apsw.Connection, path: Path) -> None:
    """Write the database anew and empty its log; raise StoreBusy if somebody reads for too long."""
    connection.execute("VACUUM")
    connection.set_busy_timeout(int(limits.SCRUB_WAIT_S * 1000))
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError as error:
        raise errors.StoreBusy(
            f"what was erased can't be read any more, but parts of it may still be in {path}-wal: somebody"
            f" has been reading for more than {limits.SCRUB_WAIT_S:g} s.",
            hint="Let a long read (a backup, a verify, a SQLite shell) end, then erase() once more; the next opening does it too.",
            facts={"path": str(path), "pending": True},
        ) from error
    finally:
        connection.set_busy_timeout(int(limits.WRITE_LOCK_WAIT_S * 1000))


class Redoing:
    """What a list says of the log at hand: events that were erased elsewhere, and are here."""

    def __init__(
        self, connection: apsw.Connection, entries: list[erasures.Entry], store_id: bytes
    ) -> None:
        self._connection = connection
        self._sql = opening.queries()
        self._causes: dict[int, int] = {}
        for entry in entries:
            base = entry.tenant << TENANT_SHIFT
            for position, link in entry.events if entry.store == store_id else ():
                if self._is_here(base | position, link):
                    self._causes[base | position] = base | entry.cause if entry.cause else 0

    def _is_here(self, key: int, link: bytes) -> bool:
        row = first(self._connection, self._sql["event_at"], (key,))
        here = row is not None and isinstance(row[7], bytes) and row[7].startswith(link)
        return here and row is not None and row[4] is not None

    def __bool__(self) -> bool:
        return bool(self._causes)

    def erasures(self, again: Again, time_us: int) -> Iterator[Erasure]:
        """Yield what has to be erased, tenant by tenant."""
        for tenant, name in checks.tenants(self._connection).items():
            mine = {k: cause for k, cause in self._causes.items() if k >> TENANT_SHIFT == tenant}
            if mine:
                shares = tuple(self._shares(tenant, mine, again))
                todo = again.todo(name)
                yield Erasure(tenant=name, shares=shares, time_us=time_us, todo=todo)

    def _shares(self, tenant: int, gone: dict[int, int], again: Again) -> Iterator[Share]:
        streams: dict[int, list[int]] = {}
        for key in sorted(gone):
            row = first(self._connection, self._sql["event_at"], (key,))
            assert row is not None and isinstance(row[1], int), "it was here a moment ago"
            streams.setdefault(row[1], []).append(key)
        whole = self._whole(streams, gone)
        for stream, keys in streams.items():
            row = first(self._connection, self._sql["stream_name"], (stream,))
            name = str(row[0]) if row else ""
            pairs = [] if stream in whole else [self._pair(key, gone[key], name) for key in keys]
            yield Share(
                stream=name,
                expected=number(self._connection, self._sql["stream_version"], (stream,)),
                kind=again.kind(name),
                whole=stream in whole,
                stand_ins=tuple(
                    again.stand_ins(
                        pairs, lambda hashes: reading.blobs(self._connection, tenant, hashes)
                    )
                ),
            )

    def _whole(self, streams: dict[int, list[int]], gone: dict[int, int]) -> set[int]:
        """Return the streams that go whole: nothing of them stays, and no stream that stays goes on from them."""
        whole = {stream for stream, keys in streams.items() if self._all(stream, keys, gone)}
        while True:
            kept = {s for s in whole if not self._needed(s, whole)}
            if kept == whole:
                return whole
            whole = kept

    def _all(self, stream: int, keys: list[int], gone: dict[int, int]) -> bool:
        if any(gone[key] for key in keys):
            return False
        there = self._connection.execute(self._sql["own_events"], (stream,)).fetchall()
        rest = (h for key, h, _, blank in there if key not in gone and not blank)
        return all(is_notice(_kind(header)) for header in rest)

    def _needed(self, stream: int, whole: set[int]) -> bool:
        forks = reading.forks(self._connection, stream)
        tenant = stream >> TENANT_SHIFT
        keys = (number(self._connection, self._sql["stream_key"], (tenant, n)) for n, _ in forks)
        return any(key not in whole for key in keys)

    def _pair(self, key: int, cause: int, name: str) -> tuple[port.StoredEvent, port.StoredEvent]:
        event = self._event(key, name)
        because = self._event(cause, "") if cause and cause != key else event
        return event, because

    def _event(self, key: int, name: str) -> port.StoredEvent:
        found = self._connection.execute(self._sql["event_at"], (key,)).fetchall()
        return reading.opened(self._connection, found, name)[0]


def _kind(header: apsw.SQLiteValue) -> str:
    return chain.kind_and_ordinal(header)[0] if isinstance(header, bytes) else ""
