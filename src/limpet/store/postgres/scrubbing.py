"""After an erasure: tables written anew, so that no page of theirs has what was taken out."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from psycopg import sql

from limpet import errors, limits
from limpet.store.postgres import connections, names
from limpet.store.postgres.connections import Connection
from limpet.store.postgres.place import Place

CUT = ("streams", "events", "claims", "keys", "blobs", "uses", "projections", "terms", "snapshots")
"""The tables that an erasure takes something out of: of the tenants of whom something was erased."""

TOLD = "notes"
"""Notes are dropped by those who are told of an erasure, maybe long after it, of whichever tenant it was."""


def scrub(place: Place) -> None:
    """Write the partitions of all tenants anew of whom something was erased, and all notes.

    Raises StoreBusy if a transaction that could still see it, or uses them, goes on for too long; StoreReadOnly if this
    user may not.
    """
    with connections.upkeep(place) as owner:
        erasures = _rows(owner, "erasures")
        tenants = sorted({tenant for _, tenant in erasures})
        _wait_for_readers(owner, place)
        parts = [
            *_rows(owner, "every_partition", table=TOLD),
            *(row for table in CUT for row in _rows(owner, "partitions", table=table, tenants=tenants)),
        ]  # fmt: skip
        for (part,) in parts:
            _rewrite(owner, place, str(part))
        # Those that came meanwhile may be in what was written anew before them.
        owner.execute(_sql("scrubbed"), {"ids": [id_ for id_, _ in erasures]}, prepare=False)


def scrub_table(place: Place, table: str) -> None:
    """Write one table anew, as above."""
    with connections.upkeep(place) as owner:
        _wait_for_readers(owner, place)
        _rewrite(owner, place, table)


def _rewrite(owner: Connection, place: Place, part: str) -> None:
    if not _rows(owner, "may_vacuum", part=part)[0][0]:
        raise errors.StoreReadOnly(
            f"what was erased can't be read any more, but this user may not write {part} of {place.shown} anew.",
            hint=f"Let its owner open the store, or run: GRANT MAINTAIN ON ALL TABLES IN SCHEMA {place.schema} TO {owner.info.user}",
            facts={"pending": True},
        )
    options = sql.SQL("FULL, ANALYZE" if place.scrub == "full" else "ANALYZE, INDEX_CLEANUP ON")
    with connections.unhurried(owner):
        _give_way(owner, place, sql.SQL("VACUUM ({}) {}").format(options, sql.Identifier(part)))


def _give_way(owner: Connection, place: Place, statement: sql.Composed) -> None:
    """Run what needs a table for itself. Whoever comes after it waits behind it: so it waits for moments, often."""
    until = time.monotonic() + limits.SCRUB_WAIT_S
    while True:
        last = time.monotonic() > until
        owner.execute(_sql("insist" if last else "hurry"))
        try:
            owner.execute(statement)
        except psycopg.errors.LockNotAvailable as error:
            if last:
                raise _busy(place, "a table of it has been in use") from error
            owner.execute(_sql("rest"))
        else:
            return


def _wait_for_readers(owner: Connection, place: Place) -> None:
    """Wait until no transaction is left that began before: a table keeps what such a one could still see."""
    marker, began = _rows(owner, "now")[0][0], time.monotonic()
    while True:
        here, on_replicas = _rows(owner, "older", marker=marker)[0]
        if not here and not on_replicas:
            return
        waited_s = time.monotonic() - began
        if here and waited_s > limits.SCRUB_WAIT_S:
            raise _busy(place, "a transaction has been open")
        if on_replicas and waited_s > limits.SCRUB_REPLICA_WAIT_S:
            why = "a replica (hot_standby_feedback, or a slot) has needed it"
            raise _busy(place, why, limits.SCRUB_REPLICA_WAIT_S)
        time.sleep(0.01)


def _busy(place: Place, why: str, waited_s: float | None = None) -> errors.StoreBusy:
    waited_s = limits.SCRUB_WAIT_S if waited_s is None else waited_s
    return errors.StoreBusy(
        f"what was erased can't be read any more, but parts of it may still be in the files of {place.shown}:"
        f" {why} for more than {waited_s:g} s.",
        hint="End it (see pg_stat_activity here and there, pg_prepared_xacts, pg_replication_slots), then erase() once"
        " more; the next opening does it too.",
        facts={"pending": True},
    )


def _sql(name: str) -> bytes:
    return names.named("scrubbing.sql")[name].encode()


def _rows(owner: Connection, name: str, **values: object) -> list[tuple[Any, ...]]:
    return owner.execute(_sql(name), values or None, prepare=False).fetchall()
