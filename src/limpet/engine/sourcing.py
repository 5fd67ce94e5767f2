"""What a session may begin with: nothing that memory knew from messages that were erased after it was asked."""

from __future__ import annotations

import msgspec

from limpet.core.values import commands as c
from limpet.core.values.memory_records import positions_in_metadata
from limpet.stores import port


def sound(store: port.Store, tenant: str, command: c.SessionCommand) -> c.SessionCommand:
    """Return a command without its opening if a message that it was made from is erased; to be called under the turn."""
    if not isinstance(command, (c.CreateSession, c.ResetSession)) or command.opening is None:
        return command
    if any(_erased(store, tenant, at) for at in positions_in_metadata(command.opening.sources)):
        return msgspec.structs.replace(command, opening=None)
    return command


def _erased(store: port.Store, tenant: str, position: int) -> bool:
    # An engine elsewhere may name a place that never was.
    found = store.feed(tenant, after=position - 1, limit=1)
    there = found[0] if found and found[0].position == position else None
    return there is not None and (there.erased or there.payload is None)
