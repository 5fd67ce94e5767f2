"""Promises 12 and 13: notes are compared and set, and whoever waits for news hears of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest

from limpet import errors, limits
from limpet.stores.port import DerivedState, Note, Store
from limpet.testing.contract import stage
from limpet.testing.contract.keeping import AWKWARD
from limpet.testing.contract.stage import OTHER, TENANT, step, take, verified, write

LONG_S = 60.0
"""Far longer than anything here takes: whoever waits so long was not woken."""

_WRITERS = 4
_EACH = 25


class Noting(stage.Stage):
    """Small records beside the log, and waiting for the log."""

    def test_a_note_is_put_on_the_version_that_was_seen(self, store: Store) -> None:
        assert store.note(TENANT, "a") is None
        assert not store.put_note(TENANT, "a", b"too early", expected=1)
        assert store.put_note(TENANT, "a", b"1", expected=0)
        first = store.note(TENANT, "a")
        assert first is not None and first.value == b"1" and first.version > 0
        assert not store.put_note(TENANT, "a", b"again", expected=0)
        assert store.put_note(TENANT, "a", b"", expected=first.version)
        second = store.note(TENANT, "a")
        assert second is not None and second.value == b"" and second.version > first.version
        assert not store.put_note(TENANT, "a", b"late", expected=first.version)
        assert store.note(TENANT, "a") == second

    def test_a_note_is_dropped_on_the_version_that_was_seen(self, store: Store) -> None:
        assert store.put_note(TENANT, "a", None, expected=0), "what is not there can be dropped"
        assert store.put_note(TENANT, "a", b"1", expected=0)
        version = _version(store, "a")
        assert not store.put_note(TENANT, "a", None, expected=version + 1)
        assert store.put_note(TENANT, "a", None, expected=version)
        assert store.note(TENANT, "a") is None
        assert store.notes(TENANT) == []

    def test_a_version_is_never_given_twice(self, store: Store) -> None:
        seen: list[int] = []
        for _ in range(3):
            assert store.put_note(TENANT, "a", b"x", expected=0)
            seen.append(_version(store, "a"))
            assert store.put_note(TENANT, "a", None, expected=seen[-1])
            assert not store.put_note(TENANT, "a", b"late", expected=seen[-1])
        assert len(set(seen)) == 3 and seen == sorted(seen)

    def test_notes_are_listed_by_name(self, store: Store) -> None:
        for name in ("b/2", "a/1", "b/10", "b", "b/1", "c/1"):
            assert store.put_note(TENANT, name, name.encode(), expected=0)
        found = store.notes(TENANT, "b/")
        assert [(name, note.value) for name, note in found] == [
            ("b/1", b"b/1"), ("b/10", b"b/10"), ("b/2", b"b/2")
        ]  # fmt: skip
        assert [name for name, _ in store.notes(TENANT, "b/", limit=2)] == ["b/1", "b/10"]
        assert [name for name, _ in store.notes(TENANT, "b/", after="b/1")] == ["b/10", "b/2"]
        assert [name for name, _ in store.notes(TENANT)] == sorted(
            ("b/2", "a/1", "b/10", "b", "b/1", "c/1")
        )
        assert store.notes(TENANT, "d") == []

    def test_awkward_notes_are_kept_apart(self, store: Store) -> None:
        for at, text in enumerate(AWKWARD):
            assert store.put_note(TENANT, text, b"%d" % at, expected=0)
        for at, text in enumerate(AWKWARD):
            found = store.note(TENANT, text)
            assert found is not None and found.value == b"%d" % at
            begun = {name for name, _ in store.notes(TENANT, text)}
            assert begun == {name for name in AWKWARD if name.startswith(text)}

    def test_tenants_have_their_notes_apart(self, store: Store) -> None:
        assert store.put_note(TENANT, "a", b"ours", expected=0)
        assert store.put_note(OTHER, "a", b"theirs", expected=0)
        assert store.put_note(OTHER, "a", b"theirs still", expected=_version(store, "a", OTHER))
        found = store.note(TENANT, "a")
        assert found is not None and found.value == b"ours"
        assert [note.value for _, note in store.notes(TENANT)] == [b"ours"]
        assert store.tenants() == [], "a note is no event"

    def test_a_note_has_its_limits(self, store: Store) -> None:
        largest = b"x" * limits.NOTE_BYTES_MAX
        longest = "n" * limits.NOTE_NAME_BYTES_MAX
        assert store.put_note(TENANT, longest, largest, expected=0)
        found = store.note(TENANT, longest)
        assert found is not None and found.value == largest
        with pytest.raises(errors.TooLarge):
            store.put_note(TENANT, "a", largest + b"x", expected=0)
        with pytest.raises(errors.TooLarge):
            store.put_note(TENANT, longest + "n", b"", expected=0)
        assert [name for name, _ in store.notes(TENANT)] == [longest]

    def test_of_threads_that_compare_one_sets(self, store: Store) -> None:
        start = Barrier(_WRITERS)

        def work(_: int) -> None:
            start.wait()
            for _ in range(_EACH):
                while not _raised(store):
                    pass

        with ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(work, range(_WRITERS)))
        found = store.note(TENANT, "count")
        assert found is not None and found.value == b"%d" % (_WRITERS * _EACH)

    def test_openers_share_notes(self, store: Store, folder: Path) -> None:
        self.must_reopen()
        with closing(self.open_store(folder)) as second:
            assert store.put_note(TENANT, "a", b"1", expected=0)
            version = _version(second, "a")
            assert second.put_note(TENANT, "a", b"2", expected=version)
            assert not store.put_note(TENANT, "a", b"late", expected=version)
            assert store.note(TENANT, "a") == second.note(TENANT, "a")
            assert second.put_note(TENANT, "a", None, expected=_version(store, "a"))
            assert store.note(TENANT, "a") is None

    def test_notes_are_kept(self, store: Store, folder: Path) -> None:
        assert store.put_note(TENANT, "a", b"1", expected=0)
        before = store.notes(TENANT)
        again = self.reopen(store, folder)
        assert again.notes(TENANT) == before
        assert again.put_note(TENANT, "a", None, expected=before[0][1].version)
        assert again.put_note(TENANT, "a", b"2", expected=0)
        assert _version(again, "a") > before[0][1].version
        again.close()

    def test_a_rebuild_leaves_notes_as_they_are(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1")))
        assert store.put_note(TENANT, "a", b"1", expected=0)
        before = store.notes(TENANT)
        for _ in store.rebuild(_nothing):
            pass
        assert store.notes(TENANT) == before

    def test_a_damaged_note_is_found(self, store: Store) -> None:
        assert store.put_note(TENANT, "a", b"1", expected=0)
        self.damage_note(store, "a")
        with pytest.raises(errors.Corrupt):
            store.note(TENANT, "a")
        with pytest.raises(errors.Corrupt):
            store.notes(TENANT)
        assert not verified(store).ok

    def test_a_note_in_between_hinders_no_append(self, store: Store) -> None:
        for version in range(3):
            take(store, step(write("a", version, b"x")))
            assert store.put_note(TENANT, f"n{version}", b"x", expected=0)
        assert verified(store).ok
        assert store.version(TENANT, "a") == 3

    def test_what_is_there_is_not_waited_for(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", b"2")))
        assert store.wait(TENANT, 0, LONG_S)
        assert store.wait(TENANT, 1, LONG_S)
        assert not store.wait(TENANT, 2, 0)
        assert not store.wait(TENANT, 2, 0.01)
        assert not store.wait(OTHER, 0, 0.01)

    def test_a_commit_ends_the_wait(self, store: Store) -> None:
        with ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(store.wait, TENANT, 0, LONG_S)
            another = pool.submit(store.wait, TENANT, 1, LONG_S)
            take(store, step(write("a", 0, b"1"), tenant=OTHER))
            assert not store.wait(TENANT, 0, 0.01), "another tenant's news is none"
            take(store, step(write("a", 0, b"1")))
            assert waiting.result()
            take(store, step(write("a", 1, b"2")))
            assert another.result()

    def test_a_commit_of_another_opener_ends_the_wait(self, store: Store, folder: Path) -> None:
        self.must_reopen()
        with closing(self.open_store(folder)) as second, ThreadPoolExecutor(1) as pool:
            for version in range(3):
                waiting = pool.submit(second.wait, TENANT, version, LONG_S)
                take(store, step(write("a", version, b"x")))
                assert waiting.result()

    def test_closing_ends_the_wait(self, store: Store) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait, TENANT, 0, LONG_S)
            store.close()
            with pytest.raises(errors.EngineClosed):
                waiting.result()


def _version(store: Store, name: str, tenant: str = TENANT) -> int:
    found = store.note(tenant, name)
    return found.version if found else 0


def _raised(store: Store) -> bool:
    """Add one to a note's number, if nobody else was faster."""
    found = store.note(TENANT, "count") or Note(b"0", 0)
    more = b"%d" % (int(found.value) + 1)
    return store.put_note(TENANT, "count", more, expected=found.version)


def _nothing(*_: object) -> DerivedState:
    return DerivedState((), ())
