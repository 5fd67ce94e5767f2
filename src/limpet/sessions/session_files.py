"""Session files, one readable JSON file for each session, and the recovery of damaged sessions.

A file is written on save, in intervals and on close. On save, the file of a long session is written
only if an eighth of its messages are new. A file names the version of the session that it shows.
Damage in the log stops only the files of the affected sessions.

To recover, the store is first rebuilt from another copy of the log, if it has one. Otherwise each damaged
session gets one recovery session. It names the original and holds the content of the session file
or its backup, and every message of the log that verifies. Damaged data is not changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Mapping
from typing import Annotated, Any, Final

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
from limpet.core.values.messages import Message
from limpet.core.values.session_state import EndReason, SessionState
from limpet.core.values.validation import Json, thaw
from limpet.runtime import event_reader, state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import SESSION_STREAM_PREFIX, decode_session_events, session_stream
from limpet.sessions.manager import RECOVERED_TO_KEY, Sessions
from limpet.sessions.session import MessageReader, Messages, Session
from limpet.stores.port import ReadableDocuments, StoredEvent

_log = logging.getLogger("limpet.files")

FORMAT_VERSION: Final = 1
INDEX_NAME: Final = "index"
SMALL_COUNT: Final = 64
"""Messages of a session, or sessions of an index, that are written at once however little is new."""

POSITION_MAX: Final = (1 << 62) - 1
"""Above what any log reaches, and what every store can be asked for."""

DEFAULT_TENANT: Final = "default"
"""The tenant whose sessions have their files under their own ids."""


class _FileIndex(msgspec.Struct, kw_only=True):
    """What the list of sessions says: up to which position each tenant's files were written, and a row for each file."""

    positions: dict[str, Annotated[int, msgspec.Meta(ge=0, le=POSITION_MAX)]] = {}
    sessions: dict[str, dict[str, Any]] = {}


def _parse_index(document: Mapping[str, Json] | None) -> _FileIndex:
    """Return a list that was read; an empty one if it is none of ours: it is made again, as all these files are."""
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(document or {}, _FileIndex)
    return _FileIndex()


