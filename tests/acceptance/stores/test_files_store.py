"""A folder that people can read: what is the truth in it, what is made from it, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

import limpet
from limpet import Message, limits
from limpet.stores.files import journal_index
from limpet.stores.files.journal import START, CommitJournal
from limpet.stores.sqlite import database
from limpet.stores.sqlite.shared_file.store_files import StoreFiles
from tests.acceptance.cli.command_runs import run
from tests.acceptance.marker_words import WORDS, Canaries, fill


def say(text: str) -> Message:
    return Message(role="user", content=text)


def texts(lp: limpet.Limpet, session_id: str) -> list[object]:
    return [message.content for message in lp.sessions.get_session(session_id).messages]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def url(folder: Path) -> str:
    return f"files:{folder}"


def words(folder: Path) -> dict[str, int]:
    every = ((p, len(set(WORDS.findall(p.read_bytes().lower())))) for p in folder.rglob("*") if p.is_file())
    return {str(path.relative_to(folder)): count for path, count in every if count}


def filled(url: str, count: int = 6) -> None:
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        for at in range(count):
            session.add_message(say(f"message {at}"))


def test_a_line_is_json_that_says_what_was_said(folder: Path, url: str) -> None:
    filled(url, 1)
    *_, last = (folder / "journal" / "000001.jsonl").read_text().splitlines()
    (event,) = json.loads(last)["events"]
    assert event["stream"] == "session/tides"
    assert event["payload"]["json"]["content"] == "message 0"


def test_the_index_can_be_thrown_away(folder: Path, url: str) -> None:
    filled(url)
    with limpet.connect(url) as lp:
        before = (texts(lp, "tides"), list(lp.events.feed()), list(lp.sessions.list_sessions()))
    shutil.rmtree(folder / ".index")
    with limpet.connect(url) as lp:
        after = (texts(lp, "tides"), list(lp.events.feed()), list(lp.sessions.list_sessions()))
        assert before == after and lp.admin.verify().ok


@pytest.mark.parametrize("file", ["state.db", "state.db-anchor"])
def test_a_damaged_index_is_made_again_and_that_is_said(folder: Path, url: str, file: str) -> None:
    filled(url)
    path = folder / ".index" / file
    path.write_bytes(b"\xff" * len(path.read_bytes()))
    with limpet.connect(url) as lp:
        assert texts(lp, "tides") == [f"message {at}" for at in range(6)]
        notes = str(lp.admin.status()["notes"])
        # The anchor of an index is nobody's business: the journal is the truth.
        assert ("made again" in notes) == (file == "state.db")
        assert "anchor" not in notes and lp.admin.verify().ok


def test_an_index_that_has_lost_its_id_is_made_again(folder: Path, url: str) -> None:
    filled(url)
    index = folder / ".index" / "state.db"
    with contextlib.closing(database.connect(index, write=True)) as vandal:
        vandal.execute("DELETE FROM store WHERE name = 'id'")
    with limpet.connect(url) as lp:
        assert texts(lp, "tides") == [f"message {at}" for at in range(6)]
        assert any("lost its id" in note for note in lp.admin.status()["notes"])


def test_an_index_that_is_behind_is_brought_up(folder: Path, url: str, tmp_path: Path) -> None:
    filled(url, 3)
    shutil.copytree(folder / ".index", tmp_path / "older")
    with limpet.connect(url) as lp:
        lp.sessions.get_session("tides").add_message(say("later"))
        lp.sessions.create_session("new", title="Later")
        lp.sessions.update_session("tides", title="Changed")
        before = list(lp.sessions.list_sessions())
    shutil.rmtree(folder / ".index")
    shutil.copytree(tmp_path / "older", folder / ".index")
    with limpet.connect(url) as lp:
        assert list(lp.sessions.list_sessions()) == before
        assert texts(lp, "tides")[-1] == "later" and lp.admin.verify().ok
        lp.sessions.get_session("tides").add_message(say("and on"))


def test_what_one_process_left_between_journal_and_index_another_that_is_open_takes_up(url: str, folder: Path) -> None:
    filled(url, 2)
    with limpet.connect(url) as open_one:
        # From its own commit it knows where the journal ends, as long as nobody else writes.
        open_one.sessions.get_session("tides").add_message(say("before"))
        child = os.fork()
        if not child:
            _die_before_the_index_has_it(url)
        os.waitpid(child, 0)
        open_one.sessions.get_session("tides").add_message(say("after"))
        said = ["message 0", "message 1", "before", "half way", "after"]
        assert texts(open_one, "tides") == said
        assert open_one.admin.verify().ok


def _die_before_the_index_has_it(url: str) -> None:
    with limpet.connect(url) as lp:
        sound = CommitJournal.append

        def append(*args: object) -> None:
            sound(*args)  # pyright: ignore[reportArgumentType]
            os._exit(0)

        CommitJournal.append = append  # pyright: ignore[reportAttributeAccessIssue]
        lp.sessions.get_session("tides").add_message(say("half way"))


def test_a_journal_that_was_cut_off_is_refused_until_it_is_taken_as_it_is(folder: Path, url: str) -> None:
    filled(url)
    path = folder / "journal" / "000001.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-2]))
    with pytest.raises(limpet.Corrupt, match="2 commit") as info:
        limpet.connect(url).close()
    assert "rebuild --accept-loss" in str(info.value.hint)
    assert "limpet backup COPY --url" in str(info.value.hint)
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:-2])
    assert run("status", url, cwd=folder.parent).code
    assert run("rebuild", url, cwd=folder.parent).code == 7, "nothing is lost without a word"
    index = folder / ".index" / "state.db"
    assert run("backup", "copy.db", "--url", str(index), cwd=folder.parent).code == 0
    taken = run("rebuild", url, "--accept-loss", cwd=folder.parent)
    assert taken.code == 0 and "2 commit(s)" in taken.err
    with limpet.connect(url) as lp:
        assert texts(lp, "tides") == [f"message {at}" for at in range(4)]
    with limpet.connect(folder.parent / "copy.db") as lp:
        assert texts(lp, "tides") == [f"message {at}" for at in range(6)]


def test_a_torn_end_is_cut_off_and_a_damaged_middle_is_named(folder: Path, url: str) -> None:
    filled(url)
    path = folder / "journal" / "000001.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"n":8,"events":[{"tenant":1')
    with limpet.connect(url) as lp:
        assert len(texts(lp, "tides")) == 6
        assert any("cut off" in note for note in lp.admin.status()["notes"])
    assert path.read_bytes() == whole
    shutil.rmtree(folder / ".index")
    path.write_bytes(whole.replace(b"message 2", b"message X"))
    with pytest.raises(limpet.Corrupt, match="line 5"):
        limpet.connect(url).close()


def test_segments_follow_from_one_another(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_SEGMENT_BYTES", 2_000)
    filled(url, 20)
    assert len(list((folder / "journal").glob("*.jsonl"))) > 3
    shutil.rmtree(folder / ".index")
    with limpet.connect(url) as lp:
        assert len(texts(lp, "tides")) == 20 and lp.admin.verify().ok
    (folder / "journal" / "000002.jsonl").unlink()
    with limpet.connect(url) as lp:
        assert not lp.admin.verify().ok
    shutil.rmtree(folder / ".index")
    with pytest.raises(limpet.Corrupt, match="000002"):
        limpet.connect(url).close()


def test_what_is_erased_is_in_no_byte_of_the_folder(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(limits, "BLOB_BYTES_MIN", 200)
    monkeypatch.setattr(limits, "BLOB_INLINE_BYTES", 300)
    c = Canaries()
    with limpet.connect(url) as lp:
        kept = lp.sessions.create_session("kept", user_id="bob")
        kept.add_message(say("stays " * 100))
        user = c()
        for session_id in fill(lp, user, c, 60):
            lp.sessions.save_session(lp.sessions.get_session(session_id))
        assert sum(words(folder).values()) > 60
        lp.admin.erase(user_id=user)
        assert words(folder) == {}
        assert lp.admin.verify().ok
    assert words(folder) == {}
    shutil.rmtree(folder / ".index")
    with limpet.connect(url) as lp:
        assert [row["id"] for row in lp.sessions.list_sessions()] == ["kept"]
        assert texts(lp, "kept") == ["stays " * 100] and lp.admin.verify().ok
    assert "stays" in (folder / "sessions" / "kept.json").read_text()


@pytest.mark.parametrize("at", range(1, 12))
def test_an_erasure_that_dies_half_way_is_finished_by_whoever_comes(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_SEGMENT_BYTES", 1_500)
    c = Canaries()
    with limpet.connect(url) as lp:
        lp.sessions.create_session("kept").add_message(say("stays"))
        (session_id, *_) = fill(lp, c(), c, 10)
        count = 0

        def dying(sound: object) -> object:
            def step(self: StoreFiles, *given: Path) -> None:
                nonlocal count
                count += 1
                if count == at:
                    raise KeyboardInterrupt
                sound(self, *given)  # pyright: ignore[reportCallIssue]

            return step

        with monkeypatch.context() as patched:
            for verb in ("rename", "remove", "replace_content"):
                patched.setattr(journal_index.StoreFiles, verb, dying(getattr(StoreFiles, verb)))
            with contextlib.suppress(KeyboardInterrupt, limpet.Error):
                lp.admin.erase(session_id=session_id)
    with limpet.connect(url) as lp:
        lp.admin.erase(session_id=session_id)
        assert texts(lp, "kept") == ["stays"]
        assert lp.admin.verify().ok
    shutil.rmtree(folder / ".index")
    with limpet.connect(url) as lp:
        assert texts(lp, "kept") == ["stays"] and lp.admin.verify().ok


def test_links_in_the_folder_are_refused_and_not_followed(tmp_path: Path, folder: Path, url: str) -> None:
    filled(url)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(folder / "journal", elsewhere)
    (folder / "journal").symlink_to(elsewhere)
    with pytest.raises(limpet.Error, match="in the way"):
        limpet.connect(url).close()
    (folder / "journal").unlink()
    shutil.move(elsewhere, folder / "journal")
    shutil.move(folder / "journal" / "000001.jsonl", tmp_path / "line")
    (folder / "journal" / "000001.jsonl").symlink_to(tmp_path / "line")
    with pytest.raises(limpet.Error):
        limpet.connect(url).sessions.create_session("x")


def test_everything_is_for_its_owner_only_and_git_is_told_what_to_leave_out(folder: Path, url: str) -> None:
    filled(url)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *folder.rglob("*")))
    assert "/.index/" in (folder / ".gitignore").read_text()
    assert "-text" in (folder / ".gitattributes").read_text()


def test_a_folder_is_known_by_its_path_too_and_looking_creates_nothing(folder: Path, url: str, tmp_path: Path) -> None:
    filled(url)
    with limpet.connect(folder) as lp:
        assert len(texts(lp, "tides")) == 6
    assert "6" in run("status", str(folder), "--json", cwd=tmp_path).out
    assert run("status", f"files:{tmp_path / 'nothing'}", cwd=tmp_path).code
    assert not (tmp_path / "nothing").exists()


def test_an_anchor_that_knows_of_more_than_a_journal_without_index_has_is_believed(folder: Path, url: str) -> None:
    filled(url)
    path = folder / "journal" / "000001.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    (folder / ".index" / "state.db").unlink()
    with pytest.raises(limpet.Corrupt, match="2 more event"):
        limpet.connect(url).close()


def test_an_index_of_a_newer_version_is_not_thrown_away(folder: Path, url: str) -> None:
    filled(url)
    index = folder / ".index" / "state.db"
    with contextlib.closing(database.connect(index, write=True)) as newer:
        newer.pragma("user_version", 99)
    with pytest.raises(limpet.errors.NewerStore):
        limpet.connect(url).close()
    assert index.exists()


@pytest.mark.parametrize(
    "moves", ['[["../../evil","../../victim"]]', '[["000001.jsonl","../victim"]]', "[[1]]", "\xff", "{"]
)
def test_a_list_of_segments_moves_nothing_but_segments(folder: Path, url: str, tmp_path: Path, moves: str) -> None:
    with limpet.connect(url) as lp:
        lp.sessions.create_session("trip").add_message(Message("user", "hello"))
    for path in (tmp_path / "evil", tmp_path / "victim", folder / "victim"):
        path.write_text(path.name, encoding="utf-8")
    points = b'{"before":%b,"after":%b,"moves":' % ((msgspec.json.encode(START),) * 2)
    decided = points + moves.encode("latin-1") + b"}"
    (folder / "journal" / journal_index.REWRITE_PLAN_NAME).write_bytes(decided)
    with pytest.raises(limpet.Corrupt, match="rewriting"):
        limpet.connect(url)
    for path in (tmp_path / "evil", tmp_path / "victim", folder / "victim"):
        assert path.read_text(encoding="utf-8") == path.name


@pytest.mark.parametrize("left", ["sessions", "second"])
def test_a_folder_that_lost_its_journal_is_damaged_and_no_new_store(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_SEGMENT_BYTES", 500)
    filled(url)
    for path in folder.iterdir():
        if path.is_dir() and path.name != ("sessions" if left == "sessions" else "journal"):
            shutil.rmtree(path)
    (folder / "journal" / "000001.jsonl").unlink(missing_ok=True)
    before = sorted(folder.rglob("*"))
    with pytest.raises(limpet.Corrupt, match="lost its journal") as info:
        limpet.connect(url).close()
    assert "Put the journal back" in str(info.value.hint)
    assert sorted(folder.rglob("*")) == before


def test_git_leaves_the_index_out_even_where_its_owner_has_a_gitignore(folder: Path, url: str) -> None:
    folder.mkdir()
    (folder / ".gitignore").write_text("*.log\n")
    filled(url)
    assert (folder / ".gitignore").read_text() == "*.log\n"
    assert (folder / ".index" / ".gitignore").read_text() == "*\n"


def test_git_is_told_to_leave_out_the_files_before(folder: Path, url: str) -> None:
    filled(url)
    assert "*.bak" in (folder / ".gitignore").read_text().splitlines()


def test_who_only_looks_writes_no_files_of_sessions_and_who_rebuilds_does(
    folder: Path, url: str, tmp_path: Path
) -> None:
    filled(url)
    for path in (folder / "sessions").iterdir():
        path.unlink()
    for command in (("status", url), ("verify", url), ("sessions", "list", "--url", url)):
        assert run(*command, cwd=tmp_path).code == 0
    assert list((folder / "sessions").iterdir()) == []
    assert run("rebuild", url, cwd=tmp_path).code == 0
    assert (folder / "sessions" / "tides.json").is_file()


@pytest.mark.parametrize("left", [(".index",), ("sessions",), (".index", "sessions")])
def test_what_is_left_of_a_store_without_its_journal_is_damage_and_stays(
    folder: Path, url: str, tmp_path: Path, left: tuple[str, ...]
) -> None:
    filled(url)
    for path in folder.iterdir():
        if path.is_dir() and path.name not in left:
            shutil.rmtree(path)
    with pytest.raises(limpet.Corrupt, match="lost its journal"):
        limpet.connect(folder).close()
    for verb in ("status", "verify", "rebuild"):
        done = run(verb, str(folder), cwd=tmp_path)
        assert done.code == 7 and "lost its journal" in done.out + done.err
    if ".index" in left:
        index = folder / ".index" / "state.db"
        assert f"limpet backup COPY --url {index}" in run("status", url, cwd=tmp_path).err
        assert run("backup", "copy.db", "--url", str(index), cwd=tmp_path).code == 0
        with limpet.connect(tmp_path / "copy.db") as lp:
            assert len(texts(lp, "tides")) == 6


def test_what_verify_says_of_a_folder_is_about_folders(folder: Path, url: str, tmp_path: Path) -> None:
    filled(url)
    (folder / ".index" / "state.db-anchor").unlink()
    done = run("verify", url, cwd=tmp_path)
    assert done.code == 0 and "anchor" not in done.out + done.err
    path = folder / "journal" / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"message 2", b"message X"))
    for named in (url, str(folder)):
        done = run("verify", named, cwd=tmp_path)
        assert done.code == 7 and "line 5" in done.out
        assert "-wal" not in done.err and "-anchor" not in done.err
        assert "journal" in done.err and "limpet backup" in done.err
    assert run("backup", "copy.db", "--url", url, cwd=tmp_path).code == 0
    with limpet.connect(tmp_path / "copy.db") as lp:
        assert texts(lp, "tides") == [f"message {at}" for at in range(6)]


@pytest.mark.parametrize("at", [2, 5])
@pytest.mark.parametrize("by", ["", "a much longer message"])
def test_a_line_that_was_edited_is_named_and_the_end_is_not_blamed(
    folder: Path, url: str, tmp_path: Path, at: int, by: str
) -> None:
    filled(url)
    path = folder / "journal" / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"message %d" % at, by.encode()))
    with pytest.raises(limpet.Corrupt, match=f"line {at + 3}, is damaged") as info:
        limpet.connect(url).close()
    assert "rebuild" not in str(info.value.hint)
    index = folder / ".index" / "state.db"
    assert f"limpet backup COPY --url {index}" in str(info.value.hint)
    assert run("rebuild", url, cwd=tmp_path).code == 7
    assert run("backup", "copy.db", "--url", str(index), cwd=tmp_path).code == 0
    with limpet.connect(tmp_path / "copy.db") as lp:
        assert texts(lp, "tides") == [f"message {each}" for each in range(6)]
