"""The log is the truth: everything that is derived from it, dropped and made again.

First the log is proved, over a connection that hinders nobody. Then, in one transaction of the holder
of the turn, the derived tables are emptied and filled. Whatever is wrong raises Corrupt, and the
transaction never was.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from limpet import errors
from limpet.store import port
from limpet.store.erasure import is_erased
from limpet.store.sqlite import checks, erasing, opening, reading, rows, writing
from limpet.store.sqlite.anchor import Anchor
from limpet.store.sqlite.known import Known

TRUTH = ("store", "tenants", "streams", "events", "keys", "blobs", "bases", "notes", "erased")
"""Tables that nothing can be put in the place of."""


def prove(path: Path, anchor: Anchor) -> Iterator[int]:
    """Yield events checked so far; raise Corrupt unless the log is as it was written."""
    with contextlib.closing(opening.connect(path, write=False)) as connection:
        for step in checks.verify(connection, anchor, (), checks.PROVABLE, TRUTH):
            if isinstance(step, port.Report):
                refuse(path, step.faults)
            else:
                yield step


def refuse(path: Path, faults: list[str] | tuple[str, ...]) -> None:
    """Raise Corrupt if there are faults."""
    if faults:
        raise errors.Corrupt(
            f"{path} is damaged: {faults[0]}",
            hint="Nothing was changed. `limpet verify` lists all damage; a backup can replace it.",
            facts={"path": str(path), "faults": len(faults)},
        )


def derive_all(
    connection: apsw.Connection, path: Path, derive: port.Derive
) -> Iterator[port.Rebuilt]:
    """Make everything derived again, in an open transaction; yield what is made so far."""
    queries, made = opening.queries(), port.Rebuilt()
    connection.execute(queries["clear_derived"])
    # A memory of its own: what was known of rows does not hold any more.
    batch = writing.Batch(connection.cursor(), Known(), bytes, careful=True)
    for tenant in checks.tenants(connection):
        made = msgspec.structs.replace(made, tenants=made.tenants + 1)
        blobs = functools.partial(reading.blobs, connection, tenant)
        for key, name in _streams(connection, tenant):
            claims = projections = 0
            if not is_erased(name):
                derived = derive(name, erasing.own_events(connection, key, name), blobs)
                claims = batch.derive(tenant, key, derived)
                projections = len(derived.projections)
            begin = rows.number(connection, queries["stream_first"], (key,))
            last = rows.number(connection, queries["stream_version"], (key,))
            made = port.Rebuilt(
                made.events + last - begin + 1, made.tenants, made.streams + 1,
                made.claims + claims, made.projections + projections,
            )  # fmt: skip
            yield made
    # Only what is derived says which blobs there must be.
    refuse(path, checks.blob_faults(connection))
    connection.execute(queries["count_rebuild"])
    yield made


def _streams(connection: apsw.Connection, tenant: int) -> Iterator[tuple[int, str]]:
    after = 0
    while found := connection.execute(opening.queries()["streams_of"], (tenant, after)).fetchall():
        for key, name in found:
            assert isinstance(key, int)
            after = key
            yield key, str(name)
