"""Limpet as the benchmarks drive it: only its public verbs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import limpet
from benchmarks import harness
from benchmarks.loads import Load
from tests.corpus import ChatMessage

BATCH = 2_000
SESSION_MAX = 100_000_000
"""So that conversations laid end to end stay one session instead of going on in the next."""


def connect(path: Path | str) -> limpet.Limpet:
    return limpet.connect(path, max_messages_per_session=SESSION_MAX)


def appender(path: Path | str, load: Load, closing: contextlib.ExitStack) -> harness.Slice:
    """Append one message at a time to one session of a store that stays open."""
    store = closing.enter_context(connect(path))
    session = store.sessions.create_session(user_id="ada")
    return session_appender(session, load.laid_end_to_end())


def session_appender(session: limpet.Session, messages: Iterator[ChatMessage]) -> harness.Slice:
    return lambda seconds: harness.repeat_for(seconds, lambda: session.add_message(next(messages)))


def fill(session: limpet.Session, load: Load, messages: int) -> None:
    """Bring a session to about so many messages, in large batches."""
    for batch in load.batches(messages, BATCH):
        session.add_messages(batch)


def stored_bytes(path: Path) -> int:
    """Count every byte that a store keeps on disk: the database and all files beside it."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
