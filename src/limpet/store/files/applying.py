"""Lines of the journal put into its index: rows as they were, and what is derived from them made again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import apsw
import msgspec

from limpet.store import chain, port
from limpet.store.erasure import is_erased
from limpet.store.files import lines
from limpet.store.files.lines import place_of
from limpet.store.sqlite import erasing, opening, reading, writing
from limpet.store.sqlite.known import Known
from limpet.store.sqlite.rows import TENANT_SHIFT, first, mark
from limpet.store.statements import named

Fetch = Callable[[str], bytes]
"""From the hash of a blob to what its file holds. Raises Corrupt if that is not what was written."""


@functools.cache
def statements() -> dict[str, str]:
    """Return the statements of the file store by name, beside those of every SQLite store."""
    text = Path(__file__).with_name("index.sql").read_text(encoding="utf-8")
    return {**opening.queries(), **named(text)}


def apply(connection: apsw.Connection, change: lines.Change, fetch: Fetch) -> None:
    """Put and drop the rows of one commit, in an open transaction. Nothing is derived."""
    run, sql = connection.execute, statements()
    for tenant, key in change.dropped_keys:
        run(sql["drop_key"], (tenant, key))
    for tenant, hash_ in change.dropped_blobs:
        run(sql["drop_blob"], (tenant, bytes.fromhex(hash_)))
    for tenant, name in change.dropped_notes:
        run(sql["drop_note"], (tenant, name))
    for each in change.tenants:
        run(sql["put_tenant"], (each.number, each.name, mark(each.number, each.name)))
    for each in change.streams:
        row = (each.tenant << TENANT_SHIFT | each.number, each.tenant, each.name)
        run(sql["put_stream"], (*row, mark(*row)))
    for each in change.blobs:
        content = fetch(each.sha256) if each.content is None else each.content.bytes
        run(sql["add_blob"], (each.tenant, bytes.fromhex(each.sha256), content))
    for each in change.events:
        run(sql["put_event"], _event(each))
    _apply_rest(connection, change)


def _apply_rest(connection: apsw.Connection, change: lines.Change) -> None:
    run, sql = connection.execute, statements()
    for each in change.bases:
        high = each.tenant << TENANT_SHIFT
        row = (
            high | each.position, high | each.stream, each.first, high | each.source, each.version,
        )  # fmt: skip
        run(sql["put_base"], (*row, mark(*row)))
    for each in change.keys:
        row = (
            each.tenant, each.key, bytes.fromhex(each.command), each.first, each.last, each.time_us,
        )  # fmt: skip
        run(sql["put_key"], (*row, mark(*row)))
    for each in change.notes:
        row = (each.tenant, each.name, each.version, each.value.bytes)
        run(sql["put_note"], (*row, mark(*row)))
    for each in change.erased:
        high = each.tenant << TENANT_SHIFT
        cause = high | each.cause if each.cause else 0
        row = (high | each.position, high | each.notice, cause, lines.read(each.stand_in))
        run(sql["put_gone"], (*row, mark(*row)))
    if change.pending is not None:
        run(sql["put_todo"], (change.pending.bytes,))
    if change.dropped_pending:
        run(sql["clear_pending"])


def row_of(event: lines.Event) -> chain.Row:
    """Return an event's columns."""
    salt = None if event.salt is None else bytes.fromhex(event.salt)
    return chain.Row(
        place_of(event), bytes(event.header), lines.read(event.payload), salt, bytes.fromhex(event.digest),
        bytes.fromhex(event.link),
    )  # fmt: skip


def _event(event: lines.Event) -> tuple[apsw.SQLiteValue, ...]:
    row, high = row_of(event), event.tenant << TENANT_SHIFT
    place = (high | row.place.position, high | row.place.stream, row.place.version)
    return (*place, row.header, row.payload, row.salt, row.digest, row.link)


def catch_up(
    connection: apsw.Connection, changes: Sequence[lines.Change], derive: port.Derive, fetch: Fetch
) -> None:
    """Bring commits into the index, in an open transaction: streams that they touch are derived again."""
    keys = sorted(_touched(changes))
    batch = writing.Batch(connection.cursor(), Known(), bytes, careful=True)
    for key in keys:
        _forget(connection, batch, key, derive)
    for change in changes:
        apply(connection, change, fetch)
    for key in keys:
        name = _name(connection, key)
        if name and not is_erased(name):
            batch.derive(key >> TENANT_SHIFT, key, _derived(connection, key, name, derive))
    connection.execute(statements()["count_rebuild"])


def _touched(changes: Iterable[lines.Change]) -> set[int]:
    found: set[int] = set()
    for change in changes:
        found |= {e.tenant << TENANT_SHIFT | place_of(e).stream for e in change.events}
        found |= {s.tenant << TENANT_SHIFT | s.number for s in change.streams}
        found |= {b.tenant << TENANT_SHIFT | b.stream for b in change.bases}
    return found


def _name(connection: apsw.Connection, key: int) -> str:
    row = first(connection, statements()["stream_name"], (key,))
    return str(row[0]) if row else ""


def _derived(connection: apsw.Connection, key: int, name: str, derive: port.Derive) -> port.Derived:
    blobs = functools.partial(reading.blobs, connection, key >> TENANT_SHIFT)
    return derive(name, erasing.own_events(connection, key, name), blobs)


def _forget(
    connection: apsw.Connection, batch: writing.Batch, key: int, derive: port.Derive
) -> None:
    """Drop all that is derived from a stream; its rows are known by deriving them once more."""
    name, run, sql = _name(connection, key), connection.execute, statements()
    if not name or is_erased(name):
        return
    for row in _derived(connection, key, name, derive).projections:
        batch.drop(key >> TENANT_SHIFT, row.kind, row.id)
    stretches = [key, *(made for (made,) in run(sql["stretches_of"], (key,)))]
    run(sql["drop_claims"], (msgspec.json.encode(stretches).decode(),))
    run(sql["drop_uses"], (key,))
    run(sql["drop_snapshot"], (key,))