class SessionFiles:
    """Writes the files of all sessions of one store. Threads may share it."""

    def __init__(self, engine: Engine, documents: ReadableDocuments) -> None:
        self._engine = engine
        self._documents = documents
        self._written_counts: dict[str, int] = {}
        self._unindexed: dict[tuple[str, str], None] = {}
        self._damaged: dict[tuple[str, str], None] = {}
        self._warned: set[tuple[str, str]] = set()
        self._index = _FileIndex()
        self._index_seal: bytes | None = None
        self._mutex = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, interval_s: float) -> None:
        """Sweep in intervals, in a thread of its own; 0 is off."""
        if interval_s > 0:
            self._thread = threading.Thread(
                target=self._write_in_intervals, args=(interval_s,), name="limpet-files", daemon=True
            )
            self._thread.start()

    def _write_in_intervals(self, interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            try:
                self.write_changed()
            except (errors.Error, OSError) as error:
                _log.warning("the files of sessions could not be written: %s", error)

    def write_after_save(self, tenant: str, session_id: str) -> None:
        """Write a session's file, unless it is long and little is new."""
        with self._mutex:
            name, state = self._name(tenant, session_id), self._state(tenant, session_id)
            count = state.message_count if state else 0
            little = count > SMALL_COUNT and count - self._written_counts.get(name, 0) < count // 8
            if little and self._documents.exists(name):
                return
            with self._documents.write_lock():
                self._write(tenant, session_id)
                if len(self._unindexed) > len(self._read_index().sessions) // 8:
                    self._write_index({})

    def write_changed(self) -> None:
        """Write the file of every session that has changed since its file was written."""
        with self._mutex:
            store = self._engine.store
            changed, positions = list[tuple[str, str]](), dict[str, int]()
            before = self._read_index().positions
            for tenant in store.tenants():
                after = before.get(tenant, 0)
                found, positions[tenant] = self._changed(tenant, after if after <= store.head(tenant) else 0)
                changed += [(tenant, session_id) for session_id in found]
            # Each in a turn of its own: others do not wait for as many files as there may be.
            for tenant, session_id in dict.fromkeys((*self._damaged, *changed)):
                self._write_if_readable(tenant, session_id)
            if not changed and not self._unindexed:
                return
            with self._documents.write_lock():
                # An erasure that came meanwhile has dropped the list, and files: the next sweep looks at all.
                kept = self._read_index().positions.keys() >= before.keys()
                self._write_index(positions if kept else {})

    def _changed(self, tenant: str, after: int) -> tuple[list[str], int]:
        found: dict[str, None] = {}
        for event in event_reader.salvage_feed(self._engine.store, tenant, after=after):
            if isinstance(event, event_reader.UnreadableEvent):
                # Whose it is can't be told; a session that rests on it is met when it is written.
                self._warn_once(tenant, event.error)
                after = event.at
            else:
                after = event.position
                if event.stream.startswith(SESSION_STREAM_PREFIX):
                    found[event.stream.removeprefix(SESSION_STREAM_PREFIX)] = None
        return list(found), after

    def _write_if_readable(self, tenant: str, session_id: str) -> None:
        """Write a session's file; one that can't be read is tried again in the next sweep: it may be mended."""
        self._damaged.pop((tenant, session_id), None)
        try:
            with self._documents.write_lock():
                self._write(tenant, session_id)
        except errors.Erased:
            return
        except errors.Corrupt as error:
            self._damaged[tenant, session_id] = None
            self._warn_once(tenant, error)

    def _warn_once(self, tenant: str, error: errors.Corrupt) -> None:
        if (tenant, error.message) not in self._warned:
            self._warned.add((tenant, error.message))
            told = "%s The files of sessions of tenant %r that rest on it are not written, the others are."
            _log.warning(told, error.message, tenant)

    def _name(self, tenant: str, session_id: str) -> str:
        return self._documents.safe_name(session_id, "" if tenant == DEFAULT_TENANT else tenant)

    def _read_index(self) -> _FileIndex:
        # Another process may have written it, or somebody removed it; else it is as it was when last seen.
        seal = self._documents.checksum(INDEX_NAME)
        if seal is None or seal != self._index_seal:
            self._index, self._index_seal = _parse_index(self._documents.get(INDEX_NAME)), seal
        return self._index

    def _write_index(self, positions: Mapping[str, int]) -> None:
        """Bring the index up to the files that were written since; other processes' entries stay."""
        rows = dict(self._read_index().sessions)
        # Made now, in the turn: what was erased since a file was written must not come back here.
        for tenant, session_id in self._unindexed:
            with contextlib.suppress(errors.Corrupt, errors.Erased):
                state, name = self._state(tenant, session_id), self._name(tenant, session_id)
                rows.pop(name, None)
                if state is not None:
                    rows[name] = _index_row(tenant, state)
        known = {**self._read_index().positions, **positions}
        document: dict[str, Json] = {
            "limpet": "sessions", "format": FORMAT_VERSION, "positions": known, "sessions": {**rows},
        }  # fmt: skip
        self._documents.put(INDEX_NAME, document)
        self._index = _FileIndex(positions=known, sessions=rows)
        self._index_seal = self._documents.checksum(INDEX_NAME)
        self._unindexed = {}

    def _write(self, tenant: str, session_id: str) -> None:
        name, state = self._name(tenant, session_id), self._state(tenant, session_id)
        if state is None:
            self._documents.drop(name)
            self._written_counts.pop(name, None)
        else:
            present = self._documents.get_primary(name)
            if present is None or present.get("version") != state.version:
                self._documents.put(name, self._document(tenant, state))
            self._written_counts[name] = state.message_count
        self._unindexed[tenant, session_id] = None

    def _state(self, tenant: str, session_id: str) -> SessionState | None:
        with contextlib.suppress(errors.SessionNotFound):
            state = self._engine.states.current(tenant, session_id)
            return None if state is None or state.hidden else state
        return None

    def _document(self, tenant: str, state: SessionState) -> dict[str, Json]:
        store, stream = self._engine.store, session_stream(state.id)
        last = store.read(tenant, stream, after=state.version - 1, until=state.version)
        messages = Messages(MessageReader(self._engine, tenant, state))
        return {
            "limpet": "session",
            "format": FORMAT_VERSION,
            "tenant": tenant,
            "stream": stream,
            "version": state.version,
            "link": last[-1].link.hex() if last else "",
            "id": state.id,
            "user_id": state.user_id,
            "title": state.title,
            "status": str(state.status),
            "created_at": state.created_at,
            "last_active": state.last_active,
            "metadata": thaw(state.full_metadata()),
            "messages": [message.to_dict() for message in messages],
        }

    def read_verified(self, tenant: str, session_id: str) -> tuple[dict[str, Json], list[Message]] | None:
        """Return what a session's file says, or its backup, and its messages; None if neither verifies."""
        document = self._documents.get(self._name(tenant, session_id))
        if document is None or (document.get("tenant"), document.get("id")) != (tenant, session_id):
            return None
        if self._is_of_log(tenant, document):
            with contextlib.suppress(errors.Error, msgspec.ValidationError):
                said = msgspec.convert(document.get("messages", []), list[dict[str, Any]])
                return document, [Message.from_dict(each) for each in said]
        return None

    def _is_of_log(self, tenant: str, document: Mapping[str, Json]) -> bool:
        """Whether a document is not of another log: at its version this one has its link, or can't be read there."""
        match document:
            case {"stream": str(stream), "version": int(version), "link": str(link)} if 0 < version <= POSITION_MAX:
                with contextlib.suppress(errors.Corrupt):
                    found = self._engine.store.read(tenant, stream, after=version - 1, until=version, at=version)
                    return not found or found[-1].link.hex() == link
                return True
            case _:
                return False

    def close(self) -> None:
        """Write what is left to write, or raise why not, and stop. A forked child leaves that to its parent."""
        try:
            self._engine.check()
        except (errors.EngineClosed, errors.ForkedEngine):
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.write_changed()


def _index_row(tenant: str, state: SessionState) -> dict[str, Json]:
    return {
        "tenant": tenant, "id": state.id, "title": state.title or state.preview,
        "status": str(state.status), "messages": state.message_count, "version": state.version,
        "last_active": state.last_active,
    }  # fmt: skip


COMPLETE_KEY: Final = "recovery"
"""The key of a recovery session's metadata that says that it is complete, and how."""


def recovery_id(session_id: str) -> str:
    return f"recovery_{hashlib.sha256(session_id.encode(errors='surrogatepass')).hexdigest()[:24]}"


class SessionRecovery:
    """Recovers sessions of one tenant."""

    def __init__(self, sessions: Sessions, engine: Engine, tenant: str, files: SessionFiles | None) -> None:
        self._sessions = sessions
        self._engine = engine
        self._tenant = tenant
        self._files = files

    def complete_recovery(self, session_id: str) -> SessionState | None:
        """Return the recovery session of a damaged one; None if there is none, or it is not complete."""
        present = self._existing_session(recovery_id(session_id))
        return present.state if present is not None and COMPLETE_KEY in present.metadata else None

    def replacement(self, state: SessionState) -> SessionState | None:
        """Return the recovery session of one that says that it has one; None if that is gone, or not complete."""
        names_it = state.metadata.get(RECOVERED_TO_KEY) == recovery_id(state.id)
        return self.complete_recovery(state.id) if names_it else None

    def is_sound(self, session_id: str) -> bool:
        """Return whether everything of a session can be read. Reads all of it."""
        return not self._salvage(session_id).damaged

    def rebuild_from_copy(self) -> bool:
        """Make everything again from the other copy of the log, if there is one that is whole."""
        if self._files is not None:
            with contextlib.suppress(errors.Corrupt):
                state_cache.rebuild_store(self._engine.store)
                return True
        return False

    def recover(self, session_id: str, error: errors.Corrupt) -> SessionState:
        """Begin the recovery session of a damaged one, or go on with it; return it, complete."""
        made = recovery_id(session_id)
        present = self._existing_session(made)
        document, messages = (self._files and self._files.read_verified(self._tenant, session_id)) or ({}, [])
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
        return recovered.state

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
    """What can be read of a session: messages and title, and how many events are damaged, or erased."""

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
