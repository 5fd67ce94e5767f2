"""A store with all that there is beside it, opened through the public interface: memory, meaning, summaries, a worker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import limpet
from limpet import Limpet, Message

DIMENSIONS = 16


class Letters:
    """An embedder of no wit: the letters of a text, counted."""

    name = "letters"
    dimensions = DIMENSIONS

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text."""
        return [self._one(text.lower()) for text in texts]

    def _one(self, text: str) -> list[float]:
        row = [1.0] * DIMENSIONS
        for letter in text:
            row[ord(letter) % DIMENSIONS] += 1.0
        return row


def repeat(messages: Sequence[Message], before: str | None) -> str:
    """Summarise by saying the beginning of the last message again: short enough for the smallest window."""
    return str(messages[-1].content or before or "nothing")[:24]


def opened(path: Path | str, tenant: str = "default") -> Limpet:
    """Open a store with everything."""
    return limpet.connect(path, tenant=tenant, memory=True, embedder=Letters(), summarizer=repeat, idle_timeout_s=None)


def worked(lp: Limpet) -> None:
    """Do all the background work that there is."""
    done = lp.worker(every_tenant=True).run_once()
    assert done.failures == 0
    for task in lp.worker(every_tenant=True).status():
        assert not task.error and not task.told.get("failing") and not task.told.get("dead"), task


def said(lp: Limpet, session_id: str, user_id: str, *texts: str, end: bool = True) -> None:
    """Have a user say something in a session, and end it."""
    session = lp.sessions.create_session(session_id, user_id=user_id)
    session.add_messages([{"role": "user", "content": text} for text in texts])
    if end:
        lp.sessions.end_session(session_id)


def known(lp: Limpet, user_id: str) -> list[str]:
    """Return what is known of a user, in order."""
    return sorted(fact.text for fact in lp.memory.facts(user_id))


def beside(path: Path) -> list[Path]:
    """Return the files of the memory."""
    return sorted(path.parent.glob(f"{path.name}-memory*"))


def has(folder: Path, words: str) -> set[str]:
    """Return the files of a folder in which a pattern is, however it is written."""
    pattern = re.compile(words.encode(), re.IGNORECASE)
    return {file.name for file in folder.iterdir() if pattern.search(file.read_bytes())}
