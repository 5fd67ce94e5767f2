"""A recorded rebuild: the operations of one, and the rows before it and after it."""

from __future__ import annotations

import pickle
from pathlib import Path

import limpet
from limpet import limits
from limpet.stores.sqlite import database
from limpet.stores.sqlite import store as sqlite_store
from tests.faults import recorded_run, workload
from tests.faults.oplog import OpLog
from tests.faults.recorder import RecordingFiles, RecordingVFS

SEED = 11
STEPS = 120
CACHE_KIB = 24
"""So little that a rebuild writes to the log before it commits."""

DERIVED = ("claims", "projections", "projection_terms", "blob_uses", "snapshots")
Rows = dict[str, list[str]]


def rows(path: Path) -> Rows:
    """Return all that is derived."""
    connection = database.connect(path, write=False)
    try:
        return {t: sorted(map(repr, connection.execute(f"SELECT * FROM {t}"))) for t in DERIVED}
    finally:
        connection.close()


def record(folder: Path) -> None:
    """Fill a store, spoil what is derived, rebuild it; keep every operation, and the rows before and after."""
    log = OpLog(folder / recorded_run.LOG)
    vfs = RecordingVFS(log)
    sqlite_store.StoreFiles = lambda: RecordingFiles(log)
    limits.BLOB_BYTES_MIN = workload.LARGE_BYTES
    limits.CACHE_PAGES_KIB = CACHE_KIB
    store = folder / "store" / recorded_run.STORE
    store.parent.mkdir()
    with limpet.connect(store) as lp:
        workload.Author(lp, log, name="a", seed=SEED).work(STEPS)
        vandal = database.connect(store, write=True)
        vandal.execute("UPDATE projections SET owner = 'mallory'; DELETE FROM claims WHERE version > 3")
        vandal.close()
        before = rows(store)
        log.note({"rebuild": "begins"})
        lp.admin.rebuild()
        log.note({"rebuild": "done"})
        (folder / "rows").write_bytes(pickle.dumps((before, rows(store))))
    vfs.unregister()
