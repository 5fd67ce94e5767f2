"""Makes the write that appends imported events."""

from __future__ import annotations

from limpet.core.formats import codec
from limpet.core.values.commands import ReplaySession
from limpet.core.values.events import MessageAddedEvent
from limpet.engine.states import stream_of
from limpet.stores import port


def write_of(command: ReplaySession) -> port.StreamWrite:
    """Return the write of imported events, each with its original time."""
    stream, ordinal = stream_of(command.session_id), command.state.ordinal
    ordinal -= sum(isinstance(fact, MessageAddedEvent) for fact, _ in command.events)
    events: list[port.NewEvent] = []
    claims: list[tuple[str, int]] = []
    for fact, time_us in command.events:
        tokens = counter = None
        if isinstance(fact, MessageAddedEvent):
            ordinal += 1
            claims.append((fact.message.id, len(events)))
            tokens, counter = fact.tokens, fact.counter
        made = codec.encode_with_blobs(fact)
        events.append(
            port.NewEvent(
                fact.kind, made.schema, time_us, made.payload, ordinal, tokens, counter, made.blobs
            )
        )
    base = None if command.base is None else (stream, command.base)
    return port.StreamWrite(stream, command.expected, tuple(events), tuple(claims), base)
