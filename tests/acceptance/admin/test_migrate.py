"""A store moves into another one: all of it, as it was, and everything goes on there."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import limpet
from limpet import Limpet, errors, limits
from limpet.admin import migrate
from limpet.admin.migrate import Migrated
from limpet.stores import sqlite, store_copy
from limpet.stores.port import RawEvent, Store
from limpet.stores.volatile import VolatileStore
from limpet.wiring import store_opener
from limpet.wiring.store_opener import open_store
from tests.acceptance import full_store
from tests.acceptance.conversation_steps import engine_of
from tests.acceptance.marker_words import Canaries, fill, found
from tests.property.backends import OPENERS, opened


def lived(path: Path) -> None:
    """Make a store with sessions, forks, frames, summaries, large texts, keys, notes, what was erased, two tenants."""
    c = Canaries()
    for tenant in ("default", "globex"):
        with full_store.opened(path, tenant) as lp:
            fill(lp, "ada", c, c.count + 30)
            gone = fill(lp, "bob", c, c.count + 30)
            full_store.said(lp, "told", "cleo", "My name is Cleo and I live in Oslo.")
            full_store.worked(lp)
            lp.sessions.delete_session(gone[-1])
            lp.admin.erase(user_id="bob")


def kept(store: Store) -> object:
    """Return all that a store keeps and shows of its tenants."""
    tenants = sorted(store.tenants())
    logs = [store.copy_events(tenant, limit=100_000) for tenant in tenants]
    blobs = [
        store.blobs(tenant, {hash_ for raw in log for hash_ in raw.blobs})
        for tenant, log in zip(tenants, logs, strict=True)
    ]
    notes = [
        [
            (name, note.value)
            for name, note in store.notes(tenant, limit=10_000)
            if "lease/" not in name and name != store_copy.COPY_NOTE
        ]
        for tenant in tenants
    ]  # fmt: skip
    return (tenants, logs, blobs, notes, [store.copy_keys(tenant, limit=10_000) for tenant in tenants])


def kept_at(path: Path) -> object:
    with closing(open_store(path)) as store:
        return kept(store)


def exported(path: Path, folder: Path, tenant: str = "default") -> list[bytes]:
    """Return the lines of an export, but for the first, which says when it was made."""
    file = folder / f"{path.name}-{tenant}.jsonl"
    with limpet.connect(path, tenant=tenant) as lp:
        lp.admin.export(file)
    lines = file.read_bytes().splitlines()
    file.unlink()
    return lines[1:-1]


def rows(lp: Limpet) -> object:
    return (
        [row["id"] for row in lp.sessions.list_sessions(limit=1_000)],
        [frame.frame_id for frame in lp.index.list_frames(limit=1_000)],
        [suspension.suspension_id for suspension in lp.index.list_suspensions()],
    )


@pytest.mark.req("A-20")
def test_a_store_is_the_same_elsewhere(tmp_path: Path):
    source, copy = tmp_path / "a.db", tmp_path / "b.db"
    lived(source)
    with limpet.connect(source) as lp:
        told = rows(lp)
        moved = lp.admin.migrate(copy)
        heads = lp.admin.status()["heads"]
    assert (moved.tenants, moved.behind, moved.verified, moved.passes) == (2, {}, True, 1)
    assert moved.heads == {tenant: head["link"] for tenant, head in heads.items()}
    assert moved.events == moved.copied == sum(head["position"] for head in heads.values())
    assert kept_at(copy) == kept_at(source)
    for tenant in ("default", "globex"):
        assert exported(copy, tmp_path, tenant) == exported(source, tmp_path, tenant)
    with limpet.connect(copy) as lp:
        assert rows(lp) == told
        assert lp.admin.verify().ok
        session = lp.sessions.create_session("new")
        session.add_message({"role": "user", "content": "it goes on"})


def test_memory_is_made_again_beside_it(tmp_path: Path):
    source, copy = tmp_path / "a.db", tmp_path / "b.db"
    with full_store.opened(source) as lp:
        full_store.said(lp, "told", "cleo", "My name is Cleo and I live in Oslo.")
        full_store.worked(lp)
        before = full_store.known(lp, "cleo")
        lp.admin.migrate(copy)
    assert before
    with full_store.opened(copy) as lp:
        full_store.worked(lp)
        assert full_store.known(lp, "cleo") == before
        assert lp.archive.search("Oslo", user_id="cleo")


def test_through_a_store_that_has_no_file_and_back(tmp_path: Path):
    source, copy = tmp_path / "a.db", tmp_path / "b.db"
    lived(source)
    between = VolatileStore()
    with closing(open_store(source)) as store:
        migrate.migrate(store, between, lambda *_: None)
    with closing(open_store(copy)) as store:
        migrate.migrate(between, store, lambda *_: None)
    assert kept_at(copy) == kept_at(source)
    assert exported(copy, tmp_path) == exported(source, tmp_path)


def test_what_was_written_since_is_copied_by_the_next_one(tmp_path: Path):
    source, copy = tmp_path / "a.db", tmp_path / "b.db"
    with limpet.connect(source) as lp:
        session = lp.sessions.create_session("s", user_id="ada")
        session.add_message({"role": "user", "content": "one"}, key="k1")
        first = lp.admin.migrate(copy)
        session.add_message({"role": "user", "content": "two"}, key="k2")
        lp.sessions.fork_session("s", new_id="f")
        second = lp.admin.migrate(copy)
        third = lp.admin.migrate(copy)
    assert second.copied == second.events - first.events > 0
    assert third.copied == 0
    assert kept_at(copy) == kept_at(source)


class Erasing:
    """A source that erases a user when it was copied so far."""

    def __init__(self, lp: Limpet, at: int) -> None:
        self._lp, self._store, self._left = lp, engine_of(lp).store, at

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[RawEvent]:
        self._left -= 1
        if self._left == 0:
            self._lp.admin.erase(user_id="ada")
        return self._store.copy_events(tenant, after=after, limit=limit)


@pytest.mark.parametrize("at", [1, 2, 5, 9, 10])
def test_what_is_erased_meanwhile_is_in_no_byte_of_the_copy(fast_dir: Path, at: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "IMPORT_STEP_EVENTS", 4)
    home = fast_dir / "copy"
    home.mkdir()
    with limpet.connect(fast_dir / "a.db") as lp:
        fill(lp, "ada", Canaries(), 40)
        full_store.said(lp, "kept", "bob", "stays")
        assert 36 < engine_of(lp).store.head("default") <= 40
        source: Store = Erasing(lp, at)  # type: ignore[assignment]
        with closing(open_store(home / "b.db")) as store:
            moved = migrate.migrate(source, store, lambda *_: None)
            assert store.pending_erasures() is None
        assert moved.behind == {}
    assert kept_at(home / "b.db") == kept_at(fast_dir / "a.db")
    assert found(home) == {}
    with limpet.connect(home / "b.db") as lp:
        assert [row["id"] for row in lp.sessions.list_sessions()] == ["kept"]


def test_what_is_erased_between_two_tries_is_erased_too(fast_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "IMPORT_STEP_EVENTS", 16)
    home = fast_dir / "copy"
    home.mkdir()
    with limpet.connect(fast_dir / "a.db") as lp:
        fill(lp, "ada", Canaries(), 40)
        full_store.said(lp, "kept", "bob", "stays")
        lp.admin.migrate(home / "b.db")
        assert found(home)
        lp.admin.erase(user_id="ada")
        lp.admin.migrate(home / "b.db")
    assert found(home) == {}
    assert kept_at(home / "b.db") == kept_at(fast_dir / "a.db")


def test_writers_go_on_meanwhile(fast_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "IMPORT_STEP_EVENTS", 8)
    source, copy = fast_dir / "a.db", fast_dir / "b.db"
    begun, stop = threading.Event(), threading.Event()

    def write() -> None:
        with limpet.connect(source, max_messages_per_session=10**6) as lp:
            session = lp.sessions.create_session()
            while not stop.is_set():
                session.add_message({"role": "user", "content": "more"})
                begun.set()

    with limpet.connect(source) as lp:
        full_store.said(lp, "first", "ada", *("words" for _ in range(50)))
        writer = threading.Thread(target=write)
        writer.start()
        begun.wait()
        try:
            moved = lp.admin.migrate(copy)
        finally:
            stop.set()
            writer.join()
        with closing(open_store(copy)) as store:
            ours = engine_of(lp).store.copy_events("default", limit=moved.events)
            assert store.copy_events("default", limit=10**6) == ours, "a prefix of the log"
            assert store.head("default") + moved.behind.get("default", 0) > 52
        again = lp.admin.migrate(copy)
        assert again.behind == {}
    assert kept_at(copy) == kept_at(source)


@pytest.mark.parametrize("more", [False, True], ids=["another log", "more of the same"])
def test_a_target_with_other_events_is_refused(fast_dir: Path, more: bool):
    source, copy = fast_dir / "a.db", fast_dir / "b.db"
    with limpet.connect(source) as lp:
        full_store.said(lp, "s", "ada", "mine")
        if more:
            lp.admin.migrate(copy)
    with limpet.connect(copy) as lp:
        full_store.said(lp, "t", "ada", "theirs")
    before, content = kept_at(copy), copy.read_bytes()
    with limpet.connect(source) as lp, pytest.raises(errors.Conflict, match="has other events of tenant 'default'"):
        lp.admin.migrate(copy)
    assert copy.read_bytes() == content, "nothing was written"
    assert kept_at(copy) == before
    limpet.connect(copy).close()


def test_tenants_of_several_stores_come_together(fast_dir: Path):
    copy = fast_dir / "all.db"
    for tenant in ("default", "globex"):
        with limpet.connect(fast_dir / f"{tenant}.db", tenant=tenant) as lp:
            full_store.said(lp, "s", "ada", tenant)
            lp.admin.migrate(copy)
    for tenant in ("default", "globex"):
        with limpet.connect(copy, tenant=tenant) as lp:
            assert [m.content for m in lp.sessions.get_session("s").messages] == [tenant]
            assert lp.admin.verify().ok


def test_it_does_not_move_onto_itself(fast_dir: Path):
    with limpet.connect(fast_dir / "a.db") as lp:
        full_store.said(lp, "s", "ada", "mine")
        with pytest.raises(errors.InvalidRequest, match="same store"):
            lp.admin.migrate(fast_dir / "a.db")
        full_store.said(lp, "t", "ada", "more")
    limpet.connect(fast_dir / "a.db").close()


def test_nobody_uses_what_is_not_all_there(fast_dir: Path, monkeypatch: pytest.MonkeyPatch):
    source, copy = fast_dir / "a.db", fast_dir / "state.db"
    with limpet.connect(source) as lp:
        full_store.said(lp, "s", "ada", "mine")
        with monkeypatch.context() as patch:
            patch.setattr(sqlite.SQLiteStore, "rebuild", _failing)
            with pytest.raises(errors.Unavailable):
                lp.admin.migrate(copy)
        with pytest.raises(errors.UnsafeStore, match="incomplete"):
            limpet.connect(copy)
        with pytest.raises(errors.UnsafeStore, match="incomplete"):
            asyncio.run(_opened_async(copy))
        with pytest.raises(errors.UnsafeStore, match="incomplete"):
            limpet.SessionManager(copy.parent)
        with limpet.connect(copy, tenant="other") as other:
            assert other.worker(every_tenant=True).run_once().steps == 0
        lp.admin.migrate(copy)
    limpet.connect(copy).close()
    with closing(open_store(copy)) as store:
        assert not store_copy.is_copy_incomplete(store, "default")


async def _opened_async(path: Path) -> None:
    async with limpet.connect_async(path):
        pass


def _failing(*_: object) -> None:
    raise errors.Unavailable("told to.")


def test_damage_does_not_move(fast_dir: Path, monkeypatch: pytest.MonkeyPatch):
    source, copy = fast_dir / "a.db", fast_dir / "b.db"
    with limpet.connect(source) as lp:
        full_store.said(lp, "s", "ada", "mine", "more")
        store = engine_of(lp).store
        assert isinstance(store, sqlite.SQLiteStore)
        with store._write_transaction() as writer:
            writer.execute("UPDATE events SET payload = CAST('x' AS BLOB) WHERE version = 2")
        with pytest.raises(errors.Corrupt, match="position 2 "):
            lp.admin.migrate(copy)
    with pytest.raises(errors.UnsafeStore):
        limpet.connect(copy)


def test_progress_goes_up_to_the_end(fast_dir: Path):
    told: list[tuple[int, int]] = []
    with limpet.connect(fast_dir / "a.db") as lp:
        full_store.said(lp, "s", "ada", *("words" for _ in range(40)))
        lp.admin.migrate(fast_dir / "b.db", progress=lambda *step: told.append(step))
    assert told == sorted(told)
    assert all(done <= total for done, total in told)


class Fileless(VolatileStore):
    """A store of somebody else that has no file."""


def test_a_store_without_a_file_is_backed_up_into_one(tmp_path: Path):
    source, copy = tmp_path / "a.db", tmp_path / "monday.db"
    lived(source)
    store = Fileless()
    with closing(open_store(source)) as origin:
        migrate.migrate(origin, store, lambda *_: None)
    told: list[tuple[int, int]] = []
    migrate.backup(store, copy, open_store, lambda *step: told.append(step))
    assert told
    assert [file.name for file in tmp_path.glob("monday*")] == ["monday.db"]
    assert kept_at(copy) == kept_at(source)
    with limpet.connect(copy) as lp:
        assert lp.admin.verify().ok
    with pytest.raises(errors.InvalidRequest, match="exists already"):
        migrate.backup(store, copy, open_store, lambda *_: None)


def test_a_volatile_store_can_be_backed_up_and_restored(tmp_path: Path):
    with limpet.connect("volatile:") as lp:
        full_store.said(lp, "s", "ada", "words")
        assert lp.admin.backup(tmp_path / "b.db") == tmp_path / "b.db"
    store_opener.restore(tmp_path / "b.db", tmp_path / "c.db", lambda *_: None)
    with limpet.connect(tmp_path / "c.db") as lp:
        assert [m.content for m in lp.sessions.get_session("s").messages] == ["words"]


def test_a_backup_that_was_broken_off_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with limpet.connect("volatile:") as lp:
        full_store.said(lp, "s", "ada", "words")
        with monkeypatch.context() as patch:
            patch.setattr(sqlite.SQLiteStore, "rebuild", _failing)
            with pytest.raises(errors.Unavailable):
                lp.admin.backup(tmp_path / "b.db")
        assert [file.name for file in tmp_path.iterdir()] == ["b.db.part"]
        lp.admin.backup(tmp_path / "b.db")
    assert [file.name for file in tmp_path.iterdir()] == ["b.db"]


def restored(backup: Path, target: Path) -> Migrated:
    return store_opener.restore(backup, target, lambda *_: None)


def test_a_backup_is_restored_without_what_was_erased_since(tmp_path: Path):
    path, old, home = tmp_path / "state.db", tmp_path / "old.db", tmp_path / "home"
    home.mkdir()
    with limpet.connect(path) as lp:
        fill(lp, "ada", Canaries(), 40)
        full_store.said(lp, "kept", "bob", "stays")
        lp.admin.backup(old)
        lp.admin.erase(user_id="ada")
    (home / "state.db-erased").write_bytes(Path(f"{path}-erased").read_bytes())
    moved = restored(old, home / "state.db")
    assert moved.verified
    with limpet.connect(home / "state.db") as lp:
        assert [row["id"] for row in lp.sessions.list_sessions()] == ["kept"]
    assert found(home) == {}
    with pytest.raises(errors.InvalidRequest, match="exists already"):
        restored(old, home / "state.db")


def test_a_backup_is_restored_only_into_an_empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with limpet.connect(tmp_path / "a.db") as lp:
        full_store.said(lp, "s", "ada", "words")
        lp.admin.backup(tmp_path / "old.db")
    target = VolatileStore()
    monkeypatch.setattr(target, "close", lambda: None)
    real = store_opener.open_store
    monkeypatch.setattr(store_opener, "open_store", lambda url: target if str(url) == "mine://x" else real(url))
    moved = store_opener.restore(tmp_path / "old.db", "mine://x", lambda *_: None)
    assert moved.events == target.head("default") > 0
    assert kept(target) == kept_at(tmp_path / "old.db")
    with pytest.raises(errors.InvalidRequest, match="not empty"):
        store_opener.restore(tmp_path / "old.db", "mine://x", lambda *_: None)


def test_what_is_told_can_be_written_down(fast_dir: Path):
    with limpet.connect(fast_dir / "a.db") as lp:
        full_store.said(lp, "s", "ada", "words")
        moved = lp.admin.migrate(fast_dir / "b.db", verify=False)
    assert not moved.verified
    assert msgspec.json.decode(msgspec.json.encode(moved), type=Migrated) == moved


@pytest.mark.req("A-20")
def test_through_every_backend_and_back(tmp_path: Path):
    source, back = tmp_path / "a.db", tmp_path / "z.db"
    lived(source)
    with contextlib.ExitStack() as stack:
        store: Store = stack.enter_context(closing(open_store(source)))
        for name in OPENERS:
            folder = tmp_path / name
            folder.mkdir()
            following = stack.enter_context(opened(name, folder))
            moved = migrate.migrate(store, following, lambda *_: None)
            assert (moved.behind, moved.verified) == ({}, True), name
            assert kept(following) == kept(store), name
            store = following
        last = stack.enter_context(closing(open_store(back)))
        migrate.migrate(store, last, lambda *_: None)
    assert kept_at(back) == kept_at(source)
    for tenant in ("default", "globex"):
        assert exported(back, tmp_path, tenant) == exported(source, tmp_path, tenant)
