"""Notes and the turn: a note is no reason to read again what is known, and hides nothing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from limpet.stores import sqlite
from limpet.testing.store_contract.harness import TENANT, commit_all, make_append, write


def test_after_a_note_of_ours_what_was_known_still_holds(tmp_path: Path):
    with closing(sqlite.open_store(tmp_path / "a.db")) as store:
        commit_all(store, make_append(write("a", 0, b"1")))
        assert store.put_note(TENANT, "n", b"1", expected=0)
        with store.write_lock() as alone:
            assert alone


def test_what_others_wrote_is_still_news_after_a_note(tmp_path: Path):
    path = tmp_path / "a.db"
    with closing(sqlite.open_store(path)) as ours, closing(sqlite.open_store(path)) as theirs:
        commit_all(ours, make_append(write("a", 0, b"1")))
        commit_all(theirs, make_append(write("a", 1, b"2")))
        assert ours.put_note(TENANT, "n", b"1", expected=0)
        with ours.write_lock() as alone:
            assert not alone
        with ours.write_lock() as alone:
            assert alone
