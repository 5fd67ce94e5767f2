"""A store as small as it can be with everything in it: database, WAL with commits, anchor."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import apsw

import limpet
from limpet import Message, ToolCallRequest, ToolCallResult, limits
from limpet.stores.sqlite import database

STORE = "state.db"
PAGE_BYTES = 512
LARGE_BYTES = 40
"""A text above it is a blob here."""


def make(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """The files of such a store, as a crash leaves them, and its sessions."""
    store = folder / STORE
    limpet.connect(store).close()
    _shrink(store)
    with patch.object(limits, "BLOB_BYTES_MIN", LARGE_BYTES), limpet.connect(store) as engine:
        _first_half(engine.sessions)
        assert engine.admin.status()["blobs"]
    with limpet.connect(store) as engine:
        sessions = _second_half(engine.sessions)
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.endswith("-lock")}
    return files, sessions


def _shrink(store: Path) -> None:
    """Rewrite the database with small pages, the sums of its pages included."""
    for vfs, statements in (
        ("unix", ("PRAGMA journal_mode = DELETE", f"PRAGMA page_size = {PAGE_BYTES}", "VACUUM")),
        (database.CHECKSUM_VFS, ("PRAGMA checksum_verification = OFF", "VACUUM", "PRAGMA journal_mode = WAL")),
    ):
        connection = apsw.Connection(str(store), vfs=vfs)
        for statement in statements:
            list(connection.execute(statement))
        connection.close()


def _first_half(sessions: limpet.SessionManager) -> None:
    trip = sessions.create_session("trip", user_id="ada", key="once")
    trip.add_message({"role": "user", "content": "Find me a flight to Oslo, this week or the next."})
    call = ToolCallRequest(id="call-1", name="search", args={"to": "OSL"})
    trip.add_message(Message(role="assistant", tool_calls=[call]))
    result = ToolCallResult(tool_call_id="call-1", result={"flights": 3})
    trip.add_message(Message(role="tool", tool_results=[result]))
    sessions.update_session("trip", title="Oslo", metadata={"number": 2})
    sessions.create_session("old", user_id="bob", metadata={"number": 1})
    sessions.end_session("old")
    sessions.create_continuation_session(trip)


def _second_half(sessions: limpet.SessionManager) -> list[str]:
    trip = sessions.session_chain("trip")[-1]
    calls = [ToolCallRequest(id=f"call-{number}", name="book") for number in (2, 3)]
    trip.add_message(Message(role="assistant", tool_calls=calls))
    trip.add_message(Message(role="tool", tool_results=[ToolCallResult(tool_call_id="call-3")]))
    return ["trip", trip.id]
