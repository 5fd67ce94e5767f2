"""Boxes in the lock file: what is handed over is taken once, by one who holds the turn, or by nobody."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from limpet.stores import port
from limpet.stores.sqlite.shared_file import commit_handoff
from limpet.stores.sqlite.shared_file.commit_handoff import (
    LOCK_FILE_MAGIC,
    MAILBOX_BYTES,
    MAILBOXES,
    CommitHandoff,
    HandedOffAppends,
)
from limpet.stores.sqlite.shared_file.store_files import ProcessWriteLock, StoreFiles
from limpet.testing.store_contract.harness import make_append, write

APPEND = make_append(write("s", 3, b"said", claims=(("m1", 0),)))
DONE = port.Appended(7, 7)


class Party:
    """One process's view of a lock file."""

    def __init__(self, path: Path) -> None:
        self.turns = ProcessWriteLock(StoreFiles(), path)
        self.post = CommitHandoff(StoreFiles(), self.turns, os.urandom)

    def gone(self) -> None:
        self.post.close()
        self.turns.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db-lock"


@pytest.fixture
def holder(path: Path) -> Iterator[Party]:
    """Someone who has the turn."""
    party = Party(path)
    party.turns.acquire(1)
    yield party
    party.gone()


@pytest.fixture
def other(path: Path) -> Iterator[Party]:
    party = Party(path)
    yield party
    party.gone()


def collected(holder: Party) -> HandedOffAppends:
    for _ in range(200):
        if parcels := holder.post.collect():
            (parcel,) = parcels
            return parcel
        threading.Event().wait(0.002)
    raise AssertionError("nothing was handed over")


def test_what_is_handed_over_comes_as_it_was_and_the_outcome_goes_back(holder: Party, other: Party):
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(other.post.hand_off, [APPEND, APPEND])
        parcel = collected(holder)
        assert parcel.appends == [APPEND, APPEND]
        holder.post.answer([parcel], [DONE, port.Stale("s", 4)])
        assert told.result() == ([DONE, None], False)
    assert holder.post.collect() == []


def test_whoever_gets_the_turn_while_waiting_takes_its_appends_back(holder: Party, other: Party):
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(other.post.hand_off, [APPEND])
        holder.turns.release()
        assert told.result() == (None, True)
    assert holder.post.collect() == []


def test_of_a_holder_that_says_nothing_nobody_waits_for_ever(holder: Party, other: Party):
    assert other.post.hand_off([APPEND]) == (None, False)
    assert holder.post.collect() == []


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(holder: Party, other: Party):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(other.post.hand_off, [APPEND])
        late = collected(holder)
        holder.turns.release()
        assert first.result() == (None, True)
        other.turns.release()
        holder.turns.acquire(1)
        holder.post.answer([late], [DONE])
        second = pool.submit(other.post.hand_off, [APPEND])
        parcel = collected(holder)
        assert not second.done()
        holder.post.answer([parcel], [port.Appended(8, 8)])
        assert second.result() == ([port.Appended(8, 8)], False)


def test_a_mailbox_never_gives_its_owner_its_own_appends(holder: Party):
    assert holder.post._write_offer([APPEND])
    assert holder.post.collect() == []


@pytest.mark.parametrize("again", [False, True], ids=["left", "somebody else's by now"])
def test_what_lies_in_the_box_of_one_that_is_gone_is_not_taken(holder: Party, other: Party, path: Path, again: bool):
    """A program that died may have been started again and have said it anew."""
    dead = Party(path)
    assert dead.post._write_offer([APPEND])
    dead.gone()
    if again:
        assert other.post._own_mailbox() == 0
    assert holder.post.collect() == []


def test_appends_for_another_database_are_left_to_their_owner(holder: Party, other: Party):
    """Two files at one path, one after the other, have one lock file."""
    holder.post.set_layout(2, (1, 1))
    other.post.set_layout(2, (1, 2))
    assert other.post._write_offer([APPEND])
    assert holder.post.collect() == []


def test_once_it_is_collected_its_owner_waits_for_the_outcome(
    holder: Party, other: Party, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commit_handoff, "ANSWER_WAIT_S", 0.01)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(other.post.hand_off, [APPEND])
        parcel = collected(holder)
        time.sleep(0.05)
        assert not told.done()
        holder.post.answer([parcel], [DONE])
        assert told.result() == ([DONE], False)


class Full(StoreFiles):
    """A disk without room."""

    def write(self, fd: int, data: bytes, offset: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_decides_nothing(holder: Party, other: Party, monkeypatch: pytest.MonkeyPatch):
    """Who can't write into a box takes turns; who can't tell has committed all the same."""
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
        told = pool.submit(other.post.hand_off, [APPEND])
        parcel = collected(holder)
        patched.setattr(holder.post, "_files", Full())
        holder.post.answer([parcel], [DONE])
        assert holder.post.collect() == []
        holder.turns.release()
        assert told.result() == (None, True)
    monkeypatch.setattr(other.post, "_files", Full())
    assert other.post.hand_off([APPEND]) == (None, False)


@pytest.mark.parametrize("at", [0, 8, 15, 25, 60], ids=["offer", "form", "size", "sum", "body"])
def test_appends_with_a_changed_byte_are_left_to_their_owner(holder: Party, other: Party, path: Path, at: int):
    assert other.post._write_offer([APPEND])
    place = commit_handoff._mailbox_offset(0) + commit_handoff.OUTCOMES_BYTES + at
    data = bytearray(path.read_bytes())
    data[place] ^= 0x55
    path.write_bytes(data)
    assert holder.post.collect() == []


def test_what_is_too_large_for_a_box_is_not_handed_over(holder: Party, other: Party):
    large = make_append(write("s", 0, bytes(MAILBOX_BYTES)))
    assert other.post.hand_off([large]) == (None, False)
    assert holder.post.collect() == []


def test_without_a_free_box_processes_only_take_turns(path: Path):
    with ExitStack() as closing:
        parties = [Party(path) for _ in range(MAILBOXES + 1)]
        for party in parties[1:]:
            closing.callback(party.gone)
        offered = [party.post._write_offer([APPEND]) for party in parties]
        assert offered == [True] * MAILBOXES + [False]
        parties[0].gone()
        assert parties[-1].post._write_offer([APPEND])


def test_where_there_are_no_such_locks_processes_only_take_turns(
    holder: Party, other: Party, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("limpet.stores.sqlite.shared_file.store_files._BYTE_LOCK_COMMANDS", None)
    assert other.post.hand_off([APPEND]) == (None, False)
    assert holder.post.collect() == []


def test_whoever_can_not_be_rung_looks_by_itself(holder: Party, other: Party, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(holder.post, "_wake_owner", lambda _: None)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(other.post.hand_off, [APPEND])
        holder.post.answer([collected(holder)], [DONE])
        assert told.result() == ([DONE], False)


@pytest.mark.parametrize(
    ("beginning", "ours"), [(b"", True), (bytes(20), True), (LOCK_FILE_MAGIC + b"\0", True), (b"notes", False)]
)
def test_a_lock_file_is_known_by_its_beginning(beginning: bytes, ours: bool):
    assert commit_handoff.is_lock_file(beginning) is ours
