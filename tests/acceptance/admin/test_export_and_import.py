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

import limpet
from limpet import errors, limits
from tests import corpus

KILLED = """
import os, signal, sys
import limpet
from limpet import limits
from limpet.runtime.engine import Engine

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
limpet.connect(sys.argv[1]).admin.import_(sys.argv[2])
"""


@pytest.fixture(params=["sqlite", "volatile"])
def lp(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    place = tmp_path / "here.db" if request.param == "sqlite" else "volatile:"
    with limpet.connect(place) as opened:
        yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of two users: a chain, a fork, a rewind, tools, a large text."""
    folder = tmp_path_factory.mktemp("export")
    with limpet.connect("volatile:", max_messages_per_session=20) as source:
        for number, chat in enumerate(corpus.conversations(7, 2, parallel=True)):
            session = source.sessions.create_session(f"chat-{number}", user_id="ada")
            for message in chat:
                session.add_message(message)
        trip = source.sessions.create_session("trip", user_id="bo", title="Oslo", system="Plan.")
        for number in range(40):
            trip.add_message({"role": "user", "content": f"step {number} \0 🛳"})
        trip.add_message({"role": "user", "content": "large " * 10_000})
        source.sessions.create_session("first", user_id="bo").add_message({"role": "user", "content": "a"})
        source.sessions.fork_session("first", new_id="fork")
        source.sessions.get_session("fork").add_message({"role": "assistant", "content": "b"})
        source.sessions.rewind_session("fork", 1)
        source.admin.export(folder / "all.jsonl")
    return folder / "all.jsonl"


def exported(lp: Any, path: Path, **chosen: str) -> bytes:
    lp.admin.export(path, **chosen)
    return path.read_bytes()


def test_an_export_of_an_import_is_the_same_file(lp: Any, file: Path, tmp_path: Path):
    report = lp.admin.import_(file)
    assert report.format == "limpet" and not report.skipped
    assert exported(lp, tmp_path / "again.jsonl") == file.read_bytes()
    chain = lp.sessions.session_chain("trip")
    assert len(chain) == 3 and chain[0].title == "Oslo"
    lp.sessions.get_session("trip").add_message({"role": "user", "content": "it goes on"})
    assert lp.sessions.session_chain("trip")[-1].messages[-1].content == "it goes on"
    assert lp.admin.verify().ok


def test_the_same_file_again_changes_nothing(lp: Any, file: Path):
    new = lp.admin.import_(file)
    last = list(lp.events.feed())[-1].position
    again = lp.admin.import_(file)
    assert (again.sessions, again.messages, again.already) == (0, 0, new.sessions)
    lp.sessions.get_session("first").add_message({"role": "user", "content": "gone on since"})
    assert lp.admin.import_(file).already == new.sessions, "what has gone on is still the same"
    assert list(lp.events.feed())[-1].position == last + 1


def test_another_session_of_the_id_is_never_touched(lp: Any, file: Path):
    lp.sessions.create_session("fork").add_message({"role": "user", "content": "mine"})
    before = [event.position for event in lp.events.feed()]
    with pytest.raises(errors.DuplicateSession, match="fork"):
        lp.admin.import_(file)
    assert [event.position for event in lp.events.feed()] == before, "not even the others were"
    report = lp.admin.import_(file, rename="-copy")
    assert lp.sessions.get_session("fork").messages[0].content == "mine"
    chain = lp.sessions.session_chain("trip-copy")
    assert [part.id.endswith("-copy") for part in chain] == [True] * 3
    carried = [message.origin for message in chain[1].messages if message.origin]
    assert carried and set(carried) == {"trip-copy"}
    assert lp.admin.import_(file, rename="-copy").already == report.sessions


def test_what_was_deleted_can_be_given_back(lp: Any, file: Path, tmp_path: Path):
    lp.admin.import_(file)
    lp.sessions.delete_session("trip")
    assert lp.admin.import_(file).sessions == 1
    assert exported(lp, tmp_path / "again.jsonl") == file.read_bytes()
    session = lp.sessions.get_session("trip")
    assert session.messages[0].content == "Plan."
    with pytest.raises(errors.NotFound):
        session.at(1)
    lp.admin.rebuild()
    assert exported(lp, tmp_path / "rebuilt.jsonl") == file.read_bytes()


def test_into_another_tenant_and_for_another_user(file: Path, tmp_path: Path):
    with limpet.connect(tmp_path / "a.db", tenant="one") as one:
        one.admin.import_(file, user_id="eve")
        assert {row["user_id"] for row in one.sessions.list_sessions()} == {"eve"}
        assert one.sessions.rewind_session("first", 1).state.user_id == "eve"
    with limpet.connect(tmp_path / "a.db", tenant="two") as two:
        assert two.sessions.list_sessions() == []
        two.admin.import_(file)
        assert exported(two, tmp_path / "two.jsonl") == file.read_bytes()
    assert b"tenant" not in file.read_bytes()


def test_a_session_comes_with_its_conversation_and_nothing_else(file: Path, tmp_path: Path):
    with limpet.connect("volatile:") as lp:
        lp.admin.import_(file)
        chain = [part.id for part in lp.sessions.session_chain("trip")]
        exported(lp, tmp_path / "trip.jsonl", session_id=chain[1])
        exported(lp, tmp_path / "bo.jsonl", user_id="bo")
        with pytest.raises(errors.SessionNotFound):
            lp.admin.export(tmp_path / "none.jsonl", session_id="nobody")
        with pytest.raises(errors.InvalidRequest):
            lp.admin.export(tmp_path / "none.jsonl", session_id="trip", user_id="bo")
        assert not (tmp_path / "none.jsonl").exists()
    with limpet.connect("volatile:") as there:
        there.admin.import_(tmp_path / "trip.jsonl")
        assert sorted(row["id"] for row in there.sessions.list_sessions()) == sorted(chain)
        there.admin.import_(tmp_path / "bo.jsonl")
        assert {row["user_id"] for row in there.sessions.list_sessions()} == {"bo"}


def test_what_was_deleted_is_not_exported(tmp_path: Path):
    with limpet.connect("volatile:") as lp:
        for text in ("secret one", "secret two", "kept"):
            lp.sessions.create_session("s").add_message({"role": "user", "content": text})
            if text != "kept":
                lp.sessions.delete_session("s")
        data = exported(lp, tmp_path / "s.jsonl")
        assert b"secret" not in data and b"kept" in data
        fork = lp.sessions.fork_session("s", new_id="f")
        fork.add_message({"role": "user", "content": "more"})
        assert b"secret" not in exported(lp, tmp_path / "f.jsonl", session_id="f")


@pytest.mark.parametrize("after", [1, 3, 5, 8])
def test_a_killed_import_is_hidden_and_goes_on(after: int, file: Path, tmp_path: Path):
    store = tmp_path / "killed.db"
    done = subprocess.run([sys.executable, "-c", KILLED, str(store), str(file), str(after)], check=False)
    assert done.returncode == -signal.SIGKILL
    lines = file.read_bytes().split(b"\n")
    ids = {json.loads(line)["id"] for line in lines if line.startswith(b'{"line":"sess')}
    with limpet.connect(store) as lp:
        listed = {row["id"] for row in lp.sessions.list_sessions()}
        for name in ids - listed:
            assert lp.sessions.load_session(name) is None, "half a session is none"
        partly = len(list(lp.events.feed()))
        lp.admin.rebuild()
        assert {row["id"] for row in lp.sessions.list_sessions()} == listed
        lp.admin.import_(file)
        assert exported(lp, tmp_path / "whole.jsonl") == file.read_bytes()
        events = sum(line.startswith(b'{"line":"event') for line in lines)
        assert len(list(lp.events.feed())) == events > partly, "nothing was written twice"
        assert lp.admin.verify().ok


def test_who_takes_the_id_of_half_an_import_keeps_it(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with limpet.connect("volatile:") as lp:
        _half(lp, file, monkeypatch)
        assert lp.sessions.load_session("trip") is None
        assert all(row["id"] != "trip" for row in lp.sessions.list_sessions())
        lp.sessions.create_session("trip").add_message({"role": "user", "content": "mine"})
        with pytest.raises(errors.DuplicateSession):
            lp.admin.import_(file)
        assert [m.content for m in lp.sessions.get_session("trip").messages] == ["mine"]


def _half(lp: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import until some of the session trip is in."""
    run = lp.admin._engine.run

    def failing(request: Any) -> Any:
        if request.session_id == "trip" and request.command.expected:
            raise errors.StoreFull
        return run(request)

    with monkeypatch.context() as patch:
        patch.setattr(limits, "IMPORT_STEP_EVENTS", 5)
        patch.setattr(lp.admin._engine, "run", failing)
        with pytest.raises(errors.StoreFull):
            lp.admin.import_(file)


def test_half_of_another_import_is_no_hindrance(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with limpet.connect("volatile:") as other:
        session = other.sessions.create_session("trip")
        session.add_messages([{"role": "user", "content": f"{n}"} for n in range(30)])
        other.admin.export(tmp_path / "other.jsonl")
    with limpet.connect("volatile:") as lp:
        _half(lp, tmp_path / "other.jsonl", monkeypatch)
        lp.admin.import_(file)
        assert exported(lp, tmp_path / "whole.jsonl") == file.read_bytes()
        lp.admin.rebuild()
        assert exported(lp, tmp_path / "again.jsonl") == file.read_bytes()


def test_files_are_for_their_owner_and_appear_whole(lp: Any, tmp_path: Path):
    lp.sessions.create_session("s").add_message({"role": "user", "content": "a"})
    seen: list[list[str]] = []

    def looking(_done: int, _total: int) -> None:
        seen.append([path.name for path in tmp_path.glob("*.jsonl")])

    lp.admin.export(tmp_path / "out.jsonl", progress=looking)
    assert seen and all(not names for names in seen), "it has its name only when it is whole"
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o600
    with pytest.raises(errors.InvalidRequest, match="exists"):
        lp.admin.export(tmp_path / "out.jsonl")

    def failing(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lp.admin.export(tmp_path / "never.jsonl", progress=failing)
    assert [path.name for path in tmp_path.glob("*jsonl*")] == ["out.jsonl"], "nothing is left"


@pytest.mark.parametrize("verb", ["import_", "export"])
def test_progress_never_falls_and_ends(verb: str, file: Path, tmp_path: Path):
    told: list[tuple[int, int]] = []
    with limpet.connect("volatile:") as lp:
        if verb == "export":
            lp.admin.import_(file)
        place = file if verb == "import_" else tmp_path / "x.jsonl"
        getattr(lp.admin, verb)(place, progress=lambda done, total: told.append((done, total)))
    done = [one for one, _ in told]
    assert done == sorted(done) and len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1] > 0


def test_a_dry_run_writes_nothing(lp: Any, file: Path):
    report = lp.admin.import_(file, dry_run=True)
    assert report.dry_run and report.sessions == 9
    assert list(lp.events.feed()) == []


def test_async_has_the_same(file: Path, tmp_path: Path):
    async def go() -> None:
        async with limpet.connect_async(tmp_path / "a.db", tenant="t") as lp:
            assert (await lp.admin.import_(file)).sessions == 9
            made = await lp.admin.export(tmp_path / "out.jsonl")
            assert made.sessions == 9
        assert (tmp_path / "out.jsonl").read_bytes() == file.read_bytes()

    asyncio.run(go())


def test_an_export_is_of_one_moment_while_others_write(tmp_path: Path):
    with limpet.connect(tmp_path / "a.db") as lp:
        lp.sessions.create_session("s")
        stop = threading.Event()

        def writing() -> None:
            while not stop.is_set():
                lp.sessions.add_messages("s", [{"role": "user", "content": "more"}])

        writer = threading.Thread(target=writing)
        writer.start()
        try:
            for number in range(5):
                lp.admin.export(tmp_path / f"{number}.jsonl")
        finally:
            stop.set()
            writer.join()
    for number in range(5):
        with limpet.connect("volatile:") as there:
            there.admin.import_(tmp_path / f"{number}.jsonl")
            assert exported(there, tmp_path / f"{number}-again.jsonl") == (tmp_path / f"{number}.jsonl").read_bytes()


def test_to_anything_that_takes_bytes(lp: Any, file: Path):
    lp.admin.import_(file)
    reading, writing = os.pipe()
    parts: list[bytes] = []
    reader = threading.Thread(target=lambda: parts.extend(iter(lambda: os.read(reading, 65536), b"")))
    reader.start()
    with os.fdopen(writing, "wb") as out:
        lp.admin.export(out)
    reader.join()
    os.close(reading)
    assert b"".join(parts) == file.read_bytes()
    with pytest.raises(errors.InvalidRequest):
        lp.admin.export(7)


def test_real_conversations_make_the_journey(data_dir: Path | None, tmp_path: Path):
    chats = list(corpus.conversations(3, 5, parallel=True))
    if data_dir is not None:
        chats += list(corpus.read_recorded(data_dir / "agent-conversations.jsonl.gz"))[:20]
    with limpet.connect("volatile:") as lp:
        for number, chat in enumerate(chats):
            session = lp.sessions.create_session(f"c{number}")
            session.add_messages(chat)
        before = exported(lp, tmp_path / "a.jsonl")
    with limpet.connect(tmp_path / "b.db") as there:
        there.admin.import_(tmp_path / "a.jsonl")
        assert exported(there, tmp_path / "b.jsonl") == before
        for number, chat in enumerate(chats):
            session = there.sessions.get_session(f"c{number}")
            assert [message.raw() for message in session.messages] == chat
