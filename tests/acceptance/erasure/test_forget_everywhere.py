"""A user, a session, a message: forgotten by everything at once, in every byte, and by every backup that is put back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import limpet
from limpet import Limpet
from limpet.jobs import offload, summaries, tasks
from tests.acceptance.full_store import known, opened, said, worked
from tests.acceptance.marker_words import Canaries, fill, found

LEAST = 1_000


def others(lp: Limpet) -> None:
    """Have somebody else say something, in words that the canaries have too."""
    said(lp, "kept", "bob", "I live in Rome.", "I am allergic to walnuts.", "Which train?")
    said(lp, "open", "bob", "I prefer tea.", end=False)


def of_others(lp: Limpet) -> object:
    sessions = [lp.sessions.get_session(name) for name in ("kept", "open")]
    hits = [(hit.session_id, hit.excerpt) for hit in lp.archive.search("Rome", user_id="bob")]
    return (
        [[str(m.content) for m in session.messages] for session in sessions],
        hits,
        known(lp, "bob"),
        [one.text for one in lp.memory.search("bob", "train")],
        [str(m.content) for m in sessions[1].window(2_000).messages],
    )


def talk(lp: Limpet, user: str, c: Canaries) -> list[str]:
    """Say things that memory learns, in sessions that ended, that wait, and that were given up."""
    ids = [c() for _ in range(6)]
    for session_id in ids:
        session = lp.sessions.create_session(session_id, user_id=user, system=c(), title=c())
        for text in (f"I live in {c()}.", f"I am allergic to {c()}.", f"My name is {c()}."):
            session.add_message({"role": "user", "content": text})
            session.add_message({"role": "assistant", "content": f"Noted: {c()}"})
        lp.sessions.end_session(session_id)
    return ids


def noted(lp: Limpet, waiting: str, dead: str, wanted: str) -> None:
    """Leave notes of work that is not done, as workers do whose engines fail."""
    store, now = lp.sessions._service.engine.store, lp.sessions._service.engine.now_us()
    later = now + 60_000_000
    queue = offload.OffloadQueue(store, "default")
    for session_id in (waiting, dead):
        queue.add(
            offload.OffloadJob(
                session_id=session_id, generation=0, version=2, position=3, ended_us=1,
                retry_us=later if session_id == waiting else 0,
            )
        )  # fmt: skip
    found = queue.next_due(now)
    assert found is not None and found.job.session_id == dead
    queue.record_failure(found, "refused", now, useless=True)
    todo = msgspec.json.encode(summaries.PendingSummary(wanted, 3, 1, later))
    store.put_note("default", summaries.SUMMARY_PREFIX + tasks.short_digest(wanted), todo, expected=0)


def filled(home: Path) -> tuple[str, Canaries]:
    """Fill a store with a user's canaries wherever they can be, and others, and do all the work that there is."""
    path, c = home / "state.db", Canaries()
    user = c()
    with opened(path) as lp, opened(path, "globex") as other:
        others(lp)
        others(other)
        ids = talk(lp, user, c)
        worked(lp)
        lp.sessions.create_session(c(), user_id=user, system=c())
        filled_ids = fill(lp, user, c, LEAST)
        worked(lp)
        noted(lp, ids[0], ids[1], filled_ids[0])
        assert len(lp.memory.queue()) >= 2
    return user, c


