"""The SQLite store: one file for many threads and processes, safe through power loss.

Read `store.py` first (the verbs), then `log_writes.py` (an append), `database.py` and `shared_file/store_files.py`.
"""

from __future__ import annotations

from limpet.stores.sqlite.maintenance import repair_page_checksums
from limpet.stores.sqlite.shared_file.store_files import StoreFiles
from limpet.stores.sqlite.store import SQLiteStore, open_store

__all__ = ["SQLiteStore", "StoreFiles", "open_store", "repair_page_checksums"]
