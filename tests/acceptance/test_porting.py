"""Sessions out and in again: the same, once, for whom it was meant, and whole or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import errors, limits
from holdfast.testing import corpus

KILLED = """
import os, signal, sys
import holdfast
from holdfast import limits
from holdfast.engine.engine import Engine

limits.IMPORT_STEP_EVENTS = 10
run, left = Engine.run, int(sys.argv[3])

def dying(self, request):
    global left
    answer = run(self, request)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

Engine.run = dying
holdfast.connect(sys.argv[1]).admin.import_(sys.argv[2])
"""


@pytest.fixture(params=["sqlite", "volatile"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    place = tmp_path / "here.db" if request.param == "sqlite" else "volatile:"
    with holdfast.connect(place) as opened:
        yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of two users: a chain, a fork, a rewind, tools, a large text."""
    folder = tmp_path_factory.mktemp("export")
    with holdfast.connect("volatile:", max_messages_per_session=20) as source:
        for number, chat in enumerate(corpus.conversations(7, 2, parallel=True)):
            session = source.sessions.create_session(f"chat-{number}", user_id="ada")
            for message in chat:
                session.add_message(message)
        trip = source.sessions.create_session("trip", user_id="bo", title="Oslo", system="Plan.")
        for number in range(40):
            trip.add_message({"role": "user", "content": f"step {number} \0 🛳"})
        trip.add_message({"role": "user", "content": "large " * 10_000})
        source.sessions.create_session("first", user_id="bo").add_message(
            {"role": "user", "content": "a"}
        )
        source.sessions.fork_session("first", new_id="fork")
        source.sessions.get_session("fork").add_message({"role": "assistant", "content": "b"})
        source.sessions.rewind_session("fork", 1)
        source.admin.export(folder / "all.jsonl")
    return folder / "all.jsonl"


def exported(hf: Any, path: Path, **chosen: str) -> bytes:
    hf.admin.export(path, **chosen)
    return path.read_bytes()


def test_an_export_of_an_import_is_the_same_file(hf: Any, file: Path, tmp_path: Path):
    report = hf.admin.import_(file)
    assert report.format == "holdfast" and not report.skipped
    assert exported(hf, tmp_path / "again.jsonl") == file.read_bytes()
    chain = hf.sessions.session_chain("trip")
    assert len(chain) == 3 and chain[0].title == "Oslo"
    hf.sessions.get_session("trip").add_message({"role": "user", "content": "it goes on"})
    assert hf.sessions.session_chain("trip")[-1].messages[-1].content == "it goes on"
    assert hf.admin.verify().ok


def test_the_same_file_again_changes_nothing(hf: Any, file: Path):
    new = hf.admin.import_(file)
    last = list(hf.events.feed())[-1].position
    again = hf.admin.import_(file)
    assert (again.sessions, again.messages, again.already) == (0, 0, new.sessions)
    hf.sessions.get_session("first").add_message({"role": "user", "content": "gone on since"})
    assert hf.admin.import_(file).already == new.sessions, "what has gone on is still the same"
    assert list(hf.events.feed())[-1].position == last + 1


def test_another_session_of_the_id_is_never_touched(hf: Any, file: Path):
    hf.sessions.create_session("fork").add_message({"role": "user", "content": "mine"})
    before = [event.position for event in hf.events.feed()]
    with pytest.raises(errors.DuplicateSession, match="fork"):
        hf.admin.import_(file)
    assert [event.position for event in hf.events.feed()] == before, "not even the others were"
    report = hf.admin.import_(file, rename="-copy")
    assert hf.sessions.get_session("fork").messages[0].content == "mine"
    chain = hf.sessions.session_chain("trip-copy")
    assert [part.id.endswith("-copy") for part in chain] == [True] * 3
    carried = [message.origin for message in chain[1].messages if message.origin]
    assert carried and set(carried) == {"trip-copy"}
    assert hf.admin.import_(file, rename="-copy").already == report.sessions


def test_what_was_deleted_can_be_given_back(hf: Any, file: Path, tmp_path: Path):
    hf.admin.import_(file)
    hf.sessions.delete_session("trip")
    assert hf.admin.import_(file).sessions == 1
    assert exported(hf, tmp_path / "again.jsonl") == file.read_bytes()
    session = hf.sessions.get_session("trip")
    assert session.messages[0].content == "Plan."
    with pytest.raises(errors.NotFound):
        session.at(1)
    hf.admin.rebuild()
    assert exported(hf, tmp_path / "rebuilt.jsonl") == file.read_bytes()