def put_back(path: Path, copy: Path, *, memory: dict[str, bytes] | None = None) -> None:
    """Put a backup in the place of a store, as the docs say; and the memory of that moment, which they do not."""
    for end in ("", "-wal", "-shm", "-anchor"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    shutil.copy(copy, path)
    if memory is not None:
        for file in path.parent.glob("state.db-memory*"):
            file.unlink()
        for name, data in memory.items():
            (path.parent / name).write_bytes(data)


def shelf(home: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in home.glob("state.db-memory*")}


def test_a_user_is_in_no_byte_of_anything_and_comes_back_by_no_copy(fast_dir: Path):
    home, away = fast_dir / "home", fast_dir / "away"
    home.mkdir()
    away.mkdir()
    path = home / "state.db"
    user, c = filled(home)
    assert c.count > LEAST
    with opened(path) as lp, opened(path, "globex") as other:
        lp.admin.backup(away / "old.db")
        lp.admin.export(away / "export.jsonl", user_id=user)
        memory, before = shelf(home), (of_others(lp), of_others(other))
        assert found(home)["state.db-memory"] > 20
        receipt = lp.memory.forget(user)
        assert (receipt.pending, receipt.what) == (False, "user")
        assert found(home) == {}
        assert lp.admin.verify().ok
        assert (of_others(lp), of_others(other)) == before
        assert lp.memory.queue() == []
        assert known(lp, user) == [] and list(lp.memory.search(user, "allergic")) == []
        worked(lp)
        assert (of_others(lp), of_others(other)) == before
    assert found(home) == {}
    for beside in (None, memory):
        put_back(path, away / "old.db", memory=beside)
        with opened(path) as lp, opened(path, "globex") as other:
            assert found(home) == {}
            worked(lp)
            assert known(lp, user) == []
            assert (of_others(lp), of_others(other)) == before
            assert lp.admin.verify().ok
        assert found(home) == {}


def test_the_memory_of_an_earlier_moment_brings_nothing_back(fast_dir: Path):
    path = fast_dir / "state.db"
    with opened(path) as lp:
        others(lp)
        said(lp, "one", "ada", "I live in Kestrel0001.", "I prefer MARMOT0001.")
        worked(lp)
        before = of_others(lp)
    memory = shelf(fast_dir)
    with opened(path) as lp:
        lp.memory.forget("ada")
    for file in fast_dir.glob("state.db-memory*"):
        file.unlink()
    for name, data in memory.items():
        (fast_dir / name).write_bytes(data)
    assert "state.db-memory" in found(fast_dir)
    with limpet.connect(path):
        assert found(fast_dir) == {}
    with opened(path) as lp:
        worked(lp)
        assert known(lp, "ada") == []
        assert of_others(lp) == before


@pytest.mark.parametrize("what", ["session", "message", "deleted"])
def test_of_a_user_who_stays_one_session_or_message_is_gone_from_everything(fast_dir: Path, what: str):
    path, secret = fast_dir / "state.db", "I live in Kestrel0001 MARMOT0001."
    erase: dict[str, Callable[[Limpet], object]] = {
        "session": lambda lp: lp.admin.erase(session_id="one"),
        "message": lambda lp: lp.admin.erase(session_id="one", message_id="m1"),
        "deleted": lambda lp: (lp.sessions.delete_session("one"), lp.admin.erase()),
    }
    with opened(path) as lp:
        others(lp)
        session = lp.sessions.create_session("one", user_id="ada")
        session.add_message({"role": "user", "content": secret, "id": "m1"})
        lp.sessions.end_session("one")
        said(lp, "two", "ada", "I am allergic to peanuts.")
        worked(lp)
        third = lp.sessions.create_session("three", user_id="ada", system="You plan trips.")
        assert "Kestrel0001" in str(third.messages[0].content)
        third.add_message({"role": "user", "content": "I prefer tea."})
        window = third.window(2_000)
        third.add_message({"role": "assistant", "content": "Noted."}, window=window)
        lp.sessions.fork_session("three", new_id="fork")
        lp.sessions.create_continuation_session(lp.sessions.get_session("three"))
        worked(lp)
        lp.admin.backup(fast_dir.parent / f"{fast_dir.name}.old")
        erase[what](lp)
        try:
            everywhere(lp, fast_dir)
        finally:
            put_back(path, fast_dir.parent / f"{fast_dir.name}.old")
            Path(fast_dir.parent / f"{fast_dir.name}.old").unlink()
    with opened(path) as lp:
        everywhere(lp, fast_dir)


def everywhere(lp: Limpet, home: Path) -> None:
    assert found(home) == {}
    for name in ("three", "fork"):
        prompt = lp.sessions.get_session(name).messages[0]
        assert (prompt.role, str(prompt.content)) == ("system", "You plan trips.")
    assert "Kestrel" not in str(lp.archive.search("Kestrel0001", user_id="ada"))
    assert "Kestrel" not in str(lp.memory.search("ada", "Kestrel0001"))
    worked(lp)
    facts = known(lp, "ada")
    assert "peanuts" in str(facts) and "Kestrel" not in str(facts)
    assert lp.admin.verify().ok
    lp.admin.rebuild()
    assert lp.admin.verify().ok
    new = lp.sessions.create_session(user_id="ada")
    assert "peanuts" in str(new.messages[0].content)
    assert found(home) == {}
