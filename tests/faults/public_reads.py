"""Everything that the public reads say of a store, as bytes that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import limpet

RAISED = b"raised"
Answers = Mapping[str, bytes]


def ask(path: Path, sessions: list[str]) -> Answers:
    """Open the store and ask everything; an answer is JSON, or RAISED with one of our own errors.

    Any other exception gets through: it is a fault.
    """
    try:
        engine = limpet.connect(path)
    except limpet.Error:
        return {"open": RAISED}
    with engine:
        return {name: _answer(read) for name, read in _reads(engine, sessions).items()}


def _answer(read: Callable[[], object]) -> bytes:
    try:
        return _encoder.encode(read())
    except limpet.Error:
        return RAISED


def _plain(value: object) -> object:
    return list(value) if isinstance(value, (list, tuple)) else str(value)


_encoder = msgspec.json.Encoder(enc_hook=_plain, order="sorted")


def _reads(engine: limpet.Limpet, sessions: list[str]) -> dict[str, Callable[[], object]]:
    manager = engine.sessions
    reads: dict[str, Callable[[], object]] = {
        "verify": lambda: engine.admin.verify().ok or _refuse(),
        "status": lambda: _lasting(engine.admin.status()),
        "list": manager.list_sessions,
        "list by metadata": lambda: manager.list_sessions(user_id="ada", metadata={"number": 2}),
        "feed": lambda: list(engine.events.feed()),
    }
    for session in sessions:
        reads |= {f"{session}, {name}": partial(read, manager, session) for name, read in _OF_A_SESSION.items()}
    return reads


def _lasting(status: Mapping[str, Any]) -> dict[str, Any]:
    """What a status says of the content: not where it lies, nor how much room there is."""
    return {name: status[name] for name in ("schema", "events", "heads", "holds", "blobs")}


def _refuse() -> None:
    raise limpet.Corrupt


_OF_A_SESSION: dict[str, Callable[[limpet.SessionManager, str], Any]] = {
    "state": lambda manager, session: manager.get_session(session).state,
    "messages": lambda manager, session: [m.raw() for m in manager.get_session(session).messages],
    "pending": lambda manager, session: manager.pending_calls(session),
}
