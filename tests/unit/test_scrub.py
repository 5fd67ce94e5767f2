"""After an erasure nothing of it is in any file: database, log, boxes, list, backup; whatever died in between."""

from pathlib import Path

import apsw
import pytest

from limpet import errors, limits
from limpet.stores import sqlite
from limpet.stores.port import Append, KeyUse, Projection, Report, Snapshot, StreamWrite
from limpet.stores.sqlite import database
from limpet.stores.sqlite.shared_file import commit_handoff, store_files
from limpet.testing.store_contract.erasure_contract import (
    append_events,
    claim_event,
    claim_payload,
    derive_claims,
    erase_all,
    event_erasure,
    stream_erasure,
)
from limpet.testing.store_contract.harness import TENANT, commit_all

CANARY = "xylophone-4711"
BLOB = f"{CANARY} large".encode() * 3_000


def told(store: sqlite.SQLiteStore) -> None:
    """Put the canary wherever a caller's text goes."""
    write = StreamWrite(
        f"s/{CANARY}", 0, (claim_event(CANARY, CANARY, (BLOB,)),), ((CANARY, 0),)
    )  # fmt: skip
    row = Projection(
        kind="row", id=f"s/{CANARY}", owner=CANARY, lookup=CANARY, terms=(CANARY,), document=CANARY.encode()
    )  # fmt: skip
    commit_all(
        store,
        Append(
            tenant=TENANT, writes=(write,), projections=(row,), key=KeyUse(CANARY, b"h"),
            snapshots=(Snapshot(f"s/{CANARY}", 1, 1, CANARY.encode()),),
        ),
    )  # fmt: skip
    for number in range(40):
        append_events(store, f"s/{CANARY}", claim_event(f"{CANARY}-{number}", f"{CANARY}{number}"))
    append_events(store, "other", claim_event("c1", "kept"))


def found(folder: Path, text: str = CANARY) -> list[str]:
    """Return the files that have a text."""
    return [f.name for f in folder.iterdir() if text.encode() in f.read_bytes().lower()]


@pytest.fixture
def store(tmp_path: Path):
    store = sqlite.open_store(tmp_path / "state.db")
    told(store)
    yield store
    store.close()


def verified(store: sqlite.SQLiteStore) -> Report:
    *_, report = store.verify()
    assert isinstance(report, Report)
    return report


def test_no_file_has_it_any_more(store: sqlite.SQLiteStore, tmp_path: Path):
    assert found(tmp_path)
    erase_all(store, stream_erasure(store, f"s/{CANARY}", todo=CANARY.encode()))
    assert "state.db-wal" in found(tmp_path)
    store.scrub(CANARY.encode())
    assert found(tmp_path) == []
    assert found(tmp_path, "kept") == ["state.db"]
    assert verified(store).ok
    list(store.backup(str(tmp_path / "copy.db")))
    assert found(tmp_path) == []


def test_pages_have_their_checksums_afterwards(store: sqlite.SQLiteStore, tmp_path: Path):
    erase_all(store, stream_erasure(store, f"s/{CANARY}"))
    store.scrub()
    store.close()
    connection = database.connect(tmp_path / "state.db", write=False)
    assert connection.reserve_bytes() == database.RESERVE_BYTES
    pages = (tmp_path / "state.db").stat().st_size // 4096
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    connection.close()
    data = bytearray((tmp_path / "state.db").read_bytes())
    data[(pages - 1) * 4096 + 2000] ^= 1
    (tmp_path / "state.db").write_bytes(data)
    with pytest.raises((apsw.IOError, apsw.CorruptError)):
        database.connect(tmp_path / "state.db", write=False).execute("PRAGMA integrity_check").fetchall()


def test_boxes_are_blank_afterwards(store: sqlite.SQLiteStore, tmp_path: Path):
    with (tmp_path / "state.db-lock").open("r+b") as lock:
        lock.write(commit_handoff.LOCK_FILE_MAGIC)
        for box in (0, 7, 31):
            lock.seek(commit_handoff._mailbox_offset(box) + commit_handoff.OUTCOMES_BYTES + 20)
            lock.write(CANARY.encode())
    erase_all(store, stream_erasure(store, f"s/{CANARY}"))
    store.scrub()
    assert found(tmp_path) == []


def test_whoever_died_before_the_scrub_has_it_done_by_the_next(store: sqlite.SQLiteStore, tmp_path: Path):
    erase_all(store, stream_erasure(store, f"s/{CANARY}"))
    store.close()
    assert found(tmp_path)
    with_it_done = sqlite.open_store(tmp_path / "state.db")
    assert with_it_done.pending_erasures() is None
    assert found(tmp_path) == []
    with_it_done.close()


