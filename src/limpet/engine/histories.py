"""A generation of a session as long-term memory takes it: what it is called, and what was said in it."""

from __future__ import annotations

from collections.abc import Iterator

from limpet import errors, limits
from limpet.core.values import events as e
from limpet.core.values.memory_records import History, Said, Who
from limpet.core.values.session_state import SessionState
from limpet.engine.jobs import Job
from limpet.engine.tasks import Beat
from limpet.runtime.state_cache import decode_session_events, session_stream
from limpet.stores import port


def history(tenant: str, job: Job, state: SessionState) -> History:
    """Return what a generation is called that somebody owns, in the state in which it ended."""
    return History(
        key=job.key,
        who=Who(tenant, state.user_id or ""),
        session_id=job.session_id,
        generation=job.generation,
        messages=state.own_count,
        ended_us=job.ended_us,
        title=state.title or state.preview,
    )


def said(store: port.Store, tenant: str, state: SessionState, beat: Beat) -> Iterator[list[Said]]:
    """Yield the messages of a generation in chunks; those that were carried over were said elsewhere."""
    stream, after, number = session_stream(state.id), state.began, 0
    while after < state.version:
        beat()
        page = store.read(
            tenant, stream, after=after, until=state.version, limit=limits.READ_CHUNK,
            at=state.version,
        )  # fmt: skip
        if not page:
            raise errors.Corrupt("a session's log ends early.", facts={"session": state.id})
        after = page[-1].version
        added = [stored for stored in page if stored.kind == e.MessageAddedEvent.kind]
        numbers = {stored.version: number + at for at, stored in enumerate(added, start=1)}
        number += len(added)
        # What was erased is nobody's any more.
        whole = [stored for stored in added if stored.payload is not None]
        chunk = [
            Said(
                position=fact.position,
                session_id=state.id,
                generation=state.generation,
                number=numbers[fact.version],
                time_us=fact.time_us,
                message=fact.event.message,
            )
            for fact in decode_session_events(store, tenant, whole)
            if isinstance(fact.event, e.MessageAddedEvent) and fact.event.message.origin is None
        ]
        if chunk:
            yield chunk
