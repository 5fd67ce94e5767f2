"""Stored events as what stands in for them, bytes to bytes: the same whenever it is made again."""

from __future__ import annotations

from collections.abc import Sequence

from limpet import errors
from limpet.core.formats import codec as parting
from limpet.core.rules import redaction
from limpet.core.values import ids
from limpet.core.values.events import (
    MessageAddedEvent,
    SessionErasedEvent,
    SessionEvent,
    TreeErasedEvent,
)
from limpet.core.values.messages import Message
from limpet.engine.pending import Todo, encoded
from limpet.runtime import projections, state_cache
from limpet.runtime.state_cache import decode_session_event, referenced_texts
from limpet.stores.erasure import RedactedPayload
from limpet.stores.port import BlobLoader, StoredEvent


def name_of(cause: StoredEvent) -> str:
    """Return what a message is called once it is erased: nothing that anybody could have known before."""
    return f"erased_{cause.link.hex()[:16]}"


def notice_kind(stream: str) -> str:
    """Return the kind of a stream's notice."""
    return (
        TreeErasedEvent.kind
        if stream.startswith(state_cache.TREE_STREAM_PREFIX)
        else SessionErasedEvent.kind
    )


def made(stored: StoredEvent, cause: StoredEvent, fetch: BlobLoader) -> RedactedPayload:
    """Return what stands in for an event that goes because of another, or for itself."""
    if stored.stream.startswith(state_cache.TREE_STREAM_PREFIX):
        return _of_frame(stored, cause)
    own = cause.position == stored.position
    said = None if own else _message(cause, fetch)
    event = decode_session_event(stored, referenced_texts((stored,), fetch)).event
    return _stored(stored, redaction.redacted_session_event(event, name_of(cause), said), cause)


def _message(cause: StoredEvent, fetch: BlobLoader) -> Message:
    event = decode_session_event(cause, referenced_texts((cause,), fetch)).event
    if not isinstance(event, MessageAddedEvent):
        raise errors.Corrupt("what an erasure is said to be because of is no message.")
    return event.message


def _of_frame(stored: StoredEvent, cause: StoredEvent) -> RedactedPayload:
    event, texts = redaction.redacted_frame_event(state_cache.decode_tree_event(stored).event)
    return RedactedPayload(
        stored.position,
        parting.encode_frame_event(event),
        cause.position,
        tuple(text.encode() for text in texts),
    )


def _stored(stored: StoredEvent, event: SessionEvent, cause: StoredEvent) -> RedactedPayload:
    payload = parting.encode_session_event(event)
    if stored.kind == MessageAddedEvent.kind and stored.schema == parting.SCHEMA_WITH_BLOBS:
        payload = parting.payload_without_texts(payload)
    return RedactedPayload(stored.position, payload, cause.position)


class Again:
    """Erases again in a copy of the log what was erased since it was made."""

    now_us = staticmethod(ids.SYSTEM_FACTORY.now_us)
    derive = staticmethod(projections.derive_stream)
    kind = staticmethod(notice_kind)

    def todo(self, tenant: str) -> bytes:
        """Return what is pending then: of whom it was, nobody can say, so that it is about the whole tenant."""
        return encoded((Todo(tenant, ""),))

    def stand_ins(
        self, gone: Sequence[tuple[StoredEvent, StoredEvent]], blobs: BlobLoader
    ) -> list[RedactedPayload]:
        """Return what is read in place of events, each given with the one because of which it goes."""
        return [made(stored, cause, blobs) for stored, cause in gone]
