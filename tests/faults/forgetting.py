"""A recorded erasure, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.store import sqlite
from tests.faults.oplog import OpLog
from tests.faults.recorder import RecordingFiles, RecordingVFS

SECRET = "Kestrel0001 MARMOT0001"


def erase(folder: str) -> None:
    """Make a store in a folder and forget a user; every file operation is kept, and where the erasure is among them."""
    log = OpLog(Path(folder, "operations"))
    vfs = RecordingVFS(log)
    sqlite.Files = lambda: RecordingFiles(log)
    with holdfast.connect(Path(folder, "store", "state.db")) as hf:
        for name, user, words in (("mine", "ada", SECRET), ("kept", "bob", "hello")):
            session = hf.sessions.create_session(name, user_id=user, title=words)
            for _ in range(5):
                session.add_message({"role": "user", "content": words})
        log.note({"erasure": "begins"})
        hf.admin.erase(user_id="ada")
        log.note({"erasure": "done"})
    vfs.unregister()