def test_what_is_left_to_do_is_left_to_whoever_can(store: sqlite.SQLiteStore, tmp_path: Path):
    erase_all(store, stream_erasure(store, f"s/{CANARY}", todo=b"tell others"))
    store.close()
    again = sqlite.open_store(tmp_path / "state.db")
    assert again.pending_erasures() == b"tell others"
    again.scrub(b"tell others")
    assert again.pending_erasures() is None
    again.close()


def test_a_reader_keeps_the_log_but_not_for_ever(
    store: sqlite.SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "SCRUB_WAIT_S", 0.05)
    reader = database.connect(tmp_path / "state.db", write=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM events").fetchall()
    erase_all(store, stream_erasure(store, f"s/{CANARY}"))
    with pytest.raises(errors.StoreBusy, match="reading") as refused:
        store.scrub()
    assert refused.value.facts["pending"] is True
    assert store.version(TENANT, f"s/{CANARY}") == 0
    assert store.pending_erasures() is not None
    append_events(store, "other", claim_event("c2", "goes on"))
    reader.execute("ROLLBACK")
    reader.close()
    store.scrub()
    assert found(tmp_path) == []
    assert verified(store).ok


def test_another_opener_forgets_what_it_knew(store: sqlite.SQLiteStore, tmp_path: Path):
    other = sqlite.open_store(tmp_path / "state.db")
    append_events(other, f"s/{CANARY}", claim_event("", "theirs"))
    with other.write_lock():
        assert other.version(TENANT, f"s/{CANARY}") == 42
    erase_all(store, stream_erasure(store, f"s/{CANARY}"))
    store.scrub()
    assert other.version(TENANT, f"s/{CANARY}") == 0
    with other.write_lock() as alone:
        assert not alone
        assert other.version(TENANT, f"s/{CANARY}") == 0
        assert other.read(TENANT, f"s/{CANARY}") == []
    append_events(other, f"s/{CANARY}", claim_event("", "anew"))
    assert store.version(TENANT, f"s/{CANARY}") == 1
    other.close()


def test_offers_from_before_are_not_collected(store: sqlite.SQLiteStore, tmp_path: Path):
    other = sqlite.open_store(tmp_path / "state.db")
    before = other._handoff.layout
    assert before == store._handoff.layout
    erase_all(store, stream_erasure(store, f"s/{CANARY}"))
    with store.write_lock():
        assert store._handoff.layout != before
    with other.write_lock():
        assert other._handoff.layout == store._handoff.layout
    other.close()


def test_the_list_names_events_and_nothing_else(store: sqlite.SQLiteStore, tmp_path: Path):
    erase_all(store, event_erasure(store, "other", 1, claim_payload("", "-")))
    erase_all(store, stream_erasure(store, f"s/{CANARY}"))
    store.scrub()
    listed = store_files.erased_list_path(tmp_path / "state.db")
    assert listed.stat().st_mode & 0o777 == 0o600
    entries = store_files.read_erased_list(listed)
    assert sorted((e.tenant, e.stream, e.cause, len(e.events)) for e in entries) == [(1, 1, 0, 41), (1, 42, 42, 1)]
    links = {e.position: e.link for e in store.feed(TENANT)}
    assert all(links[at].startswith(link) for e in entries for at, link in e.events)


def test_a_damaged_list_is_said_to_be(store: sqlite.SQLiteStore, tmp_path: Path):
    list(store.backup(str(tmp_path / "old.db")))
    erase_all(store, stream_erasure(store, f"s/{CANARY}"))
    store.scrub()
    store.close()
    listed = store_files.erased_list_path(tmp_path / "state.db")
    listed.write_bytes(listed.read_bytes()[:-1] + b"\0")
    with pytest.raises(errors.Corrupt, match="list of what was erased"):
        sqlite.open_store(tmp_path / "state.db")


def test_a_copy_from_before_is_not_opened_by_who_cannot_erase_it(store: sqlite.SQLiteStore, tmp_path: Path):
    list(store.backup(str(tmp_path / "old.db")))
    erase_all(store, stream_erasure(store, f"s/{CANARY}"))
    store.scrub()
    store.close()
    (tmp_path / "old.db").replace(tmp_path / "state.db")
    (tmp_path / "state.db-anchor").unlink()
    with pytest.raises(errors.Refused, match="erased since"):
        sqlite.open_store(tmp_path / "state.db")


def test_rebuild_and_mend_go_through_with_what_is_left(store: sqlite.SQLiteStore, tmp_path: Path):
    erase_all(store, event_erasure(store, "other", 1, claim_payload("c9", "-")))
    erase_all(store, stream_erasure(store, f"s/{CANARY}"))
    store.scrub()
    for _ in store.rebuild(derive_claims):
        pass
    assert store.find_claim(TENANT, "other", "c9") == 1
    store.close()
    sqlite.repair_page_checksums(tmp_path / "state.db", derive_claims)
    again = sqlite.open_store(tmp_path / "state.db")
    assert verified(again).ok
    again.close()
