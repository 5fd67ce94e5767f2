"""Where a fork or a rewind goes on from: a message, found and folded.

What a session was at a version never changes. So its state there can be folded before the turn, while
others write; under the turn only the version is looked for again.
"""

from __future__ import annotations

import msgspec

from limpet import errors
from limpet.core.rules import session_rules
from limpet.core.values.commands import CommandRequest, ForkSession, RewindSession
from limpet.core.values.session_state import SessionState
from limpet.engine.finding import Log
from limpet.engine.states import States, stream_of
from limpet.stores import port

Going = ForkSession | RewindSession


def ahead(store: port.Store, states: States, request: CommandRequest) -> CommandRequest:
    """Return a request with the state that it goes on from, if there is one: the rest is decided later."""
    command = request.command
    assert isinstance(command, Going), "only a fork or a rewind goes on from a state"
    try:
        state = session_rules.existing_state(
            states.current(request.tenant, command.session_id), command.session_id
        )
        made = placed(store, states, request.tenant, state, command)
    except (errors.NotFound, errors.Refused):
        # It may have been done already, under its key.
        return request
    return msgspec.structs.replace(request, command=made)


def placed(
    store: port.Store, states: States, tenant: str, state: SessionState, command: Going
) -> Going:
    """Return a command with the state that it goes on from; raise MessageNotFound if there is none."""
    version = _version(store, tenant, state, command)
    if version == state.version:
        return msgspec.structs.replace(command, there=state)
    known = command.there
    if known is None or known.version != version:
        known = past(store, states, tenant, state, version)
    return msgspec.structs.replace(command, there=known)


def past(
    store: port.Store, states: States, tenant: str, state: SessionState, version: int
) -> SessionState:
    """Return what a session was at a version; raise NotFound if it was not there, or was deleted since."""
    floor = Log(store, tenant, state).floor()
    found = states.at(tenant, state.id, version) if floor < version <= state.version else None
    if found is None:
        raise errors.NotFound(
            f"the session {state.id!r} has no version {version:,}.",
            hint=f"It has versions up to {state.version:,}.",
            facts={"session": state.id, "version": version, "last": state.version},
        )
    return found


def _version(store: port.Store, tenant: str, state: SessionState, command: Going) -> int:
    at, stream = command.at, stream_of(state.id)
    if at is None:
        assert isinstance(command, ForkSession), "a rewind names its message"
        if command.version is not None:
            return command.version
        if not state.continuations or not state.message_count:
            return state.version
        # Its open calls went along into the session that continues it; at its last message they are here.
        at = state.message_count
    if isinstance(at, str):
        version = store.find_claim(tenant, stream, at, at=state.version)
        found = version > state.began
    else:
        found = at <= state.message_count
        version = store.seek(tenant, stream, state.ordinal_began + at, at=state.version)
    if not found:
        raise errors.MessageNotFound(
            f"the session {state.id!r} has no message {at!r}.",
            hint=f"It has {state.message_count:,} messages; give the id of one, or its number from 1 on.",
            facts={"session": state.id, "message": at, "messages": state.message_count},
        )
    return version
