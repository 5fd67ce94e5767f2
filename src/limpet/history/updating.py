"""Title, metadata and policy of a session: what a command changes of them, and what they are then."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from limpet import errors
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.json_values import Json, freeze
from limpet.core.values.session_state import SessionState, corrections_with_usage
from limpet.history.checking import checked_metadata, checked_title

replace = msgspec.structs.replace
encode = msgspec.json.encode


def updates(state: SessionState, command: c.UpdateSession) -> list[e.SessionEvent]:
    """Return what a command changes; nothing if it is so already."""
    title = command.title
    if title is not msgspec.UNSET:
        title = checked_title(title)
        title = msgspec.UNSET if title == state.title else title
    for name in command.drop_metadata:
        if name in command.set_metadata:
            raise errors.InvalidRequest(f"metadata {name!r} can't be both set and dropped.")
    setting = {
        k: v
        for k, v in command.set_metadata.items()
        if k not in state.metadata or encode(state.metadata[k]) != encode(v)
    }
    dropping = tuple(key for key in command.drop_metadata if key in state.metadata)
    policy = msgspec.UNSET if command.policy == state.policy else command.policy
    if title is msgspec.UNSET and policy is msgspec.UNSET and not setting and not dropping:
        return []
    event = e.SessionUpdatedEvent(
        title=title, set_metadata=freeze(setting), drop_metadata=dropping, policy=policy
    )
    checked_metadata(_metadata(state, event))
    return [event]


def _metadata(state: SessionState, event: e.SessionUpdatedEvent) -> Mapping[str, Json]:
    merged = {**state.metadata, **event.set_metadata}
    return freeze({key: value for key, value in merged.items() if key not in event.drop_metadata})


def evolved(state: SessionState, event: e.SessionUpdatedEvent, time_us: int) -> SessionState:
    """Return the state after a change."""
    known, usage = state.corrections, event.usage
    return replace(
        state,
        version=state.version + 1,
        active_us=time_us,
        title=state.title if event.title is msgspec.UNSET else event.title,
        metadata=_metadata(state, event),
        policy=state.policy if event.policy is msgspec.UNSET else event.policy,
        corrections=known if usage is msgspec.UNSET else corrections_with_usage(known, usage),
    )
