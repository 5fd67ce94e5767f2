"""What a transaction changes in the tables that nothing can be put in the place of, as one line of the journal.

SQLite tells of every row that is put or dropped, whoever does it and why: nothing that is kept can be forgotten
here. Of a row that changes twice the last form counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, cast

import apsw
from msgspec import Raw

from limpet import limits
from limpet.store.files import lines
from limpet.store.sqlite import opening
from limpet.store.sqlite.rows import NUMBER_MASK, TENANT_SHIFT, first

if TYPE_CHECKING:
    Row = tuple[apsw.SQLiteValue, ...]

WIDTHS: Final[dict[str, int]] = {
    "tenants": 1, "streams": 1, "events": 1, "bases": 1, "erased": 1, "keys": 2, "blobs": 2,
    "notes": 2, "store": 1,
}  # fmt: skip
"""Tables of the truth, and how many of their first columns a row is known by."""

LEFT: Final = ("pending",)
"""Of what a store says of itself, the row that is kept in the journal too."""


class Recording:
    """The rows that the open transaction of one connection has changed."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[Row, Row | None]] = {}
        self._deaf = False

    def attach(self, connection: apsw.Connection) -> None:
        """Hear of every change of a connection."""
        connection.preupdate_hook(self._heard)

    def _heard(self, update: apsw.PreUpdate) -> None:
        table = update.table_name
        width = WIDTHS.get(table)
        if self._deaf or width is None or update.database_name != "main":
            return
        new = update.new
        known = new or update.old or ()
        self._rows.setdefault(table, {})[known[:width]] = new

    @contextlib.contextmanager
    def deaf(self) -> Iterator[None]:
        """Hear of nothing meanwhile: what comes from the journal need not go there, and may be more than there is memory."""
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False

    def clear(self) -> None:
        """Forget what was heard."""
        self._rows = {}

    def taken(
        self, connection: apsw.Connection, n: int, keep: Callable[[bytes, bytes], None]
    ) -> lines.Change | None:
        """Return what was changed, as commit n, and forget it; None if nothing was.

        Large blobs are given to `keep`, by hash and content.
        """
        rows, self._rows = self._rows, {}
        if rows.keys() == {"events"}:
            # Most commits only add messages.
            return lines.Change(
                n=n, events=_events(connection, filter(None, rows["events"].values()))
            )
        put = {table: [row for row in found.values() if row] for table, found in rows.items()}
        gone = {table: [k for k, row in found.items() if not row] for table, found in rows.items()}
        todo = [row for row in put.get("store", ()) if row[:1] == LEFT]
        cleared = LEFT in gone.get("store", ())
        if not (todo or cleared or any(rows.keys() - {"store"})):
            return None
        return lines.Change(
            n=n,
            tenants=tuple(map(_tenant, put.get("tenants", ()))),
            streams=tuple(map(_stream, put.get("streams", ()))),
            events=_events(connection, put.get("events", ())),
            bases=tuple(map(_base, put.get("bases", ()))),
            keys=tuple(map(_key, put.get("keys", ()))),
            blobs=tuple(_blob(row, keep) for row in put.get("blobs", ())),
            notes=tuple(map(_note, put.get("notes", ()))),
            erased=tuple(map(_gone, put.get("erased", ()))),
            pending=lines.readable(cast("bytes", todo[0][1])) if todo else None,
            dropped_keys=cast("tuple[tuple[int, str], ...]", tuple(gone.get("keys", ()))),
            dropped_blobs=tuple(
                (cast("int", tenant), cast("bytes", hash_).hex()) for tenant, hash_ in gone.get("blobs", ())
            ),
            dropped_notes=cast("tuple[tuple[str, str], ...]", tuple(gone.get("notes", ()))),
            dropped_pending=cleared,
        )  # fmt: skip


def _events(connection: apsw.Connection, rows: Iterable[Row]) -> tuple[lines.Event, ...]:
    query, names = opening.queries()["stream_name"], dict[int, str]()
    made: list[lines.Event] = []
    for row in rows:
        key, stream, _, header, payload, salt, digest, link = cast(
            "tuple[int, int, int, bytes, bytes | None, bytes | None, bytes, bytes]", row
        )
        if stream not in names:
            found = first(connection, query, (stream,))
            names[stream] = str(found[0]) if found else ""
        made.append(
            lines.Event(
                tenant=key >> TENANT_SHIFT,
                stream=names[stream],
                header=Raw(header),
                salt=None if salt is None else salt.hex(),
                digest=digest.hex(),
                link=link.hex(),
                payload=None if payload is None else lines.readable(payload),
            )
        )
    return tuple(made)


def _tenant(row: Row) -> lines.Tenant:
    number, name, _ = cast("tuple[int, str, bytes]", row)
    return lines.Tenant(number=number, name=name)


def _stream(row: Row) -> lines.Stream:
    key, tenant, name, _ = cast("tuple[int, int, str, bytes]", row)
    return lines.Stream(tenant=tenant, number=key & NUMBER_MASK, name=name)


def _base(row: Row) -> lines.Base:
    key, stream, begin, source, version, _ = cast("tuple[int, int, int, int, int, bytes]", row)
    return lines.Base(
        tenant=key >> TENANT_SHIFT, position=key & NUMBER_MASK, stream=stream & NUMBER_MASK,
        first=begin, source=source & NUMBER_MASK, version=version,
    )  # fmt: skip


def _key(row: Row) -> lines.Key:
    tenant, key, command, begin, end, time_us, _ = cast(
        "tuple[int, str, bytes, int, int, int, bytes]", row
    )
    return lines.Key(
        tenant=tenant, key=key, command=command.hex(), first=begin, last=end, time_us=time_us
    )


def _blob(row: Row, keep: Callable[[bytes, bytes], None]) -> lines.Blob:
    tenant, hash_, content = cast("tuple[int, bytes, bytes]", row)
    if len(content) > limits.BLOB_INLINE_BYTES:
        keep(hash_, content)
        return lines.Blob(tenant=tenant, sha256=hash_.hex())
    return lines.Blob(tenant=tenant, sha256=hash_.hex(), content=lines.readable(content))


def _note(row: Row) -> lines.Note:
    tenant, name, version, value, _ = cast("tuple[str, str, int, bytes, bytes]", row)
    return lines.Note(tenant=tenant, name=name, version=version, value=lines.readable(value))


def _gone(row: Row) -> lines.Gone:
    event, notice, cause, payload, _ = cast("tuple[int, int, int, bytes | None, bytes]", row)
    return lines.Gone(
        tenant=event >> TENANT_SHIFT, position=event & NUMBER_MASK, notice=notice & NUMBER_MASK,
        cause=cause & NUMBER_MASK,
        stand_in=None if payload is None else lines.readable(payload),
    )  # fmt: skip
