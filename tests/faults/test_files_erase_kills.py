"""A process dies at each step of an erasure in a folder that another has open: nothing that is acknowledged then is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import limpet
from limpet import limits
from limpet.stores.files import FilesStore, StoreFiles, journal
from limpet.stores.files.journal_index import REWRITE_PLAN_NAME, JournalRewriter
from limpet.stores.files.store import JournalCommitHook
from tests.acceptance.marker_words import WORDS
from tests.faults.test_erase_kills import Steps

SECRET = "Kestrel0001 MARMOT0001"
SEGMENTS_MIN = 3
VISIBLE = ("COMMIT", "VACUUM")
"""Statements by which others see a difference; file operations are the other steps."""


@pytest.fixture
def folder(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a user to forget, in several segments of a journal."""
    monkeypatch.setattr(limits, "JOURNAL_SEGMENT_BYTES", 800)
    place = scratch / "first"
    with limpet.connect(f"files:{place}") as lp:
        for name, user, words in (("mine", "ada", SECRET), ("kept", "bob", "hello")):
            session = lp.sessions.create_session(name, user_id=user)
            for _ in range(3):
                session.add_message({"role": "user", "content": words})
    assert len(list((place / "journal").glob("*.jsonl"))) > SEGMENTS_MIN
    return place


class Beside:
    """A process that has a folder open and has written to it; it goes on when it is told to, and says what it was told."""

    def __init__(self, folder: Path, ready: Callable[[], None] = lambda: None) -> None:
        (said, self._said), (self._go, go) = os.pipe(), os.pipe()
        self._process, self._told, self._tell = os.fork(), said, go
        if not self._process:
            try:
                ready()
                self._run(folder)
            except BaseException as error:
                os.write(self._said, f"{error!r}\n".encode())
            finally:
                os._exit(0)
        os.close(self._said)
        assert os.read(self._told, 100) == b"before\n"

    def _run(self, folder: Path) -> None:
        # Whatever the folder's clock says, a change of it is one: it has not been looked at in this moment.
        journal.stamp_resolution_ns = lambda _: 0
        lp = limpet.connect(f"files:{folder}")
        self._add(lp, "before")
        closes = os.read(self._go, 1) == b"c"
        for number in range(3):
            self._add(lp, f"after {number}")
        if closes:
            lp.close()

    def _add(self, lp: limpet.Limpet, text: str) -> None:
        try:
            lp.sessions.get_session("kept").add_message({"role": "user", "content": text})
        except limpet.Error as error:
            text = f"{type(error).__name__}: {error}"
        os.write(self._said, f"{text}\n".encode())

    def go_on(self, *, close: bool) -> list[str]:
        """Let it write, and die or close; return what was acknowledged, or why not."""
        os.write(self._tell, b"c" if close else b"d")
        os.waitpid(self._process, 0)
        with os.fdopen(self._told) as said:
            lines = said.read().splitlines()
        for end in (self._go, self._tell):
            os.close(end)
        return ["before", *lines]


def _counted(operation: Callable[..., object], steps: Steps) -> Callable[..., object]:
    def counted(self: object, *given: object) -> object:
        steps()
        return operation(self, *given)

    return counted


def killed_at(step: int, folder: Path) -> bool:
    """Forget a user in a process that is killed at a step; False if it came to its end before."""
    child = os.fork()
    if not child:
        try:
            lp, steps = limpet.connect(f"files:{folder}"), Steps(step)
            store = lp.sessions._service.engine.store
            assert isinstance(store, FilesStore)
            store._writer.exec_trace = lambda _, sql, __: sql not in VISIBLE or steps()
            for name in ("write", "rename", "sync", "remove"):
                setattr(StoreFiles, name, _counted(getattr(StoreFiles, name), steps))
            lp.admin.erase(user_id="ada")
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def killed_in_place(folder: Path, renamed: int) -> None:
    """The same, killed when so many segments are in place."""
    child = os.fork()
    if not child:
        with limpet.connect(f"files:{folder}") as lp:
            steps, place, rename = (Steps(renamed + 1), JournalRewriter.move_segments, StoreFiles.rename)

            def placed(self: JournalRewriter, *given: object) -> bool:
                StoreFiles.rename = _counted(rename, steps)  # pyright: ignore[reportAttributeAccessIssue]
                return place(self, *given)  # pyright: ignore[reportArgumentType]

            JournalRewriter.move_segments = placed  # pyright: ignore[reportAttributeAccessIssue]
            lp.admin.erase(user_id="ada")
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert (folder / "journal" / REWRITE_PLAN_NAME).exists()


