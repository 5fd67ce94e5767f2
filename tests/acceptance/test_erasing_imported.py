"""Messages that came from a file are erased as those that were said here: from every prompt that memory put them into."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast
from tests.acceptance.whole import said


def file(folder: Path) -> tuple[Path, str, str]:
    """Export a user whose second session was told what the first had said; return two messages of the first."""
    with holdfast.connect(folder / "from.db", memory=True) as hf:
        for number in range(3):
            said(hf, f"pad{number}", "bob", "I prefer tea.")
        said(hf, "one", "ada", "I live in Oslo.", "What is the time?")
        ids = [message.id for message in hf.sessions.get_session("one").messages]
        hf.worker().run_once()
        hf.sessions.create_session("new", user_id="ada", system="You plan.")
        assert "Oslo" in prompt(hf, "new")
        hf.admin.export(folder / "ada.jsonl", user_id="ada")
    return folder / "ada.jsonl", ids[0], ids[1]


def prompt(hf: Holdfast, session_id: str) -> str:
    return str(hf.sessions.get_session(session_id).messages[0].content)


@pytest.mark.parametrize("rename", ["", "-copy"])
@pytest.mark.parametrize("whole", [False, True])
def test_what_a_prompt_was_told_goes_with_a_message_of_an_import(
    tmp_path: Path, rename: str, whole: bool
):
    path, message_id, _ = file(tmp_path)
    with holdfast.connect(tmp_path / "to.db", memory=True) as hf:
        hf.admin.import_(path, rename=rename)
        hf.worker().run_once()
        assert "Oslo" in prompt(hf, f"new{rename}")
        if whole:
            hf.admin.erase(session_id=f"one{rename}")
        else:
            hf.admin.erase(session_id=f"one{rename}", message_id=message_id)
        assert "Oslo" not in prompt(hf, f"new{rename}")
        assert "You plan." in prompt(hf, f"new{rename}")
    for found in tmp_path.glob("to.db*"):
        assert b"Oslo" not in found.read_bytes()


def test_a_message_that_only_has_the_place_of_a_source_takes_nothing_with_it(tmp_path: Path):
    path, message_id, other = file(tmp_path)
    with holdfast.connect(tmp_path / "to.db", memory=True) as hf:
        hf.admin.import_(path)
        said(hf, "later", "ada", *(f"What is {number}?" for number in range(20)))
        for message in hf.sessions.get_session("later").messages:
            hf.admin.erase(session_id="later", message_id=message.id)
        hf.admin.erase(session_id="one", message_id=other)
        assert "Oslo" in prompt(hf, "new")
        hf.admin.erase(session_id="one", message_id=message_id)
        assert "Oslo" not in prompt(hf, "new")


def test_a_copy_under_other_ids_keeps_what_it_has(tmp_path: Path):
    path, message_id, _ = file(tmp_path)
    with holdfast.connect(tmp_path / "from.db", memory=True) as hf:
        hf.admin.import_(path, rename="-copy")
        hf.admin.erase(session_id="one-copy", message_id=message_id)
        assert "Oslo" not in prompt(hf, "new-copy")
        assert "Oslo" in prompt(hf, "new")
