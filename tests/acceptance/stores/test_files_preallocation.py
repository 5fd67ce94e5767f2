"""The room at the end of a journal: lines are written over blanks, and nobody ever takes blanks for anything else."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

import limpet
from limpet import limits
from limpet.stores.files.journal import CommitJournal
from limpet.stores.sqlite.shared_file.store_files import StoreFiles
from tests.acceptance.stores.test_files_store import say, texts

BLANK = b" "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def url(folder: Path) -> str:
    return f"files:{folder}"


def segment(folder: Path, number: int = 1) -> Path:
    return folder / "journal" / f"{number:06d}.jsonl"


def test_there_is_room_while_a_store_is_open_and_none_once_it_is_closed(folder: Path, url: str) -> None:
    journal = segment(folder)
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        sizes = set[int]()
        for number in range(20):
            session.add_message(say(f"pay {number}"))
            sizes.add(journal.stat().st_size)
        assert len(sizes) == 1, "a line that has room makes the file no longer"
        content = journal.read_bytes()
        assert content.rstrip(BLANK).endswith(b"}\n")
        assert len(content) - len(content.rstrip(BLANK)) > limits.JOURNAL_PREALLOCATED_BYTES // 2
    content = journal.read_bytes()
    assert content.endswith(b"}\n")
    assert all(json.loads(line) for line in content.splitlines())


def test_a_line_longer_than_the_room_is_kept_and_has_room_behind_it(folder: Path, url: str) -> None:
    said = ["short", "x" * (limits.BLOB_INLINE_BYTES - 200), "short again"] * 12
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        for text in said:
            session.add_message(say(text))
            assert segment(folder).read_bytes().endswith(BLANK)
    with limpet.connect(url) as lp:
        assert texts(lp, "tides") == said and lp.admin.verify().ok


def test_a_writer_that_dies_leaves_room_and_nothing_is_said_of_it(folder: Path, url: str, tmp_path: Path) -> None:
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        session.add_message(say("pay 5"))
        # As it lies there while it is in use: so it is after a crash.
        shutil.copytree(folder, tmp_path / "copy")
    assert segment(tmp_path / "copy").read_bytes().endswith(BLANK)
    with limpet.connect(f"files:{tmp_path / 'copy'}") as lp:
        assert texts(lp, "tides") == ["pay 5"] and lp.admin.verify().ok
        assert "cut off" not in str(lp.admin.status())
        lp.sessions.get_session("tides").add_message(say("pay 6"))
        assert texts(lp, "tides") == ["pay 5", "pay 6"] and lp.admin.verify().ok


@pytest.mark.parametrize("instead", [BLANK, b"\0"], ids=["blanks", "zeros"])
@pytest.mark.parametrize("lost", ["beginning", "middle", "end", "all"])
def test_a_line_that_only_part_of_reached_the_disk_is_cut_off(
    folder: Path, url: str, tmp_path: Path, lost: str, instead: bytes
) -> None:
    """A power cut keeps any pages of a line: before it was synced none had to be there.

    In their place is room, or zeros where the file had just become longer. The line was longer than all room.
    """
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        session.add_message(say("pay 5"))
        shutil.copytree(folder, tmp_path / "copy")
        before = len(segment(folder).read_bytes().rstrip(BLANK))
        session.add_messages([say("pay 6 " * 200) for _ in range(200)])
        after = segment(folder).read_bytes()
    line = after[before:].rstrip(BLANK)
    assert len(line) > 2 * limits.JOURNAL_PREALLOCATED_BYTES
    third = len(line) // 3
    gone = {
        "beginning": (0, third),
        "middle": (third, 2 * third),
        "end": (2 * third, len(line)),
        "all": (0, len(line)),
    }[lost]
    torn = line[: gone[0]] + instead * (gone[1] - gone[0]) + line[gone[1] :]
    room = after[before + len(line) : -100] + instead * 100
    segment(tmp_path / "copy").write_bytes(after[:before] + torn + room)
    with limpet.connect(f"files:{tmp_path / 'copy'}") as lp:
        assert texts(lp, "tides") == ["pay 5"] and lp.admin.verify().ok
        assert segment(tmp_path / "copy").read_bytes().rstrip(BLANK) == after[:before]
        lp.sessions.get_session("tides").add_message(say("pay 7"))
        assert texts(lp, "tides") == ["pay 5", "pay 7"] and lp.admin.verify().ok
    assert b"\0" not in segment(tmp_path / "copy").read_bytes()


def test_damage_before_other_lines_is_damage_with_room_behind_them(folder: Path, url: str, tmp_path: Path) -> None:
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        session.add_message(say("pay 5"))
        session.add_message(say("pay 6"))
        shutil.copytree(folder, tmp_path / "copy")
    copy = segment(tmp_path / "copy")
    copy.write_bytes(copy.read_bytes().replace(b"pay 5", b"pay 9"))
    shutil.rmtree(tmp_path / "copy" / ".index")
    with pytest.raises(limpet.Corrupt, match="line 3, is damaged"):
        limpet.connect(f"files:{tmp_path / 'copy'}")


def test_an_older_journal_put_over_the_file_in_use_is_found_out_though_its_room_is_as_long(
    folder: Path, url: str
) -> None:
    lp = limpet.connect(url)
    session = lp.sessions.create_session("tides")
    session.add_message(say("pay 5"))
    older = segment(folder).read_bytes()
    session.add_message(say("pay 6"))
    with segment(folder).open("r+b") as file:
        file.write(older)
    with pytest.raises(limpet.Corrupt, match="does not have"):
        session.add_message(say("pay 7"))
    with pytest.raises(limpet.Corrupt, match="does not have"):
        lp.close()


def test_a_full_segment_keeps_no_room(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_SEGMENT_BYTES", 4_000)
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        for number in range(20):
            session.add_message(say(f"pay {number}"))
        assert segment(folder).read_bytes().endswith(b"}\n")
        last = segment(folder, len(list((folder / "journal").glob("*.jsonl"))))
        assert last.read_bytes().endswith(BLANK)
        assert lp.admin.verify().ok


def test_who_comes_second_takes_no_room_from_the_first(folder: Path, url: str) -> None:
    with limpet.connect(url) as one, limpet.connect(url) as other:
        one.sessions.create_session("tides")
        for number in range(4):
            (one, other)[number % 2].sessions.get_session("tides").add_message(say(f"pay {number}"))
            assert segment(folder).read_bytes().endswith(BLANK)
        assert texts(one, "tides") == [f"pay {number}" for number in range(4)]
        other.close()
        assert segment(folder).read_bytes().endswith(b"}\n"), "who closes takes all of it"
        one.sessions.get_session("tides").add_message(say("pay 4"))
        assert segment(folder).read_bytes().endswith(BLANK)
        assert one.admin.verify().ok


def test_an_erasure_that_changes_nothing_of_a_segment_with_room_leaves_it_in_place(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_SEGMENT_BYTES", 4_000)
    with limpet.connect(url) as lp:
        lp.sessions.create_session("tides").add_messages([say("keep " * 900)])
        lp.sessions.create_session("bills").add_message(say("pay 5"))
        first = segment(folder).stat().st_ino
        lp.admin.erase(session_id="bills")
        assert segment(folder).stat().st_ino == first
        assert b"pay 5" not in segment(folder, 2).read_bytes()
        assert texts(lp, "tides") == ["keep " * 900] and lp.admin.verify().ok


def test_a_walk_beside_a_writer_finds_no_damage(folder: Path, url: str) -> None:
    """What is read ahead may be room by the time it is looked at, and a line by then."""
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        journal = CommitJournal(StoreFiles(), folder / "journal")
        session.add_message(say("pay"))
        walked = 0
        for walked, _ in enumerate(journal.walk(), start=1):
            if walked <= 5:
                # Longer than what is read at a time: its end is found where its beginning was room.
                session.add_messages([say("pay more " * 100) for _ in range(30)])
        assert walked == 2 + 5


def test_a_line_that_fits_without_room_is_kept_on_a_disk_that_is_nearly_full(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = StoreFiles.write

    def write(files: StoreFiles, fd: int, data: bytes, offset: int) -> None:
        if data.endswith(BLANK):
            whole(files, fd, data[:-1_000], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(files, fd, data, offset)

    monkeypatch.setattr(StoreFiles, "write", write)
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        for number in range(3):
            session.add_message(say(f"pay {number}"))
        assert texts(lp, "tides") == ["pay 0", "pay 1", "pay 2"] and lp.admin.verify().ok
