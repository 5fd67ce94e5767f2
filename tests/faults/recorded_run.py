"""A recorded run: two processes write through the real engine, and every file operation is kept.

The checkpoint threshold is lowered, so that the run crosses many checkpoints. Twice the last
engine closes, which checkpoints and removes the WAL, and the store is opened anew.
"""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import limpet
from limpet import limits
from limpet.stores import files
from limpet.stores.sqlite import store as sqlite_store
from tests.faults import planted, workload
from tests.faults.journal import Journal, Step, acknowledged, from_notes, submitted
from tests.faults.oplog import Kind, Op, OpLog, read
from tests.faults.recorder import RecordingFiles, RecordingVFS

STORES = {"sqlite": "state.db", "files": "files:state"}
"""Where each backend has its store in the folder of a run."""

FOLDERS = ("journal", "blobs", "sessions", ".index")
SEGMENT_BYTES, JOURNAL_ROOM_BYTES = 8 * 1024, 2 * 1024
BLOB_INLINE_BYTES = 500
STORE = STORES["sqlite"]
LOG = "operations"
PROCESSES = 2
CHECKPOINT_PAGES = 30
MEETING_S = 300.0


def url(folder: Path, backend: str) -> str:
    """How the store of a backend is named that lies in a folder."""
    scheme, colon, name = STORES[backend].rpartition(":")
    return f"{scheme}{colon}{folder / name}"


def record(folder: Path, *, seed: int, steps: int, plant: str = "", backend: str = "sqlite") -> list[Op]:
    """Run the workload in a folder and return its operations; `plant` names a bug to put in."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    (folder / "store").mkdir()
    log = folder / LOG
    writers = [
        context.Process(target=_write, args=(folder, number, seed, steps, plant, backend, barrier))
        for number in range(PROCESSES)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all(writer.exitcode == 0 for writer in writers), "a recorded writer failed"
    return read(log)


def journal_of(ops: list[Op]) -> Journal:
    """What the callers of a recorded run knew; moments are numbers of operations."""
    return from_notes((at, op.note()) for at, op in enumerate(ops) if op.kind is Kind.NOTE)


def _write(folder: Path, number: int, seed: int, steps: int, plant: str, backend: str, barrier: Barrier) -> None:
    try:
        log = OpLog(folder / LOG)
        root = folder / "store" / "state" if backend == "files" else None
        vfs = RecordingVFS(log, root=root)
        sqlite_store.StoreFiles = files.StoreFiles = lambda: RecordingFiles(log, root)
        limits.CHECKPOINT_PAGES = CHECKPOINT_PAGES
        limits.JOURNAL_SEGMENT_BYTES = SEGMENT_BYTES
        limits.JOURNAL_PREALLOCATED_BYTES = JOURNAL_ROOM_BYTES
        limits.BLOB_INLINE_BYTES = BLOB_INLINE_BYTES
        limits.BLOB_BYTES_MIN = workload.LARGE_BYTES
        planted.plant(plant)
        _parts(url(folder / "store", backend), log, number, seed, steps, plant, barrier)
        vfs.unregister()
    except BaseException:
        traceback.print_exc()
        barrier.abort()
        sys.exit(1)


def _parts(store: str, log: OpLog, number: int, seed: int, steps: int, plant: str, barrier: Barrier) -> None:
    shared = workload.shared_ids(2)
    if number == 0:
        with limpet.connect(store) as engine:
            for session in shared:
                _create(log, session, lambda id=session: engine.sessions.create_session(id))
    left: list[str] = []
    for part in range(2):
        barrier.wait(MEETING_S)
        with limpet.connect(store) as engine:
            author = workload.Author(
                engine, log, name=f"p{number}{part}", seed=seed, shared=shared, early_ack=plant == planted.EARLY_ACK
            )
            for session in left:
                author.adopt(session)
            author.work(steps // (PROCESSES * 2))
            left = author.sessions
            barrier.wait(MEETING_S)


def _create(log: OpLog, session: str, act: Callable[[], object]) -> None:
    step = Step(f"create {session}", "recording", session, "create")
    log.note(submitted(step))
    act()
    log.note(acknowledged(step))