def test_into_another_tenant_and_for_another_user(file: Path, tmp_path: Path):
    with holdfast.connect(tmp_path / "a.db", tenant="one") as one:
        one.admin.import_(file, user_id="eve")
        assert {row["user_id"] for row in one.sessions.list_sessions()} == {"eve"}
        assert one.sessions.rewind_session("first", 1).state.user_id == "eve"
    with holdfast.connect(tmp_path / "a.db", tenant="two") as two:
        assert two.sessions.list_sessions() == []
        two.admin.import_(file)
        assert exported(two, tmp_path / "two.jsonl") == file.read_bytes()
    assert b"tenant" not in file.read_bytes()


def test_a_session_comes_with_its_conversation_and_nothing_else(file: Path, tmp_path: Path):
    with holdfast.connect("volatile:") as hf:
        hf.admin.import_(file)
        chain = [part.id for part in hf.sessions.session_chain("trip")]
        exported(hf, tmp_path / "trip.jsonl", session_id=chain[1])
        exported(hf, tmp_path / "bo.jsonl", user_id="bo")
        with pytest.raises(errors.UnknownSession):
            hf.admin.export(tmp_path / "none.jsonl", session_id="nobody")
        with pytest.raises(errors.InvalidRequest):
            hf.admin.export(tmp_path / "none.jsonl", session_id="trip", user_id="bo")
        assert not (tmp_path / "none.jsonl").exists()
    with holdfast.connect("volatile:") as there:
        there.admin.import_(tmp_path / "trip.jsonl")
        assert sorted(row["id"] for row in there.sessions.list_sessions()) == sorted(chain)
        there.admin.import_(tmp_path / "bo.jsonl")
        assert {row["user_id"] for row in there.sessions.list_sessions()} == {"bo"}


def test_what_was_deleted_is_not_exported(tmp_path: Path):
    with holdfast.connect("volatile:") as hf:
        for text in ("secret one", "secret two", "kept"):
            hf.sessions.create_session("s").add_message({"role": "user", "content": text})
            if text != "kept":
                hf.sessions.delete_session("s")
        data = exported(hf, tmp_path / "s.jsonl")
        assert b"secret" not in data and b"kept" in data
        fork = hf.sessions.fork_session("s", new_id="f")
        fork.add_message({"role": "user", "content": "more"})
        assert b"secret" not in exported(hf, tmp_path / "f.jsonl", session_id="f")


@pytest.mark.parametrize("after", [1, 3, 5, 8])
def test_a_killed_import_is_hidden_and_goes_on(after: int, file: Path, tmp_path: Path):
    store = tmp_path / "killed.db"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(store), str(file), str(after)], check=False
    )
    assert done.returncode == -signal.SIGKILL
    lines = file.read_bytes().split(b"\n")
    ids = {json.loads(line)["id"] for line in lines if line.startswith(b'{"line":"sess')}
    with holdfast.connect(store) as hf:
        listed = {row["id"] for row in hf.sessions.list_sessions()}
        for name in ids - listed:
            assert hf.sessions.load_session(name) is None, "half a session is none"
        partly = len(list(hf.events.feed()))
        hf.admin.rebuild()
        assert {row["id"] for row in hf.sessions.list_sessions()} == listed
        hf.admin.import_(file)
        assert exported(hf, tmp_path / "whole.jsonl") == file.read_bytes()
        events = sum(line.startswith(b'{"line":"event') for line in lines)
        assert len(list(hf.events.feed())) == events > partly, "nothing was written twice"
        assert hf.admin.verify().ok


def test_who_takes_the_id_of_half_an_import_keeps_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with holdfast.connect("volatile:") as hf:
        _half(hf, file, monkeypatch)
        assert hf.sessions.load_session("trip") is None
        assert all(row["id"] != "trip" for row in hf.sessions.list_sessions())
        hf.sessions.create_session("trip").add_message({"role": "user", "content": "mine"})
        with pytest.raises(errors.DuplicateSession):
            hf.admin.import_(file)
        assert [m.content for m in hf.sessions.get_session("trip").messages] == ["mine"]


