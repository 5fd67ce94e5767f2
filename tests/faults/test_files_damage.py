"""Damage to any byte of a journal is reported, or does not matter; it is never read as truth."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import limpet
from limpet import Message, limits
from limpet.admin import erasure
from limpet.stores import files
from limpet.stores.port import Report
from tests.faults import results

Shown = tuple[object, ...]
NOTICED = "noticed"


class Truth:
    """A small store of files at rest, and what it shows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = folder / "made"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(limits, "BLOB_BYTES_MIN", 60)
            patched.setattr(limits, "JOURNAL_SEGMENT_BYTES", 1_800)
            with limpet.connect(f"files:{made}") as lp:
                session = lp.sessions.create_session("tides", key="once")
                session.add_message(Message(role="user", content="When is high water?"))
                session.add_message(Message(role="assistant", content="at noon " * 10))
                lp.sessions.update_session("tides", title="Tides")
        self.made = made
        self.segments = sorted((made / "journal").glob("*.jsonl"))
        assert len(self.segments) > 1
        self.shown, self.remarks = self.ask(made)

    def ask(self, folder: Path) -> tuple[Shown | str, tuple[str, ...]]:
        """What a store shows, and what it remarks; or that it refuses to."""
        try:
            store = files.open_store(folder, again=erasure.LogErasureReplay())
        except limpet.Error:
            return NOTICED, ()
        try:
            (*_, report) = store.verify()
            assert isinstance(report, Report)
            if report.faults:
                return NOTICED, ()
            rows = [store.find_projection("default", "session", "tides"), store.find_key("default", "once")]
            return (store.feed("default"), rows, store.notes("default")), store.remarks
        except limpet.Error:
            return NOTICED, ()
        finally:
            store.close()

    def silent(self, damages: Iterator[tuple[str, str, bytes]], *, index: bool) -> tuple[int, list[str]]:
        """How many damages were done, and those after which something else was shown, and nothing said."""
        count, found = 0, list[str]()
        for what, name, content in damages:
            folder = self.folder / "damaged"
            shutil.copytree(self.made, folder)
            if not index:
                shutil.rmtree(folder / ".index")
            (folder / "journal" / name).write_bytes(content)
            shown, remarks = self.ask(folder)
            if shown not in (NOTICED, self.shown) and not any("cut off" in each for each in remarks):
                found.append(f"{what} of {name}")
            shutil.rmtree(folder)
            count += 1
        return count, found

    def flips(self, every: int) -> Iterator[tuple[str, str, bytes]]:
        """One bit of each byte."""
        for path in self.segments:
            whole = path.read_bytes()
            for at in range(0, len(whole), every):
                flipped = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
                yield f"bit {at % 8} of byte {at}", path.name, flipped

    def cuts(self, every: int) -> Iterator[tuple[str, str, bytes]]:
        """Every length."""
        for path in self.segments:
            whole = path.read_bytes()
            for size in range(0, len(whole), every):
                yield f"the first {size} bytes", path.name, whole[:size]


@pytest.fixture
def truth(scratch: Path) -> Truth:
    return Truth(scratch)


SOME = [pytest.param(17, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)]


@pytest.mark.parametrize("every", SOME)
@pytest.mark.parametrize("index", [True, False], ids=["with its index", "alone"])
def test_one_flipped_bit_is_never_read_as_truth(truth: Truth, every: int, index: bool) -> None:
    count, silent = truth.silent(truth.flips(every), index=index)
    results.keep(f"flips, journal{'' if index else ' alone'}", flips=count, unnoticed=len(silent))
    assert silent == [] and count > 100


@pytest.mark.parametrize("every", SOME)
def test_nor_is_a_journal_that_was_cut_short(truth: Truth, every: int) -> None:
    count, silent = truth.silent(truth.cuts(every), index=True)
    results.keep("shortened, journal", lengths=count, unnoticed=len(silent))
    assert silent == [] and count > 100
