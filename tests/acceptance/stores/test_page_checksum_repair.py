"""A store whose page checksums do not match is proved from its log, or refused."""

import hashlib
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import limpet
from limpet import Message, limits
from limpet.stores.sqlite import database, maintenance
from tests.acceptance.older_stores import lowered

ROWS = 40
LARGE = 7
"""The message that is a blob."""

LARGE_CHARS = limits.BLOB_BYTES_MIN


def abandon(path: Path) -> None:
    """Fill a store in a child that ends without closing it, so that its log stays behind."""
    child = os.fork()
    if child == 0:
        lp = limpet.connect(path)
        for name in ("a", "b"):
            session = lp.sessions.create_session(name, user_id="ada", metadata={"n": name})
            for index in range(ROWS):
                length = LARGE_CHARS if index == LARGE else 300
                session.add_message(Message("user", f"{name}{index} " + "x" * length))
        lp.sessions.delete_session("b")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def visit(path: Path, statement: str = "SELECT count(*) FROM messages") -> None:
    """Open the store with a plain SQLite, which empties the log without renewing checksums."""
    with sqlite3.connect(path) as plain:
        plain.execute(statement)
    plain.close()
    assert not Path(f"{path}-wal").exists()


def texts(lp: limpet.Limpet, name: str) -> list[str]:
    return [str(message.content) for message in lp.sessions.get_session(name).messages]


def test_a_store_that_another_program_opened_is_mended_and_says_so(tmp_path: Path):
    path = tmp_path / "state.db"
    abandon(path)
    visit(path)
    with limpet.connect(path) as lp:
        assert lp.admin.status()["notes"][0] == maintenance.REPAIR_NOTE
        assert [text.split()[0] for text in texts(lp, "a")] == [f"a{n}" for n in range(ROWS)]
        assert lp.sessions.load_session("b") is None
        assert [row["id"] for row in lp.sessions.list_sessions(metadata={"n": "a"})] == ["a"]
        assert lp.admin.verify().ok
        first = lp.sessions.get_session("a").messages[0]
        with pytest.raises(limpet.errors.DuplicateMessage):
            lp.sessions.add_messages("a", [Message("user", "other", id=first.id)])
    with limpet.connect(path) as lp:
        assert lp.admin.status()["notes"] == []


def test_no_literal_of_the_schema_is_squeezed():
    """What leaves comments and blanks out does not know where a text begins."""
    files = ("schema.sql", *database.MIGRATIONS.values())
    lines = [line for name in files for line in database.read_sql_file(name).splitlines()]
    assert all(line.split("--")[0].count("'") % 2 == 0 for line in lines)
    found = [text for line in lines for text in re.findall("'[^']*'", line.split("--")[0])]
    assert found and [database.minify_sql(text) for text in found] == found


def test_a_store_whose_schema_has_comments_and_blanks_is_mended(tmp_path: Path):
    """So were all stores made before new ones were made without."""
    path = tmp_path / "state.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "minify_sql", lambda text: text)
        abandon(path)
    visit(path)
    with closing(sqlite3.connect(path)) as plain:
        (told,) = plain.execute("SELECT sql FROM sqlite_schema WHERE name = 'streams'").fetchone()
    assert "\n" in told
    with limpet.connect(path) as lp:
        assert lp.admin.status()["notes"][0] == maintenance.REPAIR_NOTE and lp.admin.verify().ok


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE projections SET document = replace(document, 'ada', 'eve')",
        "DELETE FROM claims",
        "UPDATE snapshots SET state = x'00'",
        "DELETE FROM blob_uses",
        "UPDATE blob_uses SET event = event + 1",
    ],
)
def test_what_can_be_derived_is_made_anew(tmp_path: Path, statement: str):
    path = tmp_path / "state.db"
    abandon(path)
    visit(path, statement)
    with limpet.connect(path) as lp:
        assert [row["user_id"] for row in lp.sessions.list_sessions()] == ["ada"]
        again = lp.sessions.get_session("a").messages[5]
        assert lp.sessions.add_messages("a", [again]).message_count == ROWS
        assert lp.admin.verify().ok
        large = texts(lp, "a")[LARGE]
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as plain:
        uses = plain.execute("SELECT event, hash FROM blob_uses ORDER BY event").fetchall()
    assert [event & 0xFFFFFFFF for event, _ in uses] == [LARGE + 2, LARGE + 2 + ROWS + 1]
    assert uses[0][1] == hashlib.sha256(large.encode()).digest()


def test_a_store_of_the_first_version_is_mended_and_lifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "state.db"
    with monkeypatch.context() as patch:
        patch.setattr(limits, "BLOB_BYTES_MIN", limits.MESSAGE_BYTES_MAX)
        abandon(path)
    lowered(path, 1)
    visit(path, "SELECT 1 FROM sessions")
    with limpet.connect(path) as lp:
        facts = lp.admin.status()
        assert (facts["notes"][0], facts["schema"], facts["blobs"]) == (
            maintenance.REPAIR_NOTE,
            database.SCHEMA_VERSION,
            0,
        )
        assert len(texts(lp, "a")) == ROWS
        assert lp.admin.verify().ok


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET payload = replace(payload, 'a7 ', 'a8 ') WHERE version = 9",
        "DELETE FROM events WHERE version = 9",
        "DELETE FROM events WHERE key = (SELECT max(key) FROM events)",
        "UPDATE streams SET name = 'session/other' WHERE name = 'session/a'",
        "UPDATE tenants SET name = 'other'",
        "DROP VIEW messages",
        "DELETE FROM blobs",
        "UPDATE blobs SET content = x'00'",
        "UPDATE blobs SET tenant = tenant + 1",
    ],
)
def test_what_the_log_can_not_prove_is_refused(tmp_path: Path, statement: str):
    path = tmp_path / "state.db"
    abandon(path)
    visit(path, statement)
    before = path.read_bytes()
    with pytest.raises(limpet.Corrupt):
        limpet.connect(path)
    assert path.read_bytes() == before