def _half(hf: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import until some of the session trip is in."""
    run = hf.admin._engine.run

    def failing(request: Any) -> Any:
        if request.session_id == "trip" and request.command.expected:
            raise errors.StoreFull
        return run(request)

    with monkeypatch.context() as patch:
        patch.setattr(limits, "IMPORT_STEP_EVENTS", 5)
        patch.setattr(hf.admin._engine, "run", failing)
        with pytest.raises(errors.StoreFull):
            hf.admin.import_(file)


def test_half_of_another_import_is_no_hindrance(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with holdfast.connect("volatile:") as other:
        session = other.sessions.create_session("trip")
        session.add_messages([{"role": "user", "content": f"{n}"} for n in range(30)])
        other.admin.export(tmp_path / "other.jsonl")
    with holdfast.connect("volatile:") as hf:
        _half(hf, tmp_path / "other.jsonl", monkeypatch)
        hf.admin.import_(file)
        assert exported(hf, tmp_path / "whole.jsonl") == file.read_bytes()
        hf.admin.rebuild()
        assert exported(hf, tmp_path / "again.jsonl") == file.read_bytes()


def test_files_are_for_their_owner_and_appear_whole(hf: Any, tmp_path: Path):
    hf.sessions.create_session("s").add_message({"role": "user", "content": "a"})
    seen: list[list[str]] = []

    def looking(_done: int, _total: int) -> None:
        seen.append([path.name for path in tmp_path.glob("*.jsonl")])

    hf.admin.export(tmp_path / "out.jsonl", progress=looking)
    assert seen and all(not names for names in seen), "it has its name only when it is whole"
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o600
    with pytest.raises(errors.InvalidRequest, match="exists"):
        hf.admin.export(tmp_path / "out.jsonl")

    def failing(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hf.admin.export(tmp_path / "never.jsonl", progress=failing)
    assert [path.name for path in tmp_path.glob("*jsonl*")] == ["out.jsonl"], "nothing is left"


@pytest.mark.parametrize("verb", ["import_", "export"])
def test_progress_never_falls_and_ends(verb: str, file: Path, tmp_path: Path):
    told: list[tuple[int, int]] = []
    with holdfast.connect("volatile:") as hf:
        if verb == "export":
            hf.admin.import_(file)
        place = file if verb == "import_" else tmp_path / "x.jsonl"
        getattr(hf.admin, verb)(place, progress=lambda done, total: told.append((done, total)))
    done = [one for one, _ in told]
    assert done == sorted(done) and len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1] > 0


def test_a_dry_run_writes_nothing(hf: Any, file: Path):
    report = hf.admin.import_(file, dry_run=True)
    assert report.dry_run and report.sessions == 9
    assert list(hf.events.feed()) == []


def test_async_has_the_same(file: Path, tmp_path: Path):
    async def go() -> None:
        async with holdfast.connect_async(tmp_path / "a.db", tenant="t") as hf:
            assert (await hf.admin.import_(file)).sessions == 9
            made = await hf.admin.export(tmp_path / "out.jsonl")
            assert made.sessions == 9
        assert (tmp_path / "out.jsonl").read_bytes() == file.read_bytes()

    asyncio.run(go())


def test_an_export_is_of_one_moment_while_others_write(tmp_path: Path):
    with holdfast.connect(tmp_path / "a.db") as hf:
        hf.sessions.create_session("s")
        stop = threading.Event()

        def writing() -> None:
            while not stop.is_set():
                hf.sessions.add_messages("s", [{"role": "user", "content": "more"}])

        writer = threading.Thread(target=writing)
        writer.start()
        try:
            for number in range(5):
                hf.admin.export(tmp_path / f"{number}.jsonl")
        finally:
            stop.set()
            writer.join()
    for number in range(5):
        with holdfast.connect("volatile:") as there:
            there.admin.import_(tmp_path / f"{number}.jsonl")
            assert (
                exported(there, tmp_path / f"{number}-again.jsonl")
                == (tmp_path / f"{number}.jsonl").read_bytes()
            )


def test_to_anything_that_takes_bytes(hf: Any, file: Path):
    hf.admin.import_(file)
    reading, writing = os.pipe()
    parts: list[bytes] = []
    reader = threading.Thread(
        target=lambda: parts.extend(iter(lambda: os.read(reading, 65536), b""))
    )
    reader.start()
    with os.fdopen(writing, "wb") as out:
        hf.admin.export(out)
    reader.join()
    os.close(reading)
    assert b"".join(parts) == file.read_bytes()
    with pytest.raises(errors.InvalidRequest):
        hf.admin.export(7)


def test_real_conversations_make_the_journey(data_dir: Path | None, tmp_path: Path):
    chats = list(corpus.conversations(3, 5, parallel=True))
    if data_dir is not None:
        chats += list(corpus.read_recorded(data_dir / "agent-conversations.jsonl.gz"))[:20]
    with holdfast.connect("volatile:") as hf:
        for number, chat in enumerate(chats):
            session = hf.sessions.create_session(f"c{number}")
            session.add_messages(chat)
        before = exported(hf, tmp_path / "a.jsonl")
    with holdfast.connect(tmp_path / "b.db") as there:
        there.admin.import_(tmp_path / "a.jsonl")
        assert exported(there, tmp_path / "b.jsonl") == before
        for number, chat in enumerate(chats):
            session = there.sessions.get_session(f"c{number}")
            assert [message.raw() for message in session.messages] == chat
