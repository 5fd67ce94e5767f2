"""Recovers sessions whose part of the log is damaged.

First the store is rebuilt from another copy of the log, if it has one. Otherwise each damaged
session gets one recovery session. It names the original and holds the content of the session file
or its backup, and every message of the log that verifies. Damaged data is not changed.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from limpet import errors, limits
from limpet.core.rules.import_rules import repair_messages
from limpet.core.values.events import (
    MessageAddedEvent,
    SessionCreatedEvent,
    SessionEndedEvent,
    SessionEvent,
    SessionForkedEvent,
    SessionResetEvent,
    SessionUpdatedEvent,
)
from limpet.core.values.json_values import Json
from limpet.core.values.messages import Message
from limpet.core.values.session_state import EndReason, SessionState
from limpet.runtime import event_reader, projections
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import decode_session_events, session_stream
from limpet.sessions.session import Session
from limpet.stores.port import StoredEvent

if TYPE_CHECKING:
    from limpet.sessions.manager import Sessions
    from limpet.sessions.session_files import SessionFiles

COMPLETE_KEY: Final = "recovery"
"""The key of a recovery session's metadata that says that it is complete, and how."""

RECOVERED_TO_KEY: Final = "recovered_to"
"""The key of a damaged session's metadata that names its recovery session, as far as it can still be said there."""


def recovery_id(session_id: str) -> str:
    """Return the id of the one recovery session of a session."""
    return f"recovery_{hashlib.sha256(session_id.encode(errors='surrogatepass')).hexdigest()[:24]}"


class SessionRecovery:
    """Recovers sessions of one tenant."""

    def __init__(self, sessions: Sessions, engine: Engine, tenant: str, files: SessionFiles | None) -> None:
        self._sessions = sessions
        self._engine = engine
        self._tenant = tenant
        self._files = files

    def has_complete_recovery(self, session_id: str) -> bool:
        """Whether a damaged session has its recovery session: then no other copy was of use, and none is looked at again."""
        present = self._existing_session(recovery_id(session_id))
        return present is not None and COMPLETE_KEY in present.metadata

    def replacement(self, state: SessionState) -> SessionState | None:
        """Return the recovery session of one that says that it has one; None if that is gone, or not complete."""
        if state.metadata.get(RECOVERED_TO_KEY) != recovery_id(state.id):
            return None
        present = self._existing_session(recovery_id(state.id))
        return present.state if present is not None and COMPLETE_KEY in present.metadata else None

    def is_sound(self, session_id: str) -> bool:
        """Whether everything of a session can be read. Reads all of it."""
        return not self._salvage(session_id).damaged

    def rebuild_from_copy(self) -> bool:
        """Make everything again from the other copy of the log, if there is one that is whole."""
        if self._files is None:
            return False
        try:
            projections.rebuild_store(self._engine.store)
        except errors.Corrupt:
            return False
        return True

    def recover(self, session_id: str, error: errors.Corrupt) -> Session:
        """Return the recovery session of a damaged one, which is begun the first time."""
        made = recovery_id(session_id)
        present = self._existing_session(made)
        if present is not None and COMPLETE_KEY in present.metadata:
            return present
        document, messages = self._file_content(session_id)
        log = self._salvage(session_id)
        known = {message.id for message in messages}
        whole = [*messages, *(message for message in log.messages if message.id not in known)]
        session = present or self._begin_recovery(made, session_id, document.get("title") or log.title, error)
        self._fill(session, whole)
        source = "session file" if messages else "log"
        done: dict[str, Json] = {
            "messages": len(whole), "from": source, "damaged_events": log.damaged,
            "erased_events": log.erased,
        }  # fmt: skip
        recovered = self._sessions.update_session(made, metadata={COMPLETE_KEY: done})
        # It may have ended, or be damaged where its state is made from. Nothing goes on in it then.
        with contextlib.suppress(errors.Corrupt, errors.Refused):
            self._sessions.update_session(session_id, metadata={RECOVERED_TO_KEY: made})
        return recovered

    def _existing_session(self, session_id: str) -> Session | None:
        try:
            return self._sessions.get_session(session_id)
        except errors.SessionNotFound:
            return None

    def _begin_recovery(self, made: str, session_id: str, title: str | None, error: errors.Corrupt) -> Session:
        notice = (
            f"This session replaces {session_id}, whose data is damaged ({error.message})"
            " What could be read of it follows."
        )
        return self._sessions.get_or_create_session(
            made,
            # Whoever erases all of a user has to find it.
            user_id=event_reader.salvage_owner(self._engine.store, self._tenant, session_id),
            title=title,
            system=notice,
            metadata={"recovered_from": session_id},
        )

    def _fill(self, session: Session, messages: list[Message]) -> None:
        # Messages keep their ids, so that whoever begins again after a crash adds none twice.
        fitting = list(repair_messages(messages, lambda _: None))
        for begin in range(0, len(fitting), limits.READ_CHUNK):
            session.add_messages(fitting[begin : begin + limits.READ_CHUNK])

    def _file_content(self, session_id: str) -> tuple[dict[str, Json], list[Message]]:
        found = self._files.read_verified(self._tenant, session_id) if self._files else None
        return found or ({}, [])

    def _salvage(self, session_id: str) -> _SalvageResult:
        """Return what the log still says of a session's present generation."""
        found = _SalvageResult()
        for event in event_reader.salvage_stream(self._engine.store, self._tenant, session_stream(session_id)):
            if isinstance(event, event_reader.UnreadableEvent):
                found.damaged += 1
            else:
                self._add_event(found, event)
        return found

    def _add_event(self, found: _SalvageResult, stored: StoredEvent) -> None:
        found.erased += stored.erased
        try:
            (fact,) = decode_session_events(self._engine.store, self._tenant, (stored,))
        except errors.Corrupt:
            found.damaged += 1
        except errors.Erased:
            return
        else:
            found.add(fact.event)


class _SalvageResult(msgspec.Struct):
    """What those events of a session say that can be read: messages and title, and how many others there are.

    Of one that was erased there are at most words that stand in for it: that is no damage.
    """

    messages: list[Message] = []
    title: str | None = None
    damaged: int = 0
    erased: int = 0

    def add(self, event: SessionEvent) -> None:
        match event:
            case MessageAddedEvent():
                self.messages.append(event.message)
            case SessionUpdatedEvent(title=title) if title is not msgspec.UNSET:
                self.title = title
            case SessionCreatedEvent():
                self.messages, self.title = [], event.title
            case SessionForkedEvent():
                self.title = event.state.title
            case SessionResetEvent() | SessionEndedEvent(reason=EndReason.DELETED):
                self.messages = []
            case _:
                pass
