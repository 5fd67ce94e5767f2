"""Everything that the public reads say of a store, as text that can be compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import holdfast

RAISED = "raised"
Answers = Mapping[str, str]


def ask(path: Path, sessions: list[str]) -> Answers:
    """Open the store and ask everything; an answer is text, or RAISED with one of our own errors.

    Any other exception gets through: it is a fault.
    """
    try:
        engine = holdfast.connect(path)
    except holdfast.Error:
        return {"open": RAISED}
    with engine:
        return {name: _answer(read) for name, read in _reads(engine, sessions).items()}


def _answer(read: Callable[[], object]) -> str:
    try:
        return json.dumps(msgspec.to_builtins(read(), enc_hook=_plain), sort_keys=True)
    except holdfast.Error:
        return RAISED


def _plain(value: object) -> object:
    return list(value) if isinstance(value, (list, tuple)) else str(value)


def _reads(engine: holdfast.Holdfast, sessions: list[str]) -> dict[str, Callable[[], object]]:
    manager = engine.sessions
    reads: dict[str, Callable[[], object]] = {
        "verify": lambda: engine.admin.verify().ok or _refuse(),
        "list": manager.list_sessions,
        "list by metadata": lambda: manager.list_sessions(user_id="ada", metadata={"number": 2}),
        "feed": lambda: list(engine.events.feed()),
    }
    for session in sessions:
        reads |= {
            f"{session}, {name}": partial(read, manager, session)
            for name, read in _OF_A_SESSION.items()
        }
    return reads


def _refuse() -> None:
    raise holdfast.Corrupt


def _state(manager: holdfast.SessionManager, session: str) -> object:
    loaded = manager.load_session(session)
    return loaded and loaded.state


_OF_A_SESSION: dict[str, Callable[[holdfast.SessionManager, str], Any]] = {
    "state": _state,
    "messages": lambda manager, session: [m.raw() for m in manager.get_session(session).messages],
    "pending": lambda manager, session: manager.pending_calls(session),
}
