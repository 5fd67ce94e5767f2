"""Processes that let ended sessions go, and are killed at a step of it.

    python -P retiring.py

A step is whatever changes the store, the shelf beside it, or a file of either; see stepping.py. Sessions go two at a time,
and what is left of all of them is done at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import limpet  # noqa: E402 - found from the checkout
from limpet import Limpet, limits  # noqa: E402
from limpet.stores.sqlite import StoreFiles  # noqa: E402
from limpet.stores.sqlite.index_store import SQLiteIndexStore  # noqa: E402
from limpet.stores.sqlite.store import SQLiteStore  # noqa: E402
from tests.acceptance.conversation_steps import engine_of, set_clock  # noqa: E402
from tests.faults import step_kills  # noqa: E402
from tests.faults.step_kills import Kill, Steps  # noqa: E402

BATCH = 2
DAYS = 31
CHANGES: dict[type, tuple[str, ...]] = {
    SQLiteStore: ("erase", "commit", "put_note", "scrub"),
    SQLiteIndexStore: ("write", "scrub"),
    StoreFiles: ("write", "rename", "sync", "remove"),
}


def opened(folder: Path) -> Limpet:
    """Open the store of a folder, with the memory beside it, when all that ended is old enough."""
    lp = limpet.connect(folder / "state.db", memory=True, idle_timeout_s=None)
    set_clock(lp, engine_of(lp).now_us() + DAYS * 86_400_000_000)
    return lp


def run(folder: Path, kill: Kill | None) -> None:
    """Let everything go that may, up to the step where the process is killed; write down its steps."""
    limits.PURGE_BATCH_SESSIONS = BATCH
    steps, lp = Steps(kill), opened(folder)
    for kind, names in CHANGES.items():
        for name in names:
            setattr(kind, name, _counted(f"{kind.__name__}.{name}", getattr(kind, name), steps))
    lp.admin.retention(30)
    (folder.parent / "steps.json").write_text(json.dumps(steps.names))
    lp.close()


def _counted(name: str, verb: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def counted(self: object, *given: Any, **named: Any) -> Any:
        return steps.take(name, lambda: verb(self, *given, **named))

    return counted


class Server(step_kills.Server):
    """Lets sessions go."""

    def __init__(self) -> None:
        super().__init__(__file__)


if __name__ == "__main__":
    step_kills.serve(run)
