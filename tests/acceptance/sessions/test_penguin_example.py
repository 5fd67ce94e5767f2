"""The usage example of the state system's description, as written there, and what is left of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from limpet import Message, MessageCategory, SessionManager, connect, errors

EXAMPLE = """
from limpet import Message, MessageCategory, SessionManager

# Initialize session manager
session_manager = SessionManager(
    base_path="conversations",
    max_messages_per_session=5000,
    max_sessions_in_memory=20,
    auto_save_interval=60
)

# Create a new session
session = session_manager.create_session()

# Add a message
message = Message(
    role="user",
    content="Hello, how are you?",
    category=MessageCategory.DIALOG
)
session.add_message(message)

# Save the session
session_manager.save_session(session)
print(session.id, message.id)

# Load a session
session = session_manager.load_session("session_20230401_123456")
assert session is None

# Check if session boundary reached
if session_manager.check_session_boundary(session):
    # Create continuation session
    new_session = session_manager.create_continuation_session(session)
"""

LOOKING = """
import sys
from limpet import SessionManager
with SessionManager(base_path="conversations") as manager:
    (row,) = manager.list_sessions()
    session = manager.load_session(row["id"])
    (message,) = session.messages
    print(session.id, message.id)
    print(message.role, message.content, message.category.name)
"""


def run(program: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.req("B-25", "B-9", "B-12")
def test_the_example_runs_and_a_new_process_finds_what_it_said(tmp_path: Path):
    (written,) = run(EXAMPLE, tmp_path)
    assert run(LOOKING, tmp_path) == [written, "user Hello, how are you? DIALOG"]


@pytest.mark.req("B-25", "B-11", "B-13")
def test_the_example_at_its_boundary_continues_the_current_session(tmp_path: Path):
    """After the load of an unknown id the check means the current session, and so does the rest."""
    with SessionManager(str(tmp_path / "c"), 2, 20, "json", 60) as manager:
        session = manager.create_session()
        session.add_message(Message(role="system", content="S", category=MessageCategory.SYSTEM))
        session.add_message(Message(role="user", content="Hi", category=MessageCategory.DIALOG))
        loaded = manager.load_session("session_20230401_123456")
        assert loaded is None
        assert manager.check_session_boundary(loaded) is True
        new = manager.create_continuation_session(loaded)
        assert new.metadata["continued_from"] == session.id
        assert manager.current_session is new


@pytest.mark.req("B-9")
def test_the_constructor_has_the_documents_names_defaults_and_attributes(tmp_path: Path):
    with SessionManager(base_path=str(tmp_path / "deep" / "folder")) as manager:
        assert manager.base_path == str(tmp_path / "deep" / "folder")
        assert manager.max_messages_per_session == 5000
        assert manager.max_sessions_in_memory == 20
        assert manager.current_session is None and dict(manager.sessions) == {}
    assert (tmp_path / "deep" / "folder" / "journal" / "000001.jsonl").exists()


@pytest.mark.req("B-9")
@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "pickle"}, {"max_messages_per_session": 0}, {"max_messages_per_session": "5"},
        {"max_sessions_in_memory": -1}, {"max_sessions_in_memory": True}, {"write": "sometimes"},
        {"tenant": ""}, {"auto_save_interval": -1}, {"auto_save_interval": "often"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, object]):
    with pytest.raises(errors.Refused):
        SessionManager(base_path=tmp_path, **wrong).close()  # pyright: ignore[reportArgumentType] - on purpose


@pytest.mark.req("B-9")
def test_without_an_interval_nothing_is_saved_by_time(tmp_path: Path):
    with SessionManager(base_path=tmp_path, auto_save_interval=0, write="deferred") as manager:
        manager.create_session("s").add_message(Message("user", "x"))
        assert manager.save_session() is True
        assert manager.get_session("s").message_count == 1


@pytest.mark.req("B-9")
def test_a_folder_that_holds_a_sqlite_store_stays_one(tmp_path: Path):
    folder = tmp_path / "conversations"
    folder.mkdir()
    with connect(folder / "state.db") as lp:
        lp.sessions.create_session("before").add_message(Message("user", "kept"))
    with SessionManager(base_path=folder) as manager:
        session = manager.load_session("before")
        assert session is not None and [m.content for m in session.messages] == ["kept"]
        session.add_message(Message("user", "more"))
        assert manager.save_session(session)
    assert {path.name.partition("-")[0] for path in folder.iterdir()} == {"state.db"}
    with connect(folder / "state.db") as lp:
        assert lp.admin.status()["backend"] == "sqlite"
        assert lp.sessions.get_session("before").message_count == 2