def found(folder: Path) -> list[str]:
    """Return the files of a folder that have a word of what was erased."""
    every = (path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in every if WORDS.search(path.read_bytes().lower())]


def judge(folder: Path, told: list[str]) -> bool:
    """Check a folder after a crash; return whether the erasure took place. If so, no byte has the words."""
    mine: limpet.Session | None = None
    for look in range(2):
        with limpet.connect(f"files:{folder}") as lp:
            said = [str(m.content) for m in lp.sessions.get_session("kept").messages]
            assert said == ["hello"] * 3 + told
            mine = lp.sessions.load_session("mine")
            assert mine is None or len(mine.messages) == 3
            assert lp.admin.verify().faults == ()
            assert lp.sessions._service.engine.store.pending_erasures() is None
            assert mine is not None or found(folder) == []
        if not look:
            # The journal is the truth, and has to say the same alone.
            shutil.rmtree(folder / ".index")
    return mine is None


def copies(folder: Path) -> Iterator[Path]:
    home = folder.with_name("home")
    while True:
        shutil.rmtree(home, ignore_errors=True)
        yield shutil.copytree(folder, home)


EXPECTED = ["before", "after 0", "after 1", "after 2"]


ALONE = """
import sys
from pathlib import Path
from limpet import limits
from tests.faults import test_files_erase_kills

limits.JOURNAL_SEGMENT_BYTES = 800
test_files_erase_kills.step_by_step(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_one_dies_at_each_step_of_an_erasure_and_another_goes_on_writing(folder: Path) -> None:
    # In a process of its own: whoever is forked from one that has run other tests inherits what they have left.
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder)],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def step_by_step(folder: Path) -> None:
    """Kill an erasure at its first step, at its second, and so on, each in a copy of the folder."""
    outcomes: list[bool] = []
    for step, home in enumerate(copies(folder), start=1):
        beside = Beside(home)
        alive = killed_at(step, home)
        told = beside.go_on(close=bool(step % 2))
        assert told == EXPECTED, f"step {step}"
        outcomes.append(judge(home, told))
        if not alive:
            break
    assert outcomes[0] is False and outcomes[-1] is True
    assert outcomes == sorted(outcomes), "once it is done, it stays done"
    assert len(outcomes) > 40


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_segments_that_an_erasure_decided_on_are_put_into_place_by_who_has_the_folder_open(
    folder: Path, renamed: int
) -> None:
    beside = Beside(folder)
    killed_in_place(folder, renamed)
    told = beside.go_on(close=False)
    assert told == EXPECTED
    assert not (folder / "journal" / REWRITE_PLAN_NAME).exists()
    assert judge(folder, told)


def _looks_for_nothing() -> None:
    JournalCommitHook._finish_rewrite = lambda *_: False  # pyright: ignore[reportAttributeAccessIssue]


def test_segments_never_replace_lines_that_they_were_not_made_from(folder: Path) -> None:
    beside = Beside(folder, _looks_for_nothing)
    killed_in_place(folder, 0)
    told = beside.go_on(close=False)
    assert told == EXPECTED
    assert judge(folder, told), "the erasure is done once more"


def test_segments_half_in_place_that_others_overtook_are_damage_and_nothing_is_changed(folder: Path) -> None:
    beside = Beside(folder, _looks_for_nothing)
    killed_in_place(folder, 1)
    beside.go_on(close=False)
    before = {path: path.read_bytes() for path in (folder / "journal").glob("0*")}
    for _ in range(2):
        with pytest.raises(limpet.Corrupt, match=REWRITE_PLAN_NAME):
            limpet.connect(f"files:{folder}")
        assert {path: path.read_bytes() for path in (folder / "journal").glob("0*")} == before


def test_what_a_writer_that_died_left_half_made_goes_with_what_is_erased(folder: Path) -> None:
    left = folder / "journal" / "000001.jsonl.left0000.new"
    with limpet.connect(f"files:{folder}") as lp:
        left.write_text(SECRET)
        lp.admin.erase(user_id="ada")
        assert found(folder) == []
