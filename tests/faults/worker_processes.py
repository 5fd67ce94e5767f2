"""Processes that do background work, and are killed at a step of it.

    python -P working.py

A step is a commit, a note, a call of the memory engine or of the summariser; see stepping.py. The clock of each run is
an hour ahead of the one before, so that a dead worker's leases are over.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from limpet import Message, StateManager, WindowPolicy, limits  # noqa: E402 - found from the checkout
from limpet.core.values import ids  # noqa: E402
from limpet.core.values.memory_records import History  # noqa: E402
from limpet.jobs.offload import OffloadTask  # noqa: E402
from limpet.jobs.summaries import SummaryTask  # noqa: E402
from limpet.jobs.worker import Worker  # noqa: E402
from limpet.runtime.engine import Engine  # noqa: E402
from limpet.sessions.manager import Sessions, SessionService  # noqa: E402
from limpet.sessions.requests import Settings  # noqa: E402
from limpet.stores import sqlite  # noqa: E402
from limpet.stores.sqlite.store import SQLiteStore  # noqa: E402
from tests.faults import step_kills  # noqa: E402
from tests.faults.step_kills import Kill, Steps  # noqa: E402
from tests.full_memory_store import Ledger  # noqa: E402

HOUR_US = 3_600_000_000
POLICY = WindowPolicy(budget=300, summary="en")
ROUNDS = 12


def told(messages: Sequence[Message]) -> str:
    """Return what the summary of these messages has to say."""
    return f"{len(messages)} from {messages[0].id} to {messages[-1].id}"


def filled(sessions: Sessions, session_id: str, name: str) -> None:
    """Go through some rounds, so that a cut is due."""
    for number in range(ROUNDS):
        sessions.add_messages(
            session_id, [Message("user", f"{name} {number}?"), Message("assistant", f"{name} {number}. " * 9)]
        )


class Writer:
    """A summariser that says what it was given. While it writes for the first time, the session grows."""

    name = "writer"

    def __init__(self, sessions: Sessions, steps: Steps, folder: Path) -> None:
        self._sessions = sessions
        self._steps = steps
        self._grown = folder / "grown"

    def __call__(self, messages: Sequence[Message], before: str | None) -> str:
        return self._steps.take("summarize", lambda: self._write(messages))

    def _write(self, messages: Sequence[Message]) -> str:
        if not self._grown.exists():
            filled(self._sessions, "long", "meanwhile")
            self._grown.touch()
        return told(messages)


class Watched(Ledger):
    """The memory engine, whose calls are steps."""

    def __init__(self, path: Path, steps: Steps) -> None:
        super().__init__(path)
        self._steps = steps

    def ingest(self, history: History, messages: Any) -> None:
        self._steps.take("ingest", lambda: super(Watched, self).ingest(history, messages))


def run(folder: Path, kill: Kill | None, number: int) -> None:
    """Do all the work there is, up to the step where the process is killed; write down its steps."""
    steps = Steps(kill)
    for name in ("commit", "put_note"):
        setattr(SQLiteStore, name, _counted(name, getattr(SQLiteStore, name), steps))
    factory = ids.Factory(
        now_us=lambda: ids.SYSTEM_FACTORY.now_us() + number * HOUR_US, random=ids.SYSTEM_FACTORY.random
    )
    engine = Engine(sqlite.open_store(folder / "state.db"), factory=factory)
    sessions = Sessions(SessionService(engine, Settings(), factory=factory))
    tasks = [
        OffloadTask(engine, Watched(folder / "memory.jsonl", steps)),
        SummaryTask(engine, Writer(sessions, steps, folder)),
    ]
    Worker(engine, tasks).run_once()
    engine.close()
    (folder / "steps.json").write_text(json.dumps(steps.names))


def _counted(name: str, verb: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def counted(store: SQLiteStore, *given: Any, **named: Any) -> Any:
        return steps.take(name, lambda: verb(store, *given, **named))

    return counted


class Server(step_kills.Server):
    """Runs workers."""

    def __init__(self) -> None:
        super().__init__(__file__)

    def run(self, folder: Path, kill: Kill | None, number: int) -> int:
        """Work in a folder, for the so-manieth time; return the exit code of the worker's process."""
        return self.ask(folder, kill, number=number)


if __name__ == "__main__":
    StateManager(limit=1_000).count([Message("user", "x")])  # loads the vocabulary
    limits.BACKOFF_S = 0.0
    step_kills.serve(run)
