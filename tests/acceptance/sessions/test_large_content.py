"""Large content is kept once beside the log, and nobody who reads notices."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Limpet, Message, limits
from limpet.core.values.events import MessageAddedEvent
from limpet.stores.port import Store
from limpet.stores.sqlite import database
from tests.acceptance.conversation_steps import Opener
from tests.acceptance.older_stores import lowered

PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 50_000
"""About half a megabyte."""

TURN: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PICTURE}}],
    },
    {"role": "assistant", "content": "A picture. " * 10_000},
]


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def blobs_kept(lp: Limpet) -> int:
    return lp.admin.status()["blobs"]


def test_every_read_gives_large_content_back(opener: Opener):
    lp = opener()
    session = lp.sessions.create_session("s", user_id="ada")
    session.add_messages(TURN)
    assert blobs_kept(lp) == 2
    again = lp.sessions.get_session("s")
    assert [message.raw() for message in again.messages] == TURN
    assert again.messages[0].raw() == TURN[0]
    assert [m.raw() for m in again.messages[1:]] == TURN[1:]
    window = again.window(10**9)
    assert [message.raw() for message in window.messages] == TURN
    facts = [fact.event for fact in lp.events.feed()]
    assert [fact.message.raw() for fact in facts if isinstance(fact, MessageAddedEvent)] == TURN
    assert lp.admin.verify().ok


def test_a_window_recorded_with_a_large_answer_is_found(opener: Opener):
    lp = opener()
    session = lp.sessions.create_session("s")
    session.add_message(TURN[0])
    seen = session.window(10**9)
    session.add_message(TURN[1], window=seen)
    (found,) = lp.sessions.get_session("s").recorded_windows()
    assert found.message_id == session.messages[1].id
    again = lp.sessions.get_session("s").window_of(found.message_id)
    assert [message.raw() for message in again.messages] == TURN[:1]


def test_a_store_opened_again_gives_it_back(fast_dir: Path):
    with limpet.connect(fast_dir / "state.db") as lp:
        lp.sessions.create_session("s").add_messages(TURN)
    with limpet.connect(fast_dir / "state.db") as lp:
        session = lp.sessions.get_session("s")
        assert [message.raw() for message in session.window(10**9).messages] == TURN
        assert session.message_count == 2


def test_the_same_picture_in_every_turn_is_on_disk_once(fast_dir: Path):
    with limpet.connect(fast_dir / "state.db") as lp:
        session = lp.sessions.create_session("s")
        session.add_messages(TURN)
        once = stored_bytes(fast_dir)
        for _ in range(40):
            session.add_messages(TURN)
        lp.sessions.create_session("t").add_messages(TURN)
        assert blobs_kept(lp) == 2
    assert once > len(PICTURE)
    assert stored_bytes(fast_dir) < once + len(PICTURE) // 2
    with limpet.connect(fast_dir / "state.db") as lp:
        assert lp.sessions.get_session("s").messages[-2].raw() == TURN[0]


def test_what_a_continuation_carries_over_is_no_second_copy(opener: Opener):
    lp = opener()
    session = lp.sessions.create_session("s", system="You see. " * 9_000)
    session.add_messages(TURN)
    before = blobs_kept(lp)
    following = lp.sessions.create_continuation_session(session)
    assert following.messages[0].content == "You see. " * 9_000
    assert blobs_kept(lp) == before


def test_a_repeated_large_message_has_one_effect_and_another_is_refused(opener: Opener):
    lp = opener()
    session = lp.sessions.create_session("s")
    session.add_message(Message("user", PICTURE, id="m"))
    assert session.add_message(Message("user", PICTURE, id="m")).message_count == 1
    with pytest.raises(limpet.errors.DuplicateMessage):
        session.add_message(Message("user", PICTURE + "x", id="m"))
    assert blobs_kept(lp) == 1


def test_tenants_keep_their_own(fast_dir: Path):
    for tenant in ("a", "b"):
        with limpet.connect(fast_dir / "state.db", tenant=tenant) as lp:
            lp.sessions.create_session("s").add_messages(TURN)
            assert lp.sessions.get_session("s").messages[0].raw() == TURN[0]
    with limpet.connect(fast_dir / "state.db", tenant="c") as lp:
        assert blobs_kept(lp) == 4
        hashes = [hashlib.sha256(PICTURE.encode()).digest()]
        assert lp.sessions._service.engine.store.blobs("b", hashes) != {}
        assert lp.sessions._service.engine.store.blobs("c", hashes) == {}


def test_a_message_is_not_larger_than_one_may_be(opener: Opener):
    session = opener().sessions.create_session("s")
    with pytest.raises(limpet.errors.TooLarge):
        session.add_message(Message("user", "x" * limits.MESSAGE_BYTES_MAX))
    assert session.message_count == 0


class Counting:
    """Counts the looks for blobs."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks: list[int] = []
        sound = store.blobs

        def counted(tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
            self.looks.append(len(hashes))
            return sound(tenant, hashes)

        monkeypatch.setattr(store, "blobs", counted)


def test_a_page_of_messages_takes_one_look_for_blobs(opener: Opener, monkeypatch: pytest.MonkeyPatch):
    lp = opener()
    session = lp.sessions.create_session("s")
    session.add_messages([Message("user", f"{n}" * 40_000) for n in range(30)])
    session.add_message(Message("user", "small"))
    counting = Counting(lp.sessions._service.engine.store, monkeypatch)
    session = lp.sessions.get_session("s")
    assert [str(message.content)[0] for message in session.messages][:5] == ["0", "1", "2", "3", "4"]
    assert counting.looks == [30]
    assert session.messages[-1].content == "small"
    assert counting.looks == [30], "a message without large texts needs none"
    assert len(list(lp.events.feed())) == 32
    assert counting.looks == [30, 30]


def test_a_backup_and_the_views_have_it(fast_dir: Path):
    with limpet.connect(fast_dir / "state.db") as lp:
        session = lp.sessions.create_session("s")
        session.add_messages(TURN)
        session.add_message(Message("user", "Thanks."))
        lp.admin.backup(fast_dir / "copy.db")
    plain = sqlite3.connect(f"file:{fast_dir}/copy.db?immutable=1", uri=True)
    rows = plain.execute("SELECT role, content, id FROM messages ORDER BY version").fetchall()
    plain.close()
    assert [role for role, _, _ in rows] == ["user", "assistant", "user"]
    assert [content for _, content, _ in rows][1:] == [TURN[1]["content"], "Thanks."]
    with limpet.connect(fast_dir / "copy.db") as lp:
        assert lp.admin.verify().ok
        again = lp.sessions.get_session("s").messages
        assert [message.raw() for message in again[:2]] == TURN
        assert [message.id for message in again] == [id_ for _, _, id_ in rows]


def vandalised(path: Path, statement: str) -> None:
    connection = database.connect(path, write=True)
    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "statement", ["UPDATE blobs SET content = content || x'00'", "DELETE FROM blobs"], ids=["damaged", "lost"]
)
def test_damage_is_reported_and_never_read(fast_dir: Path, statement: str):
    path = fast_dir / "state.db"
    with limpet.connect(path) as lp:
        lp.sessions.create_session("s").add_messages([*TURN, {"role": "user", "content": "And?"}])
    database.register_checksum_vfs()
    vandalised(path, statement)
    with limpet.connect(path) as lp:
        report = lp.admin.verify()
        assert len(report.faults) == 2
        session = lp.sessions.list_sessions()[0]
        assert session["message_count"] == 3
        for read in (lambda: list(lp.events.feed()), lambda: list(lp.sessions.get_session("s").messages)):
            with pytest.raises(limpet.Corrupt) as info:
                read()
            assert "blob" in info.value.facts


