"""Which engines of long-term memory have taken something of a tenant: all of them have to be told what is erased."""

from __future__ import annotations

import msgspec

from limpet import errors, limits
from limpet.stores import port

NOTE = "memory/engines"


def known(store: port.Store, tenant: str) -> frozenset[str]:
    """Return the names of the engines that have taken a history."""
    return _read(store, tenant)[0]


def remember(store: port.Store, tenant: str, name: str) -> None:
    """Note that an engine is about to be given a history; raise Unavailable if others are always faster."""
    for _ in range(limits.RETRIES_MAX):
        names, version = _read(store, tenant)
        if name in names:
            return
        value = msgspec.json.encode(sorted({*names, name}))
        if store.put_note(tenant, NOTE, value, expected=version):
            return
    raise errors.Unavailable("others note the same at the same time; try again.")


def _read(store: port.Store, tenant: str) -> tuple[frozenset[str], int]:
    note = store.note(tenant, NOTE)
    if note is None:
        return frozenset(), 0
    try:
        return frozenset(msgspec.json.decode(note.value, type=list[str])), note.version
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("the note of the memory engines can't be read.") from error
