"""Messages that came from a file are erased as those that were said here: from every prompt that memory put them into."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet import Limpet
from tests.acceptance.full_store import said


def file(folder: Path) -> tuple[Path, str, str]:
    """Export a user whose second session was told what the first had said; return two messages of the first."""
    with limpet.connect(folder / "from.db", memory=True) as lp:
        for number in range(3):
            said(lp, f"pad{number}", "bob", "I prefer tea.")
        said(lp, "one", "ada", "I live in Oslo.", "What is the time?")
        ids = [message.id for message in lp.sessions.get_session("one").messages]
        lp.worker().run_once()
        lp.sessions.create_session("new", user_id="ada", system="You plan.")
        assert "Oslo" in prompt(lp, "new")
        lp.admin.export(folder / "ada.jsonl", user_id="ada")
    return folder / "ada.jsonl", ids[0], ids[1]


def prompt(lp: Limpet, session_id: str) -> str:
    return str(lp.sessions.get_session(session_id).messages[0].content)


@pytest.mark.parametrize("rename", ["", "-copy"])
@pytest.mark.parametrize("whole", [False, True])
def test_what_a_prompt_was_told_goes_with_a_message_of_an_import(tmp_path: Path, rename: str, whole: bool):
    path, message_id, _ = file(tmp_path)
    with limpet.connect(tmp_path / "to.db", memory=True) as lp:
        lp.admin.import_(path, rename=rename)
        lp.worker().run_once()
        assert "Oslo" in prompt(lp, f"new{rename}")
        if whole:
            lp.admin.erase(session_id=f"one{rename}")
        else:
            lp.admin.erase(session_id=f"one{rename}", message_id=message_id)
        assert "Oslo" not in prompt(lp, f"new{rename}")
        assert "You plan." in prompt(lp, f"new{rename}")
    for found in tmp_path.glob("to.db*"):
        assert b"Oslo" not in found.read_bytes()


def test_a_message_that_only_has_the_place_of_a_source_takes_nothing_with_it(tmp_path: Path):
    path, message_id, other = file(tmp_path)
    with limpet.connect(tmp_path / "to.db", memory=True) as lp:
        lp.admin.import_(path)
        said(lp, "later", "ada", *(f"What is {number}?" for number in range(20)))
        for message in lp.sessions.get_session("later").messages:
            lp.admin.erase(session_id="later", message_id=message.id)
        lp.admin.erase(session_id="one", message_id=other)
        assert "Oslo" in prompt(lp, "new")
        lp.admin.erase(session_id="one", message_id=message_id)
        assert "Oslo" not in prompt(lp, "new")


def test_a_copy_under_other_ids_keeps_what_it_has(tmp_path: Path):
    path, message_id, _ = file(tmp_path)
    with limpet.connect(tmp_path / "from.db", memory=True) as lp:
        lp.admin.import_(path, rename="-copy")
        lp.admin.erase(session_id="one-copy", message_id=message_id)
        assert "Oslo" not in prompt(lp, "new-copy")
        assert "Oslo" in prompt(lp, "new")