def test_a_use_of_no_event_is_reported(fast_dir: Path):
    path = fast_dir / "state.db"
    with limpet.connect(path) as lp:
        lp.sessions.create_session("s").add_messages(TURN)
        vandalised(path, "UPDATE blob_uses SET event = event + 1000")
        assert "not there" in lp.admin.verify().faults[0]


def first_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a store as it was before there were blobs."""
    with monkeypatch.context() as patch:
        patch.setattr(limits, "BLOB_BYTES_MIN", limits.MESSAGE_BYTES_MAX)
        with limpet.connect(path) as lp:
            lp.sessions.create_session("s").add_messages(TURN)
    lowered(path, 1)


def schema_of(path: Path) -> list[tuple[Any, ...]]:
    plain = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    rows = plain.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
    plain.close()
    # A store that is lifted has the blanks that a new one is made without.
    return [(kind, name, text and database.minify_sql(text)) for kind, name, text in rows]


def test_a_store_of_the_first_version_is_lifted(fast_dir: Path, monkeypatch: pytest.MonkeyPatch):
    old, new = fast_dir / "old.db", fast_dir / "new.db"
    first_version(old, monkeypatch)
    assert "blobs" not in str(schema_of(old))
    with limpet.connect(old) as lp:
        assert lp.admin.status()["schema"] == database.SCHEMA_VERSION
        assert blobs_kept(lp) == 0
        session = lp.sessions.get_session("s")
        assert [message.raw() for message in session.messages] == TURN
        session.add_messages(TURN)
        assert blobs_kept(lp) == 2
        assert [message.raw() for message in session.messages] == TURN * 2
        assert lp.admin.verify().ok
    limpet.connect(new).close()
    assert schema_of(old) == schema_of(new)
