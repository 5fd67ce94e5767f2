"""A recorded erasure, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import limpet
from limpet import limits
from limpet.stores import files
from limpet.stores.sqlite import store as sqlite_store
from tests.faults import recorded_run
from tests.faults.oplog import OpLog
from tests.faults.recorder import RecordingFiles, RecordingVFS

SEGMENT_BYTES = 3_000
"""Of a journal, so that an erasure has several to replace."""

SECRET = "Kestrel0001 MARMOT0001"


def erase(folder: str, backend: str = "sqlite") -> None:
    """Make a store in a folder and forget a user; every file operation is kept, and where the erasure is among them."""
    log = OpLog(Path(folder, "operations"))
    root = Path(folder, "store", "state") if backend == "files" else None
    vfs = RecordingVFS(log, root=root)
    sqlite_store.StoreFiles = files.StoreFiles = lambda: RecordingFiles(log, root)
    limits.JOURNAL_SEGMENT_BYTES = SEGMENT_BYTES
    with limpet.connect(recorded_run.url(Path(folder, "store"), backend)) as lp:
        for name, user, words in (("mine", "ada", SECRET), ("kept", "bob", "hello")):
            session = lp.sessions.create_session(name, user_id=user, title=words)
            for _ in range(5):
                session.add_message({"role": "user", "content": words})
            lp.sessions.save_session(session)
        log.note({"erasure": "begins"})
        lp.admin.erase(user_id="ada")
        log.note({"erasure": "done"})
    vfs.unregister()
